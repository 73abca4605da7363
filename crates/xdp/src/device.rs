//! Network devices. All lanes share a device's program, tables and memory.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use threadbare_runtime::clock_now_ns;

use crate::program::{
    KEY_BYTES, LANES_MAX, VALUE_BYTES, port_key, port_value, program, ring_place,
};
use crate::sys::{
    self, Chunk, Memory, Ring, RingKind, Table, bind_xdp, make_ring, make_table, remove_row,
    xdp_socket,
};

/// Mode in which a device runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the driver if the driver supports that, otherwise after the driver.
    #[default]
    Auto,
    /// After the driver. This works with every device.
    Generic,
    /// In the driver.
    Native,
}

/// Settings for [`Xdp::open`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names of network devices, such as `eth0`.
    pub devices: Vec<String>,
    /// Mode of the program.
    pub mode: Mode,
    /// Number of frames of 2 KiB for unread datagrams, for each receive queue of each device. There must be enough for all
    /// datagrams that arrive between two reads. A power of two.
    pub frames: u32,
}

impl Settings {
    /// Returns settings with 8192 frames (16 MiB) per queue. They are enough for 400,000 packets a second if datagrams are read
    /// every 20 ms.
    #[must_use]
    pub fn new(devices: Vec<String>) -> Settings {
        Settings {
            devices,
            mode: Mode::Auto,
            frames: FRAMES,
        }
    }
}

/// Why the frames of a device are not available.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device does not exist.
    #[error("network device '{device}' not found: {source} (`ip link` lists the devices)")]
    NoDevice {
        /// The name.
        device: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The device is the loopback device or a tunnel.
    #[error(
        "'{device}' is not an Ethernet device (loopback or a tunnel); use one that receives packets from the network, such as a network card"
    )]
    NoEthernet {
        /// The name.
        device: String,
    },
    /// The number of frames is invalid.
    #[error(
        "the number of frames is {frames}, must be a power of two from {FRAMES_MIN} to {FRAMES_MAX}"
    )]
    Frames {
        /// The number.
        frames: u32,
    },
    /// The system does not permit the operation.
    #[error(
        "device '{device}': the process has no permission to {what}: this needs the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK (in a unit of systemd: AmbientCapabilities=)"
    )]
    Permission {
        /// The device.
        device: String,
        /// The failed operation.
        what: &'static str,
    },
    /// Another program uses the device.
    #[error(
        "another XDP program uses device '{device}' (see `ip link show {device}`); a device can have only one"
    )]
    Busy {
        /// The device.
        device: String,
    },
    /// The kernel refuses the program.
    #[error(
        "device '{device}': the kernel rejected the XDP program: {source}; message of the kernel: {said}"
    )]
    Program {
        /// The device.
        device: String,
        /// The system's answer.
        source: io::Error,
        /// The last lines of the kernel's message.
        said: String,
    },
    /// Anything else.
    #[error("device '{device}': cannot {what}: {source}")]
    System {
        /// The device.
        device: String,
        /// The failed operation.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Too many lanes.
    #[error("{LANES_MAX} threads already share the devices, which is the maximum")]
    Lanes,
}

/// Devices whose frames bypass the kernel's sockets. When this value and its lanes are dropped, all traffic goes through sockets
/// again.
#[derive(Debug, Clone)]
pub struct Xdp(pub(crate) Arc<Devices>);

#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) devices: Vec<Device>,
    pub(crate) frames: u32,
    /// One bit per lane number.
    lanes: Mutex<u32>,
    homes: Mutex<Homes>,
}

/// The device to which each IP address belongs.
#[derive(Debug, Default)]
struct Homes {
    known: HashMap<IpAddr, usize>,
    asked_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Device {
    /// The attached program. This field is dropped first, so that no frames arrive while the others are dropped.
    _link: OwnedFd,
    name: String,
    pub(crate) index: u32,
    /// The longest IP packet.
    pub(crate) mtu: usize,
    ports: OwnedFd,
    rings: OwnedFd,
    pub(crate) queues: Vec<Arc<Queue>>,
}

/// A receive queue of a device: memory for frames, and the rings that pass its chunks to the kernel and back.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) memory: Memory,
    pub(crate) fill: Mutex<Ring<u64>>,
    pub(crate) idle: Mutex<Idle>,
    number: u32,
    /// The socket that registered the memory, which the sockets of the lanes share. It receives nothing, because it is not in the
    /// table of rings.
    root: OwnedFd,
    _root_ring: Ring<libc::xdp_desc>,
}

