//! `ts-tcpserversink`: sends arriving data to every connected TCP client.
//!
//! A buffer is written to each client at once, as far as its socket accepts it. The remaining data waits in the client's queue,
//! and the context's thread writes it when there is room. A client that does not keep up is dropped, so that it does not delay
//! the others.
//!
//! | field | threads |
//! |---|---|
//! | `Clients::list` | the pushing thread, and the context's thread, under its lock |
//! | `Client::out` | the same threads; held across a non-blocking write |

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Agent, AgentHandle, Cx, Interest, Precision, Ready};

use super::sources::{PORT_DEFAULT, listen};
use super::{EXHAUSTED_PAUSE_NS, is_of_caller};
use crate::kit::context::{ContextSettings, Place};
use crate::kit::lock;
use crate::kit::sink::{self, LiveSyncProperties, Rendered, Renderer, Sink, SinkElement};
use crate::kit::stats::StatsProperty;

glib::wrapper! {
    /// Sends arriving data to every connected TCP client.
    pub struct TcpServerSink(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
}

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let kind = TcpServerSink::static_type();
    gst::Element::register(plugin, "ts-tcpserversink", gst::Rank::NONE, kind)
}

/// The connected clients.
#[derive(Default)]
struct Clients {
    list: Mutex<Vec<Arc<Client>>>,
    buffers_max: AtomicI32,
    /// Maximum number of queued bytes per client; 0 for no limit.
    bytes_max: AtomicU64,
    /// Maximum number of clients; 0 for no limit.
    clients_max: AtomicU32,
    /// The data that each client gets first. It comes from the caps.
    header: Mutex<Vec<gst::Buffer>>,
    bytes: AtomicU64,
    added: AtomicU64,
    slow: AtomicU64,
    refused: AtomicU64,
    element: glib::WeakRef<gst::Element>,
}

impl Clients {
    fn path(&self) -> String {
        let element = self.element.upgrade();
        element.map_or_else(String::new, |element| crate::kit::path_of(&element))
    }

    fn tell(&self, signal: &str, address: SocketAddr) {
        if let Some(element) = self.element.upgrade() {
            let port = i32::from(address.port());
            element.emit_by_name::<()>(signal, &[&address.ip().to_string(), &port]);
        }
    }

    fn remove(&self, client: &Arc<Client>) {
        let removed = {
            let mut list = lock(&self.list);
            let at = list.iter().position(|c| Arc::ptr_eq(c, client));
            at.map(|at| list.swap_remove(at))
        };
        if removed.is_some() {
            self.tell("client-removed", client.address);
        }
    }
}

struct Client {
    address: SocketAddr,
    stream: TcpStream,
    out: Mutex<Out>,
    is_gone: AtomicBool,
    agent: OnceLock<AgentHandle<ClientAgent>>,
}

/// Data not written yet.
#[derive(Default)]
struct Out {
    queue: VecDeque<gst::Buffer>,
    /// Bytes of the first item already written.
    written: usize,
    /// Number of bytes in the queue, including those already written.
    bytes: u64,
}

impl Out {
    fn push(&mut self, buffer: gst::Buffer) {
        self.bytes += buffer.size() as u64;
        self.queue.push_back(buffer);
    }

    /// Removes the first buffer. The caller must not drop it under the lock, because the owner of the buffer's memory may call
    /// the element.
    fn pop(&mut self) -> Option<gst::Buffer> {
        self.written = 0;
        let buffer = self.queue.pop_front()?;
        self.bytes -= buffer.size() as u64;
        Some(buffer)
    }

    /// Whether another buffer would exceed a client's limit. An empty queue always accepts one buffer of any size.
    fn is_full_for(&self, buffer: &gst::Buffer, clients: &Clients) -> bool {
        let buffers_max = usize::try_from(clients.buffers_max.load(Relaxed));
        let bytes_max = clients.bytes_max.load(Relaxed);
        let bytes = self.bytes + buffer.size() as u64;
        let has_too_many = buffers_max.is_ok_and(|max| self.queue.len() >= max.max(1));
        !self.queue.is_empty() && (has_too_many || bytes_max > 0 && bytes > bytes_max)
    }
}

