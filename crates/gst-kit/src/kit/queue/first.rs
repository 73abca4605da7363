//! A queue that stores its first item inline. Most queues hold one buffer per slice. In this case, the reading thread does not
//! wait for memory behind a pointer.

use std::collections::VecDeque;

/// A queue. `rest` is empty unless `first` is occupied.
#[derive(Debug)]
pub(super) struct FirstInPlace<T> {
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Default for FirstInPlace<T> {
    fn default() -> Self {
        FirstInPlace {
            first: None,
            // Allocated now, so that the first late slice does not have to allocate it.
            rest: VecDeque::with_capacity(REST),
        }
    }
}

impl<T> FirstInPlace<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    pub(super) fn push_back(&mut self, thing: T) {
        match &self.first {
            None => self.first = Some(thing),
            Some(_) => self.rest.push_back(thing),
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        let first = self.first.take()?;
        self.first = self.rest.pop_front();
        Some(first)
    }

    pub(super) fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        self.first.into_iter().chain(self.rest)
    }
}

/// Initial capacity for items other than the first.
const REST: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_vec_deque(steps in prop::collection::vec((0..6_u8, 0..6_usize), 0..200)) {
            let (mut queue, mut twin) = (FirstInPlace::default(), VecDeque::new());
            for (n, (step, at)) in steps.into_iter().enumerate() {
                match step {
                    0..=2 => {
                        queue.push_back(n);
                        twin.push_back(n);
                    }
                    3 => prop_assert_eq!(queue.pop_front(), twin.pop_front()),
                    _ if at == 0 => {
                        queue.clear();
                        twin.clear();
                    }
                    _ => {}
                }
                prop_assert_eq!(queue.front(), twin.front());
                prop_assert_eq!(queue.back(), twin.back());
                prop_assert_eq!(queue.is_empty(), twin.is_empty());
            }
            prop_assert!(queue.into_iter().eq(twin));
        }
    }
}
