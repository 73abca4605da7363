//! A live call: its dialogs, and its time-outs.

use std::collections::BTreeSet;

use threadbare_rtp_types::side::Side;

use super::action::{Action, Recording, StreamCommand};
use super::dialog::{Dialog, Mutes, Party, Slot};
use super::id::{CallId, StreamId};
use super::names::Tags;
use super::options::Options;
use super::ports::{NoPorts, PortSource};
use super::record::{EndReason, StreamRecord};
use super::settings::Timeouts;
use super::spec::{Copied, StreamSpec};

/// A live call.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Live<P> {
    pub(super) id: CallId,
    pub(super) created_ns: u64,
    pub(super) signalled_ns: u64,
    pub(super) answered_ns: Option<u64>,
    /// Time of the last media.
    #[serde(rename = "last_media_ns")]
    pub(super) heard_ns: Option<u64>,
    /// The dialogs, in the order of their first offers.
    pub(super) dialogs: Vec<Dialog<P>>,
    /// Mutes that apply to all parties, in addition to each party's own.
    pub(super) mutes: Mutes,
    /// Whether all media are dropped.
    pub(super) drops_traffic: bool,
    pub(super) recording: Option<Recording>,
    #[serde(rename = "is_recording_paused")]
    pub(super) is_paused: bool,
    pub(super) metadata: Option<String>,
    /// Time for which the call's timer is set.
    #[serde(skip)]
    pub(super) timer_ns: Option<u64>,
    /// The call's share of the registry's totals.
    #[serde(skip)]
    pub(super) taken: Taken,
    /// Streams that have ended.
    #[serde(rename = "ended_streams")]
    pub(super) past: Vec<StreamRecord>,
}

/// Numbers of streams that have ports.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Taken {
    pub(super) streams: usize,
    /// Number of streams of unanswered offers.
    pub(super) unanswered: usize,
}

/// Maximum of a saved stream number. No machine uses as many, and adding to it does not overflow.
pub(super) const LAST_STREAM_MAX: u64 = 1 << 62;
/// Limit of a call's dialogs, which come from forks at the proxy and from transfers. Each dialog takes ports.
pub(super) const DIALOGS_MAX: usize = 32;
/// Maximum number of ended streams that a call remembers for its record.
pub(super) const PAST_MAX: usize = 64;

impl<P> Live<P> {
    pub(super) fn new(id: CallId, now_ns: u64) -> Live<P> {
        Live {
            id,
            created_ns: now_ns,
            signalled_ns: now_ns,
            answered_ns: None,
            heard_ns: None,
            dialogs: Vec::new(),
            mutes: Mutes::default(),
            drops_traffic: false,
            recording: None,
            is_paused: false,
            metadata: None,
            timer_ns: None,
            taken: Taken::default(),
            past: Vec::new(),
        }
    }

    /// Counts the call's streams that have ports.
    pub(super) fn takes(&self) -> Taken {
        let mut taken = Taken::default();
        for dialog in &self.dialogs {
            let offered = dialog.offer.iter().flat_map(|offer| &offer.fresh);
            let streams = dialog.slots.iter().chain(offered).flatten().count();
            taken.streams += streams;
            if !dialog.is_answered {
                taken.unanswered += streams;
            }
        }
        taken
    }

    fn is_silent(&self) -> bool {
        let streams = || self.dialogs.iter().flat_map(Dialog::streams);
        let is_silent = |spec: &super::StreamSpec| {
            spec.sides.iter().any(|side| {
                !(side.may_send && side.may_receive) || side.is_blocked || side.is_silenced
            })
        };
        streams().all(|slot| slot.running.as_deref().is_none_or(is_silent))
    }

    /// Returns the time at which the call ends by a time-out, and the reason.
    pub(super) fn end(&self, timeouts: &Timeouts) -> Option<(u64, EndReason)> {
        let at = |from_ns: u64, timeout_ns: Option<u64>, reason: EndReason| {
            let due_ns = from_ns.saturating_add(timeout_ns?);
            Some((due_ns, reason))
        };
        let media = self.answered_ns.and_then(|_| {
            // Signalling also keeps the call alive, because media follow it.
            let last_ns = self.signalled_ns.max(self.heard_ns.unwrap_or(0));
            if self.is_silent() {
                at(last_ns, timeouts.silent_ns, EndReason::SilentTimeout)
            } else {
                at(last_ns, timeouts.media_ns, EndReason::MediaTimeout)
            }
        });
        let last = at(self.created_ns, timeouts.final_ns, EndReason::FinalTimeout);
        media
            .into_iter()
            .chain(last)
            .min_by_key(|(due_ns, _)| *due_ns)
    }

