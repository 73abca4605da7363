//! `ts-rtpsrc`, `ts-rtpsink` and `ts-rtpg711`: order, losses, sessions, latching, RTCP.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use common::*;
use gst::prelude::*;
use rtcp_types::prelude::*;

/// Bytes of a packet with 20 ms of G.711.
const PACKET: u32 = 160;

/// A packet of a sender's `number`-th 20 ms.
fn rtp(ssrc: u32, payload_type: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, payload_type];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number.wrapping_mul(PACKET)).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend((0..PACKET).map(|i| (i + number) as u8));
    packet
}

fn seq(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[2], packet[3]])
}

fn ssrc(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[8..12].try_into().unwrap())
}

fn address(port: i32) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))
}

fn rtp_address(source: &gst::Element) -> SocketAddr {
    address(source.property("used-port"))
}

/// A source on loopback and any free ports, what it pushed, and where to send.
fn playing(properties: &str) -> (Pipe, Receiver<Seen>, SocketAddr) {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} {properties} ! fakesink name=sink sync=false async=false",
        context()
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
fn packets_come_out_in_order_once_with_caps_and_times() {
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
        // As far apart as they were sent, however they came.
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
fn a_loss_is_one_event_at_its_time_and_a_gap_behind_a_stock_depayloader() {
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

#[test]
fn a_stall() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} context-wait=20 ! ts-rtpg711 name=g711 encoding-name=PCMA ! fakesink name=sink sync=false async=false",
        context()
    ));
    let n = std::sync::atomic::AtomicU32::new(0);
    pipe.pad("sink", "sink")
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let k = n.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if k % 30 == 29 {
                std::thread::sleep(Duration::from_millis(250));
            }
            gst::PadProbeReturn::Ok
        });
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let sender = socket();
    for number in 0..100 {
        sender.send_to(&rtp(7, 0, number), target).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    eprintln!("{:?}", pipe.get("src").property::<gst::Structure>("stats"));
    eprintln!("{:?}", pipe.get("g711").property::<gst::Structure>("stats"));
}
