//! Spreads streams and calls over the nodes of a cluster, which share a store (etcd). This crate is the state machine of one
//! node, without I/O.
//!
//! Inputs are the time, changes of the store's keys, and answers to transactions. Outputs are transactions, and the streams to
//! start and stop. A node that sends a stream *carries* it. A [`Member`] trusts only its own monotonic clock. It assumes that the
//! rates of two nodes' clocks differ by at most [`Timing::DRIFT_PERCENT`].
//!
//! - A node renews its own key ([`Key::Node`]) with a transaction that compares the revision of its last renewal. It may send
//!   only while the last *confirmed* renewal is younger than [`Timing::valid_ns`]. The age is counted from the time at which
//!   the renewal was sent. Media threads compare [`Member::send_until_ns`] with their clock before each batch, so that a
//!   process that was frozen sends nothing when it wakes.
//! - If other nodes see no renewal for that time and a margin, they take the node's streams. First they delete its key, with a
//!   transaction that compares the last revision that they saw. So either that transaction or the node's next renewal fails. A
//!   claim names one life of a node. When that life has no key, the claim is free. Each change of a claim is a transaction that
//!   compares the claim's revision and the life of the node that makes the change.
//! - When a stream moves, the gap is so short that a jitter buffer hides it. The owner names the next node, which prepares the
//!   stream. The next node then becomes the owner of the claim, with the previous owner as its *deputy*. The deputy continues
//!   to send under its own lease until it sees the change of the claim. Then it stops, and sends its position (SSRC, numbers,
//!   times) to the new owner. So nothing waits for the store between the last packet of one node and the first packet of the
//!   other. The position is also written to the store, in case the message is lost.
//! - A call stays where it was made. Its owner claims it, and other nodes forward requests for it to the owner.
//! - A *service* consists of the addresses at which a node receives calls, and of these calls. A node claims it, and hands it
//!   over, like a stream. A node that takes over a service reads the states of its calls.
//!
//! After each call of a `handle_` or `set_` function, drain [`Member::poll_action`] and read [`Member::next_timeout`].
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod calls;
mod keys;
mod lease;
mod nodes;
mod place;
mod store;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use self::calls::Ledger;
pub use self::calls::Location;
pub use self::keys::{
    CALLS, CallClaim, CallName, Claim, Declaration, Epoch, Incarnation, Key, Kind, Life, Link,
    NodeName, NodeRecord, OnIsolation, PREFIX, Release, Revision, STATES, StreamName, Unreadable,
    VALUE_BYTES_MAX, Value, WEIGHT_MAX, WEIGHT_MIN, is_weight,
};
use self::lease::Standing;
use self::nodes::Nodes;
pub use self::store::{Compare, Entry, Operation, Outcome, Reply, RequestId, Transaction};
use self::store::{Request, Requests, What};
use self::streams::Tracked;

/// A node's settings in its cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The node's name: unique in the cluster.
    pub name: NodeName,
    /// The node's share of the streams, relative to other nodes: [`WEIGHT_MIN`] to [`WEIGHT_MAX`].
    pub weight: f64,
    /// The node's labels.
    pub labels: Vec<Arc<str>>,
    /// The address to which other nodes connect, to see whether the process is alive.
    pub link: Option<Link>,
    /// The times of the cluster: the same on all nodes.
    pub timing: Timing,
}

/// The times of a cluster. All nodes must have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Interval of renewals.
    pub renew_ns: u64,
    /// How long a node may send, counted from the time at which it sent its last confirmed renewal.
    pub valid_ns: u64,
    /// How much longer than that other nodes wait before they take the node's streams.
    pub margin_ns: u64,
    /// How long to wait for an answer of the store.
    pub request_ns: u64,
}

impl Timing {
    /// Maximum difference between the rates of two nodes' clocks, in percent.
    pub const DRIFT_PERCENT: u64 = 2;

    /// Returns how long a node must be silent before other nodes take its streams.
    #[must_use]
    pub fn death_ns(&self) -> u64 {
        self.valid_ns + self.valid_ns * Self::DRIFT_PERCENT / 100 + self.margin_ns
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            renew_ns: 250_000_000,
            valid_ns: 900_000_000,
            margin_ns: 50_000_000,
            request_ns: 500_000_000,
        }
    }
}

