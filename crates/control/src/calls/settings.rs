//! The operator's settings.

use threadbare_base::NS_PER_S;

/// Settings of the registry. All of them may change while calls are running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Time-outs of calls.
    pub timeouts: Timeouts,
    /// Limit of media streams at a time, each with its ports. Most calls have one; each `m=` line counts.
    pub sessions_max: usize,
    /// Limit of streams of unanswered offers, within `sessions_max`. Any caller can make offers, and each offer takes ports.
    pub unanswered_max: usize,
    /// The wall clock at time 0 of the registry's clock, ns since 1970.
    pub unix_at_zero_ns: u64,
    /// Start of this process, ns on the registry's clock.
    pub started_ns: u64,
    /// Identifies this process for `loop protect`.
    pub instance: String,
}

/// Time-outs by their usual names, ns. `None`: never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// `offer-timeout`: an offer without any answer, even an early one.
    pub offer_ns: Option<u64>,
    /// `timeout`: a call without media.
    pub media_ns: Option<u64>,
    /// `silent-timeout`: a call on hold or a blocked one, without media.
    pub silent_ns: Option<u64>,
    /// `final-timeout`: any call.
    pub final_ns: Option<u64>,
    /// `delete-delay`: from `delete` to the end of the call.
    pub delete_delay_ns: u64,
}

impl Default for Timeouts {
    /// Returns the default values.
    fn default() -> Self {
        Timeouts {
            // Proxies end an INVITE without a response after somewhat more than 3 minutes: timer C of RFC 3261, section
            // 16.6.
            offer_ns: Some(300 * NS_PER_S),
            media_ns: Some(60 * NS_PER_S),
            silent_ns: Some(3600 * NS_PER_S),
            final_ns: Some(10_800 * NS_PER_S),
            delete_delay_ns: 30 * NS_PER_S,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            timeouts: Timeouts::default(),
            sessions_max: SESSIONS_MAX,
            unanswered_max: SESSIONS_MAX / 2,
            unix_at_zero_ns: 0,
            started_ns: 0,
            instance: "0".to_owned(),
        }
    }
}

/// The ports of one address suffice for as many.
const SESSIONS_MAX: usize = 16_384;
