//! Aligns the audio of a stream, or of both sides of a call, to one clock. This module has no thread and reads no clock.

use std::cell::RefCell;
use threadbare_base::NS_PER_S;

use threadbare_relay::{Portion, PortionAudio};
use threadbare_rtp::codec::Format;
use threadbare_rtp::convert::Converter;

use super::sound::Coding;

/// All channels of a file, in one coding. If a side has no audio, its channels are filled with silence.
#[derive(Debug)]
pub struct Tracks {
    coding: Coding,
    rate_hz: u32,
    /// Number of channels of each side.
    channels: u8,
    /// Time of the first frame, plus the duration of all pauses, in ns.
    start_ns: u64,
    paused_ns: Option<u64>,
    /// Time before which audio is skipped, in ns.
    deaf_until_ns: u64,
    tracks: Vec<Track>,
    /// Number of frames that were taken so far.
    taken: u64,
}

/// The audio of one side.
#[derive(Debug, Default)]
struct Track {
    converter: Option<(Format, Converter)>,
    /// Frames that were not taken yet.
    bytes: Vec<u8>,
    /// End of the last audio, in ns.
    heard_ns: Option<u64>,
}

impl Tracks {
    /// Creates tracks for both sides of a call, which start now. Each side has a channel of 16 bits. The channel of side A is the first
    /// one.
    pub fn new(rate_hz: u32, now_ns: u64) -> Tracks {
        Tracks::of(Coding::Linear, rate_hz, (2, 1), now_ns)
    }

    /// Creates tracks for at most two sides with `channels` channels each.
    pub fn of(coding: Coding, rate_hz: u32, (sides, channels): (u8, u8), now_ns: u64) -> Tracks {
        Tracks {
            coding,
            rate_hz,
            channels,
            start_ns: now_ns,
            paused_ns: None,
            deaf_until_ns: 0,
            tracks: (0..sides).map(|_| Track::default()).collect(),
            taken: 0,
        }
    }

    /// Returns the number of frames per second.
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// Returns the time at which each side was last heard, in ns.
    pub fn heard_ns(&self) -> impl Iterator<Item = Option<u64>> {
        self.tracks.iter().map(|track| track.heard_ns)
    }

    /// Returns the number of bytes of a frame of one side.
    fn own_bytes(&self) -> usize {
        usize::from(self.channels) * self.coding.sample_bytes()
    }

    /// Adds audio of a side.
    pub fn add(&mut self, portion: &Portion, heard: PortionAudio<'_>) {
        self.add_to(portion.side as usize, portion, heard);
    }

    /// Adds audio to the track at this index.
    pub fn add_to(&mut self, place: usize, portion: &Portion, heard: PortionAudio<'_>) {
        if self.paused_ns.is_some() || portion.until_ns < self.deaf_until_ns {
            return;
        }
        let target = self.frame_at(portion.until_ns);
        let slack = SLACK_NS * u64::from(self.rate_hz) / NS_PER_S;
        let own_bytes = self.own_bytes();
        let (coding, rate_hz, channels) = (self.coding, self.rate_hz, self.channels);
        let turn_bytes = TURN_MS * rate_hz as usize / 1000 * own_bytes;
        let Some(track) = self.tracks.get_mut(place) else {
            return;
        };
        track.heard_ns = Some(portion.until_ns);
        let mut converted = Vec::new();
        let Some(heard) = track.convert(portion.format, (rate_hz, channels), heard, &mut converted)
        else {
            return;
        };
        let frames = (heard.len() / usize::from(channels)) as u64;
        let end = self.taken + (track.bytes.len() / own_bytes) as u64 + frames;
        let behind = target.saturating_sub(end);
        if behind > slack {
            // Audio of this side is missing, so it is replaced by silence.
            let silence = track.bytes.len() + behind as usize * own_bytes;
            track.bytes.resize(silence, coding.silence());
        }
        let ahead = end.saturating_sub(target);
        // Audio is skipped if the side's clock is faster than the recorder's clock, or if frames of this time were already taken.
        let left_out = if ahead > slack { ahead.min(frames) } else { 0 };
        let heard = heard.behind(left_out as usize * usize::from(channels));
        let bytes = heard.len() * coding.sample_bytes();
        if track.bytes.capacity() < track.bytes.len() + bytes {
            track.take_room(bytes.max(turn_bytes));
        }
        coding.write(portion.format, heard, &mut track.bytes);
    }

