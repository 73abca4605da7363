//! Logs: `tracing` on standard error, as text or as JSON, with GStreamer's own log included.

mod kept;

use std::io::IsTerminal;
#[cfg(feature = "gstreamer")]
use std::time::Instant;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

pub use self::kept::{KeptLine, Subject, last_lines};

#[cfg(feature = "gstreamer")]
use crate::limit::{LineLimit, Verdict};

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// Sets up the log of this process; the environment variable THREADBARE_LOG overrides `default`.
pub fn init(format: LogFormat, default: &str) {
    let filter =
        EnvFilter::try_from_env("THREADBARE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // It would report the error on standard error, where writing has just failed, and panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let log = match format {
        LogFormat::Text => log.with_target(false).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let all = tracing_subscriber::registry()
        .with(filter)
        .with(log)
        .with(kept::of_process().clone());
    // Fails only if a log is already set up, which then stays.
    let _ = all.try_init();
}

/// Sends GStreamer's log through ours. GST_DEBUG keeps its meaning; without it, errors are logged. Elements' warnings do not name the
/// stream there; the gateway logs them as messages, which do.
#[cfg(feature = "gstreamer")]
pub fn bridge_gstreamer() {
    gst::log::remove_default_log_function();
    let limit = match std::env::var_os("GST_DEBUG") {
        None => {
            gst::log::set_default_threshold(gst::DebugLevel::Error);
            LineLimit::new(GSTREAMER_LINES_PER_SECOND)
        }
        // A user who sets GST_DEBUG wants the whole log.
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
                // Places in source code are for debugging.
                gst::DebugLevel::Debug => {
                    emit!(tracing::Level::DEBUG, file = file.as_str(), line,)
                }
                _ => emit!(tracing::Level::TRACE, file = file.as_str(), line,),
            }
        },
    );
}

/// A broken sender makes elements warn about every packet.
#[cfg(feature = "gstreamer")]
const GSTREAMER_LINES_PER_SECOND: u32 = 20;
