//! `ts-rtcpmanager`: reports that other implementations accept, for many sessions on one thread.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;
use rtcp_types::{Compound, Packet};

/// A bandwidth at which reports leave every 0.2 s or so (RFC 3550, section 6.2: 360 divided by kbit/s, in seconds). With more
/// frequent reports, a busy machine could stay silent for five intervals, and the member would be forgotten.
const OFTEN: &str = "bandwidth=1800000 reduced-minimum=true";

fn rtp(ssrc: u32, number: u32) -> gst::Buffer {
    let mut packet = vec![0x80, 0];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number * 160).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0x55; 160]);
    gst::Buffer::from_slice(packet)
}

fn sequence(buffer: &gst::BufferRef) -> u16 {
    let bytes = bytes(buffer);
    u16::from_be_bytes([bytes[2], bytes[3]])
}

/// An element that is stopped when the test ends, also on failure. Otherwise GLib would abort the process when a playing element
/// is dropped, and hide the failure.
struct Manager(gst::Element);

impl std::ops::Deref for Manager {
    type Target = gst::Element;

    fn deref(&self) -> &gst::Element {
        &self.0
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let element = self.0.clone();
        let stop = move || element.set_state(gst::State::Null).map(|_| ());
        if std::thread::panicking() {
            std::thread::spawn(stop);
        } else {
            let _ = within("stopping a manager", stop);
        }
    }
}

fn manager(properties: &str) -> Manager {
    init();
    Manager(gst::parse::launch(&format!("ts-rtcpmanager {OFTEN} {properties}")).unwrap())
}

fn request(manager: &gst::Element, name: &str) -> gst::Pad {
    let pad = manager.request_pad_simple(name);
    pad.unwrap_or_else(|| panic!("no {name}"))
}

/// Returns a pad that pushes into `sink`, in a stream of these caps.
fn feed(sink: &gst::Pad, caps: &str) -> gst::Pad {
    let feed = gst::Pad::builder(gst::PadDirection::Src).build();
    feed.set_active(true).unwrap();
    feed.link(sink).unwrap();
    assert!(feed.push_event(gst::event::StreamStart::new("a-stream")));
    let caps = caps.parse::<gst::Caps>().unwrap();
    assert!(feed.push_event(gst::event::Caps::new(&caps)));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    assert!(feed.push_event(gst::event::Segment::new(&segment)));
    feed
}

const RTP: &str = "application/x-rtp, media=audio, clock-rate=8000, payload=0";

fn play(element: &gst::Element) {
    element
        .set_clock(Some(&gst::SystemClock::obtain()))
        .unwrap();
    set_state(element, gst::State::Playing);
}

fn session(manager: &gst::Element, id: u32) -> gst::Structure {
    let stats = manager.property::<gst::Structure>("stats");
    stats.get(format!("session-{id}")).unwrap()
}

fn source(session: &gst::Structure, ssrc: u32) -> Option<gst::Structure> {
    let sources = session.get::<gst::Array>("sources").unwrap();
    sources
        .iter()
        .map(|source| source.get::<gst::Structure>().unwrap())
        .find(|source| source.get::<u32>("ssrc") == Ok(ssrc))
}

/// Contents of the reports of one side.
#[derive(Debug, Default, Clone)]
struct Said {
    sender_packets: Option<u32>,
    lost: Option<u32>,
    cnames: HashSet<String>,
    bye: bool,
}

fn read(said: &mut Said, bytes: &[u8], about: u32) {
    for part in Compound::parse(bytes).expect("a compound") {
        match part.expect("a packet") {
            Packet::Sr(report) => {
                said.sender_packets = Some(report.packet_count());
                let mut blocks = report.report_blocks();
                said.lost = (blocks.find(|b| b.ssrc() == about))
                    .map(|b| b.cumulative_lost())
                    .or(said.lost);
            }
            Packet::Rr(report) => {
                let mut blocks = report.report_blocks();
                said.lost = (blocks.find(|b| b.ssrc() == about))
                    .map(|b| b.cumulative_lost())
                    .or(said.lost);
            }
            Packet::Sdes(sdes) => {
                for item in sdes
                    .chunks()
                    .flat_map(|chunk| chunk.items().collect::<Vec<_>>())
                {
                    said.cnames
                        .insert(item.get_value_string().unwrap().to_string());
                }
            }
            Packet::Bye(_) => said.bye = true,
            _ => {}
        }
    }
}

