//! Quality of the peer's audio over the call, and extended reports about it. Both are computed only at losses and when reports are due, so
//! packets in order cost nothing.

use super::{Carries, Keep, Leg};
use crate::id::{NS_PER_S, SeqNum};
use crate::payload::static_payload;
use crate::quality::{Bursts, GMIN, Impairment, Quality, Sample, mos, rating};
use crate::session::{Extended, StatisticsSummary, VoipMetrics};

/// Measures the quality of the peer's audio: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) quality: Quality,
    pub(super) end_to_end: Quality,
    far: Option<FarReport>,
    /// Whether the owner has requested extended reports.
    pub(super) sends_extended: bool,
    bursts: Bursts,
    /// Number of runs of consecutive losses.
    loss_runs: u64,
    /// Number of packets that the jitter buffer had delivered before the last loss.
    delivered_at_loss: u64,
    sampled: Sampled,
    reported: Reported,
}

/// A report on this peer's audio from the other party of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FarReport {
    at_ns: u64,
    /// Share of lost packets, 0 to 1.
    share: f64,
    jitter_ms: f64,
    round_trip_ms: Option<f64>,
}

/// Counts at the last sample.
#[derive(Debug, Default, Clone, Copy)]
struct Sampled {
    at_ns: Option<u64>,
    delivered: u64,
    lost: u64,
    loss_runs: u64,
}

/// Counts that the last extended report contained.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reported {
    end: Option<SeqNum>,
    expected: u64,
    received: u64,
    duplicates: u64,
}

impl Watch {
    /// Notes that `packets` consecutive packets missed their deadline, after `delivered` were delivered.
    #[cold]
    pub(super) fn note_lost(&mut self, delivered: u64, packets: u32) {
        self.count_received(delivered);
        self.bursts.lost(packets);
        self.loss_runs += 1;
    }

    /// Notes a report of the party that receives the media of this leg's peer.
    pub(super) fn note_far_report(&mut self, report: FarReport) {
        self.far = Some(report);
    }

    fn count_received(&mut self, delivered: u64) {
        let received = delivered.saturating_sub(self.delivered_at_loss);
        self.bursts.received(received);
        self.delivered_at_loss = delivered;
    }
}

/// Returns the last report of a leg's peer on our packets, received at `at_ns`.
pub(super) fn report_of_peer<K: Keep>(leg: &Leg<K>, at_ns: u64) -> Option<FarReport> {
    let view = leg.session.sources().find_map(|source| source.remote)?;
    let units_per_ms = f64::from(leg.takes().audio().clock_rate_hz) / 1000.0;
    Some(FarReport {
        at_ns,
        share: f64::from(view.fraction_lost) / 256.0,
        jitter_ms: f64::from(view.jitter_units) / units_per_ms,
        round_trip_ms: view.rtt_ns.map(ms_of),
    })
}

/// Samples the quality when reports are due.
pub(super) fn sample<K: Keep>(leg: &mut Leg<K>, now_ns: u64) {
    let Some(mut watch) = leg.watch.take() else {
        return;
    };
    let sampled_ns = watch.sampled.at_ns;
    if sampled_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= SAMPLE_NS_MIN) {
        watch.count_received(leg.jitter.stats().delivered);
        take_sample(leg, now_ns, &mut watch);
        if watch.sends_extended
            && let Some((summary, _)) = summary(leg, &watch)
        {
            let metrics = Some(metrics(leg, &watch));
            let summary = Some(summary);
            leg.session.offer_extended(Extended { summary, metrics });
        }
    }
    leg.watch = Some(watch);
}

/// Notes whether the reports have left.
pub(super) fn note_reported<K: Keep>(leg: &mut Leg<K>) {
    let Some(mut watch) = leg.watch.take() else {
        return;
    };
    if watch.sends_extended
        && leg.session.has_taken_extended()
        && let Some((_, reported)) = summary(leg, &watch)
    {
        watch.reported = reported;
    }
    leg.watch = Some(watch);
}

/// Returns the effective equipment impairment (Ie,eff) for a `share` of lost packets, which were lost in this many runs.
fn equipment_impairment<K: Keep>(leg: &Leg<K>, share: f64, lost: f64, runs: u64) -> f64 {
    // The burst ratio is the mean length of consecutive losses, relative to that of random losses, which is 1 / (1 - share) (G.107, section
    // 7.5).
    let burst_ratio = lost / runs.max(1) as f64 * (1.0 - share);
    impairment(leg).with_loss(100.0 * share, burst_ratio)
}

fn impairment<K: Keep>(leg: &Leg<K>) -> Impairment {
    let payload = leg.payloads.get(leg.payload_type);
    let payload = payload.unwrap_or(leg.payloads.audio());
    match payload.carries {
        // Codecs that are only forwarded are known if they have a static payload type.
        Carries::Opaque(_) => {
            let known = static_payload(payload.payload_type);
            Impairment::of(known.map_or("", |known| known.encoding_name))
        }
        _ => Impairment::G711_CONCEALED,
    }
}

/// Returns the delay from the peer's microphone to our output in ms, as far as it is known.
fn delay_ms<K: Keep>(leg: &Leg<K>) -> f64 {
    let one_way_ns = leg.session.stats().rtt_ns.unwrap_or(0) / 2;
    ms_of(one_way_ns + leg.jitter.latency_ns())
}