/// The result of writing a client's queue.
enum Written {
    All,
    /// The socket accepts no more now.
    Full,
    /// The connection is broken.
    Broken,
}

impl Client {
    /// Queues and writes a buffer. Returns `false` if the client must be dropped.
    fn send(&self, clients: &Clients, buffer: &gst::Buffer) -> bool {
        let mut out = lock(&self.out);
        let is_first = out.queue.is_empty();
        if out.is_full_for(buffer, clients) {
            clients.slow.fetch_add(1, Relaxed);
            return false;
        }
        out.push(buffer.clone());
        if !is_first {
            return true;
        }
        drop(out);
        let written = self.write(clients);
        if matches!(written, Written::Full) {
            // Wake the agent, which waits for room.
            self.wake();
        }
        !matches!(written, Written::Broken)
    }

    /// Writes as much as the socket accepts.
    fn write(&self, clients: &Clients) -> Written {
        loop {
            match self.write_first(clients) {
                Ok(done) => drop(done),
                Err(written) => return written,
            }
        }
    }

    /// Writes the first buffer. If the buffer is finished, returns it; the caller then drops it.
    fn write_first(&self, clients: &Clients) -> Result<Option<gst::Buffer>, Written> {
        let mut out = lock(&self.out);
        let out = &mut *out;
        let Some(buffer) = out.queue.front() else {
            return Err(Written::All);
        };
        let Ok(map) = buffer.map_readable() else {
            return Ok(out.pop());
        };
        while out.written < map.len() {
            match (&self.stream).write(&map[out.written..]) {
                Ok(bytes) => {
                    clients.bytes.fetch_add(bytes as u64, Relaxed);
                    out.written += bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Written::Full),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Written::Broken),
            }
        }
        drop(map);
        Ok(out.pop())
    }

    fn wake(&self) {
        if let Some(agent) = self.agent.get() {
            agent.wake();
        }
    }

    fn leave(&self) {
        self.is_gone.store(true, Relaxed);
        self.wake();
    }
}

/// Waits for room to write, or until the client closes.
struct ClientAgent {
    client: Arc<Client>,
    clients: Arc<Clients>,
    watched: Option<Interest>,
}

impl ClientAgent {
    fn watch(&mut self, cx: &Cx<'_>, interest: Interest) -> bool {
        if self.watched == Some(interest) {
            return true;
        }
        self.unwatch(cx);
        let is_watched = cx.register(self.client.stream.as_fd(), 0, interest).is_ok();
        self.watched = is_watched.then_some(interest);
        is_watched
    }

    fn unwatch(&mut self, cx: &Cx<'_>) {
        if self.watched.take().is_some() {
            cx.deregister(self.client.stream.as_fd());
        }
    }

    /// Discards a client's data, and notices when the client disconnects. Returns `false` if it has.
    fn listen(&self) -> bool {
        let mut ignored = [0; 512];
        match (&self.client.stream).read(&mut ignored) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn go_on(&mut self, cx: &Cx<'_>, ready: Ready) -> bool {
        if self.client.is_gone.load(Relaxed) {
            return false;
        }
        if matches!(ready, Ready::Io(_)) && self.watched == Some(Interest::Read) && !self.listen() {
            return false;
        }
        let interest = match self.client.write(&self.clients) {
            Written::All => Interest::Read,
            Written::Full => Interest::Write,
            Written::Broken => return false,
        };
        self.watch(cx, interest)
    }
}

impl Agent for ClientAgent {
    fn label(&self) -> String {
        format!("{} to {}", self.clients.path(), self.client.address)
    }

    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        if self.go_on(cx, ready) {
            return;
        }
        self.unwatch(cx);
        self.client.is_gone.store(true, Relaxed);
        self.clients.remove(&self.client);
        if let Some(agent) = self.client.agent.get() {
            agent.remove();
        }
    }
}

/// Accepts clients.
struct Acceptor {
    listener: TcpListener,
    clients: Arc<Clients>,
    /// Whether the listener is not watched for a while, because memory is lacking, or a descriptor for a client.
    is_resting: bool,
    /// Whether this lack was reported.
    has_warned: bool,
    /// Whether it was reported that clients above the limit are refused.
    has_told_of_refusal: bool,
}