    /// Returns the next time at which a part of the call ends by a time-out.
    pub(super) fn next_timeout(&self, timeouts: &Timeouts) -> Option<u64> {
        let dialogs = self.dialogs.iter().filter_map(|one| one.end(timeouts));
        let all = dialogs.chain(self.end(timeouts));
        all.map(|(due_ns, _)| due_ns).min()
    }

    /// Finds the dialog to which an offer with these tags belongs.
    pub(super) fn find_offer(&self, tags: &Tags<'_>) -> Found {
        let dialogs = || self.dialogs.iter().enumerate().rev();
        let side_a = threadbare_rtp_types::side::Side::A;
        let Some(to) = tags.to else {
            let own = || dialogs().filter(|(_, one)| one.party(side_a).has_tag(tags.from));
            let found = match tags.branch {
                None => own().next(),
                // `via-branch` is "Used to additionally refine the matching logic between media streams and calls and call branches."
                Some(branch) => own()
                    .find(|(_, one)| one.has_branch(branch))
                    .or_else(|| own().find(|(_, one)| one.is_without_branch())),
            };
            return found.map_or(Found::None, |(at, _)| Found::Dialog(at, side_a));
        };
        let with_both =
            dialogs().find_map(|(at, one)| Some((at, one.side_of_both(tags.from, to)?)));
        // Before the answer, a dialog has only one tag.
        let half = || {
            let mut all = dialogs().filter(|(_, one)| one.parties[1].tag.is_none());
            all.find(|(_, one)| one.party(side_a).has_tag(tags.from))
                .map(|(at, _)| (at, side_a))
        };
        match with_both.or_else(half) {
            Some((at, side)) => Found::Dialog(at, side),
            None => Found::None,
        }
    }

    /// Finds the dialog of an answer by its branch, or else by the answerer's tag, or else takes the offerer's latest.
    pub(super) fn find_answer(&self, tags: &Tags<'_>) -> Found {
        let offered = || {
            let all = self.dialogs.iter().enumerate().rev();
            all.filter_map(|(at, one)| {
                let author = one.offer.as_ref()?.author;
                one.party(author).has_tag(tags.from).then_some((at, author))
            })
        };
        let dialog = |at: usize| &self.dialogs[at];
        let by_branch = tags.branch.and_then(|branch| {
            let mut all = offered();
            all.find(|(at, _)| dialog(*at).has_branch(branch))
        });
        let by_tag = || {
            let to = tags.to?;
            let mut all = offered();
            all.find(|(at, author)| dialog(*at).party(author.other()).has_tag(to))
        };
        let waiting = || {
            let mut all = offered();
            all.find(|(at, _)| {
                dialog(*at)
                    .offer
                    .as_ref()
                    .is_some_and(|one| !one.is_answered)
            })
        };
        let found = by_branch
            .or_else(by_tag)
            .or_else(waiting)
            .or_else(|| offered().next());
        found.map_or(Found::None, |(at, author)| Found::Dialog(at, author))
    }

    /// Returns the latest of these dialogs that has an unanswered offer by this side and no started streams.
    pub(super) fn find_early(&self, sides: &[(usize, Side)]) -> Option<usize> {
        let is_early = |(at, side): &&(usize, Side)| {
            let offer = self.dialogs[*at].unanswered();
            offer.is_some_and(|offer| offer.author == *side)
        };
        let found = sides.iter().rev().find(is_early)?;
        Some(found.0)
    }

    /// Applies the options of an offer or answer that concern the whole call.
    pub(super) fn note(&mut self, options: &Options) -> Vec<Action<P>> {
        if options.recording.metadata.is_some() {
            self.metadata.clone_from(&options.recording.metadata);
        }
        if let Some(drops) = options.drops_traffic {
            self.drops_traffic = drops;
        }
        let mut actions = self.refresh();
        match options.record {
            Some(true) if self.recording.is_none() => {
                let recording = Recording {
                    metadata: self.metadata.clone(),
                    ..options.recording.clone()
                };
                actions.extend(self.to_all(&StreamCommand::StartRecording(recording.clone())));
                self.recording = Some(recording);
            }
            Some(false) if self.recording.take().is_some() => {
                self.is_paused = false;
                actions.extend(self.to_all(&StreamCommand::StopRecording { discard: false }));
            }
            _ => {}
        }
        actions
    }

    /// Returns the index of the subscription of the subscriber with this tag.
    pub(super) fn subscription(&self, tag: &[u8]) -> Option<usize> {
        let is_it = |one: &Dialog<P>| one.is_copy() && one.parties[1].has_tag(tag);
        self.dialogs.iter().position(is_it)
    }

