//! The configuration file, checked completely before any socket is bound.
//!
//! [`Config::from_toml`] is the only constructor. It refuses unknown keys. Otherwise, a misspelt key would silently keep its
//! default. A `[[stream]]` table with a `count` is a range, and expands to that many [`StreamSpec`]s.
//!
//! Part of the gateway `threadbare`; not a public interface.
#![forbid(unsafe_code)]

mod alarms;
mod check;
mod checker;
mod cluster;
pub mod codec;
mod fallback;
mod machine;
mod media;
mod print;
mod problem;
mod raw;
mod record;
mod recording_format;
mod route;
mod service;
mod serving;
mod srtp;
mod srtp_key;
mod store;
mod store_spec;
mod tables;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::alarms::AlarmSpec;
pub use self::cluster::{CallsOnIsolation, ClusterRefusal, ClusterSpec, Placement};
pub use self::machine::{Machine, ThisMachine};
pub use self::problem::{ConfigError, Problem};
pub use self::raw::TABLES;
pub use self::record::{
    Bucket, Names, Permissions, RecordOn, RecordSpec, RecordWords, Rotate, Template, TemplateError,
    Tracks,
};
pub use self::recording_format::RecordingFormat;
pub use self::service::{NoServiceAddress, ServiceAddress};
pub use self::serving::DEFAULT_NAME;
pub use self::serving::{
    HttpSpec, InterfaceSpec, Limits, MediaRules, PortSpan, PortSpanError, Refusal, Serving,
    Setting, StateLocation, Timeouts,
};
pub use self::srtp_key::{KeySource, SrtpSpec};
pub use self::store_spec::StoreSpec;
use threadbare_rtp::leg::Network;
use threadbare_rtp::tone::Tone;

use crate::codec::{Codec, CodecIn};

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The threads.
    pub contexts: Contexts,
    /// Restarts of a failed stream.
    pub restart: Restart,
    /// The streams; names and listening ports differ.
    pub streams: Vec<StreamSpec>,
    /// Settings of alarms.
    pub alarms: AlarmSpec,
    /// Folder for the history of the last day of each stream.
    pub history: StateLocation,
    /// The store for recordings to `s3://…`.
    pub store: Option<StoreSpec>,
    /// Settings of the cluster that carries the streams. `None`: this process carries them.
    pub cluster: Option<ClusterSpec>,
    /// Settings of calls. `None`: this process carries no calls.
    pub serving: Option<Serving>,
}

/// The contexts (threads) that carry the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Contexts {
    /// Contexts are called `PREFIX-0`, `PREFIX-1` and so on.
    pub prefix: String,
    /// Number of contexts; at least 1.
    pub count: u32,
    /// Slice length in milliseconds; 0 handles each packet as it arrives.
    pub wait_ms: u32,
}

/// Waits before a failed stream is restarted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// Wait before the first restart; doubles each time.
    pub first: Duration,
    /// Maximum wait.
    pub max: Duration,
}

