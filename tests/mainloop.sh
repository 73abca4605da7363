#!/usr/bin/env bash
# The examples of threadbare-mainloop, and its tests under valgrind: GLib is C, and what a source holds is freed by C.
. "$(dirname "$0")/common.bash"

use_build
seconds_max=300
"${CARGO:-cargo}" build -q --workspace --examples
examples=$target_dir/examples

# Longer than a chunk, and not a multiple of one.
head -c 10007 /dev/urandom | base64 >"$work/file"
timeout "$seconds_max" "$examples/chunks" "$work/file" >"$work/out" || die "chunks: status $?"
cmp "$work/file" "$work/out" || die 'chunks: not what is in the file'
timeout "$seconds_max" "$examples/chunks" "$work/none" 2>"$work/err" && die 'chunks: a missing file is no error'
grep -q "$work/none" "$work/err" || die "chunks: does not name the file: $(cat "$work/err")"

timeout "$seconds_max" "$examples/label" >"$work/out" || die "label: status $?"
seq -f '%g %%' 0 10 100 | cmp - "$work/out" || die 'label: not each update in order'

# $1: a program's name; $2: its process; $3: a pattern. Waits for the pattern in its output.
wait_for() {
    local end=$((SECONDS + seconds_max))
    until grep -q "$3" "$work/$1.out"; do
        kill -0 "$2" 2>/dev/null && [ "$SECONDS" -lt "$end" ] || die "$1: no '$3' in: $(cat "$work/$1.out")"
        sleep 0.1
    done
}

for signal in INT TERM; do
    # What the one before has said is no sign of this one.
    : >"$work/shutdown.out"
    (exec timeout "$seconds_max" "$examples/shutdown") >"$work/shutdown.out" &
    started+=("$!")
    wait_for shutdown "$!" working
    pkill "-$signal" -P "$!" || die "shutdown: no process to tell SIG$signal"
    wait "$!" || die "shutdown: status $? after SIG$signal"
    grep -q "^SIG$signal: ending 1 task" "$work/shutdown.out" || die "shutdown: $(cat "$work/shutdown.out")"
    grep -q '^0 task(s) left' "$work/shutdown.out" || die "shutdown: $(tail -n1 "$work/shutdown.out")"
done

(exec timeout "$seconds_max" "$examples/context" "$work/file") >"$work/context.out" &
started+=("$!")
wait_for context "$!" working
pkill -INT -P "$!" || die 'context: no process to tell SIGINT'
wait "$!" || die "context: status $?"
head -c "$(stat -c %s "$work/file")" "$work/context.out" | cmp - "$work/file" || die 'context: not what is in the file'
tail -n1 "$work/context.out" | grep -q 'the task was cancelled' || die "context: $(tail -n1 "$work/context.out")"

# Those that leak on purpose have it in their names. Ten thousand tasks take minutes there.
tests=()
for test in crates/mainloop/tests/*.rs; do
    tests+=(--test "$(basename "$test" .rs)")
done
"${CARGO:-cargo}" test -q --workspace "${tests[@]}" --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"src_path":"[^"]*mainloop\/tests\/[^"]*".*"executable":"\([^"]*\)".*/\1/p' >"$work/tests"
[ "$(wc -l <"$work/tests")" -ge 5 ] || die "the tests' programs are not found: $(cat "$work/tests")"
while read -r test; do
    G_DEBUG=gc-friendly timeout "$seconds_max" valgrind -q --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite --error-exitcode=99 "$test" --test-threads=1 --skip leak --skip ten_thousand \
        >"$work/out" 2>&1 || die "valgrind: status $? of $test: $(cat "$work/out")"
done <"$work/tests"
say 'ok'
