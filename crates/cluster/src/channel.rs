//! Encrypted messages between two nodes that have the cluster's key. They use Noise (revision 34) with the pattern `NNpsk0`.
//! Before the handshake, the node that accepts the connection sends its name.
//!
//! ```text
//!  frame:           length of the rest, 2 bytes | ciphertext
//!  plain:           number of the request, 8 bytes | 1 in the last frame of a message, else 0 | bytes of the message
//! ```
//!
//! Both sides count frames, so an attacker cannot repeat, drop or insert frames, or move them to another connection. Each side
//! sends its messages one after another.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::key::ClusterKey;

/// The receiving half of a connection.
pub(super) struct Receiver<R = OwnedReadHalf> {
    from: R,
    state: Arc<StatelessTransportState>,
    /// Number of the next frame.
    number: u64,
    frame: Vec<u8>,
    plain: Vec<u8>,
}

/// The sending half.
pub(super) struct Sender<W = OwnedWriteHalf> {
    to: W,
    state: Arc<StatelessTransportState>,
    number: u64,
    frame: Vec<u8>,
}

/// A request or a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Number of the request.
    pub(super) id: u64,
    pub(super) bytes: Vec<u8>,
}

/// Performs the handshake of the connecting side. `name`: the name that the other side has sent.
///
/// # Errors
/// Fails if the other side has no key or a different key, or if the connection fails.
pub(super) async fn connect(
    mut connection: TcpStream,
    key: &ClusterKey,
    name: &[u8],
) -> io::Result<(Receiver, Sender)> {
    let mut shake = builder(key, name)?.build_initiator().map_err(failed)?;
    say(&mut connection, &mut shake).await?;
    hear(&mut connection, &mut shake).await?;
    split(connection, shake)
}

/// Performs the handshake of the accepting side. `name`: the name that this side has sent.
///
/// # Errors
/// Fails if the other side has a different key, sends other data, or sends nothing in time, or if the connection fails or ends.
pub(super) async fn accept(
    mut connection: TcpStream,
    key: &ClusterKey,
    name: &[u8],
) -> io::Result<(Receiver, Sender)> {
    let mut shake = builder(key, name)?.build_responder().map_err(failed)?;
    let heard = timeout(SHAKE_TIME_MAX, hear(&mut connection, &mut shake));
    heard.await.map_err(|_| io::ErrorKind::TimedOut)??;
    say(&mut connection, &mut shake).await?;
    split(connection, shake)
}

fn builder<'k>(key: &'k ClusterKey, name: &'k [u8]) -> io::Result<Builder<'k>> {
    let pattern = PATTERN.parse().map_err(failed)?;
    let builder = Builder::new(pattern).psk(0, &key.0).map_err(failed)?;
    builder.prologue(name).map_err(failed)
}

async fn say(connection: &mut TcpStream, shake: &mut HandshakeState) -> io::Result<()> {
    let mut bytes = [0; 2 + SHAKE_BYTES];
    let len = shake.write_message(&[], &mut bytes[2..]).map_err(failed)?;
    bytes[..2].copy_from_slice(&(len as u16).to_be_bytes());
    in_time(connection.write_all(&bytes[..2 + len])).await
}

async fn hear(connection: &mut TcpStream, shake: &mut HandshakeState) -> io::Result<()> {
    let mut bytes = Vec::new();
    read_frame(connection, &mut bytes, SHAKE_BYTES).await?;
    let mut room = [0; SHAKE_BYTES];
    shake.read_message(&bytes, &mut room).map_err(failed)?;
    Ok(())
}

fn split(connection: TcpStream, shake: HandshakeState) -> io::Result<(Receiver, Sender)> {
    // Send at once: a request is one small write, and a caller waits for the reply.
    connection.set_nodelay(true)?;
    let state = Arc::new(shake.into_stateless_transport_mode().map_err(failed)?);
    let (from, to) = connection.into_split();
    let receiver = Receiver {
        from,
        state: state.clone(),
        number: 0,
        frame: Vec::new(),
        plain: vec![0; FRAME_BYTES_MAX],
    };
    let sender = Sender {
        to,
        state,
        number: 0,
        frame: vec![0; 2 + FRAME_BYTES_MAX],
    };
    Ok((receiver, sender))
}

