//! Settings of the calls of SIP proxies and programs: interfaces, limits, time-outs and access.
//!
//! The tables of a file and the arguments of `threadbare serve` both become a [`Serving`], so the same rules apply to them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use threadbare_rtp::leg::Network;
use threadbare_xdp::Settings as XdpSettings;

use super::call_fallback::CallFallback;
use super::machine::Machine;
use super::record::RecordSpec;
use super::recording_format::RecordingFormat;
use super::service::ServiceAddress;

/// Settings of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// UDP address for proxies' requests in the ng protocol.
    pub ng: SocketAddr,
    /// TCP address for proxies' requests. `None`: requests over TCP are not accepted.
    pub ng_tcp: Option<SocketAddr>,
    /// Networks that may send requests. If the list is empty, all networks may.
    pub allow: Vec<Network>,
    /// Settings of HTTP. `None`: there is no HTTP server.
    pub http: Option<HttpSpec>,
    /// Local addresses of the media. There is at least one, and the first one is the default interface.
    pub interfaces: Vec<InterfaceSpec>,
    /// Limits above which new calls are refused.
    pub limits: Limits,
    /// Time-outs of calls.
    pub timeouts: Timeouts,
    /// Number of media threads. 0: one for each processor.
    pub threads: u32,
    /// Delay of the jitter buffers in ms. `None`: [`LATENCY_MS_DEFAULT`](Serving::LATENCY_MS_DEFAULT) for transcoded audio, and no delay
    /// for packets that are forwarded unchanged.
    pub latency_ms: Option<u32>,
    /// Measure the loudness of each party.
    pub meter: bool,
    /// The sound that a party hears while the other party sends nothing. `None`: it hears nothing.
    pub fallback: Option<CallFallback>,
    /// Rules for media destinations. They are added to the fixed rules.
    pub media: MediaRules,
    /// Devices on which packets bypass the sockets. `None`: all media use sockets.
    pub xdp: Option<XdpSettings>,
    /// Folder of recordings. `None`: calls cannot be recorded.
    pub recording_dir: Option<PathBuf>,
    /// Format of recordings whose file name has no known extension.
    pub recording_format: RecordingFormat,
    /// Settings for recording all calls. `None`: only requested recordings are made.
    pub record: Option<RecordSpec>,
    /// Place where calls are saved.
    pub state: StateLocation,
    /// File of CDRs. `None`: ended calls are only logged.
    pub records: Option<PathBuf>,
    /// Service addresses of `[cluster]`. Calls use these addresses, and move to other nodes with them. If the list is empty, calls do not
    /// move.
    pub service_addresses: Vec<ServiceAddress>,
}

/// Networks to which media may or may not be sent. [`MediaPolicy`](threadbare_rtp::policy::MediaPolicy) applies these rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaRules {
    /// Networks to which no media are sent.
    pub deny: Vec<Network>,
    /// Exceptions from `deny`, from the rule for loopback, and from the rule for other media ports.
    pub allow: Vec<Network>,
}

/// The place where data are saved that outlive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StateLocation {
    /// The folder of systemd's `StateDirectory=`. If it is not set, the data are not saved.
    #[default]
    OfSystemd,
    /// This file or folder.
    At(PathBuf),
    /// No place. The data are not saved.
    Off,
}

impl StateLocation {
    /// Returns the file or folder. `name` is its name in systemd's folder. `None`: the data are not saved.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match self {
            StateLocation::Off => None,
            StateLocation::At(path) => Some(path.clone()),
            StateLocation::OfSystemd => {
                let folders = std::env::var_os("STATE_DIRECTORY")?;
                // Systemd may set several folders, of which the first one is used.
                let folder = std::env::split_paths(&folders).next()?;
                Some(folder.join(name))
            }
        }
    }
}

/// Settings of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSpec {
    /// Address at which HTTP requests are accepted.
    pub listen: SocketAddr,
    /// File with the token that requests must contain. `None`: requests need no token, but their `Host` must be this machine.
    pub token_file: Option<PathBuf>,
}

