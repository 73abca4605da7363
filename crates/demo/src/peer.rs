//! The demo's other process, which runs the parties. The demo starts it.

use std::io::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rtp_types::RtpPacket;
use threadbare_rtp::packet::is_rtcp;

use super::PCMA;
use super::caller::{Caller, Due, PCMU, Schedule};
use super::ledger::{Ledger, Stamp};
use super::messages::{Call, FromPeer, Standing, ToPeer};
use super::network::{Fate, Network, Parcel};
use super::now_ns;
use super::parties::{PARTIES_PER_SOCKET, Parties, parties_of};
use super::rtcp::{Rtcp, header_of};
use threadbare_process::subprocess;
use threadbare_process::usage::{self, Starvation};

/// Arguments of the process with the parties of `threadbare demo`.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    /// Number of streams
    #[arg(long)]
    streams: usize,
}

impl PeerArgs {
    /// Runs the parties until the calls are over. The process exchanges messages with its parent over standard input and output.
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
    usage::raise_descriptor_limit();
    let parties = Parties::bind(parties_of(streams))?;
    subprocess::tell_parent(&FromPeer::Ready {
        ports: parties.ports()?,
        notes: parties.notes(),
    })?;
    let orders = subprocess::orders();
    let Ok(ToPeer::Start(call)) = orders.recv() else {
        return Ok(());
    };
    let mut peer = Peer::new(streams, call, parties)?;
    let mut schedule = Schedule::new(streams, call.seconds);

    let start = Instant::now();
    let before = Starvation::now();
    let mut next_progress = PROGRESS_EVERY;
    while !schedule.is_over() && !is_hung_up(&orders) {
        let elapsed = start.elapsed();
        while let Some(due) = schedule.poll(elapsed) {
            peer.call(&due)?;
        }
        peer.listen()?;
        if elapsed >= next_progress {
            next_progress += PROGRESS_EVERY;
            subprocess::tell_parent(&FromPeer::Progress(peer.standing()))?;
        }
        std::thread::sleep(schedule.next_timeout().saturating_sub(start.elapsed()));
    }
    while !peer.network.is_empty() {
        peer.release(start.elapsed().as_millis() as u64)?;
        peer.listen()?;
        std::thread::sleep(TAIL_POLL);
    }
    peer.ledger.finish();
    peer.wait_for_tail()?;
    // The sockets are read once more, because any duplicate has arrived by now.
    peer.listen()?;
    peer.hang_up();
    subprocess::tell_parent(&FromPeer::Done {
        standing: peer.standing(),
        starved: Starvation::now().longest_since(&before),
        packets_by_ms: peer.ledger.packets_by_ms(),
    })?;
    peer.wait_for_byes(&orders)?;
    subprocess::tell_parent(&FromPeer::Parted(peer.standing().rtcp))
}

/// All parties.
struct Peer {
    call: Call,
    streams: usize,
    ledger: Ledger,
    network: Network,
    caller: Caller,
    parties: Parties,
    rtcp: Option<Rtcp>,
    /// Packets that the network releases now.
    going: Vec<Parcel>,
}

impl Peer {
    fn new(streams: usize, call: Call, parties: Parties) -> Result<Peer, Error> {
        let count = parties_of(streams);
        let rtcp = call
            .rtcp_offset
            .map(|_| Rtcp::new(count, now_ns(), call.first_ssrc, |party| call.port(party)));
        Ok(Peer {
            ledger: Ledger::new(streams),
            network: Network::new(call.harm, streams, call.seconds * 50),
            caller: Caller::from_sockets(
                parties.sockets()?,
                PARTIES_PER_SOCKET,
                streams,
                call.first_port,
                call.port_step,
                spoken,
            ),
            parties,
            rtcp,
            going: Vec::new(),
            streams,
            call,
        })
    }

    /// Sends the packets that are due at this tick, and the RTCP packets of the same streams.
    fn call(&mut self, due: &Due) -> Result<(), Error> {
        let now_ns = now_ns();
        self.network
            .release(due.tick, |parcel| self.going.push(parcel));
        for stream in due.streams.clone() {
            let packet = self.ledger.speak(stream);
            let parcel = Parcel { stream, packet };
            match self.network.carry(due.tick, parcel) {
                Fate::Prompt => self.going.push(parcel),
                Fate::Delayed => {}
                Fate::Lost => self.ledger.lose(stream, packet),
            }
            if let Some(rtcp) = &mut self.rtcp {
                rtcp.note_sent(stream, packet, now_ns);
            }
        }
        self.send(now_ns)?;
        let (call, caller) = (self.call, &self.caller);
        // If the number of streams is odd, the last party has no stream, but it sends RTCP.
        let is_last = due.streams.end == self.streams && !due.streams.is_empty();
        let silent = usize::from(is_last) * (parties_of(self.streams) - self.streams);
        if let Some(rtcp) = &mut self.rtcp {
            let parties = due.streams.start..due.streams.end + silent;
            rtcp.transmit(parties, now_ns, |party, bytes| {
                caller.send_other(party, bytes, call.rtcp_port(party));
            });
        }
        Ok(())
    }

