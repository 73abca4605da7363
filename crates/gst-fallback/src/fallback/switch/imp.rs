//! Properties, pads and states of `fallbackswitch`.

use std::sync::{LazyLock, Mutex};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::acting::{act, meet_partner, set_partner, tell_of_end, watch};
use super::core::{InputId, SwitchCore};
use super::pad::SwitchPad;
use super::partner;
use super::passing::{Passing, arrival};
use super::turns::{Entry, Turns};
use crate::kit::context::{ContextSettings, Place};
use crate::kit::inputs::{ManyInputs, input_pad, latency_of, output_pad};
use crate::kit::lock;
use crate::kit::queue::Item;
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;

#[derive(Properties)]
#[properties(wrapper_type = super::FallbackSwitch)]
pub struct FallbackSwitch {
    #[property(name = "active-pad", nick = "Active pad", blurb = "Sink pad whose stream passes. Set it only with auto-switch=false", type = Option<gst::Pad>, get = |s: &Self| s.turns.state().active_pad(), set = Self::set_active_pad)]
    #[property(name = "timeout", nick = "Timeout", blurb = "Time without a timely buffer after which an input has failed, ns", type = u64, get = |s: &Self| s.turns.state().settings.timeout_ns, set = |s: &Self, v| s.set(|state| state.settings.timeout_ns = v), default = 1_000_000_000, maximum = TIME_NS_MAX)]
    #[property(name = "latency", nick = "Latency", blurb = "Time by which buffers may be late, ns; it is added to the latency of the inputs", type = u64, get = |s: &Self| s.turns.state().settings.latency_ns, set = Self::set_latency, maximum = TIME_NS_MAX)]
    #[property(name = "min-upstream-latency", nick = "Minimum upstream latency", blurb = "Minimum latency to report for the inputs, ns; reserves time for inputs that are added later", type = u64, get = |s: &Self| s.turns.state().min_upstream_ns, set = Self::set_min_upstream, maximum = TIME_NS_MAX)]
    #[property(name = "immediate-fallback", nick = "Immediate fallback", blurb = "At the start, pass the first input that delivers; false: wait up to the timeout for the input with the best priority", type = bool, get = |s: &Self| s.turns.state().settings.immediate_fallback, set = |s: &Self, v| s.set(|state| state.settings.immediate_fallback = v), default = false)]
    #[property(name = "auto-switch", nick = "Automatic switch", blurb = "Choose the active input by health and priority; false: the application chooses it by active-pad", type = bool, get = |s: &Self| s.turns.state().settings.auto_switch, set = |s: &Self, v| s.set(|state| state.settings.auto_switch = v), default = true)]
    #[property(name = "stop-on-eos", nick = "Stop on EOS", blurb = "End the output as soon as any input ends", type = bool, get = |s: &Self| s.turns.state().settings.stop_on_eos, set = |s: &Self, v| s.set(|state| state.settings.stop_on_eos = v), default = false)]
    #[property(name = "switch-on-eos", nick = "Switch on EOS", blurb = "When the active input ends, switch to another one, and end the output when the last input ends. false: end the output when the active input ends; it resumes after the timeout if another input still delivers", type = bool, get = |s: &Self| s.turns.state().settings.switches_on_eos, set = |s: &Self, v| s.set(|state| state.settings.switches_on_eos = v), default = false)]
    #[property(name = "seamless", nick = "Seamless", blurb = "If both inputs deliver, switch at the running time at which the new one continues the output; a coded stream starts at a keyframe that the element requests. false: switch at once", type = bool, get = |s: &Self| s.turns.state().settings.is_seamless, set = |s: &Self, v| s.set(|state| state.settings.is_seamless = v), default = false)]
    #[property(name = "sync", nick = "Synchronize", blurb = "Pass each buffer of the active input when it is due on the clock; false: pass it at once", type = bool, get = |s: &Self| s.turns.state().settings.is_synced, set = |s: &Self, v| s.set(|state| state.settings.is_synced = v), default = true)]
    #[property(name = "min-hold", nick = "Minimum hold", blurb = "Minimum time between two switches, unless the active input fails, ns", type = u64, get = |s: &Self| s.turns.state().settings.min_hold_ns, set = |s: &Self, v| s.set(|state| state.settings.min_hold_ns = v), maximum = TIME_NS_MAX)]
    #[property(name = "recover-after", nick = "Recover after", blurb = "Time for which a better input must be healthy before it replaces a healthy one, ns", type = u64, get = |s: &Self| s.turns.state().settings.recover_after_ns, set = |s: &Self, v| s.set(|state| state.settings.recover_after_ns = v), maximum = TIME_NS_MAX)]
    pub(super) turns: Turns,
    #[property(name = "partner", nick = "Partner", blurb = "The fallbackswitch for another stream of the same sources; pads with the same number fail together. Setting it also sets the partner of that element", type = Option<super::FallbackSwitch>, get = |s: &Self| partner::of(&s.obj()), set = |s: &Self, v: Option<super::FallbackSwitch>| set_partner(&s.obj(), v.as_ref()))]
    pub(super) partner: Mutex<glib::WeakRef<super::FallbackSwitch>>,
    /// Context of the time-outs only. The thread that pushes into an input also pushes the output.
    context: Mutex<ContextSettings>,
    place: Mutex<Option<Place>>,
    stats: Mutex<StatsProperty>,
    src_pad: gst::Pad,
    names: Mutex<Names>,
}

