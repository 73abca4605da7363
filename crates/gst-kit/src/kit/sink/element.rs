//! An element with one sink pad and a [`Sink`] behind it: pad functions, state changes, events and queries.

use std::sync::atomic::Ordering::Relaxed;

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::core::Change;
use super::{Renderer, Sink};
use crate::kit::time::RunningTime;
use crate::kit::{or_post, pad_function};

/// An element with a [`Sink`].
pub trait SinkElement: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    /// Renders each buffer.
    type Renderer: Renderer;

    /// Returns the sink. It is created on first use, because it refers to the element.
    fn sink(&self) -> &Sink<Self::Renderer>;

    /// NULL to READY: opens the element's resources.
    ///
    /// # Errors
    /// Fails with the message for the application. The element's state does not change.
    fn open(&self) -> Result<(), gst::ErrorMessage> {
        Ok(())
    }

    /// READY to PAUSED, before data can arrive.
    ///
    /// # Errors
    /// Fails with the message for the application. The element's state does not change.
    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        Ok(())
    }

    /// PAUSED to READY, before the pad is deactivated: makes all threads that wait in the element return.
    fn release(&self) {}

    /// PAUSED to READY, when no more data can arrive; also after a failure of [`SinkElement::activate`].
    fn deactivate(&self) {}

    /// READY to NULL: closes the resources. Also called after a failure of [`SinkElement::open`].
    fn close(&self) {}

    /// Handles an arriving buffer.
    ///
    /// # Errors
    /// Fails with the flow error that the push returns.
    fn handle_buffer(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.sink().chain(buffer)
    }

    /// Handles an arriving list.
    ///
    /// # Errors
    /// Fails with the flow error that the push returns.
    fn handle_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.sink().chain_list(list)
    }

    /// Called for an arriving event, before the [`Sink`] handles it.
    fn notice_event(&self, _event: &gst::Event) {}

    /// Answers a query on the pad. Returns `false` for the default answer.
    fn answer_query(&self, _query: &mut gst::QueryRef) -> bool {
        false
    }
}

/// Creates the pad of a sink element from its template: buffers, lists and events go to its [`Sink`].
pub fn sink_pad<T: SinkElement>(template: &gst::PadTemplate) -> gst::Pad
where
    T::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    gst::Pad::builder_from_template(template)
        .chain_function(move |_, parent, buffer| {
            pad_function::<T, _>(parent, error, |imp| imp.handle_buffer(buffer))
        })
        .chain_list_function(move |_, parent, list| {
            pad_function::<T, _>(parent, error, |imp| imp.handle_list(list))
        })
        .event_function(|pad, parent, event| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    imp.notice_event(&event);
                    imp.sink().event(&event)
                        || gst::Pad::event_default(pad, Some(&*imp.obj()), event)
                },
            )
        })
        .query_function(|pad, parent, query| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    imp.answer_query(query)
                        || gst::Pad::query_default(pad, Some(&*imp.obj()), query)
                },
            )
        })
        .build()
}

/// Performs the state changes of a sink element, around those of its parent class.
///
/// # Errors
/// Fails if the element cannot reach that state. The reason has been posted to the application.
pub fn change_state<T: SinkElement>(
    imp: &T,
    transition: gst::StateChange,
    parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
) -> Result<gst::StateChangeSuccess, gst::StateChangeError>
where
    T::Type: IsA<gst::Element>,
{
    let (obj, sink) = (imp.obj(), imp.sink());
    let element: &gst::Element = obj.upcast_ref();
    let mut is_async = false;
    let prepared = match transition {
        gst::StateChange::NullToReady => imp.open().inspect_err(|_| imp.close()),
        gst::StateChange::ReadyToPaused => imp.activate().inspect_err(|_| imp.deactivate()),
        _ => Ok(()),
    };
    or_post(imp, prepared)?;
    match transition {
        gst::StateChange::ReadyToPaused => {
            let asynchronous = sink.0.sync.preroll.load(Relaxed);
            sink.change(Change::Start { asynchronous }, None);
            is_async = asynchronous;
        }
        // Releases all waiting threads before the pads are deactivated.
        gst::StateChange::PausedToReady => {
            imp.release();
            let actions = sink.change(Change::Stop, None);
            sink.0.carry_out(actions);
        }
        gst::StateChange::PausedToPlaying => sink.0.wait_told(),
        gst::StateChange::PlayingToPaused => {
            is_async = sink.change(Change::Pause, None).announce;
        }
        _ => {}
    }
    if is_async {
        let start = gst::message::AsyncStart::builder().src(element).build();
        let _ = element.post_message(start);
        let actions = sink.announced();
        sink.0.carry_out(actions);
    }
    let result = parent();
    match transition {
        gst::StateChange::PausedToReady => imp.deactivate(),
        gst::StateChange::ReadyToNull => imp.close(),
        _ => {}
    }
    let result = result?;
    if transition == gst::StateChange::PausedToPlaying {
        let actions = sink.change(Change::Play, Some(RunningTime::of(element)));
        sink.0.carry_out(actions);
    }
    // Data may have arrived in the meantime. Then the commit ends the change, so the change is still asynchronous.
    Ok(if is_async {
        gst::StateChangeSuccess::Async
    } else {
        result
    })
}

