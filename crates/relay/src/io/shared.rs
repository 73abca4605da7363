//! One port for many legs: it receives batches, finds the leg of each datagram in a table, and sends batches.
//!
//! A batch is sorted before its first datagram is delivered. The look-ups do not depend on each other, so the processor waits for the
//! memory of several at a time.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;
use threadbare_rtp::call::Channel;
use threadbare_rtp::demux::{Demux, Filter, Lookup};
use threadbare_rtp::id::{PayloadType, Ssrc};
use threadbare_rtp::packet::Packet;
use threadbare_runtime::{
    Cx, Interest, Received, RecvBatch, SEND_BATCH_MAX, SendBatch, kernel_drops,
};

use super::arena::{Arena, BATCH, Staging};
use super::errors::{is_of_earlier, take_icmp};
use super::pairs::Rest;
use super::{Arrival, Attached, NOBODY, Outcome, PacketIo, Pass, Target};
use crate::call::Refused;
use crate::id::PortId;
use crate::ports::{LegKind, Sockets};
use crate::socket::{Reach, Udp, canonical, reach_of};
use crate::stats::Counters;

pub(crate) struct SharedIo {
    sockets: Arc<Sockets>,
    reach: Reach,
    table: Demux<u32>,
    routes: Slab<Route>,
    /// Maximum number of datagrams of one leg in a slice.
    leg_budget: u32,
    /// The socket that is read next: 0 for RTP, 1 for RTCP, 2 for none.
    reads: usize,
    is_drained: bool,
    batch: RecvBatch,
    /// Number of datagrams in the batch whose legs were not found yet.
    unsorted: usize,
    /// Whether the batch comes from the RTCP socket.
    is_rtcp: bool,
    arena: Arena,
    arrivals: Vec<Arrival>,
    staging: Staging,
    drops: [u32; 2],
}

/// A leg on the port.
struct Route {
    call: u32,
    leg: u8,
    /// Number of datagrams in the slice `slice`.
    in_slice: u32,
    slice: u32,
}

impl SharedIo {
    pub(crate) fn new(sockets: Arc<Sockets>, wait_ms: u64, seed: u64) -> SharedIo {
        SharedIo {
            reach: reach_of(&sockets.rtp.local()),
            sockets,
            table: Demux::new(None, seed),
            routes: Slab::new(),
            leg_budget: (wait_ms * BUDGET_PER_MS).clamp(BUDGET_MIN, BUDGET_MAX) as u32,
            reads: NONE,
            is_drained: true,
            batch: RecvBatch::new(BATCH),
            unsorted: 0,
            is_rtcp: false,
            arena: Arena::new(),
            arrivals: Vec::with_capacity(BATCH),
            staging: Staging::new(),
            drops: [0; 2],
        }
    }

    fn socket(&self, i: usize) -> Option<&Udp> {
        match i {
            RTP => Some(&self.sockets.rtp),
            RTCP => self.sockets.rtcp.as_ref(),
            _ => None,
        }
    }

    /// Receives a batch with one call.
    fn read(&mut self) -> io::Result<()> {
        let Some(udp) = (match self.reads {
            RTP => Some(&self.sockets.rtp),
            _ => self.sockets.rtcp.as_ref(),
        }) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let (mut rooms, room) = self.arena.rooms(0);
        self.unsorted = self.batch.recv(udp.fd(), &mut rooms[..room])?;
        self.is_rtcp = self.reads == RTCP;
        if self.unsorted < room {
            self.reads += 1;
        }
        Ok(())
    }

