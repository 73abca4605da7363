#!/usr/bin/env bash
# The pages for newcomers, pasted word by word into one shell each, but for their ports. Blocks marked `console` install or go on
# for ever, and are left out.
. "$(dirname "$0")/common.bash"

use_build
export GST_PLUGIN_PATH=$target_dir PATH=$target_dir:$PATH
export XDG_RUNTIME_DIR=$work/run
mkdir "$XDG_RUNTIME_DIR"
top=$PWD
seconds_max=120

# The blocks of a page that a reader pastes, with other ports.
blocks() {
    awk '/^ *```/ { pasted = $0 ~ /```sh$/; next } pasted' "$1" |
        sed -e "s/20000/$2/g" -e "s/30000/$3/g"
}

paste_page() {
    local page=$1 folder
    folder=$work/$(basename "$page" .md)
    mkdir "$folder"
    # The pages are read in the source tree; what they write goes elsewhere.
    ln -s "$top/examples" "$folder/examples"
    blocks "$page" "$(free_port)" "$(free_port)" >"$folder/pasted"
    [ -s "$folder/pasted" ] || die "$page: nothing to paste"
    # Standard input is open, as in a terminal: what reads it waits for ever.
    (cd "$folder" && timeout "$seconds_max" bash -e pasted <"$work/keyboard" >output 2>&1) ||
        die "$page: status $?"$'\n'"$(cat "$folder/output")"
    say "ok: $page"
}

# What must be in the output of a page.
expect() { grep -q -- "$2" "$work/$1/output" || die "$1: no '$2' in"$'\n'"$(cat "$work/$1/output")"; }

mkfifo "$work/keyboard"
exec 3<>"$work/keyboard"

paste_page docs/start/telephony.md
expect telephony 'fine. 1 streams'
expect telephony 'out.wav'
expect telephony 'slices of 20 ms'
expect telephony 'stream="\?line"\?'
paste_page docs/start/broadcast.md
expect broadcast 'good.wav'
expect broadcast 'ebur128-level'
[ -s "$work/broadcast/quiet.svg" ] || die 'broadcast: no picture'
paste_page docs/start/applications.md
expect applications "$plugin_name"
expect applications 'stream-1: '
expect applications '100 calls: '
rm -f examples/c/many-calls
paste_page docs/gateway.md
expect gateway 'g711A'
