//! An offer changes a running stream, which continues at the far end without a gap.

use crate::common::phones::{Party, Relay, Seen, next_tos, talk};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

const PCMU: &str = "m=audio PORT RTP/AVP 0";

/// Sends an offer by A and the answer by B.
fn agree(relay: &mut Relay, more: &Value, a: &mut Party, b: &Party, answer: &str) {
    relay.pass("offer", "1", more, &a.sdp(PCMU));
    // A negative value keeps the TOS: "If a negative value is used, the previously used TOS value is left unchanged."
    let to_a = relay.pass("answer", "1", &json!({"TOS": -1}), &b.sdp(answer));
    a.call(&to_a);
}

fn parse(bytes: &[u8], seen: &mut Vec<Seen>) -> usize {
    let packet = rtp_types::RtpPacket::parse(bytes).expect("RTP");
    seen.push(Seen {
        ssrc: packet.ssrc(),
        number: packet.sequence_number(),
        time: packet.timestamp(),
    });
    packet.payload().len()
}

/// Asserts that the receiver sees one stream (RFC 3550, section 5.1): "The sequence number increments by one for each RTP data
/// packet sent".
fn assert_one_stream(seen: &[Seen], units: u32) {
    for pair in seen.windows(2) {
        assert_eq!(pair[1].ssrc, pair[0].ssrc);
        assert_eq!(pair[1].number, pair[0].number.wrapping_add(1));
        assert_eq!(pair[1].time, pair[0].time.wrapping_add(units));
    }
}

/// The value is that of the field in the IP header (RFC 2474). 184 is "expedited forwarding" (RFC 3246), and 136 is AF41 (RFC 2597).
#[test]
fn the_type_of_service_of_a_running_stream_changes() {
    let mut relay = Relay::start(&[]);
    let (mut a, b) = (Party::new(0, 437.0), Party::new(0, 1013.0));
    setsockopt(&b.socket, sockopt::IpRecvTos, &true).expect("Linux");
    let mut seen: Vec<Seen> = Vec::new();
    for (tos, expected) in [
        (json!({"TOS": 184}), 184),
        (json!({"TOS": 136}), 136),
        (json!({"TOS": -1}), 136),
        // Without the key, the TOS is the default: "If this key is not present [...], then the TOS value is reverted to the default".
        (json!({}), 0),
    ] {
        agree(&mut relay, &tos, &mut a, &b, PCMU);
        let mut in_turn = 0;
        talk(&mut a, &mut Party::new(0, 1.0), |_, _| {
            while let Some((tos, bytes)) = next_tos(&b) {
                parse(&bytes, &mut seen);
                in_turn = if tos == expected { in_turn + 1 } else { 0 };
            }
            in_turn >= 10
        });
    }
    assert_one_stream(&seen, 160);
}

/// Returns the bits per second of the packets of one second, after the rate has settled.
fn opus_bps(a: &mut Party, b: &Party, seen: &mut Vec<Seen>) -> usize {
    let mut bytes = Vec::new();
    let mut room = [0; 2048];
    talk(a, &mut Party::new(0, 1.0), |_, _| {
        while let Ok(len) = b.socket.recv(&mut room) {
            bytes.push(parse(&room[..len], seen));
        }
        bytes.len() >= 75
    });
    bytes[25..75].iter().sum::<usize>() * 8
}

/// The encoder of Opus follows the requested rate, and any decoder accepts each packet (RFC 7587, section 3.1).
#[test]
fn the_bit_rate_of_a_running_stream_changes() {
    let mut relay = Relay::start(&[]);
    let (mut a, b) = (Party::new(0, 437.0), Party::new(96, 1013.0));
    let mut seen: Vec<Seen> = Vec::new();
    for (set, most, expected_bps) in [
        (Some(64_000), None, 64_000),
        (Some(12_000), None, 12_000),
        (Some(32_000), None, 32_000),
        // The party's own limit is lower. `maxaveragebitrate` "Specifies the maximum average receive bitrate of a session" (section 6.1).
        (Some(64_000), Some(16_000), 16_000),
        (None, Some(8_000), 8_000),
    ] {
        let set = set.map(|bps: u32| format!("opus/48000/2/{bps}"));
        let set: Vec<String> = set.into_iter().collect();
        let codec = json!({"codec": {"transcode": ["opus/48000/2"], "set": set}});
        let most = most.map(|bps: u32| format!("\r\na=fmtp:96 maxaveragebitrate={bps}"));
        let answer = format!(
            "m=audio PORT RTP/AVP 96\r\na=rtpmap:96 opus/48000/2{}",
            most.unwrap_or_default()
        );
        agree(&mut relay, &codec, &mut a, &b, &answer);
        let bps = opus_bps(&mut a, &b, &mut seen);
        let range = expected_bps * 7 / 10..expected_bps * 12 / 10;
        assert!(range.contains(&bps), "{bps} bit/s for {expected_bps}");
    }
    assert_one_stream(&seen, 960);
}
