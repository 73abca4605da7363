//! Packet I/O with separate sockets for each leg.
//!
//! The sockets are in their own epoll instance, which is itself in the shard's epoll instance. Each run asks the kernel once which sockets
//! are ready. Each ready socket is read once, and again in the next run if it probably has more. So a flooded socket takes turns with the
//! others.
//!
//! With [`Rings`], most datagrams bypass the sockets. The sockets then reserve the ports, and carry all other datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;
use threadbare_runtime::{
    Cx, Expects, Interest, Load, RawAddr, Received, RecvBatch, clock_now_ns, kernel_drops,
    prefetch, recv_timestamped, send_to,
};
use threadbare_xdp::Lane;

use super::arena::{Arena, BATCH, Staging};
use super::errors::{is_of_earlier, take_icmp};
use super::rings::Rings;
use super::{Arrival, Attached, NOBODY, Outcome, PacketIo, Pass, Target, reserve};
use crate::call::Refused;
use crate::fence::Fence;
use crate::id::{PortId, PortKind};
use crate::ports::{LegKind, OwnPorts, Sockets};
use crate::socket::{Reach, Udp, canonical, set_tos};
use crate::stats::Counters;

pub(crate) struct Pairs {
    /// The epoll instance of the sockets. It also contains the sockets of ended calls. These are sealed until another call gets them, or
    /// until they are closed.
    epoll: Arc<Epoll>,
    ports: Vec<Port>,
    free: Vec<u32>,
    /// Ready sockets. Those from `next_event` on were not read yet in this run.
    events: Vec<EpollEvent>,
    events_end: usize,
    next_event: usize,
    /// Places and generations of sockets that are read in this run, and of those that are read in the next one.
    again: Vec<u64>,
    next_again: usize,
    again_later: Vec<u64>,
    /// Whether this run asks the kernel for ready sockets.
    asks: bool,
    arena: Arena,
    arrivals: Vec<Arrival>,
    batch: RecvBatch,
    staging: Staging,
    /// The rings. `None`: all packets use sockets.
    rings: Option<Rings>,
    /// The next port whose drops are sampled.
    next_sample: usize,
    is_unthrottled: bool,
}

/// A socket and its state, in one cache line.
#[repr(align(64))]
struct Port {
    /// The socket. `None`: the place is free.
    socket: Option<Socket>,
    generation: u32,
    call: u32,
    id: PortId,
    reach: Reach,
    /// Whether the port has had a ring since the last read of its socket, which may contain older datagrams.
    is_backlogged: bool,
    load: Load,
    /// Type of service of the datagrams that are sent.
    tos: u8,
    drops: u32,
    /// The fence for sending. `None`: there is no fence.
    fence: Option<Fence>,
}

/// The parts of a leg's ports other than the sockets.
#[derive(Debug)]
pub(crate) enum Rest {
    /// For [`Pairs`]: the lease, and the sockets' addresses.
    Own {
        lease: Option<crate::ports::NumberLease>,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
        fence: Option<Fence>,
    },
    /// For a shared port.
    Shared(crate::ports::SharedPlace),
}

impl Rest {
    /// Returns the local addresses of RTP and RTCP.
    pub(crate) fn locals(&self) -> [Option<SocketAddr>; 2] {
        match self {
            Rest::Own { rtp, rtcp, .. } => [Some(*rtp), *rtcp],
            Rest::Shared(place) => {
                let sockets = place.sockets();
                [
                    Some(sockets.rtp.local()),
                    sockets.rtcp.as_ref().map(Udp::local),
                ]
            }
        }
    }
}

