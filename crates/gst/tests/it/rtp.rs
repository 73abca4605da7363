//! `ts-rtpsrc`, `ts-rtpsink` and `ts-rtpg711`: order, losses, sessions, latching, RTCP.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::common::*;
use gst::prelude::*;

/// Bytes of a packet with 20 ms of G.711.
const PACKET: u32 = 160;

/// Returns a packet of a sender's `number`-th 20 ms.
fn rtp(ssrc: u32, payload_type: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, payload_type];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number.wrapping_mul(PACKET)).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend((0..PACKET).map(|i| i.wrapping_add(number) as u8));
    packet
}

fn seq(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[2], packet[3]])
}

fn ssrc(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[8..12].try_into().unwrap())
}

/// Returns a source on loopback and any free ports, its output, and its address.
fn playing(properties: &str) -> (Pipe, Receiver<Seen>, SocketAddr) {
    playing_on(&context(), properties)
}

fn playing_on(context: &str, properties: &str) -> (Pipe, Receiver<Seen>, SocketAddr) {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={context} {properties} ! fakesink name=sink sync=false async=false"
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    (pipe, seen, target)
}

fn counted(element: &gst::Element, field: &str) -> u64 {
    let stats = element.property::<gst::Structure>("stats");
    stats
        .get::<u64>(field)
        .unwrap_or_else(|e| panic!("{field}: {e}"))
}

fn rtcp_counted(element: &gst::Element, field: &str) -> u64 {
    let stats = element.property::<gst::Structure>("stats");
    let rtcp = stats.get::<gst::Structure>("rtcp").unwrap();
    rtcp.get::<u64>(field)
        .unwrap_or_else(|e| panic!("{field}: {e}"))
}

fn next_lost(seen: &Receiver<Seen>) -> gst::Structure {
    loop {
        let event = next_event(seen, gst::EventType::CustomDownstream);
        if let Some(lost) = event.structure().filter(|s| s.name() == "GstRTPPacketLost") {
            return lost.to_owned();
        }
    }
}

#[test]
fn packets_are_pushed_once_in_order_with_caps_and_times() {
    let (pipe, seen, target) = playing("clock-skew=none");
    let sender = socket();
    for number in [0, 2, 1, 3, 3, 5, 4, 6] {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    let caps = next_event(&seen, gst::EventType::Caps);
    let gst::EventView::Caps(caps) = caps.view() else {
        panic!("{caps:?}")
    };
    // RFC 3551, table 4: payload type 0.
    let expected = "application/x-rtp, media=audio, payload=0, clock-rate=8000, encoding-name=PCMU";
    assert_eq!(caps.caps_owned(), expected.parse::<gst::Caps>().unwrap());
    let first = next_buffer(&seen);
    assert_eq!(bytes(&first), rtp(7, 0, 0));
    let mut last = first.pts().expect("a time");
    for number in 1..=6 {
        let buffer = next_buffer(&seen);
        assert_eq!(bytes(&buffer), rtp(7, 0, number));
        // The intervals of the timestamps are those at which the packets were sent, whenever they arrived.
        assert_eq!(buffer.pts().unwrap() - last, 20 * gst::ClockTime::MSECOND);
        last = buffer.pts().unwrap();
    }
    let source = pipe.get("src");
    eventually("the duplicate is counted", || {
        counted(&source, "num-duplicates") == 1
    });
    assert_eq!(counted(&source, "num-pushed"), 7);
}

#[test]
fn loss_is_one_event_and_a_stock_depayloader_turns_it_into_a_gap() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} latency=10 clock-skew=none ! tee name=t \
         t. ! fakesink name=sink sync=false async=false \
         t. ! rtppcmudepay ! fakesink name=decoded sync=false async=false",
        context()
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    let decoded = watch(&pipe.pad("decoded", "sink"));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let sender = socket();
    for number in [0, 1, 4, 5, 6] {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    next_buffer(&seen);
    let before = next_buffer(&seen);
    let lost = next_lost(&seen);
    assert_eq!(lost.get::<u32>("seqnum"), Ok(2));
    assert_eq!(lost.get::<u32>("packets"), Ok(2));
    assert_eq!(lost.get::<u64>("duration"), Ok(40_000_000));
    let expected = before.pts().unwrap() + 20 * gst::ClockTime::MSECOND;
    assert_eq!(lost.get::<u64>("timestamp"), Ok(expected.nseconds()));
    let after = next_buffer(&seen);
    assert_eq!(seq(&bytes(&after)), 4);
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
    let gap = next_event(&decoded, gst::EventType::Gap);
    let gst::EventView::Gap(gap) = gap.view() else {
        panic!("{gap:?}")
    };
    assert_eq!(gap.get().1, Some(40 * gst::ClockTime::MSECOND));
    assert_eq!(counted(&pipe.get("src"), "num-lost"), 2);
}

/// Returns a source without latency, its output, and its address. Its thread is blocked while it pushes the first packet, and the
/// socket collects everything that is sent until the gate opens.
fn held_at_the_first(context: &str) -> (Pipe, Receiver<Seen>, Gate, Peer) {
    let (pipe, seen, target) = playing_on(context, "latency=0");
    let gate = gate(&pipe.pad("sink", "sink"));
    let peer = Peer {
        socket: socket(),
        target,
    };
    // The first packet needs one before it, because two consecutive packets confirm a source.
    for number in [u32::MAX, 0] {
        peer.send(&rtp(7, 0, number));
    }
    gate.wait_held();
    next_buffer(&seen);
    (pipe, seen, gate, peer)
}

struct Peer {
    socket: UdpSocket,
    target: SocketAddr,
}

impl Peer {
    fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.target).unwrap();
    }
}

#[test]
fn a_packet_that_still_waits_in_the_socket_does_not_count_as_lost() {
    // The thread is blocked for longer than the deadline of packets that arrive out of order.
    let (pipe, seen, gate, peer) = held_at_the_first(&context());
    for number in [2, 1, 3] {
        peer.send(&rtp(7, 0, number));
    }
    gate.open();
    for number in 0..4 {
        assert_eq!(seq(&bytes(&next_buffer(&seen))), number);
    }
    assert_eq!(counted(&pipe.get("src"), "num-lost"), 0);
}

