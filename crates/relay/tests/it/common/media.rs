//! Media sessions without sockets, in virtual time. Tests pass in datagrams, and read those that were staged.
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::net::SocketAddr;

use threadbare_relay::{Call, Datagram, Outbox, PortId, Refused};
use threadbare_rtp::call::{self, DirectionConfig, SessionSpec, Side};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::id::{NtpTime, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter::{self, Release};
use threadbare_rtp::leg::{AdmissionConfig, Destination, LegConfig, Payload, PayloadMap};
use threadbare_rtp::session::Profile;
use threadbare_rtp::srtp::{
    Keys, MASTER_KEY_BYTES_MAX, MasterKey, RTCP_TRAILER_BYTES_MAX, Receiver, Sender, Suite,
};

pub(crate) const MS: u64 = 1_000_000;

/// Returns the address of a party.
pub(crate) fn party(side: Side) -> SocketAddr {
    match side {
        Side::A => SocketAddr::from(([192, 0, 2, 1], 5000)),
        Side::B => SocketAddr::from(([192, 0, 2, 2], 6000)),
    }
}

/// Returns a leg for a party that sends this encoding, at the address that [`party`] returns.
pub(crate) fn leg(side: Side, payload_type: u8, encoding: Encoding) -> LegConfig {
    let format = Format::new(encoding, 8000, 1).expect("a format");
    LegConfig {
        ssrc: Ssrc(0xa0 + side as u32),
        first_seq: SeqNum(65_530),
        cname: "media@test".into(),
        seed: 7 + side as u64,
        ntp_at_zero: NtpTime(0),
        payloads: PayloadMap::new(&[Payload::audio(payload_type, format)])
            .expect("a map")
            .into(),
        takes: None,
        jitter: jitter::Config {
            release: Release::InOrder,
            ..jitter::Config::new(8000, 40 * MS)
        },
        admission: AdmissionConfig {
            peer: Some(party(side)),
            ..AdmissionConfig::default()
        },
        destination: Destination::Peer,
        mux: false,
        bandwidth_bps: 80_000,
        profile: Profile::Avp,
    }
}

/// Creates a call of PCMU at A and PCMA at B.
pub(crate) fn call(now_ns: u64, mux: bool) -> call::Session {
    let legs = [
        leg(Side::A, 0, Encoding::Pcmu),
        leg(Side::B, 8, Encoding::Pcma),
    ];
    let config = SessionSpec::call(
        legs.map(|leg| LegConfig { mux, ..leg }),
        [DirectionConfig {
            first_time: RtpTime(u32::MAX - 1000),
            ..DirectionConfig::default()
        }; 2],
    );
    call::Session::new(now_ns, config).expect("a call")
}

/// Returns a key. Each number has a different one.
pub(crate) fn key(suite: Suite, number: u8) -> MasterKey {
    let random: [u8; MASTER_KEY_BYTES_MAX] =
        std::array::from_fn(|at| number.wrapping_mul(29).wrapping_add(at as u8));
    MasterKey::from_random(suite, &random)
}

/// Returns the keys of a party, and the party's own transforms for sending and receiving.
pub(crate) fn party_keys(suite: Suite, number: u8) -> (Keys, Sender, Receiver) {
    let keys = Keys {
        receive: key(suite, number),
        send: key(suite, number + 100),
    };
    let (sends, receives) = (Sender::new(&keys.receive), Receiver::new(&keys.send));
    (keys, sends, receives)
}

/// Returns a party's packet: 20 ms of a payload that identifies the packet.
pub(crate) fn speech(payload_type: u8, ssrc: u32, number: u16) -> Vec<u8> {
    let mut packet = vec![0x80, payload_type];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(number) * 160).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0x55 ^ number as u8; 160]);
    packet
}

/// Returns the packet, encrypted.
pub(crate) fn protected(sender: &mut Sender, packet: &[u8]) -> Vec<u8> {
    let mut buffer = [packet, &[0; RTCP_TRAILER_BYTES_MAX]].concat();
    let is_rtcp = threadbare_rtp::packet::is_rtcp(packet);
    let len = if is_rtcp {
        sender.protect_rtcp(&mut buffer, packet.len())
    } else {
        sender.protect_rtp(&mut buffer, packet.len())
    };
    buffer.truncate(len.expect("it is protected"));
    buffer
}

/// A datagram that was staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) port: PortId,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Staged {
    /// Returns the decrypted packet.
    pub(crate) fn opened(&self, receiver: &mut Receiver) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let len = if threadbare_rtp::packet::is_rtcp(&bytes) {
            receiver.unprotect_rtcp(&mut bytes)
        } else {
            receiver.unprotect_rtp(&mut bytes)
        };
        bytes.truncate(len.expect("it is authentic"));
        bytes
    }

    /// Returns the RTP packet's number.
    pub(crate) fn seq(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// Returns the RTP packet's timestamp.
    pub(crate) fn time(&self) -> u32 {
        u32::from_be_bytes(self.bytes[4..8].try_into().expect("four bytes"))
    }

    /// Returns the SSRC of an RTP packet.
    pub(crate) fn ssrc(&self) -> u32 {
        u32::from_be_bytes(self.bytes[8..12].try_into().expect("four bytes"))
    }
}

/// An outbox with room for a number of datagrams per turn.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    pub(crate) staged: Vec<Staged>,
    left: usize,
    is_full: bool,
}

impl Outbox for Tray {
    fn stage_with(
        &mut self,
        port: PortId,
        to: SocketAddr,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), Refused> {
        if self.left == 0 {
            self.is_full = true;
            return Err(Refused::Full);
        }
        let mut room = vec![0; threadbare_relay::DATAGRAM_BYTES_MAX];
        let len = write(&mut room);
        if len > 0 {
            self.left -= 1;
            room.truncate(len);
            let bytes = room;
            self.staged.push(Staged { port, to, bytes });
        }
        Ok(())
    }
}

/// A call in virtual time.
pub(crate) struct Bed<C> {
    pub(crate) call: C,
    pub(crate) now_ns: u64,
    pub(crate) tray: Tray,
    /// Number of datagrams for which a turn has room.
    pub(crate) room: usize,
}

impl<C: Call> Bed<C> {
    pub(crate) fn new(now_ns: u64, call: C) -> Bed<C> {
        Bed {
            call,
            now_ns,
            tray: Tray::default(),
            room: 64,
        }
    }

    pub(crate) fn hand_in(&mut self, port: PortId, from: SocketAddr, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let datagram = Datagram {
            port,
            from,
            received_ns: self.now_ns,
            bytes: &mut bytes,
        };
        self.call.handle_datagram(self.now_ns, datagram);
        self.poll();
    }

    /// Runs turns until nothing more is staged.
    pub(crate) fn poll(&mut self) {
        loop {
            (self.tray.left, self.tray.is_full) = (self.room, false);
            self.call.poll_transmit(self.now_ns, true, &mut self.tray);
            if !self.tray.is_full {
                return;
            }
        }
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        while let Some(due_ns) = self
            .call
            .next_timeout()
            .filter(|due_ns| *due_ns <= until_ns)
        {
            self.now_ns = self.now_ns.max(due_ns);
            self.poll();
        }
        self.now_ns = until_ns;
    }

    /// Returns the datagrams that were staged for a port since the last call.
    pub(crate) fn take(&mut self, port: PortId) -> Vec<Staged> {
        let (taken, rest) = std::mem::take(&mut self.tray.staged)
            .into_iter()
            .partition(|staged| staged.port == port);
        self.tray.staged = rest;
        taken
    }
}
