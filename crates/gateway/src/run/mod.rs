//! `threadbare run` and `threadbare serve`: run the streams of a configuration, and relay calls.

mod args;
mod manager;
mod reload;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use miette::{Context, IntoDiagnostic, miette};
use tokio::sync::oneshot::error::TryRecvError;

pub(crate) use self::args::{RunArgs, ServeArgs};
use self::manager::{Manager, status};
use threadbare_cluster::Cluster;
use threadbare_config::{Config, Machine, ThisMachine};
use threadbare_process::logging::{self, LogFormat};
use threadbare_process::usage;
use threadbare_recording::{Recorder, RecordingState, recording_message};
use threadbare_serve::{Beat, Server};
use threadbare_streams::event::{self, HangUp};
use threadbare_streams::gateway::{Gateway, Handled};
use threadbare_streams::init_gstreamer;
use threadbare_streams::pipeline::Elements;
use threadbare_streams::reload::Reloads;
use threadbare_watch::{View, Watch};

/// The configuration to run.
struct Job {
    config: Config,
    /// The configuration file. `None`: the settings came from the command line.
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
            tracing::warn!(%error, "`threadbare inspect` cannot reach this process");
        }
        look_at_descriptors(&self.config);
        let contexts = self.config.contexts.count;
        let rebalances = self.config.contexts.rebalance;
        let mut gateway = self.start_gateway()?;
        event::send_signals(gateway.sender(), self.hang_up())?;
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
                (serving, rebalances),
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
        // After a failure exit, the service manager restarts the process.
        Ok(if is_well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Job {
    /// Returns what SIGHUP does. This signal is also sent when a terminal closes.
    fn hang_up(&self) -> HangUp {
        if self.file.is_some() && !std::io::stdin().is_terminal() {
            HangUp::Reload
        } else {
            HangUp::Stop
        }
    }

    /// Starts the gateway with the streams of the file. In a cluster, it starts without streams.
    fn start_gateway(&self) -> miette::Result<Gateway> {
        let mut config = self.config.clone();
        let is_recorded = config.streams.iter().any(|spec| spec.record.is_some());
        if is_recorded && matches!(self.elements, Elements::Stock) {
            return Err(miette!("--stock cannot be combined with `record`"));
        }
        if config.cluster.is_some() {
            if matches!(self.elements, Elements::Stock) {
                return Err(miette!("--stock cannot be combined with [cluster]"));
            }
            config.streams.clear();
        }
        let mut gateway = Gateway::start(config, self.elements).into_diagnostic()?;
        // Check the streams here, because other nodes would find mistakes only when they start the streams.
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

    /// Feeds the watchdog, unless the control thread of the calls makes no progress.
    fn feed(&self, manager: &mut Manager, gateway: &Gateway, server: Option<&mut Server>) {
        let calls = match server.map(Server::liveness) {
            Some(Beat::None) => return manager.starve("control"),
            Some(Beat::Answered(calls)) => Some(calls),
            Some(Beat::Asked) | None => None,
        };
        manager.feed(&status(gateway, &self.config, calls));
    }
}

/// Sends complete and cut-off recordings to the webhook of the alarms.
fn watch_recordings(recorder: &Recorder, view: &View) {
    let view = view.clone();
    recorder.set_observer(move |entry| {
        if entry.state != RecordingState::Running {
            view.tell_webhook(entry.name(), &recording_message(entry));
        }
    });
}

/// Hands over this node's streams to other nodes, a few at a time.
fn give_away(gateway: &mut Gateway, cluster: &Cluster) {
    let mut left = cluster.leave();
    let end = Instant::now() + LEAVE_LIMIT;
    while Instant::now() < end {
        if let Handled::Stop(cause) = gateway.handle_for(Some(LEAVE_LOOK)) {
            tracing::warn!(cause, "the process stops at once");
            return;
        }
        match left.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(()) | Err(TryRecvError::Closed) => return,
        }
    }
    let streams = gateway.len();
    tracing::warn!(
        streams,
        "not all streams were handed over to other nodes in time"
    );
}

fn stop(gateway: Gateway) {
    let undone = gateway.drain_and_stop(DRAIN_LIMIT);
    if undone > 0 {
        tracing::warn!(
            streams = undone,
            "the process stopped before these streams had sent all received packets"
        );
    }
}

fn say_running(gateway: &Gateway, contexts: u32) {
    match (gateway.streams_running(), gateway.len()) {
        (_, 0) => {}
        (0, all) => tracing::error!(streams = all, "no stream could be started; retrying"),
        (running, all) if running < all => {
            let failed = all - running;
            tracing::warn!(streams = running, failed, contexts, "running");
        }
        (running, _) => tracing::info!(streams = running, contexts, "running"),
    }
}

/// Describes the machine on which this process runs, with its GStreamer.
fn this_machine() -> ThisMachine {
    let check_pipeline = |text: &str| {
        threadbare_streams::description::check(text).map_err(|error| error.to_string())
    };
    ThisMachine { check_pipeline }
}

/// Reads and checks a configuration file.
pub(crate) fn read_config(path: &Path) -> miette::Result<Config> {
    let text = read_text(path)?;
    Ok(Config::from_toml(&path.display().to_string(), &text)?)
}

/// Reads a configuration file, and checks it for this machine.
pub(crate) fn read_config_for(path: &Path, machine: &dyn Machine) -> miette::Result<Config> {
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

fn look_at_descriptors(config: &Config) {
    let Some(limit) = usage::raise_descriptor_limit() else {
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
            "the limit of open files is too low for the media streams that `max-sessions` allows"
        );
    }
}

/// Returns the number of open files that the streams and the process need, and the number that the allowed calls need.
pub(crate) fn descriptors_needed(config: &Config) -> (u64, u64) {
    let streams = (config.streams.len() * DESCRIPTORS_PER_STREAM + DESCRIPTORS_SPARE) as u64;
    let calls = config.serving.as_ref().map_or(0, |serving| {
        u64::from(serving.limits.max_sessions) * DESCRIPTORS_PER_CALL
    });
    (streams, calls)
}

/// Time limit for handing over streams. A few of them move in half a second, so this is enough for about 4000 streams.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
const LEAVE_LOOK: Duration = Duration::from_millis(20);

/// Time limit for streams to send their received packets after a stop request.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Sockets of a stream: for RTP and RTCP, on each side.
const DESCRIPTORS_PER_STREAM: usize = 4;

/// Sockets of a call: two legs, each with a port for RTP and one for RTCP.
const DESCRIPTORS_PER_CALL: u64 = 4;

/// Descriptors for standard streams, epoll and libraries.
const DESCRIPTORS_SPARE: usize = 64;
