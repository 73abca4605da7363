//! Common parts of the measuring programs. A measurement consists of these processes:
//!
//! ```text
//!  threadbare-bench (driver) --+-- drain      a separate process that receives the forwarded packets
//!                              +-- streams    the measured process (or streams-peer, floor)
//!                              +-- sender     a separate process that sends real RTP over loopback
//! ```
//!
//! The measured process and the driver communicate by standard input and output, with one JSON object per line (see
//! [`session`]). So the driver knows when a process is ready, and does not have to guess delays.

#![cfg(feature = "programs")]
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

/// Size of a packet with 20 ms of PCMU: 12 bytes of RTP header and 160 samples.
pub const PACKET_BYTES: usize = 172;
/// Packets per second of one stream.
pub const PACKETS_PER_SECOND: u64 = 50;
