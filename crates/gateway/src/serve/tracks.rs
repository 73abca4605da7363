//! What both sides of a call say, as two channels on one clock: side A on the left, side B on the right. No thread, no clock of its own.

use std::collections::VecDeque;

use threadbare_relay::Portion;
use threadbare_rtp::codec::Format;
use threadbare_rtp::convert::Converter;

/// Both channels. Where a side is silent, so is its channel.
#[derive(Debug)]
pub(super) struct Tracks {
    rate_hz: u32,
    /// The time of the first frame, pauses taken out, ns.
    start_ns: u64,
    paused_ns: Option<u64>,
    /// What was heard before is left out, ns.
    deaf_until_ns: u64,
    tracks: [Track; 2],
    /// Frames that were taken.
    taken: u64,
}

/// What one side said.
#[derive(Debug, Default)]
struct Track {
    converter: Option<(Format, Converter)>,
    /// Behind what was taken.
    samples: VecDeque<f32>,
}

impl Tracks {
    /// They begin now.
    pub(super) fn new(rate_hz: u32, now_ns: u64) -> Tracks {
        Tracks {
            rate_hz,
            start_ns: now_ns,
            paused_ns: None,
            deaf_until_ns: 0,
            tracks: [Track::default(), Track::default()],
            taken: 0,
        }
    }

    /// Frames in a second.
    pub(super) fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// What a side said.
    pub(super) fn add(&mut self, portion: &Portion, samples: &[i16]) {
        if self.paused_ns.is_some() || portion.until_ns < self.deaf_until_ns {
            return;
        }
        let target = self.frame_at(portion.until_ns);
        let slack = SLACK_NS * u64::from(self.rate_hz) / NS_PER_S;
        let (rate_hz, taken) = (self.rate_hz, self.taken);
        let track = &mut self.tracks[portion.side as usize];
        let pcm: Vec<f32> = samples
            .iter()
            .map(|one| f32::from(*one) / FULL_SCALE)
            .collect();
        let mut converted = Vec::new();
        if !track.convert(portion.format, rate_hz, &pcm, &mut converted) {
            return;
        }
        let end = |track: &Track| taken + track.samples.len() as u64 + converted.len() as u64;
        let behind = target.saturating_sub(end(track));
        if behind > slack {
            // The side was silent.
            let silence = track.samples.len() + behind as usize;
            track.samples.resize(silence, 0.0);
        }
        let ahead = end(track).saturating_sub(target);
        if ahead > slack {
            // Its clock is faster than ours, or what comes was taken already.
            converted.drain(..converted.len().min(ahead as usize));
        }
        track.samples.extend(converted);
    }

    /// Takes the frames until a time, interleaved: what comes later for it is left out.
    pub(super) fn take(&mut self, until_ns: u64, frames: &mut Vec<i16>) {
        if self.paused_ns.is_some() {
            return;
        }
        let until = self.frame_at(until_ns);
        while self.taken < until {
            for track in &mut self.tracks {
                let sample = track.samples.pop_front().unwrap_or(0.0);
                // The cast saturates.
                frames.push((sample * FULL_SCALE).round() as i16);
            }
            self.taken += 1;
        }
    }

    /// Takes what there is: what comes is left out.
    pub(super) fn pause(&mut self, now_ns: u64, frames: &mut Vec<i16>) {
        if self.paused_ns.is_some() {
            return;
        }
        self.take(now_ns, frames);
        self.paused_ns = Some(now_ns);
        self.clear();
    }

    /// Goes on.
    pub(super) fn resume(&mut self, now_ns: u64) {
        if let Some(paused_ns) = self.paused_ns.take() {
            self.start_ns += now_ns.saturating_sub(paused_ns);
            self.deaf_until_ns = now_ns;
        }
    }

    /// Leaves out all before a time if more than this is to be taken until then. How much that is, ns.
    pub(super) fn skip(&mut self, until_ns: u64, most_ns: u64) -> u64 {
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
    /// To this rate, and to one channel. Whether that can be done.
    fn convert(&mut self, format: Format, rate_hz: u32, pcm: &[f32], out: &mut Vec<f32>) -> bool {
        let is_other = self.converter.as_ref().is_none_or(|(of, _)| *of != format);
        if is_other {
            let new = Converter::new(format.sample_rate_hz, format.channels, rate_hz, 1);
            self.converter = new.ok().map(|new| (format, new));
        }
        let Some((_, converter)) = &mut self.converter else {
            return false;
        };
        converter.process(pcm, out);
        true
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
