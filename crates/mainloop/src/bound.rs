//! Values that stay on the thread of their main context.

use std::fmt;

use glib::thread_guard::ThreadGuard;
use glib::{MainContext, Priority};

use crate::AttachError;

/// A value of one thread in a wrapper that other threads may hold. The callback of a source needs this.
///
/// If the wrapper is dropped on another thread, the value is leaked, with a log message. The value must not be dropped on that
/// thread. It cannot be sent to its own thread either, because the source may be dropped when its context ends.
pub(crate) struct Guarded<T>(Option<ThreadGuard<T>>);

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Guarded(Some(ThreadGuard::new(value)))
    }

    /// Returns the value; `None` on any thread but its own.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        let guard = self.0.as_mut()?;
        guard.is_owner().then(|| guard.get_mut())
    }

    fn get(&self) -> Option<&T> {
        let guard = self.0.as_ref()?;
        guard.is_owner().then(|| guard.get_ref())
    }

    fn is_home(&self) -> bool {
        self.0.as_ref().is_none_or(ThreadGuard::is_owner)
    }

    /// Takes the value on its own thread, which leaves the wrapper empty.
    fn take(&mut self) -> Option<T> {
        let is_home = self.is_home();
        self.0.take_if(|_| is_home).map(ThreadGuard::into_inner)
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if !self.is_home() {
            let kind = std::any::type_name::<T>();
            tracing::warn!(
                "a value of type {kind} is leaked, because it must not be dropped on this thread"
            );
            std::mem::forget(self.0.take());
        }
    }
}

/// A value that belongs to the thread of a main context, and may be sent to any thread.
///
/// It can be used only on its own thread. If it is dropped on another thread, it is sent to its own thread, where the context
/// drops it. If the context does not run any more, the value is leaked, with a log message, because no other thread may drop it.
///
/// ```
/// use std::rc::Rc;
/// use glib::MainContext;
/// use threadbare_mainloop::ContextBound;
///
/// let context = MainContext::new();
/// let label = ContextBound::new(&context, Rc::new("a widget, say"))?;
/// std::thread::spawn(move || assert!(label.get().is_none())).join().unwrap();
/// // The drop on the other thread sent it here.
/// while context.iteration(false) {}
/// # Ok::<(), threadbare_mainloop::AttachError>(())
/// ```
pub struct ContextBound<T: 'static> {
    value: Guarded<T>,
    context: MainContext,
}

impl<T: 'static> ContextBound<T> {
    /// Binds `value` to the calling thread, which must be the one that runs `context`.
    ///
    /// # Errors
    /// Fails if another thread runs the context.
    pub fn new(context: &MainContext, value: T) -> Result<Self, AttachError> {
        check_owner(context)?;
        Ok(ContextBound {
            value: Guarded::new(value),
            context: context.clone(),
        })
    }

    /// Returns the value; `None` on any thread but its own.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the value; `None` on any thread but its own.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Takes the value out of the wrapper, on the value's own thread.
    ///
    /// # Errors
    /// Returns `self` on any other thread.
    pub fn into_inner(mut self) -> Result<T, Self> {
        self.value.take().ok_or(self)
    }

    /// Calls `f` with the value on the value's own thread, when the context runs next. If the caller is on that thread, `f` is
    /// also called only then.
    pub fn send_home(mut self, f: impl FnOnce(T) + Send + 'static) {
        let value = Guarded(self.value.0.take());
        send_home(&self.context, value, f);
    }

    /// Returns the context.
    pub fn context(&self) -> &MainContext {
        &self.context
    }
}

impl<T: 'static> Drop for ContextBound<T> {
    fn drop(&mut self) {
        if !self.value.is_home() {
            let value = Guarded(self.value.0.take());
            send_home(&self.context, value, drop);
        }
    }
}

impl<T: 'static> fmt::Debug for ContextBound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBound")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Calls `f` with `value` on the value's own thread. It uses a source and never calls `f` directly, because
/// `g_main_context_invoke` would call it on this thread if no other thread runs the context.
fn send_home<T: 'static>(
    context: &MainContext,
    value: Guarded<T>,
    f: impl FnOnce(T) + Send + 'static,
) {
    let mut parcel = Some((value, f));
    let open = move || {
        if let Some((mut value, f)) = parcel.take()
            && let Some(value) = value.take()
        {
            f(value);
        }
        glib::ControlFlow::Break
    };
    let name = Some("threadbare: a value on its way home");
    glib::idle_source_new(name, Priority::DEFAULT, open).attach(Some(context));
}

/// Checks that this thread runs `context`, or that no other thread does.
pub(crate) fn check_owner(context: &MainContext) -> Result<(), AttachError> {
    context
        .acquire()
        .map(drop)
        .map_err(|_| AttachError::NotOwner)
}
