//! Properties, pad and states of `ts-udpsrc`.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gio::prelude::*;
use gst::glib::{self, Properties};
use gst::subclass::prelude::*;

use super::receiver::{Receiver, Stats};
use super::settings::{MTU_DEFAULT, MTU_MAX, Settings, SocketTimestamp};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::resolve::{resolve, resolve_later};
use crate::kit::socket::{self, GivenSocket, Membership, MulticastSettings, SocketError, Udp};
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "ts-udpsrc",
        gst::DebugColorFlags::empty(),
        Some("Thread-sharing UDP source"),
    )
});

#[derive(Properties)]
#[properties(wrapper_type = super::UdpSrc)]
pub struct UdpSrc {
    #[property(name = "address", nick = "Address", blurb = "Address, host name or multicast group to receive packets on; can be changed while playing", type = String, get = |s: &Self| s.settings().address.clone(), set = |s: &Self, v: Option<String>| s.change_place(|settings| settings.address = v.unwrap_or_else(|| "0.0.0.0".into())), default = "0.0.0.0")]
    #[property(name = "port", nick = "Port", blurb = "Port to receive packets on, 0: any free one (see used-socket); can be changed while playing", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.change_place(|settings| settings.port = v), minimum = 0, maximum = 65_535, default = 5004)]
    #[property(name = "reuse", nick = "Reuse", blurb = "Allow other sockets to use the same port", type = bool, get = |s: &Self| s.settings().reuse, set = |s: &Self, v| s.settings().reuse = v, default = true)]
    #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = Self::set_caps)]
    #[property(name = "mtu", nick = "Maximum transmission unit", blurb = "Largest expected packet, bytes; larger packets are truncated, flagged as corrupted and counted, with a warning", type = u32, get = |s: &Self| s.settings().mtu, set = |s: &Self, v| s.settings().mtu = v, minimum = 1, maximum = MTU_MAX, default = MTU_DEFAULT)]
    #[property(name = "retrieve-sender-address", nick = "Retrieve sender address", blurb = "Attach the sender's address to each buffer (GstNetAddressMeta)", type = bool, get = |s: &Self| s.settings().retrieve_sender_address, set = |s: &Self, v| s.settings().retrieve_sender_address = v, default = true)]
    #[property(name = "buffer-size", nick = "Buffer size", blurb = "Size of the kernel's receive buffer, bytes; 0: the system's default", type = i32, get = |s: &Self| s.settings().buffer_size, set = |s: &Self, v| s.settings().buffer_size = v, minimum = 0, default = 0)]
    #[property(name = "multicast-source", nick = "Multicast source", blurb = "Receive the group from these sources only (source-specific multicast), for example +10.1.2.3+10.1.2.4", type = Option<String>, get = |s: &Self| s.settings().multicast_source.clone(), set = |s: &Self, v| s.settings().multicast_source = v)]
    #[property(name = "socket", nick = "Socket", blurb = "Socket to use instead of opening one", type = Option<gio::Socket>, get = |s: &Self| s.settings().socket.as_ref().map(|given| given.get().clone()), set = |s: &Self, v: Option<gio::Socket>| s.settings().socket = v.map(GivenSocket::new))]
    #[property(name = "used-socket", nick = "Used socket", blurb = "Socket in use, NULL for none", type = Option<gio::Socket>, get = |s: &Self| s.opened().as_ref().and_then(|o| o.udp.shown()))]
    #[property(name = "close-socket", nick = "Close socket", blurb = "Close the socket that was set by the property socket when the element stops", type = bool, get = |s: &Self| s.settings().close_socket, set = |s: &Self, v| s.settings().close_socket = v, default = true)]
    #[property(name = "timeout", nick = "Timeout", blurb = "Time without a packet after which the element posts a message, ns; 0: never", type = u64, get = |s: &Self| s.settings().timeout_ns, set = |s: &Self, v| s.settings().timeout_ns = v, default = 0)]
    #[property(name = "skip-first-bytes", nick = "Skip first bytes", blurb = "Bytes to skip at the beginning of each packet", type = i32, get = |s: &Self| s.settings().skip_first_bytes, set = |s: &Self, v| s.settings().skip_first_bytes = v, minimum = 0, default = 0)]
    #[property(name = "socket-timestamp", nick = "Socket timestamp", blurb = "Attach the kernel's receive time to each buffer (GstReferenceTimestampMeta)", type = SocketTimestamp, get = |s: &Self| s.settings().socket_timestamp, set = |s: &Self, v| s.settings().socket_timestamp = v, builder(SocketTimestamp::Disabled))]
    #[property(name = "do-timestamp", nick = "Do timestamp", blurb = "Set the timestamp of each buffer to the running time of its arrival", type = bool, get = |s: &Self| s.settings().do_timestamp, set = |s: &Self, v| s.settings().do_timestamp = v, default = true)]
    #[property(name = "uri", nick = "URI", blurb = "URI with the address and the port: udp://host:port or udp://source@group:port", type = String, get = |s: &Self| s.settings().uri(), set = Self::set_uri_property, default = "udp://0.0.0.0:5004")]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    multicast: Mutex<MulticastSettings>,
    src_pad: gst::Pad,
    opened: Mutex<Option<Opened>>,
    driver: Driver<Receiver>,
    stats: Arc<Stats>,
    stats_property: Mutex<StatsProperty>,
}

