//! Carries out on the relay what the registry of calls says.

mod copies;
mod ears;
mod keep;
mod now;
mod plays;
mod recordings;
mod state;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use threadbare_control::calls::{
    Action, CallId, Counts, Media, Quality, SideSpec, SideStats, SourceStats, StreamCommand,
    StreamId, StreamKind, StreamSpec, StreamStats,
};
use threadbare_relay::{
    CallHandle, CreateError, Destinations, Ears, Engine, EngineError, Forward, ForwardSideStats,
    LegPorts, MediaCall, Medium, Reply, Settings, ShardStats, Stray, TOS_USUAL,
};
use threadbare_rtp::call::{Call, CallError, KeyPress, Side};
use threadbare_rtp::codec::CodecError;
use threadbare_rtp::dtmf::Key;
use threadbare_rtp::leg::{LegStats, PayloadMapError};
use threadbare_rtp::srtp::Rollover;
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::Xdp;

use self::copies::CopiesTo;
pub(super) use self::ears::Unheard;
use self::keep::Keeper;
pub(super) use self::keep::{HandedOver, StrayGiver};
pub(super) use self::now::StreamNow;
use self::plays::Played;
use self::recordings::{Recorded, Recordings};
pub(super) use self::state::PlayState;
use super::endings::{EndedCall, Endings};
use super::events::{News, Reports};
use super::metrics::ThreadSnapshot;
use super::reading::{Reading, SideCounts};
use super::spec::{self, Common, Latency};
use super::trail::Trail;
use super::wake::Wake;
use crate::recording::Recorder;

/// The streams that run.
#[derive(Debug)]
pub(super) struct MediaPlane {
    engine: Engine<Medium>,
    destinations: Destinations,
    slice: Duration,
    common: Common,
    streams: HashMap<StreamId, Running>,
    recordings: Recordings,
    endings: Endings,
    /// `None`: streams end with the process.
    keeper: Option<Keeper>,
    reports: Reports,
}

#[derive(Debug)]
struct Running {
    handle: CallHandle<Medium>,
    spec: Box<StreamSpec>,
    /// For the log.
    call: CallId,
    /// What each party hears in place of the other one.
    plays: [Played; 2],
    ears: Ears,
    trail: Trail,
    recording: Option<Recorded>,
    /// Of each side, when it was looked at last.
    counted: [SideCounts; 2],
    /// The RTP port of each leg.
    local: [SocketAddr; 2],
    copies_to: CopiesTo,
}

