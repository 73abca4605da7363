//! Prints a parsed configuration, with defaults filled in and ranges expanded.

use std::sync::Arc;

use threadbare_member::OnIsolation;
use threadbare_rtp::leg::Network;
use toml::{Table, Value};

use super::{
    AlarmSpec, CallFallback, ClusterSpec, Config, Destination, FallbackSpec, InputSpec, KeySource,
    MediaRules, Placement, RecordSpec, Rtcp, Serving, StateLocation, StoreSpec, StreamSpec,
};
use threadbare_watch::{AlarmKind, Rules};

impl Config {
    /// Returns the configuration as TOML. [`Config::from_toml`] reads it back to the same configuration.
    pub fn to_toml(&self) -> String {
        let millis = |time: std::time::Duration| Value::from(time.as_millis() as i64);
        let contexts = Table::from_iter([
            (
                "prefix".to_owned(),
                Value::from(self.contexts.prefix.clone()),
            ),
            ("count".to_owned(), Value::from(self.contexts.count)),
            ("wait".to_owned(), Value::from(self.contexts.wait_ms)),
            ("rebalance".to_owned(), self.contexts.rebalance.into()),
        ]);
        let mut restart = Table::from_iter([
            ("first".to_owned(), millis(self.restart.first)),
            ("max".to_owned(), millis(self.restart.max)),
        ]);
        restart.extend(location(&self.positions).map(|state| ("state".to_owned(), state)));
        let streams = self
            .streams
            .iter()
            .map(|spec| match &self.cluster {
                None => stream(spec),
                Some(_) => stream(spec).into_iter().chain(placement(spec)).collect(),
            })
            .map(Value::from)
            .collect::<Vec<_>>();
        let mut file = Table::from_iter([
            ("contexts".to_owned(), Value::from(contexts)),
            ("restart".to_owned(), Value::from(restart)),
            ("stream".to_owned(), Value::from(streams)),
        ]);
        file.extend(alarms(&self.alarms));
        file.extend(location(&self.history).map(|dir| {
            let history = Table::from_iter([("dir".to_owned(), dir)]);
            ("history".to_owned(), Value::from(history))
        }));
        file.extend(self.store.iter().map(store));
        file.extend(self.cluster.iter().map(cluster));
        file.extend(self.serving.iter().flat_map(serving));
        file.to_string()
    }
}

impl StreamSpec {
    /// Returns a file that contains only this stream, for any node. [`StreamSpec::from_toml`] reads it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let streams = vec![Value::from(stream(self))];
        Table::from_iter([("stream".to_owned(), Value::from(streams))]).to_string()
    }

    /// Reads a stream that a node has written with [`StreamSpec::to_toml`].
    ///
    /// # Errors
    /// Fails if the text was written by a later version, or if it is not a stream.
    pub fn from_toml(name: &str, text: &str) -> Result<StreamSpec, String> {
        let config = Config::from_toml(name, text).map_err(|error| {
            let messages = error.problems.iter().map(|one| one.message.as_str());
            messages.collect::<Vec<_>>().join("; ")
        })?;
        let mut streams = config.streams.into_iter();
        match (streams.next(), streams.next()) {
            (Some(spec), None) if spec.name == name => Ok(spec),
            _ => Err("expected exactly one stream with this name".to_owned()),
        }
    }
}

/// Returns the table of the settings that differ from the defaults.
fn alarms(spec: &AlarmSpec) -> Option<(String, Value)> {
    let mut all = Table::new();
    if let Some(webhook) = &spec.webhook {
        all.insert("webhook".to_owned(), webhook.clone().into());
    }
    for kind in AlarmKind::ALL {
        let (rule, default) = (spec.rules.get(kind), Rules::default().get(kind));
        if rule == default {
            continue;
        }
        let mut table = Table::new();
        match rule {
            None => drop(table.insert("enabled".to_owned(), false.into())),
            Some(rule) => {
                if kind != AlarmKind::NoPackets {
                    table.insert("threshold".to_owned(), rule.threshold.into());
                }
                table.insert("hysteresis".to_owned(), rule.hysteresis.into());
                table.insert("hold".to_owned(), rule.hold_s.into());
                table.insert("clear".to_owned(), rule.clear_s.into());
            }
        }
        all.insert(kind.name().to_owned(), table.into());
    }
    (!all.is_empty()).then(|| ("alarms".to_owned(), all.into()))
}

