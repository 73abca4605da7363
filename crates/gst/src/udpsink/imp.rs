//! Properties, pad and states of `ts-udpsink`.

use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use gio::prelude::*;
use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::clients::{self, Client};
use super::sender::Sender;
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::sink::{self, Sink, SinkElement, SyncProperties};
use crate::kit::socket::{self, GivenSocket, Membership, MulticastSettings, SocketError, Udp};
use crate::kit::stats::StatsProperty;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "ts-udpsink",
        gst::DebugColorFlags::empty(),
        Some("Thread-sharing UDP sink"),
    )
});

/// Values of the properties, besides the list of clients.
#[derive(Debug, Clone)]
struct Settings {
    bind_address: Option<String>,
    bind_port: i32,
    bind_address_v6: Option<String>,
    bind_port_v6: i32,
    reuse: bool,
    socket: Option<GivenSocket>,
    socket_v6: Option<GivenSocket>,
    close_socket: bool,
    ttl: i32,
    ttl_mc: i32,
    qos_dscp: i32,
    buffer_size: i32,
    force_ipv4: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            bind_address: None,
            bind_port: 0,
            bind_address_v6: None,
            bind_port_v6: 0,
            reuse: true,
            socket: None,
            socket_v6: None,
            close_socket: true,
            ttl: TTL_DEFAULT,
            ttl_mc: TTL_MC_DEFAULT,
            qos_dscp: -1,
            buffer_size: 0,
            force_ipv4: false,
        }
    }
}

const TTL_DEFAULT: i32 = 64;
const TTL_MC_DEFAULT: i32 = 1;

