//! Properties, pads and states of `ts-clocksync`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::reader::{ClockReader, Shared};
use crate::kit::context::ContextSettings;
use crate::kit::crossing::{self, Crosses, Crossing, Latency, Passes};
use crate::kit::queue::{Leaky, Level, Queue};
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;

#[derive(Properties)]
#[properties(wrapper_type = super::ClockSync)]
pub struct ClockSync {
    #[property(name = "sync", nick = "Sync", blurb = "Synchronise buffers to the clock", type = bool, get = |s: &Self| s.shared.sync.load(Relaxed), set = |s: &Self, v| s.change(|shared| shared.sync.store(v, Relaxed)), default = true)]
    #[property(name = "ts-offset", nick = "Timestamp offset", blurb = "Offset added to the time of each buffer, ns; negative: earlier", type = i64, get = |s: &Self| s.shared.offset_ns.load(Relaxed), set = |s: &Self, v| s.change(|shared| shared.offset_ns.store(v, Relaxed)), default = 0)]
    #[property(name = "sync-to-first", nick = "Sync to first", blurb = "Set ts-offset so that the first buffer after PAUSED or a flush passes at once", type = bool, get = |s: &Self| s.shared.to_first.load(Relaxed), set = |s: &Self, v| s.change(|shared| shared.to_first.store(v, Relaxed)), default = false)]
    shared: Arc<Shared>,
    /// Never changed: the element always runs on the context of the branch.
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    crossing: Crossing<ClockReader>,
}

/// Maximum number of buffers queued behind the held one before the source has to wait. A source on a throttled context pushes
/// several in a slice.
const WAITING_BUFFERS_MAX: u32 = 64;

impl ClockSync {
    /// Changes a setting and checks the held item again.
    fn change(&self, change: impl FnOnce(&Shared)) {
        change(&self.shared);
        self.crossing.driver().with_producer(|_, cx| cx.wake_self());
    }

    fn play(&self, time: Option<RunningTime>) {
        self.shared.is_playing.store(time.is_some(), Relaxed);
        self.crossing.start(time.unwrap_or_default());
        // The source may have produced data before this change, so check it now.
        self.change(|_| ());
    }
}

impl Crosses for ClockSync {
    type Producer = ClockReader;

    fn crossing(&self) -> &Crossing<ClockReader> {
        &self.crossing
    }

    fn context(&self) -> &Mutex<ContextSettings> {
        &self.context
    }

    fn sink_pad(&self) -> &gst::Pad {
        &self.sink_pad
    }

    fn latency(&self, upstream: Latency, own: gst::ClockTime) -> Latency {
        let (is_live, min, max) = upstream;
        let before_ns = if is_live { min.nseconds() } else { 0 };
        self.shared.upstream_ns.store(before_ns, Relaxed);
        let is_live = is_live || self.shared.sync.load(Relaxed);
        (is_live, min + own, max.map(|max| max + own))
    }
}

#[glib::object_subclass]
impl ObjectSubclass for ClockSync {
    const NAME: &'static str = "ThreadbareClockSync";
    type Type = super::ClockSync;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = crossing::src_pad::<ClockSync>(&crate::kit::template(klass, "src"));
        let items = Queue::new(|_| {});
        items.limit(
            Leaky::No,
            Level {
                buffers: WAITING_BUFFERS_MAX,
                ..Level::default()
            },
        );
        let shared = Arc::<Shared>::default();
        let of_reader = (items.clone(), shared.clone());
        let make = move |element: &gst::Element| {
            ClockReader::new(element, of_reader.0.clone(), of_reader.1.clone())
        };
        let stats = items.stats_property("application/x-ts-clocksync-stats");
        ClockSync {
            shared,
            context: Mutex::default(),
            stats: Mutex::new(stats),
            sink_pad: crossing::sink_pad::<ClockSync>(&crate::kit::template(klass, "sink")),
            crossing: Crossing::new(items, src_pad, Passes::Otherwise, make),
        }
    }
}

impl ObjectImpl for ClockSync {
    crate::kit::properties_with_groups!(stats);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        self.crossing.add_to(&*obj, &self.sink_pad);
        obj.set_element_flags(gst::ElementFlags::REQUIRE_CLOCK);
    }
}

impl GstObjectImpl for ClockSync {}

impl ElementImpl for ClockSync {
    crate::kit::element_class!(
        "Thread-sharing clock synchroniser",
        "Generic",
        "Synchronises buffers to the clock without a waiting thread";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => {
                self.play(None);
                let opened = self.crossing.open(self.obj().upcast_ref(), &self.context);
                crate::kit::or_post(self, opened)?;
            }
            gst::StateChange::PlayingToPaused => self.play(None),
            gst::StateChange::PausedToReady => self.crossing.release(),
            _ => {}
        }
        let result = self.parent_change_state(transition);
        if transition == gst::StateChange::PausedToReady {
            self.crossing.close();
        }
        let result = result?;
        match transition {
            gst::StateChange::PausedToPlaying => {
                self.play(Some(RunningTime::of(&*self.obj())));
            }
            // In PAUSED, it holds everything that has a time: sinks after it do not preroll.
            gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused
                if self.shared.sync.load(Relaxed) =>
            {
                return Ok(gst::StateChangeSuccess::NoPreroll);
            }
            _ => {}
        }
        Ok(result)
    }

    fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
        let accepted = self.parent_set_clock(clock);
        let time = RunningTime::with_clock(&*self.obj(), clock.cloned());
        self.crossing.driver().with_producer(move |reader, cx| {
            use crate::kit::source::Producer;
            reader.set_time(time);
            cx.wake_self();
        });
        accepted
    }
}
