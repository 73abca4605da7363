#!/usr/bin/env bash
# The unit for systemd: systemd's own tool finds no mistake in it, and little that it could still lock.
. "$(dirname "$0")/common.bash"

use_build
unit=packaging/systemd/threadbare.service
program=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")
[ "$program" = /usr/bin/threadbare ] || die "the unit starts '$program'"
sed "s,^\(Exec[A-Za-z]*\)=$program,\1=$target_dir/threadbare," "$unit" >"$work/threadbare.service"
SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "verify: $(cat "$work/log")"
[ ! -s "$work/log" ] || die "verify: $(cat "$work/log")"

# In tenths: 2.0 is "OK" by systemd's own words.
systemd-analyze security --offline=true --threshold=20 "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "security: $(cat "$work/log")"
say "$(sed -n 's/.*\(Overall exposure.*[0-9]\) .*/\1/p' "$work/log")"

# With what docs/xdp.md has for the editor of `systemctl edit`, too.
mkdir "$work/threadbare.service.d"
sed -n '/^  \[Service\]$/,/^  ```$/ s/^  //p' docs/xdp.md | sed '/^```$/d' >"$work/threadbare.service.d/xdp.conf"
grep -q '^AmbientCapabilities=CAP_NET_ADMIN' "$work/threadbare.service.d/xdp.conf" || die 'docs/xdp.md has no drop-in'
SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$work/threadbare.service" >"$work/log" 2>&1 ||
    die "verify with XDP: $(cat "$work/log")"
[ ! -s "$work/log" ] || die "verify with XDP: $(cat "$work/log")"

# What the unit starts takes the configuration that the package brings.
"$target_dir/threadbare" run packaging/threadbare.toml --check >"$work/log" || die "$(cat "$work/log")"
say 'ok'
