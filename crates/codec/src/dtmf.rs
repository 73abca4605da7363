//! Telephone events sent as RTP (RFC 4733): generates packets from presses and releases of DTMF digits.

use std::collections::VecDeque;
use threadbare_base::NS_PER_S;

use threadbare_rtp_types::id::{RtpTime, SeqNum};

/// A DTMF digit: 0 to 9, then `*`, `#`, A to D (RFC 4733, table 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u8);

impl Key {
    /// The last digit, D.
    pub const LAST: u8 = 15;

    /// Returns the digit with this number. `None`: there is no such digit.
    #[must_use]
    pub fn new(number: u8) -> Option<Key> {
        (number <= Key::LAST).then_some(Key(number))
    }

    /// Returns the digit's number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Settings for the packets of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Units of the timestamps per second.
    pub clock_rate: u32,
    /// Interval between the packets of an event.
    pub interval_ns: u64,
    /// Number of copies of the first and of the last packet of an event.
    pub copies: u8,
}

/// A user's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A digit is pressed.
    Start {
        /// The digit.
        key: Key,
        /// Power level, dBm0 with the sign dropped: 0 to 63.
        volume: u8,
    },
    /// The digit is released.
    Stop,
}

/// A packet that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Time at which the packet is due.
    pub time_ns: u64,
    /// Minimum time until the next packet of the stream; 0 for a repeated packet.
    pub duration_ns: u64,
    /// Whether the packet is the first of its event.
    pub marker: bool,
    /// The packet's sequence number.
    pub seq: SeqNum,
    /// Start of the event. If the event has several parts, start of the part in this packet.
    pub timestamp: RtpTime,
    /// The packet's payload.
    pub payload: [u8; 4],
}

/// Result of [`Sender::poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A packet to be sent.
    Packet(Packet),
    /// A request takes effect now.
    Taken(Request),
    /// A request is invalid in this state: a second press, a release without a press, or too many requests.
    Dropped(Request),
}

/// Generates the packets of a stream of telephone events.
///
/// After each [`Sender::request`], and at [`Sender::next_timeout`], call [`Sender::poll`] until it returns `None`.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    requests: VecDeque<Request>,
    refused: Option<Request>,
    playing: Option<Playing>,
    /// No event begins before this time.
    quiet_until_ns: u64,
    seq: SeqNum,
    /// RTP time at time 0.
    base: RtpTime,
}

#[derive(Debug)]
struct Playing {
    key: Key,
    volume: u8,
    start_ns: u64,
    /// Start of the present part. An event that is longer than the duration field allows has several parts.
    part: RtpTime,
    part_units: u64,
    /// Intervals reported so far.
    intervals: u64,
    is_first: bool,
    /// Whether the release has been requested.
    is_ending: bool,
    /// Number of copies of the present packet still to be sent.
    copies: u8,
    /// Whether this part is being reported for the last time.
    closes_part: bool,
}

/// Minimum duration of a DTMF digit, in ns: the minimum that detectors expect, and that of the stock element.
pub const PULSE_NS_MIN: u64 = 250_000_000;
/// Minimum silence between two digits, ns.
pub const GAP_NS_MIN: u64 = 100_000_000;
/// Greatest duration that a packet can contain.
const UNITS_MAX: u64 = 0xffff;
/// Maximum number of queued requests: more than a person types ahead.
const REQUESTS_MAX: usize = 64;

impl Sender {
    /// Creates a stream. Its first packet has the sequence number after `seq`, and `base` is its RTP time at time 0.
    #[must_use]
    pub fn new(config: Config, seq: SeqNum, base: RtpTime) -> Self {
        Sender {
            config,
            requests: VecDeque::new(),
            refused: None,
            playing: None,
            quiet_until_ns: 0,
            seq,
            base,
        }
    }

    /// Changes the settings from the next event on.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Queues a request.
    pub fn request(&mut self, request: Request) {
        if self.requests.len() < REQUESTS_MAX {
            self.requests.push_back(request);
        } else {
            self.refused = Some(request);
        }
    }

    /// Returns the next output at `now_ns`. Each call returns one.
    pub fn poll(&mut self, now_ns: u64) -> Option<Output> {
        if let Some(request) = self.refused.take() {
            return Some(Output::Dropped(request));
        }
        match self.playing.take() {
            None => self.begin(now_ns),
            Some(playing) => self.go_on(playing, now_ns),
        }
    }

