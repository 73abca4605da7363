//! Extended reports (RFC 3611): the statistics summary and the VoIP metrics of one source.

use crate::id::{SeqNum, Ssrc};

/// Reception of a source's packets from one number up to another (RFC 3611, section 4.6). TTL statistics are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatisticsSummary {
    /// The source that the report is about.
    pub ssrc: Ssrc,
    /// The first sequence number.
    pub begin: SeqNum,
    /// The sequence number after the last one.
    pub end: SeqNum,
    /// Number of lost packets. `None`: not reported.
    pub lost: Option<u32>,
    /// Number of packets that arrived more than once. `None`: not reported.
    pub duplicates: Option<u32>,
    /// Jitter in units of the source's timestamps. `None`: not reported.
    pub jitter: Option<JitterSummary>,
}

/// Relative transit times of packets, in units of the source's timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JitterSummary {
    /// The shortest transit time.
    pub min: u32,
    /// The longest transit time.
    pub max: u32,
    /// The mean transit time.
    pub mean: u32,
    /// The standard deviation.
    pub deviation: u32,
}

/// Sound quality of a source (RFC 3611, section 4.7). A value that is `None` was not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoipMetrics {
    /// The source that the report is about.
    pub ssrc: Ssrc,
    /// Share of packets lost since the beginning, in 256ths.
    pub loss_rate: u8,
    /// Share of packets that came too late, in 256ths.
    pub discard_rate: u8,
    /// Share of the packets within bursts that was lost or too late, in 256ths.
    pub burst_density: u8,
    /// Share of the packets within gaps that was lost or too late, in 256ths.
    pub gap_density: u8,
    /// Mean length of a burst, ms.
    pub burst_ms: u16,
    /// Mean length of a gap, ms.
    pub gap_ms: u16,
    /// The last round-trip time, ms. 0: unknown.
    pub round_trip_ms: u16,
    /// Delay in the reporter's own system, ms.
    pub end_system_ms: u16,
    /// Level of speech, dBm.
    pub signal_dbm: Option<i8>,
    /// Level of silence, dBm.
    pub noise_dbm: Option<i8>,
    /// Residual echo return loss, dB.
    pub echo_loss_db: Option<u8>,
    /// Number of received packets in a row that end a burst.
    pub gmin: u8,
    /// The rating R, 0 to 100.
    pub rating: Option<u8>,
    /// Rating of an external network, 0 to 100.
    pub external_rating: Option<u8>,
    /// Mean opinion score for listening, tenths: 10 to 50.
    pub mos_listening: Option<u8>,
    /// Mean opinion score for conversation, tenths: 10 to 50.
    pub mos_conversation: Option<u8>,
    /// Concealment and kind of the jitter buffer, as in RFC 3611, section 4.7.6.
    pub receiver: u8,
    /// Current delay of the jitter buffer, ms.
    pub jitter_buffer_ms: u16,
    /// Greatest delay of the jitter buffer so far, ms.
    pub jitter_buffer_max_ms: u16,
    /// Maximum delay that the jitter buffer may have, ms.
    pub jitter_buffer_bound_ms: u16,
}

/// The last extended reports of each kind: a peer's about us, or ours about a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extended {
    /// The statistics summary.
    pub summary: Option<StatisticsSummary>,
    /// The VoIP metrics.
    pub metrics: Option<VoipMetrics>,
}

/// A session's extended reports.
#[derive(Debug, Default)]
pub(super) struct ExtendedReports {
    /// The reports that the next packet contains.
    pub(super) offered: Option<Extended>,
    /// Whether these reports have been sent.
    pub(super) has_left: bool,
    /// The peer's reports about us.
    pub(super) heard: Option<Extended>,
    /// Number of reports with a malformed block.
    pub(super) malformed: u64,
}

/// A block of an extended report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum XrBlock {
    Summary(StatisticsSummary),
    Metrics(VoipMetrics),
    /// A block of a type that is not handled here.
    Other,
}

/// A block that ends early, or whose length does not match its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedBlock;

/// Iterator over the blocks of an extended report. It ends after an error.
#[derive(Debug, Clone)]
pub(super) struct XrBlocks<'a> {
    rest: &'a [u8],
}

impl<'a> XrBlocks<'a> {
    pub(super) fn new(rest: &'a [u8]) -> XrBlocks<'a> {
        XrBlocks { rest }
    }
}

impl Iterator for XrBlocks<'_> {
    type Item = Result<XrBlock, MalformedBlock>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let block = split(&mut self.rest);
        if block.is_err() {
            self.rest = &[];
        }
        Some(block)
    }
}

