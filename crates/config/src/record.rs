//! Recording settings. They are the key `record = { to = "…", … }` of streams and calls.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use toml::{Spanned, Table, Value};

use super::checker::Checker;
use super::raw::RawRecord;
use super::recording_format::RecordingFormat;
use super::store_spec::StoreSpec;

/// Recording settings of a stream, or of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordSpec {
    /// Template for the names of the files.
    pub to: Template,
    /// The format of the files.
    pub format: RecordingFormat,
    /// Whether the parties of a call have one track or a track each.
    pub tracks: Tracks,
    /// Condition on which the next file starts.
    pub rotate: Rotate,
    /// Condition on which audio is recorded.
    pub on: RecordOn,
    /// Seconds that are recorded before an interruption, with [`RecordOn::Loss`].
    pub before_s: u32,
    /// Seconds that are recorded after an interruption, with [`RecordOn::Loss`].
    pub after_s: u32,
    /// Permissions of the files.
    pub permissions: Permissions,
}

/// Permissions of a recording's files, and of the directories that are created for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(u32);

impl Default for Permissions {
    /// Returns the default permissions, with which the owner may write and the group may read.
    fn default() -> Permissions {
        Permissions(0o640)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Permissions {
    /// Parses permissions as for chmod(1). The owner must be able to write, and others must have no access: `0600`, `0640` or
    /// `0660`.
    fn parse(text: &str) -> Option<Permissions> {
        let bits = u32::from_str_radix(text, 8).ok()?;
        [0o600, 0o640, 0o660]
            .contains(&bits)
            .then_some(Permissions(bits))
    }

    /// Returns the bits for chmod(2).
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// How the parties are divided among the tracks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracks {
    /// One track with both parties mixed.
    Mixed,
    /// A channel for each party in WAV, and a track for each party in Matroska. The party that offered comes first.
    #[default]
    Sides,
}

/// The condition on which audio is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordOn {
    /// All audio is recorded, even silence.
    #[default]
    Always,
    /// A call is recorded from the moment when all parties have been heard. A stream is recorded while its sender is heard.
    Call,
    /// Only some seconds before and after each interruption are recorded.
    Loss,
}

/// The condition on which the next file starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotate {
    /// The next file starts at multiples of this many seconds since 1970 (UTC).
    pub every_s: Option<u64>,
    /// The next file starts before the current one exceeds this size.
    pub bytes_max: Option<u64>,
}

/// A template for file names. It consists of a fixed folder, and of a text with placeholders for the path below this folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    root: PathBuf,
    parts: Vec<Part>,
    bucket: Option<Bucket>,
}

/// The bucket to which the files of a folder are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The region, for example `eu-west-1`.
    pub region: String,
    /// The name of the bucket.
    pub name: String,
    /// The store that contains the bucket.
    pub store: StoreSpec,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Placeholder),
}

/// A placeholder in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Name,
    Call,
    Time,
    Date,
    Id,
    Side,
}

/// Values of the placeholders.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Name of the stream, or the Call-ID.
    pub name: &'a str,
    /// Start time of the file, such as `20261125T213600Z`.
    pub time: &'a str,
    /// Id of the file.
    pub id: &'a str,
    /// The side, which is `a`, `b`, or `both`.
    pub side: &'a str,
}

