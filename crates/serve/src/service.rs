//! The control thread. It receives requests of SIP proxies, sends replies, and starts and ends streams.

mod counted;
mod elsewhere;
mod homes;
pub(crate) mod saved_state;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use threadbare_control::calls::{
    Action, CallId, Calls, EndReason, Media, MediaSource, Outcome, StreamCommand, StreamId,
};
use threadbare_control::ng::{Command, Incoming, Reply, Request, RequestTable, Value};
use threadbare_relay::{Gathering, LegPorts, PortError};
use threadbare_rtp::call::{Part, Side};
use threadbare_rtp::leg::Network;
use threadbare_runtime::clock_now_ns;
use tokio::sync::oneshot;

use self::counted::{Answer, Counted, CountingRequests};
use self::elsewhere::Shared;
use self::homes::Homes;
use super::asker::{Asker, PendingReply, ReplyTarget, ReplyTo, Unreplied};
use super::events::Events;
use super::interfaces::Interfaces;
use super::load::Load;
use super::media::MediaWorkers;
use super::metrics::{Metrics, ThreadSnapshot};
use super::names;
use super::orders::{Control, Orders, orders};
use super::plays::{Play, Plays, Step, Unanswered};
use super::policy::Policy;
use super::records::Records;
use super::store::Store;
use super::views::Wall;
use super::waker::WakeSignal;
use threadbare_cluster::Passed;
use threadbare_config::{InterfaceSpec, MediaRules, RecordingFormat};
use threadbare_process::limit::{LineLimit, Verdict};

/// Which node answers a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// The node that owns the call answers.
    Cluster,
    /// This node answers, because another node has forwarded the message.
    Node,
    /// This node answers, because another node has forwarded the message. The cluster says that this node has the call, or is about to get
    /// it.
    Known(CallId),
}

impl Scope {
    fn is_to_come(&self, calls: &Calls<LegPorts>) -> bool {
        matches!(self, Scope::Known(id) if !calls.has(id))
    }
}

/// The state of the control thread.
pub(super) struct Service {
    pub(super) calls: Calls<LegPorts>,
    pub(super) media: MediaWorkers,
    plays: Plays,
    interfaces: Interfaces,
    policy: Policy,
    socket: UdpSocket,
    allow: Vec<Network>,
    lateness_max: Duration,
    cpu_percent_max: u32,
    load: Load,
    requests: RequestTable<Asker>,
    refused: LineLimit,
    unreadable: LineLimit,
    warned: LineLimit,
    looks_ns: u64,
    control: Control<Service>,
    orders: Orders<Service>,
    wake: WakeSignal,
    metrics: Arc<Metrics>,
    pub(super) events: Events,
    ends_when_empty: bool,
    /// Saves the calls. `None`: calls end with the process.
    store: Option<Store>,
    /// Writes CDRs. `None`: ended calls are only logged.
    pub(super) records: Option<Records>,
    /// The state of the calls in the cluster. `None`: calls are not shared with other nodes.
    shared: Option<Shared>,
    homes: Homes,
    /// Replies that wait for counters, in order of arrival.
    counting: CountingRequests,
}

impl Service {
    /// Creates the service. It answers nothing before [`run`](Self::run).
    pub(super) fn new(
        calls: Calls<LegPorts>,
        media: MediaWorkers,
        plays: Plays,
        interfaces: Interfaces,
        socket: UdpSocket,
        wake: WakeSignal,
        metrics: Metrics,
    ) -> Service {
        let (control, orders) = orders(wake.clone());
        Service {
            calls,
            policy: Policy::new(media.destinations()),
            media,
            plays,
            interfaces,
            socket,
            allow: Vec::new(),
            lateness_max: Duration::MAX,
            cpu_percent_max: 100,
            load: Load::default(),
            requests: RequestTable::new(),
            refused: LineLimit::new(LINES_PER_SECOND),
            unreadable: LineLimit::new(LINES_PER_SECOND),
            warned: LineLimit::new(LINES_PER_SECOND),
            looks_ns: 0,
            control,
            orders,
            wake,
            metrics: Arc::new(metrics),
            events: Events::new(),
            ends_when_empty: false,
            store: None,
            records: None,
            shared: None,
            homes: Homes::default(),
            counting: CountingRequests::default(),
        }
    }

    /// Returns the handle for other threads.
    pub(super) fn control(&self) -> Control<Service> {
        self.control.clone()
    }

