//! The context properties of all elements, and the announcement of a context along its branch.

use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{
    Context, ContextInfo, CpuSet, NoCpuList, PRIORITY_MAX, Scheduling, Settings, Shard, StartError,
};

use super::PropertyGroup;

/// The properties `context`, `context-wait`, `context-threads`, `context-affinity` and `context-priority`.
#[derive(Debug, Clone)]
pub struct ContextSettings {
    name: String,
    wait_ms: u32,
    threads: i32,
    /// Text as the user has written it; it is checked when the element starts.
    affinity: String,
    priority: u8,
}

impl Default for ContextSettings {
    fn default() -> Self {
        ContextSettings {
            name: String::new(),
            wait_ms: 0,
            threads: THREADS_DEFAULT,
            affinity: String::new(),
            priority: 0,
        }
    }
}

impl PropertyGroup for ContextSettings {
    /// Returns the property specifications, which are appended to those of an element.
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecString::builder("context")
                .nick("Context")
                .blurb("Name of the context whose threads this element shares. If it is empty, the element uses the context of the elements upstream, or the context \"\" if there is none")
                .default_value(Some(""))
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("context-wait")
                .nick("Context wait")
                .blurb("Length of a slice, ms. Once per slice, the context handles everything that has arrived; 0: it handles everything as it arrives")
                .maximum(WAIT_MS_MAX)
                .mutable_ready()
                .build(),
            glib::ParamSpecInt::builder("context-threads")
                .nick("Context threads")
                .blurb("Number of threads of the context; its elements are spread over them; -1: exactly one, 0: one per CPU core")
                .minimum(-1)
                .default_value(THREADS_DEFAULT)
                .mutable_ready()
                .build(),
            glib::ParamSpecString::builder("context-affinity")
                .nick("Context affinity")
                .blurb("CPUs that the context's threads may run on, such as 0,2-3; empty: all")
                .default_value(Some(""))
                .mutable_ready()
                .build(),
            glib::ParamSpecInt::builder("context-priority")
                .nick("Context priority")
                .blurb("Real-time priority of the context's threads (SCHED_FIFO); needs CAP_SYS_NICE or ulimit -r; 0: ordinary threads")
                .minimum(0)
                .maximum(PRIORITY_MAX.into())
                .mutable_ready()
                .build(),
        ]
    }

    /// Sets a property. Returns `false` if it is not in this group.
    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "context" => {
                self.name = value
                    .get::<Option<String>>()
                    .ok()
                    .flatten()
                    .unwrap_or_default()
            }
            "context-wait" => self.wait_ms = value.get().unwrap_or(0),
            "context-threads" => self.threads = value.get().unwrap_or(THREADS_DEFAULT),
            "context-affinity" => {
                let text = value.get::<Option<String>>();
                self.affinity = text.ok().flatten().unwrap_or_default();
            }
            "context-priority" => {
                let priority = value.get::<i32>().ok();
                self.priority = priority.and_then(|p| p.try_into().ok()).unwrap_or(0);
            }
            _ => return false,
        }
        true
    }

    /// Returns the value of a property. Returns `None` if it is not in this group.
    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "context" => self.name.to_value(),
            "context-wait" => self.wait_ms.to_value(),
            "context-threads" => self.threads.to_value(),
            "context-affinity" => self.affinity.to_value(),
            "context-priority" => i32::from(self.priority).to_value(),
            _ => return None,
        })
    }
}

impl ContextSettings {
    /// Creates settings for a context of one thread.
    #[doc(hidden)]
    pub fn named(name: String, wait_ms: u32) -> Self {
        ContextSettings {
            name,
            wait_ms,
            ..ContextSettings::default()
        }
    }

    /// Returns the name that the user gave.
    #[doc(hidden)]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same settings with another name.
    #[doc(hidden)]
    pub fn with_name(self, name: String) -> Self {
        ContextSettings { name, ..self }
    }

    /// Whether the user named a context. A named context replaces that of the branch.
    pub fn is_named(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the requested wait.
    pub fn wait(&self) -> gst::ClockTime {
        gst::ClockTime::from_mseconds(u64::from(self.wait_ms))
    }

    /// Returns a place on the context that these properties name. Posts a warning message of the element if the context already
    /// runs with other settings.
    pub fn place(&self, element: &gst::Element) -> Result<Place, gst::ErrorMessage> {
        let asked = Settings {
            wait: Duration::from_millis(self.wait_ms.into()),
            threads: self.threads,
            scheduling: self.scheduling()?,
        };
        let context =
            Context::acquire(&self.name, asked).map_err(|error| self.cannot_start(&error))?;
        if let Some(conflict) = context.conflict(asked) {
            gst::element_warning!(element, gst::ResourceError::Settings, ["{conflict}"]);
        }
        let shard = context.next_shard();
        Ok(Place { context, shard })
    }

    /// Checks whether [`ContextSettings::place`] would succeed. This is for an element that may never need a place.
    ///
    /// # Errors
    /// Fails with the error that [`ContextSettings::place`] would return.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), gst::ErrorMessage> {
        let checked = self.scheduling()?.check();
        checked.map_err(|error| self.cannot_start(&error))
    }

