//! XDP rings that are used in addition to the sockets. This module finds the port of each arrival, and knows which peers can be answered
//! through the rings.

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
    /// The routes, by the place of the port.
    routes: Vec<Route>,
    malformed: u64,
    drops: u64,
    /// Number of slices before the kernel is asked for drops.
    drops_in: u32,
    /// Whether the rings had more datagrams when the last read ended.
    pub(super) has_more: bool,
}

/// The path from a port to its peer.
#[derive(Debug, Clone, Copy)]
struct Route {
    /// The local address. `None`: all datagrams of this port use the socket.
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

    /// Adds the socket of a port. If it cannot have a ring, the port uses only the socket.
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

    /// Whether a port has a ring.
    pub(super) fn has(&self, place: u32) -> bool {
        let route = self.routes.get(place as usize);
        route.is_some_and(|route| route.local.is_some())
    }

    pub(super) fn set_tos(&mut self, place: u32, tos: u8) {
        if let Some(route) = self.routes.get_mut(place as usize) {
            route.tos = tos;
        }
    }

    /// Returns the next datagram from a ring. Its key contains the port's place, as in `add`.
    #[inline]
    pub(super) fn receive(&mut self, room: &mut [u8]) -> Option<Received> {
        self.lane.receive(room, &mut self.malformed)
    }

    /// Notes that a datagram of [`receive`](Self::receive) belongs to the port. From now on, its sender can be answered through the ring.
    ///
    /// Another path to the same peer is accepted only after a silence on the path that is in use. Otherwise, a forged frame could divert
    /// the peer's audio on the link.
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

    /// Frees the frames of all datagrams that were read. They have been copied.
    #[inline]
    pub(super) fn release(&mut self) {
        self.lane.release();
    }

    /// Puts a datagram into a ring. Returns `false` if the socket must send it.
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

    /// Reads the numbers of dropped datagrams from time to time. It is called once per slice, but asking the kernel takes a call for each
    /// queue of the devices.
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

/// Number of slices between two questions for drops. With slices of 20 ms, it is a second.
const SLICES_OF_DROPS: u32 = 50;
/// Maximum age of a peer's last datagram, ns. If it is older, datagrams to the peer go through the kernel, which finds the peer's link
/// address.
const FRESH_NS: u64 = 1_000_000_000;
