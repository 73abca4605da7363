//! Twenty instances of `fallbacksrc` on one context have no more threads than one instance, plus those of their sources. The test
//! is alone in its process, so that threads can be counted.

use crate::common::*;
use crate::fixtures::fallback::*;
use crate::fixtures::faulty::Fault;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns elements that play. Each has a live source with its own thread, which delivers.
fn playing(shared: &str, count: usize) -> Vec<(Play, Fault)> {
    let plays = (0..count).map(|i| {
        let main = live(&format!("shared-{i}"), MAIN);
        let line = format!("context={shared} uri={} enable-video=false", main.uri());
        let play = Play::accepting(&line, None);
        play.play();
        play.feed_until(&main, 60);
        assert_eq!(play.audio().markers(), [MAIN]);
        assert_eq!(fills(&play.element), 0, "none before it is needed");
        (play, main)
    });
    plays.collect()
}

#[test]
fn twenty_instances_have_the_threads_of_one() {
    let shared = context();
    // The first one starts GStreamer's own threads.
    drop(playing(&shared, 1));
    let with_threads_of = |count: usize| {
        let plays = playing(&shared, count);
        let threads = threads();
        drop(plays);
        threads
    };
    // A worker thread of GStreamer's pool comes and goes. Once twenty instances have needed a second one, one instance has it,
    // too.
    eventually("as many threads", || {
        let of_one = with_threads_of(1);
        with_threads_of(20) <= of_one + 19
    });
}
