//! Interleaved raw audio: supported formats of the sources, and writing of samples.

use gst::glib;

/// Layout of samples in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    encoding: Encoding,
    pub(super) rate: u32,
    channels: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    S16,
    S32,
    F32,
    F64,
}

/// The formats by name, the preferred one first.
pub(super) const FORMATS: [&str; 4] = ["S16LE", "S32LE", "F32LE", "F64LE"];
const ENCODINGS: [Encoding; 4] = [Encoding::S16, Encoding::S32, Encoding::F32, Encoding::F64];

/// Caps of a source with these formats.
pub(super) fn template(formats: &[&str]) -> gst::Caps {
    let formats = gst::List::new(formats.iter().copied());
    gst::Caps::builder("audio/x-raw")
        .field("format", formats)
        .field("layout", "interleaved")
        .field("rate", gst::IntRange::new(1, i32::MAX))
        .field("channels", gst::IntRange::new(1, CHANNELS_MAX))
        .build()
}

/// The number of positions in a channel mask.
const CHANNELS_MAX: i32 = 64;

/// Chooses one of `caps`, as near to `rate` and to one channel as they allow. Returns `None` if no valid caps are left.
pub(super) fn fixate(caps: gst::Caps, rate: u32) -> Option<(gst::Caps, Format)> {
    let mut caps = caps;
    if caps.is_empty() || caps.is_any() {
        return None;
    }
    caps.truncate();
    {
        let structure = caps.make_mut().structure_mut(0)?;
        structure.fixate_field_nearest_int("rate", i32::try_from(rate).unwrap_or(i32::MAX));
        structure.fixate_field_nearest_int("channels", 1);
        structure.fixate_field_str("format", FORMATS[0]);
        // More than two channels need positions, or an explicit mask of none.
        if structure.get::<i32>("channels").is_ok_and(|n| n > 2)
            && !structure.has_field("channel-mask")
        {
            structure.set("channel-mask", gst::Bitmask::new(0));
        }
    }
    caps.fixate();
    let structure = caps.structure(0)?;
    let name = structure.get::<glib::GString>("format").ok()?;
    let encoding = FORMATS.iter().position(|format| *format == name)?;
    let format = Format {
        encoding: ENCODINGS[encoding],
        rate: structure.get::<i32>("rate").ok()?.try_into().ok()?,
        channels: structure.get::<i32>("channels").ok()?.try_into().ok()?,
    };
    Some((caps, format))
}

/// Rounds to the nearest whole number (ties to even), for numbers below 2^51. It adds a large number, which leaves no bits for a
/// fraction. The oldest supported processor has no instruction for rounding, and a call of a function would take most of the
/// time.
#[inline]
fn rounded(x: f64) -> f64 {
    const UNIT_STEPS: f64 = (1u64 << 52) as f64 * 1.5;
    (x + UNIT_STEPS) - UNIT_STEPS
}

impl Format {
    /// Returns the size of a sample of all channels, bytes.
    pub(super) fn frame_bytes(&self) -> usize {
        self.channels * self.encoding.bytes()
    }

    /// Writes samples, which are relative to full scale, to all channels alike. `out` must have the right length.
    pub(super) fn write(&self, samples: &[f64], out: &mut [u8]) {
        match self.encoding {
            Encoding::S16 => self.each(samples, out, |s| {
                (rounded(s * 32_767.0) as i16).to_le_bytes()
            }),
            Encoding::S32 => {
                self.each(samples, out, |s| {
                    (rounded(s * 2_147_483_647.0) as i32).to_le_bytes()
                });
            }
            Encoding::F32 => self.each(samples, out, |s| (s as f32).to_le_bytes()),
            Encoding::F64 => self.each(samples, out, f64::to_le_bytes),
        }
    }

    fn each<const N: usize>(&self, samples: &[f64], out: &mut [u8], to: impl Fn(f64) -> [u8; N]) {
        if self.channels == 1 {
            for (sample, room) in samples.iter().zip(out.chunks_exact_mut(N)) {
                room.copy_from_slice(&to(*sample));
            }
            return;
        }
        for (sample, frame) in samples.iter().zip(out.chunks_exact_mut(N * self.channels)) {
            let bytes = to(*sample);
            for channel in frame.chunks_exact_mut(N) {
                channel.copy_from_slice(&bytes);
            }
        }
    }
}

impl Encoding {
    fn bytes(self) -> usize {
        match self {
            Encoding::S16 => 2,
            Encoding::S32 | Encoding::F32 => 4,
            Encoding::F64 => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_rounded_as_by_the_standard_library() {
        let sample = |i: i32| f64::from(i) / 7.3;
        for x in (-300_000..300_000)
            .map(sample)
            .chain([0.5, 1.5, -0.5, 2_147_483_646.5])
        {
            assert_eq!(rounded(x), x.round_ties_even(), "{x}");
        }
    }

    #[test]
    fn samples_are_written_in_all_formats_and_channels() {
        gst::init().unwrap();
        for (name, bytes) in [
            ("S16LE", vec![0x00, 0x40, 0x01, 0x80]),
            (
                "F32LE",
                [0.5f32.to_le_bytes(), (-1f32).to_le_bytes()].concat(),
            ),
            (
                "F64LE",
                [0.5f64.to_le_bytes(), (-1f64).to_le_bytes()].concat(),
            ),
            ("S32LE", vec![0, 0, 0, 0x40, 1, 0, 0, 0x80]),
        ] {
            let mut caps = template(&[name]);
            caps.make_mut().set("channels", 2i32);
            let (_, format) = fixate(caps, 8000).unwrap();
            let frame = format.frame_bytes();
            let mut out = vec![0; 2 * frame];
            format.write(&[0.5, -1.0], &mut out);
            let (first, second) = bytes.split_at(frame / 2);
            assert_eq!(out, [first, first, second, second].concat(), "{name}");
        }
    }

    #[test]
    fn loud_samples_are_clipped() {
        gst::init().unwrap();
        let (_, format) = fixate(template(&["S16LE"]), 8000).unwrap();
        let mut out = [0; 4];
        format.write(&[3.0, -3.0], &mut out);
        assert_eq!(out, [0xff, 0x7f, 0, 0x80]);
    }

    #[test]
    fn nearest_format_is_chosen() {
        gst::init().unwrap();
        let (caps, format) = fixate(template(&FORMATS), 8000).unwrap();
        assert_eq!(
            (format.rate, format.channels, format.encoding),
            (8000, 1, Encoding::S16)
        );
        assert!(caps.is_fixed());
        let mut many = template(&FORMATS);
        many.make_mut().set("channels", 6i32);
        assert!(
            fixate(many, 8000)
                .unwrap()
                .0
                .structure(0)
                .unwrap()
                .has_field("channel-mask")
        );
        assert!(fixate(gst::Caps::new_empty(), 8000).is_none());
        assert!(fixate(gst::Caps::new_any(), 8000).is_none());
    }
}
