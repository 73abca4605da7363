//! Telephone tones: one or two frequencies, switched on and off in time.
//!
//! It uses neither GStreamer nor a clock. Phases are counted in fractions of a turn, as whole numbers: each sample adds the
//! frequency in Hz, modulo the sample rate. So no error adds up, however long a tone lasts.

use std::f64::consts::TAU;

/// Description of a tone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Description {
    /// Frequency in Hz; 0 for none.
    pub(crate) freq_hz: [u32; 2],
    /// Level of each frequency; see [`amplitude`].
    pub(crate) volume_dbm0: [i32; 2],
    /// Durations on, off, on, off. A duration of 0 ms ends the cycle, except as the first one.
    pub(crate) cadence_ms: [u32; 4],
    /// Whether the cycle repeats. Otherwise silence follows.
    pub(crate) repeat: bool,
}

/// Returns the peak of a sine of this many dBm0, relative to full scale.
///
/// A sine that just reaches full scale has +3.14 dBm0 (ITU-T G.711, table 5, for A-law). Descriptions of telephone tones use this
/// reference, and so does spandsp. So 0 dBm0 peaks at 0.697 of full scale.
pub(crate) fn amplitude(dbm0: i32) -> f64 {
    10f64.powf((f64::from(dbm0) - DBM0_OF_FULL_SCALE) / 20.0)
}

#[allow(clippy::approx_constant, reason = "decibels")]
const DBM0_OF_FULL_SCALE: f64 = 3.14;

/// Generates the samples of a [`Description`], relative to full scale.
#[derive(Debug)]
pub(crate) struct Generator {
    description: Description,
    rate: u32,
    /// Phase of each frequency, in units of 1/`rate` turns.
    phase: [u32; 2],
    amplitude: [f64; 2],
    /// The parts of the cadence in samples.
    sections: [u64; 4],
    /// Current part, and the number of its samples so far; `None` if the tone has ended.
    position: Option<(usize, u64)>,
}

impl Generator {
    pub(crate) fn new(description: Description, rate: u32) -> Self {
        let mut generator = Generator {
            description,
            rate: rate.max(1),
            phase: [0; 2],
            amplitude: [0.0; 2],
            sections: [0; 4],
            position: None,
        };
        generator.set(description);
        generator
    }

    /// Changes the tone from the next sample on. The cadence restarts; the phases continue.
    pub(crate) fn set(&mut self, description: Description) {
        let rate = u64::from(self.rate);
        self.description = description;
        self.amplitude = description.volume_dbm0.map(amplitude);
        self.sections = description.cadence_ms.map(|ms| u64::from(ms) * rate / 1000);
        self.position = (self.sections[0] > 0).then_some((0, 0));
    }

    /// Generates the next samples.
    pub(crate) fn fill(&mut self, mut out: &mut [f64]) {
        while !out.is_empty() {
            let Some((section, done)) = self.position else {
                out.fill(0.0);
                return;
            };
            let left = self.sections[section] - done;
            let count = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (now, later) = out.split_at_mut(count);
            now.fill(0.0);
            if section % 2 == 0 {
                for tone in 0..self.phase.len() {
                    self.add_tone(tone, now);
                }
            }
            out = later;
            self.position = if count as u64 == left {
                self.after(section)
            } else {
                Some((section, done + count as u64))
            };
        }
    }

    fn after(&self, section: usize) -> Option<(usize, u64)> {
        match self.sections.get(section + 1) {
            Some(&samples) if samples > 0 => Some((section + 1, 0)),
            _ if self.description.repeat => Some((0, 0)),
            _ => None,
        }
    }