/// Free chunks for frames to send, and the ring by which the kernel returns chunks whose frames were sent.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) sent: Ring<u64>,
}

impl Xdp {
    /// Installs the program on the devices. Traffic does not change until a port is enrolled.
    ///
    /// # Errors
    /// Fails if a device does not exist, if another program uses it, or if the system does not allow the program.
    pub fn open(settings: &Settings) -> Result<Xdp, OpenError> {
        let frames = settings.frames;
        if !frames.is_power_of_two() || !(FRAMES_MIN..=FRAMES_MAX).contains(&frames) {
            return Err(OpenError::Frames { frames });
        }
        let devices = settings.devices.iter();
        let devices = devices.map(|name| Device::open(name, settings));
        Ok(Xdp(Arc::new(Devices {
            devices: devices.collect::<Result<_, _>>()?,
            frames,
            lanes: Mutex::new(0),
            homes: Mutex::default(),
        })))
    }
}

impl Devices {
    /// Returns a number for a lane, if one is free.
    pub(crate) fn take_lane(&self) -> Result<u32, OpenError> {
        let mut taken = lock(&self.lanes);
        let number = taken.trailing_ones();
        if number >= LANES_MAX {
            return Err(OpenError::Lanes);
        }
        *taken |= 1 << number;
        Ok(number)
    }

    /// Releases the number of a lane.
    pub(crate) fn free_lane(&self, number: u32) {
        *lock(&self.lanes) &= !(1 << number);
    }

    /// Returns the device with this address.
    fn home_of(&self, ip: IpAddr) -> Option<&Device> {
        let mut homes = lock(&self.homes);
        let place = match homes.known.get(&ip) {
            Some(place) => Some(*place),
            // An address may be added later, so look up an unknown one again. But do not look it up for each of thousands of
            // ports.
            _ if clock_now_ns().saturating_sub(homes.asked_ns) < ASKED_AGAIN_NS => None,
            _ => {
                homes.asked_ns = clock_now_ns();
                homes.known = self.addresses();
                homes.known.get(&ip).copied()
            }
        };
        self.devices.get(place?)
    }

    fn addresses(&self) -> HashMap<IpAddr, usize> {
        let all = getifaddrs().into_iter().flatten();
        let known = all.filter_map(|address| {
            let storage = address.address?;
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            let ip = v4.or_else(|| Some(storage.as_sockaddr_in6()?.ip().into()))?;
            let mut devices = self.devices.iter();
            let place = devices.position(|device| device.name == address.interface_name)?;
            Some((ip, place))
        });
        known.collect()
    }

    /// Directs the datagrams of a port to a lane, with a key that identifies the port. Returns `false` if no device here has the
    /// address.
    pub(crate) fn enroll(&self, local: SocketAddr, lane: u32, key: u64) -> io::Result<bool> {
        let Some(device) = self.home_of(local.ip()) else {
            return Ok(false);
        };
        let value = port_value(key, lane);
        sys::write_row(device.ports.as_fd(), &port_key(local), &value)?;
        Ok(true)
    }

    /// Undoes [`Devices::enroll`].
    pub(crate) fn withdraw(&self, local: SocketAddr) {
        for device in &self.devices {
            // The port is enrolled on one device at most. On the others, the removal fails.
            let _ = remove_row(device.ports.as_fd(), &port_key(local));
        }
    }
}

impl Device {
    fn open(name: &str, settings: &Settings) -> Result<Device, OpenError> {
        let failed = |what| move |source| failure(name, what, source);
        let index = if_nametoindex(name).map_err(|source| OpenError::NoDevice {
            device: name.to_owned(),
            source: source.into(),
        })?;
        let c_name = CString::new(name).unwrap_or_default();
        // Devices can be queried through any socket except those of AF_XDP.
        let any = UnixDatagram::unbound().map_err(failed("open a socket"))?;
        let mtu = sys::mtu_of(any.as_fd(), &c_name).map_err(failed("read its MTU"))?;
        let address = sys::ethernet_of(any.as_fd(), &c_name).map_err(failed("read its kind"))?;
        let address = address.ok_or_else(|| OpenError::NoEthernet {
            device: name.to_owned(),
        })?;
        let queues = Queue::all_of(name, index, settings.frames)?;
        let rows = queues.len() as u32 * LANES_MAX;
        let ports = make_table(Table::Hash, KEY_BYTES as u32, VALUE_BYTES as u32, PORTS_MAX)
            .map_err(failed("create the table of ports"))?;
        let rings =
            make_table(Table::Rings, 4, 4, rows).map_err(failed("create the table of rings"))?;
        let link = run_program((name, index, address), &ports, &rings, settings.mode)?;
        Ok(Device {
            _link: link,
            name: name.to_owned(),
            index,
            mtu,
            ports,
            rings,
            queues,
        })
    }

