//! `ts-rtpjitterbuffer` behaves like the stock element as far as it promises, and has additional functions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;
use gst_check::TestClock;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;
const START: gst::ClockTime = gst::ClockTime::ZERO;
const OURS: &str = "ts-rtpjitterbuffer";
/// 20 ms at 8000 Hz.
const UNITS: u32 = 160;

/// Returns packet `seq` of a stream, sent this long after its start.
fn rtp(payload_type: u8, seq: u16, sent: gst::ClockTime) -> Vec<u8> {
    let time = (sent.mseconds() * 8) as u32;
    let mut packet = vec![0x80, payload_type];
    packet.extend(seq.to_be_bytes());
    packet.extend(time.to_be_bytes());
    packet.extend(7u32.to_be_bytes());
    packet.extend([0x55; UNITS as usize]);
    packet
}

fn arriving(packet: Vec<u8>, at: gst::ClockTime) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_slice(packet);
    buffer.get_mut().unwrap().set_dts(at);
    buffer
}

fn seq(buffer: &gst::BufferRef) -> u16 {
    let map = buffer.map_readable().unwrap();
    u16::from_be_bytes([map[2], map[3]])
}

/// An element that plays by a clock that moves only on request.
struct Bench {
    rig: Rig,
    clock: TestClock,
}

impl Bench {
    fn new(line: &str) -> Bench {
        Bench::with_caps(
            line,
            "application/x-rtp, media=audio, clock-rate=8000, encoding-name=PCMU, payload=0",
        )
    }

    fn with_caps(line: &str, caps: &str) -> Bench {
        let rig = Rig::without_stream(line, gst::State::Ready);
        let clock = TestClock::new();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(gst::ClockTime::ZERO);
        rig.element.set_state(gst::State::Playing).unwrap();
        let bench = Bench { rig, clock };
        assert!(
            bench
                .rig
                .feed
                .push_event(gst::event::StreamStart::new("a-stream"))
        );
        assert!(
            bench
                .rig
                .feed
                .push_event(gst::event::Caps::new(&caps.parse::<gst::Caps>().unwrap()))
        );
        bench.rig.open_segment();
        bench
    }

    fn push(&self, seq: u16, at: gst::ClockTime) {
        let packet = rtp(0, seq, 20 * MS * u64::from(seq));
        self.rig.push(arriving(packet, at)).unwrap();
    }

    /// Waits for due timers, and lets them fire.
    fn fire(&self) {
        let now = self.clock.time();
        while self.clock.next_entry_time().is_some_and(|time| time <= now) {
            self.clock.process_next_clock_id();
        }
    }

    /// Moves the clock to `until`, and stops at each timer on the way until the element has done the timer's work.
    fn run_until(&self, until: gst::ClockTime, output: &mut Output) {
        let settle = |output: &mut Output| {
            eventually("the element rests", || {
                let counted =
                    stat(&self.rig.element, "num-pushed") + stat(&self.rig.element, "num-lost");
                other_threads_sleep() && output.items(&self.rig) == counted
            });
        };
        settle(output);
        while let Some(time) = self.clock.next_entry_time().filter(|time| *time <= until) {
            self.clock.set_time(time.max(self.clock.time()));
            self.fire();
            settle(output);
        }
        self.clock.set_time(until);
    }

    fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        eventually(what, || {
            self.fire();
            condition()
        });
    }

    /// Waits until this many packets have been pushed or given up.
    fn wait_settled(&self, packets: u64) {
        self.eventually("all packets are pushed or lost", || {
            stat(&self.rig.element, "num-pushed") + stat(&self.rig.element, "num-lost") == packets
        });
    }

    /// Returns the next packets and loss events, up to packet `last`.
    fn until(&self, last: u16) -> Vec<String> {
        let mut out = Vec::new();
        loop {
            match self.rig.seen.recv_timeout(DEADLINE).expect("nothing came") {
                Seen::Buffer(buffer) => {
                    out.push(seq(&buffer).to_string());
                    if seq(&buffer) == last {
                        return out;
                    }
                }
                Seen::Event(event) => out.extend(told(&event)),
            }
        }
    }
}

/// The output of an element so far.
#[derive(Default)]
struct Output {
    buffers: Vec<gst::Buffer>,
    lost: u64,
}

