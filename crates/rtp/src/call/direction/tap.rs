//! A copy of a party's audio for the owner. It is what the far side would hear if the audio was re-encoded.
//!
//! G.711 codes that were not re-encoded are queued as codes, and the reader decodes them if necessary. Only a loss needs samples. For this,
//! the decoder first gets the last codes. After the loss, it gets all audio until it has forgotten the concealment.

use super::code_ring::CodeRing;
use crate::call::TAP_NS_MAX;
use crate::codec::{Decoder, Encoding, Format, decode_linear};
use crate::id::NS_PER_S;

/// Audio that was tapped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tapped<'a> {
    /// Sample rate and channels of the audio, and the law of its codes.
    pub format: Format,
    /// The audio.
    pub audio: TappedAudio<'a>,
    /// Duration of the audio that follows in the tap and is taken in the same call, ns.
    pub followed_ns: u64,
}

/// Tapped audio in one of three forms. Lengths include the interleaved samples of all channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TappedAudio<'a> {
    /// One byte per sample, which is a code of G.711 in the law of the format.
    Codes(&'a [u8]),
    /// Samples with full scale 1.
    Samples(&'a [f32]),
    /// Silence of this many samples.
    Silence(usize),
}

impl TappedAudio<'_> {
    /// Returns the number of samples of all channels.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            TappedAudio::Codes(codes) => codes.len(),
            TappedAudio::Samples(samples) => samples.len(),
            TappedAudio::Silence(samples) => *samples,
        }
    }

    /// Whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tapped<'_> {
    /// Appends the samples to `out`.
    pub fn decode(&self, out: &mut Vec<f32>) {
        match self.audio {
            TappedAudio::Codes(codes) => decode_linear(self.format.encoding, codes, out),
            TappedAudio::Samples(samples) => out.extend_from_slice(samples),
            TappedAudio::Silence(samples) => out.resize(out.len() + samples, 0.0),
        }
    }
}

/// A copy of a party's audio: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Tap {
    /// Format of the incoming audio.
    format: Option<Format>,
    /// Queued stretches except for the newest one, the oldest first. The newest one is `last`, so this list is usually empty.
    earlier: Vec<Stretch>,
    last: Option<Stretch>,
    /// Queued codes, and the codes that were taken last, which a loss needs.
    codes: CodeRing,
    pcm: Vec<f32>,
    /// The decoder, which is created when it is first needed.
    decoder: Option<Box<Decoder>>,
    /// Number of consecutive codes in this format that were forwarded unchanged.
    known: usize,
    /// Number of codes that the decoder must still get. It gets all audio of formats other than G.711.
    follows: usize,
    /// Whether the next audio is joined to the concealment.
    joins: bool,
}

/// A stretch of queued audio of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    format: Format,
    kind: Kind,
    samples: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Codes,
    Samples,
    Silence,
}

impl Stretch {
    fn per_s(&self) -> u64 {
        u64::from(self.format.sample_rate_hz) * u64::from(self.format.channels)
    }

    fn ns(&self) -> u64 {
        self.samples as u64 * NS_PER_S / self.per_s()
    }
}

impl Tap {
    /// Adds audio that the far side hears.
    pub(super) fn add(&mut self, format: Format, pcm: &[f32]) {
        self.fit(format);
        (self.known, self.follows, self.joins) = (0, 0, false);
        self.pcm.extend_from_slice(pcm);
        self.note(Kind::Samples, pcm.len());
    }

    /// Adds a payload for which there is no other decoder.
    pub(super) fn add_payload(&mut self, format: Format, bytes: &[u8]) {
        self.fit(format);
        if !is_coded(format) {
            if self.decoder.is_none() {
                self.decoder = Decoder::new(format).ok().map(Box::new);
            }
            // Malformed payloads are counted when they are decoded for the far side. Here, they only leave a gap.
            return self.decode(bytes);
        }
        let is_whole = format
            .payload_samples(bytes.len())
            .is_some_and(|frames| (1..=format.sample_rate_hz).contains(&frames));
        if !is_whole {
            return;
        }
        if self.joins {
            self.joins = false;
            self.known = 0;
            self.follows = history_samples(format);
            return self.decode(bytes);
        }
        if self.follows > 0 {
            self.follows = self.follows.saturating_sub(bytes.len());
            let begin = self.pcm.len();
            if let Some(decoder) = &mut self.decoder {
                // The codes are queued unchanged, but the decoder must remember them.
                let _ = decoder.decode(bytes, &mut self.pcm);
            }
            self.pcm.truncate(begin);
        }
        self.codes.push(bytes, history_samples(format));
        self.known += bytes.len();
        self.note(Kind::Codes, bytes.len());
    }

