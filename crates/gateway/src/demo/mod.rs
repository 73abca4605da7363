//! `threadbare demo`: shows a thousand streams, and checks every packet.
//!
//! This process is the gateway and nothing else, so that its CPU time is the gateway's. Callers and
//! listeners are the same program in another process (module `peer`):
//!
//! ```text
//!   this process                                   the other
//!     start it                                       bind the listeners
//!     <------------------------------------------    Ready: the listeners' ports
//!     make a configuration, start the gateway
//!     Start: the gateway's ports  --------------->   send on schedule, check what comes back
//!     measure own CPU, threads, memory               Progress, twice a second
//!     <------------------------------------------    Done: everything accounted for
//!     stop the gateway
//!     Stopped  ----------------------------------->  wait for its BYEs
//!     <------------------------------------------    Parted: what RTCP came to
//! ```

pub mod caller;
mod g711;
mod jitter;
mod ledger;
mod listener;
mod live;
mod messages;
mod network;
mod peer;
mod ports;
mod report;
mod reports;
mod rtcp;
mod tone;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use miette::{Context as _, IntoDiagnostic, bail, miette};

pub use self::ledger::Counters;
use self::live::Live;
use self::messages::{Call, FromPeer, Standing, ToPeer};
pub use self::network::Harm;
use self::network::JITTER_MS_MAX;
pub use self::peer::PeerArgs;
pub use self::ports::free_ports;
pub use self::report::{Details, Report, grouped};
pub use self::rtcp::RtcpCounters;
use crate::config::Config;
use crate::gateway::{Gateway, Handled};
use crate::logging::{self, LogFormat};
use crate::pipeline::{Elements, PipelineBuilder};
use crate::process::{self, Usage};
use crate::run::{init_gstreamer, stop_on_signals};
use crate::subprocess::Subprocess;

/// The callers and listeners.
type Peer = Subprocess<FromPeer>;

/// Carries real RTP streams over loopback and checks every packet.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// How many streams at once
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub streams: u16,
    /// How long each stream sends
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// How many contexts, that is threads, carry the streams
    #[arg(long, default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub contexts: u32,
    /// Handle everything that has arrived at most once in so many milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub wait: u32,
    /// Print one line of JSON instead of the summary
    #[arg(long)]
    pub json: bool,
    /// Write a file of JSON with how many packets took how many milliseconds through the gateway
    #[arg(long, value_name = "FILE")]
    pub latencies: Option<PathBuf>,
    /// Lose so many per cent of the callers' packets on their way to the gateway
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub loss: f64,
    /// Delay each of the callers' packets by a random time of up to so many milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=JITTER_MS_MAX))]
    pub jitter: u32,
    /// Let so many per cent of the callers' packets be overtaken by the next one
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub reorder: f64,
    /// Which packets are lost, delayed and overtaken: the same number, the same packets
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Use GStreamer's own udpsrc and udpsink, with a thread per stream, for comparison; without jitter buffer and RTCP
    #[arg(long, conflicts_with_all = ["loss", "jitter", "reorder"])]
    pub stock: bool,
    /// Do not measure how loud the streams are, which the gateway does unless it is told otherwise
    #[arg(long)]
    pub no_meter: bool,
}

/// Cost of starting the gateway.
struct Started {
    resident_kib_before: u64,
    setup: Duration,
}

/// A number from 0 to 50: beyond that, it is no call any more.
fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok();
    value
        .filter(|value| (0.0..=50.0).contains(value))
        .ok_or_else(|| "expected a number from 0 to 50".to_owned())
}

/// The ports of the demo's gateway.
#[derive(Clone, Copy, Debug)]
struct Ports {
    first: u16,
    step: u16,
    rtcp_offset: Option<u16>,
}

