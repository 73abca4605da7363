//! Audio processing for RTP, as pure functions of samples: codecs, concealment, conversion of rates and channels, tones and DTMF
//! digits, comfort noise.
//!
//! This example decodes a packet of PCMU, and conceals the next packet, which is lost:
//!
//! ```
//! use threadbare_codec::codec::{Decoder, Encoder, EncoderSettings, Format};
//!
//! let format = Format::from_rtpmap("PCMU/8000")?;
//! let mut encoder = Encoder::new(format, &EncoderSettings::default())?;
//! let mut decoder = Decoder::new(format)?;
//! let mut payload = Vec::new();
//! encoder.encode(&[0.5; 160], &mut payload)?;
//! let mut heard = Vec::new();
//! assert_eq!(decoder.decode(&payload, &mut heard)?, 160);
//! decoder.conceal(160, &mut heard);
//! assert_eq!(heard.len(), 320);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`codec`]: PCMU, PCMA, G.722, L16, L24 and Opus, with concealment.
//! - [`comfort`]: comfort noise.
//! - [`conceal`]: packet-loss concealment.
//! - [`convert`]: sample rates and channels.
//! - [`dtmf`]: telephone events, from DTMF digits to packets.
//! - [`g711`]: conversions between PCMU, PCMA and 16-bit linear audio.
//! - [`l16`]: conversions from and to L16, linear audio in network byte order.
//! - [`opus`]: duration of Opus packets.
//! - [`tone`]: DTMF digits and call progress in the audio.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod codec;
pub mod comfort;
pub mod conceal;
pub mod convert;
pub mod dtmf;
pub mod g711;
pub mod l16;
pub mod opus;
pub mod tone;
