//! Converts RTP between PCMU, PCMA and L16, packet by packet.
//!
//! A packet that keeps its number of samples is converted in place. Another packet time, or a concealed loss, goes
//! through a small store. Sequence numbers continue without a gap; timestamps keep the distances of the incoming ones,
//! also when the sender changes (RFC 3550, section 5.1).
//!
//! Drain contract: after each `handle_*`, call [`Recoder::poll_packet`] until it returns `None`. After
//! [`Handled::DrainFirst`], drain and handle the same packet again.

use std::ops::Range;

use crate::conceal::Concealer;
use crate::g711;
use crate::id::{NS_PER_S, PayloadType, RtpTime, SeqNum, Ssrc};
use crate::l16;
use crate::packet::Packet;
use crate::payload::COMFORT_NOISE;

/// Encoding of a payload's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// G.711 µ-law, a byte a sample.
    Pcmu,
    /// G.711 A-law, a byte a sample.
    Pcma,
    /// 16 bits a sample in network byte order (RFC 3551, section 4.5.11).
    L16,
}

impl Encoding {
    /// Bytes of one sample.
    #[must_use]
    pub const fn sample_bytes(self) -> usize {
        match self {
            Encoding::Pcmu | Encoding::Pcma => 1,
            Encoding::L16 => 2,
        }
    }

    /// Decodes a payload to linear samples, as many as there is room for; returns how many.
    pub fn to_linear(self, payload: &[u8], linear: &mut [i16]) -> usize {
        let by_table = |table: &[i16; 256], linear: &mut [i16]| {
            for (sample, code) in linear.iter_mut().zip(payload) {
                *sample = table[usize::from(*code)];
            }
        };
        match self {
            Encoding::Pcmu => by_table(&g711::ULAW_TO_LINEAR, linear),
            Encoding::Pcma => by_table(&g711::ALAW_TO_LINEAR, linear),
            Encoding::L16 => l16::l16_to_linear(payload, linear),
        }
        linear.len().min(payload.len() / self.sample_bytes())
    }

    fn decode(self, payload: &[u8], samples: &mut Vec<i16>) {
        match self {
            Encoding::Pcmu => {
                let table = &g711::ULAW_TO_LINEAR;
                samples.extend(payload.iter().map(|code| table[usize::from(*code)]));
            }
            Encoding::Pcma => {
                let table = &g711::ALAW_TO_LINEAR;
                samples.extend(payload.iter().map(|code| table[usize::from(*code)]));
            }
            Encoding::L16 => samples.extend(
                payload
                    .chunks_exact(2)
                    .map(|pair| i16::from_be_bytes([pair[0], pair[1]])),
            ),
        }
    }

    fn encode(self, sample: i16, out: &mut Vec<u8>) {
        match self {
            Encoding::Pcmu => out.push(g711::linear_to_ulaw(sample)),
            Encoding::Pcma => out.push(g711::linear_to_alaw(sample)),
            Encoding::L16 => out.extend(sample.to_be_bytes()),
        }
    }
}

/// Settings of a [`Recoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The incoming encoding.
    pub from: Encoding,
    /// The outgoing encoding.
    pub to: Encoding,
    /// Samples a second, of both, and the rate of both RTP clocks.
    pub clock_rate_hz: u32,
    /// The incoming payload type; `None`: any except those passed on unchanged.
    pub payload_type_in: Option<PayloadType>,
    /// The outgoing payload type.
    pub payload_type: PayloadType,
    /// The outgoing SSRC.
    pub ssrc: Ssrc,
    /// The first outgoing sequence number; random, by RFC 3550, section 5.1.
    pub first_seq: SeqNum,
    /// The first outgoing timestamp; random, by RFC 3550, section 5.1.
    pub first_time: RtpTime,
    /// Samples per outgoing packet; 0: as in the incoming ones.
    pub packet_samples: u32,
    /// The payload type of telephone events (RFC 4733), which pass unchanged.
    pub telephone_event: Option<PayloadType>,
}

/// Result of handling a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// Converted in place: send this range of its bytes.
    InPlace(Range<usize>),
    /// Its samples are in the store.
    Stored,
    /// Not handled: drain the store first.
    DrainFirst,
    /// The packet is useless here.
    Dropped(DropReason),
}

/// Why a packet was not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// It is not RTP.
    Malformed,
    /// It is of another payload type.
    PayloadType(PayloadType),
    /// It holds no whole sample, or more than [`STORE_SAMPLES_MAX`].
    Length(usize),
}

/// A packet from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Bytes written, header included.
    pub len: usize,
    /// When its first sample is to be played, in nanoseconds, if the incoming packets said so.
    pub play_ns: Option<u64>,
}

