//! The plots of docs/benchmarks.md.

use std::fmt::Write as _;

use super::figure::figure;
use super::svg::{Anchor, Frame, Svg};
use crate::results::{Latencies, Measured, Results};
use crate::stats::Spread;

/// Returns the path of each plot, and its text if there are results.
pub(super) fn all(results: Option<&Results>) -> Vec<(&'static str, Option<String>)> {
    vec![
        (RECEIVE.path, results.and_then(|all| lines(all, &RECEIVE))),
        (SESSION.path, results.and_then(|all| lines(all, &SESSION))),
        (LATENCY_PATH, results.and_then(latency)),
        (MEMORY_PATH, results.and_then(memory)),
    ]
}

/// Returns the path and the description of each plot for which there are results.
pub(super) fn captions(results: &Results) -> Vec<(&'static str, &'static str)> {
    let alt = |path| match path {
        LATENCY_PATH => LATENCY_TITLE,
        MEMORY_PATH => MEMORY_TITLE,
        path if path == RECEIVE.path => RECEIVE.title,
        _ => SESSION.title,
    };
    let plots = all(Some(results)).into_iter();
    plots
        .filter(|(_, text)| text.is_some())
        .map(|(path, _)| (path, alt(path)))
        .collect()
}

/// A plot of the CPU time per packet against the number of streams.
struct Lines {
    path: &'static str,
    title: &'static str,
    series: &'static [Series],
}

/// A line of a plot. Its points are the cases named `PREFIX-STREAMS`.
struct Series {
    name: &'static str,
    prefix: &'static str,
    colour: &'static str,
    is_dashed: bool,
}

const fn series(
    name: &'static str,
    prefix: &'static str,
    colour: &'static str,
    is_dashed: bool,
) -> Series {
    Series {
        name,
        prefix,
        colour,
        is_dashed,
    }
}

const RECEIVE: Lines = Lines {
    path: "docs/images/cpu-receive.svg",
    title: "Receiving RTP: CPU time per packet, by number of streams",
    series: &[
        series("stock udpsrc", "stock-receive", "a", false),
        series("threadshare 0.15.4", "peer-receive", "b", false),
        series("hand-written loop", "floor", "c", true),
        series("Threadbare", "receive", "ours", false),
    ],
};

const SESSION: Lines = Lines {
    path: "docs/images/cpu-session.svg",
    title: "Whole RTP session: CPU time per packet, by number of streams",
    series: &[
        series("two stock rtpbins each", "stock-session", "a", false),
        series("Threadbare", "session", "ours", false),
    ],
};

const WIDTH: u32 = 840;
const HEIGHT: u32 = 380;
const PLOT: Frame = Frame {
    x: 64.0,
    y: 66.0,
    width: 500.0,
    height: 250.0,
};

/// Points of a line: number of streams, and CPU time per packet in µs.
type Points = Vec<(u16, Spread)>;

fn points(results: &Results, prefix: &str) -> Points {
    let of_series = |(name, runs): (&String, &Vec<Measured>)| {
        let streams = name.strip_prefix(prefix)?.strip_prefix('-')?.parse().ok()?;
        let us: Vec<f64> = runs.iter().filter_map(Measured::us_per_packet).collect();
        Some((streams, Spread::of(&us)?))
    };
    let mut points: Points = results.runs.iter().filter_map(of_series).collect();
    points.sort_by_key(|(streams, _)| *streams);
    points
}