fn take_sample<K: Keep>(leg: &Leg<K>, now_ns: u64, watch: &mut Watch) {
    let stats = leg.jitter.stats();
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
        return; // the peer is silent
    }
    let share = lost / all;
    let runs = watch.loss_runs.saturating_sub(before.loss_runs);
    let equipment = equipment_impairment(leg, share, lost, runs);
    let sample = Sample {
        mos: mos(rating(delay_ms(leg), equipment)),
        jitter_ms: ms_of(stats.jitter_ns),
        round_trip_ms: leg.session.stats().rtt_ns.map(ms_of),
        loss_percent: 100.0 * share,
    };
    watch.quality.add(now_ns, &sample);
    let far = watch
        .far
        .filter(|far| now_ns.saturating_sub(far.at_ns) < FAR_NS_MAX);
    let heard = far.map_or(sample, |far| {
        // It is unknown how the losses at the far side are clustered, so they count as single ones.
        let far_lost = far.share * all;
        let share = 1.0 - (1.0 - share) * (1.0 - far.share);
        let equipment = equipment_impairment(leg, share, lost + far_lost, runs + far_lost as u64);
        let trips = [sample.round_trip_ms, far.round_trip_ms];
        let delay_ms = delay_ms(leg) + far.round_trip_ms.unwrap_or(0.0) / 2.0;
        Sample {
            mos: mos(rating(delay_ms, equipment)),
            jitter_ms: sample.jitter_ms.max(far.jitter_ms),
            round_trip_ms: trips.into_iter().flatten().reduce(|a, b| a + b),
            loss_percent: 100.0 * share,
        }
    });
    watch.end_to_end.add(now_ns, &heard);
}

/// Returns the statistics since the last summary, and the counts from which the next one starts. `None`: nothing was received.
fn summary<K: Keep>(leg: &Leg<K>, watch: &Watch) -> Option<(StatisticsSummary, Reported)> {
    let ssrc = leg.session.current_ssrc()?;
    let reception = leg.session.current_reception();
    let end = reception.highest().seq().plus(1);
    let now = Reported {
        end: Some(end),
        expected: reception.expected(),
        received: reception.received(),
        duplicates: leg.jitter.stats().duplicates,
    };
    let mut before = watch.reported;
    if before.expected > now.expected || before.end.is_none() {
        // The source is another one, or has restarted its numbers.
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

fn metrics<K: Keep>(leg: &Leg<K>, watch: &Watch) -> VoipMetrics {
    let stats = leg.jitter.stats();
    let bursts = watch.bursts.metrics();
    let packet_ms = ms_of(leg.jitter.spacing_ns());
    let all = (stats.delivered + stats.lost).max(1) as f64;
    let late = stats.late.min(stats.lost) as f64;
    let lost = stats.lost as f64;
    let equipment = equipment_impairment(leg, lost / all, lost, watch.loss_runs);
    let tenths = |delay_ms: f64| Some((10.0 * mos(rating(delay_ms, equipment))).round() as u8);
    let latency_ms = whole_ms(ms_of(leg.jitter.latency_ns()));
    let config = leg.jitter.config();
    let bound_ns = config
        .adaptive
        .map_or(config.latency_ns, |adaptive| adaptive.max_ns);
    VoipMetrics {
        ssrc: leg.session.current_ssrc().unwrap_or(crate::id::Ssrc(0)),
        loss_rate: in_256ths((lost - late) / all),
        discard_rate: in_256ths(late / all),
        burst_density: in_256ths(bursts.burst_density),
        gap_density: in_256ths(bursts.gap_density),
        burst_ms: whole_ms(bursts.burst_packets * packet_ms),
        gap_ms: whole_ms(bursts.gap_packets * packet_ms),
        round_trip_ms: whole_ms(leg.session.stats().rtt_ns.map_or(0.0, ms_of)),
        end_system_ms: latency_ms,
        signal_dbm: None,
        noise_dbm: None,
        echo_loss_db: None,
        gmin: GMIN,
        rating: Some(rating(delay_ms(leg), equipment).round() as u8),
        external_rating: None,
        mos_listening: tenths(0.0),
        mos_conversation: tenths(delay_ms(leg)),
        receiver: match config.adaptive {
            Some(_) => ADAPTIVE,
            None => NOT_ADAPTIVE,
        },
        jitter_buffer_ms: latency_ms,
        jitter_buffer_max_ms: latency_ms,
        jitter_buffer_bound_ms: whole_ms(ms_of(bound_ns)),
    }
}

fn ms_of(ns: u64) -> f64 {
    ns as f64 * 1000.0 / NS_PER_S as f64
}

/// Rounds `ms` to whole milliseconds, limited to the range of the field.
fn whole_ms(ms: f64) -> u16 {
    ms.round() as u16
}

/// Converts a share to 256ths by "multiplying the result of the division by 256, limiting the maximum value to 255" (RFC 3611, section
/// 4.7.1).
fn in_256ths(share: f64) -> u8 {
    (share * 256.0) as u8
}

/// Minimum time between two samples. Reports of early feedback come more often, and take no sample.
const SAMPLE_NS_MIN: u64 = NS_PER_S;
/// Maximum age of the far party's report, which is three report intervals. An older report does not describe the present.
const FAR_NS_MAX: u64 = 15 * NS_PER_S;
/// Kind of the jitter buffer: adaptive (RFC 3611, section 4.7.6). How the far side treats losses is left unspecified.
const ADAPTIVE: u8 = 0b11 << 4;
const NOT_ADAPTIVE: u8 = 0b10 << 4;
