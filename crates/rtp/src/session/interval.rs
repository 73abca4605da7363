//! The time of the next report: the RTCP interval, timer reconsideration and reverse reconsideration (RFC 3550, sections 6.2 and 6.3, and
//! appendix A.7).

use crate::id::NS_PER_S;
use crate::rng::SplitMix;

/// `RTCP_MIN_TIME` of RFC 3550, appendix A.7.
const INTERVAL_NS_MIN: u64 = 5 * NS_PER_S;
/// `RTCP_SENDER_BW_FRACTION` of RFC 3550, appendix A.7.
const SENDER_SHARE: f64 = 0.25;
/// Divisor of the interval. "The resulting value of T is divided by e-3/2=1.21828 to compensate for the fact that the timer reconsideration
/// algorithm converges to a value of the RTCP bandwidth below the intended average." (RFC 3550, section 6.3.1)
const COMPENSATION: f64 = std::f64::consts::E - 1.5;
/// Maximum interval, ns. Less than one report a day would be useless, however large the group or small the bandwidth is.
const INTERVAL_NS_MAX: f64 = (24 * 3600 * NS_PER_S) as f64;

/// Number of intervals after which a silent member times out. "M is the timeout multiplier, and defaults to 5" (RFC 3550, section 6.3.5).
const MEMBER_INTERVALS: u64 = 5;

/// The state variables of RFC 3550, section 6.3.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    /// "tp: the last time an RTCP packet was transmitted".
    pub(crate) last_ns: u64,
    /// "tn: the next scheduled transmission time of an RTCP packet".
    pub(crate) next_ns: u64,
    /// The randomised interval from which `next_ns` was computed.
    interval_ns: u64,
    /// "members: the most current estimate for the number of session members", including ourselves.
    pub(crate) members: u32,
    /// "pmembers: the estimated number of session members at the time tn was last recomputed".
    members_prior: u32,
    /// "senders", including ourselves.
    pub(crate) senders: u32,
    pub(crate) we_sent: bool,
    /// "initial: true if the application has not yet sent an RTCP packet".
    pub(crate) initial: bool,
    /// "avg_rtcp_size: the average compound RTCP packet size, in octets", including UDP and IP.
    average_bytes: f64,
    /// "rtcp_bw: the target RTCP bandwidth", in bytes/s.
    bandwidth: f64,
    /// Minimum interval between packets, ns.
    interval_ns_min: u64,
    rng: SplitMix,
}

impl Timing {
    /// Creates the state of a member that joins at `now_ns` (RFC 3550, section 6.3.2). The RTCP of all members together may use
    /// `bandwidth_bps` bits/s. `first_bytes` is the probable size of the first packet.
    pub(crate) fn new(
        now_ns: u64,
        bandwidth_bps: u64,
        interval_ns_min: u64,
        first_bytes: usize,
        seed: u64,
    ) -> Timing {
        let mut timing = Timing {
            last_ns: now_ns,
            next_ns: now_ns,
            interval_ns: 0,
            members: 1,
            members_prior: 1,
            senders: 0,
            we_sent: false,
            initial: true,
            average_bytes: first_bytes as f64,
            bandwidth: bandwidth_bps as f64 / 8.0,
            interval_ns_min,
            rng: SplitMix(seed),
        };
        timing.reschedule(now_ns);
        timing
    }

    /// Returns the interval without its randomness (RFC 3550, section 6.3.1, steps 1 to 3).
    pub(crate) fn deterministic_ns(&self) -> u64 {
        let mut interval_ns_min = self.interval_ns_min;
        if self.initial {
            // "If the participant has not yet sent an RTCP packet (the variable initial is true), the constant Tmin is set
            // to 2.5 seconds, else it is set to 5 seconds."
            interval_ns_min /= 2;
        }
        self.interval(self.we_sent, interval_ns_min)
    }

    fn interval(&self, we_sent: bool, interval_ns_min: u64) -> u64 {
        let (members, senders) = (f64::from(self.members), f64::from(self.senders));
        // "If the number of senders is less than or equal to 25% of the membership (members), the interval depends on
        // whether the participant is a sender or not"
        let (n, share) = if senders > members * SENDER_SHARE {
            (members, 1.0)
        } else if we_sent {
            (senders, SENDER_SHARE)
        } else {
            (members - senders, 1.0 - SENDER_SHARE)
        };
        if self.bandwidth <= 0.0 {
            // Without bandwidth nothing is sent, but the timer is still needed for the time-outs.
            return interval_ns_min;
        }
        // "n*C"
        let seconds = self.average_bytes * n / (self.bandwidth * share);
        let nanoseconds = (seconds * NS_PER_S as f64).min(INTERVAL_NS_MAX) as u64;
        nanoseconds.max(interval_ns_min)
    }

