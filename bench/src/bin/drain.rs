//! Receives the packets that the measured process forwards. This program prints its first port and the number of its ports. Then it counts
//! packets until its standard input is closed, and prints their number.

use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use threadbare_bench::PACKET_BYTES;
use threadbare_bench::ports;

/// Number of sockets. Several of them share the load, because the kernel limits the queue of each socket.
const SOCKETS: u16 = 16;
/// Pause between two reads of all sockets. With thousands of streams at 50 packets/s on 16 sockets, each socket receives some tens of
/// packets in this time.
const PASS_INTERVAL: Duration = Duration::from_millis(3);
const BATCH: usize = 64;

fn main() -> Result<()> {
    let base = ports::free_range(SOCKETS)?;
    let sockets: Vec<UdpSocket> = (base..base + SOCKETS).map(open).collect::<Result<_>>()?;
    println!("{{\"port\": {base}, \"ports\": {SOCKETS}}}");
    let (count, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for socket in &sockets {
                    count.fetch_add(take_all(socket), Ordering::Relaxed);
                }
                std::thread::sleep(PASS_INTERVAL);
            }
        });
        // Waits until the driver closes its end of the pipe.
        let waited = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Relaxed);
        waited
    })?;
    let rest: u64 = sockets.iter().map(take_all).sum();
    println!("{{\"drained\": {}}}", count.into_inner() + rest);
    Ok(())
}

fn open(port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nonblocking(true)?;
    ports::enlarge_buffer(&socket);
    if socket.local_addr()?.port() != port {
        bail!("another program has taken port {port}");
    }
    Ok(socket)
}

/// Whether a packet is RTCP, which arrives on the same port as RTP (RFC 5761, section 4).
fn is_rtcp(packet: &[u8; PACKET_BYTES]) -> bool {
    (192..=223).contains(&packet[1])
}

fn take_all(socket: &UdpSocket) -> u64 {
    let mut space = [[0u8; PACKET_BYTES]; BATCH];
    let mut pieces = space.each_mut().map(|packet| libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: PACKET_BYTES,
    });
    let mut headers = pieces.each_mut().map(|piece| {
        // SAFETY: all zeros are a valid header: no name, no pieces, no control data.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_iov = piece;
        header.msg_hdr.msg_iovlen = 1;
        header
    });
    let mut taken = 0;
    loop {
        // SAFETY: there are BATCH headers. Each header has one piece of PACKET_BYTES bytes, which outlives the call.
        let got = unsafe {
            let no_timeout = std::ptr::null_mut();
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as u32,
                0,
                no_timeout,
            )
        };
        let got_packets = &space[..got.max(0) as usize];
        taken += got_packets.iter().filter(|packet| !is_rtcp(packet)).count() as u64;
        if got < BATCH as libc::c_int {
            return taken;
        }
    }
}
