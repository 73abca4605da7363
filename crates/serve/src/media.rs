//! The media workers. They run the streams of calls, and carry out the registry's actions on them.

mod balance;
mod copies;
mod fallback;
mod listeners;
mod now;
mod plays;
mod recordings;
mod saved_state;
mod state;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use threadbare_control::calls::{
    Action, CallId, Media, StreamCommand, StreamId, StreamSpec, StreamStats,
};
use threadbare_relay::{
    AudioSession, CallHandle, CreateError, Destinations, Engine, EngineError, Forward, LatePacket,
    LegPorts, Listeners, Listening, MediaSession, MediaSpec, Pace, Reply, Settings, ShardStats,
    TOS_USUAL,
};
use threadbare_rtp::call::{Clip, DtmfDigit, Part, SessionError, Side};
use threadbare_rtp::codec::CodecError;
use threadbare_rtp::dtmf::Key;
use threadbare_rtp::leg::PayloadMapError;
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::Xdp;

use self::balance::Balancer;
use self::copies::CopiesTo;
use self::fallback::Fallbacks;
pub(super) use self::listeners::Unheard;
pub(super) use self::now::StreamNow;
use self::plays::Played;
use self::recordings::{Recorded, Recordings};
use self::saved_state::StateSaver;
pub(super) use self::saved_state::{HandedOver, LatePacketSender};
pub(super) use self::state::PlayState;
use super::endings::{EndedCall, Endings};
use super::events::{News, Reports};
use super::measured::{LatestStats, Measured, SideCounts};
use super::metrics::ThreadSnapshot;
use super::ng_stats::stats_of;
use super::plays::Play;
use super::quality_history::QualityHistory;
use super::spec::{self, Common, Latency};
use super::waker::WakeSignal;
use threadbare_config::CallFallback;
use threadbare_recording::Recorder;
use threadbare_watch::{Moves, WatchedCall, WatchedCalls};

/// The media threads and the running streams.
#[derive(Debug)]
pub(super) struct MediaWorkers {
    engine: Engine<MediaSession>,
    destinations: Destinations,
    slice: Duration,
    common: Common,
    streams: Streams,
    fallbacks: Fallbacks,
    recordings: Recordings,
    endings: Endings,
    /// The list of calls whose alarms are evaluated.
    watched: WatchedCalls,
    /// Interval at which streams update their statistics.
    pace: Pace,
    /// Saves the states of streams. `None`: streams end with the process.
    saver: Option<StateSaver>,
    reports: Reports,
    /// Moves streams between the media threads. `None`: streams stay on their threads.
    balancer: Option<Balancer>,
}

type Streams = HashMap<StreamId, Running>;

#[derive(Debug)]
struct Running {
    handle: CallHandle<MediaSession>,
    spec: Box<StreamSpec>,
    /// The call's name, for the log.
    call: CallId,
    /// For each party, the file that it hears instead of the other party.
    plays: [Played; 2],
    listeners: Listeners,
    history: QualityHistory,
    watched: WatchedCall,
    recording: Option<Recorded>,
    latest: LatestStats,
    /// Counters of each side at the last look.
    counted: [SideCounts; 2],
    /// The RTP port of each leg.
    local: [SocketAddr; 2],
    copies_to: CopiesTo,
}

/// A change of a running media session.
enum Change {
    /// The stream has other media, so it gets another session.
    Kind(Box<MediaSession>),
    Spec(MediaSpec),
}

/// The counters of a stream that were requested from its thread.
pub(super) struct AskedStats {
    pub(super) stream: StreamId,
    pub(super) reply: Reply<StreamStats>,
    /// The counters that the thread has stored before.
    pub(super) latest: LatestStats,
}