/// Counters, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that came in.
    pub packets_in: u64,
    /// Packets that went out.
    pub packets_out: u64,
    /// Samples made up for losses.
    pub concealed_samples: u64,
    /// Telephone events and comfort noise passed on unchanged.
    pub passed_on: u64,
    /// Useless packets.
    pub dropped: u64,
}

/// Converts one stream. Hot fields first: thousands of them take turns in the cache.
#[derive(Debug)]
pub struct Recoder {
    config: Config,
    seq: SeqNum,
    /// Added to an incoming timestamp.
    time_offset: u32,
    /// Of the last incoming packet.
    last_ssrc: Option<Ssrc>,
    /// The packet time of the last packet that had a plausible one, in samples.
    last_samples: u32,
    allowance: Allowance,
    /// Where the next packet is expected, in incoming timestamps.
    next_time: RtpTime,
    /// When the next packet is to be played.
    next_play_ns: Option<u64>,
    conceals: bool,
    /// An outgoing packet gets the marker bit after a pause.
    after_pause: bool,
    stats: Stats,
    history: History,
    /// Encoded for output, not sent yet; usually empty.
    store: Vec<u8>,
    store_time: RtpTime,
    store_play_ns: Option<u64>,
    /// Samples per packet cut from the store.
    store_packet_samples: u32,
    /// The store is drained even if it holds no full packet.
    flushing: bool,
    concealer: Option<Concealer>,
}

