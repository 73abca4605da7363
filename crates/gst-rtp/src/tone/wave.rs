//! Test signals: the waves of the stock `audiotestsrc`.

use std::f64::consts::TAU;

use gst::glib;

/// Waveform of a test signal, with the numbers and nicks of the stock element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareAudioTestSrcWave")]
#[repr(i32)]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum Wave {
    #[default]
    #[enum_value(name = "Sine", nick = "sine")]
    Sine = 0,
    #[enum_value(name = "Square", nick = "square")]
    Square = 1,
    #[enum_value(name = "Saw", nick = "saw")]
    Saw = 2,
    #[enum_value(name = "Triangle", nick = "triangle")]
    Triangle = 3,
    #[enum_value(name = "Silence", nick = "silence")]
    Silence = 4,
    #[enum_value(name = "White uniform noise", nick = "white-noise")]
    WhiteNoise = 5,
    #[enum_value(name = "Pink noise", nick = "pink-noise")]
    PinkNoise = 6,
    #[enum_value(name = "Sine table: the same as sine", nick = "sine-table")]
    SineTable = 7,
    #[enum_value(name = "Periodic ticks", nick = "ticks")]
    Ticks = 8,
    #[enum_value(name = "White Gaussian noise", nick = "gaussian-noise")]
    GaussianNoise = 9,
    #[enum_value(name = "Red (Brownian) noise", nick = "red-noise")]
    RedNoise = 10,
    #[enum_value(name = "Blue noise", nick = "blue-noise")]
    BlueNoise = 11,
    #[enum_value(name = "Violet noise", nick = "violet-noise")]
    VioletNoise = 12,
}

/// Generates the samples of a wave, relative to full scale.
#[derive(Debug)]
pub struct Oscillator {
    wave: Wave,
    freq_hz: f64,
    volume: f64,
    rate: u32,
    /// Phase of the last sample, in turns.
    phase: f64,
    /// Samples since the last tick began.
    since_tick: u64,
    noise: Noise,
}

impl Oscillator {
    pub(super) fn new(wave: Wave, freq_hz: f64, volume: f64) -> Self {
        Oscillator {
            wave,
            freq_hz,
            volume,
            rate: 1,
            phase: 0.0,
            since_tick: 0,
            noise: Noise::new(),
        }
    }

    /// Changes the wave from the next sample on; the phase continues.
    pub(super) fn set(&mut self, wave: Wave, freq_hz: f64, volume: f64) {
        (self.wave, self.freq_hz, self.volume) = (wave, freq_hz, volume);
    }

    pub(super) fn set_rate(&mut self, rate: u32) {
        self.rate = rate.max(1);
    }

    /// Generates the next samples.
    pub(super) fn fill(&mut self, out: &mut [f64]) {
        match self.wave {
            Wave::Sine | Wave::SineTable => self.periodic(out, |turns| (TAU * turns).sin()),
            Wave::Square => self.periodic(out, |turns| if turns < 0.5 { 1.0 } else { -1.0 }),
            Wave::Saw => self.periodic(out, |turns| {
                2.0 * if turns < 0.5 { turns } else { turns - 1.0 }
            }),
            Wave::Triangle => self.periodic(out, |turns| match turns {
                up if up < 0.25 => 4.0 * up,
                down if down < 0.75 => 2.0 - 4.0 * down,
                up => 4.0 * up - 4.0,
            }),
            Wave::Silence => out.fill(0.0),
            Wave::Ticks => self.ticks(out),
            Wave::WhiteNoise => self.noisy(out, Noise::uniform),
            Wave::PinkNoise => self.noisy(out, Noise::pink),
            Wave::GaussianNoise => self.noisy(out, Noise::gaussian),
            Wave::RedNoise => self.noisy(out, Noise::red),
            Wave::BlueNoise => self.noisy(out, |noise| noise.pink() * noise.alternate()),
            Wave::VioletNoise => self.noisy(out, |noise| noise.red() * noise.alternate()),
        }
    }

    /// Advances by one step. As in the stock element, the first sample is one step after the start.
    fn advance(&mut self) -> f64 {
        self.phase = (self.phase + self.freq_hz / f64::from(self.rate)).fract();
        self.phase
    }

    fn periodic(&mut self, out: &mut [f64], shape: impl Fn(f64) -> f64) {
        for sample in out {
            let turns = self.advance();
            *sample = self.volume * shape(turns);
        }
    }

    fn ticks(&mut self, out: &mut [f64]) {
        let length = PERIODS_PER_TICK * f64::from(self.rate) / self.freq_hz.max(f64::MIN_POSITIVE);
        for sample in out {
            if self.since_tick >= u64::from(self.rate) {
                (self.since_tick, self.phase) = (0, 0.0);
            }
            let turns = self.advance();
            let is_on = (self.since_tick as f64) < length;
            self.since_tick += 1;
            *sample = if is_on {
                self.volume * (TAU * turns).sin()
            } else {
                0.0
            };
        }
    }

