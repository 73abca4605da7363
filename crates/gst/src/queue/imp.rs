//! Properties, pads and states of `ts-queue`.

use std::sync::{LazyLock, Mutex};

use gst::glib;
use gst::glib::subclass::Signal;
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Cx, Ready};

use crate::kit::context::{ContextSettings, Place};
use crate::kit::lock;
use crate::kit::queue::{Item, Notice, Queue as Items, QueueProperties};
use crate::kit::source::{Driver, Produced, Producer};
use crate::kit::time::RunningTime;

pub struct Queue {
    context: Mutex<ContextSettings>,
    properties: Mutex<QueueProperties>,
    items: Items,
    sink_pad: gst::Pad,
    src_pad: gst::Pad,
    driver: Driver<Popper>,
    place: Mutex<Bound>,
}

/// Where the downstream side runs, and the context the upstream side announced.
#[derive(Default)]
struct Bound {
    is_bound: bool,
    /// Upstream runs on the same thread, so that the queue adds no wait.
    shares_thread: bool,
}

/// The downstream side.
struct Popper {
    items: Items,
    element: glib::WeakRef<gst::Element>,
}

impl Producer for Popper {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        match self.items.pop(|| cx.waker()) {
            Some(Item::Buffer(buffer)) => Produced::Buffer(buffer),
            Some(Item::List(list)) => Produced::List(list),
            Some(Item::Event(event)) => Produced::Event(event),
            None => Produced::Idle,
        }
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        // Upstream has sent its last: nobody is left to see the error and report it.
        if self.items.fail(error)
            && let Some(element) = self.element.upgrade()
        {
            report_unseen(&element, error);
        }
    }
}

/// A flow error that is not the result of any push upstream.
fn report_unseen(element: &gst::Element, error: gst::FlowError) {
    if !matches!(error, gst::FlowError::Flushing | gst::FlowError::Eos) {
        gst::element_error!(
            element,
            gst::StreamError::Failed,
            ("Internal data stream error."),
            ["streaming stopped at the end of the stream, reason {error:?}"]
        );
    }
}

impl Queue {
    /// Puts the downstream side on a thread: that of the context the properties name, else the one the
    /// branch announces, else that of the context "".
    fn bind(&self, announced: Option<Place>) -> Result<(), gst::ErrorMessage> {
        let obj = self.obj();
        let element: &gst::Element = obj.upcast_ref();
        {
            let mut bound = lock(&self.place);
            if let Some(upstream) = &announced
                && let Some(own) = self.driver.place()
            {
                bound.shares_thread = own.shard.id() == upstream.shard.id();
            }
            if std::mem::replace(&mut bound.is_bound, true) {
                return Ok(());
            }
        }
        let settings = lock(&self.context).clone();
        let place = match announced {
            Some(place) if !settings.is_named() => {
                lock(&self.place).shares_thread = true;
                place
            }
            _ => settings.place(element)?,
        };
        let popper = Popper {
            items: self.items.clone(),
            element: element.downgrade(),
        };
        self.driver.add(element, &self.src_pad, place, popper)?;
        self.driver.start(RunningTime::default());
        Ok(())
    }

    fn bind_or_report(&self, announced: Option<Place>) -> Result<(), gst::FlowError> {
        if announced.is_none() && lock(&self.place).is_bound {
            return Ok(());
        }
        self.bind(announced).map_err(|error| {
            self.post_error_message(error);
            gst::FlowError::Error
        })
    }

