//! TCP sources and sink, with plain sockets and the stock elements at the other end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;

use crate::common::*;
use gst::prelude::*;

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let listener = listener.try_clone().unwrap();
    within("a connection", move || listener.accept().unwrap().0)
}

/// Reads until a total of `count` bytes has arrived.
fn read_all(rig: &Rig, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(bytes(&rig.buffer()));
    }
    all
}

fn client(port: u16, more: &str) -> Rig {
    Rig::without_stream(
        &format!("ts-tcpclientsrc port={port} context={} {more}", context()),
        gst::State::Playing,
    )
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_client_reads_everything_in_order_until_the_peer_closes() {
    let (listener, port) = listener();
    let rig = client(port, "blocksize=1000 caps=application/x-test");
    let mut peer = accept(&listener);
    let sent = pattern(1_000_000);
    let to_send = sent.clone();
    let sender = std::thread::spawn(move || peer.write_all(&to_send).unwrap());
    rig.event(gst::EventType::Caps);
    assert!(read_all(&rig, sent.len()) == sent);
    sender.join().unwrap();
    rig.event(gst::EventType::Eos);
    assert_eq!(stat(&rig.element, "bytes-received"), 1_000_000);
}

#[test]
fn ended_source_is_idle_and_its_neighbours_continue() {
    let (listener, port) = listener();
    let shared = context();
    // The context is not throttled, so a thread that does not rest would spin at full speed.
    let rig = Rig::without_stream(
        &format!("ts-tcpclientsrc port={port} context={shared}"),
        gst::State::Playing,
    );
    let neighbour = Rig::without_stream(
        &format!("ts-udpsrc address=127.0.0.1 port=0 context={shared} timeout=300000000"),
        gst::State::Playing,
    );
    let mut peer = accept(&listener);
    peer.write_all(b"last words").unwrap();
    drop(peer);
    assert_eq!(read_all(&rig, 10), b"last words");
    rig.event(gst::EventType::Eos);
    let context = threadbare_runtime::Context::find(&shared).unwrap();
    let wakeups = || context.shards()[0].counters_snapshot().wakeups;
    let before = wakeups();
    let sender = socket();
    for i in 0..20 {
        sender
            .send_to(&packet(i), target(&neighbour.element))
            .unwrap();
        assert_eq!(number(&neighbour.buffer()), i);
    }
    // The neighbour reports that nothing arrived for 0.3 s, in which a thread that does not rest would spin tens of thousands of
    // times.
    let types = [gst::MessageType::Element];
    assert!(
        neighbour
            .bus
            .timed_pop_filtered(DEADLINE_GST, &types)
            .is_some()
    );
    let passes = wakeups() - before;
    assert!(
        passes < 200,
        "{passes} passes for 20 packets and a time-out"
    );
    let second = rig.seen.try_iter().count();
    assert_eq!(second, 0, "the end comes once");
}

#[test]
fn unreachable_host_is_named() {
    let (listener, port) = listener();
    drop(listener);
    let rig = client(port, "");
    let said = text(&rig.error());
    assert!(said.contains(&format!("127.0.0.1:{port}")), "{said}");
    let nowhere = make("ts-tcpclientsrc");
    nowhere.set_property("host", "no-such-host.invalid");
    let bus = gst::Bus::new();
    nowhere.set_bus(Some(&bus));
    assert!(nowhere.set_state(gst::State::Paused).is_err());
    let error = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
    assert!(text(&error).contains("no-such-host.invalid"));
    nowhere.set_state(gst::State::Null).unwrap();
    nowhere.set_bus(None);
}

#[test]
fn silent_peer_is_dropped_if_configured() {
    let (listener, port) = listener();
    let rig = client(port, "timeout=1");
    let _peer = accept(&listener);
    assert!(text(&rig.error()).contains("timeout"));
}

#[test]
fn a_host_name_is_tried_at_all_its_addresses() {
    // The listener has only IPv4. If the name also has an IPv6 address, that address refuses first.
    let (listener, port) = listener();
    let rig = client(port, "host=localhost");
    accept(&listener).write_all(b"hello").unwrap();
    assert_eq!(read_all(&rig, 5), b"hello");
}

#[test]
fn a_restarted_client_connects_again() {
    let (listener, port) = listener();
    let rig = client(port, "");
    for round in 0..3u8 {
        accept(&listener).write_all(&[round; 3]).unwrap();
        assert_eq!(read_all(&rig, 3), [round; 3]);
        rig.event(gst::EventType::Eos);
        for state in [gst::State::Null, gst::State::Ready, gst::State::Null] {
            rig.to(state);
        }
        rig.to(gst::State::Playing);
    }
}

#[test]
fn a_pause_loses_no_data() {
    let (listener, port) = listener();
    let rig = client(port, "");
    let mut peer = accept(&listener);
    peer.write_all(b"one").unwrap();
    assert_eq!(read_all(&rig, 3), b"one");
    rig.to(gst::State::Paused);
    peer.write_all(b"two").unwrap();
    rig.to(gst::State::Playing);
    assert_eq!(read_all(&rig, 3), b"two");
}

#[test]
fn new_caps_apply_in_mid_stream_and_times_are_set_if_configured() {
    let (listener, port) = listener();
    let pipe = Pipe::parse(&format!(
        "ts-tcpclientsrc name=in port={port} caps=application/x-test do-timestamp=true context={} ! fakesink name=out sync=false async=false",
        context()
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let mut peer = accept(&listener);
    peer.write_all(b"a").unwrap();
    assert!(next_buffer(&seen).pts().is_some());
    pipe.get("in")
        .set_property("caps", gst::Caps::new_empty_simple("application/x-other"));
    peer.write_all(b"b").unwrap();
    let caps = next_event(&seen, gst::EventType::Caps);
    assert!(caps.structure().unwrap().to_string().contains("x-other"));
}

#[test]
fn a_server_source_accepts_one_client_and_ends_with_it() {
    let rig = Rig::without_stream(
        &format!("ts-tcpserversrc port=0 context={}", context()),
        gst::State::Playing,
    );
    for round in 0..2u8 {
        let port: i32 = rig.element.property("current-port");
        let mut caller = TcpStream::connect(("localhost", port as u16)).unwrap();
        caller.write_all(&[round; 4]).unwrap();
        assert_eq!(read_all(&rig, 4), [round; 4]);
        drop(caller);
        rig.event(gst::EventType::Eos);
        rig.to(gst::State::Ready);
        rig.to(gst::State::Playing);
    }
}

/// As in `srtsrc`, the stream continues with the next client, and a mark shows that the client has changed.
#[test]
fn a_server_source_with_keep_listening_accepts_one_client_after_the_other() {
    let rig = Rig::without_stream(
        &format!(
            "ts-tcpserversrc port=0 keep-listening=true timeout=1 context={}",
            context()
        ),
        gst::State::Playing,
    );
    let port: i32 = rig.element.property("current-port");
    let call = || TcpStream::connect(("localhost", port as u16)).unwrap();
    for round in 0..3u8 {
        let mut caller = call();
        // The next client waits in the backlog.
        let mut next = call();
        next.write_all(&[round + 100; 4]).unwrap();
        caller.write_all(&[round; 4]).unwrap();
        for (data, caller) in [(round, caller), (round + 100, next)] {
            let buffer = rig.buffer();
            assert_eq!(bytes(&buffer), [data; 4]);
            let is_first = data == 0;
            assert_eq!(
                buffer.flags().contains(gst::BufferFlags::DISCONT),
                !is_first
            );
            if data == 1 {
                // Unlike a close, a reset is reported, but it does not end the stream either.
                socket2::SockRef::from(&caller)
                    .set_linger(Some(std::time::Duration::ZERO))
                    .unwrap();
            }
            drop(caller);
        }
    }
    let warning = |part: &str| {
        let told = rig
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Warning])
            .expect("a warning");
        assert!(text(&told).contains(part), "{told:?}");
    };
    warning("reset");
    // A client that sends nothing does not block the others for ever.
    let _mute = call();
    warning("timeout");
    let mut last = call();
    last.write_all(b"last").unwrap();
    assert_eq!(read_all(&rig, 4), b"last");
    assert_eq!(stat(&rig.element, "connections"), 8);
    assert!(rig.bus.pop_filtered(&[gst::MessageType::Error]).is_none());
}

/// Returns a server sink that plays, with a stream opened.
fn server(more: &str) -> (Rig, u16) {
    let rig = Rig::new(
        &format!("ts-tcpserversink port=0 context={} {more}", context()),
        gst::State::Playing,
    );
    let port: i32 = rig.element.property("current-port");
    (rig, port as u16)
}

fn call(rig: &Rig, port: u16) -> TcpStream {
    let before = stat(&rig.element, "clients-added");
    let caller = TcpStream::connect(("localhost", port)).unwrap();
    caller.set_read_timeout(Some(DEADLINE)).unwrap();
    eventually("the client is known", || {
        stat(&rig.element, "clients-added") > before
    });
    caller
}

#[test]
fn a_server_sink_serves_all_clients() {
    let (rig, port) = server("");
    let mut first = call(&rig, port);
    rig.push(numbered(1)).unwrap();
    let mut second = call(&rig, port);
    rig.push(numbered(2)).unwrap();
    let mut got = [0; 8];
    first.read_exact(&mut got).unwrap();
    assert_eq!(got, [packet(1), packet(2)].concat()[..]);
    let mut got = [0; 4];
    second.read_exact(&mut got).unwrap();
    assert_eq!(got, packet(2), "from the time that it called");
    assert_eq!(rig.element.property::<u32>("num-handles"), 2);
    assert_eq!(stat(&rig.element, "bytes-served"), 12);
}

#[test]
fn closed_client_is_reported() {
    let (rig, port) = server("");
    let (send, told) = channel();
    for signal in ["client-added", "client-removed"] {
        let send = send.clone();
        rig.element.connect(signal, false, move |values| {
            let _ = send.send((signal, values[2].get::<i32>().unwrap()));
            None
        });
    }
    let caller = call(&rig, port);
    let own = i32::from(caller.local_addr().unwrap().port());
    assert_eq!(told.recv_timeout(DEADLINE).unwrap(), ("client-added", own));
    drop(caller);
    assert_eq!(
        told.recv_timeout(DEADLINE).unwrap(),
        ("client-removed", own)
    );
    assert_eq!(rig.element.property::<u32>("num-handles"), 0);
    rig.push(numbered(1)).unwrap();
}

#[test]
fn client_that_does_not_read_is_dropped_without_delaying_others() {
    let (rig, port) = server("buffers-max=5");
    let _lazy = call(&rig, port);
    let mut diligent = call(&rig, port);
    let big = pattern(100_000);
    let expected = big.clone();
    // More than any socket's buffers hold.
    let rounds = 200;
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        for _ in 0..rounds {
            diligent.read_exact(&mut got).unwrap();
            assert!(got == expected);
        }
    });
    for _ in 0..rounds {
        // The sink sends at the speed of the client that reads.
        let fed = stat(&rig.element, "bytes-served");
        rig.push(gst::Buffer::from_slice(big.clone())).unwrap();
        eventually("it is written", || {
            stat(&rig.element, "bytes-served") >= fed + 100_000
        });
    }
    within("the reader", move || reader.join().unwrap());
    assert_eq!(stat(&rig.element, "clients-slow"), 1);
    eventually("it is gone", || {
        rig.element.property::<u32>("num-handles") <= 1
    });
}