/// Names for new pads.
#[derive(Default)]
struct Names {
    next_number: u32,
    next_id: InputId,
}

/// Life and properties.
impl FallbackSwitch {
    fn start(&self) {
        let start = self.turns.start();
        let watch = watch(self.turns.clone(), start, self.obj().downgrade());
        if let Some(place) = &*lock(&self.place) {
            place.shard().spawn(watch).detach();
        }
        meet_partner(&self.obj());
    }

    fn set(&self, set: impl FnOnce(&mut super::turns::State)) {
        self.turns.set(set);
        act(&self.turns, &self.obj());
    }

    fn set_latency(&self, latency_ns: u64) {
        self.set(|state| state.settings.latency_ns = latency_ns);
        self.post_latency();
    }

    fn set_min_upstream(&self, min_upstream_ns: u64) {
        self.set(|state| state.min_upstream_ns = min_upstream_ns);
        self.post_latency();
    }

    fn post_latency(&self) {
        let obj = self.obj();
        let _ = obj.post_message(gst::message::Latency::builder().src(&*obj).build());
    }

    fn set_active_pad(&self, pad: Option<gst::Pad>) {
        let refusal = {
            let id = pad.as_ref().map(|pad| (pad, self.turns.state().id_of(pad)));
            match id {
                None => Some("active-pad cannot be none".to_owned()),
                Some((pad, None)) => Some(format!(
                    "active-pad: {} is not a sink pad of this element",
                    pad.name()
                )),
                Some((_, Some(id))) => {
                    let is_accepted = (self.turns)
                        .change(|state, now_ns| state.core.handle_selection(now_ns, id));
                    (!is_accepted)
                        .then(|| "active-pad can be set with auto-switch=false only".to_owned())
                }
            }
        };
        match refusal {
            Some(text) => gst::warning!(crate::kit::CAT, imp = self, "{text}"),
            None => act(&self.turns, &self.obj()),
        }
    }

    pub(super) fn keep_unlinked(&self) {
        self.set(|state| state.settings.fails_unlinked = false);
    }

    pub(super) fn mark_failed(&self, pad: &gst::Pad) {
        self.tell_core(pad, SwitchCore::handle_error);
    }

    pub(super) fn set_partner_health(&self, pad: &gst::Pad, is_healthy: bool) {
        self.tell_core(pad, |core, now_ns, id| {
            core.handle_partners(now_ns, &[(id, is_healthy)]);
        });
    }

    /// Reports a change of an input to the core.
    fn tell_core(&self, pad: &gst::Pad, tell: impl FnOnce(&mut SwitchCore, u64, InputId)) {
        let id = self.turns.state().id_of(pad);
        let Some(id) = id else {
            let name = pad.name();
            gst::warning!(
                crate::kit::CAT,
                imp = self,
                "{name} is not a sink pad of this element"
            );
            return;
        };
        self.turns
            .change(|state, now_ns| tell(&mut state.core, now_ns, id));
        act(&self.turns, &self.obj());
    }

    fn stats_of(turns: &Turns) -> gst::Structure {
        let state = turns.state();
        let (mut passed, mut dropped) = (0, 0);
        let pads = state.lanes().iter().map(|lane| {
            passed += lane.passed;
            dropped += lane.dropped;
            let input = state.core.input(lane.id);
            gst::Structure::builder("pad")
                .field("name", lane.pad.name().as_str())
                .field("priority", input.map_or(0, |input| input.priority))
                .field("is-healthy", input.is_some_and(|input| input.is_healthy()))
                .field("passed", lane.passed)
                .field("dropped", lane.dropped)
                .build()
                .to_send_value()
        });
        let pads = gst::Array::from_values(pads.collect::<Vec<_>>());
        let mut stats = gst::Structure::builder("application/x-ts-fallback-switch-stats")
            .field("passed", passed)
            .field("dropped", dropped);
        for (reason, count) in state.core.switches() {
            stats = stats.field(format!("switches-{}", reason.nick()), count);
        }
        stats.field("pads", pads).build()
    }
}

