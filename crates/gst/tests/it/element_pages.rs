//! `docs/elements/ts-*.md` match the elements' introspection, and every element documents everything.
//!
//! `make element-docs` regenerates the pages.

mod stats;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::common::init;
use gst::glib;
use gst::glib::translate::{FromGlib, IntoGlib};
use gst::prelude::*;

/// Set by `make element-docs`.
const WRITE: &str = "THREADBARE_WRITE_ELEMENT_PAGES";

/// Elements that an application has to feed. Instead of a launch line, a program in `examples/` shows them, which the tests also
/// run.
const SHOWN_BY_PROGRAMS: &[&str] = &["ts-appsrc", "ts-appsink"];

/// Elements that no launch line shows, each with the reason.
const NOT_SHOWN: &[&str] = &[
    // Silent until an application sends it an event.
    "ts-rtpdtmfsrc",
    // Waits for a connection from another program.
    "ts-tcpserversrc",
];

/// Elements without statistics: they produce their own data and lose none of it.
const MAKE_THEIR_DATA: &[&str] = &["ts-audiotestsrc", "ts-rtpdtmfsrc", "ts-tonesrc"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the elements of this plugin, by name.
fn factories() -> Vec<gst::ElementFactory> {
    init();
    let mut all: Vec<gst::ElementFactory> = gst::Registry::get()
        .features_by_plugin("threadbare")
        .into_iter()
        .filter_map(|feature| feature.downcast().ok())
        .collect();
    all.sort_by_key(|factory: &gst::ElementFactory| factory.name());
    assert!(all.len() > 10, "{all:?}");
    all
}

/// Whether the type is this element's own class, or a class of this plugin below it.
fn is_own(type_: glib::Type) -> bool {
    type_.name().starts_with("Threadbare")
}

fn properties(element: &gst::Element) -> Vec<glib::ParamSpec> {
    let mut all = element.list_properties().to_vec();
    all.retain(|spec| is_own(spec.owner_type()));
    all.sort_by_key(|spec| spec.name().to_owned());
    all
}

fn signals(element: &gst::Element) -> Vec<glib::subclass::SignalQuery> {
    let mut all = Vec::new();
    let mut type_ = Some(element.type_());
    while let Some(own) = type_.filter(|type_| is_own(*type_)) {
        let mut count = 0;
        // SAFETY: the type is a registered one whose class exists, since `element` does; the array has `count`
        // identifiers of signals and is ours to free.
        unsafe {
            let ids = glib::gobject_ffi::g_signal_list_ids(own.into_glib(), &mut count);
            for i in 0..count as usize {
                all.push(glib::subclass::SignalId::from_glib(*ids.add(i)).query());
            }
            glib::ffi::g_free(ids.cast());
        }
        type_ = own.parent();
    }
    all.sort_by_key(|signal| signal.signal_name().to_owned());
    all
}

/// Returns a type's name as written in pipeline descriptions.
fn type_name(type_: glib::Type) -> String {
    match type_.name() {
        "gchararray" => "string",
        "gboolean" => "boolean",
        "void" => "nothing",
        other => other.strip_prefix('g').map_or(other, |rest| match rest {
            "int" | "uint" | "int64" | "uint64" | "long" | "ulong" | "float" | "double" => rest,
            _ => other,
        }),
    }
    .to_owned()
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

/// Returns the allowed values of a property.
fn range(spec: &glib::ParamSpec) -> String {
    if !spec.flags().contains(glib::ParamFlags::WRITABLE) {
        return String::new();
    }
    macro_rules! of_numbers {
        ($($kind:ty),+) => {
            $(if let Some(spec) = spec.downcast_ref::<$kind>() {
                return format!("{} to {}", spec.minimum(), spec.maximum());
            })+
        };
    }
    of_numbers!(
        glib::ParamSpecInt,
        glib::ParamSpecUInt,
        glib::ParamSpecInt64,
        glib::ParamSpecUInt64,
        glib::ParamSpecFloat,
        glib::ParamSpecDouble
    );
    match glib::EnumClass::with_type(spec.value_type()) {
        Some(class) => {
            let nicks: Vec<String> = class.values().iter().map(|v| code(v.nick())).collect();
            nicks.join(", ")
        }
        None => glib::FlagsClass::with_type(spec.value_type()).map_or(String::new(), |class| {
            let nicks: Vec<String> = class.values().iter().map(|v| code(v.nick())).collect();
            format!("any of {}", nicks.join(", "))
        }),
    }
}

fn default(spec: &glib::ParamSpec) -> String {
    let value = spec.default_value();
    if !spec.flags().contains(glib::ParamFlags::WRITABLE) {
        return String::new();
    }
    if let Some((_, value)) = glib::EnumValue::from_value(value) {
        return code(value.nick());
    }
    if let Some((_, values)) = glib::FlagsValue::from_value(value) {
        let nicks: Vec<&str> = values.iter().map(|value| value.nick()).collect();
        return code(&nicks.join("+"));
    }
    if let Ok(number) = value.get::<f64>() {
        return code(&number.to_string());
    }
    if let Ok(text) = value.get::<Option<String>>() {
        return text.map_or("NULL".into(), |text| code(&format!("\"{text}\"")));
    }
    // GStreamer does not write a structure that is absent.
    if let Ok(None) = value.get::<Option<gst::Structure>>() {
        return "NULL".into();
    }
    match value.serialize() {
        Ok(text) if value.type_().is_a(glib::Type::BOOL) || !range(spec).is_empty() => code(&text),
        _ => "NULL".into(),
    }
}

/// Whether and when a property can be read and set.
fn access(spec: &glib::ParamSpec) -> &'static str {
    let flags = spec.flags();
    if !flags.contains(glib::ParamFlags::WRITABLE) {
        "read only"
    } else if flags.contains(gst::PARAM_FLAG_MUTABLE_PLAYING) {
        "any time"
    } else if flags.contains(gst::PARAM_FLAG_MUTABLE_PAUSED) {
        "up to PAUSED"
    } else if flags.contains(gst::PARAM_FLAG_MUTABLE_READY) {
        "up to READY"
    } else {
        ""
    }
}

/// Returns the lines of the documentation, as `tests/launch-lines.sh` finds them, each with its file.
fn launch_lines() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    let mut lines = Vec::new();
    for file in files {
        let (mut fenced, mut line) = (false, String::new());
        for text in read(&file).lines() {
            if text.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced
                && (!line.is_empty() || text.trim_start().starts_with("gst-launch-1.0 "))
            {
                line.push_str(text.strip_suffix('\\').unwrap_or(text));
                if !text.ends_with('\\') {
                    lines.push((file.clone(), std::mem::take(&mut line)));
                }
            }
        }
    }
    lines
}

