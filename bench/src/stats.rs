//! Summarises the figures of several runs: the median, the lowest and the highest.

use serde::{Deserialize, Serialize};

/// Median, minimum and maximum of some figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of the figures, or `None` if there are no figures. The median of an even number of figures is the mean of the two
    /// figures in the middle.
    pub fn of(figures: &[f64]) -> Option<Spread> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Spread {
            median: (sorted[lower] + sorted[upper]) / 2.0,
            min,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_figure_in_the_middle() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(
            Spread::of(&[2.0]),
            Some(Spread {
                median: 2.0,
                min: 2.0,
                max: 2.0
            })
        );
        assert_eq!(
            Spread::of(&[9.0, 1.0, 3.0]),
            Some(Spread {
                median: 3.0,
                min: 1.0,
                max: 9.0
            })
        );
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
    }
}
