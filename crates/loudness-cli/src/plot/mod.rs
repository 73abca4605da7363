//! Draws loudness over time as SVG: momentary, short-term and integrated loudness, the target, and the gated blocks. True peaks
//! are below. The picture needs no other file, such as a style sheet, font or script.
//!
//! - `gate`: blocks excluded from integrated loudness.
//! - `peaks`: the lane of true peaks.
//! - `pen`: lines, areas and text.

mod gate;
mod peaks;
mod pen;

use std::fmt::Write as _;

use self::pen::{add_area, add_line, add_text, dashed, escaped, shortened};
use super::measure::{Measured, Point};
use super::report::{Goal, clock};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 680.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 98.0;
/// Lower edge of the loudness lane.
const BASE: f64 = 470.0;
const PEAKS_TOP: f64 = 492.0;
/// Lower edge of the true-peak lane, which is the time axis.
const AXIS: f64 = 618.0;
/// Maximum number of points: more cannot be distinguished in this many pixels.
const COLUMNS_MAX: usize = 1100;
/// Minimum height of the loudness lane, in LU.
const SPAN_LU: f64 = 30.0;
/// The absolute gate (ITU-R BS.1770). Quieter audio never counts.
const FLOOR_LUFS: f64 = -70.0;

/// A curve of the picture.
struct Curve {
    name: &'static str,
    colour: &'static str,
    width: f64,
    dashes: &'static str,
    of: fn(&Point) -> f64,
}

const CURVES: [Curve; 3] = [
    Curve {
        name: "momentary (400 ms)",
        colour: "#9ecae1",
        width: 1.2,
        dashes: "",
        of: |point| point.momentary,
    },
    Curve {
        name: "short-term (3 s)",
        colour: "#2171b5",
        width: 2.0,
        dashes: "",
        of: |point| point.short_term,
    },
    Curve {
        name: "integrated so far",
        colour: "#d94801",
        width: 2.4,
        dashes: "",
        of: |point| point.integrated,
    },
];
const TARGET_COLOUR: &str = "#238b45";
const BAND_OPACITY: f64 = 0.18;

/// Converts values of the file to positions in the picture.
struct Scale {
    seconds: f64,
    low_lufs: f64,
    high_lufs: f64,
}

