//! The data of streams for observers and recordings.

use std::net::SocketAddr;

use threadbare_config::codec::{Codec, CodecIn};
use threadbare_config::{Destination, Rtcp, StreamSpec};
use threadbare_recording::{Coding, Source};
use threadbare_relay::{HEAD_BYTES, SharedSnapshot};
use threadbare_rtp::codec::Encoding;
use threadbare_watch::{Watched, Way};

use crate::lines::{recorded_format, recorded_sample_bytes};

/// Returns the data of a stream that observers see. It does not run yet.
pub(super) fn watched(spec: &StreamSpec) -> Watched {
    let inputs = (0..=spec.fallbacks.len()).map(|input| spec.input_name(input));
    Watched {
        name: spec.name.as_str().into(),
        target_lufs: spec.loudness_target_lufs,
        inputs: inputs.collect(),
        resets: spec.loudness_resets.as_slice().into(),
        way: way(spec).into(),
        stopped: Some("the stream is about to start".into()),
        snapshot: SharedSnapshot::default(),
        session: None,
    }
}

/// Returns the source of a recording of a stream's audio.
pub(super) fn audio_source(spec: &StreamSpec, snapshot: &SharedSnapshot) -> Source {
    let format = recorded_format(spec);
    let (rate_hz, channels) = (format.sample_rate_hz, format.channels);
    let second = rate_hz as usize * usize::from(channels);
    let second = second * recorded_sample_bytes(spec) + PORTIONS_PER_S * HEAD_BYTES;
    Source::Audio {
        listening: snapshot.listen_with_room(RECORDED_S_MAX * second),
        rate_hz,
        sides: 1,
        channels,
        law: match format.encoding {
            Encoding::Pcma => Coding::ALaw,
            _ => Coding::ULaw,
        },
    }
}

/// Returns the source and the destination of a stream, for observers.
fn way(spec: &StreamSpec) -> Way {
    let codec_in = match spec.codec_in {
        CodecIn::Known(codec) => Some(codec),
        CodecIn::Auto => None,
    };
    let codec_out = spec.codec_out.or(codec_in);
    let is_heard = spec.destination != Destination::Nobody;
    let of_any = spec.clock_rate_hz.filter(|_| spec.is_passthrough());
    let listen_rtcp = match spec.rtcp {
        Rtcp::Off => None,
        Rtcp::Mux => Some(spec.listen),
        Rtcp::Ports { .. } => spec
            .rtcp_port()
            .map(|port| SocketAddr::new(spec.listen.ip(), port)),
    };
    Way {
        listen: spec.listen,
        listen_rtcp,
        destination: spec.destination.to_string(),
        codec_in: spec.codec_in.to_string(),
        codec_out: is_heard.then(|| match codec_out {
            Some(codec) => codec.to_string(),
            None => spec.codec_in.to_string(),
        }),
        clock_rate_out_hz: codec_out.map(Codec::clock_rate_hz).or(of_any),
        is_decoded: codec_in.is_some() || !spec.is_passthrough(),
    }
}

/// Maximum duration of the audio that waits for the recorder, in seconds. It must cover the pauses of a disk.
const RECORDED_S_MAX: usize = 4;
/// Number of portions of audio per second of a stream. A portion contains several packets (see
/// [`Listeners::listen`](threadbare_relay::Listeners::listen)).
const PORTIONS_PER_S: usize = 8;