#[test]
fn a_new_client_begins_with_the_stream_header() {
    let (rig, port) = server("");
    let header = gst::Array::new([gst::Buffer::from_slice(*b"head")]);
    let caps = gst::Caps::builder("application/x-test")
        .field("streamheader", header)
        .build();
    rig.feed.push_event(gst::event::Caps::new(&caps));
    let mut caller = call(&rig, port);
    rig.push(numbered(3)).unwrap();
    let mut got = [0; 8];
    caller.read_exact(&mut got).unwrap();
    assert_eq!(got, [*b"head", packet(3)].concat()[..]);
}

#[test]
fn stock_tcp_elements_interoperate() {
    let (rig, port) = server("");
    let pipe = Pipe::parse(&format!(
        "tcpclientsrc host=localhost port={port} ! fakesink name=out async=false sync=false"
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    eventually("it has called", || stat(&rig.element, "clients-added") == 1);
    rig.push(numbered(7)).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 7);
    // Stopping the server ends the stock client's stream.
    rig.to(gst::State::Null);
    next_event(&seen, gst::EventType::Eos);

    let stock = Pipe::parse("appsrc name=in ! tcpserversink name=s host=127.0.0.1 port=0");
    stock.play();
    let port: i32 = stock.get("s").property("current-port");
    let ours = client(port as u16, "");
    eventually("it has called", || {
        stock.get("s").property::<u32>("num-handles") == 1
    });
    let pushed: gst::FlowReturn = stock.get("in").emit_by_name("push-buffer", &[&numbered(8)]);
    assert_eq!(pushed, gst::FlowReturn::Ok);
    assert_eq!(number(&ours.buffer()), 8);
}

#[test]
fn restarted_sink_serves_each_time() {
    let (rig, _) = server("");
    for i in 0..3 {
        let port: i32 = rig.element.property("current-port");
        let mut caller = call(&rig, port as u16);
        rig.push(numbered(i)).unwrap();
        let mut got = [0; 4];
        caller.read_exact(&mut got).unwrap();
        assert_eq!(got, packet(i));
        for state in [gst::State::Ready, gst::State::Null, gst::State::Ready] {
            rig.to(state);
        }
        assert_eq!(caller.read(&mut got).unwrap(), 0, "closed");
        rig.to(gst::State::Playing);
        rig.open_stream();
    }
}

/// One peer cannot exhaust the process's descriptors by opening connection after connection.
#[test]
fn clients_beyond_the_limit_are_disconnected_at_once_and_counted() {
    let (rig, port) = server("max-clients=2");
    let mut first = call(&rig, port);
    let second = call(&rig, port);
    for refused in 1..=3 {
        let mut caller = TcpStream::connect(("localhost", port)).unwrap();
        caller.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(caller.read(&mut [0; 4]).unwrap(), 0, "closed");
        eventually("it is counted", || {
            stat(&rig.element, "clients-refused") == refused
        });
    }
    assert_eq!(rig.element.property::<u32>("num-handles"), 2);
    // When a client leaves, a place becomes free.
    drop(second);
    eventually("it is gone", || {
        rig.element.property::<u32>("num-handles") == 1
    });
    let mut third = call(&rig, port);
    rig.push(numbered(1)).unwrap();
    let mut got = [0; 4];
    for client in [&mut first, &mut third] {
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, packet(1));
    }
    // The limit changes while the element plays; 0 means no limit.
    rig.element.set_property("max-clients", 0u32);
    let _more = [call(&rig, port), call(&rig, port)];
    assert_eq!(rig.element.property::<u32>("num-handles"), 4);
}

