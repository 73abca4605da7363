//! Streams and calls spread over the nodes of a cluster, by a store that all of them see (etcd); this node's part, sans-IO.
//!
//! In come time, changes of the store's keys and answers to transactions; out come transactions, and which streams to start and stop. A
//! [`Member`] trusts no clock but its own monotonic one, and of that only that it runs at most [`Timing::DRIFT_PERCENT`] faster or slower than another's:
//!
//! - It renews its own key ([`Key::Node`]) by a transaction on the revision that it wrote last. What it carries, it may send only while the last *confirmed*
//!   renewal, counted from when that request was sent, is younger than [`Timing::valid_ns`]: [`Member::send_until_ns`] is for the media threads, which ask
//!   their clock before each batch, so that a process that was frozen sends nothing when it goes on.
//! - Others take what it has when they have seen no new revision for that time and a margin. First they delete its key, by a transaction on the revision
//!   that they saw last: either its next renewal fails, or that transaction does. A claim names a life of a node; when that life has no key, the claim is
//!   free. Each claim is one transaction on the revision of the claim and on the claimer's own life.
//! - A stream moves without a gap that a jitter buffer does not hide: the owner names the next one, which prepares, and makes the claim its own with the
//!   owner before as its *deputy*. The deputy goes on by its own lease until it has seen that; then it stops, and tells the new owner where (SSRC, numbers,
//!   times). So nothing waits for the store between the last packet here and the first one there. What is told is written as well, should it be lost.
//! - A call stays where it was made. Its owner claims it, and requests that come to another node are sent on.
//! - A *service* is carried as a stream is: the addresses of a node's calls, and the calls with them. Another node that carries it reads the calls' states.
//!
//! After each call of a `handle_` or `set_` function, drain [`Member::poll_action`] and ask [`Member::next_timeout`].

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
use self::store::{Request, What};
use self::streams::Tracked;

/// What a node is in its cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Its name, which no other node has.
    pub name: NodeName,
    /// Its share of the streams, against that of others: [`WEIGHT_MIN`] to [`WEIGHT_MAX`].
    pub weight: f64,
    /// Where it is.
    pub labels: Vec<Arc<str>>,
    /// Where others see whether its process lives.
    pub link: Option<Link>,
    /// The same for all nodes of a cluster.
    pub timing: Timing,
}

/// Times of a cluster. All nodes must have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From one renewal to the next.
    pub renew_ns: u64,
    /// How long a confirmed renewal allows to send, from when it was sent.
    pub valid_ns: u64,
    /// How much longer others wait.
    pub margin_ns: u64,
    /// An answer that has not come by then is not waited for.
    pub request_ns: u64,
}

impl Timing {
    /// How far two monotonic clocks may run apart.
    pub const DRIFT_PERCENT: u64 = 2;

    /// How long a node must have been seen to do nothing before others take what it has.
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

/// What a node is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Give this to the store, and its answer to [`Member::handle_reply`].
    Commit(Transaction),
    /// Open the stream's input, and say so by [`Member::handle_prepared`]: it is about to be handed over.
    Prepare {
        /// The stream.
        stream: StreamName,
        /// The number that this owner will have.
        epoch: Epoch,
    },
    /// Carry it, while [`Member::send_until_ns`] allows it.
    Start {
        /// The stream.
        stream: StreamName,
        /// This owner's number.
        epoch: Epoch,
        /// Where it was stopped just now, here or by the owner before; empty: nobody knows.
        resume: Vec<u8>,
    },
    /// Stop it now. Then tell the owner ([`Member::release`]), and say with [`Member::handle_handed_over`] where it has stopped.
    HandOver {
        /// The stream.
        stream: StreamName,
    },
    /// Stop it now, or preparing for it.
    Stop {
        /// The stream.
        stream: StreamName,
    },
    /// The store has this node as the call's owner, after [`Member::claim_call`].
    CallClaimed {
        /// The call.
        call: CallName,
    },
    /// Another node has the call: it is to end here. There is no need to release it.
    CallTaken {
        /// The call.
        call: CallName,
        /// That one.
        owner: Life,
    },
    /// The store has not answered in time. It is still asked.
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
    /// Streams about which something has changed.
    dirty: BTreeSet<StreamName>,
    /// The view is whole, and changes come.
    is_synced: bool,
    /// The view is as of this state of the store.
    revision: Revision,
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    /// Streams that are on their way to other nodes, and those that would be better there.
    moving: BTreeSet<StreamName>,
    wishes: BTreeMap<StreamName, Life>,
    ledger: Ledger,
    /// For new calls, in percent.
    room: Option<u8>,
    actions: VecDeque<Action>,
}

