#!/usr/bin/env bash
# A private broker, independent of the system's: on 127.0.0.1, with its files in FOLDER. Ends with its standard input.
#
#   server.sh rabbitmq|nats PORT [FOLDER]
#
# RabbitMQ also takes the two ports after PORT. Without FOLDER, it uses a new one, and removes it at the end.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

die() { echo "server.sh: $*" >&2; exit 1; }
[ $# -ge 2 ] || die 'usage: server.sh rabbitmq|nats PORT [FOLDER]'
kind=$1 port=$2 folder=${3:-} removed=

started=() reader=
clean_up() {
    [ -z "$reader" ] || kill "$reader" 2>/dev/null || true
    # Killed, as by a power cut: the examples are to survive that. Each is the leader of its group.
    for pid in "${started[@]}"; do
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
    # Print no message for each of them.
    { wait; } 2>/dev/null
    [ -z "$removed" ] || rm -rf "$removed"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP
[ -n "$folder" ] || folder=$(mktemp -d) removed=$folder

run() {
    setsid "$@" </dev/null 2>&1 &
    started+=("$!")
}

rabbitmq() {
    # Not the one on PATH, which changes the user and the folder.
    local server=/usr/lib/rabbitmq/bin/rabbitmq-server
    [ -x "$server" ] || die "no $server: apt-get install rabbitmq-server"
    # For the Erlang cookie.
    export HOME=$folder
    # Erlang's port mapper, which would otherwise stay when the server is gone.
    export ERL_EPMD_PORT=$((port + 1)) ERL_EPMD_ADDRESS=127.0.0.1
    run epmd
    export RABBITMQ_NODENAME=example-$port@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$port
    export RABBITMQ_DIST_PORT=$((port + 2))
    export RABBITMQ_MNESIA_BASE=$folder/mnesia RABBITMQ_LOG_BASE=$folder/log RABBITMQ_PID_FILE=$folder/pid
    export RABBITMQ_ENABLED_PLUGINS_FILE=$folder/plugins RABBITMQ_CONF_ENV_FILE=$folder/none
    export RABBITMQ_CONFIG_FILE=$folder/none RABBITMQ_ADVANCED_CONFIG_FILE=$folder/none.config
    export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}'
    run "$server"
}

nats() {
    command -v nats-server >/dev/null || die 'no nats-server: apt-get install nats-server'
    run nats-server --addr 127.0.0.1 --port "$port"
}

case $kind in
    rabbitmq | nats) "$kind" ;;
    *) die "$kind: expected rabbitmq or nats" ;;
esac
# For the end of standard input, or of a server. A background job has no other standard input than one that it is given.
exec 3<&0
cat <&3 >/dev/null &
reader=$!
{ wait -n; } 2>/dev/null || true
