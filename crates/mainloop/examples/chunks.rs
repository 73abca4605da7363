//! Reads a file in chunks of 64 bytes on the main context, without blocking, and prints it.
//!
//! `cargo run -p threadbare-mainloop --example chunks -- FILE`

use std::io::Write;

use gio::prelude::*;
use glib::{MainContext, Priority};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: chunks FILE")?;
    // In the meantime the main context runs other sources, tasks and timers.
    MainContext::default().block_on(async {
        let file = gio::File::for_path(path);
        let stream = file.read_future(Priority::DEFAULT).await?;
        loop {
            let chunk = stream
                .read_bytes_future(CHUNK_BYTES, Priority::DEFAULT)
                .await?;
            if chunk.is_empty() {
                break;
            }
            std::io::stdout().write_all(&chunk)?;
        }
        stream.close_future(Priority::DEFAULT).await?;
        Ok(())
    })
}

const CHUNK_BYTES: usize = 64;
