//! A party, its far side and strangers in virtual time. The tests check whose packets are accepted, and who gets packets. Each scene runs
//! on a leg and on a gate.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::test_bed::telephony;
use super::{
    AdmissionConfig, Destination, Gate, Learn, Leg, LegConfig, Media, Method, Once, Refusal,
    Verdict,
};

const MS: u64 = 1_000_000;
const TICK_NS: u64 = 20 * MS;
/// A tenth of a second: the jitter buffer does not wait that long.
const WAIT_TICKS: usize = 5;

/// The signalled address.
const PARTY: &str = "192.0.2.1:5000";
const STRANGER: &str = "198.51.100.66:7000";
/// The party's address as a NAT shows it.
const NAT: &str = "203.0.113.9:40000";
/// The party's private address behind the NAT (RFC 1918).
const PRIVATE: &str = "10.0.0.7:5000";

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// A sender of RTP.
#[derive(Debug, Clone, Copy)]
struct Sender {
    from: SocketAddr,
    ssrc: u32,
    seq: u16,
    time: u32,
    payload_type: u8,
    mark: u8,
}

impl Sender {
    fn new(from: &str, mark: u8) -> Sender {
        Sender {
            from: at(from),
            ssrc: u32::from(mark),
            seq: 1000,
            time: 16_000,
            payload_type: 0,
            mark,
        }
    }

    fn next(&mut self) -> Vec<u8> {
        let mut bytes = vec![0x80, self.payload_type];
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.ssrc.to_be_bytes());
        bytes.extend([self.mark; 4]);
        self.seq = self.seq.wrapping_add(1);
        self.time = self.time.wrapping_add(160);
        bytes
    }
}

/// A leg and a gate with the same settings. Once in each tick, the far side's packets go to the present destination of each.
struct Scene {
    leg: Leg,
    gate: Gate,
    now_ns: u64,
    /// Marks of the senders, in the order in which the leg returned their packets.
    heard: Vec<u8>,
    /// The senders of the datagrams that the gate passed.
    passed: Vec<SocketAddr>,
    /// Destinations of the far side's packets: by the leg, and by the gate.
    sent: [Vec<Option<SocketAddr>>; 2],
}

impl Scene {
    fn new(admission: AdmissionConfig) -> Scene {
        let config = LegConfig {
            admission: admission.clone(),
            mux: false,
            ..telephony()
        };
        Scene {
            leg: Leg::new(0, config).unwrap(),
            gate: Gate::new(0, admission),
            now_ns: 0,
            heard: Vec::new(),
            passed: Vec::new(),
            sent: [Vec::new(), Vec::new()],
        }
    }

    fn of(peer: &str, learn: Learn) -> Scene {
        Scene::new(AdmissionConfig {
            peer: Some(at(peer)),
            learn,
            ..AdmissionConfig::default()
        })
    }

    fn send(&mut self, sender: &mut Sender) -> Verdict {
        self.send_at(self.now_ns, sender)
    }

    fn send_at(&mut self, at_ns: u64, sender: &mut Sender) -> Verdict {
        let bytes = sender.next();
        let from = sender.from;
        let verdict = self.leg.handle_datagram(self.now_ns, at_ns, from, &bytes);
        self.drain();
        if self.gate.judge(at_ns, from).is_ok() {
            self.passed.push(from);
        }
        verdict
    }

    fn drain(&mut self) {
        while let Some(media) = self.leg.poll_media(self.now_ns, true) {
            if let Media::Packet(packet) = media {
                self.heard.extend(packet.bytes.first());
            }
        }
        while self.leg.poll_event().is_some() {}
        assert!(self.leg.is_consistent(), "a place without a packet");
    }

    /// Lets each of these senders send a packet, then the far side, and then lets 20 ms pass.
    fn tick(&mut self, senders: &mut [&mut Sender]) {
        for sender in senders {
            self.send(sender);
        }
        self.sent[0].push(self.leg.rtp_to());
        self.sent[1].push(self.gate.to());
        self.now_ns += TICK_NS;
        self.drain();
    }

    fn ticks(&mut self, count: usize, senders: &mut [&mut Sender]) {
        for _ in 0..count {
            self.tick(senders);
        }
    }

    fn relearn(&mut self, peer: &str, learn: Learn) {
        let admission = AdmissionConfig {
            peer: Some(at(peer)),
            learn,
            ..AdmissionConfig::default()
        };
        self.gate.relearn(self.now_ns, admission.clone());
        self.leg.relearn(self.now_ns, admission, Destination::Peer);
    }

