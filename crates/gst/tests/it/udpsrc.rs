//! `ts-udpsrc`: receiving, sockets, multicast, URIs, time-outs.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::*;
use gio::prelude::*;
use gst::prelude::*;

/// Returns a source on loopback and any free port, its output, and its address.
fn playing(properties: &str) -> (Pipe, std::sync::mpsc::Receiver<Seen>, SocketAddr) {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} {properties} ! fakesink name=sink sync=false async=false",
        context()
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let target = target(&pipe.get("src"));
    (pipe, seen, target)
}

#[test]
fn packets_arrive_in_order_after_stream_start_caps_and_segment() {
    let (pipe, seen, target) = playing("caps=application/x-test,n=(int)1");
    let sender = socket();
    for i in 0..50 {
        sender.send_to(&packet(i), target).unwrap();
    }
    let mut kinds = Vec::new();
    let first = loop {
        match seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Event(event) => kinds.push(event.type_()),
            Seen::Buffer(buffer) => break buffer,
        }
    };
    use gst::EventType as E;
    assert_eq!(kinds, [E::StreamStart, E::Caps, E::Segment]);
    assert_eq!(number(&first), 0);
    let mut last = first.pts().expect("a time");
    for i in 1..50 {
        let buffer = next_buffer(&seen);
        assert_eq!(number(&buffer), i);
        assert!(buffer.pts().unwrap() >= last);
        last = buffer.pts().unwrap();
    }
    let src = pipe.get("src");
    assert_eq!(stat(&src, "packets-received"), 50);
    assert_eq!(stat(&src, "bytes-received"), 200);
}

#[test]
fn the_source_is_live_and_reports_its_wait_as_latency() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} context-wait=20 ! fakesink sync=false",
        context()
    ));
    let src = pipe.get("src");
    assert_eq!(
        src.set_state(gst::State::Ready),
        Ok(gst::StateChangeSuccess::Success)
    );
    assert_eq!(
        src.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    let mut query = gst::query::Latency::new();
    assert!(pipe.pad("src", "src").query(&mut query));
    assert_eq!(
        query.result(),
        (true, gst::ClockTime::from_mseconds(20), None)
    );
    assert_eq!(
        src.set_state(gst::State::Playing),
        Ok(gst::StateChangeSuccess::Success)
    );
    assert_eq!(
        src.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    let result = pipe.0.set_state(gst::State::Paused);
    assert_eq!(result, Ok(gst::StateChangeSuccess::NoPreroll));
}

#[test]
fn a_paused_source_pushes_nothing() {
    // The sink is one of ours. A stock sink would block the thread with the current packet.
    let receiver = socket();
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! ts-udpsink async=false sync=false clients={}",
        receiver.local_addr().unwrap()
    ));
    pipe.play();
    let (sender, address) = (socket(), target(&pipe.get("src")));
    sender.send_to(&packet(0), address).unwrap();
    assert_eq!(received(&receiver), packet(0));
    pipe.to(gst::State::Paused);
    // When another element of the same context plays and passes data, the thread has handled the pause.
    let other = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! fakesink name=sink sync=false async=false"
    ));
    let other_seen = watch(&other.pad("sink", "sink"));
    other.play();
    let seen = watch(&pipe.pad("src", "src"));
    sender.send_to(&packet(1), address).unwrap();
    sender
        .send_to(&packet(2), target(&other.get("src")))
        .unwrap();
    next_buffer(&other_seen);
    assert!(seen.try_recv().is_err());
    pipe.play();
    assert_eq!(received(&receiver), packet(1));
}

#[test]
fn changed_caps_are_sent_before_the_next_packet() {
    for first in ["caps=application/x-one", ""] {
        let (pipe, seen, target) = playing(first);
        let sender = socket();
        sender.send_to(&packet(0), target).unwrap();
        next_buffer(&seen);
        let two = gst::Caps::new_empty_simple("application/x-two");
        pipe.get("src").set_property("caps", &two);
        let event = next_event(&seen, gst::EventType::Caps);
        match event.view() {
            gst::EventView::Caps(caps) => assert_eq!(caps.caps_owned(), two),
            other => panic!("{other:?}"),
        }
        sender.send_to(&packet(1), target).unwrap();
        assert_eq!(number(&next_buffer(&seen)), 1);
    }
}

#[test]
fn caps_that_are_open_are_fixed_before_they_are_announced() {
    // The source may use any caps that downstream accepts, and may change them while it runs.
    let (pipe, seen, target) = playing("caps=application/x-test,n=[1,5]");
    let sender = socket();
    sender.send_to(&packet(0), target).unwrap();
    let caps = next_event(&seen, gst::EventType::Caps);
    let fixed = |event: &gst::Event| match event.view() {
        gst::EventView::Caps(caps) => caps.caps().is_fixed(),
        _ => false,
    };
    assert!(fixed(&caps));
    next_buffer(&seen);
    let open: gst::Caps = "application/x-test,n=[7,9]".parse().unwrap();
    pipe.get("src").set_property("caps", open);
    assert!(fixed(&next_event(&seen, gst::EventType::Caps)));
    sender.send_to(&packet(1), target).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 1);
    pipe.assert_no_error();
}

