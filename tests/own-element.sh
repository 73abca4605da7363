#!/usr/bin/env bash
# docs/writing-an-element.md: the element of the page compiles in a folder outside of the workspace.
. "$(dirname "$0")/common.bash"

# The lock file saves the download of other versions.
mkdir -p "$work/elements/src"
ln -s "$PWD" "$work/threadbare"
cp examples/elements/src/*.rs "$work/elements/src/"
awk '/^```/ { inside = /^```toml$/; next } inside' docs/writing-an-element.md >"$work/elements/Cargo.toml"
cp Cargo.lock "$work/elements/"
(cd "$work/elements" && CARGO_TARGET_DIR=$target_dir/../outside "${CARGO:-cargo}" check -q --offline) ||
    die 'docs/writing-an-element.md: what it says does not compile'
say 'ok'
