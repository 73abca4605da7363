//! Finds ports for the gateway to listen on.

use std::net::{Ipv4Addr, UdpSocket};

/// Finds `count` consecutive ports of 127.0.0.1 that are all free now. Returns the first one.
///
/// The ports are below the kernel's range for automatic ports, so they will probably stay free.
pub fn free_ports(count: usize) -> Option<u16> {
    let count = u16::try_from(count).ok()?;
    let room = LAST.checked_sub(FIRST)?.checked_sub(count)?;
    // The first candidate depends on the process, so that two demos at the same time search from different ports.
    let offset = (std::process::id() as u16).wrapping_mul(977) % (room + 1);
    let starts = (0..=room).map(|n| FIRST + (offset + n) % (room + 1));
    let mut skip_to = None;
    for first in starts {
        if skip_to.is_some_and(|port| first <= port && first > port.saturating_sub(count)) {
            continue;
        }
        match first_taken(first, count) {
            None => return Some(first),
            taken => skip_to = taken,
        }
    }
    None
}

/// Returns the last of these ports that is in use, if there is one.
fn first_taken(first: u16, count: u16) -> Option<u16> {
    let mut held = Vec::with_capacity(usize::from(count));
    (first..first + count)
        .rev()
        .find(|port| match UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)) {
            Ok(socket) => {
                held.push(socket);
                false
            }
            Err(_) => true,
        })
}

const FIRST: u16 = 10_000;
/// The highest usable port. Linux assigns automatic ports from 32768 (net.ipv4.ip_local_port_range).
const LAST: u16 = 32_767;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ports_without_a_used_one_are_found() {
        let first = free_ports(10).expect("free ports");
        let _taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, first + 4)).expect("was free");
        let other = free_ports(10).expect("free ports");
        assert!(!(other..other + 10).contains(&(first + 4)));
    }
}
