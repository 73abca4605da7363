//! Checks a stream's fallbacks: `[[stream.fallback]]`.

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use threadbare_rtp::tone::Tone;
use toml::Spanned;

use super::checker::{Checker, Use};
use super::media::Media;
use super::raw::{RawDefaults, RawFallback, RawStream};
use super::{Destination, FallbackSpec, InputSpec, SrtpSpec, StreamSpec};
use super::{route, srtp};
use crate::codec::{ALLOWED_CODECS, CodecIn};

/// The settings of a stream on which its fallbacks depend.
pub(super) struct Inputs<'a> {
    pub(super) media: &'a Media,
    pub(super) srtp: &'a SrtpSpec,
    pub(super) destination: Option<&'a Destination>,
    pub(super) wait_ms: u32,
}

/// Checks the fallbacks of a stream. The result for a range of streams is for the first stream.
pub(super) fn check(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    defaults: &RawDefaults,
    stream: &Inputs<'_>,
) -> Vec<FallbackSpec> {
    let Inputs {
        media,
        destination,
        wait_ms,
        ..
    } = *stream;
    let Some(first) = raw.fallback.first() else {
        return Vec::new();
    };
    let is_partial = raw.is_partial || defaults.is_partial;
    let place = [(first.span(), "this fallback")];
    if destination == Some(&Destination::Nobody) {
        checker.problems.add(
            "`fallback` cannot be combined with a stream without `destination`",
            "nothing of the stream is sent: add a `destination`, or remove the fallback",
            &place,
        );
    } else if (media.codec_in, media.codec_out) == (CodecIn::Auto, None) && !is_partial {
        checker.problems.add(
            "`fallback` cannot be combined with `codec = \"auto\"` and no `codec-out`",
            "the output needs one codec for all inputs: set `codec-out`, or `codec`",
            &place,
        );
    }
    let mut all: Vec<FallbackSpec> = Vec::new();
    for raw in &raw.fallback {
        let ends = |before: &FallbackSpec| !matches!(before.input, InputSpec::Rtp { .. });
        if all.last().is_some_and(ends) {
            checker.problems.add(
                "this fallback is never reached",
                "the fallback before it needs no sender, so it never fails: move this one before it, or remove this one",
                &[(raw.span(), "this fallback")],
            );
            break;
        }
        let Some(input) = input(checker, raw, stream) else {
            continue;
        };
        let raw = raw.get_ref();
        let timeout_ms = checker.number(raw.timeout.as_ref(), "timeout", TIMEOUT_MS);
        let recover = checker.number(raw.recover_after.as_ref(), "recover-after", RECOVER_MS);
        let fallback = FallbackSpec {
            input,
            timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT) as u32,
            recover_after_ms: recover.unwrap_or(RECOVER_MS_DEFAULT) as u32,
        };
        if fallback.timeout_ms < 2 * wait_ms {
            let with = format!("`wait = {wait_ms}`");
            let help = "a context handles packets once per slice, so set a time-out of at least two slices (`wait` of [contexts])";
            checker.conflict(raw.timeout.as_ref(), "timeout", &with, help);
        }
        all.push(fallback);
    }
    let is_rtp = |fallback: &&FallbackSpec| matches!(fallback.input, InputSpec::Rtp { .. });
    if all.iter().filter(is_rtp).count() > SENDERS_MAX {
        checker.problems.add(
            format!("more than {SENDERS_MAX} fallbacks with `listen`"),
            &format!("use at most {SENDERS_MAX} of them, and then a `tone`, `silence` or a `file`"),
            &place,
        );
    }
    all
}

