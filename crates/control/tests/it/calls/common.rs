//! Helpers that several tests use.

use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::{Dictionary, Reply, Value};

/// Returns a description of `host`, with these lines after those of the session.
pub(crate) fn sdp(host: &str, lines: &str) -> String {
    format!("v=0\r\no=- 1 1 IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\n{lines}")
        .replace("\r\n", "\n")
        .replace('\n', "\r\n")
}

pub(crate) const ALICE: &str = "198.51.100.1";
pub(crate) const BOB: &str = "198.51.100.2";

pub(crate) const PCMU: &str = "m=audio 4000 RTP/AVP 0\n";

pub(crate) fn ok(reply: Reply) -> Dictionary {
    match reply {
        Reply::Ok(keys) => keys,
        other => panic!("{other:?}"),
    }
}

/// Returns the reason of an error.
pub(crate) fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(reason) => reason,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn sdp_of(reply: Reply) -> String {
    let keys = ok(reply);
    keys.get("sdp")
        .and_then(Value::as_text)
        .expect("an SDP")
        .to_owned()
}

/// Returns the `warning` of a reply, which is empty if there is none.
pub(crate) fn warning(reply: &Dictionary) -> &str {
    reply
        .get("warning")
        .and_then(Value::as_text)
        .unwrap_or_default()
}

/// Returns all `m=` lines.
pub(crate) fn media(sdp: &str) -> Vec<&str> {
    sdp.lines().filter(|line| line.starts_with("m=")).collect()
}

/// Returns the values of an attribute.
pub(crate) fn attributes<'a>(sdp: &'a str, name: &str) -> Vec<&'a str> {
    let attributes = sdp.lines().filter_map(|line| line.strip_prefix("a="));
    attributes
        .filter(|text| text.split(':').next() == Some(name))
        .collect()
}

/// Sends requests about a call between Alice (tag a) and Bob (tag b). `more` keys follow those of the call.
pub(crate) trait Ask {
    fn offer(&mut self, sdp: &str, more: &[(&str, &str)]) -> Reply;
    fn answer(&mut self, sdp: &str, more: &[(&str, &str)]) -> Reply;
}

pub(crate) fn with<'a>(
    base: &[(&'a str, &'a str)],
    more: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    [base, more].concat()
}

impl Ask for Bench {
    fn offer(&mut self, sdp: &str, more: &[(&str, &str)]) -> Reply {
        let base = [
            ("command", "offer"),
            ("call-id", "c"),
            ("from-tag", "a"),
            ("sdp", sdp),
        ];
        self.ask(&with(&base, more))
    }

    fn answer(&mut self, sdp: &str, more: &[(&str, &str)]) -> Reply {
        let base = [
            ("command", "answer"),
            ("call-id", "c"),
            ("from-tag", "a"),
            ("to-tag", "b"),
            ("sdp", sdp),
        ];
        self.ask(&with(&base, more))
    }
}

/// Sets up a call of PCMU between Alice, port 4000, and Bob, port 5000.
pub(crate) fn call() -> Bench {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    bench
}

pub(crate) const S: u64 = 1_000_000_000;
