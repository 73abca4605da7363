//! Finds ports for the gateway to listen on.

use std::net::{Ipv4Addr, UdpSocket};

/// The first of `count` consecutive ports of 127.0.0.1 that are all free now.
///
/// They are below the kernel's range for automatic ports, so they likely stay free.
pub fn free_ports(count: usize) -> Option<u16> {
    let count = u16::try_from(count).ok()?;
    let room = LAST.checked_sub(FIRST)?.checked_sub(count)?;
    // Two demos at once begin at different ports.
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

/// The last port of these in use, if any.
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
/// Linux assigns ports from 32768 (net.ipv4.ip_local_port_range).
const LAST: u16 = 32_767;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_the_taken_port_is_found() {
        let first = free_ports(10).expect("free ports");
        let _taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, first + 4)).expect("was free");
        let other = free_ports(10).expect("free ports");
        assert!(!(other..other + 10).contains(&(first + 4)));
    }
}
