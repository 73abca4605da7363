//! Requests for calls: from this node to the nodes that own the calls, and from other nodes to this node.
//!
//! ```text
//!  ng, HTTP --Errand--> driver: finds the owner --Peers--> channel ==== channel --Host--> CallService (serve, control thread)
//!                                                    '------------ the answer -------------'
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use threadbare_member::{CallName, Link};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver as Queue, Sender as Queuer, UnboundedSender, channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::channel::{self, Message, Receiver, Sender};
use super::key::ClusterKey;
use super::name::{NAME_BYTES, is_process, read_name};
use super::passing::{Back, CallService, Passed};
use super::status::Input;
use threadbare_process::places::Place;

/// Connections to nodes to which requests were sent.
#[derive(Debug)]
pub(super) struct Peers {
    key: ClusterKey,
    to: HashMap<u64, Queuer<Asked>>,
}

/// A request that waits for its reply. It is dropped if no reply comes.
#[derive(Debug)]
struct Asked {
    bytes: Vec<u8>,
    tell: oneshot::Sender<Vec<u8>>,
}

impl Peers {
    pub(super) fn new(key: ClusterKey) -> Peers {
        let to = HashMap::new();
        Peers { key, to }
    }

    /// Sends a request to the process of a link. If the connection fails, so does the receiver. The other process may have
    /// carried out the request even then.
    pub(super) fn ask(&mut self, link: &Link, passed: &Passed) -> oneshot::Receiver<Vec<u8>> {
        self.ask_for(link, None, passed)
    }

    /// Sends a request to the process of a link. `call`: the call that this node owns according to etcd.
    pub(super) fn ask_for(
        &mut self,
        link: &Link,
        call: Option<&CallName>,
        passed: &Passed,
    ) -> oneshot::Receiver<Vec<u8>> {
        let (tell, told) = oneshot::channel();
        let bytes = postcard::to_allocvec(&(call, passed)).unwrap_or_default();
        self.to.retain(|_, queue| !queue.is_closed());
        let queue = self.to.entry(link.process).or_insert_with(|| {
            let (queue, asked) = channel(IN_HAND_MAX);
            tokio::spawn(keep_asking(*link, self.key.clone(), asked));
            queue
        });
        // If the queue is full, or the connection has just failed, the request is dropped, and so the receiver fails.
        let _ = queue.try_send(Asked { bytes, tell });
        told
    }

    /// Closes the connections to all processes for which `are_there` is false.
    pub(super) fn keep(&mut self, are_there: impl Fn(u64) -> bool) {
        self.to.retain(|process, _| are_there(*process));
    }
}

/// Sends requests on a connection until it fails, or until requests stop for a while.
async fn keep_asking(link: Link, key: ClusterKey, asked: Queue<Asked>) {
    match timeout(CONNECT_TIME_MAX, connect(&link, &key)).await {
        Ok(Ok((receiver, sender))) => {
            let waiting = Waiting::default();
            let ended = tokio::select! {
                ended = send_all(asked, sender, &waiting) => ended,
                ended = hear_all(receiver, &waiting) => ended,
            };
            let address = link.address;
            if let Err(error) = ended {
                tracing::debug!(%address, %error, "a connection for requests has ended");
            }
        }
        Ok(Err(error)) => {
            let address = link.address;
            tracing::warn!(%address, %error, "cannot send requests to a node; does it have another [cluster] key-file?");
        }
        Err(_) => {
            tracing::warn!(address = %link.address, "cannot send requests to a node: it does not answer")
        }
    }
}

/// The callers that wait for replies, by the number of the request. Both directions of a connection share them.
type Waiting = Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>;

async fn connect(link: &Link, key: &ClusterKey) -> io::Result<(Receiver, Sender)> {
    let mut connection = TcpStream::connect(link.address).await?;
    // After a cut, TCP would wait for its next retransmission, which may be seconds away. A new connection works at once.
    SockRef::from(&connection).set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIME_MAX))?;
    let name = read_name(&mut connection).await?;
    if !is_process(&name, link.process) {
        return Err(io::Error::other("another process answers at the address"));
    }
    channel::connect(connection, key, &name).await
}

async fn send_all(
    mut asked: Queue<Asked>,
    mut sender: Sender,
    waiting: &Waiting,
) -> io::Result<()> {
    let mut id = 0;
    while let Some(Asked { bytes, tell }) = asked.recv().await {
        {
            let mut waits = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove entries of callers that have gone.
            waits.retain(|_, tell| !tell.is_closed());
            waits.insert(id, tell);
        }
        sender.send(&Message { id, bytes }).await?;
        id += 1;
    }
    Ok(())
}

async fn hear_all(mut receiver: Receiver, waiting: &Waiting) -> io::Result<()> {
    loop {
        let Message { id, bytes } = receiver.next().await?;
        let tell = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
        if let Some(tell) = tell {
            // This fails if the caller has gone.
            let _ = tell.send(bytes);
        }
    }
}

