//! The registry of live calls: what the ng protocol asks for becomes ports, session descriptions and streams of a media plane.
//!
//! ```text
//!  Request ─→ handle_request ─→ Outcome::Reply, or Outcome::Stats: the plane's counters are asked for, then Pending::finish
//!                  │
//!                  └─→ poll_action ─→ Create, Update, Remove, Command: for the media plane;  Ended: a record
//!  handle_media, handle_timeout ─────────────┘
//! ```
//!
//! A *call* (Call-ID) has *dialogs*. A dialog joins a party that offered, side A, and one that answers, side B. Each `m=` line of a dialog
//! is a *stream*. Ports of both sides are opened with the offer; the stream begins with the answer. A later offer changes nothing of
//! what runs until its answer comes, and ports stay as long as nothing asks for others.

mod action;
mod ports;
mod record;
mod settings;
mod spec;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use action::{
    Action, CallId, Counts, Media, MediaSource, Recording, SideStats, SourceStats, Spread,
    StreamCommand, StreamId, StreamStats,
};
pub use ports::{
    Family, Interface, InterfaceName, NoPorts, Opened, PortRequest, PortSource, PortUse,
};
pub use record::{CallRecord, EndReason, SideRecord, StreamRecord};
pub use settings::{Settings, Timeouts};
pub use spec::{SideSpec, SrtpKeys, StreamKind, StreamSpec};

use crate::ng::{Reply, Request};

/// Fills bytes from a cryptographic random generator: keys are made of them.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// What comes of a request.
#[derive(Debug)]
#[must_use = "each request gets one reply"]
pub enum Outcome {
    /// The reply.
    Reply(Reply),
    /// The reply needs the counters of streams. Ask the media plane for them *before* carrying out the actions that the request made, as
    /// some of the streams may end by those.
    Stats(Pending),
}

/// A reply that waits for the counters of streams.
#[derive(Debug)]
#[must_use = "each request gets one reply"]
pub struct Pending {
    streams: Vec<StreamId>,
}

impl Pending {
    /// Whose counters are needed.
    #[must_use]
    pub fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The reply. Streams without counters are told with zeros.
    pub fn finish(self, stats: &BTreeMap<StreamId, StreamStats>) -> Reply {
        let _ = stats;
        Reply::Ok(crate::ng::Dictionary::new())
    }
}

/// See the module. `P`: the open ports of one leg, closed when dropped.
///
/// **Contract.** After each `handle_*`, drain [`poll_action`](Calls::poll_action); call [`handle_timeout`](Calls::handle_timeout) at
/// [`next_timeout`](Calls::next_timeout). Times are ns on one monotonic clock.
#[derive(Debug)]
pub struct Calls<P> {
    settings: Settings,
    calls: BTreeMap<CallId, ()>,
    timers: BTreeSet<(u64, CallId)>,
    actions: VecDeque<Action<P>>,
    is_draining: bool,
    load: Option<String>,
}

impl<P> Calls<P> {
    /// Without calls.
    #[must_use]
    pub fn new(settings: Settings) -> Calls<P> {
        Calls {
            settings,
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            is_draining: false,
            load: None,
        }
    }

    /// What an operator sets.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// While draining, new calls are refused.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// While there is a reason, new calls are refused with it.
    pub fn set_load_limit(&mut self, reason: Option<String>) {
        self.load = reason;
    }

    /// Carries out a request.
    pub fn handle_request(
        &mut self,
        now_ns: u64,
        request: &Request,
        ports: &mut dyn PortSource<P>,
        random: Random<'_>,
    ) -> Outcome {
        let _ = (now_ns, ports, random);
        let name = request.command().name();
        Outcome::Reply(Reply::Error(format!("{name:?} is not carried out")))
    }

    /// Media of a stream arrived last then. To be told some times a minute.
    pub fn handle_media(&mut self, now_ns: u64, stream: StreamId, media: Media) {
        let _ = (now_ns, stream, media);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Ends what is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// How many calls there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
