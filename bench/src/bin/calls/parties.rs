//! The telephones of all calls. They share a few sockets, a sending thread and a receiving thread.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::network::{PARTIES, RELAY};
use anyhow::{Context, Result, anyhow, ensure};
use threadbare_bench::{PACKET_BYTES, ports, rtp};
use threadbare_rtp::srtp::{RTP_TRAILER_BYTES_MAX, Sender};
use threadbare_runtime::{RECV_BATCH, RawAddr, RecvBatch, SEND_BATCH_MAX, SendBatch};

/// Media on the two sides of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sides {
    /// PCMU on both sides.
    Passed,
    /// PCMU on one side, PCMA on the other.
    Transcoded,
    /// PCMU in RTP on one side, in SRTP on the other.
    Srtp,
}

/// A call's packets and their destinations. Arrays contain the value of side A, then that of side B.
pub(crate) struct Way {
    pub(crate) call: u32,
    pub(crate) to: [u16; 2],
    pub(crate) payload_types: [u8; 2],
    /// Protects the packets of side B.
    pub(crate) srtp: Option<Sender>,
}

/// All parties.
pub(crate) struct Parties {
    /// Sockets of all sides A, then those of all sides B.
    sockets: [Vec<Arc<UdpSocket>>; 2],
    /// Sockets for RTCP reports, which are not read.
    _reports: Vec<UdpSocket>,
    heard: Arc<AtomicU64>,
    sources: Arc<Mutex<Option<Sources>>>,
}

/// The time of the last packet and the longest time between two packets, for each SSRC.
type Sources = HashMap<u32, (Instant, Duration)>;

impl Parties {
    pub(crate) fn new() -> Result<Parties> {
        let mut reports = Vec::new();
        let mut side = || -> Result<Vec<Arc<UdpSocket>>> {
            let mut sockets = Vec::new();
            for _ in 0..SOCKETS {
                let (rtp, rtcp) = pair()?;
                ports::enlarge_buffer(&rtp);
                sockets.push(Arc::new(rtp));
                reports.push(rtcp);
            }
            Ok(sockets)
        };
        let sockets = [side()?, side()?];
        let heard = Arc::<AtomicU64>::default();
        let sources = Arc::<Mutex<Option<Sources>>>::default();
        let (all, of_thread) = (sockets.concat(), Arc::downgrade(&heard));
        let watched = sources.clone();
        std::thread::Builder::new()
            .name("drain".into())
            .spawn(move || {
                let mut batch = RecvBatch::new(RECV_BATCH);
                while let Some(heard) = of_thread.upgrade() {
                    let mut sources = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    for socket in &all {
                        heard.fetch_add(take_all(socket, &mut batch, sources.as_mut()), Relaxed);
                    }
                    drop(sources);
                    drop(heard);
                    std::thread::sleep(DRAIN_INTERVAL);
                }
            })?;
        Ok(Parties {
            sockets,
            _reports: reports,
            heard,
            sources,
        })
    }

    /// Starts to record when packets arrive.
    pub(crate) fn watch(&self) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        *sources = Some(Sources::new());
    }

    /// Returns the longest time between two packets of each source. A source that has ended is silent until now.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, end) = (sources.iter().flat_map(HashMap::values), Instant::now());
        all.map(|(last, gap)| (*gap).max(end - *last)).collect()
    }

    /// Returns the port of a call's side A.
    pub(crate) fn a(&self, call: u32) -> u16 {
        self.port(0, call)
    }

    /// Returns the port of a call's side B.
    pub(crate) fn b(&self, call: u32) -> u16 {
        self.port(1, call)
    }

    fn port(&self, side: usize, call: u32) -> u16 {
        let socket = &self.sockets[side][call as usize % SOCKETS];
        socket.local_addr().map_or(0, |address| address.port())
    }

    /// Returns the number of packets that have arrived.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }

    /// Makes all parties send for `duration`, each at 50 packets a second.
    pub(crate) fn talk(&self, ways: Vec<Way>, duration: Duration) -> Result<Talk> {
        let sent = Arc::<AtomicU64>::default();
        let (of_thread, sockets) = (sent.clone(), self.sockets.clone());
        let thread = std::thread::Builder::new()
            .name("sender".into())
            .spawn(move || send(ways, &sockets, duration, &of_thread))?;
        Ok(Talk { thread, sent })
    }
}

/// A running transmission of all parties.
pub(crate) struct Talk {
    thread: JoinHandle<Result<()>>,
    sent: Arc<AtomicU64>,
}

impl Talk {
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    pub(crate) fn join(self) -> Result<u64> {
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the sender has panicked"))??;
        Ok(self.sent.load(Relaxed))
    }
}

/// The stream of one party.
struct Speech {
    to: RawAddr,
    packet: [u8; PACKET_BYTES],
    number: u32,
    srtp: Option<Sender>,
}

