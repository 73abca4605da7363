//! The table of targets: from runs to figures, from figures to pass or not.

use std::collections::BTreeMap;

use serde::Serialize;
use threadbare_bench::stats::Spread;

use super::run::Measured;

/// The runs of each case, by name, in the order of the rounds.
pub(crate) type Runs = BTreeMap<&'static str, Vec<Measured>>;

type Metric = fn(&Measured) -> Option<f64>;

/// How a row's figure comes from the runs.
#[derive(Clone, Copy)]
enum Figure {
    Of(&'static str, Metric),
    /// First over second, within one round.
    Ratio(&'static str, &'static str, Metric),
    /// First minus second.
    Difference(&'static str, &'static str, Metric),
}

/// Whether the median is held against the limit, or each single run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    Median,
    EachRun,
}

/// A row of the table: at most `limit`.
pub(crate) struct Target {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) limit: f64,
    figure: Figure,
    judge: Judge,
}

/// A row with its figures; without any if a case it needs did not run.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) limit: f64,
    pub(crate) measured: Option<Spread>,
    pub(crate) pass: Option<bool>,
}

const fn target(
    what: &'static str,
    unit: &'static str,
    limit: f64,
    figure: Figure,
    judge: Judge,
) -> Target {
    Target {
        what,
        unit,
        limit,
        figure,
        judge,
    }
}

