//! Copies for subscribers: a stream whose side A is what a side of another stream sends. That stream sends the copies, from its own port to this one's, as
//! if they came from a party.

use std::net::SocketAddr;

use threadbare_control::calls::{Copied, StreamId, StreamSpec};
use threadbare_rtp::call::Side;

use super::MediaPlane;

/// Who gets copies of what each side of a stream sends, and at which of their ports.
pub(super) type CopiesTo = [Vec<(StreamId, SocketAddr)>; 2];

impl MediaPlane {
    /// Copies come from the port of the copied stream: only the plane knows it as others see it.
    pub(super) fn locate(&self, spec: &mut StreamSpec) {
        if let Some(Copied { stream, side }) = spec.copies
            && let Some(source) = self.streams.get(&stream)
        {
            spec.sides[0].rtp = Some(source.local[side as usize]);
        }
    }

    /// A stream is a copy of this from now on, and of that no longer.
    pub(super) fn link(&mut self, stream: StreamId, before: Option<Copied>, now: Option<Copied>) {
        if before == now {
            return;
        }
        if let Some(before) = before
            && let Some(source) = self.streams.get_mut(&before.stream)
        {
            source.copies_to[before.side as usize].retain(|(one, _)| *one != stream);
            self.tell_copies(before.stream);
        }
        let to = self.streams.get(&stream).map(|running| running.local[0]);
        if let (Some(now), Some(to)) = (now, to) {
            match self.streams.get_mut(&now.stream) {
                Some(source) => source.copies_to[now.side as usize].push((stream, to)),
                None => tracing::error!(stream = stream.0, "what is to be copied is gone"),
            }
            self.tell_copies(now.stream);
        }
    }

    /// The medium of a stream is told who gets copies of it.
    pub(super) fn tell_copies(&self, stream: StreamId) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        let to = |side: Side| {
            let all = running.copies_to[side as usize].iter();
            all.map(|(_, to)| *to).collect::<Vec<SocketAddr>>()
        };
        let to = Side::BOTH.map(to);
        let _ = running.handle.command(move |medium, _| {
            if let Some(media) = medium.audio_mut() {
                for side in Side::BOTH {
                    media.set_copies(side, &to[side as usize]);
                }
            }
        });
    }
}
