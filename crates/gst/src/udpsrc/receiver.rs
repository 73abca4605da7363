//! The receiving half of `ts-udpsrc`: lives on the context's thread.
//!
//! One receive call per ready socket and pass. A socket that had several packets in one slice is read in
//! batches from then on, until it has calmed down.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{
    Cx, Interest, Precision, RawAddr, Ready, Received, RecvBatch, Shard, prefetch, recv_from,
    recv_from_timestamped,
};

use super::settings::{Settings, SocketTimestamp};
use crate::kit::pool::{PoolBuffer, PoolOwner};
use crate::kit::socket::{GioAddress, Udp};
use crate::kit::source::{Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::RunningTime;

/// Laid out by hand: a packet touches the first fields only, and thousands of receivers take turns in the cache.
#[repr(C)]
pub(super) struct Receiver {
    udp: Udp,
    pool: Arc<PoolOwner>,
    stats: Arc<Stats>,
    time: RunningTime,
    last_packet_ns: u64,
    load: Load,
    mtu: u32,
    skip: u32,
    /// A receive is allowed in this pass.
    may_receive: bool,
    timestamped: bool,
    do_timestamp: bool,
    retrieve_sender: bool,
    senders: Senders,
    received: VecDeque<gst::Buffer>,
    element: glib::WeakRef<gst::Element>,
    caps: Option<gst::Caps>,
    timeout_ns: u64,
}

impl Receiver {
    pub(super) fn new(
        element: &gst::Element,
        shard: &Shard,
        udp: Udp,
        settings: &Settings,
        stats: Arc<Stats>,
    ) -> Self {
        Receiver {
            element: element.downgrade(),
            udp,
            pool: shard
                .extension(Pools::new)
                .pool(shard, settings.buffer_bytes() as usize),
            mtu: settings.buffer_bytes(),
            skip: settings.skip_first_bytes.unsigned_abs(),
            timestamped: settings.socket_timestamp == SocketTimestamp::Realtime,
            do_timestamp: settings.do_timestamp,
            time: RunningTime::default(),
            may_receive: false,
            load: Load {
                unthrottled: shard.wait().is_zero(),
                ..Load::default()
            },
            received: VecDeque::new(),
            retrieve_sender: settings.retrieve_sender_address,
            senders: Senders::new(shard),
            caps: settings.caps.clone(),
            timeout_ns: settings.timeout_ns,
            last_packet_ns: 0,
            stats,
        }
    }

    fn receive_one(&mut self, cx: &Cx<'_>) -> Produced {
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
                match self.finish(cx, buffer, &received, &from) {
                    Some(buffer) => Produced::Buffer(buffer),
                    None => Produced::Again,
                }
            }
            Err(error) => {
                buffer.release();
                self.receive_failed(&error)
            }
        }
    }

    /// Reads what is there, up to a batch, in one call.
    fn receive_batch(&mut self, cx: &Cx<'_>, size: usize) -> Produced {
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
            if let Some(buffer) = self.finish(cx, buffer, &received, from) {
                self.received.push_back(buffer);
            }
        }
        match result {
            Ok(_) => Produced::Again,
            Err(error) => self.receive_failed(&error),
        }
    }

    /// Makes a GStreamer buffer of what was received. `None`: nothing is left of it.
    fn finish(
        &mut self,
        cx: &Cx<'_>,
        buffer: PoolBuffer,
        received: &Received,
        from: &RawAddr,
    ) -> Option<gst::Buffer> {
        self.stats.packets.add(1);
        self.stats.bytes.add(received.len as u64);
        cx.count_packets(1);
        self.last_packet_ns = cx.now_ns();
        if received.len < self.skip as usize {
            self.stats.too_short.add(1);
            buffer.release();
            return None;
        }
        let time = if self.do_timestamp {
            self.time.at(cx.now_ns())
        } else {
            None
        };
        let sender = if self.retrieve_sender {
            self.senders.of(from)
        } else {
            None
        };
        let mut buffer = buffer.finish(self.skip as usize, received.len, time, sender);
        if received.datagram_len > received.len {
            self.truncated(&mut buffer, received.datagram_len);
        }
        if let Some(timestamp_ns) = received.timestamp_ns {
            add_timestamp(&mut buffer, timestamp_ns);
        }
        Some(buffer)
    }

    /// Never silently: flagged on the buffer, counted, and said once for each power of two.
    fn truncated(&self, buffer: &mut gst::Buffer, datagram_len: usize) {
        let count = self.stats.truncated.add(1);
        buffer.make_mut().set_flags(gst::BufferFlags::CORRUPTED);
        if count.is_power_of_two()
            && let Some(element) = self.element.upgrade()
        {
            gst::element_warning!(
                element,
                gst::ResourceError::Read,
                (
                    "Packets are larger than mtu={} and were cut: {count} so far, this one had {datagram_len} bytes. Raise the mtu property.",
                    self.mtu
                )
            );
        }
    }

    fn receive_failed(&mut self, error: &io::Error) -> Produced {
        match error.kind() {
            ErrorKind::WouldBlock => Produced::Idle,
            ErrorKind::Interrupted => {
                self.may_receive = true;
                Produced::Again
            }
            // The ICMP answer to something this socket sent, or a shortage: never the end of a source.
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::OutOfMemory => {
                self.stats.socket_errors.add(1);
                Produced::Again
            }
            _ if is_transient(error) => {
                self.stats.socket_errors.add(1);
                Produced::Again
            }
            _ => Produced::Failed(gst::error_msg!(
                gst::ResourceError::Read,
                ["cannot receive: {error}"]
            )),
        }
    }

    fn check_timeout(&mut self, cx: &Cx<'_>) {
        if self.timeout_ns == 0 {
            return;
        }
        let due_ns = self.last_packet_ns.saturating_add(self.timeout_ns);
        if cx.now_ns() < due_ns {
            cx.set_timer(due_ns, Precision::NotBefore);
            return;
        }
        if let Some(element) = self.element.upgrade() {
            let structure = gst::Structure::builder("GstUDPSrcTimeout")
                .field("timeout", self.timeout_ns)
                .build();
            let message = gst::message::Element::builder(structure)
                .src(&element)
                .build();
            let _ = element.post_message(message);
        }
        cx.set_timer(
            cx.now_ns().saturating_add(self.timeout_ns),
            Precision::NotBefore,
        );
    }
}