/// The reason why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text names an object store, but no store is configured.
    #[error("an address s3://REGION/BUCKET/NAME needs a table [s3] with a `spool`")]
    NoStore,
    /// The text names an object store, but other nodes may also carry the stream.
    #[error("nodes of a cluster can record only to folders, not to s3://")]
    Shared,
    /// The text names an object store, but its bucket or region is not valid.
    #[error(
        "the address must have the form s3://REGION/BUCKET/NAME, such as s3://eu-west-1/recordings/{{name}}/{{time}}.wav"
    )]
    Bucket,
    /// The path is relative.
    #[error("the path must begin with /")]
    Relative,
    /// The path leads out of its folder.
    #[error("the path must not contain the folders . and ..")]
    Leaves,
    /// The text has braces without a known word.
    #[error("only the placeholders {PLACEHOLDERS} may be in braces")]
    Placeholder,
    /// The text has no fixed folder, or no file name.
    #[error(
        "the path must name a folder, and below it a file, such as /var/lib/threadbare/recordings/{{name}}/{{time}}.wav"
    )]
    Name,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Fails if the path could lead out of its folder, or if it has unknown placeholders.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.starts_with("s3:") {
            return Err(TemplateError::NoStore);
        }
        if !text.starts_with('/') {
            return Err(TemplateError::Relative);
        }
        let odd = |part: &str| part == "." || part == "..";
        if text.split('/').any(odd) || text.contains(char::is_control) {
            return Err(TemplateError::Leaves);
        }
        let fixed = &text[..text.find('{').unwrap_or(text.len())];
        let (root, _) = fixed.rsplit_once('/').ok_or(TemplateError::Name)?;
        let rest = text[root.len()..].trim_start_matches('/');
        if root.is_empty() || rest.is_empty() || rest.ends_with('/') {
            return Err(TemplateError::Name);
        }
        Ok(Template {
            root: root.into(),
            parts: parts(rest)?,
            bucket: None,
        })
    }

    /// Parses `s3://REGION/BUCKET/NAME`. The files wait in a folder of the spool until they are in the store. They have the same names in
    /// the spool and in the store.
    ///
    /// # Errors
    /// Fails as [`parse`](Self::parse) does, and also if the bucket is not valid.
    pub fn parse_store(text: &str, store: &StoreSpec) -> Result<Template, TemplateError> {
        let rest = text.strip_prefix("s3://").ok_or(TemplateError::Bucket)?;
        let mut words = rest.splitn(3, '/');
        let (Some(region), Some(bucket), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return Err(TemplateError::Bucket);
        };
        let endpoint = store.endpoint.as_deref();
        threadbare_s3::Endpoint::new(endpoint, region, bucket, store.path_style)
            .map_err(|_| TemplateError::Bucket)?;
        let odd = |part: &str| matches!(part, "" | "." | "..");
        if name.split('/').any(odd) || name.contains(char::is_control) {
            return Err(TemplateError::Leaves);
        }
        Ok(Template {
            root: store.spool.join(region).join(bucket),
            parts: parts(name)?,
            bucket: Some(Bucket {
                region: region.to_owned(),
                name: bucket.to_owned(),
                store: store.clone(),
            }),
        })
    }

    /// Returns the bucket of the files. `None`: the files stay in their folder.
    #[must_use]
    pub fn bucket(&self) -> Option<&Bucket> {
        self.bucket.as_ref()
    }

    /// Creates a template for a fixed name in this folder, without placeholders.
    #[must_use]
    pub fn fixed(root: &Path, name: &str) -> Template {
        Template {
            root: root.to_owned(),
            parts: vec![Part::Text(name.to_owned())],
            bucket: None,
        }
    }

    /// Returns the default template for recordings in this folder.
    #[must_use]
    pub fn usual(root: &Path) -> Template {
        let dash = Part::Text("-".to_owned());
        Template {
            root: root.to_owned(),
            parts: vec![
                Part::Value(Placeholder::Call),
                dash,
                Part::Value(Placeholder::Id),
            ],
            bucket: None,
        }
    }

    /// Returns the folder that contains all files.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a file below the folder. Text from the network can neither create a folder nor lead out of the template's
    /// folder.
    #[must_use]
    pub fn expand(&self, names: Names<'_>, ending: &str) -> PathBuf {
        let mut path = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => path.push_str(text),
                Part::Value(Placeholder::Name | Placeholder::Call) => {
                    path.push_str(&plain(names.name))
                }
                Part::Value(Placeholder::Time) => path.push_str(names.time),
                Part::Value(Placeholder::Date) => {
                    path.push_str(names.time.get(..8).unwrap_or_default())
                }
                Part::Value(Placeholder::Id) => path.push_str(names.id),
                Part::Value(Placeholder::Side) => path.push_str(names.side),
            }
        }
        let has_ending = Path::new(&path)
            .extension()
            .is_some_and(|known| known.eq_ignore_ascii_case(ending));
        if !has_ending {
            path.push('.');
            path.push_str(ending);
        }
        let parts = Path::new(&path).components();
        parts
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect()
    }

    /// Whether each party of a call has its own files.
    #[must_use]
    pub fn is_of_one_side(&self) -> bool {
        self.parts.contains(&Part::Value(Placeholder::Side))
    }

    /// Returns the file extension at the end of the template.
    fn ending(&self) -> Option<String> {
        let Some(Part::Text(last)) = self.parts.last() else {
            return None;
        };
        let (_, ending) = last.rsplit_once('.')?;
        Some(ending.to_ascii_lowercase())
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bucket {
            Some(bucket) => write!(f, "s3://{}/{}/", bucket.region, bucket.name)?,
            None => write!(f, "{}/", self.root.display())?,
        }
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(text)?,
                Part::Value(value) => write!(f, "{{{}}}", value.name())?,
            }
        }
        Ok(())
    }
}

