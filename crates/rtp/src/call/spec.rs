//! The specification of a session: its legs, the flows between them, and everything about them that may change.
//!
//! [`Session::new`](super::Session::new) creates a session from a specification, and [`Session::apply`](super::Session::apply) changes a
//! running one.

use super::{DirectionConfig, Fallback, LegId};
use crate::leg::LegConfig;
use crate::srtp::Keys;

/// The specification of a [`Session`](super::Session).
///
/// Some parts apply only to new legs and flows: the identity (SSRC, CNAME, first number and timestamp), the jitter buffer, the bandwidth,
/// [`DirectionConfig::passes_directly`], and the fallbacks.
#[derive(Debug, Clone)]
pub struct SessionSpec {
    pub(super) legs: Vec<LegConfig>,
    pub(super) first: FlowConfig,
    pub(super) second: Option<FlowConfig>,
    /// Whether the first two legs use the same ports.
    pub(super) shares_ports: bool,
    pub(super) records_quality: bool,
    /// Inputs that replace the first leg while it is silent.
    pub(super) fallbacks: Vec<Fallback>,
    /// Whether each party of a call hears itself.
    pub(super) echoes: bool,
    /// SRTP keys of legs. A session does not see its encryption, so its owner uses them.
    keys: Vec<(LegId, Keys)>,
    /// Whether parties may have sent for a long time before the session begins.
    joins: bool,
}

/// Settings of a flow: see [`flow`](super::flow).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowConfig {
    pub(super) from: LegId,
    /// The leg that sends. `None`: the media go only to listeners.
    pub(super) to: Option<LegId>,
    pub(super) is_verbatim: bool,
    pub(super) direction: DirectionConfig,
}

/// Destination of a one-way stream.
#[derive(Debug, Clone)]
pub enum Target {
    /// The media go back to the sending party, so one leg does both.
    Same,
    /// The media go to another party, from the same ports.
    Other(Box<LegConfig>),
    /// The media go to another party, with all packets unchanged, including the SSRC.
    Verbatim(Box<LegConfig>),
    /// The media go to no party, but only to listeners.
    Nobody,
}

impl SessionSpec {
    /// Creates the settings of a call: two parties that hear each other, each on its own ports, A first. `directions` are those from A to B
    /// and from B to A.
    #[must_use]
    pub fn call(legs: [LegConfig; 2], directions: [DirectionConfig; 2]) -> SessionSpec {
        let [to_b, to_a] = directions;
        let flow = |from, to, direction| FlowConfig {
            from,
            to: Some(to),
            is_verbatim: false,
            direction,
        };
        SessionSpec {
            legs: legs.into(),
            first: flow(LegId::A, LegId::B, to_b),
            second: Some(flow(LegId::B, LegId::A, to_a)),
            shares_ports: false,
            records_quality: true,
            fallbacks: Vec::new(),
            echoes: false,
            keys: Vec::new(),
            joins: false,
        }
    }

    /// Creates the settings of a one-way stream on one pair of ports. It goes from leg [`A`](LegId::A) to another party, which is leg
    /// [`B`](LegId::B), back to the sender, or nowhere.
    #[must_use]
    pub fn stream(source: LegConfig, target: Target, direction: DirectionConfig) -> SessionSpec {
        let is_verbatim = matches!(target, Target::Verbatim(_));
        let (other, to) = match target {
            Target::Other(other) | Target::Verbatim(other) => (Some(*other), Some(LegId::B)),
            Target::Same => (None, Some(LegId::A)),
            Target::Nobody => (None, None),
        };
        let first = FlowConfig {
            from: LegId::A,
            to,
            is_verbatim,
            direction,
        };
        SessionSpec {
            shares_ports: other.is_some(),
            legs: std::iter::once(source).chain(other).collect(),
            first,
            second: None,
            records_quality: false,
            fallbacks: Vec::new(),
            echoes: false,
            keys: Vec::new(),
            joins: true,
        }
    }

    /// Adds inputs that replace the first leg while it is silent, in order of preference. Fallbacks that are legs become the next legs of
    /// the session, each on its own ports. The output stays one stream, with one SSRC, consecutive numbers, and timestamps that follow the
    /// time. Filter and tap get the outgoing audio, in its format. A stream ignores fallbacks if it forwards packets verbatim or sends
    /// nowhere.
    #[must_use]
    pub fn with_fallbacks(mut self, fallbacks: Vec<Fallback>) -> SessionSpec {
        self.fallbacks = fallbacks;
        self
    }

    /// Makes each party of a call hear itself instead of the other party: see [`Session::set_echo`].
    #[must_use]
    pub fn with_echo(mut self, echoes: bool) -> SessionSpec {
        self.echoes = echoes;
        self
    }

    /// Sets the SRTP keys of a leg. `None`: it uses plain RTP.
    #[must_use]
    pub fn with_keys(mut self, leg: impl Into<LegId>, keys: Option<Keys>) -> SessionSpec {
        let leg = leg.into();
        self.keys.retain(|(other, _)| *other != leg);
        self.keys.extend(keys.map(|keys| (leg, keys)));
        self
    }

    /// Removes and returns the SRTP keys of the legs that have some.
    pub fn take_keys(&mut self) -> Vec<(LegId, Keys)> {
        std::mem::take(&mut self.keys)
    }

    /// Whether the parties may have sent for a long time before the session begins, as those of a stream.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.joins
    }

    pub(super) fn flows(&self) -> impl Iterator<Item = &FlowConfig> {
        std::iter::once(&self.first).chain(&self.second)
    }
}
