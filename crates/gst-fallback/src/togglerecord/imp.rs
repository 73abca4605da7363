//! Properties, pads and states of `togglerecord`.

use std::sync::Mutex;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::core::{MAIN, STALL_TIMEOUT_NS, Settings, StreamId};
use super::passing::{Passing, act, arrival};
use super::turns::{Entry, Turns};
use crate::kit::queue::Item;
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;
use crate::kit::{lock, pad_function, template};

#[derive(Properties)]
#[properties(wrapper_type = super::ToggleRecord)]
pub struct ToggleRecord {
    #[property(name = "record", nick = "Record", blurb = "Record all streams from the next keyframe of the main stream; false: stop all at the position of the main stream", type = bool, get = |s: &Self| s.turns.state().core.record(), set = Self::set_record, default = false)]
    #[property(name = "recording", nick = "Recording", blurb = "Whether the streams are recorded: from the first buffer of the main stream until all streams have reached the end of the recording", type = bool, get = |s: &Self| s.turns.state().is_recording, default = false)]
    #[property(name = "is-live", nick = "Live output", blurb = "Produce live output: gaps between recordings remain, and inputs that were held get later running times. false: remove the gaps of live inputs", type = bool, get = |s: &Self| s.turns.state().core.settings().is_live, set = |s: &Self, v| s.set(|settings| settings.is_live = v), default = false, flags = UP_TO_READY)]
    #[property(name = "stall-timeout", nick = "Stall timeout", blurb = "Time after which the other streams continue if the main stream delivers nothing, ns", type = u64, get = |s: &Self| s.turns.state().core.settings().stall_timeout_ns, set = |s: &Self, v| s.set(|settings| settings.stall_timeout_ns = v), default = STALL_TIMEOUT_NS, minimum = STALL_TIMEOUT_NS_MIN, maximum = TIME_NS_MAX)]
    turns: Turns,
    sink: gst::Pad,
    src: gst::Pad,
    stats: Mutex<StatsProperty>,
    names: Mutex<Names>,
}

/// Names for requested pads.
#[derive(Default)]
struct Names {
    next_number: u32,
    /// The last id given; ids are not used again.
    last_id: StreamId,
}

/// Life and properties.
impl ToggleRecord {
    fn set_record(&self, record: bool) {
        self.turns
            .change(|state, now_ns| state.core.handle_record(now_ns, record));
        act(&self.turns, &self.obj());
    }

    fn set(&self, set: impl FnOnce(&mut Settings)) {
        self.turns.change(|state, now_ns| {
            let mut settings = state.core.settings();
            set(&mut settings);
            state.core.handle_settings(now_ns, settings);
        });
    }

    fn stats_of(turns: &Turns) -> gst::Structure {
        let state = turns.state();
        gst::Structure::builder("application/x-ts-togglerecord-stats")
            .field("passed", state.passed)
            .field("dropped", state.dropped)
            .field("recordings", state.core.recordings())
            .field("stalls", state.stalls)
            .build()
    }
}

/// Data.
impl ToggleRecord {
    fn take(
        &self,
        id: StreamId,
        pad: &gst::Pad,
        item: Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(src) = self.turns.state().counterpart(pad) else {
            return Err(gst::FlowError::Flushing);
        };
        let entry = match &item {
            Item::Event(event) => match event.type_() {
                gst::EventType::Gap => None,
                gst::EventType::StreamStart => Some(Entry::StreamStart),
                gst::EventType::Segment => Some(Entry::Segment),
                gst::EventType::Eos => Some(Entry::Eos),
                _ => Some(Entry::Event),
            },
            _ => None,
        };
        let (turn, format) = match entry {
            Some(entry) => {
                if let Item::Event(event) = &item {
                    self.turns.state().note(id, event);
                }
                (self.turns.enter(id, entry), Default::default())
            }
            None => {
                self.ask_liveness(id);
                self.turns.arrive(id, |format| arrival(&item, format))
            }
        };
        let passing = Passing {
            turns: self.turns.clone(),
            element: self.obj().clone(),
            src,
            format,
            item,
        };
        turn.pass_in_parts(move |turn, decision| passing.carry_out(turn, decision))
    }

    /// Queries whether an input is live. A live input continues to deliver while it is held.
    fn ask_liveness(&self, id: StreamId) {
        let Some(pad) = self.turns.liveness_to_ask(id) else {
            return;
        };
        let mut query = gst::query::Latency::new();
        let is_live = pad.peer_query(&mut query) && query.result().0;
        self.turns
            .change(|state, _| state.core.handle_liveness(id, is_live));
    }

