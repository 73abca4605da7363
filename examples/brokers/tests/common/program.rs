//! One of the two programs as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::server::{Kind, Server};
use super::{POLL_PAUSE, in_time};

/// A running program. It is killed when this value is dropped.
pub struct Program {
    pub address: SocketAddr,
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Program {
    /// Starts the program. `name` is the name of its exchange and of its queue, or its prefix of subjects. Returns when messages can come.
    pub async fn start(server: &Server, name: &str, arguments: &[&str]) -> Program {
        let mut command = match server.address.kind {
            Kind::RabbitMq => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_rabbitmq-websockets"));
                command.args(["--exchange", name, "--queue", name]);
                command
            }
            Kind::Nats => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_nats-websockets"));
                command.args(["--prefix", name]);
                command
            }
        };
        command
            .args(["--broker", &server.address.url()])
            .args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (kept, errors) = (log.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, mut lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let first = in_time("the address", lines.recv()).await.unwrap();
        let address = first.strip_prefix("listens on ").expect(&first);
        let program = Program {
            address: address.parse().unwrap(),
            child,
            lines,
            log,
        };
        program.until_connected(1).await;
        program
    }

    /// Waits until the program is connected to its broker, and has connected to it at least `times` times.
    pub async fn until_connected(&self, times: u64) {
        let is_connected = |statistics: &Value| {
            let broker = &statistics["broker"];
            broker["connected"] == true && broker["connections"].as_u64().unwrap() >= times
        };
        self.until("a connection to the broker", is_connected).await;
    }

    pub async fn statistics(&self) -> Value {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = "GET /statistics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        serde_json::from_str(body).unwrap()
    }

    /// Waits until `is_so` returns `true` for the statistics. Returns these statistics.
    pub async fn until(&self, wanted: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + super::PATIENCE;
        loop {
            let statistics = self.statistics().await;
            if is_so(&statistics) {
                return statistics;
            }
            assert!(Instant::now() < end, "no {wanted}: {statistics}");
            sleep(POLL_PAUSE).await;
        }
    }

    /// Waits until this many messages have come from the broker. Returns the statistics at that time.
    pub async fn until_received(&self, count: u64) -> Value {
        let wanted = format!("{count} messages");
        let has = |statistics: &Value| statistics["messages"]["received"] == count;
        self.until(&wanted, has).await
    }

    /// Returns the warnings and errors in the log.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let is_one = |line: &&String| line.contains(" WARN ") || line.contains(" ERROR ");
        log.iter().filter(is_one).cloned().collect()
    }

    /// Stops a program. Panics if it has logged a warning or an error. Returns the report.
    pub async fn stop_well(mut self) -> Value {
        let (report, status) = self.stop().await;
        assert!(status.success(), "{status}");
        assert_eq!(self.complaints(), Vec::<String>::new());
        report
    }

    /// Sends SIGTERM. Returns the report and the exit status.
    pub async fn stop(&mut self) -> (Value, ExitStatus) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        let report = in_time("the report", self.lines.recv()).await.unwrap();
        let more = in_time("the end", self.lines.recv()).await;
        assert_eq!(more, None);
        let status = self.child.wait().unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_adds_up(&report["messages"]);
        assert_eq!(report["messages"]["waiting"], 0);
        (report, status)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log.lock().unwrap().join("\n"));
        }
    }
}

/// Checks that `received` is the sum of the other seven counters.
pub fn assert_adds_up(messages: &Value) {
    let counters = messages.as_object().unwrap().iter();
    let (received, others): (Vec<_>, Vec<_>) = counters.partition(|(name, _)| *name == "received");
    let sum: u64 = others
        .iter()
        .map(|(_, count)| count.as_u64().unwrap())
        .sum();
    assert_eq!(received[0].1.as_u64(), Some(sum), "{messages}");
    assert_eq!(others.len(), 7, "{messages}");
}

/// Returns one client's part of the statistics.
pub fn client_of<'a>(statistics: &'a Value, id: &str) -> Option<&'a Value> {
    let clients = statistics["clients"].as_array().unwrap();
    clients.iter().find(|client| client["client"] == id)
}
