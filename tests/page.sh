#!/usr/bin/env bash
# Tests the page in a real Chromium, with 1000 streams and some calls: page/check.py has the expectations. Needs root, or user
# namespaces.
#
#   PICTURES=DIR tests/page.sh    keeps the screenshots
#   STREAMS=3000 tests/page.sh    only tests how smooth the wall is with more streams
. "$(dirname "$0")/common.bash"

use_build
enter_namespace

here=$PWD/tests/page
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