#[test]
fn caps_that_downstream_refuses_are_an_error_not_a_panic() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! capsfilter caps=application/x-other ! fakesink sync=false async=false",
        context()
    ));
    let open: gst::Caps = "application/x-test,n=[1,5]".parse().unwrap();
    pipe.get("src").set_property("caps", open);
    pipe.play();
    socket()
        .send_to(&packet(0), target(&pipe.get("src")))
        .unwrap();
    pipe.message(&[gst::MessageType::Error]);
}

#[test]
fn oversized_packet_is_truncated_counted_flagged_and_reported() {
    for packets in [1u64, 40] {
        // Many packets at once are received in batches.
        let (pipe, seen, target) = playing("mtu=10 context-wait=20");
        let sender = socket();
        for _ in 0..packets {
            sender.send_to(&[7; 11], target).unwrap();
        }
        sender.send_to(&[8; 10], target).unwrap();
        for _ in 0..packets {
            let cut = next_buffer(&seen);
            assert_eq!(bytes(&cut), [7; 10]);
            assert!(cut.flags().contains(gst::BufferFlags::CORRUPTED));
        }
        let whole = next_buffer(&seen);
        assert_eq!(bytes(&whole), [8; 10]);
        assert!(!whole.flags().contains(gst::BufferFlags::CORRUPTED));
        assert_eq!(stat(&pipe.get("src"), "packets-truncated"), packets);
        let warning = pipe.message(&[gst::MessageType::Warning]);
        assert!(text(&warning).contains("mtu=10"), "{warning:?}");
    }
}

#[test]
fn first_bytes_are_skipped_and_short_packets_counted() {
    let (pipe, seen, target) = playing("skip-first-bytes=3");
    let sender = socket();
    sender.send_to(b"ab", target).unwrap();
    sender.send_to(b"abcdef", target).unwrap();
    assert_eq!(bytes(&next_buffer(&seen)), b"def");
    assert_eq!(stat(&pipe.get("src"), "packets-too-short"), 1);
}

#[test]
fn empty_datagram_is_not_an_end() {
    let (_pipe, seen, target) = playing("");
    let sender = socket();
    sender.send_to(b"", target).unwrap();
    sender.send_to(&packet(1), target).unwrap();
    assert_eq!(next_buffer(&seen).size(), 0);
    assert_eq!(number(&next_buffer(&seen)), 1);
}

#[test]
fn sender_address_is_attached_if_configured() {
    let (_pipe, seen, target) = playing("");
    let senders: Vec<UdpSocket> = (0..20).map(|_| socket()).collect();
    for round in 0..2 {
        for sender in &senders {
            sender.send_to(&packet(round), target).unwrap();
            let buffer = next_buffer(&seen);
            let meta = buffer
                .meta::<gst_net::NetAddressMeta>()
                .expect("no address");
            let address = meta.addr().downcast::<gio::InetSocketAddress>().unwrap();
            assert_eq!(address.port(), sender.local_addr().unwrap().port());
            assert_eq!(
                IpAddr::from(address.address()),
                IpAddr::from([127, 0, 0, 1])
            );
        }
    }
    let (_pipe, seen, target) = playing("retrieve-sender-address=false");
    socket().send_to(&packet(0), target).unwrap();
    assert!(
        next_buffer(&seen)
            .meta::<gst_net::NetAddressMeta>()
            .is_none()
    );
}

#[test]
fn the_kernels_timestamp_is_attached_if_configured() {
    let (_pipe, seen, target) = playing("socket-timestamp=realtime");
    let sender = socket();
    for i in 0..20 {
        sender.send_to(&packet(i), target).unwrap();
    }
    for i in 0..100 {
        let buffer = next_buffer(&seen);
        assert_eq!(number(&buffer), i);
        let meta = buffer
            .meta::<gst::ReferenceTimestampMeta>()
            .expect("no timestamp");
        assert_eq!(meta.reference().to_string(), "timestamp/x-unix");
        assert!(meta.timestamp() > gst::ClockTime::from_seconds(1_000_000_000));
        // No mark remains from the buffer's last use.
        assert_eq!(buffer.iter_meta::<gst::ReferenceTimestampMeta>().count(), 1);
        drop(buffer);
        sender.send_to(&packet(i + 20), target).unwrap();
    }
}

