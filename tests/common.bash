# Common parts of the scripts in this directory. Sourced.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"

arguments=("$@")
name=$(basename "$0")
say() { printf '%s: %s\n' "$name" "$*"; }
die() { say "$*" >&2; exit 1; }

# Removed when the script ends, with the processes that it started and noted in `started`.
work=$(mktemp -d)
started=()
clean_up() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug
plugin_name=libgstthreadbare.so
# The same as in the Makefile, with examples. Other features would rebuild crates that only tests depend on.
built=(--lib --bins --examples)
tools=(--features threadbare-bench/programs,threadbare-example-brokers/programs)
elements=(ts-udpsrc ts-udpsink ts-queue)

# Builds what is not built yet. `make test` has built everything before, and cargo is busy with other crates then (BUILT).
use_build() {
    [ -z "${IN_NAMESPACE:-}" ] || return 0
    [ -n "${BUILT:-}" ] || "${CARGO:-cargo}" build -q --workspace "${built[@]}" "${tools[@]}"
    say "with the build of $(date -r "$target_dir/$plugin_name" '+%F %T')"
}

# Runs the script again in a new network with only loopback, and with its own processes: ports may be fixed, and all programs end with
# the script. Arguments are further options for `unshare`.
enter_namespace() {
    if [ -n "${IN_NAMESPACE:-}" ]; then
        ip link set lo up
        return
    fi
    local options=(--net --pid --fork --kill-child --mount-proc "$@")
    [ "$(id -u)" -eq 0 ] || options+=(--map-root-user)
    IN_NAMESPACE=yes unshare "${options[@]}" bash "tests/$name" "${arguments[@]}"
    exit
}

# A port that no program on this machine uses.
free_port() {
    local port hex
    while :; do
        # An even port, as for RTP; in some tests, the first of several.
        port=$((20000 + 2 * (RANDOM % 6000)))
        printf -v hex ':%04X ' "$port"
        if ! grep -qi "$hex" /proc/net/{udp,udp6,tcp,tcp6} 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# Keeps the user's installed files unused and unchanged.
export GST_REGISTRY=$work/registry.bin
export XDG_DATA_HOME=$work/data