#[test]
fn the_socket_may_hold_more_packets_than_the_jitter_buffer() {
    // The thread is blocked for as long as two seconds of packets take. The first of these packets is missing.
    const PACKETS: u32 = 200;
    let (pipe, seen, gate, peer) = held_at_the_first(&context());
    for number in 2..PACKETS {
        peer.send(&rtp(7, 0, number));
    }
    gate.open();
    for number in std::iter::once(0).chain(2..PACKETS) {
        assert_eq!(u32::from(seq(&bytes(&next_buffer(&seen)))), number);
    }
    assert_eq!(counted(&pipe.get("src"), "num-lost"), 1);
}

/// An invalid packet whose number happens to fit is in the socket. It leaves few places in the jitter buffer, even if the buffer
/// holds little.
#[test]
fn a_gap_as_long_as_the_jitter_buffer_counts_as_lost_at_once() {
    let (pipe, seen, gate, peer) = held_at_the_first(&context());
    let numbers = || [1, 3].into_iter().chain(63..100);
    for number in numbers() {
        peer.send(&rtp(7, 0, number));
    }
    gate.open();
    for number in std::iter::once(0).chain(numbers()) {
        assert_eq!(u32::from(seq(&bytes(&next_buffer(&seen)))), number);
    }
    assert_eq!(counted(&pipe.get("src"), "num-lost"), 60);
}

#[test]
fn a_flood_with_gaps_does_not_starve_other_sources() {
    const PACKETS: u32 = 200;
    let context = context();
    let (other, seen, other_target) = playing_on(&context, "latency=0");
    let sender = socket();
    for number in 0..2 {
        sender.send_to(&rtp(8, 0, number), other_target).unwrap();
    }
    (0..2).for_each(|_| drop(next_buffer(&seen)));
    let (flooded, _, gate, peer) = held_at_the_first(&context);
    let source = flooded.get("src");
    let (send, read_before) = std::sync::mpsc::channel();
    other
        .pad("sink", "sink")
        .add_probe(gst::PadProbeType::BUFFER, {
            let source = source.clone();
            move |_, _| {
                let _ = send.send(counted(&source, "packets-received"));
                gst::PadProbeReturn::Ok
            }
        });
    // All packets have one timestamp, so that all losses are due at once.
    for number in (2..2 * PACKETS).step_by(2) {
        let mut packet = rtp(7, 0, number);
        packet[4..8].fill(0);
        peer.send(&packet);
    }
    sender.send_to(&rtp(8, 0, 2), other_target).unwrap();
    gate.open();
    next_buffer(&seen);
    // This count was taken on the thread of both sources, at the other source's first packet.
    let read = read_before.recv_timeout(DEADLINE).unwrap();
    assert!(read < u64::from(PACKETS) / 2, "{read}");
    eventually("the rest comes", || {
        counted(&source, "num-pushed") == u64::from(PACKETS) + 1
    });
}

#[test]
fn a_dynamic_payload_type_without_caps_is_reported() {
    let (pipe, seen, target) = playing("");
    let sender = socket();
    sender.send_to(&rtp(7, 97, 0), target).unwrap();
    let warning = text(&pipe.expect(gst::MessageType::Warning));
    assert!(
        warning.contains("97") && warning.contains("caps"),
        "{warning}"
    );
    pipe.get("src").set_property_from_str(
        "caps",
        "application/x-rtp,media=audio,clock-rate=16000,encoding-name=X,payload=97",
    );
    for number in 1..4 {
        sender.send_to(&rtp(7, 97, number), target).unwrap();
    }
    assert_eq!(bytes(&next_buffer(&seen)), rtp(7, 97, 1));
    assert_eq!(counted(&pipe.get("src"), "unknown-payload-type"), 1);
}

/// Packets of other types keep their place in the order, so no loss is detected there.
#[test]
fn other_payload_types_are_dropped_counted_and_reported_once() {
    let (pipe, seen, target) = playing("payload-types=0,8 latency=0 clock-skew=none");
    let sender = socket();
    let types = [3, 0, 9, 0, 18, 0, 96, 8];
    for (number, payload_type) in (0..).zip(types) {
        sender
            .send_to(&rtp(7, payload_type, number), target)
            .unwrap();
    }
    for number in [1, 3, 5, 7] {
        assert_eq!(u32::from(seq(&bytes(&next_buffer(&seen)))), number);
    }
    let source = pipe.get("src");
    assert_eq!(counted(&source, "unknown-payload-type"), 4);
    assert_eq!(counted(&source, "num-lost"), 0);
    let warning = text(&pipe.expect(gst::MessageType::Warning));
    assert!(
        warning.contains("type 3") && warning.contains("0,8"),
        "{warning}"
    );
    let another = pipe.bus().pop_filtered(&[gst::MessageType::Warning]);
    assert!(another.is_none(), "{another:?}");
}

/// The statistic "received" counts RTP packets.
#[test]
fn garbage_does_not_count_as_received() {
    let (pipe, seen, target) = playing("latency=0 clock-skew=none mtu=500");
    let sender = socket();
    for garbage in [&[][..], &[0x80], &[0x40; 100], &[0x80; 501]] {
        sender.send_to(garbage, target).unwrap();
    }
    for number in 0..2 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    next_buffer(&seen);
    next_buffer(&seen);
    let source = pipe.get("src");
    let counts = [
        "packets-received",
        "bytes-received",
        "malformed",
        "truncated",
    ];
    assert_eq!(counts.map(|name| counted(&source, name)), [2, 344, 3, 1]);
}

#[test]
fn a_sender_that_changes_its_codec_gets_new_caps() {
    let (_pipe, seen, target) = playing("clock-skew=none latency=0");
    let sender = socket();
    for number in 0..2 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    next_buffer(&seen);
    // Telephone events between the packets change nothing.
    sender.send_to(&rtp(7, 101, 2), target).unwrap();
    for number in 3..5 {
        sender.send_to(&rtp(7, 8, number), target).unwrap();
    }
    let mut order = Vec::new();
    while order.len() < 5 {
        match seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Buffer(buffer) => order.push(bytes(&buffer)[1].to_string()),
            Seen::Event(event) => {
                if let gst::EventView::Caps(caps) = event.view() {
                    let caps = caps.caps_owned();
                    let name = caps.structure(0).unwrap().get::<String>("encoding-name");
                    order.push(name.unwrap());
                }
            }
        }
    }
    assert_eq!(order, ["0", "101", "PCMA", "8", "8"]);
}

