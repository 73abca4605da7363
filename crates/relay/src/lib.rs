//! The media plane without GStreamer, which runs calls on shared threads.
//!
//! An [`Engine`] carries thousands of calls on a few threads, which are the shards of a context. A [`Call`] is a state machine without
//! sockets and clocks: the datagrams of its ports go in, and datagrams to send come out. Calls are created, reached and removed at run
//! time, from any thread, by a [`CallHandle`]. Their ports come from a [`PortRange`], or are places on a [`SharedPort`].
//!
//! ```
//! use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
//! use threadbare_relay::{Call, Datagram, Engine, Outbox, PortRange, RangeSettings, Settings};
//!
//! /// Sends each datagram back to where it came from.
//! #[derive(Default)]
//! struct Echo(Option<(threadbare_relay::PortId, SocketAddr, Vec<u8>)>);
//!
//! impl Call for Echo {
//!     fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
//!         self.0 = Some((datagram.port, datagram.from, datagram.bytes.to_vec()));
//!     }
//!
//!     fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
//!         if let Some((port, to, bytes)) = self.0.take() {
//!             let _ = out.stage(port, to, &bytes);
//!         }
//!     }
//!
//!     fn next_timeout(&self) -> Option<u64> {
//!         None
//!     }
//! }
//!
//! let engine = Engine::new(Settings::new("echo"))?;
//! let range = PortRange::new(RangeSettings::new(Ipv4Addr::LOCALHOST.into(), 20_000, 29_999))?;
//! let leg = range.lease()?;
//! let address = leg.rtp_address();
//! let call = engine.create("echo", vec![leg], Echo::default())?;
//!
//! let peer = UdpSocket::bind("127.0.0.1:0")?;
//! peer.send_to(b"hello", address)?;
//! let mut buffer = [0; 16];
//! assert_eq!(peer.recv_from(&mut buffer)?, (5, address));
//! call.remove();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This is a slice of a shard with thousands of calls:
//!
//! 1. *receive*: the arrived datagrams, a batch into a fixed arena, with the kernel's receive times;
//! 2. *handle*: [`Call::handle_datagram`], while the memory of the next calls is fetched;
//! 3. *due*: [`Call::poll_transmit`] stages datagrams to send;
//! 4. *send*: the staged datagrams of the batch.
//!
//! A call can move to another thread while it runs: see [`Engine::rebalance`].
//!
//! Only the packet I/O (`io/`) knows the sockets. There is a pair for each leg, or one for many legs.
//!
//! Further reading: [`AudioSession`] is a call of two parties, or a stream, with jitter buffers, codecs and RTCP. So few programs need
//! their own [`Call`]. [`Forward`] forwards media without parsing them.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod audio;
mod call;
mod copies;
mod diverted;
mod engine;
mod fence;
mod forward;
pub mod fuzzing;
mod gather;
mod id;
mod io;
mod late_packet;
mod listen;
mod loudness;
mod media_session;
mod observer;
mod orders;
mod policy;
mod portion;
mod ports;
mod publishing;
mod rebalance;
mod renamed;
mod reply;
mod snapshot;
mod socket;
mod stats;
mod sync;
mod tap;
mod unsent;
mod worker;

pub use self::audio::{AudioSession, AudioState, AudioStats, EventHandler};
pub use self::call::{Call, Datagram, Outbox, Refused};
pub use self::copies::PacketListener;
pub use self::diverted::{Diverted, LATE_PACKET_BYTES_MAX};
pub use self::engine::{CallHandle, Commander, CreateError, Engine, EngineError, Settings};
pub use self::fence::Fence;
pub use self::forward::{
    Forward, ForwardSide, ForwardSideStats, ForwardSpec, ForwardState, Traffic,
};
pub use self::gather::Gathering;
pub use self::id::{LEGS_MAX, PortId, PortKind};
pub use self::io::DATAGRAM_BYTES_MAX;
pub use self::late_packet::{LatePacket, LatePacketHandler};
pub use self::listen::{Listeners, Listening};
pub use self::loudness::Loudness;
pub use self::media_session::{MediaSession, MediaSpec};
pub use self::observer::Observer;
pub use self::orders::CallState;
pub use self::policy::Destinations;
pub use self::portion::{HEAD_BYTES, Portion, PortionAudio};
pub use self::ports::{
    LegPorts, PortError, PortRange, PortUse, RangeSettings, SharedPort, SharedSettings,
};
pub use self::rebalance::Moved;
pub use self::renamed::*;
pub use self::reply::{Gone, Reply};
pub use self::snapshot::{LineSnapshot, ListenerView, Pace, SenderView, SharedSnapshot};
pub use self::socket::{SocketError, TOS_USUAL, Unreachable, check_destination};
pub use self::stats::{CallStats, ShardStats, Stats};
