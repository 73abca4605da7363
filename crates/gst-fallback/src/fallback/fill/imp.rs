//! Properties, queries and states of a fill.

use std::sync::{Arc, Mutex};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::filler::{Deliver, Filler, Kind};
use super::format::Media;
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::source::{self, Driver, SourceElement};

#[derive(Properties)]
#[properties(wrapper_type = super::Fill)]
pub struct Fill {
    #[property(name = "caps", nick = "Caps", blurb = "Preferred caps of the output, used if downstream accepts them", type = Option<gst::Caps>, get = |s: &Self| lock(&s.wanted).clone())]
    wanted: Mutex<Option<gst::Caps>>,
    kind: Mutex<Kind>,
    context: Mutex<ContextSettings>,
    driver: Driver<Filler>,
    src_pad: gst::Pad,
}

impl Fill {
    /// Configures a new fill.
    pub(super) fn set(&self, kind: Kind, wanted: Option<gst::Caps>) {
        *lock(&self.kind) = kind;
        *lock(&self.wanted) = wanted;
    }

    fn what(&self) -> (Kind, Option<gst::Caps>) {
        (lock(&self.kind).clone(), lock(&self.wanted).clone())
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Fill {
    const NAME: &'static str = "ThreadbareFallbackFill";
    type Type = super::Fill;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        Fill {
            wanted: Mutex::default(),
            kind: Mutex::new(Kind::Silence),
            context: Mutex::default(),
            driver: Driver::default(),
            src_pad: source::source_pad::<Fill>(&crate::kit::template(klass, "src")),
        }
    }
}

impl ObjectImpl for Fill {
    crate::kit::properties_with_groups!(context);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_timed_pad(&*self.obj(), &self.src_pad);
    }
}

impl GstObjectImpl for Fill {}

fn template() -> gst::Caps {
    let mut caps = Media::Audio.caps();
    caps.merge(Media::Video.caps());
    caps
}

impl ElementImpl for Fill {
    crate::kit::element_class!(
        "Thread-sharing fill",
        "Source/Audio/Video",
        "Generates silence or shows one picture, on the thread of a shared context";
        "src": Src Always template()
    );

    crate::source_life!();
}

impl SourceElement for Fill {
    type Producer = Filler;

    fn driver(&self) -> &Driver<Filler> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let fill = self.obj().downgrade();
        let deliver: Deliver = Arc::new(move |painted| {
            if let Some(fill) = fill.upgrade() {
                let driver = &fill.imp().driver;
                driver.with_producer(move |filler, cx| {
                    filler.take(painted);
                    cx.wake_self();
                });
            }
        });
        let filler = Filler::new(element, &self.src_pad, self.what(), place.wait(), deliver);
        self.driver.add(element, &self.src_pad, place, filler)
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        // Each buffer is available before its time.
        let latency = (true, self.driver.wait(&self.context), None);
        source::answer_query(pad, &*self.obj(), query, latency, || {
            let (kind, wanted) = self.what();
            Some(kind.media().caps_with(wanted.as_ref()))
        })
    }
}
