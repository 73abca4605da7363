//! How the peer is heard: quality over the call, and extended reports about it. Looked at when reports are due, and at losses; packets that come in
//! order cost nothing.

use super::{Carries, Keep, Leg};
use crate::id::{NS_PER_S, SeqNum};
use crate::payload::static_payload;
use crate::quality::{Bursts, GMIN, Impairment, Quality, Sample, mos, rating};
use crate::session::{Extended, StatisticsSummary, VoipMetrics};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) quality: Quality,
    /// The owner has asked for extended reports.
    pub(super) sends_extended: bool,
    bursts: Bursts,
    /// Losses in a row, each of them once.
    loss_runs: u64,
    /// What the jitter buffer had given out when the last loss was.
    delivered_at_loss: u64,
    sampled: Sampled,
    reported: Reported,
}

/// Counts at the last sample.
#[derive(Debug, Default, Clone, Copy)]
struct Sampled {
    at_ns: Option<u64>,
    delivered: u64,
    lost: u64,
    loss_runs: u64,
}

/// Counts in the last extended report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reported {
    end: Option<SeqNum>,
    expected: u64,
    received: u64,
    duplicates: u64,
}

impl Watch {
    /// So many packets in a row missed their deadline, with so many given out before.
    #[cold]
    pub(super) fn note_lost(&mut self, delivered: u64, packets: u32) {
        self.count_received(delivered);
        self.bursts.lost(packets);
        self.loss_runs += 1;
    }

    fn count_received(&mut self, delivered: u64) {
        let received = delivered.saturating_sub(self.delivered_at_loss);
        self.bursts.received(received);
        self.delivered_at_loss = delivered;
    }
}

impl<K: Keep> Leg<K> {
    /// Records quality from now on: [`LegStats::quality`](super::LegStats::quality). Takes some hundred bytes; calls do it by themselves.
    pub fn record_quality(&mut self) {
        self.watch.get_or_insert_default();
    }

    /// Sends extended reports (RFC 3611) with the others: statistics and VoIP metrics of what the peer sends, as agreed on with it. Records
    /// quality, too.
    pub fn send_extended_reports(&mut self, sends: bool) {
        self.watch.get_or_insert_default().sends_extended = sends;
    }

