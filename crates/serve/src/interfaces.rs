//! Local interfaces: the addresses at which calls open ports, and the addresses that are advertised to the parties.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use threadbare_control::calls::{
    Family, Interface, InterfaceName, NoPorts, Opened, PortRequest, PortSource, PortUse,
};
use threadbare_relay::{Fence, LegPorts, PortError, PortRange, RangeSettings};

use threadbare_config::InterfaceSpec;

/// The ports of all interfaces.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// The interfaces as the registry gets them.
    told: Vec<Interface>,
    ranges: Vec<Range>,
    /// Fence through which all ports opened here send.
    fence: Option<Fence>,
    /// Whether ports may be opened before their addresses are assigned to the machine.
    precedes_addresses: bool,
    /// Ports that were opened in advance. The key is the advertised RTP address.
    ahead: HashMap<SocketAddr, LegPorts>,
}

/// The ports of one address.
#[derive(Debug)]
struct Range {
    spec: InterfaceSpec,
    name: InterfaceName,
    advertised: IpAddr,
    pairs: PortRange,
    singles: PortRange,
}

impl Interfaces {
    /// Creates the interfaces without opening ports.
    ///
    /// # Errors
    /// Fails if a port range is invalid.
    pub(super) fn new(specs: &[InterfaceSpec]) -> Result<Interfaces, PortError> {
        let mut interfaces = Interfaces {
            told: Vec::new(),
            ranges: Vec::new(),
            fence: None,
            precedes_addresses: false,
            ahead: HashMap::new(),
        };
        interfaces.change(specs)?;
        Ok(interfaces)
    }

    /// Sets the fence for ports that are opened from now on.
    pub(super) fn set_fence(&mut self, fence: Fence) {
        self.fence = Some(fence);
    }

    /// Allows ports to be opened before their addresses are assigned to the machine.
    pub(super) fn precede_addresses(&mut self) {
        self.precedes_addresses = true;
        self.ranges.iter().for_each(Range::precede_address);
    }

    /// Opens the ports of a call in advance, for [`reopen`](PortSource::reopen). If that fails, `reopen` tries again, and
    /// reports the error.
    pub(super) fn open_ahead(
        &mut self,
        request: &PortRequest,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
    ) {
        if let Ok(ports) = self.open_again(request, rtp, rtcp) {
            self.ahead.insert(rtp, ports);
        }
    }

    /// Closes the ports that were opened in advance and that no call has used.
    pub(super) fn close_ahead(&mut self) {
        self.ahead = HashMap::new();
    }

    /// Closes idle ports that no call has reused for a while. Call this regularly while ports are in use.
    pub(super) fn close_unwanted(&self) {
        let ranges = self.ranges.iter().flat_map(Range::each);
        ranges.for_each(PortRange::close_unwanted);
    }

    /// Whether some ports are in use, or in quarantine.
    pub(super) fn are_used(&self) -> bool {
        let mut ranges = self.ranges.iter().flat_map(Range::each);
        ranges.any(PortRange::is_used)
    }

    /// Returns the interfaces as configured.
    pub(super) fn specs(&self) -> impl Iterator<Item = &InterfaceSpec> {
        self.ranges.iter().map(|range| &range.spec)
    }

    /// Whether this is the local or advertised address of a call's port.
    pub(super) fn has_port_in_use(&self, at: SocketAddr) -> bool {
        let ip = at.ip().to_canonical();
        let mut ranges = self.ranges.iter();
        ranges.any(|range| {
            (range.spec.address == ip || range.advertised == ip)
                && range.each().any(|ports| ports.is_in_use(at.port()))
        })
    }

    fn fenced(&self, ports: LegPorts) -> LegPorts {
        match &self.fence {
            Some(fence) => ports.fenced(fence.clone()),
            None => ports,
        }
    }

    /// Replaces the interfaces. Ports that are in quarantine stay so if their range stays. Open ports stay open.
    ///
    /// # Errors
    /// Fails if a range is invalid. Nothing is changed.
    pub(super) fn change(&mut self, specs: &[InterfaceSpec]) -> Result<(), PortError> {
        let stays = |spec: &InterfaceSpec| self.ranges.iter().position(|one| one.spec == *spec);
        let new = specs.iter().filter(|spec| stays(spec).is_none());
        let mut new: Vec<Range> = new.map(Range::new).collect::<Result<_, _>>()?;
        if self.precedes_addresses {
            new.iter().for_each(Range::precede_address);
        }
        self.ranges.retain(|one| specs.contains(&one.spec));
        self.ranges.append(&mut new);
        self.told.clear();
        for spec in specs {
            let name = InterfaceName(Arc::from(spec.name.as_str()));
            let family = Family::of(spec.advertised);
            match self.told.iter_mut().find(|one| one.name == name) {
                Some(known) => known.families.push(family),
                None => self.told.push(Interface {
                    name,
                    families: vec![family],
                }),
            }
        }
        Ok(())
    }
}

