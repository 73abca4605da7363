//! The policy for media destinations. [`MediaPolicy`] contains the rules. This module supplies the configured rules, the sockets of this
//! process, and the addresses of the machine.

use std::net::IpAddr;
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use threadbare_relay::Destinations;
use threadbare_rtp::policy::{MediaPolicy, MediaPorts};

use threadbare_config::{InterfaceSpec, MediaRules};

/// The current policy, and the handle that applies it to the relay.
#[derive(Debug)]
pub(super) struct Policy {
    /// The configured rules.
    pub(super) rules: MediaRules,
    /// Ports of this process other than those of calls.
    pub(super) services: Vec<u16>,
    now: Arc<MediaPolicy>,
    destinations: Destinations,
}

impl Policy {
    /// Creates a policy that has only the fixed rules.
    pub(super) fn new(destinations: Destinations) -> Policy {
        Policy {
            rules: MediaRules::default(),
            services: Vec::new(),
            now: Arc::default(),
            destinations,
        }
    }

    /// Reads the machine's addresses, and applies changes to the relay. Returns the policy if it has changed.
    pub(super) fn refresh<'a>(
        &mut self,
        interfaces: impl Iterator<Item = &'a InterfaceSpec>,
        service_addresses: impl Iterator<Item = &'a InterfaceSpec>,
    ) -> Option<Arc<MediaPolicy>> {
        let interfaces = interfaces.map(|spec| (spec, false));
        let all = interfaces.chain(service_addresses.map(|spec| (spec, true)));
        let media = all.map(|(spec, moves)| MediaPorts {
            address: spec.address,
            advertised: spec.advertised,
            first: spec.ports.first,
            last: spec.ports.last,
            moves,
        });
        let (own, broadcasts) = addresses();
        let policy = MediaPolicy {
            allow: self.rules.allow.clone(),
            deny: self.rules.deny.clone(),
            services: self.services.clone(),
            own,
            broadcasts,
            media: media.collect(),
        };
        if policy == *self.now {
            return None;
        }
        self.now = Arc::new(policy);
        self.destinations.set(self.now.clone());
        Some(self.now.clone())
    }
}

/// Returns this machine's addresses, and the broadcast addresses of its networks.
fn addresses() -> (Vec<IpAddr>, Vec<IpAddr>) {
    let all = getifaddrs().inspect_err(|error| {
        tracing::warn!(%error, "cannot read this machine's addresses, so calls may send to its services");
    });
    let (mut own, mut broadcasts) = (Vec::new(), Vec::new());
    for one in all.into_iter().flatten() {
        own.extend(one.address.as_ref().and_then(ip));
        broadcasts.extend(one.broadcast.as_ref().and_then(ip));
    }
    // Some clouds assign a network that consists of a single address. This address is then the broadcast address too.
    broadcasts.retain(|broadcast| !own.contains(broadcast));
    (own, broadcasts)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}
