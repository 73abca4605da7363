//! Helpers of the element tests: pipelines that stop by themselves, waits with a deadline, gates.
#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use gio::prelude::*;
use gst::prelude::*;

/// No test waits for this long unless it hangs.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// [`DEADLINE`] as a time of GStreamer.
pub const DEADLINE_GST: gst::ClockTime = gst::ClockTime::from_seconds(30);

pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().unwrap();
        // A critical message of GLib is a mistake in our code: the test ends.
        gst::glib::log_set_always_fatal(gst::glib::LogLevels::LEVEL_CRITICAL);
        gstthreadbare::plugin_register_static().unwrap();
    });
}

/// Returns the name of a test in its program, for running the test alone there; `module` is its `module_path!()`.
pub fn test_name(module: &str, test: &str) -> String {
    let (_program, module) = module.split_once("::").expect("a module of the program");
    format!("{module}::{test}")
}

/// Returns a context name that is unique in this process.
pub fn context() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn make(factory: &str) -> gst::Element {
    init();
    gst::ElementFactory::make(factory).build().unwrap()
}

/// A pipeline that is stopped when the test ends, however it ends.
pub struct Pipe(pub gst::Pipeline);

impl Pipe {
    pub fn parse(line: &str) -> Pipe {
        init();
        let element = gst::parse::launch(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        Pipe(element.downcast::<gst::Pipeline>().unwrap_or_else(|bin| {
            let pipeline = gst::Pipeline::new();
            pipeline.add(&bin).unwrap();
            pipeline
        }))
    }

    pub fn get(&self, name: &str) -> gst::Element {
        self.0.by_name(name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn pad(&self, element: &str, pad: &str) -> gst::Pad {
        self.get(element).static_pad(pad).unwrap()
    }

    /// Changes the state and waits for the change; fails if it hangs.
    pub fn to(&self, state: gst::State) {
        set_state(&self.0, state);
    }

    /// Sets PLAYING, without waiting for sinks that wait for data.
    pub fn play(&self) {
        let pipeline = self.0.clone();
        let result = within("change to Playing", move || {
            pipeline.set_state(gst::State::Playing)
        });
        if result.unwrap() != gst::StateChangeSuccess::Async {
            self.to(gst::State::Playing);
        }
    }

    pub fn bus(&self) -> gst::Bus {
        self.0.bus().unwrap()
    }

    pub fn message(&self, types: &[gst::MessageType]) -> gst::Message {
        let message = self.bus().timed_pop_filtered(DEADLINE_GST, types);
        message.unwrap_or_else(|| panic!("no message of {types:?}"))
    }

    /// Returns the next message of this type. Fails on an error message.
    pub fn expect(&self, kind: gst::MessageType) -> gst::Message {
        let message = self.message(&[kind, gst::MessageType::Error]);
        assert_eq!(message.type_(), kind, "{message:?}");
        message
    }

    pub fn assert_no_error(&self) {
        let error = self.bus().pop_filtered(&[gst::MessageType::Error]);
        assert!(error.is_none(), "{error:?}");
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let pipeline = self.0.clone();
        let stop = move || pipeline.set_state(gst::State::Null).map(|_| ());
        if std::thread::panicking() {
            // A failed test must not hang here.
            std::thread::spawn(stop);
            return;
        }
        let _ = within("stopping a pipeline", stop);
    }
}

/// Changes the state of `element` on another thread and waits until it is reached.
pub fn set_state(element: &impl IsA<gst::Element>, state: gst::State) {
    let element = element.clone().upcast::<gst::Element>();
    within(&format!("change to {state:?}"), move || {
        element.set_state(state).unwrap();
        let (result, reached, _) = element.state(DEADLINE_GST);
        result.unwrap();
        assert_eq!(reached, state);
    });
}

/// Returns the text of an error or warning.
pub fn text(message: &gst::Message) -> String {
    match message.view() {
        gst::MessageView::Error(error) => format!("{} {:?}", error.error(), error.debug()),
        gst::MessageView::Warning(warning) => format!("{} {:?}", warning.error(), warning.debug()),
        other => panic!("{other:?}"),
    }
}

/// Runs `f` on another thread and fails if it does not return.
pub fn within<R: Send + 'static>(what: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = channel();
    let thread = std::thread::spawn(move || {
        let result = f();
        let _ = done.send(());
        result
    });
    match result.recv_timeout(DEADLINE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        _ => thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `f` on another thread and returns when that thread waits for something, or has finished.
pub fn until_it_waits<R: Send + 'static>(
    f: impl FnOnce() -> R + Send + 'static,
) -> std::thread::JoinHandle<R> {
    let (send, started) = channel();
    let thread = std::thread::spawn(move || {
        // "<process>/task/<thread>"
        send.send(std::fs::read_link("/proc/thread-self").unwrap())
            .unwrap();
        f()
    });
    let status = std::path::Path::new("/proc")
        .join(started.recv_timeout(DEADLINE).unwrap())
        .join("status");
    // The thread must be asleep in the same place for some time. Otherwise it may only be waiting for another thread to release a
    // lock.
    let mut asleep = (String::new(), 0);
    eventually("the thread waits", || {
        let Ok(status) = std::fs::read_to_string(&status) else {
            return true;
        };
        let line = |name: &str| status.lines().find(|line| line.starts_with(name));
        let is_asleep = line("State:").is_some_and(|state| state.contains("(sleeping)"));
        let occasion = line("voluntary_ctxt_switches:").unwrap_or_default();
        asleep = if asleep.0 == occasion && is_asleep {
            (std::mem::take(&mut asleep.0), asleep.1 + 1)
        } else {
            (occasion.to_owned(), 0)
        };
        asleep.1 >= 5 || thread.is_finished()
    });
    thread
}

/// Holds callers of [`Gate::pass`] until it is opened.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    open: bool,
    waiting: usize,
}

impl Gate {
    pub fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        self.0.1.notify_all();
        while !state.open {
            state = self.0.1.wait(state).unwrap();
        }
        state.waiting -= 1;
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().open = true;
        self.0.1.notify_all();
    }

    /// Waits until a caller is blocked.
    pub fn wait_held(&self) {
        let state = self.0.0.lock().unwrap();
        let (_state, timeout) = self
            .0
            .1
            .wait_timeout_while(state, DEADLINE, |state| state.waiting == 0)
            .unwrap();
        assert!(!timeout.timed_out(), "no thread reached the gate");
    }
}

impl Drop for Gate {
    /// The last handle of the test opens the gate, so that a failing test does not block a context thread.
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) <= 2 {
            self.open();
        }
    }
}