/// A local address for media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// Name to which `direction` and `interface` in requests refer.
    pub name: String,
    /// Address at which ports are opened.
    pub address: IpAddr,
    /// Address that is advertised to parties.
    pub advertised: IpAddr,
    /// The ports of the media.
    pub ports: PortSpan,
}

/// Limits above which new calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of media streams of calls.
    pub max_sessions: u32,
    /// Maximum lateness of slices in ms. New calls are refused if the slices of all media threads are later.
    pub lateness_ms: u32,
    /// Maximum load in per cent. New calls are refused if all media threads are busier.
    pub cpu_percent: u32,
}

/// Time-outs in seconds; 0 switches a time-out off. `delete_delay_s` is a delay; with 0, the call ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time after which a call without media ends.
    pub media_s: u32,
    /// Time after which a held or muted call without media ends.
    pub silent_s: u32,
    /// Time after which any call ends.
    pub final_s: u32,
    /// Time after which a call ends if its offer has no answer.
    pub offer_s: u32,
    /// Delay between a request to end a call and the end of the call.
    pub delete_delay_s: u32,
}

impl Serving {
    /// Default delay of jitter buffers in ms. It is the duration of two packets.
    pub const LATENCY_MS_DEFAULT: u32 = 40;
}

impl Default for Serving {
    fn default() -> Self {
        Serving {
            ng: SocketAddr::from((Ipv4Addr::LOCALHOST, NG_PORT)),
            ng_tcp: None,
            allow: Vec::new(),
            http: None,
            interfaces: vec![InterfaceSpec::default()],
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            threads: 0,
            latency_ms: None,
            meter: false,
            fallback: None,
            media: MediaRules::default(),
            xdp: None,
            recording_dir: None,
            recording_format: RecordingFormat::default(),
            record: None,
            state: StateLocation::default(),
            records: None,
            service_addresses: Vec::new(),
        }
    }
}

impl Default for InterfaceSpec {
    fn default() -> Self {
        InterfaceSpec {
            name: DEFAULT_NAME.to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            advertised: Ipv4Addr::LOCALHOST.into(),
            ports: PortSpan::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_sessions: 16_384,
            lateness_ms: 40,
            cpu_percent: 100,
        }
    }
}

/// The defaults are those of rtpengine, except for the time-out of offers.
impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            media_s: 60,
            silent_s: 3600,
            final_s: 10_800,
            offer_s: 300,
            delete_delay_s: 30,
        }
    }
}

/// A setting of [`Serving`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`Serving::ng`].
    Ng,
    /// [`Serving::ng_tcp`].
    NgTcp,
    /// [`Serving::http`].
    Http,
    /// One of [`Serving::interfaces`].
    Interface(usize),
    /// [`Serving::recording_dir`].
    RecordingDir,
    /// The devices of [`Serving::xdp`].
    Xdp,
}

/// A refused setting with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The setting.
    pub setting: Setting,
    /// The value as an operator writes it.
    pub value: String,
    /// The reason.
    pub reason: String,
    /// The advice to the user.
    pub help: &'static str,
}

impl Serving {
    /// Returns the settings that are refused on any machine.
    #[must_use]
    pub fn refused(&self) -> Vec<Refusal> {
        let mut refused = Vec::new();
        let by_udp = Some((Setting::Ng, self.ng));
        let by_tcp = self.ng_tcp.map(|address| (Setting::NgTcp, address));
        for (setting, address) in by_udp.into_iter().chain(by_tcp) {
            if address.ip().is_loopback() || !self.allow.is_empty() {
                continue;
            }
            refused.push(Refusal {
                setting,
                value: address.to_string(),
                reason: "anyone who reaches this address could redirect all calls, because `allow` is missing"
                    .to_owned(),
                help: "list the proxies that may send requests, such as --allow 192.0.2.10, or allow = [\"10.0.0.0/8\"] in a file",
            });
        }
        if let Some(http) = &self.http
            && !http.listen.ip().is_loopback()
            && http.token_file.is_none()
        {
            refused.push(Refusal {
                setting: Setting::Http,
                value: http.listen.to_string(),
                reason: "anyone who reaches this address could end all calls, because the token file is missing".to_owned(),
                help: "create one, such as with openssl rand -hex 32 > FILE, and pass it with --http-token-file FILE, or as `token-file` in the file",
            });
        }
        for (at, one) in self.interfaces.iter().enumerate() {
            let same = |other: &InterfaceSpec| {
                other.name == one.name && other.address.is_ipv4() == one.address.is_ipv4()
            };
            if self.interfaces[..at].iter().any(same) {
                refused.push(Refusal {
                    setting: Setting::Interface(at),
                    value: one.address.to_string(),
                    reason: format!("interface {} already has an address of this family", one.name),
                    help: "an interface has one IPv4 and one IPv6 address; give the other one a name, such as inside/10.0.0.1",
                });
            }
            if !self.service_addresses.is_empty() && !self.is_of_service(one.address) {
                refused.push(Refusal {
                    setting: Setting::Interface(at),
                    value: one.address.to_string(),
                    reason: "the address is not one of the [cluster] service-addresses, so it would not move with the calls".to_owned(),
                    help: "with service addresses, each interface must have one of them",
                });
            }
        }
        refused
    }