/// Reads one frame. It waits for the first byte without a time limit.
async fn read_frame<R: AsyncRead + Unpin>(
    from: &mut R,
    frame: &mut Vec<u8>,
    most: usize,
) -> io::Result<()> {
    let mut len = [0; 2];
    from.read_exact(&mut len[..1]).await?;
    in_time(async {
        from.read_exact(&mut len[1..]).await?;
        let len = usize::from(u16::from_be_bytes(len));
        if len > most {
            return Err(odd("a frame is too long"));
        }
        frame.resize(len, 0);
        from.read_exact(frame).await.map(drop)
    })
    .await
}

impl<R: AsyncRead + Unpin> Receiver<R> {
    /// Reads the next message.
    ///
    /// # Errors
    /// Fails if the connection has ended, if the data is not from the other node, or if the message is too long.
    pub(super) async fn next(&mut self) -> io::Result<Message> {
        let mut message: Option<Message> = None;
        loop {
            read_frame(&mut self.from, &mut self.frame, FRAME_BYTES_MAX).await?;
            let read = self
                .state
                .read_message(self.number, &self.frame, &mut self.plain);
            let len = read.map_err(failed)?;
            self.number += 1;
            let (head, bytes) = self.plain[..len]
                .split_at_checked(HEAD_BYTES)
                .ok_or_else(|| odd("a frame has no head"))?;
            let (id, is_last) = head.split_at(HEAD_BYTES - 1);
            let id = id.try_into().map_or(0, u64::from_be_bytes);
            let message = message.get_or_insert(Message {
                id,
                bytes: Vec::new(),
            });
            if message.id != id || message.bytes.len() + bytes.len() > MESSAGE_BYTES_MAX {
                return Err(odd(
                    "a message is too long, or the frames of two messages are mixed",
                ));
            }
            message.bytes.extend_from_slice(bytes);
            if is_last == [1] {
                let bytes = std::mem::take(&mut message.bytes);
                return Ok(Message { id, bytes });
            }
        }
    }
}

impl<W: AsyncWrite + Unpin> Sender<W> {
    /// Sends a message.
    ///
    /// # Errors
    /// Fails if the message is too long, if the connection has ended, or if the other side does not read.
    pub(super) async fn send(&mut self, message: &Message) -> io::Result<()> {
        if message.bytes.len() > MESSAGE_BYTES_MAX {
            return Err(odd("a message is too long"));
        }
        let mut chunks = message.bytes.chunks(CHUNK_BYTES).peekable();
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let is_last = chunks.peek().is_none();
            let head = [&message.id.to_be_bytes()[..], &[u8::from(is_last)]].concat();
            let plain = [&head, chunk].concat();
            let (len, frame) = self.frame.split_at_mut(2);
            let written = self.state.write_message(self.number, &plain, frame);
            let bytes = written.map_err(failed)?;
            self.number += 1;
            len.copy_from_slice(&(bytes as u16).to_be_bytes());
            in_time(self.to.write_all(&self.frame[..2 + bytes])).await?;
            if is_last {
                return Ok(());
            }
        }
    }
}

