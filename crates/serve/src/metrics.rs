//! Counters, gauges and histograms of `serve`, in the OpenMetrics text format for Prometheus. Label values never come from the
//! network, so their number is bounded.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use threadbare_base::NS_PER_S;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use threadbare_control::calls::EndReason;
use threadbare_control::ng::{Command, Reply};

use super::measured::{Means, SideCounts};
use threadbare_cluster::ClusterView;
use threadbare_recording::Counted;
use threadbare_watch::View;

type Seconds = Counter<f64, AtomicU64>;
type Ratio = Gauge<f64, AtomicU64>;

/// All metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    ng: Ng,
    rtp: Rtp,
    quality: Quality,
    calls: CallMetrics,
    contexts: Contexts,
    recordings: Recordings,
}

/// Values that are read when metrics are requested.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) calls: u64,
    pub(super) streams: u64,
    pub(super) transcoded: u64,
    pub(super) is_draining: bool,
    /// Number of offered calls since the start.
    pub(super) offered: u64,
    pub(super) refused: u64,
    pub(super) errors: u64,
    pub(super) ended: Vec<(EndReason, u64)>,
    pub(super) threads: Vec<ThreadSnapshot>,
    pub(super) recordings: Counted,
}

/// The counters of a media thread.
#[derive(Debug, Default, Clone)]
pub(super) struct ThreadSnapshot {
    pub(super) name: String,
    /// Time since the thread's start.
    pub(super) alive_ns: u64,
    /// Time in which the thread was not asleep.
    pub(super) busy_ns: u64,
    pub(super) lateness_ns: u64,
    pub(super) streams: u64,
    pub(super) packets_received: u64,
    pub(super) packets_sent: u64,
    pub(super) send_errors: u64,
    pub(super) kernel_drops: u64,
    /// Received packets and sent packets that used XDP rings.
    pub(super) ring_packets: [u64; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    command: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplyLabels {
    command: Name,
    result: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ThreadLabels {
    thread: String,
}

/// A label value that is a constant of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name(&'static str);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }
}

#[derive(Debug)]
struct Ng {
    replies: Family<ReplyLabels, Counter>,
    direct: Counter,
    seconds: Family<CommandLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Default)]
struct Rtp {
    packets: Family<DirectionLabels, Counter>,
    bytes: Counter,
    refused: Counter,
    rtcp: Counter,
    lost: Counter,
    late: Counter,
    concealed: Seconds,
}

#[derive(Debug)]
struct Quality {
    mos: Histogram,
    jitter: Histogram,
    round_trip: Histogram,
    loss: Histogram,
}

#[derive(Debug)]
struct CallMetrics {
    calls: Gauge,
    legs: Gauge,
    transcoded: Gauge,
    is_draining: Gauge,
    offered: Counter,
    refused: Counter,
    errors: Counter,
    ended: Family<ReasonLabels, Counter>,
    duration: Histogram,
}

#[derive(Debug, Default)]
struct Recordings {
    running: Gauge,
    bytes: Counter,
    complete: Counter,
    failed: Counter,
    missed: Seconds,
    missed_packets: Counter,
}

#[derive(Debug, Default)]
struct Contexts {
    busy: Family<ThreadLabels, Seconds>,
    lateness: Family<ThreadLabels, Ratio>,
    streams: Family<ThreadLabels, Gauge>,
    received: Family<ThreadLabels, Counter>,
    sent: Family<ThreadLabels, Counter>,
    send_errors: Family<ThreadLabels, Counter>,
    kernel_drops: Family<ThreadLabels, Counter>,
    ring_received: Family<ThreadLabels, Counter>,
    ring_sent: Family<ThreadLabels, Counter>,
}

impl Metrics {
    /// Creates the metrics of calls, and includes those of the configuration file's streams. Counters are 0.
    pub(super) fn new(view: View, cluster: Option<ClusterView>) -> Metrics {
        let mut registry = Registry::with_prefix("threadbare");
        registry.register_collector(Box::new(view));
        if let Some(cluster) = cluster {
            registry.register_collector(Box::new(cluster));
        }
        let ng = Ng {
            replies: Family::default(),
            direct: Counter::default(),
            seconds: Family::new_with_constructor(seconds),
        };
        ng.register(&mut registry);
        let rtp = Rtp::default();
        rtp.register(&mut registry);
        let quality = Quality::new();
        quality.register(&mut registry);
        let calls = CallMetrics::new();
        calls.register(&mut registry);
        let contexts = Contexts::default();
        contexts.register(&mut registry);
        let recordings = Recordings::default();
        recordings.register(&mut registry);
        Metrics {
            recordings,
            registry,
            ng,
            rtp,
            quality,
            calls,
            contexts,
        }
    }

