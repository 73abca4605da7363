//! Twenty instances of `fallbackswitch` have no more threads than one. The test is alone in its process, so that threads can be
//! counted.

use crate::common::*;

const CAPS: &str = "audio/x-raw,rate=8000,channels=1";

fn threads_of(switches: usize) -> usize {
    let pipes: Vec<_> = (0..switches)
        .map(|_| {
            let pipe = Pipe::parse(&format!(
                "fallbackswitch name=s context=shared ! fakesink name=out sync=false async=false \
                 ts-audiotestsrc samples-per-buffer=160 context=shared ! {CAPS} ! s. \
                 ts-audiotestsrc samples-per-buffer=160 context=shared ! {CAPS} ! s. \
                 ts-audiotestsrc samples-per-buffer=160 is-live=false context=shared ! {CAPS} ! s."
            ));
            let seen = watch(&pipe.pad("out", "sink"));
            pipe.play();
            next_buffer(&seen);
            pipe
        })
        .collect();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    drop(pipes);
    threads
}

#[test]
fn twenty_instances_have_the_threads_of_one() {
    // The first one starts GStreamer's own threads.
    threads_of(1);
    // A worker thread of GLib's pool comes and goes. Once twenty instances have needed a second one, one instance has it, too.
    eventually("as many threads", || {
        let of_one = threads_of(1);
        threads_of(20) <= of_one
    });
}
