//! Maps packets to streams, and lists the streams.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gst::glib;
use slab::Slab;
use threadbare_rtp::demux::{Demux, DemuxStats, Filter, Learning, Lookup};
use threadbare_rtp::id::{PayloadType, Ssrc};
use threadbare_rtp::packet::{Packet, is_rtcp};

use super::branch::Branch;
use crate::rtp::identity::{seed, sender_address};

/// The field that distinguishes streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareRtpDemuxBy")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum By {
    #[default]
    #[enum_value(name = "Synchronisation source", nick = "ssrc")]
    Ssrc,
    #[enum_value(name = "The address that the packets came from", nick = "sender")]
    Sender,
    #[enum_value(name = "Payload type", nick = "payload-type")]
    PayloadType,
}

/// Limits on streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) by: By,
    pub(super) streams_max: usize,
    /// Time after which a silent stream ends; `None`: never.
    pub(super) idle_ns: Option<u64>,
    pub(super) probation_packets: u32,
}

/// A stream's identity. One of the two fields is the same for all streams; [`Limits::by`] says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    from: SocketAddr,
    ssrc: Ssrc,
}

struct Route {
    identity: Identity,
    /// The branch; `None` while the stream waits for a free place for its pad.
    branch: Option<Arc<Branch>>,
}

/// A packet's destination.
pub(super) enum Way {
    To(Arc<Branch>),
    /// To a stream that has no pad yet.
    New(usize),
    Nowhere,
}

pub(super) struct Streams {
    table: Demux<usize>,
    routes: Slab<Route>,
    /// Branches that are ending. They may still have items to push.
    closing: Vec<Arc<Branch>>,
    /// Packets of streams on probation.
    held: VecDeque<(Identity, gst::Buffer)>,
    limits: Limits,
    /// Number of pads, including those that are being created or removed.
    pads: usize,
    opened: u32,
    pub(super) unmatched: u64,
    pub(super) dropped: u64,
}

impl Streams {
    pub(super) fn new(limits: Limits) -> Self {
        let learning = Learning {
            packets: limits.probation_packets,
            strangers_max: STRANGERS_MAX,
            routes_max: limits.streams_max,
            idle_ns: limits.idle_ns.unwrap_or(NEVER_NS),
        };
        Streams {
            table: Demux::new(Some(learning), seed()),
            routes: Slab::new(),
            closing: Vec::new(),
            held: VecDeque::new(),
            limits,
            pads: 0,
            opened: 0,
            unmatched: 0,
            dropped: 0,
        }
    }

    /// Returns the identity in a packet.
    #[inline]
    pub(super) fn identify(&self, buffer: &gst::BufferRef) -> Option<Identity> {
        let map = buffer.map_readable().ok()?;
        let packet = Packet::parse(&map).ok().filter(|_| !is_rtcp(&map))?;
        Some(match self.limits.by {
            By::Ssrc => Identity {
                from: NOBODY,
                ssrc: packet.ssrc(),
            },
            By::Sender => Identity {
                from: sender_address(buffer)?,
                ssrc: Ssrc(0),
            },
            By::PayloadType => Identity {
                from: NOBODY,
                ssrc: Ssrc(packet.payload_type().0.into()),
            },
        })
    }

    /// Returns a packet's destination. If other streams are evicted for it, [`Streams::take_expired`] returns them.
    #[inline]
    pub(super) fn find(&mut self, now_ns: u64, identity: Identity, buffer: &gst::Buffer) -> Way {
        let Identity { from, ssrc } = identity;
        match self.table.lookup(now_ns, from, ssrc, PayloadType(0)) {
            Lookup::Route(route) => match self.routes.get(route).map(|route| &route.branch) {
                Some(Some(branch)) => Way::To(branch.clone()),
                Some(None) => Way::New(route),
                None => Way::Nowhere,
            },
            Lookup::Stranger => {
                let branch = None;
                let route = self.routes.insert(Route { identity, branch });
                if self.table.learn(now_ns, from, ssrc, route).is_err() {
                    self.routes.remove(route);
                    return Way::Nowhere;
                }
                Way::New(route)
            }
            Lookup::Probation | Lookup::Unmatched => {
                if self.held.len() >= HELD_PACKETS_MAX {
                    self.held.pop_front();
                    self.dropped += 1;
                }
                self.held.push_back((identity, buffer.clone()));
                Way::Nowhere
            }
        }
    }