impl Placeholder {
    const ALL: [Placeholder; 6] = [
        Placeholder::Name,
        Placeholder::Call,
        Placeholder::Time,
        Placeholder::Date,
        Placeholder::Id,
        Placeholder::Side,
    ];

    fn name(self) -> &'static str {
        match self {
            Placeholder::Name => "name",
            Placeholder::Call => "call",
            Placeholder::Time => "time",
            Placeholder::Date => "date",
            Placeholder::Id => "id",
            Placeholder::Side => "side",
        }
    }
}

fn parts(mut rest: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    while let Some(begin) = rest.find(['{', '}']) {
        let (text, inner) = rest.split_at(begin);
        let inner = inner.strip_prefix('{').ok_or(TemplateError::Placeholder)?;
        let (word, behind) = inner.split_once('}').ok_or(TemplateError::Placeholder)?;
        let mut known = Placeholder::ALL.into_iter();
        let value = known.find(|value| value.name() == word);
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        parts.push(Part::Value(value.ok_or(TemplateError::Placeholder)?));
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// Converts any text to a part of a file name. The result contains no folder, does not begin with a dot, and is not empty.
fn plain(text: &str) -> String {
    let letter = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '@' | '.' | '+' => letter,
        _ => '_',
    };
    let mut plain: String = text.chars().take(NAME_CHARS_MAX).map(letter).collect();
    if plain.is_empty() || plain.starts_with('.') {
        plain.insert(0, '_');
    }
    plain
}

impl fmt::Display for Rotate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.every_s.map(|seconds| format!("{seconds}s"));
        let bytes = self.bytes_max.map(|bytes| format!("{bytes}B"));
        let all: Vec<String> = time.into_iter().chain(bytes).collect();
        f.write_str(&all.join(" "))
    }
}

impl Rotate {
    /// Parses a text such as `1h`, `500MB` or `10m 1GB`.
    fn parse(text: &str) -> Option<Rotate> {
        let mut rotate = Rotate::default();
        for word in text.split_ascii_whitespace() {
            let at = word.find(|letter: char| !letter.is_ascii_digit())?;
            let (number, unit) = word.split_at(at);
            let number: u64 = number.parse().ok()?;
            let (place, factor, allowed) = match unit {
                "s" => (&mut rotate.every_s, 1, 1..=ROTATE_S_MAX),
                "m" => (&mut rotate.every_s, 60, 1..=ROTATE_S_MAX),
                "h" => (&mut rotate.every_s, 3600, 1..=ROTATE_S_MAX),
                "d" => (&mut rotate.every_s, 86_400, 1..=ROTATE_S_MAX),
                "B" => (&mut rotate.bytes_max, 1, ROTATE_BYTES),
                "kB" => (&mut rotate.bytes_max, 1_000, ROTATE_BYTES),
                "MB" => (&mut rotate.bytes_max, 1_000_000, ROTATE_BYTES),
                "GB" => (&mut rotate.bytes_max, 1_000_000_000, ROTATE_BYTES),
                _ => return None,
            };
            let value = number.checked_mul(factor)?;
            if place.is_some() || !allowed.contains(&value) {
                return None;
            }
            *place = Some(value);
        }
        (rotate != Rotate::default()).then_some(rotate)
    }
}

impl RecordSpec {
    /// Returns the settings of `start recording` if the request contains none.
    #[must_use]
    pub fn on_demand(to: Template, format: RecordingFormat) -> RecordSpec {
        RecordSpec {
            to,
            format,
            tracks: Tracks::Sides,
            rotate: Rotate::default(),
            on: RecordOn::Always,
            before_s: AROUND_S_USUAL,
            after_s: AROUND_S_USUAL,
            permissions: Permissions::default(),
        }
    }

