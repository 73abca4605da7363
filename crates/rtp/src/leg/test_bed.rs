//! A leg in virtual time, and its senders, for the tests of legs.

use std::collections::VecDeque;

use super::*;
use crate::codec::{Encoding, Format};
use crate::id::NtpTime;
use crate::jitter::Release;

pub(super) const MS: u64 = 1_000_000;
pub(super) const PEER: &str = "192.0.2.1:5000";
pub(super) const ELSEWHERE: &str = "198.51.100.9:4000";
pub(super) const OURS: Ssrc = Ssrc(0x0507);

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn pcmu() -> Payload {
    Payload::audio(0, Format::new(Encoding::Pcmu, 8000, 1).unwrap())
}

pub(super) fn l16_44100() -> Payload {
    Payload::audio(11, Format::new(Encoding::L16, 44_100, 1).unwrap())
}

pub(super) fn config(payloads: &[Payload]) -> LegConfig {
    LegConfig {
        ssrc: OURS,
        first_seq: SeqNum(100),
        cname: "leg@test".into(),
        seed: 7,
        ntp_at_zero: NtpTime(0),
        payloads: Arc::new(PayloadMap::new(payloads).unwrap()),
        takes: None,
        jitter: jitter::Config {
            release: Release::InOrder,
            ..jitter::Config::new(8000, 60 * MS)
        },
        admission: AdmissionConfig::default(),
        destination: Destination::Peer,
        mux: true,
        bandwidth_bps: 80_000,
        profile: session::Profile::Avp,
    }
}

pub(super) fn telephony() -> LegConfig {
    config(&[
        pcmu(),
        Payload::comfort_noise(13, 8000),
        Payload::telephone_event(101, 8000),
    ])
}

/// A leg in virtual time, and what its owner gets from it.
pub(super) struct Bed {
    pub(super) leg: Leg,
    pub(super) now_ns: u64,
    /// A short description of each output.
    pub(super) heard: Vec<String>,
    pub(super) events: VecDeque<LegEvent>,
    /// RTCP that was sent.
    pub(super) rtcp: Vec<(Vec<u8>, SocketAddr)>,
}

/// A party that sends.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) from: SocketAddr,
    pub(super) ssrc: u32,
    pub(super) seq: u16,
    pub(super) time: u32,
    pub(super) payload_type: u8,
    /// The payload's only byte identifies the sender.
    pub(super) mark: u8,
}

impl Sender {
    pub(super) fn new(from: &str, ssrc: u32, mark: u8) -> Sender {
        Sender {
            from: address(from),
            ssrc,
            seq: 1000,
            time: 16_000,
            payload_type: 0,
            mark,
        }
    }

    pub(super) fn next(&mut self) -> Vec<u8> {
        let mut bytes = vec![0x80, self.payload_type];
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.ssrc.to_be_bytes());
        bytes.push(self.mark);
        self.seq = self.seq.wrapping_add(1);
        self.time = self.time.wrapping_add(160);
        bytes
    }
}

impl Bed {
    pub(super) fn new(config: LegConfig) -> Bed {
        Bed {
            leg: Leg::new(0, config).unwrap(),
            now_ns: 0,
            heard: Vec::new(),
            events: VecDeque::new(),
            rtcp: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, sender: &mut Sender) -> Verdict {
        let bytes = sender.next();
        self.hand_in(sender.from, &bytes)
    }

    pub(super) fn hand_in(&mut self, from: SocketAddr, bytes: &[u8]) -> Verdict {
        let verdict = self
            .leg
            .handle_datagram(self.now_ns, self.now_ns, from, bytes);
        self.drain();
        verdict
    }

    pub(super) fn drain(&mut self) {
        while let Some(media) = self.leg.poll_media(self.now_ns, true) {
            self.heard.push(match media {
                Media::Packet(packet) => match packet.payload {
                    Some(_) => packet
                        .bytes
                        .iter()
                        .take(1)
                        .map(|mark| *mark as char)
                        .collect(),
                    None => "?".to_owned(),
                },
                Media::Lost(lost) => format!("lost {}", lost.packets),
                Media::Restart => "restart".to_owned(),
            });
        }
        let mut out = [0; 1500];
        while let Some((len, to)) = self.leg.poll_rtcp(self.now_ns, &mut out) {
            self.rtcp.push((out[..len].to_vec(), to));
        }
        while let Some(event) = self.leg.poll_event() {
            self.events.push_back(event);
        }
    }

    pub(super) fn wait_ms(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        while let Some(due_ns) = self.leg.next_timeout().filter(|due_ns| *due_ns <= until_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.drain();
        }
        self.now_ns = until_ns;
        self.drain();
    }

    /// Lets a sender send a packet every 20 ms.
    pub(super) fn stream(&mut self, sender: &mut Sender, packets: u32) {
        for _ in 0..packets {
            self.send(sender);
            self.wait_ms(20);
        }
    }

    /// Returns the number of packets received since the last call.
    pub(super) fn heard(&mut self, what: &str) -> usize {
        let count = self.heard.iter().filter(|one| *one == what).count();
        self.heard.retain(|one| one != what);
        count
    }
}