#[test]
fn garbage_is_counted_and_stops_no_stream() {
    let (pipe, seen, target) = playing("");
    let sender = socket();
    for garbage in [&[][..], &[0x80], &[0; 40], &[0x9f; 12], &[0xb0; 14]] {
        sender.send_to(garbage, target).unwrap();
    }
    for number in 0..2 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    assert_eq!(bytes(&next_buffer(&seen)), rtp(7, 0, 0));
    assert_eq!(counted(&pipe.get("src"), "malformed"), 5);
    pipe.assert_no_error();
}

#[test]
fn stranger_is_refused_and_a_moved_peer_accepted() {
    let (pipe, seen, target) = playing("latency=0");
    let (peer, stranger) = (socket(), socket());
    for number in 0..3 {
        peer.send_to(&rtp(7, 0, number), target).unwrap();
    }
    (0..3).for_each(|_| drop(next_buffer(&seen)));
    // The stranger sends with the peer's SSRC, and with its own.
    for number in 3..8 {
        stranger.send_to(&rtp(7, 0, number), target).unwrap();
        stranger.send_to(&rtp(8, 0, number), target).unwrap();
    }
    peer.send_to(&rtp(7, 0, 3), target).unwrap();
    let buffer = next_buffer(&seen);
    assert_eq!((ssrc(&bytes(&buffer)), seq(&bytes(&buffer))), (7, 3));
    let source = pipe.get("src");
    assert!(rtcp_counted(&source, "strangers") >= 9);
    // The old address has fallen silent. After a while, the peer is the sender at the new address.
    let moved = socket();
    let mut number = 4;
    eventually("the peer is heard at its new address", || {
        moved.send_to(&rtp(7, 0, number), target).unwrap();
        number += 1;
        std::thread::sleep(Duration::from_millis(20));
        seen.try_iter().any(|seen| matches!(seen, Seen::Buffer(_)))
    });
}

#[test]
fn without_latching_any_sender_is_accepted() {
    let (_pipe, seen, target) = playing("latch=false latency=0");
    let (one, other) = (socket(), socket());
    for number in 0..3 {
        one.send_to(&rtp(7, 0, number), target).unwrap();
    }
    (0..3).for_each(|_| drop(next_buffer(&seen)));
    // One SSRC is accepted from any address at once. Another SSRC is accepted when the first one is overdue.
    other.send_to(&rtp(7, 0, 3), target).unwrap();
    assert_eq!(seq(&bytes(&next_buffer(&seen))), 3);
    let mut number = 0;
    eventually("the other is heard", || {
        other.send_to(&rtp(8, 0, number), target).unwrap();
        number += 1;
        let mut heard = seen.try_iter();
        heard.any(|seen| matches!(seen, Seen::Buffer(buffer) if ssrc(&bytes(&buffer)) == 8))
    });
}

/// Returns a source and a sink of one session, and a converter between them.
fn answering(properties: &str) -> (Pipe, SocketAddr) {
    let (context, session) = (context(), context());
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={context} latency=0 session={session} {properties} \
         ! ts-rtpg711 name=g711 encoding-name=PCMA ! ts-rtpsink name=sink session={session}"
    ));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    (pipe, target)
}

#[test]
fn a_sink_without_a_host_sends_to_the_peer_from_the_receiving_port() {
    let (pipe, target) = answering("");
    let peer = socket();
    let mut room = [0; 1500];
    for number in 0..5 {
        peer.send_to(&rtp(7, 0, number), target).unwrap();
    }
    // The first packet alone proves nothing. From the second on, the peer is known.
    let (len, from) = peer.recv_from(&mut room).expect("no answer");
    assert_eq!(from, target);
    assert_eq!((len, room[1] & 0x7f), (172, 8));
    let unsent = counted(&pipe.get("sink"), "unsent");
    assert!(unsent <= 1, "{unsent}");
}

/// Every packet of a compound, as (type, bytes).
fn compound(bytes: &[u8]) -> Vec<String> {
    let packets = rtcp_types::Compound::parse(bytes).expect("a valid compound");
    packets
        .map(|packet| match packet.expect("a valid packet") {
            rtcp_types::Packet::Sr(sr) => format!("SR {}", sr.n_reports()),
            rtcp_types::Packet::Rr(rr) => format!("RR {}", rr.n_reports()),
            rtcp_types::Packet::Sdes(_) => "SDES".into(),
            rtcp_types::Packet::Bye(_) => "BYE".into(),
            other => format!("{other:?}"),
        })
        .collect()
}

fn next_rtcp(socket: &UdpSocket) -> Vec<u8> {
    loop {
        let packet = received(socket);
        if (192..=223).contains(&packet[1]) {
            return packet;
        }
    }
}

#[test]
fn reports_go_to_the_peer_and_a_bye_at_the_end() {
    // RFC 3550, section 11: RTCP on the port after RTP's, each way.
    let (pipe, target) = answering("");
    let (peer, peer_rtcp) = pair();
    let mut number = 0;
    let report = within("a report", {
        let peer = peer.try_clone().unwrap();
        move || {
            peer_rtcp
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            let mut room = [0; 1500];
            loop {
                // Every fourth packet is lost.
                if number % 4 != 3 {
                    peer.send_to(&rtp(7, 0, number), target).unwrap();
                }
                number += 1;
                if let Ok((len, from)) = peer_rtcp.recv_from(&mut room) {
                    return (room[..len].to_vec(), from, peer_rtcp);
                }
            }
        }
    });
    let (bytes, from, peer_rtcp) = report;
    assert_eq!(from.port(), target.port() + 1);
    assert_eq!(compound(&bytes), ["SR 1", "SDES"]);
    let source = pipe.get("src");
    let rtcp = source
        .property::<gst::Structure>("stats")
        .get::<gst::Structure>("rtcp")
        .unwrap();
    assert_eq!(rtcp.get::<u64>("rtcp-sent"), Ok(1));
    peer_rtcp.set_read_timeout(Some(DEADLINE)).unwrap();
    drop(pipe);
    let bye = next_rtcp(&peer_rtcp);
    assert!(
        compound(&bye).contains(&"BYE".to_owned()),
        "{:?}",
        compound(&bye)
    );
}