/// Returns the files with a line, or for some a program, that has the element in it.
fn shown_in(name: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = launch_lines()
        .into_iter()
        .filter(|(_, line)| line.split_whitespace().any(|word| word == name))
        .map(|(file, _)| file)
        .collect();
    if SHOWN_BY_PROGRAMS.contains(&name) {
        let programs = ["examples/many-streams.py", "crates/gst/examples/app.rs"];
        let programs = programs.map(|program| root().join(program));
        files.extend(
            programs
                .into_iter()
                .filter(|path| read(path).contains(name)),
        );
    }
    files.dedup();
    files
}

fn add_pads(page: &mut String, factory: &gst::ElementFactory) {
    page.push_str("\n## Pads\n\n| name | direction | presence | caps |\n|---|---|---|---|\n");
    let mut pads: Vec<_> = factory.static_pad_templates().into_iter().collect();
    pads.sort_by_key(|pad| pad.name_template().to_owned());
    for pad in pads {
        let direction = format!("{:?}", pad.direction()).to_lowercase();
        let presence = format!("{:?}", pad.presence()).to_lowercase();
        let caps: Vec<String> = if pad.caps().is_any() {
            vec!["any".into()]
        } else {
            pad.caps()
                .iter()
                .map(|s| code(s.to_string().trim_end_matches(';')))
                .collect()
        };
        let name = code(pad.name_template());
        let caps = caps.join("; ");
        writeln!(page, "| {name} | {direction} | {presence} | {caps} |").unwrap();
    }
}

