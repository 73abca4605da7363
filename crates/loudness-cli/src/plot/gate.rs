//! Shows the blocks that the gates exclude from integrated loudness.
//!
//! BS.1770-4, annex 1: the loudness of each block of 400 ms is compared with -70 LUFS, and then with a threshold 10 LU below the
//! loudness of the remaining blocks. A point of the curve is the end of a block, and its momentary loudness is the block's.

use std::fmt::Write as _;

use super::pen::add_area;
use super::{AXIS, BASE, COLUMNS_MAX, FLOOR_LUFS, PEAKS_TOP, Scale, TOP};
use crate::measure::{Measured, Point};

pub(super) const COLOUR: &str = "#ececec";

/// Draws areas under the curves, for columns in which most blocks are gated. Returns whether there are such areas.
pub(super) fn add_gated(picture: &mut String, measured: &Measured, scale: &Scale) -> bool {
    let threshold = measured.meter.relative_threshold();
    let threshold = threshold.unwrap_or(FLOOR_LUFS).max(FLOOR_LUFS);
    let runs = runs(&measured.curve, threshold);
    if runs.is_empty() {
        return false;
    }
    let _ = writeln!(picture, "<g id=\"gated\" fill=\"{COLOUR}\">");
    for (from, to) in &runs {
        for (top, bottom) in [(TOP, BASE), (PEAKS_TOP, AXIS)] {
            add_area(picture, (scale.x(*from), top), (scale.x(*to), bottom), "");
        }
    }
    picture.push_str("</g>\n");
    true
}

/// Returns the ranges of gated columns, in seconds. A block stands for the 100 ms since the end of the previous block.
fn runs(points: &[Point], threshold_lufs: f64) -> Vec<(f64, f64)> {
    let per_column = points.len().div_ceil(COLUMNS_MAX).max(1);
    let mut runs: Vec<(f64, f64)> = Vec::new();
    let (mut begins, mut was_gated) = (0.0, false);
    for column in points.chunks(per_column) {
        let ends = column.last().map_or(begins, |point| point.seconds);
        // The standard says "exceeds the threshold", so a block at the threshold is gated.
        let blocks = column.iter().filter(|point| point.ends_block);
        let gated = blocks.filter(|point| point.momentary <= threshold_lufs);
        let is_gated = gated.count() * 2 > column.len();
        match runs.last_mut() {
            Some(run) if is_gated && was_gated => run.1 = ends,
            _ if is_gated => runs.push((begins, ends)),
            _ => {}
        }
        (begins, was_gated) = (ends, is_gated);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(momentary: &[f64]) -> Vec<Point> {
        let point = |(index, momentary): (usize, &f64)| Point {
            seconds: (index + 1) as f64 / 10.0,
            momentary: *momentary,
            short_term: 0.0,
            integrated: 0.0,
            true_peak: 0.0,
            ends_block: index >= 3,
        };
        momentary.iter().enumerate().map(point).collect()
    }

    #[test]
    fn only_blocks_at_or_below_the_threshold_are_gated() {
        let silent = f64::NEG_INFINITY;
        let points = points(&[silent, silent, silent, -33.0, -32.9, -34.0, silent, -20.0]);
        assert_eq!(runs(&points, -33.0), [(0.3, 0.4), (0.5, 0.7)]);
        assert_eq!(runs(&[], -33.0), []);
    }

    /// Even if a whole day changes all the time, there are at most as many areas as columns.
    #[test]
    fn a_long_file_has_a_bounded_number_of_areas() {
        let levels: Vec<f64> = (0..864_000)
            .map(|index| if index / 800 % 2 == 0 { -20.0 } else { -60.0 })
            .collect();
        let runs = runs(&points(&levels), -33.0);
        assert!(
            (500..=COLUMNS_MAX / 2 + 1).contains(&runs.len()),
            "{}",
            runs.len()
        );
    }
}
