//! Reads the samples of a buffer in any supported type and layout, without copying them if their alignment allows it.
//!
//! A [`Format`] has the contents of caps. With it, a mapped buffer is read as [`Frames`]: slices of one of four types,
//! interleaved or planar. Buffers come from any source, so inconsistent data is refused, without guesses or panics.

use std::ops::Range;

use bytemuck::Pod;
use gst_audio::{AudioChannelPosition as Position, AudioFormat, AudioLayout};
use threadbare_loudness::{CHANNELS_MAX, Channel, InputError, Meter, RATE_HZ_MAX, Sample};

/// Parsed caps of raw audio.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    /// Frames per second.
    pub rate_hz: u32,
    /// Position of each channel's loudspeaker, one per channel.
    pub layout: Vec<Channel>,
    /// Type of the samples.
    pub kind: Kind,
    /// Whether the samples come channel after channel, each for the whole buffer, instead of frame after frame.
    pub is_planar: bool,
}

/// Returns the caps of the formats that [`Format::of_caps`] accepts, with this minimum rate. They have native byte order, because
/// GStreamer's decoders and converters produce the other order only on request.
pub(super) fn template_caps(rate_hz_min: u32) -> gst::Caps {
    let formats = [
        gst_audio::AUDIO_FORMAT_F32,
        gst_audio::AUDIO_FORMAT_F64,
        gst_audio::AUDIO_FORMAT_S16,
        gst_audio::AUDIO_FORMAT_S32,
    ];
    gst::Caps::builder("audio/x-raw")
        .field(
            "format",
            gst::List::new(formats.map(gst_audio::AudioFormat::to_str)),
        )
        .field("layout", gst::List::new(["interleaved", "non-interleaved"]))
        .field(
            "rate",
            gst::IntRange::new(rate_hz_min as i32, RATE_HZ_MAX as i32),
        )
        .field("channels", gst::IntRange::new(1, CHANNELS_MAX as i32))
        .build()
}

/// The type of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Kind {
    /// Returns the size of a sample in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Kind::I16 => 2,
            Kind::I32 | Kind::F32 => 4,
            Kind::F64 => 8,
        }
    }
}

/// Why caps or a buffer cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// The caps are not raw audio.
    #[error("the caps are not those of raw audio: {0}")]
    Caps(gst::Caps),
    /// The samples have another type than the four supported ones, or another byte order than the machine's.
    #[error("samples of type {} are not supported", .0.to_str())]
    Type(AudioFormat),
    /// Too many channels.
    #[error("{0} channels, must be 1 to {CHANNELS_MAX}")]
    Channels(u32),
    /// The last frame is not whole.
    #[error("{bytes} bytes are not a whole number of frames of {frame_bytes} bytes")]
    PartialFrame {
        /// Bytes of the buffer.
        bytes: usize,
        /// Bytes per frame.
        frame_bytes: usize,
    },
    /// The buffer is planar, and the positions of its channels are unknown.
    #[error("a buffer with planar samples has no GstAudioMeta with the offset of each channel")]
    NoMeta,
    /// The numbers of channels of the buffer and of its caps differ.
    #[error("the GstAudioMeta of the buffer has {meta} channels, but its caps have {caps}")]
    MetaChannels {
        /// Channels of the buffer.
        meta: usize,
        /// Channels of the caps.
        caps: usize,
    },
    /// A channel is not in the buffer's memory.
    #[error(
        "channel {channel} begins at byte {offset} and has {frames} frames, which exceeds the buffer of {bytes} bytes"
    )]
    Plane {
        /// Number of the channel.
        channel: usize,
        /// Start of the channel.
        offset: usize,
        /// Length of the channel.
        frames: usize,
        /// Length of the buffer.
        bytes: usize,
    },
    /// The memory cannot be mapped.
    #[error("the buffer cannot be mapped for reading")]
    Memory,
}