    /// Returns the number of packets of this sender that the leg and the gate accepted.
    fn heard(&self, sender: &Sender) -> [usize; 2] {
        let heard = self.heard.iter().filter(|mark| **mark == sender.mark);
        let passed = self.passed.iter().filter(|from| **from == sender.from);
        [heard.count(), passed.count()]
    }

    /// Returns the number of the far side's packets to this sender, as the leg and the gate address them.
    fn sent(&self, sender: &Sender) -> [usize; 2] {
        let count = |all: &Vec<Option<SocketAddr>>| {
            all.iter().filter(|to| **to == Some(sender.from)).count()
        };
        [count(&self.sent[0]), count(&self.sent[1])]
    }

    /// Asserts that the party and the far side got at least 99 % of each other's `packets`, and that the stranger got at most 3 packets.
    fn assert_safe(&self, name: &str, party: &Sender, stranger: &Sender, packets: usize) {
        let enough = packets - packets / 100;
        let (heard, sent) = (self.heard(party), self.sent(party));
        assert!(
            heard.iter().all(|heard| *heard >= enough),
            "{name}: heard {heard:?}"
        );
        assert!(
            sent.iter().all(|sent| *sent + 3 >= enough),
            "{name}: sent {sent:?}"
        );
        let leaked = self.sent(stranger);
        assert!(
            leaked.iter().all(|sent| *sent <= 3),
            "{name}: the stranger got {leaked:?}"
        );
    }
}

/// Returns each learning method that a proxy can choose, except `off`.
fn all_ways() -> Vec<Learn> {
    let methods = [Method::Immediate, Method::Delayed, Method::Heuristic];
    let fixed = [None, Some(3000)];
    let once = methods
        .into_iter()
        .flat_map(|method| fixed.map(|fixed_ms| Learn::Once(Once { method, fixed_ms })));
    once.collect()
}

#[test]
fn a_stranger_before_the_first_packet_loses_the_leg_to_the_signalled_party() {
    for learn in all_ways() {
        let mut scene = Scene::of(PARTY, learn);
        let (mut party, mut stranger) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b's'));
        for _ in 0..5 {
            scene.send(&mut stranger);
        }
        for tick in 0..300 {
            if tick % 50 == 25 {
                scene.send(&mut stranger);
            }
            scene.tick(&mut [&mut party]);
        }
        scene.assert_safe(&format!("{learn:?}"), &party, &stranger, 300);
    }
}

#[test]
fn flood_of_strangers_does_not_starve_the_party() {
    for learn in all_ways() {
        for new_ssrcs in [false, true] {
            let mut scene = Scene::of(PARTY, learn);
            let (mut party, mut stranger) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b's'));
            for tick in 0..300 {
                for _ in 0..3 {
                    stranger.ssrc += u32::from(new_ssrcs);
                    scene.send(&mut stranger);
                }
                // The signalled party starts later. By that time, the stranger has taken the leg, if it can.
                if tick >= 25 {
                    scene.tick(&mut [&mut party]);
                }
            }
            scene.assert_safe(&format!("{learn:?} {new_ssrcs}"), &party, &stranger, 275);
        }
    }
}

/// Packets that arrive between offer and answer get their times from the kernel, and are read after the answer.
#[test]
fn the_address_of_packets_from_before_the_answer_is_not_learned() {
    for learn in all_ways() {
        let mut scene = Scene::of(PARTY, learn);
        scene.now_ns = 1000 * MS;
        scene.relearn(PARTY, learn);
        let (mut party, mut zombie) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b's'));
        for early in 0..50 {
            scene.send_at(early * TICK_NS, &mut zombie);
        }
        assert_eq!(
            (scene.leg.rtp_to(), scene.gate.to()),
            (Some(at(PARTY)), Some(at(PARTY)))
        );
        scene.ticks(300, &mut [&mut zombie, &mut party]);
        scene.assert_safe(&format!("{learn:?}"), &party, &zombie, 300);
    }
}

#[test]
fn no_stranger_gets_the_leg_during_silence() {
    for learn in all_ways() {
        for (signalled, from) in [(PARTY, PARTY), (PRIVATE, NAT)] {
            let name = format!("{learn:?} {signalled}");
            let mut scene = Scene::of(signalled, learn);
            let (mut party, mut stranger) = (Sender::new(from, b'p'), Sender::new(STRANGER, b's'));
            scene.ticks(200, &mut [&mut party]);
            scene.ticks(500, &mut [&mut stranger]);
            assert_eq!(scene.heard(&stranger), [0, 0], "{name}");
            scene.ticks(200, &mut [&mut party, &mut stranger]);
            let missing = if signalled == from { 0 } else { 4 };
            assert_eq!(scene.heard(&party)[0], 400, "{name}");
            assert!(scene.heard(&party)[1] >= 400 - missing, "{name}");
            assert_eq!(scene.sent(&stranger), [0, 0], "{name}");
        }
    }
}

