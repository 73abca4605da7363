//! Figures of targets and comparisons. They are computed from the results of the rounds, and then compared with limits.

use threadbare_bench::results::{Measured, Row, Runs, Samples};
use threadbare_bench::stats::Spread;

pub(crate) type Metric = fn(&Measured) -> Option<f64>;

/// A quantity that each round measures.
#[derive(Clone, Copy)]
pub(crate) enum Quantity {
    /// A metric of a case's runs.
    Run(&'static str, Metric),
    /// The samples with this name.
    Sample(&'static str),
}

/// Computation of a row's figure.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    Of(Quantity),
    /// The first quantity divided by the second, within a round.
    Ratio(Quantity, Quantity),
    /// The first quantity minus the second, within a round.
    Difference(Quantity, Quantity),
}

/// Whether the median or each run must meet the limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    Median,
    EachRun,
}

/// A figure that must not exceed `limit`.
pub(crate) struct Target {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) limit: f64,
    pub(crate) figure: Figure,
    pub(crate) judge: Judge,
}

/// A comparison of another program with ours, for the same work.
pub(crate) struct Comparable {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) theirs: Quantity,
    pub(crate) ours: Quantity,
    /// The text `what` of the target that the comparison illustrates.
    pub(crate) target: &'static str,
}

/// The measurements of all rounds.
pub(crate) struct Rounds<'a> {
    pub(crate) runs: &'a Runs,
    pub(crate) samples: &'a Samples,
}

impl Target {
    pub(crate) fn judge(&self, part: &str, rounds: &Rounds<'_>) -> Row {
        let measured = Spread::of(&self.figures(rounds));
        let pass = measured.map(|spread| match self.judge {
            Judge::Median => spread.median <= self.limit,
            Judge::EachRun => spread.max <= self.limit,
        });
        Row {
            part: part.into(),
            what: self.what.into(),
            unit: self.unit.into(),
            limit: self.limit,
            measured,
            pass,
        }
    }

    fn figures(&self, rounds: &Rounds<'_>) -> Vec<f64> {
        match self.figure {
            Figure::Of(quantity) => present(quantity.figures(rounds)),
            Figure::Ratio(first, second) => paired(rounds, first, second, |a, b| a / b),
            Figure::Difference(first, second) => paired(rounds, first, second, |a, b| a - b),
        }
    }
}

impl Quantity {
    /// Returns the figures in the order of the rounds, with `None` for a round without a figure.
    pub(super) fn figures(self, rounds: &Rounds<'_>) -> Vec<Option<f64>> {
        match self {
            Quantity::Run(case, metric) => {
                let runs = rounds.runs.get(case).map_or(&[][..], Vec::as_slice);
                runs.iter().map(metric).collect()
            }
            Quantity::Sample(name) => {
                let sample = rounds.samples.get(name);
                let figures = sample.map_or(&[][..], |sample| &sample.by_round);
                figures.iter().copied().map(Some).collect()
            }
        }
    }
}

pub(super) fn present(figures: Vec<Option<f64>>) -> Vec<f64> {
    figures.into_iter().flatten().collect()
}

/// Combines two quantities round by round. If fewer rounds have a figure of the second quantity, for example because it is measured only
/// once, its last figure is used for the other rounds.
fn paired(
    rounds: &Rounds<'_>,
    first: Quantity,
    second: Quantity,
    combine: fn(f64, f64) -> f64,
) -> Vec<f64> {
    let (first, second) = (first.figures(rounds), second.figures(rounds));
    let Some(last) = second.last().copied() else {
        return Vec::new();
    };
    let second = second.into_iter().chain(std::iter::repeat(last));
    let pairs = first.into_iter().zip(second);
    pairs
        .filter_map(|(first, second)| Some(combine(first?, second?)))
        .collect()
}
