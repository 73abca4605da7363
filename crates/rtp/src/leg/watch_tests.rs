//! Two legs connected by a lossy link. The tests check what each leg reports about the other's quality.

use super::test_bed::{MS, telephony};
use super::*;
use crate::quality::{Impairment, mos, rating};

/// A link with a delay of 30 ms for A's packets to B, and for all reports.
struct Link {
    legs: [Leg; 2],
    now_ns: u64,
    /// Datagrams on their way: arrival time, receiver, whether they are RTCP, and bytes.
    flying: Vec<(u64, usize, bool, Vec<u8>)>,
    time: u32,
}

const DELAY_NS: u64 = 30 * MS;

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side as u8 + 1], 5000))
}

impl Link {
    fn new() -> Link {
        let legs = [0, 1].map(|side: usize| {
            let peer = address(1 - side);
            let mut config = telephony();
            config.ssrc = Ssrc(0x100 + side as u32);
            config.seed = 5 + side as u64;
            config.mux = true;
            config.admission = AdmissionConfig {
                peer: Some(peer),
                ..AdmissionConfig::default()
            };
            config.destination = Destination::Peer;
            let mut leg = Leg::new(0, config).expect("settings in range");
            leg.record_quality();
            leg.send_extended_reports(true);
            leg
        });
        Link {
            legs,
            now_ns: 0,
            flying: Vec::new(),
            time: 0,
        }
    }

    /// Lets each side send a packet every 20 ms. `is_lost` selects A's lost packets.
    fn run(&mut self, packets: u32, is_lost: impl Fn(u32) -> bool) {
        for number in 0..packets {
            for side in [0, 1] {
                let mut packet = [0x55; 172];
                let stamp = Stamp {
                    payload_type: PayloadType(0),
                    time: RtpTime(self.time),
                    marker: false,
                    elapsed: 0,
                };
                let header = packet.first_chunk_mut().expect("a header");
                let leg = &mut self.legs[side];
                leg.packetize(self.now_ns, stamp, 160, header)
                    .expect("an address");
                if side == 1 || !is_lost(number) {
                    let at_ns = self.now_ns + DELAY_NS;
                    self.flying.push((at_ns, 1 - side, false, packet.to_vec()));
                }
            }
            self.time = self.time.wrapping_add(160);
            for _ in 0..20 {
                self.now_ns += MS;
                self.step();
            }
        }
    }

    fn step(&mut self) {
        let now_ns = self.now_ns;
        let (due, rest) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|(at_ns, ..)| *at_ns <= now_ns);
        self.flying = rest;
        let due: Vec<_> = due;
        for (at_ns, to, is_rtcp, bytes) in due {
            let from = address(1 - to);
            if is_rtcp {
                self.legs[to].handle_rtcp(at_ns, from, &bytes)
            } else {
                self.legs[to].handle_datagram(now_ns, at_ns, from, &bytes)
            };
        }
        for side in [0, 1] {
            let leg = &mut self.legs[side];
            while leg.poll_media(now_ns, true).is_some() {}
            let mut out = [0; 1500];
            if leg.next_report().is_some_and(|due_ns| due_ns <= now_ns) {
                while let Some((len, _)) = leg.poll_rtcp(now_ns, &mut out) {
                    let packet = out[..len].to_vec();
                    self.flying
                        .push((now_ns + DELAY_NS, 1 - side, true, packet));
                }
            }
            while leg.poll_event().is_some() {}
        }
    }
}

#[test]
fn a_clean_link_has_the_best_score_of_its_delay() {
    let mut link = Link::new();
    link.run(3000, |_| false);
    let quality = link.legs[1].stats().quality.expect("a record");
    let score = quality.mos.expect("samples");
    assert!(score.samples >= 8, "{score:?}");
    // Before the first round trip is known, the delay is only that of the jitter buffer.
    let latency_ms = link.legs[1].latency_ns() as f64 / 1e6;
    let with_trip = mos(rating(30.0 + latency_ms, 0.0));
    assert!((score.lowest.value - with_trip).abs() < 0.01, "{score:?}");
    assert!(score.highest.value <= mos(rating(latency_ms, 0.0)) + 1e-9);
    let trip = quality.round_trip_ms.expect("round trips");
    assert!((59.0..=63.0).contains(&trip.average), "{trip:?}");
    let loss = quality.loss_percent.expect("samples");
    assert_eq!((loss.lowest.value, loss.highest.value), (0.0, 0.0));
}

