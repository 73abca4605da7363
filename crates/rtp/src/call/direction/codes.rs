//! Forwards codes, unchanged or converted by table, either packet by packet or in packets of another length.
//!
//! Codes that are forwarded are not decoded. But concealing a loss needs samples: those before the loss, which the history has as codes,
//! the concealment itself, and the next packet, which is joined to it.

use super::output::Output;
use super::route::{Route, silence_of};
use super::units_of;
use crate::call::Mode;
use crate::call::concealers::{Concealer, Concealers};
use crate::call::out::{Out, Work};
use crate::codec::{Encoding, Format};
use crate::id::NS_PER_S;
use crate::leg::{Carries, Lost, MediaPacket, Payload};

impl Output {
    /// Forwards a packet unchanged or converted by table.
    #[inline]
    pub(super) fn pass(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Route::Pass { to, table } = self.route else {
            return;
        };
        let units = units_of(payload, packet.bytes);
        let from_hz = payload.clock_rate_hz;
        let time = self
            .map
            .map(packet.time, packet.play_ns, from_hz, to.clock_rate_hz);
        if self.gaps.is_some() {
            self.join(packet.bytes, work, out.begin());
        } else {
            write_codes(packet.bytes, table, self.mode, &to, out.begin());
        }
        if table.is_some() || self.mends_all {
            self.history.add(packet.bytes);
        }
        if out.is_late() {
            return out.send(&to, time, false, 0);
        }
        out.send(&to, time, std::mem::take(&mut self.is_after_pause), 0);
        self.map.note_sent(time, units, packet.play_ns);
    }

    pub(super) fn by_codes(
        &self,
        to: Payload,
        format: Format,
        table: Option<&'static [u8; 256]>,
    ) -> Route {
        let us = (self.config.packet_ns / 1000) as u32;
        let whole = match us {
            0 => None,
            us => format.frames_per_packet(us).ok().and_then(|frames| {
                Some((
                    format.payload_bytes(frames)?,
                    format.clock_units(frames as u32),
                ))
            }),
        };
        match whole {
            Some((whole, units)) if units > 0 => Route::Repack {
                to,
                table,
                whole,
                unit_bytes: whole / units as usize,
            },
            _ => Route::Pass { to, table },
        }
    }

    /// Forwards codes in packets of another length.
    pub(super) fn repack(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Route::Repack {
            to,
            table,
            whole,
            unit_bytes,
        } = self.route
        else {
            return;
        };
        let rate_hz = payload.clock_rate_hz;
        let time = self
            .map
            .map(packet.time, packet.play_ns, rate_hz, to.clock_rate_hz);
        let gathered = (self.bytes.len() / unit_bytes.max(1)) as u32;
        if !self.bytes.is_empty() && self.bytes_time.plus(gathered) != time {
            self.flush(out);
        }
        if self.bytes.is_empty() {
            (self.bytes_time, self.bytes_play_ns) = (time, packet.play_ns);
        }
        if self.gaps.is_some() {
            let mut bytes = std::mem::take(&mut self.bytes);
            self.join(packet.bytes, work, &mut bytes);
            self.bytes = bytes;
        } else {
            write_codes(packet.bytes, table, self.mode, &to, &mut self.bytes);
        }
        self.history.add(packet.bytes);
        self.send_whole(&to, whole, unit_bytes, out);
    }

    /// Sends all whole packets of the gathered codes.
    pub(super) fn send_whole(
        &mut self,
        to: &Payload,
        whole: usize,
        unit_bytes: usize,
        out: &mut Out<'_>,
    ) {
        let mut sent = 0;
        while self.bytes.len() - sent >= whole {
            self.send_bytes(sent..sent + whole, to, unit_bytes, out);
            sent += whole;
        }
        self.bytes.drain(..sent);
    }

    pub(super) fn send_bytes(
        &mut self,
        range: std::ops::Range<usize>,
        to: &Payload,
        unit_bytes: usize,
        out: &mut Out<'_>,
    ) {
        let units = (range.len() / unit_bytes.max(1)) as u32;
        out.begin().extend_from_slice(&self.bytes[range]);
        let time = self.bytes_time;
        out.send(to, time, std::mem::take(&mut self.is_after_pause), 0);
        self.map.note_sent(time, units, self.bytes_play_ns);
        self.bytes_time = time.plus(units);
        self.bytes_play_ns += u64::from(units) * NS_PER_S / u64::from(to.clock_rate_hz);
    }