    /// Replaces some settings. If the extension of the file name does not fit the format, it is replaced too.
    ///
    /// # Errors
    /// Fails if a word is unknown. The error contains the key, the word, and the allowed values.
    pub fn with(
        mut self,
        words: RecordWords<'_>,
    ) -> Result<RecordSpec, (&'static str, String, String)> {
        if let Some(word) = words.format {
            let all = RecordingFormat::ALL.map(|one| (one.name(), one));
            self.format = find("format", word, &all)?;
        }
        if let Some(word) = words.tracks {
            let all = [Tracks::Sides, Tracks::Mixed].map(|one| (one.name(), one));
            self.tracks = find("tracks", word, &all)?;
        }
        if let Some(word) = words.on {
            self.on = find("on", word, &RecordOn::ALL.map(|one| (one.name(), one)))?;
        }
        if let Some(word) = words.rotate {
            let refused = || ("rotate", word.to_owned(), ROTATE_ALLOWED.to_owned());
            self.rotate = Rotate::parse(word).ok_or_else(refused)?;
        }
        if self.format == RecordingFormat::Pcap && self.on != RecordOn::Always {
            let allowed = "\"always\" with the format \"pcap\"".to_owned();
            return Err(("on", self.on.name().to_owned(), allowed));
        }
        Ok(self)
    }

    /// Converts the settings to the form in the file.
    pub(super) fn to_toml(&self) -> Value {
        let mut table = Table::new();
        let mut set = |key: &str, value: Value| table.insert(key.to_owned(), value);
        set("to", self.to.to_string().into());
        set("format", self.format.name().into());
        set("tracks", self.tracks.name().into());
        set("on", self.on.name().into());
        if self.rotate != Rotate::default() {
            set("rotate", self.rotate.to_string().into());
        }
        if self.on == RecordOn::Loss {
            set("before", self.before_s.into());
            set("after", self.after_s.into());
        }
        if self.permissions != Permissions::default() {
            set("permissions", self.permissions.to_string().into());
        }
        table.into()
    }
}

/// Words that replace settings of a [`RecordSpec`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordWords<'a> {
    /// Replaces [`RecordSpec::format`].
    pub format: Option<&'a str>,
    /// Replaces [`RecordSpec::tracks`].
    pub tracks: Option<&'a str>,
    /// Replaces [`RecordSpec::rotate`].
    pub rotate: Option<&'a str>,
    /// Replaces [`RecordSpec::on`].
    pub on: Option<&'a str>,
}

fn find<T: Copy>(
    key: &'static str,
    word: &str,
    all: &[(&'static str, T)],
) -> Result<T, (&'static str, String, String)> {
    let found = all.iter().find(|(name, _)| *name == word);
    found.map(|(_, one)| *one).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        (key, word.to_owned(), names.join(", "))
    })
}

impl Tracks {
    fn name(self) -> &'static str {
        match self {
            Tracks::Mixed => "mixed",
            Tracks::Sides => "sides",
        }
    }
}

impl RecordOn {
    const ALL: [RecordOn; 3] = [RecordOn::Always, RecordOn::Call, RecordOn::Loss];

    fn name(self) -> &'static str {
        match self {
            RecordOn::Always => "always",
            RecordOn::Call => "call",
            RecordOn::Loss => "loss",
        }
    }
}

/// Checks the key `record` of a stream or of calls. The value `false` removes the default.
pub(super) fn check(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<RawRecord>>,
) -> Option<RecordSpec> {
    let raw = raw?;
    let keys = match raw.get_ref() {
        RawRecord::Off => return None,
        RawRecord::Keys(keys) => keys,
    };
    let known = has_only_known_keys(checker, keys);
    let find = |key: &str| keys.iter().find(|(name, _)| name == key);
    let value = |key: &str| find(key).map(|(_, value)| value);
    let to = value("to");
    if to.is_none() && known {
        let help =
            "add the path, such as to = \"/var/lib/threadbare/recordings/{name}/{time}.wav\"";
        checker
            .problems
            .add("`record` without `to`", help, &[(raw.span(), "this value")]);
    }
    let template = template(checker, to)?;
    let format = record_format(checker, value("format"), &template, to);
    let tracks = word(
        checker,
        value("tracks"),
        "tracks",
        &[Tracks::Sides, Tracks::Mixed].map(|one| (one.name(), one)),
    );
    let all = RecordOn::ALL.map(|one| (one.name(), one));
    let on = word(checker, value("on"), "on", &all);
    if template.is_of_one_side() {
        let help = "with `{side}`, each party has its own files; remove one of the two";
        checker.conflict(value("tracks"), "tracks", "`{side}` in `to`", help);
    }
    if format == RecordingFormat::Pcap && on != RecordOn::Always {
        let help = "packets are recorded only with `on = \"always\"`; remove `on`, or use another `format`";
        checker.conflict(value("on"), "on", "`format = \"pcap\"`", help);
    }
    let rotate = rotate(checker, value("rotate"));
    let before_s = around(checker, value("before"), "before", on);
    let after_s = around(checker, value("after"), "after", on);
    if let Some(machine) = checker.machine
        && let Err(reason) = machine.may_write(template.root())
    {
        let message = format!(
            "`to` cannot be {:?}, because the folder {} is not writable: {reason}",
            template.to_string(),
            template.root().display()
        );
        let help = "name a folder to which the user of this program may write, or which this user may create";
        let place = to.map_or(raw.span(), Spanned::span);
        checker
            .problems
            .add(message, help, &[(place, "this value")]);
    }
    Some(RecordSpec {
        to: template,
        format,
        tracks,
        rotate,
        on,
        before_s,
        after_s,
        permissions: permissions(checker, value("permissions")),
    })
}

