//! The parties' audio: a tone for each stream. The samples of a packet depend only on the numbers of its stream and of the packet.
//!
//! Streams with even numbers are sent in PCMU and received in PCMA. Streams with odd numbers are sent in PCMA and received in
//! PCMU.
//!
//! Sender and receiver compute the same packet independently, so payloads need not be stored to be checked. The tones are chosen so that
//! [`DISTINCT_PACKETS`] consecutive packets of a stream all differ. So the payload alone identifies the packet.

use super::g711::{alaw_to_linear, linear_to_alaw, linear_to_ulaw, ulaw_to_linear};

/// Number of samples of a packet of 20 ms at 8000 Hz. In G.711, it is also the number of bytes.
pub(super) const PACKET_SAMPLES: usize = 160;

/// Number of consecutive packets of a stream that have different payloads.
pub(super) const DISTINCT_PACKETS: u32 = 64;

/// Number of samples at the start of the first packet after a loss that may still contain concealed audio.
pub(super) const MENDED_SAMPLES: usize = 80;

/// One packet's payload.
pub(super) type Payload = [u8; PACKET_SAMPLES];

/// The tones of all streams.
#[derive(Debug)]
pub(super) struct Tones {
    /// One period of a sine, in µ-law and in A-law.
    spoken: [Box<[u8; PERIOD]>; 2],
    /// One period of a sine in the form in which it must be received, converted to the other law.
    heard: [Box<[u8; PERIOD]>; 2],
    /// The distance of two samples in the period, in units of 2^-32, for each stream.
    steps: Vec<u32>,
}

impl Tones {
    /// Creates tones for this many streams, between 300 and 3300 Hz.
    pub(super) fn new(streams: usize) -> Tones {
        let period = |code: &dyn Fn(i32) -> u8| {
            let angle = |n| std::f64::consts::TAU * n as f64 / PERIOD as f64;
            let codes = (0..PERIOD).map(|n| code((AMPLITUDE * angle(n).sin()).round() as i32));
            let mut period = Box::new([0; PERIOD]);
            period
                .iter_mut()
                .zip(codes)
                .for_each(|(to, code)| *to = code);
            period
        };
        let heard_alaw = |sample| linear_to_alaw(ulaw_to_linear(linear_to_ulaw(sample)));
        let heard_ulaw = |sample| linear_to_ulaw(alaw_to_linear(linear_to_alaw(sample)));
        let hz = |stream: usize| LOWEST_HZ + BAND_HZ * stream as f64 / streams.max(1) as f64;
        Tones {
            spoken: [period(&linear_to_ulaw), period(&linear_to_alaw)],
            heard: [period(&heard_alaw), period(&heard_ulaw)],
            steps: (0..streams)
                .map(|stream| distinct_step(hz(stream)))
                .collect(),
        }
    }

    /// Returns packet number `packet` of a stream, as it is sent.
    pub(super) fn sent(&self, stream: usize, packet: u32) -> Payload {
        self.payload(&self.spoken[stream % 2], stream, packet)
    }

    /// Returns packet number `packet` of a stream in the form in which it must arrive.
    #[cfg(test)]
    pub(super) fn expected(&self, stream: usize, packet: u32) -> Payload {
        self.payload(&self.heard[stream % 2], stream, packet)
    }

    /// Whether this is the expected payload of a received packet.
    pub(super) fn is_expected(&self, stream: usize, packet: u32, payload: &[u8]) -> bool {
        payload.len() == PACKET_SAMPLES && self.follows(stream, packet, 0, payload)
    }

    /// Whether this is the expected payload of a received packet, except for the first [`MENDED_SAMPLES`].
    pub(super) fn ends_as_expected(&self, stream: usize, packet: u32, payload: &[u8]) -> bool {
        let end = payload.get(MENDED_SAMPLES..PACKET_SAMPLES);
        end.is_some_and(|end| self.follows(stream, packet, MENDED_SAMPLES as u32, end))
    }

    /// Whether `samples` match a packet from its sample `first` on. The first few samples usually decide.
    fn follows(&self, stream: usize, packet: u32, first: u32, samples: &[u8]) -> bool {
        let (step, heard) = (self.steps[stream], &self.heard[stream % 2]);
        let start = packet
            .wrapping_mul(PACKET_SAMPLES as u32)
            .wrapping_add(first);
        let mut phase = step.wrapping_mul(start);
        samples.iter().all(|sample| {
            let expected = heard[(phase >> PHASE_SHIFT) as usize];
            phase = phase.wrapping_add(step);
            *sample == expected
        })
    }

