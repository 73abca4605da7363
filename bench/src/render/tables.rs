//! The tables of README and docs/benchmarks.md, in Markdown.

use std::fmt::Write as _;

use super::figure::figure;
use super::plots;
use crate::results::{Comparison, Machine, Measured, Results, Row};
use crate::stats::Spread;

const NOT_YET: &str = "*Not measured yet: `make bench-readme` measures and fills this in.*";

/// Returns the short table of comparisons with other software, with the rows of [`DECIDING`].
pub(super) fn readme(results: Option<&Results>) -> String {
    let Some(results) = results else {
        return NOT_YET.into();
    };
    let mut text = origin(results);
    text.push_str("\n| | you use now | Threadbare | ratio |\n|---|---|---|---|\n");
    for (what, peer) in DECIDING {
        let Some(comparison) = find(results, what, peer) else {
            continue;
        };
        let ratio = ratio(comparison).map_or("–".into(), |ratio| format!("{} x", with(ratio)));
        let _ = writeln!(
            text,
            "| {what} | {peer}: {} | {} | {ratio} |",
            side(comparison, comparison.theirs),
            side(comparison, comparison.ours),
        );
    }
    let judged = || results.rows.iter().filter(|row| row.pass.is_some());
    let met = judged().filter(|row| row.pass == Some(true)).count();
    let _ = write!(
        text,
        "\n[docs/benchmarks.md](docs/benchmarks.md) has every comparison, and the {} of {} targets that this run missed.",
        judged().count() - met,
        judged().count()
    );
    text
}

/// Returns three figures of the run, for the top of the README.
pub(super) fn headline(results: Option<&Results>) -> String {
    let Some(results) = results else {
        return NOT_YET.into();
    };
    let [receive, threads, loudness] = HEADLINE.map(|(what, peer)| find(results, what, peer));
    let times = |comparison: Option<&Comparison>| {
        let spread = comparison.and_then(ratio);
        spread.map_or("–".into(), |spread| {
            format!("{} x", figure(spread.median))
        })
    };
    let count = |of: Option<Spread>| of.map_or("–".into(), |spread| figure(spread.median));
    let (ours, theirs) = (
        count(threads.and_then(|one| one.ours)),
        count(threads.and_then(|one| one.theirs)),
    );
    format!(
        "| {} | {ours} threads | {} |\n|---|---|---|\n\
         | of the CPU of stock `udpsrc`, for 1000 streams | instead of {theirs}, for the same streams | of the CPU of libebur128, for loudness and true peak |",
        times(receive),
        times(loudness),
    )
}

/// The comparisons that matter most for a reader's decision: what is compared, and with which software.
const DECIDING: [(&str, &str); 6] = [
    ("receive, 1000 streams: CPU per packet", "stock `udpsrc`"),
    ("receive, 1000 streams: threads", "stock `udpsrc`"),
    (
        "whole RTP session, 100 streams: CPU per packet",
        "two stock `rtpbin`s each",
    ),
    (
        "receive and forward, 1000 streams: CPU per packet",
        "threadshare 0.15.4",
    ),
    (
        "loudness, range and true peak: CPU per channel and sample",
        "libebur128 (Debian)",
    ),
    (
        "loudness normalisation: CPU per second of audio",
        "ffmpeg `loudnorm`",
    ),
];

const HEADLINE: [(&str, &str); 3] = [DECIDING[0], DECIDING[1], DECIDING[4]];

fn find<'r>(results: &'r Results, what: &str, peer: &str) -> Option<&'r Comparison> {
    let mut all = results.comparisons.iter();
    all.find(|one| (one.what.as_str(), one.peer.as_str()) == (what, peer))
}

/// Returns the ratio of our figure to the other one, if the comparison's target is a ratio.
fn ratio(comparison: &Comparison) -> Option<Spread> {
    let row = &comparison.row;
    (row.unit == "x").then_some(row.measured).flatten()
}

fn side(comparison: &Comparison, spread: Option<Spread>) -> String {
    spread.map_or("–".into(), |spread| with_unit(spread, &comparison.unit))
}

/// Returns the last screen of the demo.
pub(super) fn demo(results: Option<&Results>) -> String {
    match results.and_then(|results| results.demo.as_ref()) {
        None => NOT_YET.into(),
        Some(demo) => format!(
            "```text\n$ {}\n{}\n```",
            demo.command,
            demo.screen.trim_end()
        ),
    }
}

