//! Audio files in memory: WAV, FLAC, Ogg Opus (RFC 7845) and MP3, known by their first bytes.
//!
//! [`open`] reads headers only, and so says soon whether a file can be played; [`Opened::decode`] makes the samples.

use std::io::{self, Read, Seek, SeekFrom};

use claxon::FlacReader;
use hound::{SampleFormat, WavReader, WavSpec};
use nanomp3::Options;
use ogg::PacketReader;
use threadbare_rtp::call::Clip;
use threadbare_rtp::codec::{CHANNELS_MAX, Decoder, Encoding, Format, SAMPLE_RATES_HZ};

/// The bytes of a file.
pub(crate) trait Input: Read + Seek + Send {}

impl<I: Read + Seek + Send> Input for I {}

/// A file whose headers are read.
pub(crate) struct Opened {
    kind: Kind,
    rate_hz: u32,
    channels: u8,
}

type Bytes = Box<dyn Input>;

enum Kind {
    Wav(WavReader<Bytes>),
    Flac(Box<FlacReader<Bytes>>),
    Opus(Box<OggOpus>),
    Mp3(Box<nanomp3::Reader<Bytes>>),
}

struct OggOpus {
    packets: PacketReader<Bytes>,
    /// Of the stream among others.
    serial: u32,
    /// Frames of 48 kHz to leave out.
    pre_skip: u64,
    gain: f32,
}

/// Why a file cannot be played. The name is told by the caller.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no audio file of a known format; allowed are WAV, FLAC, Ogg Opus and MP3")]
    Unknown,
    #[error("not readable as {format}: {reason}")]
    Damaged {
        format: &'static str,
        reason: String,
    },
    #[error(
        "{rate_hz} Hz, {channels} channels; allowed are rates of {SAMPLE_RATES_HZ:?} Hz and up to {CHANNELS_MAX} channels"
    )]
    Format { rate_hz: u32, channels: u32 },
    #[error("no audio in it")]
    Empty,
    #[error("more than {SAMPLES_MAX} samples, its channels together")]
    TooLong,
}

fn damaged(format: &'static str) -> impl Fn(String) -> FileError {
    move |reason| FileError::Damaged { format, reason }
}

/// Reads the headers of a file.
///
/// # Errors
/// It is of no known format, or its headers are damaged.
pub(crate) fn open(mut bytes: Bytes) -> Result<Opened, FileError> {
    let mut magic = [0; 4];
    let has_magic = bytes.read_exact(&mut magic);
    bytes.seek(SeekFrom::Start(0))?;
    match has_magic {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(FileError::Unknown);
        }
        Err(error) => return Err(error.into()),
    }
    match &magic {
        b"RIFF" => open_wav(bytes),
        b"fLaC" => open_flac(bytes),
        b"OggS" => open_opus(bytes),
        _ => open_mp3(bytes),
    }
}

fn opened(kind: Kind, rate_hz: u32, channels: u32) -> Result<Opened, FileError> {
    let few = u8::try_from(channels)
        .ok()
        .filter(|channels| (1..=CHANNELS_MAX).contains(channels));
    match few.filter(|_| SAMPLE_RATES_HZ.contains(&rate_hz)) {
        Some(channels) => Ok(Opened {
            kind,
            rate_hz,
            channels,
        }),
        None => Err(FileError::Format { rate_hz, channels }),
    }
}

fn open_wav(bytes: Bytes) -> Result<Opened, FileError> {
    let reader = WavReader::new(bytes).map_err(|error| damaged("WAV")(error.to_string()))?;
    let WavSpec {
        sample_rate,
        channels,
        ..
    } = reader.spec();
    opened(Kind::Wav(reader), sample_rate, channels.into())
}

fn open_flac(bytes: Bytes) -> Result<Opened, FileError> {
    let reader = FlacReader::new(bytes).map_err(|error| damaged("FLAC")(error.to_string()))?;
    let info = reader.streaminfo();
    let kind = Kind::Flac(Box::new(reader));
    opened(kind, info.sample_rate, info.channels)
}

