//! The configuration file. It is checked completely before any socket is bound.
//!
//! [`Config::from_toml`] is the only constructor. It refuses unknown keys, because a misspelt key would otherwise silently keep its
//! default. A `[[stream]]` table with a `count` is a range, and becomes that many [`StreamSpec`]s.
//!
//! This crate is a part of the gateway `threadbare`, and not a public interface.
#![forbid(unsafe_code)]

mod alarms;
mod call_fallback;
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
pub use self::call_fallback::{CallFallback, CallSound};
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
    /// The threads that carry the streams.
    pub contexts: Contexts,
    /// The waits before a failed stream is restarted.
    pub restart: Restart,
    /// File in which the positions of the streams are kept.
    pub positions: StateLocation,
    /// The streams. No two of them have the same name or the same listening port.
    pub streams: Vec<StreamSpec>,
    /// Settings of alarms.
    pub alarms: AlarmSpec,
    /// Folder for the history of the last day of each stream.
    pub history: StateLocation,
    /// The store for recordings to `s3://…`. `None`: there is no store.
    pub store: Option<StoreSpec>,
    /// Settings of the cluster that carries the streams. `None`: this process carries all streams.
    pub cluster: Option<ClusterSpec>,
    /// Settings of calls. `None`: this process carries no calls.
    pub serving: Option<Serving>,
}

/// The contexts (threads) that carry the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Contexts {
    /// Contexts are called `PREFIX-0`, `PREFIX-1` and so on.
    pub prefix: String,
    /// Number of contexts, at least 1.
    pub count: u32,
    /// Length of a slice in milliseconds. With 0, each packet is handled as soon as it arrives.
    pub wait_ms: u32,
    /// Whether an overloaded thread hands streams, and streams of calls, to another one.
    pub rebalance: bool,
}

/// Waits before a failed stream is restarted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// Wait before the first restart. The wait doubles with each further restart.
    pub first: Duration,
    /// Maximum of the wait.
    pub max: Duration,
}

/// The settings of a stream: input, codecs, destination and others.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSpec {
    /// Name of the stream. It is unique in the configuration.
    pub name: String,
    /// Local address at which RTP is received.
    pub listen: SocketAddr,
    /// Codec of received packets.
    pub codec_in: CodecIn,
    /// Payload type of received packets. `None`: [the usual ones](Codec::usual_payload_types) of the codec.
    pub payload_type_in: Option<u8>,
    /// Codec of sent packets. `None`: the received codec.
    pub codec_out: Option<Codec>,
    /// Destination of the packets.
    pub destination: Destination,
    /// Packet time of sent packets in ms. `None`: the packet time of the received packets.
    pub ptime_ms: Option<u32>,
    /// Settings of the jitter buffer.
    pub jitter: Jitter,
    /// Ports of RTCP, in both directions.
    pub rtcp: Rtcp,
    /// CNAME in RTCP. `None`: a random one, which all streams of the process share.
    pub cname: Option<String>,
    /// Whether the stream learns the sender's address from the first packets, and refuses packets from other addresses.
    pub latch: bool,
    /// Time after the first packet during which the sender's address may change, in seconds. `None`: it may change at any time.
    pub latch_window_s: Option<u32>,
    /// Networks that may send to the stream. If the list is empty, all networks may.
    pub sources: Vec<Network>,
    /// Payload type of telephone events (RFC 4733). The events are passed on unchanged.
    pub dtmf_payload_type: u8,
    /// Payload type of sent packets. `None`: the default of the codec.
    pub payload_type: Option<u8>,
    /// SSRC of sent packets. `None`: a random one.
    pub ssrc: Option<u32>,
    /// Clock rate of received packets, whatever their payload type. `None`: the clock rate of the codec.
    pub clock_rate_hz: Option<u32>,
    /// Target loudness in LUFS. `None`: the loudness is not changed.
    pub loudness_target_lufs: Option<f64>,
    /// Whether loudness is measured if the audio is decoded.
    pub meter: bool,
    /// Times of day at which integrated loudness, range and true peak are reset, in minutes after local midnight.
    pub loudness_resets: Vec<u16>,
    /// GStreamer elements between decoding and encoding, written as for `gst-launch-1.0`. `None`: there are no such elements.
    pub pipeline: Option<String>,
    /// Fallbacks that are used while the sender is silent. The first healthy one is used.
    pub fallbacks: Vec<FallbackSpec>,
    /// SRTP keys of the input and of the output.
    pub srtp: SrtpSpec,
    /// Settings of the stream in a cluster.
    pub placement: Placement,
    /// Settings for recording the stream. `None`: the stream is not recorded.
    pub record: Option<RecordSpec>,
}

