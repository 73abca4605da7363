//! Sends a buffer as one datagram, without joining its memories.
#![allow(missing_docs, reason = "no stable interface")]

use std::io::{self, ErrorKind, IoSlice};

use threadbare_runtime::{RawAddr, SEND_BATCH_MAX, SendBatch, send_to, send_vectored_to};

use super::socket::Udp;

/// The bytes of a buffer, in place.
#[derive(Clone, Copy)]
pub enum Pieces<'a> {
    One(&'a [u8]),
    Several(&'a [IoSlice<'a>]),
}

impl Pieces<'_> {
    /// Returns the total number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "not used")]
    pub fn len(&self) -> usize {
        match self {
            Pieces::One(bytes) => bytes.len(),
            Pieces::Several(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// Returns the bytes of the first piece.
    pub fn first(&self) -> &[u8] {
        match self {
            Pieces::One(bytes) => bytes,
            Pieces::Several(pieces) => pieces.first().map_or(&[], |piece| piece),
        }
    }

    /// Returns the last byte of the last piece.
    pub fn last_byte(&self) -> Option<u8> {
        match self {
            Pieces::One(bytes) => bytes.last().copied(),
            Pieces::Several(pieces) => pieces.iter().rev().find_map(|piece| piece.last().copied()),
        }
    }

    #[inline]
    fn send_once(&self, udp: &Udp, to: &RawAddr) -> io::Result<usize> {
        match self {
            Pieces::One(bytes) => send_to(udp.fd(), bytes, to),
            Pieces::Several(pieces) => send_vectored_to(udp.fd(), pieces, to),
        }
    }

    /// Sends one datagram without waiting. If it returns the ICMP error of an earlier datagram, `refused` is called, and this
    /// datagram, which was not sent, is retried.
    #[inline]
    pub fn send(&self, udp: &Udp, to: &RawAddr, mut refused: impl FnMut()) -> io::Result<usize> {
        let mut was_told = false;
        loop {
            match self.send_once(udp, to) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == ErrorKind::ConnectionRefused
                        && !std::mem::replace(&mut was_told, true) =>
                {
                    refused();
                }
                result => return result,
            }
        }
    }
}

/// Sends datagrams, each to its destination, through one socket, without waiting and in order.
///
/// `outcomes` gets the outcome of each datagram that was tried: 0, or the errno. Returns the number of datagrams that were tried.
/// If the socket is full, not all are tried. ICMP errors for earlier datagrams go to `refused`, as in [`Pieces::send`].
pub fn send_to_all<'a>(
    datagrams: impl Iterator<Item = (Pieces<'a>, &'a RawAddr)>,
    udp: &Udp,
    outcomes: &mut [i32; SEND_BATCH_MAX],
    mut refused: impl FnMut(),
) -> usize {
    let mut whole = [IoSlice::new(&[]); SEND_BATCH_MAX];
    let mut several: [(&[IoSlice<'_>], Option<&RawAddr>); SEND_BATCH_MAX] =
        [(&[], None); SEND_BATCH_MAX];
    for (i, (pieces, destination)) in datagrams.take(SEND_BATCH_MAX).enumerate() {
        several[i].1 = Some(destination);
        match pieces {
            Pieces::One(bytes) => whole[i] = IoSlice::new(bytes),
            Pieces::Several(pieces) => several[i].0 = pieces,
        }
    }
    let mut batch = SendBatch::default();
    for (whole, (several, destination)) in whole.iter().zip(&several) {
        let Some(destination) = destination else {
            break;
        };
        let data = if several.is_empty() {
            std::slice::from_ref(whole)
        } else {
            several
        };
        if !batch.push(data, destination) {
            break;
        }
    }
    let (mut tried, mut told) = (0, None);
    while !batch.is_empty() {
        let error = match batch.send(udp.fd()) {
            Ok(sent) => {
                outcomes[tried..tried + sent].fill(0);
                tried += sent;
                continue;
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::WouldBlock => break,
            ErrorKind::Interrupted => {}
            // Report the error once for each destination, and retry the datagram.
            ErrorKind::ConnectionRefused if told.replace(tried) != Some(tried) => refused(),
            _ => {
                outcomes[tried] = error.raw_os_error().unwrap_or(libc::EIO);
                tried += 1;
                batch.skip();
            }
        }
    }
    tried
}

/// Calls `f` with the bytes of several buffers, at most [`LIST_MAX`] of them. A buffer whose bytes are unreadable is `None`.
pub fn with_pieces_of_all<R>(
    buffers: &[&gst::BufferRef],
    f: impl FnOnce(&[Option<Pieces<'_>>]) -> R,
) -> R {
    let joined: [_; LIST_MAX] = std::array::from_fn(|i| {
        let buffer = buffers.get(i).filter(|one| one.n_memory() > PIECES_MAX);
        buffer.and_then(|buffer| buffer.map_readable().ok())
    });
    let maps: [[_; PIECES_MAX]; LIST_MAX] = std::array::from_fn(|i| {
        let buffer = buffers.get(i).filter(|one| one.n_memory() <= PIECES_MAX);
        std::array::from_fn(|piece| {
            let buffer = buffer.filter(|one| piece < one.n_memory())?;
            Some(buffer.peek_memory(piece).map_readable())
        })
    });
    let mut pieces = [[IoSlice::new(&[]); PIECES_MAX]; LIST_MAX];
    let mut is_readable = [true; LIST_MAX];
    for ((pieces, maps), is_readable) in pieces.iter_mut().zip(&maps).zip(&mut is_readable) {
        for (piece, map) in pieces.iter_mut().zip(maps.iter().flatten()) {
            match map {
                Ok(map) => *piece = IoSlice::new(map),
                Err(_) => *is_readable = false,
            }
        }
    }
    let all: [_; LIST_MAX] = std::array::from_fn(|i| {
        let buffer = buffers.get(i)?;
        if buffer.n_memory() > PIECES_MAX {
            return joined[i].as_deref().map(Pieces::One);
        }
        is_readable[i].then(|| Pieces::Several(&pieces[i][..buffer.n_memory()]))
    });
    f(&all[..buffers.len().min(LIST_MAX)])
}

/// Calls `f` with the bytes of `buffer`. Returns `None` if the bytes are unreadable, as in protected memory.
#[inline]
pub fn with_pieces<R>(buffer: &gst::BufferRef, f: impl FnOnce(Pieces<'_>) -> R) -> Option<R> {
    if buffer.n_memory() == 1 {
        let map = buffer.peek_memory(0).map_readable().ok()?;
        return Some(f(Pieces::One(&map)));
    }
    if buffer.n_memory() > PIECES_MAX {
        let map = buffer.map_readable().ok()?;
        return Some(f(Pieces::One(&map)));
    }
    // A payloader's buffer consists of a header and a payload. They are sent in place, without an allocation.
    let maps: [_; PIECES_MAX] = std::array::from_fn(|i| {
        (i < buffer.n_memory()).then(|| buffer.peek_memory(i).map_readable())
    });
    let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
    for (piece, map) in pieces.iter_mut().zip(maps.iter().flatten()) {
        *piece = IoSlice::new(map.as_ref().ok()?);
    }
    Some(f(Pieces::Several(&pieces[..buffer.n_memory()])))
}

/// Maximum number of memories of a buffer that are sent without joining.
const PIECES_MAX: usize = 4;
/// Maximum number of buffers of a list that are sent together: their memory is on the stack.
pub const LIST_MAX: usize = 16;
