//! The published benchmark of stream demultiplexers, and cases that it omits.
//!
//! 100 million messages with a `String` come from a stream that is always ready. Three ids take turns. The messages go to sinks
//! that push to a `Vec`, on tokio's current-thread runtime. Orders come through flume. Four designs are implemented as published,
//! and compared with this crate:
//!
//! | design | orders and messages | lost messages |
//! |---|---|---|
//! | `select` | `select!`, in random order | of a key whose order happens to be handled later |
//! | `select-biased` | `select_biased!`, orders first | none |
//! | `select-all` | one `SelectAll` of both | of a key whose order happens to be handled later |
//! | `by-hand` | messages first, orders if no message is ready | of a key whose order waits |
//! | `demultiplexer` | this crate | none |
//!
//! Each `Vec` is cleared when it has 64 messages, so that 100 million strings need not fit into memory. So even with many sinks,
//! the benchmark does not measure the memory of the `Vec`s.
//!
//! `cargo bench -p threadbare-demux --bench published -- [--messages N] [--rounds N] [--json]`
//!
//! With `--json`, each design of each round is one object on a separate line.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::poll_fn;
use futures_util::stream::{self, FusedStream};
use futures_util::{Sink, SinkExt, Stream, StreamExt, select, select_biased};
use threadbare_demux::{Builder, ById, Identifiable, Order, RateLimit, Service, Target, Verdict};

/// Content of a message.
trait Payload: Unpin + Send + 'static {
    const NAME: &'static str;

    fn make() -> Self;
}

impl Payload for String {
    const NAME: &'static str = "String";

    fn make() -> Self {
        String::from("message")
    }
}

/// A payload that allocates nothing.
impl Payload for u64 {
    const NAME: &'static str = "u64";

    fn make() -> Self {
        7
    }
}

struct Message<P> {
    id: u32,
    payload: P,
}

impl<P> Identifiable for Message<P> {
    type Id = u32;

    fn id(&self) -> u32 {
        self.id
    }
}

/// Messages of all ids in turn.
struct Messages<P> {
    rest: u64,
    has_ended: bool,
    id: u32,
    ids: u32,
    payload: std::marker::PhantomData<fn() -> P>,
}

impl<P: Payload> Messages<P> {
    fn new(messages: u64, ids: u32) -> Self {
        Messages {
            rest: messages,
            has_ended: false,
            id: 0,
            ids,
            payload: std::marker::PhantomData,
        }
    }
}

impl<P: Payload> Stream for Messages<P> {
    type Item = Message<P>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Message<P>>> {
        if self.rest == 0 {
            self.has_ended = true;
            return Poll::Ready(None);
        }
        self.rest -= 1;
        let id = self.id;
        self.id = if id + 1 == self.ids { 0 } else { id + 1 };
        let payload = P::make();
        Poll::Ready(Some(Message { id, payload }))
    }
}

