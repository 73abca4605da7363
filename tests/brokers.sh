#!/usr/bin/env bash
# Tests the examples with brokers; clients and publishers are independent programs. docs/brokers.md describes the results.
. "$(dirname "$0")/common.bash"

use_build
export BINARIES=$target_dir
seconds_max=300
sed -n '/^```text$/,/^```$/{/^```/!p}' docs/brokers.md >"$work/rabbitmq.expected"
[ -s "$work/rabbitmq.expected" ] || die 'docs/brokers.md has no example run'
# The same without its first line.
sed -e 's/rabbitmq-websockets/nats-websockets/; s/amqp:/nats:/' "$work/rabbitmq.expected" >"$work/nats.expected"
for kind in rabbitmq nats; do
    timeout "$seconds_max" examples/brokers/run.sh "$kind" >"$work/$kind" || die "run.sh $kind: status $?: $(cat "$work/$kind")"
    diff "$work/$kind.expected" "$work/$kind" || die "$kind: the output differs from docs/brokers.md"
done
say 'ok'
