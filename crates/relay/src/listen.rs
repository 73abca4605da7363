//! Who listens to a line or a call: copies of its audio, for other threads.
//!
//! | what | who |
//! |---|---|
//! | [`Ears`] | listeners come under the lock, on any thread; the medium's thread tries it, when there are others |
//! | `Heard`, `Mouth` | the medium's thread |
//! | [`Listening`] | the listener's thread |
//!
//! Between the last two is a ring of bytes with one writer and one reader (rtrb), and neither waits: who does not read in time loses audio, for himself alone.
//! Codes of G.711 go through it as they came, a byte a sample: who listens decodes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};

use rtrb::{Consumer, Producer, RingBuffer};
use threadbare_rtp::call::{Side, Tapped};
use threadbare_runtime::prefetch;

use crate::portion::{HEAD_BYTES, Portion, PortionAudio};
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

/// The end of a listener's ring that is written to. Each portion is put whole.
#[derive(Debug)]
struct Mouth {
    ring: Producer<u8>,
    missed_ns: Arc<AtomicU64>,
}

/// Audio from the moment on that it was asked for: [`Ears::listen`]. Dropped, it is over.
#[derive(Debug)]
pub struct Listening {
    ring: Consumer<u8>,
    missed_ns: Arc<AtomicU64>,
    /// A portion that lies on both ends of the ring.
    joined: Vec<u8>,
    /// Rooms.
    samples: Vec<i16>,
    decoded: Vec<i16>,
}

impl Ears {
    /// Listens to what is carried from now on. `room_bytes`: so many wait for who reads late, of all sides and channels: one for each code of G.711 that is passed
    /// on or converted, two for each sample of what is decoded here, and [`HEAD_BYTES`](crate::HEAD_BYTES) for each portion: a line has 7 in a second, each side of a
    /// call at most one for each packet.
    ///
    /// A line notices by itself; a call has to be told, by [`MediaCall::look_who_listens`](crate::MediaCall::look_who_listens).
    #[must_use]
    pub fn listen(&self, room_bytes: usize) -> Listening {
        let (ring, taken) = RingBuffer::new(room_bytes);
        let missed_ns = Arc::new(AtomicU64::new(0));
        let mouth = Mouth {
            ring,
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
            ring: taken,
            missed_ns,
            joined: Vec::new(),
            samples: Vec::new(),
            decoded: Vec::new(),
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

    /// Memory that the next portion touches, for prefetching, if somebody listens.
    #[inline]
    pub(crate) fn next_address(&self) -> Option<*const u8> {
        self.is_wanted().then(|| self.mouths.as_ptr().cast())
    }

    /// Fetches what the next portion touches, as far as the mouths themselves tell.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for mouth in &self.mouths {
            prefetch(mouth.ring.buffer(), RING_LINES);
        }
    }

    /// Fetches where the next portion goes. What tells that was [fetched](Self::prefetch) before.
    #[inline]
    pub(crate) fn prefetch_room(&mut self) {
        for mouth in &mut self.mouths {
            if let Ok(mut room) = mouth.ring.write_chunk_uninit(PORTION_BYTES) {
                prefetch(room.as_mut_slices().0.as_ptr(), PORTION_LINES);
            }
        }
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

    /// Tells all who listen what was heard until now. Those who have gone are forgotten.
    pub(crate) fn put(&mut self, now_ns: u64, side: Side, tapped: Tapped<'_>) {
        thread_local! {
            static WRITTEN: RefCell<Vec<u8>> = RefCell::default();
        }
        if self.mouths.is_empty() || tapped.audio.is_empty() {
            return;
        }
        WRITTEN.with_borrow_mut(|written| {
            written.clear();
            let until_ns = now_ns.saturating_sub(tapped.followed_ns);
            let portion = Portion::write(until_ns, side, tapped, written);
            self.mouths.retain_mut(|mouth| mouth.put(&portion, written));
        });
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
        !self.ring.is_abandoned()
    }

    /// What does not fit is left out, whole. Whether anybody listens.
    fn put(&mut self, portion: &Portion, written: &[u8]) -> bool {
        if !self.is_wanted() {
            return false;
        }
        if self.ring.push_entire_slice(written).is_err() {
            self.missed_ns.fetch_add(portion.duration_ns(), Relaxed);
        }
        true
    }
}

impl Listening {
    /// What waits first, without its audio.
    #[must_use]
    pub fn peek(&mut self) -> Option<Portion> {
        let chunk = self.ring.read_chunk(HEAD_BYTES).ok()?;
        let (first, second) = chunk.as_slices();
        Portion::read(Cut { first, second }.take(HEAD_BYTES, &mut self.joined))
    }

