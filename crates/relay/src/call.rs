//! State machines that the engine runs, and the outbox for their datagrams.

use std::net::SocketAddr;

use crate::id::PortId;

/// A call: a state machine without sockets and clocks. The engine calls its methods on the thread of its shard. It moves the call to another
/// thread only by [`Engine::rebalance`](crate::Engine::rebalance) and [`move_call`](crate::Engine::move_call). No two methods run at the same
/// time.
///
/// **Contract.** After each [`handle_datagram`](Call::handle_datagram), each command and each due timer, the engine calls
/// [`poll_transmit`](Call::poll_transmit). It repeats this until the call stages nothing more, or until a datagram is refused for another
/// reason than lack of room. Then it asks for [`next_timeout`](Call::next_timeout). No method may block. If a method panics, only this call
/// is removed.
///
/// All times are nanoseconds of CLOCK_MONOTONIC. `now_ns` never decreases.
pub trait Call: Send + 'static {
    /// Handles a datagram that has arrived.
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>);

    /// Stages the datagrams to send now. `may_lose` means that the engine has read all sockets, so a packet that is missing has not
    /// arrived. Otherwise, a loss that is due waits for a later call. On [`Refused::Full`], keep the datagram. The engine then sends the
    /// staged ones and calls again.
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox);

    /// Returns the time at which to call `poll_transmit` even without a datagram. The engine is never early: it calls at the first slice at
    /// or after this time. To get the nearest slice, subtract half a slice.
    fn next_timeout(&self) -> Option<u64>;

    /// Prefetches the memory that the call will touch, apart from its own fields, by [`threadbare_runtime::prefetch`]. It is called shortly
    /// before the call runs.
    #[inline]
    fn prefetch(&self) {}
}

impl<C: Call + ?Sized> Call for Box<C> {
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        (**self).handle_datagram(now_ns, datagram);
    }

    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        (**self).poll_transmit(now_ns, may_lose, out);
    }

    fn next_timeout(&self) -> Option<u64> {
        (**self).next_timeout()
    }

    fn prefetch(&self) {
        (**self).prefetch();
    }
}

/// A received datagram. Truncated datagrams are counted, and not delivered.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The port on which the datagram arrived.
    pub port: PortId,
    /// The sender. An IPv4 sender has an IPv4 address, even on an IPv6 socket.
    pub from: SocketAddr,
    /// The kernel's receive time in ns, converted to CLOCK_MONOTONIC. It is never after `now_ns`.
    pub received_ns: u64,
    /// The bytes of the datagram, which may be changed in place.
    pub bytes: &'a mut [u8],
}

/// Accepts the datagrams that a call sends.
pub trait Outbox {
    /// Returns what is left of the slice's budget for optional work, in units of [`threadbare_rtp::call::SPARE_UNIT_NS`]. All calls of the
    /// shard share it, so subtract what you use. It is small if slices are late. `None`: there is no limit.
    fn spare(&mut self) -> Option<&mut u32> {
        None
    }

    /// Stages a datagram. `write` gets room for [`DATAGRAM_BYTES_MAX`](crate::DATAGRAM_BYTES_MAX) bytes, writes the datagram, and returns
    /// its length. If it returns 0, nothing is sent. If the datagram is refused, `write` is not called.
    ///
    /// # Errors
    /// Fails if the datagram is not sent. The engine counts the reason.
    fn stage_with(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused>;

    /// Stages a copy of `bytes` for an address that the relay itself has chosen. This is a port of another call, which no party could
    /// choose.
    ///
    /// # Errors
    /// Fails as [`stage`](Outbox::stage) does.
    fn stage_copy(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        self.stage(port, to, bytes)
    }

    /// Stages a copy of `bytes`.
    ///
    /// # Errors
    /// Fails as [`stage_with`](Outbox::stage_with) does, and if the datagram is too long.
    fn stage(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        let mut fits = true;
        self.stage_with(port, to, &mut |room| match room.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                bytes.len()
            }
            None => {
                fits = false;
                0
            }
        })?;
        if fits { Ok(()) } else { Err(Refused::TooLong) }
    }
}

/// The reason why a datagram was not staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The turn is full. Keep the datagram for the next call of [`Call::poll_transmit`].
    #[error("the turn has no room for another datagram until the staged datagrams are sent")]
    Full,
    /// The datagram is longer than [`DATAGRAM_BYTES_MAX`](crate::DATAGRAM_BYTES_MAX).
    #[error("the datagram is too long")]
    TooLong,
    /// The call has no such port.
    #[error("the call has no such port")]
    NoSuchPort,
    /// The port's socket cannot send to the address, because one is IPv4 and the other IPv6.
    /// [`LegPorts::check_destination`](crate::LegPorts::check_destination) finds this earlier.
    #[error("the port does not reach this address")]
    Unreachable,
    /// The engine's policy forbids the address: see [`Settings::destinations`](crate::Settings::destinations).
    #[error("the policy for destinations of media forbids this address")]
    Forbidden,
}
