//! Who listens to a line: copies of its audio, for other threads.
//!
//! | what | who |
//! |---|---|
//! | [`Ears`] | listeners come and go under the lock, on any thread; the line tries it, when the generation says that there are others |
//! | `Ring::samples`, `written`, `format`, `dropped` | written by the line's thread |
//! | `Ring::read` | written by the listener |

use std::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use threadbare_rtp::codec::Format;

use crate::sync::lock;

/// Those who listen to a line.
#[derive(Debug, Default)]
pub(crate) struct Ears {
    /// Counts the changes of the list.
    generation: AtomicU64,
    rings: Mutex<Vec<Arc<Ring>>>,
}

/// What a line's thread has of them.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    generation: u64,
    rings: Vec<Arc<Ring>>,
}

/// Audio of a line from the moment on that it was asked for: [`Board::listen`](crate::Board::listen). Dropped, it is over.
#[derive(Debug)]
pub struct Listening {
    ears: Weak<Ears>,
    ring: Arc<Ring>,
}

/// The format of audio that is listened to: interleaved samples of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heading {
    /// Frames in a second.
    pub rate_hz: u32,
    /// Samples in a frame.
    pub channels: u16,
}

/// Samples on their way from one thread to one other; neither waits.
#[derive(Debug)]
struct Ring {
    samples: Box<[AtomicU16]>,
    /// All samples that were ever put in; what is in the ring are those from `read` on.
    written: AtomicUsize,
    read: AtomicUsize,
    /// A [`Heading`]; 0: not known yet.
    format: AtomicU64,
    dropped: AtomicU64,
    is_over: AtomicBool,
}

impl Ears {
    pub(crate) fn listen(self: &Arc<Ears>) -> Listening {
        let ring = Arc::new(Ring::new());
        let mut rings = lock(&self.rings);
        rings.push(ring.clone());
        // Under the lock: a line that sees the number then finds the list behind it.
        self.generation.fetch_add(1, Relaxed);
        drop(rings);
        let ears = Arc::downgrade(self);
        Listening { ears, ring }
    }

    fn remove(&self, ring: &Arc<Ring>) {
        let mut rings = lock(&self.rings);
        rings.retain(|one| !Arc::ptr_eq(one, ring));
        self.generation.fetch_add(1, Relaxed);
    }
}

impl Heard {
    /// Looks who listens. `None`: the same as before, and a single load has told so.
    #[inline]
    pub(crate) fn look(&mut self, ears: &Ears) -> Option<bool> {
        let generation = ears.generation.load(Relaxed);
        if generation == self.generation {
            return None;
        }
        self.change(ears, generation)
    }

    /// Whether somebody listens now.
    #[cold]
    fn change(&mut self, ears: &Ears, generation: u64) -> Option<bool> {
        let rings = match ears.rings.try_lock() {
            Ok(rings) => rings,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody comes or goes: the next turn will do.
            Err(TryLockError::WouldBlock) => return None,
        };
        self.rings.clone_from(&rings);
        // What has changed since it was read is looked at again.
        self.generation = generation;
        Some(!self.rings.is_empty())
    }

    pub(crate) fn put(&self, format: Format, pcm: &[f32]) {
        for ring in &self.rings {
            ring.put(format, pcm);
        }
    }
}

impl Listening {
    /// The format, once something was heard.
    #[must_use]
    pub fn heading(&self) -> Option<Heading> {
        Heading::of(self.ring.format.load(Acquire))
    }

    /// Appends what was heard since the last call.
    pub fn take(&self, samples: &mut Vec<i16>) {
        self.ring.take(samples);
    }

    /// Nothing more will come: the line is gone, or its audio has another format.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.is_over.load(Acquire) || self.ears.strong_count() == 0
    }

    /// Samples that were left out, as they were not taken in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.ring.dropped.load(Relaxed)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(ears) = self.ears.upgrade() {
            ears.remove(&self.ring);
        }
    }
}

impl Heading {
    fn word(format: Format) -> u64 {
        u64::from(format.sample_rate_hz) << 16 | u64::from(format.channels)
    }

    fn of(word: u64) -> Option<Heading> {
        (word != 0).then_some(Heading {
            rate_hz: (word >> 16) as u32,
            channels: word as u16,
        })
    }
}

