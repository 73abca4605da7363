#!/usr/bin/env bash
# Runs a broker, the example and two clients, and shows the messages of each; one client gets more than its limit.
#
#   examples/brokers/run.sh rabbitmq|nats
#
# BINARIES=FOLDER uses the programs in that folder.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
cd "$here/../.."

die() { echo "run.sh: $*" >&2; exit 1; }
kind=${1:-}
case $kind in
    rabbitmq | nats) ;;
    *) die 'usage: run.sh rabbitmq|nats' ;;
esac

work=$(mktemp -d)
started=()
clean_up() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    # The server ends with its standard input.
    exec 3>&-
    wait
    rm -rf "$work"
}
trap clean_up EXIT

# $1: a file; $2: a pattern that one of its lines must match.
wait_for() {
    local end=$((SECONDS + 120))
    until grep -qe "$2" "$1" 2>/dev/null; do
        [ "$SECONDS" -lt "$end" ] || die "no '$2' in: $(cat "$1")"
        sleep 0.1
    done
}

statistics() { python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' "http://$address/statistics"; }
wait_for_statistics() {
    local end=$((SECONDS + 120))
    until statistics >"$work/statistics" && grep -qe "$1" "$work/statistics"; do
        [ "$SECONDS" -lt "$end" ] || die "no $1 in: $(cat "$work/statistics")"
        sleep 0.1
    done
}

# Prints the first of three consecutive free ports, because RabbitMQ needs three.
free_port() {
    python3 - <<'PYTHON'
import random, socket
while True:
    port = random.randrange(20000, 32000)
    try:
        for number in range(port, port + 3):
            with socket.socket() as one:
                one.bind(("127.0.0.1", number))
    except OSError:
        continue
    print(port)
    break
PYTHON
}

case $kind in
    rabbitmq)
        command -v amqp-publish >/dev/null || die 'no amqp-publish: apt-get install amqp-tools'
        program=rabbitmq-websockets ready='Starting broker... completed'
        publish() { amqp-publish --url="$broker" --exchange=clients --routing-key="$1" --persistent --body="$2"; }
        ;;
    nats)
        program=nats-websockets ready='Server is ready'
        # NATS speaks text.
        publish() {
            exec 4<>"/dev/tcp/127.0.0.1/$port"
            printf 'CONNECT {"verbose":false}\r\nPUB clients.%s %d\r\n%s\r\nPING\r\n' "$1" "${#2}" "$2" >&4
            sed '/^PONG/q' <&4 >/dev/null
            exec 4>&-
        }
        ;;
esac
if [ -z "${BINARIES:-}" ]; then
    "${CARGO:-cargo}" build -q -p threadbare-example-brokers --features programs
    BINARIES=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug
fi

port=$(free_port)
mkfifo "$work/stdin"
"$here/server.sh" "$kind" "$port" <"$work/stdin" >"$work/server" 2>&1 &
started+=("$!")
exec 3>"$work/stdin"
wait_for "$work/server" "$ready"
broker=amqp://127.0.0.1:$port
[ "$kind" = rabbitmq ] || broker=nats://127.0.0.1:$port

# The limit of each client: three messages at once, and one more per hour.
arguments=(--broker "$broker" --rate 1/h --burst 3)
echo "\$ $program ${arguments[*]/$port/PORT}"
"$BINARIES/$program" "${arguments[@]}" >"$work/output" 2>"$work/log" 3>&- &
example=$!
started+=("$example")
wait_for "$work/output" '^listens on '
address=$(sed -n 's/^listens on //p' "$work/output")
wait_for_statistics '"connected":true'
for client in alice bob; do
    /usr/bin/python3 "$here/client.py" "ws://$address/clients/$client" >"$work/$client" 3>&- &
    started+=("$!")
    wait_for "$work/$client" '^connected$'
done

for number in 1 2 3 4 5; do
    publish alice "message $number for alice"
done
publish bob 'message 1 for bob'
publish nobody 'message 1 for nobody'
wait_for_statistics '"received":7'
echo "\$ curl http://ADDRESS:PORT/statistics"
cat "$work/statistics"

kill -TERM "$example"
wait "$example" || die "$program: status $?: $(cat "$work/log")"
for client in alice bob; do
    wait_for "$work/$client" '^closed'
    sed "s/^/$client: /" "$work/$client"
done
echo 'the last line of the program, after SIGTERM:'
tail -n 1 "$work/output"
