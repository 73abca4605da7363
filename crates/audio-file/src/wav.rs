//! WAV files in their many variants, read forwards: RIFF, RIFX, RF64 and BW64 with PCM, float, A-law or mu-law.
//!
//! Many headers are wrong. Programs that write to a pipe leave lengths of 0 or FFFFFFFF. A truncated file has lengths that go
//! beyond its end. A pad byte may be missing, and an empty `data` chunk may precede the real one. Like ffmpeg and sox, the reader
//! accepts such files.

use std::io::{self, Read, Seek, SeekFrom};

use threadbare_rtp::codec::{Decoder, Encoding, Format};

/// A file whose headers were read.
#[derive(Debug)]
pub struct Wav<R> {
    input: R,
    format: WavFormat,
    /// Number of bytes of samples left, in whole frames.
    left: u64,
    room: Vec<u8>,
    /// The sample for each G.711 code.
    table: Vec<f32>,
}

/// The format of a file's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WavFormat {
    /// Sample rate, Hz.
    pub rate_hz: u32,
    /// Number of channels.
    pub channels: u16,
    /// Positions of the channels, a bit for each as in WAVEFORMATEXTENSIBLE. `None`: the default for the number of channels.
    pub mask: Option<u32>,
    coding: Coding,
    /// Bytes of one channel's sample.
    bytes: u8,
    is_big_endian: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// Signed integers. If they have more bits than the format uses, the most significant bits count.
    Integer,
    /// 8 bits; silence is 128.
    Unsigned,
    Float,
    ALaw,
    MuLaw,
}

/// The reason why a file is not readable.
#[derive(Debug, thiserror::Error)]
pub enum WavError {
    /// The file is unreadable.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a WAV file, or has another coding.
    #[error("expected a WAV file with PCM, float, A-law or mu-law samples")]
    Other,
    /// The file has no audio.
    #[error("the WAV file has no `data` chunk after its `fmt ` chunk")]
    NoData,
    /// The format is impossible.
    #[error(
        "the WAV file has an unusable format: {channels} channels of {bits} bits at {rate_hz} Hz"
    )]
    Format {
        /// Number of channels.
        channels: u16,
        /// Bits per sample.
        bits: u16,
        /// Sample rate, Hz.
        rate_hz: u32,
    },
}

impl<R: Read + Seek> Wav<R> {
    /// Reads the headers.
    ///
    /// # Errors
    /// Fails if the file is unreadable, is not a WAV file, or has another coding.
    pub fn open(mut input: R) -> Result<Wav<R>, WavError> {
        let end = input.seek(SeekFrom::End(0))?;
        input.rewind()?;
        let mut head = [0; 12];
        let is_big_endian = match input.read_exact(&mut head) {
            Ok(()) => match (&head[..4], &head[8..]) {
                (b"RIFF" | b"RF64" | b"BW64", b"WAVE") => false,
                (b"RIFX", b"WAVE") => true,
                _ => return Err(WavError::Other),
            },
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(WavError::Other);
            }
            Err(error) => return Err(error.into()),
        };
        let mut chunks = Chunks {
            input,
            at: 12,
            end,
            is_big_endian,
            data_bytes: None,
        };
        let mut format = None;
        // The real `data` chunk may follow an empty one.
        let mut empty = None;
        let data = loop {
            let Some(chunk) = chunks.next()? else {
                break empty.ok_or(WavError::NoData)?;
            };
            match &chunk.id {
                b"ds64" => chunks.data_bytes = chunks.ds64(&chunk)?,
                b"fmt " if format.is_none() => format = Some(chunks.format(&chunk)?),
                b"data" if format.is_some() && chunk.bytes > 0 => break chunk,
                b"data" if format.is_some() && !chunks.is_chunk(chunk.at)? => {
                    // The program has never written the length, so the samples follow here, and no other chunk.
                    break Chunk {
                        bytes: end - chunk.at,
                        ..chunk
                    };
                }
                b"data" if format.is_some() => empty = empty.or(Some(chunk)),
                _ => {}
            }
            chunks.skip(&chunk)?;
        };
        let Chunks { mut input, .. } = chunks;
        let format = format.ok_or(WavError::NoData)?;
        input.seek(SeekFrom::Start(data.at))?;
        let frame_bytes = format.frame_bytes() as u64;
        Ok(Wav {
            input,
            format,
            left: data.bytes.min(end - data.at) / frame_bytes * frame_bytes,
            room: Vec::new(),
            table: format.coding.table(),
        })
    }

    /// Returns the format of the samples.
    pub fn format(&self) -> WavFormat {
        self.format
    }

    /// Returns the number of frames left.
    pub fn frames(&self) -> u64 {
        self.left / self.format.frame_bytes() as u64
    }

    /// Appends up to this many frames to `samples`; full scale is 1. At the end of the file it appends none.
    ///
    /// # Errors
    /// Fails if the file has become unreadable.
    pub fn read(&mut self, frames: usize, samples: &mut Vec<f64>) -> io::Result<usize> {
        let frame_bytes = self.format.frame_bytes();
        let wanted = (frames as u64 * frame_bytes as u64).min(self.left);
        self.room.clear();
        let got = (&mut self.input).take(wanted).read_to_end(&mut self.room)?;
        self.left = if (got as u64) < wanted {
            0
        } else {
            self.left - wanted
        };
        let frames = got / frame_bytes;
        let bytes = &self.room[..frames * frame_bytes];
        if self.table.is_empty() {
            self.format.decode(bytes, samples)
        } else {
            let all = bytes.iter().map(|code| self.table[usize::from(*code)]);
            samples.extend(all.map(f64::from));
        }
        Ok(frames)
    }
}

