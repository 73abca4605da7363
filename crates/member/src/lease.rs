//! This node's own key: it shows that the node is alive, and bounds the time in which it may send.

use crate::keys::{Incarnation, Key, NodeRecord, Revision, Value};
use crate::store::{
    Compare, Entry, Operation, Outcome, Reply, Request, RequestId, Transaction, What,
};
use crate::{Action, Member};

/// Whether this life has a key.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It has no key, and requests one at this time.
    Out {
        next_ns: u64,
        asked: Option<RequestId>,
    },
    In(Lease),
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) created: Revision,
    /// Revision of the last known renewal.
    modified: Revision,
    beat: u64,
    /// When the last confirmed renewal was sent. 0: none is confirmed.
    pub(crate) confirmed_ns: u64,
    next_ns: u64,
    asked: Option<RequestId>,
    /// The time to send has run out, and all streams were stopped.
    has_lapsed: bool,
}

impl Member {
    /// A transaction that ends this node's life, so that others take its streams at once. Commit it when nothing is sent any
    /// more; do not use this member afterwards. `None`: the node has no life.
    pub fn resignation(&mut self) -> Option<Transaction> {
        let lives = self.lives()?;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        Some(Transaction {
            id,
            when: vec![lives],
            then: vec![Operation::Delete(self.own_key())],
        })
    }

    /// Whether this node may send its streams now.
    #[must_use]
    pub fn is_live(&self, now_ns: u64) -> bool {
        matches!(&self.standing, Standing::In(lease) if !lease.has_lapsed)
            && now_ns < self.send_until_ns()
    }

    /// The condition of every change of a claim: no other node has ended this life.
    pub(crate) fn lives(&self) -> Option<Compare> {
        match &self.standing {
            Standing::In(lease) => Some(Compare::Created(self.own_key(), lease.created)),
            Standing::Out { .. } => None,
        }
    }

    fn own_key(&self) -> Key {
        Key::Node(self.settings.name.clone())
    }

    /// Begins a life with a new random number.
    pub(crate) fn begin_life(&mut self) {
        self.nodes.own = Incarnation(self.draw());
    }

    pub(crate) fn next_renewal(&self) -> Option<u64> {
        match &self.standing {
            Standing::Out { asked: Some(_), .. } => None,
            Standing::Out { next_ns, .. } => Some(*next_ns),
            Standing::In(lease) => {
                let lapse_ns = self.send_until_ns();
                let lapse = (!lease.has_lapsed).then_some(lapse_ns);
                let renewal = lease.asked.is_none().then_some(lease.next_ns);
                lapse.into_iter().chain(renewal).min()
            }
        }
    }

    /// Renews the key soon, because the node's record has changed.
    pub(crate) fn renew_soon(&mut self, now_ns: u64) {
        if let Standing::In(lease) = &mut self.standing {
            lease.next_ns = now_ns;
        }
    }

    pub(crate) fn keep_lease(&mut self, now_ns: u64) {
        let until_ns = self.send_until_ns();
        let key = self.own_key();
        match &mut self.standing {
            Standing::Out { asked: Some(_), .. } => {}
            Standing::Out { next_ns, .. } if *next_ns > now_ns => {}
            Standing::Out { next_ns, .. } => {
                // The key of an earlier life was not deleted yet.
                if self.nodes.is_known(&self.settings.name) {
                    *next_ns = now_ns + self.settings.timing.renew_ns;
                    return;
                }
                let is_new = Compare::Modified(key, Revision::ABSENT);
                self.write_record(now_ns, What::Join, is_new, 0);
            }
            Standing::In(lease) => {
                let is_over = now_ns >= until_ns && !lease.has_lapsed;
                let is_due = lease.asked.is_none() && now_ns >= lease.next_ns;
                lease.has_lapsed |= is_over;
                let (modified, beat) = (lease.modified, lease.beat + 1);
                if is_over {
                    self.stop_all(false);
                }
                if is_due {
                    self.write_record(now_ns, What::Renew, Compare::Modified(key, modified), beat);
                }
            }
        }
    }

