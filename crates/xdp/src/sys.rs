//! System calls and the memory shared with the kernel, each behind a safe function. This is the only `unsafe` code of the crate.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Kind of a table (BPF map) in the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    /// A hash table, which allocates rows when they are needed.
    Hash,
    /// A table of AF_XDP sockets.
    Rings,
}

/// Creates a table with room for `rows` rows.
pub(crate) fn make_table(
    kind: Table,
    key_bytes: u32,
    value_bytes: u32,
    rows: u32,
) -> io::Result<OwnedFd> {
    let (map_type, flags) = match kind {
        Table::Hash => (BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC),
        Table::Rings => (BPF_MAP_TYPE_XSKMAP, 0),
    };
    bpf_descriptor(
        BPF_MAP_CREATE,
        &[map_type, key_bytes, value_bytes, rows, flags],
    )
}

/// Writes a row. The slices must have the lengths with which the table was created.
pub(crate) fn write_row(table: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attributes = Row::new(table, key);
    attributes.value = value.as_ptr() as u64;
    bpf(BPF_MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Removes a row.
pub(crate) fn remove_row(table: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    bpf(BPF_MAP_DELETE_ELEM, &Row::new(table, key)).map(drop)
}

#[repr(C)]
struct Row {
    table: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Row {
    fn new(table: BorrowedFd<'_>, key: &[u8]) -> Row {
        Row {
            table: table.as_raw_fd() as u32,
            padding: 0,
            key: key.as_ptr() as u64,
            value: 0,
            flags: 0,
        }
    }
}

/// Loads a program for frames into the kernel. The error includes the message of the kernel's verifier.
pub(crate) fn load_program(code: &[u64]) -> Result<OwnedFd, (io::Error, String)> {
    #[repr(C)]
    struct Program {
        kind: u32,
        instructions: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let mut log = vec![0u8; LOG_BYTES];
    let mut attributes = Program {
        kind: BPF_PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"threadbare_rtp\0\0",
    };
    let refused = match bpf(BPF_PROG_LOAD, &attributes) {
        Ok(descriptor) => return Ok(own(descriptor)),
        Err(error) => error,
    };
    attributes.log_level = 1;
    attributes.log_bytes = LOG_BYTES as u32;
    attributes.log = log.as_mut_ptr() as u64;
    if let Ok(descriptor) = bpf(BPF_PROG_LOAD, &attributes) {
        return Ok(own(descriptor));
    }
    let said = CStr::from_bytes_until_nul(&log)
        .map(|said| said.to_string_lossy().into_owned())
        .unwrap_or_default();
    Err((refused, said))
}

/// Makes the kernel run a program for each frame of a device, until the descriptor is closed.
pub(crate) fn attach(program: BorrowedFd<'_>, device: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    bpf_descriptor(BPF_LINK_CREATE, &[program, device, BPF_XDP, flags])
}

fn bpf_descriptor<const N: usize>(command: i32, attributes: &[u32; N]) -> io::Result<OwnedFd> {
    bpf(command, attributes).map(own)
}

fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: only called with a descriptor that the kernel has just returned as a new one of this process.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Calls `bpf(2)`. `A` is the beginning of `union bpf_attr`, with the fields that the command reads. The fields after it count
/// as 0.
fn bpf<A>(command: i32, attributes: &A) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes of a live value. The value contains addresses of slices that the caller
    // borrows. Their lengths are next to them, or are the lengths with which the table was created. The address of the log
    // is that of a buffer which the caller owns, and to which only this call writes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<A>(),
        )
    };
    check(result as i32)
}

/// Returns the MTU of a device, in bytes.
pub(crate) fn mtu_of(socket: BorrowedFd<'_>, device: &CStr) -> io::Result<usize> {
    let request = ask_device(socket, device, libc::SIOCGIFMTU)?;
    // SAFETY: the command has filled in this field of the union, which is a number.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
}

/// Returns the address of a device whose frames have Ethernet headers; `None` for a tunnel or the loopback device.
pub(crate) fn ethernet_of(socket: BorrowedFd<'_>, device: &CStr) -> io::Result<Option<[u8; 6]>> {
    let request = ask_device(socket, device, libc::SIOCGIFHWADDR)?;
    // SAFETY: the command has filled in this field of the union, which is a plain structure of numbers.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let is_ethernet = address.sa_family == libc::ARPHRD_ETHER && device != c"lo";
    let byte = |at: usize| address.sa_data[at] as u8;
    Ok(is_ethernet.then(|| std::array::from_fn(byte)))
}

fn ask_device(
    socket: BorrowedFd<'_>,
    device: &CStr,
    command: libc::Ioctl,
) -> io::Result<libc::ifreq> {
    // SAFETY: a plain C structure, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0, as the end of the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is live, and has the form that both commands in use require.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut request) })?;
    Ok(request)
}

/// Opens an AF_XDP socket, which is not bound yet.
pub(crate) fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let descriptor =
        check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    Ok(own(descriptor))
}

