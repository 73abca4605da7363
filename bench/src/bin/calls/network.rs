//! A network namespace for the relay, with a link to the parties. Because of the link, packets arrive on a network device, as in
//! production.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The relay's network namespace. It is removed on drop.
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

    /// Returns a command that runs a program in the namespace. `ip netns exec` replaces itself by the program, so both have the same
    /// process id.
    pub(crate) fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel removes a namespace, and the links in it, only some time later. So the link is removed explicitly.
        let _ = ip(&["link", "del", OUTSIDE]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let done = Command::new("ip")
        .args(arguments)
        .output()
        .context("cannot run the program ip (Debian package iproute2)")?;
    ensure!(
        done.status.success(),
        "the command `ip {}` failed, perhaps because it needs root rights: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// Address of the parties. It is from the range for measurements (RFC 2544, section C.2.2).
pub(crate) const PARTIES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const RELAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Network device at the relay's end of the link.
pub(crate) const DEVICE: &str = "tb-relay";
const OUTSIDE: &str = "tb-parties";
