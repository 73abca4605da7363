//! The system calls and the memory that is shared with the kernel, each behind a safe function. The only `unsafe` of this crate.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A table of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    /// Without rows until they are needed.
    Hash,
    /// Of AF_XDP sockets.
    Rings,
}

/// Makes a table with room for `rows`.
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

/// Writes a row. The slices are as long as the table was made for.
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

/// Gives the kernel a program for frames. With the error comes what the kernel's verifier says.
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

/// Has the kernel run a program for each frame of a device, until the descriptor is closed.
pub(crate) fn attach(program: BorrowedFd<'_>, device: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    bpf_descriptor(BPF_LINK_CREATE, &[program, device, BPF_XDP, flags])
}

fn bpf_descriptor<const N: usize>(command: i32, attributes: &[u32; N]) -> io::Result<OwnedFd> {
    bpf(command, attributes).map(own)
}

fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: only called with what the kernel has just returned as a new descriptor of this process.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// `A` is the beginning of `union bpf_attr` as the command reads it; all behind its size counts as 0.
fn bpf<A>(command: i32, attributes: &A) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes of a live value. The addresses in it are of slices that its caller
    // borrows, of the lengths that stand beside them (or that the table was made with), and the log's, which is written to
    // by this call only and is owned by the caller.
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

/// The longest packet of a device, in bytes.
pub(crate) fn mtu_of(socket: BorrowedFd<'_>, device: &CStr) -> io::Result<usize> {
    let request = ask_device(socket, device, libc::SIOCGIFMTU)?;
    // SAFETY: the command has filled in this field of the union, a number.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
}

/// Whether a device's frames have headers of Ethernet: else it is a tunnel's, or the loopback device.
pub(crate) fn is_ethernet(socket: BorrowedFd<'_>, device: &CStr) -> io::Result<bool> {
    let request = ask_device(socket, device, libc::SIOCGIFHWADDR)?;
    // SAFETY: the command has filled in this field of the union, a plain structure of numbers.
    let kind = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_family;
    Ok(kind == libc::ARPHRD_ETHER && device != c"lo")
}

fn ask_device(
    socket: BorrowedFd<'_>,
    device: &CStr,
    command: libc::Ioctl,
) -> io::Result<libc::ifreq> {
    // SAFETY: a plain C structure, of which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is live, and as both commands in use want it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut request) })?;
    Ok(request)
}

/// An AF_XDP socket, not yet bound.
pub(crate) fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let descriptor =
        check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    Ok(own(descriptor))
}

/// Registers the memory for frames of `chunk_bytes` each. The memory must outlive the socket and those that share with it: see
/// [`Memory`].
pub(crate) fn register_memory(
    socket: BorrowedFd<'_>,
    memory: &Memory,
    chunk_bytes: u32,
) -> io::Result<()> {
    // SAFETY: a plain C structure, of which all zeros is a value.
    let mut region: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    region.addr = memory.0.start.as_ptr() as u64;
    region.len = memory.0.bytes as u64;
    region.chunk_size = chunk_bytes;
    set_option(socket, libc::XDP_UMEM_REG, &region)
}

/// Which ring of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RingKind {
    Receive,
    Send,
    Fill,
    Completion,
}

/// Makes a ring with room for `entries`, a power of two, and maps it.
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
    // SAFETY: a plain C structure, of which all zeros is a value.
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

/// Binds a socket to a queue of a device. `of`: it shares that one's memory.
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

/// Has the kernel send what is in a socket's ring.
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

/// What a socket's rings had no room for.
pub(crate) fn drops_of(socket: BorrowedFd<'_>) -> u64 {
    // SAFETY: a plain C structure, of which all zeros is a value.
    let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    match get_option(socket, libc::XDP_STATISTICS, &mut statistics) {
        Ok(()) => statistics.rx_dropped + statistics.rx_ring_full,
        Err(_) => 0,
    }
}

