//! The state of each stream on this node.
//!
//! | phase | media plane | next phase |
//! |---|---|---|
//! | `Idle`, not running | does nothing | `Preparing` when the owner names this node; running when this life owns the claim and it has no deputy |
//! | `Preparing` | opens the input | `Prepared`; `Idle` when the owner names another node |
//! | `Prepared` | receives the input | claims the stream, with the owner as its deputy; running when the deputy has stopped or is dead |
//! | running | carries the stream | `Stopping` when another node has claimed it with this node as deputy; `Idle` when this node is neither, or its lease is over |
//! | `Stopping` | stops, and reports its position | `Stopped` |
//! | `Stopped` | does nothing | `Idle` when the claim has no deputy any more |
//!
//! The steps for a claim with a deputy depend on which of the two nodes is alive:
//!
//! | owner | deputy | step |
//! |---|---|---|
//! | alive | alive | the deputy stops, sends a [`Release`], and removes itself from the claim; the owner sends after the first of these |
//! | alive | dead | the owner removes the deputy from the claim, if the deputy's key is gone; only then it sends |
//! | dead | alive | the deputy claims the stream again and continues; no other node may |
//! | dead | dead | the best node claims the stream |

use crate::keys::{
    Claim, Declaration, Epoch, Key, Life, NodeName, OnIsolation, Release, Revision, StreamName,
    Value,
};
use crate::lease;
use crate::nodes::Nodes;
use crate::place::{Fit, Point};
use crate::store::{Compare, Entry, Operation, Request, RequestId, What};
use crate::{Action, Member};