    /// Adds a lane's socket to the program's table of rings.
    pub(crate) fn connect(
        &self,
        queue: &Queue,
        lane: u32,
        socket: &OwnedFd,
    ) -> Result<(), OpenError> {
        let place = ring_place(queue.number, lane).to_ne_bytes();
        let socket = socket.as_raw_fd().to_ne_bytes();
        sys::write_row(self.rings.as_fd(), &place, &socket)
            .map_err(|source| failure(&self.name, "add a ring to the table", source))
    }

    /// Undoes [`Device::connect`].
    pub(crate) fn disconnect(&self, queue: &Queue, lane: u32) {
        let place = ring_place(queue.number, lane).to_ne_bytes();
        // The row is missing if the lane could not be created.
        let _ = remove_row(self.rings.as_fd(), &place);
    }

    /// Creates a socket of a lane, with its rings.
    pub(crate) fn socket(&self, queue: &Queue, frames: u32) -> Result<Socket, OpenError> {
        let failed = |what| move |source| failure(&self.name, what, source);
        let socket = xdp_socket().map_err(failed("open an AF_XDP socket"))?;
        let received = make_ring(socket.as_fd(), RingKind::Receive, frames)
            .map_err(failed("create a receive ring"))?;
        let sending = make_ring(socket.as_fd(), RingKind::Send, SENDS)
            .map_err(failed("create a send ring"))?;
        bind_xdp(
            socket.as_fd(),
            self.index,
            queue.number,
            Some(queue.root.as_fd()),
        )
        .map_err(failed("bind a socket to a queue"))?;
        Ok((socket, received, sending))
    }
}

/// Socket of a lane for one queue: descriptor, receive ring, send ring.
pub(crate) type Socket = (OwnedFd, Ring<libc::xdp_desc>, Ring<libc::xdp_desc>);

/// Loads the program and attaches it to a device. The program runs until the returned descriptor is closed.
fn run_program(
    (name, index, address): (&str, u32, [u8; 6]),
    ports: &OwnedFd,
    rings: &OwnedFd,
    mode: Mode,
) -> Result<OwnedFd, OpenError> {
    let code = program(ports.as_raw_fd(), rings.as_raw_fd(), address);
    let loaded = sys::load_program(&code).map_err(|(source, said)| {
        if is_permission(&source) && said.is_empty() {
            return failure(name, "load the XDP program", source);
        }
        let lines: Vec<_> = said.lines().rev().take(SAID_LINES).collect();
        OpenError::Program {
            device: name.to_owned(),
            source,
            said: lines.into_iter().rev().collect::<Vec<_>>().join("; "),
        }
    })?;
    let tried: &[u32] = match mode {
        Mode::Auto => &[XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE],
        Mode::Generic => &[XDP_FLAGS_SKB_MODE],
        Mode::Native => &[XDP_FLAGS_DRV_MODE],
    };
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for flags in tried {
        match patiently(|| sys::attach(loaded.as_fd(), index, *flags)) {
            Ok(link) => return Ok(link),
            Err(error) if is_taken(&error) => return Err(failure(name, "attach", error)),
            Err(error) => refused = error,
        }
    }
    Err(failure(name, "attach the XDP program", refused))
}

impl Queue {
    /// Opens all queues of a device. The kernel refuses the first queue number that does not exist.
    fn all_of(name: &str, index: u32, frames: u32) -> Result<Vec<Arc<Queue>>, OpenError> {
        let mut queues = Vec::new();
        while (queues.len() as u32) < QUEUES_MAX {
            match Queue::open(index, queues.len() as u32, frames) {
                Ok(queue) => queues.push(Arc::new(queue)),
                Err((_, error)) if errno(&error) == Errno::EINVAL && !queues.is_empty() => break,
                Err((what, error)) => return Err(failure(name, what, error)),
            }
        }
        Ok(queues)
    }

