//! The interface of the RTP elements that existing pipelines use: each property's name, type, default and range, and whether it
//! can be set. A change here breaks existing pipelines.

use crate::common::*;
use gst::glib;
use gst::prelude::*;

/// Properties in the form that [`described`] writes.
type Table = &'static [&'static str];

/// Returns a property's specification: `name type = default, lowest..=highest`.
fn described(element: &gst::Element, spec: &glib::ParamSpec) -> String {
    let value = element.property_value(spec.name());
    let default = match value.get::<Option<String>>() {
        Ok(text) => text.map_or("NULL".into(), |text| format!("'{text}'")),
        Err(_) if matches!(value.get::<Option<gst::Caps>>(), Ok(None)) => "NULL".into(),
        Err(_) if matches!(value.get::<Option<gst::Sample>>(), Ok(None)) => "NULL".into(),
        Err(_) => match glib::EnumValue::from_value(&value) {
            Some((_, value)) => value.nick().into(),
            None if value.is::<gst::Structure>() => "...".into(),
            None => value.serialize().unwrap().into(),
        },
    };
    let range = range(spec).map_or(String::new(), |range| format!(", {range}"));
    let is_writable = spec.flags().contains(glib::ParamFlags::WRITABLE);
    let read_only = if is_writable { "" } else { ", read only" };
    let kind = spec.value_type().name();
    format!("{} {kind} = {default}{range}{read_only}", spec.name())
}

fn range(spec: &glib::ParamSpec) -> Option<String> {
    if let Some(spec) = spec.downcast_ref::<glib::ParamSpecInt>() {
        return Some(format!("{}..={}", spec.minimum(), spec.maximum()));
    }
    if let Some(spec) = spec.downcast_ref::<glib::ParamSpecUInt>() {
        return Some(format!("{}..={}", spec.minimum(), spec.maximum()));
    }
    if let Some(spec) = spec.downcast_ref::<glib::ParamSpecInt64>() {
        return Some(format!("{}..={}", spec.minimum(), spec.maximum()));
    }
    let spec = spec.downcast_ref::<glib::ParamSpecUInt64>()?;
    Some(format!("{}..={}", spec.minimum(), spec.maximum()))
}

#[test]
fn properties_defaults_and_ranges_stay_compatible_with_existing_pipelines() {
    for (factory, table, has_context) in TABLES {
        let element = make(factory);
        let own = element.list_properties();
        let mut own = own
            .iter()
            .filter(|spec| !spec.owner_type().name().starts_with("GstObject"))
            .map(|spec| described(&element, spec))
            .collect::<Vec<_>>();
        own.sort();
        let mut expected = table.to_vec();
        expected.push(STATS);
        if has_context {
            expected.extend(CONTEXT);
        }
        expected.sort_unstable();
        assert_eq!(own, expected, "{factory}: {own:#?}");
    }
}

#[test]
fn documented_defaults_equal_those_of_a_new_element() {
    for (factory, ..) in TABLES {
        let element = make(factory);
        for spec in &*element.list_properties() {
            // GStreamer cannot compare two `last-sample` that are NULL.
            let is_skipped = ["stats", "last-sample"].contains(&spec.name());
            if spec.owner_type().name().starts_with("GstObject") || is_skipped {
                continue;
            }
            let value = element.property_value(spec.name());
            let told = spec.default_value();
            let differs = value.compare(told).is_some_and(|order| order.is_ne());
            assert!(!differs, "{factory} {}: {value:?}, {told:?}", spec.name());
            // A property can be set to its own value.
            if spec.flags().contains(glib::ParamFlags::WRITABLE) {
                let before = described(&element, spec);
                element.set_property_from_value(spec.name(), &value);
                assert_eq!(described(&element, spec), before, "{factory}");
            }
        }
    }
}

/// Properties of each element, and whether it has those of a context.
const TABLES: [(&str, Table, bool); 6] = [
    ("ts-rtpsrc", RTPSRC, true),
    ("ts-rtpsink", RTPSINK, true),
    ("ts-rtpg711", RTPG711, false),
    ("ts-rtpjitterbuffer", RTPJITTERBUFFER, true),
    ("ts-rtpdemux", RTPDEMUX, false),
    ("ts-rtcpmanager", RTCPMANAGER, true),
];

const STATS: &str = "stats GstStructure = ..., read only";

