//! One engine for all that calls are made of.

use crate::call::{Call, Datagram, Outbox};
use crate::forward::Forward;
use crate::media::MediaCall;

/// A medium of a call, one m-line of its SDP: audio, or what is only passed on.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are audio, whose fields are fetched with the call"
)]
pub enum Medium {
    /// Audio that is understood.
    Audio(MediaCall),
    /// Datagrams of another kind.
    Forward(Forward),
}

impl Medium {
    /// The audio, if it is that.
    pub fn audio_mut(&mut self) -> Option<&mut MediaCall> {
        match self {
            Medium::Audio(call) => Some(call),
            Medium::Forward(_) => None,
        }
    }

    /// What is only passed on, if it is that.
    pub fn forward_mut(&mut self) -> Option<&mut Forward> {
        match self {
            Medium::Audio(_) => None,
            Medium::Forward(forward) => Some(forward),
        }
    }
}

impl From<MediaCall> for Medium {
    fn from(call: MediaCall) -> Medium {
        Medium::Audio(call)
    }
}

impl From<Forward> for Medium {
    fn from(forward: Forward) -> Medium {
        Medium::Forward(forward)
    }
}

impl Call for Medium {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        match self {
            Medium::Audio(call) => call.handle_datagram(now_ns, datagram),
            Medium::Forward(forward) => forward.handle_datagram(now_ns, datagram),
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, out: &mut dyn Outbox) {
        match self {
            Medium::Audio(call) => call.poll_transmit(now_ns, out),
            Medium::Forward(forward) => forward.poll_transmit(now_ns, out),
        }
    }

    #[inline]
    fn next_timeout(&self) -> Option<u64> {
        match self {
            Medium::Audio(call) => call.next_timeout(),
            Medium::Forward(forward) => forward.next_timeout(),
        }
    }

    #[inline]
    fn prefetch(&self) {
        match self {
            Medium::Audio(call) => call.prefetch(),
            Medium::Forward(forward) => forward.prefetch(),
        }
    }
}