impl Output {
    /// Returns the number of packets that have been pushed or reported as lost.
    fn items(&mut self, rig: &Rig) -> u64 {
        self.read(rig);
        self.buffers.len() as u64 + self.lost
    }

    fn read(&mut self, rig: &Rig) {
        for seen in rig.seen.try_iter() {
            match seen {
                Seen::Buffer(buffer) => self.buffers.push(buffer),
                Seen::Event(event) => {
                    if let Some(lost) = event.structure().filter(|s| s.name() == "GstRTPPacketLost")
                    {
                        self.lost += u64::from(lost.get::<u32>("packets").unwrap_or(1));
                    }
                }
            }
        }
    }
}

/// Describes an event for the lists of these tests. The usual first events are omitted.
fn told(event: &gst::Event) -> Option<String> {
    if let Some(lost) = event.structure().filter(|s| s.name() == "GstRTPPacketLost") {
        let first = lost.get::<u32>("seqnum").unwrap();
        let packets = lost.get::<u32>("packets").unwrap_or(1);
        let all = (first..first + packets).map(|seq| format!("lost {seq}"));
        return Some(all.collect::<Vec<_>>().join(", "));
    }
    match event.type_() {
        gst::EventType::CustomDownstream => Some(event.structure()?.name().to_string()),
        gst::EventType::Eos => Some("eos".into()),
        _ => None,
    }
}

/// Whether all other threads of this process sleep, and none of them has run between two looks at them.
fn other_threads_sleep() -> bool {
    let look = || -> Option<u64> {
        let own = std::fs::read_link("/proc/thread-self").ok()?;
        let mut switches = 0;
        for task in std::fs::read_dir("/proc/self/task").ok()? {
            let task = task.ok()?;
            if Some(task.file_name().as_os_str()) == own.file_name() {
                continue;
            }
            // A thread that ends between two reads was running.
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name))?;
                line.split_ascii_whitespace().nth(1)
            };
            if field("State:")? != "S" {
                return None;
            }
            for name in ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"] {
                switches += field(name)?.parse::<u64>().ok()?;
            }
        }
        Some(switches)
    };
    let first = look();
    first.is_some() && first == look()
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// An element's output for a seeded stream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Numbers and times.
    pushed: Vec<(u16, gst::ClockTime)>,
    lost: Vec<u16>,
    num_pushed: u64,
    num_lost: u64,
    /// Number of late and duplicate packets. If a packet arrives again after it was output, one element counts a duplicate, and
    /// the other one a late packet.
    num_useless: u64,
}

const BLOCK: u16 = 40;
const BLOCKS: u16 = 4;

/// Packets are reordered by up to 60 ms at a latency of 200 ms, lost, duplicated, and far too late. The last packet of each block
/// is not lost, because no later packet would show its loss.
fn run(factory: &str, seed: u64) -> Outcome {
    let bench = Bench::new(&format!("{factory} latency=200 do-lost=true mode=none"));
    let mut random = Random(seed);
    // With this mode, the stock element assumes that the stream begins at running time 0.
    let mut start = gst::ClockTime::ZERO;
    for block in 0..BLOCKS {
        let mut arrivals = Vec::new();
        let mut late = Vec::new();
        for at in 0..BLOCK {
            let seq = block * BLOCK + at;
            let sent = start + 20 * MS * u64::from(at);
            let is_last = at == BLOCK - 1;
            // After a silence, a reordered packet is given up at once, because it should have arrived long ago.
            let first = at == 0;
            match random.below(12) {
                0 | 1 if !is_last && !first => {
                    if random.below(3) == 0 {
                        late.push((seq, sent));
                    }
                    continue;
                }
                2 => arrivals.push((sent + random.below(60) * MS + MS, seq, sent)),
                _ => {}
            }
            let delay = if first { 0 } else { random.below(60) };
            arrivals.push((sent + delay * MS, seq, sent));
        }
        arrivals.sort();
        let mut ends = start;
        for (at, seq, sent) in arrivals {
            bench.clock.set_time(at);
            bench.fire();
            bench.rig.push(arriving(rtp(0, seq, sent), at)).unwrap();
            ends = at;
        }
        start = ends + gst::ClockTime::SECOND;
        bench.clock.set_time(start);
        bench.wait_settled(u64::from((block + 1) * BLOCK));
        for (seq, sent) in late {
            let before = useless(&bench.rig.element);
            bench.rig.push(arriving(rtp(0, seq, sent), start)).unwrap();
            bench.eventually("the late one is counted", || {
                useless(&bench.rig.element) == before + 1
            });
        }
    }
    assert!(bench.rig.feed.push_event(gst::event::Eos::new()));
    let mut outcome = Outcome {
        pushed: Vec::new(),
        lost: Vec::new(),
        num_pushed: stat(&bench.rig.element, "num-pushed"),
        num_lost: stat(&bench.rig.element, "num-lost"),
        num_useless: useless(&bench.rig.element),
    };
    loop {
        match bench.rig.seen.recv_timeout(DEADLINE).expect("no end") {
            Seen::Buffer(buffer) => outcome.pushed.push((seq(&buffer), buffer.pts().unwrap())),
            Seen::Event(event) if event.type_() == gst::EventType::Eos => return outcome,
            Seen::Event(event) => {
                if let Some(lost) = event.structure().filter(|s| s.name() == "GstRTPPacketLost") {
                    let first = lost.get::<u32>("seqnum").unwrap() as u16;
                    let packets = lost.get::<u32>("packets").unwrap_or(1) as u16;
                    outcome.lost.extend(first..first + packets);
                }
            }
        }
    }
}

