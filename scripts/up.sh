#!/bin/sh
# `make up`: with an NVIDIA driver this node, live; without one a real vLLM on simulated cards, said so on every page.
set -eu
cd "$(dirname "$0")/.."

# Ends with make, even when make is killed: nobody would look for what it started.
poise() {
    exec .venv/bin/python -IS dashboard/poise/dashboard/die_with_parent.py "$PPID" .venv/bin/poise "$@"
}

if [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; then
    poise up
fi
echo "make up: no NVIDIA driver on this machine; starting the testbed: a real vLLM on two simulated cards"
sh scripts/system_packages.sh compiler
poise testbed demo
