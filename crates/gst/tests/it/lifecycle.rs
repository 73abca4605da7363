//! Behaviour common to all elements: the interface that pipelines use, and the way from NULL to PLAYING and back.

use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::glib;
use gst::prelude::*;

const ELEMENTS: [&str; 3] = ["ts-udpsrc", "ts-udpsink", "ts-queue"];

/// Property, default value in GStreamer's notation, and whether it can be set.
type Entry = (&'static str, &'static str, bool);
type Table = &'static [Entry];

const CTX: Table = &[
    ("context", "", true),
    ("context-wait", "0", true),
    ("context-threads", "-1", true),
    ("context-affinity", "", true),
    ("context-priority", "0", true),
];

const UDPSRC: Table = &[
    ("address", "0.0.0.0", true),
    ("port", "5004", true),
    ("reuse", "true", true),
    ("caps", "NULL", true),
    ("mtu", "1492", true),
    ("retrieve-sender-address", "true", true),
    ("loop", "true", true),
    ("buffer-size", "0", true),
    ("multicast-iface", "NULL", true),
    ("socket", "NULL", true),
    ("used-socket", "NULL", false),
    // GStreamer 1.22's udpsrc does not have this property.
    ("multicast-source", "NULL", true),
];

/// Further properties of the stock element, with their defaults.
const UDPSRC_STOCK: Table = &[
    ("uri", "udp://0.0.0.0:5004", true),
    ("timeout", "0", true),
    ("skip-first-bytes", "0", true),
    ("auto-multicast", "true", true),
    ("close-socket", "true", true),
    ("socket-timestamp", "Disable additional timestamps", true),
    ("do-timestamp", "true", true),
];

const UDPSINK: Table = &[
    ("sync", "true", true),
    ("bind-address", "NULL", true),
    ("bind-port", "0", true),
    ("bind-address-v6", "NULL", true),
    ("bind-port-v6", "0", true),
    ("reuse", "true", true),
    ("socket", "NULL", true),
    ("socket-v6", "NULL", true),
    ("used-socket", "NULL", false),
    ("used-socket-v6", "NULL", false),
    ("auto-multicast", "true", true),
    ("loop", "true", true),
    ("ttl", "64", true),
    ("ttl-mc", "1", true),
    ("qos-dscp", "-1", true),
    ("clients", "127.0.0.1:5004", true),
    ("multicast-iface", "NULL", true),
];

/// Further properties of the stock element, with their defaults.
const UDPSINK_STOCK: Table = &[
    ("host", "127.0.0.1", true),
    ("port", "5004", true),
    ("send-duplicates", "true", true),
    ("buffer-size", "0", true),
    ("bytes-served", "0", false),
    ("bytes-to-serve", "0", false),
    ("force-ipv4", "false", true),
    ("close-socket", "true", true),
    ("ts-offset", "0", true),
    ("max-lateness", "-1", true),
    ("async", "true", true),
];

const QUEUE: Table = &[
    ("leaky", "Not at all: the pusher waits.", true),
    ("max-size-buffers", "200", true),
    ("max-size-bytes", "1048576", true),
    ("max-size-time", "1000000000", true),
    ("current-level-buffers", "0", false),
    ("current-level-bytes", "0", false),
    ("current-level-time", "0", false),
];

/// Further properties of the stock element, with their defaults.
const QUEUE_STOCK: Table = &[
    ("min-threshold-buffers", "0", true),
    ("min-threshold-bytes", "0", true),
    ("min-threshold-time", "0", true),
    ("flush-on-eos", "false", true),
    ("silent", "false", true),
];

/// Further properties of the stock element of the same kind.
fn stock_table(factory: &str) -> (&'static str, Table) {
    match factory {
        "ts-udpsrc" => ("udpsrc", UDPSRC_STOCK),
        "ts-udpsink" => ("udpsink", UDPSINK_STOCK),
        _ => ("queue", QUEUE_STOCK),
    }
}