    /// Forgets streams that were silent for too long.
    pub(super) fn expire(&mut self, now_ns: u64) {
        if self.limits.idle_ns.is_some() {
            self.table.expire(now_ns);
        }
    }

    /// Returns the removed streams, to be closed.
    pub(super) fn take_expired(&mut self) -> Vec<Arc<Branch>> {
        let mut expired = Vec::new();
        while let Some((_, route)) = self.table.poll_expired() {
            expired.extend(self.forget(route));
        }
        expired
    }

    /// Removes a stream at the application's request.
    pub(super) fn remove(&mut self, number: u32) -> Option<Arc<Branch>> {
        let is_it = |route: &Route| route.branch.as_ref().is_some_and(|b| b.number == number);
        let (_, route) = self.routes.iter().find(|(_, route)| is_it(route))?;
        let filter = Filter {
            ssrc: Some(route.identity.ssrc),
            from: Some(route.identity.from),
            payload_type: None,
        };
        let route = self.table.remove(&filter)?;
        self.forget(route)
    }

    fn forget(&mut self, route: usize) -> Option<Arc<Branch>> {
        let branch = self.routes.try_remove(route)?.branch?;
        self.closing.push(branch.clone());
        Some(branch)
    }

    /// Reserves a place for a stream's pad. Returns the number of the stream, and the number of streams before it. Returns `None`
    /// if no place is free.
    pub(super) fn reserve(&mut self, route: usize) -> Option<(u32, u32)> {
        let identity = self.routes.get(route)?.identity;
        if self.pads >= self.limits.streams_max {
            return None;
        }
        let number = match self.limits.by {
            By::Ssrc | By::PayloadType => identity.ssrc.0,
            By::Sender => self.opened,
        };
        // The stream has returned before its previous pad was removed.
        if self.closing.iter().any(|branch| branch.number == number) {
            return None;
        }
        self.pads += 1;
        self.opened = self.opened.wrapping_add(1);
        Some((number, self.opened.wrapping_sub(1)))
    }

    /// Notes that the new stream's pad exists, if the element accepted it. Returns the queued packets, or an error if the stream
    /// has ended in the meantime.
    pub(super) fn opened(
        &mut self,
        route: usize,
        branch: &Arc<Branch>,
        is_added: bool,
    ) -> Result<Vec<gst::Buffer>, ()> {
        let Some(entry) = self.routes.get_mut(route).filter(|_| is_added) else {
            self.closing.push(branch.clone());
            return Err(());
        };
        entry.branch = Some(branch.clone());
        let identity = entry.identity;
        let mut held = Vec::new();
        self.held.retain(|(of, buffer)| {
            let is_of_it = *of == identity;
            if is_of_it {
                held.push(buffer.clone());
            }
            !is_of_it
        });
        Ok(held)
    }

    /// Notes that a pad with a place was removed. Returns `false` if another thread has already handled that.
    pub(super) fn closed(&mut self, branch: &Arc<Branch>) -> bool {
        let Some(at) = self.closing.iter().position(|b| Arc::ptr_eq(b, branch)) else {
            return false;
        };
        self.closing.swap_remove(at);
        self.pads -= 1;
        true
    }

    /// Returns all branches with a pad, including those being closed.
    pub(super) fn branches(&self) -> Vec<Arc<Branch>> {
        let open = self.routes.iter();
        open.filter_map(|(_, route)| route.branch.clone())
            .chain(self.closing.iter().cloned())
            .collect()
    }

    /// Drops the packets of streams on probation, because they were sent before the flush.
    pub(super) fn flush(&mut self) {
        self.held.clear();
    }

    pub(super) fn stats(&self) -> DemuxStats {
        self.table.stats()
    }

    pub(super) fn pads(&self) -> usize {
        self.pads
    }
}

/// Address that stands for all senders if senders are not distinguished.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// Maximum number of streams on probation. A flood of new streams evicts only streams on probation.
const STRANGERS_MAX: usize = 1024;
/// Maximum number of packets queued for all streams on probation.
const HELD_PACKETS_MAX: usize = 64;
/// Stands for "never": it is longer than any process lives.
const NEVER_NS: u64 = u64::MAX / 4;
