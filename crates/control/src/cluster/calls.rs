//! Calls: which node has each. Nobody watches them, as the streams are watched: who needs to know looks a call's key up, and its owner writes it.
//!
//! | this node | the key says | what is done |
//! |---|---|---|
//! | has the call | nothing, or a node that lives no more | the key is written, by a transaction on its revision: [`Action::CallClaimed`] |
//! | has the call | another node, which lives | that one has it: [`Action::CallTaken`] |
//! | has it no more | this node | the key is deleted |
//!
//! A life of this node that was ended by others has lost nothing: its media has gone on. The next life writes the keys anew, unless somebody else has
//! taken the call meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{CallClaim, CallName, Key, Life, Link, NodeName, NodeRecord, Revision, Value};
use super::nodes::Nodes;
use super::place::mix;
use super::store::{Compare, Entry, Operation, Request, RequestId, Transaction, What};
use super::{Action, Member};

/// The calls of this node, and those whose keys are to go.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    calls: BTreeMap<CallName, Held>,
    /// Something has changed about them.
    dirty: BTreeSet<CallName>,
    /// Who waits for a key to be written, and until when.
    waits: BTreeSet<(u64, CallName)>,
}

#[derive(Debug)]
struct Held {
    /// The call is here.
    is_here: bool,
    /// The key, and the state of the store that this is of.
    claim: Option<CallClaim>,
    at: Revision,
    pending: Option<RequestId>,
    /// Whether it was told that the key is this node's.
    is_told: bool,
    until_ns: Option<u64>,
}

/// What is to be done next for a call.
enum Step {
    Rest,
    Claimed,
    Taken(Life),
    Forget,
    Commit(Operation),
}

/// Where a request for a call belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// Nobody has the call, or nobody who lives.
    Nowhere,
    /// This node has it.
    Here,
    /// Another node has it. `None`: nothing can be sent to it.
    At(Life, Option<Link>),
}

impl Held {
    fn step(&self, name: &CallName, me: &Life, nodes: &Nodes) -> Step {
        let is_ours = self.claim.as_ref().is_some_and(|claim| claim.owner == *me);
        let of_this_node = |claim: &CallClaim| claim.owner.node == me.node;
        match (&self.claim, self.is_here) {
            (_, true) if is_ours && self.is_told => Step::Rest,
            (_, true) if is_ours => Step::Claimed,
            (Some(claim), true) if nodes.has(&claim.owner) => Step::Taken(claim.owner.clone()),
            (_, true) => {
                let claim = CallClaim { owner: me.clone() };
                Step::Commit(Operation::Put(Key::Call(name.clone()), Value::Call(claim)))
            }
            (Some(claim), false) if of_this_node(claim) => {
                Step::Commit(Operation::Delete(Key::Call(name.clone())))
            }
            (_, false) => Step::Forget,
        }
    }
}

impl Ledger {
    pub(super) fn look_at_all(&mut self) {
        self.dirty.extend(self.calls.keys().cloned());
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.waits.first().map(|(until_ns, _)| *until_ns)
    }

    pub(super) fn asked(&mut self, name: &CallName, id: RequestId) {
        if let Some(held) = self.calls.get_mut(name) {
            held.pending = Some(id);
        }
    }

    pub(super) fn answered(&mut self, name: &CallName, request: &Request) {
        if let Some(held) = self.calls.get_mut(name)
            && held.pending == Some(request.transaction.id)
        {
            held.pending = None;
            self.dirty.insert(name.clone());
        }
    }

    pub(super) fn note(&mut self, name: CallName, entry: Option<Entry>, at: Revision) {
        let claim = match entry.map(|entry| entry.value) {
            Some(Value::Call(claim)) => Some(claim),
            Some(_) => return,
            None => None,
        };
        if let Some(held) = self.calls.get_mut(&name)
            && at > held.at
        {
            (held.claim, held.at) = (claim, at);
            self.dirty.insert(name);
        }
    }

    fn stop_waiting(&mut self, name: &CallName) {
        let held = self.calls.get_mut(name);
        if let Some(until_ns) = held.and_then(|held| held.until_ns.take()) {
            self.waits.remove(&(until_ns, name.clone()));
        }
    }

    fn remove(&mut self, name: &CallName) {
        self.stop_waiting(name);
        self.calls.remove(name);
    }
}

impl Member {
    /// This node has a call, and its key is to say so. Leads to [`Action::CallClaimed`] or [`Action::CallTaken`]; before either, to
    /// [`Action::CallUnclaimed`] when the store has not answered by `until_ns`.
    pub fn claim_call(&mut self, now_ns: u64, name: CallName, until_ns: u64) {
        self.ledger.stop_waiting(&name);
        let held = self.ledger.calls.entry(name.clone()).or_insert(Held {
            is_here: true,
            claim: None,
            at: Revision::ABSENT,
            pending: None,
            is_told: false,
            until_ns: None,
        });
        (held.is_here, held.is_told, held.until_ns) = (true, false, Some(until_ns));
        self.ledger.waits.insert((until_ns, name.clone()));
        self.ledger.dirty.insert(name);
        self.go_on(now_ns);
    }

