//! The elements: an ordinary task on each pad, which takes its steps from the test.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use gst::subclass::prelude::*;

use super::*;

/// Of a buffer's push; all else succeeds.
pub type Outcome = Result<gst::FlowSuccess, gst::FlowError>;

pub(super) fn register() {
    let rank = gst::Rank::PRIMARY;
    gst::Element::register(None, "faultsrc", rank, FaultSrc::static_type()).unwrap();
    gst::Element::register(None, "faultavsrc", rank, FaultAvSrc::static_type()).unwrap();
}

/// What the two elements are.
#[derive(Default)]
pub struct Source {
    /// Of the test, when the name is known.
    fault: Mutex<Option<Arc<Shared>>>,
    lanes: Mutex<Vec<Arc<Lane>>>,
    is_playing: Arc<AtomicBool>,
    /// A seek comes on each pad.
    last_seek: Mutex<Option<gst::Seqnum>>,
}

/// A pad.
struct Lane {
    stream: Stream,
    pad: gst::Pad,
    is_stopped: AtomicBool,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    has_opened: bool,
    /// After a seek: a segment from there is to be pushed.
    sought: Option<gst::ClockTime>,
    position: gst::ClockTime,
    seqnum: Option<gst::Seqnum>,
    is_over: bool,
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(fault) = self.fault.get_mut().unwrap().take() {
            fault.report(|log| log.alive -= 1);
        }
    }
}

impl Source {
    fn set_name(&self, name: &str) -> Result<(), glib::Error> {
        let Some(fault) = find(name) else {
            let text = format!("no test holds a fault of the name {name}");
            return Err(glib::Error::new(gst::URIError::BadReference, &text));
        };
        let before = self.fault.lock().unwrap().replace(fault.clone());
        assert!(before.is_none(), "a source has one name");
        fault.report(|log| {
            log.alive += 1;
            log.made += 1;
        });
        Ok(())
    }

    fn fault(&self) -> Option<Arc<Shared>> {
        self.fault.lock().unwrap().clone()
    }