    fn is_of_service(&self, address: IpAddr) -> bool {
        let mut moved = self.service_addresses.iter();
        moved.any(|moved| moved.address == address)
    }

    /// Returns the settings that this machine does not support.
    #[must_use]
    pub fn refused_by(&self, machine: &dyn Machine) -> Vec<Refusal> {
        let mut refused = Vec::new();
        for (at, one) in self.interfaces.iter().enumerate() {
            // The machine gets a service address only later, when it takes over the service.
            if !machine.has_address(one.address) && !self.is_of_service(one.address) {
                refused.push(Refusal {
                    setting: Setting::Interface(at),
                    value: one.address.to_string(),
                    reason: "this machine does not have the address".to_owned(),
                    help: "behind a NAT, give the local address and the advertised one: 10.0.0.1!203.0.113.7, or `advertised` in a file",
                });
            }
        }
        for device in self.xdp.iter().flat_map(|xdp| &xdp.devices) {
            if !machine.has_device(device) {
                refused.push(Refusal {
                    setting: Setting::Xdp,
                    value: device.clone(),
                    reason: "this machine has no such network device".to_owned(),
                    help: "`ip link` lists the network devices",
                });
            }
        }
        if let Some(dir) = &self.recording_dir
            && !machine.has_folder(dir)
        {
            refused.push(Refusal {
                setting: Setting::RecordingDir,
                value: dir.display().to_string(),
                reason: "the folder does not exist".to_owned(),
                help: "create it, such as with mkdir --mode=700",
            });
        }
        refused
    }
}

/// A range of ports, `FIRST-LAST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpan {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl Default for PortSpan {
    fn default() -> Self {
        PortSpan {
            first: 30_000,
            last: 40_000,
        }
    }
}

/// Error that says that a text is not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected {PORTS_ALLOWED}")]
pub struct PortSpanError(String);

impl FromStr for PortSpan {
    type Err = PortSpanError;

    fn from_str(text: &str) -> Result<PortSpan, PortSpanError> {
        let span = text.split_once('-').and_then(|(first, last)| {
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            let has_pair = u32::from(first) + u32::from(first % 2) < u32::from(last);
            (first > 0 && has_pair).then_some(PortSpan { first, last })
        });
        span.ok_or_else(|| PortSpanError(text.to_owned()))
    }
}

impl fmt::Display for PortSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Description of a valid range of ports, for errors.
pub(super) const PORTS_ALLOWED: &str =
    "FIRST-LAST, from 1 to 65535, with room for a pair of an even port and the next one";
/// Name of an interface for which no name is given.
pub const DEFAULT_NAME: &str = "default";
/// Default port of the ng protocol. The examples of Kamailio's module use it.
const NG_PORT: u16 = 2223;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_must_have_room_for_a_pair() {
        let read = |text: &str| {
            text.parse::<PortSpan>()
                .ok()
                .map(|span| (span.first, span.last))
        };
        assert_eq!(read("30000-40000"), Some((30_000, 40_000)));
        assert_eq!(read("30000-30001"), Some((30_000, 30_001)));
        for text in [
            "",
            "1",
            "30001-30002",
            "30000-30000",
            "0-9",
            "2-1",
            "1-65536",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