    /// Returns the metrics. They are shared, and continue to count.
    pub(super) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Sets the networks that may send requests. If `allow` is empty, all hosts may.
    pub(super) fn allow_only(&mut self, allow: Vec<Network>) {
        self.allow = allow;
    }

    /// Sets the limit of lateness. New calls are refused if the slices of all media threads are later than that.
    pub(super) fn set_lateness_max(&mut self, lateness_max: Duration) {
        self.lateness_max = lateness_max;
    }

    /// Sets the limit of load. New calls are refused if all media threads are busier than that.
    pub(super) fn set_cpu_percent_max(&mut self, cpu_percent_max: u32) {
        self.cpu_percent_max = cpu_percent_max;
    }

    /// Sets the interfaces for ports that are opened from now on.
    ///
    /// # Errors
    /// Fails if a range is invalid. Nothing is changed.
    pub(super) fn set_interfaces(&mut self, specs: &[InterfaceSpec]) -> Result<(), PortError> {
        self.interfaces.change(specs)?;
        self.refresh_policy();
        if let Some(shared) = &self.shared {
            self.declare_service(shared.cluster(), specs);
        }
        Ok(())
    }

    /// Sets the addresses at which this process listens for other things than calls. Calls may not send there.
    pub(super) fn set_services(&mut self, listening: &[Option<SocketAddr>]) {
        let ports = listening.iter().flatten().map(SocketAddr::port);
        self.policy.services = ports.collect();
        self.refresh_policy();
    }

    /// Sets the configured rules for media destinations, in addition to the fixed ones.
    pub(super) fn set_media_rules(&mut self, rules: MediaRules) {
        self.policy.rules = rules;
        self.refresh_policy();
    }

    /// Updates the policy for media destinations, because interfaces or addresses of this machine may have changed.
    fn refresh_policy(&mut self) {
        let (interfaces, homes) = (self.interfaces.specs(), self.homes.specs());
        if let Some(policy) = self.policy.refresh(interfaces, homes) {
            self.calls.set_media_policy(policy);
        }
    }

    /// Starts or ends a drain, during which new calls are refused. With `ends`, [`run`](Self::run) returns after the last call.
    pub(super) fn drain(&mut self, is_draining: bool, ends: bool) {
        self.calls.set_draining(is_draining);
        self.tell_room();
        self.ends_when_empty = is_draining && ends;
    }

    /// Returns the reason why new calls are refused. `None`: they are accepted.
    pub(super) fn not_ready(&self) -> Option<String> {
        if self.calls.is_draining() {
            Some("the relay is being drained".to_owned())
        } else {
            self.late()
        }
    }

    /// Returns the counters of the media threads.
    pub(super) fn threads(&self) -> Vec<ThreadSnapshot> {
        self.media.snapshots()
    }

    /// Ends a call. Returns `false` if it does not exist.
    pub(super) fn end(&mut self, id: &CallId) -> bool {
        let is_known = self.calls.end(clock_now_ns(), id, EndReason::Operator);
        self.carry_out();
        is_known
    }

