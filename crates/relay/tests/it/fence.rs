//! If a node must no longer send, its calls send nothing, not even the rest of a batch.

use crate::common::{Forwarder, engine, next, peer, range, until};
use threadbare_relay::{Fence, PortId, PortUse};
use threadbare_runtime::clock_now_ns;

#[test]
fn nothing_is_sent_while_the_fence_is_not_open() {
    // A slice lasts an hour, so only commands cause sending.
    let engine = engine(3_600_000, -1);
    let listener = peer();
    let to = listener.local_addr().unwrap();
    let fence = Fence::new(clock_now_ns() + 60_000_000_000);
    let legs = vec![range(PortUse::Mux).lease().unwrap().fenced(fence.clone())];
    let call = engine.create("fenced", legs, Forwarder::default()).unwrap();
    let send = |bytes: &'static [u8], fence: Option<(Fence, u64)>| {
        let sent = call.with(move |call, _| {
            call.send(PortId::rtp(0), to, bytes);
            // This happens within a batch: after its first datagram, and before the staged ones leave.
            if let Some((fence, until_ns)) = fence {
                match until_ns {
                    0 => fence.close(),
                    _ => fence.extend(until_ns),
                }
            }
        });
        sent.wait().unwrap();
    };
    send(b"open", None);
    assert_eq!(next(&listener).0, b"open");
    send(b"over", Some((fence.clone(), clock_now_ns())));
    // The datagram leaves at the end of the pass, which may be after the next command.
    until("it is stopped", || engine.stats().fenced == 1);
    send(b"renewed", Some((fence.clone(), u64::MAX)));
    assert_eq!(next(&listener).0, b"renewed");
    send(b"closed", Some((fence.clone(), 0)));
    until("it is stopped", || engine.stats().fenced == 2);
    send(b"never", Some((fence, u64::MAX)));
    // This call is on the same thread, and has no fence.
    let others = vec![range(PortUse::Mux).lease().unwrap()];
    let other = engine.create("free", others, Forwarder::default()).unwrap();
    other
        .command(move |call, _| call.send(PortId::rtp(0), to, b"free"))
        .unwrap();
    assert_eq!(next(&listener).0, b"free");
    // The datagrams of a batch are counted after its last one.
    let counted = || (engine.stats().fenced, engine.stats().packets_sent);
    until("all are counted", || counted() == (3, 3));
}