/// A stream that is not carried.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error(transparent)]
    Payloads(#[from] PayloadMapError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl MediaPlane {
    /// Starts the threads.
    ///
    /// # Errors
    /// Threads or descriptors run out.
    pub(super) fn new(
        threads: u32,
        calls_max: u64,
        xdp: Option<Xdp>,
        common: Common,
        wake: Wake,
    ) -> Result<Self, EngineError> {
        let mut settings = Settings::new("calls");
        settings.threads.threads = threads as i32;
        settings.calls_max = calls_max;
        settings.xdp = xdp;
        settings.orders_wait = true;
        let destinations = Destinations::new(Arc::default());
        settings.destinations = Some(destinations.clone());
        let slice = settings.threads.wait;
        Ok(MediaPlane {
            engine: Engine::new(settings)?,
            destinations,
            slice,
            common,
            streams: HashMap::new(),
            recordings: Recordings::default(),
            keeper: None,
            endings: Endings::new(wake.clone()),
            reports: Reports::new(wake),
        })
    }

    /// Whether calls have ended that wait for readings of their streams.
    pub(super) fn has_ended(&self) -> bool {
        self.endings.is_waiting()
    }

    /// Where calls may send.
    pub(super) fn destinations(&self) -> Destinations {
        self.destinations.clone()
    }

    /// Of the jitter buffers of streams that begin from now on.
    pub(super) fn set_latency(&mut self, latency: Latency) {
        self.common.latency = latency;
    }

    /// How late the best of the threads is.
    pub(super) fn lateness(&self) -> Duration {
        let shards = self.engine.shard_stats();
        let best = shards.iter().map(|shard| shard.lateness_ns).min();
        match self.streams.is_empty() {
            true => Duration::ZERO,
            false => Duration::from_nanos(best.unwrap_or(0)),
        }
    }

    /// How many threads carry them.
    pub(super) fn threads(&self) -> usize {
        self.engine.shard_stats().len()
    }

    /// How many streams run.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Does what the registry wants.
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
                    tracing::error!(call = name, %error, "a stream of the call is not carried");
                }
            }
            Action::Update { stream, spec } => self.update(stream, spec),
            Action::Remove { stream } => {
                self.stop_recording(stream, false);
                if let Some(keeper) = &self.keeper {
                    keeper.end(stream);
                }
                let copied = self.streams.get(&stream).and_then(|one| one.spec.copies);
                self.link(stream, copied, None);
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
        self.locate(&mut spec);
        let copied = spec.copies;
        let local = ports.each_ref().map(LegPorts::rtp_address);
        let ears = Ears::default();
        let mut medium = self.medium(stream, &spec, &ears)?;
        if let Some(keeper) = &mut self.keeper {
            keeper.begin(stream, &spec, &mut medium);
        }
        if let Some(tos) = spec.tos {
            for leg in &mut ports {
                if let Err(error) = leg.set_tos(tos) {
                    tracing::warn!(%call, tos, %error, "the TOS is not set");
                }
            }
        }
        let handle = self.engine.create(call.to_string(), ports.into(), medium)?;
        let running = Running {
            handle,
            spec,
            call,
            plays: Default::default(),
            ears,
            trail: Trail::default(),
            recording: None,
            counted: Default::default(),
            local,
            copies_to: CopiesTo::default(),
        };
        self.streams.insert(stream, running);
        self.link(stream, None, copied);
        self.record_by_policy(stream);
        Ok(())
    }

    /// A stream from its beginning.
    fn medium(
        &self,
        stream: StreamId,
        spec: &StreamSpec,
        ears: &Ears,
    ) -> Result<Medium, StreamError> {
        let now_ns = clock_now_ns();
        let mut medium = match spec.kind {
            StreamKind::Audio => {
                let mut random = crate::system::random_number;
                let config = spec::call_config(spec, &self.common, &mut random)?;
                let call = Call::new(now_ns, config)?;
                let media = MediaCall::new(call, self.slice).heard_by(ears.clone());
                Medium::from(media.on_event(self.reports.handler(stream)))
            }
            StreamKind::Packets => {
                let [a, b] = &spec.sides;
                let sides = [spec::forward_side(a), spec::forward_side(b)];
                Medium::from(Forward::new(now_ns, sides))
            }
        };
        for side in Side::BOTH {
            settle(&mut medium, now_ns, side, spec);
        }
        Ok(medium)
    }

    fn update(&mut self, stream: StreamId, mut spec: Box<StreamSpec>) {
        self.locate(&mut spec);
        let copied = spec.copies;
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let call = running.call.to_string();
        let is_other_kind = running.spec.kind != spec.kind;
        let other_kind = is_other_kind.then(|| self.medium(stream, &spec, &running.ears));
        let other_kind = match other_kind.transpose() {
            Ok(other_kind) => other_kind,
            Err(error) => return tracing::error!(call, %error, "the stream stays as it was"),
        };
        let Some(running) = self.streams.get_mut(&stream) else {
            return;
        };
        if running.spec.tos != spec.tos {
            // If it is gone, that is told below.
            let _ = running.handle.set_tos(spec.tos.unwrap_or(TOS_USUAL));
        }
        let before = std::mem::replace(&mut running.spec, spec.clone());
        let copied_before = before.copies;
        let told = match other_kind {
            Some(other) => running.handle.command(move |medium, _| *medium = other),
            None => running.handle.command(move |medium, now_ns| {
                for side in Side::BOTH {
                    if let Err(error) = change(medium, now_ns, side, &before, &spec) {
                        tracing::error!(call, ?side, %error, "the stream stays as it was");
                    }
                }
            }),
        };
        if told.is_err() {
            tracing::error!(call = %running.call, "the stream is gone");
        }
        self.link(stream, copied_before, copied);
        if is_other_kind {
            // Another medium knows of nobody.
            self.tell_copies(stream);
            self.tell_ears(stream);
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
                let press = KeyPress {
                    key,
                    duration_ns: u64::from(duration_ms) * 1_000_000,
                    pause_ns: u64::from(pause_ms) * 1_000_000,
                    volume: volume_dbm0.unsigned_abs().min(63),
                };
                self.press(stream, of, press);
            }
            StreamCommand::StopPlay { to } => self.stop_play(stream, to),
            StreamCommand::StartRecording(recording) => self.record(stream, recording),
            StreamCommand::PauseRecording => {
                self.each_recording(stream, Recorder::pause);
            }
            StreamCommand::StopRecording { discard } => self.stop_recording(stream, discard),
            // Its file comes first: see the service.
            StreamCommand::Play { .. } => {}
        }
    }

    /// What has come to the node that carried a stream before.
    pub(super) fn deliver(&self, stream: StreamId, strays: Vec<Stray>) {
        if let Some(running) = self.streams.get(&stream) {
            // At once: they are late already. A stream that is gone hears nothing.
            drop(
                running
                    .handle
                    .with(move |medium, now_ns| medium.handle_strays(now_ns, strays)),
            );
        }
    }

    /// Has streams that were created just now begin at once, and not with the next slice.
    pub(super) fn begin_now(&self, streams: &[StreamId]) {
        for running in streams.iter().filter_map(|stream| self.streams.get(stream)) {
            // A thread that is awake has all orders carried out.
            drop(running.handle.with(|_, _| ()));
        }
    }

    /// For the log.
    pub(super) fn call_of(&self, stream: StreamId) -> Option<&CallId> {
        Some(&self.streams.get(&stream)?.call)
    }

    fn press(&self, stream: StreamId, of: Side, press: KeyPress) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let call = running.call.to_string();
        let _ = running.handle.command(move |medium, now_ns| {
            if let Some(media) = medium.audio_mut()
                && let Err(error) = media.call_mut().press(now_ns, of, press)
            {
                tracing::warn!(call, %error, "a key is not played");
            }
        });
    }

    /// Asks the threads of some streams for their counters.
    pub(super) fn ask_stats(&self, streams: &[StreamId]) -> Vec<(StreamId, Reply<StreamStats>)> {
        let known = streams
            .iter()
            .filter_map(|id| Some((*id, self.streams.get(id)?)));
        known
            .map(|(id, running)| (id, running.handle.with(|medium, _| stats_of(medium))))
            .collect()
    }

    /// When media came last, of all streams, and what was added since this was asked before. Waits for the streams' threads.
    pub(super) fn heard(&mut self) -> Vec<(StreamId, Media, [SideCounts; 2])> {
        let asked: Vec<_> = self.ask(self.streams.keys().copied()).collect();
        let mut heard = Vec::new();
        for (id, reply) in asked {
            let (Ok(reading), Some(running)) = (reply.wait(), self.streams.get_mut(&id)) else {
                continue;
            };
            let media = Media {
                heard_ns: reading.sides.map(|side| side.heard_ns),
            };
            running.trail.note(clock_now_ns(), &reading);
            let counted = reading.sides.map(|side| side.counts);
            let before = std::mem::replace(&mut running.counted, counted);
            let added = [0, 1].map(|side: usize| counted[side].since(&before[side]));
            heard.push((id, media, added));
        }
        heard
    }

    /// Has some streams measured, on their threads.
    pub(super) fn ask(
        &self,
        streams: impl IntoIterator<Item = StreamId>,
    ) -> impl Iterator<Item = (StreamId, Reply<Reading>)> {
        let known = streams.into_iter();
        known.filter_map(|id| {
            let handle = &self.streams.get(&id)?.handle;
            Some((id, handle.with(|medium, _| Reading::of(medium))))
        })
    }

    /// A call that has ended, with the last readings of its streams.
    pub(super) fn poll_ended(&mut self) -> Option<EndedCall> {
        self.endings.poll()
    }

    /// What the threads have seen, with its call. Of streams that have ended, nothing is told.
    pub(super) fn poll_news(&self) -> Option<(CallId, News)> {
        loop {
            let news = self.reports.poll()?;
            if let Some(call) = self.call_of(news.stream) {
                return Some((call.clone(), news));
            }
        }
    }

    /// The threads that carry media.
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

