//! Detects DTMF digits in audio.
//!
//! Every 4 ms, the last 24 ms are compared with the eight frequencies. The comparison sums products under a Hann window, which
//! is equivalent to a bank of Goertzel filters. All factors are computed in advance. A digit is present while one row and one
//! column, at valid levels, are nearly all of the power. The movement of their phases gives their frequency errors. Limits are
//! those of ITU-T Q.24, annex A, for AT&T. Frequencies: accepted within 1.5 %, rejected beyond 3.5 %. Levels: 0 to -25 dBm
//! each, the higher frequency 4 dB stronger to 8 dB weaker. Durations: 40 ms accepted, 23 ms rejected. Interruptions of 10 ms
//! are ignored, pauses of 40 ms are not.

use std::f64::consts::TAU;
use std::sync::OnceLock;

use super::{COLUMNS_HZ, KEYPAD, ROWS_HZ, ToneError, dbm0, peak};
use crate::codec::SAMPLE_RATES_HZ;
use crate::dtmf::Key;

/// Start or end of a DTMF digit in the audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEvent {
    /// A digit was pressed. It is reported 35 to 40 ms after its start.
    Down {
        /// The digit.
        key: Key,
        /// Start, in frames of all audio so far; accurate to about 5 ms.
        at_frame: u64,
        /// Power of the tone, dBm0 without the sign, 0 to 63, as in a telephone event.
        volume: u8,
    },
    /// A digit was released. It is reported 35 to 40 ms after its end, or when another one is detected.
    Up {
        /// The digit.
        key: Key,
        /// End, in frames of all audio so far.
        at_frame: u64,
    },
}

/// Detects DTMF digits in one stream of mono audio.
#[derive(Debug)]
pub struct DtmfDetector {
    table: &'static Table,
    thinner: Thinner,
    /// The last 24 ms, oldest first. The last `fresh` frames of them have not been analysed yet.
    window: Box<[f32]>,
    fresh: usize,
    /// Frames of input so far.
    frames: u64,
    /// The run of the row and column that are present, or were present until a moment ago.
    run: Option<Run>,
    pressed: Option<Pressed>,
}

/// Consecutive windows in which the same row and column are the strongest.
#[derive(Debug, Clone, Copy)]
struct Run {
    row: usize,
    column: usize,
    /// End of the first window that contained the digit. All windows since then have contained it.
    heard_since: Option<u64>,
    /// Number of consecutive windows, up to the last one, that contained nothing but the digit at a steady level.
    clear: u32,
    /// Minimum and maximum levels in these windows, of row and column.
    levels_dbm0: [[f64; 2]; 2],
    /// Values of row and column in the last window.
    last: [[f64; 2]; 2],
    /// Rotation of these values since the window before, relative to the exact frequencies.
    turn: [[f64; 2]; 2],
    /// Sums of the rotation over the clear windows.
    turned: [[f64; 2]; 2],
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    key: Key,
    last_frame: u64,
    /// Number of windows without the digit since the last window with it.
    missing: u32,
}

impl DtmfDetector {
    /// Creates a detector for a rate of [`SAMPLE_RATES_HZ`].
    ///
    /// # Errors
    /// Fails for any other rate.
    pub fn new(rate_hz: u32) -> Result<DtmfDetector, ToneError> {
        let at = SAMPLE_RATES_HZ.iter().position(|rate| *rate == rate_hz);
        let at = at.ok_or(ToneError::Rate(rate_hz))?;
        let table = TABLES[at].get_or_init(|| Table::new(rate_hz));
        Ok(DtmfDetector {
            table,
            thinner: Thinner::new(table.thinning),
            window: vec![0.0; table.rows.len()].into(),
            fresh: 0,
            frames: 0,
            run: None,
            pressed: None,
        })
    }

    /// Takes any number of frames, and appends the events.
    pub fn feed(&mut self, audio: &[f32], events: &mut Vec<KeyEvent>) {
        for sample in audio {
            self.frames += 1;
            let Some(sample) = self.thinner.take(*sample) else {
                continue;
            };
            let at = self.window.len() - self.table.hop + self.fresh;
            self.window[at] = sample;
            self.fresh += 1;
            if self.fresh == self.table.hop {
                self.look(events);
                self.window.copy_within(self.table.hop.., 0);
                self.fresh = 0;
            }
        }
    }

    /// Returns the digit that is pressed.
    #[must_use]
    pub fn pressed(&self) -> Option<Key> {
        self.pressed.map(|pressed| pressed.key)
    }