fn open_opus(bytes: Bytes) -> Result<Opened, FileError> {
    let wrong = damaged("Ogg Opus");
    let mut packets = PacketReader::new(bytes);
    let mut next = || {
        let packet = packets.read_packet_expected();
        packet.map_err(|error| wrong(error.to_string()))
    };
    let head = next()?;
    // RFC 7845, section 5.1: "OpusHead", version, channels, pre-skip, rate of the input, gain, mapping.
    let fields = head.data.strip_prefix(b"OpusHead");
    let Some(
        [
            version,
            channels,
            skip0,
            skip1,
            _,
            _,
            _,
            _,
            gain0,
            gain1,
            mapping,
            ..,
        ],
    ) = fields
    else {
        return Err(FileError::Unknown);
    };
    if version >> 4 != 0 || *mapping != 0 || !(1..=2).contains(channels) {
        let reason = format!("version {version}, {channels} channels, mapping {mapping}");
        return Err(wrong(reason));
    }
    let gain = i16::from_le_bytes([*gain0, *gain1]);
    let (serial, channels) = (head.stream_serial(), *channels);
    let pre_skip = u16::from_le_bytes([*skip0, *skip1]);
    // Section 5.2: the comments.
    if !next()?.data.starts_with(b"OpusTags") {
        return Err(wrong("no comments".to_owned()));
    }
    let opus = OggOpus {
        packets,
        serial,
        pre_skip: pre_skip.into(),
        // In 1/256 dB.
        gain: 10_f32.powf(f32::from(gain) / (20.0 * 256.0)),
    };
    opened(Kind::Opus(Box::new(opus)), OPUS_HZ, channels.into())
}

fn open_mp3(mut bytes: Bytes) -> Result<Opened, FileError> {
    if !nanomp3::detect_reader(&mut bytes)? {
        return Err(FileError::Unknown);
    }
    bytes.seek(SeekFrom::Start(0))?;
    // The whole file is read once only, when it is decoded.
    let options = Options::default().skip_scan(true);
    let reader = nanomp3::Reader::with_options(bytes, options)
        .map_err(|error| damaged("MP3")(error.to_string()))?;
    let (rate_hz, channels) = (reader.sample_rate(), reader.channels());
    let channels = channels.ok_or(FileError::Unknown)?.num();
    opened(Kind::Mp3(Box::new(reader)), rate_hz, channels.into())
}

impl Opened {
    /// The length of the audio, ms. `None`: its headers do not have it.
    pub(crate) fn duration_ms(&self) -> Option<u64> {
        let frames = match &self.kind {
            Kind::Wav(reader) => Some(u64::from(reader.duration())),
            Kind::Flac(reader) => reader.streaminfo().samples,
            Kind::Opus(_) | Kind::Mp3(_) => None,
        };
        Some(frames?.saturating_mul(1000) / u64::from(self.rate_hz))
    }

    /// The samples, as far as they can be read, to be played once.
    ///
    /// # Errors
    /// There are none, or too many.
    pub(crate) fn decode(self) -> Result<Clip, FileError> {
        let mut pcm = Samples::default();
        let channels = self.channels;
        let read = match self.kind {
            Kind::Wav(reader) => decode_wav(reader, &mut pcm),
            Kind::Flac(reader) => decode_flac(*reader, channels, &mut pcm),
            Kind::Opus(opus) => decode_opus(*opus, channels, &mut pcm),
            Kind::Mp3(reader) => decode_mp3(*reader, &mut pcm),
        };
        let mut pcm = match (read, pcm.0) {
            (Err(FileError::TooLong), _) => return Err(FileError::TooLong),
            (Err(error), pcm) if pcm.is_empty() => return Err(error),
            // A file that was cut short is played as far as it goes.
            (_, pcm) => pcm,
        };
        pcm.truncate(pcm.len() / usize::from(channels) * usize::from(channels));
        if pcm.is_empty() {
            return Err(FileError::Empty);
        }
        Ok(Clip {
            pcm: pcm.into(),
            rate_hz: self.rate_hz,
            channels,
            times: 1,
        })
    }
}

/// No more of them than allowed, and all of them numbers.
#[derive(Default)]
struct Samples(Vec<f32>);

impl Samples {
    fn extend(&mut self, samples: impl IntoIterator<Item = f32>) -> Result<(), FileError> {
        let finite = |sample: f32| if sample.is_finite() { sample } else { 0.0 };
        self.0.extend(samples.into_iter().map(finite));
        self.check()
    }

