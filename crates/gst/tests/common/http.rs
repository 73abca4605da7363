//! A small HTTP server on the loopback interface that fails as it is told: one body, a script with an answer for each connection.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test crates")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::common::{self, DEADLINE};

/// What becomes of a connection. Each carries one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The body, or the range of it that was asked for.
    All,
    /// The headers and so many bytes of that, then the end.
    DropAfter(usize),
    /// So many bytes; the rest after [`Server::release`].
    StallAfter(usize),
    /// The end, without a word.
    Refuse,
    /// A status such as 404 or 503, without a body.
    Status(u16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// The first byte that was asked for, and the last one, if these were said.
    pub range: Option<(usize, Option<usize>)>,
    /// What it got.
    pub answer: Answer,
}

/// Serves until it is dropped; then its threads have ended.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    body: Vec<u8>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    script: VecDeque<Answer>,
    /// After the script.
    always: Option<Answer>,
    requests: VecDeque<Request>,
    requests_ever: usize,
    stalled: usize,
    releases: usize,
    is_over: bool,
    /// Of the connections there are.
    streams: Vec<(u64, TcpStream)>,
}

/// The last ones are kept.
const REQUESTS_MAX: usize = 1000;
/// More are closed at once.
const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 64 << 10;

impl Server {
    /// Serves a body, whatever the path.
    pub fn new(body: Vec<u8>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            body,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = shared.clone();
        let accepting = std::thread::Builder::new()
            .name(thread_name(address))
            .spawn(move || accept(&listener, &serving))
            .unwrap();
        Server {
            address,
            shared,
            accepting: Some(accepting),
        }
    }

    pub fn uri(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// The name of all its threads.
    pub fn thread_name(&self) -> String {
        thread_name(self.address)
    }

    /// The answers to the next connections, after those that were said before.
    pub fn script(&self, answers: &[Answer]) {
        self.shared.state().script.extend(answers);
    }

    /// The answer to all connections after the script: at first [`Answer::All`].
    pub fn always(&self, answer: Answer) {
        self.shared.state().always = Some(answer);
    }

    /// Lets all connections go on that stall now.
    pub fn release(&self) {
        self.shared.state().releases += 1;
        self.shared.changed.notify_all();
    }

    /// Waits until a connection stalls.
    pub fn wait_stalled(&self) {
        self.wait("a stalled connection", |state| state.stalled > 0);
    }

    /// Waits for so many requests since the server began, and returns the last ones.
    pub fn wait_requests(&self, count: usize) -> Vec<Request> {
        self.wait(&format!("{count} requests"), |state| {
            state.requests_ever >= count
        });
        self.requests()
    }

    /// The last ones, the oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.iter().cloned().collect()
    }

    fn wait(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let state = self.shared.state();
        let (_state, timeout) = (self.shared.changed)
            .wait_timeout_while(state, DEADLINE, |state| !condition(state))
            .unwrap();
        assert!(!timeout.timed_out(), "never: {what}");
    }
}

