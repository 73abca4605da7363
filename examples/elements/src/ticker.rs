//! A source: an empty buffer every 20 ms.

use std::sync::Mutex;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstthreadbare::sharing::{self, *};

glib::wrapper! {
    pub struct Ticker(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
}

const INTERVAL_NS: u64 = 20_000_000;

/// Lives on the context's thread.
#[derive(Default)]
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

    fn stop(&mut self, cx: &mut Cx<'_>) {
        cx.clear_timer();
    }

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let element = pad.parent_element();
        element.map_or_else(Vec::new, |element| sharing::opening(pad, &element, None))
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

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareExampleTicker";
    type Type = Ticker;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        Imp {
            num_buffers: Mutex::new(u32::MAX),
            context: Mutex::default(),
            driver: Driver::default(),
            src_pad: source_pad::<Self>(&template(klass, "src")),
        }
    }
}

impl ObjectImpl for Imp {
    gstthreadbare::properties_with_groups!(context);

    fn constructed(&self) {
        self.parent_constructed();
        self.obj().add_pad(&self.src_pad).expect("it is new");
        self.obj().set_element_flags(gst::ElementFlags::SOURCE);
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    gstthreadbare::element_class!(
        "Example ticker", "Source/Generic", "Gives an empty buffer every 20 ms", "You";
        "src": Src Always gst::Caps::new_any()
    );
    gstthreadbare::live_source_life!();
}

impl LiveSource for Imp {
    type Producer = Ticks;

    fn driver(&self) -> &Driver<Ticks> {
        &self.driver
    }

    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        let element = self.obj().clone().upcast();
        let place = lock(&self.context).place(&element)?;
        let left = self.obj().num_buffers();
        let ticks = Ticks {
            left,
            ..Ticks::default()
        };
        self.driver.add(&element, &self.src_pad, place, ticks)
    }
}
