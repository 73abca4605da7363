//! The properties of `ts-rtpsrc` as plain values, and its URI.

use std::net::SocketAddr;
use std::sync::Arc;

use gst::glib;
use threadbare_rtp::demux::Filter;
use threadbare_rtp::id::Ssrc;
use threadbare_rtp::jitter::{self, Adaptive, Release, Skew, capacity_for};
use threadbare_rtp::leg::{AdmissionConfig, Learn, PayloadMap, PayloadMapError, Receiving};
use threadbare_rtp::payload::PayloadTypes;

use crate::kit::socket::{MulticastSettings, format_host_port, split_host_port};
use crate::rtp::payloads;
use crate::rtp::playout::clock_rate_of;
use crate::rtp::session::SocketSettings;

/// Values of the properties.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) address: String,
    pub(super) port: i32,
    pub(super) rtcp_port: i32,
    pub(super) rtcp_mux: bool,
    pub(super) rtcp: bool,
    pub(super) reuse: bool,
    pub(super) caps: Option<gst::Caps>,
    pub(super) payload_types: PayloadTypes,
    pub(super) mtu: u32,
    pub(super) buffer_size: i32,
    pub(super) latency_ms: u32,
    pub(super) drop_on_latency: bool,
    pub(super) do_lost: bool,
    pub(super) do_retransmission: bool,
    pub(super) clock_skew: ClockSkew,
    pub(super) adaptive: bool,
    pub(super) latch: bool,
    pub(super) session: String,
    /// SSRC to accept; [`SSRC_ANY`]: any.
    pub(super) ssrc: u32,
    pub(super) from: Option<SocketAddr>,
    pub(super) max_dropout_ms: u32,
    pub(super) max_misorder_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            address: "0.0.0.0".into(),
            port: PORT_DEFAULT,
            rtcp_port: -1,
            rtcp_mux: false,
            rtcp: true,
            reuse: true,
            caps: None,
            payload_types: PayloadTypes::ALL,
            mtu: MTU_DEFAULT,
            buffer_size: 0,
            latency_ms: LATENCY_MS_DEFAULT,
            drop_on_latency: false,
            do_lost: true,
            do_retransmission: false,
            clock_skew: ClockSkew::Window,
            adaptive: false,
            latch: true,
            session: String::new(),
            ssrc: SSRC_ANY,
            from: None,
            max_dropout_ms: MAX_DROPOUT_MS_DEFAULT,
            max_misorder_ms: MAX_MISORDER_MS_DEFAULT,
        }
    }
}

/// Value for any SSRC; the same number as in the stock payloaders.
pub(super) const SSRC_ANY: u32 = u32::MAX;
pub(super) const PORT_DEFAULT: i32 = 5004;
/// Default MTU: the payload of an Ethernet frame, minus some tunnel headers.
pub(super) const MTU_DEFAULT: u32 = 1492;
/// Maximum MTU. No UDP datagram is larger (RFC 768).
pub(super) const MTU_MAX: u32 = 65_536;
/// Default latency: two packets of 20 ms.
pub(super) const LATENCY_MS_DEFAULT: u32 = 40;
pub(super) const LATENCY_MS_MAX: u32 = (jitter::LATENCY_NS_MAX / 1_000_000) as u32;
/// Default of `max-dropout-time`, the same as in the stock jitter buffer.
pub(super) const MAX_DROPOUT_MS_DEFAULT: u32 = 60_000;
pub(super) const MAX_MISORDER_MS_DEFAULT: u32 = 2_000;

/// Method of following the sender's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareClockSkew")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum ClockSkew {
    /// By the least delayed packets of the last seconds.
    #[default]
    #[enum_value(
        name = "Follow the packets that were delayed least in the last seconds",
        nick = "window"
    )]
    Window,
    /// By the first packet only.
    #[enum_value(
        name = "RTP timestamps only, counted from the first packet",
        nick = "none"
    )]
    None,
}

