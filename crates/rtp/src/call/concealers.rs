//! Codecs that conceal losses in codes that were converted by table. All directions of a thread share them.

use crate::codec::{Decoder, Encoder, EncoderSettings, Encoding, Format, Gaps};

/// The last codes, before conversion. They are kept for every stream, but read only after a loss. So adding codes only copies them.
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

    /// Returns the address of the next codes, for prefetching.
    pub(super) fn next_address(&self) -> usize {
        self.0.as_ptr() as usize + self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Codecs that conceal losses, for all directions of a thread. A direction itself keeps only its position within a gap.
#[derive(Debug, Default)]
pub(super) struct Concealers {
    all: Vec<Concealer>,
    /// Index of the entry that is replaced next.
    oldest: usize,
}

#[derive(Debug)]
pub(super) struct Concealer {
    pub(super) from: Format,
    to: Format,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    /// The encoder's output for the history.
    encoded: Vec<u8>,
}

impl Concealers {
    pub(super) fn of(&mut self, from: Format, to: Format) -> Option<&mut Concealer> {
        let fits = |concealer: &Concealer| (concealer.from, concealer.to) == (from, to);
        if let Some(at) = self.all.iter().position(fits) {
            return self.all.get_mut(at);
        }
        let concealer = Concealer {
            from,
            to,
            decoder: Decoder::new(from).ok()?,
            encoder: Encoder::new(to, &EncoderSettings::default()).ok()?,
            encoded: Vec::new(),
        };
        if self.all.len() < CONCEALERS_MAX {
            self.all.push(concealer);
            return self.all.last_mut();
        }
        let at = self.oldest;
        self.oldest = (at + 1) % CONCEALERS_MAX;
        self.all[at] = concealer;
        self.all.get_mut(at)
    }
}

impl Concealer {
    /// Brings both codecs to the state of a direction, after the audio that the far side has received. `room` is working memory.
    pub(super) fn resume(&mut self, history: &History, gaps: Option<&Gaps>, room: &mut Vec<f32>) {
        self.decoder.reset();
        self.encoder.reset();
        room.clear();
        let frame_bytes = self.from.payload_bytes(1).unwrap_or(1).max(1);
        let odd = history.0.len() % frame_bytes;
        // These codes were forwarded, so they can normally be decoded. Codes that cannot be decoded are left out of the concealment.
        let _ = self.decoder.decode(&history.0[odd..], room);
        if self.to.encoding == Encoding::G722 {
            // The far side's decoder has adapted to the audio that it has received.
            self.encoded.clear();
            let _ = self.encoder.encode_any(room, &mut self.encoded);
        }
        if let Some(gaps) = gaps {
            self.decoder.resume(gaps);
        }
        room.clear();
    }
}

/// Length of the history that is used for concealment. It is 50 ms of G.711, and less of wideband audio.
const HISTORY_BYTES: usize = 400;
/// Length at which the history is trimmed. The codes then move only once for several packets.
const HISTORY_BYTES_MAX: usize = 1_200;
/// Maximum number of pairs of formats that the directions of a thread convert or repack. Most of them are pairs of G.711. Beyond it, the
/// oldest pair is replaced.
const CONCEALERS_MAX: usize = 8;