impl Drop for Server {
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

/// A thread's name has 15 bytes.
fn thread_name(address: SocketAddr) -> String {
    format!("http:{}", address.port())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for id in 0.. {
        let Ok((stream, address)) = listener.accept() else {
            break;
        };
        {
            let mut state = shared.state();
            if state.is_over {
                break;
            }
            if state.streams.len() >= CONNECTIONS_MAX {
                continue;
            }
            state.streams.push((id, stream.try_clone().unwrap()));
        }
        threads.retain(|thread| !thread.is_finished());
        let serving = shared.clone();
        let local = stream.local_addr().unwrap_or(address);
        let thread = std::thread::Builder::new().name(thread_name(local));
        let serve = move || {
            // A peer that goes away is nothing special.
            let _ = serve(&stream, &serving);
            let _ = stream.shutdown(Shutdown::Both);
            serving.state().streams.retain(|(other, _)| *other != id);
        };
        threads.push(thread.spawn(serve).unwrap());
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn serve(mut stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(head) = read_head(stream)? else {
        return Ok(());
    };
    let request = shared.note(&head);
    let (status, body) = match request.answer {
        Answer::Refuse => return Ok(()),
        Answer::Status(status) => (format!("{status} No"), None),
        _ => shared.part(request.range),
    };
    let mut reply = format!("HTTP/1.1 {status}\r\nConnection: close\r\nAccept-Ranges: bytes\r\n");
    let length = body.as_ref().map_or(0, |(_, part)| part.len());
    reply += &format!("Content-Length: {length}\r\n");
    if let (Some(_), Some((first, part))) = (request.range, &body) {
        let (last, all) = (first + part.len() - 1, shared.body.len());
        reply += &format!("Content-Range: bytes {first}-{last}/{all}\r\n");
    }
    stream.write_all((reply + "\r\n").as_bytes())?;
    let Some((_, part)) = body.filter(|_| request.method != "HEAD") else {
        return Ok(());
    };
    match request.answer {
        Answer::DropAfter(bytes) => stream.write_all(&part[..bytes.min(part.len())]),
        Answer::StallAfter(bytes) => {
            let (now, later) = part.split_at(bytes.min(part.len()));
            stream.write_all(now)?;
            shared.stall();
            stream.write_all(later)
        }
        _ => stream.write_all(part),
    }
}

/// Up to the empty line. `None`: the peer went, or talks too much.
fn read_head(mut stream: &TcpStream) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut byte = [0; 512];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut byte)?;
        if count == 0 || head.len() > HEAD_BYTES_MAX {
            return Ok(None);
        }
        head.extend_from_slice(&byte[..count]);
    }
    Ok(String::from_utf8(head).ok())
}

impl Shared {
    /// Decides for an answer, and keeps the request.
    fn note(&self, head: &str) -> Request {
        let mut lines = head.lines();
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (method, path) = (first.next(), first.next());
        let mut state = self.state();
        let request = Request {
            method: method.unwrap_or_default().to_owned(),
            path: path.unwrap_or_default().to_owned(),
            range: lines.find_map(range_of),
            answer: (state.script.pop_front()).unwrap_or(state.always.unwrap_or(Answer::All)),
        };
        if state.requests.len() == REQUESTS_MAX {
            state.requests.pop_front();
        }
        state.requests.push_back(request.clone());
        state.requests_ever += 1;
        drop(state);
        self.changed.notify_all();
        request
    }

    /// The status, and the bytes of a range with the number of the first one.
    fn part(&self, range: Option<(usize, Option<usize>)>) -> (String, Option<(usize, &[u8])>) {
        let Some((first, last)) = range else {
            return ("200 OK".to_owned(), Some((0, &self.body)));
        };
        let end = last.map_or(self.body.len(), |last| (last + 1).min(self.body.len()));
        match self.body.get(first..end).filter(|part| !part.is_empty()) {
            Some(part) => ("206 Partial Content".to_owned(), Some((first, part))),
            None => ("416 Range Not Satisfiable".to_owned(), None),
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
}

/// Of a line such as `Range: bytes=100-` (RFC 9110, section 14.2).
fn range_of(line: &str) -> Option<(usize, Option<usize>)> {
    let (name, value) = line.split_once(':')?;
    if !name.eq_ignore_ascii_case("range") {
        return None;
    }
    let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()))
}

/// A WAV file of 16-bit samples, channels interleaved.
pub fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
    let data = samples.len() as u32 * 2;
    let frame = channels * 2;
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + data).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // PCM.
    file.extend(1u16.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(frame)).to_le_bytes());
    file.extend(frame.to_le_bytes());
    file.extend(16u16.to_le_bytes());
    file.extend(b"data");
    file.extend(data.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

/// The file that a pipeline writes, such as `videotestsrc num-buffers=50 ! theoraenc ! oggmux`.
pub fn made_by(line: &str) -> Vec<u8> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("threadbare-made-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let pipe = common::Pipe::parse(&format!("{line} ! filesink location={}", path.display()));
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    drop(pipe);
    let file = std::fs::read(&path);
    let _ = std::fs::remove_file(&path);
    file.unwrap()
}
