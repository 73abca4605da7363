//! RTCP as bytes: this module checks, reads and writes packets in place, without allocation (RFC 3550, section 6; RFC 4585, section 6; RFC
//! 5104, section 4.3.1).
//!
//! The builders and parsers of `rtcp-types` 0.3.0 are not used. They collect chunks, blocks and packets in boxes and vectors, which a
//! hostile packet can fill. After the description of a source they skip all zeros, even those of the next source's SSRC. They also write
//! the padding of a BYE over its alignment. The tests read the output of this module with `rtcp-types`, and the reverse.

use thiserror::Error;

use crate::id::{NtpTime, RtpTime, SeqNum, Ssrc};

pub(crate) const SR: u8 = 200;
pub(crate) const RR: u8 = 201;
pub(crate) const SDES: u8 = 202;
pub(crate) const BYE: u8 = 203;
pub(crate) const RTPFB: u8 = 205;
pub(crate) const PSFB: u8 = 206;
/// Extended report (RFC 3611, section 2).
pub(crate) const XR: u8 = 207;

/// Generic negative acknowledgement (RFC 4585, section 6.2.1), a format of [`RTPFB`].
pub(crate) const FMT_NACK: u8 = 1;
/// Picture loss indication (RFC 4585, section 6.3.1), a format of [`PSFB`].
pub(crate) const FMT_PLI: u8 = 1;
/// Full intra request (RFC 5104, section 4.3.1), a format of [`PSFB`].
pub(crate) const FMT_FIR: u8 = 4;

/// The canonical name, an SDES item (RFC 3550, section 6.5.1).
const CNAME: u8 = 1;

/// Maximum of a report's count field, which has 5 bits.
pub(crate) const BLOCKS_MAX: usize = 31;
/// Maximum length of an SDES item or of a BYE's reason, whose length fields have 8 bits.
pub(crate) const TEXT_BYTES_MAX: usize = 255;
/// Number of bytes of the header, the SSRC and the sender info of a report.
pub(crate) const SR_BYTES: usize = HEADER_BYTES + 4 + SENDER_INFO_BYTES;

const HEADER_BYTES: usize = 4;
pub(crate) const BLOCK_BYTES: usize = 24;
const SENDER_INFO_BYTES: usize = 20;

/// The reason why an RTCP packet was refused as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RtcpError {
    /// The packet ends within a header, or before the length in its header.
    #[error("the RTCP packet is cut off: {missing} bytes are missing")]
    Truncated {
        /// Number of further bytes that the last header requires.
        missing: usize,
    },
    /// The version is not 2, which is that of RTP.
    #[error("the RTCP packet has version {0}, not 2")]
    Version(u8),
    /// The first packet is not a report. A compound must begin with one (RFC 3550, appendix A.2), unless reduced size is agreed on (RFC
    /// 5506).
    #[error("the RTCP packet begins with type {0}, not with a report")]
    FirstPacket(u8),
    /// There is padding that is not at the very end, or is longer than the packet.
    #[error("the RTCP packet of type {0} has misplaced or impossible padding")]
    Padding(u8),
    /// The packet is shorter than its count field requires.
    #[error("the RTCP packet of type {packet_type} is too short for its {count} entries")]
    Malformed {
        /// The type field.
        packet_type: u8,
        /// The count field.
        count: u8,
    },
}

/// One packet of a compound, without padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) packet_type: u8,
    /// The number of entries, or the format of a feedback message.
    pub(crate) count: u8,
    /// The bytes after the common header.
    pub(crate) body: &'a [u8],
}

/// A report on a source (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) ssrc: Ssrc,
    pub(crate) fraction_lost: u8,
    pub(crate) cumulative_lost: i32,
    pub(crate) highest: u32,
    pub(crate) jitter_units: u32,
    pub(crate) lsr: u32,
    pub(crate) dlsr: u32,
}

/// Sender info (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SenderInfo {
    pub(crate) ntp: NtpTime,
    pub(crate) time: RtpTime,
    pub(crate) packets: u32,
    pub(crate) octets: u32,
}

