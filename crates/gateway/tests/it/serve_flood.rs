//! Requests arrive faster than they can be carried out, and running calls are not affected.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::phones::{Party, Relay, hear_each_other, talk};
use crate::common::socket;
use serde_json::json;

const PCMU: &str = "m=audio PORT RTP/AVP 0";
/// Maximum number of offers. One sender sends them as fast as it can.
const OFFERS_MAX: u32 = 200_000;

/// The parties do not notice the flood: each packet arrives in order. The numbers count packets (RFC 3550, section 5.1).
#[test]
fn flood_of_offers_does_not_disturb_a_running_call() {
    let mut relay = Relay::start(&["--max-sessions", "100"]);
    let (mut a, mut b) = (Party::new(0, 437.0), Party::new(0, 1013.0));
    let none = json!({});
    let to_b = relay.pass("offer", "1", &none, &a.sdp(PCMU));
    let to_a = relay.pass("answer", "1", &none, &b.sdp(PCMU));
    a.call(&to_a);
    b.call(&to_b);
    hear_each_other(&mut a, &mut b);
    let (ng, sdp) = (relay.ng(), a.sdp(PCMU));
    let is_over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let flooder = socket();
            flooder.set_nonblocking(true).expect("non-blocking");
            let mut number = 0;
            while number < OFFERS_MAX && !is_over.load(Ordering::Relaxed) {
                let offer = json!({"command": "offer", "call-id": format!("f{number}"), "from-tag": "x", "sdp": sdp});
                // Sending may fail, because the socket of an overloaded relay may be full.
                let _ = flooder.send_to(format!("{number} {offer}").as_bytes(), ng);
                let _ = flooder.recv(&mut [0; 4096]);
                number += 1;
            }
            number
        });
        for party in [&mut a, &mut b] {
            party.seen.clear();
            party.heard.clear();
        }
        talk(&mut a, &mut b, |a, b| {
            a.heard.len().min(b.heard.len()) > 24_000
        });
        is_over.store(true, Ordering::Relaxed);
        flood.join().expect("no panic")
    });
    assert!(sent > 2000, "{sent} offers are no flood");
    for (party, other) in [(&a, &b), (&b, &a)] {
        let level = party.level(other.hz);
        assert!((level - 1.0).abs() < 0.03, "{level}");
        let steps = party.seen.windows(2);
        let is_gapless =
            |pair: &[crate::common::phones::Seen]| pair[1].number == pair[0].number.wrapping_add(1);
        assert!(steps.clone().all(is_gapless), "after {sent} offers");
    }
    // No more calls than allowed were accepted, and the proxy still gets replies.
    let list = relay.ask(json!({"command": "list", "limit": 4096}));
    assert_eq!(list["calls"].as_array().map(Vec::len), Some(100), "{list}");
}
