//! `ts-udpsink`: sending, clients, clocks, preroll.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use crate::common::*;
use gio::prelude::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::from_mseconds(1);
const S: gst::ClockTime = gst::ClockTime::SECOND;

/// Returns a sink that plays and sends to a socket of the test's.
fn sending(properties: &str) -> (Rig, UdpSocket) {
    let receiver = socket();
    let port = receiver.local_addr().unwrap().port();
    let rig = Rig::new(
        &format!("ts-udpsink clients=127.0.0.1:{port} async=false {properties}"),
        gst::State::Playing,
    );
    (rig, receiver)
}

fn clients(sockets: &[&UdpSocket]) -> String {
    let all: Vec<String> = sockets
        .iter()
        .map(|s| s.local_addr().unwrap().to_string())
        .collect();
    all.join(",")
}

/// Returns a sink on a test clock, which is stopped at 100 s, its base time.
fn with_test_clock(properties: &str) -> (Rig, UdpSocket, gst_check::TestClock) {
    init();
    let receiver = socket();
    let port = receiver.local_addr().unwrap().port();
    let line = format!("ts-udpsink clients=127.0.0.1:{port} async=false {properties}");
    let rig = Rig::without_stream(&line, gst::State::Ready);
    let clock = gst_check::TestClock::with_start_time(100 * S);
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(100 * S);
    rig.to(gst::State::Playing);
    rig.open_stream();
    (rig, receiver, clock)
}

/// Returns the same sink downstream of a ts-udpsrc: its wait is a future on the source's context.
fn on_a_context(properties: &str) -> (Pipe, UdpSocket, gst_check::TestClock, Feeder) {
    init();
    let receiver = socket();
    let port = receiver.local_addr().unwrap().port();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 do-timestamp=false context={} ! ts-udpsink name=sink processing-deadline=0 clients=127.0.0.1:{port} {properties}",
        context()
    ));
    let clock = gst_check::TestClock::with_start_time(100 * S);
    pipe.0.use_clock(Some(&clock));
    pipe.0.set_start_time(gst::ClockTime::NONE);
    pipe.0.set_base_time(100 * S);
    // Each packet's first four bytes are its time in ms.
    pipe.pad("src", "src")
        .add_probe(gst::PadProbeType::BUFFER, |_, info| {
            if let Some(buffer) = info.buffer_mut() {
                let ms = number(buffer);
                if ms != u32::MAX {
                    buffer.make_mut().set_pts(u64::from(ms) * MS);
                }
            }
            gst::PadProbeReturn::Ok
        });
    pipe.play();
    let feeder = Feeder {
        socket: socket(),
        to: target(&pipe.get("src")),
    };
    (pipe, receiver, clock, feeder)
}

struct Feeder {
    socket: UdpSocket,
    to: std::net::SocketAddr,
}

impl Feeder {
    fn send(&self, ms: u32) {
        self.socket.send_to(&packet(ms), self.to).unwrap();
    }
}

#[test]
fn packets_are_sent_to_all_clients_in_order() {
    let receivers = [socket(), socket(), socket()];
    let list = clients(&receivers.each_ref());
    let rig = Rig::new(
        &format!("ts-udpsink sync=false async=false clients={list}"),
        gst::State::Playing,
    );
    for i in 0..20 {
        rig.push(numbered(i)).unwrap();
    }
    let mut buffer_list = gst::BufferList::new();
    for i in 20..25 {
        buffer_list.get_mut().unwrap().add(numbered(i));
    }
    rig.feed.push_list(buffer_list).unwrap();
    // A buffer with several memories is sent as one packet.
    let mut parts = gst::Buffer::new();
    for part in [&packet(25)[..2], &packet(25)[2..]] {
        parts
            .get_mut()
            .unwrap()
            .append_memory(gst::Memory::from_slice(part.to_vec()));
    }
    rig.push(parts).unwrap();
    for receiver in &receivers {
        for i in 0..26 {
            assert_eq!(received(receiver), packet(i));
        }
        assert_nothing(receiver);
    }
    assert_eq!(rig.element.property::<u64>("bytes-served"), 3 * 26 * 4);
    assert_eq!(rig.element.property::<u64>("bytes-to-serve"), 26 * 4);
    assert_eq!(stat(&rig.element, "rendered"), 26);
}

#[test]
fn clients_are_added_removed_cleared_and_counted() {
    let (rig, first) = sending("sync=false");
    let second = socket();
    let ports = [&first, &second].map(|s| i32::from(s.local_addr().unwrap().port()));
    let said = Arc::new(Mutex::new(Vec::new()));
    for name in ["client-added", "client-removed"] {
        let said = said.clone();
        rig.element.connect(name, false, move |args| {
            said.lock().unwrap().push((
                name,
                args[1].get::<String>().unwrap(),
                args[2].get::<i32>().unwrap(),
            ));
            None
        });
    }
    let host = "127.0.0.1";
    rig.element.emit_by_name::<()>("add", &[&host, &ports[1]]);
    rig.push(numbered(1)).unwrap();
    assert_eq!(received(&first), packet(1));
    assert_eq!(received(&second), packet(1));
    let list = rig.element.property::<String>("clients");
    assert_eq!(list, clients(&[&first, &second]));
    let stats: Option<gst::Structure> = rig.element.emit_by_name("get-stats", &[&host, &ports[1]]);
    let stats = stats.unwrap();
    assert_eq!(stats.get::<u64>("packets-sent"), Ok(1));
    assert_eq!(stats.get::<u64>("bytes-sent"), Ok(4));
    let unknown: Option<gst::Structure> = rig.element.emit_by_name("get-stats", &[&host, &1i32]);
    assert_eq!(unknown, None);
    rig.element.set_property("send-duplicates", true);
    rig.element.emit_by_name::<()>("add", &[&host, &ports[1]]);
    rig.push(numbered(2)).unwrap();
    for _ in 0..2 {
        assert_eq!(received(&second), packet(2));
    }
    rig.element.set_property("send-duplicates", false);
    rig.push(numbered(3)).unwrap();
    assert_eq!(received(&second), packet(3));
    assert_nothing(&second);
    rig.element
        .emit_by_name::<()>("remove", &[&host, &ports[1]]);
    rig.element
        .emit_by_name::<()>("remove", &[&host, &ports[1]]);
    // A client is removed once more than it was added, and a client is removed that was never added. Neither does any harm.
    rig.element
        .emit_by_name::<()>("remove", &[&host, &ports[1]]);
    rig.element.emit_by_name::<()>("add", &[&host, &0i32]);
    rig.push(numbered(4)).unwrap();
    for i in 2..=4 {
        assert_eq!(received(&first), packet(i));
    }
    assert_nothing(&second);
    rig.element.emit_by_name::<()>("clear", &[]);
    assert_eq!(rig.element.property::<String>("clients"), "");
    rig.push(numbered(5)).unwrap();
    assert_nothing(&first);
    let events: Vec<&str> = said
        .lock()
        .unwrap()
        .iter()
        .map(|(name, ..)| *name)
        .collect();
    let (added, removed) = ("client-added", "client-removed");
    assert_eq!(events, [added, added, removed, removed, removed]);
}