/// `T` is what the option takes, a plain C structure or number.
fn set_option<T>(socket: BorrowedFd<'_>, option: i32, value: &T) -> io::Result<()> {
    let (fd, bytes) = (socket.as_raw_fd(), size_of::<T>() as u32);
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads at most `bytes` bytes of a live value. Of the options in use here only XDP_UMEM_REG has an
    // address in it, of memory that `Memory` keeps.
    check(unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, value, bytes) }).map(drop)
}

/// `T` is what the option gives, a plain C structure of numbers.
fn get_option<T>(socket: BorrowedFd<'_>, option: i32, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as u32;
    let fd = socket.as_raw_fd();
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `bytes` bytes into a live value, in which each pattern of bits is a number.
    check(unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, value, &raw mut bytes) }).map(drop)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// A mapping.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value, and may be used and removed by any thread; how its bytes are shared with the kernel is
// up to `Ring` and `Memory`.
unsafe impl Send for Map {}
// SAFETY: as above; through a shared reference, only `Memory` and `Ring::word` reach the bytes, and say why they may.
unsafe impl Sync for Map {}

impl Map {
    /// Of a ring of a socket, or of new memory.
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
        // SAFETY: made by `mmap` with this length; who borrows from it borrows this value. The kernel keeps its own hold on
        // rings, and on registered memory.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory for frames, cut into chunks of [`CHUNK_BYTES`]. A chunk belongs to whoever has its [`Chunk`]: a ring (then the kernel
/// may read and write it) or a thread.
#[derive(Debug)]
pub(crate) struct Memory(Map);

/// The one right to a chunk of a [`Memory`].
#[derive(Debug)]
pub(crate) struct Chunk(u64);

/// Bytes of a chunk: the kernel's least. 256 of them are the kernel's own when it receives.
pub(crate) const CHUNK_BYTES: usize = 2048;

impl Memory {
    /// Memory and the rights to its chunks.
    pub(crate) fn new(chunks: usize) -> io::Result<(Memory, impl Iterator<Item = Chunk>)> {
        let map = Map::new(chunks * CHUNK_BYTES, None)?;
        let rights = (0..chunks).map(|i| Chunk((i * CHUNK_BYTES) as u64));
        Ok((Memory(map), rights))
    }

    /// The `len` bytes from `offset` on of a chunk: less, if that is beyond its end.
    #[inline]
    pub(crate) fn bytes(&self, chunk: &Chunk, offset: usize, len: usize) -> &[u8] {
        let offset = offset.min(CHUNK_BYTES);
        let len = len.min(CHUNK_BYTES - offset);
        // SAFETY: a chunk's place is within the mapping (`Memory::new` and `Memory::received`; a device's memory and chunks are not mixed,
        // as both are in one `Queue`), and the range within the chunk. Nobody writes meanwhile: the right to the chunk is
        // borrowed, so it is in no ring. The memory began as zeros.
        unsafe {
            std::slice::from_raw_parts(self.0.start.as_ptr().add(chunk.0 as usize + offset), len)
        }
    }

    /// All of a chunk.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The right is borrowed for as long, and exclusively.
    pub(crate) fn bytes_mut<'a>(&'a self, chunk: &'a mut Chunk) -> &'a mut [u8] {
        // SAFETY: as in `bytes`; and nobody reads meanwhile, as the right is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.start.as_ptr().add(chunk.0 as usize), CHUNK_BYTES)
        }
    }

    /// Where a frame lies, to be fetched ahead; not to be read.
    #[inline]
    pub(crate) fn place_of(&self, address: u64) -> *const u8 {
        self.0.start.as_ptr().wrapping_add(address as usize)
    }

    /// The right that comes with an address out of a ring, and the place of the frame in the chunk. `None`: the address is none
    /// of this memory.
    #[inline]
    fn received(&self, address: u64) -> Option<(Chunk, usize)> {
        let offset = address % CHUNK_BYTES as u64;
        let start = address - offset;
        (start < self.0.bytes as u64).then_some((Chunk(start), offset as usize))
    }
}