/// Answers requests of other nodes.
#[derive(Debug)]
pub(super) struct Host {
    key: ClusterKey,
    /// Gets the messages that are not requests.
    inputs: UnboundedSender<Input>,
    call_service: OnceLock<Arc<dyn CallService>>,
}

impl Host {
    pub(super) fn new(key: ClusterKey, inputs: UnboundedSender<Input>) -> Host {
        let call_service = OnceLock::new();
        Host {
            key,
            inputs,
            call_service,
        }
    }

    /// Sets the call service, which owns this node's calls.
    pub(super) fn open(&self, call_service: Arc<dyn CallService>) {
        // A process has only one call service, so a second call does nothing.
        let _ = self.call_service.set(call_service);
    }

    pub(super) fn call_service(&self) -> Option<&Arc<dyn CallService>> {
        self.call_service.get()
    }

    /// Serves a connection of another node until it ends. The node has already received this process's name.
    pub(super) async fn serve(
        self: Arc<Host>,
        connection: TcpStream,
        name: [u8; NAME_BYTES],
        place: &Place,
    ) {
        let ended = self.answer_all(connection, name, place).await;
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection of another node has ended");
        }
    }

    async fn answer_all(
        self: Arc<Host>,
        connection: TcpStream,
        name: [u8; NAME_BYTES],
        place: &Place,
    ) -> io::Result<()> {
        let (mut receiver, sender) = channel::accept(connection, &self.key, &name).await?;
        place.trust();
        let (answers, answered) = channel(IN_HAND_MAX);
        let sending = tokio::spawn(send_answers(answered, sender));
        let places = Arc::new(Semaphore::new(IN_HAND_MAX));
        let ended = loop {
            let Message { id, bytes } = match receiver.next().await {
                Ok(message) => message,
                Err(error) => break Err(error),
            };
            // This cannot fail, because the semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else {
                break Ok(());
            };
            let (host, answers) = (self.clone(), answers.clone());
            tokio::spawn(async move {
                let back = host.answer(&bytes).await;
                let bytes = postcard::to_allocvec(&back).unwrap_or_default();
                // This fails if the connection has ended.
                let _ = answers.send(Message { id, bytes }).await;
                drop(place);
            });
        };
        drop(answers);
        sending.abort();
        ended
    }

    async fn answer(&self, bytes: &[u8]) -> Back {
        let Ok((call, passed)) = postcard::from_bytes::<(Option<CallName>, Passed)>(bytes) else {
            return Back::Unable(
                "the node cannot read the request, because it runs another version".to_owned(),
            );
        };
        match (passed, self.call_service.get()) {
            (Passed::Copies(copies), _) => {
                // This fails if the driver's thread is about to end.
                let _ = self.inputs.send(Input::Copied(copies));
                Back::Kept
            }
            (Passed::LatePackets(late_packets), _) => {
                let (tell, told) = oneshot::channel();
                let _ = self.inputs.send(Input::LatePackets(late_packets, tell));
                match told.await {
                    Ok(true) => Back::Arrived,
                    Ok(false) | Err(_) => Back::Kept,
                }
            }
            (Passed::Released(release, resume), _) => {
                let _ = self.inputs.send(Input::Released(release, resume));
                Back::Kept
            }
            (Passed::Handed(handed), _) => {
                let _ = self.inputs.send(Input::Handed(handed));
                Back::Kept
            }
            (passed, Some(call_service)) => call_service.answer(call, passed).await,
            (_, None) => Back::Unable("the node accepts no calls".to_owned()),
        }
    }
}

async fn send_answers(mut answered: Queue<Message>, mut sender: Sender) {
    while let Some(message) = answered.recv().await {
        if sender.send(&message).await.is_err() {
            return;
        }
    }
}