/// Splits off the next block. It has a type, a type-specific byte, and the length in words without the first word (RFC 3611, section 3).
fn split(rest: &mut &[u8]) -> Result<XrBlock, MalformedBlock> {
    let &[block_type, flags, high, low] = rest.first_chunk().ok_or(MalformedBlock)?;
    let length = 4 + 4 * usize::from(u16::from_be_bytes([high, low]));
    let (block, after) = rest.split_at_checked(length).ok_or(MalformedBlock)?;
    *rest = after;
    match block_type {
        SUMMARY => {
            let body: &[u8; SUMMARY_BYTES] = block.try_into().map_err(|_| MalformedBlock)?;
            Ok(XrBlock::Summary(read_summary(flags, body)))
        }
        METRICS => {
            let body: &[u8; METRICS_BYTES] = block.try_into().map_err(|_| MalformedBlock)?;
            Ok(XrBlock::Metrics(read_metrics(body)))
        }
        _ => Ok(XrBlock::Other),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn read_summary(flags: u8, body: &[u8; SUMMARY_BYTES]) -> StatisticsSummary {
    let told = |flag: u8, at: usize| (flags & flag != 0).then(|| word(body, at));
    StatisticsSummary {
        ssrc: Ssrc(word(body, 4)),
        begin: SeqNum(half(body, 8)),
        end: SeqNum(half(body, 10)),
        lost: told(LOSS, 12),
        duplicates: told(DUPLICATES, 16),
        jitter: (flags & JITTER != 0).then(|| JitterSummary {
            min: word(body, 20),
            max: word(body, 24),
            mean: word(body, 28),
            deviation: word(body, 32),
        }),
    }
}

/// Reads VoIP metrics. 127 means that a value is not available (RFC 3611, section 4.7).
fn read_metrics(body: &[u8; METRICS_BYTES]) -> VoipMetrics {
    let told = |at: usize| Some(body[at]).filter(|value| *value != UNAVAILABLE);
    VoipMetrics {
        ssrc: Ssrc(word(body, 4)),
        loss_rate: body[8],
        discard_rate: body[9],
        burst_density: body[10],
        gap_density: body[11],
        burst_ms: half(body, 12),
        gap_ms: half(body, 14),
        round_trip_ms: half(body, 16),
        end_system_ms: half(body, 18),
        signal_dbm: told(20).map(u8::cast_signed),
        noise_dbm: told(21).map(u8::cast_signed),
        echo_loss_db: told(22),
        gmin: body[23],
        rating: told(24),
        external_rating: told(25),
        mos_listening: told(26),
        mos_conversation: told(27),
        receiver: body[28],
        jitter_buffer_ms: half(body, 30),
        jitter_buffer_max_ms: half(body, 32),
        jitter_buffer_bound_ms: half(body, 34),
    }
}

impl StatisticsSummary {
    pub(super) fn bytes(&self) -> [u8; SUMMARY_BYTES] {
        let flag = |is_told: bool, flag: u8| if is_told { flag } else { 0 };
        let mut out = [0; SUMMARY_BYTES];
        out[0] = SUMMARY;
        out[1] = flag(self.lost.is_some(), LOSS)
            | flag(self.duplicates.is_some(), DUPLICATES)
            | flag(self.jitter.is_some(), JITTER);
        put(&mut out, 2, &words_behind(SUMMARY_BYTES));
        put(&mut out, 4, &self.ssrc.0.to_be_bytes());
        put(&mut out, 8, &self.begin.0.to_be_bytes());
        put(&mut out, 10, &self.end.0.to_be_bytes());
        put(&mut out, 12, &self.lost.unwrap_or(0).to_be_bytes());
        put(&mut out, 16, &self.duplicates.unwrap_or(0).to_be_bytes());
        if let Some(jitter) = self.jitter {
            put(&mut out, 20, &jitter.min.to_be_bytes());
            put(&mut out, 24, &jitter.max.to_be_bytes());
            put(&mut out, 28, &jitter.mean.to_be_bytes());
            put(&mut out, 32, &jitter.deviation.to_be_bytes());
        }
        out
    }
}

impl VoipMetrics {
    pub(super) fn bytes(&self) -> [u8; METRICS_BYTES] {
        let mut out = [0; METRICS_BYTES];
        out[0] = METRICS;
        put(&mut out, 2, &words_behind(METRICS_BYTES));
        put(&mut out, 4, &self.ssrc.0.to_be_bytes());
        let rates = [
            self.loss_rate,
            self.discard_rate,
            self.burst_density,
            self.gap_density,
        ];
        put(&mut out, 8, &rates);
        let times = [
            (12, self.burst_ms),
            (14, self.gap_ms),
            (16, self.round_trip_ms),
            (18, self.end_system_ms),
            (30, self.jitter_buffer_ms),
            (32, self.jitter_buffer_max_ms),
            (34, self.jitter_buffer_bound_ms),
        ];
        for (at, ms) in times {
            put(&mut out, at, &ms.to_be_bytes());
        }
        let level = |dbm: Option<i8>| dbm.map_or(UNAVAILABLE, i8::cast_unsigned);
        let told = |value: Option<u8>| value.unwrap_or(UNAVAILABLE);
        let rest = [
            level(self.signal_dbm),
            level(self.noise_dbm),
            told(self.echo_loss_db),
            self.gmin,
            told(self.rating),
            told(self.external_rating),
            told(self.mos_listening),
            told(self.mos_conversation),
            self.receiver,
        ];
        put(&mut out, 20, &rest);
        out
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn words_behind(bytes: usize) -> [u8; 2] {
    ((bytes / 4 - 1) as u16).to_be_bytes()
}

/// Block types (RFC 3611, sections 4.6 and 4.7).
const SUMMARY: u8 = 6;
const METRICS: u8 = 7;
const SUMMARY_BYTES: usize = 40;
const METRICS_BYTES: usize = 36;
/// Flags of a summary: L (loss), D (duplicates) and J (jitter).
const LOSS: u8 = 0x80;
const DUPLICATES: u8 = 0x40;
const JITTER: u8 = 0x20;
/// The value of R, the MOS and the levels if they are not available.
const UNAVAILABLE: u8 = 127;
/// Number of bytes of an extended report with both blocks, after its header and sender.
pub(super) const XR_BYTES: usize = 8 + SUMMARY_BYTES + METRICS_BYTES;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns any value except for 127, which means that a value is not available.
    fn told() -> impl Strategy<Value = Option<u8>> {
        prop::option::of((0..=255_u8).prop_filter("unavailable", |value| *value != UNAVAILABLE))
    }

    prop_compose! {
        fn metrics()(
            ssrc in any::<u32>(),
            rates in any::<[u8; 6]>(),
            times in any::<[u16; 7]>(),
            told in prop::array::uniform7(told()),
        ) -> VoipMetrics {
            VoipMetrics {
                ssrc: Ssrc(ssrc),
                loss_rate: rates[0],
                discard_rate: rates[1],
                burst_density: rates[2],
                gap_density: rates[3],
                burst_ms: times[0],
                gap_ms: times[1],
                round_trip_ms: times[2],
                end_system_ms: times[3],
                signal_dbm: told[0].map(u8::cast_signed),
                noise_dbm: told[1].map(u8::cast_signed),
                echo_loss_db: told[2],
                gmin: rates[4],
                rating: told[3],
                external_rating: told[4],
                mos_listening: told[5],
                mos_conversation: told[6],
                receiver: rates[5],
                jitter_buffer_ms: times[4],
                jitter_buffer_max_ms: times[5],
                jitter_buffer_bound_ms: times[6],
            }
        }
    }

    prop_compose! {
        fn summary()(
            ssrc in any::<u32>(),
            numbers in any::<[u16; 2]>(),
            lost in any::<Option<u32>>(),
            duplicates in any::<Option<u32>>(),
            jitter in any::<Option<[u32; 4]>>(),
        ) -> StatisticsSummary {
            StatisticsSummary {
                ssrc: Ssrc(ssrc),
                begin: SeqNum(numbers[0]),
                end: SeqNum(numbers[1]),
                lost,
                duplicates,
                jitter: jitter.map(|[min, max, mean, deviation]| JitterSummary {
                    min,
                    max,
                    mean,
                    deviation,
                }),
            }
        }
    }

    proptest! {
        #[test]
        fn written_data_round_trips(summary in summary(), metrics in metrics()) {
            let other = [5, 0, 0, 1, 1, 2, 3, 4];
            let bytes = [&summary.bytes()[..], &other, &metrics.bytes()].concat();
            let blocks: Vec<_> = XrBlocks::new(&bytes).collect();
            let expected = [XrBlock::Summary(summary), XrBlock::Other, XrBlock::Metrics(metrics)];
            prop_assert_eq!(blocks, expected.map(Ok));
        }

        #[test]
        fn arbitrary_bytes_cause_no_panic_and_no_endless_list(bytes in prop::collection::vec(0..12_u8, 0..200)) {
            let blocks = XrBlocks::new(&bytes).count();
            prop_assert!(blocks <= bytes.len() / 4 + 1);
        }
    }

    #[test]
    fn a_block_of_a_wrong_length_is_malformed() {
        for bytes in [
            &[6][..],
            &[6, 0, 0, 9],
            &[7, 0, 0, 0],
            &[6, 0, 0, 1, 0, 0, 0, 0],
        ] {
            let blocks: Vec<_> = XrBlocks::new(bytes).collect();
            assert_eq!(blocks, [Err(MalformedBlock)]);
        }
    }
}
