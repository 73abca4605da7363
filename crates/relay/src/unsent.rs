//! The output of a media state machine for which its turn had no room.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use threadbare_rtp::call::{Channel, LegId, Scratch};
use threadbare_rtp::srtp::Protection;

use crate::call::{Outbox, Refused};
use crate::id::PortId;
use crate::io::DATAGRAM_BYTES_MAX;

/// Datagrams that wait for the next turn, in order. They are not encrypted yet, because each is encrypted only once, when it is sent. The
/// queue keeps its memory, because senders of very short packets need it again and again.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    items: VecDeque<(Envelope, u16)>,
    /// The bytes of all datagrams, one after another, from `first` on.
    bytes: Vec<u8>,
    first: usize,
}

/// Where a datagram leaves from, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    /// The leg whose keys encrypt the datagram.
    pub(crate) leg: LegId,
    pub(crate) port: PortId,
    pub(crate) channel: Channel,
    pub(crate) to: SocketAddr,
}

impl Unsent {
    /// Stages the queued datagrams. Returns `false` if not all of them fit.
    #[inline]
    pub(crate) fn stage_waiting(
        &mut self,
        protections: &mut Protections,
        out: &mut dyn Outbox,
    ) -> bool {
        self.stage_each(|envelope, bytes| put(envelope, bytes, protections, out))
    }

    /// Acts as [`stage_waiting`](Self::stage_waiting) for datagrams to addresses that the relay has chosen. They are not encrypted.
    pub(crate) fn stage_copies(&mut self, out: &mut dyn Outbox) -> bool {
        self.stage_each(|envelope, bytes| out.stage_copy(envelope.port, envelope.to, bytes))
    }

    #[inline]
    fn stage_each(&mut self, mut put: impl FnMut(Envelope, &[u8]) -> Result<(), Refused>) -> bool {
        while let Some((envelope, len)) = self.items.front() {
            let end = self.first + usize::from(*len);
            let bytes = &self.bytes[self.first..end];
            if put(*envelope, bytes) == Err(Refused::Full) {
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

    /// Stages a datagram, after those that wait.
    #[inline]
    pub(crate) fn stage(
        &mut self,
        envelope: Envelope,
        bytes: &[u8],
        protections: &mut Protections,
        out: &mut dyn Outbox,
    ) {
        let is_full =
            !self.items.is_empty() || put(envelope, bytes, protections, out) == Err(Refused::Full);
        if is_full {
            self.keep(envelope, bytes);
        }
    }

    /// Queues a datagram for the next turn. Returns `false` if the queue is full.
    pub(crate) fn keep(&mut self, envelope: Envelope, bytes: &[u8]) -> bool {
        // There is room for one turn. A party causes no more datagrams than it sends, plus a bounded tail. Longer datagrams would be
        // refused anyway.
        let has_room = self.items.len() < UNSENT_MAX && bytes.len() <= DATAGRAM_BYTES_MAX;
        if has_room {
            if self.first > 0 {
                self.bytes.drain(..self.first);
                self.first = 0;
            }
            self.items.push_back((envelope, bytes.len() as u16));
            self.bytes.extend_from_slice(bytes);
        }
        has_room
    }
}

/// Encryption of the legs' datagrams, by [`LegId`].
pub(crate) type Protections = [Option<Box<Protection>>];

/// Stages a datagram. It is encrypted if its leg uses SRTP.
#[inline]
fn put(
    envelope: Envelope,
    bytes: &[u8],
    protections: &mut Protections,
    out: &mut dyn Outbox,
) -> Result<(), Refused> {
    match protections.get_mut(usize::from(envelope.leg.0)) {
        Some(Some(protection)) => put_protected(envelope, bytes, protection, out),
        _ => out.stage(envelope.port, envelope.to, bytes),
    }
}

fn put_protected(
    envelope: Envelope,
    bytes: &[u8],
    protection: &mut Protection,
    out: &mut dyn Outbox,
) -> Result<(), Refused> {
    out.stage_with(envelope.port, envelope.to, &mut |room| {
        let Some(place) = room.get_mut(..bytes.len()) else {
            return 0;
        };
        place.copy_from_slice(bytes);
        // A datagram that cannot be encrypted is not sent. The protection counts it.
        protection
            .protect(envelope.channel, room, bytes.len())
            .unwrap_or(0)
    })
}

/// Runs `work` with the working memory of all state machines of a shard, and with the slice's spare time.
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

/// Maximum number of datagrams that wait for the next turn.
const UNSENT_MAX: usize = 256;
