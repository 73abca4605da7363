//! Signals and property changes of objects as streams.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use glib::object::{IsA, Object, ObjectExt, ObjectType};
use glib::signal::SignalHandlerId;
use glib::subclass::SignalId;
use glib::value::{FromValue, ToSendValue};
use glib::{SendValue, Type, Value, WeakRef};
use threadbare_runtime::{Monitor, Registration, Topics};

use crate::sync::{Mutex, lock};

/// Treatment of an emission when the stream is full. An emission cannot wait for room, because its emitter waits until the
/// handlers have returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The oldest waiting emission is dropped, so that the stream ends with the latest one.
    #[default]
    DropOldest,
    /// The new emission is dropped.
    DropNewest,
}

/// Why a signal or property has no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// The object has no such signal.
    #[error("{type_} has no signal '{signal}'")]
    NoSignal {
        /// The object's type.
        type_: Type,
        /// The requested name.
        signal: String,
    },
    /// The object has no such property, or the property cannot be read.
    #[error("{type_} has no readable property '{property}'")]
    NoProperty {
        /// The object's type.
        type_: Type,
        /// The requested name.
        property: String,
    },
    /// The property has values of another type.
    #[error("property '{property}' of {type_} has values of type {is}, not {asked}")]
    PropertyType {
        /// The object's type.
        type_: Type,
        /// The property.
        property: String,
        /// Type of the property's values.
        is: Type,
        /// The requested type.
        asked: Type,
    },
    /// The emitter needs an answer, but none was given, or an answer of another type.
    #[error(
        "handlers of signal '{signal}' must return a value of type {wanted}: set the value with `returning`"
    )]
    Returns {
        /// The signal.
        signal: String,
        /// The type of the answer.
        wanted: Type,
    },
    /// The emitter takes no answer, but one was given.
    #[error("handlers of signal '{signal}' must not return a value: remove `returning`")]
    ReturnsNothing {
        /// The signal.
        signal: String,
    },
}

/// Returns a stream of the emissions of a signal. `map` converts the signal's arguments; the first is the object itself.
///
/// `signal` may have a detail (`notify::volume`). `map` runs in the emitting thread, for each emission. Up to 64 results wait for
/// the stream's reader; after that, the oldest one is dropped. [`SignalStreamBuilder`] has other settings. The stream ends with
/// the object.
///
/// ```
/// use futures_util::StreamExt;
/// use gio::prelude::*;
/// use threadbare_mainloop::signal_stream;
///
/// let cancellable = gio::Cancellable::new();
/// let mut cancelled = signal_stream(&cancellable, "cancelled", |values| values.len())?;
/// cancellable.cancel();
/// // Its one argument is the object.
/// assert_eq!(glib::MainContext::new().block_on(cancelled.next()), Some(1));
/// # Ok::<(), threadbare_mainloop::SignalError>(())
/// ```
///
/// # Errors
/// Fails if the object has no such signal, or if its emitter needs an answer.
pub fn signal_stream<O, T>(
    object: &O,
    signal: &str,
    map: impl Fn(&[Value]) -> T + Send + Sync + 'static,
) -> Result<SignalStream<O, T>, SignalError>
where
    O: IsA<Object>,
    T: Send + 'static,
{
    SignalStreamBuilder::default().build(object, signal, map)
}

/// Returns a stream of a property's values after each change. Only the latest value waits for the stream's reader.
///
/// # Errors
/// Fails if the object has no such readable property, or if the property has another type than `T`.
pub fn notify_stream<O, T>(object: &O, property: &str) -> Result<SignalStream<O, T>, SignalError>
where
    O: IsA<Object>,
    T: for<'v> FromValue<'v> + glib::types::StaticType + Send + 'static,
{
    SignalStreamBuilder::default()
        .capacity(1)
        .build_notify(object, property)
}

/// Settings of a [`SignalStream`].
#[derive(Debug, Clone)]
pub struct SignalStreamBuilder {
    capacity: usize,
    overflow: Overflow,
    is_after: bool,
    answer: Option<SendValue>,
}

impl Default for SignalStreamBuilder {
    fn default() -> Self {
        SignalStreamBuilder {
            capacity: CAPACITY,
            overflow: Overflow::default(),
            is_after: false,
            answer: None,
        }
    }
}

impl SignalStreamBuilder {
    /// Sets the maximum number of emissions that wait for the reader, at least 1; the default is 64.
    pub fn capacity(mut self, emissions: usize) -> Self {
        self.capacity = emissions.max(1);
        self
    }

    /// Sets the treatment of emissions above the capacity.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Makes the handler run after the default handler of the object's class.
    pub fn after(mut self) -> Self {
        self.is_after = true;
        self
    }

    /// Sets the handler's answer, for signals whose emitter needs one.
    pub fn returning(mut self, answer: impl ToSendValue) -> Self {
        self.answer = Some(answer.to_send_value());
        self
    }

