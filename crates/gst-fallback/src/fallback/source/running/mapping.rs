//! Selects the stream of a fallback for each output. If there are several, the application decides by the signal `map-streams`.

use gst::glib;
use gst::prelude::*;

use super::{FallbackSrc, Kind, Running, Stream, Streams};
use crate::kit::lock;

/// A stream of a source, as the application knows it.
#[derive(Clone)]
pub(super) struct Offer {
    kind: Kind,
    pad: gst::Pad,
}

impl Offer {
    fn id(&self) -> String {
        let id = self.pad.stream_id();
        id.map_or_else(|| self.pad.name().to_string(), String::from)
    }

    fn stream(&self) -> gst::Stream {
        let kind = match self.kind {
            Kind::Audio => gst::StreamType::AUDIO,
            Kind::Video => gst::StreamType::VIDEO,
        };
        let caps = self.pad.current_caps();
        let (id, flags) = (self.id(), gst::StreamFlags::empty());
        let stream = gst::Stream::new(Some(&id), caps.as_ref(), kind, flags);
        let tags = self.pad.sticky_event::<gst::event::Tag>(0);
        stream.set_tags(tags.map(|event| event.tag_owned()).as_ref());
        stream
    }
}

impl Running {
    /// Returns all streams and the default selection, but only once, and only if the application must be asked. All streams have
    /// arrived and are held.
    pub(super) fn streams_to_map(&self) -> Option<(Vec<Offer>, Vec<Offer>)> {
        let mut streams = lock(&self.streams);
        let offer = |stream: &Stream| Offer {
            kind: stream.kind,
            pad: stream.pad.clone(),
        };
        let both = || streams.list.iter().chain(&streams.extras);
        let all_wait = both().all(|stream| stream.first_item.is_some());
        if streams.is_mapped || streams.awaited > 0 || !all_wait {
            return None;
        }
        let all = both().map(offer).collect();
        let first = streams.list.iter().map(offer).collect();
        streams.is_mapped = true;
        Some((all, first))
    }

    /// Asks the application to select streams. All streams are held.
    pub(super) fn map(&self, element: &FallbackSrc, all: &[Offer], first: &[Offer]) {
        let main = element.slots().first().and_then(|slot| slot.running());
        let main = main.map(|main| main.offers());
        let chosen = choose(element, main.as_deref(), all, first);
        for new in chosen {
            let old = first.iter().find(|old| old.kind == new.kind);
            if let Some(old) = old.filter(|old| old.pad != new.pad)
                && let Err(error) = self.exchange(&old.pad, &new.pad)
            {
                gst::warning!(
                    crate::kit::CAT,
                    obj = element,
                    "{}: {error}",
                    new.pad.name()
                );
            }
        }
        let mut streams = lock(&self.streams);
        for mut extra in std::mem::take(&mut streams.extras) {
            extra.unblock();
        }
        if streams.is_live {
            streams.unblock();
        }
    }

    fn offers(&self) -> Vec<Offer> {
        let streams = lock(&self.streams);
        let offer = |stream: &Stream| Offer {
            kind: stream.kind,
            pad: stream.pad.clone(),
        };
        streams.list.iter().map(offer).collect()
    }

    /// Replaces a selected stream with another one. Both streams are held.
    fn exchange(&self, old: &gst::Pad, new: &gst::Pad) -> Result<(), glib::BoolError> {
        let (to_output, to_nothing) = (old.peer(), new.peer());
        let (Some(to_output), Some(to_nothing)) = (to_output, to_nothing) else {
            return Err(glib::bool_error!("the pad is not linked"));
        };
        old.unlink(&to_output)?;
        new.unlink(&to_nothing)?;
        for (pad, peer) in [(new, &to_output), (old, &to_nothing)] {
            let linked = pad.link(peer);
            linked.map_err(|error| glib::bool_error!("cannot link the elements: {error}"))?;
        }
        let mut streams = lock(&self.streams);
        let Streams { list, extras, .. } = &mut *streams;
        let passing = list.iter_mut().find(|stream| stream.pad == *old);
        let extra = extras.iter_mut().find(|stream| stream.pad == *new);
        if let Some((passing, extra)) = passing.zip(extra) {
            std::mem::swap(&mut passing.pad, &mut extra.pad);
            std::mem::swap(&mut passing.block, &mut extra.block);
            std::mem::swap(&mut passing.first_item, &mut extra.first_item);
        }
        Ok(())
    }
}

