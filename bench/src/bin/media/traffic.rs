//! The two ends of the streams: a sender and a drain. Each of them is a thread of the measured process.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use threadbare_bench::{PACKET_BYTES, PACKETS_PER_SECOND, rtp};
use threadbare_runtime::{RECV_BATCH, RawAddr, RecvBatch, SEND_BATCH_MAX, SendBatch};

/// Receives the forwarded packets.
pub(super) struct Drain {
    addresses: Vec<SocketAddr>,
    drained: Arc<AtomicU64>,
}

impl Drain {
    pub(super) fn start() -> Result<Drain> {
        let sockets = (0..SINKS).map(|_| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            threadbare_bench::ports::enlarge_buffer(&socket);
            Ok(socket)
        });
        let sockets = sockets.collect::<std::io::Result<Vec<_>>>()?;
        let addresses = sockets.iter().map(UdpSocket::local_addr);
        let addresses = addresses.collect::<std::io::Result<_>>()?;
        let drained = Arc::<AtomicU64>::default();
        let of_thread = drained.clone();
        std::thread::Builder::new()
            .name("drain".into())
            .spawn(move || {
                let mut batch = RecvBatch::new(RECV_BATCH);
                loop {
                    for socket in &sockets {
                        of_thread.fetch_add(take_all(socket, &mut batch), Relaxed);
                    }
                    std::thread::sleep(DRAIN_INTERVAL);
                }
            })?;
        Ok(Drain { addresses, drained })
    }

    /// Returns the destination of a stream's packets.
    pub(super) fn address(&self, stream: u32) -> SocketAddr {
        self.addresses[stream as usize % self.addresses.len()]
    }

    /// Returns the number of media packets that have arrived so far.
    pub(super) fn drained(&self) -> u64 {
        self.drained.load(Relaxed)
    }
}

fn take_all(socket: &UdpSocket, batch: &mut RecvBatch) -> u64 {
    let mut space = [[0_u8; ROOM_BYTES]; RECV_BATCH];
    let mut taken = 0;
    loop {
        let mut pieces = space.each_mut().map(|packet| IoSliceMut::new(packet));
        let got = batch.recv(socket.as_fd(), &mut pieces).unwrap_or(0);
        let media = space[..got].iter().filter(|packet| !is_rtcp(&packet[..]));
        taken += media.count() as u64;
        if got < RECV_BATCH {
            return taken;
        }
    }
}

/// Whether a packet is RTCP, which arrives on the same port as RTP (RFC 5761, section 4).
fn is_rtcp(packet: &[u8]) -> bool {
    (192..=223).contains(&packet[1])
}

/// Sends a stream and its reports to each port. The streams are spread evenly over 20 ms.
pub(super) struct Sender {
    thread: JoinHandle<Result<()>>,
    sent: Arc<AtomicU64>,
}

impl Sender {
    /// Starts the sender. With `is_call`, streams with odd numbers are PCMA.
    pub(super) fn start(
        ports: Vec<SocketAddr>,
        is_call: bool,
        duration: Duration,
    ) -> Result<Sender> {
        let sent = Arc::<AtomicU64>::default();
        let of_thread = sent.clone();
        let thread = std::thread::Builder::new()
            .name("sender".into())
            .spawn(move || send(&ports, is_call, duration, &of_thread))?;
        Ok(Sender { thread, sent })
    }

    /// Returns the number of media packets that have been sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    pub(super) fn join(self) -> Result<u64> {
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the sender has panicked"))??;
        Ok(self.sent.load(Relaxed))
    }
}

fn send(ports: &[SocketAddr], is_call: bool, duration: Duration, sent: &AtomicU64) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addresses: Vec<RawAddr> = ports.iter().map(|port| RawAddr::from(*port)).collect();
    let mut packets: Vec<_> = (0..ports.len() as u32).map(rtp::first_packet).collect();
    if is_call {
        packets
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|packet| packet[1] = PCMA);
    }
    let interval = Duration::from_micros(1_000_000 / PACKETS_PER_SECOND);
    let numbers = (duration.as_secs_f64() * PACKETS_PER_SECOND as f64) as u32;
    let begin = Instant::now();
    for number in 0..numbers {
        for packet in &mut packets {
            rtp::set_number(packet, number);
        }
        for burst in 0..BURSTS {
            let due = begin + interval * number + interval * burst as u32 / BURSTS as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let range = ports.len() * burst / BURSTS..ports.len() * (burst + 1) / BURSTS;
            let (packets, addresses) = (&packets[range.clone()], &addresses[range.clone()]);
            for (packets, addresses) in packets
                .chunks(SEND_BATCH_MAX)
                .zip(addresses.chunks(SEND_BATCH_MAX))
            {
                sent.fetch_add(send_all(&socket, packets, addresses)?, Relaxed);
            }
            let reporting: Vec<usize> = range
                .filter(|stream| (number as usize + stream) % REPORT_EACH == REPORT_EACH - 1)
                .collect();
            for stream in reporting {
                let report = rtp::report(stream as u32, number);
                // Errors are ignored, because only media packets count.
                let _ = socket.send_to(&report, ports[stream]);
            }
        }
    }
    Ok(())
}

fn send_all(
    socket: &UdpSocket,
    packets: &[[u8; PACKET_BYTES]],
    addresses: &[RawAddr],
) -> Result<u64> {
    let pieces: Vec<_> = packets
        .iter()
        .map(|packet| [IoSlice::new(packet)])
        .collect();
    let mut batch = SendBatch::default();
    for (piece, address) in pieces.iter().zip(addresses) {
        ensure!(batch.push(piece, address), "the batch is full");
    }
    let mut sent = 0;
    while !batch.is_empty() {
        sent += batch.send(socket.as_fd())? as u64;
    }
    Ok(sent)
}

const PCMA: u8 = 8;
/// Number of bursts within 20 ms. Each stream sends its packet in one of them.
const BURSTS: usize = 20;
/// Number of packets between two reports. They take 5 s (RFC 3550, section 6.2).
const REPORT_EACH: usize = 250;
/// Number of receiving sockets. Several of them share the load, because the kernel limits the queue of each socket.
const SINKS: u16 = 16;
const DRAIN_INTERVAL: Duration = Duration::from_millis(3);
/// Size of the buffer for a received packet. An Opus packet may be longer than a G.711 packet.
const ROOM_BYTES: usize = 512;
