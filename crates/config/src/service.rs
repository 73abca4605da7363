//! Service addresses. They are the addresses of a node's calls, which another node takes over when the node ends.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address with its prefix length and network device: `10.0.0.10/24@eth0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceAddress {
    /// The address.
    pub address: IpAddr,
    /// Prefix length.
    pub prefix: u8,
    /// The network device.
    pub device: String,
}

/// Error that says that a text is not a service address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a service address must have a prefix length and a network device, such as 10.0.0.10/24@eth0"
)]
pub struct NoServiceAddress;

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.address, self.prefix, self.device)
    }
}

impl FromStr for ServiceAddress {
    type Err = NoServiceAddress;

    fn from_str(text: &str) -> Result<ServiceAddress, NoServiceAddress> {
        let (network, device) = text.split_once('@').ok_or(NoServiceAddress)?;
        let (address, prefix) = network.split_once('/').ok_or(NoServiceAddress)?;
        let address: IpAddr = address.parse().map_err(|_| NoServiceAddress)?;
        let prefix: u8 = prefix.parse().map_err(|_| NoServiceAddress)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let is_odd = address.is_unspecified() || address.is_multicast() || address.is_loopback();
        let is_device = (1..=DEVICE_BYTES_MAX).contains(&device.len())
            && device.bytes().all(|byte| byte.is_ascii_graphic())
            && !device.contains(['/', '@']);
        if !is_odd && (1..=bits).contains(&prefix) && is_device {
            Ok(ServiceAddress {
                address,
                prefix,
                device: device.to_owned(),
            })
        } else {
            Err(NoServiceAddress)
        }
    }
}

/// Maximum length of a device name. It is the kernel's limit (IFNAMSIZ, which includes a 0 at the end).
const DEVICE_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_address_round_trips() {
        for text in [
            "10.0.0.10/24@eth0",
            "2001:db8::10/64@bond0.7",
            "192.0.2.1/32@e",
        ] {
            let read: ServiceAddress = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
        }
        for odd in [
            "10.0.0.10",
            "10.0.0.10/24",
            "10.0.0.10@eth0",
            "10.0.0.10/33@eth0",
            "10.0.0.10/0@eth0",
            "10.0.0.10/24@",
            "10.0.0.10/24@a device",
            "10.0.0.10/24@sixteen-letters0",
            "0.0.0.0/8@eth0",
            "127.0.0.1/8@lo",
            "239.1.1.1/24@eth0",
            "host/24@eth0",
        ] {
            assert_eq!(
                odd.parse::<ServiceAddress>(),
                Err(NoServiceAddress),
                "{odd}"
            );
        }
    }
}
