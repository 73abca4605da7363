//! Tokens: each identifies an agent on its shard, also inside an epoll event.

/// Identifies an agent on its shard. The generation distinguishes it from earlier users of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    pub(crate) fn to_event(self, key: u8) -> u64 {
        u64::from(key) << 56 | u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_event(data: u64) -> (Self, u8) {
        let generation = (data >> 32) as u32 & GENERATION_MASK;
        (
            Token {
                index: data as u32,
                generation,
            },
            (data >> 56) as u8,
        )
    }
}

/// 24 bits, so that a token and a key fit the 64 bits of an epoll event.
pub(crate) const GENERATION_MASK: u32 = (1 << 24) - 1;
/// The event of the interrupt descriptor. No agent has this token, because its generation would be -1.
pub(crate) const INTERRUPT: u64 = u64::MAX;
