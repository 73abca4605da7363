//! Properties, pad and states of `ts-udpsink`.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use gio::prelude::*;
use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::subclass::prelude::*;

use super::clients::{self, Client};
use super::sender::Sender;
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::resolve::{resolve, resolve_later};
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

/// Values of the properties, except the list of clients.
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
    #[property(name = "host", nick = "Host", blurb = "Host of the first destination in clients. Setting it replaces this destination", type = String, get = |s: &Self| s.first_client().0, set = |s: &Self, v: Option<String>| s.set_first_client(v, None), default = "127.0.0.1")]
    #[property(name = "port", nick = "Port", blurb = "Port of the first destination in clients. Setting it replaces this destination", type = i32, get = |s: &Self| s.first_client().1.into(), set = |s: &Self, v: i32| s.set_first_client(None, u16::try_from(v).ok()), minimum = 0, maximum = 65_535, default = 5004)]
    #[property(name = "send-duplicates", nick = "Send duplicates", blurb = "true: send each packet to a destination as many times as the destination was added. false, or never set: send it once. If the property was set, a destination must be removed as often as it was added", type = bool, get = |s: &Self| s.sender(|w| w.clients.send_duplicates.unwrap_or(true)), set = |s: &Self, v| s.sender(|w| w.clients.send_duplicates = Some(v)), default = true)]
    #[property(name = "bytes-to-serve", nick = "Bytes to serve", blurb = "Number of bytes received from upstream", type = u64, get = |s: &Self| s.sender(|w| w.bytes_to_serve))]
    #[property(name = "bytes-served", nick = "Bytes served", blurb = "Number of bytes sent to all destinations", type = u64, get = |s: &Self| s.sender(|w| w.bytes_served))]
    #[property(name = "bind-address", nick = "Bind address", blurb = "IPv4 address to send from", type = Option<String>, get = |s: &Self| s.settings().bind_address.clone(), set = |s: &Self, v| s.settings().bind_address = v)]
    #[property(name = "bind-port", nick = "Bind port", blurb = "IPv4 port to send from; 0: any free port", type = i32, get = |s: &Self| s.settings().bind_port, set = |s: &Self, v| s.settings().bind_port = v, minimum = 0, maximum = 65_535, default = 0)]
    #[property(name = "bind-address-v6", nick = "Bind address IPv6", blurb = "IPv6 address to send from", type = Option<String>, get = |s: &Self| s.settings().bind_address_v6.clone(), set = |s: &Self, v| s.settings().bind_address_v6 = v)]
    #[property(name = "bind-port-v6", nick = "Bind port IPv6", blurb = "IPv6 port to send from; 0: any free port", type = i32, get = |s: &Self| s.settings().bind_port_v6, set = |s: &Self, v| s.settings().bind_port_v6 = v, minimum = 0, maximum = 65_535, default = 0)]
    #[property(name = "reuse", nick = "Reuse", blurb = "Allow other sockets to use the same port", type = bool, get = |s: &Self| s.settings().reuse, set = |s: &Self, v| s.settings().reuse = v, default = true)]
    #[property(name = "socket", nick = "Socket", blurb = "IPv4 socket to use instead of opening one", type = Option<gio::Socket>, get = |s: &Self| s.settings().socket.as_ref().map(|given| given.get().clone()), set = |s: &Self, v: Option<gio::Socket>| s.settings().socket = v.map(GivenSocket::new))]
    #[property(name = "socket-v6", nick = "Socket IPv6", blurb = "IPv6 socket to use instead of opening one", type = Option<gio::Socket>, get = |s: &Self| s.settings().socket_v6.as_ref().map(|given| given.get().clone()), set = |s: &Self, v: Option<gio::Socket>| s.settings().socket_v6 = v.map(GivenSocket::new))]
    #[property(name = "used-socket", nick = "Used socket", blurb = "IPv4 socket in use, NULL for none", type = Option<gio::Socket>, get = |s: &Self| s.sender(|w| w.v4.as_ref().and_then(Udp::shown)))]
    #[property(name = "used-socket-v6", nick = "Used socket IPv6", blurb = "IPv6 socket in use, NULL for none", type = Option<gio::Socket>, get = |s: &Self| s.sender(|w| w.v6.as_ref().and_then(Udp::shown)))]
    #[property(name = "close-socket", nick = "Close socket", blurb = "Close the sockets that were set by socket and socket-v6 when the element stops", type = bool, get = |s: &Self| s.settings().close_socket, set = |s: &Self, v| s.settings().close_socket = v, default = true)]
    #[property(name = "ttl", nick = "Unicast TTL", blurb = "Time to live of unicast packets", type = i32, get = |s: &Self| s.settings().ttl, set = |s: &Self, v| { s.settings().ttl = v; s.apply_options(); }, minimum = 0, maximum = 255, default = TTL_DEFAULT)]
    #[property(name = "ttl-mc", nick = "Multicast TTL", blurb = "Time to live of multicast packets", type = i32, get = |s: &Self| s.settings().ttl_mc, set = |s: &Self, v| { s.settings().ttl_mc = v; s.apply_options(); }, minimum = 0, maximum = 255, default = TTL_MC_DEFAULT)]
    #[property(name = "qos-dscp", nick = "QoS DSCP", blurb = "Differentiated Services code point of sent packets, -1: the system's default", type = i32, get = |s: &Self| s.settings().qos_dscp, set = |s: &Self, v| { s.settings().qos_dscp = v; s.apply_options(); }, minimum = -1, maximum = 63, default = -1)]
    #[property(name = "buffer-size", nick = "Buffer size", blurb = "Size of the kernel's send buffer, bytes; 0: the system's default", type = i32, get = |s: &Self| s.settings().buffer_size, set = |s: &Self, v| s.settings().buffer_size = v, minimum = 0, default = 0)]
    #[property(name = "force-ipv4", nick = "Force IPv4", blurb = "Use IPv4 only: open no IPv6 socket", type = bool, get = |s: &Self| s.settings().force_ipv4, set = |s: &Self, v| s.settings().force_ipv4 = v, default = false)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    multicast: Mutex<MulticastSettings>,
    sync: Mutex<SyncProperties>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Sender>>,
    /// Memberships, each of one group.
    memberships: Mutex<Vec<Membership>>,
}

