//! Parses the configuration file. Each parsed value has the right type and its place in the file. Nothing else is checked here.
//!
//! Parsing does not stop at a mistake. It notes unknown keys, values of the wrong type and missing keys. The rest of the file
//! is parsed and checked as if the wrong key were absent.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problems;
use threadbare_watch::AlarmKind;

/// Declares a table of the file. The result is a struct with a field for each key, and a function that reads it.
macro_rules! table {
    ($(#[$meta:meta])* $name:ident {
        required { $($required:ident,)* }
        optional { $($(#[$key_doc:meta])* $key:ident: $kind:ty,)* }
        $(tables { $($list:ident: $item:ident $title:literal,)* })?
    }) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(super) struct $name {
            $(pub(super) $required: Spanned<String>,)*
            $($(#[$key_doc])* pub(super) $key: Option<Spanned<$kind>>,)*
            $($(pub(super) $list: Vec<Spanned<$item>>,)*)?
            /// Whether a key was dropped because its name is unknown or its value cannot be read. In this case, rules that combine keys do
            /// not apply.
            #[allow(dead_code, reason = "not every table has rules that combine keys")]
            pub(super) is_partial: bool,
        }

        impl $name {
            /// Names of the keys, as Rust fields.
            const KEYS: &[&str] = &[$(stringify!($required),)* $(stringify!($key),)* $($(stringify!($list),)*)?];

            fn read(table: &DeTable<'_>, place: Range<usize>, name: &str, problems: &mut Problems) -> Self {
                let mut reader = Reader::new(table, place, name, problems);
                reader.refuse_unknown(Self::KEYS);
                $($(let $list = reader.tables(stringify!($list), $title);)*)?
                #[allow(unused_mut, reason = "not every table has tables in it")]
                let mut raw = $name {
                    $($required: reader.required(stringify!($required)),)*
                    $($key: reader.optional(stringify!($key)),)*
                    $($($list: Vec::new(),)*)?
                    is_partial: reader.is_partial,
                };
                $($(raw.$list = read_all($list, $title, $item::read, problems);)*)?
                raw
            }
        }
    };
}

table!(#[derive(Default)] RawContexts {
    required {}
    optional {
        prefix: String,
        /// A number or "auto".
        count: toml::Value,
        wait: i64,
        rebalance: bool,
    }
});

table!(#[derive(Default)] RawRestart {
    required {}
    optional {
        first: i64,
        max: i64,
        state: toml::Value,
    }
});

table!(
    /// Defaults of streams.
    #[derive(Default)]
    RawDefaults {
        required {}
        optional {
            codec: String,
            codec_out: String,
            ptime: i64,
            latency: i64,
            payload_type: i64,
            payload_type_in: i64,
            dtmf_payload_type: i64,
            adaptive: bool,
            drop_on_latency: bool,
            clock_skew: String,
            latch: bool,
            latch_window: i64,
            sources: Vec<String>,
            /// `true`, `false` or "mux".
            rtcp: toml::Value,
            cname: String,
            /// A number, or `false`.
            loudness_target: toml::Value,
            meter: bool,
            loudness_reset: Vec<String>,
            record: RawRecord,
        }
    }
);

table!(RawStream {
    required {
        name,
        listen,
    }
    optional {
        /// Without this key, the stream is only monitored.
        destination: String,
        codec: String,
        codec_out: String,
        ptime: i64,
        latency: i64,
        payload_type: i64,
        payload_type_in: i64,
        dtmf_payload_type: i64,
        adaptive: bool,
        drop_on_latency: bool,
        clock_skew: String,
        latch: bool,
        latch_window: i64,
        sources: Vec<String>,
        rtcp: toml::Value,
        rtcp_port: i64,
        destination_rtcp_port: i64,
        cname: String,
        loudness_target: toml::Value,
        meter: bool,
        loudness_reset: Vec<String>,
        record: RawRecord,
        ssrc: i64,
        clock_rate: i64,
        pipeline: String,
        count: i64,
        step: i64,
        destination_step: i64,
        srtp_in_key_file: String,
        srtp_in_key_env: String,
        srtp_out_key_file: String,
        srtp_out_key_env: String,
        prefer: Vec<String>,
        avoid: Vec<String>,
        on_isolation: String,
    }
    tables {
        fallback: RawFallback "[[stream.fallback]]",
    }
});

table!(
    /// An input that is used while the stream's own sender and the previous fallbacks are silent.
    RawFallback {
        required {}
        optional {
            listen: String,
            codec: String,
            payload_type_in: i64,
            srtp_in_key_file: String,
            srtp_in_key_env: String,
            /// A number of hertz, or a text.
            tone: toml::Value,
            silence: bool,
            file: String,
            timeout: i64,
            recover_after: i64,
        }
    }
);

table!(#[derive(Default)] RawNg {
    required {}
    optional {
        listen: String,
        tcp: String,
        allow: Vec<String>,
    }
});

table!(#[derive(Default)] RawHttp {
    required {}
    optional {
        listen: String,
        token_file: String,
    }
});

