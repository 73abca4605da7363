//! Listeners of a session, which get copies of its audio on other threads.
//!
//! | data | thread |
//! |---|---|
//! | [`Listeners`] | any thread adds listeners, under the lock; the media session's thread only tries the lock, after an addition |
//! | `SessionListeners`, `ListenerRing` | the media session's thread |
//! | [`Listening`] | the listener's thread |
//!
//! A `ListenerRing` and its [`Listening`] are the two ends of a ring of bytes with one writer and one reader (rtrb). Neither end waits. A
//! listener that reads too late loses audio, without an effect on others. G.711 codes go through the ring unchanged, one byte per sample,
//! and the listener decodes them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};

use rtrb::{Consumer, Producer, RingBuffer};
use threadbare_rtp::call::{Side, Tapped};
use threadbare_runtime::prefetch;

use crate::portion::{HEAD_BYTES, Portion, PortionAudio};
use crate::sync::lock;

/// The listeners of a session. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Number of listeners that were added so far.
    generation: AtomicU64,
    /// Listeners that no media session has yet, or whose media session has ended.
    waiting: Mutex<Vec<ListenerRing>>,
}

/// The listeners of a media session, on its thread. When it is dropped, the next session gets them.
#[derive(Debug)]
pub(crate) struct SessionListeners {
    listeners: Listeners,
    generation: u64,
    rings: Vec<ListenerRing>,
}

/// The write end of a listener's ring. A portion is written completely or not at all.
#[derive(Debug)]
struct ListenerRing {
    ring: Producer<u8>,
    missed_ns: Arc<AtomicU64>,
}

/// The read end of a listener. It gets audio from the time of [`Listeners::listen`] on. Dropping it ends the listening.
#[derive(Debug)]
pub struct Listening {
    ring: Consumer<u8>,
    missed_ns: Arc<AtomicU64>,
    /// Working memory for a portion that wraps around the ring's end.
    joined: Vec<u8>,
    /// Working memory for decoded samples.
    samples: Vec<i16>,
    decoded: Vec<i16>,
}

impl Listeners {
    /// Listens from now on. `room_bytes` is the size of the buffer for all sides and channels. A G.711 code that is forwarded or converted
    /// takes one byte, a sample that is decoded here takes two, and each portion takes [`HEAD_BYTES`](crate::HEAD_BYTES). A stream has 7
    /// portions a second. Each side of a call has at most one per packet.
    ///
    /// A session that publishes a snapshot notices a new listener itself. Other sessions need
    /// [`AudioSession::update_listeners`](crate::AudioSession::update_listeners).
    #[must_use]
    pub fn listen(&self, room_bytes: usize) -> Listening {
        let (ring, taken) = RingBuffer::new(room_bytes);
        let missed_ns = Arc::new(AtomicU64::new(0));
        let ring_end = ListenerRing {
            ring,
            missed_ns: missed_ns.clone(),
        };
        let mut waiting = lock(&self.0.waiting);
        // Some listeners that wait for a session may have been dropped meanwhile.
        let gone: Vec<ListenerRing> = waiting.extract_if(.., |one| !one.is_wanted()).collect();
        waiting.push(ring_end);
        // This happens under the lock, so that a thread that sees the number also finds the new list.
        self.0.generation.fetch_add(1, Relaxed);
        drop(waiting);
        // The memory of these rings is freed outside the lock.
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

impl SessionListeners {
    /// Creates the state of a session that knows none of these listeners yet.
    pub(crate) fn new(listeners: Listeners) -> SessionListeners {
        SessionListeners {
            listeners,
            generation: 0,
            rings: Vec::new(),
        }
    }

    /// Whether there are listeners, as far as this session knows.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Returns the address of memory that the next portion touches, for prefetching. `None`: there are no listeners.
    #[inline]
    pub(crate) fn next_address(&self) -> Option<*const u8> {
        self.is_wanted().then(|| self.rings.as_ptr().cast())
    }

    /// Prefetches the ends of the rings, from which the place of the next portion follows.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for ring_end in &self.rings {
            prefetch(ring_end.ring.buffer(), RING_LINES);
        }
    }

    /// Prefetches the place of the next portion. The ends of the rings must have been [prefetched](Self::prefetch) before.
    #[inline]
    pub(crate) fn prefetch_room(&mut self) {
        for ring_end in &mut self.rings {
            if let Ok(mut room) = ring_end.ring.write_chunk_uninit(PORTION_BYTES) {
                prefetch(room.as_mut_slices().0.as_ptr(), PORTION_LINES);
            }
        }
    }