impl Range {
    fn new(spec: &InterfaceSpec) -> Result<Range, PortError> {
        let pairs = RangeSettings::new(spec.address, spec.ports.first, spec.ports.last);
        let mut singles = pairs.clone();
        singles.port_use = threadbare_relay::PortUse::Mux;
        Ok(Range {
            name: InterfaceName(Arc::from(spec.name.as_str())),
            advertised: spec.advertised,
            pairs: PortRange::new(pairs)?,
            singles: PortRange::new(singles)?,
            spec: spec.clone(),
        })
    }

    fn precede_address(&self) {
        self.each().for_each(PortRange::precede_address);
    }

    fn each(&self) -> impl Iterator<Item = &PortRange> {
        [&self.pairs, &self.singles].into_iter()
    }

    /// Returns the range for this use, and then the range for the other use. Both have the same numbers.
    fn of(&self, port_use: PortUse) -> [&PortRange; 2] {
        match port_use {
            PortUse::Pair => [&self.pairs, &self.singles],
            PortUse::Single => [&self.singles, &self.pairs],
        }
    }
}

impl PortSource<LegPorts> for Interfaces {
    fn interfaces(&self) -> &[Interface] {
        &self.told
    }

    fn open(&mut self, request: &PortRequest) -> Result<Opened<LegPorts>, NoPorts> {
        let range = self.range(request)?;
        let [ports, _] = range.of(request.port_use);
        let ports = ports.lease().map_err(|error| NoPorts(error.to_string()))?;
        let told = |local: SocketAddr| SocketAddr::new(range.advertised, local.port());
        Ok(Opened {
            rtp: told(ports.rtp_address()),
            rtcp: ports.rtcp_address().map(told),
            ports: self.fenced(ports),
        })
    }

    fn reopen(
        &mut self,
        request: &PortRequest,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
    ) -> Result<LegPorts, NoPorts> {
        let has_rtcp = |ports: &LegPorts| {
            let opened = ports.rtcp_address().map(|local| local.port());
            opened == rtcp.map(|rtcp| rtcp.port())
        };
        let ports = match self.ahead.remove(&rtp).filter(has_rtcp) {
            Some(ports) => ports,
            None => self.open_again(request, rtp, rtcp)?,
        };
        Ok(self.fenced(ports))
    }
}

impl Interfaces {
    fn open_again(
        &self,
        request: &PortRequest,
        rtp: SocketAddr,
        rtcp: Option<SocketAddr>,
    ) -> Result<LegPorts, NoPorts> {
        let range = self.range(request)?;
        let (name, now, then) = (&range.name, range.advertised, rtp.ip());
        if now != then {
            let reason = format!(
                "interface {name} was advertised as {then}, and is now advertised as {now} (--address)"
            );
            return Err(NoPorts(reason));
        }
        let [ports, others] = range.of(request.port_use);
        let ports = ports.lease_at(rtp.port()).or_else(|_| {
            // The port may be in quarantine in the other range. Close it there, so that it can be opened again.
            others.close_resting();
            ports.lease_at(rtp.port())
        });
        let ports = ports.map_err(|error| NoPorts(error.to_string()))?;
        let opened = ports.rtcp_address().map(|local| local.port());
        if opened == rtcp.map(|rtcp| rtcp.port()) {
            Ok(ports)
        } else {
            Err(NoPorts(format!(
                "cannot open {rtp} again, because its RTCP port would differ"
            )))
        }
    }

