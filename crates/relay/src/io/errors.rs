//! Errors of sockets: ICMP messages are news of one destination, never the end of a port.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};

use crate::stats::Counters;

/// Whether this may be the answer to an earlier datagram of the socket, which a call returns instead of doing its work:
/// the next one does.
pub(super) fn is_of_earlier(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(
            Errno::ECONNREFUSED
                | Errno::EHOSTUNREACH
                | Errno::ENETUNREACH
                | Errno::EHOSTDOWN
                | Errno::ENOPROTOOPT
                | Errno::EPROTO
                | Errno::EACCES
                | Errno::EMSGSIZE
        )
    )
}

/// Takes the ICMP errors that wait at a socket, and counts them. Allocates nothing.
#[cold]
pub(super) fn take_icmp(fd: BorrowedFd<'_>, counters: &Counters) {
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    for _ in 0..ICMP_ERRORS_MAX {
        match recvmsg::<SockaddrStorage>(fd.as_raw_fd(), &mut [], None, flags) {
            Ok(_) => counters.icmp_errors.add(1),
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// One run of a port takes so many; what is left makes the socket ready again.
const ICMP_ERRORS_MAX: usize = 64;
