//! Tests on a real link: datagrams of peers pass through rings or through sockets. Each test creates two separate networks
//! with a link between them, which needs root (`sudo -E cargo test -p threadbare-xdp`).
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::link::{DEADLINE, DEVICE, HERE, HERE_V6, Link, THERE, THERE_V6, ip};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use threadbare_runtime::clock_now_ns;
use threadbare_xdp::{Lane, Mode, OpenError, PAYLOAD_BYTES_MAX, Received, Settings, Xdp};

fn open(mode: Mode) -> Xdp {
    Xdp::open(&Settings {
        mode,
        frames: 512,
        ..Settings::new(vec![DEVICE.to_owned()])
    })
    .unwrap()
}

/// Opens a socket on a free port. The tests enroll the port for the rings.
fn port(ip: &str) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn next(lane: &mut Lane) -> (Received, Vec<u8>) {
    let (mut room, mut malformed) = ([0; 2048], 0);
    loop {
        if let Some(received) = lane.receive(&mut room, &mut malformed) {
            lane.release();
            return (received, room[..received.len].to_vec());
        }
        assert_eq!(malformed, 0);
        let mut ready: Vec<_> = lane
            .descriptors()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
            .collect();
        let limit = PollTimeout::try_from(DEADLINE).unwrap();
        assert!(poll(&mut ready, limit).unwrap() > 0, "no datagram arrives");
    }
}

fn modes() -> [Mode; 2] {
    [Mode::Generic, Mode::Native]
}

/// The peer's socket is an ordinary one, which verifies the checksums (RFC 768).
#[test]
fn rings_receive_datagrams_and_send_answers() {
    let Some(link) = Link::new() else { return };
    for mode in modes() {
        let xdp = open(mode);
        let mut lane = xdp.lane().unwrap();
        for (here, there) in [(HERE, THERE), (HERE_V6, THERE_V6)] {
            let (socket, peer) = (port(here), link.peer(there));
            let local = socket.local_addr().unwrap();
            assert!(lane.enroll(local, 77).unwrap());
            for len in [0, 1, 12, 172, 1400] {
                let sent: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let before_ns = clock_now_ns();
                peer.send_to(&sent, local).unwrap();
                let (received, bytes) = next(&mut lane);
                assert_eq!(bytes, sent, "{mode} {here}");
                assert_eq!((received.key, received.datagram_len), (77, len));
                assert_eq!(received.from, peer.local_addr().unwrap());
                assert!((before_ns..=clock_now_ns()).contains(&received.received_ns));
                let answer: Vec<u8> = sent.iter().rev().copied().collect();
                assert!(lane.send(&received.way, local, received.from, 0xb8, &answer));
                lane.flush();
                let mut room = [0; 2048];
                let (got, from) = peer.recv_from(&mut room).unwrap();
                assert_eq!((&room[..got], from), (&answer[..], local));
            }
            socket.set_nonblocking(true).unwrap();
            assert!(
                socket.recv(&mut [0; 16]).is_err(),
                "the socket received nothing"
            );
            lane.withdraw(local);
        }
    }
}

/// A device can receive frames for another machine: a switch sends a frame to all its ports if it does not know the right port,
/// and a host may have an outdated neighbour entry.
#[test]
fn frames_for_another_machine_go_to_the_kernel() {
    let Some(link) = Link::new() else { return };
    let (socket, peer) = (port(HERE), link.peer(THERE));
    let local = socket.local_addr().unwrap();
    let there = peer.local_addr().unwrap();
    let mut room = [0; 16];
    // The peer learns the device's first Ethernet address. Then the device gets another one.
    peer.send_to(b"first", local).unwrap();
    socket.recv(&mut room).unwrap();
    ip(&format!("link set {DEVICE} address 02:00:00:00:00:99"));
    let xdp = open(Mode::Generic);
    let mut lane = xdp.lane().unwrap();
    assert!(lane.enroll(local, 1).unwrap());
    peer.send_to(b"for another", local).unwrap();
    // To send this, the system looks up the peer, and thereby announces the device's new address.
    socket.send_to(b"ask", there).unwrap();
    peer.recv(&mut room).unwrap();
    peer.send_to(b"for this one", local).unwrap();
    assert_eq!(next(&mut lane).1, b"for this one");
}

