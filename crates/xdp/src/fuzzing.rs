//! The body of the fuzz target. It is in the library, so that `cargo test` can replay the corpus in `fuzz/corpus/frame`
//! (`tests/it/corpus.rs`).
//!
//! Panics if an invariant is violated.

use std::net::SocketAddr;

use crate::frame::{parse, write};

/// Fuzz target `frame`: the bytes are a frame. If it parses, its payload is sent back. The answer must be a frame that parses
/// to the same payload.
pub fn frame(data: &[u8]) {
    let Some(parsed) = parse(data) else {
        return;
    };
    let payload = parsed.payload;
    assert!(payload.len() + LEAST_HEADERS <= data.len());
    let at = payload.as_ptr() as usize - data.as_ptr() as usize;
    assert_eq!(&data[at..][..payload.len()], payload);
    let own: SocketAddr = match parsed.from {
        SocketAddr::V4(_) => ([192, 0, 2, 1], 5004).into(),
        SocketAddr::V6(_) => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 5004).into(),
    };
    let mut room = vec![0; data.len() + 64];
    let written = write(&mut room, &parsed.way, own, parsed.from, 0, payload);
    let answer = &room[..written.expect("there is room")];
    assert_eq!(answer[..6], data[6..12], "back to its sender");
    let again = parse(answer).expect("a good frame");
    assert_eq!((again.from, again.payload), (own, payload));
}

/// Size of the headers of Ethernet, IPv4 and UDP.
const LEAST_HEADERS: usize = 14 + 20 + 8;