    fn write_record(&mut self, now_ns: u64, what: What, condition: Compare, beat: u64) {
        let record = NodeRecord {
            incarnation: self.nodes.own,
            beat,
            weight: self.settings.weight,
            labels: self.settings.labels.clone(),
            draining: self.draining,
            link: self.settings.link,
            room: self.room,
        };
        let put = Operation::Put(self.own_key(), Value::Node(record));
        let id = self.commit(now_ns, what, vec![condition], vec![put]);
        // This leaves time for a second request.
        let until_ns = now_ns + self.settings.timing.valid_ns / 3;
        if let Some(request) = self.requests.get_mut(&id) {
            request.until_ns = request.until_ns.min(until_ns);
        }
        match &mut self.standing {
            Standing::Out { asked, .. } => *asked = Some(id),
            Standing::In(lease) => (lease.asked, lease.beat) = (Some(id), beat),
        }
    }

    /// Handles the answer to a join or a renewal.
    pub(crate) fn renewed(&mut self, now_ns: u64, request: &Request, reply: &Reply) {
        let asked = match &self.standing {
            Standing::Out { asked, .. } => *asked,
            Standing::In(lease) => lease.asked,
        };
        if asked != Some(reply.id) {
            // The answer concerns an earlier life.
            return;
        }
        match &reply.outcome {
            Outcome::Committed(at) => self.confirm(now_ns, request, *at),
            Outcome::Refused { now, .. } => {
                let own = self.own_key();
                let found = now.iter().find(|(key, _)| *key == own);
                let entry = found.and_then(|(_, entry)| entry.as_ref());
                let is_ours = |entry: &&Entry| match &entry.value {
                    Value::Node(record) => record.incarnation == self.nodes.own,
                    _ => false,
                };
                match entry.filter(is_ours) {
                    // An earlier request took effect, but its answer was lost.
                    Some(entry) => self.adopt(now_ns, entry.created, entry.modified),
                    None => self.end_life(now_ns),
                }
            }
        }
    }

    fn confirm(&mut self, now_ns: u64, request: &Request, at: Revision) {
        let sent_ns = request.sent_ns;
        let next_ns = sent_ns + self.settings.timing.renew_ns;
        let is_back = match &mut self.standing {
            Standing::Out { .. } => {
                self.standing = Standing::In(Lease {
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
            // While this node could not reach the store it saw nothing of the others either. That does not mean that
            // they are dead.
            self.nodes.see_all(now_ns);
            self.look_at_all();
        }
    }

    fn adopt(&mut self, now_ns: u64, created: Revision, modified: Revision) {
        match &mut self.standing {
            Standing::Out { .. } => {
                self.standing = Standing::In(Lease {
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

    /// Repeats a join or a renewal that was not answered, with the same revision. If the first one took effect, the answer shows
    /// it.
    pub(crate) fn renewal_is_late(&mut self, now_ns: u64, id: RequestId) {
        match &mut self.standing {
            Standing::Out { next_ns, asked } if *asked == Some(id) => {
                (*next_ns, *asked) = (now_ns, None);
            }
            Standing::In(lease) if lease.asked == Some(id) => {
                (lease.next_ns, lease.asked) = (now_ns, None);
            }
            _ => {}
        }
        self.keep_lease(now_ns);
    }

    /// Notes the store's copy of this node's key. `None`: it was deleted.
    pub(crate) fn note_own(&mut self, now_ns: u64, own: Option<&Entry>, at: Revision) {
        let Standing::In(lease) = &mut self.standing else {
            return;
        };
        match own {
            Some(entry) => lease.modified = lease.modified.max(entry.modified),
            None if at > lease.created => self.end_life(now_ns),
            None => {}
        }
    }

    /// Ends this life: another node has deleted its key, and others may carry its streams.
    fn end_life(&mut self, now_ns: u64) {
        self.stop_all(true);
        self.standing = Standing::Out {
            next_ns: now_ns,
            asked: None,
        };
        let own = self.settings.name.clone();
        self.nodes.forget(&own);
        self.replan(&own);
        self.begin_life();
    }

    /// Stops all streams. `is_ended`: also those that ignore the store's absence.
    fn stop_all(&mut self, is_ended: bool) {
        for (name, stream) in &mut self.streams {
            if stream.stop(is_ended) {
                self.actions.push_back(Action::Stop {
                    stream: name.clone(),
                });
            }
        }
    }
}