    fn payload(&self, period: &[u8; PERIOD], stream: usize, packet: u32) -> Payload {
        let step = self.steps[stream];
        let mut phase = step.wrapping_mul(packet.wrapping_mul(PACKET_SAMPLES as u32));
        std::array::from_fn(|_| {
            let sample = period[(phase >> PHASE_SHIFT) as usize];
            phase = phase.wrapping_add(step);
            sample
        })
    }
}

/// Returns the step of a tone near `hz` for which [`DISTINCT_PACKETS`] consecutive packets all start at different phases.
fn distinct_step(hz: f64) -> u32 {
    let cycle = f64::from(u32::MAX) + 1.0;
    let candidates =
        (0..CANDIDATES_MAX).map(|n| ((hz + 0.01 * f64::from(n)) / RATE_HZ * cycle) as u32);
    let distinct = |step: &u32| {
        let advance = step.wrapping_mul(PACKET_SAMPLES as u32);
        (1..=DISTINCT_PACKETS).all(|packets| {
            let phase = advance.wrapping_mul(packets);
            phase.min(phase.wrapping_neg()) >= PHASE_APART
        })
    };
    let mut candidates = candidates.peekable();
    let first = candidates.peek().copied().unwrap_or(0);
    candidates.find(distinct).unwrap_or(first)
}

const RATE_HZ: f64 = 8000.0;
const LOWEST_HZ: f64 = 300.0;
const BAND_HZ: f64 = 3000.0;
/// Amplitude of the tones. It is about -8 dBFS.
const AMPLITUDE: f64 = 13_000.0;
/// Number of entries in the table of one period.
const PERIOD: usize = 4096;
/// Shift that converts a phase of 32 bits to an index in the table.
const PHASE_SHIFT: u32 = 32 - PERIOD.ilog2();
/// Minimum difference of phases, which is 1/512 of a period. Packets that differ by this much differ in many samples.
const PHASE_APART: u32 = 1 << 23;
/// Maximum number of tones that are tried. Half of all tones are suitable, so a search never tries that many.
const CANDIDATES_MAX: u32 = 5000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn consecutive_packets_differ_in_every_stream() {
        let tones = Tones::new(3000);
        for stream in (0..3000).step_by(37).chain([2999]) {
            let packets = (1000..1000 + DISTINCT_PACKETS).map(|n| tones.sent(stream, n));
            assert_eq!(
                packets.collect::<HashSet<_>>().len(),
                DISTINCT_PACKETS as usize,
                "{stream}"
            );
        }
    }

    #[test]
    fn every_stream_has_its_own_tone() {
        let tones = Tones::new(3000);
        assert_eq!(tones.steps.iter().collect::<HashSet<_>>().len(), 3000);
    }

    /// The reference is the sine itself. Encoding in each law changes a sample by at most half a step. The width of a step is a sixteenth
    /// of the start of its segment.
    #[test]
    fn sent_and_expected_samples_equal_the_tone() {
        let tones = Tones::new(7);
        for (stream, packet) in [(0, 0), (3, 99), (6, 12_345)] {
            let (sent, expected) = (tones.sent(stream, packet), tones.expected(stream, packet));
            for n in 0..PACKET_SAMPLES {
                let sample = packet * PACKET_SAMPLES as u32 + n as u32;
                let phase = tones.steps[stream].wrapping_mul(sample) >> PHASE_SHIFT;
                let angle = std::f64::consts::TAU * f64::from(phase) / PERIOD as f64;
                let sine = AMPLITUDE * angle.sin();
                let half_step = 8.0 + sine.abs() / 32.0;
                let laws: [fn(u8) -> i32; 2] = [ulaw_to_linear, alaw_to_linear];
                let sent = f64::from(laws[stream % 2](sent[n]));
                let expected = f64::from(laws[1 - stream % 2](expected[n]));
                assert!((sent - sine).abs() <= half_step, "{sent}, not {sine}");
                assert!(
                    (expected - sine).abs() <= 2.0 * half_step,
                    "{expected}, not {sine}"
                );
            }
        }
    }
}
