//! System calls, each behind a safe function. Apart from the task queue, this is the only `unsafe` code of the crate.

use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cpus::CpuSet;

/// Restricts the calling thread to these CPUs. The kernel ignores CPUs that do not exist or are not allowed, and refuses only if
/// none is left. Returns the CPUs that the thread may use.
pub(crate) fn restrict_to_cpus(cpus: &CpuSet) -> io::Result<CpuSet> {
    let size = size_of::<CpuSet>();
    // SAFETY: the kernel reads `size` bytes of a bit set of plain words in native order, as in the kernel's own format.
    check(unsafe { libc::sched_setaffinity(0, size, (&raw const *cpus).cast()) })?;
    let mut actual = CpuSet::default();
    // SAFETY: the kernel writes at most `size` bytes of the same format into a live local.
    check(unsafe { libc::sched_getaffinity(0, size, (&raw mut actual).cast()) })?;
    Ok(actual)
}

/// Gives the calling thread this real-time priority (SCHED_FIFO), 1 to 99, so that it runs before all ordinary threads. Threads
/// that it starts are ordinary ones.
pub(crate) fn schedule_first(priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: reads a live local; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &parameters) })
}

/// Returns the time of CLOCK_MONOTONIC in ns. GStreamer's system clock is the same clock.
pub fn clock_now_ns() -> u64 {
    read_clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the lead of the wall clock over CLOCK_MONOTONIC in ns, modulo 2^64. The wall clock is CLOCK_REALTIME, which the kernel
/// uses for receive times.
pub fn wall_clock_ahead_ns() -> u64 {
    let mut best = (u64::MAX, 0);
    // The scheduler may interrupt the thread between two readings; then it reads again.
    for _ in 0..READINGS_MAX {
        let before_ns = clock_now_ns();
        let wall_ns = read_clock_ns(libc::CLOCK_REALTIME);
        let took_ns = clock_now_ns() - before_ns;
        best = best.min((took_ns, wall_ns.wrapping_sub(before_ns)));
        if took_ns < READING_NS_MAX {
            break;
        }
    }
    best.1
}

/// Whether a program keeps the wall clock synchronised with other machines (adjtimex(2): TIME_ERROR means that it is not).
/// Returns `None` if the kernel does not answer, as under some system call filters.
pub fn wall_clock_is_synchronized() -> Option<bool> {
    // SAFETY: a plain C structure of numbers, for which all zeros are valid: a request without changes.
    let mut request: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `request` is a valid timex for the call to read and to fill.
    match unsafe { libc::adjtimex(&mut request) } {
        -1 => None,
        state => Some(state != libc::TIME_ERROR),
    }
}

/// Two clock readings take some 50 ns.
const READING_NS_MAX: u64 = 1_000;
const READINGS_MAX: usize = 3;

/// Returns the time of CLOCK_MONOTONIC at the kernel's last tick. It is up to [`coarse_resolution_ns`] late, at an eighth of the
/// cost of [`clock_now_ns`].
pub(crate) fn clock_coarse_ns() -> u64 {
    read_clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// Returns the interval between changes of [`clock_coarse_ns`], in ns.
pub(crate) fn coarse_resolution_ns() -> u64 {
    let mut time = NO_TIME;
    // SAFETY: `time` is a valid timespec for the call to fill; the clock exists on every Linux.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    as_ns(&time)
}

#[inline]
fn read_clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = NO_TIME;
    // SAFETY: `time` is a valid timespec for the call to fill; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    as_ns(&time)
}

fn as_ns(time: &libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const NO_TIME: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Prefetches `lines` cache lines from `address` on. This is a hint, which never faults, whatever the address is. It does nothing
/// on machines without such an instruction.
#[inline]
pub fn prefetch<T>(address: *const T, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = address.cast::<i8>().wrapping_add(line * CACHE_LINE);
        // SAFETY: PREFETCHT0 is in the x86-64 baseline and does not access memory architecturally.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, lines);
}

/// Size of a cache line in bytes, on all common machines.
pub const CACHE_LINE: usize = 64;

/// A sender's address in the kernel's format, so that two of them can be compared without parsing.
///
/// It has room for IPv4 and IPv6 only, so that an address takes half a cache line: thousands of streams store several each.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawAddr {
    storage: libc::sockaddr_in6,
    len: libc::socklen_t,
}

impl RawAddr {
    /// Returns an empty value: no address.
    pub fn empty() -> Self {
        RawAddr {
            // SAFETY: sockaddr_in6 is plain old data, for which all zeroes are valid (AF_UNSPEC).
            storage: unsafe { std::mem::zeroed() },
            len: 0,
        }
    }

    /// Returns the kernel's bytes: 16 for IPv4, 28 for IPv6, 0 without an address.
    pub fn as_bytes(&self) -> &[u8] {
        let len = (self.len as usize).min(size_of::<libc::sockaddr_in6>());
        // SAFETY: the storage is fully initialised (zeroed in `empty`), `len` is within it, and the slice
        // borrows `self`.
        unsafe { std::slice::from_raw_parts((&raw const self.storage).cast::<u8>(), len) }
    }

    /// Returns the address, if it is an IPv4 or IPv6 address.
    pub fn to_socket_addr(&self) -> Option<SocketAddr> {
        match (i32::from(self.storage.sin6_family), self.as_bytes().len()) {
            (libc::AF_INET, 16..) => {
                // SAFETY: the family is that of sockaddr_in, which is smaller than the storage and no more aligned.
                let v4 = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            (libc::AF_INET6, 28..) => {
                let v6 = &self.storage;
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(address: SocketAddr) -> Self {
        let mut raw = RawAddr::empty();
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: the storage is larger than sockaddr_in and at least as aligned; only this function has it.
                let out = unsafe { &mut *(&raw mut raw.storage).cast::<libc::sockaddr_in>() };
                out.sin_family = libc::AF_INET as libc::sa_family_t;
                out.sin_port = v4.port().to_be();
                out.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let out = &mut raw.storage;
                out.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                out.sin6_port = v6.port().to_be();
                out.sin6_addr.s6_addr = v6.ip().octets();
                out.sin6_flowinfo = v6.flowinfo();
                out.sin6_scope_id = v6.scope_id();
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }
}

/// Sends one datagram without waiting. Fails with `WouldBlock` if the socket's buffer is full.
pub fn send_to(fd: BorrowedFd<'_>, data: &[u8], to: &RawAddr) -> io::Result<usize> {
    // SAFETY: `data` and the address are borrowed for the call, with their true lengths.
    let n = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            data.as_ptr().cast(),
            data.len(),
            SEND_FLAGS,
            (&raw const to.storage).cast(),
            to.len,
        )
    };
    if n < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(n as usize)
    }
}

/// Acts as [`send_to`], for a datagram in several pieces.
pub fn send_vectored_to(
    fd: BorrowedFd<'_>,
    data: &[IoSlice<'_>],
    to: &RawAddr,
) -> io::Result<usize> {
    // SAFETY: msghdr is plain old data, for which all zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw const to.storage).cast_mut().cast();
    header.msg_namelen = to.len;
    header.msg_iov = data.as_ptr().cast_mut().cast();
    header.msg_iovlen = data.len();
    // SAFETY: all memory that `header` points to is borrowed for the call, which only reads it; IoSlice has the layout of iovec
    // by its documentation.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, SEND_FLAGS) };
    if n < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(n as usize)
    }
}

/// Datagrams of one socket for one system call (sendmmsg).
///
/// Push up to [`SEND_BATCH_MAX`] datagrams, then call [`SendBatch::send`] until [`SendBatch::is_empty`]. Each call starts with
/// the first datagram that is not sent yet. A datagram that the system refuses stays the first until [`SendBatch::skip`] drops
/// it.
pub struct SendBatch<'a> {
    headers: [MaybeUninit<libc::mmsghdr>; SEND_BATCH_MAX],
    first: usize,
    end: usize,
    borrowed: PhantomData<&'a [u8]>,
}

/// Maximum number of datagrams in a [`SendBatch`]: enough to share the cost of the system call, and few enough for the stack.
pub const SEND_BATCH_MAX: usize = 32;

impl Default for SendBatch<'_> {
    fn default() -> Self {
        SendBatch {
            headers: [const { MaybeUninit::uninit() }; SEND_BATCH_MAX],
            first: 0,
            end: 0,
            borrowed: PhantomData,
        }
    }
}