/// A stream: input, codecs, destination and other settings.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSpec {
    /// Unique in the configuration.
    pub name: String,
    /// The local address that receives RTP.
    pub listen: SocketAddr,
    /// Codec received.
    pub codec_in: CodecIn,
    /// Payload type of received packets; `None`: [the usual ones](Codec::usual_payload_types) of the codec.
    pub payload_type_in: Option<u8>,
    /// Codec sent; `None`: as received.
    pub codec_out: Option<Codec>,
    /// The destination.
    pub destination: Destination,
    /// Packet time of sent packets, ms; `None`: as received.
    pub ptime_ms: Option<u32>,
    /// The jitter buffer.
    pub jitter: Jitter,
    /// RTCP, in both directions.
    pub rtcp: Rtcp,
    /// CNAME in RTCP; `None`: a random one, which all streams of the process share.
    pub cname: Option<String>,
    /// Learn the sender's address from the first packets, and refuse others.
    pub latch: bool,
    /// Time after the first packet during which the address may change, in seconds; `None`: it may always change.
    pub latch_window_s: Option<u32>,
    /// Only these networks may send; empty: all.
    pub sources: Vec<Network>,
    /// Payload type of telephone events (RFC 4733), which pass unchanged.
    pub dtmf_payload_type: u8,
    /// Payload type of sent packets; `None`: the codec's own.
    pub payload_type: Option<u8>,
    /// SSRC of sent packets; `None`: random.
    pub ssrc: Option<u32>,
    /// Clock rate of received packets, whatever their payload type; `None`: the clock rate of the codec.
    pub clock_rate_hz: Option<u32>,
    /// Target loudness, LUFS; `None`: the loudness is not changed.
    pub loudness_target_lufs: Option<f64>,
    /// Measure loudness, if the audio is decoded.
    pub meter: bool,
    /// Times of day at which integrated loudness, range and true peak are reset, in minutes after local midnight.
    pub loudness_resets: Vec<u16>,
    /// GStreamer elements between decoding and encoding, as for `gst-launch-1.0`; `None`: none.
    pub pipeline: Option<String>,
    /// Fallbacks while the sender is silent; the first healthy one is used.
    pub fallbacks: Vec<FallbackSpec>,
    /// SRTP of the input and of the output.
    pub srtp: SrtpSpec,
    /// Placement of the stream in a cluster.
    pub placement: Placement,
    /// Settings for recording the stream; `None`: it is not recorded.
    pub record: Option<RecordSpec>,
}

/// A fallback of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct FallbackSpec {
    /// The input.
    pub input: InputSpec,
    /// How long the previous input may be silent.
    pub timeout_ms: u32,
    /// How long a better input must be healthy before the stream returns to it.
    pub recover_after_ms: u32,
}

/// The input of a fallback.
#[derive(Clone, Debug, PartialEq)]
pub enum InputSpec {
    /// Another sender.
    Rtp {
        /// The local address that receives the sender's RTP. RTCP is handled as for the stream's own sender.
        listen: SocketAddr,
        /// The sender's codec.
        codec_in: CodecIn,
        /// The sender's payload type; `None`: the usual ones of the codec.
        payload_type_in: Option<u8>,
        /// The sender's SRTP key; `None`: plain RTP.
        srtp: Option<KeySource>,
    },
    /// A tone or a cadence.
    Tone(Box<Tone>),
    /// Silence.
    Silence,
    /// A WAV file, repeated.
    File(PathBuf),
}

/// The jitter buffer of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// Milliseconds from the arrival of an undelayed packet to its playout.
    pub latency_ms: u32,
    /// Adapt the delay to the network's jitter, up to the latency.
    pub adaptive: bool,
    /// Drop packets instead of holding more than the latency.
    pub drop_on_latency: bool,
    /// How the buffer follows the sender's clock.
    pub clock_skew: ClockSkew,
}

/// How a jitter buffer follows the sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSkew {
    /// It follows the least delayed packets of the last seconds, and so compensates for drift.
    Window,
    /// It follows only the first packet, so the clocks must agree.
    None,
}

/// The ports of a stream's RTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtcp {
    /// No RTCP.
    Off,
    /// On the RTP ports (RFC 5761).
    Mux,
    /// On separate ports.
    Ports {
        /// The receiving port; `None`: the one above the RTP port.
        listen: Option<u16>,
        /// The destination port; `None`: the one above the RTP port, or for a latched destination, the source of the peer's
        /// RTCP.
        destination: Option<u16>,
    },
}

/// The destination of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// RTP is sent to this host.
    Fixed {
        /// A name or an address, IPv6 without brackets.
        host: String,
        /// The port; never 0.
        port: u16,
    },
    /// Nowhere: the stream is only monitored.
    Nobody,
    /// Back to the sender's address, from the port that receives (symmetric RTP, RFC 4961).
    Latched,
}

impl Config {
    /// Reads and checks a configuration; `path` is only for messages.
    pub fn from_toml(path: &str, text: &str) -> Result<Config, ConfigError> {
        check::check(path, text, None)
    }

    /// Reads and checks a configuration. Also checks that `machine` has the listening addresses, and can resolve the
    /// destination names.
    pub fn from_toml_for(
        path: &str,
        text: &str,
        machine: &dyn Machine,
    ) -> Result<Config, ConfigError> {
        check::check(path, text, Some(machine))
    }

