//! Position of a channel's loudspeaker, and its weight.

/// The position of a channel. In loudness, sound from the sides has more weight than other sound (ITU-R BS.1770, annex 1, table
/// 4), and low-frequency effects have no weight.
///
/// Apart from the five positions of 3/2, the names are those of ITU-R BS.2051: layer (M middle, U upper, T top, B bottom), sign
/// and azimuth in degrees, positive to the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// A channel of which only the peaks are measured: low-frequency effects, or an unused channel.
    Unused = 0,
    /// M+030.
    Left = 1,
    /// M-030.
    Right = 2,
    /// M+000.
    Center = 3,
    /// M+110.
    LeftSurround = 4,
    /// M-110.
    RightSurround = 5,
    /// One channel that is played by two loudspeakers, and so has twice the energy. For mono only.
    DualMono = 6,
    /// M+SC.
    MpSC = 7,
    /// M-SC.
    MmSC = 8,
    /// M+060.
    Mp060 = 9,
    /// M-060.
    Mm060 = 10,
    /// M+090.
    Mp090 = 11,
    /// M-090.
    Mm090 = 12,
    /// M+135.
    Mp135 = 13,
    /// M-135.
    Mm135 = 14,
    /// M+180.
    Mp180 = 15,
    /// U+000.
    Up000 = 16,
    /// U+030.
    Up030 = 17,
    /// U-030.
    Um030 = 18,
    /// U+045.
    Up045 = 19,
    /// U-045.
    Um045 = 20,
    /// U+090.
    Up090 = 21,
    /// U-090.
    Um090 = 22,
    /// U+110.
    Up110 = 23,
    /// U-110.
    Um110 = 24,
    /// U+135.
    Up135 = 25,
    /// U-135.
    Um135 = 26,
    /// U+180.
    Up180 = 27,
    /// T+000.
    Tp000 = 28,
    /// B+000.
    Bp000 = 29,
    /// B+045.
    Bp045 = 30,
    /// B-045.
    Bm045 = 31,
}

impl Channel {
    /// Returns the factor of this channel's energy in the sum over channels.
    #[must_use]
    pub const fn weight(self) -> f64 {
        match self {
            Channel::Unused => 0.0,
            Channel::DualMono => 2.0,
            Channel::LeftSurround
            | Channel::RightSurround
            | Channel::Mp060
            | Channel::Mm060
            | Channel::Mp090
            | Channel::Mm090 => SIDE_WEIGHT,
            _ => 1.0,
        }
    }

    /// Returns the default layout for this number of channels. It is L R Ls Rs for four channels, and L R C Ls Rs for five. In
    /// all other cases, it is the start of L R C LFE Ls Rs; further channels are unused.
    #[must_use]
    pub fn default_layout(channels: usize) -> Vec<Channel> {
        use Channel::{Center, Left, LeftSurround, Right, RightSurround, Unused};
        let start: &[Channel] = match channels {
            4 => &[Left, Right, LeftSurround, RightSurround],
            5 => &[Left, Right, Center, LeftSurround, RightSurround],
            _ => &[Left, Right, Center, Unused, LeftSurround, RightSurround],
        };
        let rest = std::iter::repeat(&Unused);
        start.iter().chain(rest).copied().take(channels).collect()
    }
}

/// Weight of a side channel, about 1.5 dB (ITU-R BS.1770, annex 1, table 3).
const SIDE_WEIGHT: f64 = 1.41;

#[cfg(test)]
mod tests {
    use super::*;

    /// ITU-R BS.1770, annex 1, table 4: only azimuths of 60 to 120 degrees in the middle layer have more weight.
    #[test]
    fn side_channels_have_more_weight() {
        for side in [
            Channel::LeftSurround,
            Channel::RightSurround,
            Channel::Mp060,
            Channel::Mm060,
            Channel::Mp090,
            Channel::Mm090,
        ] {
            assert_eq!(side.weight(), 1.41, "{side:?}");
        }
        for other in [
            Channel::Left,
            Channel::Mp135,
            Channel::Up090,
            Channel::Bm045,
        ] {
            assert_eq!(other.weight(), 1.0, "{other:?}");
        }
        assert_eq!(Channel::Unused.weight(), 0.0);
        assert_eq!(Channel::DualMono.weight(), 2.0);
    }

    #[test]
    fn default_layouts_of_six_or_more_channels_have_the_subwoofer_fourth() {
        assert_eq!(Channel::default_layout(1), [Channel::Left]);
        assert_eq!(Channel::default_layout(4)[2], Channel::LeftSurround);
        assert_eq!(Channel::default_layout(5)[4], Channel::RightSurround);
        assert_eq!(Channel::default_layout(6)[3], Channel::Unused);
        assert_eq!(Channel::default_layout(8)[6..], [Channel::Unused; 2]);
        assert_eq!(Channel::default_layout(0), []);
    }
}
