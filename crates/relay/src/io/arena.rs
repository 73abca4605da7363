//! Memory of a fixed size for a batch of datagrams.

use std::io::IoSliceMut;
use std::net::SocketAddr;

use threadbare_runtime::{CACHE_LINE, RECV_BATCH, RawAddr};

use super::Target;
use crate::call::Refused;

/// Maximum length of a datagram that is received or sent. Without fragments, no usual path carries as much.
pub const DATAGRAM_BYTES_MAX: usize = 2048;

/// Maximum number of datagrams in a batch.
pub(crate) const BATCH: usize = RECV_BATCH;

/// Distance between two datagrams. It is an odd number of cache lines, so that their headers do not compete for the same places in the
/// cache.
const STRIDE: usize = DATAGRAM_BYTES_MAX + CACHE_LINE;

/// Room for [`BATCH`] datagrams.
#[derive(Debug)]
pub(crate) struct Arena(Box<[u8]>);

impl Arena {
    pub(crate) fn new() -> Arena {
        Arena(vec![0; BATCH * STRIDE].into_boxed_slice())
    }

    #[inline]
    pub(crate) fn slot(&mut self, i: usize) -> &mut [u8] {
        &mut self.0[i * STRIDE..][..DATAGRAM_BYTES_MAX]
    }

    #[inline]
    pub(crate) fn bytes(&self, i: usize, len: usize) -> &[u8] {
        &self.0[i * STRIDE..][..len]
    }

    /// Returns the slots from `first` on, for a receive call.
    pub(crate) fn rooms(&mut self, first: usize) -> ([IoSliceMut<'_>; BATCH], usize) {
        let mut slots = self.0[first * STRIDE..].chunks_exact_mut(STRIDE);
        let rooms = std::array::from_fn(|_| match slots.next() {
            Some(slot) => IoSliceMut::new(&mut slot[..DATAGRAM_BYTES_MAX]),
            None => IoSliceMut::new(&mut []),
        });
        (rooms, BATCH - first)
    }
}

/// Datagrams to send.
#[derive(Debug)]
pub(crate) struct Staging {
    arena: Arena,
    items: Vec<Staged>,
}

/// A staged datagram, without its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    pub(crate) place: u32,
    pub(crate) len: u16,
    pub(crate) to: RawAddr,
}

impl Staging {
    pub(crate) fn new() -> Staging {
        Staging {
            arena: Arena::new(),
            items: Vec::with_capacity(BATCH),
        }
    }

    #[inline]
    pub(super) fn stage(
        &mut self,
        target: Target,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused> {
        let i = self.items.len();
        if i == BATCH {
            return Err(Refused::Full);
        }
        let to = target.reach.raw(to).ok_or(Refused::Unreachable)?;
        let len = write(self.arena.slot(i)).min(DATAGRAM_BYTES_MAX);
        if len > 0 {
            self.items.push(Staged {
                place: target.place,
                len: len as u16,
                to,
            });
        }
        Ok(len)
    }

    pub(crate) fn items(&self) -> &[Staged] {
        &self.items
    }

    #[inline]
    pub(crate) fn bytes(&self, i: usize) -> &[u8] {
        self.arena.bytes(i, usize::from(self.items[i].len))
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
    }
}