#[test]
fn buffers_get_no_timestamps_if_configured() {
    let (_pipe, seen, target) = playing("do-timestamp=false");
    socket().send_to(&packet(0), target).unwrap();
    assert_eq!(next_buffer(&seen).pts(), None);
}

#[test]
fn a_message_is_posted_when_nothing_arrives_for_a_while() {
    let (pipe, seen, target) = playing("timeout=20000000");
    for _ in 0..2 {
        let message = pipe.expect(gst::MessageType::Element);
        let structure = message.structure().unwrap();
        assert_eq!(structure.name(), "GstUDPSrcTimeout");
        assert_eq!(structure.get::<u64>("timeout"), Ok(20_000_000));
    }
    socket().send_to(&packet(0), target).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 0);
    pipe.expect(gst::MessageType::Element);
}

#[test]
fn an_eos_event_ends_the_stream_once_and_a_flush_restarts_it() {
    let (pipe, seen, target) = playing("");
    let sender = socket();
    sender.send_to(&packet(0), target).unwrap();
    next_buffer(&seen);
    let src = pipe.get("src");
    assert!(src.send_event(gst::event::Eos::new()));
    pipe.expect(gst::MessageType::Eos);
    for _ in 0..2 {
        assert!(src.send_event(gst::event::FlushStart::new()));
        assert!(src.send_event(gst::event::FlushStop::new(true)));
        next_event(&seen, gst::EventType::FlushStop);
        next_event(&seen, gst::EventType::Segment);
        sender.send_to(&packet(1), target).unwrap();
        assert_eq!(number(&next_buffer(&seen)), 1);
    }
    assert!(src.send_event(gst::event::Eos::new()));
    pipe.expect(gst::MessageType::Eos);
    // The same must hold after a start from READY.
    pipe.to(gst::State::Ready);
    pipe.play();
    sender
        .send_to(&packet(2), crate::common::target(&src))
        .unwrap();
    next_event(&seen, gst::EventType::StreamStart);
    assert_eq!(number(&next_buffer(&seen)), 2);
}

#[test]
fn a_downstream_that_ends_or_fails_is_an_eos_or_an_error() {
    let (pipe, _seen, target) = playing("");
    pipe.pad("sink", "sink").send_event(gst::event::Eos::new());
    socket().send_to(&packet(0), target).unwrap();
    pipe.expect(gst::MessageType::Eos);
    // Nothing is linked.
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={}",
        context()
    ));
    pipe.play();
    socket()
        .send_to(&packet(0), crate::common::target(&pipe.get("src")))
        .unwrap();
    let error = pipe.message(&[gst::MessageType::Error]);
    assert!(text(&error).contains("NotLinked"), "{error:?}");
    // The element can leave the error state downwards, and works again once it is linked.
    pipe.to(gst::State::Null);
    let sink = gst::ElementFactory::make("fakesink")
        .property("async", false)
        .build()
        .unwrap();
    pipe.0.add(&sink).unwrap();
    pipe.get("src").link(&sink).unwrap();
    let seen = watch(&sink.static_pad("sink").unwrap());
    pipe.play();
    socket()
        .send_to(&packet(1), crate::common::target(&pipe.get("src")))
        .unwrap();
    assert_eq!(number(&next_buffer(&seen)), 1);
}

#[test]
fn unbindable_address_is_refused_by_name() {
    for (properties, named) in [
        ("address=192.0.2.1 port=0", "192.0.2.1"),
        ("address=no.such.host.invalid", "no.such.host.invalid"),
        (
            "address=239.1.2.3 port=0 multicast-iface=nosuchif0",
            "nosuchif0",
        ),
        (
            "address=239.1.2.3 port=0 multicast-source=nonsense",
            "nonsense",
        ),
    ] {
        let pipe = Pipe::parse(&format!("ts-udpsrc name=src {properties} ! fakesink"));
        let result = within("a refused start", {
            let pipeline = pipe.0.clone();
            move || pipeline.set_state(gst::State::Playing)
        });
        assert!(result.is_err(), "{properties}");
        let error = pipe.message(&[gst::MessageType::Error]);
        assert!(text(&error).contains(named), "{error:?}");
    }
    // The port is in use and not shared.
    let taken = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc address=127.0.0.1 reuse=false port={} ! fakesink",
        taken.local_addr().unwrap().port()
    ));
    assert!(pipe.0.set_state(gst::State::Playing).is_err());
}