/// Holds pushes of buffers through `pad`.
pub fn gate(pad: &gst::Pad) -> Gate {
    let gate = Gate::default();
    let inner = gate.clone();
    pad.add_probe(
        gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST,
        move |_, _| {
            inner.pass();
            gst::PadProbeReturn::Ok
        },
    );
    gate
}

/// An item that passes a pad.
#[derive(Debug)]
pub enum Seen {
    Buffer(gst::Buffer),
    Event(gst::Event),
}

/// Everything that passes a pad from now on.
pub fn watch(pad: &gst::Pad) -> Receiver<Seen> {
    let (send, receive) = channel();
    pad.add_probe(
        gst::PadProbeType::BUFFER
            | gst::PadProbeType::BUFFER_LIST
            | gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::EVENT_FLUSH,
        move |_, info| {
            match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    let _ = send.send(Seen::Buffer(buffer.clone()));
                }
                Some(gst::PadProbeData::BufferList(list)) => {
                    for buffer in list.iter_owned() {
                        let _ = send.send(Seen::Buffer(buffer));
                    }
                }
                Some(gst::PadProbeData::Event(event)) => {
                    let _ = send.send(Seen::Event(event.clone()));
                }
                _ => {}
            }
            gst::PadProbeReturn::Ok
        },
    );
    receive
}

/// Returns a pad after `src` that accepts everything, and the data that arrives there.
pub fn drain(src: &gst::Pad) -> (gst::Pad, Receiver<Seen>) {
    let (send, seen) = channel();
    let of_events = send.clone();
    let drain = gst::Pad::builder(gst::PadDirection::Sink)
        .chain_function(move |_, _, buffer| {
            let _ = send.send(Seen::Buffer(buffer));
            Ok(gst::FlowSuccess::Ok)
        })
        .event_function(move |_, _, event| {
            let _ = of_events.send(Seen::Event(event));
            true
        })
        .build();
    drain.set_active(true).unwrap();
    src.link(&drain).unwrap();
    (drain, seen)
}

/// Returns the next buffer; events before it are skipped.
pub fn next_buffer(seen: &Receiver<Seen>) -> gst::Buffer {
    loop {
        if let Seen::Buffer(buffer) = seen.recv_timeout(DEADLINE).expect("no buffer came") {
            return buffer;
        }
    }
}

