#!/bin/sh
# System packages by purpose: `compiler` (the simulated driver library), `test` (all that the tests use).
# As root on Debian they are installed; otherwise it is said what is missing, and tests that need it are skipped with that reason.
set -eu
purpose=${1:?compiler or test}

missing=""
need() { # command package…
    command -v "$1" >/dev/null 2>&1 || {
        shift
        missing="$missing $*"
    }
}
need cc gcc libc6-dev
need openssl openssl
if [ "$purpose" = test ]; then
    need prometheus prometheus
    need amtool prometheus-alertmanager
    need chromium chromium fonts-dejavu-core
    need curl curl
    need ip iproute2
    need unshare util-linux
    need faketime faketime
    need systemd-analyze systemd
fi
missing=$(echo "$missing" | tr ' ' '\n' | sort -u | tr '\n' ' ' | sed 's/^ *//; s/ *$//')
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "system packages: not installed: $missing (as root: apt-get install --no-install-recommends $missing)" >&2
    exit 0
fi

# Packages with services would start them; ours are started by the tests, on ports of their own.
policy=/usr/sbin/policy-rc.d
made_policy=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made_policy=yes
fi
trap '[ -z "$made_policy" ] || rm -f "$policy"' EXIT
echo "system packages: installing $missing"
log=$(mktemp)
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "system packages: apt-get failed, see above" >&2
    exit 1
fi
rm -f "$log"