    fn chain(&self, item: Item) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.bind_or_report(None)?;
        self.items.push(item).map(|()| gst::FlowSuccess::Ok)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        if let Some(place) = Place::announced(&event) {
            // Ours goes out instead, behind the stream's start.
            return self.bind_or_report(Some(place)).is_ok();
        }
        match event.type_() {
            gst::EventType::FlushStart => {
                let passed = gst::Pad::event_default(pad, Some(&*self.obj()), event);
                for sticky in self.items.flush(true) {
                    let _ = self.src_pad.store_sticky_event(&sticky);
                }
                passed
            }
            gst::EventType::FlushStop => {
                // A push from before the flush has returned, before anything comes after it.
                self.driver.await_pass();
                let passed = gst::Pad::event_default(pad, Some(&*self.obj()), event);
                self.items.flush(false);
                self.driver.restart();
                passed
            }
            kind if event.is_serialized() => {
                // The announcement, if there is one, comes right after the stream's start.
                if kind != gst::EventType::StreamStart && self.bind_or_report(None).is_err() {
                    return false;
                }
                match self.items.push_event(event) {
                    Ok(()) => true,
                    Err(refused) => {
                        // No push comes after the end that could tell of the error.
                        if kind == gst::EventType::Eos && !refused.seen {
                            report_unseen(self.obj().upcast_ref(), refused.error);
                        }
                        false
                    }
                }
            }
            _ => gst::Pad::event_default(pad, Some(&*self.obj()), event),
        }
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if query.is_serialized() && !self.reach_turn_of_query() {
            return false;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    /// A serialized query comes after everything that was pushed before it.
    fn reach_turn_of_query(&self) -> bool {
        if self.bind_or_report(None).is_err() {
            return false;
        }
        if threadbare_runtime::current_shard_id().is_none() {
            return self.items.wait_drained();
        }
        // A context thread cannot wait. On the queue's own thread it passes on what is queued itself; from
        // another one the query overtakes, which is better than no answer.
        let own = self
            .driver
            .place()
            .is_some_and(|place| place.shard.is_current());
        if own {
            self.pass_on_queued();
        }
        true
    }

    fn pass_on_queued(&self) {
        let waker = || {
            self.driver
                .waker()
                .unwrap_or_else(|| std::task::Waker::noop().clone())
        };
        while let Some(item) = self.items.pop(waker) {
            let result = match item {
                Item::Buffer(buffer) => self.src_pad.push(buffer).map(|_| ()),
                Item::List(list) => self.src_pad.push_list(list).map(|_| ()),
                Item::Event(event) => {
                    self.src_pad.push_event(event);
                    Ok(())
                }
            };
            if let Err(error) = result {
                self.items.fail(error);
                return;
            }
        }
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let gst::QueryViewMut::Latency(latency) = query.view_mut() else {
            return gst::Pad::query_default(pad, Some(&*self.obj()), query);
        };
        let mut upstream = gst::query::Latency::new();
        if !self.sink_pad.peer_query(&mut upstream) {
            return false;
        }
        let (is_live, min, max) = upstream.result();
        // On a context of its own, what passes may wait for one more slice.
        let added = match self.driver.place() {
            Some(_) if lock(&self.place).shares_thread => gst::ClockTime::ZERO,
            Some(place) => place.wait(),
            None => lock(&self.context).wait(),
        };
        latency.set(is_live, min + added, max.map(|max| max + added));
        true
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Queue {
    const NAME: &'static str = "ThreadbareQueue";
    type Type = super::Queue;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let error = || Err(gst::FlowError::Error);
        let sink_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "sink"))
            .chain_function(move |_, parent, buffer| {
                Queue::catch_panic_pad_function(parent, error, |imp| {
                    imp.chain(Item::Buffer(buffer))
                })
            })
            .chain_list_function(move |_, parent, list| {
                Queue::catch_panic_pad_function(parent, error, |imp| imp.chain(Item::List(list)))
            })
            .event_function(|pad, parent, event| {
                Queue::catch_panic_pad_function(parent, || false, |imp| imp.sink_event(pad, event))
            })
            .query_function(|pad, parent, query| {
                Queue::catch_panic_pad_function(parent, || false, |imp| imp.sink_query(pad, query))
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        let src_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "src"))
            .query_function(|pad, parent, query| {
                Queue::catch_panic_pad_function(parent, || false, |imp| imp.src_query(pad, query))
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        // The element does not exist yet: it is known through its pad once a notice is due.
        let pad = src_pad.downgrade();
        let items = Items::new(move |notice| {
            let element = pad.upgrade().and_then(|pad| pad.parent_element());
            if let Some(element) = element {
                let name = match notice {
                    Notice::Overrun => "overrun",
                    Notice::Underrun => "underrun",
                    Notice::Running => "running",
                };
                element.emit_by_name::<()>(name, &[]);
            }
        });
        Queue {
            context: Mutex::default(),
            properties: Mutex::new(QueueProperties(items.clone())),
            items,
            sink_pad,
            src_pad,
            driver: Driver::default(),
            place: Mutex::default(),
        }
    }
}

impl ObjectImpl for Queue {
    crate::kit::properties_of_groups!(context, properties);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            ["overrun", "underrun", "running"]
                .map(|name| Signal::builder(name).build())
                .into()
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        for pad in [&self.sink_pad, &self.src_pad] {
            self.obj()
                .add_pad(pad)
                .expect("a new element takes its pads");
        }
    }
}

impl GstObjectImpl for Queue {}

impl ElementImpl for Queue {
    crate::kit::element_class!(
        "Thread-sharing queue",
        "Generic",
        "Queues data between streaming threads; its downstream side runs on a context's thread";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => {
                self.items.flush(false);
                if lock(&self.context).is_named()
                    && let Err(error) = self.bind(None)
                {
                    self.post_error_message(error);
                    return Err(gst::StateChangeError);
                }
            }
            // Before the pads are deactivated, which waits for a pusher that waits here.
            gst::StateChange::PausedToReady => {
                self.items.flush(true);
            }
            _ => {}
        }
        let result = self.parent_change_state(transition);
        if transition == gst::StateChange::PausedToReady {
            self.driver.remove();
            self.items.flush(true);
            *lock(&self.place) = Bound::default();
        }
        result
    }
}
