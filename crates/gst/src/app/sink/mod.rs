//! `ts-appsink`: hands buffers to the application, by signals, by pulling, or as an asynchronous stream.
//!
//! The samples are in a bounded store under the sink's lock. A full store blocks the source without blocking its thread, unless
//! `drop` is set. All consumers wait by [`Sink::until`].

mod store;

use std::pin::{Pin, pin};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Precision, Registration, block_on, clock_now_ns, sleep_until};

use self::store::Store;
use crate::kit::lock;
use crate::kit::sink::{self, Sink, SinkElement, SyncProperties};
use crate::kit::stats::StatsProperty;

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
    #[property(name = "max-buffers", nick = "Maximum buffers", blurb = "Maximum number of buffers in the queue for the application; 0: no limit", type = u32, get = |s: &Self| s.store(|store| store.max.buffers), set = |s: &Self, v| s.limit(|store| store.max.buffers = v), default = store::BUFFERS_DEFAULT)]
    #[property(name = "max-bytes", nick = "Maximum bytes", blurb = "Maximum number of bytes in the queue for the application; 0: no limit", type = u64, get = |s: &Self| s.store(|store| store.max.bytes), set = |s: &Self, v| s.limit(|store| store.max.bytes = v), default = 0)]
    #[property(name = "max-time", nick = "Maximum time", blurb = "Maximum duration of the samples in the queue, ns; 0: no limit", type = u64, get = |s: &Self| s.store(|store| store.max.time_ns), set = |s: &Self, v| s.limit(|store| store.max.time_ns = v), default = 0)]
    #[property(name = "drop", nick = "Drop", blurb = "When the queue for the application is full, drop its oldest sample instead of blocking the source", type = bool, get = |s: &Self| s.store(|store| store.drops), set = |s: &Self, v| s.limit(|store| store.drops = v), default = false)]
    #[property(name = "buffer-list", nick = "Buffer list", blurb = "Return a buffer list as one sample instead of one sample for each buffer", type = bool, get = |s: &Self| s.store(|store| store.takes_lists), set = |s: &Self, v| s.limit(|store| store.takes_lists = v), default = false)]
    #[property(name = "wait-on-eos", nick = "Wait on EOS", blurb = "Report the end of the stream when the application has pulled all samples, not when the end arrives", type = bool, get = |s: &Self| s.store(|store| store.waits_on_eos), set = |s: &Self, v| s.limit(|store| store.waits_on_eos = v), default = true)]
    #[property(name = "eos", nick = "EOS", blurb = "Whether the stream has ended and the application has pulled all samples", type = bool, get = |s: &Self| s.store(|store| store.has_ended()))]
    settings: Mutex<Settings>,
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Store>>,
}

type Taken = Poll<Option<gst::Sample>>;

impl AppSink {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn store<T>(&self, read: impl FnOnce(&mut Store) -> T) -> T {
        self.sink().with_renderer(read)
    }

    /// Changes a limit, which may make room.
    fn limit(&self, change: impl FnOnce(&mut Store)) {
        self.store(change);
        self.sink().resume();
    }

    /// Emits pending signals, without a lock. If a handler returns an error, the push returns it.
    fn tell_news(&self) -> Result<(), gst::FlowError> {
        let emits = self.settings().emits;
        let news = self.store(|store| std::mem::take(&mut store.news));
        let obj = self.obj();
        if emits && news.preroll {
            flow(obj.emit_by_name("new-preroll", &[]))?;
        }
        for _ in 0..if emits { news.samples } else { 0 } {
            flow(obj.emit_by_name("new-sample", &[]))?;
        }
        if news.eos {
            obj.emit_by_name::<()>("eos", &[]);
        }
        Ok(())
    }

