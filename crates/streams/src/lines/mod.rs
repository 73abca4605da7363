//! Streams as sessions of the relay. They have no GStreamer pipeline.

mod prepare;
mod spec;

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use threadbare_recording::PacketRecorder;
use threadbare_relay::{
    AudioSession, CallHandle, Commander, CreateError, Engine, EngineError, Fence, LegPorts, Moved,
    Pace, Settings, SharedSnapshot, SocketError, Unreachable,
};
use threadbare_rtp::call::{LegId, SessionError, SessionEvent, SessionSpec, SessionState, Side};
use threadbare_rtp::fallback::Switch;
use threadbare_rtp::id::NtpTime;
use threadbare_rtp::leg::{LegEvent, Outage, PayloadMapError};
use threadbare_rtp::srtp::{Keys, MasterKey};
use threadbare_runtime::clock_now_ns;

pub use self::prepare::Preparer;
use self::spec::{Common, fallbacks, heard_by, legs};
pub use self::spec::{recorded_format, recorded_sample_bytes};
use crate::description::{self, DescriptionError};
use crate::event::{Event, Prepared, RunId, StreamKeys};
use crate::order::Carried;
use crate::stats::StreamStats;
use threadbare_config::{Contexts, Destination, InputSpec, Rtcp, StreamSpec};
use threadbare_process::limit::{LineLimit, Verdict};
use threadbare_process::system::{random_number, unix_at_zero_ns};

