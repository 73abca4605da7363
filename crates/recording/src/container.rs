//! The structure of a file in any format: a header, the audio or packets, and an end. This module produces bytes, and uses no file or
//! clock.

use std::net::SocketAddr;

use super::sound::{Coding, Sound};
use super::wav::Notes;
use super::{mka, pcap, wav};
use threadbare_config::RecordingFormat;

/// A growing file.
#[derive(Debug)]
pub(super) struct Container {
    kind: Kind,
    sound: Sound,
    pub(super) notes: Notes,
    /// Number of frames so far.
    frames: u64,
    /// Number of bytes after the header.
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Wav,
    Mka { tracks: u8 },
    Pcap,
}

impl Container {
    /// Creates an empty file. `tracks` is the number of parties that have their own tracks.
    pub(super) fn new(
        format: RecordingFormat,
        sound: Sound,
        tracks: u8,
        notes: Notes,
    ) -> Container {
        Container {
            kind: match format {
                RecordingFormat::Wav | RecordingFormat::WavG711 => Kind::Wav,
                RecordingFormat::Mka | RecordingFormat::MkaG711 => Kind::Mka { tracks },
                RecordingFormat::Pcap => Kind::Pcap,
            },
            sound,
            notes,
            frames: 0,
            bytes: 0,
        }
    }

    /// Returns the coding that a file of this format has for audio of this rate.
    pub(super) fn coding(format: RecordingFormat, rate_hz: u32, law: Coding) -> Coding {
        match format {
            RecordingFormat::WavG711 | RecordingFormat::MkaG711 if rate_hz == G711_HZ => law,
            _ => Coding::Linear,
        }
    }

    /// Returns the current header. Its length is constant.
    pub(super) fn head(&self, is_end: bool) -> Vec<u8> {
        match self.kind {
            Kind::Wav => wav::head(self.sound, &self.notes, self.bytes),
            Kind::Mka { tracks } => {
                let end = is_end.then_some((self.frames, self.bytes));
                mka::head(self.sound, tracks, &self.notes, end)
            }
            Kind::Pcap => pcap::head(),
        }
    }

    /// Returns the header that the file will have after `bytes` more bytes.
    pub(super) fn head_ahead(&self, bytes: u64) -> Vec<u8> {
        wav::head(self.sound, &self.notes, self.bytes.saturating_add(bytes))
    }

    /// Returns the number of bytes that this much audio takes.
    pub(super) fn bytes_in(&self, seconds: u64) -> u64 {
        seconds * u64::from(self.sound.rate_hz) * u64::from(self.sound.frame_bytes())
    }

    /// Whether the header contains the size. If such a file has been cut off, players read it only up to that size.
    pub(super) fn has_size_in_head(&self) -> bool {
        self.kind == Kind::Wav
    }

    /// Adds whole frames in the coding of the file.
    pub(super) fn add(&mut self, frames: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        match self.kind {
            Kind::Wav => out.extend_from_slice(frames),
            Kind::Mka { tracks } => mka::cluster(self.sound, tracks, self.frames, frames, out),
            Kind::Pcap => return,
        }
        self.count(frames, out.len() - begin);
    }

    /// Returns `true` if the format needs no framing. In that case, counts the frames, which the caller must write itself.
    pub(super) fn add_as_it_is(&mut self, frames: &[u8]) -> bool {
        let is_wav = self.kind == Kind::Wav;
        if is_wav {
            self.count(frames, frames.len());
        }
        is_wav
    }

    fn count(&mut self, frames: &[u8], bytes: usize) {
        self.frames += frames.len() as u64 / u64::from(self.sound.frame_bytes());
        self.bytes += bytes as u64;
    }

    /// Adds one packet.
    pub(super) fn add_packet(
        &mut self,
        unix_ns: u64,
        [from, to]: [SocketAddr; 2],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        let begin = out.len();
        pcap::add(unix_ns, from, to, payload, out);
        self.bytes += (out.len() - begin) as u64;
    }

    /// Returns the end of the file, which follows all audio.
    pub(super) fn end(&self) -> &'static [u8] {
        match self.kind {
            Kind::Wav if self.bytes % 2 == 1 => &[0],
            _ => &[],
        }
    }

    /// Returns the number of frames that still fit if the file may have at most this many bytes.
    pub(super) fn room_frames(&self, bytes_max: Option<u64>) -> u64 {
        let allowed = match self.kind {
            Kind::Wav => bytes_max.unwrap_or(u64::MAX).min(wav::DATA_BYTES_MAX),
            _ => bytes_max.unwrap_or(u64::MAX),
        };
        let left = allowed.saturating_sub(self.bytes + wav::HEAD_BYTES_MAX as u64);
        left / u64::from(self.sound.frame_bytes())
    }

    /// Returns the number of bytes after the header.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the duration of the audio in ms.
    pub(super) fn duration_ms(&self) -> u64 {
        self.frames * 1000 / u64::from(self.sound.rate_hz)
    }

    /// Takes over a file that was cut off, up to its last complete part. `length` is the number of bytes after the header. `peek` returns
    /// 16 of these bytes from a position on, padded with zeros.
    pub(super) fn take_over(&mut self, length: u64, peek: &dyn Fn(u64) -> [u8; 16]) {
        match self.kind {
            Kind::Wav => {
                let frame_bytes = u64::from(self.sound.frame_bytes());
                self.frames = length.min(wav::DATA_BYTES_MAX) / frame_bytes;
                self.bytes = self.frames * frame_bytes;
            }
            Kind::Mka { tracks } => {
                (self.bytes, self.frames) = mka::whole(self.sound, tracks, length, peek);
            }
            Kind::Pcap => self.bytes = pcap::whole(length, peek),
        }
    }
}

/// Sample rate of G.711 (ITU-T G.711).
const G711_HZ: u32 = 8000;

#[cfg(test)]
pub(super) mod tests {
    /// Returns a function that reads from bytes as from a file.
    pub(in super::super) fn peeks(bytes: &[u8]) -> impl Fn(u64) -> [u8; 16] {
        move |at| {
            let mut room = [0; 16];
            let there = &bytes[bytes.len().min(at as usize)..];
            for (place, byte) in room.iter_mut().zip(there) {
                *place = *byte;
            }
            room
        }
    }
}
