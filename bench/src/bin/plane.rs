//! The media plane against a bare loop: receive a packet, turn µ-law into A-law in place, send it on from the socket it came
//! to. Neither has a jitter buffer or RTCP, so that the difference is the plane itself: calls, ports, timers, packet I/O.
//!
//! Each measurement is a process of its own, and the kinds take turns, so that the machine's other work meets all of them. CPU
//! time is that of the thread that carries the packets. Prints one line of JSON with the medians.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use threadbare_bench::epoll::Epoll;
use threadbare_bench::{PACKET_BYTES, PACKETS_PER_SECOND, measure, rtp};
use threadbare_relay::{
    Call, CallHandle, Datagram, Engine, LegPorts, Outbox, PortId, PortRange, PortUse,
    RangeSettings, Settings, SharedSettings,
};
use threadbare_rtp::demux::Filter;
use threadbare_rtp::id::Ssrc;
use threadbare_runtime::{RawAddr, SEND_BATCH_MAX, SendBatch};

/// The media plane against a bare loop.
#[derive(Parser)]
struct Options {
    /// How many streams.
    #[arg(long, default_value_t = 300)]
    streams: u32,
    /// Milliseconds of a slice.
    #[arg(long, default_value_t = 20)]
    wait: u64,
    /// Seconds from the first packet to the window.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds of the window.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Measurements of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// One measurement of this kind, in this process.
    #[arg(long)]
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Kind {
    /// The bare loop.
    Bare,
    /// The plane, a socket for each stream.
    Pairs,
    /// The plane, one socket for all.
    Shared,
}

const KINDS: [Kind; 3] = [Kind::Bare, Kind::Pairs, Kind::Shared];

/// One measurement.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    us_per_packet: f64,
    packets: u64,
    /// Sent to the measured ones in the window and the warm-up, and never sent on.
    lost: i64,
    /// From the first port to the last call that has had its first turn.
    ready_ms: f64,
}

/// The result line.
#[derive(Debug, Serialize)]
struct Line {
    streams: u32,
    wait_ms: u64,
    rounds: usize,
    bare_us: f64,
    pairs_us: f64,
    shared_us: f64,
    pairs_to_bare: f64,
    shared_to_bare: f64,
    shared_to_pairs: f64,
    pairs_ready_us_per_call: f64,
    shared_ready_us_per_call: f64,
    lost: [i64; 3],
}

fn main() -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    let line = match options.kind {
        Some(kind) => serde_json::to_string(&measure_one(&options, kind)?)?,
        None => serde_json::to_string(&compare(&options)?)?,
    };
    println!("{line}");
    // The bare loop has no end.
    std::process::exit(0)
}

fn compare(options: &Options) -> Result<Line> {
    let mut figures: [Vec<Figures>; 3] = Default::default();
    for _ in 0..options.rounds.max(1) {
        for (kind, figures) in KINDS.into_iter().zip(&mut figures) {
            figures.push(measure_apart(options, kind)?);
        }
    }
    let median = |kind: usize, of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = figures[kind].iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let us = [0, 1, 2].map(|kind| median(kind, |one| one.us_per_packet));
    let ready_us = [1, 2].map(|kind| {
        let ready_ms = median(kind, |one| one.ready_ms);
        ready_ms * 1e3 / f64::from(options.streams)
    });
    Ok(Line {
        streams: options.streams,
        wait_ms: options.wait,
        rounds: options.rounds,
        bare_us: us[0],
        pairs_us: us[1],
        shared_us: us[2],
        pairs_to_bare: us[1] / us[0],
        shared_to_bare: us[2] / us[0],
        shared_to_pairs: us[2] / us[1],
        pairs_ready_us_per_call: ready_us[0],
        shared_ready_us_per_call: ready_us[1],
        lost: [0, 1, 2].map(|kind| figures[kind].iter().map(|one| one.lost).sum()),
    })
}