    /// Takes the frames up to a time, interleaved. Audio for this time that arrives after the call is skipped.
    pub fn take(&mut self, until_ns: u64, frames: &mut Vec<u8>) {
        if self.paused_ns.is_some() {
            return;
        }
        let count = self.frame_at(until_ns).saturating_sub(self.taken) as usize;
        let own_bytes = self.own_bytes();
        let (own, silence) = (count * own_bytes, self.coding.silence());
        for track in &mut self.tracks {
            if track.bytes.len() < own {
                track.bytes.resize(own, silence);
            }
        }
        match (&self.tracks[..], own_bytes) {
            ([one], _) => frames.extend_from_slice(&one.bytes[..own]),
            ([a, b], 1) => side_by_side::<1, 2>([&a.bytes, &b.bytes], own, frames),
            ([a, b], 2) => side_by_side::<2, 4>([&a.bytes, &b.bytes], own, frames),
            (tracks, _) => {
                for at in (0..own).step_by(own_bytes) {
                    for track in tracks {
                        frames.extend_from_slice(&track.bytes[at..at + own_bytes]);
                    }
                }
            }
        }
        for track in &mut self.tracks {
            track.return_room(own);
        }
        self.taken += count as u64;
    }

    /// Returns the time of the next frame, in ns.
    pub fn next_ns(&self) -> u64 {
        let rate_hz = u64::from(self.rate_hz);
        let (seconds, rest) = (self.taken / rate_hz, self.taken % rate_hz);
        self.start_ns + seconds * NS_PER_S + rest * NS_PER_S / rate_hz
    }

    /// Takes the audio so far, and pauses the tracks.
    pub fn pause(&mut self, now_ns: u64, frames: &mut Vec<u8>) {
        if self.paused_ns.is_some() {
            return;
        }
        self.take(now_ns, frames);
        self.paused_ns = Some(now_ns);
        self.clear();
    }

    /// Whether the tracks are paused.
    pub fn is_paused(&self) -> bool {
        self.paused_ns.is_some()
    }

    /// Resumes the tracks after a pause.
    pub fn resume(&mut self, now_ns: u64) {
        if let Some(paused_ns) = self.paused_ns.take() {
            self.start_ns += now_ns.saturating_sub(paused_ns);
            self.deaf_until_ns = now_ns;
        }
    }

    /// If there is more than `most_ns` of audio before `until_ns`, skips all audio before `until_ns`. Returns the skipped time in ns.
    pub fn skip(&mut self, until_ns: u64, most_ns: u64) -> u64 {
        let behind = self.frame_at(until_ns).saturating_sub(self.taken);
        let behind_ns = behind * NS_PER_S / u64::from(self.rate_hz);
        if behind_ns <= most_ns {
            return 0;
        }
        self.start_ns += behind_ns;
        self.deaf_until_ns = until_ns;
        self.clear();
        behind_ns
    }

    fn clear(&mut self) {
        for track in &mut self.tracks {
            track.bytes.clear();
        }
    }

    fn frame_at(&self, now_ns: u64) -> u64 {
        let ns = now_ns.saturating_sub(self.start_ns);
        // Whole seconds and the rest are computed separately, because a single product would overflow after a day.
        let (seconds, rest) = (ns / NS_PER_S, ns % NS_PER_S);
        let rate_hz = u64::from(self.rate_hz);
        seconds * rate_hz + rest * rate_hz / NS_PER_S
    }
}

impl Track {
    /// Reserves this many bytes for a turn. If there is an empty buffer of another track, uses it.
    fn take_room(&mut self, bytes: usize) {
        let mut room = ROOMS.with_borrow_mut(Vec::pop).unwrap_or_default();
        room.reserve(self.bytes.len() + bytes);
        room.extend_from_slice(&self.bytes);
        self.bytes = room;
    }

    /// Returns the large buffer to the pool after `taken` bytes of it were used. The track keeps only the rest, which is a few packets. In
    /// this way, thousands of tracks use little memory between turns.
    fn return_room(&mut self, taken: usize) {
        let rest = self.bytes[taken..].to_vec();
        let mut room = std::mem::replace(&mut self.bytes, rest);
        room.clear();
        ROOMS.with_borrow_mut(|rooms| {
            if rooms.len() < ROOMS_MAX && room.capacity() <= ROOM_BYTES_MAX {
                rooms.push(room);
            }
        });
    }

