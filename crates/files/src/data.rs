//! Bytes to be written to a file.

/// Bytes that the service keeps until they are written, for example a vector or a mapped buffer of a media framework.
pub type Owned = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes for [`File::poll_write`](crate::File::poll_write).
pub enum Data<'a> {
    /// Bytes that are copied into a block together with neighbouring writes. This is right for packets, whose memory is needed
    /// again.
    Copy(&'a [u8]),
    /// Bytes that are kept without a copy.
    Owned(Owned),
}

impl Data<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Data::Copy(bytes) => bytes.len(),
            Data::Owned(owned) => (**owned).as_ref().len(),
        }
    }
}

/// Bytes that wait for their operation.
pub(crate) enum Piece {
    /// Combined small writes.
    Block(Vec<u8>),
    Owned(Owned),
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Piece::Block(block) => block,
            Piece::Owned(owned) => (**owned).as_ref(),
        }
    }
}