/// Returns the next event of this type; everything before it is skipped.
pub fn next_event(seen: &Receiver<Seen>, kind: gst::EventType) -> gst::Event {
    loop {
        match seen.recv_timeout(DEADLINE) {
            Ok(Seen::Event(event)) if event.type_() == kind => return event,
            Ok(_) => {}
            Err(_) => panic!("no {kind:?} came"),
        }
    }
}

pub fn bytes(buffer: &gst::BufferRef) -> Vec<u8> {
    buffer.map_readable().unwrap().to_vec()
}

/// Converts a number to a packet. [`number`] converts it back.
pub fn packet(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

pub fn number(buffer: &gst::BufferRef) -> u32 {
    u32::from_be_bytes(bytes(buffer)[..4].try_into().unwrap())
}

/// Returns a buffer that holds a number.
pub fn numbered(number: u32) -> gst::Buffer {
    gst::Buffer::from_slice(packet(number))
}

pub fn timed(number: u32, pts: gst::ClockTime) -> gst::Buffer {
    let mut buffer = numbered(number);
    buffer.get_mut().unwrap().set_pts(pts);
    buffer
}

/// Returns a socket of the test on loopback.
pub fn socket() -> UdpSocket {
    bound("127.0.0.1")
}

pub fn bound(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address.parse::<IpAddr>().unwrap(), 0)).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Returns two sockets on ports in a row.
pub fn pair() -> (UdpSocket, UdpSocket) {
    pair_on("127.0.0.1")
}

pub fn pair_on(address: &str) -> (UdpSocket, UdpSocket) {
    loop {
        let rtp = bound(address);
        let next = rtp.local_addr().unwrap().port().wrapping_add(1);
        if let Ok(rtcp) = UdpSocket::bind((address, next)) {
            rtcp.set_read_timeout(Some(DEADLINE)).unwrap();
            return (rtp, rtcp);
        }
    }
}

/// Returns the address at which a ts-rtpsrc on loopback receives RTP.
pub fn rtp_address(source: &gst::Element) -> SocketAddr {
    let port = source.property::<i32>("used-port");
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))
}

/// Makes a stock udpsink send from the socket on which a udpsrc of the same pipeline receives, as phones do.
pub fn send_from(pipe: &Pipe, sink: &str, source: &str) {
    let (sink, source) = (pipe.get(sink), pipe.get(source));
    source.set_state(gst::State::Ready).unwrap();
    sink.set_property("socket", source.property::<gio::Socket>("used-socket"));
    sink.set_property("close-socket", false);
}

/// Returns the next datagram at `socket`.
pub fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut room = [0; 65_536];
    let (n, _) = socket.recv_from(&mut room).expect("no packet came");
    room[..n].to_vec()
}

/// Asserts that nothing arrived, although all packets have been sent.
pub fn assert_nothing(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let result = socket.recv_from(&mut [0; 1500]);
    socket.set_nonblocking(false).unwrap();
    assert!(result.is_err(), "{result:?}");
}

/// Returns the address in use of an element with a `used-socket`.
pub fn used_address(element: &gst::Element, property: &str) -> SocketAddr {
    let socket = element
        .property::<Option<gio::Socket>>(property)
        .expect("no socket in use");
    let address = socket.local_address().unwrap();
    let address = address.downcast::<gio::InetSocketAddress>().unwrap();
    SocketAddr::new(IpAddr::from(address.address()), address.port())
}

/// Returns the address of a ts-udpsrc in READY or above.
pub fn target(src: &gst::Element) -> SocketAddr {
    let mut address = used_address(src, "used-socket");
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => "127.0.0.1".parse().unwrap(),
            SocketAddr::V6(_) => "::1".parse().unwrap(),
        });
    }
    address
}

pub fn stat(element: &gst::Element, field: &str) -> u64 {
    element
        .property::<gst::Structure>("stats")
        .get(field)
        .unwrap()
}

/// One element between two bare pads, for behaviour that a pipeline hides. The pads can be pushed from any thread.
pub struct Rig {
    pub element: gst::Element,
    /// Linked to the element's sink pad, if it has one.
    pub feed: gst::Pad,
    /// Linked to its source pad, if it has one.
    pub drain: gst::Pad,
    /// The data that arrived at `drain`.
    pub seen: Receiver<Seen>,
    /// `drain`'s answer to a buffer, after it is recorded.
    pub answer: Arc<Mutex<Result<gst::FlowSuccess, gst::FlowError>>>,
    /// Serialized queries that arrived at `drain`; it answers `true`.
    pub queries: Receiver<gst::QueryType>,
    pub bus: gst::Bus,
}

