//! Packet-loss concealment for linear audio: repeats the last pitch period before the loss.
//!
//! The idea is that of ITU-T G.711, Appendix I; the implementation differs. The period is the lag at which the last 20 ms best
//! match the audio before them. The period repeats at full level for 10 ms, then fades to silence at 60 ms; a longer repetition
//! would sound like a tone. There is no delay, because no good audio is held back for an overlap. Instead, the step at the seam
//! is measured, and a correction of that size fades out.

use thiserror::Error;

/// Fills gaps in a stream of audio. Every sample of the stream passes through it, in order: received samples through
/// [`Concealer::pass`], missing samples through [`Concealer::fill`].
///
/// Samples are interleaved, and slices hold whole frames. All memory is allocated at construction: some 900 bytes at 8
/// kHz mono.
#[derive(Debug)]
pub struct Concealer {
    /// The last 35 ms of output, interleaved, the oldest sample at `oldest`.
    history: Box<[i16]>,
    oldest: usize,
    /// A pitch period that can be repeated without a step; the first `cycle_samples` are used.
    cycle: Box<[i16]>,
    cycle_samples: usize,
    /// Position in the cycle of the next sample.
    phase: usize,
    /// Number of frames filled in since the last good frame; 0 while nothing is missing.
    filled_frames: u32,
    /// For each channel, the step between the last good frame and the cycle. It fades over a quarter of the cycle.
    seam: [i32; CHANNELS_MAX],
    frame_rate_hz: u32,
    channels: usize,
}

/// Position of a [`Concealer`] in a gap. Together with the audio before the gap, this is enough to continue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    lag_frames: u32,
    filled_frames: u32,
}

/// Why an audio format is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConcealError {
    /// The rate is out of range.
    #[error("sample rate {0} Hz, must be {RATE_HZ_MIN} to {RATE_HZ_MAX}")]
    Rate(u32),
    /// The number of channels is out of range.
    #[error("{0} channels, must be 1 to {CHANNELS_MAX}")]
    Channels(usize),
}