    fn check(&self) -> Result<(), FileError> {
        match self.0.len() > SAMPLES_MAX {
            true => Err(FileError::TooLong),
            false => Ok(()),
        }
    }
}

fn decode_wav(mut reader: WavReader<Bytes>, pcm: &mut Samples) -> Result<(), FileError> {
    let spec = reader.spec();
    let wrong = |error: hound::Error| damaged("WAV")(error.to_string());
    match spec.sample_format {
        SampleFormat::Float => {
            for sample in reader.samples::<f32>() {
                pcm.extend([sample.map_err(wrong)?])?;
            }
        }
        SampleFormat::Int => {
            let full_scale = (1_i64 << (spec.bits_per_sample.clamp(1, 32) - 1)) as f32;
            for sample in reader.samples::<i32>() {
                pcm.extend([sample.map_err(wrong)? as f32 / full_scale])?;
            }
        }
    }
    Ok(())
}

fn decode_flac(
    mut reader: FlacReader<Bytes>,
    channels: u8,
    pcm: &mut Samples,
) -> Result<(), FileError> {
    let wrong = damaged("FLAC");
    let bits = reader.streaminfo().bits_per_sample;
    let full_scale = (1_i64 << (bits.clamp(1, 32) - 1)) as f32;
    let mut blocks = reader.blocks();
    let mut room = Vec::new();
    loop {
        let block = blocks.read_next_or_eof(room);
        let Some(block) = block.map_err(|error| wrong(error.to_string()))? else {
            return Ok(());
        };
        if block.channels() != u32::from(channels) {
            return Err(wrong("the channels change".to_owned()));
        }
        for frame in 0..block.duration() {
            let frame = (0..block.channels()).map(|channel| block.sample(channel, frame));
            pcm.extend(frame.map(|sample| sample as f32 / full_scale))?;
        }
        room = block.into_buffer();
    }
}

fn decode_opus(mut opus: OggOpus, channels: u8, pcm: &mut Samples) -> Result<(), FileError> {
    let wrong = damaged("Ogg Opus");
    let format = Format::new(Encoding::Opus, OPUS_HZ, channels);
    let format = format.map_err(|error| wrong(error.to_string()))?;
    let mut decoder = Decoder::new(format).map_err(|error| wrong(error.to_string()))?;
    let channels = usize::from(channels);
    let mut decoded = Vec::new();
    // Counted with the pre-skip, as granule positions are (section 4).
    let mut frames = 0;
    loop {
        let packet = opus.packets.read_packet();
        let Some(packet) = packet.map_err(|error| wrong(error.to_string()))? else {
            return Ok(());
        };
        if packet.stream_serial() != opus.serial {
            continue;
        }
        decoded.clear();
        // Section 4: a packet that is damaged is no reason to stop.
        let made = decoder.decode(&packet.data, &mut decoded).unwrap_or(0) as u64;
        let mut end = frames + made;
        if packet.last_in_stream() {
            // Section 4.4: the position of the last page tells where the audio ends.
            end = end.min(packet.absgp_page().max(frames));
        }
        let begin = opus.pre_skip.clamp(frames, end) - frames;
        let samples = &decoded[begin as usize * channels..(end - frames) as usize * channels];
        pcm.extend(samples.iter().map(|sample| sample * opus.gain))?;
        frames += made;
        if packet.last_in_stream() {
            return Ok(());
        }
    }
}

fn decode_mp3(mut reader: nanomp3::Reader<Bytes>, pcm: &mut Samples) -> Result<(), FileError> {
    loop {
        let frame = reader.read_frame();
        match frame.map_err(|error| damaged("MP3")(error.to_string()))? {
            Some(samples) => pcm.extend(samples.iter().copied())?,
            None => return Ok(()),
        }
    }
}

/// RFC 7845, section 3: positions count frames of 48 kHz.
const OPUS_HZ: u32 = 48_000;
/// Of a file in memory, 128 MiB: more than five minutes of 48 kHz stereo, over an hour of 8 kHz mono.
pub(crate) const SAMPLES_MAX: usize = 32 << 20;
/// Of a file: no WAV file that may be played is longer, but for its headers.
pub(super) const FILE_BYTES_MAX: u64 = 160 << 20;