    /// Returns the original of a copied stream.
    pub(super) fn original(&self, copied: Copied) -> Option<&StreamSpec> {
        let originals = self.dialogs.iter().filter(|one| !one.is_copy());
        let mut slots = originals.flat_map(Dialog::streams);
        slots
            .find(|slot| slot.stream == copied.stream)?
            .running
            .as_deref()
    }

    pub(super) fn is_orphan(&self, at: usize) -> bool {
        let copies = &self.dialogs[at].copies;
        !copies.is_empty() && copies.iter().all(|one| self.original(*one).is_none())
    }

    pub(super) fn update_copies(&mut self) -> Vec<Action<P>> {
        let mut changed = Vec::new();
        for (at, dialog) in self.dialogs.iter().enumerate() {
            for (index, copied) in dialog.copies.iter().enumerate() {
                let slot = dialog.slots.get(index).and_then(Option::as_ref);
                let spec = slot.and_then(|slot| slot.running.as_deref());
                let (Some(spec), Some(original)) = (spec, self.original(*copied)) else {
                    continue;
                };
                let sends = &original.sides[copied.side as usize].sends;
                if spec.sides[0].sends != *sends || spec.copies != Some(*copied) {
                    changed.push((at, index, *copied, sends.clone()));
                }
            }
        }
        let mut actions = Vec::new();
        for (at, index, copied, sends) in changed {
            let Some(slot) = &mut self.dialogs[at].slots[index] else {
                continue;
            };
            let stream = slot.stream;
            if let Some(spec) = &mut slot.running {
                spec.sides[0].sends = sends;
                spec.copies = Some(copied);
                let spec = spec.clone();
                actions.push(Action::Update { stream, spec });
            }
        }
        actions
    }

    /// Notes that a stream has replaced another one, so that copies refer to the new one.
    pub(super) fn replaced(&mut self, before: super::StreamId, now: super::StreamId) {
        let copies = self.dialogs.iter_mut().flat_map(|one| &mut one.copies);
        for copied in copies.filter(|copied| copied.stream == before) {
            copied.stream = now;
        }
    }

    /// Creates an action with this command for each stream.
    pub(super) fn to_all(&self, command: &StreamCommand) -> Vec<Action<P>> {
        let originals = self.dialogs.iter().filter(|one| !one.is_copy());
        let streams = originals.flat_map(Dialog::streams);
        let all = streams.map(|slot| Action::Command {
            stream: slot.stream,
            command: command.clone(),
        });
        all.collect()
    }

    /// Updates the streams whose parties' mutes have changed.
    pub(super) fn refresh(&mut self) -> Vec<Action<P>> {
        let mutes = self.mutes_of_all();
        let mut actions = Vec::new();
        for dialog in &mut self.dialogs {
            for slot in dialog.slots.iter_mut().flatten() {
                let Some(spec) = &mut slot.running else {
                    continue;
                };
                let before = spec.clone();
                mutes.apply(&dialog.parties, dialog.echo, spec);
                if *spec != before {
                    let (stream, spec) = (slot.stream, spec.clone());
                    actions.push(Action::Update { stream, spec });
                }
            }
        }
        actions
    }

    pub(super) fn mutes_of_all(&self) -> MutesOfAll {
        MutesOfAll {
            mutes: self.mutes,
            drops_traffic: self.drops_traffic,
        }
    }