fn measure_apart(options: &Options, kind: Kind) -> Result<Figures> {
    let name = kind.to_possible_value().context("a kind has a name")?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--streams", &options.streams.to_string()])
        .args(["--wait", &options.wait.to_string()])
        .args(["--warmup", &options.warmup.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--kind", name.get_name()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{kind:?}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure_one(options: &Options, kind: Kind) -> Result<Figures> {
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = sink.local_addr()?;
    std::thread::Builder::new()
        .name("drain".into())
        .spawn(move || while sink.recv(&mut [0; PACKET_BYTES]).is_ok() {})?;
    let begun = Instant::now();
    let carrier: Box<dyn Carrier> = match kind {
        Kind::Bare => Box::new(Bare::start(options, to)?),
        Kind::Pairs | Kind::Shared => Box::new(Plane::start(options, to, kind)?),
    };
    let ready_ms = begun.elapsed().as_secs_f64() * 1e3;
    let ports = carrier.ports();
    let sent = Arc::new(AtomicU64::new(0));
    // Longer than the window, so that its end is met by packets, too.
    let duration = options.warmup + options.seconds + SETTLE.as_secs_f64();
    let sender = {
        let sent = sent.clone();
        std::thread::Builder::new()
            .name("sender".into())
            .spawn(move || send(&ports, duration, &sent))?
    };
    std::thread::sleep(Duration::from_secs_f64(options.warmup));
    let first = carrier.stand()?;
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let last = carrier.stand()?;
    ensure!(sender.join().is_ok(), "the sender has failed");
    std::thread::sleep(SETTLE);
    let packets = last.packets - first.packets;
    let cpu = last.cpu.saturating_sub(first.cpu);
    Ok(Figures {
        us_per_packet: cpu.as_secs_f64() * 1e6 / packets.max(1) as f64,
        packets,
        lost: sent.load(Relaxed) as i64 - carrier.packets() as i64,
        ready_ms,
    })
}

/// Packets sent on so far, and the time that took.
struct Stand {
    packets: u64,
    cpu: Duration,
}

/// What is measured.
trait Carrier {
    /// The port of each stream.
    fn ports(&self) -> Vec<SocketAddr>;
    fn packets(&self) -> u64;
    fn stand(&self) -> Result<Stand>;
}

/// The hand-written loop.
struct Bare {
    ports: Vec<SocketAddr>,
    shared: Arc<BareShared>,
}

#[derive(Default)]
struct BareShared {
    packets: AtomicU64,
    /// Stands wanted, and given.
    wanted: AtomicUsize,
    given: AtomicUsize,
    cpu_ns: AtomicU64,
}

impl Bare {
    fn start(options: &Options, to: SocketAddr) -> Result<Bare> {
        let epoll = Epoll::new()?;
        let mut sockets = Vec::new();
        for place in 0..options.streams as usize {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            epoll.add(&socket, place)?;
            sockets.push(socket);
        }
        let ports = sockets.iter().map(UdpSocket::local_addr);
        let ports = ports.collect::<std::io::Result<_>>()?;
        let shared = Arc::<BareShared>::default();
        let slice = Duration::from_millis(options.wait);
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("bare".into())
            .spawn(move || {
                let table = table();
                let mut packet = [0; 2048];
                epoll.run(slice, |place, _| {
                    let socket = &sockets[place];
                    if let Ok(len) = socket.recv(&mut packet) {
                        convert(&mut packet[..len], &table);
                        if socket.send_to(&packet[..len], to).is_ok() {
                            of_thread.count();
                        }
                    }
                });
            })?;
        Ok(Bare { ports, shared })
    }
}

impl BareShared {
    fn count(&self) {
        self.packets.store(self.packets.load(Relaxed) + 1, Relaxed);
        let wanted = self.wanted.load(Relaxed);
        if wanted != self.given.load(Relaxed) {
            self.cpu_ns
                .store(measure::thread_cpu().as_nanos() as u64, Relaxed);
            self.given
                .store(wanted, std::sync::atomic::Ordering::Release);
        }
    }
}

impl Carrier for Bare {
    fn ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }

    fn packets(&self) -> u64 {
        self.shared.packets.load(Relaxed)
    }

    fn stand(&self) -> Result<Stand> {
        let wanted = self.shared.wanted.fetch_add(1, Relaxed) + 1;
        while self.shared.given.load(std::sync::atomic::Ordering::Acquire) != wanted {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Stand {
            packets: self.packets(),
            cpu: Duration::from_nanos(self.shared.cpu_ns.load(Relaxed)),
        })
    }
}

/// The media plane.
struct Plane {
    ports: Vec<SocketAddr>,
    engine: Engine<Converter>,
    _calls: Vec<CallHandle<Converter>>,
}

impl Plane {
    fn start(options: &Options, to: SocketAddr, kind: Kind) -> Result<Plane> {
        let mut settings = Settings::new("plane");
        settings.threads.wait = Duration::from_millis(options.wait);
        let engine = Engine::new(settings)?;
        let range = PortRange::new(RangeSettings {
            port_use: PortUse::Mux,
            ..RangeSettings::new(Ipv4Addr::LOCALHOST.into(), 10_000, 32_000)
        })?;
        let shared = match kind {
            Kind::Shared => Some(engine.share(&SharedSettings::new(SocketAddr::from((
                Ipv4Addr::LOCALHOST,
                0,
            ))))?),
            Kind::Bare | Kind::Pairs => None,
        };
        let table = Arc::new(table());
        let (mut ports, mut calls) = (Vec::new(), Vec::new());
        for stream in 0..options.streams {
            let leg: LegPorts = match &shared {
                Some(shared) => shared.lease(Filter {
                    // The sender's numbers.
                    ssrc: Some(Ssrc(stream + 1)),
                    ..Filter::default()
                })?,
                None => range.lease()?,
            };
            ports.push(leg.rtp_address());
            let call = Converter::new(to, table.clone());
            calls.push(engine.create("converter", vec![leg], call)?);
        }
        if let Some(last) = calls.last() {
            last.stats().wait()?;
        }
        Ok(Plane {
            ports,
            engine,
            _calls: calls,
        })
    }
}

impl Carrier for Plane {
    fn ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }

    fn packets(&self) -> u64 {
        self.engine.stats().packets_sent
    }

    fn stand(&self) -> Result<Stand> {
        let shard = self.engine.context().next_shard();
        let cpu = shard.call(|_| measure::thread_cpu())?;
        Ok(Stand {
            packets: self.packets(),
            cpu,
        })
    }
}

