//! Tables of the targets, and of the comparisons in the README.

use threadbare_bench::results::Measured;

use super::fallback::{AFTER_ERROR, AFTER_STALL, UNDER_JITTER};
use super::figures::{Comparable, Figure, Judge, Metric, Quantity, Target};
use super::loudness::{LIVE_METERS, NORMALIZE_FFMPEG, NORMALIZE_MEMORY, NORMALIZE_OURS};

/// The targets below one heading of the tables.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) targets: &'static [Target],
}

const fn run(case: &'static str, metric: Metric) -> Quantity {
    Quantity::Run(case, metric)
}

const fn cpu(case: &'static str) -> Quantity {
    run(case, Measured::us_per_packet)
}

const fn sample(name: &'static str) -> Quantity {
    Quantity::Sample(name)
}

/// Returns a target whose limit the median of the rounds must meet.
const fn median(what: &'static str, unit: &'static str, limit: f64, figure: Figure) -> Target {
    Target {
        what,
        unit,
        limit,
        figure,
        judge: Judge::Median,
    }
}

/// Returns a target whose limit each round must meet.
const fn each_run(what: &'static str, unit: &'static str, limit: f64, figure: Figure) -> Target {
    Target {
        what,
        unit,
        limit,
        figure,
        judge: Judge::EachRun,
    }
}

pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "Receive, forward, transcode",
        targets: &[
            median(
                "receive only, 1000 streams: CPU per packet compared with stock udpsrc",
                "x",
                0.28,
                Figure::Ratio(cpu("receive-1000"), cpu("stock-receive-1000")),
            ),
            median(
                "receive only, 1000 streams: CPU per packet compared with the hand-written loop",
                "x",
                1.05,
                Figure::Ratio(cpu("receive-1000"), cpu("floor-1000")),
            ),
            median(
                "receive only, 3000 streams: CPU per packet compared with the hand-written loop",
                "x",
                1.05,
                Figure::Ratio(cpu("receive-3000"), cpu("floor-3000")),
            ),
            median(
                "receive only, 3000 streams: CPU per packet",
                "µs",
                3.3,
                Figure::Of(cpu("receive-3000")),
            ),
            each_run(
                "receive only, 3000 streams: lost",
                "packets",
                0.0,
                Figure::Of(run("receive-3000", Measured::lost)),
            ),
            median(
                "transcode and send, 1000 streams: CPU per packet",
                "µs",
                11.0,
                Figure::Of(cpu("transcode-1000")),
            ),
            each_run(
                "receive only, 1000 streams: threads besides that of the context",
                "threads",
                6.0,
                Figure::Of(run("receive-1000", Measured::threads_beside_the_context)),
            ),
            each_run(
                "transcode and send, 1000 streams: lost",
                "packets",
                0.0,
                Figure::Of(run("transcode-1000", Measured::lost)),
            ),
            each_run(
                "transcode and send, 1000 streams: threads besides that of the context",
                "threads",
                6.0,
                Figure::Of(run("transcode-1000", Measured::threads_beside_the_context)),
            ),
            each_run(
                "transcode and send: additional threads for 1000 streams, compared with 1 stream",
                "threads",
                0.0,
                Figure::Difference(
                    run("transcode-1000", Measured::threads_beside_the_context),
                    run("transcode-1", Measured::threads_beside_the_context),
                ),
            ),
            each_run(
                "heap allocations per packet, ts-udpsrc to ts-udpsink",
                "calls",
                0.0,
                Figure::Of(run("forward-100-allocations", Measured::allocations)),
            ),
            median(
                "resident memory per receive-only stream, 1000 streams",
                "KiB",
                16.0,
                Figure::Of(run("receive-1000", Measured::resident_kib_per_stream)),
            ),
            median(
                "start-up of 3000 streams",
                "s",
                2.0,
                Figure::Of(run("receive-3000", Measured::setup_seconds)),
            ),
            median(
                "receive only, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
                "x",
                0.7,
                Figure::Ratio(cpu("receive-1000"), cpu("peer-receive-1000")),
            ),
            median(
                "receive and forward, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
                "x",
                0.7,
                Figure::Ratio(cpu("forward-1000"), cpu("peer-forward-1000")),
            ),
            median(
                "transcode and send, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
                "x",
                0.7,
                Figure::Ratio(cpu("transcode-1000"), cpu("peer-transcode-1000")),
            ),
        ],
    },
    Part {
        name: "Whole RTP sessions",
        targets: &[
            median(
                "full session, 1000 streams: CPU per packet",
                "µs",
                7.0,
                Figure::Of(cpu("session-1000")),
            ),
            median(
                "full session, 1000 streams: CPU per packet compared with a bare loop that receives and sends",
                "x",
                1.6,
                Figure::Ratio(cpu("session-1000"), cpu("relay-floor-1000")),
            ),
            each_run(
                "full session, 2800 streams on one context: lost",
                "packets",
                0.0,
                Figure::Of(run("session-2800", Measured::lost)),
            ),
            // Above this limit, one core cannot carry 2800 x 50 packets/s, even if the kernel's buffers hide the overload for a while.
            median(
                "full session, 2800 streams on one context: CPU per packet",
                "µs",
                7.14,
                Figure::Of(cpu("session-2800")),
            ),
            median(
                "full session, 100 streams: CPU per packet compared with two stock rtpbins each",
                "x",
                0.13,
                Figure::Ratio(cpu("session-100"), cpu("stock-session-100")),
            ),
            median(
                "full session, 3000 streams on one shared port: CPU per packet",
                "µs",
                6.0,
                Figure::Of(cpu("shared-port-3000")),
            ),
            each_run(
                "full session, 3000 streams on one shared port: lost",
                "packets",
                0.0,
                Figure::Of(run("shared-port-3000", Measured::lost)),
            ),
            each_run(
                "full session, 1000 streams: threads besides that of the context",
                "threads",
                6.0,
                Figure::Of(run("session-1000", Measured::threads_beside_the_context)),
            ),
            median(
                "resident memory per full session, 1000 streams",
                "KiB",
                48.0,
                Figure::Of(run("session-1000", Measured::resident_kib_per_stream)),
            ),
            each_run(
                "full session, 100 streams: threads besides that of the context",
                "threads",
                6.0,
                Figure::Of(run("session-100", Measured::threads_beside_the_context)),
            ),
            median(
                "resident memory per full session, 100 streams",
                "KiB",
                48.0,
                Figure::Of(run("session-100", Measured::resident_kib_per_stream)),
            ),
            each_run(
                "heap allocations per packet, full session",
                "calls",
                0.0,
                Figure::Of(run("session-100-allocations", Measured::allocations)),
            ),
        ],
    },
    Part {
        name: "G.711 to Opus",
        targets: &[
            median(
                "G.711 to Opus, complexity 0, full session: CPU compared with the bare codec in a bare loop",
                "x",
                1.1,
                Figure::Ratio(cpu("opus-0-100"), cpu("relay-opus-0-100")),
            ),
            median(
                "G.711 to Opus, complexity 5, full session: CPU compared with the bare codec in a bare loop",
                "x",
                1.1,
                Figure::Ratio(cpu("opus-5-100"), cpu("relay-opus-5-100")),
            ),
            median(
                "G.711 to Opus, complexity 10, full session: CPU compared with the bare codec in a bare loop",
                "x",
                1.1,
                Figure::Ratio(cpu("opus-10-100"), cpu("relay-opus-10-100")),
            ),
        ],
    },
    Part {
        name: "Own data and hops between contexts",
        targets: &[
            median(
                "1000 ts-appsrc ! ts-queue, one context: CPU per buffer, the application's included",
                "µs",
                4.0,
                Figure::Of(cpu("app-1000")),
            ),
            each_run(
                "heap allocations per buffer, ts-appsrc ! ts-queue",
                "calls",
                0.0,
                Figure::Of(run("app-100-allocations", Measured::allocations)),
            ),
            median(
                "1000 ts-tonesrc, 20 ms at 8 kHz: CPU compared with stock audiotestsrc",
                "x",
                0.3,
                Figure::Ratio(cpu("tones-1000"), cpu("stock-tones-1000")),
            ),
            each_run(
                "1000 ts-tonesrc: threads besides the main thread",
                "threads",
                1.0,
                Figure::Of(run("tones-1000", Measured::threads_beside_the_context)),
            ),
            median(
                "hop from one context to another, ts-queue: CPU per buffer",
                "µs",
                1.5,
                Figure::Difference(cpu("queue-hop-1000"), cpu("tones-1000")),
            ),
            median(
                "hop from one context to another, ts-proxysink to ts-proxysrc: CPU per buffer",
                "µs",
                1.5,
                Figure::Difference(cpu("proxy-hop-1000"), cpu("tones-1000")),
            ),
            each_run(
                "hop from one context to another, ts-queue: 99th percentile of the time",
                "ms",
                20.0,
                Figure::Of(run("queue-hop-1000-timed", Measured::hop_p99_ms)),
            ),
            each_run(
                "hop from one context to another, ts-proxysink to ts-proxysrc: 99th percentile of the time",
                "ms",
                20.0,
                Figure::Of(run("proxy-hop-1000-timed", Measured::hop_p99_ms)),
            ),
        ],
    },
    Part {
        name: "Fallback",
        targets: &[
            median(
                "200 fallbackswitch: additional CPU per packet, compared with ts-queue in their place",
                "µs",
                3.0,
                Figure::Difference(cpu("switch-200"), cpu("switch-queue-200")),
            ),
            each_run(
                "fallbackswitch: additional threads for 200 elements, compared with 1",
                "threads",
                0.0,
                Figure::Difference(
                    run("switch-200", Measured::threads_beside_the_context),
                    run("switch-1", Measured::threads_beside_the_context),
                ),
            ),
            each_run(
                "200 fallbackswitch: lost",
                "packets",
                0.0,
                Figure::Of(run("switch-200", Measured::lost)),
            ),
            each_run(
                "output frozen after an error of the source",
                "buffers",
                1.0,
                Figure::Of(sample(AFTER_ERROR)),
            ),
            each_run(
                "output frozen after a silent stall, in addition to the timeout",
                "buffers",
                1.0,
                Figure::Of(sample(AFTER_STALL)),
            ),
            each_run(
                "switches in ten minutes, with jitter shorter than the timeout",
                "switches",
                0.0,
                Figure::Of(sample(UNDER_JITTER)),
            ),
        ],
    },
    Part {
        name: "Flood",
        targets: &[
            each_run(
                "50,000 packets/s to one of 1000 streams: packets that the other streams lost",
                "packets",
                0.0,
                Figure::Of(run("receive-1000-flooded", Measured::lost)),
            ),
            median(
                "50,000 packets/s to one of 1000 streams: slice lateness (99 %) compared with the same streams without a flood",
                "x",
                2.0,
                Figure::Ratio(
                    run("receive-1000-flooded", Measured::late_p99_us),
                    run("receive-1000-not-flooded", Measured::late_p99_us),
                ),
            ),
            median(
                "the same, compared with a flood to another process, which loads the machine but not the context",
                "x",
                2.0,
                Figure::Ratio(
                    run("receive-1000-flooded", Measured::late_p99_us),
                    run("receive-1000-flood-elsewhere", Measured::late_p99_us),
                ),
            ),
        ],
    },
    Part {
        name: "Idle",
        targets: &[
            each_run(
                "idle, 20 ms slices: wake-ups of all threads in the window",
                "wake-ups",
                0.0,
                Figure::Of(run("idle-wait-20", Measured::wake_ups)),
            ),
            each_run(
                "idle, no throttling: wake-ups of all threads in the window",
                "wake-ups",
                0.0,
                Figure::Of(run("idle-wait-0", Measured::wake_ups)),
            ),
            each_run(
                "idle, no throttling: CPU time in the window",
                "ms",
                1.0,
                Figure::Of(run("idle-wait-0", Measured::idle_cpu_ms)),
            ),
        ],
    },
    Part {
        name: "Loudness",
        targets: &[
            median(
                "momentary: CPU compared with Debian's libebur128",
                "x",
                0.3,
                Figure::Ratio(sample("ebur128 M, ours"), sample("ebur128 M, Debian")),
            ),
            median(
                "momentary: CPU per channel and sample",
                "ns",
                1.6,
                Figure::Of(sample("ebur128 M, ours")),
            ),
            median(
                "integrated: CPU compared with Debian's libebur128",
                "x",
                0.25,
                Figure::Ratio(sample("ebur128 I, ours"), sample("ebur128 I, Debian")),
            ),
            median(
                "integrated: CPU per channel and sample",
                "ns",
                1.8,
                Figure::Of(sample("ebur128 I, ours")),
            ),
            median(
                "integrated and range: CPU compared with Debian's libebur128",
                "x",
                0.25,
                Figure::Ratio(
                    sample("ebur128 I+LRA, ours"),
                    sample("ebur128 I+LRA, Debian"),
                ),
            ),
            median(
                "integrated and range: CPU per channel and sample",
                "ns",
                2.0,
                Figure::Of(sample("ebur128 I+LRA, ours")),
            ),
            median(
                "true peak: CPU compared with Debian's libebur128",
                "x",
                0.1,
                Figure::Ratio(
                    sample("ebur128 true-peak, ours"),
                    sample("ebur128 true-peak, Debian"),
                ),
            ),
            median(
                "true peak: CPU per channel and sample",
                "ns",
                2.9,
                Figure::Of(sample("ebur128 true-peak, ours")),
            ),
            median(
                "integrated, range and true peak: CPU compared with Debian's libebur128",
                "x",
                0.1,
                Figure::Ratio(
                    sample("ebur128 I+LRA+true-peak, ours"),
                    sample("ebur128 I+LRA+true-peak, Debian"),
                ),
            ),
            median(
                "integrated, range and true peak: CPU per channel and sample",
                "ns",
                3.3,
                Figure::Of(sample("ebur128 I+LRA+true-peak, ours")),
            ),
            // Above this limit, one core is too slow for the audio.
            median(
                "2000 live stereo meters of all values, 20 ms at a time: share of one core",
                "%",
                100.0,
                Figure::Of(sample(LIVE_METERS)),
            ),
            median(
                "audioloudnorm: CPU compared with ffmpeg's loudnorm",
                "x",
                0.1,
                Figure::Ratio(sample(NORMALIZE_OURS), sample(NORMALIZE_FFMPEG)),
            ),
            median(
                "audioloudnorm: memory per stream",
                "MiB",
                3.0,
                Figure::Of(sample(NORMALIZE_MEMORY)),
            ),
        ],
    },
];