/// Registers memory for frames of `chunk_bytes` each at a socket. The memory must outlive this socket and all sockets that
/// share it.
pub(crate) fn register_memory(
    socket: BorrowedFd<'_>,
    memory: &Memory,
    chunk_bytes: u32,
) -> io::Result<()> {
    // SAFETY: a plain C structure, for which all zeros are valid.
    let mut region: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    region.addr = memory.0.start.as_ptr() as u64;
    region.len = memory.0.bytes as u64;
    region.chunk_size = chunk_bytes;
    set_option(socket, libc::XDP_UMEM_REG, &region)
}

/// Kind of a socket's ring.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RingKind {
    Receive,
    Send,
    Fill,
    Completion,
}

/// Creates a ring with room for `entries`, a power of two, and maps it.
pub(crate) fn make_ring<T: Copy>(
    socket: BorrowedFd<'_>,
    kind: RingKind,
    entries: u32,
) -> io::Result<Ring<T>> {
    let (option, page) = match kind {
        RingKind::Receive => (libc::XDP_RX_RING, libc::XDP_PGOFF_RX_RING),
        RingKind::Send => (libc::XDP_TX_RING, libc::XDP_PGOFF_TX_RING),
        RingKind::Fill => (
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_PGOFF_FILL_RING as i64,
        ),
        RingKind::Completion => (
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
        ),
    };
    set_option(socket, option, &entries)?;
    // SAFETY: a plain C structure, for which all zeros are valid.
    let mut all: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(socket, libc::XDP_MMAP_OFFSETS, &mut all)?;
    let places = match kind {
        RingKind::Receive => all.rx,
        RingKind::Send => all.tx,
        RingKind::Fill => all.fr,
        RingKind::Completion => all.cr,
    };
    let bytes = places.desc as usize + entries as usize * size_of::<T>();
    let map = Map::new(bytes, Some((socket, page)))?;
    Ring::new(map, places, entries)
}

/// Binds a socket to a queue of a device. If `of` is given, the socket shares the memory of `of`.
pub(crate) fn bind_xdp(
    socket: BorrowedFd<'_>,
    device: u32,
    queue: u32,
    of: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: match of {
            Some(_) => libc::XDP_SHARED_UMEM,
            None => libc::XDP_COPY,
        },
        sxdp_ifindex: device,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: of.map_or(0, |of| of.as_raw_fd() as u32),
    };
    let bytes = size_of::<libc::sockaddr_xdp>() as u32;
    // SAFETY: the kernel reads `bytes` bytes of a live local.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) }).map(drop)
}

/// Makes the kernel send the frames in a socket's send ring.
pub(crate) fn kick(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no memory is passed.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            std::ptr::null(),
            0,
            flags,
            std::ptr::null(),
            0,
        )
    };
    check(result as i32).map(drop)
}

/// Returns the number of received datagrams for which a socket's rings had no room.
pub(crate) fn drops_of(socket: BorrowedFd<'_>) -> u64 {
    // SAFETY: a plain C structure, for which all zeros are valid.
    let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    match get_option(socket, libc::XDP_STATISTICS, &mut statistics) {
        Ok(()) => statistics.rx_dropped + statistics.rx_ring_full,
        Err(_) => 0,
    }
}

/// Sets an option of an AF_XDP socket. `T` is the type of its value, a plain C structure or number.
fn set_option<T>(socket: BorrowedFd<'_>, option: i32, value: &T) -> io::Result<()> {
    let (fd, bytes) = (socket.as_raw_fd(), size_of::<T>() as u32);
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads at most `bytes` bytes of a live value. Of the options used here, only XDP_UMEM_REG contains an
    // address: that of the mapping of a `Memory`.
    check(unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, value, bytes) }).map(drop)
}

/// Reads an option of an AF_XDP socket into `value`. `T` is the type of the option, a plain C structure of numbers.
fn get_option<T>(socket: BorrowedFd<'_>, option: i32, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as u32;
    let fd = socket.as_raw_fd();
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `bytes` bytes into a live value, for which every bit pattern is valid.
    check(unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, value, &raw mut bytes) }).map(drop)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// A memory mapping, which is removed on drop.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value, and any thread may use and remove it. `Ring` and `Memory` control how its bytes