/// A call that converts, and sends on from the port that the packet came to.
struct Converter {
    len: usize,
    to: SocketAddr,
    table: Arc<[u8; 256]>,
    packet: [u8; PACKET_BYTES],
}

impl Converter {
    fn new(to: SocketAddr, table: Arc<[u8; 256]>) -> Converter {
        Converter {
            len: 0,
            to,
            table,
            packet: [0; PACKET_BYTES],
        }
    }
}

impl Call for Converter {
    fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
        convert(datagram.bytes, &self.table);
        self.len = datagram.bytes.len().min(PACKET_BYTES);
        self.packet[..self.len].copy_from_slice(&datagram.bytes[..self.len]);
    }

    fn poll_transmit(&mut self, _now_ns: u64, out: &mut dyn Outbox) {
        if self.len > 0
            && out
                .stage(PortId::rtp(0), self.to, &self.packet[..self.len])
                .is_ok()
        {
            self.len = 0;
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

/// What the values become does not matter here, only that each is looked up.
fn table() -> [u8; 256] {
    std::array::from_fn(|i| i as u8 ^ 0x55)
}

fn convert(packet: &mut [u8], table: &[u8; 256]) {
    let Some((header, payload)) = packet.split_at_mut_checked(HEADER_BYTES) else {
        return;
    };
    header[1] = PCMA;
    for sample in payload {
        *sample = table[usize::from(*sample)];
    }
}

/// Sends each port its stream, spread evenly over 20 ms.
fn send(ports: &[SocketAddr], seconds: f64, sent: &AtomicU64) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addresses: Vec<RawAddr> = ports.iter().map(|port| RawAddr::from(*port)).collect();
    let mut packets: Vec<_> = (0..ports.len() as u32).map(rtp::first_packet).collect();
    let interval = Duration::from_micros(1_000_000 / PACKETS_PER_SECOND);
    let begin = Instant::now();
    for number in 0..(seconds * PACKETS_PER_SECOND as f64) as u32 {
        for packet in &mut packets {
            rtp::set_number(packet, number);
        }
        for burst in 0..BURSTS {
            let due = begin + interval * number + interval * burst as u32 / BURSTS as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let range = ports.len() * burst / BURSTS..ports.len() * (burst + 1) / BURSTS;
            let (packets, addresses) = (&packets[range.clone()], &addresses[range]);
            for (packets, addresses) in packets
                .chunks(SEND_BATCH_MAX)
                .zip(addresses.chunks(SEND_BATCH_MAX))
            {
                let pieces: Vec<_> = packets.iter().map(|p| [std::io::IoSlice::new(p)]).collect();
                let mut batch = SendBatch::default();
                for (piece, address) in pieces.iter().zip(addresses) {
                    ensure!(batch.push(piece, address), "the batch is full");
                }
                while !batch.is_empty() {
                    sent.fetch_add(batch.send(socket.as_fd())? as u64, Relaxed);
                }
            }
        }
    }
    Ok(())
}

const HEADER_BYTES: usize = 12;
const PCMA: u8 = 8;
/// A stream's packet goes out in one of so many bursts within its 20 ms.
const BURSTS: usize = 20;
/// What has been sent has arrived after this.
const SETTLE: Duration = Duration::from_millis(500);
