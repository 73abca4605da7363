//! Tests of the program and its parts as the user sees them. Each test runs in its own process (`make test` runs cargo-nextest).

// The program without GStreamer has a separate test. All other tests need all features.
#[cfg(not(feature = "gstreamer"))]
mod without_gstreamer;

#[cfg(feature = "gstreamer")]
mod abuse;
#[cfg(feature = "gstreamer")]
mod cli;
#[cfg(feature = "gstreamer")]
mod codecs;
#[cfg(feature = "gstreamer")]
mod common;
#[cfg(feature = "gstreamer")]
mod fallbacks;
#[cfg(feature = "gstreamer")]
mod live_loudness;
#[cfg(feature = "gstreamer")]
mod loudness;
#[cfg(feature = "gstreamer")]
mod loudness_tags;
#[cfg(feature = "gstreamer")]
mod manual;
#[cfg(feature = "gstreamer")]
mod pipelines;
#[cfg(feature = "gstreamer")]
mod real_tools;
#[cfg(feature = "gstreamer")]
mod rebalance;
#[cfg(feature = "gstreamer")]
mod recordings;
#[cfg(feature = "gstreamer")]
mod reload;
#[cfg(feature = "gstreamer")]
mod serve;
#[cfg(feature = "gstreamer")]
mod serve_alarms;
#[cfg(feature = "gstreamer")]
mod serve_changes;
#[cfg(feature = "gstreamer")]
mod serve_copies;
#[cfg(feature = "gstreamer")]
mod serve_destinations;
#[cfg(feature = "gstreamer")]
mod serve_echo;
#[cfg(feature = "gstreamer")]
mod serve_fallback;
#[cfg(feature = "gstreamer")]
mod serve_flood;
#[cfg(feature = "gstreamer")]
mod serve_http;
#[cfg(feature = "gstreamer")]
mod serve_http_calls;
#[cfg(feature = "gstreamer")]
mod serve_listen;
#[cfg(feature = "gstreamer")]
mod serve_media;
#[cfg(feature = "gstreamer")]
mod serve_ng_tcp;
#[cfg(feature = "gstreamer")]
mod serve_panel;
#[cfg(feature = "gstreamer")]
mod serve_records;
#[cfg(feature = "gstreamer")]
mod serve_restart;
#[cfg(feature = "gstreamer")]
mod serve_rtcp;
#[cfg(feature = "gstreamer")]
mod serve_strangers;
#[cfg(feature = "gstreamer")]
mod serve_xdp;
#[cfg(feature = "gstreamer")]
mod service_manager;
#[cfg(feature = "gstreamer")]
mod srtp_streams;
#[cfg(feature = "gstreamer")]
mod stream_quality;
#[cfg(feature = "gstreamer")]
mod stream_restart;
#[cfg(feature = "gstreamer")]
mod streams;
#[cfg(feature = "gstreamer")]
mod tones;
#[cfg(feature = "gstreamer")]
mod top;