impl<'a> SendBatch<'a> {
    /// Adds a datagram. Returns `false` if the batch is full.
    #[must_use]
    pub fn push(&mut self, data: &'a [IoSlice<'a>], to: &'a RawAddr) -> bool {
        let Some(slot) = self.headers.get_mut(self.end) else {
            return false;
        };
        // SAFETY: mmsghdr is plain old data, for which all zeroes are valid.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_name = (&raw const to.storage).cast_mut().cast();
        header.msg_hdr.msg_namelen = to.len;
        header.msg_hdr.msg_iov = data.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = data.len();
        slot.write(header);
        self.end += 1;
        true
    }

    /// Whether all datagrams have been sent.
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Sends without waiting, and returns the number of datagrams sent, at least one. An error concerns the first datagram.
    pub fn send(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let left = &mut self.headers[self.first..self.end];
        // SAFETY: `push` has written these headers. The memory that they point to is borrowed for 'a, and the call only reads it;
        // IoSlice has the layout of iovec by its documentation.
        let n = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                left.as_mut_ptr().cast(),
                left.len() as libc::c_uint,
                SEND_FLAGS as _,
            )
        };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        self.first += n as usize;
        Ok(n as usize)
    }

    /// Drops the first remaining datagram.
    pub fn skip(&mut self) {
        self.first = (self.first + 1).min(self.end);
    }
}

