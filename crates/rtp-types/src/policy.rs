//! Rules for destinations of calls' media.
//!
//! A party's description can contain any address. Without a policy, the relay would send the other party's datagrams there. The
//! destination could be its own control port, a service that trusts this machine, or all hosts of a network.
//! [`MediaPolicy::judge`] decides on one destination. The rules, in order:
//!
//! | destination | verdict |
//! |---|---|
//! | unspecified (`0.0.0.0/8`, `::`), multicast, broadcast, class E | forbidden: not a host |
//! | this machine: ports of its services, SIP ports, ports below 1024 | forbidden: a service |
//! | a port of the same call, or of others that lead back to it | forbidden: packets would circulate |
//! | in [`allow`](MediaPolicy::allow) | allowed |
//! | in [`deny`](MediaPolicy::deny) | forbidden |
//! | loopback, from a leg whose address is not loopback | forbidden |
//! | a media port of this relay, from a leg at another address, unless one of the two addresses moves between nodes | forbidden |
//! | any other | allowed |
//!
//! If a proxy routed a call through this relay twice, two calls send to each other at one address. Each call is then the party of
//! the other. In a cluster, the two calls may use two of the movable addresses.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::network::Network;

/// The rules for destinations of media. See the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MediaPolicy {
    /// Exceptions from `deny`, and from the rules for loopback and for other media ports.
    pub allow: Vec<Network>,
    /// Addresses that get no media.
    pub deny: Vec<Network>,
    /// Ports of the services of this process, at any address of this machine.
    pub services: Vec<u16>,
    /// Addresses of this machine. Addresses of loopback and of `media` need not be in this list.
    pub own: Vec<IpAddr>,
    /// Broadcast addresses of the networks of this machine.
    pub broadcasts: Vec<IpAddr>,
    /// Addresses and ports of calls.
    pub media: Vec<MediaPorts>,
}

/// A range of ports that calls use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaPorts {
    /// Local address of the ports.
    pub address: IpAddr,
    /// Address in descriptions. It differs from the local address if the relay is behind a NAT.
    pub advertised: IpAddr,
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// Whether the address moves between the nodes of a cluster.
    pub moves: bool,
}

/// Why a destination gets no media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Forbidden {
    /// The destination is unspecified, multicast, broadcast or reserved.
    #[error("the address is not that of a host")]
    NoHost,
    /// The destination is a port of the machine's services.
    #[error("a service of this machine uses the address")]
    Service,
    /// The destination is a port of the call that would send there.
    #[error("the packets would return to a port of the same call")]
    SameCall,
    /// The destination is in [`MediaPolicy::deny`].
    #[error("the configuration denies media to the network of the address")]
    Denied,
    /// The destination is on loopback, but the leg is not.
    #[error("the address is on loopback, but the port of the call is not")]
    Loopback,
    /// The destination is a media port at another address than the leg's.
    #[error("the address is a media port of another interface")]
    OtherInterface,
}

impl MediaPolicy {
    /// Decides whether a call's leg at address `leg` may send to `to`. `ports`: local addresses of all ports of the call.
    ///
    /// # Errors
    /// Fails with the first rule that forbids the destination.
    pub fn judge(
        &self,
        leg: IpAddr,
        ports: &[SocketAddr],
        to: SocketAddr,
    ) -> Result<(), Forbidden> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let (ip, leg) = (to.ip(), leg.to_canonical());
        if is_no_host(ip) || self.broadcasts.contains(&ip) {
            return Err(Forbidden::NoHost);
        }
        if self.is_own(ip) && self.is_service(to.port()) {
            return Err(Forbidden::Service);
        }
        let local = self.local(to);
        if ports.contains(&local) || ports.contains(&to) {
            return Err(Forbidden::SameCall);
        }
        let has = |networks: &[Network]| networks.iter().any(|network| network.contains(ip));
        if has(&self.allow) {
            return Ok(());
        }
        if has(&self.deny) {
            return Err(Forbidden::Denied);
        }
        if ip.is_loopback() && !leg.is_loopback() {
            return Err(Forbidden::Loopback);
        }
        // Compare the local addresses, because parties behind the same NAT share the advertised address.
        if ip != leg && self.has_media_port(to) && !self.moves(ip) && !self.moves(leg) {
            return Err(Forbidden::OtherInterface);
        }
        Ok(())
    }

    /// Returns the local address of a media port for its local or advertised address. Returns other addresses unchanged.
    #[must_use]
    pub fn local(&self, address: SocketAddr) -> SocketAddr {
        let ip = address.ip().to_canonical();
        let mut media = self.media.iter();
        let found = media.find(|one| one.advertised == ip && one.has(address.port()));
        SocketAddr::new(found.map_or(ip, |one| one.address), address.port())
    }

    /// Whether calls have ports at this local address.
    #[must_use]
    pub fn has_media_port(&self, local: SocketAddr) -> bool {
        let mut media = self.media.iter();
        media.any(|one| one.address == local.ip() && one.has(local.port()))
    }

    /// Whether this is an address of this machine, local or advertised.
    fn is_own(&self, ip: IpAddr) -> bool {
        let mut media = self.media.iter();
        ip.is_loopback()
            || self.own.contains(&ip)
            || media.any(|one| one.address == ip || one.advertised == ip)
    }

    /// Whether this address moves between the nodes of a cluster.
    fn moves(&self, ip: IpAddr) -> bool {
        let mut media = self.media.iter();
        media.any(|one| one.moves && one.address == ip)
    }

    fn is_service(&self, port: u16) -> bool {
        port <= SYSTEM_PORT_LAST || SIP_PORTS.contains(&port) || self.services.contains(&port)
    }
}

