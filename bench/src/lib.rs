//! What the measuring programs share. The layout of a measurement:
//!
//! ```text
//!  threadbare-bench (driver) --+-- drain      takes what is sent on, in a process of its own
//!                              +-- streams    the process that is measured (or streams-peer, floor)
//!                              +-- sender     real RTP over loopback, in a process of its own
//! ```
//!
//! The measured process and the driver talk over standard input and output, one JSON object per line, so
//! that nothing waits for a guessed time; see [`session`].

#![deny(unsafe_code)]

pub mod calls;
pub mod counter;
pub mod epoll;
pub mod feed;
pub mod hop;
pub mod libraries;
pub mod lines;
pub mod measure;
pub mod media;
pub mod origin;
pub mod ports;
pub mod render;
pub mod results;
pub mod rtp;
pub mod session;
pub mod stats;
pub mod streams;

/// One packet of 20 ms of PCMU: 12 bytes of RTP header and 160 samples.
pub const PACKET_BYTES: usize = 172;
/// Packets per second of one stream.
pub const PACKETS_PER_SECOND: u64 = 50;
