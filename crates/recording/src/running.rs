//! A recording from start to end. It is a sequence of files.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use threadbare_base::{NS_PER_MS, NS_PER_S};

use threadbare_files::Failure;
use threadbare_relay::Listening;
use threadbare_rtp::call::Side;

use super::container::Container;
use super::file_table::{FileTable, Shape};
use super::gate::Gate;
use super::index::Subject;
use super::orders::{NewRecording, RecordingId, Source, WayEnd};
use super::part::Part;
use super::sound::{Coding, Sound};
use super::tracks::Tracks;
use threadbare_config::{RecordOn, RecordSpec, Tracks as TrackKind};

/// A recording.
#[derive(Debug)]
pub(super) struct Running {
    id: RecordingId,
    pub(super) of: Subject,
    side: Option<Side>,
    spec: Arc<RecordSpec>,
    tape: Tape,
    part: Option<Part>,
    pub(super) metadata: Option<String>,
    pub(super) is_lasting: bool,
    /// Time of the recording's next turn, in ns.
    pub(super) next_ns: u64,
    /// Time before which nothing is written, because of a disk failure, in ns.
    mute_until_ns: u64,
    /// `Some` if the recording must end. The value says whether its files are deleted.
    pub(super) is_stopped: Option<bool>,
    /// The failure that ends the recording.
    pub(super) error: Option<Failure>,
}

#[derive(Debug)]
enum Tape {
    Audio(Box<AudioTape>),
    Packets {
        local: [SocketAddr; 2],
        end: WayEnd,
        is_paused: bool,
        /// Number of packets that were dropped because the queue was full.
        dropped: u64,
        /// Number of packets that were dropped because too many packets waited for the disk.
        refused: u64,
    },
}

#[derive(Debug)]
struct AudioTape {
    listening: Listening,
    tracks: Tracks,
    gate: Gate,
    sound: Sound,
    /// Number of tracks in the file.
    track_count: u8,
    /// Whether both sides are mixed.
    is_mixed: bool,
    /// Only this side is recorded.
    only: Option<Side>,
    /// Duration of lost audio.
    missed_ns: u64,
}

impl Running {
    pub(super) fn new(id: RecordingId, new: NewRecording, now_ns: u64) -> Running {
        let (spec, only) = (new.spec, new.side);
        let tape = match new.source {
            Source::Audio {
                listening,
                rate_hz,
                sides,
                channels,
                law,
            } => {
                let sides = if only.is_some() { 1 } else { sides };
                let is_mixed = sides > 1 && spec.tracks == TrackKind::Mixed;
                let track_count = if is_mixed { 1 } else { sides };
                let coding = Container::coding(spec.format, rate_hz, law);
                Tape::Audio(Box::new(AudioTape {
                    listening,
                    tracks: Tracks::of(coding, rate_hz, (sides, channels), now_ns),
                    gate: Gate::new(&spec),
                    sound: Sound {
                        coding,
                        channels: channels * track_count,
                        rate_hz,
                    },
                    track_count,
                    is_mixed,
                    only,
                    missed_ns: 0,
                }))
            }
            Source::Packets { local, end } => Tape::Packets {
                local,
                end,
                is_paused: false,
                dropped: 0,
                refused: 0,
            },
        };
        Running {
            id,
            of: new.of,
            side: only,
            spec,
            tape,
            part: None,
            metadata: new.metadata,
            is_lasting: new.is_lasting,
            next_ns: now_ns,
            mute_until_ns: 0,
            is_stopped: None,
            error: None,
        }
    }

    /// Starts the first file if the recording has no condition.
    pub(super) fn begin(&mut self, table: &mut FileTable, now_ns: u64) {
        if self.spec.on == RecordOn::Always {
            let shape = self.shape(now_ns);
            self.begin_part(table, shape);
        }
    }

    fn shape(&self, first_ns: u64) -> Shape {
        match &self.tape {
            Tape::Audio(audio) => Shape {
                sound: audio.sound,
                tracks: audio.track_count,
                first_ns,
            },
            Tape::Packets { .. } => Shape {
                sound: Sound {
                    coding: Coding::Linear,
                    channels: 1,
                    rate_hz: 0,
                },
                tracks: 1,
                first_ns,
            },
        }
    }

    fn begin_part(&mut self, table: &mut FileTable, shape: Shape) {
        let metadata = self.metadata.take();
        let part = table.begin((self.id, self.side), &self.of, &self.spec, shape, metadata);
        self.part = Some(part);
    }

