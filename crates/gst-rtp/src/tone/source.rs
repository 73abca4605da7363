//! Common part of the audio sources as elements: queries, and start and stop of the player.

use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::format;
use super::player::{Cut, Made, Player, Signal};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;

/// A source element around a [`Player`].
pub trait AudioSource: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    type Signal: Signal;

    /// The name of its statistics.
    const STATS: &'static str;

    fn parts(&self) -> &Parts<Self::Signal>;
    fn cut(&self) -> Cut;
    /// Returns the signal for the current properties.
    fn signal(&self) -> Self::Signal;
    /// Returns the number of buffers until the end.
    fn num_buffers(&self) -> Option<u64> {
        None
    }

    /// Applies a change of the way buffers are cut.
    fn recut(&self) {
        let cut = self.cut();
        let driver = &self.parts().driver;
        driver.with_producer(move |player, _| player.set_cut(cut));
        if driver.place().is_some() {
            let obj = self.obj();
            let element = obj.upcast_ref::<gst::Element>();
            let _ = element.post_message(gst::message::Latency::builder().src(element).build());
        }
    }

    /// Changes the signal while it is played.
    fn retune(&self, change: impl FnOnce(&mut Self::Signal) + Send + 'static) {
        let driver = &self.parts().driver;
        driver.with_producer(move |player, cx| {
            change(player.signal());
            cx.wake_self();
        });
    }

    /// Answers a query of the source pad.
    fn answer(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let (parts, cut) = (self.parts(), self.cut());
        let mut latency = (cut.is_live, gst::ClockTime::ZERO, None);
        if cut.is_live && query.type_() == gst::QueryType::Latency {
            latency.1 = cut.buffer_time(pad) + parts.driver.wait(&parts.context);
        }
        source::answer_query(pad, &*self.obj(), query, latency, || {
            Some(cut.narrowed(pad.pad_template_caps()))
        })
    }

    /// Puts a new player on a thread of the context.
    fn begin(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let parts = self.parts();
        let place = lock(&parts.context).place(element)?;
        let (pad, cut) = (&parts.src_pad, self.cut());
        let (end, made) = (self.num_buffers(), parts.made.clone());
        let player = Player::new(element, pad, self.signal(), cut, end, made);
        parts.driver.add(element, pad, place, player)
    }
}

/// Fields of an audio source.
pub struct Parts<S: Signal> {
    pub(super) src_pad: gst::Pad,
    pub(super) context: Mutex<ContextSettings>,
    pub(super) stats: Mutex<StatsProperty>,
    made: Arc<Made>,
    pub(super) driver: Driver<Player<S>>,
}

impl<S: Signal> Parts<S> {
    pub(super) fn new<E: AudioSource<Signal = S> + SourceElement>(
        template: &gst::PadTemplate,
    ) -> Self
    where
        E::Type: IsA<gst::Element>,
    {
        let src_pad = source::source_pad::<E>(template);
        let made = Arc::<Made>::default();
        let read = made.clone();
        let stats = StatsProperty::new(move || {
            gst::Structure::builder(E::STATS)
                .field("buffers", read.buffers.get())
                .field("samples", read.samples.get())
                .build()
        });
        Parts {
            src_pad,
            context: Mutex::default(),
            stats: Mutex::new(stats),
            made,
            driver: Driver::default(),
        }
    }

    /// Adds the pad; call it in `constructed`.
    pub(super) fn add_to(&self, element: &impl IsA<gst::Element>) {
        crate::kit::add_timed_pad(element, &self.src_pad);
    }
}

/// Makes an [`AudioSource`] a [`SourceElement`](crate::kit::source::SourceElement).
macro_rules! audio_source {
    ($element:ty) => {
        impl crate::kit::source::SourceElement for $element {
            type Producer = super::player::Player<<Self as AudioSource>::Signal>;

            fn driver(&self) -> &crate::kit::source::Driver<Self::Producer> {
                &self.parts().driver
            }

            fn src_pad(&self) -> &gst::Pad {
                &self.parts().src_pad
            }

            fn is_live(&self) -> bool {
                self.cut().is_live
            }

            fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                self.answer(pad, query)
            }

            fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                self.begin(element)
            }
        }
    };
}
pub(super) use audio_source;

impl Cut {
    fn narrowed(&self, caps: gst::Caps) -> gst::Caps {
        match &self.caps {
            Some(own) => own.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
            None => caps,
        }
    }

    /// Downstream's preferred caps that the pad, the user and this element allow.
    pub(super) fn decide(&self, pad: &gst::Pad) -> Option<(gst::Caps, format::Format)> {
        let allowed = source::allowed_caps(pad);
        format::fixate(self.narrowed(allowed), self.rate_default)
    }

    /// Returns the length of a buffer, current or expected.
    fn buffer_time(&self, pad: &gst::Pad) -> gst::ClockTime {
        let now = pad.current_caps();
        let now = now.and_then(|caps| caps.structure(0)?.get::<i32>("rate").ok());
        let rate = match now {
            Some(rate) => u32::try_from(rate).unwrap_or(0),
            None => (self.decide(pad)).map_or(self.rate_default, |(_, format)| format.rate),
        };
        gst::ClockTime::SECOND
            .mul_div_ceil(self.samples_per_buffer.into(), rate.max(1).into())
            .unwrap_or_default()
    }
}
