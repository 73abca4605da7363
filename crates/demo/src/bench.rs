//! `threadbare bench receive`: compares the cost of receiving with two source elements.
//!
//! For each case, one process runs only the receivers, so that its CPU time is that of the receivers. Another process runs the sender. Each
//! stream has a pipeline with the source and a `fakesink`, which counts the packets.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use gst::prelude::*;
use miette::{IntoDiagnostic, bail, miette};
use serde::{Deserialize, Serialize};

use crate::caller::{Caller, Schedule};
use crate::{free_ports, grouped, rounded};
use threadbare_process::subprocess::{self, Subprocess};
use threadbare_process::usage::{self, Usage};
use threadbare_streams::init_gstreamer;

/// The commands of `threadbare bench`.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Measure the CPU cost of receiving RTP, with ts-udpsrc and with GStreamer's own udpsrc
    Receive(ReceiveArgs),
}

/// Arguments of the measurement of receiving.
#[derive(Debug, clap::Args)]
pub struct ReceiveArgs {
    /// Number of streams; may be repeated [default: 1000, 2000, 3000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub streams: Vec<u16>,
    /// Source element; may be repeated [default: udpsrc, ts-udpsrc]
    #[arg(long, value_name = "E")]
    pub element: Vec<String>,
    /// Slice length of the contexts (property context-wait), in milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub wait: u32,
    /// Number of contexts
    #[arg(long, default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub contexts: u32,
    /// How long each case sends
    #[arg(long, default_value_t = 5, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Print the JSON line only
    #[arg(long)]
    pub json: bool,
}

/// Arguments of the process with the receivers of one case.
#[derive(Clone, Debug, clap::Args)]
pub struct ReceiverArgs {
    #[arg(long)]
    element: String,
    #[arg(long)]
    streams: u16,
    #[arg(long)]
    first_port: u16,
    #[arg(long)]
    wait: u32,
    #[arg(long)]
    contexts: u32,
}