/// Checks the input of a fallback. Exactly one of four keys must select it.
fn input(
    checker: &mut Checker<'_>,
    raw: &Spanned<RawFallback>,
    stream: &Inputs<'_>,
) -> Option<InputSpec> {
    let place = raw.span();
    let raw = raw.get_ref();
    let inputs: Vec<(&str, Range<usize>)> = [
        ("listen", raw.listen.as_ref().map(Spanned::span)),
        ("tone", raw.tone.as_ref().map(Spanned::span)),
        ("silence", raw.silence.as_ref().map(Spanned::span)),
        ("file", raw.file.as_ref().map(Spanned::span)),
    ]
    .into_iter()
    .filter_map(|(key, place)| Some((key, place?)))
    .collect();
    let [(key, _)] = &inputs[..] else {
        if !raw.is_partial {
            let help = "a fallback has one of `listen = \"ADDRESS:PORT\"`, `tone = 440`, `silence = true`, `file = \"x.wav\"`";
            let message = if inputs.is_empty() {
                "a fallback without an input".to_owned()
            } else {
                format!("`{}` and `{}` in one fallback", inputs[0].0, inputs[1].0)
            };
            let places: Vec<_> = inputs.into_iter().map(|(_, at)| (at, "this key")).collect();
            if places.is_empty() {
                checker
                    .problems
                    .add(message, help, &[(place, "this fallback")])
            } else {
                checker.problems.add(message, help, &places)
            }
        }
        return None;
    };
    if *key != "listen" {
        let with = format!("`{key}`, which is not RTP");
        let help = "remove this key: only a fallback with `listen` has a codec";
        checker.conflict(raw.codec.as_ref(), "codec", &with, help);
        let number = raw.payload_type_in.as_ref();
        checker.conflict(number, "payload-type-in", &with, help);
        for (name, key) in [
            ("srtp-in-key-file", &raw.srtp_in_key_file),
            ("srtp-in-key-env", &raw.srtp_in_key_env),
        ] {
            let help = "remove it: only a fallback with `listen` has a key";
            checker.conflict(key.as_ref(), name, &with, help);
        }
    }
    match *key {
        "listen" => rtp_input(checker, raw, stream),
        "tone" => tone(checker, raw.tone.as_ref()?).map(InputSpec::Tone),
        "silence" => {
            let silence = raw.silence.as_ref()?;
            if !*silence.get_ref() {
                checker.refuse(Some(silence), "silence", "true");
            }
            Some(InputSpec::Silence)
        }
        _ => Some(InputSpec::File(file(checker, raw.file.as_ref()?))),
    }
}

fn rtp_input(
    checker: &mut Checker<'_>,
    raw: &RawFallback,
    stream: &Inputs<'_>,
) -> Option<InputSpec> {
    let media = stream.media;
    let listen = checker.listen(raw.listen.as_ref()?)?;
    let codec_in = match &raw.codec {
        None => media.codec_in,
        Some(name) if name.get_ref().eq_ignore_ascii_case("auto") => CodecIn::Auto,
        Some(name) => checker
            .codec(name, "codec", &format!("auto, {ALLOWED_CODECS}"))
            .map_or(CodecIn::Auto, CodecIn::Known),
    };
    let named = raw.payload_type_in.as_ref();
    let payload_type_in = match (named, &raw.codec) {
        // Without keys, the fallback has the codec and payload type of the stream's own sender.
        (None, None) => media.payload_type_in,
        (named, _) => checker.payload_type_in(named, codec_in, media.dtmf_payload_type),
    };
    Some(InputSpec::Rtp {
        listen,
        codec_in,
        payload_type_in,
        srtp: srtp::of_fallback(checker, raw, stream.srtp),
    })
}

/// Checks a tone.
pub(super) fn tone(checker: &mut Checker<'_>, raw: &Spanned<toml::Value>) -> Option<Box<Tone>> {
    let text = match raw.get_ref() {
        toml::Value::Integer(hz) => hz.to_string(),
        toml::Value::Float(hz) => hz.to_string(),
        toml::Value::String(text) => text.clone(),
        _ => String::new(),
    };
    match text.parse::<Tone>() {
        Ok(tone) => Some(Box::new(tone)),
        Err(error) => {
            let allowed = format!(
                "a number of hertz from 20 to 3900, or parts with their lengths in ms, such as \"440+480/2000,0/4000\"; {error}"
            );
            checker.refuse(Some(raw), "tone", &allowed);
            None
        }
    }
}

/// Checks the name of an audio file.
pub(super) fn file(checker: &mut Checker<'_>, raw: &Spanned<String>) -> PathBuf {
    let path = PathBuf::from(raw.get_ref());
    if let Some(machine) = checker.machine
        && let Err(reason) = machine.read_audio(&path)
    {
        let allowed = format!("a WAV file; {reason}");
        checker.refuse(Some(raw), "file", &allowed);
    }
    path
}