    /// Takes what was heard since the last call, in order, with interleaved samples of 16 bits.
    pub fn take(&mut self, mut hear: impl FnMut(&Portion, &[i16])) {
        let mut decoded = std::mem::take(&mut self.decoded);
        self.take_coded(|portion, audio| match audio {
            PortionAudio::Samples(samples) => hear(portion, samples),
            _ => {
                decoded.clear();
                audio.decode(portion.format, &mut decoded);
                hear(portion, &decoded);
            }
        });
        self.decoded = decoded;
    }

    /// The same, with codes as they came.
    pub fn take_coded(&mut self, mut hear: impl FnMut(&Portion, PortionAudio<'_>)) {
        // No more than waits now: the end of it does not depend on who writes.
        let Ok(chunk) = self.ring.read_chunk(self.ring.slots()) else {
            return;
        };
        let (first, second) = chunk.as_slices();
        let mut cut = Cut { first, second };
        while let Some(portion) = Portion::read(cut.take(HEAD_BYTES, &mut self.joined)) {
            let bytes = cut.take(portion.audio_bytes(), &mut self.joined);
            hear(&portion, portion.audio(bytes, &mut self.samples));
        }
        chunk.commit_all();
    }

    /// Nothing more will come: what was listened to is gone. To be asked before what is left is taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Audio that was left out, as it was not taken in time, ns.
    #[must_use]
    pub fn missed_ns(&self) -> u64 {
        self.missed_ns.load(Relaxed)
    }
}

/// What is to be read of a ring, which may go on at its beginning.
struct Cut<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

impl<'a> Cut<'a> {
    /// So many bytes, or what is left, joined in `room` if need be.
    fn take<'b>(&mut self, bytes: usize, room: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.first.is_empty() {
            self.first = std::mem::take(&mut self.second);
        }
        if let Some((taken, rest)) = self.first.split_at_checked(bytes) {
            self.first = rest;
            return taken;
        }
        room.clear();
        room.extend_from_slice(self.first);
        let (taken, rest) = self
            .second
            .split_at((bytes - self.first.len()).min(self.second.len()));
        room.extend_from_slice(taken);
        (self.first, self.second) = (rest, &[]);
        room
    }
}

/// 20 ms of G.711, and the cache lines that it may touch.
const PORTION_BYTES: usize = HEAD_BYTES + 160;
const PORTION_LINES: usize = PORTION_BYTES.div_ceil(64) + 1;
/// Cache lines of a ring, without its bytes.
const RING_LINES: usize = size_of::<RingBuffer<u8>>().div_ceil(64);

#[cfg(test)]
mod tests {
    use threadbare_rtp::call::TappedAudio;
    use threadbare_rtp::codec::{Encoding, Format};
    use threadbare_rtp::g711;

    use super::*;

    const ROOM: usize = 1 << 14;
    const FULL_SCALE: f32 = 32_768.0;

    fn format(channels: u8) -> Format {
        Format::new(Encoding::L16, 48_000, channels).expect("a format")
    }

    fn coded(encoding: Encoding) -> Format {
        Format::new(encoding, 8000, 1).expect("a format")
    }