/// Arguments of the process with the sender of one case.
#[derive(Clone, Debug, clap::Args)]
pub struct SenderArgs {
    #[arg(long)]
    streams: u16,
    #[arg(long)]
    first_port: u16,
    #[arg(long)]
    seconds: u32,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Factory name of the source.
    pub element: String,
    /// Number of streams that run at the same time.
    pub streams: u16,
    /// Number of threads of the receivers' process.
    pub threads: usize,
    /// Number of contexts. It is 0 if the element uses no contexts.
    pub contexts: u32,
    /// Length of a slice in milliseconds. It is 0 if the element uses no contexts.
    pub wait: u32,
    /// User and system time of the receivers' process, where 100 is one core.
    pub cpu_percent: f64,
    /// CPU time per received packet, in microseconds.
    pub us_per_packet: f64,
    /// Context switches of the receivers' process, voluntary and involuntary.
    pub context_switches_per_second: f64,
    /// Number of packets that were sent but not received.
    pub lost: u64,
    /// Resident memory per stream.
    pub rss_kib_per_stream: f64,
    /// Time to build and start all receivers.
    pub setup_seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
enum ToReceiver {
    Begin,
    End { packets_sent: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
enum FromReceiver {
    Ready {
        setup_seconds: f64,
        rss_kib_per_stream: f64,
        has_contexts: bool,
    },
    Measured {
        usage: Usage,
        packets: u64,
        threads: usize,
    },
    Failed {
        reason: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum FromSender {
    Sent { packets: u64 },
    Failed { reason: String },
}

impl ReceiveArgs {
    /// Measures all cases one after the other.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        let or = |given: &[u16], default: &[u16]| {
            if given.is_empty() {
                default.to_vec()
            } else {
                given.to_vec()
            }
        };
        let mut elements = self.element.clone();
        if elements.is_empty() {
            elements = vec!["udpsrc".to_owned(), "ts-udpsrc".to_owned()];
        }
        let mut rows = Vec::new();
        if !self.json {
            println!("{HEADING}");
        }
        for streams in or(&self.streams, &[1000, 2000, 3000]) {
            for element in &elements {
                let row = self.case(element, streams)?;
                if !self.json {
                    println!("{}", row.line());
                }
                rows.push(row);
            }
        }
        println!("{}", serde_json::to_string(&rows).into_diagnostic()?);
        Ok(ExitCode::SUCCESS)
    }

    fn case(&self, element: &str, streams: u16) -> miette::Result<Row> {
        let first_port = free_ports(streams.into())
            .ok_or_else(|| miette!("cannot find {streams} consecutive free UDP ports"))?
            .to_string();
        let (count, seconds) = (streams.to_string(), self.seconds.to_string());
        let (wait, contexts) = (self.wait.to_string(), self.contexts.to_string());
        let mut receiver = Subprocess::<FromReceiver>::start(&[
            "bench-receiver",
            "--element",
            element,
            "--streams",
            &count,
            "--first-port",
            &first_port,
            "--wait",
            &wait,
            "--contexts",
            &contexts,
        ])?;
        let (setup_seconds, rss_kib_per_stream, has_contexts) = match receiver.wait()? {
            FromReceiver::Ready {
                setup_seconds,
                rss_kib_per_stream,
                has_contexts,
            } => (setup_seconds, rss_kib_per_stream, has_contexts),
            FromReceiver::Failed { reason } => bail!("{element}: {reason}"),
            FromReceiver::Measured { .. } => bail!("{UNEXPECTED}"),
        };
        receiver.tell(&ToReceiver::Begin)?;
        let sender = Subprocess::<FromSender>::start(&[
            "bench-sender",
            "--streams",
            &count,
            "--first-port",
            &first_port,
            "--seconds",
            &seconds,
        ])?;
        let packets_sent = match sender.wait()? {
            FromSender::Sent { packets } => packets,
            FromSender::Failed { reason } => bail!("the sender failed: {reason}"),
        };
        receiver.tell(&ToReceiver::End { packets_sent })?;
        let (usage, packets, threads) = match receiver.wait()? {
            FromReceiver::Measured {
                usage,
                packets,
                threads,
            } => (usage, packets, threads),
            FromReceiver::Failed { reason } => bail!("{element}: {reason}"),
            FromReceiver::Ready { .. } => bail!("{UNEXPECTED}"),
        };
        let cpu_us = usage.cpu.as_micros() as f64;
        let seconds = f64::from(self.seconds);
        Ok(Row {
            element: element.to_owned(),
            streams,
            threads,
            contexts: if has_contexts { self.contexts } else { 0 },
            wait: if has_contexts { self.wait } else { 0 },
            cpu_percent: rounded(cpu_us / 10_000.0 / seconds),
            us_per_packet: rounded(cpu_us / packets.max(1) as f64),
            context_switches_per_second: rounded(usage.context_switches as f64 / seconds),
            lost: packets_sent.saturating_sub(packets),
            rss_kib_per_stream: rounded(rss_kib_per_stream),
            setup_seconds: rounded(setup_seconds),
        })
    }
}

const UNEXPECTED: &str = "the process with the receivers sent an unexpected message";

impl Row {
    fn line(&self) -> String {
        let some = |number: u32| {
            if self.contexts == 0 {
                "-".to_owned()
            } else {
                number.to_string()
            }
        };
        format!(
            "{:<12} {:>7} {:>8} {:>9} {:>5} {:>7.1} {:>10.2} {:>11} {:>8} {:>11.1} {:>8.2}",
            self.element,
            self.streams,
            self.threads,
            some(self.contexts),
            some(self.wait),
            self.cpu_percent,
            self.us_per_packet,
            grouped(self.context_switches_per_second as u64),
            grouped(self.lost),
            self.rss_kib_per_stream,
            self.setup_seconds,
        )
    }
}

const HEADING: &str = "element      streams  threads  contexts  wait   CPU %  µs/packet  switches/s     lost  KiB/stream  setup s";

impl ReceiverArgs {
    /// Receives until the sender has finished.
    pub fn execute(&self) -> ExitCode {
        let told = self.receive().map_err(|error| FromReceiver::Failed {
            reason: format!("{error:#}"),
        });
        match told {
            Ok(()) => ExitCode::SUCCESS,
            Err(failed) => {
                let _ = subprocess::tell_parent(&failed);
                ExitCode::FAILURE
            }
        }
    }

    fn receive(&self) -> miette::Result<()> {
        usage::raise_descriptor_limit();
        init_gstreamer()?;
        let resident_kib_before = usage::resident_kib();
        let setup_start = Instant::now();
        let receivers = (0..self.streams)
            .map(|n| self.receiver(n))
            .collect::<Result<Vec<_>, _>>()?;
        let setup_seconds = setup_start.elapsed().as_secs_f64();
        let has_contexts = receivers
            .first()
            .is_some_and(|receiver| receiver.has_contexts);
        let resident_kib = usage::resident_kib().saturating_sub(resident_kib_before);
        let rss_kib_per_stream = resident_kib as f64 / f64::from(self.streams);
        let orders = subprocess::orders();
        subprocess::tell_parent(&FromReceiver::Ready {
            setup_seconds,
            rss_kib_per_stream,
            has_contexts,
        })
        .into_diagnostic()?;
        let mut usage_start = Usage::now();
        while let Ok(order) = orders.recv() {
            match order {
                ToReceiver::Begin => usage_start = Usage::now(),
                ToReceiver::End { packets_sent } => {
                    let packets = wait_for_tail(&receivers, packets_sent);
                    let usage = Usage::now().since(&usage_start);
                    let threads = usage::threads();
                    subprocess::tell_parent(&FromReceiver::Measured {
                        usage,
                        packets,
                        threads,
                    })
                    .into_diagnostic()?;
                }
            }
        }
        for receiver in receivers {
            let _ = receiver.pipeline.set_state(gst::State::Null);
        }
        Ok(())
    }

    fn receiver(&self, n: u16) -> miette::Result<Receiver> {
        let pipeline = gst::Pipeline::new();
        pipeline.use_clock(Some(&gst::SystemClock::obtain()));
        let make = |factory: &str| {
            gst::ElementFactory::make(factory)
                .build()
                .map_err(|_| miette!("the GStreamer element {factory} is missing"))
        };
        let source = make(&self.element)?;
        source.set_property("address", "127.0.0.1");
        source.set_property("port", i32::from(self.first_port + n));
        source.set_property("caps", gst::Caps::new_empty_simple("application/x-rtp"));
        source.set_property("reuse", false);
        source.set_property("retrieve-sender-address", false);
        let has_contexts = source.has_property("context");
        if has_contexts {
            source.set_property("context", format!("bench-{}", u32::from(n) % self.contexts));
            source.set_property("context-wait", self.wait);
        }
        let sink = make("fakesink")?;
        sink.set_property("sync", false);
        sink.set_property("async", false);
        pipeline.add_many([&source, &sink]).into_diagnostic()?;
        source.link(&sink).into_diagnostic()?;
        pipeline.set_state(gst::State::Playing).into_diagnostic()?;
        Ok(Receiver {
            pipeline,
            sink,
            has_contexts,
        })
    }
}

struct Receiver {
    pipeline: gst::Pipeline,
    sink: gst::Element,
    has_contexts: bool,
}

/// Waits until all packets have arrived, at most for [`TAIL_MAX`]. Returns the number of packets that all sinks have received.
fn wait_for_tail(receivers: &[Receiver], packets_sent: u64) -> u64 {
    let start = Instant::now();
    loop {
        let packets = receivers
            .iter()
            .map(|receiver| rendered(&receiver.sink))
            .sum();
        if packets >= packets_sent || start.elapsed() >= TAIL_MAX {
            return packets;
        }
        std::thread::sleep(TAIL_POLL);
    }
}

/// Returns the number of packets that a sink has counted so far.
fn rendered(sink: &gst::Element) -> u64 {
    sink.property::<gst::Structure>("stats")
        .get("rendered")
        .unwrap_or(0)
}

impl SenderArgs {
    /// Sends all packets, and reports their number.
    pub fn execute(&self) -> ExitCode {
        let (message, code) = match self.send() {
            Ok(packets) => (FromSender::Sent { packets }, ExitCode::SUCCESS),
            Err(error) => (
                FromSender::Failed {
                    reason: error.to_string(),
                },
                ExitCode::FAILURE,
            ),
        };
        let _ = subprocess::tell_parent(&message);
        code
    }

    fn send(&self) -> std::io::Result<u64> {
        let mut caller = Caller::new(self.streams.into(), self.first_port, 1)?;
        let mut schedule = Schedule::new(self.streams.into(), self.seconds);
        let start = Instant::now();
        let mut packets = 0;
        while !schedule.is_over() {
            while let Some(due) = schedule.poll(start.elapsed()) {
                caller.send(&due, |_| [0xff; 160])?;
                packets += due.streams.len() as u64;
            }
            std::thread::sleep(schedule.next_timeout().saturating_sub(start.elapsed()));
        }
        Ok(packets)
    }
}

/// Maximum wait for the last packet after it was sent.
const TAIL_MAX: Duration = Duration::from_secs(2);
/// Interval of polls. They are rare, because each poll reads the counts of thousands of sinks, and so it adds to the receivers' CPU time.
const TAIL_POLL: Duration = Duration::from_millis(50);