fn lines(results: &Results, plot: &Lines) -> Option<String> {
    let all: Vec<(&Series, Points)> = plot
        .series
        .iter()
        .map(|series| (series, points(results, series.prefix)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let each = || all.iter().flat_map(|(_, points)| points);
    let top = each().map(|(_, us)| us.max).reduce(f64::max)?;
    let (first, last) = (
        each().map(|point| point.0).min()?,
        each().map(|point| point.0).max()?,
    );
    let mut svg = Svg::new(WIDTH, HEIGHT, plot.title);
    heading(
        &mut svg,
        plot.title,
        "µs of CPU time per packet of 20 ms; bars from the least to the greatest round",
    );
    let scale_y = scale(&mut svg, top);
    let scale_x = |streams: u16| {
        let at = (f64::from(streams) / f64::from(first)).ln();
        let all = (f64::from(last) / f64::from(first))
            .ln()
            .max(f64::MIN_POSITIVE);
        PLOT.x + 16.0 + (PLOT.width - 32.0) * at / all
    };
    let mut ticks: Vec<u16> = each().map(|point| point.0).collect();
    ticks.sort_unstable();
    ticks.dedup();
    let mut free_from = f64::MIN;
    for streams in ticks {
        let x = scale_x(streams);
        if x >= free_from {
            free_from = x + 34.0;
            let place = (x, PLOT.y + PLOT.height + 20.0);
            svg.text(place, Anchor::Middle, 12.0, "soft", &streams.to_string());
        }
    }
    let place = (PLOT.x + PLOT.width / 2.0, PLOT.y + PLOT.height + 44.0);
    svg.text(place, Anchor::Middle, 12.0, "soft", "streams at once");
    for (series, points) in &all {
        draw_series(&mut svg, series, points, &scale_x, &scale_y);
    }
    let ends = all.iter().filter_map(|(series, points)| {
        let (streams, us) = points.last()?;
        let label = format!("{}, {} µs", series.name, figure(us.median));
        Some((
            (scale_x(*streams), scale_y(us.median)),
            label,
            series.colour,
        ))
    });
    label_ends(&mut svg, ends.collect());
    Some(svg.finish())
}

fn heading(svg: &mut Svg, title: &str, unit: &str) {
    svg.bold((24.0, 32.0), Anchor::Start, 16.0, "ink", title);
    svg.text((24.0, 52.0), Anchor::Start, 12.0, "soft", unit);
}

/// Draws horizontal lines at round values, from 0 to at least `top`. Returns a function that computes the position of a value.
fn scale(svg: &mut Svg, top: f64) -> impl Fn(f64) -> f64 + use<> {
    let step = round_step(top / 4.0);
    let steps = (top / step).ceil().max(1.0);
    let place = move |value: f64| PLOT.y + PLOT.height * (1.0 - value / (steps * step));
    for n in 0..=steps as u32 {
        let value = f64::from(n) * step;
        let y = place(value);
        let path = format!("M{:.1} {y:.1}H{:.1}", PLOT.x, PLOT.x + PLOT.width);
        svg.path(&path, "grid", 1.0);
        let label = figure((value * 1e6).round() / 1e6);
        svg.text((PLOT.x - 10.0, y + 4.0), Anchor::End, 12.0, "soft", &label);
    }
    place
}

/// Returns the lowest number that is at least `step` and is 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-6).log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= step);
    factor.unwrap_or(10.0) * power
}

fn draw_series(
    svg: &mut Svg,
    series: &Series,
    points: &Points,
    x: &impl Fn(u16) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let mut path = String::new();
    for (n, (streams, us)) in points.iter().enumerate() {
        let command = if n == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}", x(*streams), y(us.median));
    }
    let width = if series.colour == "ours" { 3.0 } else { 2.0 };
    if series.is_dashed {
        svg.dashed(&path, series.colour, width)
    } else {
        svg.path(&path, series.colour, width)
    }
    for (streams, us) in points {
        let (x, low, high) = (x(*streams), y(us.min), y(us.max));
        svg.path(&format!("M{x:.1} {low:.1}V{high:.1}"), series.colour, 1.5);
        svg.circle(x, y(us.median), width + 1.0, series.colour);
    }
}