/// Returns the tables of all comparisons, targets and cases, and the plots.
pub(super) fn document(results: Option<&Results>) -> String {
    let Some(results) = results else {
        return NOT_YET.into();
    };
    let mut text = origin(results);
    text.push_str("\n### Against other software\n\n");
    text.push_str("| | you use now | Threadbare | measured, target | |\n|---|---|---|---|---|\n");
    for comparison in &results.comparisons {
        text.push_str(&comparison_line(comparison));
    }
    text.push_str("\n### Targets\n");
    let mut part = "";
    for row in &results.rows {
        if row.part != part {
            part = &row.part;
            let _ = write!(
                text,
                "\n| {part} | target | measured | |\n|---|---|---|---|\n"
            );
        }
        text.push_str(&row_line(row));
    }
    text.push_str("\n### Plots\n\n");
    for (path, alt) in plots::captions(results) {
        let path = path.trim_start_matches("docs/");
        let _ = write!(text, "![{alt}]({path})\n\n");
    }
    text.push_str("### All cases\n");
    text.push_str(CASE_HEAD);
    for (name, runs) in &results.runs {
        text.push_str(&case_line(name, runs));
    }
    if !results.samples.is_empty() {
        text.push_str("\n| other figures | measured |\n|---|---|\n");
    }
    for (name, sample) in &results.samples {
        if let Some(spread) = Spread::of(&sample.by_round) {
            let _ = writeln!(text, "| {name} | {} {} |", with(spread), sample.unit);
        }
    }
    if !results.remarks.is_empty() {
        text.push_str("\nRemarks of the run:\n\n");
    }
    for remark in &results.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    text.trim_end().into()
}

/// Returns a line with date, machine and number of rounds.
fn origin(results: &Results) -> String {
    let Results {
        machine,
        rounds,
        window_seconds,
        ..
    } = results;
    format!(
        "{}, {}; {rounds} rounds of {window_seconds} s, median (least to greatest).\n",
        run(
            &results.date_utc,
            &results.commit,
            results.tree_dirty,
            machine
        ),
        machine.gstreamer,
    )
}

/// Returns a line with date and machine.
pub(super) fn run(date_utc: &str, commit: &str, tree_dirty: bool, machine: &Machine) -> String {
    format!(
        "Measured in one run: {date_utc} UTC, commit {commit}{}; {} cores of {}, Linux {}, {}",
        if tree_dirty {
            " **with uncommitted changes**"
        } else {
            ""
        },
        machine.cores,
        machine.cpu,
        machine.kernel,
        machine.distribution,
    )
}

const CASE_HEAD: &str = "\n| case | CPU % | µs/packet | threads | switches/s | set-up s | KiB/stream | lost |\n\
                         |---|---|---|---|---|---|---|---|\n";

fn comparison_line(comparison: &Comparison) -> String {
    let Comparison { what, peer, .. } = comparison;
    let row = &comparison.row;
    let ratio = match (row.unit.as_str(), row.measured) {
        ("x", Some(measured)) => format!("{} x, ", with(measured)),
        _ => String::new(),
    };
    format!(
        "| {what} | {peer}: {} | {} | {ratio}≤ {} {} | {} |\n",
        side(comparison, comparison.theirs),
        side(comparison, comparison.ours),
        row.limit,
        limit_unit(row),
        verdict(row)
    )
}

/// Returns the unit of a row's limit. For threads, the returned text says that the context's own thread is not counted.
fn limit_unit(row: &Row) -> &str {
    match row.unit.as_str() {
        "threads" => "besides that of the context",
        unit => unit,
    }
}

fn verdict(row: &Row) -> &'static str {
    match row.pass {
        Some(true) => "pass",
        Some(false) => "**falls short**",
        None => "not measured",
    }
}

pub(super) fn row_line(row: &Row) -> String {
    let measured = row
        .measured
        .map_or("–".into(), |spread| with_unit(spread, &row.unit));
    format!(
        "| {} | ≤ {} {} | {measured} | {} |\n",
        row.what,
        row.limit,
        row.unit,
        verdict(row)
    )
}

fn case_line(name: &str, runs: &[Measured]) -> String {
    let column = |metric: fn(&Measured) -> Option<f64>| {
        let figures: Vec<f64> = runs.iter().filter_map(metric).collect();
        Spread::of(&figures).map_or("–".into(), with)
    };
    let columns = [
        column(Measured::cpu_percent),
        column(Measured::us_per_packet),
        column(Measured::threads),
        column(Measured::switches_per_second),
        column(Measured::setup_seconds),
        column(Measured::resident_kib_per_stream),
        column(Measured::lost),
    ];
    format!("| {name} | {} |\n", columns.join(" | "))
}

