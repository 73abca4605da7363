//! Calls of a cluster: each is at one node, and requests may come to any.
//!
//! ```text
//!  a message ─→ the call is here ───────────────────────────→ handle_request
//!        └────→ ClusterView::pass ─→ Way: here ─────────────────────┘
//!                                    answered by another node ─→ the reply
//!  a call that is new here ─→ ClusterView::claim ─→ its replies wait until etcd has written whose it is
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use threadbare_control::calls::{CallId, EndReason};
use threadbare_control::cluster::CallName;
use threadbare_control::ng::{Command, Reply, Request};
use threadbare_runtime::clock_now_ns;
use tokio::sync::oneshot;

use super::Service;
use crate::cluster::{Back, Claimed, ClusterView, Opaque, Way};
use crate::serve::asker::{Owed, OwedTo, ReplyTo, Unreplied};
use crate::serve::call_name::{decode, name_of};
use crate::serve::plays::Unanswered;

/// What this node has to do with the calls of its cluster.
pub(super) struct Shared {
    cluster: ClusterView,
    claims: BTreeMap<CallId, Claim>,
}

impl Shared {
    pub(super) fn cluster(&self) -> &ClusterView {
        &self.cluster
    }
}

/// Whether the cluster knows that a call is here.
enum Claim {
    /// Not yet.
    Asked(Vec<Waiter>),
    Known,
}

/// Who waits for that.
enum Waiter {
    Reply(Box<Unanswered>),
    Program(oneshot::Sender<Result<(), String>>),
}

impl Service {
    /// Requests for calls may come to any node of the cluster from now on. To be called when calls have been brought back.
    pub(in crate::serve) fn share(&mut self, cluster: ClusterView) {
        self.calls.track_changes();
        self.shared = Some(Shared {
            cluster,
            claims: BTreeMap::new(),
        });
        let ids: Vec<CallId> = self.calls.ids(None).cloned().collect();
        ids.iter().for_each(|id| self.note_claim(id));
        self.tell_room();
    }

    /// The call of a request, if that is of interest.
    pub(super) fn call_of(&self, request: &Request) -> Option<CallId> {
        self.shared.as_ref()?;
        let name = request.bytes("call-id").ok().flatten()?;
        Some(CallId::new(name))
    }

    /// Carries a message out, or has another node do so.
    pub(super) fn handle_message_of(&mut self, request: Request, owed: Owed) {
        use Command::{List, Ping, Statistics};
        let is_own = matches!(request.command(), List | Ping | Statistics);
        let (Some(shared), Some(id)) = (&self.shared, owed.call.as_ref().filter(|_| !is_own))
        else {
            return self.handle_request(&request, owed);
        };
        if self.calls.has(id) {
            return self.handle_request(&request, owed);
        }
        let name = match name_of(id) {
            Ok(name) => name,
            Err(reason) => {
                let reply = Reply::Error(reason);
                return self.send(Unanswered { owed, reply });
            }
        };
        // It is kept, should another node be quicker to make the call.
        let Some(passed) = owed.passed.clone() else {
            return self.handle_request(&request, owed);
        };
        let makes = matches!(request.command(), Command::Offer | Command::Publish);
        let control = self.control();
        shared.cluster.pass(Some(name), makes, passed, move |way| {
            control.order_surely(move |service: &mut Service| service.go_way(&request, owed, way));
        });
    }

    fn go_way(&mut self, request: &Request, owed: Owed, way: Way) {
        match way {
            Way::Here => self.handle_request(request, owed),
            Way::Answered(back) => self.send_back(owed, back),
            Way::Refused(reason) => {
                let reply = Reply::Error(reason);
                self.send(Unanswered { owed, reply });
            }
        }
    }

