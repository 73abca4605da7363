//! Properties, signals, states and messages of `fallbacksrc`.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::acting::{act, watch};
use super::core::{Settings, Status};
use super::options::Options;
use super::output::{Output, source_of_name};
use super::running::MAP_STREAMS;
use super::shell::Shell;
use super::slot::Slot;
use super::state::Shared;
use super::statistics::{self, Statistics};
use crate::kit::context::{ContextSettings, Place};
use crate::kit::lock;
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;

/// The state of the main source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareFallbackSourceStatus")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum FallbackSourceStatus {
    #[default]
    #[enum_value(name = "Stopped", nick = "stopped")]
    Stopped,
    #[enum_value(name = "Buffering", nick = "buffering")]
    Buffering,
    #[enum_value(name = "Retrying", nick = "retrying")]
    Retrying,
    #[enum_value(name = "Running", nick = "running")]
    Running,
}

impl From<Status> for FallbackSourceStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Stopped => FallbackSourceStatus::Stopped,
            Status::Buffering => FallbackSourceStatus::Buffering,
            Status::Retrying => FallbackSourceStatus::Retrying,
            Status::Running => FallbackSourceStatus::Running,
        }
    }
}

#[derive(Default, Properties)]
#[properties(wrapper_type = super::FallbackSrc)]
pub struct FallbackSrc {
    #[property(name = "uri", nick = "URI", blurb = "URI of the main source", type = Option<String>, get = |s: &Self| s.options().uri.clone(), set = |s: &Self, v| s.options().uri = v, flags = UP_TO_READY)]
    #[property(name = "source", nick = "Source", blurb = "Element to use as the main source, instead of uri", type = Option<gst::Element>, get = |s: &Self| s.options().source.clone(), set = |s: &Self, v| s.options().source = v, flags = UP_TO_READY)]
    #[property(name = "fallback-uri", nick = "Fallback URI", blurb = "URI of the first fallback: a stream, a file or a picture", type = Option<String>, get = |s: &Self| s.options().fallback_uri.clone(), set = |s: &Self, v| s.options().fallback_uri = v, flags = UP_TO_READY)]
    #[property(name = "fallback-source", nick = "Fallback source", blurb = "Element to use as the first fallback, instead of fallback-uri", type = Option<gst::Element>, get = |s: &Self| s.options().fallback_source.clone(), set = |s: &Self, v| s.options().fallback_source = v, flags = UP_TO_READY)]
    #[property(name = "timeout", nick = "Timeout", blurb = "Time without timely data after which another source replaces the active one, ns", type = u64, get = |s: &Self| s.options().core.timeout_ns, set = |s: &Self, v| s.set_core(|core| core.timeout_ns = v), default = 5_000_000_000, maximum = TIME_NS_MAX, flags = UP_TO_READY)]
    #[property(name = "restart-timeout", nick = "Restart timeout", blurb = "Time without data after which a source is restarted, ns", type = u64, get = |s: &Self| s.options().core.restart_timeout_ns, set = |s: &Self, v| s.set_core(|core| core.restart_timeout_ns = v), default = 5_000_000_000, maximum = TIME_NS_MAX)]
    #[property(name = "retry-timeout", nick = "Retry timeout", blurb = "Time without data from any source after which the element fails, ns", type = u64, get = |s: &Self| s.options().core.retry_timeout_ns, set = |s: &Self, v| s.set_core(|core| core.retry_timeout_ns = v), default = 60_000_000_000, maximum = TIME_NS_MAX)]
    #[property(name = "retry-delay", nick = "Retry delay", blurb = "Maximum delay before the first retry, ns. It doubles with each retry; the actual delay is random, between half of this maximum and the maximum", type = u64, get = |s: &Self| s.options().core.retry_delay_ns, set = |s: &Self, v| s.set_core(|core| core.retry_delay_ns = v), default = 1_000_000_000, minimum = RETRY_DELAY_NS_MIN, maximum = TIME_NS_MAX)]
    #[property(name = "retry-delay-max", nick = "Greatest retry delay", blurb = "Maximum delay before any retry, ns", type = u64, get = |s: &Self| s.options().core.retry_delay_ns_max, set = |s: &Self, v| s.set_core(|core| core.retry_delay_ns_max = v), default = 30_000_000_000, minimum = RETRY_DELAY_NS_MIN, maximum = TIME_NS_MAX)]
    #[property(name = "max-retries", nick = "Maximum retries", blurb = "Number of failed retries in a row after which a source is given up; -1: no limit", type = i32, get = |s: &Self| s.options().core.retries_max.map_or(-1, u32::cast_signed), set = |s: &Self, v: i32| s.set_core(|core| core.retries_max = u32::try_from(v).ok()), default = -1, minimum = -1)]
    #[property(name = "restart-on-eos", nick = "Restart on EOS", blurb = "Restart the main source when it ends; false: the output ends", type = bool, get = |s: &Self| s.options().core.restart_on_eos, set = |s: &Self, v| s.set_core(|core| core.restart_on_eos = v), default = false)]
    #[property(name = "immediate-fallback", nick = "Immediate fallback", blurb = "Start the output with the first source that delivers, or with silence and black; false: wait up to the timeout for the main source", type = bool, get = |s: &Self| s.options().core.immediate_fallback, set = |s: &Self, v| s.set_core(|core| core.immediate_fallback = v), default = false, flags = UP_TO_READY)]
    #[property(name = "manual-unblock", nick = "Manual unblock", blurb = "Start a source that is not live only after the action unblock; false: start it as soon as it is ready", type = bool, get = |s: &Self| s.options().core.manual_unblock, set = |s: &Self, v| s.set_core(|core| core.manual_unblock = v), default = false)]
    #[property(name = "enable-dummy", nick = "Enable dummy", blurb = "Output silence and black while no source delivers", type = bool, get = |s: &Self| s.options().core.has_fill, set = |s: &Self, v| s.set_core(|core| core.has_fill = v), default = true)]
    #[property(name = "min-latency", nick = "Minimum latency", blurb = "Minimum latency to report, ns; reserves time for sources with a higher latency that are added later", type = u64, get = |s: &Self| s.options().min_latency_ns, set = |s: &Self, v| s.options().min_latency_ns = v, maximum = TIME_NS_MAX, flags = UP_TO_READY)]
    #[property(name = "min-hold", nick = "Minimum hold", blurb = "Minimum time between two switches, unless the active source fails, ns", type = u64, get = |s: &Self| s.options().min_hold_ns, set = |s: &Self, v| s.options().min_hold_ns = v, maximum = TIME_NS_MAX, flags = UP_TO_READY)]
    #[property(name = "recover-after", nick = "Recover after", blurb = "Time for which a better source must be healthy before it replaces a healthy one, ns", type = u64, get = |s: &Self| s.options().recover_after_ns, set = |s: &Self, v| s.options().recover_after_ns = v, maximum = TIME_NS_MAX, flags = UP_TO_READY)]
    #[property(name = "buffer-duration", nick = "Buffer duration", blurb = "Length of the buffer for a network stream, ns; -1: the default of uridecodebin", type = i64, get = |s: &Self| s.options().buffer_duration_ns, set = |s: &Self, v| s.options().buffer_duration_ns = v, default = -1, minimum = -1)]
    #[property(name = "audio-caps", nick = "Audio caps", blurb = "Caps of the audio output; raw audio is converted", type = Option<gst::Caps>, get = |s: &Self| s.options().audio_caps.clone(), set = |s: &Self, v| s.options().audio_caps = v, flags = UP_TO_READY)]
    #[property(name = "video-caps", nick = "Video caps", blurb = "Caps of the video output; raw video is converted", type = Option<gst::Caps>, get = |s: &Self| s.options().video_caps.clone(), set = |s: &Self, v| s.options().video_caps = v, flags = UP_TO_READY)]
    #[property(name = "dummy-audio-caps", nick = "Dummy audio caps", blurb = "Caps of the silence; unset: the caps of the audio before it", type = Option<gst::Caps>, get = |s: &Self| s.options().fill_audio_caps.clone(), set = |s: &Self, v| s.options().fill_audio_caps = v, flags = UP_TO_READY)]
    #[property(name = "dummy-video-caps", nick = "Dummy video caps", blurb = "Caps of the black picture; unset: the caps of the video before it", type = Option<gst::Caps>, get = |s: &Self| s.options().fill_video_caps.clone(), set = |s: &Self, v| s.options().fill_video_caps = v, flags = UP_TO_READY)]
    #[property(name = "fallback-audio-caps", nick = "Fallback audio caps", blurb = "Earlier name of dummy-audio-caps", type = Option<gst::Caps>, get = |s: &Self| s.options().fill_audio_caps.clone(), set = |s: &Self, v| s.options().fill_audio_caps = v, flags = DEPRECATED)]
    #[property(name = "fallback-video-caps", nick = "Fallback video caps", blurb = "Earlier name of dummy-video-caps", type = Option<gst::Caps>, get = |s: &Self| s.options().fill_video_caps.clone(), set = |s: &Self, v| s.options().fill_video_caps = v, flags = DEPRECATED)]
    #[property(name = "enable-audio", nick = "Enable audio", blurb = "Whether the element has an audio output", type = bool, get = |s: &Self| s.options().has_audio, set = |s: &Self, v| s.options().has_audio = v, default = true, flags = UP_TO_READY)]
    #[property(name = "enable-video", nick = "Enable video", blurb = "Whether the element has a video output", type = bool, get = |s: &Self| s.options().has_video, set = |s: &Self, v| s.options().has_video = v, default = true, flags = UP_TO_READY)]
    #[property(name = "resume", nick = "Resume", blurb = "After a failure, resume a file at its last position; false: play it from its start", type = bool, get = |s: &Self| s.options().resumes, set = |s: &Self, v| s.options().resumes = v, default = false)]
    #[property(name = "status", nick = "Status", blurb = "State of the main source", type = FallbackSourceStatus, get = |s: &Self| FallbackSourceStatus::from(s.shared.state().core.status()), builder(FallbackSourceStatus::Stopped))]
    options: Mutex<Options>,
    #[property(name = "fallback-uris", nick = "Fallback URIs", blurb = "URIs of further fallbacks, the best one first, as in <file:///a.ogg,file:///b.png>", type = gst::Array, get = Self::fallback_uris, set = Self::set_fallback_uris, flags = UP_TO_READY)]
    shared: Shared,
    context: Mutex<ContextSettings>,
    place: Mutex<Option<Place>>,
    stats: Mutex<StatsProperty>,
    statistics: Mutex<Statistics>,
    slots: Mutex<Arc<[Arc<Slot>]>>,
    outputs: Mutex<Arc<[Output]>>,
}