    /// Reports are due.
    pub(super) fn watch(&mut self, now_ns: u64) {
        let Some(mut watch) = self.watch.take() else {
            return;
        };
        let sampled_ns = watch.sampled.at_ns;
        if sampled_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= SAMPLE_NS_MIN) {
            watch.count_received(self.jitter.stats().delivered);
            self.take_sample(now_ns, &mut watch);
            if watch.sends_extended
                && let Some((summary, _)) = self.summary(&watch)
            {
                let metrics = Some(self.metrics(&watch));
                let summary = Some(summary);
                self.session.offer_extended(Extended { summary, metrics });
            }
        }
        self.watch = Some(watch);
    }

    /// Reports have left, or not.
    pub(super) fn note_reported(&mut self) {
        let Some(mut watch) = self.watch.take() else {
            return;
        };
        if watch.sends_extended
            && self.session.has_taken_extended()
            && let Some((_, reported)) = self.summary(&watch)
        {
            watch.reported = reported;
        }
        self.watch = Some(watch);
    }

    /// Ie,eff of a share of packets that is lost, in so many runs.
    fn equipment(&self, share: f64, lost: f64, runs: u64) -> f64 {
        // G.107, section 7.5: the mean length of losses in a row, to that of random losses, which is 1 / (1 - share).
        let burst_ratio = lost / runs.max(1) as f64 * (1.0 - share);
        self.impairment().with_loss(100.0 * share, burst_ratio)
    }

    fn impairment(&self) -> Impairment {
        let payload = self.payloads.get(self.payload_type);
        let payload = payload.unwrap_or(self.payloads.audio());
        match payload.carries {
            // Of codecs that are only passed on, those of static numbers are known.
            Carries::Opaque(_) => {
                let known = static_payload(payload.payload_type);
                Impairment::of(known.map_or("", |known| known.encoding_name))
            }
            _ => Impairment::G711_CONCEALED,
        }
    }

    /// From the peer's microphone to where the audio leaves, as far as it is known, ms.
    fn delay_ms(&self) -> f64 {
        let one_way_ns = self.session.stats().rtt_ns.unwrap_or(0) / 2;
        ms_of(one_way_ns + self.jitter.latency_ns())
    }

    fn take_sample(&self, now_ns: u64, watch: &mut Watch) {
        let stats = self.jitter.stats();
        let loss_runs = watch.loss_runs;
        let before = std::mem::replace(
            &mut watch.sampled,
            Sampled {
                at_ns: Some(now_ns),
                delivered: stats.delivered,
                lost: stats.lost,
                loss_runs,
            },
        );
        let lost = stats.lost.saturating_sub(before.lost) as f64;
        let all = lost + stats.delivered.saturating_sub(before.delivered) as f64;
        if all == 0.0 {
            return; // It is silent.
        }
        let share = lost / all;
        let runs = watch.loss_runs.saturating_sub(before.loss_runs);
        let equipment = self.equipment(share, lost, runs);
        let sample = Sample {
            mos: mos(rating(self.delay_ms(), equipment)),
            jitter_ms: ms_of(stats.jitter_ns),
            round_trip_ms: self.session.stats().rtt_ns.map(ms_of),
            loss_percent: 100.0 * share,
        };
        watch.quality.add(now_ns, &sample);
    }

    /// What came since the last summary, and what that will be counted from then on. `None`: nothing.
    fn summary(&self, watch: &Watch) -> Option<(StatisticsSummary, Reported)> {
        let ssrc = self.session.current_ssrc()?;
        let reception = self.session.current_reception();
        let end = reception.highest().seq().plus(1);
        let now = Reported {
            end: Some(end),
            expected: reception.expected(),
            received: reception.received(),
            duplicates: self.jitter.stats().duplicates,
        };
        let mut before = watch.reported;
        if before.expected > now.expected || before.end.is_none() {
            // Another source, or its numbers began anew.
            before = Reported {
                end: None,
                duplicates: before.duplicates,
                ..Reported::default()
            };
        }
        let expected = now.expected - before.expected;
        let duplicates = now.duplicates.saturating_sub(before.duplicates);
        let received = now.received.saturating_sub(before.received);
        let lost = (expected + duplicates).saturating_sub(received);
        let begin = before
            .end
            .unwrap_or(SeqNum(end.0.wrapping_sub(expected as u16)));
        let count = |packets: u64| Some(u32::try_from(packets).unwrap_or(u32::MAX));
        let summary = StatisticsSummary {
            ssrc,
            begin,
            end,
            lost: count(lost),
            duplicates: count(duplicates),
            jitter: None,
        };
        (expected > 0).then_some((summary, now))
    }

    fn metrics(&self, watch: &Watch) -> VoipMetrics {
        let stats = self.jitter.stats();
        let bursts = watch.bursts.metrics();
        let packet_ms = ms_of(self.jitter.spacing_ns());
        let all = (stats.delivered + stats.lost).max(1) as f64;
        let late = stats.late.min(stats.lost) as f64;
        let lost = stats.lost as f64;
        let equipment = self.equipment(lost / all, lost, watch.loss_runs);
        let tenths = |delay_ms: f64| Some((10.0 * mos(rating(delay_ms, equipment))).round() as u8);
        let latency_ms = whole_ms(ms_of(self.jitter.latency_ns()));
        let config = self.jitter.config();
        let bound_ns = config
            .adaptive
            .map_or(config.latency_ns, |adaptive| adaptive.max_ns);
        VoipMetrics {
            ssrc: self.session.current_ssrc().unwrap_or(crate::id::Ssrc(0)),
            loss_rate: in_256ths((lost - late) / all),
            discard_rate: in_256ths(late / all),
            burst_density: in_256ths(bursts.burst_density),
            gap_density: in_256ths(bursts.gap_density),
            burst_ms: whole_ms(bursts.burst_packets * packet_ms),
            gap_ms: whole_ms(bursts.gap_packets * packet_ms),
            round_trip_ms: whole_ms(self.session.stats().rtt_ns.map_or(0.0, ms_of)),
            end_system_ms: latency_ms,
            signal_dbm: None,
            noise_dbm: None,
            echo_loss_db: None,
            gmin: GMIN,
            rating: Some(rating(self.delay_ms(), equipment).round() as u8),
            external_rating: None,
            mos_listening: tenths(0.0),
            mos_conversation: tenths(self.delay_ms()),
            receiver: match config.adaptive {
                Some(_) => ADAPTIVE,
                None => NOT_ADAPTIVE,
            },
            jitter_buffer_ms: latency_ms,
            jitter_buffer_max_ms: latency_ms,
            jitter_buffer_bound_ms: whole_ms(ms_of(bound_ns)),
        }
    }
}

fn ms_of(ns: u64) -> f64 {
    ns as f64 * 1000.0 / NS_PER_S as f64
}

/// As many as the field holds.
fn whole_ms(ms: f64) -> u16 {
    ms.round() as u16
}

/// RFC 3611, section 4.7.1: "multiplying the result of the division by 256, limiting the maximum value to 255".
fn in_256ths(share: f64) -> u8 {
    (share * 256.0) as u8
}

/// Early feedback makes no samples of its own.
const SAMPLE_NS_MIN: u64 = NS_PER_S;
/// RFC 3611, section 4.7.6: bits of the jitter buffer. What the far side does about losses is left unspecified.
const ADAPTIVE: u8 = 0b11 << 4;
const NOT_ADAPTIVE: u8 = 0b10 << 4;
