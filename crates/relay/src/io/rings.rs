//! XDP rings in addition to the sockets: assigns arrivals to ports, and knows which peers can be answered by rings.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use socket2::Socket;
use threadbare_xdp::{Lane, Received, Way};

use crate::socket::{Reach, canonical};
use crate::stats::Counters;

/// A shard's rings, and the routes of its ports.
#[derive(Debug)]
pub(super) struct Rings {
    lane: Lane,
    /// Indexed by the port's place.
    routes: Vec<Route>,
    malformed: u64,
    drops: u64,
    /// Slices until the kernel is asked for drops.
    drops_in: u32,
    /// The last read ended before the rings did.
    pub(super) has_more: bool,
}

/// Path of a port to its peer.
#[derive(Debug, Clone, Copy)]
struct Route {
    /// `None`: all of this port's datagrams use the socket.
    local: Option<SocketAddr>,
    peer: SocketAddr,
    way: Way,
    seen_ns: u64,
    tos: u8,
}

impl Rings {
    pub(super) fn new(lane: Lane) -> Rings {
        Rings {
            lane,
            routes: Vec::new(),
            malformed: 0,
            drops: 0,
            drops_in: 0,
            has_more: false,
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lane.descriptors()
    }

    /// Adds a port's socket. If it cannot have a ring, it works without.
    pub(super) fn add(
        &mut self,
        place: u32,
        key: u64,
        local: SocketAddr,
        socket: &Socket,
        reach: Reach,
    ) {
        let place = place as usize;
        if place >= self.routes.len() {
            self.routes.resize(place + 1, Route::NONE);
        }
        let is_enrolled = match self.lane.enroll(local, key) {
            Ok(is_enrolled) => is_enrolled,
            Err(error) => {
                tracing::warn!(%local, %error, "a port has no ring: its datagrams use the socket");
                false
            }
        };
        let tos = tos_of(socket, reach).unwrap_or(0);
        self.routes[place] = Route {
            local: is_enrolled.then_some(local),
            tos,
            ..Route::NONE
        };
    }

    pub(super) fn remove(&mut self, place: u32) {
        let Some(route) = self.routes.get_mut(place as usize) else {
            return;
        };
        if let Some(local) = route.local.take() {
            self.lane.withdraw(local);
        }
    }

    pub(super) fn set_tos(&mut self, place: u32, tos: u8) {
        if let Some(route) = self.routes.get_mut(place as usize) {
            route.tos = tos;
        }
    }

    /// Returns the next datagram from a ring; the key has its port's place, as in `add`.
    #[inline]
    pub(super) fn receive(&mut self, room: &mut [u8]) -> Option<Received> {
        self.lane.receive(room, &mut self.malformed)
    }

    /// Notes that a datagram of [`receive`](Self::receive) belongs to the port. Its sender can now be answered by the ring.
    ///
    /// Another path to the same peer is accepted only after the path in use was silent. Otherwise a forged frame could divert the
    /// peer's audio on the link.
    #[inline]
    pub(super) fn saw(&mut self, place: usize, received: &Received, now_ns: u64) {
        let Some(route) = self.routes.get_mut(place) else {
            return;
        };
        let is_same = route.peer == received.from && route.way == received.way;
        if is_same || !route.is_fresh(now_ns) {
            route.peer = received.from;
            route.way = received.way;
            route.seen_ns = now_ns;
        }
    }

    /// Frees the frames of all read datagrams, which have been copied.
    #[inline]
    pub(super) fn release(&mut self) {
        self.lane.release();
    }

    /// Puts a datagram into a ring. Returns `false` if it must be sent by the socket.
    #[inline]
    pub(super) fn send(&mut self, place: u32, to: SocketAddr, bytes: &[u8], now_ns: u64) -> bool {
        let Some(route) = self.routes.get(place as usize) else {
            return false;
        };
        let Some(local) = route.local else {
            return false;
        };
        if route.peer != canonical(to) || !route.is_fresh(now_ns) {
            return false;
        }
        self.lane
            .send(&route.way, local, route.peer, route.tos, bytes)
    }

    #[inline]
    pub(super) fn flush(&mut self) {
        self.lane.flush();
    }

    /// Called once per slice. Asking the kernel takes a call for each of the devices' queues, so it is done less often.
    pub(super) fn sample(&mut self, counters: &Counters) {
        if self.drops_in > 0 {
            self.drops_in -= 1;
            return;
        }
        self.drops_in = SLICES_OF_DROPS;
        let drops = self.lane.drops();
        let before = std::mem::replace(&mut self.drops, drops);
        counters.kernel_drops.add(drops.saturating_sub(before));
        counters.malformed.add(std::mem::take(&mut self.malformed));
    }
}

impl Route {
    const NONE: Route = Route {
        local: None,
        peer: super::NOBODY,
        way: Way::NONE,
        seen_ns: 0,
        tos: 0,
    };

    #[inline]
    fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.seen_ns) < FRESH_NS
    }
}

fn tos_of(socket: &Socket, reach: Reach) -> io::Result<u8> {
    let tos = match reach {
        Reach::V4 => socket.tos_v4()?,
        Reach::V6 | Reach::Both => socket.tclass_v6()?,
    };
    Ok(tos as u8)
}

/// Slices between two questions for drops: a second of slices of 20 ms.
const SLICES_OF_DROPS: u32 = 50;
/// Maximum age of a peer's last datagram for sending by a ring, ns. Other peers are reached through the kernel, which resolves
/// their link address.
const FRESH_NS: u64 = 1_000_000_000;
