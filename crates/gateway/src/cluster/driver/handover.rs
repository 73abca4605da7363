//! A service goes from one node that lives to another, and no datagram is lost.
//!
//! | this node | the next one |
//! |---|---|
//! | carries it | *Prepare*: opens the ports of its calls (they have no address yet), and claims it: this node is its deputy from then on |
//! | *HandOver*: leaves some calls, and sends what they are and where ([`Handed`]); their ports stay open, and the addresses here | *Start*: has the addresses, and says so to the network; goes on with these calls |
//! | leaves the next ones, when these have come | goes on with them |
//! | sends what still comes ([`Strays`]) | hears it, as if it had come there |
//! | has left all: writes itself out of the claim | |
//! | told that the calls have arrived: takes the addresses off | |
//! | nothing comes any more: closes the ports | |
//!
//! Few calls at a time, as each of them is silent until all that were left with it are there. etcd has no part between a call's last packet here and its first one
//! there. What does not come from node to node, the next node reads from etcd when this one has written itself out of the claim, or has died.

use std::collections::HashMap;
use std::time::Duration;

use threadbare_control::cluster::{Entry, Epoch, Link, NodeRecord, Release, StreamName};
use threadbare_relay::Stray;
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::services::{COPY_BYTES, Departed, PART_BYTES, Services, Stage};
use super::{Driver, Replied};
use crate::cluster::passing::{Back, Passed};
use crate::cluster::service::{
    Copies, Handed, Leaving, Opaque, Preparing, ServiceSpec, StrayOnWay, Strays, StreamCopy,
};

/// To whom a service is handed over.
pub(super) struct Next {
    link: Link,
    release: Release,
}

/// What has become of calls that were sent to the next node.
pub(super) enum Told {
    /// It has all.
    All,
    /// It has these, and there are others.
    Some(Next),
    /// It does not answer.
    Nothing,
}

impl Driver {
    /// This node is to have a service soon.
    pub(super) fn prepare_service(&self, name: StreamName) {
        let (store, replies) = (self.store.clone(), self.replies.clone());
        tokio::spawn(async move {
            let states = timeout(PREPARE_TIME_MAX, store.states(&name)).await;
            // The thread is about to end.
            let _ = replies.send(Replied::Foreseen(name, states.ok().flatten(), 0));
        });
    }

    /// The states of its calls, as they are before the hand-over; `None`: the store has not told, and all is done behind it.
    pub(super) fn handle_foreseen(
        &mut self,
        name: StreamName,
        states: Option<Vec<Entry>>,
        tries: u32,
    ) {
        if self.desk().is_none() && tries < DESK_TRIES_MAX {
            // The node has just started: its desk opens soon.
            let replies = self.replies.clone();
            tokio::spawn(async move {
                sleep(DESK_AGAIN).await;
                let _ = replies.send(Replied::Foreseen(name, states, tries + 1));
            });
            return;
        }
        let declared = self.member.declaration(&name);
        let spec = declared.and_then(|one| serde_json::from_str::<ServiceSpec>(&one.spec).ok());
        let (Some(services), Some(desk), Some(spec), Some(states)) =
            (&self.services, self.desk(), spec, states)
        else {
            return self.prepared_service(&name);
        };
        let calls = states.iter().filter_map(|entry| services.opened(entry));
        let preparing = Preparing {
            service: name.to_string(),
            interfaces: spec.interfaces(),
            calls: calls.map(|(_, state)| state).collect(),
        };
        let replies = self.replies.clone();
        let done = move || drop(replies.send(Replied::Prepared(name)));
        desk.prepare(preparing, Box::new(done));
    }

    pub(super) fn prepared_service(&mut self, name: &StreamName) {
        self.member.handle_prepared(clock_now_ns(), name);
    }