/// Returns the value of a location in the file. `None`: it is the default.
fn location(location: &StateLocation) -> Option<Value> {
    match location {
        StateLocation::OfSystemd => None,
        StateLocation::At(path) => Some(text(&path.display())),
        StateLocation::Off => Some(Value::from(false)),
    }
}

fn store(spec: &StoreSpec) -> (String, Value) {
    let mut keys = Table::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    set("spool", text(&spec.spool.display()));
    set("path-style", spec.path_style.into());
    if let Some(endpoint) = &spec.endpoint {
        set("endpoint", endpoint.clone().into());
    }
    if let Some(ca) = &spec.ca {
        set("ca", text(&ca.display()));
    }
    ("s3".to_owned(), keys.into())
}

fn cluster(spec: &ClusterSpec) -> (String, Value) {
    let mut keys = Table::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    set("endpoints", spec.endpoints.clone().into());
    set("node", spec.node.clone().into());
    set("weight", spec.weight.into());
    set("labels", words(&spec.labels));
    set("on-isolation", isolation(spec.on_isolation));
    if let Some(listen) = spec.listen {
        set("listen", text(&listen));
    }
    if let Some(key_file) = &spec.key_file {
        set("key-file", text(&key_file.display()));
        set("calls-on-isolation", text(&spec.calls_on_isolation.name()));
    }
    if !spec.service_addresses.is_empty() {
        let texts = spec.service_addresses.iter().map(ToString::to_string);
        set("service-addresses", texts.collect::<Vec<_>>().into());
    }
    if let Some(program) = &spec.service_program {
        set("service-program", text(&program.display()));
    }
    if let Some((user, password_file)) = &spec.login {
        set("user", user.clone().into());
        set("password-file", text(&password_file.display()));
    }
    if let Some(ca) = &spec.ca {
        set("ca", text(&ca.display()));
    }
    if let Some((certificate, key)) = &spec.identity {
        set("cert", text(&certificate.display()));
        set("key", text(&key.display()));
    }
    ("cluster".to_owned(), keys.into())
}

fn placement(spec: &StreamSpec) -> impl Iterator<Item = (String, Value)> {
    let Placement {
        prefer,
        avoid,
        on_isolation,
    } = &spec.placement;
    let keys = [
        ("prefer", words(prefer)),
        ("avoid", words(avoid)),
        ("on-isolation", isolation(*on_isolation)),
    ];
    keys.into_iter().map(|(key, value)| (key.to_owned(), value))
}

fn words(words: &[Arc<str>]) -> Value {
    let words = words.iter().map(|word| Value::from(word.to_string()));
    Value::from(words.collect::<Vec<_>>())
}

fn isolation(on_isolation: OnIsolation) -> Value {
    Value::from(match on_isolation {
        OnIsolation::Stop => "stop",
        OnIsolation::Continue => "continue",
    })
}

