//! Keeps the streams of a configuration running.
//!
//! All work is done on the thread that calls [`Gateway::handle_for`]. Streams are lines of the relay. For comparison, they can be pipelines
//! of GStreamer's own elements. Lines and pipelines report their ends with [`Event`]s. A stream that fails is stopped, reported, and
//! restarted after its back-off. Other streams are not affected.

mod carried;
mod observed;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use self::carried::{Carriage, Place, Start};
use self::observed::{audio_source, watched};
use crate::backoff::Backoff;
use crate::event::{Event, Prepared, RunId};
use crate::kept::{KeepError, Kept};
use crate::lines::{Beginning, Lines, Preparer, RunningLine};
use crate::pipeline::{Elements, RunningPipeline, Stock, StockError};
use crate::stats::StreamStats;
use threadbare_config::{Config, Contexts, RecordingFormat, Restart, StreamSpec};
use threadbare_recording::{
    NewRecording, PacketRecorder, Recorder, RecordingId, RootError, Source, Subject, WayEnd,
};
use threadbare_watch::{Directory, MovedSession};

/// The running streams of a configuration.
#[derive(Debug)]
pub struct Gateway {
    contexts: Contexts,
    restart: Restart,
    carrier: Carrier,
    directory: Directory,
    preparer: Preparer,
    /// Number of streams that wait for a name server or a file.
    questions: usize,
    /// The streams by their numbers in [`RunId`], which are not reused.
    streams: BTreeMap<usize, Stream>,
    next_stream: usize,
    /// Times at which stopped streams are restarted.
    restarts: BTreeSet<(Instant, usize)>,
    /// Times at which held streams count as prepared.
    ready: BTreeSet<(Instant, usize)>,
    /// Time at which the loads of the contexts are compared next. `None`: streams stay on their contexts.
    rebalance_at: Option<Instant>,
    carriage: Carriage,
    recorder: Recorder,
    kept: Kept,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

/// What carries the streams.
#[derive(Debug)]
enum Carrier {
    Lines(Box<Lines>),
    Stock(Stock),
}

/// The reason why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// GStreamer's own elements are not installed.
    #[error(transparent)]
    Stock(#[from] StockError),
    /// The contexts do not start.
    #[error(transparent)]
    Engine(#[from] threadbare_relay::EngineError),
    /// A folder for recordings cannot be used.
    #[error(transparent)]
    Recordings(#[from] RootError),
    /// The file of the streams' positions cannot be used.
    #[error(transparent)]
    Positions(#[from] KeepError),
}

/// The reason why [`Gateway::handle_for`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The time has passed.
    TimeOut,
    /// The gateway must stop, for this cause.
    Stop(&'static str),
    /// The configuration must be reloaded.
    Reload,
}

/// The changes that a new configuration caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Number of streams that were started.
    pub added: usize,
    /// Number of streams that were ended.
    pub removed: usize,
    /// Number of streams that were restarted because their settings differ.
    pub restarted: usize,
}

#[derive(Debug)]
struct Stream {
    spec: StreamSpec,
    running: Running,
    /// Number of starts so far.
    run: u64,
    backoff: Backoff,
    /// The stream's state in the cluster. `None`: the stream does not belong to a cluster.
    place: Option<Place>,
    recording: Option<Recorded>,
}

/// The recording of a stream. The recording ends when this value is dropped.
#[derive(Debug)]
struct Recorded {
    recorder: Recorder,
    id: RecordingId,
    /// Gets the stream's packets, if these are recorded instead of audio.
    packets: Option<PacketRecorder>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.recorder.stop(self.id, false);
    }
}

#[derive(Debug)]
enum Running {
    No,
    /// The stream waits for a name server or a file.
    Asking,
    Line(RunningLine),
    Pipeline(RunningPipeline),
}

impl Gateway {
    /// Starts all streams. A stream that fails to start is started again later, as after any failure.
    ///
    /// # Errors
    /// Fails if the contexts do not start, if elements are missing, or if a folder of recordings cannot be used.
    pub fn start(config: Config, elements: Elements) -> Result<Gateway, StartError> {
        let (sender, events) = channel();
        let directory = Directory::default();
        let kept = match config.positions_file() {
            Some(path) => Kept::open(&path, &config.streams, directory.clone())?,
            None => Kept::default(),
        };
        let carrier = match elements {
            Elements::Threadbare => {
                let lines = Lines::new(&config.contexts, sender.clone());
                Carrier::Lines(Box::new(lines))
            }
            Elements::Stock => Carrier::Stock(Stock::new(&config.streams, sender.clone())?),
        };
        let has_choice = config.contexts.count > 1 && matches!(carrier, Carrier::Lines(_));
        let is_balanced = config.contexts.rebalance && has_choice;
        let mut gateway = Gateway {
            rebalance_at: is_balanced.then(Instant::now),
            contexts: config.contexts,
            restart: config.restart,
            carrier,
            directory,
            preparer: Preparer::new(sender.clone()),
            questions: 0,
            streams: BTreeMap::new(),
            next_stream: 0,
            restarts: BTreeSet::new(),
            ready: BTreeSet::new(),
            carriage: Carriage::default(),
            recorder: Recorder::default(),
            kept,
            events,
            sender,
        };
        gateway.prepare(&config.streams)?;
        gateway.add(config.streams);
        Ok(gateway)
    }

    /// Starts the backend if there are streams, and opens the folders of recordings. After this call, [`reload`](Self::reload) with the
    /// same streams cannot fail.
    ///
    /// # Errors
    /// Fails if the contexts do not start, or if a folder of recordings cannot be used.
    pub fn prepare(&mut self, streams: &[StreamSpec]) -> Result<(), StartError> {
        if let Carrier::Lines(lines) = &mut self.carrier
            && !streams.is_empty()
        {
            lines.start_contexts()?;
            for record in streams.iter().filter_map(|spec| spec.record.as_ref()) {
                self.recorder.open(&record.to)?;
            }
        }
        Ok(())
    }

    /// Starts, ends and restarts streams, so that they match the list. Streams are compared by name. Unchanged streams continue without
    /// interruption.
    ///
    /// # Errors
    /// Fails if the contexts do not start, or if a folder of recordings cannot be used.
    pub fn reload(
        &mut self,
        streams: Vec<StreamSpec>,
        restart: Restart,
    ) -> Result<Changed, StartError> {
        self.prepare(&streams)?;
        self.restart = restart;
        let mut wanted: HashMap<String, StreamSpec> = HashMap::new();
        let names: Vec<String> = streams.iter().map(|spec| spec.name.clone()).collect();
        wanted.extend(streams.into_iter().map(|spec| (spec.name.clone(), spec)));
        let mut changed = Changed {
            added: 0,
            removed: 0,
            restarted: 0,
        };
        // Streams are ended first, because new streams may need their ports.
        self.streams.retain(|number, stream| {
            match wanted.get(&stream.spec.name) {
                Some(spec) if *spec == stream.spec => {
                    drop(wanted.remove(&stream.spec.name));
                    return true;
                }
                Some(_) => {
                    changed.restarted += 1;
                    stream.pause(&self.kept);
                }
                None => {
                    changed.removed += 1;
                    stream.stop();
                }
            }
            self.directory.remove(*number);
            false
        });
        let new: Vec<StreamSpec> = names
            .iter()
            .filter_map(|name| wanted.remove(name))
            .collect();
        changed.added = new.len() - changed.restarted;
        self.add(new);
        Ok(changed)
    }

    fn add(&mut self, streams: Vec<StreamSpec>) {
        for spec in streams {
            let number = self.next_stream;
            self.next_stream += 1;
            self.directory.add(number, watched(&spec));
            self.streams.insert(number, Stream::new(spec, self.restart));
            self.start_stream(number);
        }
    }

    /// Returns a sender for events to the gateway.
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Returns the directory of the streams, for observers.
    pub fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// Returns the number of running streams.
    pub fn streams_running(&self) -> usize {
        let runs =
            |stream: &&Stream| matches!(stream.running, Running::Line(_) | Running::Pipeline(_));
        self.streams.values().filter(runs).count()
    }

    /// Returns the number of streams, whether they run or not.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether the gateway has no streams.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the counters of the running streams, with their names.
    pub fn stats(&self) -> impl Iterator<Item = (&str, StreamStats)> {
        self.streams.values().filter_map(|stream| {
            let Running::Line(line) = &stream.running else {
                return None;
            };
            Some((stream.spec.name.as_str(), line.stats(&stream.spec)?))
        })
    }

    /// Writes the statistics of all streams to the log, one line for each.
    fn log_stats(&self) {
        for (name, stats) in self.stats() {
            stats.log(name);
        }
        for stream in self.streams.values() {
            if matches!(stream.running, Running::No | Running::Asking) {
                let stream = &stream.spec.name;
                tracing::info!(
                    stream,
                    "the stream is not running; it waits for its restart"
                );
            }
        }
    }

    /// Handles pending events, so that the caller then knows which streams cannot start. Waits some time for name servers and files.
    pub fn handle_pending(&mut self) {
        let end = Instant::now() + NAMES_LIMIT;
        loop {
            let wait = match self.questions {
                0 => Duration::ZERO,
                _ => end.saturating_duration_since(Instant::now()),
            };
            let Ok(event) = self.events.recv_timeout(wait) else {
                return;
            };
            if let Some(handled) = self.handle(event) {
                // The caller of `handle_for` must handle these events, so they are queued again.
                let _ = self.sender.send(match handled {
                    Handled::Stop(cause) => Event::Stop { cause },
                    Handled::Reload | Handled::TimeOut => Event::Reload,
                });
                return;
            }
        }
    }

    /// Handles an event. Returns `Some` if the caller must act on it.
    fn handle(&mut self, event: Event) -> Option<Handled> {
        let running = |gateway: &Gateway, run: RunId| match gateway.streams.get(&run.stream) {
            Some(stream) if stream.run == run.number => match &stream.running {
                Running::Line(_) => Some(true),
                Running::Pipeline(_) => Some(false),
                Running::No | Running::Asking => None,
            },
            _ => None,
        };
        match event {
            Event::LineEnded { run } => {
                if running(self, run) == Some(true) {
                    self.fail(
                        run,
                        "the state machine of the stream failed; the log shows where",
                    );
                }
            }
            Event::Prepared { run, answer } => {
                self.questions -= 1;
                let asks = |stream: &Stream| stream.run == run.number;
                if self.streams.get(&run.stream).is_some_and(asks) {
                    match answer {
                        Ok(prepared) => self.start_line(run.stream, prepared),
                        Err(reason) => self.retry_later(run.stream, &reason),
                    }
                }
            }
            Event::Failed { run, reason } => self.fail(run, &reason),
            Event::Ended { run } => {
                // The end is ignored if the stream is a line of the relay, because a sink inside its `pipeline` may have posted it.
                if running(self, run) == Some(false) {
                    self.fail(run, "the stream ended");
                }
            }
            Event::Ordered => self.carry_next(),
            Event::Heard { run } => {
                if running(self, run) == Some(true) {
                    self.note_heard(run.stream);
                }
            }
            Event::Report => self.log_stats(),
            Event::Reload => return Some(Handled::Reload),
            Event::Stop { cause } => return Some(Handled::Stop(cause)),
        }
        None
    }

    /// Handles events and restarts for `time`. `None`: until the gateway is stopped.
    pub fn handle_for(&mut self, time: Option<Duration>) -> Handled {
        let end = time.map(|time| Instant::now() + time);
        loop {
            let now = Instant::now();
            self.restart_due(now);
            self.tell_ready(now);
            self.rebalance_due(now);
            if end.is_some_and(|end| end <= now) {
                return Handled::TimeOut;
            }
            let next_restart = self.restarts.first().map(|(at, _)| *at);
            let next_ready = self.ready.first().map(|(at, _)| *at);
            let times = [end, next_restart, next_ready, self.rebalance_at];
            let wake_at = times.into_iter().flatten().min();
            let event = match wake_at {
                Some(at) => self.events.recv_timeout(at.saturating_duration_since(now)),
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => {
                    if let Some(handled) = self.handle(event) {
                        return handled;
                    }
                }
                // The channel stays open, because the gateway itself has a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Lets each stream send the packets that it has received, for at most `limit`. Then stops all streams.
    ///
    /// A context reads its sockets once per slice. So this function first waits for two slices and for the longest latency of a jitter
    /// buffer. After that, all earlier packets have been read. Then it ends the streams, which makes their codecs send the rest of the
    /// audio.
    ///
    /// Returns the number of streams that did not finish in time. Only pipelines of GStreamer's own elements are counted.
    pub fn drain_and_stop(mut self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let slice = Duration::from_millis(self.contexts.wait_ms.into());
        let streams = self.streams.values();
        let latencies = streams.map(|stream| stream.spec.jitter.latency_ms);
        if let Some(latency_ms) = latencies.max() {
            let latency = Duration::from_millis(latency_ms.into());
            self.handle_for(Some(limit.min(2 * slice + latency + DRAIN_SPARE)));
        }
        let mut draining = HashSet::new();
        if self.kept.has_file() {
            self.pause_all();
        }
        for (number, stream) in &self.streams {
            match &stream.running {
                Running::Line(line) => line.finish(),
                Running::Pipeline(pipeline) if pipeline.drain() => {
                    draining.insert(*number);
                }
                _ => {}
            }
        }
        while !draining.is_empty() {
            match self
                .events
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(Event::Failed { run, .. } | Event::Ended { run }) => {
                    draining.remove(&run.stream);
                }
                Ok(
                    Event::Report
                    | Event::Reload
                    | Event::LineEnded { .. }
                    | Event::Ordered
                    | Event::Heard { .. }
                    | Event::Prepared { .. },
                ) => {}
                Ok(Event::Stop { cause }) => {
                    tracing::warn!(cause, "the process stops at once");
                    break;
                }
                Err(_) => break,
            }
        }
        let undone = draining.len();
        if !self.kept.has_file() {
            self.log_stats();
        }
        for stream in self.streams.values_mut() {
            stream.stop();
        }
        self.kept.end();
        undone
    }

    /// Stops the streams so that the next process continues their outputs.
    fn pause_all(&mut self) {
        self.log_stats();
        for stream in self.streams.values_mut() {
            stream.pause(&self.kept);
        }
    }

    fn start_stream(&mut self, number: usize) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.run += 1;
        if let Carrier::Stock(_) = &self.carrier {
            return self.start_pipeline(number);
        }
        match self.preparer.prepare(&stream.spec, stream.id(number)) {
            Ok(Some(prepared)) => self.start_line(number, prepared),
            Ok(None) => {
                stream.running = Running::Asking;
                self.questions += 1;
            }
            Err(error) => {
                let reason = format!("cannot start a thread to resolve the destination: {error}");
                self.retry_later(number, &reason);
            }
        }
    }

    fn start_line(&mut self, number: usize, prepared: Prepared) {
        let (Carrier::Lines(lines), Some(stream)) =
            (&mut self.carrier, self.streams.get_mut(&number))
        else {
            return;
        };
        let (snapshot, pace) = (
            self.directory.snapshot(number),
            self.directory.pace().clone(),
        );
        if self.kept.has_file() {
            snapshot.keep_state();
        }
        let carried = stream.place.as_ref().map(|place| &place.carried);
        let starts = |place: &Place| place.start == Start::At(None);
        let beginning = Beginning {
            run: stream.id(number),
            prepared,
            carried,
            is_held: !stream.place.as_ref().is_none_or(starts),
            resumes: self.kept.get(&stream.spec.name),
            publish_to: (snapshot, pace),
        };
        match lines.start(&stream.spec, beginning) {
            Ok(line) => {
                if let Some(place) = &mut stream.place
                    && let Start::At(state) = &mut place.start
                {
                    line.go_on(state.take());
                }
                self.kept.forget(&stream.spec.name);
                self.directory.set_session(number, line.commander());
                stream.runs(Running::Line(line));
                self.directory.set_stopped(number, None);
                self.record(number);
            }
            Err(error) => self.retry_later(number, &error.to_string()),
        }
    }

    /// Starts the recording of a stream that runs and is not held.
    fn record(&mut self, number: usize) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let place = stream.place.as_ref();
        let is_held = place.is_some_and(|place| place.start == Start::Held);
        let Some(spec) = stream.spec.record.clone().filter(|_| !is_held) else {
            return;
        };
        // If the stream comes from another node, its folder may not be open yet.
        if let Err(error) = self.recorder.open(&spec.to) {
            let stream = &stream.spec.name;
            return tracing::error!(stream, %error, "cannot record the stream");
        }
        if stream.recording.is_none() {
            let source = if spec.format == RecordingFormat::Pcap {
                Source::Packets {
                    local: [stream.spec.listen; 2],
                    end: WayEnd::default(),
                }
            } else {
                audio_source(&stream.spec, &self.directory.snapshot(number))
            };
            let (id, packets) = self.recorder.start(NewRecording {
                of: Subject::Stream(stream.spec.name.as_str().into()),
                spec: spec.into(),
                source,
                side: None,
                metadata: None,
                is_lasting: true,
            });
            stream.recording = Some(Recorded {
                recorder: self.recorder.clone(),
                id,
                packets,
            });
        }
        // A recording of packets continues when its stream is started again.
        let recorded = stream.recording.as_ref();
        if let (Running::Line(line), Some(packets)) = (
            &stream.running,
            recorded.and_then(|recorded| recorded.packets.clone()),
        ) {
            line.record_packets(packets);
        }
    }

    /// Returns the recorder.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    fn start_pipeline(&mut self, number: usize) {
        let (Carrier::Stock(stock), Some(stream)) = (&self.carrier, self.streams.get_mut(&number))
        else {
            return;
        };
        match stock.start(&stream.spec, stream.id(number)) {
            Ok(pipeline) => stream.runs(Running::Pipeline(pipeline)),
            Err(error) => self.retry_later(number, &error.to_string()),
        }
    }

    /// Ends a failed run if it has not ended yet.
    fn fail(&mut self, run: RunId, reason: &str) {
        let Some(stream) = self.streams.get(&run.stream) else {
            return;
        };
        let is_running = matches!(stream.running, Running::Line(_) | Running::Pipeline(_));
        if stream.run == run.number && is_running {
            self.retry_later(run.stream, reason);
        }
    }

    fn retry_later(&mut self, number: usize, reason: &str) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.stop();
        self.directory.set_session(number, None);
        self.directory.set_stopped(number, Some(reason));
        let now = Instant::now();
        let wait = stream.backoff.note_failure(now);
        self.restarts.insert((now + wait, number));
        let name = &stream.spec.name;
        tracing::error!(
            stream = name,
            reason,
            retry_ms = wait.as_millis() as u64,
            "the stream failed"
        );
    }

