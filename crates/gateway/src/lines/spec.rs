//! A stream's settings as those of a line: legs, payload types, direction.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_rtp::call::{Clip, DirectionConfig, Fallback, FallbackInput, Sound, Target};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::id::{NtpTime, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter::{
    self, Adaptive, CAPACITY_PACKETS_MAX, CAPACITY_PACKETS_MIN, Release, Skew,
};
use threadbare_rtp::leg::{
    AdmissionConfig, Learn, LegConfig, Method, Once, Payload, PayloadMap, PayloadMapError,
};
use threadbare_rtp::payload::COMFORT_NOISE;
use threadbare_rtp::session::Profile;

use crate::codec::{Codec, CodecIn};
use crate::config::{ClockSkew, Destination, InputSpec, Rtcp, StreamSpec};

/// What all streams of a process have in common.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) cname: Arc<str>,
    /// The wall clock at time 0 of CLOCK_MONOTONIC.
    pub(super) ntp_at_zero: NtpTime,
    /// Which of a stream's owners in a cluster this process is.
    pub(super) epoch: Option<u64>,
}

impl Common {
    pub(super) fn of_owner(&self, epoch: Option<u64>) -> Common {
        Common {
            epoch,
            ..self.clone()
        }
    }

    /// Two owners of a stream at a time would be seen by their names.
    fn cname_of(&self, spec: &StreamSpec) -> Arc<str> {
        let name = spec.cname.as_deref().unwrap_or(&self.cname);
        match self.epoch {
            Some(epoch) => format!("{name}.{epoch}").into(),
            None => name.into(),
        }
    }
}

/// The legs of a stream and what goes from one to the other. `to`: the destination's address, unless it is the sender's.
pub(super) fn legs(
    spec: &StreamSpec,
    common: &Common,
    to: Option<SocketAddr>,
    mut random: impl FnMut() -> u64,
) -> Result<(LegConfig, Target, DirectionConfig), PayloadMapError> {
    let takes = taken(spec)?.shared();
    let ssrc = Ssrc(spec.ssrc.unwrap_or_else(|| random() as u32));
    let source = LegConfig {
        ssrc: match to {
            Some(_) => Ssrc(random() as u32),
            None => ssrc,
        },
        takes: Some(takes.clone()),
        ..leg(spec, common, sent(spec)?.shared(), &mut random)
    };
    let target = match to {
        None if spec.destination == Destination::Nobody => Target::Nobody,
        None => Target::Same,
        Some(rtp) => {
            let rtcp = match spec.rtcp {
                Rtcp::Ports {
                    destination: Some(port),
                    ..
                } => Some(SocketAddr::new(rtp.ip(), port)),
                _ => None,
            };
            let other = Box::new(LegConfig {
                ssrc,
                admission: AdmissionConfig {
                    peer: Some(rtp),
                    learn: Learn::Never,
                    ..AdmissionConfig::default()
                },
                destination: threadbare_rtp::leg::Destination::Fixed { rtp, rtcp },
                ..leg(spec, common, takes, &mut random)
            });
            match spec.is_passthrough() {
                true => Target::Verbatim(other),
                false => Target::Other(other),
            }
        }
    };
    let direction = DirectionConfig {
        packet_ns: u64::from(spec.ptime_ms.unwrap_or(0)) * 1_000_000,
        first_time: RtpTime(random() as u32),
        ..DirectionConfig::default()
    };
    Ok((source, target, direction))
}

