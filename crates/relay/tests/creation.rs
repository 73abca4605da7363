//! How long the creation of many calls takes. Measured, not asserted: run with `--release --ignored --nocapture`.

mod common;

use std::time::Instant;

use common::{Forwarder, engine, range, two_legs};
use threadbare_relay::{Engine, PortUse};

#[test]
#[ignore = "a measurement"]
fn three_thousand_calls_of_two_legs() {
    // Four sockets a call with pairs of ports, two with rtcp-mux.
    for (port_use, calls) in [(PortUse::Pair, 3000), (PortUse::Mux, 3000)] {
        let engine: Engine<Forwarder> = engine(20, -1);
        let ranges = range(port_use);
        let begun = Instant::now();
        let calls: Vec<_> = (0..calls)
            .map(|_| {
                let legs = two_legs(&ranges);
                engine.create("one of many", legs, Forwarder::default())
            })
            .collect::<Result<_, _>>()
            .unwrap();
        let created = begun.elapsed();
        calls[calls.len() - 1].stats().wait().unwrap();
        let ready = begun.elapsed();
        let each = ready / calls.len() as u32;
        println!("{port_use:?}: created in {created:?}, ready in {ready:?}, {each:?} a call");
        let begun = Instant::now();
        drop(calls);
        common::until("all are gone", || engine.calls() == 0);
        println!("{port_use:?}: removed in {:?}", begun.elapsed());
    }
}
