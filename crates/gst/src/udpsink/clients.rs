//! The destinations of a `ts-udpsink`.

use std::net::SocketAddr;

use threadbare_runtime::RawAddr;

use crate::kit::resolve::numeric;

/// The destinations, in the order of their additions.
///
/// The stock element counts how often a destination was added. `send-duplicates` decides whether each addition sends another
/// packet; each addition needs its own removal. Programs written for thread-sharing sinks without that property may add a
/// destination twice, and expect each packet once. So additions count only when the property is set.
#[derive(Debug, Default)]
pub(super) struct Clients {
    list: Vec<Client>,
    pub(super) send_duplicates: Option<bool>,
    next_id: u64,
}

/// One destination. The layout is fixed: fields used for each packet come first.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct Client {
    pub(super) raw: RawAddr,
    /// Number of times it was added.
    uses: u32,
    pub(super) is_ipv4: bool,
    /// Whether the host's address is known. Until then, nothing is sent.
    pub(super) is_resolved: bool,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) errors: Errors,
    pub(super) address: Option<SocketAddr>,
    /// The host as configured.
    pub(super) host: String,
    pub(super) port: u16,
    /// Identifies this entry. A later entry with the same host has another number.
    pub(super) id: u64,
    /// Time of the addition, ns since the epoch.
    pub(super) connect_ns: u64,
}

impl Client {
    fn new(host: &str, port: u16, now_ns: u64, id: u64) -> Self {
        let mut client = Client {
            raw: RawAddr::empty(),
            uses: 1,
            is_ipv4: false,
            is_resolved: false,
            packets: 0,
            bytes: 0,
            errors: Errors::default(),
            address: None,
            host: host.to_owned(),
            port,
            id,
            connect_ns: now_ns,
        };
        if let Some(address) = numeric(host, port) {
            client.set_address(address);
        }
        client
    }

    fn set_address(&mut self, address: SocketAddr) {
        self.raw = address.into();
        self.is_ipv4 = address.is_ipv4();
        self.is_resolved = true;
        self.address = Some(address);
    }

    /// Notes that a packet was not sent; `reason` is an errno.
    #[cold]
    pub(super) fn failed(&mut self, reason: i32) {
        self.errors.count(reason);
    }

    fn is(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port == port
    }
}

/// The result of an addition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u64,
    /// Whether no client with this host and port existed before.
    pub(super) is_new: bool,
    /// Whether the client's count has increased, so that `client-added` is due.
    pub(super) is_told: bool,
}

impl Clients {
    pub(super) fn all(&self) -> &[Client] {
        &self.list
    }

    pub(super) fn all_mut(&mut self) -> &mut [Client] {
        &mut self.list
    }

    pub(super) fn add(&mut self, host: &str, port: u16, now_ns: u64) -> Added {
        if let Some(known) = self.list.iter_mut().find(|client| client.is(host, port)) {
            known.uses += 1;
            return Added {
                id: known.id,
                is_new: false,
                is_told: self.send_duplicates.is_some(),
            };
        }
        let id = self.next_id;
        self.next_id += 1;
        self.list.push(Client::new(host, port, now_ns, id));
        Added {
            id,
            is_new: true,
            is_told: true,
        }
    }

    /// Removes one addition, or the client if additions are not counted. Returns `None` for an unknown client, `Some(None)` if
    /// the client stays, and the client if it is removed now.
    pub(super) fn remove(&mut self, host: &str, port: u16) -> Option<Option<Client>> {
        let at = self.list.iter().position(|client| client.is(host, port))?;
        let client = &mut self.list[at];
        if self.send_duplicates.is_some() && client.uses > 1 {
            client.uses -= 1;
            return Some(None);
        }
        Some(Some(self.list.remove(at)))
    }

    /// Removes a client, however often it was added.
    pub(super) fn remove_id(&mut self, id: u64) -> Option<Client> {
        let at = self.list.iter().position(|client| client.id == id)?;
        Some(self.list.remove(at))
    }

    pub(super) fn clear(&mut self) -> Vec<Client> {
        std::mem::take(&mut self.list)
    }

    /// Moves a client to the front.
    pub(super) fn put_first(&mut self, id: u64) {
        if let Some(at) = self.list.iter().position(|client| client.id == id) {
            self.list[..=at].rotate_right(1);
        }
    }

    pub(super) fn first(&self) -> Option<(String, u16)> {
        let client = self.list.first()?;
        Some((client.host.clone(), client.port))
    }

    pub(super) fn find(&self, host: &str, port: u16) -> Option<&Client> {
        self.list.iter().find(|client| client.is(host, port))
    }

    /// Sets the address of a client's host. Returns `false` if the client was removed.
    pub(super) fn set_address(&mut self, id: u64, address: SocketAddr) -> bool {
        let client = self.list.iter_mut().find(|client| client.id == id);
        client.map(|client| client.set_address(address)).is_some()
    }

