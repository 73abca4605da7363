//! Pure functions that convert the registry's stream specifications to settings of the relay.

use std::sync::Arc;

use threadbare_control::calls::{SideSpec, SrtpKeys, StreamKind, StreamSpec};
use threadbare_relay::{ForwardSide, ForwardSpec, MediaSpec};
use threadbare_rtp::call::{DirectionConfig, Mode, SessionSpec, Side};
use threadbare_rtp::codec::{EncoderSettings, Encoding};
use threadbare_rtp::id::{NtpTime, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{
    AdmissionConfig, Carries, Destination, Learn, LegConfig, PayloadMap, PayloadMapError,
};
use threadbare_rtp::session::Profile;
use threadbare_rtp::srtp::Keys;

/// Settings that all streams have in common.
#[derive(Debug, Clone)]
pub(super) struct Common {
    /// CNAME in RTCP (RFC 7022).
    pub(super) cname: Arc<str>,
    /// The wall-clock time at time 0 of the monotonic clock.
    pub(super) ntp_at_zero: NtpTime,
    pub(super) latency: Latency,
    /// Whether the loudness of calls is measured.
    pub(super) meters: bool,
}

/// The delay of the jitter buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub(super) ns: u64,
    /// Whether the delay was configured. In that case, it also applies to packets that pass unchanged.
    pub(super) is_asked_for: bool,
}

/// Returns the specification of a stream's media session, for a new session as well as for a running one.
pub(super) fn media(
    spec: &StreamSpec,
    common: &Common,
    random: &mut dyn FnMut() -> u64,
) -> Result<MediaSpec, PayloadMapError> {
    match spec.kind {
        StreamKind::Audio => audio(spec, common, random)
            .map(Box::new)
            .map(MediaSpec::Audio),
        StreamKind::Packets => Ok(MediaSpec::Forward(Box::new(forward(spec)))),
    }
}

fn audio(
    spec: &StreamSpec,
    common: &Common,
    random: &mut dyn FnMut() -> u64,
) -> Result<SessionSpec, PayloadMapError> {
    let [a, b] = &spec.sides;
    let mut legs = [leg(a, common, random)?, leg(b, common, random)?];
    if spec.copies.is_some() {
        // The source of a copy reads no reports, so send it no RTCP.
        legs[0].bandwidth_bps = 0;
    }
    let directions = [
        direction(a, b, common, random),
        direction(b, a, common, random),
    ];
    Ok(SessionSpec::call(legs, directions)
        .with_echo(spec.echoes)
        .with_keys(Side::A, keys(&a.srtp))
        .with_keys(Side::B, keys(&b.srtp)))
}

fn forward(spec: &StreamSpec) -> ForwardSpec {
    let side = |side: Side| {
        let own = of(spec, side);
        let heard = of(spec, if spec.echoes { side } else { side.other() });
        let is_cut = heard.is_blocked || heard.is_silenced || !heard.may_send;
        ForwardSide {
            admission: admission(own),
            mux: own.mux,
            is_held: !own.may_receive || is_cut,
            keys: keys(&own.srtp),
        }
    };
    ForwardSpec {
        sides: Side::BOTH.map(side),
        echoes: spec.echoes,
    }
}

fn leg(
    side: &SideSpec,
    common: &Common,
    random: &mut dyn FnMut() -> u64,
) -> Result<LegConfig, PayloadMapError> {
    let (payloads, takes) = payloads(side)?;
    Ok(LegConfig {
        ssrc: Ssrc(random() as u32),
        // The first number is far from a wrap, so that a receiver that joins late guesses the right rollover counter (RFC 3711, section
        // 3.3.1).
        first_seq: SeqNum(random() as u16 & FIRST_SEQ_MASK),
        cname: common.cname.clone(),
        seed: random(),
        ntp_at_zero: common.ntp_at_zero,
        jitter: jitter::Config::new(payloads.audio().clock_rate_hz, common.latency.ns),
        payloads,
        takes: Some(takes),
        admission: admission(side),
        destination: destination(side),
        mux: side.mux,
        bandwidth_bps: BANDWIDTH_BPS,
        profile: profile(side),
    })
}

