//! RTP sessions with independent peers, compared with a record of what happened to each packet.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use gst::prelude::*;

/// Samples of 20 ms at 8000 Hz.
const PACKET: u32 = 160;
const CLOCK_RATE: f64 = 8000.0;

fn rtp(number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number * PACKET).to_be_bytes());
    packet.extend(7_u32.to_be_bytes());
    packet.extend([0xff; PACKET as usize]);
    packet
}

/// A report's block about our packets.
#[derive(Debug, Clone, Copy)]
struct Block {
    lost: u32,
    highest: u32,
    jitter: u32,
}

fn block(bytes: &[u8]) -> Option<Block> {
    let mut compound = rtcp_types::Compound::parse(bytes).expect("a valid compound");
    let report = match compound.next()?.expect("a valid packet") {
        rtcp_types::Packet::Rr(rr) => rr.report_blocks().next()?,
        rtcp_types::Packet::Sr(sr) => sr.report_blocks().next()?,
        other => panic!("a compound begins with a report: {other:?}"),
    };
    Some(Block {
        lost: report.cumulative_lost(),
        highest: report.extended_sequence_number(),
        jitter: report.interarrival_jitter(),
    })
}

/// A seeded sequence of numbers below `n` (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn reports_agree_with_the_ledger_and_with_the_jitter_of_the_packets_times() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={} context-wait=20 ! fakesink sync=false async=false",
        context()
    ));
    pipe.play();
    let target = rtp_address(&pipe.get("src"));
    let (peer, peer_rtcp) = pair();
    let mut dice = Dice(0x5eed);
    let start = Instant::now();
    // The jitter by RFC 3550, appendix A.8, of the times at which packets were handed to the kernel.
    let (mut jitter, mut last_transit, mut dropped) = (0.0, None, 0);
    const LAST: u32 = 149;
    for number in 0..=LAST {
        let delay = Duration::from_micros(dice.below(15_000));
        let due = start + Duration::from_millis(20) * number + delay;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if (2..LAST).contains(&number) && dice.below(10) == 0 {
            dropped += 1;
            continue;
        }
        let arrival = start.elapsed().as_secs_f64() * CLOCK_RATE;
        peer.send_to(&rtp(number), target).unwrap();
        let transit = arrival - f64::from(number * PACKET);
        // The sequence starts with the packet that proves the source, so its predecessor counts.
        if let Some(last) = last_transit.replace(transit) {
            let d: f64 = transit - last;
            jitter += (d.abs() - jitter) / 16.0;
        }
    }
    assert!(dropped > 5, "the dice are to drop some");
    let mut room = [0; 1500];
    let last = loop {
        let (len, _) = peer_rtcp.recv_from(&mut room).expect("no report");
        match block(&room[..len]) {
            Some(block) if block.highest & 0xffff == LAST => break block,
            _ => {}
        }
    };
    assert_eq!(last.lost, dropped);
    // The unit is 125 µs. The difference between our clock and the kernel's timestamp is less than one unit.
    let off = (f64::from(last.jitter) - jitter).abs();
    assert!(
        off <= 4.0,
        "reported {}, by the ledger {jitter}",
        last.jitter
    );
}

