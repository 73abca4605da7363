//! Simulates a cluster in virtual time, with a store like etcd, nodes whose clocks drift apart, and a network that loses,
//! delays and repeats messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use threadbare_member::{
    Action, CallName, Compare, Declaration, Entry, Epoch, Key, Kind, Location, Member, Operation,
    Outcome, Release, Reply, Revision, Settings, StreamName, Timing, Transaction, Value,
};

pub(crate) const MS: u64 = 1_000_000;

/// Faults of the network between a node and the store.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Link {
    pub(crate) loses_requests: bool,
    pub(crate) loses_answers: bool,
    /// Longest delay.
    pub(crate) slow_ns: u64,
}

struct Process {
    member: Member,
    tag: u64,
    frozen_until: u64,
    link: Link,
    /// Delivery time of the last sent change. Changes arrive in order.
    watch_ns: u64,
    is_watching: bool,
    /// The event that the next time-out delivers, and its time.
    timeout: (u64, u64),
    until_ns: u64,
    running: BTreeMap<StreamName, Epoch>,
    preparing: BTreeSet<StreamName>,
    /// Streams that must stop, but still send.
    stopping: BTreeSet<StreamName>,
    /// The node's calls, and whether their keys are confirmed.
    calls: BTreeMap<CallName, bool>,
    /// The services of the calls that belong to a service.
    services: BTreeMap<CallName, StreamName>,
}

struct Node {
    settings: Settings,
    /// Drift of the node's monotonic clock, in parts per million.
    ppm: i64,
    offset_ns: u64,
    process: Option<Process>,
}

impl Node {
    fn local(&self, true_ns: u64) -> u64 {
        let scaled = i128::from(true_ns) * i128::from(1_000_000 + self.ppm) / 1_000_000;
        self.offset_ns + scaled as u64
    }

    /// Returns the first true time at which the node's clock shows `local_ns`.
    fn true_time(&self, local_ns: u64) -> u64 {
        let since = i128::from(local_ns.saturating_sub(self.offset_ns));
        (since * 1_000_000 / i128::from(1_000_000 + self.ppm)) as u64 + 1
    }
}

enum Event {
    Request(Transaction),
    Reply(Reply),
    Change(Key, Option<Arc<Entry>>, Revision),
    Snapshot(Revision, Arc<Vec<Entry>>),
    Cut,
    Timeout,
    Prepared(StreamName),
    HandedOver(StreamName),
    /// A message of another node that it has stopped, with the position.
    Released(Release, Vec<u8>),
    /// The states of a service's calls were read.
    Arrived(StreamName),
}

