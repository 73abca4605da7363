//! Sends a session's RTCP from a context's thread: a timer shared by the thread's sessions, and a pad.

use std::sync::Arc;

use gst::prelude::*;
use threadbare_runtime::{Cx, Precision, Ready, clock_now_ns};

use super::reports::Reports;
use crate::kit::pending::{Pending, scope};
use crate::kit::source::{Produced, Producer};
use crate::rtp::identity::seed;
use crate::rtp::session::PACKET_BYTES_MAX;

pub(super) struct Reporter {
    reports: Arc<Reports>,
    pad: gst::Pad,
    has_ended: bool,
}

impl Reporter {
    pub(super) fn new(reports: Arc<Reports>, pad: gst::Pad) -> Self {
        Reporter {
            reports,
            pad,
            has_ended: false,
        }
    }

    fn next(&self, now_ns: u64) -> Option<gst::Buffer> {
        let mut bytes = [0; PACKET_BYTES_MAX];
        let len = self.reports.session().poll_transmit(now_ns, &mut bytes)?;
        Some(gst::Buffer::from_slice(bytes[..len].to_vec()))
    }

    /// Sends a BYE now, because the pads are about to close.
    pub(super) fn leave(&mut self) {
        let now_ns = clock_now_ns();
        self.reports.session().send_bye(now_ns, "");
        // Drop the futures from downstream without waiting for them.
        let mut left = Pending::default();
        while let Some(buffer) = self.next(now_ns) {
            if scope(&mut left, || self.pad.push(buffer)).is_err() {
                return;
            }
        }
    }
}

impl Producer for Reporter {
    // A failed report does not stop the media, because the next report replaces it. It does not stop later reports either,
    // because downstream may have failed only because it has not started yet.
    const REPORTS_FLOW: bool = false;
    const OUTLIVES_FLOW_ERRORS: bool = true;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        cx.clear_timer();
    }

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        // Poll sessions with the slice's time, because the timer may fire half a slice early.
        let next = self.next(cx.now_ns());
        self.reports.tell_events();
        if let Some(buffer) = next {
            return Produced::Buffer(buffer);
        }
        let (due_ns, has_left) = {
            let session = self.reports.session();
            (session.next_timeout(), session.has_left())
        };
        match due_ns {
            Some(due_ns) => cx.set_timer(due_ns, Precision::About),
            None => cx.clear_timer(),
        }
        if has_left && !std::mem::replace(&mut self.has_ended, true) {
            return Produced::Event(gst::event::Eos::new());
        }
        Produced::Idle
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        // Reports are a different stream from the incoming ones.
        let stream_id = format!("{:016x}/{}", seed(), pad.name());
        let start = gst::event::StreamStart::builder(&stream_id)
            .group_id(gst::GroupId::next())
            .build();
        let caps = gst::Caps::new_empty_simple("application/x-rtcp");
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![
            start,
            gst::event::Caps::new(&caps),
            gst::event::Segment::new(&segment),
        ]
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        gst::info!(
            crate::kit::CAT,
            obj = self.pad,
            "downstream refused a report: {error}"
        );
    }
}
