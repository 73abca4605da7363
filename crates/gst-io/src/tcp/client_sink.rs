//! `ts-tcpclientsink`: sends arriving data to a TCP server.
//!
//! ```text
//!   Idle --start--> Connecting --established--> Open --a write fails--> Lost
//!                       `------ no address answers -------------------> Lost
//! ```
//!
//! The context's thread connects. The pushing thread writes as much as the socket accepts. The sink holds the remaining data,
//! which blocks its source, until the context's thread finds room again. A lost connection is an error, as with the stock
//! element. The sink connects again only when the element is restarted, because a server that expects a stream from its start
//! would get the middle of one.
//!
//! | field | threads |
//! |---|---|
//! | `Link::stage` | the pushing thread, and the context's thread, under its lock; writes do not block |
//! | `Writer` | the pushing thread, under the sink's lock |
//! | `Caller` | the context's thread |

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Agent, AgentHandle, Cx, Interest, Ready};

use super::TcpError;
use super::connect::{begin_with_first, connect_error};
use super::sources::{PORT_DEFAULT, resolve};
use crate::kit::context::{ContextSettings, Place};
use crate::kit::lock;
use crate::kit::sink::{self, Rendered, Renderer, Sink, SinkElement, SyncProperties};
use crate::kit::stats::StatsProperty;

glib::wrapper! {
    /// Sends arriving data to a TCP server.
    pub struct TcpClientSink(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
}

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let kind = TcpClientSink::static_type();
    gst::Element::register(plugin, "ts-tcpclientsink", gst::Rank::NONE, kind)
}

/// The connection, for both threads.
#[derive(Default)]
struct Link {
    stage: Mutex<Stage>,
    bytes: AtomicU64,
    /// Number of buffers that were not written, or only in part, since the connection was lost.
    lost: AtomicU64,
    connections: AtomicU64,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Connecting,
    Open {
        stream: Arc<TcpStream>,
        /// Whether the socket is full, so that the context's thread watches for room.
        is_full: bool,
        caller: AgentHandle<Caller>,
    },
    Lost,
}

impl Link {
    /// Writes as much as the socket accepts, from `written` on. Returns `true` if everything was written.
    fn write(&self, data: &[u8], written: &mut usize) -> bool {
        let mut stage = lock(&self.stage);
        let Stage::Open {
            stream,
            is_full,
            caller,
        } = &mut *stage
        else {
            return false;
        };
        while *written < data.len() {
            match (&**stream).write(&data[*written..]) {
                Ok(bytes) => {
                    *written += bytes;
                    self.bytes.fetch_add(bytes as u64, Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Wake the context's thread after an error, too. It reads the error from the socket and reports it.
                Err(error) => {
                    *is_full = true;
                    let error = (error.kind() != ErrorKind::WouldBlock).then_some(error);
                    caller.command(move |caller, cx| caller.is_wanted(cx, error));
                    return false;
                }
            }
        }
        true
    }

    fn is_lost(&self) -> bool {
        matches!(&*lock(&self.stage), Stage::Lost)
    }
}

/// Writes buffers to the connection; under the sink's lock.
pub struct Writer {
    link: Arc<Link>,
    begun: Option<Begun>,
}

/// A buffer of which a part was written. The server expects the remaining part, even after a flush.
struct Begun {
    buffer: gst::Buffer,
    written: usize,
    is_flushed: bool,
}

impl Begun {
    /// Copies the remaining part, because it will be dropped under the lock. The sink's own reference is dropped only after the
    /// unlock.
    fn outlive_flush(&mut self) {
        self.is_flushed = true;
        if let Ok(copy) = self.buffer.copy_deep() {
            self.buffer = copy;
        }
    }
}

impl Writer {
    /// Continues writing. Returns `None` if the whole buffer has been written.
    fn write(&self, mut begun: Begun) -> Option<Begun> {
        let is_done = match begun.buffer.map_readable() {
            Ok(map) => self.link.write(&map, &mut begun.written),
            // The memory cannot be read. For example, it is protected.
            Err(_) => true,
        };
        (!is_done).then_some(begun)
    }
}

impl Renderer for Writer {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if self.link.is_lost() {
            self.begun = None;
            self.link.lost.fetch_add(1, Relaxed);
            return Rendered::Failed(gst::FlowError::Error);
        }
        let mut this = Begun {
            buffer: buffer.clone(),
            written: 0,
            is_flushed: false,
        };
        if let Some(begun) = self.begun.take() {
            let is_this = !begun.is_flushed && begun.buffer.as_ptr() == buffer.as_ptr();
            if is_this {
                this = begun;
            } else if let Some(rest) = self.write(begun) {
                self.begun = Some(rest);
                return Rendered::Full;
            }
        }
        self.begun = self.write(this);
        match self.begun {
            None => Rendered::Done,
            Some(_) => Rendered::Full,
        }
    }

    fn flush(&mut self) {
        match &mut self.begun {
            Some(begun) if begun.written > 0 => begun.outlive_flush(),
            _ => self.begun = None,
        }
    }

    fn has_room(&self) -> bool {
        match &*lock(&self.link.stage) {
            Stage::Open { is_full, .. } => !is_full,
            Stage::Lost => true,
            Stage::Idle | Stage::Connecting => false,
        }
    }
}

/// Connects, and then waits for room.
struct Caller {
    link: Arc<Link>,
    addresses: VecDeque<SocketAddr>,
    connecting: Option<(TcpStream, SocketAddr)>,
    open: Option<(Arc<TcpStream>, SocketAddr)>,
    watched: Option<Interest>,
    /// Whether the server has closed its sending side.
    has_ended: bool,
    element: glib::WeakRef<TcpClientSink>,
    itself: OnceLock<AgentHandle<Caller>>,
}

impl Caller {
    fn watch(&mut self, cx: &Cx<'_>, interest: Interest) {
        if self.watched == Some(interest) {
            return;
        }
        self.unwatch(cx);
        // A descriptor at its end is always readable, so it is not watched.
        if interest == Interest::Read && self.has_ended {
            return;
        }
        let fd = match (&self.connecting, &self.open) {
            (Some((stream, _)), _) => stream.as_fd(),
            (None, Some((stream, _))) => stream.as_fd(),
            (None, None) => return,
        };
        match cx.register(fd, 0, interest) {
            Ok(()) => self.watched = Some(interest),
            Err(error) => self.lose(
                cx,
                gst::error_msg!(
                    gst::ResourceError::OpenWrite,
                    ["cannot watch the socket: {error}"]
                ),
            ),
        }
    }

