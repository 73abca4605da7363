//! Agents and their descriptors: removal in every situation, and fairness between neighbours.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{FnAgent, add, ask, next, receive, settle, shard, udp, until};
use threadbare_runtime::{Agent, AgentHandle, Cx, Interest, Ready, Shard};

/// Owns a socket, and reports each datagram and its own drop.
struct Reader {
    name: usize,
    socket: Option<UdpSocket>,
    said: Sender<(usize, &'static str)>,
    /// An additional action in each run.
    then: Box<dyn FnMut(&mut Cx<'_>) + Send>,
}

impl Reader {
    fn start(
        shard: &Shard,
        name: usize,
        socket: UdpSocket,
        said: &Sender<(usize, &'static str)>,
    ) -> AgentHandle<Reader> {
        let reader = Reader {
            name,
            socket: Some(socket),
            said: said.clone(),
            then: Box::new(|_| ()),
        };
        let agent = shard.call(|local| local.add_agent(reader)).unwrap();
        ask(&agent, |reader, cx| {
            let socket = reader.socket.as_ref().unwrap();
            cx.register(socket.as_fd(), 3, Interest::Read).unwrap();
        });
        agent
    }
}

impl Agent for Reader {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        if ready == Ready::Io(3) {
            let received = receive(self.socket.as_ref().unwrap(), &mut [0; 16]);
            let what = received.map_or("nothing", |_| "packet");
            self.said.send((self.name, what)).unwrap();
        }
        (self.then)(cx);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.said.send((self.name, "dropped"));
    }
}

fn port(socket: &UdpSocket) -> std::net::SocketAddr {
    socket.local_addr().unwrap()
}

#[test]
fn a_socket_is_read_when_it_is_ready_and_not_otherwise() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let (socket, sender) = (udp(), udp());
        let to = port(&socket);
        let agent = Reader::start(&shard, 1, socket, &tx);
        for _ in 0..10 {
            sender.send_to(b"x", to).unwrap();
            assert_eq!(next(&rx), (1, "packet"));
        }
        // Several datagrams at once: the socket is level-triggered, so one per run receives them all.
        for _ in 0..10 {
            sender.send_to(b"x", to).unwrap();
        }
        for _ in 0..10 {
            assert_eq!(next(&rx), (1, "packet"));
        }
        ask(&agent, |reader, cx| {
            cx.deregister(reader.socket.as_ref().unwrap().as_fd());
        });
        sender.send_to(b"x", to).unwrap();
        settle(&shard);
        settle(&shard);
        agent.remove();
        assert_eq!(next(&rx), (1, "dropped"));
    }
}

#[test]
fn an_agent_may_remove_itself_while_it_runs() {
    for wait_ms in [0, 5] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let (socket, sender) = (udp(), udp());
        let to = port(&socket);
        let agent = Reader::start(&shard, 1, socket, &tx);
        let itself = agent.clone();
        ask(&agent, move |reader, _| {
            let said = reader.said.clone();
            reader.then = Box::new(move |cx| {
                itself.remove();
                said.send((1, "removed")).unwrap();
                // These requests have no effect.
                cx.wake_self();
                cx.set_timer(cx.now_ns(), threadbare_runtime::Precision::NotBefore);
                cx.waker().wake();
            });
        });
        sender.send_to(b"x", to).unwrap();
        assert_eq!(next(&rx), (1, "packet"));
        assert_eq!(next(&rx), (1, "removed"));
        assert_eq!(next(&rx), (1, "dropped"));
        agent.wake();
        agent.command(|_, _| panic!("it is gone"));
        agent.remove();
        assert_eq!(shard.counters_snapshot().agents, 0);
    }
}

