//! A source that pushes an empty buffer every 20 ms.

use std::sync::Mutex;

use gst::glib::{self, Properties};
use gstthreadbare::sharing::prelude::*;

gstthreadbare::element! {
    Ticker(Imp) "ThreadbareExampleTicker", [src_pad];
    object { gstthreadbare::properties_with_groups!(context); }
    element { gstthreadbare::source_life!(); }
    "Example ticker", "Source/Generic", "Gives an empty buffer every 20 ms", "You";
    "src": Src Always gst::Caps::new_any()
}

const INTERVAL_NS: u64 = 20_000_000;

/// State of the source on the context's thread.
pub struct Ticks {
    left: u32,
    due_ns: u64,
    time: RunningTime,
}

impl Producer for Ticks {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.due_ns = self.due_ns.max(cx.now_ns());
        cx.wake_self();
        Ok(())
    }

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        opening_events(pad, None)
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if self.left == 0 {
            return Produced::Event(gst::event::Eos::new());
        }
        if cx.now_ns() < self.due_ns {
            cx.set_timer(self.due_ns, Precision::NotBefore);
            return Produced::Idle;
        }
        self.left -= 1;
        self.due_ns += INTERVAL_NS;
        let mut buffer = gst::Buffer::new();
        buffer.make_mut().set_pts(self.time.at(cx.now_ns()));
        Produced::Buffer(buffer)
    }
}

#[derive(Properties)]
#[properties(wrapper_type = Ticker)]
pub struct Imp {
    #[property(name = "num-buffers", blurb = "Buffers until the end of the stream", get, set, default = u32::MAX)]
    num_buffers: Mutex<u32>,
    context: Mutex<ContextSettings>,
    driver: Driver<Ticks>,
    src_pad: gst::Pad,
}

impl Imp {
    fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
        Imp {
            num_buffers: Mutex::new(u32::MAX),
            context: Mutex::default(),
            driver: Driver::default(),
            src_pad: source_pad::<Self>(&template("src")),
        }
    }
}

impl SourceElement for Imp {
    type Producer = Ticks;

    fn driver(&self) -> &Driver<Ticks> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let ticks = Ticks {
            left: self.obj().num_buffers(),
            due_ns: 0,
            time: RunningTime::default(),
        };
        self.driver.add(element, &self.src_pad, place, ticks)
    }
}
