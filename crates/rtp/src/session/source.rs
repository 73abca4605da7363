//! The other members of the session: a bounded table of sources.

use std::net::SocketAddr;

use crate::id::{NtpTime, PayloadType, RtpTime, Ssrc};
use crate::reception::Reception;

/// Upper limit of [`Config::sources_max`](super::Config::sources_max). A look-up is a scan. In a flood of strangers, each packet costs a
/// scan of 16 KiB of SSRCs.
pub const SOURCES_MAX: usize = 4096;
/// Lower limit of [`Config::sources_max`](super::Config::sources_max). It allows the current source, which is never evicted, and a new one.
pub(crate) const SOURCES_MIN: usize = 2;

/// The state of a source, as bits, so that each packet needs only one comparison.
pub(crate) mod flag {
    /// There is a source in this place.
    pub(crate) const PRESENT: u8 = 1;
    /// The source has passed probation (RFC 3550, appendix A.1) since it appeared or returned.
    pub(crate) const VALID: u8 = 2;
    /// The source counts as a member.
    pub(crate) const MEMBER: u8 = 4;
    /// The source counts as a sender.
    pub(crate) const SENDER: u8 = 8;
    /// The source has sent a BYE.
    pub(crate) const LEFT: u8 = 16;
    /// The state of a source whose packets only need to be counted.
    pub(crate) const STEADY: u8 = PRESENT | VALID | MEMBER | SENDER;
}

/// The last sender report of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastReport {
    /// Wall clock of the sender.
    pub ntp: NtpTime,
    /// The same moment as a timestamp of its stream.
    pub time: RtpTime,
    /// Number of packets that the source had sent by then.
    pub packets: u32,
    /// Number of payload bytes that the source had sent by then.
    pub octets: u32,
    /// Arrival time of the report here, monotonic.
    pub arrived_ns: u64,
}

/// A source's report on our packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteView {
    /// Packets that were lost since the source's previous report, in 256ths.
    pub fraction_lost: u8,
    /// Packets that were lost since the beginning. Negative if there are more duplicates than losses.
    pub cumulative_lost: i32,
    /// The highest sequence number that was received, with the number of wrap-arounds in the upper 16 bits.
    pub highest: u32,
    /// Jitter in units of our timestamps.
    pub jitter_units: u32,
    /// The round-trip time, if it could be computed from the report.
    pub rtt_ns: Option<u64>,
}

/// One remote source.
#[derive(Debug, Clone)]
#[repr(C)] // fields that every packet uses come first, together
pub(crate) struct Source {
    pub(crate) ssrc: Ssrc,
    pub(crate) flags: u8,
    pub(crate) payload_type: PayloadType,
    /// Source address of the source's RTP. It is valid only after the first RTP packet.
    pub(crate) rtp_from: SocketAddr,
    pub(crate) reception: Reception,
    // The following fields are used for RTCP and bookkeeping.
    pub(crate) rtcp_ns: u64,
    pub(crate) left_ns: u64,
    pub(crate) rtcp_from: Option<SocketAddr>,
    pub(crate) cname: Option<Box<str>>,
    pub(crate) report: Option<LastReport>,
    pub(crate) remote: Option<RemoteView>,
    pub(crate) conflicts: u64,
    /// An address that may become the source of its RTP, and the number of consecutive packets from there. The time is that of the last
    /// packet from the present address before these.
    candidate: Option<(SocketAddr, u32, u64)>,
    pub(crate) fraction_lost: u8,
    pub(crate) has_rtp: bool,
}

impl Source {
    pub(crate) fn absent() -> Source {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut source = Source::new(0, Ssrc(0), nowhere, 1);
        source.flags = 0;
        source
    }