/// The stream's fallbacks. `clips`: of those that are files, in order.
pub(super) fn fallbacks(
    spec: &StreamSpec,
    common: &Common,
    clips: Vec<Clip>,
    mut random: impl FnMut() -> u64,
) -> Result<Vec<Fallback>, PayloadMapError> {
    let takes = taken(spec)?.shared();
    let mut clips = clips.into_iter();
    let mut all = Vec::new();
    for fallback in &spec.fallbacks {
        let input = match &fallback.input {
            InputSpec::Rtp {
                codec_in,
                payload_type_in,
                ..
            } => {
                let of_sender = StreamSpec {
                    codec_in: *codec_in,
                    payload_type_in: *payload_type_in,
                    ..spec.clone()
                };
                FallbackInput::Leg(Box::new(LegConfig {
                    ssrc: Ssrc(random() as u32),
                    takes: Some(takes.clone()),
                    ..leg(spec, common, sent(&of_sender)?.shared(), &mut random)
                }))
            }
            InputSpec::Tone(tone) => FallbackInput::Sound(Sound::Tone(tone.clone())),
            InputSpec::Silence => FallbackInput::Sound(Sound::Silence),
            InputSpec::File(_) => {
                let clip = clips.next();
                FallbackInput::Sound(clip.map_or(Sound::Silence, Sound::Clip))
            }
        };
        all.push(Fallback {
            input,
            timeout_ns: u64::from(fallback.timeout_ms) * 1_000_000,
            recover_after_ns: u64::from(fallback.recover_after_ms) * 1_000_000,
        });
    }
    Ok(all)
}

/// What both legs have in common.
fn leg(
    spec: &StreamSpec,
    common: &Common,
    payloads: Arc<PayloadMap>,
    random: &mut impl FnMut() -> u64,
) -> LegConfig {
    LegConfig {
        ssrc: Ssrc(0),
        first_seq: SeqNum(random() as u16),
        cname: common.cname_of(spec),
        seed: random(),
        ntp_at_zero: common.ntp_at_zero,
        payloads,
        takes: None,
        jitter: jitter(spec),
        admission: AdmissionConfig {
            sources: spec.sources.clone(),
            learn: match spec.latch_window_s {
                Some(seconds) => Learn::Once(Once {
                    method: Method::Immediate,
                    fixed_ms: Some(seconds.saturating_mul(1000)),
                }),
                None => Learn::FOLLOW,
            },
            ..AdmissionConfig::default()
        },
        destination: threadbare_rtp::leg::Destination::Peer,
        mux: spec.rtcp == Rtcp::Mux,
        bandwidth_bps: match spec.rtcp {
            Rtcp::Off => 0,
            Rtcp::Mux | Rtcp::Ports { .. } => BANDWIDTH_BPS,
        },
        profile: Profile::Avp,
    }
}

fn jitter(spec: &StreamSpec) -> jitter::Config {
    let latency_ns = u64::from(spec.jitter.latency_ms) * 1_000_000;
    let packets = u64::from(spec.jitter.latency_ms) / SHORTEST_MS + SPARE_PACKETS;
    jitter::Config {
        release: Release::AtDeadline,
        drop_on_latency: spec.jitter.drop_on_latency,
        skew: match spec.jitter.clock_skew {
            ClockSkew::Window => Skew::Window,
            ClockSkew::None => Skew::None,
        },
        adaptive: spec.jitter.adaptive.then_some(Adaptive {
            min_ns: 0,
            max_ns: latency_ns,
        }),
        capacity_packets: (packets.next_power_of_two() as u16)
            .clamp(CAPACITY_PACKETS_MIN, CAPACITY_PACKETS_MAX),
        ..jitter::Config::new(8000, latency_ns)
    }
}

/// What the sender sends: the codec's payload types, telephone events, comfort noise.
fn sent(spec: &StreamSpec) -> Result<PayloadMap, PayloadMapError> {
    let audio: Vec<Payload> = match spec.codec_in {
        // Nothing is decoded: of the configured clock rate, or static.
        CodecIn::Auto if spec.is_passthrough() => return PayloadMap::any(spec.clock_rate_hz),
        CodecIn::Auto => Codec::with_static_payload_types()
            .map(|codec| Payload::audio(codec.default_payload_type(), codec.format()))
            .collect(),
        CodecIn::Known(codec) => {
            let numbers: Vec<u8> = match spec.payload_type_in {
                Some(named) => vec![named],
                None => codec
                    .usual_payload_types()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect(),
            };
            let others = numbers
                .into_iter()
                .filter(|number| *number != spec.dtmf_payload_type);
            others
                .map(|number| Payload::audio(number, codec.format()))
                .collect()
        }
    };
    PayloadMap::new(&with_events(audio, spec))
}

/// The format of what the destination hears. The configuration's check has made sure that it is known.
pub(super) fn heard_by(spec: &StreamSpec) -> Format {
    let codec = match (spec.codec_out, spec.codec_in) {
        (Some(codec), _) | (None, CodecIn::Known(codec)) => codec,
        (None, CodecIn::Auto) => Codec::Pcmu,
    };
    codec.format()
}

