//! Audio codecs of RTP: payloads to samples, samples to payloads, and concealment of lost payloads.
//!
//! Samples are interleaved `f32` with full scale 1, which is exact for all encodings up to 24 bits. Encoders clip samples beyond
//! full scale. If the caller reuses its vectors, nothing here allocates after the first packets.
//!
//! | encoding | loss concealment | recovery from the next packet |
//! |---|---|---|
//! | PCMU, PCMA, L16, L24, G722 | [`conceal`](crate::conceal), for each pair of channels | no |
//! | opus | libopus | if the sender adds in-band FEC |

mod concealment;
mod g722;
mod linear;
#[cfg(feature = "opus")]
mod opus;

use thiserror::Error;

use concealment::Concealment;
pub use concealment::Gaps;
pub use linear::decode as decode_linear;
use linear::from_i16;
pub use threadbare_rtp_types::format::{
    CHANNELS_MAX, Encoding, Format, FormatError, SAMPLE_RATES_HZ,
};

/// Why a codec cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The format is invalid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A setting is out of range.
    #[error("{name} {value}, must be {min} to {max}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// The invalid value.
        value: u32,
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// Support for this encoding was not compiled in.
    #[error("{0} is not compiled in; build with the cargo feature \"opus\"")]
    NotBuilt(Encoding),
    /// The codec's library refuses, for this reason.
    #[error("libopus: {0}")]
    Library(&'static str),
}

/// Why a payload cannot be decoded. Such a payload counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The payload has no samples.
    #[error("the payload is empty")]
    Empty,
    /// The payload ends within a frame, or lasts longer than a second.
    #[error(
        "the payload has {0} bytes, but must be a whole number of frames that last at most a second"
    )]
    Length(usize),
    /// The contents of the payload are invalid.
    #[error("the payload is malformed")]
    Malformed,
}

/// Why samples cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// No packet has this length: see [`Format::allows_frames`].
    #[error("no packet has {samples} samples of {channels} channels")]
    Length {
        /// Number of samples given.
        samples: usize,
        /// Number of channels of the format.
        channels: u8,
    },
    /// The codec's library refuses, for this reason.
    #[error("libopus: {0}")]
    Library(&'static str),
}

/// Decodes the payloads of one stream to samples. Pass the payloads in order, and call [`Decoder::conceal`] in place of each lost
/// payload.
#[derive(Debug)]
pub struct Decoder {
    format: Format,
    kind: DecoderKind,
}

#[derive(Debug)]
enum DecoderKind {
    Linear(Concealment),
    G722 {
        decoder: Box<g722::Decoder>,
        concealment: Concealment,
        samples: Vec<i16>,
    },
    #[cfg(feature = "opus")]
    Opus(opus::Decoder),
}

impl Decoder {
    /// Creates a decoder for payloads of this format.
    ///
    /// # Errors
    /// Fails if the format is invalid, or was not compiled in.
    pub fn new(format: Format) -> Result<Decoder, CodecError> {
        format.check()?;
        let concealment = || {
            let rate_hz = format.sample_rate_hz;
            let encoding = format.encoding;
            Concealment::new(format).ok_or(FormatError::Rate { encoding, rate_hz })
        };
        let kind = match format.encoding {
            Encoding::G722 => DecoderKind::G722 {
                decoder: Box::new(g722::Decoder::new()),
                concealment: concealment()?,
                samples: Vec::new(),
            },
            #[cfg(feature = "opus")]
            Encoding::Opus => DecoderKind::Opus(opus::Decoder::new(format)?),
            #[cfg(not(feature = "opus"))]
            Encoding::Opus => return Err(CodecError::NotBuilt(format.encoding)),
            _ => DecoderKind::Linear(concealment()?),
        };
        Ok(Decoder { format, kind })
    }

