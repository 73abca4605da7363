//! The sending half of `ts-udpsink`.

use std::io::ErrorKind;

use threadbare_runtime::SEND_BATCH_MAX;

use super::clients::Clients;
use crate::kit::send::{self, Pieces};
use crate::kit::sink::{Rendered, Renderer};
use crate::kit::socket::Udp;

/// Sockets and destinations; under the sink's lock.
#[derive(Debug, Default)]
pub struct Sender {
    pub(super) clients: Clients,
    pub(super) v4: Option<Udp>,
    pub(super) v6: Option<Udp>,
    /// From the beginning of READY to its end: clients that are added want a socket.
    pub(super) is_open: bool,
    pub(super) bytes_to_serve: u64,
    pub(super) bytes_served: u64,
    pub(super) errors: u64,
    /// Where to continue after a full socket.
    resume: Position,
}

/// The next datagram: client, and copies sent to it before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    client: usize,
    copies: u32,
}

impl Sender {
    /// Forgets a partly sent packet.
    pub(super) fn reset(&mut self) {
        self.resume = Position::default();
    }

    /// Sends to every client.
    fn send_all(&mut self, pieces: Pieces<'_>) -> Rendered {
        let mut at = std::mem::take(&mut self.resume);
        if at == Position::default() {
            self.bytes_to_serve += pieces.len() as u64;
        }
        // The usual list: one client, and nothing to collect.
        if let [only] = self.clients.all()
            && only.is_resolved
            && self.clients.copies(only) == 1
        {
            return match self.send_run(pieces, &[at]) {
                0 => Rendered::Blocked,
                _ => Rendered::Done,
            };
        }
        let mut run = [Position::default(); SEND_BATCH_MAX];
        loop {
            let (count, next) = self.collect(at, &mut run);
            if count == 0 {
                return Rendered::Done;
            }
            let tried = self.send_run(pieces, &run[..count]);
            if tried < count {
                self.resume = run[tried];
                return Rendered::Blocked;
            }
            at = next;
        }
    }

    /// The datagrams from `at` on that go through one socket, up to a batch. Returns how many, and the position after them.
    fn collect(&self, mut at: Position, run: &mut [Position; SEND_BATCH_MAX]) -> (usize, Position) {
        let clients = self.clients.all();
        let mut count = 0;
        while let Some(client) = clients.get(at.client) {
            if !client.is_resolved || at.copies >= self.clients.copies(client) {
                at = Position {
                    client: at.client + 1,
                    copies: 0,
                };
                continue;
            }
            let is_other_socket = count > 0 && client.is_ipv4 != clients[run[0].client].is_ipv4;
            if count == run.len() || is_other_socket {
                break;
            }
            run[count] = at;
            count += 1;
            at.copies += 1;
        }
        (count, at)
    }

    /// Sends to clients of one address family. Returns to how many: fewer than all if the socket is full.
    #[inline]
    fn send_run(&mut self, pieces: Pieces<'_>, run: &[Position]) -> usize {
        let clients = self.clients.all();
        let first = &clients[run[0].client];
        let socket = if first.is_ipv4 { &self.v4 } else { &self.v6 };
        let Some(udp) = socket else {
            run.iter()
                .for_each(|at| self.clients.all_mut()[at.client].failed(libc::EAFNOSUPPORT));
            return run.len();
        };
        let errors = &mut self.errors;
        if run.len() == 1 {
            let outcome = match pieces.send(udp, &first.raw, || *errors += 1) {
                Ok(_) => 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return 0,
                // No route, too large: this client's trouble, not the sink's.
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            self.note(run[0], outcome, pieces.len());
            return 1;
        }
        let mut outcomes = [0; SEND_BATCH_MAX];
        let destinations = run.iter().map(|at| &clients[at.client].raw);
        let tried = send::send_to_all(pieces, udp, destinations, &mut outcomes, || *errors += 1);
        for (at, outcome) in run.iter().zip(&outcomes[..tried]) {
            self.note(*at, *outcome, pieces.len());
        }
        tried
    }

    #[inline]
    fn note(&mut self, at: Position, outcome: i32, bytes: usize) {
        let client = &mut self.clients.all_mut()[at.client];
        if outcome == 0 {
            client.packets += 1;
            client.bytes += bytes as u64;
            self.bytes_served += bytes as u64;
        } else {
            client.failed(outcome);
            self.errors += 1;
        }
    }
}

impl Renderer for Sender {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        match send::with_pieces(buffer, |pieces| self.send_all(pieces)) {
            Some(rendered) => rendered,
            None => {
                self.errors += 1;
                Rendered::Done
            }
        }
    }
}
