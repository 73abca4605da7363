//! Lanes. A lane consists of one thread's rings of all devices.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use threadbare_runtime::prefetch;

use crate::device::{Devices, OpenError, Queue, Xdp, lock};
use crate::frame::{self, HEADERS_BYTES_MAX, Way};
use crate::program::NOTE_BYTES;
use crate::sys::{self, Chunk, Ring, drops_of};

/// The rings of one thread. When a datagram is read, it is copied out of a ring's memory; when it is sent, it is copied into it.
pub struct Lane {
    devices: Arc<Devices>,
    number: u32,
    /// The rings of each queue, ordered by device and queue.
    ends: Vec<End>,
    /// For each device, the index of its first queue in `ends`.
    firsts: Vec<usize>,
    /// Index of the queue that is read next.
    next: usize,
}

/// This lane's rings of one queue.
struct End {
    queue: Arc<Queue>,
    device: u16,
    number: u16,
    /// Index of the device in the system.
    index: u32,
    mtu: usize,
    socket: OwnedFd,
    received: Ring<libc::xdp_desc>,
    sending: Ring<libc::xdp_desc>,
    /// Number of frames in `sending` that are not published to the kernel yet.
    unsent: u32,
    /// Chunks that were read and will be returned to the kernel.
    spent: Vec<Chunk>,
    /// Free chunks for sending.
    idle: Vec<Chunk>,
}

/// Description of a received datagram. Its bytes are elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Key of the port.
    pub key: u64,
    /// Arrival time, ns of CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Path back to the sender.
    pub way: Way,
    /// Number of bytes that were copied.
    pub len: usize,
    /// Number of bytes of the whole datagram.
    pub datagram_len: usize,
}

impl Xdp {
    /// Creates a lane with rings of all devices, for one thread.
    ///
    /// # Errors
    /// Fails if too many lanes exist, or if the system has no memory or descriptors.
    pub fn lane(&self) -> Result<Lane, OpenError> {
        let number = self.0.take_lane()?;
        Lane::open(self.0.clone(), number)
    }
}

impl Lane {
    fn open(devices: Arc<Devices>, number: u32) -> Result<Lane, OpenError> {
        // If an error drops the lane below, its number and resources become free.
        let mut lane = Lane {
            devices: devices.clone(),
            number,
            ends: Vec::new(),
            firsts: Vec::new(),
            next: 0,
        };
        for (place, device) in devices.devices.iter().enumerate() {
            lane.firsts.push(lane.ends.len());
            for (number, queue) in device.queues.iter().enumerate() {
                let (socket, received, sending) = device.socket(queue, devices.frames)?;
                device.connect(queue, lane.number, &socket)?;
                lane.ends.push(End {
                    queue: queue.clone(),
                    device: place as u16,
                    number: number as u16,
                    index: device.index,
                    mtu: device.mtu,
                    socket,
                    received,
                    sending,
                    unsent: 0,
                    spent: Vec::with_capacity(SPENT_MAX),
                    idle: Vec::with_capacity(IDLE_MAX),
                });
            }
        }
        Ok(lane)
    }

    /// Returns descriptors that are readable while datagrams are waiting.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().map(|end| end.socket.as_fd())
    }

    /// Directs datagrams for the address `local` to this lane, marked with this key. Returns `false` if no device has the IP
    /// address, or if it is the wildcard address.
    ///
    /// # Errors
    /// Fails if the device's table of ports is full.
    pub fn enroll(&self, local: SocketAddr, key: u64) -> io::Result<bool> {
        self.devices.enroll(local, self.number, key)
    }

    /// Undoes [`Lane::enroll`]. Datagrams that have already arrived may still be read.
    pub fn withdraw(&self, local: SocketAddr) {
        self.devices.withdraw(local);
    }

    /// Reads a datagram into `room`. Adds the number of skipped malformed frames to `malformed`. Returns `None` if no datagram
    /// is waiting, or after many malformed frames in a row.
    #[inline]
    pub fn receive(&mut self, room: &mut [u8], malformed: &mut u64) -> Option<Received> {
        for _ in 0..self.ends.len() {
            if let Some(received) = self.ends[self.next].receive(room, malformed) {
                return Some(received);
            }
            self.next = (self.next + 1) % self.ends.len();
        }
        None
    }

    /// Returns the memory of read datagrams to the kernel.
    #[inline]
    pub fn release(&mut self) {
        for end in &mut self.ends {
            end.release();
        }
    }

    /// Puts a datagram into a send ring. `way`: the path of a datagram that was received from this peer, on which the datagram
    /// leaves. Returns `false` if a socket must send it instead.
    #[inline]
    pub fn send(
        &mut self,
        way: &Way,
        from: SocketAddr,
        to: SocketAddr,
        tos: u8,
        payload: &[u8],
    ) -> bool {
        let first = self.firsts.get(usize::from(way.device));
        let place = first.map(|first| first + usize::from(way.queue));
        match place.and_then(|place| self.ends.get_mut(place)) {
            Some(end) => end.send(way, from, to, tos, payload),
            None => false,
        }
    }

    /// Makes the kernel send the content of the rings.
    #[inline]
    pub fn flush(&mut self) {
        for end in &mut self.ends {
            end.flush();
        }
    }

    /// Returns the number of received datagrams that were dropped since the lane was created, because the rings had no room.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.ends
            .iter()
            .map(|end| drops_of(end.socket.as_fd()))
            .sum()
    }
}