/// An action that the caller must take.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send the transaction to the store, and pass the answer to [`Member::handle_reply`].
    Commit(Transaction),
    /// The stream is about to be handed over to this node. Open its input, and confirm with [`Member::handle_prepared`].
    Prepare {
        /// The stream.
        stream: StreamName,
        /// The number that this owner will get.
        epoch: Epoch,
    },
    /// Carry the stream, while [`Member::send_until_ns`] allows it.
    Start {
        /// The stream.
        stream: StreamName,
        /// This owner's number.
        epoch: Epoch,
        /// The position at which the previous owner, or this node itself, has just stopped the stream. Empty: the position is
        /// unknown.
        resume: Vec<u8>,
    },
    /// Stop the stream now. Then send the owner a message ([`Member::release`]), and pass the position to
    /// [`Member::handle_handed_over`].
    HandOver {
        /// The stream.
        stream: StreamName,
    },
    /// Stop the stream, or the preparation, now.
    Stop {
        /// The stream.
        stream: StreamName,
    },
    /// After [`Member::claim_call`]: the store now has this node as the owner of the call.
    CallClaimed {
        /// The call.
        call: CallName,
    },
    /// Another node has the call. End it here; it need not be released.
    CallTaken {
        /// The call.
        call: CallName,
        /// The node that has it.
        owner: Life,
    },
    /// The store has not answered a claim in time. The member continues to try to write the claim.
    CallUnclaimed {
        /// The call.
        call: CallName,
    },
}

/// A node of a cluster.
#[derive(Debug)]
pub struct Member {
    settings: Settings,
    draining: bool,
    random: u64,
    standing: Standing,
    nodes: Nodes,
    streams: BTreeMap<StreamName, Tracked>,
    /// Streams that have changed.
    dirty: BTreeSet<StreamName>,
    /// Whether the view of the store is complete, and changes arrive.
    is_synced: bool,
    /// Revision of the store that the view shows.
    revision: Revision,
    requests: Requests,
    next_request: u64,
    /// Streams that are being handed over, and streams for which another node would be better.
    moving: BTreeSet<StreamName>,
    wishes: BTreeMap<StreamName, Life>,
    ledger: Ledger,
    /// Room for new calls, in percent.
    room: Option<u8>,
    actions: VecDeque<Action>,
}

impl Member {
    /// Creates a node, which requests its key at `now_ns`. `seed`: seed for the random numbers of the node's lives. Two processes
    /// must never use the same seed.
    ///
    /// # Panics
    /// Panics if the weight is not valid ([`is_weight`]).
    #[must_use]
    pub fn new(now_ns: u64, settings: Settings, seed: u64) -> Member {
        assert!(is_weight(settings.weight), "weight {}", settings.weight);
        let mut member = Member {
            standing: Standing::Out {
                next_ns: now_ns,
                asked: None,
            },
            nodes: Nodes::new(settings.timing.death_ns()),
            settings,
            draining: false,
            random: seed,
            streams: BTreeMap::new(),
            dirty: BTreeSet::new(),
            is_synced: false,
            revision: Revision::ABSENT,
            requests: Requests::default(),
            next_request: 0,
            moving: BTreeSet::new(),
            wishes: BTreeMap::new(),
            ledger: Ledger::default(),
            room: None,
            actions: VecDeque::new(),
        };
        lease::begin_life(&mut member);
        member
    }