impl Acceptor {
    fn watch(&mut self, cx: &Cx<'_>) {
        match cx.register(self.listener.as_fd(), 0, Interest::Read) {
            Ok(()) => self.is_resting = false,
            Err(error) => self.rest(cx, "cannot watch the socket", &error),
        }
    }

    /// Pauses until descriptors or memory may be available again.
    fn rest(&mut self, cx: &Cx<'_>, what: &str, error: &std::io::Error) {
        self.is_resting = true;
        cx.set_timer(cx.now_ns() + EXHAUSTED_PAUSE_NS, Precision::About);
        if !std::mem::replace(&mut self.has_warned, true) {
            let path = self.clients.path();
            gst::warning!(crate::kit::CAT, "{path}: {what}: {error}");
        }
    }

    /// Whether one more client is allowed. If not, its connection is closed at once, so that the client notices. Otherwise it
    /// would wait in the backlog for an unknown time.
    fn has_room(&mut self, address: SocketAddr) -> bool {
        let max = self.clients.clients_max.load(Relaxed);
        if max == 0 || lock(&self.clients.list).len() < max as usize {
            self.has_told_of_refusal = false;
            return true;
        }
        self.clients.refused.fetch_add(1, Relaxed);
        if !std::mem::replace(&mut self.has_told_of_refusal, true) {
            gst::warning!(
                crate::kit::CAT,
                "{}: the client {address} is refused, because there are already {max} clients (see max-clients)",
                self.clients.path()
            );
        }
        false
    }

    fn admit(&mut self, cx: &Cx<'_>, stream: TcpStream, address: SocketAddr) {
        if !self.has_room(address) || stream.set_nonblocking(true).is_err() {
            return;
        }
        let client = Arc::new(Client {
            address,
            stream,
            out: Mutex::default(),
            is_gone: AtomicBool::new(false),
            agent: OnceLock::new(),
        });
        for buffer in lock(&self.clients.header).iter() {
            lock(&client.out).push(buffer.clone());
        }
        let agent = ClientAgent {
            client: client.clone(),
            clients: self.clients.clone(),
            watched: None,
        };
        let _ = client.agent.set(cx.local().add_agent(agent));
        lock(&self.clients.list).push(client.clone());
        client.wake();
        self.clients.added.fetch_add(1, Relaxed);
        self.clients.tell("client-added", address);
    }
}

impl Agent for Acceptor {
    fn label(&self) -> String {
        format!("{} (new clients)", self.clients.path())
    }

    fn run(&mut self, cx: &mut Cx<'_>, _ready: Ready) {
        if self.is_resting {
            self.watch(cx);
        }
        if self.is_resting {
            return;
        }
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.has_warned = false;
                    self.admit(cx, stream, address);
                }
                // No client is waiting, or the client has already gone.
                Err(error) if is_of_caller(&error) => return,
                Err(error) => {
                    cx.deregister(self.listener.as_fd());
                    return self.rest(cx, "cannot accept a client", &error);
                }
            }
        }
    }
}

/// Writes buffers to the clients; under the sink's lock.
pub struct Distributor(Arc<Clients>);

impl Renderer for Distributor {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        let list = lock(&self.0.list);
        for client in list.iter() {
            if !client.is_gone.load(Relaxed) && !client.send(&self.0, buffer) {
                client.leave();
            }
        }
        Rendered::Done
    }
}

#[derive(Debug, Clone)]
struct Settings {
    host: String,
    port: i32,
}

