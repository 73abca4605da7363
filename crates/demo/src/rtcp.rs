//! The parties' side of RTCP. Each party has a session that reports to the gateway. The party also checks the gateway's reports against the
//! packets that it sent and received. In its reports to a party, the gateway uses the SSRC of the stream that it sends to this party. This
//! is the stream of the other party of the call.
//!
//! [`super::reports`] parses the reports with `rtcp-types`, not with the gateway's own code. The gateway's RTP and RTCP arrive at the same
//! socket, in the order of sending. So a sender report must count exactly the packets that arrived before it. Time is a parameter, and this
//! module has no socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use threadbare_rtp::id::{NtpTime, PayloadType, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::session::{Config, Event, RtcpSession, RtpHeader};

use super::caller;
use super::jitter::Jitter;
use super::ledger::Ledger;
use super::parties::other_party;
use super::reports::{self, Block, Said};
use super::tone::PACKET_SAMPLES;

/// Counts of RTCP so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtcpCounters {
    /// Parties that have received a report from the gateway.
    pub calls: u64,
    /// Reports from the gateway.
    pub reports: u64,
    /// Packets from the gateway that are not compound RTCP.
    pub malformed: u64,
    /// Reports that contradict what happened to the packets.
    pub untrue: u64,
    /// Reports sent by the parties.
    pub sent: u64,
    /// Parties whose stream the gateway ended with BYE.
    pub byes: u64,
    /// Parties whose stream has ended without BYE. The number is known only at the end.
    pub byes_missing: u64,
}

/// All parties' sessions.
#[derive(Debug)]
pub(super) struct Rtcp {
    parties: Vec<Party>,
    first_gateway_ssrc: u32,
    counters: RtcpCounters,
}

#[derive(Debug)]
struct Party {
    session: RtcpSession,
    gateway: SocketAddr,
    /// Number of sent packets that the session does not know yet.
    unreported: u32,
    /// Timestamp and send time of the last sent packet.
    last: (u32, u64),
    /// Number of RTP packets received from the gateway.
    came: u32,
    came_octets: u32,
    /// Numbers of expected and of lost packets in the gateway's last report.
    said: (u32, i32),
    jitter: Jitter,
    /// The last packets, in the order of sending, each with the bounds of the jitter after it.
    jitters: VecDeque<(u32, RangeInclusive<f32>)>,
    /// Number of sender reports of the party.
    sender_reports: u32,
    /// For each of the party's last two sender reports, latest first: the middle bits of the NTP time, and the send time.
    last_sender_reports: VecDeque<(u32, u64)>,
    has_report: bool,
    has_bye: bool,
}

impl Rtcp {
    /// Creates the sessions. They begin at `now_ns`, in nanoseconds since 1970. Party n sends to `gateway_port(n)`.
    pub(super) fn new(
        parties: usize,
        now_ns: u64,
        first_gateway_ssrc: u32,
        gateway_port: impl Fn(usize) -> u16,
    ) -> Rtcp {
        let session = |ssrc: u32, name: &str| {
            // The seeds differ, so that the calls do not all report at the same time.
            let seed = now_ns ^ u64::from(ssrc) << 32;
            let mut config = Config::call(Ssrc(ssrc), name, 8000, seed);
            config.ntp_at_zero = NtpTime::at_unix_ns(0);
            RtcpSession::new(now_ns, config)
        };
        let party = |stream: usize| Party {
            session: session(caller::ssrc(stream), &format!("caller-{stream}@demo")),
            gateway: SocketAddr::from(([127, 0, 0, 1], gateway_port(stream))),
            unreported: 0,
            last: (0, now_ns),
            came: 0,
            came_octets: 0,
            said: (0, 0),
            jitter: Jitter::default(),
            jitters: VecDeque::new(),
            sender_reports: 0,
            last_sender_reports: VecDeque::new(),
            has_report: false,
            has_bye: false,
        };
        Rtcp {
            parties: (0..parties).map(party).collect(),
            first_gateway_ssrc,
            counters: RtcpCounters::default(),
        }
    }

