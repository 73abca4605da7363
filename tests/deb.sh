#!/usr/bin/env bash
# `make deb`: lintian finds no fault in the packages, they work on a bare Debian, and removing them leaves nothing behind.
. "$(dirname "$0")/common.bash"
if [ "$(id -u)" -ne 0 ]; then
    # A separate root, as mmdebstrap needs it.
    exec sudo --preserve-env=CARGO_TARGET_DIR,PATH bash "$0"
fi

use_build
# `make deb` uses an optimised build; this test uses the existing one.
mkdir "$work/target"
ln -s "$target_dir" "$work/target/dist"
CARGO_TARGET_DIR=$work/target make --no-print-directory -o setup-deb -o build-dist deb >"$work/log" 2>&1 ||
    die "make deb: $(cat "$work/log")"
packages=("$work"/target/deb/*.deb)
[ "${#packages[@]}" -eq 3 ] || die "packages: ${packages[*]}"
lintian --fail-on error --tag-display-limit 0 "${packages[@]}" >"$work/log" 2>&1 || die "lintian: $(cat "$work/log")"
say "lintian has no errors, and $(grep -c '^W:' "$work/log" || true) warnings"

# The smallest Debian with apt, from this machine's package source.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
mapfile -t sources < <(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -size +0 -o -name '*.sources' 2>/dev/null)
mapfile -t settings < <(grep -ls '^[^/]*Acquire' /etc/apt/apt.conf.d/* || true)
root=$work/root
mmdebstrap --quiet --variant=apt --include=gstreamer1.0-tools "${settings[@]/#/--aptopt=}" \
    "$release" "$root" "${sources[@]}" >"$work/log" 2>&1 || die "mmdebstrap: $(cat "$work/log")"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
listed() { (cd "$root" && find etc usr var ! -type d ! -path 'var/cache/*' ! -path 'var/lib/apt/*' ! -path 'var/lib/dpkg/*' ! -path 'var/log/*' | sort); }
mount -t proc proc "$root/proc"
unmount() { mountpoint -q "$root/proc" && umount "$root/proc"; }
trap 'unmount; clean_up' EXIT

cp "${packages[@]}" "$root/srv/"
names=(threadbare gstreamer1.0-threadbare libebur128-threadbare)
inside apt-get update >"$work/log" 2>&1 || die "apt-get update: $(cat "$work/log")"
# The recommended packages are more than a hundred, and the tests do not need them.
echo 'APT::Install-Recommends "0";' >"$root/etc/apt/apt.conf.d/99recommends"
# The dependencies stay when the packages are removed.
inside sh -c 'apt-get install -y /srv/*.deb' >"$work/log" 2>&1 || die "install: $(cat "$work/log")"
inside apt-get purge -y "${names[@]}" >"$work/log" 2>&1 || die "purge: $(cat "$work/log")"
listed >"$work/before"
# As in docs/install.md.
awk '/^## / { here = $0 == "## Debian packages" } /^```/ { pasted = here && $0 == "```sh"; next } pasted' docs/install.md >"$root/srv/pasted"
grep -q 'apt-get install' "$root/srv/pasted" || die 'docs/install.md does not install packages'
inside sh -ec 'mkdir -p /srv/target; ln -s .. /srv/target/deb; cd /srv; . ./pasted' >"$work/log" 2>&1 ||
    die "docs/install.md: $(cat "$work/log")"

inside threadbare --version >"$work/log" || die 'the program does not start'
inside threadbare run /etc/threadbare/threadbare.toml --check >"$work/log" 2>&1 || die "configuration: $(cat "$work/log")"
inside gst-inspect-1.0 ts-udpsrc >"$work/log" 2>&1 || die "plugin: $(cat "$work/log")"
inside threadbare doctor >"$work/log" 2>&1 || true
grep -q 'ok    plugin threadbare' "$work/log" || die "doctor: $(cat "$work/log")"
for file in usr/share/man/man1/threadbare-serve.1.gz usr/share/man/man5/threadbare.toml.5.gz \
    usr/share/bash-completion/completions/threadbare lib/systemd/system/threadbare.service; do
    [ -s "$root/$file" ] || die "no /$file"
done
grep -q '^/etc/threadbare/threadbare.toml$' "$root/var/lib/dpkg/info/threadbare.conffiles" || die 'the configuration is not a conffile'
say 'installed, and works'

# The drop-in library: in its own directory; for one program, or for all by the administrator's choice; removed with the package.
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
folder=/usr/lib/$multiarch/threadbare
cc -std=c99 -I crates/loudness-capi/include crates/loudness-capi/tests/every_function.c -o "$root/srv/measure" \
    "$root$folder/libebur128.so.1" -lm
loaded() { inside "$@" ldd /srv/measure | sed -n 's/.*libebur128.so.1 => \([^ ]*\).*/\1/p'; }
[ "$(loaded)" = not ] || die "used without being chosen: $(loaded)"
[ "$(loaded env LD_LIBRARY_PATH="$folder")" = "$folder/libebur128.so.1" ] || die 'not used by one program'
choice=$(sed -n 's/^    sudo \(ln -s .*\) .$/\1/p' "$root/usr/share/doc/libebur128-threadbare/README.Debian")
[ -n "$choice" ] || die 'README.Debian does not say how to choose it'
inside sh -c "$choice /etc/ld.so.conf.d/00-libebur128-threadbare.conf && ldconfig"
[ "$(loaded)" = "$folder/libebur128.so.1" ] || die "chosen, but this one is used: $(loaded)"
inside /srv/measure null >"$work/measured" || die 'a program does not run with it'
[ -s "$work/measured" ] || die 'a program measures nothing with it'
rm "$root/srv/measure"
say 'the drop-in is used where it is chosen, and only there'

mkdir -p "$root/var/lib/private/threadbare" && ln -s private/threadbare "$root/var/lib/threadbare"
touch "$root/var/lib/private/threadbare/calls.redb"
inside apt-get remove -y "${names[@]}" >"$work/log" 2>&1 || die "remove: $(cat "$work/log")"
[ -e "$root/etc/threadbare/threadbare.toml" ] || die 'removal deletes the configuration'
[ -e "$root/var/lib/private/threadbare/calls.redb" ] || die 'removal deletes the saved calls'
inside apt-get purge -y "${names[@]}" >"$work/log" 2>&1 || die "purge: $(cat "$work/log")"
listed >"$work/after"
diff "$work/before" "$work/after" >"$work/log" || die "left behind, or deleted: $(cat "$work/log")"
[ -z "$(find "$root" -xdev -name '*threadbare*' ! -path "$root/srv/*" ! -path "$root/var/log/*" 2>/dev/null)" ] ||
    die "left behind: $(find "$root" -xdev -name '*threadbare*')"
say 'removed and purged, nothing is left'
