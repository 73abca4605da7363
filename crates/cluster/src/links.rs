//! Connections to the other nodes, which show at once that a process has ended, before its lease ends.
//!
//! Each node listens, and sends the name of its process to each node that connects. If the cluster has a key, both sides then
//! prove that they have it. Nothing more is sent on these connections; requests for calls use other ones (peers.rs). The end of
//! a connection proves nothing, because a firewall may have cut it. So the node connects again. If the machine refuses the new
//! connection, or another process of the same boot answers, the previous process has ended. Any other result, such as no answer
//! or no route, proves nothing.
//!
//! The kernel closes the connections of a process when its last thread has ended. So when a connection ends because the process
//! has ended, that process no longer sends media. If only one thread fails, the listening socket stays open, because it belongs
//! to the whole process.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use threadbare_member::Link;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::channel;
use super::key::ClusterKey;
use super::name::{NAME_BYTES, boot_of, is_process, name_of, read_name};
use super::peers::Host;
use threadbare_process::places::{Limits, Place, Places};
use threadbare_process::system::random_number;

/// The socket to which the other nodes connect.
#[derive(Debug)]
pub(super) struct LinkListener {
    listener: std::net::TcpListener,
    link: Link,
}

impl LinkListener {
    /// Binds the socket.
    pub(super) fn bind(at: SocketAddr) -> io::Result<LinkListener> {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        // This copy of the socket stays open until the process ends.
        std::mem::forget(listener.try_clone()?);
        let link = Link {
            address: listener.local_addr()?,
            process: random_number(),
        };
        Ok(LinkListener { listener, link })
    }

    /// Returns the link for the other nodes: the address, and the name of this process.
    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Accepts connections. `host`: answers requests.
    pub(super) async fn serve(self, host: Option<Arc<Host>>) {
        let name = name_of(self.link.process);
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "cannot listen at the address in [cluster] listen: other nodes cannot connect");
                return;
            }
        };
        let places = Places::new(LIMITS);
        loop {
            match listener.accept().await {
                Ok((peer, from)) => {
                    let Some(place) = places.enter(from.ip()).map(Arc::new) else {
                        continue;
                    };
                    let task = tokio::spawn(tell_name(peer, name, host.clone(), place.clone()));
                    place.is_of(task.abort_handle());
                }
                // Descriptors have run out, or the peer has already gone.
                Err(_) => sleep(AGAIN).await,
            }
        }
    }
}

/// Sends the name, and serves the connection until the peer closes it or sends invalid data.
async fn tell_name(
    mut peer: TcpStream,
    name: [u8; NAME_BYTES],
    host: Option<Arc<Host>>,
    place: Arc<Place>,
) {
    keep_alive(&peer);
    let told = timeout(CONNECT_TIME_MAX, peer.write_all(&name)).await;
    if !matches!(told, Ok(Ok(()))) {
        return;
    }
    match host {
        Some(host) => host.serve(peer, name, &place).await,
        None => until_end(&mut peer).await,
    }
}

/// The report that a process of another node has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended(u64);

impl Ended {
    /// Whether the ended process is that of this link.
    pub(super) fn is(&self, link: &Link) -> bool {
        self.0 == link.process
    }
}

/// Connections to other nodes' processes.
pub(super) struct Links {
    key: Option<ClusterKey>,
    to: HashMap<u64, Watch>,
    ends: UnboundedSender<Ended>,
    told: Option<UnboundedReceiver<Ended>>,
}

struct Watch {
    task: JoinHandle<()>,
    is_connected: Arc<AtomicBool>,
    is_wanted: bool,
}

impl Links {
    /// Creates the list, without connections. `key`: the key that this node proves to the other nodes.
    pub(super) fn new(key: Option<ClusterKey>) -> Links {
        let (ends, told) = unbounded_channel();
        Links {
            key,
            to: HashMap::new(),
            ends,
            told: Some(told),
        }
    }

    /// Returns the receiver of ended processes.
    ///
    /// # Panics
    /// Panics if it is called twice.
    pub(super) fn take_ends(&mut self) -> UnboundedReceiver<Ended> {
        self.told.take().expect("taken once")
    }