#[test]
fn host_and_port_are_the_first_client() {
    let sink = make("ts-udpsink");
    sink.set_property("port", 6000);
    assert_eq!(sink.property::<String>("clients"), "127.0.0.1:6000");
    sink.set_property("host", "::1");
    assert_eq!(sink.property::<String>("clients"), "[::1]:6000");
    sink.emit_by_name::<()>("add", &[&"127.0.0.1", &7000i32]);
    sink.set_property("port", 6001);
    assert_eq!(
        sink.property::<String>("clients"),
        "[::1]:6001,127.0.0.1:7000"
    );
    assert_eq!(sink.property::<String>("host"), "::1");
    assert_eq!(sink.property::<i32>("port"), 6001);
}

#[test]
fn invalid_clients_are_refused_with_a_warning_and_the_list_is_unchanged() {
    let sink = make("ts-udpsink");
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    sink.set_property("clients", "127.0.0.1:5000,nonsense");
    assert_eq!(sink.property::<String>("clients"), "127.0.0.1:5004");
    let warning = bus
        .pop_filtered(&[gst::MessageType::Warning])
        .expect("a warning");
    assert!(text(&warning).contains("nonsense"));
}

#[test]
fn an_unreachable_client_does_not_affect_the_other_clients() {
    let good = [socket(), socket()];
    let dead = socket().local_addr().unwrap();
    // Nothing listens at the second address; a broadcast needs a permission that this socket lacks.
    for bad in [dead.to_string(), "255.255.255.255:9".to_owned()] {
        let list = format!("{},{bad},{}", clients(&[&good[0]]), clients(&[&good[1]]));
        let rig = Rig::new(
            &format!("ts-udpsink sync=false async=false clients={list}"),
            gst::State::Playing,
        );
        for i in 0..50 {
            rig.push(numbered(i)).unwrap();
        }
        for receiver in &good {
            for i in 0..50 {
                assert_eq!(received(receiver), packet(i), "{bad}");
            }
        }
        assert!(rig.bus.pop_filtered(&[gst::MessageType::Error]).is_none());
    }
}

#[test]
fn icmp_error_on_send_does_not_affect_other_clients() {
    // A connected socket gets the error for unreceived packets in its next call.
    init();
    let dead = socket().local_addr().unwrap();
    let good = socket();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(dead).unwrap();
    let shared = gio::Socket::from_fd(sender.into()).unwrap();
    let sink = make("ts-udpsink");
    sink.set_property("socket", &shared);
    sink.set_property("sync", false);
    sink.set_property("async", false);
    sink.set_property("clients", format!("{dead},{}", good.local_addr().unwrap()));
    let pipe =
        Pipe::parse("fakesrc name=src num-buffers=100 sizetype=fixed sizemax=4 ! identity name=i");
    pipe.0.add(&sink).unwrap();
    pipe.get("i").link(&sink).unwrap();
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    for _ in 0..100 {
        received(&good);
    }
}

#[test]
fn ipv6_and_ipv4_clients_get_the_same_packets() {
    let (v4, v6) = (socket(), bound("::1"));
    let rig = Rig::new(
        &format!(
            "ts-udpsink sync=false async=false clients={}",
            clients(&[&v4, &v6])
        ),
        gst::State::Playing,
    );
    rig.push(numbered(1)).unwrap();
    assert_eq!(received(&v4), packet(1));
    assert_eq!(received(&v6), packet(1));
    // One client is added late.
    let late = bound("::1");
    let port = i32::from(late.local_addr().unwrap().port());
    rig.element.emit_by_name::<()>("add", &[&"::1", &port]);
    rig.push(numbered(2)).unwrap();
    assert_eq!(received(&late), packet(2));
    assert!(used_address(&rig.element, "used-socket-v6").is_ipv6());
    assert!(used_address(&rig.element, "used-socket").is_ipv4());
}

#[test]
fn an_ipv6_client_added_before_ready_gets_packets() {
    let late = bound("::1");
    let rig = Rig::new("ts-udpsink sync=false async=false", gst::State::Paused);
    rig.element.emit_by_name::<()>("clear", &[]);
    let port = i32::from(late.local_addr().unwrap().port());
    rig.element.emit_by_name::<()>("add", &[&"::1", &port]);
    rig.to(gst::State::Playing);
    rig.push(numbered(2)).unwrap();
    assert_eq!(received(&late), packet(2));
}

