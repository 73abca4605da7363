//! Ranges of addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// A range of addresses, in the notation of RFC 4632: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether the range contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits));
                (u32::from(own) ^ u32::from(other)) & mask.unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits));
                (u128::from(own) ^ u128::from(other)) & mask.unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The text is not a [`Network`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is not a network: expected an address with a prefix length, such as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7"
)]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let error = || NetworkError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            None => bits_max,
            Some(prefix) => prefix.parse().map_err(|_| error())?,
        };
        if prefix_bits > bits_max {
            return Err(error());
        }
        Ok(Network {
            address,
            prefix_bits,
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_round_trip() {
        // RFC 5737 and RFC 3849: addresses for documentation.
        let cases = [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.7/32", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db8::1", true),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
        ];
        for (network, address, contains) in cases {
            let network: Network = network.parse().unwrap();
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(network.contains(address), contains, "{network} {address}");
        }
        for text in [
            "",
            "192.0.2.0/33",
            "192.0.2/24",
            "::/129",
            "host",
            "192.0.2.0/-1",
            "192.0.2.0/",
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("192.0.2.0/24"),
                "{error}"
            );
        }
    }
}
