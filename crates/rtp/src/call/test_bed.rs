//! A call in virtual time, for the tests of calls.

use std::collections::VecDeque;
use std::f64::consts::TAU;

use super::*;
use crate::codec::{Decoder, Encoder, Encoding};
use crate::id::{NtpTime, SeqNum, Ssrc};
use crate::jitter::{self, Release};
use crate::leg::LegConfig;
use crate::leg::{AdmissionConfig, Destination, Payload, PayloadMap};
use crate::packet::Packet;
use crate::session::Profile;

pub(super) const MS: u64 = 1_000_000;

pub(super) fn address(side: Side) -> SocketAddr {
    match side {
        Side::A => SocketAddr::from(([192, 0, 2, 1], 5000)),
        Side::B => SocketAddr::from(([192, 0, 2, 2], 6000)),
    }
}

pub(super) fn format(encoding: Encoding, rate_hz: u32, channels: u8) -> Format {
    Format::new(encoding, rate_hz, channels).unwrap()
}

pub(super) fn leg(side: Side, payloads: &[Payload]) -> LegConfig {
    LegConfig {
        ssrc: Ssrc(0xa000 + side as u32),
        first_seq: SeqNum(65_500),
        cname: "call@test".into(),
        seed: 7 + side as u64,
        ntp_at_zero: NtpTime(0),
        payloads: Arc::new(PayloadMap::new(payloads).unwrap()),
        takes: None,
        jitter: jitter::Config {
            release: Release::InOrder,
            ..jitter::Config::new(8000, 60 * MS)
        },
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

pub(super) fn with_keys(audio: Format, event: u8, event_hz: u32) -> Vec<Payload> {
    vec![
        Payload::audio(96, audio),
        Payload::telephone_event(event, event_hz),
        Payload::comfort_noise(13, audio.clock_rate_hz),
    ]
}

/// The stream that B gets.
pub(super) struct Heard {
    pub(super) seq: SeqNum,
    pub(super) time: RtpTime,
    pub(super) marker: bool,
    pub(super) payload_type: u8,
    pub(super) payload: Vec<u8>,
    pub(super) at_ns: u64,
}

/// Frequency of the test tone.
pub(super) const TONE_HZ: f64 = 997.0;
/// Amplitude of the test tone: -12 dB.
pub(super) const LEVEL: f64 = 0.251_188_6;

/// A call in virtual time, in which A speaks and B listens.
pub(super) struct Bed {
    pub(super) call: Session,
    pub(super) scratch: Scratch,
    pub(super) now_ns: u64,
    pub(super) seq: u16,
    pub(super) time: u32,
    pub(super) ssrc: u32,
    pub(super) heard: Vec<Heard>,
    pub(super) sent: usize,
    pub(super) events: VecDeque<SessionEvent>,
}

impl Bed {
    pub(super) fn new(a: &[Payload], b: &[Payload], direction: DirectionConfig) -> Bed {
        let config = SessionSpec::call(
            [leg(Side::A, a), leg(Side::B, b)],
            [
                DirectionConfig {
                    first_time: RtpTime(u32::MAX - 1000),
                    ..direction
                },
                DirectionConfig::default(),
            ],
        );
        Bed {
            call: Session::new(0, config).unwrap(),
            scratch: Scratch::default(),
            now_ns: 0,
            seq: 65_530,
            time: u32::MAX - 4000,
            ssrc: 0x0a,
            heard: Vec::new(),
            sent: 0,
            events: VecDeque::new(),
        }
    }

    pub(super) fn between(from: Format, to: Format) -> Bed {
        let direction = DirectionConfig::default();
        Bed::new(
            &[Payload::audio(96, from)],
            &[Payload::audio(97, to)],
            direction,
        )
    }

    pub(super) fn packet(&mut self, payload_type: u8, marker: bool, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, u8::from(marker) << 7 | payload_type];
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.ssrc.to_be_bytes());
        bytes.extend(payload);
        self.seq = self.seq.wrapping_add(1);
        bytes
    }

    /// Sends a packet from A now. The timestamp does not advance.
    pub(super) fn speak(&mut self, payload_type: u8, payload: &[u8]) {
        let bytes = self.packet(payload_type, false, payload);
        self.hand_in(&bytes);
    }

    pub(super) fn hand_in(&mut self, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let from = address(Side::A);
        self.sent += 1;
        self.call
            .handle_datagram(now_ns, now_ns, Side::A as u8, Channel::Rtp, from, bytes);
        self.poll();
    }

    pub(super) fn poll(&mut self) {
        self.poll_with(true);
    }

    /// Polls as the owner does while there may be unread datagrams.
    pub(super) fn poll_before_loss(&mut self) {
        self.poll_with(false);
    }

    fn poll_with(&mut self, may_lose: bool) {
        let now_ns = self.now_ns;
        let heard = &mut self.heard;
        self.call
            .poll_transmit(now_ns, may_lose, &mut self.scratch, &mut |outgoing| {
                if outgoing.channel == Channel::Rtcp {
                    return;
                }
                assert_eq!((outgoing.ports, outgoing.to), (1, address(Side::B)));
                let packet = Packet::parse(outgoing.bytes).unwrap();
                heard.push(Heard {
                    seq: packet.seq(),
                    time: packet.time(),
                    marker: packet.marker(),
                    payload_type: packet.payload_type().0,
                    payload: packet.payload().to_vec(),
                    at_ns: now_ns,
                });
            });
        while let Some(event) = self.call.poll_event() {
            self.events.push_back(event);
        }
    }

    pub(super) fn wait_ms(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        let mut turns_left = 100 + 10 * ms;
        while let Some(due_ns) = self
            .call
            .next_timeout()
            .filter(|due_ns| *due_ns <= until_ns)
        {
            self.now_ns = self.now_ns.max(due_ns);
            self.poll();
            turns_left -= 1;
            assert!(turns_left > 0, "the same is due again and again");
        }
        self.now_ns = until_ns;
    }

    /// Lets A send a tone for this long, in packets of `packet_ms`. `lost` selects packets that do not arrive.
    pub(super) fn tone(
        &mut self,
        from: Format,
        packet_ms: u64,
        ms: u64,
        lost: impl Fn(u64) -> bool,
    ) {
        let mut encoder = Encoder::new(from, &EncoderSettings::default()).unwrap();
        let frames = (u64::from(from.sample_rate_hz) * packet_ms / 1000) as usize;
        for number in 0..ms / packet_ms {
            let pcm: Vec<f32> = (0..frames)
                .flat_map(|frame| {
                    let at = number as f64 * frames as f64 + frame as f64;
                    let phase = TAU * TONE_HZ * at / f64::from(from.sample_rate_hz);
                    let sample = (phase.sin() * LEVEL) as f32;
                    std::iter::repeat_n(sample, usize::from(from.channels))
                })
                .collect();
            let mut payload = Vec::new();
            encoder.encode(&pcm, &mut payload).unwrap();
            let bytes = self.packet(96, false, &payload);
            if !lost(number) {
                self.hand_in(&bytes);
            }
            self.time = self.time.wrapping_add(from.clock_units(frames as u32));
            self.wait_ms(packet_ms);
        }
    }

    /// Returns B's decoded audio. A packet after a gap in the numbers is concealed, as a phone does.
    pub(super) fn decoded(&self, to: Format) -> Vec<f32> {
        let mut decoder = Decoder::new(to).unwrap();
        let mut pcm = Vec::new();
        let mut last: Option<(SeqNum, RtpTime)> = None;
        for heard in &self.heard {
            if let Some((seq, end)) = last {
                let missing = heard.seq.distance_from(seq) - 1;
                let units = heard.time.distance_from(end);
                assert!(missing >= 0 && units >= 0, "{missing} {units}");
                if missing > 0 {
                    decoder.conceal(to.frames_of_units(units as u32) as usize, &mut pcm);
                }
            }
            let frames = decoder.decode(&heard.payload, &mut pcm).unwrap();
            last = Some((heard.seq, heard.time.plus(to.clock_units(frames as u32))));
        }
        pcm
    }

    /// Asserts that numbers and timestamps are consecutive.
    pub(super) fn assert_continuous(&self, to: Format, name: &str) {
        let mut decoder = Decoder::new(to).unwrap();
        let mut next: Option<(SeqNum, RtpTime)> = None;
        for (index, heard) in self.heard.iter().enumerate() {
            assert_eq!(heard.marker, index == 0, "{name}: packet {index}");
            if let Some(next) = next {
                assert_eq!((heard.seq, heard.time), next, "{name}: packet {index}");
            }
            let frames = decoder.decode(&heard.payload, &mut Vec::new()).unwrap();
            let units = to.clock_units(frames as u32);
            next = Some((heard.seq.plus(1), heard.time.plus(units)));
        }
    }

    /// Returns the time from the first packet's timestamp to the end of the last packet, ms.
    pub(super) fn heard_ms(&self, to: Format) -> f64 {
        let (first, last) = (&self.heard[0], self.heard.last().unwrap());
        let mut decoder = Decoder::new(to).unwrap();
        let frames = decoder.decode(&last.payload, &mut Vec::new()).unwrap();
        let end = last.time.plus(to.clock_units(frames as u32));
        end.distance_from(first.time) as f64 * 1000.0 / f64::from(to.clock_rate_hz)
    }

    /// Returns the audio that B hears, with silence for missing packets.
    pub(super) fn decoded_with_silence(&self, to: Format) -> Vec<f32> {
        let mut decoder = Decoder::new(to).unwrap();
        let mut pcm = Vec::new();
        let first = self.heard[0].time;
        for heard in &self.heard {
            let units = heard.time.distance_from(first) as u32;
            let at = to.frames_of_units(units) as usize * usize::from(to.channels);
            pcm.resize(at.max(pcm.len()), 0.0);
            decoder.decode(&heard.payload, &mut pcm).unwrap();
        }
        pcm
    }
}
