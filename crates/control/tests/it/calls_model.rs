//! Random sequences of offers, answers, deletes and re-offers, with retransmissions, forks and a lack of ports. The registry must never
//! leak a port or mix up two calls. A simple model predicts how many ports each dialog has. A second registry, whose process never
//! restarts, predicts each reply and the specification of each stream.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use threadbare_control::calls::{CallId, Settings, StreamKind, Timeouts};
use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::{Dictionary, Encoding, Incoming, RequestTable, Value, write};

const S: u64 = 1_000_000_000;
const OFFER_TIMEOUT_NS: u64 = 30 * S;
const DELAY_NS: u64 = 3 * S;
/// How long a branch may ring (RFC 3261, section 16.6, timer C).
const RINGING_NS: u64 = 180 * S;

const CALLS: usize = 3;
const BRANCHES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Audio,
    Video,
    /// The line is rejected: its port is 0.
    None,
}

/// A request about a dialog.
#[derive(Debug, Clone)]
enum Ask {
    /// An offer by this party (0 is the caller) with these lines. Its dialog is found by the tags or by the branch.
    Offer {
        party: usize,
        by_tags: bool,
        kinds: Vec<Kind>,
    },
    /// An answer that accepts some of the lines. A second phone may answer too.
    Answer {
        accepted: Vec<bool>,
        phone: usize,
        by_branch: bool,
    },
    /// A `delete` that finds the dialog by tags or by branch, at once or later.
    Delete { by_tags: bool, is_late: bool },
    /// A `delete` of all dialogs of the call, at once.
    DeleteAll,
}

#[derive(Debug, Clone)]
struct Step {
    call: usize,
    branch: usize,
    ask: Ask,
    /// Number of seconds before the request.
    wait_s: u64,
    /// Number of retransmissions.
    again: usize,
    /// Whether all ports are in use.
    is_full: bool,
    /// Whether the process restarts before the request.
    is_restarted: bool,
}

/// The model of a dialog. For each line, it has the agreed state and the ports that the last offer opened.
#[derive(Debug, Clone, Default)]
struct Twin {
    agreed: Vec<Option<Kind>>,
    fresh: Vec<Option<Kind>>,
    offered: Vec<Kind>,
    /// The author of the last offer.
    author: usize,
    /// The phones that have answered.
    phones: Vec<usize>,
    is_answered: bool,
    offered_ns: u64,
    delete_ns: Option<u64>,
}

impl Twin {
    fn offer(&mut self, now_ns: u64, author: usize, kinds: &[Kind]) {
        let at = |list: &[Option<Kind>], place: usize| list.get(place).copied().flatten();
        let fresh = kinds.iter().enumerate().map(|(place, kind)| match kind {
            Kind::None => None,
            kind if at(&self.fresh, place) == Some(*kind) => Some(*kind),
            kind if at(&self.agreed, place) == Some(*kind) => None,
            kind => Some(*kind),
        });
        self.fresh = fresh.collect();
        self.offered = kinds.to_vec();
        self.author = author;
        if !self.is_answered {
            self.offered_ns = now_ns;
        }
        self.delete_ns = None;
    }

    fn answer(&mut self, accepted: &[bool], phone: usize) {
        self.agreed
            .resize(self.agreed.len().max(self.offered.len()), None);
        for (place, kind) in self.offered.iter().enumerate() {
            let is_accepted = *kind != Kind::None && accepted[place % accepted.len()];
            self.agreed[place] = if !is_accepted {
                None
            } else {
                self.fresh[place].take().or(self.agreed[place])
            };
        }
        if self.author == 0 {
            self.phones.retain(|one| *one != phone);
            self.phones.push(phone);
        }
        self.is_answered = true;
        self.delete_ns = None;
    }

    fn legs(&self) -> usize {
        2 * (self.fresh.iter().flatten().count() + self.streams())
    }

    fn streams(&self) -> usize {
        self.agreed.iter().flatten().count()
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let unanswered = !self.is_answered && self.offered_ns + OFFER_TIMEOUT_NS <= now_ns;
        unanswered || self.delete_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }
}

