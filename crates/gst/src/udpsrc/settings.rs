//! The properties of `ts-udpsrc` as plain values, and its URI.

use gst::glib;

use crate::kit::socket::{GivenSocket, format_host_port, split_host_port};

/// Values of the properties. Read when the element leaves NULL and READY.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) address: String,
    pub(super) port: i32,
    pub(super) reuse: bool,
    pub(super) caps: Option<gst::Caps>,
    pub(super) mtu: u32,
    pub(super) retrieve_sender_address: bool,
    pub(super) buffer_size: i32,
    pub(super) multicast_source: Option<String>,
    pub(super) socket: Option<GivenSocket>,
    pub(super) close_socket: bool,
    pub(super) timeout_ns: u64,
    pub(super) skip_first_bytes: i32,
    pub(super) socket_timestamp: SocketTimestamp,
    pub(super) do_timestamp: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            address: "0.0.0.0".into(),
            port: 5004,
            reuse: true,
            caps: None,
            mtu: MTU_DEFAULT,
            retrieve_sender_address: true,
            buffer_size: 0,
            multicast_source: None,
            socket: None,
            close_socket: true,
            timeout_ns: 0,
            skip_first_bytes: 0,
            socket_timestamp: SocketTimestamp::Disabled,
            do_timestamp: true,
        }
    }
}

/// An Ethernet frame's payload less some tunnel headers; the stock element's default.
pub(super) const MTU_DEFAULT: u32 = 1492;
/// The stock element's limit.
pub(super) const MTU_MAX: u32 = i32::MAX as u32;
/// Maximum buffer size, because no UDP datagram is larger (RFC 768: 16 bits of length).
const DATAGRAM_MAX: u32 = 65_536;

/// Clock of the `GstReferenceTimestampMeta` on each buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareSocketTimestamp")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum SocketTimestamp {
    /// No timestamps in addition to the buffer's own.
    #[default]
    #[enum_value(name = "Disable additional timestamps", nick = "disabled")]
    Disabled,
    /// The kernel's receive time.
    #[enum_value(
        name = "Timestamp with realtime clock (nsec resolution, may not be monotonic)",
        nick = "realtime"
    )]
    Realtime,
}

impl Settings {
    /// Returns the size, in bytes, of the buffers into which packets are received.
    pub(super) fn buffer_bytes(&self) -> u32 {
        self.mtu.clamp(1, DATAGRAM_MAX)
    }

    pub(super) fn port(&self) -> u16 {
        u16::try_from(self.port).unwrap_or(0)
    }

    pub(super) fn has_place_of(&self, other: &Settings) -> bool {
        (&self.address, self.port) == (&other.address, other.port)
    }

    /// Whether the kernel's receive time of each packet is needed.
    pub(super) fn wants_timestamps(&self) -> bool {
        self.do_timestamp || self.socket_timestamp == SocketTimestamp::Realtime
    }

    /// `udp://host:port`, as in the stock element.
    pub(super) fn uri(&self) -> String {
        format!("udp://{}", format_host_port(&self.address, self.port))
    }

    /// Parses `udp://[source@]host[:port][?multicast-source=+a+b]`; the default port is 5004.
    pub(super) fn set_uri(&mut self, uri: &str) -> Result<(), glib::Error> {
        let bad = |what: &str| {
            glib::Error::new(
                gst::URIError::BadUri,
                &format!("'{uri}': {what}; expected udp://host:port"),
            )
        };
        let rest = uri
            .strip_prefix("udp://")
            .ok_or_else(|| bad("the URI does not begin with udp://"))?;
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (source, host_port) = match authority.split_once('@') {
            Some((source, host)) => (Some(source), host),
            None => (None, authority),
        };
        let (host, port) = split_host_port(host_port.trim_end_matches('/'))
            .ok_or_else(|| bad("the host or the port is invalid"))?;
        self.multicast_source = source.filter(|s| !s.is_empty()).map(|s| format!("+{s}"));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("multicast-source", value)) => self.multicast_source = Some(value.into()),
                _ => {
                    return Err(bad(
                        "the query is unknown; only multicast-source is supported",
                    ));
                }
            }
        }
        self.address = if host.is_empty() {
            "0.0.0.0".into()
        } else {
            host.into()
        };
        self.port = port.unwrap_or(5004).into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_round_trip() {
        for (uri, address, port) in [
            ("udp://127.0.0.1:6000", "127.0.0.1", 6000),
            ("udp://[ff02::1]:6000", "ff02::1", 6000),
            ("udp://example.org", "example.org", 5004),
            ("udp://:7", "0.0.0.0", 7),
        ] {
            let mut settings = Settings::default();
            settings.set_uri(uri).unwrap();
            assert_eq!((settings.address.as_str(), settings.port), (address, port));
            let mut again = Settings::default();
            again.set_uri(&settings.uri()).unwrap();
            assert_eq!(
                (again.address, again.port),
                (settings.address, settings.port)
            );
        }
        let mut settings = Settings::default();
        settings.set_uri("udp://10.0.0.1@232.1.2.3:5000").unwrap();
        assert_eq!(settings.multicast_source.as_deref(), Some("+10.0.0.1"));
    }

    #[test]
    fn bad_uris_are_refused() {
        for uri in [
            "rtp://1.2.3.4:5",
            "udp://1.2.3.4:99999",
            "udp://[::1",
            "udp://a:1?x=2",
        ] {
            assert!(Settings::default().set_uri(uri).is_err(), "{uri}");
        }
    }
}
