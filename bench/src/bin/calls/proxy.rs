//! The part of a SIP proxy that controls a relay by the ng protocol.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Sender, Suite};

use crate::network::PARTIES;
use crate::parties::{Parties, Sides, Way};

/// A proxy, which has one socket.
pub(crate) struct Proxy {
    socket: UdpSocket,
    records: bool,
    asked: u32,
    room: Vec<u8>,
}

impl Proxy {
    /// Connects to the ng port of `relay`. Waits until the relay answers.
    pub(crate) fn new(relay: SocketAddr) -> Result<Proxy> {
        let socket = UdpSocket::bind((PARTIES, 0))?;
        socket.connect(relay)?;
        let mut proxy = Proxy {
            socket,
            records: false,
            asked: 0,
            room: vec![0; 65_536],
        };
        proxy.await_ping()?;
        Ok(proxy)
    }

    /// Makes the relay record each call that is created from now on.
    pub(crate) fn record_calls(&mut self) {
        self.records = true;
    }

    pub(crate) fn await_ping(&mut self) -> Result<()> {
        self.socket
            .set_read_timeout(Some(Duration::from_millis(50)))?;
        let begin = Instant::now();
        while begin.elapsed() < LIMIT {
            let pong = self.ask(json!({"command": "ping"}));
            if pong.is_ok_and(|reply| reply["result"] == "pong") {
                self.socket.set_read_timeout(Some(LIMIT))?;
                return Ok(());
            }
        }
        bail!("the relay does not answer");
    }

    fn ask(&mut self, request: Value) -> Result<Value> {
        let number = self.send(&request)?;
        loop {
            let (of, reply) = self.receive()?;
            // This may be a late reply to an earlier request that timed out.
            if of == number {
                return Ok(reply);
            }
        }
    }

    /// Sends a request. Returns its number, which the reply repeats.
    fn send(&mut self, request: &Value) -> Result<u32> {
        self.asked += 1;
        let datagram = format!("{} {request}", self.asked);
        self.socket.send(datagram.as_bytes())?;
        Ok(self.asked)
    }

    fn receive(&mut self) -> Result<(u32, Value)> {
        let len = self.socket.recv(&mut self.room)?;
        let reply = std::str::from_utf8(&self.room[..len])?;
        let (of, reply) = reply.split_once(' ').context("the reply has no cookie")?;
        Ok((of.parse()?, serde_json::from_str(reply)?))
    }

    /// Creates and ends calls, `AT_ONCE` of them at a time. This function never sleeps, so that the relay spends no time on
    /// waking up this program.
    pub(crate) fn flood(&mut self, calls: Range<u32>, parties: &Parties) -> Result<()> {
        self.socket.set_nonblocking(true)?;
        let request = |call, step| match step {
            0 => offer(call, parties, Sides::Passed),
            1 => answer(call, &description(parties.b(call), "RTP/AVP 0", "")),
            _ => delete(call),
        };
        let mut waiting = HashMap::new();
        let mut next = calls;
        for call in next.by_ref().take(AT_ONCE) {
            waiting.insert(self.send(&request(call, 0))?, (call, 0));
        }
        let mut heard = Instant::now();
        while !waiting.is_empty() {
            let (number, reply) = match self.receive() {
                Ok(answered) => answered,
                Err(error) if is_nothing_yet(&error) && heard.elapsed() < LIMIT => continue,
                Err(error) => return Err(error),
            };
            heard = Instant::now();
            let (call, step) = waiting
                .remove(&number)
                .context("no request waits for this reply")?;
            ensure!(
                reply["result"] == "ok",
                "the relay refused step {step} of call {call}: {reply}"
            );
            let then = match step {
                2 => next.next().map(|call| (call, 0)),
                _ => Some((call, step + 1)),
            };
            if let Some((call, step)) = then {
                waiting.insert(self.send(&request(call, step))?, (call, step));
            }
        }
        self.socket.set_nonblocking(false)?;
        Ok(())
    }

    /// Sends a request with an SDP. Returns the SDP for the other side.
    fn pass(&mut self, request: Value) -> Result<String> {
        let reply = self.ask(request)?;
        ensure!(reply["result"] == "ok", "{reply}");
        let sdp = reply["sdp"].as_str().context("the reply has no SDP")?;
        Ok(sdp.to_owned())
    }