impl Coding {
    /// Returns the table for G.711; empty for other codings.
    fn table(self) -> Vec<f32> {
        let encoding = match self {
            Coding::ALaw => Encoding::Pcma,
            Coding::MuLaw => Encoding::Pcmu,
            Coding::Integer | Coding::Unsigned | Coding::Float => return Vec::new(),
        };
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        let mut table = Vec::new();
        let decoder = Format::new(encoding, 8_000, 1).ok().map(Decoder::new);
        if let Some(Ok(mut decoder)) = decoder {
            // Each byte is one sample.
            let _ = decoder.decode(&codes, &mut table);
        }
        table.resize(codes.len(), 0.0);
        table
    }
}

impl WavFormat {
    fn frame_bytes(&self) -> usize {
        usize::from(self.bytes) * usize::from(self.channels)
    }

    fn decode(&self, bytes: &[u8], samples: &mut Vec<f64>) {
        let count = usize::from(self.bytes);
        let all = bytes.chunks_exact(count);
        // This moves the most significant byte to the end, and fills the lowest bytes with zeros.
        let widen = |bytes: &[u8]| {
            let mut wide = [0; 8];
            wide[8 - count..].copy_from_slice(bytes);
            if self.is_big_endian {
                wide[8 - count..].reverse();
            }
            wide
        };
        match self.coding {
            Coding::Integer => {
                samples.extend(all.map(|one| i64::from_le_bytes(widen(one)) as f64 * INTEGER_UNIT));
            }
            Coding::Unsigned => {
                samples.extend(bytes.iter().map(|one| f64::from(*one) / 128.0 - 1.0))
            }
            Coding::Float if count == 4 => samples.extend(all.map(|one| {
                let [.., a, b, c, d] = widen(one);
                f64::from(f32::from_le_bytes([a, b, c, d]))
            })),
            Coding::Float => samples.extend(all.map(|one| f64::from_le_bytes(widen(one)))),
            // These codings use the table.
            Coding::ALaw | Coding::MuLaw => {}
        }
    }
}

/// The chunks of a file, in order.
struct Chunks<R> {
    input: R,
    /// Position of the next chunk in the file.
    at: u64,
    /// End of the file.
    end: u64,
    is_big_endian: bool,
    /// The length of the chunk `data`, as the chunk `ds64` has it.
    data_bytes: Option<u64>,
}

#[derive(Clone, Copy)]
struct Chunk {
    id: [u8; 4],
    /// Start of the chunk's content.
    at: u64,
    /// Length of the content, at most up to the end of the file.
    bytes: u64,
    is_odd: bool,
}

impl<R: Read + Seek> Chunks<R> {
    fn next(&mut self) -> Result<Option<Chunk>, WavError> {
        if self.at + 8 > self.end {
            return Ok(None);
        }
        self.input.seek(SeekFrom::Start(self.at))?;
        let mut head = [0; 8];
        self.input.read_exact(&mut head)?;
        let [id @ .., a, b, c, d] = head;
        let said = self.u32([a, b, c, d]);
        let at = self.at + 8;
        let left = self.end - at;
        let bytes = match (&id, said, self.data_bytes) {
            // In an unfinished file, ds64 has the length 0.
            (b"data", u32::MAX, Some(bytes)) if bytes > 0 => bytes,
            _ => said.into(),
        };
        Ok(Some(Chunk {
            id,
            at,
            bytes: bytes.min(left),
            is_odd: bytes % 2 == 1,
        }))
    }

