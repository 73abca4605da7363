//! The `threadbare` command. All its code is in the library of the same name.
#![forbid(unsafe_code)]

use clap::Parser;
use mimalloc::MiMalloc;

/// Calls are made on one thread and end on others: the C library's allocator has them wait for each other.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> miette::Result<std::process::ExitCode> {
    threadbare::cli::Cli::parse().execute()
}
