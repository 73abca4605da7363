//! Checks whether a stream's packets can reach their destination. The checks are about address families, loops and the machine's addresses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use toml::Spanned;

use super::checker::{Checker, Route};
use super::raw::RawStream;
use super::{Destination, InputSpec, StreamSpec};

/// Refuses routes that work on no machine. `to` is the address of the destination, if it is known.
pub(super) fn can_reach(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    spec: &StreamSpec,
    to: Option<IpAddr>,
) -> bool {
    let (Destination::Fixed { port, .. }, Some(ip)) = (&spec.destination, to) else {
        return true;
    };
    let to = SocketAddr::new(ip, *port);
    // Only the stream's own address is checked here. The search for circles also checks the addresses of fallbacks.
    if to.port() == spec.listen.port() && arrives(checker, to.ip(), spec.listen.ip()) {
        let allowed = format!(
            "an address other than the stream's own address {}, because the packets would circulate endlessly",
            spec.listen
        );
        checker.refuse(raw.destination.as_ref(), "destination", &allowed);
        return false;
    }
    if let Some(destination) = &raw.destination {
        let fallbacks = spec
            .fallbacks
            .iter()
            .filter_map(|fallback| match &fallback.input {
                InputSpec::Rtp { listen, .. } => Some(*listen),
                _ => None,
            });
        for listen in std::iter::once(spec.listen).chain(fallbacks) {
            checker.seen.routes.push(Route {
                name: spec.name.clone(),
                listen,
                to,
                place: destination.span(),
            });
        }
    }
    true
}

/// Returns the address to which a stream sends. Host names are resolved only if the configuration is checked for a machine. Refuses
/// destinations that the stream's socket cannot reach.
pub(super) fn address_to(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    spec: &StreamSpec,
) -> Option<IpAddr> {
    let Destination::Fixed { host, .. } = &spec.destination else {
        return None;
    };
    let found = match (host.parse::<IpAddr>(), checker.machine) {
        (Ok(ip), _) => Ok(vec![ip]),
        (Err(_), Some(machine)) => machine.resolve(host),
        (Err(_), None) => return None,
    };
    let listen = spec.listen.ip();
    let allowed = match found {
        Err(reason) => {
            format!("a host name that can be resolved; resolving {host} failed: {reason}")
        }
        Ok(all) if all.is_empty() => {
            format!("the name of a host with an address; {host} has none")
        }
        // At run time, the stream also uses the first address that its socket can reach.
        Ok(all) => match all.into_iter().find(|ip| can_send(listen, *ip)) {
            Some(ip) => return Some(ip),
            None => format!(
                "an address of the family that the stream listens on ({listen}), or `listen = \"[::]:{}\"`, which has both",
                spec.listen.port()
            ),
        },
    };
    checker.refuse(raw.destination.as_ref(), "destination", &allowed);
    None
}

/// Refuses listening addresses that this machine does not have.
pub(super) fn machine_has(checker: &mut Checker<'_>, raw: &Spanned<String>, listen: SocketAddr) {
    let Some(machine) = checker.machine else {
        return;
    };
    let listen = listen.ip();
    if !listen.is_multicast() && !machine.has_address(listen) {
        let allowed = "an address of this machine, or 0.0.0.0 or [::] for all of them";
        checker.refuse(Some(raw), "listen", allowed);
    }
}

/// Refuses streams whose packets would go round in a circle.
pub(super) fn runs_in_no_circle(checker: &mut Checker<'_>) {
    let routes = std::mem::take(&mut checker.seen.routes);
    let mut listeners: HashMap<u16, Vec<usize>> = HashMap::new();
    for (index, route) in routes.iter().enumerate() {
        let port = route.listen.port();
        listeners.entry(port).or_default().push(index);
    }
    // Each stream sends to at most one other stream. If a walk from stream to stream reaches a stream again, there is a circle.
    let mut walks = vec![0; routes.len()];
    for start in 0..routes.len() {
        let (mut at, mut path) = (Some(start), Vec::new());
        while let Some(index) = at.filter(|index| walks[*index] == 0) {
            walks[index] = start + 1;
            path.push(index);
            let to = routes[index].to;
            let heard = listeners.get(&to.port()).into_iter().flatten();
            let mut heard =
                heard.filter(|other| arrives(checker, to.ip(), routes[**other].listen.ip()));
            at = heard.next().copied();
        }
        let Some(begin) = at.filter(|index| walks[*index] == start + 1) else {
            continue;
        };
        let circle = path.iter().skip_while(|index| **index != begin);
        let names = circle.map(|index| format!("{:?}", routes[*index].name));
        let names: Vec<_> = names.take(NAMES_MAX).collect();
        checker.problems.add(
            format!("`destination` cannot be {:?}", routes[begin].to.to_string()),
            &format!(
                "streams that send to each other in a circle would repeat packets endlessly: {}",
                names.join(", ")
            ),
            &[(routes[begin].place.clone(), "this value")],
        );
        return;
    }
}

/// Whether packets to `to` arrive at a socket bound to `listen`.
fn arrives(checker: &Checker<'_>, to: IpAddr, listen: IpAddr) -> bool {
    let has_both = listen.is_ipv6() || to.is_ipv4();
    listen == to
        || listen.is_unspecified()
            && has_both
            && (to.is_loopback()
                || to.is_unspecified()
                || checker
                    .machine
                    .is_some_and(|machine| machine.has_address(to)))
}

/// Whether a stream's socket can send to `to`.
fn can_send(from: IpAddr, to: IpAddr) -> bool {
    let has_both = from.is_ipv6() && from.is_unspecified();
    has_both || from.is_ipv4() == to.is_ipv4()
}

/// Maximum number of streams of a circle that are named in a message.
const NAMES_MAX: usize = 8;