    /// Sets the other nodes to connect to.
    pub(super) fn follow(&mut self, links: impl Iterator<Item = Link>) {
        for link in links {
            let watch = self.to.entry(link.process).or_insert_with(|| {
                let is_connected = Arc::new(AtomicBool::new(false));
                let (ends, connected) = (self.ends.clone(), is_connected.clone());
                let key = self.key.clone();
                let task = tokio::spawn(async move {
                    until_process_ends(&link, key.as_ref(), &connected).await;
                    // This fails if the driver is about to end.
                    let _ = ends.send(Ended(link.process));
                });
                Watch {
                    task,
                    is_connected,
                    is_wanted: true,
                }
            });
            watch.is_wanted = true;
        }
        self.to.retain(|_, watch| {
            let is_wanted = std::mem::take(&mut watch.is_wanted);
            if !is_wanted {
                watch.task.abort();
            }
            is_wanted
        });
    }

    /// Whether there is a connection for a link.
    pub(super) fn holds(&self, link: &Link) -> bool {
        let watch = self.to.get(&link.process);
        watch.is_some_and(|watch| watch.is_connected.load(Relaxed))
    }
}

/// The answer at an address.
enum Answer {
    /// The process of the link answered. Contains the connection, and the name.
    Process(TcpStream, [u8; NAME_BYTES]),
    /// Another process answered. Contains the boot of its machine.
    Another(u128),
    /// The machine at the address refuses the connection.
    Refused,
    /// The answer, or its absence, proves nothing.
    Nothing,
}

async fn until_process_ends(link: &Link, mut key: Option<&ClusterKey>, is_connected: &AtomicBool) {
    // The boot of the machine on which the process of the link answered.
    let mut machine = None;
    loop {
        let since = Instant::now();
        match connect(link).await {
            Answer::Process(connection, name) => {
                machine = Some(boot_of(&name));
                is_connected.store(true, Relaxed);
                keep_alive(&connection);
                // If the handshake failed, the node has no key. Such a node ends each connection at the first byte.
                let has_shaken = stay(connection, key, &name).await;
                key = key.filter(|_| has_shaken);
                is_connected.store(false, Relaxed);
                if since.elapsed() > AGAIN {
                    continue;
                }
            }
            Answer::Refused if machine.is_some() => return,
            // If the boot differs, the address now belongs to another machine, which proves nothing.
            Answer::Another(boot) if machine == Some(boot) => return,
            Answer::Another(_) | Answer::Refused | Answer::Nothing => {}
        }
        sleep(AGAIN).await;
    }
}

async fn connect(link: &Link) -> Answer {
    let mut connection = match timeout(CONNECT_TIME_MAX, TcpStream::connect(link.address)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Answer::Refused;
        }
        Ok(Err(_)) | Err(_) => return Answer::Nothing,
    };
    let Ok(name) = read_name(&mut connection).await else {
        return Answer::Nothing;
    };
    if is_process(&name, link.process) {
        Answer::Process(connection, name)
    } else {
        Answer::Another(boot_of(&name))
    }
}

/// Waits until the connection ends. If there is a key, first does the handshake, without which the other side closes the
/// connection soon. Returns whether the handshake succeeded.
async fn stay(mut connection: TcpStream, key: Option<&ClusterKey>, name: &[u8]) -> bool {
    let Some(key) = key else {
        until_end(&mut connection).await;
        return false;
    };
    let Ok((mut receiver, _sender)) = channel::connect(connection, key, name).await else {
        return false;
    };
    // Nothing is sent on this connection, so any result means that it is over.
    let _ = receiver.next().await;
    true
}

/// Waits until the connection ends, or data comes.
async fn until_end(connection: &mut TcpStream) {
    // The end, an error and unexpected data all mean that the connection is over.
    let _ = connection.read(&mut [0]).await;
}

/// Sets keep-alive, so that a connection to a dead machine ends, too.
fn keep_alive(connection: &TcpStream) {
    let often = TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE)
        .with_retries(3);
    // If this fails, the end of a dead machine's connection is noticed later.
    let _ = SockRef::from(connection).set_tcp_keepalive(&often);
}

