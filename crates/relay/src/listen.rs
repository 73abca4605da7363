//! Who listens to a line or a call: copies of its audio, for other threads.
//!
//! | what | who |
//! |---|---|
//! | [`Ears`] | listeners come under the lock, on any thread; the medium's thread tries it, when there are others |
//! | `Heard`, `Mouth` | the medium's thread |
//! | [`Listening`] | the listener's thread |
//!
//! Between the last two are rings of one writer and one reader (rtrb), and neither waits: who does not read in time loses audio, for himself alone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};

use rtrb::{Consumer, Producer, RingBuffer};
use threadbare_rtp::call::Side;
use threadbare_rtp::codec::Format;

use crate::sync::lock;

/// Those who listen to a line or a call. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Ears(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Counts those who came.
    generation: AtomicU64,
    /// Those whom no medium has taken yet, or that is gone.
    waiting: Mutex<Vec<Mouth>>,
}

/// What a medium's thread has of them. Dropped, it leaves them to the medium's successor.
#[derive(Debug)]
pub(crate) struct Heard {
    ears: Ears,
    generation: u64,
    mouths: Vec<Mouth>,
}

/// The end of a listener's rings that is written to.
#[derive(Debug)]
struct Mouth {
    portions: Producer<Portion>,
    samples: Producer<i16>,
    missed_ns: Arc<AtomicU64>,
}

/// Audio from the moment on that it was asked for: [`Ears::listen`]. Dropped, it is over.
#[derive(Debug)]
pub struct Listening {
    portions: Consumer<Portion>,
    samples: Consumer<i16>,
    missed_ns: Arc<AtomicU64>,
    joined: Vec<i16>,
}

/// Audio that was heard in one turn of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    /// When it was heard, ns of CLOCK_MONOTONIC: the time of its end.
    pub until_ns: u64,
    /// Who says it; of a line, A.
    pub side: Side,
    /// Rate and channels of its samples.
    pub format: Format,
    samples: usize,
}

impl Ears {
    /// Listens to what is carried from now on, decoded. `room_samples`: so many wait for who reads late, of all sides and channels.
    ///
    /// A line notices by itself; a call has to be told, by [`MediaCall::look_who_listens`](crate::MediaCall::look_who_listens).
    #[must_use]
    pub fn listen(&self, room_samples: usize) -> Listening {
        let (portions, portions_taken) = RingBuffer::new(PORTIONS_MAX);
        let (samples, samples_taken) = RingBuffer::new(room_samples);
        let missed_ns = Arc::new(AtomicU64::new(0));
        let mouth = Mouth {
            portions,
            samples,
            missed_ns: missed_ns.clone(),
        };
        let mut waiting = lock(&self.0.waiting);
        // Of those whom nothing was told, some may have gone.
        let gone: Vec<Mouth> = waiting.extract_if(.., |one| !one.is_wanted()).collect();
        waiting.push(mouth);
        // Under the lock: who sees the number then finds the list behind it.
        self.0.generation.fetch_add(1, Relaxed);
        drop(waiting);
        // Their memory is freed without it.
        drop(gone);
        Listening {
            portions: portions_taken,
            samples: samples_taken,
            missed_ns,
            joined: Vec::new(),
        }
    }
}

impl Heard {
    /// By those, none of whom it knows yet.
    pub(crate) fn new(ears: Ears) -> Heard {
        Heard {
            ears,
            generation: 0,
            mouths: Vec::new(),
        }
    }

    /// Whether somebody listens, as far as is known.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        !self.mouths.is_empty()
    }

    /// Whether others may have come: a single load.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.ears.0.generation.load(Relaxed) != self.generation
    }

    /// Looks who has come. While somebody comes just now, the next turn will do.
    #[cold]
    pub(crate) fn look(&mut self) {
        let generation = self.ears.0.generation.load(Relaxed);
        let mut waiting = match self.ears.0.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // Those who came since it was read are looked for again.
        self.generation = generation;
        self.mouths.retain(Mouth::is_wanted);
        self.mouths.append(&mut waiting);
    }

    /// Tells all who listen. Those who have gone are forgotten.
    pub(crate) fn put(&mut self, until_ns: u64, side: Side, format: Format, pcm: &[f32]) {
        let portion = Portion {
            until_ns,
            side,
            format,
            samples: pcm.len(),
        };
        self.mouths.retain_mut(|one| one.put(portion, pcm));
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if self.is_wanted() {
            let mut waiting = lock(&self.ears.0.waiting);
            waiting.append(&mut self.mouths);
            self.ears.0.generation.fetch_add(1, Relaxed);
        }
    }
}

