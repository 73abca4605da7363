//! Calls of a cluster: which node owns each call. Nodes watch the keys of streams, but not those of calls. The owner of a call
//! writes its key, and other nodes look up the key when they need it.
//!
//! | this node | key | step |
//! |---|---|---|
//! | has the call | absent, or names a node that is dead | the key is written, by a transaction on its revision: [`Action::CallClaimed`] |
//! | has the call | names another live node | that node owns the call: [`Action::CallTaken`] |
//! | no longer has it | names this node | the key is deleted |
//!
//! If other nodes end a life of this node, its calls are not lost, because their media still runs. The next life writes the
//! calls' keys again, except for calls that another node has taken in the meantime.
//!
//! **A service's calls** use its addresses and move with it. The node that carries the service owns its calls, whatever their
//! keys say, and writes the keys again. Each call has a second key with its state for the next carrier; both keys are written
//! together. A node that no longer carries the service leaves the keys as they are ([`Member::leave_calls`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keys::{
    CallClaim, CallName, Key, Life, Link, NodeName, NodeRecord, Revision, StreamName, Value,
};
use crate::lease;
use crate::place::mix;
use crate::store::{Compare, Entry, Operation, Request, RequestId, Transaction, What};
use crate::{Action, Member};

/// The calls of this node, and the ended calls whose keys the node must still delete.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    calls: BTreeMap<CallName, KnownCall>,
    /// Calls that have changed.
    dirty: BTreeSet<CallName>,
    /// Calls whose keys must be written by a deadline.
    waits: BTreeSet<(u64, CallName)>,
}

#[derive(Debug)]
struct KnownCall {
    /// Whether this node currently has the call.
    is_here: bool,
    saved: Option<SavedState>,
    /// The claim in the call's key, and the revision of the store when the key was read.
    claim: Option<CallClaim>,
    at: Revision,
    pending: Option<RequestId>,
    /// Whether [`Action::CallClaimed`] was already issued.
    is_told: bool,
    until_ns: Option<u64>,
}

/// The state of a call that belongs to a service.
#[derive(Debug)]
struct SavedState {
    service: StreamName,
    state: Arc<[u8]>,
    /// The last state that is known to be in the store.
    written: Option<Arc<[u8]>>,
}

/// The next step for a call.
enum Step {
    Rest,
    Claimed,
    Taken(Life),
    Forget,
    Commit(Vec<Operation>),
}

/// The owner of a call, according to the call's key.
#[derive(Debug, PartialEq)]
enum Rightful {
    Nobody,
    Mine,
    Others(Life),
}

/// Where requests for a call must be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// No live node has the call.
    Nowhere,
    /// This node has the call.
    Here,
    /// Another node has the call. `None`: its address is unknown.
    At(Life, Option<Link>),
    /// The call belongs to a service that is moving to another node. Try again soon.
    Soon,
}

