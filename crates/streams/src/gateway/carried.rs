//! Streams that a cluster starts and stops in this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use threadbare_rtp::call::SessionState;
use tokio::sync::mpsc::UnboundedSender;

use super::{Gateway, Running, Stream, watched};
use crate::order::{Answer, Carried, Order};

/// What the gateway knows about its cluster. It is empty if there is no cluster.
#[derive(Debug, Default)]
pub(super) struct Carriage {
    /// Numbers of the cluster's streams, by name.
    numbers: HashMap<Arc<str>, usize>,
    /// Receiver of the orders. With each order comes an [`Event::Ordered`](crate::event::Event).
    orders: Option<Receiver<Order>>,
    /// Sender of the answers. There is at most one answer for each order.
    answers: Option<UnboundedSender<Answer>>,
}

/// A stream of the cluster.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) carried: Carried,
    /// Whether and how the stream starts to send.
    pub(super) start: Start,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    /// The stream only receives until the cluster starts it.
    Held,
    /// The stream sends at once. If there is a state of the previous owner, the first run continues from it.
    At(Option<SessionState>),
}

impl Carriage {
    fn answer(&self, answer: Answer) {
        if let Some(answers) = &self.answers {
            // This fails if the cluster's thread has ended. In that case the process ends too.
            let _ = answers.send(answer);
        }
    }
}

impl Gateway {
    /// Connects the gateway to a cluster. With each order, the cluster also sends an [`Event::Ordered`](crate::event::Event).
    pub fn obey(&mut self, orders: Receiver<Order>, answers: UnboundedSender<Answer>) {
        (self.carriage.orders, self.carriage.answers) = (Some(orders), Some(answers));
    }

    pub(super) fn carry_next(&mut self) {
        let order = self.carriage.orders.as_ref();
        if let Some(order) = order.and_then(|orders| orders.try_recv().ok()) {
            self.carry(order);
        }
    }

    fn carry(&mut self, order: Order) {
        match order {
            Order::Prepare(carried) => {
                let name: Arc<str> = carried.spec.name.as_str().into();
                self.place(&name, carried, Start::Held);
                if let Some(number) = self.carriage.numbers.get(&name) {
                    // The stream may have no sender. So it counts as prepared after some time even if it receives nothing.
                    self.ready.insert((Instant::now() + UNHEARD_MAX, *number));
                }
            }
            Order::Start(carried, state) => self.start_carried(carried, state),
            Order::HandOver(name) => {
                let state = self.displace(&name, Stream::hand_over);
                self.carriage.answer(Answer::HandedOver(name, state));
            }
            Order::Stop(name) => {
                self.displace(&name, |stream| {
                    stream.stop();
                    None
                });
            }
        }
    }

    fn start_carried(&mut self, carried: Carried, state: Option<SessionState>) {
        let name: Arc<str> = carried.spec.name.as_str().into();
        let number = self.carriage.numbers.get(&name);
        let stream = number.and_then(|number| self.streams.get_mut(number));
        if let Some(stream) = stream
            && let Some(place) = &mut stream.place
            && place.start == Start::Held
            && place.carried.is(&carried)
        {
            match &stream.running {
                Running::Line(line) => {
                    place.start = Start::At(None);
                    line.go_on(state);
                    let number = *number.unwrap_or(&usize::MAX);
                    return self.record(number);
                }
                Running::Asking | Running::No => {
                    place.start = Start::At(state);
                    return;
                }
                Running::Pipeline(_) => {}
            }
        }
        self.place(&name, carried, Start::At(state));
    }

    /// Adds and starts a stream. It replaces the stream of the same name, if there is one.
    fn place(&mut self, name: &Arc<str>, carried: Carried, start: Start) {
        self.displace(name, |stream| {
            stream.stop();
            None
        });
        let spec = carried.spec.as_ref().clone();
        let number = self.next_stream;
        self.next_stream += 1;
        self.directory.add(number, watched(&spec));
        let mut stream = Stream::new(spec, self.restart);
        stream.place = Some(Place { carried, start });
        self.streams.insert(number, stream);
        self.carriage.numbers.insert(name.clone(), number);
        self.start_stream(number);
    }

    fn displace(
        &mut self,
        name: &Arc<str>,
        end: impl FnOnce(&mut Stream) -> Option<SessionState>,
    ) -> Option<SessionState> {
        let number = self.carriage.numbers.remove(name)?;
        let state = self.streams.get_mut(&number).and_then(end);
        self.streams.remove(&number);
        self.directory.remove(number);
        state
    }

    /// Handles the first packets of a held stream. The stream counts as prepared when it has buffered enough audio.
    pub(super) fn note_heard(&mut self, number: usize) {
        let Some(stream) = self.streams.get(&number) else {
            return;
        };
        // A packet waits in the owner's jitter buffer for the latency, and both nodes read their sockets once a slice. So after this time,
        // this node has all packets that the owner has not sent yet.
        let latency = Duration::from_millis(stream.spec.jitter.latency_ms.into());
        let slice = Duration::from_millis(self.contexts.wait_ms.into());
        let at = Instant::now() + latency + 3 * slice + LATENESS_SPARE;
        self.ready.insert((at, number));
    }

    /// Tells the cluster which streams are now prepared.
    pub(super) fn tell_ready(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.ready.first() {
            if at > now {
                return;
            }
            self.ready.pop_first();
            let stream = self.streams.get(&number);
            // A stream may have two entries, of which only the first one counts.
            if let Some(place) = stream.and_then(|stream| stream.place.as_ref())
                && place.start == Start::Held
            {
                let name = place.carried.spec.name.as_str().into();
                self.carriage.answer(Answer::Prepared(name));
            }
        }
    }
}

impl Stream {
    fn hand_over(&mut self) -> Option<SessionState> {
        match std::mem::replace(&mut self.running, Running::No) {
            Running::Line(line) => line.hand_over(),
            Running::Pipeline(_) | Running::No | Running::Asking => None,
        }
    }
}

/// Extra time before a stream counts as prepared. It is needed because the threads of the owner may be late.
const LATENESS_SPARE: Duration = Duration::from_millis(200);
/// Time after which a stream counts as prepared even if it has no sender.
const UNHEARD_MAX: Duration = Duration::from_secs(1);
