//! Feedback settings from both elements of a session, and requests to the peer.

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::id::{SeqNum, Ssrc};
use threadbare_rtp::session::Profile;
use threadbare_runtime::clock_now_ns;

use super::RtpSession;
use crate::kit::{CAT, PropertyGroup, lock};

/// The RTP profile, as far as it concerns RTCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareRtpProfile")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum RtpProfile {
    /// RFC 3551.
    #[default]
    #[enum_value(name = "Reports only (RFC 3551)", nick = "avp")]
    Avp,
    /// RFC 4585.
    #[enum_value(name = "Reports and early feedback (RFC 4585)", nick = "avpf")]
    Avpf,
}

impl RtpProfile {
    fn rules(self) -> Profile {
        match self {
            RtpProfile::Avp => Profile::Avp,
            RtpProfile::Avpf => Profile::Avpf {
                regular_interval_ns: REGULAR_INTERVAL_NS,
                feedback_delay_ns_max: FEEDBACK_DELAY_NS_MAX,
            },
        }
    }
}

/// Minimum interval of reports without feedback, as in AVP.
const REGULAR_INTERVAL_NS: u64 = 5_000_000_000;
/// Maximum delay of feedback. A picture that is requested a second late is still useful.
const FEEDBACK_DELAY_NS_MAX: u64 = 1_000_000_000;

/// The properties `rtp-profile` and `rtcp-reduced-size`. If a property is not set, the session's other element decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FeedbackSettings {
    profile: Option<RtpProfile>,
    reduced_size: Option<bool>,
}

impl PropertyGroup for FeedbackSettings {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecEnum::builder_with_default("rtp-profile", RtpProfile::Avp)
                .nick("RTP profile")
                .blurb("RTP profile. avpf enables early feedback (RFC 4585); set it only if both sides agreed on it. It is enough to set it on one element of the session")
                .build(),
            glib::ParamSpecBoolean::builder("rtcp-reduced-size")
                .nick("RTCP reduced size")
                .blurb("Send and accept early feedback without a report (RFC 5506). Set it only if both sides agreed on it; it is enough to set it on one element of the session")
                .default_value(false)
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "rtp-profile" => self.profile = value.get().ok(),
            "rtcp-reduced-size" => self.reduced_size = value.get().ok(),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "rtp-profile" => self.profile.unwrap_or_default().to_value(),
            "rtcp-reduced-size" => self.reduced_size.unwrap_or_default().to_value(),
            _ => return None,
        })
    }
}

impl FeedbackSettings {
    /// Adds another element's settings. If they differ from earlier ones, the earlier ones apply, and the error describes the
    /// difference.
    fn agree(&mut self, asked: FeedbackSettings) -> Result<(), String> {
        let mut differs = Vec::new();
        match (self.profile, asked.profile) {
            (Some(known), Some(other)) if known != other => {
                differs.push(format!("rtp-profile is {known:?}, not {other:?}").to_lowercase());
            }
            (known, other) => self.profile = known.or(other),
        }
        match (self.reduced_size, asked.reduced_size) {
            (Some(known), Some(other)) if known != other => {
                differs.push(format!("rtcp-reduced-size is {known}, not {other}"));
            }
            (known, other) => self.reduced_size = known.or(other),
        }
        if differs.is_empty() {
            return Ok(());
        }
        Err(differs.join(", "))
    }
}

impl RtpSession {
    /// Adds the settings of an element. If an earlier element had other settings, posts a warning of this element.
    pub(crate) fn agree(&self, element: &gst::Element, asked: FeedbackSettings) {
        let agreed = {
            let mut agreed = lock(&self.feedback);
            if let Err(differs) = agreed.agree(asked) {
                let name = &self.name;
                gst::warning!(
                    CAT,
                    obj = element,
                    "session '{name}' keeps the settings of the element that started first: {differs}"
                );
            }
            *agreed
        };
        let rules = agreed.profile.unwrap_or_default().rules();
        let reduced_size = agreed.reduced_size.unwrap_or_default();
        self.party().set_profile(rules, reduced_size);
        self.wake_agent();
    }

    /// Whether feedback is sent.
    pub(crate) fn has_feedback(&self) -> bool {
        lock(&self.feedback).profile == Some(RtpProfile::Avpf)
    }

    /// Returns the last known round trip.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        self.party().leg.stats().session.rtt_ns
    }

    /// Requests a picture; see [`Leg::request_picture`](threadbare_rtp::leg::Leg::request_picture). `media` may be our own SSRC,
    /// by which a viewer downstream refers to the source.
    pub(crate) fn request_picture(&self, media: Option<Ssrc>, full: bool) -> bool {
        let now_ns = clock_now_ns();
        let is_asked = self.has_feedback() && self.party().leg.request_picture(now_ns, media, full);
        self.wake_agent();
        is_asked
    }

    /// Requests packets from a source again. Returns `false` without a source, or if a request is not possible now.
    pub(crate) fn request_packets(&self, now_ns: u64, media: Ssrc, lost: &[SeqNum]) -> bool {
        let is_asked = self.has_feedback() && self.party().leg.request_packets(now_ns, media, lost);
        self.wake_agent();
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(profile: Option<RtpProfile>, reduced_size: Option<bool>) -> FeedbackSettings {
        FeedbackSettings {
            profile,
            reduced_size,
        }
    }

    #[test]
    fn either_element_may_set_the_profile_and_the_first_setting_applies() {
        let mut agreed = FeedbackSettings::default();
        assert_eq!(agreed.agree(settings(None, Some(true))), Ok(()));
        assert_eq!(agreed.agree(settings(Some(RtpProfile::Avpf), None)), Ok(()));
        let both = settings(Some(RtpProfile::Avpf), Some(true));
        assert_eq!(agreed, both);
        assert_eq!(agreed.agree(both), Ok(()));
        let differs = agreed.agree(settings(Some(RtpProfile::Avp), Some(false)));
        let expected = "rtp-profile is avpf, not avp, rtcp-reduced-size is true, not false";
        assert_eq!(differs, Err(expected.to_owned()));
        assert_eq!(agreed, both);
    }
}
