#!/bin/sh
# `make up`: with an NVIDIA driver this node, live; without one a real vLLM on simulated cards, said so on every page.
set -eu
cd "$(dirname "$0")/.."
if [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; then
    exec .venv/bin/poise up
fi
echo "make up: no NVIDIA driver on this machine; starting the testbed: a real vLLM on two simulated cards"
sh scripts/system_packages.sh compiler
exec .venv/bin/poise testbed demo
