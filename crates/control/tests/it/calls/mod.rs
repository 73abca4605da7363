//! Tests of the registry of calls, from requests to replies and actions. The expectations come from RFC 3264 (offer/answer), RFC 4568
//! (SDES), RFC 5761 (rtcp-mux), and from the public documentation of the ng protocol, which is quoted (docs/ng_control_protocol.md of
//! rtpengine).

mod again;
mod branches;
mod common;
mod destinations;
mod early;
mod ends;
mod formats;
mod keys;
mod lines;
mod media;
mod one_line;
mod plain;
mod rules;
mod saved;
mod subscriptions;
mod words;
