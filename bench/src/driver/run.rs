//! Runs one case. Starts the processes, coordinates them, and collects their results.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use threadbare_bench::ports;
use threadbare_bench::results::Measured;
use threadbare_bench::session::{Finished, Report};

use super::cases::{Case, Load, Mode, Program};

/// Paths of programs and files, and durations of the measurement.
pub(crate) struct Bench {
    /// Folder with the programs of this workspace, and with the library that counts allocations.
    pub(crate) programs: PathBuf,
    /// Folder with our plugin and no other files.
    pub(crate) plugin_folder: PathBuf,
    /// Folder for GStreamer's registries. Each kind of process has its own.
    pub(crate) scratch: PathBuf,
    pub(crate) warmup_seconds: f64,
    pub(crate) window_seconds: f64,
}

#[derive(Deserialize)]
struct DrainPorts {
    port: u16,
    ports: u16,
}

#[derive(Deserialize)]
struct Drained {
    drained: u64,
}

#[derive(Deserialize)]
struct Contexts {
    threads: Vec<ContextThread>,
}

#[derive(Deserialize)]
struct ContextThread {
    late_p99_us: u64,
}

/// Time for which the sender continues after the window, so that packets still arrive at the end of the window.
const SENDER_EXTRA_SECONDS: f64 = 0.5;

impl Bench {
    pub(crate) fn run(&self, case: &Case) -> Result<Measured> {
        // The drain must bind its ports before free ports are looked for.
        let mut drain = None;
        let mut out = Vec::new();
        if case.sends_on() {
            let mut process = Process::start(self.program("drain"))?;
            let DrainPorts { port, ports } = process.line()?;
            out = vec!["--out".into(), port.to_string()];
            out.extend(["--out-ports".into(), ports.to_string()]);
            drain = Some(process);
        }
        let base = ports::free_range(case.streams)?;
        let mut command = self.measured(case, base);
        command.args(out);
        let mut measured = Process::start(command)?;
        let Report::Ready(ready) = measured.line()? else {
            bail!("the process sent a result before it was ready")
        };
        let mut result = Measured {
            streams: case.streams,
            ready,
            done: None,
            idle: None,
            sender_late_ms_max: None,
            lost_on_the_way_out: None,
            late_p99_us: None,
        };
        if case.mode == Mode::Idle {
            let Report::Idle(idle) = measured.line()? else {
                bail!("the process sent no results")
            };
            result.idle = Some(idle);
            return Ok(result);
        }
        if !matches!(case.load, Load::Within | Load::Timed) {
            let sent: Finished = self.send(case, base)?;
            result.sender_late_ms_max = Some(sent.late_ms_max);
            if case.traced {
                result.late_p99_us = Some(self.late_p99_us(&measured)?);
            }
            measured.say(&sent)?;
        }
        let Report::Done(done) = measured.line()? else {
            bail!("the process sent no results")
        };
        if let Some(mut drain) = drain {
            let Drained { drained } = drain.last_line()?;
            result.lost_on_the_way_out = Some(done.arrived as i64 - drained as i64);
        }
        result.done = Some(done);
        Ok(result)
    }

    fn send(&self, case: &Case, base: u16) -> Result<Finished> {
        let seconds = self.warmup_seconds + self.window_seconds + SENDER_EXTRA_SECONDS;
        let mut command = self.program("sender");
        command.args([
            "--streams",
            &case.streams.to_string(),
            "--port",
            &base.to_string(),
        ]);
        command.args(["--seconds", &seconds.to_string()]);
        if case.description.contains("{base}") {
            command.arg("--one-port");
        }
        match case.load {
            Load::Flood(packets) => {
                command.args(["--flood", &packets.to_string()]);
            }
            Load::FloodElsewhere(packets) => {
                command.args(["--flood-nobody", &packets.to_string()]);
            }
            Load::Rtp | Load::Within | Load::Timed => {}
        }
        Process::start(command)?.line()
    }

