//! Inputs of a flow that replace a silent leg: other legs, and sounds.

use std::collections::VecDeque;

use super::Sound;
use crate::fallback::{FallbackConfig, Fallbacks, Switch};
use crate::leg::LegConfig;

/// An input that replaces a leg while the leg is silent.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// The input itself.
    pub input: FallbackInput,
    /// Silence of the previous input after which this one becomes active, ns.
    pub timeout_ns: u64,
    /// How long a better input must deliver packets before it becomes active again, ns.
    pub recover_after_ns: u64,
}

/// A replacement for a leg's media.
#[derive(Debug, Clone)]
pub enum FallbackInput {
    /// Another sender, on its own ports.
    Leg(Box<LegConfig>),
    /// A sound that is generated here.
    Sound(Sound),
}

/// The fallbacks of a leg, and the state of which input is active.
#[derive(Debug)]
pub(super) struct Inputs {
    choice: Fallbacks,
    /// Index of the leg that has the fallbacks. It is input 0.
    main: usize,
    /// The fallbacks. The first one is input 1.
    backups: Vec<Backup>,
    /// Changes of the active input, for the owner.
    switches: VecDeque<Switch>,
}

#[derive(Debug)]
enum Backup {
    /// Index of a leg of the session.
    Leg(usize),
    Sound(Sound),
}

/// The active input.
pub(super) enum Active {
    Main,
    /// A fallback leg, by its index.
    Leg(usize),
    Sound,
}

impl Inputs {
    /// Creates the inputs. Also returns the settings of the fallback legs, of which the first must become leg `first_leg`.
    pub(super) fn new(
        now_ns: u64,
        main: usize,
        fallbacks: Vec<Fallback>,
        first_leg: usize,
    ) -> (Inputs, Vec<LegConfig>) {
        let config = |fallback: &Fallback| FallbackConfig {
            timeout_ns: fallback.timeout_ns,
            recover_after_ns: fallback.recover_after_ns,
            is_constant: matches!(fallback.input, FallbackInput::Sound(_)),
        };
        let configs: Vec<_> = fallbacks.iter().map(config).collect();
        let mut legs = Vec::new();
        let backup = |fallback: Fallback| match fallback.input {
            FallbackInput::Leg(leg) => {
                legs.push(*leg);
                Backup::Leg(first_leg + legs.len() - 1)
            }
            FallbackInput::Sound(sound) => Backup::Sound(sound),
        };
        let inputs = Inputs {
            choice: Fallbacks::new(now_ns, &configs),
            main,
            backups: fallbacks.into_iter().map(backup).collect(),
            switches: VecDeque::new(),
        };
        (inputs, legs)
    }

    /// Notes a packet of this leg, if it is one of the inputs.
    #[inline]
    pub(super) fn handle_heard(&mut self, now_ns: u64, leg: usize) {
        let input = if leg == self.main {
            Some(0)
        } else {
            let is_it = |backup: &Backup| matches!(backup, Backup::Leg(other) if *other == leg);
            self.backups.iter().position(is_it).map(|index| index + 1)
        };
        if let Some(input) = input {
            self.choice.handle_heard(now_ns, input);
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
    pub(super) fn active(&self) -> Active {
        let active = self.choice.active().checked_sub(1);
        match active.and_then(|index| self.backups.get(index)) {
            Some(Backup::Leg(leg)) => Active::Leg(*leg),
            Some(Backup::Sound(_)) => Active::Sound,
            None => Active::Main,
        }
    }

    /// Returns the active sound, if the active input is one.
    pub(super) fn active_sound(&self) -> Option<&Sound> {
        match self.backups.get(self.choice.active().checked_sub(1)?)? {
            Backup::Sound(sound) => Some(sound),
            Backup::Leg(_) => None,
        }
    }

    pub(super) fn sounds(&self) -> impl Iterator<Item = &Sound> {
        self.backups.iter().filter_map(|backup| match backup {
            Backup::Sound(sound) => Some(sound),
            Backup::Leg(_) => None,
        })
    }

    /// Returns the indices of the legs among the inputs, the main one first.
    pub(super) fn legs(&self) -> impl Iterator<Item = usize> {
        let backups = self.backups.iter().filter_map(|backup| match backup {
            Backup::Leg(leg) => Some(*leg),
            Backup::Sound(_) => None,
        });
        std::iter::once(self.main).chain(backups)
    }
}

/// Maximum number of changes that are queued for the owner. Beyond it, the oldest ones are dropped.
const SWITCHES_MAX: usize = 8;
