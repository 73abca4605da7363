#!/usr/bin/env bash
# `make install` installs the plugin where GStreamer finds it, and `make uninstall` leaves nothing behind.
. "$(dirname "$0")/common.bash"

use_build
# `make install` uses an optimised build; this test uses the existing one.
mkdir "$work/target"
ln -s "$target_dir" "$work/target/release"

files_below() { (cd "$1" && find . ! -type d | sort); }

# $1: a description, followed by make's variables.
check() {
    local what=$1 root=$work/root
    shift
    mkdir "$root"
    make_it() {
        # -o: without a build.
        CARGO_TARGET_DIR=$work/target HOME=$root/home make --no-print-directory -o build "$@" >"$work/log" 2>&1 ||
            die "$what: make $* failed: $(cat "$work/log")"
    }
    make_it install "$@"
    local plugin binary
    plugin=$(find "$root" -name "$plugin_name")
    binary=$(find "$root" -name threadbare -type f -perm -u+x)
    [ "$(files_below "$root" | wc -l)" -eq 2 ] && [ -n "$plugin" ] && [ -n "$binary" ] ||
        die "$what: expected the plugin and the binary, got: $(files_below "$root")"
    for element in "${elements[@]}"; do
        GST_PLUGIN_SYSTEM_PATH='' GST_PLUGIN_PATH=$(dirname "$plugin") gst-inspect-1.0 "$element" >"$work/log" 2>&1 ||
            die "$what: gst-inspect-1.0 $element: $(cat "$work/log")"
        grep -q "Filename *$plugin\$" "$work/log" || die "$what: $element belongs to another file"
    done
    "$binary" --version >/dev/null || die "$what: the binary does not start"
    make_it uninstall "$@"
    [ -z "$(files_below "$root")" ] || die "$what: left behind: $(files_below "$root")"
    rm -r "$root"
    say "$what: ok"
}

# Manual pages and completions, as in docs/install.md.
mkdir "$work/home"
awk '/^## / { here = $0 == "## From source" } /^```/ { pasted = here && $0 == "```sh"; next } pasted' docs/install.md >"$work/pasted"
(cd "$work" && HOME=$work/home PATH=$target_dir:$PATH bash -e pasted) || die 'docs/install.md: the manual pages'
for file in man/man1/threadbare-run.1 man/man5/threadbare.toml.5 bash-completion/completions/threadbare; do
    [ -s "$work/home/.local/share/$file" ] || die "docs/install.md: no $file"
done
say 'manual pages and completions: ok'

check 'below a prefix' PREFIX="$work/root/usr"
check 'for packagers' DESTDIR="$work/root" PREFIX=/usr
XDG_DATA_HOME=$work/root/data check 'for a user'
