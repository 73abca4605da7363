//! Sends RTP for many streams on schedule. A few sockets send all streams.

use std::io::{Error, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rtp_types::RtpPacketBuilder;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketAddrV4};

use super::tone::{PACKET_SAMPLES, Payload};

/// The send times of the streams. Each stream sends every 20 ms, and the streams are spread evenly over the 20 ms. The present time is a
/// parameter, so that a test can choose it.
#[derive(Clone, Debug)]
pub struct Schedule {
    streams: usize,
    ticks_end: u64,
    tick: u64,
}

/// Streams that must send their next packet now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Milliseconds since the start.
    pub tick: u64,
    /// The number of the packet, which is the same for each of these streams.
    pub packet: u32,
    /// Numbers of the streams.
    pub streams: std::ops::Range<usize>,
}

impl Schedule {
    /// Creates a schedule for this number of streams, which send for this number of seconds.
    pub fn new(streams: usize, seconds: u32) -> Schedule {
        Schedule {
            streams,
            ticks_end: u64::from(seconds) * 1000,
            tick: 0,
        }
    }

    /// Returns the next batch that is due at `elapsed` after the start. Call this until it returns `None`.
    pub fn poll(&mut self, elapsed: Duration) -> Option<Due> {
        if self.is_over() || elapsed < Duration::from_millis(self.tick) {
            return None;
        }
        let tick = self.tick;
        let (packet, slot) = (tick / SLOTS, (tick % SLOTS) as usize);
        self.tick += 1;
        let edge = |slot: usize| slot * self.streams / SLOTS as usize;
        Some(Due {
            tick,
            packet: packet as u32,
            streams: edge(slot)..edge(slot + 1),
        })
    }

    /// Whether all packets have become due.
    pub fn is_over(&self) -> bool {
        self.tick >= self.ticks_end
    }

    /// Returns the time at which to call [`Schedule::poll`] again, counted from the start.
    pub fn next_timeout(&self) -> Duration {
        Duration::from_millis(self.tick)
    }
}

/// Sends packets of many streams in batches. One system call sends a batch.
#[derive(Debug)]
pub struct Caller {
    /// The sockets. Each of them serves a number of consecutive streams.
    sockets: Vec<UdpSocket>,
    streams_per_socket: usize,
    payload_type: fn(usize) -> u8,
    targets: Vec<SocketAddrAny>,
    /// Memory for the packets of one batch.
    packets: Vec<Packet>,
    batch_targets: Vec<SocketAddrAny>,
}

/// An RTP header without CSRCs and extensions, and a payload.
type Packet = [u8; HEADER_BYTES + PACKET_SAMPLES];

impl Caller {
    /// Creates a caller that sends all streams from one socket, in PCMU. Stream n goes to 127.0.0.1, port `first_port` + n * `step`.
    pub fn new(streams: usize, first_port: u16, step: u16) -> Result<Caller, Error> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let sockets = vec![socket];
        Ok(Caller::from_sockets(
            sockets,
            streams.max(1),
            streams,
            first_port,
            step,
            |_| PCMU,
        ))
    }

    /// Creates a caller that sends from these sockets. Each socket serves a number of consecutive streams. Each stream has its own payload
    /// type.
    pub(super) fn from_sockets(
        sockets: Vec<UdpSocket>,
        streams_per_socket: usize,
        streams: usize,
        first_port: u16,
        step: u16,
        payload_type: fn(usize) -> u8,
    ) -> Caller {
        let targets = (0..streams)
            .map(|stream| {
                let port = first_port + stream as u16 * step;
                SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).as_any()
            })
            .collect();
        Caller {
            sockets,
            streams_per_socket,
            payload_type,
            targets,
            packets: vec![[0; HEADER_BYTES + PACKET_SAMPLES]; BATCH_PACKETS],
            batch_targets: Vec::with_capacity(BATCH_PACKETS),
        }
    }

    /// Sends the due packets. `payload` returns the next payload of a stream.
    pub fn send(
        &mut self,
        due: &Due,
        mut payload: impl FnMut(usize) -> Payload,
    ) -> Result<(), Error> {
        let packets = due.streams.clone().map(|stream| (stream, due.packet));
        self.send_each(packets, |stream, _| payload(stream))
    }

    /// Sends packets. Each is given by its stream and its number. `payload` returns the contents of a packet.
    pub fn send_each(
        &mut self,
        packets: impl IntoIterator<Item = (usize, u32)>,
        mut payload: impl FnMut(usize, u32) -> Payload,
    ) -> Result<(), Error> {
        let mut packets = packets.into_iter().peekable();
        while let Some((first, _)) = packets.peek() {
            let socket = first / self.streams_per_socket;
            self.batch_targets.clear();
            let same = |(stream, _): &(usize, u32)| stream / self.streams_per_socket == socket;
            for packet in &mut self.packets {
                let Some((stream, number)) = packets.next_if(same) else {
                    break;
                };
                let payload_type = (self.payload_type)(stream);
                let payload = payload(stream, number);
                write_packet(packet, stream, number, payload_type, &payload)?;
                self.batch_targets.push(self.targets[stream].clone());
            }
            let targets = &self.batch_targets;
            send_batch(
                &self.sockets[socket],
                targets,
                &self.packets[..targets.len()],
            )?;
        }
        Ok(())
    }

    /// Sends a packet that is not RTP, such as RTCP, from the socket of a stream.
    pub(super) fn send_other(&self, stream: usize, bytes: &[u8], port: u16) {
        // Errors are ignored. The call may return the ICMP answer to an earlier packet. A packet that is not sent does no harm, because the
        // next one follows soon.
        let socket = &self.sockets[stream / self.streams_per_socket];
        let _ = socket.send_to(bytes, (Ipv4Addr::LOCALHOST, port));
    }
}

