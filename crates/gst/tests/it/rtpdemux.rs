//! `ts-rtpdemux`: a pad for each stream, spread over contexts, with a bounded number of pads.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gio::prelude::*;
use gst::prelude::*;

const PACKET: u32 = 160;

fn rtp(ssrc: u32, payload_type: u8, number: u32) -> gst::Buffer {
    let mut packet = vec![0x80, payload_type];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number * PACKET).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend(number.to_be_bytes());
    gst::Buffer::from_slice(packet)
}

fn ssrc(buffer: &gst::BufferRef) -> u32 {
    u32::from_be_bytes(bytes(buffer)[8..12].try_into().unwrap())
}

fn counted(buffer: &gst::BufferRef) -> u32 {
    u32::from_be_bytes(bytes(buffer)[12..16].try_into().unwrap())
}

/// The output of one pad.
struct Outlet {
    /// The peer of the element's pad.
    drain: gst::Pad,
    seen: Receiver<Seen>,
    threads: Arc<Mutex<HashSet<String>>>,
    answer: Arc<Mutex<Result<gst::FlowSuccess, gst::FlowError>>>,
}

type Outlets = Arc<Mutex<BTreeMap<String, Outlet>>>;

struct Bench {
    rig: Rig,
    outlets: Outlets,
    pads_most: Arc<AtomicUsize>,
}

impl Bench {
    fn new(properties: &str) -> Bench {
        let line = format!("ts-rtpdemux {properties}");
        let rig = Rig::without_stream(&line, gst::State::Ready);
        let outlets = Outlets::default();
        let pads_most = Arc::new(AtomicUsize::new(0));
        let (of_signal, most) = (outlets.clone(), pads_most.clone());
        rig.element.connect_pad_added(move |element, pad| {
            if pad.direction() == gst::PadDirection::Src {
                most.fetch_max(element.num_src_pads().into(), Ordering::SeqCst);
                let outlet = Outlet::link(pad);
                of_signal.lock().unwrap().insert(pad.name().into(), outlet);
            }
        });
        rig.element.set_state(gst::State::Playing).unwrap();
        let bench = Bench {
            rig,
            outlets,
            pads_most,
        };
        bench.open();
        bench
    }

    fn open(&self) {
        let feed = &self.rig.feed;
        assert!(feed.push_event(gst::event::StreamStart::new("upstream")));
        let caps = "application/x-rtp, media=audio, clock-rate=8000";
        let caps = caps.parse::<gst::Caps>().unwrap();
        assert!(feed.push_event(gst::event::Caps::new(&caps)));
        self.rig.open_segment();
    }

    fn push(&self, buffer: gst::Buffer) {
        assert_eq!(self.rig.push(buffer), Ok(gst::FlowSuccess::Ok));
    }

    fn outlet(&self, name: &str) -> Outlet {
        self.outlets
            .lock()
            .unwrap()
            .remove(name)
            .unwrap_or_else(|| panic!("no pad {name}"))
    }

    fn pads(&self) -> usize {
        self.rig.element.num_src_pads().into()
    }
}

impl Outlet {
    fn link(pad: &gst::Pad) -> Outlet {
        let (send, seen) = channel();
        let of_events = send.clone();
        let threads = Arc::<Mutex<HashSet<String>>>::default();
        let of_chain = threads.clone();
        let answer = Arc::new(Mutex::new(Ok(gst::FlowSuccess::Ok)));
        let answers = answer.clone();
        let any = gst::PadTemplate::new(
            "sink",
            gst::PadDirection::Sink,
            gst::PadPresence::Always,
            &gst::Caps::new_any(),
        );
        let drain = gst::Pad::builder_from_template(&any.unwrap())
            .chain_function(move |_, _, buffer| {
                let name = std::thread::current().name().unwrap_or("-").to_owned();
                of_chain.lock().unwrap().insert(name);
                let _ = send.send(Seen::Buffer(buffer));
                *answers.lock().unwrap()
            })
            .event_function(move |_, _, event| {
                let _ = of_events.send(Seen::Event(event));
                true
            })
            .build();
        drain.set_active(true).unwrap();
        pad.link(&drain).unwrap();
        Outlet {
            drain,
            seen,
            threads,
            answer,
        }
    }

