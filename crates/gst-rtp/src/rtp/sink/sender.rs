//! The sending half of `ts-rtpsink`.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use threadbare_rtp::id::{RtpTime, Ssrc};
use threadbare_runtime::{RawAddr, clock_now_ns};

use crate::kit::send::{self, Pieces};
use crate::kit::sink::{Rendered, Renderer};
use crate::rtp::session::{RtpSession, Sockets};

/// Sends a session's RTP; under the sink's lock. The layout is fixed: fields used for each packet come first.
#[derive(Default)]
#[repr(C)]
pub struct Sender {
    session: Option<Arc<RtpSession>>,
    sockets: Option<Arc<Sockets>>,
    peer: Option<RawAddr>,
    /// The session's `peer_version` when `peer` was read.
    peer_version: Option<u32>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// The destination, for messages.
    to: Option<SocketAddr>,
    /// Whether a send failure to `peer` was noted.
    has_failed: bool,
    /// The last failure, for the element to post.
    failure: Option<(SocketAddr, std::io::Error)>,
    has_news: Arc<AtomicBool>,
    pub(super) errors: u64,
    /// Number of packets without a peer to send to.
    pub(super) unsent: u64,
    /// Number of packets that are not RTP.
    pub(super) malformed: u64,
}

impl Sender {
    /// Creates a sender. It sets `has_news` when a failure can be taken.
    pub(super) fn new(has_news: Arc<AtomicBool>) -> Sender {
        Sender {
            has_news,
            ..Sender::default()
        }
    }

    pub(super) fn open(&mut self, session: Arc<RtpSession>, sockets: Option<Arc<Sockets>>) {
        self.session = Some(session);
        self.sockets = sockets;
        self.peer_version = None;
    }

    /// Takes the last failure: the unreachable destination, and the reason.
    pub(super) fn take_failure(&mut self) -> Option<(SocketAddr, std::io::Error)> {
        self.failure.take()
    }

    pub(super) fn close(&mut self) {
        self.session = None;
        self.sockets = None;
    }

    fn send(&mut self, pieces: Pieces<'_>) -> Rendered {
        let Some(header) = Header::read(&pieces) else {
            self.malformed += 1;
            return Rendered::Done;
        };
        let (Some(session), Some(sockets)) = (&self.session, &self.sockets) else {
            self.unsent += 1;
            return Rendered::Done;
        };
        let version = session.peer_version();
        if self.peer_version != Some(version) {
            self.peer_version = Some(version);
            self.to = session.peer();
            self.peer = self.to.map(|to| sockets.reaching(to));
            self.has_failed = false;
        }
        let Some(peer) = &self.peer else {
            self.unsent += 1;
            return Rendered::Done;
        };
        let errors = &mut self.errors;
        match pieces.send(&sockets.rtp, peer, || *errors += 1) {
            Ok(sent) => {
                self.packets += 1;
                self.bytes += sent as u64;
                session.note_sent(
                    clock_now_ns(),
                    header.ssrc,
                    header.time,
                    header.payload_bytes,
                );
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Rendered::Blocked,
            // A missing route, or a packet that is too large, does not stop a stream.
            Err(error) => {
                self.errors += 1;
                // A failure is reported once for each destination.
                if !std::mem::replace(&mut self.has_failed, true) {
                    self.failure = self.to.map(|to| (to, error));
                    self.has_news.store(true, Ordering::Relaxed);
                }
            }
        }
        Rendered::Done
    }
}

impl Renderer for Sender {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        match send::with_pieces(buffer, |pieces| self.send(pieces)) {
            Some(rendered) => rendered,
            None => {
                self.errors += 1;
                Rendered::Done
            }
        }
    }
}

/// The packet fields for a sender report.
struct Header {
    ssrc: Ssrc,
    time: RtpTime,
    payload_bytes: usize,
}

impl Header {
    /// Parses the header; returns `None` if it is not RTP.
    #[inline]
    fn read(pieces: &Pieces<'_>) -> Option<Header> {
        let first = pieces.first();
        let fixed: &[u8; FIXED_BYTES] = first.first_chunk()?;
        if fixed[0] >> 6 != 2 {
            return None;
        }
        let word = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let mut header_bytes = FIXED_BYTES + 4 * usize::from(fixed[0] & 0x0f);
        if fixed[0] & EXTENSION != 0
            && let Some([_, _, high, low]) = first.get(header_bytes..header_bytes + 4)
        {
            header_bytes += 4 + 4 * usize::from(u16::from_be_bytes([*high, *low]));
        }
        // RFC 3550, section 6.4.1: octets are counted "not including header or padding".
        let padding = match fixed[0] & PADDING {
            0 => 0,
            _ => usize::from(pieces.last_byte()?),
        };
        Some(Header {
            ssrc: Ssrc(word(8)),
            time: RtpTime(word(4)),
            payload_bytes: pieces.len().saturating_sub(header_bytes + padding),
        })
    }
}

/// Size of the fixed header (RFC 3550, section 5.1).
const FIXED_BYTES: usize = 12;
const EXTENSION: u8 = 0x10;
const PADDING: u8 = 0x20;