/// Both parties are told that the session is over (RFC 3550, section 6.6). The handle removes the call behind that.
fn say_bye(handle: &CallHandle<Medium>) {
    let _ = handle.command(|medium, now_ns| {
        if let Some(media) = medium.audio_mut() {
            media.call_mut().leave(now_ns, "the call has ended");
        }
    });
}

/// What holds from the beginning on, and is no part of the settings.
fn settle(medium: &mut Medium, now_ns: u64, side: Side, spec: &StreamSpec) {
    let own = spec::of(spec, side);
    let keys = spec::keys(&own.srtp);
    match medium {
        Medium::Audio(media) => {
            let call = media.call_mut();
            call.set_held(side, !own.may_receive);
            call.block_keys(side, own.blocks_keys);
            call.pass_keys(side, own.may_send);
            media.set_keys(now_ns, side, keys, Rollover::Kept);
        }
        Medium::Forward(forward) => {
            forward.set_held(
                side,
                !own.may_receive || is_cut(spec::of(spec, side.other())),
            );
            forward.set_keys(now_ns, side, keys, Rollover::Kept);
        }
        Medium::Diverted(_) => {}
    }
}

/// Whether nothing of this party passes.
fn is_cut(side: &SideSpec) -> bool {
    side.is_blocked || side.is_silenced || !side.may_send
}