fn tables() -> [(&'static str, Vec<Entry>); 3] {
    [
        ("ts-udpsrc", [UDPSRC, UDPSRC_STOCK].concat()),
        ("ts-udpsink", [UDPSINK, UDPSINK_STOCK].concat()),
        ("ts-queue", [QUEUE, QUEUE_STOCK].concat()),
    ]
}

/// Returns a value as the tables write it. Enums are given by number; [`enums_have_the_usual_nicks`] tests their nicks.
fn written(value: &glib::Value) -> String {
    if let Ok(text) = value.get::<Option<String>>() {
        return text.unwrap_or_else(|| "NULL".to_owned());
    }
    let is_null = matches!(value.get::<Option<glib::Object>>(), Ok(None))
        || matches!(value.get::<Option<gst::Caps>>(), Ok(None));
    if is_null {
        return "NULL".to_owned();
    }
    value.serialize().unwrap().to_string()
}

#[test]
fn properties_and_defaults_stay_compatible_with_existing_pipelines() {
    for (factory, table) in tables() {
        let element = make(factory);
        for (name, default, writable) in CTX.iter().chain(&table) {
            let spec = element
                .find_property(name)
                .unwrap_or_else(|| panic!("{factory}: no {name}"));
            let flags = spec.flags();
            assert!(
                flags.contains(glib::ParamFlags::READABLE),
                "{factory} {name}"
            );
            assert_eq!(
                flags.contains(glib::ParamFlags::WRITABLE),
                *writable,
                "{factory} {name}"
            );
            let value = element.property_value(name);
            if !value.type_().is_a(glib::Type::ENUM) {
                assert_eq!(written(&value), *default, "{factory} {name}");
            }
            // The default that introspection reports for a property is the value that a new element has.
            if !matches!(*name, "used-socket" | "used-socket-v6") {
                let told = spec.default_value();
                let differs = value.compare(told).is_some_and(|order| order.is_ne());
                assert!(!differs, "{factory} {name}: {value:?} but told {told:?}");
            }
            // A property can be set to its own value.
            if *writable {
                element.set_property_from_value(name, &value);
                assert_eq!(
                    written(&element.property_value(name)),
                    written(&value),
                    "{factory} {name}"
                );
            }
        }
        if factory != "ts-queue" {
            assert!(element.property::<gst::Structure>("stats").n_fields() > 0);
        }
    }
}

#[test]
fn enums_have_the_usual_nicks() {
    for (factory, property, nicks) in [
        ("ts-queue", "leaky", &["no", "upstream", "downstream"][..]),
        (
            "ts-udpsrc",
            "socket-timestamp",
            &["disabled", "realtime"][..],
        ),
    ] {
        let element = make(factory);
        let class = glib::EnumClass::with_type(element.property_type(property).unwrap()).unwrap();
        for (i, nick) in nicks.iter().enumerate() {
            assert_eq!(class.value(i as i32).unwrap().nick(), *nick);
            element.set_property_from_str(property, nick);
        }
        element.set_property_from_str(property, nicks[0]);
        assert!(
            make(factory)
                .find_property(property)
                .unwrap()
                .default_value()
                .type_()
                .is_a(glib::Type::ENUM)
        );
    }
}

#[test]
fn common_behaviour_equals_the_stock_elements() {
    /// Intended differences from the stock element: (element, property).
    const OTHERWISE: &[(&str, &str)] = &[
        // Our default is a numeric address instead of a name, as existing pipelines expect.
        ("ts-udpsink", "clients"),
        ("ts-udpsink", "host"),
        // Our default is that of existing pipelines.
        ("ts-queue", "max-size-bytes"),
    ];
    for (factory, table) in tables() {
        let (stock, stock_table) = stock_table(factory);
        let (ours, theirs) = (make(factory), make(stock));
        for (name, _, _) in table {
            let Some(spec) = theirs.find_property(name) else {
                let is_claimed = stock_table.iter().any(|(claimed, ..)| *claimed == name);
                assert!(!is_claimed, "{stock} has no {name}");
                continue;
            };
            let ours = ours.find_property(name).unwrap();
            if ours.value_type().is_a(glib::Type::ENUM) {
                continue;
            }
            assert_eq!(ours.value_type(), spec.value_type(), "{factory} {name}");
            let both = glib::ParamFlags::READWRITE;
            assert_eq!(ours.flags() & both, spec.flags() & both, "{factory} {name}");
            if !OTHERWISE.contains(&(factory, name)) {
                assert_eq!(
                    written(ours.default_value()),
                    // Reads the value from a new element, because its class may report other defaults for inherited properties.
                    written(&theirs.property_value(name)),
                    "{factory} {name}"
                );
            }
        }
    }
}

#[test]
fn signals_and_actions_exist() {
    for (factory, signals) in [
        ("ts-queue", &["overrun", "underrun", "running"][..]),
        (
            "ts-udpsink",
            &[
                "add",
                "remove",
                "clear",
                "get-stats",
                "client-added",
                "client-removed",
            ][..],
        ),
    ] {
        let type_ = make(factory).type_();
        for signal in signals {
            let id = glib::subclass::SignalId::lookup(signal, type_)
                .unwrap_or_else(|| panic!("{factory}: no {signal}"));
            let is_action = matches!(*signal, "add" | "remove" | "clear" | "get-stats");
            assert_eq!(
                id.query().flags().contains(glib::SignalFlags::ACTION),
                is_action,
                "{signal}"
            );
        }
    }
}

#[test]
fn types_are_our_own_and_metadata_is_complete() {
    for name in ELEMENTS {
        let element = make(name);
        assert!(element.type_().name().starts_with("Threadbare"));
        let factory = element.factory().unwrap();
        assert_eq!(factory.rank(), gst::Rank::NONE);
        for key in ["long-name", "klass", "description", "author"] {
            assert!(
                factory.metadata(key).is_some_and(|text| !text.is_empty()),
                "{name} {key}"
            );
        }
        for template in factory.static_pad_templates() {
            assert!(template.caps().is_any());
            assert_eq!(template.presence(), gst::PadPresence::Always);
        }
    }
}

#[test]
fn existing_pipelines_run_unchanged() {
    let sink = socket();
    let port = sink.local_addr().unwrap().port();
    for line in [
        "ts-udpsrc port=0 context=ctx1 context-wait=20 ! queue ! fakesink async=false",
        "ts-udpsrc address=127.0.0.1 port=0 context=ctx2 context-wait=20 reuse=false mtu=1500 retrieve-sender-address=false loop=false buffer-size=100000 caps=\"application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0\" ! ts-queue context=ctx2 context-wait=20 max-size-buffers=0 max-size-bytes=0 max-size-time=0 leaky=downstream ! ts-udpsink context=ctx2 context-wait=20 sync=false clients=127.0.0.1:{port}",
        "audiotestsrc is-live=true num-buffers=3 ! mulawenc ! rtppcmupay ! ts-queue context=ctx3 ! ts-udpsink context=ctx3 sync=true clients=\"127.0.0.1:{port},[::1]:{port}\" ttl=64 ttl-mc=1 qos-dscp=-1 bind-port=0 auto-multicast=true",
        "audiotestsrc num-buffers=3 ! ts-queue max-size-time=0 ! ts-udpsink host=127.0.0.1 port={port} sync=false",
        "fakesrc num-buffers=3 ! ts-queue leaky=no min-threshold-buffers=2 silent=true ! fakesink",
    ] {
        let line = line.replace("{port}", &port.to_string());
        let pipe = Pipe::parse(&line);
        pipe.play();
        if !line.contains("ts-udpsrc") {
            pipe.expect(gst::MessageType::Eos);
        }
        pipe.assert_no_error();
    }
}

#[test]
fn every_element_starts_and_stops_twice() {
    use gst::State::{Null, Paused, Playing, Ready};
    for line in [
        "ts-udpsrc address=127.0.0.1 port=0",
        "ts-udpsink",
        "ts-udpsink async=false",
        "ts-queue",
        "ts-queue context=updown",
        "ts-rtpjitterbuffer",
        "ts-rtpjitterbuffer context=updown",
        "ts-rtpdemux",
        "ts-rtpdemux contexts=updown idle-timeout=100",
        "ts-rtcpmanager",
        "ts-tonesrc",
        "ts-audiotestsrc context=updown",
        "ts-rtpdtmfsrc",
        "ts-clocksync",
        "ts-input-selector",
        "fallbackswitch",
        "togglerecord",
        "fallbacksrc uri=file:///no-such-file",
        "fallbacksrc uri=file:///no-such-file context=updown",
        "ts-blocking-adapter",
    ] {
        // The element is alone, with nothing linked.
        let rig = Rig::without_stream(line, Null);
        for state in [
            Ready, Null, Ready, Playing, Null, Ready, Null, Ready, Playing, Null,
        ] {
            rig.to(state);
        }
        for state in [Ready, Paused, Ready, Paused, Playing, Paused, Ready, Null] {
            rig.to(state);
        }
    }
    // Test the same in a pipeline that has data each time.
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-queue ! ts-queue context={} ! ts-udpsink clients={}",
        context(),
        context(),
        receiver.local_addr().unwrap()
    ));
    for round in 0..2 {
        for state in [Ready, Null, Ready] {
            pipe.to(state);
        }
        pipe.play();
        let sender = socket();
        for i in 0..20 {
            sender
                .send_to(&packet(100 * round + i), target(&pipe.get("src")))
                .unwrap();
        }
        for i in 0..20 {
            assert_eq!(received(&receiver), packet(100 * round + i));
        }
        pipe.to(Paused);
        pipe.play();
        sender
            .send_to(&packet(7), target(&pipe.get("src")))
            .unwrap();
        assert_eq!(received(&receiver), packet(7));
        pipe.to(Null);
    }
    pipe.assert_no_error();
}

