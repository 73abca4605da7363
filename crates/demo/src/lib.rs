//! `threadbare demo`: runs a thousand streams of five hundred calls, and checks every packet.
//!
//! This process runs only the gateway, so that its CPU time is that of the gateway. The parties of the calls are in another
//! process of the same program (module `peer`):
//!
//! ```text
//!   this process                                   the other
//!     start it                                       bind the parties' sockets
//!     <------------------------------------------    Ready: their ports
//!     start the calls
//!     Start: the gateway's ports  --------------->   send on schedule, check received packets
//!     measure own CPU, threads, memory               Progress, twice a second
//!     <------------------------------------------    Done: everything accounted for
//!     leave the calls
//!     Stopped  ----------------------------------->  wait for its BYEs
//!     <------------------------------------------    Parted: the results of RTCP
//! ```
//!
//! Party n sends stream n, in PCMU if n is even, else in PCMA. Parties 2k and 2k + 1 belong to a call. Each party receives the
//! stream of the other party in its own law, from the port to which it sends.

#![forbid(unsafe_code)]

#[macro_use(println, eprintln)]
extern crate threadbare_process;

#[cfg(feature = "gstreamer")]
pub mod bench;
pub mod caller;
mod calls;
mod carrier;
mod g711;
mod jitter;
mod ledger;
mod live;
mod messages;
mod network;
mod parties;
mod peer;
mod ports;
mod report;
mod reports;
mod rtcp;
#[cfg(feature = "gstreamer")]
mod stock;
mod tone;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use miette::{Context as _, IntoDiagnostic, bail, miette};

use self::carrier::{Carrier, Started};
pub use self::ledger::Counters;
use self::live::Live;
use self::messages::{Call, FromPeer, Standing, ToPeer};
pub use self::network::Harm;
use self::network::JITTER_MS_MAX;
pub use self::peer::PeerArgs;
pub use self::ports::free_ports;
pub use self::report::{Details, Report, grouped};
pub use self::rtcp::RtcpCounters;
use threadbare_process::logging::{self, LogFormat};
use threadbare_process::subprocess::Subprocess;
use threadbare_process::usage::{self, Starvation, Usage};

/// The process with the parties.
type Peer = Subprocess<FromPeer>;

/// Carries real calls over loopback, and checks every packet of both directions.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Number of one-way streams at once, two for each call. If the number is odd, one party of the last call only listens
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub streams: u16,
    /// How long each stream sends
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Number of contexts (threads) that carry the streams
    #[arg(long, default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub contexts: u32,
    /// Length of a slice, ms. Packets that arrive within this time are handled together
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub wait: u32,
    /// Print one line of JSON instead of the summary
    #[arg(long)]
    pub json: bool,
    /// Write a JSON file with a histogram of the packets' delay through the gateway, in milliseconds
    #[arg(long, value_name = "FILE")]
    pub latencies: Option<PathBuf>,
    /// Lose this percentage of the parties' packets to the gateway
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub loss: f64,
    /// Delay each of the parties' packets by a random time of up to this many milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=JITTER_MS_MAX))]
    pub jitter: u32,
    /// Let the next packet overtake this percentage of the parties' packets
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub reorder: f64,
    /// Seed of loss, delay and reordering. The same number affects the same packets
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Use GStreamer's own udpsrc and udpsink, with a thread per stream, for comparison; without jitter buffer and RTCP
    #[arg(long, conflicts_with_all = ["loss", "jitter", "reorder"])]
    pub stock: bool,
    /// Do not measure the streams' loudness, which the gateway does by default
    #[arg(long)]
    pub no_meter: bool,
}

