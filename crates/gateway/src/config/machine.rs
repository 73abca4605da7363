//! What the checks ask of a machine: its addresses, and those of other hosts.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Configuration checks that depend on the machine.
pub trait Machine {
    /// Whether a socket can be bound to this address.
    fn has_address(&self, ip: IpAddr) -> bool;
    /// The addresses of a host, or why there are none.
    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String>;
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn has_address(&self, ip: IpAddr) -> bool {
        UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
    }

    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let found = (host, 0).to_socket_addrs().map_err(|e| e.to_string())?;
        Ok(found.map(|address| address.ip()).collect())
    }
}
