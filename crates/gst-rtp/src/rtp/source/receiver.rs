//! The receiving half of `ts-rtpsrc`, on the context's thread.
//!
//! A packet goes from the socket to the session's leg, which admits it and queues it. Packets that are due leave in the same
//! pass. A steady stream needs no timer for that, because each arrival releases everything that is due. The timer is for losses
//! and stalls.

use std::sync::Arc;

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{Fields, Leg, Refusal, Verdict};
use threadbare_rtp::missing::Missing;
use threadbare_rtp::packet::is_rtcp;
use threadbare_runtime::{CACHE_LINE, Cx, Precision, Ready, Shard, prefetch};

use crate::kit::receive::{Datagram, Read, Reader, Wants};
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::RunningTime;
use crate::rtp::identity::address_of;
use crate::rtp::playout::Playout;
use crate::rtp::port::Mailbox;
use crate::rtp::session::{ArrivingBuffer, Buffers, RtpSession, Sockets};

/// Counters, written by the context's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// RTP packets, from any sender.
    pub(super) packets: Single,
    /// Bytes of these packets.
    pub(super) bytes: Single,
    /// Time when the peer's last packet was read, on the monotonic clock.
    pub(super) last_ns: Single,
    /// Packets of a refused payload type, or of an unknown clock rate.
    pub(super) unknown: Single,
    pub(super) malformed: Single,
    pub(super) truncated: Single,
    pub(super) socket_errors: Single,
}

/// The receiver. Fields used for each packet come first, because thousands of receivers alternate in the cache.
#[repr(C)]
pub struct Receiver {
    input: Input,
    counts: Arc<Counts>,
    session: Arc<RtpSession>,
    playout: Playout,
    ahead: Ahead,
    /// Result of the last poll of the leg, if it is still valid.
    seen: Option<Seen>,
    /// Half a slice. Packets that are due by then leave now, because otherwise they would leave up to a slice late. The time of
    /// the jitter buffer is always ahead by this much.
    ahead_ns: u64,
    /// A whole slice. A packet that is due within it needs no timer, because the next arrival will release it.
    slack_ns: u64,
    mux: bool,
    /// Whether the socket was emptied in this pass.
    is_drained: bool,
    /// Number of times that the socket was searched for the packet that is missing now.
    looks: u8,
    /// Number of searches of the socket in this pass.
    looks_in_pass: u8,
    has_warned: bool,
    /// Packets to request again, if requests are enabled.
    missing: Option<Box<Missing>>,
    _sockets: Arc<Sockets>,
    element: glib::WeakRef<gst::Element>,
}

/// Memory that the next pass will use: that of the next packet to leave, and its places in the jitter buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Ahead {
    packet: [usize; 3],
    places: [usize; 2],
}

/// Result of a poll without output: the leg's state.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Whether a packet is missing that may still be in the socket.
    is_missed: bool,
    /// Time of the next output.
    due_ns: Option<u64>,
    /// Whether the leg was really polled for this time.
    is_sure: bool,
}

impl Seen {
    /// State before the packets that have arrived are read. Reading them first makes one poll of the leg enough.
    const LATER: Seen = Seen {
        is_missed: false,
        due_ns: None,
        is_sure: false,
    };
}

/// Time of a poll of the leg.
#[derive(Debug, Clone, Copy)]
struct Now {
    clock_ns: u64,
    /// Half a slice later.
    ahead_ns: u64,
    /// Whether the socket may still have the missing packet.
    may_look: bool,
}

