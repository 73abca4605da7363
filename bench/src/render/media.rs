//! The table of the media plane in docs/benchmarks.md.

use std::fmt::Write as _;

use super::libraries::origin;
use super::tables::{row_line, with};
use crate::media::{Media, PLAN};

const NOT_YET: &str = "*Not measured yet: `make bench-media` measures and fills this in.*";

/// Returns the targets and the results of each measurement.
pub(super) fn media(measured: Option<&Media>) -> String {
    let Some(measured) = measured else {
        return NOT_YET.into();
    };
    let mut text = origin(&measured.head, measured.rounds() as usize);
    text += "\n| Media plane | target | measured | |\n|---|---|---|---|\n";
    text.extend(measured.targets().iter().map(row_line));
    text += "\n| | streams | µs per packet | lost | ready, ms | KiB per stream |\n|---|---|---|---|---|---|\n";
    for (kind, streams) in PLAN {
        let column = |figure| {
            measured
                .spread((kind, streams), figure)
                .map_or("–".into(), with)
        };
        let _ = writeln!(
            text,
            "| {} | {streams} | {} | {} | {} | {} |",
            format!("{kind:?}").to_lowercase(),
            column(|figures| Some(figures.us_per_packet)),
            column(|figures| Some(figures.lost as f64)),
            column(|figures| Some(figures.ready_ms)),
            column(|figures| Some(figures.kib_per_stream)),
        );
    }
    text.trim_end().into()
}
