//! Routes of audio to the far side.

use super::comfort_noise::ComfortNoise;
use crate::codec::{Decoder, Encoding, Format};
use crate::convert::Converter;
use crate::g711;
use crate::id::RtpTime;
use crate::leg::Payload;

/// What happens to the audio of one payload type.
#[derive(Debug)]
pub(super) enum Route {
    /// The audio is dropped, because the far side has no payload type for it.
    Nowhere,
    /// The audio is forwarded packet by packet, unchanged or converted by table.
    Pass {
        to: Payload,
        table: Option<&'static [u8; 256]>,
    },
    /// The audio is forwarded byte by byte, in packets of another length.
    Repack {
        to: Payload,
        table: Option<&'static [u8; 256]>,
        /// Number of bytes per packet.
        whole: usize,
        unit_bytes: usize,
    },
    /// The audio is re-encoded.
    Reencode(Box<Reencode>),
}

/// The state of re-encoded audio.
#[derive(Debug)]
pub(super) struct Reencode {
    pub(super) decoder: Decoder,
    pub(super) converter: Converter,
    /// Timestamp that a packet without a gap would have.
    pub(super) next: Option<RtpTime>,
    /// The comfort noise, if the sender can pause and the far side accepts noise.
    pub(super) comfort_noise: Option<Box<ComfortNoise>>,
}

/// Returns the byte that means silence.
pub(super) fn silence_of(encoding: Encoding) -> Option<u8> {
    match encoding {
        Encoding::Pcmu => Some(g711::linear_to_ulaw(0)),
        Encoding::Pcma => Some(g711::linear_to_alaw(0)),
        Encoding::L16 | Encoding::L24 => Some(0),
        Encoding::G722 | Encoding::Opus => None,
    }
}

pub(super) fn table_of(from: Format, to: Format) -> Option<&'static [u8; 256]> {
    let is_alike = from.sample_rate_hz == to.sample_rate_hz && from.channels == to.channels;
    match (from.encoding, to.encoding) {
        (Encoding::Pcmu, Encoding::Pcma) if is_alike => Some(&g711::ULAW_TO_ALAW),
        (Encoding::Pcma, Encoding::Pcmu) if is_alike => Some(&g711::ALAW_TO_ULAW),
        _ => None,
    }
}

/// Limits the rate and channels of Opus to those of the other side. The Opus encoder and decoder reduce both at less cost than a converter,
/// and the packets state both.
pub(super) fn narrowed(format: Format, other: Format) -> Format {
    if format.encoding != Encoding::Opus {
        return format;
    }
    let rates = Encoding::Opus.sample_rates_hz().iter().copied();
    let enough = rates.filter(|rate_hz| *rate_hz >= other.sample_rate_hz);
    let rate_hz = enough.min().unwrap_or(format.sample_rate_hz);
    let rate_hz = rate_hz.min(format.sample_rate_hz);
    let channels = format.channels.min(other.channels);
    Format::new(Encoding::Opus, rate_hz, channels).unwrap_or(format)
}

pub(super) fn converter(from: Format, to: Format) -> Option<Converter> {
    Converter::new(
        from.sample_rate_hz,
        from.channels,
        to.sample_rate_hz,
        to.channels,
    )
    .ok()
}