impl super::FallbackSrc {
    pub(super) fn shared(&self) -> &Shared {
        &self.imp().shared
    }

    pub(super) fn options(&self) -> Options {
        self.imp().options().clone()
    }

    pub(super) fn resumes(&self) -> bool {
        self.imp().options().resumes
    }

    pub(super) fn context(&self) -> ContextSettings {
        lock(&self.imp().context).clone()
    }

    pub(super) fn slots(&self) -> Arc<[Arc<Slot>]> {
        lock(&self.imp().slots).clone()
    }

    pub(super) fn outputs(&self) -> Arc<[Output]> {
        lock(&self.imp().outputs).clone()
    }
}

/// Properties.
impl FallbackSrc {
    fn options(&self) -> MutexGuard<'_, Options> {
        lock(&self.options)
    }

    fn set_core(&self, set: impl FnOnce(&mut Settings)) {
        let settings = {
            let mut options = self.options();
            set(&mut options.core);
            options.core
        };
        self.obj()
            .tell(|core, now_ns| core.handle_settings(now_ns, settings));
    }

    fn fallback_uris(&self) -> gst::Array {
        gst::Array::new(self.options().fallback_uris.clone())
    }

    fn set_fallback_uris(&self, uris: gst::Array) {
        let (mut fit, mut others) = (Vec::new(), 0);
        for uri in uris.iter() {
            match uri.get::<String>() {
                Ok(uri) => fit.push(uri),
                Err(_) => others += 1,
            }
        }
        if others > 0 {
            gst::warning!(
                crate::kit::CAT,
                imp = self,
                "fallback-uris: {others} of {} are not strings",
                uris.len()
            );
        }
        self.options().fallback_uris = fit;
    }
}