/// Checks a whole compound before any part of it takes effect. Returns its packets.
pub(crate) fn parse(bytes: &[u8], reduced_size: bool) -> Result<Packets<'_>, RtcpError> {
    let mut rest = bytes;
    let mut is_first = true;
    loop {
        let (packet, after) = split(rest)?;
        // RFC 3550, A.2: "The payload type field of the first RTCP packet in a compound packet must be equal to SR or
        // RR."
        if is_first && !reduced_size && !matches!(packet.packet_type, SR | RR) {
            return Err(RtcpError::FirstPacket(packet.packet_type));
        }
        check_body(&packet)?;
        if after.is_empty() {
            return Ok(Packets { rest: bytes });
        }
        rest = after;
        is_first = false;
    }
}

/// The packets of a compound that [`parse`] has accepted.
#[derive(Debug, Clone)]
pub(crate) struct Packets<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    fn next(&mut self) -> Option<Packet<'a>> {
        let (packet, after) = split(self.rest).ok()?;
        self.rest = after;
        Some(packet)
    }
}

fn split(bytes: &[u8]) -> Result<(Packet<'_>, &[u8]), RtcpError> {
    let Some((&[flags, packet_type, high, low], _)) = bytes.split_first_chunk::<HEADER_BYTES>()
    else {
        let missing = HEADER_BYTES - bytes.len();
        return Err(RtcpError::Truncated { missing });
    };
    // RFC 3550, A.2: "RTP version field must equal 2."
    if flags >> 6 != 2 {
        return Err(RtcpError::Version(flags >> 6));
    }
    // "The length fields of the individual RTCP packets must add up to the overall length"
    let length = (usize::from(u16::from_be_bytes([high, low])) + 1) * 4;
    let Some((packet, after)) = bytes.split_at_checked(length) else {
        let missing = length - bytes.len();
        return Err(RtcpError::Truncated { missing });
    };
    let mut body = &packet[HEADER_BYTES..];
    if flags & 0x20 != 0 {
        // "The padding bit (P) should be zero for the first packet of a compound RTCP packet because padding should only
        // be applied, if it is needed, to the last packet."
        let padding = usize::from(body.last().copied().unwrap_or(0));
        if !after.is_empty() || padding == 0 || padding > body.len() {
            return Err(RtcpError::Padding(packet_type));
        }
        body = &body[..body.len() - padding];
    }
    let count = flags & 0x1f;
    let packet = Packet {
        packet_type,
        count,
        body,
    };
    Ok((packet, after))
}

fn check_body(packet: &Packet<'_>) -> Result<(), RtcpError> {
    let Packet {
        packet_type,
        count,
        body,
    } = *packet;
    let entries = usize::from(count);
    let bytes_min = match packet_type {
        SR => 4 + SENDER_INFO_BYTES + entries * BLOCK_BYTES,
        RR => 4 + entries * BLOCK_BYTES,
        BYE => entries * 4,
        RTPFB | PSFB => 8,
        XR => 4,
        _ => 0,
    };
    if body.len() < bytes_min {
        return Err(RtcpError::Malformed { packet_type, count });
    }
    Ok(())
}

/// Returns the number at the position `at`, or 0 past the end. [`parse`] ensures that fixed fields are present.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |word| u32::from_be_bytes(*word))
}

impl<'a> Packet<'a> {
    /// Returns the SSRC of the sender of a report or feedback message.
    pub(crate) fn sender(&self) -> Ssrc {
        Ssrc(u32_at(self.body, 0))
    }

    /// Returns the SSRC that a feedback message is about.
    pub(crate) fn media(&self) -> Ssrc {
        Ssrc(u32_at(self.body, 4))
    }

    pub(crate) fn sender_info(&self) -> SenderInfo {
        let ntp = u64::from(u32_at(self.body, 4)) << 32 | u64::from(u32_at(self.body, 8));
        SenderInfo {
            ntp: NtpTime(ntp),
            time: RtpTime(u32_at(self.body, 12)),
            packets: u32_at(self.body, 16),
            octets: u32_at(self.body, 20),
        }
    }

