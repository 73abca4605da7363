//! Properties, pads and events of `ebur128level`.

use std::sync::{LazyLock, Mutex, MutexGuard};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_loudness::{Mode, RATE_HZ_MIN};

use super::super::frames::{Format, template_caps};
use super::LevelMode;
use super::measuring::{At, Due, Measuring, Settings};
use crate::kit::inline::{self, Inline, InlineElement};
use crate::kit::lock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "ebur128level",
        gst::DebugColorFlags::empty(),
        Some("Loudness and peaks of audio"),
    )
});

const INTERVAL_NS_DEFAULT: u64 = 1_000_000_000;

#[derive(Properties)]
#[properties(wrapper_type = super::EbuR128Level)]
pub struct EbuR128Level {
    #[property(name = "mode", nick = "Mode", blurb = "Measurements in addition to momentary loudness; a change restarts the measurement", type = LevelMode, get = Self::mode, set = Self::set_mode, default = LevelMode::all(), mutable_playing)]
    #[property(name = "post-messages", nick = "Post messages", blurb = "Post an element message ebur128-level at the end of each interval", type = bool, get = |s: &Self| s.stream().settings.is_posting, set = |s: &Self, v| s.stream().settings.is_posting = v, default = true, mutable_playing)]
    #[property(name = "interval", nick = "Interval", blurb = "Interval between messages, ns of audio", type = u64, get = |s: &Self| s.stream().settings.interval_ns, set = Self::set_interval, default = INTERVAL_NS_DEFAULT, mutable_playing)]
    /// The stream. The pushing thread locks it, and so do threads that access properties. The lock is not held across a push or a
    /// message.
    stream: Mutex<Stream>,
    inline: Inline,
}

#[derive(Debug)]
struct Stream {
    asked: LevelMode,
    settings: Settings,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// The measurement, from the first caps on.
    measuring: Option<Measuring>,
}

impl EbuR128Level {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        lock(&self.stream)
    }

    fn mode(&self) -> LevelMode {
        self.stream().asked
    }

    fn set_mode(&self, mode: LevelMode) {
        let mut stream = self.stream();
        stream.asked = mode;
        let Stream {
            settings,
            measuring,
            ..
        } = &mut *stream;
        settings.mode = meter_mode(mode);
        if let Some(measuring) = measuring
            && let Err(error) = measuring.set_mode(settings)
        {
            gst::warning!(
                CAT,
                imp = self,
                "cannot change the mode, so the old mode remains: {error}"
            );
        }
    }

    fn set_interval(&self, interval_ns: u64) {
        let mut stream = self.stream();
        stream.settings.interval_ns = interval_ns;
        let settings = stream.settings;
        if let Some(measuring) = &mut stream.measuring {
            measuring.set_interval(&settings);
        }
    }

    fn reset(&self) {
        let mut stream = self.stream();
        let settings = stream.settings;
        if let Some(measuring) = &mut stream.measuring {
            measuring.reset(&settings);
        }
    }

    fn measure(&self, buffer: &gst::BufferRef) -> Result<(), gst::FlowError> {
        let mut due = Due::new();
        let result = self.with_measuring(buffer.pts(), &mut due, |measuring, at, due| {
            measuring.add_buffer(buffer, at, due)
        });
        self.post(due);
        match result {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ["a buffer: {error}"]);
                Err(gst::FlowError::Error)
            }
            None => {
                gst::element_imp_error!(self, gst::CoreError::Negotiation, ["no caps received"]);
                Err(gst::FlowError::NotNegotiated)
            }
        }
    }

    /// Calls `f` with the measurement. Returns `None` before the first caps.
    fn with_measuring<R>(
        &self,
        pts: Option<gst::ClockTime>,
        due: &mut Due,
        work: impl FnOnce(&mut Measuring, &At<'_>, &mut Due) -> R,
    ) -> Option<R> {
        let mut stream = self.stream();
        let Stream {
            settings,
            segment,
            measuring,
            ..
        } = &mut *stream;
        let segment = segment.as_ref();
        Some(work(
            measuring.as_mut()?,
            &At {
                pts,
                segment,
                settings,
            },
            due,
        ))
    }

    fn post(&self, due: Due) {
        for structure in due {
            let obj = self.obj();
            let message = gst::message::Element::builder(structure).src(&*obj).build();
            // Without a bus, the message is dropped. Only elements in a pipeline have a bus.
            let _ = obj.post_message(message);
        }
    }

    fn set_caps(&self, caps: &gst::CapsRef) -> Result<(), String> {
        let format = Format::of_caps(caps).map_err(|error| error.to_string())?;
        let mut stream = self.stream();
        let settings = stream.settings;
        match &mut stream.measuring {
            Some(measuring) => measuring.set_format(format, &settings),
            slot => Measuring::new(format, &settings).map(|new| *slot = Some(new)),
        }
        .map_err(|error| format!("{caps}: {error}"))
    }
}

