//! Calls between parties that send packets of a single code.

use std::net::{SocketAddr, UdpSocket};

use serde_json::{Value, json};

use super::http::{Answer, Relay, parties};
use super::rtp;

/// A party, with its packets and their destination.
pub struct Party {
    pub socket: UdpSocket,
    pub to: SocketAddr,
    pub payload_type: u8,
    pub number: u16,
}

impl Party {
    pub fn new(socket: UdpSocket, made: &Value) -> Party {
        let to = made["local_address"].as_str().expect("an address");
        let payload_type = made["payload_type"].as_u64().expect("a number");
        Party {
            socket,
            to: to.parse().expect("an address"),
            payload_type: payload_type as u8,
            number: 0,
        }
    }

    /// Sends a packet whose payload is one code, repeated.
    pub fn say(&mut self, code: u8) {
        let packet = rtp(self.payload_type, self.number, &[code; 160]);
        self.number += 1;
        self.socket.send_to(&packet, self.to).expect("sent");
    }
}

pub fn side(socket: &UdpSocket, codec: &str) -> Value {
    json!({"address": socket.local_addr().expect("bound").to_string(), "codec": codec})
}

pub fn made(answer: &Answer) -> Value {
    assert_eq!(answer.status, 201, "{}", answer.text());
    let made = answer.json();
    assert_eq!(&made["path"], answer.headers["location"].as_str());
    made
}

/// Sets up a new call. Returns the reply and the two parties.
pub fn call(relay: &Relay, codecs: [&str; 2]) -> (Value, [Party; 2]) {
    let [a, b] = parties();
    let sides = [side(&a, codecs[0]), side(&b, codecs[1])];
    let made = made(&relay.post("/v1/calls", &json!({"sides": sides})));
    let parties = [
        Party::new(a, &made["sides"][0]),
        Party::new(b, &made["sides"][1]),
    ];
    (made, parties)
}

pub fn act(relay: &Relay, call: &Value, action: &str, body: &Value) -> Answer {
    let path = call["path"].as_str().expect("a path");
    relay.post(&format!("{path}/{action}"), body)
}

pub fn done(answer: &Answer) {
    assert_eq!(answer.status, 204, "{}", answer.text());
}