    /// Returns the blocks of a report, at most [`BLOCKS_MAX`].
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> + use<'a> {
        let before = match self.packet_type {
            SR => 4 + SENDER_INFO_BYTES,
            _ => 4,
        };
        let blocks = self.body.get(before..).unwrap_or_default();
        blocks
            .chunks_exact(BLOCK_BYTES)
            .take(usize::from(self.count))
            .map(read_block)
    }

    /// Returns the sources of a BYE, at most [`BLOCKS_MAX`].
    pub(crate) fn leaving(&self) -> impl Iterator<Item = Ssrc> + use<'a> {
        let sources = self.body.chunks_exact(4).take(usize::from(self.count));
        sources.map(|source| Ssrc(u32_at(source, 0)))
    }

    /// Returns the reason in a BYE. It is empty if there is none.
    pub(crate) fn reason(&self) -> &'a [u8] {
        let rest = self.body.get(usize::from(self.count) * 4..);
        match rest.and_then(<[u8]>::split_first) {
            Some((&length, text)) => text.get(..usize::from(length)).unwrap_or_default(),
            None => &[],
        }
    }

    /// Returns the blocks of an extended report, as bytes.
    pub(crate) fn extended_blocks(&self) -> &'a [u8] {
        self.body.get(4..).unwrap_or_default()
    }

    /// Returns the CNAMEs of an SDES packet. An unreadable chunk ends the list.
    pub(crate) fn cnames(&self) -> Cnames<'a> {
        Cnames {
            rest: self.body,
            chunks: self.count,
        }
    }

    /// Returns the entries of a NACK: the first lost number, and a bit for each of the 16 numbers after it.
    pub(crate) fn nacks(&self) -> impl Iterator<Item = (SeqNum, u16)> + use<'a> {
        let entries = self.body.get(8..).unwrap_or_default().chunks_exact(4);
        entries.map(|entry| {
            let word = u32_at(entry, 0);
            (SeqNum((word >> 16) as u16), word as u16)
        })
    }

    /// Returns the entries of a full intra request: the picture's source and the request's number.
    pub(crate) fn firs(&self) -> impl Iterator<Item = (Ssrc, u8)> + use<'a> {
        let entries = self.body.get(8..).unwrap_or_default().chunks_exact(8);
        entries.map(|entry| (Ssrc(u32_at(entry, 0)), entry[4]))
    }
}

fn read_block(bytes: &[u8]) -> Block {
    let lost = u32_at(bytes, 4);
    Block {
        ssrc: Ssrc(u32_at(bytes, 0)),
        fraction_lost: (lost >> 24) as u8,
        // The field has 24 bits, and a sign.
        cumulative_lost: (lost << 8).cast_signed() >> 8,
        highest: u32_at(bytes, 8),
        jitter_units: u32_at(bytes, 12),
        lsr: u32_at(bytes, 16),
        dlsr: u32_at(bytes, 20),
    }
}

/// The CNAMEs of an SDES packet: see [`Packet::cnames`].
#[derive(Debug)]
pub(crate) struct Cnames<'a> {
    rest: &'a [u8],
    chunks: u8,
}

