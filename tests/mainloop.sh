#!/usr/bin/env bash
# Runs the examples of threadbare-mainloop, and its tests under valgrind, because GLib is C and frees the contents of a source.
. "$(dirname "$0")/common.bash"

use_build
seconds_max=600
examples=$target_dir/examples

# Longer than a chunk, and not a multiple of one.
head -c 10007 /dev/urandom | base64 >"$work/file"
timeout "$seconds_max" "$examples/chunks" "$work/file" >"$work/out" || die "chunks: status $?"
cmp "$work/file" "$work/out" || die 'chunks: the output differs from the file'
timeout "$seconds_max" "$examples/chunks" "$work/none" 2>"$work/err" && die 'chunks: a missing file is no error'
grep -q "$work/none" "$work/err" || die "chunks: does not name the file: $(cat "$work/err")"

timeout "$seconds_max" "$examples/label" >"$work/out" || die "label: status $?"
seq -f '%g %%' 0 10 100 | cmp - "$work/out" || die 'label: updates are missing or out of order'

# $1: a program's name; $2: its process; $3: a pattern. Waits for the pattern in its output.
wait_for() {
    local end=$((SECONDS + seconds_max))
    until grep -q "$3" "$work/$1.out"; do
        kill -0 "$2" 2>/dev/null && [ "$SECONDS" -lt "$end" ] || die "$1: no '$3' in: $(cat "$work/$1.out")"
        sleep 0.1
    done
}

for signal in INT TERM; do
    # Earlier output does not count for this program.
    : >"$work/shutdown.out"
    (exec timeout "$seconds_max" "$examples/shutdown") >"$work/shutdown.out" &
    started+=("$!")
    wait_for shutdown "$!" working
    pkill "-$signal" -P "$!" || die "shutdown: no process for SIG$signal"
    wait "$!" || die "shutdown: status $? after SIG$signal"
    grep -q "^SIG$signal: ending 1 task" "$work/shutdown.out" || die "shutdown: $(cat "$work/shutdown.out")"
    grep -q '^0 task(s) left' "$work/shutdown.out" || die "shutdown: $(tail -n1 "$work/shutdown.out")"
done

(exec timeout "$seconds_max" "$examples/context" "$work/file") >"$work/context.out" &
started+=("$!")
wait_for context "$!" working
pkill -INT -P "$!" || die 'context: no process for SIGINT'
wait "$!" || die "context: status $?"
head -c "$(stat -c %s "$work/file")" "$work/context.out" | cmp - "$work/file" || die 'context: the output differs from the file'
tail -n1 "$work/context.out" | grep -q 'the task was cancelled' || die "context: $(tail -n1 "$work/context.out")"

# Tests that leak on purpose are marked in their names. Ten thousand tasks take minutes under valgrind.
binaries=$work/binaries.json
if [ -n "${BUILT:-}" ]; then
    binaries=$target_dir/../test-binaries.json
else
    PATH=$PATH:$target_dir/../venv-nextest/bin "${CARGO:-cargo}" nextest list --workspace "${tools[@]}" --list-type binaries-only \
        --message-format json >"$binaries"
fi
python3 -c '
import json, sys
for one in json.load(open(sys.argv[1]))["rust-binaries"].values():
    if one["kind"] == "test" and one["binary-id"].startswith("threadbare-mainloop::"):
        print(one["binary-path"])' "$binaries" >"$work/tests"
[ "$(wc -l <"$work/tests")" -ge 2 ] || die "the tests' programs are not found: $(cat "$work/tests")"
while read -r test; do
    G_DEBUG=gc-friendly timeout "$seconds_max" valgrind -q --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite --error-exitcode=99 "$test" --test-threads=1 --skip leak --skip ten_thousand \
        >"$work/out" 2>&1 || die "valgrind: status $? of $test: $(cat "$work/out")"
done <"$work/tests"
say 'ok'
