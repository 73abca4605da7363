//! RTP sessions on shared threads.
//!
//! - `session`: sockets, RTCP and the peer's address, shared by the elements of one session.
//! - `identity`: the canonical name and the wall clock of all sessions.
//! - `payloads`: the meaning of payload types without negotiation.
//! - `playout`: turns a leg's outputs into GStreamer buffers and events.
//! - `port`: one socket for many sessions.
//! - `upstream`: converts peers' requests to events, and events to requests.
//! - `source`, `sink`: `ts-rtpsrc` and `ts-rtpsink`.
//! - `g711`: `ts-rtpg711`.
//! - `jitterbuffer`: `ts-rtpjitterbuffer`.
//! - `demux`: `ts-rtpdemux`.
//! - `rtcpmanager`: `ts-rtcpmanager`.
//! - `dtmfsrc`: `ts-rtpdtmfsrc`.

mod demux;
mod dtmfsrc;
mod g711;
mod identity;
mod jitterbuffer;
mod payloads;
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
