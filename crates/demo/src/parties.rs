//! The parties' sockets. Many parties share a socket, and a system call handles many packets. A party sends and receives on the
//! same socket.

use std::io::{Error, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, getsockopt, recvmmsg, setsockopt,
    sockopt,
};

use super::now_ns;

/// Number of parties that share a socket. Both parties of a call use the same socket.
///
/// The number is low, because a socket's buffer may be small. With the default limit of 208 KiB, a buffer holds about 500 packets. This
/// number of parties sends as many packets in 100 ms.
pub(super) const PARTIES_PER_SOCKET: usize = 100;

/// Returns the number of parties, which is two for each call. If the number of streams is odd, the last party only receives.
pub(super) fn parties_of(streams: usize) -> usize {
    streams.next_multiple_of(2)
}

/// Returns the other party of a party's call. Party n sends stream n and receives the stream of the other party.
pub(super) fn other_party(party: usize) -> usize {
    party ^ 1
}

/// All sockets of the parties.
pub(super) struct Parties {
    sockets: Vec<UdpSocket>,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Vec<[u8; PACKET_BYTES_MAX]>,
    buffer_bytes_least: usize,
}

impl Parties {
    /// Binds enough sockets for this many parties. They get free ports of 127.0.0.1.
    pub(super) fn bind(parties_count: usize) -> Result<Parties, Error> {
        let mut parties = Parties {
            sockets: Vec::new(),
            headers: MultiHeaders::preallocate(
                BATCH_PACKETS,
                Some(nix::cmsg_space!(nix::sys::time::TimeSpec)),
            ),
            buffers: vec![[0; PACKET_BYTES_MAX]; BATCH_PACKETS],
            buffer_bytes_least: usize::MAX,
        };
        for _ in 0..parties_count.div_ceil(PARTIES_PER_SOCKET) {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            // This option is tried first, because it has no limit if the process is privileged.
            if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
                setsockopt(&socket, sockopt::RcvBuf, &BUFFER_BYTES)?;
            }
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
            // The kernel doubles the requested size, and returns the doubled value.
            let granted = getsockopt(&socket, sockopt::RcvBuf)? / 2;
            parties.buffer_bytes_least = parties.buffer_bytes_least.min(granted);
            parties.sockets.push(socket);
        }
        Ok(parties)
    }

    /// Returns the ports of the sockets, in the order of the parties.
    pub(super) fn ports(&self) -> Result<Vec<u16>, Error> {
        self.sockets
            .iter()
            .map(|socket| Ok(socket.local_addr()?.port()))
            .collect()
    }

    /// Returns clones of the sockets, for sending.
    pub(super) fn sockets(&self) -> Result<Vec<UdpSocket>, Error> {
        self.sockets.iter().map(UdpSocket::try_clone).collect()
    }

    /// Returns a note for the user about the sockets' buffers, if there is one.
    pub(super) fn notes(&self) -> Vec<String> {
        let granted = self.buffer_bytes_least;
        if granted >= BUFFER_BYTES {
            return Vec::new();
        }
        vec![format!(
            "The parties' socket buffers are {} KiB instead of {} KiB, because the kernel allows no more \
             (net.core.rmem_max). If the machine is busy, it may then lose packets that the gateway has sent. To allow larger buffers: sudo sysctl -w net.core.rmem_max={BUFFER_BYTES}",
            granted / 1024,
            BUFFER_BYTES / 1024,
        )]
    }

    /// Passes each received packet to `take`, with its source port and its arrival time in nanoseconds since the epoch.
    pub(super) fn drain(&mut self, mut take: impl FnMut(&[u8], u16, u64)) -> Result<(), Error> {
        let Parties {
            sockets,
            headers,
            buffers,
            ..
        } = self;
        for socket in sockets {
            // The number of batches is limited, so that one socket cannot delay the schedule.
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
    take: &mut impl FnMut(&[u8], u16, u64),
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
        let from = message.address.map_or(0, |from| from.port());
        take(packet, from, arrival_ns.unwrap_or_else(now_ns));
    }
    Ok(received)
}

/// Maximum number of packets per system call.
const BATCH_PACKETS: usize = 64;
/// Maximum number of batches per socket and drain. Far fewer packets arrive between two drains.
const BATCHES_PER_DRAIN: usize = 8;
/// Size of the buffer for a packet. The gateway's audio packets have 172 bytes. Longer packets are not expected, and may be truncated.
const PACKET_BYTES_MAX: usize = 256;
/// Size of a socket's buffer. It holds the packets of [`PARTIES_PER_SOCKET`] parties for about a second. The kernel counts 832 bytes for
/// each packet.
const BUFFER_BYTES: usize = 4 << 20;