    fn unwatch(&mut self, cx: &Cx<'_>) {
        if self.watched.take().is_none() {
            return;
        }
        if let Some((stream, _)) = &self.connecting {
            cx.deregister(stream.as_fd());
        } else if let Some((stream, _)) = &self.open {
            cx.deregister(stream.as_fd());
        }
    }

    /// Tries the addresses one after another.
    fn connect(&mut self, cx: &Cx<'_>, failed: Option<TcpError>) {
        match begin_with_first(&mut self.addresses, failed) {
            Ok(connecting) => {
                self.connecting = Some(connecting);
                self.watch(cx, Interest::Write);
            }
            Err(error) => self.lose(cx, error),
        }
    }

    /// Handles a connection that is established, or has failed.
    fn connected(&mut self, cx: &Cx<'_>) {
        self.unwatch(cx);
        let Some((stream, address)) = self.connecting.take() else {
            return;
        };
        match stream.take_error() {
            Ok(None) => {
                let stream = Arc::new(stream);
                if let Some(caller) = self.itself.get() {
                    *lock(&self.link.stage) = Stage::Open {
                        stream: stream.clone(),
                        is_full: false,
                        caller: caller.clone(),
                    };
                }
                self.link.connections.fetch_add(1, Relaxed);
                self.open = Some((stream, address));
                self.watch(cx, Interest::Read);
                self.resume();
            }
            Ok(Some(source)) | Err(source) => {
                self.connect(cx, Some(connect_error(address, source)))
            }
        }
    }

    /// Handles a report of the pushing thread: it has more data than the socket accepts, or it has found that the connection is
    /// broken.
    fn is_wanted(&mut self, cx: &Cx<'_>, error: Option<std::io::Error>) {
        match error {
            None => self.watch(cx, Interest::Write),
            Some(error) => {
                let error = TcpError::Write(self.server(), error);
                self.lose(cx, error.into());
            }
        }
    }

    /// Discards the server's data. If unread data were left, closing the connection would send a reset, and the server would lose
    /// data that it has not read yet.
    fn listen(&mut self, cx: &Cx<'_>) {
        let Some((stream, _)) = &self.open else {
            return;
        };
        match (&**stream).read(&mut [0; 512]) {
            // The server has closed its sending side, but may still receive, as nc does. Writing shows whether it does.
            Ok(0) => {
                self.has_ended = true;
                self.unwatch(cx);
            }
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                let error = TcpError::Write(self.server(), error);
                self.lose(cx, error.into());
            }
        }
    }

    fn has_room(&mut self, cx: &Cx<'_>) {
        if let Stage::Open { is_full, .. } = &mut *lock(&self.link.stage) {
            *is_full = false;
        }
        self.watch(cx, Interest::Read);
        self.resume();
    }

