//! `context-affinity` and `context-priority`: what elements with a context tell of them.

mod common;

use common::*;
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
fn the_elements_are_all_that_have_a_context() {
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
fn what_cannot_be_is_refused_with_name_value_and_what_is_allowed() {
    let property = "context-affinity";
    for element in ELEMENTS {
        for (value, parts) in [
            ("0,x", ["'0,x'", "0,2-3"]),
            ("1023", ["affinity 1023", "allowed: 0"]),
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

/// The kernel's list of the CPUs that a thread of this process may use.
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
fn the_contexts_thread_runs_where_it_may() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc context={name} context-affinity=0 ! fakesink async=false"
    ));
    pipe.play();
    assert_eq!(cpus_of(&format!("ts:{name}")).as_deref(), Some("0"));
}
