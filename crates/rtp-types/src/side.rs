//! The two parties of a call.

/// A party of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first party.
    A,
    /// The other party.
    B,
}

impl Side {
    /// Both parties, A first.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// Returns the other party.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}
