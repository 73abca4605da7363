//! `ts-appsink`: hands buffers to the application, by signals, by pulling, or as an asynchronous stream.
//!
//! The samples are in a bounded store under the sink's lock. A full store holds up the source without blocking its
//! thread, unless `drop` is set.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use crate::kit::condition::Condition;
use crate::kit::lock;
use crate::kit::sink::{self, Rendered, Renderer, Sink, SinkElement, SyncProperties};
use crate::kit::stats::StatsProperty;

/// Samples not taken yet; under the sink's lock.
pub struct Store {
    samples: VecDeque<gst::Sample>,
    preroll: Option<gst::Sample>,
    caps: Option<gst::Caps>,
    segment: Option<gst::Segment>,
    max: usize,
    drops: bool,
    is_eos: bool,
    is_stopped: bool,
    dropped: u64,
    news: News,
    wakers: Vec<Waker>,
    changed: Arc<Condition>,
}

/// Signals not emitted yet.
#[derive(Debug, Default)]
struct News {
    preroll: bool,
    samples: u32,
    eos: bool,
}

impl Store {
    fn sample(&self, buffer: &gst::Buffer) -> gst::Sample {
        let sample = gst::Sample::builder().buffer(buffer);
        let sample = sample.caps_if_some(self.caps.as_ref());
        match &self.segment {
            Some(segment) => sample.segment(segment).build(),
            None => sample.build(),
        }
    }

    fn wake(&mut self) {
        self.changed.notify_all();
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn has_ended(&self) -> bool {
        self.is_stopped || (self.is_eos && self.samples.is_empty())
    }
}

impl Renderer for Store {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if !self.has_room() {
            return Rendered::Full;
        }
        if self.max > 0 && self.samples.len() >= self.max {
            self.samples.pop_front();
            self.dropped += 1;
        }
        self.samples.push_back(self.sample(buffer));
        self.news.samples += 1;
        self.wake();
        Rendered::Done
    }

    fn preroll(&mut self, buffer: &gst::Buffer) {
        self.preroll = Some(self.sample(buffer));
        self.news.preroll = true;
        self.wake();
    }

    fn event(&mut self, event: &gst::Event) {
        match event.view() {
            gst::EventView::Caps(caps) => self.caps = Some(caps.caps_owned()),
            gst::EventView::Segment(segment) => self.segment = Some(segment.segment().clone()),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.is_eos = true;
        self.news.eos = true;
        self.wake();
    }

    fn flush(&mut self) {
        self.samples.clear();
        self.preroll = None;
        self.is_eos = false;
        self.news = News::default();
    }

    fn has_room(&self) -> bool {
        self.drops || self.max == 0 || self.samples.len() < self.max
    }
}

#[derive(Debug, Clone, Default)]
struct Settings {
    caps: Option<gst::Caps>,
    emits: bool,
}

#[derive(Properties)]
#[properties(wrapper_type = super::AppSink)]
pub struct AppSink {
    #[property(name = "caps", nick = "Caps", blurb = "Caps that the sink pad accepts, NULL: any", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = |s: &Self, v| s.settings().caps = v)]
    #[property(name = "emit-signals", nick = "Emit signals", blurb = "Emit new-preroll and new-sample", type = bool, get = |s: &Self| s.settings().emits, set = |s: &Self, v| s.settings().emits = v, default = false)]
    #[property(name = "max-buffers", nick = "Maximum buffers", blurb = "Samples in the queue at which it is full; 0: no limit", type = u32, get = |s: &Self| s.sink().with_renderer(|store| store.max as u32), set = Self::set_max, default = BUFFERS_DEFAULT)]
    #[property(name = "drop", nick = "Drop", blurb = "Drop the oldest sample of a full queue instead of blocking the source", type = bool, get = |s: &Self| s.sink().with_renderer(|store| store.drops), set = Self::set_drops, default = false)]
    #[property(name = "eos", nick = "EOS", blurb = "Whether the stream has ended and all samples are taken", type = bool, get = |s: &Self| s.sink().with_renderer(|store| store.has_ended()))]
    settings: Mutex<Settings>,
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Store>>,
    /// Belongs to the lock below, not to the sink's.
    changed: Arc<Condition>,
    pulling: Mutex<()>,
}

/// A second of slices of 20 ms, four times over: an application that lags further holds up its source.
const BUFFERS_DEFAULT: u32 = 200;

impl AppSink {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn set_max(&self, max: u32) {
        self.sink().with_renderer(|store| store.max = max as usize);
        self.sink().resume();
    }