/// Parses a number from 0 to 50: with more loss, no call works.
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
    /// Runs the demo. The exit status is 1 if anything was lost or wrong and the load of the machine does not explain it.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        logging::init(LogFormat::Text, "warn");
        usage::raise_descriptor_limit();
        let report = self.measure()?;
        if self.json {
            println!("{}", serde_json::to_string(&report).into_diagnostic()?);
        } else {
            println!("{}", report.summary());
        }
        Ok(if report.is_clean() || report.is_excused() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn measure(&self) -> miette::Result<Report> {
        let mut peer = Peer::start(&["demo-peer", "--streams", &self.streams.to_string()])?;
        let (party_ports, notes) = wait_until_ready(&peer)?;
        for note in notes {
            eprintln!("Note: {note}");
        }
        let ports = self.ports()?;
        let (mut carrier, started) = Carrier::start(self, ports, &party_ports)?;

        let harm = self.harm();
        peer.tell(&ToPeer::Start(Call {
            first_port: ports.first,
            port_step: ports.step,
            rtcp_offset: ports.rtcp_offset,
            seconds: self.seconds,
            first_ssrc: FIRST_SSRC,
            // udpsink does not share the source's socket, so it sends from another port.
            is_symmetric: !self.stock,
            harm,
        }))?;
        let start = Instant::now();
        let (usage_start, starvation_start) = (Usage::now(), Starvation::now());
        let (standing, threads, parties_starved) = self.watch(&mut carrier, &mut peer, start)?;
        let cpu = Usage::now().since(&usage_start).cpu;
        let starved = Starvation::now().longest_since(&starvation_start);
        let resident_kib = usage::resident_kib().saturating_sub(started.resident_kib_before);

        let mut report = self.report(
            &standing,
            threads,
            cpu,
            start.elapsed(),
            resident_kib,
            &started,
        );
        let refused = carrier.rtcp_errors();
        // The gateway sends BYE on each leg.
        drop(carrier);
        let rtcp = wait_until_parted(&mut peer)?;
        report.count(&standing.packets, &rtcp);
        report.rtcp_errors += refused;
        report.details.rtcp_unreadable += refused;
        report.count_starvation(start.elapsed(), starved, parties_starved);
        Ok(report)
    }

    /// Creates the report. The RTCP results are missing, because they are known only at the end.
    fn report(
        &self,
        standing: &Standing,
        threads: usize,
        cpu: Duration,
        elapsed: Duration,
        resident_kib: u64,
        started: &Started,
    ) -> Report {
        Report {
            streams: self.streams.into(),
            seconds: self.seconds,
            packets_sent: 0,
            packets_received: 0,
            lost: 0,
            reordered: 0,
            payload_errors: 0,
            threads,
            contexts: if self.stock { 0 } else { self.contexts },
            cpu_percent: rounded(100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64()),
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
            starved_percent: 0.0,
            details: Details {
                harm: self.harm(),
                latency_ms: self.latency_ms(),
                ..Details::default()
            },
        }
    }

    fn harm(&self) -> Harm {
        Harm {
            loss_percent: self.loss,
            jitter_ms: self.jitter,
            reorder_percent: self.reorder,
            seed: self.seed,
        }
    }

    /// Returns the latency of the jitter buffer. The stock elements have no jitter buffer, because it would need another two threads per
    /// stream.
    fn latency_ms(&self) -> u32 {
        if self.stock { 0 } else { LATENCY_MS }
    }

    /// Finds ports for the gateway. RTCP uses the port above each RTP port. If there are not enough ports for that, RTCP uses the RTP
    /// ports.
    fn ports(&self) -> miette::Result<Ports> {
        let (step, rtcp_offset) = match self.streams {
            _ if self.stock => (1, None),
            ..=PORT_PAIRS_MAX => (2, Some(1)),
            _ => (1, Some(0)),
        };
        // There is one more port than necessary, because the first port must be even.
        let count = parties::parties_of(self.streams.into()) * usize::from(step) + 1;
        let first = free_ports(count)
            .ok_or_else(|| miette!("cannot find {count} consecutive free UDP ports"))?;
        Ok(Ports {
            first: first + first % 2,
            step,
            rtcp_offset,
        })
    }

    /// Runs the gateway until the process of the parties is done. Returns that process's results, the largest number of threads, and the
    /// parties' time without a CPU.
    fn watch(
        &self,
        carrier: &mut Carrier,
        peer: &mut Peer,
        start: Instant,
    ) -> miette::Result<(Standing, usize, Duration)> {
        let mut live = Live::new(self.streams.into(), self.seconds);
        let mut threads = usage::threads();
        loop {
            if carrier.wait(POLL) {
                // The parties stop sending, wait for the last packets, and send their result.
                peer.hang_up();
            }
            match peer.poll()? {
                Some(FromPeer::Progress(standing)) => {
                    threads = threads.max(usage::threads());
                    live.show(start.elapsed(), &standing.packets);
                }
                Some(FromPeer::Done {
                    standing,
                    starved,
                    packets_by_ms,
                }) => {
                    live.finish();
                    self.write_latencies(&packets_by_ms)?;
                    return Ok((standing, threads, starved));
                }
                Some(FromPeer::Failed { reason }) => {
                    bail!("the parties failed: {reason}")
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
}

fn wait_until_ready(peer: &Peer) -> miette::Result<(Vec<u16>, Vec<String>)> {
    match peer.wait()? {
        FromPeer::Ready { ports, notes } => Ok((ports, notes)),
        FromPeer::Failed { reason } => bail!("the parties failed: {reason}"),
        FromPeer::Progress(_) | FromPeer::Done { .. } | FromPeer::Parted(_) => {
            bail!("the process with the parties sent an unexpected message")
        }
    }
}

/// Waits for the RTCP result, which comes after the gateway has stopped.
fn wait_until_parted(peer: &mut Peer) -> miette::Result<RtcpCounters> {
    // This fails if the user stopped the demo. In that case the parties already know that the gateway stops.
    let _ = peer.tell(&ToPeer::Stopped);
    loop {
        match peer.wait()? {
            FromPeer::Parted(counters) => return Ok(counters),
            FromPeer::Failed { reason } => bail!("the parties failed: {reason}"),
            _ => {}
        }
    }
}

/// Returns the time in nanoseconds since the epoch, from the clock that the kernel uses for receive timestamps.
fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Rounds to three decimals. The measurement is less exact than that.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// SSRC of the gateway's packets of stream 0.
const FIRST_SSRC: u32 = 0x7b00_0000;
/// Static payload type of PCMA (RFC 3551).
const PCMA: u8 = 8;
/// Default latency of the gateway.
const LATENCY_MS: u32 = 40;
/// Maximum number of pairs of ports. `free_ports` can find twice as many ports.
const PORT_PAIRS_MAX: u16 = 9000;
/// Interval of polls for the messages of the other process.
const POLL: Duration = Duration::from_millis(50);
