//! The registry of live calls. It carries out requests of the ng protocol: it opens ports, rewrites session descriptions, and tells the
//! media plane which streams to run.
//!
//! ```text
//!  Request ─→ handle_request ─→ Outcome::Reply, or Outcome::Stats: read the plane's counters, then Pending::finish
//!                  │
//!                  └─→ poll_action ─→ Create, Update, Remove, Command: for the media plane;  Ended: a record
//!  handle_media, handle_timeout ─────────────┘
//! ```
//!
//! A *call* (Call-ID) has *dialogs*. A dialog joins two parties: side A, which offered, and side B, which answers. Each `m=` line of a
//! dialog is a *stream*. The offer opens the ports of both sides, and the answer starts the stream. A later offer does not change running
//! streams before its answer comes. Ports stay the same unless a description needs others.
//!
//! ```
//! use threadbare_control::calls::*;
//! use threadbare_control::ng::{Dictionary, Reply, Request, Value};
//!
//! /// Ports as plain numbers.
//! struct Numbers(Vec<Interface>, u16);
//!
//! impl PortSource<u16> for Numbers {
//!     fn interfaces(&self) -> &[Interface] {
//!         &self.0
//!     }
//!
//!     fn open(&mut self, _request: &PortRequest) -> Result<Opened<u16>, NoPorts> {
//!         self.1 += 2;
//!         let address = |port| ([203, 0, 113, 7], port).into();
//!         Ok(Opened { ports: self.1, rtp: address(self.1), rtcp: Some(address(self.1 + 1)) })
//!     }
//! }
//!
//! let any = Interface { name: InterfaceName("any".into()), families: vec![Family::V4] };
//! let mut ports = Numbers(vec![any], 30_000);
//! let mut calls = Calls::new(Settings::default());
//! let mut ask = |command: &str, host: &str| {
//!     let mut keys = Dictionary::new();
//!     let sdp = format!("v=0\r\nc=IN IP4 {host}\r\nm=audio 4000 RTP/AVP 0\r\n");
//!     for (key, value) in [("call-id", "1"), ("from-tag", "a"), ("to-tag", "b"), ("sdp", &sdp), ("command", command)] {
//!         keys.push(key, Value::text(value));
//!     }
//!     let request = Request::new(keys)?;
//!     let outcome = calls.handle_request(0, &request, &mut ports, &mut |bytes| bytes.fill(0));
//!     assert!(matches!(outcome, Outcome::Reply(Reply::Ok(_))));
//!     Ok::<_, threadbare_control::ng::Refusal>(calls.poll_action())
//! };
//! assert!(ask("offer", "198.51.100.1")?.is_none());
//! let Some(Action::Create { ports, spec, .. }) = ask("answer", "198.51.100.2")? else {
//!     panic!("the stream begins with the answer");
//! };
//! assert_eq!(ports, [30_002, 30_004]);
//! assert_eq!(spec.sides[1].rtp, Some("198.51.100.2:4000".parse()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod answer;
mod attributes;
mod commands;
mod delete;
mod dialog;
mod early;
mod failure;
mod id;
mod live;
mod maps;
mod names;
mod offer;
mod options;
mod ports;
mod query;
mod reach;
mod read;
mod record;
mod rewrite;
mod saved;
mod sdes;
mod settings;
mod signals;
mod spec;
mod statistics;
mod subscribe;
mod transport;
mod warnings;
pub mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use threadbare_rtp_types::policy::MediaPolicy;

pub use action::{
    Action, Counts, Media, MediaSource, Quality, Recording, SideStats, SourceStats, StreamCommand,
    StreamStats,
};
pub use id::{CallId, StreamId};
pub use ports::{
    Family, Interface, InterfaceName, NoPorts, Opened, PortRequest, PortSource, PortUse,
};
pub use query::Pending;
pub use record::{CallRecord, CallView, EndReason, SideRecord, StreamRecord};
pub use saved::{SavedError, SavedPorts};
pub use settings::{Settings, Timeouts};
pub use spec::{Copied, Fallback, SideSpec, SrtpKeys, StreamKind, StreamSpec};