impl<'a> Iterator for Cnames<'a> {
    type Item = (Ssrc, &'a [u8]);

    fn next(&mut self) -> Option<(Ssrc, &'a [u8])> {
        // There are at most 31 chunks, and each item takes at least 2 bytes.
        while self.chunks > 0 {
            self.chunks -= 1;
            let (ssrc, mut items) = self.rest.split_first_chunk::<4>()?;
            let mut cname = None;
            // "The list of items in each chunk MUST be terminated by one or more null octets, the first of which is interpreted as an item
            // type of zero to denote the end of the list." (RFC 3550, section 6.5) Some senders omit the null octets at the end of the
            // packet.
            while let Some((&item, after)) = items.split_first() {
                if item == 0 {
                    items = after;
                    break;
                }
                let (&length, after) = after.split_first()?;
                let (text, after) = after.split_at_checked(usize::from(length))?;
                if item == CNAME && cname.is_none() {
                    cname = Some(text);
                }
                items = after;
            }
            // The zeros are there "...to pad until the next 32-bit boundary", and end there, because the next SSRC may begin with zeros.
            let used = self.rest.len() - items.len();
            self.rest = items.get(used.wrapping_neg() % 4..).unwrap_or_default();
            if let Some(cname) = cname {
                return Some((Ssrc(u32::from_be_bytes(*ssrc)), cname));
            }
        }
        None
    }
}

/// Writes a compound packet to a buffer, packet by packet. A packet that does not fit is omitted completely.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    /// End of the last complete packet.
    complete: usize,
    /// End of the written bytes. It is past the end of the buffer if they did not fit.
    length: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer {
            out,
            complete: 0,
            length: 0,
        }
    }

    /// Returns the length of the packets so far, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.complete
    }

    /// Returns the number of report blocks that still fit if `reserved` bytes follow them.
    pub(crate) fn blocks_room(&self, reserved: usize) -> usize {
        let room = self.out.len().saturating_sub(self.length + reserved);
        (room / BLOCK_BYTES).min(BLOCKS_MAX)
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(place) = self.out.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        self.length = end;
    }

    fn put_u32(&mut self, word: u32) {
        self.put(&word.to_be_bytes());
    }

    fn begin(&mut self, packet_type: u8) {
        self.length = self.complete;
        self.put(&[0x80, packet_type, 0, 0]);
    }

    /// Fills in the header. If the packet did not fit, removes it and returns `false`.
    fn end(&mut self, count: u8) -> bool {
        let words = (self.length - self.complete) / 4 - 1;
        let (Ok(words), Some(packet)) = (
            u16::try_from(words),
            self.out.get_mut(self.complete..self.length),
        ) else {
            self.length = self.complete;
            return false;
        };
        packet[0] |= count & 0x1f;
        packet[2..4].copy_from_slice(&words.to_be_bytes());
        self.complete = self.length;
        true
    }

    /// Writes an SR if there is sender info, or else an RR, with at most [`BLOCKS_MAX`] blocks.
    pub(crate) fn report(
        &mut self,
        ssrc: Ssrc,
        info: Option<SenderInfo>,
        blocks: impl Iterator<Item = Block>,
    ) -> bool {
        self.begin(if info.is_some() { SR } else { RR });
        self.put_u32(ssrc.0);
        if let Some(info) = info {
            self.put(&info.ntp.0.to_be_bytes());
            self.put_u32(info.time.0);
            self.put_u32(info.packets);
            self.put_u32(info.octets);
        }
        let mut count = 0;
        for block in blocks.take(BLOCKS_MAX) {
            self.put_u32(block.ssrc.0);
            let lost = block.cumulative_lost.cast_unsigned() & 0xff_ffff;
            self.put_u32(u32::from(block.fraction_lost) << 24 | lost);
            self.put_u32(block.highest);
            self.put_u32(block.jitter_units);
            self.put_u32(block.lsr);
            self.put_u32(block.dlsr);
            count += 1;
        }
        self.end(count)
    }

    /// Writes an SDES packet with the CNAME, which is cut to [`TEXT_BYTES_MAX`] bytes.
    pub(crate) fn cname(&mut self, ssrc: Ssrc, cname: &str) -> bool {
        self.begin(SDES);
        self.put_u32(ssrc.0);
        self.put(&[CNAME]);
        self.put_text(cname);
        self.put(&[0]);
        self.pad();
        self.end(1)
    }

    /// Writes the BYE of one source. The reason is cut to [`TEXT_BYTES_MAX`] bytes, and left out if it is empty.
    pub(crate) fn bye(&mut self, ssrc: Ssrc, reason: &str) -> bool {
        self.begin(BYE);
        self.put_u32(ssrc.0);
        if !reason.is_empty() {
            self.put_text(reason);
            self.pad();
        }
        self.end(1)
    }

    fn put_text(&mut self, text: &str) {
        let text = cut(text).as_bytes();
        self.put(&[text.len() as u8]);
        self.put(text);
    }

    fn pad(&mut self) {
        while !(self.length - self.complete).is_multiple_of(4) {
            self.put(&[0]);
        }
    }

    /// Writes a NACK for these numbers, which should be in order.
    pub(crate) fn nack(
        &mut self,
        ssrc: Ssrc,
        media: Ssrc,
        lost: impl Iterator<Item = SeqNum>,
    ) -> bool {
        self.begin(RTPFB);
        self.put_u32(ssrc.0);
        self.put_u32(media.0);
        let mut entry: Option<(SeqNum, u16)> = None;
        for seq in lost {
            // "bit i of the bit mask is set to 1 if the receiver has not received RTP packet number (PID+i)" (RFC 4585, section 6.2.1), for
            // i from 1 to 16.
            match &mut entry {
                Some((first, following)) if (0..=16).contains(&seq.distance_from(*first)) => {
                    let after = seq.distance_from(*first);
                    *following |= ((1u32 << after) >> 1) as u16;
                }
                _ => {
                    if let Some((first, following)) = entry.replace((seq, 0)) {
                        self.put_u32(u32::from(first.0) << 16 | u32::from(following));
                    }
                }
            }
        }
        if let Some((first, following)) = entry {
            self.put_u32(u32::from(first.0) << 16 | u32::from(following));
        }
        self.end(FMT_NACK)
    }

    /// Writes an extended report with these blocks, which consist of whole words.
    pub(crate) fn extended(&mut self, ssrc: Ssrc, blocks: &[&[u8]]) -> bool {
        self.begin(XR);
        self.put_u32(ssrc.0);
        for block in blocks {
            self.put(block);
        }
        self.end(0)
    }

    /// Writes a picture loss indication.
    pub(crate) fn pli(&mut self, ssrc: Ssrc, media: Ssrc) -> bool {
        self.begin(PSFB);
        self.put_u32(ssrc.0);
        self.put_u32(media.0);
        self.end(FMT_PLI)
    }

    /// Writes full intra requests. Each has the SSRC of the picture's source, and the number of the request.
    pub(crate) fn fir(&mut self, ssrc: Ssrc, requests: impl Iterator<Item = (Ssrc, u8)>) -> bool {
        self.begin(PSFB);
        self.put_u32(ssrc.0);
        // "the SSRC of the media source [...] is not used and SHALL be set to 0" (RFC 5104, section 4.3.1.2).
        self.put_u32(0);
        for (media, number) in requests {
            self.put_u32(media.0);
            self.put(&[number, 0, 0, 0]);
        }
        self.end(FMT_FIR)
    }
}

