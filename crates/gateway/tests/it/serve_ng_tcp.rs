//! The ng protocol by TCP. A client sends its messages one after another, and the network may divide them anywhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::common::{LIMIT, Running, threadbare};

const OFFER: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";

fn start(arguments: &[&str]) -> (Running, SocketAddr) {
    let mut command = threadbare();
    command.args(["serve", "--ng", "127.0.0.1:0", "--ng-tcp", "127.0.0.1:0"]);
    command.args(["--ports", "20000-59999"]).args(arguments);
    let mut running = Running::spawn(command);
    let serving = running.wait_for("serving");
    let tcp = serving["ng_tcp"].as_str().expect("an address");
    let tcp = tcp.parse().expect("an address");
    (running, tcp)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("loopback");
    stream.set_read_timeout(Some(LIMIT)).expect("a time-out");
    stream.set_nodelay(true).expect("small writes");
    stream
}

/// Asserts that exactly these bytes come next.
fn expect(stream: &mut TcpStream, expected: &str) {
    let mut heard = vec![0; expected.len()];
    stream.read_exact(&mut heard).expect("a reply in time");
    assert_eq!(String::from_utf8_lossy(&heard), expected);
}

/// Returns all bytes up to the relay's end of the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        // TCP reports a reset if the relay closes without reading the bytes after a faulty message.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        result => drop(result.expect("closed in time")),
    }
    String::from_utf8_lossy(&heard).into_owned()
}

fn offer(cookie: &str, call: &str) -> String {
    let sdp = serde_json::Value::from(OFFER);
    format!(
        "{cookie} {{\"command\":\"offer\",\"call-id\":\"{call}\",\"from-tag\":\"a\",\"sdp\":{sdp}}}"
    )
}

#[test]
fn requests_on_a_connection_are_answered_in_their_order_and_encoding() {
    let (_running, address) = start(&[]);
    let mut stream = connect(address);
    // Several messages come at once, with and without white space between them.
    stream
        .write_all(b"1 d7:command4:pinge2 {\"command\": \"ping\"}\r\n3 d7:command4:pinge")
        .expect("sent");
    expect(
        &mut stream,
        "1 d6:result4:ponge2 {\"result\":\"pong\"}3 d6:result4:ponge",
    );
    // A message comes byte by byte.
    for byte in b"4 d7:command4:pinge" {
        stream.write_all(&[*byte]).expect("sent");
    }
    expect(&mut stream, "4 d6:result4:ponge");
    // If the client closes its side, the relay still sends the last reply, and then closes the connection.
    stream.write_all(b"5 d7:command4:pinge").expect("sent");
    stream.shutdown(Shutdown::Write).expect("half closed");
    assert_eq!(rest(&mut stream), "5 d6:result4:ponge");
}

#[test]
fn repeated_request_on_another_connection_gets_the_first_reply() {
    let (_running, address) = start(&[]);
    let ask = || {
        let mut stream = connect(address);
        stream
            .write_all(offer("7", "one").as_bytes())
            .expect("sent");
        stream.shutdown(Shutdown::Write).expect("half closed");
        rest(&mut stream)
    };
    let reply = ask();
    let sdp = serde_json::from_str::<serde_json::Value>(&reply[2..]).expect("JSON");
    assert_eq!(sdp["result"], "ok", "{reply}");
    assert!(sdp["sdp"].as_str().expect("an SDP").contains("m=audio"));
    assert_eq!(reply, ask());
}

#[test]
fn garbage_and_incomplete_requests_do_not_affect_others() {
    let (_running, address) = start(&[]);
    let mut other = connect(address);
    let mut half = connect(address);
    half.write_all(b"1 d7:comm").expect("sent");
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n"[..],
        b"1 d7:command4:pingx",
        b"1 d99999999:",
        &[b'a'; 200],
        // This is a reply, and not a request.
        b"1 d6:result4:ponge",
    ] {
        let mut stream = connect(address);
        stream.write_all(b"0 d7:command4:pinge").expect("sent");
        expect(&mut stream, "0 d6:result4:ponge");
        stream.write_all(garbage).expect("sent");
        assert_eq!(rest(&mut stream), "", "{garbage:?}");
    }
    other.write_all(b"2 d7:command4:pinge").expect("sent");
    expect(&mut other, "2 d6:result4:ponge");
    half.write_all(b"and4:pinge").expect("sent");
    expect(&mut half, "1 d6:result4:ponge");
}

#[test]
fn forbidden_client_is_ignored() {
    let (mut running, address) = start(&["--allow", "192.0.2.0/24"]);
    let mut stream = connect(address);
    // The relay may have closed already.
    let _ = stream.write_all(b"1 d7:command4:pinge");
    assert_eq!(rest(&mut stream), "");
    running.wait_for("dropped a request from an address that is not allowed (--allow)");
}