    /// Returns the format of the payloads and of the samples.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Appends the samples of a payload to `out`, and returns their number in frames. After a loss, the beginning of the payload
    /// is joined to the concealment.
    ///
    /// # Errors
    /// Fails if the payload is invalid. In this case, nothing is appended; call [`Decoder::conceal`] instead.
    pub fn decode(&mut self, payload: &[u8], out: &mut Vec<f32>) -> Result<usize, DecodeError> {
        if payload.is_empty() {
            return Err(DecodeError::Empty);
        }
        let start = out.len();
        if self.format.encoding != Encoding::Opus {
            // "A receiver SHOULD accept packets representing between 0 and 200 ms of audio data" (RFC 3551, section 4.2). The
            // limit here is a second. A packet never decodes to more than that.
            let frames = self.format.payload_samples(payload.len());
            if frames.is_none_or(|frames| frames > self.format.sample_rate_hz) {
                return Err(DecodeError::Length(payload.len()));
            }
        }
        match &mut self.kind {
            DecoderKind::Linear(concealment) => {
                linear::decode(self.format.encoding, payload, out);
                concealment.pass(&mut out[start..]);
            }
            DecoderKind::G722 {
                decoder,
                concealment,
                samples,
            } => {
                samples.clear();
                decoder.decode(payload, samples);
                out.extend(samples.iter().map(|sample| from_i16(*sample)));
                concealment.pass(&mut out[start..]);
            }
            #[cfg(feature = "opus")]
            DecoderKind::Opus(decoder) => return decoder.decode(payload, out),
        }
        Ok((out.len() - start) / usize::from(self.format.channels))
    }

    /// Appends `frames` of concealment for a lost payload.
    pub fn conceal(&mut self, frames: usize, out: &mut Vec<f32>) {
        let start = out.len();
        let filled = start + frames * usize::from(self.format.channels);
        match &mut self.kind {
            DecoderKind::Linear(concealment) | DecoderKind::G722 { concealment, .. } => {
                out.resize(filled, 0.0);
                concealment.fill(&mut out[start..]);
            }
            #[cfg(feature = "opus")]
            DecoderKind::Opus(decoder) => decoder.conceal(frames, out),
        }
    }

    /// Resets the state. It has no effect on Opus.
    pub fn reset(&mut self) {
        match &mut self.kind {
            DecoderKind::Linear(concealment) => concealment.reset(),
            DecoderKind::G722 {
                decoder,
                concealment,
                ..
            } => {
                **decoder = g722::Decoder::new();
                concealment.reset();
            }
            #[cfg(feature = "opus")]
            DecoderKind::Opus(_) => {}
        }
    }

    /// Returns the position in a gap. Opus does not report it.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        match &self.kind {
            DecoderKind::Linear(concealment) | DecoderKind::G722 { concealment, .. } => {
                concealment.gaps()
            }
            #[cfg(feature = "opus")]
            DecoderKind::Opus(_) => Gaps::default(),
        }
    }

    /// Continues in a gap. The payloads before the gap must have been decoded already.
    pub fn resume(&mut self, gaps: &Gaps) {
        match &mut self.kind {
            DecoderKind::Linear(concealment) | DecoderKind::G722 { concealment, .. } => {
                concealment.resume(gaps);
            }
            #[cfg(feature = "opus")]
            DecoderKind::Opus(_) => {}
        }
    }

    /// Recovers `frames` of a lost payload from `next_payload`, the payload after it. If `next_payload` has such data, appends
    /// the frames and returns true; then decode `next_payload` as usual. If not, appends nothing and returns false; then conceal
    /// the loss instead.
    pub fn recover(&mut self, next_payload: &[u8], frames: usize, out: &mut Vec<f32>) -> bool {
        match &mut self.kind {
            #[cfg(feature = "opus")]
            DecoderKind::Opus(decoder) => decoder.recover(next_payload, frames, out),
            _ => {
                let _ = (next_payload, frames, out);
                false
            }
        }
    }

    /// Returns the number of frames in a payload, without decoding it; `None` if the payload is invalid.
    #[must_use]
    pub fn frames_in(&self, payload: &[u8]) -> Option<usize> {
        match &self.kind {
            #[cfg(feature = "opus")]
            DecoderKind::Opus(_) => opus::frames_in(self.format, payload),
            _ => {
                let frames = self.format.payload_samples(payload.len())?;
                (1..=self.format.sample_rate_hz)
                    .contains(&frames)
                    .then_some(frames as usize)
            }
        }
    }
}