impl Pairs {
    /// Creates the packet I/O. `lane` provides rings for the ports, in addition to their sockets.
    pub(crate) fn new(is_unthrottled: bool, lane: Option<Lane>) -> io::Result<Pairs> {
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        let rings = lane.map(Rings::new);
        for descriptor in rings.iter().flat_map(Rings::descriptors) {
            // The rings are read in each run, so this event only wakes the thread. No port has its key.
            epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, RINGS))?;
        }
        Ok(Pairs {
            epoll,
            ports: Vec::new(),
            free: Vec::new(),
            events: vec![EpollEvent::empty(); EVENTS],
            events_end: 0,
            next_event: 0,
            again: Vec::new(),
            next_again: 0,
            again_later: Vec::new(),
            asks: false,
            arena: Arena::new(),
            arrivals: Vec::with_capacity(BATCH),
            batch: RecvBatch::new(BATCH),
            staging: Staging::new(),
            rings,
            next_sample: 0,
            is_unthrottled,
        })
    }

    /// Returns the epoll instance with all its sockets.
    pub(crate) fn watch(&self) -> &Arc<Epoll> {
        &self.epoll
    }

    /// Adds a socket. `watch` is the epoll instance that already has it, if there is one.
    fn add(
        &mut self,
        udp: Udp,
        watch: Option<&Arc<Epoll>>,
        (call, id): (u32, PortId),
        fence: Option<Fence>,
    ) -> io::Result<u32> {
        let local = udp.local();
        let reach = crate::socket::reach_of(&local);
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.ports.push(Port {
                    socket: None,
                    generation: 0,
                    call: 0,
                    id,
                    reach,
                    is_backlogged: false,
                    load: Load::default(),
                    tos: 0,
                    drops: 0,
                    fence: None,
                });
                // Reserve the memory now, because a slice in which all sockets are busy must not allocate.
                reserve(&mut self.again, self.ports.len());
                reserve(&mut self.again_later, self.ports.len());
                (self.ports.len() - 1) as u32
            }
        };
        let port = &mut self.ports[place as usize];
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, key_of(place, port.generation));
        let watched = match watch {
            Some(own) if Arc::ptr_eq(own, &self.epoll) => own.modify(udp.fd(), &mut event),
            other => {
                let left = other.map_or(Ok(()), |other| other.delete(udp.fd()));
                left.and_then(|()| self.epoll.add(udp.fd(), event))
            }
        };
        if let Err(error) = watched {
            self.free.push(place);
            return Err(error.into());
        }
        port.call = call;
        port.id = id;
        port.reach = reach;
        port.load = Load::new(self.is_unthrottled);
        port.fence = fence;
        let key = key_of(place, port.generation);
        let (socket, tos, drops) = udp.into_parts();
        port.tos = tos;
        port.drops = drops;
        let socket = port.socket.insert(socket);
        // Only RTP ports get rings. RTCP is rare, and a place in the kernel's table costs two system calls.
        if let Some(rings) = &mut self.rings
            && id.kind == PortKind::Rtp
        {
            rings.add(place, key, local, socket, reach);
            port.is_backlogged = true;
            // Older datagrams must be read from the socket before the rings, so this run asks the kernel.
            self.asks = true;
        }
        Ok(place)
    }

    /// Removes a socket that will be closed or sealed soon. Its pending events are dropped.
    fn remove(&mut self, place: u32, local: SocketAddr) -> Option<Udp> {
        let port = self.ports.get_mut(place as usize)?;
        let socket = port.socket.take()?;
        port.fence = None;
        // Events that were collected for the old socket in this pass do not apply to the new one.
        port.generation = port.generation.wrapping_add(1);
        if let Some(rings) = &mut self.rings {
            rings.remove(place);
        }
        let (tos, drops) = (port.tos, port.drops);
        self.free.push(place);
        Some(Udp::from_parts(socket, local, tos, drops))
    }

    /// Returns the next socket to read, and whether it has errors or data.
    #[inline]
    fn next_port(&mut self) -> Option<(usize, EpollFlags)> {
        loop {
            let (key, flags) = if let Some(&key) = self.again.get(self.next_again) {
                self.next_again += 1;
                (key, EpollFlags::EPOLLIN)
            } else if self.next_event < self.events_end {
                let ahead = self.next_event + PORTS_AHEAD;
                if ahead < self.events_end {
                    let place = self.events[ahead].data() as u32 as usize;
                    if let Some(port) = self.ports.get(place) {
                        prefetch(std::ptr::from_ref(port), 1);
                    }
                }
                let event = self.events[self.next_event];
                self.next_event += 1;
                (event.data(), event.events())
            } else if std::mem::take(&mut self.asks) {
                self.ask();
                continue;
            } else {
                return None;
            };
            let place = key as u32 as usize;
            if let Some(port) = self.ports.get(place)
                && port.generation == (key >> 32) as u32
                && port.socket.is_some()
            {
                return Some((place, flags));
            }
        }
    }

    /// Reads datagrams from the rings. Returns `false` if none is left.
    #[inline]
    fn read_rings(&mut self, pass: &mut Pass<'_>) -> bool {
        let Some(rings) = &mut self.rings else {
            return false;
        };
        rings.has_more = true;
        while self.arrivals.len() < BATCH {
            let slot = self.arrivals.len();
            let Some(received) = rings.receive(self.arena.slot(slot)) else {
                rings.has_more = false;
                break;
            };
            let place = received.key as u32 as usize;
            // The datagram may be for a port that had this place earlier.
            let Some(port) = self.ports.get(place) else {
                continue;
            };
            if port.generation != (received.key >> 32) as u32 || port.socket.is_none() {
                continue;
            }
            rings.saw(place, &received, pass.now_ns);
            pass.counters.ring_received.add(1);
            self.arrivals.push(Arrival {
                call: port.call,
                port: port.id,
                outcome: outcome_of(received.len, received.datagram_len),
                len: received.len as u16,
                slot: slot as u16,
                from: received.from,
                received_ns: pass.bounded(received.received_ns),
            });
        }
        rings.release();
        rings.has_more
    }

    /// Asks the kernel for the ready sockets.
    fn ask(&mut self) {
        self.next_event = 0;
        self.events_end = match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => {
                self.asks = true;
                0
            }
            Err(error) => {
                tracing::error!(%error, "epoll");
                0
            }
        };
        if self.events_end == self.events.len() {
            // The kernel may not have returned all events.
            self.asks = true;
        }
    }

    #[inline]
    fn rings_have_more(&self) -> bool {
        matches!(&self.rings, Some(rings) if rings.has_more)
    }

    /// Reads one socket into the arena.
    #[inline]
    fn read(&mut self, place: usize, flags: EpollFlags, pass: &mut Pass<'_>) {
        if flags.contains(EpollFlags::EPOLLERR) {
            self.take_errors(place, pass.counters);
            if !flags.contains(EpollFlags::EPOLLIN) {
                return;
            }
        }
        let port = &mut self.ports[place];
        port.load.pass(pass.slice);
        if port.is_backlogged {
            return self.read_backlog(place, pass);
        }
        match port.load.batch() {
            Some(size) => self.read_batch(place, size, pass),
            None => self.read_one(place, pass),
        }
    }

    #[inline]
    fn read_one(&mut self, place: usize, pass: &mut Pass<'_>) {
        let slot = self.arrivals.len();
        let port = &mut self.ports[place];
        let Some(fd) = port.socket.as_ref().map(AsFd::as_fd) else {
            return;
        };
        let mut from = RawAddr::empty();
        match recv_timestamped(fd, self.arena.slot(slot), Some(&mut from)) {
            Ok(received) => {
                let arrival = arrival_of(port, slot, &received, &from, pass);
                port.load.received(1);
                match port.load.expects(pass.now_ns, arrival.received_ns) {
                    Expects::Nothing => {}
                    Expects::One | Expects::Many => {
                        self.again_later.push(key_of(place as u32, port.generation));
                    }
                }
                self.arrivals.push(arrival);
            }
            Err(error) => self.failed(place, &error, pass.counters),
        }
    }

    /// Reads a socket to its end before the rings are read.
    #[cold]
    fn read_backlog(&mut self, place: usize, pass: &mut Pass<'_>) {
        let (room, before) = (BATCH - self.arrivals.len(), self.arrivals.len());
        self.read_batch(place, room, pass);
        let port = &mut self.ports[place];
        port.is_backlogged = self.arrivals.len() - before == room;
        if port.is_backlogged {
            self.again.push(key_of(place as u32, port.generation));
        }
    }

    fn read_batch(&mut self, place: usize, size: usize, pass: &mut Pass<'_>) {
        let first = self.arrivals.len();
        let port = &mut self.ports[place];
        let Some(fd) = port.socket.as_ref().map(AsFd::as_fd) else {
            return;
        };
        let (mut rooms, room) = self.arena.rooms(first);
        let size = size.min(room);
        match self.batch.recv(fd, &mut rooms[..size]) {
            Ok(count) => {
                port.load.received(count);
                for i in 0..count {
                    let (received, from) = self.batch.received(i);
                    let arrival = arrival_of(port, first + i, &received, from, pass);
                    self.arrivals.push(arrival);
                }
                if count == size {
                    self.again_later.push(key_of(place as u32, port.generation));
                }
            }
            Err(error) => self.failed(place, &error, pass.counters),
        }
    }

    #[cold]
    fn failed(&mut self, place: usize, error: &io::Error, counters: &Counters) {
        match error.kind() {
            io::ErrorKind::WouldBlock => return,
            io::ErrorKind::Interrupted => {}
            _ if is_of_earlier(error) => self.take_errors(place, counters),
            _ => {
                // The next slice tries again. If a socket stays broken, this costs one call in each slice.
                counters.receive_errors.add(1);
                return;
            }
        }
        let generation = self.ports[place].generation;
        self.again_later.push(key_of(place as u32, generation));
    }

    #[cold]
    fn take_errors(&mut self, place: usize, counters: &Counters) {
        if let Some(socket) = &self.ports[place].socket {
            take_icmp(socket.as_fd(), counters);
        }
    }
}