pub use statistics::Totals;
pub use words::Unknown;
use words::WordWarnings;

use dialog::{Dialog, Party, Slot};
use failure::Failure;
use live::{Live, PAST_MAX, Taken};

use crate::ng::{Command, Refusal, Reply, Request};

/// Fills bytes from a cryptographic random generator, for keys.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// The result of a request.
#[derive(Debug)]
#[must_use = "each request gets one reply"]
pub enum Outcome {
    /// The reply.
    Reply(Reply),
    /// The reply needs the counters of streams. Read them from the media plane *before* the request's actions, because these may
    /// end some of the streams.
    Stats(Pending),
}

/// The registry of live calls: see the module documentation. `P` is the type of the open ports of one leg. Dropping such a value closes the
/// ports.
///
/// **Contract.** After each `handle_*`, drain [`poll_action`](Calls::poll_action); call [`handle_timeout`](Calls::handle_timeout) at
/// [`next_timeout`](Calls::next_timeout). Times are ns on one monotonic clock.
#[derive(Debug)]
pub struct Calls<P> {
    settings: Settings,
    calls: BTreeMap<CallId, Live<P>>,
    /// The calls of started streams.
    streams: BTreeMap<StreamId, CallId>,
    timers: BTreeSet<(u64, CallId)>,
    actions: VecDeque<Action<P>>,
    next_stream: u64,
    /// Number of streams of all calls.
    taken: Taken,
    is_draining: bool,
    load: Option<String>,
    /// `None`: media may go to any address.
    media_policy: Option<Arc<MediaPolicy>>,
    /// Unknown words that [`poll_unknown`](Self::poll_unknown) has not returned yet.
    unknown: VecDeque<Unknown>,
    told: BTreeSet<Unknown>,
    unknown_words: u64,
    totals: Totals,
    /// Calls that have changed since they were last [exported](Self::export) to a store. `None`: no store is in use.
    changed: Option<BTreeSet<CallId>>,
}

fn with_warnings(mut outcome: Outcome, warnings: WordWarnings) -> Outcome {
    if let Outcome::Reply(Reply::Ok(keys)) = &mut outcome {
        warnings.tell(keys);
    }
    outcome
}

/// Limit of reported unknown words. Only a fuzzer sends more.
const TOLD_MAX: usize = 256;

impl<P> Calls<P> {
    /// Creates an empty registry.
    #[must_use]
    pub fn new(settings: Settings) -> Calls<P> {
        Calls {
            settings,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            next_stream: 0,
            taken: Taken::default(),
            is_draining: false,
            load: None,
            media_policy: None,
            unknown: VecDeque::new(),
            told: BTreeSet::new(),
            unknown_words: 0,
            totals: Totals::default(),
            changed: None,
        }
    }

