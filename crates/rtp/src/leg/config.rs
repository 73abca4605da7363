//! Settings of a leg.

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

use super::{AdmissionConfig, PayloadMap, PayloadMapError};
use crate::id::{NtpTime, SeqNum, Ssrc};
use crate::{jitter, session};

/// Settings of a [`Leg`].
#[derive(Debug, Clone)]
pub struct LegConfig {
    /// Our SSRC: random (RFC 3550, section 5.1). A collision changes it.
    pub ssrc: Ssrc,
    /// The first sequence number sent: random.
    pub first_seq: SeqNum,
    /// Our canonical name (RFC 7022).
    pub cname: Arc<str>,
    /// Seed of the random numbers: a different one for each leg.
    pub seed: u64,
    /// The wall clock at time 0 of the monotonic clock, the same for all legs with that canonical name.
    pub ntp_at_zero: NtpTime,
    /// What the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// What the peer takes, the preferred audio first; `None`: what it sends.
    pub takes: Option<Arc<PayloadMap>>,
    /// Order and delay of received packets. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Who may send.
    pub admission: AdmissionConfig,
    /// Where to send.
    pub destination: Destination,
    /// RTP and RTCP on one port (RFC 5761).
    pub mux: bool,
    /// Bandwidth of the media, bits/s, of which RTCP takes 5 %; 0: no RTCP is sent.
    pub bandwidth_bps: u64,
    /// Rules for feedback.
    pub profile: session::Profile,
}

impl LegConfig {
    /// What the peer takes.
    #[must_use]
    pub fn takes(&self) -> &Arc<PayloadMap> {
        self.takes.as_ref().unwrap_or(&self.payloads)
    }
}

/// Where a leg sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To the peer: where its packets come from, or, until they do, where it was signalled to be.
    Peer,
    /// To these addresses, whatever is received. RTCP about what is received goes there, too.
    Fixed {
        /// For RTP.
        rtp: SocketAddr,
        /// For RTCP; `None`: the port after RTP's, or RTP's with mux.
        rtcp: Option<SocketAddr>,
    },
}

/// Settings that are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LegError {
    /// The jitter buffer's.
    #[error(transparent)]
    Jitter(#[from] jitter::ConfigError),
    /// The payload types.
    #[error(transparent)]
    Payloads(#[from] PayloadMapError),
}