impl Concealer {
    /// Creates a concealer for audio of `rate_hz` frames a second, [`RATE_HZ_MIN`]..=[`RATE_HZ_MAX`], with 1..=[`CHANNELS_MAX`]
    /// channels.
    ///
    /// # Errors
    /// Fails if the rate or the number of channels is out of range.
    pub fn new(rate_hz: u32, channels: usize) -> Result<Concealer, ConcealError> {
        if !(RATE_HZ_MIN..=RATE_HZ_MAX).contains(&rate_hz) {
            return Err(ConcealError::Rate(rate_hz));
        }
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(ConcealError::Channels(channels));
        }
        let cycle_max = frames(rate_hz, LAG_MAX_US);
        let history = cycle_max + frames(rate_hz, WINDOW_US);
        Ok(Concealer {
            history: vec![0; history * channels].into(),
            oldest: 0,
            cycle: vec![0; cycle_max * channels].into(),
            cycle_samples: 0,
            phase: 0,
            filled_frames: 0,
            seam: [0; CHANNELS_MAX],
            frame_rate_hz: rate_hz,
            channels,
        })
    }

    /// Takes received audio. It changes only the first audio after a loss, which fades in while the concealment fades out.
    pub fn pass(&mut self, audio: &mut [i16]) {
        if self.filled_frames > 0 {
            self.join(audio);
            self.filled_frames = 0;
        }
        self.remember(audio);
    }

    /// Fills all of `audio` in place of missing audio.
    pub fn fill(&mut self, audio: &mut [i16]) {
        if self.filled_frames == 0 {
            self.prepare();
        }
        for frame in audio.chunks_mut(self.channels) {
            self.next_frame(frame);
        }
        self.remember(audio);
    }

    /// Restarts the stream: no earlier audio is repeated.
    pub fn reset(&mut self) {
        self.history.fill(0);
        self.filled_frames = 0;
    }

    /// Returns the position in the present gap, and the pitch period used.
    #[must_use]
    pub fn gap(&self) -> Gap {
        Gap {
            lag_frames: (self.cycle_samples / self.channels) as u32,
            filled_frames: self.filled_frames,
        }
    }

    /// Continues in a gap. The history must contain the audio before the gap.
    pub fn resume(&mut self, gap: Gap) {
        let lag = gap.lag_frames as usize * self.channels;
        if gap.filled_frames == 0 || lag == 0 || lag > self.cycle.len() {
            return;
        }
        self.history.rotate_left(self.oldest);
        self.oldest = 0;
        self.cut(lag);
        self.phase = gap.filled_frames as usize * self.channels % lag;
        self.filled_frames = gap.filled_frames;
    }

    /// Whether the last audio was concealment.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.filled_frames > 0
    }

    /// Stores the last samples: a copy, in one or two pieces.
    fn remember(&mut self, audio: &[i16]) {
        let size = self.history.len();
        let tail = &audio[audio.len().saturating_sub(size)..];
        let until_end = tail.len().min(size - self.oldest);
        let (first, second) = tail.split_at(until_end);
        self.history[self.oldest..self.oldest + until_end].copy_from_slice(first);
        self.history[..second.len()].copy_from_slice(second);
        self.oldest = (self.oldest + tail.len()) % size;
    }

    /// Cuts the last pitch period out of the history, and blends its end into its beginning.
    fn prepare(&mut self) {
        self.history.rotate_left(self.oldest);
        self.oldest = 0;
        let lag = self.pitch_frames() * self.channels;
        self.cut(lag);
    }

    fn cut(&mut self, lag: usize) {
        let start = self.history.len() - lag;
        let cycle = &mut self.cycle[..lag];
        cycle.copy_from_slice(&self.history[start..]);
        // The last quarter becomes the audio that led into the period when it was first played.
        let overlap = overlap_frames(lag / self.channels) * self.channels;
        let lead_in = &self.history[start - overlap..start];
        for (index, (end, lead)) in cycle[lag - overlap..].iter_mut().zip(lead_in).enumerate() {
            let part = index / self.channels + 1;
            *end = blend(*end, *lead, part, overlap / self.channels);
        }
        for channel in 0..self.channels {
            let last = self.history[self.history.len() - self.channels + channel];
            let before = self.history[start - self.channels + channel];
            self.seam[channel] = i32::from(last) - i32::from(before);
        }
        self.cycle_samples = lag;
        self.phase = 0;
    }

    /// Finds the lag, in frames, at which the last 20 ms correlate best with the audio before them, relative to its level.
    ///
    /// At high rates, a coarse search comes first, and then a search of every lag near its result. The work is about the same at
    /// all rates.
    fn pitch_frames(&self) -> usize {
        let rate_hz = self.frame_rate_hz as usize;
        let stride = (rate_hz / COARSE_RATE_HZ).max(1);
        let total = self.history.len() / self.channels;
        let count = total / stride;
        let peak = (0..total).map(|frame| self.mono(frame).abs()).max();
        // Number of bits to drop so that a sum of products fits 32 bits.
        let excess = (u64::BITS - peak.unwrap_or(0).unsigned_abs().leading_zeros())
            .saturating_sub(COARSE_BITS);
        let mut coarse = [0_i16; COARSE_FRAMES_MAX];
        let coarse = &mut coarse[..count];
        for (index, sample) in coarse.iter_mut().enumerate() {
            *sample = (self.mono(total - (count - index) * stride) >> excess) as i16;
        }
        let window = frames(self.frame_rate_hz, WINDOW_US) / stride;
        let least = frames(self.frame_rate_hz, LAG_MIN_US).div_ceil(stride);
        let rough = best_lag(coarse, window, least) * stride;
        if stride == 1 {
            return rough;
        }
        let greatest = frames(self.frame_rate_hz, LAG_MAX_US);
        let near = rough.saturating_sub(stride - 1)..=(rough + stride - 1).min(greatest);
        near.max_by(|a, b| {
            let (a, b) = (self.likeness(*a, stride), self.likeness(*b, stride));
            a.total_cmp(&b)
        })
        .unwrap_or(greatest)
    }

    /// Returns the similarity of the window to the audio `lag` frames earlier: their product, divided by the level of the earlier
    /// audio. Only every `step`th frame is used.
    fn likeness(&self, lag: usize, step: usize) -> f32 {
        let total = self.history.len() / self.channels;
        let window = frames(self.frame_rate_hz, WINDOW_US);
        let (mut product, mut energy) = (0_i64, 0_i64);
        for frame in (total - window..total).step_by(step) {
            let (now, before) = (self.mono(frame), self.mono(frame - lag));
            product += now * before;
            energy += before * before;
        }
        relative(product, energy)
    }

    fn mono(&self, frame: usize) -> i64 {
        let start = frame * self.channels;
        self.history[start..start + self.channels]
            .iter()
            .map(|sample| i64::from(*sample))
            .sum()
    }

    /// Writes the next frame of the cycle at its current level.
    fn next_frame(&mut self, frame: &mut [i16]) {
        let level = self.level();
        let fade = overlap_frames(self.cycle_samples / self.channels) as i32;
        let done = i32::try_from(self.filled_frames).unwrap_or(i32::MAX);
        let rest = (fade - done).max(0);
        for (sample, seam) in frame.iter_mut().zip(self.seam) {
            let whole = i32::from(self.cycle[self.phase]) + seam * rest / (fade + 1);
            // 16 bits of level times 17 of sample.
            let scaled = i64::from(whole) * i64::from(level) / i64::from(LEVEL_FULL);
            *sample = clip(scaled);
            self.phase = (self.phase + 1) % self.cycle_samples;
        }
        self.filled_frames = self.filled_frames.saturating_add(1);
    }

    /// Returns the level of the next frame, 0..=`LEVEL_FULL`.
    fn level(&self) -> u32 {
        let full = frames(self.frame_rate_hz, FULL_US) as u32;
        let fade = frames(self.frame_rate_hz, FADE_US) as u32;
        let faded = self.filled_frames.saturating_sub(full).min(fade);
        (u64::from(LEVEL_FULL) * u64::from(fade - faded) / u64::from(fade)) as u32
    }

    /// Joins the first good audio to a gap. The concealment continues for a while, mixed with the good audio. After a long gap,
    /// it continues longer, because concealment and good audio have drifted further apart.
    fn join(&mut self, audio: &mut [i16]) {
        let gap = self.filled_frames as usize;
        let quarter = overlap_frames(self.cycle_samples / self.channels);
        let frames_max = frames(self.frame_rate_hz, JOIN_MAX_US);
        let overlap = quarter
            .saturating_add(gap.saturating_mul(2) / 5)
            .min(frames_max)
            .min(audio.len() / self.channels);
        let mut filled = [0; CHANNELS_MAX];
        for (index, frame) in audio
            .chunks_exact_mut(self.channels)
            .take(overlap)
            .enumerate()
        {
            let filled = &mut filled[..frame.len()];
            self.next_frame(filled);
            for (good, filled) in frame.iter_mut().zip(filled) {
                *good = blend(*filled, *good, index + 1, overlap + 1);
            }
        }
    }
}

