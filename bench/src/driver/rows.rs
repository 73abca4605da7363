//! Computes rows from runs, and comparisons from rows.

use threadbare_bench::results::{Comparison, Row};
use threadbare_bench::stats::Spread;

use super::figures::{Comparable, Rounds, present};
use super::targets::{COMPARISONS, PARTS};

/// Returns the rows of all targets, with pass or fail.
pub(crate) fn rows(rounds: &Rounds<'_>) -> Vec<Row> {
    let targets = PARTS
        .iter()
        .flat_map(|part| part.targets.iter().map(move |target| (part.name, target)));
    targets
        .map(|(part, target)| target.judge(part, rounds))
        .collect()
}

/// Returns the comparisons of the README, with the rows of their targets.
pub(crate) fn comparisons(rounds: &Rounds<'_>, rows: &[Row]) -> Vec<Comparison> {
    let judged = |comparable: &Comparable| {
        let row = rows.iter().find(|row| row.what == comparable.target)?;
        Some(Comparison {
            what: comparable.what.into(),
            unit: comparable.unit.into(),
            peer: comparable.peer.into(),
            theirs: Spread::of(&present(comparable.theirs.figures(rounds))),
            ours: Spread::of(&present(comparable.ours.figures(rounds))),
            row: row.clone(),
        })
    };
    COMPARISONS.iter().filter_map(judged).collect()
}

#[cfg(test)]
mod tests {
    use threadbare_bench::measure::Window;
    use threadbare_bench::results::{Measured, Runs, Samples};
    use threadbare_bench::session::{Done, Ready};

    use super::super::cases::CASES;
    use super::super::figures::{Figure, Quantity};
    use super::super::{fallback, loudness};
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
        let samples = Samples::new();
        let rounds = Rounds {
            runs,
            samples: &samples,
        };
        let mut rows = rows(&rounds).into_iter();
        rows.find(|row| row.what == what).expect("a row")
    }

    fn runs(case: &str, us: &[f64]) -> (String, Vec<Measured>) {
        (case.into(), us.iter().map(|us| run_with(*us, 0)).collect())
    }

    #[test]
    fn rows_and_comparisons_name_measured_cases_and_samples() {
        let targets = || PARTS.iter().flat_map(|part| part.targets);
        let of_rows = targets().flat_map(|target| match target.figure {
            Figure::Of(only) => vec![only],
            Figure::Ratio(first, second) | Figure::Difference(first, second) => {
                vec![first, second]
            }
        });
        let of_comparisons = COMPARISONS.iter().flat_map(|one| [one.theirs, one.ours]);
        for quantity in of_rows.chain(of_comparisons) {
            match quantity {
                Quantity::Run(name, _) => {
                    assert!(CASES.iter().any(|case| case.name == name), "{name}");
                }
                Quantity::Sample(name) => {
                    let is_measured = loudness::measures(name) || fallback::measures(name);
                    assert!(is_measured, "{name}");
                }
            }
        }
        for comparable in COMPARISONS {
            let named = targets().filter(|target| target.what == comparable.target);
            assert_eq!(named.count(), 1, "{}", comparable.target);
        }
    }

    #[test]
    fn each_ratio_compares_cases_of_one_round() {
        let what = "receive only, 1000 streams: CPU per packet compared with stock udpsrc";
        assert!(row(what, &Runs::new()).measured.is_none());
        let measured = Runs::from([
            runs("receive-1000", &[1.0, 2.0, 3.0]),
            runs("stock-receive-1000", &[4.0, 4.0, 20.0]),
        ]);
        let judged = row(what, &measured);
        let expected = Spread {
            median: 0.25,
            min: 0.15,
            max: 0.5,
        };
        assert_eq!(judged.measured, Some(expected));
        assert_eq!(judged.pass, Some(true));
    }

    #[test]
    fn streams_with_a_flood_are_compared_with_the_same_streams_without_one() {
        let what = "50,000 packets/s to one of 1000 streams: slice lateness (99 %) compared with the same streams without a flood";
        let late = |us| Measured {
            late_p99_us: Some(us),
            ..run_with(1.0, 0)
        };
        let measured = Runs::from([
            ("receive-1000-not-flooded".to_owned(), vec![late(100)]),
            ("receive-1000-flood-elsewhere".to_owned(), vec![late(1000)]),
            ("receive-1000-flooded".to_owned(), vec![late(250)]),
        ]);
        let judged = row(what, &measured);
        assert_eq!(judged.measured.expect("measured").median, 2.5);
        assert_eq!(judged.pass, Some(false));
    }

    #[test]
    fn one_lost_packet_in_one_run_fails_the_target() {
        let lossy = vec![run_with(1.0, 0), run_with(1.0, 1), run_with(1.0, 0)];
        let measured = Runs::from([("receive-3000".to_owned(), lossy)]);
        let judged = row("receive only, 3000 streams: lost", &measured);
        assert_eq!(judged.pass, Some(false));
    }

    #[test]
    fn an_opus_figure_above_its_limit_fails_the_target() {
        let what = "G.711 to Opus, complexity 0, full session: CPU compared with the bare codec in a bare loop";
        let measured = Runs::from([
            runs("opus-0-100", &[114.0]),
            runs("relay-opus-0-100", &[100.0]),
        ]);
        assert_eq!(row(what, &measured).pass, Some(false));
    }

    #[test]
    fn memory_is_divided_by_the_number_of_added_streams() {
        assert_eq!(run_with(1.0, 0).resident_kib_per_stream(), Some(8.0));
    }
}
