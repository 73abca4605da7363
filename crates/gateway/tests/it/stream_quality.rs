//! The mean opinion score of streams, in HTTP and in the metrics.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::http::Relay;
use crate::common::{LIMIT, Running, free_port, rtp, socket};

/// ITU-T G.107 with default values: R is 93.2 without losses and with less than 100 ms of delay, which is a score of 4.41. G.113,
/// appendix I: with 10 % of independent losses, concealed G.711 has R of 93.2 - 95 * 10 / (10 + 25.1) = 66.1, a score of 3.4.
#[test]
fn lost_packets_lower_the_score_of_a_stream() {
    let streams = ["clean", "lossy", "silent"].map(|name| {
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        (name, listen, socket(), socket())
    });
    let mut config = "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n\
                      [interfaces.default]\naddress = \"127.0.0.1\"\nports = \"20000-59999\"\n"
        .to_owned();
    for (name, listen, _, to) in &streams {
        let destination = to.local_addr().expect("bound");
        config += &format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
             codec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
        );
    }
    let (running, _folder) = Running::start(&config, &[]);
    let relay = Relay::of(running);
    let begin = Instant::now();
    for number in 1..u16::MAX {
        let [(_, clean, from, _), (_, lossy, other, _), _] = &streams;
        let packet = rtp(0, number, &[0x55; 160]);
        from.send_to(&packet, clean).expect("sent");
        // Every tenth packet is lost.
        if number % 10 != 0 {
            other.send_to(&packet, lossy).expect("sent");
        }
        if number % 50 == 0 {
            let shown = relay.get_json("/v1/streams");
            let mos = |at: usize| shown["streams"][at]["mos"].as_f64();
            if let (Some(clean), Some(lossy)) = (mos(0), mos(1)) {
                assert!((clean - 4.41).abs() < 0.1, "{shown}");
                assert!((lossy - 3.4).abs() < 0.3, "{shown}");
                assert_eq!(shown["streams"][2].get("mos"), None::<&Value>, "{shown}");
                break;
            }
        }
        assert!(begin.elapsed() < LIMIT, "no scores");
        let due = begin + Duration::from_millis(20) * u32::from(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let metrics = relay.get("/metrics");
    for (name, has_score) in [("clean", true), ("lossy", true), ("silent", false)] {
        let line = format!("threadbare_stream_mos{{stream=\"{name}\"}}");
        assert_eq!(metrics.text().contains(&line), has_score, "{name}");
    }
}
