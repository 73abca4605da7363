//! An HTTP server on the loopback interface that does whatever a test wants with each request: a handler reads the request and
//! writes the response by hand. With a certificate, it speaks TLS.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test crates")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::common::DEADLINE;

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Of all requests, from 0.
    pub number: usize,
    /// Of all connections, from 0.
    pub connection: usize,
    pub path: String,
    pub head: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1);
        lines.find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// First byte and, if it was said, the last one (RFC 9110, section 14.2).
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }
}

/// The connection that a request came by.
pub struct Reply<'a> {
    io: &'a mut dyn ReadWrite,
    pub tcp: &'a TcpStream,
    shared: &'a Shared,
    /// Not to be used for another request.
    pub closes: bool,
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Reply<'_> {
    /// Sends this as it is.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.io.write_all(bytes.as_ref())?;
        self.io.flush()
    }

    /// A whole response. `more`: further lines of the head, each with its line's end.
    pub fn send(&mut self, status: &str, more: &str, body: &[u8]) -> io::Result<()> {
        let length = body.len();
        self.raw(format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n"
        ))?;
        self.raw(body)
    }

    /// A body, or the range of it that was asked for, as servers of files do.
    pub fn file(&mut self, asked: &Asked, more: &str, body: &[u8]) -> io::Result<()> {
        let (head, part) = part_of(asked, more, body);
        self.raw(head)?;
        self.raw(part)
    }

    /// The same, but for the end: after so many bytes the connection is closed.
    pub fn file_up_to(
        &mut self,
        asked: &Asked,
        more: &str,
        body: &[u8],
        bytes: usize,
    ) -> io::Result<()> {
        self.closes = true;
        let (head, part) = part_of(asked, more, body);
        self.raw(head)?;
        self.raw(&part[..bytes.min(part.len())])
    }

    /// Waits until the test lets all go on that wait.
    pub fn stall(&mut self) {
        let mut state = self.shared.state();
        let releases = state.releases;
        state.stalled += 1;
        self.shared.changed.notify_all();
        while state.releases == releases && !state.is_over {
            state = self.shared.changed.wait(state).unwrap();
        }
        state.stalled -= 1;
    }

    /// Waits until the other end has closed the connection.
    pub fn until_closed(&mut self) -> io::Result<()> {
        self.closes = true;
        let mut rest = [0; 1024];
        while self.io.read(&mut rest)? > 0 {}
        Ok(())
    }
}

fn part_of<'b>(asked: &Asked, more: &str, body: &'b [u8]) -> (String, &'b [u8]) {
    let size = body.len();
    let more = format!("Accept-Ranges: bytes\r\n{more}");
    let Some((first, last)) = asked.range() else {
        return (
            format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n{more}\r\n"),
            body,
        );
    };
    let end = last.map_or(size, |last| (last + 1).min(size));
    let Some(part) = body.get(first..end).filter(|part| !part.is_empty()) else {
        let head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n";
        return (
            format!("{head}Content-Range: bytes */{size}\r\n{more}\r\n"),
            &[],
        );
    };
    let (length, last) = (part.len(), end - 1);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nContent-Range: bytes {first}-{last}/{size}\r\n{more}\r\n"
    );
    (head, part)
}

