//! Converts the settings of a stream to those of a line of the relay: legs, payload types and direction.

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

use threadbare_config::codec::{Codec, CodecIn};
use threadbare_config::{ClockSkew, Destination, InputSpec, Rtcp, StreamSpec};

/// Settings that all streams of a process have in common.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) cname: Arc<str>,
    /// The wall-clock time at which CLOCK_MONOTONIC is 0.
    pub(super) ntp_at_zero: NtpTime,
    /// Number of the stream's owner in the cluster. `None`: the stream does not belong to a cluster.
    pub(super) epoch: Option<u64>,
}

impl Common {
    pub(super) fn of_owner(&self, epoch: Option<u64>) -> Common {
        Common {
            epoch,
            ..self.clone()
        }
    }

    /// Returns the CNAME of a stream. It contains the owner's number, so that two simultaneous owners can be noticed.
    fn cname_of(&self, spec: &StreamSpec) -> Arc<str> {
        let name = spec.cname.as_deref().unwrap_or(&self.cname);
        match self.epoch {
            Some(epoch) => format!("{name}.{epoch}").into(),
            None => name.into(),
        }
    }
}

/// Returns the legs of a stream, and the direction between them. `to` is the address of the destination. `None`: the destination is the
/// sender.
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
            if spec.is_passthrough() {
                Target::Verbatim(other)
            } else {
                Target::Other(other)
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

/// Returns the fallbacks of a stream. `clips` contains the files of the fallbacks that are files, in the order of these fallbacks.
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

/// Returns the settings that both legs have in common.
fn leg(
    spec: &StreamSpec,
    common: &Common,
    payloads: Arc<PayloadMap>,
    random: &mut impl FnMut() -> u64,
) -> LegConfig {
    LegConfig {
        ssrc: Ssrc(0),
        first_seq: first_seq(spec, random()),
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

/// Returns the first sequence number. With SRTP, it is below 2^15, because a receiver that misses the packets before a wrap cannot
/// detect the wrap (RFC 3711, section 3.3.1).
fn first_seq(spec: &StreamSpec, random: u64) -> SeqNum {
    let encrypts = spec.srtp.output.is_some();
    SeqNum(random as u16 & if encrypts { 0x7fff } else { 0xffff })
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

/// Returns the payload types that the sender uses: those of the codec, of telephone events and of comfort noise.
fn sent(spec: &StreamSpec) -> Result<PayloadMap, PayloadMapError> {
    let audio: Vec<Payload> = match spec.codec_in {
        // Nothing is decoded, so any payload type with the configured clock rate is accepted. Without such a clock rate, the static payload
        // types are accepted.
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

/// Returns the format of the output. It is known because the configuration has been checked.
pub(super) fn heard_by(spec: &StreamSpec) -> Format {
    let codec = match (spec.codec_out, spec.codec_in) {
        (Some(codec), _) | (None, CodecIn::Known(codec)) => codec,
        (None, CodecIn::Auto) => Codec::Pcmu,
    };
    codec.format()
}

/// Returns the format of a recording of the stream.
pub fn recorded_format(spec: &StreamSpec) -> Format {
    match spec.codec_in {
        CodecIn::Known(codec) if !is_changed(spec) => codec.format(),
        _ => heard_by(spec),
    }
}

/// Returns the number of bytes of a recorded sample. It is one if G.711 is forwarded unchanged or converted to the other law, else two.
pub fn recorded_sample_bytes(spec: &StreamSpec) -> usize {
    let CodecIn::Known(codec) = spec.codec_in else {
        return 2;
    };
    let law = |format: Format| matches!(format.encoding, Encoding::Pcmu | Encoding::Pcma);
    let (from, to) = (codec.format(), heard_by(spec));
    let is_alike = (from.sample_rate_hz, from.channels) == (to.sample_rate_hz, to.channels);
    if law(from) && law(to) && is_alike && !is_changed(spec) {
        1
    } else {
        2
    }
}

fn is_changed(spec: &StreamSpec) -> bool {
    spec.pipeline.is_some() || !spec.fallbacks.is_empty() || spec.loudness_target_lufs.is_some()
}

/// Returns the payload types that the destination accepts.
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
    // The static payload type of comfort noise is only for 8000 Hz (RFC 3389, section 4).
    if clock_rate_hz == 8000 && is_free(COMFORT_NOISE.0, &payloads) {
        payloads.push(Payload::comfort_noise(COMFORT_NOISE.0, clock_rate_hz));
    }
    payloads
}

/// Bandwidth of a telephone call with headers. RTCP gets 5 % of this bandwidth.
const BANDWIDTH_BPS: u64 = 80_000;
/// The shortest common packet time in ms.
const SHORTEST_MS: u64 = 10;
/// Number of packets for bursts, in addition to those of the latency.
const SPARE_PACKETS: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use threadbare_config::Config;

    /// The size of a recording's buffer depends on this number of bytes. If it were too low, audio would be lost.
    #[test]
    fn forwarded_g711_takes_one_byte_and_decoded_audio_two() {
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