/// Finds the lag of at least `least` at which the last `window` samples best match the audio before them.
fn best_lag(samples: &[i16], window: usize, least: usize) -> usize {
    let start = samples.len() - window;
    let now = &samples[start..];
    let greatest = start;
    let dot = |a: &[i16], b: &[i16]| -> i32 {
        a.iter()
            .zip(b)
            .map(|(a, b)| i32::from(*a) * i32::from(*b))
            .sum()
    };
    let mut best = (f32::MIN, least);
    for lag in least..=greatest {
        let before = &samples[start - lag..samples.len() - lag];
        let likeness = relative(i64::from(dot(now, before)), i64::from(dot(before, before)));
        if likeness > best.0 {
            best = (likeness, lag);
        }
    }
    best.1
}

fn relative(product: i64, energy: i64) -> f32 {
    product as f32 / (energy.max(1) as f32).sqrt()
}

/// Returns the value at `part`/`whole` of the way from `from` to `to`.
fn blend(from: i16, to: i16, part: usize, whole: usize) -> i16 {
    let (part, whole) = (part as i64, whole as i64);
    clip((i64::from(from) * (whole - part) + i64::from(to) * part) / whole)
}

fn clip(sample: i64) -> i16 {
    sample.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16
}

fn overlap_frames(cycle_frames: usize) -> usize {
    cycle_frames / 4
}

