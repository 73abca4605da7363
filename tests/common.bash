# What the scripts in this directory share. Sourced.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"

name=$(basename "$0")
say() { printf '%s: %s\n' "$name" "$*"; }
die() { say "$*" >&2; exit 1; }

# Gone when the script ends, with the processes that it started and noted in `started`.
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
elements=(ts-udpsrc ts-udpsink ts-queue)

# What `make unit` has left is taken as it is: building these alone, with other features of what they depend
# on, would take minutes.
use_build() {
    # Costs nothing where it is built already, and an old build would be tested for the new one.
    "${CARGO:-cargo}" build -q --workspace
    say "with the build of $(date -r "$target_dir/$plugin_name" '+%F %T')"
}

# A port that nothing on this machine is bound to.
free_port() {
    local port hex
    while :; do
        # Even, as RTP has them; the first of a few, in some tests.
        port=$((20000 + 2 * (RANDOM % 6000)))
        printf -v hex ':%04X ' "$port"
        if ! grep -qi "$hex" /proc/net/{udp,udp6,tcp,tcp6} 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# So that what this user has installed is neither used nor changed.
export GST_REGISTRY=$work/registry.bin
export XDG_DATA_HOME=$work/data
