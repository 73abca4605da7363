//! What elements do when the process has no descriptor left. A program of its own: the limit is the whole process's.

mod common;

use std::net::SocketAddr;

use common::*;
use gst::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// Somebody connects whom nobody can take in: the thread rests meanwhile, and takes him in once there are descriptors again.
#[test]
fn a_listener_rests_while_there_are_no_descriptors() {
    for line in [
        "ts-tcpserversrc name=tcp host=127.0.0.1 port=0 ! fakesink async=false",
        "appsrc is-live=true ! ts-tcpserversink name=tcp host=127.0.0.1 port=0",
    ] {
        let shared = context();
        // No throttling: whoever does not rest turns round at full speed.
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
            // Nothing below is free but what a folder that is being read takes.
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
        // Its time-out is the clock of this test: once as it may be, and once more for all of it.
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
        eventually("the caller is taken in", || {
            match tcp.has_property("num-handles") {
                true => tcp.property::<u32>("num-handles") == 1,
                false => stat(&tcp, "connections") == 1,
            }
        });
    }
}
