//! Saves and restores the states of streams, so that streams outlive the process.
//!
//! A state contains the sequence number of the last sent packet. The process may have sent more packets after it saved the
//! state. But no number may be used twice under one key (RFC 3711, section 9.1), and receivers must not see numbers go back. So
//! a restored stream skips as many numbers as packets can have been sent since the state was saved.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use threadbare_control::calls::{Media, StreamId, StreamSpec};
use threadbare_relay::{AudioState, CallHandle, LatePacket, MediaSession, MediaSpec};
use threadbare_rtp::call::Side;
use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::leg::{Outage, SKIPPED_PACKETS_MAX, SentState};
use threadbare_rtp::srtp::ProtectionState;
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::UnboundedSender;

use super::plays::Played;
use super::state::{PlayState, SavedState, StreamState};
use super::{MediaWorkers, copies};
use crate::spec::{self, FIRST_SEQ_MASK};
use crate::store::{Before, WriteQueue};
use threadbare_cluster::StreamCopy;
use threadbare_process::system::{boot_id, random_number, unix_at_zero_ns};

/// Saves the states of running streams, and holds states that are to be restored.
#[derive(Debug)]
pub(super) struct StateSaver {
    write_queue: Arc<WriteQueue>,
    /// Streams in the order in which they are saved.
    turns: VecDeque<StreamId>,
    due_ns: u64,
    /// States of the previous process's streams, until their calls are restored.
    saved: HashMap<StreamId, (Vec<u8>, Before)>,
    /// Late packets, which the previous owner received after it had handed over the state.
    late_packets: HashMap<StreamId, Vec<LatePacket>>,
    boot: Option<u128>,
    /// When media were last received, as the previous process had saved it.
    heard: Vec<(StreamId, Media)>,
    /// Files that the previous process was playing.
    unplayed: Vec<(StreamId, Side, PlayState)>,
}

/// Streams that were given up so that another node can continue them.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// The state of each stream.
    pub(crate) states: Vec<(StreamId, Vec<u8>)>,
    /// The streams' ports stay open until these handles are dropped.
    pub(crate) handles: Vec<CallHandle<MediaSession>>,
}

/// Gets the late packets that arrive at ports of handed-over streams, with the number of the stream.
pub(crate) type LatePacketSender = UnboundedSender<(u64, LatePacket)>;

/// The age of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Age {
    elapsed_ns: u64,
    /// Time after the state in which packets may have been sent. `None`: unknown.
    unsaved_ns: Option<u64>,
}

impl MediaWorkers {
    /// Saves the states of all streams in a store from now on. `saved` contains the states of the previous process. A restored stream has
    /// the same number as before.
    pub(crate) fn save_states(
        &mut self,
        write_queue: Arc<WriteQueue>,
        before: Before,
        saved: HashMap<StreamId, Vec<u8>>,
    ) {
        let saved = saved.into_iter();
        let saved = saved.map(|(stream, state)| (stream, (state, before)));
        self.saver = Some(StateSaver {
            write_queue,
            turns: VecDeque::new(),
            due_ns: 0,
            saved: saved.collect(),
            late_packets: HashMap::new(),
            boot: boot_id(),
            heard: Vec::new(),
            unplayed: Vec::new(),
        });
    }

    /// Stores the state of another node's stream, until the stream starts here.
    pub(crate) fn expect(
        &mut self,
        stream: StreamId,
        copy: StreamCopy,
        late_packets: Vec<LatePacket>,
    ) {
        let Some(saver) = &mut self.saver else {
            return;
        };
        let (before, way_ns) = if copy.is_last {
            (Before::Stopped, 0)
        } else {
            (Before::Died, WAY_NS)
        };
        match StreamState::from_bytes(&copy.state.0) {
            Ok(state) => {
                let state = state.on_this_clock(copy.at_ns, way_ns, saver.boot);
                let state = state.to_node_bytes();
                saver.saved.insert(stream, (state, before));
                if copy.is_last {
                    saver.late_packets.insert(stream, late_packets);
                }
            }
            Err(error) => {
                tracing::warn!(stream = stream.0, %error, "cannot use the saved state of a stream, so the stream starts from scratch");
            }
        }
    }