fn send_batch(
    socket: &UdpSocket,
    targets: &[SocketAddrAny],
    packets: &[Packet],
) -> Result<(), Error> {
    let slices = packets
        .iter()
        .map(|packet| [IoSlice::new(packet)])
        .collect::<Vec<_>>();
    let mut controls = packets
        .iter()
        .map(|_| SendAncillaryBuffer::default())
        .collect::<Vec<_>>();
    let mut messages = targets
        .iter()
        .zip(&slices)
        .zip(&mut controls)
        .map(|((target, slice), control)| MMsgHdr::new_with_addr(target, slice, control))
        .collect::<Vec<_>>();
    let mut unsent = &mut messages[..];
    while !unsent.is_empty() {
        match rustix::net::sendmmsg(socket, unsent, SendFlags::empty()) {
            Ok(sent) => unsent = &mut unsent[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns the sequence number of a packet. Sequence numbers start just below their maximum, so that they wrap around even in a short run.
pub(super) fn sequence_number(stream: usize, number: u32) -> u16 {
    let first = u16::MAX - (stream % 32) as u16;
    first.wrapping_add(number as u16)
}

/// Returns the timestamp of a packet. Timestamps also start just below their maximum.
pub(super) fn timestamp(number: u32) -> u32 {
    let first = u32::MAX - 1000;
    first.wrapping_add(number.wrapping_mul(PACKET_SAMPLES as u32))
}

/// Returns the SSRC with which a stream is sent.
pub(super) fn ssrc(stream: usize) -> u32 {
    CALLER_SSRC.wrapping_add(stream as u32)
}

fn write_packet(
    packet: &mut Packet,
    stream: usize,
    number: u32,
    payload_type: u8,
    payload: &Payload,
) -> Result<(), Error> {
    RtpPacketBuilder::<&[u8], &[u8]>::new()
        .payload_type(payload_type)
        .marker_bit(number == 0)
        .sequence_number(sequence_number(stream, number))
        .timestamp(timestamp(number))
        .ssrc(ssrc(stream))
        .payload(&payload[..])
        .write_into(packet)
        .map_err(|error| Error::other(format!("cannot write an RTP packet: {error:?}")))?;
    Ok(())
}

/// The 20 ms of a packet, in ticks of 1 ms.
const SLOTS: u64 = 20;
/// Length of the RTP header (RFC 3550, section 5.1).
const HEADER_BYTES: usize = 12;
/// Static payload type of PCMU (RFC 3551).
pub(super) const PCMU: u8 = 0;
/// SSRC of the first stream. The value has no meaning.
const CALLER_SSRC: u32 = 0x0ca1_0000;
/// Maximum number of packets per system call. The packets of a batch have the same send time.
const BATCH_PACKETS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_sends_each_20_ms() {
        for streams in [1, 7, 20, 1000] {
            let mut schedule = Schedule::new(streams, 2);
            let mut next_packet = vec![0; streams];
            let mut elapsed = Duration::ZERO;
            while !schedule.is_over() {
                while let Some(due) = schedule.poll(elapsed) {
                    for stream in due.streams {
                        assert_eq!(next_packet[stream], due.packet);
                        next_packet[stream] += 1;
                    }
                }
                assert!(schedule.next_timeout() > elapsed);
                elapsed = schedule.next_timeout();
            }
            assert_eq!(next_packet, vec![100; streams]);
        }
    }

    #[test]
    fn a_late_caller_catches_up() {
        let mut schedule = Schedule::new(40, 1);
        let due =
            std::iter::from_fn(|| schedule.poll(Duration::from_millis(25))).collect::<Vec<_>>();
        assert_eq!(due.len(), 26);
        assert_eq!(
            due[25],
            Due {
                tick: 25,
                packet: 1,
                streams: 10..12
            }
        );
    }

    #[test]
    fn sent_packets_are_valid_rtp() {
        let mut packet = [0; HEADER_BYTES + PACKET_SAMPLES];
        write_packet(&mut packet, 5, 40, PCMU, &[7; PACKET_SAMPLES]).expect("fits");
        let parsed = rtp_types::RtpPacket::parse(&packet).expect("RTP");
        assert_eq!((parsed.payload_type(), parsed.ssrc()), (0, CALLER_SSRC + 5));
        assert_eq!(parsed.sequence_number(), (u16::MAX - 5).wrapping_add(40));
        assert_eq!(parsed.payload(), [7; PACKET_SAMPLES]);
    }
}
