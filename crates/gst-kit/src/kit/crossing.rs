//! Connects a sink pad, into which any thread pushes, to a source pad on a context's thread.
//!
//! Both ends share a [`Queue`]. The element's [`Producer`] empties it, on a [`Driver`]. A [`Crossing`] implements the sink pad,
//! the source pad's queries and the state changes of an element with a queue inside, for any producer.
#![allow(missing_docs, reason = "no stable interface")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::context::{ContextSettings, Place};
use super::prefetch::{self, ElementMemory};
use super::queue::{Item, Queue, QueueEnd};
use super::source::{Driver, Producer};
use super::time::RunningTime;
use super::{lock, pad_function};

/// A queue, and the task that empties it.
pub struct Crossing<P: Producer> {
    end: QueueEnd<Driver<P>>,
    is_bound: AtomicBool,
    /// Whether upstream runs on the queue's thread. In this case, the queue adds no wait.
    shares_thread: AtomicBool,
    /// Running time for the task, while producing is allowed; otherwise `None`.
    running: Mutex<Option<RunningTime>>,
    make: Box<dyn Fn(&gst::Element) -> P + Send + Sync>,
    passes: Passes,
}

/// How the producer handles the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Pushes them unchanged.
    AsTheyAre,
    /// Handles them in an element-specific way before the push.
    Otherwise,
}

impl<P: Producer> Crossing<P> {
    pub fn new(
        items: Queue,
        src_pad: gst::Pad,
        passes: Passes,
        make: impl Fn(&gst::Element) -> P + Send + Sync + 'static,
    ) -> Self {
        Crossing {
            end: QueueEnd {
                items,
                src_pad,
                reader: Driver::default(),
            },
            is_bound: AtomicBool::new(false),
            shares_thread: AtomicBool::new(false),
            running: Mutex::default(),
            make: Box::new(make),
            passes,
        }
    }

    pub fn driver(&self) -> &Driver<P> {
        &self.end.reader
    }

    /// Adds the pads, and lists the memory that a push uses. Call it in `constructed`.
    pub fn add_to(&self, element: &impl IsA<gst::Element>, sink_pad: &gst::Pad) {
        let element = element.upcast_ref::<gst::Element>();
        for pad in [sink_pad, &self.end.src_pad] {
            element.add_pad(pad).expect("a new element takes its pads");
        }
        let memory = ElementMemory::at_end();
        memory.set([prefetch::span(self), self.end.items.span()]);
        memory.attach(element);
        self.end.items.follow_links(sink_pad);
    }

    /// Accepts items from now on. If the properties name a context, the task starts at once.
    pub fn open(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
    ) -> Result<(), gst::ErrorMessage> {
        let settings = lock(context).clone();
        settings.check()?;
        self.end.items.open();
        if settings.is_named() {
            self.bind(element, context, None)?;
        }
        Ok(())
    }

    /// Accepts items from now on, and produces them on the given thread.
    pub fn open_at(&self, element: &gst::Element, place: Place) -> Result<(), gst::ErrorMessage> {
        self.end.items.open();
        *lock(&self.running) = Some(RunningTime::default());
        self.add(element, place)
    }

    /// Returns the queue's end, for an element that handles its pads itself.
    pub fn end(&self) -> &QueueEnd<Driver<P>> {
        &self.end
    }

    /// Allows the task to produce. If the task does not exist yet, it starts when it is added.
    pub fn start(&self, time: RunningTime) {
        *lock(&self.running) = Some(time.clone());
        self.end.reader.start(time);
    }

    /// Pauses the task.
    pub fn pause(&self) {
        *lock(&self.running) = None;
        self.end.reader.pause();
    }

    /// Releases all waiting threads. Call it before deactivating the pads, because deactivation waits for a thread that is
    /// pushing, and that thread may wait here.
    pub fn release(&self) {
        self.end.items.stop();
    }

    /// Ends the task. Call it after deactivating the pads.
    pub fn close(&self) {
        self.end.reader.remove();
        self.end.items.stop();
        self.is_bound.store(false, Relaxed);
        self.shares_thread.store(false, Relaxed);
        *lock(&self.running) = None;
    }

