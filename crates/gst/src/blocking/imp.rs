//! Pads and states of `ts-blocking-adapter`.
//!
//! Upstream pushes into a queue, as into ts-queue, and never waits in place on a context's thread. An ordinary pad task
//! empties the queue and may be held up downstream without limit.
//!
//! | field | thread |
//! |---|---|
//! | `items` | any |
//! | `flush_end` | put by the flushing thread, taken by the task, which pushes it when its own push has come back |
//! | `has_failed` | the task; taken back before a task starts |

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;

use crate::kit::context::Place;
use crate::kit::crossing::{queue_event, report_unseen, src_query};
use crate::kit::queue::{Item, Leaky, Level, Queue};
use crate::kit::stats::StatsProperty;
use crate::kit::{lock, pad_function};

pub struct BlockingAdapter {
    items: Queue,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    src_pad: gst::Pad,
    flush_end: Mutex<Option<gst::Event>>,
    is_stopping: AtomicBool,
    has_failed: AtomicBool,
}

/// Enough for what a source on a throttled context pushes in a slice, and little delay.
const WAITING_BUFFERS_MAX: u32 = 16;

impl BlockingAdapter {
    fn chain(&self, item: Item) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.items.push(item).map(|()| gst::FlowSuccess::Ok)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        // Downstream runs elsewhere.
        let event = Place::unannounced(event);
        let obj = self.obj();
        match event.type_() {
            gst::EventType::FlushStart => {
                let passed = gst::Pad::event_default(pad, Some(&*obj), event);
                for sticky in self.items.flush(true) {
                    let _ = self.src_pad.store_sticky_event(&sticky);
                }
                passed
            }
            gst::EventType::FlushStop => {
                // The task passes it on, when what it pushes now has come back: nobody here waits for that.
                *lock(&self.flush_end) = Some(event);
                self.items.flush(false);
                true
            }
            _ if event.is_serialized() => queue_event(obj.upcast_ref(), &self.items, event),
            _ => gst::Pad::event_default(pad, Some(&*obj), event),
        }
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        // A context's thread cannot wait: its query overtakes.
        let may_wait = threadbare_runtime::current_shard_id().is_none();
        if query.is_serialized() && may_wait && !self.items.wait_drained() {
            return false;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    fn activate(&self, active: bool) -> Result<(), gst::LoggableError> {
        self.is_stopping.store(!active, Relaxed);
        if !active {
            self.items.flush(true);
            *lock(&self.flush_end) = None;
            return Ok(self.src_pad.stop_task()?);
        }
        self.has_failed.store(false, Relaxed);
        self.items.flush(false);
        let element = self.obj().downgrade();
        Ok(self.src_pad.start_task(move || {
            if let Some(element) = element.upgrade() {
                element.imp().pass_one();
            }
        })?)
    }

    fn has_interrupt(&self) -> bool {
        self.is_stopping.load(Relaxed) || lock(&self.flush_end).is_some()
    }

    /// One turn of the task.
    fn pass_one(&self) {
        if let Some(event) = lock(&self.flush_end).take() {
            self.has_failed.store(false, Relaxed);
            self.src_pad.push_event(event);
            return;
        }
        let Some(item) = self.items.pop_wait(|| self.has_interrupt()) else {
            if self.is_stopping.load(Relaxed) {
                let _ = self.src_pad.pause_task();
            }
            return;
        };
        // What is left behind an error is not passed on.
        if self.has_failed.load(Relaxed) {
            return;
        }
        if let Err(error) = item.push(&self.src_pad) {
            self.has_failed.store(true, Relaxed);
            // Upstream has sent its last: nobody is left to see the error and report it.
            if self.items.fail(error) {
                report_unseen(self.obj().upcast_ref(), error);
            }
        }
    }
}

#[glib::object_subclass]
impl ObjectSubclass for BlockingAdapter {
    const NAME: &'static str = "ThreadbareBlockingAdapter";
    type Type = super::BlockingAdapter;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let error = || Err(gst::FlowError::Error);
        let chain = move |parent: Option<&gst::Object>, item| {
            pad_function::<BlockingAdapter, _>(parent, error, |imp| imp.chain(item))
        };
        let sink_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "sink"))
            .chain_function(move |_, parent, buffer| chain(parent, Item::Buffer(buffer)))
            .chain_list_function(move |_, parent, list| chain(parent, Item::List(list)))
            .event_function(|pad, parent, event| {
                pad_function::<BlockingAdapter, _>(
                    parent,
                    || false,
                    |imp| imp.sink_event(pad, event),
                )
            })
            .query_function(|pad, parent, query| {
                pad_function::<BlockingAdapter, _>(
                    parent,
                    || false,
                    |imp| imp.sink_query(pad, query),
                )
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        let src_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "src"))
            .activatemode_function(|_, parent, mode, active| {
                let failed = || Err(gst::loggable_error!(crate::kit::CAT, "a panic"));
                pad_function::<BlockingAdapter, _>(parent, failed, |imp| match mode {
                    gst::PadMode::Push => imp.activate(active),
                    _ => Err(gst::loggable_error!(crate::kit::CAT, "it pushes")),
                })
            })
            .query_function(|pad, parent, query| {
                pad_function::<BlockingAdapter, _>(
                    parent,
                    || false,
                    |imp| src_query(&*imp.obj(), &imp.sink_pad, pad, query, |upstream| upstream),
                )
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        let items = Queue::new(|_| {});
        items.limit(
            Leaky::No,
            Level {
                buffers: WAITING_BUFFERS_MAX,
                ..Level::default()
            },
        );
        BlockingAdapter {
            stats: Mutex::new(items.stats_property("application/x-ts-blocking-adapter-stats")),
            items,
            sink_pad,
            src_pad,
            flush_end: Mutex::default(),
            is_stopping: AtomicBool::new(true),
            has_failed: AtomicBool::new(false),
        }
    }
}

impl ObjectImpl for BlockingAdapter {
    crate::kit::properties_of_groups!(stats);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_pads(self.obj().upcast_ref(), &[&self.sink_pad, &self.src_pad]);
    }
}

impl GstObjectImpl for BlockingAdapter {}

impl ElementImpl for BlockingAdapter {
    crate::kit::element_class!(
        "Adapter to blocking elements",
        "Generic",
        "Gives elements that may block a thread of their own";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::PausedToReady {
            // Threads that wait to push come back before the pads are deactivated.
            self.is_stopping.store(true, Relaxed);
            self.items.flush(true);
        }
        self.parent_change_state(transition)
    }
}
