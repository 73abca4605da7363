//! Stores queued packets in places of one size, which are allocated when first needed and then reused.

use std::fmt;

/// Stores the packets that a [`Leg`](super::Leg) queues.
pub trait Keep: fmt::Debug {
    /// A packet as it arrives.
    type Arriving<'a>;
    /// The handle of a stored packet.
    type Handle: fmt::Debug;

    /// Stores an accepted packet. Returns `None` if no memory is left.
    fn keep(&mut self, arriving: Self::Arriving<'_>) -> Option<Self::Handle>;

    /// Releases a packet that will not be returned.
    fn let_go(&mut self, handle: Self::Handle);

    /// Stores another copy of a packet. Returns `None` if no memory is left, or if this keeper makes no copies.
    fn copy(&mut self, _handle: &Self::Handle) -> Option<Self::Handle> {
        None
    }
}

/// Handle of a stored payload: its place and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    place: u16,
    pub(super) len: u16,
}

impl Keep for Store {
    type Arriving<'a> = &'a [u8];
    type Handle = Stored;

    #[inline]
    fn keep(&mut self, arriving: &[u8]) -> Option<Stored> {
        self.insert(arriving)
    }

    #[inline]
    fn let_go(&mut self, handle: Stored) {
        self.remove(handle);
    }

    #[inline]
    fn copy(&mut self, handle: &Stored) -> Option<Stored> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.add_place()?,
        };
        let from = usize::from(handle.place) * self.place_bytes;
        let to = usize::from(place) * self.place_bytes;
        let len = usize::from(handle.len);
        self.bytes.copy_within(from..from + len, to);
        Some(Stored { place, ..*handle })
    }
}

/// Copies of all packets that a leg queues.
#[derive(Debug)]
pub struct Store {
    bytes: Vec<u8>,
    place_bytes: usize,
    /// Places that contain no payload.
    free: Vec<u16>,
    places: u16,
    places_max: u16,
}

impl Store {
    /// Creates a store with room for `places_max` payloads. Each place has `place_bytes` at first.
    pub(super) fn new(place_bytes: usize, places_max: u16) -> Store {
        Store {
            bytes: Vec::new(),
            place_bytes: place_bytes.clamp(1, PLACE_BYTES_MAX),
            free: Vec::new(),
            places: 0,
            places_max,
        }
    }

    /// Stores a payload. `None`: no place is left, or the payload is longer than any packet.
    #[inline]
    pub(super) fn insert(&mut self, payload: &[u8]) -> Option<Stored> {
        if payload.len() > self.place_bytes {
            self.widen(payload.len())?;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.add_place()?,
        };
        let start = usize::from(place) * self.place_bytes;
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        Some(Stored {
            place,
            len: payload.len() as u16,
        })
    }

    #[inline]
    pub(super) fn get(&self, stored: Stored) -> &[u8] {
        let start = usize::from(stored.place) * self.place_bytes;
        &self.bytes[start..start + usize::from(stored.len)]
    }

    /// Frees the place of a payload. Call this once for each inserted payload.
    #[inline]
    pub(super) fn remove(&mut self, stored: Stored) {
        self.free.push(stored.place);
    }

    #[cold]
    fn add_place(&mut self) -> Option<u16> {
        if self.places == self.places_max {
            return None;
        }
        let place = self.places;
        self.places += 1;
        self.bytes
            .resize(usize::from(self.places) * self.place_bytes, 0);
        Some(place)
    }

    /// Enlarges all places. This happens only a few times in a leg's life, because the size doubles.
    #[cold]
    fn widen(&mut self, len: usize) -> Option<()> {
        if len > PLACE_BYTES_MAX {
            return None;
        }
        let wide = len.next_power_of_two().min(PLACE_BYTES_MAX);
        let mut bytes = vec![0; usize::from(self.places) * wide];
        let old = self.bytes.chunks_exact(self.place_bytes);
        for (to, from) in bytes.chunks_exact_mut(wide).zip(old) {
            to[..self.place_bytes].copy_from_slice(from);
        }
        (self.bytes, self.place_bytes) = (bytes, wide);
        Some(())
    }

    /// Returns the number of stored payloads.
    pub(super) fn held(&self) -> usize {
        usize::from(self.places) - self.free.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.free.capacity() * size_of::<u16>()
    }

    /// Returns the address at which the next payload will be stored, for prefetching. It must not be dereferenced.
    pub(super) fn next_address(&self) -> usize {
        let place = self.free.last().copied().unwrap_or(0);
        self.bytes.as_ptr() as usize + usize::from(place) * self.place_bytes
    }
}

/// Maximum size of a place. A UDP datagram on Ethernet carries less. Jumbo frames are not used for audio.
const PLACE_BYTES_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The reference is a simple list of vectors.
        #[test]
        fn stored_payloads_are_returned(steps in proptest::collection::vec((0_usize..3000, any::<bool>()), 0..200)) {
            let mut store = Store::new(192, 16);
            let mut held: Vec<(Stored, Vec<u8>)> = Vec::new();
            for (number, (len, removes)) in steps.into_iter().enumerate() {
                if removes && !held.is_empty() {
                    let (stored, payload) = held.remove(len % held.len());
                    prop_assert_eq!(store.get(stored), &payload[..]);
                    store.remove(stored);
                    continue;
                }
                let payload = vec![number as u8; len];
                let fits = len <= PLACE_BYTES_MAX && held.len() < 16;
                let stored = store.insert(&payload);
                prop_assert_eq!(stored.is_some(), fits);
                if let Some(stored) = stored
                    && number % 3 == 0
                    && let Some(copy) = Keep::copy(&mut store, &stored)
                {
                    held.push((copy, payload.clone()));
                }
                held.extend(stored.map(|stored| (stored, payload)));
            }
            for (stored, payload) in &held {
                prop_assert_eq!(store.get(*stored), &payload[..]);
            }
        }
    }
}
