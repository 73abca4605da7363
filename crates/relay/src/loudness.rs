//! Loudness of a leg's audio. It is measured, or adjusted to a target.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use threadbare_loudness::{
    BuildError, Channel, Meter, Mode, NormalizeError, Normalizer, NormalizerSettings, Resolution,
};
use threadbare_rtp::call::{Filter, Tapped, TappedAudio};
use threadbare_rtp::codec::Format;

use crate::sync::lock;

/// Readings of EBU R128. Silence is minus infinity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loudness {
    /// Loudness of the last 400 ms, LUFS.
    pub momentary_lufs: f64,
    /// Loudness of the last 3 s, LUFS.
    pub short_term_lufs: f64,
    /// Loudness since the beginning, LUFS.
    pub integrated_lufs: f64,
    /// Loudness range since the beginning, LU.
    pub range_lu: f64,
    /// True peak of the loudest channel since the start, dBTP.
    pub true_peak_dbtp: f64,
}

/// A meter for any format. If the format changes, the meter restarts.
#[derive(Debug, Default)]
pub(crate) struct LineMeter {
    meter: Option<Meter>,
    /// The highest true peak: see [`take_peak`](LineMeter::take_peak).
    peak: f64,
    /// The last readings of the values that change slowly and take a long time to compute.
    since_begin: Option<(f64, f64)>,
}

impl LineMeter {
    /// Adds tapped audio. Between packets, the meter leaves the processor's cache, so collect at least [`TAPPED_SAMPLES_MIN`] before.
    pub(crate) fn add_tapped(&mut self, tapped: Tapped<'_>) {
        thread_local! {
            static DECODED: RefCell<Vec<f32>> = RefCell::default();
        }
        let TappedAudio::Samples(pcm) = tapped.audio else {
            return DECODED.with_borrow_mut(|pcm| {
                pcm.clear();
                tapped.decode(pcm);
                self.add(tapped.format, pcm);
            });
        };
        self.add(tapped.format, pcm);
    }

    fn add(&mut self, format: Format, pcm: &[f32]) {
        if self.fit(format).is_ok()
            && let Some(meter) = &mut self.meter
        {
            // This cannot fail, because a decoder returns whole frames.
            let _ = meter.add_interleaved(pcm);
            let peaks = (0..meter.channels()).filter_map(|one| meter.last_true_peak(one).ok());
            self.peak = peaks.fold(self.peak, f64::max);
        }
    }

    fn fit(&mut self, format: Format) -> Result<(), BuildError> {
        let (rate_hz, channels) = (format.sample_rate_hz, usize::from(format.channels));
        let fits = |meter: &Meter| meter.rate_hz() == rate_hz && meter.channels() == channels;
        if !self.meter.as_ref().is_some_and(fits) {
            let everything = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
            let meter = Meter::builder(rate_hz, channels)
                .mode(everything)
                .resolution(Resolution::Block)
                .build()?;
            self.meter = Some(meter);
            self.since_begin = None;
        }
        Ok(())
    }

    pub(crate) fn begin_programme(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.begin_programme();
        }
        self.since_begin = None;
    }

    /// Returns the readings. `None`: nothing was received yet.
    pub(crate) fn readings(&mut self) -> Option<Loudness> {
        self.since_begin = None;
        self.quick_readings()
    }

    /// Returns the [`readings`](LineMeter::readings), but with the integrated loudness and range of the last call, because these two take
    /// as long to compute as all others together.
    pub(crate) fn quick_readings(&mut self) -> Option<Loudness> {
        let meter = self.meter.as_ref()?;
        let (integrated_lufs, range_lu) = match self.since_begin {
            Some(known) => known,
            None => (meter.integrated().ok()?, meter.range().ok()?.lu),
        };
        self.since_begin = Some((integrated_lufs, range_lu));
        let peaks = (0..meter.channels()).filter_map(|channel| meter.true_peak(channel).ok());
        Some(Loudness {
            momentary_lufs: meter.momentary(),
            short_term_lufs: meter.short_term().ok()?,
            integrated_lufs,
            range_lu,
            true_peak_dbtp: 20.0 * peaks.fold(0.0, f64::max).log10(),
        })
    }

    /// Returns the highest true peak since the last call, with full scale 1.
    pub(crate) fn take_peak(&mut self) -> f64 {
        std::mem::take(&mut self.peak)
    }
}

/// Number of samples to collect before a measurement: 140 ms at 8 kHz.
pub(crate) const TAPPED_SAMPLES_MIN: usize = 1_120;

/// Adjusts a stream to a loudness, which delays it by 3 s, and measures the result.
#[derive(Debug)]
pub(crate) struct LoudnessTarget {
    settings: NormalizerSettings,
    normalizer: Option<Normalizer>,
    meter: Arc<Mutex<LineMeter>>,
}

impl LoudnessTarget {
    /// Creates the state. Fails if no format allows this target.
    pub(crate) fn new(
        target_lufs: f64,
        meter: Arc<Mutex<LineMeter>>,
    ) -> Result<LoudnessTarget, NormalizeError> {
        let settings = NormalizerSettings {
            loudness_target_lufs: target_lufs,
            ..NormalizerSettings::default()
        };
        Normalizer::new(8000, &Channel::default_layout(1), settings)?;
        Ok(LoudnessTarget {
            settings,
            normalizer: None,
            meter,
        })
    }

    fn fit(&mut self, format: Format) -> Option<&mut Normalizer> {
        let (rate_hz, channels) = (format.sample_rate_hz, usize::from(format.channels));
        let fits = |one: &Normalizer| one.rate_hz() == rate_hz && one.channels() == channels;
        if !self.normalizer.as_ref().is_some_and(fits) {
            let layout = Channel::default_layout(channels);
            self.normalizer = Normalizer::new(rate_hz, &layout, self.settings).ok();
        }
        self.normalizer.as_mut()
    }
}

impl Filter for LoudnessTarget {
    fn process(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let channels = usize::from(format.channels);
        let Some(normalizer) = self.fit(format) else {
            return;
        };
        let mut done = Vec::with_capacity(pcm.len());
        let mut rest = &pcm[..];
        while !rest.is_empty() {
            let Ok(taken) = normalizer.add_interleaved(rest) else {
                break;
            };
            rest = &rest[taken * channels..];
            let start = done.len();
            done.resize(start + normalizer.ready() as usize * channels, 0.0);
            let frames = normalizer.take_interleaved(&mut done[start..]).unwrap_or(0);
            done.truncate(start + frames * channels);
            if taken == 0 && frames == 0 {
                break; // there is always room after ready audio was taken
            }
        }
        *pcm = done;
        lock(&self.meter).add(format, pcm);
    }

    fn finish(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let Some(normalizer) = &mut self.normalizer else {
            return;
        };
        normalizer.drain();
        let start = pcm.len();
        let samples = normalizer.ready() as usize * normalizer.channels();
        pcm.resize(start + samples, 0.0);
        // These are whole frames, as many as are ready.
        let _ = normalizer.take_interleaved(&mut pcm[start..]);
        normalizer.reset();
        lock(&self.meter).add(format, &pcm[start..]);
    }
}