    /// Chooses the thread of the downstream side, if none is chosen yet. If the properties name a context, it is a thread of that
    /// context. Otherwise it is the thread of the branch (`branch`), or a thread of the context "". In each call, this also
    /// records whether the caller is on that thread, because each stream may come from another thread.
    fn bind(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        branch: Option<Place>,
    ) -> Result<(), gst::ErrorMessage> {
        let latency_before = self.latency(context);
        let place = match self.end.reader.place() {
            Some(own) => own,
            None => {
                let settings = lock(context).clone();
                let place = match branch {
                    Some(place) if !settings.is_named() => place,
                    _ => settings.place(element)?,
                };
                self.add(element, place.clone())?;
                place
            }
        };
        self.shares_thread.store(place.shard.is_current(), Relaxed);
        if self.latency(context) != latency_before {
            let _ = element.post_message(gst::message::Latency::builder().src(element).build());
        }
        Ok(())
    }

    fn add(&self, element: &gst::Element, place: Place) -> Result<(), gst::ErrorMessage> {
        let producer = (self.make)(element);
        let driver = &self.end.reader;
        driver.add(element, &self.end.src_pad, place, producer)?;
        self.is_bound.store(true, Relaxed);
        // If another thread calls `start` at this moment, either that thread sees the driver, or this thread sees its time.
        let running = lock(&self.running).clone();
        if let Some(time) = running {
            driver.start(time);
        }
        Ok(())
    }

    /// Calls [`Self::bind`] at the start of a stream. The event may announce a place. Posts a message if `bind` fails.
    fn bind_or_report(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        start: Option<&gst::EventRef>,
    ) -> Result<(), gst::FlowError> {
        if start.is_none() && self.is_bound.load(Relaxed) {
            return Ok(());
        }
        let branch = start.and_then(Place::of_branch);
        self.bind(element, context, branch).map_err(|error| {
            element.post_error_message(error);
            gst::FlowError::Error
        })
    }

    /// Handles a buffer or list on the sink pad.
    pub fn chain(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        pad: &gst::Pad,
        item: Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.bind_or_report(element, context, None)?;
        self.end.items.push(Some(pad), item)?;
        Ok(gst::FlowSuccess::Ok)
    }

    /// Handles an event on the sink pad.
    pub fn sink_event(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        pad: &gst::Pad,
        event: gst::Event,
    ) -> bool {
        match event.type_() {
            gst::EventType::FlushStart => self
                .end
                .begin_flush(|| gst::Pad::event_default(pad, Some(element), event)),
            gst::EventType::FlushStop => self.end.end_flush(event),
            _ if event.is_serialized() => {
                let start = (event.type_() == gst::EventType::StreamStart).then_some(&*event);
                if self.bind_or_report(element, context, start).is_err() {
                    return false;
                }
                self.end.push_event(element, event)
            }
            _ => gst::Pad::event_default(pad, Some(element), event),
        }
    }

    /// Handles an event on the source pad.
    pub fn src_event(&self, element: &gst::Element, event: gst::Event) -> bool {
        self.end.notice_upstream(&event);
        gst::Pad::event_default(&self.end.src_pad, Some(element), event)
    }

    /// Handles a query on the sink pad.
    pub fn sink_query(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        if query.is_serialized() && !self.reach_turn_of_query(element, context) {
            return false;
        }
        gst::Pad::query_default(pad, Some(element), query)
    }

    /// Makes a serialized query wait for all earlier pushes.
    fn reach_turn_of_query(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
    ) -> bool {
        if self.bind_or_report(element, context, None).is_err() {
            return false;
        }
        // On the queue's own thread, the caller can push the queued items itself, so it does not wait.
        let own = (self.end.reader.place()).filter(|place| place.shard.is_current());
        match own {
            Some(place) if self.passes == Passes::AsTheyAre => self.pass_on_queued(&place),
            _ => self.end.reach_turn_of_query(),
        }
    }