/// Records the RTCP output of a pad.
fn listen(pad: &gst::Pad, about: u32) -> Arc<Mutex<Said>> {
    let said = Arc::<Mutex<Said>>::default();
    let of_probe = said.clone();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &info.data {
            read(&mut of_probe.lock().unwrap(), &bytes(buffer), about);
        }
        gst::PadProbeReturn::Ok
    });
    said
}

#[test]
fn two_managers_exchange_sent_and_lost_counts() {
    let [a, b] = ["cname=alice", "cname=bob"]
        .map(|cname| manager(&format!("{cname} context={}", context())));
    let into_a = request(&a, "send_rtp_sink_3");
    let into_b = request(&b, "recv_rtp_sink_0");
    let out_of_a = a.static_pad("send_rtp_src_3").unwrap();
    out_of_a.link(&into_b).unwrap();
    let [rtcp_a, rtcp_b] = [
        request(&a, "send_rtcp_src_3"),
        request(&b, "send_rtcp_src_0"),
    ];
    rtcp_a.link(&request(&b, "recv_rtcp_sink_0")).unwrap();
    rtcp_b.link(&request(&a, "recv_rtcp_sink_3")).unwrap();
    let (_drain, heard) = drain(&b.static_pad("recv_rtp_src_0").unwrap());
    let (said_a, said_b) = (listen(&rtcp_a, 7), listen(&rtcp_b, 7));
    // Each tenth packet is lost on the way.
    let passed = AtomicU32::new(0);
    out_of_a.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        match passed.fetch_add(1, Ordering::SeqCst) {
            5 | 15 | 25 | 35 | 45 => gst::PadProbeReturn::Drop,
            _ => gst::PadProbeReturn::Ok,
        }
    });
    play(&b);
    play(&a);
    let feed = feed(&into_a, RTP);
    for number in 0..50 {
        feed.push(rtp(7, number)).unwrap();
    }
    let expected: Vec<u16> = (0..50).filter(|number| number % 10 != 5).collect();
    let heard_all: Vec<u16> = expected
        .iter()
        .map(|_| sequence(&next_buffer(&heard)))
        .collect();
    assert_eq!(heard_all, expected);
    // Reports omit a source that has stopped sending (RFC 3550, section 6.4).
    let mut next = 50;
    let mut go_on = || {
        feed.push(rtp(7, next)).unwrap();
        next += 1;
    };
    eventually("the sender's count", || {
        go_on();
        said_a.lock().unwrap().sender_packets >= Some(50)
    });
    eventually("the receiver's loss", || {
        go_on();
        said_b.lock().unwrap().lost == Some(5)
    });
    eventually("the sender's view of it", || {
        go_on();
        let session = session(&a, 3);
        let sources = session.get::<gst::Array>("sources").unwrap();
        sources.iter().any(|source| {
            let source = source.get::<gst::Structure>().unwrap();
            source.get::<i64>("rb-packets-lost") == Ok(5)
                && source.get::<&str>("cname") == Ok("bob")
        })
    });
    eventually("the sender's name", || {
        source(&session(&b, 0), 7).is_some_and(|source| source.get::<&str>("cname") == Ok("alice"))
    });
    assert!(said_a.lock().unwrap().cnames.contains("alice"));
    assert!(!said_a.lock().unwrap().bye && !said_b.lock().unwrap().bye);
    // RFC 3550, section 6.6: a leaving member sends a BYE.
    assert!(feed.push_event(gst::event::Eos::new()));
    eventually("BYE", || said_a.lock().unwrap().bye);
    // No more data arrives, so the other manager leaves as well.
    eventually("BYE from the receiver", || said_b.lock().unwrap().bye);
    for element in [a, b] {
        set_state(&*element, gst::State::Null);
    }
}

