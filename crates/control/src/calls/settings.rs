//! What an operator sets.

/// Settings of the registry. All may be changed while calls are up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// When calls end by themselves.
    pub timeouts: Timeouts,
    /// Calls at a time.
    pub sessions_max: usize,
    /// The wall clock at time 0 of the registry's clock, ns since 1970.
    pub unix_at_zero_ns: u64,
    /// When this process began, ns on the registry's clock.
    pub started_ns: u64,
    /// Distinguishes this process: `loop protect` knows its own by it.
    pub instance: String,
}

/// Time-outs by the names that operators know, ns. `None`: never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// `offer-timeout`: an offer without an answer.
    pub offer_ns: Option<u64>,
    /// `timeout`: a call without media.
    pub media_ns: Option<u64>,
    /// `silent-timeout`: the same of a call that is held or blocked.
    pub silent_ns: Option<u64>,
    /// `final-timeout`: any call.
    pub final_ns: Option<u64>,
    /// `delete-delay`: from `delete` to the end of the call.
    pub delete_delay_ns: u64,
}

const NS_PER_S: u64 = 1_000_000_000;

impl Default for Timeouts {
    /// The usual values.
    fn default() -> Self {
        Timeouts {
            offer_ns: Some(3600 * NS_PER_S),
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
            unix_at_zero_ns: 0,
            started_ns: 0,
            instance: "0".to_owned(),
        }
    }
}

/// As many as ports of one address are enough for.
const SESSIONS_MAX: usize = 16_384;