impl DemoArgs {
    /// Runs the demo. The exit status is 1 if anything was lost or wrong.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        logging::init(LogFormat::Text, "warn");
        process::raise_descriptor_limit();
        init_gstreamer()?;
        let report = self.measure()?;
        if self.json {
            println!("{}", serde_json::to_string(&report).into_diagnostic()?);
        } else {
            println!("{}", report.summary());
        }
        Ok(if report.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn measure(&self) -> miette::Result<Report> {
        let mut peer = Peer::start(&["demo-peer", "--streams", &self.streams.to_string()])?;
        let (listener_ports, notes) = wait_until_ready(&peer)?;
        for note in notes {
            eprintln!("Note: {note}");
        }
        let ports = self.ports()?;
        let config = self.config(ports, &listener_ports)?;
        let (mut gateway, started) = self.start_gateway(config)?;
        stop_on_signals(gateway.sender())?;

        let harm = self.harm();
        peer.tell(&ToPeer::Start(Call {
            first_port: ports.first,
            port_step: ports.step,
            rtcp_offset: ports.rtcp_offset,
            seconds: self.seconds,
            first_ssrc: FIRST_SSRC,
            payload_type: PCMA,
            harm,
        }))?;
        let start = Instant::now();
        let usage_start = Usage::now();
        let (standing, threads) = self.watch(&mut gateway, &mut peer, start)?;
        let cpu = Usage::now().since(&usage_start).cpu;
        let resident_kib = process::resident_kib().saturating_sub(started.resident_kib_before);

        let mut report = Report {
            streams: self.streams.into(),
            seconds: self.seconds,
            packets_sent: 0,
            packets_received: 0,
            lost: 0,
            reordered: 0,
            payload_errors: 0,
            threads,
            contexts: if self.stock { 0 } else { self.contexts },
            cpu_percent: rounded(100.0 * cpu.as_secs_f64() / start.elapsed().as_secs_f64()),
            cpu_us_per_packet: rounded(
                cpu.as_micros() as f64 / standing.packets.packets_received.max(1) as f64,
            ),
            latency_ms_p50: 0.0,
            latency_ms_p99: 0.0,
            latency_ms_max: 0.0,
            rss_kib_per_stream: rounded(resident_kib as f64 / f64::from(self.streams)),
            setup_seconds: rounded(started.setup.as_secs_f64()),
            rtcp_reports_received: 0,
            byes: 0,
            rtcp_errors: 0,
            concealed_ms: 0,
            details: Details {
                harm,
                latency_ms: self.latency_ms(),
                ..Details::default()
            },
        };
        let refused = gateway
            .stats()
            .map(|(_, stats)| stats.rtcp_errors)
            .sum::<u64>();
        // The gateway sends BYE on each call.
        drop(gateway);
        let rtcp = wait_until_parted(&mut peer)?;
        report.count(&standing.packets, &rtcp);
        report.rtcp_errors += refused;
        Ok(report)
    }

    fn start_gateway(&self, config: Config) -> miette::Result<(Gateway, Started)> {
        let elements = if self.stock {
            Elements::Stock
        } else {
            Elements::Threadbare
        };
        let setup_start = Instant::now();
        load_plugins(&config, elements)?;
        let resident_kib_before = process::resident_kib();
        let mut gateway = Gateway::start(config, elements).into_diagnostic()?;
        let setup = setup_start.elapsed();
        // Streams that failed to start have posted their error by now.
        gateway.handle_for(Some(Duration::ZERO));
        if gateway.streams_running() < usize::from(self.streams) {
            bail!(
                "only {} of {} streams started; the log says why",
                gateway.streams_running(),
                self.streams
            );
        }
        let started = Started {
            resident_kib_before,
            setup,
        };
        Ok((gateway, started))
    }

    fn harm(&self) -> Harm {
        Harm {
            loss_percent: self.loss,
            jitter_ms: self.jitter,
            reorder_percent: self.reorder,
            seed: self.seed,
        }
    }

    /// GStreamer's own jitter buffer would take another two threads per stream.
    fn latency_ms(&self) -> u32 {
        if self.stock { 0 } else { LATENCY_MS }
    }

    /// RTCP on the ports above the RTP ones, or with it, where there are not so many ports.
    fn ports(&self) -> miette::Result<Ports> {
        let (step, rtcp_offset) = match self.streams {
            _ if self.stock => (1, None),
            ..=PORT_PAIRS_MAX => (2, Some(1)),
            _ => (1, Some(0)),
        };
        // One more port, because the first must be even.
        let count = usize::from(self.streams) * usize::from(step) + 1;
        let first = free_ports(count)
            .ok_or_else(|| miette!("there are no {count} free UDP ports in a row"))?;
        Ok(Ports {
            first: first + first % 2,
            step,
            rtcp_offset,
        })
    }

    /// Runs the gateway until the peer is done; also returns the largest number of threads seen.
    fn watch(
        &self,
        gateway: &mut Gateway,
        peer: &mut Peer,
        start: Instant,
    ) -> miette::Result<(Standing, usize)> {
        let mut live = Live::new(self.streams.into(), self.seconds);
        let mut threads = process::threads();
        loop {
            if let Handled::Stop(_) = gateway.handle_for(Some(POLL)) {
                // The peer stops calling, waits for the tail, and sends its result.
                peer.hang_up();
            }
            match peer.poll()? {
                Some(FromPeer::Progress(standing)) => {
                    threads = threads.max(process::threads());
                    live.show(start.elapsed(), &standing.packets);
                }
                Some(FromPeer::Done {
                    standing,
                    packets_by_ms,
                }) => {
                    live.finish();
                    self.write_latencies(&packets_by_ms)?;
                    return Ok((standing, threads));
                }
                Some(FromPeer::Failed { reason }) => {
                    bail!("the callers and listeners failed: {reason}")
                }
                Some(FromPeer::Ready { .. } | FromPeer::Parted(_)) | None => {}
            }
        }
    }

    fn write_latencies(&self, packets_by_ms: &[u64]) -> miette::Result<()> {
        let Some(path) = &self.latencies else {
            return Ok(());
        };
        let text = serde_json::json!({ "packets_by_ms": packets_by_ms }).to_string();
        std::fs::write(path, text)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write --latencies {}", path.display()))
    }

    /// The gateway's configuration, as a user would write it, one range per listener.
    fn config(&self, ports: Ports, listener_ports: &[u16]) -> miette::Result<Config> {
        let mut text = format!(
            "[contexts]\nprefix = \"demo\"\ncount = {}\nwait = {}\n\
             [defaults]\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\nlatency = {}\nmeter = {}\nrtcp = {}\n",
            self.contexts,
            self.wait,
            self.latency_ms(),
            !self.no_meter,
            match ports.rtcp_offset {
                None => "false",
                Some(0) => "\"mux\"",
                Some(_) => "true",
            },
        );
        for (n, listener_port) in listener_ports.iter().enumerate() {
            let first = (n * listener::STREAMS_PER_LISTENER) as u16;
            let count = (self.streams - first).min(listener::STREAMS_PER_LISTENER as u16);
            // RTCP to the listeners' RTP port, where it cannot overtake.
            let rtcp_port = match ports.rtcp_offset {
                Some(1..) => format!("destination-rtcp-port = {listener_port}\n"),
                _ => String::new(),
            };
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "[[stream]]\nname = \"call-{n}\"\ncount = {count}\nlisten = \"127.0.0.1:{}\"\nstep = {}\n\
                 destination = \"127.0.0.1:{listener_port}\"\ndestination-step = 0\nssrc = {}\n{rtcp_port}",
                ports.first + first * ports.step,
                ports.step,
                FIRST_SSRC + u32::from(first),
            );
        }
        Config::from_toml("the demo's own configuration", &text).map_err(Into::into)
    }
}