    /// Records that a party has made a packet of its stream.
    pub(super) fn note_sent(&mut self, stream: usize, packet: u32, now_ns: u64) {
        let party = &mut self.parties[stream];
        party.unreported += 1;
        party.last = (caller::timestamp(packet), now_ns);
    }

    /// Records that a packet was sent between the two times.
    pub(super) fn note_on_the_way(
        &mut self,
        stream: usize,
        packet: u32,
        before_ns: u64,
        after_ns: u64,
    ) {
        let party = &mut self.parties[stream];
        party.jitter.add(packet, before_ns, after_ns);
        let units = party.jitter.units();
        let units = *units.start() as f32..=*units.end() as f32;
        if party.jitters.len() == JITTERS_MAX {
            party.jitters.pop_front();
        }
        party.jitters.push_back((packet, units));
    }

    /// Handles a packet from the gateway.
    pub(super) fn handle_rtp(&mut self, arrival_ns: u64, packet: RtpHeader, payload_bytes: usize) {
        let number = self.party_of(packet.ssrc.0);
        if let Some(party) = self.parties.get_mut(number) {
            party.came = party.came.wrapping_add(1);
            party.came_octets = party.came_octets.wrapping_add(payload_bytes as u32);
            let from = party.gateway;
            party.session.handle_rtp(arrival_ns, from, packet);
        }
    }

    /// Handles an RTCP packet from the gateway.
    pub(super) fn handle_rtcp(&mut self, arrival_ns: u64, bytes: &[u8], ledger: &Ledger) {
        let Ok(said) = reports::read(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let number = self.party_of(said.ssrc);
        let Some(party) = self.parties.get_mut(number) else {
            // The report came before the first packet of the stream, so the gateway does not know the party's SSRC yet.
            return;
        };
        let from = party.gateway;
        if party.session.handle_rtcp(arrival_ns, from, bytes).is_err() {
            self.counters.malformed += 1;
            return;
        }
        if said.leaving.contains(&said.ssrc) && !std::mem::replace(&mut party.has_bye, true) {
            // If a party has received no media, it gets reports, but it has no stream that could end.
            self.counters.byes += u64::from(party.came > 0);
        }
        self.counters.reports += 1;
        self.counters.calls += u64::from(!std::mem::replace(&mut party.has_report, true));
        self.counters.untrue += party.untruths(number, &said, arrival_ns, ledger);
        while let Some(event) = party.session.poll_event() {
            let is_clash = matches!(event, Event::Collision { .. } | Event::Loop { .. });
            self.counters.untrue += u64::from(is_clash);
        }
    }

    /// Passes the RTCP that is due for these streams to `send`, with the number of the stream.
    pub(super) fn transmit(
        &mut self,
        streams: std::ops::Range<usize>,
        now_ns: u64,
        mut send: impl FnMut(usize, &[u8]),
    ) {
        for stream in streams {
            let party = &mut self.parties[stream];
            if party.session.next_timeout().is_none_or(|due| due > now_ns) {
                continue;
            }
            party.tell_sent();
            let mut bytes = [0; RTCP_BYTES_MAX];
            while let Some(len) = party.session.poll_transmit(now_ns, &mut bytes) {
                self.counters.sent += 1;
                party.note_sender_report(&bytes[..len], now_ns);
                send(stream, &bytes[..len]);
            }
            while party.session.poll_event().is_some() {}
        }
    }

    /// Ends all calls. Passes their BYEs to `send`.
    pub(super) fn leave(&mut self, now_ns: u64, send: impl FnMut(usize, &[u8])) {
        for party in &mut self.parties {
            party.tell_sent();
            party.session.send_bye(now_ns, "the demo is over");
        }
        self.transmit(0..self.parties.len(), now_ns, send);
    }

    /// Whether the gateway has sent media to a party, but not yet a BYE.
    pub(super) fn is_awaiting_bye(&self) -> bool {
        self.parties.iter().any(Party::is_awaiting_bye)
    }

    /// Completes the counts with the parties that have received no BYE.
    pub(super) fn finish(&mut self) {
        let silent = self.parties.iter().filter(|party| party.is_awaiting_bye());
        self.counters.byes_missing = silent.count() as u64;
    }

    /// Returns the current counts.
    pub(super) fn counters(&self) -> &RtcpCounters {
        &self.counters
    }

    /// Returns the party that receives the stream with this SSRC.
    fn party_of(&self, gateway_ssrc: u32) -> usize {
        other_party(gateway_ssrc.wrapping_sub(self.first_gateway_ssrc) as usize)
    }
}

impl Party {
    fn is_awaiting_bye(&self) -> bool {
        self.came > 0 && !self.has_bye
    }