    /// Counts a reply, and records the time since its request.
    pub(super) fn count_reply(&self, command: Command, reply: &Reply, took_ns: u64) {
        let command = Name(command.name());
        let result = Name(match reply {
            Reply::Ok(_) => "ok",
            Reply::Pong => "pong",
            Reply::Error(_) => "error",
            Reply::LoadLimit(_) => "load limit",
        });
        let labels = ReplyLabels { command, result };
        self.ng.replies.get_or_create(&labels).inc();
        let labels = CommandLabels { command };
        let histogram = self.ng.seconds.get_or_create(&labels);
        histogram.observe(took_ns as f64 / NS_PER_S as f64);
    }

    /// Counts a ping, a repeated request, or an invalid message.
    pub(super) fn count_direct(&self) {
        self.ng.direct.inc();
    }

    /// Adds the counts of a party's media.
    pub(super) fn count_media(&self, added: &SideCounts) {
        let rtp = &self.rtp;
        let packets = |direction| {
            let direction = Name(direction);
            rtp.packets
                .get_or_create_owned(&DirectionLabels { direction })
        };
        packets("received").inc_by(added.packets);
        packets("sent").inc_by(added.packets_sent);
        rtp.bytes.inc_by(added.bytes);
        rtp.refused.inc_by(added.refused);
        rtp.rtcp.inc_by(added.rtcp_packets);
        rtp.lost.inc_by(added.lost);
        rtp.late.inc_by(added.late);
        rtp.concealed
            .inc_by(added.concealed_ns as f64 / NS_PER_S as f64);
    }

    /// Records the duration of an ended call.
    pub(super) fn observe_call(&self, lasted_ns: u64) {
        self.calls
            .duration
            .observe(lasted_ns as f64 / NS_PER_S as f64);
    }

    /// Records the media quality of a party of an ended call.
    pub(super) fn observe_quality(&self, mean: &Means) {
        let quality = &self.quality;
        for (histogram, value) in [
            (&quality.mos, mean.mos),
            (&quality.jitter, mean.jitter_ms.map(|ms| ms / MS_PER_S)),
            (
                &quality.round_trip,
                mean.round_trip_ms.map(|ms| ms / MS_PER_S),
            ),
            (
                &quality.loss,
                mean.loss_percent.map(|percent| percent / 100.0),
            ),
        ] {
            if let Some(value) = value {
                histogram.observe(value);
            }
        }
    }