/// A side as it is signalled now.
fn change(
    medium: &mut Medium,
    now_ns: u64,
    side: Side,
    before: &StreamSpec,
    after: &StreamSpec,
) -> Result<(), StreamError> {
    let (old, new) = (spec::of(before, side), spec::of(after, side));
    let moved = (old.rtp, old.rtcp, old.learn, old.waits_for_nat)
        != (new.rtp, new.rtcp, new.learn, new.waits_for_nat);
    match medium {
        Medium::Audio(media) => {
            let call = media.call_mut();
            if old.mux != new.mux {
                call.leg_mut(side).set_mux(new.mux);
            }
            if (&old.sends, &old.takes) != (&new.sends, &new.takes) {
                let (sends, takes) = spec::payloads(new)?;
                call.set_payloads(side, sends, takes);
            }
            if moved {
                let leg = call.leg_mut(side);
                leg.relearn(now_ns, spec::admission(new), spec::destination(new));
            }
            if old.has_feedback != new.has_feedback {
                let profile = spec::profile(new);
                call.leg_mut(side).set_profile(now_ns, profile, false);
            }
            if old.packet_ms != new.packet_ms {
                call.set_packet_ns(side.other(), spec::packet_ns(new))?;
            }
            let bitrates = |side: &SideSpec| (side.bitrate_bps, side.bitrate_bps_max);
            if bitrates(old) != bitrates(new) {
                call.set_bitrate(side.other(), new.bitrate_bps, new.bitrate_bps_max)?;
            }
            if old.detects_keys != new.detects_keys {
                call.set_detect_keys(side, new.detects_keys);
            }
            if old.makes_anew != new.makes_anew {
                call.set_makes_anew(side, new.makes_anew);
            }
            if spec::mode(old) != spec::mode(new) {
                call.set_mode(side, spec::mode(new));
            }
        }
        Medium::Forward(forward) if moved || old.mux != new.mux => {
            forward.set_side(now_ns, side, spec::forward_side(new));
        }
        Medium::Forward(_) | Medium::Diverted(_) => {}
    }
    settle(medium, now_ns, side, after);
    Ok(())
}

fn stats_of(medium: &mut Medium) -> StreamStats {
    match medium {
        Medium::Audio(media) => {
            let stats = media.stats();
            let [a, b] = stats.call.legs;
            StreamStats {
                sides: [leg_stats(&a), leg_stats(&b)],
            }
        }
        Medium::Forward(forward) => StreamStats {
            sides: forward.stats().map(|side| forward_stats(&side)),
        },
        Medium::Diverted(_) => StreamStats::default(),
    }
}

fn leg_stats(leg: &LegStats) -> SideStats {
    SideStats {
        rtp: Counts {
            packets: leg.packets,
            bytes: leg.bytes,
            errors: leg.refused.total(),
        },
        rtcp: Counts {
            packets: leg.session.rtcp_received,
            ..Counts::default()
        },
        heard_ns: leg.heard_ns,
        rtp_to: leg.rtp_to,
        sources: source(leg).into_iter().collect(),
    }
}

fn source(leg: &LegStats) -> Option<SourceStats> {
    let (_, ssrc) = leg.source?;
    let quality = leg.quality.unwrap_or_default();
    let measured = quality.mos.map(|mos| {
        let of = |pick: fn(&threadbare_rtp::quality::Range) -> f64| Quality {
            mos_tenths: (pick(&mos) * 10.0).round() as u32,
            jitter_ms: quality.jitter_ms.as_ref().map_or(0.0, pick).round() as u32,
            round_trip_us: (quality.round_trip_ms.as_ref().map_or(0.0, pick) * 1e3) as u32,
            loss_percent: quality.loss_percent.as_ref().map_or(0.0, pick).round() as u32,
        };
        (
            mos,
            of(|range| range.average),
            of(|range| range.lowest.value),
            of(|range| range.highest.value),
        )
    });
    Some(match measured {
        Some((mos, average, lowest, highest)) => SourceStats {
            ssrc: ssrc.0,
            samples: mos.samples.min(u64::from(u32::MAX)) as u32,
            average: Some(average),
            lowest: Some((mos.lowest.at_ns, lowest)),
            highest: Some((mos.highest.at_ns, highest)),
        },
        None => SourceStats {
            ssrc: ssrc.0,
            ..SourceStats::default()
        },
    })
}

fn forward_stats(side: &ForwardSideStats) -> SideStats {
    let [rtp, rtcp] = side.received;
    SideStats {
        rtp: Counts {
            packets: rtp.packets,
            bytes: rtp.bytes,
            errors: side.refused.total(),
        },
        rtcp: Counts {
            packets: rtcp.packets,
            bytes: rtcp.bytes,
            errors: 0,
        },
        heard_ns: rtp.last_ns,
        rtp_to: side.to,
        sources: Vec::new(),
    }
}
