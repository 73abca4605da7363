//! Owns a [`Member`]. Passes the time, changes in etcd and replies to it, and carries out its actions.

mod errands;
mod handover;
mod services;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use threadbare_member::{
    Action, Declaration, Entry, Epoch, Key, Kind, Life, Member, NodeName, NodeRecord, OnIsolation,
    Operation, Outcome, Reply, RequestId, Settings, StreamName, Timing, Transaction, Value,
};
use threadbare_relay::{Fence, LatePacket};
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use self::errands::Calls;
use self::handover::{Next, SendResult};
use self::services::Services;
use super::addresses::Addresses;
use super::declare::Declared;
use super::etcd::{Seen, Store};
use super::key::ClusterKey;
use super::links::{Ended, LinkListener, Links};
use super::passing::{CallService, Claimed, Errand};
use super::peers::{Host, Peers};
use super::resume;
use super::seal::Seal;
use super::service::Leaving;
use super::status::{Input, NodeStatus, NotMoved, Room, Status, StreamStatus, Totals};
use threadbare_config::{CallsOnIsolation, ClusterSpec, StreamSpec};
use threadbare_process::system::random_number;
use threadbare_streams::event::Event;
use threadbare_streams::order::{Answer, Carried, Order};

/// The `cluster` thread's state.
pub(super) struct Driver {
    member: Member,
    store: Store,
    /// Orders for the main thread. For each order, an event must be sent, too.
    orders: Sender<Order>,
    events: Sender<Event>,
    replies: UnboundedSender<Replied>,
    replied: Option<UnboundedReceiver<Replied>>,
    links: Links,
    declared: Declared,
    totals: Arc<Totals>,
    /// The fence of all streams that the node carries during its current life.
    fence: Fence,
    is_live: bool,
    /// Streams that were started or prepared here, with the text of their declaration and their stage.
    placed: HashMap<StreamName, (Arc<str>, Carried, Stage)>,
    /// Streams whose declaration has changed.
    changed: VecDeque<StreamName>,
    /// Notified when this node has nothing left that another node could take.
    leaving: Option<oneshot::Sender<()>>,
    /// `None`: calls are not shared with other nodes.
    calls: Option<Calls>,
    /// `None`: calls are not shared with other nodes.
    services: Option<Services>,
    /// The task that manages the services' addresses. The driver polls it.
    keeping: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// This node's room for new calls.
    room: Arc<Room>,
    /// Number of requests that were sent to other nodes.
    passed: u64,
}

/// The driver's connections to other parts of the program.
pub(super) struct Around<'a> {
    pub(super) store: Store,
    pub(super) listener: Option<&'a LinkListener>,
    pub(super) key: Option<ClusterKey>,
    /// Orders for the main thread, and the sender of the event for each.
    pub(super) to_gateway: (Sender<Order>, Sender<Event>),
    pub(super) totals: Arc<Totals>,
    pub(super) room: Arc<Room>,
    /// `None`: calls are not shared with other nodes.
    pub(super) calls: Option<(Arc<Host>, Peers)>,
    /// `None`: calls are not shared with other nodes.
    pub(super) seal: Option<Seal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Prepared,
    Started,
}

