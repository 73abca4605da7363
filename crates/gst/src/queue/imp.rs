//! Properties, pads and states of `ts-queue`.

use std::sync::{LazyLock, Mutex};

use gst::glib::subclass::{Signal, SignalId};
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use crate::kit::context::ContextSettings;
use crate::kit::crossing::{self, Crosses, Crossing, Passes};
use crate::kit::emit_if_heard;
use crate::kit::queue::{Queue as Items, QueueProperties, QueueReader};
use crate::kit::time::RunningTime;

#[derive(Properties)]
#[properties(wrapper_type = super::Queue)]
pub struct Queue {
    context: Mutex<ContextSettings>,
    properties: Mutex<QueueProperties>,
    sink_pad: gst::Pad,
    crossing: Crossing<QueueReader>,
}

impl Crosses for Queue {
    type Producer = QueueReader;

    fn crossing(&self) -> &Crossing<QueueReader> {
        &self.crossing
    }

    fn context(&self) -> &Mutex<ContextSettings> {
        &self.context
    }

    fn sink_pad(&self) -> &gst::Pad {
        &self.sink_pad
    }
}

/// The signals, in the order of [`crate::kit::queue::Notice`].
static SIGNALS: LazyLock<[SignalId; 3]> = LazyLock::new(|| {
    ["overrun", "underrun", "running"].map(|name| {
        SignalId::lookup(name, super::Queue::static_type()).expect("the class has this signal")
    })
});

#[glib::object_subclass]
impl ObjectSubclass for Queue {
    const NAME: &'static str = "ThreadbareQueue";
    type Type = super::Queue;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = crossing::sink_pad::<Queue>(&crate::kit::template(klass, "sink"));
        let src_pad = crossing::src_pad::<Queue>(&crate::kit::template(klass, "src"));
        // The element does not exist yet; its pad leads to it once a notice is due.
        let pad = src_pad.clone();
        let items = Items::new(move |notice| {
            // This must be cheap: with a steady stream, each buffer finds the queue empty and starts it again. Usually no handler
            // is connected.
            if let Some(element) = pad.parent_element() {
                emit_if_heard(&element, SIGNALS[notice as usize], &[]);
            }
        });
        let of_reader = items.clone();
        let make =
            move |element: &gst::Element| QueueReader::new(of_reader.clone(), element.downgrade());
        Queue {
            context: Mutex::default(),
            properties: Mutex::new(QueueProperties(items.clone())),
            crossing: Crossing::new(items, src_pad, Passes::AsTheyAre, make),
            sink_pad,
        }
    }
}

impl ObjectImpl for Queue {
    crate::kit::properties_with_groups!(context, properties);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            ["overrun", "underrun", "running"]
                .map(|name| Signal::builder(name).build())
                .into()
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        self.crossing.add_to(&*self.obj(), &self.sink_pad);
    }
}

impl GstObjectImpl for Queue {}

impl ElementImpl for Queue {
    crate::kit::element_class!(
        "Thread-sharing queue",
        "Generic",
        "Queues data between streaming threads; its downstream side runs on a context's thread";
        "sink": Sink Always gst::Caps::new_any(),
        "src": Src Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => {
                // Sinks downstream have to preroll.
                self.crossing.start(RunningTime::default());
                let opened = self.crossing.open(self.obj().upcast_ref(), &self.context);
                crate::kit::or_post(self, opened)?;
            }
            gst::StateChange::PausedToReady => self.crossing.release(),
            _ => {}
        }
        let result = self.parent_change_state(transition);
        if transition == gst::StateChange::PausedToReady {
            self.crossing.close();
        }
        result
    }
}