#[test]
fn stock_session_interoperates() {
    let pipe = Pipe::parse(&format!(
        "rtpsession name=s rtcp-min-interval=200000000 bandwidth=1800000 \
         ts-rtcpmanager name=m {OFTEN} context={} \
         audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! mulawenc ! rtppcmupay ssrc=7 ! s.send_rtp_sink \
         s.send_rtp_src ! identity name=loss ! m.recv_rtp_sink_0 \
         m.recv_rtp_src_0 ! fakesink async=false sync=false \
         s.send_rtcp_src ! m.recv_rtcp_sink_0",
        context()
    ));
    let passed = AtomicU32::new(0);
    pipe.pad("loss", "src")
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            match passed.fetch_add(1, Ordering::SeqCst) {
                10 | 12 | 14 => gst::PadProbeReturn::Drop,
                _ => gst::PadProbeReturn::Ok,
            }
        });
    pipe.play();
    let (stock, ours) = (pipe.get("s"), pipe.get("m"));
    // The loop is linked by hand, because a bin does not accept loops.
    let back = feed(&request(&stock, "recv_rtcp_sink"), "application/x-rtcp");
    let (drain, reports) = drain(&request(&ours, "send_rtcp_src_0"));
    drain.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &info.data {
            let _ = back.push(buffer.clone());
        }
        gst::PadProbeReturn::Ok
    });
    eventually("the stock session reads our report", || {
        let stats = stock.property::<gst::Structure>("stats");
        let sources = stats.get::<gst::glib::ValueArray>("source-stats").unwrap();
        sources.iter().any(|source| {
            let source = source.get::<gst::Structure>().unwrap();
            source.get::<bool>("have-rb") == Ok(true)
                && source.get::<i32>("rb-packetslost") == Ok(3)
        })
    });
    eventually("its report is read", || {
        let session = session(&ours, 0);
        source(&session, 7).is_some_and(|source| {
            source.get::<&str>("cname").is_ok() && source.get::<bool>("is-sender") == Ok(true)
        })
    });
    assert_eq!(session(&ours, 0).get::<u64>("rtcp-errors"), Ok(0));
    pipe.assert_no_error();
    drop(reports);
}

#[test]
fn a_hundred_sessions_report_from_one_thread() {
    let name = context();
    let manager = manager(&format!("context={name}"));
    let threads = Arc::<Mutex<HashSet<String>>>::default();
    let mut drains = Vec::new();
    for id in 0..100 {
        request(&manager, &format!("recv_rtp_sink_{id}"));
        let pad = request(&manager, &format!("send_rtcp_src_{id}"));
        let of_probe = threads.clone();
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let name = std::thread::current().name().unwrap_or("-").to_owned();
            of_probe.lock().unwrap().insert(name);
            gst::PadProbeReturn::Ok
        });
        drains.push(drain(&pad));
    }
    play(&manager);
    for (_, seen) in &drains {
        let bytes = bytes(&next_buffer(seen));
        assert!(Compound::parse(&bytes).unwrap().all(|part| part.is_ok()));
    }
    assert_eq!(
        *threads.lock().unwrap(),
        HashSet::from([format!("ts:{name}")])
    );
    assert_eq!(stat(&manager, "sessions"), 100);
    set_state(&*manager, gst::State::Null);
}

