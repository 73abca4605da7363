//! WebSocket clients that record the numbers of the messages they get.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::in_time;

pub type Socket = WebSocketStream<TcpStream>;

/// Connects a client, which reads nothing yet.
pub async fn connect(address: SocketAddr, id: &str) -> Socket {
    try_connect(address, id).await.unwrap()
}

pub async fn try_connect(address: SocketAddr, id: &str) -> Result<Socket, Error> {
    let socket = TcpSocket::new_v4().unwrap();
    // With a small receive buffer, the program notices after a few messages that this client does not read.
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let url = format!("ws://{address}/clients/{id}");
    let (socket, _) = tokio_tungstenite::client_async(url, stream).await?;
    Ok(socket)
}

/// Ends the connection with a reset. The client sends neither a close frame nor a FIN.
pub fn reset(socket: Socket) {
    let stream = socket.get_ref();
    SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// A client that reads all messages.
pub struct Client {
    numbers: watch::Receiver<Vec<u64>>,
    task: JoinHandle<Option<u16>>,
}

impl Client {
    pub async fn start(address: SocketAddr, id: &str) -> Client {
        Client::read(connect(address, id).await)
    }

    pub fn read(mut socket: Socket) -> Client {
        let (sender, numbers) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            let mut code = None;
            while let Some(message) = socket.next().await {
                match message {
                    Ok(Message::Text(text)) => sender.send_modify(|all| all.push(number(&text))),
                    Ok(Message::Close(close)) => code = close.map(|close| close.code.into()),
                    Ok(Message::Ping(_)) => {}
                    Ok(other) => panic!("unexpected message: {other:?}"),
                    Err(error) => panic!("the connection is broken: {error}"),
                }
            }
            code
        });
        Client { numbers, task }
    }

    /// Waits until `is_so` returns `true` for the numbers so far. Returns these numbers.
    pub async fn until(&mut self, wanted: &str, is_so: impl Fn(&[u64]) -> bool) -> Vec<u64> {
        let numbers = self.numbers.wait_for(|numbers| is_so(numbers));
        let numbers = in_time(wanted, numbers).await;
        numbers.expect("the client is connected").clone()
    }

    pub async fn until_number(&mut self, number: u64) -> Vec<u64> {
        let has = |numbers: &[u64]| numbers.contains(&number);
        self.until(&format!("number {number}"), has).await
    }

    /// Returns the numbers that have come so far.
    pub fn numbers(&self) -> Vec<u64> {
        self.numbers.borrow().clone()
    }

    pub fn is_connected(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits for the end of the connection. Returns all numbers, and the code of the close frame.
    pub async fn end(self) -> (Vec<u64>, Option<u16>) {
        let code = in_time("the close", self.task).await.unwrap();
        (self.numbers.borrow().clone(), code)
    }
}

/// Returns the text of a message with this number and at least `bytes` bytes.
pub fn text(number: u64, bytes: usize) -> String {
    format!("{number} {}", "x".repeat(bytes))
}

fn number(text: &str) -> u64 {
    let (number, _) = text.split_once(' ').expect("a text as `text` makes it");
    number.parse().unwrap()
}