/// Maximum number of requests in progress on a connection: more than a node answers in some tens of milliseconds.
const IN_HAND_MAX: usize = 512;
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
/// Time after which a connection whose data the other machine does not acknowledge is closed.
const UNACKNOWLEDGED_TIME_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::super::name::name_of;
    use super::super::passing::{Claimed, HttpRequest, Left, Origin};
    use super::super::service::{Preparing, Taking};
    use super::super::testing::run;
    use super::*;
    use threadbare_process::places::{Limits, Places};

    /// Replies with the path. A request for "/slow" is answered only after another request.
    #[derive(Debug, Default)]
    struct Echo(Arc<tokio::sync::Notify>);

    impl CallService for Echo {
        fn answer(
            &self,
            call: Option<CallName>,
            passed: Passed,
        ) -> Pin<Box<dyn Future<Output = Back> + Send>> {
            let others = self.0.clone();
            Box::pin(async move {
                if let Some(call) = call {
                    return Back::Unable(call.to_string());
                }
                let Passed::Http(request) = passed else {
                    return Back::Moved;
                };
                match &*request.target {
                    "/slow" => others.notified().await,
                    _ => others.notify_one(),
                }
                Back::Http {
                    status: 200,
                    content_type: None,
                    location: None,
                    body: [request.target.into_bytes(), request.body].concat(),
                }
            })
        }

        fn claimed(&self, _: &CallName, _: Claimed) {}

        fn prepare(&self, _: Preparing, _: Box<dyn FnOnce() + Send>) {}

        fn unprepare(&self, _: &str) {}

        fn take(&self, _: Taking, _: Box<dyn FnOnce() + Send>) {}

        fn leave(&self, _: &str, _: usize, _: Left) {}

        fn close(&self, _: &str) {}

        fn deliver(&self) {}
    }

    const PROCESS: u64 = 9;

    /// Starts a node with this key. Without a key, it only sends its name.
    async fn node(key: Option<[u8; 32]>, call_service: Option<Echo>) -> (Link, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let link = Link {
            address,
            process: PROCESS,
        };
        let host = key.map(|key| {
            // Other messages are dropped.
            let (inputs, _) = tokio::sync::mpsc::unbounded_channel();
            Arc::new(Host::new(ClusterKey(key), inputs))
        });
        if let (Some(host), Some(call_service)) = (&host, call_service) {
            host.open(Arc::new(call_service));
        }
        let serving = tokio::spawn(async move {
            loop {
                let (mut peer, _) = listener.accept().await.expect("a peer");
                peer.write_all(&name_of(PROCESS)).await.expect("told");
                if let Some(host) = &host {
                    let host = host.clone();
                    tokio::spawn(async move {
                        let places = Places::new(Limits {
                            total: 1,
                            per_host: 1,
                            extra: 0,
                        });
                        let place = places.enter([127, 0, 0, 1].into()).expect("the first");
                        host.serve(peer, name_of(PROCESS), &place).await;
                    });
                }
            }
        });
        (link, serving)
    }

    fn get(target: &str, body: usize) -> Passed {
        Passed::Http(HttpRequest {
            method: "GET".to_owned(),
            target: target.to_owned(),
            content_type: None,
            body: vec![b'x'; body],
        })
    }

    async fn answer(asked: oneshot::Receiver<Vec<u8>>) -> Option<Back> {
        postcard::from_bytes(&asked.await.ok()?).ok()
    }

    fn is_body(back: Option<Back>, due: &[u8]) -> bool {
        matches!(back, Some(Back::Http { body, .. }) if body == due)
    }

    /// A slow request does not delay others, and large bodies arrive whole.
    #[test]
    fn requests_are_answered_in_any_order() {
        run(async {
            let (link, _serving) = node(Some([7; 32]), Some(Echo::default())).await;
            let mut peers = Peers::new(ClusterKey([7; 32]));
            let slow = peers.ask(&link, &get("/slow", 0));
            let large = peers.ask(&link, &get("/large", 200_000));
            let due = [&b"/large"[..], &[b'x'; 200_000]].concat();
            assert!(is_body(answer(large).await, &due));
            assert!(is_body(answer(slow).await, b"/slow"));
            let ng = Passed::Ng {
                from: Origin::Host([127, 0, 0, 1].into()),
                message: b"1 d7:command4:pinge".to_vec(),
            };
            assert_eq!(answer(peers.ask(&link, &ng)).await, Some(Back::Moved));
            let call = CallName("a".into());
            let back = answer(peers.ask_for(&link, Some(&call), &ng)).await;
            assert_eq!(back, Some(Back::Unable(call.to_string())));
            assert_eq!(peers.to.len(), 1);
            peers.keep(|process| process != PROCESS);
            assert!(peers.to.is_empty());
        });
    }

    #[test]
    fn unreachable_node_is_reported() {
        run(async {
            let mut peers = Peers::new(ClusterKey([7; 32]));
            // A node that accepts no calls.
            let (link, _serving) = node(Some([7; 32]), None).await;
            let back = answer(peers.ask(&link, &get("/", 0))).await;
            assert!(matches!(back, Some(Back::Unable(_))), "{back:?}");
            // Try a node with another key, and then another process at the address.
            let (link, _serving) = node(Some([8; 32]), Some(Echo::default())).await;
            let mut peers = Peers::new(ClusterKey([7; 32]));
            assert!(answer(peers.ask(&link, &get("/", 0))).await.is_none());
            let (mut link, _serving) = node(Some([7; 32]), Some(Echo::default())).await;
            link.process += 1;
            assert!(answer(peers.ask(&link, &get("/", 0))).await.is_none());
        });
    }

    /// A node without a key sends nothing but its name, so the handshake times out.
    #[test]
    fn requests_to_a_node_without_a_key_fail_in_time() {
        run(async {
            let (link, _serving) = node(None, None).await;
            let mut peers = Peers::new(ClusterKey([7; 32]));
            assert!(answer(peers.ask(&link, &get("/", 0))).await.is_none());
        });
    }
}
