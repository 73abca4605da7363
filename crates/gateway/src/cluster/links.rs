//! Connections to the other nodes, by which the end of a process is seen at once, and not when its lease is over.
//!
//! Each node listens. Who connects is told which process this is. Nothing more is said on these connections; on others, requests for calls follow
//! (peers.rs). A connection that ends is no sign by itself: a firewall may have cut
//! it. It is followed by another one, and then the machine says that nobody listens there any more, or another process of the same machine does: the process
//! that answered before has ended. Everything else (nothing answers, the way is cut) says nothing.
//!
//! The kernel closes what a process had open when the last of its threads has ended, so nothing of it is sent behind that. A thread that fails closes
//! nothing: the listening socket is kept as long as the process lives.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use threadbare_control::cluster::Link;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::name::{NAME_BYTES, boot_of, is_process, name_of, read_name};
use super::peers::Host;
use crate::system::random_number;

/// Where the other nodes connect to.
#[derive(Debug)]
pub(super) struct LinkListener {
    listener: std::net::TcpListener,
    link: Link,
}

impl LinkListener {
    /// Listens.
    pub(super) fn bind(at: SocketAddr) -> io::Result<LinkListener> {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        // Open until the process ends.
        std::mem::forget(listener.try_clone()?);
        let link = Link {
            address: listener.local_addr()?,
            process: random_number(),
        };
        Ok(LinkListener { listener, link })
    }

    /// For the other nodes.
    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Takes connections. `host`: answers requests.
    pub(super) async fn serve(self, host: Option<Arc<Host>>) {
        let name = name_of(self.link.process);
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "[cluster] listen: other nodes cannot connect");
                return;
            }
        };
        let places = Arc::new(Semaphore::new(PEERS_MAX));
        loop {
            // Never closed.
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((peer, _)) => {
                    let host = host.clone();
                    tokio::spawn(async move {
                        tell_name(peer, name, host).await;
                        drop(place);
                    });
                }
                // Out of descriptors, or gone already.
                Err(_) => sleep(AGAIN).await,
            }
        }
    }
}

/// Until the peer goes, or says something that no node does.
async fn tell_name(mut peer: TcpStream, name: [u8; NAME_BYTES], host: Option<Arc<Host>>) {
    keep_alive(&peer);
    let told = timeout(CONNECT_TIME_MAX, peer.write_all(&name)).await;
    if !matches!(told, Ok(Ok(()))) {
        return;
    }
    match host {
        Some(host) => host.serve(peer, name).await,
        None => until_end(&mut peer).await,
    }
}

/// This process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended(u64);

impl Ended {
    /// Whether it is the one of this link.
    pub(super) fn is(&self, link: &Link) -> bool {
        self.0 == link.process
    }
}

/// Connections to other nodes' processes.
pub(super) struct Links {
    to: HashMap<u64, Watch>,
    ends: UnboundedSender<Ended>,
    told: Option<UnboundedReceiver<Ended>>,
}

struct Watch {
    task: JoinHandle<()>,
    is_connected: Arc<AtomicBool>,
    is_wanted: bool,
}

impl Default for Links {
    fn default() -> Links {
        let (ends, told) = unbounded_channel();
        Links {
            to: HashMap::new(),
            ends,
            told: Some(told),
        }
    }
}

impl Links {
    /// Where ends are told.
    ///
    /// # Panics
    /// A second time.
    pub(super) fn take_ends(&mut self) -> UnboundedReceiver<Ended> {
        self.told.take().expect("taken once")
    }

    /// These are the other nodes now.
    pub(super) fn follow(&mut self, links: impl Iterator<Item = Link>) {
        for link in links {
            let watch = self.to.entry(link.process).or_insert_with(|| {
                let is_connected = Arc::new(AtomicBool::new(false));
                let (ends, connected) = (self.ends.clone(), is_connected.clone());
                let task = tokio::spawn(async move {
                    until_process_ends(&link, &connected).await;
                    // The driver is about to end.
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

    /// Whether there is a connection.
    pub(super) fn holds(&self, link: &Link) -> bool {
        let watch = self.to.get(&link.process);
        watch.is_some_and(|watch| watch.is_connected.load(Relaxed))
    }
}

/// What answers at an address.
enum Answer {
    /// The process, on this boot of its machine.
    Process(TcpStream, u128),
    /// Another one, on this boot.
    Another(u128),
    /// The machine that has the address says that nobody listens.
    Refused,
    /// No answer that says anything.
    Nothing,
}

async fn until_process_ends(link: &Link, is_connected: &AtomicBool) {
    // The boot of the machine where it has answered.
    let mut machine = None;
    loop {
        let since = Instant::now();
        match connect(link).await {
            Answer::Process(mut connection, boot) => {
                machine = Some(boot);
                is_connected.store(true, Relaxed);
                keep_alive(&connection);
                until_end(&mut connection).await;
                is_connected.store(false, Relaxed);
                if since.elapsed() > AGAIN {
                    continue;
                }
            }
            Answer::Refused if machine.is_some() => return,
            // Else the address is another machine's now.
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
    let boot = boot_of(&name);
    match is_process(&name, link.process) {
        true => Answer::Process(connection, boot),
        false => Answer::Another(boot),
    }
}

/// Until the connection ends, or something comes.
async fn until_end(connection: &mut TcpStream) {
    // Either way it is over.
    let _ = connection.read(&mut [0]).await;
}

/// A connection to a machine that is gone ends, too.
fn keep_alive(connection: &TcpStream) {
    let often = TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE)
        .with_retries(3);
    // Without it, it ends later.
    let _ = SockRef::from(connection).set_tcp_keepalive(&often);
}

/// Connections of others at a time: more than a cluster has nodes.
const PEERS_MAX: usize = 1024;
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(250);
const KEEP_ALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use super::*;

    /// A process that can be ended: its listener is not kept.
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
    fn the_end_of_a_process_that_was_connected_to_is_told() {
        run(async {
            let (address, process) = process(name_of(LINK)).await;
            let link = Link {
                address,
                process: LINK,
            };
            let mut links = Links::default();
            let mut ends = links.take_ends();
            links.follow([link].into_iter());
            wait_until(|| links.holds(&link)).await;
            process.abort();
            let ended = ends.recv().await.expect("an end");
            assert!(ended.is(&link) && !links.holds(&link));
        });
    }

    /// It was started again, at the same port.
    #[test]
    fn another_process_in_its_place_is_an_end() {
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
            tokio::join!(until_process_ends(&link, &is_connected), next);
        });
    }

    /// Never connected to; another machine.
    #[test]
    fn what_says_nothing_is_no_end() {
        run(async {
            let is_connected = AtomicBool::new(false);
            let waits = |link: Link| {
                let is_connected = &is_connected;
                async move {
                    timeout(4 * AGAIN, until_process_ends(&link, is_connected))
                        .await
                        .is_err()
                }
            };
            let (address, process) = process(name_of(LINK)).await;
            // Another process is there, as where an address is wrong.
            assert!(
                waits(Link {
                    address,
                    process: 1
                })
                .await
            );
            process.abort();
            assert!(process.await.expect_err("aborted").is_cancelled());
            // Nobody is there.
            assert!(
                waits(Link {
                    address,
                    process: LINK
                })
                .await
            );
            // It has answered once, and then another machine has the address.
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

    #[test]
    fn a_listener_tells_its_name_and_outlives_its_thread() {
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
            // The kernel accepts, and nobody tells a name: no sign.
            assert!(matches!(connect(&link).await, Answer::Nothing));
        });
    }
}