    /// Returns when media of the restored streams were last received. Call this once, after all streams have been restored.
    pub(crate) fn take_heard(&mut self) -> Vec<(StreamId, Media)> {
        let Some(saver) = &mut self.saver else {
            return Vec::new();
        };
        (saver.saved, saver.late_packets) = Default::default();
        std::mem::take(&mut saver.heard)
    }

    /// Returns the files that the previous process was playing when it ended. Call this once, after the last call has been restored.
    pub(crate) fn take_unplayed(&mut self) -> Vec<(StreamId, Side, PlayState)> {
        let saver = self.saver.as_mut();
        saver.map_or_else(Vec::new, |saver| std::mem::take(&mut saver.unplayed))
    }

    /// Returns the time at which states are saved next.
    pub(crate) fn next_states(&self) -> Option<u64> {
        let saver = self.saver.as_ref()?;
        (!saver.turns.is_empty()).then_some(saver.due_ns)
    }

    /// Saves the states of some streams. Repeated calls save each stream once in [`INTERVAL_NS`].
    pub(crate) fn take_states(&mut self, now_ns: u64) {
        let Some(saver) = &mut self.saver else {
            return;
        };
        if now_ns < saver.due_ns {
            return;
        }
        saver.due_ns = now_ns + TICK_NS;
        let turns = saver.turns.len().div_ceil((INTERVAL_NS / TICK_NS) as usize);
        let mut due = Vec::with_capacity(turns);
        while due.len() < turns
            && let Some(stream) = saver.turns.pop_front()
        {
            // Ended streams leave the queue here.
            if self.streams.contains_key(&stream) {
                saver.turns.push_back(stream);
                due.push(stream);
            }
        }
        for stream in due {
            self.take_state(stream);
        }
    }

    /// Lets the stream's thread save its state, after it has carried out all earlier orders.
    pub(super) fn take_state(&self, stream: StreamId) {
        let (Some(saver), Some(running)) = (&self.saver, self.streams.get(&stream)) else {
            return;
        };
        let (write_queue, boot) = (saver.write_queue.clone(), saver.boot);
        let played = running.plays.clone();
        // The command fails if the stream no longer exists. Such a stream has no state.
        let _ = running.handle.command(move |session, now_ns| {
            if let Some(state) = state_of(session, &played, now_ns, boot) {
                write_queue.put_stream(stream, state.to_bytes());
            }
        });
    }

    /// Ends all streams without a BYE, so that the next process can continue them.
    pub(crate) fn leave(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let state = self.end_silently(stream);
            let Some(saver) = &self.saver else {
                return;
            };
            match state {
                Some(state) => saver.write_queue.put_stream(stream, state),
                // Without its final state, the stream cannot continue, because an older state does not include all packets that were sent.
                None => saver.write_queue.end_stream(stream),
            }
        }
    }

    /// Gives up some streams without a BYE, so that another node can continue them. Packets that still arrive at their ports go
    /// to `give`.
    pub(crate) fn hand_over(
        &mut self,
        streams: &[StreamId],
        give: &LatePacketSender,
    ) -> HandedOver {
        let mut asked = Vec::with_capacity(streams.len());
        let mut handles = Vec::with_capacity(streams.len());
        for &stream in streams {
            self.stop_recording(stream, false);
            let copied = self.streams.get(&stream).and_then(|one| one.spec.copies);
            copies::link(&mut self.streams, stream, copied, None);
            let (Some(saver), Some(running)) = (&self.saver, self.streams.remove(&stream)) else {
                continue;
            };
            saver.write_queue.forget_stream(stream);
            let (boot, played, give) = (saver.boot, running.plays, give.clone());
            // Request all states before waiting for the first one, because packets that arrive during the wait reach the next node late.
            let state = running.handle.with(move |session, now_ns| {
                let state = state_of(session, &played, now_ns, boot);
                // Sending fails if the receiver is gone.
                let take = move |packet| drop(give.send((stream.0, packet)));
                session.divert(now_ns, Box::new(take));
                state.map(|state| state.to_node_bytes())
            });
            asked.push((stream, state));
            handles.push(running.handle);
        }
        let told = asked.into_iter();
        let states = told.filter_map(|(stream, state)| Some((stream, state.wait().ok()??)));
        HandedOver {
            states: states.collect(),
            handles,
        }
    }

    /// Ends a stream without a BYE, and returns its state. `None`: the stream is gone, or states are not saved.
    fn end_silently(&mut self, stream: StreamId) -> Option<Vec<u8>> {
        let boot = self.saver.as_ref()?.boot;
        let running = self.streams.remove(&stream)?;
        let played = running.plays;
        let mut session = running.handle.remove()?;
        let state = state_of(&mut session, &played, clock_now_ns(), boot)?;
        Some(state.to_node_bytes())
    }
}

