//! What is heard of a stream, or of both sides of a call, on one clock. No thread, no clock of its own.

use threadbare_relay::Portion;
use threadbare_rtp::codec::Format;
use threadbare_rtp::convert::Converter;

/// All channels. Where a side is silent, so are its channels.
#[derive(Debug)]
pub struct Tracks {
    rate_hz: u32,
    /// Of each side.
    channels: u8,
    /// The time of the first frame, pauses taken out, ns.
    start_ns: u64,
    paused_ns: Option<u64>,
    /// What was heard before is left out, ns.
    deaf_until_ns: u64,
    tracks: Vec<Track>,
    /// Frames that were taken.
    taken: u64,
}

/// What one side said.
#[derive(Debug, Default)]
struct Track {
    converter: Option<(Format, Converter)>,
    /// Interleaved, behind what was taken.
    samples: Vec<i16>,
    /// The end of what was heard last, ns.
    heard_ns: Option<u64>,
}

impl Tracks {
    /// Both sides of a call, a channel each, A's first. They begin now.
    pub fn new(rate_hz: u32, now_ns: u64) -> Tracks {
        Tracks::of(rate_hz, 2, 1, now_ns)
    }

    /// So many sides, two at most, with so many channels each.
    pub fn of(rate_hz: u32, sides: u8, channels: u8, now_ns: u64) -> Tracks {
        Tracks {
            rate_hz,
            channels,
            start_ns: now_ns,
            paused_ns: None,
            deaf_until_ns: 0,
            tracks: (0..sides).map(|_| Track::default()).collect(),
            taken: 0,
        }
    }

    /// Frames in a second.
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// When each side was heard last, ns.
    pub fn heard_ns(&self) -> impl Iterator<Item = Option<u64>> {
        self.tracks.iter().map(|track| track.heard_ns)
    }

    /// Samples in a frame of all sides.
    pub fn width(&self) -> usize {
        self.tracks.len() * usize::from(self.channels)
    }

    /// What a side said.
    pub fn add(&mut self, portion: &Portion, samples: &[i16]) {
        self.add_to(portion.side as usize, portion, samples);
    }

    /// The same, to the track of this place.
    pub fn add_to(&mut self, place: usize, portion: &Portion, samples: &[i16]) {
        if self.paused_ns.is_some() || portion.until_ns < self.deaf_until_ns {
            return;
        }
        let target = self.frame_at(portion.until_ns);
        let slack = SLACK_NS * u64::from(self.rate_hz) / NS_PER_S;
        let (rate_hz, channels, taken) = (self.rate_hz, self.channels, self.taken);
        let Some(track) = self.tracks.get_mut(place) else {
            return;
        };
        track.heard_ns = Some(portion.until_ns);
        let mut converted = Vec::new();
        let Some(samples) =
            track.convert(portion.format, (rate_hz, channels), samples, &mut converted)
        else {
            return;
        };
        let width = usize::from(channels);
        let frames = (samples.len() / width) as u64;
        let end = taken + (track.samples.len() / width) as u64 + frames;
        let behind = target.saturating_sub(end);
        if behind > slack {
            // The side was silent.
            let silence = track.samples.len() + behind as usize * width;
            track.samples.resize(silence, 0);
        }
        let ahead = end.saturating_sub(target);
        // Its clock is faster than ours, or what comes was taken already.
        let left_out = if ahead > slack { ahead.min(frames) } else { 0 };
        track
            .samples
            .extend_from_slice(&samples[left_out as usize * width..]);
    }