fn add_properties(page: &mut String, element: &gst::Element) {
    let properties = properties(element);
    if properties.is_empty() {
        return;
    }
    page.push_str(
        "\n## Properties\n\n| name | type | range | default | settable | |\n|---|---|---|---|---|---|\n",
    );
    for spec in properties {
        writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            code(spec.name()),
            type_name(spec.value_type()),
            range(&spec),
            default(&spec),
            access(&spec),
            cell(spec.blurb().unwrap_or_default())
        )
        .unwrap();
    }
}

fn add_signals(page: &mut String, element: &gst::Element) {
    let is_action =
        |signal: &glib::subclass::SignalQuery| signal.flags().contains(glib::SignalFlags::ACTION);
    let (actions, notices): (Vec<_>, Vec<_>) = signals(element).into_iter().partition(is_action);
    for (title, signals) in [("Signals", notices), ("Actions", actions)] {
        if signals.is_empty() {
            continue;
        }
        writeln!(page, "\n## {title}\n").unwrap();
        for signal in signals {
            let of: Vec<String> = signal
                .param_types()
                .iter()
                .map(|p| type_name((*p).into()))
                .collect();
            let result = match type_name(signal.return_type().into()).as_str() {
                "nothing" => String::new(),
                result => format!(" -> {result}"),
            };
            let name = signal.signal_name();
            writeln!(page, "- `{name}({}){result}`", of.join(", ")).unwrap();
        }
    }
}

fn page(factory: &gst::ElementFactory) -> String {
    let element = factory.create().build().unwrap();
    let meta = |key| factory.metadata(key).unwrap_or_default().to_owned();
    let mut page = format!(
        "<!-- Written by `make element-docs`. -->\n# {}\n\n{} ({})\n\n{}.\n",
        factory.name(),
        meta(gst::ELEMENT_METADATA_LONGNAME),
        meta(gst::ELEMENT_METADATA_KLASS),
        meta(gst::ELEMENT_METADATA_DESCRIPTION)
    );
    let examples: Vec<String> = shown_in(&factory.name())
        .iter()
        .map(|file| {
            let file = file.strip_prefix(root()).unwrap().display().to_string();
            format!("[{file}](../../{file})")
        })
        .collect();
    if !examples.is_empty() {
        writeln!(page, "\nSee its use in {}.", examples.join(", ")).unwrap();
    }
    add_pads(&mut page, factory);
    add_properties(&mut page, &element);
    add_signals(&mut page, &element);
    stats::add_tables(&mut page, &factory.name());
    page
}

/// Pages in docs/elements other than those of the elements.
const GUIDES: &[(&str, &str)] = &[
    (
        "../rtp.md",
        "RTP sessions: ts-rtpsrc, ts-rtpsink, ts-rtpg711",
    ),
    (
        "rtp-parts.md",
        "jitter buffer, demultiplexer and RTCP as separate elements",
    ),
    (
        "queues.md",
        "queues, connections between pipelines, and connections to an application",
    ),
    (
        "flow.md",
        "waiting for the clock, switching inputs, sources that fail, recording, elements that block",
    ),
    ("audio-sources.md", "tones and test signals"),
    ("dtmf.md", "telephone events"),
    ("files.md", "files: recording, splitting, reading"),
    ("sources.md", "TCP"),
    ("http.md", "HTTP"),
    ("s3.md", "S3"),
    ("../loudness.md", "loudness: meters and normaliser"),
    (
        "../contexts.md",
        "contexts: how elements share threads, what blocks a thread, when not to share one",
    ),
    (
        "../beside-gst-plugins-rs.md",
        "coexistence with gst-plugins-rs, whose elements have the same names",
    ),
    (
        "../writing-an-element.md",
        "how to write an element that runs on a shared thread",
    ),
];