/// Two agents are ready in the same pass, and the first to run removes the other one. The already fetched event must not reach
/// any agent, not even a new one with the same descriptor number.
#[test]
fn an_agent_removed_by_its_neighbour_is_not_run() {
    for wait_ms in [0, 5] {
        for _ in 0..50 {
            let (_context, shard) = shard(wait_ms);
            let (tx, rx) = channel();
            let (a, b, sender) = (udp(), udp(), udp());
            let to = [port(&a), port(&b)];
            let agents = [
                Reader::start(&shard, 0, a, &tx),
                Reader::start(&shard, 1, b, &tx),
            ];
            let successor = Arc::new(Mutex::new(None));
            for (me, agent) in agents.iter().enumerate() {
                let other = agents[1 - me].clone();
                let (tx, successor) = (tx.clone(), successor.clone());
                ask(agent, move |reader, _| {
                    reader.then = Box::new(move |cx| {
                        if successor.lock().unwrap().is_some() {
                            return;
                        }
                        other.remove();
                        // The new socket gets the lowest free number, which is that of the descriptor just closed.
                        let heir = Reader {
                            name: 2,
                            socket: Some(udp()),
                            said: tx.clone(),
                            then: Box::new(|_| ()),
                        };
                        let heir = cx.local().add_agent(heir);
                        heir.command(|reader, cx| {
                            let socket = reader.socket.as_ref().unwrap();
                            cx.register(socket.as_fd(), 3, Interest::Read).unwrap();
                        });
                        *successor.lock().unwrap() = Some(heir);
                    });
                });
            }
            // Send both on the shard's own thread, so that they are handled in one pass.
            shard
                .call(move |_| to.map(|to| sender.send_to(b"x", to).unwrap()))
                .unwrap();
            let (first, what) = next(&rx);
            assert_eq!(what, "packet");
            assert_eq!(next(&rx), (1 - first, "dropped"));
            settle(&shard);
            let heir = successor.lock().unwrap().take().expect("it was added");
            settle(&shard);
            assert!(rx.try_recv().is_err(), "an event for the wrong agent");
            let heir_port = ask(&heir, |reader, _| port(reader.socket.as_ref().unwrap()));
            udp().send_to(b"x", heir_port).unwrap();
            assert_eq!(next(&rx), (2, "packet"));
        }
    }
}

#[test]
fn agents_are_removed_while_their_sockets_are_flooded() {
    for wait_ms in [0, 2] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let done = Arc::new(AtomicUsize::new(0));
        let to = Arc::new(Mutex::new(None));
        let flooder = {
            let (done, to) = (done.clone(), to.clone());
            thread::spawn(move || {
                let sender = udp();
                while done.load(Ordering::Relaxed) == 0 {
                    let to = *to.lock().unwrap();
                    if let Some(to) = to {
                        // The socket may already be closed.
                        let _ = sender.send_to(b"x", to);
                    }
                    thread::yield_now();
                }
            })
        };
        for round in 0..300 {
            let socket = udp();
            *to.lock().unwrap() = Some(port(&socket));
            let agent = Reader::start(&shard, round, socket, &tx);
            if round % 3 == 0 {
                assert_eq!(next(&rx).0, round);
            }
            agent.remove();
            // After `remove` has returned, the agent is gone.
            let said: Vec<_> = rx.try_iter().collect();
            assert_eq!(said.last(), Some(&(round, "dropped")));
            assert!(said.iter().all(|(name, _)| *name == round));
        }
        done.store(1, Ordering::Relaxed);
        flooder.join().unwrap();
    }
}