    pub(crate) fn new(now_ns: u64, ssrc: Ssrc, from: SocketAddr, clock_rate_hz: u32) -> Source {
        Source {
            ssrc,
            flags: flag::PRESENT,
            payload_type: PayloadType(u8::MAX),
            rtp_from: from,
            reception: Reception::new(clock_rate_hz),
            rtcp_ns: now_ns,
            left_ns: 0,
            rtcp_from: None,
            cname: None,
            report: None,
            remote: None,
            conflicts: 0,
            candidate: None,
            fraction_lost: 0,
            has_rtp: false,
        }
    }

    #[inline]
    pub(crate) fn is_steady(
        &self,
        ssrc: Ssrc,
        payload_type: PayloadType,
        from: SocketAddr,
    ) -> bool {
        self.ssrc == ssrc
            && self.flags == flag::STEADY
            && self.payload_type == payload_type
            && self.rtp_from == from
    }

    /// Whether RTP from another address shows that the source has moved there. For this, the present address must be silent, and this must
    /// not be the first packet from the new one. Packets from the present address are handled without a call of this function, and their
    /// arrival time shows whether the address is silent.
    pub(crate) fn has_moved(&mut self, now_ns: u64, from: SocketAddr) -> bool {
        let heard_ns = self.reception.arrived_ns();
        let packets = match self.candidate {
            Some((address, packets, since_ns)) if address == from && since_ns == heard_ns => {
                packets.saturating_add(1)
            }
            _ => 1,
        };
        let is_silent = now_ns.saturating_sub(heard_ns) >= super::ADDRESS_SILENCE_NS;
        let has_moved = is_silent && packets >= super::ADDRESS_PACKETS;
        self.candidate = (!has_moved).then_some((from, packets, heard_ns));
        has_moved
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the time of the source's last packet.
    pub(crate) fn heard_ns(&self) -> u64 {
        self.rtcp_ns.max(self.reception.arrived_ns())
    }

    /// Whether a report block about the source is due, because it has sent RTP since the last one.
    pub(crate) fn is_reportable(&self) -> bool {
        self.has(flag::PRESENT | flag::VALID) && self.reception.has_news()
    }
}

/// The sources. The current one, which sends nearly all packets, has a separate place and is never evicted. The others are on the heap.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sources {
    pub(crate) current: Source,
    others: Vec<Source>,
    /// The SSRCs of `others`, so that a scan reads only 4 bytes for each.
    numbers: Vec<Ssrc>,
    others_max: usize,
    pub(crate) evictions: u64,
    /// The source with which the next report starts, if there are more sources than blocks.
    cursor: usize,
}

/// The place of a source. It is valid until the next insertion or removal.
pub(crate) type Place = usize;

impl Sources {
    pub(crate) fn new(sources_max: usize) -> Sources {
        Sources {
            current: Source::absent(),
            others: Vec::new(),
            numbers: Vec::new(),
            others_max: sources_max.clamp(SOURCES_MIN, SOURCES_MAX) - 1,
            evictions: 0,
            cursor: 0,
        }
    }

    /// Finds the place of a source. Place 0 is that of the current source.
    pub(crate) fn find(&self, ssrc: Ssrc) -> Option<Place> {
        if self.current.ssrc == ssrc && self.current.has(flag::PRESENT) {
            return Some(0);
        }
        let other = self.numbers.iter().position(|number| *number == ssrc)?;
        Some(other + 1)
    }

    pub(crate) fn get(&self, place: Place) -> &Source {
        match place {
            0 => &self.current,
            _ => &self.others[place - 1],
        }
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> &mut Source {
        match place {
            0 => &mut self.current,
            _ => &mut self.others[place - 1],
        }
    }

    /// Returns all present sources.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        let current = Some(&self.current).filter(|source| source.has(flag::PRESENT));
        current.into_iter().chain(&self.others)
    }