/// Returns the tables of calls.
fn serving(serving: &Serving) -> Vec<(String, Value)> {
    let table = |keys: Vec<(&str, Value)>| {
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
        Value::from(keys.collect::<Table>())
    };
    let number = |value: u32| Value::from(i64::from(value));
    let mut ng = vec![("listen", text(&serving.ng))];
    if let Some(tcp) = &serving.ng_tcp {
        ng.push(("tcp", text(tcp)));
    }
    if !serving.allow.is_empty() {
        ng.push(("allow", networks(&serving.allow)));
    }
    let times = &serving.timeouts;
    let mut calls = vec![("threads", number(serving.threads))];
    calls.extend(
        serving
            .latency_ms
            .map(|latency_ms| ("latency", number(latency_ms))),
    );
    if serving.meter {
        calls.push(("meter", true.into()));
    }
    let fallback = serving.fallback.as_ref().map(CallFallback::to_toml);
    calls.extend(fallback.map(|value| ("fallback", value)));
    calls.extend(media(&serving.media).map(|value| ("media", value)));
    if let Some(xdp) = &serving.xdp {
        calls.push(("xdp", Value::from(xdp.devices.clone())));
        calls.push(("xdp-mode", text(&xdp.mode)));
        calls.push(("xdp-frames", number(xdp.frames)));
    }
    if let Some(dir) = &serving.recording_dir {
        calls.push(("recording-dir", text(&dir.display())));
    }
    calls.push(("recording-format", text(&serving.recording_format.name())));
    calls.extend(location(&serving.state).map(|value| ("state", value)));
    if let Some(path) = &serving.records {
        calls.push(("records", text(&path.display())));
    }
    calls.extend(serving.record.iter().map(|spec| ("record", spec.to_toml())));
    let others = [
        ("ng".to_owned(), table(ng)),
        ("interfaces".to_owned(), interfaces(serving)),
        (
            "limits".to_owned(),
            table(vec![
                ("max-sessions", number(serving.limits.max_sessions)),
                ("lateness-limit", number(serving.limits.lateness_ms)),
                ("cpu-limit", number(serving.limits.cpu_percent)),
            ]),
        ),
        (
            "timeouts".to_owned(),
            table(vec![
                ("timeout", number(times.media_s)),
                ("silent-timeout", number(times.silent_s)),
                ("final-timeout", number(times.final_s)),
                ("offer-timeout", number(times.offer_s)),
                ("delete-delay", number(times.delete_delay_s)),
            ]),
        ),
        ("calls".to_owned(), table(calls)),
    ];
    others.into_iter().chain(http(serving)).collect()
}

