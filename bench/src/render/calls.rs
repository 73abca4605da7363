//! The tables of calls in docs/xdp.md, and of recorded calls in docs/recording.md.

use std::fmt::Write as _;

use super::libraries::origin;
use super::tables::{row_line, with};
use crate::calls::{Calls, Figures, Kind, What};

const NOT_YET: &str = "*Not measured yet: `make bench-calls` measures and fills this in.*";

/// Returns the tables of CPU time per packet and per call, and of the targets for sockets and for XDP.
pub(super) fn calls(measured: Option<&Calls>) -> String {
    let Some(measured) = measured else {
        return NOT_YET.into();
    };
    let mut text = origin(&measured.head, measured.rounds() as usize);
    text += "\n| CPU, µs per packet | rtpengine | Threadbare, sockets | Threadbare, XDP |\n|---|---|---|---|\n";
    for (name, what) in [
        ("500 calls, PCMU to PCMA", What::Transcoded500),
        ("1000 calls, PCMU to PCMA", What::Transcoded1000),
        ("1000 calls, forwarded unchanged", What::Passed1000),
        ("500 calls, SRTP to RTP", What::Srtp500),
    ] {
        text += &line_of_relays(measured, name, what, |figures| figures.us_per_packet);
    }
    text += "\n| CPU, µs per call: offer, answer, delete, on one core | rtpengine | Threadbare, sockets | Threadbare, XDP |\n|---|---|---|---|\n";
    let floods = [
        ("third burst of 3500 calls: per call", What::Flood),
        ("first burst of 3500 calls: per call", What::FirstFlood),
    ];
    for (name, what) in floods {
        text += &line_of_relays(measured, name, what, |figures| figures.us_per_call);
    }
    for (name, what) in floods {
        let name = name.replace("per call", "calls a second");
        text += &line_of_relays(measured, &name, what, |figures| figures.calls_per_second);
    }
    for (name, relay) in [("sockets", Kind::Threadbare), ("XDP", Kind::ThreadbareXdp)] {
        let _ = write!(
            text,
            "\n| {name}, compared with rtpengine in the same round | target | measured | |\n|---|---|---|---|\n"
        );
        text.extend(measured.targets(relay).iter().map(row_line));
    }
    text.trim_end().into()
}

fn line_of_relays(
    measured: &Calls,
    name: &str,
    what: What,
    figure: fn(&Figures) -> Option<f64>,
) -> String {
    let column = |relay| {
        let spread = measured.spread(what, relay, figure);
        spread.map_or("–".into(), with)
    };
    let [rtpengine, sockets, rings] =
        [Kind::Rtpengine, Kind::Threadbare, Kind::ThreadbareXdp].map(column);
    format!("| {name} | {rtpengine} | {sockets} | {rings} |\n")
}

/// Returns the tables of recorded calls, which are compared with calls without recording.
pub(super) fn recordings(measured: Option<&Calls>) -> String {
    let Some(measured) = measured else {
        return RECORDINGS_NOT_YET.into();
    };
    let mut text = origin(&measured.head, measured.rounds() as usize);
    text += "\n| 1000 calls of PCMU, forwarded unchanged | CPU, µs per packet | packets lost | greatest lateness of a slice, ms |\n|---|---|---|---|\n";
    let recorded = [
        ("recorded to WAV, two tracks of G.711", What::Coded1000),
        ("recorded to WAV, two tracks of 16 bits", What::Recorded1000),
    ];
    for (name, what) in [("not recorded", What::Passed1000)]
        .into_iter()
        .chain(recorded)
    {
        let column = |figure: fn(&Figures) -> Option<f64>| {
            let spread = measured.spread(what, Kind::Threadbare, figure);
            spread.map_or("–".into(), with)
        };
        let (us, late) = (column(|one| one.us_per_packet), column(|one| one.late_ms));
        let lost = column(|one| one.lost.map(|lost| lost as f64));
        let _ = writeln!(text, "| {name} | {us} | {lost} | {late} |");
    }
    let _ = write!(
        text,
        "\n| recorded, compared with not recorded in the same round | target | measured |\n|---|---|---|"
    );
    for (name, what) in recorded {
        let ratio = measured.recorded_ratio(what).map_or("–".into(), with);
        let _ = write!(
            text,
            "\n| {name} | at most {RECORDED_RATIO_MAX} | {ratio} |"
        );
    }
    text
}

const RECORDINGS_NOT_YET: &str =
    "*Not measured yet: `make bench-recordings` measures and fills this in.*";
const RECORDED_RATIO_MAX: f64 = 1.15;
