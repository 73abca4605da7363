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

/// The allocator is mimalloc. Calls allocate memory on one thread and free it on others. The C library's allocator takes contended locks
/// for that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> miette::Result<std::process::ExitCode> {
    cli::Cli::parse().execute()
}