#[test]
fn stray_packet_does_not_start_the_window() {
    let strict = Learn::Once(Once {
        fixed_ms: Some(3000),
        ..Once::default()
    });
    let mut scene = Scene::of(PRIVATE, strict);
    let (mut party, mut stranger) = (Sender::new(NAT, b'p'), Sender::new(STRANGER, b's'));
    scene.tick(&mut [&mut stranger]);
    scene.ticks(500, &mut []);
    scene.ticks(300, &mut [&mut party]);
    scene.assert_safe("strict", &party, &stranger, 300 - 4);
    // If the address is fixed, another port of the same NAT is refused, but the signalled address is not.
    let mut moved = Sender::new("203.0.113.9:41000", b'm');
    scene.ticks(100, &mut [&mut moved]);
    assert_eq!(scene.heard(&moved), [0, 0]);
    let mut signalled = Sender::new(PRIVATE, b'q');
    scene.ticks(100, &mut [&mut signalled]);
    assert_eq!(scene.heard(&signalled), [100, 99]);
}

/// After an offer with another address, media go there (RFC 3264, section 8.3.1). The old source continues to send for seconds.
#[test]
fn a_new_description_is_followed_while_the_old_source_sends() {
    for learn in all_ways() {
        for (new, from) in [
            ("192.0.2.1:6000", "192.0.2.1:6000"),
            ("192.0.2.5:5000", "192.0.2.5:5000"),
            (PRIVATE, NAT),
        ] {
            let name = format!("{learn:?} {from}");
            let mut scene = Scene::of(PARTY, learn);
            let (mut old, mut party) = (Sender::new(PARTY, b'o'), Sender::new(from, b'p'));
            scene.ticks(50, &mut [&mut old]);
            scene.heard.clear();
            scene.passed.clear();
            scene.sent = [Vec::new(), Vec::new()];
            scene.relearn(new, learn);
            scene.ticks(200, &mut [&mut old, &mut party]);
            let heard = scene.heard(&party);
            assert!(heard[0] == 200 && heard[1] >= 196, "{name}: {heard:?}");
            assert!(scene.heard(&old).iter().all(|old| *old <= 2), "{name}");
            assert!(scene.sent(&old).iter().all(|old| *old <= 3), "{name}");
        }
    }
}

#[test]
fn a_repeated_description_changes_nothing() {
    for learn in all_ways() {
        let mut scene = Scene::of(PRIVATE, learn);
        let (mut party, mut stranger) = (Sender::new(NAT, b'p'), Sender::new(STRANGER, b's'));
        scene.ticks(200, &mut [&mut party]);
        scene.relearn(PRIVATE, learn);
        scene.ticks(200, &mut [&mut stranger]);
        scene.ticks(100, &mut [&mut party, &mut stranger]);
        let heard = scene.heard(&party);
        assert!(heard[0] == 300 && heard[1] >= 296, "{learn:?}: {heard:?}");
        assert_eq!(scene.sent(&stranger), [0, 0], "{learn:?}");
    }
}

/// An address of 0.0.0.0 puts the party on hold (RFC 3264, section 8.4).
#[test]
fn party_held_by_address_gets_nothing_until_resumed() {
    let learn = Learn::Once(Once::default());
    let mut scene = Scene::of(PRIVATE, learn);
    let mut party = Sender::new(NAT, b'p');
    scene.ticks(50, &mut [&mut party]);
    scene.relearn("0.0.0.0:5000", learn);
    scene.sent = [Vec::new(), Vec::new()];
    scene.ticks(50, &mut [&mut party]);
    assert!(scene.sent.iter().flatten().all(Option::is_none));
    scene.relearn(PRIVATE, learn);
    scene.ticks(50, &mut [&mut party]);
    assert_eq!(scene.leg.rtp_to(), Some(at(NAT)));
    assert_eq!(scene.gate.to(), Some(at(NAT)));
}

