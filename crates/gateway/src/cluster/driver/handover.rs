//! A service goes from one node that lives to another, and no datagram is lost.
//!
//! | this node | the next one |
//! |---|---|
//! | carries it | *Prepare*: opens the ports of its calls (they have no address yet), and is ready |
//! | *HandOver*: leaves the calls, and sends where they are; their ports stay open, and the addresses here | keeps that |
//! | writes down that the next one has it | *Start*: has the addresses, and says so to the network; goes on with the calls |
//! | sends what still comes ([`Strays`]) | hears it, as if it had come there |
//! | told that the calls have arrived, and nothing comes any more: closes the ports, takes the addresses off | |

use std::time::Duration;

use threadbare_control::cluster::{Entry, Link, StreamName};
use threadbare_relay::Stray;
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::services::{COPY_BYTES, Departed, PART_BYTES, Services, Stage, parts};
use super::{Driver, Replied};
use crate::cluster::passing::{Back, Passed};
use crate::cluster::service::{Copies, Leaving, Preparing, ServiceSpec, StrayOnWay, Strays};
use crate::config::ServiceAddress;

/// To whom a service is handed over.
pub(super) struct Next {
    /// `None`: it is not known where to ask it.
    link: Option<Link>,
    addresses: Vec<ServiceAddress>,
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
        match self.leave_service(name, None) {
            Some(spec) => {
                let services = self.services.as_ref();
                services.map(|services| services.addresses.remove(&spec.addresses));
            }
            // It was prepared, and does not come.
            None => {
                if let Some(desk) = self.desk() {
                    desk.unprepare(&name.0);
                }
            }
        }
    }

    /// Another node is about to have it: it gets the last states of all streams before it is told.
    pub(super) fn hand_over_service(&mut self, name: &StreamName) {
        let next = self.member.next_owner(name);
        let link = next.and_then(|life| {
            let record = self.member.nodes().find(|(node, _)| **node == life.node);
            record?.1.link
        });
        if self.leave_service(name, Some(link)).is_none() {
            // It has never begun.
            self.handed_over(name);
        }
    }

    /// `next`: it is handed over, to a node that is asked there.
    fn leave_service(
        &mut self,
        name: &StreamName,
        next: Option<Option<Link>>,
    ) -> Option<ServiceSpec> {
        let desk = self.desk();
        let spec = self.services.as_mut()?.carried.remove(name)?.spec;
        self.member.leave_calls(name);
        tracing::info!(service = %name, "leaving a service");
        let next = next.map(|link| Next {
            link,
            addresses: spec.addresses.clone(),
        });
        let (replies, service) = (self.replies.clone(), name.clone());
        let left = move |leaving| drop(replies.send(Replied::Left(service, leaving, next)));
        match desk {
            Some(desk) => desk.leave(&name.0, Box::new(left)),
            None => left(Leaving::nothing()),
        }
        Some(spec)
    }

    /// What is left of the calls of a service.
    pub(super) fn handle_left(&mut self, name: StreamName, leaving: Leaving, next: Option<Next>) {
        let Leaving { streams, strays } = leaving;
        let (Some(services), Some(calls)) = (&mut self.services, &mut self.calls) else {
            return;
        };
        let copies = Copies {
            process: services.process,
            is_last: true,
            streams: streams
                .into_iter()
                .map(|(stream, state)| (stream, Some(state)))
                .collect(),
        };
        // It may come back before another node has it.
        services.shadows.put(clock_now_ns(), copies.clone());
        let (link, addresses) = match next {
            Some(Next {
                link: Some(link),
                addresses,
            }) => (link, addresses),
            // It is gone, or nobody can be told of what still comes.
            next => {
                let removed = next.map(|next| services.addresses.remove(&next.addresses));
                self.close_departed(&name);
                if removed.is_some() {
                    self.handed_over(&name);
                }
                return;
            }
        };
        let (running, mut ends) = oneshot::channel();
        let departed = Departed {
            addresses,
            link,
            running,
        };
        services.departed.insert(name.clone(), departed);
        let asked: Vec<_> = parts(&copies)
            .map(|part| calls.peers.ask(&link, &part))
            .collect();
        let replies = self.replies.clone();
        tokio::spawn(async move {
            for kept in asked {
                if !matches!(timeout(KEPT_TIME_MAX, kept).await, Ok(Ok(_))) {
                    tracing::warn!(service = %name, "the next node has not said that it has the states of the streams");
                    break;
                }
            }
            // The thread is about to end.
            let _ = replies.send(Replied::HandedOver(name.clone()));
            tokio::select! {
                () = gather_strays(&name, strays, &replies) => {}
                // The service is here again.
                _ = &mut ends => return,
            }
            let _ = replies.send(Replied::Departed(name));
        });
    }

    pub(super) fn handed_over(&mut self, name: &StreamName) {
        let now_ns = clock_now_ns();
        self.member.handle_handed_over(now_ns, name, Vec::new());
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
        if let (Some(Stage::Taken | Stage::Arrived), Some(desk)) = (stage, desk) {
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
        sleep(STRAY_TICK).await;
        let mut batch = Vec::new();
        let mut bytes = 0;
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
        if back == Some(Back::Arrived) {
            arrived.get_or_insert_with(Instant::now);
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
/// What comes waits no longer than this, and its way.
const STRAY_TICK: Duration = Duration::from_millis(4);
/// Behind the calls' arrival: who has not heard by then where the addresses are, hears it when they are said again.
const STRAY_QUIET: Duration = Duration::from_millis(200);
/// The calls have not arrived by then: something is wrong there.
const STRAY_TIME_MAX: Duration = Duration::from_secs(5);