    /// Finds the leg of the i-th datagram of the batch.
    #[inline]
    fn sort_one(&mut self, i: usize, received: &Received, from: SocketAddr, pass: &mut Pass<'_>) {
        let bytes = self.arena.bytes(i, received.len);
        let port = if self.is_rtcp {
            Channel::Rtcp
        } else {
            Channel::Rtp
        };
        let mux = self.sockets.rtcp.is_none();
        let found = if port.carried(mux, bytes) == Channel::Rtcp {
            find_rtcp(&mut self.table, pass.now_ns, from, bytes)
        } else {
            match Packet::parse(bytes) {
                Ok(packet) => {
                    let (ssrc, payload_type) = (packet.ssrc(), packet.payload_type());
                    Ok(route_of(self.table.lookup(
                        pass.now_ns,
                        from,
                        ssrc,
                        payload_type,
                    )))
                }
                Err(_) => Err(Malformed),
            }
        };
        let route = match found {
            Ok(Some(route)) => self.routes.get_mut(route as usize),
            Ok(None) => None,
            Err(Malformed) => return pass.counters.malformed.add(1),
        };
        let Some(route) = route else {
            return pass.counters.unmatched.add(1);
        };
        let outcome = if received.datagram_len > received.len {
            Outcome::Truncated
        } else if route.count(pass.slice) > self.leg_budget {
            Outcome::OverBudget
        } else {
            Outcome::Deliver
        };
        let port = if self.is_rtcp {
            PortId::rtcp(route.leg)
        } else {
            PortId::rtp(route.leg)
        };
        self.arrivals.push(Arrival {
            call: route.call,
            port,
            outcome,
            len: received.len as u16,
            slot: i as u16,
            from,
            received_ns: pass.received_ns(received.timestamp_ns),
        });
    }

    /// Sends the items from `first` on that leave through the same socket, at most one batch of them. Returns their number.
    fn send_from(&self, first: usize, counters: &Counters) -> usize {
        let items = &self.staging.items()[first..];
        let place = items[0].place;
        let same = items.iter().take_while(|item| item.place == place).count();
        let count = same.min(SEND_BATCH_MAX);
        let pieces: [[IoSlice<'_>; 1]; SEND_BATCH_MAX] = std::array::from_fn(|i| {
            let bytes = if i < count {
                self.staging.bytes(first + i)
            } else {
                &[]
            };
            [IoSlice::new(bytes)]
        });
        let Some(udp) = self.socket(place as usize) else {
            return count;
        };
        let mut batch = SendBatch::default();
        for (piece, item) in pieces.iter().zip(&items[..count]) {
            // This cannot fail, because the batch has room for the number that was counted.
            let _ = batch.push(piece, &item.to);
        }
        send_all(&mut batch, count, udp, counters);
        count
    }
}

/// Sends a batch. Datagrams that the system refuses are skipped.
fn send_all(batch: &mut SendBatch<'_>, count: usize, udp: &Udp, counters: &Counters) {
    let (mut left, mut is_second_try) = (count, false);
    while !batch.is_empty() {
        match batch.send(udp.fd()) {
            Ok(sent) => {
                counters.packets_sent.add(sent as u64);
                left -= sent;
                is_second_try = false;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.send_full.add(left as u64);
                return;
            }
            // The error may belong to an earlier datagram, for another leg.
            Err(error) if is_of_earlier(&error) && !is_second_try => is_second_try = true,
            Err(_) => {
                counters.send_errors.add(1);
                batch.skip();
                left -= 1;
                is_second_try = false;
            }
        }
    }
}

impl Route {
    /// Counts a datagram. Returns how many there have been in this slice.
    #[inline]
    fn count(&mut self, slice: u64) -> u32 {
        let slice = slice as u32;
        if self.slice != slice {
            self.slice = slice;
            self.in_slice = 0;
        }
        self.in_slice += 1;
        self.in_slice
    }
}

impl PacketIo for SharedIo {
    fn watch(&self, cx: &Cx<'_>, key: u8) -> io::Result<()> {
        cx.register(self.sockets.rtp.fd(), key, Interest::Read)?;
        match &self.sockets.rtcp {
            Some(rtcp) => cx.register(rtcp.fd(), key, Interest::Read),
            None => Ok(()),
        }
    }

    fn unwatch(&self, cx: &Cx<'_>) {
        cx.deregister(self.sockets.rtp.fd());
        if let Some(rtcp) = &self.sockets.rtcp {
            cx.deregister(rtcp.fd());
        }
    }

    fn attach(&mut self, call: u32, leg: u8, ports: LegKind) -> io::Result<Attached> {
        let LegKind::Shared(place) = ports else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let route = self.routes.insert(Route {
            call,
            leg,
            in_slice: 0,
            slice: 0,
        });
        if let Err(error) = self.table.add(place.filter(), route as u32) {
            self.routes.remove(route);
            return Err(io::Error::other(error));
        }
        Ok(Attached {
            rtp: RTP as u32,
            rtcp: self.sockets.rtcp.as_ref().map(|_| RTCP as u32),
            rest: Rest::Shared(place),
        })
    }

