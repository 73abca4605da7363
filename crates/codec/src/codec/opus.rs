//! Opus by libopus (RFC 6716, RFC 7587).

use opus2::{Application, Bitrate, Channels};

use super::{CodecError, DecodeError, EncodeError, Encoded, EncoderSettings, Format, Purpose};
use crate::opus::packet_samples;

#[derive(Debug)]
pub(super) struct Decoder {
    inner: opus2::Decoder,
    format: Format,
}

impl Decoder {
    pub(super) fn new(format: Format) -> Result<Decoder, CodecError> {
        let inner = opus2::Decoder::new(format.sample_rate_hz, channels(format));
        Ok(Decoder {
            inner: inner.map_err(|error| CodecError::Library(error.description()))?,
            format,
        })
    }

    pub(super) fn decode(
        &mut self,
        payload: &[u8],
        out: &mut Vec<f32>,
    ) -> Result<usize, DecodeError> {
        let frames = frames_in(self.format, payload).ok_or(DecodeError::Malformed)?;
        let decoded = self.fill(payload, frames, false, out);
        decoded.ok_or(DecodeError::Malformed)
    }

    /// Appends concealment by the library.
    pub(super) fn conceal(&mut self, frames: usize, out: &mut Vec<f32>) {
        let mut left = frames;
        while left > 0 {
            let now = left.min(self.step() * STEPS_MAX);
            if self.fill_part(&[], now, false, out).is_none() {
                let silence = out.len() + left * usize::from(self.format.channels);
                return out.resize(silence, 0.0);
            }
            left -= now;
        }
    }

    /// Recovers the packet before `next`, `frames` long, if `next` contains a copy of it.
    pub(super) fn recover(&mut self, next: &[u8], frames: usize, out: &mut Vec<f32>) -> bool {
        let Some(own) = frames_in(self.format, next) else {
            return false;
        };
        // The copy covers only the time of one packet. If more is missing, the library conceals the audio before that packet.
        if !has_redundancy(next) || frames < own || frames > self.step() * STEPS_MAX {
            return false;
        }
        self.fill_part(next, frames, true, out).is_some()
    }

    /// Appends `frames` of decoded audio. The library conceals only multiples of 2.5 ms. So this decodes the next multiple, and
    /// truncates the result.
    fn fill_part(
        &mut self,
        payload: &[u8],
        frames: usize,
        fec: bool,
        out: &mut Vec<f32>,
    ) -> Option<()> {
        let end = out.len() + frames * usize::from(self.format.channels);
        let whole = frames.next_multiple_of(self.step());
        self.fill(payload, whole, fec, out)?;
        out.truncate(end);
        Some(())
    }

    /// Appends the library's decoded audio, at most `frames`. Appends nothing if the library refuses the payload.
    fn fill(
        &mut self,
        payload: &[u8],
        frames: usize,
        fec: bool,
        out: &mut Vec<f32>,
    ) -> Option<usize> {
        let channels = usize::from(self.format.channels);
        let start = out.len();
        out.resize(start + frames * channels, 0.0);
        let decoded = self
            .inner
            .decode_float(payload, &mut out[start..], fec)
            .ok();
        out.truncate(start + decoded.unwrap_or(0) * channels);
        for sample in &mut out[start..] {
            let is_number = sample.is_finite();
            *sample = if is_number {
                sample.clamp(-PEAK_MAX, PEAK_MAX)
            } else {
                0.0
            };
        }
        decoded
    }

    /// Returns the number of frames in 2.5 ms.
    fn step(&self) -> usize {
        self.format.sample_rate_hz as usize / 400
    }
}

/// Returns the number of frames to which a payload decodes, computed from its first bytes.
pub(super) fn frames_in(format: Format, payload: &[u8]) -> Option<usize> {
    let samples = packet_samples(payload)?;
    usize::try_from(format.frames_of_units(samples)).ok()
}

/// Whether a packet contains a copy of the previous one ("low bit-rate redundancy", RFC 6716, section 2.1.7).
fn has_redundancy(payload: &[u8]) -> bool {
    let Some((frame, silk_frames)) = first_frame(payload) else {
        return false;
    };
    // Section 4.2.3: the SILK layer begins with a VAD flag for each of its frames, and one LBRR flag. If there is a side channel,
    // its flags follow. Flags with equal probabilities are plain bits in the bytes.
    let Some(header) = frame.first() else {
        return false;
    };
    let is_stereo = payload[0] & 4 != 0;
    let mid = header >> (7 - silk_frames) & 1;
    let side = u8::from(is_stereo) & header >> (6 - 2 * silk_frames);
    mid | side & 1 != 0
}

