//! Target `protection`: byte 0 selects the suite. The following bytes are steps, each with a kind, an argument, a length and its
//! own bytes.

use crate::{
    Keys, MASTER_KEY_BYTES_MAX, MasterKey, Protection, ProtectionState, RTCP_TRAILER_BYTES_MAX,
    Rollover, Suite, Unsaved,
};
use threadbare_rtp_types::packet::Channel;

/// A party and the relay change their keys, and the relay's process is replaced now and then. Each accepts the packets that the
/// other has protected, once. A refused packet changes only a count. No index decreases under a key, so that no index is used
/// twice.
pub fn protection(data: &[u8]) {
    let Some((&suite, mut data)) = data.split_first() else {
        return;
    };
    let mut pair = Pair::new(Suite::ALL[usize::from(suite) % Suite::ALL.len()]);
    while let [kind, argument, length, rest @ ..] = data {
        let (bytes, after) = rest.split_at(rest.len().min(usize::from(*length)));
        data = after;
        match kind % 6 {
            0 => pair.forged(bytes),
            1 => pair.carried(1, bytes),
            2 => pair.carried(0, bytes),
            3 => pair.change_keys(),
            4 => pair.now_ns += u64::from(*argument) * 250_000_000,
            _ => pair.restart(u32::from(*argument)),
        }
    }
}

/// The relay's side, and the party's own.
struct Pair {
    suite: Suite,
    sides: [Protection; 2],
    /// Number of the present keys. Earlier keys are not used again.
    number: u8,
    /// Whether packets of the last key from each side have arrived. Before that, a state does not show whether the rollover
    /// counters of the side continue.
    is_settled: [bool; 2],
    now_ns: u64,
}

fn key(suite: Suite, number: u8, side: u8) -> MasterKey {
    let mut random = [number; MASTER_KEY_BYTES_MAX];
    random[0] = side;
    MasterKey::from_random(suite, &random)
}

/// Contents of a datagram on a port with mux.
fn carried(bytes: &[u8]) -> Channel {
    Channel::Rtp.carried(true, bytes)
}

impl Pair {
    fn new(suite: Suite) -> Pair {
        let sides = [0, 1].map(|side| Protection::new(keys(suite, 0, side)));
        Pair {
            suite,
            sides,
            number: 0,
            is_settled: [true; 2],
            now_ns: 0,
        }
    }

    /// Passes on a packet of a sender that does not have the keys.
    fn forged(&mut self, bytes: &[u8]) {
        let before = (self.sides[0].snapshot(), refused(&self.sides[0]));
        let mut datagram = bytes.to_vec();
        let result = self.sides[0].unprotect(self.now_ns, carried(bytes), &mut datagram);
        assert!(result.is_err() && datagram == bytes);
        let after = (self.sides[0].snapshot(), refused(&self.sides[0]));
        assert_eq!(after, (before.0, before.1 + 1));
    }

    /// Passes a packet of this side on to the other one.
    fn carried(&mut self, from: usize, bytes: &[u8]) {
        let mut packet = bytes.to_vec();
        packet.resize(bytes.len() + RTCP_TRAILER_BYTES_MAX, 0);
        let before = self.sides[from].snapshot();
        let Ok(length) = self.sides[from].protect(carried(bytes), &mut packet, bytes.len()) else {
            assert!(packet.starts_with(bytes));
            assert_eq!(self.sides[from].snapshot(), before);
            return;
        };
        forward(&before, &self.sides[from].snapshot());
        packet.truncate(length);
        let taker = &mut self.sides[1 - from];
        let channel = carried(&packet);
        let mut copy = packet.clone();
        assert_eq!(
            taker.unprotect(self.now_ns, channel, &mut copy),
            Ok(bytes.len())
        );
        assert_eq!(&copy[..bytes.len()], bytes);
        self.is_settled[from] = true;
        assert!(
            taker
                .unprotect(self.now_ns, channel, &mut packet.clone())
                .is_err()
        );
    }

    /// Changes the keys of both sides. Rollover counters continue. A restart at zero cannot be tested here: a report or another
    /// source may arrive first, and does not show the restart.
    fn change_keys(&mut self) {
        let Some(number) = self.number.checked_add(1) else {
            return;
        };
        self.number = number;
        self.is_settled = [false; 2];
        for (side, protection) in (0..).zip(&mut self.sides) {
            protection.set_keys(self.now_ns, keys(self.suite, number, side), Rollover::Kept);
        }
    }

    /// Continues both sides in other processes. `packets` further RTCP packets count as sent.
    fn restart(&mut self, packets: u32) {
        if self.is_settled != [true; 2] {
            return;
        }
        // The receiving side also continues at its saved numbers: packets with lower numbers have arrived by now, or never will.
        for (side, rtcp_packets) in self.sides.iter_mut().zip([packets, 0]) {
            let before = side.snapshot();
            let unsaved = Unsaved {
                rtp_packets: 0,
                rtcp_packets,
            };
            let restored = Protection::restore(&before, unsaved);
            let restored = restored.unwrap_or_else(|error| panic!("of a snapshot: {error}"));
            let after = restored.snapshot();
            forward(&before, &after);
            if rtcp_packets == 0 {
                assert_eq!(after, before);
            }
            *side = restored;
        }
    }
}

fn keys(suite: Suite, number: u8, side: u8) -> Keys {
    Keys {
        receive: key(suite, number, 1 - side),
        send: key(suite, number, side),
    }
}

fn refused(protection: &Protection) -> u64 {
    let stats = protection.stats();
    stats.unauthentic + stats.replayed + stats.malformed + stats.too_many_sources
}

/// Asserts that no index of sent packets decreases.
fn forward(before: &ProtectionState, after: &ProtectionState) {
    for sent in &before.sent {
        let now = after.sent.iter().find(|now| now.ssrc == sent.ssrc);
        let now = now.unwrap_or_else(|| panic!("{:?} is forgotten", sent.ssrc));
        assert!(now.rtcp >= sent.rtcp && now.rtp >= sent.rtp);
    }
}
