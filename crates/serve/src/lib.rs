//! A media relay for SIP proxies, which make, change and end calls by the ng protocol.
//!
//! The crate is a part of the gateway `threadbare`, and not a public interface.
#![forbid(unsafe_code)]

mod acceptor;
mod asker;
mod call_name;
mod clips;
mod endings;
mod events;
mod feeds;
mod http;
mod interfaces;
mod liveness;
mod load;
mod measured;
mod media;
mod metrics;
mod names;
mod ng_stats;
mod ng_tcp;
mod node_requests;
mod orders;
mod plays;
mod policy;
mod quality_history;
mod records;
mod reports;
mod service;
mod spec;
mod store;
mod views;
mod waker;

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use threadbare_base::NS_PER_S;

use miette::{Context, IntoDiagnostic, miette};
use threadbare_control::calls::{Calls, Settings, Timeouts};
use threadbare_rtp::id::NtpTime;
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::Xdp;

use self::acceptor::Acceptor;
use self::http::Http;
use self::interfaces::Interfaces;
pub use self::liveness::Beat;
use self::liveness::Liveness;
use self::media::MediaWorkers;
use self::metrics::Metrics;
use self::node_requests::NodeRequests;
use self::orders::Control;
use self::plays::Plays;
use self::records::Records;
use self::service::{Service, saved_state};
use self::spec::{Common, Latency};
use self::store::{Identity, Saved, Store};
use self::waker::WakeSignal;
use threadbare_cluster::ClusterView;
use threadbare_config::{InterfaceSpec, RecordingFormat, Serving};
use threadbare_process::system::unix_at_zero_ns;
use threadbare_recording::Recorder;
use threadbare_streams::event::Event;
use threadbare_streams::reload::Reloads;
use threadbare_watch::View;

/// Handle to the control thread. Dropping it ends all calls.
pub struct Server {
    stop: UnixStream,
    control: Control<Service>,
    recorder: Recorder,
    liveness: Liveness<usize>,
    /// The control thread, which returns whether it ended without a failure.
    thread: Option<JoinHandle<bool>>,
}

impl Server {
    /// Opens the sockets and starts the threads. [`Event::Stop`] reports later failures. `rebalances`: whether busy media threads hand
    /// streams to others.
    ///
    /// # Errors
    /// Fails if a socket cannot be opened, or threads run out.
    pub fn start(
        (serving, rebalances): (&Serving, bool),
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
            meters: serving.meter,
        };
        // A call may have several streams.
        let streams_max = u64::from(serving.limits.max_sessions) * 4;
        let wake = WakeSignal::new().into_diagnostic()?;
        let xdp = open_xdp(serving)?;
        let (threads, watched) = (serving.threads, view.calls().clone());
        let media = MediaWorkers::new(threads, streams_max, xdp, common, wake.clone(), watched);
        let mut media = media.into_diagnostic()?;
        media.balance(rebalances, view.moves());
        open_roots(&recorder, serving)?;
        media.record_with(recorder.clone(), on_demand(serving), serving.record.clone());
        let interfaces = Interfaces::new(&serving.interfaces).into_diagnostic()?;
        let socket = bind_ng(serving.ng)?;
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
            saved_state::restore(&mut service, store, saved);
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
            liveness: Liveness::new(),
            thread: Some(thread.into_diagnostic()?),
        })
    }

    /// Opens the CDR file again, after it was moved away.
    pub fn reopen_records(&self) {
        let order = |service: &mut Service| {
            if let Some(records) = &mut service.records {
                records.reopen();
            }
        };
        if let Err(error) = self.control.order(order) {
            tracing::error!(%error, "cannot open the CDR file again, so CDRs still go to the renamed file");
        }
    }

    /// Asks the control thread whether it still works, and how many calls it has. This does not wait, so it returns the answer to the
    /// previous question.
    pub fn liveness(&mut self) -> Beat<usize> {
        let calls = |service: &mut Service| service.calls.len();
        self.liveness.look(&self.control, calls)
    }

    /// Applies limits, time-outs, allowed networks, interfaces and the delay of jitter buffers. Current calls keep their ports
    /// and their delay.
    ///
    /// # Errors
    /// Fails if a port range is invalid, or the control thread does not answer.
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
            service.media.set_audio(latency, serving.meter);
            service.media.set_policy(serving.record.clone());
            let settings = Settings {
                timeouts: timeouts(&serving),
                sessions_max: serving.limits.max_sessions as usize,
                unanswered_max: unanswered_max(&serving.interfaces),
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
    /// Ends all calls. Returns whether the control thread ended without a failure.
    #[must_use]
    pub fn end(mut self) -> bool {
        self.join()
    }

    fn join(&mut self) -> bool {
        // The control thread ends when this end of the socket pair is closed.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        let joined = self.thread.take().map(JoinHandle::join);
        match joined {
            Some(Ok(is_well)) => is_well,
            Some(Err(_)) => {
                tracing::error!("the control thread has panicked; the log shows where");
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

/// Notifies the main thread when the control thread ends, even by a panic.
struct TellsEnd {
    events: Sender<Event>,
    cause: &'static str,
}

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let cause = self.cause;
        // Sending fails if the main thread has stopped the control thread and no longer listens.
        let _ = self.events.send(Event::Stop { cause });
    }
}

/// Opens the socket for ng requests.
fn bind_ng(address: SocketAddr) -> miette::Result<UdpSocket> {
    UdpSocket::bind(address)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot receive ng requests at {address}"))
}

fn open_xdp(serving: &Serving) -> miette::Result<Option<Xdp>> {
    let opened = serving.xdp.as_ref().map(Xdp::open).transpose();
    let opened = opened
        .into_diagnostic()
        .wrap_err("cannot receive packets through XDP (`xdp`)")?;
    if let Some(xdp) = &serving.xdp {
        let devices = xdp.devices.join(", ");
        tracing::info!(devices, mode = %xdp.mode, "packets of calls bypass the kernel's sockets");
    }
    Ok(opened)
}

/// Sets the allowed networks, the media policy, the fallback, and the limits for new calls.
fn limit(service: &mut Service, serving: &Serving) {
    service.allow_only(serving.allow.clone());
    service.set_media_rules(serving.media.clone());
    service.media.set_fallback(serving.fallback.clone());
    service.set_lateness_max(Duration::from_millis(serving.limits.lateness_ms.into()));
    service.set_cpu_percent_max(serving.limits.cpu_percent);
}

/// Returns the folder and format of recordings on request.
fn on_demand(serving: &Serving) -> Option<(PathBuf, RecordingFormat)> {
    let folder = serving.recording_dir.clone();
    folder.map(|folder| (folder, serving.recording_format))
}

fn latency(serving: &Serving) -> Latency {
    let ms = serving.latency_ms.unwrap_or(Serving::LATENCY_MS_DEFAULT);
    Latency {
        ns: u64::from(ms) * 1_000_000,
        is_asked_for: serving.latency_ms.is_some(),
    }
}

/// The threads that serve connections.
struct Connections {
    http: Option<http::Running>,
    ng_tcp: Option<Acceptor>,
}

impl Connections {
    /// Finishes current requests, and stops the threads. Call this after the service has been dropped.
    fn stop(self) {
        if let Some(http) = self.http {
            http.stop();
        }
        if let Some(ng_tcp) = self.ng_tcp {
            ng_tcp.stop();
        }
    }
}

/// Runs the control thread. Returns whether it ended without a failure.
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
            tracing::error!(%error, "cannot receive requests any longer");
            "a failed socket"
        }
    };
    let calls = service.calls.len();
    tracing::info!(calls, "stopping");
    saved_state::leave_all(&mut service);
    drop(service);
    connections.stop();
    end.cause = cause;
    outcome.is_ok()
}