    fn measured(&self, case: &Case, base: u16) -> Command {
        let mut command = self.program(match case.program {
            Program::Stock | Program::Ours => "streams",
            Program::Peer => "streams-peer",
            Program::Floor => "floor",
            Program::RelayFloor | Program::RelayPads | Program::RelayCodec => "relay",
        });
        command.args([
            "--streams",
            &case.streams.to_string(),
            "--port",
            &base.to_string(),
        ]);
        command.args(["--warmup", &self.warmup_seconds.to_string()]);
        command.args(["--seconds", &self.window_seconds.to_string()]);
        match case.program {
            Program::Floor | Program::RelayFloor => {}
            Program::RelayPads => {
                command.arg("--pads");
            }
            Program::RelayCodec => {
                command.args(["--codec", case.description]);
            }
            Program::Stock | Program::Ours | Program::Peer => {
                command.args(["--description", case.description]);
            }
        }
        // The published crate's elements have the same names as our elements. Without these settings, GStreamer
        // could use a plugin that is installed for this user, or one from the registry of another run, instead of the intended one.
        command.env("XDG_DATA_HOME", self.scratch.join("no-user-plugins"));
        if case.program == Program::Ours {
            command.env("GST_PLUGIN_PATH", &self.plugin_folder);
            command.env("GST_REGISTRY", self.scratch.join("registry-ours.bin"));
        } else {
            command.env_remove("GST_PLUGIN_PATH");
            command.env("GST_REGISTRY", self.scratch.join("registry-stock.bin"));
        }
        match case.load {
            Load::Rtp | Load::FloodElsewhere(_) => {}
            Load::Flood(_) => {
                command.args(["--uncounted", "1"]);
            }
            Load::Within => {
                command.arg("--no-sender");
            }
            Load::Timed => {
                command.args(["--no-sender", "--time-hops"]);
            }
        }
        if case.traced {
            command.env("GST_TRACERS", "ts-contexts");
            command.env("XDG_RUNTIME_DIR", &self.scratch);
        }
        match case.mode {
            Mode::CountAllocations => {
                command.env(
                    "LD_PRELOAD",
                    self.programs.join("libthreadbare_malloc_count.so"),
                );
                // GLib's own free lists would hide allocations from the count.
                command.env("G_SLICE", "always-malloc");
            }
            Mode::Idle => {
                command.arg("--idle");
            }
            Mode::EachRound | Mode::Once => {}
        }
        command
    }

    /// Asks the plugin's tracer for the lateness, as `threadbare inspect contexts` does.
    fn late_p99_us(&self, measured: &Process) -> Result<u64> {
        let name = format!("{}.sock", measured.child.id());
        let path = self.scratch.join("threadbare").join(name);
        let socket = UnixStream::connect(&path)
            .with_context(|| format!("cannot ask the tracer at {}", path.display()))?;
        let contexts: Vec<Contexts> = serde_json::from_reader(socket)?;
        let threads = contexts.iter().flat_map(|context| &context.threads);
        let late = threads.map(|thread| thread.late_p99_us).max();
        late.context("the tracer of the process reports no context")
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }
}

/// A child process that exchanges lines with the driver. It is killed on drop.
struct Process {
    name: String,
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command) -> Result<Process> {
        let name = Path::new(command.get_program())
            .file_name()
            .map(OsStr::to_string_lossy)
            .unwrap_or_default()
            .into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let lines = BufReader::new(
            child
                .stdout
                .take()
                .context("the child has no pipe for its output")?,
        );
        Ok(Process { name, child, lines })
    }

    fn line<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("{} ended early ({})", self.name, self.child.wait()?);
        }
        serde_json::from_str(&line)
            .with_context(|| format!("{} printed an unexpected line: {line:?}", self.name))
    }

    fn say(&mut self, word: &impl Serialize) -> Result<()> {
        let input = self
            .child
            .stdin
            .as_mut()
            .context("the child has no pipe for its input")?;
        writeln!(input, "{}", serde_json::to_string(word)?)?;
        Ok(())
    }

    /// Closes the input of the process, so that it ends. Reads its last line.
    fn last_line<T: DeserializeOwned>(&mut self) -> Result<T> {
        drop(self.child.stdin.take());
        self.line()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
