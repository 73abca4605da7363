//! Properties of `ts-audiotestsrc`.

use std::sync::{Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::format;
use super::player::{Cut, Signal};
use super::source::{AudioSource, Parts, audio_source};
use super::wave::{Oscillator, Wave};
use crate::kit::lock;

#[derive(Debug, Clone)]
struct Settings {
    wave: Wave,
    freq_hz: u32,
    volume: f64,
    mute: bool,
    samples_per_buffer: u32,
    is_live: bool,
    num_buffers: i32,
    timestamp_offset_ns: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            wave: Wave::Sine,
            freq_hz: FREQ_HZ_DEFAULT,
            volume: VOLUME_DEFAULT,
            mute: false,
            samples_per_buffer: SAMPLES_DEFAULT,
            is_live: true,
            num_buffers: -1,
            timestamp_offset_ns: 0,
        }
    }
}

/// Default frequency, as in existing pipelines.
const FREQ_HZ_DEFAULT: u32 = 440;
const VOLUME_DEFAULT: f64 = 0.8;
const VOLUME_MAX: f64 = 10.0;
const SAMPLES_DEFAULT: u32 = 1024;
const SAMPLES_MAX: u32 = i32::MAX as u32;
const RATE_DEFAULT: u32 = 44_100;

#[derive(Properties)]
#[properties(wrapper_type = super::AudioTestSrc)]
pub struct AudioTestSrc {
    #[property(name = "samples-per-buffer", nick = "Samples per buffer", blurb = "Samples in each buffer", type = u32, get = |s: &Self| s.settings().samples_per_buffer, set = |s: &Self, v| s.set_cut(|settings| settings.samples_per_buffer = v), minimum = 1, maximum = SAMPLES_MAX, default = SAMPLES_DEFAULT)]
    #[property(name = "wave", nick = "Wave", blurb = "Waveform", type = Wave, get = |s: &Self| s.settings().wave, set = |s: &Self, v| s.set_signal(|settings| settings.wave = v), builder(Wave::Sine))]
    #[property(name = "freq", nick = "Frequency", blurb = "Frequency, Hz", type = u32, get = |s: &Self| s.settings().freq_hz, set = |s: &Self, v| s.set_signal(|settings| settings.freq_hz = v), minimum = 1, default = FREQ_HZ_DEFAULT)]
    #[property(name = "volume", nick = "Volume", blurb = "Peak amplitude; full scale is 1, larger samples are clipped", type = f64, get = |s: &Self| s.settings().volume, set = |s: &Self, v| s.set_signal(|settings| settings.volume = v), minimum = 0.0, maximum = VOLUME_MAX, default = VOLUME_DEFAULT)]
    #[property(name = "mute", nick = "Mute", blurb = "Output silence instead of the waveform", type = bool, get = |s: &Self| s.settings().mute, set = |s: &Self, v| s.set_signal(|settings| settings.mute = v), default = false)]
    #[property(name = "is-live", nick = "Is live", blurb = "Push only in PLAYING, each buffer at the end of its last sample", type = bool, get = |s: &Self| s.settings().is_live, set = |s: &Self, v| s.settings().is_live = v, default = true)]
    #[property(name = "num-buffers", nick = "Number of buffers", blurb = "Number of buffers until the end of the stream, counted from PAUSED; -1: no end", type = i32, get = |s: &Self| s.settings().num_buffers, set = |s: &Self, v| s.settings().num_buffers = v, minimum = -1, default = -1)]
    #[property(name = "timestamp-offset", nick = "Timestamp offset", blurb = "Offset added to the timestamps, ns", type = i64, get = |s: &Self| s.settings().timestamp_offset_ns, set = |s: &Self, v| s.set_cut(|settings| settings.timestamp_offset_ns = v), default = 0)]
    settings: Mutex<Settings>,
    parts: Parts<Oscillator>,
}

impl AudioTestSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn set_signal(&self, change: impl FnOnce(&mut Settings)) {
        let settings = {
            let mut settings = self.settings();
            change(&mut settings);
            settings.clone()
        };
        self.retune(move |oscillator| {
            oscillator.set(settings.wave, settings.freq_hz.into(), settings.loudness());
        });
    }

    fn set_cut(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings());
        self.recut();
    }
}

impl Settings {
    fn loudness(&self) -> f64 {
        if self.mute { 0.0 } else { self.volume }
    }
}

impl Signal for Oscillator {
    fn set_rate(&mut self, rate: u32) {
        Oscillator::set_rate(self, rate);
    }

    fn fill(&mut self, out: &mut [f64]) {
        Oscillator::fill(self, out);
    }
}

#[glib::object_subclass]
impl ObjectSubclass for AudioTestSrc {
    const NAME: &'static str = "ThreadbareAudioTestSrc";
    type Type = super::AudioTestSrc;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        AudioTestSrc {
            settings: Mutex::default(),
            parts: Parts::new::<Self>(&crate::kit::template(klass, "src")),
        }
    }
}

impl ObjectImpl for AudioTestSrc {
    crate::kit::properties_with_groups!(parts.context, parts.stats);

    fn constructed(&self) {
        self.parent_constructed();
        self.parts.add_to(&*self.obj());
    }
}

impl GstObjectImpl for AudioTestSrc {}

impl ElementImpl for AudioTestSrc {
    crate::kit::element_class!(
        "Thread-sharing audio test source",
        "Source/Audio",
        "Plays a test signal on the thread of a shared context";
        "src": Src Always format::template(&format::FORMATS)
    );

    crate::source_life!();
}

audio_source!(AudioTestSrc);

impl AudioSource for AudioTestSrc {
    type Signal = Oscillator;

    const STATS: &'static str = "application/x-ts-audiotestsrc-stats";

    fn parts(&self) -> &Parts<Oscillator> {
        &self.parts
    }

    fn cut(&self) -> Cut {
        let settings = self.settings();
        Cut {
            samples_per_buffer: settings.samples_per_buffer,
            is_live: settings.is_live,
            timestamp_offset_ns: settings.timestamp_offset_ns,
            caps: None,
            rate_default: RATE_DEFAULT,
        }
    }

    fn signal(&self) -> Oscillator {
        let settings = self.settings();
        Oscillator::new(settings.wave, settings.freq_hz.into(), settings.loudness())
    }

    fn num_buffers(&self) -> Option<u64> {
        u64::try_from(self.settings().num_buffers).ok()
    }
}
