//! Ranges of free UDP ports. No number is fixed, so two benchmarks may run at the same time.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};

/// Below the range that the kernel assigns by itself, so that other programs do not get these ports in between.
const LOWEST: u16 = 10_000;
const BELOW: u16 = 32_000;

/// Returns the first of `count` consecutive free ports, on any address.
///
/// They are free at the time of the check; the caller binds them soon.
pub fn free_range(count: u16) -> Result<u16> {
    let span = BELOW - LOWEST;
    if count == 0 || count > span {
        bail!("between 1 and {span} ports, not {count}");
    }
    // Different for each run, so that a range just released is not requested again at once.
    let start = LOWEST + std::process::id() as u16 % span;
    // One at a time: all of them together could exceed the limit of open descriptors.
    search(start, count, |port| {
        UdpSocket::bind(("0.0.0.0", port)).is_err()
    })
    .with_context(|| format!("no {count} free ports in a row from {LOWEST} to {BELOW}"))
}

/// Searches from `start` to the end of the range, then from its beginning.
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

/// Enlarges the receive buffer, for packets that a sink has not read yet.
#[allow(unsafe_code)]
pub fn enlarge_buffer(socket: &UdpSocket) {
    let size = RECEIVE_BUFFER_BYTES;
    // Beyond the system's limit if permitted, otherwise up to it.
    for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
        // SAFETY: an int option with its size; the socket is open.
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
    fn taken_ports_are_gone_around() {
        assert_eq!(search(LOWEST, 3, |_| false), Some(LOWEST));
        assert_eq!(
            search(LOWEST, 3, |port| port == LOWEST + 1),
            Some(LOWEST + 2)
        );
        assert_eq!(
            search(BELOW - 2, 3, |_| false),
            Some(LOWEST),
            "it restarts at the end"
        );
        assert_eq!(search(BELOW - 3, 3, |port| port == BELOW - 1), Some(LOWEST));
        assert_eq!(search(LOWEST, 3, |port| port % 3 == 0), None);
    }

    #[test]
    fn the_range_lies_in_bounds() {
        let base = free_range(500).unwrap();
        assert!(base >= LOWEST && base + 500 <= BELOW);
        assert!(free_range(0).is_err());
        assert!(free_range(u16::MAX).is_err());
    }
}