    fn end_part(&mut self, table: &mut FileTable) {
        if let Some(mut part) = self.part.take() {
            if let Tape::Audio(audio) = &mut self.tape {
                part.entry.missed_ms = audio.take_missed_ms(table);
            }
            table.finish(self.id, part);
        }
    }

    /// Runs a turn, which encodes the audio so far. Returns `true` if the caller must call [`flush`](Self::flush).
    pub(super) fn turn(&mut self, table: &mut FileTable, now_ns: u64) -> bool {
        if self.is_stopped.is_some() || now_ns < self.mute_until_ns {
            return false;
        }
        // If the disk is late, the audio stays in the ring.
        if !self.part.as_ref().is_some_and(Part::is_blocked) {
            self.take_until(table, now_ns.saturating_sub(DELAY_NS));
        }
        true
    }

    /// Writes the audio so far, and pauses the recording.
    pub(super) fn pause(&mut self, table: &mut FileTable, now_ns: u64) {
        match &mut self.tape {
            Tape::Packets { is_paused, .. } => *is_paused = true,
            Tape::Audio(_) => {
                self.take_until(table, now_ns);
                if let Tape::Audio(audio) = &mut self.tape {
                    audio.tracks.pause(now_ns, &mut Vec::new());
                }
            }
        }
        self.flush(table, now_ns);
    }

    /// Resumes the recording after a pause.
    pub(super) fn resume(&mut self, now_ns: u64) {
        match &mut self.tape {
            Tape::Audio(audio) => {
                // The audio of the pause is taken from the ring and skipped.
                audio.hear();
                audio.tracks.resume(now_ns);
            }
            Tape::Packets { is_paused, .. } => *is_paused = false,
        }
    }

    /// Ends the file. The recording can continue in another file.
    pub(super) fn interrupt(&mut self, table: &mut FileTable, now_ns: u64) {
        self.pause(table, now_ns);
        self.end_part(table);
    }

    /// Ends the recording.
    pub(super) fn stop(&mut self, table: &mut FileTable, discard: bool, now_ns: u64) {
        if self.is_stopped.is_some() {
            return;
        }
        self.pause(table, now_ns);
        self.is_stopped = Some(discard);
        match self.part.take() {
            Some(part) if discard => table.discard(self.id, part),
            Some(part) => {
                self.part = Some(part);
                self.end_part(table);
            }
            None => {}
        }
    }

    /// Adds a packet that a side has sent.
    pub(super) fn add_packet(
        &mut self,
        table: &mut FileTable,
        at_ns: u64,
        side: Side,
        from: SocketAddr,
        packet: &[u8],
    ) {
        let Tape::Packets {
            local,
            end,
            is_paused,
            ..
        } = &mut self.tape
        else {
            return;
        };
        end.note_taken();
        if *is_paused || self.is_stopped.is_some() {
            return;
        }
        let to = local[side as usize];
        if let Some(part) = &self.part
            && (at_ns >= part.end_ns || part.is_full())
        {
            self.end_part(table);
        }
        if self.part.is_none() && at_ns >= self.mute_until_ns {
            let shape = self.shape(at_ns);
            self.begin_part(table, shape);
        }
        if let Some(part) = &mut self.part {
            let unix_ns = table.unix_ns(at_ns);
            if !part.add_packet(unix_ns, [from, to], packet)
                && let Tape::Packets { refused, .. } = &mut self.tape
            {
                *refused += 1;
            }
        }
    }

    /// Takes the audio up to a time, and writes the frames that the gate lets through.
    fn take_until(&mut self, table: &mut FileTable, until_ns: u64) {
        let Tape::Audio(audio) = &mut self.tape else {
            return;
        };
        audio.hear();
        if audio.tracks.is_paused() {
            return;
        }
        let mut first_ns = audio.tracks.next_ns();
        let mut frames = table.rooms.take();
        audio.tracks.take(until_ns, &mut frames);
        if audio.is_mixed {
            let sound = audio.sound;
            sound.coding.mix(&mut frames, usize::from(sound.channels));
        }
        let heard: Vec<Option<u64>> = audio.tracks.heard_ns().collect();
        let (rate_hz, width) = (audio.sound.rate_hz, audio.sound.frame_bytes() as usize);
        // A late turn has much audio, of which only a part may have to be recorded.
        let keeps_until_ns = audio.gate.keeps_until_ns(until_ns, &heard);
        let kept_ns = u128::from(keeps_until_ns.saturating_sub(first_ns));
        let kept = kept_ns * u128::from(rate_hz) / u128::from(NS_PER_S) * width as u128;
        let mut kept = usize::try_from(kept)
            .unwrap_or(usize::MAX)
            .min(frames.len());
        let is_closed = kept < frames.len();
        let waited = match kept {
            0 => Vec::new(),
            _ => audio.gate.take_waiting(),
        };
        audio.gate.wait(&frames[kept..], rate_hz, width);
        if !waited.is_empty() {
            kept += waited.len();
            let before = (waited.len() / width) as u64 * NS_PER_S / u64::from(rate_hz);
            first_ns = first_ns.saturating_sub(before);
            frames.splice(0..0, waited);
        }
        frames.truncate(kept);
        self.write(table, &mut frames, first_ns);
        if is_closed {
            self.end_part(table);
        }
        table.rooms.put(frames);
    }