    fn open(index: u32, number: u32, frames: u32) -> Result<Queue, (&'static str, io::Error)> {
        let failed = |what| move |error| (what, error);
        let root = xdp_socket().map_err(failed("open an AF_XDP socket"))?;
        let (memory, mut chunks) =
            Memory::new((frames + SENDS) as usize).map_err(failed("allocate memory for frames"))?;
        sys::register_memory(root.as_fd(), &memory, sys::CHUNK_BYTES as u32)
            .map_err(failed("lock memory for frames (see `ulimit -l`)"))?;
        let ring = |kind, entries| {
            make_ring(root.as_fd(), kind, entries).map_err(failed("create a ring of chunks"))
        };
        let mut fill = ring(RingKind::Fill, frames)?;
        let sent = ring(RingKind::Completion, SENDS)?;
        let root_ring = make_ring(root.as_fd(), RingKind::Receive, ROOT_FRAMES)
            .map_err(failed("create a receive ring"))?;
        patiently(|| bind_xdp(root.as_fd(), index, number, None))
            .map_err(failed("bind a socket to a queue"))?;
        for chunk in chunks.by_ref().take(frames as usize) {
            // Cannot fail: the ring has room for all of these chunks.
            let _ = fill.push_chunk(chunk);
        }
        fill.publish();
        let chunks = chunks.collect();
        Ok(Queue {
            memory,
            fill: Mutex::new(fill),
            idle: Mutex::new(Idle { chunks, sent }),
            number,
            root,
            _root_ring: root_ring,
        })
    }
}

/// Retries while another program uses the device. The kernel releases a device some time after the process that used it has
/// ended, and a process that is restarted must not fail because of that.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let until_ns = clock_now_ns() + TAKEN_NS_MAX;
    loop {
        match attempt() {
            Err(error) if is_taken(&error) && clock_now_ns() < until_ns => {
                std::thread::sleep(TAKEN_PAUSE);
            }
            done => return done,
        }
    }
}

fn failure(device: &str, what: &'static str, source: io::Error) -> OpenError {
    let device = device.to_owned();
    match errno(&source) {
        Errno::EPERM | Errno::EACCES => OpenError::Permission { device, what },
        Errno::EBUSY | Errno::EEXIST => OpenError::Busy { device },
        _ => OpenError::System {
            device,
            what,
            source,
        },
    }
}

/// Whether the error says that another program uses the device.
fn is_taken(error: &io::Error) -> bool {
    matches!(errno(error), Errno::EBUSY | Errno::EEXIST)
}

fn is_permission(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Locks the mutex even if another holder has panicked. This is sound, because each step leaves a ring in a valid state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text is not a [`Mode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an XDP mode; must be auto, generic or native")]
pub struct ModeError(String);

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Mode, ModeError> {
        let mut all = [Mode::Auto, Mode::Generic, Mode::Native].into_iter();
        let found = all.find(|mode| mode.to_string() == text);
        found.ok_or_else(|| ModeError(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Generic => "generic",
            Mode::Native => "native",
        })
    }
}

const FRAMES: u32 = 8192;
const FRAMES_MIN: u32 = 64;
/// Maximum number of frames: 128 MiB per queue.
const FRAMES_MAX: u32 = 65536;
/// Number of chunks for sending per queue, which all lanes share. It is also the size of each lane's send ring. This is enough,
/// because frames leave during the system call that sends them.
const SENDS: u32 = 1024;
/// Size of the receive ring of a root socket. The socket receives nothing, but must have a ring.
const ROOT_FRAMES: u32 = 2;
/// Maximum number of queues of a device. Network cards have fewer.
const QUEUES_MAX: u32 = 128;
/// Maximum number of enrolled ports of a device: more than the calls of one machine need.
const PORTS_MAX: u32 = 1 << 18;
/// Minimum interval between queries of the machine's addresses.
const ASKED_AGAIN_NS: u64 = 1_000_000_000;
/// Maximum time of the retries while a device is in use. The kernel needs less to release a device.
const TAKEN_NS_MAX: u64 = 1_000_000_000;
const TAKEN_PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of lines that an error quotes from the kernel's message about a program.
const SAID_LINES: usize = 3;
/// include/uapi/linux/if_link.h
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