impl Member {
    /// A node that joins at `now_ns` with the first answer of the store. `seed`: of its lives' numbers; no two processes may have the same.
    ///
    /// # Panics
    /// The weight is not one ([`is_weight`]).
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
            requests: BTreeMap::new(),
            next_request: 0,
            moving: BTreeSet::new(),
            wishes: BTreeMap::new(),
            ledger: Ledger::default(),
            room: None,
            actions: VecDeque::new(),
        };
        member.begin_life();
        member
    }

    /// All keys below [`PREFIX`], read at once: at the beginning, and when changes may have been missed. Keys that it has not are gone.
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
        // Among them those that are over, of which nothing is told any more.
        self.look_at_all();
        self.go_on(now_ns);
    }

    /// A key has changed, in a state of the store behind all that were told before. `None`: it was deleted.
    pub fn handle_change(&mut self, now_ns: u64, key: Key, entry: Option<Entry>, at: Revision) {
        self.revision = self.revision.max(at);
        self.note(now_ns, key, entry, at);
        self.go_on(now_ns);
    }

    /// Changes may be missed from now on, until the next snapshot.
    pub fn handle_cut(&mut self) {
        self.is_synced = false;
    }

    /// An answer of the store.
    pub fn handle_reply(&mut self, now_ns: u64, reply: Reply) {
        let Some(request) = self.requests.remove(&reply.id) else {
            return;
        };
        match &request.what {
            What::Join | What::Renew => self.renewed(now_ns, &request, &reply),
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

    /// The process of this life is known to have ended: its machine says that nobody listens any more where it did. The others wait for nothing then.
    pub fn handle_ended(&mut self, now_ns: u64, life: &Life) {
        self.nodes.expect_dead(now_ns, life);
        self.go_on(now_ns);
    }

    /// The input of a stream is heard, after [`Action::Prepare`].
    pub fn handle_prepared(&mut self, now_ns: u64, stream: &StreamName) {
        self.prepared(stream);
        self.go_on(now_ns);
    }

    /// A stream has stopped, after [`Action::HandOver`]; `resume`: where.
    pub fn handle_handed_over(&mut self, now_ns: u64, stream: &StreamName, resume: Vec<u8>) {
        self.stopped(stream, resume);
        self.go_on(now_ns);
    }

    /// A deputy says that it has stopped; `resume`: where. Whoever brings this must know that it is that node's word.
    pub fn handle_released(&mut self, now_ns: u64, release: Release, resume: Vec<u8>) {
        self.released(release, resume);
        self.go_on(now_ns);
    }

    /// Gives away what it carries, and takes nothing; or takes streams again.
    pub fn set_draining(&mut self, now_ns: u64, draining: bool) {
        self.draining = draining;
        self.renew_soon(now_ns);
        self.go_on(now_ns);
    }

    /// The time of [`Member::next_timeout`] has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.go_on(now_ns);
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Member::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> u64 {
        let requests = self.requests.values().map(|request| request.until_ns);
        let own = self.next_renewal().into_iter().chain(self.ledger.next_ns());
        let next = requests.chain(own).min();
        let deaths = self.nodes.next_ns();
        next.unwrap_or(u64::MAX).min(deaths)
    }

    /// Until when the media threads may send what was started, on this node's monotonic clock. Streams of [`OnIsolation::Continue`] do not ask.
    #[must_use]
    pub fn send_until_ns(&self) -> u64 {
        match &self.standing {
            Standing::In(lease) => lease.confirmed_ns + self.settings.timing.valid_ns,
            Standing::Out { .. } => 0,
        }
    }

    /// This life of it.
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            node: self.settings.name.clone(),
            incarnation: self.nodes.own,
        }
    }

    /// Streams that it carries.
    pub fn carried(&self) -> impl Iterator<Item = &StreamName> {
        let running = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.is_running());
        running.map(|(name, _)| name)
    }

    /// Whether streams are on their way to other nodes: what these need to go on is not written yet.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        !self.moving.is_empty()
    }

    /// The nodes that live, as far as is known; with itself.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeRecord)> {
        self.nodes.all()
    }

    /// The same, with the life that each lives now.
    pub fn lives_of_nodes(&self) -> impl Iterator<Item = Life> {
        self.nodes.names().filter_map(|name| self.nodes.life(name))
    }

    /// Who carries a stream, as far as is known.
    #[must_use]
    pub fn owner(&self, stream: &StreamName) -> Option<&Life> {
        let claim = self.streams.get(stream)?.claim()?;
        Some(&claim.owner)
    }

    /// Whether this node carries it.
    #[must_use]
    pub fn carries(&self, stream: &StreamName) -> bool {
        self.streams.get(stream).is_some_and(Tracked::is_running)
    }

    /// What this node, as the deputy of a claim, has to tell its owner when it has stopped.
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

    /// Who carries a stream for its owner, until it has told that it has stopped, and the store.
    #[must_use]
    pub fn deputy(&self, stream: &StreamName) -> Option<&Life> {
        self.streams.get(stream)?.claim()?.deputy.as_ref()
    }

    /// The lives that something of this node is about to go to.
    pub fn successors(&self) -> impl Iterator<Item = &Life> {
        let claims = self.moving.iter();
        let claims = claims.filter_map(|stream| self.streams.get(stream)?.claim());
        claims.filter_map(|claim| claim.next.as_ref())
    }

    /// Which of the other nodes would carry a stream without this one, as far as is known.
    #[must_use]
    pub fn heir(&self, stream: &StreamName) -> Option<Life> {
        let own = &self.settings.name;
        let name = self.streams.get(stream)?.best_without(own, &self.nodes)?;
        self.nodes.life(&name)
    }

    /// The streams that are to be carried, with what their carriers need, and who carries them as far as is known.
    pub fn streams(&self) -> impl Iterator<Item = (&StreamName, &Declaration, Option<&Claim>)> {
        self.streams.iter().filter_map(|(name, stream)| {
            let declaration = stream.declaration()?;
            Some((name, declaration, stream.claim()))
        })
    }

    /// How a stream is to be carried; `None`: it is not.
    #[must_use]
    pub fn declaration(&self, stream: &StreamName) -> Option<&Declaration> {
        self.streams.get(stream)?.declaration()
    }

    /// The condition of another declaration that is made of this one: nobody else has written one meanwhile.
    #[must_use]
    pub fn still_declared(&self, stream: &StreamName) -> Option<Compare> {
        let known = self.streams.get(stream)?;
        let key = Key::Stream(stream.clone());
        Some(Compare::Modified(key, known.declared_at()))
    }

    /// Whether its view of the store is whole, and changes come.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Whether it gives away what it carries.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Everything that follows from what has come.
    fn go_on(&mut self, now_ns: u64) {
        self.keep_lease(now_ns);
        self.bury_dead(now_ns);
        self.ask_again(now_ns);
        self.end_waits(now_ns);
        self.follow(now_ns);
    }

    /// A key is like this now.
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
        let request = Request {
            what,
            sent_ns: now_ns,
            until_ns: now_ns + self.settings.timing.request_ns,
            transaction: transaction.clone(),
        };
        self.requests.insert(id, request);
        self.actions.push_back(Action::Commit(transaction));
        id
    }

    /// Answers that have not come. What was asked may be done or not; a transaction that is asked for again is done at most once, as its revision is
    /// another one then.
    fn ask_again(&mut self, now_ns: u64) {
        let late: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, request)| request.until_ns <= now_ns)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let Some(Request {
                what, transaction, ..
            }) = self.requests.remove(&id)
            else {
                continue;
            };
            match what {
                What::Join | What::Renew => self.renewal_is_late(now_ns, id),
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

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        place::mix(self.random)
    }
}
