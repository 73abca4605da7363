//! A live source of silence or of one repeated picture, for a stream without another source.
//!
//! - `grid`: when a buffer is due, from its number.
//! - `format`: chooses a format that downstream accepts, as near as possible to the wanted one.
//! - `content`: silence and pictures. `painting`: converts pictures on other threads.
//! - `filler`: the half on the context's thread. `imp`: properties, queries, states.

mod content;
mod filler;
mod format;
mod grid;
mod imp;
mod painting;
#[cfg(test)]
mod test_rig;
#[cfg(test)]
mod tests;

use gst::glib;
use gst::subclass::prelude::*;

use self::filler::Kind;
use self::painting::Picture;

glib::wrapper! {
    /// Silence, black or a still, at the pace of the pipeline's clock from PLAYING on. It has the context properties, but no
    /// factory.
    pub struct Fill(ObjectSubclass<imp::Fill>) @extends gst::Element, gst::Object;
}

impl Fill {
    /// Creates a source of raw audio: silence in buffers of 20 ms. `caps` is the preferred format, such as that of the stream
    /// before. If downstream does not accept it, the nearest format is used. The default is the nearest format to S16LE, 48 kHz,
    /// stereo.
    pub(crate) fn silence(caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Silence, caps)
    }

    /// Creates a source of raw video: black. `caps` is as for [`Fill::silence`]; the default is the nearest format to I420,
    /// 1280x720, 25 frames a second, square pixels.
    pub(crate) fn black(caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Picture(Picture::Black), caps)
    }

    /// Creates a source of raw video: a decoded frame, scaled to fit, with black bars if its shape differs. If the frame cannot
    /// be converted, the picture is black, and a warning message is posted. `caps` is as for [`Fill::black`].
    pub(crate) fn still(sample: gst::Sample, caps: Option<gst::Caps>) -> Fill {
        Fill::new(Kind::Picture(Picture::Still(sample)), caps)
    }

    fn new(kind: Kind, caps: Option<gst::Caps>) -> Fill {
        let fill = glib::Object::new::<Fill>();
        fill.imp().set(kind, caps);
        fill
    }
}