    /// Writes audio to the current file. When this file is full, writes the rest to further files. The contents of `frames` are undefined
    /// afterwards.
    fn write(&mut self, table: &mut FileTable, frames: &mut Vec<u8>, mut first_ns: u64) {
        let shape = self.shape(first_ns);
        let (rate_hz, width) = (
            u64::from(shape.sound.rate_hz),
            shape.sound.frame_bytes() as usize,
        );
        let mut at = 0;
        while at < frames.len() {
            if self.part.is_none() {
                self.begin_part(table, Shape { first_ns, ..shape });
            }
            let Some(part) = &mut self.part else { return };
            let there = (frames.len() - at) / width;
            let count = there.min(part.frames_from(first_ns));
            match (at, count) {
                (0, count) if count == there => return part.add_all(frames),
                (_, 0) => {}
                _ => part.add(&frames[at..at + count * width]),
            }
            at += count * width;
            first_ns += count as u64 * NS_PER_S / rate_hz;
            if count < there {
                self.end_part(table);
            }
        }
    }

    /// Passes the encoded data to the disk.
    pub(super) fn flush(&mut self, table: &mut FileTable, now_ns: u64) {
        if let Tape::Packets {
            end,
            dropped,
            refused,
            ..
        } = &mut self.tape
        {
            let all = end.dropped() + *refused;
            table.count_missed_packets(all - *dropped);
            *dropped = all;
        }
        let Some(part) = &mut self.part else { return };
        match part.flush() {
            Ok(bytes) => table.count_bytes(bytes),
            Err(failure) => self.fail(table, &failure, now_ns),
        }
    }

    /// Ends the recording after a disk failure, or pauses it for a while. The recorded call continues in both cases.
    fn fail(&mut self, table: &mut FileTable, failure: &Failure, now_ns: u64) {
        if let Some(part) = self.part.take() {
            table.cut(self.id, part, failure);
        }
        if self.is_lasting {
            self.mute_until_ns = now_ns + AGAIN_NS;
            if let Tape::Audio(audio) = &mut self.tape {
                audio.tracks.pause(now_ns, &mut Vec::new());
                audio.tracks.resume(self.mute_until_ns);
            }
        } else {
            self.is_stopped = Some(false);
            self.error = Some(failure.clone());
        }
    }

    /// Returns the total loss and its unit.
    pub(super) fn missed(&self) -> (u64, &'static str) {
        match &self.tape {
            Tape::Audio(audio) => (audio.listening.missed_ns() / NS_PER_MS, "ms"),
            Tape::Packets { dropped, .. } => (*dropped, "packets"),
        }
    }

    pub(super) fn root(&self) -> &Path {
        self.spec.to.root()
    }
}

impl AudioTape {
    fn hear(&mut self) {
        let (tracks, only) = (&mut self.tracks, self.only);
        self.listening.take_coded(|portion, heard| match only {
            None => tracks.add(portion, heard),
            Some(side) if side == portion.side => tracks.add_to(0, portion, heard),
            Some(_) => {}
        });
    }

    /// Returns the loss since the last call of this method.
    fn take_missed_ms(&mut self, table: &FileTable) -> u64 {
        let missed_ns = self.listening.missed_ns();
        let new_ms = (missed_ns - self.missed_ns) / NS_PER_MS;
        self.missed_ns = missed_ns;
        table.count_missed_ms(new_ms);
        new_ms
    }
}

/// Delay after which audio is written. Listeners get audio in portions, which a stream may delay. Audio that arrives after this delay is
/// not in the file.
const DELAY_NS: u64 = 300_000_000;
/// Time from a disk failure until the recording continues. A full disk may then have room again.
const AGAIN_NS: u64 = 10_000_000_000;