#[derive(Properties)]
#[properties(wrapper_type = super::UdpSink)]
pub struct UdpSink {
    #[property(name = "clients", nick = "Clients", blurb = "Destinations, host:port separated by commas", type = String, get = Self::clients, set = Self::set_clients, default = "127.0.0.1:5004")]
    #[property(name = "host", nick = "Host", blurb = "Host of the first destination; setting it replaces that one", type = String, get = |s: &Self| s.first_client().0, set = |s: &Self, v: Option<String>| s.set_first_client(v, None), default = "127.0.0.1")]
    #[property(name = "port", nick = "Port", blurb = "Port of the first destination; setting it replaces that one", type = i32, get = |s: &Self| s.first_client().1.into(), set = |s: &Self, v: i32| s.set_first_client(None, u16::try_from(v).ok()), minimum = 0, maximum = 65_535, default = 5004)]
    #[property(name = "send-duplicates", nick = "Send duplicates", blurb = "Send a packet to a destination as many times as it was added", type = bool, get = |s: &Self| s.sender(|w| w.send_duplicates), set = |s: &Self, v| s.sender(|w| w.send_duplicates = v), default = true)]
    #[property(name = "bytes-to-serve", nick = "Bytes to serve", blurb = "Bytes taken in", type = u64, get = |s: &Self| s.sender(|w| w.bytes_to_serve))]
    #[property(name = "bytes-served", nick = "Bytes served", blurb = "Bytes sent to all destinations", type = u64, get = |s: &Self| s.sender(|w| w.bytes_served))]
    #[property(name = "bind-address", nick = "Bind address", blurb = "IPv4 address to send from", type = Option<String>, get = |s: &Self| s.settings().bind_address.clone(), set = |s: &Self, v| s.settings().bind_address = v)]
    #[property(name = "bind-port", nick = "Bind port", blurb = "IPv4 port to send from, 0: any free one", type = i32, get = |s: &Self| s.settings().bind_port, set = |s: &Self, v| s.settings().bind_port = v, minimum = 0, maximum = 65_535, default = 0)]
    #[property(name = "bind-address-v6", nick = "Bind address IPv6", blurb = "IPv6 address to send from", type = Option<String>, get = |s: &Self| s.settings().bind_address_v6.clone(), set = |s: &Self, v| s.settings().bind_address_v6 = v)]
    #[property(name = "bind-port-v6", nick = "Bind port IPv6", blurb = "IPv6 port to send from, 0: any free one", type = i32, get = |s: &Self| s.settings().bind_port_v6, set = |s: &Self, v| s.settings().bind_port_v6 = v, minimum = 0, maximum = 65_535, default = 0)]
    #[property(name = "reuse", nick = "Reuse", blurb = "Allow others to use the same port", type = bool, get = |s: &Self| s.settings().reuse, set = |s: &Self, v| s.settings().reuse = v, default = true)]
    #[property(name = "socket", nick = "Socket", blurb = "IPv4 socket to use instead of opening one", type = Option<gio::Socket>, get = |s: &Self| s.settings().socket.as_ref().map(|given| given.get().clone()), set = |s: &Self, v: Option<gio::Socket>| s.settings().socket = v.map(GivenSocket::new))]
    #[property(name = "socket-v6", nick = "Socket IPv6", blurb = "IPv6 socket to use instead of opening one", type = Option<gio::Socket>, get = |s: &Self| s.settings().socket_v6.as_ref().map(|given| given.get().clone()), set = |s: &Self, v: Option<gio::Socket>| s.settings().socket_v6 = v.map(GivenSocket::new))]
    #[property(name = "used-socket", nick = "Used socket", blurb = "IPv4 socket in use, NULL for none", type = Option<gio::Socket>, get = |s: &Self| s.sender(|w| w.v4.as_ref().and_then(Udp::shown)))]
    #[property(name = "used-socket-v6", nick = "Used socket IPv6", blurb = "IPv6 socket in use, NULL for none", type = Option<gio::Socket>, get = |s: &Self| s.sender(|w| w.v6.as_ref().and_then(Udp::shown)))]
    #[property(name = "close-socket", nick = "Close socket", blurb = "Close the sockets given by property when the element stops", type = bool, get = |s: &Self| s.settings().close_socket, set = |s: &Self, v| s.settings().close_socket = v, default = true)]
    #[property(name = "ttl", nick = "Unicast TTL", blurb = "Time to live of unicast packets", type = i32, get = |s: &Self| s.settings().ttl, set = |s: &Self, v| { s.settings().ttl = v; s.apply_options(); }, minimum = 0, maximum = 255, default = TTL_DEFAULT)]
    #[property(name = "ttl-mc", nick = "Multicast TTL", blurb = "Time to live of multicast packets", type = i32, get = |s: &Self| s.settings().ttl_mc, set = |s: &Self, v| { s.settings().ttl_mc = v; s.apply_options(); }, minimum = 0, maximum = 255, default = TTL_MC_DEFAULT)]
    #[property(name = "qos-dscp", nick = "QoS DSCP", blurb = "Differentiated Services code point of sent packets, -1: the system's default", type = i32, get = |s: &Self| s.settings().qos_dscp, set = |s: &Self, v| { s.settings().qos_dscp = v; s.apply_options(); }, minimum = -1, maximum = 63, default = -1)]
    #[property(name = "buffer-size", nick = "Buffer size", blurb = "Size of the kernel's send buffer, bytes; 0: the system's default", type = i32, get = |s: &Self| s.settings().buffer_size, set = |s: &Self, v| s.settings().buffer_size = v, minimum = 0, default = 0)]
    #[property(name = "force-ipv4", nick = "Force IPv4", blurb = "Open no IPv6 socket", type = bool, get = |s: &Self| s.settings().force_ipv4, set = |s: &Self, v| s.settings().force_ipv4 = v, default = false)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    multicast: Mutex<MulticastSettings>,
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Sender>>,
    memberships: Mutex<Vec<(SocketAddr, Membership)>>,
    /// Destinations from properties with unresolved hosts. They are tried again when the element starts, which fails if
    /// they still do not resolve.
    unresolved: Mutex<Vec<(String, u16)>>,
}

impl UdpSink {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn sender<T>(&self, f: impl FnOnce(&mut Sender) -> T) -> T {
        self.sink().with_renderer(f)
    }

    fn clients(&self) -> String {
        self.sender(|sender| {
            let list = sender.clients.iter().flat_map(|client| {
                (0..client.uses).map(move |_| (client.host.as_str(), client.address.port()))
            });
            clients::format(list)
        })
    }

