//! Target `calls`: each request gets one reply, whatever the requests and their order. A refused request changes nothing. After all calls
//! have ended, nothing is left.

use crate::calls::{CallId, EndReason, Settings};
use crate::ng::{Incoming, MESSAGE_BYTES_MAX, Reply, RequestTable};

use super::bench::Bench;

/// Handles an input: messages that are separated by a byte of 0. A message of one byte advances the clock by that many seconds, or restarts
/// the process.
pub fn calls(data: &[u8]) {
    let mut table = RequestTable::new();
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
        handle(&mut table, &mut bench, message);
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

fn handle(table: &mut RequestTable<u8>, bench: &mut Bench, message: &[u8]) {
    let Incoming::Request(request, ticket) = table.handle_message(bench.now_ns, 1, message) else {
        return;
    };
    let before = bench.ports.open();
    let reply = bench.request(&request);
    let is_done = matches!(reply, Reply::Ok(_));
    let bytes = table.finish(ticket, reply);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
    let after = bench.ports.open();
    if !is_done {
        assert_eq!(
            before, after,
            "a request that was refused opened or closed ports"
        );
    }
    // Each message opens ports for at most 16 lines.
    assert!(after.len() <= before.len() + 32, "{} ports", after.len());
    match table.handle_message(bench.now_ns, 1, message) {
        Incoming::Send(again) => assert_eq!(again, bytes, "another reply"),
        other => panic!("{other:?} to a retransmission"),
    }
    assert_eq!(
        bench.ports.open(),
        after,
        "a retransmission changes something"
    );
}

/// The message of one byte that makes the calls continue in another process.
const RESTART: u8 = 255;
/// Limit of streams. It is so low that inputs reach it.
const SESSIONS_MAX: usize = 8;
/// Maximum number of messages. Longer inputs find nothing more.
const MESSAGES_MAX: usize = 64;