    fn pass_on_queued(&self, place: &Place) -> bool {
        let waker = || {
            let waker = self.end.reader.waker();
            waker.unwrap_or_else(|| std::task::Waker::noop().clone())
        };
        while let Some(item) = self.end.items.pop(waker) {
            let item = match item {
                Item::Event(event) => Item::Event(place.announce(event)),
                data => data,
            };
            if let Err(error) = item.push(&self.end.src_pad) {
                self.end.items.fail(error);
                return false;
            }
        }
        true
    }

    /// Returns the latency that the change of thread adds: on a separate context, an item may wait for one more slice.
    pub fn latency(&self, context: &Mutex<ContextSettings>) -> gst::ClockTime {
        match self.end.reader.place() {
            Some(_) if self.shares_thread.load(Relaxed) => gst::ClockTime::ZERO,
            Some(place) => place.wait(),
            None => lock(context).wait(),
        }
    }
}

/// Pad functions of an element that is a [`Crossing`] between its two pads.
pub trait Crosses: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    type Producer: Producer;

    fn crossing(&self) -> &Crossing<Self::Producer>;

    fn context(&self) -> &Mutex<ContextSettings>;

    fn sink_pad(&self) -> &gst::Pad;

    /// Returns the latency at the source pad: that of upstream, plus that of the crossing.
    fn latency(&self, upstream: Latency, own: gst::ClockTime) -> Latency {
        let (is_live, min, max) = upstream;
        (is_live, min + own, max.map(|max| max + own))
    }
}

/// Answer to a latency query: whether the element is live, minimum and maximum.
pub type Latency = (bool, gst::ClockTime, Option<gst::ClockTime>);

/// Creates the sink pad of such an element.
pub fn sink_pad<E: Crosses>(template: &gst::PadTemplate) -> gst::Pad
where
    E::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    let chain = move |pad: &gst::Pad, parent: Option<&gst::Object>, item| {
        pad_function::<E, _>(parent, error, |imp| {
            let obj = imp.obj();
            imp.crossing()
                .chain(obj.upcast_ref(), imp.context(), pad, item)
        })
    };
    gst::Pad::builder_from_template(template)
        .chain_function(move |pad, parent, buffer| chain(pad, parent, Item::Buffer(buffer)))
        .chain_list_function(move |pad, parent, list| chain(pad, parent, Item::List(list)))
        .event_function(|pad, parent, event| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| {
                    let obj = imp.obj();
                    (imp.crossing()).sink_event(obj.upcast_ref(), imp.context(), pad, event)
                },
            )
        })
        .query_function(|pad, parent, query| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| {
                    let obj = imp.obj();
                    (imp.crossing()).sink_query(obj.upcast_ref(), imp.context(), pad, query)
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
        .build()
}

/// Creates the source pad of such an element.
pub fn src_pad<E: Crosses>(template: &gst::PadTemplate) -> gst::Pad
where
    E::Type: IsA<gst::Element>,
{
    gst::Pad::builder_from_template(template)
        .event_function(|_, parent, event| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| imp.crossing().src_event(imp.obj().upcast_ref(), event),
            )
        })
        .query_function(|pad, parent, query| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| {
                    let own = imp.crossing().latency(imp.context());
                    src_query(&*imp.obj(), imp.sink_pad(), pad, query, |upstream| {
                        imp.latency(upstream, own)
                    })
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
        .build()
}

/// Answers a query on the source pad of an element with one sink pad: `latency` adds to upstream's latency.
pub fn src_query(
    element: &impl IsA<gst::Object>,
    sink_pad: &gst::Pad,
    pad: &gst::Pad,
    query: &mut gst::QueryRef,
    latency: impl FnOnce(Latency) -> Latency,
) -> bool {
    let gst::QueryViewMut::Latency(answer) = query.view_mut() else {
        return gst::Pad::query_default(pad, Some(element), query);
    };
    let mut upstream = gst::query::Latency::new();
    if !sink_pad.peer_query(&mut upstream) {
        return false;
    }
    let (is_live, min, max) = latency(upstream.result());
    answer.set(is_live, min, max);
    true
}