impl Recoder {
    /// A recoder that has seen nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Recoder {
            seq: config.first_seq,
            time_offset: 0,
            last_ssrc: None,
            last_samples: samples_of(PACKET_NS_DEFAULT, config.clock_rate_hz),
            allowance: Allowance {
                packets: ALLOWANCE_PACKETS_FIRST,
                samples: samples_of(ALLOWANCE_NS_FIRST, config.clock_rate_hz),
            },
            next_time: RtpTime(0),
            next_play_ns: None,
            conceals: false,
            after_pause: true,
            stats: Stats::default(),
            history: History::new(config.from),
            store: Vec::new(),
            store_time: config.first_time,
            store_play_ns: None,
            store_packet_samples: 0,
            flushing: false,
            concealer: None,
            config,
        }
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The sender changed its encoding: later packets are of `config`. The outgoing stream stays the same; its SSRC,
    /// numbers and timestamps continue. The store must have been drained after [`Recoder::handle_end`].
    pub fn reconfigure(&mut self, config: Config) {
        debug_assert!(
            self.store.is_empty(),
            "what is stored is of the old encoding"
        );
        if config.clock_rate_hz != self.config.clock_rate_hz {
            // Timestamps count other units now: the next packet begins where the last one ended.
            self.config.first_time = self.outgoing(self.next_time);
            self.last_ssrc = None;
        }
        self.config = Config {
            ssrc: self.config.ssrc,
            first_seq: self.config.first_seq,
            first_time: self.config.first_time,
            ..config
        };
        self.history = History::new(config.from);
        self.last_samples = samples_of(PACKET_NS_DEFAULT, config.clock_rate_hz);
        self.conceals = false;
        self.concealer = None;
        self.store.clear();
    }

    /// Another outgoing SSRC, after a collision.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        self.config.ssrc = ssrc;
    }

    /// Counters, since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Memory that each packet writes to, for prefetching.
    #[must_use]
    pub fn history(&self) -> &[u8] {
        &self.history.bytes
    }

    /// The next outgoing sequence number.
    #[must_use]
    pub fn next_seq(&self) -> SeqNum {
        self.seq
    }

    /// Handles the next packet in order, to be played at `play_ns` if known. `resync`: earlier packets do not predict
    /// its timestamp.
    pub fn handle_packet(
        &mut self,
        bytes: &mut [u8],
        play_ns: Option<u64>,
        resync: bool,
    ) -> Handled {
        let Ok(packet) = Packet::parse(bytes) else {
            return self.dropped(DropReason::Malformed);
        };
        let header = Header {
            ssrc: packet.ssrc(),
            time: packet.time(),
            marker: packet.marker(),
            payload_type: packet.payload_type(),
        };
        let payload = packet.payload_range();
        let is_new = resync || self.last_ssrc != Some(header.ssrc);
        let passes = self.passes(header.payload_type);
        if !self.store.is_empty() && (is_new || passes || header.time != self.next_time) {
            self.flushing = true;
            return Handled::DrainFirst;
        }
        if is_new {
            self.follow(header, play_ns);
        }
        if passes {
            return self.pass_on(bytes, payload, header);
        }
        if self
            .config
            .payload_type_in
            .is_some_and(|own| own != header.payload_type)
        {
            return self.dropped(DropReason::PayloadType(header.payload_type));
        }
        let width = self.config.from.sample_bytes();
        let samples = payload.len() / width;
        let payload = payload.start..payload.start + samples * width;
        if samples == 0 || samples > STORE_SAMPLES_MAX {
            return self.dropped(DropReason::Length(payload.len()));
        }
        self.stats.packets_in += 1;
        self.recode(bytes, payload, header, samples as u32, play_ns)
    }

    fn recode(
        &mut self,
        bytes: &mut [u8],
        payload: Range<usize>,
        header: Header,
        samples: u32,
        play_ns: Option<u64>,
    ) -> Handled {
        let rate_hz = self.config.clock_rate_hz;
        if is_packet_time(samples, rate_hz) {
            self.last_samples = samples;
        }
        self.allowance.earn(samples, rate_hz);
        self.next_time = header.time.plus(samples);
        self.next_play_ns =
            play_ns.map(|play_ns| play_ns.saturating_add(self.duration_ns(samples)));
        self.after_pause |= header.marker;
        let is_grown = self.config.to.sample_bytes() > self.config.from.sample_bytes();
        let is_whole = self.config.packet_samples == 0 || self.config.packet_samples == samples;
        if self.conceals || is_grown || !is_whole || !self.store.is_empty() {
            let packet_samples = match self.config.packet_samples {
                0 => samples,
                configured => configured,
            };
            self.begin_store(header.time, play_ns, packet_samples);
            self.store_payload(&bytes[payload]);
            return Handled::Stored;
        }
        self.history.add(&bytes[payload.clone()]);
        let start = payload.start - HEADER_BYTES;
        let end = payload.start + self.convert(&mut bytes[payload]);
        let out = Header {
            time: self.outgoing(header.time),
            marker: std::mem::take(&mut self.after_pause),
            payload_type: self.config.payload_type,
            ..header
        };
        self.write_header(&mut bytes[start..], out);
        Handled::InPlace(start..end)
    }

    /// Packets of `duration_ns` were lost: conceals them, up to [`CONCEAL_NS_MAX`] and no more than has arrived,
    /// because a sender of few packets and wide gaps must not cause a full stream. The rest is a gap in the timestamps.
    pub fn handle_loss(&mut self, play_ns: Option<u64>, duration_ns: u64) {
        if self.last_ssrc.is_none() {
            return;
        }
        let rate_hz = self.config.clock_rate_hz;
        let wanted = samples_of(duration_ns.min(CONCEAL_NS_MAX), rate_hz);
        let samples = self.allowance.spend(
            wanted,
            self.packet_samples(),
            self.config.packet_samples == 0,
        );
        if samples == 0 {
            return;
        }
        if self.concealer.is_none() {
            self.concealer = Concealer::new(rate_hz, 1).ok();
        }
        let mut made = vec![0; samples as usize];
        // At a rate that the concealer does not support, silence fills the gap.
        if let Some(concealer) = &mut self.concealer {
            if !self.conceals {
                concealer.reset();
                concealer.pass(&mut self.history.decode(self.config.from));
            }
            concealer.fill(&mut made);
        }
        self.conceals = true;
        let packet_samples = self.packet_samples();
        self.begin_store(
            self.next_time,
            play_ns.or(self.next_play_ns),
            packet_samples,
        );
        for sample in made {
            self.config.to.encode(sample, &mut self.store);
        }
        self.stats.concealed_samples += u64::from(samples);
        self.next_time = self.next_time.plus(samples);
        let made_ns = self.duration_ns(samples);
        self.next_play_ns = self.next_play_ns.map(|ns| ns.saturating_add(made_ns));
    }

    /// The stream ends or is flushed: drain the store.
    pub fn handle_end(&mut self) {
        self.flushing = true;
    }

    /// The next packet from the store, written to `out`, which has room for [`Recoder::packet_bytes_max`].
    pub fn poll_packet(&mut self, out: &mut [u8]) -> Option<Stored> {
        if self.store.is_empty() {
            self.flushing = false;
            return None;
        }
        let width = self.config.to.sample_bytes();
        let whole = self.store_packet_samples as usize * width;
        let bytes = match self.store.len() {
            len if len >= whole => whole,
            len if self.flushing => len,
            _ => return None,
        };
        let len = HEADER_BYTES + bytes;
        let payload = out.get_mut(HEADER_BYTES..len)?;
        payload.copy_from_slice(&self.store[..bytes]);
        self.store.drain(..bytes);
        let samples = (bytes / width) as u32;
        let (time, play_ns) = (self.store_time, self.store_play_ns);
        self.store_time = time.plus(samples);
        let duration_ns = self.duration_ns(samples);
        self.store_play_ns = play_ns.map(|play_ns| play_ns.saturating_add(duration_ns));
        let header = Header {
            ssrc: self.config.ssrc,
            time,
            marker: std::mem::take(&mut self.after_pause),
            payload_type: self.config.payload_type,
        };
        self.write_header(out, header);
        Some(Stored { len, play_ns })
    }

    /// Bytes of the longest packet that [`Recoder::poll_packet`] writes now.
    #[must_use]
    pub fn packet_bytes_max(&self) -> usize {
        HEADER_BYTES + self.store_packet_samples as usize * self.config.to.sample_bytes()
    }

    /// Longest time that the store delays samples, in nanoseconds: the packet time, if it changes.
    #[must_use]
    pub fn delay_ns(&self) -> u64 {
        self.duration_ns(self.config.packet_samples)
    }

    /// Samples of each packet made for a loss.
    fn packet_samples(&self) -> u32 {
        match self.config.packet_samples {
            0 => self.last_samples.max(1),
            samples => samples,
        }
    }

    fn duration_ns(&self, samples: u32) -> u64 {
        u64::from(samples) * NS_PER_S / u64::from(self.config.clock_rate_hz.max(1))
    }

    /// A sender's first packet, or one after a jump: its timestamp follows from its play time.
    fn follow(&mut self, header: Header, play_ns: Option<u64>) {
        let goes_on = match self.last_ssrc {
            None => self.config.first_time,
            Some(_) => {
                let pause_ns = match (play_ns, self.next_play_ns) {
                    (Some(play_ns), Some(expected_ns)) => play_ns.saturating_sub(expected_ns),
                    _ => 0,
                };
                let pause = u128::from(pause_ns) * u128::from(self.config.clock_rate_hz);
                self.outgoing(self.next_time)
                    .plus((pause / u128::from(NS_PER_S)) as u32)
            }
        };
        self.last_ssrc = Some(header.ssrc);
        self.time_offset = goes_on.0.wrapping_sub(header.time.0);
        self.next_time = header.time;
        self.after_pause = true;
    }

    /// Maps an incoming timestamp to the outgoing one.
    fn outgoing(&self, time: RtpTime) -> RtpTime {
        time.plus(self.time_offset)
    }

    fn passes(&self, payload_type: PayloadType) -> bool {
        payload_type == COMFORT_NOISE || self.config.telephone_event == Some(payload_type)
    }

    /// Telephone events and comfort noise, which mean the same in every encoding.
    fn pass_on(&mut self, bytes: &mut [u8], payload: Range<usize>, header: Header) -> Handled {
        self.stats.packets_in += 1;
        self.stats.passed_on += 1;
        let start = payload.start - HEADER_BYTES;
        let out = Header {
            time: self.outgoing(header.time),
            ..header
        };
        self.write_header(&mut bytes[start..], out);
        Handled::InPlace(start..payload.end)
    }

    fn dropped(&mut self, reason: DropReason) -> Handled {
        self.stats.packets_in += 1;
        self.stats.dropped += 1;
        Handled::Dropped(reason)
    }

    /// Converts a payload in place and returns its new length.
    fn convert(&self, payload: &mut [u8]) -> usize {
        match (self.config.from, self.config.to) {
            (Encoding::Pcmu, Encoding::Pcma) => translate(&g711::ULAW_TO_ALAW, payload),
            (Encoding::Pcma, Encoding::Pcmu) => translate(&g711::ALAW_TO_ULAW, payload),
            (Encoding::L16, Encoding::Pcmu) => return narrow(payload, g711::linear_to_ulaw),
            (Encoding::L16, Encoding::Pcma) => return narrow(payload, g711::linear_to_alaw),
            _ => {}
        }
        payload.len()
    }

    fn store_payload(&mut self, payload: &[u8]) {
        self.history.add(payload);
        let mends = std::mem::take(&mut self.conceals);
        if self.config.from == self.config.to && !mends {
            self.store.extend_from_slice(payload);
            return;
        }
        let mut samples = Vec::with_capacity(payload.len());
        self.config.from.decode(payload, &mut samples);
        if mends && let Some(concealer) = &mut self.concealer {
            // The filling fades into the beginning of this packet.
            concealer.pass(&mut samples);
        }
        for sample in samples {
            self.config.to.encode(sample, &mut self.store);
        }
    }

    /// Sets the time and the packet size, in samples, of the samples stored next, unless the store already holds some.
    fn begin_store(&mut self, time: RtpTime, play_ns: Option<u64>, packet_samples: u32) {
        if self.store.is_empty() {
            self.store_time = self.outgoing(time);
            self.store_play_ns = play_ns;
            self.store_packet_samples = packet_samples;
        }
    }

    /// Writes a header of ours, in order.
    fn write_header(&mut self, out: &mut [u8], header: Header) {
        let marker = u8::from(header.marker) << 7;
        out[0] = VERSION << 6;
        out[1] = marker | header.payload_type.0;
        out[2..4].copy_from_slice(&self.seq.0.to_be_bytes());
        out[4..8].copy_from_slice(&header.time.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.config.ssrc.0.to_be_bytes());
        self.seq = self.seq.plus(1);
        self.stats.packets_out += 1;
    }
}