impl Rig {
    /// Returns the element in PAUSED or PLAYING, with a stream opened on its sink pad.
    pub fn new(line: &str, state: gst::State) -> Rig {
        let rig = Rig::without_stream(line, state);
        rig.open_stream();
        rig
    }

    pub fn without_stream(line: &str, state: gst::State) -> Rig {
        init();
        let element = gst::parse::launch(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let feed = gst::Pad::builder(gst::PadDirection::Src).build();
        let answer = Arc::new(Mutex::new(Ok(gst::FlowSuccess::Ok)));
        let (send, seen) = channel();
        let (send_query, queries) = channel();
        let (of_events, of_chain) = (send.clone(), (send, answer.clone()));
        let any = gst::PadTemplate::new(
            "sink",
            gst::PadDirection::Sink,
            gst::PadPresence::Always,
            &gst::Caps::new_any(),
        );
        let drain = gst::Pad::builder_from_template(&any.unwrap())
            .chain_function(move |_, _, buffer| {
                let _ = of_chain.0.send(Seen::Buffer(buffer));
                *of_chain.1.lock().unwrap()
            })
            .event_function(move |_, _, event| {
                let _ = of_events.send(Seen::Event(event));
                true
            })
            .query_function(move |pad, parent, query| {
                if query.is_serialized() {
                    let _ = send_query.send(query.type_());
                    return true;
                }
                gst::Pad::query_default(pad, parent, query)
            })
            .build();
        if let Some(sink) = element.static_pad("sink") {
            feed.set_active(true).unwrap();
            feed.link(&sink).unwrap();
        }
        if let Some(src) = element.static_pad("src") {
            drain.set_active(true).unwrap();
            src.link(&drain).unwrap();
        }
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        element.set_state(state).unwrap();
        Rig {
            element,
            feed,
            drain,
            seen,
            answer,
            queries,
            bus,
        }
    }

    pub fn open_stream(&self) {
        assert!(
            self.feed
                .push_event(gst::event::StreamStart::new("a-stream"))
        );
        let caps = gst::Caps::new_empty_simple("application/x-test");
        assert!(self.feed.push_event(gst::event::Caps::new(&caps)));
        self.open_segment();
    }

    pub fn open_segment(&self) {
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        assert!(self.feed.push_event(gst::event::Segment::new(&segment)));
    }

    pub fn push(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.feed.push(buffer)
    }

    /// Pushes on another thread, which may wait; the result can be joined.
    pub fn push_aside(
        &self,
        buffer: gst::Buffer,
    ) -> Receiver<Result<gst::FlowSuccess, gst::FlowError>> {
        let (send, result) = channel();
        let feed = self.feed.clone();
        std::thread::spawn(move || send.send(feed.push(buffer)));
        result
    }

    pub fn buffer(&self) -> gst::Buffer {
        next_buffer(&self.seen)
    }

    pub fn event(&self, kind: gst::EventType) -> gst::Event {
        next_event(&self.seen, kind)
    }

    pub fn level(&self) -> u32 {
        self.element.property("current-level-buffers")
    }

    pub fn to(&self, state: gst::State) {
        let element = self.element.clone();
        within(&format!("change to {state:?}"), move || {
            element.set_state(state).unwrap()
        });
    }

    pub fn error(&self) -> gst::Message {
        self.bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Error])
            .expect("no error was reported")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.element.set_bus(None);
        let element = self.element.clone();
        if std::thread::panicking() {
            std::thread::spawn(move || element.set_state(gst::State::Null));
        } else {
            within("stopping an element", move || {
                element.set_state(gst::State::Null)
            })
            .unwrap();
        }
    }
}

/// Property, type, default in GStreamer's notation, minimum and maximum if it is a number, and whether it can be set.
pub type Row = (
    &'static str,
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
    bool,
);

/// The properties of the context, which most elements have.
pub const CONTEXT_ROWS: &[Row] = &[
    ("context", "gchararray", "", None, true),
    ("context-wait", "guint", "0", Some(("0", "1000")), true),
    (
        "context-threads",
        "gint",
        "-1",
        Some(("-1", "2147483647")),
        true,
    ),
    ("context-affinity", "gchararray", "", None, true),
    ("context-priority", "gint", "0", Some(("0", "99")), true),
];

/// The stock element has these properties too, with the same types, defaults and ranges.
pub fn assert_stock_has(stock: &str, rows: &[Row]) {
    let element = make(stock);
    for (name, kind, default, range, _) in rows {
        let spec = element.find_property(name);
        let spec = spec.unwrap_or_else(|| panic!("{stock}: no {name}"));
        assert_eq!(spec.value_type().name(), *kind, "{stock} {name}");
        assert_eq!(
            written(&element.property_value(name)),
            *default,
            "{stock} {name}"
        );
        if let Some((least, greatest)) = range {
            assert_eq!(bounds(&spec), [*least, *greatest], "{stock} {name}");
        }
    }
}

