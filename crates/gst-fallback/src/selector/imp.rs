//! Properties, pads and states of `ts-input-selector`.

use std::sync::{Arc, Mutex};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::pad::SelectorPad;
use super::turns::{SyncMode, Turn, Turns, Verdict};
use crate::kit::context::ContextSettings;
use crate::kit::inputs::{ManyInputs, input_pad, latency_of, output_pad};
use crate::kit::lock;
use crate::kit::queue::Item;
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;
use crate::kit::turns::announce;

#[derive(Properties)]
#[properties(wrapper_type = super::InputSelector)]
pub struct InputSelector {
    #[property(name = "active-pad", nick = "Active pad", blurb = "Sink pad whose stream passes. Unless it is set, the first pad that gets data becomes the active pad", type = Option<gst::Pad>, get = |s: &Self| s.turns.state().active_pad(), set = Self::set_active_pad)]
    #[property(name = "n-pads", nick = "Number of pads", blurb = "Number of sink pads", type = u32, get = |s: &Self| s.turns.state().pads().len() as u32)]
    #[property(name = "sync-streams", nick = "Synchronise streams", blurb = "Hold buffers of inactive inputs until the output reaches their running time, and then drop them; false: drop them at once", type = bool, get = |s: &Self| s.turns.state().sync_streams, set = |s: &Self, v: bool| s.turns.state().sync_streams = v, default = true)]
    #[property(name = "sync-mode", nick = "Synchronisation mode", blurb = "Hold buffers of inactive inputs until the output (active-segment) or the clock (clock) reaches their running time. This needs sync-streams", type = SyncMode, get = |s: &Self| s.turns.state().sync_mode, set = |s: &Self, v: SyncMode| s.turns.state().sync_mode = v, builder(SyncMode::ActiveSegment))]
    #[property(name = "cache-buffers", nick = "Cache buffers", blurb = "Store buffers of the active input that have passed before their time. If the output switches away and back before that time, they pass again. This needs sync-streams", type = bool, get = |s: &Self| s.turns.state().caches, set = |s: &Self, v: bool| s.turns.state().caches = v, default = false)]
    turns: Turns,
    /// The thread that pushes into an input also pushes the output, so nothing runs on the context.
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    src_pad: gst::Pad,
    next_id: Arc<Mutex<u32>>,
}

impl InputSelector {
    fn set_active_pad(&self, pad: Option<gst::Pad>) {
        let id = match &pad {
            Some(pad) => match self.turns.state().id_of(pad) {
                Some(id) => Some(id),
                None => {
                    gst::warning!(
                        crate::kit::CAT,
                        imp = self,
                        "{} is not a sink pad of this element",
                        pad.name()
                    );
                    return;
                }
            },
            None => None,
        };
        if self.turns.select(id, false) {
            // The push may block, so the thread that sets the property must not do it.
            let (turns, src_pad) = (self.turns.clone(), self.src_pad.clone());
            self.obj()
                .call_async(move |_| tell_of_end(&turns, &src_pad));
        }
    }

    /// Selects this input if no input is selected. So the first input that delivers becomes the active one.
    fn select_first(&self, id: u32) {
        if self.turns.state().active_pad().is_none() && self.turns.select(Some(id), true) {
            self.obj().notify("active-pad");
        }
    }

    fn new_pad(&self, templ: &gst::PadTemplate, id: u32, name: &str) -> gst::Pad {
        let pad: SelectorPad = input_pad::<Self, _>(templ, id, name);
        pad.join(self.turns.clone(), id);
        let turns = self.turns.clone();
        pad.connect_unlinked(move |_, _| turns.unlink(id));
        pad.upcast()
    }
}

impl ManyInputs for InputSelector {
    fn take(
        &self,
        id: u32,
        pad: &gst::Pad,
        item: Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.select_first(id);
        let times = times(&item);
        let is_buffer = !matches!(item, Item::Event(_));
        let (begin_ns, end_ns) = {
            let mut state = self.turns.state();
            let mut of = |time: Option<gst::ClockTime>| state.running_ns(id, time?);
            (of(times.0).filter(|_| is_buffer), of(times.1))
        };
        let passing = Passing {
            turns: self.turns.clone(),
            pad: pad.clone(),
            src_pad: self.src_pad.clone(),
            end_ns,
            item,
        };
        let turn = self.turns.enter(id, begin_ns);
        turn.pass(|| {}, |turn, verdict| passing.carry_out(turn, verdict))
    }

