//! Packet I/O: receives and sends batches of datagrams, so that the layers above need not know the descriptors.
//!
//! | kind | sockets | receives | sends |
//! |---|---|---|---|
//! | [`pairs`] | one or two per leg | ready sockets in turn, busy ones with `recvmmsg` | one `sendto` per datagram |
//! | [`pairs`] with [`rings`] | one or two per leg, for datagrams that the rings do not take | rings in memory | rings, one call for dozens of datagrams |
//! | [`shared`] | one or two for many legs; a table finds the leg | `recvmmsg` | `sendmmsg` |
//!
//! Each kind stores datagrams in its own way. The media worker gets a list of arrivals and the bytes of each, in fixed memory.

mod arena;
mod errors;
pub(crate) mod pairs;
mod rings;
pub(crate) mod shared;

use std::io;
use std::net::SocketAddr;

use threadbare_runtime::{Cx, wall_clock_ahead_ns};

pub use self::arena::DATAGRAM_BYTES_MAX;
use crate::call::Refused;
use crate::id::PortId;
use crate::ports::LegKind;
use crate::socket::Reach;
use crate::stats::Counters;

/// One kind of packet I/O on one shard. All methods run on the thread of the shard.
pub(crate) trait PacketIo: Send {
    /// Starts to watch the sockets. When a datagram arrives, the media worker runs with `Ready::Io(key)`.
    fn watch(&self, cx: &Cx<'_>, key: u8) -> io::Result<()>;

    /// Stops watching.
    fn unwatch(&self, cx: &Cx<'_>);

    /// Adds the ports of leg `leg` of call `call`.
    fn attach(&mut self, call: u32, leg: u8, ports: LegKind) -> io::Result<Attached>;

    /// Removes and returns the ports of a leg, which can be closed here or on another thread. No more datagrams arrive from them.
    fn detach(&mut self, attached: Attached) -> Option<LegKind>;

    /// Whether another media worker can get the ports of a leg: detach them here, and attach them there.
    fn can_move(&self, _attached: &Attached) -> bool {
        false
    }

    /// Sets the type of service for the ports of a leg. Shared ports keep theirs.
    fn set_tos(&mut self, _attached: &Attached, _tos: u8) -> io::Result<()> {
        Ok(())
    }

    /// Starts a run of the media worker. `is_ready` means that something has arrived.
    fn begin(&mut self, is_ready: bool);

    /// Receives a batch, which replaces the previous one. Returns `false` if there are no more datagrams in this run.
    fn receive(&mut self, pass: &mut Pass<'_>) -> bool;

    /// Whether [`sort`](PacketIo::sort) must be called before the batch is handled.
    fn is_unsorted(&self) -> bool {
        false
    }

    /// Finds the calls of the received batch.
    fn sort(&mut self, _pass: &mut Pass<'_>) {}

    /// Returns the arrivals of the last batch.
    fn arrivals(&self) -> &[Arrival];

    /// Returns the bytes of the i-th arrival.
    fn bytes(&mut self, i: usize) -> &mut [u8];

    /// Whether another run in this slice may find more datagrams without waiting for readiness.
    fn wants_run(&self) -> bool;

    /// Writes a datagram for port `place` into the batch to send. Returns its length.
    fn stage(
        &mut self,
        place: u32,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused>;

    /// Sends the staged datagrams.
    fn flush(&mut self, counters: &Counters);

    /// Adds the datagrams that the kernel dropped at a few of the ports to the counters.
    fn sample_drops(&mut self, counters: &Counters);
}

/// The ports of a leg in a packet I/O.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) rtp: u32,
    /// The separate port for RTCP. `None`: there is none.
    pub(crate) rtcp: Option<u32>,
    /// Data for `detach`, which only the packet I/O understands.
    pub(crate) rest: pairs::Rest,
}

/// A received datagram, without its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) call: u32,
    pub(crate) port: PortId,
    pub(crate) outcome: Outcome,
    pub(crate) len: u16,
    /// Place of the datagram in the arena.
    pub(crate) slot: u16,
    pub(crate) from: SocketAddr,
    pub(crate) received_ns: u64,
}

/// What happened to a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Deliver,
    Truncated,
    OverBudget,
}

/// Time and counters of a run of the media worker.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) now_ns: u64,
    pub(crate) slice: u64,
    pub(crate) clock: &'a mut ArrivalClock,
    pub(crate) counters: &'a Counters,
}

/// Converts the kernel's receive times to CLOCK_MONOTONIC. The difference of the clocks is measured once per slice.
#[derive(Debug, Default)]
pub(crate) struct ArrivalClock {
    slice: u64,
    ahead_ns: u64,
}

impl Pass<'_> {
    /// Returns the arrival time of a datagram, ns of CLOCK_MONOTONIC. It is within the last second, even if the wall clock has jumped.
    #[inline]
    pub(crate) fn received_ns(&mut self, wall_ns: Option<u64>) -> u64 {
        let Some(wall_ns) = wall_ns else {
            return self.now_ns;
        };
        if self.clock.slice != self.slice {
            self.clock.ahead_ns = wall_clock_ahead_ns();
            self.clock.slice = self.slice;
        }
        self.bounded(wall_ns.wrapping_sub(self.clock.ahead_ns))
    }

    /// Limits an arrival time as [`received_ns`](Self::received_ns) does. `received_ns` is a time of CLOCK_MONOTONIC.
    #[inline]
    pub(crate) fn bounded(&self, received_ns: u64) -> u64 {
        received_ns.clamp(self.now_ns.saturating_sub(AGE_NS_MAX), self.now_ns)
    }
}

/// Makes room for a total of `count` items.
pub(crate) fn reserve<T>(items: &mut Vec<T>, count: usize) {
    items.reserve(count.saturating_sub(items.len()));
}

/// The call and leg of a datagram, as both kinds of sockets need them.
#[derive(Debug, Clone, Copy)]
struct Target {
    place: u32,
    reach: Reach,
}

/// Maximum age of an arrival, ns. If a packet has waited longer in the kernel, the network did not cause the delay.
const AGE_NS_MAX: u64 = 1_000_000_000;
/// A placeholder for the sender. UDP always has a sender, but a system might not report it.
const NOBODY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