/// Returns the length of an SDES packet with this CNAME, in bytes.
pub(crate) fn cname_bytes(cname: &str) -> usize {
    // The parts are header and SSRC, type and length, the text, and at least one zero.
    (8 + 2 + cut(cname).len() + 1).next_multiple_of(4)
}

/// Returns the beginning of a text, up to a character boundary, so that it fits an item.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// These tests compare this module with `rtcp-types`.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rtcp_types::prelude::*;

    use super::*;

    fn block() -> impl Strategy<Value = Block> {
        let words = any::<(u32, u32, u32, u32, u32)>();
        (words, any::<u8>(), -0x80_0000..=0x7f_ffff_i32).prop_map(|(words, fraction_lost, lost)| {
            Block {
                ssrc: Ssrc(words.0),
                fraction_lost,
                cumulative_lost: lost,
                highest: words.1,
                jitter_units: words.2,
                lsr: words.3,
                dlsr: words.4,
            }
        })
    }

    fn read_by_others(block: &rtcp_types::ReportBlock<'_>) -> Block {
        Block {
            ssrc: Ssrc(block.ssrc()),
            fraction_lost: block.fraction_lost(),
            cumulative_lost: (block.cumulative_lost() << 8).cast_signed() >> 8,
            highest: block.extended_sequence_number(),
            jitter_units: block.interarrival_jitter(),
            lsr: block.last_sender_report_timestamp(),
            dlsr: block.delay_since_last_sender_report_timestamp(),
        }
    }

    proptest! {
        #[test]
        fn other_programs_can_parse_our_rtcp_packets(
            ssrc in any::<u32>(),
            info in prop::option::of(any::<(u64, u32, u32, u32)>()),
            blocks in prop::collection::vec(block(), 0..31),
            cname in "[a-zäß]{0,300}",
            reason in prop::option::of("[a-z]{1,300}"),
        ) {
            let mut out = [0; 2000];
            let mut writer = Writer::new(&mut out);
            let sender = info.map(|(ntp, time, packets, octets)| SenderInfo {
                ntp: NtpTime(ntp),
                time: RtpTime(time),
                packets,
                octets,
            });
            prop_assert!(writer.report(Ssrc(ssrc), sender, blocks.iter().copied()));
            prop_assert!(writer.cname(Ssrc(ssrc), &cname));
            prop_assert!(writer.bye(Ssrc(ssrc), reason.as_deref().unwrap_or_default()));
            let bytes = writer.bytes();
            let mut compound = rtcp_types::Compound::parse(&out[..bytes]).expect("a compound");
            let read: Vec<Block> = match compound.next() {
                Some(Ok(rtcp_types::Packet::Sr(report))) => {
                    let told = (report.ntp_timestamp(), report.rtp_timestamp(),
                        report.packet_count(), report.octet_count());
                    prop_assert_eq!(Some(told), info);
                    prop_assert_eq!(report.ssrc(), ssrc);
                    report.report_blocks().map(|block| read_by_others(&block)).collect()
                }
                Some(Ok(rtcp_types::Packet::Rr(report))) => {
                    prop_assert_eq!(None, info);
                    prop_assert_eq!(report.ssrc(), ssrc);
                    report.report_blocks().map(|block| read_by_others(&block)).collect()
                }
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(&read, &blocks);
            let Some(Ok(rtcp_types::Packet::Sdes(sdes))) = compound.next() else {
                panic!("no description");
            };
            let chunk = sdes.chunks().next().expect("a chunk");
            let item = chunk.items().next().expect("an item");
            prop_assert_eq!(item.value(), cut(&cname).as_bytes());
            let Some(Ok(rtcp_types::Packet::Bye(bye))) = compound.next() else {
                panic!("no BYE");
            };
            prop_assert_eq!(bye.reason(), reason.as_deref().map(|reason| cut(reason).as_bytes()));
            // This module must be able to read the packet too.
            let ours: Vec<Packet<'_>> = parse(&out[..bytes], false).expect("good").collect();
            prop_assert_eq!(ours[0].blocks().collect::<Vec<_>>(), blocks);
            if let Some(sender) = sender {
                prop_assert_eq!(ours[0].sender_info(), sender);
            }
            prop_assert_eq!(ours[1].cnames().next(), Some((Ssrc(ssrc), cut(&cname).as_bytes())));
            prop_assert_eq!(ours[2].reason(), cut(reason.as_deref().unwrap_or_default()).as_bytes());
            prop_assert_eq!(bytes - ours[2].body.len() - 4 - ours[0].body.len() - 4, cname_bytes(&cname));
        }

        #[test]
        fn rtcp_packets_of_other_programs_are_parsed(
            sources in prop::collection::vec((any::<u32>(), "[a-z]{1,40}"), 1..31),
            lost in prop::collection::btree_set(any::<u16>(), 1..40),
            padding in 0..3_u8,
        ) {
            let mut sdes = rtcp_types::Sdes::builder();
            for (ssrc, name) in &sources {
                let chunk = rtcp_types::SdesChunk::builder(*ssrc)
                    .add_item(rtcp_types::SdesItem::builder(rtcp_types::SdesItem::TOOL, "test"))
                    .add_item(rtcp_types::SdesItem::builder(rtcp_types::SdesItem::CNAME, name));
                sdes = sdes.add_chunk(chunk);
            }
            let nack = lost.iter().fold(rtcp_types::Nack::builder(), |nack, seq| {
                nack.add_rtp_sequence(*seq)
            });
            let nack = rtcp_types::TransportFeedback::builder_owned(nack).sender_ssrc(1).media_ssrc(2);
            let bye = sources.iter().fold(rtcp_types::Bye::builder(), |bye, (ssrc, _)| bye.add_source(*ssrc));
            let compound = rtcp_types::Compound::builder()
                .add_packet(rtcp_types::ReceiverReport::builder(1))
                .add_packet(sdes)
                .add_packet(nack)
                // The length is aligned already, because `rtcp-types` 0.3.0 writes padding over the alignment.
                .add_packet(bye.padding(padding * 4).reason("bye"));
            let mut bytes = vec![0; 4000];
            let length = compound.write_into(&mut bytes).expect("it fits");
            let packets: Vec<Packet<'_>> = parse(&bytes[..length], false).expect("good").collect();
            let names: Vec<_> = packets[1].cnames().collect();
            let expected: Vec<_> = sources.iter().map(|(ssrc, name)| (Ssrc(*ssrc), name.as_bytes())).collect();
            prop_assert_eq!(names, expected);
            let mut read = std::collections::BTreeSet::new();
            for (first, following) in packets[2].nacks() {
                read.insert(first.0);
                read.extend((0..16).filter(|bit| following >> bit & 1 == 1).map(|bit| first.plus(bit + 1).0));
            }
            prop_assert_eq!(read, lost);
            prop_assert_eq!((packets[2].sender(), packets[2].media()), (Ssrc(1), Ssrc(2)));
            let leaving: Vec<_> = packets[3].leaving().map(|ssrc| ssrc.0).collect();
            prop_assert_eq!(leaving, sources.iter().map(|(ssrc, _)| *ssrc).collect::<Vec<_>>());
            prop_assert_eq!(packets[3].reason(), b"bye");
        }

        #[test]
        fn a_packet_that_does_not_fit_is_left_out_whole(room in 0..200_usize) {
            let mut out = vec![0; room];
            let mut writer = Writer::new(&mut out);
            writer.report(Ssrc(1), None, std::iter::empty());
            writer.cname(Ssrc(1), "a name of some length");
            writer.nack(Ssrc(1), Ssrc(2), (0..20).map(|seq| SeqNum(seq * 20)));
            writer.pli(Ssrc(1), Ssrc(2));
            let bytes = writer.bytes();
            prop_assert!(bytes <= room);
            prop_assert!(bytes == 0 || parse(&out[..bytes], true).is_ok());
        }

        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let Ok(packets) = parse(&bytes, true) else { return Ok(()) };
            for packet in packets {
                prop_assert!(packet.blocks().count() <= BLOCKS_MAX);
                prop_assert!(packet.leaving().count() <= BLOCKS_MAX);
                prop_assert!(packet.cnames().count() <= BLOCKS_MAX);
                let _ = (packet.reason(), packet.nacks().count(), packet.firs().count());
                let _ = (packet.sender(), packet.media(), packet.sender_info());
            }
        }
    }

    /// The zeros at the end of a chunk end at the next 32-bit boundary. The SSRC of the next source may begin with zeros.
    #[test]
    fn an_ssrc_that_begins_with_zeros_does_not_count_as_padding() {
        let mut bytes = vec![0x82, SDES, 0, 5];
        bytes.extend([0, 0, 0, 5, CNAME, 1, b'a', 0]);
        bytes.extend([0, 0, 0, 6, CNAME, 3, b'b', b'c', b'd', 0, 0, 0]);
        let packets: Vec<Packet<'_>> = parse(&bytes, true).expect("good").collect();
        let names: Vec<_> = packets[0].cnames().collect();
        assert_eq!(names, [(Ssrc(5), &b"a"[..]), (Ssrc(6), &b"bcd"[..])]);
    }
}