/// Joins the cluster, if one is configured. Requests may then come to any node, and this node can take over calls of other
/// nodes.
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
    let saved = service.save_in_cluster(&cluster, addresses, &serving.interfaces);
    saved.into_diagnostic()?;
    let node_requests = NodeRequests::new(
        service.control(),
        http::open_router(app.clone()),
        cluster.node(),
    );
    cluster.open_call_service(Arc::new(node_requests));
    Ok(())
}

/// Opens the folders for recordings of calls.
fn open_roots(recorder: &Recorder, serving: &Serving) -> miette::Result<()> {
    if let Some(root) = &serving.recording_dir {
        recorder.open_root(root).into_diagnostic()?;
    }
    if let Some(spec) = &serving.record {
        recorder.open(&spec.to).into_diagnostic()?;
    }
    Ok(())
}

/// Opens the CDR file, if one is configured.
fn open_records(serving: &Serving) -> miette::Result<Option<Records>> {
    let open = |path: &std::path::PathBuf| {
        let records = Records::open(path).into_diagnostic();
        records.wrap_err_with(|| format!("cannot open the CDR file {}", path.display()))
    };
    serving.records.as_ref().map(open).transpose()
}

/// Opens the state file, if one is configured.
fn open_store(serving: &Serving) -> miette::Result<Option<(Store, Saved)>> {
    // With service addresses, etcd stores the calls, because another node may take them over before this node is back.
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
        unanswered_max: unanswered_max(&serving.interfaces),
        unix_at_zero_ns: unix_at_zero_ns(),
        started_ns: clock_now_ns(),
        instance: format!("{:016x}", identity.instance),
    }
}

/// Returns the maximum number of streams of unanswered offers. They get half of the ports, and each stream needs two pairs.
fn unanswered_max(interfaces: &[InterfaceSpec]) -> usize {
    let pairs = |one: &InterfaceSpec| usize::from(one.ports.last - one.ports.first).div_ceil(2);
    let pairs: usize = interfaces.iter().map(pairs).sum();
    (pairs / 4).max(UNANSWERED_MIN)
}

/// Name of the state file in the folder that systemd provides.
const STATE_FILE: &str = "calls.redb";
/// Lower bound of [`unanswered_max`] for small port ranges: one call with some forks.
const UNANSWERED_MIN: usize = 16;
/// Time limit for a reload by the control thread. It takes that long only on an overloaded machine.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use threadbare_config::StateLocation;

    /// If the process continued without its control thread, it would serve no calls, and no failure would be visible.
    #[test]
    fn a_panic_of_the_control_thread_ends_the_process_as_a_failure() {
        let (events, told) = channel();
        let serving = Serving {
            ng: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
            state: StateLocation::Off,
            ..Serving::default()
        };
        let watch = threadbare_watch::Watch::start(
            threadbare_watch::Directory::default(),
            (threadbare_watch::Rules::default(), None),
        );
        let watch = watch.expect("a thread");
        let reloads = Arc::new(Reloads::new(events.clone()));
        let start = || {
            Server::start(
                (&serving, true),
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
        // A normal stop is not a failure.
        assert!(start().expect("it starts again").end());
    }
}
