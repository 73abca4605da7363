//! Where the memory of the agents is, so that it can be fetched before they run.
//!
//! With thousands of agents that take turns, an agent's memory has left the cache when its turn comes round. Looking the
//! addresses up in the slots would be to wait for the slots. They are kept here, side by side; they are hints, which are
//! prefetched and never followed.

use crate::sys::{CACHE_LINE, prefetch};

/// The addresses of one agent's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    slot: usize,
    agent: usize,
    agent_lines: usize,
    /// What wakes it, which another thread may have touched last.
    wake: usize,
}

impl Place {
    pub(crate) fn new<S, A: ?Sized, W>(slot: &S, agent: &A, wake: &W) -> Place {
        let agent_lines = size_of_val(agent).div_ceil(CACHE_LINE);
        Place {
            slot: address(slot),
            agent: address(agent),
            agent_lines: agent_lines.min(AGENT_LINES_MAX),
            wake: address(wake),
        }
    }

    pub(crate) fn move_slot<S>(&mut self, slot: &S) {
        self.slot = address(slot);
    }

    #[inline]
    pub(crate) fn prefetch_slot(&self) {
        prefetch(self.slot as *const u8, SLOT_LINES);
    }

    #[inline]
    pub(crate) fn prefetch_agent(&self) {
        prefetch(self.agent as *const u8, self.agent_lines);
    }

    #[inline]
    pub(crate) fn prefetch_wake(&self) {
        prefetch(self.wake as *const u8, 1);
    }
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<u8>().addr()
}

/// Agents between one step of looking ahead and the next: the time of two, some microseconds, is more than a
/// fetch from memory takes.
pub(crate) const AHEAD: usize = 2;
/// Cache lines of a slot, which need not begin where a line does.
const SLOT_LINES: usize = 2;
/// Cache lines of an agent that are worth fetching: the beginning, where the hot fields are.
const AGENT_LINES_MAX: usize = 10;