pub(crate) const TARGETS: &[Target] = &[
    target(
        "receive only, 1000 streams: CPU per packet against stock udpsrc",
        "x",
        0.28,
        Figure::Ratio("receive-1000", "stock-receive-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "receive only, 1000 streams: against the hand-written loop",
        "x",
        1.05,
        Figure::Ratio("receive-1000", "floor-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "receive only, 3000 streams: against the hand-written loop",
        "x",
        1.05,
        Figure::Ratio("receive-3000", "floor-3000", us_per_packet),
        Judge::Median,
    ),
    target(
        "receive only, 3000 streams: CPU per packet",
        "µs",
        3.3,
        Figure::Of("receive-3000", us_per_packet),
        Judge::Median,
    ),
    target(
        "receive only, 3000 streams: lost",
        "packets",
        0.0,
        Figure::Of("receive-3000", lost),
        Judge::EachRun,
    ),
    target(
        "transcode and send, 1000 streams: CPU per packet",
        "µs",
        11.0,
        Figure::Of("transcode-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "transcode and send, 1000 streams: lost",
        "packets",
        0.0,
        Figure::Of("transcode-1000", lost),
        Judge::EachRun,
    ),
    target(
        "transcode and send, 1000 streams: threads beside the context's",
        "threads",
        6.0,
        Figure::Of("transcode-1000", threads_beside_the_context),
        Judge::EachRun,
    ),
    target(
        "transcode and send: threads at 1000 streams more than at 1",
        "threads",
        0.0,
        Figure::Difference("transcode-1000", "transcode-1", threads_beside_the_context),
        Judge::EachRun,
    ),
    target(
        "heap allocations per packet, ts-udpsrc to ts-udpsink",
        "calls",
        0.0,
        Figure::Of("forward-100-allocations", allocations),
        Judge::EachRun,
    ),
    target(
        "resident memory per receive-only stream, 1000 streams",
        "KiB",
        16.0,
        Figure::Of("receive-1000", resident_kib_per_stream),
        Judge::Median,
    ),
    target(
        "start-up of 3000 streams",
        "s",
        2.0,
        Figure::Of("receive-3000", setup_seconds),
        Judge::Median,
    ),
    target(
        "idle, 20 ms slices: wake-ups of all threads in the window",
        "wake-ups",
        0.0,
        Figure::Of("idle-wait-20", wake_ups),
        Judge::EachRun,
    ),
    target(
        "idle, no throttling: wake-ups of all threads in the window",
        "wake-ups",
        0.0,
        Figure::Of("idle-wait-0", wake_ups),
        Judge::EachRun,
    ),
    target(
        "idle, no throttling: CPU time in the window",
        "ms",
        1.0,
        Figure::Of("idle-wait-0", idle_cpu_ms),
        Judge::EachRun,
    ),
    target(
        "receive only, 1000 streams: against gst-plugin-threadshare 0.15.4",
        "x",
        0.7,
        Figure::Ratio("receive-1000", "peer-receive-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "receive and send on, 1000 streams: against gst-plugin-threadshare 0.15.4",
        "x",
        0.7,
        Figure::Ratio("forward-1000", "peer-forward-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "transcode and send, 1000 streams: against gst-plugin-threadshare 0.15.4",
        "x",
        0.7,
        Figure::Ratio("transcode-1000", "peer-transcode-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 1000 streams: CPU per packet",
        "µs",
        7.0,
        Figure::Of("session-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 1000 streams: against a bare loop that receives and sends",
        "x",
        1.6,
        Figure::Ratio("session-1000", "relay-floor-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 2800 streams on one context: lost",
        "packets",
        0.0,
        Figure::Of("session-2800", lost),
        Judge::EachRun,
    ),
    target(
        // More, and one core does not carry 2800 x 50 packets/s, however long the kernel's buffers hide it.
        "full session, 2800 streams on one context: CPU per packet",
        "µs",
        7.14,
        Figure::Of("session-2800", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 100 streams: against two stock rtpbins each",
        "x",
        0.13,
        Figure::Ratio("session-100", "stock-session-100", us_per_packet),
        Judge::Median,
    ),
    target(
        "G.711 to Opus, complexity 0, full session: against the bare codec in a bare loop",
        "x",
        1.1,
        Figure::Ratio("opus-0-100", "relay-opus-0-100", us_per_packet),
        Judge::Median,
    ),
    target(
        "G.711 to Opus, complexity 5, full session: against the bare codec in a bare loop",
        "x",
        1.1,
        Figure::Ratio("opus-5-100", "relay-opus-5-100", us_per_packet),
        Judge::Median,
    ),
    target(
        "G.711 to Opus, complexity 10, full session: against the bare codec in a bare loop",
        "x",
        1.1,
        Figure::Ratio("opus-10-100", "relay-opus-10-100", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 3000 streams on one shared port: CPU per packet",
        "µs",
        6.0,
        Figure::Of("shared-port-3000", us_per_packet),
        Judge::Median,
    ),
    target(
        "full session, 3000 streams on one shared port: lost",
        "packets",
        0.0,
        Figure::Of("shared-port-3000", lost),
        Judge::EachRun,
    ),
    target(
        "full session, 1000 streams: threads beside the context's",
        "threads",
        6.0,
        Figure::Of("session-1000", threads_beside_the_context),
        Judge::EachRun,
    ),
    target(
        "resident memory per full session, 1000 streams",
        "KiB",
        48.0,
        Figure::Of("session-1000", resident_kib_per_stream),
        Judge::Median,
    ),
    target(
        "heap allocations per packet, full session",
        "calls",
        0.0,
        Figure::Of("session-100-allocations", allocations),
        Judge::EachRun,
    ),
    target(
        "1000 ts-appsrc ! ts-queue, one context: CPU per buffer, the application's included",
        "µs",
        4.0,
        Figure::Of("app-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "heap allocations per buffer, ts-appsrc ! ts-queue",
        "calls",
        0.0,
        Figure::Of("app-100-allocations", allocations),
        Judge::EachRun,
    ),
    target(
        "1000 ts-tonesrc, 20 ms at 8 kHz: against stock audiotestsrc",
        "x",
        0.3,
        Figure::Ratio("tones-1000", "stock-tones-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "1000 ts-tonesrc: threads beside the main thread",
        "threads",
        1.0,
        Figure::Of("tones-1000", threads_beside_the_context),
        Judge::EachRun,
    ),
    target(
        "hop from one context to another, ts-queue: CPU per buffer",
        "µs",
        1.5,
        Figure::Difference("queue-hop-1000", "tones-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "hop from one context to another, ts-proxysink to ts-proxysrc: CPU per buffer",
        "µs",
        1.5,
        Figure::Difference("proxy-hop-1000", "tones-1000", us_per_packet),
        Judge::Median,
    ),
    target(
        "hop from one context to another, ts-queue: 99 % take at most",
        "ms",
        20.0,
        Figure::Of("queue-hop-1000-timed", hop_p99_ms),
        Judge::EachRun,
    ),
    target(
        "hop from one context to another, ts-proxysink to ts-proxysrc: 99 % take at most",
        "ms",
        20.0,
        Figure::Of("proxy-hop-1000-timed", hop_p99_ms),
        Judge::EachRun,
    ),
    target(
        "50,000 packets/s to one of 1000 streams: the others lost",
        "packets",
        0.0,
        Figure::Of("receive-1000-flooded", lost),
        Judge::EachRun,
    ),
    target(
        "50,000 packets/s to one of 1000 streams: slice lateness (99 %) against the same flood to nobody",
        "x",
        2.0,
        Figure::Ratio(
            "receive-1000-flooded",
            "receive-1000-flood-elsewhere",
            late_p99_us,
        ),
        Judge::Median,
    ),
];

impl Target {
    pub(crate) fn judge(&self, runs: &Runs) -> Row {
        let measured = Spread::of(&self.figures(runs));
        let pass = measured.map(|spread| match self.judge {
            Judge::Median => spread.median <= self.limit,
            Judge::EachRun => spread.max <= self.limit,
        });
        let Target {
            what, unit, limit, ..
        } = *self;
        Row {
            what,
            unit,
            limit,
            measured,
            pass,
        }
    }

    fn figures(&self, runs: &Runs) -> Vec<f64> {
        match self.figure {
            Figure::Of(case, metric) => of(runs, case).iter().filter_map(metric).collect(),
            Figure::Ratio(first, second, metric) => paired(
                of(runs, first),
                of(runs, second),
                metric,
                |first, second| first / second,
            ),
            Figure::Difference(first, second, metric) => paired(
                of(runs, first),
                of(runs, second),
                metric,
                |first, second| first - second,
            ),
        }
    }
}

fn of<'a>(runs: &'a Runs, case: &str) -> &'a [Measured] {
    runs.get(case).map_or(&[], Vec::as_slice)
}

/// Round by round; a case that runs only once stands beside each round of the other.
fn paired(
    first: &[Measured],
    second: &[Measured],
    metric: Metric,
    combine: fn(f64, f64) -> f64,
) -> Vec<f64> {
    if second.is_empty() {
        return Vec::new();
    }
    let second = second
        .iter()
        .chain(std::iter::repeat(&second[second.len() - 1]));
    let pairs = first.iter().zip(second);
    pairs
        .filter_map(|(first, second)| Some(combine(metric(first)?, metric(second)?)))
        .collect()
}

fn us_per_packet(run: &Measured) -> Option<f64> {
    run.done.as_ref()?.window.cpu_us_per_buffer
}

fn allocations(run: &Measured) -> Option<f64> {
    run.done.as_ref()?.window.allocations_per_buffer
}

/// Before the counted pad, and after it on the way out.
pub(crate) fn lost(run: &Measured) -> Option<f64> {
    let inside = run.done.as_ref()?.lost?;
    Some((inside + run.lost_on_the_way_out.unwrap_or(0)) as f64)
}

/// Every case here runs on one context with one thread.
fn threads_beside_the_context(run: &Measured) -> Option<f64> {
    Some(run.done.as_ref()?.threads as f64 - 1.0)
}

pub(crate) fn resident_kib_per_stream(run: &Measured) -> Option<f64> {
    let more = run.done.as_ref()?.resident_kib as f64 - run.ready.resident_kib_first as f64;
    Some(more / f64::from(run.streams.max(2) - 1))
}

fn hop_p99_ms(run: &Measured) -> Option<f64> {
    Some(run.done.as_ref()?.hops?.p99_us as f64 / 1e3)
}

fn late_p99_us(run: &Measured) -> Option<f64> {
    run.late_p99_us.map(|us| us as f64)
}

fn setup_seconds(run: &Measured) -> Option<f64> {
    Some(run.ready.setup_seconds)
}

fn wake_ups(run: &Measured) -> Option<f64> {
    Some(run.idle.as_ref()?.switches.values().sum::<u64>() as f64)
}

fn idle_cpu_ms(run: &Measured) -> Option<f64> {
    Some(run.idle.as_ref()?.cpu_ms)
}

#[cfg(test)]
mod tests {
    use threadbare_bench::measure::Window;
    use threadbare_bench::session::{Done, Ready};

    use super::super::cases::CASES;
    use super::*;

    fn run_with(us: f64, lost: i64) -> Measured {
        let window = Window {
            seconds: 1.0,
            buffers: 1,
            cpu_percent: 1.0,
            cpu_us_per_buffer: Some(us),
            switches_per_second: 0.0,
            allocations_per_buffer: None,
        };
        Measured {
            streams: 1001,
            ready: Ready {
                setup_seconds: 0.5,
                resident_kib_first: 1000,
            },
            done: Some(Done {
                window,
                threads: 3,
                resident_kib: 9000,
                arrived: 10,
                lost: Some(lost),
                hops: None,
            }),
            idle: None,
            sender_late_ms_max: None,
            lost_on_the_way_out: None,
            late_p99_us: None,
        }
    }

    fn row(what: &str, runs: &Runs) -> Row {
        TARGETS
            .iter()
            .find(|target| target.what == what)
            .expect("a row")
            .judge(runs)
    }

    #[test]
    fn every_row_names_cases_that_exist() {
        for target in TARGETS {
            let names = match target.figure {
                Figure::Of(case, _) => vec![case],
                Figure::Ratio(first, second, _) | Figure::Difference(first, second, _) => {
                    vec![first, second]
                }
            };
            for name in names {
                assert!(
                    CASES.iter().any(|case| case.name == name),
                    "{}: {name}",
                    target.what
                );
            }
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let what = "receive only, 1000 streams: CPU per packet against stock udpsrc";
        let mut runs = Runs::new();
        assert!(row(what, &runs).measured.is_none());
        runs.insert(
            "receive-1000",
            vec![run_with(1.0, 0), run_with(2.0, 0), run_with(3.0, 0)],
        );
        runs.insert(
            "stock-receive-1000",
            vec![run_with(4.0, 0), run_with(4.0, 0), run_with(20.0, 0)],
        );
        let judged = row(what, &runs);
        assert_eq!(
            judged.measured,
            Some(Spread {
                median: 0.25,
                min: 0.15,
                max: 0.5
            })
        );
        assert_eq!(judged.pass, Some(true));
    }

    #[test]
    fn one_lost_packet_in_one_run_is_enough() {
        let mut runs = Runs::new();
        runs.insert(
            "receive-3000",
            vec![run_with(1.0, 0), run_with(1.0, 1), run_with(1.0, 0)],
        );
        assert_eq!(
            row("receive only, 3000 streams: lost", &runs).pass,
            Some(false)
        );
    }

    #[test]
    fn memory_is_shared_out_over_the_streams_that_were_added() {
        assert_eq!(resident_kib_per_stream(&run_with(1.0, 0)), Some(8.0));
    }
}
