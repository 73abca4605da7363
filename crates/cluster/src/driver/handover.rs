//! Hands a service from one live node to another without losing a datagram.
//!
//! | this node | the next node |
//! |---|---|
//! | carries the service | *Prepare*: opens the calls' ports, before it has the addresses; claims the service, with this node as deputy |
//! | *HandOver*: gives up some calls, and sends their states ([`Handed`]) | *Start*: adds and announces the addresses; continues the calls |
//! | when these calls have arrived: gives up the next calls | continues them |
//! | forwards late packets ([`LatePackets`]) | handles them as if they had arrived at its ports |
//! | when all calls are given up: removes itself from the claim | |
//! | when the calls have arrived: removes the addresses | |
//! | when no more packets come: closes the ports | |
//!
//! Only a few calls move at a time, because each call is silent until all calls of its batch have arrived. Between a call's
//! last packet here and its first packet at the next node, nothing waits for etcd. If states do not arrive at the next node, it
//! reads them from etcd after this node has released the claim or has died.

use std::collections::HashMap;
use std::time::Duration;

use threadbare_member::{Entry, Epoch, Link, NodeRecord, Release, StreamName};
use threadbare_relay::LatePacket;
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::services::{COPY_BYTES, Departed, PART_BYTES, Services, Stage};
use super::{Driver, Replied, errands};
use crate::passing::{Back, Passed};
use crate::service::{
    Copies, ForwardedPacket, Handed, LatePackets, Leaving, Opaque, Preparing, ServiceSpec,
    StreamCopy,
};

/// The next node of a service.
pub(super) struct Next {
    link: Link,
    release: Release,
}

/// The result of sending calls to the next node.
pub(super) enum SendResult {
    /// The next node has all calls.
    All,
    /// The next node has these calls. There are more to be sent.
    Some(Next),
    /// The next node does not answer.
    Unanswered,
}

impl Driver {
    /// Prepares this node for a service that is about to come. First reads the states of its calls.
    pub(super) fn prepare_service(&self, name: StreamName) {
        let (store, replies) = (self.store.clone(), self.replies.clone());
        tokio::spawn(async move {
            let states = timeout(PREPARE_TIME_MAX, store.states(&name)).await;
            // This fails if the thread is about to end.
            let _ = replies.send(Replied::Foreseen(name, states.ok().flatten(), 0));
        });
    }

    /// Opens the ports of a service's calls before the hand-over. `states`: the calls' states; `None`: etcd did not answer. In
    /// this case, the ports are opened later.
    pub(super) fn handle_foreseen(
        &mut self,
        name: StreamName,
        states: Option<Vec<Entry>>,
        tries: u32,
    ) {
        if self.call_service().is_none() && tries < CALL_SERVICE_TRIES_MAX {
            // This node has just started. Its call service opens soon.
            let replies = self.replies.clone();
            tokio::spawn(async move {
                sleep(CALL_SERVICE_AGAIN).await;
                let _ = replies.send(Replied::Foreseen(name, states, tries + 1));
            });
            return;
        }
        let declared = self.member.declaration(&name);
        let spec = declared.and_then(|one| serde_json::from_str::<ServiceSpec>(&one.spec).ok());
        let (Some(services), Some(call_service), Some(spec), Some(states)) =
            (&self.services, self.call_service(), spec, states)
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
        call_service.prepare(preparing, Box::new(done));
    }

    pub(super) fn prepared_service(&mut self, name: &StreamName) {
        self.member.handle_prepared(clock_now_ns(), name);
    }

    /// Stops a service that another node now carries, or that has no owner.
    pub(super) fn stop_service(&mut self, name: &StreamName) {
        let Some(services) = &mut self.services else {
            return;
        };
        services.handed.remove(name);
        match services.carried.remove(name) {
            Some(carrying) => {
                tracing::info!(service = %name, "this node stops carrying a service");
                self.member.leave_calls(name);
                drop(services.addresses.remove(&carrying.spec.addresses));
                self.leave_calls(name, usize::MAX, None);
            }
            // The service was only prepared, and does not come.
            None => {
                if let Some(call_service) = self.call_service() {
                    call_service.unprepare(&name.0);
                }
            }
        }
    }

