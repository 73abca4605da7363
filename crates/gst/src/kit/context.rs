//! The context properties of all elements, and the announcement of a context along its branch.

use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{
    Context, CpuSet, NoCpuList, PRIORITY_MAX, Scheduling, Settings, Shard, StartError,
};

use super::PropertyGroup;

/// The properties `context`, `context-wait`, `context-threads`, `context-affinity` and `context-priority`.
#[derive(Debug, Clone)]
pub struct ContextSettings {
    name: String,
    wait_ms: u32,
    threads: i32,
    /// As the user wrote it: checked when the context is needed.
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
    /// The property specifications, to be appended to an element's own.
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecString::builder("context")
                .nick("Context")
                .blurb("Name of the context whose threads this element shares; empty: the branch's, if it announces one, else the context \"\"")
                .default_value(Some(""))
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("context-wait")
                .nick("Context wait")
                .blurb("Length of a slice: the context handles all that has arrived once in this time, ms; 0: at once")
                .maximum(WAIT_MS_MAX)
                .mutable_ready()
                .build(),
            glib::ParamSpecInt::builder("context-threads")
                .nick("Context threads")
                .blurb("Threads of the context: -1: exactly one, 0: one per CPU core, N: N, elements spread over them")
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
                .blurb("Real-time priority of the context's threads (SCHED_FIFO), which needs CAP_SYS_NICE or ulimit -r; 0: ordinary threads")
                .minimum(0)
                .maximum(PRIORITY_MAX.into())
                .mutable_ready()
                .build(),
        ]
    }

    /// Sets one of them. `false`: not a property of this group.
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

    /// Reads one of them.
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
    /// A context of one thread.
    pub(crate) fn named(name: String, wait_ms: u32) -> Self {
        ContextSettings {
            name,
            wait_ms,
            ..ContextSettings::default()
        }
    }

    /// Whether the user named a context, which overrides the branch's.
    pub fn is_named(&self) -> bool {
        !self.name.is_empty()
    }

    /// The requested wait.
    pub fn wait(&self) -> gst::ClockTime {
        gst::ClockTime::from_mseconds(u64::from(self.wait_ms))
    }

    /// A place on the context these properties name. Warns, in the element's name, when the context already runs with
    /// other settings.
    pub fn place(&self, element: &gst::Element) -> Result<Place, gst::ErrorMessage> {
        let affinity: CpuSet = self.affinity.parse().map_err(|error: NoCpuList| {
            gst::error_msg!(gst::ResourceError::Settings, ["context-affinity: {error}"])
        })?;
        let asked = Settings {
            wait: Duration::from_millis(self.wait_ms.into()),
            threads: self.threads,
            scheduling: Scheduling {
                affinity,
                priority: self.priority,
            },
        };
        let context = Context::acquire(&self.name, asked).map_err(|error| {
            let property = match error {
                StartError::Affinity(_) => ", context-affinity",
                StartError::Priority { .. } | StartError::PriorityRange(_) => ", context-priority",
                StartError::Thread(_) => "",
            };
            gst::error_msg!(
                gst::ResourceError::Failed,
                ["cannot start context '{}'{property}: {error}", self.name]
            )
        })?;
        if let Some(conflict) = context.conflict(asked) {
            gst::warning!(super::CAT, obj = element, "{conflict}");
        }
        let shard = context.next_shard();
        Ok(Place { context, shard })
    }
}

/// A thread of a context, kept running by this value.
#[derive(Debug, Clone)]
pub struct Place {
    pub(crate) context: Context,
    pub(crate) shard: Shard,
}

impl Place {
    /// The event that announces the branch's context to the elements downstream.
    pub fn announcement(&self) -> gst::Event {
        let structure = gst::Structure::builder(ANNOUNCEMENT)
            .field("context", self.context.name())
            .field("shard", self.shard.id())
            .build();
        gst::event::CustomDownstreamSticky::new(structure)
    }

    /// The announced place, if the event is an announcement and the context is still in use.
    pub fn announced(event: &gst::EventRef) -> Option<Place> {
        let structure = event.structure().filter(|s| s.name() == ANNOUNCEMENT)?;
        let context = Context::find(structure.get::<&str>("context").ok()?)?;
        let id = structure.get::<u64>("shard").ok()?;
        let shard = context
            .shards()
            .iter()
            .find(|shard| shard.id() == id)?
            .clone();
        Some(Place { context, shard })
    }

    /// The thread, for running tasks there ([`Shard::spawn`]).
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The context's actual wait.
    pub fn wait(&self) -> gst::ClockTime {
        gst::ClockTime::from_nseconds(self.shard.wait().as_nanos() as u64)
    }
}

const ANNOUNCEMENT: &str = "threadbare-context";
const THREADS_DEFAULT: i32 = -1;
/// As existing pipelines expect.
pub(crate) const WAIT_MS_MAX: u32 = 1000;