fn frames(rate_hz: u32, us: u64) -> usize {
    (u64::from(rate_hz) * us / 1_000_000) as usize
}

/// Minimum rate. At lower rates, a pitch period would have too few samples.
pub const RATE_HZ_MIN: u32 = 4_000;

/// Maximum rate in use for audio.
pub const RATE_HZ_MAX: u32 = 192_000;

/// Maximum number of channels: stereo.
pub const CHANNELS_MAX: usize = 2;

/// Minimum lag: voices have a pitch of 66 to 200 Hz, or multiples of that.
const LAG_MIN_US: u64 = 5_000;

/// Maximum lag: the pitch of 66 Hz.
const LAG_MAX_US: u64 = 15_000;

/// Duration of the window to match: more than a period of any voice.
const WINDOW_US: u64 = 20_000;

/// Time at full level.
const FULL_US: u64 = 10_000;

/// Time from full level to silence, after [`FULL_US`].
const FADE_US: u64 = 50_000;

/// Maximum duration of the fade-in. A longer fade-in would blur a consonant.
const JOIN_MAX_US: u64 = 10_000;

/// Rate of the coarse search, in frames a second. If the rates do not divide, it is up to twice as high.
const COARSE_RATE_HZ: usize = 8_000;

/// Maximum number of frames in the coarse search: 35 ms at just below twice that rate.
const COARSE_FRAMES_MAX: usize = 560;

/// Bits of magnitudes in the coarse search: the products of 320 samples stay below 2^31.
const COARSE_BITS: u32 = 11;

