//! Basic types of RTP audio: numbers, payload types, formats, keys from SDP, and rules for destinations of media. They are only
//! values, without codecs or ciphers.
//!
//! The crate is for programs that describe media to others, by SDP or another protocol, and leave the media itself to another
//! program or crate:
//!
//! ```
//! use threadbare_rtp_types::format::Format;
//! use threadbare_rtp_types::payload_map::{Payload, PayloadMap};
//!
//! // As an offer has it: `a=rtpmap:96 opus/48000/2`, `a=rtpmap:101 telephone-event/48000`.
//! let opus = Format::from_rtpmap("opus/48000/2")?;
//! let map = PayloadMap::new(&[Payload::audio(96, opus), Payload::telephone_event(101, 48_000)])?;
//! assert_eq!(map.audio().clock_rate_hz, 48_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`format`](mod@format): encoding, rates and channels of audio.
//! - [`id`]: sequence numbers, timestamps and their arithmetic.
//! - [`learn`]: rules for learning a party's address.
//! - [`network`]: ranges of addresses.
//! - [`packet`]: the header of a received packet.
//! - [`payload`]: the static payload types.
//! - [`payload_map`]: contents of payload types.
//! - [`policy`]: rules for destinations of media.
//! - [`side`]: the two parties of a call.
//! - [`srtp`]: keys in SDP.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod format;
pub mod id;
pub mod learn;
pub mod network;
pub mod packet;
pub mod payload;
pub mod payload_map;
pub mod policy;
#[doc(hidden)]
pub mod rng;
pub mod side;
#[cfg(feature = "srtp")]
pub mod srtp;