    fn tell_sent(&mut self) {
        let (time, at_ns) = self.last;
        let packets = std::mem::take(&mut self.unreported);
        if packets > 0 {
            let octets = packets as usize * PACKET_SAMPLES;
            self.session
                .handle_rtp_sent(at_ns, RtpTime(time), octets, packets);
        }
    }

    /// Stores a sender report of a party. The gateway's LSR is checked against it.
    fn note_sender_report(&mut self, bytes: &[u8], now_ns: u64) {
        let Some(middle) = reports::sender_report_time(bytes) else {
            return;
        };
        self.sender_reports += 1;
        self.last_sender_reports.truncate(1);
        self.last_sender_reports.push_front((middle, now_ns));
    }

    /// Returns the number of wrong values in a packet.
    fn untruths(&mut self, stream: usize, said: &Said, at_ns: u64, ledger: &Ledger) -> u64 {
        let sent = said.sent;
        let mut untrue = u64::from(sent.is_some_and(|sent| sent != (self.came, self.came_octets)));
        for block in &said.blocks {
            let is_true = block.ssrc == caller::ssrc(stream)
                && self.missed_as_much(stream, block, at_ns, ledger)
                && self.jittered_as_much(block)
                && self.heard_of_us(block, at_ns);
            untrue += u64::from(!is_true);
        }
        untrue
    }

    /// Whether the losses in a report agree with what happened to the packets of the stream up to that time.
    fn missed_as_much(
        &mut self,
        stream: usize,
        block: &Block,
        at_ns: u64,
        ledger: &Ledger,
    ) -> bool {
        // The gateway's statistics begin with the second packet in a row (RFC 3550, A.1), which is packet 1.
        let base = u32::from(caller::sequence_number(stream, 1));
        let expected = block.highest.wrapping_sub(base).wrapping_add(1);
        let lost = block.cumulative_lost;
        let (expected_before, lost_before) = std::mem::replace(&mut self.said, (expected, lost));
        // The fraction is the number of losses since the last report, in 256ths of the packets expected since then (RFC 3550, A.3).
        let expected_since = i64::from(expected) - i64::from(expected_before);
        let lost_since = (i64::from(lost) - i64::from(lost_before)).max(0);
        let fraction = (lost_since << 8).checked_div(expected_since).unwrap_or(0);
        let missing = ledger.missing(stream, expected, at_ns);
        missing.is_some_and(|missing| missing.contains(&i64::from(lost)))
            && i64::from(block.fraction_lost) == fraction.min(255)
    }

    /// Whether the jitter in a report is possible after the packet that the report names as the highest.
    fn jittered_as_much(&self, block: &Block) -> bool {
        // Packet 0 does not count, so the number of expected packets equals the number of the highest packet.
        let highest = self.said.0;
        let known = self.jitters.iter();
        let mut later = known.skip_while(|(packet, _)| *packet != highest);
        let reported = block.jitter_units as f32;
        // Overtaken packets may have arrived after the highest packet.
        later
            .by_ref()
            .take_while(|(packet, _)| *packet <= highest)
            .any(|(_, units)| units.contains(&reported))
    }

