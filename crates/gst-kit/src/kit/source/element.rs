//! An element with a source pad and a [`Driver`] behind it: pad functions, state changes, events and queries.

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::{Driver, Producer};
use crate::kit::pad_function;
use crate::kit::time::RunningTime;

/// A source element: its functions for state changes, around its [`Driver`]. The thread that changes the element's state calls
/// these functions, unless stated otherwise.
pub trait SourceElement: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    /// Produces the data, on the context's thread.
    type Producer: Producer;

    /// Returns the element's end of the task.
    fn driver(&self) -> &Driver<Self::Producer>;

    /// Returns the output pad.
    fn src_pad(&self) -> &gst::Pad;

    /// NULL to READY: opens the element's resources.
    ///
    /// # Errors
    /// Fails with the message for the application. The element's state does not change.
    fn open(&self) -> Result<(), gst::ErrorMessage> {
        Ok(())
    }

    /// READY to PAUSED: finds a [`Place`](crate::sharing::Place) and puts a new producer there, with [`Driver::add`]. `element`
    /// is this element.
    ///
    /// # Errors
    /// Fails with the message for the application. The element's state does not change.
    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage>;

    /// PAUSED to READY, when the pad is flushing; also after a failure on the way up.
    fn deactivate(&self) {
        self.driver().remove();
    }

    /// READY to NULL: closes the resources. Also called after a failure.
    fn close(&self) {}

    /// Whether the element produces data only in PLAYING. A source that is not live produces data from PAUSED on, so that sinks
    /// preroll.
    fn is_live(&self) -> bool {
        true
    }

    /// Called at the start and the end of a flush, on any thread. The flush comes from the application or from downstream.
    fn flush(&self, _flushing: bool) {}

    /// Whether [`SourceElement::activate`] starts at the position of a seek that the application has sent before. Only forward
    /// seeks to a byte are accepted.
    fn takes_early_seeks(&self) -> bool {
        false
    }

    /// Handles an event from downstream, on any thread.
    ///
    /// # Errors
    /// Returns the event if the default handler must handle it.
    fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
        Err(event)
    }

    /// Answers a query on the source pad, on any thread; see [`answer_query`]. By default, the latency is the wait of the
    /// context, and any caps are allowed.
    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let place = self.driver().place();
        let wait = place.map_or(gst::ClockTime::ZERO, |place| place.wait());
        let latency = (self.is_live(), wait, None);
        answer_query(pad, &*self.obj(), query, latency, || None)
    }
}

/// Creates the pad of a source from its template.
pub fn source_pad<T: SourceElement>(template: &gst::PadTemplate) -> gst::Pad
where
    T::Type: IsA<gst::Element>,
{
    gst::Pad::builder_from_template(template)
        .event_function(|pad, parent, event| {
            pad_function::<T, _>(parent, || false, |imp| src_event(imp, pad, event))
        })
        .query_function(|pad, parent, query| {
            pad_function::<T, _>(parent, || false, |imp| imp.answer_query(pad, query))
        })
        .build()
}

/// Handles an event from downstream. As in the stock sources, a flush from downstream ends at the source.
fn src_event<T: SourceElement>(source: &T, pad: &gst::Pad, event: gst::Event) -> bool
where
    T::Type: IsA<gst::Element>,
{
    let event = match source.handle_upstream_event(event) {
        Ok(handled) => return handled,
        Err(event) => event,
    };
    let flushing = match event.type_() {
        gst::EventType::FlushStart => true,
        gst::EventType::FlushStop => false,
        _ => return gst::Pad::event_default(pad, Some(&*source.obj()), event),
    };
    source.flush(flushing);
    source.driver().flush_upstream(pad, flushing);
    true
}

/// Answers latency, scheduling and caps queries on a source's pad; other queries get the default answer. `latency`: whether the
/// source is live, minimum and maximum. `caps` returns `None` if any caps are allowed.
pub fn answer_query(
    pad: &gst::Pad,
    element: &impl IsA<gst::Object>,
    query: &mut gst::QueryRef,
    latency: (bool, gst::ClockTime, Option<gst::ClockTime>),
    caps: impl FnOnce() -> Option<gst::Caps>,
) -> bool {
    match query.view_mut() {
        gst::QueryViewMut::Latency(query) => {
            let (is_live, min, max) = latency;
            query.set(is_live, min, max);
            true
        }
        gst::QueryViewMut::Scheduling(query) => {
            query.set(gst::SchedulingFlags::SEQUENTIAL, 1, -1, 0);
            query.add_scheduling_modes([gst::PadMode::Push]);
            true
        }
        gst::QueryViewMut::Caps(query) => {
            let caps = caps().unwrap_or_else(gst::Caps::new_any);
            let result = match query.filter() {
                Some(filter) => filter.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
                None => caps,
            };
            query.set_result(&result);
            true
        }
        _ => gst::Pad::query_default(pad, Some(element), query),
    }
}