/// Data.
impl ManyInputs for FallbackSwitch {
    fn take(
        &self,
        id: InputId,
        pad: &gst::Pad,
        item: Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let entry = match &item {
            Item::Event(event) if event.type_() == gst::EventType::Eos => Entry::Eos,
            Item::Event(event) if event.type_() != gst::EventType::Gap => {
                self.turns.state().note(id, event);
                Entry::Event
            }
            _ => {
                let (segment, audio) = self.turns.state().stream_of(id);
                Entry::Data(arrival(&item, segment.as_ref(), audio.as_ref()))
            }
        };
        let passing = Passing {
            turns: self.turns.clone(),
            element: self.obj().clone(),
            pad: pad.clone(),
            src_pad: self.src_pad.clone(),
            item,
        };
        let turn = self.turns.arrive(id, entry);
        turn.pass(
            // Carries out the changes that the arrival has caused.
            || act(&self.turns, &self.obj()),
            |turn, decision| passing.carry_out(turn, decision),
        )
    }

    fn sink_event(&self, id: InputId, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.type_() {
            gst::EventType::FlushStart => {
                let passes = self.turns.begin_flush(id);
                act(&self.turns, &self.obj());
                !passes || self.src_pad.push_event(event)
            }
            gst::EventType::FlushStop => {
                let passes = self.turns.end_flush(id);
                act(&self.turns, &self.obj());
                !passes || self.src_pad.push_event(event)
            }
            _ if event.is_serialized() => self.take(id, pad, Item::Event(event)).is_ok(),
            _ => !self.is_active(id) || self.src_pad.push_event(event),
        }
    }

    fn is_active(&self, id: InputId) -> bool {
        self.turns.state().core.active() == Some(id)
    }

    fn active_pad(&self) -> Option<gst::Pad> {
        self.turns.state().active_pad()
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    /// Handles an upstream event. Each input must know the latency; all other events go to the input whose stream downstream has.
    fn src_event(&self, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Latency {
            let pads = self.turns.state().pads();
            let accepted = pads.iter().filter(|pad| pad.push_event(event.clone()));
            return accepted.count() > 0;
        }
        self.active_pad().is_some_and(|pad| pad.push_event(event))
    }

    /// Answers a latency query: the element is live.
    fn answer_latency(&self, query: &mut gst::query::Latency) {
        let pads = self.turns.state().pads();
        let (_, least, most) = latency_of(&pads);
        let own = self.turns.change(|state, now_ns| {
            state.set_upstream(least.nseconds(), now_ns);
            state.core.settings().latency_ns
        });
        act(&self.turns, &self.obj());
        let own = gst::ClockTime::from_nseconds(own.min(TIME_NS_MAX));
        let added = own.saturating_sub(least);
        query.set(true, own, most.map(|most| most.saturating_add(added)));
    }
}

/// Pads.
impl FallbackSwitch {
    /// Chooses the name and the number of a pad. Pads with the names of another kind of switch become the first and the second
    /// pad.
    fn name_pad(&self, asked: Option<&str>) -> (String, u32, InputId) {
        let mut names = lock(&self.names);
        let (name, number) = match asked {
            Some("sink") => ("sink".to_owned(), 0),
            Some("fallback_sink") => ("fallback_sink".to_owned(), 1),
            _ => {
                let asked = asked.and_then(|name| name.strip_prefix("sink_")?.parse().ok());
                let number = asked.unwrap_or(names.next_number);
                (format!("sink_{number}"), number)
            }
        };
        names.next_number = names.next_number.max(number.saturating_add(1));
        names.next_id += 1;
        (name, number, names.next_id)
    }

    fn new_pad(&self, templ: &gst::PadTemplate, id: InputId, name: &str) -> gst::Pad {
        let pad: SwitchPad = input_pad::<Self, _>(templ, id, name);
        pad.join(self.turns.clone(), id);
        let turns = self.turns.clone();
        pad.connect_unlinked(move |pad, _| {
            turns.unlink(id);
            if let Some(element) = pad.parent().and_downcast::<super::FallbackSwitch>() {
                act(&turns, &element);
            }
        });
        pad.upcast()
    }

    /// Sends the end on another thread, because the push may block the thread that releases a pad. The other thread runs only if
    /// an end is due: a pad is also released while the element is disposed of, and then no other thread must take a reference to
    /// the element.
    fn tell_of_end_elsewhere(&self) {
        if !self.turns.owes_eos() {
            return;
        }
        let turns = self.turns.clone();
        self.obj()
            .call_async(move |element| tell_of_end(&turns, element));
    }
}

#[glib::object_subclass]
impl ObjectSubclass for FallbackSwitch {
    const NAME: &'static str = "ThreadbareFallbackSwitch";
    type Type = super::FallbackSwitch;
    type ParentType = gst::Element;
    type Interfaces = (gst::ChildProxy,);

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = output_pad::<Self>(&crate::kit::template(klass, "src"));
        let turns = Turns::default();
        let counted = turns.clone();
        FallbackSwitch {
            turns,
            partner: Mutex::default(),
            context: Mutex::default(),
            place: Mutex::default(),
            stats: Mutex::new(StatsProperty::new(move || Self::stats_of(&counted))),
            src_pad,
            names: Mutex::default(),
        }
    }
}

