//! Streams that outlive the process: their states to the store, and back.
//!
//! A state says which packets have left, by number. Those that leave behind it have to be reckoned with: no number is used twice under one key (RFC 3711,
//! section 9.1), and no receiver is to hear the numbers go back. So numbers go on as far behind the state as packets can have left since.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use threadbare_control::calls::{Media, StreamId, StreamSpec};
use threadbare_relay::{CallHandle, MediaCallState, Medium, Stray};
use threadbare_rtp::call::Side;
use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::leg::{Outage, SKIPPED_PACKETS_MAX};
use threadbare_rtp::srtp::ProtectionState;
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::UnboundedSender;

use super::plays::Played;
use super::state::{MediumState, PlayState, StreamState};
use super::{MediaPlane, settle};
use crate::cluster::StreamCopy;
use crate::serve::spec::{self, FIRST_SEQ_MASK};
use crate::serve::store::{Before, Shelf};
use crate::system::{boot_id, random_number, unix_at_zero_ns};

/// What a plane needs for that.
#[derive(Debug)]
pub(super) struct Keeper {
    shelf: Arc<Shelf>,
    /// Streams in the order in which their states are taken.
    turns: VecDeque<StreamId>,
    due_ns: u64,
    /// Of the process before, until their calls are there again.
    saved: HashMap<StreamId, (Vec<u8>, Before)>,
    /// What has come to the process before, behind the state.
    strays: HashMap<StreamId, Vec<Stray>>,
    boot: Option<u128>,
    /// When media came last, as the process before knew it.
    heard: Vec<(StreamId, Media)>,
    /// What it was playing.
    pub(super) unplayed: Vec<(StreamId, Side, PlayState)>,
}

/// Streams that another node goes on with.
#[derive(Debug)]
pub(in crate::serve) struct HandedOver {
    /// What it needs for each.
    pub(in crate::serve) states: Vec<(StreamId, Vec<u8>)>,
    /// Their ports stay open until these are dropped.
    pub(in crate::serve) handles: Vec<CallHandle<Medium>>,
}

/// Where what still comes to the ports of streams goes, with the number of the stream.
pub(in crate::serve) type StrayGiver = UnboundedSender<(u64, Stray)>;

/// How long ago a state was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Age {
    elapsed_ns: u64,
    /// For so long, packets may have left since; `None`: nobody knows.
    unsaved_ns: Option<u64>,
}

impl MediaPlane {
    /// Keeps the states of all streams in a store from now on. `saved`: those of the process before, for streams of the same numbers.
    pub(in crate::serve) fn keep_states(
        &mut self,
        shelf: Arc<Shelf>,
        before: Before,
        saved: HashMap<StreamId, Vec<u8>>,
    ) {
        let saved = saved.into_iter();
        let saved = saved.map(|(stream, state)| (stream, (state, before)));
        self.keeper = Some(Keeper {
            shelf,
            turns: VecDeque::new(),
            due_ns: 0,
            saved: saved.collect(),
            strays: HashMap::new(),
            boot: boot_id(),
            heard: Vec::new(),
            unplayed: Vec::new(),
        });
    }