/// Returns a pipeline in which a pad downstream blocks a push of the elements in `line`, with the block and the pad.
fn stuck(line: &str) -> (Pipe, gst::PadProbeId, gst::Pad) {
    let pipe = Pipe::parse(line);
    let pad = pipe.pad("last", "src");
    let (send, blocked) = std::sync::mpsc::channel();
    let id = pad.add_probe(
        gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST,
        move |_, _| {
            let _ = send.send(());
            gst::PadProbeReturn::Ok
        },
    );
    pipe.play();
    if pipe.0.by_name("src").is_some() {
        socket()
            .send_to(&packet(1), target(&pipe.get("src")))
            .unwrap();
    }
    blocked.recv_timeout(DEADLINE).expect("nothing was pushed");
    (pipe, id.unwrap(), pad)
}

fn stuck_lines() -> [String; 3] {
    [
        format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! identity name=last ! fakesink async=false",
            context()
        ),
        format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-queue context={} ! identity name=last ! fakesink async=false",
            context(),
            context()
        ),
        format!(
            "fakesrc is-live=true ! ts-queue context={} max-size-buffers=1 ! identity name=last ! fakesink async=false",
            context()
        ),
    ]
}

#[test]
fn a_stuck_push_does_not_block_a_stop() {
    for line in stuck_lines() {
        let (pipe, ..) = stuck(&line);
        set_state(&pipe.0, gst::State::Null);
    }
}