#[test]
fn any_free_ports_are_distinct_and_may_be_shared() {
    init();
    let sources: Vec<gst::Element> = (0..400)
        .map(|_| {
            let src = make("ts-udpsrc");
            src.set_property("address", "127.0.0.1");
            src.set_property("port", 0);
            src.set_state(gst::State::Ready).unwrap();
            src
        })
        .collect();
    let ports: std::collections::HashSet<u16> =
        sources.iter().map(|src| target(src).port()).collect();
    let sharing = make("ts-udpsrc");
    sharing.set_property("address", "127.0.0.1");
    sharing.set_property("port", i32::from(target(&sources[0]).port()));
    let shared = sharing.set_state(gst::State::Ready);
    for src in sources.iter().chain([&sharing]) {
        src.set_state(gst::State::Null).unwrap();
    }
    assert_eq!(ports.len(), 400);
    assert!(shared.is_ok());
}

#[test]
fn a_host_name_is_accepted_as_address() {
    let pipe = Pipe::parse("ts-udpsrc name=src address=localhost port=0 ! fakesink async=false");
    pipe.to(gst::State::Ready);
    assert!(
        used_address(&pipe.get("src"), "used-socket")
            .ip()
            .is_loopback()
    );
}

#[test]
fn packets_are_received_over_ipv6() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=::1 port=0 context={} ! fakesink name=sink async=false",
        context()
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    bound("::1")
        .send_to(&packet(6), target(&pipe.get("src")))
        .unwrap();
    let buffer = next_buffer(&seen);
    assert_eq!(number(&buffer), 6);
    let meta = buffer.meta::<gst_net::NetAddressMeta>().unwrap();
    let address = meta.addr().downcast::<gio::InetSocketAddress>().unwrap();
    assert_eq!(
        IpAddr::from(address.address()),
        "::1".parse::<IpAddr>().unwrap()
    );
}

#[test]
fn an_icmp_error_on_receive_is_not_fatal() {
    // A connected socket gets the error for unreceived packets.
    let socket = gio_socket("127.0.0.1");
    let dead = crate::common::socket().local_addr().unwrap();
    let peer = gio::InetSocketAddress::new(&gio::InetAddress::from(dead.ip()), dead.port());
    gio::prelude::SocketExt::connect(&socket, &peer, gio::Cancellable::NONE).unwrap();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src context={} ! fakesink name=sink async=false",
        context()
    ));
    let src = pipe.get("src");
    src.set_property("socket", &socket);
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    for _ in 0..3 {
        // The second packet may get the error of the first one.
        let _ = socket.send(b"x", gio::Cancellable::NONE);
        let before = stat(&src, "socket-errors");
        let _ = socket.send(b"x", gio::Cancellable::NONE);
        eventually("an ICMP error", || {
            let _ = socket.send(b"x", gio::Cancellable::NONE);
            stat(&src, "socket-errors") > before
        });
    }
    // Now the peer exists.
    let peer = UdpSocket::bind(dead).unwrap();
    peer.send_to(&packet(3), used_address(&src, "used-socket"))
        .unwrap();
    assert_eq!(number(&next_buffer(&seen)), 3);
    pipe.assert_no_error();
}

fn gio_socket(address: &str) -> gio::Socket {
    init();
    let ip: IpAddr = address.parse().unwrap();
    let family = if ip.is_ipv4() {
        gio::SocketFamily::Ipv4
    } else {
        gio::SocketFamily::Ipv6
    };
    let socket =
        gio::Socket::new(family, gio::SocketType::Datagram, gio::SocketProtocol::Udp).unwrap();
    let address = gio::InetSocketAddress::new(&gio::InetAddress::from(ip), 0);
    socket.bind(&address, false).unwrap();
    socket
}

#[test]
fn a_given_socket_is_used_and_stays_open_unless_close_socket_is_set() {
    for close in [true, false] {
        let socket = gio_socket("127.0.0.1");
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src close-socket={close} context={} ! fakesink name=sink async=false",
            context()
        ));
        let src = pipe.get("src");
        src.set_property("socket", &socket);
        assert_eq!(src.property::<Option<gio::Socket>>("used-socket"), None);
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        assert_eq!(
            src.property::<Option<gio::Socket>>("used-socket").as_ref(),
            Some(&socket)
        );
        crate::common::socket()
            .send_to(&packet(1), target(&src))
            .unwrap();
        assert_eq!(number(&next_buffer(&seen)), 1);
        pipe.to(gst::State::Null);
        assert_eq!(src.property::<Option<gio::Socket>>("used-socket"), None);
        assert_eq!(socket.is_closed(), close);
        // A socket that is closed is refused, because its descriptor may belong to another socket by now.
        let result = pipe.0.set_state(gst::State::Playing);
        assert_eq!(result.is_err(), close, "{result:?}");
        if close {
            let error = pipe.message(&[gst::MessageType::Error]);
            assert!(text(&error).contains("closed"), "{error:?}");
            src.set_property("socket", None::<gio::Socket>);
            src.set_property("address", "127.0.0.1");
            src.set_property("port", 0);
            pipe.to(gst::State::Null);
            pipe.play();
        }
        crate::common::socket()
            .send_to(&packet(2), target(&src))
            .unwrap();
        assert_eq!(number(&next_buffer(&seen)), 2);
    }
}

