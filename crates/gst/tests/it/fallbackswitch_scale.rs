//! Two hundred instances of `fallbackswitch` with two sockets each on one context. The test is alone in its process, so that
//! threads can be counted.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::common::*;
use gst::prelude::*;

const SWITCHES: usize = 200;
/// Interval of the packets of a stream.
const PACE: Duration = Duration::from_millis(20);
/// First byte of the packets.
const MAIN: u8 = 1;
const FALLBACK: u8 = 2;

/// A reported switch: number of the pipeline, from, to, reason.
type Switched = (usize, Option<String>, String, String);

/// A switch between two sockets.
struct Stream {
    pipe: Pipe,
    targets: [SocketAddr; 2],
    /// Buffers that arrived after the switch, by their first byte.
    arrived: Arc<[AtomicU64; 3]>,
}

impl Stream {
    fn new(n: usize, switched: &Sender<Switched>) -> Stream {
        let source = |name: &str| {
            format!(
                "ts-udpsrc name={name} address=127.0.0.1 port=0 context=x context-wait=20 \
                 caps=audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved ! s."
            )
        };
        // The timeout is long, because a busy machine must not cause a switch.
        let pipe = Pipe::parse(&format!(
            "fallbackswitch name=s timeout=3000000000 context=x context-wait=20 ! fakesink name=out sync=false async=false {} {}",
            source("main"),
            source("other")
        ));
        let switched = switched.clone();
        pipe.bus().set_sync_handler(move |_, message| {
            if let Some(details) = message.structure()
                && details.name() == "fallback-switch"
            {
                let text = |name: &str| details.get::<String>(name).unwrap();
                let from = details.get("from").unwrap();
                let _ = switched.send((n, from, text("to"), text("reason")));
            }
            gst::BusSyncReply::Drop
        });
        let arrived: Arc<[AtomicU64; 3]> = Arc::default();
        let of_probe = arrived.clone();
        let out = pipe.pad("out", "sink");
        out.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            let first = bytes(info.buffer().unwrap())[0];
            of_probe[usize::from(first)].fetch_add(1, Ordering::Relaxed);
            gst::PadProbeReturn::Ok
        });
        pipe.play();
        let targets = ["main", "other"].map(|name| target(&pipe.get(name)));
        Stream {
            pipe,
            targets,
            arrived,
        }
    }

    fn arrived(&self, of: u8) -> u64 {
        self.arrived[usize::from(of)].load(Ordering::Relaxed)
    }
}

struct Crowd {
    streams: Vec<Stream>,
    switched: Receiver<Switched>,
    sender: UdpSocket,
}

impl Crowd {
    fn new(size: usize) -> Crowd {
        let (send, switched) = channel();
        Crowd {
            streams: (0..size).map(|n| Stream::new(n, &send)).collect(),
            switched,
            sender: socket(),
        }
    }

    /// Pushes a packet for each of these inputs every 20 ms, until `condition` holds; returns the switches.
    fn feed_until(
        &self,
        what: &str,
        inputs: &[u8],
        mut condition: impl FnMut(&[Switched]) -> bool,
    ) -> Vec<Switched> {
        let (end, mut switches) = (Instant::now() + DEADLINE, Vec::new());
        let mut next = Instant::now();
        while !condition(&switches) {
            assert!(Instant::now() < end, "never: {what}; {switches:?}");
            for stream in &self.streams {
                for input in inputs {
                    let packet = [*input; 320];
                    let target = stream.targets[usize::from(*input) - 1];
                    self.sender.send_to(&packet, target).unwrap();
                }
            }
            next = Instant::now().max(next + PACE);
            while let Ok(switch) = self
                .switched
                .recv_timeout(next.saturating_duration_since(Instant::now()))
            {
                switches.push(switch);
            }
        }
        // A switch is reported before its first buffer passes.
        switches.extend(self.switched.try_iter());
        switches
    }

    /// Feeds until each stream passes packets of input `of` that were sent after this call. One packet that was sent earlier may
    /// arrive first.
    fn feed_until_all_pass(&self, what: &str, inputs: &[u8], of: u8) -> Vec<Switched> {
        let before: Vec<_> = self.streams.iter().map(|s| s.arrived(of)).collect();
        self.feed_until(what, inputs, |_| {
            let mut streams = self.streams.iter().zip(&before);
            streams.all(|(stream, before)| stream.arrived(of) > before + 1)
        })
    }

    /// Asserts that each pipeline has switched exactly once, and as given.
    fn assert_one_of_each(
        &self,
        mut switches: Vec<Switched>,
        from: Option<&str>,
        to: &str,
        reason: &str,
    ) {
        switches.sort();
        let expected = (0..self.streams.len())
            .map(|n| (n, from.map(str::to_owned), to.to_owned(), reason.to_owned()));
        assert_eq!(switches, expected.collect::<Vec<_>>());
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Threads of a crowd that passes its first choice.
fn threads_of(size: usize) -> usize {
    let crowd = Crowd::new(size);
    crowd.feed_until_all_pass("all pass the first choice", &[MAIN, FALLBACK], MAIN);
    threads()
}

#[test]
fn two_hundred_switches_on_one_context_go_to_the_fallback_and_back_once() {
    // The first one starts GStreamer's own threads.
    threads_of(1);
    let of_one = threads_of(1);
    let crowd = Crowd::new(SWITCHES);
    let both = [MAIN, FALLBACK];
    let starts = crowd.feed_until_all_pass("all pass the first choice", &both, MAIN);
    crowd.assert_one_of_each(starts, None, "sink_0", "start");
    // A worker thread of GLib's pool may come and go.
    crowd.feed_until("no more threads than of one", &both, |_| {
        threads() <= of_one
    });
    // Both inputs of all switches are healthy, so that the fallback is available when it is needed.
    crowd.feed_until("the fallbacks deliver", &both, |_| {
        let is_healthy = |stream: &Stream| {
            stream
                .pipe
                .pad("s", "sink_1")
                .property::<bool>("is-healthy")
        };
        crowd.streams.iter().all(is_healthy)
    });
    let mut all = |switches: &[Switched]| switches.len() >= SWITCHES;
    let away = crowd.feed_until("all leave the first choice", &[FALLBACK], &mut all);
    crowd.assert_one_of_each(away, Some("sink_0"), "sink_1", "timeout");
    let none = crowd.feed_until_all_pass("all pass the fallback", &[FALLBACK], FALLBACK);
    assert_eq!(none, []);
    let back = crowd.feed_until("all come back", &both, &mut all);
    crowd.assert_one_of_each(back, Some("sink_1"), "sink_0", "recovered");
    let none = crowd.feed_until_all_pass("all pass the first choice again", &both, MAIN);
    assert_eq!(none, []);
    for stream in &crowd.streams {
        let of = |reason: &str| stat(&stream.pipe.get("s"), &format!("switches-{reason}"));
        assert_eq!(["start", "timeout", "recovered"].map(of), [1, 1, 1]);
    }
}