    /// Another node has it, or nobody.
    pub(super) fn stop_service(&mut self, name: &StreamName) {
        let Some(services) = &mut self.services else {
            return;
        };
        services.handed.remove(name);
        match services.carried.remove(name) {
            Some(carrying) => {
                tracing::info!(service = %name, "leaving a service");
                self.member.leave_calls(name);
                drop(services.addresses.remove(&carrying.spec.addresses));
                self.leave_calls(name, usize::MAX, None);
            }
            // It was prepared, and does not come.
            None => {
                if let Some(desk) = self.desk() {
                    desk.unprepare(&name.0);
                }
            }
        }
    }

    /// Another node has claimed it, and waits for this one to stop.
    pub(super) fn hand_over_service(&mut self, name: &StreamName) {
        let release = self.member.release(name);
        let next = release.and_then(|release| {
            let link = self.link_of(&release)?;
            Some(Next { link, release })
        });
        let Some((services, carrying)) = self.services.as_mut().and_then(|services| {
            services.handed.remove(name);
            let carrying = services.carried.remove(name)?;
            Some((services, carrying))
        }) else {
            // It has never begun, as this node takes no calls.
            return self.handed_over(name);
        };
        tracing::info!(service = %name, "leaving a service, for another node");
        let addresses = carrying.spec.addresses;
        match next {
            Some(next) => {
                let (running, ends) = oneshot::channel();
                let departed = Departed {
                    addresses,
                    link: next.link,
                    running,
                    ends: Some(ends),
                };
                services.departed.insert(name.clone(), departed);
                self.leave_calls(name, CALLS_AT_A_TIME, Some(next));
            }
            // Nobody can be told of what still comes.
            None => {
                drop(services.addresses.remove(&addresses));
                self.leave_calls(name, usize::MAX, None);
                self.handed_over(name);
            }
        }
    }

    /// Leaves at most so many calls of a service.
    fn leave_calls(&self, name: &StreamName, most: usize, next: Option<Next>) {
        let (replies, service) = (self.replies.clone(), name.clone());
        let left = move |leaving| drop(replies.send(Replied::Left(service, leaving, next)));
        match self.desk() {
            Some(desk) => desk.leave(&name.0, most, Box::new(left)),
            None => left(Leaving::nothing()),
        }
    }

    /// Calls of a service have been left.
    pub(super) fn handle_left(&mut self, name: StreamName, leaving: Leaving, next: Option<Next>) {
        let (Some(services), Some(calls)) = (&mut self.services, &mut self.calls) else {
            return;
        };
        let streams = leaving.streams.iter();
        let copies = Copies {
            process: services.process,
            // What another node may have gone on with, may have gone on there for a while.
            is_last: next.is_none(),
            streams: streams
                .map(|(stream, state)| (*stream, Some(state.clone())))
                .collect(),
        };
        // It may come back before another node has it.
        services.shadows.put(clock_now_ns(), copies);
        let Some(next) = next else {
            return self.close_departed(&name);
        };
        let handed = Passed::Handed(Handed {
            release: next.release.clone(),
            process: services.process,
            calls: leaving.calls,
            streams: leaving.streams,
            is_last: leaving.is_last,
        });
        let asked = calls.peers.ask(&next.link, &handed);
        let replies = self.replies.clone();
        let departed = services.departed.get_mut(&name);
        let ends = departed.and_then(|departed| departed.ends.take());
        if let (Some(strays), Some(ends)) = (leaving.strays, ends) {
            tokio::spawn(watch_strays(name.clone(), strays, ends, replies.clone()));
        }
        tokio::spawn(async move {
            let is_told = matches!(timeout(KEPT_TIME_MAX, asked).await, Ok(Ok(_)));
            if !is_told {
                tracing::warn!(service = %name, "the next node has not said that it has the calls: it has to read them from etcd");
            }
            let told = match (is_told, leaving.is_last) {
                (true, true) => Told::All,
                (true, false) => Told::Some(next),
                (false, _) => Told::Nothing,
            };
            // The thread is about to end.
            let _ = replies.send(Replied::Told(name, told));
        });
    }