    /// Returns the numbers of the next packets.
    fn numbers(&self, count: u32) -> Vec<u32> {
        (0..count)
            .map(|_| counted(&next_buffer(&self.seen)))
            .collect()
    }
}

#[test]
fn fifty_streams_over_two_contexts_get_their_packets_in_order() {
    let contexts = [context(), context()];
    let bench = Bench::new(&format!("contexts={},{}", contexts[0], contexts[1]));
    for number in 0..40 {
        for stream in 1..=50 {
            bench.push(rtp(stream, 0, number));
        }
    }
    assert_eq!(bench.pads(), 50);
    let mut threads = BTreeMap::<String, u32>::new();
    let mut ids = HashSet::new();
    for stream in 1..=50u32 {
        let outlet = bench.outlet(&format!("src_{stream}"));
        let start = next_event(&outlet.seen, gst::EventType::StreamStart);
        let gst::EventView::StreamStart(start) = start.view() else {
            unreachable!()
        };
        assert!(ids.insert(start.stream_id().to_owned()));
        let caps = next_event(&outlet.seen, gst::EventType::Caps);
        let gst::EventView::Caps(caps) = caps.view() else {
            unreachable!()
        };
        // As written by the stock rtpssrcdemux.
        assert_eq!(
            caps.caps().structure(0).unwrap().get::<u32>("ssrc"),
            Ok(stream),
            "{caps:?}"
        );
        next_event(&outlet.seen, gst::EventType::Segment);
        for number in 0..40 {
            let buffer = next_buffer(&outlet.seen);
            assert_eq!((ssrc(&buffer), counted(&buffer)), (stream, number));
        }
        let of_it = outlet.threads.lock().unwrap();
        assert_eq!(of_it.len(), 1, "{of_it:?}");
        *threads
            .entry(of_it.iter().next().unwrap().clone())
            .or_default() += 1;
    }
    let expected = contexts.map(|name| (format!("ts:{name}"), 25));
    assert_eq!(threads, BTreeMap::from(expected));
}

#[test]
fn contexts_may_be_given_by_number_or_name() {
    let bench = Bench::new("name=numbered contexts=3");
    let mut threads = HashSet::new();
    for stream in 1..=6 {
        bench.push(rtp(stream, 0, 0));
        bench.push(rtp(stream, 0, 1));
        let outlet = bench.outlet(&format!("src_{stream}"));
        assert_eq!(outlet.numbers(2), [0, 1]);
        threads.extend(outlet.threads.lock().unwrap().iter().cloned());
    }
    let expected = [0, 1, 2].map(|i| format!("ts:numbered-{i}"));
    assert_eq!(threads, HashSet::from(expected));
}

#[test]
fn without_contexts_the_upstream_thread_pushes() {
    for contexts in ["", "contexts=0"] {
        let bench = Bench::new(contexts);
        bench.push(rtp(7, 0, 0));
        bench.push(rtp(7, 0, 1));
        let outlet = bench.outlet("src_7");
        assert_eq!(outlet.numbers(2), [0, 1]);
        let own = std::thread::current().name().unwrap().to_owned();
        assert_eq!(*outlet.threads.lock().unwrap(), HashSet::from([own]));
    }
}

/// A sender of packets with ever-changing SSRCs must not affect the other streams.
#[test]
fn a_flood_of_strangers_makes_no_pads() {
    let own = context();
    for contexts in [String::new(), format!("contexts={own}")] {
        let bench = Bench::new(&format!("max-streams=8 {contexts}"));
        for number in 0..2 {
            bench.push(rtp(7, 0, number));
        }
        for stranger in 0..10_000u32 {
            bench.push(rtp(stranger.wrapping_mul(2_654_435_761) | 1 << 31, 0, 0));
            if stranger % 1000 == 0 {
                bench.push(rtp(7, 0, 2 + stranger / 1000));
            }
        }
        assert_eq!(bench.pads(), 1);
        assert_eq!(
            bench.outlet("src_7").numbers(12),
            (0..12).collect::<Vec<_>>()
        );
        assert_eq!(stat(&bench.rig.element, "evicted"), 0);
    }
}

