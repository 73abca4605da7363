//! The sink pads of `ts-input-selector` and their properties.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::turns::Turns;
use crate::kit::lock;

glib::wrapper! {
    /// An input of a `ts-input-selector`.
    pub struct SelectorPad(ObjectSubclass<imp::SelectorPad>) @extends gst::Pad, gst::Object;
}

impl SelectorPad {
    /// Connects the pad to its element. Called once, before the pad is used.
    pub(super) fn join(&self, turns: Turns, id: u32) {
        let is_first = self.imp().input.set((turns, id)).is_ok();
        debug_assert!(is_first, "joined already");
    }

    /// Returns the result of a push into an inactive input.
    pub(super) fn dropped(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        if self.imp().always_ok.load(Relaxed) {
            Ok(gst::FlowSuccess::Ok)
        } else {
            Err(gst::FlowError::NotLinked)
        }
    }

    pub(super) fn note_tags(&self, tags: gst::TagList) {
        *lock(&self.imp().tags) = Some(tags);
    }
}

mod imp {
    use super::*;

    #[derive(Properties)]
    #[properties(wrapper_type = super::SelectorPad)]
    pub struct SelectorPad {
        #[property(name = "active", nick = "Active", blurb = "Whether the stream of this pad passes", type = bool, get = |s: &Self| s.read(false, |turns, id| turns.state().is_active(id)))]
        #[property(name = "running-time", nick = "Running time", blurb = "Running time of the pad's stream, ns", type = i64, get = |s: &Self| s.read(0, |turns, id| turns.state().position_ns(id)), minimum = 0)]
        pub(super) input: OnceLock<(Turns, u32)>,
        #[property(name = "always-ok", nick = "Always OK", blurb = "Return OK from a push while inactive; false: NOT_LINKED", type = bool, get = |s: &Self| s.always_ok.load(Relaxed), set = |s: &Self, v| s.always_ok.store(v, Relaxed), default = true)]
        pub(super) always_ok: AtomicBool,
        #[property(name = "tags", nick = "Tags", blurb = "Tags of the pad's stream", type = Option<gst::TagList>, get = |s: &Self| lock(&s.tags).clone())]
        pub(super) tags: Mutex<Option<gst::TagList>>,
    }

    impl Default for SelectorPad {
        fn default() -> Self {
            SelectorPad {
                input: OnceLock::new(),
                always_ok: AtomicBool::new(true),
                tags: Mutex::default(),
            }
        }
    }

    impl SelectorPad {
        fn read<T>(&self, unknown: T, read: impl FnOnce(&Turns, u32) -> T) -> T {
            (self.input.get()).map_or(unknown, |(turns, id)| read(turns, *id))
        }
    }

    #[glib::object_subclass]
    impl ObjectSubclass for SelectorPad {
        const NAME: &'static str = "ThreadbareSelectorPad";
        type Type = super::SelectorPad;
        type ParentType = gst::Pad;
    }

    #[glib::derived_properties]
    impl ObjectImpl for SelectorPad {}
    impl GstObjectImpl for SelectorPad {}
    impl PadImpl for SelectorPad {}
}