    /// Whether LSR and DLSR match a sender report of the party (RFC 3550, section 6.4.1).
    fn heard_of_us(&self, block: &Block, at_ns: u64) -> bool {
        if block.lsr == 0 {
            // The party's first sender report may still be in transit.
            return block.dlsr == 0 && self.sender_reports <= 1;
        }
        // The party's last sender report may still be in transit. In that case the LSR is that of the report before it.
        let mut sent = self.last_sender_reports.iter();
        let Some((_, sent_ns)) = sent.find(|(middle, _)| *middle == block.lsr) else {
            return false;
        };
        // The round-trip time is the time since the sender report, minus this time.
        let held_ns = u64::from(block.dlsr) * 1_000_000_000 / 65_536;
        let way_ns = (at_ns + DLSR_SLACK_NS).checked_sub(sent_ns + held_ns);
        way_ns.is_some_and(|way_ns| way_ns <= DLSR_SLACK_NS + WAY_NS_MAX)
    }
}

impl RtcpCounters {
    /// Returns the number of all errors.
    pub fn errors(&self) -> u64 {
        self.malformed + self.untrue + self.byes_missing
    }
}

/// Returns the fields of a packet that RTCP needs.
pub(super) fn header_of(rtp: &rtp_types::RtpPacket<'_>) -> RtpHeader {
    RtpHeader {
        ssrc: Ssrc(rtp.ssrc()),
        seq: SeqNum(rtp.sequence_number()),
        time: RtpTime(rtp.timestamp()),
        payload_type: PayloadType(rtp.payload_type()),
    }
}

/// Number of stored bounds. They are for more than five seconds of packets, and a report is never older than that.
const JITTERS_MAX: usize = 256;
/// Tolerance of DLSR. The gateway reads its clock at the start of a slice, so a sender report that arrives during the slice counts as
/// received at the start. A slice takes at most 20 ms, unless the machine is too busy.
const DLSR_SLACK_NS: u64 = 100_000_000;
/// Maximum time in transit. It is longer than the transit of any report on a badly overloaded machine. It is shorter than the interval
/// between two reports, so that a constant DLSR is noticed.
const WAY_NS_MAX: u64 = 2_000_000_000;
/// Size of the buffer. It has room for a report on one stream, and for a name.
const RTCP_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_SSRC: u32 = 1000;
    /// SSRC of the stream that party 0 receives.
    const GATEWAY_SSRC: u32 = FIRST_SSRC + 1;
    const S: u64 = 1_000_000_000;

