//! Calls in a cluster. Each call is owned by one node, and requests may come to any node.
//!
//! ```text
//!  a message ─→ the call is here ───────────────────────────→ handle_request
//!        └────→ ClusterView::pass ─→ Way: here ─────────────────────┘
//!                                    answered by another node ─→ the reply
//!  a call that is new here ─→ ClusterView::claim ─→ its replies wait until etcd has stored the owner
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use threadbare_control::calls::{CallId, EndReason};
use threadbare_control::ng::{Command, Reply, Request};
use threadbare_control::saved::Reader;
use threadbare_member::CallName;
use threadbare_runtime::clock_now_ns;
use tokio::sync::oneshot;

use super::Service;
use crate::asker::{PendingReply, ReplyTarget, ReplyTo, Unreplied};
use crate::call_name::{decode, name_of};
use crate::plays::Unanswered;
use threadbare_cluster::{Back, Claimed, ClusterView, Opaque, Way};

/// The state of this node's calls in the cluster.
pub(super) struct Shared {
    cluster: ClusterView,
    claims: BTreeMap<CallId, Claim>,
}

impl Shared {
    pub(super) fn cluster(&self) -> &ClusterView {
        &self.cluster
    }
}

/// Whether the cluster has confirmed this node as the owner of a call.
enum Claim {
    /// The owner is not confirmed yet.
    Asked(Vec<Waiter>),
    Known,
}

/// A request that waits for the confirmation.
enum Waiter {
    Reply(Box<Unanswered>),
    Program(oneshot::Sender<Result<(), String>>),
}

impl Service {
    /// Allows requests for calls to come to any node of the cluster. Call this after the saved calls have been restored.
    pub(crate) fn share(&mut self, cluster: ClusterView) {
        self.calls.track_changes();
        self.shared = Some(Shared {
            cluster,
            claims: BTreeMap::new(),
        });
        let ids: Vec<CallId> = self.calls.ids(None).cloned().collect();
        ids.iter().for_each(|id| self.note_claim(id));
        self.tell_room();
    }

    /// Returns the call of a request. `None`: this node is not in a cluster, or the request names no call.
    pub(super) fn call_of(&self, request: &Request) -> Option<CallId> {
        self.shared.as_ref()?;
        let name = request.bytes("call-id").ok().flatten()?;
        Some(CallId::new(name))
    }

    /// Handles a message, or forwards it to another node.
    pub(super) fn handle_message_of(&mut self, request: Request, pending: PendingReply) {
        use Command::{List, Ping, Statistics};
        let is_own = matches!(request.command(), List | Ping | Statistics);
        let (Some(shared), Some(id)) = (&self.shared, pending.call.as_ref().filter(|_| !is_own))
        else {
            return self.handle_request(&request, pending);
        };
        if self.calls.has(id) {
            return self.handle_request(&request, pending);
        }
        let name = match name_of(id) {
            Ok(name) => name,
            Err(reason) => {
                let reply = Reply::Error(reason);
                return self.send(Unanswered { pending, reply });
            }
        };
        // The request cannot be forwarded without the original message.
        let Some(passed) = pending.passed.clone() else {
            return self.handle_request(&request, pending);
        };
        let makes = matches!(request.command(), Command::Offer | Command::Publish);
        let control = self.control();
        shared.cluster.pass(Some(name), makes, passed, move |way| {
            control
                .order_surely(move |service: &mut Service| service.go_way(&request, pending, way));
        });
    }

    fn go_way(&mut self, request: &Request, pending: PendingReply, way: Way) {
        match way {
            Way::Here => self.handle_request(request, pending),
            Way::Answered(back) => self.send_back(pending, back),
            Way::Refused(reason) => {
                let reply = Reply::Error(reason);
                self.send(Unanswered { pending, reply });
            }
        }
    }

    /// Sends the reply that another node has made.
    fn send_back(&mut self, pending: PendingReply, back: Back) {
        let ReplyTarget::Message(ticket, to) = pending.to else {
            return;
        };
        match back {
            Back::Ng(message) => {
                let message = self.requests.finish_with(ticket, message);
                self.send_to(Ok(message), to);
            }
            Back::InHand => self.send_to(Err(Unreplied::InHand), to),
            other => {
                let reply =
                    Reply::Error(format!("another node sent an unexpected answer: {other:?}"));
                let reply = self.requests.finish(ticket, reply);
                self.send_to(Ok(reply), to);
            }
        }
    }

    /// Holds back a reply about a call until the cluster has confirmed the owner of the call. Returns the reply if it can be sent at once.
    pub(super) fn keep_waiting(&mut self, answered: Unanswered) -> Option<Unanswered> {
        let claims = self.shared.as_mut().map(|shared| &mut shared.claims);
        let claim = claims.zip(answered.pending.call.as_ref());
        match claim.and_then(|(claims, id)| claims.get_mut(id)) {
            Some(Claim::Asked(waiters)) => {
                waiters.push(Waiter::Reply(Box::new(answered)));
                None
            }
            _ => Some(answered),
        }
    }

