//! Pads and states of `ts-blocking-adapter`.
//!
//! Upstream pushes into a queue, as with ts-queue, and never blocks a context's thread. An ordinary pad task empties the queue,
//! and downstream may block it without limit.
//!
//! | field | thread |
//! |---|---|
//! | `end` | any thread; only the pad's task takes items |

use std::sync::Mutex;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use crate::kit::context::Place;
use crate::kit::crossing::src_query;
use crate::kit::pad_function;
use crate::kit::queue::{Item, Leaky, Level, OwnThread, Queue, QueueEnd, fail_or_report};
use crate::kit::stats::StatsProperty;

#[derive(Properties)]
#[properties(wrapper_type = super::BlockingAdapter)]
pub struct BlockingAdapter {
    end: QueueEnd<OwnThread>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
}

/// Maximum number of queued buffers: enough for those that a source on a throttled context pushes in a slice. More would add
/// delay.
const WAITING_BUFFERS_MAX: u32 = 16;

impl BlockingAdapter {
    fn chain(&self, item: Item) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.end.items.push(Some(&self.sink_pad), item)?;
        Ok(gst::FlowSuccess::Ok)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        // Downstream runs on another thread.
        let event = Place::unannounced(event);
        let obj = self.obj();
        match event.type_() {
            gst::EventType::FlushStart => self
                .end
                .begin_flush(|| gst::Pad::event_default(pad, Some(&*obj), event)),
            gst::EventType::FlushStop => self.end.end_flush(event),
            _ if event.is_serialized() => self.end.push_event(obj.upcast_ref(), event),
            _ => gst::Pad::event_default(pad, Some(&*obj), event),
        }
    }

    fn src_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        self.end.notice_upstream(&event);
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if query.is_serialized() && !self.end.reach_turn_of_query() {
            return false;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    fn activate(&self, active: bool) -> Result<(), gst::LoggableError> {
        if !active {
            self.end.items.stop();
            return Ok(self.end.src_pad.stop_task()?);
        }
        self.end.items.open();
        let element = self.obj().downgrade();
        Ok(self.end.src_pad.start_task(move || {
            if let Some(element) = element.upgrade() {
                element.imp().pass_one();
            }
        })?)
    }

    /// Waits for one item and passes it.
    fn pass_one(&self) {
        let Some(item) = self.end.items.next() else {
            let _ = self.end.src_pad.pause_task();
            return;
        };
        if let Err(error) = item.push(&self.end.src_pad) {
            let element = self.obj().clone().upcast::<gst::Element>();
            fail_or_report(&self.end.items, &element.downgrade(), error);
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
            .event_function(|pad, parent, event| {
                pad_function::<BlockingAdapter, _>(
                    parent,
                    || false,
                    |imp| imp.src_event(pad, event),
                )
            })
            .activatemode_function(|_, parent, mode, active| {
                let failed = || Err(gst::loggable_error!(crate::kit::CAT, "a panic"));
                pad_function::<BlockingAdapter, _>(parent, failed, |imp| match mode {
                    gst::PadMode::Push => imp.activate(active),
                    _ => Err(gst::loggable_error!(
                        crate::kit::CAT,
                        "the element supports only push mode"
                    )),
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
            end: QueueEnd {
                items,
                src_pad,
                reader: OwnThread,
            },
            sink_pad,
        }
    }
}

impl ObjectImpl for BlockingAdapter {
    crate::kit::properties_with_groups!(stats);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_pads(
            self.obj().upcast_ref(),
            &[&self.sink_pad, &self.end.src_pad],
        );
    }
}

impl GstObjectImpl for BlockingAdapter {}

impl ElementImpl for BlockingAdapter {
    crate::kit::element_class!(
        "Adapter to blocking elements",
        "Generic",
        "Runs the elements downstream on a separate thread, so that they may block";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::PausedToReady {
            // Threads blocked in a push return before the pads are deactivated.
            self.end.items.stop();
        }
        self.parent_change_state(transition)
    }
}
