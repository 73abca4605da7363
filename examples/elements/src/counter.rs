//! A sink that counts each buffer at the buffer's time.

use std::sync::OnceLock;

use gst::glib::{self, Properties};
use gstthreadbare::sharing::prelude::*;

gstthreadbare::element! {
    Counter(Imp) "ThreadbareExampleCounter", [sink_pad];
    object { gstthreadbare::properties_with_groups!(); }
    element { gstthreadbare::sink_life!(); }
    "Example counter", "Sink/Generic", "Counts buffers at their time", "You";
    "sink": Sink Always gst::Caps::new_any()
}

pub struct Count(u64);

impl Renderer for Count {
    fn render(&mut self, _buffer: &gst::Buffer) -> Rendered {
        self.0 += 1;
        Rendered::Done
    }
}

#[derive(Properties)]
#[properties(wrapper_type = Counter)]
pub struct Imp {
    #[property(name = "counted", blurb = "Buffers so far", type = u64, get = |s: &Self| s.sink().with_renderer(|count| count.0))]
    sink: OnceLock<Sink<Count>>,
    sink_pad: gst::Pad,
}

impl Imp {
    fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
        Imp {
            sink: OnceLock::new(),
            sink_pad: sink_pad::<Self>(&template("sink")),
        }
    }
}

impl SinkElement for Imp {
    type Renderer = Count;

    fn sink(&self) -> &Sink<Count> {
        let (obj, sync) = (self.obj(), SyncProperties::default());
        self.sink
            .get_or_init(|| Sink::new(obj.upcast_ref(), Count(0), sync))
    }
}