    fn range(&self, request: &PortRequest) -> Result<&Range, NoPorts> {
        let is_meant = |range: &&Range| {
            range.name == request.interface && Family::of(range.advertised) == request.family
        };
        self.ranges.iter().find(is_meant).ok_or_else(|| {
            let (name, family) = (&request.interface, request.family.name());
            NoPorts(format!("interface {name} has no {family} address"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use threadbare_config::PortSpan;

    #[test]
    fn parties_get_the_advertised_address() {
        let spec = InterfaceSpec {
            name: "a".to_owned(),
            advertised: [203, 0, 113, 7].into(),
            ports: "20000-29999".parse().expect("a range"),
            ..InterfaceSpec::default()
        };
        let mut interfaces = Interfaces::new(&[spec]).expect("ranges");
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

    #[test]
    fn the_ports_of_a_previous_process_are_opened_again() {
        let request = PortRequest {
            interface: InterfaceName("a".into()),
            family: Family::V4,
            port_use: PortUse::Pair,
        };
        let of = |name: &str, advertised: [u8; 4], first, last| {
            let spec = InterfaceSpec {
                name: name.to_owned(),
                advertised: advertised.into(),
                ports: PortSpan { first, last },
                ..InterfaceSpec::default()
            };
            Interfaces::new(&[spec]).expect("ranges")
        };
        let mut before = of("a", [203, 0, 113, 7], 20_000, 29_999);
        let opened = before.open(&request).expect("ports");
        let (rtp, rtcp) = (opened.rtp, opened.rtcp);
        let error = before.reopen(&request, rtp, rtcp).expect_err("in use");
        assert!(
            error.to_string().contains(&rtp.port().to_string()),
            "{error}"
        );
        drop((opened, before));
        // These ports are opened even if they are outside of the new range.
        for (first, last) in [(20_000, 29_999), (40_000, 40_001)] {
            let mut after = of("a", [203, 0, 113, 7], first, last);
            let ports = after.reopen(&request, rtp, rtcp).expect("the same ports");
            assert_eq!(ports.rtp_address().port(), rtp.port());
            assert_eq!(
                ports.rtcp_address().map(|one| one.port()),
                Some(rtp.port() + 1)
            );
        }
        let mut moved = of("a", [203, 0, 113, 8], 20_000, 29_999);
        let error = moved
            .reopen(&request, rtp, rtcp)
            .expect_err("another address");
        assert!(
            error.to_string().contains("203.0.113.7") && error.to_string().contains("203.0.113.8"),
            "{error}"
        );
        let mut renamed = of("b", [127, 0, 0, 1], 20_000, 29_999);
        let error = renamed
            .reopen(&request, rtp, rtcp)
            .expect_err("no interface");
        assert!(error.to_string().contains("interface a"), "{error}");
    }

    #[test]
    fn ports_in_quarantine_as_a_pair_are_reopened_singly_and_the_reverse() {
        let request = |port_use| PortRequest {
            interface: InterfaceName("a".into()),
            family: Family::V4,
            port_use,
        };
        let spec = InterfaceSpec {
            name: "a".to_owned(),
            // The range has so few ports that after a call, all of them are in quarantine.
            ports: "20000-20007".parse().expect("a range"),
            ..InterfaceSpec::default()
        };
        let mut interfaces = Interfaces::new(&[spec]).expect("ranges");
        let opened = interfaces.open(&request(PortUse::Pair)).expect("ports");
        let (rtp, rtcp) = (opened.rtp, opened.rtcp);
        drop(opened);
        for (port_use, rtcp) in [
            (PortUse::Single, None),
            (PortUse::Pair, rtcp),
            (PortUse::Pair, rtcp),
            (PortUse::Single, None),
        ] {
            let ports = interfaces.reopen(&request(port_use), rtp, rtcp);
            let ports = ports.expect("ports in quarantine");
            assert_eq!(ports.rtp_address(), rtp);
        }
    }

    /// A program on the same machine may send requests from a port that a call used before, or will use later.
    #[test]
    fn a_port_belongs_to_a_call_only_while_it_is_open() {
        let spec = InterfaceSpec {
            advertised: [203, 0, 113, 7].into(),
            ports: "20000-29999".parse().expect("a range"),
            ..InterfaceSpec::default()
        };
        let mut interfaces = Interfaces::new(&[spec]).expect("ranges");
        for port_use in [PortUse::Pair, PortUse::Single] {
            let request = PortRequest {
                interface: InterfaceName("default".into()),
                family: Family::V4,
                port_use,
            };
            let opened = interfaces.open(&request).expect("ports");
            let local = opened.ports.rtp_address();
            let mut all = vec![local, opened.rtp];
            all.extend(opened.ports.rtcp_address());
            assert!(all.iter().all(|at| interfaces.has_port_in_use(*at)));
            let elsewhere = SocketAddr::from(([127, 0, 0, 2], local.port()));
            assert!(!interfaces.has_port_in_use(elsewhere));
            assert!(!interfaces.has_port_in_use(([127, 0, 0, 1], 2223).into()));
            drop(opened);
            assert!(!all.iter().any(|at| interfaces.has_port_in_use(*at)));
        }
    }

    /// The addresses are those of RFC 5737 and RFC 3849, which no machine has.
    #[test]
    fn ports_are_opened_before_the_machine_has_their_address() {
        for (address, family) in [
            (IpAddr::from([192, 0, 2, 77]), Family::V4),
            ("2001:db8::77".parse().expect("an address"), Family::V6),
        ] {
            let spec = InterfaceSpec {
                name: "a".to_owned(),
                address,
                advertised: address,
                ports: "20000-29999".parse().expect("a range"),
            };
            let request = PortRequest {
                interface: InterfaceName("a".into()),
                family,
                port_use: PortUse::Pair,
            };
            let mut interfaces = Interfaces::new(&[spec]).expect("ranges");
            let error = interfaces.open(&request).expect_err("no such address");
            assert!(error.to_string().contains(&address.to_string()), "{error}");
            interfaces.precede_addresses();
            let [rtp, rtcp, other] =
                [20_000, 20_001, 20_002].map(|port| SocketAddr::new(address, port));
            interfaces.open_ahead(&request, rtp, Some(rtcp));
            interfaces.open_ahead(&request, other, None);
            let ports = interfaces
                .reopen(&request, rtp, Some(rtcp))
                .expect("it was opened");
            let local = (Some(ports.rtp_address()), ports.rtcp_address());
            assert_eq!(local, (Some(rtp), Some(rtcp)));
            let error = interfaces.reopen(&request, rtp, Some(rtcp));
            error.expect_err("they are in use");
            drop(ports);
            // Ports that were not opened in advance are opened now.
            let rtcp = SocketAddr::new(address, 20_005);
            let rtp = SocketAddr::new(address, 20_004);
            interfaces
                .reopen(&request, rtp, Some(rtcp))
                .expect("it is free");
            interfaces.close_ahead();
            assert!(interfaces.ahead.is_empty());
        }
    }
}