fn send(
    ways: Vec<Way>,
    sockets: &[Vec<Arc<UdpSocket>>; 2],
    duration: Duration,
    sent: &AtomicU64,
) -> Result<()> {
    // The streams are grouped by the socket that sends them.
    let mut speeches: Vec<Vec<Speech>> = (0..2 * SOCKETS).map(|_| Vec::new()).collect();
    for way in ways {
        let mut srtp = way.srtp;
        for side in [0, 1] {
            let mut packet = rtp::first_packet(2 * way.call + side as u32);
            packet[1] = packet[1] & 0x80 | way.payload_types[side];
            let to = SocketAddr::from((RELAY, way.to[side]));
            speeches[side * SOCKETS + way.call as usize % SOCKETS].push(Speech {
                to: RawAddr::from(to),
                packet,
                number: 0,
                srtp: if side == 1 { srtp.take() } else { None },
            });
        }
    }
    let begin = Instant::now();
    for slice in 0.. {
        let due = begin + SEND_INTERVAL * slice;
        if due >= begin + duration {
            return Ok(());
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // In each slice, a part of all streams sends a packet.
        let part = slice as usize % PARTS;
        for (at, speeches) in speeches.iter_mut().enumerate() {
            let socket = &sockets[at / SOCKETS][at % SOCKETS];
            let own = speeches.iter_mut().skip(part).step_by(PARTS);
            sent.fetch_add(send_part(socket, own)?, Relaxed);
        }
    }
    Ok(())
}

fn send_part<'s>(
    socket: &UdpSocket,
    speeches: impl Iterator<Item = &'s mut Speech>,
) -> Result<u64> {
    let mut out: Vec<([u8; PACKET_BYTES + RTP_TRAILER_BYTES_MAX], usize, &RawAddr)> = Vec::new();
    for speech in speeches {
        rtp::set_number(&mut speech.packet, speech.number);
        speech.number += 1;
        let (mut packet, mut len) = ([0; PACKET_BYTES + RTP_TRAILER_BYTES_MAX], PACKET_BYTES);
        packet[..PACKET_BYTES].copy_from_slice(&speech.packet);
        if let Some(srtp) = &mut speech.srtp {
            len = srtp
                .protect_rtp(&mut packet, len)
                .context("SRTP did not protect the packet")?;
        }
        out.push((packet, len, &speech.to));
    }
    for chunk in out.chunks(SEND_BATCH_MAX) {
        let pieces: Vec<[IoSlice<'_>; 1]> = chunk
            .iter()
            .map(|(packet, len, _)| [IoSlice::new(&packet[..*len])])
            .collect();
        let mut batch = SendBatch::default();
        for (pieces, (_, _, to)) in pieces.iter().zip(chunk) {
            ensure!(batch.push(pieces, to), "the batch is full");
        }
        while !batch.is_empty() {
            batch.send(socket.as_fd())?;
        }
    }
    Ok(out.len() as u64)
}

fn take_all(socket: &UdpSocket, batch: &mut RecvBatch, mut sources: Option<&mut Sources>) -> u64 {
    let mut space = [[0_u8; ROOM_BYTES]; RECV_BATCH];
    let mut taken = 0;
    loop {
        let mut pieces = space.each_mut().map(|packet| IoSliceMut::new(packet));
        let got = batch.recv(socket.as_fd(), &mut pieces).unwrap_or(0);
        taken += got as u64;
        if let Some(sources) = &mut sources {
            let now = Instant::now();
            for packet in &space[..got] {
                let ssrc = u32::from_be_bytes([packet[8], packet[9], packet[10], packet[11]]);
                let (last, gap) = sources.entry(ssrc).or_insert((now, Duration::ZERO));
                *gap = (*gap).max(now - *last);
                *last = now;
            }
        }
        if got < RECV_BATCH {
            return taken;
        }
    }
}

/// Opens sockets on an even port and on the next one.
fn pair() -> Result<(UdpSocket, UdpSocket)> {
    let bind = |port| UdpSocket::bind((PARTIES, port));
    for _ in 0..1000 {
        let rtp = bind(0)?;
        let port = rtp.local_addr()?.port();
        if port % 2 == 0
            && let Ok(rtcp) = bind(port + 1)
        {
            rtp.set_nonblocking(true)?;
            return Ok((rtp, rtcp));
        }
    }
    Err(anyhow!(
        "cannot find a free even port whose next port is also free"
    ))
}

/// Number of sockets for each side.
const SOCKETS: usize = 8;
const ROOM_BYTES: usize = 256;
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// Number of parts into which 20 ms are divided. The streams are spread over the parts.
const PARTS: usize = 10;
const SEND_INTERVAL: Duration = Duration::from_millis(2);