    /// What the next node says to calls that it was sent.
    pub(super) fn leave_on(&mut self, name: StreamName, told: Told) {
        let is_leaving = |services: &Services| services.departed.contains_key(&name);
        if !self.services.as_ref().is_some_and(is_leaving) {
            // It is here again, as another life of this node.
            return;
        }
        match told {
            Told::Some(next) => self.leave_calls(&name, CALLS_AT_A_TIME, Some(next)),
            Told::All => self.handed_over(&name),
            Told::Nothing => {
                if let Some(desk) = self.desk() {
                    desk.leave(&name.0, usize::MAX, Box::new(drop));
                }
                // Nor would it take what still comes here: two machines must not have the addresses for that.
                self.handle_departed(&name);
                self.handed_over(&name);
            }
        }
    }

    pub(super) fn handed_over(&mut self, name: &StreamName) {
        self.member.leave_calls(name);
        let now_ns = clock_now_ns();
        self.member.handle_handed_over(now_ns, name, Vec::new());
    }

    fn link_of(&self, release: &Release) -> Option<Link> {
        let of_it = |record: &NodeRecord| record.incarnation == release.to.incarnation;
        let mut nodes = self.member.nodes();
        let found = nodes.find(|(node, record)| **node == release.to.node && of_it(record));
        found?.1.link
    }

    /// A stream has stopped: the owner of its claim is told, if it can be reached.
    pub(super) fn tell_released(&mut self, name: &StreamName, resume: &[u8]) {
        if let Some(release) = self.member.release(name)
            && let Some(link) = self.link_of(&release)
            && let Some(calls) = &mut self.calls
        {
            // It is in the claim as well.
            let passed = Passed::Released(release, resume.to_vec());
            drop(calls.peers.ask(&link, &passed));
        }
    }

    /// Connects to the nodes that something is about to go to, before anything waits for that.
    pub(super) fn greet_successors(&mut self) {
        let (Some(services), Some(calls)) = (&self.services, &mut self.calls) else {
            return;
        };
        let nodes: Vec<_> = self.member.successors().map(|life| &life.node).collect();
        if nodes.is_empty() {
            return calls.greeted.clear();
        }
        for (_, record) in self.member.nodes().filter(|(node, _)| nodes.contains(node)) {
            if let Some(link) = record.link
                && calls.greeted.insert(link.process)
            {
                let nothing = Passed::Copies(Copies {
                    process: services.process,
                    is_last: false,
                    streams: Vec::new(),
                });
                drop(calls.peers.ask(&link, &nothing));
            }
        }
    }

    /// Calls that another node has left for this one.
    pub(super) fn keep_handed(&mut self, handed: Handed) {
        let now_ns = clock_now_ns();
        let (release, name) = (handed.release.clone(), handed.release.stream.clone());
        let is_known = self.member.declaration(&name).is_some();
        let Some(services) = &mut self.services else {
            return;
        };
        if release.to != self.member.life() || !is_known {
            return;
        }
        let queue = services.handed.entry(name.clone()).or_default();
        queue.retain(|(_, one)| one.release == release);
        queue.push_back((now_ns, handed));
        self.member.handle_released(now_ns, release, Vec::new());
        self.pass_handed(&name);
    }

    /// A service has begun whose calls come from the node before.
    pub(super) fn receive_service(&mut self, name: StreamName, epoch: Epoch) {
        let services = self.services.as_ref();
        let Some(added) = services.and_then(|services| {
            let carrying = services.carried.get(&name)?;
            Some(services.addresses.add(&carrying.spec.addresses))
        }) else {
            return;
        };
        let replies = self.replies.clone();
        tokio::spawn(async move {
            // Failures are logged, and ports that cannot send are no reason to wait.
            let _ = added.await;
            // The thread is about to end.
            let _ = replies.send(Replied::Ready(name.clone(), epoch));
            sleep(HANDED_TICK).await;
            let _ = replies.send(Replied::Awaited(name, epoch));
        });
    }

    pub(super) fn handle_ready(&mut self, name: &StreamName, epoch: Epoch) {
        let services = self.services.as_mut();
        let carrying = services.and_then(|services| services.carried.get_mut(name));
        if let Some(carrying) = carrying.filter(|carrying| carrying.epoch == epoch)
            && carrying.stage == Stage::Read
        {
            carrying.stage = Stage::Handed;
            self.pass_handed(name);
        }
    }