    fn name(&self) -> Option<String> {
        self.fault().map(|fault| fault.name.clone())
    }

    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().unwrap().clone()
    }

    fn add_lane<T: Faulty>(
        &self,
        element: &T::Type,
        template: &gst::PadTemplate,
        stream: Stream,
        name: &str,
    ) where
        T::Type: IsA<gst::Element>,
    {
        let pad = gst::Pad::builder_from_template(template)
            .name(name)
            .activatemode_function(move |_, parent, _, active| {
                // A pad that comes later is active before it has a parent; its task begins afterwards.
                if parent.is_some() {
                    let imp = T::of(parent);
                    imp.source()
                        .activate(imp.obj().upcast_ref(), stream, active);
                }
                Ok(())
            })
            .event_function(move |_, parent, event| {
                let imp = T::of(parent);
                imp.source().handle_event::<T>(&imp.obj(), event)
            })
            .query_function(move |pad, parent, query| {
                T::of(parent).source().answer(stream, query)
                    || gst::Pad::query_default(pad, parent, query)
            })
            .build();
        let lane = Lane {
            stream,
            pad: pad.clone(),
            is_stopped: AtomicBool::new(true),
            now: Mutex::default(),
        };
        self.lanes.lock().unwrap().push(Arc::new(lane));
        if T::PADS_COME {
            pad.set_active(true).unwrap();
        }
        element.add_pad(&pad).unwrap();
    }

    fn remove_lanes(&self, element: &gst::Element) {
        for lane in std::mem::take(&mut *self.lanes.lock().unwrap()) {
            let _ = lane.pad.set_active(false);
            let _ = element.remove_pad(&lane.pad);
        }
    }

    fn lane(&self, stream: Stream) -> Option<Arc<Lane>> {
        self.lanes().into_iter().find(|lane| lane.stream == stream)
    }

    fn activate(&self, element: &gst::Element, stream: Stream, active: bool) {
        let (Some(fault), Some(lane)) = (self.fault(), self.lane(stream)) else {
            return;
        };
        if active {
            *lane.now.lock().unwrap() = Now::default();
            self.start_task(element, &fault, &lane);
        } else {
            stop(&fault, &lane);
            let _ = lane.pad.stop_task();
        }
    }

    fn start_task(&self, element: &gst::Element, fault: &Arc<Shared>, lane: &Arc<Lane>) {
        lane.is_stopped.store(false, SeqCst);
        let task = Task {
            element: element.downgrade(),
            fault: fault.clone(),
            lane: lane.clone(),
            is_playing: self.is_playing.clone(),
            has_siblings: self.lanes().len() > 1,
        };
        lane.pad.start_task(move || task.run()).unwrap();
    }

    /// Goes to another position: the tasks stop, and begin anew there.
    fn seek(&self, element: &gst::Element, event: &gst::event::Seek) -> bool {
        let Some(fault) = self.fault() else {
            return false;
        };
        if self.last_seek.lock().unwrap().replace(event.seqnum()) == Some(event.seqnum()) {
            return true;
        }
        let (_, flags, _, start, _, _) = event.get();
        let gst::GenericFormattedValue::Time(Some(start)) = start else {
            return false;
        };
        fault.report(|log| log.seeks.push(start));
        if fault.state().duration.is_none() {
            return false;
        }
        let flushes = flags.contains(gst::SeekFlags::FLUSH);
        let lanes = self.lanes();
        for lane in &lanes {
            if flushes {
                let flush = gst::event::FlushStart::builder().seqnum(event.seqnum());
                lane.pad.push_event(flush.build());
            }
            stop(&fault, lane);
            let _ = lane.pad.pause_task();
        }
        for lane in &lanes {
            // Its last push has returned.
            let _streaming = lane.pad.stream_lock();
            if flushes {
                let flush = gst::event::FlushStop::builder(true).seqnum(event.seqnum());
                lane.pad.push_event(flush.build());
            }
            let mut now = lane.now.lock().unwrap();
            now.position = start;
            now.seqnum = Some(event.seqnum());
            now.sought = Some(start);
            now.is_over = false;
        }
        for lane in &lanes {
            self.start_task(element, &fault, lane);
        }
        true
    }

    fn handle_event<T: Faulty>(&self, element: &T::Type, event: gst::Event) -> bool
    where
        T::Type: IsA<gst::Element>,
    {
        if let gst::EventView::Seek(seek) = event.view() {
            return self.seek(element.upcast_ref(), seek);
        }
        if let Some(fault) = self.fault() {
            fault.report(|log| log.events.push(event));
        }
        true
    }

    fn answer(&self, stream: Stream, query: &mut gst::QueryRef) -> bool {
        let Some(fault) = self.fault() else {
            return false;
        };
        let (duration, is_live) = {
            let state = fault.state();
            (state.duration, state.is_live)
        };
        let is_time = |format| format == gst::Format::Time;
        match query.view_mut() {
            gst::QueryViewMut::Duration(query) if is_time(query.format()) => {
                query.set(duration);
                duration.is_some()
            }
            gst::QueryViewMut::Position(query) if is_time(query.format()) => {
                let lane = self.lane(stream);
                query.set(lane.map(|lane| lane.now.lock().unwrap().position));
                true
            }
            gst::QueryViewMut::Seeking(query) if is_time(query.format()) => {
                query.set(duration.is_some(), gst::ClockTime::ZERO, duration);
                true
            }
            gst::QueryViewMut::Latency(query) => {
                query.set(is_live, gst::ClockTime::ZERO, gst::ClockTime::NONE);
                true
            }
            gst::QueryViewMut::Scheduling(query) => {
                query.set(gst::SchedulingFlags::SEEKABLE, 1, -1, 0);
                query.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            _ => false,
        }
    }

    /// On the way up, before the parent class.
    fn begin(&self, element: &gst::Element) -> Result<Arc<Shared>, gst::StateChangeError> {
        let fault = self.fault().ok_or(gst::StateChangeError)?;
        fault.report(|log| log.starts += 1);
        let gate = fault.state().start_gate.clone();
        if let Some(gate) = gate {
            gate.pass();
        }
        let mut state = fault.state();
        if state.refusals > 0 {
            state.refusals -= 1;
            drop(state);
            gst::element_error!(
                element,
                gst::ResourceError::OpenRead,
                ["refused by the test"]
            );
            return Err(gst::StateChangeError);
        }
        drop(state);
        Ok(fault)
    }
}

/// The task does not take a step any more.
fn stop(fault: &Shared, lane: &Lane) {
    let _state = fault.state();
    lane.is_stopped.store(true, SeqCst);
    fault.changed.notify_all();
}

struct Task {
    element: glib::WeakRef<gst::Element>,
    fault: Arc<Shared>,
    lane: Arc<Lane>,
    is_playing: Arc<AtomicBool>,
    has_siblings: bool,
}

impl Task {
    fn run(&self) {
        let pad = &self.lane.pad;
        let Some(((step, done), element)) = self.next().zip(self.element.upgrade()) else {
            let _ = pad.pause_task();
            return;
        };
        self.open(&element);
        let outcome = self.act(&element, step);
        if let Some(done) = done {
            let _ = done.send(outcome);
        }
        match outcome {
            Err(gst::FlowError::Flushing) => {
                let _ = pad.pause_task();
            }
            // As a demultiplexer, whose other streams may be linked.
            Err(gst::FlowError::NotLinked) if self.has_siblings => {}
            Err(gst::FlowError::Eos) => self.end(),
            Err(error) => self.fail(&element, error),
            Ok(_) => {}
        }
    }