    /// Handles the end or an interruption of the stream. A digit that is pressed counts as released.
    pub fn reset(&mut self, events: &mut Vec<KeyEvent>) {
        self.window.fill(0.0);
        self.run = None;
        self.release(events);
    }

    fn look(&mut self, events: &mut Vec<KeyEvent>) {
        self.run = self.next_run();
        let heard = self.run.filter(|run| run.heard_since.is_some());
        let heard = heard.and_then(|run| run.key().map(|key| (run, key)));
        if let (Some((_, key)), Some(pressed)) = (heard, &mut self.pressed)
            && key == pressed.key
        {
            pressed.missing = 0;
            pressed.last_frame = self.frames;
            return;
        }
        if let Some((run, key)) = heard
            && run.clear >= WINDOWS_DOWN
            && run.is_in_tune(self.table)
        {
            return self.press(run, key, events);
        }
        if let Some(pressed) = &mut self.pressed {
            pressed.missing += 1;
            if pressed.missing >= WINDOWS_UP {
                self.release(events);
            }
        }
    }

    fn press(&mut self, run: Run, key: Key, events: &mut Vec<KeyEvent>) {
        self.release(events);
        self.pressed = Some(Pressed {
            key,
            last_frame: self.frames,
            missing: 0,
        });
        // The end of the first window with the tone is some 16 ms after the start of the tone.
        let heard = self.table.input_frames(1.0 - EDGE);
        events.push(KeyEvent::Down {
            key,
            at_frame: run.heard_since.unwrap_or(self.frames).saturating_sub(heard),
            volume: run.volume(),
        });
    }

    fn release(&mut self, events: &mut Vec<KeyEvent>) {
        if let Some(pressed) = self.pressed.take() {
            let after = self.table.input_frames(EDGE);
            events.push(KeyEvent::Up {
                key: pressed.key,
                at_frame: pressed.last_frame.saturating_sub(after),
            });
        }
    }

    /// Returns the run that this window continues, or a new run; `None` if the window is too quiet.
    fn next_run(&self) -> Option<Run> {
        let power = self.table.power(&self.window);
        if power < self.table.power_min {
            return None;
        }
        let values = self.table.values(&self.window);
        let strongest = |from: usize| {
            let square = |at: usize| values[at][0].powi(2) + values[at][1].powi(2);
            (0..4).max_by(|a, b| square(from + a).total_cmp(&square(from + b)))
        };
        let (row, column) = (strongest(0)?, strongest(4)?);
        let found = [values[row], values[4 + column]];
        let same = self
            .run
            .filter(|run| (run.row, run.column) == (row, column));
        let mut run = same.map_or_else(|| Run::new(row, column), |run| run.turn(found, self.table));
        run.last = found;
        let peaks = run.true_peaks(self.table);
        let explained = (peaks[0].powi(2) + peaks[1].powi(2)) / 2.0 / power;
        run.judge(peaks.map(dbm0), explained, self.frames);
        Some(run)
    }
}

impl Run {
    fn key(&self) -> Option<Key> {
        Key::new(KEYPAD[self.row][self.column])
    }

    fn frequencies(&self) -> [usize; 2] {
        [self.row, 4 + self.column]
    }

    fn new(row: usize, column: usize) -> Run {
        Run {
            row,
            column,
            heard_since: None,
            clear: 0,
            levels_dbm0: [[0.0; 2]; 2],
            last: [[0.0; 2]; 2],
            turn: [[0.0; 2]; 2],
            turned: [[0.0; 2]; 2],
        }
    }

    /// Adds the rotation of the values since the last window to the run.
    fn turn(mut self, found: [[f64; 2]; 2], table: &Table) -> Run {
        for (side, at) in self.frequencies().into_iter().enumerate() {
            let turn = product(found[side], conjugate(self.last[side]));
            self.turn[side] = product(turn, conjugate(table.turns[at]));
        }
        self
    }

    /// Decides whether this window contains the digit, and whether it contains nothing else. `explained` is the digit's part of
    /// the power.
    fn judge(&mut self, levels_dbm0: [f64; 2], explained: f64, now_frame: u64) {
        let twist_db = levels_dbm0[1] - levels_dbm0[0];
        let is_heard = levels_dbm0.iter().all(|level| *level >= LEVEL_DBM0_MIN)
            && (TWIST_DB_MIN..=TWIST_DB_MAX).contains(&twist_db)
            && explained >= HEARD_MIN;
        if !is_heard {
            self.heard_since = None;
            self.clear = 0;
            return;
        }
        self.heard_since.get_or_insert(now_frame);
        if explained < CLEAR_MIN {
            self.clear = 0;
            return;
        }
        let mut is_steady = self.clear > 0;
        for ([least, greatest], level) in self.levels_dbm0.iter_mut().zip(levels_dbm0) {
            *least = least.min(level);
            *greatest = greatest.max(level);
            is_steady &= *greatest - *least <= STEADY_DB;
        }
        if is_steady {
            self.clear += 1;
            for (sum, turn) in self
                .turned
                .iter_mut()
                .flatten()
                .zip(self.turn.iter().flatten())
            {
                *sum += turn;
            }
        } else {
            self.turned = self.turn;
            self.levels_dbm0 = levels_dbm0.map(|level| [level; 2]);
            self.clear = 1;
        }
    }