#[test]
fn rtcp_mux_uses_one_port_in_both_directions() {
    let (pipe, target) = answering("rtcp-mux=true");
    let peer = socket();
    // A sender report of the peer (RFC 3550, section 6.4.1), followed by an SDES (6.5).
    let mut report = vec![0x80, 200, 0, 6];
    report.extend(7_u32.to_be_bytes());
    report.extend([0; 20]);
    report.extend([0x81, 202, 0, 3]);
    report.extend(7_u32.to_be_bytes());
    report.extend([1, 3, b'x', b'y', b'z', 0, 0, 0]);
    for number in 0..3 {
        peer.send_to(&rtp(7, 0, number), target).unwrap();
    }
    peer.send_to(&report, target).unwrap();
    let source = pipe.get("src");
    eventually("the report is processed", || {
        rtcp_counted(&source, "rtcp-received") == 1
    });
    assert_eq!(rtcp_counted(&source, "rtcp-errors"), 0);
    let stats = format!("{:?}", source.property::<gst::Structure>("stats"));
    assert!(stats.contains("xyz"), "{stats}");
    drop(pipe);
    let bye = next_rtcp(&peer);
    assert!(compound(&bye).contains(&"BYE".to_owned()));
}

#[test]
fn a_collision_changes_the_ssrc_that_is_sent() {
    // RFC 3550, section 8.2.
    let (_pipe, target) = answering("");
    let peer = socket();
    let mut number = 0;
    let mut answer = |ssrc_sent: u32| {
        peer.send_to(&rtp(ssrc_sent, 0, number), target).unwrap();
        number += 1;
        peer.set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let mut room = [0; 1500];
        peer.recv_from(&mut room).ok().map(|_| ssrc(&room))
    };
    let mut ours = None;
    eventually("it answers", || {
        ours = answer(7);
        ours.is_some()
    });
    let ours = ours.unwrap();
    let mut changed = None;
    eventually("it has taken another SSRC", || {
        // As with every change of source, several packets in a row are needed, without other packets in between. A single forged
        // packet changes nothing.
        for _ in 0..4 {
            answer(ours);
        }
        changed = (0..5).find_map(|_| answer(7)).filter(|now| *now != ours);
        changed.is_some()
    });
}

#[test]
fn a_sink_without_a_source_sends_to_its_host_and_requires_one() {
    let receiver = socket();
    let port = receiver.local_addr().unwrap().port();
    let line = |host: &str| {
        Pipe::parse(&format!(
            "audiotestsrc num-buffers=5 samplesperbuffer=160 ! audio/x-raw,rate=8000 ! mulawenc ! rtppcmupay ssrc=77 \
             ! ts-rtpsink name=sink {host} port={port} context={}",
            context()
        ))
    };
    let pipe = line("host=127.0.0.1");
    pipe.play();
    let packet = received(&receiver);
    assert_eq!((packet.len(), ssrc(&packet)), (172, 77));
    pipe.expect(gst::MessageType::Eos);
    assert_eq!(counted(&pipe.get("sink"), "packets-sent"), 5);

    let pipe = line("");
    assert!(pipe.0.set_state(gst::State::Playing).is_err());
    let error = text(&pipe.message(&[gst::MessageType::Error]));
    assert!(error.contains("host"), "{error}");
}

#[test]
fn a_fixed_ssrc_is_written_into_packets_and_reports() {
    let (receiver, rtcp) = pair();
    let port = receiver.local_addr().unwrap().port();
    let pipe = Pipe::parse(&format!(
        "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000 ! mulawenc ! rtppcmupay \
         ! ts-rtpsink name=sink host=127.0.0.1 port={port} ssrc=4711 cname=me@here context={}",
        context()
    ));
    pipe.play();
    assert_eq!(ssrc(&received(&receiver)), 4711);
    let report = next_rtcp(&rtcp);
    assert_eq!(u32::from_be_bytes(report[4..8].try_into().unwrap()), 4711);
    assert_eq!(compound(&report), ["SR 0", "SDES"]);
    assert!(report.windows(7).any(|text| text == b"me@here"));
}

#[test]
fn a_second_source_of_a_session_is_refused() {
    let (pipe, _) = answering("");
    let session = pipe.get("src").property::<String>("session");
    let source = make("ts-rtpsrc");
    source.set_property("port", 0);
    source.set_property("session", &session);
    assert!(source.set_state(gst::State::Ready).is_err());
    source.set_state(gst::State::Null).unwrap();
}

#[test]
fn a_shared_port_gives_each_source_its_own_packets() {
    const SOURCES: u32 = 20;
    let first = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 ssrc=1000 context={} latency=0 ! fakesink name=sink sync=false async=false",
        context()
    ));
    let mut seen = vec![watch(&first.pad("sink", "sink"))];
    first.play();
    let target = rtp_address(&first.get("src"));
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut pipes = vec![first];
    let (name, before) = (context(), descriptors());
    for i in 1..SOURCES {
        // Test the same sources on threads other than the one that reads the port.
        let pipe = Pipe::parse(&format!(
            "ts-rtpsrc name=src address=127.0.0.1 port={} ssrc={} context={name}{} latency=0 ! fakesink name=sink sync=false async=false",
            target.port(),
            1000 + i,
            i % 2
        ));
        seen.push(watch(&pipe.pad("sink", "sink")));
        pipe.play();
        pipes.push(pipe);
    }
    // Two contexts, each with a poller and a wake-up, plus the descriptors of the pipelines' buses.
    let per_pipeline = (descriptors() - before) as u32 / (SOURCES - 1);
    assert!(per_pipeline <= 2, "{per_pipeline}");
    let sender = socket();
    // A source drops packets until its thread has started it.
    let first: Vec<u32> = (1000..)
        .zip(&seen)
        .map(|(ssrc, seen)| {
            let mut number = 0;
            eventually("the source receives", || {
                sender.send_to(&rtp(ssrc, 0, number), target).unwrap();
                number += 1;
                seen.try_iter().any(|seen| matches!(seen, Seen::Buffer(_)))
            });
            number
        })
        .collect();
    for number in 0..10 {
        for (ssrc, first) in (1000..).zip(&first) {
            sender
                .send_to(&rtp(ssrc, 0, first + number), target)
                .unwrap();
        }
        sender.send_to(&rtp(1, 0, number), target).unwrap();
    }
    for ((seen, first), own) in seen.iter().zip(&first).zip(1000..) {
        let mut due = *first;
        while due < first + 10 {
            let packet = bytes(&next_buffer(seen));
            assert_eq!(ssrc(&packet), own);
            // The first ones may still be queued.
            let number = u32::from(seq(&packet));
            if number >= *first {
                assert_eq!(number, due);
                due += 1;
            }
        }
    }
    assert_eq!(counted(&pipes[3].get("src"), "port-unmatched"), 10);
    // Removing one source does not affect the others.
    drop(pipes.remove(0));
    let after = first[1] + 10;
    sender.send_to(&rtp(1001, 0, after), target).unwrap();
    eventually("the others go on", || {
        sender.send_to(&rtp(1001, 0, after + 1), target).unwrap();
        seen[1]
            .try_iter()
            .any(|seen| matches!(seen, Seen::Buffer(_)))
    });
}