impl Format {
    /// Parses caps.
    ///
    /// # Errors
    /// Fails if the caps are not audio, have an unsupported sample type, or have more channels than a meter supports.
    pub fn of_caps(caps: &gst::CapsRef) -> Result<Format, Refused> {
        let info =
            gst_audio::AudioInfo::from_caps(caps).map_err(|_| Refused::Caps(caps.to_owned()))?;
        Format::of(&info)
    }

    /// Acts as [`of_caps`](Self::of_caps), for parsed caps.
    ///
    /// # Errors
    /// Fails as [`Format::of_caps`] does.
    pub fn of(info: &gst_audio::AudioInfo) -> Result<Format, Refused> {
        let kind = match info.format() {
            gst_audio::AUDIO_FORMAT_S16 => Kind::I16,
            gst_audio::AUDIO_FORMAT_S32 => Kind::I32,
            gst_audio::AUDIO_FORMAT_F32 => Kind::F32,
            gst_audio::AUDIO_FORMAT_F64 => Kind::F64,
            other => return Err(Refused::Type(other)),
        };
        let channels = info.channels();
        if !(1..=CHANNELS_MAX as u32).contains(&channels) {
            return Err(Refused::Channels(channels));
        }
        Ok(Format {
            rate_hz: info.rate(),
            layout: layout_of(info.positions(), channels as usize),
            kind,
            is_planar: info.layout() == AudioLayout::NonInterleaved,
        })
    }

    /// Returns the format of interleaved samples in double precision. `mask` has a bit for the position of each channel
    /// (WAVEFORMATEXTENSIBLE). Without a mask, channels have their usual positions. If there are more channels than bits in the
    /// mask, the last channels have no position.
    ///
    /// # Errors
    /// Fails if the number of channels is zero, or larger than a meter supports.
    pub fn of_wave(rate_hz: u32, channels: u16, mask: Option<u32>) -> Result<Format, Refused> {
        let count = usize::from(channels);
        if !(1..=CHANNELS_MAX).contains(&count) {
            return Err(Refused::Channels(channels.into()));
        }
        let usual = || USUAL_MASKS.get(count - 1).copied().unwrap_or(0);
        let mask = mask.filter(|mask| *mask != 0).unwrap_or_else(usual);
        let known = WAVE_PLACES.iter().enumerate();
        let known = known.filter(|(bit, _)| mask >> bit & 1 == 1);
        let positions: Vec<Position> = known.map(|(_, place)| *place).take(count).collect();
        let mut layout = if positions.is_empty() {
            Vec::new()
        } else {
            layout_of(Some(&positions), positions.len())
        };
        layout.resize(count, Channel::Center);
        Ok(Format {
            rate_hz,
            layout,
            kind: Kind::F64,
            is_planar: false,
        })
    }