#[test]
fn uri_handler_sets_and_returns_udp_uris() {
    init();
    let src = gst::Element::make_from_uri(gst::URIType::Src, "udp://127.0.0.1:6001", None);
    // Our element has no rank, so it is never a default.
    let factory = src.unwrap().factory().unwrap().name();
    assert_ne!(factory, "ts-udpsrc");
    let src = make("ts-udpsrc");
    let handler = src.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    assert_eq!(handler.uri_type(), gst::URIType::Src);
    assert_eq!(handler.protocols(), ["udp"]);
    handler.set_uri("udp://[::1]:6002").unwrap();
    assert_eq!(src.property::<String>("address"), "::1");
    assert_eq!(src.property::<i32>("port"), 6002);
    assert_eq!(handler.uri().as_deref(), Some("udp://[::1]:6002"));
    assert!(handler.set_uri("http://x").is_err());
    src.set_property("uri", "udp://1.2.3.4:99");
    assert_eq!(src.property::<String>("address"), "1.2.3.4");
    assert_eq!(src.property::<String>("uri"), "udp://1.2.3.4:99");
}

#[test]
fn multicast_groups_are_joined_with_and_without_an_interface() {
    let with = ["multicast-iface=lo", "multicast-iface=lo,lo", ""];
    for group in ["239.255.43.21", "ff05::4321", "ff02::4321", "ff01::4321"] {
        for interface in with {
            let pipe = Pipe::parse(&format!(
                "ts-udpsrc name=src address={group} port=0 context={} {interface} ! fakesink name=sink async=false",
                context()
            ));
            if interface == "multicast-iface=lo,lo" {
                // A second membership of the same group is refused by the kernel, and left without a panic.
                let _ = pipe.0.set_state(gst::State::Playing);
                pipe.to(gst::State::Null);
                continue;
            }
            let start = pipe.0.set_state(gst::State::Playing);
            if start.is_err() {
                let error = pipe.message(&[gst::MessageType::Error]);
                // Without a name, the routing table chooses the interface. It may have no route.
                let no_route = interface.is_empty() && text(&error).contains("No such device");
                assert!(no_route, "{group} {interface}: {error:?}");
                continue;
            }
            for _ in 0..2 {
                pipe.to(gst::State::Null);
                pipe.play();
            }
            if interface.is_empty() {
                continue;
            }
            let seen = watch(&pipe.pad("sink", "sink"));
            let src = pipe.get("src");
            let port = used_address(&src, "used-socket").port();
            if send_multicast(group.parse().unwrap(), port, &packet(5)) {
                assert_eq!(number(&next_buffer(&seen)), 5, "{group}");
            }
        }
    }
}

/// Sends to a group through the loopback interface. Returns `false` if that interface has no route for such groups (for IPv6, one
/// is rarely configured).
fn send_multicast(group: IpAddr, port: u16, data: &[u8]) -> bool {
    match group {
        IpAddr::V4(_) => {
            let sender = socket2::Socket::from(bound("127.0.0.1"));
            sender
                .set_multicast_if_v4(&"127.0.0.1".parse().unwrap())
                .unwrap();
            sender
                .send_to(data, &SocketAddr::new(group, port).into())
                .unwrap();
            true
        }
        IpAddr::V6(group) => {
            let sender = socket2::Socket::from(bound("::1"));
            let lo = 1;
            sender.set_multicast_if_v6(lo).unwrap();
            let to = std::net::SocketAddrV6::new(group, port, 0, lo);
            sender.send_to(data, &SocketAddr::V6(to).into()).is_ok()
        }
    }
}

#[test]
fn without_auto_multicast_no_group_is_joined() {
    let pipe = Pipe::parse(
        "ts-udpsrc name=src address=239.255.43.22 port=0 auto-multicast=false multicast-iface=nosuchif0 ! fakesink async=false",
    );
    pipe.play();
}

#[test]
fn packets_to_a_group_are_received_only_from_the_configured_source() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=232.255.43.23 port=0 context={} multicast-source=+127.0.0.1 multicast-iface=lo ! fakesink name=sink async=false",
        context()
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let port = used_address(&pipe.get("src"), "used-socket").port();
    let group: IpAddr = "232.255.43.23".parse().unwrap();
    let other = socket2::Socket::from(bound("127.0.0.2"));
    other
        .set_multicast_if_v4(&"127.0.0.1".parse().unwrap())
        .unwrap();
    other
        .send_to(&packet(1), &SocketAddr::new(group, port).into())
        .unwrap();
    send_multicast(group, port, &packet(2));
    assert_eq!(number(&next_buffer(&seen)), 2);
}