impl std::fmt::Debug for SendBatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBatch")
            .field("left", &(self.end - self.first))
            .finish()
    }
}

/// Removes a socket's peer. A UDP socket then receives from any sender again, and keeps a port that was bound by number
/// (connect(2)).
///
/// # Errors
/// Fails if the descriptor is not a socket.
pub fn disconnect(fd: BorrowedFd<'_>) -> io::Result<()> {
    let nobody = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    let size = size_of_val(&nobody) as libc::socklen_t;
    // SAFETY: passes a live address with its size; the kernel only reads it.
    match unsafe { libc::connect(fd.as_raw_fd(), &raw const nobody, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of packets that the kernel has dropped since the socket was opened, modulo 2^32, because the socket's
/// buffer was full or a checksum was wrong. SO_RXQ_OVFL attaches the same number to each packet; reading it here has no cost per
/// packet.
pub fn kernel_drops(fd: BorrowedFd<'_>) -> u32 {
    memory_counts(fd)[SK_MEMINFO_DROPS]
}

/// Returns the memory of the socket's receive queue in bytes: datagrams and ICMP errors, with the kernel's overhead for each.
pub fn received_memory(fd: BorrowedFd<'_>) -> u32 {
    memory_counts(fd)[SK_MEMINFO_RMEM_ALLOC]
}

/// Returns the fields of `SO_MEMINFO` (socket(7)); zeros if the descriptor is not a socket.
fn memory_counts(fd: BorrowedFd<'_>) -> [u32; SK_MEMINFO_VARS] {
    let mut counts = [0u32; SK_MEMINFO_VARS];
    let mut size = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: passes a live array with its size; the kernel writes at most that much.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut counts).cast(),
            &mut size,
        )
    };
    if result < 0 {
        [0; SK_MEMINFO_VARS]
    } else {
        counts
    }
}

/// The fields of SO_MEMINFO (linux/sock_diag.h).
const SK_MEMINFO_VARS: usize = 9;
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_DROPS: usize = 8;

const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl PartialEq for RawAddr {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl std::fmt::Debug for RawAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_socket_addr().fmt(f)
    }
}

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of the datagram. If it is more than `len`, the datagram was truncated.
    pub datagram_len: usize,
    /// The kernel's receive time, nanoseconds since the epoch (CLOCK_REALTIME), if requested.
    pub timestamp_ns: Option<u64>,
}

/// Receives one datagram without waiting. Fails with `WouldBlock` if the queue is empty.
pub fn recv_from(fd: BorrowedFd<'_>, buf: &mut [u8], from: &mut RawAddr) -> io::Result<Received> {
    from.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // SAFETY: `buf` and `from.storage` are exclusively borrowed and their true sizes are passed.
    let n = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            buf.as_mut_ptr().cast(),
            buf.len(),
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
            (&raw mut from.storage).cast(),
            &mut from.len,
        )
    };
    if n < 0 {
        from.len = 0;
        return Err(io::Error::last_os_error());
    }
    let datagram_len = n as usize;
    Ok(Received {
        len: datagram_len.min(buf.len()),
        datagram_len,
        timestamp_ns: None,
    })
}

