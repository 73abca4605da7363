//! One session's pads and their data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::packet::{Packet, is_rtcp};
use threadbare_rtp::session::{ClockRates, RtpHeader, RtpVerdict};
use threadbare_runtime::clock_now_ns;

use super::RtcpManager;
use super::reporter::Reporter;
use super::reports::{Reports, Terms};
use crate::kit::pad_function;
use crate::kit::source::Driver;
use crate::rtp::identity::sender_address;
use crate::rtp::session::stats;

/// The pads a session may have; the names are the stock ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    RecvRtp,
    RecvRtcp,
    SendRtp,
    SendRtcp,
}

impl Role {
    const ALL: [Role; 4] = [Role::RecvRtp, Role::RecvRtcp, Role::SendRtp, Role::SendRtcp];

    pub(super) fn template(self) -> &'static str {
        match self {
            Role::RecvRtp => "recv_rtp_sink_%u",
            Role::RecvRtcp => "recv_rtcp_sink_%u",
            Role::SendRtp => "send_rtp_sink_%u",
            Role::SendRtcp => "send_rtcp_src_%u",
        }
    }

    /// Returns the output pad for this input pad.
    fn way_out(self) -> Option<&'static str> {
        match self {
            Role::RecvRtp => Some("recv_rtp_src_%u"),
            Role::SendRtp => Some("send_rtp_src_%u"),
            Role::RecvRtcp | Role::SendRtcp => None,
        }
    }

    pub(super) fn of(template: &str) -> Option<Role> {
        Role::ALL
            .into_iter()
            .find(|role| role.template() == template)
    }
}

/// A session with any number of sources, such as a conference. It decides itself whether a source is valid. Its pads have
/// references to it; the session has a reference only to its report pad.
pub(super) struct Member {
    pub(super) id: u32,
    pub(super) reports: Arc<Reports>,
    pub(super) driver: Driver<Reporter>,
    sends: AtomicBool,
    /// Packets that are not RTP, and packets that the session refused.
    malformed: AtomicU64,
    refused: AtomicU64,
}

