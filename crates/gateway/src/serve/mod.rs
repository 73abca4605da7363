//! `threadbare serve`: a media relay for SIP proxies. Calls are made, changed and ended by the ng protocol.

mod audio_file;
mod clips;
mod interfaces;
mod media;
mod names;
mod plays;
mod recorder;
mod service;
mod spec;
mod tracks;

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{Context, IntoDiagnostic, miette};
use threadbare_control::calls::{Calls, Settings, Timeouts};
use threadbare_rtp::id::NtpTime;
use threadbare_rtp::leg::Network;
use threadbare_runtime::clock_now_ns;

use self::interfaces::Interfaces;
pub use self::interfaces::{InterfaceArg, InterfaceError, PortSpan, PortSpanError};
use self::media::MediaPlane;
use self::plays::Plays;
use self::service::Service;
use self::spec::Common;
use crate::logging::{self, LogFormat};
use crate::process;
use crate::system::{random_number, unix_at_zero_ns};

/// Relays the media of calls for a SIP proxy, in place of rtpengine, until SIGTERM or SIGINT
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Where the proxy's requests come: UDP, the ng protocol
    #[arg(long, default_value = "127.0.0.1:2223", value_name = "ADDRESS:PORT")]
    pub ng: SocketAddr,
    /// Who may send requests; needed if --ng is not on this machine alone
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<Network>,
    /// Local address of the media, with a name for `direction`, and with another address for the parties if there is a NAT; the first is the
    /// default
    #[arg(
        long = "address",
        default_value = "127.0.0.1",
        value_name = "[NAME/]ADDRESS[!ADVERTISED]"
    )]
    pub addresses: Vec<InterfaceArg>,
    /// Ports of the media, on each address
    #[arg(long, default_value = "30000-40000", value_name = "FIRST-LAST")]
    pub ports: PortSpan,
    /// Calls at a time
    #[arg(long, default_value_t = 16_384, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_sessions: u32,
    /// A call without media ends after so many seconds; 0: never
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u32,
    /// The same of a call that is held or muted
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub silent_timeout: u32,
    /// Any call ends after so many seconds; 0: never
    #[arg(long, default_value_t = 10_800, value_name = "SECONDS")]
    pub final_timeout: u32,
    /// An offer without an answer ends after so many seconds; 0: never
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub offer_timeout: u32,
    /// From the request to end a call to its end
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub delete_delay: u32,
    /// Threads that carry media; 0: one for each processor
    #[arg(long, default_value_t = 0, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub threads: u32,
    /// Delay of the jitter buffers, ms
    #[arg(long, default_value_t = 40, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub latency: u32,
    /// New calls are refused while the media threads are later than this, ms
    #[arg(long, default_value_t = 40, value_name = "MS")]
    pub lateness_limit: u32,
    /// Folder of recordings; without it, calls cannot be recorded
    #[arg(long, value_name = "FOLDER")]
    pub recording_dir: Option<PathBuf>,
    /// Format of the log
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