fn useless(element: &gst::Element) -> u64 {
    stat(element, "num-late") + stat(element, "num-duplicates")
}

#[test]
fn output_equals_the_stock_elements() {
    for seed in 1..=6 {
        let ours = run(OURS, seed);
        assert!(!ours.lost.is_empty() && ours.num_useless > 0, "{ours:?}");
        assert_eq!(ours, run("rtpjitterbuffer", seed), "seed {seed}");
    }
}

/// A stream whose delay steps by this much, up or down, after its first 60 packets: the sender pauses, and so do its timestamps,
/// or the path changes. Delays and times are in ms.
#[derive(Debug, Clone, Copy)]
struct Step {
    by: i64,
    jitter: u64,
}

/// The result of a run: the count of packets, and the mean delay from 2 s after the step on, in ms.
#[derive(Debug)]
struct Steady {
    pushed: u64,
    delay: f64,
}

const STEP_AT: u16 = 60;
const STEP_PACKETS: u16 = 360;
/// Delay of the path before a step, so that it can become shorter.
const PATH: u64 = 3_000;

fn run_step(factory: &str, step: Step) -> Steady {
    let bench = Bench::new(&format!("{factory} latency=100 do-lost=true"));
    let mut random = Random(step.by.unsigned_abs() + step.jitter);
    let joined = u64::from(STEP_AT) * 20 + PATH.saturating_add_signed(step.by);
    let mut arrivals: Vec<(u64, u16)> = (0..STEP_PACKETS)
        .map(|seq| {
            let arrival = u64::from(seq) * 20 + PATH + random.below(step.jitter + 1);
            match seq {
                STEP_AT.. => (arrival.saturating_add_signed(step.by), seq),
                // Packets on the longer path arrive with the first packet of the shorter one.
                _ if step.by < 0 => (arrival.min(joined), seq),
                _ => (arrival, seq),
            }
        })
        .collect();
    arrivals.sort_unstable();
    let mut output = Output::default();
    for (at, seq) in arrivals {
        bench.run_until(at * MS, &mut output);
        bench
            .rig
            .push(arriving(rtp(0, seq, 20 * MS * u64::from(seq)), at * MS))
            .unwrap();
    }
    bench.clock.set_time(gst::ClockTime::from_seconds(60));
    bench.eventually("the last packet is pushed", || {
        output.read(&bench.rig);
        output
            .buffers
            .last()
            .is_some_and(|buffer| seq(buffer) == STEP_PACKETS - 1)
    });
    let steady = output
        .buffers
        .iter()
        .filter(|buffer| seq(buffer) >= STEP_AT + 100);
    let delays: Vec<f64> = steady
        .map(|buffer| buffer.pts().unwrap().mseconds() as f64 - f64::from(seq(buffer)) * 20.0)
        .collect();
    Steady {
        pushed: stat(&bench.rig.element, "num-pushed"),
        delay: delays.iter().sum::<f64>() / delays.len() as f64,
    }
}

