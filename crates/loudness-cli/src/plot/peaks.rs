//! Draws the lane of true peaks. Each column has a bar for its largest peak, in another colour if the peak exceeds the limit.

use std::fmt::Write as _;

use super::pen::{add_line, add_text};
use super::{AXIS, COLUMNS_MAX, LEFT, PEAKS_TOP, RIGHT, Scale, WIDTH};
use crate::measure::Point;

/// The limit of EBU R 128: "the Maximum Permitted True Peak Level of a programme during production shall be -1 dBTP".
pub(super) const LIMIT_DBTP: f64 = -1.0;
pub(super) const OVER_COLOUR: &str = "#cb181d";
const COLOUR: &str = "#8c96c6";
/// Lower end of the lane. Peaks below this level have no bar.
const LOW_DBTP: f64 = -30.0;
/// Lowest value of the lane's upper end.
const HIGH_DBTP: f64 = 5.0;
/// Decibels between two lines.
const STEP_DB: f64 = 10.0;

pub(super) fn add_lane(picture: &mut String, points: &[Point], scale: &Scale) {
    let peaks = points.iter().map(|point| decibels(point.true_peak));
    let high = peaks.fold(HIGH_DBTP, f64::max);
    let y = |dbtp: f64| PEAKS_TOP + (AXIS - PEAKS_TOP) * (high - dbtp) / (high - LOW_DBTP);
    let lines = ((high - LOW_DBTP) / STEP_DB).floor() as u32;
    for level in (0..=lines).map(|line| LOW_DBTP + f64::from(line) * STEP_DB) {
        let y = y(level);
        add_line(picture, (LEFT, y), (WIDTH - RIGHT, y), "#dddddd", 1.0, "");
        let at = (LEFT - 8.0, y + 4.5);
        add_text(picture, at, "text-anchor=\"end\"", &level.to_string());
    }
    add_bars(picture, points, scale, y);
    let limit = y(LIMIT_DBTP);
    let ends = ((LEFT, limit), (WIDTH - RIGHT, limit));
    add_line(picture, ends.0, ends.1, OVER_COLOUR, 1.2, "4 4");
    let left = ((LEFT, PEAKS_TOP), (LEFT, AXIS));
    add_line(picture, left.0, left.1, "#333333", 1.0, "");
    let middle = (PEAKS_TOP + AXIS) / 2.0;
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {middle})\"");
    add_text(picture, (20.0, middle), &turned, "true peak (dBTP)");
}

/// Draws one path for the bars within the limit, and one for those above it.
fn add_bars(picture: &mut String, points: &[Point], scale: &Scale, y: impl Fn(f64) -> f64) {
    let per_column = points.len().div_ceil(COLUMNS_MAX).max(1);
    let (mut within, mut over) = (String::new(), String::new());
    let mut begins = 0.0;
    for column in points.chunks(per_column) {
        let ends = column.last().map_or(begins, |point| point.seconds);
        let from = std::mem::replace(&mut begins, ends);
        let peak = column.iter().map(|point| point.true_peak);
        let dbtp = decibels(peak.fold(0.0, f64::max));
        if dbtp <= LOW_DBTP {
            continue;
        }
        let path = if dbtp > LIMIT_DBTP {
            &mut over
        } else {
            &mut within
        };
        let (left, right) = (scale.x(from), scale.x(ends));
        let _ = write!(path, "M{left:.1} {AXIS}V{:.1}H{right:.1}V{AXIS}Z", y(dbtp));
    }
    for (id, path, colour) in [("peaks", within, COLOUR), ("peaks-over", over, OVER_COLOUR)] {
        if !path.is_empty() {
            let _ = writeln!(
                picture,
                "<path id=\"{id}\" d=\"{path}\" fill=\"{colour}\"/>"
            );
        }
    }
}

fn decibels(peak: f64) -> f64 {
    20.0 * peak.log10()
}
