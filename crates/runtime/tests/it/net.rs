//! System calls: datagrams, their addresses, truncation, and batches from one socket.

use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::SystemTime;

use nix::sys::socket::sockopt::ReceiveTimestampns;

use crate::common::{add, ask, next, receive, shard, udp, until};
use threadbare_runtime::{
    Interest, RawAddr, Ready, RecvBatch, SEND_BATCH_MAX, SendBatch, clock_now_ns, kernel_drops,
    recv_from, recv_timestamped, send_to, send_vectored_to, wall_clock_ahead_ns,
};

/// Returns two sockets of each family that this machine has.
fn pairs() -> Vec<(UdpSocket, UdpSocket)> {
    let pair = |address: &str| {
        let sockets = (UdpSocket::bind(address), UdpSocket::bind(address));
        let (Ok(a), Ok(b)) = sockets else {
            return None;
        };
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        Some((a, b))
    };
    let pairs: Vec<_> = ["127.0.0.1:0", "[::1]:0"]
        .into_iter()
        .filter_map(pair)
        .collect();
    assert!(!pairs.is_empty());
    pairs
}

#[test]
fn datagram_has_its_senders_address() {
    for (a, b) in pairs() {
        let (mut buf, mut from) = ([0; 64], RawAddr::empty());
        let empty = recv_from(a.as_fd(), &mut buf, &mut from).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        assert_eq!(from.to_socket_addr(), None);

        let to = RawAddr::from(a.local_addr().unwrap());
        assert_eq!(send_to(b.as_fd(), b"hello", &to).unwrap(), 5);
        let received = recv_from(a.as_fd(), &mut buf, &mut from).unwrap();
        assert_eq!((received.len, received.datagram_len), (5, 5));
        assert_eq!(&buf[..5], b"hello");
        let sender = b.local_addr().unwrap();
        assert_eq!(from.to_socket_addr(), Some(sender));
        assert_eq!(from, RawAddr::from(sender));
        assert_ne!(from, to);
        assert_eq!(format!("{from:?}"), format!("{:?}", Some(sender)));

        let pieces = [
            IoSlice::new(b"in "),
            IoSlice::new(b""),
            IoSlice::new(b"pieces"),
        ];
        assert_eq!(send_vectored_to(b.as_fd(), &pieces, &to).unwrap(), 9);
        // Replies to the sender's address.
        let received = recv_from(a.as_fd(), &mut buf, &mut from).unwrap();
        assert_eq!(&buf[..received.len], b"in pieces");
        send_to(a.as_fd(), b"", &from).unwrap();
        let received = recv_from(b.as_fd(), &mut buf, &mut from).unwrap();
        assert_eq!((received.len, received.datagram_len), (0, 0));
    }
}

#[test]
fn addresses_survive_a_round_trip() {
    for text in [
        "1.2.3.4:5",
        "255.255.255.255:65535",
        "[fe80::1%7]:9",
        "[ff02::1:2]:1234",
    ] {
        let address: SocketAddr = text.parse().unwrap();
        let raw = RawAddr::from(address);
        assert_eq!(raw.to_socket_addr(), Some(address));
        assert_eq!(
            raw.as_bytes().len(),
            if address.is_ipv4() { 16 } else { 28 }
        );
    }
    assert!(RawAddr::empty().as_bytes().is_empty());
}

#[test]
fn truncated_datagram_is_reported() {
    for (a, b) in pairs() {
        let to = a.local_addr().unwrap();
        let (mut buf, mut from) = ([0; 8], RawAddr::empty());
        b.send_to(&[7; 100], to).unwrap();
        let received = recv_from(a.as_fd(), &mut buf, &mut from).unwrap();
        assert_eq!((received.len, received.datagram_len), (8, 100));
        b.send_to(&[7; 100], to).unwrap();
        let received = recv_timestamped(a.as_fd(), &mut buf, Some(&mut from)).unwrap();
        assert_eq!((received.len, received.datagram_len), (8, 100));
        assert_eq!(from.to_socket_addr(), Some(b.local_addr().unwrap()));

        for len in [8, 9, 0] {
            b.send_to(&vec![7; len], to).unwrap();
        }
        let mut batch = RecvBatch::new(4);
        let mut bufs = [[0; 8]; 4];
        let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        assert_eq!(batch.recv(a.as_fd(), &mut slices).unwrap(), 3);
        let lens = [0, 1, 2].map(|i| (batch.received(i).0.len, batch.received(i).0.datagram_len));
        assert_eq!(lens, [(8, 8), (8, 9), (0, 0)]);
    }
}

