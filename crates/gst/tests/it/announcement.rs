//! A branch's context is announced inside STREAM_START, so that downstream sees the same events as from stock sources.

use std::io::Write;
use std::net::TcpListener;

use crate::common::*;
use gst::prelude::*;

/// A source, and the action that makes it push.
struct Case {
    line: String,
    feed: fn(&Pipe),
    _peer: Option<Pipe>,
}

fn case(line: &str, feed: fn(&Pipe)) -> Case {
    Case {
        line: format!("{line} name=src context={} context-wait=1", context()),
        feed,
        _peer: None,
    }
}

fn give(pipe: &Pipe) {
    let buffer = numbered(1);
    assert!((pipe.get("src")).emit_by_name::<bool>("push-buffer", &[&buffer]));
}

fn send(pipe: &Pipe) {
    socket()
        .send_to(&packet(1), target(&pipe.get("src")))
        .unwrap();
}

fn send_rtp(pipe: &Pipe) {
    let socket = socket();
    for n in 0..10 {
        let packet = [&[0x80, 0, 0, n, 0, 0, 0, n * 16, 0, 0, 0, 7], &[0; 16][..]].concat();
        socket
            .send_to(&packet, rtp_address(&pipe.get("src")))
            .unwrap();
    }
}

fn connect(pipe: &Pipe) {
    let port = pipe.get("src").property::<i32>("current-port");
    let address = ("127.0.0.1", u16::try_from(port).unwrap());
    std::net::TcpStream::connect(address)
        .unwrap()
        .write_all(b"something")
        .unwrap();
}

fn press(pipe: &Pipe) {
    let structure = gst::Structure::builder("dtmf-event")
        .field("type", 1i32)
        .field("number", 5i32)
        .field("volume", 10i32)
        .field("start", true)
        .build();
    pipe.get("src")
        .send_event(gst::event::CustomUpstream::new(structure));
}

fn cases() -> Vec<Case> {
    let nothing: fn(&Pipe) = |_| ();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.write_all(b"something");
    });
    let mut cases = vec![
        case("ts-appsrc caps=application/x-test", give),
        case(
            "ts-udpsrc address=127.0.0.1 port=0 caps=application/x-test",
            send,
        ),
        case("ts-rtpsrc address=127.0.0.1 port=0 latency=0", send_rtp),
        case(
            &format!("ts-tcpclientsrc host=127.0.0.1 port={port} caps=application/x-test"),
            nothing,
        ),
        case(
            "ts-tcpserversrc host=127.0.0.1 port=0 caps=application/x-test",
            connect,
        ),
        case("ts-audiotestsrc", nothing),
        case(
            "ts-tonesrc caps=audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved",
            nothing,
        ),
        case("ts-rtpdtmfsrc", press),
    ];
    for kind in ["proxy", "inter"] {
        let name = context();
        let peer = Pipe::parse(&format!(
            "ts-audiotestsrc context={} context-wait=1 ! ts-{kind}sink {kind}-context={name}",
            context()
        ));
        peer.play();
        cases.push(Case {
            _peer: Some(peer),
            ..case(&format!("ts-{kind}src {kind}-context={name}"), nothing)
        });
    }
    cases
}

/// Types of the events before the first buffer.
fn opening(line: &str, seen: &std::sync::mpsc::Receiver<Seen>) -> Vec<gst::EventType> {
    let mut events = Vec::new();
    loop {
        match seen.recv_timeout(DEADLINE) {
            Ok(Seen::Event(event)) => events.push(event.type_()),
            Ok(Seen::Buffer(_)) => return events,
            Err(_) => panic!("{line}: no buffer after {events:?}"),
        }
    }
}

/// The stock sources have this order: no element may see another event between these.
#[test]
fn every_source_starts_with_only_stream_start_caps_and_segment() {
    use gst::EventType::{Caps, Segment, StreamStart};
    for case in cases() {
        let pipe = Pipe::parse(&format!(
            "{} ! ts-queue name=q ! fakesink sync=false async=false",
            case.line
        ));
        let pads = [pipe.pad("src", "src"), pipe.pad("q", "src")];
        let seen = pads.each_ref().map(watch);
        pipe.play();
        (case.feed)(&pipe);
        for (pad, seen) in pads.iter().zip(&seen) {
            let events = opening(&case.line, seen);
            assert_eq!(
                events,
                [StreamStart, Caps, Segment],
                "{}: {}",
                case.line,
                pad.name()
            );
        }
    }
}

fn threads_of(pad: &gst::Pad) -> std::sync::mpsc::Receiver<String> {
    let (send, threads) = std::sync::mpsc::channel();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let _ = send.send(std::thread::current().name().unwrap_or_default().to_owned());
        gst::PadProbeReturn::Ok
    });
    threads
}

/// A queue finds the context of its branch through stock elements with their own threads, through other queues, and after an
/// element that starts its own streams.
#[test]
fn queue_finds_the_context_of_its_branch() {
    for between in [
        "queue",
        "ts-queue",
        "queue ! ts-queue",
        "identity name=anew",
    ] {
        let name = context();
        let pipe = Pipe::parse(&format!(
            "ts-appsrc name=src context={name} ! {between} ! ts-queue name=q ! fakesink sync=false async=false"
        ));
        if let Some(anew) = pipe.0.by_name("anew") {
            let pad = anew.static_pad("src").unwrap();
            pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, |_, info| {
                if let Some(gst::PadProbeData::Event(event)) = &mut info.data
                    && event.type_() == gst::EventType::StreamStart
                {
                    *event = gst::event::StreamStart::new("anew");
                }
                gst::PadProbeReturn::Ok
            });
        }
        let threads = threads_of(&pipe.pad("q", "src"));
        pipe.play();
        give(&pipe);
        let thread = threads.recv_timeout(DEADLINE).expect("nothing came");
        assert_eq!(thread, format!("ts:{name}"), "{between}");
    }
}
