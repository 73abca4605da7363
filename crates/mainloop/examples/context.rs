//! The other three examples in one, on a Threadbare context instead of the main context. The calls are the same, but they run on
//! a thread that thousands of sources may share.
//!
//! `cargo run -p threadbare-mainloop --example context -- FILE`, and then Ctrl-C.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use threadbare_mainloop::sync_channel;
use threadbare_runtime::{Context, Settings, block_on, interval_stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: context FILE")?;
    let mut file = File::open(path)?;
    let context = Context::acquire("example", Settings::default())?;

    // Reads a file in chunks of 64 bytes. Files are always ready for an event loop, so a separate thread reads the file.
    let (sender, mut chunks) = sync_channel::<Vec<u8>>(4);
    let reader = thread::spawn(move || -> std::io::Result<()> {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let length = file.read(&mut chunk)?;
            chunk.truncate(length);
            if length == 0 || sender.send(chunk).is_err() {
                return Ok(());
            }
        }
    });
    let bytes = context.block_on(async move {
        let mut bytes = 0;
        while let Some(chunk) = chunks.next().await {
            bytes += chunk.len();
            std::io::stdout().write_all(&chunk)?;
        }
        Ok::<usize, std::io::Error>(bytes)
    })??;
    reader.join().map_err(|_| "the reader panicked")??;

    // A label stays on the context's thread, and a worker updates it.
    let (sender, mut updates) = sync_channel::<u32>(4);
    let worker = thread::spawn(move || (0..=100).step_by(10).all(|n| sender.send(n).is_ok()));
    let shown = context.spawn_from_within(move || {
        let label = Cell::new(0);
        async move {
            while let Some(percent) = updates.next().await {
                label.set(percent);
                println!("{percent} %");
            }
            label.get()
        }
    });
    let shown = block_on(shown)?;
    worker.join().map_err(|_| "the worker panicked")?;

    // Works until a signal comes. GLib's signal sources need a main context; here it is that of the main thread.
    let work = context.spawn(async {
        let mut ticks = interval_stream(Duration::from_millis(100));
        while let Some(tick) = ticks.next().await {
            println!("working (ticks skipped: {})", tick.missed);
        }
    });
    println!("ready after {bytes} bytes and {shown} %");
    let interrupt = rustix::process::Signal::INT.as_raw();
    glib::MainContext::default().block_on(glib_unix::signal_future(interrupt));
    work.abort();
    let ended = block_on(work);
    println!(
        "SIGINT: the task {}",
        if ended.is_err() {
            "was cancelled"
        } else {
            "has ended"
        }
    );
    Ok(())
}

const CHUNK_BYTES: usize = 64;
