//! Inspection of contexts: their elements, and those that blocked them.

use std::io::Read;
use std::os::unix::net::UnixStream;

use crate::common::*;
use gst::prelude::*;
use gstthreadbare::inspect;
use serde_json::Value;

fn context_of(all: &Value, name: &str) -> Option<Value> {
    let found = all.as_array()?.iter().find(|c| c["name"] == name)?;
    Some(found.clone())
}

/// Returns a branch whose third element sleeps for 60 ms with each buffer, in slices of 5 ms.
fn slow_branch(name: &str) -> Pipe {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=fast-{name} context={name} context-wait=5 ! identity name=quick-{name} ! identity name=sleepy-{name} sleep-time=60000 \
         ! fakesink sync=false async=false"
    ));
    pipe.play();
    let source = pipe.get(&format!("fast-{name}"));
    assert!(source.emit_by_name::<bool>("push-buffer", &[&numbered(0)]));
    pipe
}

/// Returns the elements that blocked the context for the length of the sleep, oldest first. Shorter delays come from the machine.
fn blockers(name: &str) -> Vec<String> {
    let context = context_of(&inspect::contexts_json(), name).expect("the context runs");
    let blocked = context["threads"][0]["blocked"].as_array().unwrap().clone();
    let by = blocked.iter().filter(|b| b["ms"].as_u64().unwrap() >= 59);
    by.map(|b| b["by"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn element_that_blocks_a_context_is_named() {
    init();
    let began = std::time::Instant::now();
    let name = context();
    let pipe = slow_branch(&name);
    // The source of the branch is always known.
    let source = format!("{}/fast-{name}", pipe.0.name());
    eventually("it is noted", || blockers(&name).contains(&source));
    let all = inspect::contexts_json();
    let seen = context_of(&all, &name).unwrap();
    assert_eq!(seen["wait_ms"], 5);
    let elements = seen["threads"][0]["elements"].as_array().unwrap();
    assert!(elements.iter().any(|e| *e == source.as_str()), "{seen}");

    // With the tracer, the element that blocks is known, too.
    let kind = gst::glib::Type::from_name("ThreadbareTracer").unwrap();
    let _tracer = gst::glib::Object::with_type(kind);
    let name = context();
    let pipe = slow_branch(&name);
    let sleepy = format!("{}/sleepy-{name}", pipe.0.name());
    eventually("the element is noted", || blockers(&name).contains(&sleepy));
    // When the second blockage is recorded, everything about the first one has been recorded. The log has each of them once, and
    // nothing else.
    let source = pipe.get(&format!("fast-{name}"));
    assert!(source.emit_by_name::<bool>("push-buffer", &[&numbered(1)]));
    eventually("the second is noted", || blockers(&name).len() >= 2);
    assert_eq!(blockers(&name), [&*sleepy, &*sleepy]);
    // No blockage began before this test.
    let context = context_of(&inspect::contexts_json(), &name).unwrap();
    for blocked in context["threads"][0]["blocked"].as_array().unwrap() {
        let ago_ms = u128::from(blocked["ago_ms"].as_u64().unwrap());
        assert!(ago_ms <= began.elapsed().as_millis(), "{blocked}");
    }

    // Other programs may also query it.
    let mut socket = UnixStream::connect(inspect::socket_path(std::process::id())).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let told: Value = serde_json::from_str(&text).unwrap();
    assert!(context_of(&told, &name).is_some(), "{text}");
}

/// Agents on a context have names that users know: pipeline and element, not a Rust type.
#[test]
fn users_of_a_context_are_named_by_pipeline_and_element() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=in address=127.0.0.1 port=0 context={name} context-wait=5 caps=application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU \
           ! ts-rtpdemux name=demux contexts={name} idle-timeout=1000 \
         audiotestsrc is-live=true ! ts-tcpserversink name=serve port=0 context={name}"
    ));
    pipe.play();
    let pipeline = pipe.0.name();
    let expected = ["in", "in (RTCP)", "demux", "serve (new clients)"]
        .map(|element| format!("{pipeline}/{element}"));
    let mut elements: Vec<String> = Vec::new();
    eventually("all live there", || {
        let context = context_of(&inspect::contexts_json(), &name);
        let listed = context.map(|context| context["threads"][0]["elements"].clone());
        elements = serde_json::from_value(listed.unwrap_or_default()).unwrap_or_default();
        expected.iter().all(|one| elements.contains(one))
    });
    assert!(
        !elements.iter().any(|one| one.contains("::")),
        "{elements:?}"
    );
}

#[test]
fn punctual_context_reports_no_blockage() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={name} context-wait=500 ! fakesink name=out sync=false async=false"
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    for i in 0..10 {
        pipe.get("in")
            .emit_by_name::<bool>("push-buffer", &[&numbered(i)]);
    }
    for i in 0..10 {
        assert_eq!(number(&next_buffer(&seen)), i);
    }
    assert_eq!(blockers(&name), Vec::<String>::new());
}