#[test]
fn the_socket_is_bound_to_the_configured_address() {
    let free = socket().local_addr().unwrap().port();
    let (rig, receiver) = sending(&format!(
        "sync=false bind-address=127.0.0.2 bind-port={free}"
    ));
    rig.push(numbered(1)).unwrap();
    let (_, from) = receiver.recv_from(&mut [0; 10]).unwrap();
    assert_eq!(from.to_string(), format!("127.0.0.2:{free}"));
    let pipe = Pipe::parse("fakesrc ! ts-udpsink bind-address=192.0.2.1");
    assert!(pipe.0.set_state(gst::State::Ready).is_err());
    assert!(text(&pipe.message(&[gst::MessageType::Error])).contains("192.0.2.1"));
}

#[test]
fn a_socket_can_be_shared_with_a_source_in_both_directions() {
    for from_sink in [true, false] {
        let peer = socket();
        let name = context();
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 close-socket=false context={name} ! fakesink name=got async=false sync=false \
             ts-udpsrc name=in address=127.0.0.1 port=0 context={name} ! ts-udpsink name=sink bind-address=127.0.0.1 close-socket=false sync=false clients={}",
            peer.local_addr().unwrap()
        ));
        let (src, sink) = (pipe.get("src"), pipe.get("sink"));
        let (giver, taker) = if from_sink {
            (&sink, &src)
        } else {
            (&src, &sink)
        };
        giver.set_state(gst::State::Ready).unwrap();
        let socket = giver.property::<Option<gio::Socket>>("used-socket");
        taker.set_property("socket", socket);
        let seen = watch(&pipe.pad("got", "sink"));
        for round in 0..2 {
            pipe.play();
            let shared = used_address(&src, "used-socket");
            assert_eq!(shared, used_address(&sink, "used-socket"));
            crate::common::socket()
                .send_to(&packet(round), target(&pipe.get("in")))
                .unwrap();
            let mut room = [0; 10];
            let (_, from) = peer.recv_from(&mut room).unwrap();
            assert_eq!(from, shared);
            peer.send_to(&packet(round + 100), from).unwrap();
            assert_eq!(number(&next_buffer(&seen)), round + 100);
            pipe.to(gst::State::Paused);
        }
    }
}

#[test]
fn a_given_socket_that_was_closed_is_refused() {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sink = make("ts-udpsink");
    let given = gio::Socket::from_fd(sender.into()).unwrap();
    sink.set_property("socket", &given);
    sink.set_state(gst::State::Ready).unwrap();
    sink.set_state(gst::State::Null).unwrap();
    assert!(given.is_closed());
    assert!(sink.set_state(gst::State::Ready).is_err());
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn a_buffer_is_sent_at_its_time_and_not_before() {
    let (rig, receiver, clock) = with_test_clock("");
    let result = rig.push_aside(timed(1, 10 * S));
    clock.wait_for_pending_id_count(1);
    assert_eq!(clock.next_entry_time(), Some(110 * S));
    clock.set_time(110 * S - gst::ClockTime::NSECOND);
    assert!(result.try_recv().is_err());
    assert_nothing(&receiver);
    assert!(clock.crank());
    assert_eq!(
        result.recv_timeout(DEADLINE).unwrap(),
        Ok(gst::FlowSuccess::Ok)
    );
    assert_eq!(received(&receiver), packet(1));
    // Late packets and packets without a time are sent at once.
    rig.push(timed(2, S)).unwrap();
    rig.push(numbered(3)).unwrap();
    assert_eq!(received(&receiver), packet(2));
    assert_eq!(received(&receiver), packet(3));
}

#[test]
fn a_buffer_is_sent_at_its_time_and_not_before_on_a_context() {
    let (_pipe, receiver, clock, feeder) = on_a_context("");
    feeder.send(10_000);
    feeder.send(11_000);
    for i in [10u64, 11] {
        clock.wait_for_pending_id_count(1);
        assert_eq!(clock.next_entry_time(), Some((100 + i) * S));
        clock.set_time((100 + i) * S - gst::ClockTime::NSECOND);
        assert_nothing(&receiver);
        assert!(clock.crank());
        assert_eq!(received(&receiver), packet(1000 * i as u32));
    }
}

/// Clock ticks (10 ms) of CPU that a thread of this process has used, by its name (proc(5), stat).
fn cpu_ticks(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let stat = stats
        .into_iter()
        .find(|stat| stat.contains(&format!("({thread})")))
        .expect("no such thread");
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let times = fields.split(' ').skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn source_blocked_by_a_paused_sink_is_idle() {
    // A sink that woke itself would poll again and again, from the first wake-up on.
    let receiver = socket();
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! ts-udpsink name=sink async=false sync=false clients={}",
        receiver.local_addr().unwrap()
    ));
    pipe.to(gst::State::Paused);
    let (src, sink) = (pipe.get("src"), pipe.get("sink"));
    sink.set_locked_state(true);
    pipe.play();
    socket().send_to(&packet(1), target(&src)).unwrap();
    eventually("the packet is in", || stat(&src, "packets-received") == 1);
    let event = gst::event::CustomDownstream::new(gst::Structure::new_empty("wake-up"));
    assert!(src.send_event(event));
    // The thread is watched for a while, because the point of the test is that nothing happens.
    let before = cpu_ticks(&format!("ts:{name}"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let ticks = cpu_ticks(&format!("ts:{name}")) - before;
    assert!(ticks < 15, "of 30 ticks the thread was busy for {ticks}");
    sink.set_locked_state(false);
    sink.sync_state_with_parent().unwrap();
    assert_eq!(received(&receiver), packet(1));
}

#[test]
fn data_is_received_while_earlier_data_waits_for_the_clock() {
    // If each wait blocked its source, a stream of more than one packet per slice would fall behind.
    let (pipe, receiver, clock, feeder) = on_a_context("");
    for i in 0..40 {
        feeder.send(1_000 + i);
    }
    let src = pipe.get("src");
    eventually("all are in", || stat(&src, "packets-received") == 40);
    assert_nothing(&receiver);
    clock.set_time(102 * S);
    clock.process_next_clock_id();
    for i in 0..40 {
        assert_eq!(received(&receiver), packet(1_000 + i));
    }
}

#[test]
fn full_sink_blocks_its_source_without_loss() {
    let (pipe, receiver, clock, feeder) = on_a_context("");
    for i in 0..150 {
        feeder.send(1_000 + i);
    }
    let src = pipe.get("src");
    eventually("as many as it holds are in", || {
        stat(&src, "packets-received") >= 64
    });
    clock.set_time(102 * S);
    clock.process_next_clock_id();
    for i in 0..150 {
        assert_eq!(received(&receiver), packet(1_000 + i));
    }
}

#[test]
fn a_wait_on_the_system_clock_is_a_timer_of_the_context() {
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-udpsink ts-offset=30000000 clients={}",
        context(),
        receiver.local_addr().unwrap()
    ));
    pipe.play();
    let sender = socket();
    for i in 0..5 {
        let begin = std::time::Instant::now();
        sender
            .send_to(&packet(i), target(&pipe.get("src")))
            .unwrap();
        assert_eq!(received(&receiver), packet(i));
        // The packet is never sent early, but a busy machine may send it late.
        assert!(begin.elapsed() >= std::time::Duration::from_millis(30));
    }
}

