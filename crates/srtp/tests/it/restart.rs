//! Senders and receivers that continue the state of others.

use threadbare_srtp::{PacketIndex, SourceError, SourceState};

use super::*;

#[test]
fn both_sides_continue_after_a_restart() {
    for suite in Suite::ALL {
        let (mut sender, mut receiver) = pair(suite);
        let old = protect_rtp(&mut sender, &rtp(SSRC, SeqNum(60_000), 1));
        for number in (60_000..140_000_u32).step_by(10_000) {
            // The first packet has already arrived.
            let packet = rtp(SSRC, SeqNum(number as u16), number);
            let mut protected = match number {
                60_000 => old.clone(),
                _ => protect_rtp(&mut sender, &packet),
            };
            receiver.unprotect_rtp(&mut protected).expect("it arrives");
            receiver
                .unprotect_rtcp(&mut protect_rtcp(&mut sender, &rtcp(SSRC, number)))
                .expect("it arrives");
        }
        let (mut sender_again, mut receiver_again) = pair(suite);
        for state in sender.sources() {
            sender_again.restore(state).expect("a new sender");
        }
        for state in receiver.sources() {
            receiver_again.restore(state).expect("a new receiver");
        }
        // Either side may have been restarted.
        let packet = rtp(SSRC, SeqNum(140_000_u32 as u16), 7);
        let report = rtcp(SSRC, 7);
        let rtp_packets = [
            protect_rtp(&mut sender, &packet),
            protect_rtp(&mut sender_again, &packet),
        ];
        let rtcp_packets = [
            protect_rtcp(&mut sender, &report),
            protect_rtcp(&mut sender_again, &report),
        ];
        assert_eq!(rtp_packets[0], rtp_packets[1]);
        assert_eq!(rtcp_packets[0], rtcp_packets[1]);
        for receiver in [&mut receiver, &mut receiver_again] {
            let mut buffer = rtp_packets[0].clone();
            let bytes = receiver.unprotect_rtp(&mut buffer).expect("it arrives");
            assert_eq!(buffer[..bytes], packet);
            receiver
                .unprotect_rtcp(&mut rtcp_packets[0].clone())
                .expect("it arrives");
            receiver
                .unprotect_rtp(&mut old.clone())
                .expect_err("a replay");
        }
    }
}

/// RFC 3711, section 3.3.2: a missing packet within the window is accepted, but no packet is accepted twice.
#[test]
fn packet_delayed_over_a_restart_is_accepted_once() {
    for suite in Suite::ALL {
        let (mut sender, mut receiver) = pair(suite);
        // The packets' numbers wrap, and the packets arrive out of order.
        let mut packets: Vec<Vec<u8>> = (65_500..65_600_u32)
            .map(|number| protect_rtp(&mut sender, &rtp(SSRC, SeqNum(number as u16), number)))
            .collect();
        let late = [packets.remove(90), packets.remove(40), packets.remove(7)];
        for packet in &packets {
            receiver
                .unprotect_rtp(&mut packet.clone())
                .expect("it arrives");
        }
        let (_, mut again) = pair(suite);
        for state in receiver.sources() {
            again.restore(state).expect("a new receiver");
        }
        for packet in &late {
            again
                .unprotect_rtp(&mut packet.clone())
                .expect("it was missing");
        }
        for packet in packets.iter().chain(&late) {
            again
                .unprotect_rtp(&mut packet.clone())
                .expect_err("a replay");
        }
    }
}

#[test]
fn without_the_rollover_counter_a_stream_cannot_be_decrypted() {
    let (mut sender, _) = pair(Suite::AesCm128HmacSha1_80);
    for seq in [0, 30_000, 60_000] {
        protect_rtp(&mut sender, &rtp(SSRC, SeqNum(seq), 1));
    }
    let packet = protect_rtp(&mut sender, &rtp(SSRC, SeqNum(10), 1));
    let mut late = Receiver::new(&key(Suite::AesCm128HmacSha1_80, 1));
    late.unprotect_rtp(&mut packet.clone())
        .expect_err("one wrap is unknown");
    let state = sender.sources().next().expect("a source");
    let mut told = Receiver::new(&key(Suite::AesCm128HmacSha1_80, 1));
    let before = PacketIndex::new(0, SeqNum(60_000));
    told.restore(SourceState {
        rtp: Some(before),
        ..state
    })
    .expect("a new receiver");
    told.unprotect_rtp(&mut packet.clone()).expect("it arrives");
    assert_eq!(told.sources().next().expect("a source").rtp, state.rtp);
}

#[test]
fn a_key_ends_before_an_index_is_used_again() {
    let (mut sender, _) = pair(Suite::AeadAes256Gcm);
    let last = PacketIndex::new(u32::MAX, SeqNum(u16::MAX));
    let state = SourceState {
        ssrc: SSRC,
        rtp: Some(last),
        rtp_missing: 0,
        rtcp: Some((1 << 31) - 1),
    };
    sender.restore(state).expect("a new sender");
    let exhausted = Err(SourceError::Exhausted { ssrc: SSRC }.into());
    assert_eq!(
        sender.protect_rtp(&mut [rtp(SSRC, SeqNum(0), 1), vec![0; 16]].concat(), 184),
        exhausted
    );
    assert_eq!(
        sender.protect_rtcp(&mut [rtcp(SSRC, 1), vec![0; 20]].concat(), 20),
        exhausted
    );
}
