//! Properties that all sinks share, compared with those of GStreamer's base class of sinks.

use std::collections::BTreeMap;

use crate::common::init;
use gst::glib;
use gst::prelude::*;

/// Sinks that render nothing: they hand all data to a source in another pipeline, whose sink waits for the clock.
const HAND_ON: [&str; 2] = ["ts-intersink", "ts-proxysink"];

/// Sinks with the properties of the stock filesink.
const FILES: &[&str] = &["ts-filesink", "ts-s3sink", "ts-splitfilesink"];

/// Live sinks: they send data on arrival, and do not keep a pipeline from reaching PAUSED.
const LIVE: [&str; 2] = ["ts-rtpsink", "ts-tcpserversink"];

/// Properties that our sinks do not have. `blocksize` is for pull mode, which a source on a shared thread does not have.
/// `max-bitrate` would delay data beyond its time.
const NOT_OFFERED: [&str; 2] = ["blocksize", "max-bitrate"];

/// Our sinks define `stats` in each element, not in the base class.
const OF_THE_ELEMENT: &str = "stats";

/// Type, range, flags and default of properties, by name.
type Described = BTreeMap<String, String>;

fn described<'a>(specs: impl IntoIterator<Item = &'a glib::ParamSpec>) -> Described {
    let of = |spec: &glib::ParamSpec| {
        let range = match spec.downcast_ref::<glib::ParamSpecInt64>() {
            Some(spec) => format!(", {}..={}", spec.minimum(), spec.maximum()),
            None => String::new(),
        };
        let access = spec.flags() & glib::ParamFlags::READWRITE;
        let (kind, default) = (spec.value_type(), spec.default_value());
        format!("{kind}{range} = {default:?}, {access:?}")
    };
    let named = |spec: &&glib::ParamSpec| spec.name() != OF_THE_ELEMENT;
    let specs = specs.into_iter().filter(named);
    specs.map(|spec| (spec.name().into(), of(spec))).collect()
}

/// Returns the properties that an element of this name must have.
fn expected(name: &str, of_base_class: &[glib::ParamSpec]) -> Described {
    let mut expected = described(of_base_class);
    for missing in NOT_OFFERED {
        expected.remove(missing).unwrap();
    }
    let mut is_off = |property: &str| {
        let described = expected.get_mut(property).unwrap();
        *described = described.replace("TRUE", "FALSE");
    };
    // This is off because otherwise each sink would hold one buffer of its pool.
    is_off("enable-last-sample");
    if LIVE.contains(&name) {
        is_off("sync");
        is_off("async");
    }
    if FILES.contains(&name) {
        is_off("sync");
    }
    expected
}

fn sinks() -> Vec<gst::ElementFactory> {
    init();
    let registry = gst::Registry::get();
    let factories = registry.features(gst::ElementFactory::static_type());
    let factories = factories.into_iter().filter_map(|f| f.downcast().ok());
    let is_ours = |f: &gst::ElementFactory| {
        let klass = f.metadata("klass").unwrap_or_default();
        f.name().starts_with("ts-") && klass.split('/').any(|part| part == "Sink")
    };
    factories.filter(is_ours).collect()
}

#[test]
fn all_sinks_have_the_properties_of_the_base_class_with_its_defaults() {
    init();
    let class = glib::Class::<gst_base::BaseSink>::from_type(gst_base::BaseSink::static_type());
    let all = class.unwrap().list_properties().to_vec();
    let is_own = |spec: &glib::ParamSpec| spec.owner_type() == gst_base::BaseSink::static_type();
    let of_base_class: Vec<_> = all.into_iter().filter(is_own).collect();
    let mut compared = 0;
    for factory in sinks() {
        let name = factory.name();
        if HAND_ON.contains(&name.as_str()) {
            continue;
        }
        let element = factory.create().build().unwrap();
        let expected = expected(&name, &of_base_class);
        let own = element.list_properties();
        let shared = own.iter().filter(|spec| expected.contains_key(spec.name()));
        assert_eq!(described(shared), expected, "{name}");
        for spec in own.iter().filter(|s| expected.contains_key(s.name())) {
            let value = element.property_value(spec.name());
            let default = spec.default_value();
            assert_eq!(format!("{value:?}"), format!("{default:?}"), "{name}");
        }
        compared += 1;
    }
    assert_eq!(
        compared, 8,
        "ts-appsink, ts-filesink, ts-rtpsink, ts-s3sink, ts-splitfilesink, ts-tcp*sink, ts-udpsink"
    );
}