impl Settings {
    /// Returns the jitter buffer's settings. The clock rate is that of telephony until a packet or the caps give another one.
    pub(super) fn jitter(&self) -> jitter::Config {
        let latency_ns = u64::from(self.latency_ms) * 1_000_000;
        jitter::Config {
            release: Release::AtDeadline,
            drop_on_latency: self.drop_on_latency,
            skew: match self.clock_skew {
                ClockSkew::Window => Skew::Window,
                ClockSkew::None => Skew::None,
            },
            // The latency reported to the pipeline is the maximum.
            adaptive: self.adaptive.then_some(Adaptive {
                min_ns: 0,
                max_ns: latency_ns,
            }),
            max_dropout_ms: self.max_dropout_ms,
            max_misorder_ms: self.max_misorder_ms,
            capacity_packets: capacity_for(latency_ns, self.shortest_packet_ns()),
            ..jitter::Config::new(8000, latency_ns)
        }
    }

    /// Returns the length of the shortest packets: those of studio audio (AES67: 0.125 ms or more), or of telephony.
    fn shortest_packet_ns(&self) -> u64 {
        let caps = self.caps.as_ref().and_then(|caps| caps.structure(0));
        let encoding = caps.and_then(|caps| caps.get::<&str>("encoding-name").ok());
        match encoding {
            Some("L16" | "L24") => 125_000,
            _ => 10_000_000,
        }
    }

    /// Returns the meanings of the accepted payload types.
    pub(super) fn payloads(&self) -> Result<Arc<PayloadMap>, PayloadMapError> {
        let clock_rate_hz = self.caps.as_ref().and_then(clock_rate_of);
        payloads::of(clock_rate_hz, self.payload_types)
    }

    /// Returns the settings for the session's receiving half.
    pub(super) fn receiving(&self) -> Result<Receiving, PayloadMapError> {
        Ok(Receiving {
            payloads: self.payloads()?,
            jitter: self.jitter(),
            admission: AdmissionConfig {
                learn: if self.latch {
                    Learn::FOLLOW
                } else {
                    Learn::Anyone
                },
                ..AdmissionConfig::default()
            },
        })
    }

    /// Returns the filter for this source's packets on a shared port, if any.
    pub(super) fn filter(&self) -> Option<Filter> {
        let ssrc = (self.ssrc != SSRC_ANY).then_some(Ssrc(self.ssrc));
        (ssrc.is_some() || self.from.is_some()).then_some(Filter {
            ssrc,
            from: self.from,
            payload_type: None,
        })
    }

    pub(super) fn sockets(&self, multicast: &MulticastSettings) -> SocketSettings {
        SocketSettings {
            address: self.address.clone(),
            port: u16::try_from(self.port).unwrap_or(0),
            rtcp_port: u16::try_from(self.rtcp_port).ok(),
            // Without RTCP, there is no socket for it. RTCP on the RTP port is recognised and handled, but not answered.
            mux: self.rtcp_mux || !self.rtcp,
            reuse: self.reuse,
            buffer_bytes: self.buffer_size,
            multicast: multicast.clone(),
        }
    }

    pub(super) fn uri(&self) -> String {
        format!("rtp://{}", format_host_port(&self.address, self.port))
    }

    /// Parses `rtp://host[:port]`; the default port is 5004.
    pub(super) fn set_uri(&mut self, uri: &str) -> Result<(), glib::Error> {
        let bad = || {
            glib::Error::new(
                gst::URIError::BadUri,
                &format!("'{uri}': expected rtp://host:port"),
            )
        };
        let rest = uri.strip_prefix("rtp://").ok_or_else(bad)?;
        let (host, port) = split_host_port(rest.trim_end_matches('/')).ok_or_else(bad)?;
        self.address = match host {
            "" => "0.0.0.0".into(),
            host => host.into(),
        };
        self.port = port.map_or(PORT_DEFAULT, i32::from);
        Ok(())
    }
}