impl Scale {
    /// Chooses a scale. Its top is a multiple of ten above the loudest moment and the target.
    fn of(measured: &Measured, goal: Goal) -> Scale {
        // Both edges of the tolerance band must be visible.
        let tolerance_lu = goal.tolerance_lu.unwrap_or(0.0);
        let band = |edge: f64| goal.target_lufs.map(|target| target + edge * tolerance_lu);
        let levels =
            |of: fn(&Point) -> f64| measured.curve.iter().map(of).filter(|l| *l > FLOOR_LUFS);
        let loudest = levels(|point| point.momentary)
            .chain(band(1.0))
            .fold(FLOOR_LUFS, f64::max);
        // Skip the values from before the first window is full.
        let full = measured.curve.iter().filter(|point| point.seconds >= 3.0);
        let softest = full
            .map(|point| point.short_term)
            .filter(|lufs| *lufs > FLOOR_LUFS)
            .chain(band(-1.0))
            .fold(0.0, f64::min);
        let high_lufs = ((loudest + 2.0) / 10.0).ceil() * 10.0;
        let low_lufs = ((softest - 2.0) / 10.0).floor() * 10.0;
        Scale {
            seconds: measured.seconds.max(0.1),
            low_lufs: low_lufs.min(high_lufs - SPAN_LU).max(FLOOR_LUFS),
            high_lufs: high_lufs.max(FLOOR_LUFS + SPAN_LU),
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds
    }

    fn y(&self, lufs: f64) -> f64 {
        let share = (self.high_lufs - lufs.max(self.low_lufs)) / (self.high_lufs - self.low_lufs);
        TOP + (BASE - TOP) * share
    }
}

/// Returns the picture of one file.
pub(super) fn svg(title: &str, measured: &Measured, goal: Goal) -> String {
    let scale = Scale::of(measured, goal);
    let mut picture = String::new();
    let _ = write!(
        picture,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#333333\">\n\
         <title>Loudness of {title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n",
        title = escaped(title)
    );
    add_heading(&mut picture, title, measured, goal.target_lufs);
    let has_gated = gate::add_gated(&mut picture, measured, &scale);
    add_levels(&mut picture, &scale);
    add_times(&mut picture, &scale);
    if let Some(target) = goal.target_lufs {
        add_band(&mut picture, &scale, target, goal.tolerance_lu);
        let y = scale.y(target);
        add_line(
            &mut picture,
            (LEFT, y),
            (WIDTH - RIGHT, y),
            TARGET_COLOUR,
            1.6,
            "8 5",
        );
    }
    let mut is_empty = true;
    for curve in &CURVES {
        is_empty &= !add_curve(&mut picture, curve, &measured.curve, &scale);
    }
    if is_empty {
        add_notice(&mut picture, measured.curve.is_empty());
    }
    peaks::add_lane(&mut picture, &measured.curve, &scale);
    add_legend(&mut picture, goal, has_gated);
    picture.push_str("</svg>\n");
    picture
}

/// Draws the range that the tolerance allows.
fn add_band(picture: &mut String, scale: &Scale, target_lufs: f64, tolerance_lu: Option<f64>) {
    let Some(tolerance_lu) = tolerance_lu else {
        return;
    };
    let (top, bottom) = (target_lufs + tolerance_lu, target_lufs - tolerance_lu);
    let attributes =
        format!("id=\"tolerance\" fill=\"{TARGET_COLOUR}\" fill-opacity=\"{BAND_OPACITY}\"");
    add_area(
        picture,
        (LEFT, scale.y(top)),
        (WIDTH - RIGHT, scale.y(bottom)),
        &attributes,
    );
}

fn add_heading(picture: &mut String, title: &str, measured: &Measured, target_lufs: Option<f64>) {
    let integrated = measured.meter.integrated().unwrap_or(f64::NEG_INFINITY);
    let range = measured.meter.range().map_or(0.0, |range| range.lu);
    let true_peak = 20.0 * measured.true_peak.log10();
    let mut summary = if integrated.is_finite() {
        format!(
            "integrated {integrated:.1} LUFS, range {range:.1} LU, true peak {true_peak:.1} dBTP, short-term at most {:.1} LUFS",
            measured.short_term_max_lufs
        )
    } else {
        format!("no integrated loudness, true peak {true_peak:.1} dBTP")
    };
    if let Some(target) = target_lufs.filter(|_| integrated.is_finite()) {
        let _ = write!(summary, ", {:+.1} LU to {target} LUFS", target - integrated);
    }
    add_text(
        picture,
        (LEFT, 28.0),
        "font-size=\"18\" font-weight=\"bold\"",
        &shortened(title),
    );
    add_text(
        picture,
        (LEFT, 84.0),
        "fill=\"#666666\" font-size=\"12\"",
        &summary,
    );
}

/// Draws the vertical axis, with a line at each ten.
fn add_levels(picture: &mut String, scale: &Scale) {
    let tens = (scale.low_lufs / 10.0).round() as i32..=(scale.high_lufs / 10.0).round() as i32;
    for level in tens.map(|ten| f64::from(ten * 10)) {
        let y = scale.y(level);
        add_line(picture, (LEFT, y), (WIDTH - RIGHT, y), "#dddddd", 1.0, "");
        add_text(
            picture,
            (LEFT - 8.0, y + 4.5),
            "text-anchor=\"end\"",
            &level.to_string(),
        );
    }
    let middle = (TOP + BASE) / 2.0;
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {middle})\"");
    add_text(picture, (20.0, middle), &turned, "loudness (LUFS)");
}

/// Draws the horizontal axis, with a mark at each step.
fn add_times(picture: &mut String, scale: &Scale) {
    let step = TIME_STEPS_S
        .into_iter()
        .find(|step| scale.seconds / step <= MARKS_MAX);
    let step = step.unwrap_or_else(|| (scale.seconds / MARKS_MAX / 86_400.0).ceil() * 86_400.0);
    let marks = (scale.seconds / step).floor() as u32;
    for seconds in (0..=marks).map(|mark| f64::from(mark) * step) {
        let x = scale.x(seconds);
        add_line(picture, (x, AXIS), (x, AXIS + 6.0), "#333333", 1.0, "");
        let time = clock(seconds);
        let time = if step < 1.0 {
            &time
        } else {
            time.trim_end_matches(".0")
        };
        add_text(picture, (x, AXIS + 22.0), "text-anchor=\"middle\"", time);
    }
    add_line(
        picture,
        (LEFT, AXIS),
        (WIDTH - RIGHT, AXIS),
        "#333333",
        1.0,
        "",
    );
    add_line(picture, (LEFT, TOP), (LEFT, BASE), "#333333", 1.0, "");
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let unit = if scale.seconds < 3_600.0 {
        "time (minutes:seconds)"
    } else {
        "time (hours:minutes:seconds)"
    };
    add_text(
        picture,
        (middle, HEIGHT - 16.0),
        "text-anchor=\"middle\"",
        unit,
    );
}