#[test]
fn losses_are_in_the_score_and_in_the_peers_extended_report() {
    let mut link = Link::new();
    link.run(1500, |_| false);
    let clean_ns = link.now_ns;
    // One packet in twenty is lost, always a single one. The 19 packets between them end a possible burst.
    link.run(1500, |number| number % 20 == 7);
    let quality = link.legs[1].stats().quality.expect("a record");
    let score = quality.mos.expect("samples");
    assert!(
        score.lowest.at_ns > clean_ns && score.highest.at_ns <= clean_ns,
        "{score:?}"
    );
    let loss = quality.loss_percent.expect("samples");
    assert!((4.0..=6.0).contains(&loss.highest.value), "{loss:?}");
    let equipment = Impairment::G711_CONCEALED.with_loss(loss.highest.value, 1.0);
    let latency_ms = link.legs[1].latency_ns() as f64 / 1e6;
    let expected = mos(rating(30.0 + latency_ms, equipment));
    assert!(
        (score.lowest.value - expected).abs() < 0.05,
        "{score:?} {expected}"
    );

    // This is B's report about A, as A has read it.
    let extended = link.legs[0].stats().extended.expect("a report");
    let metrics = extended.metrics.expect("metrics");
    assert_eq!(metrics.ssrc, link.legs[0].ssrc());
    // 75 of 3000 packets are lost, all of them in gaps, because 19 packets arrive between two losses.
    assert!((5..=7).contains(&metrics.loss_rate), "{metrics:?}");
    assert_eq!(
        (
            metrics.discard_rate,
            metrics.burst_density,
            metrics.burst_ms
        ),
        (0, 0, 0)
    );
    assert_eq!(metrics.gap_density, metrics.loss_rate);
    assert!((59..=63).contains(&metrics.round_trip_ms), "{metrics:?}");
    assert!(metrics.mos_listening >= metrics.mos_conversation);
    assert!(
        (80..=93).contains(&metrics.rating.expect("R")),
        "{metrics:?}"
    );
    let summary = extended.summary.expect("statistics");
    let packets = summary.end.distance_from(summary.begin);
    assert!((50..500).contains(&packets), "{summary:?}");
    let lost = f64::from(summary.lost.expect("told"));
    assert!(
        (lost - f64::from(packets) / 20.0).abs() <= 1.0,
        "{summary:?}"
    );
    assert_eq!(summary.duplicates, Some(0));
    assert_eq!(link.legs[0].stats().session.extended_malformed, 0);
}

#[test]
fn extended_reports_are_sent_only_if_requested() {
    let mut link = Link::new();
    link.legs[1].send_extended_reports(false);
    link.run(1000, |_| false);
    assert_eq!(link.legs[0].stats().extended, None);
    assert!(link.legs[1].stats().extended.is_some());
}

#[test]
fn blocks_before_a_malformed_one_are_used() {
    let mut link = Link::new();
    link.run(100, |_| false);
    let ssrc = link.legs[0].ssrc().0.to_be_bytes();
    // The packet consists of an empty receiver report, a whole summary, and a block whose length exceeds the packet.
    let mut packet = vec![0x80, 201, 0, 1, 0, 0, 1, 1, 0x80, 207, 0, 12, 0, 0, 1, 1];
    packet.extend([6, 0x80, 0, 9]);
    packet.extend(ssrc);
    packet.extend([0, 1, 0, 9, 0, 0, 0, 3]);
    packet.extend([0; 24]);
    packet.extend([7, 0, 0, 8]);
    assert_eq!(packet.len(), 8 + 13 * 4);
    let now_ns = link.now_ns;
    assert_eq!(
        link.legs[0].handle_rtcp(now_ns, address(1), &packet),
        Verdict::Rtcp
    );
    let stats = link.legs[0].stats();
    assert_eq!(stats.session.extended_malformed, 1);
    let summary = stats
        .extended
        .expect("a report")
        .summary
        .expect("statistics");
    assert_eq!(
        (summary.begin, summary.end, summary.lost),
        (SeqNum(1), SeqNum(9), Some(3))
    );
    assert_eq!((summary.duplicates, summary.jitter), (None, None));
    // If the sender of the report is missing, the whole packet is refused.
    let refused = link.legs[0].handle_rtcp(
        now_ns,
        address(1),
        &[0x80, 201, 0, 1, 0, 0, 1, 1, 0x80, 207, 0, 0],
    );
    assert_eq!(refused, Verdict::MalformedRtcp);
}