    /// Converts audio to this rate and number of channels. `None`: the conversion is not possible.
    fn convert<'a>(
        &mut self,
        format: Format,
        (rate_hz, channels): (u32, u8),
        heard: PortionAudio<'a>,
        room: &'a mut Vec<i16>,
    ) -> Option<PortionAudio<'a>> {
        if (format.sample_rate_hz, format.channels) == (rate_hz, channels) {
            return Some(heard);
        }
        let is_other = self.converter.as_ref().is_none_or(|(of, _)| *of != format);
        if is_other {
            let new = Converter::new(format.sample_rate_hz, format.channels, rate_hz, channels);
            self.converter = new.ok().map(|new| (format, new));
        }
        let (_, converter) = self.converter.as_mut()?;
        heard.decode(format, room);
        let pcm = room.iter().map(|one| f32::from(*one) / FULL_SCALE);
        let mut converted = Vec::new();
        converter.process(&pcm.collect::<Vec<f32>>(), &mut converted);
        room.clear();
        // No check is needed, because the cast saturates.
        let rounded = converted
            .iter()
            .map(|one| (one * FULL_SCALE).round() as i16);
        room.extend(rounded);
        Some(PortionAudio::Samples(room))
    }
}

/// Interleaves the frames of two sides. A frame of a side has `OWN` bytes. `FRAME` is twice `OWN`.
fn side_by_side<const OWN: usize, const FRAME: usize>(
    sides: [&[u8]; 2],
    bytes: usize,
    frames: &mut Vec<u8>,
) {
    let begin = frames.len();
    frames.resize(begin + 2 * bytes, 0);
    let (room, _) = frames[begin..].as_chunks_mut::<FRAME>();
    let [(a, _), (b, _)] = sides.map(|side| side.as_chunks::<OWN>());
    for ((frame, a), b) in room.iter_mut().zip(a).zip(b) {
        frame[..OWN].copy_from_slice(a);
        frame[OWN..].copy_from_slice(b);
    }
}

thread_local! {
    /// Pool of empty buffers for turns.
    static ROOMS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}
/// Maximum number of pooled buffers. Both sides of a call have their turn together.
const ROOMS_MAX: usize = 2;
/// Maximum size of a pooled buffer. It is a turn of eight channels at 48 kHz. Larger buffers are rare, and are freed.
const ROOM_BYTES_MAX: usize = 1 << 19;
/// Usual time between two calls of `take`, in ms.
const TURN_MS: usize = 640;
/// Maximum offset of a channel that is not corrected. It allows for slices of 20 ms and for the delay of the jitter buffer.
const SLACK_NS: u64 = 60_000_000;
const FULL_SCALE: f32 = 32_768.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// This test adds no audio. Whether audio has the right position in time is checked by the tests of recorded calls.
    #[test]
    fn pauses_and_skipped_audio_take_no_time() {
        let mut tracks = Tracks::new(8000, NS_PER_S);
        let mut frames = Vec::new();
        let mut len_at = |tracks: &mut Tracks, ms: u64| {
            tracks.take(NS_PER_S + ms * 1_000_000, &mut frames);
            frames.len() / 4
        };
        assert_eq!(len_at(&mut tracks, 10), 80);
        tracks.pause(NS_PER_S + 10_000_000, &mut Vec::new());
        assert_eq!(len_at(&mut tracks, 500), 80);
        tracks.resume(NS_PER_S + 1_010_000_000);
        assert_eq!(len_at(&mut tracks, 1020), 160);
        let late_ns = NS_PER_S + 3_020_000_000;
        assert_eq!(tracks.skip(late_ns, 2 * NS_PER_S), 0);
        assert_eq!(
            tracks.skip(late_ns + 1_000_000, 2 * NS_PER_S),
            2_001_000_000
        );
        assert_eq!(len_at(&mut tracks, 3021), 160);
        assert_eq!(len_at(&mut tracks, 3031), 240);
    }

    #[test]
    fn each_frame_has_the_samples_of_both_sides() {
        let mut frames = Vec::new();
        side_by_side::<1, 2>([&[1, 2, 3, 9], &[4, 5, 6]], 3, &mut frames);
        assert_eq!(frames, [1, 4, 2, 5, 3, 6]);
        side_by_side::<2, 4>([&[1, 2, 3, 4], &[5, 6, 7, 8]], 4, &mut frames);
        assert_eq!(frames[6..], [1, 2, 5, 6, 3, 4, 7, 8]);
    }
}
