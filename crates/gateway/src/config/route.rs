//! Checks whether a stream's packets can reach their destination: address families, loops, the machine's addresses.

use std::net::IpAddr;

use super::checker::Checker;
use super::raw::RawStream;
use super::{Destination, StreamSpec};

impl Checker<'_> {
    /// Refuses routes that never work, on any machine.
    pub(super) fn can_reach(&mut self, raw: &RawStream, spec: &StreamSpec) -> bool {
        let Destination::Fixed { host, port } = &spec.destination else {
            return true;
        };
        let Ok(ip) = host.parse::<IpAddr>() else {
            return true;
        };
        let allowed = if !can_send(spec, ip) {
            format!(
                "an address of the family that the stream listens on ({}), or `listen = \"[::]:{}\"`, which has both",
                spec.listen.ip(),
                spec.listen.port()
            )
        } else if *port == spec.listen.port() && is_own(spec.listen.ip(), ip) {
            format!(
                "another address than the stream's own, {}: its packets would come back to it for ever",
                spec.listen
            )
        } else {
            return true;
        };
        self.refuse(raw.destination.as_ref(), "destination", &allowed);
        false
    }

    /// Refuses routes that do not work on this machine.
    pub(super) fn machine_has(&mut self, raw: &RawStream, spec: &StreamSpec) {
        let Some(machine) = self.machine else { return };
        let listen = spec.listen.ip();
        if !listen.is_multicast() && !machine.has_address(listen) {
            let allowed = "an address of this machine, or 0.0.0.0 or [::] for all of them";
            self.refuse(Some(&raw.listen), "listen", allowed);
        }
        let Destination::Fixed { host, port } = &spec.destination else {
            return;
        };
        let found = match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![ip]),
            Err(_) => machine.resolve(host),
        };
        // The first address is the one that is sent to.
        let allowed = match found.as_deref() {
            Err(reason) => format!("the name of a host that can be looked up; {host}: {reason}"),
            Ok([]) => format!("the name of a host with an address; {host} has none"),
            Ok([ip, ..]) if !can_send(spec, *ip) => format!(
                "a host with an address of the family that the stream listens on ({listen}), or `listen = \"[::]:{}\"`, \
                 which has both",
                spec.listen.port()
            ),
            Ok([ip, ..])
                if *port == spec.listen.port()
                    && (is_own(listen, *ip)
                        || listen.is_unspecified() && machine.has_address(*ip)) =>
            {
                format!("another address than the stream's own, {}", spec.listen)
            }
            Ok([_, ..]) => return,
        };
        self.refuse(raw.destination.as_ref(), "destination", &allowed);
    }
}

/// Whether a stream's socket can send to `to`. Packets that go out as they came are sent from a socket of their own.
fn can_send(spec: &StreamSpec, to: IpAddr) -> bool {
    if spec.is_passthrough() {
        return true;
    }
    let from = spec.listen.ip();
    let has_both = from.is_ipv6() && from.is_unspecified();
    has_both || from.is_ipv4() == to.is_ipv4()
}

/// Whether packets to `to` arrive at a socket bound to `listen`.
fn is_own(listen: IpAddr, to: IpAddr) -> bool {
    let is_all = listen.is_unspecified() && (to.is_loopback() || to.is_unspecified());
    listen == to || is_all
}