/// The reason why a stream cannot be carried.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error(transparent)]
    Payloads(#[from] PayloadMapError),
    #[error(transparent)]
    Call(#[from] SessionError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl MediaWorkers {
    /// Starts the media threads.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or the descriptors.
    pub(super) fn new(
        threads: u32,
        calls_max: u64,
        xdp: Option<Xdp>,
        common: Common,
        wake: WakeSignal,
        watched: WatchedCalls,
    ) -> Result<Self, EngineError> {
        let mut settings = Settings::new("calls");
        settings.threads.threads = threads as i32;
        settings.calls_max = calls_max;
        settings.xdp = xdp;
        settings.orders_wait = true;
        let destinations = Destinations::new(Arc::default());
        settings.destinations = Some(destinations.clone());
        let slice = settings.threads.wait;
        Ok(MediaWorkers {
            engine: Engine::new(settings)?,
            destinations,
            slice,
            common,
            streams: HashMap::new(),
            fallbacks: Fallbacks::default(),
            recordings: Recordings::default(),
            saver: None,
            watched,
            pace: Pace::new(PACE_MAX),
            endings: Endings::new(wake.clone()),
            reports: Reports::new(wake),
            balancer: None,
        })
    }

    /// Sets whether busy media threads hand streams to others. The moves are noted in `moves`.
    pub(super) fn balance(&mut self, rebalances: bool, moves: &Moves) {
        let rebalances = rebalances && self.threads() > 1;
        self.balancer = rebalances.then(|| Balancer::new(moves.clone()));
    }

    /// Returns the time at which the loads of the media threads are compared next. `None`: there is nothing to move.
    pub(super) fn next_rebalance(&self) -> Option<u64> {
        let balancer = self.balancer.as_ref();
        let balancer = balancer.filter(|_| !self.streams.is_empty())?;
        Some(balancer.next_ns())
    }

    /// Compares the loads of the media threads if that is due.
    pub(super) fn rebalance(&mut self, now_ns: u64) {
        if let Some(balancer) = &mut self.balancer {
            balancer.run(now_ns, &self.engine, &self.streams);
        }
    }

    /// Whether ended calls wait for statistics of their streams.
    pub(super) fn has_ended(&self) -> bool {
        self.endings.is_waiting()
    }

    /// Returns the handle that sets the destinations to which media may be sent.
    pub(super) fn destinations(&self) -> Destinations {
        self.destinations.clone()
    }

    /// Sets the delay of jitter buffers for streams that start from now on, and whether their loudness is measured.
    pub(super) fn set_audio(&mut self, latency: Latency, meters: bool) {
        (self.common.latency, self.common.meters) = (latency, meters);
    }

    /// Sets what parties of streams that start from now on hear while the other party sends nothing.
    pub(super) fn set_fallback(&mut self, fallback: Option<CallFallback>) {
        self.fallbacks.configure(fallback);
    }

    /// Returns the next file of a fallback to be read.
    pub(super) fn next_fallback_file(&mut self) -> Option<Arc<str>> {
        self.fallbacks.next_unread()
    }

    /// Handles the samples of a fallback's file. `None`: it cannot be read.
    pub(super) fn fallback_loaded(&mut self, file: &str, clip: Option<Clip>) {
        self.fallbacks.set_loaded(&self.streams, file, clip);
    }

    /// Returns the lateness of the least late thread.
    pub(super) fn lateness(&self) -> Duration {
        let shards = self.engine.shard_stats();
        let best = shards.iter().map(|shard| shard.lateness_ns).min();
        if self.streams.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_nanos(best.unwrap_or(0))
        }
    }

    /// Returns the number of media threads.
    pub(super) fn threads(&self) -> usize {
        self.engine.shard_stats().len()
    }

    /// Returns the number of running streams.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Applies an action of the registry.
    pub(super) fn carry_out(&mut self, action: Action<LegPorts>) {
        match action {
            Action::Create {
                stream,
                call,
                spec,
                ports,
            } => {
                let name = call.to_string();
                if let Err(error) = self.create(stream, call, spec, ports) {
                    tracing::error!(call = name, %error, "cannot carry a stream of the call");
                }
            }
            Action::Update { stream, spec } => self.update(stream, spec),
            Action::Remove { stream } => {
                self.stop_recording(stream, false);
                if let Some(saver) = &self.saver {
                    saver.end(stream);
                }
                let copied = self.streams.get(&stream).and_then(|one| one.spec.copies);
                copies::link(&mut self.streams, stream, copied, None);
                if let Some(running) = self.streams.remove(&stream) {
                    self.endings
                        .begin(stream, running.call, running.counted, &running.handle);
                    say_bye(&running.handle);
                }
            }
            Action::Command { stream, command } => self.command(stream, command),
            Action::Ended { record } => {
                let seconds = record.ended_ns.saturating_sub(record.created_ns) as f64 / 1e9;
                tracing::info!(
                    call = %record.call,
                    reason = %record.reason,
                    seconds,
                    streams = record.streams.len(),
                    "the call has ended"
                );
                self.forget_wish(&record.call);
                self.endings.end(record);
            }
        }
    }

    fn create(
        &mut self,
        stream: StreamId,
        call: CallId,
        mut spec: Box<StreamSpec>,
        mut ports: [LegPorts; 2],
    ) -> Result<(), StreamError> {
        copies::locate(&self.streams, &mut spec);
        let copied = spec.copies;
        let local = ports.each_ref().map(LegPorts::rtp_address);
        let listeners = Listeners::default();
        let watched = self.watched.add(stream.0, &call.to_string());
        let latest = LatestStats::default();
        watched.expect(spec::are_expected(&spec));
        let mut session = self.session(stream, &spec, &listeners, (&watched, &latest))?;
        let choice = self.fallbacks.choose(&spec);
        self.fallbacks.wait(stream, choice);
        if self.saver.is_some() {
            // The state has keys, too, which are replaced if they have changed since it was saved.
            let media = self.media_spec(&spec)?;
            if let Some(saver) = &mut self.saver {
                saver.begin(stream, &spec, media, &mut session);
            }
        }
        if let Some(tos) = spec.tos {
            for leg in &mut ports {
                if let Err(error) = leg.set_tos(tos) {
                    tracing::warn!(%call, tos, %error, "cannot set the TOS of a call");
                }
            }
        }
        let handle = self
            .engine
            .create(call.to_string(), ports.into(), session)?;
        let running = Running {
            handle,
            spec,
            call,
            plays: Default::default(),
            listeners,
            history: QualityHistory::default(),
            watched,
            latest,
            recording: None,
            counted: Default::default(),
            local,
            copies_to: CopiesTo::default(),
        };
        self.streams.insert(stream, running);
        copies::link(&mut self.streams, stream, None, copied);
        self.record_by_policy(stream);
        Ok(())
    }

    /// Creates the media session of a new stream.
    fn session(
        &self,
        stream: StreamId,
        spec: &StreamSpec,
        listeners: &Listeners,
        (watched, latest): (&WatchedCall, &LatestStats),
    ) -> Result<MediaSession, StreamError> {
        let now_ns = clock_now_ns();
        Ok(match self.media_spec(spec)? {
            MediaSpec::Audio(audio) => {
                let mut media = AudioSession::create(now_ns, *audio, self.slice)?;
                fallback::set(media.session_mut(), self.fallbacks.choose(spec).sound());
                let (snapshots, pace) = watched.snapshots();
                let mut media = media
                    .with_listeners(listeners.clone())
                    .publish_parties_to(snapshots, &pace)
                    .observed(latest.of_audio(), self.pace.clone());
                if self.common.meters && listeners::check(spec).is_ok() {
                    media = media.metered();
                }
                MediaSession::from(media.on_event(self.reports.handler(stream)))
            }
            MediaSpec::Forward(forward) => {
                let forward = Forward::new(now_ns, *forward);
                let pace = self.pace.clone();
                MediaSession::from(forward.observed(latest.of_forward(), pace))
            }
        })
    }

    fn media_spec(&self, spec: &StreamSpec) -> Result<MediaSpec, PayloadMapError> {
        let mut random = threadbare_process::system::random_number;
        spec::media(spec, &self.common, &mut random)
    }

    fn update(&mut self, stream: StreamId, mut spec: Box<StreamSpec>) {
        copies::locate(&self.streams, &mut spec);
        let copied = spec.copies;
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let call = running.call.to_string();
        let is_other_kind = running.spec.kind != spec.kind;
        let change = if is_other_kind {
            let reports = (&running.watched, &running.latest);
            let other = self.session(stream, &spec, &running.listeners, reports);
            other.map(|other| Change::Kind(Box::new(other)))
        } else {
            self.media_spec(&spec)
                .map(Change::Spec)
                .map_err(StreamError::from)
        };
        let change = match change {
            Ok(change) => change,
            Err(error) => {
                return tracing::error!(call, %error, "cannot change a stream of the call");
            }
        };
        let Some(running) = self.streams.get_mut(&stream) else {
            return;
        };
        if running.spec.tos != spec.tos {
            // The command fails if the stream is gone, which is reported below.
            let _ = running.handle.set_tos(spec.tos.unwrap_or(TOS_USUAL));
        }
        running.watched.expect(spec::are_expected(&spec));
        let choice = (is_other_kind || fallback::may_change(&running.spec, &spec))
            .then(|| self.fallbacks.choose(&spec));
        if let Some(choice) = &choice {
            self.fallbacks.wait(stream, choice.clone());
        }
        let copied_before = running.spec.copies;
        running.spec = spec;
        let told = running.handle.command(move |session, now_ns| match change {
            Change::Kind(other) => *session = *other,
            Change::Spec(spec) => {
                if let (Some(choice), Some(media)) = (choice, session.audio_mut()) {
                    fallback::set(media.session_mut(), choice.sound());
                }
                if let Err(error) = session.apply(now_ns, spec) {
                    tracing::error!(call, %error, "cannot change a stream of the call");
                }
            }
        });
        if told.is_err() {
            tracing::error!(call = %running.call, "a stream of the call no longer exists");
        }
        copies::link(&mut self.streams, stream, copied_before, copied);
        if is_other_kind {
            // The stream has a new media session, which does not know its copies yet.
            if let Some(running) = self.streams.get(&stream) {
                copies::send_list(running);
                running.update_listeners();
            }
            self.tell_recording(stream);
        }
        self.take_state(stream);
    }

    fn command(&mut self, stream: StreamId, command: StreamCommand) {
        match command {
            StreamCommand::PlayKey {
                of,
                key,
                duration_ms,
                volume_dbm0,
                pause_ms,
            } => {
                let Some(key) = Key::new(key) else {
                    return;
                };
                let digit = DtmfDigit {
                    key,
                    duration_ns: u64::from(duration_ms) * 1_000_000,
                    pause_ns: u64::from(pause_ms) * 1_000_000,
                    volume: volume_dbm0.unsigned_abs().min(63),
                };
                self.insert_dtmf(stream, of, digit);
            }
            StreamCommand::StopPlay { to } => self.stop_play(stream, to),
            StreamCommand::StartRecording(recording) => self.record(stream, recording),
            StreamCommand::PauseRecording => {
                self.each_recording(stream, Recorder::pause);
            }
            StreamCommand::StopRecording { discard } => self.stop_recording(stream, discard),
            // The file must be loaded first, so the service handles this command itself.
            StreamCommand::Play { .. } => {}
        }
    }

    /// Registers a play. When its samples are loaded, it replaces the current play. `file` is the name of the file, or `None` if the next
    /// process cannot find it. Returns `None` if the stream is gone.
    pub(super) fn new_play(
        &mut self,
        stream: StreamId,
        to: Side,
        file: Option<Arc<str>>,
        times: u32,
        part: Part,
    ) -> Option<Play> {
        let played = &mut self.streams.get_mut(&stream)?.plays[to as usize];
        let play = played.begin(stream, to, file, times, part);
        self.take_state(stream);
        Some(play)
    }

    /// Starts a play whose samples are loaded, unless another play has replaced it.
    pub(super) fn play(&mut self, play: Play, clip: Clip) {
        let Some(running) = self.running_play(&play) else {
            return;
        };
        running.plays[play.to as usize].start(play.file);
        let call = running.call.to_string();
        let clip = Clip {
            times: play.times,
            ..clip
        };
        let _ = running.handle.command(move |session, now_ns| {
            if let Some(media) = session.audio_mut() {
                let played = media
                    .session_mut()
                    .play_part(now_ns, play.to, clip, play.part);
                if let Err(error) = played {
                    tracing::warn!(call, %error, "cannot play a file");
                }
            }
        });
        self.take_state(play.stream);
    }

    /// Drops a play whose samples cannot be loaded. An earlier play continues.
    pub(super) fn forget_play(&mut self, play: &Play) {
        if let Some(running) = self.running_play(play) {
            running.plays[play.to as usize].forget();
            self.take_state(play.stream);
        }
    }

    /// Returns the stream of a play, unless another play has replaced this one.
    fn running_play(&mut self, play: &Play) -> Option<&mut Running> {
        let running = self.streams.get_mut(&play.stream)?;
        running.plays[play.to as usize]
            .is_latest(play)
            .then_some(running)
    }

    fn stop_play(&mut self, stream: StreamId, to: Side) {
        let Some(running) = self.streams.get_mut(&stream) else {
            return;
        };
        running.plays[to as usize].stop();
        let _ = running.handle.command(move |session, _| {
            if let Some(media) = session.audio_mut() {
                media.session_mut().stop_play(to);
            }
        });
        self.take_state(stream);
    }

    /// Returns the state of a running stream.
    pub(super) fn now(&self, stream: StreamId) -> Option<StreamNow> {
        self.streams.get(&stream).map(StreamNow::of)
    }

    /// Returns the quality of a running stream over the last minutes.
    pub(super) fn history(&self, stream: StreamId) -> Option<&QualityHistory> {
        Some(&self.streams.get(&stream)?.history)
    }

    /// Adds a listener to both sides of a stream from now on. Returns the sample rate for both sides, in Hz, and the listener.
    ///
    /// # Errors
    /// Fails if the stream cannot be listened to.
    pub(super) fn listen(&self, stream: StreamId) -> Result<(u32, Listening), Unheard> {
        let running = self.streams.get(&stream).ok_or(Unheard::NotRunning)?;
        listeners::check(&running.spec)?;
        let listening = running.listen();
        running.update_listeners();
        Ok(listening)
    }

    /// Delivers late packets from the node that carried a stream before.
    pub(super) fn deliver(&self, stream: StreamId, late_packets: Vec<LatePacket>) {
        if let Some(running) = self.streams.get(&stream) {
            // `with` delivers the packets at once, because they are already late. If the stream is gone, they are dropped.
            drop(
                running
                    .handle
                    .with(move |session, now_ns| session.handle_late_packets(now_ns, late_packets)),
            );
        }
    }

    /// Starts newly created streams immediately, instead of at the next slice.
    pub(super) fn begin_now(&self, streams: &[StreamId]) {
        for running in streams.iter().filter_map(|stream| self.streams.get(stream)) {
            // `with` wakes the thread, which then carries out all pending orders.
            drop(running.handle.with(|_, _| ()));
        }
    }

    /// Returns the call of a stream, for the log.
    pub(super) fn call_of(&self, stream: StreamId) -> Option<&CallId> {
        Some(&self.streams.get(&stream)?.call)
    }

    fn insert_dtmf(&self, stream: StreamId, of: Side, digit: DtmfDigit) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let call = running.call.to_string();
        let _ = running.handle.command(move |session, now_ns| {
            if let Some(media) = session.audio_mut()
                && let Err(error) = media.session_mut().insert_dtmf(now_ns, of, digit)
            {
                tracing::warn!(call, %error, "cannot send a DTMF digit");
            }
        });
    }

    /// Requests the counters of some streams from their threads.
    pub(super) fn ask_stats(&self, streams: &[StreamId]) -> Vec<AskedStats> {
        let known = streams
            .iter()
            .filter_map(|id| Some((*id, self.streams.get(id)?)));
        let ask = |(stream, running): (StreamId, &Running)| AskedStats {
            stream,
            reply: running.handle.with(|session, _| stats_of(session)),
            latest: running.latest.clone(),
        };
        known.map(ask).collect()
    }

    /// Returns for each stream when media were last received, and the counts since the last call of this method.
    pub(super) fn heard(&mut self) -> Vec<(StreamId, Media, [SideCounts; 2])> {
        let now_ns = clock_now_ns();
        let of = |(id, running): (&StreamId, &mut Running)| {
            let measured = running.latest.measured();
            let media = Media {
                heard_ns: measured.sides.map(|side| side.heard_ns),
            };
            running.history.note(now_ns, &measured);
            let counted = measured.sides.map(|side| side.counts);
            let before = std::mem::replace(&mut running.counted, counted);
            (
                *id,
                media,
                [0, 1].map(|side: usize| counted[side].since(&before[side])),
            )
        };
        self.streams.iter_mut().map(of).collect()
    }

    /// Returns the latest statistics of a running stream.
    pub(super) fn measured(&self, stream: StreamId) -> Option<Measured> {
        Some(self.streams.get(&stream)?.latest.measured())
    }

    /// Sets how often the statistics of streams are updated.
    pub(super) fn set_pace(&self, interval: Duration) {
        self.pace.set(interval.min(PACE_MAX));
    }

    /// Returns an ended call with the last measurements of its streams.
    pub(super) fn poll_ended(&mut self) -> Option<EndedCall> {
        self.endings.poll()
    }

    /// Returns the next report of a media thread, with the call that it is about. Reports about ended streams are dropped.
    pub(super) fn poll_news(&self) -> Option<(CallId, News)> {
        loop {
            let news = self.reports.poll()?;
            if let Some(call) = self.call_of(news.stream) {
                return Some((call.clone(), news));
            }
        }
    }

    /// Returns the counters of the media threads.
    pub(super) fn snapshots(&self) -> Vec<ThreadSnapshot> {
        let contexts = threadbare_runtime::contexts();
        let mut own = contexts.iter().flat_map(|context| &context.threads);
        let now_ns = clock_now_ns();
        let of = |shard: ShardStats| {
            let runtime = own.find(|one| one.name() == shard.thread);
            ThreadSnapshot {
                alive_ns: runtime.map_or(0, |one| now_ns.saturating_sub(one.started_ns())),
                busy_ns: runtime.map_or(0, |one| one.counters_snapshot().busy_ns),
                name: shard.thread,
                lateness_ns: shard.lateness_ns,
                streams: shard.stats.calls,
                packets_received: shard.stats.packets_received,
                packets_sent: shard.stats.packets_sent,
                send_errors: shard.stats.send_errors + shard.stats.send_full,
                kernel_drops: shard.stats.kernel_drops,
                ring_packets: [shard.stats.ring_received, shard.stats.ring_sent],
            }
        };
        self.engine.shard_stats().into_iter().map(of).collect()
    }
}

/// Sends an RTCP BYE to both parties (RFC 3550, section 6.6), before the handle removes the session.
fn say_bye(handle: &CallHandle<MediaSession>) {
    let _ = handle.command(|session, now_ns| {
        if let Some(media) = session.audio_mut() {
            media.session_mut().leave(now_ns, "the call has ended");
        }
    });
}

/// Longest interval at which streams update their statistics.
const PACE_MAX: Duration = Duration::from_secs(1);