impl Now {
    /// Polls the leg. Returns its output, or its state for the next look.
    #[inline]
    fn look(
        self,
        playout: &mut Playout,
        leg: &mut Leg<Buffers>,
        ahead: &mut Ahead,
    ) -> (Option<Produced>, Option<Seen>) {
        let produced = playout.next(leg, self.ahead_ns, self.clock_ns, !self.may_look);
        let due_ns = leg.next_media();
        let has_more =
            playout.has_waiting() || due_ns.is_some_and(|due_ns| due_ns <= self.ahead_ns);
        if produced.is_some() && has_more {
            return (produced, None);
        }
        *ahead = Ahead::default();
        if let Some(held) = leg.next_queued() {
            ahead.packet = held.addresses;
        }
        let mut places = ahead.places.iter_mut();
        leg.prefetch_queue(&mut |address| {
            if let Some(place) = places.next() {
                *place = address as usize;
            }
        });
        let seen = Seen {
            is_missed: self.may_look && leg.is_loss_due(self.ahead_ns),
            due_ns,
            is_sure: true,
        };
        (produced, Some(seen))
    }
}

/// Origin of the datagrams.
pub(super) enum Input {
    /// A separate socket.
    Socket(Reader),
    /// A place on a shared port, with its packets in reverse order, so that the next packet is the last element.
    Mailbox(Arc<Mailbox>, Vec<Datagram>),
}

impl Input {
    fn of(shard: &Shard, sockets: &Sockets, mailbox: Option<Arc<Mailbox>>, mtu: u32) -> Input {
        match mailbox {
            Some(mailbox) => Input::Mailbox(mailbox, Vec::new()),
            None => {
                let wants = Wants {
                    time: true,
                    sender: true,
                };
                Input::Socket(Reader::new(shard, sockets.rtp.clone(), mtu, wants))
            }
        }
    }

    #[inline]
    fn begin(&mut self, cx: &Cx<'_>, ready: Ready) {
        if let Input::Socket(reader) = self {
            reader.begin(cx, ready);
        }
    }

    /// Continues reading in this pass.
    fn again(&mut self) {
        if let Input::Socket(reader) = self {
            reader.again();
        }
    }

    #[inline]
    fn next(&mut self, cx: &Cx<'_>) -> Read {
        match self {
            Input::Socket(reader) => reader.next(cx),
            Input::Mailbox(mailbox, datagrams) => {
                if datagrams.is_empty() {
                    mailbox.take(datagrams);
                    datagrams.reverse();
                }
                datagrams.pop().map_or(Read::Idle, Read::Datagram)
            }
        }
    }
}

