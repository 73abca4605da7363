//! Who carries what: the life of each stream on this node.
//!
//! | phase | what the media plane does | leads to |
//! |---|---|---|
//! | `Idle`, not running | nothing | `Preparing` when the owner names this node; running when the claim is this life's |
//! | `Preparing`, `Prepared` | hears the input | running when the claim is this life's; `Idle` when the owner names another |
//! | running | carries it | `Stopping` when the next owner is ready; `Idle` when the claim is not this life's, or the lease is over |
//! | `Stopping` | stops, and tells where | `Stopped` |
//! | `Stopped` | nothing | `Idle` when the claim is the next owner's; running if that one has died meanwhile |

use super::keys::{
    Claim, Declaration, Epoch, Key, Life, Next, NodeName, OnIsolation, Revision, StreamName, Value,
};
use super::nodes::Nodes;
use super::place::{Fit, Point};
use super::store::{Compare, Entry, Operation, Request, RequestId, What};
use super::{Action, Member};

/// A stream that is declared or claimed.
#[derive(Debug)]
pub(super) struct Tracked {
    point: Point,
    declaration: Option<Declaration>,
    declared: Revision,
    claim: Option<Claim>,
    /// Of the claim; of its absence, when that was seen.
    claimed: Revision,
    /// The best node for it, of those that live.
    best: Option<(NodeName, Fit)>,
    pending: Option<RequestId>,
    running: Option<Epoch>,
    /// Where the owner before has stopped is of use once: later, it is old.
    resumed: Option<Epoch>,
    phase: Phase,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Preparing,
    Prepared,
    Stopping,
    Stopped(Vec<u8>),
}

/// What is to be done next for a stream.
#[derive(Debug, PartialEq)]
enum Step {
    Rest,
    Start,
    Stop,
    Prepare,
    HandOver,
    /// Another node would be better, when there is a turn.
    Move(Life),
    Commit(Operation),
}

impl Tracked {
    fn new(name: &StreamName) -> Tracked {
        Tracked {
            point: Point::of(&name.0),
            declaration: None,
            declared: Revision::ABSENT,
            claim: None,
            claimed: Revision::ABSENT,
            best: None,
            pending: None,
            running: None,
            resumed: None,
            phase: Phase::Idle,
        }
    }

    fn best_of(&self, nodes: &Nodes) -> Option<(NodeName, Fit)> {
        nodes.best(self.point, self.declaration.as_ref()?)
    }

    pub(super) fn best_without(&self, own: &NodeName, nodes: &Nodes) -> Option<NodeName> {
        nodes.best_without(own, self.point, self.declaration.as_ref()?)
    }

    pub(super) fn declaration(&self) -> Option<&Declaration> {
        self.declaration.as_ref()
    }

    /// Where a start for this claim goes on.
    fn take_resume(&mut self) -> Option<(Epoch, Vec<u8>)> {
        let claim = self.claim.as_ref()?;
        let is_first = self.resumed.replace(claim.epoch) != Some(claim.epoch);
        let resume = match std::mem::take(&mut self.phase) {
            Phase::Stopped(resume) => resume,
            _ if is_first => claim.resume.clone(),
            _ => Vec::new(),
        };
        Some((claim.epoch, resume))
    }

    pub(super) fn is_declared(&self) -> bool {
        self.declaration.is_some()
    }

    /// The state of the store that the declaration is of.
    pub(super) fn declared_at(&self) -> Revision {
        self.declared
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    /// It is neither declared nor claimed, and what was before that will not be told any more: changes have come up to this state of the store.
    fn is_over(&self, told: Revision) -> bool {
        let latest = self.declared.max(self.claimed);
        !self.is_declared() && !self.is_claimed() && latest <= told
    }

    /// `true`: there was something to stop.
    pub(super) fn stop(&mut self, is_ended: bool) -> bool {
        let continues =
            |declaration: &Declaration| declaration.on_isolation == OnIsolation::Continue;
        if !is_ended && self.declaration.as_ref().is_some_and(continues) {
            return false;
        }
        if is_ended {
            // What it was doing concerned a claim that it has no more.
            let was_preparing = self.is_preparing();
            self.phase = Phase::Idle;
            return self.running.take().is_some() || was_preparing;
        }
        self.running.take().is_some()
    }

    fn is_preparing(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Prepared)
    }