#[test]
fn sources_on_one_port_with_the_same_filter_are_refused() {
    let first = make("ts-rtpsrc");
    first.set_property("port", 0);
    first.set_property("from", "127.0.0.1:9");
    first.set_state(gst::State::Ready).unwrap();
    let second = make("ts-rtpsrc");
    second.set_property("port", first.property::<i32>("used-port"));
    second.set_property("from", "127.0.0.1:9");
    assert!(second.set_state(gst::State::Ready).is_err());
    second.set_property("from", "127.0.0.1:11");
    second.set_state(gst::State::Ready).unwrap();
    for source in [first, second] {
        source.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn every_element_starts_and_stops_twice() {
    use gst::State::{Null, Paused, Playing, Ready};
    for line in [
        "ts-rtpsrc address=127.0.0.1 port=0",
        "ts-rtpsrc address=127.0.0.1 port=0 rtcp-mux=true ssrc=5",
        "ts-rtpsink host=127.0.0.1",
        "ts-rtpsink host=127.0.0.1 rtcp-mux=true context=updown",
        "ts-rtpg711",
    ] {
        init();
        let element = gst::parse::launch(line).unwrap();
        for state in [
            Ready, Null, Ready, Playing, Null, Ready, Paused, Ready, Paused, Playing, Paused,
            Ready, Null,
        ] {
            let element = element.clone();
            within(line, move || {
                element.set_state(state).unwrap();
            });
        }
    }
    // Test the same with data. Each time, the session is started and stopped as a whole.
    let (pipe, _) = answering("");
    for _ in 0..2 {
        pipe.to(Null);
        pipe.play();
        let target = rtp_address(&pipe.get("src"));
        let peer = socket();
        for number in 0..3 {
            peer.send_to(&rtp(7, 0, number), target).unwrap();
        }
        assert_eq!(received(&peer)[1] & 0x7f, 8);
        pipe.to(Paused);
        pipe.play();
        eventually("it goes on", || {
            peer.send_to(&rtp(7, 0, 9), target).unwrap();
            peer.set_read_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            peer.recv(&mut [0; 1500]).is_ok()
        });
    }
    pipe.assert_no_error();
}

#[test]
fn a_session_stops_during_a_stuck_push() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 latency=0 context={} ! identity name=last ! fakesink async=false",
        context()
    ));
    let (send, blocked) = std::sync::mpsc::channel();
    let kinds = gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER;
    pipe.pad("last", "src").add_probe(kinds, move |_, _| {
        let _ = send.send(());
        gst::PadProbeReturn::Ok
    });
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let peer = socket();
    for number in 0..2 {
        peer.send_to(&rtp(7, 0, number), target).unwrap();
    }
    blocked.recv_timeout(DEADLINE).expect("nothing was pushed");
    set_state(&pipe.0, gst::State::Null);
}

#[test]
fn occupied_port_is_an_error_until_it_is_free() {
    let (taken, taken_rtcp) = pair();
    let source = make("ts-rtpsrc");
    source.set_property("address", "127.0.0.1");
    source.set_property("reuse", false);
    source.set_property("port", i32::from(taken.local_addr().unwrap().port()));
    for _ in 0..2 {
        assert!(source.set_state(gst::State::Ready).is_err());
    }
    drop(taken);
    // The RTCP port is still occupied.
    assert!(source.set_state(gst::State::Ready).is_err());
    drop(taken_rtcp);
    source.set_state(gst::State::Ready).unwrap();
    source.set_state(gst::State::Null).unwrap();
}

#[test]
fn the_uri_is_host_and_port() {
    let source = make("ts-rtpsrc");
    source.set_property("uri", "rtp://[::1]:6000");
    assert_eq!(source.property::<String>("address"), "::1");
    assert_eq!(source.property::<i32>("port"), 6000);
    let handler = source.dynamic_cast::<gst::URIHandler>().unwrap();
    assert!(handler.set_uri("udp://x").is_err());
    assert_eq!(handler.uri().unwrap(), "rtp://[::1]:6000");
}

#[test]
fn latency_is_jitter_buffer_plus_slice_and_changes_live() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} context-wait=20 latency=60 ! fakesink sync=false",
        context()
    ));
    pipe.play();
    let latency = || {
        let mut query = gst::query::Latency::new();
        assert!(pipe.pad("src", "src").query(&mut query));
        query.result().1.mseconds()
    };
    assert_eq!(latency(), 80);
    pipe.get("src").set_property("latency", 100_u32);
    assert_eq!(latency(), 120);
    pipe.expect(gst::MessageType::Latency);
}

/// Returns the output of `elements` for packets, each with its time.
fn converted(elements: &str, caps: &str, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    init();
    let mut harness = gst_check::Harness::new_parse(elements);
    harness.set_src_caps_str(caps);
    for (i, packet) in packets.iter().enumerate() {
        let mut buffer = gst::Buffer::from_mut_slice(packet.clone());
        let pts = (i as u64) * 20 * gst::ClockTime::MSECOND;
        buffer.get_mut().unwrap().set_pts(pts);
        harness.push(buffer).unwrap();
    }
    harness.push_event(gst::event::Eos::new());
    let mut out = Vec::new();
    while let Some(buffer) = harness.try_pull() {
        out.push(bytes(&buffer));
    }
    out
}

const PCMU: &str = "application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0";

#[test]
fn ts_rtpg711_outputs_the_same_bytes_as_the_stock_elements() {
    let packets: Vec<_> = (0..10).map(|number| rtp(7, 0, number)).collect();
    let ours = converted("ts-rtpg711 encoding-name=PCMA", PCMU, &packets);
    let stock = converted(
        "rtppcmudepay ! mulawdec ! alawenc ! rtppcmapay",
        PCMU,
        &packets,
    );
    assert_eq!(ours.len(), 10);
    for (ours, stock) in ours.iter().zip(&stock) {
        assert_eq!(ours[12..], stock[12..]);
        // Compare version, payload type and marker. The marker shows the start of speech in both.
        assert_eq!(ours[..2], stock[..2]);
    }
    for pair in ours.windows(2) {
        assert_eq!(seq(&pair[1]), seq(&pair[0]).wrapping_add(1));
        assert_eq!(ssrc(&pair[1]), ssrc(&pair[0]));
    }
}

