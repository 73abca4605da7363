//! The SIP proxy that asks a relay, by ng.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Sender, Suite};

use crate::network::PARTIES;
use crate::parties::{Parties, Sides, Way};

/// A worker of a proxy: one request at a time.
pub(crate) struct Proxy {
    socket: UdpSocket,
    records: bool,
    asked: u32,
}

impl Proxy {
    /// `relay`: where it takes ng. Waits until it answers.
    pub(crate) fn new(relay: SocketAddr) -> Result<Proxy> {
        let socket = UdpSocket::bind((PARTIES, 0))?;
        socket.connect(relay)?;
        let mut proxy = Proxy {
            socket,
            records: false,
            asked: 0,
        };
        proxy.await_ping()?;
        Ok(proxy)
    }

    /// Calls are recorded from now on.
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
        self.asked += 1;
        // No other worker's: rtpengine takes the same cookie for the same request, whoever sends it.
        let port = self.socket.local_addr()?.port();
        let cookie = format!("{port}c{}", self.asked);
        self.socket.send(format!("{cookie} {request}").as_bytes())?;
        let mut room = [0; 65_536];
        loop {
            let len = self.socket.recv(&mut room)?;
            let reply = std::str::from_utf8(&room[..len])?;
            let (of, reply) = reply.split_once(' ').context("a reply without a cookie")?;
            // An earlier one may have been late.
            if of == cookie {
                return Ok(serde_json::from_str(reply)?);
            }
        }
    }

    fn pass(&mut self, command: &str, call: u32, keys: Value, sdp: &str) -> Result<String> {
        let mut request = json!({
            "command": command, "call-id": call.to_string(), "from-tag": "a", "sdp": sdp,
        });
        let room = request.as_object_mut().context("an object")?;
        room.extend(keys.as_object().cloned().unwrap_or_default());
        let reply = self.ask(request)?;
        ensure!(reply["result"] == "ok", "{command}: {reply}");
        let sdp = reply["sdp"].as_str().context("a reply without an SDP")?;
        Ok(sdp.to_owned())
    }

    /// What is told to B.
    pub(crate) fn offer(&mut self, call: u32, parties: &Parties, sides: Sides) -> Result<String> {
        let keys = match sides {
            Sides::Passed => json!({}),
            Sides::Transcoded => json!({"codec": {"transcode": ["PCMA"]}}),
            Sides::Srtp => json!({"transport-protocol": "RTP/SAVP"}),
        };
        let sdp = description(parties.a(call), "RTP/AVP 0", "");
        self.pass("offer", call, keys, &sdp)
    }

    /// Makes a call: where its packets go.
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
                    tag: theirs.context("the suite is not offered")?.tag,
                    key: own.clone(),
                    lifetime_packets: None,
                };
                let value = crypto.to_value();
                ("RTP/SAVP 0", format!("a=crypto:{}\r\n", value.as_str()))
            }
        };
        let answer = description(parties.b(call), media, &more);
        let to_a = self.pass("answer", call, json!({"to-tag": "b"}), &answer)?;
        if self.records {
            let request = json!({"command": "start recording", "call-id": call.to_string()});
            let reply = self.ask(request)?;
            ensure!(reply["result"] == "ok", "start recording: {reply}");
        }
        Ok(Way {
            call,
            to: [port_of(&to_a)?, port_of(&to_b)?],
            payload_types: [0, if sides == Sides::Transcoded { 8 } else { 0 }],
            srtp: (sides == Sides::Srtp).then(|| Sender::new(&own)),
        })
    }

    pub(crate) fn delete(&mut self, call: u32) -> Result<()> {
        let request = json!({
            "command": "delete", "call-id": call.to_string(), "from-tag": "a", "delete-delay": 0,
        });
        let reply = self.ask(request)?;
        ensure!(reply["result"] == "ok", "delete: {reply}");
        Ok(())
    }
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
        .context("an SDP without a port")
}

const SUITE: Suite = Suite::AesCm128HmacSha1_80;
/// Only ends a measurement that hangs.
const LIMIT: Duration = Duration::from_secs(10);
