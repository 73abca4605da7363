//! The sending half of `ts-udpsink`.

use std::io::ErrorKind;

use super::clients::Client;
use crate::kit::send::{self, Pieces};
use crate::kit::sink::{Rendered, Renderer};
use crate::kit::socket::Udp;

/// Sockets and destinations; under the sink's lock.
#[derive(Debug)]
pub struct Sender {
    pub(super) clients: Vec<Client>,
    pub(super) send_duplicates: bool,
    pub(super) v4: Option<Udp>,
    pub(super) v6: Option<Udp>,
    pub(super) bytes_to_serve: u64,
    pub(super) bytes_served: u64,
    pub(super) errors: u64,
    /// Where to continue after a full socket: client, and number of copies sent.
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

    /// Forgets a partly sent packet.
    pub(super) fn reset(&mut self) {
        self.resume = (0, 0);
    }

    /// Sends to every client.
    fn send_all(&mut self, pieces: Pieces<'_>) -> Rendered {
        let (first, mut copies_sent) = std::mem::take(&mut self.resume);
        if first == 0 && copies_sent == 0 {
            self.bytes_to_serve += pieces.len() as u64;
        }
        for i in first..self.clients.len() {
            let client = &mut self.clients[i];
            let socket = if client.is_ipv4 { &self.v4 } else { &self.v6 };
            let Some(udp) = socket else {
                client.errors += 1;
                continue;
            };
            let copies = if self.send_duplicates { client.uses } else { 1 };
            while copies_sent < copies {
                let errors = &mut self.errors;
                match pieces.send(udp, &client.raw, || *errors += 1) {
                    Ok(sent) => {
                        client.packets += 1;
                        client.bytes += sent as u64;
                        self.bytes_served += sent as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.resume = (i, copies_sent);
                        return Rendered::Blocked;
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