impl StateSaver {
    /// Starts a stream, or continues it if it has a saved state. `media`: the specification of its session.
    pub(super) fn begin(
        &mut self,
        stream: StreamId,
        spec: &StreamSpec,
        media: MediaSpec,
        session: &mut MediaSession,
    ) {
        let now_ns = clock_now_ns();
        let mut unplayed = [None, None];
        if let Some((bytes, before)) = self.saved.remove(&stream) {
            match StreamState::from_bytes(&bytes) {
                Ok(mut state) => {
                    unplayed = std::mem::take(&mut state.plays);
                    self.go_on(now_ns, stream, spec, session, (state, before));
                    // Apply the current keys. They may have changed since the state was saved, and the state of plain audio has none.
                    if let Err(error) = session.apply(now_ns, media) {
                        tracing::warn!(stream = stream.0, %error, "cannot apply the keys of a restored stream");
                    }
                }
                Err(error) => {
                    tracing::warn!(stream = stream.0, %error, "cannot use the saved state of a stream, so the stream starts from scratch");
                }
            }
        }
        self.write_queue.begin(stream);
        if let Some(mut state) = state_of(session, &<[Played; 2]>::default(), now_ns, self.boot) {
            state.plays.clone_from(&unplayed);
            self.write_queue.put_stream(stream, state.to_bytes());
        }
        // Handle these packets before those that wait in the sockets, which arrived later.
        let late_packets = self.late_packets.remove(&stream);
        session.handle_late_packets(now_ns, late_packets.unwrap_or_default());
        for (side, play) in Side::BOTH.into_iter().zip(unplayed) {
            self.unplayed.extend(play.map(|play| (stream, side, play)));
        }
        self.turns.push_back(stream);
    }

    /// Removes the state of an ended stream.
    pub(super) fn end(&self, stream: StreamId) {
        self.write_queue.end_stream(stream);
    }

    fn go_on(
        &mut self,
        now_ns: u64,
        stream: StreamId,
        spec: &StreamSpec,
        session: &mut MediaSession,
        (state, before): (StreamState, Before),
    ) {
        let unix_at_zero_ns = unix_at_zero_ns();
        let age = Age::of(&state, before, self.boot, now_ns, unix_at_zero_ns);
        let zero_then_ns = if self.boot.is_some() && self.boot == state.boot {
            unix_at_zero_ns
        } else {
            state.taken_unix_ns.saturating_sub(state.taken_ns)
        };
        let heard = |at_ns: u64| {
            let unix_ns = at_ns.saturating_add(zero_then_ns);
            unix_ns.saturating_sub(unix_at_zero_ns).min(now_ns)
        };
        let heard_ns = state.heard_ns.map(|at_ns| at_ns.map(heard));
        self.heard.push((stream, Media { heard_ns }));
        let restored = match (&mut *session, state.session) {
            (MediaSession::Audio(media), SavedState::Audio(mut state)) => {
                let outage = reckon(&mut state, age, spec, &mut random_number);
                if self.late_packets.contains_key(&stream) {
                    media.wait_for_late_packets(now_ns.saturating_add(LATE_PACKETS_NS), &state);
                }
                media.restore(now_ns, &state, outage)
            }
            (MediaSession::Forward(forward), SavedState::Forward(mut state)) => {
                for side in Side::BOTH {
                    carry_key(&mut state.protections[side as usize], spec, side);
                }
                let outage = Outage {
                    elapsed_ns: age.elapsed_ns,
                    unsaved_ns: age.unsaved_ns.unwrap_or(age.elapsed_ns),
                };
                forward.restore(now_ns, &state, outage)
            }
            // The stream now has another kind of media session, for which the state is useless.
            _ => Ok(()),
        };
        if let Err(error) = restored {
            tracing::warn!(stream = stream.0, %error, "cannot use the saved state of a stream, so the stream starts from scratch");
        }
    }
}