    /// Returns the number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.layout.len()
    }

    /// Returns the size, in bytes, of one sample of each channel.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.kind.bytes() * self.channels()
    }

    /// Returns the duration of this many frames, in ns, rounded down.
    #[must_use]
    pub fn duration_ns(&self, frames: u64) -> u64 {
        let ns = u128::from(frames) * 1_000_000_000 / u128::from(self.rate_hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the number of frames that start within `ns`, rounded down.
    #[must_use]
    pub fn frames_in(&self, ns: u64) -> u64 {
        let frames = u128::from(ns) * u128::from(self.rate_hz) / 1_000_000_000;
        u64::try_from(frames).unwrap_or(u64::MAX)
    }

    /// Returns the number of frames in a buffer, without reading its memory.
    ///
    /// # Errors
    /// Fails if the last frame is not whole, or if the buffer is planar without the positions of its planes.
    pub fn frames_of(&self, buffer: &gst::BufferRef) -> Result<usize, Refused> {
        if self.needs_meta() {
            let (frames, bytes) = (self.meta(buffer)?.samples(), buffer.size());
            // A buffer that claims many frames without the memory for them must not keep a thread busy.
            if frames > bytes / self.kind.bytes() {
                return Err(Refused::Plane {
                    channel: 0,
                    offset: 0,
                    frames,
                    bytes,
                });
            }
            return Ok(frames);
        }
        let (bytes, frame_bytes) = (buffer.size(), self.frame_bytes());
        if !bytes.is_multiple_of(frame_bytes) {
            return Err(Refused::PartialFrame { bytes, frame_bytes });
        }
        Ok(bytes / frame_bytes)
    }

    /// Calls `visit` with the samples of a buffer.
    ///
    /// # Errors
    /// Fails if the frames are not whole, if the planes are not where the buffer claims, or if the memory cannot be read.
    pub fn read<R>(
        &self,
        buffer: &gst::BufferRef,
        scratch: &mut Scratch,
        visit: impl FnOnce(Frames<'_>) -> R,
    ) -> Result<R, Refused> {
        let frames = self.frames_of(buffer)?;
        let map = buffer.map_readable().map_err(|_| Refused::Memory)?;
        let mut planes: [&[u8]; CHANNELS_MAX] = [&[]; CHANNELS_MAX];
        let count = if self.needs_meta() {
            self.find_planes(&map, frames, self.meta(buffer)?.offsets(), &mut planes)?
        } else {
            planes[0] = &map;
            1
        };
        let planes = scratch.align(&mut planes[..count], self.kind.bytes());
        Ok(visit(match self.kind {
            Kind::I16 => Frames::I16(Typed::of(planes, self.channels(), frames)),
            Kind::I32 => Frames::I32(Typed::of(planes, self.channels(), frames)),
            Kind::F32 => Frames::F32(Typed::of(planes, self.channels(), frames)),
            Kind::F64 => Frames::F64(Typed::of(planes, self.channels(), frames)),
        }))
    }

    /// Whether the buffer needs a GstAudioMeta. One channel has the same layout planar and interleaved.
    fn needs_meta(&self) -> bool {
        self.is_planar && self.channels() > 1
    }

    fn meta<'a>(
        &self,
        buffer: &'a gst::BufferRef,
    ) -> Result<gst::MetaRef<'a, gst_audio::AudioMeta>, Refused> {
        let meta = buffer
            .meta::<gst_audio::AudioMeta>()
            .ok_or(Refused::NoMeta)?;
        let (its, caps) = (meta.info().channels() as usize, self.channels());
        if its != caps || meta.info().layout() != AudioLayout::NonInterleaved {
            return Err(Refused::MetaChannels { meta: its, caps });
        }
        Ok(meta)
    }

    /// Finds the planes of a buffer, and returns their number.
    fn find_planes<'a>(
        &self,
        bytes: &'a [u8],
        frames: usize,
        offsets: &[usize],
        planes: &mut [&'a [u8]; CHANNELS_MAX],
    ) -> Result<usize, Refused> {
        let length = frames.checked_mul(self.kind.bytes());
        for (channel, place) in planes.iter_mut().enumerate().take(self.channels()) {
            let offset = offsets.get(channel).copied().unwrap_or(usize::MAX);
            let end = length.and_then(|length| offset.checked_add(length));
            let plane = end.and_then(|end| bytes.get(offset..end));
            *place = plane.ok_or(Refused::Plane {
                channel,
                offset,
                frames,
                bytes: bytes.len(),
            })?;
        }
        Ok(self.channels())
    }
}

/// Memory for samples that are not aligned for their type. It grows to the size of the largest such buffer, and is kept.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u64>);

impl Scratch {
    /// Returns the planes unchanged if all are aligned for samples of this size. Otherwise returns copies.
    fn align<'a>(&'a mut self, planes: &'a mut [&'a [u8]], sample_bytes: usize) -> &'a [&'a [u8]] {
        let is_aligned = |plane: &&[u8]| plane.as_ptr().addr().is_multiple_of(sample_bytes);
        if planes.iter().all(is_aligned) {
            return planes;
        }
        let words = |plane: &&[u8]| plane.len().div_ceil(size_of::<u64>());
        self.0.resize(planes.iter().map(words).sum(), 0);
        let mut rest = &mut self.0[..];
        for plane in &mut *planes {
            let (copy, after) = rest.split_at_mut(words(plane));
            rest = after;
            let copy = &mut bytemuck::cast_slice_mut(copy)[..plane.len()];
            copy.copy_from_slice(plane);
            *plane = copy;
        }
        planes
    }
}

