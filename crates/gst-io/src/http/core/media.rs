//! The format of a body, as far as its headers give it.

use reqwest::header::{CONTENT_TYPE, HeaderMap};

/// The format of a body, for caps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::http) enum Media {
    /// A stream of this type, with metadata after each interval of this many bytes (SHOUTcast).
    Icy {
        /// Bytes of the stream between two pieces of metadata.
        interval: i32,
        /// Type of the stream.
        content_type: Option<String>,
    },
    /// Samples of 16 bits, with the high byte first (RFC 2586).
    L16 {
        /// Sample rate in Hz.
        rate: i32,
        /// Number of channels, interleaved.
        channels: i32,
    },
    /// Unknown. Elements downstream detect the format.
    #[default]
    Unknown,
}

/// Default rate, which existing pipelines expect if the type has no rate.
const L16_RATE_DEFAULT: i32 = 44_100;
const L16_CHANNELS_DEFAULT: i32 = 2;
/// Maximum number of channels, that of GStreamer's audio elements.
const L16_CHANNELS_MAX: i32 = 64;
/// Maximum length of a content type; longer ones are ignored. A type and its parameters have some dozen bytes.
const CONTENT_TYPE_BYTES_MAX: usize = 256;

impl Media {
    /// Returns the format in a response's headers.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let content_type = content_type.filter(|value| value.len() <= CONTENT_TYPE_BYTES_MAX);
        let interval = number(headers, "icy-metaint").filter(|interval| *interval > 0);
        match (interval, content_type) {
            (Some(interval), content_type) => Media::Icy {
                interval,
                content_type: content_type.map(str::to_owned),
            },
            (None, Some(content_type)) => l16(content_type).unwrap_or_default(),
            (None, None) => Media::Unknown,
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<i32> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Parses a type such as `audio/L16; rate=48000; channels=1`.
fn l16(content_type: &str) -> Option<Media> {
    let mut parts = content_type.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case("audio/L16") {
        return None;
    }
    let (mut rate, mut channels) = (L16_RATE_DEFAULT, L16_CHANNELS_DEFAULT);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let value = value.trim().trim_matches('"').parse::<i32>().ok();
        let value = value.filter(|value| *value > 0);
        match name.trim().to_ascii_lowercase().as_str() {
            "rate" => rate = value.unwrap_or(rate),
            "channels" => {
                let value = value.filter(|value| *value <= L16_CHANNELS_MAX);
                channels = value.unwrap_or(channels);
            }
            _ => {}
        }
    }
    Some(Media::L16 { rate, channels })
}