#[test]
fn client_with_too_many_queued_bytes_is_dropped() {
    // This is more than the sockets' buffers hold, which the kernel doubles (socket(7)) and grows (tcp(7)).
    const BIG: usize = 8 << 20;
    let (rig, port) = server("bytes-max=1000000 buffers-max=-1");
    let _lazy = call(&rig, port);
    // One buffer is accepted, of any size.
    rig.push(gst::Buffer::from_slice(vec![0u8; BIG])).unwrap();
    assert_eq!(stat(&rig.element, "clients-slow"), 0);
    rig.push(numbered(1)).unwrap();
    assert_eq!(stat(&rig.element, "clients-slow"), 1);
    eventually("it is gone", || {
        rig.element.property::<u32>("num-handles") == 0
    });
    // Small buffers are counted by their bytes, too. The queue keeps them only up to the limit.
    let (rig, port) = server("bytes-max=100000 buffers-max=-1");
    let _lazy = call(&rig, port);
    let mut pushed = 0u64;
    while stat(&rig.element, "clients-slow") == 0 {
        rig.push(gst::Buffer::from_slice(vec![0u8; 1000])).unwrap();
        pushed += 1000;
        assert!(pushed < 1 << 30, "the kernel takes no such amount");
    }
    let written = stat(&rig.element, "bytes-served");
    // The last buffer exceeded the limit and is not in the queue.
    let behind = pushed - 1000 - written;
    assert!((99_000..=100_000).contains(&behind), "{behind}");
}