impl PacketIo for Pairs {
    fn watch(&self, cx: &Cx<'_>, key: u8) -> io::Result<()> {
        cx.register(self.epoll.0.as_fd(), key, Interest::Read)
    }

    fn unwatch(&self, cx: &Cx<'_>) {
        cx.deregister(self.epoll.0.as_fd());
    }

    fn attach(&mut self, call: u32, leg: u8, ports: LegKind) -> io::Result<Attached> {
        let LegKind::Own(own) = ports else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let Some((sockets, lease, fence)) = own.into_parts() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let Sockets { rtp, rtcp, watch } = sockets;
        let watch = watch.as_ref();
        let (rtp_local, rtcp_local) = (rtp.local(), rtcp.as_ref().map(Udp::local));
        let rtp = self.add(rtp, watch, (call, PortId::rtp(leg)), fence.clone())?;
        let at = (call, PortId::rtcp(leg));
        let rtcp = match rtcp.map(|udp| self.add(udp, watch, at, fence.clone())) {
            Some(Ok(place)) => Some(place),
            Some(Err(error)) => {
                self.remove(rtp, rtp_local);
                return Err(error);
            }
            None => None,
        };
        let rest = Rest::Own {
            lease,
            rtp: rtp_local,
            rtcp: rtcp_local,
            fence,
        };
        Ok(Attached { rtp, rtcp, rest })
    }