/// Life.
impl FallbackSrc {
    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let obj = self.obj();
        let options = self.options().clone();
        let (origins, kinds) = (options.origins()?, options.kinds()?);
        let context = obj.context();
        let outputs: Result<Arc<[Output]>, glib::BoolError> = kinds
            .iter()
            .map(|kind| Output::new(&obj, *kind, origins.len(), &options, &context))
            .collect();
        let failed = |error: glib::BoolError| gst::error_msg!(gst::CoreError::Failed, ["{error}"]);
        let outputs = outputs.map_err(failed)?;
        *lock(&self.outputs) = outputs.clone();
        let slots = origins
            .into_iter()
            .map(|origin| Arc::new(Slot::new(origin)));
        *lock(&self.slots) = slots.collect();
        for output in outputs.iter() {
            output.expose(&obj).map_err(failed)?;
        }
        obj.no_more_pads();
        Ok(())
    }

    /// Starts the sources, once the outputs accept data.
    fn start_sources(&self) {
        let obj = self.obj();
        let settings = self.options().core;
        let sources = obj.slots().len();
        let kinds: Vec<_> = obj.outputs().iter().map(Output::kind).collect();
        let start = self.shared.start(|core| {
            core.handle_settings(0, settings);
            core.handle_start(sources, &kinds);
        });
        let watch = watch(self.shared.clone(), start, obj.downgrade());
        if let Some(place) = &*lock(&self.place) {
            place.shard().spawn(watch).detach();
        }
        act(&obj);
    }

    fn stop(&self) {
        let obj = self.obj();
        for slot in obj.slots().iter() {
            slot.stop(&obj);
        }
        for output in obj.outputs().iter() {
            output.take_down(&obj);
        }
        *lock(&self.outputs) = Arc::default();
        *lock(&self.slots) = Arc::default();
    }

    /// Makes the sources and outputs follow the element's state. Each of them changes its state separately.
    fn move_sources(&self) {
        let obj = self.obj();
        for slot in obj.slots().iter() {
            slot.follow(&obj);
        }
        for output in obj.outputs().iter() {
            output.follow(&obj);
        }
        act(&obj);
    }
}