/// Refuses ports of fallbacks that another stream uses, and addresses that this machine does not have.
pub(super) fn are_new(checker: &mut Checker<'_>, spec: &StreamSpec, raw: &RawStream) -> bool {
    for (fallback, raw) in spec.fallbacks.iter().zip(&raw.fallback) {
        let (InputSpec::Rtp { listen, .. }, Some(key)) = (&fallback.input, &raw.get_ref().listen)
        else {
            continue;
        };
        let (listen, place) = (*listen, key.span());
        let rtcp = spec.rtcp_port_of(listen);
        let is_free = checker.take_port(spec, listen, Use::Rtp, place.clone())
            && rtcp.is_none_or(|rtcp| checker.take_port(spec, rtcp, Use::Rtcp, place));
        if !is_free {
            return false;
        }
        route::machine_has(checker, key, listen);
    }
    true
}

impl FallbackSpec {
    /// Returns the fallback of a later stream in the range. Its ports are higher by `ahead`.
    pub(super) fn ahead(&self, ahead: u16) -> FallbackSpec {
        let mut moved = self.clone();
        if let InputSpec::Rtp { listen, .. } = &mut moved.input {
            *listen = SocketAddr::new(listen.ip(), listen.port() + ahead);
        }
        moved
    }
}

/// Default of `timeout` in ms. A sender of telephony may pause for longer, but in that case it sends comfort noise.
const TIMEOUT_MS_DEFAULT: i64 = 500;
const TIMEOUT_MS: RangeInclusive<i64> = 20..=3_600_000;
const RECOVER_MS_DEFAULT: i64 = 2000;
const RECOVER_MS: RangeInclusive<i64> = 0..=3_600_000;
/// Maximum number of fallbacks with a sender. Each of them needs a leg, and so does the stream's own sender.
const SENDERS_MAX: usize = threadbare_relay::LEGS_MAX - 1;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use crate::{Config, InputSpec, KeySource, Machine, Rtcp};

    /// A machine that has every address and one file.
    struct Somewhere;

    impl Machine for Somewhere {
        fn has_address(&self, ip: IpAddr) -> bool {
            ip != IpAddr::from([192, 0, 2, 66])
        }

        fn resolve(&self, _host: &str) -> Result<Vec<IpAddr>, String> {
            Ok(vec![IpAddr::from([192, 0, 2, 9])])
        }

        fn check_pipeline(&self, _text: &str) -> Result<(), String> {
            Ok(())
        }

        fn read_key(&self, _source: &KeySource) -> Result<(), String> {
            Ok(())
        }

        fn read_audio(&self, path: &Path) -> Result<(), String> {
            if path == Path::new("there.wav") {
                Ok(())
            } else {
                Err(format!("{}: not there", path.display()))
            }
        }

        fn may_write(&self, _: &Path) -> Result<(), String> {
            Ok(())
        }

        fn has_device(&self, _: &str) -> bool {
            false
        }

        fn has_folder(&self, _path: &Path) -> bool {
            true
        }
    }

    const STREAM: &str =
        "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"127.0.0.1:7000\"\n";
    const PCMU: &str = "codec = \"PCMU\"\n";

    /// Returns the messages about a stream with these keys and fallbacks.
    fn said(keys: &str, fallbacks: &[&str]) -> String {
        let fallbacks = fallbacks
            .iter()
            .map(|one| format!("[[stream.fallback]]\n{one}\n"));
        let text = format!("{STREAM}{keys}{}", fallbacks.collect::<String>());
        match Config::from_toml_for("test", &text, &Somewhere) {
            Ok(_) => String::new(),
            Err(error) => {
                let said = format!("{:?}", miette::Report::new(error));
                said.split_whitespace().collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn invalid_fallbacks_are_refused_with_the_allowed_values() {
        let rtp = "listen = \"127.0.0.1:6010\"";
        let many: Vec<String> = (0..4)
            .map(|n| format!("listen = \"127.0.0.1:{}\"", 6010 + 2 * n))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let cases: &[(&str, &[&str], &[&str])] = &[
            (PCMU, &[""], &["a fallback without an input", "tone = 440"]),
            (
                PCMU,
                &["tone = 440\nsilence = true"],
                &["`tone` and `silence` in one fallback"],
            ),
            (PCMU, &["tone = 12"], &["`tone` cannot be 12", "20 to 3900"]),
            (PCMU, &["tone = true"], &["`tone` cannot be true"]),
            (PCMU, &["silence = false"], &["`silence` cannot be false"]),
            (
                PCMU,
                &["file = \"gone.wav\""],
                &["`file` cannot be \"gone.wav\"", "not there"],
            ),
            (
                PCMU,
                &["listen = \"here\""],
                &["`listen` cannot be \"here\""],
            ),
            (
                PCMU,
                &["listen = \"192.0.2.66:6010\""],
                &["`listen` cannot be", "an address of this machine"],
            ),
            (
                PCMU,
                &["listen = \"127.0.0.1:6000\""],
                &["port 6000 is taken"],
            ),
            // The port is that of the stream's RTCP.
            (
                PCMU,
                &["listen = \"127.0.0.1:6001\""],
                &["port 6001 is taken"],
            ),
            (PCMU, &["listen = \"127.0.0.1:7000\""], &["in a circle"]),
            (
                PCMU,
                &["tone = 440\ntimeout = 10"],
                &["`timeout` cannot be 10", "20 to 3600000"],
            ),
            (
                PCMU,
                &["tone = 440\ntimeout = 30"],
                &["`timeout = 30` cannot be combined with `wait = 20`"],
            ),
            (
                PCMU,
                &["tone = 440\nrecover-after = -1"],
                &["`recover-after` cannot be -1"],
            ),
            (
                PCMU,
                &["tone = 440\ncodec = \"PCMU\""],
                &["`codec = \"PCMU\"` cannot be combined with `tone`"],
            ),
            (PCMU, &["tone = 440", rtp], &["never reached"]),
            (
                PCMU,
                &["colour = 1\ntone = 440"],
                &["`colour` is not a key of [[stream.fallback]]"],
            ),
            (PCMU, &many, &["more than 3 fallbacks with `listen`"]),
            (
                "",
                &["tone = 440"],
                &["`codec = \"auto\"` and no `codec-out`", "needs one codec"],
            ),
        ];
        for (keys, fallbacks, says) in cases {
            let said = said(keys, fallbacks);
            for words in *says {
                assert!(
                    said.contains(words),
                    "no {words:?} in {said:?} of {fallbacks:?}"
                );
            }
        }
        assert_eq!(said(PCMU, &[rtp, "file = \"there.wav\""]), "");
        let watched = "[[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:6100\"\ncodec = \"PCMU\"\n";
        let said = said(&format!("{PCMU}{watched}"), &["tone = 440"]);
        assert!(said.contains("without `destination`"), "{said}");
    }

    #[test]
    fn fallbacks_have_the_documented_defaults_and_follow_the_step_of_their_stream() {
        let text = format!(
            "{STREAM}count = 2\nstep = 4\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\npayload-type-in = 97\n\
             [[stream.fallback]]\nlisten = \"127.0.0.1:6500\"\n\
             [[stream.fallback]]\nlisten = \"127.0.0.1:6600\"\ncodec = \"Opus\"\npayload-type-in = 111\n\
             [[stream.fallback]]\ntone = \"440+480/2000,0/4000\"\ntimeout = 250\nrecover-after = 0\n"
        );
        let config = Config::from_toml("test", &text).expect("good");
        let brief = |stream: usize| -> Vec<String> {
            let all = config.streams[stream].fallbacks.iter();
            all.map(|fallback| {
                let codec = match &fallback.input {
                    InputSpec::Rtp {
                        codec_in,
                        payload_type_in,
                        ..
                    } => format!(" {codec_in} {payload_type_in:?}"),
                    _ => String::new(),
                };
                let times = [fallback.timeout_ms, fallback.recover_after_ms];
                format!("{}{codec} {times:?}", fallback.input)
            })
            .collect()
        };
        let tone = "tone 440+480/2000,0/4000 [250, 0]".to_owned();
        let both = |ports: [u16; 2]| {
            [
                format!("127.0.0.1:{} PCMU Some(97) [500, 2000]", ports[0]),
                format!("127.0.0.1:{} Opus Some(111) [500, 2000]", ports[1]),
                tone.clone(),
            ]
        };
        assert_eq!(brief(0), both([6500, 6600]));
        assert_eq!(brief(1), both([6504, 6604]));
        let stream = &config.streams[1];
        assert!(matches!(stream.rtcp, Rtcp::Ports { .. }) && !stream.is_passthrough());
        assert_eq!(stream.input_name(0), "main");
        assert_eq!(stream.input_name(1), "fallback 1: 127.0.0.1:6504");
        let again = Config::from_toml("printed", &config.to_toml()).expect("good");
        assert_eq!(again, config);
    }
}