    /// Sends an offer of side A. Returns the SDP for side B.
    pub(crate) fn offer(&mut self, call: u32, parties: &Parties, sides: Sides) -> Result<String> {
        self.pass(offer(call, parties, sides)).context("offer")
    }

    /// Creates a call. Returns the destinations of its packets.
    pub(crate) fn call(&mut self, call: u32, parties: &Parties, sides: Sides) -> Result<Way> {
        let to_b = self.offer(call, parties, sides)?;
        let own = MasterKey::from_random(SUITE, &[call as u8; MASTER_KEY_BYTES_MAX]);
        let (media, more) = match sides {
            Sides::Passed => ("RTP/AVP 0", String::new()),
            Sides::Transcoded => ("RTP/AVP 8", String::new()),
            Sides::Srtp => {
                let offered = to_b
                    .lines()
                    .filter_map(|line| line.strip_prefix("a=crypto:"));
                let mut offered = offered.filter_map(|value| Crypto::parse(value).ok());
                let theirs = offered.find(|one| one.key.suite() == SUITE);
                let crypto = Crypto {
                    tag: theirs
                        .context("the relay did not offer the crypto suite")?
                        .tag,
                    key: own.clone(),
                    lifetime_packets: None,
                };
                let value = crypto.to_value();
                ("RTP/SAVP 0", format!("a=crypto:{}\r\n", value.as_str()))
            }
        };
        let sdp = description(parties.b(call), media, &more);
        let to_a = self.pass(answer(call, &sdp)).context("answer")?;
        if self.records {
            let reply = self.ask(request("start recording", call, json!({})))?;
            ensure!(
                reply["result"] == "ok",
                "the relay refused to start a recording: {reply}"
            );
        }
        Ok(Way {
            call,
            to: [port_of(&to_a)?, port_of(&to_b)?],
            payload_types: [0, if sides == Sides::Transcoded { 8 } else { 0 }],
            srtp: (sides == Sides::Srtp).then(|| Sender::new(&own)),
        })
    }

    pub(crate) fn delete(&mut self, call: u32) -> Result<()> {
        let reply = self.ask(delete(call))?;
        ensure!(reply["result"] == "ok", "delete: {reply}");
        Ok(())
    }
}

fn is_nothing_yet(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

fn offer(call: u32, parties: &Parties, sides: Sides) -> Value {
    let mut offer = request(
        "offer",
        call,
        match sides {
            Sides::Passed => json!({}),
            Sides::Transcoded => json!({"codec": {"transcode": ["PCMA"]}}),
            Sides::Srtp => json!({"transport-protocol": "RTP/SAVP"}),
        },
    );
    offer["sdp"] = description(parties.a(call), "RTP/AVP 0", "").into();
    offer
}

fn answer(call: u32, sdp: &str) -> Value {
    request("answer", call, json!({"to-tag": "b", "sdp": sdp}))
}

fn delete(call: u32) -> Value {
    request("delete", call, json!({"delete-delay": 0}))
}

fn request(command: &str, call: u32, keys: Value) -> Value {
    let mut request = json!({"command": command, "call-id": call.to_string(), "from-tag": "a"});
    if let (Some(all), Value::Object(keys)) = (request.as_object_mut(), keys) {
        all.extend(keys);
    }
    request
}

fn description(port: u16, media: &str, more: &str) -> String {
    let (protocol, formats) = media.split_once(' ').unwrap_or((media, ""));
    format!(
        "v=0\r\no=- 1 1 IN IP4 {PARTIES}\r\ns=-\r\nc=IN IP4 {PARTIES}\r\nt=0 0\r\nm=audio {port} {protocol} {formats}\r\n{more}"
    )
}

fn port_of(sdp: &str) -> Result<u16> {
    let media = sdp.lines().find(|line| line.starts_with("m=audio"));
    let port = media.and_then(|media| media.split(' ').nth(1));
    port.and_then(|port| port.parse().ok())
        .context("the SDP has no audio port")
}

const SUITE: Suite = Suite::AesCm128HmacSha1_80;
/// Maximum number of unfinished calls in a flood.
const AT_ONCE: usize = 32;
/// Maximum wait for a reply. Only a measurement that hangs waits this long.
const LIMIT: Duration = Duration::from_secs(10);
