//! Places for packets, indexed by a number that continues over wrap-arounds and restarts.

use crate::config::CAPACITY_PACKETS_MAX;
use crate::output::ResyncCause;
use threadbare_rtp_types::id::{RtpTime, SeqNum};

/// A packet's state until its output.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    /// The packet; `None` if the place is free.
    pub(crate) packet: Option<T>,
    pub(crate) send_ns: i64,
    pub(crate) time: RtpTime,
    pub(crate) seq: SeqNum,
    pub(crate) marker: bool,
    pub(crate) mark: Mark,
}

/// Marks a packet that does not follow the previous one directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Nothing,
    /// Packets are missing before this one, and have no places in the ring. Their number follows from the sequence numbers.
    Gap,
    /// Sequence numbers restart.
    Resync(ResyncCause),
}

/// A power of two of slots, and a bitmap of the slots in use, so that the search for the next packet reads no slot.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// Bits of the first 128 places, which most rings do not exceed.
    present: [u64; WORDS_NEAR],
    present_far: Option<Box<[u64; WORDS_FAR]>>,
    /// The slots. The ring has no slots at first, because a leg that only sends needs none.
    slots: Box<[Slot<T>]>,
}

impl<T> Ring<T> {
    /// Creates a ring without places; add them before the first packet.
    pub(crate) fn empty() -> Ring<T> {
        Ring {
            present: [0; WORDS_NEAR],
            present_far: None,
            slots: Box::default(),
        }
    }

    /// Creates a ring. `capacity` is a power of two, at least 64.
    pub(crate) fn new(capacity: u16) -> Ring<T> {
        let slots = (0..capacity).map(|_| Slot {
            packet: None,
            send_ns: 0,
            time: RtpTime(0),
            seq: SeqNum(0),
            marker: false,
            mark: Mark::Nothing,
        });
        let is_far = usize::from(capacity) > 64 * WORDS_NEAR;
        Ring {
            present: [0; WORDS_NEAR],
            present_far: is_far.then(|| Box::new([0; WORDS_FAR])),
            slots: slots.collect(),
        }
    }

    /// Grows to `capacity` places with the same contents, which are at `first..=last`.
    pub(crate) fn grow(&mut self, capacity: u16, first: u64, last: u64) {
        let mut bigger = Ring::new(capacity);
        for index in first..=last {
            if self.contains(index) {
                bigger.set_present(index, true);
            }
            // Empty places may have a mark, so they move too.
            std::mem::swap(bigger.slot_mut(index), self.slot_mut(index));
        }
        *self = bigger;
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self.present.get(at) {
            Some(word) => *word,
            None => self
                .present_far
                .as_ref()
                .map_or(0, |far| far[at - WORDS_NEAR]),
        }
    }

    #[inline]
    fn set_present(&mut self, index: u64, is_present: bool) {
        let place = self.place(index);
        let word = match (self.present.get_mut(place / 64), &mut self.present_far) {
            (Some(word), _) => word,
            (None, Some(far)) => &mut far[place / 64 - WORDS_NEAR],
            (None, None) => return,
        };
        let bit = 1 << (place % 64);
        *word = if is_present {
            *word | bit
        } else {
            *word & !bit
        };
    }

    /// Returns the number of packets in the ring.
    pub(crate) fn held(&self) -> u32 {
        let far = self.present_far.iter().flat_map(|far| far.iter());
        let words = self.present.iter().chain(far);
        words.map(|word| word.count_ones()).sum()
    }

    /// Returns the number of places.
    pub(crate) fn size(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        let place = self.place(index);
        self.word(place / 64) >> (place % 64) & 1 == 1
    }

    /// Returns the packet at `index`, if any.
    pub(crate) fn packet(&self, index: u64) -> Option<&T> {
        self.slots.get(self.place(index))?.packet.as_ref()
    }

    /// Returns the address of the place of `index`, for prefetching. It must not be dereferenced.
    pub(crate) fn address(&self, index: u64) -> usize {
        let slot = self.slots.get(self.place(index));
        slot.map_or(0, |slot| std::ptr::from_ref(slot) as usize)
    }

