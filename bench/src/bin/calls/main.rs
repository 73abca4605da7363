//! Compares `threadbare serve` with Debian's rtpengine as relays for the calls of a SIP proxy. One run measures both of them, and prints
//! the lines of `bench/results/calls.jsonl`.
//!
//! Each measurement restarts the relay and controls it by the ng protocol, as a proxy does. The CPU time is that of all threads
//! of the relay's process, divided by the packets that the parties sent in the measured window. rtpengine runs in user space
//! (`--table=-1`). Each relay has a separate network namespace, with a link (veth) to the parties. `threadbare-xdp` is
//! `threadbare serve --xdp`.

mod network;
mod parties;
mod proxy;
mod relay;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use threadbare_bench::calls::{Figures, Kind, Row, What};
use threadbare_bench::libraries::Head;
use threadbare_bench::measure;

use network::Network;
use parties::{Parties, Sides};
use proxy::Proxy;
use relay::Relay;

/// Measures calls through a relay.
#[derive(Parser)]
struct Options {
    /// Path of the program `threadbare`.
    #[arg(long)]
    threadbare: PathBuf,
    /// The program that continues the calls in `restarted1000`. Default: the same program.
    #[arg(long)]
    upgrade_to: Option<PathBuf>,
    /// Number of measurements of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds from the first packet to the measured window.
    #[arg(long, default_value_t = 6.0)]
    warmup: f64,
    /// Length of the measured window in seconds.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Makes only these measurements. Can be given several times.
    #[arg(long)]
    only: Vec<What>,
    /// Folder for recordings. Default: the system's folder for temporary files.
    #[arg(long)]
    recordings: Option<PathBuf>,
    /// Mode in which the device of `threadbare-xdp` runs the program.
    #[arg(long, default_value = "auto")]
    xdp_mode: String,
    /// Measures only this relay.
    #[arg(long)]
    relay: Option<Kind>,
    /// Does not measure rtpengine.
    #[arg(long)]
    alone: bool,
    /// State file for the calls of threadbare. Without it, the calls end with the process.
    #[arg(long)]
    state: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    println!("{}", serde_json::to_string(&Head::now(String::new())?)?);
    for round in 0..options.rounds.max(1) {
        for what in What::value_variants() {
            let is_wanted = if options.only.is_empty() {
                !RECORDED.contains(what)
            } else {
                options.only.contains(what)
            };
            if !is_wanted {
                continue;
            }
            for kind in Kind::value_variants().iter().copied() {
                let is_ours = *what == What::Restarted1000 || RECORDED.contains(what);
                let is_alone = options.alone || is_ours;
                let is_other = options.relay.is_some_and(|only| only != kind);
                if is_other || is_alone && kind == Kind::Rtpengine {
                    continue;
                }
                eprintln!("round {round}: {what:?}, {kind:?}");
                let figures = measure_one(&options, *what, kind)?;
                let row = Row {
                    what: *what,
                    relay: kind,
                    round,
                    figures,
                };
                println!("{}", serde_json::to_string(&row)?);
            }
        }
    }
    Ok(())
}