#[test]
fn kernel_timestamp_is_returned_if_requested() {
    for (a, b) in pairs() {
        let to = a.local_addr().unwrap();
        let (mut buf, mut from) = ([0; 8], RawAddr::empty());
        b.send_to(b"x", to).unwrap();
        let plain = recv_timestamped(a.as_fd(), &mut buf, Some(&mut from)).unwrap();
        assert_eq!(plain.timestamp_ns, None);

        nix::sys::socket::setsockopt(&a, ReceiveTimestampns, &true).unwrap();
        let since_epoch = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let before_ns = since_epoch();
        b.send_to(b"x", to).unwrap();
        let stamped = recv_timestamped(a.as_fd(), &mut buf, Some(&mut from)).unwrap();
        let range_ns = before_ns..=since_epoch();
        assert!(range_ns.contains(&stamped.timestamp_ns.unwrap()));
    }
}

#[test]
fn the_wall_clocks_lead_is_the_difference_of_the_clocks() {
    let wall_ns = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    // By definition, the lead is between the differences measured before and after the call.
    let low_ns = wall_ns() - clock_now_ns();
    let ahead_ns = wall_clock_ahead_ns();
    let high_ns = {
        let now_ns = clock_now_ns();
        wall_ns() - now_ns
    };
    // Time adjustment moves the wall clock by less than 0.1 %.
    let slack_ns = 1_000_000;
    assert!(
        (low_ns - slack_ns..=high_ns + slack_ns).contains(&ahead_ns),
        "{ahead_ns} is not between {low_ns} and {high_ns}"
    );
}

#[test]
fn kernel_drops_of_a_full_buffer_are_counted() {
    for (a, b) in pairs() {
        nix::sys::socket::setsockopt(&a, nix::sys::socket::sockopt::RcvBuf, &4096).unwrap();
        assert_eq!(kernel_drops(a.as_fd()), 0);
        let to = a.local_addr().unwrap();
        for _ in 0..100 {
            b.send_to(&[7; 1000], to).unwrap();
        }
        let mut received = 0;
        while a.recv(&mut [0; 1000]).is_ok() {
            received += 1;
        }
        assert_eq!(kernel_drops(a.as_fd()), 100 - received);
        assert!(received < 100);
    }
}

#[test]
fn batch_is_bounded_by_its_capacity_and_its_buffers() {
    for (a, b) in pairs() {
        let to = a.local_addr().unwrap();
        let mut batch = RecvBatch::new(4);
        assert_eq!(batch.capacity(), 4);
        let mut bufs = [[0; 16]; 6];
        let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let empty = batch.recv(a.as_fd(), &mut slices).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        for i in 0..9u8 {
            b.send_to(&[i], to).unwrap();
        }
        assert_eq!(batch.recv(a.as_fd(), &mut slices).unwrap(), 4);
        assert_eq!(batch.recv(a.as_fd(), &mut slices[..3]).unwrap(), 3);
        assert_eq!(batch.recv(a.as_fd(), &mut slices).unwrap(), 2);
        assert_eq!((slices[0][0], slices[1][0], slices[2][0]), (7, 8, 6));
        assert_eq!(batch.received(1).1.to_socket_addr(), b.local_addr().ok());
    }
}