/// Resources from READY on.
struct Opened {
    udp: Udp,
    membership: Option<Membership>,
    /// Whether to close the application's socket.
    close: bool,
}

impl UdpSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn context(&self) -> MutexGuard<'_, ContextSettings> {
        lock(&self.context)
    }

    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        lock(&self.opened)
    }

    /// Changes the address or port. A running element moves there with a new socket, unless the application has provided one.
    fn change_place(&self, change: impl FnOnce(&mut Settings)) {
        let (before, settings) = {
            let mut settings = self.settings();
            let before = settings.clone();
            change(&mut settings);
            (before, settings.clone())
        };
        if before.has_place_of(&settings) || self.opened().is_none() {
            return;
        }
        let obj = self.obj().downgrade();
        let (host, port) = (settings.address.clone(), settings.port());
        resolve_later(&host, port, move |answer| {
            if let Some(obj) = obj.upgrade()
                && let Err(error) = obj.imp().move_to(&settings, answer)
            {
                gst::element_imp_warning!(
                    obj.imp(),
                    gst::ResourceError::Settings,
                    ["cannot change address and port: {error}"]
                );
            }
        });
    }

    fn move_to(
        &self,
        settings: &Settings,
        answer: Result<SocketAddr, SocketError>,
    ) -> Result<(), SocketError> {
        {
            // The lock is held to the end, so that only one move happens at a time, and none after the stop.
            let mut opened = self.opened();
            let is_latest = self.settings().has_place_of(settings);
            let Some(old) = opened.as_mut().filter(|_| is_latest) else {
                return Ok(());
            };
            let new = open(settings, &lock(&self.multicast), answer?)?;
            socket::set_buffer_size(new.udp.socket(), libc::SO_RCVBUF, settings.buffer_size);
            self.stats.set_socket(Some(new.udp.clone()));
            let udp = new.udp.clone();
            let old = std::mem::replace(old, new);
            self.receive_from(udp);
            old.close(settings.socket.is_some());
        }
        self.obj().notify("used-socket");
        Ok(())
    }

    /// Moves the receiver, if any, to another socket.
    fn receive_from(&self, udp: Udp) {
        let element = self.obj().downgrade();
        self.driver.with_producer(move |receiver, cx| {
            if let Err(error) = receiver.change_socket(cx, udp)
                && let Some(element) = element.upgrade()
            {
                gst::element_error!(
                    element,
                    gst::ResourceError::OpenRead,
                    ["cannot watch the socket: {error}"]
                );
            }
        });
    }

    /// Applies a change of `loop` at once.
    fn apply_loop(&self) {
        let loops = lock(&self.multicast).loops;
        if let Some(opened) = self.opened().as_ref() {
            opened.udp.socket().set_multicast_loopback(loops);
        }
    }

    /// Sets the caps. While the element runs, new caps are announced before the next packet.
    fn set_caps(&self, caps: Option<gst::Caps>) {
        self.settings().caps = caps.clone();
        self.driver
            .announce(move |receiver, pad| receiver.set_caps(caps, pad));
    }

    fn set_uri_property(&self, uri: Option<String>) {
        let result = match uri {
            Some(uri) => self.settings().set_uri(&uri),
            None => Ok(()),
        };
        if let Err(error) = result {
            gst::error!(CAT, imp = self, "uri: {error}");
        }
    }
}