    fn detach(&mut self, attached: Attached) -> Option<LegKind> {
        let Rest::Own {
            lease,
            rtp,
            rtcp,
            fence,
        } = attached.rest
        else {
            return None;
        };
        let rtp = self.remove(attached.rtp, rtp);
        let rtcp = attached.rtcp.zip(rtcp);
        let rtcp = rtcp.and_then(|(place, local)| self.remove(place, local));
        let sockets = Sockets {
            rtp: rtp?,
            rtcp,
            watch: Some(self.epoll.clone()),
        };
        let mut own = OwnPorts::new(sockets, lease);
        own.fence = fence;
        Some(LegKind::Own(own))
    }

    /// A ring belongs to the shard, and may contain datagrams of the port. So a port with a ring stays.
    fn can_move(&self, attached: &Attached) -> bool {
        let rings = self.rings.as_ref();
        !rings.is_some_and(|rings| rings.has(attached.rtp))
    }

    fn set_tos(&mut self, attached: &Attached, tos: u8) -> io::Result<()> {
        for place in std::iter::once(attached.rtp).chain(attached.rtcp) {
            if let Some(rings) = &mut self.rings {
                rings.set_tos(place, tos);
            }
            if let Some(port) = self.ports.get_mut(place as usize)
                && let Some(socket) = &port.socket
            {
                set_tos(socket, port.reach, tos)?;
                port.tos = tos;
            }
        }
        Ok(())
    }

    fn begin(&mut self, is_ready: bool) {
        if self.next_again >= self.again.len() {
            self.again.clear();
            self.next_again = 0;
            std::mem::swap(&mut self.again, &mut self.again_later);
        }
        self.asks |= is_ready;
    }