/// The format of what is recorded: as the line taps it.
pub(crate) fn recorded_format(spec: &StreamSpec) -> Format {
    match spec.codec_in {
        CodecIn::Known(codec) if !is_changed(spec) => codec.format(),
        _ => heard_by(spec),
    }
}

/// Bytes of a sample that a recording is told of: one, where codes of G.711 go on as they are or in the other law.
pub(crate) fn recorded_sample_bytes(spec: &StreamSpec) -> usize {
    let CodecIn::Known(codec) = spec.codec_in else {
        return 2;
    };
    let law = |format: Format| matches!(format.encoding, Encoding::Pcmu | Encoding::Pcma);
    let (from, to) = (codec.format(), heard_by(spec));
    let is_alike = (from.sample_rate_hz, from.channels) == (to.sample_rate_hz, to.channels);
    match law(from) && law(to) && is_alike && !is_changed(spec) {
        true => 1,
        false => 2,
    }
}

fn is_changed(spec: &StreamSpec) -> bool {
    spec.pipeline.is_some() || !spec.fallbacks.is_empty() || spec.loudness_target_lufs.is_some()
}

/// What the destination takes.
fn taken(spec: &StreamSpec) -> Result<PayloadMap, PayloadMapError> {
    let number = |codec: Codec| {
        let own = || codec.default_payload_type();
        spec.payload_type.unwrap_or_else(own)
    };
    let codecs: Vec<Codec> = match (spec.codec_out, spec.codec_in) {
        (Some(codec), _) | (None, CodecIn::Known(codec)) => vec![codec],
        (None, CodecIn::Auto) if spec.is_passthrough() => {
            return PayloadMap::any(spec.clock_rate_hz);
        }
        (None, CodecIn::Auto) => Codec::with_static_payload_types().collect(),
    };
    let audio = codecs
        .into_iter()
        .map(|codec| Payload::audio(number(codec), codec.format()));
    PayloadMap::to_send(&with_events(audio.collect(), spec))
}

fn with_events(mut payloads: Vec<Payload>, spec: &StreamSpec) -> Vec<Payload> {
    let clock_rate_hz = payloads.first().map_or(8000, |audio| audio.clock_rate_hz);
    let is_free = |number: u8, payloads: &[Payload]| {
        !payloads
            .iter()
            .any(|payload| payload.payload_type.0 == number)
    };
    if is_free(spec.dtmf_payload_type, &payloads) {
        payloads.push(Payload::telephone_event(
            spec.dtmf_payload_type,
            clock_rate_hz,
        ));
    }
    // RFC 3389, section 4: the static number is for 8000 Hz.
    if clock_rate_hz == 8000 && is_free(COMFORT_NOISE.0, &payloads) {
        payloads.push(Payload::comfort_noise(COMFORT_NOISE.0, clock_rate_hz));
    }
    payloads
}

/// Of a telephone call, with its headers: RTCP takes 5 % of it.
const BANDWIDTH_BPS: u64 = 80_000;
/// The shortest usual packet time, ms.
const SHORTEST_MS: u64 = 10;
/// For bursts.
const SPARE_PACKETS: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A recording has room for so many bytes: too few would lose audio, which is told as missed.
    #[test]
    fn codes_of_g711_that_go_on_take_a_byte_and_what_is_made_anew_takes_two() {
        for (settings, due) in [
            ("codec = \"PCMU\"", 1),
            ("codec = \"PCMA\"", 1),
            ("codec = \"PCMU\"\ncodec-out = \"PCMA\"", 1),
            ("codec = \"PCMU\"\ncodec-out = \"L16/8000/1\"", 2),
            (
                "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nloudness-target = -23.0",
                2,
            ),
            ("codec = \"L16/48000/2\"", 2),
            ("codec = \"G722\"", 2),
            ("codec = \"auto\"", 2),
        ] {
            let text = format!(
                "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\n{settings}\n"
            );
            let config = Config::from_toml("gateway.toml", &text).expect(settings);
            assert_eq!(recorded_sample_bytes(&config.streams[0]), due, "{settings}");
        }
    }
}