/// Returns a client sink that plays, with a stream opened, and the server's end.
fn calling(listener: &TcpListener, more: &str) -> (Rig, TcpStream) {
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::new(
        &format!(
            "ts-tcpclientsink host=127.0.0.1 port={port} async=false sync=false context={} {more}",
            context()
        ),
        gst::State::Playing,
    );
    let server = accept(listener);
    server.set_read_timeout(Some(DEADLINE)).unwrap();
    (rig, server)
}

#[test]
fn a_client_sink_sends_everything_in_order_at_the_servers_pace() {
    let (listener, _) = listener();
    let (rig, mut server) = calling(&listener, "");
    // More than the sockets' buffers hold, so the sink must wait for the server repeatedly.
    let sent = pattern(20 << 20);
    let to_send = sent.clone();
    let rig = within("all is sent", move || {
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            got
        });
        for piece in to_send.chunks(100_000) {
            rig.push(gst::Buffer::from_slice(piece.to_vec())).unwrap();
        }
        rig.feed.push_event(gst::event::Eos::new());
        rig.bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos])
            .expect("the end");
        rig.to(gst::State::Null);
        assert!(reader.join().unwrap() == to_send);
        rig
    });
    assert_eq!(stat(&rig.element, "bytes-served"), sent.len() as u64);
    assert_eq!(
        stat(&rig.element, "rendered"),
        sent.len().div_ceil(100_000) as u64
    );
}

