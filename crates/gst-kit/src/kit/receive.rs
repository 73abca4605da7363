//! Receives datagrams from a socket into pooled buffers, for all elements with a socket.
//!
//! If a socket is ready, one receive call is made per pass, and another one if the socket is likely to hold more (`Load`). If a
//! socket has several packets in one slice, it is read in batches from then on, until its traffic drops. A socket with a packet
//! in nearly every slice is read in each slice, without asking the kernel whether it is ready.
#![allow(missing_docs, reason = "no stable interface")]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

use threadbare_runtime::{
    Cx, Expects, Interest, Load, RECV_BATCH, RawAddr, Ready, Received, RecvBatch, Shard, recv_from,
    recv_timestamped,
};

use super::pool::{PoolBuffer, PoolOwner};
use super::socket::Udp;
use super::time::SliceClock;

/// A received datagram.
pub struct Datagram {
    pub buffer: PoolBuffer,
    pub received: Received,
    /// Arrival time in ns of CLOCK_MONOTONIC. If the kernel's time is unknown, it is the time of the read.
    pub arrival_ns: u64,
    /// The sender; empty if the reader does not need it.
    pub from: RawAddr,
}

/// The information that a reader needs about each datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// The kernel's receive time; the socket has SO_TIMESTAMPNS on.
    pub time: bool,
    /// The sender.
    pub sender: bool,
}

/// Result of a read.
pub enum Read {
    Datagram(Datagram),
    /// A network error, to be counted; more datagrams may follow.
    NetworkError,
    /// Read again.
    Again,
    /// Nothing more in this pass.
    Idle,
    /// The socket is unusable.
    Failed(io::Error),
}

/// Reads one socket on its context's thread.
#[repr(C)]
pub struct Reader {
    udp: Udp,
    pool: Arc<PoolOwner>,
    load: Load,
    mtu: u32,
    /// Whether a receive is allowed in this pass.
    may_receive: bool,
    /// Whether the datagrams in `read` are for the next pass.
    is_held: bool,
    /// Whether the socket is tried in each slice.
    is_assumed: bool,
    /// The key under which the context watches the socket, if it does.
    key: Option<u8>,
    wants: Wants,
    clock: Arc<SliceClock>,
    read: VecDeque<io::Result<Datagram>>,
}

impl Reader {
    /// Creates a reader for datagrams of up to `mtu` bytes.
    pub fn new(shard: &Shard, udp: Udp, mtu: u32, wants: Wants) -> Self {
        let load = Load::new(shard.wait().is_zero());
        Self::with_load(shard, udp, mtu, wants, load)
    }

    /// Creates a reader for a socket shared by many streams.
    pub fn shared(shard: &Shard, udp: Udp, mtu: u32, wants: Wants) -> Self {
        Self::with_load(shard, udp, mtu, wants, Load::shared())
    }

    fn with_load(shard: &Shard, udp: Udp, mtu: u32, wants: Wants, load: Load) -> Self {
        Reader {
            udp,
            pool: pool_of(shard, mtu as usize),
            load,
            mtu,
            may_receive: false,
            is_held: false,
            is_assumed: false,
            key: None,
            wants,
            clock: SliceClock::of(shard),
            // Room for one datagram that is read ahead.
            read: VecDeque::with_capacity(1),
        }
    }

    /// Runs the agent with [`Ready::Io`]`(key)` when the socket may hold a datagram.
    pub fn watch(&mut self, cx: &Cx<'_>, key: u8) -> io::Result<()> {
        cx.register(self.udp.fd(), key, Interest::Read)?;
        self.key = Some(key);
        self.is_assumed = false;
        Ok(())
    }

    pub fn unwatch(&mut self, cx: &Cx<'_>) {
        if self.key.take().is_some() {
            cx.deregister(self.udp.fd());
        }
    }