#[test]
fn stock_rtpbin_interoperates_over_a_lossy_network() {
    let ours = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 context={name} context-wait=20 session={name} \
         ! ts-rtpg711 name=g711 encoding-name=PCMA ! ts-rtpsink name=sink session={name}",
        name = context()
    ));
    ours.play();
    let target = rtp_address(&ours.get("src"));
    let (rtp_in, rtcp_in) = pair();
    let (rtp_port, rtcp_port) = (
        rtp_in.local_addr().unwrap().port(),
        rtcp_in.local_addr().unwrap().port(),
    );
    drop((rtp_in, rtcp_in));
    // The stock peer sends from the ports that it receives on, as phones do.
    let stock = Pipe::parse(&format!(
        "rtpbin name=bin \
         audiotestsrc is-live=true samplesperbuffer=160 num-buffers=1600 ! audio/x-raw,rate=8000 ! mulawenc \
         ! rtppcmupay name=pay ! bin.send_rtp_sink_0 \
         bin.send_rtp_src_0 ! identity name=before ! netsim name=net drop-probability=0.05 ! identity name=after \
         ! udpsink name=out host=127.0.0.1 port={} sync=false async=false \
         bin.send_rtcp_src_0 ! udpsink name=rtcpout host=127.0.0.1 port={} sync=false async=false \
         udpsrc name=rtcpin port={rtcp_port} ! bin.recv_rtcp_sink_0 \
         udpsrc name=in port={rtp_port} caps=application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMA,payload=8 \
         ! bin.recv_rtp_sink_0",
        target.port(),
        target.port() + 1
    ));
    send_from(&stock, "out", "in");
    send_from(&stock, "rtcpout", "rtcpin");
    let back = Arc::new(AtomicU32::new(0));
    let counted_back = back.clone();
    stock.get("bin").connect_pad_added({
        let pipeline = stock.0.downgrade();
        move |_, pad| {
            if !pad.name().starts_with("recv_rtp_src") {
                return;
            }
            let sink = make("fakesink");
            sink.set_property("async", false);
            pipeline.upgrade().unwrap().add(&sink).unwrap();
            sink.sync_state_with_parent().unwrap();
            pad.link(&sink.static_pad("sink").unwrap()).unwrap();
            let counted_back = counted_back.clone();
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                counted_back.fetch_add(1, Ordering::Relaxed);
                gst::PadProbeReturn::Ok
            });
        }
    });
    // The network drops these packets. The order is the one in which packets enter the network, which keeps it.
    let count = |element: &str| {
        let seqs = Arc::new(Mutex::new(Vec::new()));
        let inner = seqs.clone();
        stock
            .pad(element, "src")
            .add_probe(gst::PadProbeType::BUFFER, move |_, info| {
                if let Some(gst::PadProbeData::Buffer(buffer)) = &info.data {
                    let bytes = bytes(buffer);
                    inner
                        .lock()
                        .unwrap()
                        .push(u16::from_be_bytes([bytes[2], bytes[3]]));
                }
                gst::PadProbeReturn::Ok
            });
        seqs
    };
    let (before, after) = (count("before"), count("after"));
    stock.play();
    // This is the stock session's view: the contents of our report blocks.
    let session = stock
        .get("bin")
        .emit_by_name::<gst::glib::Object>("get-internal-session", &[&0_u32]);
    let reported = || {
        let stats = session.property::<gst::Structure>("stats");
        #[allow(deprecated, reason = "the type that the stock session uses")]
        let sources = stats.get::<gst::glib::ValueArray>("source-stats").unwrap();
        let blocks = sources.iter().filter_map(|source| {
            let source = source.get::<gst::Structure>().ok()?;
            let has_block = source.get::<bool>("have-rb").ok()?;
            has_block.then(|| {
                (
                    source.get::<i32>("rb-packetslost").unwrap(),
                    source.get::<u32>("rb-exthighestseq").unwrap(),
                )
            })
        });
        blocks.collect::<Vec<_>>()
    };
    let ledger = |highest: u32| {
        let (before, after) = (before.lock().unwrap(), after.lock().unwrap());
        let place = |seqs: &[u16]| {
            seqs.iter()
                .position(|seq| u32::from(*seq) == highest & 0xffff)
        };
        // Packets count from the first two consecutive ones on, which make the source valid (RFC 3550, A.1). An earlier loss is
        // not counted.
        let valid = after
            .windows(2)
            .position(|pair| pair[1] == pair[0].wrapping_add(1))?;
        let first = before.iter().position(|seq| *seq == after[valid])?;
        Some((place(&before)? - first) as i32 - (place(&after)? - valid) as i32)
    };
    let mut seen = Vec::new();
    eventually("the stock session has a report of ours", || {
        for (lost, highest) in reported() {
            if !seen.iter().any(|(_, known)| *known == highest) {
                seen.push((lost, highest));
            }
        }
        !seen.is_empty()
    });
    for (lost, highest) in &seen {
        assert_eq!(Some(*lost), ledger(*highest), "{seen:?}");
    }
    // In the other direction, the stock session reports about our packets, all of which arrived.
    let source = ours.get("src");
    let stats = || format!("{:?}", source.property::<gst::Structure>("stats"));
    eventually("we have a report of the stock session", || {
        stats().contains("rb-packets-lost")
    });
    // The stock session counts the packet before the one that proves a source as received, but not as expected. So its loss is
    // -1.
    let none_lost = ["rb-packets-lost=(gint64)0", "rb-packets-lost=(gint64)-1"];
    assert!(
        none_lost.iter().any(|text| stats().contains(text)),
        "{}",
        stats()
    );
    assert!(back.load(Ordering::Relaxed) > 50);
    stock.assert_no_error();
    ours.assert_no_error();
}