/// How a client was added. It matters if the client's name cannot be resolved while the element runs. A client that was added by
/// an action is then removed. A client of a property stays, and the next start fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Property,
    Action,
}

impl UdpSink {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn sender<T>(&self, f: impl FnOnce(&mut Sender) -> T) -> T {
        self.sink().with_renderer(f)
    }

    fn clients(&self) -> String {
        self.sender(|sender| sender.clients.text())
    }

    fn set_clients(&self, list: Option<String>) {
        match clients::parse(list.as_deref().unwrap_or_default()) {
            Ok(parsed) => {
                self.clear();
                for (host, port) in parsed {
                    self.add(&host, port, Origin::Property);
                }
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Reports a refused value of a property or action on the bus.
    fn refuse(&self, error: &dyn std::error::Error) {
        gst::element_imp_warning!(self, gst::ResourceError::Settings, ["{error}"]);
        gst::warning!(CAT, imp = self, "{error}");
    }

    fn first_client(&self) -> (String, u16) {
        let first = self.sender(|sender| sender.clients.first());
        first.unwrap_or_else(|| ("127.0.0.1".into(), 5004))
    }

    fn set_first_client(&self, host: Option<String>, port: Option<u16>) {
        let (old_host, old_port) = self.first_client();
        let first = self.sender(|sender| sender.clients.all().first().map(|client| client.id));
        if let Some(first) = first {
            self.remove_all_of(first);
        }
        let host = host.as_deref().unwrap_or(&old_host);
        let id = self.add(host, port.unwrap_or(old_port), Origin::Property);
        self.sender(|sender| {
            sender.reset();
            sender.clients.put_first(id);
        });
    }

    /// Adds a client, which gets packets as soon as its host is resolved. Another thread looks up the name; before READY, it is
    /// not looked up yet.
    fn add(&self, host: &str, port: u16, origin: Origin) -> u64 {
        let (added, address, is_open) = self.sender(|sender| {
            let added = sender.clients.add(host, port, now_ns());
            let client = sender.clients.find(host, port);
            let address = client.and_then(|client| client.address);
            (added, address, sender.is_open)
        });
        if added.is_told {
            self.tell("client-added", host, port, 1);
        }
        if added.is_new && is_open {
            match address {
                Some(address) => self.open_or_warn(address),
                None => self.look_up(host, port, added.id, origin),
            }
        }
        added.id
    }

    /// Looks up the host of a client, while the element runs.
    fn look_up(&self, host: &str, port: u16, id: u64, origin: Origin) {
        let obj = self.obj().downgrade();
        resolve_later(host, port, move |answer| {
            let Some(obj) = obj.upgrade() else { return };
            let imp = obj.imp();
            match answer {
                Ok(address) => {
                    if imp.sender(|sender| sender.clients.set_address(id, address)) {
                        imp.open_or_warn(address);
                    }
                }
                Err(error) => {
                    imp.refuse(&error);
                    if origin == Origin::Action {
                        imp.remove_all_of(id);
                    }
                }
            }
        });
    }

    fn open_or_warn(&self, address: SocketAddr) {
        if let Err(error) = self.open_for(address) {
            self.refuse(&error);
        }
    }

    fn remove(&self, host: &str, port: u16) {
        let removed = self.sender(|sender| {
            sender.reset();
            sender.clients.remove(host, port)
        });
        match removed {
            None => gst::warning!(
                CAT,
                imp = self,
                "cannot remove client {host}:{port}, because it was not added"
            ),
            Some(gone) => {
                if let Some(client) = gone {
                    self.leave_group_of(&client);
                }
                self.tell("client-removed", host, port, 1);
            }
        }
    }

    fn remove_all_of(&self, id: u64) {
        let removed = self.sender(|sender| {
            sender.reset();
            let client = sender.clients.remove_id(id)?;
            Some((sender.clients.times(&client), client))
        });
        if let Some((times, client)) = removed {
            self.leave_group_of(&client);
            self.tell("client-removed", &client.host, client.port, times);
        }
    }

    fn clear(&self) {
        let gone = self.sender(|sender| {
            sender.reset();
            let gone = sender.clients.clear();
            let times = |client: Client| (sender.clients.times(&client), client);
            gone.into_iter().map(times).collect::<Vec<_>>()
        });
        self.leave_groups();
        for (times, client) in gone {
            self.tell("client-removed", &client.host, client.port, times);
        }
    }

    fn tell(&self, signal: &str, host: &str, port: u16, times: u32) {
        for _ in 0..times {
            self.obj()
                .emit_by_name::<()>(signal, &[&host, &i32::from(port)]);
        }
    }

    fn client_stats(&self, host: &str, port: u16) -> Option<gst::Structure> {
        self.sender(|sender| {
            let client = sender.clients.find(host, port)?;
            Some(
                gst::Structure::builder("multiudpsink-stats")
                    .field("bytes-sent", client.bytes)
                    .field("packets-sent", client.packets)
                    .field("send-errors", client.errors.total())
                    .field("connect-time", client.connect_ns)
                    .field("disconnect-time", 0u64)
                    .field("errors", client.errors.structure())
                    .field_if_some("last-error", client.errors.last_text())
                    .build(),
            )
        })
    }

    /// Waits until all hosts are resolved. The names are looked up in parallel.
    fn resolve_all(&self) -> Result<(), SocketError> {
        let (tell, told) = mpsc::channel();
        for client in self.sender(|sender| sender.clients.unresolved()) {
            let (tell, id) = (tell.clone(), client.id);
            resolve_later(&client.host, client.port, move |answer| {
                // After a failed start, no one receives the remaining answers.
                let _ = tell.send((id, answer));
            });
        }
        drop(tell);
        told.into_iter().try_for_each(|(id, answer)| {
            let address = answer?;
            self.sender(|sender| sender.clients.set_address(id, address));
            Ok(())
        })
    }

    /// Ensures a socket of the address's family, and membership in its multicast group; not after the close.
    fn open_for(&self, address: SocketAddr) -> Result<(), SocketError> {
        let settings = self.settings().clone();
        // The lock is held to the end, because only one thread at a time may open or close sockets.
        let mut memberships = lock(&self.memberships);
        if !self.sender(|sender| sender.is_open) {
            return Ok(());
        }
        let udp = match self.socket_for(address.ip()) {
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
        // A socket joins a group only once, however many clients have that group.
        let is_member = memberships.iter().any(|one| one.group() == address.ip());
        if address.ip().is_multicast() && multicast.auto && !is_member {
            let membership = Membership::new(address.ip(), multicast.interface.as_deref(), None)?;
            membership.join(udp.socket())?;
            memberships.push(membership);
        }
        Ok(())
    }

    fn socket_for(&self, ip: IpAddr) -> Option<Udp> {
        self.sender(|sender| {
            if ip.is_ipv4() {
                sender.v4.clone()
            } else {
                sender.v6.clone()
            }
        })
    }

    /// Leaves the group of a removed client, unless another client has it.
    fn leave_group_of(&self, client: &Client) {
        let Some(group) = client.address.map(|address| address.ip()) else {
            return;
        };
        let mut memberships = lock(&self.memberships);
        let is_needed = self.sender(|sender| {
            let addresses = sender.clients.all().iter().filter_map(|one| one.address);
            addresses.into_iter().any(|address| address.ip() == group)
        });
        let at = memberships.iter().position(|one| one.group() == group);
        if let Some(at) = at.filter(|_| !is_needed) {
            self.leave(memberships.remove(at));
        }
    }

    fn leave_groups(&self) {
        for membership in std::mem::take(&mut *lock(&self.memberships)) {
            self.leave(membership);
        }
    }

    fn leave(&self, membership: Membership) {
        if let Some(udp) = self.socket_for(membership.group()) {
            membership.leave(udp.socket());
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

    fn structure(&self) -> gst::Structure {
        let (rendered, dropped) = self.sink().counts();
        let (served, errors, more) = self.sender(|s| (s.bytes_served, s.errors, s.more_of_lists));
        gst::Structure::builder("application/x-ts-udpsink-stats")
            .field("rendered", rendered + more)
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
    let address = resolve(host, u16::try_from(port).unwrap_or(0))?;
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
            let mut sender = Sender::default();
            sender.clients.add("127.0.0.1", 5004, 0);
            Sink::new(self.obj().upcast_ref(), sender, lock(&self.sync).clone())
        })
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        lock(&self.context).check()?;
        let settings = self.settings().clone();
        let share = |given: &Option<GivenSocket>| given.as_ref().map(Udp::sharing).transpose();
        let (v4, v6) = (share(&settings.socket)?, share(&settings.socket_v6)?);
        self.sender(|sender| {
            sender.is_open = true;
            (sender.v4, sender.v6) = (v4, v6);
        });
        self.resolve_all()?;
        // Open an IPv4 socket in any case, so that used-socket has a socket to share.
        self.open_for(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let clients = self.sender(|sender| sender.clients.all().to_vec());
        let mut addresses = clients.iter().filter_map(|client| client.address);
        addresses.try_for_each(|address| self.open_for(address))?;
        Ok(())
    }

    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        // Forgets the packet that was being sent at the stop.
        self.sender(Sender::forget);
        Ok(())
    }

    fn close(&self) {
        let settings = self.settings().clone();
        // This lock is needed because a lookup may be about to pass its address to `open_for`.
        let mut memberships = lock(&self.memberships);
        for membership in memberships.drain(..) {
            self.leave(membership);
        }
        let sockets = self.sender(|sender| {
            sender.forget();
            sender.is_open = false;
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
        obj.connect_notify(Some("loop"), |obj, _| obj.imp().apply_options());
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
                    _ => {
                        gst::warning!(CAT, obj = obj, "{host}:{port}: the port must be 1 to 65535")
                    }
                }
                None
            })
            .build()
    };
    vec![
        action("add", |imp, host, port| {
            imp.add(host, port, Origin::Action);
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

    crate::sink_life!();
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

#[cfg(test)]
mod tests {
    use super::*;
    use gst::prelude::*;

    /// The answer for a name arrives while the element closes. It must not open a socket.
    #[test]
    fn an_answer_after_the_close_opens_no_socket() {
        gst::init().unwrap();
        let element = glib::Object::new::<super::super::UdpSink>();
        for state in [gst::State::Ready, gst::State::Null] {
            element.set_state(state).unwrap();
        }
        for address in ["127.0.0.1:9", "239.255.0.9:9"] {
            element.imp().open_or_warn(address.parse().unwrap());
        }
        let socket = element.property::<Option<gio::Socket>>("used-socket");
        assert!(socket.is_none());
        assert!(lock(&element.imp().memberships).is_empty());
    }
}