#[test]
fn after_a_step_packets_are_in_time_and_no_later_than_of_the_stock_element() {
    for by in [20, 50, 100, 150, 300, 1_000, 2_900] {
        for by in [by, -by] {
            for jitter in [0, 30, 60] {
                let step = Step { by, jitter };
                let ours = run_step(OURS, step);
                let stock = run_step("rtpjitterbuffer", step);
                assert!(ours.pushed >= stock.pushed, "{step:?}: {ours:?} {stock:?}");
                // A sink still plays a packet that is late by no more than the latency, 100 ms.
                let path = PATH.saturating_add_signed(by) as f64;
                assert!(
                    ours.delay + 100.0 >= path,
                    "{step:?}: late for a sink: {ours:?} {stock:?}"
                );
                assert!(
                    ours.delay <= stock.delay + 5.0,
                    "{step:?}: {ours:?} {stock:?}"
                );
            }
        }
    }
}

#[test]
fn names_types_and_defaults_are_those_of_the_stock_element() {
    let (ours, theirs) = (make(OURS), make("rtpjitterbuffer"));
    for name in [
        "latency",
        "drop-on-latency",
        "do-lost",
        "max-dropout-time",
        "max-misorder-time",
        "ts-offset",
        "faststart-min-packets",
    ] {
        let (our, their) = (ours.property_value(name), theirs.property_value(name));
        assert_eq!(our.type_(), their.type_(), "{name}");
        assert!(
            our.compare(&their).is_some_and(|order| order.is_eq()),
            "{name}: {our:?}"
        );
        let flags = |element: &gst::Element| element.find_property(name).unwrap().flags();
        assert!(
            flags(&ours).contains(gst::glib::ParamFlags::READWRITE),
            "{name}"
        );
    }
    assert_eq!(
        ours.property_type("percent"),
        theirs.property_type("percent")
    );
    let mode = |element: &gst::Element| {
        let value = element.property_value("mode");
        gst::glib::EnumValue::from_value(&value).unwrap().1.value()
    };
    assert_eq!(mode(&ours), mode(&theirs));
    for nick in ["none", "buffer", "synced", "slave"] {
        for element in [&ours, &theirs] {
            element.set_property_from_str("mode", nick);
        }
        assert_eq!(mode(&ours), mode(&theirs), "{nick}");
    }
    let stats = |element: &gst::Element| element.property::<gst::Structure>("stats");
    assert_eq!(stats(&ours).name(), stats(&theirs).name());
    for (name, value) in stats(&theirs).iter() {
        let our = stats(&ours).value(name).unwrap().type_();
        assert_eq!(our, value.type_(), "{name}");
    }
    for signal in ["request-pt-map", "clear-pt-map"] {
        let of = |element: &gst::Element| {
            gst::glib::subclass::SignalId::lookup(signal, element.type_())
                .unwrap_or_else(|| panic!("no {signal}"))
                .query()
                .flags()
                .contains(gst::glib::SignalFlags::ACTION)
        };
        assert_eq!(of(&ours), of(&theirs), "{signal}");
    }
}

#[test]
fn events_keep_their_place_among_packets() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1 do-lost=true"));
    let mark = |name: &str| {
        let structure = gst::Structure::new_empty(name);
        let event = gst::event::CustomDownstream::new(structure);
        assert!(bench.rig.feed.push_event(event));
    };
    bench.push(0, START);
    mark("a");
    bench.push(2, 40 * MS);
    mark("b");
    bench.push(3, 60 * MS);
    mark("c");
    assert_eq!(bench.until(0), ["0"]);
    // Packet 1 would have come at 20 ms, and its deadline is 200 ms after that.
    bench.clock.set_time(221 * MS);
    bench.wait_settled(4);
    assert_eq!(bench.until(3), ["a", "lost 1", "2", "b", "3"]);
    bench.push(4, 80 * MS);
    assert_eq!(bench.until(4), ["c", "4"]);
}

