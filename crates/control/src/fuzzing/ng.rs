//! Target `ng`: every request gets one reply, in the encoding of the request and with its cookie, and no table grows without limit.

use crate::ng::{
    Command, DecodeError, Dictionary, Encoding, FRAME_BYTES_MAX, FrameError, Framer, Incoming,
    MESSAGE_BYTES_MAX, Message, NoMessage, Reply, RequestTable, unfold, write,
};

/// Handles an input, which is one message. The message comes twice, and once more from another sender.
pub fn ng(data: &[u8]) {
    framed(data);
    let mut table = RequestTable::new();
    let first = handled(&mut table, 1, data);
    let Ok(message) = Message::split(data) else {
        assert_eq!(first, None, "a reply to what is no message");
        return;
    };
    round_trip(&message);
    let again = table.handle_message(1, 1, data);
    match (&first, again) {
        (Some(reply), Incoming::Send(bytes)) => assert_eq!(reply, &bytes, "another reply"),
        (None, Incoming::NoMessage(NoMessage::Reply)) => {
            assert!(is_reply(&message), "a request without a reply");
        }
        (_, again) => panic!("{again:?} to a retransmission"),
    }
    assert_eq!(first, handled(&mut table, 2, data), "senders share cookies");
    let Some(reply) = first else {
        return;
    };
    assert!(reply.len() <= MESSAGE_BYTES_MAX, "{} bytes", reply.len());
    let said = Message::split(&reply).expect("a reply is a message");
    assert_eq!(
        (said.cookie, said.encoding),
        (message.cookie, message.encoding)
    );
    let keys = said.decode().expect("a reply can be read");
    assert!(keys.get("result").is_some(), "a reply without a result");
    let back = table.handle_message(2, 3, &reply);
    assert!(
        matches!(back, Incoming::NoMessage(NoMessage::Reply)),
        "{back:?} to a reply"
    );
}

/// Checks that a stream of bytes gives the same messages however it is divided, and loses none that would fit a datagram.
fn framed(data: &[u8]) {
    let whole = frames(data, data.len().max(1));
    let piece = usize::from(data.first().copied().unwrap_or(0) % 7) + 1;
    assert_eq!(whole, frames(data, piece), "by pieces of {piece}");
    let (messages, _) = whole;
    for message in &messages {
        assert!(message.len() <= FRAME_BYTES_MAX, "{} bytes", message.len());
        assert!(Message::split(message).is_ok(), "a frame without a message");
    }
    if let Ok(message) = Message::split(data)
        && message.decode().is_ok()
        && !message.cookie[0].is_ascii_whitespace()
    {
        assert_eq!(messages.len(), 1, "a message is not found");
        assert_eq!(messages[0].as_slice(), data.trim_ascii_end());
    }
}

fn frames(data: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut framer = Framer::default();
    let mut found = Vec::new();
    for piece in data.chunks(piece) {
        framer.handle_bytes(piece);
        loop {
            match framer.poll_message() {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// Handles a message, and answers it with the request's own keys. Returns the reply.
fn handled(table: &mut RequestTable<u8>, sender: u8, data: &[u8]) -> Option<Vec<u8>> {
    match table.handle_message(0, sender, data) {
        Incoming::Request(request, ticket) => {
            assert_ne!(request.command(), Command::Ping, "answered by the table");
            let mut keys = Dictionary::new();
            keys.push(
                "sdp",
                request.bytes("sdp").ok().flatten().map_or("", |_| "v=0"),
            );
            Some(table.finish(ticket, Reply::Ok(keys)))
        }
        Incoming::Send(bytes) => Some(bytes),
        Incoming::NoMessage(_) => None,
        Incoming::InHand => panic!("a first message is in hand"),
    }
}

fn is_reply(message: &Message<'_>) -> bool {
    let keys = message.decode();
    keys.is_ok_and(|keys| keys.get("command").is_none() && keys.get("result").is_some())
}

/// Checks that a written message is read back equal, and that the canonical form of keys and flags is its own canonical form.
fn round_trip(message: &Message<'_>) {
    let Ok(dictionary) = message.decode() else {
        return;
    };
    // Both encodings can be compared, because bencode can express all that JSON can.
    for encoding in [message.encoding, Encoding::Bencode] {
        let written = write(message.cookie, encoding, &dictionary);
        let read = Message::split(&written).expect("a message").decode();
        match read {
            Err(DecodeError::TooLong(_)) => {}
            read => assert_eq!(read.as_ref(), Ok(&dictionary)),
        }
    }
    if let Ok(form) = unfold(dictionary) {
        assert_eq!(unfold(form.clone()), Ok(form), "a second form");
    }
}