/// Budget for filling losses: as much as has arrived, up to a reserve.
#[derive(Debug)]
struct Allowance {
    packets: u32,
    samples: u32,
}

impl Allowance {
    /// A packet has arrived.
    fn earn(&mut self, samples: u32, rate_hz: u32) {
        self.packets = (self.packets + 1).min(ALLOWANCE_PACKETS_MAX);
        let samples_max = samples_of(ALLOWANCE_NS_MAX, rate_hz);
        self.samples = self.samples.saturating_add(samples).min(samples_max);
    }

    /// Takes `wanted` samples off, or as many whole packets as there are. With `counts_packets`, each packet needs
    /// budget as well: otherwise incoming packets are cut as finely.
    fn spend(&mut self, wanted: u32, packet_samples: u32, counts_packets: bool) -> u32 {
        let packets = wanted.div_ceil(packet_samples);
        if wanted <= self.samples && (packets <= self.packets || !counts_packets) {
            self.samples -= wanted;
            self.packets = self.packets.saturating_sub(packets);
            return wanted;
        }
        let mut affordable = self.samples / packet_samples;
        if counts_packets {
            affordable = affordable.min(self.packets);
        }
        let samples = wanted.min(affordable * packet_samples);
        self.samples -= samples;
        self.packets = self.packets.saturating_sub(affordable);
        samples
    }
}