#[test]
fn packet_in_time_fills_its_gap_before_later_events() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1 do-lost=true"));
    bench.push(0, START);
    bench.push(2, 40 * MS);
    let mark = gst::event::CustomDownstream::new(gst::Structure::new_empty("mark"));
    assert!(bench.rig.feed.push_event(mark));
    bench.push(1, 50 * MS);
    bench.push(3, 60 * MS);
    assert_eq!(bench.until(3), ["0", "1", "2", "mark", "3"]);
}

#[test]
fn end_of_the_stream_releases_all_packets() {
    let bench = Bench::new(&format!("{OURS} do-lost=true"));
    // No packet has been output yet: the first ones wait for those before them.
    bench.push(5, START);
    bench.push(7, 40 * MS);
    assert!(bench.rig.feed.push_event(gst::event::Eos::new()));
    let mut all = bench.until(7);
    all.extend(told(&bench.rig.event(gst::EventType::Eos)));
    assert_eq!(all, ["5", "lost 6", "7", "eos"]);
}

#[test]
fn a_candidate_for_a_new_source_does_not_delay_the_end() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1"));
    bench.push(0, START);
    bench.push(30_000, 20 * MS);
    assert!(bench.rig.feed.push_event(gst::event::Eos::new()));
    bench.rig.event(gst::EventType::Eos);
}

#[test]
fn the_jitter_buffer_adds_its_latency_to_that_of_upstream() {
    for element in [OURS, "rtpjitterbuffer"] {
        let pipe = Pipe::parse(&format!(
            "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! mulawenc ! rtppcmupay ! {element} name=jb latency=70 ! fakesink name=sink async=false"
        ));
        let packets = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        // Before its first buffer, the source answers with a latency that it changes later.
        next_buffer(&packets);
        let mut query = gst::query::Latency::new();
        assert!(pipe.pad("jb", "src").query(&mut query));
        let mut upstream = gst::query::Latency::new();
        assert!(pipe.pad("jb", "sink").peer_query(&mut upstream));
        let (_, min, _) = upstream.result();
        assert_eq!(query.result(), (true, min + 70 * MS, None), "{element}");
    }
}

#[test]
fn flush_drops_queued_packets_and_the_stream_restarts() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1 do-lost=true"));
    bench.push(0, START);
    bench.push(2, 40 * MS);
    let caps =
        "application/x-rtp, media=audio, clock-rate=8000, encoding-name=PCMU, payload=0, a=b"
            .parse::<gst::Caps>()
            .unwrap();
    assert!(bench.rig.feed.push_event(gst::event::Caps::new(&caps)));
    bench.eventually("packet 2 is held", || {
        stat_held(&bench.rig.element) == 1 && bench.clock.peek_id_count() == 1
    });
    assert!(bench.rig.feed.push_event(gst::event::FlushStart::new()));
    assert!(bench.rig.feed.push_event(gst::event::FlushStop::new(true)));
    bench.rig.open_segment();
    bench.clock.set_time(1000 * MS);
    bench.push(10, 1000 * MS);
    bench.push(11, 1020 * MS);
    assert_eq!(bench.until(11), ["0", "10", "11"]);
    // Packets that were pushed before the flush may still pass.
    let src = bench.rig.element.static_pad("src").unwrap();
    assert_eq!(src.current_caps(), Some(caps));
    assert_eq!(stat(&bench.rig.element, "num-lost"), 0);
}

fn stat_held(element: &gst::Element) -> u32 {
    element
        .property::<gst::Structure>("stats")
        .get("num-held")
        .unwrap()
}

