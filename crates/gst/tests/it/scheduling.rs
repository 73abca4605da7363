//! `context-affinity` and `context-priority`: how elements with a context report them.

use crate::common::*;
use gst::prelude::*;

/// All elements with a context: those that always start it, those that start it if it is named, and those that never do.
const ELEMENTS: &[&str] = &[
    "awss3src uri=s3://us-east-1/bucket/key",
    "fallbacksrc uri=file:///no-such-file",
    "fallbackswitch",
    "reqwesthttpsrc location=http://127.0.0.1:9/",
    "ts-appsrc",
    "ts-audiotestsrc",
    "ts-filesink",
    "ts-filesrc",
    "ts-httpsrc location=http://127.0.0.1:9/",
    "ts-input-selector",
    "ts-intersrc inter-context=nobody",
    "ts-proxysrc proxy-context=nobody",
    "ts-queue",
    "ts-rtcpmanager",
    "ts-rtpdtmfsrc",
    "ts-rtpjitterbuffer",
    "ts-rtpsink host=127.0.0.1 port=9",
    "ts-rtpsrc address=127.0.0.1 port=0",
    "ts-s3src uri=s3://us-east-1/bucket/key",
    "ts-splitfilesink",
    "ts-tcpclientsink",
    "ts-tcpclientsrc",
    "ts-tcpserversink port=0",
    "ts-tcpserversrc port=0",
    "ts-tonesrc",
    "ts-udpsink",
    "ts-udpsrc address=127.0.0.1 port=0",
];

#[test]
fn the_list_has_all_elements_with_a_context() {
    init();
    let registry = gst::Registry::get();
    let features = registry.features_by_plugin("threadbare");
    let factories = features
        .into_iter()
        .filter_map(|f| f.downcast::<gst::ElementFactory>().ok());
    let is_of_context =
        |factory: &gst::ElementFactory| make(&factory.name()).has_property("context-affinity");
    let mut all: Vec<_> = factories
        .filter(is_of_context)
        .map(|f| f.name().to_string())
        .collect();
    all.sort();
    let named = |line: &&str| line.split(' ').next().unwrap().to_owned();
    assert_eq!(all, ELEMENTS.iter().map(named).collect::<Vec<_>>());
}

#[test]
fn invalid_setting_is_refused_with_name_value_and_range() {
    let property = "context-affinity";
    for element in ELEMENTS {
        for (value, parts) in [
            ("0,x", ["'0,x'", "0,2-3"]),
            ("1023", ["affinity 1023", "expected CPUs of 0"]),
        ] {
            for name in [String::new(), format!("context={}", context())] {
                let line = format!("{element} {name} {property}={value}");
                let pipe = Pipe::parse(&line);
                assert!(pipe.0.set_state(gst::State::Paused).is_err(), "{line}");
                let told = text(&pipe.expect(gst::MessageType::Error));
                for part in [property].iter().chain(&parts) {
                    assert!(told.contains(part), "{line}: {told}");
                }
            }
        }
    }
}

/// Returns the kernel's list of the CPUs that a thread of this process may use.
fn cpus_of(thread: &str) -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.into_iter().find_map(|task| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().to_owned())
        };
        (field("Name:")? == thread)
            .then(|| field("Cpus_allowed_list:"))
            .flatten()
    })
}

#[test]
fn context_thread_runs_on_the_permitted_cpus() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc context={name} context-affinity=0 ! fakesink async=false"
    ));
    pipe.play();
    assert_eq!(cpus_of(&format!("ts:{name}")).as_deref(), Some("0"));
}

/// docs/contexts.md says that such a pipeline never starts. The warning gives the reason.
#[test]
fn stock_sinks_that_hold_one_thread_are_named() {
    init();
    for (is_live, state) in [(false, gst::State::Paused), (true, gst::State::Playing)] {
        name_the_sinks(is_live, state);
    }
}

fn name_the_sinks(is_live: bool, state: gst::State) {
    let source = format!("ts-audiotestsrc is-live={is_live} samples-per-buffer=8 context=preroll");
    for (sinks, warns) in [
        (["fakesink name=one", "fakesink name=two"], true),
        (["fakesink name=one", "identity ! fakesink name=two"], true),
        (["fakesink name=one", "queue ! fakesink name=two"], true),
        (["fakesink name=one", "ts-appsink name=two"], true),
        (["ts-appsink name=one", "ts-appsink name=two"], false),
        (
            ["queue ! fakesink name=one", "queue ! fakesink name=two"],
            true,
        ),
        (
            [
                "ts-blocking-adapter ! fakesink name=one",
                "ts-appsink name=two",
            ],
            false,
        ),
    ] {
        let line = format!("{source} ! {} {source} ! {}", sinks[0], sinks[1]);
        let pipeline = gst::parse::launch(&line).unwrap();
        let bus = pipeline.bus().unwrap();
        // This change may block, too, until the sinks release the thread.
        let starts = std::thread::spawn({
            let pipeline = pipeline.clone();
            move || pipeline.set_state(state)
        });
        let wanted = [gst::MessageType::Warning, gst::MessageType::AsyncDone];
        let message = bus
            .timed_pop_filtered(gst::ClockTime::from_seconds(30), &wanted)
            .expect("a word");
        match message.view() {
            gst::MessageView::Warning(warning) => {
                assert!(warns, "{line}");
                let said = warning.error().to_string();
                for words in ["one", "two", "'preroll'", "ts-blocking-adapter"] {
                    assert!(said.contains(words), "{words} is not in {said}");
                }
            }
            _ => assert!(!warns, "{line}"),
        }
        let bin = pipeline.downcast_ref::<gst::Bin>().unwrap();
        while !starts.is_finished() {
            for name in ["one", "two"] {
                let sink = bin.by_name(name).unwrap();
                let _ = sink.set_state(gst::State::Null);
            }
            std::thread::yield_now();
        }
        pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// The demultiplexer has no `context`. Its branch is on one of its `contexts`.
#[test]
fn a_branch_of_a_demultiplexer_starts_its_stock_sink() {
    let pipe = Pipe::parse(
        "audiotestsrc is-live=true num-buffers=10 samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! mulawenc \
         ! rtppcmupay ssrc=7 ! ts-rtpdemux name=demux contexts=2 demux.src_7 ! rtppcmudepay ! fakesink",
    );
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
}
