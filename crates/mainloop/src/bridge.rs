//! GLib's main loop and a tokio runtime in one program.
//!
//! tokio gives each of its tasks a budget of operations on tokio's channels, sockets and timers. When the budget is used up, all
//! of these are pending until the task returns to tokio. If a main context runs inside a tokio task (for example
//! `runtime.block_on` around `MainLoop::run`), the task never returns. So after 128 messages, every tokio channel on that thread
//! stays silent, or makes the thread spin.
//!
//! A [`Bridge`] therefore never runs one loop inside the other: each loop has its own threads. Futures that need both loops are
//! polled with the runtime entered and without a budget ([`Bridge::with_tokio`]), or are sent to the other side.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use glib::MainContext;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;

use crate::join::JoinError;

/// A main context and a tokio runtime that use each other.
///
/// ```
/// use glib::MainContext;
/// use threadbare_mainloop::Bridge;
///
/// let runtime = tokio::runtime::Runtime::new().unwrap();
/// let context = MainContext::new();
/// let bridge = Bridge::new(&context, runtime.handle());
/// let there_and_back = bridge.clone();
/// let answer = context.block_on(async move {
///     // Runs in tokio...
///     let home = there_and_back.clone();
///     there_and_back.on_tokio(async move {
///         // ... and from there on the main context, which a future that is not Send may use.
///         home.on_context(|| async { *std::rc::Rc::new(42) }).await.unwrap()
///     }).await.unwrap()
/// });
/// assert_eq!(answer, 42);
/// ```
#[derive(Clone)]
pub struct Bridge {
    context: MainContext,
    tokio: Handle,
}

impl Bridge {
    /// Connects a context and a runtime. The program must run both on different threads: the context on one thread, and the
    /// runtime (`multi_thread`, or one that another thread drives) on others.
    pub fn new(context: &MainContext, tokio: &Handle) -> Self {
        Bridge {
            context: context.clone(),
            tokio: tokio.clone(),
        }
    }

    /// Returns the main context.
    pub fn context(&self) -> &MainContext {
        &self.context
    }

    /// Returns the tokio runtime.
    pub fn tokio(&self) -> &Handle {
        &self.tokio
    }

    /// Runs a future in tokio. Dropping the returned future aborts it.
    ///
    /// # Errors
    /// Fails if the runtime has ended, or if the future has panicked.
    pub fn on_tokio<F>(&self, future: F) -> OnTokio<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        OnTokio(self.tokio.spawn(future))
    }

    /// Runs a future on the main context, with [`Bridge::with_tokio`]. The future is created there and need not be `Send`.
    /// Dropping the returned future aborts it; the context's thread then drops it.
    ///
    /// # Errors
    /// Fails if the context has ended, or if the future has panicked.
    pub fn on_context<F>(&self, make: impl FnOnce() -> F + Send + 'static) -> OnContext<F::Output>
    where
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let tokio = self.tokio.clone();
        let name = Some("threadbare: a future from tokio");
        let mut parcel = Some((make, stopped, tell));
        // Use a source and never call it directly: `g_main_context_invoke` would call it on this thread if no other thread runs
        // the context.
        let open = move || {
            if let Some((make, stopped, tell)) = parcel.take() {
                run_here(tokio.clone(), make, stopped, tell);
            }
            glib::ControlFlow::Break
        };
        glib::idle_source_new(name, glib::Priority::DEFAULT, open).attach(Some(&self.context));
        OnContext { told, _stop: stop }
    }

    /// Wraps a future on the main context that uses tokio. The runtime is entered while the future is polled, so that tokio's
    /// sockets and timers work. The future has no budget.
    pub fn with_tokio<F: Future>(&self, future: F) -> WithTokio<F> {
        WithTokio::new(self.tokio.clone(), future)
    }
}

/// Runs a future in a source of the context. The source must not keep the context alive: a context that ends drops everything
/// that was sent to it.
fn run_here<F>(
    tokio: Handle,
    make: impl FnOnce() -> F + 'static,
    stopped: oneshot::Receiver<()>,
    tell: oneshot::Sender<Result<F::Output, JoinError>>,
) where
    F: Future + 'static,
{
    let context = glib::main_current_source().and_then(|source| source.context());
    let Some(context) = context else {
        return;
    };
    let future = AssertUnwindSafe(async move { make().await }).catch_unwind();
    let task = async move {
        match select(pin!(future), stopped).await {
            Either::Left((outcome, _)) => {
                // Sending fails if the receiver has been dropped.
                let _ = tell.send(outcome.map_err(JoinError::Panicked));
            }
            Either::Right(_) => {}
        }
    };
    context.spawn_local(WithTokio::new(tokio, task));
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// The future of [`Bridge::with_tokio`].
#[must_use = "futures do nothing unless awaited"]
pub struct WithTokio<F> {
    future: Pin<Box<tokio::task::coop::Unconstrained<F>>>,
    tokio: Handle,
}

impl<F: Future> WithTokio<F> {
    fn new(tokio: Handle, future: F) -> Self {
        WithTokio {
            future: Box::pin(unconstrained(future)),
            tokio,
        }
    }
}

impl<F: Future> Future for WithTokio<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let WithTokio { future, tokio } = &mut *self;
        let _entered = tokio.enter();
        future.as_mut().poll(cx)
    }
}

impl<F> fmt::Debug for WithTokio<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithTokio")
    }
}

/// The future of [`Bridge::on_tokio`].
#[must_use = "dropping it aborts the future in tokio"]
#[derive(Debug)]
pub struct OnTokio<T>(tokio::task::JoinHandle<T>);

impl<T> Future for OnTokio<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let joined = Pin::new(&mut unconstrained(&mut self.0)).poll(cx);
        joined.map_err(|error| match error.try_into_panic() {
            Ok(payload) => JoinError::Panicked(payload),
            Err(_) => JoinError::Cancelled,
        })
    }
}

impl<T> Drop for OnTokio<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The future of [`Bridge::on_context`].
#[must_use = "dropping it aborts the future on the context"]
#[derive(Debug)]
pub struct OnContext<T> {
    told: oneshot::Receiver<Result<T, JoinError>>,
    /// Stops the future on the context when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl<T> Future for OnContext<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let told = Pin::new(&mut self.told).poll(cx);
        told.map(|told| told.unwrap_or(Err(JoinError::Cancelled)))
    }
}
