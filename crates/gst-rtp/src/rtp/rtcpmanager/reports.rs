//! The RTCP of one session of any number of sources.

use std::sync::{Mutex, MutexGuard};

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::id::Ssrc;
use threadbare_rtp::session::{Config, MinimumInterval, RtcpSession};
use threadbare_runtime::clock_now_ns;

use crate::kit::lock;
use crate::rtp::identity::{cname, ntp_at_zero, seed};
use crate::rtp::upstream;

/// Settings for joining a session.
#[derive(Debug, Clone, Default)]
pub(super) struct Terms {
    /// Canonical name; `None`: the process's name.
    pub(super) cname: Option<String>,
    /// Bandwidth of the media, bits/s; `None`: the bandwidth of a call.
    pub(super) bandwidth_bps: Option<u64>,
    /// Whether reports are sent more often if the bandwidth allows it (RFC 3550, section 6.2).
    pub(super) reduced_minimum: bool,
}

impl Terms {
    fn join(&self) -> RtcpSession {
        let own = cname();
        let cname = self.cname.as_deref().unwrap_or(&own);
        let mut config = Config::call(Ssrc(glib::random_int()), cname, CLOCK_RATE_HZ, seed());
        config.ntp_at_zero = ntp_at_zero();
        if let Some(bandwidth_bps) = self.bandwidth_bps {
            config.session_bandwidth_bps = bandwidth_bps;
        }
        if self.reduced_minimum {
            config.minimum_interval = MinimumInterval::Reduced;
        }
        RtcpSession::new(clock_now_ns(), config)
    }
}

/// A session as in a conference, which decides itself whether a source is valid.
pub(super) struct Reports {
    session: Mutex<RtcpSession>,
    /// The input pad of outgoing packets, if any.
    sender: Mutex<glib::WeakRef<gst::Pad>>,
}

impl Reports {
    pub(super) fn new(terms: &Terms) -> Reports {
        Reports {
            session: Mutex::new(terms.join()),
            sender: Mutex::default(),
        }
    }

    /// Locks the session. Hold the lock only for computation, never across a push.
    pub(super) fn session(&self) -> MutexGuard<'_, RtcpSession> {
        lock(&self.session)
    }

    /// Joins again, with counters and sources reset.
    pub(super) fn join_again(&self, terms: &Terms) {
        *self.session() = terms.join();
    }

    pub(super) fn set_sender(&self, pad: &gst::Pad) {
        *lock(&self.sender) = pad.downgrade();
    }

    /// Sends the peers' requests to the elements that produce the packets. `session` must not be locked.
    pub(super) fn tell_events(&self) {
        loop {
            let Some(event) = self.session().poll_event() else {
                return;
            };
            let sender = lock(&self.sender).upgrade();
            if let Some(pad) = sender {
                upstream::tell(&pad, &event);
            }
        }
    }
}

/// Initial clock rate: that of telephone audio, until caps give another.
const CLOCK_RATE_HZ: u32 = 8000;