fn samples_of(ns: u64, rate_hz: u32) -> u32 {
    ((ns * u64::from(rate_hz) + NS_PER_S / 2) / NS_PER_S) as u32
}

/// Whether senders use packets of this size. A smaller one is a remainder, or made to cause many fillings.
fn is_packet_time(samples: u32, rate_hz: u32) -> bool {
    (samples_of(PACKET_NS_MIN, rate_hz)..=samples_of(PACKET_NS_MAX, rate_hz)).contains(&samples)
}

/// The RTP header fields used here.
#[derive(Debug, Clone, Copy)]
struct Header {
    ssrc: Ssrc,
    time: RtpTime,
    marker: bool,
    payload_type: PayloadType,
}

fn translate(table: &[u8; 256], payload: &mut [u8]) {
    for code in payload {
        *code = table[usize::from(*code)];
    }
}

/// Two bytes become one, at the front.
fn narrow(payload: &mut [u8], encode: impl Fn(i16) -> u8) -> usize {
    let samples = payload.len() / 2;
    for i in 0..samples {
        payload[i] = encode(i16::from_be_bytes([payload[2 * i], payload[2 * i + 1]]));
    }
    samples
}

/// The last incoming samples, unconverted: the concealer's history. Kept for every stream and read only after a loss,
/// so adding to it is only a copy.
#[derive(Debug)]
struct History {
    bytes: Box<[u8]>,
    /// Where the oldest byte is.
    at: usize,
    /// No more than there are.
    filled: usize,
}

impl History {
    fn new(encoding: Encoding) -> Self {
        History {
            bytes: vec![0; HISTORY_SAMPLES * encoding.sample_bytes()].into_boxed_slice(),
            at: 0,
            filled: 0,
        }
    }

    fn add(&mut self, payload: &[u8]) {
        let size = self.bytes.len();
        let newest = &payload[payload.len().saturating_sub(size)..];
        let first = newest.len().min(size - self.at);
        self.bytes[self.at..self.at + first].copy_from_slice(&newest[..first]);
        self.bytes[..newest.len() - first].copy_from_slice(&newest[first..]);
        self.at = (self.at + newest.len()) % size;
        self.filled = (self.filled + newest.len()).min(size);
    }

    fn decode(&self, encoding: Encoding) -> Vec<i16> {
        let mut samples = Vec::with_capacity(HISTORY_SAMPLES);
        if self.filled == self.bytes.len() {
            encoding.decode(&self.bytes[self.at..], &mut samples);
            encoding.decode(&self.bytes[..self.at], &mut samples);
        } else {
            encoding.decode(&self.bytes[..self.filled], &mut samples);
        }
        samples
    }
}