/// Action of greedy neighbours in their runs, until they are stopped.
type Greedy = Box<dyn FnMut(&mut Cx<'_>) + Send>;

/// `greedy` is always ready, and 500 sockets get a packet each at the same moment. All of these packets must be handled before
/// `greedy` has run three more times.
fn assert_neighbours_are_served(shard: &Shard, fd: OwnedFd, mut greedy: Greedy) {
    const QUIET: usize = 500;
    let runs = Arc::new(AtomicUsize::new(0));
    let (tx, rx): (_, Receiver<(usize, usize)>) = channel();
    let mut quiet = Vec::new();
    let mut addresses = Vec::new();
    for i in 0..QUIET {
        let (socket, tx, runs) = (Arc::new(udp()), tx.clone(), runs.clone());
        addresses.push(port(&socket));
        let registered = socket.clone();
        let agent = add(shard, move |_cx, _ready| {
            if receive(&socket, &mut [0; 16]).is_some() {
                tx.send((i, runs.load(Ordering::Relaxed))).unwrap();
            }
        });
        ask(&agent, move |_, cx| {
            cx.register(registered.as_fd(), 0, Interest::Read).unwrap();
        });
        quiet.push(agent);
    }
    let count = runs.clone();
    let agent = add(shard, move |cx, _ready| {
        count.fetch_add(1, Ordering::Relaxed);
        greedy(cx);
    });
    let fd = Arc::new(fd);
    let registered = fd.clone();
    ask(&agent, move |_, cx| {
        cx.register(registered.as_fd(), 0, Interest::Read).unwrap();
    });
    until("it is always ready", || runs.load(Ordering::Relaxed) > 10);
    for _ in 0..5 {
        let (addresses, runs) = (addresses.clone(), runs.clone());
        let before = shard.call(move |_| {
            let sender = udp();
            for to in addresses {
                sender.send_to(b"x", to).unwrap();
            }
            runs.load(Ordering::Relaxed)
        });
        let before = before.unwrap();
        let mut served = vec![0; QUIET];
        for _ in 0..QUIET {
            let (i, runs) = next(&rx);
            served[i] += 1;
            assert!(runs <= before + 3, "after {} runs", runs - before);
        }
        assert!(served.iter().all(|count| *count == 1));
    }
    agent.remove();
    quiet.iter().for_each(AgentHandle::remove);
}

#[test]
fn a_flooded_socket_does_not_starve_quiet_ones() {
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        let (socket, sender) = (udp(), udp());
        let to = port(&socket);
        let mine = socket.try_clone().unwrap();
        sender.send_to(b"x", to).unwrap();
        let flood = Box::new(move |_: &mut Cx<'_>| {
            receive(&mine, &mut [0; 16]);
            // More than can be received; the kernel drops the rest.
            let _ = sender.send_to(b"x", to);
            let _ = sender.send_to(b"x", to);
        });
        assert_neighbours_are_served(&shard, socket.into(), flood);
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn a_closed_peer_does_not_starve_its_neighbours() {
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        // Half closed (readable for ever), and reset (EPOLLHUP and EPOLLERR, which cannot be masked).
        let (client, peer) = tcp_pair();
        drop(peer);
        assert_neighbours_are_served(&shard, client.into(), Box::new(|_| ()));

        let (client, mut peer) = tcp_pair();
        (&client).write_all(b"unread").unwrap();
        peer.set_read_timeout(Some(crate::common::DEADLINE))
            .unwrap();
        peer.read_exact(&mut [0]).unwrap();
        drop(peer);
        assert_neighbours_are_served(&shard, client.into(), Box::new(|_| ()));
    }
}

#[test]
fn an_agent_that_wakes_itself_does_not_starve_its_neighbours() {
    for wait_ms in [0, 20] {
        let (_context, shard) = shard(wait_ms);
        let (client, peer) = tcp_pair();
        drop(peer);
        assert_neighbours_are_served(&shard, client.into(), Box::new(|cx| cx.wake_self()));
    }
}

#[test]
fn descriptors_of_an_agent_are_distinguished() {
    let (_context, shard) = shard(0);
    let sockets: Vec<_> = (0..3).map(|_| Arc::new(udp())).collect();
    let (tx, rx) = channel();
    let of_agent = sockets.clone();
    let agent = add(&shard, move |cx, ready| {
        let Ready::Io(key) = ready else {
            return;
        };
        if key == 9 {
            // Writable at once.
            cx.deregister(of_agent[2].as_fd());
            tx.send(9).unwrap();
        } else if receive(&of_agent[usize::from(key)], &mut [0; 16]).is_some() {
            tx.send(key).unwrap();
        }
    });
    let registered = sockets.clone();
    ask(&agent, move |_, cx| {
        cx.register(registered[0].as_fd(), 0, Interest::Read)
            .unwrap();
        cx.register(registered[1].as_fd(), 1, Interest::Read)
            .unwrap();
        let twice = cx.register(registered[1].as_fd(), 2, Interest::Read);
        assert!(twice.is_err(), "one registration each");
        cx.register(registered[2].as_fd(), 9, Interest::Write)
            .unwrap();
        cx.deregister(udp().as_fd());
    });
    assert_eq!(next(&rx), 9);
    for key in [1, 0, 1] {
        udp()
            .send_to(b"x", port(&sockets[usize::from(key)]))
            .unwrap();
        assert_eq!(next(&rx), key);
    }
    assert!(rx.try_recv().is_err());
}