    /// Goes on with calls that have come, if the addresses are here.
    fn pass_handed(&mut self, name: &StreamName) {
        while let Some(services) = &mut self.services
            && let Some(carrying) = services.carried.get(name)
            && carrying.stage == Stage::Handed
            && self
                .calls
                .as_ref()
                .is_some_and(super::errands::Calls::has_desk)
            && let Some((came_ns, handed)) = services
                .handed
                .get_mut(name)
                .and_then(std::collections::VecDeque::pop_front)
        {
            let copy = |(stream, state): (u64, Opaque)| {
                let copy = StreamCopy {
                    is_last: true,
                    at_ns: came_ns,
                    state,
                };
                (stream, copy)
            };
            let process = handed.process;
            let shadow = handed.streams.into_iter().map(copy).collect();
            let shadows = HashMap::from([(process, shadow)]);
            let calls = handed.calls.into_iter();
            let calls = calls.map(|state| (process, state)).collect();
            self.give_calls(name, calls, shadows, handed.is_last);
        }
    }

    /// Calls that have not come, of a service that has begun: nobody brings them if the claim has no deputy any more.
    pub(super) fn look_after_handed(&mut self, name: StreamName, epoch: Epoch) {
        let services = self.services.as_ref();
        if !services.is_some_and(|services| services.awaits(&name, epoch)) {
            return;
        }
        if self.member.deputy(&name).is_none() {
            tracing::warn!(service = %name, "not all calls have been handed over: they are read from etcd");
            return self.read_states(name, epoch);
        }
        let replies = self.replies.clone();
        tokio::spawn(async move {
            sleep(HANDED_TICK).await;
            // The thread is about to end.
            let _ = replies.send(Replied::Awaited(name, epoch));
        });
    }

    /// Strays on their way; where the answer comes.
    pub(super) fn send_strays(
        &mut self,
        name: &StreamName,
        strays: Vec<(u64, Stray)>,
        tell: oneshot::Sender<oneshot::Receiver<Vec<u8>>>,
    ) {
        let (Some(services), Some(calls)) = (&self.services, &mut self.calls) else {
            return;
        };
        let Some(departed) = services.departed.get(name) else {
            return;
        };
        let now_ns = clock_now_ns();
        let strays = strays.into_iter();
        let passed = Passed::Strays(Strays {
            service: name.to_string(),
            process: services.process,
            datagrams: strays
                .map(|(stream, stray)| (stream, StrayOnWay::new(stray, now_ns)))
                .collect(),
        });
        // Its task has ended.
        let _ = tell.send(calls.peers.ask(&departed.link, &passed));
    }

    /// The calls have arrived, and the neighbours were told where. From now on this kernel would do harm with the addresses: it drops what comes from the next
    /// node to calls here, as of a sender that has one of its own addresses, and keeps what goes there.
    pub(super) fn take_departed_off(&mut self, name: &StreamName) {
        if let Some(services) = &mut self.services
            && let Some(departed) = services.departed.get_mut(name)
        {
            let addresses = std::mem::take(&mut departed.addresses);
            drop(services.addresses.remove(&addresses));
        }
    }

    /// Nothing comes for a service any more.
    pub(super) fn handle_departed(&mut self, name: &StreamName) {
        let services = self.services.as_mut();
        let departed = services.and_then(|services| {
            let departed = services.departed.remove(name)?;
            Some(services.addresses.remove(&departed.addresses))
        });
        if departed.is_some() {
            self.close_departed(name);
        }
    }

    fn close_departed(&self, name: &StreamName) {
        if let Some(desk) = self.desk() {
            desk.close(&name.0);
        }
    }