#[test]
fn a_nat_moves_its_port_after_half_a_second() {
    let mut scene = Scene::of(PARTY, Learn::Once(Once::default()));
    let (mut party, mut moved) = (
        Sender::new(PARTY, b'p'),
        Sender::new("192.0.2.1:40000", b'm'),
    );
    scene.ticks(100, &mut [&mut party]);
    scene.ticks(100, &mut [&mut moved]);
    let heard = scene.heard(&moved);
    assert!(
        heard.iter().all(|heard| (75..=81).contains(heard)),
        "{heard:?}"
    );
    scene.ticks(10, &mut [&mut party]);
    assert_eq!(
        scene.leg.rtp_to(),
        Some(at(PARTY)),
        "the signalled address at any time"
    );
    assert_eq!(scene.gate.to(), Some(at(PARTY)));
}

/// A packet that passes authentication comes from a holder of the keys (RFC 3711, section 3.3).
#[test]
fn authenticated_packets_move_the_leg_to_another_network() {
    for is_authenticated in [false, true] {
        let mut scene = Scene::of(PRIVATE, Learn::Once(Once::default()));
        scene.leg.set_authenticated(is_authenticated);
        scene.gate.set_authenticated(is_authenticated);
        let (mut party, mut moved) = (Sender::new(NAT, b'p'), Sender::new(STRANGER, b'm'));
        scene.ticks(200, &mut [&mut party]);
        scene.ticks(100, &mut [&mut moved]);
        let is_followed = scene.heard(&moved).iter().all(|heard| *heard > 70);
        assert_eq!(is_followed, is_authenticated, "{:?}", scene.heard(&moved));
        assert_eq!(
            scene.sent(&moved).iter().all(|sent| *sent > 70),
            is_authenticated
        );
    }
}

/// rtpengine's documentation says about `media-handover`: "the endpoint address will be re-learned and moved to the new address".
#[test]
fn a_handover_is_followed_when_the_old_source_stops() {
    let mut scene = Scene::of(PARTY, Learn::Follow { silence_ms: 500 });
    let (mut party, mut next) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b'n'));
    scene.ticks(100, &mut [&mut party]);
    scene.ticks(100, &mut [&mut party, &mut next]);
    assert_eq!(scene.heard(&next), [0, 0]);
    scene.ticks(100, &mut [&mut next]);
    assert!(scene.heard(&next).iter().all(|heard| *heard >= 74));
    assert_eq!(scene.leg.rtp_to(), Some(next.from));
}

/// For `heuristic`, rtpengine's documentation ranks addresses: those that are fully as signalled, those with the signalled IP address,
/// those with the signalled port, and all others.
#[test]
fn a_better_rank_wins_while_the_address_is_learned() {
    let learn = |method| {
        Learn::Once(Once {
            method,
            fixed_ms: None,
        })
    };
    for (method, wins) in [
        (Method::Heuristic, true),
        (Method::Delayed, false),
        (Method::Immediate, false),
    ] {
        let mut scene = Scene::of(PRIVATE, learn(method));
        let (mut first, mut better) = (
            Sender::new(STRANGER, b's'),
            Sender::new("203.0.113.9:5000", b'p'),
        );
        scene.ticks(20, &mut [&mut first]);
        scene.ticks(20, &mut [&mut first, &mut better]);
        let to = [scene.leg.rtp_to(), scene.gate.to()];
        let expected = if wins { better.from } else { first.from };
        assert_eq!(to, [Some(expected); 2], "{method:?}");
    }
    // For three seconds, `delayed` follows an address that still sends, whereas `immediate` keeps the first address.
    for (method, after_ms, wins) in [
        (Method::Delayed, 500, true),
        (Method::Delayed, 4000, false),
        (Method::Immediate, 500, false),
    ] {
        let mut scene = Scene::of(PRIVATE, learn(method));
        let (mut first, mut next) = (Sender::new(STRANGER, b's'), Sender::new(NAT, b'p'));
        scene.ticks(after_ms / 20, &mut [&mut first]);
        scene.ticks(50, &mut [&mut next]);
        let expected = if wins { next.from } else { first.from };
        assert_eq!(scene.leg.rtp_to(), Some(expected), "{method:?} {after_ms}");
        assert_eq!(scene.gate.to(), Some(expected), "{method:?} {after_ms}");
    }
}

