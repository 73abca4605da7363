//! Properties, pads and states of `ts-tcpclientsrc` and `ts-tcpserversrc`.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard};

use gst::glib;
use gst::prelude::*;

use super::TcpError;
use super::reader::{Counts, Origin, Settings, TcpReader};
use crate::kit::context::ContextSettings;
use crate::kit::source::{self, Driver};
use crate::kit::stats::StatsProperty;
use crate::kit::{PropertyGroup, lock};

/// Returns all addresses of a host.
pub(super) fn resolve(host: &str, port: u16) -> Result<VecDeque<SocketAddr>, TcpError> {
    let addresses = (host, port).to_socket_addrs();
    addresses
        .map(Iterator::collect)
        .map_err(|source| TcpError::Resolve {
            host: host.into(),
            port,
            source,
        })
}

/// Listens on the first address of a host that works. If a name has addresses of both families, IPv4 comes first, because the
/// stock elements connect to IPv4 first.
pub(super) fn listen(host: &str, port: u16) -> Result<TcpListener, TcpError> {
    let mut failed = None;
    let mut addresses = resolve(host, port)?;
    addresses.make_contiguous().sort_by_key(SocketAddr::is_ipv6);
    for address in addresses {
        match TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        }) {
            Ok(listener) => return Ok(listener),
            Err(source) => failed = Some(source),
        }
    }
    let address = format!("{host}:{port}");
    Err(match failed {
        Some(source) => TcpError::Listen { address, source },
        None => TcpError::Resolve {
            host: host.into(),
            port,
            source: std::io::ErrorKind::NotFound.into(),
        },
    })
}

pub(super) const PORT_DEFAULT: i32 = 4953;
const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// The element's end of the connection, with the properties that only this end has.
pub(super) trait Role: PropertyGroup + Default {
    /// Whether the element waits for clients instead of connecting.
    const LISTENS: bool;

    /// Whether the element accepts the next client after one has left.
    fn keeps_listening(&self) -> bool {
        false
    }
}

/// The listening end, with the property `keep-listening`, which is the same as in `srtsrc`.
#[derive(Debug, Default)]
pub(super) struct Server(bool);

impl Role for Server {
    const LISTENS: bool = true;

    fn keeps_listening(&self) -> bool {
        self.0
    }
}

impl PropertyGroup for Server {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoolean::builder("keep-listening")
                .nick("Keep listening")
                .blurb("When the client disconnects, wait for the next one; false: the stream ends")
                .mutable_ready()
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let is_ours = name == "keep-listening";
        if is_ours {
            self.0 = value.get().unwrap_or(false);
        }
        is_ours
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        (name == "keep-listening").then(|| self.0.to_value())
    }
}

/// The connecting end.
#[derive(Debug, Default)]
pub(super) struct Client;

impl Role for Client {
    const LISTENS: bool = false;
}

impl PropertyGroup for Client {
    fn specs() -> Vec<glib::ParamSpec> {
        Vec::new()
    }

    fn set(&mut self, _name: &str, _value: &glib::Value) -> bool {
        false
    }

    fn get(&self, _name: &str) -> Option<glib::Value> {
        None
    }
}

/// Values of the properties.
#[derive(Debug, Clone)]
struct Values {
    host: String,
    port: i32,
    caps: Option<gst::Caps>,
    block_bytes: u32,
    timeout_s: u32,
    do_timestamp: bool,
}

impl Values {
    fn new(host: &str) -> Self {
        Values {
            host: host.into(),
            port: PORT_DEFAULT,
            caps: None,
            block_bytes: BLOCK_BYTES_DEFAULT,
            timeout_s: 0,
            do_timestamp: false,
        }
    }

    fn port(&self) -> u16 {
        u16::try_from(self.port).unwrap_or(0)
    }
}

/// Common part of both elements.
struct TcpSource<R> {
    values: Mutex<Values>,
    role: Mutex<R>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    counts: Arc<Counts>,
    listener: Mutex<Option<TcpListener>>,
    src_pad: gst::Pad,
    driver: Driver<TcpReader>,
}

impl<R: Role> TcpSource<R> {
    fn new(host: &str, src_pad: gst::Pad) -> Self {
        let counts = Arc::<Counts>::default();
        let read = counts.clone();
        let stats = StatsProperty::new(move || {
            gst::Structure::builder("application/x-ts-tcp-stats")
                .field("bytes-received", read.bytes.get())
                .field("buffers", read.buffers.get())
                .field("connections", read.connections.get())
                .build()
        });
        TcpSource {
            values: Mutex::new(Values::new(host)),
            role: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::new(stats),
            counts,
            listener: Mutex::default(),
            src_pad,
            driver: Driver::default(),
        }
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        lock(&self.values)
    }

    fn current_port(&self) -> i32 {
        let listener = lock(&self.listener);
        let address = listener.as_ref().and_then(|l| l.local_addr().ok());
        address.map_or(0, |address| i32::from(address.port()))
    }

    fn set_caps(&self, caps: Option<gst::Caps>) {
        self.values().caps = caps.clone();
        self.driver.announce(move |reader, _| reader.set_caps(caps));
    }

    fn answer_query(
        &self,
        element: &impl IsA<gst::Object>,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        let latency = (true, self.driver.wait(&self.context), None);
        let caps = || self.values().caps.clone();
        source::answer_query(pad, element, query, latency, caps)
    }

