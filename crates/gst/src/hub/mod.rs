//! Named links from one pipeline to others: the inside of proxies and inter pairs.
//!
//! A hub has one sink end. It has at most one outlet (a proxy), or any number of outlets (inter). The ends come and go in any
//! order. An outlet exists while its source element is active, and starts with the sink pad's sticky events. Each outlet has an
//! ordinary [`Queue`], so that back-pressure reaches the pushing thread without blocking a context.
//!
//! | field | thread |
//! |---|---|
//! | `state` | any thread, under its lock; never held across a push, a query or a wait |
//! | an outlet's `items` | writer and reader; see `kit::queue` |
//!
//! A proxy's sink waits for room in its outlet. An inter sink never waits: a full listener loses data.

mod elements;
mod sink;
mod source;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::Poll;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Guard, Monitor, Topics, until};

use crate::kit::lock;
use crate::kit::pending::{self, Hold};
use crate::kit::queue::{Item, QueueEnd, Refusal};
use crate::kit::source::Driver;

use source::StoppingReader;

pub(crate) use elements::register;

/// The allowed number of outlets, and the behaviour without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// One outlet; a push waits for it.
    Proxy,
    /// Any number; without one, data is dropped, like live data without a listener.
    Inter,
}

impl Kind {
    fn property(self) -> &'static str {
        match self {
            Kind::Proxy => "proxy-context",
            Kind::Inter => "inter-context",
        }
    }
}

/// Why an end cannot join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(
        "{}='{name}' already has a sink, and only one is possible; choose another name, or stop that sink first", kind.property()
    )]
    SinkTaken { kind: Kind, name: String },
    #[error(
        "{}='{name}' already has a source, and only one is possible; choose another name, or use ts-intersink and ts-intersrc for \
        several sources", kind.property()
    )]
    SourceTaken { kind: Kind, name: String },
}

impl From<JoinError> for gst::ErrorMessage {
    fn from(error: JoinError) -> Self {
        gst::error_msg!(gst::ResourceError::Busy, ["{error}"])
    }
}

/// A named link. It lives as long as one of its ends.
pub(crate) struct Hub {
    kind: Kind,
    state: Monitor<State>,
}

struct State {
    /// The pad of the sink element, while that element is in READY or above.
    sink: Option<glib::WeakRef<gst::Pad>>,
    /// Whether the sink accepts data.
    is_open: bool,
    has_source: bool,
    /// Replaced, never changed, so that a push can keep a list without allocating.
    outlets: Arc<[Arc<Outlet>]>,
    /// The stream's sticky events, for later sources. The sink pad stores an event only after handling it, too late for
    /// a source that joins in between.
    sticky: Vec<gst::Event>,
    /// Items that wait for an outlet, because their source runs on a context's thread. They are the output of one input.
    held: VecDeque<Item>,
    /// Number of times that the sink's pad was unlinked.
    unlinks: u64,
    dropped: u64,
}

/// A source's end.
pub(crate) type Outlet = QueueEnd<Driver<StoppingReader>>;

/// An outlet was added, or the sink has stopped.
const OUTLETS: Topics = Topics::of(0);

type Hubs = HashMap<(Kind, String), Weak<Hub>>;

static HUBS: LazyLock<Mutex<Hubs>> = LazyLock::new(Mutex::default);

impl Hub {
    fn of(kind: Kind, name: &str) -> Arc<Hub> {
        let mut hubs = lock(&HUBS);
        let key = (kind, name.to_owned());
        if let Some(known) = hubs.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let hub = Arc::new(Hub {
            kind,
            state: Monitor::new(State {
                sink: None,
                is_open: false,
                has_source: false,
                outlets: Arc::new([]),
                sticky: Vec::new(),
                held: VecDeque::new(),
                unlinks: 0,
                dropped: 0,
            }),
        });
        hubs.insert(key, Arc::downgrade(&hub));
        hub
    }