table!(RawInterface {
    required {}
    optional {
        address: String,
        advertised: String,
        address_v6: String,
        advertised_v6: String,
        ports: String,
    }
});

table!(#[derive(Default)] RawLimits {
    required {}
    optional {
        max_sessions: i64,
        lateness_limit: i64,
        cpu_limit: i64,
    }
});

table!(#[derive(Default)] RawTimeouts {
    required {}
    optional {
        timeout: i64,
        silent_timeout: i64,
        final_timeout: i64,
        offer_timeout: i64,
        delete_delay: i64,
    }
});

table!(#[derive(Default)] RawCalls {
    required {}
    optional {
        threads: i64,
        latency: i64,
        meter: bool,
        recording_dir: String,
        recording_format: String,
        /// A file, or `false`.
        state: toml::Value,
        records: String,
        record: RawRecord,
        media: RawMedia,
        fallback: RawCallFallback,
        xdp: Vec<String>,
        xdp_mode: String,
        xdp_frames: i64,
    }
});

/// The tables of calls.
#[derive(Debug)]
pub(super) struct RawServing {
    pub(super) ng: RawNg,
    /// The table `[http]`, with its place.
    pub(super) http: Option<Spanned<RawHttp>>,
    /// The interfaces in the order of the file.
    pub(super) interfaces: Vec<(String, Spanned<RawInterface>)>,
    pub(super) limits: RawLimits,
    pub(super) timeouts: RawTimeouts,
    pub(super) calls: RawCalls,
}

table!(RawAlarm {
    required {}
    optional {
        enabled: bool,
        /// A number.
        threshold: toml::Value,
        /// A number.
        hysteresis: toml::Value,
        hold: i64,
        clear: i64,
    }
});

/// `[alarms]`, and the tables in it.
#[derive(Debug, Default)]
pub(super) struct RawAlarms {
    pub(super) webhook: Option<Spanned<String>>,
    pub(super) rules: Vec<(AlarmKind, Spanned<RawAlarm>)>,
}

table!(#[derive(Default)] RawHistory {
    required {}
    optional {
        /// The name of a folder, or `false`.
        dir: toml::Value,
    }
});

table!(#[derive(Default)] RawS3 {
    required {}
    optional {
        spool: String,
        endpoint: String,
        path_style: bool,
        ca: String,
    }
});

table!(#[derive(Default)] RawCluster {
    required {}
    optional {
        endpoints: Vec<String>,
        node: String,
        /// A number.
        weight: toml::Value,
        labels: Vec<String>,
        listen: String,
        user: String,
        password_file: String,
        ca: String,
        cert: String,
        key: String,
        on_isolation: String,
        key_file: String,
        calls_on_isolation: String,
        service_addresses: Vec<String>,
        service_program: String,
    }
});

