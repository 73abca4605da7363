//! Forwards codes unchanged or converted by table, packet by packet or in packets of another length.

use super::{Direction, Route};
use crate::call::Mode;
use crate::call::out::{Out, Work};
use crate::codec::{Encoding, Format};
use crate::g711;
use crate::id::NS_PER_S;
use crate::leg::{Carries, MediaPacket, Payload};

impl Direction {
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

/// The byte of silence.
pub(super) fn silence_of(encoding: Encoding) -> Option<u8> {
    match encoding {
        Encoding::Pcmu => Some(g711::linear_to_ulaw(0)),
        Encoding::Pcma => Some(g711::linear_to_alaw(0)),
        Encoding::L16 | Encoding::L24 => Some(0),
        Encoding::G722 | Encoding::Opus => None,
    }
}

pub(super) fn table_of(from: Format, to: Format) -> Option<&'static [u8; 256]> {
    let is_alike = from.sample_rate_hz == to.sample_rate_hz && from.channels == to.channels;
    match (from.encoding, to.encoding) {
        (Encoding::Pcmu, Encoding::Pcma) if is_alike => Some(&g711::ULAW_TO_ALAW),
        (Encoding::Pcma, Encoding::Pcmu) if is_alike => Some(&g711::ALAW_TO_ULAW),
        _ => None,
    }
}
