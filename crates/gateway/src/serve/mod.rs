//! A media relay for SIP proxies. Calls are made, changed and ended by the ng protocol.

mod acceptor;
mod asker;
pub(crate) mod audio_file;
mod call_name;
mod clips;
mod endings;
mod events;
mod feeds;
mod http;
mod interfaces;
mod load;
mod media;
mod metrics;
mod names;
mod ng_tcp;
mod node_desk;
mod orders;
mod plays;
mod policy;
mod pulse;
mod reading;
mod records;
mod reports;
mod service;
mod shown;
mod spec;
mod store;
mod trail;
mod wake;

use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use miette::{Context, IntoDiagnostic, miette};
use threadbare_control::calls::{Calls, Settings, Timeouts};
use threadbare_rtp::id::NtpTime;
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::Xdp;

use self::acceptor::Acceptor;
use self::http::Http;
use self::interfaces::Interfaces;
use self::media::MediaPlane;
use self::metrics::Metrics;
use self::node_desk::NodeDesk;
use self::orders::Control;
use self::plays::Plays;
pub use self::pulse::Beat;
use self::pulse::Pulse;
use self::records::Records;
use self::service::Service;
use self::spec::{Common, Latency};
use self::store::{Identity, Saved, Store};
use self::wake::Wake;
use crate::cluster::ClusterView;
use crate::config::Serving;
use crate::event::Event;
use crate::recording::Recorder;
use crate::reload::Reloads;
use crate::system::unix_at_zero_ns;
use crate::watch::View;

/// The control thread. Dropped, it ends all calls.
pub struct Server {
    stop: UnixStream,
    control: Control<Service>,
    recorder: Recorder,
    pulse: Pulse<usize>,
    /// Whether it was well to its end.
    thread: Option<JoinHandle<bool>>,
}

impl Server {
    /// Opens the sockets and starts the threads. A failure later is told by [`Event::Stop`].
    ///
    /// # Errors
    /// A socket cannot be opened, or threads run out.
    pub fn start(
        serving: &Serving,
        events: Sender<Event>,
        reloads: Arc<Reloads>,
        view: View,
        cluster: Option<ClusterView>,
        recorder: Recorder,
    ) -> miette::Result<Server> {
        let store = open_store(serving)?;
        let identity = store.as_ref().map(|(_, saved)| saved.identity);
        let identity = identity.unwrap_or_else(Identity::new);
        let common = Common {
            cname: format!("{:016x}", identity.cname).into(),
            ntp_at_zero: NtpTime::at_unix_ns(unix_at_zero_ns()),
            latency: latency(serving),
        };
        // A call may have several streams.
        let streams_max = u64::from(serving.limits.max_sessions) * 4;
        let wake = Wake::new().into_diagnostic()?;
        let xdp = open_xdp(serving)?;
        let media = MediaPlane::new(serving.threads, streams_max, xdp, common, wake.clone());
        let mut media = media.into_diagnostic()?;
        open_roots(&recorder, serving)?;
        let on_demand = serving.recording_dir.clone();
        let on_demand = on_demand.map(|folder| (folder, serving.recording_format));
        media.record_with(recorder.clone(), on_demand, serving.record.clone());
        let interfaces = Interfaces::new(&serving.interfaces).into_diagnostic()?;
        let socket = UdpSocket::bind(serving.ng)
            .into_diagnostic()
            .wrap_err_with(|| format!("requests of SIP proxies at {}", serving.ng))?;
        let ng = socket.local_addr().into_diagnostic()?;
        let ng_tcp = serving.ng_tcp.map(ng_tcp::open).transpose()?;
        let http = serving.http.as_ref().map(Http::open).transpose()?;
        let calls = Calls::new(settings(serving, identity));
        let plays = Plays::new().into_diagnostic()?;
        let metrics = Metrics::new(view.clone(), cluster.clone());
        let mut service = Service::new(calls, media, plays, interfaces, socket, wake, metrics);
        limit(&mut service, serving);
        let threads = service.media.threads();
        service.records = open_records(serving)?;
        if let Some((store, saved)) = store {
            service.keep_in(store, saved);
        }
        let of_cluster = cluster.as_ref().and_then(ClusterView::listens_at);
        let control = service.control();
        let app = http::app(&service, reloads, view, cluster.clone(), recorder.clone());
        share(&mut service, cluster, &app, serving)?;
        let http = http.map(|http| http.start(app)).transpose();
        let http = http.into_diagnostic()?;
        let http_address = http.as_ref().map(|http| http.address);
        let ng_tcp_address = ng_tcp.as_ref().and_then(|one| one.local_addr().ok());
        service.set_services(&[Some(ng), ng_tcp_address, http_address, of_cluster]);
        let start = |listener| ng_tcp::start(listener, service.control());
        let ng_tcp = ng_tcp.map(start).transpose().into_diagnostic()?;
        let connections = Connections { http, ng_tcp };
        let (stop, told) = UnixStream::pair().into_diagnostic()?;
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || control_calls(service, &told, connections, events));
        let http = http_address.map(tracing::field::display);
        let ng_tcp = ng_tcp_address.map(tracing::field::display);
        tracing::info!(%ng, ng_tcp, http, threads, "serving");
        Ok(Server {
            stop,
            control,
            recorder,
            pulse: Pulse::new(),
            thread: Some(thread.into_diagnostic()?),
        })
    }

    /// The file of records was moved away: another one of its name is begun.
    pub fn reopen_records(&self) {
        let order = |service: &mut Service| {
            if let Some(records) = &mut service.records {
                records.reopen();
            }
        };
        if let Err(error) = self.control.order(order) {
            tracing::error!(%error, "records of calls go on in the file that was moved away");
        }
    }

    /// Whether the control thread still works, and how many calls are up. Does not wait: it is told at the next look.
    pub fn pulse(&mut self) -> Beat<usize> {
        let calls = |service: &mut Service| service.calls.len();
        self.pulse.look(&self.control, calls)
    }

    /// Applies limits, time-outs, who may ask, interfaces and the delay of jitter buffers. Calls that are up keep their ports and their delay.
    ///
    /// # Errors
    /// A range of ports is none, or the control thread does not answer.
    pub fn reload(&self, serving: &Serving) -> miette::Result<()> {
        open_roots(&self.recorder, serving)?;
        let serving = serving.clone();
        let latency = latency(&serving);
        let (tell, told) = channel();
        let order = move |service: &mut Service| {
            if let Err(error) = service.set_interfaces(&serving.interfaces) {
                let _ = tell.send(Err(error));
                return;
            }
            limit(service, &serving);
            service.media.set_latency(latency);
            service.media.set_policy(serving.record.clone());
            let settings = Settings {
                timeouts: timeouts(&serving),
                sessions_max: serving.limits.max_sessions as usize,
                ..service.calls.settings().clone()
            };
            service.calls.set_settings(settings);
            let _ = tell.send(Ok(()));
        };
        self.control.order(order).into_diagnostic()?;
        match told.recv_timeout(RELOAD_TIME_MAX) {
            Ok(changed) => changed.into_diagnostic(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(miette!("the control thread does not answer"))
            }
        }
    }
}

