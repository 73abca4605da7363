//! The `threadbare` command. All its code is in the library of the same name.
#![forbid(unsafe_code)]

use clap::Parser;

fn main() -> miette::Result<std::process::ExitCode> {
    threadbare::cli::Cli::parse().execute()
}
