//! An output of the element: a switch with a pad for each source, and silence or black after them.

use std::sync::Mutex;

use gst::glib;
use gst::prelude::*;

use super::FallbackSrc;
use super::core::{Kind, SourceId};
use super::options::Options;
use crate::fallback::fill::Fill;
use crate::fallback::switch::FallbackSwitch;
use crate::kit::context::ContextSettings;
use crate::kit::{PropertyGroup, lock};

impl Kind {
    pub(super) fn nick(self) -> &'static str {
        match self {
            Kind::Audio => "audio",
            Kind::Video => "video",
        }
    }
}

/// An output. `fillers` is locked while a filler changes its state; `pads` is never locked across an outgoing call.
pub(super) struct Output {
    kind: Kind,
    switch: FallbackSwitch,
    ghost: gst::GhostPad,
    /// The switch's pad of each source that may have a stream of this kind.
    pads: Mutex<Vec<Option<gst::Pad>>>,
    fillers: Mutex<Fillers>,
    context: ContextSettings,
    fill_caps: Option<gst::Caps>,
}

#[derive(Default)]
struct Fillers {
    /// Silence or black, which comes after all sources.
    last: Option<Filler>,
    /// Pictures that replace their sources.
    stills: Vec<Filler>,
    /// Whether new fillers must not be started any more.
    are_over: bool,
}

/// A source of the element itself, on a pad of the switch.
struct Filler {
    fill: gst::Element,
    pad: gst::Pad,
}

