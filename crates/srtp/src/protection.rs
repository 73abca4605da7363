//! Both directions with one party of a call: keys that change during the call, counters, and a state that survives the process.

use std::fmt;

use crate::index::PacketIndex;
use crate::sources::RTCP_INDEX_MAX;
use crate::{
    MasterKey, ProtectError, Receiver, RestoreError, Sender, SourceError, SourceState,
    UnprotectError,
};
use threadbare_rtp_types::packet::Channel;

/// The keys of one party: its own sending key, and ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Key of the party's packets.
    pub receive: MasterKey,
    /// Key of our packets. Do not use an earlier key again, because two packets would be encrypted with the same keystream.
    pub send: MasterKey,
}

/// Counts of a party's packets by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtectionStats {
    /// Received packets that were authentic.
    pub received: u64,
    /// Number of these packets that had the previous key.
    pub of_old_key: u64,
    /// Received packets with a wrong tag: created or changed without the key.
    pub unauthentic: u64,
    /// Received packets that were replays, or too old to decide.
    pub replayed: u64,
    /// Received datagrams that are not protected packets.
    pub malformed: u64,
    /// Received packets of further SSRCs when the key already serves its maximum number of them.
    pub too_many_sources: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that were not sent because they would have reused a number. Encrypting other data with the same number would
    /// reveal both.
    pub repeated: u64,
    /// Packets that could not be protected for another reason, and were not sent.
    pub unsent: u64,
}

impl ProtectionStats {
    /// Received datagrams that were refused, for any reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.unauthentic + self.replayed + self.malformed + self.too_many_sources
    }
}

/// The state of a [`Protection`]; it includes keys and is as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectionState {
    /// The keys in force.
    pub keys: Keys,
    /// Received state for each SSRC.
    pub received: Vec<SourceState>,
    /// Sent state for each SSRC.
    pub sent: Vec<SourceState>,
}

impl ProtectionState {
    /// Gives up the packets that are missing before the highest one. Packets may have arrived since the state was saved, so a
    /// packet that counts as missing may be a replay.
    pub fn forget_missing(&mut self) {
        for source in self.received.iter_mut().chain(&mut self.sent) {
            source.rtp_missing = 0;
        }
    }
}

/// Maximum number of packets that may have been sent since a state was saved. They count as sent, so that no index is used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// RTP packets of each SSRC. Continue with sequence numbers after them, because packets with their numbers are refused. Use 0
    /// if another party assigns the numbers and has continued.
    pub rtp_packets: u16,
    /// RTCP packets of each SSRC.
    pub rtcp_packets: u32,
}

/// What happens to our rollover counters when our key changes.
///
/// RFC 3711, section 3.3.1, keeps the counters. RFC 4568, section 7.1.4, starts a new context at zero if the address or port of a
/// stream changes with its key. Some peers treat every new key as a new context. If the key stays the same, all peers agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rollover {
    /// The counters continue.
    #[default]
    Kept,
    /// The counters restart at zero, because our address or port has changed.
    Reset,
}

/// Protects and checks the packets of one party. See [`Sender`] and [`Receiver`].
///
/// When the party changes its key, packets of the old key are still in flight. The party may also continue with the old key until
/// our answer has arrived. So each packet is tried with the new key, and then with the old one. This ends [`OLD_KEY_NS`] after the
/// first packet of the new key, but at the latest after [`OLD_KEY_NS_MAX`]. The first packet of the new key shows whether its
/// rollover counter continues, because both possibilities are tried.
pub struct Protection {
    keys: Keys,
    receiver: Receiver,
    sender: Sender,
    change: Option<Box<Change>>,
    stats: ProtectionStats,
}

/// A recent change of the receive key.
struct Change {
    /// Receiver of the previous key.
    old: Receiver,
    /// Receiver of the new key, with rollover counters from zero. `None` as soon as a packet has shown whether the counters
    /// continue.
    reset: Option<Receiver>,
    until_ns: u64,
}

/// One of a receiver's two functions.
type Unprotect = fn(&mut Receiver, &mut [u8]) -> Result<usize, UnprotectError>;

impl Protection {
    /// Creates the state of a party whose keys are known, and nothing else.
    ///
    /// Start sending with a sequence number below 2^15: a party that misses the packets before a wrap cannot detect it (RFC 3711,
    /// section 3.3.1).
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

    /// [`new`](Self::new) for a party that may have been sending for a long time: see [`Receiver::joining`].
    #[must_use]
    pub fn joining(keys: Keys) -> Protection {
        Protection {
            receiver: Receiver::joining(&keys.receive),
            ..Protection::new(keys)
        }
    }

    /// Changes the keys from `now_ns` on. An unchanged key continues with its state. `rollover` applies to the packets that we
    /// send.
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

    /// Checks and decrypts a datagram in place, as SRTP or SRTCP according to `channel`. (The bytes that [`Channel::carried`]
    /// looks at are not encrypted.) Returns the length of the packet, from the start of the buffer.
    ///
    /// # Errors
    /// Fails if the packet is refused. The packet is counted, and nothing else changes.
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

    /// Continues [`unprotect`](Self::unprotect) after a recent change of the key. `result` is the result with the new key.
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
            // The receiver of the old key knows the packet, so its error is more precise than that of the new key.
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

    /// Protects the packet in the first `bytes` bytes of `buffer`, for `channel`. Returns the length of the protected packet.
    ///
    /// # Errors
    /// Fails if the packet cannot be protected. The packet is then counted, and must not be sent.
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

    /// Returns the keys in force.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the counts.
    #[must_use]
    pub fn stats(&self) -> ProtectionStats {
        self.stats
    }

    /// Returns the state that another process needs to continue.
    #[must_use]
    pub fn snapshot(&self) -> ProtectionState {
        ProtectionState {
            keys: self.keys.clone(),
            received: self.receiver.sources().collect(),
            sent: self.sender.sources().collect(),
        }
    }

    /// Continues where another process stopped.
    ///
    /// # Errors
    /// Fails if the state is not one that [`snapshot`](Self::snapshot) returns.
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
    /// Handles the first packet of the new key. Drops the second receiver of the new key, because it would accept replays of
    /// packets that the first one has received.
    fn settle(&mut self, now_ns: u64) {
        if self.reset.take().is_some() {
            self.until_ns = self.until_ns.min(now_ns.saturating_add(OLD_KEY_NS));
        }
    }
}

/// Returns the state after all packets that may have been sent.
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
        // The bits are counted from the highest packet, which is another one now.
        rtp_missing: match unsaved.rtp_packets {
            0 => state.rtp_missing,
            _ => 0,
        },
        // An index out of range is refused later.
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

/// Time for which the old key is accepted after the first packet of the new one. By then, packets of the old key have arrived.
pub const OLD_KEY_NS: u64 = 2_000_000_000;
/// Maximum time for which the old key is accepted. After this time, a party considers our answer lost (RFC 3261, section
/// 17.1.1.2: timer B, 64 T1). So it has either changed its key, or never will.
pub const OLD_KEY_NS_MAX: u64 = 32_000_000_000;
/// Maximum index of RTP: 48 bits.
const RTP_INDEX_MAX: u64 = (1 << 48) - 1;
