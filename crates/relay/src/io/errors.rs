//! Errors of sockets. An ICMP message concerns one destination, and never ends a port.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};

use crate::stats::Counters;

/// Whether this error may belong to an earlier datagram. A system call returns such an error instead of doing its work, and the next call
/// does the work.
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

/// Reads and counts the ICMP errors queued at a socket. Allocates nothing.
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

/// Maximum number of ICMP errors that are read each time a port runs. If more are queued, the socket becomes ready again.
const ICMP_ERRORS_MAX: usize = 64;
