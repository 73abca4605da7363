#!/usr/bin/env bash
# Runs the pages for newcomers, pasted word for word into one shell each, except for the ports. Blocks marked `console`, which
# install something or run for ever, are left out.
. "$(dirname "$0")/common.bash"

use_build
enter_namespace
ip link add v0 type veth peer name v1
ip address add 192.0.2.1/24 dev v0
ip link set v0 up
ip link set v1 up

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
    # The pages are read in the source tree, but their output goes elsewhere.
    ln -s "$top/examples" "$folder/examples"
    blocks "$page" "$(free_port)" "$(free_port)" >"$folder/pasted"
    [ -s "$folder/pasted" ] || die "$page: nothing to paste"
    # Standard input stays open, as in a terminal: a program that reads it waits for ever.
    (cd "$folder" && timeout "$seconds_max" bash -e pasted <"$work/keyboard" >output 2>&1) ||
        die "$page: status $?"$'\n'"$(cat "$folder/output")"
    say "ok: $page"
}

# Texts that the output of a page must contain.
expect() { grep -q -- "$2" "$work/$1/output" || die "$1: no '$2' in"$'\n'"$(cat "$work/$1/output")"; }

mkfifo "$work/keyboard"
exec 3<>"$work/keyboard"

paste_page docs/start/telephony.md
expect telephony 'no mistakes. 1 streams'
expect telephony 'out.wav'
expect telephony 'slices of 20 ms'
expect telephony 'stream="\?line"\?'
paste_page docs/start/sip.md
expect sip 'PCMU/8000'
expect sip 'calls restored.* calls=1'
# Over the restart, too.
python3 tests/sip/tone.py "$(echo "$work"/sip/bob/dump-*-dec.wav)" 500 || die 'sip: bob has not heard a tone of 500 Hz'
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