impl End {
    #[inline]
    fn receive(&mut self, room: &mut [u8], malformed: &mut u64) -> Option<Received> {
        for _ in 0..MALFORMED_MAX {
            let memory = &self.queue.memory;
            let (chunk, offset, len) = self.received.pop_frame(memory)?;
            if let Some(address) = self.received.frame_ahead(FRAMES_AHEAD) {
                prefetch(
                    memory.place_of(address).wrapping_sub(NOTE_BYTES),
                    PREFETCH_LINES,
                );
            }
            let read = offset
                .checked_sub(NOTE_BYTES)
                .and_then(|at| self.read(&chunk, at, len, room));
            if self.spent.len() == SPENT_MAX {
                self.release();
            }
            self.spent.push(chunk);
            match read {
                Some(received) => return Some(received),
                None => *malformed += 1,
            }
        }
        None
    }

    #[inline]
    fn read(&self, chunk: &Chunk, at: usize, len: usize, room: &mut [u8]) -> Option<Received> {
        let bytes = self.queue.memory.bytes(chunk, at, NOTE_BYTES + len);
        let (time, rest) = bytes.split_first_chunk::<8>()?;
        let (key, frame) = rest.split_first_chunk::<8>()?;
        let parsed = frame::parse(frame)?;
        let copied = parsed.payload.len().min(room.len());
        room[..copied].copy_from_slice(&parsed.payload[..copied]);
        Some(Received {
            key: u64::from_ne_bytes(*key),
            received_ns: u64::from_ne_bytes(*time),
            from: scoped(parsed.from, self.index),
            way: Way {
                device: self.device,
                queue: self.number,
                ..parsed.way
            },
            len: copied,
            datagram_len: parsed.payload.len(),
        })
    }

    #[inline]
    fn release(&mut self) {
        if self.spent.is_empty() {
            return;
        }
        self.received.release();
        let mut fill = lock(&self.queue.fill);
        for chunk in self.spent.drain(..) {
            // This cannot fail, because the ring has room for all chunks that came out of it.
            let _ = fill.push_chunk(chunk);
        }
        fill.publish();
    }

    #[inline]
    fn send(
        &mut self,
        way: &Way,
        from: SocketAddr,
        to: SocketAddr,
        tos: u8,
        payload: &[u8],
    ) -> bool {
        if payload.len() + HEADERS_BYTES_MAX > self.mtu.min(sys::CHUNK_BYTES) {
            return false;
        }
        let Some(mut chunk) = self.chunk() else {
            return false;
        };
        let room = self.queue.memory.bytes_mut(&mut chunk);
        let Some(len) = frame::write(room, way, from, to, tos, payload) else {
            self.idle.push(chunk);
            return false;
        };
        match self.sending.push_frame(chunk, len) {
            Ok(()) => {
                self.unsent += 1;
                true
            }
            Err(chunk) => {
                self.idle.push(chunk);
                false
            }
        }
    }

    #[inline]
    fn chunk(&mut self) -> Option<Chunk> {
        if self.idle.is_empty() {
            let mut idle = lock(&self.queue.idle);
            while let Some(chunk) = idle.sent.pop_chunk(&self.queue.memory) {
                idle.chunks.push(chunk);
            }
            idle.sent.release();
            let kept = idle.chunks.len().saturating_sub(IDLE_MAX);
            self.idle.extend(idle.chunks.drain(kept..));
        }
        self.idle.pop()
    }

    fn flush(&mut self) {
        if self.unsent == 0 {
            return;
        }
        self.sending.publish();
        // Each call sends a limited number of frames, so repeat the call until the kernel has taken all frames.
        for _ in 0..self.unsent {
            match sys::kick(self.socket.as_fd()) {
                Ok(()) => {}
                Err(error) if is_again(&error) => {}
                // If the device is down, the frames stay in the ring. When the ring is full, the sockets send, and report the
                // reason.
                Err(_) => break,
            }
            if self.sending.is_taken() {
                break;
            }
        }
        self.unsent = 0;
    }
}

/// Returns the address as a socket reports it: a link-local address includes the number of the device (RFC 4007, section 6).
#[inline]
fn scoped(from: SocketAddr, device: u32) -> SocketAddr {
    match from {
        SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() => {
            v6.set_scope_id(device);
            v6.into()
        }
        _ => from,
    }
}

/// Whether the call should be repeated. This includes a device whose queue is full at the moment.
fn is_again(error: &io::Error) -> bool {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    matches!(
        errno,
        Errno::EAGAIN | Errno::EBUSY | Errno::ENOBUFS | Errno::EINTR
    )
}

impl Drop for Lane {
    fn drop(&mut self) {
        for end in &mut self.ends {
            if let Some(device) = self.devices.devices.get(usize::from(end.device)) {
                device.disconnect(&end.queue, self.number);
            }
            // Return the frames that were not read.
            while let Some((chunk, ..)) = end.received.pop_frame(&end.queue.memory) {
                end.spent.push(chunk);
            }
            end.release();
            lock(&end.queue.idle).chunks.append(&mut end.idle);
        }
        self.devices.free_lane(self.number);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("number", &self.number)
            .field("ends", &self.ends.len())
            .finish_non_exhaustive()
    }
}

/// Number of read chunks that a lane collects before it locks the fill ring to return them.
const SPENT_MAX: usize = 64;
/// Maximum number of free chunks that a lane takes from the queue at a time.
const IDLE_MAX: usize = 64;
/// Number of frames between a frame that is read and the one that is prefetched.
const FRAMES_AHEAD: u32 = 2;
/// Number of cache lines to prefetch: enough for the note, the headers and 20 ms of G.711.
const PREFETCH_LINES: usize = 4;
/// Maximum number of consecutive malformed frames of a queue that one call reads, so that a flood of them leaves time for other
/// queues.
const MALFORMED_MAX: usize = 64;
