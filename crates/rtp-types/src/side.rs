//! The two parties of a call.

/// A party of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first one.
    A,
    /// The other party.
    B,
}

impl Side {
    /// Both parties, A first.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The party at the far end.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}