/// A header without CSRC entries and extension (RFC 3550, section 5.1).
const HEADER_BYTES: usize = 12;
const VERSION: u8 = 2;
/// Half a second of 16 kHz: more than any packet time in use. Bounds the store.
const STORE_SAMPLES_MAX: usize = 8000;
/// Longer losses are pauses: after this, concealment is silence anyway.
const CONCEAL_NS_MAX: u64 = 200_000_000;
/// Budget at the start: enough for the longest loss right after the first packet.
const ALLOWANCE_NS_FIRST: u64 = CONCEAL_NS_MAX;
/// The same in packets of the usual time.
const ALLOWANCE_PACKETS_FIRST: u32 = (ALLOWANCE_NS_FIRST / PACKET_NS_DEFAULT) as u32;
/// Largest budget that a stream without losses may save for a burst of them.
const ALLOWANCE_NS_MAX: u64 = NS_PER_S;
/// The same in packets of the usual time.
const ALLOWANCE_PACKETS_MAX: u32 = (ALLOWANCE_NS_MAX / PACKET_NS_DEFAULT) as u32;
/// RFC 3551, section 4.2: "The default packetization interval SHOULD have a duration of 20 ms".
const PACKET_NS_DEFAULT: u64 = 20_000_000;
/// The shortest packet time in wide use, that of AES67.
const PACKET_NS_MIN: u64 = 1_000_000;
/// RFC 3551, section 4.2: "A receiver SHOULD accept packets representing between 0 and 200 ms of audio data."
const PACKET_NS_MAX: u64 = 200_000_000;
/// A concealer's history: 48.75 ms of 8 kHz.
const HISTORY_SAMPLES: usize = 390;

#[cfg(test)]
mod tests {
    use super::*;

    const PCMU_TO_PCMA: Config = Config {
        from: Encoding::Pcmu,
        to: Encoding::Pcma,
        clock_rate_hz: 8000,
        payload_type_in: Some(PayloadType(0)),
        payload_type: PayloadType(8),
        ssrc: Ssrc(7),
        first_seq: SeqNum(65_535),
        first_time: RtpTime(1000),
        packet_samples: 0,
        telephone_event: Some(PayloadType(101)),
    };

    fn packet(seq: u16, time: u32, payload_type: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, payload_type];
        bytes.extend(seq.to_be_bytes());
        bytes.extend(time.to_be_bytes());
        bytes.extend(0xaaaa_u32.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Output for some input: sequence number, timestamp, marker, payload type, payload.
    type Out = (u16, u32, bool, u8, Vec<u8>);

    fn read(bytes: &[u8]) -> Out {
        let packet = Packet::parse(bytes).expect("what goes out is RTP");
        assert_eq!(packet.ssrc(), Ssrc(7));
        (
            packet.seq().0,
            packet.time().0,
            packet.marker(),
            packet.payload_type().0,
            packet.payload().to_vec(),
        )
    }

    fn drain(recoder: &mut Recoder, out: &mut Vec<Out>) {
        loop {
            let mut bytes = vec![0; recoder.packet_bytes_max()];
            let Some(stored) = recoder.poll_packet(&mut bytes) else {
                return;
            };
            out.push(read(&bytes[..stored.len]));
        }
    }

    fn handle(recoder: &mut Recoder, mut bytes: Vec<u8>, out: &mut Vec<Out>) {
        loop {
            match recoder.handle_packet(&mut bytes, None, false) {
                Handled::InPlace(range) => return out.push(read(&bytes[range])),
                Handled::Stored => return drain(recoder, out),
                Handled::DrainFirst => drain(recoder, out),
                Handled::Dropped(_) => return,
            }
        }
    }

    #[test]
    fn a_packet_of_the_same_length_is_converted_in_place() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let payload: Vec<u8> = (0..160).collect();
        let expected: Vec<u8> = payload
            .iter()
            .map(|code| g711::ULAW_TO_ALAW[usize::from(*code)])
            .collect();
        let mut out = Vec::new();
        handle(&mut recoder, packet(5, 77, 0, &payload), &mut out);
        handle(&mut recoder, packet(6, 237, 0, &payload), &mut out);
        assert_eq!(out[0], (65_535, 1000, true, 8, expected.clone()));
        // RFC 3551, section 4.1: the marker is for the first packet after silence.
        assert_eq!(out[1], (0, 1160, false, 8, expected));
    }

