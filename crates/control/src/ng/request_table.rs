//! Accepts messages, and gives exactly one reply to each request.

use std::hash::Hash;

use super::message::{Encoding, Message, NoMessage, write};
use super::replies::{Key, Limits, Replies, Seen};
use super::reply::Reply;
use super::request::{Command, Refusal, Request};
use super::value::{Dictionary, MESSAGE_BYTES_MAX};

/// What to do about a message.
#[derive(Debug)]
pub enum Incoming<S> {
    /// Carry out the request, then call [`RequestTable::finish`] with the ticket.
    Request(Request, Ticket<S>),
    /// Send these bytes back. The message was a retransmission, a request that is refused, or a `ping`.
    Send(Vec<u8>),
    /// Send nothing. The same request is being carried out already, and its reply answers both.
    InHand,
    /// Send nothing, and count the message.
    NoMessage(NoMessage),
}

/// A request that is being carried out. Replying consumes the ticket, so that there is only one reply.
#[derive(Debug)]
#[must_use = "a request without a reply lets the proxy take the node for dead"]
pub struct Ticket<S> {
    key: Key<S>,
    encoding: Encoding,
}

/// The replying side of the protocol. `S` identifies senders: the address of a datagram, or the number of a connection.
///
/// Pass each message to [`handle_message`](RequestTable::handle_message), and each [`Ticket`] to
/// [`finish`](RequestTable::finish).
#[derive(Debug)]
pub struct RequestTable<S> {
    replies: Replies<S>,
}

impl<S: Eq + Hash> Default for RequestTable<S> {
    fn default() -> Self {
        RequestTable::new()
    }
}

impl<S: Eq + Hash> RequestTable<S> {
    /// Creates a table without requests.
    #[must_use]
    pub fn new() -> RequestTable<S> {
        let replies = Replies::new(Limits::USUAL);
        RequestTable { replies }
    }

    /// Handles a message that came at `now_ns`, which never decreases.
    pub fn handle_message(&mut self, now_ns: u64, sender: S, bytes: &[u8]) -> Incoming<S> {
        let message = match Message::split(bytes) {
            Ok(message) => message,
            Err(why) => return Incoming::NoMessage(why),
        };
        // A reply is not stored, so a request may have the same cookie.
        let request = match read(&message) {
            Ok(None) => return Incoming::NoMessage(NoMessage::Reply),
            Ok(Some(request)) => Ok(request),
            Err(refusal) => Err(refusal),
        };
        let key = match self.replies.begin(now_ns, sender, message.cookie) {
            Seen::Replied(reply) => return Incoming::Send(reply),
            Seen::InHand => return Incoming::InHand,
            Seen::New(key) => key,
        };
        let encoding = message.encoding;
        let ticket = Ticket { key, encoding };
        match request {
            Ok(request) if request.command() == Command::Ping => {
                Incoming::Send(self.finish(ticket, Reply::Pong))
            }
            Ok(request) => Incoming::Request(request, ticket),
            Err(refusal) => Incoming::Send(self.finish(ticket, refusal.into())),
        }
    }

    /// Encodes the reply, and stores it for retransmissions of the request. Returns the bytes to send.
    pub fn finish(&mut self, ticket: Ticket<S>, reply: Reply) -> Vec<u8> {
        let Ticket { key, encoding } = ticket;
        let (_, cookie) = &*key;
        let mut bytes = write(cookie, encoding, &reply.into_dictionary());
        if bytes.len() > MESSAGE_BYTES_MAX {
            let reason = format!(
                "the reply has {} bytes: expected at most {MESSAGE_BYTES_MAX}",
                bytes.len()
            );
            bytes = write(cookie, encoding, &Reply::Error(reason).into_dictionary());
        }
        self.replies.finish(&key, &bytes);
        bytes
    }

    /// Finishes a request as [`finish`](Self::finish) does, but with a message that another node has written as its reply.
    pub fn finish_with(&mut self, ticket: Ticket<S>, message: Vec<u8>) -> Vec<u8> {
        self.replies.finish(&ticket.key, &message);
        message
    }

    /// Forgets a request that is not carried out here, or not yet, and gets no reply. If the request comes again, it counts as new.
    pub fn forget(&mut self, ticket: Ticket<S>) {
        self.replies.forget(&ticket.key);
    }
}

