//! Twenty instances of `fallbacksrc` on one context have no more threads than one, but for those of their sources: alone in its process, so
//! that threads can be counted.

mod common;
#[path = "common/fallback.rs"]
mod fallback;
#[path = "common/faulty/mod.rs"]
mod faulty;

use common::*;
use fallback::*;
use faulty::Fault;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Each with a live source, which has a thread of its own, and delivers.
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
fn twenty_have_the_threads_of_one() {
    let shared = context();
    // GStreamer's own come with the first one.
    drop(playing(&shared, 1));
    let with_threads_of = |count: usize| {
        let plays = playing(&shared, count);
        let threads = threads();
        drop(plays);
        threads
    };
    let of_one = with_threads_of(1);
    // A worker thread of GStreamer's pool comes and goes.
    eventually("as many threads", || with_threads_of(20) <= of_one + 19);
}
