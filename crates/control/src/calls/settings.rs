//! The operator's settings.

use threadbare_base::NS_PER_S;

/// Settings of the registry. They may all change while calls are running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Time-outs of calls.
    pub timeouts: Timeouts,
    /// Maximum number of simultaneous media streams, each with its ports. Each `m=` line of a call counts; most calls have one.
    pub sessions_max: usize,
    /// Maximum number of streams of unanswered offers, within `sessions_max`. Without this limit, any caller could take all ports, because
    /// each offer opens some.
    pub unanswered_max: usize,
    /// The wall clock at time 0 of the registry's clock, ns since 1970.
    pub unix_at_zero_ns: u64,
    /// Start of this process, ns on the registry's clock.
    pub started_ns: u64,
    /// Name of this process, by which `loop protect` recognises its own descriptions.
    pub instance: String,
}

/// Time-outs with the names that rtpengine gives them, ns. `None`: the time-out is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// `offer-timeout`: for an offer without any answer, even an early one.
    pub offer_ns: Option<u64>,
    /// `timeout`: for a call without media.
    pub media_ns: Option<u64>,
    /// `silent-timeout`: for a call without media that is on hold or blocked.
    pub silent_ns: Option<u64>,
    /// `final-timeout`: the maximum duration of any call.
    pub final_ns: Option<u64>,
    /// `delete-delay`: the time from a `delete` to the end of the call.
    pub delete_delay_ns: u64,
}

impl Default for Timeouts {
    /// Returns the default values.
    fn default() -> Self {
        Timeouts {
            // Proxies end an INVITE that gets no response after a little more than 3 minutes (RFC 3261, section 16.6, timer C).
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

/// Default of [`sessions_max`](Settings::sessions_max). The ports of one address suffice for this number of streams.
const SESSIONS_MAX: usize = 16_384;
