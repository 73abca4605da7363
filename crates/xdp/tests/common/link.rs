//! Two networks with a link between them, for one test. The test's thread is at one end. At the other end, a second thread
//! opens sockets.
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

/// Maximum wait for a datagram. Only a failing test waits this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const HERE: &str = "198.18.0.2";
pub(crate) const THERE: &str = "198.18.0.1";
pub(crate) const HERE_V6: &str = "2001:db8::2";
pub(crate) const THERE_V6: &str = "2001:db8::1";
/// Both ends have several queues, like network cards.
const QUEUES: &str = "numrxqueues 2 numtxqueues 2";
/// Network device of the test's end. Processes and threads that the test starts are in the same network.
pub(crate) const DEVICE: &str = "tb-here";

/// The other end of the link: a thread in a separate network, which opens sockets for the tests.
pub(crate) struct Link {
    open: Sender<(SocketAddr, Sender<UdpSocket>)>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Creates the networks and the link. Returns `None` if the test does not run as root.
    pub(crate) fn new() -> Option<Link> {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("not run: creating networks needs root");
            return None;
        }
        unshare(CloneFlags::CLONE_NEWNET).expect("a link");
        ip("link set lo up");
        let (tell, told) = channel();
        let (open, orders) = channel::<(SocketAddr, Sender<UdpSocket>)>();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a link");
            tell.send(nix::unistd::gettid()).expect("a link");
            for (address, reply) in orders {
                // Configure this end of the link here, because only this thread can. When the first order arrives, the link
                // exists.
                if Command::new("ip")
                    .args(["link", "show", "tb-there"])
                    .output()
                    .is_ok_and(|shown| !String::from_utf8_lossy(&shown.stdout).contains("state UP"))
                {
                    ip(&format!("addr add {THERE}/30 dev tb-there"));
                    ip(&format!("addr add {THERE_V6}/64 dev tb-there nodad"));
                    ip("link set tb-there up");
                }
                let socket = UdpSocket::bind(address).expect("a link");
                socket.set_read_timeout(Some(DEADLINE)).expect("a link");
                reply.send(socket).expect("a link");
            }
        });
        let there = told.recv().expect("a link");
        ip(&format!(
            "link add {DEVICE} {QUEUES} type veth peer name tb-there {QUEUES} netns {there}"
        ));
        ip(&format!("addr add {HERE}/30 dev {DEVICE}"));
        ip(&format!("addr add {HERE_V6}/64 dev {DEVICE} nodad"));
        ip(&format!("link set {DEVICE} up"));
        Some(Link {
            open,
            thread: Some(thread),
        })
    }

    /// Opens two sockets of a peer, on an even port and on the next one.
    pub(crate) fn pair(&self, ip: &str) -> [UdpSocket; 2] {
        loop {
            let first = self.peer(ip);
            let address = first.local_addr().expect("bound");
            let next = SocketAddr::new(address.ip(), address.port() + 1);
            if address.port().is_multiple_of(2) {
                return [first, self.socket(next)];
            }
        }
    }

    /// Opens a socket of a peer.
    pub(crate) fn peer(&self, ip: &str) -> UdpSocket {
        self.socket(SocketAddr::new(ip.parse().expect("an address"), 0))
    }

    fn socket(&self, address: SocketAddr) -> UdpSocket {
        let (reply, socket) = channel();
        let order = (address, reply);
        self.open.send(order).expect("the thread is there");
        socket.recv().expect("a socket")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.open = channel().0;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub(crate) fn ip(arguments: &str) {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("a link");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {arguments}: {said}");
}
