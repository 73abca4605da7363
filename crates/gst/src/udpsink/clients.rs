//! The destinations of a `ts-udpsink`.

use std::net::SocketAddr;

use threadbare_runtime::RawAddr;

use crate::kit::socket::{SocketError, resolve};

/// One destination. Laid out by hand: the fields of each packet come first.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct Client {
    pub(super) raw: RawAddr,
    /// How often it was added.
    pub(super) uses: u32,
    pub(super) is_ipv4: bool,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) errors: u64,
    pub(super) address: SocketAddr,
    /// As the user wrote it.
    pub(super) host: String,
    /// When it was added and removed, ns since the epoch.
    pub(super) connect_ns: u64,
}

impl Client {
    pub(super) fn new(host: &str, port: u16, now_ns: u64) -> Result<Self, SocketError> {
        let address = resolve(host, port)?;
        Ok(Client {
            host: host.to_owned(),
            address,
            raw: address.into(),
            uses: 1,
            is_ipv4: address.is_ipv4(),
            packets: 0,
            bytes: 0,
            errors: 0,
            connect_ns: now_ns,
        })
    }

    pub(super) fn is(&self, host: &str, port: u16) -> bool {
        self.host == host && self.address.port() == port
    }
}

/// Why a list of clients was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "client '{client}': expected host:port with a port from 1 to 65535, [address]:port for IPv6"
)]
pub(super) struct BadClient {
    client: String,
}

/// Takes `host:port,host:port` apart.
pub(super) fn parse(list: &str) -> Result<Vec<(String, u16)>, BadClient> {
    list.split(',')
        .map(str::trim)
        .filter(|client| !client.is_empty())
        .map(|client| {
            let bad = || BadClient {
                client: client.to_owned(),
            };
            let (host, port) = client.rsplit_once(':').ok_or_else(bad)?;
            let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
            let host = host
                .strip_prefix('[')
                .and_then(|h| h.strip_suffix(']'))
                .unwrap_or(host);
            if host.is_empty() {
                return Err(bad());
            }
            Ok((host.to_owned(), port))
        })
        .collect()
}

/// Writes a list in the format of [`parse`].
pub(super) fn format<'a>(clients: impl Iterator<Item = (&'a str, u16)>) -> String {
    let parts: Vec<String> = clients
        .map(|(host, port)| {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip() {
        let list = "127.0.0.1:5004,[::1]:6000,localhost:7";
        let clients = parse(list).unwrap();
        assert_eq!(clients[1], ("::1".to_owned(), 6000));
        assert_eq!(format(clients.iter().map(|(h, p)| (h.as_str(), *p))), list);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn bad_clients_are_named() {
        for bad in ["127.0.0.1", "a:0", "a:65536", ":5", "a:b"] {
            let error = parse(&format!("ok:1,{bad}")).unwrap_err();
            assert_eq!(error.client, bad);
        }
    }
}