    /// What follows from what is known.
    fn step(&self, name: &StreamName, me: &Life, nodes: &Nodes) -> Step {
        match &self.claim {
            Some(claim) if claim.owner == *me => self.step_of_owner(name, claim, me, nodes),
            Some(claim) if nodes.has(&claim.owner) => self.step_of_other(name, claim, me),
            claim => self.step_of_free(name, claim.as_ref(), me, nodes),
        }
    }

    fn step_of_owner(&self, name: &StreamName, claim: &Claim, me: &Life, nodes: &Nodes) -> Step {
        let Some(declaration) = &self.declaration else {
            return match self.running {
                Some(_) => Step::Stop,
                None => Step::Commit(Operation::Delete(Key::Claim(name.clone()))),
            };
        };
        let next = claim.next.as_ref().filter(|next| nodes.has(&next.life));
        match (&self.phase, next) {
            (Phase::Stopping, _) => return Step::Rest,
            (Phase::Stopped(resume), Some(next)) => {
                return Step::Commit(put(
                    name,
                    Claim {
                        owner: next.life.clone(),
                        epoch: claim.epoch.next(),
                        next: None,
                        resume: resume.clone(),
                    },
                ));
            }
            _ => {}
        }
        if self.running != Some(claim.epoch) {
            return Step::Start;
        }
        match (&claim.next, next) {
            (Some(_), Some(next)) if next.is_ready => Step::HandOver,
            (Some(_), Some(_)) => Step::Rest,
            // It has died.
            (Some(_), None) => Step::Commit(put(
                name,
                Claim {
                    next: None,
                    ..claim.clone()
                },
            )),
            (None, _) => self.step_of_settled(declaration, me, nodes),
        }
    }

    /// It runs here: is it better elsewhere?
    fn step_of_settled(&self, declaration: &Declaration, me: &Life, nodes: &Nodes) -> Step {
        let here = nodes.fit(self.point, declaration, &me.node);
        let (Some(here), Some((best, there))) = (here, &self.best) else {
            return Step::Rest;
        };
        if *best == me.node || !here.is_worth_leaving_for(*there) {
            return Step::Rest;
        }
        nodes.life(best).map_or(Step::Rest, Step::Move)
    }

    /// Another node that lives has it.
    fn step_of_other(&self, name: &StreamName, claim: &Claim, me: &Life) -> Step {
        if self.running.is_some() {
            return Step::Stop;
        }
        let next = claim.next.as_ref().filter(|next| next.life == *me);
        match (next, &self.phase) {
            (Some(_), Phase::Idle) => Step::Prepare,
            (Some(next), Phase::Prepared) if !next.is_ready => {
                let next = Next {
                    is_ready: true,
                    ..next.clone()
                };
                Step::Commit(put(
                    name,
                    Claim {
                        next: Some(next),
                        ..claim.clone()
                    },
                ))
            }
            (Some(_), _) => Step::Rest,
            (None, Phase::Preparing | Phase::Prepared) => Step::Stop,
            (None, _) => Step::Rest,
        }
    }

    /// Nobody has it, or nobody who lives.
    fn step_of_free(
        &self,
        name: &StreamName,
        claim: Option<&Claim>,
        me: &Life,
        nodes: &Nodes,
    ) -> Step {
        if self.running.is_some() {
            return Step::Stop;
        }
        let is_best = |best: &(NodeName, Fit)| best.0 == me.node;
        if self.declaration.is_none() {
            let is_first = nodes.names().next() == Some(&me.node);
            return match claim {
                Some(_) if is_first => Step::Commit(Operation::Delete(Key::Claim(name.clone()))),
                _ if self.is_preparing() => Step::Stop,
                _ => Step::Rest,
            };
        }
        if !self.best.as_ref().is_some_and(is_best) {
            return match self.is_preparing() {
                true => Step::Stop,
                false => Step::Rest,
            };
        }
        Step::Commit(put(
            name,
            Claim {
                owner: me.clone(),
                epoch: claim.map_or(Epoch::default(), |claim| claim.epoch).next(),
                next: None,
                // What the claim has is where an earlier owner has stopped.
                resume: Vec::new(),
            },
        ))
    }
}