    /// Kinds of wrong reports.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Lie {
        None,
        /// The gateway reports a loss that the network did not cause.
        Lost,
        /// The gateway reports one packet more than it has sent.
        Sent,
        /// The word at this offset of the report block is replaced by this value.
        Word(usize, u32),
    }

    /// Offsets in a report block (RFC 3550, section 6.4.1).
    const JITTER: usize = 12;
    const LSR: usize = 16;
    const DLSR: usize = 20;

    /// Simulates a gateway that receives 2000 packets of stream 0, except for packet 100, which the network has lost. The gateway sends as
    /// many packets. Returns the result of the checks of its reports.
    fn play(lie: Lie) -> RtcpCounters {
        let mut ledger = Ledger::new(1);
        let mut rtcp = Rtcp::new(1, 0, FIRST_SSRC, |_| 5004);
        let config = Config::call(Ssrc(GATEWAY_SSRC), "gateway", 8000, 1);
        let mut gateway = RtcpSession::new(0, config);
        let from = SocketAddr::from(([127, 0, 0, 1], 6000));
        for packet in 0..2000_u32 {
            // Every fourth packet is 10 ms late, which causes jitter.
            let now_ns = u64::from(packet) * S / 50 + u64::from(packet % 4 / 3) * S / 100;
            ledger.speak(0);
            let header = |ssrc, seq| RtpHeader {
                ssrc: Ssrc(ssrc),
                seq: SeqNum(seq),
                time: RtpTime(caller::timestamp(packet)),
                payload_type: PayloadType(0),
            };
            if packet == 100 {
                ledger.lose(0, packet);
            } else {
                ledger.send(0, packet, now_ns);
                rtcp.note_on_the_way(0, packet, now_ns, now_ns);
            }
            rtcp.note_sent(0, packet, now_ns);
            if packet != 100 && !(lie == Lie::Lost && packet == 60) {
                let seq = caller::sequence_number(0, packet);
                gateway.handle_rtp(now_ns, from, header(caller::ssrc(0), seq));
            }
            gateway.handle_rtp_sent(now_ns, RtpTime(packet * 160), 160, 1);
            if !(lie == Lie::Sent && packet == 60) {
                rtcp.handle_rtp(now_ns, header(GATEWAY_SSRC, packet as u16), 160);
            }
            let mut bytes = [0; 1500];
            while let Some(len) = gateway.poll_transmit(now_ns, &mut bytes) {
                if let Lie::Word(place, word) = lie {
                    // The report block follows the header and the sender information of the report.
                    let place = 28 + place;
                    bytes[place..place + 4].copy_from_slice(&word.to_be_bytes());
                }
                rtcp.handle_rtcp(now_ns, &bytes[..len], &ledger);
            }
            rtcp.transmit(0..1, now_ns, |_, bytes| {
                gateway.handle_rtcp(now_ns, from, bytes).expect("RTCP");
            });
        }
        rtcp.counters().clone()
    }

    #[test]
    fn correct_reports_are_accepted() {
        let counters = play(Lie::None);
        assert_eq!((counters.malformed, counters.untrue), (0, 0));
        assert_eq!(counters.calls, 1);
        assert!(counters.reports >= 2 && counters.sent >= 2, "{counters:?}");
    }

    #[test]
    fn reported_losses_that_the_network_did_not_cause_are_detected() {
        assert!(play(Lie::Lost).untrue >= 1);
    }

    #[test]
    fn wrong_counts_of_received_packets_are_detected() {
        assert!(play(Lie::Sent).untrue >= 1);
    }

    #[test]
    fn wrong_jitter_and_times_are_detected() {
        for (place, word) in [
            // The true jitter is half of 10 ms.
            (JITTER, 0),
            (JITTER, 400),
            // The first LSR says that no sender report has arrived. The second one is that of a report that was never sent.
            (LSR, 0),
            (LSR, 1),
            // The first DLSR says that the sender report has just arrived. The second one says that it arrived before it was sent.
            (DLSR, 0),
            (DLSR, 60 << 16),
        ] {
            let counters = play(Lie::Word(place, word));
            assert!(counters.untrue >= 1, "{place} {word}: {counters:?}");
            assert_eq!(counters.malformed, 0);
        }
    }

    #[test]
    fn a_missing_bye_of_the_gateway_is_detected() {
        for is_polite in [true, false] {
            let ledger = Ledger::new(1);
            let mut rtcp = Rtcp::new(2, 0, FIRST_SSRC, |_| 5004);
            let config = Config::call(Ssrc(GATEWAY_SSRC), "gateway", 8000, 1);
            let mut gateway = RtcpSession::new(0, config);
            gateway.handle_rtp_sent(S, RtpTime(0), 160, 1);
            let header = RtpHeader {
                ssrc: Ssrc(GATEWAY_SSRC),
                seq: SeqNum(0),
                time: RtpTime(0),
                payload_type: PayloadType(0),
            };
            rtcp.handle_rtp(S, header, 160);
            // Here the parties hang up before the gateway does.
            rtcp.leave(S, |_, _| {});
            assert!(rtcp.is_awaiting_bye());
            if is_polite {
                gateway.send_bye(S, "");
                let mut bytes = [0; 1500];
                let len = gateway.poll_transmit(S, &mut bytes).expect("a BYE");
                for _ in 0..2 {
                    rtcp.handle_rtcp(S, &bytes[..len], &ledger);
                }
            }
            assert_eq!(rtcp.is_awaiting_bye(), !is_polite);
            rtcp.finish();
            let counters = rtcp.counters();
            assert_eq!(counters.byes, u64::from(is_polite));
            assert_eq!(counters.errors(), u64::from(!is_polite));
        }
    }

    #[test]
    fn datagram_that_is_not_rtcp_is_counted() {
        let mut rtcp = Rtcp::new(1, 0, FIRST_SSRC, |_| 5004);
        let ledger = Ledger::new(1);
        rtcp.handle_rtcp(1, &[0x80, 200, 0, 1], &ledger);
        rtcp.handle_rtcp(1, &[0x80, 200, 0, 9, 0, 0, 3, 232], &ledger);
        assert_eq!(rtcp.counters().errors(), 2);
        assert_eq!(rtcp.counters().reports, 0);
    }
}
