//! Mapping from a message to its key.

use std::hash::Hash;

/// A message that contains its key.
pub trait Identifiable {
    /// Type of the key. It is cloned and hashed for each message, so prefer an integer or an `Arc<str>` to a `String`.
    type Id: Clone + Eq + Hash;

    /// Returns the key of this message.
    fn id(&self) -> Self::Id;
}

/// Finds the key of a message. Closures `FnMut(&M) -> Option<K>` implement it, and so does [`ById`].
pub trait Route<M> {
    /// The key: see [`Identifiable::Id`].
    type Key: Clone + Eq + Hash;

    /// Returns the key of `message`; `None` if it has no key and so is unmatched.
    fn key(&mut self, message: &M) -> Option<Self::Key>;
}

impl<M, K, F> Route<M> for F
where
    K: Clone + Eq + Hash,
    F: FnMut(&M) -> Option<K>,
{
    type Key = K;

    #[inline]
    fn key(&mut self, message: &M) -> Option<K> {
        self(message)
    }
}

/// Routes messages that contain their keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct ById;

impl<M: Identifiable> Route<M> for ById {
    type Key = M::Id;

    #[inline]
    fn key(&mut self, message: &M) -> Option<M::Id> {
        Some(message.id())
    }
}