/// The result of an operation, or the next step after a pause.
enum Replied {
    Transaction(RequestId, Option<Outcome>),
    Declaration(bool),
    /// A lookup of the owner of a request's call. Outer `None`: unknown; inner `None`: the call has no owner.
    Found(Errand, Option<Option<Entry>>),
    /// A request to be sent again, because the node does not own the call, or did not answer.
    Again(Errand),
    /// The keys of all calls, with their values.
    Calls(Vec<Entry>),
    /// The saved states of a service's calls; `None`: unknown.
    States(StreamName, Epoch, Option<Vec<Entry>>),
    /// The saved states of a service's calls must be read again.
    ReadAgain(StreamName, Epoch),
    /// The calls of a service have arrived at this node.
    Arrived(StreamName, Epoch),
    /// The saved states of the calls of a service that this node prepares for; `None`: unknown. The number counts the tries so
    /// far while the call service is not open yet.
    Foreseen(StreamName, Option<Vec<Entry>>, u32),
    /// A service is prepared.
    Prepared(StreamName),
    /// Calls of a service were given up.
    Left(StreamName, Leaving, Option<Next>),
    /// The next node's reply to handed-over calls.
    Sent(StreamName, SendResult),
    /// The addresses of a service were added.
    Ready(StreamName, Epoch),
    /// It is time to check whether all handed-over calls of a service have arrived.
    Awaited(StreamName, Epoch),
    /// Late packets of a service, which must be sent to the next node. The channel gets the receiver of the next node's reply.
    LatePackets(
        StreamName,
        Vec<(u64, LatePacket)>,
        oneshot::Sender<oneshot::Receiver<Vec<u8>>>,
    ),
    /// The calls of a service have arrived at the next node.
    Followed(StreamName),
    /// No packets arrive here any more for a service that was handed over.
    Departed(StreamName),
}

impl Driver {
    pub(super) fn new(spec: &ClusterSpec, around: Around<'_>) -> Driver {
        let (orders, events) = around.to_gateway;
        let alone = spec.calls_on_isolation == CallsOnIsolation::Take;
        let process = around.listener.map(|listener| listener.link().process);
        let (addresses, keeping) = Addresses::new(spec.service_program.clone());
        let services = around.seal.zip(process);
        let services = services.map(|(seal, process)| Services::new(addresses, seal, process));
        let calls = around.calls;
        let calls = calls.map(|(host, peers)| Calls::new(host, peers, alone));
        let settings = Settings {
            name: spec.node.as_str().into(),
            weight: spec.weight,
            labels: spec.labels.clone(),
            link: around.listener.map(LinkListener::link),
            timing: Timing::default(),
        };
        let (replies, replied) = unbounded_channel();
        Driver {
            member: Member::new(clock_now_ns(), settings, random_number()),
            store: around.store,
            orders,
            events,
            replies,
            replied: Some(replied),
            links: Links::new(around.key),
            declared: Declared::default(),
            totals: around.totals,
            fence: Fence::new(0),
            is_live: false,
            placed: HashMap::new(),
            changed: VecDeque::new(),
            leaving: None,
            calls,
            services,
            keeping: Box::pin(keeping),
            room: around.room,
            passed: 0,
        }
    }

    /// Runs until [`Input::End`].
    pub(super) async fn run(
        mut self,
        mut asked: UnboundedReceiver<Input>,
        mut answered: UnboundedReceiver<Answer>,
    ) {
        let (seen, mut sees) = mpsc::channel(SEEN_MAX);
        let mut ends = self.links.take_ends();
        let watch = tokio::spawn(self.store.clone().watch(seen));
        tokio::spawn(std::mem::replace(&mut self.keeping, Box::pin(async {})));
        let Some(mut replied) = self.replied.take() else {
            return;
        };
        loop {
            self.settle();
            let due = at(self.member.next_timeout());
            tokio::select! {
                input = asked.recv() => match input {
                    Some(Input::End) | None => break,
                    Some(input) => self.handle_input(input),
                },
                Some(reply) = replied.recv() => self.handle_reply(reply),
                Some(answer) = answered.recv() => self.handle_answer(answer),
                Some(seen) = sees.recv() => self.handle_seen(seen),
                Some(ended) = ends.recv() => self.handle_ended(&ended),
                () = sleep_until(due) => self.member.handle_timeout(clock_now_ns()),
            }
        }
        watch.abort();
        self.fence.close();
        self.take_addresses_off().await;
        if let Some(resignation) = self.member.resignation() {
            // If this fails, the other nodes wait until the lease ends.
            self.store.commit(&resignation).await;
        }
    }