impl Member {
    pub(super) fn note_declaration(
        &mut self,
        name: StreamName,
        entry: Option<Entry>,
        at: Revision,
    ) {
        let declaration = match entry.map(|entry| entry.value) {
            Some(Value::Stream(declaration)) => Some(declaration),
            Some(_) => return,
            None => None,
        };
        let stream = self.streams.entry(name.clone());
        let stream = stream.or_insert_with(|| Tracked::new(&name));
        if at <= stream.declared {
            return;
        }
        (stream.declaration, stream.declared) = (declaration, at);
        stream.best = stream.best_of(&self.nodes);
        self.dirty.insert(name);
    }

    pub(super) fn note_claim(&mut self, name: StreamName, entry: Option<Entry>, at: Revision) {
        let claim = match entry.map(|entry| entry.value) {
            Some(Value::Claim(claim)) => Some(claim),
            Some(_) => return,
            None => None,
        };
        let me = self.life();
        let stream = self.streams.entry(name.clone());
        let stream = stream.or_insert_with(|| Tracked::new(&name));
        if at <= stream.claimed {
            return;
        }
        (stream.claim, stream.claimed) = (claim, at);
        let is_ours = stream.claim.as_ref().is_some_and(|claim| claim.owner == me);
        if !is_ours && matches!(stream.phase, Phase::Stopping | Phase::Stopped(_)) {
            stream.phase = Phase::Idle;
        }
        // Whatever the standing is.
        if !is_ours && stream.running.take().is_some() {
            self.actions.push_back(Action::Stop {
                stream: name.clone(),
            });
        }
        self.dirty.insert(name);
    }

    /// A node has come, gone or changed.
    pub(super) fn replan(&mut self, node: &NodeName) {
        let is_there = self.nodes.is_known(node);
        let me = &self.settings.name;
        for (name, stream) in &mut self.streams {
            let was_best = stream.best.as_ref().is_some_and(|(best, _)| best == node);
            let best = match (&stream.declaration, &stream.best) {
                (Some(declaration), Some((_, there))) if is_there && !was_best => {
                    let here = self.nodes.fit(stream.point, declaration, node);
                    let here = here.filter(|here| here > there);
                    here.map(|here| (node.clone(), here))
                }
                _ if was_best || stream.best.is_none() => {
                    stream.best = None;
                    stream.best_of(&self.nodes)
                }
                _ => None,
            };
            if best.is_some() {
                stream.best = best;
            }
            let is_best = stream.best.as_ref().is_some_and(|(best, _)| best == me);
            let names = |claim: &Claim| {
                let is_owner = claim.owner.node == *node || claim.owner.node == *me;
                is_owner
                    || claim
                        .next
                        .as_ref()
                        .is_some_and(|next| next.life.node == *node)
            };
            if is_best || stream.claim.as_ref().is_some_and(names) {
                self.dirty.insert(name.clone());
            }
        }
    }

    pub(super) fn look_at_all(&mut self) {
        self.dirty.extend(self.streams.keys().cloned());
        self.ledger.look_at_all();
    }

