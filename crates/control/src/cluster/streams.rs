//! Who carries what: the life of each stream on this node.
//!
//! | phase | what the media plane does | leads to |
//! |---|---|---|
//! | `Idle`, not running | nothing | `Preparing` when the owner names this node; running when the claim is this life's, without a deputy |
//! | `Preparing` | opens the input | `Prepared`; `Idle` when the owner names another |
//! | `Prepared` | hears the input | claims it, with the owner as its deputy; running when that has stopped, or lives no more |
//! | running | carries it | `Stopping` when another has claimed it, and this node is the deputy; `Idle` when it is neither owner nor deputy, or the lease is over |
//! | `Stopping` | stops, and tells where | `Stopped` |
//! | `Stopped` | nothing | `Idle` when the claim has no deputy any more |
//!
//! A claim with a deputy, by who lives:
//!
//! | owner | deputy | |
//! |---|---|---|
//! | lives | lives | the deputy sends, until it has told the owner ([`Release`]), and the store behind that: it writes itself out of the claim. Only then the owner sends |
//! | lives | has died | the owner writes the deputy out of the claim, if its key is gone. Only then it sends |
//! | has died | lives | the deputy claims it again, and goes on; nobody else may |
//! | has died | has died | whoever is best claims it |

use super::keys::{
    Claim, Declaration, Epoch, Key, Life, NodeName, OnIsolation, Release, Revision, StreamName,
    Value,
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
    is_running: bool,
    /// Where the owner before has stopped is of use once: later, it is old.
    resumed: Option<Epoch>,
    /// The deputy's word, and where it has stopped. It may come before the answer that the claim is ours.
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
            is_running: false,
            resumed: None,
            released: None,
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

    /// Whether the deputy of this claim has said that it has stopped.
    fn is_released(&self, claim: &Claim) -> bool {
        self.released.as_ref().is_some_and(|(release, _)| {
            release.epoch == claim.epoch
                && release.to == claim.owner
                && claim.deputy.as_ref() == Some(&release.from)
        })
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
        self.is_running
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
        let was_running = std::mem::take(&mut self.is_running);
        if !is_ended {
            return was_running;
        }
        // What it was doing concerned a claim that it has no more.
        let was_preparing = self.is_preparing();
        (self.phase, self.released) = (Phase::Idle, None);
        was_running || was_preparing
    }

    fn is_preparing(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Prepared)
    }

    /// What follows from what is known.
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
            return match has_died {
                true => Step::Commit(put(name, without_deputy(claim, Vec::new()))),
                false => Step::Rest,
            };
        }
        let Some(declaration) = &self.declaration else {
            return match self.is_running || self.is_preparing() {
                true => Step::Stop,
                false => Step::Commit(Operation::Delete(Key::Claim(name.clone()))),
            };
        };
        if !self.is_running {
            return Step::Start;
        }
        match (deputy, &claim.next) {
            (Some(_), _) if has_died => Step::Commit(put(name, without_deputy(claim, Vec::new()))),
            // It writes that itself.
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

    /// Another node has claimed it, and waits for this one to stop.
    fn step_of_deputy(&self, name: &StreamName, claim: &Claim, me: &Life, nodes: &Nodes) -> Step {
        match (&self.phase, nodes.has(&claim.owner)) {
            (Phase::Stopping, _) => Step::Rest,
            (Phase::Stopped(resume), true) => {
                Step::Commit(put(name, without_deputy(claim, resume.clone())))
            }
            (_, true) if self.is_running => Step::HandOver,
            // Nothing runs: the lease was over meanwhile.
            (_, true) => Step::Commit(put(name, without_deputy(claim, Vec::new()))),
            // What has stopped may have gone on there for a while: where it has stopped here is old.
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

    /// Nobody has it, or nobody who lives.
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
                deputy: None,
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
        // Whatever the standing is.
        if !is_ours && !is_deputy && std::mem::take(&mut stream.is_running) {
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

    pub(super) fn released(&mut self, release: Release, resume: Vec<u8>) {
        let is_mine = release.to == self.life();
        // It is known since it was to be prepared here.
        if let Some(stream) = self.streams.get_mut(&release.stream).filter(|_| is_mine) {
            self.dirty.insert(release.stream.clone());
            stream.released = Some((release, resume));
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
                // It may be better elsewhere.
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

    /// Some streams at a time go to other nodes.
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
        // A claim may have come here before the keys of those that it names have. Then this is refused, and the answer has those keys.
        let claim = stream.claim.as_ref();
        let named = claim.map(|claim| [Some(&claim.owner), claim.deputy.as_ref()]);
        let others = named.into_iter().flatten().flatten();
        let others = others.filter(|life| life.node != self.settings.name);
        when.extend(others.map(|life| self.nodes.as_known(&life.node)));
        let id = self.commit(now_ns, What::Stream(name.clone()), when, vec![operation]);
        self.asked(&name, id);
    }
}

/// Its owner may send now, and goes on there.
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

/// Transactions on their way: as many as the store answers in some tens of milliseconds.
const REQUESTS_MAX: usize = 256;
/// Streams that are handed over at a time: their listeners' jitter buffers bridge it, if it does not take longer.
const MOVING_MAX: usize = 32;