impl KnownCall {
    /// Returns the next step. `rightful`: the owner of the call according to its key.
    fn step(&self, name: &CallName, me: &Life, rightful: Rightful) -> Step {
        let is_ours = self.claim.as_ref().is_some_and(|claim| claim.owner == *me);
        match (&self.claim, self.is_here, rightful) {
            (_, true, Rightful::Others(owner)) => Step::Taken(owner),
            (_, true, _) if is_ours && self.is_written() => {
                if self.is_told {
                    Step::Rest
                } else {
                    Step::Claimed
                }
            }
            (_, true, _) if is_ours => Step::Commit(self.put_state(name).collect()),
            (_, true, _) => {
                let claim = CallClaim {
                    owner: me.clone(),
                    service: self.saved.as_ref().map(|saved| saved.service.clone()),
                };
                // An earlier call of the same name belonged to another service.
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
        let is_written = |saved: &SavedState| saved.written.as_ref() == Some(&saved.state);
        self.saved.as_ref().is_none_or(is_written)
    }

    fn put_state(&self, name: &CallName) -> impl Iterator<Item = Operation> {
        let put = |saved: &SavedState| {
            let key = Key::State(saved.service.clone(), name.clone());
            Operation::Put(key, Value::State(saved.state.clone()))
        };
        self.saved.as_ref().map(put).into_iter()
    }
}

/// Returns the operations that delete the keys of a call that has ended.
fn delete(name: &CallName, claim: &CallClaim) -> Vec<Operation> {
    let state = claim.service.as_ref();
    let state = state.map(|service| Operation::Delete(Key::State(service.clone(), name.clone())));
    let call = Operation::Delete(Key::Call(name.clone()));
    [call].into_iter().chain(state).collect()
}

impl Ledger {
    pub(crate) fn look_at_all(&mut self) {
        self.dirty.extend(self.calls.keys().cloned());
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.waits.first().map(|(until_ns, _)| *until_ns)
    }

    pub(crate) fn asked(&mut self, name: &CallName, id: RequestId) {
        if let Some(known) = self.calls.get_mut(name) {
            known.pending = Some(id);
        }
    }

    pub(crate) fn answered(&mut self, name: &CallName, request: &Request) {
        if let Some(known) = self.calls.get_mut(name)
            && known.pending == Some(request.transaction.id)
        {
            known.pending = None;
            self.dirty.insert(name.clone());
        }
    }

    pub(crate) fn note(&mut self, name: CallName, entry: Option<Entry>, at: Revision) {
        let claim = match entry.map(|entry| entry.value) {
            Some(Value::Call(claim)) => Some(claim),
            Some(_) => return,
            None => None,
        };
        if let Some(known) = self.calls.get_mut(&name)
            && at > known.at
        {
            (known.claim, known.at) = (claim, at);
            self.dirty.insert(name);
        }
    }

    /// Records the state that is in the store. If the call has changed since, its newer state is written next.
    pub(crate) fn note_state(&mut self, name: CallName, entry: Option<Entry>) {
        let Some(saved) = self
            .calls
            .get_mut(&name)
            .and_then(|known| known.saved.as_mut())
        else {
            return;
        };
        saved.written = match entry.map(|entry| entry.value) {
            Some(Value::State(state)) => Some(state),
            _ => None,
        };
        self.dirty.insert(name);
    }

    fn stop_waiting(&mut self, name: &CallName) {
        let known = self.calls.get_mut(name);
        if let Some(until_ns) = known.and_then(|known| known.until_ns.take()) {
            self.waits.remove(&(until_ns, name.clone()));
        }
    }

    fn remove(&mut self, name: &CallName) {
        self.stop_waiting(name);
        self.calls.remove(name);
    }
}

impl Member {
    /// Claims a call that this node has. `state`: the service of the call, and the state that the node that carries the service
    /// next needs.
    ///
    /// Leads to [`Action::CallClaimed`] or [`Action::CallTaken`]. If the store does not answer by `until_ns`,
    /// [`Action::CallUnclaimed`] comes first.
    pub fn claim_call(
        &mut self,
        now_ns: u64,
        name: CallName,
        state: Option<(StreamName, Arc<[u8]>)>,
        until_ns: u64,
    ) {
        self.ledger.stop_waiting(&name);
        let known = self.ledger.calls.entry(name.clone()).or_insert(KnownCall {
            is_here: true,
            saved: None,
            claim: None,
            at: Revision::ABSENT,
            pending: None,
            is_told: false,
            until_ns: None,
        });
        (known.is_here, known.is_told, known.until_ns) = (true, false, Some(until_ns));
        known.saved = state.map(|(service, state)| SavedState {
            service,
            state,
            written: None,
        });
        self.ledger.waits.insert((until_ns, name.clone()));
        self.ledger.dirty.insert(name);
        self.go_on(now_ns);
    }

    /// Records a new state of a service's call.
    pub fn keep_call(&mut self, now_ns: u64, name: &CallName, state: Arc<[u8]>) {
        let known = self.ledger.calls.get_mut(name);
        if let Some(saved) = known.and_then(|known| known.saved.as_mut()) {
            saved.state = state;
            self.ledger.dirty.insert(name.clone());
            self.go_on(now_ns);
        }
    }

    /// Forgets the calls of a service that this node no longer carries. Their keys stay.
    pub fn leave_calls(&mut self, service: &StreamName) {
        let is_of_it = |known: &KnownCall| {
            let saved = known.saved.as_ref();
            saved.is_some_and(|saved| saved.service == *service)
        };
        let calls = &self.ledger.calls;
        let left = calls.iter().filter(|(_, known)| is_of_it(known));
        let left: Vec<CallName> = left.map(|(name, _)| name.clone()).collect();
        left.iter().for_each(|name| self.ledger.remove(name));
    }

    /// Releases a call that this node no longer has.
    pub fn release_call(&mut self, now_ns: u64, name: &CallName) {
        self.ledger.stop_waiting(name);
        if let Some(known) = self.ledger.calls.get_mut(name) {
            known.is_here = false;
            self.ledger.dirty.insert(name.clone());
            self.go_on(now_ns);
        }
    }

    /// Returns the number of this node's calls, including those whose keys are about to be deleted.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.ledger.calls.len()
    }

    /// Sets how many more calls this node could accept, in percent of its limit. The next renewal publishes the value. `None`:
    /// the node accepts no calls.
    pub fn set_room(&mut self, room: Option<u8>) {
        self.room = room;
    }

    /// Returns where requests for a call must be sent. `entry`: the key of the call.
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

    /// Whether a service is moving: a deputy still carries it for its owner, or has just stopped. Its calls are at the deputy or
    /// at the owner.
    fn is_on_its_way(&self, service: &StreamName) -> bool {
        let deputy = self.deputy(service);
        deputy.is_some_and(|deputy| self.nodes.has(deputy))
    }

    /// Returns the node for a new call: the node with the most room. If this node has nearly as much room, it is chosen,
    /// because then the request is not forwarded. The choice among other nodes with nearly as much room is random. `draw`: a
    /// random number. `None`: no node takes calls.
    #[must_use]
    pub fn roomiest(&self, draw: u64) -> Option<Location> {
        let own = &self.settings.name;
        let takes = |(name, record): (&NodeName, &NodeRecord)| {
            let room = if name == own {
                self.room
            } else {
                record.room.filter(|_| record.link.is_some())
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

    /// Returns a transaction that deletes the keys of a call whose owner's life has ended. `None`: the call has an owner, or gets
    /// one soon. The keys of a service's calls are deleted only by the node that carries the service, after it has restored all
    /// calls that it can.
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
            lease::lives(self)?,
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

    /// Reports the calls whose keys were not written in time.
    pub(crate) fn end_waits(&mut self, now_ns: u64) {
        while let Some((until_ns, call)) = self.ledger.waits.first().cloned()
            && until_ns <= now_ns
        {
            self.ledger.stop_waiting(&call);
            self.actions.push_back(Action::CallUnclaimed { call });
        }
    }

    /// Takes the next step for each call that has changed, up to the limit of requests.
    pub(crate) fn follow_calls(&mut self, now_ns: u64, requests_max: usize) {
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
        let (me, lives) = (self.life(), lease::lives(self));
        let Some(known) = self.ledger.calls.get(&name) else {
            return;
        };
        let service = known.saved.as_ref().map(|saved| &saved.service);
        let goes_on_elsewhere = service.is_some_and(|service| !self.carries(service));
        if known.pending.is_some() || goes_on_elsewhere {
            return;
        }
        let rightful = self.rightful(known.claim.as_ref());
        let Some(known) = self.ledger.calls.get_mut(&name) else {
            return;
        };
        match known.step(&name, &me, rightful) {
            Step::Rest => {}
            Step::Claimed => {
                known.is_told = true;
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
                let modified = known.claim.as_ref().map_or(Revision::ABSENT, |_| known.at);
                let key = Key::Call(name.clone());
                let mut when = vec![Compare::Modified(key, modified), lives];
                let owner = known.claim.as_ref().map(|claim| &claim.owner.node);
                if let Some(owner) = owner.filter(|owner| **owner != me.node) {
                    when.push(self.nodes.as_known(owner));
                }
                let id = self.commit(now_ns, What::Call(name.clone()), when, operations);
                self.ledger.asked(&name, id);
            }
        }
    }
}

/// Maximum difference between the rooms of two nodes, in percent, that does not justify forwarding a request.
const NEAR: u8 = 10;