    /// Runs until `stop` is readable, or the last call of a drain has ended.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub(super) fn run(&mut self, stop: &UnixStream) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        let mut room = vec![0; MESSAGE_BYTES_MAX];
        // Start to read the file of the configured fallback.
        self.go_on_with_files();
        loop {
            if self.wait(stop)? {
                return Ok(());
            }
            let together = Gathering::begin();
            for _ in 0..BURST {
                match self.socket.recv_from(&mut room) {
                    Ok((len, from)) => self.handle(from, &room[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // The error is not fatal. It is an ICMP error for an earlier reply, or a signal.
                    Err(error) => tracing::debug!(%error, "cannot receive from the ng socket"),
                }
            }
            for order in self.orders.take() {
                order(self);
            }
            drop(together);
            self.go_on_with_files();
            let waker = self.wake.waker();
            for answered in self.counting.take_done(&waker) {
                self.send(answered);
            }
            self.tell_news();
            self.keep_time();
            self.count_ended();
            saved_state::save_changes(self);
            if self.ends_when_empty && self.calls.is_empty() && self.counting.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends all calls, with a BYE to their parties.
    pub(super) fn end_all(&mut self) {
        let ids: Vec<_> = self.calls.ids(None).cloned().collect();
        for id in ids {
            self.calls.end(clock_now_ns(), &id, EndReason::Operator);
        }
        self.carry_out();
        self.wait_for_ended();
    }

    /// Waits for the last statistics of calls that have just ended, so that they are counted and recorded.
    fn wait_for_ended(&mut self) {
        let end_ns = clock_now_ns() + ENDED_WAIT_NS;
        loop {
            self.wake.clear();
            self.count_ended();
            let left_ns = end_ns.saturating_sub(clock_now_ns());
            if !self.media.has_ended() || left_ns == 0 {
                return;
            }
            let left = Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            let mut fds = [PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
            if let Err(error) = poll(&mut fds, Some(&left)) {
                tracing::debug!(%error, "cannot wait for the last statistics");
            }
        }
    }

    /// Waits for the next work. Returns `true` to stop.
    fn wait(&self, stop: &UnixStream) -> io::Result<bool> {
        let now_ns = clock_now_ns();
        let due_ns = self.calls.next_timeout();
        let are_open = self.interfaces.are_used() || self.homes.are_used();
        let looks = self.media.len() > 0 || are_open || self.shared.is_some();
        let look_ns = looks.then_some(self.looks_ns);
        let file_ns = self.plays.next_timeout();
        let (saves_ns, moves_ns) = (self.media.next_states(), self.media.next_rebalance());
        let times = [due_ns, look_ns, file_ns, saves_ns, moves_ns];
        let wait_ns = times.into_iter().flatten().min();
        let wait = wait_ns.map(|at_ns| {
            let wait = Duration::from_nanos(at_ns.saturating_sub(now_ns));
            Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            }
        });
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.plays.wake().as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        let polled = poll(&mut fds, wait.as_ref());
        let stops = !fds[1].revents().is_empty();
        if !fds[3].revents().is_empty() {
            self.wake.clear();
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(stops),
            Err(error) => Err(error.into()),
        }
    }

    fn handle(&mut self, from: SocketAddr, bytes: &[u8]) {
        // A caller can direct the relay's media to this socket, and such a datagram must not count as a request.
        if self.is_of_call(from) {
            if let Verdict::Write { .. } = self.refused.check(std::time::Instant::now()) {
                tracing::warn!(%from, "dropped a datagram that came to the ng socket from the port of a call");
            }
            return;
        }
        if self.allows(from) {
            self.handle_message(Asker::Udp(from), ReplyTo::Udp(from), bytes, Scope::Cluster);
        }
    }

    fn is_of_call(&self, from: SocketAddr) -> bool {
        self.interfaces.has_port_in_use(from) || self.homes.has_port_in_use(from)
    }

    /// Whether a host may send requests by UDP or TCP. Logs refusals.
    pub(super) fn allows(&mut self, from: SocketAddr) -> bool {
        let ip = from.ip().to_canonical();
        let allows = self.allow.is_empty() || self.allow.iter().any(|network| network.contains(ip));
        if !allows && let Verdict::Write { .. } = self.refused.check(std::time::Instant::now()) {
            tracing::warn!(%from, "dropped a request from an address that is not allowed (--allow)");
        }
        allows
    }

    /// Handles an ng message from an allowed sender.
    pub(super) fn handle_message(&mut self, asker: Asker, to: ReplyTo, bytes: &[u8], scope: Scope) {
        let begun_ns = clock_now_ns();
        match self.requests.handle_message(begun_ns, asker, bytes) {
            Incoming::Request(_, ticket) if scope.is_to_come(&self.calls) => {
                self.requests.forget(ticket);
                self.send_to(Err(Unreplied::Moved), to);
            }
            Incoming::Request(request, ticket) => {
                let passed = scope == Scope::Cluster && self.shared.is_some();
                let pending = PendingReply {
                    to: ReplyTarget::Message(ticket, to),
                    command: request.command(),
                    begun_ns,
                    call: self.call_of(&request),
                    passed: passed.then(|| Passed::Ng {
                        from: asker.origin(),
                        message: bytes.to_vec(),
                    }),
                };
                self.handle_message_of(request, pending);
            }
            Incoming::Send(bytes) => {
                self.metrics.count_direct();
                self.send_to(Ok(bytes), to);
            }
            Incoming::InHand => self.send_to(Err(Unreplied::InHand), to),
            Incoming::NoMessage(why) => {
                if let Verdict::Write { .. } = self.unreadable.check(std::time::Instant::now()) {
                    tracing::warn!(from = ?asker, ?why, "dropped a message that is not a request");
                }
                self.send_to(Err(why.into()), to);
            }
        }
    }

    /// Handles a request from another thread of this program.
    pub(super) fn handle_program(&mut self, request: &Request, tell: oneshot::Sender<Reply>) {
        let pending = PendingReply {
            to: ReplyTarget::Program(tell),
            command: request.command(),
            begun_ns: clock_now_ns(),
            call: self.call_of(request),
            passed: None,
        };
        self.handle_request(request, pending);
    }

    /// Handles a request of this program that plays no file, and returns its reply.
    pub(super) fn answer_program(&mut self, request: &Request) -> Reply {
        let begun_ns = clock_now_ns();
        let reply = self.answer(request).now();
        self.carry_out();
        saved_state::note_changes(self);
        self.count_reply(request.command(), &reply, begun_ns);
        reply
    }

    fn handle_request(&mut self, request: &Request, pending: PendingReply) {
        let answer = self.answer(request);
        let wanted = self.carry_out();
        saved_state::note_changes(self);
        let reply = match answer {
            Answer::Reply(reply) => reply,
            // A request for counters plays no file.
            Answer::Counted(counted) => {
                if let Some(answered) = self.counting.add(pending, counted) {
                    self.send(answered);
                }
                return;
            }
        };
        let unanswered = Unanswered { pending, reply };
        match wanted {
            Some((source, plays)) => self.fetch(source, plays, unanswered),
            None => self.send(unanswered),
        }
    }

    fn send(&mut self, answered: Unanswered) {
        let Some(Unanswered { pending, reply }) = self.keep_waiting(answered) else {
            return;
        };
        self.count_reply(pending.command, &reply, pending.begun_ns);
        match pending.to {
            ReplyTarget::Message(ticket, to) => {
                let reply = self.requests.finish(ticket, reply);
                self.send_to(Ok(reply), to);
            }
            ReplyTarget::Program(tell) => {
                // Sending fails if the receiver has gone.
                let _ = tell.send(reply);
            }
        }
    }

    fn count_reply(&self, command: Command, reply: &Reply, begun_ns: u64) {
        let took_ns = clock_now_ns().saturating_sub(begun_ns);
        self.metrics.count_reply(command, reply, took_ns);
    }

    fn send_to(&self, reply: Result<Vec<u8>, Unreplied>, to: ReplyTo) {
        match (reply, to) {
            (Ok(reply), ReplyTo::Udp(to)) => {
                if let Err(error) = self.socket.send_to(&reply, to) {
                    tracing::warn!(%to, %error, bytes = reply.len(), "cannot send a reply");
                }
            }
            (Err(_), ReplyTo::Udp(_)) => {}
            (reply, ReplyTo::Waiting(waiting)) => {
                // Sending fails if the receiver has gone.
                let _ = waiting.send(reply);
            }
        }
    }

    /// Loads a file. The request is answered when it is clear that the file can be played.
    fn fetch(&mut self, source: MediaSource, plays: Vec<Play>, unanswered: Unanswered) {
        let now_ns = clock_now_ns();
        if let Some(refused) = self.plays.begin(now_ns, source, plays, unanswered) {
            self.send(refused);
        }
    }

    /// Handles the progress of files: answers their requests, and plays them.
    fn go_on_with_files(&mut self) {
        while let Some(file) = self.media.next_fallback_file() {
            self.plays.load_fallback(&file);
        }
        for step in self.plays.poll(clock_now_ns()) {
            match step {
                Step::Answer(answered) => self.send(answered),
                Step::Play(play, clip) => self.media.play(play, clip),
                Step::Fallback(file, clip) => {
                    if let Err(reason) = &clip {
                        tracing::warn!(reason, "cannot play the file of a fallback");
                    }
                    self.media.fallback_loaded(&file, clip.ok());
                }
                Step::Failed(play, reason) => {
                    self.media.forget_play(&play);
                    let call = self.media.call_of(play.stream).map(ToString::to_string);
                    if let Some(reason) = reason {
                        tracing::warn!(call, reason, "cannot play a file");
                    }
                }
            }
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let folder = self.media.on_demand().map(|(folder, _)| folder);
        if let Some(refused) = not_recorded(request, folder) {
            return Answer::Reply(refused);
        }
        let now_ns = clock_now_ns();
        self.look_at_load();
        let call = self.call_of(request);
        let home = call.and_then(|call| self.homes.interfaces(&call));
        let outcome = self.calls.handle_request(
            now_ns,
            request,
            home.unwrap_or(&mut self.interfaces),
            &mut threadbare_process::system::random_bytes,
        );
        let answer = match outcome {
            Outcome::Reply(reply) => {
                self.log_warning(request, &reply);
                Answer::Reply(reply)
            }
            Outcome::Stats(pending) => {
                let asked = self.media.ask_stats(pending.streams());
                Answer::Counted(Counted::new(pending, asked))
            }
        };
        while let Some(unknown) = self.calls.poll_unknown() {
            tracing::warn!(?unknown, "ignored unknown words in requests");
        }
        answer
    }

    /// Logs the warnings of a reply, such as rejected or ignored lines of an SDP. A `delete` of a missing call is usual, so the warning
    /// about it is not logged.
    fn log_warning(&mut self, request: &Request, reply: &Reply) {
        let Reply::Ok(keys) = reply else { return };
        let Some(warning) = keys.get("warning").and_then(Value::as_text) else {
            return;
        };
        if request.command() != Command::Delete
            && let Verdict::Write { .. } = self.warned.check(std::time::Instant::now())
        {
            let call = request.text("call-id").ok().flatten();
            let command = request.command().name();
            tracing::warn!(
                call,
                command,
                warning,
                "a request was carried out only partly"
            );
        }
    }

    /// Samples the load, so that new calls are refused before running calls are late.
    fn look_at_load(&mut self) {
        let now_ns = clock_now_ns();
        if self.load.is_due(now_ns) {
            let threads = self.media.snapshots();
            let busy_ns = threads.iter().map(|thread| thread.busy_ns).collect();
            self.load.look(now_ns, busy_ns);
        }
        self.calls.set_load_limit(self.late());
        self.tell_room();
    }

    fn late(&self) -> Option<String> {
        if let Some(away) = self.homes.away() {
            return Some(away.to_owned());
        }
        let percent = self.load.percent();
        if percent > self.cpu_percent_max {
            let max = self.cpu_percent_max;
            return Some(format!(
                "the media threads are busy for {percent} % of the time; the limit is {max} %"
            ));
        }
        let lateness = self.media.lateness();
        (lateness > self.lateness_max).then(|| {
            let (now, max) = (lateness.as_millis(), self.lateness_max.as_millis());
            format!("the media threads are {now} ms late; the limit is {max} ms")
        })
    }

    /// Carries out the registry's actions. Returns the file to be loaded with its plays, if there is one.
    fn carry_out(&mut self) -> Option<(MediaSource, Vec<Play>)> {
        let mut wanted: Option<(MediaSource, Vec<Play>)> = None;
        while let Some(action) = self.calls.poll_action() {
            let (stream, command) = match action {
                Action::Command { stream, command } => (stream, command),
                other => {
                    self.tell(&other);
                    self.media.carry_out(other);
                    continue;
                }
            };
            match command {
                StreamCommand::Play {
                    to,
                    source,
                    times,
                    duration_ms,
                    start_frame,
                } => {
                    let part = Part {
                        start_frame,
                        duration_ns: duration_ms.map(|ms| ms.saturating_mul(1_000_000)),
                    };
                    let file = match &source {
                        MediaSource::File(name) => Some(name.as_str().into()),
                        MediaSource::Bytes(_) => None,
                    };
                    let play = self.media.new_play(stream, to, file, times, part);
                    // All parties that a request selects hear the same file.
                    let (_, plays) = wanted.get_or_insert_with(|| (source, Vec::new()));
                    plays.extend(play);
                }
                command => self.media.carry_out(Action::Command { stream, command }),
            }
        }
        wanted
    }

    /// Handles time-outs, and does the work that is due regularly.
    fn keep_time(&mut self) {
        let now_ns = clock_now_ns();
        if now_ns >= self.looks_ns {
            self.look_at_load();
            for (stream, media, added) in self.media.heard() {
                self.calls.handle_media(now_ns, stream, media);
                self.look_for_losses(now_ns, stream, media);
                added.iter().for_each(|side| self.metrics.count_media(side));
            }
            self.refresh_policy();
            self.interfaces.close_unwanted();
            self.homes.close_unwanted();
            let interval_ns = self.look_interval_ns();
            self.media.set_pace(Duration::from_nanos(interval_ns));
            self.looks_ns = clock_now_ns() + interval_ns;
        }
        self.media.rebalance(now_ns);
        self.calls.handle_timeout(now_ns);
        self.carry_out();
    }

    /// Sends the call events of an action to their listeners.
    fn tell(&mut self, action: &Action<LegPorts>) {
        match action {
            Action::Create { call, .. } => self.events.begin(clock_now_ns(), call),
            Action::Remove { stream } => self.events.forget(*stream),
            Action::Ended { record } => self.events.end(record),
            Action::Update { .. } | Action::Command { .. } => {}
        }
    }

    fn tell_news(&mut self) {
        while let Some((call, news)) = self.media.poll_news() {
            self.events.seen(&call, &news);
        }
    }

    fn look_for_losses(&mut self, now_ns: u64, stream: StreamId, media: Media) {
        let Some((call, spec)) = self.calls.stream(stream) else {
            return;
        };
        for side in Side::BOTH {
            let heard_ns = media.heard_ns[side as usize];
            if let Some(heard_ns) = heard_ns.filter(|_| spec.sides[side as usize].may_send) {
                self.events.heard(now_ns, call, stream, side, heard_ns);
            }
        }
    }

    fn count_ended(&mut self) {
        while let Some(ended) = self.media.poll_ended() {
            let record = &ended.record;
            let lasted_ns = record.ended_ns.saturating_sub(record.created_ns);
            self.metrics.observe_call(lasted_ns);
            for stream in ended.streams.values() {
                stream
                    .added
                    .iter()
                    .for_each(|side| self.metrics.count_media(side));
                let sides = &stream.measured.sides;
                sides
                    .iter()
                    .for_each(|side| self.metrics.observe_quality(&side.mean));
            }
            if let Some(records) = &mut self.records {
                let wall = Wall {
                    unix_at_zero_ns: self.calls.settings().unix_at_zero_ns,
                    now_ns: clock_now_ns(),
                };
                records.put(ended, wall);
            }
        }
    }

    /// Returns the interval at which media are checked. It is short enough for the shortest time-out.
    fn look_interval_ns(&self) -> u64 {
        let timeouts = &self.calls.settings().timeouts;
        let shortest = [timeouts.media_ns, timeouts.silent_ns];
        let shortest = shortest.into_iter().flatten().min();
        let longest = if self.events.has_listeners() || self.shared.is_some() {
            LOOK_NS_HEARD
        } else {
            LOOK_NS_MAX
        };
        shortest.map_or(longest, |ns| (ns / 4).clamp(LOOK_NS_MIN, longest))
    }
}

/// Returns the error reply to a recording request that cannot be carried out. `None`: it can be, or it is another kind of request.
fn not_recorded(request: &Request, folder: Option<&Path>) -> Option<Reply> {
    let command = request.command();
    let is_asked = request.one_of("record-call", &[("on", ()), ("yes", ())]);
    if command != Command::StartRecording && !matches!(is_asked, Ok(Some(()))) {
        return None;
    }
    let error = |reason: String| Some(Reply::Error(reason));
    let Some(folder) = folder else {
        return error("calls cannot be recorded, because --recording-dir is not set".to_owned());
    };
    // The registry refuses values that are not text.
    let text = |key: &'static str| request.text(key).ok().flatten();
    if let Some(other) = text("recording-dir").filter(|other| Path::new(other) != folder) {
        let allowed = folder.display();
        return error(format!("recording-dir {other:?}; expected {allowed}"));
    }
    let asked = text("recording-file").or(text("output-destination"));
    let name = names::file_name(asked, "", 0, RecordingFormat::default());
    name.err().and_then(|reason| error(reason.to_string()))
}

/// Maximum number of datagrams that are handled before the next time-outs.
const BURST: usize = 64;
/// Size of the receive buffer. The largest datagram fits.
const MESSAGE_BYTES_MAX: usize = 65_536;
/// Time limit for the last statistics. A media thread answers within a slice, unless the machine is overloaded.
const ENDED_WAIT_NS: u64 = 1_000_000_000;
/// Maximum number of log lines of one kind per second.
const LINES_PER_SECOND: u32 = 5;
/// Longest interval at which media are checked.
const LOOK_NS_MAX: u64 = 10_000_000_000;
/// Interval at which media are checked while there are listeners for silent parties, or other nodes that use this node's load.
const LOOK_NS_HEARD: u64 = 2_000_000_000;
const LOOK_NS_MIN: u64 = 250_000_000;