impl MediaPorts {
    fn has(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// Whether the address is not that of a single host.
fn is_no_host(ip: IpAddr) -> bool {
    match ip {
        // RFC 1122, section 3.2.1.3: "this host on this network"; RFC 1112, section 4: class E, which includes the limited
        // broadcast address.
        IpAddr::V4(ip) => ip.octets()[0] == 0 || ip.is_multicast() || ip.octets()[0] >= 240,
        // RFC 4291, section 2.5.5.1: IPv4-compatible addresses are deprecated. `::` is one of them.
        IpAddr::V6(ip) => ip.is_multicast() || !ip.is_loopback() && ip.segments()[..6] == [0; 6],
    }
}

/// RFC 6335, section 6: system ports are 0 to 1023. No party has its media there.
const SYSTEM_PORT_LAST: u16 = 1023;
/// RFC 3261, section 19.1.2: the ports of SIP and SIPS. The proxy that controls this relay may be on the same machine, and may
/// trust it.
const SIP_PORTS: [u16; 2] = [5060, 5061];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy() -> MediaPolicy {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let media = |address: &str, advertised: &str| MediaPorts {
            address: ip(address),
            advertised: ip(advertised),
            first: 30_000,
            last: 40_000,
            moves: false,
        };
        MediaPolicy {
            allow: vec!["198.51.100.7".parse().unwrap()],
            deny: vec![
                "198.51.100.0/24".parse().unwrap(),
                "2001:db8:dead::/48".parse().unwrap(),
            ],
            services: vec![2223, 8080],
            own: vec![ip("192.0.2.1"), ip("2001:db8::1")],
            broadcasts: vec![ip("10.0.0.255")],
            media: vec![
                media("10.0.0.1", "203.0.113.1"),
                media("10.1.0.1", "10.1.0.1"),
            ],
        }
    }

    /// A proxy of a cluster may route a call through two service addresses, on any nodes.
    #[test]
    fn addresses_that_move_between_nodes_reach_media_ports() {
        let mut policy = policy();
        policy.media[1].moves = true;
        let judge =
            |leg: &str, to: &str| policy.judge(leg.parse().unwrap(), &[], to.parse().unwrap());
        assert_eq!(judge("10.0.0.1", "10.1.0.1:30004"), Ok(()));
        assert_eq!(judge("10.1.0.1", "10.0.0.1:30004"), Ok(()));
        assert_eq!(judge("10.1.0.1", "10.0.0.1:2223"), Err(Forbidden::Service));
    }

    /// Checks each rule of the module's table with some destinations.
    #[test]
    fn each_rule_forbids_the_networks_of_the_table() {
        use Forbidden::*;
        let cases = [
            ("0.0.0.0:4000", Err(NoHost)),
            ("0.1.2.3:4000", Err(NoHost)),
            ("[::]:4000", Err(NoHost)),
            ("[::10.9.9.9]:4000", Err(NoHost)),
            ("224.0.0.1:4000", Err(NoHost)),
            ("[ff02::1]:4000", Err(NoHost)),
            ("255.255.255.255:4000", Err(NoHost)),
            ("240.0.0.1:4000", Err(NoHost)),
            ("10.0.0.255:4000", Err(NoHost)),
            ("127.0.0.1:2223", Err(Service)),
            ("127.9.9.9:8080", Err(Service)),
            ("[::ffff:127.0.0.1]:2223", Err(Service)),
            ("[::1]:2223", Err(Service)),
            ("192.0.2.1:53", Err(Service)),
            ("10.0.0.1:5060", Err(Service)),
            ("203.0.113.1:2223", Err(Service)),
            ("[2001:db8::1]:2223", Err(Service)),
            ("10.0.0.1:30000", Err(SameCall)),
            ("10.1.0.1:30003", Err(SameCall)),
            ("203.0.113.1:30000", Err(SameCall)),
            ("198.51.100.7:4000", Ok(())),
            ("198.51.100.8:4000", Err(Denied)),
            ("[2001:db8:dead::1]:4000", Err(Denied)),
            ("127.0.0.1:4000", Err(Loopback)),
            ("[::1]:4000", Err(Loopback)),
            ("10.1.0.1:30004", Err(OtherInterface)),
            // Another call at the same address, and another program there.
            ("10.0.0.1:30004", Ok(())),
            ("203.0.113.1:30004", Ok(())),
            ("10.1.0.1:29998", Ok(())),
            ("192.0.2.99:2223", Ok(())),
            ("[2001:db8::9]:4000", Ok(())),
        ];
        let ports: Vec<SocketAddr> = [
            "10.0.0.1:30000",
            "10.0.0.1:30001",
            "10.1.0.1:30002",
            "10.1.0.1:30003",
        ]
        .map(|port| port.parse().unwrap())
        .to_vec();
        for (to, verdict) in cases {
            let to: SocketAddr = to.parse().unwrap();
            assert_eq!(policy().judge(ports[0].ip(), &ports, to), verdict, "{to}");
        }
    }

    #[test]
    fn a_leg_on_loopback_sends_to_loopback_but_not_to_services() {
        let leg: IpAddr = [127, 0, 0, 1].into();
        let judge = |to: &str| policy().judge(leg, &[], to.parse().unwrap());
        assert_eq!(judge("127.0.0.1:4000"), Ok(()));
        assert_eq!(judge("127.0.0.1:2223"), Err(Forbidden::Service));
        let allows = MediaPolicy {
            allow: vec!["0.0.0.0/0".parse().unwrap()],
            ..policy()
        };
        let leg: IpAddr = [10, 0, 0, 1].into();
        let judge = |to: &str| allows.judge(leg, &[], to.parse().unwrap());
        assert_eq!(judge("127.0.0.1:4000"), Ok(()));
        assert_eq!(judge("10.1.0.1:30000"), Ok(()));
        assert_eq!(judge("127.0.0.1:2223"), Err(Forbidden::Service));
        assert_eq!(judge("224.0.0.1:4000"), Err(Forbidden::NoHost));
    }

    /// Half of the generated addresses are covered by a rule.
    fn address() -> impl Strategy<Value = SocketAddr> {
        let special = prop::sample::select(vec![
            [127, 0, 0, 1],
            [192, 0, 2, 1],
            [10, 0, 0, 1],
            [10, 1, 0, 1],
            [203, 0, 113, 1],
            [198, 51, 100, 9],
        ]);
        let v4 = prop_oneof![special, any::<[u8; 4]>()].prop_map(IpAddr::from);
        let mapped =
            any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).to_ipv6_mapped().into());
        let v6 = any::<[u16; 8]>().prop_map(IpAddr::from);
        let port = prop_oneof![Just(2223), Just(8080), 29_990..40_010_u16, any::<u16>()];
        (prop_oneof![4 => v4, 1 => mapped, 1 => v6], port).prop_map(SocketAddr::from)
    }

    proptest! {
        /// Compares the verdicts with the rules, which are written again here with the text of the addresses.
        #[test]
        fn permitted_destinations_break_no_rule(
            to in address(), leg in prop::sample::select(vec!["10.0.0.1", "10.1.0.1", "127.0.0.1"]), port in 30_000_u16..40_000,
        ) {
            let leg: IpAddr = leg.parse().unwrap();
            let ports = [SocketAddr::new(leg, port)];
            let passes = policy().judge(leg, &ports, to).is_ok();
            let text = to.ip().to_canonical().to_string();
            let is_of_machine = text.starts_with("127.") || text == "::1"
                || ["192.0.2.1", "10.0.0.1", "10.1.0.1", "203.0.113.1", "2001:db8::1"].contains(&text.as_str());
            if is_of_machine && [2223, 8080, 5060, 5061].contains(&to.port()) {
                prop_assert!(!passes, "a service: {to}");
            }
            if text.starts_with("198.51.100.") && text != "198.51.100.7" {
                prop_assert!(!passes, "denied: {to}");
            }
            if text.starts_with("127.") && !leg.is_loopback() {
                prop_assert!(!passes, "loopback: {to}");
            }
            prop_assert!(!(passes && to == ports[0]), "its own port: {to}");
            let first: u8 = text.split('.').next().and_then(|first| first.parse().ok()).unwrap_or(1);
            if first == 0 || first >= 224 || text.starts_with("ff") {
                prop_assert!(!passes, "no host: {to}");
            }
            // Compare with the same host in the other notation.
            if let IpAddr::V4(v4) = to.ip() {
                let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), to.port());
                prop_assert_eq!(policy().judge(leg, &ports, mapped).is_ok(), passes);
            }
        }
    }
}