/// A stream that is declared or claimed.
#[derive(Debug)]
pub(crate) struct Tracked {
    point: Point,
    declaration: Option<Declaration>,
    declared: Revision,
    claim: Option<Claim>,
    /// Revision of the claim, or the store's revision at which it had no claim.
    claimed: Revision,
    /// The best live node for the stream.
    best: Option<(NodeName, Fit)>,
    pending: Option<RequestId>,
    is_running: bool,
    /// The claim whose position this node has already used to resume. A position is used only once, because it becomes outdated.
    resumed: Option<Epoch>,
    /// The deputy's message, and the position in it. The message may arrive before the answer to the claim.
    released: Option<(Release, Vec<u8>)>,
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

/// The next step for a stream.
#[derive(Debug, PartialEq)]
enum Step {
    Rest,
    Start,
    Stop,
    Prepare,
    HandOver,
    /// Another node would be better. Hand over the stream to it when the number of moving streams permits.
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
            is_running: false,
            resumed: None,
            released: None,
            phase: Phase::Idle,
        }
    }

    fn best_of(&self, nodes: &Nodes) -> Option<(NodeName, Fit)> {
        nodes.best(self.point, self.declaration.as_ref()?)
    }

    pub(crate) fn best_without(&self, own: &NodeName, nodes: &Nodes) -> Option<NodeName> {
        nodes.best_without(own, self.point, self.declaration.as_ref()?)
    }

    pub(crate) fn declaration(&self) -> Option<&Declaration> {
        self.declaration.as_ref()
    }

    /// Takes the position from which the stream resumes under the current claim.
    fn take_resume(&mut self) -> Option<(Epoch, Vec<u8>)> {
        let claim = self.claim.as_ref()?;
        self.phase = Phase::Idle;
        let is_first = self.resumed.replace(claim.epoch) != Some(claim.epoch);
        let told = self.released.as_mut().map(|(_, resume)| resume);
        let resume = match (is_first, told.map(std::mem::take)) {
            (false, _) => Vec::new(),
            (true, Some(resume)) if claim.deputy.is_some() => resume,
            (true, _) => claim.resume.clone(),
        };
        Some((claim.epoch, resume))
    }

    /// Whether the deputy of this claim has sent the message that it has stopped.
    fn is_released(&self, claim: &Claim) -> bool {
        self.released.as_ref().is_some_and(|(release, _)| {
            release.epoch == claim.epoch
                && release.to == claim.owner
                && claim.deputy.as_ref() == Some(&release.from)
        })
    }

    pub(crate) fn is_declared(&self) -> bool {
        self.declaration.is_some()
    }

    /// Returns the revision of the declaration.
    pub(crate) fn declared_at(&self) -> Revision {
        self.declared
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    /// Whether the stream is neither declared nor claimed, and can be forgotten, because all changes up to revision `told` have
    /// arrived. Then no older change can follow.
    fn is_over(&self, told: Revision) -> bool {
        let latest = self.declared.max(self.claimed);
        !self.is_declared() && !self.is_claimed() && latest <= told
    }

    /// Stops the stream. Returns whether it was running or preparing.
    pub(crate) fn stop(&mut self, is_ended: bool) -> bool {
        let continues =
            |declaration: &Declaration| declaration.on_isolation == OnIsolation::Continue;
        if !is_ended && self.declaration.as_ref().is_some_and(continues) {
            return false;
        }
        let was_running = std::mem::take(&mut self.is_running);
        if !is_ended {
            return was_running;
        }
        // Preparations end, too, because they depend on a claim that is gone.
        let was_preparing = self.is_preparing();
        (self.phase, self.released) = (Phase::Idle, None);
        was_running || was_preparing
    }

    fn is_preparing(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Prepared)
    }

    /// Returns the next step.
    fn step(&self, name: &StreamName, me: &Life, nodes: &Nodes) -> Step {
        let has_deputy = |claim: &Claim| claim.deputy.as_ref().is_some_and(|life| nodes.has(life));
        match &self.claim {
            Some(claim) if claim.owner == *me => self.step_of_owner(name, claim, me, nodes),
            Some(claim) if claim.deputy.as_ref() == Some(me) => {
                self.step_of_deputy(name, claim, me, nodes)
            }
            Some(claim) if nodes.has(&claim.owner) || has_deputy(claim) => {
                self.step_of_other(name, claim, me)
            }
            claim => self.step_of_free(name, claim.as_ref(), me, nodes),
        }
    }

    fn step_of_owner(&self, name: &StreamName, claim: &Claim, me: &Life, nodes: &Nodes) -> Step {
        let deputy = claim.deputy.as_ref();
        let has_died = deputy.is_some_and(|deputy| !nodes.has(deputy));
        if deputy.is_some() && !self.is_released(claim) {
            return if has_died {
                Step::Commit(put(name, without_deputy(claim, Vec::new())))
            } else {
                Step::Rest
            };
        }
        let Some(declaration) = &self.declaration else {
            return if self.is_running || self.is_preparing() {
                Step::Stop
            } else {
                Step::Commit(Operation::Delete(Key::Claim(name.clone())))
            };
        };
        if !self.is_running {
            return Step::Start;
        }
        match (deputy, &claim.next) {
            (Some(_), _) if has_died => Step::Commit(put(name, without_deputy(claim, Vec::new()))),
            // Wait for the deputy, which removes itself from the claim.
            (Some(_), _) => Step::Rest,
            (None, Some(next)) if nodes.has(next) => Step::Rest,
            (None, Some(_)) => Step::Commit(put(
                name,
                Claim {
                    next: None,
                    ..claim.clone()
                },
            )),
            (None, None) => self.step_of_settled(declaration, me, nodes),
        }
    }

    /// Returns the next step of a deputy: another node has claimed the stream, and waits until this node has stopped.
    fn step_of_deputy(&self, name: &StreamName, claim: &Claim, me: &Life, nodes: &Nodes) -> Step {
        match (&self.phase, nodes.has(&claim.owner)) {
            (Phase::Stopping, _) => Step::Rest,
            (Phase::Stopped(resume), true) => {
                Step::Commit(put(name, without_deputy(claim, resume.clone())))
            }
            (_, true) if self.is_running => Step::HandOver,
            // The stream does not run, because the lease has run out in the meantime.
            (_, true) => Step::Commit(put(name, without_deputy(claim, Vec::new()))),
            // The owner may have sent after this node stopped, so this node's position is outdated.
            (_, false) => Step::Commit(put(
                name,
                Claim {
                    owner: me.clone(),
                    epoch: claim.epoch.next(),
                    deputy: None,
                    next: None,
                    resume: Vec::new(),
                },
            )),
        }
    }

    /// Returns the next step while the stream runs here. Another node may be better.
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

    /// Returns the next step while another live node has the stream.
    fn step_of_other(&self, name: &StreamName, claim: &Claim, me: &Life) -> Step {
        if self.is_running {
            return Step::Stop;
        }
        match (claim.next.as_ref() == Some(me), &self.phase) {
            (true, Phase::Idle) => Step::Prepare,
            (true, Phase::Prepared) => Step::Commit(put(
                name,
                Claim {
                    owner: me.clone(),
                    epoch: claim.epoch.next(),
                    deputy: Some(claim.owner.clone()),
                    next: None,
                    resume: Vec::new(),
                },
            )),
            (true, _) => Step::Rest,
            (false, Phase::Preparing | Phase::Prepared) => Step::Stop,
            (false, _) => Step::Rest,
        }
    }

    /// Returns the next step while no live node has the stream.
    fn step_of_free(
        &self,
        name: &StreamName,
        claim: Option<&Claim>,
        me: &Life,
        nodes: &Nodes,
    ) -> Step {
        if self.is_running {
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
            return if self.is_preparing() {
                Step::Stop
            } else {
                Step::Rest
            };
        }
        Step::Commit(put(
            name,
            Claim {
                owner: me.clone(),
                epoch: claim.map_or(Epoch::default(), |claim| claim.epoch).next(),
                deputy: None,
                next: None,
                // The position in the claim is outdated: it is that of an earlier owner.
                resume: Vec::new(),
            },
        ))
    }
}

