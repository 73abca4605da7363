//! A sender and a network between it and the jitter buffer, in virtual time, all from a seed.
//!
//! The ledger records the sent packets, what the network did to them, and the output, so that a test can compare these.

// Each test program uses some of it.
#![allow(dead_code, unreachable_pub)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use threadbare_jitter::fuzzing::Watched;
use threadbare_jitter::{Arrival, Config, Output};
use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// 20 ms at 8 kHz.
pub const UNITS: u32 = 160;
pub const SPACING: u64 = 20 * MS;

/// The splitmix64 generator: good enough for a simulated network, and the same on all platforms.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns `true` with a probability of `permille` / 1000.
    pub fn permille(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }
}

/// An event at the sender before packet number `at`.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The sender restarts with new sequence numbers and timestamps, but the same SSRC.
    Restart { seq: u16, time: u32 },
    /// SSRC, sequence numbers and timestamps change.
    NewSource { ssrc: u32, seq: u16, time: u32 },
    /// The sender pauses. The next packet has the marker, and its timestamp includes the pause.
    Silence { ms: u64 },
    /// As `Silence`, but the timestamps do not advance.
    Freeze { ms: u64 },
}

#[derive(Clone, Copy, Debug)]
pub enum Loss {
    None,
    Uniform {
        permille: u32,
    },
    /// Gilbert-Elliott model: all packets are lost in the bad state, and none in the good one. The values are the probabilities
    /// of a change of the state per packet, in permille.
    Bursts {
        to_bad: u32,
        to_good: u32,
    },
}

/// Behaviour of the network. A packet's delay is the sum of all delays.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub loss: Loss,
    /// Maximum random delay. Each packet is delayed by 0 to this.
    pub jitter_ms: u64,
    /// Permille of packets with an additional delay.
    pub detour_permille: u32,
    pub detour_ms: u64,
    pub duplicate_permille: u32,
    /// How much faster than the local clock the sender's clock is.
    pub drift_ppm: i64,
}

pub const CALM: Net = Net {
    loss: Loss::None,
    jitter_ms: 0,
    detour_permille: 0,
    detour_ms: 0,
    duplicate_permille: 0,
    drift_ppm: 0,
};

#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Send time on the local clock.
    pub at_ns: u64,
    pub ssrc: Ssrc,
    pub seq: SeqNum,
    pub time: RtpTime,
    pub marker: bool,
    pub is_lost: bool,
}

/// A packet that was output.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// Number of the packet among all sent packets.
    pub number: usize,
    pub at_ns: u64,
    pub play_ns: u64,
    pub discont: bool,
}

#[derive(Default)]
pub struct Ledger {
    pub sent: Vec<Sent>,
    pub played: Vec<Played>,
    /// (time, packets, duration) of each loss event.
    pub losses: Vec<(u64, u32, u64)>,
    pub resyncs: u64,
    pub lost_by_net: u64,
}

/// Returns all packets of a sender that starts with these numbers.
pub fn send(
    packets: usize,
    seq: u16,
    time: u32,
    net: &Net,
    events: &[(usize, Event)],
    random: &mut Random,
) -> Vec<Sent> {
    let mut sent = Vec::with_capacity(packets);
    let (mut ssrc, mut seq, mut time) = (Ssrc(1), SeqNum(seq), RtpTime(time));
    // This time is on the sender's clock.
    let mut clock_ns = 10 * SECOND;
    let mut is_bad = false;
    for number in 0..packets {
        let mut marker = number == 0;
        for (_, event) in events.iter().filter(|(at, _)| *at == number) {
            match *event {
                Event::Restart { seq: s, time: t } => (seq, time) = (SeqNum(s), RtpTime(t)),
                Event::NewSource {
                    ssrc: source,
                    seq: s,
                    time: t,
                } => (ssrc, seq, time) = (Ssrc(source), SeqNum(s), RtpTime(t)),
                Event::Silence { ms } => {
                    clock_ns += ms * MS;
                    time = time.plus((ms * 8) as u32);
                    marker = true;
                }
                Event::Freeze { ms } => clock_ns += ms * MS,
            }
        }
        let is_lost = match net.loss {
            Loss::None => false,
            Loss::Uniform { permille } => random.permille(permille),
            Loss::Bursts { to_bad, to_good } => {
                is_bad ^= random.permille(if is_bad { to_good } else { to_bad });
                is_bad
            }
        };
        // On a fast clock, a second ends sooner.
        let at_ns = (clock_ns as i64 - clock_ns as i64 / 1_000_000 * net.drift_ppm) as u64;
        // The first and the last packet are never lost: such a loss cannot be detected.
        let is_lost = is_lost && number > 0 && number < packets - 1;
        sent.push(Sent {
            at_ns,
            ssrc,
            seq,
            time,
            marker,
            is_lost,
        });
        seq = seq.plus(1);
        time = time.plus(UNITS);
        clock_ns += SPACING;
    }
    sent
}

