//! Properties of `ts-tonesrc`.

use std::sync::{Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::format;
use super::generator::{Description, Generator};
use super::player::{Cut, Signal};
use super::source::{AudioSource, Parts, audio_source};
use crate::kit::lock;

/// The properties of the telephone tone generator of existing pipelines, with its ranges and defaults.
#[derive(Debug, Clone)]
struct Settings {
    freq_hz: [i32; 2],
    volume_dbm0: [i32; 2],
    cadence_ms: [i32; 4],
    repeat: bool,
    samples_per_buffer: u32,
    caps: Option<gst::Caps>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            freq_hz: [0; 2],
            volume_dbm0: [0; 2],
            cadence_ms: [1000; 4],
            repeat: false,
            samples_per_buffer: SAMPLES_DEFAULT,
            caps: None,
        }
    }
}

const FREQ_HZ_MAX: i32 = 20_000;
const VOLUME_DBM0_MIN: i32 = -50;
const MS_DEFAULT: i32 = 1000;
const SAMPLES_DEFAULT: u32 = 1024;
const SAMPLES_MAX: u32 = i32::MAX as u32;
/// The rate of telephony.
const RATE_DEFAULT: u32 = 8000;

impl Settings {
    fn description(&self) -> Description {
        let natural = |n: i32| u32::try_from(n).unwrap_or(0);
        Description {
            freq_hz: self.freq_hz.map(natural),
            volume_dbm0: self.volume_dbm0,
            cadence_ms: self.cadence_ms.map(natural),
            repeat: self.repeat,
        }
    }
}

#[derive(Properties)]
#[properties(wrapper_type = super::ToneSrc)]
pub struct ToneSrc {
    #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad: rate and channels", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = |s: &Self, v| s.set_cut(|settings| settings.caps = v))]
    #[property(name = "samples-per-buffer", nick = "Samples per buffer", blurb = "Samples in each buffer", type = u32, get = |s: &Self| s.settings().samples_per_buffer, set = |s: &Self, v| s.set_cut(|settings| settings.samples_per_buffer = v), minimum = 1, maximum = SAMPLES_MAX, default = SAMPLES_DEFAULT)]
    #[property(name = "freq", nick = "Frequency", blurb = "First frequency, Hz; 0: none", type = i32, get = |s: &Self| s.settings().freq_hz[0], set = |s: &Self, v| s.describe(|settings| settings.freq_hz[0] = v), minimum = 0, maximum = FREQ_HZ_MAX, default = 0)]
    #[property(name = "volume", nick = "Volume", blurb = "Level of the first frequency, dBm0 (+3.14 would be a sine of full scale)", type = i32, get = |s: &Self| s.settings().volume_dbm0[0], set = |s: &Self, v| s.describe(|settings| settings.volume_dbm0[0] = v), minimum = VOLUME_DBM0_MIN, maximum = 0, default = 0)]
    #[property(name = "freq2", nick = "Second frequency", blurb = "Second frequency, Hz; 0: none", type = i32, get = |s: &Self| s.settings().freq_hz[1], set = |s: &Self, v| s.describe(|settings| settings.freq_hz[1] = v), minimum = 0, maximum = FREQ_HZ_MAX, default = 0)]
    #[property(name = "volume2", nick = "Second volume", blurb = "Level of the second frequency, dBm0", type = i32, get = |s: &Self| s.settings().volume_dbm0[1], set = |s: &Self, v| s.describe(|settings| settings.volume_dbm0[1] = v), minimum = VOLUME_DBM0_MIN, maximum = 0, default = 0)]
    #[property(name = "on-time", nick = "On time", blurb = "Length of the first tone, ms", type = i32, get = |s: &Self| s.settings().cadence_ms[0], set = |s: &Self, v| s.describe(|settings| settings.cadence_ms[0] = v), minimum = 1, default = MS_DEFAULT)]
    #[property(name = "off-time", nick = "Off time", blurb = "Length of the first pause, ms; 0: the cycle ends before this pause", type = i32, get = |s: &Self| s.settings().cadence_ms[1], set = |s: &Self, v| s.describe(|settings| settings.cadence_ms[1] = v), minimum = 0, default = MS_DEFAULT)]
    #[property(name = "on-time2", nick = "Second on time", blurb = "Length of the second tone, ms; 0: the cycle ends before this tone", type = i32, get = |s: &Self| s.settings().cadence_ms[2], set = |s: &Self, v| s.describe(|settings| settings.cadence_ms[2] = v), minimum = 0, default = MS_DEFAULT)]
    #[property(name = "off-time2", nick = "Second off time", blurb = "Length of the second pause, ms; 0: the cycle ends before this pause", type = i32, get = |s: &Self| s.settings().cadence_ms[3], set = |s: &Self, v| s.describe(|settings| settings.cadence_ms[3] = v), minimum = 0, default = MS_DEFAULT)]
    #[property(name = "repeat", nick = "Repeat", blurb = "Repeat the cycle; false: silence after one cycle", type = bool, get = |s: &Self| s.settings().repeat, set = |s: &Self, v| s.describe(|settings| settings.repeat = v), default = false)]
    settings: Mutex<Settings>,
    parts: Parts<Tone>,
}

impl ToneSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Changes the tone. The cadence restarts.
    fn describe(&self, change: impl FnOnce(&mut Settings)) {
        let description = {
            let mut settings = self.settings();
            change(&mut settings);
            settings.description()
        };
        self.retune(move |tone| tone.describe(description));
    }

    fn set_cut(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings());
        self.recut();
    }
}

/// The generator. Its rate is known after negotiation.
pub struct Tone {
    description: Description,
    generator: Generator,
}

impl Tone {
    fn describe(&mut self, description: Description) {
        self.description = description;
        self.generator.set(description);
    }
}

impl Signal for Tone {
    fn set_rate(&mut self, rate: u32) {
        self.generator = Generator::new(self.description, rate);
    }

    fn fill(&mut self, out: &mut [f64]) {
        self.generator.fill(out);
    }
}

#[glib::object_subclass]
impl ObjectSubclass for ToneSrc {
    const NAME: &'static str = "ThreadbareToneSrc";
    type Type = super::ToneSrc;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        ToneSrc {
            settings: Mutex::default(),
            parts: Parts::new::<Self>(&crate::kit::template(klass, "src")),
        }
    }
}

impl ObjectImpl for ToneSrc {
    crate::kit::properties_with_groups!(parts.context, parts.stats);

    fn constructed(&self) {
        self.parent_constructed();
        self.parts.add_to(&*self.obj());
    }
}

impl GstObjectImpl for ToneSrc {}

impl ElementImpl for ToneSrc {
    crate::kit::element_class!(
        "Thread-sharing telephone tone source",
        "Source/Audio",
        "Plays a telephone tone of one or two frequencies on the thread of a shared context";
        "src": Src Always format::template(&format::FORMATS[..1])
    );

    crate::source_life!();
}

audio_source!(ToneSrc);

impl AudioSource for ToneSrc {
    type Signal = Tone;

    const STATS: &'static str = "application/x-ts-tonesrc-stats";

    fn parts(&self) -> &Parts<Tone> {
        &self.parts
    }

    fn cut(&self) -> Cut {
        let settings = self.settings();
        Cut {
            samples_per_buffer: settings.samples_per_buffer,
            is_live: true,
            timestamp_offset_ns: 0,
            caps: settings.caps.clone(),
            rate_default: RATE_DEFAULT,
        }
    }

    fn signal(&self) -> Tone {
        let description = self.settings().description();
        Tone {
            description,
            generator: Generator::new(description, RATE_DEFAULT),
        }
    }
}