    fn heard(ears: &Ears) -> Heard {
        let mut heard = Heard::new(ears.clone());
        heard.look();
        heard
    }

    fn tapped(format: Format, audio: TappedAudio<'_>) -> Tapped<'_> {
        Tapped {
            format,
            audio,
            followed_ns: 0,
        }
    }

    fn put(heard: &mut Heard, until_ns: u64, side: Side, format: Format, pcm: &[f32]) {
        let audio = TappedAudio::Samples(pcm);
        heard.put(until_ns, side, tapped(format, audio));
    }

    fn put_codes(heard: &mut Heard, until_ns: u64, law: Encoding, codes: &[u8]) {
        let (format, audio) = (coded(law), TappedAudio::Codes(codes));
        heard.put(until_ns, Side::A, tapped(format, audio));
    }

    fn taken(listening: &mut Listening) -> Vec<i16> {
        let mut taken = Vec::new();
        listening.take(|_, samples| taken.extend_from_slice(samples));
        taken
    }

    #[test]
    fn samples_come_out_in_order_and_what_has_no_room_is_counted() {
        let ears = Ears::default();
        // Two portions of 100 ms in stereo do not fit.
        let room = HEAD_BYTES + 2 * 9600;
        let mut listening = ears.listen(room);
        let mut heard = heard(&ears);
        assert_eq!(listening.peek(), None);
        let stereo = format(2);
        // In all more than the ring has, taken as it goes.
        let mut next = 0_u32;
        let (mut expected, mut all) = (Vec::new(), Vec::new());
        while expected.len() < 5 * room {
            let chunk: Vec<i16> = (0..7000).map(|n| (next + n) as i16).collect();
            next += 7000;
            let pcm: Vec<f32> = chunk
                .iter()
                .map(|one| f32::from(*one) / FULL_SCALE)
                .collect();
            put(&mut heard, u64::from(next), Side::B, stereo, &pcm);
            expected.extend(chunk);
            let portion = listening.peek().expect("a portion");
            assert_eq!((portion.until_ns, portion.side), (u64::from(next), Side::B));
            all.extend(taken(&mut listening));
        }
        assert!(all == expected);
        assert_eq!(listening.missed_ns(), 0);
        // Nobody takes: what came first stays.
        for level in [0.25, 0.5, 0.75] {
            put(&mut heard, 0, Side::A, stereo, &[level; 9600]);
        }
        assert_eq!(taken(&mut listening), [8192; 9600]);
        assert_eq!(listening.missed_ns(), 200_000_000);
        // Full scale, and beyond it.
        put(&mut heard, 0, Side::A, stereo, &[1.0, -1.0, 7.0, -7.0]);
        assert_eq!(taken(&mut listening), [32_767, -32_768, 32_767, -32_768]);
    }

    /// Codes as they came, of one law and the other, and what is made up between them (ITU-T G.711, tables 1 and 2).
    #[test]
    fn codes_samples_and_silence_are_one_stream() {
        let ears = Ears::default();
        let [mut coded_too, mut listening] = [ears.listen(ROOM), ears.listen(ROOM)];
        let mut heard = heard(&ears);
        let codes: Vec<u8> = (0..=255).collect();
        put_codes(&mut heard, 1, Encoding::Pcmu, &codes);
        put(&mut heard, 2, Side::A, coded(Encoding::Pcmu), &[0.5; 80]);
        put_codes(&mut heard, 3, Encoding::Pcma, &codes);
        let (format, audio) = (coded(Encoding::Pcma), TappedAudio::Silence(40));
        heard.put(4, Side::A, tapped(format, audio));
        put_codes(&mut heard, 5, Encoding::Pcmu, &codes[..160]);
        let mut due = g711::ULAW_TO_LINEAR.to_vec();
        due.extend([16_384; 80]);
        due.extend(g711::ALAW_TO_LINEAR);
        due.extend([0; 40]);
        due.extend(&g711::ULAW_TO_LINEAR[..160]);
        assert!(taken(&mut listening) == due);
        let mut came = Vec::new();
        coded_too.take_coded(|portion, audio| {
            let law = portion.format.encoding;
            came.push(match audio {
                PortionAudio::Codes(own) => (portion.until_ns, law, own == &codes[..own.len()]),
                PortionAudio::Samples(samples) => (portion.until_ns, law, samples == [16_384; 80]),
                PortionAudio::Silence(samples) => (portion.until_ns, law, samples == 40),
            });
        });
        let (pcmu, pcma) = (Encoding::Pcmu, Encoding::Pcma);
        let due = [(1, pcmu), (2, pcmu), (3, pcma), (4, pcma), (5, pcmu)];
        assert_eq!(came, due.map(|(at, law)| (at, law, true)));
    }

    /// By the room: a second of PCMU in packets of 20 ms waits where a second of samples would not.
    #[test]
    fn who_takes_too_late_misses_what_does_not_fit() {
        let ears = Ears::default();
        let second = 50 * (HEAD_BYTES + 160);
        let mut listening = ears.listen(second);
        let mut heard = heard(&ears);
        for number in 0..75 {
            put_codes(&mut heard, number, Encoding::Pcmu, &[number as u8; 160]);
        }
        assert_eq!(listening.missed_ns(), 500_000_000);
        // Silence takes no room, but for its head.
        let (format, audio) = (coded(Encoding::Pcmu), TappedAudio::Silence(160));
        heard.put(75, Side::A, tapped(format, audio));
        assert_eq!(listening.missed_ns(), 520_000_000);
        let mut times = Vec::new();
        listening.take(|portion, samples| {
            assert_eq!(samples, [g711::ULAW_TO_LINEAR[times.len()]; 160]);
            times.push(portion.until_ns);
        });
        assert_eq!(times, (0..50).collect::<Vec<_>>());
        put_codes(&mut heard, 76, Encoding::Pcmu, &[7; 160]);
        assert_eq!(taken(&mut listening), [g711::ULAW_TO_LINEAR[7]; 160]);
        assert_eq!(listening.missed_ns(), 520_000_000);
    }

    #[test]
    fn who_listens_outlives_a_medium_and_not_the_ears() {
        let ears = Ears::default();
        let [mut one, other] = [ears.listen(ROOM), ears.listen(ROOM)];
        let mut first = heard(&ears);
        assert!(first.is_wanted() && !first.has_news());
        drop(other);
        put(&mut first, 1, Side::A, format(1), &[0.5]);
        assert_eq!(first.mouths.len(), 1);
        assert_eq!(taken(&mut one), [16_384]);
        // Another medium in its place.
        drop(first);
        assert!(!one.is_over());
        let mut second = Heard::new(ears.clone());
        assert!(second.has_news());
        second.look();
        put(&mut second, 2, Side::A, format(2), &[0.5, 0.5]);
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
        let mut listening = ears.listen(2000);
        let mut heard = heard(&ears);
        let writer = std::thread::spawn(move || {
            for n in 0..20_000_u64 {
                if n % 2 == 0 {
                    let pcm = [(n % 1000) as f32 / FULL_SCALE; 97];
                    put(&mut heard, n, Side::A, format(1), &pcm);
                } else {
                    put_codes(&mut heard, n, Encoding::Pcma, &[n as u8; 103]);
                }
            }
        });
        let mut last = None;
        loop {
            let is_over = writer.is_finished();
            listening.take(|portion, samples| {
                assert!(last < Some(portion.until_ns));
                last = Some(portion.until_ns);
                let n = portion.until_ns;
                match n % 2 {
                    0 => assert_eq!(samples, [(n % 1000) as i16; 97]),
                    _ => assert_eq!(samples, [g711::ALAW_TO_LINEAR[n as usize % 256]; 103]),
                }
            });
            if is_over {
                break;
            }
        }
        writer.join().expect("no panic");
        assert!(last.is_some());
    }
}