#[test]
fn there_are_never_more_pads_than_allowed() {
    let own = context();
    for contexts in [String::new(), format!("contexts={own}")] {
        let bench = Bench::new(&format!("max-streams=8 probation=1 {contexts}"));
        let removed = Arc::new(AtomicUsize::new(0));
        let of_signal = removed.clone();
        bench
            .rig
            .element
            .connect("removed-ssrc-pad", false, move |_| {
                of_signal.fetch_add(1, Ordering::SeqCst);
                None
            });
        let added = Arc::new(AtomicUsize::new(0));
        let of_signal = added.clone();
        bench
            .rig
            .element
            .connect("new-ssrc-pad", false, move |values| {
                let (ssrc, pad) = (values[1].get::<u32>(), values[2].get::<gst::Pad>());
                assert_eq!(pad.unwrap().name(), format!("src_{}", ssrc.unwrap()));
                of_signal.fetch_add(1, Ordering::SeqCst);
                None
            });
        for stranger in 0..10_000u32 {
            bench.push(rtp(stranger.wrapping_mul(2_654_435_761) | 1 << 31, 0, 0));
            bench
                .outlets
                .lock()
                .unwrap()
                .retain(|_, outlet| outlet.drain.is_linked());
        }
        assert!(bench.pads() <= 8 && bench.pads_most.load(Ordering::SeqCst) <= 8);
        assert_eq!(stat(&bench.rig.element, "evicted"), 10_000 - 8);
        eventually("the evicted stream is gone", || {
            let all = added.load(Ordering::SeqCst);
            all > 8 && removed.load(Ordering::SeqCst) == all - bench.pads()
        });
        assert!(bench.outlets.lock().unwrap().len() <= 16);
    }
}

#[test]
fn silent_stream_ends_and_its_pad_is_removed() {
    let own = context();
    for contexts in [String::new(), format!("contexts={own}")] {
        let bench = Bench::new(&format!("idle-timeout=50 {contexts}"));
        let (send, removed) = channel();
        bench.rig.element.connect_pad_removed(move |_, pad| {
            let _ = send.send(pad.name());
        });
        let round = || {
            bench.push(rtp(7, 0, 0));
            bench.push(rtp(7, 0, 1));
            let outlet = bench.outlet("src_7");
            assert_eq!(outlet.numbers(2), [0, 1]);
            // Afterwards, no more packets arrive.
            next_event(&outlet.seen, gst::EventType::Eos);
            assert_eq!(removed.recv_timeout(DEADLINE).unwrap(), "src_7");
        };
        round();
        assert_eq!(stat(&bench.rig.element, "expired"), 1);
        // The stream may return.
        eventually("its place is free", || {
            stat(&bench.rig.element, "streams") == 0
        });
        round();
    }
}

#[test]
fn a_failing_branch_does_not_affect_other_branches() {
    let own = context();
    for contexts in [String::new(), format!("contexts={own}")] {
        let bench = Bench::new(&contexts);
        for stream in [1, 2, 3] {
            bench.push(rtp(stream, 0, 0));
            bench.push(rtp(stream, 0, 1));
        }
        let [good, bad, alone] = [1, 2, 3].map(|n| bench.outlet(&format!("src_{n}")));
        assert_eq!(bad.numbers(2), [0, 1]);
        *bad.answer.lock().unwrap() = Err(gst::FlowError::Error);
        let pad = bench.rig.element.static_pad("src_3").unwrap();
        pad.unlink(&alone.drain).unwrap();
        for number in 2..20 {
            for stream in [1, 2, 3] {
                bench.push(rtp(stream, 0, number));
            }
        }
        assert_eq!(good.numbers(20), (0..20).collect::<Vec<_>>());
        eventually("dropped packets are counted", || {
            bench.push(rtp(2, 0, 21));
            stat(&bench.rig.element, "dropped") > 0
        });
    }
}

#[test]
fn streams_are_separated_by_ssrc() {
    let bench = Bench::new("by=sender");
    let from = |port: u16, number: u32| {
        let mut buffer = rtp(7, 0, number);
        let address = SocketAddr::new("127.0.0.1".parse::<IpAddr>().unwrap(), port);
        let address = gio::InetSocketAddress::from(address);
        gst_net::NetAddressMeta::add(buffer.get_mut().unwrap(), &address);
        buffer
    };
    for number in 0..3 {
        bench.push(from(5000, number));
        bench.push(from(6000, 10 + number));
    }
    // The receiver of these packets did not attach the sender's address.
    bench.push(rtp(7, 0, 0));
    assert_eq!(bench.outlet("src_0").numbers(3), [0, 1, 2]);
    assert_eq!(bench.outlet("src_1").numbers(3), [10, 11, 12]);
    assert_eq!(stat(&bench.rig.element, "unmatched"), 1);
}

