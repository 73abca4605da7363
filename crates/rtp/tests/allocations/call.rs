//! Running calls and streams allocate nothing: not for packets, losses, digits, reports, comfort noise or reordered packets, and not while
//! they are muted or held. They also take little memory.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::counting::{allocations, held_bytes};
use threadbare_rtp::call::{
    Channel, DirectionConfig, Mode, Scratch, Session, SessionSpec, Side, Target,
};
use threadbare_rtp::codec::{Encoder, EncoderSettings, Encoding, Format};
use threadbare_rtp::id::{NtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{AdmissionConfig, Destination, LegConfig, Payload, PayloadMap};
use threadbare_rtp::session::Profile;

const MS: u64 = 1_000_000;
const PACKET_NS: u64 = 20 * MS;
const KEYS: u8 = 101;
const NOISE: u8 = 13;

fn address(side: Side) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + side as u8], 5000))
}

fn format(encoding: Encoding, rate_hz: u32) -> Format {
    Format::new(encoding, rate_hz, 1).expect("a format")
}

fn pcmu() -> Format {
    format(Encoding::Pcmu, 8_000)
}

fn pcma() -> Format {
    format(Encoding::Pcma, 8_000)
}

fn leg(side: Side, payloads: &Arc<PayloadMap>) -> LegConfig {
    LegConfig {
        ssrc: Ssrc(0xa000 + side as u32),
        first_seq: SeqNum(65_500),
        cname: "call@test".into(),
        seed: 7 + side as u64,
        ntp_at_zero: NtpTime(0),
        payloads: payloads.clone(),
        takes: None,
        jitter: jitter::Config::new(8_000, 60 * MS),
        admission: AdmissionConfig {
            peer: Some(address(side)),
            ..AdmissionConfig::default()
        },
        destination: Destination::Peer,
        mux: true,
        bandwidth_bps: 80_000,
        profile: Profile::Avp,
    }
}

fn payloads(audio: Format, has_keys: bool) -> Arc<PayloadMap> {
    let keys = Payload::telephone_event(KEYS, audio.clock_rate_hz);
    let all = [Payload::audio(96, audio), keys];
    Arc::new(PayloadMap::new(&all[..1 + usize::from(has_keys)]).expect("a map"))
}

/// A sender whose packets are prepared in advance, so that only the receiver's allocations count.
struct Sender {
    packets: Vec<Vec<u8>>,
    format: Format,
    time: u32,
}

impl Sender {
    fn new(format: Format) -> Sender {
        let mut encoder = Encoder::new(format, &EncoderSettings::default()).expect("an encoder");
        let frames = format.frames_per_packet(20_000).expect("a packet time");
        let packets = (0..50_u32).map(|number| {
            let sample = |at: usize| ((number as usize * frames + at) as f32 * 0.05).sin() * 0.3;
            let pcm: Vec<f32> = (0..frames).map(sample).collect();
            let mut packet = vec![0; 12];
            packet[..2].copy_from_slice(&[0x80, 96]);
            packet[11] = 9;
            encoder.encode(&pcm, &mut packet).expect("it encodes");
            packet
        });
        Sender {
            packets: packets.collect(),
            format,
            time: 0,
        }
    }

    /// Returns the packet with this number, or `None` if it is lost. With `has_keys`, there is a digit of 100 ms in every two seconds.
    fn packet(&mut self, number: u64, has_keys: bool, loses: bool) -> Option<&[u8]> {
        let units = self.format.clock_rate_hz / 50;
        let within = number % 100;
        let in_key = has_keys && (50..55).contains(&within);
        let key_time = (number - within + 50) as u32 * units;
        let at = (number % 50) as usize;
        let packet = &mut self.packets[at];
        self.time = number as u32 * units;
        packet[2..4].copy_from_slice(&(number as u16).to_be_bytes());
        packet[4..8].copy_from_slice(&self.time.to_be_bytes());
        if in_key {
            let [_, _, high, low] = ((within - 49) as u32 * units).to_be_bytes();
            let key = &mut self.packets[at];
            key[1] = KEYS;
            key[4..8].copy_from_slice(&key_time.to_be_bytes());
            key[12..16].copy_from_slice(&[5, u8::from(within == 54) << 7 | 10, high, low]);
            return Some(&self.packets[at][..16]);
        }
        (!loses || number % 10 != 7).then_some(&self.packets[at][..])
    }
}

