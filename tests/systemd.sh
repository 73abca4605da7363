#!/usr/bin/env bash
# The unit for systemd: systemd's own tool finds no fault in it, and few further restrictions.
. "$(dirname "$0")/common.bash"

use_build
unit=packaging/systemd/threadbare.service
program=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")
[ "$program" = /usr/bin/threadbare ] || die "the unit starts '$program'"
sed "s,^\(Exec[A-Za-z]*\)=$program,\1=$target_dir/threadbare," "$unit" >"$work/threadbare.service"
SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "verify: $(cat "$work/log")"
[ ! -s "$work/log" ] || die "verify: $(cat "$work/log")"

# In tenths: systemd calls 2.0 "OK".
systemd-analyze security --offline=true --threshold=20 "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "security: $(cat "$work/log")"
say "$(sed -n 's/.*\(Overall exposure.*[0-9]\) .*/\1/p' "$work/log")"

# The same with the part of docs/xdp.md for `systemctl edit`.
mkdir "$work/threadbare.service.d"
sed -n '/^  \[Service\]$/,/^  ```$/ s/^  //p' docs/xdp.md | sed '/^```$/d' >"$work/threadbare.service.d/xdp.conf"
grep -q '^AmbientCapabilities=CAP_NET_ADMIN' "$work/threadbare.service.d/xdp.conf" || die 'docs/xdp.md has no drop-in'
SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "verify with XDP: $(cat "$work/log")"
[ ! -s "$work/log" ] || die "verify with XDP: $(cat "$work/log")"

# The unit's program accepts the configuration in the package.
"$target_dir/threadbare" run packaging/threadbare.toml --check >"$work/log" || die "$(cat "$work/log")"
say 'ok'