#[test]
fn another_packet_time_keeps_every_byte() {
    let packets: Vec<_> = (0..12).map(|number| rtp(7, 0, number)).collect();
    let out = converted("ts-rtpg711 encoding-name=PCMU ptime=30", PCMU, &packets);
    assert!(
        out.iter().all(|packet| packet.len() == 12 + 240),
        "{:?}",
        out.len()
    );
    let back: Vec<u8> = out
        .iter()
        .flat_map(|packet| packet[12..].to_vec())
        .collect();
    let sent: Vec<u8> = packets
        .iter()
        .flat_map(|packet| packet[12..].to_vec())
        .collect();
    assert_eq!(back, sent);
}

#[test]
fn converter_follows_downstream_caps_and_reports_mismatches() {
    init();
    let mut harness = gst_check::Harness::new_parse("ts-rtpg711");
    harness.set_sink_caps_str("application/x-rtp,media=audio,encoding-name=PCMA");
    harness.set_src_caps_str(PCMU);
    harness
        .push(gst::Buffer::from_mut_slice(rtp(7, 0, 0)))
        .unwrap();
    assert_eq!(bytes(&harness.pull().unwrap())[1] & 0x7f, 8);

    let element = make("ts-rtpg711");
    let pad = element.static_pad("sink").unwrap();
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    element.set_state(gst::State::Paused).unwrap();
    pad.send_event(gst::event::StreamStart::new("x"));
    let stereo = "application/x-rtp,media=audio,clock-rate=44100,encoding-name=L16,encoding-params=(string)2,channels=2,payload=10";
    assert!(!pad.send_event(gst::event::Caps::new(&stereo.parse().unwrap())));
    let error = bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Error])
        .unwrap();
    assert!(text(&error).contains("mono"), "{}", text(&error));
    element.set_state(gst::State::Null).unwrap();
}

#[test]
fn a_lost_packet_is_concealed_and_counted() {
    init();
    let mut harness = gst_check::Harness::new("ts-rtpg711");
    harness.set_src_caps_str(PCMU);
    let push = |harness: &mut gst_check::Harness, number| {
        harness
            .push(gst::Buffer::from_mut_slice(rtp(7, 0, number)))
            .unwrap();
    };
    for number in 0..3 {
        push(&mut harness, number);
    }
    let lost = gst::Structure::builder("GstRTPPacketLost")
        .field("seqnum", 3u32)
        .field("timestamp", 60_000_000u64)
        .field("duration", 20_000_000u64)
        .build();
    assert!(harness.push_event(gst::event::CustomDownstream::new(lost)));
    push(&mut harness, 4);
    let out: Vec<_> = (0..5).map(|_| bytes(&harness.pull().unwrap())).collect();
    let time = |packet: &[u8]| u32::from_be_bytes(packet[4..8].try_into().unwrap());
    for (i, packet) in out.iter().enumerate() {
        assert_eq!(packet.len(), 172);
        assert_eq!(seq(packet), seq(&out[0]).wrapping_add(i as u16));
        assert_eq!(time(packet), time(&out[0]).wrapping_add(i as u32 * PACKET));
    }
    let element = harness.element().unwrap();
    assert_eq!(counted(&element, "concealed-ms"), 20);
}

/// Returns the SSRCs of an RTCP compound's reports, and whether it has a BYE. Read by rtcp-types.
fn reports(compound: &[u8]) -> (Vec<u32>, bool) {
    let (mut ssrcs, mut is_bye) = (Vec::new(), false);
    for packet in rtcp_types::Compound::parse(compound).unwrap() {
        match packet.unwrap() {
            rtcp_types::Packet::Sr(report) => ssrcs.push(report.ssrc()),
            rtcp_types::Packet::Rr(report) => ssrcs.push(report.ssrc()),
            rtcp_types::Packet::Bye(_) => is_bye = true,
            _ => {}
        }
    }
    (ssrcs, is_bye)
}

/// Returns a session that has received packets but sent none, so that it has packets to report on. Also returns the sockets for
/// its RTP and RTCP.
fn heard_before_it_sends() -> (Pipe, UdpSocket, UdpSocket) {
    let (rtp_to, rtcp_to) = pair();
    let (context, session) = (context(), context());
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 session={session} context={context} \
         ! fakesink sync=false async=false \
         appsrc name=app is-live=true format=time caps=application/x-rtp \
         ! ts-rtpsink name=sink session={session} context={context} host=127.0.0.1 port={}",
        rtp_to.local_addr().unwrap().port(),
    ));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let sender = socket();
    for number in 0..3 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    (pipe, rtp_to, rtcp_to)
}

/// A listener may take the BYE of one SSRC for the end of the call, as ffmpeg does. So the session uses one SSRC for its first
/// packet, whether that is a report or RTP, and for all later ones. The BYE comes at the end.
#[test]
fn a_session_has_one_ssrc_from_its_first_report_on() {
    let (pipe, rtp_to, rtcp_to) = heard_before_it_sends();
    let (first, _) = reports(&received(&rtcp_to));
    let app = pipe.get("app");
    let push = |number| {
        let buffer = gst::Buffer::from_slice(rtp(0x5151, 8, number));
        let _ = app.emit_by_name::<gst::FlowReturn>("push-buffer", &[&buffer]);
    };
    push(0);
    assert_eq!(ssrc(&received(&rtp_to)), first[0]);
    push(1);
    assert_eq!(ssrc(&received(&rtp_to)), first[0]);
    // This is the report after the RTP packet and before the end.
    assert_eq!(reports(&received(&rtcp_to)), (first.clone(), false));
    pipe.to(gst::State::Null);
    assert_eq!(reports(&received(&rtcp_to)), (first, true));
}