    /// Switches to this socket. Datagrams that were already read come first.
    pub fn change_socket(&mut self, cx: &Cx<'_>, udp: Udp) -> io::Result<()> {
        if let Some(key) = self.key {
            cx.register(udp.fd(), key, Interest::Read)?;
            cx.deregister(self.udp.fd());
            self.is_assumed = false;
        }
        self.udp = udp;
        Ok(())
    }

    /// Starts a pass. `ready` is the reason for the pass.
    #[inline]
    pub fn begin(&mut self, cx: &Cx<'_>, ready: Ready) {
        match ready {
            Ready::Io(_) => {
                self.may_receive = true;
                self.load.pass(cx.local().slice());
                if self.load.is_regular() != self.is_assumed {
                    self.change_readiness(cx);
                }
            }
            Ready::Woken | Ready::Timer => {}
        }
        self.is_held = false;
    }

    #[cold]
    fn change_readiness(&mut self, cx: &Cx<'_>) {
        self.is_assumed = if self.is_assumed {
            // If the kernel refuses to watch the socket, the agent still tries it in each slice.
            cx.await_ready(self.udp.fd()).is_err()
        } else {
            cx.assume_ready(self.udp.fd())
        };
    }

    /// Records that the socket probably holds more than the datagram that was read ahead. The kernel will report this in this
    /// slice.
    fn expect_more(&mut self, cx: &Cx<'_>) {
        self.load.has_burst();
        if self.is_assumed {
            self.change_readiness(cx);
        }
        cx.expect_more();
    }

    /// Allows one more receive in this pass.
    pub fn again(&mut self) {
        self.is_held = false;
        self.may_receive = true;
    }

    /// Drops datagrams that were read but not taken.
    pub fn clear(&mut self) {
        self.read.clear();
    }

    /// Returns the next datagram.
    #[inline]
    pub fn next(&mut self, cx: &Cx<'_>) -> Read {
        if self.is_held {
            return Read::Idle;
        }
        match self.read.pop_front() {
            Some(Ok(datagram)) => return Read::Datagram(datagram),
            Some(Err(error)) => return self.failed(cx, error),
            None => {}
        }
        if !std::mem::take(&mut self.may_receive) {
            return Read::Idle;
        }
        match self.load.batch() {
            Some(size) => self.read_batch(cx, size),
            None => self.read_one(cx),
        }
    }

    #[inline]
    fn read_one(&mut self, cx: &Cx<'_>) -> Read {
        let datagram = match self.receive(cx) {
            Ok(datagram) => datagram,
            Err(error) => return self.failed(cx, error),
        };
        if self.wants.time {
            match self.load.expects(cx.now_ns(), datagram.arrival_ns) {
                Expects::Nothing => cx.expect_no_more(),
                Expects::One => self.read_ahead(cx),
                Expects::Many => self.expect_more(cx),
            }
        }
        Read::Datagram(datagram)
    }

