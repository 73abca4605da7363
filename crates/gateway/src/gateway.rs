//! Keeps the streams of a configuration running.
//!
//! Everything happens on the thread that calls [`Gateway::handle_for`]. Streams are lines of the relay; with stock elements, for
//! comparison, they are pipelines. Both tell of their ends by [`Event`]s. A stream that fails is stopped, reported, and started
//! again after its back-off; the others are not affected.

use std::collections::{BTreeSet, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::config::{Config, Restart};
use crate::event::{Event, Prepared, RunId};
use crate::lines::{Lines, Preparer, RunningLine};
use crate::pipeline::{Elements, RunningPipeline, Stock, StockError};
use crate::stats::StreamStats;

/// The running streams of a configuration.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    carrier: Carrier,
    preparer: Preparer,
    /// Streams that wait for a name server, or a file.
    questions: usize,
    streams: Vec<Stream>,
    /// Restart times of the stopped streams.
    restarts: BTreeSet<(Instant, usize)>,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

/// What carries the streams.
#[derive(Debug)]
enum Carrier {
    Lines(Lines),
    Stock(Stock),
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Elements are not installed.
    #[error(transparent)]
    Stock(#[from] StockError),
    /// The contexts do not start.
    #[error(transparent)]
    Engine(#[from] threadbare_relay::EngineError),
}

/// Why [`Gateway::handle_for`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The time is over.
    TimeOut,
    /// A request to stop, by this cause.
    Stop(&'static str),
}

#[derive(Debug)]
struct Stream {
    running: Running,
    /// Counts starts.
    run: u64,
    backoff: Backoff,
}

#[derive(Debug)]
enum Running {
    No,
    /// It waits for a name server, or a file.
    Asking,
    Line(RunningLine),
    Pipeline(RunningPipeline),
}

impl Gateway {
    /// Builds and starts all streams. A failure to start is handled like a later one.
    ///
    /// # Errors
    /// The contexts do not start, or elements are missing.
    pub fn start(config: Config, elements: Elements) -> Result<Gateway, StartError> {
        let (sender, events) = channel();
        let carrier = match elements {
            Elements::Threadbare => Carrier::Lines(Lines::new(&config.contexts, sender.clone())?),
            Elements::Stock => Carrier::Stock(Stock::new(&config.streams, sender.clone())?),
        };
        let streams = config
            .streams
            .iter()
            .map(|_| Stream::new(config.restart))
            .collect();
        let mut gateway = Gateway {
            config,
            carrier,
            preparer: Preparer::new(sender.clone()),
            questions: 0,
            streams,
            restarts: BTreeSet::new(),
            events,
            sender,
        };
        for index in 0..gateway.streams.len() {
            gateway.start_stream(index);
        }
        Ok(gateway)
    }

    /// Sends events to the gateway.
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Number of streams that run.
    pub fn streams_running(&self) -> usize {
        let runs =
            |stream: &&Stream| matches!(stream.running, Running::Line(_) | Running::Pipeline(_));
        self.streams.iter().filter(runs).count()
    }

    /// The counters of the running streams, by name.
    pub fn stats(&self) -> impl Iterator<Item = (&str, StreamStats)> {
        let streams = self.streams.iter().zip(&self.config.streams);
        streams.filter_map(|(stream, spec)| {
            let Running::Line(line) = &stream.running else {
                return None;
            };
            Some((spec.name.as_str(), line.stats(spec)?))
        })
    }

    /// Writes the streams' statistics to the log, a line each.
    fn log_stats(&self) {
        for (name, stats) in self.stats() {
            stats.log(name);
        }
        for (stream, spec) in self.streams.iter().zip(&self.config.streams) {
            if matches!(stream.running, Running::No | Running::Asking) {
                tracing::info!(stream = spec.name, "not running, waits to be started again");
            }
        }
    }

    /// Handles pending events: afterwards, streams that could not start are known. Waits a while for name servers and files.
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
            if let Some(cause) = self.handle(event) {
                // For whoever runs the gateway: this is not the place to stop.
                let _ = self.sender.send(Event::Stop { cause });
                return;
            }
        }
    }

    /// Handles an event. `Some`: stop, for this cause.
    fn handle(&mut self, event: Event) -> Option<&'static str> {
        match event {
            Event::LineEnded { run } => {
                if matches!(self.streams[run.stream].running, Running::Line(_)) {
                    self.fail(run, "its state machine failed; the log has the place");
                }
            }
            Event::Prepared { run, answer } => {
                self.questions -= 1;
                if self.streams[run.stream].run == run.number {
                    match answer {
                        Ok(prepared) => self.start_line(run.stream, prepared),
                        Err(reason) => self.retry_later(run.stream, &reason),
                    }
                }
            }
            Event::Failed { run, reason } => self.fail(run, &reason),
            Event::Ended { run } => {
                // A sink inside a stream's `pipeline` may have an end, too.
                if matches!(self.streams[run.stream].running, Running::Pipeline(_)) {
                    self.fail(run, "the stream ended");
                }
            }
            Event::Report => self.log_stats(),
            Event::Stop { cause } => return Some(cause),
        }
        None
    }

    /// Handles events and restarts for `time` (`None`: until stopped).
    pub fn handle_for(&mut self, time: Option<Duration>) -> Handled {
        let end = time.map(|time| Instant::now() + time);
        loop {
            let now = Instant::now();
            self.restart_due(now);
            if end.is_some_and(|end| end <= now) {
                return Handled::TimeOut;
            }
            let next_restart = self.restarts.first().map(|(at, _)| *at);
            let wake_at = [end, next_restart].into_iter().flatten().min();
            let event = match wake_at {
                Some(at) => self.events.recv_timeout(at.saturating_duration_since(now)),
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => {
                    if let Some(cause) = self.handle(event) {
                        return Handled::Stop(cause);
                    }
                }
                // We hold a sender ourselves, so the channel stays open.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Lets every stream send its received packets, for at most `limit`; then stops all of them.
    ///
    /// A context reads its sockets once per slice. So first two slices and the longest jitter buffer's latency pass,
    /// and earlier packets have been read; then the end of the stream flushes the codecs.
    ///
    /// Returns the number of streams that did not finish in time.
    pub fn drain_and_stop(mut self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let slice = Duration::from_millis(self.config.contexts.wait_ms.into());
        let latencies = self
            .config
            .streams
            .iter()
            .map(|spec| spec.jitter.latency_ms);
        let latency = Duration::from_millis(latencies.max().unwrap_or(0).into());
        self.handle_for(Some(limit.min(2 * slice + latency + DRAIN_SPARE)));
        let mut draining = HashSet::new();
        for (index, stream) in self.streams.iter().enumerate() {
            match &stream.running {
                Running::Line(line) => line.finish(),
                Running::Pipeline(pipeline) if pipeline.drain() => {
                    draining.insert(index);
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
                Ok(Event::Report | Event::LineEnded { .. } | Event::Prepared { .. }) => {}
                Ok(Event::Stop { cause }) => {
                    tracing::warn!(cause, "stopping at once");
                    break;
                }
                Err(_) => break,
            }
        }
        let undone = draining.len();
        self.log_stats();
        for stream in &mut self.streams {
            stream.stop();
        }
        undone
    }

    fn start_stream(&mut self, index: usize) {
        let spec = &self.config.streams[index];
        let stream = &mut self.streams[index];
        stream.run += 1;
        if let Carrier::Stock(_) = &self.carrier {
            return self.start_pipeline(index);
        }
        match self.preparer.prepare(spec, stream.id(index)) {
            Ok(Some(prepared)) => self.start_line(index, prepared),
            Ok(None) => {
                stream.running = Running::Asking;
                self.questions += 1;
            }
            Err(error) => {
                let reason = format!("no thread to look up its destination: {error}");
                self.retry_later(index, &reason);
            }
        }
    }

    fn start_line(&mut self, index: usize, prepared: Prepared) {
        let Carrier::Lines(lines) = &self.carrier else {
            return;
        };
        let stream = &mut self.streams[index];
        match lines.start(&self.config.streams[index], stream.id(index), prepared) {
            Ok(line) => stream.runs(Running::Line(line)),
            Err(error) => self.retry_later(index, &error.to_string()),
        }
    }

    fn start_pipeline(&mut self, index: usize) {
        let Carrier::Stock(stock) = &self.carrier else {
            return;
        };
        let stream = &mut self.streams[index];
        match stock.start(&self.config.streams[index], stream.id(index)) {
            Ok(pipeline) => stream.runs(Running::Pipeline(pipeline)),
            Err(error) => self.retry_later(index, &error.to_string()),
        }
    }

    /// A run failed; if it is not over already, it is now.
    fn fail(&mut self, run: RunId, reason: &str) {
        let stream = &self.streams[run.stream];
        let is_running = matches!(stream.running, Running::Line(_) | Running::Pipeline(_));
        if stream.run == run.number && is_running {
            self.retry_later(run.stream, reason);
        }
    }

    fn retry_later(&mut self, index: usize, reason: &str) {
        let stream = &mut self.streams[index];
        stream.stop();
        let now = Instant::now();
        let wait = stream.backoff.note_failure(now);
        self.restarts.insert((now + wait, index));
        let name = &self.config.streams[index].name;
        tracing::error!(
            stream = name,
            reason,
            retry_ms = wait.as_millis() as u64,
            "the stream failed"
        );
    }

    fn restart_due(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.restarts.first() {
            if at > now {
                return;
            }
            self.restarts.pop_first();
            tracing::info!(
                stream = self.config.streams[index].name,
                "starting the stream again"
            );
            self.start_stream(index);
        }
    }
}

impl Stream {
    fn new(restart: Restart) -> Stream {
        Stream {
            running: Running::No,
            run: 0,
            backoff: Backoff::new(restart),
        }
    }

    fn id(&self, index: usize) -> RunId {
        RunId {
            stream: index,
            number: self.run,
        }
    }

    fn runs(&mut self, running: Running) {
        self.running = running;
        self.backoff.note_running(Instant::now());
    }

    fn stop(&mut self) {
        match std::mem::replace(&mut self.running, Running::No) {
            Running::Line(mut line) => line.stop(),
            // Dropped, it is stopped.
            Running::Pipeline(_) | Running::No | Running::Asking => {}
        }
    }
}

/// Sockets are free, and pipelines stopped, when this returns.
impl Drop for Gateway {
    fn drop(&mut self) {
        for stream in &mut self.streams {
            stream.stop();
        }
    }
}

/// How long the start waits for name servers and files; streams that wait longer start later.
const NAMES_LIMIT: Duration = Duration::from_secs(5);

/// Margin for scheduling on an overloaded machine.
const DRAIN_SPARE: Duration = Duration::from_millis(200);
