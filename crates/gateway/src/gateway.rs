//! Keeps the streams of a configuration running.
//!
//! Everything happens on the thread that calls [`Gateway::handle_for`]. Streams are lines of the relay; with stock elements, for
//! comparison, they are pipelines. Both tell of their ends by [`Event`]s. A stream that fails is stopped, reported, and started
//! again after its back-off; the others are not affected.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gst::prelude::*;

use crate::backoff::Backoff;
use crate::config::{Config, Restart};
use crate::event::{Event, Prepared};
use crate::limit::{StreamLimits, Verdict};
use crate::lines::{Lines, Preparer, RunningLine};
use crate::pipeline::{Elements, MissingElements, PipelineBuilder};
use crate::reason;
use crate::stats::StreamStats;

/// The running streams of a configuration.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    carrier: Carrier,
    preparer: Preparer,
    /// Streams that wait for a name server, or a file.
    questions: usize,
    /// By name, for messages from pipelines.
    indices: HashMap<String, usize>,
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
    Stock(PipelineBuilder),
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Elements are not installed.
    #[error(transparent)]
    Missing(#[from] MissingElements),
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
    Pipeline(gst::Pipeline),
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
            Elements::Stock => {
                let builder = PipelineBuilder::new(shared_bus(sender.clone()));
                builder.check(&config.streams)?;
                Carrier::Stock(builder)
            }
        };
        let indices = config
            .streams
            .iter()
            .enumerate()
            .map(|(n, spec)| (spec.name.clone(), n))
            .collect();
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
            indices,
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
            Event::LineEnded { index, run } => {
                let stream = &self.streams[index];
                if stream.run == run && matches!(stream.running, Running::Line(_)) {
                    self.retry_later(index, "its state machine failed; the log has the place");
                }
            }
            Event::Prepared { index, run, answer } => {
                self.questions -= 1;
                if self.streams[index].run == run {
                    match answer {
                        Ok(prepared) => self.start_line(index, prepared),
                        Err(reason) => self.retry_later(index, &reason),
                    }
                }
            }
            Event::Failed { pipeline, reason } => self.fail(&pipeline, &reason),
            Event::Ended { pipeline } => self.fail(&pipeline, "the stream ended"),
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
        let mut draining: HashMap<String, gst::Pipeline> = HashMap::new();
        for (stream, spec) in self.streams.iter().zip(&self.config.streams) {
            match &stream.running {
                Running::Line(line) => line.finish(),
                Running::Pipeline(pipeline) if pipeline.send_event(gst::event::Eos::new()) => {
                    draining.insert(spec.name.clone(), pipeline.clone());
                }
                _ => {}
            }
        }
        while !draining.is_empty() {
            match self
                .events
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(Event::Failed { pipeline, .. } | Event::Ended { pipeline }) => {
                    draining.remove(pipeline.name().as_str());
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
        match self.preparer.prepare(spec, index, stream.run) {
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
        match lines.start(&self.config.streams[index], index, stream.run, prepared) {
            Ok(line) => stream.runs(Running::Line(line)),
            Err(error) => self.retry_later(index, &error.to_string()),
        }
    }

    fn start_pipeline(&mut self, index: usize) {
        let Carrier::Stock(builder) = &self.carrier else {
            return;
        };
        let built = builder.build(&self.config.streams[index]);
        let stream = &mut self.streams[index];
        let pipeline = match built {
            Ok(pipeline) => pipeline,
            Err(error) => return self.retry_later(index, &error.to_string()),
        };
        stream.runs(Running::Pipeline(pipeline.clone()));
        if pipeline.set_state(gst::State::Playing).is_err() {
            // The element that refused has posted the reason; this is for one that has not.
            let reason = "an element refused to start".to_owned();
            let _ = self.sender.send(Event::Failed {
                pipeline: pipeline.upcast(),
                reason,
            });
        }
    }

    fn fail(&mut self, pipeline: &gst::Object, reason: &str) {
        let Some(&index) = self.indices.get(pipeline.name().as_str()) else {
            return;
        };
        // A failing pipeline may post several errors; only the first counts.
        let running = &self.streams[index].running;
        if let Running::Pipeline(current) = running
            && current.upcast_ref::<gst::Object>() == pipeline
        {
            self.retry_later(index, reason);
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

    fn runs(&mut self, running: Running) {
        self.running = running;
        self.backoff.note_running(Instant::now());
    }

    fn stop(&mut self) {
        match std::mem::replace(&mut self.running, Running::No) {
            Running::Line(mut line) => line.stop(),
            Running::Pipeline(pipeline) => {
                // A failed change to NULL has no remedy.
                let _ = pipeline.set_state(gst::State::Null);
            }
            Running::No | Running::Asking => {}
        }
    }
}

/// A pipeline must be in state NULL when dropped.
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

/// Of each stream: elements warn about bad packets, whose senders must not fill the log.
const WARNINGS_PER_SECOND: u32 = 2;

/// One bus for all pipelines: it keeps no message, and needs no thread and no main loop.
fn shared_bus(sender: Sender<Event>) -> gst::Bus {
    let bus = gst::Bus::new();
    let warnings = StreamLimits::new(WARNINGS_PER_SECOND);
    bus.set_sync_handler(move |_, message| {
        let event = match message.view() {
            gst::MessageView::Error(error) => top(message).map(|pipeline| Event::Failed {
                reason: plain_reason(message, &error.error(), error.debug().as_deref()),
                pipeline,
            }),
            gst::MessageView::Eos(_) => top(message).map(|pipeline| Event::Ended { pipeline }),
            gst::MessageView::Warning(warning) => {
                let stream = top(message)
                    .map(|top| top.name().to_string())
                    .unwrap_or_default();
                let Verdict::Write { suppressed } = warnings.check(&stream, Instant::now()) else {
                    return gst::BusSyncReply::Drop;
                };
                let warning = plain_reason(message, &warning.error(), warning.debug().as_deref());
                tracing::warn!(stream, warning, suppressed, "a warning from the stream");
                None
            }
            _ => None,
        };
        if let Some(event) = event {
            // Fails only when the gateway is gone, which needs no report.
            let _ = sender.send(event);
        }
        gst::BusSyncReply::Drop
    });
    bus
}

/// An element's error or warning as a sentence; the details go to the debug log.
fn plain_reason(message: &gst::Message, error: &gst::glib::Error, detail: Option<&str>) -> String {
    let element = message.src().map(|src| src.name().to_string());
    let element = element.unwrap_or_default();
    tracing::debug!(element, %error, detail, "an element's message");
    reason::plain(&element, &error.to_string(), detail)
}

/// The pipeline a message comes from.
fn top(message: &gst::Message) -> Option<gst::Object> {
    let mut object = message.src()?.clone();
    while let Some(parent) = object.parent() {
        object = parent;
    }
    Some(object)
}