    fn decode(&mut self, bytes: &[u8]) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        let begin = self.pcm.len();
        let _ = decoder.decode(bytes, &mut self.pcm);
        self.note(Kind::Samples, self.pcm.len() - begin);
    }

    /// Conceals a loss.
    pub(super) fn conceal(&mut self, ns: u64) {
        let Some(format) = self.format else { return };
        if is_coded(format) && !self.joins && self.follows == 0 {
            if self.known == 0 {
                return;
            }
            self.resume(format);
        }
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        let frames = ns * u64::from(format.sample_rate_hz) / NS_PER_S;
        let begin = self.pcm.len();
        decoder.conceal(frames as usize, &mut self.pcm);
        self.joins = is_coded(format);
        self.note(Kind::Samples, self.pcm.len() - begin);
    }

    /// Brings the decoder to the position of the stream.
    fn resume(&mut self, format: Format) {
        let history = history_samples(format).min(self.known);
        let begin = self.pcm.len();
        if self.decoder.is_none() {
            self.decoder = Decoder::new(format).ok().map(Box::new);
        }
        if let Some(decoder) = &mut self.decoder {
            decoder.reset();
            for codes in self.codes.last(history) {
                let _ = decoder.decode(codes, &mut self.pcm);
            }
        }
        self.pcm.truncate(begin);
    }

    /// Replaces a loss with silence, because there is no time to conceal it.
    pub(super) fn fall_silent(&mut self, ns: u64) {
        if let Some(format) = self.format {
            let frames = (ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
            self.note(Kind::Silence, frames * usize::from(format.channels));
        }
    }

    fn fit(&mut self, format: Format) {
        if self.format != Some(format) {
            self.format = Some(format);
            self.decoder = None;
            (self.known, self.follows, self.joins) = (0, 0, false);
        }
    }

    /// Notes that `samples` were queued.
    fn note(&mut self, kind: Kind, samples: usize) {
        let Some(format) = self.format.filter(|_| samples > 0) else {
            return;
        };
        match &mut self.last {
            Some(last) if last.kind == kind && last.format == format => last.samples += samples,
            last => {
                let new = Stretch {
                    format,
                    kind,
                    samples,
                };
                self.earlier.extend(last.replace(new));
            }
        }
    }

    /// Returns the number of queued samples of all channels.
    pub(super) fn waiting(&self) -> usize {
        let all = self.earlier.iter().chain(&self.last);
        all.map(|one| one.samples).sum()
    }

    /// Drops the oldest audio that is not taken in time. Returns the duration of the dropped audio, ns.
    #[inline]
    pub(super) fn bound(&mut self) -> u64 {
        let Some(last) = &self.last else { return 0 };
        let is_short = last.samples as u64 * NS_PER_S <= last.per_s() * TAP_NS_MAX;
        if is_short && self.earlier.is_empty() {
            0
        } else {
            self.drop_excess()
        }
    }

    #[cold]
    fn drop_excess(&mut self) -> u64 {
        let history = self.history();
        let mut dropped_ns = 0;
        loop {
            let all_ns: u64 = self.earlier.iter().chain(&self.last).map(Stretch::ns).sum();
            let excess_ns = match self.earlier.len() {
                STRETCHES_MAX.. => u64::MAX,
                _ => all_ns.saturating_sub(TAP_NS_MAX),
            };
            let Some(first) = self.earlier.first_mut().or(self.last.as_mut()) else {
                return dropped_ns;
            };
            if excess_ns == 0 {
                return dropped_ns;
            }
            let per_s = u128::from(first.per_s());
            let excess = (u128::from(excess_ns) * per_s).div_ceil(u128::from(NS_PER_S));
            let excess = usize::try_from(excess).unwrap_or(usize::MAX);
            // Only whole frames are dropped.
            let excess = excess
                .checked_next_multiple_of(usize::from(first.format.channels))
                .unwrap_or(usize::MAX)
                .min(first.samples);
            first.samples -= excess;
            let left = first.samples;
            dropped_ns += excess as u64 * NS_PER_S / first.per_s();
            match first.kind {
                Kind::Codes => self.codes.drop_first(excess, history),
                Kind::Samples => drop(self.pcm.drain(..excess)),
                Kind::Silence => {}
            }
            if left == 0 {
                if self.earlier.is_empty() {
                    self.last = None;
                } else {
                    self.earlier.remove(0);
                }
            }
        }
    }

    pub(super) fn take(&mut self, mut hear: impl FnMut(Tapped<'_>)) {
        let (mut codes, mut pcm) = (self.codes.waiting(), &self.pcm[..]);
        let mut followed_ns = if self.earlier.is_empty() {
            0
        } else {
            self.earlier.iter().chain(&self.last).map(Stretch::ns).sum()
        };
        for stretch in self.earlier.iter().chain(&self.last) {
            let audio = match stretch.kind {
                Kind::Codes => {
                    let (own, rest) = codes.split_at(stretch.samples);
                    codes = rest;
                    TappedAudio::Codes(own)
                }
                Kind::Samples => {
                    let (own, rest) = pcm.split_at(stretch.samples);
                    pcm = rest;
                    TappedAudio::Samples(own)
                }
                Kind::Silence => TappedAudio::Silence(stretch.samples),
            };
            followed_ns = u64::saturating_sub(followed_ns, stretch.ns());
            hear(Tapped {
                format: stretch.format,
                audio,
                followed_ns,
            });
        }
        self.earlier.clear();
        self.last = None;
        self.pcm.clear();
        self.codes.take_all();
    }

    pub(super) fn has_audio(&self) -> bool {
        self.last.is_some()
    }

    /// Returns the address at which the next codes will be written.
    #[inline]
    pub(super) fn next_address(&self) -> usize {
        self.codes.next_address(self.history())
    }

    /// Returns the number of codes that the concealment of a loss may need.
    #[inline]
    fn history(&self) -> usize {
        self.format.map_or(0, history_samples)
    }
}

/// Whether codes can be queued unchanged, because each code is a sample by itself.
fn is_coded(format: Format) -> bool {
    matches!(format.encoding, Encoding::Pcmu | Encoding::Pcma)
}

/// Returns a number of samples that is higher than a decoder remembers.
fn history_samples(format: Format) -> usize {
    let frames = u64::from(format.sample_rate_hz) * HISTORY_NS / NS_PER_S;
    frames as usize * usize::from(format.channels)
}

/// Length of the history, ns. Concealment uses the last 35 ms.
const HISTORY_NS: u64 = 40_000_000;
/// Maximum number of losses and changes of format among the queued audio. Audio with more of them is useless to a listener.
const STRETCHES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn format(encoding: Encoding, rate_hz: u32, channels: u8) -> Format {
        Format::new(encoding, rate_hz, channels).expect("a format")
    }

    fn taken(tap: &mut Tap) -> Vec<(Format, Vec<f32>)> {
        let mut all = Vec::new();
        tap.take(|tapped| {
            let mut samples = Vec::new();
            tapped.decode(&mut samples);
            assert_eq!(samples.len(), tapped.audio.len());
            all.push((tapped.format, samples));
        });
        all
    }

    #[test]
    fn g711_codes_are_not_decoded_except_around_a_loss() {
        let pcmu = format(Encoding::Pcmu, 8000, 1);
        let mut tap = Tap::default();
        let mut kinds = Vec::new();
        for number in 0..8_u8 {
            match number {
                2 => tap.conceal(20_000_000),
                5 => tap.fall_silent(20_000_000),
                _ => tap.add_payload(pcmu, &[number; 160]),
            }
        }
        assert_eq!(tap.waiting(), 8 * 160);
        tap.take(|tapped| {
            let (what, samples) = match tapped.audio {
                TappedAudio::Codes(codes) => (codes[0], codes.len()),
                TappedAudio::Samples(samples) => (b's', samples.len()),
                TappedAudio::Silence(samples) => (b'-', samples),
            };
            kinds.push((what, samples, tapped.followed_ns / 1_000_000));
        });
        // These are the concealment, and the packet that is joined to it.
        let due = [
            (0, 320, 120),
            (b's', 320, 80),
            (4, 160, 60),
            (b'-', 160, 40),
            (6, 320, 0),
        ];
        assert_eq!(kinds, due);
        assert_eq!(tap.waiting(), 0);
    }

    /// The tap is not read for a long time, and the sender sends one sample at a time.
    #[test]
    fn queued_audio_is_bounded_in_time_and_pieces() {
        let laws = [Encoding::Pcmu, Encoding::Pcma].map(|law| format(law, 8000, 1));
        let mut tap = Tap::default();
        let mut dropped_ns = 0;
        for number in 0..1000 {
            tap.add_payload(laws[number % 2], &[number as u8]);
            dropped_ns += tap.bound();
        }
        let pieces = taken(&mut tap).len();
        assert!(pieces <= STRETCHES_MAX, "{pieces}");
        assert_eq!(dropped_ns, (1000 - pieces as u64) * 125_000);
        for _ in 0..100 {
            tap.add_payload(laws[0], &[1; 160]);
            tap.conceal(20_000_000);
            dropped_ns = tap.bound();
        }
        assert_eq!(tap.waiting(), 8000);
        assert_eq!(dropped_ns, 40_000_000);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Packet(usize, u8),
        Loss(u64),
        Silence(u64),
        Take,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (prop_oneof![4 => Just(80_usize), 4 => Just(160), 1 => 1_usize..400], any::<u8>())
                .prop_map(|(bytes, seed)| Step::Packet(bytes, seed)),
            3 => (1_u64..120).prop_map(Step::Loss),
            1 => (1_u64..40).prop_map(Step::Silence),
            4 => Just(Step::Take),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// The reference is a decoder that gets all the audio in the same order.
        #[test]
        fn tapped_audio_equals_a_continuous_decoder(
            steps in steps(), which in 0_usize..5,
        ) {
            let format = [
                format(Encoding::Pcmu, 8000, 1),
                format(Encoding::Pcma, 8000, 1),
                format(Encoding::Pcma, 16_000, 2),
                format(Encoding::L16, 8000, 1),
                format(Encoding::G722, 16_000, 1),
            ][which];
            let channels = usize::from(format.channels);
            let mut twin = Decoder::new(format).expect("a decoder");
            let (mut tap, mut heard, mut due) = (Tap::default(), Vec::new(), Vec::new());
            let (mut has_begun, mut seed) = (false, 1_u32);
            for step in steps {
                match step {
                    Step::Packet(bytes, own) => {
                        seed = seed.wrapping_add(u32::from(own));
                        let whole = bytes.next_multiple_of(2 * channels);
                        let payload: Vec<u8> = (0..whole).map(|_| {
                            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            (seed >> 24) as u8
                        }).collect();
                        tap.add_payload(format, &payload);
                        twin.decode(&payload, &mut due).expect("whole");
                        has_begun = true;
                    }
                    Step::Loss(ms) => {
                        tap.conceal(ms * 1_000_000);
                        if has_begun {
                            let frames = ms as usize * format.sample_rate_hz as usize / 1000;
                            twin.conceal(frames, &mut due);
                        }
                    }
                    Step::Silence(ms) => {
                        tap.fall_silent(ms * 1_000_000);
                        if has_begun {
                            let frames = ms as usize * format.sample_rate_hz as usize / 1000;
                            due.resize(due.len() + frames * channels, 0.0);
                        }
                    }
                    Step::Take => heard.extend(taken(&mut tap).into_iter().flat_map(|(_, samples)| samples)),
                }
            }
            heard.extend(taken(&mut tap).into_iter().flat_map(|(_, samples)| samples));
            prop_assert_eq!(heard.len(), due.len());
            prop_assert!(heard == due);
        }
    }
}
