//! The addresses from which others have used our own SSRC (RFC 3550, section 8.2).

use std::net::SocketAddr;

/// Maximum number of colliding hosts. More of them indicate an attack, so the oldest one is forgotten.
const CONFLICTS_MAX: usize = 8;

/// The list of conflicting transport addresses.
#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    /// Each address with the time of its last conflict. In nearly every session, the list is empty and takes no memory on the heap.
    entries: Vec<(SocketAddr, u64)>,
}

impl Conflicts {
    /// Notes a packet with our SSRC. Returns `false` for the first packet from an address. This is a collision, and we must change our
    /// SSRC. If packets with the new SSRC come from the same address, they are our own packets that come back, and this returns `true`.
    pub(crate) fn note(&mut self, now_ns: u64, from: SocketAddr) -> bool {
        if let Some(known) = self.entries.iter_mut().find(|known| known.0 == from) {
            known.1 = now_ns;
            return true;
        }
        if self.entries.len() >= CONFLICTS_MAX {
            let oldest = self.entries.iter().enumerate();
            if let Some((at, _)) = oldest.min_by_key(|(_, entry)| entry.1) {
                self.entries.swap_remove(at);
            }
        }
        self.entries.push((from, now_ns));
        false
    }

    /// Returns the number of bytes that the list takes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(SocketAddr, u64)>()
    }

    /// Forgets addresses that have had no conflict for `age_ns`.
    pub(crate) fn expire(&mut self, now_ns: u64, age_ns: u64) {
        self.entries
            .retain(|(_, noted_ns)| now_ns.saturating_sub(*noted_ns) <= age_ns);
    }
}
