//! Target `saved`: whatever bytes a store returns, a call is either restored as it was saved, or refused without a change. A restored call
//! can be queried, saved again, and ended.

use crate::calls::{EndReason, SavedError};
use crate::ng::Reply;

use super::bench::Bench;

/// Handles an input, which is a saved call.
pub fn saved(data: &[u8]) {
    let mut bench = Bench::default();
    let id = match bench.calls.restore(bench.now_ns, data, &mut bench.ports) {
        Ok(id) => id,
        Err(error) => {
            let (open, next) = (bench.ports.open(), bench.calls.poll_action());
            assert!(
                open.is_empty() && next.is_none(),
                "{error}: something is left"
            );
            assert!(bench.calls.is_empty(), "{error}: the call is there");
            return;
        }
    };
    bench.act();
    let again = bench.calls.restore(bench.now_ns, data, &mut bench.ports);
    assert_eq!(again, Err(SavedError::Known(id.clone())));
    if let Ok(name) = std::str::from_utf8(&id.0) {
        let of_call = |command| [("command", command), ("call-id", name)];
        let reply = bench.ask(&of_call("query"));
        let is_name = !name.is_empty() && name.len() <= 1024;
        assert!(matches!(reply, Reply::Ok(_)) || !is_name, "{reply:?}");
        bench.ask(&of_call("silence media"));
    }
    bench.restart(0);
    bench.advance(LONG_NS);
    bench.calls.end(bench.now_ns, &id, EndReason::Operator);
    bench.act();
    assert!(
        bench.streams.is_empty() && bench.ports.open().is_empty() && bench.calls.is_empty(),
        "something is left"
    );
    assert_eq!(bench.calls.next_timeout(), None, "a timer is left");
}

/// A time longer than all default time-outs together.
const LONG_NS: u64 = 20_000_000_000_000;
