//! Keys that change while packets are in flight, and states that outlive the process.

use threadbare_rtp_types::packet::Channel;
use threadbare_srtp::{
    Keys, OLD_KEY_NS, OLD_KEY_NS_MAX, Protection, Rollover, SourceState, Unsaved,
};

use super::*;

fn keys(suite: Suite, receive: u8) -> Keys {
    Keys {
        receive: key(suite, receive),
        send: key(suite, 200),
    }
}

/// Protects packet `number`. Sequence numbers wrap around, because the first packet has 65,530.
fn packet(sender: &mut Sender, number: u32) -> Vec<u8> {
    let seq = SeqNum(65_530).plus(number as u16);
    protect_rtp(sender, &rtp(SSRC, seq, number))
}

/// A sender's counter by RFC 3711, section 3.3.1, and RFC 4568, section 7.1.4.
#[test]
fn rollover_counter_of_a_new_key_continues_or_restarts() {
    for suite in Suite::ALL {
        for rollover in [Rollover::Kept, Rollover::Reset] {
            // The party uses a protection, too. Its packets are the ones that we receive.
            let mut party = Protection::new(Keys {
                receive: key(suite, 200),
                send: key(suite, 1),
            });
            let mut ours = Protection::new(keys(suite, 1));
            let pass = |party: &mut Protection, ours: &mut Protection, number: u32| {
                let packet = rtp(SSRC, SeqNum(65_530).plus(number as u16), number);
                let mut buffer = [&packet[..], &[0; RTP_TRAILER_BYTES_MAX]].concat();
                let len = party
                    .protect(Channel::Rtp, &mut buffer, packet.len())
                    .expect("it leaves");
                let protected = buffer[..len].to_vec();
                let bytes = ours
                    .unprotect(0, Channel::Rtp, &mut buffer[..len])
                    .expect("it arrives");
                assert_eq!(buffer[..bytes], packet, "{suite} {rollover:?} {number}");
                protected
            };
            for number in 0..10 {
                pass(&mut party, &mut ours, number);
            }
            ours.set_keys(0, keys(suite, 2), Rollover::Kept);
            let changed = Keys {
                receive: key(suite, 200),
                send: key(suite, 2),
            };
            party.set_keys(0, changed, rollover);
            let first = pass(&mut party, &mut ours, 10);
            for number in 11..20 {
                pass(&mut party, &mut ours, number);
            }
            ours.unprotect(0, Channel::Rtp, &mut first.clone())
                .expect_err("a replay");
            let stats = ours.stats();
            assert_eq!((stats.received, stats.replayed), (20, 1));
            let state = ours.snapshot().received[0].rtp.expect("packets");
            assert_eq!(state.rollover(), u32::from(rollover == Rollover::Kept));
        }
    }
}

#[test]
fn old_key_ends_some_time_after_the_new_one_was_used_or_at_the_maximum_time() {
    for suite in Suite::ALL {
        for uses_new in [false, true] {
            let mut ours = Protection::new(keys(suite, 1));
            let mut old = Sender::new(&key(suite, 1));
            ours.unprotect(0, Channel::Rtp, &mut packet(&mut old, 0))
                .expect("it arrives");
            ours.set_keys(1000, keys(suite, 2), Rollover::Kept);
            let mut new = Sender::new(&key(suite, 2));
            if uses_new {
                ours.unprotect(2000, Channel::Rtp, &mut packet(&mut new, 1))
                    .expect("it arrives");
            }
            let end_ns = if uses_new {
                2000 + OLD_KEY_NS
            } else {
                1000 + OLD_KEY_NS_MAX
            };
            ours.unprotect(end_ns - 1, Channel::Rtp, &mut packet(&mut old, 2))
                .expect("on the way");
            ours.unprotect(end_ns, Channel::Rtp, &mut packet(&mut old, 3))
                .expect_err("too late");
            let stats = ours.stats();
            assert_eq!((stats.of_old_key, stats.unauthentic), (1, 1));
        }
    }
}

#[test]
fn packets_that_may_have_been_sent_are_not_protected_again() {
    for suite in Suite::ALL {
        let mut before = Protection::new(keys(suite, 1));
        let protect = |protection: &mut Protection, packet: &[u8]| {
            let mut buffer = [packet, &[0; RTCP_TRAILER_BYTES_MAX]].concat();
            let len = protection.protect(
                Channel::Rtp.carried(true, packet),
                &mut buffer,
                packet.len(),
            )?;
            buffer.truncate(len);
            Ok::<_, threadbare_srtp::ProtectError>(buffer)
        };
        protect(&mut before, &rtp(SSRC, SeqNum(65_530), 1)).expect("it leaves");
        protect(&mut before, &rtcp(SSRC, 1)).expect("it leaves");
        let state = before.snapshot();
        let unsaved = Unsaved {
            rtp_packets: 10,
            rtcp_packets: 100,
        };
        let mut after = Protection::restore(&state, unsaved).expect("a state");
        // Ten packets after 65,530, the numbers have wrapped.
        protect(&mut after, &rtp(SSRC, SeqNum(4), 2)).expect_err("it may have left");
        protect(&mut after, &rtp(SSRC, SeqNum(5), 2)).expect("it is new");
        protect(&mut after, &rtcp(SSRC, 2)).expect("it leaves");
        let sources = after.snapshot().sent;
        let [
            SourceState {
                rtp: Some(rtp),
                rtcp: Some(index),
                ..
            },
        ] = sources[..]
        else {
            panic!("{sources:?}");
        };
        assert_eq!((rtp.rollover(), rtp.seq(), index), (1, SeqNum(5), 101));
        assert_eq!((after.stats().repeated, after.stats().unsent), (1, 0));
    }
}

/// The second byte is that of a sender report. But without mux, only the port determines the contents.
#[test]
fn payload_types_64_to_95_are_rtp_on_a_port_without_mux() {
    for suite in Suite::ALL {
        let mut packet = rtp(SSRC, SeqNum(1), 1);
        packet[1] = 0x80 | 72;
        let channel = Channel::Rtp.carried(false, &packet);
        assert_eq!(channel, Channel::Rtp);
        assert_eq!(Channel::Rtp.carried(true, &packet), Channel::Rtcp);
        let mut ours = Protection::new(Keys {
            receive: key(suite, 1),
            send: key(suite, 1),
        });
        let mut buffer = [&packet[..], &[0; RTP_TRAILER_BYTES_MAX]].concat();
        let bytes = ours
            .protect(channel, &mut buffer, packet.len())
            .expect("it leaves");
        buffer.truncate(bytes);
        assert_eq!(
            buffer,
            protect_rtp(&mut Sender::new(&key(suite, 1)), &packet)
        );
        let bytes = ours.unprotect(0, channel, &mut buffer).expect("it arrives");
        assert_eq!(buffer[..bytes], packet);
        let stats = (
            ours.snapshot().received[0].rtp,
            ours.snapshot().received[0].rtcp,
        );
        assert!(matches!(stats, (Some(_), None)), "{stats:?}");
    }
}