    fn handle_input(&mut self, input: Input) {
        let now_ns = clock_now_ns();
        match input {
            Input::Declare(streams) => self.declared.set(streams),
            // This fails if the receiver is gone.
            Input::Status(tell) => drop(tell.send(self.status())),
            Input::Move { stream, node, tell } => self.move_to(stream, node, tell),
            Input::Drain(is_on, tell) => {
                tracing::info!(
                    is_on,
                    "a request starts (is_on) or ends the drain of this node"
                );
                self.member.set_draining(now_ns, is_on);
                let _ = tell.send(());
            }
            Input::Leave(tell) => {
                self.member.set_draining(now_ns, true);
                self.leaving = Some(tell);
            }
            Input::Errand(errand) => errands::begin(self, errand),
            Input::AskOthers(passed, tell) => errands::ask_others(self, &passed, tell),
            Input::AskNode(node, passed, tell) => errands::ask_node(self, &node, &passed, tell),
            Input::Claim(call, kept) => errands::claim(self, call, kept),
            Input::Keep(call, kept) => {
                if let Some((_, state)) = self.seal(&call, Some(kept)) {
                    self.member.keep_call(now_ns, &call, state);
                }
            }
            Input::Service(spec) => self.set_own_service(&spec),
            Input::Copies(streams) => self.send_copies(streams),
            Input::Copied(copies) => self.keep_copies(copies),
            // This fails if the receiver is gone.
            Input::LatePackets(late_packets, tell) => {
                let _ = tell.send(self.queue_late_packets(late_packets));
            }
            Input::Released(release, resume) => {
                self.member.handle_released(now_ns, release, resume);
            }
            Input::Handed(handed) => self.keep_handed(handed),
            Input::Release(call) => self.member.release_call(now_ns, &call),
            Input::CallService(call_service) => errands::open_call_service(self, call_service),
            Input::End => {}
        }
    }

    fn handle_reply(&mut self, reply: Replied) {
        match reply {
            Replied::Transaction(id, Some(outcome)) => {
                let reply = Reply { id, outcome };
                self.member.handle_reply(clock_now_ns(), reply);
            }
            // The outcome is unknown. The member repeats the transaction in time.
            Replied::Transaction(_, None) => {}
            Replied::Declaration(is_written) => {
                self.declared.answered(is_written);
            }
            Replied::Found(errand, found) => errands::resume(self, errand, found),
            Replied::Again(errand) => errands::begin(self, errand),
            Replied::Calls(entries) => errands::sweep(self, &entries),
            Replied::States(name, epoch, states) => self.handle_states(name, epoch, states),
            Replied::ReadAgain(name, epoch) => self.read_states(name, epoch),
            Replied::Arrived(name, epoch) => self.handle_arrived(&name, epoch),
            Replied::Foreseen(name, states, tries) => self.handle_foreseen(name, states, tries),
            Replied::Prepared(name) => self.prepared_service(&name),
            Replied::Left(name, leaving, next) => self.handle_left(name, leaving, next),
            Replied::Sent(name, result) => self.leave_on(name, result),
            Replied::Ready(name, epoch) => self.handle_ready(&name, epoch),
            Replied::Awaited(name, epoch) => self.look_after_handed(name, epoch),
            Replied::LatePackets(name, late_packets, tell) => {
                self.send_late_packets(&name, late_packets, tell)
            }
            Replied::Followed(name) => self.take_departed_off(&name),
            Replied::Departed(name) => self.handle_departed(&name),
        }
    }

    fn handle_answer(&mut self, answer: Answer) {
        let now_ns = clock_now_ns();
        match answer {
            Answer::Prepared(name) => self.member.handle_prepared(now_ns, &StreamName(name)),
            Answer::HandedOver(name, state) => {
                let (name, resume) = (StreamName(name), resume::encode(state.as_ref()));
                self.tell_released(&name, &resume);
                self.member.handle_handed_over(now_ns, &name, resume);
            }
        }
    }