/// Returns the intersection of the source pad's caps and its peer's.
pub fn allowed_caps(pad: &gst::Pad) -> gst::Caps {
    let template = pad.pad_template_caps();
    match pad.peer() {
        Some(peer) => peer.query_caps(Some(&template)).intersect(&template),
        None => template,
    }
}

/// Returns the initial events of a stream in running time.
pub fn opening(
    pad: &gst::Pad,
    element: &gst::Element,
    caps: Option<&gst::Caps>,
) -> Vec<gst::Event> {
    let stream_id = pad.create_stream_id(element, None);
    let start = gst::event::StreamStart::builder(&stream_id).group_id(gst::GroupId::next());
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    let mut events = vec![start.build()];
    events.extend(caps.map(gst::event::Caps::new));
    events.push(gst::event::Segment::new(&segment));
    events
}

/// Returns the initial events of a stream in running time, for [`Producer::opening`]: its start, its caps if they are known, and
/// a segment.
pub fn opening_events(pad: &gst::Pad, caps: Option<&gst::Caps>) -> Vec<gst::Event> {
    let element = pad.parent_element();
    element.map_or_else(Vec::new, |element| opening(pad, &element, caps))
}

/// Performs the state changes of a source, around those of its parent class.
///
/// # Errors
/// Fails if the element cannot reach that state. The reason has been posted to the application.
pub fn change_state<T: SourceElement>(
    source: &T,
    transition: gst::StateChange,
    parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
) -> Result<gst::StateChangeSuccess, gst::StateChangeError>
where
    T::Type: IsA<gst::Element>,
{
    let obj = source.obj();
    let element: &gst::Element = obj.upcast_ref();
    let prepared = match transition {
        gst::StateChange::NullToReady => source.open(),
        gst::StateChange::ReadyToPaused => source.activate(element),
        gst::StateChange::PlayingToPaused if source.is_live() => {
            source.driver().pause();
            Ok(())
        }
        _ => Ok(()),
    };
    if let Err(error) = prepared {
        source.deactivate();
        element.post_error_message(error);
        return Err(gst::StateChangeError);
    }
    let result = parent();
    match transition {
        // The pad is flushing by now, so a running push returns.
        gst::StateChange::PausedToReady => source.deactivate(),
        gst::StateChange::ReadyToNull => {
            source.driver().take_early_seek();
            source.close();
        }
        _ if result.is_err() => {}
        gst::StateChange::PausedToPlaying => source.driver().start(RunningTime::of(element)),
        gst::StateChange::ReadyToPaused if !source.is_live() => {
            source.driver().start(RunningTime::default());
        }
        gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused if source.is_live() => {
            return Ok(gst::StateChangeSuccess::NoPreroll);
        }
        _ => {}
    }
    result
}

/// Handles an event that the application sends to a source.
///
/// # Errors
/// Returns the event if the parent class must handle it.
pub fn send_event<T: SourceElement>(source: &T, event: gst::Event) -> Result<bool, gst::Event>
where
    T::Type: IsA<gst::Element>,
{
    match event.type_() {
        gst::EventType::FlushStart => source.flush(true),
        gst::EventType::FlushStop => source.flush(false),
        _ => {}
    }
    if source.takes_early_seeks() && source.driver().place().is_none() && is_early_seek(&event) {
        source.driver().keep_early_seek(event);
        return Ok(true);
    }
    match source.driver().handle_event(source.src_pad(), event) {
        // An upstream event is handled as if it came from downstream.
        Err(event) if event.is_upstream() && !event.is_downstream() => {
            Ok(source.src_pad().send_event(event))
        }
        result => result,
    }
}

fn is_early_seek(event: &gst::Event) -> bool {
    let gst::EventView::Seek(seek) = event.view() else {
        return false;
    };
    let (rate, _, start_type, start, stop_type, _) = seek.get();
    let is_from_end = [start_type, stop_type].contains(&gst::SeekType::End);
    rate > 0.0 && start.format() == gst::Format::Bytes && !is_from_end
}

/// Handles a new clock.
pub fn set_clock<T: SourceElement>(source: &T, clock: Option<&gst::Clock>)
where
    T::Type: IsA<gst::Element>,
{
    let time = RunningTime::with_clock(&*source.obj(), clock.cloned());
    let driver = source.driver();
    driver.with_producer(move |producer, _| producer.set_time(time));
}
