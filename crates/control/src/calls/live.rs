//! A call: its dialogs, and when it ends by itself.

use super::action::Recording;
use super::dialog::{Dialog, Mutes};
use super::id::CallId;
use super::names::Tags;
use super::record::{EndReason, StreamRecord};
use super::settings::Timeouts;

/// A call that lives.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub(super) struct Live<P> {
    pub(super) id: CallId,
    pub(super) created_ns: u64,
    pub(super) signalled_ns: u64,
    pub(super) answered_ns: Option<u64>,
    /// When media came last.
    pub(super) heard_ns: Option<u64>,
    /// In the order of their first offers.
    pub(super) dialogs: Vec<Dialog<P>>,
    /// Of all parties, beside their own.
    pub(super) mutes: Mutes,
    /// All media are dropped.
    pub(super) drops_traffic: bool,
    pub(super) recording: Option<Recording>,
    pub(super) is_paused: bool,
    pub(super) metadata: Option<String>,
    /// When the timer is set to.
    #[serde(skip)]
    pub(super) timer_ns: Option<u64>,
    /// Streams that have ended.
    pub(super) past: Vec<StreamRecord>,
}

/// Of a call: forks on the proxy, and transfers. Each has ports.
pub(super) const DIALOGS_MAX: usize = 32;
/// Of a record.
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
            past: Vec::new(),
        }
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

    /// When the call ends by itself, and why.
    pub(super) fn end(&self, timeouts: &Timeouts) -> Option<(u64, EndReason)> {
        let at = |from_ns: u64, timeout_ns: Option<u64>, reason: EndReason| {
            let due_ns = from_ns.saturating_add(timeout_ns?);
            Some((due_ns, reason))
        };
        let media = self.answered_ns.and_then(|_| {
            // Signalling is a sign of life, too: media follow.
            let last_ns = self.signalled_ns.max(self.heard_ns.unwrap_or(0));
            match self.is_silent() {
                true => at(last_ns, timeouts.silent_ns, EndReason::SilentTimeout),
                false => at(last_ns, timeouts.media_ns, EndReason::MediaTimeout),
            }
        });
        let last = at(self.created_ns, timeouts.final_ns, EndReason::FinalTimeout);
        media
            .into_iter()
            .chain(last)
            .min_by_key(|(due_ns, _)| *due_ns)
    }

    /// When something of the call ends by itself.
    pub(super) fn next_timeout(&self, timeouts: &Timeouts) -> Option<u64> {
        let dialogs = self.dialogs.iter().filter_map(|one| one.end(timeouts));
        let all = dialogs.chain(self.end(timeouts));
        all.map(|(due_ns, _)| due_ns).min()
    }

    /// Which dialog a request is about whose tags are those of the offer.
    pub(super) fn find_offer(&self, tags: &Tags<'_>) -> Found {
        let dialogs = || self.dialogs.iter().enumerate().rev();
        let side_a = threadbare_rtp::call::Side::A;
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
        // Nobody has told the other tag yet.
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

    /// Which dialog an answer is for: by the branch, by the tag of the answerer, or the latest of the offerer's.
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

/// A dialog's place, and the side that the request's `from-tag` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    None,
    Dialog(usize, threadbare_rtp::call::Side),
}

impl<P> Dialog<P> {
    /// When the dialog ends by itself, and why.
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
