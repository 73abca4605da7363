//! The sink pads of `fallbackswitch` and their properties.

use std::sync::OnceLock;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::core::{Input, InputId};
use super::turns::Turns;

glib::wrapper! {
    /// An input of a `fallbackswitch`.
    pub struct SwitchPad(ObjectSubclass<imp::SwitchPad>) @extends gst::Pad, gst::Object;
}

impl SwitchPad {
    /// Connects the pad to its element. Called once, before the pad is used.
    pub(super) fn join(&self, turns: Turns, id: InputId) {
        let is_first = self.imp().input.set((turns, id)).is_ok();
        debug_assert!(is_first, "joined already");
    }
}

mod imp {
    use super::*;
    use crate::fallback::switch::FallbackSwitch;
    use crate::fallback::switch::acting::act;

    #[derive(Default, Properties)]
    #[properties(wrapper_type = super::SwitchPad)]
    pub struct SwitchPad {
        #[property(name = "priority", nick = "Priority", blurb = "Priority of the input; the healthy input with the lowest number passes; unless set, the number in the pad's name", type = u32, get = |s: &Self| s.read(|input| input.priority), set = Self::set_priority)]
        #[property(name = "is-healthy", nick = "Is healthy", blurb = "Whether a timely buffer has arrived within the last timeout", type = bool, get = |s: &Self| s.read(Input::is_healthy))]
        pub(super) input: OnceLock<(Turns, InputId)>,
    }

    impl SwitchPad {
        fn read<T: Default>(&self, read: impl FnOnce(&Input) -> T) -> T {
            let Some((turns, id)) = self.input.get() else {
                return T::default();
            };
            turns.state().core.input(*id).map(read).unwrap_or_default()
        }

        fn set_priority(&self, priority: u32) {
            let Some((turns, id)) = self.input.get() else {
                return;
            };
            turns.change(|state, now_ns| state.core.handle_priority(now_ns, *id, priority));
            if let Some(element) = self.obj().parent().and_downcast::<FallbackSwitch>() {
                act(turns, &element);
            }
        }
    }

    #[glib::object_subclass]
    impl ObjectSubclass for SwitchPad {
        const NAME: &'static str = "ThreadbareFallbackSwitchPad";
        type Type = super::SwitchPad;
        type ParentType = gst::Pad;
    }

    #[glib::derived_properties]
    impl ObjectImpl for SwitchPad {}
    impl GstObjectImpl for SwitchPad {}
    impl PadImpl for SwitchPad {}
}
