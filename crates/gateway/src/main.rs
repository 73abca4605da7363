//! The `threadbare` command: the command line, and the wiring of the crates that do the work.
//!
//! Without the cargo feature `service`, the command has only the subcommands `demo` and `inspect`. `make demo` builds this
//! program in minutes.
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

/// mimalloc. Memory of calls is allocated on one thread and freed on others, for which the C library's allocator takes
/// contended locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> miette::Result<std::process::ExitCode> {
    cli::Cli::parse().execute()
}