/// Returns the page that lists all other pages.
fn index() -> String {
    let mut page = "<!-- Written by `make element-docs`. -->\n# The elements\n\n\
        Each page lists pads, properties, signals and statistics, as `gst-inspect-1.0` does.\n\n\
        | element | |\n|---|---|\n"
        .to_owned();
    for factory in factories() {
        let name = factory.name();
        let text = factory.metadata(gst::ELEMENT_METADATA_DESCRIPTION);
        let text = cell(text.unwrap_or_default());
        writeln!(page, "| [{name}]({name}.md) | {text} |").unwrap();
    }
    page.push_str("\nPages by subject:\n\n");
    for (path, subject) in GUIDES {
        let file = root().join("docs/elements").join(path);
        assert!(file.is_file(), "{path} is not there");
        writeln!(page, "- [{subject}]({path})").unwrap();
    }
    page
}

/// The statistics are the documented ones, by name and type.
#[test]
fn statistics_are_documented() {
    let with_stats = factories().into_iter().filter(|factory| {
        let element = factory.create().build().unwrap();
        element.has_property("stats")
    });
    let complaints: Vec<String> = with_stats
        .flat_map(|factory| stats::complaints(&factory.name()))
        .collect();
    assert!(
        complaints.is_empty(),
        "{complaints:#?}; put these right in crates/gst/tests/it/element_pages/stats/fields.txt, then run: make element-docs"
    );
}

#[test]
fn element_pages_match_the_elements() {
    let folder = root().join("docs/elements");
    let pages: BTreeMap<String, String> = factories()
        .iter()
        .map(|factory| (format!("{}.md", factory.name()), page(factory)))
        .collect();
    let mut complaints = Vec::new();
    for (name, page) in &pages {
        let path = folder.join(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, page).unwrap();
        } else if std::fs::read_to_string(&path).ok().as_ref() != Some(page) {
            complaints.push(format!("{name} differs from the element"));
        }
    }
    let index = folder.join("README.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&index, self::index()).unwrap();
    } else if std::fs::read_to_string(&index).ok() != Some(self::index()) {
        complaints.push("README.md does not list the elements as they are".to_owned());
    }
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("ts-") && !pages.contains_key(&name) {
            complaints.push(format!("{name} does not describe an element"));
        }
    }
    assert!(
        complaints.is_empty(),
        "{complaints:#?}; run: make element-docs"
    );
}

#[test]
fn every_element_has_metadata() {
    let mut complaints = Vec::new();
    for factory in factories() {
        let name = factory.name();
        let element = factory.create().build().unwrap();
        for key in [
            gst::ELEMENT_METADATA_LONGNAME,
            gst::ELEMENT_METADATA_KLASS,
            gst::ELEMENT_METADATA_DESCRIPTION,
            gst::ELEMENT_METADATA_AUTHOR,
        ] {
            if factory.metadata(key).is_none_or(str::is_empty) {
                complaints.push(format!("{name} has no {key}"));
            }
        }
        let properties = properties(&element);
        for spec in &properties {
            if spec.blurb().is_none_or(str::is_empty) {
                complaints.push(format!("{name} does not say what {} is", spec.name()));
            }
        }
        let has_stats = properties.iter().any(|spec| spec.name() == "stats");
        if !has_stats && !MAKE_THEIR_DATA.contains(&name.as_str()) {
            complaints.push(format!("{name} has no stats"));
        }
        if shown_in(&name).is_empty() && !NOT_SHOWN.contains(&name.as_str()) {
            complaints.push(format!(
                "no gst-launch-1.0 line in README.md or docs has {name}"
            ));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}
