//! This node's own key: it shows that the node is alive, and bounds the time in which it may send.

use crate::keys::{Incarnation, Key, NodeRecord, Revision, Value};
use crate::store::{Compare, Entry, Operation, Outcome, Reply, Request, RequestId, What};
use crate::{Action, Member};

/// Whether the current life of this node has a key.
#[derive(Debug)]
pub(crate) enum Standing {
    /// The node has no key, and requests one at a certain time.
    Out {
        next_ns: u64,
        asked: Option<RequestId>,
    },
    In(Lease),
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) created: Revision,
    /// Revision of the key after the last known renewal.
    modified: Revision,
    beat: u64,
    /// Time at which the last confirmed renewal was sent. 0: no renewal is confirmed yet.
    pub(crate) confirmed_ns: u64,
    next_ns: u64,
    asked: Option<RequestId>,
    /// Whether the lease has run out, and all streams were stopped.
    pub(crate) has_lapsed: bool,
}

/// Returns the condition for each change of a claim: no other node has ended this life of this node.
pub(crate) fn lives(member: &Member) -> Option<Compare> {
    match &member.standing {
        Standing::In(lease) => Some(Compare::Created(own_key(member), lease.created)),
        Standing::Out { .. } => None,
    }
}

pub(crate) fn own_key(member: &Member) -> Key {
    Key::Node(member.settings.name.clone())
}

/// Begins a life with a new random number.
pub(crate) fn begin_life(member: &mut Member) {
    member.nodes.own = Incarnation(member.draw());
}

pub(crate) fn next_renewal(member: &Member) -> Option<u64> {
    match &member.standing {
        Standing::Out { asked: Some(_), .. } => None,
        Standing::Out { next_ns, .. } => Some(*next_ns),
        Standing::In(lease) => {
            let lapse_ns = member.send_until_ns();
            let lapse = (!lease.has_lapsed).then_some(lapse_ns);
            let renewal = lease.asked.is_none().then_some(lease.next_ns);
            lapse.into_iter().chain(renewal).min()
        }
    }
}

/// Renews the key soon, because the node's record has changed.
pub(crate) fn renew_soon(member: &mut Member, now_ns: u64) {
    if let Standing::In(lease) = &mut member.standing {
        lease.next_ns = now_ns;
    }
}

pub(crate) fn keep_lease(member: &mut Member, now_ns: u64) {
    let until_ns = member.send_until_ns();
    let key = own_key(member);
    match &mut member.standing {
        Standing::Out { asked: Some(_), .. } => {}
        Standing::Out { next_ns, .. } if *next_ns > now_ns => {}
        Standing::Out { next_ns, .. } => {
            // The key of an earlier life must be deleted first.
            if member.nodes.is_known(&member.settings.name) {
                *next_ns = now_ns + member.settings.timing.renew_ns;
                return;
            }
            let is_new = Compare::Modified(key, Revision::ABSENT);
            write_record(member, now_ns, What::Join, is_new, 0);
        }
        Standing::In(lease) => {
            let is_over = now_ns >= until_ns && !lease.has_lapsed;
            let is_due = lease.asked.is_none() && now_ns >= lease.next_ns;
            lease.has_lapsed |= is_over;
            let (modified, beat) = (lease.modified, lease.beat + 1);
            if is_over {
                stop_all(member, false);
            }
            if is_due {
                write_record(
                    member,
                    now_ns,
                    What::Renew,
                    Compare::Modified(key, modified),
                    beat,
                );
            }
        }
    }
}

fn write_record(member: &mut Member, now_ns: u64, what: What, condition: Compare, beat: u64) {
    let record = NodeRecord {
        incarnation: member.nodes.own,
        beat,
        weight: member.settings.weight,
        labels: member.settings.labels.clone(),
        draining: member.draining,
        link: member.settings.link,
        room: member.room,
    };
    let put = Operation::Put(own_key(member), Value::Node(record));
    let id = member.commit(now_ns, what, vec![condition], vec![put]);
    match &mut member.standing {
        Standing::Out { asked, .. } => *asked = Some(id),
        Standing::In(lease) => (lease.asked, lease.beat) = (Some(id), beat),
    }
}