#[test]
fn a_descriptor_number_that_is_used_again_belongs_to_its_new_agent() {
    for wait_ms in [0, 2] {
        let (_context, shard) = shard(wait_ms);
        let (tx, rx) = channel();
        let mut numbers = std::collections::HashSet::new();
        for round in 0..200 {
            let socket = udp();
            let to = port(&socket);
            numbers.insert(socket.as_raw_fd());
            let agent = Reader::start(&shard, round, socket, &tx);
            udp().send_to(b"x", to).unwrap();
            assert_eq!(next(&rx), (round, "packet"));
            agent.remove();
            assert_eq!(next(&rx), (round, "dropped"));
        }
        assert!(numbers.len() < 200, "no number came again");
    }
}

#[test]
fn an_agent_may_add_and_remove_other_agents_while_it_runs() {
    let (_context, shard) = shard(0);
    let (tx, rx) = channel();
    let mut children = Vec::new();
    let agent = add(&shard, move |cx, _ready| {
        for _ in 0..100 {
            let tx = tx.clone();
            let child = FnAgent(move |_: &mut Cx<'_>, ready| tx.send(ready).unwrap());
            children.push(cx.local().add_agent(child));
        }
        children.iter().for_each(AgentHandle::wake);
        // Every other child is removed before its wake-up is handled.
        let gone = children.iter().step_by(2);
        gone.for_each(AgentHandle::remove);
    });
    agent.wake();
    for _ in 0..50 {
        assert_eq!(next(&rx), Ready::Woken);
    }
    settle(&shard);
    assert!(rx.try_recv().is_err());
    assert_eq!(shard.counters_snapshot().agents, 51);
}

/// A socket holds three datagrams, and the agent reads one per run. Returns the slices of the reads.
fn slices_of_three(wait_ms: u64, expects_more: bool) -> Vec<u64> {
    let (_context, shard) = shard(wait_ms);
    let (socket, sender) = (Arc::new(udp()), udp());
    for _ in 0..3 {
        sender.send_to(b"x", port(&socket)).unwrap();
    }
    let (tx, rx) = channel();
    let of_agent = socket.clone();
    let agent = add(&shard, move |cx, _| {
        if receive(&of_agent, &mut [0; 16]).is_some() {
            tx.send(cx.local().slice()).unwrap();
        }
        if !expects_more {
            cx.expect_no_more();
        }
    });
    ask(&agent, move |_, cx| {
        cx.register(socket.as_fd(), 0, Interest::Read).unwrap();
    });
    (0..3).map(|_| next(&rx)).collect()
}

#[test]
fn unexpected_readiness_is_handled_in_the_next_slice() {
    let slices = slices_of_three(1, false);
    assert!(slices[0] < slices[1] && slices[1] < slices[2], "{slices:?}");
    // A slice of a second: even a busy machine handles all three datagrams before it ends.
    let slices = slices_of_three(1000, true);
    assert_eq!(slices, [slices[0]; 3]);
}

/// Action of an agent that assumes its socket ready.
enum Assumes {
    Ready,
    Watched,
}

/// Starts an agent that reads its socket once per run, and reports the slice and whether it got a packet.
fn assuming(
    shard: &Shard,
    socket: &Arc<UdpSocket>,
) -> (AgentHandle<impl Agent>, Receiver<(u64, bool)>) {
    let (tx, rx) = channel();
    let of_agent = socket.clone();
    let agent = add(shard, move |cx, ready| {
        if ready == Ready::Io(7) {
            let has_packet = receive(&of_agent, &mut [0; 16]).is_some();
            let _ = tx.send((cx.local().slice(), has_packet));
        }
    });
    let of_agent = socket.clone();
    ask(&agent, move |_, cx| {
        cx.register(of_agent.as_fd(), 7, Interest::Read).unwrap();
        assert!(cx.assume_ready(of_agent.as_fd()));
    });
    (agent, rx)
}

fn set<A: Agent>(agent: &AgentHandle<A>, socket: &Arc<UdpSocket>, to: Assumes) {
    let socket = socket.clone();
    ask(agent, move |_, cx| match to {
        Assumes::Ready => assert!(cx.assume_ready(socket.as_fd())),
        Assumes::Watched => cx.await_ready(socket.as_fd()).unwrap(),
    });
}

#[test]
fn assumed_readiness_is_tried_once_per_slice() {
    let (_context, shard) = shard(2);
    let (socket, sender) = (Arc::new(udp()), udp());
    let (agent, rx) = assuming(&shard, &socket);
    // It also runs without packets, and slices continue without any event.
    let (first, has_packet) = next(&rx);
    assert!(!has_packet);
    assert_eq!(next(&rx), (first + 1, false));
    // Two packets: one per slice, although the kernel would report the second one at once.
    for _ in 0..2 {
        sender.send_to(b"x", port(&socket)).unwrap();
    }
    let mut slices = std::iter::from_fn(|| Some(next(&rx))).filter(|(_, has_packet)| *has_packet);
    let (a, b) = (slices.next().unwrap().0, slices.next().unwrap().0);
    assert_eq!(b, a + 1);
    // When watched again, it runs only for packets, including those that came before.
    sender.send_to(b"x", port(&socket)).unwrap();
    set(&agent, &socket, Assumes::Watched);
    while !next(&rx).1 {}
    settle(&shard);
    assert!(rx.try_recv().is_err());
    // After deregistering, it does not run.
    set(&agent, &socket, Assumes::Ready);
    next(&rx);
    let of_agent = socket.clone();
    ask(&agent, move |_, cx| cx.deregister(of_agent.as_fd()));
    while rx.try_recv().is_ok() {}
    sender.send_to(b"x", port(&socket)).unwrap();
    settle(&shard);
    assert!(rx.try_recv().is_err());
}

#[test]
fn removing_an_agent_does_not_skip_the_next_one() {
    let (_context, shard) = shard(2);
    let sockets: Vec<_> = (0..5).map(|_| Arc::new(udp())).collect();
    let mut agents: Vec<_> = sockets
        .iter()
        .map(|socket| Some(assuming(&shard, socket)))
        .collect();
    for leaves in [0, 3] {
        let (agent, rx) = agents[leaves].take().unwrap();
        agent.remove();
        // The sender is dropped with the agent.
        while rx.recv_timeout(crate::common::DEADLINE).is_ok() {}
        for (_, rx) in agents.iter().flatten() {
            while rx.try_recv().is_ok() {}
            let first = next(rx).0;
            assert_eq!(next(rx).0, first + 1);
        }
    }
    let (agent, rx) = assuming(&shard, &sockets[0]);
    next(&rx);
    agent.remove();
    drop(agents);
    settle(&shard);
}

/// Without a wait, a slice is one pass, so trying a socket in each pass would be a busy loop.
#[test]
fn with_a_wait_of_zero_a_socket_is_never_assumed_ready() {
    let (_context, shard) = shard(0);
    let socket = udp();
    let agent = add(&shard, |_, _| ());
    ask(&agent, move |_, cx| {
        cx.register(socket.as_fd(), 0, Interest::Read).unwrap();
        assert!(!cx.assume_ready(socket.as_fd()));
        cx.deregister(socket.as_fd());
    });
}
