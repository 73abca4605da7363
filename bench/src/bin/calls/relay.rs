//! A relay's process, and the proxy that asks it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use threadbare_bench::calls::Kind;
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Sender, Suite};

use crate::Options;
use crate::network::{DEVICE, Network, PARTIES, RELAY};
use crate::parties::{Parties, Sides, Way};

/// A running relay. Killed when dropped.
pub(crate) struct Relay {
    child: Child,
    command: Command,
    proxy: UdpSocket,
    /// Where it speaks HTTP.
    http: Option<SocketAddr>,
    records: bool,
    asked: u32,
}

impl Relay {
    /// `recordings`: a folder for those of threadbare.
    pub(crate) fn start(
        kind: Kind,
        options: &Options,
        network: &Network,
        state: Option<&Path>,
        recordings: &Path,
    ) -> Result<Relay> {
        // Nobody else is in there.
        let http = SocketAddr::from((RELAY, 8080));
        let ng = SocketAddr::from((RELAY, 2223));
        let (own, span) = (RELAY.to_string(), "40000-59999");
        let mut command = match kind {
            Kind::Threadbare | Kind::ThreadbareXdp => {
                let mut command = network.command(&options.threadbare);
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
            .with_context(|| format!("{kind:?} does not start"))?;
        let proxy = UdpSocket::bind((PARTIES, 0))?;
        proxy.connect(ng)?;
        let mut relay = Relay {
            child,
            command,
            proxy,
            http: (kind != Kind::Rtpengine).then_some(http),
            records: false,
            asked: 0,
        };
        relay.await_ping()?;
        Ok(relay)
    }

    /// Kills the process, starts another one, and waits until that answers.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = self.command.spawn()?;
        self.await_ping()
    }

    fn await_ping(&mut self) -> Result<()> {
        self.proxy
            .set_read_timeout(Some(Duration::from_millis(50)))?;
        let begin = Instant::now();
        while begin.elapsed() < LIMIT {
            let pong = self.ask(json!({"command": "ping"}));
            if pong.is_ok_and(|reply| reply["result"] == "pong") {
                self.proxy.set_read_timeout(Some(LIMIT))?;
                return Ok(());
            }
        }
        bail!("the relay does not answer");
    }

    fn ask(&mut self, request: Value) -> Result<Value> {
        self.asked += 1;
        let cookie = format!("c{}", self.asked);
        self.proxy.send(format!("{cookie} {request}").as_bytes())?;
        let mut room = [0; 65_536];
        loop {
            let len = self.proxy.recv(&mut room)?;
            let reply = std::str::from_utf8(&room[..len])?;
            let (of, reply) = reply.split_once(' ').context("a reply without a cookie")?;
            // An earlier one may have been late.
            if of == cookie {
                return Ok(serde_json::from_str(reply)?);
            }
        }
    }

    fn pass(&mut self, command: &str, call: u32, keys: Value, sdp: &str) -> Result<String> {
        let mut request = json!({
            "command": command, "call-id": call.to_string(), "from-tag": "a", "sdp": sdp,
        });
        let room = request.as_object_mut().context("an object")?;
        room.extend(keys.as_object().cloned().unwrap_or_default());
        let reply = self.ask(request)?;
        ensure!(reply["result"] == "ok", "{command}: {reply}");
        let sdp = reply["sdp"].as_str().context("a reply without an SDP")?;
        Ok(sdp.to_owned())
    }

    /// What is told to B.
    pub(crate) fn offer(&mut self, call: u32, parties: &Parties, sides: Sides) -> Result<String> {
        let keys = match sides {
            Sides::Passed => json!({}),
            Sides::Transcoded => json!({"codec": {"transcode": ["PCMA"]}}),
            Sides::Srtp => json!({"transport-protocol": "RTP/SAVP"}),
        };
        let sdp = description(parties.a(call), "RTP/AVP 0", "");
        self.pass("offer", call, keys, &sdp)
    }

    /// Calls are recorded from now on.
    pub(crate) fn record_calls(&mut self) {
        self.records = true;
    }

    /// Makes a call: where its packets go.
    pub(crate) fn call(&mut self, call: u32, parties: &Parties, sides: Sides) -> Result<Way> {
        let to_b = self.offer(call, parties, sides)?;
        let own = MasterKey::from_random(SUITE, &[call as u8; MASTER_KEY_BYTES_MAX]);
        let (media, more) = match sides {
            Sides::Passed => ("RTP/AVP 0", String::new()),
            Sides::Transcoded => ("RTP/AVP 8", String::new()),
            Sides::Srtp => {
                let offered = to_b
                    .lines()
                    .filter_map(|line| line.strip_prefix("a=crypto:"));
                let mut offered = offered.filter_map(|value| Crypto::parse(value).ok());
                let theirs = offered.find(|one| one.key.suite() == SUITE);
                let crypto = Crypto {
                    tag: theirs.context("the suite is not offered")?.tag,
                    key: own.clone(),
                    lifetime_packets: None,
                };
                let value = crypto.to_value();
                ("RTP/SAVP 0", format!("a=crypto:{}\r\n", value.as_str()))
            }
        };
        let answer = description(parties.b(call), media, &more);
        let to_a = self.pass("answer", call, json!({"to-tag": "b"}), &answer)?;
        if self.records {
            let request = json!({"command": "start recording", "call-id": call.to_string()});
            let reply = self.ask(request)?;
            ensure!(reply["result"] == "ok", "start recording: {reply}");
        }
        Ok(Way {
            call,
            to: [port_of(&to_a)?, port_of(&to_b)?],
            payload_types: [0, if sides == Sides::Transcoded { 8 } else { 0 }],
            srtp: (sides == Sides::Srtp).then(|| Sender::new(&own)),
        })
    }

    pub(crate) fn delete(&mut self, call: u32) -> Result<()> {
        let request = json!({
            "command": "delete", "call-id": call.to_string(), "from-tag": "a", "delete-delay": 0,
        });
        let reply = self.ask(request)?;
        ensure!(reply["result"] == "ok", "delete: {reply}");
        Ok(())
    }

    /// Time on processors, of all threads.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut ns = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = stat.split_whitespace().next().context("no schedstat")?;
            ns += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(ns))
    }

    pub(crate) fn threads(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?.count())
    }

    /// How late the media threads are, as the metrics have it.
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
        Ok(kib.context("no VmRSS")?.parse()?)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn description(port: u16, media: &str, more: &str) -> String {
    let (protocol, formats) = media.split_once(' ').unwrap_or((media, ""));
    format!(
        "v=0\r\no=- 1 1 IN IP4 {PARTIES}\r\ns=-\r\nc=IN IP4 {PARTIES}\r\nt=0 0\r\nm=audio {port} {protocol} {formats}\r\n{more}"
    )
}

fn port_of(sdp: &str) -> Result<u16> {
    let media = sdp.lines().find(|line| line.starts_with("m=audio"));
    let port = media.and_then(|media| media.split(' ').nth(1));
    port.and_then(|port| port.parse().ok())
        .context("an SDP without a port")
}

/// For HTTP that others reach.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const SUITE: Suite = Suite::AesCm128HmacSha1_80;
/// Only ends a measurement that hangs.
const LIMIT: Duration = Duration::from_secs(10);