impl ObjectImpl for FallbackSwitch {
    crate::kit::properties_with_groups!(context, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<[Signal; 1]> = LazyLock::new(|| {
            let mark_failed = Signal::builder("mark-failed")
                .param_types([gst::Pad::static_type()])
                .action()
                .class_handler(|args| {
                    let element = args[0].get::<super::FallbackSwitch>().ok()?;
                    element.mark_failed(&args[1].get::<gst::Pad>().ok()?);
                    None
                });
            [mark_failed.build()]
        });
        &*SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.add_pad(&self.src_pad)
            .expect("a new element takes its pad");
        obj.set_element_flags(gst::ElementFlags::REQUIRE_CLOCK);
    }
}

impl GstObjectImpl for FallbackSwitch {}

/// The sink pads, whose properties can be set in a pipeline description.
impl ChildProxyImpl for FallbackSwitch {
    fn child_by_index(&self, index: u32) -> Option<glib::Object> {
        let pads = self.obj().sink_pads();
        Some(pads.get(index as usize)?.clone().upcast())
    }

    fn child_by_name(&self, name: &str) -> Option<glib::Object> {
        let pads = self.obj().sink_pads();
        let named = pads.into_iter().find(|pad| pad.name() == name);
        named.map(Cast::upcast)
    }

    fn children_count(&self) -> u32 {
        u32::from(self.obj().num_sink_pads())
    }
}

impl ElementImpl for FallbackSwitch {
    crate::kit::element_class!(
        "Thread-sharing fallback switch",
        "Generic",
        "Passes the best of the input streams that deliver data, on the upstream thread";
        "sink_%u": Sink Request gst::Caps::new_any(),
        "sink": Sink Request gst::Caps::new_any(),
        "fallback_sink": Sink Request gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn request_new_pad(
        &self,
        templ: &gst::PadTemplate,
        name: Option<&str>,
        _caps: Option<&gst::Caps>,
    ) -> Option<gst::Pad> {
        let (name, number, id) = self.name_pad(name);
        let pad = self.new_pad(templ, id, &name);
        pad.set_active(true).ok()?;
        self.obj().add_pad(&pad).ok()?;
        self.turns.add(id, number, pad.clone());
        act(&self.turns, &self.obj());
        meet_partner(&self.obj());
        self.obj().child_added(&pad, &name);
        Some(pad)
    }

    fn release_pad(&self, pad: &gst::Pad) {
        let id = self.turns.state().id_of(pad);
        if let Some(id) = id {
            let is_last = {
                let was_active = self.is_active(id);
                self.turns.remove(id);
                was_active && self.turns.state().core.active().is_none()
            };
            let _ = pad.set_active(false);
            let _ = self.obj().remove_pad(pad);
            self.obj().child_removed(pad, &pad.name());
            act(&self.turns, &self.obj());
            meet_partner(&self.obj());
            if is_last {
                self.obj().notify("active-pad");
            }
            self.tell_of_end_elsewhere();
        }
    }

    /// Changes the state. Inputs may deliver nothing before PLAYING, or nothing at all. So a pipeline must not wait until its
    /// sinks have data.
    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::NullToReady => {
                let place = lock(&self.context).place(self.obj().upcast_ref());
                *lock(&self.place) = Some(crate::kit::or_post(self, place)?);
            }
            gst::StateChange::ReadyToPaused => self.start(),
            // Waiting threads return before the pads are deactivated.
            gst::StateChange::PausedToReady => {
                self.turns.stop();
                act(&self.turns, &self.obj());
                meet_partner(&self.obj());
            }
            gst::StateChange::PlayingToPaused => self.turns.pause(),
            _ => {}
        }
        let result = self.parent_change_state(transition)?;
        match transition {
            gst::StateChange::PausedToPlaying => {
                self.turns.play(RunningTime::of(&*self.obj()));
                act(&self.turns, &self.obj());
            }
            gst::StateChange::ReadyToNull => *lock(&self.place) = None,
            gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused => {
                return Ok(gst::StateChangeSuccess::NoPreroll);
            }
            _ => {}
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

/// Maximum of times. As with GStreamer's own times, all values are allowed except the one for no time.
const TIME_NS_MAX: u64 = u64::MAX - 1;
