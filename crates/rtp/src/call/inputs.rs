//! Inputs of a line that replace a silent sender: other senders and sounds.

use std::collections::VecDeque;

use super::{CallError, Sound};
use crate::fallback::{FallbackConfig, Fallbacks, Switch};
use crate::leg::{Leg, LegConfig};

/// A fallback of a [`Line`](super::Line).
#[derive(Debug, Clone)]
pub struct Fallback {
    /// The input itself.
    pub input: FallbackInput,
    /// Silence of the previous input after which this one becomes active, ns.
    pub timeout_ns: u64,
    /// Time for which a better input must deliver before it becomes active again, ns.
    pub recover_after_ns: u64,
}

/// A replacement for a line's sender.
#[derive(Debug, Clone)]
pub enum FallbackInput {
    /// Another sender, on its own ports.
    Leg(Box<LegConfig>),
    /// A sound, generated here.
    Sound(Sound),
}

/// The fallbacks of a line and which input is active.
#[derive(Debug)]
pub(super) struct Inputs {
    choice: Fallbacks,
    /// The fallbacks: the first one is input 1.
    backups: Vec<Backup>,
    /// Changes of the active input, for the owner.
    switches: VecDeque<Switch>,
}

#[derive(Debug)]
enum Backup {
    Leg(Box<Leg>),
    Sound(Sound),
}

/// The active input.
pub(super) enum Active<'a> {
    Main,
    Leg(&'a mut Leg),
    Sound,
}

impl Inputs {
    pub(super) fn new(now_ns: u64, fallbacks: Vec<Fallback>) -> Result<Inputs, CallError> {
        let config = |fallback: &Fallback| FallbackConfig {
            timeout_ns: fallback.timeout_ns,
            recover_after_ns: fallback.recover_after_ns,
            is_constant: matches!(fallback.input, FallbackInput::Sound(_)),
        };
        let configs: Vec<_> = fallbacks.iter().map(config).collect();
        let backup = |fallback: Fallback| match fallback.input {
            FallbackInput::Leg(leg) => Ok(Backup::Leg(Box::new(Leg::new(now_ns, *leg)?))),
            FallbackInput::Sound(sound) => Ok(Backup::Sound(sound)),
        };
        let backups: Result<_, CallError> = fallbacks.into_iter().map(backup).collect();
        Ok(Inputs {
            choice: Fallbacks::new(now_ns, &configs),
            backups: backups?,
            switches: VecDeque::new(),
        })
    }

    /// Notes a packet of the main input (`leg` 0) or of fallback leg `leg`, counted from 1.
    #[inline]
    pub(super) fn handle_heard(&mut self, now_ns: u64, leg: u8) {
        if let Some(input) = self.input_of(leg) {
            self.choice.handle_heard(now_ns, input);
        }
    }

    fn input_of(&self, leg: u8) -> Option<usize> {
        let legs = self.backups.iter().enumerate();
        let mut legs = legs.filter(|(_, backup)| matches!(backup, Backup::Leg(_)));
        match usize::from(leg).checked_sub(1) {
            Some(number) => legs.nth(number).map(|(index, _)| index + 1),
            None => Some(0),
        }
    }

    /// Returns the change of input that is due. It is also queued for the owner.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Switch> {
        let switch = self.choice.poll(now_ns)?;
        if self.switches.len() == SWITCHES_MAX {
            self.switches.pop_front();
        }
        self.switches.push_back(switch);
        Some(switch)
    }

    pub(super) fn poll_switch(&mut self) -> Option<Switch> {
        self.switches.pop_front()
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.choice.next_timeout()
    }

    pub(super) fn choice(&self) -> &Fallbacks {
        &self.choice
    }

    #[inline]
    pub(super) fn active(&mut self) -> Active<'_> {
        let active = self.choice.active().checked_sub(1);
        match active.and_then(|index| self.backups.get_mut(index)) {
            Some(Backup::Leg(leg)) => Active::Leg(leg),
            Some(Backup::Sound(_)) => Active::Sound,
            None => Active::Main,
        }
    }

    /// The sound of this input, if the input is a sound.
    pub(super) fn sound(&self, input: usize) -> Option<&Sound> {
        match self.backups.get(input.checked_sub(1)?)? {
            Backup::Sound(sound) => Some(sound),
            Backup::Leg(_) => None,
        }
    }

    pub(super) fn sounds(&self) -> impl Iterator<Item = &Sound> {
        (1..=self.backups.len()).filter_map(|input| self.sound(input))
    }

    /// The fallbacks that are legs, in order.
    pub(super) fn legs(&self) -> impl Iterator<Item = &Leg> {
        self.backups.iter().filter_map(|backup| match backup {
            Backup::Leg(leg) => Some(&**leg),
            Backup::Sound(_) => None,
        })
    }

    pub(super) fn legs_mut(&mut self) -> impl Iterator<Item = &mut Leg> {
        self.backups.iter_mut().filter_map(|backup| match backup {
            Backup::Leg(leg) => Some(&mut **leg),
            Backup::Sound(_) => None,
        })
    }

    /// Drops the media of inactive inputs when it is due.
    pub(super) fn drop_unheard(&mut self, media_ns: u64, may_lose: bool, main: &mut Leg) {
        let active = self.choice.active();
        if active != 0 {
            while main.poll_media(media_ns, may_lose).is_some() {}
        }
        for (index, backup) in self.backups.iter_mut().enumerate() {
            if let Backup::Leg(leg) = backup
                && index + 1 != active
            {
                while leg.poll_media(media_ns, may_lose).is_some() {}
            }
        }
    }
}

/// Changes queued for the owner; beyond that, the oldest are dropped.
const SWITCHES_MAX: usize = 8;
