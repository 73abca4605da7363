#!/usr/bin/env bash
# Three etcd and three gateways, each in a network of its own, and streams that they share: processes are killed and frozen, networks cut, nodes drained.
# cluster/check.py says what listeners may hear of it. Needs root, or user namespaces.
#
#   STREAMS=300 tests/cluster.sh                 as many streams; 60 without it
#   tests/cluster.sh kill freeze                 these scenes alone
#   STREAMS=3000 tests/cluster.sh load           no test: what the cluster takes of nodes and etcd, with nothing sent to the streams
#   PROGRAM=/usr/bin/threadbare tests/cluster.sh another build
. "$(dirname "$0")/common.bash"

if [ -z "${CLUSTER_NAMESPACE:-}" ]; then
    [ -n "${PROGRAM:-}" ] || use_build
    options=(--net --pid --fork --kill-child --mount --mount-proc)
    [ "$(id -u)" -eq 0 ] || options+=(--map-root-user)
    CLUSTER_NAMESPACE=yes unshare "${options[@]}" bash "$0" "$@"
    exit
fi

# `ip netns` keeps its names in /run/netns; nobody else sees these.
mount -t tmpfs tmpfs /run
mkdir /run/netns
# etcd waits for its disk with each write.
mkdir "$work/cluster"
mount -t tmpfs tmpfs "$work/cluster"
trap '[ -z "${KEEP:-}" ] || cp "$work"/cluster/*.log "$KEEP"; umount --lazy "$work/cluster"; clean_up' EXIT
python3 tests/cluster/check.py "${PROGRAM:-$target_dir/threadbare}" "$work/cluster" "${STREAMS:-60}" "$@"
