//! A registry with fake ports and a fake media plane. They record the registry's actions and check that the actions are consistent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::calls::{
    Action, CallId, CallRecord, Calls, Family, Interface, InterfaceName, NoPorts, Opened, Outcome,
    PortRequest, PortSource, PortUse, Settings, StreamCommand, StreamId, StreamSpec, StreamStats,
};
use crate::ng::{Dictionary, Reply, Request, Value};
use crate::saved::Reader;

/// The even numbers of all open ports.
type Open = Rc<RefCell<BTreeSet<u16>>>;

/// The open ports of a leg.
#[derive(Debug)]
pub struct Ports {
    /// The first port number.
    pub number: u16,
    open: Open,
}

impl Drop for Ports {
    fn drop(&mut self) {
        assert!(self.open.borrow_mut().remove(&self.number), "closed twice");
    }
}

/// A source of ports. It counts port numbers up from 30000, on the interfaces `default` (203.0.113.7, 2001:db8::7) and `internal`
/// (10.0.0.7).
#[derive(Debug)]
pub struct FakePorts {
    interfaces: Vec<Interface>,
    open: Open,
    next: u16,
    /// Maximum number of open ports.
    pub most: usize,
}

impl FakePorts {
    fn new() -> FakePorts {
        let interface = |name: &str, families: &[Family]| Interface {
            name: InterfaceName(name.into()),
            families: families.to_vec(),
        };
        FakePorts {
            interfaces: vec![
                interface("default", &[Family::V4, Family::V6]),
                interface("internal", &[Family::V4]),
            ],
            open: Open::default(),
            next: 30_000,
            most: usize::MAX,
        }
    }

    /// Returns the even numbers of all open ports.
    #[must_use]
    pub fn open(&self) -> BTreeSet<u16> {
        self.open.borrow().clone()
    }
}

impl PortSource<Ports> for FakePorts {
    fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    fn open(&mut self, request: &PortRequest) -> Result<Opened<Ports>, NoPorts> {
        if self.open.borrow().len() >= self.most {
            return Err(NoPorts("no port is free".to_owned()));
        }
        let ip: IpAddr = match (&*request.interface.0, request.family) {
            ("internal", Family::V4) => [10, 0, 0, 7].into(),
            (_, Family::V4) => [203, 0, 113, 7].into(),
            (_, Family::V6) => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 7].into(),
        };
        let free = |number: &u16| !self.open.borrow().contains(number);
        let above = (self.next..=u16::MAX - 1).step_by(2);
        let number = above.chain((30_000..self.next).step_by(2)).find(free);
        let number = number.ok_or_else(|| NoPorts("no port is free".to_owned()))?;
        self.next = number.checked_add(2).unwrap_or(30_000);
        self.open.borrow_mut().insert(number);
        Ok(Opened {
            ports: Ports {
                number,
                open: self.open.clone(),
            },
            rtp: SocketAddr::new(ip, number),
            rtcp: (request.port_use == PortUse::Pair).then(|| SocketAddr::new(ip, number + 1)),
        })
    }

    fn reopen(
        &mut self,
        _request: &PortRequest,
        rtp: SocketAddr,
        _rtcp: Option<SocketAddr>,
    ) -> Result<Ports, NoPorts> {
        let number = rtp.port();
        if self.open.borrow_mut().insert(number) {
            Ok(Ports {
                number,
                open: self.open.clone(),
            })
        } else {
            Err(NoPorts(format!("port {number} is in use")))
        }
    }
}

/// A stream on the fake media plane.
#[derive(Debug)]
pub struct Carried {
    /// The stream's call.
    pub call: CallId,
    /// The stream's specification.
    pub spec: StreamSpec,
    /// The stream's ports.
    pub ports: [Ports; 2],
    /// Number of updates of the stream.
    pub updates: usize,
}