#[test]
fn an_offset_and_the_latency_are_added() {
    let (rig, receiver, clock) = with_test_clock("ts-offset=-3000000000");
    assert!(rig.element.send_event(gst::event::Latency::new(2 * S)));
    let result = rig.push_aside(timed(1, 10 * S));
    clock.wait_for_pending_id_count(1);
    assert_eq!(clock.next_entry_time(), Some(109 * S));
    clock.crank();
    result.recv_timeout(DEADLINE).unwrap().unwrap();
    received(&receiver);
}

#[test]
fn late_buffer_is_dropped_and_counted() {
    let (rig, receiver, clock) = with_test_clock("max-lateness=1000000000");
    clock.set_time(110 * S);
    rig.push(timed(1, 8 * S)).unwrap();
    rig.push(timed(2, 9 * S)).unwrap();
    assert_eq!(received(&receiver), packet(2));
    assert_eq!(stat(&rig.element, "dropped"), 1);
    rig.element.set_property("max-lateness", -1i64);
    rig.push(timed(3, S)).unwrap();
    assert_eq!(received(&receiver), packet(3));
}

#[test]
fn buffer_outside_the_segment_is_dropped() {
    let (rig, receiver, _clock) = with_test_clock("");
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_start(5 * S);
    assert!(rig.feed.push_event(gst::event::Segment::new(&segment)));
    rig.push(timed(1, S)).unwrap();
    rig.push(timed(2, 5 * S)).unwrap();
    assert_eq!(received(&receiver), packet(2));
}

#[test]
fn the_decoding_time_precedes_the_presentation_time_in_synchronisation() {
    let (rig, receiver, clock) = with_test_clock("");
    let mut buffer = timed(1, 20 * S);
    buffer.get_mut().unwrap().set_dts(10 * S);
    let result = rig.push_aside(buffer);
    clock.wait_for_pending_id_count(1);
    assert_eq!(clock.next_entry_time(), Some(110 * S));
    clock.crank();
    result.recv_timeout(DEADLINE).unwrap().unwrap();
    received(&receiver);
}

#[test]
fn flush_cancels_the_wait_for_the_clock_at_once() {
    let (rig, receiver, clock) = with_test_clock("");
    for _ in 0..2 {
        let result = rig.push_aside(timed(1, 10 * S));
        clock.wait_for_pending_id_count(1);
        assert!(rig.feed.push_event(gst::event::FlushStart::new()));
        result
            .recv_timeout(DEADLINE)
            .expect("the flush cancels nothing")
            .ok();
        assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
        rig.open_segment();
        assert_nothing(&receiver);
        rig.push(timed(2, gst::ClockTime::ZERO)).unwrap();
        assert_eq!(received(&receiver), packet(2));
    }
}

#[test]
fn a_flush_also_cancels_a_push_that_arrives_at_the_same_time() {
    let (rig, _receiver, _clock) = with_test_clock("");
    for _ in 0..200 {
        let result = rig.push_aside(timed(1, 10 * S));
        let feed = rig.feed.clone();
        within("a flush", move || {
            feed.push_event(gst::event::FlushStart::new());
            feed.push_event(gst::event::FlushStop::new(true));
        });
        rig.open_segment();
        // If the push arrived only after the whole flush, the next flush ends it.
        while result
            .recv_timeout(std::time::Duration::from_millis(20))
            .is_err()
        {
            rig.feed.push_event(gst::event::FlushStart::new());
            rig.feed.push_event(gst::event::FlushStop::new(true));
            rig.open_segment();
        }
    }
}

#[test]
fn flush_cancels_the_wait_for_the_clock_on_a_context() {
    let (pipe, receiver, clock, feeder) = on_a_context("");
    let src = pipe.get("src");
    let passing = watch(&pipe.pad("src", "src"));
    for _ in 0..3 {
        feeder.send(10_000);
        clock.wait_for_pending_id_count(1);
        // A flush leaves a sink paused if the pipeline is still changing its state.
        assert!(pipe.0.state(DEADLINE_GST).0.is_ok());
        assert!(src.send_event(gst::event::FlushStart::new()));
        assert!(src.send_event(gst::event::FlushStop::new(false)));
        next_event(&passing, gst::EventType::FlushStop);
        next_event(&passing, gst::EventType::Segment);
        assert_nothing(&receiver);
        feeder.send(0);
        assert_eq!(received(&receiver), packet(0));
    }
    pipe.assert_no_error();
}