impl Producer for Receiver {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.register(self.udp.fd(), 0, Interest::Read)
            .map_err(|error| {
                gst::error_msg!(
                    gst::ResourceError::OpenRead,
                    ["cannot watch the socket: {error} (is it used twice in one context?)"]
                )
            })?;
        if self.timeout_ns > 0 {
            self.last_packet_ns = cx.now_ns();
            cx.set_timer(
                cx.now_ns().saturating_add(self.timeout_ns),
                Precision::NotBefore,
            );
        }
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        cx.deregister(self.udp.fd());
        cx.clear_timer();
    }

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    #[inline]
    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        match ready {
            Ready::Io(_) => {
                self.may_receive = true;
                self.load.pass(cx.local().slice());
            }
            Ready::Timer => self.check_timeout(cx),
            Ready::Woken => {}
        }
    }

    #[inline]
    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if let Some(buffer) = self.received.pop_front() {
            return Produced::Buffer(buffer);
        }
        if !std::mem::take(&mut self.may_receive) {
            return Produced::Idle;
        }
        match self.load.batch() {
            Some(size) if !self.timestamped => self.receive_batch(cx, size),
            _ => self.receive_one(cx),
        }
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(Arc::as_ptr(&self.stats), 1);
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let Some(element) = self.element.upgrade() else {
            return Vec::new();
        };
        let stream_id = pad.create_stream_id(&element, None);
        let start = gst::event::StreamStart::builder(&stream_id)
            .group_id(gst::GroupId::next())
            .build();
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        let mut events = vec![start];
        events.extend(
            self.negotiated_caps(pad)
                .as_ref()
                .map(gst::event::Caps::new),
        );
        events.push(gst::event::Segment::new(&segment));
        events
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        self.received.clear();
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}

impl Receiver {
    /// The `caps` property narrowed to what downstream takes, and fixed: RTP caps that leave the payload type
    /// open, for one, get that of the depayloader. Caps that downstream will refuse go out all the same: the
    /// refusal says why.
    fn negotiated_caps(&self, pad: &gst::Pad) -> Option<gst::Caps> {
        let own = self.caps.clone()?;
        if own.is_empty() || own.is_any() {
            return None;
        }
        let mut common = pad.peer_query_caps(Some(&own)).intersect(&own);
        if common.is_empty() {
            common = own;
        }
        common.fixate();
        Some(common)
    }

