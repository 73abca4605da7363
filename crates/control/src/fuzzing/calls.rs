//! Target `calls`: whatever is asked, in whatever order, each request gets one reply; what is refused changes nothing; nothing is left when
//! all calls have ended.

use crate::calls::{CallId, EndReason, Settings};
use crate::ng::{Desk, Incoming, MESSAGE_BYTES_MAX, Reply};

use super::bench::Bench;

/// An input is messages with a byte of 0 between them. A message of one byte lets so many seconds pass, or has another process go on.
pub fn calls(data: &[u8]) {
    let mut desk = Desk::new();
    let mut bench = Bench::new(Settings {
        sessions_max: SESSIONS_MAX,
        ..Settings::default()
    });
    for message in data.split(|byte| *byte == 0).take(MESSAGES_MAX) {
        if let [RESTART] = message {
            bench.restart(0);
            continue;
        }
        if let [seconds] = message {
            bench.advance(u64::from(*seconds) * 1_000_000_000);
            continue;
        }
        handle(&mut desk, &mut bench, message);
    }
    let ids: Vec<CallId> = bench.calls.ids(None).cloned().collect();
    assert!(ids.len() <= SESSIONS_MAX, "{} calls", ids.len());
    for id in ids {
        assert!(bench.calls.end(bench.now_ns, &id, EndReason::Operator));
    }
    bench.act();
    assert!(
        bench.streams.is_empty() && bench.ports.open().is_empty(),
        "something is left"
    );
    assert_eq!(bench.calls.next_timeout(), None, "a timer is left");
}

fn handle(desk: &mut Desk<u8>, bench: &mut Bench, message: &[u8]) {
    let Incoming::Request(request, ticket) = desk.handle_message(bench.now_ns, 1, message) else {
        return;
    };
    let before = bench.ports.open();
    let reply = bench.request(&request);
    let is_done = matches!(reply, Reply::Ok(_));
    let bytes = desk.finish(ticket, reply);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
    let after = bench.ports.open();
    if !is_done {
        assert_eq!(
            before, after,
            "a request that was refused opened or closed ports"
        );
    }
    // Each message asks for ports of 16 lines at most.
    assert!(after.len() <= before.len() + 32, "{} ports", after.len());
    match desk.handle_message(bench.now_ns, 1, message) {
        Incoming::Send(again) => assert_eq!(again, bytes, "another reply"),
        other => panic!("{other:?} to a retransmission"),
    }
    assert_eq!(
        bench.ports.open(),
        after,
        "a retransmission changes something"
    );
}

/// A message of one byte.
const RESTART: u8 = 255;
/// So that the limit is met.
const SESSIONS_MAX: usize = 8;
/// Longer inputs find nothing that shorter ones do not.
const MESSAGES_MAX: usize = 64;