impl Output {
    /// Creates the output and adds it to the element.
    pub(super) fn new(
        element: &FallbackSrc,
        kind: Kind,
        sources: usize,
        options: &Options,
        context: &ContextSettings,
    ) -> Result<Output, glib::BoolError> {
        let switch: FallbackSwitch = glib::Object::builder()
            .property("name", format!("{}-switch", kind.nick()))
            .property("timeout", options.core.timeout_ns)
            .property("min-upstream-latency", options.min_latency_ns)
            .property("immediate-fallback", options.core.immediate_fallback)
            .property("min-hold", options.min_hold_ns)
            .property("recover-after", options.recover_after_ns)
            // Only an end of stream that must end the output reaches the switch.
            .property("stop-on-eos", true)
            .property("switch-on-eos", true)
            .property("seamless", true)
            .property("sync", false)
            .build();
        copy_context(context, &switch);
        // A source that restarts is unlinked, but that is not a failure. Failures are marked explicitly.
        switch.keep_unlinked();
        element.add(&switch)?;
        let of_switch = switch.static_pad("src").expect("it has one");
        let output = Output {
            kind,
            ghost: ghost_pad(element, kind, &of_switch)?,
            switch,
            pads: Mutex::new(vec![None; sources]),
            fillers: Mutex::default(),
            context: context_of_fill(element, kind, context),
            fill_caps: options.fill_caps(kind).cloned(),
        };
        for source in 0..sources {
            output.pad(element, source);
        }
        let weak = element.downgrade();
        output
            .switch
            .connect_notify(Some("active-pad"), move |switch, _| {
                if let Some(element) = weak.upgrade() {
                    let active = switch.property::<Option<gst::Pad>>("active-pad");
                    let active = active.and_then(|pad| source_of(&pad));
                    let active = active.filter(|source| *source < sources);
                    element.tell(|core, now_ns| core.handle_active(now_ns, kind, active));
                }
            });
        Ok(output)
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn switch(&self) -> &FallbackSwitch {
        &self.switch
    }

    /// Exposes the output to the application.
    pub(super) fn expose(&self, element: &FallbackSrc) -> Result<(), glib::BoolError> {
        self.ghost.set_active(true)?;
        element.add_pad(&self.ghost)
    }

    /// Returns the switch's pad for a source. Its priority is the source's place in the order.
    fn pad(&self, element: &FallbackSrc, source: SourceId) -> Option<gst::Pad> {
        if let Some(pad) = &lock(&self.pads)[source] {
            return Some(pad.clone());
        }
        let pad = self.switch.request_pad_simple(&format!("sink_{source}"))?;
        let (weak, kind) = (element.downgrade(), self.kind);
        pad.connect_notify(Some("is-healthy"), move |pad, _| {
            if let Some(element) = weak.upgrade() {
                element.note_health(kind, source, pad.property("is-healthy"));
            }
        });
        lock(&self.pads)[source] = Some(pad.clone());
        Some(pad)
    }

    pub(super) fn link(
        &self,
        element: &FallbackSrc,
        source: SourceId,
        src_pad: &gst::Pad,
    ) -> Result<(), gst::FlowError> {
        let pad = self.pad(element, source).ok_or(gst::FlowError::Error)?;
        let linked = src_pad.link(&pad);
        linked.map(|_| ()).map_err(|_| gst::FlowError::NotLinked)
    }

    /// Releases the pad of a source that has no stream of this kind, so that nothing waits for one.
    pub(super) fn release(&self, source: SourceId) {
        let pad = lock(&self.pads)[source].take();
        if let Some(pad) = pad {
            self.switch.release_request_pad(&pad);
        }
    }

    pub(super) fn mark_failed(&self, source: SourceId) {
        let pad = lock(&self.pads)[source].clone();
        if let Some(pad) = pad {
            self.switch.mark_failed(&pad);
        }
    }

    /// Notes that another stream of the source fails, or delivers again.
    pub(super) fn set_partner_health(&self, source: SourceId, is_healthy: bool) {
        let pad = lock(&self.pads)[source].clone();
        if let Some(pad) = pad {
            self.switch.set_partner_health(&pad, is_healthy);
        }
    }

    /// Starts or stops silence or black, as the core decides.
    pub(super) fn update_fill(&self, element: &FallbackSrc, sources: usize) {
        {
            let mut fillers = lock(&self.fillers);
            let is_wanted = element.shared().state().core.fills(self.kind);
            if is_wanted == fillers.last.is_some() || fillers.are_over {
                return;
            }
            match fillers.last.take() {
                Some(filler) => {
                    let pad = filler.pad.clone();
                    filler.take_down(element);
                    self.switch.release_request_pad(&pad);
                }
                None => {
                    let caps = self.caps_for_fill();
                    let fill = match self.kind {
                        Kind::Audio => Fill::silence(caps),
                        Kind::Video => Fill::black(caps),
                    };
                    let pad = self.switch.request_pad_simple(&format!("sink_{sources}"));
                    fillers.last = pad.and_then(|pad| self.take_up(element, fill.upcast(), pad));
                }
            }
        }
        self.follow(element);
    }

    /// Changes the states of silence, black and pictures to the element's state, PAUSED or PLAYING.
    pub(super) fn follow(&self, element: &FallbackSrc) {
        element.shared().follow(|state| {
            let fillers = lock(&self.fillers);
            for filler in fillers.last.iter().chain(&fillers.stills) {
                let _ = filler.fill.set_state(state);
            }
            true
        });
    }

    /// Repeats a picture as this source's stream.
    pub(super) fn show_still(&self, element: &FallbackSrc, source: SourceId, sample: gst::Sample) {
        // If no picture passed before it, the picture keeps its size.
        let caps = self.caps_for_fill().or_else(|| sample.caps_owned());
        let fill = Fill::still(sample, caps);
        {
            let mut fillers = lock(&self.fillers);
            if !fillers.are_over
                && let Some(pad) = self.pad(element, source)
            {
                let filler = self.take_up(element, fill.upcast(), pad);
                fillers.stills.extend(filler);
            }
        }
        self.follow(element);
    }

    /// Caps of the data that passed last. With these caps, downstream need not change.
    fn caps_for_fill(&self) -> Option<gst::Caps> {
        let passed = || self.switch.static_pad("src")?.current_caps();
        self.fill_caps.clone().or_else(passed)
    }

    fn take_up(&self, element: &FallbackSrc, fill: gst::Element, pad: gst::Pad) -> Option<Filler> {
        copy_context(&self.context, &fill);
        let filler = Filler { fill, pad };
        match filler.begin(element) {
            Ok(()) => Some(filler),
            Err(error) => {
                gst::warning!(
                    crate::kit::CAT,
                    obj = element,
                    "cannot generate silence or black: {error}"
                );
                filler.take_down(element);
                None
            }
        }
    }

    /// Ends the output, because the main source has ended. No other source continues the output.
    pub(super) fn end(&self, element: &FallbackSrc, sources: usize) {
        self.update_fill(element, sources);
        for still in std::mem::take(&mut lock(&self.fillers).stills) {
            still.take_down(element);
        }
        for source in 1..sources {
            self.release(source);
        }
    }

    /// Removes the output from the element.
    pub(super) fn take_down(&self, element: &FallbackSrc) {
        let over = Fillers {
            are_over: true,
            ..Fillers::default()
        };
        let fillers = std::mem::replace(&mut *lock(&self.fillers), over);
        for filler in fillers.last.into_iter().chain(fillers.stills) {
            filler.take_down(element);
        }
        let _ = element.remove_pad(&self.ghost);
        let _ = self.ghost.set_target(None::<&gst::Pad>);
        let _ = self.switch.set_state(gst::State::Null);
        let _ = element.remove(&self.switch);
    }
}

impl Filler {
    fn begin(&self, element: &FallbackSrc) -> Result<(), glib::BoolError> {
        // The filler must not take part in a running state change of the element.
        self.fill.set_locked_state(true);
        element.add(&self.fill)?;
        let src_pad = self.fill.static_pad("src").expect("it has one");
        let linked = src_pad.link(&self.pad);
        linked.map_err(|error| glib::bool_error!("cannot link the elements: {error}"))?;
        Ok(())
    }

