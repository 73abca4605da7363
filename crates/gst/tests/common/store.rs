//! A real S3 server for the tests (moto, which scripts/setup installs), and a proxy before it that breaks what a test wants to break.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test crates")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};

use threadbare_s3::{Credentials, Endpoint, Error, Store, StoreSettings, Timeouts};

use crate::common::DEADLINE;

/// That all tests use, unless they break something.
pub const BUCKET: &str = "bucket";
/// That nobody else has.
pub const SECRET: &str = "SECRETofTheTests";

/// A server. Ends with its standard input, and so with this process, however that ends.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub keys: serde_json::Value,
}

/// The one that all tests of this process share.
pub static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&[]));

impl Server {
    pub fn start(arguments: &[&str]) -> Server {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let python = folder.parent().unwrap().join("venv-moto/bin/python");
        assert!(
            python.exists(),
            "no {}: scripts/setup test makes it",
            python.display()
        );
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/store.py");
        let mut child = Command::new(python)
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        assert!(read.unwrap() > 0, "the server does not start");
        let keys: serde_json::Value = serde_json::from_str(&line).unwrap();
        let port = u16::try_from(keys["port"].as_u64().unwrap()).unwrap();
        Server {
            child,
            address: ([127, 0, 0, 1], port).into(),
            keys,
        }
    }

    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn key(&self, name: &str) -> String {
        self.keys[name].as_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The tests' own eyes.
pub fn store() -> Store {
    settings_store(&SERVER.uri(), "access", SECRET)
}

pub fn settings_of(uri: &str, key: &str, secret: &str) -> StoreSettings {
    StoreSettings {
        endpoint: Endpoint::new(Some(uri), "us-east-1", BUCKET, true).unwrap(),
        credentials: Credentials::given(Some(key), Some(secret), None).unwrap(),
        ca_file: None,
    }
}

pub fn settings_store(uri: &str, key: &str, secret: &str) -> Store {
    Store::shared(settings_of(uri, key, secret)).unwrap()
}

/// Runs a future of the library on the tests' runtime.
pub fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    });
    let (send, result) = std::sync::mpsc::channel();
    RUNTIME.spawn(async move {
        let _ = send.send(future.await);
    });
    result.recv_timeout(DEADLINE).expect("the store answers")
}

/// The object of this key.
pub fn object(key: &str) -> Result<Vec<u8>, Error> {
    let key = key.to_owned();
    run(async move {
        let mut download = store().get(&key, None, Timeouts::default()).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = download.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    })
}

pub fn etag(key: &str) -> Option<String> {
    let key = key.to_owned();
    run(async move { store().etag(&key, Timeouts::default()).await.unwrap() })
}

/// Uploads of keys that begin with this which are neither complete nor aborted.
pub fn open_uploads(prefix: &str) -> usize {
    let prefix = prefix.to_owned();
    run(async move {
        store()
            .uploads(&prefix, Timeouts::default())
            .await
            .unwrap()
            .len()
    })
}

/// A request on its way to the server.
#[derive(Debug, Clone)]
pub struct Passing {
    pub method: String,
    /// Path and query.
    pub path: String,
    pub bytes: usize,
    pub head: String,
}