    /// The reply of another node.
    fn send_back(&mut self, owed: Owed, back: Back) {
        let OwedTo::Message(ticket, to) = owed.to else {
            return;
        };
        match back {
            Back::Ng(message) => {
                let message = self.desk.finish_with(ticket, message);
                self.send_to(Ok(message), to);
            }
            Back::InHand => self.send_to(Err(Unreplied::InHand), to),
            other => {
                let reply = Reply::Error(format!("another node has answered with {other:?}"));
                let reply = self.desk.finish(ticket, reply);
                self.send_to(Ok(reply), to);
            }
        }
    }

    /// Keeps a reply about a call until the cluster knows that the call is here.
    pub(super) fn keep_waiting(&mut self, answered: Unanswered) -> Option<Unanswered> {
        let claims = self.shared.as_mut().map(|shared| &mut shared.claims);
        let claim = claims.zip(answered.owed.call.as_ref());
        match claim.and_then(|(claims, id)| claims.get_mut(id)) {
            Some(Claim::Asked(waiters)) => {
                waiters.push(Waiter::Reply(Box::new(answered)));
                None
            }
            _ => Some(answered),
        }
    }

    /// Tells when the cluster knows that a call is here. `None`: there is nothing to wait for.
    pub(in crate::serve) fn wait_for_claim(
        &mut self,
        id: &CallId,
    ) -> Option<oneshot::Receiver<Result<(), String>>> {
        let shared = self.shared.as_mut()?;
        let Claim::Asked(waiters) = shared.claims.get_mut(id)? else {
            return None;
        };
        let (tell, told) = oneshot::channel();
        waiters.push(Waiter::Program(tell));
        Some(told)
    }

    /// A call may have come or gone.
    pub(super) fn note_claim(&mut self, id: &CallId) {
        let is_here = self.calls.has(id);
        let kept = self.kept(id);
        let Some(shared) = &mut self.shared else {
            return;
        };
        let Ok(name) = name_of(id) else { return };
        match (is_here, shared.claims.entry(id.clone()), kept) {
            (true, Entry::Vacant(place), kept) => {
                place.insert(Claim::Asked(Vec::new()));
                shared.cluster.claim(name, kept);
            }
            (true, Entry::Occupied(_), Some(kept)) => shared.cluster.keep(name, kept),
            (false, Entry::Occupied(place), _) => {
                let claim = place.remove();
                shared.cluster.release(name);
                self.homes.forget(id);
                self.answer_waiters(claim, Ok(()));
            }
            _ => {}
        }
    }

    /// A call's service, and what the next node that has that needs.
    fn kept(&mut self, id: &CallId) -> Option<(String, Opaque)> {
        let service = self.homes.of(id)?.to_owned();
        let Some(state) = self.calls.export(id) else {
            self.homes.forget(id);
            return None;
        };
        Some((service, Opaque(state)))
    }

    /// A call has come with its service, and is here whatever etcd answers.
    pub(super) fn claim_adopted(&mut self, id: &CallId) {
        let kept = self.kept(id);
        if let (Some(shared), Ok(name)) = (&mut self.shared, name_of(id)) {
            shared.claims.insert(id.clone(), Claim::Known);
            shared.cluster.claim(name, kept);
        }
    }

    /// Another node goes on with a call: who waits for a reply about it asks that one.
    pub(super) fn leave_claim(&mut self, id: &CallId) {
        let shared = self.shared.as_mut();
        if let Some(claim) = shared.and_then(|shared| shared.claims.remove(id)) {
            self.answer_waiters(claim, Err(LEFT.to_owned()));
        }
    }

    /// What has become of a call's claim.
    pub(in crate::serve) fn handle_claimed(&mut self, name: &CallName, claimed: Claimed) {
        let id = decode(&name.0);
        let claims = self.shared.as_mut().map(|shared| &mut shared.claims);
        let Some(claim) = claims.and_then(|claims| claims.get_mut(&id)) else {
            return;
        };
        match claimed {
            Claimed::Ours | Claimed::Alone => {
                let claim = std::mem::replace(claim, Claim::Known);
                self.answer_waiters(claim, Ok(()));
            }
            // One that runs goes on, and the cluster asks on.
            Claimed::Refused if matches!(claim, Claim::Known) => {}
            Claimed::Refused => {
                if let (Some(shared), Ok(name)) = (&self.shared, name_of(&id)) {
                    shared.cluster.release(name);
                }
                self.give_up(&id, Err(NO_STORE.to_owned()));
            }
            Claimed::Taken { by } => {
                tracing::info!(call = %id, node = by, "another node has the call: it ends here");
                self.give_up(&id, Err(format!("node {by} has the call")));
            }
        }
    }

