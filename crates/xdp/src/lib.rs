//! UDP past the kernel's sockets, by AF_XDP.
//!
//! A relay of thousands of streams has thousands of sockets, and pays a system call for each datagram in and out. Here a program in
//! the kernel picks the datagrams of *enrolled* ports out of a device's frames and puts them into a ring in memory; a thread
//! takes them out, and sends frames by another ring, a system call for dozens. The sockets stay: they keep the port, and get
//! whatever the rings are not for, without anybody's doing:
//!
//! | datagram | way in |
//! |---|---|
//! | a whole one, without IP options, on a device of these, for an enrolled port | ring |
//! | fragments, options, VLANs, other devices, more than a port's share of a moment | the port's socket |
//!
//! | datagram | way out |
//! |---|---|
//! | to whom a frame came from within the last second | ring, back on the [`Way`] that it came |
//! | to others (no neighbour is known), longer than the device's packets, no room in a ring | the port's socket: the kernel routes |
//!
//! One [`Lane`] per thread. Devices' programs go when the process does, however it ends.
//!
//! Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and, above the limit of locked memory, CAP_IPC_LOCK. What comes and goes by a ring is not
//! seen by the host's packet filter, nor by captures on the device.
//!
//! Frames are copied between device and ring (`XDP_COPY`), which each driver can.

mod device;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod lane;
mod program;
mod sys;

pub use crate::device::{Mode, ModeError, OpenError, Settings, Xdp};
pub use crate::frame::Way;
pub use crate::lane::{Lane, Received};

/// The longest payload that goes by a ring.
pub const PAYLOAD_BYTES_MAX: usize = sys::CHUNK_BYTES - frame::HEADERS_BYTES_MAX;

/// The example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
