//! The log of this process: `tracing` on standard error, as text or JSON. GStreamer's own log is included.

mod line;
mod recent;

use std::io::IsTerminal;
#[cfg(feature = "gstreamer")]
use std::time::Instant;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use self::line::OneLine;
pub use self::recent::{RecentLine, Subject, last_lines};

#[cfg(feature = "gstreamer")]
use crate::limit::{LineLimit, Verdict};

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// Sets up the log of this process; the environment variable THREADBARE_LOG overrides `default`.
pub fn init(format: LogFormat, default: &str) {
    let filter =
        EnvFilter::try_from_env("THREADBARE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let is_terminal = std::io::stderr().is_terminal();
    // By default, `tracing-subscriber` reports a failed write on standard error. There, the report fails too, and panics.
    let log = match format {
        LogFormat::Text => text_layer()
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .with_ansi(is_terminal)
            .boxed(),
        LogFormat::Json => fmt::layer()
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .json()
            .flatten_event(true)
            .boxed(),
    };
    let all = tracing_subscriber::registry()
        .with(filter)
        .with(log)
        .with(recent::of_process().clone());
    // This fails only if a log is already set up. That log stays in use.
    let _ = all.try_init();
}

fn text_layer<S>() -> fmt::Layer<S, OneLine, fmt::format::Format>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fmt::layer().fmt_fields(OneLine).with_target(false)
}

/// Writes GStreamer's log to the log of this process. GST_DEBUG selects the lines, as usual. By default, only errors are logged.
/// Warnings of elements do not name the stream here; the gateway logs them with the stream's name when elements post them as
/// messages.
#[cfg(feature = "gstreamer")]
pub fn bridge_gstreamer() {
    gst::log::remove_default_log_function();
    let limit = match std::env::var_os("GST_DEBUG") {
        None => {
            gst::log::set_default_threshold(gst::DebugLevel::Error);
            LineLimit::new(GSTREAMER_LINES_PER_SECOND)
        }
        // A user who sets GST_DEBUG wants all lines.
        Some(_) => LineLimit::new(u32::MAX),
    };
    gst::log::add_log_function(
        move |category, level, file, _function, line, object, message| {
            match limit.check(Instant::now()) {
                Verdict::Write { suppressed: 0 } => {}
                Verdict::Write { suppressed } => {
                    tracing::warn!(target: "gstreamer", suppressed, "log lines were left out")
                }
                Verdict::Suppress => return,
            }
            let text = message
                .get()
                .map(|text| text.to_string())
                .unwrap_or_default();
            let object = object.map(|object| object.to_string()).unwrap_or_default();
            let category = category.name();
            macro_rules! emit {
                ($level:expr, $($place:tt)*) => {
                    tracing::event!(target: "gstreamer", $level, category, object, $($place)* "{text}")
                };
            }
            match level {
                gst::DebugLevel::Error => emit!(tracing::Level::ERROR,),
                gst::DebugLevel::Warning | gst::DebugLevel::Fixme => emit!(tracing::Level::WARN,),
                gst::DebugLevel::Info => emit!(tracing::Level::INFO,),
                // Only debug lines have source positions.
                gst::DebugLevel::Debug => {
                    emit!(tracing::Level::DEBUG, file = file.as_str(), line,)
                }
                _ => emit!(tracing::Level::TRACE, file = file.as_str(), line,),
            }
        },
    );
}

/// Maximum number of lines per second. It is needed because a broken sender makes elements warn about every packet.
#[cfg(feature = "gstreamer")]
const GSTREAMER_LINES_PER_SECOND: u32 = 20;
