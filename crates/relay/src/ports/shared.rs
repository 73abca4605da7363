//! A port that many legs share.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use threadbare_rtp::demux::{DemuxError, Filter, ROUTES_MAX};

use super::{LegKind, LegPorts, PortError, Sockets};
use crate::socket::{SocketError, Udp};
use crate::sync::lock;

/// Settings of a port that many legs share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSettings {
    /// The address of the RTP port. Port 0 means any free one.
    pub address: SocketAddr,
    /// The RTCP port. Port 0 means any free one. `None`: RTCP shares the RTP port (RFC 5761).
    pub rtcp_port: Option<u16>,
    /// The kernel's receive buffer of each socket. `None`: a slice of thousands of streams fits, if the system allows such a buffer
    /// (`net.core.rmem_max`).
    pub receive_buffer_bytes: Option<usize>,
}

impl SharedSettings {
    /// Creates settings for one port for RTP and RTCP.
    #[must_use]
    pub fn new(address: SocketAddr) -> SharedSettings {
        SharedSettings {
            address,
            rtcp_port: None,
            receive_buffer_bytes: None,
        }
    }
}

/// A port that many legs of one engine share, created by [`Engine::share`](crate::Engine::share). One shard reads it, so all its calls run
/// there. It closes when its last clone and its last leg are gone.
#[derive(Debug, Clone)]
pub struct SharedPort(Arc<Shared>);

struct Shared {
    sockets: Arc<Sockets>,
    home: SharedHome,
    filters: Mutex<HashSet<Filter>>,
    /// Makes the shard close the port when it is no longer used.
    close: Box<dyn Fn() + Send + Sync>,
}

/// The shard that reads a shared port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedHome {
    pub(crate) engine: u64,
    /// The shard's place in the engine.
    pub(crate) shard: usize,
    /// The port's place on the shard.
    pub(crate) io: u32,
}

pub(crate) fn open_shared(settings: &SharedSettings) -> Result<Arc<Sockets>, SocketError> {
    let bytes = Some(settings.receive_buffer_bytes.unwrap_or(BUFFER_BYTES));
    let rtp = Udp::bind(settings.address, bytes)?;
    let rtcp = match settings.rtcp_port {
        Some(port) => {
            let mut address = settings.address;
            address.set_port(port);
            Some(Udp::bind(address, bytes)?)
        }
        None => None,
    };
    Ok(Arc::new(Sockets::new(rtp, rtcp)))
}

impl SharedPort {
    pub(crate) fn new(
        sockets: Arc<Sockets>,
        home: SharedHome,
        close: Box<dyn Fn() + Send + Sync>,
    ) -> SharedPort {
        SharedPort(Arc::new(Shared {
            sockets,
            home,
            filters: Mutex::default(),
            close,
        }))
    }

    /// Returns the address of the RTP port.
    #[must_use]
    pub fn rtp_address(&self) -> SocketAddr {
        self.0.sockets.rtp.local()
    }

    /// Leases a place for the leg whose datagrams match `filter`.
    ///
    /// # Errors
    /// Fails if another leg has the same filter, or if the port has no room.
    pub fn lease(&self, filter: Filter) -> Result<LegPorts, PortError> {
        let refused = |error| PortError::Filter {
            local: self.rtp_address(),
            filter,
            error,
        };
        let mut filters = lock(&self.0.filters);
        if filters.len() >= ROUTES_MAX {
            return Err(refused(DemuxError::Full));
        }
        if !filters.insert(filter) {
            return Err(refused(DemuxError::Duplicate));
        }
        Ok(LegPorts(LegKind::Shared(SharedPlace {
            port: self.clone(),
            filter,
        })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        (self.close)();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("sockets", &self.sockets)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

/// A leg's place on a shared port.
#[derive(Debug)]
pub(crate) struct SharedPlace {
    port: SharedPort,
    filter: Filter,
}

impl SharedPlace {
    pub(crate) fn sockets(&self) -> &Sockets {
        &self.port.0.sockets
    }

    pub(crate) fn home(&self) -> SharedHome {
        self.port.0.home
    }

    pub(crate) fn filter(&self) -> Filter {
        self.filter
    }
}

impl Drop for SharedPlace {
    fn drop(&mut self) {
        lock(&self.port.0.filters).remove(&self.filter);
    }
}

/// Default receive buffer. It is enough for a slice of 20 ms of 10,000 streams, because a packet of telephony takes some 800 bytes.
const BUFFER_BYTES: usize = 8 << 20;