/// Returns the number of bytes that a running stream takes, and the number of its allocations in the second half.
fn run(
    from: Format,
    to: Format,
    direction: DirectionConfig,
    keys: [bool; 2],
    loses: bool,
) -> (u64, u64) {
    let mut sender = Sender::new(from);
    let mut scratch = Scratch::default();
    let (source, target) = (payloads(from, keys[0]), payloads(to, keys[1]));
    let held = held_bytes();
    let other = Target::Other(Box::new(leg(Side::B, &target)));
    let config = SessionSpec::stream(leg(Side::A, &source), other, direction);
    let mut stream = Session::new(0, config).expect("a stream");
    // The scratch memory belongs to the thread, and is in use from the start.
    let mut scratch_bytes = 0;
    let (mut before, mut sent) = (0, 0);
    for number in 0..3_000_u64 {
        let now_ns = number * PACKET_NS;
        if let Some(packet) = sender.packet(number, keys[0], loses) {
            stream.handle_datagram(now_ns, now_ns, 0, Channel::Rtp, address(Side::A), packet);
        }
        stream.poll_transmit(now_ns, true, &mut scratch, &mut |_| sent += 1);
        while stream.poll_event().is_some() {}
        if number == 1_500 {
            before = allocations();
        }
    }
    let allocated = allocations() - before;
    assert!(sent > 1_500 && before > 0, "{sent} sent");
    let all = held_bytes() - held;
    let own = held_bytes();
    drop(scratch);
    scratch_bytes += own - held_bytes();
    (size_of::<Session>() as u64 + all - scratch_bytes, allocated)
}

#[test]
fn each_running_route_allocates_nothing() {
    let opus = format(Encoding::Opus, 48_000);
    let repacked = DirectionConfig {
        packet_ns: 30 * MS,
        ..DirectionConfig::default()
    };
    let listening = DirectionConfig {
        detect_keys: true,
        ..DirectionConfig::default()
    };
    let plain = DirectionConfig::default();
    for (name, from, to, direction, keys) in [
        ("passed", pcmu(), pcmu(), plain, [true, true]),
        ("by table", pcmu(), pcma(), plain, [true, true]),
        ("repacked", pcmu(), pcmu(), repacked, [true, true]),
        ("PCMU to Opus", pcmu(), opus, plain, [true, true]),
        ("Opus to PCMU", opus, pcmu(), plain, [true, true]),
        ("keys as tones", pcmu(), pcma(), plain, [true, false]),
        ("keys heard", pcmu(), pcma(), listening, [false, true]),
    ] {
        if (from == opus || to == opus) && cfg!(not(feature = "opus")) {
            continue;
        }
        let (bytes, allocated) = run(from, to, direction, keys, true);
        println!("{name}: {bytes} bytes");
        assert_eq!(allocated, 0, "{name}");
    }
}