/// Reads the request of a message. `None`: the message is a reply.
fn read(message: &Message<'_>) -> Result<Option<Request>, Refusal> {
    let dictionary = message.decode()?;
    let is_reply = |dictionary: &Dictionary| {
        dictionary.get("command").is_none() && dictionary.get("result").is_some()
    };
    if is_reply(&dictionary) {
        return Ok(None);
    }
    Request::new(dictionary).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn sent(incoming: Incoming<u8>) -> String {
        match incoming {
            Incoming::Send(bytes) => String::from_utf8(bytes).expect("a text"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_retransmission_gets_the_same_reply_and_nothing_is_done_twice() {
        let mut table = RequestTable::new();
        let offer = b"c1 d7:command5:offere";
        let Incoming::Request(request, ticket) = table.handle_message(0, 1, offer) else {
            panic!("a first request is carried out");
        };
        assert_eq!(request.command(), Command::Offer);
        // The proxy repeats the request before the reply, and after it.
        assert!(matches!(
            table.handle_message(S, 1, offer),
            Incoming::InHand
        ));
        let mut keys = Dictionary::new();
        keys.push("sdp", "v=0");
        let reply = table.finish(ticket, Reply::Ok(keys));
        assert_eq!(reply, b"c1 d6:result2:ok3:sdp3:v=0e");
        for second in 2..6 {
            let again = table.handle_message(second * S, 1, offer);
            assert_eq!(sent(again).as_bytes(), reply);
        }
        // The same cookie from another sender is another request. After the time limit, the same cookie from the same sender is new too.
        for (now_ns, sender) in [(6 * S, 2), (11 * S, 1)] {
            let new = table.handle_message(now_ns, sender, offer);
            assert!(matches!(new, Incoming::Request(..)), "{new:?}");
        }
    }

    #[test]
    fn a_reply_of_another_node_is_stored_for_retransmissions() {
        let mut table = RequestTable::new();
        let query = b"c1 d7:command5:querye";
        let Incoming::Request(_, ticket) = table.handle_message(0, 1, query) else {
            panic!("a first request is carried out");
        };
        let reply = b"c1 d6:result2:oke".to_vec();
        assert_eq!(table.finish_with(ticket, reply.clone()), reply);
        assert_eq!(sent(table.handle_message(S, 1, query)).as_bytes(), reply);
    }

    #[test]
    fn forgotten_request_is_handled_as_new() {
        let mut table = RequestTable::new();
        let query = b"c1 d7:command5:querye";
        for second in 0..2 {
            let incoming = table.handle_message(second * S, 1, query);
            let Incoming::Request(_, ticket) = incoming else {
                panic!("{incoming:?}");
            };
            table.forget(ticket);
        }
    }

    #[test]
    fn every_request_gets_a_reply_in_its_encoding() {
        let mut table = RequestTable::new();
        for (request, reply) in [
            ("p1 d7:command4:pinge", "p1 d6:result4:ponge"),
            ("p2 {\"command\":\"ping\"}", "p2 {\"result\":\"pong\"}"),
            ("e1 d7:command4:pin", "e1 d6:result5:error12:error-reason"),
            (
                "e2 {\"command\":",
                "e2 {\"result\":\"error\",\"error-reason\":",
            ),
            ("e3 de", "e3 d6:result5:error12:error-reason"),
            (
                "e4 {\"command\":\"dance\"}",
                "e4 {\"result\":\"error\",\"error-reason\":\"Unrecognized command",
            ),
        ] {
            let said = sent(table.handle_message(0, 0, request.as_bytes()));
            assert!(said.starts_with(reply), "{request}: {said}");
        }
    }

    #[test]
    fn a_received_reply_gets_no_reply_and_uses_no_cookie() {
        let mut table = RequestTable::new();
        for text in [
            "a d6:result5:error12:error-reason1:xe",
            "a {\"result\":\"ok\"}",
        ] {
            let incoming = table.handle_message(0, 0, text.as_bytes());
            assert!(matches!(incoming, Incoming::NoMessage(NoMessage::Reply)));
        }
        let ping = table.handle_message(0, 0, b"a d7:command4:pinge");
        assert_eq!(sent(ping), "a d6:result4:ponge");
    }

    #[test]
    fn oversized_reply_becomes_an_error() {
        let mut table = RequestTable::new();
        let Incoming::Request(_, ticket) = table.handle_message(0, 0, b"c d7:command4:liste")
        else {
            panic!("a request");
        };
        let mut keys = Dictionary::new();
        keys.push("calls", "x".repeat(MESSAGE_BYTES_MAX));
        let bytes = table.finish(ticket, Reply::Ok(keys));
        assert!(bytes.starts_with(b"c d6:result5:error") && bytes.len() < 200);
    }
}