    /// Returns the time of the next call of [`Sender::poll`], unless a request comes first.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        match &self.playing {
            Some(playing) => Some(self.due_ns(playing)),
            None => (!self.requests.is_empty()).then_some(self.quiet_until_ns),
        }
    }

    fn begin(&mut self, now_ns: u64) -> Option<Output> {
        if now_ns < self.quiet_until_ns
            && matches!(self.requests.front(), Some(Request::Start { .. }))
        {
            return None;
        }
        let request = self.requests.pop_front()?;
        let Request::Start { key, volume } = request else {
            return Some(Output::Dropped(request));
        };
        let units = u128::from(now_ns) * u128::from(self.config.clock_rate) / NS_PER_S as u128;
        self.playing = Some(Playing {
            key,
            volume: volume.min(VOLUME_MAX),
            start_ns: now_ns,
            // Modulo 2^32, as timestamps are.
            part: self.base.plus(units as u32),
            part_units: 0,
            intervals: 1,
            is_first: true,
            is_ending: false,
            copies: self.config.copies.max(1),
            closes_part: false,
        });
        Some(Output::Taken(request))
    }

    fn due_ns(&self, playing: &Playing) -> u64 {
        let before = playing.intervals - 1;
        playing
            .start_ns
            .saturating_add(before.saturating_mul(self.config.interval_ns))
    }

    fn go_on(&mut self, mut playing: Playing, now_ns: u64) -> Option<Output> {
        let due_ns = self.due_ns(&playing);
        if now_ns < due_ns {
            self.playing = Some(playing);
            return None;
        }
        let may_end = due_ns - playing.start_ns >= PULSE_NS_MIN && !playing.is_ending;
        if may_end && let Some(request) = self.requests.pop_front() {
            let output = if request == Request::Stop {
                playing.is_ending = true;
                playing.copies = self.config.copies.max(1);
                Output::Taken(request)
            } else {
                Output::Dropped(request)
            };
            self.playing = Some(playing);
            return Some(output);
        }
        Some(Output::Packet(self.packet(playing, due_ns)))
    }

    /// Returns the due packet, and schedules the one after it.
    fn packet(&mut self, mut playing: Playing, time_ns: u64) -> Packet {
        let rate = u128::from(self.config.clock_rate);
        let told_ns = u128::from(playing.intervals) * u128::from(self.config.interval_ns);
        let units = (told_ns * rate / NS_PER_S as u128) as u64 - playing.part_units;
        // RFC 4733, section 2.5.1.3: an event longer than the field's range is sent in parts. The timestamp of each part is the
        // end of the previous one, and only the last has the E bit.
        playing.closes_part = units > UNITS_MAX;
        let is_end = playing.is_ending && !playing.closes_part;
        let told = units.min(UNITS_MAX) as u16;
        let [high, low] = told.to_be_bytes();
        let end_bit = u8::from(is_end) << 7;
        self.seq = self.seq.plus(1);
        playing.copies = playing.copies.saturating_sub(1);
        let mut packet = Packet {
            time_ns,
            duration_ns: 0,
            marker: playing.is_first,
            seq: self.seq,
            timestamp: playing.part,
            payload: [playing.key.0, end_bit | playing.volume, high, low],
        };
        playing.is_first = false;
        if playing.closes_part {
            playing.part = playing.part.plus(UNITS_MAX as u32);
            playing.part_units += UNITS_MAX;
            self.playing = Some(playing);
        } else if playing.copies > 0 {
            self.playing = Some(playing);
        } else if is_end {
            let gap_ns = GAP_NS_MIN.next_multiple_of(self.config.interval_ns.max(1));
            packet.duration_ns = self.config.interval_ns.saturating_add(gap_ns);
            self.quiet_until_ns = time_ns.saturating_add(packet.duration_ns);
        } else {
            packet.duration_ns = self.config.interval_ns;
            playing.intervals += 1;
            self.playing = Some(playing);
        }
        packet
    }
}

