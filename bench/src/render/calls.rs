//! The table of calls in docs/xdp.md.

use std::fmt::Write as _;

use super::libraries::origin;
use super::tables::{row_line, with};
use crate::calls::{Calls, Kind, What};

const NOT_YET: &str = "*Not measured yet: `make bench-calls` measures and fills this in.*";

/// What packets and calls cost, and the targets of both ways.
pub(super) fn calls(measured: Option<&Calls>) -> String {
    let Some(measured) = measured else {
        return NOT_YET.into();
    };
    let mut text = origin(&measured.head, measured.rounds() as usize);
    text += "\n| CPU, µs per packet | rtpengine | Threadbare, sockets | Threadbare, XDP |\n|---|---|---|---|\n";
    for (name, what) in [
        ("500 calls, PCMU to PCMA", What::Transcoded500),
        ("1000 calls, PCMU to PCMA", What::Transcoded1000),
        ("1000 calls, passed on", What::Passed1000),
        ("500 calls, SRTP to RTP", What::Srtp500),
    ] {
        let column = |relay| {
            let spread = measured.spread(what, relay, |figures| figures.us_per_packet);
            spread.map_or("–".into(), with)
        };
        let [rtpengine, sockets, rings] =
            [Kind::Rtpengine, Kind::Threadbare, Kind::ThreadbareXdp].map(column);
        let _ = writeln!(text, "| {name} | {rtpengine} | {sockets} | {rings} |");
    }
    for (name, relay) in [("sockets", Kind::Threadbare), ("XDP", Kind::ThreadbareXdp)] {
        let _ = write!(
            text,
            "\n| {name}, against rtpengine in the same round | target | measured | |\n|---|---|---|---|\n"
        );
        text.extend(measured.targets(relay).iter().map(row_line));
    }
    text.trim_end().into()
}
