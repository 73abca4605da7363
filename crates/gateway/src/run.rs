//! `threadbare run`: the gateway with a user's configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::Sender;
use std::time::Duration;

use miette::{Context, IntoDiagnostic};

use crate::config::{Config, Machine, ThisMachine};
use crate::event::Event;
use crate::gateway::{Gateway, Handled};
use crate::logging::{self, LogFormat};
use crate::pipeline::Elements;
use crate::process;

/// Runs the gateway of a configuration file until SIGTERM, SIGINT or SIGHUP.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The configuration file (TOML)
    pub config: PathBuf,
    /// List all mistakes in the configuration, and start nothing
    #[arg(long)]
    pub check: bool,
    /// With --check: print the configuration as understood, with defaults filled in and ranges counted out
    #[arg(long, requires = "check")]
    pub print: bool,
    /// Format of the log
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Use GStreamer's own udpsrc and udpsink, with a thread per stream, for comparison
    #[arg(long)]
    pub stock: bool,
}

impl RunArgs {
    /// Runs the command.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        let config = match self.check {
            true => read_config_for(&self.config, &ThisMachine)?,
            false => read_config(&self.config)?,
        };
        if self.print {
            print!("{}", config.to_toml());
            return Ok(ExitCode::SUCCESS);
        }
        if self.check {
            println!(
                "{}: fine. {} streams on {} contexts.",
                self.config.display(),
                config.streams.len(),
                config.contexts.count
            );
            return Ok(ExitCode::SUCCESS);
        }
        logging::init(self.log_format, "info");
        init_gstreamer()?;
        if let Err(error) = threadbare_runtime::inspect::serve() {
            tracing::warn!(%error, "`threadbare inspect` will not reach this process");
        }
        warn_about_descriptors(config.streams.len());
        let count = config.streams.len();
        let contexts = config.contexts.count;
        let elements = if self.stock {
            Elements::Stock
        } else {
            Elements::Threadbare
        };
        let mut gateway = Gateway::start(config, elements).into_diagnostic()?;
        stop_on_signals(gateway.sender())?;
        gateway.handle_pending();
        match (gateway.streams_running(), count) {
            (0, _) => tracing::error!(
                streams = count,
                "no stream could be started; they are tried again"
            ),
            (running, all) if running < all => {
                tracing::warn!(
                    streams = running,
                    failed = all - running,
                    contexts,
                    "running"
                );
            }
            (running, _) => tracing::info!(streams = running, contexts, "running"),
        }
        let stopped_by = match gateway.handle_for(None) {
            Handled::Stop(cause) => cause,
            Handled::TimeOut => "time",
        };
        tracing::info!(cause = stopped_by, "draining");
        let undone = gateway.drain_and_stop(DRAIN_LIMIT);
        if undone > 0 {
            tracing::warn!(
                streams = undone,
                "stopped before these streams had sent everything"
            );
        }
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads and checks a configuration file.
pub fn read_config(path: &Path) -> miette::Result<Config> {
    let text = read_text(path)?;
    Ok(Config::from_toml(&path.display().to_string(), &text)?)
}

/// Reads and checks a configuration file, also for this machine.
pub fn read_config_for(path: &Path, machine: &dyn Machine) -> miette::Result<Config> {
    let text = read_text(path)?;
    Ok(Config::from_toml_for(
        &path.display().to_string(),
        &text,
        machine,
    )?)
}

fn read_text(path: &Path) -> miette::Result<String> {
    std::fs::read_to_string(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot read the configuration {}", path.display()))
}

/// Initialises GStreamer with its log in ours, and registers the built-in elements. Here: there is none.
#[cfg(not(feature = "gstreamer"))]
pub fn init_gstreamer() -> miette::Result<()> {
    Ok(())
}

/// Initialises GStreamer with its log in ours, and registers the built-in elements.
#[cfg(feature = "gstreamer")]
pub fn init_gstreamer() -> miette::Result<()> {
    gst::init()
        .into_diagnostic()
        .wrap_err("GStreamer does not start")?;
    logging::bridge_gstreamer();
    gstthreadbare::plugin_register_static()
        .into_diagnostic()
        .wrap_err("Threadbare's elements cannot be registered")
}

/// Sends [`Event::Stop`] on SIGTERM, SIGINT or SIGHUP (a closed terminal), and [`Event::Report`] on SIGUSR1.
pub fn stop_on_signals(events: Sender<Event>) -> miette::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])
        .into_diagnostic()
        .wrap_err("cannot listen for signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let event = match signal {
                    SIGUSR1 => Event::Report,
                    SIGINT => Event::Stop { cause: "SIGINT" },
                    SIGHUP => Event::Stop { cause: "SIGHUP" },
                    _ => Event::Stop { cause: "SIGTERM" },
                };
                if events.send(event).is_err() {
                    return;
                }
            }
        })
        .into_diagnostic()
        .wrap_err("cannot start the thread for signals")?;
    Ok(())
}

fn warn_about_descriptors(streams: usize) {
    let needed = (streams * DESCRIPTORS_PER_STREAM + DESCRIPTORS_SPARE) as u64;
    if let Some(limit) = process::raise_descriptor_limit().filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is too low for these streams: raise it with `ulimit -n` or LimitNOFILE="
        );
    }
}

/// Longest time for streams to send their received packets after a stop request.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Sockets for RTP and RTCP; a stream that is sent on unchanged has a pair on each side.
const DESCRIPTORS_PER_STREAM: usize = 4;

/// For standard streams, epoll, libraries.
const DESCRIPTORS_SPARE: usize = 64;
