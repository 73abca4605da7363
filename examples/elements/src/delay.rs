//! A filter that waits: each buffer leaves some milliseconds after it came, and no thread is held for it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstthreadbare::sharing::*;

glib::wrapper! {
    pub struct Delay(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
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
    fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let due_ns = clock_now_ns() + u64::from(self.delay_ms.load(Relaxed)) * 1_000_000;
        let src_pad = self.src_pad.clone();
        self.line.pass(async move {
            sleep_until(due_ns).await;
            src_pad.push(buffer).map(|_| ())
        })
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let known = gst::Pad::query_default(pad, Some(&*self.obj()), query);
        if let gst::QueryViewMut::Latency(latency) = query.view_mut() {
            let (is_live, min, max) = latency.result();
            let own = gst::ClockTime::from_mseconds(self.delay_ms.load(Relaxed).into());
            latency.set(is_live, min + own, max.map(|max| max + own));
        }
        known
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareExampleDelay";
    type Type = Delay;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let error = || Err(gst::FlowError::Error);
        let sink_pad = gst::Pad::builder_from_template(&template(klass, "sink"))
            .chain_function(move |_, parent, buffer| {
                pad_function::<Imp, _>(parent, error, |imp| imp.chain(buffer))
            })
            .event_function(|pad, parent, event| {
                pad_function::<Imp, _>(
                    parent,
                    || false,
                    |imp| {
                        imp.line
                            .event(imp.obj().upcast_ref(), pad, &imp.src_pad, event)
                    },
                )
            })
            .flags(gst::PadFlags::PROXY_CAPS)
            .build();
        let src_pad = gst::Pad::builder_from_template(&template(klass, "src"))
            .query_function(|pad, parent, query| {
                pad_function::<Imp, _>(parent, || false, |imp| imp.src_query(pad, query))
            })
            .flags(gst::PadFlags::PROXY_CAPS)
            .build();
        let (delay_ms, line) = (AtomicU32::new(50), Line::new(64));
        Imp {
            delay_ms,
            line,
            sink_pad,
            src_pad,
        }
    }
}

#[glib::derived_properties]
impl ObjectImpl for Imp {
    fn constructed(&self) {
        self.parent_constructed();
        for pad in [&self.sink_pad, &self.src_pad] {
            self.obj().add_pad(pad).expect("it is new");
        }
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    gstthreadbare::element_class!(
        "Example delay", "Generic", "Lets each buffer wait, and no thread", "You";
        "sink": Sink Always gst::Caps::new_any(), "src": Src Always gst::Caps::new_any()
    );
}
