//! A relay with HTTP, and requests as bytes on a socket (RFC 9112).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use serde_json::{Value, json};

use super::{LIMIT, Running, socket, threadbare};

/// A relay with HTTP.
pub struct Relay {
    pub running: Running,
    pub http: SocketAddr,
    pub ng: SocketAddr,
    pub token: Option<String>,
    pub cookies: u32,
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Checks that the response is a problem with this status (RFC 9457, section 3.1). Returns its JSON.
    pub fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let kind = &self.headers["content-type"];
        assert_eq!(kind, "application/problem+json", "{self:?}");
        let problem: Value = serde_json::from_slice(&self.body).expect("JSON");
        assert_eq!(problem["status"], status, "{problem}");
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "{problem}");
        }
        problem
    }
}

/// Sends bytes, and reads the response until the other side closes the connection.
pub fn exchange(http: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(http).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("valid");
    stream.write_all(request).expect("sent");
    read_answer(&mut stream)
}

pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer in time");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("a header");
    let head = std::str::from_utf8(&bytes[..end]).expect("ASCII");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: BTreeMap<String, String> = lines.map(header).collect();
    let body = bytes[end + 4..].to_vec();
    if let Some(length) = headers.get("content-length") {
        assert_eq!(length.parse(), Ok(body.len()), "{head}");
    }
    let status = status.and_then(|text| text.parse().ok());
    Answer {
        status: status.expect("a status"),
        headers,
        body,
    }
}

impl Relay {
    pub fn start(arguments: &[&str]) -> Relay {
        let mut command = threadbare();
        command.args(["serve", "--ng", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.args(["--ports", "20000-59999", "--delete-delay", "0"]);
        command.args(arguments);
        Relay::of(Running::spawn(command))
    }

    /// Wraps a relay with HTTP that was started in another way.
    pub fn of(mut running: Running) -> Relay {
        let serving = running.wait_for("serving");
        let address = |name: &str| serving[name].as_str().and_then(|text| text.parse().ok());
        Relay {
            http: address("http").expect("an address"),
            ng: address("ng").expect("an address"),
            running,
            token: None,
            cookies: 0,
        }
    }

    pub fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let host = self.http;
        let token = self.token.as_ref();
        let token = token.map_or(String::new(), |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{token}{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        exchange(self.http, &[head.as_bytes(), body].concat())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", b"")
    }

    pub fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let kind = "Content-Type: application/json\r\n";
        self.request("POST", path, kind, body.to_string().as_bytes())
    }

    /// Returns the reply to a request of the ng protocol.
    pub fn ask(&mut self, request: &Value) -> Value {
        self.cookies += 1;
        let cookie = format!("c{}", self.cookies);
        let answer = self.request("POST", "/ng", "", format!("{cookie} {request}").as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (same, reply) = answer.text().split_once(' ').expect("a cookie");
        assert_eq!(same, cookie);
        serde_json::from_str(reply).expect("JSON")
    }

    pub fn offer(&mut self, id: &str, party: &UdpSocket) -> Value {
        self.ask(&json!({"command": "offer", "call-id": id, "from-tag": "a", "sdp": sdp(party)}))
    }

    /// Sets up a call. Returns the addresses to which the parties send.
    pub fn call(&mut self, id: &str, [a, b]: &[UdpSocket; 2]) -> [SocketAddr; 2] {
        let to_b = self.offer(id, a);
        let answer = json!({"command": "answer", "call-id": id, "from-tag": "a", "to-tag": "b", "sdp": sdp(b)});
        let to_a = self.ask(&answer);
        [to_a, to_b].map(|reply| {
            assert_eq!(reply["result"], "ok", "{reply}");
            port_of(reply["sdp"].as_str().expect("an SDP"))
        })
    }
}

pub fn parties() -> [UdpSocket; 2] {
    [socket(), socket()]
}

pub fn sdp(party: &UdpSocket) -> String {
    let port = party.local_addr().expect("bound").port();
    format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n"
    )
}

pub fn port_of(sdp: &str) -> SocketAddr {
    let media = sdp.split("m=audio ").nth(1).expect("audio");
    let port = media.split(' ').next().and_then(|port| port.parse().ok());
    SocketAddr::from(([127, 0, 0, 1], port.expect("a port")))
}

/// Whether the port is closed. If so, a connected socket gets the kernel's ICMP error.
pub fn is_closed(address: SocketAddr) -> bool {
    let probe = socket();
    probe.connect(address).expect("loopback");
    let _ = probe.send(b"?");
    let closed = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    probe.send(b"?").is_err_and(closed)
}

/// Waits for the next message to a webhook, and returns it.
pub fn next_post(hook: &TcpListener) -> Value {
    let (stream, _) = hook.accept().expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("valid");
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    reader.into_inner().write_all(answer).expect("answered");
    serde_json::from_slice(&body).expect("JSON")
}
