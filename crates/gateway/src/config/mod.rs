//! The configuration: what a user writes, checked completely before anything is bound.
//!
//! [`Config::from_toml`] is the only way in. It refuses what it does not know, so that a misspelt key
//! never silently means its default. `[[stream]]` tables with a `count` are ranges and come out as
//! that many [`StreamSpec`]s.

mod check;
mod print;
mod problem;
mod raw;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub use self::problem::{ConfigError, Problem};
use crate::codec::{Codec, CodecIn};

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The threads.
    pub contexts: Contexts,
    /// What happens to a stream that fails.
    pub restart: Restart,
    /// At least one; names and listening ports differ.
    pub streams: Vec<StreamSpec>,
}

/// The contexts (threads) that carry the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Contexts {
    /// Contexts are called `PREFIX-0`, `PREFIX-1` and so on.
    pub prefix: String,
    /// At least 1.
    pub count: u32,
    /// Slice length in milliseconds; 0 handles each packet as it arrives.
    pub wait_ms: u32,
}

/// Times between the restarts of a stream that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// Before the first restart; doubles each time.
    pub first: Duration,
    /// Never more than this.
    pub max: Duration,
}

/// One stream: from where, as what, to where.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSpec {
    /// Unique in the configuration.
    pub name: String,
    /// The local address that receives RTP.
    pub listen: SocketAddr,
    /// What arrives.
    pub codec_in: CodecIn,
    /// What is sent; `None`: what arrives.
    pub codec_out: Option<Codec>,
    /// Where to.
    pub destination: Destination,
    /// Packet time of what is sent, in milliseconds; `None`: that of what arrives.
    pub ptime_ms: Option<u32>,
    /// Jitter buffer in milliseconds; 0: none.
    pub latency_ms: u32,
    /// Payload type of what is sent; `None`: the codec's own.
    pub payload_type: Option<u8>,
    /// SSRC of what is sent; `None`: random.
    pub ssrc: Option<u32>,
}

/// Where a stream is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// Not 0.
    pub port: u16,
}

impl Config {
    /// Reads and checks a configuration; `path` is only for messages.
    pub fn from_toml(path: &str, text: &str) -> Result<Config, ConfigError> {
        check::check(path, text)
    }
}

impl Contexts {
    /// The context that carries stream number `index`: streams are dealt out in turn.
    pub fn name_for(&self, index: usize) -> String {
        let context = index % self.count.max(1) as usize;
        format!("{}-{context}", self.prefix)
    }
}

impl StreamSpec {
    /// Whether packets go out as they came in, byte for byte.
    pub fn is_passthrough(&self) -> bool {
        let same_codec = match (self.codec_in, self.codec_out) {
            (_, None) => true,
            (CodecIn::Known(codec_in), Some(codec_out)) => codec_in == codec_out,
            (CodecIn::Auto, Some(_)) => false,
        };
        same_codec && self.ptime_ms.is_none() && self.payload_type.is_none() && self.ssrc.is_none()
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
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests;