#[test]
fn a_flooded_source_does_not_starve_its_neighbours() {
    for wait in [0, 20] {
        let name = context();
        let line: String = (0..20)
            .map(|i| {
                format!("ts-udpsrc name=src{i} address=127.0.0.1 port=0 context={name} context-wait={wait} ! fakesink name=sink{i} async=false sync=false ")
            })
            .collect();
        let pipe = Pipe::parse(&line);
        let seen: Vec<_> = (1..20)
            .map(|i| watch(&pipe.pad(&format!("sink{i}"), "sink")))
            .collect();
        pipe.play();
        let flooded = target(&pipe.get("src0"));
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let of_thread = stop.clone();
        let flood = std::thread::spawn(move || {
            let sender = socket();
            while !of_thread.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = sender.send_to(&[0; 20], flooded);
            }
        });
        let src0 = pipe.get("src0");
        eventually("the flood", || stat(&src0, "packets-received") > 200);
        let quiet: Vec<SocketAddr> = (1..20)
            .map(|i| target(&pipe.get(&format!("src{i}"))))
            .collect();
        let sender = socket();
        for round in 0..20 {
            let before = stat(&src0, "packets-received");
            for address in &quiet {
                sender.send_to(&packet(round), address).unwrap();
            }
            for (seen, address) in seen.iter().zip(&quiet) {
                // During a flood, the kernel may drop packets before they reach any socket. Then the test sends again.
                eventually("a quiet one receives", || {
                    let next = seen.recv_timeout(Duration::from_millis(500));
                    if next.is_err() {
                        sender.send_to(&packet(round), address).unwrap();
                    }
                    matches!(next, Ok(Seen::Buffer(buffer)) if number(&buffer) == round)
                });
            }
            eventually("the flood goes on", || {
                stat(&src0, "packets-received") > before
            });
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        flood.join().unwrap();
    }
}

#[test]
fn the_source_continues_if_the_clock_changes_or_is_missing() {
    let (pipe, seen, target) = playing("");
    let sender = socket();
    let src = pipe.get("src");
    sender.send_to(&packet(0), target).unwrap();
    assert!(next_buffer(&seen).pts().is_some());
    let test_clock = gst_check::TestClock::with_start_time(gst::ClockTime::from_seconds(5_000_000));
    src.set_base_time(gst::ClockTime::from_seconds(4_999_990));
    src.set_clock(Some(&test_clock)).unwrap();
    // A packet that arrives just now may still have the time of the old clock.
    eventually("the new clock's time", || {
        sender.send_to(&packet(1), target).unwrap();
        // The time is that of the arrival, just before the time at which this clock is stopped.
        let pts = next_buffer(&seen).pts().expect("a time");
        pts.seconds() == 9 || pts == gst::ClockTime::from_seconds(10)
    });
    src.set_clock(None::<&gst::Clock>).unwrap();
    eventually("no time", || {
        sender.send_to(&packet(2), target).unwrap();
        next_buffer(&seen).pts().is_none()
    });
    pipe.assert_no_error();
}

#[test]
fn a_user_of_a_context_with_other_settings_still_runs_on_it() {
    let name = context();
    let first = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} context-wait=20 ! fakesink async=false"
    ));
    first.to(gst::State::Paused);
    let second = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} context-wait=50 context-threads=2 ! fakesink async=false"
    ));
    second.to(gst::State::Paused);
    let mut query = gst::query::Latency::new();
    assert!(second.pad("src", "src").query(&mut query));
    assert_eq!(query.result().1, gst::ClockTime::from_mseconds(20));
    let warning = second.expect(gst::MessageType::Warning);
    let warning = text(&warning);
    for part in ["20 ms", "50 ms", "1 thread", "2 thread"] {
        assert!(warning.contains(part), "{warning}");
    }
}

#[test]
fn buffers_outlive_their_source() {
    let (pipe, seen, target) = playing("");
    let sender = socket();
    for i in 0..50 {
        sender.send_to(&packet(i), target).unwrap();
    }
    let held: Vec<gst::Buffer> = (0..50).map(|_| next_buffer(&seen)).collect();
    drop(pipe);
    for (i, buffer) in held.iter().enumerate() {
        assert_eq!(number(buffer), i as u32);
    }
}

#[test]
fn a_throttled_source_starts_and_stops_without_waiting_for_its_slice() {
    // The context has the longest wait. If each change waited for it, a hundred changes would take minutes.
    let begin = std::time::Instant::now();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} context-wait=1000 ! fakesink async=false",
        context()
    ));
    for _ in 0..50 {
        pipe.play();
        pipe.to(gst::State::Null);
    }
    assert!(begin.elapsed() < Duration::from_secs(25));
}

