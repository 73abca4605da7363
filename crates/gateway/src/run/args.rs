//! The arguments of `threadbare run` and `threadbare serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use miette::miette;
use threadbare_rtp::leg::Network;
use threadbare_xdp::Mode;

use super::{Job, read_config, read_config_for, this_machine};
use threadbare_config::{
    AlarmSpec, ClusterRefusal, ClusterSpec, Config, Contexts, DEFAULT_NAME, HttpSpec,
    InterfaceSpec, Limits, MediaRules, PortSpan, RecordingFormat, Refusal, Restart, ServiceAddress,
    Serving, Setting, StateLocation, Timeouts,
};
use threadbare_process::logging::LogFormat;
use threadbare_streams::pipeline::Elements;

/// Runs the streams and calls of a configuration file, until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The configuration file (TOML)
    pub config: PathBuf,
    #[command(flatten)]
    file: FileArgs,
    /// Use GStreamer's own udpsrc and udpsink, with a thread per stream, for comparison
    #[arg(long)]
    pub stock: bool,
}

/// Options for commands with a configuration file.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct FileArgs {
    /// List all mistakes in the configuration, and start nothing
    #[arg(long)]
    check: bool,
    /// With --check: print the parsed configuration, with defaults filled in and ranges expanded
    #[arg(long, requires = "check")]
    print: bool,
    /// Format of the log
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
}

impl RunArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if the file has mistakes, or a part cannot be started.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        let elements = if self.stock {
            Elements::Stock
        } else {
            Elements::Threadbare
        };
        self.file.run(&self.config, elements)
    }
}

impl FileArgs {
    fn run(&self, path: &Path, elements: Elements) -> miette::Result<ExitCode> {
        let config = if self.check {
            read_config_for(path, &this_machine())?
        } else {
            read_config(path)?
        };
        if self.print {
            print!("{}", config.to_toml());
            return Ok(ExitCode::SUCCESS);
        }
        if self.check {
            let calls = match &config.serving {
                Some(serving) => format!(" Calls by {}.", serving.ng),
                None => String::new(),
            };
            println!(
                "{}: no mistakes. {} streams on {} contexts.{calls}",
                path.display(),
                config.streams.len(),
                config.contexts.count
            );
            return Ok(ExitCode::SUCCESS);
        }
        Job {
            config,
            file: Some(path.to_owned()),
            elements,
            log_format: self.log_format,
        }
        .run()
    }
}

/// Relays the media of calls for a SIP proxy, in place of rtpengine, until SIGTERM or SIGINT
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// A configuration file (TOML), instead of options; the same as `threadbare run FILE`
    #[arg(conflicts_with = "CallArgs", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    calls: CallArgs,
}