    /// Continues after this chunk. Chunks should begin at even offsets, but some programs omit the pad byte.
    fn skip(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.at = chunk.at + chunk.bytes;
        if chunk.is_odd && self.at < self.end {
            self.input.seek(SeekFrom::Start(self.at))?;
            let mut pad = [0];
            self.input.read_exact(&mut pad)?;
            // An identifier does not begin with a control character, so such a byte is a pad byte.
            self.at += u64::from(pad[0] < b' ');
        }
        Ok(())
    }

    /// Whether a chunk begins at this offset, by its name and length.
    fn is_chunk(&mut self, at: u64) -> io::Result<bool> {
        if at + 8 > self.end {
            return Ok(false);
        }
        self.input.seek(SeekFrom::Start(at))?;
        let mut head = [0; 8];
        self.input.read_exact(&mut head)?;
        let [id @ .., a, b, c, d] = head;
        let fits = u64::from(self.u32([a, b, c, d])) <= self.end - at - 8;
        Ok(id.iter().all(|byte| (b' '..=b'~').contains(byte)) && (fits || &id == b"data"))
    }

    fn body<const N: usize>(&mut self, chunk: &Chunk) -> io::Result<([u8; N], usize)> {
        let mut body = [0; N];
        let len = chunk.bytes.min(N as u64) as usize;
        self.input.read_exact(&mut body[..len])?;
        Ok((body, len))
    }

