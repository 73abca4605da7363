//! Call events for HTTP clients. The control thread sends them without waiting for a client.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use threadbare_control::calls::{CallId, CallRecord, EndReason, StreamId};
use threadbare_rtp::call::{KeyPhase, SessionEvent, Side};
use threadbare_rtp::leg::LegEvent;
use tokio::sync::broadcast;

use super::waker::WakeSignal;

/// An event of a call.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) call: CallId,
    /// Time on the monotonic clock.
    pub(super) at_ns: u64,
    pub(super) what: What,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The call's first stream has started.
    Up,
    /// The party's media now come from this source.
    Media {
        stream: StreamId,
        side: Side,
        from: SocketAddr,
        ssrc: u32,
    },
    /// This party has sent no media for some seconds, and is not on hold.
    Lost { stream: StreamId, side: Side },
    /// The other party begins to hear the fallback in place of this party (`true`), or hears it no longer.
    Fallback {
        stream: StreamId,
        side: Side,
        is_on: bool,
    },
    /// This party has sent a DTMF digit.
    Key {
        stream: StreamId,
        side: Side,
        key: char,
    },
    /// A time-out is about to end the call.
    Timeout { reason: EndReason },
    /// The call has ended.
    Down { reason: EndReason, lasted_ns: u64 },
}

/// The listeners, and the state for their events.
#[derive(Debug)]
pub(super) struct Events {
    listeners: broadcast::Sender<Event>,
    up: BTreeSet<CallId>,
    /// The silent parties about which `Lost` was sent.
    lost: BTreeSet<(StreamId, usize)>,
}

impl Events {
    /// Creates the events, without listeners.
    pub(super) fn new() -> Events {
        Events {
            listeners: broadcast::Sender::new(EVENTS_MAX),
            up: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Subscribes to events from now on. `None`: there are as many listeners as allowed.
    pub(super) fn listen(&self) -> Option<broadcast::Receiver<Event>> {
        let has_room = self.listeners.receiver_count() < LISTENERS_MAX;
        has_room.then(|| self.listeners.subscribe())
    }

    /// Whether there are listeners.
    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.receiver_count() > 0
    }

    /// Records the start of a stream.
    pub(super) fn begin(&mut self, at_ns: u64, call: &CallId) {
        if self.up.insert(call.clone()) {
            self.tell(at_ns, call, What::Up);
        }
    }

    /// Passes news from a media thread to the listeners.
    pub(super) fn seen(&mut self, call: &CallId, news: &News) {
        if let What::Media { stream, side, .. } = news.what {
            self.lost.remove(&(stream, side as usize));
        }
        self.tell(news.at_ns, call, news.what);
    }

    /// Handles the time at which media of a party were last received. Call this only for parties that are expected to send.
    pub(super) fn heard(
        &mut self,
        now_ns: u64,
        call: &CallId,
        stream: StreamId,
        side: Side,
        heard_ns: u64,
    ) {
        let place = (stream, side as usize);
        match now_ns.saturating_sub(heard_ns) >= LOST_NS {
            true if self.lost.insert(place) => {
                self.tell(now_ns, call, What::Lost { stream, side });
            }
            true => {}
            false => {
                self.lost.remove(&place);
            }
        }
    }

    /// Handles the end of a stream.
    pub(super) fn forget(&mut self, stream: StreamId) {
        for side in Side::BOTH {
            self.lost.remove(&(stream, side as usize));
        }
    }

    /// Handles that another node has taken over a call.
    pub(super) fn leave(&mut self, call: &CallId) {
        self.up.remove(call);
    }

    /// Handles the end of a call.
    pub(super) fn end(&mut self, record: &CallRecord) {
        self.up.remove(&record.call);
        let reason = record.reason;
        if reason.is_timeout() {
            self.tell(record.ended_ns, &record.call, What::Timeout { reason });
        }
        let lasted_ns = record.ended_ns.saturating_sub(record.created_ns);
        self.tell(
            record.ended_ns,
            &record.call,
            What::Down { reason, lasted_ns },
        );
    }

    fn tell(&self, at_ns: u64, call: &CallId, what: What) {
        let call = call.clone();
        // Sending fails if there are no listeners.
        let _ = self.listeners.send(Event { call, at_ns, what });
    }
}

/// A report from a media thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct News {
    pub(super) stream: StreamId,
    at_ns: u64,
    what: What,
}