fn measure_one(options: &Options, what: What, kind: Kind) -> Result<Figures> {
    let state = match what {
        What::Restarted1000 => Some(options.state.clone().unwrap_or_else(|| {
            let name = format!("threadbare-calls-{}.redb", std::process::id());
            std::env::temp_dir().join(name)
        })),
        _ => options.state.clone(),
    };
    let folder = options
        .recordings
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("threadbare-recordings-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let network = Network::new()?;
    let recordings = match what {
        What::Coded1000 => (&*folder, "wav-g711"),
        _ => (&*folder, "wav"),
    };
    let mut relay = Relay::start(kind, options, &network, state.as_deref(), recordings)?;
    let mut proxy = relay.proxy()?;
    let figures = match what {
        What::Transcoded500 => carry(options, &relay, &mut proxy, 500, Sides::Transcoded),
        What::Transcoded1000 => carry(options, &relay, &mut proxy, 1000, Sides::Transcoded),
        What::Passed1000 => carry(options, &relay, &mut proxy, 1000, Sides::Passed),
        What::Recorded1000 | What::Coded1000 => {
            proxy.record_calls();
            carry(options, &relay, &mut proxy, 1000, Sides::Passed)
        }
        What::Srtp500 => carry(options, &relay, &mut proxy, 500, Sides::Srtp),
        What::Signalling => signal(&relay, &mut proxy),
        What::Flood => flood(&relay, &mut proxy, true),
        What::FirstFlood => flood(&relay, &mut proxy, false),
        What::Idle1000 => idle(&relay, &mut proxy),
        What::Restarted1000 => restart(options, &mut relay, &mut proxy),
    };
    drop(relay);
    drop(network);
    std::fs::remove_dir_all(folder)?;
    // The next measurement must begin with a relay that has no calls.
    match &state {
        Some(state) if state.exists() => std::fs::remove_file(state)?,
        _ => {}
    }
    figures
}

/// Measures how long the media stop when the relay's process is killed and restarted.
fn restart(options: &Options, relay: &mut Relay, proxy: &mut Proxy) -> Result<Figures> {
    let parties = Parties::new()?;
    let ways = (0..1000)
        .map(|call| proxy.call(call, &parties, Sides::Passed))
        .collect::<Result<Vec<_>>>()?;
    let duration = Duration::from_secs_f64(options.warmup + options.seconds) + SETTLE;
    let talk = parties.talk(ways, duration)?;
    std::thread::sleep(Duration::from_secs_f64(options.warmup));
    parties.watch();
    std::thread::sleep(SETTLE);
    let begin = Instant::now();
    relay.restart(options)?;
    proxy.await_ping()?;
    let back = begin.elapsed();
    talk.join()?;
    let mut gaps = parties.gaps();
    gaps.sort_unstable();
    // Each call has two parties. Their streams keep their SSRCs after the restart, so there is one source per party.
    ensure!(gaps.len() == 2000, "{} sources", gaps.len());
    let ms = |gap: Option<&Duration>| gap.map_or(0.0, |gap| gap.as_secs_f64() * 1e3);
    Ok(Figures {
        gap_ms: Some([ms(gaps.last()), ms(gaps.get(1000))]),
        back_ms: Some(back.as_secs_f64() * 1e3),
        ..Figures::default()
    })
}

/// Measures the cost of forwarding media.
fn carry(
    options: &Options,
    relay: &Relay,
    proxy: &mut Proxy,
    calls: u32,
    sides: Sides,
) -> Result<Figures> {
    let parties = Parties::new()?;
    let ways = (0..calls)
        .map(|call| proxy.call(call, &parties, sides))
        .collect::<Result<Vec<_>>>()?;
    let duration = Duration::from_secs_f64(options.warmup + options.seconds) + SETTLE;
    let talk = parties.talk(ways, duration)?;
    std::thread::sleep(Duration::from_secs_f64(options.warmup));
    let (sent_before, cpu_before) = (talk.sent(), relay.cpu()?);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut late_ms = None;
    while Instant::now() < end {
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        late_ms = relay
            .lateness_ms()?
            .into_iter()
            .chain(late_ms)
            .reduce(f64::max);
    }
    let threads = relay.threads()?;
    let (sent_after, cpu_after) = (talk.sent(), relay.cpu()?);
    let sent = talk.join()?;
    std::thread::sleep(SETTLE);
    let packets = (sent_after - sent_before).max(1);
    Ok(Figures {
        us_per_packet: Some((cpu_after - cpu_before).as_secs_f64() * 1e6 / packets as f64),
        lost: Some(sent as i64 - parties.heard() as i64),
        sent: Some(sent),
        threads: Some(threads),
        late_ms,
        ..Figures::default()
    })
}

/// Measures the cost of calls that are created and ended one after the other.
fn signal(relay: &Relay, proxy: &mut Proxy) -> Result<Figures> {
    let parties = Parties::new()?;
    signalled(relay, true, |calls| {
        calls.into_iter().try_for_each(|call| {
            proxy.call(call, &parties, Sides::Passed)?;
            proxy.delete(call)
        })
    })
}

/// Measures how many calls the relay creates and ends per second on one core.
fn flood(relay: &Relay, proxy: &mut Proxy, had_calls: bool) -> Result<Figures> {
    let parties = Parties::new()?;
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores > 1,
        "expected at least two cores: one for the relay, and one for the proxy"
    );
    let own = std::process::id();
    relay.pin("0")?;
    measure::pin(own, "1")?;
    let figures = signalled(relay, had_calls, |calls| proxy.flood(calls, &parties));
    measure::pin(own, &format!("0-{}", cores - 1))?;
    figures
}