/// Without a ts-rtpsrc, nothing is reported before the first packet; then the packets' SSRC is used.
#[test]
fn a_sink_without_a_source_reports_with_the_ssrc_of_its_packets() {
    let (rtp_to, rtcp_to) = pair();
    let pipe = Pipe::parse(&format!(
        "appsrc name=app is-live=true format=time caps=application/x-rtp ! \
         ts-rtpsink name=sink context={} host=127.0.0.1 port={}",
        context(),
        rtp_to.local_addr().unwrap().port(),
    ));
    pipe.play();
    // This is longer than the longest first interval without a packet (RFC 3550, section 6.3.1: 2.5 s, times 1.5, over 1.21828).
    rtcp_to
        .set_read_timeout(Some(Duration::from_millis(3100)))
        .unwrap();
    let early = rtcp_to.recv(&mut [0; 1500]);
    assert!(early.is_err(), "{early:?}");
    rtcp_to.set_read_timeout(Some(DEADLINE)).unwrap();
    let app = pipe.get("app");
    for (number, ssrc_in) in [(0, 7), (1, 7), (2, 8), (3, 8)] {
        let buffer = gst::Buffer::from_slice(rtp(ssrc_in, 8, number));
        let _ = app.emit_by_name::<gst::FlowReturn>("push-buffer", &[&buffer]);
        assert_eq!(ssrc(&received(&rtp_to)), ssrc_in);
        if number == 1 {
            assert_eq!(reports(&received(&rtcp_to)), (vec![7], false));
        }
    }
    // The packets have another SSRC now, but no member has left.
    assert_eq!(reports(&received(&rtcp_to)), (vec![8], false));
    pipe.to(gst::State::Null);
    assert_eq!(reports(&received(&rtcp_to)), (vec![8], true));
}

#[test]
fn an_unknown_encoding_name_is_refused() {
    let pipe = Pipe::parse("fakesrc ! ts-rtpg711 name=g711 encoding-name=G729 ! fakesink");
    assert!(pipe.0.set_state(gst::State::Ready).is_err());
    let said = text(&pipe.message(&[gst::MessageType::Error]));
    assert!(
        said.contains("encoding-name=G729") && said.contains("PCMU, PCMA or L16"),
        "{said}"
    );
}

/// A socket for IPv6 that also accepts IPv4 gets the packets, too (RFC 4038, section 4.2).
#[test]
fn a_socket_for_both_families_sends_to_both() {
    for host in ["127.0.0.1", "::1"] {
        let receiver = bound(host);
        let session = context();
        let pipe = Pipe::parse(&format!(
            "ts-rtpsrc name=src address=:: port=0 session={session} context={context} ! fakesink async=false \
             fakesrc num-buffers=1 sizetype=fixed sizemax=172 filltype=zero ! identity name=header \
             ! ts-rtpsink name=sink session={session} context={context} host={host} port={}",
            receiver.local_addr().unwrap().port(),
            context = context(),
        ));
        write_header(&pipe.pad("header", "sink"));
        pipe.play();
        assert_eq!(received(&receiver).len(), 172, "{host}");
    }
}

/// Writes an RTP header into passing buffers.
fn write_header(pad: &gst::Pad) {
    pad.add_probe(gst::PadProbeType::BUFFER, |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
            buffer.make_mut().copy_from_slice(0, &[0x80]).unwrap();
        }
        gst::PadProbeReturn::Ok
    });
}

/// Packets that cannot be sent are counted, and reported once.
#[test]
fn send_failure_is_reported() {
    let pipe = Pipe::parse(&format!(
        "fakesrc num-buffers=5 sizetype=fixed sizemax=172 filltype=zero ! identity name=header \
         ! ts-rtpsink name=sink bind-address=127.0.0.1 context={} host=::1 port=5004",
        context(),
    ));
    write_header(&pipe.pad("header", "sink"));
    pipe.play();
    let said = text(&pipe.message(&[gst::MessageType::Warning]));
    assert!(said.contains("[::1]:5004"), "{said}");
    eventually("all are counted", || {
        counted(&pipe.get("sink"), "send-errors") == 5
    });
    let another = pipe.bus().pop_filtered(&[gst::MessageType::Warning]);
    assert!(another.is_none(), "{another:?}");
}

/// A peer sends video to the port of its audio. The video does not become the stream.
#[test]
fn a_source_with_another_payload_type_does_not_take_over() {
    let (_pipe, seen, target) = playing("payload-types=0 latency=0 clock-skew=none");
    let sender = socket();
    for number in 0..20 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
        for video in 0..2 {
            sender
                .send_to(&rtp(9, 96, 2 * number + video), target)
                .unwrap();
        }
    }
    for number in 0..20 {
        assert_eq!(bytes(&next_buffer(&seen)), rtp(7, 0, number));
    }
}

/// A sender restarts with a packet of another type. The restart is reported with the next packet that has the right type.
#[test]
fn restart_is_reported_although_its_first_packet_is_dropped() {
    let (_pipe, seen, target) = playing("payload-types=0 latency=0 clock-skew=none");
    let sender = socket();
    for number in 0..3 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    for number in 0..3 {
        let buffer = next_buffer(&seen);
        assert_eq!(
            buffer.flags().contains(gst::BufferFlags::DISCONT),
            number == 0
        );
    }
    for (number, payload_type) in [(30_000, 9), (30_001, 0), (30_002, 0)] {
        sender
            .send_to(&rtp(7, payload_type, number), target)
            .unwrap();
    }
    let buffer = next_buffer(&seen);
    assert_eq!(u32::from(seq(&bytes(&buffer))), 30_001);
    assert!(
        buffer.flags().contains(gst::BufferFlags::DISCONT),
        "{buffer:?}"
    );
    assert!(
        !next_buffer(&seen)
            .flags()
            .contains(gst::BufferFlags::DISCONT)
    );
}

/// A source gets two streams and keeps them apart, whichever of them the reports use.
#[test]
fn only_the_first_of_two_streams_uses_the_ssrc_of_the_reports() {
    let (pipe, rtp_to, rtcp_to) = heard_before_it_sends();
    let (reported, _) = reports(&received(&rtcp_to));
    let app = pipe.get("app");
    for (ssrc_in, expected) in [(5, reported[0]), (6, 6), (5, reported[0]), (6, 6)] {
        let buffer = gst::Buffer::from_slice(rtp(ssrc_in, 8, 0));
        let _ = app.emit_by_name::<gst::FlowReturn>("push-buffer", &[&buffer]);
        assert_eq!(ssrc(&received(&rtp_to)), expected);
    }
}

/// PLAYING, READY, PLAYING: a session that has sent a BYE joins again.
#[test]
fn a_session_that_was_stopped_reports_again() {
    let (pipe, _) = answering("");
    let source = pipe.get("src");
    for round in 0..2 {
        pipe.to(gst::State::Playing);
        let target = rtp_address(&source);
        let (peer, peer_rtcp) = pair();
        peer_rtcp
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let mut number = 0;
        let mut room = [0; 1500];
        eventually("a report", || {
            peer.send_to(&rtp(7 + round, 0, number), target).unwrap();
            number += 1;
            peer_rtcp.recv(&mut room).is_ok()
        });
        pipe.to(gst::State::Ready);
        peer_rtcp.set_read_timeout(Some(DEADLINE)).unwrap();
        loop {
            let len = peer_rtcp.recv(&mut room).expect("a BYE");
            if compound(&room[..len]).contains(&"BYE".to_owned()) {
                break;
            }
        }
    }
}

