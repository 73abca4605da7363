//! Finds ranges of free UDP ports. No port is fixed, so two benchmarks may run at the same time.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};

/// The lowest port. All ports are below the range from which the kernel assigns ports, so that other programs do not get them
/// between the check and the use.
const LOWEST: u16 = 10_000;
const BELOW: u16 = 32_000;

/// Returns the first of `count` consecutive free ports, on any address.
///
/// The ports are free at the time of the check. The caller should bind them soon.
pub fn free_range(count: u16) -> Result<u16> {
    let span = BELOW - LOWEST;
    if count == 0 || count > span {
        bail!("cannot find {count} ports: expected 1 to {span} ports");
    }
    // Each run starts at a different port, so that a range that was just released is not used again at once.
    let start = LOWEST + std::process::id() as u16 % span;
    // Ports are tried one at a time, because sockets for all of them could exceed the limit of open descriptors.
    search(start, count, |port| {
        UdpSocket::bind(("0.0.0.0", port)).is_err()
    })
    .with_context(|| {
        format!("cannot find {count} consecutive free ports between {LOWEST} and {BELOW}")
    })
}

/// Searches from `start` to the end of the range, and then from the beginning of the range.
fn search(start: u16, count: u16, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    for mut base in [start, LOWEST] {
        while base + count <= BELOW {
            match (base..base + count).find(|port| is_taken(*port)) {
                None => return Some(base),
                Some(taken) => base = taken + 1,
            }
        }
    }
    None
}

/// Enlarges the receive buffer of a socket, for packets that were not read yet.
#[allow(unsafe_code)]
pub fn enlarge_buffer(socket: &UdpSocket) {
    let size = RECEIVE_BUFFER_BYTES;
    // The second option may exceed the system's limit if the process has the permission.
    for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
        // SAFETY: the option is an int, which is passed with its size. The socket is open.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const size).cast(),
                size_of::<libc::c_int>() as u32,
            );
        }
    }
}

const RECEIVE_BUFFER_BYTES: libc::c_int = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_use_are_skipped() {
        assert_eq!(search(LOWEST, 3, |_| false), Some(LOWEST));
        assert_eq!(
            search(LOWEST, 3, |port| port == LOWEST + 1),
            Some(LOWEST + 2)
        );
        assert_eq!(
            search(BELOW - 2, 3, |_| false),
            Some(LOWEST),
            "at the end, the search continues at the beginning"
        );
        assert_eq!(search(BELOW - 3, 3, |port| port == BELOW - 1), Some(LOWEST));
        assert_eq!(search(LOWEST, 3, |port| port % 3 == 0), None);
    }

    #[test]
    fn a_free_range_of_ports_is_within_the_bounds() {
        let base = free_range(500).unwrap();
        assert!(base >= LOWEST && base + 500 <= BELOW);
        assert!(free_range(0).is_err());
        assert!(free_range(u16::MAX).is_err());
    }
}