    /// Returns the randomised interval. "The calculated interval T is set to a number uniformly distributed between 0.5 and 1.5 times the
    /// deterministic calculated interval" (RFC 3550, section 6.3.1), and then divided by [`COMPENSATION`].
    pub(crate) fn randomised_ns(&mut self) -> u64 {
        let deterministic_ns = self.deterministic_ns() as f64;
        (deterministic_ns * (self.rng.next_unit() + 0.5) / COMPENSATION) as u64
    }

    fn reschedule(&mut self, now_ns: u64) {
        self.interval_ns = self.randomised_ns();
        self.last_ns = now_ns;
        self.next_ns = now_ns.saturating_add(self.interval_ns);
        self.members_prior = self.members;
    }

    /// Whether the packet that was scheduled for now must be sent. This is timer reconsideration (RFC 3550, section 6.3.6). If the packet
    /// must not be sent, it is scheduled for a later time.
    pub(crate) fn reconsider(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        // "The transmission interval T is computed, including the randomization factor. If tp + T is less than or equal to
        // tc, an RTCP packet is transmitted. [...] If tp + T is greater than tc, tn is set to tp + T."
        self.interval_ns = self.randomised_ns();
        let next_ns = self.last_ns.saturating_add(self.interval_ns);
        if next_ns <= now_ns {
            return true;
        }
        self.next_ns = next_ns;
        self.members_prior = self.members;
        false
    }

    /// Schedules the next packet after a regular one was sent (RFC 3550, section 6.3.6).
    pub(crate) fn sent(&mut self, now_ns: u64, bytes: usize) {
        self.note_bytes(bytes);
        self.initial = false;
        self.reschedule(now_ns);
    }

    /// Schedules the next packet after a regular one was suppressed. "Whenever a Regular RTCP packet is sent or suppressed, [...] tp, tn
    /// MUST be updated as per [1]." (RFC 4585, section 3.5.3)
    pub(crate) fn suppressed(&mut self, now_ns: u64) {
        self.reschedule(now_ns);
    }

    /// Notes that an early packet was sent. In step 6, a member "MUST recalculate tn = tp + 2*T_rr" (RFC 4585, section 3.5.2).
    pub(crate) fn sent_early(&mut self, bytes: usize) {
        self.note_bytes(bytes);
        let doubled = self.interval_ns.saturating_mul(2);
        // "and MUST set tp to the previous tn".
        let prior_ns = self.next_ns;
        self.next_ns = self.last_ns.saturating_add(doubled).max(self.next_ns);
        self.last_ns = prior_ns;
        self.initial = false;
    }

    /// Includes the size of a packet in the average, for each packet sent and received. "avg_rtcp_size = (1/16) * packet_size + (15/16) *
    /// avg_rtcp_size" (RFC 3550, section 6.3.3).
    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        self.average_bytes += (bytes as f64 - self.average_bytes) / 16.0;
    }

    /// Moves the next report forward after members have left. This is reverse reconsideration (RFC 3550, section 6.3.4).
    pub(crate) fn members_left(&mut self, now_ns: u64) {
        if self.members >= self.members_prior {
            return;
        }
        let share = f64::from(self.members) / f64::from(self.members_prior);
        // "tn = tc + (members/pmembers) * (tn - tc)", "tp = tc - (members/pmembers) * (tc - tp)"
        let ahead = self.next_ns.saturating_sub(now_ns) as f64 * share;
        let since = now_ns.saturating_sub(self.last_ns) as f64 * share;
        self.next_ns = now_ns.saturating_add(ahead as u64);
        self.last_ns = now_ns - since as u64;
        self.members_prior = self.members;
    }

    /// Begins to leave a large group. "tp is reset to tc, the current time, members and pmembers are initialized to 1, initial is set to 1,
    /// we_sent is set to false, senders is set to 0, and avg_rtcp_size is set to the size of the compound BYE packet. [...] The BYE packet
    /// is then scheduled for time tn = tc + T." (RFC 3550, section 6.3.7)
    pub(crate) fn begin_bye(&mut self, now_ns: u64, bytes: usize) {
        self.members = 1;
        self.senders = 0;
        self.we_sent = false;
        self.initial = true;
        self.average_bytes = bytes as f64;
        self.reschedule(now_ns);
    }

    /// Returns the silence after which a member times out. "Any other session member who has not sent an RTP or RTCP packet since time tc -
    /// MTd [...] is timed out", where Td is "for a receiver, that is, with we_sent false" (RFC 3550, section 6.3.5). "the fixed minimum
    /// SHOULD be used when calculating the participant timeout interval" (section 6.2).
    pub(crate) fn member_timeout_ns(&self) -> u64 {
        MEMBER_INTERVALS * self.interval(false, INTERVAL_NS_MIN)
    }

    /// Returns the time without RTP after which a member no longer counts as a sender, which is two intervals (RFC 3550, sections 6.3.5 and
    /// 6.3.8). As in [`member_timeout_ns`](Self::member_timeout_ns), the intervals are based on the fixed minimum.
    pub(crate) fn sender_timeout_ns(&self) -> u64 {
        2 * self.interval(self.we_sent, INTERVAL_NS_MIN)
    }

    /// Changes the minimum interval between packets, from the next computation on.
    pub(crate) fn set_minimum_ns(&mut self, interval_ns_min: u64) {
        self.interval_ns_min = interval_ns_min;
    }

    /// Acts as [`set_minimum_ns`](Self::set_minimum_ns). If no packet was sent yet, the time of the first one is computed again, at
    /// `now_ns`.
    pub(crate) fn change_minimum_ns(&mut self, now_ns: u64, interval_ns_min: u64) {
        self.interval_ns_min = interval_ns_min;
        if self.initial {
            self.reschedule(now_ns);
        }
    }

    /// Returns a random number for other purposes.
    pub(crate) fn random_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Returns a random number from 0 to less than 1.
    pub(crate) fn random_unit(&mut self) -> f64 {
        self.rng.next_unit()
    }

    /// Returns the interval before the next regular packet.
    pub(crate) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }
}

