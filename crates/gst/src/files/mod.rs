//! Files on shared threads: `ts-filesink`, `ts-filesrc`, `ts-splitfilesink`.
//!
//! No thread of a context touches a disk: the elements hand operations to the process's disk service (`threadbare-files`) and wait for them
//! as for anything else, with the source that pushed.

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
