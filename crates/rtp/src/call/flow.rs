//! A flow: the way of media from a leg, or from the inputs that replace a silent leg, to the leg that sends them.

use super::direction::{Direction, DirectionStats, check_sound};
use super::handover::{is_passed_on, note_passed};
use super::inputs::{Active, Inputs};
use super::out::{Out, Work};
use super::{Fallback, FlowConfig, LegId, Mode, SessionError};
use crate::id::SeqNum;
use crate::leg::{LegConfig, Media, PayloadMap};

/// A flow of media: see the module documentation.
#[derive(Debug)]
pub(super) struct Flow {
    /// Index of the leg whose media the flow carries. An echo exchanges it with that of the other flow.
    pub(super) from: usize,
    /// Index of the leg that sends.
    pub(super) to: usize,
    /// Whether packets leave with all bytes unchanged, including the SSRC.
    pub(super) is_verbatim: bool,
    /// Whether the direction sends nothing, because packets leave verbatim or go only to listeners.
    pub(super) is_silent: bool,
    /// The last packet of the leg that was forwarded.
    pub(super) last_passed: Option<SeqNum>,
    /// Packets up to this one were forwarded by another process.
    pub(super) passed_until: Option<SeqNum>,
    /// The inputs that replace the leg while it is silent.
    pub(super) inputs: Option<Box<Inputs>>,
    pub(super) direction: Direction,
}

impl Flow {
    /// Creates a flow between these legs. The caller has checked that they exist.
    pub(super) fn new(config: FlowConfig, legs: &[LegConfig]) -> Result<Flow, SessionError> {
        let (from, to) = (
            config.from.index(),
            config.to.unwrap_or(config.from).index(),
        );
        let mut direction = Direction::new(config.direction, legs[to].takes())?;
        direction.set_sender(&legs[from].payloads);
        let is_silent = config.to.is_none() || config.is_verbatim;
        if is_silent {
            direction.set_mode(Mode::Hold);
        }
        Ok(Flow {
            from,
            to,
            is_verbatim: config.is_verbatim,
            is_silent,
            last_passed: None,
            passed_until: None,
            inputs: None,
            direction,
        })
    }

    /// Sets the inputs that replace a silent leg. Fallback legs have the indices from `first_leg` on.
    pub(super) fn set_fallbacks(
        &mut self,
        now_ns: u64,
        all: Vec<Fallback>,
        first_leg: usize,
        takes: &PayloadMap,
    ) -> Result<Vec<LegConfig>, SessionError> {
        let (inputs, legs) = Inputs::new(now_ns, self.from, all, first_leg);
        for sound in inputs.sounds() {
            check_sound(sound, takes)?;
        }
        self.direction.hear_at_output();
        self.inputs = Some(Box::new(inputs));
        Ok(legs)
    }

    /// Returns the index of the leg whose media are sent now. `None`: a sound is played instead.
    #[inline]
    pub(super) fn active_leg(&self) -> Option<usize> {
        match &self.inputs {
            None => Some(self.from),
            Some(inputs) => match inputs.active() {
                Active::Main => Some(self.from),
                Active::Leg(leg) => Some(leg),
                Active::Sound => None,
            },
        }
    }

    /// Returns the active input, and how often it has changed. Input 0 is the leg itself, and its fallbacks follow.
    pub(super) fn input(&self) -> (usize, u64) {
        let choice = self.inputs.as_ref().map(|inputs| inputs.choice());
        choice.map_or((0, 0), |choice| (choice.active(), choice.switches()))
    }

    /// Whether another process has already forwarded these media of the leg. If not, notes that they are forwarded now.
    #[inline]
    pub(super) fn skips(&mut self, media: &Media<'_>) -> bool {
        if self.passed_until.is_some() && is_passed_on(&mut self.passed_until, media) {
            return true;
        }
        note_passed(&mut self.last_passed, media);
        false
    }

    /// Sends a piece of media, converted if necessary.
    #[inline]
    pub(super) fn handle(&mut self, media: Media<'_>, work: &mut Work, out: &mut Out<'_>) {
        if self.is_verbatim
            && let Media::Packet(packet) = &media
        {
            out.forward(packet);
        }
        self.direction.handle(media, work, out);
    }

    /// Sends everything that is due and needs no packet.
    #[inline]
    pub(super) fn poll_beside(
        &mut self,
        media_ns: u64,
        is_ending: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        // The sound of a fallback waits until the peer is known.
        let may_play = self.inputs.is_none() || out.leg.has_destination();
        self.direction.poll_beside(media_ns, may_play, work, out);
        if self.direction.has_substitute() {
            // With the echo, a party hears itself.
            let is_expected = self.from != self.to && out.leg.has_destination();
            self.direction
                .poll_substitute(media_ns, is_expected, work, out);
        }
        if is_ending {
            self.direction.finish(work, out);
        }
    }

    pub(super) fn stats(&self) -> DirectionStats {
        let (active, switches) = self.input();
        DirectionStats {
            active,
            switches,
            is_substituted: self.direction.is_substituted(),
            ..self.direction.stats()
        }
    }
}

/// The flows of a session: two for a call, one for a stream. The type is small if there is one.
#[derive(Debug)]
pub(super) struct Flows {
    first: Flow,
    second: Option<Box<Flow>>,
}

impl Flows {
    pub(super) fn new(first: Flow, second: Option<Flow>) -> Flows {
        Flows {
            first,
            second: second.map(Box::new),
        }
    }

    pub(super) fn len(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    pub(super) fn first(&self) -> &Flow {
        &self.first
    }

    pub(super) fn first_mut(&mut self) -> &mut Flow {
        &mut self.first
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Flow> {
        match index {
            0 => Some(&self.first),
            1 => self.second.as_deref(),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Flow> {
        match index {
            0 => Some(&mut self.first),
            1 => self.second.as_deref_mut(),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Flow> {
        std::iter::once(&self.first).chain(self.second.as_deref())
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        std::iter::once(&mut self.first).chain(self.second.as_deref_mut())
    }

    /// Returns the flow that this leg's media enter.
    #[inline]
    pub(super) fn of(&self, leg: usize) -> Option<&Flow> {
        self.iter().find(|flow| flow.from == leg)
    }

    /// Returns the flow that this leg's media enter.
    #[inline]
    pub(super) fn of_mut(&mut self, leg: usize) -> Option<&mut Flow> {
        self.iter_mut().find(|flow| flow.from == leg)
    }

    /// Returns both flows of a call, or `None` for a stream.
    pub(super) fn both_mut(&mut self) -> Option<[&mut Flow; 2]> {
        Some([&mut self.first, self.second.as_deref_mut()?])
    }

    /// Calls `fetch` with the addresses of the second flow's memory.
    #[inline]
    pub(super) fn prefetch(&self, fetch: &mut impl FnMut(*const u8)) {
        if let Some(second) = self.second.as_deref() {
            let start: *const u8 = std::ptr::from_ref(second).cast();
            for offset in (0..size_of::<Flow>()).step_by(FETCHED_BYTES) {
                fetch(start.wrapping_add(offset));
            }
        }
    }
}

/// Size of the memory that one fetch covers, which is three cache lines.
const FETCHED_BYTES: usize = 192;

impl LegId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}