/// Queue of reports from the media threads to the control thread. If it is full, reports are dropped, because media threads
/// must not wait.
#[derive(Debug)]
pub(super) struct Reports {
    tell: SyncSender<News>,
    told: Receiver<News>,
    wake: WakeSignal,
}

impl Reports {
    /// Creates an empty queue. `wake` is signalled when there is a report.
    pub(super) fn new(wake: WakeSignal) -> Reports {
        let (tell, told) = sync_channel(NEWS_MAX);
        Reports { tell, told, wake }
    }

    /// Returns a handler for a stream's thread, which reports the events of the stream.
    pub(super) fn handler(&self, stream: StreamId) -> impl FnMut(SessionEvent) + Send + use<> {
        let (tell, wake) = (self.tell.clone(), self.wake.clone());
        move |event| {
            if let Some(what) = what(stream, event) {
                let at_ns = threadbare_runtime::clock_now_ns();
                let news = News {
                    stream,
                    at_ns,
                    what,
                };
                if tell.try_send(news).is_ok() {
                    wake.ring();
                }
            }
        }
    }

    /// Returns the next report.
    pub(super) fn poll(&self) -> Option<News> {
        self.told.try_recv().ok()
    }
}

fn what(stream: StreamId, event: SessionEvent) -> Option<What> {
    match event {
        SessionEvent::Leg(leg, LegEvent::Source { address, ssrc, .. }) => Some(What::Media {
            stream,
            side: leg.side(),
            from: address,
            ssrc: ssrc.0,
        }),
        SessionEvent::Key(leg, key) if key.phase == KeyPhase::Pressed => {
            let key = KEYS.chars().nth(usize::from(key.event))?;
            Some(What::Key {
                stream,
                side: leg.side(),
                key,
            })
        }
        SessionEvent::Substitute(leg, is_on) => Some(What::Fallback {
            stream,
            side: leg.side(),
            is_on,
        }),
        _ => None,
    }
}

/// Digits in the order of their event numbers (RFC 4733, section 3.2).
const KEYS: &str = "0123456789*#ABCD";
/// Maximum number of events that wait for a client: some seconds' worth at 200 calls/s. A client that is further behind must read the list
/// of calls again.
const EVENTS_MAX: usize = 4096;
/// Maximum number of clients. Each takes a connection.
const LISTENERS_MAX: usize = 32;
/// Maximum number of waiting reports. It is enough for a slice in which the sources of some hundred calls start.
const NEWS_MAX: usize = 4096;
/// Silence after which a party counts as lost. It is longer than pauses in speech, and shorter than a proxy's time-outs. A
/// sender that uses comfort noise (RFC 3389) sends a packet every few seconds even in pauses.
const LOST_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listener: &mut broadcast::Receiver<Event>) -> Vec<What> {
        std::iter::from_fn(|| listener.try_recv().ok())
            .map(|event| event.what)
            .collect()
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut events = Events::new();
        let call = CallId::new(b"1");
        let mut listener = events.listen().expect("room");
        events.begin(0, &call);
        events.begin(1, &call);
        assert_eq!(told(&mut listener), [What::Up]);
        let (stream, side) = (StreamId(7), Side::B);
        events.heard(LOST_NS - 1, &call, stream, side, 0);
        assert!(told(&mut listener).is_empty());
        events.heard(LOST_NS, &call, stream, side, 0);
        events.heard(LOST_NS + 1, &call, stream, side, 0);
        assert_eq!(told(&mut listener), [What::Lost { stream, side }]);
        // The party returns, and falls silent again.
        events.heard(LOST_NS + 2, &call, stream, side, LOST_NS);
        events.heard(2 * LOST_NS, &call, stream, side, LOST_NS);
        assert_eq!(told(&mut listener), [What::Lost { stream, side }]);
        events.forget(stream);
        assert!(events.lost.is_empty());
    }

    #[test]
    fn listeners_are_bounded_and_slow_ones_miss_the_oldest() {
        let mut events = Events::new();
        let all: Vec<_> = (0..LISTENERS_MAX)
            .map(|_| events.listen().expect("room"))
            .collect();
        assert!(events.listen().is_none());
        drop(all);
        assert!(!events.has_listeners());
        let mut slow = events.listen().expect("room");
        for n in 0..=EVENTS_MAX {
            events.begin(0, &CallId::new(n.to_string().as_bytes()));
        }
        assert!(matches!(
            slow.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(1))
        ));
        assert_eq!(slow.try_recv().expect("the second").call, CallId::new(b"1"));
    }
}