#[derive(Properties)]
#[properties(wrapper_type = TcpServerSink)]
pub struct Imp {
    #[property(name = "host", nick = "Host", blurb = "Host name or address to listen on", type = String, get = |s: &Self| s.settings().host.clone(), set = |s: &Self, v: Option<String>| s.settings().host = v.unwrap_or_else(|| HOST_DEFAULT.into()), default = HOST_DEFAULT)]
    #[property(name = "port", nick = "Port", blurb = "The TCP port to listen on, 0: any free one (see current-port)", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.settings().port = v, minimum = 0, maximum = 65_535, default = PORT_DEFAULT)]
    #[property(name = "current-port", nick = "Current port", blurb = "Port in use, 0: none", type = i32, get = Self::current_port)]
    #[property(name = "buffers-max", nick = "Maximum buffers", blurb = "Number of queued buffers at which a client is dropped, -1: no limit", type = i32, get = |s: &Self| s.clients().buffers_max.load(Relaxed), set = |s: &Self, v| s.clients().buffers_max.store(v, Relaxed), minimum = -1, default = BUFFERS_MAX_DEFAULT)]
    #[property(name = "bytes-max", nick = "Maximum bytes", blurb = "Number of queued bytes at which a client is dropped, 0: no limit", type = u64, get = |s: &Self| s.clients().bytes_max.load(Relaxed), set = |s: &Self, v| s.clients().bytes_max.store(v, Relaxed), default = BYTES_MAX_DEFAULT)]
    #[property(name = "max-clients", nick = "Maximum clients", blurb = "Maximum number of clients; further ones are refused; 0: no limit", type = u32, get = |s: &Self| s.clients().clients_max.load(Relaxed), set = |s: &Self, v| s.clients().clients_max.store(v, Relaxed), default = CLIENTS_MAX_DEFAULT)]
    #[property(name = "num-handles", nick = "Clients", blurb = "Number of connected clients", type = u32, get = |s: &Self| lock(&s.clients().list).len() as u32)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    sync: Mutex<LiveSyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    clients: OnceLock<Arc<Clients>>,
    sink: OnceLock<Sink<Distributor>>,
    listener: Mutex<Option<TcpListener>>,
    /// The acceptor and its place, which keeps the context running.
    acceptor: Mutex<Option<(AgentHandle<Acceptor>, Place)>>,
}

impl Imp {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn clients(&self) -> &Arc<Clients> {
        self.clients.get_or_init(|| {
            let clients = Clients {
                buffers_max: AtomicI32::new(BUFFERS_MAX_DEFAULT),
                bytes_max: AtomicU64::new(BYTES_MAX_DEFAULT),
                clients_max: AtomicU32::new(CLIENTS_MAX_DEFAULT),
                ..Clients::default()
            };
            clients.element.set(Some(self.obj().upcast_ref()));
            Arc::new(clients)
        })
    }

    fn current_port(&self) -> i32 {
        let listener = lock(&self.listener);
        let address = listener.as_ref().and_then(|l| l.local_addr().ok());
        address.map_or(0, |address| i32::from(address.port()))
    }

    fn structure(&self) -> gst::Structure {
        let clients = self.clients();
        let (rendered, dropped) = self.sink().counts();
        gst::Structure::builder("application/x-ts-tcpserversink-stats")
            .field("rendered", rendered)
            .field("dropped", dropped)
            .field("clients", lock(&clients.list).len() as u64)
            .field("clients-added", clients.added.load(Relaxed))
            .field("clients-slow", clients.slow.load(Relaxed))
            .field("clients-refused", clients.refused.load(Relaxed))
            .field("bytes-served", clients.bytes.load(Relaxed))
            .build()
    }
}

/// Returns the stream header in the caps. Clients need it first, because buffers depend on it.
fn stream_header(caps: &gst::CapsRef) -> Vec<gst::Buffer> {
    let header = caps
        .structure(0)
        .and_then(|s| s.get::<gst::Array>("streamheader").ok());
    header.map_or_else(Vec::new, |array| {
        let buffers = array.as_slice().iter();
        buffers.filter_map(|value| value.get().ok()).collect()
    })
}

impl SinkElement for Imp {
    type Renderer = Distributor;

    fn sink(&self) -> &Sink<Distributor> {
        self.sink.get_or_init(|| {
            let distributor = Distributor(self.clients().clone());
            Sink::new(
                self.obj().upcast_ref(),
                distributor,
                lock(&self.sync).clone().into(),
            )
        })
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let port = u16::try_from(settings.port).unwrap_or(0);
        *lock(&self.listener) = Some(listen(&settings.host, port)?);
        self.obj().notify("current-port");
        Ok(())
    }