    fn noisy(&mut self, out: &mut [f64], next: impl Fn(&mut Noise) -> f64) {
        for sample in out {
            *sample = self.volume * next(&mut self.noise).clamp(-1.0, 1.0);
        }
    }
}

/// Length of a tick, in periods. A tick comes each second.
const PERIODS_PER_TICK: f64 = 10.0;

/// Noise of several colours, the same after each restart.
#[derive(Debug)]
struct Noise {
    state: u64,
    /// Values that change at every sample, every second one, every fourth: their sum has a pink spectrum (the method of
    /// R. F. Voss, Scientific American, April 1978).
    rows: [f64; 16],
    count: u64,
    walk: f64,
    sign: f64,
}

impl Noise {
    fn new() -> Self {
        Noise {
            state: 0x1234_5678_9abc_def1,
            rows: [0.0; 16],
            count: 0,
            walk: 0.0,
            sign: 1.0,
        }
    }

    /// Returns a number from -1 to 1 (xorshift64*: Marsaglia 2003, Vigna 2016).
    fn uniform(&mut self) -> f64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let bits = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Returns a random value with a standard deviation of a third of full scale, so that few samples are clipped (Box and
    /// Muller, 1958).
    fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * ((self.uniform() + 1.0) / 2.0).max(f64::MIN_POSITIVE).ln()).sqrt();
        radius * (TAU * self.uniform()).cos() / 3.0
    }

    fn pink(&mut self) -> f64 {
        self.count = self.count.wrapping_add(1);
        let row = self.count.trailing_zeros() as usize % self.rows.len();
        self.rows[row] = self.uniform();
        self.rows.iter().sum::<f64>() / (self.rows.len() as f64).sqrt() / 2.0
    }

    /// Returns the next value of a random walk that turns round at full scale.
    fn red(&mut self) -> f64 {
        let next = self.walk + self.uniform() / 16.0;
        self.walk = match next {
            high if high > 1.0 => 2.0 - high,
            low if low < -1.0 => -2.0 - low,
            next => next,
        };
        self.walk
    }

    /// Changes the sign of every second value. This mirrors the spectrum of noise, so that a falling spectrum rises.
    fn alternate(&mut self) -> f64 {
        self.sign = -self.sign;
        self.sign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Wave; 13] = [
        Wave::Sine,
        Wave::Square,
        Wave::Saw,
        Wave::Triangle,
        Wave::Silence,
        Wave::WhiteNoise,
        Wave::PinkNoise,
        Wave::SineTable,
        Wave::Ticks,
        Wave::GaussianNoise,
        Wave::RedNoise,
        Wave::BlueNoise,
        Wave::VioletNoise,
    ];

    fn made(wave: Wave, count: usize) -> Vec<f64> {
        let mut oscillator = Oscillator::new(wave, 440.0, 0.8);
        oscillator.set_rate(8000);
        let mut out = vec![9.0; count];
        oscillator.fill(&mut out);
        out
    }

    #[test]
    fn every_wave_stays_within_its_volume_and_about_zero() {
        for wave in ALL {
            let out = made(wave, 80_000);
            let peak = out.iter().fold(0f64, |peak, s| peak.max(s.abs()));
            let mean = out.iter().sum::<f64>() / out.len() as f64;
            assert!(peak <= 0.8 + 1e-12, "{wave:?} {peak}");
            assert!(mean.abs() < 0.2, "{wave:?} {mean}");
            assert_eq!(peak > 0.3, wave != Wave::Silence, "{wave:?} {peak}");
        }
    }

    #[test]
    fn each_noise_has_the_spectrum_of_its_colour() {
        // The power of the differences between samples, divided by the power of the samples: 2 for white noise.
        let slope = |wave| {
            let out = made(wave, 80_000);
            let power = |samples: &[f64]| samples.iter().map(|s| s * s).sum::<f64>();
            let steps: Vec<f64> = out.windows(2).map(|pair| pair[1] - pair[0]).collect();
            power(&steps) / power(&out)
        };
        let order = [
            Wave::RedNoise,
            Wave::PinkNoise,
            Wave::WhiteNoise,
            Wave::BlueNoise,
            Wave::VioletNoise,
        ]
        .map(slope);
        assert!(order.is_sorted(), "{order:?}");
        assert!((1.9..2.1).contains(&order[2]), "{order:?}");
        assert!((1.9..2.1).contains(&slope(Wave::GaussianNoise)));
    }

    #[test]
    fn ticks_are_a_second_apart_and_ten_periods_long() {
        let out = made(Wave::Ticks, 17_000);
        let length = 8000 * 10 / 440;
        for (n, sample) in out.iter().enumerate() {
            if sample.abs() > 0.01 {
                assert!(n % 8000 <= length, "{n}");
            }
        }
        assert!(out[8000..8100].iter().any(|s| s.abs() > 0.5));
    }
}
