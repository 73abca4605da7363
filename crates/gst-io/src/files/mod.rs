//! Files on shared threads: `ts-filesink`, `ts-filesrc`, `ts-splitfilesink`.
//!
//! No context's thread touches a disk. The elements pass operations to the process's disk service (`threadbare-files`), and wait
//! for the results in the task of the source that pushed.

pub(crate) mod outbox;
mod reader;
pub(crate) mod settings;
mod sink;
mod source;
pub(crate) mod split;
mod target;

use gst::glib;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    sink::register(plugin)?;
    source::register(plugin)?;
    split::register(plugin)
}
