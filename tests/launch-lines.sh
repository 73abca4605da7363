#!/usr/bin/env bash
# Runs the documented gst-launch-1.0 lines and some more, unchanged except for the ports.
. "$(dirname "$0")/common.bash"

use_build
export GST_PLUGIN_PATH=$target_dir
seconds_max=60
tone='audiotestsrc is-live=true num-buffers=100 samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1'

# The documented lines, one per line, without the continuing backslashes.
documented_lines() {
    # tests/start.sh runs the pages in docs/start and docs/gateway.md as a whole.
    find README.md docs -name '*.md' ! -path 'docs/start/*' ! -path docs/gateway.md -print0 | xargs -0 awk '
        FNR == 1 { fenced = 0; more = 0 }
        /^ *```/ { fenced = !fenced; next }
        fenced && (more || /^ *gst-launch-1\.0 /) {
            line = more ? line $0 : $0
            more = sub(/\\$/, "", line)
            if (!more) { gsub(/ +/, " ", line); print line }
        }'
}

# Runs the words of a line as a shell does, in a folder for its files; the lines are written for a shell.
mkdir "$work/here"
launch() { (cd "$work/here" && timeout "$seconds_max" bash -c "exec $1"); }

# A line that ends by itself.
run_to_end() {
    local begin=$SECONDS status=0
    launch "$1" >"$work/log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || die "status $status after $((SECONDS - begin)) s: $1"$'\n'"$(cat "$work/log")"$'\n'"$(tail -n 20 "$work"/*.log)"
    say "ok: $1"
}

# A line that receives and forwards for ever: it gets packets until it has sent 20, and is then interrupted, which must end it in
# an orderly way.
run_between() {
    local line=$1 port_in=$2 port_out=$3 receiver running status=0
    launch "gst-launch-1.0 -q udpsrc address=127.0.0.1 port=$port_out num-buffers=20 ! fakesink" >"$work/received" 2>&1 &
    receiver=$!
    started+=("$receiver")
    # Without job control, an asynchronous process ignores interrupts.
    set -m
    bash -c "exec ${line/gst-launch-1.0 /gst-launch-1.0 -e }" >"$work/log" 2>&1 &
    running=$!
    set +m
    started+=("$running")
    while kill -0 "$receiver" 2>/dev/null; do
        kill -0 "$running" 2>/dev/null || die "ended early: $line"$'\n'"$(cat "$work/log")"
        launch "gst-launch-1.0 -q $tone ! mulawenc ! rtppcmupay ssrc=1 ! udpsink host=127.0.0.1 port=$port_in" >/dev/null
    done
    wait "$receiver" || die "no output from: $line"$'\n'"$(cat "$work/log" "$work/received")"
    kill -INT "$running"
    timeout "$seconds_max" tail --pid="$running" -f /dev/null || die "does not end when interrupted: $line"
    wait "$running" || status=$?
    [ "$status" -eq 0 ] || die "status $status when interrupted: $line"$'\n'"$(cat "$work/log")"
    say "ok: $line"
}

# The server for lines that fetch a file. Like Python's server, it does not support ranges.
web_port=''
serve_files() {
    [ -z "$web_port" ] || return 0
    web_port=$(free_port)
    mkdir "$work/web"
    launch "gst-launch-1.0 -q audiotestsrc num-buffers=200 ! audio/x-raw,rate=8000,channels=1 ! wavenc ! filesink location=$work/web/tone.wav"
    python3 -m http.server --bind 127.0.0.1 --directory "$work/web" "$web_port" >"$work/web.log" 2>&1 &
    started+=("$!")
    while ! curl -s -o /dev/null "http://127.0.0.1:$web_port/"; do
        kill -0 "${started[-1]}" || die "no file server: $(cat "$work/web.log")"
        sleep 0.1
    done
}

# The S3 server for lines that write and read there; setup has installed it. It ends with its standard input.
store_port=''
serve_objects() {
    [ -z "$store_port" ] || return 0
    mkfifo "$work/store.in"
    "${CARGO_TARGET_DIR:-target}/venv-moto/bin/python" crates/gst/tests/common/store.py <"$work/store.in" >"$work/store.out" 2>"$work/store.log" &
    started+=("$!")
    exec {store_input}>"$work/store.in"
    while [ ! -s "$work/store.out" ]; do
        kill -0 "${started[-1]}" || die "no S3 server: $(cat "$work/store.log")"
        sleep 0.1
    done
    store_port=$(grep -oP '"port": \K\d+' "$work/store.out")
    # It loads most of its code at the first request.
    curl -s -o /dev/null --max-time "$seconds_max" "http://127.0.0.1:$store_port/" || die "the S3 server does not answer: $(cat "$work/store.log")"
    export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret
}

run() {
    local line=$1 port_in='' port_out='' in out tcp
    # The first port on which it listens, and the first to which it sends.
    in=$(grep -oP '(udp|rtp)src [^!]*?\bport=\K\d+' <<<"$line" | head -1) || true
    out=$(grep -oP '(udp|rtp)sink [^!]*?\b(port=|clients=[^ ]*:)\K\d+' <<<"$line" | head -1) || true
    # Both ends of a connection are in the line.
    tcp=$(grep -oP 'tcp(server|client)(src|sink) [^!]*?\bport=\K\d+' <<<"$line" | head -1) || true
    if [[ $line == *http://127.0.0.1:8000/* ]]; then
        serve_files
        line=${line//127.0.0.1:8000/127.0.0.1:$web_port}
    fi
    if [[ $line == *http://127.0.0.1:9000* ]]; then
        serve_objects
        line=${line//127.0.0.1:9000/127.0.0.1:$store_port}
        line=${line//\/var\/spool\/recordings/$work\/spool}
    fi
    [ -z "$tcp" ] || line=${line//"$tcp"/$(free_port)}
    if [ -n "$in" ]; then
        port_in=$(free_port)
        line=${line//"$in"/$port_in}
    fi
    if [ -n "$out" ]; then
        port_out=$(free_port)
        line=${line//"$out"/$port_out}
    fi
    case "$in,$out" in
        ?*,?*) run_between "$line" "$port_in" "$port_out" ;;
        ?*,) die "it neither ends nor sends packets that would show that it works: $line" ;;
        *) run_to_end "$line" ;;
    esac
}

mapfile -t lines < <(documented_lines)
[ "${#lines[@]}" -gt 0 ] || die 'no gst-launch-1.0 line in README.md or docs'
for line in "${lines[@]}"; do
    # -q would hide the messages that -m prints.
    ! grep -q ' -q .*-m \| -m .*-q ' <<<"$line" || die "-q hides the output of -m: $line"
    run "$line"
done
# The plugin under its own name, with all of its elements.
plugin=$(gst-inspect-1.0 threadbare)
for page in docs/elements/*.md; do
    element=$(basename "$page" .md)
    ! grep -q "^# $element\$" "$page" || grep -q "^  $element: " <<<"$plugin" ||
        die "gst-inspect-1.0 threadbare does not list $element: $plugin"
done
run "gst-launch-1.0 -q $tone ! ts-queue context=q context-wait=20 ! fakesink"
run "gst-launch-1.0 -q $tone ! ts-queue ! mulawenc ! rtppcmupay ! ts-udpsink clients=127.0.0.1:5004 context=out"
run "gst-launch-1.0 -q $tone ! tee name=t ! ts-queue context=a ! fakesink t. ! ts-queue context=b ! fakesink"
run "gst-launch-1.0 -q ts-udpsrc port=5004 context=c context-wait=20 caps=application/x-rtp,media=audio,payload=0,clock-rate=8000,encoding-name=PCMU ! ts-queue context=d ! ts-udpsink clients=127.0.0.1:5006"
