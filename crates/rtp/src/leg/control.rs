//! Changes to a running leg, and requests to its peer.

use std::sync::Arc;

use super::{AdmissionConfig, Keep, Leg, LegError, NO_TYPE, PayloadMap};
use crate::id::{SeqNum, Ssrc};
use crate::jitter::{self, JitterBuffer};
use crate::session::Profile;

/// Settings of the receiving half of a leg.
#[derive(Debug, Clone)]
pub struct Receiving {
    /// Payload types that the peer sends.
    pub payloads: Arc<PayloadMap>,
    /// Order and delay. The clock rate is that of the payload types.
    pub jitter: jitter::Config,
    /// Rules for accepting senders.
    pub admission: AdmissionConfig,
}

impl<K: Keep> Leg<K> {
    /// Receives with these settings from now on, as if nothing had been received before; the RTCP reports continue. Queued
    /// packets are dropped.
    ///
    /// # Errors
    /// A setting is out of range; nothing changes.
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

    /// Drops the queued packets. The next packet starts a new time line.
    pub fn flush(&mut self) {
        self.release();
        self.drop_waiting();
        self.drop_beside();
        self.jitter.flush();
        while self.poll_due(u64::MAX, true).is_some() {}
    }

    /// Changes settings of the jitter buffer: latency, drops, tolerances and a larger capacity, but neither the clock rate nor
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

    /// Whether [`poll_due`](Self::poll_due) with `may_lose` false stops at a loss that an unread packet might prevent.
    #[inline]
    #[must_use]
    pub fn is_loss_due(&self, now_ns: u64) -> bool {
        self.jitter.is_loss_due(now_ns)
    }

    /// The next packet to leave, with the addresses of its place and of the next free place, for prefetching.
    #[inline]
    #[must_use]
    pub fn next_queued(&self) -> (Option<&K::Handle>, [usize; 2]) {
        (
            self.jitter.peek().map(|queued| &queued.packet),
            self.jitter.next_places(),
        )
    }

    /// The former name of [`next_queued`](Self::next_queued).
    #[must_use]
    #[deprecated(since = "0.3.0", note = "renamed to `next_queued`")]
    pub fn next_held(&self) -> (Option<&K::Handle>, [usize; 2]) {
        self.next_queued()
    }

    /// Whether [`rtp_to`](Self::rtp_to) may have changed since the last call.
    #[inline]
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Changes the SSRC; the caller's packets have the new one already.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        self.session.set_ssrc(ssrc);
    }

    /// Changes the canonical name.
    pub fn set_cname(&mut self, cname: &str) {
        self.session.set_cname(cname);
    }

    /// Changes the rules for feedback from `now_ns` on, as both sides agreed.
    pub fn set_profile(&mut self, now_ns: u64, profile: Profile, reduced_size: bool) {
        self.session.set_profile(now_ns, profile, reduced_size);
    }

    /// Sets whether RTP and RTCP share one port (RFC 5761). With mux, the payload types 64 to 95 are refused from now on; without
    /// it, the next [`set_payloads`](Self::set_payloads) allows them.
    pub fn set_mux(&mut self, mux: bool) {
        self.payloads = PayloadMap::received(self.payloads.clone(), mux);
        self.mux = mux;
    }

    /// Stops sending RTP. RTCP continues.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Stops sending RTCP.
    pub fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Whether others may know our SSRC because RTP or RTCP was sent.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.session.has_sent()
    }

    /// Requests a new picture from a source. With `full`, it requests a full picture, independent of the last one (RFC 5104,
    /// section 4.3.1), otherwise it sends a loss indication (RFC 4585, section 6.3.1). Without `media`, or if it is unknown,
    /// the request goes to the current source. Returns false if no source is known or the request cannot be sent now.
    pub fn request_picture(&mut self, now_ns: u64, media: Option<Ssrc>, full: bool) -> bool {
        let known = media.filter(|media| self.knows(*media));
        let Some(media) = known.or(self.session.current_ssrc()) else {
            return false;
        };
        !self.is_silent
            && if full {
                self.session.request_fir(now_ns, media)
            } else {
                self.session.request_pli(now_ns, media)
            }
    }

    /// Requests packets from a source again (RFC 4585, section 6.2.1). Returns false if the source is unknown or the request
    /// cannot be sent now.
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
