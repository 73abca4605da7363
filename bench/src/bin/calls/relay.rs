//! The process of a measured relay.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use threadbare_bench::calls::Kind;
use threadbare_bench::measure;

use crate::Options;
use crate::network::{DEVICE, Network, PARTIES, RELAY};
use crate::proxy::Proxy;

/// A running relay. It is killed on drop.
pub(crate) struct Relay {
    child: Child,
    command: Command,
    ng: SocketAddr,
    /// Address of the relay's HTTP interface, if it has one.
    http: Option<SocketAddr>,
}

impl Relay {
    /// Starts a relay. `recordings` is the folder for recordings of threadbare, and `format` is their format.
    pub(crate) fn start(
        kind: Kind,
        options: &Options,
        network: &Network,
        state: Option<&Path>,
        (recordings, format): (&Path, &str),
    ) -> Result<Relay> {
        // Fixed ports are certainly free, because the namespace has no other process.
        let http = SocketAddr::from((RELAY, 8080));
        let ng = SocketAddr::from((RELAY, 2223));
        let (own, span) = (RELAY.to_string(), "40000-59999");
        let mut command = match kind {
            Kind::Threadbare | Kind::ThreadbareXdp => {
                let mut command = network.command(&options.threadbare);
                // Messages about calls are not logged, as with rtpengine.
                command.env("THREADBARE_LOG", "warn");
                command.args(["serve", "--ng", &ng.to_string()]);
                command.args(["--allow", &PARTIES.to_string()]);
                command.args(["--address", &own, "--ports", span]);
                let token = recordings.join("token");
                std::fs::write(&token, TOKEN)?;
                command.args(["--http", &http.to_string()]);
                command.arg("--http-token-file").arg(token);
                if kind == Kind::ThreadbareXdp {
                    command.args(["--xdp", DEVICE, "--xdp-mode", &options.xdp_mode]);
                }
                command.arg("--recording-dir").arg(recordings);
                command.args(["--recording-format", format]);
                if let Some(state) = state {
                    command.arg("--state").arg(state);
                }
                command
            }
            Kind::Rtpengine => {
                let mut command = network.command(Path::new("rtpengine"));
                command.args([
                    "--foreground",
                    "--log-stderr",
                    "--log-level=1",
                    "--table=-1",
                ]);
                command.arg(format!("--interface={own}"));
                command.args(["--port-min=40000", "--port-max=59999"]);
                command.arg(format!("--listen-ng={ng}"));
                command.arg("--delete-delay=0");
                command
            }
        };
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {kind:?}"))?;
        Ok(Relay {
            child,
            command,
            ng,
            http: (kind != Kind::Rtpengine).then_some(http),
        })
    }

    /// Kills the process and starts a new one, of another program if the options name one.
    pub(crate) fn restart(&mut self, options: &Options) -> Result<()> {
        if let Some(program) = &options.upgrade_to {
            let mut next = Command::new(self.command.get_program());
            let own = options.threadbare.as_os_str();
            next.args(self.command.get_args().map(|argument| {
                if argument == own {
                    program.as_os_str()
                } else {
                    argument
                }
            }));
            next.env("THREADBARE_LOG", "warn");
            next.stdout(Stdio::null()).stderr(Stdio::null());
            self.command = next;
        }
        self.child.kill()?;
        self.child.wait()?;
        self.child = self.command.spawn()?;
        Ok(())
    }

    /// Creates a proxy that controls this relay.
    pub(crate) fn proxy(&self) -> Result<Proxy> {
        Proxy::new(self.ng)
    }

    /// Returns the CPU time of all threads so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut ns = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = stat
                .split_whitespace()
                .next()
                .context("the file schedstat is empty")?;
            ns += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Restricts all threads of the relay to these cores from now on.
    pub(crate) fn pin(&self, cores: &str) -> Result<()> {
        measure::pin(self.child.id(), cores)
    }

    pub(crate) fn threads(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?.count())
    }

    /// Reads the lateness of the media threads from the relay's metrics.
    pub(crate) fn lateness_ms(&self) -> Result<Option<f64>> {
        let Some(http) = self.http else {
            return Ok(None);
        };
        let mut stream = TcpStream::connect(http)?;
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {http}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let lines = text.lines();
        let of_threads =
            lines.filter(|line| line.starts_with("threadbare_context_lateness_seconds{"));
        let values = of_threads.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.reduce(f64::max).map(|seconds| seconds * 1e3))
    }

    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib
            .context("/proc/PID/status of the relay has no line VmRSS")?
            .parse()?)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Access token. `threadbare serve` requires one for an HTTP address that other machines can reach.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