impl Age {
    fn of(
        state: &StreamState,
        before: Before,
        boot: Option<u128>,
        now_ns: u64,
        unix_at_zero_ns: u64,
    ) -> Age {
        let is_same_clock = boot.is_some() && boot == state.boot;
        let passed_ns = now_ns.checked_sub(state.taken_ns);
        let by_clock_ns = passed_ns.filter(|_| is_same_clock);
        let unix_ns = now_ns.saturating_add(unix_at_zero_ns);
        let by_wall_ns = unix_ns.saturating_sub(state.taken_unix_ns);
        match (before, by_clock_ns) {
            // Only the monotonic clock proves the age, and only if the machine has not restarted, because a wall clock can be set.
            (Before::Died, Some(elapsed_ns)) => Age {
                elapsed_ns,
                unsaved_ns: Some(elapsed_ns),
            },
            (Before::Stopped, by_clock_ns) => Age {
                elapsed_ns: by_clock_ns.unwrap_or(by_wall_ns),
                unsaved_ns: Some(0),
            },
            (Before::Died, None) => Age {
                elapsed_ns: by_wall_ns,
                unsaved_ns: None,
            },
        }
    }
}

/// Prepares a state so that no sequence number is used twice. Normally, some numbers are skipped. If it is not known how many, or if they
/// are too many, the stream gets another SSRC, whose numbers are all unused.
fn reckon(
    state: &mut AudioState,
    age: Age,
    spec: &StreamSpec,
    random: &mut dyn FnMut() -> u64,
) -> Outage {
    let unsaved_ns = age.unsaved_ns.unwrap_or(0);
    let outage = Outage {
        elapsed_ns: age.elapsed_ns,
        unsaved_ns,
    };
    let is_known = age.unsaved_ns.is_some();
    for side in Side::BOTH {
        let mut packet_ns = PACKET_NS_MIN;
        if let Some(direction) = state.session.direction_to_mut(side) {
            if direction.time.is_none() {
                // No packet was sent yet, so the packet time is unknown. Assume the shortest.
                direction.packet_ns = direction.packet_ns.min(PACKET_NS_MIN);
            }
            packet_ns = direction.packet_ns;
        }
        if (!is_known || outage.skipped_packets(packet_ns) == SKIPPED_PACKETS_MAX)
            && let Some(leg) = state.session.legs.get_mut(side as usize)
        {
            leg.sent = SentState {
                ssrc: Ssrc(random() as u32),
                next_seq: SeqNum(random() as u16 & FIRST_SEQ_MASK),
                packets_sent: 0,
                octets_sent: 0,
            };
        }
        if let Some(protection) = state.protections[side as usize]
            .as_mut()
            .filter(|_| !is_known)
        {
            protection.forget_missing();
        }
        carry_key(&mut state.protections[side as usize], spec, side);
    }
    outage
}

/// Sets the current sending key in a state. It may be newer than the state. Its indices then continue after those of the old key, so that
/// no index is used twice with the new key. The party's key in the state stays, and [`MediaSession::apply`] adds the current one.
fn carry_key(protection: &mut Option<ProtectionState>, spec: &StreamSpec, side: Side) {
    let keys = spec::keys(&spec::of(spec, side).srtp);
    *protection = keys.map(|keys| match protection.take() {
        Some(mut state) => {
            state.keys.send = keys.send;
            state
        }
        None => ProtectionState {
            keys,
            received: Vec::new(),
            sent: Vec::new(),
        },
    });
}

