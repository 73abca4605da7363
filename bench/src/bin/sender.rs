//! Sends N streams of RTP to N consecutive ports of the loopback interface. Each stream has one packet every 20 ms. The streams are spread
//! evenly over the 20 ms, and one system call sends the packets of many streams. The program prints the number of sent packets.

use std::io::Error;
use std::mem::size_of;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use threadbare_bench::session::Finished;
use threadbare_bench::{PACKET_BYTES, PACKETS_PER_SECOND, rtp};

/// Sends RTP streams over loopback.
#[derive(Parser)]
struct Options {
    /// Number of streams.
    #[arg(long)]
    streams: u16,
    /// Port of the first stream. The other streams use the ports after it.
    #[arg(long)]
    port: u16,
    /// Sends all streams to the first port.
    #[arg(long)]
    one_port: bool,
    /// Packets per second to the first stream. These packets are not counted.
    #[arg(long, default_value_t = 0)]
    flood: u32,
    /// Packets per second to a socket of this process, which drops them. The first stream gets no packets.
    #[arg(long, default_value_t = 0, conflicts_with = "flood")]
    flood_nobody: u32,
    /// Seconds during which packets are sent.
    #[arg(long)]
    seconds: f64,
}

/// Number of bursts within 20 ms. Each stream sends its packet in one of them.
const BURSTS: usize = 20;

/// Memory that the kernel reads while it sends. The headers contain pointers into the vectors. The vectors do not grow after that, so the
/// pointers stay valid.
struct Batch {
    packets: Vec<[u8; PACKET_BYTES]>,
    _addresses: Vec<libc::sockaddr_in>,
    _pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Batch {
    fn new(streams: u16, port: u16, one_port: bool) -> Batch {
        let mut packets: Vec<_> = (0..u32::from(streams)).map(rtp::first_packet).collect();
        let mut addresses: Vec<_> = (0..streams)
            .map(|stream| loopback(if one_port { port } else { port + stream }))
            .collect();
        let mut pieces: Vec<_> = packets
            .iter_mut()
            .map(|packet| libc::iovec {
                iov_base: packet.as_mut_ptr().cast(),
                iov_len: PACKET_BYTES,
            })
            .collect();
        let headers = addresses
            .iter_mut()
            .zip(&mut pieces)
            .map(|(address, piece)| {
                // SAFETY: all zeros are a valid header: no name, no pieces, no control data.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_name = (address as *mut libc::sockaddr_in).cast();
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
                header.msg_hdr.msg_iov = piece;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Batch {
            packets,
            _addresses: addresses,
            _pieces: pieces,
            headers,
        }
    }

    /// Sends the packets with these numbers. Returns how many of them the kernel accepted.
    fn send(&mut self, socket: &UdpSocket, from: usize, to: usize) -> u64 {
        let mut next = from;
        while next < to {
            let rest = &mut self.headers[next..to];
            // SAFETY: `rest` is valid for its length, and each header points to an address and a packet that this batch owns.
            let taken = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0)
            };
            if taken <= 0 {
                eprintln!("sender: {}", Error::last_os_error());
                break;
            }
            next += taken as usize;
        }
        (next - from) as u64
    }
}

/// Sends `per_second` packets a second to `port` until the process ends. Each millisecond has one burst.
fn start_flood(port: u16, per_second: u32) -> Result<()> {
    let burst = (per_second / 1000).clamp(1, u32::from(u16::MAX)) as u16;
    let pause = Duration::from_secs_f64(f64::from(burst) / f64::from(per_second));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    std::thread::Builder::new()
        .name("flood".into())
        .spawn(move || {
            let mut batch = Batch::new(burst, port, true);
            let start = Instant::now();
            for number in 0.. {
                std::thread::sleep(
                    (start + pause * number).saturating_duration_since(Instant::now()),
                );
                batch.send(&socket, 0, usize::from(burst));
            }
        })?;
    Ok(())
}

fn loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
        },
        sin_zero: [0; 8],
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let streams = usize::from(options.streams);
    if options.port.checked_add(options.streams).is_none() {
        bail!(
            "cannot use {streams} ports from port {} on: the last one would exceed 65535",
            options.port
        );
    }
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut batch = Batch::new(options.streams, options.port, options.one_port);
    let interval = Duration::from_micros(1_000_000 / PACKETS_PER_SECOND);
    let rounds = (options.seconds * PACKETS_PER_SECOND as f64) as u32;
    let flooded = usize::from(options.flood + options.flood_nobody > 0);
    let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    if options.flood > 0 {
        start_flood(options.port, options.flood)?;
    } else if options.flood_nobody > 0 {
        start_flood(nobody.local_addr()?.port(), options.flood_nobody)?;
    }
    let start = Instant::now();
    let (mut sent, mut late_max) = (0, Duration::ZERO);
    for number in 0..rounds {
        for packet in &mut batch.packets {
            rtp::set_number(packet, number);
        }
        for burst in 0..BURSTS {
            let due = start + interval * number + interval * burst as u32 / BURSTS as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            late_max = late_max.max(due.elapsed());
            let (from, to) = (streams * burst / BURSTS, streams * (burst + 1) / BURSTS);
            let from = from.max(flooded);
            sent += batch.send(&socket, from, to);
        }
    }
    let late_ms_max = late_max.as_secs_f64() * 1e3;
    println!(
        "{}",
        serde_json::to_string(&Finished { sent, late_ms_max })?
    );
    Ok(())
}
