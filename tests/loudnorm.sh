#!/usr/bin/env bash
# Compares `audioloudnorm` and ffmpeg's `loudnorm` on the same programmes with ffmpeg's meter. Prints the table of
# docs/loudness.md.
. "$(dirname "$0")/common.bash"

use_build
export GST_PLUGIN_PATH=$target_dir
target=-23 peak=-2
# The documented limits: distance from the target, LU; change of the gain, dB in 100 ms; time until a constant level is at the
# target, s. The meter reads tenths.
distance_max=1.0 step_max=3.5 settled_max=15
# With this programme no normaliser reaches the target below the limit: ffmpeg's misses it by 3.6 LU.
hard='clicks over a quiet tone' hard_distance_max=5.0
seconds_max=60

programmes=$target_dir/examples/programmes

# Integrated loudness and true peak of a file.
measure() {
    ffmpeg -nostdin -hide_banner -i "$1" -af ebur128=peak=true:framelog=verbose -f null - 2>&1 | awk '
        /Integrated loudness:/ { part = "I" }
        /True peak:/ { part = "P" }
        part == "I" && $1 == "I:" { loudness = $2 }
        part == "P" && $1 == "Peak:" { peak = $2 }
        END { if (peak == "") exit 1; print loudness, peak }' ||
        die "ffmpeg measured nothing in $1"
}

# The number of frames in the decoded file.
frames() {
    ffmpeg -nostdin -v error -i "$1" -map 0:a -c:a pcm_s16le -f framecrc - | awk -F, '
        !/^#/ { frames += $4 } END { if (!frames) exit 1; print frames }' || die "ffmpeg finds no audio in $1"
}

ours() {
    timeout "$seconds_max" gst-launch-1.0 -q filesrc location="$1" ! wavparse ! audioconvert dithering=none \
        ! "audio/x-raw,format=$3" \
        ! audioloudnorm loudness-target=$target max-true-peak=$peak loudness-range-target=7 \
        ! wavenc ! filesink location="$2" >"$work/log" 2>&1 || die "audioloudnorm failed: $(cat "$work/log")"
}

loudnorm() {
    # It works at 192 kHz, and its output must be converted back.
    timeout "$seconds_max" ffmpeg -nostdin -v error -y -i "$1" \
        -af "loudnorm=I=$target:TP=$peak:LRA=7" -ar "$3" -c:a pcm_f32le "$2"
}

# Distance from the target, excess over the limit (0 if there is none), largest step, time until settled.
judge() {
    local loudness top step settled
    read -r loudness top < <(measure "$2")
    read -r step settled < <("$programmes" compare "$1" "$2" $target "$3")
    awk -v loudness="$loudness" -v top="$top" -v target=$target -v limit=$peak -v step="$step" -v settled="$settled" '
        BEGIN { over = top - limit; printf "%+.1f %.1f %.1f %s\n", loudness - target, (over > 0 ? over : 0), step, settled }'
}

holds() { awk "BEGIN { exit !($1) }"; }

printf '| programme | distance from the target, LU | above the limit, dB | largest change of gain, dB in 100 ms | at one level after, s |\n'
printf '|---|---|---|---|---|\n'
failed=0
complain() { say "$*" >&2; failed=1; }
"$programmes" make "$work" >"$work/list"
while IFS='|' read -r number rate _ from programme; do
    wav=$work/$number.wav
    ours "$wav" "$work/ours.wav" F32LE
    loudnorm "$wav" "$work/theirs.wav" "$rate"
    read -r distance over step settled < <(judge "$wav" "$work/ours.wav" "$from")
    read -r distance_2 over_2 step_2 settled_2 < <(judge "$wav" "$work/theirs.wav" "$from")
    echo "| $programme | $distance / $distance_2 | $over / $over_2 | $step / $step_2 | $settled / $settled_2 |"
    holds "$over <= 0" || complain "$programme: $over dB above the limit"
    most=$distance_max
    [ "$programme" != "$hard" ] || most=$hard_distance_max
    holds "$distance <= $most && -$most <= $distance" || complain "$programme: $distance LU from the target"
    # There the limiter changes the gain as fast as necessary.
    [ "$programme" = "$hard" ] || holds "$step <= $step_max" || complain "$programme: the gain changes by $step dB in 100 ms"
    if [ "$from" != -1 ]; then
        [ "$settled" != - ] && holds "$settled <= $settled_max" || complain "$programme: at its level after $settled s"
    fi
    # The same as integers: rounding may not lift a peak above the limit.
    if [ "$from" = -1 ]; then
        ours "$wav" "$work/short.wav" S16LE
        read -r _ top < <(measure "$work/short.wav")
        holds "$top <= $peak" || complain "$programme, S16LE: a true peak of $top dBTP"
    fi
    # The number of frames is exact, whatever the file's header gives.
    before=$(frames "$wav") after=$(frames "$work/ours.wav")
    [ "$before" = "$after" ] || complain "$programme: $after frames instead of $before"
done <"$work/list"
exit "$failed"