#[derive(Debug)]
pub(super) struct RawConfig {
    pub(super) contexts: RawContexts,
    pub(super) restart: RawRestart,
    pub(super) defaults: RawDefaults,
    pub(super) stream: Vec<Spanned<RawStream>>,
    pub(super) alarms: RawAlarms,
    pub(super) history: RawHistory,
    /// `None`: the file has no such table.
    pub(super) store: Option<Spanned<RawS3>>,
    /// `None`: the file has no such table.
    pub(super) cluster: Option<Spanned<RawCluster>>,
    /// `None`: the file has no table of calls.
    pub(super) serving: Option<RawServing>,
}

/// The tables of the file, each with its keys.
pub const TABLES: [(&str, &[&str]); 16] = [
    ("[contexts]", RawContexts::KEYS),
    ("[restart]", RawRestart::KEYS),
    ("[defaults]", RawDefaults::KEYS),
    ("[[stream]]", RawStream::KEYS),
    ("[[stream.fallback]]", RawFallback::KEYS),
    ("[alarms]", ALARMS),
    ("[alarms.KIND]", RawAlarm::KEYS),
    ("[history]", RawHistory::KEYS),
    ("[s3]", RawS3::KEYS),
    ("[cluster]", RawCluster::KEYS),
    ("[ng]", RawNg::KEYS),
    ("[http]", RawHttp::KEYS),
    ("[interfaces.NAME]", RawInterface::KEYS),
    ("[limits]", RawLimits::KEYS),
    ("[timeouts]", RawTimeouts::KEYS),
    ("[calls]", RawCalls::KEYS),
];

/// Keys of `[alarms]` that are not tables.
const ALARMS: &[&str] = &["webhook"];
/// Tables of calls in the file.
const SERVING: [&str; 6] = ["ng", "http", "interfaces", "limits", "timeouts", "calls"];

impl RawConfig {
    /// Reads the parts of the file that are readable. Adds mistakes to `problems`.
    pub(super) fn read(text: &str, problems: &mut Problems) -> RawConfig {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            problems.add_syntax(error.message(), error.span().unwrap_or(0..0));
        }
        let table = table.get_ref();
        let keys = [
            &[
                "contexts", "restart", "defaults", "stream", "alarms", "history", "s3", "cluster",
            ][..],
            &SERVING,
        ]
        .concat();
        Reader::new(table, 0..0, "this file", problems).refuse_unknown(&keys);
        let streams =
            Reader::new(table, 0..0, "this file", problems).tables("stream", "[[stream]]");
        RawConfig {
            contexts: read(table, "contexts", RawContexts::read, problems),
            restart: read(table, "restart", RawRestart::read, problems),
            defaults: read(table, "defaults", RawDefaults::read, problems),
            stream: read_all(streams, "[[stream]]", RawStream::read, problems),
            alarms: read_alarms(table, problems),
            history: read(table, "history", RawHistory::read, problems),
            store: read_placed(table, "s3", RawS3::read, problems),
            cluster: read_placed(table, "cluster", RawCluster::read, problems),
            serving: RawServing::read(table, problems),
        }
    }
}

impl RawServing {
    fn read(table: &DeTable<'_>, problems: &mut Problems) -> Option<RawServing> {
        let is_there = SERVING.iter().any(|key| table.get(*key).is_some());
        is_there.then(|| RawServing {
            ng: read(table, "ng", RawNg::read, problems),
            http: read_placed(table, "http", RawHttp::read, problems),
            interfaces: read_interfaces(table, problems),
            limits: read(table, "limits", RawLimits::read, problems),
            timeouts: read(table, "timeouts", RawTimeouts::read, problems),
            calls: read(table, "calls", RawCalls::read, problems),
        })
    }
}