fn networks(networks: &[Network]) -> Value {
    Value::from(networks.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn media(rules: &MediaRules) -> Option<Value> {
    let MediaRules { deny, allow } = rules;
    let lists = [("deny", deny), ("allow", allow)].into_iter();
    let lists = lists.filter(|(_, list)| !list.is_empty());
    let table: Table = lists
        .map(|(key, list)| (key.to_owned(), networks(list)))
        .collect();
    (!table.is_empty()).then(|| table.into())
}

fn interfaces(serving: &Serving) -> Value {
    let mut interfaces = Table::new();
    for one in &serving.interfaces {
        let entry = interfaces.entry(one.name.clone());
        let entry = entry.or_insert_with(|| Value::from(Table::new()));
        let Value::Table(interface) = entry else {
            continue;
        };
        let [address, advertised] = if interface.is_empty() {
            ["address", "advertised"]
        } else {
            ["address-v6", "advertised-v6"]
        };
        interface.insert(address.to_owned(), text(&one.address));
        interface.insert(advertised.to_owned(), text(&one.advertised));
        interface.insert("ports".to_owned(), text(&one.ports));
    }
    Value::from(interfaces)
}

fn text(value: &dyn ToString) -> Value {
    Value::from(value.to_string())
}

fn http(serving: &Serving) -> Option<(String, Value)> {
    let http = serving.http.as_ref()?;
    let mut keys = Table::new();
    keys.insert("listen".to_owned(), http.listen.to_string().into());
    if let Some(file) = &http.token_file {
        keys.insert("token-file".to_owned(), file.display().to_string().into());
    }
    Some(("http".to_owned(), keys.into()))
}

fn stream(spec: &StreamSpec) -> Table {
    let text = |value: &dyn ToString| Some(Value::from(value.to_string()));
    let number = |value: Option<u32>| value.map(Value::from);
    let flag = |value: bool| Some(Value::from(value));
    let (rtcp, rtcp_port, destination_rtcp_port) = rtcp(spec.rtcp);
    let keys = [
        ("name", text(&spec.name)),
        ("listen", text(&spec.listen)),
        (
            "destination",
            text(&spec.destination).filter(|_| spec.destination != Destination::Nobody),
        ),
        ("codec", text(&spec.codec_in)),
        (
            "payload-type-in",
            number(spec.payload_type_in.map(u32::from)),
        ),
        ("codec-out", spec.codec_out.and_then(|codec| text(&codec))),
        ("ptime", number(spec.ptime_ms)),
        ("latency", number(Some(spec.jitter.latency_ms))),
        ("adaptive", flag(spec.jitter.adaptive)),
        ("drop-on-latency", flag(spec.jitter.drop_on_latency)),
        ("clock-skew", text(&spec.jitter.clock_skew)),
        ("latch", flag(spec.latch)),
        ("latch-window", number(spec.latch_window_s)),
        ("sources", sources(spec)),
        ("rtcp", Some(rtcp)),
        ("rtcp-port", rtcp_port.map(Value::from)),
        (
            "destination-rtcp-port",
            destination_rtcp_port.map(Value::from),
        ),
        ("cname", spec.cname.clone().map(Value::from)),
        (
            "dtmf-payload-type",
            number(Some(spec.dtmf_payload_type.into())),
        ),
        ("payload-type", number(spec.payload_type.map(u32::from))),
        ("ssrc", number(spec.ssrc)),
        ("clock-rate", number(spec.clock_rate_hz)),
        (
            "loudness-target",
            spec.loudness_target_lufs.map(Value::from),
        ),
        ("pipeline", spec.pipeline.clone().map(Value::from)),
        ("record", spec.record.as_ref().map(RecordSpec::to_toml)),
        ("fallback", fallbacks(spec)),
        ("loudness-reset", resets(&spec.loudness_resets)),
        // `meter = true` is left out for a stream that is not decoded, because it would be refused.
        (
            "meter",
            flag(spec.meter).filter(|_| !(spec.meter && spec.is_passthrough())),
        ),
    ];
    let keys = keys
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    let srtp = spec.srtp.settings();
    let srtp = srtp.map(|(key, value)| (key, Value::from(value)));
    let all = keys.chain(srtp);
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the values of `rtcp`, `rtcp-port` and `destination-rtcp-port`.
fn rtcp(rtcp: Rtcp) -> (Value, Option<i64>, Option<i64>) {
    match rtcp {
        Rtcp::Off => (Value::from(false), None, None),
        Rtcp::Mux => (Value::from("mux"), None, None),
        Rtcp::Ports {
            listen,
            destination,
        } => (
            Value::from(true),
            listen.map(i64::from),
            destination.map(i64::from),
        ),
    }
}

fn resets(minutes: &[u16]) -> Option<Value> {
    let time = |minute: &u16| Value::from(format!("{:02}:{:02}", minute / 60, minute % 60));
    let times: Vec<Value> = minutes.iter().map(time).collect();
    (!times.is_empty()).then(|| times.into())
}

fn fallbacks(spec: &StreamSpec) -> Option<Value> {
    let all: Vec<_> = spec.fallbacks.iter().map(fallback).collect();
    (!all.is_empty()).then(|| Value::from(all))
}

fn fallback(spec: &FallbackSpec) -> Table {
    let mut table = Table::new();
    let mut set = |key: &str, value: Value| table.insert(key.to_owned(), value);
    match &spec.input {
        InputSpec::Rtp {
            listen,
            codec_in,
            payload_type_in,
            srtp,
        } => {
            set("listen", listen.to_string().into());
            set("codec", codec_in.to_string().into());
            if let Some(number) = payload_type_in {
                set("payload-type-in", i64::from(*number).into());
            }
            if let Some((key, value)) = srtp.as_ref().map(KeySource::setting) {
                set(key, value.into());
            }
        }
        InputSpec::Tone(tone) => {
            set("tone", tone.to_string().into());
        }
        InputSpec::Silence => {
            set("silence", true.into());
        }
        InputSpec::File(path) => {
            set("file", path.display().to_string().into());
        }
    }
    set("timeout", i64::from(spec.timeout_ms).into());
    set("recover-after", i64::from(spec.recover_after_ms).into());
    table
}

fn sources(spec: &StreamSpec) -> Option<Value> {
    let texts: Vec<String> = spec.sources.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| Value::from(texts))
}