async fn in_time<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = timeout(FRAME_TIME_MAX, done).await;
    done.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn failed(error: snow::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn odd(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Maximum size of a handshake message. An ephemeral key and a tag have 48 bytes.
const SHAKE_BYTES: usize = 256;
/// Maximum size of a frame: that of Noise.
const FRAME_BYTES_MAX: usize = 65_535;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 9;
const CHUNK_BYTES: usize = FRAME_BYTES_MAX - TAG_BYTES - HEAD_BYTES;
/// Maximum size of a message: the largest HTTP body, and some overhead.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Time limit from the start of the connection until the other side has proven that it has the key. A stranger cannot hold a
/// connection open for longer.
const SHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit from the first byte of a frame to its last.
const FRAME_TIME_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::testing::run;
    use super::*;

    const NAME: &[u8] = b"a process";

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.expect("connected"), far.expect("accepted").0)
    }

    async fn pair() -> ((Receiver, Sender), (Receiver, Sender)) {
        let (near, far) = sockets().await;
        let key = ClusterKey([7; 32]);
        let (near, far) = tokio::join!(connect(near, &key, NAME), accept(far, &key, NAME));
        (near.expect("shaken"), far.expect("shaken"))
    }

    fn message(id: u64, len: usize) -> Message {
        let bytes = (0..len).map(|at| (at * 31 + len) as u8).collect();
        Message { id, bytes }
    }

    #[test]
    fn messages_of_all_lengths_arrive_in_order_in_both_directions() {
        run(async {
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = pair().await;
            let lens = [
                0,
                1,
                CHUNK_BYTES - 1,
                CHUNK_BYTES,
                CHUNK_BYTES + 1,
                MESSAGE_BYTES_MAX,
            ];
            let send = async {
                for (id, len) in lens.iter().enumerate() {
                    let sent = near_out.send(&message(id as u64, *len)).await;
                    sent.expect("sent");
                }
            };
            let back = async {
                for (id, len) in lens.iter().enumerate() {
                    let came = far_in.next().await.expect("a message");
                    assert_eq!(came, message(id as u64, *len));
                    far_out.send(&came).await.expect("sent");
                }
            };
            let hear = async {
                for (id, len) in lens.iter().enumerate() {
                    assert_eq!(near_in.next().await.expect("one"), message(id as u64, *len));
                }
            };
            tokio::join!(send, back, hear);
            let long = near_out.send(&message(0, MESSAGE_BYTES_MAX + 1)).await;
            assert!(long.is_err());
        });
    }

    #[test]
    fn another_key_and_another_process_are_refused() {
        run(async {
            for (key, name) in [([8; 32], NAME), ([7; 32], &b"another"[..])] {
                let (near, far) = sockets().await;
                let (ours, theirs) = (ClusterKey([7; 32]), ClusterKey(key));
                let (near, far) = tokio::join!(connect(near, &ours, NAME), async move {
                    accept(far, &theirs, name).await
                });
                assert!(near.is_err() && far.is_err());
            }
        });
    }

    /// An attacker on the path changes a bit, repeats a frame, or drops one.
    #[test]
    fn changed_repeated_or_missing_frames_are_refused() {
        for fault in 0..3 {
            run(async move {
                let ((_near_in, near_out), (far_in, _far_out)) = pair().await;
                let mut wire = Vec::new();
                let mut out = Sender {
                    to: &mut wire,
                    state: near_out.state.clone(),
                    number: 0,
                    frame: vec![0; 2 + FRAME_BYTES_MAX],
                };
                for id in 0..2 {
                    out.send(&message(id, 10)).await.expect("to memory");
                }
                let (first, second) = wire.split_at(wire.len() / 2);
                let mut changed = first.to_vec();
                changed[7] ^= 1;
                let bytes = match fault {
                    0 => changed,
                    1 => [first, first].concat(),
                    _ => second.to_vec(),
                };
                let mut receiver = Receiver {
                    from: &bytes[..],
                    state: far_in.state.clone(),
                    number: 0,
                    frame: Vec::new(),
                    plain: vec![0; FRAME_BYTES_MAX],
                };
                if fault == 1 {
                    assert_eq!(receiver.next().await.expect("the first"), message(0, 10));
                }
                let refused = receiver.next().await.expect_err("the fault");
                assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            });
        }
    }

    /// A stranger may send any data.
    #[test]
    fn connections_with_invalid_data_are_closed() {
        run(async {
            for bytes in [
                &b"GET / HTTP/1.1\r\n\r\n"[..],
                &[0, 0],
                &[0, 48],
                &[0xff; 400],
            ] {
                let (mut near, far) = sockets().await;
                near.write_all(bytes).await.expect("sent");
                near.shutdown().await.expect("ended");
                assert!(accept(far, &ClusterKey([7; 32]), NAME).await.is_err());
            }
        });
    }
}