/// Settings of calls.
#[derive(Debug, clap::Args)]
struct CallArgs {
    /// Address at which requests of the proxy are received (ng protocol over UDP)
    #[arg(long, default_value_t = Serving::default().ng, value_name = "ADDRESS:PORT")]
    ng: SocketAddr,
    /// Address at which requests of the proxy are received over TCP; off by default
    #[arg(long, value_name = "ADDRESS:PORT")]
    ng_tcp: Option<SocketAddr>,
    /// Hosts or networks that may send requests; required if other machines reach --ng or --ng-tcp
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Address of the HTTP server; off by default. If other machines can reach it, --http-token-file is required
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// File with the token that requests must carry (Authorization: Bearer)
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<PathBuf>,
    /// Local address for media; may be repeated, and the first is the default. NAME is for `direction`; ADVERTISED is the
    /// address for the parties, if there is a NAT
    #[arg(
        long = "address",
        default_value = "127.0.0.1",
        value_name = "[NAME/]ADDRESS[!ADVERTISED]"
    )]
    addresses: Vec<InterfaceArg>,
    /// Ports for media, at each address
    #[arg(long, default_value_t, value_name = "FIRST-LAST")]
    ports: PortSpan,
    /// Maximum number of media streams of calls at a time
    #[arg(long, default_value_t = Limits::default().max_sessions, value_name = "STREAMS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_sessions: u32,
    /// A call without media ends after this many seconds; 0: never
    #[arg(long, default_value_t = Timeouts::default().media_s, value_name = "SECONDS")]
    timeout: u32,
    /// A held or muted call without media ends after this many seconds; 0: never
    #[arg(long, default_value_t = Timeouts::default().silent_s, value_name = "SECONDS")]
    silent_timeout: u32,
    /// Any call ends after this many seconds; 0: never
    #[arg(long, default_value_t = Timeouts::default().final_s, value_name = "SECONDS")]
    final_timeout: u32,
    /// An offer without an answer ends after this many seconds; 0: never
    #[arg(long, default_value_t = Timeouts::default().offer_s, value_name = "SECONDS")]
    offer_timeout: u32,
    /// Delay in seconds between a request to end a call and the end of the call
    #[arg(long, default_value_t = Timeouts::default().delete_delay_s, value_name = "SECONDS")]
    delete_delay: u32,
    /// Number of media threads; 0: one for each processor
    #[arg(long, default_value_t = 0, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(0..=1024))]
    threads: u32,
    /// Delay of the jitter buffers, ms. Default: 40 for audio that is transcoded, none for packets that pass unchanged
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    latency: Option<u32>,
    /// Measure the loudness of each party. It takes CPU time, because all audio is decoded
    #[arg(long)]
    meter: bool,
    /// Network that gets no media; may be repeated. Services of this machine never get media
    #[arg(long, value_name = "NETWORK")]
    media_deny: Vec<Network>,
    /// Network that gets media although --media-deny, or a default rule (against loopback addresses and media ports of
    /// other interfaces), forbids it; may be repeated
    #[arg(long, value_name = "NETWORK")]
    media_allow: Vec<Network>,
    /// Network device on which packets of calls bypass the sockets (XDP); may be repeated
    #[arg(long, value_name = "DEVICE")]
    xdp: Vec<String>,
    /// XDP mode of these devices: in the driver (native), after it (generic), or in the driver if it supports that
    /// (auto)
    #[arg(long, default_value_t = Mode::Auto, value_name = "MODE", requires = "xdp")]
    xdp_mode: Mode,
    /// Number of frames of 2 KiB per slice, for each receive queue of each XDP device; a power of two
    #[arg(long, default_value_t = 8192, value_name = "FRAMES", requires = "xdp", value_parser = clap::value_parser!(u32).range(64..=65_536))]
    xdp_frames: u32,
    /// New calls are refused while the lateness of the media threads is above this, ms
    #[arg(long, default_value_t = Limits::default().lateness_ms, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=60_000))]
    lateness_limit: u32,
    /// New calls are refused while the load of the media threads is above this, percent
    #[arg(long, default_value_t = Limits::default().cpu_percent, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    cpu_limit: u32,
    /// Folder of recordings; without it, calls cannot be recorded
    #[arg(long, value_name = "FOLDER")]
    recording_dir: Option<PathBuf>,
    /// Format of recordings whose name has no known extension
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    recording_format: RecordingFormat,
    /// File in which calls are saved for a restart; default: a file in systemd's StateDirectory=, if it is set
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// File for CDRs, one line of JSON for each call that has ended
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Members of etcd, separated by commas. This node also carries streams of that cluster
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "node")]
    cluster: Vec<String>,
    /// Name of this node in the cluster
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Option<String>,
    /// Address and port to which the other nodes connect. They notice at once when this process ends
    #[arg(long, value_name = "ADDRESS:PORT", requires = "cluster")]
    cluster_listen: Option<SocketAddr>,
    /// File with the key that all nodes share. Requests for calls may then go to any node
    #[arg(long, value_name = "FILE", requires = "cluster_listen")]
    cluster_key_file: Option<PathBuf>,
    /// Addresses of this node's calls, separated by commas. When this node ends, another node takes over the addresses and the
    /// calls
    #[arg(
        long,
        value_name = "ADDRESS/PREFIX@DEVICE",
        value_delimiter = ',',
        requires = "cluster_key_file"
    )]
    cluster_service: Vec<ServiceAddress>,
    /// Do not save calls. They end with the process
    #[arg(long, conflicts_with = "state")]
    no_state: bool,
}

impl ServeArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if an argument is invalid, the file has mistakes, or a part cannot be started.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        if let Some(path) = &self.config {
            return self.file.run(path, Elements::Threadbare);
        }
        let serving = self.calls.serving();
        let refused = [serving.refused(), serving.refused_by(&this_machine())].concat();
        if let Some(first) = refused.first() {
            return Err(refused_argument(first));
        }
        let cluster = self.calls.cluster();
        let refused = cluster.as_ref().map(ClusterSpec::refused);
        if let Some(first) = refused.iter().flatten().next() {
            return Err(refused_place(first));
        }
        let config = Config {
            contexts: Contexts::default(),
            restart: Restart::default(),
            streams: Vec::new(),
            alarms: AlarmSpec::default(),
            history: StateLocation::default(),
            positions: StateLocation::default(),
            store: None,
            cluster,
            serving: Some(serving),
        };
        if self.file.print {
            print!("{}", config.to_toml());
        }
        if self.file.check {
            return Ok(ExitCode::SUCCESS);
        }
        Job {
            config,
            file: None,
            elements: Elements::Threadbare,
            log_format: self.file.log_format,
        }
        .run()
    }
}

impl CallArgs {
    fn cluster(&self) -> Option<ClusterSpec> {
        let node = self.node.clone()?;
        let mut spec = ClusterSpec::new(self.cluster.clone(), node);
        spec.listen = self.cluster_listen;
        spec.key_file = self.cluster_key_file.clone();
        spec.service_addresses.clone_from(&self.cluster_service);
        Some(spec)
    }

