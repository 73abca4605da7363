//! Requests to the store, and its answers. They correspond to etcd's KV service.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{CallName, Key, NodeName, Revision, StreamName, Value};

/// Identifies a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A transaction. If all conditions in `when` hold, all operations in `then` are done. Otherwise, nothing is done, and the
/// answer has the current keys of the conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    /// The number that the answer will have.
    pub id: RequestId,
    /// The conditions.
    pub when: Vec<Compare>,
    /// The operations.
    pub then: Vec<Operation>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key's last change has this revision. [`Revision::ABSENT`]: the key does not exist.
    Modified(Key, Revision),
    /// The key was created at this revision, and was not deleted since. [`Revision::ABSENT`]: the key does not exist.
    Created(Key, Revision),
}

impl Compare {
    /// Returns the key of the condition.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Compare::Modified(key, _) | Compare::Created(key, _) => key,
        }
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Writes a key's value.
    Put(Key, Value),
    /// Removes a key.
    Delete(Key),
}

/// A key with its value in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value. Its variant is that of the key.
    pub value: Value,
    /// The revision at which the key was created.
    pub created: Revision,
    /// The revision of the key's last change.
    pub modified: Revision,
}

/// The answer to a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The transaction's number.
    pub id: RequestId,
    /// The result.
    pub outcome: Outcome,
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The operations were done, and created this revision.
    Committed(Revision),
    /// A condition did not hold.
    Refused {
        /// The current keys of the conditions.
        now: Vec<(Key, Option<Entry>)>,
        /// The store's revision at that time.
        at: Revision,
    },
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) what: What,
    pub(crate) sent_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) transaction: Transaction,
}

/// The requests that wait for their answers.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    by_id: BTreeMap<RequestId, Request>,
    /// The same requests, by the time at which they are repeated.
    by_time: BTreeSet<(u64, RequestId)>,
}

impl Requests {
    pub(crate) fn insert(&mut self, id: RequestId, request: Request) {
        self.by_time.insert((request.until_ns, id));
        self.by_id.insert(id, request);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.by_id.remove(&id)?;
        self.by_time.remove(&(request.until_ns, id));
        Some(request)
    }

    /// Removes and returns the requests that are to be repeated at `now_ns`.
    pub(crate) fn take_late(&mut self, now_ns: u64) -> Vec<(RequestId, Request)> {
        let mut late = Vec::new();
        while let Some((until_ns, id)) = self.by_time.first().copied()
            && until_ns <= now_ns
        {
            late.extend(self.remove(id).map(|request| (id, request)));
        }
        late
    }

    /// Returns the time at which the next request is to be repeated.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.by_time.first().map(|(until_ns, _)| *until_ns)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Join,
    Renew,
    /// Deletes the key of a node that is silent.
    Bury(NodeName),
    Stream(StreamName),
    Call(CallName),
}

impl Operation {
    /// Returns the key after this operation was committed at revision `at`. `when`: the conditions of the same transaction.
    pub(crate) fn applied(self, at: Revision, when: &[Compare]) -> (Key, Option<Entry>) {
        let (key, value) = match self {
            Operation::Delete(key) => return (key, None),
            Operation::Put(key, value) => (key, value),
        };
        let is_new = when.contains(&Compare::Modified(key.clone(), Revision::ABSENT));
        // The creation revision matters only if this transaction has created the key.
        let created = if is_new { at } else { Revision::ABSENT };
        let entry = Entry {
            key: key.clone(),
            value,
            created,
            modified: at,
        };
        (key, Some(entry))
    }
}