    /// Adds a sine by the recurrence `y[n] = 2 cos(w) y[n-1] - y[n-2]`. Each call starts at the exact phase, so the error grows
    /// only with the number of samples of one call.
    fn add_tone(&mut self, tone: usize, out: &mut [f64]) {
        let freq = self.description.freq_hz[tone] % self.rate;
        if freq == 0 {
            return;
        }
        let turn = TAU / f64::from(self.rate);
        let (phase, step) = (f64::from(self.phase[tone]) * turn, f64::from(freq) * turn);
        let amplitude = self.amplitude[tone];
        let twice_cos = 2.0 * step.cos();
        let mut now = amplitude * phase.sin();
        let mut before = amplitude * (phase - step).sin();
        for sample in out.iter_mut() {
            *sample += now;
            (now, before) = (twice_cos * now - before, now);
        }
        let rate = u64::from(self.rate);
        let advanced = u64::from(self.phase[tone]) + u64::from(freq) * (out.len() as u64 % rate);
        self.phase[tone] = (advanced % rate) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIAL: Description = Description {
        freq_hz: [350, 440],
        volume_dbm0: [-13, -13],
        cadence_ms: [1000, 0, 0, 0],
        repeat: true,
    };

    fn samples(generator: &mut Generator, count: usize, chunk: usize) -> Vec<f64> {
        let mut out = vec![9.0; count];
        for part in out.chunks_mut(chunk) {
            generator.fill(part);
        }
        out
    }

    /// The naive twin: a sine by its definition.
    fn twin(description: &Description, rate: u32, n: u64) -> f64 {
        (0..2)
            .map(|i| {
                let turns = (u64::from(description.freq_hz[i]) * n) % u64::from(rate);
                let phase = TAU * turns as f64 / f64::from(rate);
                amplitude(description.volume_dbm0[i]) * phase.sin()
            })
            .sum()
    }

    #[test]
    fn a_tone_is_the_sum_of_sines_at_any_time_in_any_chunks() {
        for (rate, chunk) in [(8000, 128), (8000, 7), (44_100, 100), (48_000, 1)] {
            let mut generator = Generator::new(DIAL, rate);
            // After ten minutes, no error has added up.
            for second in 0..601u64 {
                let out = samples(
                    &mut generator,
                    rate as usize,
                    if second < 600 { 128 } else { chunk },
                );
                if second % 600 == 0 {
                    for (i, sample) in out.iter().enumerate() {
                        let n = second * u64::from(rate) + i as u64;
                        assert!((sample - twin(&DIAL, rate, n)).abs() < 1e-9, "{rate} {n}");
                    }
                }
            }
        }
    }

    #[test]
    fn zero_dbm0_is_3_14_db_below_a_full_scale_sine() {
        assert!((amplitude(0) * 32767.0 - 22_827.0).abs() < 1.0);
        assert!((20.0 * (amplitude(-20) / amplitude(0)).log10() + 20.0).abs() < 1e-9);
    }

    #[test]
    fn the_cadence_is_exact_to_the_sample() {
        let busy = Description {
            freq_hz: [2000, 0],
            volume_dbm0: [0, 0],
            cadence_ms: [480, 500, 20, 10],
            repeat: true,
        };
        // At a quarter of the rate, every other sample of a sine is zero, so check the samples in between, too.
        let out = samples(&mut Generator::new(busy, 8000), 8080 * 3, 160);
        for (n, pair) in out.chunks(2).enumerate() {
            let at = (2 * n) % 8080;
            let is_on = at < 3840 || (7840..8000).contains(&at);
            assert_eq!(pair.iter().any(|s| s.abs() > 0.1), is_on, "{at}");
        }
    }

    #[test]
    fn a_cycle_that_is_not_repeated_ends_in_silence() {
        let once = Description {
            repeat: false,
            cadence_ms: [10, 10, 10, 0],
            ..DIAL
        };
        let mut generator = Generator::new(once, 8000);
        let out = samples(&mut generator, 400, 50);
        let last = out.iter().rposition(|s| *s != 0.0).unwrap();
        assert_eq!(last, 239);
        assert_eq!(generator.position, None);
        // A new description starts a new tone.
        generator.set(once);
        assert!(
            samples(&mut generator, 80, 80)
                .iter()
                .any(|s| s.abs() > 0.1)
        );
    }

    #[test]
    fn change_continues_in_phase() {
        let mut generator = Generator::new(DIAL, 8000);
        let before = samples(&mut generator, 1234, 100);
        let louder = Description {
            volume_dbm0: [-3, -13],
            ..DIAL
        };
        generator.set(louder);
        let after = samples(&mut generator, 10, 10);
        let step = (after[0] - before[1233]).abs();
        assert!(step < 0.5, "{step}");
        assert!((after[0] - twin(&louder, 8000, 1234)).abs() < 1e-9);
    }

    #[test]
    fn no_description_hangs_the_generator() {
        for cadence_ms in [[0; 4], [1, 0, 0, 0], [0, 5, 5, 5], [u32::MAX; 4]] {
            for rate in [1, 999, 8000, u32::MAX] {
                let description = Description {
                    freq_hz: [u32::MAX, 20_000],
                    cadence_ms,
                    ..DIAL
                };
                samples(&mut Generator::new(description, rate), 1000, 64);
            }
        }
    }
}