/// Acts as [`recv_from`], and also returns the kernel's timestamp if the socket has SO_TIMESTAMPNS on. The sender's address is
/// optional, because it costs time.
pub fn recv_timestamped(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    from: Option<&mut RawAddr>,
) -> io::Result<Received> {
    let mut iov = IoSliceMut::new(buf);
    let mut control = Control::new();
    // SAFETY: msghdr is plain old data, for which all zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    let len = match from {
        Some(RawAddr { storage, len }) => {
            header.msg_name = (&raw mut *storage).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            Some(len)
        }
        None => None,
    };
    header.msg_iov = (&raw mut iov).cast();
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>();
    // SAFETY: all that `header` points to is exclusively borrowed and outlives the call; IoSliceMut has
    // the layout of iovec by its documentation.
    let n = unsafe {
        libc::recvmsg(
            fd.as_raw_fd(),
            &mut header,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
    if let Some(len) = len {
        *len = if n < 0 { 0 } else { header.msg_namelen };
    }
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let datagram_len = n as usize;
    let timestamp_ns = timestamp_of(&header);
    Ok(Received {
        len: datagram_len.min(iov.len()),
        datagram_len,
        timestamp_ns,
    })
}

/// Receives up to a fixed number of datagrams with one system call.
pub struct RecvBatch {
    headers: Vec<libc::mmsghdr>,
    addrs: Vec<RawAddr>,
    controls: Vec<Control>,
    lens: Vec<usize>,
}

impl RecvBatch {
    /// Creates a batch for `capacity` datagrams per call.
    pub fn new(capacity: usize) -> Self {
        RecvBatch {
            // SAFETY: mmsghdr is plain old data, for which all zeroes are valid.
            headers: vec![unsafe { std::mem::zeroed() }; capacity],
            addrs: vec![RawAddr::empty(); capacity],
            controls: (0..capacity).map(|_| Control::new()).collect(),
            lens: vec![0; capacity],
        }
    }

    /// Returns the maximum number of datagrams per call.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Receives available datagrams, one per buffer, without waiting; returns their number. Fails with `WouldBlock` if the queue
    /// is empty.
    pub fn recv(&mut self, fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = bufs.len().min(self.headers.len());
        for (i, buf) in bufs.iter_mut().enumerate().take(count) {
            self.lens[i] = buf.len();
            let header = &mut self.headers[i].msg_hdr;
            header.msg_name = (&raw mut self.addrs[i].storage).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_iov = (buf as *mut IoSliceMut<'_>).cast();
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>();
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the first `count` headers point into `self.addrs`, `self.controls` and `bufs`, which are exclusively borrowed
        // until the call returns. No timeout is passed.
        let n = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        for i in 0..n as usize {
            self.addrs[i].len = self.headers[i].msg_hdr.msg_namelen;
        }
        Ok(n as usize)
    }

    /// Returns the `i`-th datagram of the last call, with the kernel's timestamp if the socket has SO_TIMESTAMPNS on.
    pub fn received(&self, i: usize) -> (Received, &RawAddr) {
        let datagram_len = self.headers[i].msg_len as usize;
        let len = datagram_len.min(self.lens[i]);
        (
            Received {
                len,
                datagram_len,
                timestamp_ns: timestamp_of(&self.headers[i].msg_hdr),
            },
            &self.addrs[i],
        )
    }
}

// SAFETY: the raw pointers in `headers` that lead to the caller's memory are written and used within one `recv` call only. The
// pointers used after it lead into the vectors' own heap blocks, which move along.
unsafe impl Send for RecvBatch {}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch")
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Room for one timestamp message, aligned as cmsghdr needs it.
#[repr(C, align(8))]
struct Control([u8; 32]);

impl Control {
    fn new() -> Self {
        Control([0; 32])
    }
}

fn timestamp_of(header: &libc::msghdr) -> Option<u64> {
    // SAFETY: `header` was filled by a successful recvmsg and its control buffer is alive; the CMSG
    // macros stay within `msg_controllen`.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let kind = ((*message).cmsg_level, (*message).cmsg_type);
            if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                let time = libc::CMSG_DATA(message)
                    .cast::<libc::timespec>()
                    .read_unaligned();
                return Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// A level-triggered epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

/// The ready events, and the number of the registration.
pub(crate) type Event = libc::epoll_event;

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer; the result is checked before use.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Ok(Epoll(owned(fd)?))
    }

    pub(crate) fn add(&self, fd: i32, events: u32, data: u64) -> io::Result<()> {
        let mut event = Event { events, u64: data };
        // SAFETY: `event` is valid for the call, which copies it; a stale `fd` is an error, not a fault.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })
    }

    pub(crate) fn delete(&self, fd: i32) -> io::Result<()> {
        let epoll = self.0.as_raw_fd();
        // SAFETY: the event argument is ignored for DEL; a stale `fd` is an error, not a fault.
        check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) })
    }

    /// Waits for events; `None` waits without limit. An interrupted wait returns no events.
    pub(crate) fn wait<'e>(
        &self,
        events: &'e mut [MaybeUninit<Event>],
        timeout: Option<Duration>,
    ) -> io::Result<&'e [Event]> {
        let epoll = self.0.as_raw_fd();
        let max = events.len() as i32;
        let out = events.as_mut_ptr().cast::<Event>();
        let is_coarse = HAS_NO_PWAIT2.load(Ordering::Relaxed);
        let n = if is_coarse || timeout == Some(Duration::ZERO) {
            // SAFETY: `out` has room for `max` events, exclusively borrowed.
            unsafe { libc::epoll_wait(epoll, out, max, millis(timeout)) }
        } else {
            let time = timeout.map(timespec);
            let time = time
                .as_ref()
                .map_or(std::ptr::null(), |t| t as *const libc::timespec);
            // SAFETY: as above; `time` is null or points to a timespec that outlives the call. The raw system call is used
            // because not every C library has a wrapper.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    epoll,
                    out,
                    max,
                    time,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                ) as i32
            }
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            let is_unknown = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
            if is_unknown && !is_coarse {
                HAS_NO_PWAIT2.store(true, Ordering::Relaxed);
                // This wait returns early; the next one uses `epoll_wait`.
                return Ok(&[]);
            }
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(&[])
            } else {
                Err(error)
            };
        }
        // SAFETY: the kernel wrote the first `n <= max` events.
        Ok(unsafe { std::slice::from_raw_parts(out, n as usize) })
    }
}

