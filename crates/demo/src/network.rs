//! Simulates the network between parties and gateway. The network loses packets, delays them, and lets later packets overtake them.
//!
//! Only the seed, the stream and the number of a packet determine what happens to it. Time is a parameter, in ticks of 1 ms.

use serde::{Deserialize, Serialize};

/// Settings of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Harm {
    /// Percentage of packets that are lost.
    pub loss_percent: f64,
    /// Longest random delay of each packet, in milliseconds.
    pub jitter_ms: u32,
    /// Percentage of packets that the next packet of the stream overtakes.
    pub reorder_percent: f64,
    /// Number that determines which packets are affected.
    pub seed: u64,
}

/// What the network does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It sends the packet at once.
    Prompt,
    /// It holds the packet. [`Network::release`] passes the packet on later.
    Delayed,
    /// It loses the packet.
    Lost,
}

/// A packet, named by its stream and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) stream: usize,
    pub(super) packet: u32,
}

/// Carries the packets of all streams.
#[derive(Debug)]
pub(super) struct Network {
    harm: Harm,
    /// Number of the last packet of each stream.
    last_packet: u32,
    /// Number of packets that were lost in a row, for each stream.
    lost_in_a_row: Vec<u8>,
    /// Held packets. Index n modulo the length contains the packets that are released at tick n.
    wheel: Vec<Vec<Parcel>>,
    /// The next tick whose packets are released.
    tick: u64,
    held: usize,
}

impl Network {
    /// Creates a network for this many streams with this many packets each.
    pub(super) fn new(harm: Harm, streams: usize, packets: u32) -> Network {
        Network {
            harm,
            last_packet: packets.saturating_sub(1),
            lost_in_a_row: vec![0; streams],
            wheel: vec![Vec::new(); WHEEL_TICKS],
            tick: 0,
            held: 0,
        }
    }

    /// Decides what happens to a packet at this tick.
    pub(super) fn carry(&mut self, tick: u64, parcel: Parcel) -> Fate {
        let harm = self.harm;
        // The first and the last packets of a call are not affected. A receiver cannot notice a loss at either end, and its statistics
        // begin with the first packets.
        let is_spared = parcel.packet < SPARED_PACKETS || parcel.packet >= self.last_packet;
        if is_spared || harm.is_none() {
            return Fate::Prompt;
        }
        let mut dice = Dice::new(harm.seed, parcel);
        let run = &mut self.lost_in_a_row[parcel.stream];
        if dice.percent() < harm.loss_percent && *run < LOST_IN_A_ROW_MAX {
            *run += 1;
            return Fate::Lost;
        }
        *run = 0;
        let mut delay_ms = (dice.unit() * f64::from(harm.jitter_ms + 1)) as u64;
        if dice.percent() < harm.reorder_percent {
            delay_ms += OVERTAKEN_MS;
        }
        if delay_ms == 0 {
            return Fate::Prompt;
        }
        let slot = (tick + delay_ms) as usize % WHEEL_TICKS;
        self.wheel[slot].push(parcel);
        self.held += 1;
        Fate::Delayed
    }

    /// Passes to `take` the packets that were held until `tick`.
    pub(super) fn release(&mut self, tick: u64, mut take: impl FnMut(Parcel)) {
        while self.tick <= tick {
            let slot = &mut self.wheel[self.tick as usize % WHEEL_TICKS];
            self.held -= slot.len();
            slot.drain(..).for_each(&mut take);
            self.tick += 1;
        }
    }

    /// Whether the network holds no packet.
    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }
}

impl Harm {
    /// Whether the network affects no packet.
    pub fn is_none(&self) -> bool {
        self.loss_percent <= 0.0 && self.jitter_ms == 0 && self.reorder_percent <= 0.0
    }
}

/// Generator of the random numbers for a packet. It is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014).
struct Dice(u64);

impl Dice {
    fn new(seed: u64, parcel: Parcel) -> Dice {
        let place = (parcel.stream as u64) << 32 | u64::from(parcel.packet);
        let mut dice = Dice(seed);
        let start = dice.next() ^ place.wrapping_mul(GOLDEN);
        Dice(start)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 up to, but not including, 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn percent(&mut self) -> f64 {
        100.0 * self.unit()
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number of packets at the start of a call that are not affected.
const SPARED_PACKETS: u32 = 10;
/// Maximum number of packets lost in a row. Five packets are 100 ms. The gateway conceals up to 200 ms, and treats longer
/// losses as pauses.
const LOST_IN_A_ROW_MAX: u8 = 5;
/// Additional delay of an overtaken packet. It is the duration of a packet, and a margin.
const OVERTAKEN_MS: u64 = 25;
/// Number of ticks in the wheel. It is more than the longest delay, which is the sum of [`JITTER_MS_MAX`] and [`OVERTAKEN_MS`].
const WHEEL_TICKS: usize = 512;
/// Maximum of the random delay. With longer delays, a network is useless for speech.
pub(super) const JITTER_MS_MAX: i64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    const HARM: Harm = Harm {
        loss_percent: 5.0,
        jitter_ms: 30,
        reorder_percent: 2.0,
        seed: 7,
    };

    /// Returns what happens to 10,000 packets of one stream, and the delays of the delayed packets.
    fn play(harm: Harm) -> (Vec<Fate>, Vec<u64>) {
        let mut network = Network::new(harm, 1, 10_000);
        let (mut fates, mut delays_ms) = (Vec::new(), Vec::new());
        for tick in 0..200_500 {
            let sent_at = |parcel: Parcel| u64::from(parcel.packet) * 20;
            network.release(tick, |parcel| delays_ms.push(tick - sent_at(parcel)));
            if tick % 20 == 0 && tick < 200_000 {
                let packet = (tick / 20) as u32;
                fates.push(network.carry(tick, Parcel { stream: 0, packet }));
            }
        }
        assert!(network.is_empty());
        (fates, delays_ms)
    }

    #[test]
    fn loss_and_delay_equal_the_settings() {
        let (fates, delays_ms) = play(HARM);
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count();
        assert!((400..600).contains(&lost), "{lost}");
        assert!(fates[..10].iter().all(|fate| *fate == Fate::Prompt));
        assert_eq!(fates.last(), Some(&Fate::Prompt));
        let most = delays_ms.iter().max().expect("delayed ones");
        assert_eq!(*most, 55);
        let overtaken = delays_ms.iter().filter(|ms| **ms > 30).count();
        assert!((100..250).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn equal_seeds_simulate_the_same_network() {
        assert_eq!(play(HARM), play(HARM));
        let other = Harm { seed: 8, ..HARM };
        assert_ne!(play(HARM).0, play(other).0);
        let none = Harm::default();
        assert!(play(none).0.iter().all(|fate| *fate == Fate::Prompt));
    }
}
