//! SIGINT and SIGTERM as a stream that ends a program: its tasks are dropped, and then the program ends.
//!
//! `cargo run -p threadbare-mainloop --example shutdown`, and then Ctrl-C.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use glib::MainContext;
use rustix::process::Signal;
use threadbare_mainloop::{Executor, TaskScope, interval_stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = MainContext::default();
    let executor = Executor::new(&context)?;
    let work = TaskScope::new(&executor);
    drop(work.spawn_local(async {
        let mut ticks = interval_stream(Duration::from_millis(100));
        while let Some(tick) = ticks.next().await {
            println!("working (ticks skipped: {})", tick.missed);
        }
    }));
    context.block_on(async move {
        let mut signals = stream::select(
            glib_unix::signal_stream(Signal::INT.as_raw()).map(|()| "SIGINT"),
            glib_unix::signal_stream(Signal::TERM.as_raw()).map(|()| "SIGTERM"),
        );
        println!("ready");
        let signal = signals.next().await.unwrap_or("no signal");
        println!("{signal}: ending {} task(s)", work.len());
        // This aborts all remaining tasks.
        drop(work);
    });
    println!("{} task(s) left", executor.tasks());
    Ok(())
}
