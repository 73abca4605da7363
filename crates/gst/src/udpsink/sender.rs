//! The sending half of `ts-udpsink`.

use std::io::{ErrorKind, IoSlice};

use threadbare_runtime::{send_to, send_vectored_to};

use super::clients::Client;
use crate::kit::sink::{Rendered, Renderer};
use crate::kit::socket::Udp;

/// Sockets and destinations; under the sink's lock.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) clients: Vec<Client>,
    pub(super) send_duplicates: bool,
    pub(super) v4: Option<Udp>,
    pub(super) v6: Option<Udp>,
    pub(super) bytes_to_serve: u64,
    pub(super) bytes_served: u64,
    pub(super) errors: u64,
    /// Where to go on after a full socket: client, and how many copies it has had.
    resume: (usize, u32),
}

impl Sender {
    pub(super) fn new() -> Self {
        Sender {
            clients: Vec::new(),
            send_duplicates: true,
            v4: None,
            v6: None,
            bytes_to_serve: 0,
            bytes_served: 0,
            errors: 0,
            resume: (0, 0),
        }
    }

    /// Forgets a packet that was half sent.
    pub(super) fn reset(&mut self) {
        self.resume = (0, 0);
    }

    /// A memory that cannot be mapped, such as a protected one.
    fn unreadable(&mut self) -> Rendered {
        self.errors += 1;
        Rendered::Done
    }

    /// Sends to every client, `send` doing the one system call.
    fn send_all(
        &mut self,
        bytes: usize,
        mut send: impl FnMut(&Udp, &Client) -> std::io::Result<usize>,
    ) -> Rendered {
        let (first, mut copies_sent) = std::mem::take(&mut self.resume);
        if first == 0 && copies_sent == 0 {
            self.bytes_to_serve += bytes as u64;
        }
        for i in first..self.clients.len() {
            let client = &mut self.clients[i];
            let socket = if client.is_ipv4 { &self.v4 } else { &self.v6 };
            let Some(udp) = socket else {
                client.errors += 1;
                continue;
            };
            let copies = if self.send_duplicates { client.uses } else { 1 };
            let mut was_told = false;
            while copies_sent < copies {
                match send(udp, client) {
                    Ok(sent) => {
                        client.packets += 1;
                        client.bytes += sent as u64;
                        self.bytes_served += sent as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.resume = (i, copies_sent);
                        return Rendered::Blocked;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    // The ICMP answer to an earlier packet, of any client: this one has not been sent.
                    Err(error)
                        if error.kind() == ErrorKind::ConnectionRefused
                            && !std::mem::replace(&mut was_told, true) =>
                    {
                        self.errors += 1;
                        continue;
                    }
                    // No route, too large: this client's trouble, not
                    // the sink's.
                    Err(_) => {
                        client.errors += 1;
                        self.errors += 1;
                    }
                }
                copies_sent += 1;
            }
            copies_sent = 0;
        }
        Rendered::Done
    }
}

impl Renderer for Sender {
    fn render(&mut self, buffer: &gst::BufferRef) -> Rendered {
        if buffer.n_memory() == 1
            && let Ok(map) = buffer.peek_memory(0).map_readable()
        {
            return self.send_all(map.len(), |udp, client| {
                send_to(udp.fd(), &map, &client.raw)
            });
        }
        if buffer.n_memory() > PIECES_MAX {
            return match buffer.map_readable() {
                Ok(map) => self.send_all(map.len(), |udp, client| {
                    send_to(udp.fd(), &map, &client.raw)
                }),
                Err(_) => self.unreadable(),
            };
        }
        // A payloader's buffer is a header and a payload: sent as they are, with nothing on the heap.
        let maps: [_; PIECES_MAX] = std::array::from_fn(|i| {
            (i < buffer.n_memory()).then(|| buffer.peek_memory(i).map_readable())
        });
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        for (piece, map) in pieces.iter_mut().zip(maps.iter().flatten()) {
            match map {
                Ok(map) => *piece = IoSlice::new(map),
                Err(_) => return self.unreadable(),
            }
        }
        let pieces = &pieces[..buffer.n_memory()];
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        self.send_all(bytes, |udp, client| {
            send_vectored_to(udp.fd(), pieces, &client.raw)
        })
    }
}

/// Memories of a buffer that are sent without being joined first.
const PIECES_MAX: usize = 4;
