#!/usr/bin/env bash
# The page in a real Chromium, with 1000 streams and some calls: page/check.py says what must be seen. Needs root, or user namespaces.
#
#   PICTURES=DIR tests/page.sh    keeps the screenshots
#   STREAMS=3000 tests/page.sh    how smooth the wall is with more streams, and no more
. "$(dirname "$0")/common.bash"

# A network and processes of its own: ports are fixed, but not for this machine, and all ends with the script.
if [ -z "${PAGE_NAMESPACE:-}" ]; then
    use_build
    options=(--net --pid --fork --kill-child --mount-proc)
    [ "$(id -u)" -eq 0 ] || options+=(--map-root-user)
    PAGE_NAMESPACE=yes unshare "${options[@]}" bash "$0"
    exit
fi

here=$PWD/tests/page
ip link set lo up
pictures=${PICTURES:-$work/pictures}
mkdir -p "$pictures"

mkdir "$work/recordings"
cat >"$work/gateway.toml" <<TOML
[http]
listen = "127.0.0.1:8080"

[ng]
listen = "127.0.0.1:2223"

[interfaces.default]
address = "127.0.0.1"
ports = "40000-50000"

[calls]
recording-dir = "$work/recordings"

[[stream]]
name = "programme"
count = ${STREAMS:-1000}
listen = "127.0.0.1:20000"
codec = "PCMU"
rtcp = false
TOML
"$target_dir/threadbare" run "$work/gateway.toml" >"$work/gateway.log" 2>&1 &
/usr/bin/python3 "$here/check.py" "$pictures" || {
    tail -n 20 "$work/gateway.log" >&2
    say "failed; the gateway's log is above" >&2
    exit 1
}