#[test]
fn pause_and_stop_cancel_the_wait_for_the_clock() {
    let (rig, receiver, clock) = with_test_clock("");
    let result = rig.push_aside(timed(1, 10 * S));
    clock.wait_for_pending_id_count(1);
    rig.to(gst::State::Paused);
    clock.set_time(111 * S);
    assert!(result.try_recv().is_err(), "rendered while paused");
    assert_nothing(&receiver);
    rig.to(gst::State::Playing);
    assert_eq!(
        result.recv_timeout(DEADLINE).unwrap(),
        Ok(gst::FlowSuccess::Ok)
    );
    assert_eq!(received(&receiver), packet(1));
    let result = rig.push_aside(timed(2, 20 * S));
    clock.wait_for_pending_id_count(1);
    rig.to(gst::State::Null);
    assert_eq!(
        result.recv_timeout(DEADLINE).unwrap(),
        Err(gst::FlowError::Flushing)
    );
    assert_nothing(&receiver);
}

#[test]
fn pause_and_stop_cancel_the_wait_for_the_clock_on_a_context() {
    let (pipe, receiver, clock, feeder) = on_a_context("");
    feeder.send(10_000);
    clock.wait_for_pending_id_count(1);
    pipe.to(gst::State::Paused);
    pipe.0.set_base_time(100 * S);
    clock.set_time(111 * S);
    assert_nothing(&receiver);
    pipe.play();
    assert_eq!(received(&receiver), packet(10_000));
    feeder.send(20_000);
    clock.wait_for_pending_id_count(1);
    pipe.to(gst::State::Null);
    assert_nothing(&receiver);
}

#[test]
fn the_sink_prerolls_on_the_first_buffer_of_a_source_that_is_not_live() {
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "fakesrc num-buffers=3 sizetype=fixed sizemax=4 ! ts-udpsink name=sink sync=false clients={}",
        receiver.local_addr().unwrap()
    ));
    assert_eq!(
        pipe.0.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::Async)
    );
    pipe.expect(gst::MessageType::AsyncDone);
    assert_eq!(pipe.0.state(gst::ClockTime::ZERO).1, gst::State::Paused);
    assert_nothing(&receiver);
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    for _ in 0..3 {
        received(&receiver);
    }
    assert_nothing(&receiver);
}

#[test]
fn the_sink_prerolls_on_a_gap_and_on_the_end() {
    for gap in [true, false] {
        let rig = Rig::new("ts-udpsink name=sink", gst::State::Paused);
        let (_, now, pending) = rig.element.state(gst::ClockTime::ZERO);
        assert_eq!((now, pending), (gst::State::Ready, gst::State::Paused));
        let feed = rig.feed.clone();
        std::thread::spawn(move || {
            if gap {
                feed.push_event(gst::event::Gap::builder(gst::ClockTime::ZERO).build())
            } else {
                feed.push_event(gst::event::Eos::new())
            }
        });
        let (result, now, _) = rig.element.state(DEADLINE_GST);
        assert_eq!(
            (result.is_ok(), now),
            (true, gst::State::Paused),
            "gap: {gap}"
        );
    }
}

#[test]
fn without_async_or_with_a_live_source_the_sink_does_not_wait_for_a_preroll() {
    let rig = Rig::without_stream("ts-udpsink async=false", gst::State::Ready);
    let result = rig.element.set_state(gst::State::Paused);
    assert_eq!(result, Ok(gst::StateChangeSuccess::Success));
    let pipe = Pipe::parse("ts-udpsrc address=127.0.0.1 port=0 ! ts-udpsink");
    assert_eq!(
        pipe.0.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    pipe.play();
}

#[test]
fn end_of_stream_is_posted_once_after_the_last_buffer() {
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-udpsink clients={}",
        context(),
        receiver.local_addr().unwrap()
    ));
    for round in 0..3 {
        pipe.play();
        socket()
            .send_to(&packet(round), target(&pipe.get("src")))
            .unwrap();
        assert_eq!(received(&receiver), packet(round));
        let eos = gst::event::Eos::new();
        let seqnum = eos.seqnum();
        assert!(pipe.0.send_event(eos));
        assert_eq!(pipe.expect(gst::MessageType::Eos).seqnum(), seqnum);
        pipe.to(gst::State::Ready);
    }
    let (rig, _receiver) = sending("sync=false");
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    assert_eq!(rig.push(numbered(1)), Err(gst::FlowError::Eos));
    assert!(rig.feed.push_event(gst::event::FlushStart::new()));
    assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
    rig.open_segment();
    rig.push(numbered(1)).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    let eos = || {
        rig.bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos])
    };
    assert!(eos().is_some() && eos().is_some());
}

#[test]
fn sinks_of_one_source_wait_independently() {
    let (early, late) = (socket(), socket());
    init();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 do-timestamp=false context={} ! tee name=t t. ! ts-udpsink processing-deadline=0 clients={} t. ! ts-udpsink processing-deadline=0 ts-offset=5000000000 clients={}",
        context(),
        early.local_addr().unwrap(),
        late.local_addr().unwrap()
    ));
    let clock = gst_check::TestClock::with_start_time(100 * S);
    pipe.0.use_clock(Some(&clock));
    pipe.0.set_start_time(gst::ClockTime::NONE);
    pipe.0.set_base_time(100 * S);
    pipe.pad("src", "src")
        .add_probe(gst::PadProbeType::BUFFER, |_, info| {
            if let Some(buffer) = info.buffer_mut() {
                buffer.make_mut().set_pts(S);
            }
            gst::PadProbeReturn::Ok
        });
    pipe.play();
    socket()
        .send_to(&packet(1), target(&pipe.get("src")))
        .unwrap();
    clock.wait_for_pending_id_count(2);
    assert_eq!(clock.next_entry_time(), Some(101 * S));
    assert!(clock.crank());
    assert_eq!(received(&early), packet(1));
    assert_nothing(&late);
    // The source's task checks all its waits when any of them is over.
    eventually("the late one waits", || {
        clock.next_entry_time() == Some(106 * S)
    });
    assert!(clock.crank());
    assert_eq!(received(&late), packet(1));
}

