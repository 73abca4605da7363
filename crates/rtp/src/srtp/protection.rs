//! Both directions with one party of a call: keys that change while it runs, counts, and a state that outlives the process.

use std::fmt;

use super::index::PacketIndex;
use super::sources::RTCP_INDEX_MAX;
use super::{
    MasterKey, ProtectError, Receiver, RestoreError, Sender, SourceError, SourceState,
    UnprotectError,
};
use crate::packet::Channel;

/// The keys of one party: the one that it sends with, and the one that we send with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Of what the party sends.
    pub receive: MasterKey,
    /// Of what we send. A key that was in force before must not come back: its packets would be encrypted twice over.
    pub send: MasterKey,
}

/// Packets of a party, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtectionStats {
    /// Received packets that were authentic.
    pub received: u64,
    /// Of these, packets of the key that was in force before.
    pub of_old_key: u64,
    /// Received packets whose tag was wrong: somebody without the key made or changed them.
    pub unauthentic: u64,
    /// Received packets that were there before, or too old to tell.
    pub replayed: u64,
    /// Received datagrams that are no protected packets.
    pub malformed: u64,
    /// Received packets of one more SSRC than a key serves.
    pub too_many_sources: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that were to be sent a second time, and were not: to encrypt other data with their number would reveal both.
    pub repeated: u64,
    /// Packets that could not be protected for another reason, and were not sent.
    pub unsent: u64,
}

/// The state of a [`Protection`], keys included: as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectionState {
    /// The keys in force.
    pub keys: Keys,
    /// What came, for each SSRC.
    pub received: Vec<SourceState>,
    /// What left, for each SSRC.
    pub sent: Vec<SourceState>,
}

impl ProtectionState {
    /// Packets may have come and left since it was taken: none from before its highest are taken then, as they may be replays.
    pub fn forget_missing(&mut self) {
        for source in self.received.iter_mut().chain(&mut self.sent) {
            source.rtp_missing = 0;
        }
    }
}

/// How many packets may have left since a state was taken: they are taken to have left, so that no index is used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// RTP packets of each SSRC. Go on behind them: a packet with one of their numbers is refused. 0 if the numbers are somebody else's, who
    /// has gone on.
    pub rtp_packets: u16,
    /// RTCP packets of each SSRC.
    pub rtcp_packets: u32,
}

/// What becomes of our rollover counters when our key changes.
///
/// RFC 3711, section 3.3.1, keeps them; RFC 4568, section 7.1.4, begins a new context at zero where the address or port of a stream changes with its
/// key; and some peers take every new key for a new context. A key that stays is understood by all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rollover {
    /// They go on.
    #[default]
    Kept,
    /// They begin at zero: our address or port is another one.
    Reset,
}

/// Protects and checks the packets of one party. See [`Sender`] and [`Receiver`].
///
/// When the party changes its key, packets of the old one are still on the way, and its program may go on with it until our answer has arrived:
/// packets are tried with the new key and then with the old one, until [`OLD_KEY_NS`] after the first packet of the new one, but no longer than
/// [`OLD_KEY_NS_MAX`]. Whether its rollover counter goes on, its first packet tells: both are tried.
pub struct Protection {
    keys: Keys,
    receiver: Receiver,
    sender: Sender,
    change: Option<Box<Change>>,
    stats: ProtectionStats,
}

/// The receive key has changed lately.
struct Change {
    /// Of the key before.
    old: Receiver,
    /// Of the new key, with rollover counters from zero; `None` once a packet has told.
    reset: Option<Receiver>,
    until_ns: u64,
}

/// One of a receiver's two functions.
type Unprotect = fn(&mut Receiver, &mut [u8]) -> Result<usize, UnprotectError>;

impl Protection {
    /// A party of which nothing is known but the keys.
    ///
    /// Send with a first sequence number below 2^15: a party that misses the packets before a wrap cannot know of it (RFC 3711, section 3.3.1).
    #[must_use]
    pub fn new(keys: Keys) -> Protection {
        Protection {
            receiver: Receiver::new(&keys.receive),
            sender: Sender::new(&keys.send),
            keys,
            change: None,
            stats: ProtectionStats::default(),
        }
    }

    /// Other keys from `now_ns` on. A key that stays goes on where it is. `rollover` is about what we send.
    pub fn set_keys(&mut self, now_ns: u64, keys: Keys, rollover: Rollover) {
        if keys.receive != self.keys.receive {
            let continued = self.receiver.continued(&keys.receive);
            self.change = Some(Box::new(Change {
                old: std::mem::replace(&mut self.receiver, continued),
                reset: Some(Receiver::new(&keys.receive)),
                until_ns: now_ns.saturating_add(OLD_KEY_NS_MAX),
            }));
        }
        if keys.send != self.keys.send {
            self.sender = match rollover {
                Rollover::Kept => self.sender.continued(&keys.send),
                Rollover::Reset => Sender::new(&keys.send),
            };
        }
        self.keys = keys;
    }

    /// Checks and decrypts a datagram in place, SRTP or SRTCP by `channel`: the bytes that [`Channel::carried`] looks at are in the clear. Returns
    /// the bytes of the packet, from the start of the buffer.
    ///
    /// # Errors
    /// It is not to be taken; it is counted, and changes nothing.
    #[inline]
    pub fn unprotect(
        &mut self,
        now_ns: u64,
        channel: Channel,
        datagram: &mut [u8],
    ) -> Result<usize, UnprotectError> {
        let unprotect: Unprotect = match channel {
            Channel::Rtp => Receiver::unprotect_rtp,
            Channel::Rtcp => Receiver::unprotect_rtcp,
        };
        let mut result = unprotect(&mut self.receiver, datagram);
        if self.change.is_some() {
            result = self.unprotect_in_change(now_ns, datagram, unprotect, result);
        }
        self.count(&result);
        result
    }