    /// Returns the metrics as text.
    pub(super) fn render(&self, snapshot: &Snapshot) -> String {
        self.calls.set(snapshot);
        self.recordings.set(&snapshot.recordings);
        for thread in &snapshot.threads {
            self.contexts.set(thread);
        }
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

impl Ng {
    fn register(&self, registry: &mut Registry) {
        let help = "Requests of the ng protocol, by command and result";
        registry.register("ng_requests", help, self.replies.clone());
        let help = "Messages of the ng protocol that were pings, repeated requests, or invalid";
        registry.register("ng_direct_replies", help, self.direct.clone());
        let help = "Time from a request of the ng protocol to its reply";
        registry.register_with_unit(
            "ng_request_duration",
            help,
            Unit::Seconds,
            self.seconds.clone(),
        );
    }
}

impl Rtp {
    fn register(&self, registry: &mut Registry) {
        let help = "RTP packets of calls; packets of current calls are counted every few seconds";
        registry.register("rtp_packets", help, self.packets.clone());
        let help = "Bytes of RTP packets received";
        registry.register_with_unit("rtp_received", help, Unit::Bytes, self.bytes.clone());
        let help = "Datagrams that were not from the call's party, or were not RTP";
        registry.register("rtp_refused_datagrams", help, self.refused.clone());
        let help = "RTCP packets received";
        registry.register("rtcp_received_packets", help, self.rtcp.clone());
        let help = "RTP packets lost";
        registry.register("rtp_lost_packets", help, self.lost.clone());
        let help = "RTP packets that arrived after their time to be played";
        registry.register("rtp_late_packets", help, self.late.clone());
        let help = "Audio that was concealed because packets were lost";
        registry.register_with_unit("rtp_concealed", help, Unit::Seconds, self.concealed.clone());
    }
}

impl Quality {
    fn new() -> Quality {
        Quality {
            mos: Histogram::new(MOS),
            jitter: Histogram::new(JITTER_S),
            round_trip: Histogram::new(ROUND_TRIP_S),
            loss: Histogram::new(LOSS),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let help = "Mean opinion score (G.107) of the media of each party of ended calls";
        registry.register("call_mos", help, self.mos.clone());
        let help = "Mean interarrival jitter of the media of each party of ended calls";
        registry.register_with_unit("call_jitter", help, Unit::Seconds, self.jitter.clone());
        let help = "Mean round-trip time to each party of ended calls";
        registry.register_with_unit(
            "call_round_trip",
            help,
            Unit::Seconds,
            self.round_trip.clone(),
        );
        let help = "Share of lost or late packets in the media of each party of ended calls";
        registry.register_with_unit(
            "call_loss",
            help,
            Unit::Other("ratio".to_owned()),
            self.loss.clone(),
        );
    }
}

impl CallMetrics {
    fn new() -> CallMetrics {
        CallMetrics {
            calls: Gauge::default(),
            legs: Gauge::default(),
            transcoded: Gauge::default(),
            is_draining: Gauge::default(),
            offered: Counter::default(),
            refused: Counter::default(),
            errors: Counter::default(),
            ended: Family::default(),
            duration: Histogram::new(DURATION_S),
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("calls", "Current calls", self.calls.clone());
        registry.register("legs", "Legs of running streams", self.legs.clone());
        let help = "Streams that are transcoded";
        registry.register("transcoded_streams", help, self.transcoded.clone());
        let help = "1 while new calls are refused";
        registry.register("draining", help, self.is_draining.clone());
        let help = "Calls offered and accepted";
        registry.register("calls_offered", help, self.offered.clone());
        let help = "Calls that were refused by a limit, late threads or draining";
        registry.register("calls_refused", help, self.refused.clone());
        let help = "Requests that were answered with an error";
        registry.register("request_errors", help, self.errors.clone());
        let help = "Calls that have ended, by reason";
        registry.register("calls_ended", help, self.ended.clone());
        let help = "Time from the offer of a call to its end";
        registry.register_with_unit("call_duration", help, Unit::Seconds, self.duration.clone());
    }

    fn set(&self, snapshot: &Snapshot) {
        self.calls.set(snapshot.calls as i64);
        self.legs.set(snapshot.streams as i64 * 2);
        self.transcoded.set(snapshot.transcoded as i64);
        self.is_draining.set(i64::from(snapshot.is_draining));
        self.offered.inner().store(snapshot.offered, Relaxed);
        self.refused.inner().store(snapshot.refused, Relaxed);
        self.errors.inner().store(snapshot.errors, Relaxed);
        for (reason, count) in &snapshot.ended {
            let reason = Name(reason.name());
            let counter = self.ended.get_or_create(&ReasonLabels { reason });
            counter.inner().store(*count, Relaxed);
        }
    }
}

impl Recordings {
    fn register(&self, registry: &mut Registry) {
        let help = "Recordings that are running";
        registry.register("recordings", help, self.running.clone());
        let help = "Bytes of recordings written to the disk";
        registry.register_with_unit("recordings_written", help, Unit::Bytes, self.bytes.clone());
        let help = "Files of recordings that are complete";
        registry.register("recordings_complete", help, self.complete.clone());
        let help = "Files of recordings that were cut off, or could not be created";
        registry.register("recordings_failed", help, self.failed.clone());
        let help = "Audio that is silent in its file because the disk was too slow";
        registry.register_with_unit(
            "recordings_missed",
            help,
            Unit::Seconds,
            self.missed.clone(),
        );
        let help = "Packets that were not recorded because the disk was too slow";
        registry.register(
            "recordings_missed_packets",
            help,
            self.missed_packets.clone(),
        );
    }

    fn set(&self, counted: &Counted) {
        self.running.set(counted.running as i64);
        self.bytes.inner().store(counted.bytes, Relaxed);
        self.complete.inner().store(counted.complete, Relaxed);
        self.failed.inner().store(counted.failed, Relaxed);
        let missed = (counted.missed_ms as f64 / MS_PER_S).to_bits();
        self.missed.inner().store(missed, Relaxed);
        let packets = &self.missed_packets;
        packets.inner().store(counted.missed_packets, Relaxed);
    }
}

impl Contexts {
    fn register(&self, registry: &mut Registry) {
        let help = "Time in which a media thread was not asleep";
        registry.register_with_unit("context_busy", help, Unit::Seconds, self.busy.clone());
        let help = "Recent lateness of the slices of a media thread";
        registry.register_with_unit(
            "context_lateness",
            help,
            Unit::Seconds,
            self.lateness.clone(),
        );
        let help = "Streams that a media thread carries";
        registry.register("context_streams", help, self.streams.clone());
        let help = "Datagrams received for calls";
        registry.register("context_received_packets", help, self.received.clone());
        let help = "Datagrams sent";
        registry.register("context_sent_packets", help, self.sent.clone());
        let help = "Datagrams that the system refused to send";
        registry.register("context_send_errors", help, self.send_errors.clone());
        let help = "Datagrams that the system dropped because a socket's buffer or a ring was full";
        registry.register("context_kernel_drops", help, self.kernel_drops.clone());
        let help = "Received datagrams that arrived through an XDP ring";
        let name = "context_ring_received_packets";
        registry.register(name, help, self.ring_received.clone());
        let help = "Sent datagrams that left through an XDP ring";
        registry.register("context_ring_sent_packets", help, self.ring_sent.clone());
    }

    fn set(&self, snapshot: &ThreadSnapshot) {
        let labels = ThreadLabels {
            thread: snapshot.name.clone(),
        };
        let busy = (snapshot.busy_ns as f64 / NS_PER_S as f64).to_bits();
        let busy_now = self.busy.get_or_create_owned(&labels);
        busy_now.inner().store(busy, Relaxed);
        let lateness = self.lateness.get_or_create_owned(&labels);
        lateness.set(snapshot.lateness_ns as f64 / NS_PER_S as f64);
        let streams = self.streams.get_or_create_owned(&labels);
        streams.set(snapshot.streams as i64);
        for (family, count) in [
            (&self.received, snapshot.packets_received),
            (&self.sent, snapshot.packets_sent),
            (&self.send_errors, snapshot.send_errors),
            (&self.kernel_drops, snapshot.kernel_drops),
            (&self.ring_received, snapshot.ring_packets[0]),
            (&self.ring_sent, snapshot.ring_packets[1]),
        ] {
            let counter = family.get_or_create_owned(&labels);
            counter.inner().store(count, Relaxed);
        }
    }
}

fn seconds() -> Histogram {
    Histogram::new(REQUEST_S)
}

const MS_PER_S: f64 = 1e3;
/// Bounds for the time to a reply. An offer takes some 100 µs, and a proxy repeats a request after half a second.
const REQUEST_S: [f64; 12] = [
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0,
];
/// Bounds for the duration of calls, from an unanswered call to a conference.
const DURATION_S: [f64; 9] = [1.0, 5.0, 15.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 7200.0];
/// Bounds for opinion scores. The steps are differences that callers notice (G.107, annex B). The best score of G.711 is 4.3.
const MOS: [f64; 9] = [1.0, 2.0, 2.6, 3.1, 3.6, 4.0, 4.2, 4.3, 4.5];
const JITTER_S: [f64; 8] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2];
/// Bounds for round-trip times. By G.114, a one-way delay of up to 150 ms is fine, and one of more than 400 ms is not.
const ROUND_TRIP_S: [f64; 8] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.8, 2.0];
const LOSS: [f64; 8] = [0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3];
