//! Generates tones: DTMF digits, and cadences such as the busy tone.

use std::f64::consts::{PI, TAU};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{key_frequencies_hz, peak};
use crate::codec::SAMPLE_RATES_HZ;
use crate::dtmf::Key;

/// A part of a tone: up to four simultaneous frequencies, or silence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Frequencies in Hz, 20 to 3900; 0 if unused.
    pub hz: [f64; FREQUENCIES_MAX],
    /// Total power of all frequencies.
    pub level_dbm0: f64,
    /// Duration; 0 means no end.
    pub ms: u32,
}

/// A tone consists of parts that follow one another. As text, "440+480/2000,0/4000" is the ringing tone of North America, and
/// "425" is the dial tone of Europe (ITU-T E.180). In text form, each frequency has -10 dBm0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tone {
    parts: [Part; PARTS_MAX],
    count: usize,
    repeats: bool,
}

/// Why a tone is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ToneError {
    /// The sample rate is not supported.
    #[error("sample rate {0} Hz, must be one of {SAMPLE_RATES_HZ:?}")]
    Rate(u32),
    /// A frequency is not a number of hertz, or out of range.
    #[error("frequency \"{0}\": expected 20 to 3900 Hz, or 0 for silence")]
    Frequency(String),
    /// A duration is not a number of milliseconds.
    #[error("duration \"{0}\": expected 1 to 3600000 ms")]
    Duration(String),
    /// The part has too many simultaneous frequencies.
    #[error("{0} frequencies at once, must be 1 to {FREQUENCIES_MAX}")]
    Frequencies(usize),
    /// The tone has too many parts.
    #[error("{0} parts, must be 1 to {PARTS_MAX}")]
    Parts(usize),
}

impl Tone {
    /// Creates a tone from parts that play once or repeatedly.
    ///
    /// # Errors
    /// Fails if there are no parts or too many, or if a frequency is out of range.
    pub fn new(parts: &[Part], repeats: bool) -> Result<Tone, ToneError> {
        if !(1..=PARTS_MAX).contains(&parts.len()) {
            return Err(ToneError::Parts(parts.len()));
        }
        let mut all = [SILENCE; PARTS_MAX];
        for (to, part) in all.iter_mut().zip(parts) {
            if let Some(hz) = part.hz.iter().find(|hz| !is_frequency(**hz)) {
                return Err(ToneError::Frequency(hz.to_string()));
            }
            *to = *part;
        }
        Ok(Tone {
            parts: all,
            count: parts.len(),
            repeats,
        })
    }

    /// Returns a DTMF digit that lasts `ms`; if `ms` is 0, it lasts until it is stopped. `volume` is that of a telephone event:
    /// "the power level of the tone, expressed in dBm0 after dropping the sign" (RFC 4733, section 2.3.3), for both frequencies
    /// together.
    #[must_use]
    pub fn key(key: Key, volume: u8, ms: u32) -> Tone {
        let [low, high] = key_frequencies_hz(key);
        let part = Part {
            hz: [low, high, 0.0, 0.0],
            level_dbm0: -f64::from(volume.min(63)),
            ms,
        };
        let mut parts = [SILENCE; PARTS_MAX];
        parts[0] = part;
        Tone {
            parts,
            count: 1,
            repeats: false,
        }
    }

    /// Returns the same tone at another level.
    #[must_use]
    pub fn at_level(mut self, dbm0: f64) -> Tone {
        for part in &mut self.parts {
            part.level_dbm0 = dbm0;
        }
        self
    }

    fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }
}

impl FromStr for Tone {
    type Err = ToneError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<Part> = text.split(',').map(parse_part).collect::<Result<_, _>>()?;
        Tone::new(&parts, true)
    }
}

fn parse_part(text: &str) -> Result<Part, ToneError> {
    let (frequencies, ms) = match text.trim().split_once('/') {
        Some((frequencies, ms)) => {
            let refused = || ToneError::Duration(ms.to_owned());
            let number: u32 = ms.parse().map_err(|_| refused())?;
            let is_allowed = (1..=3_600_000).contains(&number);
            (
                frequencies,
                is_allowed.then_some(number).ok_or_else(refused)?,
            )
        }
        None => (text.trim(), 0),
    };
    let mut hz = [0.0; FREQUENCIES_MAX];
    for (at, one) in frequencies.split('+').enumerate() {
        let number = one.parse().ok().filter(|hz| is_frequency(*hz));
        let to = hz.get_mut(at);
        let to = to.ok_or_else(|| ToneError::Frequencies(frequencies.split('+').count()))?;
        *to = number.ok_or_else(|| ToneError::Frequency(one.to_owned()))?;
    }
    Ok(Part {
        hz,
        level_dbm0: LEVEL_DBM0,
        ms,
    })
}

impl fmt::Display for Tone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts().iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "," })?;
            let mut sounding = part.hz.iter().filter(|hz| **hz > 0.0);
            write!(f, "{}", sounding.next().unwrap_or(&0.0))?;
            sounding.try_for_each(|hz| write!(f, "+{hz}"))?;
            if part.ms > 0 {
                write!(f, "/{}", part.ms)?;
            }
        }
        Ok(())
    }
}

fn is_frequency(hz: f64) -> bool {
    hz == 0.0 || (20.0..=3_900.0).contains(&hz)
}