impl Mouth {
    fn is_wanted(&self) -> bool {
        !self.portions.is_abandoned()
    }

    /// What does not fit is left out, whole. Whether anybody listens.
    fn put(&mut self, portion: Portion, pcm: &[f32]) -> bool {
        if !self.is_wanted() {
            return false;
        }
        let room = self.samples.write_chunk_uninit(pcm.len());
        match (room, self.portions.is_full()) {
            (Ok(room), false) => {
                room.fill_from_iter(pcm.iter().map(|one| sample_of(*one)));
                // There is room.
                let _ = self.portions.push(portion);
            }
            _ => {
                self.missed_ns.fetch_add(portion.duration_ns(), Relaxed);
            }
        }
        true
    }
}

impl Listening {
    /// What waits first, without its samples.
    #[must_use]
    pub fn peek(&self) -> Option<Portion> {
        self.portions.peek().ok().copied()
    }

    /// Takes what was heard since the last call, in order, with interleaved samples of 16 bits.
    pub fn take(&mut self, mut hear: impl FnMut(&Portion, &[i16])) {
        // No more than wait now: the end of it does not depend on who writes.
        for _ in 0..self.portions.slots() {
            let Ok(portion) = self.portions.pop() else {
                return;
            };
            // Written before the portion was.
            let Ok(samples) = self.samples.read_chunk(portion.samples) else {
                return;
            };
            match samples.as_slices() {
                (all, []) => hear(&portion, all),
                (first, second) => {
                    self.joined.clear();
                    self.joined.extend_from_slice(first);
                    self.joined.extend_from_slice(second);
                    hear(&portion, &self.joined);
                }
            }
            samples.commit_all();
        }
    }

    /// Nothing more will come: what was listened to is gone. To be asked before what is left is taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.portions.is_abandoned()
    }

    /// Audio that was left out, as it was not taken in time, ns.
    #[must_use]
    pub fn missed_ns(&self) -> u64 {
        self.missed_ns.load(Relaxed)
    }
}

impl Portion {
    /// Whether samples of both can follow each other in one stream.
    #[must_use]
    pub fn is_like(&self, other: &Portion) -> bool {
        let [own, others] = [self.format, other.format];
        (own.sample_rate_hz, own.channels) == (others.sample_rate_hz, others.channels)
    }

    fn duration_ns(&self) -> u64 {
        let per_s = u64::from(self.format.sample_rate_hz) * u64::from(self.format.channels);
        self.samples as u64 * NS_PER_S / per_s.max(1)
    }
}

/// The cast saturates. Halves go away from zero; `round` is a call on processors without SSE 4.1, for which programs are built.
#[inline]
fn sample_of(sample: f32) -> i16 {
    let scaled = sample * FULL_SCALE;
    (scaled + 0.5_f32.copysign(scaled)) as i16
}

