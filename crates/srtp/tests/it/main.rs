//! SRTP in both directions, over a faulty link and with an attacker.

mod change;
mod forged;
mod joining;
mod link;
mod mki;
mod restart;

use threadbare_rtp_types::id::{SeqNum, Ssrc};
use threadbare_srtp::{
    MASTER_KEY_BYTES_MAX, MasterKey, RTCP_TRAILER_BYTES_MAX, RTP_TRAILER_BYTES_MAX, Receiver,
    Sender, Suite,
};

const SSRC: Ssrc = Ssrc(0x0102_0304);

fn key(suite: Suite, seed: u8) -> MasterKey {
    let random: [u8; MASTER_KEY_BYTES_MAX] =
        std::array::from_fn(|at| seed.wrapping_mul(29).wrapping_add(at as u8));
    MasterKey::from_random(suite, &random)
}

fn pair(suite: Suite) -> (Sender, Receiver) {
    (Sender::new(&key(suite, 1)), Receiver::new(&key(suite, 1)))
}

/// Returns an RTP packet with a CSRC, an extension and a payload that identifies the packet.
fn rtp(ssrc: Ssrc, seq: SeqNum, number: u32) -> Vec<u8> {
    let mut packet = vec![0x91, 0];
    packet.extend(seq.0.to_be_bytes());
    packet.extend((number.wrapping_mul(160)).to_be_bytes());
    packet.extend(ssrc.0.to_be_bytes());
    packet.extend([0, 0, 0, 9, 0xbe, 0xde, 0, 1, 0x10, 0xff, 0, 0]);
    packet.extend((0..160).map(|at: u32| at.wrapping_mul(number) as u8));
    packet
}

/// Returns a receiver report without blocks, followed by text.
fn rtcp(ssrc: Ssrc, number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 1];
    packet.extend(ssrc.0.to_be_bytes());
    packet.extend([0x80, 204, 0, 2]);
    packet.extend(ssrc.0.to_be_bytes());
    packet.extend(number.to_be_bytes());
    packet
}

fn protect_rtp(sender: &mut Sender, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + RTP_TRAILER_BYTES_MAX, 0);
    let bytes = sender
        .protect_rtp(&mut buffer, packet.len())
        .expect("it is protected");
    buffer.truncate(bytes);
    buffer
}

fn protect_rtcp(sender: &mut Sender, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + RTCP_TRAILER_BYTES_MAX, 0);
    let bytes = sender
        .protect_rtcp(&mut buffer, packet.len())
        .expect("it is protected");
    buffer.truncate(bytes);
    buffer
}