/// Settings of an encoder. Only Opus uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderSettings {
    /// Bit rate, 6000 to 510,000 bits per second (RFC 7587, section 6.1); `None` leaves the choice to the library.
    pub bitrate_bps: Option<u32>,
    /// Upper limit of the bit rate, in the same range, which applies also if the library chooses the bit rate. A receiver
    /// requests it with `maxaveragebitrate` (RFC 7587, section 6.1).
    pub bitrate_bps_max: Option<u32>,
    /// Computing effort for quality, 0 to 10.
    pub complexity: u8,
    /// Discontinuous transmission: during silence, one packet in 400 ms.
    pub dtx: bool,
    /// In-band FEC: packets of speech contain a coarse copy of the previous packet. It takes effect only if the expected loss is
    /// above 0.
    pub fec: bool,
    /// Expected loss, for which the encoder prepares, 0 to 100 percent.
    pub expected_loss_percent: u8,
    /// Kind of audio.
    pub purpose: Purpose,
    /// The longest payload, 2 to 7680 bytes.
    pub payload_bytes_max: u16,
}

/// Kind of audio for which the encoder is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Calls.
    Voice,
    /// Music and programmes.
    Audio,
}

impl Default for EncoderSettings {
    /// Returns defaults for calls over Ethernet: of 1500 bytes, IPv6, UDP and RTP leave 1440 for the payload.
    fn default() -> Self {
        EncoderSettings {
            bitrate_bps: None,
            bitrate_bps_max: None,
            complexity: 5,
            dtx: false,
            fec: false,
            expected_loss_percent: 0,
            purpose: Purpose::Voice,
            payload_bytes_max: 1_440,
        }
    }
}