    fn set_drops(&self, drops: bool) {
        self.sink().with_renderer(|store| store.drops = drops);
        self.sink().resume();
    }

    /// Emits pending signals. No lock is held.
    fn tell_news(&self) {
        // A thread may be between its check and its wait.
        drop(lock(&self.pulling));
        self.changed.notify_all();
        let emits = self.settings().emits;
        let news = self
            .sink()
            .with_renderer(|store| std::mem::take(&mut store.news));
        let obj = self.obj();
        if emits && news.preroll {
            let _ = obj.emit_by_name::<gst::FlowReturn>("new-preroll", &[]);
        }
        for _ in 0..if emits { news.samples } else { 0 } {
            let _ = obj.emit_by_name::<gst::FlowReturn>("new-sample", &[]);
        }
        if news.eos {
            obj.emit_by_name::<()>("eos", &[]);
        }
    }

    fn take(&self) -> Poll<Option<gst::Sample>> {
        let taken = self
            .sink()
            .with_renderer(|store| match store.samples.pop_front() {
                Some(sample) => Poll::Ready(Some(sample)),
                None if store.has_ended() => Poll::Ready(None),
                None => Poll::Pending,
            });
        if matches!(taken, Poll::Ready(Some(_))) {
            self.sink().resume();
        }
        taken
    }

    fn take_preroll(&self) -> Poll<Option<gst::Sample>> {
        self.sink()
            .with_renderer(|store| match store.preroll.take() {
                Some(sample) => Poll::Ready(Some(sample)),
                None if store.has_ended() => Poll::Ready(None),
                None => Poll::Pending,
            })
    }

    /// Waits for `take` to succeed; not on a context's thread, which would wait for itself.
    fn wait(
        &self,
        timeout: Option<Duration>,
        take: impl Fn(&Self) -> Poll<Option<gst::Sample>>,
    ) -> Option<gst::Sample> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let may_wait = threadbare_runtime::current_shard_id().is_none();
        let mut pulling = lock(&self.pulling);
        loop {
            match take(self) {
                Poll::Ready(sample) => return sample,
                Poll::Pending if !may_wait => return None,
                Poll::Pending => {}
            }
            pulling = match end {
                Some(end) => {
                    let left = end.checked_duration_since(Instant::now())?;
                    self.changed.wait_timeout(pulling, left)
                }
                None => self.changed.wait(pulling),
            };
        }
    }

    pub(super) fn poll_sample(&self, cx: &mut Context<'_>) -> Poll<Option<gst::Sample>> {
        let taken = self.take();
        if taken.is_pending() {
            let is_ready = self.sink().with_renderer(|store| {
                store.wakers.push(cx.waker().clone());
                !store.samples.is_empty() || store.has_ended()
            });
            // A sample arrived in between.
            if is_ready {
                return self.take();
            }
        }
        taken
    }

    fn stop(&self, is_stopped: bool) {
        self.sink().with_renderer(|store| {
            store.flush();
            store.is_stopped = is_stopped;
            store.caps = None;
            store.segment = None;
            store.wake();
        });
        drop(lock(&self.pulling));
        self.changed.notify_all();
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, late) = self.sink().counts();
        let dropped = self.sink().with_renderer(|store| store.dropped);
        gst::Structure::builder("application/x-ts-appsink-stats")
            .field("rendered", rendered)
            .field("late", late)
            .field("dropped", dropped)
            .build()
    }
}

/// The samples of a `ts-appsink` as they arrive, for an asynchronous task on any executor.
///
/// Bounded by the element's `max-buffers`: a slow task holds up the source. Ends with the stream, or when the element
/// stops. Each sample goes to one taker.
#[derive(Debug)]
pub struct SampleStream(glib::WeakRef<super::AppSink>);

impl SampleStream {
    /// `None`: the element is not a `ts-appsink` of this library.
    pub fn of(element: &impl IsA<gst::Element>) -> Option<SampleStream> {
        let element = element.upcast_ref::<gst::Element>();
        let sink = element.downcast_ref::<super::AppSink>()?;
        Some(SampleStream(sink.downgrade()))
    }
}