    /// Whether listeners may have been added. This takes a single load.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.listeners.0.generation.load(Relaxed) != self.generation
    }

    /// Finds new listeners. If one is being added at this moment, the next turn finds it.
    #[cold]
    pub(crate) fn look(&mut self) {
        let generation = self.listeners.0.generation.load(Relaxed);
        let mut waiting = match self.listeners.0.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // Listeners that are added after the number was read are found the next time.
        self.generation = generation;
        self.rings.retain(ListenerRing::is_wanted);
        self.rings.append(&mut waiting);
    }

    /// Passes the audio so far to all listeners. Dropped listeners are removed.
    pub(crate) fn put(&mut self, now_ns: u64, side: Side, tapped: Tapped<'_>) {
        thread_local! {
            static WRITTEN: RefCell<Vec<u8>> = RefCell::default();
        }
        if self.rings.is_empty() || tapped.audio.is_empty() {
            return;
        }
        WRITTEN.with_borrow_mut(|written| {
            written.clear();
            let until_ns = now_ns.saturating_sub(tapped.followed_ns);
            let portion = Portion::write(until_ns, side, tapped, written);
            self.rings
                .retain_mut(|ring_end| ring_end.put(&portion, written));
        });
    }
}

impl Drop for SessionListeners {
    fn drop(&mut self) {
        if self.is_wanted() {
            let mut waiting = lock(&self.listeners.0.waiting);
            waiting.append(&mut self.rings);
            self.listeners.0.generation.fetch_add(1, Relaxed);
        }
    }
}

impl ListenerRing {
    fn is_wanted(&self) -> bool {
        !self.ring.is_abandoned()
    }

    /// Writes a portion, or drops it if there is not enough room. Returns whether the listener still exists.
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
    /// Returns the next portion's description, without its audio.
    #[must_use]
    pub fn peek(&mut self) -> Option<Portion> {
        let chunk = self.ring.read_chunk(HEAD_BYTES).ok()?;
        let (first, second) = chunk.as_slices();
        Portion::read(Cut { first, second }.take(HEAD_BYTES, &mut self.joined))
    }

    /// Passes the audio since the last call to `hear`, in order, as interleaved samples of 16 bits.
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