    pub(super) fn prepared(&mut self, name: &StreamName) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.phase == Phase::Preparing
        {
            stream.phase = Phase::Prepared;
            self.dirty.insert(name.clone());
        }
    }

    pub(super) fn stopped(&mut self, name: &StreamName, resume: Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.phase == Phase::Stopping
        {
            stream.phase = Phase::Stopped(resume);
            self.dirty.insert(name.clone());
        }
    }

    pub(super) fn asked(&mut self, name: &StreamName, id: RequestId) {
        if let Some(stream) = self.streams.get_mut(name) {
            stream.pending = Some(id);
        }
    }

    pub(super) fn answered(&mut self, name: &StreamName, request: &Request) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.pending == Some(request.transaction.id)
        {
            stream.pending = None;
            self.dirty.insert(name.clone());
        }
    }

    /// Does what is to be done for streams about which something has changed.
    pub(super) fn follow(&mut self, now_ns: u64) {
        if !self.is_live(now_ns) {
            return;
        }
        self.follow_calls(now_ns, REQUESTS_MAX);
        if !self.is_synced {
            return;
        }
        while self.requests.len() < REQUESTS_MAX {
            let Some(name) = self.dirty.pop_first() else {
                return self.move_next(now_ns);
            };
            self.do_next(now_ns, &name);
        }
    }

    fn do_next(&mut self, now_ns: u64, name: &StreamName) {
        let me = self.life();
        let Some(stream) = self.streams.get_mut(name) else {
            return;
        };
        let is_idle = stream.phase == Phase::Idle && stream.running.is_none();
        if stream.pending.is_some() {
            return;
        }
        if is_idle && stream.is_over(self.revision) {
            self.streams.remove(name);
            self.moving.remove(name);
            return;
        }
        let step = stream.step(name, &me, &self.nodes);
        let is_moving = stream.claim.as_ref().is_some_and(|claim| {
            claim.owner == me && (claim.next.is_some() || stream.phase != Phase::Idle)
        });
        if !is_moving {
            self.moving.remove(name);
            self.wishes.remove(name);
        }
        let stream_name = name.clone();
        match step {
            Step::Rest => {}
            Step::Start => {
                let Some((epoch, resume)) = stream.take_resume() else {
                    return;
                };
                stream.running = Some(epoch);
                self.actions.push_back(Action::Start {
                    stream: stream_name,
                    epoch,
                    resume,
                });
                // It may be better elsewhere.
                self.dirty.insert(name.clone());
            }
            Step::Stop => {
                (stream.running, stream.phase) = (None, Phase::Idle);
                self.actions.push_back(Action::Stop {
                    stream: stream_name,
                });
                self.dirty.insert(name.clone());
            }
            Step::Prepare => {
                let Some(claim) = &stream.claim else { return };
                stream.phase = Phase::Preparing;
                self.actions.push_back(Action::Prepare {
                    stream: stream_name,
                    epoch: claim.epoch.next(),
                });
            }
            Step::HandOver => {
                (stream.running, stream.phase) = (None, Phase::Stopping);
                self.actions.push_back(Action::HandOver {
                    stream: stream_name,
                });
            }
            Step::Move(life) => {
                self.wishes.insert(stream_name, life);
            }
            Step::Commit(operation) => self.change(now_ns, stream_name, operation),
        }
    }

    /// Some streams at a time go to other nodes.
    fn move_next(&mut self, now_ns: u64) {
        while self.moving.len() < MOVING_MAX {
            let Some((name, life)) = self.wishes.pop_first() else {
                return;
            };
            let claim = self.streams.get(&name).and_then(Tracked::claim);
            let Some(claim) = claim.filter(|claim| claim.owner == self.life()) else {
                continue;
            };
            let next = Some(Next {
                life,
                is_ready: false,
            });
            let claim = Claim {
                next,
                ..claim.clone()
            };
            self.moving.insert(name.clone());
            let operation = put(&name, claim);
            self.change(now_ns, name, operation);
        }
    }

    /// Changes a claim as this life of the node knows it.
    fn change(&mut self, now_ns: u64, name: StreamName, operation: Operation) {
        let (Some(lives), Some(stream)) = (self.lives(), self.streams.get(&name)) else {
            return;
        };
        let modified = match &stream.claim {
            Some(_) => stream.claimed,
            None => Revision::ABSENT,
        };
        let mut when = vec![Compare::Modified(Key::Claim(name.clone()), modified), lives];
        // A claim may have come here before the key of its owner has. Then this is refused, and the answer has that key.
        if let Some(owner) = stream.claim.as_ref().map(|claim| &claim.owner)
            && owner.node != self.settings.name
        {
            when.push(self.nodes.as_known(&owner.node));
        }
        let id = self.commit(now_ns, What::Stream(name.clone()), when, vec![operation]);
        self.asked(&name, id);
    }
}

fn put(name: &StreamName, claim: Claim) -> Operation {
    Operation::Put(Key::Claim(name.clone()), Value::Claim(claim))
}

/// Transactions on their way: as many as the store answers in some tens of milliseconds.
const REQUESTS_MAX: usize = 256;
/// Streams that are handed over at a time: their listeners' jitter buffers bridge it, if it does not take longer.
const MOVING_MAX: usize = 32;