/// Asserts that a new element has exactly these properties, in addition to those of every element and `stats`.
pub fn assert_properties(factory: &str, rows: &[Row]) {
    let element = make(factory);
    let own = element.list_properties();
    let own = own
        .iter()
        .filter(|spec| !matches!(spec.name(), "name" | "parent" | "stats"));
    assert_eq!(own.count(), rows.len(), "{factory}");
    for row in rows {
        assert_row(factory, row);
    }
}

/// Asserts that a new element has this property.
pub fn assert_row(factory: &str, (name, kind, default, range, writable): &Row) {
    use gst::glib::{self, ParamFlags};
    let element = make(factory);
    let spec = (element.find_property(name)).unwrap_or_else(|| panic!("{factory}: no {name}"));
    assert_eq!(spec.value_type().name(), *kind, "{factory} {name}");
    let flags = spec.flags();
    assert!(flags.contains(ParamFlags::READABLE), "{factory} {name}");
    assert_eq!(
        flags.contains(ParamFlags::WRITABLE),
        *writable,
        "{factory} {name}"
    );
    let value = element.property_value(name);
    if let Some((least, greatest)) = range {
        let of = |text: &str| glib::Value::deserialize(text, spec.value_type()).unwrap();
        for (bound, is_least) in [(of(least), true), (of(greatest), false)] {
            assert_eq!(bounds(&spec)[usize::from(!is_least)], written(&bound));
        }
    }
    assert_eq!(written(&value), *default, "{factory} {name}");
    if *writable {
        element.set_property_from_value(name, &value);
        assert_eq!(
            written(&element.property_value(name)),
            *default,
            "{factory} {name}"
        );
    }
}

/// Returns a value as GStreamer writes it. A missing value is `NULL`; an enum is its nick.
fn written(value: &gst::glib::Value) -> String {
    if let Ok(text) = value.get::<Option<String>>() {
        return text.unwrap_or_else(|| "NULL".to_owned());
    }
    if let Some((_, value)) = gst::glib::EnumValue::from_value(value) {
        return value.nick().to_owned();
    }
    let is_null = matches!(value.get::<Option<gst::glib::Object>>(), Ok(None))
        || matches!(value.get::<Option<gst::Caps>>(), Ok(None));
    if is_null {
        return "NULL".to_owned();
    }
    value.serialize().unwrap().to_string()
}

/// Returns minimum and maximum of a number.
fn bounds(spec: &gst::glib::ParamSpec) -> [String; 2] {
    use gst::glib;
    macro_rules! try_each {
        ($($kind:ty),+) => {
            $(if let Some(spec) = spec.downcast_ref::<$kind>() {
                return [spec.minimum().to_value(), spec.maximum().to_value()].map(|v| written(&v));
            })+
        };
    }
    try_each!(
        glib::ParamSpecInt,
        glib::ParamSpecUInt,
        glib::ParamSpecInt64,
        glib::ParamSpecUInt64,
        glib::ParamSpecDouble
    );
    panic!("{} has no range", spec.name());
}

/// Changes a rig's element up and down through the states, twice; `carries` is called each time it plays.
pub fn goes_up_and_down(rig: &Rig, carries: impl Fn()) {
    use gst::State::{Null, Paused, Playing, Ready};
    rig.to(Null);
    for _ in 0..2 {
        for state in [Ready, Null, Ready, Playing] {
            rig.drain.set_active(state == Playing).unwrap();
            rig.to(state);
        }
        carries();
        for state in [Paused, Playing] {
            rig.to(state);
        }
        carries();
        rig.to(Null);
        rig.drain.set_active(false).unwrap();
    }
}

/// A buffer whose memory, when freed, reads all properties of an element, as the owner of a pool may.
pub struct CallsBack {
    pub element: gst::glib::WeakRef<gst::Element>,
    pub dropped: std::sync::mpsc::Sender<()>,
    pub data: Vec<u8>,
}

impl AsRef<[u8]> for CallsBack {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        if let Some(element) = self.element.upgrade() {
            for spec in element.list_properties() {
                if spec.flags().contains(gst::glib::ParamFlags::READABLE) {
                    let _ = element.property_value(spec.name());
                }
            }
        }
        let _ = self.dropped.send(());
    }
}
