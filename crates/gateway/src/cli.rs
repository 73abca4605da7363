//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::{Bench, ReceiverArgs, SenderArgs};
use crate::demo::{DemoArgs, PeerArgs};
use crate::doctor::{DoctorArgs, LoadArgs};
use crate::inspect::Inspect;
use crate::loudness::LoudnessArgs;
use crate::run::RunArgs;

/// RTP audio gateway that carries thousands of streams on a handful of threads.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway of a configuration file until SIGTERM or SIGINT
    Run(RunArgs),
    /// Carry real RTP streams over loopback, check every packet, and show what it costs
    Demo(DemoArgs),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Measure how loud files are: EBU R128, peaks, and all files as one programme
    Loudness(LoudnessArgs),
    /// Look into a running process
    #[command(subcommand)]
    Inspect(Inspect),
    /// Check that everything is there that Threadbare needs
    Doctor(DoctorArgs),
    /// The callers and listeners of the demo
    #[command(hide = true)]
    DemoPeer(PeerArgs),
    /// The receivers of a measurement
    #[command(hide = true)]
    BenchReceiver(ReceiverArgs),
    /// The sender of a measurement
    #[command(hide = true)]
    BenchSender(SenderArgs),
    /// Loads a plugin for the doctor
    #[command(hide = true)]
    DoctorLoad(LoadArgs),
}

impl Cli {
    /// Runs the command.
    pub fn execute(self) -> miette::Result<ExitCode> {
        match self.command {
            Command::Run(args) => args.execute(),
            Command::Demo(args) => args.execute(),
            Command::DemoPeer(args) => Ok(args.execute()),
            Command::Bench(Bench::Receive(args)) => args.execute(),
            Command::BenchReceiver(args) => Ok(args.execute()),
            Command::BenchSender(args) => Ok(args.execute()),
            Command::Loudness(args) => args.execute(),
            Command::Inspect(Inspect::Contexts(args)) => args.execute(),
            Command::Doctor(args) => args.execute(),
            Command::DoctorLoad(args) => args.execute(),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  threadbare demo                       See 1000 streams carried and checked, for 10 seconds
  threadbare demo --streams 10 --json   The same with 10 streams; one line of JSON at the end
  threadbare run gateway.toml --check   Is my configuration right?
  threadbare run gateway.toml           Run it
  threadbare inspect contexts           What is it doing, and does anything hold it up?
  threadbare doctor                     Is everything there that Threadbare needs?
  threadbare loudness *.flac            How loud are these files?
  threadbare bench receive              What does receiving cost, beside GStreamer's own udpsrc?

Set THREADBARE_LOG=debug for more log lines, and GST_DEBUG as usual for GStreamer's.";