#[test]
fn element_pauses_and_resumes_with_a_stuck_push() {
    for line in stuck_lines() {
        let (pipe, id, pad) = stuck(&line);
        pipe.to(gst::State::Paused);
        pipe.play();
        pad.remove_probe(id);
        let seen = watch(&pad);
        if pipe.0.by_name("src").is_some() {
            socket()
                .send_to(&packet(2), target(&pipe.get("src")))
                .unwrap();
        }
        next_buffer(&seen);
        pipe.assert_no_error();
    }
}

#[test]
fn after_an_error_elements_stop_and_work_again() {
    let receiver = socket();
    let taken = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 reuse=false port={} context={} ! ts-queue ! ts-udpsink clients={}",
        taken.local_addr().unwrap().port(),
        context(),
        receiver.local_addr().unwrap()
    ));
    for _ in 0..2 {
        assert!(pipe.0.set_state(gst::State::Playing).is_err());
        pipe.message(&[gst::MessageType::Error]);
        pipe.to(gst::State::Null);
    }
    drop(taken);
    pipe.play();
    socket()
        .send_to(&packet(1), target(&pipe.get("src")))
        .unwrap();
    assert_eq!(received(&receiver), packet(1));
    // An error occurs while the element runs.
    let queue_src = pipe
        .0
        .iterate_elements()
        .find(|e| e.name().contains("queue"))
        .unwrap();
    let pad = queue_src.static_pad("src").unwrap();
    let peer = pad.peer().unwrap();
    pad.unlink(&peer).unwrap();
    let sender = socket();
    let address = target(&pipe.get("src"));
    for i in 0..3 {
        sender.send_to(&packet(i), address).unwrap();
    }
    pipe.message(&[gst::MessageType::Error]);
    pipe.to(gst::State::Null);
    pad.link(&peer).unwrap();
    pipe.play();
    sender
        .send_to(&packet(9), target(&pipe.get("src")))
        .unwrap();
    assert_eq!(received(&receiver), packet(9));
}