    /// Conceals a loss of codes with at most `made_ns` of audio.
    pub(super) fn conceal(
        &mut self,
        loss: &Lost<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let to = match self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => to,
            Route::Reencode(_) | Route::Nowhere => return,
        };
        // Conceal only up to the start of the next packet, and never over audio that was sent already, such as the tone of a digit.
        let rate_hz = to.clock_rate_hz;
        let lost = self.map.map(loss.time, loss.play_ns, rate_hz, rate_hz);
        let time = self.map.not_before_end(lost);
        let lost_units = loss.duration_ns * u64::from(rate_hz) / NS_PER_S;
        let units = lost_units.saturating_sub(time.distance_from(lost).unsigned_abs());
        let made_ns = made_ns.min(units * NS_PER_S / u64::from(rate_hz));
        let Work {
            concealers,
            decoded,
            ..
        } = work;
        let Some(concealer) = self.concealer(&to, concealers) else {
            return;
        };
        let format = concealer.from;
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        if frames == 0 {
            return;
        }
        concealer.resume(&self.history, self.gaps.as_ref(), decoded);
        concealer.decoder.conceal(frames, decoded);
        self.gaps = Some(concealer.decoder.gaps());
        if self.mode == Mode::Mute {
            decoded.fill(0.0);
        }
        if self.bytes.is_empty() {
            (self.bytes_time, self.bytes_play_ns) = (time, loss.play_ns);
        }
        // `encode_any` also accepts lengths that are not allowed for a packet. In these codecs, each frame has its own bytes.
        let _ = concealer.encoder.encode_any(decoded, &mut self.bytes);
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

    /// Returns the cost of concealing a loss, in units of [`SPARE_UNIT_NS`](crate::call::SPARE_UNIT_NS). An Opus frame takes 50 to 130 µs,
    /// as measured.
    pub(super) fn loss_units(&self, is_quiet: bool) -> u32 {
        let is_opus = |format: Format| format.encoding == Encoding::Opus;
        let of_route = match &self.route {
            Route::Nowhere | Route::Pass { table: None, .. } => 0,
            Route::Pass { .. } | Route::Repack { .. } => u32::from(!is_quiet),
            Route::Reencode(_) if is_quiet => 0,
            Route::Reencode(reencode) => {
                let voice = self.voice.as_ref().map(|voice| voice.format);
                if is_opus(reencode.decoder.format()) || voice.is_some_and(is_opus) {
                    OPUS_UNITS
                } else {
                    2
                }
            }
        };
        of_route + u32::from(self.tap.is_some())
    }

    /// Adds the concealment of a loss to the audio of the listeners, if the far side conceals the loss itself.
    #[cold]
    pub(super) fn hear_sent_loss(&mut self, made_ns: u64, work: &mut Work) {
        if self.tap.is_none() {
            return;
        }
        if work.spend(1) {
            self.conceal_tapped(made_ns);
        } else {
            self.silence_tapped(made_ns);
        }
    }

    /// Leaves a loss to the far side, which sees a gap, because there is no time to conceal it here. Tapped audio keeps its timing.
    #[cold]
    pub(super) fn leave_to_far_side(
        &mut self,
        loss: &Lost<'_>,
        made_ns: u64,
        is_quiet: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.silence_tapped(made_ns);
        if is_quiet {
            return;
        }
        self.stats.left_to_conceal += u64::from(loss.packets);
        let packet_ns = match (&self.route, &self.voice) {
            (Route::Nowhere, _) => return,
            (Route::Reencode(_), Some(voice)) => voice.packet_ns(),
            (Route::Repack { .. }, _) => self.config.packet_ns,
            _ => self.packet_ns,
        };
        if made_ns < packet_ns && self.fall_silent(loss, made_ns, work, out) {
            return; // the gap is within a packet that is sent anyway
        }
        let packets = match self.route {
            Route::Pass { .. } => loss.packets,
            _ => (made_ns / packet_ns.max(1)).max(1) as u32,
        };
        self.flush(out);
        self.cut();
        self.gaps = None;
        out.leg.skip(packets);
    }

    fn concealer<'a>(
        &self,
        to: &Payload,
        concealers: &'a mut Concealers,
    ) -> Option<&'a mut Concealer> {
        let (Carries::Audio(to), Some(from)) = (to.carries, self.from) else {
            return None;
        };
        concealers.of(from, to)
    }

    /// Joins the start of the packet after a loss to the concealment.
    #[cold]
    pub(super) fn join(&mut self, codes: &[u8], work: &mut Work, bytes: &mut Vec<u8>) {
        let (Some(gaps), Route::Pass { to, table } | Route::Repack { to, table, .. }) =
            (self.gaps.take(), &self.route)
        else {
            return;
        };
        let Work {
            concealers,
            decoded,
            ..
        } = work;
        let is_joined = self.mode != Mode::Mute
            && self.concealer(to, concealers).is_some_and(|concealer| {
                concealer.resume(&self.history, Some(&gaps), decoded);
                concealer.decoder.decode(codes, decoded).is_ok()
                    && concealer.encoder.encode_any(decoded, bytes).is_ok()
            });
        if !is_joined {
            write_codes(codes, *table, self.mode, to, bytes);
        }
    }
}

/// Appends the codes unchanged, converted by table, or as silence of the same length.
#[inline]
pub(super) fn write_codes(
    codes: &[u8],
    table: Option<&'static [u8; 256]>,
    mode: Mode,
    to: &Payload,
    out: &mut Vec<u8>,
) {
    if mode == Mode::Mute
        && let Carries::Audio(format) = to.carries
        && let Some(silence) = silence_of(format.encoding)
    {
        return out.resize(out.len() + codes.len(), silence);
    }
    match table {
        Some(table) => out.extend(codes.iter().map(|code| table[usize::from(*code)])),
        None => out.extend_from_slice(codes),
    }
}

/// Returns the number of bytes per timestamp unit.
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

/// Cost of concealing an Opus loss: see [`Output::loss_units`].
const OPUS_UNITS: u32 = 20;