    /// Accepts clients, on the context's thread.
    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        let obj = self.obj();
        let place = lock(&self.context).place(obj.upcast_ref())?;
        let listener = {
            let listener = lock(&self.listener);
            let again = listener.as_ref().map(TcpListener::try_clone);
            again.transpose().ok().flatten()
        };
        let listener = listener.ok_or_else(|| {
            gst::error_msg!(gst::CoreError::StateChange, ["the element has no socket"])
        })?;
        let acceptor = Acceptor {
            listener,
            clients: self.clients().clone(),
            is_resting: false,
            has_warned: false,
            has_told_of_refusal: false,
        };
        let handle = place
            .shard
            .call(move |local| local.add_agent(acceptor))
            .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
        handle.command(|acceptor: &mut Acceptor, cx| acceptor.watch(cx));
        *lock(&self.acceptor) = Some((handle, place));
        Ok(())
    }

    fn deactivate(&self) {
        let accepting = lock(&self.acceptor).take();
        if let Some((acceptor, _)) = &accepting {
            acceptor.remove();
        }
        let all = std::mem::take(&mut *lock(&self.clients().list));
        for client in all {
            if let Some(agent) = client.agent.get() {
                agent.remove();
            }
            self.clients().tell("client-removed", client.address);
        }
    }

    fn close(&self) {
        *lock(&self.listener) = None;
    }

    fn notice_event(&self, event: &gst::Event) {
        if let gst::EventView::Caps(caps) = event.view() {
            let header = stream_header(caps.caps());
            let before = std::mem::replace(&mut *lock(&self.clients().header), header);
            drop(before);
        }
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareTcpServerSink";
    type Type = TcpServerSink;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = sink::sink_pad::<Imp>(&crate::kit::template(klass, "sink"));
        Imp {
            settings: Mutex::new(Settings {
                host: HOST_DEFAULT.into(),
                port: PORT_DEFAULT,
            }),
            context: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            sink_pad,
            clients: OnceLock::new(),
            sink: OnceLock::new(),
            listener: Mutex::default(),
            acceptor: Mutex::default(),
        }
    }
}

impl ObjectImpl for Imp {
    crate::kit::properties_with_groups!(context, sync, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            ["client-added", "client-removed"]
                .map(|name| {
                    let host_port = [String::static_type(), i32::static_type()];
                    Signal::builder(name).param_types(host_port).build()
                })
                .into()
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.sink_pad);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    crate::kit::element_class!(
        "Thread-sharing TCP server sink",
        "Sink/Network",
        "Sends data to every connected TCP client on the thread of a shared context";
        "sink": Sink Always gst::Caps::new_any()
    );

    crate::sink_life!();
}

const HOST_DEFAULT: &str = "localhost";
/// Default of queued buffers: ten seconds of telephony.
const BUFFERS_MAX_DEFAULT: i32 = 500;
/// Default of queued bytes: ten seconds of video of 25 Mbit/s. The limit keeps clients that do not read from filling the memory.
const BYTES_MAX_DEFAULT: u64 = 32 << 20;
/// Default of clients: a quarter of the usual limit of descriptors (1024). The limit keeps clients from taking the descriptors
/// that all other elements need.
const CLIENTS_MAX_DEFAULT: u32 = 256;
/// Maximum number of clients accepted at once, before other agents run.
const ACCEPTED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    /// The kernel may refuse to watch a socket for a while, for lack of memory (epoll_ctl(2)). A regular file, which the kernel
    /// never watches, stands for such a socket.
    #[test]
    fn a_listening_socket_that_cannot_be_watched_is_tried_again() {
        gst::init().unwrap();
        let settings = threadbare_runtime::Settings::default();
        let context = threadbare_runtime::Context::acquire("unwatched", settings).unwrap();
        let shard = context.shards()[0].clone();
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let clients = Arc::new(Clients::default());
        let acceptor = Acceptor {
            listener: file.into(),
            clients: clients.clone(),
            is_resting: false,
            has_warned: false,
            has_told_of_refusal: false,
        };
        let handle = shard.call(|local| local.add_agent(acceptor)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        handle.command(|acceptor: &mut Acceptor, cx| {
            acceptor.watch(cx);
            acceptor.listener = listener;
        });
        let _caller = TcpStream::connect(address).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while clients.added.load(Relaxed) == 0 {
            assert!(Instant::now() < end, "the caller is not accepted");
            std::thread::sleep(Duration::from_millis(2));
        }
        handle.remove();
    }
}