    /// Returns the operator's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings. Time-outs that are already running keep their starting points.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        let ids: Vec<CallId> = self.calls.keys().cloned().collect();
        ids.iter().for_each(|id| self.schedule(id));
    }

    /// Sets the policy for media addresses. If a description has an address that the policy forbids, no media are sent there. Running calls
    /// do not change.
    pub fn set_media_policy(&mut self, policy: Arc<MediaPolicy>) {
        self.media_policy = Some(policy);
    }

    /// Starts or ends draining. While the registry drains, it refuses new calls.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Whether the registry is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Sets the reason why new calls are refused. `None`: they are accepted.
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
        let supports = request.texts("supports").unwrap_or_default();
        let supports_load_limit = supports
            .iter()
            .any(|one| matches!(*one, "load limit" | "load-limit"));
        self.totals.count_request(request.command());
        let done = match self.check(request) {
            Err(refusal) => Err(refusal.into()),
            Ok(warnings) => self
                .dispatch(now_ns, request, ports, random)
                .map(|outcome| with_warnings(outcome, warnings)),
        };
        if done.is_ok() {
            self.note_request(request);
        }
        done.unwrap_or_else(|failure| {
            self.totals.count_failure(&failure);
            Outcome::Reply(failure.into_reply(supports_load_limit))
        })
    }

    /// Returns the next unknown word: one that is in no table and that no earlier request contained. Each word is returned once.
    pub fn poll_unknown(&mut self) -> Option<Unknown> {
        self.unknown.pop_front()
    }

    /// Returns the number of words in requests that the table of words does not contain. Repeated words are counted again.
    #[must_use]
    pub fn unknown_words(&self) -> u64 {
        self.unknown_words
    }

    /// Checks the words of a request against the tables.
    fn check(&mut self, request: &Request) -> Result<WordWarnings, Refusal> {
        let (told, unknown) = (&mut self.told, &mut self.unknown);
        let words = &mut self.unknown_words;
        words::check(request, &mut |word| {
            *words += 1;
            if told.len() < TOLD_MAX && told.insert(word.clone()) {
                unknown.push_back(word);
            }
        })
    }

    fn dispatch(
        &mut self,
        now_ns: u64,
        request: &Request,
        ports: &mut dyn PortSource<P>,
        random: Random<'_>,
    ) -> Result<Outcome, Failure> {
        match request.command() {
            Command::Offer => signals::handle_offer(self, now_ns, request, ports, random),
            Command::Answer => signals::handle_answer(self, now_ns, request),
            Command::Delete => delete::handle_delete(self, now_ns, request),
            Command::Query => delete::handle_query(self, request),
            Command::List => delete::handle_list(self, request),
            Command::Ping => Ok(Outcome::Reply(Reply::Pong)),
            Command::Statistics => Ok(statistics::handle_statistics(self, now_ns)),
            Command::SubscribeRequest => {
                subscribe::handle_subscribe_request(self, now_ns, request, ports, random)
            }
            Command::SubscribeAnswer => subscribe::handle_subscribe_answer(self, now_ns, request),
            Command::Unsubscribe => subscribe::handle_unsubscribe(self, now_ns, request),
            Command::Publish => subscribe::handle_publish(self, now_ns, request, ports, random),
            _ => commands::handle_media_command(self, request),
        }
    }

    /// Notes that a request may have changed its call, so that the call is saved again.
    fn note_request(&mut self, request: &Request) {
        use Command::{List, Ping, Query, Statistics};
        let is_question = matches!(request.command(), Ping | Query | List | Statistics);
        if self.changed.is_some()
            && !is_question
            && let Ok(Some(name)) = request.bytes("call-id")
        {
            self.note_change(&CallId::new(name));
        }
    }

    /// Notes that a call has changed, for [`poll_changed`](Self::poll_changed).
    fn note_change(&mut self, id: &CallId) {
        if let Some(changed) = &mut self.changed {
            changed.insert(id.clone());
        }
    }

    /// Notes the times of a stream's last media. Call it a few times a minute.
    pub fn handle_media(&mut self, now_ns: u64, stream: StreamId, media: Media) {
        let call = self
            .streams
            .get(&stream)
            .and_then(|id| self.calls.get_mut(id));
        if let Some(call) = call {
            let [a, b] = media
                .heard_ns
                .map(|at_ns| at_ns.map(|at_ns| at_ns.min(now_ns)));
            // The call's timer is not set again here. It reads this time when it fires.
            call.heard_ns = call.heard_ns.max(a).max(b);
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// Ends all calls and dialogs whose time is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some((due_ns, id)) = self.timers.first().cloned()
            && due_ns <= now_ns
        {
            self.expire(now_ns, &id);
            self.schedule(&id);
        }
    }

    /// Ends a call. Returns `false` if the call does not exist.
    pub fn end(&mut self, now_ns: u64, id: &CallId, reason: EndReason) -> bool {
        let Some(call) = self.calls.remove(id) else {
            return false;
        };
        if let Some(due_ns) = call.timer_ns {
            self.timers.remove(&(due_ns, id.clone()));
        }
        self.count(call.taken, Taken::default());
        self.note_change(id);
        self.finish(now_ns, call, reason);
        true
    }

    /// Whether the call exists.
    #[must_use]
    pub fn has(&self, id: &CallId) -> bool {
        self.calls.contains_key(id)
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of media streams that have ports.
    #[must_use]
    pub fn streams_len(&self) -> usize {
        self.taken.streams
    }

    /// Whether the registry is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the names of all calls in order, starting after `after`.
    pub fn ids(&self, after: Option<&CallId>) -> impl Iterator<Item = &CallId> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.calls
            .range::<CallId, _>((from, Bound::Unbounded))
            .map(|(id, _)| id)
    }

    /// Returns a view of a call.
    #[must_use]
    pub fn view(&self, id: &CallId) -> Option<CallView> {
        let call = self.calls.get(id)?;
        let timeouts = &self.settings.timeouts;
        let dialogs = call.dialogs.iter().filter_map(|one| one.end(timeouts));
        let mut streams = call.past.clone();
        for dialog in &call.dialogs {
            streams.extend(
                dialog
                    .slots
                    .iter()
                    .flatten()
                    .map(|slot| record(slot, &dialog.parties)),
            );
        }
        for dialog in &call.dialogs {
            let fresh = dialog
                .offer
                .iter()
                .flat_map(|offer| offer.fresh.iter().flatten());
            streams.extend(fresh.map(|slot| record(slot, &dialog.parties)));
        }
        Some(CallView {
            created_ns: call.created_ns,
            signalled_ns: call.signalled_ns,
            answered_ns: call.answered_ns,
            heard_ns: call.heard_ns,
            end: dialogs
                .chain(call.end(timeouts))
                .min_by_key(|(due_ns, _)| *due_ns),
            streams,
        })
    }

    /// Returns the last specification of a stream, with its call.
    #[must_use]
    pub fn stream(&self, stream: StreamId) -> Option<(&CallId, &StreamSpec)> {
        let call = self.calls.get(self.streams.get(&stream)?)?;
        let mut slots = call.dialogs.iter().flat_map(Dialog::streams);
        let slot = slots.find(|slot| slot.stream == stream)?;
        Some((&call.id, slot.running.as_deref()?))
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the number of streams, and how many of them are transcoded.
    #[must_use]
    pub fn streams(&self) -> [usize; 2] {
        let slots = self.calls.values().flat_map(|call| &call.dialogs);
        let specs = slots
            .flat_map(|one| one.streams())
            .filter_map(|slot| slot.running.as_deref());
        specs.fold([0, 0], |[all, made], spec| {
            [all + 1, made + usize::from(statistics::is_transcoded(spec))]
        })
    }

    fn schedule(&mut self, id: &CallId) {
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        let takes = call.takes();
        let took = std::mem::replace(&mut call.taken, takes);
        let due_ns = call.next_timeout(&self.settings.timeouts);
        let before = std::mem::replace(&mut call.timer_ns, due_ns);
        if before != due_ns {
            before.map(|due_ns| self.timers.remove(&(due_ns, id.clone())));
            due_ns.map(|due_ns| self.timers.insert((due_ns, id.clone())));
        }
        self.count(took, takes);
    }

    /// Updates the totals after the number of a call's streams has changed.
    fn count(&mut self, before: Taken, now: Taken) {
        let Taken {
            streams,
            unanswered,
        } = &mut self.taken;
        *streams = *streams + now.streams - before.streams;
        *unanswered = *unanswered + now.unanswered - before.unanswered;
    }

    /// Ends the call, or the first of its dialogs, if its time is over.
    fn expire(&mut self, now_ns: u64, id: &CallId) {
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        let timeouts = &self.settings.timeouts;
        let is_over = |end: Option<(u64, EndReason)>| end.filter(|(due_ns, _)| *due_ns <= now_ns);
        if let Some((_, reason)) = is_over(call.end(timeouts)) {
            self.end(now_ns, id, reason);
            return;
        }
        let over = call
            .dialogs
            .iter()
            .position(|one| is_over(one.end(timeouts)).is_some());
        let Some(at) = over else {
            return;
        };
        let reason = call.dialogs[at].end(timeouts).map(|(_, reason)| reason);
        self.end_dialog(now_ns, id, at, reason.unwrap_or(EndReason::Deleted));
    }

    /// Ends a dialog. With its last dialog, the call ends too.
    fn end_dialog(&mut self, now_ns: u64, id: &CallId, at: usize, reason: EndReason) {
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        // Copies cannot outlive the last original, so the call ends if only copies are left.
        let others = call.dialogs.iter().enumerate();
        if others
            .filter(|(other, _)| *other != at)
            .all(|(_, one)| one.is_copy())
        {
            self.end(now_ns, id, reason);
            return;
        }
        let dialog = call.dialogs.remove(at);
        let is_copy = dialog.is_copy();
        let records = close(&mut self.actions, &mut self.streams, dialog);
        let room = PAST_MAX.saturating_sub(call.past.len());
        call.past.extend(records.into_iter().take(room));
        self.note_change(id);
        if !is_copy {
            self.follow(now_ns, id);
        }
    }

    /// Updates the copies of a call's streams after the originals have changed.
    fn follow(&mut self, now_ns: u64, id: &CallId) {
        subscribe::follow(self, now_ns, id);
    }

    fn finish(&mut self, now_ns: u64, call: Live<P>, reason: EndReason) {
        self.totals
            .count_end(reason, now_ns.saturating_sub(call.created_ns));
        let mut streams = call.past;
        for dialog in call.dialogs {
            streams.extend(close(&mut self.actions, &mut self.streams, dialog));
        }
        let record = Box::new(CallRecord {
            call: call.id,
            created_ns: call.created_ns,
            answered_ns: call.answered_ns,
            ended_ns: now_ns,
            reason,
            streams,
        });
        self.actions.push_back(Action::Ended { record });
    }
}

/// Ends the streams of a dialog, and closes its ports. Returns the records of the streams.
fn close<P>(
    actions: &mut VecDeque<Action<P>>,
    streams: &mut BTreeMap<StreamId, CallId>,
    dialog: Dialog<P>,
) -> Vec<StreamRecord> {
    let parties = dialog.parties;
    let fresh = dialog.offer.into_iter().flat_map(|offer| offer.fresh);
    let mut records = Vec::new();
    for slot in dialog.slots.into_iter().chain(fresh).flatten() {
        records.push(record(&slot, &parties));
        remove(actions, streams, &slot);
    }
    records
}

/// Ends the stream of a slot, if it has started.
fn remove<P>(
    actions: &mut VecDeque<Action<P>>,
    streams: &mut BTreeMap<StreamId, CallId>,
    slot: &Slot<P>,
) {
    let stream = slot.stream;
    if streams.remove(&stream).is_some() {
        actions.push_back(Action::Remove { stream });
    }
}

fn record<P>(slot: &Slot<P>, parties: &[Party; 2]) -> StreamRecord {
    let side = |place: usize| {
        let spec = slot.running.as_deref().map(|spec| &spec.sides[place]);
        let srtp = spec.and_then(|spec| spec.srtp.as_ref());
        let tag = parties[place].tag.as_deref().unwrap_or_default();
        SideRecord {
            tag: String::from_utf8_lossy(tag).into_owned(),
            label: parties[place].label.clone(),
            codec: spec
                .and_then(|spec| spec.codec.as_deref())
                .map(str::to_owned),
            rtp: spec.and_then(|spec| spec.rtp),
            advertised: Some(slot.local[place].rtp),
            crypto_suite: srtp.map(|keys| keys.send.suite().name()),
        }
    };
    StreamRecord {
        stream: slot.stream,
        media: slot.media.clone(),
        sides: [side(0), side(1)],
    }
}