fn state_of(
    session: &mut MediaSession,
    played: &[Played; 2],
    now_ns: u64,
    boot: Option<u128>,
) -> Option<StreamState> {
    let plays = Side::BOTH.map(|side| played[side as usize].state(session, side));
    let (heard_ns, session) = match session {
        MediaSession::Audio(media) => {
            let call = media.session();
            let heard_ns = Side::BOTH.map(|side| call.leg(side).heard_ns());
            (heard_ns, SavedState::Audio(media.snapshot(now_ns)))
        }
        MediaSession::Forward(forward) => {
            let heard_ns = forward.stats().map(|side| side.received[0].last_ns);
            (heard_ns, SavedState::Forward(forward.snapshot(now_ns)))
        }
        // The stream was handed over, so its state is at another node.
        MediaSession::Diverted(_) => return None,
    };
    Some(StreamState {
        boot,
        taken_ns: now_ns,
        taken_unix_ns: now_ns.saturating_add(unix_at_zero_ns()),
        heard_ns,
        plays,
        session,
    })
}

/// Interval at which the state of each stream is saved. Saving takes some microseconds. A shorter interval would mean that fewer numbers
/// are skipped.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Interval at which a tenth of all streams is saved. If all were saved at once, slices would be late.
const TICK_NS: u64 = 100_000_000;
/// Time that a state takes from a media thread to another machine. The estimate is high, so that no number is used twice.
const WAY_NS: u64 = 150_000_000;
/// Time to wait for late packets from the previous node, which may be busy.
const LATE_PACKETS_NS: u64 = 150_000_000;
/// The shortest packet time (AES67, section 7.2).
const PACKET_NS_MIN: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use threadbare_control::calls::{SideSpec, SrtpKeys, StreamKind};
    use threadbare_rtp::leg::Learn;
    use threadbare_rtp::srtp::{MASTER_KEY_BYTES_MAX, MasterKey, Suite};

    use super::super::state::tests::audio;
    use super::*;

    const S: u64 = 1_000_000_000;
    const SUITE: Suite = Suite::AeadAes128Gcm;

    fn key(first: u8) -> MasterKey {
        MasterKey::from_random(SUITE, &[first; MASTER_KEY_BYTES_MAX])
    }

    /// Creates a specification with these keys for A and B.
    fn spec(keys: [Option<SrtpKeys>; 2]) -> StreamSpec {
        let sides = keys.map(|srtp| SideSpec {
            srtp,
            ..SideSpec::unknown(Learn::FOLLOW)
        });
        StreamSpec {
            kind: StreamKind::Audio,
            sides,
            tos: None,
            echoes: false,
            copies: None,
            fallback: Default::default(),
        }
    }

    fn media(state: StreamState) -> AudioState {
        match state.session {
            SavedState::Audio(state) => state,
            SavedState::Forward(_) => panic!("audio"),
        }
    }

    #[test]
    fn only_the_monotonic_clock_of_the_same_boot_proves_an_age() {
        let zero_ns = 1_000_000 * S;
        let taken = |taken_ns: u64, taken_unix_ns: u64| StreamState {
            taken_ns,
            taken_unix_ns,
            ..audio(SUITE)
        };
        let age = |state: &StreamState, before, boot| Age::of(state, before, boot, 50 * S, zero_ns);
        let same = taken(47 * S, zero_ns + 47 * S);
        let known = |elapsed_ns, unsaved_ns| Age {
            elapsed_ns,
            unsaved_ns,
        };
        let (here, other) = (same.boot, Some(5));
        assert_eq!(age(&same, Before::Died, here), known(3 * S, Some(3 * S)));
        assert_eq!(age(&same, Before::Stopped, other), known(3 * S, Some(0)));
        assert_eq!(age(&same, Before::Died, other), known(3 * S, None));
        // The wall clock was set back by an hour after the state had been saved.
        let put_back = taken(47 * S, zero_ns + 3647 * S);
        assert_eq!(
            age(&put_back, Before::Died, here),
            known(3 * S, Some(3 * S))
        );
        assert_eq!(age(&put_back, Before::Died, other), known(0, None));
        // The time of the state is in the future, so its clock is not the same.
        let ahead = taken(51 * S, zero_ns + 40 * S);
        assert_eq!(age(&ahead, Before::Died, here), known(10 * S, None));
    }

    proptest! {
        /// "the same SRTP key stream" must not be used twice (RFC 3711, section 9.1). Either the numbers skip all packets that can have
        /// been sent since the state, or the SSRC changes, which is part of the key stream's seed.
        #[test]
        fn no_number_is_used_twice(
            packet_ms in 1..200_u64, elapsed_ms in 0..400_000_u64, kind in 0..3_u8, has_sent: bool,
        ) {
            let mut state = media(audio(SUITE));
            for direction in &mut state.session.directions {
                direction.packet_ns = packet_ms * 1_000_000;
                if !has_sent {
                    direction.time = None;
                }
            }
            let before = state.clone();
            let elapsed_ns = elapsed_ms * 1_000_000;
            let unsaved_ns = [Some(elapsed_ns), Some(0), None][usize::from(kind)];
            let mut next = 1000;
            let mut random = || {
                next += 1;
                next
            };
            let age = Age { elapsed_ns, unsaved_ns };
            let outage = reckon(&mut state, age, &spec([None, None]), &mut random);
            prop_assert_eq!(outage.elapsed_ns, elapsed_ns);
            for side in Side::BOTH {
                let (old, new) = (&before.session.legs[side as usize], &state.session.legs[side as usize]);
                let direction = &state.session.directions[side.other() as usize];
                // Before the first packet, the packet time is unknown.
                let shortest_ns = if before.session.directions[side.other() as usize].time.is_some() { packet_ms * 1_000_000 } else { PACKET_NS_MIN };
                let may_have_left = unsaved_ns.map(|ns| ns / shortest_ns);
                let skipped = u64::from(outage.skipped_packets(direction.packet_ns));
                let is_new = old.sent.ssrc != new.sent.ssrc;
                prop_assert!(is_new || may_have_left.is_some_and(|packets| skipped >= packets));
                // After a short outage, the skipped numbers must look like a gap, not like a restart (RFC 3550, appendix A.1).
                let is_short = elapsed_ms < 20_000 && packet_ms >= 20 && unsaved_ns.is_some();
                if is_short && direction.time.is_some() {
                    prop_assert!(!is_new && skipped < 3000, "{}", skipped);
                }
            }
        }
    }

    /// A re-INVITE brings a new key, and the process ends before the next state is saved.
    #[test]
    fn indices_of_a_newer_key_continue_after_those_of_the_older_key() {
        let mut state = media(audio(SUITE));
        let before = state.clone();
        let newer = SrtpKeys {
            receive: key(7),
            send: key(8),
        };
        let first = SrtpKeys {
            receive: key(9),
            send: key(10),
        };
        let age = Age {
            elapsed_ns: S,
            unsaved_ns: Some(S),
        };
        // Before that, A used plain RTP, and B had other keys.
        reckon(
            &mut state,
            age,
            &spec([Some(first.clone()), Some(newer)]),
            &mut || 0,
        );
        let [a, b] = state.protections.map(|one| one.expect("SRTP"));
        assert_eq!((a.keys.send, a.keys.receive), (first.send, first.receive));
        assert!(a.sent.is_empty() && a.received.is_empty());
        let old = before.protections[1].as_ref().expect("SRTP");
        assert_eq!((b.keys.send, &b.keys.receive), (key(8), &old.keys.receive));
        assert_eq!(
            (b.sent, b.received),
            (old.sent.clone(), old.received.clone())
        );
        // If the stream no longer uses SRTP, its state is dropped.
        let mut state = before;
        reckon(&mut state, age, &spec([None, None]), &mut || 0);
        assert_eq!(state.protections, [None, None]);
    }
}