    /// What has come to a node that has left a service. Whether nothing should go there any more.
    pub(super) fn keep_strays(&mut self, strays: Strays) -> bool {
        let now_ns = clock_now_ns();
        let datagrams = strays.datagrams.into_iter();
        let datagrams = datagrams.map(|(stream, stray)| (stream, stray.arrived(now_ns)));
        let desk = self.desk();
        let Some(services) = &mut self.services else {
            return false;
        };
        services.strays.put(now_ns, strays.process, datagrams);
        let name = StreamName(strays.service.as_str().into());
        let stage = services.carried.get(&name).map(|carrying| carrying.stage);
        if let (Some(Stage::Handed | Stage::Taken | Stage::Arrived), Some(desk)) = (stage, desk) {
            desk.deliver();
        }
        stage == Some(Stage::Arrived)
    }
}

impl Services {
    /// Whether something may still come for a service that another node has.
    pub(super) fn has_departed(&self) -> bool {
        !self.departed.is_empty()
    }
}

/// Until all is over, or the service is here again.
async fn watch_strays(
    name: StreamName,
    strays: UnboundedReceiver<(u64, Stray)>,
    ends: oneshot::Receiver<()>,
    replies: UnboundedSender<Replied>,
) {
    tokio::select! {
        () = gather_strays(&name, strays, &replies) => {}
        _ = ends => return,
    }
    // The thread is about to end.
    let _ = replies.send(Replied::Departed(name));
}

/// Gathers what comes and has it sent, until the next node has the calls and nothing comes any more.
async fn gather_strays(
    name: &StreamName,
    mut strays: UnboundedReceiver<(u64, Stray)>,
    replies: &UnboundedSender<Replied>,
) {
    let begun = Instant::now();
    let mut arrived = None;
    let mut last = begun;
    while begun.elapsed() < STRAY_TIME_MAX {
        let mut batch = Vec::new();
        let mut bytes = 0;
        if let Ok(Some(first)) = timeout(STRAY_TICK, strays.recv()).await {
            // What else has come in this slice.
            sleep(STRAY_GATHER).await;
            bytes += COPY_BYTES + first.1.bytes.len();
            batch.push(first);
        }
        while bytes < PART_BYTES
            && let Ok((stream, stray)) = strays.try_recv()
        {
            bytes += COPY_BYTES + stray.bytes.len();
            batch.push((stream, stray));
        }
        if !batch.is_empty() {
            last = Instant::now();
        }
        let is_quiet = |since: Instant| since.max(last).elapsed() > STRAY_QUIET;
        if arrived.is_some_and(is_quiet) {
            return;
        }
        if batch.is_empty() && arrived.is_some() {
            // It has none any more.
            if strays.is_closed() {
                sleep(STRAY_TICK).await;
            }
            continue;
        }
        let (tell, told) = oneshot::channel();
        if replies
            .send(Replied::Strays(name.clone(), batch, tell))
            .is_err()
        {
            return;
        }
        let Ok(answer) = told.await else { return };
        let answer = timeout(KEPT_TIME_MAX, answer).await;
        let answer = answer.ok().and_then(Result::ok);
        let back = answer.and_then(|bytes| postcard::from_bytes::<Back>(&bytes).ok());
        if back == Some(Back::Arrived) && arrived.is_none() {
            arrived = Some(Instant::now());
            let _ = replies.send(Replied::Followed(name.clone()));
        }
    }
}

/// Of a node that has to do with other things.
const KEPT_TIME_MAX: Duration = Duration::from_millis(500);
/// Ports can be opened later, too.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(1);
/// A node that has just started.
const DESK_AGAIN: Duration = Duration::from_millis(10);
const DESK_TRIES_MAX: u32 = 500;
/// Calls that are left together. What the next node does for each takes a tenth of a millisecond or two.
const CALLS_AT_A_TIME: usize = 8;
/// So often it is looked whether calls that have not come are still to come.
const HANDED_TICK: Duration = Duration::from_millis(100);
/// Behind the first datagram of a slice.
const STRAY_GATHER: Duration = Duration::from_millis(1);
/// When nothing comes, the next node is asked so often whether it has the calls.
const STRAY_TICK: Duration = Duration::from_millis(5);
/// Behind the calls' arrival: what has come before the addresses were taken off.
const STRAY_QUIET: Duration = Duration::from_millis(200);
/// The calls have not arrived by then: something is wrong there.
const STRAY_TIME_MAX: Duration = Duration::from_secs(5);
