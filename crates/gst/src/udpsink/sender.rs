//! The sending half of `ts-udpsink`.

use std::io::ErrorKind;

use threadbare_runtime::SEND_BATCH_MAX;

use super::clients::Clients;
use crate::kit::send::{self, LIST_MAX, Pieces};
use crate::kit::sink::{Rendered, Renderer};
use crate::kit::socket::Udp;

/// Sockets and destinations; under the sink's lock.
#[derive(Debug, Default)]
pub struct Sender {
    pub(super) clients: Clients,
    pub(super) v4: Option<Udp>,
    pub(super) v6: Option<Udp>,
    /// True from READY to NULL: added clients need a socket.
    pub(super) is_open: bool,
    pub(super) bytes_to_serve: u64,
    pub(super) bytes_served: u64,
    pub(super) errors: u64,
    /// Position within the buffer or list at which to continue after a full socket. In a list, it counts from `sent_of_list`.
    resume: Position,
    sent_of_list: usize,
    /// Whether a packet that is retried is already in the statistics.
    is_counted: bool,
    /// Number of buffers in lists, except the first of each list: the sink counts a list as one buffer.
    pub(super) more_of_lists: u64,
}

/// The next datagram: buffer of a list, client, and copies of the buffer sent to the client before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    buffer: usize,
    client: usize,
    copies: u32,
}

impl Sender {
    /// Forgets the position within a packet or list, because another one follows.
    pub(super) fn forget(&mut self) {
        self.reset();
        self.sent_of_list = 0;
        self.is_counted = false;
    }

    /// Forgets the position within a packet, because the clients have changed. A partly sent packet is sent again.
    pub(super) fn reset(&mut self) {
        self.resume = Position::default();
    }

    /// Sends each buffer to every client before the next buffer. `None` stands for an unreadable buffer.
    fn send_all(&mut self, buffers: &[Option<Pieces<'_>>]) -> Rendered {
        if !std::mem::replace(&mut self.is_counted, true) {
            let bytes =
                |pieces: &Option<Pieces<'_>>| pieces.map_or(0, |pieces| pieces.len() as u64);
            self.bytes_to_serve += buffers.iter().map(bytes).sum::<u64>();
            self.errors += buffers.iter().filter(|pieces| pieces.is_none()).count() as u64;
        }
        let rendered = self.send_rest(buffers);
        self.is_counted = rendered != Rendered::Done;
        rendered
    }

    /// Sends the remaining part of the packet or list.
    fn send_rest(&mut self, buffers: &[Option<Pieces<'_>>]) -> Rendered {
        let at = std::mem::take(&mut self.resume);
        // The usual case: one buffer, one client, and nothing to collect.
        if let [Some(_)] = buffers
            && let [only] = self.clients.all()
            && only.is_resolved
            && self.clients.copies(only) == 1
        {
            return match self.send_run(buffers, &[at]) {
                0 => Rendered::Blocked,
                _ => Rendered::Done,
            };
        }
        let (mut at, mut run) = (at, [Position::default(); SEND_BATCH_MAX]);
        loop {
            let (count, next) = self.collect(buffers, at, &mut run);
            if count == 0 {
                return Rendered::Done;
            }
            let tried = self.send_run(buffers, &run[..count]);
            if tried < count {
                self.resume = run[tried];
                return Rendered::Blocked;
            }
            at = next;
        }
    }

    /// Collects the datagrams from `at` on that go through one socket, up to a batch. Returns their number, and the position
    /// after them.
    fn collect(
        &self,
        buffers: &[Option<Pieces<'_>>],
        mut at: Position,
        run: &mut [Position; SEND_BATCH_MAX],
    ) -> (usize, Position) {
        let clients = self.clients.all();
        let mut count = 0;
        while let Some(pieces) = buffers.get(at.buffer) {
            let Some(client) = clients.get(at.client).filter(|_| pieces.is_some()) else {
                at = Position {
                    buffer: at.buffer + 1,
                    ..Position::default()
                };
                continue;
            };
            if !client.is_resolved || at.copies >= self.clients.copies(client) {
                at.client += 1;
                at.copies = 0;
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

    /// Sends to clients of one address family. Returns the number of datagrams sent, which is less than all if the socket is
    /// full.
    #[inline]
    fn send_run(&mut self, buffers: &[Option<Pieces<'_>>], run: &[Position]) -> usize {
        let pieces = |at: &Position| buffers[at.buffer].unwrap_or(Pieces::One(&[]));
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
            let outcome = match pieces(&run[0]).send(udp, &first.raw, || *errors += 1) {
                Ok(_) => 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return 0,
                // Errors such as a missing route or an oversized packet are counted for this client; they do not stop the sink.
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            self.note(run[0], outcome, pieces(&run[0]).len());
            return 1;
        }
        let mut outcomes = [0; SEND_BATCH_MAX];
        let datagrams = run.iter().map(|at| (pieces(at), &clients[at.client].raw));
        let tried = send::send_to_all(datagrams, udp, &mut outcomes, || *errors += 1);
        for (at, outcome) in run.iter().zip(&outcomes[..tried]) {
            self.note(*at, *outcome, pieces(at).len());
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
        match send::with_pieces(buffer, |pieces| self.send_all(&[Some(pieces)])) {
            Some(rendered) => rendered,
            None => {
                self.errors += 1;
                Rendered::Done
            }
        }
    }

    fn takes_lists(&self) -> bool {
        true
    }

    fn render_list(&mut self, list: &gst::BufferList) -> Rendered {
        while let Some(first) = list.get(self.sent_of_list) {
            let mut part = [first; LIST_MAX];
            let rest = list.iter().skip(self.sent_of_list);
            let filled = part.iter_mut().zip(rest).map(|(slot, one)| *slot = one);
            let count = filled.count();
            let sent = send::with_pieces_of_all(&part[..count], |pieces| self.send_all(pieces));
            if sent != Rendered::Done {
                return sent;
            }
            self.sent_of_list += count;
        }
        self.sent_of_list = 0;
        self.more_of_lists += list.len().saturating_sub(1) as u64;
        Rendered::Done
    }

    fn flush(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::socket::GivenSocket;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// `bytes-to-serve` counts each received packet once, however often a full socket causes retries. The test uses a TCP socket,
    /// which ignores the destination, because it can be filled.
    #[test]
    fn a_packet_that_is_sent_at_the_second_attempt_is_counted_once() {
        gst::init().unwrap();
        for clients in 1..=2 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let given = GivenSocket::new(gio::Socket::from_fd(near.into()).unwrap());
            let mut sender = Sender {
                v4: Some(Udp::sharing(&given).unwrap()),
                ..Sender::default()
            };
            for port in 1..=clients {
                sender.clients.add("127.0.0.1", port, 0);
            }
            let packet = gst::Buffer::from_slice([7; 50_000]);
            let mut taken = 0;
            loop {
                taken += packet.size() as u64;
                if sender.render(&packet) != Rendered::Done {
                    break;
                }
            }
            for _ in 0..3 {
                assert_eq!(sender.render(&packet), Rendered::Blocked);
            }
            assert_eq!(sender.bytes_to_serve, taken, "{clients} clients");
            let mut room = vec![0; 1 << 20];
            while sender.render(&packet) != Rendered::Done {
                assert!(far.read(&mut room).unwrap() > 0);
            }
            assert_eq!(sender.bytes_to_serve, taken, "{clients} clients");
            sender.render(&packet);
            let next = taken + packet.size() as u64;
            assert_eq!(sender.bytes_to_serve, next, "the next one counts");
        }
    }
}