    /// Opens the listener in READY. All elements of a pipeline are in READY before any of them is in PAUSED, so elements that
    /// connect find the listeners.
    fn open(&self, element: &impl IsA<glib::Object>) -> Result<(), gst::ErrorMessage> {
        if R::LISTENS {
            let values = self.values().clone();
            *lock(&self.listener) = Some(listen(&values.host, values.port())?);
            element.notify("current-port");
        }
        Ok(())
    }

    fn close(&self) {
        *lock(&self.listener) = None;
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let values = self.values().clone();
        let origin = match lock(&self.listener).as_ref().map(TcpListener::try_clone) {
            Some(listener) => Origin::From(listener.map_err(|error| {
                gst::error_msg!(gst::ResourceError::OpenRead, ["cannot listen: {error}"])
            })?),
            None => Origin::To(resolve(&values.host, values.port())?),
        };
        let settings = Settings {
            caps: values.caps,
            block_bytes: values.block_bytes,
            timeout_s: values.timeout_s,
            do_timestamp: values.do_timestamp,
            keep_listening: lock(&self.role).keeps_listening(),
        };
        let counts = self.counts.clone();
        let reader = TcpReader::new(element, &place.shard, origin, settings, counts);
        self.driver.add(element, &self.src_pad, place, reader)
    }
}

/// The class of an element around a [`TcpSource`]: module, class name, its end of the connection, host, texts.
macro_rules! tcp_source {
    (
        $module:ident, $class:literal, $role:ty, $host:literal, $host_blurb:literal, $long:literal,
        $description:literal
    ) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use super::{BLOCK_BYTES_DEFAULT, PORT_DEFAULT, TcpSource};
            use crate::kit::source::{Driver, SourceElement, source_pad};
            use crate::tcp::reader::TcpReader;

            crate::element! {
                Element(Imp) $class, [tcp.src_pad];
                object { crate::kit::properties_with_groups!(tcp.context, tcp.stats, tcp.role); }
                element { crate::source_life!(); }
                $long, "Source/Network", $description;
                "src": Src Always gst::Caps::new_any()
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = "host", nick = "Host", blurb = $host_blurb, type = String, get = |s: &Self| s.tcp.values().host.clone(), set = |s: &Self, v: Option<String>| s.tcp.values().host = v.unwrap_or_else(|| $host.into()), default = $host)]
                #[property(name = "port", nick = "Port", blurb = "The TCP port", type = i32, get = |s: &Self| s.tcp.values().port, set = |s: &Self, v| s.tcp.values().port = v, minimum = 0, maximum = 65_535, default = PORT_DEFAULT)]
                #[property(name = "current-port", nick = "Current port", blurb = "Port in use, 0: none", type = i32, get = |s: &Self| s.tcp.current_port())]
                #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad", type = Option<gst::Caps>, get = |s: &Self| s.tcp.values().caps.clone(), set = |s: &Self, v| s.tcp.set_caps(v))]
                #[property(name = "blocksize", nick = "Block size", blurb = "Maximum number of bytes that are read at once", type = u32, get = |s: &Self| s.tcp.values().block_bytes, set = |s: &Self, v| s.tcp.values().block_bytes = v, minimum = 1, maximum = 1 << 20, default = BLOCK_BYTES_DEFAULT)]
                #[property(name = "timeout", nick = "Timeout", blurb = "Seconds without a connection or data after which the element fails, 0: never", type = u32, get = |s: &Self| s.tcp.values().timeout_s, set = |s: &Self, v| s.tcp.values().timeout_s = v, default = 0)]
                #[property(name = "do-timestamp", nick = "Do timestamp", blurb = "Set the timestamp of each buffer to the running time of its arrival", type = bool, get = |s: &Self| s.tcp.values().do_timestamp, set = |s: &Self, v| s.tcp.values().do_timestamp = v, default = false)]
                tcp: TcpSource<$role>,
            }

            impl Imp {
                fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
                    let src_pad = source_pad::<Imp>(&template("src"));
                    Imp {
                        tcp: TcpSource::new($host, src_pad),
                    }
                }
            }

            impl SourceElement for Imp {
                type Producer = TcpReader;

                fn driver(&self) -> &Driver<TcpReader> {
                    &self.tcp.driver
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.tcp.src_pad
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    self.tcp.answer_query(&*self.obj(), pad, query)
                }

                fn open(&self) -> Result<(), gst::ErrorMessage> {
                    self.tcp.open(&*self.obj())
                }

                fn close(&self) {
                    self.tcp.close();
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    self.tcp.activate(element)
                }
            }
        }
    };
}

tcp_source!(
    client,
    "ThreadbareTcpClientSrc",
    super::Client,
    "127.0.0.1",
    "Host name or address to connect to",
    "Thread-sharing TCP client source",
    "Reads from a TCP server on the thread of a shared context"
);
tcp_source!(
    server,
    "ThreadbareTcpServerSrc",
    super::Server,
    "localhost",
    "Host name or address to listen on",
    "Thread-sharing TCP server source",
    "Reads from a TCP client, one at a time, on the thread of a shared context"
);

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    for (name, kind) in [
        ("ts-tcpclientsrc", client::Element::static_type()),
        ("ts-tcpserversrc", server::Element::static_type()),
    ] {
        gst::Element::register(plugin, name, gst::Rank::NONE, kind)?;
    }
    Ok(())
}
