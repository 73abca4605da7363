//! A network namespace of the relay, with a link to the parties: their packets arrive on a device, as in production.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The relay's network namespace. It is removed when dropped.
pub(crate) struct Network {
    name: String,
}

impl Network {
    pub(crate) fn new() -> Result<Network> {
        let network = Network {
            name: format!("tb-calls-{}", std::process::id()),
        };
        let name = network.name.as_str();
        ip(&["netns", "add", name])?;
        ip(&[
            "link", "add", OUTSIDE, "type", "veth", "peer", "name", DEVICE, "netns", name,
        ])?;
        ip(&["addr", "add", &format!("{PARTIES}/30"), "dev", OUTSIDE])?;
        ip(&["link", "set", OUTSIDE, "up"])?;
        let inside = ["-n", name];
        for more in [
            vec!["addr", "add", &format!("{RELAY}/30"), "dev", DEVICE],
            vec!["link", "set", DEVICE, "up"],
            vec!["link", "set", "lo", "up"],
        ] {
            ip(&[&inside[..], &more].concat())?;
        }
        Ok(network)
    }

    /// A command that runs in the namespace, as the same process.
    pub(crate) fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A namespace ends some time later, and so would the link.
        let _ = ip(&["link", "del", OUTSIDE]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let done = Command::new("ip")
        .args(arguments)
        .output()
        .context("ip (of iproute2)")?;
    ensure!(
        done.status.success(),
        "ip {}: {} (needs root)",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// One of the addresses for measurements (RFC 2544, section C.2.2).
pub(crate) const PARTIES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const RELAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The relay's end of the link.
pub(crate) const DEVICE: &str = "tb-relay";
const OUTSIDE: &str = "tb-parties";