/// A ring between this process and the kernel: one side produces, the other consumes.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    map: Map,
    /// Places of the kernel's words and of the entries.
    producer: usize,
    consumer: usize,
    entries: usize,
    mask: u32,
    /// Our side's next entry, which the kernel is not told of yet.
    next: u32,
    /// The other side's, as last seen.
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
        match is_sound {
            true => Ok(ring),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked place and alignment; both sides use these words atomically.
        unsafe { AtomicU32::from_ptr(self.map.start.as_ptr().add(at).cast()) }
    }

    #[inline]
    fn entry(&self, i: u32) -> *mut T {
        // SAFETY: the mask keeps the entry within the ring, of which `new` has checked place and alignment.
        unsafe {
            self.map
                .start
                .as_ptr()
                .add(self.entries)
                .cast::<T>()
                .add((i & self.mask) as usize)
        }
    }

    /// As the producer: adds an entry, if there is room.
    #[inline]
    fn push(&mut self, value: T) -> bool {
        if self.next.wrapping_sub(self.other) > self.mask {
            self.other = self.word(self.consumer).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.other) > self.mask {
                return false;
            }
        }
        // SAFETY: the consumer has told that it is done with this entry, and is not told of the new one yet. This side has one
        // thread at a time, as `self` is borrowed exclusively.
        unsafe { self.entry(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// As the producer: tells the kernel of what was added.
    #[inline]
    pub(crate) fn publish(&self) {
        self.word(self.producer).store(self.next, Ordering::Release);
    }

    /// As the producer: whether the kernel has taken all that it was told of.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.word(self.consumer).load(Ordering::Acquire) == self.next
    }

    /// As the consumer: how many entries there are.
    #[inline]
    fn ready(&mut self) -> u32 {
        self.other = self.word(self.producer).load(Ordering::Acquire);
        self.other.wrapping_sub(self.next)
    }

    /// As the consumer: the entry that comes `ahead` entries behind the next one.
    #[inline]
    fn peek(&self, ahead: u32) -> Option<T> {
        (self.other.wrapping_sub(self.next) > ahead).then(|| {
            // SAFETY: the producer has told of this entry, and writes it again only when told that we are done with it.
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

    /// As the consumer: the kernel may use the entries that were popped again.
    #[inline]
    pub(crate) fn release(&self) {
        self.word(self.consumer).store(self.next, Ordering::Release);
    }
}

impl Ring<u64> {
    /// Gives a chunk to the kernel, or back if there is no room.
    #[inline]
    pub(crate) fn push_chunk(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        match self.push(chunk.0) {
            true => Ok(()),
            false => Err(chunk),
        }
    }

    /// A chunk that the kernel has sent.
    #[inline]
    pub(crate) fn pop_chunk(&mut self, memory: &Memory) -> Option<Chunk> {
        Some(memory.received(self.pop()?)?.0)
    }
}

impl Ring<libc::xdp_desc> {
    /// Gives the first `len` bytes of a chunk to the kernel to send, or the chunk back if there is no room.
    #[inline]
    pub(crate) fn push_frame(&mut self, chunk: Chunk, len: usize) -> Result<(), Chunk> {
        let frame = libc::xdp_desc {
            addr: chunk.0,
            len: len as u32,
            options: 0,
        };
        match self.push(frame) {
            true => Ok(()),
            false => Err(chunk),
        }
    }

    /// A frame that has come: its chunk, its place in there, its length.
    #[inline]
    pub(crate) fn pop_frame(&mut self, memory: &Memory) -> Option<(Chunk, usize, usize)> {
        let frame = self.pop()?;
        let (chunk, offset) = memory.received(frame.addr)?;
        Some((chunk, offset, frame.len as usize))
    }

    /// Where a frame lies that will be popped soon.
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
/// Of what the verifier says: the reason stands at its end, and programs are short.
const LOG_BYTES: usize = 1 << 16;
