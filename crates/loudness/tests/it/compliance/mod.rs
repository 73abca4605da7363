//! The synthetic signals of EBU Tech 3341 and Tech 3342: stereo and 5.1, at 44.1, 48, 96 and 192 kHz. (3341-7, 3341-8, 3342-5 and
//! 3342-6 are recordings.)

mod peaks;
mod tones;

use threadbare_loudness::{Builder, Meter, Mode};

/// A meter, and the number of frames that are added to it at once: 10 ms, the longest time that Tech 3341 allows between two
/// readings.
pub(crate) struct Bench {
    pub(crate) meter: Meter,
    pub(crate) call_frames: usize,
}

/// Runs `check` with each rate and with stereo and 5.1.
pub(crate) fn each_format(mode: Mode, check: impl Fn(&mut Bench, &str)) {
    for rate_hz in [44_100, 48_000, 96_000, 192_000] {
        for channels in [2, 6] {
            let mut bench = bench(Meter::builder(rate_hz, channels).mode(mode));
            check(&mut bench, &format!("{channels} channels at {rate_hz} Hz"));
        }
    }
}

fn bench(builder: Builder) -> Bench {
    let meter = builder.build().expect("within the limits");
    let call_frames = meter.rate_hz() as usize / 100;
    Bench { meter, call_frames }
}

impl Bench {
    /// Feeds a 1 kHz sine in sections. For each section, `levels` has the level of each channel in dBFS and the length in
    /// seconds. `read` is called after each call of the meter.
    pub(crate) fn feed(&mut self, levels: &[(&[f64], f64)], mut read: impl FnMut(&Meter, f64)) {
        let (rate_hz, channels) = (self.meter.rate_hz() as usize, self.meter.channels());
        // Ten periods fill a hundredth of a second at all these rates.
        let sine: Vec<f64> = (0..self.call_frames)
            .map(|n| (n as f64 * std::f64::consts::TAU * 1_000.0 / rate_hz as f64).sin())
            .collect();
        let (mut frame, mut pending) = (0, Vec::with_capacity(self.call_frames * channels));
        for (levels, seconds) in levels {
            let gains: Vec<f64> = levels
                .iter()
                .map(|level| 10f64.powf(level / 20.0))
                .collect();
            for _ in 0..(seconds * rate_hz as f64).round() as usize {
                let sample = sine[frame % self.call_frames];
                let gain = |channel| gains.get(channel).copied().unwrap_or(0.0);
                pending.extend((0..channels).map(|channel| (gain(channel) * sample) as f32));
                frame += 1;
                if frame % self.call_frames == 0 {
                    self.meter.add_interleaved(&pending).expect("whole frames");
                    pending.clear();
                    read(&self.meter, frame as f64 / rate_hz as f64);
                }
            }
        }
        self.meter.add_interleaved(&pending).expect("whole frames");
    }

    /// Feeds the same level on the left and on the right, in phase.
    pub(crate) fn feed_stereo(&mut self, levels: &[(f64, f64)], read: impl FnMut(&Meter, f64)) {
        let pairs: Vec<[f64; 2]> = levels.iter().map(|(level, _)| [*level; 2]).collect();
        let levels: Vec<(&[f64], f64)> = pairs
            .iter()
            .zip(levels)
            .map(|(pair, (_, seconds))| (pair.as_slice(), *seconds))
            .collect();
        self.feed(&levels, read);
    }
}

pub(crate) fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let difference = (found - expected).abs();
    assert!(
        difference <= tolerance,
        "{what}: {found:.3}, expected {expected} +-{tolerance}"
    );
}
