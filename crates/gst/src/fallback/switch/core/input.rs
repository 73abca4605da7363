//! One input: its health and its stream.

use super::Reason;

/// Never given twice.
pub(in super::super) type InputId = u32;

/// What a stream's buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) enum Media {
    /// Raw audio: may be cut at any frame.
    Audio,
    /// Raw video: may be cut between pictures.
    Video,
    /// All else: may be entered at what is no delta unit.
    #[default]
    Coded,
}

/// A buffer, the first and the last of a list, or a gap. Times in ns; `None`: it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Arrival {
    pub(in super::super) begin_ns: Option<u64>,
    pub(in super::super) end_ns: Option<u64>,
    /// It cannot be decoded without what is before it.
    pub(in super::super) is_delta: bool,
    /// There is no data in it.
    pub(in super::super) is_gap: bool,
}

impl Arrival {
    /// A coded stream may be entered here.
    pub(super) fn is_keyframe(&self) -> bool {
        !self.is_delta && !self.is_gap
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// It has had no timely buffer yet.
    Unheard,
    Healthy {
        since_ns: u64,
        /// Unless a timely buffer arrives before.
        until_ns: u64,
    },
    Unhealthy(Reason),
}

#[derive(Debug)]
pub(in super::super) struct Input {
    pub(in super::super) id: InputId,
    /// The lowest number is the first choice.
    pub(in super::super) priority: u32,
    pub(super) media: Media,
    pub(super) health: Health,
    /// Since when its partner has been healthy, ns; `None`: it is not.
    pub(super) partner_since_ns: Option<u64>,
    pub(super) is_eos: bool,
    pub(super) is_flushing: bool,
    /// Delta units have arrived.
    pub(super) has_deltas: bool,
    /// What passes next has to be a keyframe: what is before it has not passed.
    pub(super) needs_keyframe: bool,
    /// Since it became the active one, nothing has passed.
    pub(super) is_joining: bool,
    /// Downstream does not know its stream.
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

    /// The order of choice, the first one first: by priority, those without their partners last.
    pub(super) fn rank(&self) -> (bool, u32) {
        (self.lacks_partner(), self.priority)
    }

    pub(super) fn lacks_partner(&self) -> bool {
        self.partner_since_ns.is_none()
    }

    /// Since when it has been healthy, with its partner if that is.
    pub(super) fn since_ns(&self) -> Option<u64> {
        match self.health {
            Health::Healthy { since_ns, .. } => {
                Some(since_ns.max(self.partner_since_ns.unwrap_or(0)))
            }
            _ => None,
        }
    }

    /// It may be entered at a keyframe only.
    pub(super) fn is_coded(&self) -> bool {
        self.media == Media::Coded || self.has_deltas
    }

    /// A timely buffer. `true`: it is healthy only now.
    pub(super) fn hear(&mut self, now_ns: u64, until_ns: u64) -> bool {
        let before = self.health;
        let since_ns = match before {
            Health::Healthy { since_ns, .. } => since_ns,
            _ => now_ns,
        };
        self.health = Health::Healthy { since_ns, until_ns };
        !matches!(before, Health::Healthy { .. })
    }

    /// A healthy input stays so until then at least.
    pub(super) fn extend_health(&mut self, at_least_ns: u64) {
        if let Health::Healthy { until_ns, .. } = &mut self.health {
            *until_ns = at_least_ns.max(*until_ns);
        }
    }
}
