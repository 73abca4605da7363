//! Elements in a process that has no descriptor left. The test is alone in its process, because the limit applies to the whole
//! process.

use std::net::SocketAddr;

use crate::common::*;
use gst::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// A client connects while no descriptor is left. The thread pauses, and accepts the client once descriptors are free again.
#[test]
fn listener_pauses_without_descriptors() {
    for line in [
        "ts-tcpserversrc name=tcp host=127.0.0.1 port=0 ! fakesink async=false",
        "appsrc is-live=true ! ts-tcpserversink name=tcp host=127.0.0.1 port=0",
    ] {
        let shared = context();
        // The context is not throttled, so a thread that does not rest would spin at full speed.
        let line = line.replace("name=tcp", &format!("name=tcp context={shared}"));
        let pipe = Pipe::parse(&line);
        pipe.play();
        let tcp = pipe.get("tcp");
        let port = tcp.property::<i32>("current-port") as u16;
        let clock = Rig::without_stream(
            &format!("ts-udpsrc address=127.0.0.1 port=0 context={shared} timeout=300000000"),
            gst::State::Playing,
        );
        let caller = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let before = getrlimit(Resource::Nofile);
        let used = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| {
                let name = fd.unwrap().file_name();
                name.to_str().unwrap().parse::<u64>().ok()
            });
        let highest = used.max().unwrap();
        let low = Rlimit {
            // No lower number is free except the one used while reading a directory.
            current: Some(highest),
            ..before
        };
        setrlimit(Resource::Nofile, low).unwrap();
        let filler: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        caller
            .connect(&SocketAddr::from(([127, 0, 0, 1], port)).into())
            .unwrap();
        let context = threadbare_runtime::Context::find(&shared).unwrap();
        let wakeups = || context.shards()[0].counters_snapshot().wakeups;
        let passes = wakeups();
        // The time-out of the other source serves as this test's clock: a message comes every 300 ms.
        for _ in 0..2 {
            let types = [gst::MessageType::Element];
            assert!(clock.bus.timed_pop_filtered(DEADLINE_GST, &types).is_some());
        }
        let passes = wakeups() - passes;
        drop(filler);
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(
            passes < 200,
            "{line}: {passes} passes in a second without descriptors"
        );
        eventually("the caller is accepted", || {
            if tcp.has_property("num-handles") {
                tcp.property::<u32>("num-handles") == 1
            } else {
                stat(&tcp, "connections") == 1
            }
        });
    }
}