    /// Returns the peak levels of row and column. They are corrected, because the window attenuates frequencies that are not
    /// exact.
    fn true_peaks(&self, table: &Table) -> [f64; 2] {
        // Use only the last two windows: in windows that contain the beginning of the tone, the rotation seems smaller.
        let offsets = table.offsets_hz(self.turn);
        let frequencies = self.frequencies();
        std::array::from_fn(|side| {
            let bins = (offsets[side] * table.window_s).clamp(-BINS_MAX, BINS_MAX);
            let [re, im] = self.last[side];
            re.hypot(im) / hann_response(bins) / table.droop[frequencies[side]]
        })
    }

    fn is_in_tune(&self, table: &Table) -> bool {
        let offsets = table.offsets_hz(self.turned);
        let nominal = [ROWS_HZ[self.row], COLUMNS_HZ[self.column]];
        offsets
            .iter()
            .zip(nominal)
            .all(|(off, hz)| (off / hz).abs() <= DEVIATION_MAX)
    }

    fn volume(&self) -> u8 {
        let [low, high] = self.levels_dbm0.map(|[_, greatest]| peak(greatest));
        (-dbm0(low.hypot(high))).round().clamp(0.0, 63.0) as u8
    }
}

/// Constants for one sample rate. All detectors of a rate share them.
#[derive(Debug)]
struct Table {
    /// Factor by which the input is decimated.
    thinning: usize,
    /// For each sample of the window, the real and imaginary part of each frequency, multiplied by the window.
    rows: Box<[[f32; 16]]>,
    /// The window itself; its sum is 1.
    shape: Box<[f32]>,
    /// Number of samples from one window to the next.
    hop: usize,
    hop_s: f64,
    window_s: f64,
    /// Rotation of each frequency in a hop.
    turns: [[f64; 2]; 8],
    /// Gain of the decimation for each frequency.
    droop: [f64; 8],
    power_min: f64,
}

impl Table {
    fn new(rate_hz: u32) -> Table {
        let thinning = (rate_hz / RATE_HZ) as usize;
        let rate = f64::from(rate_hz) / thinning as f64;
        let hop = (rate * HOP_S).round() as usize;
        let length = hop * HOPS;
        let frequencies: [f64; 8] = std::array::from_fn(|at| match at {
            0..=3 => ROWS_HZ[at],
            _ => COLUMNS_HZ[at - 4],
        });
        let shape =
            |n: usize| (1.0 - (TAU * (n as f64 + 0.5) / length as f64).cos()) / length as f64;
        let row = |n: usize| {
            std::array::from_fn(|lane| {
                let (sin, cos) = (TAU * frequencies[lane / 2] / rate * n as f64).sin_cos();
                let part = if lane % 2 == 0 { cos } else { -sin };
                (2.0 * shape(n) * part) as f32
            })
        };
        let least = peak(LEVEL_DBM0_MIN);
        Table {
            thinning,
            rows: (0..length).map(row).collect(),
            shape: (0..length).map(|n| shape(n) as f32).collect(),
            hop,
            hop_s: hop as f64 / rate,
            window_s: length as f64 / rate,
            turns: frequencies.map(|hz| {
                let (sin, cos) = (TAU * hz / rate * hop as f64).sin_cos();
                [cos, sin]
            }),
            droop: frequencies.map(|hz| thinned(hz / f64::from(rate_hz), thinning)),
            power_min: least * least * 0.5,
        }
    }

    /// Returns the mean power under the window.
    fn power(&self, window: &[f32]) -> f64 {
        let squares = window.iter().zip(&self.shape).map(|(x, w)| x * x * w);
        f64::from(squares.sum::<f32>())
    }

    /// Returns level and phase of each frequency, as complex numbers.
    fn values(&self, window: &[f32]) -> [[f64; 2]; 8] {
        let mut sums = [0_f32; 16];
        for (sample, row) in window.iter().zip(&self.rows) {
            for (sum, factor) in sums.iter_mut().zip(row) {
                *sum += sample * factor;
            }
        }
        std::array::from_fn(|at| [f64::from(sums[2 * at]), f64::from(sums[2 * at + 1])])
    }

