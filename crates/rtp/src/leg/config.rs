//! Settings of a leg.

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

use super::{AdmissionConfig, PayloadMap, PayloadMapError};
use crate::id::{NtpTime, SeqNum, Ssrc};
use crate::{jitter, session};

/// Settings of a [`Leg`](super::Leg).
#[derive(Debug, Clone)]
pub struct LegConfig {
    /// Our SSRC, which must be random (RFC 3550, section 5.1). A collision changes it.
    pub ssrc: Ssrc,
    /// The first sequence number to send, which must be random.
    pub first_seq: SeqNum,
    /// Our canonical name (RFC 7022).
    pub cname: Arc<str>,
    /// Seed of the random numbers. Each leg needs a different one.
    pub seed: u64,
    /// The wall clock at time 0 of the monotonic clock. It is the same for all legs with this canonical name.
    pub ntp_at_zero: NtpTime,
    /// Payload types that the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// Payload types that the peer accepts, the preferred audio first. `None`: the same as `payloads`.
    pub takes: Option<Arc<PayloadMap>>,
    /// Order and delay of received packets. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Rules for accepting senders.
    pub admission: AdmissionConfig,
    /// Destination of the stream.
    pub destination: Destination,
    /// Whether RTP and RTCP share one port (RFC 5761).
    pub mux: bool,
    /// Bandwidth of the media in bits/s, of which RTCP takes 5 %. With 0, RTCP is off.
    pub bandwidth_bps: u64,
    /// Rules for feedback.
    pub profile: session::Profile,
}

impl LegConfig {
    /// Returns the payload types that the peer accepts.
    #[must_use]
    pub fn takes(&self) -> &Arc<PayloadMap> {
        self.takes.as_ref().unwrap_or(&self.payloads)
    }
}

/// Where a leg sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To the peer. This is the source address of its packets or, until they arrive, the signalled address.
    Peer,
    /// RTP is sent to these addresses, whatever packets are received. RTCP about received packets is sent there too.
    Fixed {
        /// Destination of RTP.
        rtp: SocketAddr,
        /// Destination of RTCP. `None`: the port after the RTP port, or the RTP port itself if RTCP is multiplexed.
        rtcp: Option<SocketAddr>,
    },
}

/// The reason why settings were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LegError {
    /// The settings of the jitter buffer are invalid.
    #[error(transparent)]
    Jitter(#[from] jitter::ConfigError),
    /// The payload types are invalid.
    #[error(transparent)]
    Payloads(#[from] PayloadMapError),
}

/// Settings of the receiving half of a leg.
#[derive(Debug, Clone)]
pub struct Receiving {
    /// Payload types that the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// Order and delay of received packets. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Rules for accepting senders.
    pub admission: AdmissionConfig,
}
