//! `threadbare inspect`: shows the contexts of a running process.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;
use std::{fmt, fs};

use clap::Subcommand;
use miette::{Context, IntoDiagnostic, miette};
use serde::Deserialize;
use threadbare_runtime::inspect::socket_path;

/// Inspects a running process.
#[derive(Debug, Subcommand)]
pub(crate) enum Inspect {
    /// Show the load, slice lateness and elements of each context, and the elements that blocked it
    Contexts(ContextsArgs),
}

/// A gateway, or any GStreamer program started with GST_TRACERS=ts-contexts.
#[derive(Debug, clap::Args)]
pub(crate) struct ContextsArgs {
    /// Process to inspect; required if several processes can be inspected
    #[arg(long)]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List the elements of each thread, by pipeline and name
    #[arg(long)]
    elements: bool,
}

#[derive(Debug, Deserialize)]
struct ContextSeen {
    name: String,
    wait_ms: u64,
    threads: Vec<ThreadSeen>,
}

#[derive(Debug, Deserialize)]
struct ThreadSeen {
    thread: String,
    busy_percent: f64,
    packets: u64,
    late_p50_us: u64,
    late_p99_us: u64,
    late_max_us: u64,
    elements: Vec<String>,
    running: Option<RunningSeen>,
    blocked: Vec<BlockedSeen>,
}

#[derive(Debug, Deserialize)]
struct RunningSeen {
    element: String,
    ms: u64,
}

#[derive(Debug, Deserialize)]
struct BlockedSeen {
    by: String,
    ms: u64,
    ago_ms: u64,
}

impl ContextsArgs {
    /// Queries the process, and prints its answer.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        let pid = match self.pid {
            Some(pid) => pid,
            None => only_process()?,
        };
        let text = ask(pid)?;
        if self.json {
            println!("{text}");
            return Ok(ExitCode::SUCCESS);
        }
        let contexts: Vec<ContextSeen> = serde_json::from_str(&text)
            .into_diagnostic()
            .wrap_err_with(|| format!("process {pid} gave an invalid answer: {text}"))?;
        for context in &contexts {
            print!(
                "{}",
                Table {
                    context,
                    elements: self.elements
                }
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn ask(pid: u32) -> miette::Result<String> {
    let path = socket_path(pid);
    let mut text = String::new();
    UnixStream::connect(&path)
        .and_then(|mut socket| {
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.read_to_string(&mut text)
        })
        .map_err(|error| {
            miette!(
                help = "only a running gateway, or a GStreamer program started with GST_TRACERS=ts-contexts, answers",
                "process {pid} does not answer at {}: {error}",
                path.display()
            )
        })?;
    Ok(text)
}

/// Finds the process to query, if only one can be queried.
///
/// # Errors
/// Fails if no process, or more than one, can be queried.
fn only_process() -> miette::Result<u32> {
    let path = socket_path(0);
    let folder = path
        .parent()
        .ok_or_else(|| miette!("the path of the sockets has no folder"))?;
    let mut pids: Vec<u32> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.path().file_stem()?.to_str()?.parse().ok())
        .filter(|pid| UnixStream::connect(socket_path(*pid)).is_ok())
        .collect();
    pids.sort_unstable();
    match pids[..] {
        [pid] => Ok(pid),
        [] => Err(miette!(
            help = "start a gateway (threadbare run), or a GStreamer program with GST_TRACERS=ts-contexts",
            "no process of yours can be inspected"
        )),
        _ => Err(miette!(
            help = "choose one with --pid",
            "several processes can be inspected: {pids:?}"
        )),
    }
}

/// A context, formatted as a table.
struct Table<'a> {
    context: &'a ContextSeen,
    elements: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContextSeen {
            name,
            wait_ms,
            threads,
        } = self.context;
        writeln!(f, "context '{name}', slices of {wait_ms} ms")?;
        for thread in threads {
            writeln!(
                f,
                "  {:<16} {:5.1}% busy  {} packets  {} elements",
                thread.thread,
                thread.busy_percent,
                thread.packets,
                thread.elements.len()
            )?;
            writeln!(
                f,
                "    slices late by {:.1} ms (median), {:.1} ms (99 %), {:.1} ms at worst",
                ms(thread.late_p50_us),
                ms(thread.late_p99_us),
                ms(thread.late_max_us)
            )?;
            if let Some(running) = &thread.running
                && running.ms > *wait_ms
            {
                writeln!(
                    f,
                    "    held up by {} for {} ms now",
                    running.element, running.ms
                )?;
            }
            for blocked in &thread.blocked {
                writeln!(
                    f,
                    "    was held up by {} for {} ms, {:.1} s ago",
                    blocked.by,
                    blocked.ms,
                    blocked.ago_ms as f64 / 1000.0
                )?;
            }
            if self.elements {
                writeln!(f, "    {}", thread.elements.join(" "))?;
            }
        }
        Ok(())
    }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// Time-out for the answer. A very busy process needs some time.
const PATIENCE: Duration = Duration::from_secs(5);