impl Passing {
    pub fn is_part(&self) -> bool {
        self.path.contains("partNumber=")
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// The proxy's own answer, without the server.
    Answer(&'static str, &'static str),
    /// The connection is closed before the server has the request.
    Drop,
    /// The server has it, but its answer does not come.
    Lose,
    /// After so many bytes of the answer the connection is closed.
    CutAfter(usize),
    /// Nothing happens until the test goes on.
    Stall,
}

pub const SLOW_DOWN: Fate = Fate::Answer(
    "503 Slow Down",
    "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>",
);

type Rule = Box<dyn FnMut(&Passing) -> Fate + Send>;

struct Shared {
    rule: Mutex<Rule>,
    state: Mutex<State>,
    changed: Condvar,
    target: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
}

#[derive(Default)]
struct State {
    passed: Vec<Passing>,
    stalled: usize,
    releases: usize,
    is_over: bool,
}

/// A proxy. One thread for each connection; each has one request, as the server closes them, too.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(rule: impl FnMut(&Passing) -> Fate + Send + 'static) -> Proxy {
        Proxy::with(SERVER.address, None, rule)
    }

    pub fn with(
        target: SocketAddr,
        tls: Option<Arc<rustls::ServerConfig>>,
        rule: impl FnMut(&Passing) -> Fate + Send + 'static,
    ) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(rule)),
            state: Mutex::default(),
            changed: Condvar::new(),
            target,
            tls,
        });
        let address = listener.local_addr().unwrap();
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if of_thread.state().is_over {
                    return;
                }
                let shared = of_thread.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Proxy { address, shared }
    }

    pub fn uri(&self) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.address.port())
    }

    pub fn rule(&self, rule: impl FnMut(&Passing) -> Fate + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// Requests so far, passed or not.
    pub fn passed(&self) -> Vec<Passing> {
        self.shared.state().passed.clone()
    }

    pub fn wait_passed(&self, what: &str, condition: impl Fn(&[Passing]) -> bool) {
        self.wait(what, |state| condition(&state.passed));
    }

    pub fn wait_stalled(&self, count: usize) {
        self.wait("requests stall", |state| state.stalled >= count);
    }

    /// Those that stall are passed on.
    pub fn release(&self) {
        self.shared.state().releases += 1;
        self.shared.changed.notify_all();
    }

    fn wait(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let state = self.shared.state();
        let (_state, result) = (self.shared.changed)
            .wait_timeout_while(state, DEADLINE, |state| !condition(state))
            .unwrap();
        assert!(!result.timed_out(), "never: {what}");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
        // For the listener's thread.
        let _ = TcpStream::connect(self.address);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, tcp: TcpStream) {
        let _ = match &self.tls {
            None => self.carry(&mut &tcp),
            Some(config) => rustls::ServerConnection::new(config.clone())
                .map_err(io::Error::other)
                .and_then(|connection| self.carry(&mut rustls::StreamOwned::new(connection, &tcp))),
        };
        let _ = tcp.shutdown(Shutdown::Both);
    }

    fn carry(&self, io: &mut dyn ReadWrite) -> io::Result<()> {
        let (head, rest) = read_head(io)?;
        let mut words = head.split(' ');
        let (method, path) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        let passing = Passing {
            method: method.into(),
            path: path.into(),
            bytes: length.unwrap_or(0),
            head: head.clone(),
        };
        let fate = self.rule.lock().unwrap()(&passing);
        let mut body = rest;
        let read = read_body(io, &mut body, passing.bytes);
        {
            let mut state = self.state();
            state.passed.push(passing);
            self.changed.notify_all();
        }
        read?;
        match fate {
            // A HEAD's answer says how long the body would be.
            _ if head.starts_with("HEAD") => copy(&mut self.ask(&head, &body)?, io, 0),
            Fate::Pass => copy(&mut self.ask(&head, &body)?, io, usize::MAX),
            Fate::CutAfter(bytes) => copy(&mut self.ask(&head, &body)?, io, bytes),
            Fate::Drop => Ok(()),
            Fate::Lose => {
                let mut server = self.ask(&head, &body)?;
                // The head of a HEAD's answer has a length, but no body follows.
                read_head(&mut server).map(|_| ())
            }
            Fate::Answer(status, text) => {
                let length = text.len();
                write!(
                    io,
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
                )?;
                io.flush()
            }
            Fate::Stall => {
                self.stall();
                copy(&mut self.ask(&head, &body)?, io, usize::MAX)
            }
        }
    }

    fn stall(&self) {
        let mut state = self.state();
        let releases = state.releases;
        state.stalled += 1;
        self.changed.notify_all();
        while state.releases == releases && !state.is_over {
            state = self.changed.wait(state).unwrap();
        }
        state.stalled -= 1;
    }

    fn ask(&self, head: &str, body: &[u8]) -> io::Result<TcpStream> {
        let mut server = TcpStream::connect(self.target)?;
        server.write_all(head.as_bytes())?;
        server.write_all(body)?;
        Ok(server)
    }
}

/// Up to the empty line, and what came behind it.
fn read_head(io: &mut dyn ReadWrite) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8(bytes).map_err(io::Error::other)?, rest));
        }
        match io.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

fn read_body(io: &mut dyn ReadWrite, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let mut chunk = [0; 64 << 10];
    while body.len() < length {
        match io.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => body.extend_from_slice(&chunk[..count]),
        }
    }
    Ok(())
}

/// The server closes behind its answer, or keeps the connection: then the answer's length counts.
fn copy(server: &mut TcpStream, io: &mut dyn ReadWrite, max: usize) -> io::Result<()> {
    let (head, rest) = read_head(server)?;
    let mut answer = String::new();
    for line in head
        .lines()
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
    {
        if !line.is_empty() {
            answer.push_str(line);
            answer.push_str("\r\n");
        }
    }
    answer.push_str("Connection: close\r\n\r\n");
    io.write_all(answer.as_bytes())?;
    let is_over = |sent: usize| sent >= max;
    let mut sent = rest.len().min(max);
    io.write_all(&rest[..sent])?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    let mut chunk = [0; 64 << 10];
    while !is_over(sent) && length.is_none_or(|length| sent < length) {
        let count = server.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        let count = count.min(max - sent);
        io.write_all(&chunk[..count])?;
        sent += count;
    }
    io.flush()
}

/// Runs a future of the library beside the test.
pub fn run_aside<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> std::sync::mpsc::Receiver<T> {
    let (send, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(run(future)));
    result
}
