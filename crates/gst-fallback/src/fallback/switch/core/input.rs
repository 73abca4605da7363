//! One input: its health and its stream.

use super::Reason;

/// Number of an input, never reused.
pub(in super::super) type InputId = u32;

/// Media type of a stream's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) enum Media {
    /// Raw audio, which can be cut at any frame.
    Audio,
    /// Raw video, which can be cut between pictures.
    Video,
    /// Any other stream. It can be entered at a buffer that is not a delta unit.
    #[default]
    Coded,
}

/// Times of a buffer, of a list from its first to its last buffer, or of a gap. They are in ns; `None` means that there is no
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Arrival {
    pub(in super::super) begin_ns: Option<u64>,
    pub(in super::super) end_ns: Option<u64>,
    /// Whether the data cannot be decoded without earlier data.
    pub(in super::super) is_delta: bool,
    /// Whether it is a gap, without data.
    pub(in super::super) is_gap: bool,
}

impl Arrival {
    /// Whether a coded stream can be entered at this buffer.
    pub(super) fn is_keyframe(&self) -> bool {
        !self.is_delta && !self.is_gap
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// The input has not had a timely buffer yet.
    Unheard,
    Healthy {
        since_ns: u64,
        /// End of the health, if no timely buffer arrives before it.
        until_ns: u64,
    },
    Unhealthy {
        why: Reason,
        at_ns: u64,
    },
}

#[derive(Debug)]
pub(in super::super) struct Input {
    pub(in super::super) id: InputId,
    /// Priority; the lowest number is the first choice.
    pub(in super::super) priority: u32,
    pub(super) media: Media,
    pub(super) health: Health,
    /// Start of the partner's health, ns; `None` while the partner is not healthy.
    pub(super) partner_since_ns: Option<u64>,
    pub(super) is_eos: bool,
    pub(super) is_flushing: bool,
    /// Whether delta units have arrived.
    pub(super) has_deltas: bool,
    /// Whether the next buffer that passes must be a keyframe, because earlier data did not pass.
    pub(super) needs_keyframe: bool,
    /// Whether nothing has passed since the input became the active one.
    pub(super) is_joining: bool,
    /// Whether downstream does not know the input's stream yet.
    pub(super) is_unannounced: bool,
}

impl Input {
    pub(super) fn new(id: InputId, priority: u32) -> Self {
        Input {
            id,
            priority,
            media: Media::default(),
            health: Health::Unheard,
            partner_since_ns: Some(0),
            is_eos: false,
            is_flushing: false,
            has_deltas: false,
            needs_keyframe: false,
            is_joining: false,
            is_unannounced: true,
        }
    }

    pub(in super::super) fn is_healthy(&self) -> bool {
        matches!(self.health, Health::Healthy { .. })
    }

    /// Rank of the input; the lowest rank is chosen. Inputs whose partners fail come last. Among the others, the priority
    /// decides.
    pub(super) fn rank(&self) -> (bool, u32) {
        (self.lacks_partner(), self.priority)
    }

    pub(super) fn lacks_partner(&self) -> bool {
        self.partner_since_ns.is_none()
    }

    /// Returns the start of the input's health. If its partner is healthy, too, it is the time since which both are.
    pub(super) fn since_ns(&self) -> Option<u64> {
        match self.health {
            Health::Healthy { since_ns, .. } => {
                Some(since_ns.max(self.partner_since_ns.unwrap_or(0)))
            }
            _ => None,
        }
    }

    /// Whether the input can be entered only at a keyframe.
    pub(super) fn is_coded(&self) -> bool {
        self.media == Media::Coded || self.has_deltas
    }

    /// Notes a timely buffer. Returns `true` if it makes the input healthy.
    pub(super) fn hear(&mut self, now_ns: u64, until_ns: u64) -> bool {
        let before = self.health;
        let since_ns = match before {
            Health::Healthy { since_ns, .. } => since_ns,
            _ => now_ns,
        };
        self.health = Health::Healthy { since_ns, until_ns };
        !matches!(before, Health::Healthy { .. })
    }

    /// Extends the health of a healthy input to at least this time.
    pub(super) fn extend_health(&mut self, at_least_ns: u64) {
        if let Health::Healthy { until_ns, .. } = &mut self.health {
            *until_ns = at_least_ns.max(*until_ns);
        }
    }
}