/// Messages.
impl FallbackSrc {
    /// Consumes the messages of a source. Returns `false` for messages that the application needs in any case.
    fn handle_source_message(&self, message: &gst::Message, shell: &Shell) -> bool {
        let obj = self.obj();
        let run = obj.slots().iter().find_map(|slot| {
            let running = slot.running()?;
            running.is_in(shell).then_some(running.run)
        });
        match message.view() {
            gst::MessageView::Error(error) => {
                gst::warning!(
                    crate::kit::CAT,
                    imp = self,
                    "{}: {} ({})",
                    shell.name(),
                    error.error(),
                    error.debug().unwrap_or_default()
                );
                // A source that is being stopped has failed already, or is not needed.
                if let Some(run) = run {
                    obj.tell(|core, now_ns| core.handle_error(now_ns, run));
                }
                true
            }
            gst::MessageView::Buffering(buffering) => {
                let percent = buffering.percent().unsigned_abs();
                if let Some(run) = run {
                    obj.tell(|core, now_ns| core.handle_buffering(now_ns, run, percent));
                }
                true
            }
            gst::MessageView::AsyncStart(_)
            | gst::MessageView::AsyncDone(_)
            | gst::MessageView::Eos(_)
            | gst::MessageView::SegmentStart(_)
            | gst::MessageView::SegmentDone(_)
            | gst::MessageView::DurationChanged(_) => true,
            _ => false,
        }
    }

    /// Translates a message of a switch: the switch reports pads, but the application knows only sources.
    fn handle_switch_message(&self, message: &gst::Message, output: &Output) -> bool {
        let gst::MessageView::Element(details) = message.view() else {
            return false;
        };
        let Some(details) = details
            .structure()
            .filter(|s| s.name() == "fallback-switch")
        else {
            return false;
        };
        let obj = self.obj();
        let name = |field: &str| {
            let pad = details.get::<Option<String>>(field).ok().flatten()?;
            let source = source_of_name(&pad)?;
            Some(match obj.slots().get(source) {
                Some(slot) => slot.text(),
                None => "dummy".to_owned(),
            })
        };
        let told = gst::Structure::builder("fallback-switch")
            .field("stream", output.kind().nick())
            .field("from", name("from"))
            .field("to", name("to"))
            .field("reason", details.get::<&str>("reason").unwrap_or_default())
            .build();
        let told = gst::message::Element::builder(told).src(&*obj).build();
        self.parent_handle_message(told);
        true
    }
}

#[glib::object_subclass]
impl ObjectSubclass for FallbackSrc {
    const NAME: &'static str = "ThreadbareFallbackSrc";
    type Type = super::FallbackSrc;
    type ParentType = gst::Bin;
}