struct Model {
    bench: Bench,
    /// The registry whose process never restarts.
    still: Bench,
    table: RequestTable<u8>,
    twins: BTreeMap<(usize, usize), Twin>,
    /// The call that owns each port.
    owners: BTreeMap<u16, usize>,
    cookies: usize,
}

/// Returns the address of a party. Each party of each call has its own.
fn ip(call: usize, party: usize) -> String {
    format!("198.51.{}.{}", 100 + call, party + 1)
}

fn sdp(call: usize, party: usize, kinds: impl Iterator<Item = Kind>) -> String {
    let ip = ip(call, party);
    let mut out = format!("v=0\r\no=- 1 1 IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\n");
    for (place, kind) in kinds.enumerate() {
        let port = 4000 + 2 * place;
        out += &match kind {
            Kind::Audio => format!("m=audio {port} RTP/AVP 0\r\n"),
            Kind::Video => format!("m=video {port} RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\n"),
            Kind::None => "m=audio 0 RTP/AVP 0\r\n".to_owned(),
        };
    }
    out
}

fn tag(branch: usize, phone: usize) -> String {
    format!("b{branch}-{phone}")
}

impl Model {
    fn new() -> Model {
        let timeouts = Timeouts {
            offer_ns: Some(OFFER_TIMEOUT_NS),
            media_ns: None,
            silent_ns: None,
            final_ns: None,
            delete_delay_ns: DELAY_NS,
        };
        let settings = Settings {
            timeouts,
            ..Settings::default()
        };
        Model {
            bench: Bench::new(settings.clone()),
            still: Bench::new(settings),
            table: RequestTable::new(),
            twins: BTreeMap::new(),
            owners: BTreeMap::new(),
            cookies: 0,
        }
    }