/// A fallback of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct FallbackSpec {
    /// The input of the fallback.
    pub input: InputSpec,
    /// Time for which the previous input may be silent before this fallback is used, in ms.
    pub timeout_ms: u32,
    /// Time for which a better input must be healthy before the stream returns to it, in ms.
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
        /// Payload type of the sender's packets. `None`: the usual ones of the codec.
        payload_type_in: Option<u8>,
        /// SRTP key of the sender. `None`: plain RTP.
        srtp: Option<KeySource>,
    },
    /// A tone or a cadence.
    Tone(Box<Tone>),
    /// Silence.
    Silence,
    /// A WAV file, which is repeated.
    File(PathBuf),
}

/// The jitter buffer of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// Time from the arrival of an undelayed packet to its playout, in milliseconds.
    pub latency_ms: u32,
    /// Whether the delay adapts to the network's jitter, up to the latency.
    pub adaptive: bool,
    /// Whether packets are dropped instead of being held for longer than the latency.
    pub drop_on_latency: bool,
    /// How the buffer follows the sender's clock.
    pub clock_skew: ClockSkew,
}

/// How a jitter buffer follows the sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSkew {
    /// It follows the least delayed packets of the last seconds. In this way, it compensates for the drift of the sender's clock.
    Window,
    /// It follows only the first packet. The sender's clock must not drift from the local clock.
    None,
}

/// The ports of a stream's RTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtcp {
    /// No RTCP.
    Off,
    /// RTCP on the RTP ports (RFC 5761).
    Mux,
    /// RTCP on separate ports.
    Ports {
        /// The receiving port. `None`: the port above the RTP port.
        listen: Option<u16>,
        /// The destination port. `None`: the port above the RTP port. For a latched destination, `None` means the port from which the peer
        /// sends RTCP.
        destination: Option<u16>,
    },
}

/// The destination of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A host to which RTP is sent.
    Fixed {
        /// A name or an address. An IPv6 address has no brackets.
        host: String,
        /// The port, which is never 0.
        port: u16,
    },
    /// No destination. The stream is only monitored.
    Nobody,
    /// The address of the sender. Packets to it leave from the port that receives (symmetric RTP, RFC 4961).
    Latched,
}

impl Config {
    /// Reads and checks a configuration. `path` is only used in messages.
    pub fn from_toml(path: &str, text: &str) -> Result<Config, ConfigError> {
        check::check(path, text, None)
    }

    /// Reads and checks a configuration. Also checks whether `machine` has the listening addresses, and whether it can resolve the names of
    /// the destinations.
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
        // A node of a cluster may have to start streams that are not in its file.
        let has_streams = !self.streams.is_empty() || self.cluster.is_some();
        has_streams.then(|| self.history.path(HISTORY)).flatten()
    }

    /// Returns the file in which the positions of the streams are kept. `None`: they are not kept, because streams end with the process, or
    /// because other nodes of a cluster continue them.
    #[must_use]
    pub fn positions_file(&self) -> Option<PathBuf> {
        let is_alone = !self.streams.is_empty() && self.cluster.is_none();
        is_alone.then(|| self.positions.path(POSITIONS)).flatten()
    }
}

/// Name of the file of positions in systemd's folder.
const POSITIONS: &str = "streams.state";
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
    /// Returns the name of the context with this index. An index after the last context means the first one again, and so on.
    pub fn name_for(&self, index: usize) -> String {
        let context = index % self.count.max(1) as usize;
        format!("{}-{context}", self.prefix)
    }
}

impl StreamSpec {
    /// Returns the port that receives RTCP, or `None` if it is the RTP port or there is no RTCP.
    pub fn rtcp_port(&self) -> Option<u16> {
        match self.rtcp {
            Rtcp::Off | Rtcp::Mux => None,
            Rtcp::Ports { listen, .. } => listen.or(self.listen.port().checked_add(1)),
        }
    }

    /// Returns the RTCP address of a fallback with the RTP address `listen`, or `None` if it is the same or there is no RTCP.
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

    /// Whether packets are forwarded unchanged, byte for byte. This is not possible with a latched destination: a peer that receives its
    /// own SSRC detects a loop, so the SSRC must change. With SRTP it is not possible either, because the stream itself must assign the
    /// sequence numbers, so that no number is used twice with one key.
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
            rebalance: true,
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
