//! What a media state machine gave out and its turn had no room for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use threadbare_rtp::call::Scratch;

use crate::call::{Outbox, Refused};
use crate::id::PortId;
use crate::io::DATAGRAM_BYTES_MAX;

/// Datagrams that wait for the next turn, in order. Keeps its memory: senders of very short packets need it over and over.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    items: VecDeque<(PortId, SocketAddr, u16)>,
    /// Of all items, one behind the other, from `first` on.
    bytes: Vec<u8>,
    first: usize,
}

impl Unsent {
    /// Stages what waits. `false`: there is no room for all of it.
    #[inline]
    pub(crate) fn stage_waiting(&mut self, out: &mut dyn Outbox) -> bool {
        while let Some((port, to, len)) = self.items.front() {
            let end = self.first + usize::from(*len);
            if out.stage(*port, *to, &self.bytes[self.first..end]) == Err(Refused::Full) {
                return false;
            }
            self.first = end;
            self.items.pop_front();
            if self.items.is_empty() {
                self.bytes.clear();
                self.first = 0;
            }
        }
        true
    }

    /// Stages a datagram, behind those that wait.
    #[inline]
    pub(crate) fn stage(
        &mut self,
        port: PortId,
        to: SocketAddr,
        bytes: &[u8],
        out: &mut dyn Outbox,
    ) {
        let is_full = !self.items.is_empty() || out.stage(port, to, bytes) == Err(Refused::Full);
        if is_full {
            self.keep(port, to, bytes);
        }
    }

    #[cold]
    fn keep(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) {
        // A turn's worth at most: a party causes no more than it sends, but for a bounded tail. Longer ones would be refused anyway.
        if self.items.len() < UNSENT_MAX && bytes.len() <= DATAGRAM_BYTES_MAX {
            if self.first > 0 {
                self.bytes.drain(..self.first);
                self.first = 0;
            }
            self.items.push_back((port, to, bytes.len() as u16));
            self.bytes.extend_from_slice(bytes);
        }
    }
}

/// With the memory that all state machines of a shard work in, and with what of the slice's spare time is left.
#[inline]
pub(crate) fn with_scratch(out: &mut dyn Outbox, work: impl FnOnce(&mut Scratch, &mut dyn Outbox)) {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.set_spare(out.spare().map_or(u32::MAX, |units| *units));
        work(scratch, out);
        if let Some(units) = out.spare() {
            *units = scratch.spare();
        }
    });
}

/// Datagrams that wait for the next turn.
const UNSENT_MAX: usize = 256;
