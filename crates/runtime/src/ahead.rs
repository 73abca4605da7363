//! Addresses of the agents' memory, for prefetching before they run.
//!
//! A thread runs thousands of agents in turn, so by its next run, an agent's memory has left the cache. The agent's slot has the
//! addresses to prefetch, but the slot has left the cache, too. So this list stores the addresses of all agents together. The
//! addresses are hints: they are prefetched, and never dereferenced.

use crate::sys::{CACHE_LINE, prefetch};

/// The addresses of one agent's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    slot: usize,
    agent: usize,
    agent_lines: usize,
    /// Address of the agent's wake-up. Another thread may have used it last, so it may be in another core's cache.
    wake: usize,
}

impl Footprint {
    pub(crate) fn new<S, A: ?Sized, W>(slot: &S, agent: &A, wake: &W) -> Footprint {
        let agent_lines = size_of_val(agent).div_ceil(CACHE_LINE);
        Footprint {
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

/// Number of agents by which prefetching is ahead, at each of its steps. Two agents run for some microseconds, which is longer
/// than a fetch from memory takes.
pub(crate) const AHEAD: usize = 2;
/// Number of a slot's cache lines to fetch. A slot may begin within a line.
const SLOT_LINES: usize = 2;
/// Maximum number of an agent's cache lines to fetch. The fields that each run uses are at the agent's beginning.
const AGENT_LINES_MAX: usize = 10;