/// The samples of a buffer.
#[derive(Clone, Copy)]
pub enum Frames<'a> {
    /// 16-bit integers.
    I16(Typed<'a, i16>),
    /// 32-bit integers.
    I32(Typed<'a, i32>),
    /// Single precision.
    F32(Typed<'a, f32>),
    /// Double precision.
    F64(Typed<'a, f64>),
}

/// Expands its body with [`Typed`] samples of each type.
macro_rules! with_typed_frames {
    ($frames:expr, $typed:ident => $body:expr) => {
        match $frames {
            $crate::loudness::frames::Frames::I16($typed) => $body,
            $crate::loudness::frames::Frames::I32($typed) => $body,
            $crate::loudness::frames::Frames::F32($typed) => $body,
            $crate::loudness::frames::Frames::F64($typed) => $body,
        }
    };
}
pub(crate) use with_typed_frames;

impl Frames<'_> {
    /// Returns the number of frames.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        with_typed_frames!(self, typed => typed.len())
    }

    /// Adds some of the frames to a meter of as many channels.
    ///
    /// # Errors
    /// Fails if the meter has another number of channels.
    pub fn measure(&self, meter: &mut Meter, range: Range<usize>) -> Result<(), InputError> {
        with_typed_frames!(self, typed => typed.measure(meter, range))
    }
}

/// Samples of one type.
#[derive(Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "on the stack for the time of a call; a box would be an allocation for each buffer"
)]
pub enum Typed<'a, T> {
    /// Frame after frame, of this many channels.
    Interleaved(&'a [T], usize),
    /// A slice for each channel; all are equally long.
    Planar(Planes<'a, T>),
}

/// One plane per channel, without allocating a vector for each buffer.
#[derive(Clone, Copy)]
pub struct Planes<'a, T> {
    slices: [&'a [T]; CHANNELS_MAX],
    count: usize,
}

impl<'a, T> Planes<'a, T> {
    /// Returns one slice for each channel.
    #[must_use]
    pub fn slices(&self) -> &[&'a [T]] {
        &self.slices[..self.count]
    }

    /// Returns these frames of each plane.
    pub(crate) fn sub(&self, range: &Range<usize>) -> Planes<'a, T> {
        let mut slices: [&[T]; CHANNELS_MAX] = [&[]; CHANNELS_MAX];
        for (part, whole) in slices.iter_mut().zip(self.slices()) {
            *part = &whole[range.clone()];
        }
        Planes {
            slices,
            count: self.count,
        }
    }
}

impl<'a, T: Sample + Pod> Typed<'a, T> {
    /// Creates the samples from planes that are aligned for `T`. A single plane is interleaved.
    fn of(planes: &[&'a [u8]], channels: usize, frames: usize) -> Self {
        if let [one] = planes {
            return Typed::Interleaved(bytemuck::cast_slice(&one[..]), channels);
        }
        let mut slices: [&[T]; CHANNELS_MAX] = [&[]; CHANNELS_MAX];
        for (slice, plane) in slices.iter_mut().zip(planes) {
            *slice = bytemuck::cast_slice(plane);
            debug_assert_eq!(slice.len(), frames);
        }
        Typed::Planar(Planes {
            slices,
            count: planes.len(),
        })
    }

    /// Returns the length in frames.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match self {
            Typed::Interleaved(samples, channels) => samples.len() / channels,
            Typed::Planar(planes) => planes.slices().first().map_or(0, |first| first.len()),
        }
    }

    fn measure(&self, meter: &mut Meter, range: Range<usize>) -> Result<(), InputError> {
        match self {
            Typed::Interleaved(samples, channels) => {
                meter.add_interleaved(&samples[range.start * channels..range.end * channels])
            }
            Typed::Planar(planes) => meter.add_planar(planes.sub(&range).slices()),
        }
    }
}