#[test]
fn the_clock_rate_is_requested_once_for_each_payload_type() {
    let bench = Bench::with_caps(
        &format!("{OURS} faststart-min-packets=1"),
        "application/x-rtp",
    );
    let asked = Arc::new(Mutex::new(Vec::new()));
    let of_signal = asked.clone();
    bench
        .rig
        .element
        .connect("request-pt-map", false, move |values| {
            let payload_type = values[1].get::<u32>().unwrap();
            of_signal.lock().unwrap().push(payload_type);
            let caps = gst::Caps::builder("application/x-rtp").field("clock-rate", 8000i32);
            (payload_type == 96)
                .then(|| caps.build().to_value())
                .or_else(|| Some(None::<gst::Caps>.to_value()))
        });
    let push = |payload_type, seq: u16| {
        let packet = rtp(payload_type, seq, 20 * MS * u64::from(seq));
        bench
            .rig
            .push(arriving(packet, 20 * MS * u64::from(seq)))
            .unwrap();
    };
    // Before any payload type is known, 97 is refused. Later, it counts as an event between packets of 96 (RFC 4733).
    for (at, payload_type) in [97, 96, 96, 97, 96, 97].into_iter().enumerate() {
        push(payload_type, at as u16);
    }
    assert_eq!(bench.until(5), ["1", "2", "3", "4", "5"]);
    assert_eq!(*asked.lock().unwrap(), [97, 96, 97]);
    assert_eq!(stat(&bench.rig.element, "unknown-payload-type"), 1);
    let warning = bench
        .rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Warning])
        .unwrap();
    assert!(text(&warning).contains("request-pt-map"));
    bench.rig.element.emit_by_name::<()>("clear-pt-map", &[]);
    push(96, 6);
    assert_eq!(bench.until(6), ["6"]);
    assert_eq!(*asked.lock().unwrap(), [97, 96, 97, 96]);
}

#[test]
fn error_after_a_loss_reaches_the_pusher() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1"));
    bench.push(0, START);
    bench.push(2, 40 * MS);
    assert_eq!(bench.until(0), ["0"]);
    // By now, the push of packet 0 has returned, so the error does not concern that push.
    bench.eventually("the loss is waited for", || {
        bench.clock.peek_id_count() == 1
    });
    *bench.rig.answer.lock().unwrap() = Err(gst::FlowError::NotNegotiated);
    // No push from upstream is running when the push downstream fails.
    bench.clock.set_time(300 * MS);
    bench.wait_settled(3);
    bench.until(2);
    let mut result = Ok(gst::FlowSuccess::Ok);
    eventually("the error is seen", || {
        let pushed = bench.rig.push_aside(arriving(rtp(0, 3, 60 * MS), 60 * MS));
        result = pushed.recv_timeout(DEADLINE).expect("the push hangs");
        result.is_err()
    });
    assert_eq!(result, Err(gst::FlowError::NotNegotiated));
}

#[test]
fn without_a_clock_packets_pass_without_waiting() {
    let rig = Rig::without_stream(&format!("{OURS} do-lost=true"), gst::State::Playing);
    assert!(rig.feed.push_event(gst::event::StreamStart::new("s")));
    let caps = gst::Caps::builder("application/x-rtp").field("clock-rate", 8000i32);
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps.build())));
    rig.open_segment();
    for number in [0u16, 2] {
        let sent = 20 * MS * u64::from(number);
        rig.push(arriving(rtp(0, number, sent), sent)).unwrap();
    }
    assert_eq!(seq(&rig.buffer()), 0);
    assert_eq!(seq(&rig.buffer()), 2);
    assert_eq!(stat(&rig.element, "num-lost"), 1);
}

#[test]
fn a_burst_larger_than_the_buffer_passes_whole() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1"));
    let mut list = gst::BufferList::new();
    for number in 0..1000u16 {
        let packet = rtp(0, number, 20 * MS * u64::from(number));
        list.get_mut().unwrap().add(arriving(packet, START));
    }
    bench.rig.feed.push_list(list).unwrap();
    let expected: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    assert_eq!(bench.until(999), expected);
}

#[test]
fn input_that_is_not_rtp_is_counted() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1"));
    // Too short, another version, and RTCP (RFC 5761, section 4).
    for bytes in [
        vec![0x80],
        vec![0; 20],
        [&[0x80, 200][..], &[0; 26]].concat(),
    ] {
        bench.rig.push(arriving(bytes, START)).unwrap();
    }
    bench.push(0, START);
    assert_eq!(bench.until(0), ["0"]);
    assert_eq!(stat(&bench.rig.element, "malformed"), 3);
}