/// Two sources use one socket, and each of them closes it when it stops. The kernel gives the number of the closed descriptor to
/// the process's next socket, which the other source must not touch.
#[test]
fn a_socket_closed_by_one_of_two_users_still_serves_the_other() {
    let shared = gio_socket("127.0.0.1");
    let pipes: Vec<Pipe> = (0..2)
        .map(|_| {
            let line = format!(
                "ts-udpsrc name=src context={} ! fakesink name=sink async=false",
                context()
            );
            let pipe = Pipe::parse(&line);
            pipe.get("src").set_property("socket", &shared);
            pipe
        })
        .collect();
    let [ends, stays] = &pipes[..] else {
        unreachable!()
    };
    let seen = watch(&stays.pad("sink", "sink"));
    ends.play();
    let there = target(&ends.get("src"));
    stays.play();
    ends.to(gst::State::Null);
    assert!(shared.is_closed());
    // One of these has the number of the closed descriptor.
    let strangers: Vec<UdpSocket> = (0..10).map(|_| crate::common::socket()).collect();
    for (number, stranger) in (100..).zip(&strangers) {
        let to = stranger.local_addr().unwrap();
        crate::common::socket()
            .send_to(&packet(number), to)
            .unwrap();
    }
    crate::common::socket().send_to(&packet(1), there).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 1);
    for (number, stranger) in (100..).zip(&strangers) {
        assert_eq!(received(stranger), packet(number));
    }
    stays.to(gst::State::Null);
    // The address is free again.
    UdpSocket::bind(there).unwrap();
}

/// In one slice, the source pushes several packets that arrived one after another. Their times are those of the kernel. If they
/// had the slice's time, they would have equal times, and a jitter buffer downstream would measure a slice of jitter.
#[test]
fn timestamps_are_arrival_times_and_not_times_of_slices() {
    let name = context();
    // The slice is longer than sending takes in this test, so all packets arrive in one slice, or two.
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 socket-timestamp=realtime context={name} context-wait=500 \
         ! fakesink name=sink async=false"
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let to = target(&pipe.get("src"));
    let sender = socket();
    const PACKETS: u32 = 5;
    for number in 0..PACKETS {
        sender.send_to(&packet(number), to).unwrap();
        // The kernel measures the length of this sleep.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let buffers: Vec<gst::Buffer> = (0..PACKETS).map(|_| next_buffer(&seen)).collect();
    let kernel_ns = |buffer: &gst::Buffer| {
        let meta = buffer.meta::<gst::ReferenceTimestampMeta>().unwrap();
        meta.timestamp().nseconds()
    };
    for pair in buffers.windows(2) {
        // The kernel's own times are the reference; the wall clock may be slewed by some parts in a thousand (adjtimex).
        let by_kernel = kernel_ns(&pair[1]).abs_diff(kernel_ns(&pair[0]));
        let by_pts = (pair[1].pts().unwrap() - pair[0].pts().unwrap()).nseconds();
        assert!(
            by_pts.abs_diff(by_kernel) < 1_000_000,
            "{by_pts} {by_kernel}"
        );
        assert!(by_kernel >= 5_000_000);
    }
    pipe.assert_no_error();
}

/// More than the kernel's buffer holds, without a reader: some packets are dropped and counted. The reference is the difference
/// of sent and received packets.
#[test]
fn packets_that_the_kernel_drops_are_counted() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 buffer-size=4096 context={name} ! fakesink name=sink async=false"
    ));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.to(gst::State::Paused);
    let src = pipe.get("src");
    assert_eq!(stat(&src, "kernel-drops"), 0);
    const PACKETS: u64 = 500;
    let (sender, to) = (socket(), target(&src));
    for number in 0..PACKETS {
        sender.send_to(&[number as u8; 1000], to).unwrap();
    }
    pipe.play();
    sender.send_to(&packet(7), to).unwrap();
    while bytes(&next_buffer(&seen)) != packet(7) {
        // The buffer may still be full when the last packet arrives.
        sender.send_to(&packet(7), to).unwrap();
    }
    let dropped = stat(&src, "kernel-drops");
    assert!(dropped > 0);
    // No more packets are in flight, so the numbers add up: each of the last packets has either arrived or been dropped.
    let received = || stat(&src, "packets-received");
    assert!(received() + dropped >= PACKETS);
    // The count stays when the socket is closed.
    pipe.to(gst::State::Null);
    assert!(stat(&src, "kernel-drops") >= dropped);
}