struct Due {
    at_ns: u64,
    number: u64,
    node: usize,
    tag: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

pub(crate) struct World {
    pub(crate) now_ns: u64,
    due: BinaryHeap<Reverse<Due>>,
    number: u64,
    random: u64,
    revision: u64,
    entries: BTreeMap<Key, Entry>,
    pub(crate) store_is_up: bool,
    nodes: Vec<Node>,
    /// The nodes that started a stream and did not stop it. If there are several, the leases of all but one are over.
    holders: BTreeMap<StreamName, Vec<usize>>,
    /// The node that started last.
    pub(crate) last: BTreeMap<StreamName, usize>,
    /// Streams that started on another node than before.
    pub(crate) moved: BTreeSet<StreamName>,
    /// Positions from which streams that were handed over resumed.
    pub(crate) resumed: BTreeMap<StreamName, Vec<u8>>,
    /// Transactions that changed something, without renewals.
    pub(crate) writes: u64,
    /// Nodes that lost a call to another node, with the call and its new owner.
    pub(crate) taken: Vec<(usize, CallName, String)>,
    /// Calls whose keys were not written in time.
    pub(crate) unclaimed: Vec<CallName>,
    repeats_requests: bool,
    /// How messages between nodes arrive.
    pub(crate) words: Words,
    /// Number of starts because of another node's message, before the store showed the change.
    pub(crate) by_word: u64,
}

/// The fate of the messages of deputies.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Words {
    /// They arrive.
    Come,
    /// Nodes cannot reach one another, so only the store remains.
    AreLost,
    /// They are lost, seconds late, or repeated.
    Fail,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize) -> World {
        let mut world = World {
            now_ns: 1_000 * MS,
            due: BinaryHeap::new(),
            number: 0,
            random: seed,
            revision: 1,
            entries: BTreeMap::new(),
            store_is_up: true,
            nodes: Vec::new(),
            holders: BTreeMap::new(),
            last: BTreeMap::new(),
            moved: BTreeSet::new(),
            resumed: BTreeMap::new(),
            writes: 0,
            taken: Vec::new(),
            unclaimed: Vec::new(),
            repeats_requests: false,
            words: Words::Come,
            by_word: 0,
        };
        for _ in 0..nodes {
            world.add();
        }
        world
    }

    /// Adds a node that is not started.
    pub(crate) fn add(&mut self) -> usize {
        let number = self.nodes.len();
        let ppm = (self.draw() % 20_001) as i64 - 10_000;
        let offset_ns = self.draw() % (1 << 40);
        self.nodes.push(Node {
            settings: Settings {
                name: format!("node-{number}").as_str().into(),
                weight: 1.0,
                labels: vec![format!("rack-{}", number % 2).as_str().into()],
                link: None,
                timing: Timing::default(),
            },
            ppm,
            offset_ns,
            process: None,
        });
        number
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub(crate) fn repeat_requests(&mut self) {
        self.repeats_requests = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    pub(crate) fn start(&mut self, node: usize) {
        let (tag, seed) = (self.draw(), self.draw());
        let local_ns = self.nodes[node].local(self.now_ns);
        let mut member = Member::new(local_ns, self.nodes[node].settings.clone(), seed);
        // Let the node take calls: otherwise, it would carry a service only if no other node can.
        member.set_room(Some(100));
        self.nodes[node].process = Some(Process {
            member,
            tag,
            frozen_until: 0,
            link: Link::default(),
            watch_ns: 0,
            is_watching: false,
            timeout: (0, u64::MAX),
            until_ns: 0,
            running: BTreeMap::new(),
            preparing: BTreeSet::new(),
            stopping: BTreeSet::new(),
            calls: BTreeMap::new(),
            services: BTreeMap::new(),
        });
        self.watch(node);
        self.serve(node);
    }

    pub(crate) fn kill(&mut self, node: usize) {
        if let Some(process) = self.nodes[node].process.take() {
            for stream in process.running.into_keys().chain(process.stopping) {
                self.let_go(node, &stream);
            }
        }
    }

    /// Ends a node. Nodes that are connected to it notice this.
    pub(crate) fn kill_in_sight(&mut self, node: usize) {
        let process = self.nodes[node].process.as_ref();
        let Some(life) = process.map(|process| process.member.life()) else {
            return;
        };
        self.kill(node);
        for other in 0..self.nodes.len() {
            let local_ns = self.nodes[other].local(self.now_ns);
            let now_ns = self.now_ns;
            let process = self.nodes[other].process.as_mut();
            if let Some(process) = process.filter(|process| process.frozen_until <= now_ns) {
                process.member.handle_ended(local_ns, &life);
                self.serve(other);
            }
        }
    }

    pub(crate) fn freeze(&mut self, node: usize, until_ns: u64) {
        if let Some(process) = &mut self.nodes[node].process {
            process.frozen_until = process.frozen_until.max(until_ns);
        }
    }

    /// Changes a node's link. A cut network loses its connection, and a good one restores it.
    pub(crate) fn set_link(&mut self, node: usize, link: Link) {
        let Some(process) = &mut self.nodes[node].process else {
            return;
        };
        process.link = link;
        let is_cut = link.loses_requests || link.loses_answers;
        if is_cut && process.is_watching {
            process.is_watching = false;
            self.tell(node, Event::Cut);
        } else if !is_cut && !process.is_watching {
            self.watch(node);
        }
    }

    pub(crate) fn drain(&mut self, node: usize, draining: bool) {
        let local_ns = self.nodes[node].local(self.now_ns);
        if let Some(process) = &mut self.nodes[node].process {
            process.member.set_draining(local_ns, draining);
            self.serve(node);
        }
    }

    /// Declares a stream as an operator or a file does.
    pub(crate) fn declare(&mut self, stream: &StreamName, declaration: Option<Declaration>) {
        let key = Key::Stream(stream.clone());
        let operation = match declaration {
            Some(declaration) => Operation::Put(key, Value::Stream(declaration)),
            None => Operation::Delete(key),
        };
        self.revision += 1;
        self.apply(operation);
    }

    /// Declares one service for each node.
    pub(crate) fn declare_services(&mut self) {
        for node in 0..self.nodes.len() {
            let declaration = Declaration {
                kind: Kind::Service,
                at: Some(self.nodes[node].settings.name.clone()),
                ..Declaration::default()
            };
            self.declare(&service_of(node), Some(declaration));
        }
    }

    /// Makes a call at a node, with the addresses of its service if the node carries it.
    pub(crate) fn call(&mut self, node: usize, call: &CallName) {
        let service = service_of(node);
        let is_declared = self.entries.contains_key(&Key::Stream(service.clone()));
        let state: Arc<[u8]> = format!("{node}, {}", self.draw()).into_bytes().into();
        if let Some(process) = &self.nodes[node].process {
            let has_one = process.calls.contains_key(call);
            let carries = process.running.contains_key(&service);
            if !is_declared || carries && !has_one {
                self.claim(node, call, is_declared.then_some((service, state)));
            }
        }
    }

    fn claim(&mut self, node: usize, call: &CallName, state: Option<(StreamName, Arc<[u8]>)>) {
        let local_ns = self.nodes[node].local(self.now_ns);
        if let Some(process) = &mut self.nodes[node].process {
            process.calls.insert(call.clone(), false);
            let service = state
                .as_ref()
                .map(|(service, _)| (call.clone(), service.clone()));
            process.services.extend(service);
            let until_ns = local_ns + 1000 * MS;
            let member = &mut process.member;
            member.claim_call(local_ns, call.clone(), state, until_ns);
            self.serve(node);
        }
    }

    /// Changes a call's state.
    pub(crate) fn change(&mut self, node: usize, call: &CallName) -> Arc<[u8]> {
        let state: Arc<[u8]> = format!("changed {}", self.draw()).into_bytes().into();
        let local_ns = self.nodes[node].local(self.now_ns);
        if let Some(process) = &mut self.nodes[node].process {
            process.member.keep_call(local_ns, call, state.clone());
            self.serve(node);
        }
        state
    }

    /// Returns the states of calls in the store.
    pub(crate) fn states(&self) -> Vec<(StreamName, CallName, Arc<[u8]>)> {
        let state = |(key, entry): (&Key, &Entry)| match (key, &entry.value) {
            (Key::State(service, call), Value::State(state)) => {
                Some((service.clone(), call.clone(), state.clone()))
            }
            _ => None,
        };
        self.entries.iter().filter_map(state).collect()
    }

    /// Lets a node that carries a service restore the service's calls.
    fn arrive(&mut self, node: usize, service: &StreamName) {
        let process = self.nodes[node].process.as_ref();
        if !process.is_some_and(|process| process.running.contains_key(service)) {
            return;
        }
        let states = self.states().into_iter();
        for (service, call, state) in states.filter(|(of, ..)| of == service) {
            let process = self.nodes[node].process.as_ref().expect("as above");
            if !process.calls.contains_key(&call) {
                self.claim(node, &call, Some((service, state)));
            }
        }
    }

    /// Lets a node give up the calls of a service that it no longer carries.
    fn leave_calls(&mut self, node: usize, service: &StreamName) {
        if let Some(process) = &mut self.nodes[node].process {
            process.member.leave_calls(service);
            let services = &process.services;
            let is_left = |call: &CallName| services.get(call) != Some(service);
            process.calls.retain(|call, _| is_left(call));
            process.services.retain(|_, of| of != service);
        }
    }

    /// Ends a call at a node.
    pub(crate) fn hang_up(&mut self, node: usize, call: &CallName) {
        let local_ns = self.nodes[node].local(self.now_ns);
        if let Some(process) = &mut self.nodes[node].process {
            process.calls.remove(call);
            process.services.remove(call);
            process.member.release_call(local_ns, call);
            self.serve(node);
        }
    }

    /// Returns the nodes that have a call, and whether each has confirmed the call's key.
    pub(crate) fn parties(&self, call: &CallName) -> Vec<(usize, bool)> {
        let has = |node: usize| {
            let process = self.nodes[node].process.as_ref()?;
            Some((node, *process.calls.get(call)?))
        };
        (0..self.nodes.len()).filter_map(has).collect()
    }

    /// Returns where this node sends requests for the call.
    pub(crate) fn locate(&self, node: usize, call: &CallName) -> Location {
        let process = self.nodes[node].process.as_ref().expect("it runs");
        let entry = self.entries.get(&Key::Call(call.clone()));
        process.member.locate(entry)
    }

    /// Returns the number of calls' keys.
    pub(crate) fn call_keys(&self) -> usize {
        let keys = self.entries.keys();
        keys.filter(|key| matches!(key, Key::Call(_))).count()
    }

    /// Lets this node delete the keys of calls whose owners are dead.
    pub(crate) fn sweep(&mut self, node: usize) {
        let entries: Vec<Entry> = self.entries.values().cloned().collect();
        for entry in entries {
            let process = self.nodes[node].process.as_mut().expect("it runs");
            if let Some(transaction) = process.member.sweep(&entry) {
                self.send(node, Event::Request(transaction), 0);
            }
        }
    }

    /// Deletes all keys, as if the store restarted without its data.
    pub(crate) fn lose_data(&mut self) {
        let keys: Vec<Key> = self.entries.keys().cloned().collect();
        self.revision += 1;
        for key in keys {
            self.apply(Operation::Delete(key));
        }
    }

    pub(crate) fn streams_of(&self, node: usize) -> usize {
        let process = self.nodes[node].process.as_ref();
        process.map_or(0, |process| process.running.len())
    }

    pub(crate) fn is_handing_over(&self, node: usize) -> bool {
        let process = self.nodes[node].process.as_ref();
        process.is_some_and(|process| process.member.is_handing_over())
    }

    /// Returns the number of claims that name this node as owner or deputy.
    pub(crate) fn claims_of(&self, node: usize) -> usize {
        let name = &self.nodes[node].settings.name;
        let is_its = |entry: &&Entry| match &entry.value {
            Value::Claim(claim) => {
                let deputy = claim.deputy.as_ref();
                claim.owner.node == *name || deputy.is_some_and(|life| life.node == *name)
            }
            _ => false,
        };
        self.entries.values().filter(is_its).count()
    }

    pub(crate) fn is_preparing(&self) -> bool {
        let processes = self.nodes.iter().flat_map(|node| &node.process);
        processes
            .into_iter()
            .any(|process| !process.preparing.is_empty())
    }

    /// Returns the number of streams that no node sends now.
    pub(crate) fn silent<'s>(&self, streams: impl Iterator<Item = &'s StreamName>) -> usize {
        streams.filter(|stream| !self.is_sent(stream)).count()
    }

    fn is_sent(&self, stream: &StreamName) -> bool {
        let holders = self.holders.get(stream);
        holders.is_some_and(|nodes| {
            nodes
                .iter()
                .any(|&node| self.sends_until(node) > self.now_ns)
        })
    }

    fn sends_until(&self, node: usize) -> u64 {
        let of = &self.nodes[node];
        let process = of.process.as_ref();
        process.map_or(0, |process| of.true_time(process.until_ns))
    }

    /// Runs until this time.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        while self
            .due
            .peek()
            .is_some_and(|Reverse(due)| due.at_ns <= until_ns)
        {
            let Some(Reverse(due)) = self.due.pop() else {
                break;
            };
            self.now_ns = self.now_ns.max(due.at_ns);
            self.happen(due);
        }
        self.now_ns = until_ns;
    }

    pub(crate) fn run_for(&mut self, duration_ns: u64) {
        self.run_until(self.now_ns + duration_ns);
    }

    fn happen(&mut self, mut due: Due) {
        let node = due.node;
        let is_request = matches!(due.event, Event::Request(_));
        let now_ns = self.now_ns;
        let local_ns = self.nodes[node].local(now_ns);
        if let (true, Event::Request(transaction)) = (is_request, &due.event) {
            let transaction = transaction.clone();
            return self.commit(node, due.tag, transaction);
        }
        let Some(process) = &mut self.nodes[node].process else {
            return;
        };
        if process.tag != due.tag {
            return;
        }
        if process.frozen_until > now_ns {
            due.at_ns = process.frozen_until;
            self.due.push(Reverse(due));
            return;
        }
        let member = &mut process.member;
        match due.event {
            Event::Arrived(service) => return self.arrive(node, &service),
            Event::Request(_) => {}
            Event::Reply(reply) => member.handle_reply(local_ns, reply),
            Event::Change(key, entry, at) => {
                member.handle_change(local_ns, key, entry.map(|entry| (*entry).clone()), at);
            }
            Event::Snapshot(revision, entries) => {
                member.handle_snapshot(local_ns, revision, (*entries).clone());
            }
            Event::Cut => member.handle_cut(),
            Event::Timeout => {
                if process.timeout.0 != due.number {
                    return;
                }
                process.timeout = (0, u64::MAX);
                member.handle_timeout(local_ns);
            }
            Event::Prepared(stream) => member.handle_prepared(local_ns, &stream),
            Event::HandedOver(stream) => return self.handed_over(node, &stream),
            Event::Released(release, resume) => {
                member.handle_released(local_ns, release, resume);
            }
        }
        self.serve(node);
    }

    /// Handles that the media of a stream has stopped.
    fn handed_over(&mut self, node: usize, stream: &StreamName) {
        let now_ns = self.now_ns;
        let local_ns = self.nodes[node].local(now_ns);
        let Some(process) = &mut self.nodes[node].process else {
            return;
        };
        if !process.stopping.remove(stream) {
            return;
        }
        let resume = format!("{stream} at {now_ns}").into_bytes();
        if let Some(release) = process.member.release(stream) {
            self.say(&release, &resume);
        }
        self.let_go(node, stream);
        if let Some(process) = &mut self.nodes[node].process {
            process.member.handle_handed_over(local_ns, stream, resume);
            self.serve(node);
        }
    }

    /// Sends a deputy's message to the owner's node.
    fn say(&mut self, release: &Release, resume: &[u8]) {
        let bits = self.draw();
        let (count, late_ns) = match self.words {
            Words::Come => (1, 0),
            Words::AreLost => (0, 0),
            Words::Fail => (bits % 3, 3000 * MS),
        };
        let is_its = |node: &Node| node.settings.name == release.to.node;
        let Some(to) = self.nodes.iter().position(is_its) else {
            return;
        };
        for _ in 0..count {
            let late_ns = if self.draw().is_multiple_of(2) {
                late_ns
            } else {
                0
            };
            self.send(
                to,
                Event::Released(release.clone(), resume.to_vec()),
                late_ns,
            );
        }
    }

    /// Carries out the actions of a node, and checks that they are allowed.
    fn serve(&mut self, node: usize) {
        loop {
            let Some(process) = &mut self.nodes[node].process else {
                return;
            };
            let Some(action) = process.member.poll_action() else {
                break;
            };
            self.act(node, action);
        }
        let now_ns = self.now_ns;
        let of = &mut self.nodes[node];
        let Some(process) = &mut of.process else {
            return;
        };
        let (until_ns, next_ns) = (
            process.member.send_until_ns(),
            process.member.next_timeout(),
        );
        let is_longer = until_ns > process.until_ns;
        process.until_ns = until_ns;
        if next_ns < process.timeout.1 {
            process.timeout = (self.number + 1, next_ns);
            let at_ns = of.true_time(next_ns).max(now_ns);
            let tag = of.process.as_ref().map_or(0, |process| process.tag);
            self.push(at_ns, node, tag, Event::Timeout);
        }
        if is_longer {
            let process = self.nodes[node].process.as_ref().expect("as above");
            let running: Vec<StreamName> = process.running.keys().cloned().collect();
            for stream in running {
                self.assert_alone(node, &stream);
            }
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        let process = self.nodes[node].process.as_mut().expect("it acts");
        match action {
            Action::Commit(transaction) => {
                if !process.link.loses_requests {
                    if self.repeats_requests && self.draw().is_multiple_of(10) {
                        self.send(node, Event::Request(transaction.clone()), 400 * MS);
                    }
                    self.send(node, Event::Request(transaction), 0);
                }
            }
            Action::Start {
                stream,
                epoch,
                resume,
            } => {
                process.running.insert(stream.clone(), epoch);
                process.preparing.remove(&stream);
                let claim = self.entries.get(&Key::Claim(stream.clone()));
                let has_deputy = |entry: &Entry| matches!(&entry.value, Value::Claim(claim) if claim.deputy.is_some());
                self.by_word += u64::from(claim.is_some_and(has_deputy));
                let holders = self.holders.entry(stream.clone()).or_default();
                if !holders.contains(&node) {
                    holders.push(node);
                }
                self.assert_alone(node, &stream);
                self.resumed.insert(stream.clone(), resume);
                self.send(node, Event::Arrived(stream.clone()), 5 * MS);
                if self
                    .last
                    .insert(stream.clone(), node)
                    .is_some_and(|last| last != node)
                {
                    self.moved.insert(stream);
                }
            }
            Action::Prepare { stream, .. } => {
                process.preparing.insert(stream.clone());
                self.send(node, Event::Prepared(stream), 20 * MS);
            }
            Action::HandOver { stream } => {
                process.running.remove(&stream);
                process.stopping.insert(stream.clone());
                self.leave_calls(node, &stream);
                self.send(node, Event::HandedOver(stream), MS);
            }
            Action::Stop { stream } => {
                process.preparing.remove(&stream);
                process.running.remove(&stream);
                process.stopping.remove(&stream);
                self.let_go(node, &stream);
                self.leave_calls(node, &stream);
            }
            Action::CallClaimed { call } => {
                let told = process.calls.get_mut(&call).expect("it is here");
                *told = true;
            }
            Action::CallTaken { call, owner } => {
                process.calls.remove(&call).expect("it is here");
                process.services.remove(&call);
                self.taken.push((node, call, owner.node.to_string()));
            }
            Action::CallUnclaimed { call } => self.unclaimed.push(call),
        }
    }

    fn let_go(&mut self, node: usize, stream: &StreamName) {
        if let Some(holders) = self.holders.get_mut(stream) {
            holders.retain(|&holder| holder != node);
        }
    }

    /// Asserts that no other node may send the stream, neither now nor after it wakes.
    fn assert_alone(&self, node: usize, stream: &StreamName) {
        let holders = self.holders.get(stream);
        for &other in holders.into_iter().flatten() {
            assert!(
                other == node || self.sends_until(other) <= self.now_ns,
                "{stream} at {} ns: node {node}, and node {other} until {}",
                self.now_ns,
                self.sends_until(other)
            );
        }
    }

    /// Sends an event to a node, or from it to the store.
    fn send(&mut self, node: usize, event: Event, extra_ns: u64) {
        let Some(process) = &self.nodes[node].process else {
            return;
        };
        let (tag, slow_ns) = (process.tag, process.link.slow_ns);
        let way_ns = MS / 5 + self.draw() % (2 * MS + slow_ns + extra_ns);
        self.push(self.now_ns + way_ns, node, tag, event);
    }

    fn push(&mut self, at_ns: u64, node: usize, tag: u64, event: Event) {
        self.number += 1;
        self.due.push(Reverse(Due {
            at_ns,
            number: self.number,
            node,
            tag,
            event,
        }));
    }

    /// Starts a watch, which begins with a snapshot.
    fn watch(&mut self, node: usize) {
        let seen = self.entries.values().filter(|entry| is_seen(&entry.key));
        let entries = Arc::new(seen.cloned().collect());
        let event = Event::Snapshot(Revision(self.revision), entries);
        if let Some(process) = &mut self.nodes[node].process {
            process.is_watching = true;
        }
        self.tell(node, event);
    }

    /// Delivers an event after all earlier ones.
    fn tell(&mut self, node: usize, event: Event) {
        let Some(process) = &self.nodes[node].process else {
            return;
        };
        let (tag, slow_ns, watch_ns) = (process.tag, process.link.slow_ns, process.watch_ns);
        let way_ns = MS / 5 + self.draw() % (2 * MS + slow_ns);
        let at_ns = (self.now_ns + way_ns).max(watch_ns);
        if let Some(process) = &mut self.nodes[node].process {
            process.watch_ns = at_ns;
        }
        self.push(at_ns, node, tag, event);
    }

    /// The store's part of a transaction (etcd's `Txn`).
    fn commit(&mut self, node: usize, tag: u64, transaction: Transaction) {
        if !self.store_is_up {
            return;
        }
        let holds = |compare: &Compare| match compare {
            Compare::Modified(key, at) => {
                let entry = self.entries.get(key);
                entry.map_or(Revision::ABSENT, |entry| entry.modified) == *at
            }
            Compare::Created(key, at) => {
                let entry = self.entries.get(key);
                entry.map_or(Revision::ABSENT, |entry| entry.created) == *at
            }
        };
        let outcome = if transaction.when.iter().all(holds) {
            self.revision += 1;
            for operation in transaction.then {
                if !matches!(operation, Operation::Put(Key::Node(_), _)) {
                    self.writes += 1;
                }
                self.apply(operation);
            }
            Outcome::Committed(Revision(self.revision))
        } else {
            let entry = |compare: &Compare| {
                let key = compare.key().clone();
                let entry = self.entries.get(&key).cloned();
                (key, entry)
            };
            Outcome::Refused {
                now: transaction.when.iter().map(entry).collect(),
                at: Revision(self.revision),
            }
        };
        let process = self.nodes[node].process.as_ref();
        let is_there = |process: &&Process| process.tag == tag && !process.link.loses_answers;
        if process.filter(is_there).is_some() {
            let id = transaction.id;
            self.send(node, Event::Reply(Reply { id, outcome }), 0);
        }
    }

    fn apply(&mut self, operation: Operation) {
        let at = Revision(self.revision);
        let (key, entry) = match operation {
            Operation::Put(key, value) => {
                let created = self.entries.get(&key).map_or(at, |entry| entry.created);
                let entry = Entry {
                    key: key.clone(),
                    value,
                    created,
                    modified: at,
                };
                self.entries.insert(key.clone(), entry.clone());
                (key, Some(Arc::new(entry)))
            }
            Operation::Delete(key) => {
                self.entries.remove(&key);
                (key, None)
            }
        };
        if !is_seen(&key) {
            return;
        }
        for node in 0..self.nodes.len() {
            let process = self.nodes[node].process.as_ref();
            if process.is_some_and(|process| process.is_watching) {
                self.tell(node, Event::Change(key.clone(), entry.clone(), at));
            }
        }
    }

    /// Returns the number of claims whose owners have no key.
    pub(crate) fn claims(&self) -> usize {
        let claims = self
            .entries
            .keys()
            .filter(|key| matches!(key, Key::Claim(_)));
        claims.count()
    }
}

/// Returns the service of a node.
fn service_of(node: usize) -> StreamName {
    format!("service:node-{node}").as_str().into()
}

/// Whether nodes watch the key. Keys of calls are only looked up.
fn is_seen(key: &Key) -> bool {
    !matches!(key, Key::Call(_) | Key::State(..))
}

/// Returns a member without a simulated cluster. The test supplies its inputs.
pub(super) fn member_alone() -> Member {
    let settings = Settings {
        name: "me".into(),
        weight: 1.0,
        labels: Vec::new(),
        link: None,
        timing: Timing::default(),
    };
    Member::new(0, settings, 1)
}
