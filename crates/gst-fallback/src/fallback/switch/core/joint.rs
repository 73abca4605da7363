//! Decides on buffers, and on how an input continues the output.

use super::input::{Arrival, InputId, Media};
use super::{SwitchCore, Verdict};

impl SwitchCore {
    /// Decides about a buffer that [`SwitchCore::handle_buffer`] has seen. With [`Verdict::Pass`] it counts as part of the
    /// output.
    pub(in super::super) fn decide(
        &mut self,
        now_ns: u64,
        id: InputId,
        arrival: &Arrival,
    ) -> Verdict {
        self.handle_timeout(now_ns);
        if self.is_over() || (self.has_ended && self.active == Some(id)) {
            self.note_drop(id);
            return Verdict::Ended;
        }
        let is_wanted = self.wish.is_some_and(|wish| wish.to == id);
        if is_wanted && self.fits(id, arrival) {
            let reason = self.wish.map(|wish| wish.reason);
            self.change_to(id, reason.unwrap_or(super::Reason::Recovered));
        }
        let is_active = self.active == Some(id);
        if (!is_active || self.settings.is_synced)
            && let Some(until_ns) = self.due_ns(arrival).filter(|ns| *ns > now_ns)
        {
            return Verdict::Hold { until_ns };
        }
        let verdict = if is_active {
            self.pass(id, arrival)
        } else {
            Verdict::Drop
        };
        if verdict == Verdict::Drop {
            self.note_drop(id);
        }
        self.choose();
        verdict
    }

    /// Notes that a buffer was dropped. Until the next keyframe, later buffers cannot be decoded.
    pub(in super::super) fn note_drop(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.needs_keyframe = true;
        }
    }

    /// Whether downstream still needs the active input's stream events. From now on they count as sent.
    pub(in super::super) fn take_unannounced(&mut self, id: InputId) -> bool {
        self.input_mut(id)
            .is_some_and(|input| std::mem::take(&mut input.is_unannounced))
    }

    /// Whether the change to a wanted input can happen at this buffer. It can if the buffer is a keyframe and the output has
    /// reached it. Before that, the other input continues.
    fn fits(&self, id: InputId, arrival: &Arrival) -> bool {
        let Some(input) = self.input(id) else {
            return false;
        };
        if input.is_coded() && !arrival.is_keyframe() {
            return false;
        }
        let is_due = self.due_ns(arrival).is_none_or(|ns| ns <= self.now_ns);
        let is_reached =
            (self.end_ns.zip(arrival.begin_ns)).is_some_and(|(end, begin)| begin <= end);
        is_due || is_reached
    }

    fn pass(&mut self, id: InputId, arrival: &Arrival) -> Verdict {
        let (output_end_ns, floor_ns) = (self.end_ns, self.floor_ns);
        let is_seamless = self.settings.is_seamless;
        let Some(input) = self.input_mut(id) else {
            return Verdict::Drop;
        };
        let is_coded = input.is_coded();
        if is_seamless && input.needs_keyframe && is_coded && !arrival.is_keyframe() {
            return Verdict::Drop;
        }
        let lead_ns = if input.is_joining && !is_coded {
            lead_ns(input.media, output_end_ns, floor_ns, arrival)
        } else {
            Some(0)
        };
        let Some(lead_ns) = lead_ns else {
            return Verdict::Drop;
        };
        let is_joint = std::mem::take(&mut input.is_joining);
        input.needs_keyframe = false;
        let is_first = std::mem::take(&mut input.is_unannounced);
        self.end_ns = output_end_ns.max(arrival.end_ns.or(arrival.begin_ns));
        Verdict::Pass {
            is_first,
            is_joint,
            lead_ns,
        }
    }
}

/// Part of a buffer that the output already covers, ns; `None`: it must be dropped.
fn lead_ns(
    media: Media,
    output_end_ns: Option<u64>,
    floor_ns: Option<u64>,
    arrival: &Arrival,
) -> Option<u64> {
    let (Some(begin_ns), Some(end_ns)) = (arrival.begin_ns, arrival.end_ns) else {
        return Some(0);
    };
    let latest_ns = begin_ns.saturating_add(LEAD_NS_MAX);
    let covered_ns = output_end_ns.filter(|ns| *ns <= latest_ns).max(floor_ns);
    let lead_ns = covered_ns.unwrap_or(0).saturating_sub(begin_ns);
    if lead_ns == 0 {
        return Some(0);
    }
    let span_ns = end_ns.saturating_sub(begin_ns);
    let is_covered = match media {
        // A picture passes if half of its time or more is left to show it.
        Media::Video => lead_ns.saturating_mul(2) > span_ns,
        Media::Audio | Media::Coded => lead_ns >= span_ns,
    };
    (!is_covered).then_some(lead_ns)
}

/// Maximum time by which the output may be ahead of an input. If it is further ahead than any queue downstream allows, its times
/// are wrong, and the new input passes completely.
const LEAD_NS_MAX: u64 = 60_000_000_000;