    fn restart_due(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.restarts.first() {
            if at > now {
                return;
            }
            self.restarts.pop_first();
            // The stream may have been removed by a reload.
            if let Some(stream) = self.streams.get(&number) {
                tracing::info!(stream = stream.spec.name, "restarting the stream");
                self.start_stream(number);
            }
        }
    }

    /// Lets a busy context hand a stream to another one.
    fn rebalance_due(&mut self, now: Instant) {
        let (Some(at), Carrier::Lines(lines)) = (self.rebalance_at, &self.carrier) else {
            return;
        };
        if at <= now {
            self.rebalance_at = Some(now + REBALANCE_INTERVAL);
            for moved in lines.rebalance() {
                let stream = MovedSession::Stream(moved.label.clone());
                self.directory.moves().note(stream, moved);
            }
        }
    }
}

impl Stream {
    fn new(spec: StreamSpec, restart: Restart) -> Stream {
        Stream {
            spec,
            running: Running::No,
            run: 0,
            backoff: Backoff::new(restart),
            place: None,
            recording: None,
        }
    }

    fn id(&self, number: usize) -> RunId {
        RunId {
            stream: number,
            number: self.run,
        }
    }

    fn runs(&mut self, running: Running) {
        self.running = running;
        self.backoff.note_running(Instant::now());
    }

    /// Stops the stream so that its next run, or the next process, continues its output.
    fn pause(&mut self, kept: &Kept) {
        match std::mem::replace(&mut self.running, Running::No) {
            Running::Line(line) => {
                if let Some(state) = line.hand_over() {
                    kept.put(&self.spec.name, &state);
                }
            }
            other => self.running = other,
        }
        self.stop();
    }

    fn stop(&mut self) {
        match std::mem::replace(&mut self.running, Running::No) {
            Running::Line(mut line) => line.stop(),
            // A pipeline is stopped when it is dropped.
            Running::Pipeline(_) | Running::No | Running::Asking => {}
        }
    }
}

/// When this function returns, sockets are closed and pipelines are stopped.
impl Drop for Gateway {
    fn drop(&mut self) {
        for stream in self.streams.values_mut() {
            stream.stop();
        }
    }
}

/// Time for which [`Gateway::handle_pending`] waits for name servers and files. Streams that need more time start later.
const NAMES_LIMIT: Duration = Duration::from_secs(5);

/// Time between two comparisons of the contexts' loads.
const REBALANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Extra time for a drain. It is needed because threads run late on an overloaded machine.
const DRAIN_SPARE: Duration = Duration::from_millis(200);