    fn sink_event(&self, id: u32, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.type_() {
            gst::EventType::FlushStart => {
                !self.turns.flush(id, true) || self.src_pad.push_event(event)
            }
            gst::EventType::FlushStop => {
                !self.turns.flush(id, false) || self.src_pad.push_event(event)
            }
            _ if event.is_serialized() => {
                if let gst::EventView::Tag(tag) = event.view()
                    && let Some(pad) = pad.downcast_ref::<SelectorPad>()
                {
                    pad.note_tags(tag.tag_owned());
                }
                self.take(id, pad, Item::Event(event)).is_ok()
            }
            _ if self.is_active(id) => self.src_pad.push_event(event),
            _ => true,
        }
    }

    fn is_active(&self, id: u32) -> bool {
        self.turns.state().is_active(id)
    }

    fn active_pad(&self) -> Option<gst::Pad> {
        self.turns.state().active_pad()
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn src_event(&self, event: gst::Event) -> bool {
        self.active_pad().is_some_and(|pad| pad.push_event(event))
    }

    fn answer_latency(&self, query: &mut gst::query::Latency) {
        let pads = self.turns.state().pads();
        let (is_live, min, max) = latency_of(&pads);
        query.set(is_live, min, max);
    }
}

/// An item that passes from an input to the output.
struct Passing {
    turns: Turns,
    pad: gst::Pad,
    src_pad: gst::Pad,
    /// Running time of the item's end.
    end_ns: Option<u64>,
    item: Item,
}

impl Passing {
    /// Notes a push. Returns the buffers that the input passed ahead of time before the output switched to another input.
    fn note_pushed(&self, turn: &Turn, is_new: bool) -> Vec<gst::Buffer> {
        let mut state = self.turns.state();
        let cached = if is_new {
            state.take_cached(turn.id())
        } else {
            Vec::new()
        };
        if let (Item::Buffer(buffer), Some(end_ns)) = (&self.item, self.end_ns) {
            state.cache(turn.id(), end_ns, buffer);
        }
        cached
    }

    fn carry_out(self, turn: Turn, verdict: Verdict) -> Result<gst::FlowSuccess, gst::FlowError> {
        let event = match &self.item {
            Item::Event(event) => Some(event.clone()),
            _ => None,
        };
        if event.is_none() {
            let mut state = self.turns.state();
            match verdict {
                Verdict::Push { .. } => state.passed += 1,
                Verdict::Drop => state.dropped += 1,
                Verdict::Flushing => {}
            }
        }
        let result = match verdict {
            Verdict::Push { is_new } => {
                let cached = self.note_pushed(&turn, is_new);
                push(&self.pad, &self.src_pad, self.item, is_new, cached)
            }
            Verdict::Drop => {
                let pad = self.pad.downcast_ref::<SelectorPad>();
                pad.map_or(Ok(gst::FlowSuccess::Ok), SelectorPad::dropped)
            }
            Verdict::Flushing => Err(gst::FlowError::Flushing),
        };
        (self.turns).finish(turn, verdict, self.end_ns, event.as_ref());
        tell_of_end(&self.turns, &self.src_pad);
        result
    }
}

fn push(
    pad: &gst::Pad,
    src_pad: &gst::Pad,
    mut item: Item,
    is_new: bool,
    cached: Vec<gst::Buffer>,
) -> Result<gst::FlowSuccess, gst::FlowError> {
    if is_new {
        announce(pad, src_pad);
        let mut is_first = true;
        for mut buffer in cached {
            if std::mem::take(&mut is_first) {
                buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
            }
            src_pad.push(buffer)?;
        }
        if !is_first {
            return item.push(src_pad);
        }
        item.mark_discont();
    }
    item.push(src_pad)
}

/// Reports the end of the stream if the new active input has ended already: no push there would report it.
fn tell_of_end(turns: &Turns, src_pad: &gst::Pad) {
    while let Some(pad) = turns.take_eos() {
        announce(&pad, src_pad);
        src_pad.push_event(gst::event::Eos::new());
        turns.told();
    }
}

/// Returns the start and end of an item, in its segment.
fn times(item: &Item) -> (Option<gst::ClockTime>, Option<gst::ClockTime>) {
    let of = |buffer: &gst::BufferRef| {
        let begin = buffer.pts().or(buffer.dts());
        let end = begin.map(|begin| begin + buffer.duration().unwrap_or(gst::ClockTime::ZERO));
        (begin, end)
    };
    match item {
        Item::Buffer(buffer) => of(buffer),
        Item::List(list) => {
            let first = list.get(0).map_or((None, None), of);
            let last = list.len().checked_sub(1).and_then(|last| list.get(last));
            (first.0, last.and_then(|last| of(last).1))
        }
        Item::Event(event) => match event.view() {
            gst::EventView::Gap(gap) => {
                let (begin, duration) = gap.get();
                (
                    Some(begin),
                    Some(begin + duration.unwrap_or(gst::ClockTime::ZERO)),
                )
            }
            _ => (None, None),
        },
    }
}

#[glib::object_subclass]
impl ObjectSubclass for InputSelector {
    const NAME: &'static str = "ThreadbareInputSelector";
    type Type = super::InputSelector;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = output_pad::<Self>(&crate::kit::template(klass, "src"));
        let turns = Turns::default();
        turns.state().sync_streams = true;
        let counted = turns.clone();
        let stats = StatsProperty::new(move || {
            let state = counted.state();
            gst::Structure::builder("application/x-ts-input-selector-stats")
                .field("passed", state.passed)
                .field("dropped", state.dropped)
                .build()
        });
        InputSelector {
            turns,
            context: Mutex::default(),
            stats: Mutex::new(stats),
            src_pad,
            next_id: Arc::default(),
        }
    }
}