#[test]
fn property_notify_handlers_may_call_the_element() {
    // gst-launch -v reads a property in the handler of its notification.
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-queue name=q ! ts-udpsink name=sink async=false",
        context()
    ));
    let seen = Arc::new(Mutex::new(0));
    for name in ["src", "q", "sink"] {
        let seen = seen.clone();
        pipe.get(name).connect_notify(None, move |element, spec| {
            let _ = element.property_value(spec.name());
            if spec.flags().contains(glib::ParamFlags::WRITABLE) && spec.name() == "caps" {
                let _ = element.property::<i32>("port");
            }
            *seen.lock().unwrap() += 1;
        });
    }
    let pipeline = pipe.0.clone();
    within("a start with notifies", move || {
        pipeline.set_state(gst::State::Playing)
    })
    .unwrap();
    pipe.get("src")
        .set_property("caps", gst::Caps::new_empty_simple("application/x-a"));
    pipe.get("q").set_property("max-size-buffers", 3u32);
    pipe.get("sink")
        .set_property("clients", "127.0.0.1:7,127.0.0.1:8");
    assert!(*seen.lock().unwrap() >= 4);
}

#[test]
fn elements_may_be_started_and_stopped_from_a_context_thread() {
    // Applications do this in `pad-added`. It must neither panic nor hang.
    for same in [true, false] {
        let name = context();
        let other = if same { name.clone() } else { context() };
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! fakesink async=false sync=false"
        ));
        let (send, done) = std::sync::mpsc::channel();
        pipe.pad("src", "src").add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let second = gst::parse::launch(&format!(
                "ts-udpsrc address=127.0.0.1 port=0 context={other} ! ts-queue ! fakesink async=false"
            ))
            .unwrap();
            let up = second.set_state(gst::State::Playing).is_ok();
            let down = second.set_state(gst::State::Null).is_ok();
            let _ = send.send((up, down));
            gst::PadProbeReturn::Ok
        });
        pipe.play();
        for i in 0..3 {
            socket()
                .send_to(&packet(i), target(&pipe.get("src")))
                .unwrap();
            assert_eq!(done.recv_timeout(DEADLINE), Ok((true, true)));
        }
    }
}

#[test]
fn the_context_ends_with_its_last_user() {
    let name = context();
    let running = || {
        threadbare_runtime::contexts()
            .iter()
            .any(|context| context.name == name)
    };
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! ts-queue ! fakesink async=false"
    ));
    assert!(!running());
    pipe.play();
    assert!(running());
    pipe.to(gst::State::Null);
    assert!(!running(), "something keeps the context");
}

/// The first element that starts decides the settings of a context. An application that reads the bus is told if the settings of
/// another element differ.
#[test]
fn an_element_with_a_conflicting_wait_posts_a_warning() {
    init();
    for (first, second, warns) in [
        ("context-wait=20", "context-wait=20", false),
        ("context-wait=20", "", false),
        ("", "context-wait=20", true),
        ("context-wait=20", "context-threads=2", true),
    ] {
        let name = context();
        let [first, second] = [first, second].map(|properties| {
            let line = format!("ts-udpsrc port=0 context={name} {properties}");
            let element = gst::parse::launch(&line).unwrap();
            let bus = gst::Bus::new();
            element.set_bus(Some(&bus));
            element.set_state(gst::State::Paused).unwrap();
            (element, bus)
        });
        let warned = |bus: &gst::Bus| bus.pop_filtered(&[gst::MessageType::Warning]);
        assert!(warned(&first.1).is_none());
        let warning = warned(&second.1);
        assert_eq!(warning.is_some(), warns, "{warning:?}");
        if let Some(warning) = warning {
            assert!(text(&warning).contains(&name), "{}", text(&warning));
        }
        for (element, _) in [first, second] {
            element.set_state(gst::State::Null).unwrap();
        }
    }
}