/// Plays one tone at a time, mono, with full scale 1. Parts fade in, out, and into each other over 5 ms. Without the fading, a
/// step would be audible as a click, and detectors would find other frequencies in it.
#[derive(Debug, Clone)]
pub struct ToneGenerator {
    rate_hz: u32,
    tone: Option<Tone>,
    /// The part that is playing, and the number of its remaining frames.
    part: usize,
    frames_left: u64,
    voice: Option<Voice>,
    ending: Option<Voice>,
}

impl ToneGenerator {
    /// Creates a generator for a rate of [`SAMPLE_RATES_HZ`].
    ///
    /// # Errors
    /// Fails for any other rate.
    pub fn new(rate_hz: u32) -> Result<ToneGenerator, ToneError> {
        if !SAMPLE_RATES_HZ.contains(&rate_hz) {
            return Err(ToneError::Rate(rate_hz));
        }
        Ok(ToneGenerator {
            rate_hz,
            tone: None,
            part: 0,
            frames_left: 0,
            voice: None,
            ending: None,
        })
    }

    /// Plays `tone`, instead of any tone that is playing.
    pub fn start(&mut self, tone: Tone) {
        self.tone = Some(tone);
        self.part = 0;
        self.enter();
    }

    /// Fades out the present tone.
    pub fn stop(&mut self) {
        self.tone = None;
        self.change_to(None);
    }

    /// Whether a tone is playing. The pauses of a cadence count as playing.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.tone.is_some() || self.ending.is_some()
    }

    /// Appends `frames` of the tone, or silence if no tone is playing.
    pub fn generate(&mut self, frames: usize, out: &mut Vec<f32>) {
        for _ in 0..frames {
            if self.tone.is_some() && self.frames_left == 0 {
                self.advance();
            }
            self.frames_left = self.frames_left.saturating_sub(1);
            let mut sample = self.voice.as_mut().map_or(0.0, |voice| voice.next(true));
            if let Some(ending) = &mut self.ending {
                sample += ending.next(false);
                if ending.shown == 0 {
                    self.ending = None;
                }
            }
            out.push(sample as f32);
        }
    }

    /// Goes to the next part, if there is one.
    fn advance(&mut self) {
        let Some(tone) = &self.tone else { return };
        self.part += 1;
        if self.part == tone.count {
            if !tone.repeats {
                return self.stop();
            }
            self.part = 0;
        }
        self.enter();
    }

    fn enter(&mut self) {
        let Some(tone) = &self.tone else { return };
        let part = tone.parts[self.part];
        self.frames_left = match part.ms {
            0 => u64::MAX,
            ms => (u64::from(ms) * u64::from(self.rate_hz) / 1000).max(1),
        };
        self.change_to(Some(Voice::new(&part, self.rate_hz)));
    }

    fn change_to(&mut self, voice: Option<Voice>) {
        let sounding = |voice: &Voice| voice.shown > 0 && voice.count > 0;
        if let Some(before) = self.voice.take().filter(sounding) {
            self.ending = Some(before);
        }
        self.voice = voice;
    }
}

/// Some sine waves that fade together.
#[derive(Debug, Clone, Copy)]
struct Voice {
    /// Turns per frame, and turns so far.
    steps: [f64; FREQUENCIES_MAX],
    turns: [f64; FREQUENCIES_MAX],
    count: usize,
    peak: f64,
    /// Number of frames for which the voice has faded in so far: 0 to `fade`.
    shown: u32,
    fade: u32,
}

impl Voice {
    fn new(part: &Part, rate_hz: u32) -> Voice {
        let mut steps = [0.0; FREQUENCIES_MAX];
        let sounding = part.hz.iter().filter(|hz| **hz > 0.0);
        let count = sounding.clone().count();
        for (step, hz) in steps.iter_mut().zip(sounding) {
            *step = hz / f64::from(rate_hz);
        }
        let each_dbm0 = part.level_dbm0 - 10.0 * (count.max(1) as f64).log10();
        Voice {
            steps,
            turns: [0.0; FREQUENCIES_MAX],
            count,
            peak: peak(each_dbm0),
            shown: 0,
            fade: rate_hz * FADE_MS / 1000,
        }
    }

    fn next(&mut self, fades_in: bool) -> f64 {
        let mut sum = 0.0;
        for (turn, step) in self.turns.iter_mut().zip(self.steps).take(self.count) {
            sum += (TAU * *turn).sin();
            *turn = (*turn + step).fract();
        }
        self.shown = if fades_in {
            (self.shown + 1).min(self.fade)
        } else {
            self.shown.saturating_sub(1)
        };
        let part = f64::from(self.shown) / f64::from(self.fade);
        sum * self.peak * (0.5 - 0.5 * (PI * part).cos())
    }
}

/// Maximum number of simultaneous frequencies: call-progress tones have at most four (ITU-T E.180, supplement 2).
const FREQUENCIES_MAX: usize = 4;

/// Maximum number of parts: more than cadences have, so that a melody is possible.
const PARTS_MAX: usize = 8;

const FADE_MS: u32 = 5;

/// The nominal level of call-progress tones (ITU-T E.180).
const LEVEL_DBM0: f64 = -10.0;

const SILENCE: Part = Part {
    hz: [0.0; FREQUENCIES_MAX],
    level_dbm0: LEVEL_DBM0,
    ms: 0,
};
