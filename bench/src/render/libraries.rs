//! The tables of docs/demultiplexer.md and docs/main-loop.md, and the plot of docs/demultiplexer.md.

use std::fmt::Write as _;

use super::plots::{Bar, bars};
use super::tables::{row_line, run, with};
use crate::libraries::{Demultiplexer, Head, Libraries};
use crate::results::Row;

const NOT_YET: &str = "*Not measured yet: `make bench-libraries` measures and fills this in.*";

/// Returns the targets, the plot and the table of all designs of the demultiplexer.
pub(super) fn demultiplexer(measured: Option<&Libraries>) -> String {
    let Some(measured) = measured else {
        return NOT_YET.into();
    };
    let rows = &measured.demultiplexers;
    let rounds = rows.iter().map(|row| row.ns_by_round.len()).max();
    let mut text = origin(&measured.head, rounds.unwrap_or_default());
    text += &targets(&measured.demultiplexer_targets());
    let _ = write!(
        text,
        "\n![{TITLE}](images/demultiplexer.svg)\n\n\
         | design | payload | sinks | messages | ns per message | compared with the baseline |\n\
         |---|---|---|---|---|---|\n"
    );
    for row in rows {
        let Some(ns) = row.ns() else { continue };
        // All baselines were measured with `Vec`s as sinks, so designs with other sinks are not compared.
        let baseline = (row.design != CHANNELS).then(|| measured.baseline(row.sinks, &row.payload));
        let ratio = baseline.flatten().and_then(|other| row.ratio(other));
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {} | {} | {} |",
            row.design,
            row.payload,
            grouped(row.sinks.into()),
            grouped(row.messages),
            with(ns),
            ratio.map_or("–".into(), |ratio| format!("{} x", with(ratio)))
        );
    }
    text.trim_end().into()
}

/// Returns the targets and the table of all figures of the main loop.
pub(super) fn main_loop(measured: Option<&Libraries>) -> String {
    let Some(measured) = measured else {
        return NOT_YET.into();
    };
    let rows = &measured.main_loop;
    let rounds = rows.iter().map(|row| row.rounds).max().unwrap_or_default();
    let mut text = origin(&measured.head, rounds as usize);
    text += &targets(&measured.main_loop_targets());
    text +=
        "\n| | compared with | its time, ns | Threadbare, ns | ratio |\n|---|---|---|---|---|\n";
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.what,
            row.peer,
            with(row.theirs()),
            with(row.ours()),
            with(row.ratio())
        );
    }
    text.trim_end().into()
}

pub(super) fn origin(head: &Head, rounds: usize) -> String {
    let Head {
        date_utc,
        commit,
        tree_dirty,
        machine,
    } = head;
    let run = run(date_utc, commit, *tree_dirty, machine);
    let rounds = match rounds {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds, median (least to greatest)"),
    };
    format!("{run}; {rounds}.\n")
}

fn targets(rows: &[Row]) -> String {
    let part = rows.first().map_or("", |row| row.part.as_str());
    let lines: String = rows.iter().map(row_line).collect();
    format!("\n| {part} | target | measured | |\n|---|---|---|---|\n{lines}")
}

/// Formats a number with commas between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Name of the design with tokio's channels as sinks.
const CHANNELS: &str = "demultiplexer-channels";
const PATH: &str = "docs/images/demultiplexer.svg";
const TITLE: &str = "Demultiplexers: time per message, by design";

/// Returns the path of the plot, and its text if there are results.
pub(super) fn plot(measured: Option<&Libraries>) -> (&'static str, Option<String>) {
    let all = measured.map_or(&[][..], |measured| &measured.demultiplexers);
    let shown: Vec<Bar> = all.iter().filter_map(bar).collect();
    let unit =
        "ns, with a payload of a String or a u64; orange: others, grey: one that loses messages";
    (PATH, bars(TITLE, unit, &shown))
}

/// Returns the bar of a row. Returns `None` for rows that are only in the table: those with other sinks than `Vec`s, and those with limits
/// and more than three sinks.
fn bar(row: &Demultiplexer) -> Option<Bar> {
    let (what, colour) = match row.design.as_str() {
        "demultiplexer" => ("ours", "ours"),
        "demultiplexer-limited" if row.sinks == 3 => ("ours, limited", "ours"),
        "demultiplexer-limited" | CHANNELS => return None,
        "by-hand" => ("by-hand", "c"),
        other => (other, "a"),
    };
    let sinks = grouped(row.sinks.into());
    let name = format!("{}, {sinks} sinks: {what}", row.payload);
    Some((name, row.ns()?, colour))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::tests::sample;

    #[test]
    fn pages_have_date_machine_and_results() {
        let sample = sample();
        let text = demultiplexer(Some(&sample));
        for part in [
            "2026-01-02 03:04 UTC, commit abc; 2 cores of C, Linux 6, D; 2 rounds, median",
            "| ≤ 0.45 x | 0.45 (0.40 to 0.50) x | pass |",
            "| a payload without allocation: time per message | ≤ 12 ns | – | not measured |",
            "| ≤ 1 x | 1.12 (1 to 1.25) x | **falls short** |",
            "| `select-biased` | `String` | 3 | 1,000 | 100 (90 to 110) | 1 x |",
            "| `demultiplexer-channels` | `String` | 3 | 1,000 | 200 | – |",
            "| `demultiplexer` | `u64` | 10,000 | 1,000 | 9 (8 to 10) | – |",
        ] {
            assert!(text.contains(part), "{part} in: {text}");
        }
        let text = main_loop(Some(&sample));
        let part = "| wake-up, 1 of 9 tasks per iteration: compared with glib | ≤ 0.2 x | 0.10 (0.09 to 0.11) x | pass |";
        assert!(text.contains(part), "{part} in: {text}");
    }

    #[test]
    fn the_plot_marks_designs_that_lose_messages() {
        let (_, text) = plot(Some(&sample()));
        let text = text.expect("figures");
        assert!(text.contains("String, 3 sinks: by-hand"), "{text}");
        assert!(text.contains(r#"class="f-c""#), "{text}");
    }

    #[test]
    fn without_a_results_file_the_page_says_not_yet_measured() {
        for text in [demultiplexer(None), main_loop(None)] {
            assert!(text.starts_with("*Not measured yet"), "{text}");
        }
        assert_eq!(plot(None).1, None);
    }

    #[test]
    fn digits_are_grouped_in_threes() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (100_000_000, "100,000,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