    /// Creates the stream of a signal, as [`signal_stream`] does.
    ///
    /// # Errors
    /// Fails if the object has no such signal, or if its emitter needs an answer of another type.
    pub fn build<O, T>(
        self,
        object: &O,
        signal: &str,
        map: impl Fn(&[Value]) -> T + Send + Sync + 'static,
    ) -> Result<SignalStream<O, T>, SignalError>
    where
        O: IsA<Object>,
        T: Send + 'static,
    {
        let type_ = object.type_();
        let (id, detail) =
            SignalId::parse_name(signal, type_, true).ok_or_else(|| SignalError::NoSignal {
                type_,
                signal: signal.to_owned(),
            })?;
        let wanted: Type = id.query().return_type().into();
        match &self.answer {
            Some(_) if wanted == Type::UNIT => {
                return Err(SignalError::ReturnsNothing {
                    signal: signal.to_owned(),
                });
            }
            Some(answer) if answer.type_().is_a(wanted) => {}
            None if wanted == Type::UNIT => {}
            _ => {
                return Err(SignalError::Returns {
                    signal: signal.to_owned(),
                    wanted,
                });
            }
        }
        let queue = Queue::new(self.capacity, self.overflow);
        let feed = Feed(queue.clone());
        // Emissions may come from several threads.
        let answer = self.answer.map(Mutex::new);
        let handler = move |values: &[Value]| {
            feed.push(map(values));
            let answer = answer.as_ref()?;
            let answer = lock(answer);
            Some((**answer).clone())
        };
        let handler = object.connect_id(id, detail, self.is_after, handler);
        Ok(SignalStream {
            queue,
            registration: Registration::default(),
            object: object.downgrade(),
            handler: Some(handler),
        })
    }

    /// Creates the stream of a property, as [`notify_stream`] does.
    ///
    /// # Errors
    /// Fails if the object has no such readable property, or if the property has another type than `T`.
    pub fn build_notify<O, T>(
        self,
        object: &O,
        property: &str,
    ) -> Result<SignalStream<O, T>, SignalError>
    where
        O: IsA<Object>,
        T: for<'v> FromValue<'v> + glib::types::StaticType + Send + 'static,
    {
        let (type_, asked) = (object.type_(), T::static_type());
        let specification = object
            .find_property(property)
            .filter(|found| found.flags().contains(glib::ParamFlags::READABLE))
            .ok_or_else(|| SignalError::NoProperty {
                type_,
                property: property.to_owned(),
            })?;
        let is = specification.value_type();
        if !is.is_a(asked) {
            return Err(SignalError::PropertyType {
                type_,
                property: property.to_owned(),
                is,
                asked,
            });
        }
        let name = specification.name().to_owned();
        self.build(object, &format!("notify::{name}"), move |values| {
            let object: Object = values[0]
                .get()
                .expect("a signal's first argument is its object");
            object.property(&name)
        })
    }
}

/// The stream of [`signal_stream`] and [`notify_stream`]. Dropping it disconnects its handler. It is `Send` if the object is.
pub struct SignalStream<O: ObjectType, T> {
    queue: Arc<Queue<T>>,
    registration: Registration,
    object: WeakRef<O>,
    handler: Option<SignalHandlerId>,
}

impl<O: ObjectType, T> SignalStream<O, T> {
    /// Returns the number of emissions that were dropped because the reader was too slow.
    pub fn dropped(&self) -> u64 {
        self.queue.0.lock().dropped
    }
}

impl<O: ObjectType, T> Stream for SignalStream<O, T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let SignalStream {
            queue,
            registration,
            ..
        } = &mut *self;
        queue.0.poll_until(registration, EMISSIONS, cx, |state| {
            match state.items.pop_front() {
                Some(item) => Poll::Ready(Some(item)),
                None if state.has_ended => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
    }
}

impl<O: ObjectType, T> Unpin for SignalStream<O, T> {}

impl<O: ObjectType, T> Drop for SignalStream<O, T> {
    fn drop(&mut self) {
        self.queue.0.cancel(&mut self.registration);
        if let Some(object) = self.object.upgrade()
            && let Some(handler) = self.handler.take()
        {
            object.disconnect(handler);
        }
    }
}

impl<O: ObjectType, T> fmt::Debug for SignalStream<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalStream")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

struct Queue<T>(Monitor<State<T>>);

struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    overflow: Overflow,
    dropped: u64,
    has_ended: bool,
}

impl<T> Queue<T> {
    fn new(capacity: usize, overflow: Overflow) -> Arc<Self> {
        Arc::new(Queue(Monitor::new(State {
            items: VecDeque::new(),
            capacity,
            overflow,
            dropped: 0,
            has_ended: false,
        })))
    }
}

/// Part of the handler. It is dropped with the handler, at the end of the object.
struct Feed<T>(Arc<Queue<T>>);

impl<T> Feed<T> {
    fn push(&self, item: T) {
        let mut guard = self.0.0.lock();
        let mut refused = None;
        if guard.items.len() < guard.capacity {
            guard.items.push_back(item);
        } else {
            guard.dropped += 1;
            match guard.overflow {
                Overflow::DropNewest => refused = Some(item),
                Overflow::DropOldest => {
                    refused = guard.items.pop_front();
                    guard.items.push_back(item);
                }
            }
        }
        guard.wake(EMISSIONS);
        drop(guard);
        // Dropped after the unlock, because this drop calls foreign code.
        drop(refused);
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        let mut guard = self.0.0.lock();
        guard.has_ended = true;
        guard.wake(EMISSIONS);
    }
}

const EMISSIONS: Topics = Topics::of(0);
/// Default capacity: enough for a burst of user input or of a pipeline's messages.
const CAPACITY: usize = 64;