impl Member {
    pub(super) fn new(id: u32, terms: &Terms) -> Arc<Member> {
        Arc::new(Member {
            id,
            reports: Arc::new(Reports::new(terms)),
            driver: Driver::default(),
            sends: AtomicBool::new(false),
            malformed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Creates a pad of this session, and its output pad. `E` implements `element`.
    pub(super) fn make_pads<E: ElementImpl>(
        self: &Arc<Self>,
        element: &RtcpManager,
        role: Role,
    ) -> (gst::Pad, Option<gst::Pad>) {
        let name = |template: &str| template.replace("%u", &self.id.to_string());
        let template = |name| crate::kit::template(element.class(), name);
        let way_out = role.way_out().map(|out| {
            let weak_in = element.downgrade();
            let name_in = name(role.template());
            let builder = gst::Pad::builder_from_template(&template(out)).name(name(out));
            builder
                .iterate_internal_links_function(move |_, _| {
                    let peer = weak_in.upgrade().and_then(|e| e.static_pad(&name_in));
                    gst::Iterator::from_vec(peer.into_iter().collect())
                })
                .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
                .build()
        });
        let builder =
            gst::Pad::builder_from_template(&template(role.template())).name(name(role.template()));
        let pad = match (&way_out, role) {
            (Some(out), _) => {
                let (links, out) = (out.clone(), out.clone());
                let (of_chain, of_events) = (self.clone(), self.clone());
                builder
                    .iterate_internal_links_function(move |_, _| {
                        gst::Iterator::from_vec(vec![links.clone()])
                    })
                    .chain_function(move |_, parent, buffer| {
                        let error = || Err(gst::FlowError::Error);
                        pad_function::<E, _>(parent, error, |_| of_chain.pass(role, &out, buffer))
                    })
                    .event_function(move |pad, parent, event| {
                        pad_function::<E, _>(
                            parent,
                            || false,
                            |imp| {
                                of_events.look_at_event(role, &event);
                                gst::Pad::event_default(pad, Some(&*imp.obj()), event)
                            },
                        )
                    })
                    .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
                    .build()
            }
            (None, Role::RecvRtcp) => {
                let member = self.clone();
                builder
                    .chain_function(move |_, parent, buffer| {
                        let error = || Err(gst::FlowError::Error);
                        pad_function::<E, _>(parent, error, |_| {
                            member.take_rtcp(&buffer);
                            Ok(gst::FlowSuccess::Ok)
                        })
                    })
                    // Events in the stream of received RTCP do not concern the output.
                    .event_function(|_, _, _| true)
                    .build()
            }
            (None, _) => builder.build(),
        };
        if role == Role::SendRtp {
            self.sends.store(true, Ordering::Relaxed);
            self.reports.set_sender(&pad);
        }
        (pad, way_out)
    }

    fn pass(
        &self,
        role: Role,
        out: &gst::Pad,
        buffer: gst::Buffer,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let is_passed = match role {
            Role::SendRtp => self.count_sent(&buffer),
            _ => self.admit(&buffer),
        };
        if is_passed {
            return out.push(buffer);
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Whether the session accepts a received packet.
    fn admit(&self, buffer: &gst::Buffer) -> bool {
        let from = sender_address(buffer).unwrap_or(NOBODY);
        let header = {
            let map = buffer.map_readable().ok();
            map.as_deref().and_then(|data| {
                let packet = Packet::parse(data).ok().filter(|_| !is_rtcp(data))?;
                Some(RtpHeader::from(&packet))
            })
        };
        let Some(header) = header else {
            self.malformed.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let verdict = self
            .reports
            .session()
            .handle_rtp(clock_now_ns(), from, header);
        let is_refused = matches!(
            verdict,
            RtpVerdict::Conflict | RtpVerdict::Collision | RtpVerdict::Loop
        );
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
            // The session may have refused the packet because of a collision, which needs a reply.
            self.wake();
        }
        !is_refused
    }

    fn count_sent(&self, buffer: &gst::Buffer) -> bool {
        let sent = {
            let map = buffer.map_readable().ok();
            map.as_deref().and_then(|data| {
                let packet = Packet::parse(data).ok()?;
                Some((packet.ssrc(), packet.time(), packet.payload().len()))
            })
        };
        let Some((ssrc, time, payload_bytes)) = sent else {
            self.malformed.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        self.reports
            .session()
            .note_sent(clock_now_ns(), ssrc, time, payload_bytes);
        true
    }

    fn take_rtcp(&self, buffer: &gst::Buffer) {
        let from = sender_address(buffer).unwrap_or(NOBODY);
        if let Ok(map) = buffer.map_readable() {
            // The session counts malformed packets itself.
            let _ = self
                .reports
                .session()
                .handle_rtcp(clock_now_ns(), from, &map);
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.driver.waker() {
            waker.wake();
        }
    }

    fn look_at_event(&self, role: Role, event: &gst::Event) {
        match event.view() {
            gst::EventView::Caps(caps) => {
                let rate = caps
                    .caps()
                    .structure(0)
                    .and_then(|s| s.get("clock-rate").ok());
                if let Some(rate_hz) = rate.and_then(|rate: i32| u32::try_from(rate).ok()) {
                    let rates = ClockRates::new(rate_hz.max(1), &[]);
                    self.reports.session().set_clock_rates(rates);
                }
            }
            // A sender takes part while it sends, and a receiver while something arrives.
            gst::EventView::Eos(_)
                if role == Role::SendRtp || !self.sends.load(Ordering::Relaxed) =>
            {
                let now_ns = clock_now_ns();
                self.reports.session().send_bye(now_ns, "");
                self.wake();
            }
            _ => {}
        }
    }

    /// Notes that a pad of this session was removed.
    pub(super) fn pad_released(&self, role: Role) {
        match role {
            Role::SendRtp => self.sends.store(false, Ordering::Relaxed),
            Role::SendRtcp => self.driver.remove(),
            Role::RecvRtp | Role::RecvRtcp => {}
        }
    }

    pub(super) fn structure(&self) -> gst::Structure {
        let refused = self.refused.load(Ordering::Relaxed);
        let session = self.reports.session();
        stats::structure(&session.stats(), session.sources(), refused)
            .field("malformed", self.malformed.load(Ordering::Relaxed))
            .field("refused", refused)
            .build()
    }
}

/// Sender address for packets whose sender is unknown.
const NOBODY: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
