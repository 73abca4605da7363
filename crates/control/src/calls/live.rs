//! A live call: its dialogs, and its time-outs.

use super::action::Recording;
use super::dialog::{Dialog, Mutes};
use super::id::CallId;
use super::names::Tags;
use super::record::{EndReason, StreamRecord};
use super::settings::Timeouts;

/// A live call.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Live<P> {
    pub(super) id: CallId,
    pub(super) created_ns: u64,
    pub(super) signalled_ns: u64,
    pub(super) answered_ns: Option<u64>,
    /// Time of the last media.
    pub(super) heard_ns: Option<u64>,
    /// In the order of their first offers.
    pub(super) dialogs: Vec<Dialog<P>>,
    /// Mutes of all parties, in addition to their own.
    pub(super) mutes: Mutes,
    /// All media are dropped.
    pub(super) drops_traffic: bool,
    pub(super) recording: Option<Recording>,
    pub(super) is_paused: bool,
    pub(super) metadata: Option<String>,
    /// Time of the call's timer.
    #[serde(skip)]
    pub(super) timer_ns: Option<u64>,
    /// The call's part of the totals.
    #[serde(skip)]
    pub(super) taken: Taken,
    /// Streams that have ended.
    pub(super) past: Vec<StreamRecord>,
}

/// Streams that have ports.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Taken {
    pub(super) streams: usize,
    /// Streams of unanswered offers.
    pub(super) unanswered: usize,
}

/// Limit of a call's dialogs, which come from forks at the proxy and from transfers. Each dialog takes ports.
pub(super) const DIALOGS_MAX: usize = 32;
/// Limit of ended streams in a record.
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

    /// Counts the call's streams.
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

    /// The time at which the call ends by a time-out, and the reason.
    pub(super) fn end(&self, timeouts: &Timeouts) -> Option<(u64, EndReason)> {
        let at = |from_ns: u64, timeout_ns: Option<u64>, reason: EndReason| {
            let due_ns = from_ns.saturating_add(timeout_ns?);
            Some((due_ns, reason))
        };
        let media = self.answered_ns.and_then(|_| {
            // Signalling counts as activity too, because media follow it.
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

    /// The next time at which a part of the call ends by a time-out.
    pub(super) fn next_timeout(&self, timeouts: &Timeouts) -> Option<u64> {
        let dialogs = self.dialogs.iter().filter_map(|one| one.end(timeouts));
        let all = dialogs.chain(self.end(timeouts));
        all.map(|(due_ns, _)| due_ns).min()
    }

    /// Finds the dialog of a request whose tags are those of the offer.
    pub(super) fn find_offer(&self, tags: &Tags<'_>) -> Found {
        let dialogs = || self.dialogs.iter().enumerate().rev();
        let side_a = threadbare_rtp_types::side::Side::A;
        let Some(to) = tags.to else {
            let own = || dialogs().filter(|(_, one)| one.party(side_a).has_tag(tags.from));
            let found = match tags.branch {
                None => own().next(),
                // "Used to additionally refine the matching logic between media streams and calls and call branches."
                Some(branch) => own()
                    .find(|(_, one)| one.has_branch(branch))
                    .or_else(|| own().find(|(_, one)| one.is_without_branch())),
            };
            return found.map_or(Found::None, |(at, _)| Found::Dialog(at, side_a));
        };
        let with_both =
            dialogs().find_map(|(at, one)| Some((at, one.side_of_both(tags.from, to)?)));
        // The other tag is still unknown.
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

    /// Finds the dialog of an answer: by the branch, by the answerer's tag, or the offerer's latest.
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
}

/// The index of a dialog, and the side that the request's `from-tag` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    None,
    Dialog(usize, threadbare_rtp_types::side::Side),
}

impl<P> Dialog<P> {
    /// The time at which the dialog ends by a time-out, and the reason.
    pub(super) fn end(&self, timeouts: &Timeouts) -> Option<(u64, EndReason)> {
        let deleted = self.delete_ns.map(|due_ns| (due_ns, EndReason::Deleted));
        let offer_ns = timeouts.offer_ns.filter(|_| !self.is_answered);
        let unanswered =
            offer_ns.map(|ns| (self.offered_ns.saturating_add(ns), EndReason::OfferTimeout));
        deleted
            .into_iter()
            .chain(unanswered)
            .min_by_key(|(due_ns, _)| *due_ns)
    }
}