#[test]
fn client_sink_does_not_block_its_context() {
    let (listener, port) = listener();
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={name} ! ts-tcpclientsink name=out host=127.0.0.1 port={port} context={name} sync=false \
         ts-udpsrc name=near address=127.0.0.1 port=0 context={name} ! fakesink name=seen async=false"
    ));
    let seen = watch(&pipe.pad("seen", "sink"));
    pipe.play();
    let mut server = accept(&listener);
    let source = pipe.get("in");
    let big = vec![7u8; 8 << 20];
    for _ in 0..2 {
        assert!(
            source.emit_by_name::<bool>("push-buffer", &[&gst::Buffer::from_slice(big.clone())])
        );
    }
    eventually("a part is sent", || {
        stat(&pipe.get("out"), "bytes-served") > 0
    });
    // The server does not read. The neighbour runs all the same.
    socket()
        .send_to(&packet(1), target(&pipe.get("near")))
        .unwrap();
    assert_eq!(number(&next_buffer(&seen)), 1);
    let mut got = vec![0; 2 * big.len()];
    within("all of it arrives", move || {
        server.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn client_sink_names_an_unreachable_host_and_restarts() {
    let (gone, port) = listener();
    drop(gone);
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={} ! ts-tcpclientsink name=out host=127.0.0.1 port={port} async=false sync=false",
        context()
    ));
    let _ = pipe.0.set_state(gst::State::Playing);
    let said = text(&pipe.expect(gst::MessageType::Error));
    assert!(said.contains(&format!("127.0.0.1:{port}")), "{said}");
    pipe.to(gst::State::Null);
    let nowhere = pipe.get("out");
    nowhere.set_property("host", "no-such-host.invalid");
    assert!(pipe.0.set_state(gst::State::Paused).is_err());
    let said = text(&pipe.expect(gst::MessageType::Error));
    assert!(said.contains("no-such-host.invalid"), "{said}");
    pipe.to(gst::State::Null);
    let (listener, port) = listener();
    nowhere.set_property("host", "localhost");
    nowhere.set_property("port", i32::from(port));
    for round in 0..2 {
        pipe.play();
        let mut server = accept(&listener);
        server.set_read_timeout(Some(DEADLINE)).unwrap();
        assert!(
            pipe.get("in")
                .emit_by_name::<bool>("push-buffer", &[&numbered(round)])
        );
        let mut got = [0; 4];
        server.read_exact(&mut got).unwrap();
        assert_eq!(got, packet(round));
        pipe.to(gst::State::Null);
        assert_eq!(server.read(&mut got).unwrap(), 0, "closed");
    }
}

