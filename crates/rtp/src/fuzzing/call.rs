//! Targets `leg` and `call`: two parties and strangers send any packets. Each place in a leg belongs to a packet. No more audio leaves than
//! has arrived, plus a tail.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::call::{
    Channel, DirectionConfig, Mode, Outgoing, Scratch, Session, SessionEvent, SessionSpec, Side,
    TAIL_NS_MAX,
};
use crate::codec::{Decoder, Encoding, Format};
use crate::id::{NtpTime, RtpTime, SeqNum, Ssrc};
use crate::jitter;
use crate::leg::{
    AdmissionConfig, Destination, Learn, Leg, LegConfig, Media, Method, Once, Payload, PayloadMap,
    Verdict,
};
use crate::packet::Packet;
use crate::session::Profile;

const MS: u64 = 1_000_000;
/// Maximum number of steps of an input. More short inputs find more than a few long ones.
const STEPS_MAX: usize = 400;

/// Reads an input, followed by zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        first.to_vec()
    }
}

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host % 4], 5000 + u16::from(host / 4 % 2)))
}

fn format(choice: u8) -> Format {
    let of = |encoding, rate_hz, channels| Format::new(encoding, rate_hz, channels);
    let format = match choice % 6 {
        0 => of(Encoding::Pcmu, 8_000, 1),
        1 => of(Encoding::Pcma, 8_000, 1),
        2 => of(Encoding::G722, 16_000, 1),
        3 => of(Encoding::L16, 44_100, 2),
        4 => of(Encoding::L24, 48_000, 1),
        _ => of(Encoding::Opus, 48_000, 2),
    };
    format.expect("a format that exists")
}

fn payloads(choice: u8) -> Arc<PayloadMap> {
    let audio = format(choice);
    let mut all = vec![Payload::audio(96, audio), Payload::audio(0, format(0))];
    if choice & 0x40 != 0 {
        all.push(Payload::telephone_event(101, audio.clock_rate_hz));
    }
    if choice & 0x80 != 0 {
        all.push(Payload::comfort_noise(13, 8_000));
    }
    Arc::new(PayloadMap::new(&all).expect("numbers that differ"))
}

fn leg_config(side: Side, choice: u8, flags: u8) -> LegConfig {
    LegConfig {
        ssrc: Ssrc(0xa000 + side as u32),
        first_seq: SeqNum(65_500),
        cname: "fuzz@example.org".into(),
        seed: u64::from(flags),
        ntp_at_zero: NtpTime(0),
        payloads: payloads(choice),
        takes: None,
        jitter: jitter::Config::new(8_000, u64::from(flags & 7) * 20 * MS),
        admission: AdmissionConfig {
            peer: (flags & 8 != 0).then(|| address(side as u8)),
            learn: match flags >> 4 & 3 {
                0 => Learn::Never,
                1 => Learn::Once(Once {
                    method: Method::Delayed,
                    fixed_ms: Some(1000),
                }),
                2 => Learn::Once(Once::default()),
                _ => Learn::FOLLOW,
            },
            ..AdmissionConfig::default()
        },
        destination: Destination::Peer,
        mux: flags & 0x40 != 0,
        bandwidth_bps: 80_000,
        profile: Profile::Avp,
    }
}

/// The numbers of a sender, which the input changes.
#[derive(Default)]
struct Numbers {
    seq: u16,
    time: u32,
}

impl Numbers {
    /// Returns a datagram: RTP whose numbers follow or jump, or the raw bytes of the input.
    fn datagram(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let kind = input.byte();
        let len = usize::from(input.byte());
        if kind & 3 == 3 {
            return input.bytes(len);
        }
        let step = input.byte();
        self.seq = match step & 0xc0 {
            0xc0 => u16::from_be_bytes([step, input.byte()]),
            _ => self.seq.wrapping_add(u16::from(step & 3)),
        };
        self.time = self.time.wrapping_add(match step & 0x30 {
            0x30 => u32::from(input.byte()) << 16,
            0x20 => 0,
            _ => 160,
        });
        let payload_type =
            [96, 0, 101, 13, 96, 96, 101, input.byte() & 0x7f][usize::from(kind >> 5)];
        let mut bytes = vec![0x80, payload_type];
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(u32::from(kind >> 2 & 3).to_be_bytes());
        bytes.extend(input.bytes(len));
        bytes
    }
}

/// Runs the target `leg`. The first byte of the input selects the payload types, and the second one the rules. Each following step has a
/// sender, the time since the previous step, and a datagram.
pub fn leg(data: &[u8]) {
    let mut input = Input(data);
    let config = leg_config(Side::A, input.byte(), input.byte());
    let mut leg = Leg::new(0, config).expect("settings in range");
    let mut numbers = Numbers::default();
    let (mut now_ns, mut taken, mut given) = (0, 0_u64, 0_u64);
    let mut out = [0; 1500];
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        let who = input.byte();
        now_ns += u64::from(input.byte()) * MS;
        let bytes = numbers.datagram(&mut input);
        let from = address(who);
        let verdict = match who & 0x80 {
            0 => leg.handle_datagram(now_ns, now_ns, from, &bytes),
            _ => leg.handle_rtcp(now_ns, from, &bytes),
        };
        taken += u64::from(matches!(verdict, Verdict::Media | Verdict::Held));
        given += drain(&mut leg, now_ns, who & 0x40 != 0);
        while let Some((len, _)) = leg.poll_rtcp(now_ns, &mut out) {
            assert!(len <= out.len());
        }
        while leg.poll_event().is_some() {}
        assert!(leg.is_consistent(), "a place without a packet");
    }
    leg.relearn(now_ns, AdmissionConfig::default(), Destination::Peer);
    leg.release_all();
    given += drain(&mut leg, now_ns + 3_600_000 * MS, true);
    assert!(given <= taken, "{given} came out, {taken} went in");
}

