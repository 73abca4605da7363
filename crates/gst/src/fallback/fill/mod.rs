//! A live source of silence, or of one picture again and again: what a stream shows while it has no other.
//!
//! - `grid`: when a buffer is due, from its number.
//! - `format`: what downstream takes, as near as possible to what is wanted.
//! - `content`: silence and pictures. `painting`: pictures are made aside.
//! - `filler`: the half on the context's thread. `imp`: properties, queries, states.

mod content;
mod filler;
mod format;
mod grid;
mod imp;
mod painting;
#[cfg(test)]
mod tests;

use gst::glib;
use gst::subclass::prelude::*;

use self::filler::Kind;
use self::painting::Picture;

glib::wrapper! {
    /// Silence, black or a still, at the pace of the pipeline's clock from the moment that it plays. It has the properties
    /// of a context, and no factory.
    pub struct Fill(ObjectSubclass<imp::Fill>) @extends gst::Element, gst::Object;
}

impl Fill {
    /// Raw audio: silence in buffers of 20 ms. `caps`: what to make if downstream takes these, such as those of the stream
    /// before; else the nearest to them, or to S16LE, 48 kHz, stereo.
    pub(crate) fn silence(caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Silence, caps)
    }

    /// Raw video: black. `caps`: as for [`Fill::silence`]; else the nearest to I420, 1280x720, 25 frames a second, square
    /// pixels.
    pub(crate) fn black(caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Picture(Picture::Black), caps)
    }

    /// Raw video: a decoded frame, scaled to fit, with black bars where its shape is another one. A frame that cannot be
    /// converted is black, with a warning message. `caps`: as for [`Fill::black`].
    pub(crate) fn still(sample: gst::Sample, caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Picture(Picture::Still(sample)), caps)
    }

    fn new(kind: Kind, caps: Option<gst::Caps>) -> Fill {
        let fill = glib::Object::new::<Fill>();
        fill.imp().set(kind, caps);
        fill
    }
}
