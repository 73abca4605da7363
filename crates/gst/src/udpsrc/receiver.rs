//! The receiving half of `ts-udpsrc`: lives on the context's thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Precision, RawAddr, Ready, Shard, prefetch};

use super::settings::{Settings, SocketTimestamp};
use crate::kit::lock;
use crate::kit::receive::{Datagram, Read, Reader, Wants};
use crate::kit::socket::{GioAddress, Udp};
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::RunningTime;

/// The layout is fixed: a packet touches the first fields only, and thousands of receivers alternate in the cache.
#[repr(C)]
pub struct Receiver {
    reader: Reader,
    stats: Arc<Stats>,
    time: RunningTime,
    last_packet_ns: u64,
    begins_to_play: bool,
    skip: u32,
    do_timestamp: bool,
    retrieve_sender: bool,
    /// Whether each buffer gets the kernel's receive time, in addition to its own time.
    attaches_timestamp: bool,
    senders: Senders,
    mtu: u32,
    element: glib::WeakRef<gst::Element>,
    caps: Option<gst::Caps>,
    timeout_ns: u64,
}

impl Receiver {
    pub(super) fn new(
        element: &gst::Element,
        shard: &Shard,
        udp: Udp,
        settings: &Settings,
        stats: Arc<Stats>,
    ) -> Self {
        Receiver {
            element: element.downgrade(),
            reader: Reader::new(
                shard,
                udp,
                settings.buffer_bytes(),
                Wants {
                    time: settings.wants_timestamps(),
                    sender: settings.retrieve_sender_address,
                },
            ),
            attaches_timestamp: settings.socket_timestamp == SocketTimestamp::Realtime,
            mtu: settings.buffer_bytes(),
            skip: settings.skip_first_bytes.unsigned_abs(),
            do_timestamp: settings.do_timestamp,
            time: RunningTime::default(),
            retrieve_sender: settings.retrieve_sender_address,
            senders: Senders::new(shard),
            caps: settings.caps.clone(),
            timeout_ns: settings.timeout_ns,
            last_packet_ns: 0,
            begins_to_play: true,
            stats,
        }
    }

    /// Makes a GStreamer buffer from a datagram. Returns `None` if no bytes are left.
    fn finish(&mut self, cx: &Cx<'_>, datagram: Datagram) -> Option<gst::Buffer> {
        let Datagram {
            buffer,
            received,
            arrival_ns,
            from,
        } = datagram;
        self.stats.packets.add(1);
        self.stats.bytes.add(received.len as u64);
        cx.count_packets(1);
        // Never use a time before that of an earlier packet, although the measured lead of the wall clock may give one.
        let arrival_ns = arrival_ns.max(self.last_packet_ns).min(cx.now_ns());
        self.last_packet_ns = arrival_ns;
        if received.len < self.skip as usize {
            self.stats.too_short.add(1);
            buffer.release();
            return None;
        }
        // Use the packet's own arrival time. A jitter buffer downstream would see the time of the slice as jitter.
        let time = if self.do_timestamp {
            self.time.at_other(cx.now_ns(), arrival_ns)
        } else {
            None
        };
        let sender = if self.retrieve_sender {
            self.senders.of(&from)
        } else {
            None
        };
        let mut buffer = buffer.finish(self.skip as usize, received.len, time, sender);
        if received.datagram_len > received.len {
            self.truncated(&mut buffer, received.datagram_len);
        }
        if let Some(timestamp_ns) = received.timestamp_ns
            && self.attaches_timestamp
        {
            add_timestamp(&mut buffer, timestamp_ns);
        }
        Some(buffer)
    }

    /// Reports a truncated packet. Truncation is never silent: it is flagged on the buffer, counted, and reported once for each
    /// power of two.
    fn truncated(&self, buffer: &mut gst::Buffer, datagram_len: usize) {
        let count = self.stats.truncated.add(1);
        buffer.make_mut().set_flags(gst::BufferFlags::CORRUPTED);
        if count.is_power_of_two()
            && let Some(element) = self.element.upgrade()
        {
            gst::element_warning!(
                element,
                gst::ResourceError::Read,
                (
                    "Packets are larger than mtu={}, and were truncated: {count} packets so far; the last one had {datagram_len} bytes. \
                    Set a larger mtu.",
                    self.mtu
                )
            );
        }
    }

    fn check_timeout(&mut self, cx: &Cx<'_>) {
        if self.timeout_ns == 0 {
            return;
        }
        let due_ns = self.last_packet_ns.saturating_add(self.timeout_ns);
        if cx.now_ns() < due_ns {
            cx.set_timer(due_ns, Precision::NotBefore);
            return;
        }
        if let Some(element) = self.element.upgrade() {
            let structure = gst::Structure::builder("GstUDPSrcTimeout")
                .field("timeout", self.timeout_ns)
                .build();
            let message = gst::message::Element::builder(structure)
                .src(&element)
                .build();
            let _ = element.post_message(message);
        }
        cx.set_timer(
            cx.now_ns().saturating_add(self.timeout_ns),
            Precision::NotBefore,
        );
    }
}

impl Receiver {
    /// Switches to another socket. Packets received before are still pushed.
    pub(super) fn change_socket(&mut self, cx: &Cx<'_>, udp: Udp) -> Result<(), std::io::Error> {
        self.reader.change_socket(cx, udp)
    }
}

