//! Body of a request: pieces in memory, or a part of a file. The file is read only as fast as the connection takes the data.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use threadbare_files::{Access, Disk, File, Op, Options};

/// Number of bytes per read from a file. Together with the number of transfers, it limits the memory of all transfers.
const READ_BYTES: u64 = 64 << 10;

/// The bytes of a part or of an object. Clones refer to the same bytes, which are needed again if a request is repeated.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    Memory(Vec<Bytes>),
    File(Range),
}

/// A part of a file.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) disk: Disk,
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Data {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Data::Memory(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Data::File(range) => range.bytes,
        }
    }

    pub(crate) fn body(self) -> reqwest::Body {
        let left = self.bytes();
        match self {
            Data::Memory(pieces) => reqwest::Body::wrap(Pieces {
                pieces: pieces.into_iter(),
                left,
            }),
            Data::File(range) => {
                let file = range.disk.open(&range.path, Options::new(Access::Read));
                reqwest::Body::wrap(Reads {
                    at: range.offset,
                    left,
                    file,
                    reading: None,
                })
            }
        }
    }
}

struct Pieces {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = self.pieces.find(|piece| !piece.is_empty());
        Poll::Ready(piece.map(|piece| {
            self.left -= piece.len() as u64;
            Ok(Frame::data(piece))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

struct Reads {
    file: File,
    at: u64,
    left: u64,
    reading: Option<Op<Vec<u8>>>,
}

impl http_body::Body for Reads {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        let reading = this.reading.get_or_insert_with(|| {
            let bytes = usize::try_from(this.left.min(READ_BYTES)).unwrap_or(usize::MAX);
            this.file.read(this.at, bytes)
        });
        let read = ready!(Pin::new(reading).poll(cx));
        this.reading = None;
        let bytes = read.map_err(|failure| io::Error::other(failure.to_string()))?;
        if bytes.is_empty() {
            let text = format!(
                "{}: {} bytes of the file are missing",
                this.file.path().display(),
                this.left
            );
            return Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                text,
            ))));
        }
        let count = bytes.len() as u64;
        this.at += count;
        this.left = this.left.saturating_sub(count);
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
