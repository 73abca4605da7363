//! `context-affinity` and `context-priority`: what elements with a context tell of them.

mod common;

use common::*;
use gst::prelude::*;

/// One element of each way to come to a context.
const ELEMENTS: &[&str] = &[
    "ts-udpsrc address=127.0.0.1 port=0",
    "ts-appsrc",
    "ts-rtpsrc address=127.0.0.1 port=0",
    "ts-audiotestsrc",
    "ts-intersrc inter-context=nobody",
    "ts-tcpserversink port=0",
];

#[test]
fn what_cannot_be_is_refused_with_name_value_and_what_is_allowed() {
    for element in ELEMENTS {
        for (property, value, parts) in [
            ("context-affinity", "0,x", ["'0,x'", "0,2-3"]),
            ("context-affinity", "1023", ["affinity 1023", "allowed: 0"]),
        ] {
            let sink = match element.contains("sink") {
                true => "",
                false => "! fakesink async=false",
            };
            let line = format!(
                "{element} name=it context={} {property}={value} {sink}",
                context()
            );
            let pipe = Pipe::parse(&line);
            assert!(pipe.0.set_state(gst::State::Playing).is_err(), "{line}");
            let told = text(&pipe.expect(gst::MessageType::Error));
            for part in [property].iter().chain(&parts) {
                assert!(told.contains(part), "{line}: {told}");
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
