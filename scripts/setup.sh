#!/bin/sh
# Make .venv with the locked dependencies and Poise itself in editable form. Safe to repeat; finishes what an interrupted run began.
set -eu
cd "$(dirname "$0")/.."

find_python() {
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "setup: Poise needs Python 3.11 or newer; none is on PATH (Debian: apt-get install python3 python3-venv)" >&2
    exit 1
}

python=$(find_python)
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup: installing python3-venv"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    else
        echo "setup: $python has no venv module; install it and run make again (Debian: apt-get install python3-venv)" >&2
        exit 1
    fi
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    echo "setup: making .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv
fi
echo "setup: installing the locked dependencies into .venv"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() {
    if ! env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pip --disable-pip-version-check --quiet "$@" >"$log" 2>&1; then
        cat "$log" >&2
        echo "setup: pip $* failed, see above; run make again when the cause is mended" >&2
        exit 1
    fi
}
pip install --upgrade 'pip>=25.1'
pip install --requirement requirements.lock
pip install --no-deps --editable .
.venv/bin/poise --version >/dev/null
touch .venv/ready
echo "setup: ready, .venv/bin/poise --help"
