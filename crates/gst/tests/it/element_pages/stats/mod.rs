//! The fields of the elements' `stats`, from `fields.txt`: compared with running elements, and written into their pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::UdpSocket;

use gst::prelude::*;

use crate::common::{Pipe, eventually};

pub(crate) struct Field {
    name: &'static str,
    type_: &'static str,
    /// Whether the field appears only with data, or in some states.
    is_late: bool,
    meaning: &'static str,
}

/// Returns the fields, by section.
pub(crate) fn fields() -> BTreeMap<&'static str, Vec<Field>> {
    let mut all = BTreeMap::new();
    let mut section = "";
    for line in include_str!("fields.txt").lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            all.insert(section, Vec::new());
        } else if !line.is_empty() && !line.starts_with('#') {
            let mut words = line.splitn(3, ' ');
            let mut word = || {
                words
                    .next()
                    .unwrap_or_else(|| panic!("not a field: {line}"))
            };
            let (name, type_, meaning) = (word(), word(), word());
            let list: &mut Vec<Field> = all.get_mut(section).expect("a section");
            list.push(Field {
                name,
                type_: type_.trim_end_matches('?'),
                is_late: type_.ends_with('?'),
                meaning,
            });
        }
    }
    all
}

/// The tables of an element's page.
pub(crate) fn add_tables(page: &mut String, element: &str) {
    let all = fields();
    let Some(own) = all.get(element) else { return };
    add_table(page, "Statistics", "Fields of the property `stats`:", own);
    if own.iter().any(|field| field.type_ == "GstStructure") {
        let text = "Fields of the structure of an RTP session:";
        add_table(page, "Statistics of a session", text, &all["session"]);
        let text = "Fields of each structure in `sources`:";
        add_table(page, "Statistics of a source", text, &all["source"]);
    }
}

fn add_table(page: &mut String, title: &str, text: &str, fields: &[Field]) {
    writeln!(
        page,
        "\n## {title}\n\n{text}\n\n| field | type | |\n|---|---|---|"
    )
    .unwrap();
    for field in fields {
        let late = if field.is_late { " \\*" } else { "" };
        let Field {
            name,
            type_,
            meaning,
            ..
        } = field;
        writeln!(page, "| `{name}`{late} | {type_} | {meaning} |").unwrap();
    }
    if fields.iter().any(|field| field.is_late) {
        writeln!(
            page,
            "\n\\* This field exists only while the element runs, or only after the first data."
        )
        .unwrap();
    }
}

const AUDIO: &str =
    "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! ";
const WIDE: &str = "audiotestsrc is-live=true ! audio/x-raw,format=F32LE,rate=48000,channels=1 ! ";
const RTP: &str = "mulawenc ! rtppcmupay ssrc=7 ! ";
const SESSION: &str = "ts-rtpsrc name={src} address=127.0.0.1 port={port} session={port} \
                       ! ts-rtpsink name={sink} session={port} host=127.0.0.1 port=9 ";

/// Returns a pipeline with the element as `x` that makes it show all fields, for elements that need more than creation.
fn line_of(element: &str) -> Option<String> {
    let session = |src: &str, sink: &str| {
        let session = SESSION.replace("{src}", src).replace("{sink}", sink);
        format!("{session} {AUDIO} {RTP} udpsink host=127.0.0.1 port={{port}}")
    };
    let line = match element {
        "audioloudnorm" => format!("{WIDE} audioloudnorm name=x ! fakesink"),
        "ebur128level" => format!("{WIDE} ebur128level name=x ! fakesink"),
        "ts-rtpg711" => {
            format!("{AUDIO} {RTP} ts-rtpg711 name=x meter=true encoding-name=PCMA ! fakesink")
        }
        "ts-rtpdemux" => format!("{AUDIO} {RTP} ts-rtpdemux name=x ! fakesink"),
        "ts-proxysink" => format!(
            "{AUDIO} ts-proxysink name=x proxy-context={{port}} ts-proxysrc proxy-context={{port}} ! fakesink"
        ),
        "ts-intersink" => format!(
            "{AUDIO} ts-intersink name=x inter-context={{port}} ts-intersrc inter-context={{port}} ! fakesink"
        ),
        "ts-rtcpmanager" => format!(
            "ts-rtcpmanager name=x {AUDIO} {RTP} x.send_rtp_sink_0 x.send_rtp_src_0 ! fakesink \
             x.send_rtcp_src_0 ! fakesink sync=false async=false"
        ),
        "ts-rtpsrc" => session("x", "y"),
        "ts-rtpsink" => session("y", "x"),
        _ => return None,
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    Some(line.replace("{port}", &port))
}

/// Differences between this file and the element.
pub(crate) fn complaints(element: &str) -> Vec<String> {
    let all = fields();
    let Some(own) = all.get(element) else {
        return vec![format!("{element}: no section in fields.txt")];
    };
    let Some(line) = line_of(element) else {
        let element_new = gst::ElementFactory::make(element).build().unwrap();
        let stats = element_new.property::<gst::Structure>("stats");
        let mut complaints = unknown(element, &stats, own);
        complaints.extend(missing(element, &stats, own));
        return complaints;
    };
    let pipe = Pipe::parse(&line);
    pipe.play();
    let read = || pipe.get("x").property::<gst::Structure>("stats");
    // With data, at least one of the late fields is present.
    let is_late = |field: &&Field| field.is_late;
    let late = own.iter().find(is_late).map_or("", |field| field.name);
    eventually("statistics of data", || read().has_field(late));
    let mut complaints = unknown(element, &read(), own);
    complaints.extend(missing(element, &read(), own));
    for (_, value) in read().iter() {
        let Ok(session) = value.get::<gst::Structure>() else {
            continue;
        };
        complaints.extend(unknown("session", &session, &all["session"]));
        complaints.extend(missing("session", &session, &all["session"]));
        for source in session.get::<gst::Array>("sources").unwrap().iter() {
            let source = source.get::<gst::Structure>().unwrap();
            complaints.extend(unknown("source", &source, &all["source"]));
            complaints.extend(missing("source", &source, &all["source"]));
        }
    }
    complaints
}

fn unknown(section: &str, stats: &gst::Structure, fields: &[Field]) -> Vec<String> {
    let type_of = |value: &gst::glib::SendValue| super::type_name(value.type_());
    let is_known = |name: &str, type_: &str| {
        fields
            .iter()
            .any(|field| field.name == name && field.type_ == type_)
    };
    stats
        .iter()
        .map(|(name, value)| (name.as_str(), type_of(value)))
        .filter(|(name, type_)| !is_known(name, type_))
        .map(|(name, type_)| format!("fields.txt has no line `{name} {type_} ...` in [{section}]"))
        .collect()
}

fn missing(section: &str, stats: &gst::Structure, fields: &[Field]) -> Vec<String> {
    fields
        .iter()
        .filter(|field| !field.is_late && !stats.has_field(field.name))
        .map(|field| {
            format!(
                "[{section}] of fields.txt has {}, the element has not",
                field.name
            )
        })
        .collect()
}
