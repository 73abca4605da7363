//! Ranges of free UDP ports. Nothing here has a fixed number: two benchmarks may run side by side.

use std::net::UdpSocket;

use anyhow::{Result, bail};

/// Below the range that the kernel hands out by itself, so that nobody is given one of ours in between.
const LOWEST: u16 = 10_000;
const BELOW: u16 = 32_000;

/// The first of `count` consecutive ports that nobody uses, on any address.
pub fn free_range(count: u16) -> Result<u16> {
    let span = BELOW - LOWEST;
    if count == 0 || count > span {
        bail!("between 1 and {span} ports, not {count}");
    }
    // Different from run to run, so that a range just released is not asked for again at once.
    let start = std::process::id() as u16 % span;
    let mut base = LOWEST + start;
    let mut tried = 0;
    while tried < 2 * u32::from(span) {
        if u32::from(base) + u32::from(count) > u32::from(BELOW) {
            tried += u32::from(BELOW - base);
            base = LOWEST;
            continue;
        }
        match first_taken(base, count) {
            None => return Ok(base),
            Some(taken) => {
                tried += u32::from(taken - base) + 1;
                base = taken + 1;
            }
        }
    }
    bail!("no {count} consecutive free ports between {LOWEST} and {BELOW}")
}

fn first_taken(base: u16, count: u16) -> Option<u16> {
    // One at a time: held together they could run into the limit of open descriptors.
    (base..base + count).find(|port| UdpSocket::bind(("0.0.0.0", *port)).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_gone_around() {
        let base = free_range(3).unwrap();
        let held = UdpSocket::bind(("0.0.0.0", base + 1)).unwrap();
        assert_eq!(first_taken(base, 3), Some(base + 1));
        drop(held);
    }

    #[test]
    fn the_range_lies_in_bounds() {
        let base = free_range(500).unwrap();
        assert!(base >= LOWEST && base + 500 <= BELOW);
        assert!(free_range(0).is_err());
        assert!(free_range(u16::MAX).is_err());
    }
}
