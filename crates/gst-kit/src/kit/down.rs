//! Takes elements to NULL for good.

use gst::prelude::*;

/// Takes an element and its children to NULL, regardless of the result of their last state change. Returns `false` if one of them
/// refuses.
///
/// A bin stops its state change at the first child that fails, and leaves the others in their states. A child that is added
/// during the change may miss it. Each child is therefore handled separately.
pub fn take_down(element: &gst::Element) -> bool {
    (0..TRIES).any(|_| {
        let _ = element.set_state(gst::State::Null);
        if let Some(bin) = element.downcast_ref::<gst::Bin>() {
            for child in bin.children() {
                take_down(&child);
            }
        }
        is_down(element)
    })
}

/// Number of tries: one for the earlier failure, one for a failure during the change, and one for a child that was added during
/// the change.
const TRIES: usize = 3;

fn is_down(element: &gst::Element) -> bool {
    let (_, current, pending) = element.state(gst::ClockTime::ZERO);
    let is_null = current == gst::State::Null && pending == gst::State::VoidPending;
    let bin = element.downcast_ref::<gst::Bin>();
    is_null && bin.is_none_or(|bin| bin.children().iter().all(is_down))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use gst::glib;
    use gst::subclass::prelude::*;

    use super::*;

    glib::wrapper! {
        pub struct Stubborn(ObjectSubclass<imp::Stubborn>) @extends gst::Element, gst::Object;
    }

    mod imp {
        use super::*;

        /// Refuses its first change to NULL.
        #[derive(Default)]
        pub struct Stubborn {
            has_refused: AtomicBool,
        }

        #[glib::object_subclass]
        impl ObjectSubclass for Stubborn {
            const NAME: &'static str = "ThreadbareTestStubborn";
            type Type = super::Stubborn;
            type ParentType = gst::Element;
        }

        impl ObjectImpl for Stubborn {}
        impl GstObjectImpl for Stubborn {}
        impl ElementImpl for Stubborn {
            fn change_state(
                &self,
                transition: gst::StateChange,
            ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
                let is_last = transition == gst::StateChange::ReadyToNull;
                if is_last && !self.has_refused.swap(true, SeqCst) {
                    return Err(gst::StateChangeError);
                }
                self.parent_change_state(transition)
            }
        }
    }

    /// Returns a bin in a bin: one that refuses, between two that do not.
    fn bins() -> (gst::Bin, Vec<gst::Element>) {
        gst::init().unwrap();
        let [outer, inner] = [gst::Bin::new(), gst::Bin::new()];
        let plain = || gst::ElementFactory::make("identity").build().unwrap();
        let stubborn = glib::Object::new::<Stubborn>().upcast::<gst::Element>();
        let parts = vec![plain(), stubborn, plain()];
        inner.add_many(&parts).unwrap();
        outer.add(&inner).unwrap();
        outer.set_state(gst::State::Ready).unwrap();
        (outer, parts)
    }

    #[test]
    fn failed_child_stops_the_whole_bin() {
        let (outer, parts) = bins();
        assert!(outer.set_state(gst::State::Null).is_err());
        let is_up = |part: &gst::Element| part.current_state() != gst::State::Null;
        assert!(parts.iter().any(is_up), "what one change leaves");
        assert!(take_down(outer.upcast_ref()));
        assert!(!parts.iter().any(is_up));
        let (outer, parts) = bins();
        assert!(take_down(outer.upcast_ref()));
        assert!(!parts.iter().any(is_up));
    }
}