impl Server {
    /// Ends all calls. Whether the control thread was well to its end.
    #[must_use]
    pub fn end(mut self) -> bool {
        self.join()
    }

    fn join(&mut self) -> bool {
        // It ends when the other end is closed.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        let joined = self.thread.take().map(JoinHandle::join);
        match joined {
            Some(Ok(is_well)) => is_well,
            Some(Err(_)) => {
                tracing::error!("the control thread has panicked: the log has the place");
                false
            }
            None => true,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.join();
    }
}

/// Tells the main thread that the control thread has ended, also by a panic.
struct TellsEnd {
    events: Sender<Event>,
    cause: &'static str,
}

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let cause = self.cause;
        // Who has stopped it does not listen any more.
        let _ = self.events.send(Event::Stop { cause });
    }
}

fn open_xdp(serving: &Serving) -> miette::Result<Option<Xdp>> {
    let opened = serving.xdp.as_ref().map(Xdp::open).transpose();
    let opened = opened
        .into_diagnostic()
        .wrap_err("packets past the sockets (`xdp`)")?;
    if let Some(xdp) = &serving.xdp {
        let devices = xdp.devices.join(", ");
        tracing::info!(devices, mode = %xdp.mode, "packets of calls go past the sockets");
    }
    Ok(opened)
}

/// Who may ask, where media may be sent, and when new calls are refused.
fn limit(service: &mut Service, serving: &Serving) {
    service.allow_only(serving.allow.clone());
    service.set_media_rules(serving.media.clone());
    service.set_lateness_max(Duration::from_millis(serving.limits.lateness_ms.into()));
    service.set_cpu_percent_max(serving.limits.cpu_percent);
}

fn latency(serving: &Serving) -> Latency {
    let ms = serving.latency_ms.unwrap_or(Serving::LATENCY_MS_DEFAULT);
    Latency {
        ns: u64::from(ms) * 1_000_000,
        is_asked_for: serving.latency_ms.is_some(),
    }
}

/// Threads that answer connections.
struct Connections {
    http: Option<http::Running>,
    ng_tcp: Option<Acceptor>,
}

impl Connections {
    /// To be called when the service is gone.
    fn stop(self) {
        if let Some(http) = self.http {
            http.stop();
        }
        if let Some(ng_tcp) = self.ng_tcp {
            ng_tcp.stop();
        }
    }
}