/// Handles an event that the application sends to a sink.
///
/// # Errors
/// Returns the event if the parent class must handle it.
pub fn send_event<R: Renderer>(
    sink: &Sink<R>,
    pad: &gst::Pad,
    event: gst::Event,
) -> Result<bool, gst::Event> {
    match event.view() {
        gst::EventView::Latency(latency) => {
            sink.set_latency(latency.latency());
            Ok(pad.push_event(event))
        }
        // A sink on a shared thread does not support steps, because it cannot count their amount.
        gst::EventView::Step(_) => {
            if let Some(element) = sink.0.element.upgrade() {
                gst::element_warning!(
                    element,
                    gst::CoreError::Event,
                    ("A STEP event is refused: this sink cannot step. Send a flushing SEEK instead.")
                );
            }
            Ok(false)
        }
        _ if event.is_upstream() => Ok(pad.push_event(event)),
        _ => Err(event),
    }
}

/// Handles a new clock.
pub fn set_clock<T: SinkElement>(imp: &T, clock: Option<&gst::Clock>)
where
    T::Type: IsA<gst::Element>,
{
    let time = RunningTime::with_clock(&*imp.obj(), clock.cloned());
    imp.sink().set_time(time);
}

/// Answers the queries that concern the sink itself. Returns `false` if the query is for the parent class.
pub fn answer_element_query<R: Renderer>(
    sink: &Sink<R>,
    pad: &gst::Pad,
    query: &mut gst::QueryRef,
) -> bool {
    match query.view_mut() {
        gst::QueryViewMut::Latency(latency) => {
            let mut upstream = gst::query::Latency::new();
            if !pad.peer_query(&mut upstream) {
                return false;
            }
            let (is_live, min, max) = upstream.result();
            let sync = &sink.0.sync;
            let (mut delay, mut deadline) = (gst::ClockTime::ZERO, gst::ClockTime::ZERO);
            if is_live && sync.sync.load(Relaxed) {
                delay = time(sync.render_delay_ns.load(Relaxed));
                deadline = time(sync.processing_deadline_ns.load(Relaxed));
            }
            // Like in the stock sinks, the deadline counts only if upstream's maximum has room for it.
            if max.is_some_and(|max| min + deadline > max) {
                deadline = gst::ClockTime::ZERO;
            }
            latency.set(is_live, min + delay + deadline, max.map(|max| max + delay));
            true
        }
        gst::QueryViewMut::Position(position) if position.format() == gst::Format::Time => {
            let known = sink.position();
            if let Some(known) = known {
                position.set(known);
            }
            known.is_some()
        }
        _ => false,
    }
}

/// Converts to a time that can be added to another one.
fn time(ns: u64) -> gst::ClockTime {
    gst::ClockTime::from_nseconds(ns.min(u64::MAX / 4))
}

impl<R: Renderer> Sink<R> {
    /// Returns the stream time of the clock, which stands still in PAUSED. Without a clock, it is the stream time of the data
    /// that was rendered last.
    fn position(&self) -> Option<gst::ClockTime> {
        let state = self.0.lock();
        let timing = self.0.timing(&state);
        let has_ended = state.core.has_ended();
        let now_ns = match timing.sync && !has_ended {
            true if state.core.is_playing() => state.time.now_ns(),
            true => self.paused_ns(),
            false => None,
        };
        if let Some(now_ns) = now_ns {
            let now_ns = now_ns.max(0).unsigned_abs();
            let running = gst::ClockTime::from_nseconds(now_ns.saturating_sub(state.latency_ns));
            return state.position.at_running(running);
        }
        let of_waiting = || {
            let (begin, duration) = state.core.waiting()?.times();
            let (begin, _) = state.position.stream_span(begin?, duration)?;
            Some((begin, begin))
        };
        let (begin, end) = state.position.span().or_else(of_waiting)?;
        // The stock sinks do the same.
        Some(if has_ended { end } else { begin })
    }

    /// Returns the running time at the start of the pause, if the sink uses a clock.
    fn paused_ns(&self) -> Option<i64> {
        let element = self.0.element.upgrade()?;
        element.clock()?;
        i64::try_from(element.start_time()?.nseconds()).ok()
    }
}