    /// Sends the packets that the network held until this tick.
    fn release(&mut self, tick: u64) -> Result<(), Error> {
        self.network.release(tick, |parcel| self.going.push(parcel));
        self.send(now_ns())
    }

    fn send(&mut self, now_ns: u64) -> Result<(), Error> {
        let ledger = &mut self.ledger;
        let going = self.going.iter();
        self.caller.send_each(
            going.map(|parcel| (parcel.stream, parcel.packet)),
            |stream, packet| ledger.send(stream, packet, now_ns),
        )?;
        let after_ns = super::now_ns();
        for parcel in self.going.drain(..) {
            if let Some(rtcp) = &mut self.rtcp {
                rtcp.note_on_the_way(parcel.stream, parcel.packet, now_ns, after_ns);
            }
        }
        Ok(())
    }

    /// Receives the packets that have arrived.
    fn listen(&mut self) -> Result<(), Error> {
        let Peer {
            call,
            ledger,
            parties,
            rtcp,
            ..
        } = self;
        parties.drain(|packet, from, arrival_ns| {
            if let Some(rtcp) = rtcp
                && is_rtcp(packet)
            {
                let ssrc = packet.get(4..8).and_then(|word| word.try_into().ok());
                let stream = ssrc
                    .map_or(0, u32::from_be_bytes)
                    .wrapping_sub(call.first_ssrc);
                if !call.is_from_own_port(stream as usize, from, true) {
                    return ledger.receive_stranger();
                }
                return rtcp.handle_rtcp(arrival_ns, packet, ledger);
            }
            let Ok(rtp) = RtpPacket::parse(packet) else {
                return ledger.receive_stranger();
            };
            let stream = rtp.ssrc().wrapping_sub(call.first_ssrc) as usize;
            if rtp.payload_type() != heard(stream) || !call.is_from_own_port(stream, from, false) {
                return ledger.receive_stranger();
            }
            let payload = rtp.payload();
            if let Some(rtcp) = rtcp {
                rtcp.handle_rtp(arrival_ns, header_of(&rtp), payload.len());
            }
            let stamp = Stamp {
                number: rtp.sequence_number(),
                time: rtp.timestamp(),
            };
            ledger.receive(stream, stamp, payload, arrival_ns);
        })
    }

    /// Receives until every packet has come back, or until no more packets come.
    fn wait_for_tail(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        let mut last_progress = (start, 0);
        while !self.ledger.is_complete() && start.elapsed() < TAIL_MAX {
            self.listen()?;
            let received = self.ledger.counters().packets_received;
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

    /// Receives until the gateway has sent BYE on all calls, or has stopped without BYEs.
    fn wait_for_byes(&mut self, orders: &Receiver<ToPeer>) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let order = orders.try_recv();
            self.listen()?;
            let Some(rtcp) = &mut self.rtcp else {
                return Ok(());
            };
            let is_over = match order {
                Ok(ToPeer::Stopped) => true,
                // The parent has closed its end because the user has stopped the demo, so the gateway stops too.
                Err(TryRecvError::Disconnected) => start.elapsed() >= TAIL_MAX,
                Ok(ToPeer::Start(_)) | Err(TryRecvError::Empty) => false,
            };
            if is_over || !rtcp.is_awaiting_bye() {
                rtcp.finish();
                return Ok(());
            }
            std::thread::sleep(TAIL_POLL);
        }
    }

    fn hang_up(&mut self) {
        let (call, caller) = (self.call, &self.caller);
        if let Some(rtcp) = &mut self.rtcp {
            rtcp.leave(now_ns(), |party, bytes| {
                caller.send_other(party, bytes, call.rtcp_port(party));
            });
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            packets: self.ledger.counters(),
            rtcp: self
                .rtcp
                .as_ref()
                .map(|rtcp| rtcp.counters().clone())
                .unwrap_or_default(),
        }
    }
}

/// Returns the payload type in which a stream is sent.
fn spoken(stream: usize) -> u8 {
    [PCMU, PCMA][stream % 2]
}

fn heard(stream: usize) -> u8 {
    spoken(stream + 1)
}

fn is_hung_up(orders: &Receiver<ToPeer>) -> bool {
    matches!(orders.try_recv(), Err(TryRecvError::Disconnected))
}

/// Interval at which counts are sent to the parent.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// Maximum wait for the last packet after it was sent, for a badly overloaded machine.
const TAIL_MAX: Duration = Duration::from_secs(15);
/// Time without packets after which no more packets are expected.
const TAIL_QUIET: Duration = Duration::from_secs(3);
const TAIL_POLL: Duration = Duration::from_millis(5);
