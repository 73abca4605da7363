//! Measurements of a meter.

use std::fmt;
use std::ops::BitOr;

/// A set of measurements; combine them with `|`.
///
/// The bits are those of the C interface (`EBUR128_MODE_*`). All modes that measure include [`Mode::MOMENTARY`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mode(u32);

impl Mode {
    /// Loudness of the last 400 ms (EBU Tech 3341, 2.2).
    pub const MOMENTARY: Mode = Mode(1);
    /// Loudness of the last 3 s (EBU Tech 3341, 2.2).
    pub const SHORT_TERM: Mode = Mode(1 << 1 | Mode::MOMENTARY.0);
    /// The gated loudness of the whole programme (ITU-R BS.1770, annex 1).
    pub const INTEGRATED: Mode = Mode(1 << 2 | Mode::MOMENTARY.0);
    /// The loudness range of the whole programme (EBU Tech 3342).
    pub const RANGE: Mode = Mode(1 << 3 | Mode::SHORT_TERM.0);
    /// The largest sample of each channel.
    pub const SAMPLE_PEAK: Mode = Mode(1 << 4 | Mode::MOMENTARY.0);
    /// The largest value of each channel between the samples (ITU-R BS.1770, annex 2).
    pub const TRUE_PEAK: Mode = Mode(1 << 5 | Mode::SAMPLE_PEAK.0);
    /// Integrated loudness and range come from histograms. Their memory is fixed, and a reading costs the same after a year as
    /// after a minute. Bins are 0.1 LU wide, so readings are off by some 0.05 LU.
    ///
    /// ```
    /// # use threadbare_loudness::{Meter, Mode};
    /// let endless = Mode::INTEGRATED | Mode::RANGE | Mode::HISTOGRAM;
    /// let meter = Meter::builder(48_000, 2).mode(endless).build()?;
    /// # assert_eq!(meter.mode(), endless);
    /// # Ok::<(), threadbare_loudness::BuildError>(())
    /// ```
    pub const HISTOGRAM: Mode = Mode(1 << 6);

    /// Returns the mode with these bits. Unknown bits are kept, but mean nothing.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Mode {
        Mode(bits)
    }

    /// Returns the bits, as in the C interface.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all measurements of `other` are included.
    #[must_use]
    pub const fn contains(self, other: Mode) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Mode {
    type Output = Mode;

    fn bitor(self, other: Mode) -> Mode {
        Mode(self.0 | other.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for (mode, name) in NAMES {
            if self.contains(mode) {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const NAMES: [(Mode, &str); 7] = [
    (Mode::MOMENTARY, "momentary"),
    (Mode::SHORT_TERM, "short-term"),
    (Mode::INTEGRATED, "integrated"),
    (Mode::RANGE, "range"),
    (Mode::SAMPLE_PEAK, "sample peak"),
    (Mode::TRUE_PEAK, "true peak"),
    (Mode::HISTOGRAM, "histogram"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs were compiled with the values in `ebur128.h` of libebur128 1.2.6, so the bits must be the same.
    #[test]
    fn the_bits_of_modes_equal_those_of_libebur128() {
        let bits = NAMES.map(|(mode, _)| mode.bits());
        assert_eq!(bits, [1, 3, 5, 11, 17, 49, 64]);
    }

    #[test]
    fn range_contains_short_term_and_true_peak_sample_peak() {
        assert!(Mode::RANGE.contains(Mode::SHORT_TERM));
        assert!(Mode::TRUE_PEAK.contains(Mode::SAMPLE_PEAK));
        assert!(!Mode::INTEGRATED.contains(Mode::SHORT_TERM));
        let both = Mode::INTEGRATED | Mode::HISTOGRAM;
        assert!(both.contains(Mode::HISTOGRAM) && both.contains(Mode::MOMENTARY));
        assert_eq!(format!("{both}"), "{momentary, integrated, histogram}");
    }
}