/// The reason why a stream does not start.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The stream's sockets cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The stream's destination is not reachable.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The payload types are not valid.
    #[error(transparent)]
    Payloads(#[from] PayloadMapError),
    /// The packet time or the jitter buffer is not valid.
    #[error(transparent)]
    Line(#[from] SessionError),
    /// The loudness target is not valid.
    #[error(transparent)]
    Loudness(#[from] threadbare_loudness::NormalizeError),
    /// The elements of `pipeline` are not valid.
    #[error("pipeline: {0}")]
    Description(#[from] DescriptionError),
    /// The contexts do not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The media thread is full or late.
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// Starts streams on the contexts of a configuration.
#[derive(Debug)]
pub struct Lines {
    contexts: Contexts,
    /// The engine of all contexts. `None`: no stream has started yet.
    engine: Option<Engine<AudioSession>>,
    slice: Duration,
    common: Common,
    events: Sender<Event>,
}

/// The beginning of a run of a stream.
#[derive(Debug)]
pub struct Beginning<'a> {
    /// The run.
    pub run: RunId,
    /// The resources that the stream needs.
    pub prepared: Prepared,
    /// The stream's settings in the cluster. `None`: the stream does not belong to a cluster.
    pub carried: Option<&'a Carried>,
    /// Whether the stream only receives until [`RunningLine::go_on`] is called.
    pub is_held: bool,
    /// The state of an earlier run whose output the stream continues, and the pause since then.
    pub resumes: Option<(SessionState, Outage)>,
    /// The snapshot that the stream updates, and the interval of updates.
    pub publish_to: (SharedSnapshot, Pace),
}

/// A running stream.
#[derive(Debug)]
pub struct RunningLine {
    handle: Option<CallHandle<AudioSession>>,
    /// Whether the output of the stream is SRTP.
    encrypts: bool,
}

impl Lines {
    /// Creates the starter of streams. It starts nothing yet. Failures of streams are sent to `events`.
    pub fn new(contexts: &Contexts, events: Sender<Event>) -> Lines {
        Lines {
            contexts: contexts.clone(),
            engine: None,
            slice: Duration::from_millis(contexts.wait_ms.into()),
            common: Common {
                cname: format!("{:016x}", random_number()).into(),
                ntp_at_zero: NtpTime::at_unix_ns(unix_at_zero_ns()),
                epoch: None,
            },
            events,
        }
    }

    /// Starts the contexts if they do not run, and returns their engine. The first stream would start them too, but this call shows a failure
    /// earlier.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or the descriptors.
    pub fn start_contexts(&mut self) -> Result<&Engine<AudioSession>, EngineError> {
        let engine = match self.engine.take() {
            Some(engine) => engine,
            None => {
                let count = self.contexts.count.max(1) as usize;
                let mut settings = Settings::new("");
                settings.contexts = (0..count).map(|i| self.contexts.name_for(i)).collect();
                settings.threads.wait = self.slice;
                Engine::new(settings)?
            }
        };
        Ok(self.engine.insert(engine))
    }

    /// Moves a stream from the context with the most load to the one with the least, unless their loads hardly differ. Call this once a
    /// second. Returns the moves that were completed since the last time.
    pub fn rebalance(&self) -> Vec<Moved> {
        self.engine.as_ref().map_or(Vec::new(), Engine::rebalance)
    }

    /// Starts a run of a stream.
    ///
    /// # Errors
    /// Fails if the stream's addresses cannot be bound, or if its settings contradict each other.
    pub fn start(
        &mut self,
        spec: &StreamSpec,
        beginning: Beginning<'_>,
    ) -> Result<RunningLine, LineError> {
        let Beginning {
            run,
            prepared,
            carried,
            is_held,
            resumes,
            publish_to: (snapshot, pace),
        } = beginning;
        self.start_contexts()?;
        let fence = carried.and_then(|carried| carried.fence.as_ref());
        let ports = open(spec, fence)?;
        let common = self.common.of_owner(carried.map(|carried| carried.epoch));
        if let (Some(to), Some(own)) = (prepared.to, ports.first()) {
            own.check_destination(to)?;
        }
        let (source, target, direction) = legs(spec, &common, prepared.to, random_number)?;
        let mut media = SessionSpec::stream(source, target, direction);
        for (leg, keys) in leg_keys(spec, prepared.to.is_some(), prepared.keys) {
            media = media.with_keys(leg, Some(keys));
        }
        let fallbacks = fallbacks(spec, &common, prepared.clips, random_number)?;
        let media = media.with_fallbacks(fallbacks);
        let mut line = AudioSession::create(clock_now_ns(), media, self.slice)?;
        if let Some(description) = &spec.pipeline {
            let format = heard_by(spec);
            let events = self.events.clone();
            let filter = description::filter(description, &spec.name, run, format, events)?;
            line.session_mut().hear_at_output(LegId::A);
            line.session_mut().set_filter(LegId::A, filter);
        }
        if let Some((state, outage)) = resumes.filter(|(state, _)| may_resume(spec, state)) {
            line.session_mut().resume(clock_now_ns(), &state, outage);
        }
        line = line.publish_to(snapshot, pace);
        if is_held {
            line = line.held();
        }
        if let Some(target_lufs) = spec.loudness_target_lufs {
            line = line.with_loudness_target(target_lufs)?;
        } else if spec.meter && !spec.is_passthrough() {
            line = line.metered();
        }
        let mut log = EventLog {
            inputs: (0..=spec.fallbacks.len())
                .map(|input| spec.input_name(input))
                .collect(),
            changes: LineLimit::new(CHANGES_PER_SECOND),
            stream: spec.name.clone(),
            reports_first_packets: is_held,
            run,
            events: self.events.clone(),
        };
        let line = line.on_event(move |event| log.handle(&event));
        let handle = self
            .start_contexts()?
            .create(spec.name.clone(), ports, line)?;
        Ok(RunningLine {
            handle: Some(handle),
            encrypts: spec.srtp.output.is_some(),
        })
    }
}

/// Whether a stream may continue an earlier output. An encrypted one gets another SSRC, so that no part of a key stream is used twice. An RTP
/// stream keeps its clock rate (RFC 7160).
fn may_resume(spec: &StreamSpec, state: &SessionState) -> bool {
    let Some((sent, direction)) = state.output() else {
        return false;
    };
    let rate_hz = direction.time.map(|time| time.clock_rate_hz);
    let is_same_source = spec.ssrc.is_none_or(|ssrc| ssrc == sent.ssrc.0);
    spec.srtp.output.is_none() && is_same_source && rate_hz == Some(heard_by(spec).clock_rate_hz)
}

/// Returns the keys of the legs that use SRTP. With `has_target`, the stream sends to another party, which is the second leg.
fn leg_keys(spec: &StreamSpec, has_target: bool, keys: StreamKeys) -> Vec<(LegId, Keys)> {
    let both = |receive: &MasterKey, send: &MasterKey| Keys {
        receive: receive.clone(),
        send: send.clone(),
    };
    let one = |key: MasterKey| both(&key, &key);
    let mut all = Vec::new();
    match (&keys.input, &keys.output) {
        (Some(input), Some(output)) if spec.destination == Destination::Latched => {
            all.push((LegId::A, both(input, output)));
        }
        (Some(input), _) => all.push((LegId::A, both(input, input))),
        (None, _) => {}
    }
    if let Some(output) = keys.output.filter(|_| has_target) {
        all.push((LegId::B, one(output)));
    }
    let first = if has_target { 2 } else { 1 };
    let fallbacks = (first..).map(LegId).zip(keys.fallbacks);
    all.extend(fallbacks.filter_map(|(leg, key)| Some((leg, one(key?)))));
    all
}

/// Opens the ports of the stream's own sender, and then those of its fallbacks.
fn open(spec: &StreamSpec, fence: Option<&Fence>) -> Result<Vec<LegPorts>, SocketError> {
    let rtcp = spec
        .rtcp_port()
        .map(|port| SocketAddr::new(spec.listen.ip(), port));
    let own = (spec.listen, rtcp.filter(|_| spec.rtcp != Rtcp::Off));
    let others = spec
        .fallbacks
        .iter()
        .filter_map(|fallback| match &fallback.input {
            InputSpec::Rtp { listen, .. } => Some((*listen, spec.rtcp_port_of(*listen))),
            InputSpec::Tone(_) | InputSpec::Silence | InputSpec::File(_) => None,
        });
    let all = std::iter::once(own).chain(others);
    all.map(|(rtp, rtcp)| {
        let ports = LegPorts::open(rtp, rtcp)?;
        Ok(match fence {
            Some(fence) => ports.fenced(fence.clone()),
            None => ports,
        })
    })
    .collect()
}

/// Logs the events of a stream. It is dropped when the stream is stopped or panics. On drop, it reports that the stream has ended.
struct EventLog {
    stream: String,
    /// Names of the inputs. The first one is the stream's own sender.
    inputs: Vec<String>,
    changes: LineLimit,
    /// Whether the first packets of the sender are reported.
    reports_first_packets: bool,
    run: RunId,
    events: Sender<Event>,
}

impl EventLog {
    fn handle(&mut self, event: &SessionEvent) {
        let stream = &self.stream;
        match event {
            SessionEvent::PayloadType(_, payload_type) => tracing::warn!(
                stream,
                %payload_type,
                "dropping packets with a payload type that the stream does not have"
            ),
            SessionEvent::Leg(LegId::A, LegEvent::Source { address, ssrc, .. }) => {
                tracing::debug!(stream, %address, %ssrc, "a source sends");
                if std::mem::take(&mut self.reports_first_packets) {
                    let _ = self.events.send(Event::Heard { run: self.run });
                }
            }
            SessionEvent::Unauthentic(leg) => tracing::warn!(
                stream,
                leg = leg.0,
                "refusing SRTP packets that are not authentic: the party has another key or another suite, or sends plain RTP"
            ),
            SessionEvent::Input(switch) => self.log_switch(*switch),
            _ => {}
        }
    }
}

impl EventLog {
    fn log_switch(&self, switch: Switch) {
        let Verdict::Write { suppressed } = self.changes.check(Instant::now()) else {
            return;
        };
        let stream = &self.stream;
        let [from, to] = [switch.from, switch.to].map(|input| self.inputs.get(input));
        if switch.is_recovery() {
            tracing::info!(
                stream,
                from,
                to,
                suppressed,
                "the stream returns to a better input"
            )
        } else {
            tracing::warn!(
                stream,
                from,
                to,
                suppressed,
                "the input is silent, so another one replaces it"
            )
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // This fails only if the gateway no longer exists.
        let _ = self.events.send(Event::LineEnded { run: self.run });
    }
}

impl RunningLine {
    /// Returns the counters of the stream. `None`: the stream no longer exists.
    #[must_use]
    pub fn stats(&self, spec: &StreamSpec) -> Option<StreamStats> {
        let handle = self.handle.as_ref()?;
        let (media, io) = (
            handle.with(|line, now_ns| (line.stats(), now_ns)),
            handle.stats(),
        );
        let (media, now_ns) = media.wait().ok()?;
        let io = io.wait().ok()?;
        let stats = StreamStats::of_line(&media, &io, now_ns);
        Some(StreamStats {
            active: Some(spec.input_name(media.session.direction().active))
                .filter(|_| !spec.fallbacks.is_empty()),
            ..stats
        })
    }

    /// Passes the packets of the stream's own sender, decrypted, to a recording.
    pub fn record_packets(&self, packets: PacketRecorder) {
        let listener = move |at_ns, side, from, packet: &[u8]| {
            // Packets of fallbacks arrive at other ports.
            if side == Side::A {
                packets.record_packet(at_ns, side, from, packet);
            }
        };
        if let Some(handle) = &self.handle {
            // This fails if the stream is gone, which it has reported.
            let _ = handle.command(|line, _| line.set_packet_listener(Some(Box::new(listener))));
        }
    }

    /// Returns a sender of commands to the stream. `None`: the stream is gone.
    pub fn commander(&self) -> Option<Commander<AudioSession>> {
        self.handle.as_ref().map(CallHandle::commander)
    }

    /// Makes the stream send all received audio, and then the BYEs.
    pub fn finish(&self) {
        if let Some(handle) = &self.handle {
            // This fails if the stream no longer exists. In that case there is nothing left to send.
            let _ = handle.command(|line, _| line.session_mut().finish());
            let _ = handle.command(|line, now_ns| line.session_mut().leave(now_ns, ""));
        }
    }

    /// Makes a held stream send from now on.
    pub fn go_on(&self, state: Option<SessionState>) {
        if let Some(handle) = &self.handle {
            // This fails if the stream no longer exists. It has reported its end itself.
            let _ = handle.command(move |line, _| line.go_on(state));
        }
    }

    /// Stops the stream between two packets, without a BYE. Returns its state for the process that continues it. Returns `None` if the
    /// stream no longer exists. Also returns `None` if its output is SRTP: the next process then uses another SSRC, so no part of a key
    /// stream is used twice.
    #[must_use]
    pub fn hand_over(mut self) -> Option<SessionState> {
        let line = self.handle.take()?.remove()?;
        if self.encrypts {
            return None;
        }
        Some(line.session().snapshot(clock_now_ns()))
    }

    /// Stops the stream. After this call, its ports are free.
    pub fn stop(&mut self) {
        self.finish();
        if let Some(handle) = self.handle.take() {
            drop(handle.remove());
        }
    }
}

/// Maximum number of log lines per second about a stream's inputs.
const CHANGES_PER_SECOND: u32 = 4;