impl ServeArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// An argument does not fit, a socket cannot be opened, or threads run out.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        self.check()?;
        logging::init(self.log_format, "info");
        let stop = stop_on_signals()?;
        if let Err(error) = threadbare_runtime::inspect::serve() {
            tracing::warn!(%error, "`threadbare inspect` will not reach this process");
        }
        let limit = process::raise_descriptor_limit();
        let needed = u64::from(self.max_sessions) * DESCRIPTORS_PER_CALL;
        if let Some(limit) = limit.filter(|limit| *limit < needed) {
            tracing::info!(
                limit,
                needed,
                "open files: fewer calls than --max-sessions fit"
            );
        }
        let common = Common {
            cname: format!("{:016x}", random_number()).into(),
            ntp_at_zero: NtpTime::at_unix_ns(unix_at_zero_ns()),
            latency_ns: u64::from(self.latency) * 1_000_000,
        };
        // A call may have several streams.
        let streams_max = u64::from(self.max_sessions) * 4;
        let mut media = MediaPlane::new(self.threads, streams_max, common).into_diagnostic()?;
        if let Some(folder) = &self.recording_dir {
            media.record_to(folder.clone()).into_diagnostic()?;
        }
        let interfaces = Interfaces::new(&self.addresses, self.ports).into_diagnostic()?;
        let socket = UdpSocket::bind(self.ng)
            .into_diagnostic()
            .wrap_err_with(|| format!("--ng {}: cannot be bound", self.ng))?;
        let ng = socket.local_addr().into_diagnostic()?;
        let calls = Calls::new(self.settings());
        let plays = Plays::new().into_diagnostic()?;
        let mut service = Service::new(calls, media, plays, interfaces, socket);
        service.allow_only(self.allow.clone());
        service.set_lateness_max(Duration::from_millis(self.lateness_limit.into()));
        let threads = service.media.threads();
        tracing::info!(%ng, threads, "serving");
        service.run(&stop).into_diagnostic()?;
        let calls = service.calls.len();
        tracing::info!(calls, "stopping");
        service.end_all();
        Ok(ExitCode::SUCCESS)
    }

    /// What one argument cannot know.
    fn check(&self) -> miette::Result<()> {
        if !self.ng.ip().is_loopback() && self.allow.is_empty() {
            return Err(miette!(
                help = "name the proxies, such as --allow 192.0.2.10 or --allow 10.0.0.0/8",
                "--ng {}: who reaches this address could redirect all calls, and --allow is missing",
                self.ng
            ));
        }
        if let Some(folder) = self
            .recording_dir
            .as_ref()
            .filter(|folder| !folder.is_dir())
        {
            return Err(miette!(
                help = "make it, such as with mkdir --mode=700",
                "--recording-dir {}: no folder",
                folder.display()
            ));
        }
        for (at, one) in self.addresses.iter().enumerate() {
            if let Err(error) = UdpSocket::bind((one.address, 0)) {
                return Err(miette!(
                    help = "behind a NAT, give the local address and the one that parties are told: 10.0.0.1!203.0.113.7",
                    "--address {}: this machine cannot receive there: {error}",
                    one.address
                ));
            }
            let same = |other: &InterfaceArg| {
                other.name == one.name && other.address.is_ipv4() == one.address.is_ipv4()
            };
            if self.addresses[..at].iter().any(same) {
                return Err(miette!(
                    help = "an interface has one IPv4 and one IPv6 address; give the other one a name, such as inside/10.0.0.1",
                    "--address {}: interface {} has an address of this family already",
                    one.address,
                    one.name
                ));
            }
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let seconds = |seconds: u32| (seconds > 0).then_some(u64::from(seconds) * NS_PER_S);
        Settings {
            timeouts: Timeouts {
                offer_ns: seconds(self.offer_timeout),
                media_ns: seconds(self.timeout),
                silent_ns: seconds(self.silent_timeout),
                final_ns: seconds(self.final_timeout),
                delete_delay_ns: u64::from(self.delete_delay) * NS_PER_S,
            },
            sessions_max: self.max_sessions as usize,
            unix_at_zero_ns: unix_at_zero_ns(),
            started_ns: clock_now_ns(),
            instance: format!("{:016x}", random_number()),
        }
    }
}

/// Readable after SIGTERM, SIGINT or SIGHUP.
fn stop_on_signals() -> miette::Result<UnixStream> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (stop, told) = UnixStream::pair().into_diagnostic()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let told = told.try_clone().into_diagnostic()?;
        signal_hook::low_level::pipe::register(signal, told)
            .into_diagnostic()
            .wrap_err("cannot listen for signals")?;
    }
    Ok(stop)
}

const NS_PER_S: u64 = 1_000_000_000;
/// Two legs with a port for RTP and one for RTCP.
const DESCRIPTORS_PER_CALL: u64 = 4;