    /// Reads the length of the samples from `ds64`, for files beyond 4 GiB (EBU Tech 3306, ITU-R BS.2088).
    fn ds64(&mut self, chunk: &Chunk) -> io::Result<Option<u64>> {
        let (body, len) = self.body::<16>(chunk)?;
        let [.., a, b, c, d, e, f, g, h] = body;
        Ok((len == 16).then(|| u64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }

    fn format(&mut self, chunk: &Chunk) -> Result<WavFormat, WavError> {
        let (body, len) = self.body::<26>(chunk)?;
        if len < 14 {
            return Err(WavError::Other);
        }
        let word = |at: usize| self.u16([body[at], body[at + 1]]);
        let long = |at: usize| self.u32([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let (mut tag, channels, rate_hz, block_bytes) = (word(0), word(2), long(4), word(12));
        let bits = if len < 16 { 8 } else { word(14) };
        let mut mask = None;
        if tag == EXTENSIBLE && len == 26 {
            // The first two bytes of the sub-format are an ordinary format tag.
            (mask, tag) = (Some(long(20)), word(24));
        }
        let wrong = WavError::Format {
            channels,
            bits,
            rate_hz,
        };
        let (coding, bits) = match tag {
            PCM if bits <= 8 => (Coding::Unsigned, 8),
            PCM if bits <= 64 => (Coding::Integer, bits),
            FLOAT if bits == 32 || bits == 64 => (Coding::Float, bits),
            A_LAW => (Coding::ALaw, 8),
            MU_LAW => (Coding::MuLaw, 8),
            PCM | FLOAT => return Err(wrong),
            _ => return Err(WavError::Other),
        };
        if channels == 0 || rate_hz == 0 {
            return Err(wrong);
        }
        let least = bits.div_ceil(8);
        // A container may be wider than its samples.
        let bytes = match block_bytes / channels {
            wider @ 1..=8
                if block_bytes % channels == 0 && wider > least && coding == Coding::Integer =>
            {
                wider
            }
            _ => least,
        };
        Ok(WavFormat {
            rate_hz,
            channels,
            mask,
            coding,
            bytes: bytes as u8,
            is_big_endian: self.is_big_endian,
        })
    }

    fn u16(&self, bytes: [u8; 2]) -> u16 {
        if self.is_big_endian {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        }
    }

    fn u32(&self, bytes: [u8; 4]) -> u32 {
        if self.is_big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }
}

/// The unit for integers of 64 bits.
const INTEGER_UNIT: f64 = 1.0 / (1_u64 << 63) as f64;
// The format tags that Microsoft registered (mmreg.h; RFC 2361).
const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xfffe;

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn chunk(id: &[u8; 4], bytes: u32, body: &[u8]) -> Vec<u8> {
        [id, &bytes.to_le_bytes()[..], body].concat()
    }

    fn whole(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let pad = &[0][..body.len() % 2];
        chunk(id, body.len() as u32, &[body, pad].concat())
    }

    fn file(chunks: &[Vec<u8>]) -> Vec<u8> {
        [b"RIFF\xff\xff\xff\xffWAVE", &chunks.concat()[..]].concat()
    }

    fn format(tag: u16, channels: u16, bits: u16, block: u16) -> Vec<u8> {
        let (tag, channels, bits) = (
            tag.to_le_bytes(),
            channels.to_le_bytes(),
            bits.to_le_bytes(),
        );
        let rate = 8_000_u32.to_le_bytes();
        let body = [
            &tag[..],
            &channels,
            &rate,
            &[0; 4],
            &block.to_le_bytes(),
            &bits,
        ]
        .concat();
        whole(b"fmt ", &body)
    }

    fn read(bytes: Vec<u8>) -> Result<(WavFormat, Vec<f64>), WavError> {
        let mut wav = Wav::open(Cursor::new(bytes))?;
        let (format, frames) = (wav.format(), wav.frames());
        let mut samples = Vec::new();
        while wav.read(3, &mut samples)? > 0 {}
        assert_eq!(samples.len() as u64, frames * u64::from(format.channels));
        Ok((format, samples))
    }

    fn samples(bytes: Vec<u8>) -> Vec<f64> {
        read(bytes).expect("a WAV file").1
    }

    const HALF: [u8; 4] = [0, 0x40, 0, 0xc0];

    /// The expected samples are those that ffmpeg 5.1 and sox 14.4.2 decode.
    #[test]
    fn real_files_with_wrong_headers_are_read() {
        let pcm = || format(1, 1, 16, 2);
        let want = [0.5, -0.5];
        let data = || whole(b"data", &HALF);
        let list = || whole(b"LIST", b"INFOISFT\x02\0\0\0ab");
        for (what, chunks) in [
            ("plain", vec![pcm(), data()]),
            ("a chunk before", vec![list(), pcm(), data()]),
            ("one between", vec![pcm(), list(), data()]),
            (
                "an odd one, padded",
                vec![pcm(), whole(b"note", b"abc"), data()],
            ),
            (
                "an odd one, not padded",
                vec![pcm(), chunk(b"note", 3, b"abc"), data()],
            ),
            ("one behind", vec![pcm(), data(), list()]),
            (
                "a pipe's length",
                vec![pcm(), chunk(b"data", u32::MAX, &HALF)],
            ),
            (
                "a length beyond the end",
                vec![pcm(), chunk(b"data", 400, &HALF)],
            ),
            (
                "a length that was not filled in",
                vec![pcm(), chunk(b"data", 0, &HALF)],
            ),
            (
                "an empty one first",
                vec![pcm(), chunk(b"data", 0, b""), data()],
            ),
            (
                "an empty one, and others",
                vec![pcm(), chunk(b"data", 0, b""), list(), data()],
            ),
            (
                "cut within a sample",
                vec![pcm(), chunk(b"data", 5, &[&HALF[..], b"x"].concat())],
            ),
            ("some bytes behind", vec![pcm(), data(), b"\0\0\0".to_vec()]),
        ] {
            assert_eq!(samples(file(&chunks)), want, "{what}");
        }
        assert!(matches!(read(file(&[pcm()])), Err(WavError::NoData)));
        assert!(matches!(read(b"RIFF".to_vec()), Err(WavError::Other)));
        assert_eq!(
            samples(file(&[pcm(), chunk(b"data", 0, b""), list()])),
            [0.0; 0]
        );
    }

    /// BS.2088 and Tech 3306: the length is in `ds64`. RIFX: all numbers are big-endian.
    #[test]
    fn rf64_bw64_and_rifx_are_read() {
        let sizes = [&[0; 8][..], &4_u64.to_le_bytes(), &[0; 12]].concat();
        let chunks = [
            whole(b"ds64", &sizes),
            format(1, 1, 16, 2),
            chunk(b"data", u32::MAX, &[&HALF[..], b"LIST\0\0\0\0"].concat()),
        ];
        for id in [b"RF64", b"BW64"] {
            let mut bytes = file(&chunks);
            bytes[..4].copy_from_slice(id);
            assert_eq!(samples(bytes), [0.5, -0.5]);
        }
        let fields: [&[u8]; 7] = [
            b"fmt \0\0\0\x10",
            &[0, 1, 0, 1],
            &8_000_u32.to_be_bytes(),
            &[0; 4],
            &[0, 2, 0, 16],
            b"data\0\0\0\x04",
            &[0x40, 0, 0xc0, 0],
        ];
        let rifx = [&b"RIFX\0\0\0\0WAVE"[..], &fields.concat()].concat();
        assert_eq!(samples(rifx), [0.5, -0.5]);
    }

    /// The expected values follow from the definition of each coding: full scale is 1, and a sample uses the most significant bits.
    #[test]
    fn wav_files_of_all_codings_are_read() {
        let one = |tag, bits, block, body: &[u8]| {
            let chunks = [format(tag, 1, bits, block), whole(b"data", body)];
            samples(file(&chunks))
        };
        assert_eq!(one(1, 8, 1, &[0, 128, 192]), [-1.0, 0.0, 0.5]);
        assert_eq!(one(1, 16, 2, &[0, 0x80]), [-1.0]);
        assert_eq!(one(1, 24, 3, &[0, 0, 0x40]), [0.5]);
        assert_eq!(one(1, 20, 3, &[0, 0, 0xc0]), [-0.5]);
        // A sample of 24 bits in a container of 32.
        assert_eq!(one(1, 24, 4, &[0, 0, 0, 0x40]), [0.5]);
        assert_eq!(one(1, 32, 4, &[0, 0, 0, 0x80]), [-1.0]);
        assert_eq!(one(3, 32, 4, &0.25_f32.to_le_bytes()), [0.25]);
        assert_eq!(one(3, 64, 8, &(-3.5_f64).to_le_bytes()), [-3.5]);
        // ITU-T G.711, tables 1a and 2a: the largest value is 8031 of 8192 in mu-law, and 4032 of 4096 in A-law. The smallest
        // value of mu-law is 0.
        let near = |samples: Vec<f64>, due: f64| (samples[0] - due).abs() < 1e-4;
        assert!(near(one(7, 8, 1, &[0x80]), 8_031.0 / 8_192.0));
        assert!(near(one(6, 8, 1, &[0xaa]), 4_032.0 / 4_096.0));
        assert_eq!(one(7, 8, 1, &[0xff]), [0.0]);
        // ADPCM and impossible formats are refused.
        let broken = |tag, channels, bits| {
            read(file(&[
                format(tag, channels, bits, 2),
                whole(b"data", &HALF),
            ]))
        };
        assert!(matches!(broken(2, 1, 4), Err(WavError::Other)));
        assert!(matches!(broken(1, 0, 16), Err(WavError::Format { .. })));
        assert!(matches!(broken(3, 1, 16), Err(WavError::Format { .. })));
    }

    #[test]
    fn channel_layout_is_reported() {
        let extensible = [
            &0xfffe_u16.to_le_bytes()[..],
            &[70, 0],
            &48_000_u32.to_le_bytes(),
            &[0; 4],
            &140_u16.to_le_bytes(),
            &[16, 0, 22, 0, 16, 0],
            &3_u32.to_le_bytes(),
            b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71",
        ];
        let chunks = [
            whole(b"fmt ", &extensible.concat()),
            whole(b"data", &[0; 280]),
        ];
        let (format, samples) = read(file(&chunks)).expect("a WAV file");
        assert_eq!(
            (format.channels, format.mask, format.rate_hz),
            (70, Some(3), 48_000)
        );
        assert_eq!(samples.len(), 140);
    }

    proptest! {
        /// With any bytes, reading ends, and returns no more samples than the file has.
        #[test]
        fn reading_arbitrary_bytes_always_ends(
            chunks in prop::collection::vec(
                (prop::sample::select(vec![*b"fmt ", *b"data", *b"ds64", *b"LIST"]), any::<u32>(), prop::collection::vec(any::<u8>(), 0..60)),
                0..6,
            ),
            is_true: bool,
        ) {
            let chunks: Vec<Vec<u8>> = chunks
                .into_iter()
                .map(|(id, bytes, body)| if is_true { whole(&id, &body) } else { chunk(&id, bytes, &body) })
                .collect();
            let bytes = file(&chunks);
            let most = bytes.len();
            if let Ok((_, samples)) = read(bytes) {
                prop_assert!(samples.len() <= most);
            }
        }
    }
}