    /// The `caps` property changed. What tells downstream, if the stream is open already.
    pub(super) fn set_caps(
        &mut self,
        caps: Option<gst::Caps>,
        pad: &gst::Pad,
    ) -> Option<gst::Event> {
        self.caps = caps;
        self.negotiated_caps(pad)
            .as_ref()
            .map(gst::event::Caps::new)
    }
}

/// How many packets a socket had in its last slice, and so how many to ask for at once.
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

    /// Datagrams to ask for in one call, if a batch is worth it.
    #[inline]
    fn batch(&self) -> Option<usize> {
        // One more than expected, so that the call itself finds out that nothing is left.
        let expected = usize::from(self.expected);
        (expected >= BATCH_FROM).then(|| (expected + 1).min(BATCH))
    }
}

/// The sender of the last packet as GStreamer wants it, so that a packet costs no new object.
struct Senders {
    raw: RawAddr,
    last: Option<GioAddress>,
    of_shard: Arc<Addresses>,
}

impl Senders {
    fn new(shard: &Shard) -> Self {
        Senders {
            raw: RawAddr::empty(),
            last: None,
            of_shard: shard.extension(|_| Addresses::default()),
        }
    }

    #[inline]
    fn of(&mut self, from: &RawAddr) -> Option<&gio::SocketAddress> {
        if self.raw != *from {
            self.raw = *from;
            self.last = self.of_shard.get(from);
        }
        self.last.as_ref().map(GioAddress::get)
    }
}

/// The addresses that sources of one context thread have seen. One object for each, however many streams come
/// from there: then its reference count stays in the cache, too.
#[derive(Default)]
struct Addresses(Mutex<HashMap<SocketAddr, GioAddress>>);

impl Addresses {
    #[cold]
    fn get(&self, raw: &RawAddr) -> Option<GioAddress> {
        let address = raw.to_socket_addr()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ADDRESSES_MAX {
            known.clear();
        }
        Some(
            known
                .entry(address)
                .or_insert_with(|| GioAddress::new(address))
                .clone(),
        )
    }
}

/// What a source has seen; written by the context's thread, read by anyone.
#[derive(Debug, Default)]
pub(super) struct Stats {
    packets: Single,
    bytes: Single,
    truncated: Single,
    too_short: Single,
    socket_errors: Single,
}

impl Stats {
    pub(super) fn structure(&self) -> gst::Structure {
        gst::Structure::builder("application/x-ts-udpsrc-stats")
            .field("packets-received", self.packets.get())
            .field("bytes-received", self.bytes.get())
            .field("packets-truncated", self.truncated.get())
            .field("packets-too-short", self.too_short.get())
            .field("socket-errors", self.socket_errors.get())
            .build()
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

/// The receive batch of one context thread.
struct SharedBatch(Mutex<RecvBatch>);

fn add_timestamp(buffer: &mut gst::Buffer, timestamp_ns: u64) {
    use std::sync::LazyLock;
    static UNIX: LazyLock<gst::Caps> =
        LazyLock::new(|| gst::Caps::new_empty_simple("timestamp/x-unix"));
    gst::ReferenceTimestampMeta::add(
        buffer.make_mut(),
        &UNIX,
        gst::ClockTime::from_nseconds(timestamp_ns),
        gst::ClockTime::NONE,
    );
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::EMSGSIZE | libc::EPROTO | libc::ENOPROTOOPT | libc::EHOSTDOWN)
    )
}

/// Datagrams one call reads from a busy socket.
const BATCH: usize = 32;
/// Packets in a slice from which on a batch is cheaper than single receives.
const BATCH_FROM: usize = 4;
/// Passes in a row after which a socket of a context without throttling counts as busy.
const STREAK_BUSY: u16 = 8;
/// Addresses that a context thread remembers: all peers of a large gateway. A scan of the Internet makes it
/// start anew, not grow.
const ADDRESSES_MAX: usize = 8192;
/// Pools are shared by elements whose MTU rounds to the same multiple of this.
const POOL_STEP: usize = 512;
