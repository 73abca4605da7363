//! The other process of the demo: callers and listeners. Started by the demo, never by hand.

use std::io::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rtp_types::RtpPacket;

use super::caller::{Caller, Schedule};
use super::ledger::Ledger;
use super::listener::Listeners;
use super::messages::{FromPeer, ToPeer};
use super::now_ns;
use crate::process;
use crate::subprocess;

/// The callers and listeners of `threadbare demo`.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    /// How many
    #[arg(long)]
    streams: usize,
}

impl PeerArgs {
    /// Talks to the parent over standard input and output until the calls are over.
    pub fn execute(&self) -> ExitCode {
        match run(self.streams) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = subprocess::tell_parent(&FromPeer::Failed {
                    reason: error.to_string(),
                });
                ExitCode::FAILURE
            }
        }
    }
}

fn run(streams: usize) -> Result<(), Error> {
    process::raise_descriptor_limit();
    let mut listeners = Listeners::bind(streams)?;
    subprocess::tell_parent(&FromPeer::Ready {
        ports: listeners.ports()?,
        notes: listeners.notes(),
    })?;
    let orders = subprocess::orders();
    let Ok(ToPeer::Start {
        first_port,
        seconds,
        first_ssrc,
        payload_type,
    }) = orders.recv()
    else {
        return Ok(());
    };
    let mut ledger = Ledger::new(streams);
    let mut caller = Caller::new(streams, first_port)?;
    let mut schedule = Schedule::new(streams, seconds);
    let expected = Expected {
        first_ssrc,
        payload_type,
    };

    let start = Instant::now();
    let mut next_progress = PROGRESS_EVERY;
    while !schedule.is_over() && !is_hung_up(&orders) {
        let elapsed = start.elapsed();
        while let Some(due) = schedule.poll(elapsed) {
            let now_ns = now_ns();
            caller.send(&due, |stream| ledger.send(stream, now_ns))?;
        }
        listeners.drain(|packet, arrival_ns| expected.account(&mut ledger, packet, arrival_ns))?;
        if elapsed >= next_progress {
            next_progress += PROGRESS_EVERY;
            subprocess::tell_parent(&FromPeer::Progress(ledger.counters()))?;
        }
        std::thread::sleep(schedule.next_timeout().saturating_sub(start.elapsed()));
    }
    wait_for_tail(&mut listeners, &mut ledger, &expected)?;
    // Whatever comes twice has come by now.
    listeners.drain(|packet, arrival_ns| expected.account(&mut ledger, packet, arrival_ns))?;
    subprocess::tell_parent(&FromPeer::Done(ledger.counters()))
}

/// Until all has come back, or nothing more comes.
fn wait_for_tail(
    listeners: &mut Listeners,
    ledger: &mut Ledger,
    expected: &Expected,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut last_progress = (start, 0);
    while !ledger.is_complete() && start.elapsed() < TAIL_MAX {
        listeners.drain(|packet, arrival_ns| expected.account(ledger, packet, arrival_ns))?;
        let received = ledger.counters().packets_received;
        if received > last_progress.1 {
            last_progress = (Instant::now(), received);
        }
        if last_progress.0.elapsed() > TAIL_QUIET {
            break;
        }
        std::thread::sleep(TAIL_POLL);
    }
    Ok(())
}

struct Expected {
    first_ssrc: u32,
    payload_type: u8,
}

impl Expected {
    fn account(&self, ledger: &mut Ledger, packet: &[u8], arrival_ns: u64) {
        match RtpPacket::parse(packet) {
            Ok(rtp) if rtp.payload_type() == self.payload_type => {
                let stream = rtp.ssrc().wrapping_sub(self.first_ssrc) as usize;
                ledger.receive(stream, rtp.payload(), arrival_ns);
            }
            _ => ledger.receive_stranger(),
        }
    }
}

fn is_hung_up(orders: &Receiver<ToPeer>) -> bool {
    matches!(orders.try_recv(), Err(TryRecvError::Disconnected))
}

/// How often the parent hears how things stand.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How long after the last packet was sent the last may come back, on a machine that is much too busy.
const TAIL_MAX: Duration = Duration::from_secs(15);
/// If nothing comes for so long, nothing will.
const TAIL_QUIET: Duration = Duration::from_secs(3);
const TAIL_POLL: Duration = Duration::from_millis(5);
