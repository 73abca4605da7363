//! Sends RTP for many streams on schedule, from one socket.

use std::io::{Error, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rtp_types::RtpPacketBuilder;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketAddrV4};

use super::tone::{PACKET_SAMPLES, Payload};

/// When which stream sends: every stream each 20 ms, the streams spread evenly over these.
///
/// Time is given from outside, so that this is the same for tests and for real.
#[derive(Clone, Debug)]
pub struct Schedule {
    streams: usize,
    ticks_end: u64,
    tick: u64,
}

/// Streams that send their next packet now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which packet of theirs it is.
    pub packet: u32,
    /// Which streams.
    pub streams: std::ops::Range<usize>,
}

impl Schedule {
    /// Each of so many streams sends for so many seconds.
    pub fn new(streams: usize, seconds: u32) -> Schedule {
        Schedule {
            streams,
            ticks_end: u64::from(seconds) * 1000,
            tick: 0,
        }
    }

    /// The next that is due `elapsed` after the start; call until `None`.
    pub fn poll(&mut self, elapsed: Duration) -> Option<Due> {
        if self.is_over() || elapsed < Duration::from_millis(self.tick) {
            return None;
        }
        let (packet, slot) = (self.tick / SLOTS, (self.tick % SLOTS) as usize);
        self.tick += 1;
        let edge = |slot: usize| slot * self.streams / SLOTS as usize;
        Some(Due {
            packet: packet as u32,
            streams: edge(slot)..edge(slot + 1),
        })
    }

    /// Whether everything was due already.
    pub fn is_over(&self) -> bool {
        self.tick >= self.ticks_end
    }

    /// When [`Schedule::poll`] is to be asked again, counted from the start.
    pub fn next_timeout(&self) -> Duration {
        Duration::from_millis(self.tick)
    }
}

/// Sends packets of many streams, in batches of one system call.
#[derive(Debug)]
pub struct Caller {
    socket: UdpSocket,
    targets: Vec<SocketAddrAny>,
    /// Room for one batch.
    packets: Vec<Packet>,
}

/// An RTP header without CSRCs and extensions, and a payload.
type Packet = [u8; HEADER_BYTES + PACKET_SAMPLES];

impl Caller {
    /// Sends stream n to 127.0.0.1, port `first_port` + n.
    pub fn new(streams: usize, first_port: u16) -> Result<Caller, Error> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let targets = (0..streams)
            .map(|stream| {
                SocketAddrV4::new(Ipv4Addr::LOCALHOST, first_port + stream as u16).as_any()
            })
            .collect();
        Ok(Caller {
            socket,
            targets,
            packets: vec![[0; HEADER_BYTES + PACKET_SAMPLES]; BATCH_PACKETS],
        })
    }

    /// Sends what is due; `payload` gives the next payload of a stream.
    pub fn send(
        &mut self,
        due: &Due,
        mut payload: impl FnMut(usize) -> Payload,
    ) -> Result<(), Error> {
        let mut streams = due.streams.clone();
        while !streams.is_empty() {
            let batch = streams.start..streams.end.min(streams.start + BATCH_PACKETS);
            streams.start = batch.end;
            for (stream, packet) in batch.clone().zip(&mut self.packets) {
                write_packet(packet, stream, due.packet, &payload(stream))?;
            }
            self.send_batch(&self.targets[batch.clone()], &self.packets[..batch.len()])?;
        }
        Ok(())
    }

    fn send_batch(&self, targets: &[SocketAddrAny], packets: &[Packet]) -> Result<(), Error> {
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
            match rustix::net::sendmmsg(&self.socket, unsent, SendFlags::empty()) {
                Ok(sent) => unsent = &mut unsent[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Sequence numbers and timestamps start just below their ends, so that even a short run wraps.
fn write_packet(
    packet: &mut Packet,
    stream: usize,
    number: u32,
    payload: &Payload,
) -> Result<(), Error> {
    let first_sequence = u16::MAX - (stream % 32) as u16;
    let first_timestamp = u32::MAX - 1000;
    RtpPacketBuilder::<&[u8], &[u8]>::new()
        .payload_type(PCMU)
        .marker_bit(number == 0)
        .sequence_number(first_sequence.wrapping_add(number as u16))
        .timestamp(first_timestamp.wrapping_add(number.wrapping_mul(PACKET_SAMPLES as u32)))
        .ssrc(CALLER_SSRC.wrapping_add(stream as u32))
        .payload(&payload[..])
        .write_into(packet)
        .map_err(|error| Error::other(format!("cannot write an RTP packet: {error:?}")))?;
    Ok(())
}

/// The 20 ms of a packet, in ticks of 1 ms.
const SLOTS: u64 = 20;
/// RFC 3550, section 5.1.
const HEADER_BYTES: usize = 12;
/// Static payload type of PCMU (RFC 3551).
const PCMU: u8 = 0;
/// SSRC of the first caller; any number would do.
const CALLER_SSRC: u32 = 0x0ca1_0000;
/// Packets per system call; also how many share a send time stamp.
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
                packet: 1,
                streams: 10..12
            }
        );
    }

    #[test]
    fn packets_are_rtp() {
        let mut packet = [0; HEADER_BYTES + PACKET_SAMPLES];
        write_packet(&mut packet, 5, 40, &[7; PACKET_SAMPLES]).expect("fits");
        let parsed = rtp_types::RtpPacket::parse(&packet).expect("RTP");
        assert_eq!((parsed.payload_type(), parsed.ssrc()), (0, CALLER_SSRC + 5));
        assert_eq!(parsed.sequence_number(), (u16::MAX - 5).wrapping_add(40));
        assert_eq!(parsed.payload(), [7; PACKET_SAMPLES]);
    }
}
