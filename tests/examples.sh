#!/usr/bin/env bash
# The programs in examples/ for application developers. Each checks itself.
. "$(dirname "$0")/common.bash"

use_build
export GST_PLUGIN_PATH=$target_dir
seconds_max=300

# The system's Python, which has the system's packages.
timeout "$seconds_max" /usr/bin/python3 examples/many-streams.py --streams 500 --seconds 1 ||
    die "examples/many-streams.py: status $?"

timeout "$seconds_max" "$target_dir/examples/app" 300 1 || die "crates/gst/examples/app.rs: status $?"

# In C, as its Makefile builds it.
CFLAGS=-Werror make --no-print-directory -s -C examples/c
timeout "$seconds_max" examples/c/many-calls 100 20 || die "examples/c/many-calls: status $?"
rm examples/c/many-calls

# RTP in and out; senders and receivers are independent programs.
streams=3
/usr/bin/python3 examples/rtp-levels.py --listen 127.0.0.1:0 --to 127.0.0.1:"$(free_port)" --streams 1 --seconds 0.1 >"$work/log" 2>&1 ||
    die "examples/rtp-levels.py: status $?: $(cat "$work/log")"
to=$(free_port)
timeout --foreground "$seconds_max" /usr/bin/python3 examples/rtp-levels.py --listen 127.0.0.1:0 --to "127.0.0.1:$to" --streams "$streams" \
    >"$work/levels" 2>&1 &
levels=$!
started+=("$levels")
# $1: a pattern; $2: the number of its occurrences.
wait_for() {
    local end=$((SECONDS + seconds_max))
    until [ "$(grep -c "$1" "$work/levels")" -ge "$2" ]; do
        kill -0 "$levels" 2>/dev/null && [ "$SECONDS" -lt "$end" ] || die "no $1 in: $(cat "$work/levels")"
        sleep 0.1
    done
}
wait_for 'listens on port' "$streams"
for number in $(seq 0 $((streams - 1))); do
    port=$(sed -n "s/^stream-$number listens on port //p" "$work/levels")
    # A sine of amplitude 1/8 is 21.1 dB below a full-scale square, the reference of `level`.
    ffmpeg -nostdin -v error -re -f lavfi -i "sine=frequency=$((500 + 100 * number)):sample_rate=8000" -c:a pcm_mulaw -f rtp \
        "rtp://127.0.0.1:$port?pkt_size=172" >/dev/null 2>&1 &
    started+=("$!")
    timeout "$seconds_max" gst-launch-1.0 -q udpsrc address=127.0.0.1 port=$((to + 2 * number)) num-buffers=50 \
        caps=application/x-rtp,media=audio,payload=8,clock-rate=8000,encoding-name=PCMA ! rtppcmadepay ! fakesink ||
        die "stream $number has no output: $(cat "$work/levels")"
    wait_for "^stream-$number: -21\.[0-9] dBFS" 1
done
# An RTP sender reports within about 5 s (RFC 3550, section 6.2); one report goes to this port.
timeout "$seconds_max" gst-launch-1.0 -q udpsrc address=127.0.0.1 port=$((to + 1)) num-buffers=1 caps=application/x-rtcp ! fakesink ||
    die 'no RTCP in the output'
kill -INT "$levels"
wait "$levels" || die "examples/rtp-levels.py: status $?: $(cat "$work/levels")"
[ "$(grep -c '^stream-[0-9]: [1-9][0-9]* pushed, 0 lost, 0 late, [1-9][0-9]* RTCP packets sent$' "$work/levels")" -ge 1 ] ||
    die "unexpected output: $(cat "$work/levels")"
say 'ok'