/// Reads an optional table. Returns it with its place.
fn read_placed<T>(
    file: &DeTable<'_>,
    key: &str,
    read: fn(&DeTable<'_>, Range<usize>, &str, &mut Problems) -> T,
    problems: &mut Problems,
) -> Option<Spanned<T>> {
    let (table, place) = Reader::new(file, 0..0, "this file", problems).table(key)?;
    let raw = read(table, place.clone(), &format!("[{key}]"), problems);
    Some(Spanned::new(place, raw))
}

fn read_alarms(file: &DeTable<'_>, problems: &mut Problems) -> RawAlarms {
    let mut reader = Reader::new(file, 0..0, "this file", problems);
    let Some((tables, place)) = reader.table("alarms") else {
        return RawAlarms::default();
    };
    let mut reader = Reader::new(tables, place, "[alarms]", problems);
    let names = AlarmKind::ALL.map(AlarmKind::name);
    reader.refuse_unknown(&[ALARMS, &names].concat());
    let webhook = reader.optional("webhook");
    let mut rules = Vec::new();
    for kind in AlarmKind::ALL {
        let reader = &mut Reader::new(tables, 0..0, "[alarms]", problems);
        if let Some((table, place)) = reader.table(kind.name()) {
            let title = format!("[alarms.{}]", kind.name());
            let raw = RawAlarm::read(table, place.clone(), &title, problems);
            rules.push((kind, Spanned::new(place, raw)));
        }
    }
    RawAlarms { webhook, rules }
}

/// Reads the tables in `[interfaces]` in the order of the file. The first interface is the default.
fn read_interfaces(
    file: &DeTable<'_>,
    problems: &mut Problems,
) -> Vec<(String, Spanned<RawInterface>)> {
    let mut reader = Reader::new(file, 0..0, "this file", problems);
    let Some((tables, _)) = reader.table("interfaces") else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (name, value) in tables {
        let name = name.get_ref().as_ref();
        let title = format!("[interfaces.{name}]");
        match value.get_ref() {
            DeValue::Table(table) => {
                let place = value.span();
                let raw = RawInterface::read(table, place.clone(), &title, problems);
                all.push((name.to_owned(), Spanned::new(place, raw)));
            }
            _ => Reader::new(tables, 0..0, "[interfaces]", problems).refuse_type(
                name,
                value,
                &format!("a table, {title}"),
            ),
        }
    }
    all.sort_by_key(|(_, raw)| raw.span().start);
    all
}

/// Reads a list of tables with this header.
fn read_all<T>(
    tables: Vec<(&DeTable<'_>, Range<usize>)>,
    title: &str,
    read: fn(&DeTable<'_>, Range<usize>, &str, &mut Problems) -> T,
    problems: &mut Problems,
) -> Vec<Spanned<T>> {
    let mut all = Vec::new();
    for (table, place) in tables {
        all.push(Spanned::new(
            place.clone(),
            read(table, place, title, problems),
        ));
    }
    all
}

/// Reads an optional table.
fn read<T: Default>(
    file: &DeTable<'_>,
    key: &str,
    read: fn(&DeTable<'_>, Range<usize>, &str, &mut Problems) -> T,
    problems: &mut Problems,
) -> T {
    let found = Reader::new(file, 0..0, "this file", problems).table(key);
    found.map_or_else(T::default, |(table, place)| {
        read(table, place, &format!("[{key}]"), problems)
    })
}

/// Reader for the keys of one table.
struct Reader<'a, 'p> {
    table: &'a DeTable<'a>,
    /// Place of the table's header.
    place: Range<usize>,
    /// Name of the table in messages.
    name: &'p str,
    problems: &'p mut Problems,
    is_partial: bool,
}

impl<'a, 'p> Reader<'a, 'p> {
    fn new(
        table: &'a DeTable<'a>,
        place: Range<usize>,
        name: &'p str,
        problems: &'p mut Problems,
    ) -> Self {
        Reader {
            table,
            place,
            name,
            is_partial: problems.has_syntax(),
            problems,
        }
    }

    fn refuse_unknown(&mut self, known: &[&str]) {
        for key in self.table.keys() {
            let text = key.get_ref().as_ref();
            if known.iter().any(|known| written(known) == text) {
                continue;
            }
            self.is_partial = true;
            let message = format!("`{text}` is not a key of {}", self.name);
            let help = help_for_unknown(text, known);
            self.problems
                .add(message, &help, &[(key.span(), "this key")]);
        }
    }

    fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(written(key).as_str())
    }

    fn optional<T: FromValue>(&mut self, key: &str) -> Option<Spanned<T>> {
        let value = self.value(key)?;
        match T::from_value(value.get_ref()) {
            Some(read) => Some(Spanned::new(value.span(), read)),
            None => {
                self.is_partial = true;
                let hint = T::hint(value.get_ref());
                self.refuse_type(key, value, &format!("{}{hint}", T::ALLOWED));
                None
            }
        }
    }

    /// Reads a required text. If the value is unreadable, returns an empty text, and suppresses further problems about it.
    fn required(&mut self, key: &str) -> Spanned<String> {
        if let Some(read) = self.optional(key) {
            return read;
        }
        let place = match self.value(key) {
            Some(value) => value.span(),
            None => {
                self.is_partial = true;
                let message = format!("a stream without `{}`", written(key));
                self.problems.add_missing(
                    message,
                    "every [[stream]] needs `name` and `listen`",
                    self.place.clone(),
                );
                self.place.clone()
            }
        };
        self.problems.silence(place.clone());
        Spanned::new(place, String::new())
    }

    fn table(&mut self, key: &str) -> Option<(&'a DeTable<'a>, Range<usize>)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some((table, value.span())),
            _ => {
                self.refuse_type(key, value, &format!("a table, [{key}]"));
                None
            }
        }
    }

    fn tables(&mut self, key: &str, title: &str) -> Vec<(&'a DeTable<'a>, Range<usize>)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let allowed = format!("a list of tables, each with the header {title}");
        let DeValue::Array(items) = value.get_ref() else {
            self.refuse_type(key, value, &allowed);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(table) => tables.push((table, item.span())),
                _ => self.refuse_type(key, item, &allowed),
            }
        }
        tables
    }

    fn refuse_type(&mut self, key: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        let key = written(key);
        let shown = self.problems.excerpt(value.span());
        self.problems.add(
            format!("`{key}` cannot be {shown}"),
            &format!("allowed for `{key}`: {allowed}"),
            &[(value.span(), "this value")],
        );
        self.problems.silence(value.span());
    }
}