    /// The state of a stream of another node, which is about to begin here.
    pub(in crate::serve) fn expect(
        &mut self,
        stream: StreamId,
        copy: StreamCopy,
        strays: Vec<Stray>,
    ) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        let (before, way_ns) = match copy.is_last {
            true => (Before::Stopped, 0),
            false => (Before::Died, WAY_NS),
        };
        match StreamState::from_bytes(&copy.state.0) {
            Ok(state) => {
                let state = state.on_this_clock(copy.at_ns, way_ns, keeper.boot);
                let state = state.to_bytes();
                keeper.saved.insert(stream, (state, before));
                if copy.is_last {
                    keeper.strays.insert(stream, strays);
                }
            }
            Err(error) => {
                tracing::warn!(stream = stream.0, %error, "the state of a stream is not taken: it begins anew");
            }
        }
    }

    /// When media came last from the streams that were brought back. No others are brought back behind this.
    pub(in crate::serve) fn take_heard(&mut self) -> Vec<(StreamId, Media)> {
        let Some(keeper) = &mut self.keeper else {
            return Vec::new();
        };
        (keeper.saved, keeper.strays) = Default::default();
        std::mem::take(&mut keeper.heard)
    }

    /// When states are to be taken next.
    pub(in crate::serve) fn next_states(&self) -> Option<u64> {
        let keeper = self.keeper.as_ref()?;
        (!keeper.turns.is_empty()).then_some(keeper.due_ns)
    }

    /// Orders the states of some streams, so that each has its turn once in [`INTERVAL_NS`].
    pub(in crate::serve) fn take_states(&mut self, now_ns: u64) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        if now_ns < keeper.due_ns {
            return;
        }
        keeper.due_ns = now_ns + TICK_NS;
        let turns = keeper
            .turns
            .len()
            .div_ceil((INTERVAL_NS / TICK_NS) as usize);
        let mut due = Vec::with_capacity(turns);
        while due.len() < turns
            && let Some(stream) = keeper.turns.pop_front()
        {
            // Those that have ended leave here.
            if self.streams.contains_key(&stream) {
                keeper.turns.push_back(stream);
                due.push(stream);
            }
        }
        for stream in due {
            self.take_state(stream);
        }
    }

    /// Orders the state of a stream. What was ordered before is in it.
    pub(super) fn take_state(&self, stream: StreamId) {
        let (Some(keeper), Some(running)) = (&self.keeper, self.streams.get(&stream)) else {
            return;
        };
        let (shelf, boot) = (keeper.shelf.clone(), keeper.boot);
        let played = running.plays.clone();
        // A stream that is gone has none.
        let _ = running.handle.command(move |medium, now_ns| {
            if let Some(state) = state_of(medium, &played, now_ns, boot) {
                shelf.put_stream(stream, state.to_bytes());
            }
        });
    }

    /// Ends all streams without a word to their parties, for the next process to go on with them.
    pub(in crate::serve) fn leave(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let state = self.end_silently(stream);
            let Some(keeper) = &self.keeper else {
                return;
            };
            match state {
                Some(state) => keeper.shelf.put_stream(stream, state),
                // An older state does not say all that has left.
                None => keeper.shelf.end_stream(stream),
            }
        }
    }

    /// The same for some streams, which another node goes on with.
    pub(in crate::serve) fn hand_over(
        &mut self,
        streams: &[StreamId],
        give: &StrayGiver,
    ) -> HandedOver {
        let mut asked = Vec::with_capacity(streams.len());
        let mut handles = Vec::with_capacity(streams.len());
        for &stream in streams {
            self.stop_recording(stream, false);
            let copied = self.streams.get(&stream).and_then(|one| one.spec.copies);
            self.link(stream, copied, None);
            let (Some(keeper), Some(running)) = (&self.keeper, self.streams.remove(&stream)) else {
                continue;
            };
            keeper.shelf.forget_stream(stream);
            let (boot, played, give) = (keeper.boot, running.plays, give.clone());
            // All threads at once: each packet of this time comes late.
            let state = running.handle.with(move |medium, now_ns| {
                let state = state_of(medium, &played, now_ns, boot);
                // Nobody may want them.
                let take = move |stray| drop(give.send((stream.0, stray)));
                medium.divert(now_ns, Box::new(take));
                state.map(|state| state.to_bytes())
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

    /// `None`: it is gone, or nobody keeps it.
    fn end_silently(&mut self, stream: StreamId) -> Option<Vec<u8>> {
        let boot = self.keeper.as_ref()?.boot;
        let running = self.streams.remove(&stream)?;
        let played = running.plays;
        let mut medium = running.handle.remove()?;
        let state = state_of(&mut medium, &played, clock_now_ns(), boot)?;
        Some(state.to_bytes())
    }
}

impl Keeper {
    /// A stream begins, or goes on if the process before had it.
    pub(super) fn begin(&mut self, stream: StreamId, spec: &StreamSpec, medium: &mut Medium) {
        let now_ns = clock_now_ns();
        let mut unplayed = [None, None];
        if let Some((bytes, before)) = self.saved.remove(&stream) {
            match StreamState::from_bytes(&bytes) {
                Ok(mut state) => {
                    unplayed = std::mem::take(&mut state.plays);
                    self.go_on(now_ns, stream, spec, medium, (state, before));
                }
                Err(error) => {
                    tracing::warn!(stream = stream.0, %error, "the state of a stream is not taken: it begins anew");
                }
            }
        }
        self.shelf.begin(stream);
        if let Some(mut state) = state_of(medium, &<[Played; 2]>::default(), now_ns, self.boot) {
            state.plays.clone_from(&unplayed);
            self.shelf.put_stream(stream, state.to_bytes());
        }
        // Before what waits in the ports, which came behind it.
        let strays = self.strays.remove(&stream);
        medium.handle_strays(now_ns, strays.unwrap_or_default());
        for (side, play) in Side::BOTH.into_iter().zip(unplayed) {
            self.unplayed.extend(play.map(|play| (stream, side, play)));
        }
        self.turns.push_back(stream);
    }

    /// A stream has ended.
    pub(super) fn end(&self, stream: StreamId) {
        self.shelf.end_stream(stream);
    }

    fn go_on(
        &mut self,
        now_ns: u64,
        stream: StreamId,
        spec: &StreamSpec,
        medium: &mut Medium,
        (state, before): (StreamState, Before),
    ) {
        let unix_at_zero_ns = unix_at_zero_ns();
        let age = Age::of(&state, before, self.boot, now_ns, unix_at_zero_ns);
        let zero_then_ns = match self.boot.is_some() && self.boot == state.boot {
            true => unix_at_zero_ns,
            false => state.taken_unix_ns.saturating_sub(state.taken_ns),
        };
        let heard = |at_ns: u64| {
            let unix_ns = at_ns.saturating_add(zero_then_ns);
            unix_ns.saturating_sub(unix_at_zero_ns).min(now_ns)
        };
        let heard_ns = state.heard_ns.map(|at_ns| at_ns.map(heard));
        self.heard.push((stream, Media { heard_ns }));
        let restored = match (&mut *medium, state.medium) {
            (Medium::Audio(media), MediumState::Audio(mut state)) => {
                let outage = reckon(&mut state, age, spec, &mut random_number);
                if self.strays.contains_key(&stream) {
                    media.wait_for_strays(now_ns.saturating_add(STRAYS_NS), &state);
                }
                media.restore(now_ns, &state, outage)
            }
            (Medium::Forward(forward), MediumState::Forward(mut state)) => {
                for side in Side::BOTH {
                    carry_key(&mut state.protections[side as usize], spec, side);
                }
                let outage = Outage {
                    elapsed_ns: age.elapsed_ns,
                    unsaved_ns: age.unsaved_ns.unwrap_or(age.elapsed_ns),
                };
                forward.restore(now_ns, &state, outage)
            }
            // It has become another medium since.
            _ => Ok(()),
        };
        if let Err(error) = restored {
            tracing::warn!(stream = stream.0, %error, "the state of a stream is not taken: it begins anew");
        }
        // Keys may be others since, and are in no state of audio that was plain.
        for side in Side::BOTH {
            settle(medium, now_ns, side, spec);
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
            // Wall clocks are set: only the monotonic one proves anything, and only until the machine starts anew.
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

/// How far the numbers go on. Where they cannot go on so far that none is used twice, our stream gets another SSRC, whose numbers are all unused.
fn reckon(
    state: &mut MediaCallState,
    age: Age,
    spec: &StreamSpec,
    random: &mut dyn FnMut() -> u64,
) -> Outage {
    let unsaved_ns = age.unsaved_ns.unwrap_or(0);
    let outage = Outage {
        elapsed_ns: age.elapsed_ns,
        unsaved_ns,
    };
    for side in Side::BOTH {
        let direction = &mut state.call.directions[side.other() as usize];
        if direction.time.is_none() {
            // Nothing has left yet that would tell how long the packets are.
            direction.packet_ns = direction.packet_ns.min(PACKET_NS_MIN);
        }
        let is_known = age.unsaved_ns.is_some();
        if !is_known || outage.skipped_packets(direction.packet_ns) == SKIPPED_PACKETS_MAX {
            let leg = &mut state.call.legs[side as usize];
            leg.ssrc = Ssrc(random() as u32);
            leg.next_seq = SeqNum(random() as u16 & FIRST_SEQ_MASK);
            (leg.packets_sent, leg.octets_sent) = (0, 0);
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

/// The key that we send with may be newer than the state: indices go on behind those of the old one, so that none of the new one is used twice.
/// What the party sends with, the state may be behind of, too: [`settle`] takes both.
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
    medium: &mut Medium,
    played: &[Played; 2],
    now_ns: u64,
    boot: Option<u128>,
) -> Option<StreamState> {
    let plays = Side::BOTH.map(|side| played[side as usize].state(medium, side));
    let (heard_ns, medium) = match medium {
        Medium::Audio(media) => {
            let call = media.call();
            let heard_ns = Side::BOTH.map(|side| call.leg(side).heard_ns());
            (heard_ns, MediumState::Audio(media.snapshot(now_ns)))
        }
        Medium::Forward(forward) => {
            let heard_ns = forward.stats().map(|side| side.received[0].last_ns);
            (heard_ns, MediumState::Forward(forward.snapshot(now_ns)))
        }
        // Its state is elsewhere.
        Medium::Diverted(_) => return None,
    };
    Some(StreamState {
        boot,
        taken_ns: now_ns,
        taken_unix_ns: now_ns.saturating_add(unix_at_zero_ns()),
        heard_ns,
        plays,
        medium,
    })
}

/// The state of each stream is taken so often. What it costs: some microseconds. What it brings: numbers that go on by little.
const INTERVAL_NS: u64 = 1_000_000_000;
/// The states of a tenth of all streams at a time, so that no slice gets late by them.
const TICK_NS: u64 = 100_000_000;
/// From a media thread to another machine: rather too long, so that no number is used twice.
const WAY_NS: u64 = 150_000_000;
/// From a node that is busy.
const STRAYS_NS: u64 = 150_000_000;
/// AES67, section 7.2.
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

    /// With these keys for A and B.
    fn spec(keys: [Option<SrtpKeys>; 2]) -> StreamSpec {
        let sides = keys.map(|srtp| SideSpec {
            srtp,
            ..SideSpec::unknown(Learn::FOLLOW)
        });
        StreamSpec {
            kind: StreamKind::Audio,
            sides,
            tos: None,
            copies: None,
        }
    }

    fn media(state: StreamState) -> MediaCallState {
        match state.medium {
            MediumState::Audio(state) => state,
            MediumState::Forward(_) => panic!("audio"),
        }
    }

    #[test]
    fn only_this_machines_clock_since_its_start_proves_an_age() {
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
        // The wall clock was put back by an hour since.
        let put_back = taken(47 * S, zero_ns + 3647 * S);
        assert_eq!(
            age(&put_back, Before::Died, here),
            known(3 * S, Some(3 * S))
        );
        assert_eq!(age(&put_back, Before::Died, other), known(0, None));
        // A clock that is behind is not the same one.
        let ahead = taken(51 * S, zero_ns + 40 * S);
        assert_eq!(age(&ahead, Before::Died, here), known(10 * S, None));
    }

    proptest! {
        /// RFC 3711, section 9.1: "the same SRTP key stream" is not used twice. All that can have left since the state has been reckoned with, or
        /// the SSRC, which is part of the key stream's seed, is another one.
        #[test]
        fn no_number_is_used_twice(
            packet_ms in 1..200_u64, elapsed_ms in 0..400_000_u64, kind in 0..3_u8, has_sent: bool,
        ) {
            let mut state = media(audio(SUITE));
            for direction in &mut state.call.directions {
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
                let (old, new) = (&before.call.legs[side as usize], &state.call.legs[side as usize]);
                let direction = &state.call.directions[side.other() as usize];
                // Before a packet has left, nobody knows how short they are.
                let shortest_ns = if before.call.directions[side.other() as usize].time.is_some() { packet_ms * 1_000_000 } else { PACKET_NS_MIN };
                let may_have_left = unsaved_ns.map(|ns| ns / shortest_ns);
                let skipped = u64::from(outage.skipped_packets(direction.packet_ns));
                let is_new = old.ssrc != new.ssrc;
                prop_assert!(is_new || may_have_left.is_some_and(|packets| skipped >= packets));
                // RFC 3550, appendix A.1: some seconds are a gap.
                let is_short = elapsed_ms < 20_000 && packet_ms >= 20 && unsaved_ns.is_some();
                if is_short && direction.time.is_some() {
                    prop_assert!(!is_new && skipped < 3000, "{}", skipped);
                }
            }
        }
    }

    /// A re-INVITE, and the end of the process before the state behind it was taken.
    #[test]
    fn indices_of_a_newer_key_go_on_behind_those_of_the_older() {
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
        // A was plain, B had other keys.
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
        // SRTP that has ended leaves nothing.
        let mut state = before;
        reckon(&mut state, age, &spec([None, None]), &mut || 0);
        assert_eq!(state.protections, [None, None]);
    }
}
