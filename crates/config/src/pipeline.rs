//! Checks a stream's `pipeline`.

use toml::Spanned;

use super::Destination;
use super::checker::Checker;
use super::media::Media;
use super::raw::{RawDefaults, RawStream};
use crate::codec::CodecIn;
use threadbare_process::{HAS_GSTREAMER, NO_GSTREAMER};

/// Checks `pipeline`. If the configuration is checked for a machine, GStreamer checks the elements.
pub(super) fn check(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>) -> Option<String> {
    let text = raw?.get_ref();
    let refusal = match checker.machine {
        _ if !HAS_GSTREAMER => Some(format!("none: {NO_GSTREAMER}")),
        _ if text.trim().is_empty() => Some("elements as for gst-launch-1.0".to_owned()),
        Some(machine) => machine.check_pipeline(text).err(),
        None => None,
    };
    if let Some(refusal) = refusal {
        let allowed = if HAS_GSTREAMER {
            format!("elements that GStreamer has, with one sink pad and one source pad; {refusal}")
        } else {
            refusal
        };
        checker.refuse(raw, "pipeline", &allowed);
    }
    Some(text.clone())
}

/// Refuses a `pipeline` for a stream that is not decoded, or together with settings that the elements replace.
pub(super) fn goes_with(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    defaults: &RawDefaults,
    media: &Media,
    destination: Option<&Destination>,
) {
    let key = raw.pipeline.as_ref();
    if destination == Some(&Destination::Nobody) {
        let help = "add a `destination`, or remove `pipeline`";
        checker.conflict(key, "pipeline", "a stream without `destination`", help);
    } else if (media.codec_in, media.codec_out) == (CodecIn::Auto, None)
        && !raw.is_partial
        && !defaults.is_partial
    {
        let help = "the elements get audio with the sent codec's rate and channels: set `codec-out`, or `codec`";
        let with = "`codec = \"auto\"` and no `codec-out`";
        checker.conflict(key, "pipeline", with, help);
    }
    if media.loudness_target_lufs.is_some() {
        let help = "set `loudness-target = false`, and add `audioloudnorm loudness-target=-23` to the `pipeline`";
        checker.conflict(key, "pipeline", "`loudness-target`", help);
    }
}
