//! The fuzz target `jitter`. The bytes are settings, arrivals and jumps in time.

use crate::{Adaptive, Arrival, Config, DropReason, JitterBuffer, Output, Release, Skew};
use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

/// A jitter buffer with a check of the invariants after every call.
///
/// Packets are numbered from 0 in the order in which they are handed in.
#[derive(Debug)]
pub struct Watched {
    buffer: JitterBuffer<u32>,
    /// Whether each packet has been returned, by number.
    returned: Vec<bool>,
    /// After a reset, packets before this number are not returned.
    forgotten: usize,
    last_play_ns: u64,
    /// Sequence number of the next output, if it is known.
    expected: Option<SeqNum>,
    /// Whether no output was left when the last packet was handed in.
    is_drained: bool,
    /// Whether the output was not drained at some time, so that packets may have been lost.
    was_neglected: bool,
}

/// Maximum number of outputs of one drain. Each output takes a packet or a mark from a bounded store. So if there are more
/// outputs, the loop is endless.
const OUTPUTS_MAX: usize = 2_000;

impl Watched {
    /// Creates the buffer; `None` if the settings are invalid.
    #[must_use]
    pub fn new(config: Config) -> Option<Watched> {
        Some(Watched {
            buffer: JitterBuffer::new(config).ok()?,
            returned: Vec::new(),
            forgotten: 0,
            last_play_ns: 0,
            expected: None,
            is_drained: true,
            was_neglected: false,
        })
    }

    /// Returns the buffer, for reading.
    #[must_use]
    pub fn buffer(&self) -> &JitterBuffer<u32> {
        &self.buffer
    }

    /// Returns the buffer, for changes of settings. Drain it afterwards.
    pub fn buffer_mut(&mut self) -> &mut JitterBuffer<u32> {
        &mut self.buffer
    }

    /// Hands in the next packet. Its handle is its number.
    pub fn handle(&mut self, now_ns: u64, arrival: Arrival<()>) {
        self.was_neglected |= !std::mem::replace(&mut self.is_drained, false);
        let packet = self.returned.len() as u32;
        self.returned.push(false);
        self.buffer.handle_packet(
            now_ns,
            Arrival {
                ssrc: arrival.ssrc,
                seq: arrival.seq,
                time: arrival.time,
                marker: arrival.marker,
                arrival_ns: arrival.arrival_ns,
                packet,
            },
        );
        self.check_counts();
    }

    /// Flushes: the next packet is the first of a stream.
    pub fn flush(&mut self) {
        self.buffer.flush();
        self.expected = None;
    }

    /// Returns to the initial state without held packets.
    pub fn reset(&mut self) {
        self.buffer.reset();
        self.forgotten = self.returned.len();
        self.last_play_ns = 0;
        self.expected = None;
    }

    /// Takes all outputs that are due. Checks that the next one is not due before [`JitterBuffer::next_timeout`].
    pub fn drain(&mut self, now_ns: u64) -> Vec<Output<u32>> {
        let outputs = self.take_all(|buffer| buffer.poll_output(now_ns));
        let stats = self.buffer.stats();
        assert!(stats.held_packets <= u32::from(self.buffer.config().capacity_packets));
        if let Some(due_ns) = self.buffer.next_timeout() {
            // The clock stops at a limit far beyond any uptime.
            assert!(due_ns > now_ns.min(NOW_NS_MAX));
            assert_eq!(self.buffer.poll_output(due_ns - 1), None);
        } else {
            assert!(
                stats.held_packets <= 1,
                "only a candidate waits without a time"
            );
        }
        outputs
    }

    /// Takes all outputs that are due, but stops at a loss that the next packet might prevent.
    pub fn drain_before_loss(&mut self, now_ns: u64) -> Vec<Output<u32>> {
        let outputs = self.take_all(|buffer| buffer.poll_before_loss(now_ns));
        if !self.buffer.is_loss_due(now_ns) {
            let rest = self.drain(now_ns);
            assert!(rest.is_empty(), "there is no difference then: {rest:?}");
        }
        outputs
    }

