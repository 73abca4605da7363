//! Audio files in memory: WAV, FLAC, Ogg Opus (RFC 7845) and MP3, recognised by their first bytes.
//!
//! [`open`] reads only headers, so it quickly shows whether a file is playable. [`Opened::decode`] decodes the samples.

use std::io::{self, Read, Seek, SeekFrom};

use claxon::FlacReader;
use nanomp3::Options;
use ogg::PacketReader;
use threadbare_rtp::call::Clip;
use threadbare_rtp::codec::{CHANNELS_MAX, Decoder, Encoding, Format, SAMPLE_RATES_HZ};

use crate::wav::{Wav, WavError};

/// The bytes of a file.
pub trait Input: Read + Seek + Send {}

impl<I: Read + Seek + Send> Input for I {}

/// A file whose headers were read.
pub struct Opened {
    kind: Kind,
    rate_hz: u32,
    channels: u8,
}

type Bytes = Box<dyn Input>;

enum Kind {
    Wav(Wav<Bytes>),
    Flac(Box<FlacReader<Bytes>>),
    Opus(Box<OggOpus>),
    Mp3(Box<nanomp3::Reader<Bytes>>),
}

struct OggOpus {
    packets: PacketReader<Bytes>,
    /// Serial number of the stream in the Ogg file.
    serial: u32,
    /// Number of frames at 48 kHz to skip at the start.
    pre_skip: u64,
    /// Number of frames at 48 kHz, including the pre-skip. `None` if the last page of the file does not belong to the stream.
    end: Option<u64>,
    gain: f32,
}

/// The reason why a file cannot be played. The caller adds the name.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is unreadable.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The format of the file is unknown.
    #[error("the file is not an audio file of a known format; expected WAV, FLAC, Ogg Opus or MP3")]
    Unknown,
    /// The file is damaged.
    #[error("the file cannot be read as {format}: {reason}")]
    Damaged {
        /// The format, such as "MP3".
        format: &'static str,
        /// The reader's message.
        reason: String,
    },
    /// The sample rate or the number of channels is not supported.
    #[error(
        "the file has {rate_hz} Hz and {channels} channels; expected a rate of {SAMPLE_RATES_HZ:?} Hz and up to {CHANNELS_MAX} channels"
    )]
    Format {
        /// Sample rate, Hz.
        rate_hz: u32,
        /// Number of channels.
        channels: u32,
    },
    /// The file has no samples.
    #[error("the file contains no audio")]
    Empty,
    /// The samples exceed the memory limit for one file.
    #[error("the file has more than {SAMPLES_MAX} samples in all channels together")]
    TooLong,
}

fn damaged(format: &'static str) -> impl Fn(String) -> FileError {
    move |reason| FileError::Damaged { format, reason }
}

/// Reads the headers of a file.
///
/// # Errors
/// Fails if the format is unknown or the headers are damaged.
pub fn open(mut bytes: Bytes) -> Result<Opened, FileError> {
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
        b"RIFF" | b"RIFX" | b"RF64" | b"BW64" => open_wav(bytes),
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
    let wav = Wav::open(bytes).map_err(|error| match error {
        WavError::Io(error) => error.into(),
        error => damaged("WAV")(error.to_string()),
    })?;
    if wav.frames() == 0 {
        return Err(FileError::Empty);
    }
    let format = wav.format();
    opened(Kind::Wav(wav), format.rate_hz, format.channels.into())
}

fn open_flac(bytes: Bytes) -> Result<Opened, FileError> {
    let reader = FlacReader::new(bytes).map_err(|error| damaged("FLAC")(error.to_string()))?;
    let info = reader.streaminfo();
    let kind = Kind::Flac(Box::new(reader));
    opened(kind, info.sample_rate, info.channels)
}

fn open_opus(mut bytes: Bytes) -> Result<Opened, FileError> {
    let wrong = damaged("Ogg Opus");
    let last = last_page(&mut bytes)?;
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
        let reason = format!(
            "the header with version {version}, {channels} channels and mapping {mapping} is not supported"
        );
        return Err(wrong(reason));
    }
    let gain = i16::from_le_bytes([*gain0, *gain1]);
    let (serial, channels) = (head.stream_serial(), *channels);
    let pre_skip = u16::from_le_bytes([*skip0, *skip1]);
    // Section 5.2: the comments.
    if !next()?.data.starts_with(b"OpusTags") {
        return Err(wrong("the header with the comments is missing".to_owned()));
    }
    let opus = OggOpus {
        packets,
        serial,
        pre_skip: pre_skip.into(),
        end: last.and_then(|(of_stream, end)| (of_stream == serial).then_some(end)),
        // The gain is in 1/256 dB.
        gain: 10_f32.powf(f32::from(gain) / (20.0 * 256.0)),
    };
    opened(Kind::Opus(Box::new(opus)), OPUS_HZ, channels.into())
}

