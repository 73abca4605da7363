//! The tracer `ts-contexts`: finds the element of a branch that blocks a context.
//!
//! On a context's thread, each push is timed from start to end, less the time of the pushes within it. The remaining time is that
//! of the element that received the push. Other threads are not traced.

use std::cell::RefCell;

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Blocked, Local, clock_now_ns};

glib::wrapper! {
    pub(crate) struct Tracer(ObjectSubclass<Imp>) @extends gst::Tracer, gst::Object;
}

#[derive(Default)]
pub(crate) struct Imp;

/// A push that is under way.
struct Push {
    began_ns: u64,
    /// Time of the pushes within it.
    inner_ns: u64,
}

thread_local! {
    static PUSHES: RefCell<Vec<Push>> = const { RefCell::new(Vec::new()) };
}

/// Notes the start of a push. It reads CLOCK_MONOTONIC, as all other times here, because a tracer's time stamps count from the
/// start of the process.
fn begin() {
    if threadbare_runtime::current_shard_id().is_some() {
        PUSHES.with_borrow_mut(|pushes| {
            pushes.push(Push {
                began_ns: clock_now_ns(),
                inner_ns: 0,
            });
        });
    }
}

fn end(pad: &gst::Pad) {
    let own = PUSHES.with_borrow_mut(|pushes| {
        let push = pushes.pop()?;
        let whole_ns = clock_now_ns().saturating_sub(push.began_ns);
        if let Some(outer) = pushes.last_mut() {
            outer.inner_ns += whole_ns;
        }
        Some((push.began_ns, whole_ns.saturating_sub(push.inner_ns)))
    });
    let Some((at_ns, for_ns)) = own else { return };
    Local::with_current(|local| {
        let shard = local.shard();
        if for_ns > shard.blocked_limit_ns() {
            let element = pad.peer().and_then(|peer| peer.parent_element());
            let by = element.map_or_else(
                || pad.name().into(),
                |element| crate::kit::path_of(&element),
            );
            shard.note_blocked(Blocked { by, at_ns, for_ns });
        }
    });
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareTracer";
    type Type = Tracer;
    type ParentType = gst::Tracer;
}

impl ObjectImpl for Imp {
    fn constructed(&self) {
        self.parent_constructed();
        for hook in [
            TracerHook::PadPushPre,
            TracerHook::PadPushPost,
            TracerHook::PadPushListPre,
            TracerHook::PadPushListPost,
        ] {
            self.register_hook(hook);
        }
        if let Err(error) = super::serve() {
            gst::warning!(crate::kit::CAT, "contexts cannot be inspected: {error}");
        }
    }
}

impl GstObjectImpl for Imp {}

impl TracerImpl for Imp {
    fn pad_push_pre(&self, _ts: u64, _pad: &gst::Pad, _buffer: &gst::Buffer) {
        begin();
    }

    fn pad_push_post(
        &self,
        _ts: u64,
        pad: &gst::Pad,
        _result: Result<gst::FlowSuccess, gst::FlowError>,
    ) {
        end(pad);
    }

    fn pad_push_list_pre(&self, _ts: u64, _pad: &gst::Pad, _list: &gst::BufferList) {
        begin();
    }

    fn pad_push_list_post(
        &self,
        _ts: u64,
        pad: &gst::Pad,
        _result: Result<gst::FlowSuccess, gst::FlowError>,
    ) {
        end(pad);
    }
}