    fn sink_event(&self, id: StreamId, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::FlushStart(_) => {
                self.turns.begin_flush(id);
                gst::Pad::event_default(pad, Some(&*self.obj()), event)
            }
            gst::EventView::FlushStop(flush) => {
                self.turns.end_flush(id, flush.resets_time());
                act(&self.turns, &self.obj());
                gst::Pad::event_default(pad, Some(&*self.obj()), event)
            }
            gst::EventView::Segment(segment) if segment.segment().format() != gst::Format::Time => {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    [
                        "{}: expected a segment in time, not in {:?}",
                        pad.name(),
                        segment.segment().format()
                    ]
                );
                false
            }
            _ if event.is_serialized() => self.take(id, pad, Item::Event(event)).is_ok(),
            _ => gst::Pad::event_default(pad, Some(&*self.obj()), event),
        }
    }

    fn sink_query(&self, id: StreamId, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        // A serialized query would overtake queued items, so it is refused.
        if query.is_serialized() && !self.turns.state().is_idle(id) {
            return false;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    fn src_event(&self, id: StreamId, pad: &gst::Pad, event: gst::Event) -> bool {
        let mut event = event;
        if let gst::EventView::Qos(qos) = event.view() {
            let (kind, proportion, difference, time) = qos.get();
            let shift_ns = self.turns.state().shift_ns(id);
            let input = time.map(|time| {
                let input_ns = time
                    .nseconds()
                    .saturating_add_signed(shift_ns.saturating_neg());
                gst::ClockTime::from_nseconds(input_ns)
            });
            let moved = gst::event::Qos::builder(kind, proportion, difference)
                .timestamp(input)
                .seqnum(event.seqnum());
            event = moved.build();
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let is_answered = gst::Pad::query_default(pad, Some(&*self.obj()), query);
        if is_answered && let gst::QueryViewMut::Latency(latency) = query.view_mut() {
            let (is_live, min, max) = latency.result();
            latency.set(
                is_live || self.turns.state().core.settings().is_live,
                min,
                max,
            );
        }
        is_answered
    }
}

/// Pads.
impl ToggleRecord {
    fn sink_pad(templ: &gst::PadTemplate, id: StreamId, name: &str) -> gst::Pad {
        let error = || Err(gst::FlowError::Error);
        gst::Pad::builder_from_template(templ)
            .name(name)
            .chain_function(move |pad, parent, buffer| {
                pad_function::<Self, _>(parent, error, |imp| {
                    imp.take(id, pad, Item::Buffer(buffer))
                })
            })
            .chain_list_function(move |pad, parent, list| {
                pad_function::<Self, _>(parent, error, |imp| {
                    for buffer in list.iter_owned() {
                        imp.take(id, pad, Item::Buffer(buffer))?;
                    }
                    Ok(gst::FlowSuccess::Ok)
                })
            })
            .event_function(move |pad, parent, event| {
                pad_function::<Self, _>(parent, || false, |imp| imp.sink_event(id, pad, event))
            })
            .query_function(move |pad, parent, query| {
                pad_function::<Self, _>(parent, || false, |imp| imp.sink_query(id, pad, query))
            })
            .iterate_internal_links_function(internal_links)
            .flags(PAD_FLAGS)
            .build()
    }

    fn src_pad(templ: &gst::PadTemplate, id: StreamId, name: &str) -> gst::Pad {
        gst::Pad::builder_from_template(templ)
            .name(name)
            .event_function(move |pad, parent, event| {
                pad_function::<Self, _>(parent, || false, |imp| imp.src_event(id, pad, event))
            })
            .query_function(|pad, parent, query| {
                pad_function::<Self, _>(parent, || false, |imp| imp.src_query(pad, query))
            })
            .iterate_internal_links_function(internal_links)
            .flags(PAD_FLAGS)
            .build()
    }

    /// Adds a stream whose pads are in the element.
    fn add_stream(&self, id: StreamId, sink: &gst::Pad, src: &gst::Pad) {
        self.turns.add(id, sink.clone(), src.clone());
        // The handler holds no reference to the element, because the element's state has the pads.
        sink.connect_unlinked(move |pad, _| {
            if let Some(element) = pad.parent().and_downcast::<super::ToggleRecord>() {
                let turns = &element.imp().turns;
                turns.unlink(id);
                act(turns, &element);
            }
        });
    }

    fn name(&self, asked: Option<&str>) -> (u32, StreamId) {
        let mut names = lock(&self.names);
        let asked = asked.and_then(|name| name.strip_prefix("sink_")?.parse().ok());
        let number = asked.unwrap_or(names.next_number);
        names.next_number = names.next_number.max(number.saturating_add(1));
        names.last_id += 1;
        (number, names.last_id)
    }
}

fn internal_links(pad: &gst::Pad, parent: Option<&gst::Object>) -> gst::Iterator<gst::Pad> {
    let element = parent.and_then(|parent| parent.downcast_ref::<super::ToggleRecord>());
    let linked = element.and_then(|element| element.imp().turns.state().counterpart(pad));
    gst::Iterator::from_vec(linked.into_iter().collect())
}

#[glib::object_subclass]
impl ObjectSubclass for ToggleRecord {
    const NAME: &'static str = "ThreadbareToggleRecord";
    type Type = super::ToggleRecord;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let turns = Turns::default();
        let counted = turns.clone();
        ToggleRecord {
            turns,
            sink: Self::sink_pad(&template(klass, "sink"), MAIN, "sink"),
            src: Self::src_pad(&template(klass, "src"), MAIN, "src"),
            stats: Mutex::new(StatsProperty::new(move || Self::stats_of(&counted))),
            names: Mutex::default(),
        }
    }
}

impl ObjectImpl for ToggleRecord {
    crate::kit::properties_with_groups!(stats);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_pads(self.obj().upcast_ref(), &[&self.sink, &self.src]);
        self.add_stream(MAIN, &self.sink, &self.src);
    }
}