impl Producer for Receiver {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.reader.watch(cx, 0).map_err(|error| {
            gst::error_msg!(
                gst::ResourceError::OpenRead,
                ["cannot watch the socket: {error} (is it used twice in one context?)"]
            )
        })?;
        // Packets that waited in the kernel get this time only when the element begins to play. After other waits, they keep
        // their times.
        if std::mem::take(&mut self.begins_to_play) {
            self.last_packet_ns = cx.now_ns();
        }
        if self.timeout_ns > 0 {
            cx.set_timer(
                cx.now_ns().saturating_add(self.timeout_ns),
                Precision::NotBefore,
            );
        }
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.reader.unwatch(cx);
        cx.clear_timer();
    }

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
        self.begins_to_play = true;
    }

    #[inline]
    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        self.reader.begin(cx, ready);
        if ready == Ready::Timer {
            self.check_timeout(cx);
        }
    }

    #[inline]
    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        match self.reader.next(cx) {
            Read::Datagram(datagram) => match self.finish(cx, datagram) {
                Some(buffer) => Produced::Buffer(buffer),
                None => Produced::Again,
            },
            Read::NetworkError => {
                self.stats.socket_errors.add(1);
                Produced::Again
            }
            Read::Again => Produced::Again,
            Read::Idle => Produced::Idle,
            Read::Failed(error) => Produced::Failed(gst::error_msg!(
                gst::ResourceError::Read,
                ["cannot receive: {error}"]
            )),
        }
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(Arc::as_ptr(&self.stats), 1);
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let Some(element) = self.element.upgrade() else {
            return Vec::new();
        };
        let caps = self.negotiated_caps(pad);
        source::opening(pad, &element, caps.as_ref())
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        self.reader.clear();
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}

impl Receiver {
    /// Returns the `caps` property, restricted to downstream's caps and fixated. For example, RTP caps without a payload type get
    /// the type that the depayloader accepts. If downstream will refuse the caps, they are sent nevertheless, because the refusal
    /// gives the reason.
    fn negotiated_caps(&self, pad: &gst::Pad) -> Option<gst::Caps> {
        let own = self.caps.clone()?;
        if own.is_empty() || own.is_any() {
            return None;
        }
        let mut common = pad.peer_query_caps(Some(&own)).intersect(&own);
        if common.is_empty() {
            common = own;
        }
        common.fixate();
        Some(common)
    }

    /// Applies a change of the `caps` property. Returns the event for downstream, if the stream is open already.
    pub(super) fn set_caps(
        &mut self,
        caps: Option<gst::Caps>,
        pad: &gst::Pad,
    ) -> Option<gst::Event> {
        self.caps = caps;
        self.negotiated_caps(pad)
            .as_ref()
            .map(gst::event::Caps::new)
    }
}

/// The last packet's sender as a GStreamer object, so that a packet needs no new object.
struct Senders {
    raw: RawAddr,
    last: Option<GioAddress>,
    of_shard: Arc<Addresses>,
}

impl Senders {
    fn new(shard: &Shard) -> Self {
        Senders {
            raw: RawAddr::empty(),
            last: None,
            of_shard: shard.extension(|_| Addresses::default()),
        }
    }

    #[inline]
    fn of(&mut self, from: &RawAddr) -> Option<&gio::SocketAddress> {
        if self.raw != *from {
            self.raw = *from;
            self.last = self.of_shard.get(from);
        }
        self.last.as_ref().map(GioAddress::get)
    }
}

/// Addresses seen by the sources of one context thread. There is one object per address, however many streams come from it, so
/// that its reference count stays in the cache, too.
#[derive(Default)]
struct Addresses(Mutex<HashMap<SocketAddr, GioAddress>>);

impl Addresses {
    #[cold]
    fn get(&self, raw: &RawAddr) -> Option<GioAddress> {
        let address = raw.to_socket_addr()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ADDRESSES_MAX {
            known.clear();
        }
        Some(
            known
                .entry(address)
                .or_insert_with(|| GioAddress::new(address))
                .clone(),
        )
    }
}

/// Counters of a source, written by the context's thread and read by any. Counters of each packet come first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Stats {
    packets: Single,
    bytes: Single,
    truncated: Single,
    too_short: Single,
    socket_errors: Single,
    /// Packets that the kernel dropped at earlier sockets, and at the present one.
    kernel_drops: Mutex<KernelDrops>,
}

#[derive(Debug, Default)]
struct KernelDrops {
    past: u64,
    socket: Option<Udp>,
}

impl KernelDrops {
    fn total(&self) -> u64 {
        let present = self.socket.as_ref().map_or(0, Udp::kernel_drops);
        self.past + u64::from(present)
    }
}

impl Stats {
    pub(super) fn structure(&self) -> gst::Structure {
        gst::Structure::builder("application/x-ts-udpsrc-stats")
            .field("packets-received", self.packets.get())
            .field("bytes-received", self.bytes.get())
            .field("packets-truncated", self.truncated.get())
            .field("packets-too-short", self.too_short.get())
            .field("socket-errors", self.socket_errors.get())
            .field("kernel-drops", lock(&self.kernel_drops).total())
            .build()
    }

    /// Counts the drops of this socket from now on, in addition to those of earlier ones.
    pub(super) fn set_socket(&self, socket: Option<Udp>) {
        let mut drops = lock(&self.kernel_drops);
        drops.past = drops.total();
        drops.socket = socket;
    }
}

fn add_timestamp(buffer: &mut gst::Buffer, timestamp_ns: u64) {
    use std::sync::LazyLock;
    static UNIX: LazyLock<gst::Caps> =
        LazyLock::new(|| gst::Caps::new_empty_simple("timestamp/x-unix"));
    gst::ReferenceTimestampMeta::add(
        buffer.make_mut(),
        &UNIX,
        gst::ClockTime::from_nseconds(timestamp_ns),
        gst::ClockTime::NONE,
    );
}

/// Maximum number of addresses that a context thread remembers: all peers of a large gateway. If there are more, as in a scan of
/// the Internet, the table is cleared.
const ADDRESSES_MAX: usize = 8192;