/// Returns the first Opus frame of a packet without its first byte, and the number of SILK frames in it; `None` if the packet has
/// no SILK layer.
fn first_frame(payload: &[u8]) -> Option<(&[u8], u32)> {
    let (toc, rest) = payload.split_first()?;
    // Configurations of section 3.1, table 2: 16 and above are CELT. SILK frames last 20 ms, or 10 ms if the Opus frame does.
    let silk_frames = match toc >> 3 {
        config @ 0..=11 => [1, 1, 2, 3][usize::from(config % 4)],
        12..=15 => 1,
        _ => return None,
    };
    // Section 3.2: the code determines where the first frame begins.
    let lengths = match toc & 3 {
        0 | 1 => 0,
        2 => 1,
        _ => {
            let (count, mut rest) = rest.split_first()?;
            let mut lengths = 0;
            if count & 0x40 != 0 {
                // Padding: 255 means that one more byte follows.
                lengths += rest.iter().position(|byte| *byte != 255)? + 1;
                rest = rest.get(lengths..)?;
            }
            let coded = if count & 0x80 != 0 {
                (count & 0x3f).saturating_sub(1)
            } else {
                0
            };
            return Some((skip_lengths(rest, coded)?, silk_frames));
        }
    };
    Some((skip_lengths(rest, lengths)?, silk_frames))
}

/// Skips `count` lengths of frames: one byte each, or two if the first is at least 252 (section 3.2.1).
fn skip_lengths(mut bytes: &[u8], count: u8) -> Option<&[u8]> {
    for _ in 0..count {
        let width = if *bytes.first()? >= 252 { 2 } else { 1 };
        bytes = bytes.get(width..)?;
    }
    Some(bytes)
}

#[derive(Debug)]
pub(super) struct Encoder {
    inner: opus2::Encoder,
    settings: EncoderSettings,
}

impl Encoder {
    pub(super) fn new(format: Format, settings: &EncoderSettings) -> Result<Encoder, CodecError> {
        let application = match settings.purpose {
            Purpose::Voice => Application::Voip,
            Purpose::Audio => Application::Audio,
        };
        let library = |error: opus2::Error| CodecError::Library(error.description());
        let mut inner = opus2::Encoder::new(format.sample_rate_hz, channels(format), application)
            .map_err(library)?;
        inner
            .set_complexity(i32::from(settings.complexity))
            .map_err(library)?;
        inner.set_dtx(settings.dtx).map_err(library)?;
        inner.set_inband_fec(settings.fec).map_err(library)?;
        let loss = i32::from(settings.expected_loss_percent);
        inner.set_packet_loss_perc(loss).map_err(library)?;
        let mut encoder = Encoder {
            inner,
            settings: *settings,
        };
        encoder.set_bitrate(settings)?;
        Ok(encoder)
    }

    pub(super) fn set_bitrate(&mut self, settings: &EncoderSettings) -> Result<(), CodecError> {
        let library = |error: opus2::Error| CodecError::Library(error.description());
        let wanted = settings
            .bitrate_bps
            .map_or(Bitrate::Auto, |bps| Bitrate::Bits(bps as i32));
        self.inner.set_bitrate(wanted).map_err(library)?;
        if let Some(most) = settings.bitrate_bps_max.map(|bps| bps as i32) {
            // The library returns the bit rate that it chose.
            let chosen = self.inner.get_bitrate().map_err(library)?;
            if !matches!(chosen, Bitrate::Bits(bps) if bps <= most) {
                self.inner
                    .set_bitrate(Bitrate::Bits(most))
                    .map_err(library)?;
            }
        }
        Ok(())
    }

    pub(super) fn set_expected_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        let set = self.inner.set_packet_loss_perc(i32::from(percent));
        set.map_err(|error| CodecError::Library(error.description()))
    }

    pub(super) fn encode(
        &mut self,
        pcm: &[f32],
        out: &mut Vec<u8>,
    ) -> Result<Encoded, EncodeError> {
        let start = out.len();
        out.resize(start + usize::from(self.settings.payload_bytes_max), 0);
        let result = self.inner.encode_float(pcm, &mut out[start..]);
        let bytes = *result.as_ref().unwrap_or(&0);
        out.truncate(start + bytes);
        result.map_err(|error| EncodeError::Library(error.description()))?;
        Ok(Encoded {
            bytes,
            // "If the return value is 2 bytes or less, then the packet does not need to be transmitted (DTX)": libopus,
            // opus_encode().
            is_dtx: self.settings.dtx && bytes <= 2,
        })
    }

    /// Returns the delay of the decoded audio behind the encoder's input, in frames.
    pub(super) fn lookahead(&mut self) -> usize {
        let frames = self.inner.get_lookahead().unwrap_or(0);
        usize::try_from(frames).unwrap_or(0)
    }
}

fn channels(format: Format) -> Channels {
    if format.channels == 1 {
        Channels::Mono
    } else {
        Channels::Stereo
    }
}

/// Maximum sample value, because decoded audio may exceed full scale a little. Garbage decodes to values in the thousands, after
/// which filters would ring for long.
const PEAK_MAX: f32 = 4.0;

/// 120 ms, the longest packet, in steps of 2.5 ms.
const STEPS_MAX: usize = 48;