/// Returns a key as it is written in the file.
fn written(key: &str) -> String {
    key.replace('_', "-")
}

/// Returns a suggestion for an unknown key: the most similar known key, the table that has this key, or all known keys.
fn help_for_unknown(text: &str, known: &[&str]) -> String {
    let elsewhere: Vec<&str> = TABLES
        .iter()
        .filter(|(_, keys)| keys.iter().any(|key| written(key) == text))
        .map(|(table, _)| *table)
        .collect();
    if !elsewhere.is_empty() {
        return format!("`{text}` belongs in the table {}", elsewhere.join(" or "));
    }
    let distance = |key: &String| strsim::damerau_levenshtein(key, &text.to_lowercase());
    let keys: Vec<String> = known.iter().map(|key| written(key)).collect();
    match keys.iter().min_by_key(|key| distance(key)) {
        Some(near) if distance(near) <= MISSPELT_MAX.min(near.len() / 2) => {
            format!("did you mean `{near}`?")
        }
        _ => format!("the keys here are: {}", keys.join(", ")),
    }
}

/// The value of `record`, which is either a table or `false`. Each key of the table has its place.
#[derive(Debug)]
pub(super) enum RawRecord {
    Off,
    Keys(Vec<(String, Spanned<toml::Value>)>),
}

/// The value of `media` in the table of calls. It contains address prefixes.
#[derive(Debug, Default)]
pub(super) struct RawMedia {
    pub(super) deny: Vec<String>,
    pub(super) allow: Vec<String>,
}

/// The value of `fallback` in the table of calls. Each key has its place.
#[derive(Debug)]
pub(super) struct RawCallFallback(pub(super) Vec<(String, Spanned<toml::Value>)>);

/// A type that the value of a key can have.
trait FromValue: Sized {
    const ALLOWED: &str;

