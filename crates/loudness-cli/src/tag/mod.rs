//! `--tag`: writes tags with the gain that brings a file to the reference loudness.
//!
//! - `edit`: edits the tags of each format.
//! - `audio`: checks that the audio is unchanged.
//! - `replace`: replaces the old file with the edited one.

mod audio;
mod edit;
mod replace;

use std::path::Path;

use threadbare_loudness::integrated_of;

use super::measure::Measured;
use super::problem::Problem;

/// The kind of tags to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scheme {
    /// `REPLAYGAIN_*` (ReplayGain 2.0, to -18 LUFS), in FLAC, Ogg Vorbis and MP3
    Replaygain,
    /// `R128_*_GAIN` (RFC 7845, to -23 LUFS), in Opus
    R128,
}

/// A format whose tags can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Flac,
    Vorbis,
    Opus,
    Mp3,
}

/// The measured level of a file or an album.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Loudness; always finite.
    pub(super) lufs: f64,
    /// True peak; full scale is 1.
    pub(super) true_peak: f64,
}

/// Names and values of tags.
pub(super) type Tags = Vec<(&'static str, String)>;

impl Level {
    /// Returns the level of a file. `None`: silence.
    pub(super) fn of(measured: &Measured) -> Option<Level> {
        let lufs = measured.meter.integrated().ok()?;
        lufs.is_finite().then_some(Level {
            lufs,
            true_peak: measured.true_peak,
        })
    }

    /// Returns the level of all files as one programme.
    pub(super) fn of_all(results: &[Result<Measured, Problem>]) -> Option<Level> {
        let all = || results.iter().flatten();
        let lufs = integrated_of(all().map(|measured| &measured.meter)).ok()?;
        lufs.is_finite().then_some(Level {
            lufs,
            true_peak: all().fold(0.0, |most, measured| measured.true_peak.max(most)),
        })
    }
}

impl Scheme {
    /// Returns the format of a file, if this scheme supports it. `None`: the file has another problem, which the measurement
    /// reports.
    pub(super) fn check(self, path: &Path) -> Result<Option<Format>, Problem> {
        let Ok(format) = edit::format_of(path) else {
            return Ok(None);
        };
        let reason = match (self, format) {
            (Scheme::Replaygain, Some(Format::Opus)) => {
                "Opus files have no REPLAYGAIN tags (RFC 7845, section 5.2.1), but R128 tags; use --tag r128"
            }
            (Scheme::Replaygain, Some(format)) => return Ok(Some(format)),
            (Scheme::R128, Some(Format::Opus)) => return Ok(format),
            (Scheme::R128, Some(_)) => {
                "only Opus files have R128 tags; for this file, use --tag replaygain"
            }
            (_, None) => {
                "only FLAC, Ogg Vorbis, MP3 (replaygain) and Opus (r128) files can be tagged"
            }
        };
        Err(Problem::Untaggable {
            path: path.to_owned(),
            reason: reason.to_owned(),
        })
    }

    /// Returns the tags of a track, and of its album if there is one.
    pub(super) fn tags(self, track: Level, album: Option<Level>) -> Tags {
        let of = |names: [&'static str; 2], level: Level| match self {
            Scheme::Replaygain => vec![
                (names[0], format!("{:.2} dB", REPLAYGAIN_LUFS - level.lufs)),
                (names[1], format!("{:.6}", level.true_peak)),
            ],
            Scheme::R128 => vec![(names[0], q7_8(R128_LUFS - level.lufs).to_string())],
        };
        let (track_names, album_names) = match self {
            Scheme::Replaygain => (
                ["REPLAYGAIN_TRACK_GAIN", "REPLAYGAIN_TRACK_PEAK"],
                ["REPLAYGAIN_ALBUM_GAIN", "REPLAYGAIN_ALBUM_PEAK"],
            ),
            Scheme::R128 => (["R128_TRACK_GAIN", ""], ["R128_ALBUM_GAIN", ""]),
        };
        let mut tags = of(track_names, track);
        if let Some(album) = album {
            tags.extend(of(album_names, album));
        }
        tags
    }
}

/// Writes the tags. At any moment, the file is either the complete old one or the complete new one.
pub(super) fn write(path: &Path, format: Format, tags: &Tags) -> Result<(), Problem> {
    let edited = replace::replace(
        path,
        |file| edit::edit(file, format, tags),
        |old, new| audio::is_same(old, new, format),
    );
    edited.map_err(|reason| Problem::Tag {
        path: path.to_owned(),
        reason,
    })
}

/// Converts a gain. RFC 7845, section 5.2.1: it "is also a Q7.8 fixed point number in dB", "in the range -32768 to 32767,
/// inclusive".
fn q7_8(gain_db: f64) -> i16 {
    // The cast saturates if the value is too large.
    (gain_db * 256.0).round() as i16
}

/// Reference loudness of ReplayGain 2.0: "the reference level is -18 LUFS".
const REPLAYGAIN_LUFS: f64 = -18.0;
/// Reference loudness of R128 tags (RFC 7845, section 5.2.1): that of EBU R128.
const R128_LUFS: f64 = -23.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn level(lufs: f64) -> Level {
        Level {
            lufs,
            true_peak: 0.5,
        }
    }

    #[test]
    fn gains_lead_to_the_reference_of_the_scheme() {
        assert_eq!(
            Scheme::Replaygain.tags(level(-20.5), Some(level(-11.0))),
            [
                ("REPLAYGAIN_TRACK_GAIN", "2.50 dB".to_owned()),
                ("REPLAYGAIN_TRACK_PEAK", "0.500000".to_owned()),
                ("REPLAYGAIN_ALBUM_GAIN", "-7.00 dB".to_owned()),
                ("REPLAYGAIN_ALBUM_PEAK", "0.500000".to_owned()),
            ]
        );
        // The example in RFC 7845 is -573, which is "-2.24 dB", rounded.
        assert_eq!(
            Scheme::R128.tags(level(-23.0 + 573.0 / 256.0), None),
            [("R128_TRACK_GAIN", "-573".to_owned())]
        );
        assert_eq!(q7_8(1e9), i16::MAX);
        assert_eq!(q7_8(-1e9), i16::MIN);
    }
}