/// Returns the payload types that a party sends, and those that it accepts.
fn payloads(side: &SideSpec) -> Result<(Arc<PayloadMap>, Arc<PayloadMap>), PayloadMapError> {
    match (&side.sends, &side.takes) {
        (Some(sends), Some(takes)) => Ok((sends.clone(), takes.clone())),
        // If the parties have agreed on no payload types, those with a static meaning are used.
        (sends, takes) => {
            let any = PayloadMap::any(None)?.shared();
            let or_any = |map: &Option<Arc<PayloadMap>>| map.clone().unwrap_or_else(|| any.clone());
            Ok((or_any(sends), or_any(takes)))
        }
    }
}

/// Returns the sample rate of a recording of both sides in Hz, which is the higher rate of their audio.
pub(super) fn rate_hz(spec: &StreamSpec) -> u32 {
    let maps = spec
        .sides
        .iter()
        .flat_map(|side| [&side.sends, &side.takes]);
    let rates = maps.flatten().filter_map(|map| match map.audio().carries {
        Carries::Audio(format) => Some(format.sample_rate_hz),
        _ => None,
    });
    rates.max().unwrap_or(TELEPHONE_HZ)
}

/// Whether all audio of a stream is G.711, which is forwarded unchanged or converted to the other law.
pub(super) fn is_coded(spec: &StreamSpec) -> bool {
    let sides = spec.sides.iter();
    let mut maps = sides.flat_map(|side| [&side.sends, &side.takes]);
    // If the parties have agreed on no payload types, those with a static meaning are used.
    let is_coded = |map: &Option<Arc<PayloadMap>>| match map.as_ref().map(|map| map.audio().carries)
    {
        Some(Carries::Audio(format)) => {
            let is_law = matches!(format.encoding, Encoding::Pcmu | Encoding::Pcma);
            is_law && (format.sample_rate_hz, format.channels) == (TELEPHONE_HZ, 1)
        }
        Some(_) | None => false,
    };
    maps.all(is_coded) && !spec.sides.iter().any(|side| side.makes_anew)
}

/// Returns the rules that decide which senders are accepted as this party.
fn admission(side: &SideSpec) -> AdmissionConfig {
    AdmissionConfig {
        sources: Vec::new(),
        peer: side.rtp,
        rtcp: side.rtcp,
        learn: side.learn,
        waits: side.waits_for_nat,
    }
}

/// Returns the destination of media for this party.
fn destination(side: &SideSpec) -> Destination {
    match (side.rtp, side.learn) {
        (Some(rtp), Learn::Anyone | Learn::Never) => Destination::Fixed {
            rtp,
            rtcp: side.rtcp,
        },
        _ => Destination::Peer,
    }
}

/// Returns the RTCP profile that the party uses.
fn profile(side: &SideSpec) -> Profile {
    if side.has_feedback {
        Profile::Avpf {
            regular_interval_ns: REGULAR_INTERVAL_NS,
            feedback_delay_ns_max: FEEDBACK_DELAY_NS_MAX,
        }
    } else {
        Profile::Avp
    }
}

fn direction(
    from: &SideSpec,
    to: &SideSpec,
    common: &Common,
    random: &mut dyn FnMut() -> u64,
) -> DirectionConfig {
    DirectionConfig {
        packet_ns: packet_ns(to),
        encoder: EncoderSettings {
            bitrate_bps: to.bitrate_bps,
            bitrate_bps_max: to.bitrate_bps_max,
            ..EncoderSettings::default()
        },
        first_time: RtpTime(random() as u32),
        mode: mode(from),
        detect_keys: from.detects_keys,
        makes_anew: from.makes_anew,
        passes_directly: !common.latency.is_asked_for,
        blocks_keys: from.blocks_keys,
        passes_keys: from.may_send,
        holds_receiver: !to.may_receive,
    }
}