    fn set_clients(&self, list: Option<String>) {
        match clients::parse(list.as_deref().unwrap_or_default()) {
            Ok(parsed) => {
                self.clear();
                for (host, port) in parsed {
                    let _ = self.add_by_property(&host, port);
                }
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Refused values of a property or action: reported on the bus.
    fn refuse(&self, error: &dyn std::error::Error) {
        gst::element_imp_warning!(self, gst::ResourceError::Settings, ["{error}"]);
        gst::warning!(CAT, imp = self, "{error}");
    }

    fn first_client(&self) -> (String, u16) {
        if let Some(unresolved) = lock(&self.unresolved).first() {
            return unresolved.clone();
        }
        self.sender(|sender| match sender.clients.first() {
            Some(client) => (client.host.clone(), client.address.port()),
            None => ("127.0.0.1".into(), 5004),
        })
    }

    fn set_first_client(&self, host: Option<String>, port: Option<u16>) {
        let (old_host, old_port) = self.first_client();
        self.remove(&old_host, old_port);
        let added = self.add_by_property(
            host.as_deref().unwrap_or(&old_host),
            port.unwrap_or(old_port),
        );
        if added {
            self.sender(|sender| sender.clients.rotate_right(1));
        }
    }

    /// A property cannot fail. A host that does not resolve is kept, so that no other takes its place.
    fn add_by_property(&self, host: &str, port: u16) -> bool {
        let added = self.add(host, port);
        if !added {
            lock(&self.unresolved).push((host.to_owned(), port));
        }
        added
    }

    /// Whether the host resolves.
    fn add(&self, host: &str, port: u16) -> bool {
        let client = match Client::new(host, port, now_ns()) {
            Ok(client) => client,
            Err(error) => {
                self.refuse(&error);
                return false;
            }
        };
        let address = client.address;
        let is_new = self.sender(|sender| {
            match sender.clients.iter_mut().find(|known| known.is(host, port)) {
                Some(known) => {
                    known.uses += 1;
                    false
                }
                None => {
                    sender.clients.push(client);
                    true
                }
            }
        });
        if is_new
            && self.is_open()
            && let Err(error) = self.open_for(address)
        {
            self.refuse(&error);
        }
        self.obj()
            .emit_by_name::<()>("client-added", &[&host, &i32::from(port)]);
        true
    }

    fn remove(&self, host: &str, port: u16) {
        let is_it = |known: &(String, u16)| known.0 == host && known.1 == port;
        let mut unresolved = lock(&self.unresolved);
        if let Some(at) = unresolved.iter().position(is_it) {
            unresolved.remove(at);
            return;
        }
        drop(unresolved);
        let removed = self.sender(|sender| {
            let i = sender
                .clients
                .iter()
                .position(|client| client.is(host, port))?;
            sender.reset();
            sender.clients[i].uses -= 1;
            let address = sender.clients[i].address;
            if sender.clients[i].uses == 0 {
                sender.clients.remove(i);
                return Some(Some(address));
            }
            Some(None)
        });
        match removed {
            None => gst::warning!(CAT, imp = self, "no client {host}:{port} to remove"),
            Some(gone) => {
                if let Some(address) = gone {
                    self.leave(Some(address));
                }
                self.obj()
                    .emit_by_name::<()>("client-removed", &[&host, &i32::from(port)]);
            }
        }
    }

    fn clear(&self) {
        lock(&self.unresolved).clear();
        let gone = self.sender(|sender| {
            sender.reset();
            std::mem::take(&mut sender.clients)
        });
        self.leave(None);
        for client in gone {
            for _ in 0..client.uses {
                let port = i32::from(client.address.port());
                self.obj()
                    .emit_by_name::<()>("client-removed", &[&client.host, &port]);
            }
        }
    }

    fn client_stats(&self, host: &str, port: u16) -> Option<gst::Structure> {
        self.sender(|sender| {
            let client = sender.clients.iter().find(|client| client.is(host, port))?;
            Some(
                gst::Structure::builder("multiudpsink-stats")
                    .field("bytes-sent", client.bytes)
                    .field("packets-sent", client.packets)
                    .field("send-errors", client.errors)
                    .field("connect-time", client.connect_ns)
                    .field("disconnect-time", 0u64)
                    .build(),
            )
        })
    }

    fn is_open(&self) -> bool {
        self.obj().current_state() >= gst::State::Ready
    }

    fn open(&self) -> Result<(), SocketError> {
        let settings = self.settings().clone();
        let share = |given: &Option<GivenSocket>| given.as_ref().map(Udp::sharing).transpose();
        let (v4, v6) = (share(&settings.socket)?, share(&settings.socket_v6)?);
        // The hosts may resolve by now.
        let unresolved = lock(&self.unresolved).clone();
        for (host, port) in &unresolved {
            Client::new(host, *port, now_ns())?;
        }
        lock(&self.unresolved).clear();
        for (host, port) in &unresolved {
            let _ = self.add_by_property(host, *port);
        }
        self.sender(|sender| {
            (sender.v4, sender.v6) = (v4, v6);
        });
        let addresses: Vec<SocketAddr> =
            self.sender(|sender| sender.clients.iter().map(|client| client.address).collect());
        // An IPv4 socket always exists, so that used-socket has something to share.
        self.open_for(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        addresses
            .into_iter()
            .try_for_each(|address| self.open_for(address))
    }

    /// Ensures a socket of the address's family, and membership in its multicast group.
    fn open_for(&self, address: SocketAddr) -> Result<(), SocketError> {
        let settings = self.settings().clone();
        let known = self.sender(|sender| {
            if address.is_ipv4() {
                sender.v4.clone()
            } else {
                sender.v6.clone()
            }
        });
        let udp = match known {
            Some(udp) => udp,
            None if address.is_ipv6() && settings.force_ipv4 => return Ok(()),
            None => {
                let udp = open_socket(&settings, address.is_ipv6())?;
                self.sender(|sender| {
                    *(if address.is_ipv4() {
                        &mut sender.v4
                    } else {
                        &mut sender.v6
                    }) = Some(udp.clone());
                });
                udp
            }
        };
        let multicast = lock(&self.multicast).clone();
        set_options(&udp, &settings, &multicast)?;
        if address.ip().is_multicast() && multicast.auto {
            let membership = Membership::new(address.ip(), multicast.interface.as_deref(), None)?;
            membership.join(udp.socket())?;
            lock(&self.memberships).push((address, membership));
        }
        Ok(())
    }

    /// Leaves the group of one destination, or of all.
    fn leave(&self, address: Option<SocketAddr>) {
        let left: Vec<(SocketAddr, Membership)> = {
            let mut memberships = lock(&self.memberships);
            let all = std::mem::take(&mut *memberships);
            let (left, stay) = all
                .into_iter()
                .partition(|(known, _)| address.is_none_or(|a| a == *known));
            *memberships = stay;
            left
        };
        for (address, membership) in left {
            let udp = self.sender(|s| {
                if address.is_ipv4() {
                    s.v4.clone()
                } else {
                    s.v6.clone()
                }
            });
            if let Some(udp) = udp {
                membership.leave(udp.socket());
            }
        }
    }

    fn apply_options(&self) {
        let (settings, multicast) = (self.settings().clone(), lock(&self.multicast).clone());
        let sockets = self.sender(|sender| [sender.v4.clone(), sender.v6.clone()]);
        for udp in sockets.into_iter().flatten() {
            if let Err(error) = set_options(&udp, &settings, &multicast) {
                self.refuse(&error);
            }
        }
    }

    fn close(&self) {
        self.leave(None);
        let settings = self.settings().clone();
        let sockets = self.sender(|sender| {
            sender.reset();
            [
                (sender.v4.take(), settings.socket),
                (sender.v6.take(), settings.socket_v6),
            ]
        });
        for (used, given) in sockets {
            if let Some(udp) = used
                && (given.is_none() || settings.close_socket)
            {
                udp.close_shown();
            }
        }
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, dropped) = self.sink().counts();
        let (served, errors) = self.sender(|s| (s.bytes_served, s.errors));
        gst::Structure::builder("application/x-ts-udpsink-stats")
            .field("rendered", rendered)
            .field("dropped", dropped)
            .field("bytes-served", served)
            .field("send-errors", errors)
            .build()
    }
}

fn open_socket(settings: &Settings, is_v6: bool) -> Result<Udp, SocketError> {
    let (host, port) = if is_v6 {
        (
            settings.bind_address_v6.as_deref().unwrap_or("::"),
            settings.bind_port_v6,
        )
    } else {
        (
            settings.bind_address.as_deref().unwrap_or("0.0.0.0"),
            settings.bind_port,
        )
    };
    let address = socket::resolve(host, u16::try_from(port).unwrap_or(0))?;
    let udp = socket::bind(address, settings.reuse)?;
    socket::set_buffer_size(udp.socket(), libc::SO_SNDBUF, settings.buffer_size);
    Ok(udp)
}

fn set_options(
    udp: &Udp,
    settings: &Settings,
    multicast: &MulticastSettings,
) -> Result<(), SocketError> {
    let socket = udp.socket();
    socket.set_ttl(settings.ttl.unsigned_abs());
    socket.set_multicast_ttl(settings.ttl_mc.unsigned_abs());
    socket.set_multicast_loopback(multicast.loops);
    if let Some(name) = multicast
        .interface
        .as_deref()
        .and_then(|list| list.split(',').next())
    {
        socket::set_multicast_interface(udp, name.trim())?;
    }
    socket::set_dscp(socket, settings.qos_dscp)
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

impl SinkElement for UdpSink {
    type Renderer = Sender;

    fn sink(&self) -> &Sink<Sender> {
        self.sink.get_or_init(|| {
            let mut sender = Sender::new();
            sender
                .clients
                .extend(Client::new("127.0.0.1", 5004, 0).ok());
            Sink::new(self.obj().upcast_ref(), sender, lock(&self.sync).clone())
        })
    }
}

#[glib::object_subclass]
impl ObjectSubclass for UdpSink {
    const NAME: &'static str = "ThreadbareUdpSink";
    type Type = super::UdpSink;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = sink::sink_pad::<UdpSink>(&crate::kit::template(klass, "sink"));
        UdpSink {
            settings: Mutex::default(),
            context: Mutex::default(),
            multicast: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            sink_pad,
            sink: OnceLock::new(),
            memberships: Mutex::default(),
            unresolved: Mutex::default(),
        }
    }
}

impl ObjectImpl for UdpSink {
    crate::kit::properties_with_groups!(context, multicast, sync, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(signals);
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.sink_pad);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

fn signals() -> Vec<Signal> {
    let host_port = || [String::static_type(), i32::static_type()];
    let action = |name: &'static str, f: fn(&UdpSink, &str, u16)| {
        Signal::builder(name)
            .param_types([String::static_type(), i32::static_type()])
            .action()
            .class_handler(move |args| {
                let obj = args[0].get::<super::UdpSink>().ok()?;
                let host = args[1].get::<String>().ok()?;
                let port = args[2].get::<i32>().ok()?;
                match u16::try_from(port) {
                    Ok(port) if port > 0 => f(obj.imp(), &host, port),
                    _ => gst::warning!(CAT, obj = obj, "{host}:{port}: a port is 1 to 65535"),
                }
                None
            })
            .build()
    };
    vec![
        action("add", |imp, host, port| {
            imp.add(host, port);
        }),
        action("remove", |imp, host, port| imp.remove(host, port)),
        Signal::builder("clear")
            .action()
            .class_handler(|args| {
                args[0].get::<super::UdpSink>().ok()?.imp().clear();
                None
            })
            .build(),
        Signal::builder("get-stats")
            .param_types(host_port())
            .return_type::<Option<gst::Structure>>()
            .action()
            .class_handler(|args| {
                let obj = args[0].get::<super::UdpSink>().ok()?;
                let host = args[1].get::<String>().ok()?;
                let port = u16::try_from(args[2].get::<i32>().ok()?).ok()?;
                Some(obj.imp().client_stats(&host, port).to_value())
            })
            .build(),
        Signal::builder("client-added")
            .param_types(host_port())
            .build(),
        Signal::builder("client-removed")
            .param_types(host_port())
            .build(),
    ]
}

impl GstObjectImpl for UdpSink {}

impl ElementImpl for UdpSink {
    crate::kit::element_class!(
        "Thread-sharing UDP sink",
        "Sink/Network",
        "Sends UDP packets without blocking the shared thread";
        "sink": Sink Always gst::Caps::new_any()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::NullToReady
            && let Err(error) = self.open()
        {
            self.close();
            self.post_error_message(error.into());
            return Err(gst::StateChangeError);
        }
        crate::kit::sink::change_state(self.sink(), self, transition, || {
            self.parent_change_state(transition)
        })
        .inspect(|_| {
            if transition == gst::StateChange::ReadyToNull {
                self.close();
            }
        })
    }

    crate::kit::sink_events_and_clock!();
}

impl URIHandlerImpl for UdpSink {
    const URI_TYPE: gst::URIType = gst::URIType::Sink;

    fn protocols() -> &'static [&'static str] {
        &["udp"]
    }

    fn uri(&self) -> Option<String> {
        let (host, port) = self.first_client();
        Some(format!(
            "udp://{}",
            clients::format([(host.as_str(), port)].into_iter())
        ))
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        let bad = || {
            glib::Error::new(
                gst::URIError::BadUri,
                &format!("'{uri}': expected udp://host:port"),
            )
        };
        let list = uri.strip_prefix("udp://").ok_or_else(bad)?;
        let parsed = clients::parse(list).map_err(|_| bad())?;
        let (host, port) = parsed.first().ok_or_else(bad)?;
        self.set_first_client(Some(host.clone()), Some(*port));
        Ok(())
    }
}
