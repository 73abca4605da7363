//! Receives datagrams from a socket into pooled buffers, for all elements with a socket.
//!
//! One receive call per ready socket and pass. A socket with several packets in one slice is read in batches from then
//! on, until its traffic drops.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

use threadbare_runtime::{
    Cx, RawAddr, Received, RecvBatch, Shard, recv_from, recv_from_timestamped,
};

use super::pool::{PoolBuffer, PoolOwner};
use super::socket::Udp;

/// A received datagram.
pub(crate) struct Datagram {
    pub(crate) buffer: PoolBuffer,
    pub(crate) received: Received,
    pub(crate) from: RawAddr,
}

/// Result of a read.
pub(crate) enum Read {
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
pub(crate) struct Reader {
    udp: Udp,
    pool: Arc<PoolOwner>,
    load: Load,
    mtu: u32,
    /// A receive is allowed in this pass.
    may_receive: bool,
    timestamped: bool,
    read: VecDeque<Datagram>,
}

impl Reader {
    /// For datagrams of up to `mtu` bytes. `timestamped`: each with the kernel's receive time.
    pub(crate) fn new(shard: &Shard, udp: Udp, mtu: u32, timestamped: bool) -> Self {
        Reader {
            udp,
            pool: pool_of(shard, mtu as usize),
            load: Load {
                unthrottled: shard.wait().is_zero(),
                ..Load::default()
            },
            mtu,
            may_receive: false,
            timestamped,
            read: VecDeque::new(),
        }
    }

    /// The same for a socket shared by many streams: always in full batches.
    pub(crate) fn shared(shard: &Shard, udp: Udp, mtu: u32, timestamped: bool) -> Self {
        let mut reader = Reader::new(shard, udp, mtu, timestamped);
        reader.load.always = true;
        reader
    }

    pub(crate) fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Reads this socket from now on, after what has been read.
    pub(crate) fn change_socket(&mut self, udp: Udp) {
        self.udp = udp;
    }

    /// The socket is ready.
    #[inline]
    pub(crate) fn begin(&mut self, cx: &Cx<'_>) {
        self.may_receive = true;
        self.load.pass(cx.local().slice());
    }

    /// Allows one more receive in this pass.
    pub(crate) fn again(&mut self) {
        self.may_receive = true;
    }

    /// Drops datagrams that were read and not taken.
    pub(crate) fn clear(&mut self) {
        self.read.clear();
    }

    /// The next datagram.
    #[inline]
    pub(crate) fn next(&mut self, cx: &Cx<'_>) -> Read {
        if let Some(datagram) = self.read.pop_front() {
            return Read::Datagram(datagram);
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
        let mut buffer = self.pool.acquire(cx);
        let mut from = RawAddr::empty();
        let room = &mut buffer.data()[..self.mtu as usize];
        let result = if self.timestamped {
            recv_from_timestamped(self.udp.fd(), room, &mut from)
        } else {
            recv_from(self.udp.fd(), room, &mut from)
        };
        match result {
            Ok(received) => {
                self.load.received(1);
                Read::Datagram(Datagram {
                    buffer,
                    received,
                    from,
                })
            }
            Err(error) => {
                buffer.release();
                self.failed(error)
            }
        }
    }

    /// Reads available datagrams, up to a batch, in one call.
    fn read_batch(&mut self, cx: &Cx<'_>, size: usize) -> Read {
        let batch = cx
            .local()
            .shard()
            .extension(|_| SharedBatch(Mutex::new(RecvBatch::new(BATCH))));
        let mut batch = batch.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffers: [Option<PoolBuffer>; BATCH] =
            std::array::from_fn(|i| (i < size).then(|| self.pool.acquire(cx)));
        let result = {
            let mut rest = buffers.iter_mut();
            let mtu = self.mtu as usize;
            let mut rooms: [IoSliceMut<'_>; BATCH] =
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
            self.read.push_back(Datagram {
                buffer,
                received,
                from: *from,
            });
        }
        match result {
            Ok(_) => Read::Again,
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: io::Error) -> Read {
        match error.kind() {
            ErrorKind::WouldBlock => Read::Idle,
            ErrorKind::Interrupted => {
                self.may_receive = true;
                Read::Again
            }
            // The ICMP answer to an earlier datagram from this socket, or a shortage: never the end of a source.
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

/// Estimates from a socket's packets in its last slice how many to request at once.
///
/// Below [`BATCH_FROM`] a plain receive per packet is cheaper than a batch (measured). Without throttling a
/// slice is one pass of the loop, so there a socket is busy when it is ready in pass after pass.
#[derive(Debug, Default)]
struct Load {
    /// Truncated: only compared with its neighbours.
    slice: u32,
    in_slice: u16,
    expected: u16,
    streak: u16,
    unthrottled: bool,
    always: bool,
}

impl Load {
    /// The socket is ready, in this slice.
    #[inline]
    fn pass(&mut self, slice: u64) {
        let slice = slice as u32;
        if slice == self.slice {
            return;
        }
        self.expected = self.in_slice;
        if self.unthrottled {
            self.streak = if slice == self.slice.wrapping_add(1) {
                self.streak.saturating_add(1)
            } else {
                0
            };
            if self.streak > STREAK_BUSY {
                self.expected = BATCH as u16;
            }
        }
        self.slice = slice;
        self.in_slice = 0;
    }

    #[inline]
    fn received(&mut self, packets: usize) {
        self.in_slice = self.in_slice.saturating_add(packets as u16);
    }

    /// Datagrams to request in one call, if a batch is worthwhile.
    #[inline]
    fn batch(&self) -> Option<usize> {
        if self.always {
            return Some(BATCH);
        }
        // One more than expected, so that the call itself detects that the socket is empty.
        let expected = usize::from(self.expected);
        (expected >= BATCH_FROM).then(|| (expected + 1).min(BATCH))
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

/// The pool shared by all who fill buffers of about `capacity` bytes on this thread.
pub(crate) fn pool_of(shard: &Shard, capacity: usize) -> Arc<PoolOwner> {
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

/// Datagrams per call on a busy socket.
const BATCH: usize = 64;
/// From this many packets in a slice, a batch is cheaper than single receives.
const BATCH_FROM: usize = 4;
/// After this many passes in a row, a socket of a context without throttling counts as busy.
const STREAK_BUSY: u16 = 8;
/// Elements share a pool if their MTU rounds to the same multiple of this.
const POOL_STEP: usize = 512;