/// Returns the meter's mode: the requested measurements and those they depend on. The range needs short-term loudness, true peaks
/// need sample peaks.
fn meter_mode(asked: LevelMode) -> Mode {
    [
        (LevelMode::SHORT_TERM, Mode::SHORT_TERM),
        (LevelMode::GLOBAL, Mode::INTEGRATED),
        (LevelMode::LOUDNESS_RANGE, Mode::RANGE),
        (LevelMode::SAMPLE_PEAK, Mode::SAMPLE_PEAK),
        (LevelMode::TRUE_PEAK, Mode::TRUE_PEAK),
    ]
    .into_iter()
    .filter(|(flag, _)| asked.contains(*flag))
    .fold(Mode::MOMENTARY, |mode, (_, measured)| mode | measured)
}

#[glib::object_subclass]
impl ObjectSubclass for EbuR128Level {
    const NAME: &'static str = "ThreadbareEbuR128Level";
    type Type = super::EbuR128Level;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        EbuR128Level {
            stream: Mutex::new(Stream {
                asked: LevelMode::all(),
                settings: Settings {
                    mode: meter_mode(LevelMode::all()),
                    interval_ns: INTERVAL_NS_DEFAULT,
                    is_posting: true,
                },
                segment: None,
                measuring: None,
            }),
            inline: Inline::new::<Self, _>(klass, PROXIES),
        }
    }
}

/// Queries pass to the other side, because buffers pass unchanged.
const PROXIES: gst::PadFlags = gst::PadFlags::PROXY_CAPS
    .union(gst::PadFlags::PROXY_ALLOCATION)
    .union(gst::PadFlags::PROXY_SCHEDULING);

impl ObjectImpl for EbuR128Level {
    crate::kit::properties_with_groups!(inline.stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            let reset = Signal::builder("reset").action().class_handler(|args| {
                if let Ok(element) = args[0].get::<super::EbuR128Level>() {
                    element.imp().reset();
                }
                None
            });
            vec![reset.build()]
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        inline::constructed(self);
    }
}

impl GstObjectImpl for EbuR128Level {}

impl ElementImpl for EbuR128Level {
    crate::kit::element_class!(
        "EBU R128 level",
        "Filter/Analyzer/Audio",
        "Measures loudness and peaks of an audio stream and posts messages, on the upstream thread";
        "sink": Sink Always template_caps(RATE_HZ_MIN),
        "src": Src Always template_caps(RATE_HZ_MIN)
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        inline::change_state(self, transition, || self.parent_change_state(transition))
    }
}

impl InlineElement for EbuR128Level {
    fn inline(&self) -> &Inline {
        &self.inline
    }

    fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.measure(&buffer)?;
        self.inline.src_pad.push(buffer)
    }

    fn chain_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        for buffer in list.iter() {
            self.measure(buffer)?;
        }
        self.inline.src_pad.push_list(list)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::Caps(caps) => {
                if let Err(reason) = self.set_caps(caps.caps()) {
                    gst::element_imp_error!(self, gst::StreamError::Format, ["{reason}"]);
                    return false;
                }
            }
            gst::EventView::Segment(segment) => {
                self.stream().segment = segment.segment().downcast_ref().cloned();
            }
            gst::EventView::Gap(gap) => {
                if let (pts, Some(duration)) = gap.get() {
                    let mut due = Due::new();
                    self.with_measuring(Some(pts), &mut due, |measuring, at, due| {
                        measuring.add_gap(duration, at, due);
                    });
                    self.post(due);
                }
            }
            _ => {}
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn stats(&self) -> gst::Structure {
        let mut structure = gst::Structure::new_empty("application/x-ebur128level-stats");
        if let Some(measuring) = &self.stream().measuring {
            measuring.add_readings(&mut structure);
        }
        structure
    }

    fn forget(&self) {
        let mut stream = self.stream();
        stream.measuring = None;
        stream.segment = None;
    }
}
