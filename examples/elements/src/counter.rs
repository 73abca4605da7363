//! A sink: counts what arrives, each buffer at its time.

use std::sync::{Mutex, OnceLock};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstthreadbare::sharing::*;

glib::wrapper! {
    pub struct Counter(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
}

#[derive(Default)]
pub struct Count(u64);

impl Renderer for Count {
    fn render(&mut self, _buffer: &gst::BufferRef) -> Rendered {
        self.0 += 1;
        Rendered::Done
    }
}

pub struct Imp {
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink: OnceLock<Sink<Count>>,
    sink_pad: gst::Pad,
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareExampleCounter";
    type Type = Counter;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        Imp {
            sync: Mutex::default(),
            stats: Mutex::default(),
            sink: OnceLock::new(),
            sink_pad: sink_pad::<Self>(&template(klass, "sink")),
        }
    }
}

impl ObjectImpl for Imp {
    gstthreadbare::properties_of_groups!(sync, stats);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.add_pad(&self.sink_pad).expect("it is new");
        obj.set_element_flags(gst::ElementFlags::SINK);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| {
            let counted = obj.imp().sink().with_renderer(|count| count.0);
            gst::Structure::builder("counter")
                .field("counted", counted)
                .build()
        });
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    gstthreadbare::element_class!(
        "Example counter", "Sink/Generic", "Counts buffers at their time", "You";
        "sink": Sink Always gst::Caps::new_any()
    );
    gstthreadbare::sink_life!();
}

impl SinkElement for Imp {
    type Renderer = Count;

    fn sink(&self) -> &Sink<Count> {
        let make = || {
            Sink::new(
                self.obj().upcast_ref(),
                Count::default(),
                lock(&self.sync).clone(),
            )
        };
        self.sink.get_or_init(make)
    }
}