/// Whether the kernel lacks `epoll_pwait2`, like Linux before 5.11 and containers that filter system calls. Then time-outs are
/// whole milliseconds.
static HAS_NO_PWAIT2: AtomicBool = AtomicBool::new(false);

/// Converts a time-out to the argument of `epoll_wait`, rounded up; -1 for no limit.
fn millis(timeout: Option<Duration>) -> i32 {
    let rounded = |timeout: Duration| timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
    timeout.map_or(-1, |timeout| rounded(timeout) as i32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Acts as a kernel without `epoll_pwait2`. Other tests of this process may use coarse waits at the same time, which are also
    /// correct.
    #[test]
    fn coarse_waits_end_with_events_and_with_their_time() {
        let epoll = Epoll::new().expect("a descriptor");
        let event = EventFd::new().expect("a descriptor");
        let mut room = [MaybeUninit::uninit(); 2];
        HAS_NO_PWAIT2.store(true, Ordering::Relaxed);
        let moment = Some(Duration::from_nanos(1));
        epoll
            .add(event.raw(), libc::EPOLLIN as u32, 7)
            .expect("watched");
        assert_eq!(epoll.wait(&mut room, moment).expect("waited").len(), 0);
        event.notify();
        let events = epoll.wait(&mut room, None).expect("waited");
        let data = events.first().map(|event| event.u64);
        HAS_NO_PWAIT2.store(false, Ordering::Relaxed);
        assert_eq!(data, Some(7));
    }

    /// epoll_wait(2): -1 "causes epoll_wait() to block indefinitely".
    #[test]
    fn coarse_waits_are_never_early() {
        assert_eq!(millis(None), -1);
        assert_eq!(millis(Some(Duration::ZERO)), 0);
        assert_eq!(millis(Some(Duration::from_nanos(1))), 1);
        assert_eq!(millis(Some(Duration::from_millis(20))), 20);
        assert_eq!(millis(Some(Duration::MAX)), i32::MAX);
    }
}

/// File descriptor with which other threads interrupt the poller.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer; the result is checked before use.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(EventFd(owned(fd)?))
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub(crate) fn notify(&self) {
        let one = 1u64;
        // SAFETY: writes the eight bytes of a live local. It fails only if the counter is full, and then it is readable already.
        unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn drain(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into a live local; nothing to read is fine (non-blocking).
        unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
    }

    /// Sleeps until notified or for `timeout`. Returns `true` if a notification must be drained.
    pub(crate) fn sleep(&self, timeout: Duration) -> bool {
        let mut fd = libc::pollfd {
            fd: self.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        let time = timespec(timeout);
        // SAFETY: one pollfd and one timespec, both live locals; no signal mask.
        unsafe { libc::ppoll(&mut fd, 1, &time, std::ptr::null()) > 0 }
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd.min(0))?;
    // SAFETY: `fd` is a descriptor that the kernel has just returned to this code, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;
