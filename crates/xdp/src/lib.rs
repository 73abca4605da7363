//! Receives and sends UDP datagrams by AF_XDP, which bypasses the kernel's sockets.
//!
//! A relay of thousands of streams has thousands of sockets, and needs a system call for each datagram that it receives or sends.
//! With this crate, a program in the kernel takes the frames of *enrolled* ports from a device and puts them into a ring in
//! memory, where a thread reads them. To send, the thread puts frames into another ring, and one system call sends dozens of
//! them. The sockets stay open. They keep the ports, and receive everything that the rings do not:
//!
//! | received datagram | path |
//! |---|---|
//! | unfragmented, without IP options, on one of the devices, for an enrolled port | ring |
//! | fragments, IP options, VLANs, other devices, more than a port's share of a time window | the port's socket |
//!
//! | sent datagram | path |
//! |---|---|
//! | to an address that sent a frame within the last second | ring, on the [`Way`] of that frame |
//! | to other addresses (no known neighbour), longer than the device's MTU, or if the ring is full | the port's socket; the kernel routes |
//!
//! Each thread has its own [`Lane`]. When the process ends, even by a crash, the kernel removes the programs from the devices.
//!
//! The process needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. It also needs CAP_IPC_LOCK if the memory of the rings exceeds the
//! process's limit of locked memory. The host's packet filter, and programs that capture packets on the device, do not see the
//! traffic of the rings.
//!
//! Frames are copied between device and ring (`XDP_COPY`). All drivers support this.

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

/// Maximum length of a payload that a ring can send.
pub const PAYLOAD_BYTES_MAX: usize = sys::CHUNK_BYTES - frame::HEADERS_BYTES_MAX;

/// Tests that the example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