/// Whether an application selects streams.
pub(super) fn is_wanted(element: &FallbackSrc) -> bool {
    let signal = glib::subclass::SignalId::lookup(MAP_STREAMS, element.type_());
    signal
        .is_some_and(|signal| glib::signal::signal_has_handler_pending(element, signal, None, true))
}

/// Asks the application. Returns the stream of the fallback for each output that has one. `first` are the default streams.
fn choose(
    element: &FallbackSrc,
    main: Option<&[Offer]>,
    fallback: &[Offer],
    first: &[Offer],
) -> Vec<Offer> {
    let of_main = |kind: Kind| main?.iter().find(|offer| offer.kind == kind);
    let of_first = |kind: Kind| first.iter().find(|offer| offer.kind == kind);
    let outputs = element.outputs();
    let kinds: Vec<Kind> = outputs.iter().map(|output| output.kind()).collect();
    let mut map = gst::Structure::builder("fallbacksrc-stream-map");
    for kind in &kinds {
        let bound = gst::Structure::builder("bound-streams")
            .field("main", of_main(*kind).map(Offer::id))
            .field("fallback", of_first(*kind).map(Offer::id))
            .build();
        map = map.field(output_name(*kind), bound);
    }
    let map = map.build();
    let collections = [main, Some(fallback)].map(|offers| offers.map(collection));
    let [of_main, of_fallback] = &collections;
    let answer =
        element.emit_by_name::<Option<gst::Structure>>(MAP_STREAMS, &[&map, of_main, of_fallback]);
    let chosen = |kind: &Kind| {
        let usual = || of_first(*kind).cloned();
        let Some(answer) = &answer else {
            return usual();
        };
        match chosen(&map, answer, *kind, fallback) {
            Ok(Some(offer)) => Some(offer),
            Ok(None) => usual(),
            Err(text) => {
                gst::warning!(crate::kit::CAT, obj = element, "map-streams: {text}");
                usual()
            }
        }
    };
    kinds.iter().filter_map(chosen).collect()
}

/// Returns the stream that the answer selects for an output, if any.
fn chosen(
    asked: &gst::Structure,
    answer: &gst::Structure,
    kind: Kind,
    fallback: &[Offer],
) -> Result<Option<Offer>, String> {
    let name = output_name(kind);
    let entry = |map: &gst::Structure| map.get::<gst::Structure>(name);
    let (before, after) = match (entry(asked), entry(answer)) {
        (Ok(before), Ok(after)) => (before, after),
        _ => return Err(format!("the returned map has no entry {name}")),
    };
    let text =
        |entry: &gst::Structure, field: &str| entry.get::<Option<String>>(field).ok().flatten();
    if text(&before, "main") != text(&after, "main") {
        return Err(format!(
            "the stream of the main source for {name} cannot be changed"
        ));
    }
    let Some(id) = text(&after, "fallback") else {
        return Ok(None);
    };
    let of_kind = fallback.iter().filter(|offer| offer.kind == kind);
    let found = of_kind.into_iter().find(|offer| offer.id() == id);
    let found = found.ok_or_else(|| format!("{id} is not a stream of the fallback for {name}"))?;
    Ok(Some(found.clone()))
}

fn collection(offers: &[Offer]) -> gst::StreamCollection {
    let streams = offers.iter().map(Offer::stream);
    gst::StreamCollection::builder(None)
        .streams(streams)
        .build()
}

/// Returns the name of the output, from its pad.
fn output_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Audio => "audio_0",
        Kind::Video => "video_0",
    }
}

pub(in super::super) const MAP_STREAMS: &str = "map-streams";
