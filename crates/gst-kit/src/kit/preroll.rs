//! Finds stock sinks that stop a pipeline from starting. A pipeline plays only when each of its sinks has a buffer. But the first
//! stock sink that gets a buffer blocks the context's thread until the pipeline plays. So the other sinks on this thread get no
//! buffer.

use gst::prelude::*;

/// Posts a warning with the names of such sinks. A source calls it before its first buffer.
pub(super) fn warn_of_blocking_sinks(source: &gst::Element, context: &str) {
    let mut top = source.clone().upcast::<gst::Object>();
    while let Some(parent) = top.parent() {
        top = parent;
    }
    let Ok(pipeline) = top.downcast::<gst::Bin>() else {
        return;
    };
    // Only this state counts: after live sources, sinks wait for PLAYING although the sources already play.
    if pipeline.current_state() == gst::State::Playing {
        return;
    }
    let sinks: Vec<(gst::Element, Feed)> = pipeline
        .iterate_recurse()
        .into_iter()
        .take(ELEMENTS_MAX)
        .flatten()
        .filter(is_sink)
        .filter_map(|sink| Some((sink.clone(), feed_of(&sink, context)?)))
        .collect();
    let names = |of: &dyn Fn(&gst::Element, Feed) -> bool| {
        let found = sinks.iter().filter(|(sink, feed)| of(sink, *feed));
        let names: Vec<String> = found.map(|(sink, _)| sink.name().to_string()).collect();
        names.join(", ")
    };
    let holding = names(&|sink, feed| feed == Feed::Direct && !is_ours(sink));
    // If no sink has `async` set, the pipeline plays at once.
    let awaited = names(&|sink, _| sink.property::<bool>("async"));
    if sinks.len() < 2 || holding.is_empty() || awaited.is_empty() {
        return;
    }
    let reason = format!(
        "{holding} blocks the thread of the context '{context}' until the pipeline plays, and the pipeline waits for data from that thread at {awaited}: \
         set async=false on all these sinks, or put a ts-blocking-adapter before {holding}"
    );
    // This log is needed because the application's thread may be blocked in set_state, where it would not see the message.
    gst::error!(super::CAT, obj = source, "{reason}");
    gst::element_warning!(source, gst::CoreError::StateChange, ("{reason}"));
}

/// How an element of the context feeds a sink.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// The sink may block the context's thread.
    Direct,
    /// The sink cannot block the context's thread.
    Queued,
}

fn is_sink(element: &gst::Element) -> bool {
    let is_sink = element.element_flags().contains(gst::ElementFlags::SINK);
    is_sink && !element.is::<gst::Bin>() && element.find_property("async").is_some()
}

/// Sinks of this plugin do not wait for PLAYING in their streaming thread.
fn is_ours(element: &gst::Element) -> bool {
    let plugin = element.factory().and_then(|factory| factory.plugin());
    plugin.is_some_and(|plugin| plugin.plugin_name() == "threadbare")
}

fn feed_of(sink: &gst::Element, context: &str) -> Option<Feed> {
    let mut feed = Feed::Direct;
    let mut element = sink.clone();
    for _ in 0..BRANCH_MAX {
        element = upstream(&element)?;
        let factory = element.factory()?.name();
        if factory == ADAPTER {
            feed = Feed::Queued;
        } else if element.find_property("context-wait").is_some() {
            // An element with `contexts` has a thread for each branch.
            element.find_property("context")?;
            let name = element.property::<Option<String>>("context");
            return (name.as_deref().unwrap_or_default() == context).then_some(feed);
        }
    }
    None
}

/// Returns the element that is linked to the first input of `element`, even across the borders of bins.
fn upstream(element: &gst::Element) -> Option<gst::Element> {
    let mut pad = element.sink_pads().into_iter().next()?.peer()?;
    for _ in 0..BRANCH_MAX {
        // This is the inner side of a bin's pad, its outer side, or an element's pad.
        let parent = pad.parent()?;
        pad = match parent.downcast::<gst::GhostPad>() {
            Ok(ghost) => ghost.peer()?,
            Err(parent) => match pad.downcast::<gst::GhostPad>() {
                Ok(ghost) => ghost.target()?,
                Err(_) => return parent.downcast().ok(),
            },
        };
    }
    None
}

/// Maximum number of elements checked in a pipeline. It is needed because each source of a large pipeline checks them.
const ELEMENTS_MAX: usize = 256;
/// Maximum number of elements to check in a branch.
const BRANCH_MAX: usize = 64;
/// An adapter never blocks the thread that pushes into it, and pushes on another thread. A stock queue blocks the pushing thread
/// as soon as it is full.
const ADAPTER: &str = "ts-blocking-adapter";