    fn take_all(
        &mut self,
        poll: impl Fn(&mut JitterBuffer<u32>) -> Option<Output<u32>>,
    ) -> Vec<Output<u32>> {
        let mut outputs = Vec::new();
        while let Some(output) = poll(&mut self.buffer) {
            self.check_output(&output);
            outputs.push(output);
            self.check_counts();
            assert!(outputs.len() < OUTPUTS_MAX, "an endless drain");
        }
        self.is_drained = true;
        outputs
    }

    fn check_output(&mut self, output: &Output<u32>) {
        match *output {
            Output::Packet {
                packet,
                seq,
                play_ns,
                ..
            } => {
                self.check_returned(packet);
                self.check_play(play_ns);
                assert!(self.expected.is_none_or(|expected| expected == seq));
                self.expected = Some(seq.plus(1));
            }
            Output::Lost {
                first,
                packets,
                play_ns,
                ..
            } => {
                assert!(packets > 0);
                self.check_play(play_ns);
                assert!(self.expected.is_none_or(|expected| expected == first));
                self.expected = Some(first.plus(packets as u16));
            }
            Output::Resync { .. } => self.expected = None,
            Output::Dropped { packet, reason } => {
                self.check_returned(packet);
                assert!(reason != DropReason::Full || self.was_neglected);
                if matches!(reason, DropReason::Latency | DropReason::Flushed) {
                    self.expected = None;
                }
            }
        }
    }

    fn check_returned(&mut self, packet: u32) {
        let returned = &mut self.returned[packet as usize];
        assert!(packet as usize >= self.forgotten && !*returned);
        *returned = true;
    }

    fn check_play(&mut self, play_ns: u64) {
        assert!(play_ns >= self.last_play_ns, "play times go back");
        self.last_play_ns = play_ns;
    }

    /// Checks that every packet is counted in exactly one place.
    fn check_counts(&self) {
        let stats = self.buffer.stats();
        let out = stats.delivered + stats.late + stats.duplicates + stats.dropped();
        assert_eq!(stats.received, out + u64::from(stats.held_packets));
        assert_eq!(stats.held_packets, self.buffer.held_packets());
    }

    /// Checks that each packet was returned exactly once, if the output was always drained. Call it when no packet is held.
    pub fn check_all_returned(&self) {
        assert!(self.was_neglected || self.returned[self.forgotten..].iter().all(|back| *back));
    }
}

/// Input bytes in order; 0 after the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }
}

/// The stream to which most arrivals belong, and the time.
struct Stream {
    now_ns: u64,
    ssrc: Ssrc,
    seq: SeqNum,
    time: RtpTime,
}

/// Feeds arbitrary arrivals between pieces of an orderly stream, at arbitrary times.
pub fn jitter(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(mut watched) = Watched::new(config(&mut bytes)) else {
        return;
    };
    let mut stream = Stream {
        now_ns: u64::from(bytes.u16()) * MS,
        ssrc: Ssrc(1),
        seq: SeqNum(bytes.u16()),
        time: RtpTime(bytes.u32()),
    };
    while !bytes.0.is_empty() {
        let operation = bytes.u8();
        operate(operation % 16, &mut bytes, &mut watched, &mut stream);
        match operation {
            // If the caller does not drain the output, packets are lost, but nothing else goes wrong.
            0xf0.. => {}
            0xd0.. => drop(watched.drain_before_loss(stream.now_ns)),
            _ => drop(watched.drain(stream.now_ns)),
        }
    }
    watched.buffer_mut().release_all();
    watched.flush();
    watched.drain(stream.now_ns);
    assert_eq!(watched.buffer().held_packets(), 0);
    watched.check_all_returned();
}