    fn lose(&mut self, cx: &Cx<'_>, error: gst::ErrorMessage) {
        self.unwatch(cx);
        (self.connecting, self.open) = (None, None);
        *lock(&self.link.stage) = Stage::Lost;
        if let Some(element) = self.element.upgrade() {
            element.imp().post_error_message(error);
        }
        self.resume();
    }

    fn resume(&self) {
        if let Some(element) = self.element.upgrade() {
            element.imp().sink().resume();
        }
    }

    fn server(&self) -> String {
        let address = self.open.as_ref().map(|(_, address)| address.to_string());
        address.unwrap_or_default()
    }
}

impl Agent for Caller {
    fn label(&self) -> String {
        let element = self.element.upgrade();
        element.map_or_else(String::new, |element| {
            crate::kit::path_of(element.upcast_ref())
        })
    }

    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        match (ready, self.watched) {
            (Ready::Io(_), Some(_)) if self.connecting.is_some() => self.connected(cx),
            (Ready::Io(_), Some(Interest::Write)) => self.has_room(cx),
            (Ready::Io(_), Some(Interest::Read)) => self.listen(cx),
            _ => {}
        }
    }
}

#[derive(Debug, Clone)]
struct Settings {
    host: String,
    port: i32,
}

#[derive(Properties)]
#[properties(wrapper_type = TcpClientSink)]
pub struct Imp {
    #[property(name = "host", nick = "Host", blurb = "Host name or address to connect to", type = String, get = |s: &Self| s.settings().host.clone(), set = |s: &Self, v: Option<String>| s.settings().host = v.unwrap_or_else(|| HOST_DEFAULT.into()), default = HOST_DEFAULT)]
    #[property(name = "port", nick = "Port", blurb = "The TCP port to connect to", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.settings().port = v, minimum = 0, maximum = 65_535, default = PORT_DEFAULT)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    link: Arc<Link>,
    sink: OnceLock<Sink<Writer>>,
    /// The agent that connects, and its place, which keeps the context running.
    caller: Mutex<Option<(AgentHandle<Caller>, Place)>>,
}

impl Imp {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, dropped) = self.sink().counts();
        gst::Structure::builder("application/x-ts-tcpclientsink-stats")
            .field("rendered", rendered)
            .field("dropped", dropped)
            .field("lost", self.link.lost.load(Relaxed))
            .field("connections", self.link.connections.load(Relaxed))
            .field("bytes-served", self.link.bytes.load(Relaxed))
            .build()
    }
}

impl SinkElement for Imp {
    type Renderer = Writer;

    fn sink(&self) -> &Sink<Writer> {
        self.sink.get_or_init(|| {
            let writer = Writer {
                link: self.link.clone(),
                begun: None,
            };
            Sink::new(self.obj().upcast_ref(), writer, lock(&self.sync).clone())
        })
    }

    /// Connects, on the context's thread.
    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        let obj = self.obj();
        let settings = self.settings().clone();
        let port = u16::try_from(settings.port).unwrap_or(0);
        let caller = Caller {
            link: self.link.clone(),
            addresses: resolve(&settings.host, port)?,
            connecting: None,
            open: None,
            watched: None,
            has_ended: false,
            element: obj.downgrade(),
            itself: OnceLock::new(),
        };
        let place = lock(&self.context).place(obj.upcast_ref())?;
        *lock(&self.link.stage) = Stage::Connecting;
        let handle = place
            .shard
            .call(move |local| local.add_agent(caller))
            .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
        let itself = handle.clone();
        handle.command(|caller: &mut Caller, cx| {
            let _ = caller.itself.set(itself);
            caller.connect(cx, None);
        });
        *lock(&self.caller) = Some((handle, place));
        Ok(())
    }

    /// Closes the connection. The kernel still delivers its data.
    fn deactivate(&self) {
        let caller = lock(&self.caller).take();
        if let Some((caller, _)) = &caller {
            caller.remove();
        }
        *lock(&self.link.stage) = Stage::Idle;
        let begun = self.sink().with_renderer(|writer| writer.begun.take());
        // Dropped outside of the sink's lock, because the owner of the buffer's memory may call the element.
        drop(begun);
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareTcpClientSink";
    type Type = TcpClientSink;
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
            link: Arc::default(),
            sink: OnceLock::new(),
            caller: Mutex::default(),
        }
    }
}

impl ObjectImpl for Imp {
    crate::kit::properties_with_groups!(context, sync, stats);

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
        "Thread-sharing TCP client sink",
        "Sink/Network",
        "Sends data to a TCP server on the thread of a shared context";
        "sink": Sink Always gst::Caps::new_any()
    );

    crate::sink_life!();
}

const HOST_DEFAULT: &str = "localhost";