fn with_unit(spread: Spread, unit: &str) -> String {
    let is_one = spread.min == 1.0 && spread.max == 1.0;
    let unit = if is_one {
        unit.strip_suffix("s")
            .filter(|one| one.len() > 2)
            .unwrap_or(unit)
    } else {
        unit
    };
    format!("{} {unit}", with(spread))
}

pub(super) fn with(Spread { median, min, max }: Spread) -> String {
    if min == max {
        return figure(median);
    }
    format!("{} ({} to {})", figure(median), figure(min), figure(max))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::Demo;

    fn row(pass: bool) -> Row {
        Row {
            part: "p".into(),
            what: "w".into(),
            unit: "x".into(),
            limit: 0.28,
            measured: Some(Spread {
                median: 0.5,
                min: 0.25,
                max: 0.75,
            }),
            pass: Some(pass),
        }
    }

    fn results() -> Results {
        let spread = |figure| Spread::of(&[figure]);
        Results {
            date_utc: "2026-01-02 03:04".into(),
            commit: "abc".into(),
            tree_dirty: false,
            machine: Machine {
                cpu: "C".into(),
                cores: 2,
                kernel: "6".into(),
                distribution: "D".into(),
                gstreamer: "G".into(),
            },
            rounds: 3,
            warmup_seconds: 2.0,
            window_seconds: 5.0,
            rows: vec![row(true), row(false)],
            comparisons: vec![Comparison {
                what: DECIDING[0].0.into(),
                unit: "µs".into(),
                peer: DECIDING[0].1.into(),
                theirs: spread(8.0),
                ours: spread(4.0),
                row: row(false),
            }],
            demo: Some(Demo {
                command: "threadbare demo".into(),
                screen: "Every packet arrived.\n".into(),
            }),
            latencies: Vec::new(),
            remarks: Vec::new(),
            samples: BTreeMap::new(),
            runs: BTreeMap::new(),
        }
    }

    #[test]
    fn a_unit_is_singular_for_one() {
        let of = |figure| Spread::of(&[figure]).expect("a figure");
        assert_eq!(with_unit(of(1.0), "threads"), "1 thread");
        assert_eq!(with_unit(of(2.0), "threads"), "2 threads");
        assert_eq!(with_unit(of(1.0), "ms"), "1 ms");
    }

    #[test]
    fn a_row_that_misses_its_limit_says_so() {
        assert_eq!(
            row_line(&row(false)),
            "| w | ≤ 0.28 x | 0.50 (0.25 to 0.75) x | **falls short** |\n"
        );
    }

    #[test]
    fn readme_states_the_machine_and_the_rounds_and_the_results() {
        let text = readme(Some(&results()));
        for part in [
            "2026-01-02 03:04 UTC, commit abc; 2 cores of C, Linux 6, D, G; 3 rounds of 5 s",
            "| receive, 1000 streams: CPU per packet | stock `udpsrc`: 8 µs | 4 µs | 0.50 (0.25 to 0.75) x |",
            "the 1 of 2 targets that this run missed",
        ] {
            assert!(text.contains(part), "{part} in: {text}");
        }
        let all = document(Some(&results()));
        let line =
            "| stock `udpsrc`: 8 µs | 4 µs | 0.50 (0.25 to 0.75) x, ≤ 0.28 x | **falls short** |";
        assert!(all.contains(line), "{all}");
        assert!(headline(Some(&results())).starts_with("| 0.50 x |"));
        assert_eq!(
            demo(Some(&results())),
            "```text\n$ threadbare demo\nEvery packet arrived.\n```"
        );
    }

    #[test]
    fn uncommitted_changes_are_marked() {
        let dirty = Results {
            tree_dirty: true,
            ..results()
        };
        assert!(readme(Some(&dirty)).contains("commit abc **with uncommitted changes**"));
        assert!(document(Some(&dirty)).contains("commit abc **with uncommitted changes**"));
        assert!(!readme(Some(&results())).contains("uncommitted"));
    }

    #[test]
    fn without_a_results_file_the_pages_say_not_yet_measured() {
        for text in [readme(None), headline(None), demo(None), document(None)] {
            assert!(text.starts_with("*Not measured yet"), "{text}");
        }
    }
}