fn wait_until_ready(peer: &Peer) -> miette::Result<(Vec<u16>, Vec<String>)> {
    match peer.wait()? {
        FromPeer::Ready { ports, notes } => Ok((ports, notes)),
        FromPeer::Failed { reason } => bail!("the callers and listeners failed: {reason}"),
        FromPeer::Progress(_) | FromPeer::Done { .. } | FromPeer::Parted(_) => {
            bail!("the callers and listeners are confused")
        }
    }
}

/// The gateway has stopped: receives the RTCP result.
fn wait_until_parted(peer: &mut Peer) -> miette::Result<RtcpCounters> {
    // If the user stopped the demo, the peer has been told already, and waits by itself.
    let _ = peer.tell(&ToPeer::Stopped);
    loop {
        match peer.wait()? {
            FromPeer::Parted(counters) => return Ok(counters),
            FromPeer::Failed { reason } => bail!("the callers and listeners failed: {reason}"),
            _ => {}
        }
    }
}

/// Builds one unused pipeline first: the memory of the plugins' code does not count as a stream's.
fn load_plugins(config: &Config, elements: Elements) -> miette::Result<()> {
    if elements == Elements::Stock {
        let builder = PipelineBuilder::new(gst::Bus::new());
        builder.check(&config.streams).into_diagnostic()?;
        if let Some(first) = config.streams.first() {
            builder.build(first).into_diagnostic()?;
        }
    }
    Ok(())
}

/// Nanoseconds since the epoch: the clock of the kernel's receive time stamps.
fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Three digits after the point are more than the measurement is good for.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// SSRC of the gateway's packets for stream 0.
const FIRST_SSRC: u32 = 0x7b00_0000;
/// Static payload type of PCMA (RFC 3551).
const PCMA: u8 = 8;
/// The gateway's own default.
const LATENCY_MS: u32 = 40;
/// The ports that `free_ports` looks at are twice as many.
const PORT_PAIRS_MAX: u16 = 9000;
/// Polling interval of the peer's messages.
const POLL: Duration = Duration::from_millis(50);
