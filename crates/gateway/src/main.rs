//! The `threadbare` command: the command line, and the wiring of the crates that do the work.
//!
//! Without the cargo feature `service`, it has only `demo` and `inspect`: `make demo` builds that in minutes.
#![forbid(unsafe_code)]

#[macro_use(print, println)]
extern crate threadbare_process;

mod cli;
#[cfg(feature = "service")]
mod doctor;
mod inspect;
#[cfg(feature = "service")]
mod manual;
#[cfg(feature = "service")]
mod remote;
#[cfg(feature = "service")]
mod run;

use clap::Parser;
use mimalloc::MiMalloc;

/// mimalloc: calls are made on one thread and end on others, for which the C library's allocator takes contended locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> miette::Result<std::process::ExitCode> {
    cli::Cli::parse().execute()
}
