#!/bin/sh
# Resolve pyproject.toml (base, dashboard, dev) in a fresh environment and pin what came out.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
.venv/bin/python -m venv "$fresh/venv"
"$fresh/venv/bin/pip" install --quiet --upgrade 'pip>=25.1'
"$fresh/venv/bin/pip" install --quiet --editable '.[dashboard,testbed]' --group dev
{
    echo "# Made by \`make lock\` from pyproject.toml; do not edit."
    "$fresh/venv/bin/pip" freeze --exclude-editable | grep -viE '^(pip|setuptools)=='
} >requirements.lock
wc -l requirements.lock
