//! Local interfaces: where the ports of calls are opened, and what the parties are told.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use threadbare_control::calls::{
    Family, Interface, InterfaceName, NoPorts, Opened, PortRequest, PortSource, PortUse,
};
use threadbare_relay::{LegPorts, PortError, PortRange, RangeSettings};

/// `[NAME/]ADDRESS[!ADVERTISED]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceArg {
    /// In `direction` and `interface` of requests.
    pub name: String,
    /// Where sockets are bound.
    pub address: IpAddr,
    /// What stands in SDP.
    pub advertised: IpAddr,
}

/// Not an interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text}: {reason}; expected [NAME/]ADDRESS[!ADVERTISED], such as 192.0.2.1 or outside/10.0.0.1!203.0.113.7"
)]
pub struct InterfaceError {
    text: String,
    reason: &'static str,
}

impl FromStr for InterfaceArg {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<InterfaceArg, InterfaceError> {
        let error = |reason| InterfaceError {
            text: text.to_owned(),
            reason,
        };
        let (name, rest) = text.split_once('/').unwrap_or((DEFAULT_NAME, text));
        let (address, advertised) = rest.split_once('!').unwrap_or((rest, rest));
        let ip = |text: &str, reason| text.parse::<IpAddr>().map_err(|_| error(reason));
        let address = ip(address, "the address is none")?;
        let advertised = ip(advertised, "the advertised address is none")?;
        if name.is_empty() {
            return Err(error("the name is empty"));
        }
        if address.is_unspecified() || advertised.is_unspecified() {
            return Err(error("an unspecified address cannot be told to a party"));
        }
        if address.is_ipv4() != advertised.is_ipv4() {
            return Err(error("the addresses are of different families"));
        }
        Ok(InterfaceArg {
            name: name.to_owned(),
            address,
            advertised,
        })
    }
}

/// `FIRST-LAST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpan {
    /// The first port.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// Not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: expected FIRST-LAST, from 1 to 65535, with room for a pair of an even port and the next one"
)]
pub struct PortSpanError(String);

impl FromStr for PortSpan {
    type Err = PortSpanError;

    fn from_str(text: &str) -> Result<PortSpan, PortSpanError> {
        let span = text.split_once('-').and_then(|(first, last)| {
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            let has_pair = u32::from(first) + u32::from(first % 2) < u32::from(last);
            (first > 0 && has_pair).then_some(PortSpan { first, last })
        });
        span.ok_or_else(|| PortSpanError(text.to_owned()))
    }
}

/// The ports of all interfaces.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// As the registry has them.
    told: Vec<Interface>,
    ranges: Vec<Range>,
}

/// The ports of one address.
#[derive(Debug)]
struct Range {
    name: InterfaceName,
    advertised: IpAddr,
    pairs: PortRange,
    singles: PortRange,
}

impl Interfaces {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// The range is none.
    pub(super) fn new(args: &[InterfaceArg], ports: PortSpan) -> Result<Interfaces, PortError> {
        let mut interfaces = Interfaces {
            told: Vec::new(),
            ranges: Vec::new(),
        };
        for arg in args {
            let name = InterfaceName(Arc::from(arg.name.as_str()));
            let pairs = RangeSettings::new(arg.address, ports.first, ports.last);
            let mut singles = pairs.clone();
            singles.port_use = threadbare_relay::PortUse::Mux;
            interfaces.ranges.push(Range {
                name: name.clone(),
                advertised: arg.advertised,
                pairs: PortRange::new(pairs)?,
                singles: PortRange::new(singles)?,
            });
            let family = Family::of(arg.advertised);
            match interfaces.told.iter_mut().find(|one| one.name == name) {
                Some(known) => known.families.push(family),
                None => interfaces.told.push(Interface {
                    name,
                    families: vec![family],
                }),
            }
        }
        Ok(interfaces)
    }
}

impl PortSource<LegPorts> for Interfaces {
    fn interfaces(&self) -> &[Interface] {
        &self.told
    }

    fn open(&mut self, request: &PortRequest) -> Result<Opened<LegPorts>, NoPorts> {
        let is_meant = |range: &&Range| {
            range.name == request.interface && Family::of(range.advertised) == request.family
        };
        let range = self.ranges.iter().find(is_meant).ok_or_else(|| {
            let (name, family) = (&request.interface, request.family.name());
            NoPorts(format!("interface {name} has no address of {family}"))
        })?;
        let ports = match request.port_use {
            PortUse::Pair => range.pairs.lease(),
            PortUse::Single => range.singles.lease(),
        };
        let ports = ports.map_err(|error| NoPorts(error.to_string()))?;
        let told = |local: SocketAddr| SocketAddr::new(range.advertised, local.port());
        Ok(Opened {
            rtp: told(ports.rtp_address()),
            rtcp: ports.rtcp_address().map(told),
            ports,
        })
    }
}

/// Of an interface without a name.
const DEFAULT_NAME: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_as_operators_write_them() {
        let read = |text: &str| text.parse::<InterfaceArg>();
        let plain = read("192.0.2.1").expect("an address");
        assert_eq!(
            (plain.name.as_str(), plain.address),
            ("default", plain.advertised)
        );
        let full = read("outside/10.0.0.1!203.0.113.7").expect("an interface");
        assert_eq!(full.name, "outside");
        assert_eq!(full.address.to_string(), "10.0.0.1");
        assert_eq!(full.advertised.to_string(), "203.0.113.7");
        for text in [
            "",
            "/192.0.2.1",
            "192.0.2.1!",
            "host",
            "0.0.0.0",
            "::1!192.0.2.1",
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(
                error.starts_with(text) && error.contains("expected"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_range_has_room_for_a_pair() {
        let read = |text: &str| {
            text.parse::<PortSpan>()
                .ok()
                .map(|span| (span.first, span.last))
        };
        assert_eq!(read("30000-40000"), Some((30_000, 40_000)));
        assert_eq!(read("30000-30001"), Some((30_000, 30_001)));
        for text in [
            "",
            "1",
            "30001-30002",
            "30000-30000",
            "0-9",
            "2-1",
            "1-65536",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn parties_are_told_the_advertised_address() {
        let arg = "a/127.0.0.1!203.0.113.7".parse().expect("an interface");
        let span = PortSpan {
            first: 20_000,
            last: 29_999,
        };
        let mut interfaces = Interfaces::new(&[arg], span).expect("ranges");
        let request = |name: &str, family| PortRequest {
            interface: InterfaceName(name.into()),
            family,
            port_use: PortUse::Pair,
        };
        let opened = interfaces.open(&request("a", Family::V4)).expect("ports");
        assert_eq!(opened.rtp.ip().to_string(), "203.0.113.7");
        assert_eq!(opened.rtp.port(), opened.ports.rtp_address().port());
        assert_eq!(
            opened.rtcp.map(|rtcp| rtcp.port()),
            Some(opened.rtp.port() + 1)
        );
        for (name, family) in [("b", Family::V4), ("a", Family::V6)] {
            let error = interfaces.open(&request(name, family)).expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