    fn serving(&self) -> Serving {
        let interface = |arg: &InterfaceArg| InterfaceSpec {
            name: arg.name.clone(),
            address: arg.address,
            advertised: arg.advertised,
            ports: self.ports,
        };
        Serving {
            ng: self.ng,
            ng_tcp: self.ng_tcp,
            allow: self.allow.clone(),
            http: self.http.map(|listen| HttpSpec {
                listen,
                token_file: self.http_token_file.clone(),
            }),
            interfaces: self.addresses.iter().map(interface).collect(),
            limits: Limits {
                max_sessions: self.max_sessions,
                lateness_ms: self.lateness_limit,
                cpu_percent: self.cpu_limit,
            },
            timeouts: Timeouts {
                media_s: self.timeout,
                silent_s: self.silent_timeout,
                final_s: self.final_timeout,
                offer_s: self.offer_timeout,
                delete_delay_s: self.delete_delay,
            },
            threads: self.threads,
            latency_ms: self.latency,
            meter: self.meter,
            media: MediaRules {
                deny: self.media_deny.clone(),
                allow: self.media_allow.clone(),
            },
            xdp: (!self.xdp.is_empty()).then(|| threadbare_xdp::Settings {
                devices: self.xdp.clone(),
                mode: self.xdp_mode,
                frames: self.xdp_frames,
            }),
            recording_dir: self.recording_dir.clone(),
            recording_format: self.recording_format,
            record: None,
            fallback: None,
            state: match (&self.state, self.no_state) {
                (_, true) => StateLocation::Off,
                (Some(path), false) => StateLocation::At(path.clone()),
                (None, false) => StateLocation::OfSystemd,
            },
            records: self.records.clone(),
            service_addresses: self.cluster_service.clone(),
        }
    }
}

fn refused_argument(refused: &Refusal) -> miette::Report {
    let Refusal {
        setting,
        value,
        reason,
        help,
    } = refused;
    let name = match setting {
        Setting::Ng => "--ng",
        Setting::NgTcp => "--ng-tcp",
        Setting::Http => "--http",
        Setting::Interface(_) => "--address",
        Setting::RecordingDir => "--recording-dir",
        Setting::Xdp => "--xdp",
    };
    miette!(help = *help, "{name} {value}: {reason}")
}

fn refused_place(refused: &ClusterRefusal) -> miette::Report {
    let ClusterRefusal {
        key,
        value,
        allowed,
    } = refused;
    let name = match *key {
        "endpoints" => "cluster",
        "listen" => "cluster-listen",
        "key-file" => "cluster-key-file",
        "service-addresses" => "cluster-service",
        key => key,
    };
    miette!("--{name} {value:?}: expected {allowed}")
}

/// An argument `[NAME/]ADDRESS[!ADVERTISED]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InterfaceArg {
    name: String,
    address: IpAddr,
    advertised: IpAddr,
}

/// The text is not an interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text}: {reason}; expected [NAME/]ADDRESS[!ADVERTISED], such as 192.0.2.1 or outside/10.0.0.1!203.0.113.7"
)]
struct InterfaceError {
    text: String,
    reason: &'static str,
}

impl FromStr for InterfaceArg {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<InterfaceArg, InterfaceError> {
        let error = |reason| InterfaceError {
            text: text.to_owned(),
            reason,
        };
        let (name, rest) = text.split_once('/').unwrap_or((DEFAULT_NAME, text));
        let (address, advertised) = rest.split_once('!').unwrap_or((rest, rest));
        let ip = |text: &str, reason| text.parse::<IpAddr>().map_err(|_| error(reason));
        let address = ip(address, "the address is not valid")?;
        let advertised = ip(advertised, "the advertised address is not valid")?;
        if name.is_empty() {
            return Err(error("the name is empty"));
        }
        if address.is_unspecified() || advertised.is_unspecified() {
            return Err(error(
                "an unspecified address cannot be advertised to a party",
            ));
        }
        if address.is_ipv4() != advertised.is_ipv4() {
            return Err(error("the addresses are of different families"));
        }
        Ok(InterfaceArg {
            name: name.to_owned(),
            address,
            advertised,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_arguments_are_parsed() {
        let read = |text: &str| text.parse::<InterfaceArg>();
        let plain = read("192.0.2.1").expect("an address");
        assert_eq!(
            (plain.name.as_str(), plain.address),
            ("default", plain.advertised)
        );
        let full = read("outside/10.0.0.1!203.0.113.7").expect("an interface");
        assert_eq!(full.name, "outside");
        assert_eq!(full.address.to_string(), "10.0.0.1");
        assert_eq!(full.advertised.to_string(), "203.0.113.7");
        for text in [
            "",
            "/192.0.2.1",
            "192.0.2.1!",
            "host",
            "0.0.0.0",
            "::1!192.0.2.1",
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(
                error.starts_with(text) && error.contains("expected"),
                "{error}"
            );
        }
    }
}
