//! A worker thread updates a label of the main thread through a channel: the main loop shows the worker's messages.
//!
//! `cargo run -p threadbare-mainloop --example label`

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;

use glib::{ControlFlow, MainLoop};
use threadbare_mainloop::sync_channel;

/// Represents a widget: it belongs to the main thread, and cannot be sent to another.
#[derive(Clone, Default)]
struct Label(Rc<RefCell<String>>);

impl Label {
    fn set_text(&self, text: &str) {
        text.clone_into(&mut self.0.borrow_mut());
        println!("{text}");
    }
}

fn main() -> Result<(), threadbare_mainloop::AttachError> {
    let main_loop = MainLoop::new(None, false);
    let label = Label::default();
    // The channel has a bound, so a worker that is faster than the main loop waits.
    let (sender, receiver) = sync_channel::<u32>(4);
    let (shown, quit) = (label.clone(), main_loop.clone());
    receiver.attach(None, move |percent| {
        shown.set_text(&format!("{percent} %"));
        if percent < 100 {
            return ControlFlow::Continue;
        }
        quit.quit();
        ControlFlow::Break
    })?;
    let worker = thread::spawn(move || {
        for percent in (0..=100).step_by(10) {
            // This fails after the end of the main loop.
            if sender.send(percent).is_err() {
                return;
            }
        }
    });
    main_loop.run();
    // Panics of the worker have already been reported.
    let _ = worker.join();
    Ok(())
}
