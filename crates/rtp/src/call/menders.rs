//! What losses of converted codes are mended with: codecs that all lines of a thread share.

use crate::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format, Gaps};

/// The last codes, unconverted. Kept for every stream and read only after a loss, so adding to it is only a copy.
#[derive(Debug, Default)]
pub(super) struct History(Vec<u8>);

impl History {
    #[inline]
    pub(super) fn add(&mut self, codes: &[u8]) {
        if self.0.len() + codes.len() > HISTORY_BYTES_MAX {
            let newest = self.0.len().saturating_sub(HISTORY_BYTES);
            self.0.drain(..newest);
        }
        self.0
            .extend_from_slice(&codes[codes.len().saturating_sub(HISTORY_BYTES)..]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the next codes go, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        self.0.as_ptr() as usize + self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Codecs that mend losses, for all lines of a thread: a line keeps only where it is in its gap.
#[derive(Debug, Default)]
pub(super) struct Menders {
    all: Vec<Mender>,
    /// Replaced next.
    oldest: usize,
}

#[derive(Debug)]
pub(super) struct Mender {
    pub(super) from: Format,
    to: Format,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    /// What the encoder makes of the history.
    heard: Vec<u8>,
}

impl Menders {
    pub(super) fn of(&mut self, from: Format, to: Format) -> Option<&mut Mender> {
        let fits = |mender: &Mender| (mender.from, mender.to) == (from, to);
        if let Some(at) = self.all.iter().position(fits) {
            return self.all.get_mut(at);
        }
        let mender = Mender {
            from,
            to,
            decoder: Decoder::new(from).ok()?,
            encoder: Encoder::new(to, &EncoderSettings::default()).ok()?,
            heard: Vec::new(),
        };
        if self.all.len() < MENDERS_MAX {
            self.all.push(mender);
            return self.all.last_mut();
        }
        let at = self.oldest;
        self.oldest = (at + 1) % MENDERS_MAX;
        self.all[at] = mender;
        self.all.get_mut(at)
    }
}

impl Mender {
    /// Brings both codecs to where a line is: behind what the far side has heard of it. `room` is for work.
    pub(super) fn resume(&mut self, history: &History, gaps: Option<&Gaps>, room: &mut Vec<f32>) {
        self.decoder.reset();
        self.encoder.reset();
        room.clear();
        let frame_bytes = self.from.payload_bytes(1).unwrap_or(1).max(1);
        let odd = history.0.len() % frame_bytes;
        // It was sent on, so it can be decoded; nothing is repeated of what cannot.
        let _ = self.decoder.decode(&history.0[odd..], room);
        if self.to.encoding == Encoding::G722 {
            // The far side's decoder has adapted to what it has heard.
            self.heard.clear();
            let _ = self.encoder.encode_any(room, &mut self.heard);
        }
        if let Some(gaps) = gaps {
            self.decoder.resume(gaps);
        }
        room.clear();
    }
}

/// What concealment looks at: 50 ms of G.711, less of wider audio.
const HISTORY_BYTES: usize = 400;
/// Drained when it is this long: one move of memory for several packets.
const HISTORY_BYTES_MAX: usize = 1_200;
/// Pairs of formats, G.711's first of all, that lines of a thread convert or repack. Beyond that, the oldest is made anew.
const MENDERS_MAX: usize = 8;