    /// Clients whose hosts are not resolved yet.
    pub(super) fn unresolved(&self) -> Vec<Client> {
        let without = self.list.iter().filter(|client| !client.is_resolved);
        without.cloned().collect()
    }

    /// Returns the number of entries of a client in the list.
    pub(super) fn times(&self, client: &Client) -> u32 {
        self.send_duplicates.map_or(1, |_| client.uses)
    }

    /// Returns the number of copies of a packet that a client gets.
    #[inline]
    pub(super) fn copies(&self, client: &Client) -> u32 {
        match self.send_duplicates {
            Some(true) => client.uses,
            _ => 1,
        }
    }

    /// Returns the list in the format of [`parse`].
    pub(super) fn text(&self) -> String {
        format(self.list.iter().flat_map(|client| {
            (0..self.times(client)).map(|_| (client.host.as_str(), client.port))
        }))
    }
}

/// Counts of packets that were not sent to a client, by the system's error. Bounded: some 130 errors exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Errors {
    counts: Vec<(i32, u64)>,
    last: Option<i32>,
}

impl Errors {
    fn count(&mut self, reason: i32) {
        self.last = Some(reason);
        match self.counts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((reason, 1)),
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Returns the system's text for the last one.
    pub(super) fn last_text(&self) -> Option<String> {
        let error = std::io::Error::from_raw_os_error(self.last?);
        Some(error.to_string())
    }

    /// Returns a count for each reason, by its name in errno(3).
    pub(super) fn structure(&self) -> gst::Structure {
        let builder = gst::Structure::builder("errors");
        let counts = self.counts.iter();
        counts
            .fold(builder, |all, (reason, count)| {
                all.field(errno_name(*reason), *count)
            })
            .build()
    }
}

/// Returns the name of an error of sending (send(2), ip(7), udp(7)), or the number of any other error.
fn errno_name(reason: i32) -> String {
    let name = match reason {
        libc::EACCES => "EACCES",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EDESTADDRREQ => "EDESTADDRREQ",
        libc::EHOSTDOWN => "EHOSTDOWN",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::EINVAL => "EINVAL",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::ENETDOWN => "ENETDOWN",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ENOBUFS => "ENOBUFS",
        libc::ENOMEM => "ENOMEM",
        libc::EPERM => "EPERM",
        other => return format!("errno-{other}"),
    };
    name.to_owned()
}

/// Why a list of clients was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "client '{client}': expected host:port with a port from 1 to 65535, or [address]:port for IPv6"
)]
pub(super) struct BadClient {
    client: String,
}

/// Parses `host:port,host:port`.
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
    fn lists_of_clients_round_trip() {
        let list = "127.0.0.1:5004,[::1]:6000,localhost:7";
        let clients = parse(list).unwrap();
        assert_eq!(clients[1], ("::1".to_owned(), 6000));
        assert_eq!(format(clients.iter().map(|(h, p)| (h.as_str(), *p))), list);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn invalid_clients_are_refused_by_name() {
        for bad in ["127.0.0.1", "a:0", "a:65536", ":5", "a:b"] {
            let error = parse(&format!("ok:1,{bad}")).unwrap_err();
            assert_eq!(error.client, bad);
        }
    }

    #[test]
    fn a_host_name_keeps_its_place_in_the_list_until_it_is_resolved() {
        let mut clients = Clients::default();
        for host in ["10.0.0.1", "name", "10.0.0.2"] {
            clients.add(host, 7, 0);
        }
        assert_eq!(clients.text(), "10.0.0.1:7,name:7,10.0.0.2:7");
        let unresolved = clients.unresolved();
        assert_eq!(unresolved.len(), 1);
        let id = unresolved[0].id;
        assert!(clients.set_address(id, "10.0.0.3:7".parse().unwrap()));
        assert!(clients.unresolved().is_empty());
        clients.put_first(id);
        assert_eq!(clients.text(), "name:7,10.0.0.1:7,10.0.0.2:7");
        // Removed and added again: a new client, to which an earlier answer does not apply.
        clients.remove("name", 7).unwrap();
        assert!(clients.add("name", 7, 0).is_new);
        assert!(!clients.set_address(id, "10.0.0.4:7".parse().unwrap()));
        assert_eq!(clients.unresolved().len(), 1);
    }

    #[test]
    fn errors_are_counted_by_reason() {
        gst::init().unwrap();
        let mut errors = Errors::default();
        for reason in [libc::EMSGSIZE, libc::ENETUNREACH, libc::EMSGSIZE, 9999] {
            errors.count(reason);
        }
        let structure = errors.structure();
        assert_eq!(structure.get::<u64>("EMSGSIZE"), Ok(2));
        assert_eq!(structure.get::<u64>("ENETUNREACH"), Ok(1));
        assert_eq!(structure.get::<u64>("errno-9999"), Ok(1));
        assert_eq!(errors.total(), 4);
    }
}