fn operate(operation: u8, bytes: &mut Bytes<'_>, watched: &mut Watched, stream: &mut Stream) {
    match operation {
        // A packet in order, sometimes after a loss or an irregular pause.
        0..=5 => {
            let skipped = if operation > 3 {
                u16::from(bytes.u8())
            } else {
                0
            };
            let spacing = if operation > 4 { bytes.u16() } else { 160 };
            stream.seq = stream.seq.plus(1 + skipped);
            stream.time = stream
                .time
                .plus(u32::from(spacing).wrapping_mul(1 + u32::from(skipped)));
            advance(stream, u64::from(bytes.u8() % 64) * MS);
            let (seq, time) = (stream.seq, stream.time);
            arrive(watched, stream, stream.ssrc, seq, time, operation == 5);
        }
        // An earlier or later packet with its own timestamp.
        6..=7 => {
            let step = i16::from(bytes.u8() as i8);
            let seq = stream.seq.plus(step as u16);
            let time = stream.time.plus((i32::from(step) * 160) as u32);
            arrive(watched, stream, stream.ssrc, seq, time, false);
        }
        // An arbitrary packet.
        8 => {
            let ssrc = Ssrc(u32::from(bytes.u8() % 4));
            let (seq, time) = (SeqNum(bytes.u16()), RtpTime(bytes.u32()));
            arrive(watched, stream, ssrc, seq, time, bytes.u8() > 127);
        }
        // The stream restarts.
        9 => {
            stream.ssrc = Ssrc(u32::from(bytes.u8() % 4));
            stream.seq = SeqNum(bytes.u16());
            stream.time = RtpTime(bytes.u32());
        }
        10 => advance(stream, u64::from(bytes.u16()) * MS),
        11 => advance(stream, 1 << (bytes.u8() % 64)),
        12 => {
            if let Some(due_ns) = watched.buffer().next_timeout() {
                stream.now_ns = stream.now_ns.max(due_ns);
                let outputs = watched.drain(stream.now_ns);
                assert!(!outputs.is_empty() || stream.now_ns > NOW_NS_MAX);
            }
        }
        13 => set(bytes, watched),
        14 => watched.buffer_mut().release_all(),
        _ => match bytes.u8() {
            0..128 => watched.flush(),
            _ => watched.reset(),
        },
    }
}

fn set(bytes: &mut Bytes<'_>, watched: &mut Watched) {
    let latency_ns = u64::from(bytes.u16()) * MS;
    let buffer = watched.buffer_mut();
    match buffer.set_latency_ns(latency_ns) {
        Ok(()) => assert!(buffer.config().latency_ns == latency_ns),
        Err(_) => assert!(latency_ns > crate::LATENCY_NS_MAX),
    }
    let choice = bytes.u8();
    buffer.set_drop_on_latency(choice & 1 == 1);
    buffer.set_release(release(choice));
    buffer.set_tolerance_ms(u32::from(bytes.u16()), u32::from(bytes.u16()));
}

fn arrive(
    watched: &mut Watched,
    stream: &Stream,
    ssrc: Ssrc,
    seq: SeqNum,
    time: RtpTime,
    marker: bool,
) {
    let arrival = Arrival {
        ssrc,
        seq,
        time,
        marker,
        arrival_ns: marker.then_some(stream.now_ns / 2),
        packet: (),
    };
    watched.handle(stream.now_ns, arrival);
}

fn advance(stream: &mut Stream, by_ns: u64) {
    stream.now_ns = stream.now_ns.saturating_add(by_ns);
}

fn config(bytes: &mut Bytes<'_>) -> Config {
    let choice = bytes.u8();
    let clock_rate_hz = [8_000, 48_000, 90_000, 1][usize::from(choice >> 6)];
    Config {
        release: release(choice),
        drop_on_latency: choice & 4 != 0,
        skew: if choice & 8 != 0 {
            Skew::None
        } else {
            Skew::Window
        },
        adaptive: (choice & 16 != 0).then_some(Adaptive {
            min_ns: 10 * MS,
            max_ns: 400 * MS,
        }),
        capacity_packets: if choice & 32 != 0 { 256 } else { 64 },
        ..Config::new(clock_rate_hz, u64::from(bytes.u8()) * 4 * MS)
    }
}

fn release(choice: u8) -> Release {
    if choice & 2 != 0 {
        Release::InOrder
    } else {
        Release::AtDeadline
    }
}

/// The buffer's clock ends at half the range of an `i64`. Outputs that are due later than that plus a minute's latency are never
/// output.
const NOW_NS_MAX: u64 = i64::MAX as u64 / 2;

const MS: u64 = 1_000_000;