/// Four seconds of two parties in packets of 10 ms.
const PORTIONS_MAX: usize = 800;
/// Of 16 bits.
const FULL_SCALE: f32 = 32_768.0;
const NS_PER_S: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use threadbare_rtp::codec::Encoding;

    use super::*;

    const ROOM: usize = 1 << 14;

    fn format(channels: u8) -> Format {
        Format::new(Encoding::L16, 48_000, channels).expect("a format")
    }

    fn heard(ears: &Ears) -> Heard {
        let mut heard = Heard::new(ears.clone());
        heard.look();
        heard
    }

    fn taken(listening: &mut Listening) -> Vec<i16> {
        let mut taken = Vec::new();
        listening.take(|_, samples| taken.extend_from_slice(samples));
        taken
    }

    #[test]
    fn samples_come_out_in_order_and_what_has_no_room_is_counted() {
        let ears = Ears::default();
        let mut listening = ears.listen(ROOM);
        let mut heard = heard(&ears);
        assert_eq!(listening.peek(), None);
        let stereo = format(2);
        // In all more than the ring has, taken as it goes.
        let mut next = 0_u32;
        let (mut expected, mut all) = (Vec::new(), Vec::new());
        while expected.len() < 5 * ROOM {
            let chunk: Vec<i16> = (0..9600).map(|n| (next + n) as i16).collect();
            next += 9600;
            let pcm: Vec<f32> = chunk.iter().map(|one| f32::from(*one) / 32_768.0).collect();
            heard.put(u64::from(next), Side::B, stereo, &pcm);
            expected.extend(chunk);
            let portion = listening.peek().expect("a portion");
            assert_eq!((portion.until_ns, portion.side), (u64::from(next), Side::B));
            all.extend(taken(&mut listening));
        }
        assert!(all == expected);
        assert_eq!(listening.missed_ns(), 0);
        // Nobody takes: what came first stays. 100 ms each, and one fits.
        for level in [0.25, 0.5, 0.75] {
            heard.put(0, Side::A, stereo, &[level; 9600]);
        }
        assert_eq!(taken(&mut listening), [8192; 9600]);
        assert_eq!(listening.missed_ns(), 200_000_000);
        // Full scale, and beyond it.
        heard.put(0, Side::A, stereo, &[1.0, -1.0, 7.0, -7.0]);
        assert_eq!(taken(&mut listening), [32_767, -32_768, 32_767, -32_768]);
        // Many small ones: there is room for so many portions.
        for _ in 0..=PORTIONS_MAX {
            heard.put(0, Side::A, format(1), &[0.0; 6]);
        }
        assert_eq!(taken(&mut listening).len(), 6 * PORTIONS_MAX);
        assert_eq!(listening.missed_ns(), 200_125_000);
    }

    #[test]
    fn who_listens_outlives_a_medium_and_not_the_ears() {
        let ears = Ears::default();
        let [mut one, other] = [ears.listen(ROOM), ears.listen(ROOM)];
        let mut first = heard(&ears);
        assert!(first.is_wanted() && !first.has_news());
        drop(other);
        first.put(1, Side::A, format(1), &[0.5]);
        assert_eq!(first.mouths.len(), 1);
        assert_eq!(taken(&mut one), [16_384]);
        // Another medium in its place.
        drop(first);
        assert!(!one.is_over());
        let mut second = Heard::new(ears.clone());
        assert!(second.has_news());
        second.look();
        second.put(2, Side::A, format(2), &[0.5, 0.5]);
        drop((second, ears));
        assert!(one.is_over());
        assert_eq!(taken(&mut one), [16_384, 16_384]);
    }

    /// They are freed by those who come next: nobody else is about.
    #[test]
    fn who_left_before_anything_was_heard_leaves_nothing() {
        let ears = Ears::default();
        for _ in 0..100 {
            drop(ears.listen(ROOM));
        }
        let _last = ears.listen(ROOM);
        assert_eq!(lock(&ears.0.waiting).len(), 1);
        let mut heard = heard(&ears);
        for _ in 0..100 {
            drop(ears.listen(ROOM));
            heard.look();
            assert!(heard.mouths.len() <= 2);
        }
    }

    /// On two threads, each sample is what it was, and whole portions only are left out.
    #[test]
    fn two_threads_do_not_disagree() {
        let ears = Ears::default();
        let mut listening = ears.listen(1000);
        let mut heard = heard(&ears);
        let writer = std::thread::spawn(move || {
            for n in 0..20_000_u64 {
                let pcm = [(n % 1000) as f32 / FULL_SCALE; 97];
                heard.put(n, Side::A, format(1), &pcm);
            }
        });
        let mut last = None;
        loop {
            let is_over = writer.is_finished();
            listening.take(|portion, samples| {
                assert!(last < Some(portion.until_ns));
                last = Some(portion.until_ns);
                assert_eq!(samples, [(portion.until_ns % 1000) as i16; 97]);
            });
            if is_over {
                break;
            }
        }
        writer.join().expect("no panic");
        assert!(last.is_some());
    }
}