const CONTEXT: Table = &[
    "context gchararray = ''",
    "context-affinity gchararray = ''",
    "context-priority gint = 0, 0..=99",
    "context-threads gint = -1, -1..=2147483647",
    "context-wait guint = 0, 0..=1000",
];

const RTPSRC: Table = &[
    "adaptive gboolean = false",
    "address gchararray = '0.0.0.0'",
    "auto-multicast gboolean = true",
    "buffer-size gint = 0, 0..=2147483647",
    "caps GstCaps = NULL",
    "clock-skew ThreadbareClockSkew = window",
    "do-lost gboolean = true",
    "do-retransmission gboolean = false",
    "drop-on-latency gboolean = false",
    "from gchararray = NULL",
    "latch gboolean = true",
    "latency guint = 40, 0..=60000",
    "loop gboolean = true",
    "max-dropout-time guint = 60000, 0..=4294967295",
    "max-misorder-time guint = 2000, 0..=4294967295",
    "mtu guint = 1492, 12..=65536",
    "multicast-iface gchararray = NULL",
    "payload-types gchararray = ''",
    "port gint = 5004, 0..=65535",
    "reuse gboolean = true",
    "rtcp gboolean = true",
    "rtcp-mux gboolean = false",
    "rtcp-port gint = -1, -1..=65535",
    "rtcp-reduced-size gboolean = false",
    "rtp-profile ThreadbareRtpProfile = avp",
    "session gchararray = ''",
    "ssrc guint = 4294967295, 0..=4294967295",
    "uri gchararray = 'rtp://0.0.0.0:5004'",
    "used-port gint = 0, -2147483648..=2147483647, read only",
];

const RTPSINK: Table = &[
    "async gboolean = false",
    "bind-address gchararray = '0.0.0.0'",
    "bind-port gint = 0, 0..=65535",
    "cname gchararray = NULL",
    "enable-last-sample gboolean = false",
    "host gchararray = ''",
    "last-sample GstSample = NULL, read only",
    "max-lateness gint64 = -1, -1..=9223372036854775807",
    "port gint = 5004, 1..=65535",
    "processing-deadline guint64 = 20000000, 0..=18446744073709551615",
    "qos gboolean = false",
    "qos-dscp gint = -1, -1..=63",
    "render-delay guint64 = 0, 0..=18446744073709551615",
    "rtcp-mux gboolean = false",
    "rtcp-port gint = -1, -1..=65535",
    "rtcp-reduced-size gboolean = false",
    "rtp-profile ThreadbareRtpProfile = avp",
    "session gchararray = ''",
    "ssrc guint = 4294967295, 0..=4294967295",
    "sync gboolean = false",
    "throttle-time guint64 = 0, 0..=18446744073709551615",
    "ts-offset gint64 = 0, -9223372036854775808..=9223372036854775807",
];

const RTPG711: Table = &[
    "encoding-name gchararray = NULL",
    "meter gboolean = false",
    "pt gint = -1, -1..=127",
    "ptime guint = 0, 0..=200",
    "ssrc guint = 4294967295, 0..=4294967295",
    "telephone-event-pt gint = 101, -1..=127",
];

const RTPJITTERBUFFER: Table = &[
    "adaptive gboolean = false",
    "clock-skew ThreadbareClockSkew = window",
    "do-lost gboolean = false",
    "drop-on-latency gboolean = false",
    "faststart-min-packets guint = 0, 0..=4294967295",
    "latency guint = 200, 0..=60000",
    "max-dropout-time guint = 60000, 0..=2147483647",
    "max-misorder-time guint = 2000, 0..=4294967295",
    "mode ThreadbareRtpJitterBufferMode = slave",
    "percent gint = 0, 0..=100, read only",
    "ts-offset gint64 = 0, -9223372036854775808..=9223372036854775807",
];

const RTPDEMUX: Table = &[
    "by ThreadbareRtpDemuxBy = ssrc",
    "context-wait guint = 0, 0..=1000",
    "contexts gchararray = ''",
    "idle-timeout guint = 0, 0..=4294967295",
    "max-streams guint = 1024, 1..=65536",
    "probation guint = 2, 1..=16",
];

const RTCPMANAGER: Table = &[
    "bandwidth guint64 = 0, 0..=1000000000000",
    "cname gchararray = NULL",
    "reduced-minimum gboolean = false",
];
