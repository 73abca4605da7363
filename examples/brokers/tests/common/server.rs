//! A real broker. The script `server.sh` starts it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{OnceLock, mpsc};

use tempfile::TempDir;

use super::PATIENCE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    RabbitMq,
    Nats,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::RabbitMq => "rabbitmq",
            Kind::Nats => "nats",
        }
    }

    /// Returns the text that appears in the log when clients can connect.
    fn ready(self) -> &'static str {
        match self {
            Kind::RabbitMq => "Starting broker... completed",
            Kind::Nats => "Server is ready",
        }
    }
}

/// The address of a broker, whether the broker runs or not.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    pub kind: Kind,
    port: u16,
}

impl Address {
    pub fn url(&self) -> String {
        match self.kind {
            Kind::RabbitMq => format!("amqp://127.0.0.1:{}", self.port),
            Kind::Nats => format!("nats://127.0.0.1:{}", self.port),
        }
    }
}

/// A running broker. It is killed when this value is dropped.
pub struct Server {
    pub address: Address,
    process: Option<(Child, ChildStdin)>,
    folder: Option<TempDir>,
}

impl Server {
    /// Returns the broker that all tests of a test program share. These tests must not kill it. When the test program ends, the broker's
    /// standard input is closed, so the broker ends too.
    pub fn shared(kind: Kind) -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Server::start(kind, None))
    }

    /// Returns a broker that can be killed and restarted.
    pub fn own(kind: Kind) -> Server {
        Server::start(kind, Some(TempDir::new().unwrap()))
    }

    fn start(kind: Kind, folder: Option<TempDir>) -> Server {
        let mut server = Server {
            address: Address {
                kind,
                port: free_ports(3),
            },
            process: None,
            folder,
        };
        server.start_again();
        server
    }

    pub fn start_again(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("server.sh");
        let mut command = Command::new("bash");
        let Address { kind, port } = self.address;
        command.arg(script).args([kind.name(), &port.to_string()]);
        command.args(self.folder.as_ref().map(TempDir::path));
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // This thread also reads the output after the start, because a full pipe would block the server.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let stdin = child.stdin.take().unwrap();
        self.process = Some((child, stdin));
        let mut said = Vec::new();
        loop {
            let line = lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("not ready:\n{}", said.join("\n")));
            if line.contains(kind.ready()) {
                return;
            }
            said.push(line);
        }
    }

    /// Kills the broker with SIGKILL, so that it can neither send anything to its clients nor write anything.
    pub fn kill(&mut self) {
        if let Some((mut child, stdin)) = self.process.take() {
            drop(stdin);
            child.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Finds consecutive free ports, and returns the first one. They are below the range for outgoing connections, so that no outgoing
/// connection takes a port while its server is down.
fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time start at different ports.
    let start = u16::try_from(std::process::id() % 10_000).unwrap();
    loop {
        let offset = NEXT.fetch_add(count, Relaxed).wrapping_add(start) % 10_000;
        let port = 20_000 + offset;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (port..port + count).all(is_free) {
            return port;
        }
    }
}