impl GstObjectImpl for ToggleRecord {}

impl ElementImpl for ToggleRecord {
    crate::kit::element_class!(
        "Thread-sharing recording switch",
        "Generic",
        "Starts and stops several streams together, on the upstream threads";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any(),
        "sink_%u": Sink Request gst::Caps::new_any(),
        "src_%u": Src Sometimes gst::Caps::new_any()
    );

    fn request_new_pad(
        &self,
        templ: &gst::PadTemplate,
        name: Option<&str>,
        _caps: Option<&gst::Caps>,
    ) -> Option<gst::Pad> {
        let (number, id) = self.name(name);
        let obj = self.obj();
        let sink = Self::sink_pad(templ, id, &format!("sink_{number}"));
        let src = Self::src_pad(&obj.pad_template("src_%u")?, id, &format!("src_{number}"));
        if obj.static_pad(&sink.name()).is_some() {
            return None;
        }
        self.add_stream(id, &sink, &src);
        let added = [&src, &sink].into_iter().try_for_each(|pad| {
            pad.set_active(true)?;
            obj.add_pad(pad)
        });
        if added.is_err() {
            self.turns.remove(id);
            return None;
        }
        Some(sink)
    }

    fn release_pad(&self, pad: &gst::Pad) {
        let (id, src) = {
            let state = self.turns.state();
            (state.id_of(pad), state.counterpart(pad))
        };
        let (Some(id), Some(src)) = (id, src) else {
            return;
        };
        // Pushes that wait in the stream return before the pads are deactivated.
        self.turns.remove(id);
        for pad in [pad, &src] {
            let _ = pad.set_active(false);
            let _ = self.obj().remove_pad(pad);
        }
        act(&self.turns, &self.obj());
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => self.turns.reset(false),
            // Waiting threads return before the pads are deactivated.
            gst::StateChange::PausedToReady => {
                self.turns.reset(true);
                act(&self.turns, &self.obj());
            }
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
        self.turns
            .set_time(RunningTime::with_clock(&*self.obj(), clock.cloned()));
        accepted
    }
}

/// Flags of the pads: caps, allocations and scheduling are those of the pad on the other side.
const PAD_FLAGS: gst::PadFlags = gst::PadFlags::PROXY_CAPS
    .union(gst::PadFlags::PROXY_ALLOCATION)
    .union(gst::PadFlags::PROXY_SCHEDULING);

/// Flags of a property that can be set before the element starts.
const UP_TO_READY: glib::ParamFlags =
    glib::ParamFlags::READWRITE.union(gst::PARAM_FLAG_MUTABLE_READY);

/// Minimum stall timeout. It is shorter than any buffer; with a smaller value, no stream would wait at all.
const STALL_TIMEOUT_NS_MIN: u64 = 1_000_000;

/// Maximum of times. As with GStreamer's own times, all values are allowed except the one for no time.
const TIME_NS_MAX: u64 = u64::MAX - 1;