#[test]
fn unmatched_frames_reach_the_sockets() {
    let Some(link) = Link::new() else { return };
    let xdp = open(Mode::Generic);
    let mut lane = xdp.lane().unwrap();
    let (socket, other, peer) = (port(HERE), port(HERE), link.peer(THERE));
    let local = socket.local_addr().unwrap();
    assert!(lane.enroll(local, 1).unwrap());
    let mut room = [0; 4096];
    // This datagram is for another port.
    peer.send_to(b"other", other.local_addr().unwrap()).unwrap();
    assert_eq!(other.recv(&mut room).unwrap(), 5);
    // This datagram is sent in fragments, because the link's packets have 1500 bytes.
    peer.send_to(&[7; 3000], local).unwrap();
    assert_eq!(socket.recv(&mut room).unwrap(), 3000);
    // This datagram comes from this machine itself, so it does not use the link.
    other.send_to(b"own", local).unwrap();
    assert_eq!(socket.recv(&mut room).unwrap(), 3);
    // This datagram is for a port that has been withdrawn.
    lane.withdraw(local);
    peer.send_to(b"late", local).unwrap();
    assert_eq!(socket.recv(&mut room).unwrap(), 4);
    assert_eq!(lane.receive(&mut room, &mut 0), None);
}

#[test]
fn datagram_that_a_ring_cannot_send_is_reported() {
    let Some(link) = Link::new() else { return };
    let xdp = open(Mode::Generic);
    let mut lane = xdp.lane().unwrap();
    let (socket, peer) = (port(HERE), link.peer(THERE));
    let local = socket.local_addr().unwrap();
    assert!(!lane.enroll("0.0.0.0:5004".parse().unwrap(), 1).unwrap());
    assert!(!lane.enroll("127.0.0.1:5004".parse().unwrap(), 1).unwrap());
    assert!(lane.enroll(local, 1).unwrap());
    peer.send_to(b"x", local).unwrap();
    let (received, _) = next(&mut lane);
    let mut send = |to: SocketAddr, bytes: &[u8]| lane.send(&received.way, local, to, 0, bytes);
    assert!(
        !send(received.from, &[0; 1500]),
        "longer than the link's MTU"
    );
    assert!(!send(received.from, &[0; PAYLOAD_BYTES_MAX + 1]));
    assert!(
        !send("[2001:db8::1]:9".parse().unwrap(), b"x"),
        "another address family"
    );
    assert!(send(received.from, &[0; 1400]));
}

/// A flood to one port uses only the port's share of the ring. The rest of the flood goes to the port's socket, and other ports
/// lose nothing.
#[test]
fn a_flood_to_one_port_leaves_room_in_the_ring_for_others() {
    let Some(link) = Link::new() else { return };
    let xdp = open(Mode::Generic);
    let mut lane = xdp.lane().unwrap();
    let (flooded, quiet) = (port(HERE), port(HERE));
    for (key, socket) in [(1, &flooded), (2, &quiet)] {
        assert!(lane.enroll(socket.local_addr().unwrap(), key).unwrap());
    }
    let (attacker, peer) = (link.peer(THERE), link.peer(THERE));
    // More datagrams than the ring has frames, in a short time and without any reads.
    let begin = Instant::now();
    for _ in 0..1000 {
        attacker
            .send_to(b"flood", flooded.local_addr().unwrap())
            .unwrap();
    }
    peer.send_to(b"speech", quiet.local_addr().unwrap())
        .unwrap();
    let took = begin.elapsed();
    let (mut room, mut of_flood, mut of_peer) = ([0; 64], 0, 0);
    while let Some(received) = lane.receive(&mut room, &mut 0) {
        match received.key {
            1 => of_flood += 1,
            _ => of_peer += 1,
        }
    }
    // A port's share is 128 datagrams per window of 16.8 ms.
    let windows = took.as_nanos() / (1 << 24) + 2;
    assert!(of_flood <= 128 * windows, "{of_flood} in {took:?}");
    if windows == 2 {
        assert_eq!(of_peer, 1, "the ring of 512 frames had room");
        assert_eq!(
            flooded.recv(&mut room).unwrap(),
            5,
            "the other datagrams wait in the socket"
        );
    }
}

