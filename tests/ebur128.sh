#!/usr/bin/env bash
# `make install-ebur128` installs the same files as libebur128, programs build with it, and `make uninstall-ebur128` removes it.
. "$(dirname "$0")/common.bash"

use_build
# `make install-ebur128` uses an optimised build; this test uses the existing one.
mkdir "$work/target"
ln -s "$target_dir" "$work/target/release"
root=$work/root

make_it() {
    # -o: without a build.
    CARGO_TARGET_DIR=$work/target make --no-print-directory -o build-ebur128 "$@" >"$work/log" 2>&1 ||
        die "make $* failed: $(cat "$work/log")"
}

make_it install-ebur128 PREFIX="$root"
found=$(cd "$root" && find . ! -type d | sort | tr '\n' ' ')
wanted='./include/ebur128.h ./lib/libebur128.a ./lib/libebur128.so ./lib/libebur128.so.1 ./lib/libebur128.so.1.2.6 ./lib/pkgconfig/libebur128.pc '
[ "$found" = "$wanted" ] || die "installed: $found"

# In C with all warnings, and in C++, with the flags from pkg-config.
export PKG_CONFIG_PATH=$root/lib/pkgconfig
[ "$(pkg-config --modversion libebur128)" = 1.2.6 ] || die 'pkg-config has another version'
read -ra flags < <(pkg-config --cflags libebur128)
read -ra libraries < <(pkg-config --libs libebur128)
read -ra static < <(pkg-config --static --libs-only-l libebur128 | sed 's/-lebur128//')
program=crates/loudness-capi/tests/every_function.c
cc -std=c99 -Wall -Wextra -Werror "${flags[@]}" "$program" -o "$work/shared" "${libraries[@]}" -lm
cc "${flags[@]}" "$program" -o "$work/static" "$root/lib/libebur128.a" "${static[@]}"
echo '#include <ebur128.h>' | c++ -Wall -Wextra -Werror "${flags[@]}" -x c++ -fsyntax-only -
readelf -d "$work/shared" | grep -q 'NEEDED.*\[libebur128\.so\.1\]' || die 'linked under another name'
LD_LIBRARY_PATH=$root/lib "$work/shared" null >"$work/shared.txt"
"$work/static" null >"$work/static.txt"
cmp -s "$work/shared.txt" "$work/static.txt" || die 'the shared and the static library differ'

# Only the 23 functions are exported, so that no other symbol conflicts with a program's.
symbols=$(nm -D --defined-only "$root/lib/libebur128.so" | awk '{print $3}')
[ "$(grep -c '^ebur128_' <<<"$symbols")" -eq 23 ] || die "functions: $symbols"
[ "$(wc -l <<<"$symbols")" -eq 23 ] || die "other symbols: $symbols"

# The benchmark program still runs; its results are not checked here.
cc -O2 "${flags[@]}" bench/loudness/cost.c -o "$work/cost" "${libraries[@]}" -lm
LD_LIBRARY_PATH=$root/lib "$work/cost" 1 >"$work/cost.txt"
[ "$(grep -c ' [0-9]*\.[0-9]*$' "$work/cost.txt")" -eq 8 ] || die "cost: $(cat "$work/cost.txt")"

make_it uninstall-ebur128 PREFIX="$root"
[ -z "$(find "$root" ! -type d)" ] || die "left behind: $(find "$root" ! -type d)"
say 'ok'