const LEVEL_FULL: u32 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 8_000;
    const LEVEL: f64 = 10_000.0;

    /// Returns packets of 20 ms with a tone, interleaved.
    fn tone(rate: u32, channels: usize, hz: f64, packets: usize) -> Vec<Vec<i16>> {
        let per_packet = rate as usize / 50;
        let sample = |frame: usize| {
            let angle = std::f64::consts::TAU * hz * frame as f64 / f64::from(rate);
            (LEVEL * angle.sin()) as i16
        };
        (0..packets)
            .map(|packet| {
                (0..per_packet * channels)
                    .map(|index| {
                        let value = sample(packet * per_packet + index / channels);
                        // The second channel differs from the first.
                        if index % channels == 1 {
                            value / 2
                        } else {
                            value
                        }
                    })
                    .collect()
            })
            .collect()
    }

    fn energy(samples: impl Iterator<Item = f64>) -> f64 {
        samples.map(|sample| sample * sample).sum()
    }

    fn step_max(samples: &[i16], channels: usize) -> i32 {
        let steps = samples
            .iter()
            .zip(&samples[channels..])
            .map(|(a, b)| (i32::from(*a) - i32::from(*b)).abs());
        steps.max().unwrap_or(0)
    }

    /// Passes `packets` through a concealer. The packets of `lost` count as missing.
    fn conceal(rate: u32, channels: usize, packets: &[Vec<i16>], lost: &[usize]) -> Vec<Vec<i16>> {
        let mut concealer = Concealer::new(rate, channels).unwrap();
        let carry = |(number, packet): (usize, &Vec<i16>)| {
            let mut audio = packet.clone();
            if lost.contains(&number) {
                audio.fill(i16::MAX);
                concealer.fill(&mut audio);
            } else {
                concealer.pass(&mut audio);
            }
            audio
        };
        packets.iter().enumerate().map(carry).collect()
    }

    #[test]
    fn concealed_tone_stays_in_phase() {
        for (rate, channels) in [
            (8_000, 1),
            (8_000, 2),
            (16_000, 1),
            (48_000, 2),
            (44_100, 1),
        ] {
            for hz in [110.0, 187.0, 440.0, 697.0, 997.0] {
                let packets = tone(rate, channels, hz, 12);
                let out = conceal(rate, channels, &packets, &[8]);
                assert_eq!(out[..8], packets[..8]);
                let difference = |range: std::ops::Range<usize>| {
                    let pairs = out[8][range.clone()].iter().zip(&packets[8][range.clone()]);
                    energy(pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)))
                        / energy(packets[8][range].iter().map(|a| f64::from(*a)))
                };
                // Silence would give 1. In the first half the level is full.
                let half = packets[8].len() / 2;
                let what = format!("{hz} Hz at {rate} Hz, {channels}");
                assert!(
                    difference(0..half) < 0.05,
                    "{what}: {}",
                    difference(0..half)
                );
                assert!(
                    difference(0..2 * half) < 0.15,
                    "{what}: {}",
                    difference(0..2 * half)
                );
                let level = energy(out[8][..half].iter().map(|a| f64::from(*a)))
                    / energy(packets[8][..half].iter().map(|a| f64::from(*a)));
                assert!((0.8..1.2).contains(&level), "{what}: level {level}");
                assert_eq!(out[10..], packets[10..]);
            }
        }
    }

    #[test]
    fn concealed_audio_has_no_clicks() {
        for hz in [110.0, 187.0, 440.0, 997.0] {
            for lost in [&[8][..], &[8, 9], &[8, 10], &[8, 9, 10, 11, 12]] {
                for channels in [1, 2] {
                    let packets = tone(RATE, channels, hz, 20);
                    let out = conceal(RATE, channels, &packets, lost).concat();
                    let allowed = step_max(&packets.concat(), channels) * 3 / 2;
                    let found = step_max(&out, channels);
                    assert!(found <= allowed, "{hz} Hz, {lost:?}: {found} > {allowed}");
                }
            }
        }
    }

    #[test]
    fn a_long_loss_fades_to_silence() {
        let packets = tone(RATE, 1, 200.0, 12);
        let out = conceal(RATE, 1, &packets, &[6, 7, 8, 9, 10, 11]).concat();
        let level = |ms: usize| {
            // A whole period of 5 ms.
            let from = (6 * 20 + ms) * 8;
            energy(out[from..from + 40].iter().map(|a| f64::from(*a)))
        };
        assert!(level(5) > 0.9 * level(0));
        for ms in (10..55).step_by(5) {
            assert!(level(ms + 5) < level(ms), "{ms} ms");
        }
        assert!(out[(6 * 20 + 60) * 8..].iter().all(|sample| *sample == 0));
    }

    #[test]
    fn received_audio_is_not_changed() {
        let packets = tone(RATE, 1, 997.0, 500);
        assert_eq!(conceal(RATE, 1, &packets, &[]), packets);
    }

    #[test]
    fn any_audio_may_be_lost_at_any_time() {
        let mut noise = 1_u32;
        for (rate, channels) in [(4_000, 1), (8_000, 1), (11_025, 2), (192_000, 2)] {
            let mut concealer = Concealer::new(rate, channels).unwrap();
            for turn in 0..300_usize {
                let mut audio: Vec<i16> = (0..(turn * 37 % 500) * channels)
                    .map(|_| {
                        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // Full scale, with both extremes.
                        if noise & 3 == 0 {
                            i16::MIN
                        } else {
                            (noise >> 16) as i16
                        }
                    })
                    .collect();
                match turn % 7 {
                    0 | 3 | 4 => concealer.fill(&mut audio),
                    6 if turn % 49 == 6 => concealer.reset(),
                    _ => concealer.pass(&mut audio),
                }
            }
        }
    }

    #[test]
    fn a_loss_at_the_very_start_is_silence() {
        let mut concealer = Concealer::new(RATE, 1).unwrap();
        let mut audio = [77; 160];
        concealer.fill(&mut audio);
        assert_eq!(audio, [0; 160]);
        assert!(concealer.is_filling());
    }

    #[test]
    fn a_concealer_stays_small() {
        let concealer = Concealer::new(RATE, 1).unwrap();
        let samples = concealer.history.len() + concealer.cycle.len();
        assert!(size_of::<Concealer>() + samples * size_of::<i16>() <= 1024);
        assert_eq!(
            Concealer::new(3_999, 1).err(),
            Some(ConcealError::Rate(3_999))
        );
        assert_eq!(
            Concealer::new(RATE, 3).err(),
            Some(ConcealError::Channels(3))
        );
    }
}