    /// This node has a call no more.
    pub fn release_call(&mut self, now_ns: u64, name: &CallName) {
        self.ledger.stop_waiting(name);
        if let Some(held) = self.ledger.calls.get_mut(name) {
            held.is_here = false;
            self.ledger.dirty.insert(name.clone());
            self.go_on(now_ns);
        }
    }

    /// How many calls this node has, with those whose keys are about to be deleted.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.ledger.calls.len()
    }

    /// How much more this node could carry, in percent of what it may: told with the next renewal. `None`: no calls.
    pub fn set_room(&mut self, room: Option<u8>) {
        self.room = room;
    }

    /// Where the requests for a call belong, by its key.
    #[must_use]
    pub fn locate(&self, entry: Option<&Entry>) -> Location {
        let claim = match entry.map(|entry| &entry.value) {
            Some(Value::Call(claim)) => claim,
            _ => return Location::Nowhere,
        };
        if claim.owner.node == self.settings.name {
            return Location::Here;
        }
        match self.nodes.record(&claim.owner.node) {
            Some(record) if record.incarnation == claim.owner.incarnation => {
                Location::At(claim.owner.clone(), record.link)
            }
            _ => Location::Nowhere,
        }
    }

    /// Where a new call belongs: the node with the most room. This one, if it has nearly as much, as a request need not go further then; of others that
    /// have, any. `draw`: a random number. `None`: no node takes calls.
    #[must_use]
    pub fn roomiest(&self, draw: u64) -> Option<Location> {
        let own = &self.settings.name;
        let takes = |(name, record): (&NodeName, &NodeRecord)| {
            let room = match name == own {
                true => self.room,
                false => record.room.filter(|_| record.link.is_some()),
            };
            let draining = record.draining || (name == own && self.draining);
            room.filter(|room| *room > 0 && !draining)
        };
        let rooms = || self.nodes.all().filter_map(|one| Some((one, takes(one)?)));
        let most = rooms().map(|(_, room)| room).max()?;
        let near: Vec<_> = rooms()
            .filter(|(_, room)| room.saturating_add(NEAR) >= most)
            .map(|(one, _)| one)
            .collect();
        if near.iter().any(|(name, _)| *name == own) {
            return Some(Location::Here);
        }
        let at = mix(draw) % near.len() as u64;
        let (name, record) = near[at as usize];
        Some(Location::At(self.nodes.life(name)?, record.link))
    }

    /// What deletes the key of a call that nobody has any more, as its owner's life has ended. `None`: somebody has it.
    pub fn sweep(&mut self, entry: &Entry) -> Option<Transaction> {
        let (Key::Call(name), Value::Call(claim)) = (&entry.key, &entry.value) else {
            return None;
        };
        let is_held = self.ledger.calls.contains_key(name);
        if is_held || self.nodes.has(&claim.owner) {
            return None;
        }
        let when = vec![
            Compare::Modified(entry.key.clone(), entry.modified),
            self.lives()?,
            self.nodes.as_known(&claim.owner.node),
        ];
        let id = RequestId(self.next_request);
        self.next_request += 1;
        Some(Transaction {
            id,
            when,
            then: vec![Operation::Delete(entry.key.clone())],
        })
    }

    /// Tells those who have waited for too long.
    pub(super) fn end_waits(&mut self, now_ns: u64) {
        while let Some((until_ns, call)) = self.ledger.waits.first().cloned()
            && until_ns <= now_ns
        {
            self.ledger.stop_waiting(&call);
            self.actions.push_back(Action::CallUnclaimed { call });
        }
    }

    /// Does what is to be done for calls about which something has changed, as far as there is room for requests.
    pub(super) fn follow_calls(&mut self, now_ns: u64, requests_max: usize) {
        while self.requests.len() < requests_max {
            let Some(name) = self.ledger.dirty.pop_first() else {
                return;
            };
            self.follow_call(now_ns, name);
        }
    }

    fn follow_call(&mut self, now_ns: u64, name: CallName) {
        let (me, lives) = (self.life(), self.lives());
        let Some(held) = self.ledger.calls.get_mut(&name) else {
            return;
        };
        if held.pending.is_some() {
            return;
        }
        match held.step(&name, &me, &self.nodes) {
            Step::Rest => {}
            Step::Claimed => {
                held.is_told = true;
                self.ledger.stop_waiting(&name);
                self.actions.push_back(Action::CallClaimed { call: name });
            }
            Step::Taken(owner) => {
                self.ledger.remove(&name);
                self.actions
                    .push_back(Action::CallTaken { call: name, owner });
            }
            Step::Forget => self.ledger.remove(&name),
            Step::Commit(operation) => {
                let Some(lives) = lives else { return };
                let modified = held.claim.as_ref().map_or(Revision::ABSENT, |_| held.at);
                let key = Key::Call(name.clone());
                let mut when = vec![Compare::Modified(key, modified), lives];
                let owner = held.claim.as_ref().map(|claim| &claim.owner.node);
                if let Some(owner) = owner.filter(|owner| **owner != me.node) {
                    when.push(self.nodes.as_known(owner));
                }
                let id = self.commit(now_ns, What::Call(name.clone()), when, vec![operation]);
                self.ledger.asked(&name, id);
            }
        }
    }
}

/// Percent of room: less of a difference is not worth another way.
const NEAR: u8 = 10;
