//! The configuration file as it is written: every value with its place, nothing judged yet.

use serde::Deserialize;
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawConfig {
    #[serde(default)]
    pub(super) contexts: RawContexts,
    #[serde(default)]
    pub(super) restart: RawRestart,
    #[serde(default)]
    pub(super) defaults: RawDefaults,
    #[serde(default)]
    pub(super) stream: Vec<Spanned<RawStream>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawContexts {
    pub(super) prefix: Option<Spanned<String>>,
    /// A number or "auto".
    pub(super) count: Option<Spanned<toml::Value>>,
    pub(super) wait: Option<Spanned<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawRestart {
    pub(super) first: Option<Spanned<i64>>,
    pub(super) max: Option<Spanned<i64>>,
}

/// What a stream that does not say otherwise gets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawDefaults {
    pub(super) codec: Option<Spanned<String>>,
    pub(super) codec_out: Option<Spanned<String>>,
    pub(super) ptime: Option<Spanned<i64>>,
    pub(super) latency: Option<Spanned<i64>>,
    pub(super) payload_type: Option<Spanned<i64>>,
    pub(super) payload_type_in: Option<Spanned<i64>>,
    pub(super) dtmf_payload_type: Option<Spanned<i64>>,
    pub(super) adaptive: Option<Spanned<bool>>,
    pub(super) drop_on_latency: Option<Spanned<bool>>,
    pub(super) clock_skew: Option<Spanned<String>>,
    pub(super) latch: Option<Spanned<bool>>,
    /// `true`, `false` or "mux".
    pub(super) rtcp: Option<Spanned<toml::Value>>,
    pub(super) cname: Option<Spanned<String>>,
    /// A number, or `false`.
    pub(super) loudness_target: Option<Spanned<toml::Value>>,
    pub(super) meter: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawStream {
    pub(super) name: Spanned<String>,
    pub(super) listen: Spanned<String>,
    pub(super) destination: Spanned<String>,
    pub(super) codec: Option<Spanned<String>>,
    pub(super) codec_out: Option<Spanned<String>>,
    pub(super) ptime: Option<Spanned<i64>>,
    pub(super) latency: Option<Spanned<i64>>,
    pub(super) payload_type: Option<Spanned<i64>>,
    pub(super) payload_type_in: Option<Spanned<i64>>,
    pub(super) dtmf_payload_type: Option<Spanned<i64>>,
    pub(super) adaptive: Option<Spanned<bool>>,
    pub(super) drop_on_latency: Option<Spanned<bool>>,
    pub(super) clock_skew: Option<Spanned<String>>,
    pub(super) latch: Option<Spanned<bool>>,
    pub(super) rtcp: Option<Spanned<toml::Value>>,
    pub(super) rtcp_port: Option<Spanned<i64>>,
    pub(super) destination_rtcp_port: Option<Spanned<i64>>,
    pub(super) cname: Option<Spanned<String>>,
    pub(super) loudness_target: Option<Spanned<toml::Value>>,
    pub(super) meter: Option<Spanned<bool>>,
    pub(super) ssrc: Option<Spanned<i64>>,
    pub(super) clock_rate: Option<Spanned<i64>>,
    pub(super) count: Option<Spanned<i64>>,
    pub(super) step: Option<Spanned<i64>>,
    pub(super) destination_step: Option<Spanned<i64>>,
}
