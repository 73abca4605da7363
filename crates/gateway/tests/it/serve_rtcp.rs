//! Where a call's RTCP reports are sent to, and where they are accepted from.

use std::net::UdpSocket;

use crate::common::phones::{Party, Relay, talk};
use serde_json::json;

const PCMU: &str = "m=audio PORT RTP/AVP 0";

/// Returns a receiver report without blocks (RFC 3550, section 6.4.2), and a source description with a canonical name (section 6.5).
fn report(ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 1];
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0x81, 202, 0, 2]);
    packet.extend(ssrc.to_be_bytes());
    packet.extend([1, 1, b'a', 0]);
    packet
}

fn has_report(socket: &UdpSocket) -> bool {
    let mut room = [0; 2048];
    let received = socket.recv(&mut room);
    received.is_ok_and(|len| rtcp_types::Compound::parse(&room[..len]).is_ok())
}

/// "The RTCP attribute is used to document the RTCP port used for a media stream, when that port is not the next higher (odd) port number
/// following the RTP port" (RFC 3605, section 2.1). If the address differs too, the attribute contains it.
#[test]
fn reports_go_to_the_described_address() {
    for rtcp_host in ["127.0.0.1", "127.0.0.2"] {
        let mut relay = Relay::start(&[]);
        let (mut a, mut b) = (Party::new(0, 437.0), Party::new(0, 1013.0));
        let own = UdpSocket::bind((rtcp_host, 0)).expect("a free port");
        own.set_nonblocking(true).expect("non-blocking");
        let port = own.local_addr().expect("bound").port();
        let rtcp = match rtcp_host {
            "127.0.0.1" => format!("{PCMU}\r\na=rtcp:{port}"),
            host => format!("{PCMU}\r\na=rtcp:{port} IN IP4 {host}"),
        };
        let to_b = relay.pass("offer", "1", &json!({}), &a.sdp(&rtcp));
        b.call(&to_b);
        let to_a = relay.pass("answer", "1", &json!({}), &b.sdp(PCMU));
        a.call(&to_a);
        let mut told = [false; 2];
        talk(&mut a, &mut b, |a, b| {
            assert!(!has_report(&a.reports), "to the port after RTP's");
            // B uses the default port, which is the next one.
            for (told, socket) in told.iter_mut().zip([&own, &b.reports]) {
                *told |= has_report(socket);
            }
            told == [true; 2]
        });
        // The relay accepts the party's own reports from that address.
        let mut to = a.to.expect("called");
        to.set_port(to.port() + 1);
        own.send_to(&report(437), to).expect("loopback");
        let mut packets = 0;
        while packets == 0 {
            let query = relay.ask(json!({"command": "query", "call-id": "1"}));
            let totals = &query["totals"]["RTCP"];
            packets = totals["packets"].as_u64().expect("a number");
            let streams = &query["tags"]["a"]["medias"][0]["streams"];
            let refused: Vec<_> = [0, 1]
                .map(|at: usize| &streams[at]["stats"]["errors"])
                .into();
            assert!(
                refused.iter().all(|errors| errors.as_u64() == Some(0)),
                "{streams}"
            );
        }
    }
}
