//! A bin around a run of a source. It is excluded from the element's state changes.
//!
//! A `GstBin` also visits children whose state is locked. It waits for the lock of their state change, which a slow source holds.
//! It also adopts the outcome of their last change, even if that failed or is asynchronous. The shell never changes its state,
//! whatever the source in it does. It passes on all messages unchanged.

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;

glib::wrapper! {
    /// A bin that never leaves NULL.
    pub(super) struct Shell(ObjectSubclass<imp::Shell>) @extends gst::Bin, gst::Element, gst::Object;
}

impl Shell {
    pub(super) fn new(name: &str) -> Shell {
        let shell: Shell = glib::Object::builder().property("name", name).build();
        shell.set_locked_state(true);
        shell
    }

    /// Returns the shell that a message comes from.
    pub(super) fn of(message: &gst::Message) -> Option<Shell> {
        let sources = std::iter::successors(message.src().cloned(), |object| object.parent());
        sources
            .into_iter()
            .find_map(|object| object.downcast().ok())
    }
}

mod imp {
    use super::*;

    #[derive(Default)]
    pub(in super::super) struct Shell;

    #[glib::object_subclass]
    impl ObjectSubclass for Shell {
        const NAME: &'static str = "ThreadbareFallbackSourceShell";
        type Type = super::Shell;
        type ParentType = gst::Bin;
    }

    impl ObjectImpl for Shell {}
    impl GstObjectImpl for Shell {}
    impl ElementImpl for Shell {}

    impl BinImpl for Shell {
        fn handle_message(&self, message: gst::Message) {
            let _ = self.obj().post_message(message);
        }
    }
}
