//! The command line.

use std::process::ExitCode;

#[cfg(feature = "service")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};
use threadbare_demo::{DemoArgs, PeerArgs};

use crate::inspect::Inspect;
#[cfg(feature = "service")]
use crate::{
    doctor::DoctorArgs,
    manual::{CompletionsArgs, ManArgs},
    remote::{EventsArgs, RemoteCalls, RemoteCluster, TopArgs},
    run::{RunArgs, ServeArgs},
};
#[cfg(feature = "gstreamer")]
use {
    crate::doctor::LoadArgs,
    threadbare_demo::bench::{Bench, ReceiverArgs, SenderArgs},
    threadbare_loudness_cli::LoudnessArgs,
};

/// RTP audio gateway that carries thousands of streams on a handful of threads.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the streams and calls of a configuration file, until SIGTERM or SIGINT
    #[cfg(feature = "service")]
    Run(Box<RunArgs>),
    /// Relay the media of calls for a SIP proxy, in place of rtpengine, until SIGTERM or SIGINT
    #[cfg(feature = "service")]
    Serve(Box<ServeArgs>),
    /// List, show and end the calls of a running `threadbare serve --http`
    #[cfg(feature = "service")]
    #[command(subcommand)]
    Calls(RemoteCalls),
    /// Show the cluster of a running gateway with HTTP, drain this gateway's node, and move streams
    #[cfg(feature = "service")]
    #[command(subcommand)]
    Cluster(RemoteCluster),
    /// Show streams and threads of a running gateway with HTTP, in the terminal
    #[cfg(feature = "service")]
    Top(TopArgs),
    /// Print the events of a running gateway with HTTP, one line of JSON for each
    #[cfg(feature = "service")]
    Events(EventsArgs),
    /// Carry real RTP streams over loopback, check every packet, and show the cost
    Demo(DemoArgs),
    /// Measure the cost of receiving
    #[cfg(feature = "gstreamer")]
    #[command(subcommand)]
    Bench(Bench),
    /// Measure the loudness of files (EBU R128), one by one and together
    #[cfg(feature = "gstreamer")]
    Loudness(LoudnessArgs),
    /// Measure the cost of receiving (not in this program, because it was built without GStreamer)
    #[cfg(not(feature = "gstreamer"))]
    Bench(NotBuiltIn),
    /// Measure the loudness of files (not in this program, because it was built without GStreamer)
    #[cfg(not(feature = "gstreamer"))]
    Loudness(NotBuiltIn),
    /// Show the contexts of a running process
    #[command(subcommand)]
    Inspect(Inspect),
    /// Check whether the system meets Threadbare's requirements
    #[cfg(feature = "service")]
    Doctor(DoctorArgs),
    /// Write the manual pages to a folder
    #[cfg(feature = "service")]
    #[command(hide = true)]
    Man(ManArgs),
    /// Print a shell script that completes commands and options
    #[cfg(feature = "service")]
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// The callers and listeners of the demo
    #[command(hide = true)]
    DemoPeer(PeerArgs),
    /// The receivers of a measurement
    #[cfg(feature = "gstreamer")]
    #[command(hide = true)]
    BenchReceiver(ReceiverArgs),
    /// The sender of a measurement
    #[cfg(feature = "gstreamer")]
    #[command(hide = true)]
    BenchSender(SenderArgs),
    /// Load a plugin for the doctor
    #[cfg(feature = "gstreamer")]
    #[command(hide = true)]
    DoctorLoad(LoadArgs),
}

impl Cli {
    /// Runs the command.
    pub(crate) fn execute(self) -> miette::Result<ExitCode> {
        match self.command {
            #[cfg(feature = "service")]
            Command::Run(args) => args.execute(),
            #[cfg(feature = "service")]
            Command::Serve(args) => args.execute(),
            #[cfg(feature = "service")]
            Command::Calls(calls) => calls.execute(),
            #[cfg(feature = "service")]
            Command::Cluster(cluster) => cluster.execute(),
            #[cfg(feature = "service")]
            Command::Top(args) => args.execute(),
            #[cfg(feature = "service")]
            Command::Events(args) => args.execute(),
            Command::Demo(args) => args.execute(),
            Command::DemoPeer(args) => Ok(args.execute()),
            #[cfg(feature = "gstreamer")]
            Command::Bench(Bench::Receive(args)) => args.execute(),
            #[cfg(feature = "gstreamer")]
            Command::BenchReceiver(args) => Ok(args.execute()),
            #[cfg(feature = "gstreamer")]
            Command::BenchSender(args) => Ok(args.execute()),
            #[cfg(feature = "gstreamer")]
            Command::Loudness(args) => args.execute(),
            #[cfg(not(feature = "gstreamer"))]
            Command::Bench(args) | Command::Loudness(args) => args.execute(),
            Command::Inspect(Inspect::Contexts(args)) => args.execute(),
            #[cfg(feature = "service")]
            Command::Doctor(args) => args.execute(),
            #[cfg(feature = "service")]
            Command::Man(args) => args.execute(Cli::command()),
            #[cfg(feature = "service")]
            Command::Completions(args) => args.execute(&Cli::command()),
            #[cfg(feature = "gstreamer")]
            Command::DoctorLoad(args) => args.execute(),
        }
    }
}

/// A command that needs GStreamer, in a program without it.
#[cfg(not(feature = "gstreamer"))]
#[derive(Debug, clap::Args)]
pub(crate) struct NotBuiltIn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<std::ffi::OsString>,
}

#[cfg(not(feature = "gstreamer"))]
impl NotBuiltIn {
    fn execute(&self) -> miette::Result<ExitCode> {
        let given = &self.arguments;
        tracing::debug!(
            ?given,
            "arguments of a command that this program does not have"
        );
        Err(miette::miette!(
            help = "build the program with this cargo feature, which is on by default",
            "this command needs GStreamer, but {}",
            threadbare_process::NO_GSTREAMER
        ))
    }
}

#[cfg(not(feature = "service"))]
const EXAMPLES: &str = "\
This program was built for the demo. `run`, `serve` and the other commands come with the cargo feature `service`, which is on by default.";
#[cfg(feature = "service")]
const EXAMPLES: &str = "\
Examples:
  threadbare demo                       Carry and check 1000 streams for 10 seconds
  threadbare demo --streams 10 --json   The same with 10 streams, and one line of JSON at the end
  threadbare run gateway.toml --check   List the mistakes in a configuration
  threadbare run gateway.toml           Run it
  threadbare serve --address 192.0.2.1  Relay the calls of a Kamailio
  threadbare serve calls.toml           The same with a configuration file
  threadbare calls list                 List its calls, if it has --http 127.0.0.1:8080
  threadbare top                        Show its streams in the terminal
  threadbare cluster status             Show its cluster, and the owner of each stream
  threadbare inspect contexts           Show the load of a running gateway's threads
  threadbare doctor                     Check the system for Threadbare's needs
  threadbare loudness *.flac            Measure the loudness of files
  threadbare bench receive              Compare the cost of receiving with GStreamer's own udpsrc

THREADBARE_LOG=debug shows more log lines; GST_DEBUG works as in any GStreamer program.";