impl Receiver {
    pub(super) fn new(
        element: &gst::Element,
        shard: &Shard,
        session: Arc<RtpSession>,
        sockets: Arc<Sockets>,
        mailbox: Option<Arc<Mailbox>>,
        playout: Playout,
        mtu: u32,
    ) -> Self {
        let slice_ns = shard.wait().as_nanos() as u64;
        session.party().leg.set_ahead_ns(slice_ns / 2);
        Receiver {
            input: Input::of(shard, &sockets, mailbox, mtu),
            counts: Arc::default(),
            session,
            playout,
            ahead: Ahead::default(),
            seen: None,
            ahead_ns: slice_ns / 2,
            slack_ns: slice_ns,
            mux: sockets.rtcp.is_none(),
            is_drained: false,
            looks: 0,
            looks_in_pass: 0,
            has_warned: false,
            missing: None,
            _sockets: sockets,
            element: element.downgrade(),
        }
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Passes a datagram to the leg.
    #[inline]
    fn take(&mut self, cx: &Cx<'_>, now: Now, datagram: Datagram) -> Option<Produced> {
        let Datagram {
            mut buffer,
            received,
            arrival_ns,
            from,
        } = datagram;
        cx.count_packets(1);
        let data = &buffer.data()[..received.len];
        if received.datagram_len > received.len {
            self.counts.truncated.add(1);
            buffer.release();
            return None;
        }
        let from = address_of(&from);
        if self.mux && is_rtcp(data) {
            self.session.handle_rtcp_muxed(arrival_ns, from, data);
            buffer.release();
            return None;
        }
        let Some(fields) = Fields::of(data).filter(|_| !is_rtcp(data)) else {
            self.counts.malformed.add(1);
            buffer.release();
            return None;
        };
        self.counts.packets.add(1);
        self.counts.bytes.add(received.len as u64);
        let mut place = Some(buffer);
        let arriving = ArrivingBuffer {
            place: &mut place,
            len: received.len,
        };
        let (verdict, has_moved, produced) = {
            let leg = &mut self.session.party().leg;
            let verdict = leg.handle_rtp(now.ahead_ns, arrival_ns, from, fields, arriving);
            let (produced, seen) = now.look(&mut self.playout, leg, &mut self.ahead);
            self.seen = seen;
            (verdict, leg.take_moved(), produced)
        };
        if let Some(buffer) = place {
            buffer.release();
        }
        if has_moved {
            self.session.peer_changed();
        }
        self.note(now.clock_ns, &fields, verdict);
        produced
    }

    #[inline]
    fn note(&mut self, now_ns: u64, fields: &Fields, verdict: Verdict) {
        match verdict {
            Verdict::Media | Verdict::Held => {
                self.counts.last_ns.set(now_ns);
                if let Some(missing) = &mut self.missing {
                    missing.handle(now_ns, fields.ssrc(), fields.seq());
                }
                if !self.playout.accepted().contains(fields.payload_type()) {
                    self.refuse(fields.payload_type());
                }
            }
            Verdict::Refused(Refusal::PayloadType(payload_type)) => self.refuse(payload_type),
            // A collision needs a reply.
            Verdict::Refused(Refusal::OwnSsrc) => self.session.wake_agent(),
            Verdict::Refused(_) | Verdict::Rtcp | Verdict::MalformedRtcp => {}
        }
    }

    /// Requests missing packets from the sender from now on.
    pub(super) fn ask_again(&mut self) {
        self.missing = Some(Box::default());
    }

    /// Requests missing packets. Returns the time of the next call, at most `due_ns`.
    fn ask_for_missing(&mut self, now_ns: u64, due_ns: Option<u64>) -> Option<u64> {
        let Some(missing) = &mut self.missing else {
            return due_ns;
        };
        if missing.next_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            let useful_ns = self.session.party().leg.latency_ns();
            let round_trip_ns = self.session.round_trip_ns();
            if let Some((ssrc, lost)) = missing.poll(now_ns, round_trip_ns, useful_ns)
                && !self.session.request_packets(now_ns, ssrc, &lost)
            {
                missing.not_asked(&lost);
            }
        }
        due_ns.into_iter().chain(missing.next_timeout()).min()
    }

    #[cold]
    fn refuse(&mut self, payload_type: PayloadType) {
        self.counts.unknown.add(1);
        if std::mem::replace(&mut self.has_warned, true) {
            return;
        }
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let accepted = self.playout.accepted();
        let warning = if accepted.contains(payload_type) {
            format!(
                "packets of the dynamic payload type {payload_type} are dropped until caps sets its clock-rate"
            )
        } else {
            format!(
                "packets of payload type {payload_type} are dropped: this stream accepts only {accepted}"
            )
        };
        gst::element_warning!(element, gst::StreamError::Format, ["{warning}"]);
    }

    /// Returns the settings of the stream that do not concern the leg.
    pub(super) fn playout(&mut self) -> &mut Playout {
        &mut self.playout
    }

    fn arm(&self, cx: &mut Cx<'_>, due_ns: Option<u64>) {
        match due_ns {
            Some(due_ns) => {
                cx.set_timer(due_ns.saturating_add(self.slack_ns), Precision::About);
            }
            None => cx.clear_timer(),
        }
    }
}

impl Producer for Receiver {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        match &mut self.input {
            Input::Socket(reader) => reader.watch(cx, 0).map_err(|error| {
                gst::error_msg!(
                    gst::ResourceError::OpenRead,
                    ["cannot watch the socket: {error}"]
                )
            }),
            Input::Mailbox(mailbox, _) => {
                mailbox.open(cx.waker());
                Ok(())
            }
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        match &mut self.input {
            Input::Socket(reader) => reader.unwatch(cx),
            Input::Mailbox(mailbox, datagrams) => {
                mailbox.close();
                datagrams.clear();
            }
        }
        cx.clear_timer();
        if let Some(missing) = &mut self.missing {
            missing.clear();
        }
        // Queued packets would be too late when the stream continues.
        self.session.party().leg.flush();
        self.playout.flush();
    }