    fn state(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    fn monitor(&self) -> &Monitor<State> {
        &self.state
    }

    /// Occupies the sink's place, until [`Hub::leave_as_sink`].
    fn join_as_sink(kind: Kind, name: &str, pad: &gst::Pad) -> Result<Arc<Hub>, JoinError> {
        let hub = Hub::of(kind, name);
        let mut state = hub.state();
        if state.sink.is_some() {
            let name = name.to_owned();
            return Err(JoinError::SinkTaken { kind, name });
        }
        state.sink = Some(pad.downgrade());
        drop(state);
        Ok(hub)
    }

    fn leave_as_sink(&self) {
        let mut state = self.state();
        state.sink = None;
        state.dropped = 0;
    }

    /// Occupies a source's place, until [`Hub::leave_as_source`].
    fn join_as_source(kind: Kind, name: &str) -> Result<Arc<Hub>, JoinError> {
        let hub = Hub::of(kind, name);
        let mut state = hub.state();
        if kind == Kind::Proxy && std::mem::replace(&mut state.has_source, true) {
            let name = name.to_owned();
            return Err(JoinError::SourceTaken { kind, name });
        }
        drop(state);
        Ok(hub)
    }

    fn leave_as_source(&self) {
        self.state().has_source = false;
    }

    /// Starts or stops accepting data. Stopping releases waiting threads.
    fn open(&self, is_open: bool) {
        let discarded = {
            let mut state = self.state();
            state.is_open = is_open;
            state.wake(OUTLETS);
            (
                std::mem::take(&mut state.held),
                std::mem::take(&mut state.sticky),
            )
        };
        // This happens outside of the lock, because the owner of a buffer's memory may call the sink.
        drop(discarded);
        // Shutting a queue releases a thread that waits for room in a stalled outlet.
        for outlet in self.outlets().iter() {
            outlet.items.shut(!is_open);
        }
    }

    fn sink_pad(&self) -> Option<gst::Pad> {
        self.state().sink.as_ref()?.upgrade()
    }

    #[inline]
    fn outlets(&self) -> Arc<[Arc<Outlet>]> {
        self.state().outlets.clone()
    }

    /// Adds the outlet of a source that becomes active. It gets the sticky events first, then the items that waited for a source.
    fn add(&self, outlet: Arc<Outlet>) {
        let mut state = self.state();
        outlet.items.open();
        for event in &state.sticky {
            let _ = outlet.items.push_event(event.clone());
        }
        // The held items are the output of one input, and may exceed the limits of the outlet.
        for item in std::mem::take(&mut state.held) {
            let _ = match item {
                Item::Event(event) => outlet.items.push_event(event).map_err(Into::into),
                data => outlet.items.push_over(data),
            };
        }
        state.outlets = state.outlets.iter().cloned().chain([outlet]).collect();
        state.wake(OUTLETS);
    }

    /// Notes that the sink's pad was unlinked: its pusher must not wait any longer.
    fn unlink(&self) {
        let mut state = self.state();
        state.unlinks += 1;
        state.wake(OUTLETS);
        drop(state);
        for outlet in self.outlets().iter() {
            outlet.items.unlink();
        }
    }

    /// Removes the outlet of a source that has become inactive.
    fn remove(&self, outlet: &Arc<Outlet>) {
        let mut state = self.state();
        let others = state.outlets.iter().filter(|o| !Arc::ptr_eq(o, outlet));
        state.outlets = others.cloned().collect();
        drop(state);
        // This wakes a thread that waits for room in this outlet. It then looks for an outlet again: there is none, or a new
        // one.
        outlet.items.stop();
    }

    /// Pushes a buffer or list.
    fn push(self: &Arc<Self>, pad: &gst::Pad, item: Item) -> Result<(), gst::FlowError> {
        loop {
            let outlets = self.outlets();
            match (&*outlets, self.kind) {
                ([only], Kind::Proxy) => match only.items.push(Some(pad), item) {
                    // The source has stopped since then, and its queued items are dropped.
                    Err(gst::FlowError::Flushing) if self.is_gone(only) => {
                        self.state().dropped += 1;
                        return Ok(());
                    }
                    result => return result,
                },
                ([], Kind::Proxy) => {
                    if self.wait_for_outlet(pad, &item)? {
                        return Ok(());
                    }
                }
                (outlets, _) => return self.push_to_all(outlets, item),
            }
        }
    }

    fn push_to_all(&self, outlets: &[Arc<Outlet>], item: Item) -> Result<(), gst::FlowError> {
        // An outlet that fails or is full affects neither the others nor the sink.
        let mut is_taken = false;
        if let Some((last, others)) = outlets.split_last() {
            for outlet in others {
                is_taken |= outlet.items.push_or_drop(item.clone()).is_ok();
            }
            // The last listener gets the item itself, not a clone, so that a single listener can write into it.
            is_taken |= last.items.push_or_drop(item).is_ok();
        }
        if !is_taken {
            let mut state = self.state();
            if !state.is_open {
                return Err(gst::FlowError::Flushing);
            }
            state.dropped += 1;
        }
        Ok(())
    }

    fn is_gone(&self, outlet: &Arc<Outlet>) -> bool {
        let state = self.state();
        state.is_open && !state.outlets.iter().any(|o| Arc::ptr_eq(o, outlet))
    }

    /// Waits for a source. Returns `true` if the item is held for that source; then the pushing source waits instead of this
    /// thread.
    fn wait_for_outlet(
        self: &Arc<Self>,
        pad: &gst::Pad,
        item: &Item,
    ) -> Result<bool, gst::FlowError> {
        let mut state = self.state();
        if !state.is_open {
            return Err(gst::FlowError::Flushing);
        }
        if !state.outlets.is_empty() {
            return Ok(false);
        }
        let is_held = pending::can_defer();
        if is_held {
            state.held.push_back(item.clone());
        }
        let unlinks = state.unlinks;
        drop(state);
        if !pad.is_linked() {
            // The pad was unlinked during this push, but before `unlinks` was read. So no other signal will end the wait.
            self.unlink();
        }
        let arrival = until(self.clone(), Hub::monitor, OUTLETS, move |state| {
            if !state.is_open || state.unlinks != unlinks {
                return Poll::Ready(Err(gst::FlowError::Flushing));
            }
            if state.outlets.is_empty() {
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        });
        pending::wait(Hold::Source, arrival)?;
        Ok(is_held)
    }

    /// Pushes a serialized event.
    fn push_event(&self, event: &gst::Event) -> Result<(), Refusal<gst::FlowError>> {
        let outlets = {
            let mut state = self.state();
            if event.is_sticky() {
                state.remember(event);
            } else if !state.held.is_empty() {
                // The event comes after the items that wait for a source.
                state.held.push_back(Item::Event(event.clone()));
            }
            state.outlets.clone()
        };
        let mut result = Ok(());
        for outlet in outlets.iter() {
            let pushed = outlet.items.push_event(event.clone());
            if self.kind == Kind::Proxy {
                result = pushed;
            }
        }
        result
    }

    /// Forwards a flush.
    fn flush(&self, event: &gst::Event) -> bool {
        let outlets = self.outlets();
        let mut passed = true;
        for outlet in outlets.iter() {
            passed &= if event.type_() == gst::EventType::FlushStart {
                outlet.begin_flush(|| outlet.src_pad.push_event(event.clone()))
            } else {
                outlet.end_flush(event.clone())
            };
        }
        let discarded = {
            let mut state = self.state();
            state
                .sticky
                .retain(|e| !matches!(e.type_(), gst::EventType::Segment | gst::EventType::Eos));
            std::mem::take(&mut state.held)
        };
        drop(discarded);
        passed
    }
}

impl State {
    fn remember(&mut self, event: &gst::Event) {
        let kind = event.type_();
        if kind == gst::EventType::StreamStart {
            self.sticky.retain(|e| e.type_() != gst::EventType::Eos);
        }
        let name = |event: &gst::Event| event.structure().map(|s| s.name().to_owned());
        let is_same = |e: &&mut gst::Event| {
            e.type_() == kind && (!kind.is_sticky_multi() || name(e) == name(event))
        };
        match self.sticky.iter_mut().find(is_same) {
            Some(known) => *known = event.clone(),
            None => self.sticky.push(event.clone()),
        }
    }
}