#[test]
fn pads_have_the_number_of_their_session_and_are_removed_with_it() {
    let manager = manager("");
    assert_eq!(
        request(&manager, "recv_rtp_sink_%u").name(),
        "recv_rtp_sink_0"
    );
    assert_eq!(
        request(&manager, "recv_rtp_sink_%u").name(),
        "recv_rtp_sink_1"
    );
    assert_eq!(
        request(&manager, "send_rtcp_src_7").name(),
        "send_rtcp_src_7"
    );
    let pad = manager.static_pad("recv_rtp_sink_1").unwrap();
    assert!(manager.static_pad("recv_rtp_src_1").is_some());
    play(&manager);
    manager.release_request_pad(&pad);
    assert!(manager.static_pad("recv_rtp_src_1").is_none());
    assert_eq!(stat(&manager, "sessions"), 2);
    assert_eq!(
        request(&manager, "recv_rtp_sink_%u").name(),
        "recv_rtp_sink_1"
    );
    // This session starts and stops while the element plays.
    let rtcp = request(&manager, "send_rtcp_src_0");
    let (_drain, seen) = drain(&rtcp);
    assert!(Compound::parse(&bytes(&next_buffer(&seen))).is_ok());
    manager.release_request_pad(&rtcp);
    assert_eq!(stat(&manager, "sessions"), 3);
    let rtcp = request(&manager, "send_rtcp_src_0");
    let (_drain, seen) = drain(&rtcp);
    assert!(Compound::parse(&bytes(&next_buffer(&seen))).is_ok());
    set_state(&*manager, gst::State::Null);
}

#[test]
fn packets_refused_by_the_session_are_dropped() {
    let manager = manager(&format!("context={}", context()));
    let sending = request(&manager, "send_rtp_sink_0");
    let receiving = request(&manager, "recv_rtp_sink_0");
    let (_out, _sent) = drain(&manager.static_pad("send_rtp_src_0").unwrap());
    let (_in, heard) = drain(&manager.static_pad("recv_rtp_src_0").unwrap());
    let (_rtcp, reports) = drain(&request(&manager, "send_rtcp_src_0"));
    let rtcp = request(&manager, "recv_rtcp_sink_0");
    play(&manager);
    let sender = feed(&sending, RTP);
    let (told, collisions) = channel();
    sender.add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
        if let Some(gst::PadProbeData::Event(event)) = &info.data
            && let Some(structure) = event.structure()
        {
            let _ = told.send((
                structure.name().to_string(),
                structure.get::<u32>("ssrc").ok(),
            ));
        }
        gst::PadProbeReturn::Ok
    });
    let receiver = feed(&receiving, RTP);
    let garbage = feed(&rtcp, "application/x-rtcp");
    sender.push(rtp(7, 0)).unwrap();
    // The reports have the SSRC of the sent stream.
    next_buffer(&reports);
    eventually("the number", || {
        session(&manager, 0).get::<u32>("ssrc") == Ok(7)
    });
    for number in 0..2 {
        receiver.push(rtp(8, number)).unwrap();
    }
    // Neither other data nor another sender with our own SSRC is accepted (RFC 3550, section 8.2).
    receiver.push(gst::Buffer::from_slice([0u8; 20])).unwrap();
    receiver.push(rtp(7, 0)).unwrap();
    receiver.push(rtp(8, 2)).unwrap();
    for number in 0..3 {
        let buffer = next_buffer(&heard);
        assert_eq!((sequence(&buffer), bytes(&buffer)[11]), (number, 8));
    }
    // The stock session sends this event, which makes payloaders choose another SSRC.
    let expected = ("GstRTPCollision".to_owned(), Some(7));
    assert_eq!(collisions.recv_timeout(DEADLINE), Ok(expected));
    for bytes in [vec![], vec![0x80], vec![0xff; 40], vec![0; 2000]] {
        garbage.push(gst::Buffer::from_slice(bytes)).unwrap();
    }
    let session = session(&manager, 0);
    assert_eq!(session.get::<u64>("malformed"), Ok(1));
    assert_eq!(session.get::<u64>("refused"), Ok(1));
    assert_eq!(session.get::<u64>("collisions"), Ok(1));
    assert_eq!(session.get::<u64>("rtcp-errors"), Ok(4));
    set_state(&*manager, gst::State::Null);
}

