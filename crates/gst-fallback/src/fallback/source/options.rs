//! Values of the properties of `fallbacksrc`.

use gst::prelude::*;

use super::core::{Kind, Settings};

/// Options; times in ns.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) core: Settings,
    pub(super) uri: Option<String>,
    pub(super) source: Option<gst::Element>,
    pub(super) fallback_uri: Option<String>,
    pub(super) fallback_source: Option<gst::Element>,
    /// URIs of the fallbacks after the first one, in this order.
    pub(super) fallback_uris: Vec<String>,
    pub(super) min_latency_ns: u64,
    pub(super) min_hold_ns: u64,
    pub(super) recover_after_ns: u64,
    /// Buffered duration; negative: the source's default.
    pub(super) buffer_duration_ns: i64,
    pub(super) has_audio: bool,
    pub(super) has_video: bool,
    /// Caps of the output; `None`: any.
    pub(super) audio_caps: Option<gst::Caps>,
    pub(super) video_caps: Option<gst::Caps>,
    /// Caps of the silence while no source delivers. `None` means those of the stream that passed before, or downstream's
    /// preference.
    pub(super) fill_audio_caps: Option<gst::Caps>,
    pub(super) fill_video_caps: Option<gst::Caps>,
    /// Whether a restarted file resumes at its last position.
    pub(super) resumes: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            core: Settings::default(),
            uri: None,
            source: None,
            fallback_uri: None,
            fallback_source: None,
            fallback_uris: Vec::new(),
            min_latency_ns: 0,
            min_hold_ns: 0,
            recover_after_ns: 0,
            buffer_duration_ns: -1,
            has_audio: true,
            has_video: true,
            audio_caps: None,
            video_caps: None,
            fill_audio_caps: None,
            fill_video_caps: None,
            resumes: false,
        }
    }
}

/// The origin of a source.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Uri(String),
    Element(gst::Element),
}

impl Origin {
    /// Returns a text for messages and statistics.
    pub(super) fn text(&self) -> String {
        match self {
            Origin::Uri(uri) => uri.clone(),
            Origin::Element(element) => element.name().to_string(),
        }
    }
}

impl Options {
    /// Returns the sources, in their order.
    ///
    /// # Errors
    /// Fails if the main source is missing, or if a place in the order has two sources.
    pub(super) fn origins(&self) -> Result<Vec<Origin>, gst::ErrorMessage> {
        let main = one_of(("uri", &self.uri), ("source", &self.source))?;
        let Some(main) = main else {
            return Err(gst::error_msg!(
                gst::ResourceError::Settings,
                ["uri and source are both unset: set one of them"]
            ));
        };
        let first = one_of(
            ("fallback-uri", &self.fallback_uri),
            ("fallback-source", &self.fallback_source),
        )?;
        let others = self.fallback_uris.iter().cloned().map(Origin::Uri);
        Ok([main].into_iter().chain(first).chain(others).collect())
    }

    /// Returns the kinds of the outputs.
    ///
    /// # Errors
    /// Fails if both kinds are disabled.
    pub(super) fn kinds(&self) -> Result<Vec<Kind>, gst::ErrorMessage> {
        let audio = self.has_audio.then_some(Kind::Audio);
        let video = self.has_video.then_some(Kind::Video);
        let kinds: Vec<Kind> = audio.into_iter().chain(video).collect();
        if kinds.is_empty() {
            return Err(gst::error_msg!(
                gst::ResourceError::Settings,
                ["enable-audio and enable-video are both false: set one of them"]
            ));
        }
        Ok(kinds)
    }

    /// Caps of the output of a kind; `None`: any.
    pub(super) fn caps(&self, kind: Kind) -> Option<&gst::Caps> {
        let caps = match kind {
            Kind::Audio => &self.audio_caps,
            Kind::Video => &self.video_caps,
        };
        caps.as_ref().filter(|caps| !caps.is_any())
    }

    /// Caps of the fill of a kind while no source delivers; `None`: chosen automatically.
    pub(super) fn fill_caps(&self, kind: Kind) -> Option<&gst::Caps> {
        let caps = match kind {
            Kind::Audio => &self.fill_audio_caps,
            Kind::Video => &self.fill_video_caps,
        };
        caps.as_ref().filter(|caps| !caps.is_any())
    }
}

fn one_of(
    (uri_name, uri): (&str, &Option<String>),
    (element_name, element): (&str, &Option<gst::Element>),
) -> Result<Option<Origin>, gst::ErrorMessage> {
    match (uri, element) {
        (Some(uri), Some(_)) => Err(gst::error_msg!(
            gst::ResourceError::Settings,
            ["{uri_name}={uri} and {element_name} are both set: set only one of them"]
        )),
        (Some(uri), None) => Ok(Some(Origin::Uri(uri.clone()))),
        (None, Some(element)) => Ok(Some(Origin::Element(element.clone()))),
        (None, None) => Ok(None),
    }
}