    /// Takes the frames until a time, interleaved: what comes later for it is left out.
    pub fn take(&mut self, until_ns: u64, frames: &mut Vec<i16>) {
        if self.paused_ns.is_some() {
            return;
        }
        let count = self.frame_at(until_ns).saturating_sub(self.taken) as usize;
        let (width, own) = (self.width(), usize::from(self.channels));
        let begin = frames.len();
        frames.resize(begin + count * width, 0);
        for (side, track) in self.tracks.iter_mut().enumerate() {
            // The rest is a few packets.
            let there = (count * own).min(track.samples.len());
            let samples = &track.samples[..there];
            match own {
                1 => {
                    let places = frames[begin..].iter_mut().skip(side).step_by(width);
                    places
                        .zip(samples)
                        .for_each(|(place, sample)| *place = *sample);
                }
                _ => {
                    let room = frames[begin..].chunks_exact_mut(width);
                    for (frame, samples) in room.zip(samples.chunks_exact(own)) {
                        frame[side * own..(side + 1) * own].copy_from_slice(samples);
                    }
                }
            }
            track.samples.drain(..there);
        }
        self.taken += count as u64;
    }

    /// The time of the next frame that is taken, ns.
    pub fn next_ns(&self) -> u64 {
        let ns = u128::from(self.taken) * u128::from(NS_PER_S) / u128::from(self.rate_hz);
        self.start_ns + ns as u64
    }

    /// Takes what there is: what comes is left out.
    pub fn pause(&mut self, now_ns: u64, frames: &mut Vec<i16>) {
        if self.paused_ns.is_some() {
            return;
        }
        self.take(now_ns, frames);
        self.paused_ns = Some(now_ns);
        self.clear();
    }

    /// Whether it pauses.
    pub fn is_paused(&self) -> bool {
        self.paused_ns.is_some()
    }

    /// Goes on.
    pub fn resume(&mut self, now_ns: u64) {
        if let Some(paused_ns) = self.paused_ns.take() {
            self.start_ns += now_ns.saturating_sub(paused_ns);
            self.deaf_until_ns = now_ns;
        }
    }

    /// Leaves out all before a time if more than this is to be taken until then. How much that is, ns.
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
            track.samples.clear();
        }
    }

    fn frame_at(&self, now_ns: u64) -> u64 {
        let ns = u128::from(now_ns.saturating_sub(self.start_ns));
        (ns * u128::from(self.rate_hz) / u128::from(NS_PER_S)) as u64
    }
}

impl Track {
    /// At this rate, with so many channels. `None`: that cannot be done.
    fn convert<'a>(
        &mut self,
        format: Format,
        (rate_hz, channels): (u32, u8),
        samples: &'a [i16],
        room: &'a mut Vec<i16>,
    ) -> Option<&'a [i16]> {
        if (format.sample_rate_hz, format.channels) == (rate_hz, channels) {
            return Some(samples);
        }
        let is_other = self.converter.as_ref().is_none_or(|(of, _)| *of != format);
        if is_other {
            let new = Converter::new(format.sample_rate_hz, format.channels, rate_hz, channels);
            self.converter = new.ok().map(|new| (format, new));
        }
        let (_, converter) = self.converter.as_mut()?;
        let pcm = samples.iter().map(|one| f32::from(*one) / FULL_SCALE);
        let mut converted = Vec::new();
        converter.process(&pcm.collect::<Vec<f32>>(), &mut converted);
        // The cast saturates.
        let rounded = converted
            .iter()
            .map(|one| (one * FULL_SCALE).round() as i16);
        room.extend(rounded);
        Some(room)
    }
}

const NS_PER_S: u64 = 1_000_000_000;
/// A channel may be off by this much before it is moved: packets are heard in slices of 20 ms, and wait in the jitter buffer.
const SLACK_NS: u64 = 60_000_000;
const FULL_SCALE: f32 = 32_768.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a listener who gives portions, whose place in time is seen in the recordings of calls.
    #[test]
    fn pauses_and_what_is_skipped_take_no_time() {
        let mut tracks = Tracks::new(8000, NS_PER_S);
        let mut frames = Vec::new();
        let mut len_at = |tracks: &mut Tracks, ms: u64| {
            tracks.take(NS_PER_S + ms * 1_000_000, &mut frames);
            frames.len() / 2
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
}