    /// Waits for what is next. `None`: the task is to pause.
    fn next(&self) -> Option<(Step, Option<Sender<Outcome>>)> {
        let (lane, index) = (&self.lane, self.lane.stream.index());
        let mut state = self.fault.state();
        loop {
            if lane.is_stopped.load(SeqCst) {
                return None;
            }
            let mut now = lane.now.lock().unwrap();
            let may_run = !now.is_over && (!state.is_live || self.is_playing.load(SeqCst));
            if may_run {
                if let Some((step, done)) = state.steps[index].pop_front() {
                    return Some((step, Some(done)));
                }
                let planned = state.planned.iter().position(|(stream, position, _)| {
                    *stream == lane.stream && *position <= now.position
                });
                if let Some(planned) = planned.filter(|_| state.plays) {
                    return Some((state.planned.remove(planned).2, None));
                }
                if let Some(duration) = state.duration.filter(|_| state.plays) {
                    if now.position >= duration {
                        return Some((Step::Eos, None));
                    }
                    let buffer = lane.stream.buffer(state.marker, now.position);
                    now.position += lane.stream.duration();
                    return Some((Step::Buffer(buffer), None));
                }
            }
            drop(now);
            state = self.fault.changed.wait(state).unwrap();
        }
    }

    fn open(&self, element: &gst::Element) {
        let Lane { pad, stream, .. } = &*self.lane;
        let (must_open, sought, seqnum) = {
            let mut now = self.lane.now.lock().unwrap();
            let must_open = !std::mem::replace(&mut now.has_opened, true);
            (must_open, now.sought.take(), now.seqnum)
        };
        if must_open {
            let id = pad.create_stream_id(element, Some(&format!("{stream:?}")));
            pad.push_event(gst::event::StreamStart::new(&id));
            pad.push_event(gst::event::Caps::new(&stream.caps()));
        }
        if must_open || sought.is_some() {
            let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
            if let Some(start) = sought {
                segment.set_start(start);
                segment.set_time(start);
                segment.set_position(start);
            }
            let mut event = gst::event::Segment::builder(&segment);
            if let Some(seqnum) = seqnum {
                event = event.seqnum(seqnum);
            }
            pad.push_event(event.build());
        }
    }

    fn act(&self, element: &gst::Element, step: Step) -> Outcome {
        let pad = &self.lane.pad;
        let push = |buffer| {
            let outcome = pad.push(buffer);
            let index = self.lane.stream.index();
            self.fault.report(|log| log.buffers[index] += 1);
            outcome
        };
        match step {
            Step::Buffer(buffer) => push(buffer),
            Step::Now(mut buffer) => {
                buffer.make_mut().set_pts(element.current_running_time());
                push(buffer)
            }
            Step::Event(event) => {
                pad.push_event(event);
                Ok(gst::FlowSuccess::Ok)
            }
            Step::Error(text) => {
                gst::element_error!(element, gst::ResourceError::Read, ["{text}"]);
                self.fail(element, gst::FlowError::Error);
                Ok(gst::FlowSuccess::Ok)
            }
            Step::Eos => {
                self.end();
                Ok(gst::FlowSuccess::Ok)
            }
        }
    }

    /// As a stock source.
    fn fail(&self, element: &gst::Element, error: gst::FlowError) {
        gst::element_error!(
            element,
            gst::StreamError::Failed,
            ("Internal data stream error."),
            ["streaming stopped, reason {error:?}"]
        );
        self.end();
    }

    fn end(&self) {
        self.lane.now.lock().unwrap().is_over = true;
        self.lane.pad.push_event(gst::event::Eos::new());
    }
}