/// Takes all media. Returns the number of packets.
fn drain(leg: &mut Leg, now_ns: u64, may_lose: bool) -> u64 {
    let mut packets = 0;
    while let Some(media) = leg.poll_media(now_ns, may_lose) {
        if let Media::Packet(packet) = media {
            packets += 1;
            assert!(packet.whole.len() >= packet.bytes.len() + 12);
        }
    }
    packets
}

/// Runs the target `call`, which is [`leg`] with two parties. The third byte of the input selects the far side's payload types, and the
/// fourth what happens to A's audio.
pub fn call(data: &[u8]) {
    let mut input = Input(data);
    let from = leg_config(Side::A, input.byte(), input.byte());
    let to = leg_config(Side::B, input.byte(), 8 | 0x42);
    let flags = input.byte();
    let direction = DirectionConfig {
        packet_ns: u64::from(flags & 3) * 10 * MS,
        first_time: RtpTime(u32::MAX - 1000),
        detect_keys: flags & 4 != 0,
        mode: [Mode::Pass, Mode::Mute, Mode::Hold, Mode::Pass][usize::from(flags >> 3 & 3)],
        ..DirectionConfig::default()
    };
    let config = SessionSpec::call(
        [from.clone(), to.clone()],
        [direction, DirectionConfig::default()],
    );
    // A packet time that does not fit a datagram is refused.
    let Ok(mut call) = Session::new(0, config) else {
        return;
    };
    let mut scratch = Scratch::default();
    let mut numbers = Numbers::default();
    let mut now_ns = 0;
    let mut ledger = Ledger::new(&from, &to);
    for step in 0..=STEPS_MAX {
        let is_last = input.0.is_empty() || step == STEPS_MAX;
        let who = input.byte();
        now_ns += if is_last {
            10_000
        } else {
            u64::from(input.byte())
        } * MS;
        if !is_last {
            let bytes = numbers.datagram(&mut input);
            let (side, channel) = (
                if who & 0x20 != 0 { Side::B } else { Side::A },
                if who & 0x80 != 0 {
                    Channel::Rtcp
                } else {
                    Channel::Rtp
                },
            );
            ledger.came(side, &bytes);
            call.handle_datagram(now_ns, now_ns, side as u8, channel, address(who), &bytes);
        }
        call.poll_transmit(now_ns, true, &mut scratch, &mut |outgoing| {
            ledger.left(outgoing)
        });
        while let Some(event) = call.poll_event() {
            assert!(
                !matches!(event, SessionEvent::PlayEnded(_)),
                "nothing is played"
            );
        }
        if is_last {
            break;
        }
    }
    ledger.check(now_ns);
}

/// Duration of the audio that arrived from A, and of the audio that left for B.
struct Ledger {
    from: Arc<PayloadMap>,
    to: Arc<PayloadMap>,
    came_ns: u64,
    came: u64,
    left_ns: u64,
}

impl Ledger {
    fn new(from: &LegConfig, to: &LegConfig) -> Ledger {
        Ledger {
            from: from.payloads.clone(),
            to: to.takes().clone(),
            came_ns: 0,
            came: 0,
            left_ns: 0,
        }
    }

    fn came(&mut self, side: Side, bytes: &[u8]) {
        if side == Side::A {
            self.came += 1;
            self.came_ns += audio_ns(&self.from, bytes);
        }
    }

    fn left(&mut self, outgoing: Outgoing<'_>) {
        if outgoing.channel == Channel::Rtp && outgoing.ports == 1 {
            assert!(outgoing.bytes.len() <= 2048, "{}", outgoing.bytes.len());
            self.left_ns += audio_ns(&self.to, outgoing.bytes);
        }
    }

    /// Checks that no more audio has left than allowed. Concealment may add as much audio as arrived. A packet may be padded to a whole
    /// one. A digit may have a tone for the time that has passed.
    fn check(&self, now_ns: u64) {
        let most_ns = 2 * self.came_ns + self.came * 60 * MS + TAIL_NS_MAX + 60 * MS;
        assert!(
            self.left_ns <= most_ns,
            "{} ns left, {} ns came in {} packets, {now_ns} ns",
            self.left_ns,
            self.came_ns,
            self.came
        );
    }
}

fn audio_ns(payloads: &PayloadMap, bytes: &[u8]) -> u64 {
    let Ok(packet) = Packet::parse(bytes) else {
        return 0;
    };
    let payload = payloads.get(packet.payload_type());
    let Some(crate::leg::Carries::Audio(format)) = payload.map(|payload| payload.carries) else {
        return 0;
    };
    let decoder = Decoder::new(format).ok();
    let frames = decoder.and_then(|decoder| decoder.frames_in(packet.payload()));
    frames.unwrap_or(0) as u64 * 1_000_000_000 / u64::from(format.sample_rate_hz)
}