    fn handle_seen(&mut self, seen: Seen) {
        let now_ns = clock_now_ns();
        match seen {
            Seen::Snapshot(revision, entries) => {
                self.member.handle_snapshot(now_ns, revision, entries);
                self.changed.extend(self.placed.keys().cloned());
            }
            Seen::Changes(changes) => {
                for (key, entry, at) in changes {
                    if let Key::Stream(name) = &key {
                        self.changed.push_back(name.clone());
                    }
                    self.member.handle_change(now_ns, key, entry, at);
                }
            }
            Seen::Cut => self.member.handle_cut(),
        }
    }

    fn handle_ended(&mut self, ended: &Ended) {
        let of_it = |(name, record): (&NodeName, &NodeRecord)| {
            let link = record.link.filter(|link| ended.is(link));
            link.map(|_| Life {
                node: name.clone(),
                incarnation: record.incarnation,
            })
        };
        let life = self.member.nodes().find_map(of_it);
        if let Some(life) = life {
            tracing::warn!(node = %life.node, "the process of another node has ended");
            self.member.handle_ended(clock_now_ns(), &life);
        }
    }

    /// Carries out the consequences of an input.
    fn settle(&mut self) {
        self.keep_fence(clock_now_ns());
        let own = self.member.life().node;
        let others = self.member.nodes().filter(|(name, _)| **name != own);
        self.links
            .follow(others.filter_map(|(_, record)| record.link));
        errands::settle_calls(self);
        self.greet_successors();
        while let Some(action) = self.member.poll_action() {
            self.act(action);
        }
        self.change();
        self.declare_service();
        self.declare();
        self.leave();
        self.count();
    }

    fn count(&self) {
        let (answers, failures, _) = self.store.health();
        let totals = &self.totals;
        for (total, value) in [
            (&totals.is_live, u64::from(self.is_live)),
            (&totals.nodes, self.member.nodes().count() as u64),
            (&totals.streams, self.placed.len() as u64),
            (&totals.calls, self.member.calls() as u64),
            (&totals.passed, self.passed),
            (&totals.answers, answers),
            (&totals.failures, failures),
        ] {
            total.store(value, Relaxed);
        }
    }