/// Handles the answer to a join or a renewal.
pub(crate) fn renewed(member: &mut Member, now_ns: u64, request: &Request, reply: &Reply) {
    let asked = match &member.standing {
        Standing::Out { asked, .. } => *asked,
        Standing::In(lease) => lease.asked,
    };
    if asked != Some(reply.id) {
        // The answer concerns an earlier life.
        return;
    }
    match &reply.outcome {
        Outcome::Committed(at) => confirm(member, now_ns, request, *at),
        Outcome::Refused { now, .. } => {
            let own = own_key(member);
            let found = now.iter().find(|(key, _)| *key == own);
            let entry = found.and_then(|(_, entry)| entry.as_ref());
            let is_ours = |entry: &&Entry| match &entry.value {
                Value::Node(record) => record.incarnation == member.nodes.own,
                _ => false,
            };
            match entry.filter(is_ours) {
                // An earlier request took effect, but its answer was lost.
                Some(entry) => adopt(member, now_ns, entry.created, entry.modified),
                None => end_life(member, now_ns),
            }
        }
    }
}

fn confirm(member: &mut Member, now_ns: u64, request: &Request, at: Revision) {
    let sent_ns = request.sent_ns;
    let next_ns = sent_ns + member.settings.timing.renew_ns;
    let is_back = match &mut member.standing {
        Standing::Out { .. } => {
            member.standing = Standing::In(Lease {
                created: at,
                modified: at,
                beat: 0,
                confirmed_ns: sent_ns,
                next_ns,
                asked: None,
                has_lapsed: false,
            });
            true
        }
        Standing::In(lease) => {
            (lease.modified, lease.asked) = (lease.modified.max(at), None);
            (lease.confirmed_ns, lease.next_ns) = (sent_ns, next_ns);
            std::mem::take(&mut lease.has_lapsed)
        }
    };
    if is_back {
        // While this node could not reach the store, it did not see the renewals of other nodes. So their silence does
        // not mean that they are dead.
        member.nodes.see_all(now_ns);
        member.look_at_all();
    }
}

fn adopt(member: &mut Member, now_ns: u64, created: Revision, modified: Revision) {
    match &mut member.standing {
        Standing::Out { .. } => {
            member.standing = Standing::In(Lease {
                created,
                modified,
                beat: 0,
                confirmed_ns: 0,
                next_ns: now_ns,
                asked: None,
                has_lapsed: true,
            });
        }
        Standing::In(lease) => {
            lease.modified = lease.modified.max(modified);
            (lease.next_ns, lease.asked) = (now_ns, None);
        }
    }
}

/// Repeats a join or a renewal that was not answered. The second request compares the same revision as the first one. If the
/// first one took effect, the answer to the second one shows this.
pub(crate) fn renewal_is_late(member: &mut Member, now_ns: u64, id: RequestId) {
    match &mut member.standing {
        Standing::Out { next_ns, asked } if *asked == Some(id) => {
            (*next_ns, *asked) = (now_ns, None);
        }
        Standing::In(lease) if lease.asked == Some(id) => {
            (lease.next_ns, lease.asked) = (now_ns, None);
        }
        _ => {}
    }
    keep_lease(member, now_ns);
}

/// Handles the value of this node's key in the store. `None`: the key was deleted.
pub(crate) fn note_own(member: &mut Member, now_ns: u64, own: Option<&Entry>, at: Revision) {
    let Standing::In(lease) = &mut member.standing else {
        return;
    };
    match own {
        Some(entry) => lease.modified = lease.modified.max(entry.modified),
        None if at > lease.created => end_life(member, now_ns),
        None => {}
    }
}

/// Ends this life: another node has deleted its key, and others may carry its streams.
fn end_life(member: &mut Member, now_ns: u64) {
    stop_all(member, true);
    member.standing = Standing::Out {
        next_ns: now_ns,
        asked: None,
    };
    let own = member.settings.name.clone();
    member.nodes.forget(&own);
    member.replan(&own);
    begin_life(member);
}

/// Stops all streams. Streams that continue without the store are stopped only if `is_ended`.
fn stop_all(member: &mut Member, is_ended: bool) {
    for (name, stream) in &mut member.streams {
        if stream.stop(is_ended) {
            member.actions.push_back(Action::Stop {
                stream: name.clone(),
            });
        }
    }
}