#[test]
fn an_unlinked_branch_does_not_affect_a_waiting_sibling() {
    // The source awaits room in one branch and the clock in the other; then the first is unlinked.
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 do-timestamp=false context={} ! tee name=t \
         t. ! ts-queue name=bad context={} max-size-buffers=1 ! fakesink async=false \
         t. ! ts-udpsink async=false processing-deadline=0 clients={}",
        context(),
        context(),
        receiver.local_addr().unwrap()
    ));
    let clock = gst_check::TestClock::with_start_time(100 * S);
    pipe.0.use_clock(Some(&clock));
    pipe.0.set_start_time(gst::ClockTime::NONE);
    pipe.0.set_base_time(100 * S);
    pipe.pad("src", "src")
        .add_probe(gst::PadProbeType::BUFFER, |_, info| {
            if let Some(buffer) = info.buffer_mut() {
                let ms = u64::from(number(buffer));
                buffer.make_mut().set_pts(ms * MS);
            }
            gst::PadProbeReturn::Ok
        });
    let bad = pipe.pad("bad", "src");
    let gate = gate(&bad);
    pipe.play();
    let feeder = Feeder {
        socket: socket(),
        to: target(&pipe.get("src")),
    };
    feeder.send(0);
    assert_eq!(received(&receiver), packet(0));
    gate.wait_held();
    feeder.send(0);
    assert_eq!(received(&receiver), packet(0));
    feeder.send(10_000);
    clock.wait_for_pending_id_count(1);
    bad.unlink(&bad.peer().unwrap()).unwrap();
    gate.open();
    // The failure is known as soon as the queue refuses data. When the source waits for the clock again, it has checked both
    // waits.
    eventually("the queue has failed", || {
        pipe.get("bad").property::<u32>("current-level-buffers") < 3
    });
    let context: String = pipe.get("src").property("context");
    let shard = threadbare_runtime::Context::find(&context)
        .unwrap()
        .shards()[0]
        .clone();
    for _ in 0..3 {
        shard.call(|_| ()).unwrap();
    }
    eventually("the sibling still waits", || clock.peek_id_count() == 1);
    assert!(clock.crank());
    assert_eq!(received(&receiver), packet(10_000));
    // As with a stock queue, the tee continues while one branch is linked.
    feeder.send(0);
    assert_eq!(received(&receiver), packet(0));
    pipe.assert_no_error();
}

#[test]
fn multicast_leaves_through_the_interface_and_is_looped_back_if_configured() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=239.255.43.31 port=0 multicast-iface=lo context={} ! fakesink name=got async=false sync=false",
        context()
    ));
    let seen = watch(&pipe.pad("got", "sink"));
    pipe.play();
    let port = used_address(&pipe.get("src"), "used-socket").port();
    for loops in [true, false] {
        let rig = Rig::new(
            &format!(
                "ts-udpsink sync=false async=false loop={loops} multicast-iface=lo clients=239.255.43.31:{port},[::1]:9"
            ),
            gst::State::Playing,
        );
        // Packets that are sent through this interface return in any case, so the test checks the option itself.
        for used in ["used-socket", "used-socket-v6"] {
            let socket = rig.element.property::<Option<gio::Socket>>(used).unwrap();
            assert_eq!(socket.is_multicast_loopback(), loops, "{used}");
        }
        rig.push(numbered(1)).unwrap();
        assert_eq!(number(&next_buffer(&seen)), 1);
    }
    // Joins and leaves, by state and by signal.
    let rig = Rig::new(
        "ts-udpsink async=false multicast-iface=lo clients=239.255.43.32:5000",
        gst::State::Playing,
    );
    rig.element
        .emit_by_name::<()>("add", &[&"239.255.43.33", &5000i32]);
    rig.element
        .emit_by_name::<()>("add", &[&"ff05::4333", &5000i32]);
    rig.element
        .emit_by_name::<()>("remove", &[&"239.255.43.33", &5000i32]);
    rig.element.emit_by_name::<()>("clear", &[]);
    for _ in 0..2 {
        rig.to(gst::State::Null);
        rig.to(gst::State::Playing);
    }
    assert!(rig.bus.pop_filtered(&[gst::MessageType::Warning]).is_none());
}

#[test]
fn socket_options_reach_the_kernel_live() {
    let (rig, _receiver) = sending("ttl=9 ttl-mc=3 qos-dscp=46");
    let socket = rig
        .element
        .property::<Option<gio::Socket>>("used-socket")
        .unwrap();
    let tos = |socket: &gio::Socket| socket.option(0, 1).unwrap();
    assert_eq!(
        (socket.ttl(), socket.multicast_ttl(), tos(&socket)),
        (9, 3, 46 << 2)
    );
    rig.element.set_property("ttl", 11);
    rig.element.set_property("ttl-mc", 5);
    rig.element.set_property("qos-dscp", 10);
    assert_eq!(
        (socket.ttl(), socket.multicast_ttl(), tos(&socket)),
        (11, 5, 10 << 2)
    );
}

#[test]
fn uri_handler_sets_and_returns_udp_uris() {
    let sink = make("ts-udpsink");
    let handler = sink.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    assert_eq!(handler.uri_type(), gst::URIType::Sink);
    handler.set_uri("udp://[::1]:6002").unwrap();
    assert_eq!(sink.property::<String>("clients"), "[::1]:6002");
    assert_eq!(handler.uri().as_deref(), Some("udp://[::1]:6002"));
    assert!(handler.set_uri("udp://x").is_err());
    assert!(handler.set_uri("http://x:1").is_err());
}

