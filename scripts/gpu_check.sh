#!/bin/sh
# Looks at a real GPU machine: what each NVML call costs, what NVIDIA's headers leave open, and a capture for tests. Needs no network.
#
#     sh scripts/gpu_check.sh [--wheels DIR] [--output DIR] [--library FILE] [--keep-identities] …      (--help lists all)
#
# Python: that of .venv, else python3. What it lacks of prometheus-client and nvidia-ml-py is taken from the wheels in DIR (or $POISE_WHEELS),
# which are only unpacked, so that neither pip nor a virtual environment is needed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

wheels=${POISE_WHEELS:-}
previous=
for argument; do
    [ "$previous" != --wheels ] || wheels=$argument
    case $argument in --wheels=*) wheels=${argument#--wheels=} ;; esac
    previous=$argument
done

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
complete() { "$1" -c 'import pynvml, prometheus_client' 2>/dev/null; }

PYTHONPATH=$root/exporter:$root/cli${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
python=
for candidate in "$root/.venv/bin/python" python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null 2>&1 && usable "$candidate"; then
        [ -n "$python" ] || python=$candidate
        if complete "$candidate"; then
            python=$candidate
            break
        fi
    fi
done
if [ -z "$python" ]; then
    echo "gpu_check: Poise needs Python 3.11 or newer; none is on PATH" >&2
    exit 1
fi
if ! complete "$python"; then
    if [ -z "$wheels" ]; then
        echo "gpu_check: $python has no prometheus-client and nvidia-ml-py; put their wheels into a folder (pip download prometheus-client nvidia-ml-py) and name it with --wheels" >&2
        exit 1
    fi
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    for wheel in "$wheels"/prometheus_client-*.whl "$wheels"/nvidia_ml_py-*.whl; do
        if [ ! -f "$wheel" ]; then
            echo "gpu_check: --wheels=$wheels: no ${wheel##*/} there" >&2
            exit 1
        fi
        "$python" -m zipfile -e "$wheel" "$unpacked"
    done
    PYTHONPATH=$unpacked:$PYTHONPATH
fi
# Not exec: the unpacked wheels are removed at the end.
"$python" "$here/gpu_check.py" "$@"