#[test]
fn streams_are_separated_by_payload_type() {
    let bench = Bench::new("by=payload-type probation=1");
    for number in 0..3 {
        bench.push(rtp(7, 0, number));
        bench.push(rtp(7, 101, 10 + number));
    }
    assert_eq!(bench.outlet("src_0").numbers(3), [0, 1, 2]);
    let events = bench.outlet("src_101");
    let caps = next_event(&events.seen, gst::EventType::Caps);
    let gst::EventView::Caps(caps) = caps.view() else {
        unreachable!()
    };
    let payload = caps.caps().structure(0).unwrap().get::<i32>("payload");
    assert_eq!(payload, Ok(101));
    assert_eq!(events.numbers(3), [10, 11, 12]);
}

#[test]
fn events_reach_every_stream_in_order() {
    let own = context();
    for contexts in [String::new(), format!("contexts={own}")] {
        let bench = Bench::new(&format!("probation=1 {contexts}"));
        for stream in [1, 2] {
            bench.push(rtp(stream, 0, 0));
        }
        let caps = "application/x-rtp, media=audio, clock-rate=16000";
        let caps = gst::event::Caps::new(&caps.parse::<gst::Caps>().unwrap());
        assert!(bench.rig.feed.push_event(caps));
        for stream in [1, 2] {
            bench.push(rtp(stream, 0, 1));
        }
        for stream in [1, 2] {
            let outlet = bench.outlet(&format!("src_{stream}"));
            assert_eq!(outlet.numbers(1), [0]);
            let caps = next_event(&outlet.seen, gst::EventType::Caps);
            let gst::EventView::Caps(caps) = caps.view() else {
                unreachable!()
            };
            let caps = caps.caps().structure(0).unwrap();
            assert_eq!(caps.get::<i32>("clock-rate"), Ok(16_000));
            assert_eq!(caps.get::<u32>("ssrc"), Ok(stream));
            assert_eq!(outlet.numbers(1), [1]);
            bench
                .outlets
                .lock()
                .unwrap()
                .insert(format!("src_{stream}"), outlet);
        }
        let feed = &bench.rig.feed;
        assert!(feed.push_event(gst::event::FlushStart::new()));
        assert!(feed.push_event(gst::event::FlushStop::new(true)));
        bench.rig.open_segment();
        bench.push(rtp(1, 0, 2));
        assert!(feed.push_event(gst::event::Eos::new()));
        let [one, two] = [1, 2].map(|n| bench.outlet(&format!("src_{n}")));
        for kind in [gst::EventType::FlushStart, gst::EventType::FlushStop] {
            next_event(&one.seen, kind);
            next_event(&two.seen, kind);
        }
        assert_eq!(one.numbers(1), [2]);
        next_event(&one.seen, gst::EventType::Eos);
        next_event(&two.seen, gst::EventType::Eos);
    }
}

/// A ts-queue without a context property follows the stream's context.
#[test]
fn downstream_elements_follow_the_context() {
    let (source, own) = (context(), context());
    for (contexts, expected) in [("".to_owned(), &source), (format!("contexts={own}"), &own)] {
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={source} caps=application/x-rtp,clock-rate=8000 ! ts-rtpdemux name=demux probation=1 {contexts} demux.src_7 ! ts-queue name=q ! fakesink name=sink sync=false async=false"
        ));
        let (send, threads) = channel();
        pipe.pad("sink", "sink")
            .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                let _ = send.send(std::thread::current().name().map(str::to_owned));
                gst::PadProbeReturn::Ok
            });
        pipe.play();
        let packet = bytes(&rtp(7, 0, 0));
        socket().send_to(&packet, target(&pipe.get("src"))).unwrap();
        let thread = threads.recv_timeout(DEADLINE).expect("nothing came");
        assert_eq!(thread, Some(format!("ts:{expected}")));
        // No other context was announced in between.
        let mut announced = Vec::new();
        pipe.pad("q", "sink").sticky_events_foreach(|event| {
            let structure = event.structure();
            announced.extend(structure.and_then(|s| s.get::<String>("threadbare-context").ok()));
            std::ops::ControlFlow::Continue(gst::EventForeachAction::Keep)
        });
        assert_eq!(announced, std::slice::from_ref(expected));
    }
}