    #[test]
    fn lists_extensions_and_padding_are_left_out() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let mut bytes = packet(1, 0, 0, &[]);
        bytes[0] = 0xb1;
        bytes.extend([0, 0, 0, 9, 0xbe, 0xde, 0, 1, 1, 2, 3, 4]);
        bytes.extend([0xff, 0xff, 0, 2]);
        let mut out = Vec::new();
        handle(&mut recoder, bytes, &mut out);
        assert_eq!(out[0].4, [0xd5, 0xd5]);
    }

    #[test]
    fn another_packet_time_keeps_every_byte() {
        for samples in [80, 240, 400] {
            let mut recoder = Recoder::new(Config {
                to: Encoding::Pcmu,
                payload_type: PayloadType(0),
                packet_samples: samples,
                ..PCMU_TO_PCMA
            });
            let (mut sent, mut out) = (Vec::new(), Vec::new());
            for i in 0..30_u32 {
                let payload: Vec<u8> = (0..160).map(|k| (k * 7 + i) as u8).collect();
                sent.extend(&payload);
                handle(
                    &mut recoder,
                    packet(i as u16, i * 160, 0, &payload),
                    &mut out,
                );
            }
            recoder.handle_end();
            drain(&mut recoder, &mut out);
            let back: Vec<u8> = out.iter().flat_map(|o| o.4.clone()).collect();
            assert_eq!(back, sent);
            for (i, o) in out.iter().enumerate() {
                assert_eq!(o.0, 65_535_u16.wrapping_add(i as u16));
                assert_eq!(o.1, 1000 + i as u32 * samples);
            }
        }
    }

    #[test]
    fn a_pause_leaves_a_gap_in_time_and_none_in_numbers() {
        let mut recoder = Recoder::new(Config {
            packet_samples: 240,
            ..PCMU_TO_PCMA
        });
        let mut out = Vec::new();
        handle(&mut recoder, packet(1, 0, 0, &[0; 160]), &mut out);
        let mut after = packet(2, 8000, 0, &[0; 240]);
        after[1] |= 0x80;
        handle(&mut recoder, after, &mut out);
        let seen: Vec<_> = out.iter().map(|o| (o.0, o.1, o.2, o.4.len())).collect();
        assert_eq!(seen, [(65_535, 1000, true, 160), (0, 9000, true, 240)]);
    }

    #[test]
    fn a_loss_is_filled_and_the_numbers_go_on() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let tone = |i: u32| -> Vec<u8> {
            (0..160)
                .map(|k| {
                    let t = f64::from(i * 160 + k) / 8000.0;
                    let level = (t * 400.0 * std::f64::consts::TAU).sin() * 8000.0;
                    g711::linear_to_ulaw(level as i16)
                })
                .collect()
        };
        let mut out = Vec::new();
        for i in 0..5 {
            handle(
                &mut recoder,
                packet(i as u16, i * 160, 0, &tone(i)),
                &mut out,
            );
        }
        recoder.handle_loss(None, 20_000_000);
        drain(&mut recoder, &mut out);
        for i in 6..9 {
            handle(
                &mut recoder,
                packet(i as u16, i * 160, 0, &tone(i)),
                &mut out,
            );
        }
        assert_eq!(recoder.stats().concealed_samples, 160);
        assert_eq!(out.len(), 9);
        for (i, o) in out.iter().enumerate() {
            let i = i as u32;
            assert_eq!(
                (o.0, o.1, o.4.len()),
                (65_535_u16.wrapping_add(i as u16), 1000 + i * 160, 160)
            );
        }
        // The filling is nearer to the lost audio than silence is.
        let error = |made: &dyn Fn(usize) -> f64| -> f64 {
            tone(5)
                .iter()
                .enumerate()
                .map(|(k, code)| {
                    let lost = f64::from(g711::ULAW_TO_LINEAR[usize::from(*code)]);
                    (lost - made(k)).powi(2)
                })
                .sum()
        };
        let made = error(&|k| f64::from(g711::ALAW_TO_LINEAR[usize::from(out[5].4[k])]));
        assert!(made < error(&|_| 0.0) / 10.0, "{made}");
        // And after the first good packet, samples are as they came.
        let as_it_came: Vec<u8> = tone(7)
            .iter()
            .map(|code| g711::ULAW_TO_ALAW[usize::from(*code)])
            .collect();
        assert_eq!(out[7].4, as_it_came);
    }

    /// Lengths of what a recoder sends for one packet of `payload` behind each of 20 gaps of `gap` packets of 20 ms.
    fn sent_for_gaps(config: Config, gap: u32, payload: &[u8]) -> (usize, usize) {
        let mut recoder = Recoder::new(config);
        let mut out = Vec::new();
        for i in 0..20_u32 {
            let (seq, time) = ((i * (gap + 1)) as u16, i * (gap + 1) * 160);
            handle(&mut recoder, packet(seq, time, 0, payload), &mut out);
            recoder.handle_loss(None, u64::from(gap) * 20_000_000);
            drain(&mut recoder, &mut out);
        }
        (out.len(), out.iter().map(|o| o.4.len()).sum())
    }

    /// A sender of few packets gets little filling, whatever its numbers claim.
    #[test]
    fn gaps_do_not_amplify() {
        // Filling for the first loss, before much has arrived: 200 ms.
        let burst = (10, 10 * 160);
        for gap in [1, 9, 50, 2000] {
            for samples in [1, 7, 8, 80, 160] {
                let (packets, bytes) = sent_for_gaps(PCMU_TO_PCMA, gap, &vec![0; samples]);
                let what = format!("gap {gap}, {samples} bytes: {packets} packets, {bytes} bytes");
                assert!(packets <= 2 * 20 + burst.0, "{what}");
                assert!(bytes <= 2 * 20 * samples + burst.1, "{what}");
            }
        }
    }

    /// A long packet earns a long filling; a short one after the loss must not cut that into many.
    #[test]
    fn a_filling_is_not_cut_into_more_packets_than_arrived() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let mut out = Vec::new();
        let mut time = 0;
        for i in 0..50_u16 {
            let samples = if i % 2 == 0 { 1600 } else { 8 };
            handle(
                &mut recoder,
                packet(2 * i, time, 0, &vec![0; samples]),
                &mut out,
            );
            recoder.handle_loss(None, 200_000_000);
            time += samples as u32 + 1600;
        }
        recoder.handle_end();
        drain(&mut recoder, &mut out);
        assert!(out.len() <= 2 * 50 + 10, "{}", out.len());
    }

    /// Every other packet is lost for a minute: all of them are filled in, since as much has arrived.
    #[test]
    fn half_of_a_stream_may_be_filled_in() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let mut out = Vec::new();
        for i in 0..1500_u32 {
            handle(
                &mut recoder,
                packet(2 * i as u16, i * 320, 0, &[0; 160]),
                &mut out,
            );
            recoder.handle_loss(None, 20_000_000);
            drain(&mut recoder, &mut out);
        }
        assert_eq!(out.len(), 3000);
        assert!(out.iter().all(|o| o.4.len() == 160));
    }

    #[test]
    fn telephone_events_pass_between_the_audio() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let event = [5, 0x0a, 0, 160];
        let mut out = Vec::new();
        handle(&mut recoder, packet(1, 0, 0, &[0xff; 160]), &mut out);
        // RFC 4733, section 2.2: all packets of an event have the timestamp of its beginning.
        handle(&mut recoder, packet(2, 160, 101, &event), &mut out);
        handle(&mut recoder, packet(3, 160, 101, &event), &mut out);
        handle(&mut recoder, packet(4, 480, 0, &[0xff; 160]), &mut out);
        handle(&mut recoder, packet(5, 640, 97, &[0; 4]), &mut out);
        let seen: Vec<_> = out.iter().map(|o| (o.0, o.1, o.3)).collect();
        assert_eq!(
            seen,
            [
                (65_535, 1000, 8),
                (0, 1160, 101),
                (1, 1160, 101),
                (2, 1480, 8)
            ]
        );
        assert_eq!(out[1].4, event);
        assert_eq!(recoder.stats().dropped, 1);
    }

    #[test]
    fn another_sender_goes_on_where_the_last_one_ended() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let mut first = packet(100, 5000, 0, &[0; 160]);
        let mut second = packet(9, 70_000, 0, &[0; 160]);
        second[8] = 1;
        assert!(matches!(
            recoder.handle_packet(&mut first, Some(1_000_000_000), false),
            Handled::InPlace(_)
        ));
        // 100 ms of silence in between, by the times at which they are played.
        assert!(matches!(
            recoder.handle_packet(&mut second, Some(1_120_000_000), false),
            Handled::InPlace(_)
        ));
        assert_eq!((read(&second).0, read(&second).1), (0, 1000 + 160 + 800));
    }

    #[test]
    fn a_change_of_encoding_goes_on_in_the_same_stream() {
        let mut recoder = Recoder::new(PCMU_TO_PCMA);
        let mut out = Vec::new();
        handle(&mut recoder, packet(1, 0, 0, &[0x12; 160]), &mut out);
        recoder.reconfigure(Config {
            from: Encoding::Pcma,
            payload_type_in: Some(PayloadType(8)),
            ssrc: Ssrc(99),
            first_seq: SeqNum(5),
            ..PCMU_TO_PCMA
        });
        handle(&mut recoder, packet(2, 160, 8, &[0x34; 160]), &mut out);
        assert_eq!((out[1].0, out[1].1), (0, 1160));
        assert_eq!(out[1].4, [0x34; 160]);
    }

    #[test]
    fn linear_audio_shrinks_in_place_and_grows_in_the_store() {
        let samples: Vec<i16> = (0..160).map(|k| k * 200 - 16_000).collect();
        let linear: Vec<u8> = samples.iter().flat_map(|s| s.to_be_bytes()).collect();
        let coded: Vec<u8> = samples.iter().map(|s| g711::linear_to_alaw(*s)).collect();
        let mut out = Vec::new();
        let mut narrows = Recoder::new(Config {
            from: Encoding::L16,
            payload_type_in: None,
            ..PCMU_TO_PCMA
        });
        handle(&mut narrows, packet(1, 0, 96, &linear), &mut out);
        assert_eq!(out[0].4, coded);
        let mut widens = Recoder::new(Config {
            from: Encoding::Pcma,
            to: Encoding::L16,
            payload_type_in: None,
            ..PCMU_TO_PCMA
        });
        out.clear();
        handle(&mut widens, packet(1, 0, 8, &coded), &mut out);
        let decoded: Vec<u8> = coded
            .iter()
            .flat_map(|code| g711::ALAW_TO_LINEAR[usize::from(*code)].to_be_bytes())
            .collect();
        assert_eq!(out[0].4, decoded);
    }
}