impl<P: Payload> FusedStream for Messages<P> {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

struct VecSink<P>(Vec<P>);

impl<P: Payload> Sink<Message<P>> for VecSink<P> {
    type Error = Infallible;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message<P>) -> Result<(), Infallible> {
        if self.0.len() == VEC_MAX {
            self.0.clear();
        }
        self.0.push(message.payload);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

type Orders<P> = flume::Receiver<(u32, VecSink<P>)>;

/// Sends an order for each id. The channel stays open.
fn orders<P: Payload>(ids: u32) -> (flume::Sender<(u32, VecSink<P>)>, Orders<P>) {
    let (sender, receiver) = flume::unbounded();
    for id in 0..ids {
        let sink = VecSink(Vec::with_capacity(VEC_MAX));
        sender.send((id, sink)).expect("the receiver is there");
    }
    (sender, receiver)
}

async fn give<P: Payload>(sinks: &mut HashMap<u32, VecSink<P>>, message: Message<P>) {
    if let Some(sink) = sinks.get_mut(&message.id) {
        let Ok(()) = sink.send(message).await;
    }
}

async fn by_select<P: Payload>(messages: Messages<P>, orders: Orders<P>) {
    let (mut messages, mut orders) = (messages, orders.into_stream().fuse());
    let mut sinks = HashMap::new();
    loop {
        select! {
            order = orders.next() => sinks.extend(order),
            message = messages.next() => match message {
                Some(message) => give(&mut sinks, message).await,
                None => return,
            },
        }
    }
}

async fn by_select_biased<P: Payload>(messages: Messages<P>, orders: Orders<P>) {
    let (mut messages, mut orders) = (messages, orders.into_stream().fuse());
    let mut sinks = HashMap::new();
    loop {
        select_biased! {
            order = orders.next() => sinks.extend(order),
            message = messages.next() => match message {
                Some(message) => give(&mut sinks, message).await,
                None => return,
            },
        }
    }
}

async fn by_select_all<P: Payload>(messages: Messages<P>, orders: Orders<P>) {
    enum Either<P> {
        Order((u32, VecSink<P>)),
        Message(Message<P>),
        End,
    }
    let messages = messages
        .map(Either::Message)
        .chain(stream::once(std::future::ready(Either::End)));
    let orders = orders.into_stream().map(Either::Order);
    let mut both = stream::select_all([messages.boxed_local(), orders.boxed_local()]);
    let mut sinks = HashMap::new();
    while let Some(either) = both.next().await {
        match either {
            Either::Order(order) => sinks.extend([order]),
            Either::Message(message) => give(&mut sinks, message).await,
            Either::End => return,
        }
    }
}

/// Handles orders only when the input has no message. The orders at the start are handled first.
async fn by_hand<P: Payload>(messages: Messages<P>, orders: Orders<P>) {
    let mut messages = messages;
    let mut sinks: HashMap<u32, VecSink<P>> = orders.drain().collect();
    let mut orders = pin!(orders.into_stream());
    loop {
        enum Next<P> {
            Order(Option<(u32, VecSink<P>)>),
            Message(Option<Message<P>>),
        }
        let next = poll_fn(|cx| {
            if let Poll::Ready(message) = Pin::new(&mut messages).poll_next(cx) {
                return Poll::Ready(Next::Message(message));
            }
            orders.as_mut().poll_next(cx).map(Next::Order)
        });
        match next.await {
            Next::Order(order) => sinks.extend(order),
            Next::Message(Some(message)) => give(&mut sinks, message).await,
            Next::Message(None) => return,
        }
    }
}

async fn by_demultiplexer<P: Payload>(messages: Messages<P>, orders: Orders<P>, limited: bool) {
    let (count, ids) = (messages.rest, messages.ids);
    let service = Service {
        limit: limited.then(|| RateLimit::new(Duration::from_nanos(1), u32::MAX)),
        ..Service::default()
    };
    let orders = orders.into_stream();
    let orders = orders.map(move |(id, sink)| Order::subscribe(Target::Key(id), sink, service));
    let begin = Instant::now();
    let report = Builder::new(ById, |_: &Target<u32>, _: Infallible| Verdict::Remove)
        .orders(orders)
        .clock(move || begin.elapsed().as_nanos() as u64)
        .build(messages)
        .await;
    let statistics = report.statistics;
    assert_eq!((statistics.delivered, report.closed), (count, ids.into()));
}

/// Sinks are tokio's channels, each with a task that empties it.
async fn by_demultiplexer_to_channels<P: Payload>(messages: Messages<P>) {
    let count = messages.rest;
    let demultiplexer = Builder::new(ById, |_: &Target<u32>, _| Verdict::Abort);
    let ids = messages.ids;
    let demultiplexer = demultiplexer.build(messages);
    let (handle, mut guards, mut readers) = (demultiplexer.handle(), Vec::new(), Vec::new());
    for id in 0..ids {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(CHANNEL);
        let sink = tokio_util::sync::PollSender::new(sender);
        let guard = handle.subscribe(Target::Key(id), sink, Service::default());
        guards.push(guard.expect("it has not ended"));
        readers.push(async move {
            let mut read = 0;
            while receiver.recv().await.is_some() {
                read += 1;
            }
            read
        });
    }
    let tasks: Vec<_> = readers.into_iter().map(tokio::task::spawn).collect();
    let report = demultiplexer.await;
    drop(guards);
    let mut read: u64 = 0;
    for task in tasks {
        read += task.await.expect("it does not panic");
    }
    assert_eq!((report.statistics.delivered, read), (count, count));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Design {
    Select,
    SelectBiased,
    SelectAll,
    ByHand,
    Demultiplexer,
    Limited,
    Channels,
}

impl Design {
    fn name(self) -> &'static str {
        match self {
            Design::Select => "select",
            Design::SelectBiased => "select-biased",
            Design::SelectAll => "select-all",
            Design::ByHand => "by-hand",
            Design::Demultiplexer => "demultiplexer",
            Design::Limited => "demultiplexer-limited",
            Design::Channels => "demultiplexer-channels",
        }
    }
}

/// Measures a design, in ns per message.
fn measure<P: Payload>(design: Design, messages: u64, ids: u32) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (_open, orders) = orders::<P>(ids);
    let input = Messages::<P>::new(messages, ids);
    let begin = Instant::now();
    runtime.block_on(async {
        match design {
            Design::Select => by_select(input, orders).await,
            Design::SelectBiased => by_select_biased(input, orders).await,
            Design::SelectAll => by_select_all(input, orders).await,
            Design::ByHand => by_hand(input, orders).await,
            Design::Demultiplexer => by_demultiplexer(input, orders, false).await,
            Design::Limited => by_demultiplexer(input, orders, true).await,
            Design::Channels => by_demultiplexer_to_channels(input).await,
        }
    });
    begin.elapsed().as_nanos() as f64 / messages as f64
}

struct Case {
    design: Design,
    ids: u32,
    measure: fn(Design, u64, u32) -> f64,
    payload: &'static str,
    messages: u64,
}

fn cases(messages: u64) -> Vec<Case> {
    use Design::*;
    let mut cases = Vec::new();
    let mut add = |designs: &[Design], ids, of_string: bool, messages| {
        for design in designs {
            let (measure, payload): (fn(Design, u64, u32) -> f64, _) = if of_string {
                (measure::<String>, String::NAME)
            } else {
                (measure::<u64>, u64::NAME)
            };
            cases.push(Case {
                design: *design,
                ids,
                measure,
                payload,
                messages,
            });
        }
    };
    // The case as published.
    add(
        &[Select, SelectBiased, SelectAll, ByHand, Demultiplexer],
        3,
        true,
        messages,
    );
    // Measure the same case without allocations.
    add(
        &[SelectBiased, ByHand, Demultiplexer, Limited],
        3,
        false,
        messages,
    );
    for ids in [10, 100, 1000, 10_000] {
        add(&[Demultiplexer, Limited], ids, false, messages / 4);
    }
    add(&[Channels], 3, true, messages / 4);
    cases
}

fn argument<T: std::str::FromStr>(name: &str, default: T) -> T {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let value = arguments.nth(1);
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn main() {
    let (messages, rounds) = (
        argument("--messages", MESSAGES),
        argument("--rounds", ROUNDS),
    );
    let is_json = std::env::args().any(|argument| argument == "--json");
    let cases = cases(messages);
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    for round in 1..=rounds {
        for (case, measured) in cases.iter().zip(&mut measured) {
            let ns = (case.measure)(case.design, case.messages, case.ids);
            measured.push(ns);
            if is_json {
                let row = serde_json::json!({
                    "design": case.design.name(),
                    "sinks": case.ids,
                    "payload": case.payload,
                    "messages": case.messages,
                    "ns_per_message": ns,
                    "round": round,
                    "limited": case.design == Design::Limited,
                });
                println!("{row}");
            }
        }
    }
    if !is_json {
        println!("| design | sinks | payload | ns per message: median (least to most) |");
        println!("|---|---|---|---|");
        for (case, measured) in cases.iter().zip(&mut measured) {
            measured.sort_by(f64::total_cmp);
            let (least, most) = (measured[0], measured[measured.len() - 1]);
            let median = measured[measured.len() / 2];
            println!(
                "| {} | {} | {} | {median:.1} ({least:.1} to {most:.1}) |",
                case.design.name(),
                case.ids,
                case.payload,
            );
        }
    }
}

const MESSAGES: u64 = 100_000_000;
const ROUNDS: usize = 5;
/// Maximum number of messages in a sink.
const VEC_MAX: usize = 64;
/// Capacity of a channel.
const CHANNEL: usize = 256;