impl Ring {
    fn new() -> Ring {
        Ring {
            samples: (0..RING_SAMPLES).map(|_| AtomicU16::new(0)).collect(),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            format: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// What does not fit is left out, in whole frames.
    fn put(&self, format: Format, pcm: &[f32]) {
        let word = Heading::word(format);
        match self.format.load(Relaxed) {
            0 => self.format.store(word, Release),
            known if known == word => {}
            _ => return self.is_over.store(true, Release),
        }
        let written = self.written.load(Relaxed);
        let room = RING_SAMPLES - written.wrapping_sub(self.read.load(Acquire));
        let room = room - room % usize::from(format.channels).max(1);
        let (fits, rest) = pcm.split_at(pcm.len().min(room));
        for (at, sample) in (written..).zip(fits) {
            // The cast saturates.
            let sample = (sample * FULL_SCALE).round() as i16;
            self.samples[at % RING_SAMPLES].store(sample as u16, Relaxed);
        }
        self.written
            .store(written.wrapping_add(fits.len()), Release);
        if !rest.is_empty() {
            self.dropped.fetch_add(rest.len() as u64, Relaxed);
        }
    }

    fn take(&self, samples: &mut Vec<i16>) {
        let (read, written) = (self.read.load(Relaxed), self.written.load(Acquire));
        let count = written.wrapping_sub(read);
        let taken = (0..count).map(|n| {
            let at = read.wrapping_add(n) % RING_SAMPLES;
            self.samples[at].load(Relaxed) as i16
        });
        samples.extend(taken);
        self.read.store(written, Release);
    }
}

/// More than a second of Opus in stereo, of which a tap gives no more at a time; a power of two, so that totals may wrap around. 256 KiB.
const RING_SAMPLES: usize = 1 << 17;
/// Of 16 bits.
const FULL_SCALE: f32 = 32_768.0;

#[cfg(test)]
mod tests {
    use threadbare_rtp::codec::Encoding;

    use super::*;

    fn format(channels: u8) -> Format {
        Format::new(Encoding::L16, 48_000, channels).expect("a format")
    }

    fn heard(ears: &Arc<Ears>) -> Heard {
        let mut heard = Heard::default();
        heard.look(ears);
        heard
    }

    #[test]
    fn samples_come_out_in_order_and_what_has_no_room_is_counted() {
        let ears = Arc::default();
        let listening = Ears::listen(&ears);
        let heard = heard(&ears);
        assert_eq!(listening.heading(), None);
        let stereo = format(2);
        // In all more than the ring has, taken as it goes.
        let mut next = 0_u32;
        let mut expected = Vec::new();
        let mut taken = Vec::new();
        while expected.len() < 3 * RING_SAMPLES {
            let chunk: Vec<i16> = (0..9600).map(|n| (next + n) as i16).collect();
            next += 9600;
            let pcm: Vec<f32> = chunk.iter().map(|one| f32::from(*one) / 32_768.0).collect();
            heard.put(stereo, &pcm);
            expected.extend(chunk);
            listening.take(&mut taken);
        }
        assert!(taken == expected);
        assert_eq!(listening.dropped(), 0);
        assert_eq!(
            listening.heading(),
            Some(Heading {
                rate_hz: 48_000,
                channels: 2
            })
        );
        // Nobody takes: what came first stays.
        taken.clear();
        for _ in 0..100 {
            heard.put(stereo, &[0.25; 9600]);
        }
        listening.take(&mut taken);
        assert_eq!(taken.len(), RING_SAMPLES);
        assert_eq!(listening.dropped(), 960_000 - RING_SAMPLES as u64);
        // Full scale, and beyond it.
        taken.clear();
        heard.put(stereo, &[1.0, -1.0, 7.0, -7.0]);
        listening.take(&mut taken);
        assert_eq!(taken, [32_767, -32_768, 32_767, -32_768]);
    }

    #[test]
    fn another_format_and_the_end_of_the_line_end_it() {
        let ears: Arc<Ears> = Arc::default();
        let [one, other] = [ears.listen(), ears.listen()];
        let mut line = heard(&ears);
        line.put(format(1), &[0.5]);
        assert!(!one.is_over());
        drop(other);
        assert_eq!(line.look(&ears), Some(true));
        assert_eq!(line.look(&ears), None);
        line.put(format(2), &[0.5, 0.5]);
        assert!(one.is_over());
        let mut taken = Vec::new();
        one.take(&mut taken);
        assert_eq!(taken, [16_384]);
        let last = ears.listen();
        drop(one);
        assert!(!last.is_over());
        drop(ears);
        assert!(last.is_over());
    }
}
