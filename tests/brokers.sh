#!/usr/bin/env bash
# The script of the examples with brokers, with clients and publishers that are not ours: docs/brokers.md has what it shows.
. "$(dirname "$0")/common.bash"

use_build
export BINARIES=$target_dir
seconds_max=300
sed -n '/^```text$/,/^```$/{/^```/!p}' docs/brokers.md >"$work/rabbitmq.expected"
[ -s "$work/rabbitmq.expected" ] || die 'docs/brokers.md shows no run'
# The same but for its first line.
sed -e 's/rabbitmq-websockets/nats-websockets/; s/amqp:/nats:/' "$work/rabbitmq.expected" >"$work/nats.expected"
for kind in rabbitmq nats; do
    timeout "$seconds_max" examples/brokers/run.sh "$kind" >"$work/$kind" || die "run.sh $kind: status $?: $(cat "$work/$kind")"
    diff "$work/$kind.expected" "$work/$kind" || die "$kind: not what docs/brokers.md shows"
done
say 'ok'
