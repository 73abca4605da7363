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
//!
//! **Calls of a service** have its addresses, and go with them: whoever carries the service is the owner of its calls, whatever their keys say, and writes
//! the keys anew. With each goes a second key, its state, by which the next carrier goes on; both are written together. Who carries the service no more
//! leaves the keys as they are ([`Member::leave_calls`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::keys::{
    CallClaim, CallName, Key, Life, Link, NodeName, NodeRecord, Revision, StreamName, Value,
};
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
    kept: Option<Kept>,
    /// The key, and the state of the store that this is of.
    claim: Option<CallClaim>,
    at: Revision,
    pending: Option<RequestId>,
    /// Whether it was told that the key is this node's.
    is_told: bool,
    until_ns: Option<u64>,
}

/// The state of a service's call.
#[derive(Debug)]
struct Kept {
    service: StreamName,
    state: Arc<[u8]>,
    /// What the store has, as far as is known.
    written: Option<Arc<[u8]>>,
}

/// What is to be done next for a call.
enum Step {
    Rest,
    Claimed,
    Taken(Life),
    Forget,
    Commit(Vec<Operation>),
}

/// Whose a call is, by its key.
#[derive(Debug, PartialEq)]
enum Rightful {
    Nobody,
    Mine,
    Others(Life),
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
    /// It goes with its service, which is on its way to a node.
    Soon,
}

impl Held {
    /// `rightful`: whose the call is by its key.
    fn step(&self, name: &CallName, me: &Life, rightful: Rightful) -> Step {
        let is_ours = self.claim.as_ref().is_some_and(|claim| claim.owner == *me);
        match (&self.claim, self.is_here, rightful) {
            (_, true, Rightful::Others(owner)) => Step::Taken(owner),
            (_, true, _) if is_ours && self.is_written() => match self.is_told {
                true => Step::Rest,
                false => Step::Claimed,
            },
            (_, true, _) if is_ours => Step::Commit(self.put_state(name).collect()),
            (_, true, _) => {
                let claim = CallClaim {
                    owner: me.clone(),
                    service: self.kept.as_ref().map(|kept| kept.service.clone()),
                };
                // One of its name had another service.
                let before = self.claim.as_ref().and_then(|old| old.service.as_ref());
                let before = before.filter(|service| claim.service.as_ref() != Some(service));
                let old =
                    before.map(|old| Operation::Delete(Key::State(old.clone(), name.clone())));
                let put = Operation::Put(Key::Call(name.clone()), Value::Call(claim));
                let all = [put].into_iter().chain(self.put_state(name)).chain(old);
                Step::Commit(all.collect())
            }
            (Some(claim), false, Rightful::Mine) => Step::Commit(delete(name, claim)),
            (Some(claim), false, _) if claim.owner.node == me.node => {
                Step::Commit(delete(name, claim))
            }
            (_, false, _) => Step::Forget,
        }
    }

    fn is_written(&self) -> bool {
        let is_written = |kept: &Kept| kept.written.as_ref() == Some(&kept.state);
        self.kept.as_ref().is_none_or(is_written)
    }

    fn put_state(&self, name: &CallName) -> impl Iterator<Item = Operation> {
        let put = |kept: &Kept| {
            let key = Key::State(kept.service.clone(), name.clone());
            Operation::Put(key, Value::State(kept.state.clone()))
        };
        self.kept.as_ref().map(put).into_iter()
    }
}

