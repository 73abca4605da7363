//! A filter that delays buffers. Each buffer leaves some milliseconds after it has arrived. No thread is blocked during the delay.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gst::glib::{self, Properties};
use gstthreadbare::sharing::prelude::*;

gstthreadbare::element! {
    Delay(Imp) "ThreadbareExampleDelay", [sink_pad, src_pad];
    object { gstthreadbare::properties_with_groups!(); }
    element {}
    "Example delay", "Generic", "Lets each buffer wait, and no thread", "You";
    "sink": Sink Always gst::Caps::new_any(), "src": Src Always gst::Caps::new_any()
}

#[derive(Properties)]
#[properties(wrapper_type = Delay)]
pub struct Imp {
    #[property(name = "delay", blurb = "How long each buffer waits, ms", type = u32, get = |s: &Self| s.delay_ms.load(Relaxed), set = |s: &Self, ms| s.delay_ms.store(ms, Relaxed), default = 50)]
    delay_ms: AtomicU32,
    line: Line,
    sink_pad: gst::Pad,
    src_pad: gst::Pad,
}

impl Imp {
    fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
        let (sink_pad, src_pad) = filter_pads::<Self>(&template("sink"), &template("src"));
        Imp {
            delay_ms: AtomicU32::new(50),
            line: Line::new(64),
            sink_pad,
            src_pad,
        }
    }
}

impl FilterElement for Imp {
    fn line(&self) -> &Line {
        &self.line
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn handle(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let due_ns = clock_now_ns() + self.latency().nseconds();
        let src_pad = self.src_pad.clone();
        self.line.pass(async move {
            sleep_until(due_ns).await;
            src_pad.push(buffer).map(|_| ())
        })
    }

    fn latency(&self) -> gst::ClockTime {
        gst::ClockTime::from_mseconds(self.delay_ms.load(Relaxed).into())
    }
}