/// Returns the positions of the loudspeakers. Channels without a position all have the same weight, that of a front channel.
fn layout_of(positions: Option<&[Position]>, channels: usize) -> Vec<Channel> {
    let positions = match positions {
        Some(positions) if !positions.contains(&Position::None) => positions,
        _ => return vec![Channel::Center; channels],
    };
    let has_sides = positions.contains(&Position::SideLeft);
    let place = |position: &Position| place_of(*position, has_sides);
    positions.iter().map(place).collect()
}

/// Masks for one to eight channels: mono, stereo, 3.0, quadro, 5.0, 5.1, 6.1 and 7.1, as in WAVE files without a mask.
const USUAL_MASKS: [u32; 8] = [0x4, 0x3, 0x7, 0x33, 0x37, 0x3f, 0x13f, 0x63f];
/// Positions of the mask's bits, the least significant first.
const WAVE_PLACES: [Position; 18] = [
    Position::FrontLeft,
    Position::FrontRight,
    Position::FrontCenter,
    Position::Lfe1,
    Position::RearLeft,
    Position::RearRight,
    Position::FrontLeftOfCenter,
    Position::FrontRightOfCenter,
    Position::RearCenter,
    Position::SideLeft,
    Position::SideRight,
    Position::TopCenter,
    Position::TopFrontLeft,
    Position::TopFrontCenter,
    Position::TopFrontRight,
    Position::TopRearLeft,
    Position::TopRearCenter,
    Position::TopRearRight,
];