/// The stream has two seconds each of packets in order, packets out of order, losses, comfort noise, mute and hold. This is repeated.
#[test]
fn losses_noise_mute_and_hold_of_a_call_allocate_nothing() {
    let (a, b) = (with_noise(pcmu()), with_noise(pcma()));
    let mut senders = [Sender::new(pcmu()), Sender::new(pcma())];
    let config = SessionSpec::call(
        [leg(Side::A, &a), leg(Side::B, &b)],
        [DirectionConfig::default(); 2],
    );
    let mut call = Session::new(0, config).expect("a call");
    let mut scratch = Scratch::default();
    let (mut before, mut sent) = (0, [0; 2]);
    for number in 0..2_400_u64 {
        let now_ns = number * PACKET_NS;
        let phase = number / 100 % 6;
        for side in Side::BOTH {
            call.set_mode(
                side,
                match phase {
                    4 => Mode::Mute,
                    5 => Mode::Hold,
                    _ => Mode::Pass,
                },
            );
            let sender = &mut senders[side as usize];
            // Each pair of packets is swapped.
            let number = if phase == 1 { number ^ 1 } else { number };
            let packet = sender.packet(number, true, phase == 2);
            let mut noise = [0; 13];
            let packet = packet.map(|packet| {
                noise.copy_from_slice(&packet[..13]);
                (noise[1], noise[12]) = (NOISE, 60);
                if phase == 3 { &noise[..] } else { packet }
            });
            if let Some(packet) = packet {
                call.handle_datagram(
                    now_ns,
                    now_ns,
                    side as u8,
                    Channel::Rtp,
                    address(side),
                    packet,
                );
            }
        }
        call.poll_transmit(now_ns, true, &mut scratch, &mut |outgoing| {
            sent[usize::from(outgoing.ports)] += 1;
        });
        while call.poll_event().is_some() {}
        if number == 1_200 {
            before = allocations();
        }
    }
    assert_eq!(allocations() - before, 0);
    let stats = call.stats();
    for direction in stats.directions {
        assert!(direction.lost > 30, "{direction:?}");
        assert!(direction.concealed_ns > 0, "{direction:?}");
        assert!(direction.noise_packets > 300, "{direction:?}");
        assert!(direction.key_packets > 50, "{direction:?}");
    }
    assert!(sent.iter().all(|sent| *sent > 1_500), "{sent:?}");
}

fn with_noise(audio: Format) -> Arc<PayloadMap> {
    let all = [
        Payload::audio(96, audio),
        Payload::telephone_event(KEYS, 8_000),
        Payload::comfort_noise(NOISE, 8_000),
    ];
    Arc::new(PayloadMap::new(&all).expect("a map"))
}

#[test]
fn a_stream_and_a_call_are_small() {
    let (bytes, _) = run(pcmu(), pcma(), DirectionConfig::default(), [true; 2], true);
    println!(
        "stream from PCMU to PCMA: {bytes} bytes, {} of them itself",
        size_of::<Session>()
    );
    assert!(bytes <= 10 * 1024, "a stream: {bytes} bytes");

    let mut senders = [Sender::new(pcmu()), Sender::new(pcma())];
    let (a, b) = (payloads(pcmu(), true), payloads(pcma(), true));
    let mut scratch = Scratch::default();
    let mut sent = 0;
    let held = held_bytes();
    let config = SessionSpec::call(
        [leg(Side::A, &a), leg(Side::B, &b)],
        [DirectionConfig::default(); 2],
    );
    let mut call = Session::new(0, config).expect("a call");
    for number in 0..1_000_u64 {
        let now_ns = number * PACKET_NS;
        for side in Side::BOTH {
            if let Some(packet) = senders[side as usize].packet(number, true, true) {
                call.handle_datagram(
                    now_ns,
                    now_ns,
                    side as u8,
                    Channel::Rtp,
                    address(side),
                    packet,
                );
            }
        }
        call.poll_transmit(now_ns, true, &mut scratch, &mut |_| sent += 1);
        while call.poll_event().is_some() {}
    }
    let all = held_bytes() - held;
    let own = held_bytes();
    drop(scratch);
    let bytes = size_of::<Session>() as u64 + all - (own - held_bytes());
    println!(
        "call of PCMU and PCMA: {bytes} bytes, {} of them itself",
        size_of::<Session>()
    );
    assert!(sent > 1_500, "{sent}");
    assert!(bytes <= 20 * 1024, "a call: {bytes} bytes");
}