impl ObjectImpl for FallbackSrc {
    crate::kit::properties_with_groups!(context, stats, statistics);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<[Signal; 3]> = LazyLock::new(|| {
            let update_uri = Signal::builder("update-uri")
                .param_types([String::static_type()])
                .return_type::<String>()
                .class_handler(|args| Some(args[1].clone()))
                .accumulator(|_, _, value| std::ops::ControlFlow::Break(value.clone()));
            let unblock = Signal::builder("unblock").action().class_handler(|args| {
                let element = args[0].get::<super::FallbackSrc>().ok()?;
                element.tell(|core, now_ns| core.handle_unblock(now_ns));
                None
            });
            let map_streams = Signal::builder(MAP_STREAMS)
                .param_types([
                    gst::Structure::static_type(),
                    gst::StreamCollection::static_type(),
                    gst::StreamCollection::static_type(),
                ])
                .return_type::<gst::Structure>();
            [update_uri.build(), unblock.build(), map_streams.build()]
        });
        &*SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        *lock(&self.stats) = StatsProperty::of(&*obj, statistics::all);
        *lock(&self.statistics) = Statistics::of(&obj);
        obj.set_element_flags(gst::ElementFlags::SOURCE | gst::ElementFlags::REQUIRE_CLOCK);
        obj.set_suppressed_flags(gst::ElementFlags::SOURCE | gst::ElementFlags::SINK);
    }
}

impl GstObjectImpl for FallbackSrc {}

impl ElementImpl for FallbackSrc {
    crate::kit::element_class!(
        "Thread-sharing fallback source",
        "Generic/Source",
        "Plays a source as a live stream; plays fallbacks, silence or black while the source fails";
        "audio_%u": Src Sometimes gst::Caps::new_any(),
        "video_%u": Src Sometimes gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::NullToReady => {
                let (origins, kinds) = {
                    let options = self.options();
                    (options.origins(), options.kinds())
                };
                crate::kit::or_post(self, origins)?;
                crate::kit::or_post(self, kinds)?;
                let place = lock(&self.context).place(self.obj().upcast_ref());
                *lock(&self.place) = Some(crate::kit::or_post(self, place)?);
            }
            gst::StateChange::ReadyToPaused => {
                let opened = self.open();
                crate::kit::or_post(self, opened)?;
            }
            gst::StateChange::PlayingToPaused => self.shared.play(None),
            gst::StateChange::PausedToReady => self.shared.stop(),
            _ => {}
        }
        let result = self.parent_change_state(transition)?;
        match transition {
            gst::StateChange::ReadyToPaused => self.start_sources(),
            gst::StateChange::PausedToPlaying => {
                self.shared.play(Some(RunningTime::of(&*self.obj())));
                self.move_sources();
            }
            gst::StateChange::PlayingToPaused => self.move_sources(),
            // The switches have already released the sources' threads.
            gst::StateChange::PausedToReady => self.stop(),
            gst::StateChange::ReadyToNull => *lock(&self.place) = None,
            _ => {}
        }
        Ok(match transition {
            gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused => {
                gst::StateChangeSuccess::NoPreroll
            }
            // The change to PLAYING does not wait until the source of silence has delivered a buffer.
            gst::StateChange::PausedToPlaying => gst::StateChangeSuccess::Success,
            _ => result,
        })
    }

    fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
        let accepted = self.parent_set_clock(clock);
        self.shared
            .set_time(RunningTime::with_clock(&*self.obj(), clock.cloned()));
        accepted
    }
}

impl BinImpl for FallbackSrc {
    fn handle_message(&self, message: gst::Message) {
        let obj = self.obj();
        let of = |parent: &gst::Object| {
            let source = message.src();
            source.is_some_and(|src| src == parent || src.has_as_ancestor(parent))
        };
        let is_own = match Shell::of(&message) {
            Some(shell) => self.handle_source_message(&message, &shell),
            None => obj.outputs().iter().any(|output| {
                of(output.switch().upcast_ref()) && self.handle_switch_message(&message, output)
            }),
        };
        if !is_own {
            self.parent_handle_message(message);
        }
    }
}

/// Maximum of times. As with GStreamer's own times, all values are allowed except the one for no time.
const TIME_NS_MAX: u64 = u64::MAX - 1;
/// Minimum delay between two tries of a source that fails at once.
const RETRY_DELAY_NS_MIN: u64 = 10_000_000;
/// Flag of a property that has a newer name.
const DEPRECATED: glib::ParamFlags = UP_TO_READY.union(glib::ParamFlags::DEPRECATED);
/// Flags of a property that is read at the start.
const UP_TO_READY: glib::ParamFlags =
    glib::ParamFlags::READWRITE.union(gst::PARAM_FLAG_MUTABLE_READY);
