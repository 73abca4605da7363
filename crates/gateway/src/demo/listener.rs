//! Receives the gateway's packets: many streams per socket, many packets per system call.

use std::io::{Error, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, getsockopt, recvmmsg, setsockopt,
    sockopt,
};

use super::now_ns;

/// Streams that share a listener's socket.
///
/// Few, because a socket's buffer may be small: the usual limit of 208 KiB holds about 500 packets, which is 100 ms of
/// this many streams.
pub(super) const STREAMS_PER_LISTENER: usize = 100;

/// All sockets of the listeners.
pub(super) struct Listeners {
    sockets: Vec<UdpSocket>,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Vec<[u8; PACKET_BYTES_MAX]>,
    buffer_bytes_least: usize,
}

impl Listeners {
    /// Binds enough sockets for this many streams, to free ports of 127.0.0.1.
    pub(super) fn bind(streams: usize) -> Result<Listeners, Error> {
        let mut listeners = Listeners {
            sockets: Vec::new(),
            headers: MultiHeaders::preallocate(
                BATCH_PACKETS,
                Some(nix::cmsg_space!(nix::sys::time::TimeSpec)),
            ),
            buffers: vec![[0; PACKET_BYTES_MAX]; BATCH_PACKETS],
            buffer_bytes_least: usize::MAX,
        };
        for _ in 0..streams.div_ceil(STREAMS_PER_LISTENER) {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            // With the privilege, the limit does not apply.
            if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
                setsockopt(&socket, sockopt::RcvBuf, &BUFFER_BYTES)?;
            }
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
            // The kernel doubles the requested size, and returns the double.
            let granted = getsockopt(&socket, sockopt::RcvBuf)? / 2;
            listeners.buffer_bytes_least = listeners.buffer_bytes_least.min(granted);
            listeners.sockets.push(socket);
        }
        Ok(listeners)
    }

    /// The ports, in the order of the streams.
    pub(super) fn ports(&self) -> Result<Vec<u16>, Error> {
        self.sockets
            .iter()
            .map(|socket| Ok(socket.local_addr()?.port()))
            .collect()
    }

    /// A note for the user about the sockets' buffers.
    pub(super) fn notes(&self) -> Vec<String> {
        let granted = self.buffer_bytes_least;
        if granted >= BUFFER_BYTES {
            return Vec::new();
        }
        vec![format!(
            "The listeners' socket buffers are {} KiB instead of {} KiB, because the kernel allows no more \
             (net.core.rmem_max). A busy machine may then lose packets that the gateway did send. \
             To allow it: sudo sysctl -w net.core.rmem_max={BUFFER_BYTES}",
            granted / 1024,
            BUFFER_BYTES / 1024,
        )]
    }

    /// Passes every received packet to `take`, with its arrival time (nanoseconds since the epoch).
    pub(super) fn drain(&mut self, mut take: impl FnMut(&[u8], u64)) -> Result<(), Error> {
        let Listeners {
            sockets,
            headers,
            buffers,
            ..
        } = self;
        for socket in sockets {
            // Bounded, so that one socket cannot delay the callers' schedule.
            for _ in 0..BATCHES_PER_DRAIN {
                let received = receive_batch(socket, headers, buffers, &mut take)?;
                if received < BATCH_PACKETS {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn receive_batch(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrIn>,
    buffers: &mut [[u8; PACKET_BYTES_MAX]],
    take: &mut impl FnMut(&[u8], u64),
) -> Result<usize, Error> {
    let mut slices = buffers
        .iter_mut()
        .map(|buffer| [IoSliceMut::new(buffer)])
        .collect::<Vec<_>>();
    let messages = match recvmmsg(
        socket.as_raw_fd(),
        headers,
        slices.iter_mut(),
        MsgFlags::MSG_DONTWAIT,
        None,
    ) {
        Ok(messages) => messages,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut received = 0;
    for message in messages {
        received += 1;
        let arrival_ns = message.cmsgs().ok().and_then(|mut all| {
            all.find_map(|one| match one {
                ControlMessageOwned::ScmTimestampns(at) => {
                    Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
                }
                _ => None,
            })
        });
        let packet = message.iovs().next().unwrap_or_default();
        take(packet, arrival_ns.unwrap_or_else(now_ns));
    }
    Ok(received)
}

/// Packets per system call.
const BATCH_PACKETS: usize = 64;
/// Per socket; far more than arrives between two drains.
const BATCHES_PER_DRAIN: usize = 8;
/// Ours have 172 bytes; longer packets are not ours and may be truncated.
const PACKET_BYTES_MAX: usize = 256;
/// Holds about a second of [`STREAMS_PER_LISTENER`] streams, in the kernel's count of 832 bytes a packet.
const BUFFER_BYTES: usize = 4 << 20;