const TIME_STEPS_S: [f64; 14] = [
    0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0,
];
const MARKS_MAX: f64 = 12.0;

/// Draws the reason for a missing curve.
fn add_notice(picture: &mut String, is_short: bool) {
    let text = if is_short {
        "too short: a curve needs at least 100 ms of audio".to_owned()
    } else {
        format!("silence: nothing here is louder than {FLOOR_LUFS} LUFS")
    };
    let middle = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + BASE) / 2.0);
    let attributes = "text-anchor=\"middle\" font-size=\"18\" fill=\"#666666\"";
    add_text(picture, middle, attributes, &text);
}

/// Draws the loudest point of each column. A column that is below the floor becomes a gap. Returns whether a line was drawn.
fn add_curve(picture: &mut String, curve: &Curve, points: &[Point], scale: &Scale) -> bool {
    let per_column = points.len().div_ceil(COLUMNS_MAX).max(1);
    let mut path = String::new();
    let mut is_down = false;
    for column in points.chunks(per_column) {
        let level = column
            .iter()
            .map(curve.of)
            .fold(f64::NEG_INFINITY, f64::max);
        if level <= scale.low_lufs {
            is_down = false;
            continue;
        }
        let command = if std::mem::replace(&mut is_down, true) {
            'L'
        } else {
            'M'
        };
        let seconds = column[column.len() / 2].seconds;
        let _ = write!(
            path,
            "{command}{:.1} {:.1}",
            scale.x(seconds),
            scale.y(level)
        );
    }
    if !path.is_empty() {
        let Curve {
            colour,
            width,
            dashes,
            ..
        } = curve;
        let _ = writeln!(
            picture,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{} stroke-linejoin=\"round\"/>",
            dashed(dashes)
        );
    }
    !path.is_empty()
}

/// Draws the legend at the upper right, in two columns. Their right edge is that of the curves.
fn add_legend(picture: &mut String, goal: Goal, has_gated: bool) {
    let (column, row) = (240.0, 22.0);
    let place = |index: usize| {
        let x = WIDTH - RIGHT - 2.0 * column + (index / 3) as f64 * column;
        (x + 20.0, 22.0 + (index % 3) as f64 * row)
    };
    for (index, curve) in CURVES.iter().enumerate() {
        let (x, y) = place(index);
        let Curve {
            name,
            colour,
            width,
            dashes,
            ..
        } = curve;
        add_line(picture, (x, y), (x + 28.0, y), colour, *width, dashes);
        add_text(picture, (x + 36.0, y + 4.5), "", name);
    }
    if let Some(target) = goal.target_lufs {
        let (x, y) = place(3);
        let mut name = format!("target {target} LUFS");
        if let Some(lu) = goal.tolerance_lu {
            let _ = write!(name, " \u{b1} {lu} LU");
            let band = format!("fill=\"{TARGET_COLOUR}\" fill-opacity=\"{BAND_OPACITY}\"");
            add_area(picture, (x, y - 6.0), (x + 28.0, y + 6.0), &band);
        }
        add_line(picture, (x, y), (x + 28.0, y), TARGET_COLOUR, 1.6, "8 5");
        add_text(picture, (x + 36.0, y + 4.5), "", &name);
    }
    if has_gated {
        let (x, y) = place(4);
        let grey = format!("fill=\"{}\"", gate::COLOUR);
        add_area(picture, (x, y - 6.0), (x + 28.0, y + 6.0), &grey);
        add_text(picture, (x + 36.0, y + 4.5), "", "gated: not in integrated");
    }
    let (x, y) = place(5);
    add_area(
        picture,
        (x, y - 6.0),
        (x + 28.0, y + 6.0),
        &format!("fill=\"{}\"", peaks::OVER_COLOUR),
    );
    let name = format!("true peak over {} dBTP", peaks::LIMIT_DBTP);
    add_text(picture, (x + 36.0, y + 4.5), "", &name);
}