#[test]
fn a_ring_works_again_after_it_was_full() {
    let Some(link) = Link::new() else { return };
    let xdp = open(Mode::Generic);
    let mut lane = xdp.lane().unwrap();
    // Each socket gets fewer datagrams in total than its share of one window allows.
    let sockets: Vec<_> = (0..160).map(|_| port(HERE)).collect();
    for socket in &sockets {
        assert!(lane.enroll(socket.local_addr().unwrap(), 1).unwrap());
    }
    let peer = link.peer(THERE);
    for round in 0..20 {
        // 1600 datagrams for the rings of two queues, with 512 frames each.
        for socket in sockets.iter().cycle().take(1600) {
            peer.send_to(b"much", socket.local_addr().unwrap()).unwrap();
        }
        let (mut room, mut came) = ([0; 64], 0);
        while let Some(received) = lane.receive(&mut room, &mut 0) {
            came += 1;
            assert!(lane.send(
                &received.way,
                sockets[0].local_addr().unwrap(),
                received.from,
                0,
                b"ack"
            ));
            lane.flush();
        }
        lane.release();
        assert!((512..=1600).contains(&came), "{came} in round {round}");
    }
    assert!(
        lane.drops() > 0,
        "datagrams that did not fit into the ring are counted"
    );
    let mut room = [0; 64];
    for _ in 0..20 * 1024 {
        assert_eq!(peer.recv(&mut room).unwrap(), 3);
        // The peer's receive buffer is too small for all answers.
        peer.set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        if peer.peek(&mut room).is_err() {
            break;
        }
    }
}

/// Each of the two lanes receives only for the ports that it enrolled. When a lane ends, another one can take its number.
#[test]
fn lanes_have_their_own_ports() {
    let Some(link) = Link::new() else { return };
    let xdp = open(Mode::Generic);
    let (peer, mut room) = (link.peer(THERE), [0; 64]);
    let mut first = xdp.lane().unwrap();
    for round in 0..100 {
        let mut second = xdp.lane().unwrap();
        let (one, two) = (port(HERE), port(HERE));
        assert!(first.enroll(one.local_addr().unwrap(), 10).unwrap());
        assert!(second.enroll(two.local_addr().unwrap(), 20).unwrap());
        peer.send_to(b"one", one.local_addr().unwrap()).unwrap();
        peer.send_to(b"two", two.local_addr().unwrap()).unwrap();
        assert_eq!(next(&mut first).0.key, 10, "round {round}");
        assert_eq!(next(&mut second).0.key, 20, "round {round}");
        // A dropped lane must return its unread frames, because otherwise the ring would run out of frames.
        for _ in 0..16 {
            peer.send_to(b"unread", two.local_addr().unwrap()).unwrap();
        }
        drop(second);
        // Without the lane, the socket receives the datagrams.
        peer.send_to(b"socket", two.local_addr().unwrap()).unwrap();
        assert_eq!(two.recv(&mut room).unwrap(), 6);
        first.withdraw(one.local_addr().unwrap());
        first.withdraw(two.local_addr().unwrap());
    }
    let lanes: Vec<_> = (0..31).map(|_| xdp.lane().unwrap()).collect();
    assert!(matches!(xdp.lane(), Err(OpenError::Lanes)));
    drop(lanes);
    assert!(xdp.lane().is_ok());
}

#[test]
fn an_unusable_device_is_refused_by_name() {
    let Some(_link) = Link::new() else { return };
    let refused = |name: &str, frames| {
        let devices = vec![name.to_owned()];
        let settings = Settings {
            frames,
            ..Settings::new(devices)
        };
        Xdp::open(&settings).unwrap_err().to_string()
    };
    assert!(refused("eth77", 256).contains("network device 'eth77' not found"));
    let mut others = vec!["lo"];
    if std::path::Path::new("/dev/net/tun").exists() {
        ip("tuntap add tb-tunnel mode tun");
        others.push("tb-tunnel");
    }
    for other in others {
        let said = refused(other, 256);
        assert!(
            said.contains(other) && said.contains("not an Ethernet device"),
            "{said}"
        );
    }
    assert!(refused(DEVICE, 100).contains("is 100, must be a power of two from 64"));
    let first = open(Mode::Generic);
    let busy = refused(DEVICE, 256);
    assert!(
        busy.contains(DEVICE) && busy.contains("another XDP program"),
        "{busy}"
    );
    drop(first);
    // No program remains on the device.
    let shown = Command::new("ip")
        .args(["link", "show", DEVICE])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("xdp"));
    drop(open(Mode::Generic));
}