    fn detach(&mut self, attached: Attached) -> Option<LegKind> {
        let Rest::Shared(place) = attached.rest else {
            return None;
        };
        let filter: Filter = place.filter();
        if let Some(route) = self.table.remove(&filter) {
            self.routes.try_remove(route as usize);
        }
        Some(LegKind::Shared(place))
    }

    fn begin(&mut self, is_ready: bool) {
        if is_ready || !self.is_drained {
            self.reads = RTP;
        }
        self.is_drained = true;
    }

    fn receive(&mut self, pass: &mut Pass<'_>) -> bool {
        self.arrivals.clear();
        while self.reads < NONE {
            match self.read() {
                Ok(()) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.reads += 1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if is_of_earlier(&error) {
                        // The socket is read again in the next pass.
                        self.is_drained = false;
                    } else {
                        pass.counters.receive_errors.add(1);
                    }
                    if let Some(udp) = self.socket(self.reads) {
                        take_icmp(udp.fd(), pass.counters);
                    }
                    self.reads += 1;
                }
            }
        }
        false
    }

    fn is_unsorted(&self) -> bool {
        self.unsorted > 0
    }

    fn sort(&mut self, pass: &mut Pass<'_>) {
        for i in 0..std::mem::take(&mut self.unsorted) {
            let (received, from) = self.batch.received(i);
            let from = canonical(from.to_socket_addr().unwrap_or(NOBODY));
            self.sort_one(i, &received, from, pass);
        }
    }

    fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    #[inline]
    fn bytes(&mut self, i: usize) -> &mut [u8] {
        let Arrival { slot, len, .. } = self.arrivals[i];
        &mut self.arena.slot(usize::from(slot))[..usize::from(len)]
    }

    fn wants_run(&self) -> bool {
        self.reads < NONE || !self.is_drained
    }

    #[inline]
    fn stage(
        &mut self,
        place: u32,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused> {
        let reach = self.reach;
        self.staging.stage(Target { place, reach }, to, write)
    }

    fn flush(&mut self, counters: &Counters) {
        let mut first = 0;
        while first < self.staging.items().len() {
            first += self.send_from(first, counters);
        }
        self.staging.clear();
    }

    fn sample_drops(&mut self, counters: &Counters) {
        for i in [RTP, RTCP] {
            if let Some(udp) = self.socket(i) {
                let drops = kernel_drops(udp.fd());
                let before = std::mem::replace(&mut self.drops[i], drops);
                counters
                    .kernel_drops
                    .add(u64::from(drops.wrapping_sub(before)));
            }
        }
    }
}

/// Finds the leg of an RTCP packet. The packet contains the SSRC of its sender, and comes from the RTP address or from the next port (RFC
/// 3550, section 11).
fn find_rtcp(
    table: &mut Demux<u32>,
    now_ns: u64,
    from: SocketAddr,
    bytes: &[u8],
) -> Result<Option<u32>, Malformed> {
    // Each RTCP packet starts with a word of header and the sender's SSRC (RFC 3550, section 6.4).
    let Some(&[_, _, _, _, a, b, c, d]) = bytes.first_chunk::<8>() else {
        return Err(Malformed);
    };
    let ssrc = Ssrc(u32::from_be_bytes([a, b, c, d]));
    let any = PayloadType(0);
    if let Some(route) = route_of(table.lookup(now_ns, from, ssrc, any)) {
        return Ok(Some(route));
    }
    let Some(port) = from.port().checked_sub(1) else {
        return Ok(None);
    };
    let mut rtp = from;
    rtp.set_port(port);
    Ok(route_of(table.lookup(now_ns, rtp, ssrc, any)))
}

#[inline]
fn route_of(lookup: Lookup<u32>) -> Option<u32> {
    match lookup {
        Lookup::Route(route) => Some(route),
        Lookup::Stranger | Lookup::Probation | Lookup::Unmatched => None,
    }
}

/// The datagram is neither RTP nor RTCP.
struct Malformed;

const RTP: usize = 0;
const RTCP: usize = 1;
const NONE: usize = 2;
/// Maximum number of datagrams of one leg per ms. It is twice the rate of AES67's shortest packet time (0.125 ms).
const BUDGET_PER_MS: u64 = 16;
/// Minimum budget per slice. If a context has no wait, its slices have different lengths.
const BUDGET_MIN: u64 = 256;
/// Maximum budget per slice. It is the number of datagrams in a second.
const BUDGET_MAX: u64 = 16_000;

impl std::fmt::Debug for SharedIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedIo")
            .field("sockets", &self.sockets)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}
