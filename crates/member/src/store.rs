//! Requests to the store, and its answers. They correspond to etcd's KV service.

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
