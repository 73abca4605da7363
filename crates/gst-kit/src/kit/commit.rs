//! The end of an asynchronous state change, on a streaming thread.
#![allow(missing_docs, reason = "no stable interface")]

use gst::glib::translate::IntoGlib;
use gst::prelude::*;

/// A state change that a streaming thread has committed.
///
/// A streaming thread must not take the element's state lock, because the thread that holds the lock may wait for the stream to
/// stop. If the streaming thread called `gst_element_continue_state` without that lock, `change_state` could run in both threads
/// at the same time. So, like the base class of the stock sinks, the streaming thread takes only the object lock, under which the
/// pending state is decided.
pub struct Committed {
    from: gst::ffi::GstState,
    next: gst::ffi::GstState,
    reached: gst::ffi::GstState,
}

impl Committed {
    /// Commits the pending change to PAUSED or PLAYING. Returns `None` if no such change is pending, for example because another
    /// thread is taking the element down.
    pub fn decide(element: &gst::Element) -> Option<Self> {
        let _locked = element.object_lock();
        let raw: *mut gst::ffi::GstElement = element.as_ptr();
        // SAFETY: a live element, whose reference the caller holds. GStreamer protects the four fields by the object lock,
        // which this thread holds; the values written are states and a state change's result.
        unsafe {
            let reached = (*raw).pending_state;
            if reached != gst::ffi::GST_STATE_PAUSED && reached != gst::ffi::GST_STATE_PLAYING {
                return None;
            }
            let (from, next) = ((*raw).current_state, (*raw).next_state);
            (*raw).current_state = reached;
            (*raw).next_state = gst::ffi::GST_STATE_VOID_PENDING;
            (*raw).pending_state = gst::ffi::GST_STATE_VOID_PENDING;
            (*raw).last_return = gst::ffi::GST_STATE_CHANGE_SUCCESS;
            Some(Committed {
                from,
                next,
                reached,
            })
        }
    }

    pub fn is_playing(&self) -> bool {
        self.reached == gst::ffi::GST_STATE_PLAYING
    }

    /// Posts the messages that an application expects, and wakes waiters for the state. No lock is held.
    pub fn post(self, element: &gst::Element) {
        let paused = gst::State::Paused.into_glib();
        if !self.is_playing() || self.from != paused {
            let pending = if self.is_playing() {
                gst::State::Playing
            } else {
                gst::State::VoidPending
            };
            let (old, new) = (state(self.from), state(self.next.max(paused)));
            post_change(element, old, new, pending);
        }
        let done = gst::message::AsyncDone::builder().src(element).build();
        let _ = element.post_message(done);
        if self.is_playing() {
            let (paused, playing) = (gst::State::Paused, gst::State::Playing);
            post_change(element, paused, playing, gst::State::VoidPending);
        }
        // SAFETY: the condition lives as long as the element; a broadcast needs no lock.
        unsafe {
            let raw: *mut gst::ffi::GstElement = element.as_ptr();
            gst::glib::ffi::g_cond_broadcast(&raw mut (*raw).state_cond);
        }
    }
}

fn state(raw: gst::ffi::GstState) -> gst::State {
    match raw {
        gst::ffi::GST_STATE_PLAYING => gst::State::Playing,
        gst::ffi::GST_STATE_PAUSED => gst::State::Paused,
        gst::ffi::GST_STATE_READY => gst::State::Ready,
        gst::ffi::GST_STATE_NULL => gst::State::Null,
        _ => gst::State::VoidPending,
    }
}

fn post_change(element: &gst::Element, old: gst::State, new: gst::State, pending: gst::State) {
    let changed = gst::message::StateChanged::builder(old, new, pending);
    let _ = element.post_message(changed.src(element).build());
}