#[test]
fn port_and_address_change_while_it_plays() {
    let (pipe, seen, first) = playing("caps=application/x-test");
    let src = pipe.get("src");
    let sender = socket();
    sender.send_to(&packet(1), first).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 1);
    // A free port, because it was in use until now.
    let free = socket().local_addr().unwrap().port();
    src.set_property("port", i32::from(free));
    let second = target(&src);
    assert_eq!(second.port(), free);
    sender.send_to(&packet(2), second).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 2);
    // The old port is free again as soon as the context has switched to the new socket.
    eventually("the old socket is closed", || {
        UdpSocket::bind(first).is_ok()
    });
    // A name is looked up on another thread.
    src.set_property("address", "localhost");
    src.set_property("address", "127.0.0.2");
    eventually("it moves", || {
        target(&src).ip() == "127.0.0.2".parse::<IpAddr>().unwrap()
    });
    sender.send_to(&packet(3), target(&src)).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 3);
    pipe.assert_no_error();
    // An impossible address is reported, and the old one stays.
    let here = target(&src);
    // TEST-NET-1 (RFC 5737): no interface has it.
    src.set_property("address", "192.0.2.1");
    let told = pipe.expect(gst::MessageType::Warning);
    assert!(text(&told).contains("192.0.2.1"), "{told:?}");
    sender.send_to(&packet(4), here).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 4);
    src.set_property("address", "127.0.0.1");
    // The same is possible in PAUSED. The new address is used after the next start.
    pipe.to(gst::State::Paused);
    src.set_property("port", 0);
    pipe.play();
    sender.send_to(&packet(5), target(&src)).unwrap();
    assert_eq!(number(&next_buffer(&seen)), 5);
}

/// The kernel's value of the option (ip(7)).
#[test]
fn loop_changes_while_it_plays() {
    for element in [
        "ts-udpsrc name=it address=127.0.0.1 port=0 ! fakesink async=false",
        "fakesrc num-buffers=0 ! ts-udpsink name=it async=false",
    ] {
        init();
        let pipe = Pipe::parse(element);
        pipe.to(gst::State::Ready);
        let it = pipe.get("it");
        let shown = it.property::<Option<gio::Socket>>("used-socket").unwrap();
        assert!(shown.is_multicast_loopback(), "{element}");
        it.set_property("loop", false);
        assert!(!shown.is_multicast_loopback(), "{element}");
        it.set_property("loop", true);
        assert!(shown.is_multicast_loopback(), "{element}");
    }
}

/// Whether an epoll instance of this process watches the socket bound to this address, by the kernel's tables (proc(5): net/udp,
/// fdinfo).
fn is_watched(bound: SocketAddr) -> bool {
    let port = format!(":{:04X}", bound.port());
    // The kernel reads its table in parts, so the reading may miss an entry while its neighbours change.
    let inode = (0..1000).find_map(|_| {
        let sockets = std::fs::read_to_string("/proc/self/net/udp").unwrap();
        sockets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[1].ends_with(&port).then(|| fields[9].to_owned())
        })
    });
    let inode: u64 = inode.expect("it is bound").parse().unwrap();
    let watched = format!("ino:{inode:x} ");
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    files.flatten().any(|file| {
        let info = std::fs::read_to_string(file.path()).unwrap_or_default();
        (info.lines()).any(|line| line.starts_with("tfd:") && line.contains(&watched))
    })
}

/// A socket with a packet in each slice is not watched any more. Such a source must nevertheless handle changes of its stream,
/// its state and its address.
#[test]
fn a_regular_stream_may_end_burst_pause_and_move() {
    let (pipe, seen, first) = playing("context-wait=20");
    let (src, sender) = (pipe.get("src"), socket());
    let sent = std::cell::Cell::new(0);
    let send = |to: SocketAddr| {
        sender.send_to(&packet(sent.get()), to).unwrap();
        sent.set(sent.get() + 1);
    };
    // Each packet is sent when the previous one was seen: one per slice.
    let until_regular = |to: SocketAddr| {
        eventually("it is regular", || {
            send(to);
            assert_eq!(number(&next_buffer(&seen)) + 1, sent.get());
            !is_watched(to)
        });
    };
    let burst = |to: SocketAddr| {
        let begin = sent.get();
        (0..100).for_each(|_| send(to));
        for due in begin..sent.get() {
            assert_eq!(number(&next_buffer(&seen)), due);
        }
    };
    // The context watches the socket in its first slice.
    eventually("it is watched", || is_watched(first));
    until_regular(first);
    // The stream ends, and later begins again.
    eventually("it is watched", || is_watched(first));
    until_regular(first);
    burst(first);
    until_regular(first);
    pipe.to(gst::State::Paused);
    pipe.play();
    burst(first);
    until_regular(first);
    let free = socket().local_addr().unwrap().port();
    src.set_property("port", i32::from(free));
    let second = target(&src);
    assert_eq!(second.port(), free);
    burst(second);
    until_regular(second);
    pipe.to(gst::State::Null);
    pipe.assert_no_error();
    pipe.play();
    burst(target(&src));
}