#[test]
fn client_sink_survives_a_silent_server_and_reports_a_closed_one() {
    let (listener, _) = listener();
    let (rig, mut server) = calling(&listener, "");
    // The server sends something, like nc with an empty input: it still receives.
    server.write_all(b"ignored").unwrap();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    for number in 1..=3 {
        rig.push(numbered(number)).unwrap();
        let mut got = [0; 4];
        server.read_exact(&mut got).unwrap();
        assert_eq!(got, packet(number));
    }
    let address = listener.local_addr().unwrap().to_string();
    drop(server);
    let mut number = 3;
    eventually("the loss is noticed", || {
        number += 1;
        rig.push(numbered(number)).is_err()
    });
    assert_eq!(stat(&rig.element, "lost"), 1);
    let said = text(&rig.error());
    assert!(said.contains(&address), "{said}");
}

/// A lost connection gives a push result and an error message, as with the stock element. This applies to a push that waits for
/// room, and to all later ones.
#[test]
fn a_lost_connection_is_the_result_of_the_push() {
    for sink in ["tcpclientsink", "ts-tcpclientsink"] {
        let (listener, port) = listener();
        let rig = Rig::new(
            &format!("{sink} host=127.0.0.1 port={port} async=false sync=false"),
            gst::State::Playing,
        );
        let mut server = accept(&listener);
        // More than the sockets' buffers hold.
        let waits = rig.push_aside(gst::Buffer::from_slice(pattern(20 << 20)));
        server.read_exact(&mut [0; 1]).unwrap();
        // The server has unread data, so the close is a reset (RFC 2525, section 2.17).
        drop(server);
        let result = waits.recv_timeout(DEADLINE).unwrap();
        assert_eq!(result, Err(gst::FlowError::Error), "{sink}");
        let said = text(&rig.error());
        assert!(said.contains(&port.to_string()), "{sink}: {said}");
        for number in 0..3 {
            let result = rig.push(numbered(number));
            assert_eq!(result, Err(gst::FlowError::Error), "{sink}");
        }
    }
}

/// On a context's thread, a lost connection ends the source.
#[test]
fn a_lost_connection_ends_the_source() {
    let (listener, port) = listener();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={} ! ts-tcpclientsink host=127.0.0.1 port={port} sync=false",
        context()
    ));
    pipe.play();
    let source = pipe.get("in");
    let push = |data: Vec<u8>| {
        source.emit_by_name::<bool>("push-buffer", &[&gst::Buffer::from_slice(data)])
    };
    assert!(push(pattern(20 << 20)));
    let mut server = accept(&listener);
    server.read_exact(&mut [0; 1]).unwrap();
    drop(server);
    eventually("the source has ended", || !push(vec![0]));
}

/// The server counts bytes. If the start of a buffer was sent, a flush must not drop its remaining part.
#[test]
fn a_flush_drops_only_whole_buffers() {
    let (listener, _) = listener();
    let (rig, mut server) = calling(&listener, "");
    let big = pattern(8 << 20);
    let pushing = rig.push_aside(gst::Buffer::from_slice(big.clone()));
    eventually("a part is sent", || stat(&rig.element, "bytes-served") > 0);
    rig.feed.push_event(gst::event::FlushStart::new());
    let _ = pushing.recv_timeout(DEADLINE).expect("the push ends");
    rig.feed.push_event(gst::event::FlushStop::new(true));
    rig.open_segment();
    let last = rig.push_aside(numbered(9));
    let mut got = vec![0; big.len() + 4];
    let got = within("the rest", move || {
        server.read_exact(&mut got).unwrap();
        got
    });
    assert!(got[..big.len()] == big);
    assert_eq!(got[big.len()..], packet(9));
    last.recv_timeout(DEADLINE).expect("the push ends").unwrap();
}

