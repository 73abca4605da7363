//! Calls of RTP: [`threadbare_rtp::call::Call`] on the engine.

use std::time::Duration;

use threadbare_rtp::call::{Call, CallEvent, Channel, Side};
use threadbare_runtime::prefetch;

use crate::call::{Datagram, Outbox};
use crate::id::{PortId, PortKind};
use crate::loudness::{LineMeter, Loudness, TAPPED_SAMPLES_MIN, measure};
use crate::unsent::{Unsent, with_scratch};

/// Two parties that hear each other. Leg 0 of its ports is side A's, leg 1 is B's.
pub struct MediaCall {
    call: Call,
    /// Of what each side sends.
    meters: Option<Box<[LineMeter; 2]>>,
    on_event: Option<EventHandler>,
    /// What did not fit the last turn.
    unsent: Unsent,
}

/// Takes a call's events, on the shard's thread: it must not block.
pub type EventHandler = Box<dyn FnMut(CallEvent) + Send>;

impl MediaCall {
    /// Carries a call in slices of this length: [`Settings::threads`](crate::Settings::threads).
    #[must_use]
    pub fn new(mut call: Call, slice: Duration) -> MediaCall {
        call.set_ahead_ns(slice.as_nanos() as u64 / 2);
        MediaCall {
            call,
            meters: None,
            on_event: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures what both sides send.
    #[must_use]
    pub fn metered(mut self) -> MediaCall {
        for side in Side::BOTH {
            self.call.tap(side, true);
        }
        self.meters = Some(Box::default());
        self
    }

    /// The loudness of what each side sends, A's first; what is being gathered is measured first. `None`: not measured, or nothing was heard
    /// yet.
    pub fn loudness(&mut self) -> [Option<Loudness>; 2] {
        self.measure(1);
        match &self.meters {
            Some(meters) => [meters[0].readings(), meters[1].readings()],
            None => [None, None],
        }
    }

    /// Measures what was tapped, once it is this much.
    #[inline]
    fn measure(&mut self, samples_min: usize) {
        let Some(meters) = &mut self.meters else {
            return;
        };
        for side in Side::BOTH {
            if self.call.tapped(side) >= samples_min {
                let meter = &mut meters[side as usize];
                measure(meter, |pcm| self.call.take_tapped(side, pcm));
            }
        }
    }

    /// Gives the call's events to `handler`. Without one, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(CallEvent) + Send + 'static) -> MediaCall {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The call, to be commanded.
    pub fn call_mut(&mut self) -> &mut Call {
        &mut self.call
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.call.poll_event() {
            if let Some(handler) = &mut self.on_event {
                handler(event);
            }
        }
    }
}

impl crate::Call for MediaCall {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        let side = match datagram.port.leg {
            0 => Side::A,
            _ => Side::B,
        };
        let channel = match datagram.port.kind {
            PortKind::Rtp => Channel::Rtp,
            PortKind::Rtcp => Channel::Rtcp,
        };
        let (at_ns, from) = (datagram.received_ns, datagram.from);
        self.call
            .handle_datagram(now_ns, at_ns, side, channel, from, datagram.bytes);
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, out: &mut dyn Outbox) {
        if !self.unsent.stage_waiting(out) {
            return;
        }
        let (call, unsent) = (&mut self.call, &mut self.unsent);
        with_scratch(out, |scratch, out| {
            call.poll_transmit(now_ns, true, scratch, &mut |outgoing| {
                let leg = outgoing.side as u8;
                let port = match outgoing.channel {
                    Channel::Rtp => PortId::rtp(leg),
                    Channel::Rtcp => PortId::rtcp(leg),
                };
                unsent.stage(port, outgoing.to, outgoing.bytes, out);
            });
        });
        self.measure(TAPPED_SAMPLES_MIN);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        self.call.next_timeout()
    }

    #[inline]
    fn prefetch(&self) {
        for address in self.call.next_addresses().as_flattened() {
            prefetch(*address as *const u8, PACKET_LINES);
        }
    }
}

/// Cache lines of 20 ms of G.711.
const PACKET_LINES: usize = 3;
