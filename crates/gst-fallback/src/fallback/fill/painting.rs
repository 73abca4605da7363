//! Converts pictures on other threads, because converting and scaling take long and would block a context's thread.

use std::sync::OnceLock;

use gst::glib;

use super::content;
use super::format::{Format, Info};

/// A picture to convert.
#[derive(Debug, Clone)]
pub(super) enum Picture {
    Black,
    /// A decoded frame.
    Still(gst::Sample),
}

/// The converted picture.
#[derive(Debug)]
pub(super) struct Painted {
    /// The format that it was converted for.
    pub(super) caps: gst::Caps,
    pub(super) result: Result<gst::Buffer, glib::BoolError>,
    /// The reason if the still could not be converted. Then this picture is black.
    pub(super) warning: Option<glib::BoolError>,
}

/// Converts a picture on another thread, and calls `done` there.
pub(super) fn paint_later(
    picture: Picture,
    format: Format,
    done: impl FnOnce(Painted) + Send + 'static,
) -> Result<(), glib::Error> {
    static PAINTERS: OnceLock<glib::ThreadPool> = OnceLock::new();
    let painters = match PAINTERS.get() {
        Some(painters) => painters,
        None => {
            let painters = glib::ThreadPool::shared(Some(PAINTERS_MAX))?;
            PAINTERS.get_or_init(|| painters)
        }
    };
    painters.push(move || done(paint(&picture, &format)))?;
    Ok(())
}

/// Maximum number of threads in the process's pool. They exist only while there is work.
const PAINTERS_MAX: u32 = 2;

fn paint(picture: &Picture, format: &Format) -> Painted {
    let caps = format.caps.clone();
    let Info::Video(info) = &format.info else {
        return Painted {
            caps,
            result: Err(glib::bool_error!(
                "cannot make a picture, because the caps are those of audio"
            )),
            warning: None,
        };
    };
    let still = match picture {
        Picture::Black => None,
        Picture::Still(sample) => Some(content::still(sample, info)),
    };
    let (result, warning) = match still {
        Some(Ok(buffer)) => (Ok(buffer), None),
        Some(Err(error)) => (content::black(info), Some(error)),
        None => (content::black(info), None),
    };
    Painted {
        caps,
        result,
        warning,
    }
}