/// Comparisons with the usual alternatives, for the README.
pub(crate) const COMPARISONS: &[Comparable] = &[
    Comparable {
        what: "receive, 1000 streams: CPU per packet",
        unit: "µs",
        peer: "stock `udpsrc`",
        theirs: cpu("stock-receive-1000"),
        ours: cpu("receive-1000"),
        target: "receive only, 1000 streams: CPU per packet compared with stock udpsrc",
    },
    Comparable {
        what: "receive, 1000 streams: threads",
        unit: "threads",
        peer: "stock `udpsrc`",
        theirs: run("stock-receive-1000", Measured::threads),
        ours: run("receive-1000", Measured::threads),
        target: "receive only, 1000 streams: threads besides that of the context",
    },
    Comparable {
        what: "whole RTP session, 100 streams: CPU per packet",
        unit: "µs",
        peer: "two stock `rtpbin`s each",
        theirs: cpu("stock-session-100"),
        ours: cpu("session-100"),
        target: "full session, 100 streams: CPU per packet compared with two stock rtpbins each",
    },
    Comparable {
        what: "whole RTP session, 100 streams: threads",
        unit: "threads",
        peer: "two stock `rtpbin`s each",
        theirs: run("stock-session-100", Measured::threads),
        ours: run("session-100", Measured::threads),
        target: "full session, 100 streams: threads besides that of the context",
    },
    Comparable {
        what: "whole RTP session, 100 streams: memory per stream",
        unit: "KiB",
        peer: "two stock `rtpbin`s each",
        theirs: run("stock-session-100", Measured::resident_kib_per_stream),
        ours: run("session-100", Measured::resident_kib_per_stream),
        target: "resident memory per full session, 100 streams",
    },
    Comparable {
        what: "receive, 1000 streams: CPU per packet",
        unit: "µs",
        peer: "threadshare 0.15.4",
        theirs: cpu("peer-receive-1000"),
        ours: cpu("receive-1000"),
        target: "receive only, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
    },
    Comparable {
        what: "receive and forward, 1000 streams: CPU per packet",
        unit: "µs",
        peer: "threadshare 0.15.4",
        theirs: cpu("peer-forward-1000"),
        ours: cpu("forward-1000"),
        target: "receive and forward, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
    },
    Comparable {
        what: "transcode and send, 1000 streams: CPU per packet",
        unit: "µs",
        peer: "threadshare 0.15.4",
        theirs: cpu("peer-transcode-1000"),
        ours: cpu("transcode-1000"),
        target: "transcode and send, 1000 streams: CPU per packet compared with gst-plugin-threadshare 0.15.4",
    },
    Comparable {
        what: "transcode and send, 1000 streams: lost",
        unit: "packets",
        peer: "threadshare 0.15.4",
        theirs: run("peer-transcode-1000", Measured::lost),
        ours: run("transcode-1000", Measured::lost),
        target: "transcode and send, 1000 streams: lost",
    },
    Comparable {
        what: "receive, 1000 streams: CPU per packet",
        unit: "µs",
        peer: "a hand-written loop",
        theirs: cpu("floor-1000"),
        ours: cpu("receive-1000"),
        target: "receive only, 1000 streams: CPU per packet compared with the hand-written loop",
    },
    Comparable {
        what: "loudness, range and true peak: CPU per channel and sample",
        unit: "ns",
        peer: "libebur128 (Debian)",
        theirs: sample("ebur128 I+LRA+true-peak, Debian"),
        ours: sample("ebur128 I+LRA+true-peak, ours"),
        target: "integrated, range and true peak: CPU compared with Debian's libebur128",
    },
    Comparable {
        what: "loudness normalisation: CPU per second of audio",
        unit: "ms",
        peer: "ffmpeg `loudnorm`",
        theirs: sample(NORMALIZE_FFMPEG),
        ours: sample(NORMALIZE_OURS),
        target: "audioloudnorm: CPU compared with ffmpeg's loudnorm",
    },
];