/// Reports keys of `record` that do not exist. Returns `true` if all keys exist.
fn has_only_known_keys(checker: &mut Checker<'_>, keys: &[(String, Spanned<Value>)]) -> bool {
    let mut known = true;
    for (key, value) in keys {
        if !RECORD_KEYS.contains(&key.as_str()) {
            known = false;
            let help = format!("the keys here are: {}", RECORD_KEYS.join(", "));
            let message = format!("`{key}` is not a key of `record`");
            checker
                .problems
                .add(message, &help, &[(value.span(), "its value")]);
        }
    }
    known
}

fn permissions(checker: &mut Checker<'_>, raw: Option<&Spanned<Value>>) -> Permissions {
    let Some(value) = raw else {
        return Permissions::default();
    };
    let parsed = value.get_ref().as_str().and_then(Permissions::parse);
    parsed.unwrap_or_else(|| {
        let allowed = "\"0600\", \"0640\" or \"0660\"";
        checker.refuse(raw, "permissions", allowed);
        Permissions::default()
    })
}

fn template(checker: &mut Checker<'_>, raw: Option<&Spanned<Value>>) -> Option<Template> {
    let text = raw?.get_ref().as_str();
    let parse = |text: &str| match (&checker.store, text.starts_with("s3:")) {
        (_, true) if checker.is_shared => Err(TemplateError::Shared),
        (Some(store), true) => Template::parse_store(text, store),
        _ => Template::parse(text),
    };
    let parsed = text.ok_or(TemplateError::Name).and_then(parse);
    match parsed {
        Ok(template) => Some(template),
        Err(error) => {
            checker.refuse(raw, "to", &error.to_string());
            None
        }
    }
}

/// Returns the format that the key `format` names, or else that of the file name's extension.
fn record_format(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<Value>>,
    template: &Template,
    to: Option<&Spanned<Value>>,
) -> RecordingFormat {
    let ending = template.ending();
    let by_name = |format: &RecordingFormat| Some(format.ending()) == ending.as_deref();
    let of_name = RecordingFormat::ALL.into_iter().find(by_name);
    let Some(raw) = raw else {
        return of_name.unwrap_or_default();
    };
    let text = raw.get_ref().as_str().unwrap_or_default();
    let mut all = RecordingFormat::ALL.into_iter();
    let Some(format) = all.find(|format| format.name() == text) else {
        let names = RecordingFormat::ALL.map(|format| format!("\"{}\"", format.name()));
        checker.refuse(Some(raw), "format", &names.join(", "));
        return RecordingFormat::default();
    };
    if of_name.is_some_and(|other| other.ending() != format.ending()) {
        let shown = to.map_or(String::new(), |to| to.get_ref().to_string());
        let with = format!("`to = {shown}`");
        let help = "give the name the extension of the format, or no extension";
        checker.conflict(Some(raw), "format", &with, help);
    }
    format
}

