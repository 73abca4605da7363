//! What changes while a leg runs, and what its peer is asked for.

use std::sync::Arc;

use super::{AdmissionConfig, Keep, Leg, LegError, NO_TYPE, PayloadMap};
use crate::id::{SeqNum, Ssrc};
use crate::jitter::{self, JitterBuffer};
use crate::session::Profile;

/// Settings of the receiving half of a leg.
#[derive(Debug, Clone)]
pub struct Receiving {
    /// What the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// Order and delay. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Who may send.
    pub admission: AdmissionConfig,
}

impl<K: Keep> Leg<K> {
    /// Receives with these settings from now on, as if nothing had been received before; the reports go on. What is held is
    /// dropped.
    ///
    /// # Errors
    /// A setting is out of range, which changes nothing.
    pub fn receive_anew(&mut self, receiving: Receiving) -> Result<(), LegError> {
        let clock_rate_hz = receiving.payloads.audio().clock_rate_hz;
        let jitter = JitterBuffer::new(jitter::Config {
            clock_rate_hz,
            ..receiving.jitter
        })?;
        self.flush();
        let ahead_ns = self.jitter.ahead_ns();
        self.jitter = jitter;
        self.jitter.set_ahead_ns(ahead_ns);
        self.clock_rate_hz = clock_rate_hz;
        self.payload_type = NO_TYPE;
        self.takes = receiving.payloads.clone();
        self.payloads = receiving.payloads;
        self.admission.begin_anew(0, receiving.admission);
        self.rtcp_from = None;
        self.has_moved = true;
        (self.packets, self.bytes, self.no_room) = (0, 0, 0);
        Ok(())
    }

    /// Drops what is held. The next packet begins the time line anew.
    pub fn flush(&mut self) {
        self.release();
        self.drop_waiting();
        self.drop_beside();
        self.jitter.flush();
        while self.poll_due(u64::MAX, true).is_some() {}
    }

    /// Other settings of the jitter buffer from now on: latency, drops, tolerances and a larger capacity; not the clock rate or
    /// the skew.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn set_jitter(&mut self, config: &jitter::Config) -> Result<(), LegError> {
        self.jitter.set_drop_on_latency(config.drop_on_latency);
        self.jitter.set_release(config.release);
        let (dropout_ms, misorder_ms) = (config.max_dropout_ms, config.max_misorder_ms);
        self.jitter.set_tolerance_ms(dropout_ms, misorder_ms);
        self.jitter.grow(config.capacity_packets)?;
        if config.latency_ns != self.jitter.config().latency_ns {
            self.jitter.set_latency_ns(config.latency_ns)?;
        }
        Ok(())
    }

    /// See [`JitterBuffer::set_ahead_ns`].
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.jitter.set_ahead_ns(ahead_ns);
    }

    /// Whether [`poll_due`](Self::poll_due) without losses stops at one that an unread packet might prevent.
    #[inline]
    #[must_use]
    pub fn is_loss_due(&self, now_ns: u64) -> bool {
        self.jitter.is_loss_due(now_ns)
    }

    /// The next packet to come out, and its place and the next place in: worth prefetching.
    #[inline]
    #[must_use]
    pub fn next_held(&self) -> (Option<&K::Kept>, [usize; 2]) {
        (
            self.jitter.peek().map(|held| &held.packet),
            self.jitter.next_places(),
        )
    }

    /// Whether [`rtp_to`](Self::rtp_to) may have changed since the last call.
    #[inline]
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Sends with another SSRC from now on, which the caller's packets bear already.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        self.session.set_ssrc(ssrc);
    }

    /// Another canonical name from now on.
    pub fn set_cname(&mut self, cname: &str) {
        self.session.set_cname(cname);
    }

    /// Other rules for feedback from `now_ns` on, as both sides agreed.
    pub fn set_profile(&mut self, now_ns: u64, profile: Profile, reduced_size: bool) {
        self.session.set_profile(now_ns, profile, reduced_size);
    }

    /// RTP and RTCP on one port (RFC 5761), or not. With mux, the payload types 64 to 95 are refused from now on; without it, the next
    /// [`set_payloads`](Self::set_payloads) allows them.
    pub fn set_mux(&mut self, mux: bool) {
        self.payloads = PayloadMap::received(self.payloads.clone(), mux);
        self.mux = mux;
    }

    /// Sends no RTP. RTCP goes on.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Sends no RTCP.
    pub fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Whether others may know our SSRC: RTP or RTCP was sent.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.session.has_sent()
    }

    /// Asks a source for a new picture: for a full one whatever became of the last (RFC 5104, section 4.3.1), or by a loss
    /// indication (RFC 4585, section 6.3.1). Without a source, or with an unknown one, the current source is asked. False: there
    /// is none, or not now.
    pub fn request_picture(&mut self, now_ns: u64, media: Option<Ssrc>, full: bool) -> bool {
        let known = media.filter(|media| self.knows(*media));
        let Some(media) = known.or(self.session.current_ssrc()) else {
            return false;
        };
        !self.is_silent
            && match full {
                true => self.session.request_fir(now_ns, media),
                false => self.session.request_pli(now_ns, media),
            }
    }

    /// Asks a source for packets again (RFC 4585, section 6.2.1). False: it is unknown, or not now.
    pub fn request_packets(&mut self, now_ns: u64, media: Ssrc, lost: &[SeqNum]) -> bool {
        let lost = lost.iter().copied();
        !self.is_silent && self.knows(media) && self.session.request_nack(now_ns, media, lost)
    }

    /// Whether packets of this source have arrived.
    fn knows(&self, ssrc: Ssrc) -> bool {
        let is_current = self.session.current_ssrc() == Some(ssrc);
        is_current || self.session.sources().any(|source| source.ssrc == ssrc)
    }
}