    fn take_down(self, element: &FallbackSrc) {
        let _ = self.fill.set_state(gst::State::Null);
        let _ = element.remove(&self.fill);
    }
}

/// Returns the place of the source behind a pad of the switch, from the pad's name.
pub(super) fn source_of(pad: &gst::Pad) -> Option<SourceId> {
    source_of_name(&pad.name())
}

pub(super) fn source_of_name(name: &str) -> Option<SourceId> {
    name.strip_prefix("sink_")?.parse().ok()
}

/// Sets the element's context on an element inside it.
pub(super) fn copy_context(context: &ContextSettings, element: &impl IsA<gst::Element>) {
    for spec in ContextSettings::specs() {
        if let Some(value) = context.get(spec.name()) {
            element.set_property_from_value(spec.name(), &value);
        }
    }
}

/// Downstream may block the pushing thread, as sinks do before PLAYING and until the time of a buffer. On a named context,
/// downstream must not do that. Without a named context, each output uses a separate thread while it is filled.
fn context_of_fill(
    element: &FallbackSrc,
    kind: Kind,
    context: &ContextSettings,
) -> ContextSettings {
    if context.is_named() {
        context.clone()
    } else {
        let name = format!("fill-{:x}-{}", element.as_ptr() as usize, kind.nick());
        ContextSettings::named(name, 0)
    }
}

/// Exposes a pad of the switch. The output is live, so its position is always the current time.
fn ghost_pad(
    element: &FallbackSrc,
    kind: Kind,
    target: &gst::Pad,
) -> Result<gst::GhostPad, glib::BoolError> {
    let templ = element
        .pad_template(&format!("{}_%u", kind.nick()))
        .expect("the class has it");
    let builder = gst::GhostPad::builder_from_template(&templ)
        .name(format!("{}_0", kind.nick()))
        .event_function(|pad, parent, event| match event.type_() {
            gst::EventType::Seek => false,
            _ => gst::Pad::event_default(pad, parent, event),
        })
        .query_function(|pad, parent, query| {
            if let gst::QueryViewMut::Seeking(seeking) = query.view_mut() {
                let format = seeking.format();
                let none = gst::GenericFormattedValue::none_for_format(format);
                seeking.set(false, none, none);
                return true;
            }
            gst::Pad::query_default(pad, parent, query)
        });
    Ok(builder.with_target(target)?.build())
}

impl FallbackSrc {
    /// Reports a stream's health to the other streams of the source, so that all of them change together.
    fn note_health(&self, kind: Kind, source: SourceId, is_healthy: bool) {
        // The end of one stream is not a failure of the others.
        let has_ended = self.shared().state().core.has_output_ended(kind);
        let others = self.outputs();
        for other in others
            .iter()
            .filter(|other| other.kind != kind && !has_ended)
        {
            other.set_partner_health(source, is_healthy);
        }
        self.tell(|core, now_ns| core.handle_health(now_ns, kind, source, is_healthy));
    }
}