/// One of the two.
pub trait Faulty: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    /// With pads from PAUSED on only.
    const PADS_COME: bool;

    fn source(&self) -> &Source;

    fn of(parent: Option<&gst::Object>) -> &Self {
        let element = parent.unwrap().downcast_ref::<Self::Type>().unwrap();
        Self::from_obj(element)
    }

    fn changed(
        &self,
        transition: gst::StateChange,
        parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        let (source, obj) = (self.source(), self.obj());
        let element: &gst::Element = obj.upcast_ref();
        match transition {
            gst::StateChange::ReadyToPaused => {
                let fault = source.begin(element)?;
                if Self::PADS_COME {
                    for (stream, name) in [(Stream::Audio, "audio_%u"), (Stream::Video, "video_%u")]
                    {
                        let template = element.pad_template(name).unwrap();
                        source.add_lane::<Self>(&obj, &template, stream, &name.replace("%u", "0"));
                    }
                    element.no_more_pads();
                    for lane in source.lanes() {
                        source.start_task(element, &fault, &lane);
                    }
                }
            }
            gst::StateChange::PausedToReady => {
                let gate = source
                    .fault()
                    .and_then(|fault| fault.state().stop_gate.clone());
                if let Some(gate) = gate {
                    gate.pass();
                }
            }
            gst::StateChange::PlayingToPaused => source.is_playing.store(false, SeqCst),
            _ => {}
        }
        let result = parent();
        if transition == gst::StateChange::PausedToReady {
            if Self::PADS_COME {
                source.remove_lanes(element);
            }
            if let Some(fault) = source.fault() {
                fault.report(|log| log.stops += 1);
            }
        }
        let result = result?;
        let Some(fault) = source.fault() else {
            return Ok(result);
        };
        match transition {
            gst::StateChange::PausedToPlaying => {
                source.is_playing.store(true, SeqCst);
                fault.report(|_| ());
            }
            gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused
                if fault.state().is_live =>
            {
                return Ok(gst::StateChangeSuccess::NoPreroll);
            }
            _ => {}
        }
        Ok(result)
    }
}

fn raw(of: &str) -> gst::Caps {
    gst::Caps::new_empty_simple(of)
}

macro_rules! source {
    ($element:ident, $imp:ident, $class:literal, $protocol:literal, $pads_come:literal, [$($pad:literal: $presence:ident $caps:literal),+]) => {
        glib::wrapper! {
            pub struct $element(ObjectSubclass<$imp>) @extends gst::Element, gst::Object, @implements gst::URIHandler;
        }

        #[derive(Default)]
        pub struct $imp(Source);

        #[glib::object_subclass]
        impl ObjectSubclass for $imp {
            const NAME: &'static str = $class;
            type Type = $element;
            type ParentType = gst::Element;
            type Interfaces = (gst::URIHandler,);
        }

        impl ObjectImpl for $imp {
            fn properties() -> &'static [glib::ParamSpec] {
                static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> =
                    LazyLock::new(|| vec![glib::ParamSpecString::builder("fault").build()]);
                &PROPERTIES
            }

            fn set_property(&self, _: usize, value: &glib::Value, _: &glib::ParamSpec) {
                self.0.set_name(value.get().unwrap()).unwrap();
            }

            fn property(&self, _: usize, _: &glib::ParamSpec) -> glib::Value {
                self.0.name().to_value()
            }

            fn constructed(&self) {
                self.parent_constructed();
                let obj = self.obj();
                obj.set_element_flags(gst::ElementFlags::SOURCE);
                if !$pads_come {
                    let template = obj.pad_template("src").unwrap();
                    self.0.add_lane::<Self>(&obj, &template, Stream::Audio, "src");
                }
            }
        }

        impl GstObjectImpl for $imp {}

        impl ElementImpl for $imp {
            fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
                static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
                    gst::subclass::ElementMetadata::new("Fault", "Source", "Fails as told", "Tests")
                });
                Some(&METADATA)
            }

            fn pad_templates() -> &'static [gst::PadTemplate] {
                static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
                    let (src, mut all) = (gst::PadDirection::Src, Vec::new());
                    $(let presence = gst::PadPresence::$presence;
                    all.push(gst::PadTemplate::new($pad, src, presence, &raw($caps)).unwrap());)+
                    all
                });
                &TEMPLATES
            }

            fn change_state(
                &self,
                transition: gst::StateChange,
            ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
                self.changed(transition, || self.parent_change_state(transition))
            }
        }

        impl URIHandlerImpl for $imp {
            const URI_TYPE: gst::URIType = gst::URIType::Src;

            fn protocols() -> &'static [&'static str] {
                &[$protocol]
            }

            fn uri(&self) -> Option<String> {
                self.0.name().map(|name| format!("{}://{name}", $protocol))
            }

            fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
                let name = uri.strip_prefix(concat!($protocol, "://"));
                self.0.set_name(name.unwrap_or_default())
            }
        }

        impl Faulty for $imp {
            const PADS_COME: bool = $pads_come;

            fn source(&self) -> &Source {
                &self.0
            }
        }
    };
}

source!(FaultSrc, FaultSrcImp, "TestFaultSrc", "fault", false, ["src": Always "audio/x-raw"]);
source!(FaultAvSrc, FaultAvSrcImp, "TestFaultAvSrc", "faultav", true, [
    "audio_%u": Sometimes "audio/x-raw",
    "video_%u": Sometimes "video/x-raw"
]);
