//! Building blocks for RTP audio that never read a clock, draw a random number or touch a socket.
//!
//! - [`id`]: sequence numbers, timestamps and their arithmetic.
//! - [`packet`]: the header of a received packet.
//! - [`tone`]: keys and call progress in the audio.
//! - [`payload`]: the static payload types.
//! - [`jitter`]: the jitter buffer.
//! - [`call`]: two legs joined.
//! - [`codec`]: PCMU, PCMA, G.722, L16, L24 and Opus, with concealment.
//! - [`comfort`]: comfort noise.
//! - [`conceal`]: packet-loss concealment.
//! - [`convert`]: sample rates and channels.
//! - [`quality`]: how good a call sounds, by the E-model.
//! - [`reception`]: loss, jitter and validity of one source.
//! - [`session`]: RTCP, both directions.
//! - [`srtp`]: encrypted and authenticated packets, keys from SDP.
//! - [`missing`]: which packets to ask for again, and when.
//! - [`demux`]: finds the stream of a packet on a shared port.
//! - [`dtmf`]: telephone events, from keys to packets.
//! - [`fallback`]: which of several inputs is heard.
//! - [`leg`]: one party: who may send, order and delay, payload types, reports.
//! - [`g711`]: conversions between PCMU, PCMA and 16-bit linear audio.
//! - [`l16`]: conversions from and to L16, linear audio in network byte order.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod call;
pub mod codec;
pub mod comfort;
pub mod conceal;
pub mod convert;
pub mod demux;
pub mod dtmf;
pub mod fallback;
#[doc(hidden)]
pub mod fuzzing;
pub mod g711;
pub mod id;
pub mod jitter;
pub mod l16;
pub mod leg;
pub mod missing;
pub mod opus;
pub mod packet;
pub mod payload;
pub mod quality;
pub mod reception;
mod rng;
pub mod session;
#[cfg(feature = "srtp")]
pub mod srtp;
pub mod tone;