/// Limits for incoming connections. They are above the number of nodes in a cluster, and of nodes on one machine.
const LIMITS: Limits = Limits {
    total: 1024,
    per_host: 64,
    extra: 0,
};
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(250);
const KEEP_ALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use super::*;

    /// A process whose listener can be closed.
    async fn process(name: [u8; NAME_BYTES]) -> (SocketAddr, JoinHandle<()>) {
        process_at("127.0.0.1:0".parse().expect("an address"), name).await
    }

    async fn process_at(at: SocketAddr, name: [u8; NAME_BYTES]) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind(at).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            let mut peers = Vec::new();
            loop {
                let (mut peer, _) = listener.accept().await.expect("a peer");
                peer.write_all(&name).await.expect("told");
                peers.push(peer);
            }
        });
        (address, task)
    }

    async fn wait_until(mut holds: impl FnMut() -> bool) {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    const LINK: u64 = 7;

    #[test]
    fn end_of_a_connected_process_is_reported() {
        run(async {
            let (address, process) = process(name_of(LINK)).await;
            let link = Link {
                address,
                process: LINK,
            };
            let mut links = Links::new(None);
            let mut ends = links.take_ends();
            links.follow([link].into_iter());
            wait_until(|| links.holds(&link)).await;
            process.abort();
            let ended = ends.recv().await.expect("an end");
            assert!(ended.is(&link) && !links.holds(&link));
        });
    }

    /// The process was restarted on the same port.
    #[test]
    fn another_process_at_the_address_means_that_the_first_has_ended() {
        run(async {
            let (address, process) = process(name_of(LINK)).await;
            let is_connected = AtomicBool::new(false);
            let link = Link {
                address,
                process: LINK,
            };
            let next = async {
                wait_until(|| is_connected.load(Relaxed)).await;
                process.abort();
                assert!(process.await.expect_err("aborted").is_cancelled());
                process_at(address, name_of(LINK + 1)).await
            };
            tokio::join!(until_process_ends(&link, None, &is_connected), next);
        });
    }

    /// A silent process does not count as ended if there was never a connection to it, or if another machine has its address.
    #[test]
    fn a_silent_connection_does_not_mean_that_the_process_has_ended() {
        run(async {
            let is_connected = AtomicBool::new(false);
            let waits = |link: Link| {
                let is_connected = &is_connected;
                async move {
                    timeout(4 * AGAIN, until_process_ends(&link, None, is_connected))
                        .await
                        .is_err()
                }
            };
            let (address, process) = process(name_of(LINK)).await;
            // Another process answers, as with a wrong address. It proves nothing.
            assert!(
                waits(Link {
                    address,
                    process: 1
                })
                .await
            );
            process.abort();
            assert!(process.await.expect_err("aborted").is_cancelled());
            // No process answers, which proves nothing.
            assert!(
                waits(Link {
                    address,
                    process: LINK
                })
                .await
            );
            // The process has answered once. Then another machine has the address.
            let (address, process) = process_at(address, name_of(LINK)).await;
            let elsewhere = async {
                wait_until(|| is_connected.load(Relaxed)).await;
                process.abort();
                assert!(process.await.expect_err("aborted").is_cancelled());
                let mut name = name_of(LINK + 1);
                name[NAME_BYTES - 1] ^= 1;
                process_at(address, name).await
            };
            let (waited, _) = tokio::join!(
                waits(Link {
                    address,
                    process: LINK
                }),
                elsewhere
            );
            assert!(waited);
        });
    }

    /// If there is a key, a connection of a silent client is closed, and a client that proves the key keeps its connection.
    #[test]
    fn silent_strangers_time_out_and_nodes_keep_their_connection() {
        let listener = LinkListener::bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a free port");
        let link = listener.link();
        run(async {
            let key = ClusterKey([7; 32]);
            let (inputs, _asked) = unbounded_channel();
            let host = Arc::new(Host::new(key.clone(), inputs));
            let _serving = tokio::spawn(listener.serve(Some(host)));
            let mut links = Links::new(Some(key));
            links.follow([link].into_iter());
            wait_until(|| links.holds(&link)).await;
            // Open more connections than one host may have.
            let mut strangers = Vec::new();
            for _ in 0..2 * LIMITS.per_host {
                strangers.push(TcpStream::connect(link.address).await.expect("accepted"));
            }
            for stranger in &mut strangers {
                let mut all = Vec::new();
                // Each connection gets the name. Then it is closed, because of the limit for a host or the time limit.
                let read = timeout(Duration::from_secs(30), stranger.read_to_end(&mut all));
                read.await.expect("closed").expect("read");
            }
            assert!(links.holds(&link), "the node's connection stays");
        });
    }

    #[test]
    fn listener_sends_its_name_and_outlives_its_thread() {
        let listener = LinkListener::bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a free port");
        let link = listener.link();
        run(async {
            let serving = tokio::spawn(listener.serve(None));
            let mut answers = Vec::new();
            for _ in 0..3 {
                answers.push(connect(&link).await);
            }
            assert!(answers.iter().all(|one| matches!(one, Answer::Process(..))));
            serving.abort();
            assert!(serving.await.expect_err("aborted").is_cancelled());
            // The kernel accepts the connection, but no name comes. This proves nothing.
            assert!(matches!(connect(&link).await, Answer::Nothing));
        });
    }
}