impl futures_core::Stream for SampleStream {
    type Item = gst::Sample;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<gst::Sample>> {
        match self.0.upgrade() {
            Some(element) => element.imp().poll_sample(cx),
            None => Poll::Ready(None),
        }
    }
}

impl SinkElement for AppSink {
    type Renderer = Store;

    fn sink(&self) -> &Sink<Store> {
        self.sink.get_or_init(|| {
            let store = Store {
                samples: VecDeque::new(),
                preroll: None,
                caps: None,
                segment: None,
                max: BUFFERS_DEFAULT as usize,
                drops: false,
                is_eos: false,
                is_stopped: true,
                dropped: 0,
                news: News::default(),
                wakers: Vec::new(),
                changed: self.changed.clone(),
            };
            let sync = lock(&self.sync).clone();
            let sink = Sink::new(self.obj().upcast_ref(), store, sync);
            let element = self.obj().downgrade();
            sink.tell(move || {
                if let Some(element) = element.upgrade() {
                    element.imp().tell_news();
                }
            });
            sink
        })
    }

    fn notice_event(&self, event: &gst::Event) {
        if matches!(
            event.type_(),
            gst::EventType::Caps | gst::EventType::Segment
        ) {
            self.sink().queue_event(event.clone());
        }
    }

    fn answer_query(&self, query: &mut gst::QueryRef) -> bool {
        let gst::QueryViewMut::Caps(caps) = query.view_mut() else {
            return false;
        };
        let own = self.settings().caps.clone();
        let own = own.unwrap_or_else(gst::Caps::new_any);
        let result = match caps.filter() {
            Some(filter) => filter.intersect_with_mode(&own, gst::CapsIntersectMode::First),
            None => own,
        };
        caps.set_result(&result);
        true
    }
}

#[glib::object_subclass]
impl ObjectSubclass for AppSink {
    const NAME: &'static str = "ThreadbareAppSink";
    type Type = super::AppSink;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = sink::sink_pad::<AppSink>(&crate::kit::template(klass, "sink"));
        AppSink {
            settings: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            sink_pad,
            sink: OnceLock::new(),
            changed: Arc::default(),
            pulling: Mutex::default(),
        }
    }
}

impl ObjectImpl for AppSink {
    crate::kit::properties_with_groups!(sync, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            let told = |name: &'static str| {
                Signal::builder(name)
                    .return_type::<gst::FlowReturn>()
                    .class_handler(|_| Some(gst::FlowReturn::Ok.to_value()))
                    .run_last()
                    .build()
            };
            vec![
                told("new-preroll"),
                told("new-sample"),
                Signal::builder("eos").build(),
                pull("pull-sample", false, AppSink::take),
                pull("try-pull-sample", true, AppSink::take),
                pull("pull-preroll", false, AppSink::take_preroll),
                pull("try-pull-preroll", true, AppSink::take_preroll),
            ]
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.sink_pad);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

/// An action signal that waits for a sample, with an optional time-out in nanoseconds.
fn pull(name: &str, has_timeout: bool, take: fn(&AppSink) -> Poll<Option<gst::Sample>>) -> Signal {
    let types: Vec<glib::Type> = has_timeout.then(u64::static_type).into_iter().collect();
    Signal::builder(name)
        .param_types(types)
        .return_type::<Option<gst::Sample>>()
        .action()
        .class_handler(move |values| {
            let element = values[0].get::<super::AppSink>().ok()?;
            let timeout = values.get(1).and_then(|value| value.get::<u64>().ok());
            let sample = element.imp().wait(timeout.map(Duration::from_nanos), take);
            Some(sample.to_value())
        })
        .build()
}

impl GstObjectImpl for AppSink {}

impl ElementImpl for AppSink {
    crate::kit::element_class!(
        "Thread-sharing application sink",
        "Sink/Generic",
        "Hands buffers to the application; a slow application holds up the source, not the shared thread";
        "sink": Sink Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => self.stop(false),
            gst::StateChange::PausedToReady => self.stop(true),
            _ => {}
        }
        crate::kit::sink::change_state(self.sink(), self, transition, || {
            self.parent_change_state(transition)
        })
    }

    crate::kit::sink_events_and_clock!();
}
