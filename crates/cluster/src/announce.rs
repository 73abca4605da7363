//! Announces to a network that an address is now at this machine, with a gratuitous ARP request (IPv4; RFC 5227, section 3) or an
//! unsolicited neighbour advertisement (IPv6; RFC 4861, section 7.2.6). Neighbours that know the address update the hardware
//! address that they have stored for it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};

/// Sends announcements. It opens its socket at first use, and does not close it: the kernel takes 8 to 30 ms to close such a
/// socket, because it waits for all processors. Calls that wait for their address must not wait for this.
#[derive(Debug, Default)]
pub(super) struct Announcer(Option<OwnedFd>);

impl Announcer {
    /// Sends one announcement.
    ///
    /// # Errors
    /// Fails if the device does not exist, or if permission is missing.
    pub(super) fn announce(&mut self, address: IpAddr, device: &str) -> io::Result<()> {
        let link = link_of(device)?;
        let Some(mac) = link.addr() else {
            return Err(io::Error::other("the device has no hardware address"));
        };
        let frame = match address {
            IpAddr::V4(address) => arp(mac, address).to_vec(),
            IpAddr::V6(address) => advertisement(mac, address).to_vec(),
        };
        let raw = self.socket()?.as_raw_fd();
        sendto(raw, &frame, &link, MsgFlags::empty())?;
        Ok(())
    }

    /// Returns the socket. It has no protocol, so it receives nothing.
    fn socket(&mut self) -> io::Result<&OwnedFd> {
        let raw = match self.0.take() {
            Some(raw) => raw,
            None => socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                None,
            )?,
        };
        Ok(self.0.insert(raw))
    }
}

fn link_of(device: &str) -> io::Result<LinkAddr> {
    let all = getifaddrs()?;
    let of_it = all.filter(|one| one.interface_name == device);
    let mut links = of_it.filter_map(|one| one.address?.as_link_addr().copied());
    let found = links.next();
    found
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the network device does not exist"))
}

/// Returns an ARP request for the address itself, to all hosts, in the layout of RFC 826.
fn arp(mac: [u8; 6], address: Ipv4Addr) -> [u8; 42] {
    let mut frame = [0; 42];
    let mut at = Writer(&mut frame, 0);
    at.put(&[0xff; 6]).put(&mac).put(&[0x08, 0x06]);
    // Ethernet, IPv4, the lengths of their addresses, and the operation: a request.
    at.put(&[0, 1, 0x08, 0, 6, 4, 0, 1]);
    at.put(&mac).put(&address.octets());
    at.put(&[0; 6]).put(&address.octets());
    frame
}

/// Returns a neighbour advertisement to all nodes of the link, with the override flag.
fn advertisement(mac: [u8; 6], address: Ipv6Addr) -> [u8; 86] {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut icmp = [0; 32];
    let mut at = Writer(&mut icmp, 0);
    at.put(&[136, 0, 0, 0, 0x20, 0, 0, 0])
        .put(&address.octets());
    // Option: target link-layer address, 8 bytes.
    at.put(&[2, 1]).put(&mac);
    let sum = checksum(address, all_nodes, &icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [0; 86];
    let mut at = Writer(&mut frame, 0);
    // The hardware address of the multicast group (RFC 2464, section 7).
    at.put(&[0x33, 0x33, 0, 0, 0, 1])
        .put(&mac)
        .put(&[0x86, 0xdd]);
    // Version 6, 32 bytes of ICMPv6 (58), and a hop limit of 255, which receivers require.
    at.put(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
    at.put(&address.octets())
        .put(&all_nodes.octets())
        .put(&icmp);
    frame
}

/// Returns the checksum over the pseudo-header (RFC 8200, section 8.1) and the message (RFC 4443, section 2.3).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8; 32]) -> u16 {
    let words = |bytes: &[u8]| {
        let words = bytes.chunks_exact(2);
        let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        words.map(word).sum::<u32>()
    };
    let sum = words(&from.octets()) + words(&to.octets()) + 32 + 58 + words(message);
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

struct Writer<'f>(&'f mut [u8], usize);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn an_arp_request_asks_for_the_senders_address() {
        let frame = arp(MAC, Ipv4Addr::new(192, 0, 2, 7));
        let due = "ffffffffffff020000000009080600010800060400010200000000\
                   09c0000207000000000000c0000207";
        let text: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, due.replace(' ', ""));
    }

    /// RFC 1071: the sum over all words, including the checksum, is 0xffff.
    #[test]
    fn an_advertisement_has_its_checksum() {
        let address: Ipv6Addr = "2001:db8::7".parse().expect("an address");
        let frame = advertisement(MAC, address);
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &frame[54..]].concat();
        let words = pseudo.chunks(2);
        let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        let mut sum: u32 = words.map(word).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff);
        assert_eq!(&frame[6..12], &MAC);
        assert_eq!(&frame[62..78], &address.octets());
    }
}