/// Serves until it is dropped; then its threads have ended.
pub struct Web {
    pub address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

type Handler = Box<dyn Fn(&Asked, &mut Reply<'_>) -> io::Result<()> + Send + Sync>;

struct Shared {
    handler: Handler,
    tls: Option<Arc<rustls::ServerConfig>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    connections: usize,
    stalled: usize,
    releases: usize,
    is_over: bool,
    streams: Vec<(usize, TcpStream)>,
}

const HEAD_BYTES_MAX: usize = 64 << 10;

impl Web {
    pub fn new(
        handler: impl Fn(&Asked, &mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Web {
        Web::with(None, Box::new(handler))
    }

    /// With TLS.
    pub fn tls(
        config: Arc<rustls::ServerConfig>,
        handler: impl Fn(&Asked, &mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Web {
        Web::with(Some(config), Box::new(handler))
    }

    /// A body as servers of files give it, at any path.
    pub fn of_file(body: Vec<u8>) -> Web {
        Web::new(move |asked, reply| reply.file(asked, "ETag: \"v1\"\r\n", &body))
    }

    fn with(tls: Option<Arc<rustls::ServerConfig>>, handler: Handler) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::new(Shared {
            handler,
            tls,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = shared.clone();
        let accepting = std::thread::spawn(move || accept(&listener, &serving));
        Web {
            address,
            scheme,
            shared,
            accepting: Some(accepting),
        }
    }

    pub fn uri(&self, path: &str) -> String {
        format!("{}://{}/{path}", self.scheme, self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.state().asked.clone()
    }

    /// The request of this number, when it comes.
    pub fn wait_asked(&self, number: usize) -> Asked {
        self.wait("a request", |state| state.asked.len() > number);
        self.asked()[number].clone()
    }

    pub fn wait_stalled(&self, count: usize) {
        self.wait("a stalled connection", |state| state.stalled >= count);
    }

    pub fn wait_closed(&self) {
        self.wait("the end of all connections", |state| {
            state.streams.is_empty()
        });
    }

    /// Lets all connections go on that stall now.
    pub fn release(&self) {
        self.shared.state().releases += 1;
        self.shared.changed.notify_all();
    }

    fn wait(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let state = self.shared.state();
        let (state, timeout) = (self.shared.changed)
            .wait_timeout_while(state, DEADLINE, |state| !condition(state))
            .unwrap();
        let asked = state.asked.clone();
        drop(state);
        assert!(!timeout.timed_out(), "never: {what}; {asked:#?}");
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.is_over = true;
            for (_, stream) in &state.streams {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        let number = {
            let mut state = shared.state();
            if state.is_over {
                break;
            }
            let number = state.connections;
            state.connections += 1;
            state.streams.push((number, stream.try_clone().unwrap()));
            number
        };
        threads.retain(|thread| !thread.is_finished());
        let serving = shared.clone();
        threads.push(std::thread::spawn(move || {
            // A peer that goes away is nothing special.
            let _ = serve(&stream, number, &serving);
            let _ = stream.shutdown(Shutdown::Both);
            serving
                .state()
                .streams
                .retain(|(other, _)| *other != number);
            serving.changed.notify_all();
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn serve(stream: &TcpStream, connection: usize, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut plain = stream;
    let Some(config) = &shared.tls else {
        return answer(&mut plain, stream, connection, shared);
    };
    let session = rustls::ServerConnection::new(config.clone()).map_err(io::Error::other)?;
    let mut session = rustls::StreamOwned::new(session, stream.try_clone()?);
    answer(&mut session, stream, connection, shared)
}

fn answer(
    io: &mut dyn ReadWrite,
    tcp: &TcpStream,
    connection: usize,
    shared: &Shared,
) -> io::Result<()> {
    while let Some(head) = read_head(io)? {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let asked = {
            let mut state = shared.state();
            let asked = Asked {
                number: state.asked.len(),
                connection,
                path,
                head,
            };
            state.asked.push(asked.clone());
            asked
        };
        shared.changed.notify_all();
        let mut reply = Reply {
            io,
            tcp,
            shared,
            closes: false,
        };
        (shared.handler)(&asked, &mut reply)?;
        if reply.closes {
            break;
        }
    }
    Ok(())
}

/// Up to the empty line. `None`: the peer went, or talks too much.
fn read_head(io: &mut dyn ReadWrite) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut piece = [0; 512];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = io.read(&mut piece)?;
        if count == 0 || head.len() > HEAD_BYTES_MAX {
            return Ok(None);
        }
        head.extend_from_slice(&piece[..count]);
    }
    Ok(String::from_utf8(head).ok())
}