/// Of a call that is over.
fn delete(name: &CallName, claim: &CallClaim) -> Vec<Operation> {
    let state = claim.service.as_ref();
    let state = state.map(|service| Operation::Delete(Key::State(service.clone(), name.clone())));
    let call = Operation::Delete(Key::Call(name.clone()));
    [call].into_iter().chain(state).collect()
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

    /// Another state of the same call may be on its way: then that is written behind this one.
    pub(super) fn note_state(&mut self, name: CallName, entry: Option<Entry>) {
        let Some(kept) = self
            .calls
            .get_mut(&name)
            .and_then(|held| held.kept.as_mut())
        else {
            return;
        };
        kept.written = match entry.map(|entry| entry.value) {
            Some(Value::State(state)) => Some(state),
            _ => None,
        };
        self.dirty.insert(name);
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
    /// This node has a call, and its key is to say so. `state`: the service that it belongs to, and what the next node that carries it needs. Leads to
    /// [`Action::CallClaimed`] or [`Action::CallTaken`]; before either, to [`Action::CallUnclaimed`] when the store has not answered by `until_ns`.
    pub fn claim_call(
        &mut self,
        now_ns: u64,
        name: CallName,
        state: Option<(StreamName, Arc<[u8]>)>,
        until_ns: u64,
    ) {
        self.ledger.stop_waiting(&name);
        let held = self.ledger.calls.entry(name.clone()).or_insert(Held {
            is_here: true,
            kept: None,
            claim: None,
            at: Revision::ABSENT,
            pending: None,
            is_told: false,
            until_ns: None,
        });
        (held.is_here, held.is_told, held.until_ns) = (true, false, Some(until_ns));
        held.kept = state.map(|(service, state)| Kept {
            service,
            state,
            written: None,
        });
        self.ledger.waits.insert((until_ns, name.clone()));
        self.ledger.dirty.insert(name);
        self.go_on(now_ns);
    }

    /// The state of a service's call is another one now.
    pub fn keep_call(&mut self, now_ns: u64, name: &CallName, state: Arc<[u8]>) {
        let held = self.ledger.calls.get_mut(name);
        if let Some(kept) = held.and_then(|held| held.kept.as_mut()) {
            kept.state = state;
            self.ledger.dirty.insert(name.clone());
            self.go_on(now_ns);
        }
    }

    /// Calls of a service that another node carries from now on, or nobody. Their keys stay.
    pub fn leave_calls(&mut self, service: &StreamName) {
        let is_of_it = |held: &Held| {
            let kept = held.kept.as_ref();
            kept.is_some_and(|kept| kept.service == *service)
        };
        let calls = &self.ledger.calls;
        let left = calls.iter().filter(|(_, held)| is_of_it(held));
        let left: Vec<CallName> = left.map(|(name, _)| name.clone()).collect();
        left.iter().for_each(|name| self.ledger.remove(name));
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
        let service = claim.service.as_ref();
        let service = service.filter(|service| self.declaration(service).is_some());
        let owner = match service {
            None => &claim.owner,
            Some(service) if self.carries(service) => return Location::Here,
            Some(service) => match self.owner(service).filter(|owner| self.nodes.has(owner)) {
                Some(owner) if !self.is_on_its_way(service) => owner,
                _ => return Location::Soon,
            },
        };
        if owner.node == self.settings.name {
            return Location::Here;
        }
        match self.nodes.record(&owner.node) {
            Some(record) if record.incarnation == owner.incarnation => {
                Location::At(owner.clone(), record.link)
            }
            _ => Location::Nowhere,
        }
    }

    /// Whether a deputy carries a service for its owner, or has just stopped: calls are at one or the other.
    fn is_on_its_way(&self, service: &StreamName) -> bool {
        let deputy = self.deputy(service);
        deputy.is_some_and(|deputy| self.nodes.has(deputy))
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

    /// What deletes the keys of a call that nobody has any more, as its owner's life has ended. `None`: somebody has it, or is about to: calls of a
    /// service are deleted by who carries it, when the carrier has gone on with all that it can.
    pub fn sweep(&mut self, entry: &Entry) -> Option<Transaction> {
        let (Key::Call(name), Value::Call(claim)) = (&entry.key, &entry.value) else {
            return None;
        };
        let service = claim.service.as_ref();
        let service = service.filter(|service| self.declaration(service).is_some());
        let has_owner = match service {
            Some(service) => !self.carries(service),
            None => self.nodes.has(&claim.owner),
        };
        if has_owner || self.ledger.calls.contains_key(name) {
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
            then: delete(name, claim),
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

    fn rightful(&self, claim: Option<&CallClaim>) -> Rightful {
        let Some(claim) = claim else {
            return Rightful::Nobody;
        };
        let service = claim.service.as_ref();
        let service = service.filter(|service| self.declaration(service).is_some());
        match service {
            Some(service) if self.carries(service) => Rightful::Mine,
            Some(service) => {
                let carrier = self.owner(service).filter(|life| self.nodes.has(life));
                Rightful::Others(carrier.unwrap_or(&claim.owner).clone())
            }
            None if claim.owner == self.life() => Rightful::Mine,
            None if self.nodes.has(&claim.owner) => Rightful::Others(claim.owner.clone()),
            None => Rightful::Nobody,
        }
    }

    fn follow_call(&mut self, now_ns: u64, name: CallName) {
        let (me, lives) = (self.life(), self.lives());
        let Some(held) = self.ledger.calls.get(&name) else {
            return;
        };
        let service = held.kept.as_ref().map(|kept| &kept.service);
        let goes_on_elsewhere = service.is_some_and(|service| !self.carries(service));
        if held.pending.is_some() || goes_on_elsewhere {
            return;
        }
        let rightful = self.rightful(held.claim.as_ref());
        let Some(held) = self.ledger.calls.get_mut(&name) else {
            return;
        };
        match held.step(&name, &me, rightful) {
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
            Step::Commit(operations) => {
                let Some(lives) = lives else { return };
                let modified = held.claim.as_ref().map_or(Revision::ABSENT, |_| held.at);
                let key = Key::Call(name.clone());
                let mut when = vec![Compare::Modified(key, modified), lives];
                let owner = held.claim.as_ref().map(|claim| &claim.owner.node);
                if let Some(owner) = owner.filter(|owner| **owner != me.node) {
                    when.push(self.nodes.as_known(owner));
                }
                let id = self.commit(now_ns, What::Call(name.clone()), when, operations);
                self.ledger.asked(&name, id);
            }
        }
    }
}

/// Percent of room: less of a difference is not worth another way.
const NEAR: u8 = 10;