    fn from_value(value: &DeValue<'_>) -> Option<Self>;

    /// Returns advice about a value that has the wrong type but a clear meaning.
    fn hint(_value: &DeValue<'_>) -> &'static str {
        ""
    }
}

impl FromValue for i64 {
    const ALLOWED: &str = "a whole number";

    fn from_value(value: &DeValue<'_>) -> Option<i64> {
        let integer = value.as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    fn hint(value: &DeValue<'_>) -> &'static str {
        match value.as_str().map(str::parse::<i64>) {
            Some(Ok(_)) => ", without quotes",
            _ => "",
        }
    }
}

impl FromValue for bool {
    const ALLOWED: &str = "true or false";

    fn from_value(value: &DeValue<'_>) -> Option<bool> {
        value.as_bool()
    }

    fn hint(value: &DeValue<'_>) -> &'static str {
        match value.as_str().map(str::parse::<bool>) {
            Some(Ok(_)) => ", without quotes",
            _ => "",
        }
    }
}

impl FromValue for String {
    const ALLOWED: &str = "text in double quotes";

    fn from_value(value: &DeValue<'_>) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

impl FromValue for Vec<String> {
    const ALLOWED: &str = "a list of texts in double quotes, in brackets";

    fn from_value(value: &DeValue<'_>) -> Option<Vec<String>> {
        let items = value.as_array()?;
        let text = |item: &Spanned<DeValue<'_>>| String::from_value(item.get_ref());
        items.iter().map(text).collect()
    }

    fn hint(value: &DeValue<'_>) -> &'static str {
        match value.as_str() {
            Some(_) => ", also if there is only one",
            None => "",
        }
    }
}

/// The type of this value is checked later.
impl FromValue for toml::Value {
    const ALLOWED: &str = "a number, text in double quotes, true or false";

    fn from_value(value: &DeValue<'_>) -> Option<toml::Value> {
        match value {
            DeValue::String(text) => Some(toml::Value::String(text.as_ref().to_owned())),
            DeValue::Integer(_) => i64::from_value(value).map(toml::Value::Integer),
            DeValue::Float(float) => float.as_str().parse().ok().map(toml::Value::Float),
            DeValue::Boolean(flag) => Some(toml::Value::Boolean(*flag)),
            _ => None,
        }
    }
}

impl FromValue for RawRecord {
    const ALLOWED: &str = "a table such as { to = \"/var/lib/threadbare/recordings/{name}/{time}.wav\" }, with numbers and texts, or false";

    fn from_value(value: &DeValue<'_>) -> Option<RawRecord> {
        if let DeValue::Boolean(false) = value {
            return Some(RawRecord::Off);
        }
        let DeValue::Table(table) = value else {
            return None;
        };
        let key = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let read = toml::Value::from_value(value.get_ref())?;
            let name = key.get_ref().as_ref().to_owned();
            Some((name, Spanned::new(value.span(), read)))
        };
        table
            .iter()
            .map(key)
            .collect::<Option<_>>()
            .map(RawRecord::Keys)
    }
}

impl FromValue for RawCallFallback {
    const ALLOWED: &str = "a table such as { file = \"/srv/hold.wav\", timeout = 5000 }";

    fn from_value(value: &DeValue<'_>) -> Option<RawCallFallback> {
        match RawRecord::from_value(value)? {
            RawRecord::Keys(keys) => Some(RawCallFallback(keys)),
            RawRecord::Off => None,
        }
    }
}

impl FromValue for RawMedia {
    const ALLOWED: &str =
        "a table such as { deny = [\"192.0.2.0/24\"], allow = [] }, with only these two keys";

    fn from_value(value: &DeValue<'_>) -> Option<RawMedia> {
        let DeValue::Table(table) = value else {
            return None;
        };
        let mut media = RawMedia::default();
        for (key, value) in table {
            let networks = Vec::from_value(value.get_ref())?;
            match key.get_ref().as_ref() {
                "deny" => media.deny = networks,
                "allow" => media.allow = networks,
                _ => return None,
            }
        }
        Some(media)
    }
}

/// Maximum spelling distance between an unknown key and a suggested one. If the distance is larger, the similarity is probably a
/// coincidence.
const MISSPELT_MAX: usize = 3;