    /// Acts as [`take`](Self::take), but codes are passed unchanged.
    pub fn take_coded(&mut self, mut hear: impl FnMut(&Portion, PortionAudio<'_>)) {
        // Read only the portions that are queued now, so that this ends even if the writer continues.
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

    /// Whether the source has ended, so that no more audio follows. Check this before taking the rest.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Returns the duration of the audio that was dropped because it was not taken in time, ns.
    #[must_use]
    pub fn missed_ns(&self) -> u64 {
        self.missed_ns.load(Relaxed)
    }
}

/// The unread bytes of a ring. They may wrap around.
struct Cut<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

impl<'a> Cut<'a> {
    /// Returns the next bytes, at most `bytes`. They are joined in `room` if necessary.
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

/// Number of bytes of a portion with 20 ms of G.711, for prefetching.
const PORTION_BYTES: usize = HEAD_BYTES + 160;
const PORTION_LINES: usize = PORTION_BYTES.div_ceil(64) + 1;
/// Number of cache lines of a ring, without its bytes.
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

    fn attached(listeners: &Listeners) -> SessionListeners {
        let mut attached = SessionListeners::new(listeners.clone());
        attached.look();
        attached
    }

    fn tapped(format: Format, audio: TappedAudio<'_>) -> Tapped<'_> {
        Tapped {
            format,
            audio,
            followed_ns: 0,
        }
    }

    fn put(
        attached: &mut SessionListeners,
        until_ns: u64,
        side: Side,
        format: Format,
        pcm: &[f32],
    ) {
        let audio = TappedAudio::Samples(pcm);
        attached.put(until_ns, side, tapped(format, audio));
    }

    fn put_codes(attached: &mut SessionListeners, until_ns: u64, law: Encoding, codes: &[u8]) {
        let (format, audio) = (coded(law), TappedAudio::Codes(codes));
        attached.put(until_ns, Side::A, tapped(format, audio));
    }

    fn taken(listening: &mut Listening) -> Vec<i16> {
        let mut taken = Vec::new();
        listening.take(|_, samples| taken.extend_from_slice(samples));
        taken
    }

    #[test]
    fn samples_leave_in_order_and_excess_is_counted() {
        let listeners = Listeners::default();
        // Two portions of 100 ms in stereo exceed the room.
        let room = HEAD_BYTES + 2 * 9600;
        let mut listening = listeners.listen(room);
        let mut attached = attached(&listeners);
        assert_eq!(listening.peek(), None);
        let stereo = format(2);
        // In all, the portions exceed the ring, but they are taken in steps.
        let mut next = 0_u32;
        let (mut expected, mut all) = (Vec::new(), Vec::new());
        while expected.len() < 5 * room {
            let chunk: Vec<i16> = (0..7000).map(|n| (next + n) as i16).collect();
            next += 7000;
            let pcm: Vec<f32> = chunk
                .iter()
                .map(|one| f32::from(*one) / FULL_SCALE)
                .collect();
            put(&mut attached, u64::from(next), Side::B, stereo, &pcm);
            expected.extend(chunk);
            let portion = listening.peek().expect("a portion");
            assert_eq!((portion.until_ns, portion.side), (u64::from(next), Side::B));
            all.extend(taken(&mut listening));
        }
        assert!(all == expected);
        assert_eq!(listening.missed_ns(), 0);
        // Nothing reads the ring, so the first portions stay in it.
        for level in [0.25, 0.5, 0.75] {
            put(&mut attached, 0, Side::A, stereo, &[level; 9600]);
        }
        assert_eq!(taken(&mut listening), [8192; 9600]);
        assert_eq!(listening.missed_ns(), 200_000_000);
        // The values are at full scale and beyond it.
        put(&mut attached, 0, Side::A, stereo, &[1.0, -1.0, 7.0, -7.0]);
        assert_eq!(taken(&mut listening), [32_767, -32_768, 32_767, -32_768]);
    }

    /// The codes of both laws pass unchanged, with concealment between them (ITU-T G.711, tables 1 and 2).
    #[test]
    fn a_listener_gets_codes_samples_and_silence_in_order() {
        let listeners = Listeners::default();
        let [mut coded_too, mut listening] = [listeners.listen(ROOM), listeners.listen(ROOM)];
        let mut attached = attached(&listeners);
        let codes: Vec<u8> = (0..=255).collect();
        put_codes(&mut attached, 1, Encoding::Pcmu, &codes);
        put(&mut attached, 2, Side::A, coded(Encoding::Pcmu), &[0.5; 80]);
        put_codes(&mut attached, 3, Encoding::Pcma, &codes);
        let (format, audio) = (coded(Encoding::Pcma), TappedAudio::Silence(40));
        attached.put(4, Side::A, tapped(format, audio));
        put_codes(&mut attached, 5, Encoding::Pcmu, &codes[..160]);
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

    /// The room in bytes is the limit. A second of PCMU in packets of 20 ms fits, even if a second of samples does not.
    #[test]
    fn slow_listener_misses_excess_audio() {
        let listeners = Listeners::default();
        let second = 50 * (HEAD_BYTES + 160);
        let mut listening = listeners.listen(second);
        let mut attached = attached(&listeners);
        for number in 0..75 {
            put_codes(&mut attached, number, Encoding::Pcmu, &[number as u8; 160]);
        }
        assert_eq!(listening.missed_ns(), 500_000_000);
        // Silence takes no room apart from its head.
        let (format, audio) = (coded(Encoding::Pcmu), TappedAudio::Silence(160));
        attached.put(75, Side::A, tapped(format, audio));
        assert_eq!(listening.missed_ns(), 520_000_000);
        let mut times = Vec::new();
        listening.take(|portion, samples| {
            assert_eq!(samples, [g711::ULAW_TO_LINEAR[times.len()]; 160]);
            times.push(portion.until_ns);
        });
        assert_eq!(times, (0..50).collect::<Vec<_>>());
        put_codes(&mut attached, 76, Encoding::Pcmu, &[7; 160]);
        assert_eq!(taken(&mut listening), [g711::ULAW_TO_LINEAR[7]; 160]);
        assert_eq!(listening.missed_ns(), 520_000_000);
    }

    #[test]
    fn listener_outlives_a_media_session_but_not_the_listeners() {
        let listeners = Listeners::default();
        let [mut one, other] = [listeners.listen(ROOM), listeners.listen(ROOM)];
        let mut first = attached(&listeners);
        assert!(first.is_wanted() && !first.has_news());
        drop(other);
        put(&mut first, 1, Side::A, format(1), &[0.5]);
        assert_eq!(first.rings.len(), 1);
        assert_eq!(taken(&mut one), [16_384]);
        // Another media session replaces the first one.
        drop(first);
        assert!(!one.is_over());
        let mut second = SessionListeners::new(listeners.clone());
        assert!(second.has_news());
        second.look();
        put(&mut second, 2, Side::A, format(2), &[0.5, 0.5]);
        drop((second, listeners));
        assert!(one.is_over());
        assert_eq!(taken(&mut one), [16_384, 16_384]);
    }

    /// Rings of listeners that were dropped are freed when another listener is added, or when the media session looks for new ones.
    #[test]
    fn rings_of_dropped_listeners_are_freed() {
        let listeners = Listeners::default();
        for _ in 0..100 {
            drop(listeners.listen(ROOM));
        }
        let _last = listeners.listen(ROOM);
        assert_eq!(lock(&listeners.0.waiting).len(), 1);
        let mut attached = attached(&listeners);
        for _ in 0..100 {
            drop(listeners.listen(ROOM));
            attached.look();
            assert!(attached.rings.len() <= 2);
        }
    }

    /// On two threads, each sample arrives unchanged, and portions are only dropped as a whole.
    #[test]
    fn writer_and_reader_on_two_threads_lose_no_part_of_a_portion() {
        let listeners = Listeners::default();
        let mut listening = listeners.listen(2000);
        let mut attached = attached(&listeners);
        let writer = std::thread::spawn(move || {
            for n in 0..20_000_u64 {
                if n % 2 == 0 {
                    let pcm = [(n % 1000) as f32 / FULL_SCALE; 97];
                    put(&mut attached, n, Side::A, format(1), &pcm);
                } else {
                    put_codes(&mut attached, n, Encoding::Pcma, &[n as u8; 103]);
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
