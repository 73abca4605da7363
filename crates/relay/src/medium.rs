//! One engine for all that calls are made of.

use crate::call::{Call, Datagram, Outbox};
use crate::diverted::Diverted;
use crate::forward::Forward;
use crate::media::MediaCall;
use crate::stray::{Stray, StrayTaker};

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
    /// Another process carries it: [`Medium::divert`].
    Diverted(Diverted),
}

impl Medium {
    /// The audio, if it is that.
    pub fn audio_mut(&mut self) -> Option<&mut MediaCall> {
        match self {
            Medium::Audio(call) => Some(call),
            Medium::Forward(_) | Medium::Diverted(_) => None,
        }
    }

    /// What is only passed on, if it is that.
    pub fn forward_mut(&mut self) -> Option<&mut Forward> {
        match self {
            Medium::Audio(_) | Medium::Diverted(_) => None,
            Medium::Forward(forward) => Some(forward),
        }
    }
}

impl Medium {
    /// Sends nothing more: what waits to be played, and what comes from now on, is given to `take`, at most [`STRAY_BYTES_MAX`](crate::STRAY_BYTES_MAX) of it.
    pub fn divert(&mut self, now_ns: u64, take: StrayTaker) {
        let mut diverted = Diverted::new(take);
        if let Medium::Audio(media) = self {
            media.give_up(now_ns, &mut |stray| diverted.give(stray));
        }
        *self = Medium::Diverted(diverted);
    }

    /// What came to the process before, together. A party's packets are taken in the order of their numbers: who begins with a later one has missed the
    /// earlier ones.
    pub fn handle_strays(&mut self, now_ns: u64, mut strays: Vec<Stray>) {
        let mux = match self {
            Medium::Audio(media) => media.mux(),
            Medium::Forward(forward) => forward.mux(),
            Medium::Diverted(_) => [false; 2],
        };
        let first = |leg: u8| strays.iter().find(|one| one.port.leg == leg)?.seq(mux);
        let firsts = [first(0), first(1)];
        strays.sort_by_key(|one| {
            let first = firsts.get(usize::from(one.port.leg)).copied().flatten();
            let since = one.seq(mux).zip(first);
            since.map(|(seq, first)| seq.wrapping_sub(first) as i16)
        });
        for stray in strays {
            self.handle_stray(now_ns, stray);
        }
    }

    fn handle_stray(&mut self, now_ns: u64, mut stray: Stray) {
        match self {
            Medium::Audio(media) if stray.is_clear => media.handle_clear(now_ns, &stray),
            _ if stray.is_clear => {}
            _ => self.handle_datagram(
                now_ns,
                Datagram {
                    port: stray.port,
                    from: stray.from,
                    received_ns: stray.received_ns.min(now_ns),
                    bytes: &mut stray.bytes,
                },
            ),
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
            Medium::Diverted(diverted) => diverted.handle_datagram(now_ns, datagram),
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        match self {
            Medium::Audio(call) => call.poll_transmit(now_ns, may_lose, out),
            Medium::Forward(forward) => forward.poll_transmit(now_ns, may_lose, out),
            Medium::Diverted(diverted) => diverted.poll_transmit(now_ns, may_lose, out),
        }
    }

    #[inline]
    fn next_timeout(&self) -> Option<u64> {
        match self {
            Medium::Audio(call) => call.next_timeout(),
            Medium::Forward(forward) => forward.next_timeout(),
            Medium::Diverted(diverted) => diverted.next_timeout(),
        }
    }

    #[inline]
    fn prefetch(&self) {
        match self {
            Medium::Audio(call) => call.prefetch(),
            Medium::Forward(forward) => forward.prefetch(),
            Medium::Diverted(diverted) => diverted.prefetch(),
        }
    }
}