/// Opens the socket that the properties select; `address` is the resolved address.
fn open(
    settings: &Settings,
    multicast: &MulticastSettings,
    address: SocketAddr,
) -> Result<Opened, SocketError> {
    let (udp, close) = match &settings.socket {
        Some(given) => (Udp::sharing(given)?, settings.close_socket),
        None => {
            let udp = if address.ip().is_multicast() {
                let interface = multicast.interface.as_deref().filter(|_| multicast.auto);
                socket::bind_group(address, interface, settings.reuse)?
            } else {
                socket::bind(address, settings.reuse)?
            };
            (udp, true)
        }
    };
    udp.socket().set_blocking(false);
    udp.socket().set_multicast_loopback(multicast.loops);
    if settings.wants_timestamps() {
        socket::set_timestamps(udp.socket());
    }
    let group = address.ip();
    let membership = if group.is_multicast() && multicast.auto {
        let membership = Membership::new(
            group,
            multicast.interface.as_deref(),
            settings.multicast_source.as_deref(),
        )?;
        membership.join(udp.socket())?;
        Some(membership)
    } else {
        None
    };
    Ok(Opened {
        udp,
        membership,
        close,
    })
}

impl Opened {
    /// Leaves the group and closes the socket. With `is_replaced`, a socket given by the application stays open, because it is
    /// still in use.
    fn close(self, is_replaced: bool) {
        if let Some(membership) = &self.membership {
            membership.leave(self.udp.socket());
        }
        if self.close && !is_replaced {
            self.udp.close_shown();
        }
    }
}

impl SourceElement for UdpSrc {
    type Producer = Receiver;

    fn driver(&self) -> &Driver<Receiver> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Uri(uri) = query.view_mut() {
            uri.set_uri(Some(self.settings().uri().as_str()));
            return true;
        }
        // There is no maximum, because a packet may have waited in the kernel.
        let latency = (true, self.driver.wait(&self.context), None);
        source::answer_query(pad, &*self.obj(), query, latency, || {
            self.settings().caps.clone()
        })
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let address = resolve(&settings.address, settings.port())?;
        let opened = open(&settings, &lock(&self.multicast), address)?;
        if let Some(granted) =
            socket::set_buffer_size(opened.udp.socket(), libc::SO_RCVBUF, settings.buffer_size)
            && granted < settings.buffer_size
        {
            gst::element_imp_warning!(
                self,
                gst::ResourceError::Settings,
                [
                    "buffer-size={}: the kernel granted {granted} bytes (sysctl net.core.rmem_max)",
                    settings.buffer_size
                ]
            );
        }
        self.stats.set_socket(Some(opened.udp.clone()));
        *self.opened() = Some(opened);
        self.obj().notify("used-socket");
        Ok(())
    }

    fn close(&self) {
        if let Some(opened) = self.opened().take() {
            self.stats.set_socket(None);
            opened.close(false);
        }
    }

    /// Puts the receiver on its context's thread.
    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = self.context().place(element)?;
        let udp = self.opened().as_ref().map(|opened| opened.udp.clone());
        let udp = udp.ok_or_else(|| {
            gst::error_msg!(gst::CoreError::StateChange, ["the element has no socket"])
        })?;
        let receiver = Receiver::new(
            element,
            &place.shard,
            udp.clone(),
            &self.settings(),
            self.stats.clone(),
        );
        self.driver.add(element, &self.src_pad, place, receiver)?;
        // The element may have moved to another socket since then.
        let present = self.opened().as_ref().map(|opened| opened.udp.clone());
        if let Some(present) = present.filter(|present| !present.is_same(&udp)) {
            self.receive_from(present);
        }
        Ok(())
    }
}

#[glib::object_subclass]
impl ObjectSubclass for UdpSrc {
    const NAME: &'static str = "ThreadbareUdpSrc";
    type Type = super::UdpSrc;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = source::source_pad::<UdpSrc>(&crate::kit::template(klass, "src"));
        let stats = Arc::<Stats>::default();
        let read = stats.clone();
        UdpSrc {
            stats_property: Mutex::new(StatsProperty::new(move || read.structure())),
            settings: Mutex::default(),
            context: Mutex::default(),
            multicast: Mutex::default(),
            src_pad,
            opened: Mutex::new(None),
            driver: Driver::default(),
            stats,
        }
    }
}

impl ObjectImpl for UdpSrc {
    crate::kit::properties_with_groups!(context, multicast, stats_property);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.src_pad);
        obj.connect_notify(Some("loop"), |obj, _| obj.imp().apply_loop());
    }
}

impl GstObjectImpl for UdpSrc {}

impl ElementImpl for UdpSrc {
    crate::kit::element_class!(
        "Thread-sharing UDP source",
        "Source/Network",
        "Receives UDP packets on the thread of a shared context";
        "src": Src Always gst::Caps::new_any()
    );

    crate::source_life!();
}

impl URIHandlerImpl for UdpSrc {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

    fn protocols() -> &'static [&'static str] {
        &["udp"]
    }

    fn uri(&self) -> Option<String> {
        Some(self.settings().uri())
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        self.settings().set_uri(uri)
    }
}
