//! The nodes of the cluster, as this node sees them.

use std::collections::BTreeMap;

use crate::keys::{Declaration, Incarnation, Key, Life, NodeName, NodeRecord, Revision};
use crate::place::{Fit, Point};
use crate::store::{Compare, Entry};

/// The nodes that have a key, including this one.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// The number of this node's life.
    pub(crate) own: Incarnation,
    seen: BTreeMap<NodeName, Seen>,
    death_ns: u64,
    /// No node is due before this time.
    due_ns: u64,
}

#[derive(Debug)]
struct Seen {
    point: Point,
    record: NodeRecord,
    created: Revision,
    modified: Revision,
    /// Time at which the node's key is deleted, unless the node renews it.
    bury_ns: u64,
    /// Whether the deletion was requested.
    is_asked: bool,
    /// Whether the process of this life has ended. Changes of its key that arrive later were already in transit.
    has_ended: bool,
}

impl Nodes {
    pub(crate) fn new(death_ns: u64) -> Nodes {
        Nodes {
            own: Incarnation(0),
            seen: BTreeMap::new(),
            death_ns,
            due_ns: u64::MAX,
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.seen.keys()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&NodeName, &NodeRecord)> {
        self.seen.iter().map(|(name, seen)| (name, &seen.record))
    }

    pub(crate) fn record(&self, name: &NodeName) -> Option<&NodeRecord> {
        Some(&self.seen.get(name)?.record)
    }

    /// Returns how well a node fits a stream.
    pub(crate) fn fit(
        &self,
        stream: Point,
        declaration: &Declaration,
        name: &NodeName,
    ) -> Option<Fit> {
        let seen = self.seen.get(name)?;
        Some(Fit::of(
            stream,
            declaration,
            (name, seen.point),
            &seen.record,
        ))
    }

    /// Returns the best node for a stream.
    pub(crate) fn best(&self, stream: Point, declaration: &Declaration) -> Option<(NodeName, Fit)> {
        let fits = self.fits(stream, declaration);
        let best = fits.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map(|(name, fit)| (name.clone(), fit))
    }

    /// Returns the best node for a stream among the nodes other than `name`.
    pub(crate) fn best_without(
        &self,
        node: &NodeName,
        stream: Point,
        declaration: &Declaration,
    ) -> Option<NodeName> {
        let others = self
            .fits(stream, declaration)
            .filter(|(name, _)| *name != node);
        let best = others.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map(|(name, _)| name.clone())
    }

    fn fits(
        &self,
        stream: Point,
        declaration: &Declaration,
    ) -> impl Iterator<Item = (&NodeName, Fit)> {
        self.seen.iter().map(move |(name, seen)| {
            let fit = Fit::of(stream, declaration, (name, seen.point), &seen.record);
            (name, fit)
        })
    }

    pub(crate) fn is_known(&self, name: &NodeName) -> bool {
        self.seen.contains_key(name)
    }

    /// Whether this life has a key.
    pub(crate) fn has(&self, life: &Life) -> bool {
        let record = self.record(&life.node);
        record.is_some_and(|record| record.incarnation == life.incarnation)
    }

    /// Whether a node's key was changed after this revision.
    pub(crate) fn is_newer_than(&self, name: &NodeName, at: Revision) -> bool {
        self.seen.get(name).is_some_and(|seen| seen.modified > at)
    }

    /// Returns the revision at which a node's key was created; [`Revision::ABSENT`]: the node has no key.
    fn created(&self, name: &NodeName) -> Revision {
        self.seen
            .get(name)
            .map_or(Revision::ABSENT, |seen| seen.created)
    }

    /// Returns the condition that a node's key is still as this node knows it, or absent if it knows no key. If the condition
    /// fails, the answer contains the current key.
    pub(crate) fn as_known(&self, name: &NodeName) -> Compare {
        Compare::Created(Key::Node(name.clone()), self.created(name))
    }

    /// Returns the current life of a node.
    pub(crate) fn life(&self, name: &NodeName) -> Option<Life> {
        let record = self.record(name)?;
        Some(Life {
            node: name.clone(),
            incarnation: record.incarnation,
        })
    }

    pub(crate) fn forget(&mut self, name: &NodeName) {
        self.seen.remove(name);
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.due_ns
    }

    /// Restarts the time after which silent nodes count as dead, for all nodes.
    pub(crate) fn see_all(&mut self, now_ns: u64) {
        let bury_ns = now_ns + self.death_ns;
        for seen in self.seen.values_mut() {
            seen.bury_ns = bury_ns;
        }
        self.due_ns = self.due_ns.min(bury_ns);
    }

    /// Postpones the check for silent nodes, because the view of the other nodes is outdated.
    pub(crate) fn look_later(&mut self, now_ns: u64) {
        if self.due_ns <= now_ns {
            self.due_ns = now_ns + BURY_AGAIN_NS;
        }
    }

    pub(crate) fn expect_dead(&mut self, now_ns: u64, life: &Life) {
        if let Some(seen) = self.seen.get_mut(&life.node)
            && seen.record.incarnation == life.incarnation
        {
            (seen.has_ended, seen.bury_ns) = (true, now_ns);
            self.due_ns = self.due_ns.min(now_ns);
        }
    }

    /// Records whether a request to delete a node's key is pending.
    pub(crate) fn set_asked(&mut self, name: &NodeName, is_asked: bool) {
        if let Some(seen) = self.seen.get_mut(name) {
            seen.is_asked = is_asked;
        }
    }

    /// Handles the value of a node's key. Returns whether anything but the beat and the room has changed.
    pub(crate) fn note(
        &mut self,
        now_ns: u64,
        name: &NodeName,
        record: NodeRecord,
        entry: &Entry,
    ) -> bool {
        let modified = entry.modified;
        let bury_ns = now_ns + self.death_ns;
        self.due_ns = self.due_ns.min(bury_ns);
        match self.seen.get_mut(name) {
            Some(seen) if seen.modified >= modified => false,
            Some(seen) => {
                seen.has_ended &= seen.record.incarnation == record.incarnation;
                let bury_ns = if seen.has_ended { now_ns } else { bury_ns };
                self.due_ns = self.due_ns.min(bury_ns);
                (seen.modified, seen.bury_ns, seen.is_asked) = (modified, bury_ns, false);
                if entry.created != Revision::ABSENT {
                    seen.created = entry.created;
                }
                let (beat, room) = (record.beat, record.room);
                let before = std::mem::replace(&mut seen.record, record);
                // The amount of room does not influence where streams go. Whether the node accepts calls at all does influence it.
                let is_as_before = before.room.is_some() == room.is_some();
                let before = NodeRecord {
                    beat,
                    room,
                    ..before
                };
                !is_as_before || before != seen.record
            }
            None => {
                let seen = Seen {
                    point: Point::of(&name.0),
                    record,
                    created: entry.created,
                    modified,
                    bury_ns,
                    is_asked: false,
                    has_ended: false,
                };
                self.seen.insert(name.clone(), seen);
                true
            }
        }
    }

    /// Takes the nodes that were silent for too long. `is_own`: takes only an earlier life of this node itself.
    pub(crate) fn take_due(
        &mut self,
        now_ns: u64,
        own: &NodeName,
        is_own: bool,
    ) -> Vec<(NodeName, Revision)> {
        if now_ns < self.due_ns {
            return Vec::new();
        }
        let mut due = Vec::new();
        self.due_ns = u64::MAX;
        for (name, seen) in &mut self.seen {
            let is_self = name == own && seen.record.incarnation == self.own;
            if is_self || (is_own && name != own) {
                continue;
            }
            if seen.bury_ns <= now_ns {
                seen.bury_ns = now_ns + BURY_AGAIN_NS;
                if !seen.is_asked {
                    due.push((name.clone(), seen.modified));
                }
            }
            self.due_ns = self.due_ns.min(seen.bury_ns);
        }
        due
    }
}

/// Delay before a deletion that was refused or not answered is tried again.
pub(crate) const BURY_AGAIN_NS: u64 = 100_000_000;