impl EncoderSettings {
    /// Checks whether an encoder accepts these settings.
    ///
    /// # Errors
    /// Fails if a setting is out of range.
    pub fn check(&self) -> Result<(), CodecError> {
        let settings = [
            ("bitrate", self.bitrate_bps.unwrap_or(6_000), 6_000, 510_000),
            (
                "highest bitrate",
                self.bitrate_bps_max.unwrap_or(6_000),
                6_000,
                510_000,
            ),
            ("complexity", u32::from(self.complexity), 0, 10),
            (
                "expected loss percent",
                u32::from(self.expected_loss_percent),
                0,
                100,
            ),
            (
                "longest payload",
                u32::from(self.payload_bytes_max),
                2,
                PAYLOAD_BYTES_MAX,
            ),
        ];
        for (name, value, min, max) in settings {
            if !(min..=max).contains(&value) {
                return Err(CodecError::Setting {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// Result of [`Encoder::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of payload.
    pub bytes: usize,
    /// Whether the payload only continues silence, and need not be sent. The next payload that is sent gets the marker.
    pub is_dtx: bool,
}

/// Encodes the samples of one stream to payloads.
#[derive(Debug)]
pub struct Encoder {
    format: Format,
    kind: EncoderKind,
}

#[derive(Debug)]
enum EncoderKind {
    Linear,
    G722(Box<g722::Encoder>),
    #[cfg(feature = "opus")]
    Opus(opus::Encoder),
}

impl Encoder {
    /// Creates an encoder for samples of this format.
    ///
    /// # Errors
    /// Fails if the format is invalid or was not compiled in, or if a setting is out of range.
    pub fn new(format: Format, settings: &EncoderSettings) -> Result<Encoder, CodecError> {
        format.check()?;
        settings.check()?;
        let kind = match format.encoding {
            Encoding::G722 => EncoderKind::G722(Box::new(g722::Encoder::new())),
            #[cfg(feature = "opus")]
            Encoding::Opus => EncoderKind::Opus(opus::Encoder::new(format, settings)?),
            #[cfg(not(feature = "opus"))]
            Encoding::Opus => return Err(CodecError::NotBuilt(format.encoding)),
            _ => EncoderKind::Linear,
        };
        Ok(Encoder { format, kind })
    }

    /// Returns the format of the samples and of the payloads.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Encodes `pcm`, and appends the payload to `out`. `pcm` is interleaved, in whole frames, with a length that
    /// [`Format::allows_frames`] allows.
    ///
    /// # Errors
    /// Fails if no packet has this length, or if the library refuses. In these cases, nothing is appended.
    pub fn encode(&mut self, pcm: &[f32], out: &mut Vec<u8>) -> Result<Encoded, EncodeError> {
        let channels = self.format.channels;
        let frames = pcm.len() / usize::from(channels);
        let is_whole = pcm.len().is_multiple_of(usize::from(channels));
        if !is_whole || !self.format.allows_frames(frames) {
            let samples = pcm.len();
            return Err(EncodeError::Length { samples, channels });
        }
        let start = out.len();
        match &mut self.kind {
            EncoderKind::Linear => linear::encode(self.format.encoding, pcm, out),
            EncoderKind::G722(encoder) => out.extend(
                pcm.chunks_exact(2)
                    .map(|pair| encoder.encode(linear::to_i16(pair[0]), linear::to_i16(pair[1]))),
            ),
            #[cfg(feature = "opus")]
            EncoderKind::Opus(encoder) => return encoder.encode(pcm, out),
        }
        Ok(Encoded {
            bytes: out.len() - start,
            is_dtx: false,
        })
    }

    /// Acts as [`encode`](Self::encode), for any number of frames. It works only for encodings that have separate bytes for each
    /// frame, so not for Opus.
    ///
    /// # Errors
    /// Fails for Opus. In this case, nothing is appended.
    pub fn encode_any(&mut self, pcm: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match &mut self.kind {
            EncoderKind::Linear => linear::encode(self.format.encoding, pcm, out),
            EncoderKind::G722(encoder) => out.extend(
                pcm.chunks_exact(2)
                    .map(|pair| encoder.encode(linear::to_i16(pair[0]), linear::to_i16(pair[1]))),
            ),
            #[cfg(feature = "opus")]
            EncoderKind::Opus(_) => {
                return Err(EncodeError::Length {
                    samples: pcm.len(),
                    channels: self.format.channels,
                });
            }
        }
        Ok(())
    }

    /// Resets the state. It has no effect on Opus.
    pub fn reset(&mut self) {
        if let EncoderKind::G722(encoder) = &mut self.kind {
            **encoder = g722::Encoder::new();
        }
    }

    /// Sets the bit rate of Opus from the next packet on. It has no effect on other encodings.
    ///
    /// # Errors
    /// Fails if a setting is out of range, or if the library refuses.
    pub fn set_bitrate(&mut self, settings: &EncoderSettings) -> Result<(), CodecError> {
        settings.check()?;
        match &mut self.kind {
            #[cfg(feature = "opus")]
            EncoderKind::Opus(encoder) => encoder.set_bitrate(settings),
            _ => Ok(()),
        }
    }

    /// Sets the loss for which Opus prepares from now on, as the peer reports it; a value above 100 counts as 100. It has no
    /// effect on other encodings.
    ///
    /// # Errors
    /// Fails if the library refuses.
    pub fn set_expected_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        match &mut self.kind {
            #[cfg(feature = "opus")]
            EncoderKind::Opus(encoder) => encoder.set_expected_loss(percent.min(100)),
            _ => {
                let _ = percent;
                Ok(())
            }
        }
    }

    /// Returns the delay of the decoded audio behind the encoder's input, in frames.
    #[must_use]
    pub fn latency_frames(&mut self) -> usize {
        match &mut self.kind {
            // 22 samples at 16 kHz: the delay of the two mirror filters of 24 coefficients.
            EncoderKind::G722(_) => 22,
            #[cfg(feature = "opus")]
            EncoderKind::Opus(encoder) => encoder.lookahead(),
            EncoderKind::Linear => 0,
        }
    }
}

/// Maximum payload: six Opus frames of 20 ms, each with the maximum size of 1275 bytes (RFC 6716, section 3.2), and their
/// headers.
const PAYLOAD_BYTES_MAX: u32 = 7_680;