    /// Adds a source, and returns its place. If the table is full, evicts and returns the source that has been silent for the longest time.
    /// Sources that never passed probation, or that have left, are evicted first. So a flood of invented SSRCs evicts only invented
    /// sources.
    pub(crate) fn insert(&mut self, source: Source) -> (Place, Option<Source>) {
        if !self.current.has(flag::PRESENT) {
            self.current = source;
            return (0, None);
        }
        let mut evicted = None;
        if self.others.len() >= self.others_max {
            let oldest = self.others.iter().enumerate().min_by_key(|(_, other)| {
                let is_real = other.has(flag::MEMBER) && !other.has(flag::LEFT);
                (is_real, other.heard_ns())
            });
            if let Some((at, _)) = oldest {
                evicted = Some(self.remove(at + 1));
                self.evictions += 1;
            }
        }
        self.numbers.push(source.ssrc);
        self.others.push(source);
        (self.others.len(), evicted)
    }

    /// Removes a source. The last source takes its place.
    pub(crate) fn remove(&mut self, place: Place) -> Source {
        if place == 0 {
            return std::mem::replace(&mut self.current, Source::absent());
        }
        self.numbers.swap_remove(place - 1);
        self.others.swap_remove(place - 1)
    }

    /// Makes this source the current one. The previous one takes its place.
    pub(crate) fn promote(&mut self, place: Place) {
        let Some(other) = place.checked_sub(1) else {
            return;
        };
        std::mem::swap(&mut self.current, &mut self.others[other]);
        if self.others[other].has(flag::PRESENT) {
            self.numbers[other] = self.others[other].ssrc;
        } else {
            self.numbers.swap_remove(other);
            self.others.swap_remove(other);
        }
    }

    /// Returns the number of bytes that the table takes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.others.capacity() * size_of::<Source>() + self.numbers.capacity() * size_of::<Ssrc>()
    }

    /// Returns the places from the last to the first, so that a removal does not move those that follow.
    pub(crate) fn places_backwards(&self) -> impl Iterator<Item = Place> + use<> {
        let first = usize::from(!self.current.has(flag::PRESENT));
        (first..=self.others.len()).rev()
    }

    /// Returns the next `count` sources that need a report. "The subsets SHOULD be selected round-robin across multiple intervals so that
    /// all sources are reported." (RFC 3550, section 6.4)
    pub(crate) fn report_places(&mut self, count: usize) -> impl Iterator<Item = Place> + use<> {
        let total = self.others.len() + 1;
        let mut places = [0; super::wire::BLOCKS_MAX];
        let mut found = 0;
        let begin = self.cursor % total;
        for step in 0..total {
            if found == count.min(places.len()) {
                break;
            }
            let place = (begin + step) % total;
            if self.get(place).is_reportable() {
                places[found] = place;
                found += 1;
                self.cursor = place + 1;
            }
        }
        places.into_iter().take(found)
    }
}

/// The RTP clock rate of each payload type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockRates {
    default_hz: u32,
    /// The payload types that have another rate. There are at most 128 payload types.
    exceptions: Box<[(PayloadType, u32)]>,
}

impl ClockRates {
    /// Creates the rates: `default_hz` for all payload types except those in `exceptions`.
    #[must_use]
    pub fn new(default_hz: u32, exceptions: &[(PayloadType, u32)]) -> ClockRates {
        let mut table: Vec<(PayloadType, u32)> = Vec::new();
        for &(payload_type, rate_hz) in exceptions {
            if payload_type.0 < 128 && !table.iter().any(|(known, _)| *known == payload_type) {
                table.push((payload_type, rate_hz));
            }
        }
        ClockRates {
            default_hz,
            exceptions: table.into_boxed_slice(),
        }
    }

    /// Returns the clock rate of this payload type, in units per second.
    #[must_use]
    pub fn of(&self, payload_type: PayloadType) -> u32 {
        let exception = self
            .exceptions
            .iter()
            .find(|(known, _)| *known == payload_type);
        exception.map_or(self.default_hz, |(_, rate_hz)| *rate_hz)
    }

    /// Returns the rate of all payload types without an exception.
    #[must_use]
    pub fn default_hz(&self) -> u32 {
        self.default_hz
    }
}
