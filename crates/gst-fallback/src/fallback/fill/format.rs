//! Chooses the raw audio or video format of a fill: the wanted format if downstream accepts it, otherwise the nearest.

use super::grid::Pace;

/// Media type of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Audio,
    Video,
}

/// Format of a fill.
#[derive(Debug, Clone)]
pub(super) struct Format {
    pub(super) caps: gst::Caps,
    pub(super) info: Info,
}

#[derive(Debug, Clone)]
pub(super) enum Info {
    Audio(gst_audio::AudioInfo),
    Video(gst_video::VideoInfo),
}

const RATE_DEFAULT: i32 = 48_000;
const CHANNELS_DEFAULT: i32 = 2;
const WIDTH_DEFAULT: i32 = 1280;
const HEIGHT_DEFAULT: i32 = 720;
/// Default frame rate, also for pictures whose caps have a variable rate.
const FRAMERATE_DEFAULT: (i32, i32) = (25, 1);
const AUDIO_BUFFERS_PER_SECOND: u32 = 50;

/// Maximum rate, twice the fastest rate in use. With a higher rate, the fill would slow down all other elements on the context.
const RATE_MAX: i32 = 1_536_000;
const FRAMERATE_MAX: i32 = 1000;
/// Maximum number of channels: more than any mixer supports.
const CHANNELS_MAX: i32 = 1024;
/// Maximum size of an audio buffer. With many channels, buffers are shorter.
const AUDIO_BYTES_MAX: u32 = 4 << 20;

impl Media {
    /// Returns all supported caps, in system memory.
    pub(super) fn caps(self) -> gst::Caps {
        match self {
            Media::Audio => gst_audio::AudioCapsBuilder::new()
                .rate_range(1..=RATE_MAX)
                .channels_range(1..=CHANNELS_MAX)
                .build(),
            Media::Video => gst_video::VideoCapsBuilder::new()
                .framerate_range(gst::Fraction::new(0, 1)..=gst::Fraction::new(FRAMERATE_MAX, 1))
                .build(),
        }
    }

    /// Returns [`caps`](Self::caps), with those that also match `wanted` first.
    pub(super) fn caps_with(self, wanted: Option<&gst::Caps>) -> gst::Caps {
        let all = self.caps();
        match wanted {
            Some(wanted) => {
                let mut first = wanted.intersect_with_mode(&all, gst::CapsIntersectMode::First);
                first.merge(all);
                first
            }
            None => all,
        }
    }

    /// Chooses one of `allowed`. Returns `None` if none of these is supported.
    pub(super) fn choose(self, wanted: Option<&gst::Caps>, allowed: &gst::Caps) -> Option<Format> {
        let able = self.caps();
        let first = gst::CapsIntersectMode::First;
        let allowed = allowed.intersect_with_mode(&able, first);
        let both = wanted.map(|wanted| wanted.intersect_with_mode(&allowed, first));
        let mut caps = both.filter(|both| !both.is_empty()).unwrap_or(allowed);
        if caps.is_empty() {
            return None;
        }
        caps.truncate();
        // Wanted caps that are not supported still hint at the values.
        let near = wanted.and_then(|wanted| wanted.structure(0));
        let near = near.filter(|near| Some(near.name()) == caps.structure(0).map(|s| s.name()));
        let structure = caps.make_mut().structure_mut(0)?;
        match self {
            Media::Audio => fixate_audio(structure, near),
            Media::Video => fixate_video(structure, near),
        }
        caps.fixate();
        let info = match self {
            Media::Audio => Info::Audio(gst_audio::AudioInfo::from_caps(&caps).ok()?),
            Media::Video => Info::Video(gst_video::VideoInfo::from_caps(&caps).ok()?),
        };
        Some(Format { caps, info })
    }
}

fn near_int(near: Option<&gst::StructureRef>, name: &str, default: i32) -> i32 {
    near.and_then(|near| near.get(name).ok()).unwrap_or(default)
}

fn near_fraction(
    near: Option<&gst::StructureRef>,
    name: &str,
    default: (i32, i32),
) -> gst::Fraction {
    near.and_then(|near| near.get(name).ok())
        .unwrap_or_else(|| gst::Fraction::new(default.0, default.1))
}

fn fixate_text(
    structure: &mut gst::StructureRef,
    near: Option<&gst::StructureRef>,
    name: &str,
    default: &str,
) {
    if !structure.has_field(name) {
        return;
    }
    let near = near.and_then(|near| near.get::<&str>(name).ok());
    if !near.is_some_and(|near| structure.fixate_field_str(name, near)) {
        structure.fixate_field_str(name, default);
    }
}

fn fixate_audio(structure: &mut gst::StructureRef, near: Option<&gst::StructureRef>) {
    let (rate, channels) = (
        near_int(near, "rate", RATE_DEFAULT),
        near_int(near, "channels", CHANNELS_DEFAULT),
    );
    structure.fixate_field_nearest_int("rate", rate);
    structure.fixate_field_nearest_int("channels", channels);
    fixate_text(
        structure,
        near,
        "format",
        gst_audio::AUDIO_FORMAT_S16.to_str(),
    );
    fixate_text(structure, near, "layout", "interleaved");
    // With more than two channels, caps need positions, or an explicit mask of none.
    if let Ok(channels @ 3..) = structure.get::<i32>("channels")
        && !structure.has_field("channel-mask")
    {
        let mask = match u32::try_from(channels) {
            Ok(channels @ ..=64) => gst_audio::AudioChannelPosition::fallback_mask(channels),
            _ => 0,
        };
        structure.set("channel-mask", gst::Bitmask::new(mask));
    }
}

fn fixate_video(structure: &mut gst::StructureRef, near: Option<&gst::StructureRef>) {
    let (width, height) = (
        near_int(near, "width", WIDTH_DEFAULT),
        near_int(near, "height", HEIGHT_DEFAULT),
    );
    structure.fixate_field_nearest_int("width", width);
    structure.fixate_field_nearest_int("height", height);
    fixate_text(structure, near, "format", "I420");
    structure.fixate_field_nearest_fraction(
        "framerate",
        near_fraction(near, "framerate", FRAMERATE_DEFAULT),
    );
    let ratio = near_fraction(near, "pixel-aspect-ratio", (1, 1));
    if structure.has_field("pixel-aspect-ratio") {
        structure.fixate_field_nearest_fraction("pixel-aspect-ratio", ratio);
    } else {
        structure.set("pixel-aspect-ratio", ratio);
    }
    fixate_text(structure, near, "interlace-mode", "progressive");
}

impl Format {
    pub(super) fn pace(&self) -> Pace {
        match &self.info {
            Info::Audio(info) => Pace {
                items: info.rate().max(1).into(),
                seconds: frames_per_buffer(info).into(),
            },
            Info::Video(info) => {
                let fps = info.fps();
                let known = |n: i32| u64::try_from(n).ok().filter(|n| *n > 0);
                let (items, seconds) = known(fps.numer())
                    .zip(known(fps.denom()))
                    .unwrap_or((FRAMERATE_DEFAULT.0 as u64, FRAMERATE_DEFAULT.1 as u64));
                Pace { items, seconds }
            }
        }
    }
}

/// Returns the number of samples of each channel in a buffer. It is a whole number, even at rates at which 20 ms is not.
pub(super) fn frames_per_buffer(info: &gst_audio::AudioInfo) -> u32 {
    let frames_max = AUDIO_BYTES_MAX / info.bpf().max(1);
    (info.rate() / AUDIO_BUFFERS_PER_SECOND).clamp(1, frames_max.max(1))
}