    /// Sends a request and its retransmissions. Returns whether it succeeded.
    fn send(&mut self, keys: &[(&str, String)], again: usize) -> bool {
        self.cookies += 1;
        let all = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::text(value)));
        let dictionary: Dictionary = all.collect();
        let cookie = self.cookies.to_string();
        let message = write(cookie.as_bytes(), Encoding::Bencode, &dictionary);
        let Incoming::Request(request, ticket) =
            self.table.handle_message(self.bench.now_ns, 1, &message)
        else {
            panic!("a request");
        };
        let reply = self.bench.request(&request);
        assert_eq!(reply, self.still.request(&request));
        let bytes = self.table.finish(ticket, reply);
        let open = self.bench.ports.open();
        for _ in 0..again {
            match self.table.handle_message(self.bench.now_ns, 1, &message) {
                Incoming::Send(same) => assert_eq!(same, bytes),
                other => panic!("{other:?}"),
            }
            assert_eq!(self.bench.ports.open(), open);
        }
        bytes.windows(9).any(|part| part == b"result2:o")
    }

    fn step(&mut self, step: &Step) {
        self.bench.advance(step.wait_s * S);
        self.still.advance(step.wait_s * S);
        if step.is_restarted {
            self.bench.restart(0);
        }
        let now_ns = self.bench.now_ns;
        self.twins.retain(|_, twin| !twin.is_over(now_ns));
        self.check();
        let (call, branch) = (step.call, step.branch);
        let before = self.bench.ports.open();
        self.bench.ports.most = if step.is_full {
            before.len()
        } else {
            usize::MAX
        };
        self.still.ports.most = self.bench.ports.most;
        let done = self.ask(step);
        let after = self.bench.ports.open();
        for port in after.difference(&before) {
            self.owners.insert(*port, call);
        }
        // Ports of other calls must neither open nor close.
        let others = |open: &BTreeSet<u16>| {
            open.iter()
                .copied()
                .filter(|port| self.owners[port] != call)
                .collect::<Vec<u16>>()
        };
        assert_eq!(others(&before), others(&after));
        if !done {
            assert_eq!(before, after, "{step:?} was refused");
        }
        let _ = branch;
        let query = [("command", "query"), ("call-id", &format!("call-{call}"))];
        assert_eq!(self.bench.ask(&query), self.still.ask(&query));
        self.check();
    }

    fn ask(&mut self, step: &Step) -> bool {
        let (call, branch) = (step.call, step.branch);
        let now_ns = self.bench.now_ns;
        let mut keys = vec![("call-id", format!("call-{call}"))];
        let via = ("via-branch", format!("branch-{branch}"));
        let twin = self.twins.get(&(call, branch)).cloned();
        // The party's tag is that of the phone that answered last.
        let phone = twin.as_ref().and_then(|twin| twin.phones.last().copied());
        match &step.ask {
            Ask::Offer {
                party,
                by_tags,
                kinds,
            } => {
                let author = if phone.is_some() { *party } else { 0 };
                let mut kinds = kinds.clone();
                // "if the previous SDP had N "m=" lines, the new SDP MUST have at least N "m=" lines" (RFC 3264, section 8).
                let least = twin.as_ref().map_or(0, |twin| twin.offered.len());
                kinds.resize(kinds.len().max(least), Kind::None);
                keys.extend([
                    ("command", "offer".to_owned()),
                    ("sdp", sdp(call, author, kinds.iter().copied())),
                ]);
                match (author, phone) {
                    (1, Some(phone)) => {
                        keys.extend([("from-tag", tag(branch, phone)), ("to-tag", "a".to_owned())])
                    }
                    (_, Some(phone)) if *by_tags => {
                        keys.extend([("from-tag", "a".to_owned()), ("to-tag", tag(branch, phone))])
                    }
                    _ => keys.extend([("from-tag", "a".to_owned()), via]),
                }
                let done = self.send(&keys, step.again);
                assert!(done || step.is_full, "an offer is refused");
                if done {
                    self.twins
                        .entry((call, branch))
                        .or_default()
                        .offer(now_ns, author, &kinds);
                }
                done
            }
            Ask::Answer {
                accepted,
                phone: other,
                by_branch,
            } => {
                let (offered, author) = twin
                    .as_ref()
                    .map_or((Vec::new(), 0), |twin| (twin.offered.clone(), twin.author));
                let kinds = offered.iter().enumerate().map(|(place, kind)| {
                    if accepted[place % accepted.len()] {
                        *kind
                    } else {
                        Kind::None
                    }
                });
                keys.extend([
                    ("command", "answer".to_owned()),
                    ("sdp", sdp(call, 1 - author, kinds)),
                ]);
                let is_known = phone == Some(*other);
                match (author, phone) {
                    (1, Some(phone)) => {
                        keys.extend([("from-tag", tag(branch, phone)), ("to-tag", "a".to_owned())])
                    }
                    _ => keys.extend([
                        ("from-tag", "a".to_owned()),
                        ("to-tag", tag(branch, *other)),
                    ]),
                }
                // A tag that the registry does not know yet does not identify the branch.
                if *by_branch || !is_known && author == 0 {
                    keys.push(via);
                }
                if twin.is_none() {
                    // As documented, the answer may find the offer of another branch. This test does not check that.
                    return true;
                }
                let done = self.send(&keys, step.again);
                assert!(done, "an answer is refused");
                self.twins
                    .get_mut(&(call, branch))
                    .expect("a twin")
                    .answer(accepted, *other);
                done
            }
            Ask::Delete { by_tags, is_late } => {
                keys.extend([
                    ("command", "delete".to_owned()),
                    ("from-tag", "a".to_owned()),
                ]);
                if !is_late {
                    keys.push(("delete-delay", "0".to_owned()));
                }
                let by_tags = phone.filter(|_| *by_tags);
                match by_tags {
                    Some(phone) => keys.push(("to-tag", tag(branch, phone))),
                    None => keys.push(via),
                }
                let Some(twin) = twin else {
                    return true;
                };
                let done = self.send(&keys, step.again);
                let due_ns = if *is_late { now_ns + DELAY_NS } else { now_ns };
                // Other branches of the same caller may still ring, and their dialogs stay.
                let leaves = by_tags.is_some() && twin.is_answered;
                for (key, one) in self.twins.iter_mut().filter(|(key, _)| key.0 == call) {
                    let at_ns = if key.1 == branch {
                        due_ns
                    } else if leaves && !one.is_answered {
                        now_ns + RINGING_NS
                    } else {
                        continue;
                    };
                    one.delete_ns = Some(one.delete_ns.map_or(at_ns, |before| before.min(at_ns)));
                }
                self.twins.retain(|_, twin| !twin.is_over(now_ns));
                done
            }
            Ask::DeleteAll => {
                keys.extend([
                    ("command", "delete".to_owned()),
                    ("delete-delay", "0".to_owned()),
                ]);
                let done = self.send(&keys, step.again);
                self.twins.retain(|key, _| key.0 != call);
                done
            }
        }
    }

    fn check(&self) {
        // The numbers of streams may start again if no call is left that uses them. Only their order must stay the same.
        let carried = |bench: &Bench| {
            let all = bench.carried().into_iter();
            let all = all.map(|(_, call, spec, ports)| (call, spec, ports));
            all.collect::<Vec<_>>()
        };
        assert_eq!(carried(&self.bench), carried(&self.still));
        let calls: BTreeSet<usize> = self.twins.keys().map(|key| key.0).collect();
        let known: BTreeSet<CallId> = self.bench.calls.ids(None).cloned().collect();
        let expected = calls
            .iter()
            .map(|call| CallId::new(format!("call-{call}").as_bytes()));
        assert_eq!(known, expected.collect());
        for call in 0..CALLS {
            let twins = || {
                self.twins
                    .iter()
                    .filter(|(key, _)| key.0 == call)
                    .map(|(_, twin)| twin)
            };
            let open = self
                .bench
                .ports
                .open()
                .into_iter()
                .filter(|port| self.owners.get(port) == Some(&call));
            assert_eq!(
                open.count(),
                twins().map(Twin::legs).sum::<usize>(),
                "call {call}: ports"
            );
            let id = CallId::new(format!("call-{call}").as_bytes());
            let carried = || self.bench.streams.values().filter(|one| one.call == id);
            assert_eq!(
                carried().count(),
                twins().map(Twin::streams).sum::<usize>(),
                "call {call}: streams"
            );
            let audio = carried()
                .filter(|one| one.spec.kind == StreamKind::Audio)
                .count();
            let agreed = twins().flat_map(|twin| twin.agreed.iter().flatten());
            assert_eq!(audio, agreed.filter(|kind| **kind == Kind::Audio).count());
            for stream in carried() {
                for (party, side) in stream.spec.sides.iter().enumerate() {
                    let address = side.rtp.expect("known by the answer").ip().to_string();
                    assert_eq!(
                        address,
                        ip(call, party),
                        "a stream has the party of another call"
                    );
                    assert_eq!(self.owners[&stream.ports[party].number], call);
                }
            }
        }
    }
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        4 => Just(Kind::Audio),
        2 => Just(Kind::Video),
        1 => Just(Kind::None),
    ];
    prop::collection::vec(kind, 1..4)
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        5 => (0..2_usize, any::<bool>(), kinds()).prop_map(|(party, by_tags, kinds)| Ask::Offer { party, by_tags, kinds }),
        5 => (prop::collection::vec(prop::bool::weighted(0.8), 1..4), prop_oneof![4 => Just(0_usize), 1 => Just(1)], any::<bool>())
            .prop_map(|(accepted, phone, by_branch)| Ask::Answer { accepted, phone, by_branch }),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(by_tags, is_late)| Ask::Delete { by_tags, is_late }),
        1 => Just(Ask::DeleteAll),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wait_s = prop_oneof![6 => Just(0_u64), 3 => 1..5_u64, 1 => 5..60_u64];
    (
        0..CALLS,
        0..BRANCHES,
        ask(),
        wait_s,
        0..3_usize,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(call, branch, ask, wait_s, again, is_full, is_restarted)| Step {
                call,
                branch,
                ask,
                wait_s,
                again,
                is_full,
                is_restarted,
            },
        )
}

proptest! {
    #[test]
    fn no_port_leaks_and_calls_do_not_mix(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        for call in 0..CALLS {
            let keys = [("command", "delete".to_owned()), ("call-id", format!("call-{call}")), ("delete-delay", "0".to_owned())];
            model.send(&keys, 1);
        }
        prop_assert!(model.bench.ports.open().is_empty() && model.bench.streams.is_empty());
        prop_assert_eq!(model.bench.calls.next_timeout(), None);
    }
}