/// A host name that does not resolve is not replaced by another address. Nothing is sent, and the element does not start.
#[test]
fn a_host_that_does_not_resolve_is_refused() {
    let bystander = socket();
    let port = bystander.local_addr().unwrap().port();
    // RFC 6761, section 6.4: no name below "invalid" exists.
    let clients = format!("clients=nowhere.invalid:{port}");
    for properties in [
        format!("host=nowhere.invalid port={port}"),
        format!("port={port} host=nowhere.invalid"),
        clients,
    ] {
        let pipe = Pipe::parse(&format!(
            "fakesrc num-buffers=3 ! ts-udpsink name=sink sync=false {properties}"
        ));
        assert!(
            pipe.0.set_state(gst::State::Playing).is_err(),
            "{properties}"
        );
        let said = text(&pipe.message(&[gst::MessageType::Error]));
        assert!(said.contains("nowhere.invalid"), "{said}");
        assert_nothing(&bystander);
        // Setting another host clears the error.
        pipe.to(gst::State::Null);
        pipe.get("sink").set_property("host", "127.0.0.1");
        assert_eq!(
            pipe.get("sink").property::<String>("clients"),
            format!("127.0.0.1:{port}")
        );
        pipe.to(gst::State::Ready);
    }
}

/// The stock element defines how additions of the same destination count, for both settings of `send-duplicates`. Programs
/// written for thread-sharing sinks expect that additions are not counted if the property is not set.
#[test]
fn repeated_client_is_counted_like_the_stock_element_or_once() {
    init();
    let observe = |factory: &str, send_duplicates: Option<bool>| {
        let receiver = socket();
        let port = i32::from(receiver.local_addr().unwrap().port());
        let rig = Rig::new(
            &format!("{factory} sync=false async=false"),
            gst::State::Playing,
        );
        let sink = &rig.element;
        sink.emit_by_name::<()>("clear", &[]);
        if let Some(value) = send_duplicates {
            sink.set_property("send-duplicates", value);
        }
        // The stock element forgets the comma between clients.
        let look = |number: u32| {
            rig.push(numbered(number)).unwrap();
            let listed = sink.property::<String>("clients");
            // A packet of another kind is sent afterwards. When it arrives, no more packets of the first kind follow.
            let own = socket();
            own.send_to(b"end", receiver.local_addr().unwrap()).unwrap();
            let got =
                std::iter::from_fn(|| Some(received(&receiver)).filter(|data| data != b"end"));
            (listed.matches(&port.to_string()).count(), got.count())
        };
        let act = |action: &str| sink.emit_by_name::<()>(action, &[&"127.0.0.1", &port]);
        act("add");
        act("add");
        let added = look(1);
        act("remove");
        let removed = look(2);
        act("remove");
        [added, removed, look(3)]
    };
    for send_duplicates in [true, false] {
        assert_eq!(
            observe("ts-udpsink", Some(send_duplicates)),
            observe("multiudpsink", Some(send_duplicates)),
            "send-duplicates={send_duplicates}"
        );
    }
    assert_eq!(observe("ts-udpsink", None), [(1, 1), (0, 0), (0, 0)]);
    // Only the value of the property matters, not whether it is set before or after the clients.
    let sink = make("ts-udpsink");
    sink.set_property("clients", "10.0.0.1:7,10.0.0.1:7");
    assert_eq!(sink.property::<String>("clients"), "10.0.0.1:7");
    sink.set_property("send-duplicates", true);
    assert_eq!(sink.property::<String>("clients"), "10.0.0.1:7,10.0.0.1:7");
}