    /// The key has changed lately, and `result` is what the new one says of the packet.
    #[cold]
    fn unprotect_in_change(
        &mut self,
        now_ns: u64,
        datagram: &mut [u8],
        unprotect: Unprotect,
        result: Result<usize, UnprotectError>,
    ) -> Result<usize, UnprotectError> {
        let Some(change) = &mut self.change else {
            return result;
        };
        if now_ns >= change.until_ns {
            self.change = None;
            return result;
        }
        let Err(error) = result else {
            change.settle(now_ns);
            return result;
        };
        if let Some(reset) = &mut change.reset
            && let Ok(bytes) = unprotect(reset, datagram)
        {
            std::mem::swap(&mut self.receiver, reset);
            change.settle(now_ns);
            return Ok(bytes);
        }
        match unprotect(&mut change.old, datagram) {
            Ok(bytes) => {
                self.stats.of_old_key += 1;
                Ok(bytes)
            }
            // The one that knows the packet says more than the one that does not.
            Err(replay @ UnprotectError::Source(_)) => Err(replay),
            Err(_) => Err(error),
        }
    }

    fn count(&mut self, result: &Result<usize, UnprotectError>) {
        *match result {
            Ok(_) => &mut self.stats.received,
            Err(UnprotectError::Forged { .. }) => &mut self.stats.unauthentic,
            Err(UnprotectError::Packet(_)) => &mut self.stats.malformed,
            Err(UnprotectError::Source(SourceError::TooMany { .. })) => {
                &mut self.stats.too_many_sources
            }
            Err(UnprotectError::Source(_)) => &mut self.stats.replayed,
        } += 1;
    }

    /// Protects the packet in the first `bytes` bytes of `buffer`, as `channel` says. Returns the bytes of the protected packet.
    ///
    /// # Errors
    /// It cannot be protected, and must not leave; it is counted.
    #[inline]
    pub fn protect(
        &mut self,
        channel: Channel,
        buffer: &mut [u8],
        bytes: usize,
    ) -> Result<usize, ProtectError> {
        let result = match channel {
            Channel::Rtp => self.sender.protect_rtp(buffer, bytes),
            Channel::Rtcp => self.sender.protect_rtcp(buffer, bytes),
        };
        *match result {
            Ok(_) => &mut self.stats.sent,
            Err(ProtectError::Source(SourceError::Repeated { .. } | SourceError::Old { .. })) => {
                &mut self.stats.repeated
            }
            Err(_) => &mut self.stats.unsent,
        } += 1;
        result
    }

    /// The keys in force.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Counts.
    #[must_use]
    pub fn stats(&self) -> ProtectionStats {
        self.stats
    }

    /// What another process needs to go on.
    #[must_use]
    pub fn snapshot(&self) -> ProtectionState {
        ProtectionState {
            keys: self.keys.clone(),
            received: self.receiver.sources().collect(),
            sent: self.sender.sources().collect(),
        }
    }

    /// Goes on where another process stopped.
    ///
    /// # Errors
    /// The state is none that [`snapshot`](Self::snapshot) gives.
    pub fn restore(state: &ProtectionState, unsaved: Unsaved) -> Result<Protection, RestoreError> {
        let mut protection = Protection::new(state.keys.clone());
        for source in &state.received {
            protection.receiver.restore(*source)?;
        }
        for source in &state.sent {
            protection.sender.restore(behind(*source, unsaved))?;
        }
        Ok(protection)
    }
}

impl Change {
    /// A packet of the new key has come. The other receiver of that key goes: it would take replays of what this one has taken.
    fn settle(&mut self, now_ns: u64) {
        if self.reset.take().is_some() {
            self.until_ns = self.until_ns.min(now_ns.saturating_add(OLD_KEY_NS));
        }
    }
}

/// The state once all has left that may have.
fn behind(state: SourceState, unsaved: Unsaved) -> SourceState {
    let rtp = |index: PacketIndex| {
        let index = index.get() + u64::from(unsaved.rtp_packets);
        PacketIndex::from_bits(index.min(RTP_INDEX_MAX))
    };
    let rtcp = |index: u32| {
        let index = index.saturating_add(unsaved.rtcp_packets);
        index.min(RTCP_INDEX_MAX)
    };
    SourceState {
        rtp: state.rtp.map(rtp),
        // Bits count from the highest.
        rtp_missing: match unsaved.rtp_packets {
            0 => state.rtp_missing,
            _ => 0,
        },
        // An index out of range is refused as it is.
        rtcp: state
            .rtcp
            .map(|index| {
                if index > RTCP_INDEX_MAX {
                    index
                } else {
                    rtcp(index)
                }
            })
            .or_else(|| unsaved.rtcp_packets.checked_sub(1)),
        ..state
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("keys", &self.keys)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// What was sent before the new key took effect is here by then.
pub const OLD_KEY_NS: u64 = 2_000_000_000;
/// A party takes our answer as lost after this long (RFC 3261, section 17.1.1.2: timer B, 64 T1), and has changed its key by then or not at all.
pub const OLD_KEY_NS_MAX: u64 = 32_000_000_000;
/// 48 bits.
const RTP_INDEX_MAX: u64 = (1 << 48) - 1;