    fn set_time(&mut self, time: RunningTime) {
        self.playout.set_time(time);
    }

    #[inline]
    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        self.is_drained = false;
        self.looks_in_pass = 0;
        self.seen = (ready != Ready::Timer).then_some(Seen::LATER);
        self.input.begin(cx, ready);
    }

    #[inline]
    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        let clock_ns = cx.now_ns();
        let ahead_ns = clock_ns.saturating_add(self.ahead_ns);
        loop {
            // A missing packet may be in the socket, after the last packet read.
            let now = Now {
                clock_ns,
                ahead_ns,
                may_look: !self.is_drained && self.looks < LOOKS_MAX,
            };
            let seen = match self.seen.take() {
                Some(seen) => seen,
                None => {
                    let leg = &mut self.session.party().leg;
                    let (produced, seen) = now.look(&mut self.playout, leg, &mut self.ahead);
                    if let Some(produced) = produced {
                        (self.seen, self.looks) = (seen, 0);
                        return produced;
                    }
                    seen.unwrap_or(Seen::LATER)
                }
            };
            let looks = seen.is_missed && self.looks_in_pass < LOOKS_IN_PASS_MAX;
            if looks {
                self.looks += 1;
                self.looks_in_pass += 1;
                self.input.again();
            } else if !seen.is_missed {
                self.looks = 0;
            }
            match self.input.next(cx) {
                Read::Datagram(datagram) => {
                    if let Some(produced) = self.take(cx, now, datagram) {
                        self.looks = 0;
                        return produced;
                    }
                }
                Read::Idle if looks => self.is_drained = true,
                Read::Idle if !seen.is_sure => {}
                Read::NetworkError => {
                    self.counts.socket_errors.add(1);
                }
                Read::Again => {}
                Read::Idle => {
                    let due_ns = self.ask_for_missing(clock_ns, seen.due_ns);
                    self.arm(cx, due_ns);
                    return Produced::Idle;
                }
                Read::Failed(error) => {
                    return Produced::Failed(gst::error_msg!(
                        gst::ResourceError::Read,
                        ["cannot receive: {error}"]
                    ));
                }
            }
        }
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(Arc::as_ptr(&self.counts), COUNTS_LINES);
        prefetch(Arc::as_ptr(&self.session), SESSION_LINES);
        for place in self.ahead.places {
            prefetch(place as *const u8, 1);
        }
        for (address, lines) in self.ahead.packet.into_iter().zip(PACKET_LINES) {
            prefetch(address as *const u8, lines);
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let Some(element) = self.element.upgrade() else {
            return Vec::new();
        };
        let caps = self.playout.negotiated_caps(pad);
        source::opening(pad, &element, caps.as_ref())
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        if let Input::Socket(reader) = &mut self.input {
            reader.clear();
        }
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}

/// Maximum number of reads for one missing packet. A delayed context finds seconds of packets in the socket.
const LOOKS_MAX: u8 = 16;
/// Maximum number of reads for all missing packets in a pass. With it, a flood with gaps does not keep other streams waiting. The
/// next pass continues.
const LOOKS_IN_PASS_MAX: u8 = 4 * LOOKS_MAX;
/// Number of cache lines of the counters that a packet touches.
const COUNTS_LINES: usize = 1;
/// Number of cache lines of the lock and the leg.
const SESSION_LINES: usize = 1 + Leg::<Buffers>::HOT_BYTES.div_ceil(CACHE_LINE);
/// Numbers of cache lines of a buffer, of its memory with a packet of 20 ms of telephony, and of its meta.
const PACKET_LINES: [usize; 3] = [5, 5, 2];