/// Setting a name starts no look-up: a property's setter must not wait for the network.
#[test]
fn host_names_are_resolved_at_the_start_and_not_when_they_are_set() {
    init();
    let receiver = socket();
    let port = receiver.local_addr().unwrap().port();
    let sink = make("ts-udpsink");
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    // RFC 6761, section 6.4: no name below "invalid" exists.
    for property in ["host", "clients"] {
        let value = match property {
            "host" => "nowhere.invalid".to_owned(),
            _ => format!("127.0.0.1:{port},nowhere.invalid:7"),
        };
        sink.set_property(property, value);
        assert!(bus.pop_filtered(&[gst::MessageType::Warning]).is_none());
        let listed = sink.property::<String>("clients");
        assert!(listed.contains("nowhere.invalid:"), "{listed}");
        assert!(sink.set_state(gst::State::Ready).is_err());
        let error = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
        assert!(text(&error).contains("nowhere.invalid"), "{error:?}");
        sink.set_state(gst::State::Null).unwrap();
    }
    // RFC 6761, section 6.3.
    sink.set_property("force-ipv4", true);
    sink.set_property("clients", format!("localhost:{port}"));
    sink.set_state(gst::State::Ready).unwrap();
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn name_added_while_playing_is_resolved_or_reported() {
    // "localhost" may resolve to either family first.
    let v4 = socket();
    let port = v4.local_addr().unwrap().port();
    let v6 = UdpSocket::bind(("::1", port)).ok();
    let (rig, other) = sending("sync=false");
    let add = |host: &str, port: u16| {
        rig.element
            .emit_by_name::<()>("add", &[&host, &i32::from(port)]);
    };
    add("nowhere.invalid", port);
    add("localhost", port);
    let told = rig
        .bus
        .timed_pop_filtered(
            gst::ClockTime::from_seconds(30),
            &[gst::MessageType::Warning],
        )
        .expect("a warning");
    assert!(text(&told).contains("nowhere.invalid"), "{told:?}");
    let both = format!("{},localhost:{port}", clients(&[&other]));
    eventually("the destination without an address is gone", || {
        rig.element.property::<String>("clients") == both
    });
    v4.set_nonblocking(true).unwrap();
    if let Some(v6) = &v6 {
        v6.set_nonblocking(true).unwrap();
    }
    let mut number = 0;
    eventually("the name is sent to", || {
        number += 1;
        rig.push(numbered(number)).unwrap();
        assert_eq!(received(&other), packet(number));
        let mut room = [0; 4];
        v4.recv(&mut room).is_ok() || v6.as_ref().is_some_and(|v6| v6.recv(&mut room).is_ok())
    });
    // A name that is removed before its answer arrives stays removed.
    add("localhost", 9);
    rig.element
        .emit_by_name::<()>("remove", &[&"localhost", &9i32]);
    assert_eq!(rig.element.property::<String>("clients"), both);
}

#[test]
fn two_clients_of_one_group_share_a_membership_until_both_are_removed() {
    let group = "239.255.77.18";
    let members = || {
        // igmp: the groups of each interface, in hexadecimal, in the machine's byte order.
        let text = std::fs::read_to_string("/proc/net/igmp").unwrap();
        let number = u32::from_ne_bytes(group.parse::<std::net::Ipv4Addr>().unwrap().octets());
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{number:08X}")));
        line.map_or(0, |line| {
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        })
    };
    let rig = Rig::new(
        &format!(
            "ts-udpsink clients={group}:7001,{group}:7002 multicast-iface=lo sync=false async=false"
        ),
        gst::State::Playing,
    );
    assert_eq!(members(), 1);
    let act = |action: &str, port: i32| rig.element.emit_by_name::<()>(action, &[&group, &port]);
    act("remove", 7001);
    assert_eq!(members(), 1, "the other one still has it");
    act("add", 7003);
    act("remove", 7002);
    assert_eq!(members(), 1);
    act("remove", 7003);
    assert_eq!(members(), 0);
}

/// send(2): a datagram longer than the protocol allows is EMSGSIZE; IPv4 sockets cannot send to an IPv6 address.
#[test]
fn each_client_counts_its_own_errors() {
    let (rig, good) = sending("sync=false force-ipv4=true");
    let port = i32::from(good.local_addr().unwrap().port());
    rig.element.emit_by_name::<()>("add", &[&"::1", &port]);
    rig.push(numbered(1)).unwrap();
    let large = gst::Buffer::from_slice(vec![0u8; 70_000]);
    rig.push(large).unwrap();
    rig.push(numbered(2)).unwrap();
    assert_eq!([received(&good), received(&good)], [packet(1), packet(2)]);
    let stats = |host: &str| {
        let stats: Option<gst::Structure> = rig.element.emit_by_name("get-stats", &[&host, &port]);
        let stats = stats.unwrap();
        let reasons = stats.get::<gst::Structure>("errors").unwrap();
        let reasons: Vec<(String, u64)> = reasons
            .iter()
            .map(|(name, count)| (name.to_string(), count.get().unwrap()))
            .collect();
        let last = stats.get::<String>("last-error").unwrap();
        (stats.get::<u64>("packets-sent").unwrap(), reasons, last)
    };
    let (sent, reasons, last) = stats("127.0.0.1");
    assert_eq!((sent, &reasons[..]), (2, &[("EMSGSIZE".to_owned(), 1)][..]));
    assert!(last.contains("too long"), "{last}");
    let (sent, reasons, _) = stats("::1");
    assert_eq!(
        (sent, &reasons[..]),
        (0, &[("EAFNOSUPPORT".to_owned(), 3)][..])
    );
}

/// There are more clients than one system call serves, of both families, some twice. Each gets each packet in order.
#[test]
fn many_clients_get_each_packet_as_often_as_they_were_added() {
    let receivers: Vec<UdpSocket> = (0..50)
        .map(|i| bound(if i % 7 == 3 { "::1" } else { "127.0.0.1" }))
        .collect();
    let mut list = clients(&receivers.iter().collect::<Vec<_>>());
    list.push_str(&format!(
        ",{}",
        clients(&receivers.iter().skip(30).collect::<Vec<_>>())
    ));
    let rig = Rig::new(
        &format!("ts-udpsink clients={list} send-duplicates=true sync=false async=false"),
        gst::State::Playing,
    );
    for number in 1..=5 {
        rig.push(numbered(number)).unwrap();
    }
    for (i, receiver) in receivers.iter().enumerate() {
        for number in 1..=5 {
            for _ in 0..if i < 30 { 1 } else { 2 } {
                assert_eq!(received(receiver), packet(number), "client {i}");
            }
        }
        assert_nothing(receiver);
    }
    assert_eq!(stat(&rig.element, "bytes-served"), 70 * 5 * 4);
    assert_eq!(stat(&rig.element, "send-errors"), 0);
}

/// As with the stock element, a list is sent as a whole at the time of its first buffer. Each client gets all of it in order,
/// whatever the memories of the buffers are.
#[test]
fn lists_are_sent_whole_in_order_and_to_each_client() {
    const BUFFERS: usize = 37;
    let receivers = [socket(), bound("::1"), socket()];
    let rig = Rig::new(
        &format!(
            "ts-udpsink clients={} async=false",
            clients(&receivers.iter().collect::<Vec<_>>())
        ),
        gst::State::Playing,
    );
    let mut list = gst::BufferList::new();
    let mut expected = Vec::new();
    for i in 0..BUFFERS {
        // Some buffers have one memory, some a header and a payload, and some more memories than are sent in place.
        let pieces = [1, 2, 7][i % 3];
        let mut buffer = gst::Buffer::new();
        let mut whole: Vec<u8> = Vec::new();
        for piece in 0..pieces {
            let bytes = vec![i as u8, piece, 0xaa];
            whole.extend(&bytes);
            let memory = gst::Memory::from_slice(bytes);
            buffer.get_mut().unwrap().append_memory(memory);
        }
        // All times except the first are in the far future, but the list has only one time.
        let pts = S * i as u64 * 3600;
        buffer.get_mut().unwrap().set_pts(pts);
        list.get_mut().unwrap().add(buffer);
        expected.push(whole);
    }
    assert!(rig.feed.push_list(list).is_ok());
    for receiver in &receivers {
        for whole in &expected {
            assert_eq!(&received(receiver), whole);
        }
        assert_nothing(receiver);
    }
    let bytes: usize = expected.iter().map(Vec::len).sum();
    assert_eq!(stat(&rig.element, "bytes-served"), 3 * bytes as u64);
    assert_eq!(stat(&rig.element, "send-errors"), 0);
    assert_eq!(rig.element.property::<u64>("bytes-to-serve"), bytes as u64);
}