/// `asymmetric` and `endpoint-learning=off` accept packets from anywhere. A party that sends from its signalled address is still preferred.
#[test]
fn signalled_address_wins_if_anyone_may_send() {
    let mut scene = Scene::of(PARTY, Learn::Anyone);
    let (mut party, mut stranger) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b's'));
    scene.ticks(50, &mut [&mut stranger]);
    scene.ticks(100, &mut [&mut stranger, &mut party]);
    assert!(scene.heard(&party)[0] >= 99);
    assert!(scene.heard(&stranger)[0] <= 52);
    assert_eq!(scene.gate.to(), Some(at(PARTY)));
    // When the party stops, another source follows as soon as the party's next packet is overdue.
    scene.ticks(50, &mut [&mut stranger]);
    assert!(scene.heard(&stranger)[0] >= 97);
}

/// Between two packets of the party, two unknown SSRCs take both places for candidates.
#[test]
fn changing_ssrcs_do_not_starve_the_party() {
    for is_first in [false, true] {
        let mut scene = Scene::of(PARTY, Learn::Anyone);
        let (mut party, mut stranger) = (Sender::new(PARTY, b'p'), Sender::new(STRANGER, b's'));
        if is_first {
            scene.ticks(50, &mut [&mut party]);
        }
        for _ in 0..100 {
            for _ in 0..2 {
                stranger.ssrc += 1;
                scene.send(&mut stranger);
            }
            scene.tick(&mut [&mut party]);
        }
        let heard = scene.heard(&party)[0];
        assert!(heard >= 99, "the party is first: {is_first}: {heard}");
    }
}

/// A party behind the NAT of the signalled address, which `received-from` states, uses another port.
#[test]
fn the_signalled_host_takes_the_leg_from_a_stranger_at_any_time() {
    for learn in all_ways() {
        let mut scene = Scene::of(PARTY, learn);
        let (mut party, mut stranger) = (
            Sender::new("192.0.2.1:40000", b'p'),
            Sender::new(STRANGER, b's'),
        );
        scene.ticks(250, &mut [&mut stranger]);
        scene.ticks(300, &mut [&mut stranger, &mut party]);
        assert_eq!(scene.leg.rtp_to(), Some(party.from), "{learn:?}");
        assert_eq!(scene.gate.to(), Some(party.from), "{learn:?}");
    }
}

/// If a packet of an unknown payload type comes between the packets of a candidate, no packet is missing.
#[test]
fn unknown_payload_type_at_the_beginning_is_not_a_loss() {
    for peer in [PARTY, PRIVATE] {
        let mut scene = Scene::of(peer, Learn::Once(Once::default()));
        let mut party = Sender::new(PARTY, b'p');
        for number in 0..20 {
            party.payload_type = if number % 3 == 1 { 9 } else { 0 };
            scene.tick(&mut [&mut party]);
        }
        scene.ticks(10, &mut []);
        assert_eq!(scene.leg.stats().jitter.lost, 0, "{peer}");
        // At most five packets of a candidate are queued.
        assert!(scene.leg.stats().jitter.received >= 19, "{peer}");
    }
}

/// A party that only listens sends no RTP. But its RTCP shows that it uses its signalled address.
#[test]
fn reports_from_the_signalled_address_keep_strangers_out() {
    let mut scene = Scene::of(PARTY, Learn::Once(Once::default()));
    let mut stranger = Sender::new(STRANGER, b's');
    // An empty receiver report (RFC 3550, section 6.4.2).
    let report = [0x80, 201, 0, 1, 0, 0, 0, 9];
    let from = at("192.0.2.1:5001");
    assert_eq!(scene.leg.handle_rtcp(0, from, &report), Verdict::Rtcp);
    assert_eq!(scene.gate.judge_rtcp(0, from), Ok(()));
    scene.ticks(100, &mut [&mut stranger]);
    assert_eq!(scene.sent(&stranger), [0, 0]);
    assert_eq!(
        scene.gate.judge(scene.now_ns, stranger.from),
        Err(Refusal::Stranger)
    );
}

/// RFC 4733 does not define the SSRC of events. Some gateways give events another SSRC, during the audio or in a pause.
#[test]
fn events_and_audio_from_one_address_count_as_one_party() {
    for is_paused in [false, true] {
        for begins_together in [false, true] {
            let mut scene = Scene::of(PARTY, Learn::Once(Once::default()));
            let (mut audio, mut events) = (Sender::new(PARTY, b'a'), Sender::new(PARTY, b'e'));
            events.payload_type = 101;
            let alone = if begins_together { 0 } else { 50 };
            scene.ticks(alone, &mut [&mut audio]);
            if is_paused && !begins_together {
                scene.ticks(44, &mut [&mut events]);
            } else {
                scene.ticks(44, &mut [&mut audio, &mut events]);
            }
            scene.ticks(50, &mut [&mut audio]);
            scene.ticks(10, &mut []);
            let count = |mark| scene.heard.iter().filter(|one| **one == mark).count();
            let spoken = alone + 50 + if is_paused && !begins_together { 0 } else { 44 };
            let name = format!("paused {is_paused}, together {begins_together}");
            assert_eq!(count(b'a'), spoken, "{name}");
            assert!(count(b'e') >= 43, "{name}: {}", count(b'e'));
        }
    }
}