/// Returns the weight of a position. ITU-R BS.1770, annex 1, table 4, gives more weight to positions 60 to 120 degrees to the
/// side. The rear pair of 5.1 is at 110 degrees. If there is also a side pair, as in 7.1 (ITU-R BS.2051, system I), the rear pair
/// is at 135 degrees.
fn place_of(position: Position, has_sides: bool) -> Channel {
    match position {
        Position::Mono | Position::FrontCenter => Channel::Center,
        Position::FrontLeft => Channel::Left,
        Position::FrontRight => Channel::Right,
        Position::RearLeft if has_sides => Channel::Mp135,
        Position::RearRight if has_sides => Channel::Mm135,
        Position::RearLeft | Position::SurroundLeft => Channel::LeftSurround,
        Position::RearRight | Position::SurroundRight => Channel::RightSurround,
        Position::SideLeft => Channel::Mp090,
        Position::SideRight => Channel::Mm090,
        Position::WideLeft => Channel::Mp060,
        Position::WideRight => Channel::Mm060,
        Position::FrontLeftOfCenter => Channel::MpSC,
        Position::FrontRightOfCenter => Channel::MmSC,
        Position::RearCenter => Channel::Mp180,
        Position::TopFrontLeft => Channel::Up030,
        Position::TopFrontRight => Channel::Um030,
        Position::TopFrontCenter => Channel::Up000,
        Position::TopCenter => Channel::Tp000,
        Position::TopSideLeft => Channel::Up090,
        Position::TopSideRight => Channel::Um090,
        Position::TopRearLeft => Channel::Up135,
        Position::TopRearRight => Channel::Um135,
        Position::TopRearCenter => Channel::Up180,
        Position::BottomFrontCenter => Channel::Bp000,
        Position::BottomFrontLeft => Channel::Bp045,
        Position::BottomFrontRight => Channel::Bm045,
        // These are low-frequency effects, and positions that GStreamer did not have when this was written.
        _ => Channel::Unused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(format: &str, layout: &str, channels: i32) -> gst::Caps {
        gst::init().unwrap();
        let mask = gst::Bitmask::new(if channels > 2 { 0 } else { (1 << channels) - 1 });
        gst::Caps::builder("audio/x-raw")
            .field("format", format)
            .field("rate", 48_000)
            .field("channels", channels)
            .field("layout", layout)
            .field_if("channel-mask", mask, channels > 1)
            .build()
    }

    fn format(format: &str, layout: &str, channels: i32) -> Format {
        Format::of_caps(&caps(format, layout, channels)).unwrap()
    }

    /// Returns the samples of all channels as a meter gets them.
    fn values(format: &Format, buffer: &gst::BufferRef) -> Result<Vec<Vec<f64>>, Refused> {
        fn of<T: Sample + Pod + Into<f64>>(typed: &Typed<'_, T>) -> Vec<Vec<f64>> {
            match typed {
                Typed::Interleaved(samples, channels) => (0..*channels)
                    .map(|c| samples.iter().skip(c).step_by(*channels))
                    .map(|channel| channel.map(|v| (*v).into()).collect())
                    .collect(),
                Typed::Planar(planes) => {
                    let plane = |plane: &&[T]| plane.iter().map(|v| (*v).into()).collect();
                    planes.slices().iter().map(plane).collect()
                }
            }
        }
        let mut scratch = Scratch::default();
        format.read(buffer, &mut scratch, |frames| {
            assert_eq!(frames.len(), format.frames_of(buffer).unwrap());
            with_typed_frames!(frames, typed => of(&typed))
        })
    }

    /// Puts `bytes` into a memory that starts `shift` bytes after an aligned address.
    fn shifted(bytes: &[u8], shift: usize) -> gst::Buffer {
        let mut room = vec![0u64; bytes.len() / 8 + 2];
        let raw: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        raw[shift..shift + bytes.len()].copy_from_slice(bytes);
        let whole = gst::Buffer::from_slice(Words(room));
        let region = shift..shift + bytes.len();
        whole
            .copy_region(gst::BufferCopyFlags::MEMORY, region)
            .unwrap()
    }

    struct Words(Vec<u64>);

    impl AsRef<[u8]> for Words {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }

    #[test]
    fn every_type_is_read_from_every_address() {
        let expected = vec![vec![1.0, 3.0, 5.0], vec![2.0, 4.0, 6.0]];
        let numbers = [1u8, 2, 3, 4, 5, 6];
        let bytes = |encode: &dyn Fn(u8) -> Vec<u8>| -> Vec<u8> {
            numbers.iter().flat_map(|n| encode(*n)).collect()
        };
        for (name, bytes) in [
            ("S16LE", bytes(&|n| i16::from(n).to_le_bytes().into())),
            ("S32LE", bytes(&|n| i32::from(n).to_le_bytes().into())),
            ("F32LE", bytes(&|n| f32::from(n).to_le_bytes().into())),
            ("F64LE", bytes(&|n| f64::from(n).to_le_bytes().into())),
        ] {
            let format = format(name, "interleaved", 2);
            for shift in 0..8 {
                let read = values(&format, &shifted(&bytes, shift)).unwrap();
                assert_eq!(read, expected, "{name} at {shift}");
            }
            for cut in 1..format.frame_bytes() {
                let error = values(&format, &shifted(&bytes[cut..], 0)).unwrap_err();
                assert!(matches!(error, Refused::PartialFrame { .. }), "{error}");
            }
            assert_eq!(values(&format, &gst::Buffer::new()).unwrap(), [[0.0; 0]; 2]);
        }
    }

    /// Three channels of four frames, in another order and with gaps between them.
    fn planar(info: &gst_audio::AudioInfo, shift: usize) -> gst::Buffer {
        let mut bytes = vec![0xee; 64];
        for (offset, channel) in [(40, 0), (0, 1), (20, 2)] {
            for frame in 0..4u8 {
                let sample = f32::from(10 * channel + frame).to_le_bytes();
                let at = offset + 4 * usize::from(frame);
                bytes[at..at + 4].copy_from_slice(&sample);
            }
        }
        let mut buffer = shifted(&bytes, shift);
        let offsets = [40, 0, 20];
        gst_audio::AudioMeta::add(buffer.make_mut(), info, 4, &offsets).unwrap();
        buffer
    }

    #[test]
    fn planes_have_the_offsets_of_the_meta() {
        let caps = caps("F32LE", "non-interleaved", 3);
        let info = gst_audio::AudioInfo::from_caps(&caps).unwrap();
        let format = Format::of(&info).unwrap();
        for shift in 0..4 {
            let buffer = planar(&info, shift);
            let read = values(&format, &buffer).unwrap();
            let expected = [0.0, 10.0, 20.0].map(|c| [c, c + 1.0, c + 2.0, c + 3.0]);
            assert_eq!(read, expected, "at {shift}");
        }
        let mut short = planar(&info, 0);
        short.make_mut().set_size(50);
        let error = values(&format, &short).unwrap_err();
        assert!(
            matches!(error, Refused::Plane { channel: 0, .. }),
            "{error}"
        );
        short.make_mut().set_size(12);
        assert!(format.frames_of(&short).is_err());
        let bare = gst::Buffer::from_slice([0; 48]);
        let error = values(&format, &bare).unwrap_err();
        assert!(matches!(error, Refused::NoMeta), "{error}");
    }

    #[test]
    fn planes_for_another_number_of_channels_are_refused() {
        let caps = caps("F32LE", "non-interleaved", 3);
        let info = gst_audio::AudioInfo::from_caps(&caps).unwrap();
        let two = format("F32LE", "non-interleaved", 2);
        let error = values(&two, &planar(&info, 0)).unwrap_err();
        assert!(matches!(error, Refused::MetaChannels { .. }), "{error}");
        let one = format("F32LE", "non-interleaved", 1);
        let bare = gst::Buffer::from_slice(1f32.to_le_bytes());
        assert_eq!(values(&one, &bare).unwrap(), [[1.0]]);
    }

    #[test]
    fn other_types_and_more_channels_are_refused() {
        let refused = |format, channels| {
            Format::of_caps(&caps(format, "interleaved", channels))
                .unwrap_err()
                .to_string()
        };
        assert!(refused("S24LE", 2).contains("S24LE"));
        assert!(refused("S16BE", 2).contains("S16BE"));
        assert!(refused("F32LE", 65).contains("65 channels"));
        assert_eq!(format("F32LE", "interleaved", 64).channels(), 64);
        let video = gst::Caps::new_empty_simple("video/x-raw");
        assert!(Format::of_caps(&video).is_err());
    }

    #[test]
    fn channels_are_weighted_by_their_place() {
        gst::init().unwrap();
        let weights = |positions: &[Position]| -> Vec<f64> {
            let mask = Position::positions_to_mask(positions, true).unwrap();
            let mut sorted = positions.to_vec();
            Position::positions_to_valid_order(&mut sorted).unwrap();
            let caps = gst::Caps::builder("audio/x-raw")
                .field("format", "F32LE")
                .field("rate", 48_000)
                .field("channels", positions.len() as i32)
                .field("layout", "interleaved")
                .field("channel-mask", gst::Bitmask::new(mask))
                .build();
            let format = Format::of_caps(&caps).unwrap();
            format.layout.iter().map(|place| place.weight()).collect()
        };
        use Position::{
            FrontCenter, FrontLeft, FrontRight, Lfe1, RearLeft, RearRight, SideLeft, SideRight,
        };
        let front = [FrontLeft, FrontRight, FrontCenter, Lfe1];
        let with = |more: &[Position]| weights(&[&front[..], more].concat());
        assert_eq!(with(&[RearLeft, RearRight]), [1., 1., 1., 0., 1.41, 1.41]);
        assert_eq!(with(&[SideLeft, SideRight]), [1., 1., 1., 0., 1.41, 1.41]);
        let eight = with(&[RearLeft, RearRight, SideLeft, SideRight]);
        assert_eq!(eight, [1., 1., 1., 0., 1., 1., 1.41, 1.41]);
        // Mono, and channels without a position.
        assert_eq!(format("F32LE", "interleaved", 1).layout, [Channel::Center]);
        let none = format("F32LE", "interleaved", 7);
        assert_eq!(none.layout, [Channel::Center; 7]);
    }
}
