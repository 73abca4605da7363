//! `threadbare run` and `threadbare serve`: the streams of a configuration, and calls that come and go.

mod args;
mod manager;
mod reload;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use miette::{Context, IntoDiagnostic, miette};
use tokio::sync::oneshot::error::TryRecvError;

pub use self::args::{RunArgs, ServeArgs};
use self::manager::{Manager, status};
use crate::cluster::Cluster;
use crate::config::{Config, Machine};
use crate::event::Event;
use crate::gateway::{Gateway, Handled};
use crate::logging::{self, LogFormat};
use crate::pipeline::Elements;
use crate::process;
use crate::recording::{Recorder, RecordingState, recording_message};
use crate::reload::Reloads;
use crate::serve::{Beat, Server};
use crate::watch::{View, Watch};

/// What is run.
struct Job {
    config: Config,
    /// Where the configuration is from; `None`: from arguments.
    file: Option<PathBuf>,
    elements: Elements,
    log_format: LogFormat,
}

impl Job {
    /// Runs until SIGTERM or SIGINT.
    fn run(mut self) -> miette::Result<ExitCode> {
        logging::init(self.log_format, "info");
        init_gstreamer()?;
        if let Err(error) = threadbare_runtime::inspect::serve() {
            tracing::warn!(%error, "`threadbare inspect` will not reach this process");
        }
        look_at_descriptors(&self.config);
        let contexts = self.config.contexts.count;
        let mut gateway = self.start_gateway()?;
        let hang_up = match self.file.is_some() && !std::io::stdin().is_terminal() {
            true => Event::Reload,
            false => Event::Stop { cause: "SIGHUP" },
        };
        listen_to_signals(gateway.sender(), hang_up)?;
        gateway.handle_pending();
        say_running(&gateway, contexts);
        let serving = self.config.serving.as_ref();
        let watch = self.start_watch(&gateway)?;
        let recorder = gateway.recorder();
        watch_recordings(&recorder, &watch.view());
        let reloads = Arc::new(Reloads::new(gateway.sender()));
        let spec = self.config.cluster.as_ref();
        let join = |spec| Cluster::start(spec, &self.config.streams, &mut gateway);
        let cluster = spec.map(join).transpose()?;
        let start = |serving| {
            let (events, view) = (gateway.sender(), watch.view());
            let cluster = cluster.as_ref().map(Cluster::view);
            Server::start(
                serving,
                events,
                reloads.clone(),
                view,
                cluster,
                recorder.clone(),
            )
        };
        let mut server = serving.map(start).transpose()?;
        let mut manager = Manager::new();
        manager.ready(&status(&gateway, &self.config, None));
        let stopped_by = loop {
            match gateway.handle_for(manager.wait()) {
                Handled::Stop(cause) => break cause,
                Handled::TimeOut => self.feed(&mut manager, &gateway, server.as_mut()),
                Handled::Reload => {
                    manager.reloading();
                    let (server, cluster, view) = (server.as_ref(), cluster.as_ref(), watch.view());
                    let outcome = self.reload(&mut gateway, server, cluster, &view);
                    manager.set_refused(&outcome);
                    manager.ready(&status(&gateway, &self.config, None));
                    reloads.answer(&outcome);
                }
            }
        };
        manager.stopping(stopped_by);
        tracing::info!(cause = stopped_by, "draining");
        if let Some(cluster) = &cluster {
            give_away(&mut gateway, cluster);
        }
        let is_well = server.is_none_or(Server::end);
        stop(gateway);
        recorder.end();
        drop(watch);
        let is_well = cluster.is_none_or(Cluster::end) && is_well;
        tracing::info!("stopped");
        // Then a service manager begins anew.
        Ok(match is_well {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

impl Job {
    /// With the streams of the file, unless a cluster says which ones are carried here.
    fn start_gateway(&self) -> miette::Result<Gateway> {
        let mut config = self.config.clone();
        let is_recorded = config.streams.iter().any(|spec| spec.record.is_some());
        if is_recorded && matches!(self.elements, Elements::Stock) {
            return Err(miette!("--stock does not go with `record`"));
        }
        if config.cluster.is_some() {
            if matches!(self.elements, Elements::Stock) {
                return Err(miette!("--stock does not go with [cluster]"));
            }
            config.streams.clear();
        }
        let mut gateway = Gateway::start(config, self.elements).into_diagnostic()?;
        // Those of other nodes would find out too late.
        gateway.prepare(&self.config.streams).into_diagnostic()?;
        Ok(gateway)
    }

    fn start_watch(&self, gateway: &Gateway) -> miette::Result<Watch> {
        let alarms = &self.config.alarms;
        let alarms = (alarms.rules, alarms.webhook.as_deref());
        let watch = Watch::start(gateway.directory(), alarms).into_diagnostic()?;
        let history = self.config.history_dir();
        let kept = watch.view().set_history(history.as_deref());
        kept.into_diagnostic().wrap_err("`[history]`: `dir`")?;
        Ok(watch)
    }

    /// Feeds the watchdog, if the control thread works as this one does.
    fn feed(&self, manager: &mut Manager, gateway: &Gateway, server: Option<&mut Server>) {
        let calls = match server.map(Server::pulse) {
            Some(Beat::None) => return manager.starve("control"),
            Some(Beat::Answered(calls)) => Some(calls),
            Some(Beat::Asked) | None => None,
        };
        manager.feed(&status(gateway, &self.config, calls));
    }
}

/// The webhook of alarms is told of recordings that are whole, or were cut off.
fn watch_recordings(recorder: &Recorder, view: &View) {
    let view = view.clone();
    recorder.set_teller(move |entry| {
        if entry.state != RecordingState::Running {
            view.tell_webhook(entry.name(), &recording_message(entry));
        }
    });
}

/// Other nodes take what this one carries, one after the other.
fn give_away(gateway: &mut Gateway, cluster: &Cluster) {
    let mut left = cluster.leave();
    let end = Instant::now() + LEAVE_LIMIT;
    while Instant::now() < end {
        if let Handled::Stop(cause) = gateway.handle_for(Some(LEAVE_LOOK)) {
            tracing::warn!(cause, "stopping at once");
            return;
        }
        match left.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(()) | Err(TryRecvError::Closed) => return,
        }
    }
    let streams = gateway.len();
    tracing::warn!(streams, "not all streams could be given away in time");
}

fn stop(gateway: Gateway) {
    let undone = gateway.drain_and_stop(DRAIN_LIMIT);
    if undone > 0 {
        tracing::warn!(
            streams = undone,
            "stopped before these streams had sent everything"
        );
    }
}

fn say_running(gateway: &Gateway, contexts: u32) {
    match (gateway.streams_running(), gateway.len()) {
        (_, 0) => {}
        (0, all) => tracing::error!(
            streams = all,
            "no stream could be started; they are tried again"
        ),
        (running, all) if running < all => {
            let failed = all - running;
            tracing::warn!(streams = running, failed, contexts, "running");
        }
        (running, _) => tracing::info!(streams = running, contexts, "running"),
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

/// Sends [`Event::Stop`] on SIGTERM, SIGINT or SIGHUP, and [`Event::Report`] on SIGUSR1.
///
/// # Errors
/// The process cannot listen for signals.
pub fn stop_on_signals(events: Sender<Event>) -> miette::Result<()> {
    listen_to_signals(events, Event::Stop { cause: "SIGHUP" })
}

/// Sends [`Event::Stop`] on SIGTERM and SIGINT, [`Event::Report`] on SIGUSR1, and `hang_up` on SIGHUP: a closed terminal, or a service manager
/// that has the configuration read again.
fn listen_to_signals(events: Sender<Event>, hang_up: Event) -> miette::Result<()> {
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
                    SIGHUP => match &hang_up {
                        Event::Stop { cause } => Event::Stop { cause },
                        _ => Event::Reload,
                    },
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

fn look_at_descriptors(config: &Config) {
    let Some(limit) = process::raise_descriptor_limit() else {
        return;
    };
    let (needed, calls) = descriptors_needed(config);
    if limit < needed {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is too low for these streams: raise it with `ulimit -n` or LimitNOFILE="
        );
    }
    if calls > 0 && limit < needed + calls {
        let needed = needed + calls;
        tracing::info!(
            limit,
            needed,
            "open files: fewer calls than max-sessions fit"
        );
    }
}

/// Open files: of the streams and the process itself, and of as many calls as there may be.
pub(crate) fn descriptors_needed(config: &Config) -> (u64, u64) {
    let streams = (config.streams.len() * DESCRIPTORS_PER_STREAM + DESCRIPTORS_SPARE) as u64;
    let calls = config.serving.as_ref().map_or(0, |serving| {
        u64::from(serving.limits.max_sessions) * DESCRIPTORS_PER_CALL
    });
    (streams, calls)
}

/// Some streams at a time, half a second each: about 4000.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
const LEAVE_LOOK: Duration = Duration::from_millis(20);

/// Longest time for streams to send their received packets after a stop request.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Sockets for RTP and RTCP; a stream that is sent on unchanged has a pair on each side.
const DESCRIPTORS_PER_STREAM: usize = 4;

/// Two legs with a port for RTP and one for RTCP.
const DESCRIPTORS_PER_CALL: u64 = 4;

/// For standard streams, epoll, libraries.
const DESCRIPTORS_SPARE: usize = 64;