/// Measures a number of calls that `run` creates and ends. With `had_calls`, `run` first creates and ends as many calls twice. After each
/// time, this function waits until the ports of the ended calls may be reused.
fn signalled(
    relay: &Relay,
    had_calls: bool,
    mut run: impl FnMut(Range<u32>) -> Result<()>,
) -> Result<Figures> {
    if had_calls {
        for burst in 0..2 {
            run(burst * SIGNALLED..(burst + 1) * SIGNALLED)?;
            std::thread::sleep(RESTED);
        }
    } else {
        run(0..SIGNALLED / 10)?
    }
    let (before, begin) = (relay.cpu()?, Instant::now());
    run(2 * SIGNALLED..3 * SIGNALLED)?;
    let (cpu, took) = (relay.cpu()? - before, begin.elapsed());
    let calls = f64::from(SIGNALLED);
    Ok(Figures {
        us_per_call: Some(cpu.as_secs_f64() * 1e6 / calls),
        calls_per_second: Some(calls / took.as_secs_f64()),
        ..Figures::default()
    })
}

/// Measures the memory of 1000 calls without media. Then measures 200 offers a second while these calls have media.
fn idle(relay: &Relay, proxy: &mut Proxy) -> Result<Figures> {
    let parties = Parties::new()?;
    let before = relay.resident_kib()?;
    let ways = (0..1000)
        .map(|call| proxy.call(call, &parties, Sides::Passed))
        .collect::<Result<Vec<_>>>()?;
    let after = relay.resident_kib()?;
    let talk = parties.talk(ways, OFFERING + SETTLE)?;
    std::thread::sleep(SETTLE);
    let begin = Instant::now();
    let mut took = Vec::new();
    for number in 0.. {
        let due = begin + OFFER_INTERVAL * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if begin.elapsed() > OFFERING - SETTLE {
            break;
        }
        let asked = Instant::now();
        proxy.offer(1000 + number, &parties, Sides::Passed)?;
        took.push(asked.elapsed());
        proxy.delete(1000 + number)?;
    }
    let sent = talk.join()?;
    std::thread::sleep(SETTLE);
    took.sort_unstable();
    let p99 = took
        .get(took.len() * 99 / 100)
        .context("no offer was answered")?;
    ensure!(after >= before, "the memory shrank when calls were created");
    Ok(Figures {
        kib_per_call: Some((after - before) as f64 / 1000.0),
        offer_ms_p99: Some(p99.as_secs_f64() * 1e3),
        lost: Some(sent as i64 - parties.heard() as i64),
        sent: Some(sent),
        ..Figures::default()
    })
}

/// Measurements that are made only if the option `--only` names them.
const RECORDED: [What; 2] = [What::Recorded1000, What::Coded1000];
/// Time after which all sent packets have arrived.
const SETTLE: Duration = Duration::from_millis(500);
/// Interval between two readings of the media threads' lateness.
const LOOK: Duration = Duration::from_millis(500);
/// Number of calls in a measurement. The process may open enough descriptors for all ports of these calls.
const SIGNALLED: u32 = 3500;
/// Pause after a burst of calls. It is longer than the time for which threadbare reserves the ports of an ended call. rtpengine does not
/// reserve such ports.
const RESTED: Duration = Duration::from_secs(11);
const OFFERING: Duration = Duration::from_secs(6);
const OFFER_INTERVAL: Duration = Duration::from_millis(5);