/// Returns the packet time for a party, or 0 if it does not change.
fn packet_ns(to: &SideSpec) -> u64 {
    u64::from(to.packet_ms.unwrap_or(0)) * 1_000_000
}

/// Decides whether a party's media pass, are blocked, or are replaced by silence.
fn mode(side: &SideSpec) -> Mode {
    match side {
        SideSpec {
            may_send: false, ..
        } => Mode::Hold,
        SideSpec {
            is_blocked: true, ..
        } => Mode::Hold,
        SideSpec {
            is_silenced: true, ..
        } => Mode::Mute,
        _ => Mode::Pass,
    }
}

/// Decides for each party whether it is expected to send, and the other party can hear it.
pub(super) fn are_expected(spec: &StreamSpec) -> [bool; 2] {
    let is_talk = spec.kind == StreamKind::Audio
        && !spec.echoes
        && spec.sides.iter().all(SideSpec::has_party);
    let is_heard = |side: Side| {
        is_talk && mode(of(spec, side)) == Mode::Pass && of(spec, side.other()).may_receive
    };
    Side::BOTH.map(is_heard)
}

/// Converts SRTP keys for the relay.
pub(super) fn keys(keys: &Option<SrtpKeys>) -> Option<Keys> {
    keys.as_ref().map(|keys| Keys {
        receive: keys.receive.clone(),
        send: keys.send.clone(),
    })
}

/// Returns the specification of a side.
pub(super) fn of(spec: &StreamSpec, side: Side) -> &SideSpec {
    &spec.sides[side as usize]
}

/// Clock rate if the parties have agreed on no payload types, Hz.
const TELEPHONE_HZ: u32 = 8_000;
/// Interval of regular reports in AVPF if there is no feedback to send. It is the same as in AVP.
const REGULAR_INTERVAL_NS: u64 = 5_000_000_000;
/// Maximum delay of feedback. Later feedback is useless for speech.
const FEEDBACK_DELAY_NS_MAX: u64 = 1_000_000_000;
/// Mask for initial sequence numbers, which are below 2^15.
pub(super) const FIRST_SEQ_MASK: u16 = 0x7fff;
/// Bandwidth of a call, from which the share of RTCP is computed.
const BANDWIDTH_BPS: u64 = 80_000;

#[cfg(test)]
mod tests {
    use threadbare_rtp::codec::Format;
    use threadbare_rtp::leg::Payload;

    use super::*;

    #[test]
    fn only_calls_that_use_only_g711_are_recorded_without_decoding() {
        let spec = |encodings: [Option<Encoding>; 2], makes_anew| {
            let sides = encodings.map(|encoding| {
                let format = encoding.map(|encoding| {
                    let rate_hz = encoding.sample_rates_hz()[0].max(TELEPHONE_HZ);
                    Format::new(encoding, rate_hz, 1).expect("a format")
                });
                let map = format.map(|format| {
                    let payload = Payload::audio(96, format);
                    Arc::new(PayloadMap::new(&[payload]).expect("a map"))
                });
                SideSpec {
                    sends: map.clone(),
                    takes: map,
                    makes_anew,
                    ..SideSpec::unknown(Learn::FOLLOW)
                }
            });
            StreamSpec {
                kind: StreamKind::Audio,
                sides,
                tos: None,
                echoes: false,
                copies: None,
                fallback: Default::default(),
            }
        };
        let (pcmu, pcma) = (Some(Encoding::Pcmu), Some(Encoding::Pcma));
        assert!(is_coded(&spec([pcmu, pcmu], false)));
        assert!(is_coded(&spec([pcmu, pcma], false)));
        assert!(!is_coded(&spec([pcmu, pcma], true)));
        assert!(!is_coded(&spec([pcmu, None], false)));
        assert!(!is_coded(&spec([pcmu, Some(Encoding::G722)], false)));
    }
}
