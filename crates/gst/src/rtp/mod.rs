//! RTP sessions on shared threads.
//!
//! - `session`: sockets, RTCP and the peer's address, shared by the elements of one session.
//! - `playout`: from the jitter buffer's outputs to GStreamer buffers and events.
//! - `port`: one socket for many sessions.
//! - `upstream`: what peers ask for as events, and the other way round.
//! - `source`, `sink`: `ts-rtpsrc` and `ts-rtpsink`.
//! - `g711`: `ts-rtpg711`.
//! - `jitterbuffer`: `ts-rtpjitterbuffer`.
//! - `demux`: `ts-rtpdemux`.
//! - `rtcpmanager`: `ts-rtcpmanager`.
//! - `dtmfsrc`: `ts-rtpdtmfsrc`.

mod demux;
mod dtmfsrc;
mod g711;
mod jitterbuffer;
mod playout;
mod port;
mod rtcpmanager;
mod session;
mod sink;
mod source;
mod upstream;

use gst::glib;

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    source::register(plugin)?;
    sink::register(plugin)?;
    g711::register(plugin)?;
    jitterbuffer::register(plugin)?;
    demux::register(plugin)?;
    rtcpmanager::register(plugin)?;
    dtmfsrc::register(plugin)
}