#[test]
fn the_element_runs_on_the_thread_of_its_branch_or_of_its_own_context() {
    for own in [false, true] {
        let (branch, other) = (context(), context());
        let property = if own {
            format!("context={other}")
        } else {
            String::new()
        };
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={branch} caps=application/x-rtp,clock-rate=8000 ! {OURS} latency=0 {property} ! fakesink name=sink sync=false async=false"
        ));
        let names = Arc::new(Mutex::new(Vec::new()));
        let of_probe = names.clone();
        pipe.pad("sink", "sink")
            .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                of_probe
                    .lock()
                    .unwrap()
                    .push(std::thread::current().name().map(str::to_owned));
                gst::PadProbeReturn::Ok
            });
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        for number in 0..3u16 {
            let packet = rtp(0, number, 20 * MS * u64::from(number));
            socket().send_to(&packet, target(&pipe.get("src"))).unwrap();
            assert_eq!(seq(&next_buffer(&seen)), number);
        }
        let expected = Some(format!("ts:{}", if own { &other } else { &branch }));
        assert!(
            names.lock().unwrap().iter().all(|name| *name == expected),
            "{names:?}"
        );
    }
}

#[test]
fn the_element_works_after_each_restart() {
    use gst::State::{Null, Paused, Playing, Ready};
    let rig = Rig::without_stream(OURS, Null);
    for state in [
        Ready, Null, Ready, Playing, Null, Ready, Null, Ready, Playing, Paused, Playing, Null,
    ] {
        rig.to(state);
    }
    let name = context();
    let pipe = Pipe::parse(&format!(
        "audiotestsrc num-buffers=20 samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! mulawenc ! rtppcmupay ! {OURS} context={name} ! fakesink name=sink sync=false"
    ));
    let count = Arc::new(AtomicUsize::new(0));
    let of_probe = count.clone();
    pipe.pad("sink", "sink")
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            of_probe.fetch_add(1, Ordering::SeqCst);
            gst::PadProbeReturn::Ok
        });
    for round in 1..=2 {
        pipe.to(Ready);
        pipe.to(Null);
        pipe.play();
        pipe.expect(gst::MessageType::Eos);
        assert_eq!(count.load(Ordering::SeqCst), 20 * round);
        pipe.to(Null);
        let contexts = threadbare_runtime::contexts();
        assert!(contexts.iter().all(|context| context.name != name));
    }
}

#[test]
fn the_element_stops_while_it_waits_for_a_packet_and_while_a_push_is_stuck() {
    let bench = Bench::new(&format!("{OURS} faststart-min-packets=1"));
    bench.push(0, START);
    bench.push(2, 40 * MS);
    bench.eventually("the loss is waited for", || {
        bench.clock.peek_id_count() == 1
    });
    bench.rig.to(gst::State::Null);
    assert_eq!(bench.clock.peek_id_count(), 0);
    let bench = Bench::new(&format!(
        "{OURS} faststart-min-packets=1 context={}",
        context()
    ));
    let gate = gate(&bench.rig.element.static_pad("src").unwrap());
    bench.push(0, START);
    gate.wait_held();
    // An ordinary thread waits for room without limit, so this push waits until the element is stopped.
    let feed = bench.rig.feed.clone();
    let pusher = until_it_waits(move || {
        let mut packets = (1..=u16::MAX).cycle();
        packets.find_map(|seq| feed.push(arriving(rtp(0, seq, START), START)).err())
    });
    let element = bench.rig.element.clone();
    let stopping = std::thread::spawn(move || element.set_state(gst::State::Null));
    gate.open();
    within("stopping", move || stopping.join().unwrap()).unwrap();
    within("the pusher", move || pusher.join().unwrap());
}

#[test]
fn the_paused_element_stops_while_a_pusher_waits_for_room() {
    let bench = Bench::new(OURS);
    bench.rig.to(gst::State::Paused);
    let feed = bench.rig.feed.clone();
    let pushed = Arc::new(AtomicUsize::new(0));
    let of_pusher = pushed.clone();
    let pusher = std::thread::spawn(move || {
        let mut packets = (1..=u16::MAX).cycle();
        packets.find_map(|seq| {
            let result = feed.push(arriving(rtp(0, seq, START), START));
            of_pusher.fetch_add(1, Ordering::SeqCst);
            result.err()
        })
    });
    eventually("the queue is full", || pushed.load(Ordering::SeqCst) >= 200);
    bench.rig.to(gst::State::Null);
    let error = within("the pusher", move || pusher.join().unwrap());
    assert_eq!(error, Some(gst::FlowError::Flushing));
}