fn word<T: Copy>(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<Value>>,
    key: &str,
    all: &[(&'static str, T)],
) -> T {
    let usual = all[0].1;
    let Some(value) = raw else {
        return usual;
    };
    let text = value.get_ref().as_str();
    let found = all.iter().find(|(name, _)| Some(*name) == text);
    if found.is_none() {
        let names: Vec<String> = all.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        checker.refuse(raw, key, &names.join(", "));
    }
    found.map_or(usual, |(_, one)| *one)
}

fn rotate(checker: &mut Checker<'_>, raw: Option<&Spanned<Value>>) -> Rotate {
    let Some(value) = raw else {
        return Rotate::default();
    };
    let rotate = value.get_ref().as_str().and_then(Rotate::parse);
    rotate.unwrap_or_else(|| {
        checker.refuse(raw, "rotate", ROTATE_ALLOWED);
        Rotate::default()
    })
}

/// Checks the number of seconds before or after an interruption.
fn around(checker: &mut Checker<'_>, raw: Option<&Spanned<Value>>, key: &str, on: RecordOn) -> u32 {
    let Some(value) = raw else {
        return AROUND_S_USUAL;
    };
    if on != RecordOn::Loss {
        let help = format!("remove `{key}`, or set `on = \"loss\"`");
        checker.conflict(raw, key, "another `on` than \"loss\"", &help);
    }
    let number = value.get_ref().as_integer();
    let number = number.and_then(|number| u32::try_from(number).ok());
    number
        .filter(|seconds| (1..=AROUND_S_MAX).contains(seconds))
        .unwrap_or_else(|| {
            checker.refuse(raw, key, &format!("a number from 1 to {AROUND_S_MAX} (s)"));
            AROUND_S_USUAL
        })
}

/// Keys in the table `record`.
const RECORD_KEYS: [&str; 8] = [
    "to",
    "format",
    "tracks",
    "rotate",
    "on",
    "before",
    "after",
    "permissions",
];
const PLACEHOLDERS: &str = "name, call, time, date, id and side";
/// Maximum number of characters of a placeholder's value. File systems allow 255 bytes for the whole file name.
const NAME_CHARS_MAX: usize = 100;
const ROTATE_ALLOWED: &str = "a time from 1s to 366d (s, m, h, d), a size from 64kB to 4GB (kB, MB, GB), or both, such as \"1h\" or \"1h 500MB\"";
/// Longest duration of a file. It is a year.
const ROTATE_S_MAX: u64 = 366 * 86_400;
/// Allowed sizes of a file. A smaller file would consist mostly of its header. The length of a larger one does not fit into a WAV header.
const ROTATE_BYTES: std::ops::RangeInclusive<u64> = 64_000..=4_000_000_000;
const AROUND_S_USUAL: u32 = 5;
/// Longest time before and after an interruption. A recording keeps this time in memory, with 32 kB a second for two tracks at 8 kHz.
const AROUND_S_MAX: u32 = 60;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str, name: &str) -> Option<String> {
        let names = Names {
            name,
            time: "20261125T213600Z",
            id: "01ab",
            side: "a",
        };
        let template = Template::parse(text).ok()?;
        assert_eq!(template.to_string(), text);
        Some(template.expand(names, "wav").display().to_string())
    }

    #[test]
    fn placeholders_are_filled_in_below_a_fixed_folder() {
        assert_eq!(
            expanded("/r/{name}/{time}.wav", "news 1").as_deref(),
            Some("news_1/20261125T213600Z.wav")
        );
        assert_eq!(
            expanded("/r/x{date}/{side}-{id}", "n").as_deref(),
            Some("x20261125/a-01ab.wav")
        );
        let root = Template::parse("/r/s/x{date}/a").expect("a template");
        assert_eq!(root.root(), Path::new("/r/s"));
        for odd in [
            "r/{name}.wav",
            "/{name}.wav",
            "/r/../{name}",
            "/r/{name}/..",
            "/r/{nam}.wav",
            "/r/{name",
            "/r/name}",
            "/r/{name}/",
            "",
            "s3://eu/bucket/{name}",
        ] {
            assert_eq!(expanded(odd, "n"), None, "{odd}");
        }
    }

    #[test]
    fn times_and_sizes_of_files_are_parsed() {
        let read = |text| Rotate::parse(text).map(|one| (one.every_s, one.bytes_max));
        assert_eq!(read("1h"), Some((Some(3600), None)));
        assert_eq!(read("500MB"), Some((None, Some(500_000_000))));
        assert_eq!(read("10m 1GB"), Some((Some(600), Some(1_000_000_000))));
        for odd in [
            "", "h", "1", "1x", "1h 2h", "0s", "1kB", "5GB", "-1s", "1h,1GB",
        ] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    proptest! {
        /// Call-IDs come from the network, so they may contain any text.
        #[test]
        fn no_name_of_a_recording_leads_out_of_its_folder(name in "(\\PC|[./\\\\\0~]){0,200}") {
            let path = expanded("/r/{name}/{call}", &name).expect("a path");
            prop_assert_eq!(Path::new(&path).components().count(), 2);
            for part in path.split('/') {
                prop_assert!(!part.starts_with('.') && part.len() < 200, "{}", path);
            }
        }
    }
}
