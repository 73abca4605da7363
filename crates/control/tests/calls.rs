//! The registry of calls: requests in, replies and actions out. Expectations: RFC 3264 (offer/answer), RFC 4568 (SDES), RFC 5761 (rtcp-mux), and
//! the public documentation of the ng protocol (docs/ng_control_protocol.md of rtpengine), quoted.

#[path = "calls/again.rs"]
mod again;
#[path = "calls/branches.rs"]
mod branches;
#[path = "calls/common.rs"]
mod common;
#[path = "calls/destinations.rs"]
mod destinations;
#[path = "calls/early.rs"]
mod early;
#[path = "calls/ends.rs"]
mod ends;
#[path = "calls/formats.rs"]
mod formats;
#[path = "calls/keys.rs"]
mod keys;
#[path = "calls/lines.rs"]
mod lines;
#[path = "calls/media.rs"]
mod media;
#[path = "calls/one_line.rs"]
mod one_line;
#[path = "calls/plain.rs"]
mod plain;
#[path = "calls/rules.rs"]
mod rules;
#[path = "calls/saved.rs"]
mod saved;
#[path = "calls/subscriptions.rs"]
mod subscriptions;
#[path = "calls/words.rs"]
mod words;