    /// Returns the folder of the streams' history. `None`: history is not saved, or the file has no streams.
    #[must_use]
    pub fn history_dir(&self) -> Option<PathBuf> {
        // A cluster may start streams here that are not in the file.
        let has_streams = !self.streams.is_empty() || self.cluster.is_some();
        has_streams.then(|| self.history.path(HISTORY)).flatten()
    }
}

/// Name of the history's folder in systemd's folder.
const HISTORY: &str = "history";

impl Config {
    /// Returns the folders of recordings.
    pub fn recording_roots(&self) -> impl Iterator<Item = &Path> {
        let of_streams = self.streams.iter().filter_map(|one| one.record.as_ref());
        let serving = self.serving.as_ref();
        let of_calls = serving.and_then(|serving| serving.record.as_ref());
        let on_demand = serving.and_then(|serving| serving.recording_dir.as_deref());
        let specs = of_streams.chain(of_calls);
        specs.map(|spec| spec.to.root()).chain(on_demand)
    }
}

impl Contexts {
    /// Returns the name of the context for stream number `index`. Streams are distributed round-robin.
    pub fn name_for(&self, index: usize) -> String {
        let context = index % self.count.max(1) as usize;
        format!("{}-{context}", self.prefix)
    }
}

impl StreamSpec {
    /// Returns the port that receives RTCP, if it is not the RTP port.
    pub fn rtcp_port(&self) -> Option<u16> {
        match self.rtcp {
            Rtcp::Off | Rtcp::Mux => None,
            Rtcp::Ports { listen, .. } => listen.or(self.listen.port().checked_add(1)),
        }
    }

    /// Returns the RTCP address of a fallback with the RTP address `listen`, if it differs from that address.
    pub fn rtcp_port_of(&self, listen: SocketAddr) -> Option<SocketAddr> {
        let port = listen.port().checked_add(1)?;
        matches!(self.rtcp, Rtcp::Ports { .. }).then(|| SocketAddr::new(listen.ip(), port))
    }

    /// Returns the name of an input. Input 0 is the stream's own sender.
    pub fn input_name(&self, input: usize) -> String {
        let fallback = input.checked_sub(1).and_then(|n| self.fallbacks.get(n));
        fallback.map_or_else(
            || "main".to_owned(),
            |fallback| format!("fallback {input}: {}", fallback.input),
        )
    }

    /// Whether packets are forwarded unchanged, byte for byte. With a latched destination, the SSRC must change: a peer that
    /// receives its own SSRC detects a loop. It must change for SRTP, too: only the stream itself can assign numbers so that none
    /// is encrypted twice.
    pub fn is_passthrough(&self) -> bool {
        let same_codec = match (self.codec_in, self.codec_out) {
            (_, None) => true,
            (CodecIn::Known(codec_in), Some(codec_out)) => codec_in == codec_out,
            (CodecIn::Auto, Some(_)) => false,
        };
        same_codec
            && self.fallbacks.is_empty()
            && self.pipeline.is_none()
            && self.srtp.output.is_none()
            && matches!(self.destination, Destination::Fixed { .. })
            && self.ptime_ms.is_none()
            && self.payload_type.is_none()
            && self.ssrc.is_none()
    }
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts {
            prefix: "gateway".to_owned(),
            count: 1,
            wait_ms: 20,
        }
    }
}

impl Default for Restart {
    fn default() -> Self {
        Restart {
            first: Duration::from_millis(500),
            max: Duration::from_secs(30),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Nobody => f.write_str("nobody"),
            Destination::Latched => f.write_str(LATCHED),
            Destination::Fixed { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Destination::Fixed { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl fmt::Display for InputSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputSpec::Rtp { listen, .. } => write!(f, "{listen}"),
            InputSpec::Tone(tone) => write!(f, "tone {tone}"),
            InputSpec::Silence => f.write_str("silence"),
            InputSpec::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for ClockSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockSkew::Window => "window",
            ClockSkew::None => "none",
        })
    }
}

/// The value of `destination` for [`Destination::Latched`].
const LATCHED: &str = "latched";

#[cfg(test)]
mod tests;
