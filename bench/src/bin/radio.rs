//! Measures HTTP radio streams of 128 kbit/s. The figures are the CPU time and the number of threads of a process that fetches many
//! streams, with the stock element and with our element.
//!
//! If no kind is given, the program makes all planned runs. Each run has two processes: the measured one and a server. The
//! program prints a row per run, as a JSON object on one line, and then the ratios. Plugins come from `GST_PLUGIN_PATH`.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use gst::prelude::*;
use serde::{Deserialize, Serialize};
use threadbare_bench::measure::{Snapshot, raise_descriptor_limit};

/// Measures HTTP radio streams.
#[derive(Parser)]
struct Options {
    /// Measures only this kind, and prints its row.
    #[arg(long)]
    kind: Option<Kind>,
    /// Number of streams, if a kind is given.
    #[arg(long, default_value_t = 200)]
    streams: usize,
    /// Address of the server, if a kind is given. Default: a server is started in a separate process.
    #[arg(long)]
    address: Option<SocketAddr>,
    /// Length of the measurement in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before the measurement, during which all streams flow.
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// Number of rounds of all planned runs.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Runs the server, and prints its address.
    #[arg(long)]
    serve: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// The stock element, `souphttpsrc`.
    Stock,
    /// Our element, `reqwesthttpsrc`. All streams share one context.
    Ours,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    kind: Kind,
    streams: usize,
    cpu_percent: f64,
    threads: usize,
    /// Number of received buffers, divided by the number of writes that the server should have made.
    received_ratio: f64,
}

const PLAN: [(Kind, usize); 3] = [(Kind::Stock, 200), (Kind::Ours, 200), (Kind::Ours, 1000)];
const BYTES_PER_SECOND: usize = 16_000;
/// Number of writes of the server per second and stream. A radio server writes some kilobytes at a time.
const WRITES_PER_SECOND: usize = 10;
/// Number of phases over which the streams are spread, because listeners arrive at different times.
const PHASES: usize = 10;

fn main() -> Result<()> {
    let options = Options::parse();
    raise_descriptor_limit();
    if options.serve {
        return serve();
    }
    match options.kind {
        Some(kind) => {
            let row = measure(kind, &options)?;
            println!("{}", serde_json::to_string(&row)?);
            Ok(())
        }
        None => run_plan(&options),
    }
}

fn run_plan(options: &Options) -> Result<()> {
    let mut rows = Vec::new();
    for _ in 0..options.runs {
        for (kind, streams) in PLAN {
            let row = run_one(kind, streams, options)?;
            println!("{}", serde_json::to_string(&row)?);
            rows.push(row);
        }
    }
    let per_stream = |kind, streams| {
        let rows = rows
            .iter()
            .filter(|row| (row.kind, row.streams) == (kind, streams));
        let mut all: Vec<f64> = rows.map(|row| row.cpu_percent / streams as f64).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let stock = per_stream(Kind::Stock, 200);
    for streams in [200, 1000] {
        let ratio = per_stream(Kind::Ours, streams) / stock;
        println!(
            "CPU time per stream, {streams} streams of reqwesthttpsrc compared with 200 streams of souphttpsrc: {ratio:.2}"
        );
    }
    Ok(())
}

/// The process of the server, and its address. It is killed on drop.
struct Server(Child, SocketAddr);

impl Server {
    fn start() -> Result<Server> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child
            .stdout
            .take()
            .context("the server process has no pipe for its output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse()?;
        Ok(Server(child, address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_one(kind: Kind, streams: usize, options: &Options) -> Result<Row> {
    let server = Server::start()?;
    let name = kind
        .to_possible_value()
        .context("the kind of source has no name as an argument")?;
    let output = Command::new(std::env::current_exe()?)
        .args([
            "--kind",
            name.get_name(),
            "--address",
            &server.1.to_string(),
        ])
        .args(["--streams", &streams.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--warmup", &options.warmup.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "the run with {streams} streams of {kind:?} failed: {}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure(kind: Kind, options: &Options) -> Result<Row> {
    gst::init()?;
    let own = match options.address {
        Some(_) => None,
        None => Some(Server::start()?),
    };
    let address = options.address.or(own.as_ref().map(|server| server.1));
    let address = address.context("cannot start the server: its address is unknown")?;
    let source = match kind {
        Kind::Stock => "souphttpsrc",
        Kind::Ours => "reqwesthttpsrc context=radio context-wait=20",
    };
    let line =
        format!("{source} is-live=true location=http://{address}/ ! fakesink name=out sync=false");
    // Each stream has its own pipeline, as in applications.
    let pipelines: Vec<gst::Pipeline> = (0..options.streams)
        .map(|_| {
            let pipeline = gst::parse::launch(&line)?;
            let pipeline = pipeline.downcast::<gst::Pipeline>();
            let pipeline = pipeline
                .map_err(|_| anyhow::anyhow!("the description does not make a pipeline"))?;
            pipeline.set_state(gst::State::Playing)?;
            Ok(pipeline)
        })
        .collect::<Result<_>>()?;
    let received = || -> u64 {
        let sinks = pipelines
            .iter()
            .filter_map(|pipeline| pipeline.by_name("out"));
        sinks
            .map(|sink| {
                let stats = sink.property::<gst::Structure>("stats");
                stats.get::<u64>("rendered").unwrap_or(0)
            })
            .sum()
    };
    std::thread::sleep(Duration::from_secs_f64(options.warmup));
    for pipeline in &pipelines {
        let bus = pipeline.bus().context("the pipeline has no bus")?;
        if let Some(message) = bus.pop_filtered(&[gst::MessageType::Error, gst::MessageType::Eos]) {
            bail!("{message:?}");
        }
    }
    let (before, first) = (received(), Snapshot::first());
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let (last, after) = (Snapshot::last(), received());
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    let cpu_percent = first.cpu_ms_until(&last) / options.seconds / 10.0;
    let due = options.seconds * (WRITES_PER_SECOND * options.streams) as f64;
    for pipeline in &pipelines {
        pipeline.set_state(gst::State::Null)?;
    }
    Ok(Row {
        kind,
        streams: options.streams,
        cpu_percent,
        threads,
        received_ratio: (after - before) as f64 / due,
    })
}

/// Serves any number of listeners until the standard input ends.
fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let (send, listeners) = channel();
    std::thread::spawn(move || send_all(&listeners));
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = [0; 4096];
            let is_fine = stream.read(&mut head).is_ok()
                && stream
                    .write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nicy-name: bench\r\n\r\n",
                    )
                    .is_ok();
            if is_fine && send.send(stream).is_err() {
                return;
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn send_all(listeners: &Receiver<TcpStream>) {
    let piece = vec![0x55; BYTES_PER_SECOND / WRITES_PER_SECOND];
    let step = Duration::from_secs(1) / (WRITES_PER_SECOND * PHASES) as u32;
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut due = Instant::now();
    for phase in (0..PHASES).cycle() {
        streams.extend(listeners.try_iter());
        for stream in streams.iter_mut().skip(phase).step_by(PHASES) {
            // The list keeps disconnected listeners, so that the other streams keep their phases.
            let _ = stream.write_all(&piece);
        }
        due += step;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
