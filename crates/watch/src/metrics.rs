//! Metrics of streams for Prometheus. The number of series grows with the number of streams in the configuration file.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::View;
use super::calls::{KINDS as CALL_KINDS, PartyAlarm};
use super::gather::{Gatherer, TileState, Track};
use super::machine::{Machine, ThreadSecond};
use super::moves::Moves;
use super::second::Level;

impl Collector for View {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.read(|seen| {
            for (name, help, value) in GAUGES {
                encode(&mut encoder, seen, name, help, |track| {
                    value(track).map(ConstGauge::new)
                })?;
            }
            for (name, help, value) in COUNTERS {
                encode(&mut encoder, seen, name, help, |track| {
                    Some(ConstCounter::new(value(track)))
                })?;
            }
            alarms(&mut encoder, seen)
        })?;
        call_alarms(&mut encoder, &self.calls().raised())?;
        self.read_machine(|machine| {
            threads(&mut encoder, machine)?;
            moves(&mut encoder, machine, self.moves())
        })
    }
}

/// Encodes a series with the value 1 for each raised alarm.
fn alarms(encoder: &mut DescriptorEncoder<'_>, seen: &Gatherer) -> Result<(), Error> {
    let one = ConstGauge::new(1_i64);
    let help = "1 if the alarm is raised; absent otherwise";
    let mut family = encoder.encode_descriptor("stream_alarm", help, None, one.metric_type())?;
    for track in seen.tracks() {
        for alarm in track.alarms.raised() {
            let labels = [
                ("stream", &*track.watched.name),
                ("alarm", alarm.kind.name()),
            ];
            one.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes for each kind of alarm the number of parties of calls for which it is raised. The labels do not name calls, so their number is
/// bounded.
fn call_alarms(encoder: &mut DescriptorEncoder<'_>, raised: &[PartyAlarm]) -> Result<(), Error> {
    let help = "Number of parties of calls for which the alarm is raised";
    let mut family = encoder.encode_descriptor("call_alarms", help, None, MetricType::Gauge)?;
    for kind in CALL_KINDS {
        let count = raised.iter().filter(|one| one.alarm.kind == kind).count();
        let labels = [("alarm", kind.name())];
        ConstGauge::new(count as i64).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes values of the media threads in the last second.
fn threads(encoder: &mut DescriptorEncoder<'_>, machine: &Machine) -> Result<(), Error> {
    type Value = (&'static str, &'static str, fn(&ThreadSecond) -> f64);
    let values: [Value; 2] = [
        (
            "thread_busy_ratio",
            "Share of the last second in which a media thread was not asleep",
            |second| f64::from(second.busy_permille) / 1000.0,
        ),
        (
            "thread_lateness_seconds",
            "Recent lateness of the slices of a media thread",
            |second| f64::from(second.lateness_us) / 1e6,
        ),
    ];
    for (name, help, value) in values {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (thread, track) in &machine.threads {
            if let Some(second) = track.recent.back() {
                let labels = [("thread", thread.as_str())];
                ConstGauge::new(value(second)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// Encodes the number of sessions that each media thread has handed over.
fn moves(
    encoder: &mut DescriptorEncoder<'_>,
    machine: &Machine,
    moves: &Moves,
) -> Result<(), Error> {
    let (name, help) = (
        "thread_moved_sessions",
        "Streams, and streams of calls, that a media thread has handed to another one",
    );
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for thread in machine.threads.keys() {
        let labels = [("thread", thread.as_str())];
        let count = ConstCounter::new(moves.from_thread(thread));
        count.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode<M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    seen: &Gatherer,
    name: &str,
    help: &str,
    metric: impl Fn(&Track) -> Option<M>,
) -> Result<(), Error> {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for track in seen.tracks() {
        if let Some(metric) = metric(track) {
            let labels = [("stream", &*track.watched.name)];
            metric.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

type Gauge = (&'static str, &'static str, fn(&Track) -> Option<f64>);
type Counter = (&'static str, &'static str, fn(&Track) -> u64);

/// The gauges of a stream. Silence has no loudness, so a loudness series is absent during silence.
const GAUGES: [Gauge; 11] = [
    (
        "stream_up",
        "1 if the stream has packets from its sender or a fallback; 0 if no packets arrive, or the stream has failed",
        |track| Some(f64::from(u8::from(track.tile.state >= TileState::Heard))),
    ),
    (
        "stream_fallback",
        "1 if a fallback replaces the sender",
        |track| Some(f64::from(u8::from(track.tile.state == TileState::Fallback))),
    ),
    (
        "stream_momentary_lufs",
        "Loudness of the last 400 ms",
        |track| track.tile.momentary_lufs.db(),
    ),
    (
        "stream_short_term_lufs",
        "Loudness of the last 3 s",
        |track| track.tile.short_term_lufs.db(),
    ),
    (
        "stream_integrated_lufs",
        "Loudness since the stream started",
        |track| level(track, |all| all.integrated_lufs),
    ),
    (
        "stream_loudness_range_lu",
        "Loudness range since the stream started",
        |track| level(track, |all| all.range_lu),
    ),
    (
        "stream_true_peak_dbtp",
        "True peak since the stream started",
        |track| level(track, |all| all.true_peak_dbtp),
    ),
    (
        "stream_target_lufs",
        "Target loudness of the stream",
        |track| track.watched.target_lufs,
    ),
    (
        "stream_jitter_seconds",
        "Interarrival jitter (RFC 3550)",
        |track| Some(track.snapshot.jitter_ns as f64 / 1e9),
    ),
    (
        "stream_mos",
        "Mean opinion score of the last audio (ITU-T G.107), 1 to 4.5",
        |track| track.snapshot.mos,
    ),
    (
        "stream_clock_skew_seconds",
        "Time by which the sender's clock has fallen behind since the stream started",
        |track| Some(track.snapshot.skew_ns as f64 / 1e9),
    ),
];

const COUNTERS: [Counter; 4] = [
    (
        "stream_received_packets",
        "RTP packets that arrived",
        |track| track.snapshot.packets,
    ),
    (
        "stream_lost_packets",
        "Packets that had not arrived when they were due to be played",
        |track| track.snapshot.lost,
    ),
    (
        "stream_late_packets",
        "Packets that arrived after their time to be played",
        |track| track.snapshot.late,
    ),
    (
        "stream_refused_datagrams",
        "Datagrams that were refused",
        |track| track.snapshot.refused,
    ),
];

fn level(track: &Track, of: fn(&threadbare_relay::Loudness) -> f64) -> Option<f64> {
    let loudness = track.snapshot.loudness.as_ref()?;
    Level::new(of(loudness)).db()
}