type Label = ((f64, f64), String, &'static str);

/// Places labels to the right of the plot. Each label is as near to the end of its line as the other labels allow.
fn label_ends(svg: &mut Svg, mut labels: Vec<Label>) {
    const APART: f64 = 19.0;
    labels.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
    // Labels are placed from the bottom up, because none may be below the axis.
    let mut below = PLOT.y + PLOT.height + APART;
    for (_, y) in labels.iter_mut().rev().map(|label| &mut label.0) {
        *y = y.min(below - APART);
        below = *y;
    }
    let x = PLOT.x + PLOT.width + 12.0;
    for ((_, y), label, colour) in labels {
        svg.bold((x, y + 4.0), Anchor::Start, 12.0, colour, &label);
    }
}

const LATENCY_PATH: &str = "docs/images/latency.svg";
const LATENCY_TITLE: &str = "How long packets take through the gateway";
/// Colours of the histograms, in the order of the histograms.
const LATENCY_COLOURS: &[&str] = &["ours", "a", "b"];

fn latency(results: &Results) -> Option<String> {
    let all: Vec<(&Latencies, Vec<f64>)> = results
        .latencies
        .iter()
        .filter_map(|latencies| Some((latencies, shares(latencies)?)))
        .collect();
    let top = all
        .iter()
        .flat_map(|(_, shares)| shares.iter().copied())
        .reduce(f64::max)?;
    let end_ms = all.iter().map(|(_, shares)| shares.len()).max()?;
    let end_ms = end_ms.div_ceil(20).max(1) * 20;
    let mut svg = Svg::new(WIDTH, HEIGHT, LATENCY_TITLE);
    heading(
        &mut svg,
        LATENCY_TITLE,
        "% of the packets, by ms from the caller's send call to the listener's socket",
    );
    let y = scale(&mut svg, top);
    let x = |ms: usize| PLOT.x + PLOT.width * ms as f64 / end_ms as f64;
    for ms in (0..=end_ms).step_by(20) {
        let place = (x(ms), PLOT.y + PLOT.height + 20.0);
        svg.text(place, Anchor::Middle, 12.0, "soft", &ms.to_string());
    }
    let place = (PLOT.x + PLOT.width / 2.0, PLOT.y + PLOT.height + 44.0);
    svg.text(place, Anchor::Middle, 12.0, "soft", "ms");
    for (n, (latencies, shares)) in all.iter().enumerate() {
        let colour = LATENCY_COLOURS[n % LATENCY_COLOURS.len()];
        let mut path = format!("M{:.1} {:.1}", x(0), y(0.0));
        for (ms, share) in shares.iter().enumerate() {
            let _ = write!(path, "L{:.1} {:.1}H{:.1}", x(ms), y(*share), x(ms + 1));
        }
        let _ = write!(path, "V{:.1}Z", y(0.0));
        svg.area(&path, colour, 0.35);
        svg.path(&path, colour, 1.5);
        let mut place = (PLOT.x + PLOT.width + 12.0, PLOT.y + 24.0 + 64.0 * n as f64);
        for (line, text) in latencies.name.split(", ").enumerate() {
            match line {
                0 => svg.bold(place, Anchor::Start, 12.0, colour, text),
                _ => svg.text(place, Anchor::Start, 12.0, "soft", text),
            }
            place.1 += 16.0;
        }
    }
    Some(svg.finish())
}

/// Returns the share of packets for each millisecond of latency, in per cent. The list ends at the 99.9th percentile.
fn shares(latencies: &Latencies) -> Option<Vec<f64>> {
    let packets = &latencies.packets_by_ms;
    let all: u64 = packets.iter().sum();
    let mut seen = 0;
    let last = packets.iter().position(|count| {
        seen += count;
        all > 0 && seen as f64 >= all as f64 * 0.999
    })?;
    let share = |count: &u64| 100.0 * *count as f64 / all as f64;
    Some(packets[..=last].iter().map(share).collect())
}

const MEMORY_PATH: &str = "docs/images/memory.svg";
const MEMORY_TITLE: &str = "Resident memory per stream";

/// Bars of the memory plot: name, case and colour.
const MEMORY: &[(&str, &str, &str)] = &[
    ("receive: stock udpsrc", "stock-receive-1000", "a"),
    ("receive: threadshare 0.15.4", "peer-receive-1000", "b"),
    ("receive: Threadbare", "receive-1000", "ours"),
    ("session: two stock rtpbins each", "stock-session-100", "a"),
    ("session: Threadbare", "session-100", "ours"),
];

fn memory(results: &Results) -> Option<String> {
    let of_case = |(name, case, colour): &(&'static str, &str, &'static str)| {
        let runs = results.runs.get(*case)?;
        let kib = runs.iter().filter_map(Measured::resident_kib_per_stream);
        let kib = Spread::of(&kib.collect::<Vec<f64>>())?;
        Some(((*name).to_owned(), kib, *colour))
    };
    bars(
        MEMORY_TITLE,
        "KiB; receiving: of 1000 streams, whole sessions: of 100",
        &MEMORY.iter().filter_map(of_case).collect::<Vec<Bar>>(),
    )
}

/// A bar: name, length (the median is drawn) and colour.
pub(super) type Bar = (String, Spread, &'static str);

/// Draws horizontal bars below each other, with their names to the left.
pub(super) fn bars(title: &str, unit: &str, bars: &[Bar]) -> Option<String> {
    let medians = bars.iter().map(|(_, length, _)| length.median);
    let most = medians.reduce(f64::max)?.max(1.0);
    let height = 84 + 40 * bars.len() as u32;
    let mut svg = Svg::new(WIDTH, height, title);
    heading(&mut svg, title, unit);
    let (left, room) = (240.0, 500.0);
    for (n, (name, length, colour)) in bars.iter().enumerate() {
        let y = 76.0 + 40.0 * n as f64;
        svg.text((left - 12.0, y + 18.0), Anchor::End, 13.0, "ink", name);
        let width = (room * length.median / most).max(2.0);
        svg.rect(Frame::new(left, y, width, 26.0), 4.0, colour);
        let place = (left + width + 8.0, y + 18.0);
        svg.bold(place, Anchor::Start, 13.0, "ink", &figure(length.median));
    }
    Some(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_steps_are_round_numbers() {
        for (least, step) in [
            (0.3, 0.5),
            (1.0, 1.0),
            (2.1, 5.0),
            (15.0, 20.0),
            (51.0, 100.0),
        ] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }

    #[test]
    fn labels_do_not_overlap() {
        let mut svg = Svg::new(10, 10, "");
        let label = |y| ((0.0, y), "x".to_owned(), "ours");
        label_ends(
            &mut svg,
            vec![label(300.0), label(301.0), label(302.0), label(80.0)],
        );
        let text = svg.finish();
        let mut heights: Vec<f64> = text
            .split(" y=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .skip(1)
            .collect();
        assert_eq!(heights.len(), 4);
        heights.sort_by(f64::total_cmp);
        assert!(
            heights.windows(2).all(|pair| pair[1] - pair[0] >= 18.9),
            "{heights:?}"
        );
    }

    #[test]
    fn histogram_ends_at_a_high_quantile() {
        let mut packets_by_ms = vec![0; 250];
        (packets_by_ms[2], packets_by_ms[40], packets_by_ms[249]) = (1000, 8999, 1);
        let latencies = Latencies {
            name: "x".into(),
            packets_by_ms,
        };
        let shares = shares(&latencies).expect("packets");
        assert_eq!(shares.len(), 41);
        assert!((shares[2] - 10.0).abs() < 1e-9);
    }
}