/// The peer's reports arrive at the port that RTP leaves from (RFC 5761), although no source reads it.
#[test]
fn a_sink_without_a_source_receives_rtcp_with_rtcp_mux() {
    let peer = socket();
    let pipe = Pipe::parse(&format!(
        "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000 ! mulawenc ! rtppcmupay ssrc=77 \
         ! ts-rtpsink name=sink host=127.0.0.1 port={} rtcp-mux=true context={}",
        peer.local_addr().unwrap().port(),
        context()
    ));
    pipe.play();
    let mut room = [0; 1500];
    let (_, from) = peer.recv_from(&mut room).expect("nothing was sent");
    // A receiver report about our stream (RFC 3550, section 6.4.2), followed by an SDES.
    let mut report = vec![0x81, 201, 0, 7];
    report.extend(9_u32.to_be_bytes());
    report.extend(77_u32.to_be_bytes());
    report.extend([64, 0, 0, 5]);
    report.extend([0; 16]);
    report.extend([0x81, 202, 0, 3]);
    report.extend(9_u32.to_be_bytes());
    report.extend([1, 3, b'x', b'y', b'z', 0, 0, 0]);
    let sink = pipe.get("sink");
    // RTP that arrives there is ignored.
    peer.send_to(&rtp(9, 0, 0), from).unwrap();
    peer.send_to(&report, from).unwrap();
    eventually("the report is processed", || {
        rtcp_counted(&sink, "rtcp-received") == 1
    });
    let stats = format!("{:?}", sink.property::<gst::Structure>("stats"));
    assert!(stats.contains("rb-fraction-lost=(uint)64"), "{stats}");
    assert_eq!(rtcp_counted(&sink, "rtcp-errors"), 0);
}

/// One forged RTCP packet before the peer's first packet neither sends media to a stranger nor keeps the peer out.
#[test]
fn forged_rtcp_does_not_redirect_media() {
    let (_pipe, target) = answering("rtcp-mux=true");
    let (stranger, peer) = (socket(), socket());
    // The shortest packet: an empty receiver report (RFC 3550, section 6.4.2).
    stranger
        .send_to(&[0x80, 201, 0, 1, 0, 0, 0, 9], target)
        .unwrap();
    for number in 0..3 {
        peer.send_to(&rtp(7, 0, number), target).unwrap();
    }
    let mut room = [0; 1500];
    let (len, _) = peer.recv_from(&mut room).expect("the peer is answered");
    assert_eq!((len, room[1] & 0x7f), (172, 8));
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv(&mut room).is_err());
}

/// Audio from one party goes to another. Both parties get reports about their packets.
#[test]
fn sender_gets_reports_although_its_audio_goes_elsewhere() {
    let (listener, listener_rtcp) = pair_on("127.0.0.2");
    let session = context();
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 latency=0 session={session} context={session} \
         ! ts-rtpg711 encoding-name=PCMA \
         ! ts-rtpsink session={session} host=127.0.0.2 port={}",
        listener.local_addr().unwrap().port(),
    ));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let (sender, sender_rtcp) = pair();
    for number in 0..3 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
    }
    assert_eq!(received(&listener).len(), 172);
    let (to_sender, to_listener) = (next_rtcp(&sender_rtcp), next_rtcp(&listener_rtcp));
    assert_eq!(to_sender, to_listener);
    assert_eq!(compound(&to_sender), ["SR 1", "SDES"]);
}

/// RFC 3550, section 6.4.1: the timestamp of a report is that of its send time, at the clock rate of the caps.
#[test]
fn the_timestamp_in_a_report_uses_the_clock_rate_of_the_caps() {
    // On its own context, the sink joins the session before it has caps. On its branch's context, it joins after that.
    within("both", || {
        std::thread::scope(|both| {
            for placed in [format!("context={}", context()), String::new()] {
                both.spawn(move || timestamp_counts_at_the_rate_of_the_caps(&placed));
            }
        });
    });
}

fn timestamp_counts_at_the_rate_of_the_caps(placed: &str) {
    const RATE_HZ: u32 = 48_000;
    let (rtp_to, rtcp_to) = pair();
    let pipe = Pipe::parse(&format!(
        "appsrc name=app is-live=true format=time caps=application/x-rtp,media=audio,clock-rate={RATE_HZ} \
         ! ts-rtpsink {placed} host=127.0.0.1 port={}",
        rtp_to.local_addr().unwrap().port(),
    ));
    pipe.play();
    let buffer = gst::Buffer::from_slice(rtp(7, 96, 0));
    let _ = pipe
        .get("app")
        .emit_by_name::<gst::FlowReturn>("push-buffer", &[&buffer]);
    received(&rtp_to);
    let sent = std::time::Instant::now();
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let report = next_rtcp(&rtcp_to);
    // The packet's timestamp was 0. Its time is known except for a slice and the delays of the machine.
    let counted_s = f64::from(word(&report, 16)) / f64::from(RATE_HZ);
    let passed_s = sent.elapsed().as_secs_f64();
    assert!(
        (counted_s - passed_s).abs() < passed_s / 2.0,
        "{counted_s} {passed_s}"
    );
}

/// RFC 3550, section 6.4.1: the "sender's octet count" is of "payload octets (i.e., not including header or padding)".
#[test]
fn padding_does_not_count_as_sent() {
    let (rtp_to, rtcp_to) = pair();
    let pipe = Pipe::parse(&format!(
        "appsrc name=app is-live=true format=time caps=application/x-rtp,media=audio,clock-rate=8000 \
         ! ts-rtpsink context={} host=127.0.0.1 port={}",
        context(),
        rtp_to.local_addr().unwrap().port(),
    ));
    pipe.play();
    let mut padded = rtp(7, 0, 0);
    padded[0] |= 0x20;
    padded.extend([0, 0, 0, 4]);
    let _ = pipe
        .get("app")
        .emit_by_name::<gst::FlowReturn>("push-buffer", &[&gst::Buffer::from_slice(padded)]);
    assert_eq!(received(&rtp_to).len(), 12 + 160 + 4);
    let report = next_rtcp(&rtcp_to);
    assert_eq!(report[24..28], 160_u32.to_be_bytes());
}