/// Returns the reduced minimum interval, which is never more than the fixed one. "The recommended value for the reduced minimum in seconds
/// is 360 divided by the session bandwidth in kilobits/second" (RFC 3550, section 6.2).
pub(crate) fn reduced_minimum_ns(session_bandwidth_bps: u64) -> u64 {
    (360_000 * NS_PER_S)
        .checked_div(session_bandwidth_bps)
        .map_or(INTERVAL_NS_MIN, |reduced| {
            reduced.clamp(FLOOR_NS, INTERVAL_NS_MIN)
        })
}

/// Minimum interval at any bandwidth, ns. Reports are not needed more often than audio packets, and a timer that fires without pause would
/// be a busy loop.
pub(crate) const FLOOR_NS: u64 = 20_000_000;

/// The minimum interval if the members have not agreed to reduce it.
pub(crate) const FIXED_MINIMUM_NS: u64 = INTERVAL_NS_MIN;

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(members: u32, senders: u32, we_sent: bool) -> Timing {
        let mut timing = Timing::new(0, 3_200, FIXED_MINIMUM_NS, 100, 1);
        (timing.members, timing.senders, timing.we_sent) = (members, senders, we_sent);
        timing.initial = false;
        timing
    }

    #[test]
    fn small_group_reports_at_the_minimum_interval_and_first_at_half_of_it() {
        let mut two = timing(2, 2, true);
        assert_eq!(two.deterministic_ns(), 5 * NS_PER_S);
        two.initial = true;
        assert_eq!(two.deterministic_ns(), 5 * NS_PER_S / 2);
    }

    #[test]
    fn senders_of_a_large_group_share_a_quarter_of_the_rtcp_bandwidth() {
        // The bandwidth is 400 bytes/s, and packets have 100 bytes.
        assert_eq!(timing(1000, 0, false).deterministic_ns() / NS_PER_S, 333);
        assert_eq!(timing(1000, 100, true).deterministic_ns() / NS_PER_S, 100);
        assert_eq!(timing(1000, 100, false).deterministic_ns() / NS_PER_S, 300);
        assert_eq!(timing(1000, 500, true).deterministic_ns() / NS_PER_S, 250);
        assert_eq!(timing(1000, 500, false).deterministic_ns() / NS_PER_S, 250);
    }

    #[test]
    fn interval_is_a_day_with_little_bandwidth_and_the_minimum_with_none() {
        let mut little = timing(1000, 0, false);
        little.bandwidth = 0.001;
        assert_eq!(little.deterministic_ns(), INTERVAL_NS_MAX as u64);
        little.bandwidth = 0.0;
        assert_eq!(little.deterministic_ns(), FIXED_MINIMUM_NS);
    }

    #[test]
    fn reduced_minimum_is_360_s_divided_by_the_kilobits() {
        assert_eq!(reduced_minimum_ns(720_000), NS_PER_S / 2);
        assert_eq!(reduced_minimum_ns(64_000), FIXED_MINIMUM_NS);
        assert_eq!(reduced_minimum_ns(0), FIXED_MINIMUM_NS);
    }
}