    /// Waits until `take` succeeds. Do not call it on a context's thread, which would wait for itself.
    fn wait(&self, timeout_ns: Option<u64>, take: fn(&mut Store) -> Taken) -> Option<gst::Sample> {
        let taken = self.sink().until(take);
        if threadbare_runtime::current_shard_id().is_some() {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            return match pin!(taken).poll(&mut cx) {
                Poll::Ready(sample) => sample,
                Poll::Pending => None,
            };
        }
        let Some(timeout_ns) = timeout_ns else {
            return block_on(taken);
        };
        let end_ns = clock_now_ns().saturating_add(timeout_ns);
        let (mut taken, mut end) = (pin!(taken), sleep_until(end_ns, Precision::NotBefore));
        block_on(std::future::poll_fn(|cx| match taken.as_mut().poll(cx) {
            Poll::Ready(sample) => Poll::Ready(sample),
            Poll::Pending => Pin::new(&mut end).poll(cx).map(|()| None),
        }))
    }

    fn stop(&self, is_stopped: bool) {
        self.store(|store| store.stop(is_stopped));
        self.sink().tell_renderer_changed();
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, late) = self.sink().counts();
        let dropped = self.store(|store| store.dropped);
        gst::Structure::builder("application/x-ts-appsink-stats")
            .field("rendered", rendered)
            .field("late", late)
            .field("dropped", dropped)
            .build()
    }
}

fn flow(returned: gst::FlowReturn) -> Result<(), gst::FlowError> {
    returned.into_result().map(|_| ())
}

/// The samples of a `ts-appsink` as they arrive, for an asynchronous task on any executor.
///
/// It is bounded by the element's `max-buffers`: a slow task blocks the source. It ends with the stream, or when the element
/// stops. Each sample goes to one consumer.
#[derive(Debug)]
pub struct SampleStream {
    sink: glib::WeakRef<super::AppSink>,
    registration: Registration,
}

impl SampleStream {
    /// Returns the stream of an element, or `None` if the element is not a `ts-appsink` of this library.
    pub fn of(element: &impl IsA<gst::Element>) -> Option<SampleStream> {
        let element = element.upcast_ref::<gst::Element>();
        let sink = element.downcast_ref::<super::AppSink>()?;
        Some(SampleStream {
            sink: sink.downgrade(),
            registration: Registration::default(),
        })
    }
}

impl futures_core::Stream for SampleStream {
    type Item = gst::Sample;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<gst::Sample>> {
        let Some(element) = self.sink.upgrade() else {
            return Poll::Ready(None);
        };
        let registration = &mut self.registration;
        (element.imp().sink()).poll_until(registration, cx, Store::take)
    }
}

impl Drop for SampleStream {
    fn drop(&mut self) {
        if let Some(element) = self.sink.upgrade() {
            element.imp().sink().cancel(&mut self.registration);
        }
    }
}

impl SinkElement for AppSink {
    type Renderer = Store;

    fn sink(&self) -> &Sink<Store> {
        self.sink.get_or_init(|| {
            let sync = lock(&self.sync).clone();
            let sink = Sink::new(self.obj().upcast_ref(), Store::default(), sync);
            let element = self.obj().downgrade();
            sink.tell(move || {
                let element = element.upgrade();
                element.map_or(Ok(()), |element| element.imp().tell_news())
            });
            sink
        })
    }

    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        self.stop(false);
        Ok(())
    }

    fn release(&self) {
        self.stop(true);
    }

    fn notice_event(&self, event: &gst::Event) {
        // The sink provides segments itself.
        if event.type_() == gst::EventType::Caps {
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
                    .run_last()
                    .build()
            };
            vec![
                told("new-preroll"),
                told("new-sample"),
                Signal::builder("eos").build(),
                pull("pull-sample", false, Store::take),
                pull("try-pull-sample", true, Store::take),
                pull("pull-preroll", false, Store::take_preroll),
                pull("try-pull-preroll", true, Store::take_preroll),
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

/// Returns an action signal that waits for a sample, with an optional time-out in nanoseconds.
fn pull(name: &str, has_timeout: bool, take: fn(&mut Store) -> Taken) -> Signal {
    let types: Vec<glib::Type> = has_timeout.then(u64::static_type).into_iter().collect();
    Signal::builder(name)
        .param_types(types)
        .return_type::<Option<gst::Sample>>()
        .action()
        .class_handler(move |values| {
            let element = values[0].get::<super::AppSink>().ok()?;
            let timeout = values.get(1).and_then(|value| value.get::<u64>().ok());
            let sample = element.imp().wait(timeout, take);
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

    crate::sink_life!();
}