    fn receive(&mut self, pass: &mut Pass<'_>) -> bool {
        self.arrivals.clear();
        while self.arrivals.len() < BATCH {
            let Some((place, flags)) = self.next_port() else {
                // The rings come after the sockets, because the datagrams from before a port had a ring are older.
                return self.read_rings(pass);
            };
            self.read(place, flags, pass);
        }
        true
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
        self.next_again < self.again.len()
            || !self.again_later.is_empty()
            || self.next_event < self.events_end
            || self.asks
            || self.rings_have_more()
    }

    #[inline]
    fn stage(
        &mut self,
        place: u32,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Refused> {
        let reach = self.ports[place as usize].reach;
        self.staging.stage(Target { place, reach }, to, write)
    }

    fn flush(&mut self, counters: &Counters) {
        if self.staging.items().is_empty() {
            return;
        }
        let (mut sent, mut fenced, mut by_ring) = (0, 0, 0);
        let now_ns = self.rings.as_ref().map_or(0, |_| clock_now_ns());
        for (i, item) in self.staging.items().iter().enumerate() {
            let port = &self.ports[item.place as usize];
            let Some(socket) = &port.socket else {
                continue;
            };
            if let Some(fence) = &port.fence
                && !fence.is_open(clock_now_ns())
            {
                fenced += 1;
                continue;
            }
            if let Some(rings) = &mut self.rings
                && let Some(to) = item.to.to_socket_addr()
                && rings.send(item.place, to, self.staging.bytes(i), now_ns)
            {
                by_ring += 1;
                continue;
            }
            match send_one(socket.as_fd(), self.staging.bytes(i), &item.to) {
                Ok(()) => sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.send_full.add(1);
                }
                Err(_) => counters.send_errors.add(1),
            }
        }
        if let Some(rings) = &mut self.rings {
            rings.flush();
        }
        counters.packets_sent.add(sent + by_ring);
        counters.ring_sent.add(by_ring);
        counters.fenced.add(fenced);
        self.staging.clear();
    }

    fn sample_drops(&mut self, counters: &Counters) {
        if let Some(rings) = &mut self.rings {
            rings.sample(counters);
        }
        for _ in 0..SAMPLES.min(self.ports.len()) {
            self.next_sample = (self.next_sample + 1) % self.ports.len();
            let port = &mut self.ports[self.next_sample];
            if let Some(socket) = &port.socket {
                let drops = kernel_drops(socket.as_fd());
                let before = std::mem::replace(&mut port.drops, drops);
                counters
                    .kernel_drops
                    .add(u64::from(drops.wrapping_sub(before)));
            }
        }
    }
}

/// Sends one datagram. If the system only returned the error of an earlier datagram, tries a second time.
#[inline]
fn send_one(fd: BorrowedFd<'_>, bytes: &[u8], to: &RawAddr) -> io::Result<()> {
    match send_to(fd, bytes, to) {
        Err(error) if is_of_earlier(&error) => send_to(fd, bytes, to).map(drop),
        result => result.map(drop),
    }
}

#[inline]
fn arrival_of(
    port: &Port,
    slot: usize,
    received: &Received,
    from: &RawAddr,
    pass: &mut Pass<'_>,
) -> Arrival {
    Arrival {
        call: port.call,
        port: port.id,
        outcome: outcome_of(received.len, received.datagram_len),
        len: received.len as u16,
        slot: slot as u16,
        from: canonical(from.to_socket_addr().unwrap_or(NOBODY)),
        received_ns: pass.received_ns(received.timestamp_ns),
    }
}

#[inline]
fn outcome_of(len: usize, datagram_len: usize) -> Outcome {
    if len == datagram_len {
        Outcome::Deliver
    } else {
        Outcome::Truncated
    }
}

const fn key_of(place: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | place as u64
}

impl std::fmt::Debug for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pairs")
            .field("epoll", &self.epoll.0.as_raw_fd())
            .field("ports", &(self.ports.len() - self.free.len()))
            .finish_non_exhaustive()
    }
}

/// Key of the rings' descriptors in the epoll instance.
const RINGS: u64 = u64::MAX;
/// Maximum number of events that the kernel returns at once. It is the number of ready sockets of a shard in a slice.
const EVENTS: usize = 4096;
/// Number of sockets between a prefetch and the use of the memory. A receive call takes longer than a fetch from memory.
const PORTS_AHEAD: usize = 2;
/// Number of ports whose drops are read in each slice.
const SAMPLES: usize = 16;