    /// Returns a receiver for the confirmation of a call's owner. `None`: nothing is pending.
    pub(crate) fn wait_for_claim(
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

    /// Claims a call that has started, saves a call that has changed, or releases a call that has ended.
    pub(super) fn note_claim(&mut self, id: &CallId) {
        let is_here = self.calls.has(id);
        let saved = self.saved_state(id);
        let Some(shared) = &mut self.shared else {
            return;
        };
        let Ok(name) = name_of(id) else { return };
        match (is_here, shared.claims.entry(id.clone()), saved) {
            (true, Entry::Vacant(place), saved) => {
                place.insert(Claim::Asked(Vec::new()));
                shared.cluster.claim(name, saved);
            }
            (true, Entry::Occupied(_), Some(saved)) => shared.cluster.keep(name, saved),
            (false, Entry::Occupied(place), _) => {
                let claim = place.remove();
                shared.cluster.release(name);
                self.homes.forget(id);
                self.answer_waiters(claim, Ok(()));
            }
            _ => {}
        }
    }

    /// Returns the service of a call, and the state from which the next node can continue the call.
    fn saved_state(&mut self, id: &CallId) -> Option<(String, Opaque)> {
        let service = self.homes.of(id)?.to_owned();
        let Some(state) = self.calls.export(id, Reader::Node) else {
            self.homes.forget(id);
            return None;
        };
        Some((service, Opaque(state)))
    }

    /// Claims a call that came here with its service. The call stays here, whatever etcd replies.
    pub(super) fn claim_adopted(&mut self, id: &CallId) {
        let saved = self.saved_state(id);
        if let (Some(shared), Ok(name)) = (&mut self.shared, name_of(id)) {
            shared.claims.insert(id.clone(), Claim::Known);
            shared.cluster.claim(name, saved);
        }
    }

    /// Drops the claim of a call that another node has taken over. Waiting requests are forwarded to that node.
    pub(super) fn leave_claim(&mut self, id: &CallId) {
        let shared = self.shared.as_mut();
        if let Some(claim) = shared.and_then(|shared| shared.claims.remove(id)) {
            self.answer_waiters(claim, Err(LEFT.to_owned()));
        }
    }

    /// Handles the result of a claim.
    pub(crate) fn handle_claimed(&mut self, name: &CallName, claimed: Claimed) {
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
            // A call that was confirmed before stays here, and the cluster claims it again later.
            Claimed::Refused if matches!(claim, Claim::Known) => {}
            Claimed::Refused => {
                if let (Some(shared), Ok(name)) = (&self.shared, name_of(&id)) {
                    shared.cluster.release(name);
                }
                self.give_up(&id, Err(NO_STORE.to_owned()));
            }
            Claimed::Taken { by } => {
                tracing::info!(call = %id, node = by, "another node owns the call: this node ends its copy");
                self.give_up(&id, Err(format!("node {by} owns the call")));
            }
        }
    }

    /// Gives up a call that another node owns.
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
                    // Sending fails if the receiver has gone.
                    let _ = tell.send(outcome.clone());
                }
                (Waiter::Reply(answered), Ok(())) => self.send(*answered),
                (Waiter::Reply(answered), Err(reason)) => self.answer_elsewhere(*answered, reason),
            }
        }
    }

    /// Forwards a request for a call that is not here to the call's owner. If there is none, refuses the request.
    fn answer_elsewhere(&mut self, answered: Unanswered, reason: &str) {
        let Unanswered { mut pending, .. } = answered;
        let shared = self.shared.as_ref();
        let name = pending.call.as_ref().and_then(|id| name_of(id).ok());
        match (pending.passed.take(), pending.to, shared) {
            // Another node has forwarded the request, and looks up the owner again.
            (None, ReplyTarget::Message(ticket, ReplyTo::Waiting(tell)), _) => {
                self.requests.forget(ticket);
                let _ = tell.send(Err(Unreplied::Moved));
            }
            (Some(passed), ReplyTarget::Message(ticket, to), Some(shared)) if name.is_some() => {
                let pending = PendingReply {
                    to: ReplyTarget::Message(ticket, to),
                    ..pending
                };
                let control = self.control();
                let reason = reason.to_owned();
                shared.cluster.pass(name, false, passed, move |way| {
                    let way = match way {
                        // The call has no owner, because it has ended in the meantime.
                        Way::Here => Way::Refused(reason),
                        other => other,
                    };
                    control
                        .order_surely(move |service: &mut Service| service.end_way(pending, way));
                });
            }
            (_, to, _) => {
                let reply = Reply::Error(reason.to_owned());
                self.send(Unanswered {
                    pending: PendingReply { to, ..pending },
                    reply,
                });
            }
        }
    }

    fn end_way(&mut self, pending: PendingReply, way: Way) {
        match way {
            Way::Answered(back) => self.send_back(pending, back),
            Way::Refused(reason) => self.send(Unanswered {
                pending,
                reply: Reply::Error(reason),
            }),
            Way::Here => {}
        }
    }

    /// Reports to the cluster how many more calls this node can take.
    pub(super) fn tell_room(&self) {
        let Some(shared) = &self.shared else { return };
        let max = self.calls.settings().sessions_max.max(1);
        let free = 100 - (self.calls.streams_len().min(max) * 100 / max) as u32;
        let busy = self.load.percent() * 100 / self.cpu_percent_max.max(1);
        let room = match (self.calls.is_draining(), self.late()) {
            (true, _) => None,
            (_, Some(_)) => Some(0),
            _ => Some(free.min(100 - busy.min(100)) as u8),
        };
        shared.cluster.set_room(room);
    }
}

const LEFT: &str = "the call continues on another node";
const NO_STORE: &str =
    "etcd does not answer, so this node refuses new calls ([cluster] calls-on-isolation)";