#[test]
fn a_stream_that_is_cleared_ends_and_may_come_back() {
    let bench = Bench::new(&format!("probation=1 contexts={}", context()));
    for round in 0..3 {
        bench.push(rtp(7, 0, round));
        let outlet = bench.outlet("src_7");
        assert_eq!(outlet.numbers(1), [round]);
        bench.rig.element.emit_by_name::<()>("clear-ssrc", &[&7u32]);
        next_event(&outlet.seen, gst::EventType::Eos);
        eventually("its place is free", || {
            stat(&bench.rig.element, "streams") == 0
        });
    }
    bench.rig.element.emit_by_name::<()>("clear-ssrc", &[&8u32]);
}

#[test]
fn packet_that_is_not_rtp_is_counted() {
    let bench = Bench::new("");
    for bytes in [
        vec![0x80],
        vec![0; 20],
        [&[0x80, 200][..], &[0; 26]].concat(),
    ] {
        bench.push(gst::Buffer::from_slice(bytes));
    }
    assert_eq!(bench.pads(), 0);
    assert_eq!(stat(&bench.rig.element, "unmatched"), 3);
}

#[test]
fn the_latency_grows_by_the_wait_of_the_contexts() {
    for (contexts, added) in [("", 0), ("contexts=latency-demux context-wait=30", 30)] {
        let bench = Bench::new(&format!("probation=1 {contexts}"));
        let peer = bench.rig.feed.clone();
        peer.add_probe(gst::PadProbeType::QUERY_UPSTREAM, |_, info| {
            if let Some(gst::PadProbeData::Query(query)) = &mut info.data
                && let gst::QueryViewMut::Latency(latency) = query.view_mut()
            {
                latency.set(true, 5 * gst::ClockTime::MSECOND, None);
                return gst::PadProbeReturn::Handled;
            }
            gst::PadProbeReturn::Ok
        });
        bench.push(rtp(7, 0, 0));
        let mut query = gst::query::Latency::new();
        let outlet = bench.outlet("src_7");
        assert!(outlet.drain.peer_query(&mut query));
        let expected = (5 + added) * gst::ClockTime::MSECOND;
        assert_eq!(query.result(), (true, expected, None));
    }
}

#[test]
fn the_element_works_after_each_restart() {
    use gst::State::{Null, Paused, Playing, Ready};
    let own = context();
    for contexts in [String::new(), format!("contexts={own} idle-timeout=1000")] {
        let bench = Bench::new(&format!("probation=1 {contexts}"));
        for _ in 0..2 {
            for stream in [1, 2, 3] {
                bench.push(rtp(stream, 0, 4));
                assert_eq!(bench.outlet(&format!("src_{stream}")).numbers(1), [4]);
            }
            bench.rig.to(Paused);
            bench.rig.to(Playing);
            bench.rig.to(Ready);
            assert_eq!(bench.pads(), 0);
            for state in [Null, Ready, Null, Ready, Playing] {
                bench.rig.to(state);
            }
            bench.open();
        }
    }
    assert!(
        threadbare_runtime::contexts()
            .iter()
            .all(|context| context.name != own)
    );
}

#[test]
fn the_element_stops_while_a_branch_is_stuck_and_its_pusher_waits() {
    let bench = Bench::new(&format!("probation=1 contexts={}", context()));
    bench.push(rtp(7, 0, 0));
    let gate = gate(&bench.rig.element.static_pad("src_7").unwrap());
    bench.push(rtp(7, 0, 1));
    gate.wait_held();
    // An ordinary thread waits for room without limit, so this push waits until the element is stopped.
    let feed = bench.rig.feed.clone();
    let pusher = until_it_waits(move || {
        let mut numbers = (0..1000).cycle();
        numbers.find_map(|number| feed.push(rtp(7, 0, number)).err())
    });
    let element = bench.rig.element.clone();
    let stopping = std::thread::spawn(move || element.set_state(gst::State::Ready));
    gate.open();
    within("stopping", move || stopping.join().unwrap()).unwrap();
    within("the pusher", move || pusher.join().unwrap());
}