/// Returns the stream of the last page of an Ogg file, and the position of that page. Rewinds the input.
fn last_page(bytes: &mut Bytes) -> Result<Option<(u32, u64)>, FileError> {
    let length = bytes.seek(SeekFrom::End(0))?;
    bytes.seek(SeekFrom::Start(length.saturating_sub(PAGE_BYTES_MAX)))?;
    let mut tail = Vec::new();
    bytes.take(PAGE_BYTES_MAX).read_to_end(&mut tail)?;
    bytes.seek(SeekFrom::Start(0))?;
    // RFC 3533, section 6: "OggS", version, flags, position, stream.
    let page = tail.windows(18).rfind(|page| page.starts_with(b"OggS\0"));
    Ok(page.and_then(|page| {
        let (position, stream) = page[6..].split_first_chunk()?;
        let stream = u32::from_le_bytes(*stream.first_chunk()?);
        Some((stream, u64::from_le_bytes(*position)))
    }))
}

fn open_mp3(mut bytes: Bytes) -> Result<Opened, FileError> {
    if !nanomp3::detect_reader(&mut bytes)? {
        return Err(FileError::Unknown);
    }
    bytes.seek(SeekFrom::Start(0))?;
    // Skip the scan of the whole file, because the file is read only once, for decoding.
    let options = Options::default().skip_scan(true);
    let reader = nanomp3::Reader::with_options(bytes, options)
        .map_err(|error| damaged("MP3")(error.to_string()))?;
    let (rate_hz, channels) = (reader.sample_rate(), reader.channels());
    let channels = channels.ok_or(FileError::Unknown)?.num();
    opened(Kind::Mp3(Box::new(reader)), rate_hz, channels.into())
}

impl Opened {
    /// Returns the length of the audio in ms; `None` if the headers do not contain it.
    pub fn duration_ms(&self) -> Option<u64> {
        let frames = match &self.kind {
            Kind::Wav(wav) => Some(wav.frames()),
            Kind::Flac(reader) => reader.streaminfo().samples,
            Kind::Opus(opus) => opus.end.and_then(|end| end.checked_sub(opus.pre_skip)),
            Kind::Mp3(reader) => reader.total_samples(),
        };
        Some(frames?.saturating_mul(1000) / u64::from(self.rate_hz))
    }

    /// Decodes all readable samples, for a single playback.
    ///
    /// # Errors
    /// Fails if there are no samples, or too many.
    pub fn decode(self) -> Result<Clip, FileError> {
        let mut pcm = Samples::default();
        let channels = self.channels;
        let read = match self.kind {
            Kind::Wav(wav) => decode_wav(wav, &mut pcm),
            Kind::Flac(reader) => decode_flac(*reader, channels, &mut pcm),
            Kind::Opus(opus) => decode_opus(*opus, channels, &mut pcm),
            Kind::Mp3(reader) => decode_mp3(*reader, &mut pcm),
        };
        let mut pcm = match (read, pcm.0) {
            (Err(FileError::TooLong), _) => return Err(FileError::TooLong),
            (Err(error), pcm) if pcm.is_empty() => return Err(error),
            // A truncated file is decoded up to its end.
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

/// The samples so far, up to the limit. All of them are finite.
#[derive(Default)]
struct Samples(Vec<f32>);

impl Samples {
    fn extend(&mut self, samples: impl IntoIterator<Item = f32>) -> Result<(), FileError> {
        let finite = |sample: f32| if sample.is_finite() { sample } else { 0.0 };
        self.0.extend(samples.into_iter().map(finite));
        self.check()
    }

    fn check(&self) -> Result<(), FileError> {
        if self.0.len() > SAMPLES_MAX {
            Err(FileError::TooLong)
        } else {
            Ok(())
        }
    }
}

fn decode_wav(mut wav: Wav<Bytes>, pcm: &mut Samples) -> Result<(), FileError> {
    let mut samples = Vec::new();
    while wav.read(BLOCK_FRAMES, &mut samples)? > 0 {
        pcm.extend(samples.drain(..).map(|sample| sample as f32))?;
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
            return Err(wrong(
                "the number of channels changes within the file".to_owned(),
            ));
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
    // The count includes the pre-skip, as granule positions do (section 4).
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
        // Section 4: a damaged packet does not end the playback.
        let made = decoder.decode(&packet.data, &mut decoded).unwrap_or(0) as u64;
        let mut end = frames + made;
        if packet.last_in_stream() {
            // Section 4.4: the position of the last page is the end of the audio.
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

/// Number of frames per read.
const BLOCK_FRAMES: usize = 4096;
/// Maximum size of an Ogg page: a header of 27 bytes, 255 lengths, and 255 segments (RFC 3533, section 6).
const PAGE_BYTES_MAX: u64 = 27 + 255 + 255 * 255;
/// Rate of positions, which count frames at 48 kHz (RFC 7845, section 3).
const OPUS_HZ: u32 = 48_000;
/// Limit for a file in memory, 128 MiB: more than five minutes of 48 kHz stereo, over an hour of 8 kHz mono.
pub const SAMPLES_MAX: usize = 32 << 20;
/// Maximum size of a file. Every WAV file with a playable number of samples fits.
pub const FILE_BYTES_MAX: u64 = 160 << 20;
