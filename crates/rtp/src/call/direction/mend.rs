//! What stands in for lost codes that would have gone on by table, or into packets of another length.
//!
//! Codes are not decoded on their way. Only a loss needs samples: those before it, which the history still has as codes, what
//! stands in for it, and the packet behind it, which joins on.

use super::codes::write_codes;
use super::{Direction, Loss, Route};
use crate::call::Mode;
use crate::call::out::{Out, Work};
use crate::codec::{Decoder, Encoder, EncoderSettings, Format};
use crate::id::NS_PER_S;
use crate::leg::{Carries, Payload};

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

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// From a loss to the packet behind it.
#[derive(Debug)]
pub(super) struct Mending {
    decoder: Decoder,
    encoder: Encoder,
}

impl Direction {
    /// Makes up for lost codes, with at most `made_ns` of audio.
    pub(super) fn mend(
        &mut self,
        loss: &Loss<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let to = match self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => to,
            Route::Anew(_) | Route::Nowhere => return,
        };
        // Up to where the next packet begins, and not over what was sent already: a key's tone.
        let rate_hz = to.clock_rate_hz;
        let lost = self.map.map(loss.time, loss.play_ns, rate_hz, rate_hz);
        let time = self.map.not_before_end(lost);
        let lost_units = loss.duration_ns * u64::from(rate_hz) / NS_PER_S;
        let units = lost_units.saturating_sub(time.distance_from(lost).unsigned_abs());
        let made_ns = made_ns.min(units * NS_PER_S / u64::from(rate_hz));
        let Some(mut mending) = self.mending_of(&to, work) else {
            return;
        };
        let format = mending.decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        if frames == 0 {
            self.mending = Some(mending);
            return;
        }
        work.decoded.clear();
        mending.decoder.conceal(frames, &mut work.decoded);
        if self.mode == Mode::Mute {
            work.decoded.fill(0.0);
        }
        if self.bytes.is_empty() {
            (self.bytes_time, self.bytes_play_ns) = (time, loss.play_ns);
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        // The lengths that a packet cannot have are none here: each frame has its bytes.
        let _ = mending.encoder.encode_any(&work.decoded, &mut bytes);
        self.bytes = bytes;
        self.mending = Some(mending);
        self.budget_ns -= made_ns;
        self.stats.concealed_ns += made_ns;
        let unit_bytes = unit_bytes_of(&to);
        let whole = match self.route {
            Route::Repack { whole, .. } => whole,
            _ => (self.packet_ns * u64::from(rate_hz) / NS_PER_S) as usize * unit_bytes,
        };
        self.send_whole(&to, whole.max(1), unit_bytes, out);
        if matches!(self.route, Route::Pass { .. }) && !self.bytes.is_empty() {
            self.send_bytes(0..self.bytes.len(), &to, unit_bytes, out);
            self.bytes.clear();
        }
    }

    /// With the samples before the loss in it.
    fn mending_of(&mut self, to: &Payload, work: &mut Work) -> Option<Box<Mending>> {
        if let Some(mending) = self.mending.take() {
            return Some(mending);
        }
        let (Carries::Audio(to), Some(from)) = (to.carries, self.from) else {
            return None;
        };
        let mut decoder = Decoder::new(from).ok()?;
        work.decoded.clear();
        let frame_bytes = from.payload_bytes(1).unwrap_or(1).max(1);
        let odd = self.history.0.len() % frame_bytes;
        if self.history.0.len() > odd {
            decoder
                .decode(&self.history.0[odd..], &mut work.decoded)
                .ok()?;
        }
        let encoder = Encoder::new(to, &EncoderSettings::default()).ok()?;
        Some(Box::new(Mending { decoder, encoder }))
    }

    /// The packet behind a loss, its beginning joined on to what stood in for it.
    #[cold]
    pub(super) fn join(&mut self, codes: &[u8], work: &mut Work, bytes: &mut Vec<u8>) {
        let Some(mut mending) = self.mending.take() else {
            return;
        };
        work.decoded.clear();
        let is_joined = mending.decoder.decode(codes, &mut work.decoded).is_ok()
            && self.mode != Mode::Mute
            && mending.encoder.encode_any(&work.decoded, bytes).is_ok();
        if !is_joined
            && let Route::Pass { to, table } | Route::Repack { to, table, .. } = &self.route
        {
            write_codes(codes, *table, self.mode, to, bytes);
        }
    }
}

/// Bytes of a unit of the timestamps.
fn unit_bytes_of(to: &Payload) -> usize {
    let bytes = |format: Format| {
        let frames = (format.sample_rate_hz / format.clock_rate_hz).max(1);
        format.payload_bytes(frames as usize)
    };
    match to.carries {
        Carries::Audio(format) => bytes(format).unwrap_or(1).max(1),
        _ => 1,
    }
}

/// What concealment looks at: 50 ms of G.711, less of wider audio.
const HISTORY_BYTES: usize = 400;
/// Drained when it is this long: one move of memory for several packets.
const HISTORY_BYTES_MAX: usize = 1_200;