    /// A call that this node may not have.
    fn give_up(&mut self, id: &CallId, outcome: Result<(), String>) {
        let shared = self.shared.as_mut();
        let claim = shared.and_then(|shared| shared.claims.remove(id));
        self.calls.end(clock_now_ns(), id, EndReason::Cluster);
        self.carry_out();
        if let Some(claim) = claim {
            self.answer_waiters(claim, outcome);
        }
    }

    fn answer_waiters(&mut self, claim: Claim, outcome: Result<(), String>) {
        let Claim::Asked(waiters) = claim else { return };
        for waiter in waiters {
            match (waiter, &outcome) {
                (Waiter::Program(tell), outcome) => {
                    // Who asked may have given up.
                    let _ = tell.send(outcome.clone());
                }
                (Waiter::Reply(answered), Ok(())) => self.send(*answered),
                (Waiter::Reply(answered), Err(reason)) => self.answer_elsewhere(*answered, reason),
            }
        }
    }

    /// The call is not here after all: the node that has it answers, or nobody.
    fn answer_elsewhere(&mut self, answered: Unanswered, reason: &str) {
        let Unanswered { mut owed, .. } = answered;
        let shared = self.shared.as_ref();
        let name = owed.call.as_ref().and_then(|id| name_of(id).ok());
        match (owed.passed.take(), owed.to, shared) {
            // Another node has sent it here, and looks again.
            (None, OwedTo::Message(ticket, ReplyTo::Waiting(tell)), _) => {
                self.desk.forget(ticket);
                let _ = tell.send(Err(Unreplied::Moved));
            }
            (Some(passed), OwedTo::Message(ticket, to), Some(shared)) if name.is_some() => {
                let owed = Owed {
                    to: OwedTo::Message(ticket, to),
                    ..owed
                };
                let control = self.control();
                let reason = reason.to_owned();
                shared.cluster.pass(name, false, passed, move |way| {
                    let way = match way {
                        // It has gone meanwhile.
                        Way::Here => Way::Refused(reason),
                        other => other,
                    };
                    control.order_surely(move |service: &mut Service| service.end_way(owed, way));
                });
            }
            (_, to, _) => {
                let reply = Reply::Error(reason.to_owned());
                self.send(Unanswered {
                    owed: Owed { to, ..owed },
                    reply,
                });
            }
        }
    }

    fn end_way(&mut self, owed: Owed, way: Way) {
        match way {
            Way::Answered(back) => self.send_back(owed, back),
            Way::Refused(reason) => self.send(Unanswered {
                owed,
                reply: Reply::Error(reason),
            }),
            Way::Here => {}
        }
    }

    /// How many more calls there is room for.
    pub(super) fn tell_room(&self) {
        let Some(shared) = &self.shared else { return };
        let max = self.calls.settings().sessions_max.max(1);
        let free = 100 - (self.calls.len().min(max) * 100 / max) as u32;
        let busy = self.load.percent() * 100 / self.cpu_percent_max.max(1);
        let room = match (self.calls.is_draining(), self.late()) {
            (true, _) => None,
            (_, Some(_)) => Some(0),
            _ => Some(free.min(100 - busy.min(100)) as u8),
        };
        shared.cluster.set_room(room);
    }
}

const LEFT: &str = "the call goes on at another node";
const NO_STORE: &str =
    "etcd does not answer, and no calls are made then ([cluster] calls-on-isolation)";