/// The control thread, from beginning to end.
fn control_calls(
    mut service: Service,
    told: &UnixStream,
    connections: Connections,
    events: Sender<Event>,
) -> bool {
    let mut end = TellsEnd {
        events,
        cause: "a panic of the control thread",
    };
    let outcome = service.run(told);
    let cause = match &outcome {
        Ok(()) => "the last call of a drain",
        Err(error) => {
            tracing::error!(%error, "requests cannot be received any more");
            "a failed socket"
        }
    };
    let calls = service.calls.len();
    tracing::info!(calls, "stopping");
    service.leave_all();
    drop(service);
    connections.stop();
    end.cause = cause;
    outcome.is_ok()
}

/// Requests for calls may come to any node of the cluster, if it is there for that; and this node goes on with calls of others.
fn share(
    service: &mut Service,
    cluster: Option<ClusterView>,
    app: &http::App,
    serving: &Serving,
) -> miette::Result<()> {
    let Some(cluster) = cluster.filter(ClusterView::has_calls) else {
        return Ok(());
    };
    service.share(cluster.clone());
    let addresses = &serving.service_addresses;
    let kept = service.keep_in_cluster(&cluster, addresses, &serving.interfaces);
    kept.into_diagnostic()?;
    let desk = NodeDesk::new(
        service.control(),
        http::open_router(app.clone()),
        cluster.node(),
    );
    cluster.open_desk(Arc::new(desk));
    Ok(())
}

/// The folders that calls are recorded in.
fn open_roots(recorder: &Recorder, serving: &Serving) -> miette::Result<()> {
    if let Some(root) = &serving.recording_dir {
        recorder.open_root(root).into_diagnostic()?;
    }
    if let Some(spec) = &serving.record {
        recorder.open(&spec.to).into_diagnostic()?;
    }
    Ok(())
}

/// The file that ended calls are added to, if there is to be one.
fn open_records(serving: &Serving) -> miette::Result<Option<Records>> {
    let open = |path: &std::path::PathBuf| {
        let records = Records::open(path).into_diagnostic();
        records.wrap_err_with(|| format!("records of calls in {}", path.display()))
    };
    serving.records.as_ref().map(open).transpose()
}

/// The file of the state, if there is to be one.
fn open_store(serving: &Serving) -> miette::Result<Option<(Store, Saved)>> {
    // With service addresses, calls are in etcd: another node may have gone on with them before this one is back.
    let is_elsewhere = !serving.service_addresses.is_empty();
    let path = serving.state.path(STATE_FILE);
    let opened = path
        .filter(|_| !is_elsewhere)
        .map(|path| Store::open(&path))
        .transpose();
    opened.map_err(|error| miette!(help = error.help(), "{error}"))
}

fn timeouts(serving: &Serving) -> Timeouts {
    let times = &serving.timeouts;
    let seconds = |seconds: u32| (seconds > 0).then_some(u64::from(seconds) * NS_PER_S);
    Timeouts {
        offer_ns: seconds(times.offer_s),
        media_ns: seconds(times.media_s),
        silent_ns: seconds(times.silent_s),
        final_ns: seconds(times.final_s),
        delete_delay_ns: u64::from(times.delete_delay_s) * NS_PER_S,
    }
}

fn settings(serving: &Serving, identity: Identity) -> Settings {
    Settings {
        timeouts: timeouts(serving),
        sessions_max: serving.limits.max_sessions as usize,
        unix_at_zero_ns: unix_at_zero_ns(),
        started_ns: clock_now_ns(),
        instance: format!("{:016x}", identity.instance),
    }
}

/// In systemd's folder.
const STATE_FILE: &str = "calls.redb";
const NS_PER_S: u64 = 1_000_000_000;
/// Of the control thread, on an overloaded machine.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kept;

    /// Without it, calls could not be reached any more, and nobody would notice.
    #[test]
    fn a_panic_of_the_control_thread_ends_the_process_as_a_failure() {
        let (events, told) = channel();
        let serving = Serving {
            ng: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
            state: Kept::Off,
            ..Serving::default()
        };
        let watch = crate::watch::Watch::start(
            crate::watch::Directory::default(),
            (crate::watch::Rules::default(), None),
        );
        let watch = watch.expect("a thread");
        let reloads = Arc::new(Reloads::new(events.clone()));
        let start = || {
            Server::start(
                &serving,
                events.clone(),
                reloads.clone(),
                watch.view(),
                None,
                Recorder::default(),
            )
        };
        let server = start().expect("it starts");
        server
            .control
            .order(|_| panic!("as a test does"))
            .expect("there is room");
        let told_of = |event| match event {
            Ok(Event::Stop { cause }) => cause,
            other => panic!("{other:?}"),
        };
        let limit = Duration::from_secs(60);
        assert_eq!(
            told_of(told.recv_timeout(limit)),
            "a panic of the control thread"
        );
        assert!(!server.end());
        // One that is stopped is well.
        assert!(start().expect("it starts again").end());
    }
}
