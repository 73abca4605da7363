#!/usr/bin/env bash
# A real Prometheus reads 1000 streams, accepts the alert rules, and knows each metric of the dashboard's panels. Needs root, or
# user namespaces.
. "$(dirname "$0")/common.bash"

use_build
enter_namespace

(cd packaging/prometheus && promtool check rules threadbare.rules.yml && promtool test rules threadbare.rules.test.yml) >"$work/rules.log" 2>&1 ||
    { cat "$work/rules.log" >&2; die "the alert rules are wrong"; }

cat >"$work/gateway.toml" <<'TOML'
[http]
listen = "127.0.0.1:8080"
[[stream]]
name = "programme"
count = 1000
listen = "127.0.0.1:20000"
codec = "PCMU"
rtcp = false
TOML
cat >"$work/prometheus.yml" <<YML
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [$PWD/packaging/prometheus/threadbare.rules.yml]
scrape_configs:
  - job_name: threadbare
    static_configs: [{targets: ["127.0.0.1:8080"]}]
YML
"$target_dir/threadbare" run "$work/gateway.toml" >"$work/gateway.log" 2>&1 &
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address=127.0.0.1:9090 >"$work/prometheus.log" 2>&1 &
/usr/bin/python3 tests/prometheus/check.py packaging/grafana/threadbare.json || {
    tail -n 20 "$work/prometheus.log" "$work/gateway.log" >&2
    die "failed; the logs are above"
}
