//! Copies for subscribers. Side A of a subscriber's stream is a copy of one side of another stream, the source. The source
//! sends the copied packets from its own port to the port of the subscriber's stream, as a party would.

use std::net::SocketAddr;

use threadbare_control::calls::{Copied, StreamId, StreamSpec};
use threadbare_rtp::call::Side;

use super::{Running, Streams};

/// For each side of a stream, the streams and ports that get copies of it.
pub(super) type CopiesTo = [Vec<(StreamId, SocketAddr)>; 2];

/// Sets the address from which the copies come. It is the port of the copied stream, which only the media workers know.
pub(super) fn locate(streams: &Streams, spec: &mut StreamSpec) {
    if let Some(Copied { stream, side }) = spec.copies
        && let Some(source) = streams.get(&stream)
    {
        spec.sides[0].rtp = Some(source.local[side as usize]);
    }
}

/// Makes a stream a copy of `now` instead of `before`.
pub(super) fn link(
    streams: &mut Streams,
    stream: StreamId,
    before: Option<Copied>,
    now: Option<Copied>,
) {
    if before == now {
        return;
    }
    if let Some(before) = before
        && let Some(source) = streams.get_mut(&before.stream)
    {
        source.copies_to[before.side as usize].retain(|(one, _)| *one != stream);
        send_list(source);
    }
    let to = streams.get(&stream).map(|running| running.local[0]);
    if let (Some(now), Some(to)) = (now, to) {
        match streams.get_mut(&now.stream) {
            Some(source) => {
                source.copies_to[now.side as usize].push((stream, to));
                send_list(source);
            }
            None => tracing::error!(
                stream = stream.0,
                "the stream that a subscriber should get no longer exists"
            ),
        }
    }
}

/// Sends the list of copies to the media session of a stream.
pub(super) fn send_list(running: &Running) {
    let to = |side: Side| {
        let all = running.copies_to[side as usize].iter();
        all.map(|(_, to)| *to).collect::<Vec<SocketAddr>>()
    };
    let to = Side::BOTH.map(to);
    let _ = running.handle.command(move |session, _| {
        if let Some(media) = session.audio_mut() {
            for side in Side::BOTH {
                media.set_copies(side, &to[side as usize]);
            }
        }
    });
}