    /// Reads one more datagram, for a separate pass. So commands that were sent before the datagram arrived, and other agents,
    /// run first.
    fn read_ahead(&mut self, cx: &Cx<'_>) {
        let read = self.receive(cx);
        match &read {
            Ok(datagram) => match self.load.expects(cx.now_ns(), datagram.arrival_ns) {
                Expects::Nothing => cx.expect_no_more(),
                Expects::One | Expects::Many => self.expect_more(cx),
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => return cx.expect_no_more(),
            Err(_) => self.expect_more(cx),
        }
        self.read.push_back(read);
        self.is_held = true;
        cx.wake_self();
    }

    #[inline]
    fn receive(&mut self, cx: &Cx<'_>) -> io::Result<Datagram> {
        let mut buffer = self.pool.acquire(cx);
        let mut from = RawAddr::empty();
        let room = &mut buffer.data()[..self.mtu as usize];
        let result = if self.wants.time {
            let from = self.wants.sender.then_some(&mut from);
            recv_timestamped(self.udp.fd(), room, from)
        } else {
            recv_from(self.udp.fd(), room, &mut from)
        };
        match result {
            Ok(received) => {
                self.load.received(1);
                Ok(Datagram {
                    arrival_ns: self.arrival_ns(cx, &received),
                    buffer,
                    received,
                    from,
                })
            }
            Err(error) => {
                buffer.release();
                Err(error)
            }
        }
    }

    #[inline]
    fn arrival_ns(&self, cx: &Cx<'_>, received: &Received) -> u64 {
        received
            .timestamp_ns
            .map_or_else(|| cx.now_ns(), |at_ns| self.clock.monotonic_ns(cx, at_ns))
    }

    /// Reads available datagrams, up to a batch, in one call.
    fn read_batch(&mut self, cx: &Cx<'_>, size: usize) -> Read {
        let batch = cx
            .local()
            .shard()
            .extension(|_| SharedBatch(Mutex::new(RecvBatch::new(RECV_BATCH))));
        let mut batch = batch.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffers: [Option<PoolBuffer>; RECV_BATCH] =
            std::array::from_fn(|i| (i < size).then(|| self.pool.acquire(cx)));
        let result = {
            let mut rest = buffers.iter_mut();
            let mtu = self.mtu as usize;
            let mut rooms: [IoSliceMut<'_>; RECV_BATCH] =
                std::array::from_fn(|_| match rest.next().and_then(Option::as_mut) {
                    Some(buffer) => IoSliceMut::new(&mut buffer.data()[..mtu]),
                    None => IoSliceMut::new(&mut []),
                });
            batch.recv(self.udp.fd(), &mut rooms[..size])
        };
        let count = *result.as_ref().unwrap_or(&0);
        self.load.received(count);
        for (i, slot) in buffers.iter_mut().enumerate() {
            let Some(buffer) = slot.take() else { continue };
            if i >= count {
                buffer.release();
                continue;
            }
            let (received, from) = batch.received(i);
            let arrival_ns = self.arrival_ns(cx, &received);
            self.read.push_back(Ok(Datagram {
                buffer,
                received,
                arrival_ns,
                from: *from,
            }));
        }
        match result {
            Ok(count) => {
                if count < size {
                    cx.expect_no_more();
                } else {
                    self.expect_more(cx);
                }
                Read::Again
            }
            Err(error) => self.failed(cx, error),
        }
    }

    fn failed(&mut self, cx: &Cx<'_>, error: io::Error) -> Read {
        match error.kind() {
            ErrorKind::WouldBlock => {
                cx.expect_no_more();
                Read::Idle
            }
            ErrorKind::Interrupted => {
                self.may_receive = true;
                Read::Again
            }
            // This is the ICMP error for an earlier datagram of this socket, or a shortage of memory. A source continues after
            // both.
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::OutOfMemory => Read::NetworkError,
            _ if is_transient(&error) => Read::NetworkError,
            _ => Read::Failed(error),
        }
    }
}

/// The receive pools of one context thread, by size.
struct Pools(Mutex<Vec<Arc<PoolOwner>>>);

impl Pools {
    fn new(_shard: &Shard) -> Self {
        Pools(Mutex::new(Vec::new()))
    }

    fn pool(&self, shard: &Shard, mtu: usize) -> Arc<PoolOwner> {
        let capacity = mtu.max(1).next_multiple_of(POOL_STEP);
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.iter().find(|pool| pool.capacity() == capacity) {
            return pool.clone();
        }
        let pool = Arc::new(PoolOwner::new(shard, capacity));
        pools.push(pool.clone());
        pool
    }
}

/// Returns the pool that all readers on this thread share whose buffers have about `capacity` bytes.
pub fn pool_of(shard: &Shard, capacity: usize) -> Arc<PoolOwner> {
    shard.extension(Pools::new).pool(shard, capacity)
}

/// The receive batch of one context thread.
struct SharedBatch(Mutex<RecvBatch>);

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::EMSGSIZE | libc::EPROTO | libc::ENOPROTOOPT | libc::EHOSTDOWN)
    )
}

/// Elements share a pool if their MTU rounds to the same multiple of this.
const POOL_STEP: usize = 512;