    pub(crate) fn slot(&self, index: u64) -> &Slot<T> {
        &self.slots[self.place(index)]
    }

    pub(crate) fn slot_mut(&mut self, index: u64) -> &mut Slot<T> {
        let place = self.place(index);
        &mut self.slots[place]
    }

    /// Inserts a packet at `index`, whose place must be free.
    pub(crate) fn insert(&mut self, index: u64, slot: Slot<T>) {
        debug_assert!(!self.contains(index), "the place is free");
        self.set_present(index, true);
        let place = self.place(index);
        self.slots[place] = slot;
    }

    /// Takes out the packet at `index`, if any.
    pub(crate) fn take(&mut self, index: u64) -> Option<T> {
        let place = self.place(index);
        let packet = self.slots.get_mut(place)?.packet.take()?;
        self.set_present(index, false);
        Some(packet)
    }

    /// Returns the first index from `from` on that has a packet. All packets are within [`Ring::size`] of `from`.
    pub(crate) fn next_present(&self, from: u64) -> Option<u64> {
        let place = self.place(from);
        let (first, bit) = (place / 64, place % 64);
        let head = self.word(first) >> bit;
        if head != 0 {
            return Some(from + u64::from(head.trailing_zeros()));
        }
        let words = self.slots.len() / 64;
        // The last round reads the first word again, of which only the bits below `bit` can be set.
        (1..=words).find_map(|round| {
            let word = self.word((first + round) % words);
            let distance = (round * 64 - bit) as u64 + u64::from(word.trailing_zeros());
            (word != 0).then_some(from + distance)
        })
    }

    fn place(&self, index: u64) -> usize {
        index as usize & self.slots.len().saturating_sub(1)
    }
}

/// Number of words of the bitmap for the first 128 places: 2.5 s of the usual packets.
const WORDS_NEAR: usize = 2;
const WORDS_FAR: usize = CAPACITY_PACKETS_MAX as usize / 64 - WORDS_NEAR;

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(packet: u64) -> Slot<u64> {
        Slot {
            packet: Some(packet),
            send_ns: 0,
            time: RtpTime(0),
            seq: SeqNum(0),
            marker: false,
            mark: Mark::Nothing,
        }
    }

    #[test]
    fn the_next_packet_is_found_for_every_pair_of_positions() {
        for (size, step) in [(64, 1), (128, 1), (256, 1), (1024, 31)] {
            for from in (1000..1000 + u64::from(size)).step_by(step) {
                for distance in (0..u64::from(size)).step_by(step) {
                    let mut ring = Ring::new(size);
                    assert_eq!(ring.next_present(from), None);
                    ring.insert(from + distance, slot(1));
                    assert_eq!(ring.next_present(from), Some(from + distance));
                }
            }
        }
    }

    #[test]
    fn grown_ring_keeps_its_packets() {
        let mut ring = Ring::new(64);
        let indices = [1003, 1004, 1020, 1066];
        for index in indices {
            ring.insert(index, slot(index));
        }
        ring.slot_mut(1010).mark = Mark::Gap;
        ring.grow(1024, 1003, 1066);
        assert_eq!((ring.size(), ring.held()), (1024, 4));
        assert_eq!(ring.slot(1010).mark, Mark::Gap);
        ring.insert(2026, slot(2026));
        for index in indices.into_iter().chain([2026]) {
            assert_eq!(ring.next_present(1003), Some(index));
            assert_eq!(ring.take(index), Some(index));
        }
    }

    #[test]
    fn each_packet_leaves_once() {
        let mut ring = Ring::new(64);
        ring.insert(70, slot(7));
        assert!(ring.contains(70) && !ring.contains(71));
        assert_eq!(
            (ring.held(), ring.take(70), ring.take(70)),
            (1, Some(7), None)
        );
        assert_eq!(ring.held(), 0);
    }
}
