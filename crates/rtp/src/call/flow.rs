//! A flow: the media of a leg, or of the inputs that replace a silent one, on its way to the leg that sends it.

use super::direction::{Direction, DirectionStats, check_sound};
use super::handover::{is_passed_on, note_passed};
use super::inputs::{Active, Inputs};
use super::out::{Out, Work};
use super::{Fallback, FlowConfig, LegId, Mode, SessionError};
use crate::id::SeqNum;
use crate::leg::{LegConfig, Media, PayloadMap};

/// See the module.
#[derive(Debug)]
pub(super) struct Flow {
    /// Index of the leg whose media it takes. An echo exchanges it with that of the other flow.
    pub(super) from: usize,
    /// Index of the leg that sends.
    pub(super) to: usize,
    /// Packets leave with all bytes unchanged, the SSRC included.
    pub(super) is_verbatim: bool,
    /// The direction sends nothing: packets leave verbatim, or go to listeners only.
    pub(super) is_silent: bool,
    /// The last forwarded packet of the leg.
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

    /// Returns the index of the leg whose media leaves now; `None`: a sound replaces all legs.
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

    /// Returns the active input (0 is the leg itself, then its fallbacks), and how often it has changed.
    pub(super) fn input(&self) -> (usize, u64) {
        let choice = self.inputs.as_ref().map(|inputs| inputs.choice());
        choice.map_or((0, 0), |choice| (choice.active(), choice.switches()))
    }

    /// Whether another process has forwarded this media of the leg. Otherwise, notes that it is forwarded now.
    #[inline]
    pub(super) fn skips(&mut self, media: &Media<'_>) -> bool {
        if self.passed_until.is_some() && is_passed_on(&mut self.passed_until, media) {
            return true;
        }
        note_passed(&mut self.last_passed, media);
        false
    }

    /// Sends a piece of media, converted if needed.
    #[inline]
    pub(super) fn handle(&mut self, media: Media<'_>, work: &mut Work, out: &mut Out<'_>) {
        if self.is_verbatim
            && let Media::Packet(packet) = &media
        {
            out.forward(packet);
        }
        self.direction.handle(media, work, out);
    }

    /// Sends everything due that needs no packet.
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
        if is_ending {
            self.direction.finish(work, out);
        }
    }

    pub(super) fn stats(&self) -> DirectionStats {
        let (active, switches) = self.input();
        DirectionStats {
            active,
            switches,
            ..self.direction.stats()
        }
    }
}

/// The flows of a session. A call has two; a stream, which has one, is smaller for that.
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

    /// Returns the flow that gets this leg's media.
    #[inline]
    pub(super) fn of(&self, leg: usize) -> Option<&Flow> {
        self.iter().find(|flow| flow.from == leg)
    }

    /// Returns the flow that gets this leg's media.
    #[inline]
    pub(super) fn of_mut(&mut self, leg: usize) -> Option<&mut Flow> {
        self.iter_mut().find(|flow| flow.from == leg)
    }

    /// Both flows of a call.
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

/// Memory that one fetch covers: three cache lines.
const FETCHED_BYTES: usize = 192;

impl LegId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}