    /// Handles a snapshot: all keys below [`PREFIX`] at one revision. Call this at the start, and whenever changes may have
    /// been missed. Keys that are not in the snapshot do not exist.
    pub fn handle_snapshot(&mut self, now_ns: u64, revision: Revision, entries: Vec<Entry>) {
        if revision < self.revision {
            return;
        }
        let known: BTreeSet<&Key> = entries.iter().map(|entry| &entry.key).collect();
        let nodes = self.nodes.names().cloned().map(Key::Node);
        let declared = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_declared());
        let declared = declared.map(|(name, _)| Key::Stream(name.clone()));
        let claimed = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_claimed());
        let claimed = claimed.map(|(name, _)| Key::Claim(name.clone()));
        let gone: Vec<Key> = nodes
            .chain(declared)
            .chain(claimed)
            .filter(|key| !known.contains(key))
            .collect();
        for key in gone {
            self.note(now_ns, key, None, revision);
        }
        for entry in entries {
            let at = entry.modified;
            self.note(now_ns, entry.key.clone(), Some(entry), at);
        }
        (self.is_synced, self.revision) = (true, revision);
        // This includes streams that are gone, because no change of them will come any more.
        self.look_at_all();
        self.go_on(now_ns);
    }

    /// Handles a change of a key, at a later revision than all earlier changes. `None`: the key was deleted.
    pub fn handle_change(&mut self, now_ns: u64, key: Key, entry: Option<Entry>, at: Revision) {
        self.revision = self.revision.max(at);
        self.note(now_ns, key, entry, at);
        self.go_on(now_ns);
    }

    /// Handles that the watch has failed. Changes may be missed until the next snapshot.
    pub fn handle_cut(&mut self) {
        self.is_synced = false;
    }

    /// Handles an answer of the store.
    pub fn handle_reply(&mut self, now_ns: u64, reply: Reply) {
        let Some(request) = self.requests.remove(reply.id) else {
            return;
        };
        match &request.what {
            What::Join | What::Renew => lease::renewed(self, now_ns, &request, &reply),
            What::Bury(name) => self.nodes.set_asked(name, false),
            What::Stream(name) => self.answered(name, &request),
            What::Call(name) => self.ledger.answered(name, &request),
        }
        match reply.outcome {
            Outcome::Committed(at) => {
                for operation in request.transaction.then {
                    let (key, entry) = operation.applied(at, &request.transaction.when);
                    self.note(now_ns, key, entry, at);
                }
            }
            Outcome::Refused { now, at } => {
                for (key, entry) in now {
                    let at = entry.as_ref().map_or(at, |entry| entry.modified);
                    self.note(now_ns, key, entry, at);
                }
            }
        }
        self.go_on(now_ns);
    }

    /// Handles that the process of a life has certainly ended, because its machine refuses connections to the process. Other
    /// nodes then do not wait for the end of that life's lease.
    pub fn handle_ended(&mut self, now_ns: u64, life: &Life) {
        self.nodes.expect_dead(now_ns, life);
        self.go_on(now_ns);
    }

    /// Handles that the input of a stream has media, after [`Action::Prepare`].
    pub fn handle_prepared(&mut self, now_ns: u64, stream: &StreamName) {
        self.prepared(stream);
        self.go_on(now_ns);
    }

    /// Handles that a stream has stopped, after [`Action::HandOver`]. `resume`: the position.
    pub fn handle_handed_over(&mut self, now_ns: u64, stream: &StreamName, resume: Vec<u8>) {
        self.stopped(stream, resume);
        self.go_on(now_ns);
    }

    /// Handles a deputy's message that it has stopped. `resume`: the position. The caller must have verified that the message
    /// is from that node.
    pub fn handle_released(&mut self, now_ns: u64, release: Release, resume: Vec<u8>) {
        self.released(release, resume);
        self.go_on(now_ns);
    }

    /// Starts or ends draining: a draining node hands over its streams and takes none.
    pub fn set_draining(&mut self, now_ns: u64, draining: bool) {
        self.draining = draining;
        lease::renew_soon(self, now_ns);
        self.go_on(now_ns);
    }

    /// Handles the time-out of [`Member::next_timeout`].
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.go_on(now_ns);
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time at which to call [`Member::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> u64 {
        let requests = self.requests.next_ns().into_iter();
        let own = lease::next_renewal(self)
            .into_iter()
            .chain(self.ledger.next_ns());
        let next = requests.chain(own).min();
        let deaths = self.nodes.next_ns();
        next.unwrap_or(u64::MAX).min(deaths)
    }

    /// Returns the time until which the media threads may send the started streams, on this node's monotonic clock. It does not
    /// apply to streams with [`OnIsolation::Continue`].
    #[must_use]
    pub fn send_until_ns(&self) -> u64 {
        match &self.standing {
            Standing::In(lease) => lease.confirmed_ns + self.settings.timing.valid_ns,
            Standing::Out { .. } => 0,
        }
    }

    /// Returns this node's current life.
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            node: self.settings.name.clone(),
            incarnation: self.nodes.own,
        }
    }

    /// Returns the streams that this node carries.
    pub fn carried(&self) -> impl Iterator<Item = &StreamName> {
        let running = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_running());
        running.map(|(name, _)| name)
    }

    /// Whether streams are being handed over to other nodes, so that their positions are not written yet.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Returns the nodes that are known to be alive, including this one.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeRecord)> {
        self.nodes.all()
    }

    /// Returns the current lives of [`nodes`](Self::nodes).
    pub fn lives_of_nodes(&self) -> impl Iterator<Item = Life> {
        self.nodes.names().filter_map(|name| self.nodes.life(name))
    }

    /// Returns the known owner of a stream.
    #[must_use]
    pub fn owner(&self, stream: &StreamName) -> Option<&Life> {
        let claim = self.streams.get(stream)?.claim()?;
        Some(&claim.owner)
    }

    /// Whether this node carries the stream.
    #[must_use]
    pub fn carries(&self, stream: &StreamName) -> bool {
        self.streams.get(stream).is_some_and(Tracked::is_running)
    }

    /// Returns the message that this node, as the deputy of a claim, must send to the owner after it has stopped.
    #[must_use]
    pub fn release(&self, stream: &StreamName) -> Option<Release> {
        let (claim, me) = (self.streams.get(stream)?.claim()?, self.life());
        (claim.deputy.as_ref() == Some(&me)).then(|| Release {
            stream: stream.clone(),
            epoch: claim.epoch,
            from: me,
            to: claim.owner.clone(),
        })
    }

    /// Returns the deputy that still carries a stream for its owner. `None`: the claim has no deputy.
    #[must_use]
    pub fn deputy(&self, stream: &StreamName) -> Option<&Life> {
        self.streams.get(stream)?.claim()?.deputy.as_ref()
    }

    /// Returns the lives of the nodes that are about to take over streams from this node.
    pub fn successors(&self) -> impl Iterator<Item = &Life> {
        let claims = self.moving.iter();
        let claims = claims.filter_map(|stream| self.streams.get(stream)?.claim());
        claims.filter_map(|claim| claim.next.as_ref())
    }

    /// Returns the node that would carry a stream if this node ended, as far as this node knows.
    #[must_use]
    pub fn heir(&self, stream: &StreamName) -> Option<Life> {
        let own = &self.settings.name;
        let name = self.streams.get(stream)?.best_without(own, &self.nodes)?;
        self.nodes.life(&name)
    }

    /// Returns the declared streams, with their declarations and known claims.
    pub fn streams(&self) -> impl Iterator<Item = (&StreamName, &Declaration, Option<&Claim>)> {
        self.streams.iter().filter_map(|(name, stream)| {
            let declaration = stream.declaration()?;
            Some((name, declaration, stream.claim()))
        })
    }

    /// Returns the declaration of a stream. `None`: the stream is not declared.
    #[must_use]
    pub fn declaration(&self, stream: &StreamName) -> Option<&Declaration> {
        self.streams.get(stream)?.declaration()
    }

    /// Returns the condition for replacing the current declaration of a stream: no other node has written one in the meantime.
    #[must_use]
    pub fn still_declared(&self, stream: &StreamName) -> Option<Compare> {
        let known = self.streams.get(stream)?;
        let key = Key::Stream(stream.clone());
        Some(Compare::Modified(key, known.declared_at()))
    }

    /// Whether the view of the store is complete, and changes arrive.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Whether this node is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Takes all steps that follow from the last input.
    fn go_on(&mut self, now_ns: u64) {
        lease::keep_lease(self, now_ns);
        self.bury_dead(now_ns);
        self.ask_again(now_ns);
        self.end_waits(now_ns);
        self.follow(now_ns);
    }

    /// Handles the current value of a key.
    fn note(&mut self, now_ns: u64, key: Key, entry: Option<Entry>, at: Revision) {
        match key {
            Key::Node(name) => self.note_node(now_ns, name, entry, at),
            Key::Stream(name) => self.note_declaration(name, entry, at),
            Key::Claim(name) => self.note_claim(name, entry, at),
            Key::Call(name) => self.ledger.note(name, entry, at),
            Key::State(_, name) => self.ledger.note_state(name, entry),
        }
    }

    fn commit(
        &mut self,
        now_ns: u64,
        what: What,
        when: Vec<Compare>,
        then: Vec<Operation>,
    ) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let transaction = Transaction { id, when, then };
        let timing = &self.settings.timing;
        let wait_ns = match what {
            // Use only a third of the time, which leaves time for a second request.
            What::Join | What::Renew => timing.request_ns.min(timing.valid_ns / 3),
            What::Bury(_) | What::Stream(_) | What::Call(_) => timing.request_ns,
        };
        let request = Request {
            what,
            sent_ns: now_ns,
            until_ns: now_ns + wait_ns,
            transaction: transaction.clone(),
        };
        self.requests.insert(id, request);
        self.actions.push_back(Action::Commit(transaction));
        id
    }

    /// Repeats transactions that were not answered. A transaction may have taken effect without an answer. This does no harm: a
    /// repeated transaction takes effect at most once, because the first one has changed the revision that it compares.
    fn ask_again(&mut self, now_ns: u64) {
        for (id, request) in self.requests.take_late(now_ns) {
            let Request {
                what, transaction, ..
            } = request;
            match what {
                What::Join | What::Renew => lease::renewal_is_late(self, now_ns, id),
                What::Bury(name) => self.nodes.set_asked(&name, false),
                What::Stream(name) => {
                    let Transaction { when, then, .. } = transaction;
                    let again = self.commit(now_ns, What::Stream(name.clone()), when, then);
                    self.asked(&name, again);
                }
                What::Call(name) => {
                    let Transaction { when, then, .. } = transaction;
                    let again = self.commit(now_ns, What::Call(name.clone()), when, then);
                    self.ledger.asked(&name, again);
                }
            }
        }
    }

    /// Draws a random number (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        place::mix(self.random)
    }

    /// Returns a transaction that ends this node's life, so that other nodes take its streams at once. Commit it when this node
    /// no longer sends, and do not use this member afterwards. `None`: the node has no key.
    pub fn resignation(&mut self) -> Option<Transaction> {
        let lives = lease::lives(self)?;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        Some(Transaction {
            id,
            when: vec![lives],
            then: vec![Operation::Delete(lease::own_key(self))],
        })
    }

    /// Whether this node may send its streams now.
    #[must_use]
    pub fn is_live(&self, now_ns: u64) -> bool {
        matches!(&self.standing, Standing::In(lease) if !lease.has_lapsed)
            && now_ns < self.send_until_ns()
    }

    pub(crate) fn note_node(
        &mut self,
        now_ns: u64,
        name: NodeName,
        entry: Option<Entry>,
        at: Revision,
    ) {
        let is_own_name = name == self.settings.name;
        let Some(entry) = entry else {
            if self.nodes.is_newer_than(&name, at) {
                return;
            }
            self.nodes.forget(&name);
            if is_own_name {
                lease::note_own(self, now_ns, None, at);
            }
            self.replan(&name);
            return;
        };
        let Value::Node(record) = &entry.value else {
            return;
        };
        if is_own_name {
            if record.incarnation == self.nodes.own {
                lease::note_own(self, now_ns, Some(&entry), at)
            } else {
                lease::note_own(self, now_ns, None, at)
            }
        }
        if self.nodes.note(now_ns, &name, record.clone(), &entry) {
            self.replan(&name);
        }
    }

    /// Deletes the keys of nodes that were silent for too long, so that their streams are free.
    pub(crate) fn bury_dead(&mut self, now_ns: u64) {
        if !self.is_synced {
            return self.nodes.look_later(now_ns);
        }
        let is_live = self.is_live(now_ns);
        let lives = lease::lives(self).filter(|_| is_live);
        let due = self
            .nodes
            .take_due(now_ns, &self.settings.name, lives.is_none());
        for (name, modified) in due {
            let key = Key::Node(name.clone());
            let mut when = vec![Compare::Modified(key.clone(), modified)];
            when.extend(lives.clone());
            let what = What::Bury(name.clone());
            self.commit(now_ns, what, when, vec![Operation::Delete(key)]);
            self.nodes.set_asked(&name, true);
        }
    }
}