/// The remaining part of a buffer that was started before a flush is not dropped under a lock of the element.
#[test]
fn the_drop_of_a_flushed_buffer_may_call_a_client_sink() {
    for is_read in [true, false] {
        let (listener, _) = listener();
        let (rig, mut server) = calling(&listener, "");
        let (dropped, told) = channel();
        let data = pattern(8 << 20);
        let size = data.len();
        let big = gst::Buffer::from_slice(CallsBack {
            element: rig.element.downgrade(),
            dropped,
            data,
        });
        let pushing = rig.push_aside(big);
        eventually("a part is sent", || stat(&rig.element, "bytes-served") > 0);
        rig.feed.push_event(gst::event::FlushStart::new());
        let _ = pushing.recv_timeout(DEADLINE).expect("the push ends");
        rig.feed.push_event(gst::event::FlushStop::new(true));
        if is_read {
            rig.open_segment();
            let last = rig.push_aside(numbered(9));
            within("the rest", move || {
                server.read_exact(&mut vec![0; size + 4]).unwrap();
            });
            last.recv_timeout(DEADLINE).expect("the push ends").unwrap();
        } else {
            rig.to(gst::State::Ready);
        }
        told.recv_timeout(DEADLINE).expect("it is dropped");
    }
}

/// Pushes another buffer when it is dropped.
struct PushesOn {
    feed: gst::Pad,
    data: Vec<u8>,
}

impl AsRef<[u8]> for PushesOn {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for PushesOn {
    fn drop(&mut self) {
        let _ = self.feed.push(numbered(9));
    }
}

/// Data that a client has received is not dropped under its lock.
#[test]
fn the_drop_of_a_sent_buffer_may_push_into_a_server_sink() {
    let rig = Rig::new(
        &format!(
            "ts-tcpserversink host=127.0.0.1 port=0 async=false sync=false context={}",
            context()
        ),
        gst::State::Playing,
    );
    let port = rig.element.property::<i32>("current-port") as u16;
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    eventually("it is there", || stat(&rig.element, "clients") == 1);
    let data = pattern(8 << 20);
    let mut got = vec![0; data.len() + 4];
    let feed = rig.feed.clone();
    rig.push(gst::Buffer::from_slice(PushesOn { feed, data }))
        .unwrap();
    let got = within("all", move || {
        client.read_exact(&mut got).unwrap();
        got
    });
    assert_eq!(got[got.len() - 4..], packet(9));
}

#[test]
fn stock_and_own_tcp_elements_exchange_data_in_both_directions() {
    let stock = Pipe::parse(
        "tcpserversrc name=s host=127.0.0.1 port=0 ! fakesink name=out async=false sync=false",
    );
    let seen = watch(&stock.pad("out", "sink"));
    stock.0.set_state(gst::State::Playing).unwrap();
    let port = || stock.get("s").property::<i32>("current-port");
    eventually("it listens", || port() != 0);
    let rig = Rig::new(
        &format!(
            "ts-tcpclientsink host=127.0.0.1 port={} async=false sync=false context={}",
            port(),
            context()
        ),
        gst::State::Playing,
    );
    rig.push(numbered(5)).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 5);
    rig.to(gst::State::Null);
    next_event(&seen, gst::EventType::Eos);

    // With keep-listening, one stock client after another is served.
    let ours = Rig::without_stream(
        &format!(
            "ts-tcpserversrc host=127.0.0.1 port=0 keep-listening=true context={}",
            context()
        ),
        gst::State::Playing,
    );
    let port: i32 = ours.element.property("current-port");
    for round in 0..2 {
        let stock = Pipe::parse(&format!(
            "appsrc name=in ! tcpclientsink host=127.0.0.1 port={port} async=false sync=false"
        ));
        stock.play();
        let pushed: gst::FlowReturn = stock
            .get("in")
            .emit_by_name("push-buffer", &[&numbered(round)]);
        assert_eq!(pushed, gst::FlowReturn::Ok);
        assert_eq!(number(&ours.buffer()), round);
        stock.to(gst::State::Null);
    }
}
