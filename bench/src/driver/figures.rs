//! Targets and comparisons: their figures from the rounds, and the judgement.

use threadbare_bench::results::{Measured, Row, Runs, Samples};
use threadbare_bench::stats::Spread;

pub(crate) type Metric = fn(&Measured) -> Option<f64>;

/// One figure per round.
#[derive(Clone, Copy)]
pub(crate) enum Quantity {
    /// A metric of the runs of a case.
    Run(&'static str, Metric),
    /// The samples with this name.
    Sample(&'static str),
}

/// Source of a row's figure.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    Of(Quantity),
    /// First over second, within one round.
    Ratio(Quantity, Quantity),
    /// First minus second, within one round.
    Difference(Quantity, Quantity),
}

/// Whether the median or each single run must meet the limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    Median,
    EachRun,
}

/// A figure with the maximum `limit`.
pub(crate) struct Target {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) limit: f64,
    pub(crate) figure: Figure,
    pub(crate) judge: Judge,
}

/// The same work by another program and by ours.
pub(crate) struct Comparable {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) theirs: Quantity,
    pub(crate) ours: Quantity,
    /// Text `what` of the target that judges.
    pub(crate) target: &'static str,
}

/// All that was measured.
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
    /// Figures in the order of the rounds; `None` for a round without one.
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

/// Pairs the rounds; a figure that is measured only once is paired with each round of the other.
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