/// Returns the arrival of each copy of each packet, as (time, number), in that order.
pub fn arrivals(
    sent: &[Sent],
    net: &Net,
    random: &mut Random,
) -> BinaryHeap<Reverse<(u64, usize)>> {
    let mut heap = BinaryHeap::with_capacity(sent.len());
    for (number, packet) in sent.iter().enumerate() {
        let mut delay_ns = random.below(net.jitter_ms * MS + 1);
        if random.permille(net.detour_permille) && number > 0 {
            delay_ns += net.detour_ms * MS;
        }
        if packet.is_lost {
            continue;
        }
        heap.push(Reverse((packet.at_ns + delay_ns, number)));
        if random.permille(net.duplicate_permille) {
            heap.push(Reverse((
                packet.at_ns + delay_ns + random.below(MS),
                number,
            )));
        }
    }
    heap
}

/// Passes everything through a jitter buffer, which is polled at every arrival and at its timeouts.
pub fn carry(
    config: Config,
    sent: Vec<Sent>,
    mut heap: BinaryHeap<Reverse<(u64, usize)>>,
) -> (Watched, Ledger) {
    let mut watched = Watched::new(config).expect("valid settings");
    let mut ledger = Ledger {
        lost_by_net: sent.iter().filter(|packet| packet.is_lost).count() as u64,
        sent,
        ..Ledger::default()
    };
    // Handles are numbers of arrivals.
    let mut numbers = Vec::new();
    while let Some(Reverse((at_ns, number))) = heap.pop() {
        wait_until(&mut watched, at_ns, &numbers, &mut ledger);
        let packet = ledger.sent[number];
        numbers.push(number);
        watched.handle(
            at_ns,
            Arrival {
                ssrc: packet.ssrc,
                seq: packet.seq,
                time: packet.time,
                marker: packet.marker,
                arrival_ns: None,
                packet: (),
            },
        );
        let outputs = watched.drain(at_ns);
        note(outputs, at_ns, &numbers, &mut ledger);
    }
    wait_until(&mut watched, u64::MAX / 4, &numbers, &mut ledger);
    (watched, ledger)
}

fn wait_until(watched: &mut Watched, at_ns: u64, numbers: &[usize], ledger: &mut Ledger) {
    while let Some(due_ns) = watched.buffer().next_timeout().filter(|due| *due < at_ns) {
        let outputs = watched.drain(due_ns);
        assert!(
            !outputs.is_empty(),
            "nothing at the time that was asked for"
        );
        note(outputs, due_ns, numbers, ledger);
    }
}

fn note(outputs: Vec<Output<u32>>, at_ns: u64, numbers: &[usize], ledger: &mut Ledger) {
    for output in outputs {
        match output {
            Output::Packet {
                packet,
                play_ns,
                discont,
                ..
            } => ledger.played.push(Played {
                number: numbers[packet as usize],
                at_ns,
                play_ns,
                discont,
            }),
            Output::Lost {
                packets,
                duration_ns,
                ..
            } => ledger.losses.push((at_ns, packets, duration_ns)),
            Output::Resync { .. } => ledger.resyncs += 1,
            Output::Dropped { .. } => {}
        }
    }
}

impl Ledger {
    /// Checks that packets are output in the order in which they were sent, and none twice.
    pub fn assert_in_order(&self) {
        for pair in self.played.windows(2) {
            assert!(pair[0].number < pair[1].number, "{pair:?}");
        }
    }

    /// Returns minimum and maximum of `of` over all packets played from the sent packet `from` on.
    pub fn range(&self, from: usize, of: impl Fn(&Played, &Sent) -> i64) -> (i64, i64) {
        let all = self.played.iter().filter(|played| played.number >= from);
        all.map(|played| of(played, &self.sent[played.number]))
            .fold((i64::MAX, i64::MIN), |(least, greatest), value| {
                (least.min(value), greatest.max(value))
            })
    }
}