// are shared with the kernel.
unsafe impl Send for Map {}
// SAFETY: as above. Through a shared reference, only `Memory` and `Ring::word` access the bytes. Their own comments say why
// this is sound.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a ring of a socket, or new memory.
    fn new(bytes: usize, of: Option<(BorrowedFd<'_>, i64)>) -> io::Result<Map> {
        let (flags, fd, offset) = match of {
            Some((socket, offset)) => (libc::MAP_SHARED, socket.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                flags | libc::MAP_POPULATE,
                fd,
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Map { start, bytes })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `mmap` created this mapping with this length. All references to its bytes borrow this value. The kernel has
        // its own references to rings and to registered memory.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory for frames, divided into chunks of [`CHUNK_BYTES`]. A chunk belongs to the holder of its [`Chunk`]: a thread or a
/// ring. The kernel may read and write a chunk that is in a ring.
#[derive(Debug)]
pub(crate) struct Memory(Map);

/// The exclusive right to use one chunk of a [`Memory`].
#[derive(Debug)]
pub(crate) struct Chunk(u64);

/// Size of a chunk in bytes: the minimum that the kernel allows. The kernel reserves 256 bytes in each chunk with a received
/// frame.
pub(crate) const CHUNK_BYTES: usize = 2048;

impl Memory {
    /// Creates memory, and the rights to its chunks.
    pub(crate) fn new(chunks: usize) -> io::Result<(Memory, impl Iterator<Item = Chunk>)> {
        let map = Map::new(chunks * CHUNK_BYTES, None)?;
        let rights = (0..chunks).map(|i| Chunk((i * CHUNK_BYTES) as u64));
        Ok((Memory(map), rights))
    }

    /// Returns `len` bytes of a chunk from `offset` on, or fewer if the chunk ends before.
    #[inline]
    pub(crate) fn bytes(&self, chunk: &Chunk, offset: usize, len: usize) -> &[u8] {
        let offset = offset.min(CHUNK_BYTES);
        let len = len.min(CHUNK_BYTES - offset);
        // SAFETY: the chunk is within the mapping, as `Memory::new` and `Memory::received` ensure. It is a chunk of this
        // memory, as both are in one `Queue`. The range is within the chunk. No other code writes to it at the same time: the
        // right to the chunk is borrowed here, so no ring has it. The memory was initialised with zeros.
        unsafe {
            std::slice::from_raw_parts(self.0.start.as_ptr().add(chunk.0 as usize + offset), len)
        }
    }

    /// Returns all bytes of a chunk.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The chunk is borrowed exclusively for the same lifetime.
    pub(crate) fn bytes_mut<'a>(&'a self, chunk: &'a mut Chunk) -> &'a mut [u8] {
        // SAFETY: as in `bytes`. In addition, no other code reads at the same time, because the chunk is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.start.as_ptr().add(chunk.0 as usize), CHUNK_BYTES)
        }
    }

    /// Returns the address of a frame, for prefetching. It must not be dereferenced.
    #[inline]
    pub(crate) fn place_of(&self, address: u64) -> *const u8 {
        self.0.start.as_ptr().wrapping_add(address as usize)
    }

    /// Returns the chunk at an address that came from a ring, and the position of the frame in that chunk. Returns `None` if
    /// the address is not in this memory.
    #[inline]
    fn received(&self, address: u64) -> Option<(Chunk, usize)> {
        let offset = address % CHUNK_BYTES as u64;
        let start = address - offset;
        (start < self.0.bytes as u64).then_some((Chunk(start), offset as usize))
    }
}

/// A ring between this process and the kernel: one side adds entries (the producer), the other removes them (the consumer).
#[derive(Debug)]
pub(crate) struct Ring<T> {
    map: Map,
    /// Offsets in the mapping: the positions of producer and consumer, and the entries.
    producer: usize,
    consumer: usize,
    entries: usize,
    mask: u32,
    /// Number of the next entry for this side. It may not be published to the kernel yet.
    next: u32,
    /// Position of the other side when it was last read.
    other: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(map: Map, places: libc::xdp_ring_offset, entries: u32) -> io::Result<Ring<T>> {
        let ring = Ring {
            producer: places.producer as usize,
            consumer: places.consumer as usize,
            entries: places.desc as usize,
            mask: entries.wrapping_sub(1),
            next: 0,
            other: 0,
            kind: std::marker::PhantomData,
            map,
        };
        let end = ring.entries + entries as usize * size_of::<T>();
        let words = [ring.producer, ring.consumer];
        let is_sound = entries.is_power_of_two()
            && end <= ring.map.bytes
            && ring.entries.is_multiple_of(align_of::<T>())
            && words
                .iter()
                .all(|at| at.is_multiple_of(4) && at + 4 <= ring.map.bytes);
        if is_sound {
            Ok(ring)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked the offset and alignment. Both sides access these words only atomically.
        unsafe { AtomicU32::from_ptr(self.map.start.as_ptr().add(at).cast()) }
    }

    #[inline]
    fn entry(&self, i: u32) -> *mut T {
        // SAFETY: the mask keeps the entry within the ring. `new` has checked the offset and alignment of the ring.
        unsafe {
            self.map
                .start
                .as_ptr()
                .add(self.entries)
                .cast::<T>()
                .add((i & self.mask) as usize)
        }
    }

    /// As the producer: adds an entry if the ring has room.
    #[inline]
    fn push(&mut self, value: T) -> bool {
        if self.next.wrapping_sub(self.other) > self.mask {
            self.other = self.word(self.consumer).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.other) > self.mask {
                return false;
            }
        }
        // SAFETY: the consumer has released this entry, and has not yet been notified of the new one. Only one thread at a time
        // uses this side, because `self` is borrowed exclusively.
        unsafe { self.entry(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// As the producer: publishes the added entries to the kernel.
    #[inline]
    pub(crate) fn publish(&self) {
        self.word(self.producer).store(self.next, Ordering::Release);
    }

    /// As the producer: returns whether the kernel has taken all published entries.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.word(self.consumer).load(Ordering::Acquire) == self.next
    }

    /// As the consumer: returns the number of available entries.
    #[inline]
    fn ready(&mut self) -> u32 {
        self.other = self.word(self.producer).load(Ordering::Acquire);
        self.other.wrapping_sub(self.next)
    }

    /// As the consumer: returns the entry that is `ahead` entries after the next one.
    #[inline]
    fn peek(&self, ahead: u32) -> Option<T> {
        (self.other.wrapping_sub(self.next) > ahead).then(|| {
            // SAFETY: the producer has published this entry, and writes it again only after this side has released it.
            unsafe { self.entry(self.next.wrapping_add(ahead)).read() }
        })
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        if self.peek(0).is_none() {
            self.ready();
        }
        let value = self.peek(0)?;
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// As the consumer: lets the kernel reuse the popped entries.
    #[inline]
    pub(crate) fn release(&self) {
        self.word(self.consumer).store(self.next, Ordering::Release);
    }
}

impl Ring<u64> {
    /// Passes a chunk to the kernel, or returns it if the ring is full.
    #[inline]
    pub(crate) fn push_chunk(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        if self.push(chunk.0) {
            Ok(())
        } else {
            Err(chunk)
        }
    }

    /// Takes a chunk from the kernel, such as one whose frame has been sent.
    #[inline]
    pub(crate) fn pop_chunk(&mut self, memory: &Memory) -> Option<Chunk> {
        Some(memory.received(self.pop()?)?.0)
    }
}

impl Ring<libc::xdp_desc> {
    /// Passes the first `len` bytes of a chunk to the kernel for sending, or returns the chunk if the ring is full.
    #[inline]
    pub(crate) fn push_frame(&mut self, chunk: Chunk, len: usize) -> Result<(), Chunk> {
        let frame = libc::xdp_desc {
            addr: chunk.0,
            len: len as u32,
            options: 0,
        };
        if self.push(frame) { Ok(()) } else { Err(chunk) }
    }

    /// Returns a received frame: its chunk, its position in that chunk, and its length.
    #[inline]
    pub(crate) fn pop_frame(&mut self, memory: &Memory) -> Option<(Chunk, usize, usize)> {
        let frame = self.pop()?;
        let (chunk, offset) = memory.received(frame.addr)?;
        Some((chunk, offset, frame.len as usize))
    }

    /// Returns the address of a frame that will be popped soon.
    #[inline]
    pub(crate) fn frame_ahead(&self, ahead: u32) -> Option<u64> {
        self.peek(ahead).map(|frame| frame.addr)
    }
}

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// Size of the verifier's log in bytes. The whole log fits, because programs are short. The reason for a refusal is at its end.
const LOG_BYTES: usize = 1 << 16;