    /// Returns the frequency errors, in Hz, that cause this rotation in one hop.
    fn offsets_hz(&self, turned: [[f64; 2]; 2]) -> [f64; 2] {
        turned.map(|[re, im]| im.atan2(re) / TAU / self.hop_s)
    }

    /// Converts a part of a window to frames of the input.
    fn input_frames(&self, part: f64) -> u64 {
        (self.rows.len() as f64 * self.thinning as f64 * part) as u64
    }
}

/// Decimates with a triangular filter that is two output steps long. It removes frequencies that would alias to those of the
/// digits.
#[derive(Debug)]
struct Thinner {
    factor: usize,
    count: usize,
    /// Sums of the input, weighted by the falling half of this triangle and by the rising half of the next one.
    falling: f32,
    rising: f32,
    risen: f32,
}

impl Thinner {
    fn new(factor: usize) -> Thinner {
        Thinner {
            factor,
            count: 0,
            falling: 0.0,
            rising: 0.0,
            risen: 0.0,
        }
    }

    fn take(&mut self, sample: f32) -> Option<f32> {
        if self.factor == 1 {
            return Some(sample);
        }
        self.falling += sample * (self.factor - self.count) as f32;
        self.rising += sample * self.count as f32;
        self.count += 1;
        if self.count < self.factor {
            return None;
        }
        let whole = (self.risen + self.falling) / (self.factor * self.factor) as f32;
        self.risen = self.rising;
        (self.count, self.falling, self.rising) = (0, 0.0, 0.0);
        Some(whole)
    }
}

/// Returns the gain of a [`Thinner`] at a frequency, which is given in turns per frame.
fn thinned(turns: f64, factor: usize) -> f64 {
    if factor == 1 {
        return 1.0;
    }
    let half = TAU / 2.0 * turns;
    let mean = (half * factor as f64).sin() / (factor as f64 * half.sin());
    mean * mean
}

/// Returns the Fourier transform of a Hann window, relative to its middle.
fn hann_response(bins: f64) -> f64 {
    let turn = TAU / 2.0 * bins;
    if turn.abs() < 1e-6 {
        return 1.0;
    }
    turn.sin() / turn / (1.0 - bins * bins)
}

fn product(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn conjugate(a: [f64; 2]) -> [f64; 2] {
    [a[0], -a[1]]
}

static TABLES: [OnceLock<Table>; SAMPLE_RATES_HZ.len()] =
    [const { OnceLock::new() }; SAMPLE_RATES_HZ.len()];

/// Sample rate after decimation: enough for 1633 Hz and the harmonics that speech would have.
const RATE_HZ: u32 = 8_000;

/// Time from one window to the next. The length of a window is a multiple of it.
const HOP_S: f64 = 0.004;
const HOPS: usize = 6;

/// Number of clear windows before a digit counts. A tone of t ms has (t - 14) / 4 clear windows: six for 40 ms, and at most three
/// for 23 ms.
const WINDOWS_DOWN: u32 = 5;

/// Number of windows without the digit before it is released. An interruption of 10 ms has five such windows, a pause of 40 ms
/// eleven or twelve.
const WINDOWS_UP: u32 = 8;

/// Minimum level of each frequency. It is below -25 dBm, so that it includes windows with only a part of the tone.
const LEVEL_DBM0_MIN: f64 = -29.0;

/// Limits of the column's level minus the row's level: -8 to 4 dB, with a margin for noise.
const TWIST_DB_MIN: f64 = -9.5;
const TWIST_DB_MAX: f64 = 5.5;

/// Minimum part of the power in a window for the digit to be present. The rest is noise, or the beginning or the end of the tone.
const HEARD_MIN: f64 = 0.8;

/// Minimum part of the power for a clear window: noise may be 12 dB below the tone. Voices have more power than that outside two
/// of their harmonics.
const CLEAR_MIN: f64 = 0.94;

/// Maximum change of a digit's level. The level of a voice changes more.
const STEADY_DB: f64 = 1.0;

/// When a tone is first detected, it fills only the end of a window. This is the part of the window before the tone, over which
/// the Hann window's area is 0.2.
const EDGE: f64 = 0.34;

/// Maximum deviation of a frequency: between 1.5 % (which must be accepted) and 3.5 % (which must be rejected).
const DEVIATION_MAX: f64 = 0.021;

/// Maximum offset. Beyond it, the window's response is too steep to be inverted.
const BINS_MAX: f64 = 1.2;
