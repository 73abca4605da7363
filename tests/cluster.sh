#!/usr/bin/env bash
# Three etcd and three gateways, each in a separate network, share streams. Processes are killed and frozen, networks cut, nodes
# drained. cluster/check.py says what listeners may notice. Needs root, or user namespaces.
#
#   STREAMS=300 tests/cluster.sh                 number of streams; the default is 60
#   tests/cluster.sh kill freeze                 only these scenes
#   STREAMS=3000 tests/cluster.sh load           no test: measures the cost for nodes and etcd, while the streams get no packets
#   PROGRAM=/usr/bin/threadbare tests/cluster.sh another build
. "$(dirname "$0")/common.bash"

[ -n "${PROGRAM:-}" ] || use_build
enter_namespace --mount

# `ip netns` keeps its names in /run/netns; these are private.
mount -t tmpfs tmpfs /run
mkdir /run/netns
# etcd waits for its disk at each write.
mkdir "$work/cluster"
mount -t tmpfs tmpfs "$work/cluster"
trap '[ -z "${KEEP:-}" ] || cp "$work"/cluster/*.log "$KEEP"; umount --lazy "$work/cluster"; clean_up' EXIT
python3 tests/cluster/check.py "${PROGRAM:-$target_dir/threadbare}" "$work/cluster" "${STREAMS:-60}" "$@"
