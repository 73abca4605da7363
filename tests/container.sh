#!/usr/bin/env bash
# The container's content is enough to run the program, and has no shell. The build by a container engine needs the network and is
# not tested here: the script of the first stage makes the last stage's root from the existing program.
. "$(dirname "$0")/common.bash"
if [ "$(id -u)" -ne 0 ]; then
    # For chroot, and for the owner of the state's folder.
    exec sudo --preserve-env=CARGO_TARGET_DIR,PATH bash "$0"
fi

use_build
root=$work/root
line=$(sed -n 's,^RUN \(scripts/container-root\) .*,\1,p' packaging/Containerfile)
"$line" "$target_dir/threadbare" "$root"
strangers=$(cd "$root" && find . -type f ! -name '*.so*' | sort | tr '\n' ' ')
[ "$strangers" = './etc/group ./etc/nsswitch.conf ./etc/passwd ./etc/threadbare/threadbare.toml ./usr/bin/threadbare ' ] ||
    die "more than a program and its libraries: $strangers"
grep -q '^FROM scratch$' packaging/Containerfile || die 'the last stage does not begin with FROM scratch'

mount -t proc proc "$root/proc"
trap 'umount "$root/proc"; clean_up' EXIT
# As in the Containerfile.
user=$(sed -n 's/^USER //p' packaging/Containerfile)
read -ra command < <(sed -n 's/^CMD \["\(.*\)"\]/\1/p' packaging/Containerfile | sed 's/", "/ /g')
inside=(env STATE_DIRECTORY=/var/lib/threadbare chroot --userspec="$user" "$root" /usr/bin/threadbare)
"${inside[@]}" --version >"$work/log" || die 'the program does not start'
"${inside[@]}" "${command[@]}" --check >"$work/log" 2>&1 || die "${command[*]} --check: $(cat "$work/log")"
"${inside[@]}" demo --streams 10 --seconds 1 >"$work/log" 2>&1 || die "demo: $(cat "$work/log")"

# SIGTERM ends it, and the calls' file is on the volume.
sed -i 's/^listen = .*/listen = "127.0.0.1:0"/' "$root/etc/threadbare/threadbare.toml"
"${inside[@]}" "${command[@]}" >"$work/log" 2>&1 &
pid=$!
started+=("$pid")
until grep -q serving "$work/log"; do
    kill -0 "$pid" 2>/dev/null || die "${command[*]}: $(cat "$work/log")"
    sleep 0.05
done
kill -TERM "$pid"
wait "$pid" || die "${command[*]}: status $?: $(cat "$work/log")"
[ -s "$root/var/lib/threadbare/calls.redb" ] || die 'the calls have no file'
say 'ok'
