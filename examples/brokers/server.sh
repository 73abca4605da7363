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
    # Kills the servers without notice, as a power cut does: the examples must survive that. Each process leads its process group.
    for pid in "${started[@]}"; do
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
    # Hides the shell's message about each killed process.
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
    # Avoids the script on PATH, which changes the user and the folder.
    local server=/usr/lib/rabbitmq/bin/rabbitmq-server
    [ -x "$server" ] || die "no $server: apt-get install rabbitmq-server"
    # RabbitMQ puts the Erlang cookie here.
    export HOME=$folder
    # Starts Erlang's port mapper separately: one that RabbitMQ starts would continue after the end of the server.
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
# Waits for the end of standard input or of a server. A background job reads the script's standard input only through an extra
# descriptor.
exec 3<&0
cat <&3 >/dev/null &
reader=$!
{ wait -n; } 2>/dev/null || true