    fn scheduling(&self) -> Result<Scheduling, gst::ErrorMessage> {
        let affinity: CpuSet = self.affinity.parse().map_err(|error: NoCpuList| {
            gst::error_msg!(gst::ResourceError::Settings, ["context-affinity: {error}"])
        })?;
        Ok(Scheduling {
            affinity,
            priority: self.priority,
        })
    }

    fn cannot_start(&self, error: &StartError) -> gst::ErrorMessage {
        let property = match error {
            StartError::Affinity(_) => ", context-affinity",
            StartError::Priority { .. } | StartError::PriorityRange(_) => ", context-priority",
            StartError::Thread(_) => "",
        };
        gst::error_msg!(
            gst::ResourceError::Failed,
            ["cannot start context '{}'{property}: {error}", self.name]
        )
    }
}

/// A thread of a context. The thread runs at least until this value is dropped.
#[derive(Debug, Clone)]
pub struct Place {
    #[doc(hidden)]
    pub context: Context,
    #[doc(hidden)]
    pub shard: Shard,
}

impl Place {
    /// Announces the place downstream, by adding it to a STREAM_START event. Returns other events unchanged.
    pub fn announce(&self, event: gst::Event) -> gst::Event {
        with_announcement(event, Some(self))
    }

    /// Returns the event without the place. This is for a branch that does not run on the announced thread.
    pub fn unannounced(event: gst::Event) -> gst::Event {
        with_announcement(event, None)
    }

    /// Returns the announced place, if the event is a STREAM_START with a place whose context is still in use.
    pub fn announced(event: &gst::EventRef) -> Option<Place> {
        let structure = start_of_stream(event)?.structure()?;
        let context = structure.get::<&str>(CONTEXT_FIELD).ok()?;
        Place::find(context, structure.get::<u64>(SHARD_FIELD).ok()?)
    }

    /// Returns the place of the branch that pushes a STREAM_START event: the announced place if there is one, otherwise the place
    /// of the current thread. (An element that starts its own streams, such as a demultiplexer, drops the announcement but pushes
    /// on the same thread.)
    pub fn of_branch(event: &gst::EventRef) -> Option<Place> {
        start_of_stream(event)?;
        Place::announced(event).or_else(|| {
            let id = threadbare_runtime::current_shard_id()?;
            let mut contexts = threadbare_runtime::contexts().into_iter();
            let is_here = |context: &ContextInfo| context.threads.iter().any(Shard::is_current);
            Place::find(&contexts.find(is_here)?.name, id)
        })
    }

    fn find(context: &str, shard: u64) -> Option<Place> {
        let context = Context::find(context)?;
        let mut shards = context.shards().iter();
        let shard = shards.find(|known| known.id() == shard)?.clone();
        Some(Place { context, shard })
    }

    /// Returns the name of the place's context.
    #[doc(hidden)]
    pub fn context_name(&self) -> &str {
        self.context.name()
    }

    /// Returns the thread, for running tasks there ([`Shard::spawn`]).
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Returns the context's actual wait.
    pub fn wait(&self) -> gst::ClockTime {
        gst::ClockTime::from_nseconds(self.shard.wait().as_nanos() as u64)
    }
}

fn start_of_stream(event: &gst::EventRef) -> Option<&gst::EventRef> {
    (event.type_() == gst::EventType::StreamStart).then_some(event)
}

/// Downstream expects STREAM_START, CAPS and SEGMENT without other events in between. So the place is a field of STREAM_START,
/// not a separate event.
fn with_announcement(mut event: gst::Event, place: Option<&Place>) -> gst::Event {
    if start_of_stream(&event).is_none() {
        return event;
    }
    let structure = event.make_mut().structure_mut();
    match place {
        Some(place) => {
            structure.set(CONTEXT_FIELD, place.context.name());
            structure.set(SHARD_FIELD, place.shard.id());
        }
        None => structure.remove_fields([CONTEXT_FIELD, SHARD_FIELD]),
    }
    event
}

/// Fields of a STREAM_START event.
const CONTEXT_FIELD: &str = "threadbare-context";
const SHARD_FIELD: &str = "threadbare-shard";
const THREADS_DEFAULT: i32 = -1;
/// Maximum of `context-wait`, as existing pipelines expect.
pub const WAIT_MS_MAX: u32 = 1000;
