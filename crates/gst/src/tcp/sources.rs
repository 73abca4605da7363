//! Properties, pads and states of `ts-tcpclientsrc` and `ts-tcpserversrc`.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use gst::glib;
use gst::prelude::*;

use super::TcpError;
use crate::kit::PropertyGroup;

/// All addresses of a host.
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

/// The first address of a host to listen on; for a name with both families, the IPv4 address, which the stock elements
/// call first.
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

/// The end of the connection that an element is, with the properties that only this end has.
pub(super) trait Role: PropertyGroup + Default {
    /// Whether it waits for callers, instead of calling.
    const LISTENS: bool;

    /// Whether it takes the next caller after one has left.
    fn keeps_listening(&self) -> bool {
        false
    }
}

/// Waits for callers, with the property `keep-listening`, as `srtsrc` has it.
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
                .blurb("When the client leaves, wait for the next one; false: the stream ends with the client")
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

/// Calls.
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

/// A source that reads a TCP stream: module, class name, its end of the connection, host, texts.
macro_rules! tcp_source {
    (
        $module:ident, $class:literal, $role:ty, $host:literal, $host_blurb:literal, $port_min:literal,
        $long:literal, $description:literal
    ) => {
        mod $module {
            use std::net::TcpListener;
            use std::sync::{Arc, Mutex, MutexGuard};

            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use super::{BLOCK_BYTES_DEFAULT, PORT_DEFAULT, Role};
            use crate::kit::context::ContextSettings;
            use crate::kit::source::{self, Driver, SourceElement};
            use crate::kit::stats::StatsProperty;
            use crate::kit::lock;
            use crate::tcp::reader::{Counts, Origin, Settings, TcpReader};

            glib::wrapper! {
                pub struct Element(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
            }

            #[derive(Debug, Clone)]
            pub(super) struct Values {
                pub(super) host: String,
                pub(super) port: i32,
                caps: Option<gst::Caps>,
                block_bytes: u32,
                timeout_s: u32,
                do_timestamp: bool,
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = "host", nick = "Host", blurb = $host_blurb, type = String, get = |s: &Self| s.settings().host.clone(), set = |s: &Self, v: Option<String>| s.settings().host = v.unwrap_or_else(|| $host.into()), default = $host)]
                #[property(name = "port", nick = "Port", blurb = "The TCP port", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.settings().port = v, minimum = $port_min, maximum = 65_535, default = PORT_DEFAULT)]
                #[property(name = "current-port", nick = "Current port", blurb = "Port in use, 0: none", type = i32, get = Self::current_port)]
                #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = Self::set_caps)]
                #[property(name = "blocksize", nick = "Block size", blurb = "Largest read, bytes", type = u32, get = |s: &Self| s.settings().block_bytes, set = |s: &Self, v| s.settings().block_bytes = v, minimum = 1, maximum = 1 << 20, default = BLOCK_BYTES_DEFAULT)]
                #[property(name = "timeout", nick = "Timeout", blurb = "Seconds without a connection or data after which the element fails, 0: never", type = u32, get = |s: &Self| s.settings().timeout_s, set = |s: &Self, v| s.settings().timeout_s = v, default = 0)]
                #[property(name = "do-timestamp", nick = "Do timestamp", blurb = "Set buffer times to the running time of their arrival", type = bool, get = |s: &Self| s.settings().do_timestamp, set = |s: &Self, v| s.settings().do_timestamp = v, default = false)]
                settings: Mutex<Values>,
                context: Mutex<ContextSettings>,
                stats: Mutex<StatsProperty>,
                role: Mutex<$role>,
                counts: Arc<Counts>,
                listener: Mutex<Option<TcpListener>>,
                src_pad: gst::Pad,
                driver: Driver<TcpReader>,
            }

            impl Imp {
                fn settings(&self) -> MutexGuard<'_, Values> {
                    lock(&self.settings)
                }

                fn current_port(&self) -> i32 {
                    let listener = lock(&self.listener);
                    let address = listener.as_ref().and_then(|l| l.local_addr().ok());
                    address.map_or(0, |address| i32::from(address.port()))
                }

                fn set_caps(&self, caps: Option<gst::Caps>) {
                    self.settings().caps = caps.clone();
                    self.driver.announce(move |reader, _| reader.set_caps(caps));
                }

            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;

                fn with_class(klass: &Self::Class) -> Self {
                    let src_pad = source::source_pad::<Imp>(&crate::kit::template(klass, "src"));
                    Imp {
                        settings: Mutex::new(Values {
                            host: $host.into(),
                            port: PORT_DEFAULT,
                            caps: None,
                            block_bytes: BLOCK_BYTES_DEFAULT,
                            timeout_s: 0,
                            do_timestamp: false,
                        }),
                        context: Mutex::default(),
                        stats: Mutex::default(),
                        role: Mutex::default(),
                        counts: Arc::default(),
                        listener: Mutex::default(),
                        src_pad,
                        driver: Driver::default(),
                    }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(context, stats, role);

                fn constructed(&self) {
                    self.parent_constructed();
                    let obj = self.obj();
                    crate::kit::add_pads(obj.upcast_ref(), &[&self.src_pad]);
                    let counts = self.counts.clone();
                    *lock(&self.stats) = StatsProperty::new(move || {
                        gst::Structure::builder("application/x-ts-tcp-stats")
                            .field("bytes-received", counts.bytes.get())
                            .field("buffers", counts.buffers.get())
                            .field("connections", counts.connections.get())
                            .build()
                    });
                }
            }

            impl GstObjectImpl for Imp {}

            impl ElementImpl for Imp {
                crate::kit::element_class!($long, "Source/Network", $description; "src": Src Always gst::Caps::new_any());
                crate::source_life!();
            }

            impl SourceElement for Imp {
                type Producer = TcpReader;

                fn driver(&self) -> &Driver<TcpReader> {
                    &self.driver
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.src_pad
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    let latency = (true, self.driver.wait(&self.context), None);
                    let caps = || self.settings().caps.clone();
                    source::answer_query(pad, &*self.obj(), query, latency, caps)
                }

                /// Elements that call find those that listen: all of a pipeline are READY before any is PAUSED.
                fn open(&self) -> Result<(), gst::ErrorMessage> {
                    if <$role as Role>::LISTENS {
                        let settings = self.settings().clone();
                        let port = u16::try_from(settings.port).unwrap_or(0);
                        *lock(&self.listener) = Some(super::listen(&settings.host, port)?);
                        self.obj().notify("current-port");
                    }
                    Ok(())
                }

                fn close(&self) {
                    *lock(&self.listener) = None;
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    let place = lock(&self.context).place(element)?;
                    let properties = self.settings().clone();
                    let origin = match lock(&self.listener).as_ref().map(TcpListener::try_clone) {
                        Some(listener) => Origin::From(listener.map_err(|error| {
                            gst::error_msg!(gst::ResourceError::OpenRead, ["cannot listen: {error}"])
                        })?),
                        None => {
                            let port = u16::try_from(properties.port).unwrap_or(0);
                            Origin::To(super::resolve(&properties.host, port)?)
                        }
                    };
                    let settings = Settings {
                        caps: properties.caps,
                        block_bytes: properties.block_bytes,
                        timeout_s: properties.timeout_s,
                        do_timestamp: properties.do_timestamp,
                        keep_listening: lock(&self.role).keeps_listening(),
                    };
                    let counts = self.counts.clone();
                    let reader = TcpReader::new(element, &place.shard, origin, settings, counts);
                    self.driver.add(element, &self.src_pad, place, reader)
                }

                fn deactivate(&self) {
                    self.driver.remove();
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
    0,
    "Thread-sharing TCP client source",
    "Reads from a TCP server on the thread of a shared context"
);
tcp_source!(
    server,
    "ThreadbareTcpServerSrc",
    super::Server,
    "localhost",
    "Host name or address to listen on",
    0,
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