impl ObjectImpl for InputSelector {
    crate::kit::properties_with_groups!(context, stats);

    fn constructed(&self) {
        self.parent_constructed();
        self.obj()
            .add_pad(&self.src_pad)
            .expect("a new element takes its pad");
    }
}

impl GstObjectImpl for InputSelector {}

impl ElementImpl for InputSelector {
    crate::kit::element_class!(
        "Thread-sharing input selector",
        "Generic",
        "Passes one of several input streams, on the upstream thread";
        "sink_%u": Sink Request gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn request_new_pad(
        &self,
        templ: &gst::PadTemplate,
        name: Option<&str>,
        _caps: Option<&gst::Caps>,
    ) -> Option<gst::Pad> {
        let asked = name.and_then(|name| name.strip_prefix("sink_")?.parse::<u32>().ok());
        let id = {
            let mut next = lock(&self.next_id);
            let id = asked.unwrap_or(*next);
            *next = (*next).max(id.saturating_add(1));
            id
        };
        let pad = self.new_pad(templ, id, &format!("sink_{id}"));
        pad.set_active(true).ok()?;
        self.obj().add_pad(&pad).ok()?;
        self.turns.add(id, pad.clone());
        self.select_first(id);
        Some(pad)
    }

    fn release_pad(&self, pad: &gst::Pad) {
        let id = self.turns.state().id_of(pad);
        if let Some(id) = id {
            let was_active = self.is_active(id);
            self.turns.remove(id);
            let _ = pad.set_active(false);
            let _ = self.obj().remove_pad(pad);
            if was_active {
                self.obj().notify("active-pad");
            }
        }
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::NullToReady => {
                crate::kit::or_post(self, lock(&self.context).check())?;
            }
            gst::StateChange::ReadyToPaused => self.turns.stop(false),
            // Waiting threads return before the pads are deactivated.
            gst::StateChange::PausedToReady => self.turns.stop(true),
            gst::StateChange::PlayingToPaused => self.turns.set_time(RunningTime::default()),
            _ => {}
        }
        let result = self.parent_change_state(transition)?;
        if transition == gst::StateChange::PausedToPlaying {
            self.turns.set_time(RunningTime::of(&*self.obj()));
        }
        Ok(result)
    }

    fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
        let accepted = self.parent_set_clock(clock);
        let time = RunningTime::with_clock(&*self.obj(), clock.cloned());
        self.turns.set_time(time);
        accepted
    }
}