/// Maximum volume: the field has six bits.
const VOLUME_MAX: u8 = 63;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const CONFIG: Config = Config {
        clock_rate: 8000,
        interval_ns: 40 * MS,
        copies: 1,
    };

    fn start(number: u8) -> Request {
        Request::Start {
            key: Key::new(number).unwrap(),
            volume: 10,
        }
    }

    fn sender(config: Config) -> Sender {
        Sender::new(config, SeqNum(99), RtpTime(1000))
    }

    /// Polls until no output is due any more, or until `end_ns`.
    fn run(sender: &mut Sender, mut now_ns: u64, end_ns: u64) -> (Vec<Packet>, Vec<Output>) {
        let (mut packets, mut others) = (Vec::new(), Vec::new());
        loop {
            while let Some(output) = sender.poll(now_ns) {
                match output {
                    Output::Packet(packet) => packets.push(packet),
                    other => others.push(other),
                }
            }
            match sender.next_timeout() {
                Some(next_ns) if next_ns <= end_ns => now_ns = next_ns.max(now_ns),
                _ => return (packets, others),
            }
        }
    }

    fn duration(packet: &Packet) -> u16 {
        u16::from_be_bytes([packet.payload[2], packet.payload[3]])
    }

    #[test]
    fn a_digit_is_one_event_with_growing_durations_and_an_end() {
        let mut sender = sender(CONFIG);
        sender.request(start(5));
        sender.request(Request::Stop);
        let (packets, others) = run(&mut sender, 500 * MS, 5000 * MS);
        assert_eq!(
            others,
            [Output::Taken(start(5)), Output::Taken(Request::Stop)]
        );
        // At least 250 ms: the end of the first interval after that.
        assert_eq!(packets.len(), 8);
        for (i, packet) in packets.iter().enumerate() {
            let i = i as u64;
            assert_eq!(packet.time_ns, (500 + 40 * i) * MS);
            assert_eq!(packet.seq, SeqNum(100 + i as u16));
            assert_eq!(packet.timestamp, RtpTime(1000 + 4000), "one for all");
            assert_eq!(packet.marker, i == 0);
            assert_eq!(u64::from(duration(packet)), 320 * (i + 1));
            let end = if i == 7 { 0x80 } else { 0 };
            assert_eq!(packet.payload[..2], [5, end | 10]);
        }
        assert_eq!(packets[7].duration_ns, 160 * MS);
        assert_eq!(sender.next_timeout(), None);
    }

    #[test]
    fn first_and_last_packets_are_repeated_as_configured() {
        let mut sender = sender(Config {
            copies: 3,
            ..CONFIG
        });
        sender.request(start(11));
        sender.request(Request::Stop);
        let (packets, _) = run(&mut sender, 0, 5000 * MS);
        assert_eq!(packets.len(), 8 + 2 + 2);
        let markers: Vec<bool> = packets.iter().map(|packet| packet.marker).collect();
        assert_eq!(markers.iter().filter(|marker| **marker).count(), 1);
        assert!(markers[0]);
        for copies in [&packets[..3], &packets[9..]] {
            assert!(
                copies
                    .windows(2)
                    .all(|pair| pair[0].payload == pair[1].payload
                        && pair[0].time_ns == pair[1].time_ns
                        && pair[1].seq == pair[0].seq.plus(1))
            );
        }
        assert!(
            packets[9..]
                .iter()
                .all(|packet| packet.payload[1] & 0x80 != 0)
        );
    }

    #[test]
    fn queued_digits_are_sent_with_gaps_between_them() {
        let mut sender = sender(CONFIG);
        for number in [1, 2, 3] {
            sender.request(start(number));
            sender.request(Request::Stop);
        }
        let (packets, _) = run(&mut sender, 0, 10_000 * MS);
        let firsts: Vec<&Packet> = packets.iter().filter(|packet| packet.marker).collect();
        assert_eq!(firsts.len(), 3);
        for pair in firsts.windows(2) {
            assert_eq!(pair[1].time_ns - pair[0].time_ns, (320 + 120) * MS);
            assert_eq!(pair[1].timestamp.distance_from(pair[0].timestamp), 440 * 8);
        }
        assert!(
            packets
                .windows(2)
                .all(|pair| pair[1].seq == pair[0].seq.plus(1))
        );
    }

    #[test]
    fn event_longer_than_the_duration_field_is_split() {
        let mut sender = sender(CONFIG);
        sender.request(start(0));
        let (mut packets, _) = run(&mut sender, 0, 20_000 * MS);
        sender.request(Request::Stop);
        packets.extend(run(&mut sender, 20_000 * MS, 30_000 * MS).0);
        let mut parts: Vec<RtpTime> = packets.iter().map(|packet| packet.timestamp).collect();
        parts.dedup();
        assert_eq!(
            parts,
            [
                RtpTime(1000),
                RtpTime(1000 + 0xffff),
                RtpTime(1000 + 2 * 0xffff)
            ]
        );
        for (i, packet) in packets.iter().enumerate() {
            let is_last = i + 1 == packets.len();
            assert_eq!(packet.payload[1] & 0x80 != 0, is_last);
            assert_eq!(packet.marker, i == 0);
            // Each part ends at the start of the next.
            if !is_last && packets[i + 1].timestamp != packet.timestamp {
                assert_eq!(duration(packet), 0xffff);
            }
        }
        let last = packets.last().unwrap();
        let end = last.timestamp.plus(duration(last).into());
        assert_eq!(end.distance_from(RtpTime(1000)), 20_080 * 8);
    }

    #[test]
    fn invalid_event_is_dropped_and_reported() {
        let mut sender = sender(CONFIG);
        sender.request(Request::Stop);
        sender.request(start(1));
        sender.request(start(2));
        sender.request(Request::Stop);
        let (packets, others) = run(&mut sender, 0, 5000 * MS);
        assert_eq!(
            others,
            [
                Output::Dropped(Request::Stop),
                Output::Taken(start(1)),
                Output::Dropped(start(2)),
                Output::Taken(Request::Stop)
            ]
        );
        assert!(packets.iter().all(|packet| packet.payload[0] == 1));
        for _ in 0..=REQUESTS_MAX {
            sender.request(start(3));
        }
        assert_eq!(sender.poll(6000 * MS), Some(Output::Dropped(start(3))));
    }

    #[test]
    fn no_configuration_causes_an_endless_loop() {
        for (clock_rate, interval_ns) in [(u32::MAX, 1), (0, 40 * MS), (8000, u64::MAX), (1, MS)] {
            let mut sender = sender(Config {
                clock_rate,
                interval_ns,
                copies: 0,
            });
            sender.request(start(1));
            sender.request(Request::Stop);
            let mut now_ns = 0;
            for _ in 0..10_000 {
                if sender.poll(now_ns).is_none() {
                    match sender.next_timeout() {
                        Some(next_ns) => now_ns = next_ns,
                        None => break,
                    }
                }
            }
        }
    }
}
