//! What is asked of the store, and its answers: those of etcd's KV service.

use super::keys::{CallName, Key, NodeName, Revision, StreamName, Value};

/// Names a request until its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// If all of `when` holds, `then` is done, as a whole; else nothing, and the answer tells what the keys of `when` are.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    /// Of the answer.
    pub id: RequestId,
    /// The conditions.
    pub when: Vec<Compare>,
    /// What to do.
    pub then: Vec<Operation>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key was changed last by this. [`Revision::ABSENT`]: there is no such key.
    Modified(Key, Revision),
    /// The key was created by this, and not deleted since. [`Revision::ABSENT`]: there is no such key.
    Created(Key, Revision),
}

impl Compare {
    /// What is compared.
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
    /// Writes a value.
    Put(Key, Value),
    /// Removes a key.
    Delete(Key),
}

/// A key as it is in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value, of the same kind.
    pub value: Value,
    /// Since when there is such a key.
    pub created: Revision,
    /// When it was changed last.
    pub modified: Revision,
}

/// The answer to a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Of the transaction.
    pub id: RequestId,
    /// What has become of it.
    pub outcome: Outcome,
}

/// What has become of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was done; this is the state of the store that it made.
    Committed(Revision),
    /// A condition did not hold.
    Refused {
        /// The keys of its conditions.
        now: Vec<(Key, Option<Entry>)>,
        /// In this state of the store.
        at: Revision,
    },
}

/// Waits for its answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) sent_ns: u64,
    pub(super) until_ns: u64,
    pub(super) transaction: Transaction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Join,
    Renew,
    /// Deletes the key of a node that does nothing any more.
    Bury(NodeName),
    Stream(StreamName),
    Call(CallName),
}

impl Operation {
    /// What the key is when this was committed by `at`. `when`: of the same transaction.
    pub(super) fn applied(self, at: Revision, when: &[Compare]) -> (Key, Option<Entry>) {
        let (key, value) = match self {
            Operation::Delete(key) => return (key, None),
            Operation::Put(key, value) => (key, value),
        };
        let is_new = when.contains(&Compare::Modified(key.clone(), Revision::ABSENT));
        // When it was made is of no interest, unless by this.
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