/// A participant may change its SSRC at any time (RFC 3550, section 8).
#[test]
fn a_new_ssrc_of_the_party_continues_its_audio() {
    let mut scene = Scene::of(PARTY, Learn::Once(Once::default()));
    let mut party = Sender::new(PARTY, b'p');
    for _ in 0..5 {
        scene.ticks(50, &mut [&mut party]);
        party.ssrc += 1000;
        party.seq = party.seq.wrapping_add(20_000);
    }
    assert_eq!(scene.heard(&party), [250, 250]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever strangers do, the signalled party has the leg from its second packet on, and loses nothing. After that, no packets of other
    /// hosts are accepted, and no other host gets packets.
    #[test]
    fn the_signalled_party_always_has_the_leg(
        way in 0..6_usize,
        start in 0..60_usize,
        pause in 0..200_usize,
        strangers in prop::collection::vec(
            // The values are host, port, SSRC, packets per tick, first tick and last tick.
            (2..40_u8, 0..3_u16, 0..4_u32, 1..4_usize, 0..300_usize, 1..300_usize),
            0..12,
        ),
    ) {
        let mut scene = Scene::of(PARTY, all_ways()[way]);
        let mut party = Sender::new(PARTY, b'p');
        let mut senders: Vec<_> = strangers.iter().map(|(host, port, ssrc, ..)| {
            let mut sender = Sender::new(&format!("192.0.2.{host}:{}", 5000 + port), b's');
            sender.ssrc = 1000 + ssrc;
            sender
        }).collect();
        let mut spoken = 0;
        for tick in 0..300 {
            for (sender, (.., packets, from, count)) in senders.iter_mut().zip(&strangers) {
                if (*from..from + count).contains(&tick) {
                    for _ in 0..*packets {
                        let verdict = scene.send(sender);
                        prop_assert!(spoken < 2 || verdict != Verdict::Media, "tick {tick}");
                    }
                }
            }
            // The party starts late, and is silent for up to four seconds in the middle.
            let speaks = tick >= start && !(100..100 + pause).contains(&tick);
            let before = (scene.heard.len(), scene.passed.len());
            let mut both = [&mut party];
            scene.tick(if speaks { &mut both } else { &mut [] });
            spoken += usize::from(speaks);
            if spoken >= 2 {
                prop_assert_eq!((scene.leg.rtp_to(), scene.gate.to()), (Some(at(PARTY)), Some(at(PARTY))));
            }
            if spoken > 2 {
                prop_assert!(scene.passed[before.1..].iter().all(|from| *from == at(PARTY)));
            }
            // Packets that were accepted before the party spoke may wait in the jitter buffer for lost ones.
            if spoken > 2 + WAIT_TICKS {
                prop_assert!(!scene.heard[before.0..].contains(&b's'));
            }
        }
        let heard = scene.heard(&party);
        prop_assert!(heard[0] + 1 >= spoken && heard[1] + 1 >= spoken, "{heard:?} of {spoken}");
    }

    /// A party behind a NAT is learned with its fifth packet, even if up to seven other addresses send single packets.
    #[test]
    fn strangers_do_not_delay_a_party_behind_a_nat(
        way in 0..6_usize,
        strays in prop::collection::vec((0..7_u8, any::<u32>()), 0..40),
    ) {
        let mut scene = Scene::of(PRIVATE, all_ways()[way]);
        let mut party = Sender::new(NAT, b'p');
        let mut strays = strays.into_iter();
        for _ in 0..5 {
            for (host, ssrc) in strays.by_ref().take(8) {
                let mut stray = Sender::new(&format!("198.51.100.{host}:7"), b's');
                stray.ssrc = ssrc;
                let bytes = stray.next();
                scene.leg.handle_datagram(scene.now_ns, scene.now_ns, stray.from, &bytes);
            }
            scene.tick(&mut [&mut party]);
        }
        prop_assert_eq!(scene.leg.rtp_to(), Some(at(NAT)));
        prop_assert_eq!(scene.gate.to(), Some(at(NAT)));
    }
}
