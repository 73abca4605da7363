//! Computes the requirements of a configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::run::descriptors_needed;
use threadbare_config::{Config, InputSpec, PortSpan, Serving};

/// The open files and ports that a configuration needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// Number of open files. `None`: no configuration was given.
    pub(super) descriptors: Option<u64>,
    /// Media ports, each with its address.
    pub(super) ports: Vec<(IpAddr, PortSpan)>,
}

impl Default for Needs {
    /// Returns the requirements of `threadbare serve` without arguments.
    fn default() -> Self {
        Needs {
            descriptors: None,
            ports: ports_of_calls(&Serving::default()),
        }
    }
}

impl Needs {
    pub(super) fn of(config: &Config) -> Needs {
        let mut ports: Vec<_> = config.serving.iter().flat_map(ports_of_calls).collect();
        ports.extend(ports_of_streams(config));
        Needs {
            descriptors: Some({
                let (streams, calls) = descriptors_needed(config);
                streams + calls
            }),
            ports,
        }
    }
}

fn ports_of_calls(serving: &Serving) -> Vec<(IpAddr, PortSpan)> {
    let interfaces = serving.interfaces.iter();
    interfaces.map(|one| (one.address, one.ports)).collect()
}

/// Returns the ports of the streams, with adjacent ports merged into one span.
fn ports_of_streams(config: &Config) -> Vec<(IpAddr, PortSpan)> {
    let mut all = BTreeSet::new();
    for stream in &config.streams {
        all.insert((stream.listen.ip(), stream.listen.port()));
        all.extend(stream.rtcp_port().map(|port| (stream.listen.ip(), port)));
        for fallback in &stream.fallbacks {
            if let InputSpec::Rtp { listen, .. } = &fallback.input {
                let rtcp = stream.rtcp_port_of(*listen);
                all.extend(
                    [Some(*listen), rtcp]
                        .iter()
                        .flatten()
                        .map(|one| (one.ip(), one.port())),
                );
            }
        }
    }
    let mut spans: Vec<(IpAddr, PortSpan)> = Vec::new();
    for (ip, port) in all {
        match spans.last_mut() {
            Some((last_ip, span)) if *last_ip == ip && span.last.checked_add(1) == Some(port) => {
                span.last = port;
            }
            _ => spans.push((
                ip,
                PortSpan {
                    first: port,
                    last: port,
                },
            )),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_descriptors_that_a_configuration_needs_are_counted() {
        let text = "[[stream]]\nname = \"a\"\nlisten = \"0.0.0.0:20000\"\ndestination = \"127.0.0.1:9\"\ncount = 3\nstep = 2\n\
                    [[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:7000\"\ndestination = \"127.0.0.1:9\"\nrtcp = \"mux\"\n\
                    [interfaces.default]\naddress = \"127.0.0.1\"\nports = \"30000-30999\"\n[limits]\nmax-sessions = 100\n";
        let config = Config::from_toml("doctor.toml", text).expect("good");
        let needs = Needs::of(&config);
        let ports: Vec<_> = needs
            .ports
            .iter()
            .map(|(ip, span)| format!("{ip} {span}"))
            .collect();
        assert_eq!(
            ports,
            [
                "127.0.0.1 30000-30999",
                "0.0.0.0 20000-20005",
                "127.0.0.1 7000-7000"
            ]
        );
        // This is the number in the warning of `run`: four descriptors for each stream and call, and 64 for everything else.
        assert_eq!(needs.descriptors, Some(4 * 4 + 100 * 4 + 64));
    }
}