/// The shared socket: one agent takes 64 datagrams per call and distinguishes the streams by their senders.
#[test]
fn one_socket_carries_many_streams() {
    const STREAMS: usize = 100;
    const PACKETS: usize = 20;
    const BATCH: usize = 64;
    for wait_ms in [0, 10] {
        let (_context, shard) = shard(wait_ms);
        let socket = Arc::new(udp());
        let to = socket.local_addr().unwrap();
        let (tx, rx) = channel();
        let registered = socket.clone();
        let mut batch = RecvBatch::new(BATCH);
        let mut bufs = vec![[0; 64]; BATCH];
        let agent = add(&shard, move |cx, ready| {
            assert_eq!(ready, Ready::Io(0));
            let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            let Ok(count) = batch.recv(socket.as_fd(), &mut slices) else {
                return;
            };
            cx.count_packets(count as u64);
            for (i, buf) in bufs.iter().enumerate().take(count) {
                let (received, from) = batch.received(i);
                let number = u32::from_le_bytes(buf[..received.len].try_into().unwrap());
                tx.send((from.to_socket_addr().unwrap(), number, count))
                    .unwrap();
            }
        });
        ask(&agent, move |_, cx| {
            cx.register(registered.as_fd(), 0, Interest::Read).unwrap();
        });
        let senders: Vec<UdpSocket> = (0..STREAMS).map(|_| udp()).collect();
        let mut next_number: HashMap<SocketAddr, u32> = HashMap::new();
        let mut largest = 0;
        for round in 0..PACKETS as u32 {
            for sender in &senders {
                sender.send_to(&round.to_le_bytes(), to).unwrap();
            }
            // No more datagrams are in flight than fit the socket's buffer.
            for _ in &senders {
                let (from, number, count) = next(&rx);
                let expected = next_number.entry(from).or_default();
                assert_eq!(number, *expected, "in order");
                *expected += 1;
                largest = largest.max(count);
            }
        }
        assert_eq!(next_number.len(), STREAMS);
        assert!(largest > 1 && largest <= BATCH, "{largest}");
        until("all are counted", || {
            shard.counters_snapshot().packets == (STREAMS * PACKETS) as u64
        });
        assert!(shard.counters_snapshot().busy_ns > 0);
    }
}

/// One call for several datagrams: each to its own destination, in order. A refused one stays first.
#[test]
fn a_send_batch_sends_in_order_and_stops_at_the_one_that_is_refused() {
    let sender = udp();
    let receivers: Vec<UdpSocket> = (0..3).map(|_| udp()).collect();
    let to: Vec<RawAddr> = receivers
        .iter()
        .map(|receiver| receiver.local_addr().unwrap().into())
        .collect();
    // send(2): a datagram that is too long for the protocol fails with EMSGSIZE.
    let (large, small) = (vec![0; 70_000], b"small");
    let large = [IoSlice::new(&large)];
    let pieces = [IoSlice::new(b"in "), IoSlice::new(b"two")];
    let small = [IoSlice::new(small)];
    let mut batch = SendBatch::default();
    assert!(batch.is_empty());
    assert!(batch.push(&pieces, &to[0]));
    assert!(batch.push(&large, &to[1]));
    assert!(batch.push(&small, &to[2]));
    assert_eq!(batch.send(sender.as_fd()).unwrap(), 1);
    for _ in 0..2 {
        let refused = batch.send(sender.as_fd()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    }
    batch.skip();
    assert_eq!(batch.send(sender.as_fd()).unwrap(), 1);
    assert!(batch.is_empty());
    batch.skip();
    assert!(batch.is_empty());
    let mut room = [0; 100];
    for (receiver, data) in [(0, &b"in two"[..]), (2, b"small")] {
        let got = receive(&receivers[receiver], &mut room).expect("it is there");
        assert_eq!(&room[..got.len], data);
    }
    assert!(receive(&receivers[1], &mut room).is_none());

    let mut full = SendBatch::default();
    let taken = (0..2 * SEND_BATCH_MAX).filter(|_| full.push(&small, &to[0]));
    assert_eq!(taken.count(), SEND_BATCH_MAX);
}

#[test]
fn the_clock_goes_forward() {
    let times: Vec<u64> = (0..1000).map(|_| clock_now_ns()).collect();
    assert!(times.is_sorted());
}