    /// Returns the slots of running streams, and those that wait for an answer.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot<P>> {
        self.dialogs.iter().flat_map(|dialog| {
            let fresh = dialog.offer.iter().flat_map(|offer| &offer.fresh);
            dialog.slots.iter().chain(fresh).flatten()
        })
    }

    pub(super) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot<P>> {
        self.dialogs.iter_mut().flat_map(|dialog| {
            let fresh = dialog.offer.iter_mut().flat_map(|offer| &mut offer.fresh);
            dialog.slots.iter_mut().chain(fresh).flatten()
        })
    }

    /// Gives all streams new numbers after `last`.
    pub(super) fn renumber(&mut self, last: &mut u64) -> Vec<(StreamId, StreamId)> {
        let mut numbers = Vec::new();
        for slot in self.slots_mut() {
            *last += 1;
            numbers.push((slot.stream, StreamId(*last)));
            slot.stream = StreamId(*last);
        }
        let number = |stream: &mut StreamId| {
            let known = numbers.iter().find(|(before, _)| before == stream);
            if let Some((_, now)) = known {
                *stream = *now;
            }
        };
        for dialog in &mut self.dialogs {
            let copies = dialog.copies.iter_mut();
            copies.for_each(|copied| number(&mut copied.stream));
        }
        let running = self
            .slots_mut()
            .filter_map(|slot| slot.running.as_mut()?.copies.as_mut());
        running.for_each(|copied| number(&mut copied.stream));
        numbers
    }

    /// Checks the invariants of the registry. `Err` contains the one that does not hold.
    pub(super) fn check(&self, last_stream: u64) -> Result<(), &'static str> {
        if last_stream > LAST_STREAM_MAX {
            return Err("the number of streams is out of range");
        }
        if !(1..=DIALOGS_MAX).contains(&self.dialogs.len()) || self.past.len() > PAST_MAX {
            return Err("the number of dialogs is out of range");
        }
        let mut streams = BTreeSet::new();
        for slot in self.slots() {
            if slot.stream.0 > last_stream || !streams.insert(slot.stream) {
                return Err("two streams have the same number");
            }
        }
        let of_offer = |dialog: &Dialog<P>| {
            let fresh = dialog.offer.iter().flat_map(|offer| &offer.fresh);
            fresh.flatten().all(|slot| slot.running.is_none())
        };
        let is_begun = |dialog: &Dialog<P>| {
            dialog
                .slots
                .iter()
                .flatten()
                .all(|slot| slot.running.is_some())
        };
        if self
            .dialogs
            .iter()
            .all(|one| of_offer(one) && is_begun(one))
        {
            Ok(())
        } else {
            Err("a stream runs before its answer, or does not run after it")
        }
    }

    /// Converts all times from one clock to another. The old clock's time 0 was at `from_ns` by the wall clock, and the new clock's at
    /// `to_ns`. Times before the new clock's time 0 become 0, and no past time becomes a future one.
    pub(super) fn set_clock(&mut self, now_ns: u64, from_ns: u64, to_ns: u64) {
        let due = |at_ns: &mut u64| {
            let unix_ns = u128::from(*at_ns) + u128::from(from_ns);
            let at = unix_ns.saturating_sub(u128::from(to_ns));
            *at_ns = u64::try_from(at).unwrap_or(u64::MAX);
        };
        let been = |at_ns: &mut u64| {
            due(at_ns);
            *at_ns = (*at_ns).min(now_ns);
        };
        been(&mut self.created_ns);
        been(&mut self.signalled_ns);
        self.answered_ns.iter_mut().for_each(been);
        self.heard_ns.iter_mut().for_each(been);
        for dialog in &mut self.dialogs {
            been(&mut dialog.offered_ns);
            dialog.delete_ns.iter_mut().for_each(due);
            let parties = dialog.parties.iter_mut();
            parties.for_each(|party| been(&mut party.created_ns));
        }
    }

    /// Opens all ports again.
    pub(super) fn reopen(&mut self, ports: &mut dyn PortSource<P>) -> Result<(), NoPorts> {
        for slot in self.slots_mut() {
            let [a, b] = &slot.local;
            slot.ports = Some([
                ports.reopen(&a.request, a.rtp, a.rtcp)?,
                ports.reopen(&b.request, b.rtp, b.rtcp)?,
            ]);
        }
        Ok(())
    }

    /// Continues the recording in another file. The old file stays as the other process left it, so its name is no longer free.
    pub(super) fn record_on(&self) -> Vec<Action<P>> {
        let recording = self.recording.as_ref().filter(|_| !self.is_paused);
        let recording = recording.map(|recording| Recording {
            destination: None,
            ..recording.clone()
        });
        recording.map_or_else(Vec::new, |recording| {
            self.to_all(&StreamCommand::StartRecording(recording))
        })
    }
}

/// The result of a search for a dialog: its index, and the side that the request's `from-tag` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    None,
    Dialog(usize, threadbare_rtp_types::side::Side),
}

/// The mutes that apply to all parties of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct MutesOfAll {
    mutes: Mutes,
    drops_traffic: bool,
}

impl MutesOfAll {
    /// Applies these mutes together with each party's own.
    pub(super) fn apply(
        self,
        parties: &[Party; 2],
        echo: Option<[bool; 2]>,
        spec: &mut StreamSpec,
    ) {
        let all = self.mutes;
        spec.echoes = echo.is_some_and(|heard| heard.contains(&true));
        let heard = echo.unwrap_or([true; 2]);
        for ((side, party), is_heard) in spec.sides.iter_mut().zip(parties).zip(heard) {
            let own = party.mutes;
            let drops = self.drops_traffic || !is_heard;
            side.is_blocked = all.is_blocked || own.is_blocked || drops;
            side.is_silenced = all.is_silenced || own.is_silenced;
            side.blocks_keys = all.blocks_keys || own.blocks_keys || drops;
        }
    }
}