    /// Keeps the fence open while the lease is valid. Each lease has a new fence. So a stream that was started under an earlier
    /// lease, and is not stopped yet, cannot send under the next lease.
    fn keep_fence(&mut self, now_ns: u64) {
        let is_live = self.member.is_live(now_ns);
        if is_live {
            self.fence.extend(self.member.send_until_ns());
        } else if self.is_live {
            self.fence.close();
            self.fence = Fence::new(0);
        }
        match (self.is_live, is_live) {
            (false, true) => tracing::info!("this node has joined its cluster"),
            (true, false) => tracing::warn!(
                "etcd did not confirm the lease in time, so the streams of this node have stopped"
            ),
            _ => {}
        }
        self.is_live = is_live;
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Commit(transaction) => self.commit(transaction),
            Action::Prepare { stream, .. } if self.is_service(&stream) => {
                self.prepare_service(stream);
            }
            Action::Start { stream, epoch, .. } if self.is_service(&stream) => {
                self.start_service(stream, epoch);
            }
            Action::HandOver { stream } if self.is_service(&stream) => {
                self.hand_over_service(&stream);
            }
            Action::Stop { stream } if self.is_service(&stream) => self.stop_service(&stream),
            Action::Prepare { stream, epoch } => {
                if let Some(carried) = self.place(&stream, epoch, Stage::Prepared) {
                    self.order(Order::Prepare(carried));
                }
            }
            Action::Start {
                stream,
                epoch,
                resume,
            } => {
                if let Some(carried) = self.place(&stream, epoch, Stage::Started) {
                    self.order(Order::Start(carried, resume::decode(&resume)));
                }
            }
            Action::HandOver { stream } => {
                self.placed.remove(&stream);
                self.order(Order::HandOver(stream.0));
            }
            Action::Stop { stream } => {
                self.placed.remove(&stream);
                self.order(Order::Stop(stream.0));
            }
            Action::CallClaimed { call } => errands::tell_claimed(self, &call, Claimed::Ours),
            Action::CallTaken { call, owner } => {
                let by = owner.node.to_string();
                errands::tell_claimed(self, &call, Claimed::Taken { by });
            }
            Action::CallUnclaimed { call } => errands::tell_unclaimed(self, &call),
        }
    }

    fn commit(&self, transaction: Transaction) {
        let (store, replies) = (self.store.clone(), self.replies.clone());
        tokio::spawn(async move {
            let outcome = store.commit(&transaction).await;
            // This fails if the thread is about to end.
            let _ = replies.send(Replied::Transaction(transaction.id, outcome));
        });
    }

    fn order(&self, order: Order) {
        // This fails if the main thread has ended. In that case, all streams have ended, too.
        let _ = self.orders.send(order);
        let _ = self.events.send(Event::Ordered);
    }

    /// Registers a stream that is to be carried or prepared here. `None`: its declaration is unreadable.
    fn place(&mut self, stream: &StreamName, epoch: Epoch, stage: Stage) -> Option<Carried> {
        let declaration = self.member.declaration(stream)?;
        let text = declaration.spec.clone();
        let spec = match self.placed.get(stream) {
            Some((known, carried, _)) if *known == text => carried.spec.clone(),
            _ => Arc::new(self.read(stream, &text)?),
        };
        let is_fenced = declaration.on_isolation == OnIsolation::Stop;
        let carried = Carried {
            spec,
            epoch: epoch.0,
            fence: is_fenced.then(|| self.fence.clone()),
        };
        self.placed
            .insert(stream.clone(), (text, carried.clone(), stage));
        Some(carried)
    }

    fn read(&self, stream: &StreamName, text: &str) -> Option<StreamSpec> {
        let read = StreamSpec::from_toml(&stream.0, text);
        let refused = read.as_ref().err();
        if let Some(error) = refused {
            tracing::error!(%stream, error, "cannot read the declaration of a stream: this node does not carry the stream");
        }
        read.ok()
    }

    /// Restarts streams of this node whose declaration has changed.
    fn change(&mut self) {
        while let Some(stream) = self.changed.pop_front() {
            let Some((text, carried, Stage::Started)) = self.placed.get(&stream) else {
                continue;
            };
            let is_same = |declared: &Declaration| {
                let is_fenced = declared.on_isolation == OnIsolation::Stop;
                declared.spec == *text && is_fenced == carried.fence.is_some()
            };
            if self.member.declaration(&stream).is_none_or(is_same) {
                continue;
            }
            let epoch = Epoch(carried.epoch);
            if let Some(carried) = self.place(&stream, epoch, Stage::Started) {
                self.order(Order::Start(carried, None));
            }
        }
    }

    fn declare(&mut self) {
        if !self.member.is_synced() {
            return;
        }
        let member = &self.member;
        let Some(transaction) = self.declared.next(|name| member.declaration(name)) else {
            return;
        };
        let (store, replies) = (self.store.clone(), self.replies.clone());
        tokio::spawn(async move {
            let outcome = store.commit(&transaction).await;
            let is_written = matches!(outcome, Some(Outcome::Committed(_)));
            if !is_written {
                tokio::time::sleep(DECLARE_AGAIN).await;
            }
            let _ = replies.send(Replied::Declaration(is_written));
        });
    }

    /// Writes the node that an operator wants for a stream to the stream's declaration.
    fn move_to(
        &self,
        stream: String,
        node: Option<String>,
        tell: oneshot::Sender<Result<(), NotMoved>>,
    ) {
        let name = StreamName(stream.as_str().into());
        let Some(declaration) = self.member.declaration(&name) else {
            drop(tell.send(Err(NotMoved::Stream(stream))));
            return;
        };
        let at = node.as_deref().map(NodeName::from);
        let record = |at: &NodeName| self.member.nodes().find(|(known, _)| *known == at);
        if let (Some(at), Some(node)) = (&at, node) {
            let not_moved = match (record(at), declaration.kind) {
                (None, _) => Some(NotMoved::Node(node)),
                (Some((_, to)), Kind::Service) if to.room.is_none() => Some(NotMoved::Calls(node)),
                _ => None,
            };
            if let Some(not_moved) = not_moved {
                drop(tell.send(Err(not_moved)));
                return;
            }
        }
        let declaration = Declaration {
            at,
            ..declaration.clone()
        };
        let transaction = Transaction {
            // The reply is not matched by its number.
            id: RequestId(u64::MAX),
            when: self.member.still_declared(&name).into_iter().collect(),
            then: vec![Operation::Put(
                Key::Stream(name),
                Value::Stream(declaration),
            )],
        };
        let store = self.store.clone();
        tokio::spawn(async move {
            let done = match store.commit(&transaction).await {
                Some(Outcome::Committed(_)) => Ok(()),
                Some(Outcome::Refused { .. }) => Err(NotMoved::Declared(stream)),
                None => Err(NotMoved::Store),
            };
            // This fails if the receiver is gone.
            let _ = tell.send(done);
        });
    }

    /// Notifies the caller of [`Input::Leave`] when nothing is left here that another node could take.
    fn leave(&mut self) {
        let own = self.member.life().node;
        let takes = |(name, node): (&_, &NodeRecord)| *name != own && !node.draining;
        let services = self.services.as_ref();
        let is_left = self.member.carried().next().is_some()
            || self.member.is_handing_over()
            || services.is_some_and(Services::has_departed);
        let is_done = !is_left || !self.member.nodes().any(takes);
        if is_done && let Some(tell) = self.leaving.take() {
            // This fails if the receiver is gone.
            let _ = tell.send(());
        }
    }

    fn status(&self) -> Status {
        let (etcd_answers, etcd_failures, etcd_error) = self.store.health();
        let mut counts: HashMap<Life, usize> = HashMap::new();
        let mut streams = Vec::new();
        for (name, _, claim) in self.member.streams() {
            if let Some(claim) = claim {
                *counts.entry(claim.owner.clone()).or_default() += 1;
            }
            let next = claim.and_then(|claim| claim.next.as_ref());
            streams.push(StreamStatus {
                stream: name.to_string(),
                node: claim.map(|claim| claim.owner.node.to_string()),
                epoch: claim.map_or(0, |claim| claim.epoch.0),
                next: next.map(|next| next.node.to_string()),
            });
        }
        let nodes = self.member.nodes().map(|(name, record)| {
            let life = Life {
                node: name.clone(),
                incarnation: record.incarnation,
            };
            NodeStatus {
                node: name.to_string(),
                weight: record.weight,
                labels: record.labels.iter().map(ToString::to_string).collect(),
                draining: record.draining,
                room: record.room,
                linked: record.link.is_some_and(|link| self.links.holds(&link)),
                streams: counts.get(&life).copied().unwrap_or(0),
            }
        });
        Status {
            node: self.member.life().node.to_string(),
            is_live: self.is_live,
            is_synced: self.member.is_synced(),
            etcd_error,
            etcd_answers,
            etcd_failures,
            nodes: nodes.collect(),
            streams,
        }
    }

    fn call_service(&self) -> Option<Arc<dyn CallService>> {
        self.calls.as_ref()?.host.call_service().cloned()
    }
}

/// Converts a time of CLOCK_MONOTONIC in ns. A time in the far future means that nothing is due.
fn at(due_ns: u64) -> Instant {
    let wait_ns = due_ns.saturating_sub(clock_now_ns());
    Instant::now() + Duration::from_nanos(wait_ns).min(IDLE)
}

/// Maximum number of queued messages of the watch. More messages wait in etcd.
const SEEN_MAX: usize = 64;
const DECLARE_AGAIN: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(1);