#[test]
fn events_and_queries_pass_only_through_the_rtp_pads_of_their_session() {
    let manager = manager("");
    let [one, two] = [0, 1].map(|id| request(&manager, &format!("recv_rtp_sink_{id}")));
    let [of_one, of_two] =
        [0, 1].map(|id| drain(&manager.static_pad(&format!("recv_rtp_src_{id}")).unwrap()));
    play(&manager);
    let feed_one = feed(&one, RTP);
    let _feed_two = feed(&two, RTP);
    next_event(&of_one.1, gst::EventType::Segment);
    next_event(&of_two.1, gst::EventType::Segment);
    feed_one.add_probe(gst::PadProbeType::QUERY_UPSTREAM, |_, info| {
        if let Some(gst::PadProbeData::Query(query)) = &mut info.data
            && let gst::QueryViewMut::Latency(latency) = query.view_mut()
        {
            latency.set(true, 5 * gst::ClockTime::MSECOND, None);
            return gst::PadProbeReturn::Handled;
        }
        gst::PadProbeReturn::Ok
    });
    let mut query = gst::query::Latency::new();
    assert!(of_one.0.peer_query(&mut query));
    assert_eq!(query.result(), (true, 5 * gst::ClockTime::MSECOND, None));
    assert!(feed_one.push_event(gst::event::Eos::new()));
    next_event(&of_one.1, gst::EventType::Eos);
    assert!(of_two.1.try_recv().is_err());
    set_state(&*manager, gst::State::Null);
}

#[test]
fn stop_sends_a_bye_and_start_joins_again() {
    let manager = manager(&format!("context={}", context()));
    let rtcp = request(&manager, "send_rtcp_src_0");
    let (_drain, seen) = drain(&rtcp);
    let said = listen(&rtcp, 0);
    for _ in 0..2 {
        play(&manager);
        // A member that has sent nothing sends no BYE (RFC 3550, section 6.3.7).
        next_buffer(&seen);
        assert!(!said.lock().unwrap().bye);
        for state in [gst::State::Paused, gst::State::Playing, gst::State::Ready] {
            set_state(&*manager, state);
        }
        assert!(said.lock().unwrap().bye);
        *said.lock().unwrap() = Said::default();
        while seen.try_recv().is_ok() {}
        set_state(&*manager, gst::State::Null);
    }
}

#[test]
fn reports_continue_after_downstream_rejected_some() {
    use gst::FlowError::{Eos, Error, Flushing, NotLinked};
    let manager = manager(&format!("context={}", context()));
    let rtcp = request(&manager, "send_rtcp_src_0");
    let (drain, seen) = drain(&rtcp);
    // Pads of elements that start later than this one give these answers, and so do others.
    let answers = Mutex::new(vec![Eos, Error, NotLinked, Flushing]);
    let refused = Arc::new(AtomicU32::new(0));
    let of_probe = refused.clone();
    drain.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let Some(error) = answers.lock().unwrap().pop() else {
            return gst::PadProbeReturn::Ok;
        };
        of_probe.fetch_add(1, Ordering::SeqCst);
        info.flow_res = Err(error);
        info.data = None;
        gst::PadProbeReturn::Handled
    });
    play(&manager);
    assert!(Compound::parse(&bytes(&next_buffer(&seen))).is_ok());
    assert_eq!(refused.load(Ordering::SeqCst), 4);
}

#[test]
fn the_manager_restarts_and_stops_while_a_report_is_stuck() {
    use gst::State::{Null, Paused, Playing, Ready};
    let element = manager("");
    for state in [
        Ready, Null, Ready, Playing, Null, Ready, Paused, Ready, Playing, Paused, Null,
    ] {
        set_state(&*element, state);
    }
    let name = context();
    let element = manager(&format!("context={name}"));
    let rtcp = request(&element, "send_rtcp_src_0");
    let (_drain, _seen) = drain(&rtcp);
    let gate = gate(&rtcp);
    play(&element);
    gate.wait_held();
    let stopped = element.0.clone();
    let stopping = std::thread::spawn(move || stopped.set_state(Null));
    gate.open();
    within("stopping", move || stopping.join().unwrap()).unwrap();
    assert!(
        threadbare_runtime::contexts()
            .iter()
            .all(|context| context.name != name)
    );
}