/// A registry with fake ports and a fake media plane.
#[derive(Debug)]
pub struct Bench {
    /// The registry.
    pub calls: Calls<Ports>,
    /// The source of the registry's ports.
    pub ports: FakePorts,
    /// The streams that run on the media plane.
    pub streams: BTreeMap<StreamId, Carried>,
    /// All commands to streams so far.
    pub commands: Vec<(StreamId, StreamCommand)>,
    /// Records of all calls that have ended.
    pub ended: Vec<CallRecord>,
    /// The present time.
    pub now_ns: u64,
    random: u8,
}

impl Default for Bench {
    fn default() -> Self {
        Bench::new(Settings::default())
    }
}

impl Bench {
    /// Creates an empty registry at time 0.
    #[must_use]
    pub fn new(settings: Settings) -> Bench {
        Bench {
            calls: Calls::new(settings),
            ports: FakePorts::new(),
            streams: BTreeMap::new(),
            commands: Vec::new(),
            ended: Vec::new(),
            now_ns: 0,
            random: 0,
        }
    }

    /// Carries out a request with these keys. All counters of streams are zero.
    pub fn ask(&mut self, keys: &[(&str, &str)]) -> Reply {
        let all = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::text(value)));
        let keys: Dictionary = all.collect();
        match Request::new(keys) {
            Ok(request) => self.request(&request),
            Err(refusal) => refusal.into(),
        }
    }

    /// Carries out a request.
    pub fn request(&mut self, request: &Request) -> Reply {
        self.request_with(request, &BTreeMap::new())
    }

    /// Carries out a request. `stats` are the counters of the media plane.
    pub fn request_with(
        &mut self,
        request: &Request,
        stats: &BTreeMap<StreamId, StreamStats>,
    ) -> Reply {
        let mut next = self.random;
        let mut random = |bytes: &mut [u8]| {
            next = next.wrapping_add(1);
            bytes.fill(next);
        };
        let outcome = self
            .calls
            .handle_request(self.now_ns, request, &mut self.ports, &mut random);
        self.random = next;
        self.act();
        match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Stats(pending) => pending.finish(stats),
        }
    }

    /// Advances the clock.
    pub fn advance(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while let Some(due_ns) = self.calls.next_timeout().filter(|due_ns| *due_ns <= end_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.calls.handle_timeout(self.now_ns);
            self.act();
            let next = self.calls.next_timeout();
            assert!(
                next.is_none_or(|next| next > self.now_ns),
                "a timer does not move"
            );
        }
        self.now_ns = end_ns;
    }

    /// Continues in another process, whose clock started `later_ns` later. The streams and their ports must be the same as before.
    ///
    /// # Panics
    /// Panics if the streams or their ports differ.
    pub fn restart(&mut self, later_ns: u64) {
        let ids = self.calls.ids(None);
        let saved: Vec<Vec<u8>> = ids
            .filter_map(|id| self.calls.export(id, Reader::Later))
            .collect();
        assert_eq!(saved.len(), self.calls.len());
        let mut settings = self.calls.settings().clone();
        settings.unix_at_zero_ns += later_ns;
        self.now_ns = self.now_ns.saturating_sub(later_ns);
        let before = self.carried();
        let open = self.ports.open();
        self.calls = Calls::new(settings);
        self.streams.clear();
        assert!(self.ports.open().is_empty(), "a port is left");
        for bytes in saved {
            let restored = self.calls.restore(self.now_ns, &bytes, &mut self.ports);
            let id = restored.expect("what was exported");
            assert!(self.calls.export(&id, Reader::Later).is_some());
        }
        self.act();
        assert_eq!(self.carried(), before, "a stream is another one");
        assert_eq!(self.ports.open(), open, "ports are others");
    }

    /// Continues on another node, which has used stream numbers before. The streams must be the same except for their
    /// numbers.
    ///
    /// # Panics
    /// Panics if the streams differ, or if the first node has sent a message to the parties.
    pub fn hand_over(&mut self) {
        let ids: Vec<CallId> = self.calls.ids(None).cloned().collect();
        let export = |id: &CallId| self.calls.export(id, Reader::Later).expect("it is there");
        let saved: Vec<Vec<u8>> = ids.iter().map(export).collect();
        let before = self.carried();
        let (open, next) = (self.ports.open(), self.ports.next);
        let left: Vec<StreamId> = ids.iter().flat_map(|id| self.calls.leave(id)).collect();
        assert_eq!(left.len(), self.streams.len(), "not all streams are left");
        self.streams.retain(|stream, _| !left.contains(stream));
        assert!(self.streams.is_empty() && self.calls.is_empty());
        assert!(self.ports.open().is_empty(), "a port is left");
        let silent = (self.calls.poll_action(), self.calls.next_timeout());
        assert!(matches!(silent, (None, None)), "{silent:?}");
        self.calls = Calls::new(self.calls.settings().clone());
        for command in ["offer", "delete"] {
            self.ask(&[
                ("command", command),
                ("call-id", "of the other node"),
                ("from-tag", "x"),
                ("delete-delay", "0"),
                ("sdp", "v=0\r\no=- 1 1 IN IP4 198.51.100.7\r\ns=-\r\nc=IN IP4 198.51.100.7\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n"),
            ]);
        }
        self.ended.clear();
        self.ports.next = next;
        let mut numbers = std::collections::BTreeMap::new();
        for bytes in saved {
            let adopted = self.calls.adopt(self.now_ns, &bytes, &mut self.ports);
            numbers.extend(adopted.expect("what was exported").1);
        }
        self.act();
        let mut expected = before;
        for (stream, _, spec, _) in &mut expected {
            *stream = numbers[stream];
            if let Some(copied) = &mut spec.copies {
                copied.stream = numbers[&copied.stream];
            }
        }
        expected.sort_by_key(|(stream, ..)| *stream);
        assert_eq!(self.carried(), expected, "a stream is another one");
        assert_eq!(self.ports.open(), open, "ports are others");
    }

    /// Returns all streams, with their port numbers.
    #[must_use]
    pub fn carried(&self) -> Vec<(StreamId, CallId, StreamSpec, [u16; 2])> {
        let all = self.streams.iter().map(|(stream, one)| {
            let numbers = [one.ports[0].number, one.ports[1].number];
            (*stream, one.call.clone(), one.spec.clone(), numbers)
        });
        all.collect()
    }

    /// Carries out the actions that the registry has queued.
    pub fn act(&mut self) {
        while let Some(action) = self.calls.poll_action() {
            match action {
                Action::Create {
                    stream,
                    call,
                    spec,
                    ports,
                } => {
                    let carried = Carried {
                        call,
                        spec: *spec,
                        ports,
                        updates: 0,
                    };
                    let before = self.streams.insert(stream, carried);
                    assert!(before.is_none(), "{stream:?} is created twice");
                }
                Action::Update { stream, spec } => {
                    let carried = self.streams.get_mut(&stream).expect("a stream to change");
                    assert_ne!(carried.spec, *spec, "an update changes nothing");
                    carried.spec = *spec;
                    carried.updates += 1;
                }
                Action::Remove { stream } => {
                    self.streams.remove(&stream).expect("a stream to end");
                }
                Action::Command { stream, command } => {
                    assert!(self.streams.contains_key(&stream), "a command to no stream");
                    self.commands.push((stream, command));
                }
                Action::Ended { record } => {
                    let is_of = |one: &Carried| one.call == record.call;
                    assert!(
                        !self.streams.values().any(is_of),
                        "an ended call has streams"
                    );
                    self.ended.push(*record);
                }
            }
        }
    }

    /// Returns the only stream.
    #[must_use]
    pub fn only(&self) -> &Carried {
        assert_eq!(self.streams.len(), 1, "{:?}", self.streams);
        self.streams.values().next().expect("one stream")
    }
}