    /// Hands over a service to the node that has claimed it. That node waits until this node has given up the service.
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
            // The service never started here, because this node takes no calls.
            return self.handed_over(name);
        };
        tracing::info!(service = %name, "handing a service over to another node");
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
            // The next node cannot be reached, so late packets have no receiver.
            None => {
                drop(services.addresses.remove(&addresses));
                self.leave_calls(name, usize::MAX, None);
                self.handed_over(name);
            }
        }
    }

    /// Gives up at most `most` calls of a service.
    fn leave_calls(&self, name: &StreamName, most: usize, next: Option<Next>) {
        let (replies, service) = (self.replies.clone(), name.clone());
        let left = move |leaving| drop(replies.send(Replied::Left(service, leaving, next)));
        match self.call_service() {
            Some(call_service) => call_service.leave(&name.0, most, Box::new(left)),
            None => left(Leaving::nothing()),
        }
    }

    /// Handles calls of a service that were given up.
    pub(super) fn handle_left(&mut self, name: StreamName, leaving: Leaving, next: Option<Next>) {
        let (Some(services), Some(calls)) = (&mut self.services, &mut self.calls) else {
            return;
        };
        let streams = leaving.streams.iter();
        let copies = Copies {
            process: services.process,
            // If another node continues the calls, it will send packets, so these states are not the last ones.
            is_last: next.is_none(),
            streams: streams
                .map(|(stream, state)| (*stream, Some(state.clone())))
                .collect(),
        };
        // Store the states here, because the service may come back to this node before another node has it.
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
        if let (Some(late_packets), Some(ends)) = (leaving.late_packets, ends) {
            tokio::spawn(watch_late_packets(
                name.clone(),
                late_packets,
                ends,
                replies.clone(),
            ));
        }
        tokio::spawn(async move {
            let is_told = matches!(timeout(KEPT_TIME_MAX, asked).await, Ok(Ok(_)));
            if !is_told {
                tracing::warn!(service = %name, "the next node did not confirm the calls of a service; that node will read them from etcd");
            }
            let result = match (is_told, leaving.is_last) {
                (true, true) => SendResult::All,
                (true, false) => SendResult::Some(next),
                (false, _) => SendResult::Unanswered,
            };
            // This fails if the thread is about to end.
            let _ = replies.send(Replied::Sent(name, result));
        });
    }

    /// Handles the next node's reply to calls that were sent to it: gives up more calls, or finishes.
    pub(super) fn leave_on(&mut self, name: StreamName, result: SendResult) {
        let is_leaving = |services: &Services| services.departed.contains_key(&name);
        if !self.services.as_ref().is_some_and(is_leaving) {
            // The service came back here in the meantime, in another life of this node.
            return;
        }
        match result {
            SendResult::Some(next) => self.leave_calls(&name, CALLS_AT_A_TIME, Some(next)),
            SendResult::All => self.handed_over(&name),
            SendResult::Unanswered => {
                if let Some(call_service) = self.call_service() {
                    call_service.leave(&name.0, usize::MAX, Box::new(drop));
                }
                // The next node would not accept late packets either. So finish the service, and remove its addresses, at once:
                // two machines must not have the same addresses.
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

    /// Notifies the owner of a stream's claim that the stream has stopped here, if this node can reach the owner.
    pub(super) fn tell_released(&mut self, name: &StreamName, resume: &[u8]) {
        if let Some(release) = self.member.release(name)
            && let Some(link) = self.link_of(&release)
            && let Some(calls) = &mut self.calls
        {
            // If the message is lost, the owner reads the position from the claim.
            let passed = Passed::Released(release, resume.to_vec());
            drop(calls.peers.ask(&link, &passed));
        }
    }

    /// Connects in advance to nodes that could take over this node's service.
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

    /// Queues calls that another node has handed to this one.
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

    /// Handles the start of a service whose calls the previous node sends.
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
            // Continue even if an address could not be added, which was logged.
            let _ = added.await;
            // This fails if the thread is about to end.
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

    /// Passes calls that have arrived to the call service, if the addresses were added.
    fn pass_handed(&mut self, name: &StreamName) {
        while let Some(services) = &mut self.services
            && let Some(carrying) = services.carried.get(name)
            && carrying.stage == Stage::Handed
            && self
                .calls
                .as_ref()
                .is_some_and(errands::Calls::has_call_service)
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

    /// Checks whether calls of a started service are still missing. If the claim has no deputy any more, no node will send the
    /// missing calls, so this node reads them from etcd.
    pub(super) fn look_after_handed(&mut self, name: StreamName, epoch: Epoch) {
        let services = self.services.as_ref();
        if !services.is_some_and(|services| services.awaits(&name, epoch)) {
            return;
        }
        if self.member.deputy(&name).is_none() {
            tracing::warn!(service = %name, "not all calls of a service were handed over; the next node will read the remaining ones \
            from etcd");
            return self.read_states(name, epoch);
        }
        let replies = self.replies.clone();
        tokio::spawn(async move {
            sleep(HANDED_TICK).await;
            // This fails if the thread is about to end.
            let _ = replies.send(Replied::Awaited(name, epoch));
        });
    }

    /// Sends late packets to the next node. `tell` gets the receiver of the reply.
    pub(super) fn send_late_packets(
        &mut self,
        name: &StreamName,
        late_packets: Vec<(u64, LatePacket)>,
        tell: oneshot::Sender<oneshot::Receiver<Vec<u8>>>,
    ) {
        let (Some(services), Some(calls)) = (&self.services, &mut self.calls) else {
            return;
        };
        let Some(departed) = services.departed.get(name) else {
            return;
        };
        let now_ns = clock_now_ns();
        let late_packets = late_packets.into_iter();
        let passed = Passed::LatePackets(LatePackets {
            service: name.to_string(),
            process: services.process,
            datagrams: late_packets
                .map(|(stream, packet)| (stream, ForwardedPacket::new(packet, now_ns)))
                .collect(),
        });
        // This fails if the task that waits for it has ended.
        let _ = tell.send(calls.peers.ask(&departed.link, &passed));
    }

    /// Removes the addresses of a service whose calls have arrived at the next node. The neighbours already send to the next
    /// node. If the addresses stayed here, this machine's kernel would drop packets from the next node to calls here, because
    /// their source address would be one of this machine. It would also deliver packets for that address to this machine.
    pub(super) fn take_departed_off(&mut self, name: &StreamName) {
        if let Some(services) = &mut self.services
            && let Some(departed) = services.departed.get_mut(name)
        {
            let addresses = std::mem::take(&mut departed.addresses);
            drop(services.addresses.remove(&addresses));
        }
    }

    /// Finishes a service for which no packets arrive any more.
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
        if let Some(call_service) = self.call_service() {
            call_service.close(&name.0);
        }
    }

    /// Queues late packets from a node that has given up a service. Returns whether all calls of the service have arrived, so
    /// that no packets should be sent to that node any more.
    pub(super) fn queue_late_packets(&mut self, late_packets: LatePackets) -> bool {
        let now_ns = clock_now_ns();
        let datagrams = late_packets.datagrams.into_iter();
        let datagrams = datagrams.map(|(stream, packet)| (stream, packet.arrived(now_ns)));
        let call_service = self.call_service();
        let Some(services) = &mut self.services else {
            return false;
        };
        services
            .late_packets
            .put(now_ns, late_packets.process, datagrams);
        let name = StreamName(late_packets.service.as_str().into());
        let stage = services.carried.get(&name).map(|carrying| carrying.stage);
        if let (Some(Stage::Handed | Stage::Taken | Stage::Arrived), Some(call_service)) =
            (stage, call_service)
        {
            call_service.deliver();
        }
        stage == Some(Stage::Arrived)
    }
}

impl Services {
    /// Whether packets may still arrive here for a service that was handed over.
    pub(super) fn has_departed(&self) -> bool {
        !self.departed.is_empty()
    }
}

/// Forwards late packets of a service until no more come, or until the service comes back here.
async fn watch_late_packets(
    name: StreamName,
    late_packets: UnboundedReceiver<(u64, LatePacket)>,
    ends: oneshot::Receiver<()>,
    replies: UnboundedSender<Replied>,
) {
    tokio::select! {
        () = gather_late_packets(&name, late_packets, &replies) => {}
        _ = ends => return,
    }
    // This fails if the thread is about to end.
    let _ = replies.send(Replied::Departed(name));
}

/// Collects late packets and sends them to the next node, until that node has the calls and no more packets come.
async fn gather_late_packets(
    name: &StreamName,
    mut late_packets: UnboundedReceiver<(u64, LatePacket)>,
    replies: &UnboundedSender<Replied>,
) {
    let begun = Instant::now();
    let mut arrived = None;
    let mut last = begun;
    while begun.elapsed() < LATE_PACKET_TIME_MAX {
        let mut batch = Vec::new();
        let mut bytes = 0;
        if let Ok(Some(first)) = timeout(LATE_PACKET_TICK, late_packets.recv()).await {
            // Wait for the other packets of this slice.
            sleep(LATE_PACKET_GATHER).await;
            bytes += COPY_BYTES + first.1.bytes.len();
            batch.push(first);
        }
        while bytes < PART_BYTES
            && let Ok((stream, packet)) = late_packets.try_recv()
        {
            bytes += COPY_BYTES + packet.bytes.len();
            batch.push((stream, packet));
        }
        if !batch.is_empty() {
            last = Instant::now();
        }
        let is_quiet = |since: Instant| since.max(last).elapsed() > LATE_PACKET_QUIET;
        if arrived.is_some_and(is_quiet) {
            return;
        }
        if batch.is_empty() && arrived.is_some() {
            // If no more packets can come, wait here, because `recv` would return at once.
            if late_packets.is_closed() {
                sleep(LATE_PACKET_TICK).await;
            }
            continue;
        }
        let (tell, told) = oneshot::channel();
        if replies
            .send(Replied::LatePackets(name.clone(), batch, tell))
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

/// Time limit for the answer of another node, which may be busy.
const KEPT_TIME_MAX: Duration = Duration::from_millis(500);
/// Time limit for preparing a service. Ports that were not opened in advance are opened later.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(1);
/// Retry interval for a node that has just started.
const CALL_SERVICE_AGAIN: Duration = Duration::from_millis(10);
const CALL_SERVICE_TRIES_MAX: u32 = 500;
/// Maximum number of calls in a batch. The next node needs 0.1 to 0.2 ms for each.
const CALLS_AT_A_TIME: usize = 8;
/// Interval of checks for missing calls.
const HANDED_TICK: Duration = Duration::from_millis(100);
/// Time for which late packets are collected after the first one of a slice.
const LATE_PACKET_GATHER: Duration = Duration::from_millis(1);
/// Interval at which the next node is asked whether it has the calls, while no packets come.
const LATE_PACKET_TICK: Duration = Duration::from_millis(5);
/// The service is finished when, after its calls have arrived, no packets come for this time. Packets that came before the
/// addresses were removed may still be waiting.
const LATE_PACKET_QUIET: Duration = Duration::from_millis(200);
/// Maximum time for which late packets are forwarded. If the calls have not arrived by then, the next node has a problem.
const LATE_PACKET_TIME_MAX: Duration = Duration::from_secs(5);