impl Member {
    pub(crate) fn note_declaration(
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

    pub(crate) fn note_claim(&mut self, name: StreamName, entry: Option<Entry>, at: Revision) {
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
        let claim = stream.claim.as_ref();
        let is_ours = claim.is_some_and(|claim| claim.owner == me);
        let is_deputy = claim.is_some_and(|claim| claim.deputy.as_ref() == Some(&me));
        if !is_deputy && matches!(stream.phase, Phase::Stopping | Phase::Stopped(_)) {
            stream.phase = Phase::Idle;
        }
        let is_old =
            |(release, _): &(Release, _)| claim.is_some_and(|claim| claim.epoch > release.epoch);
        if stream.released.as_ref().is_some_and(is_old) {
            stream.released = None;
        }
        // A stream of another node is stopped even if this node has no lease.
        if !is_ours && !is_deputy && std::mem::take(&mut stream.is_running) {
            self.actions.push_back(Action::Stop {
                stream: name.clone(),
            });
        }
        self.dirty.insert(name);
    }

    /// Finds the best nodes again after a node has come, gone or changed.
    pub(crate) fn replan(&mut self, node: &NodeName) {
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
                let is_it = |life: &Life| life.node == *node;
                let has = |life: &Life| is_it(life) || life.node == *me;
                has(&claim.owner)
                    || claim.deputy.as_ref().is_some_and(has)
                    || claim.next.as_ref().is_some_and(is_it)
            };
            if is_best || stream.claim.as_ref().is_some_and(names) {
                self.dirty.insert(name.clone());
            }
        }
    }

    pub(crate) fn look_at_all(&mut self) {
        self.dirty.extend(self.streams.keys().cloned());
        self.ledger.look_at_all();
    }

    pub(crate) fn prepared(&mut self, name: &StreamName) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.phase == Phase::Preparing
        {
            stream.phase = Phase::Prepared;
            self.dirty.insert(name.clone());
        }
    }

    pub(crate) fn stopped(&mut self, name: &StreamName, resume: Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.phase == Phase::Stopping
        {
            stream.phase = Phase::Stopped(resume);
            self.dirty.insert(name.clone());
        }
    }

    pub(crate) fn released(&mut self, release: Release, resume: Vec<u8>) {
        let is_mine = release.to == self.life();
        // If the message is for this node, this node knows the stream, because it has prepared it.
        if let Some(stream) = self.streams.get_mut(&release.stream).filter(|_| is_mine) {
            self.dirty.insert(release.stream.clone());
            stream.released = Some((release, resume));
        }
    }

    pub(crate) fn asked(&mut self, name: &StreamName, id: RequestId) {
        if let Some(stream) = self.streams.get_mut(name) {
            stream.pending = Some(id);
        }
    }

    pub(crate) fn answered(&mut self, name: &StreamName, request: &Request) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.pending == Some(request.transaction.id)
        {
            stream.pending = None;
            self.dirty.insert(name.clone());
        }
    }

    /// Takes the next steps of the streams that have changed.
    pub(crate) fn follow(&mut self, now_ns: u64) {
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
        let is_idle = stream.phase == Phase::Idle && !stream.is_running;
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
            claim.owner == me && claim.next.is_some() || claim.deputy.as_ref() == Some(&me)
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
                stream.is_running = true;
                self.actions.push_back(Action::Start {
                    stream: stream_name,
                    epoch,
                    resume,
                });
                // Another node may be better for the stream.
                self.dirty.insert(name.clone());
            }
            Step::Stop => {
                (stream.is_running, stream.phase) = (false, Phase::Idle);
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
                (stream.is_running, stream.phase) = (false, Phase::Stopping);
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

    /// Starts to hand over streams, a limited number at a time.
    fn move_next(&mut self, now_ns: u64) {
        while self.moving.len() < MOVING_MAX {
            let Some((name, life)) = self.wishes.pop_first() else {
                return;
            };
            let claim = self.streams.get(&name).and_then(Tracked::claim);
            let is_ours = |claim: &&Claim| claim.owner == self.life() && claim.deputy.is_none();
            let Some(claim) = claim.filter(is_ours) else {
                continue;
            };
            let claim = Claim {
                next: Some(life),
                ..claim.clone()
            };
            self.moving.insert(name.clone());
            let operation = put(&name, claim);
            self.change(now_ns, name, operation);
        }
    }

    /// Commits a change of a claim. The conditions are the revisions that this node knows.
    fn change(&mut self, now_ns: u64, name: StreamName, operation: Operation) {
        let (Some(lives), Some(stream)) = (lease::lives(self), self.streams.get(&name)) else {
            return;
        };
        let modified = match &stream.claim {
            Some(_) => stream.claimed,
            None => Revision::ABSENT,
        };
        let mut when = vec![Compare::Modified(Key::Claim(name.clone()), modified), lives];
        // Also compare the keys of the nodes that the claim names. If the claim has arrived before these keys, the transaction
        // is refused, and the answer has the keys.
        let claim = stream.claim.as_ref();
        let named = claim.map(|claim| [Some(&claim.owner), claim.deputy.as_ref()]);
        let others = named.into_iter().flatten().flatten();
        let others = others.filter(|life| life.node != self.settings.name);
        when.extend(others.map(|life| self.nodes.as_known(&life.node)));
        let id = self.commit(now_ns, What::Stream(name.clone()), when, vec![operation]);
        self.asked(&name, id);
    }
}

/// Returns the claim without its deputy. The owner may then send, from this position.
fn without_deputy(claim: &Claim, resume: Vec<u8>) -> Claim {
    Claim {
        deputy: None,
        resume,
        ..claim.clone()
    }
}

fn put(name: &StreamName, claim: Claim) -> Operation {
    Operation::Put(Key::Claim(name.clone()), Value::Claim(claim))
}

/// Maximum number of pending transactions: as many as the store answers in some tens of milliseconds.
const REQUESTS_MAX: usize = 256;
/// Maximum number of streams that are handed over at the same time. The receivers' jitter buffers can hide only a short gap.
const MOVING_MAX: usize = 32;
