//! `fallbacksrc`: which source passes and when, on a test clock, with sources that fail on command.

use crate::common::*;
use crate::fixtures::fallback::*;
use crate::fixtures::faulty::{Fault, Step};
use gst::prelude::*;

fn caps(text: &str) -> gst::Event {
    gst::event::Caps::new(&text.parse().unwrap())
}

// ---- a file becomes live

fn leaves_at_its_running_time(play: &Play, main: &Fault) {
    play.play();
    play.until("the first", || play.audio().last().is_some());
    play.follow_until(1000);
    for passed in play.audio().all() {
        assert_eq!(passed.at_ms, passed.begin_ms);
        assert_eq!(passed.marker, MAIN);
    }
    play.audio().assert_continuous();
    assert_eq!(play.audio().end_ms(), 1020);
    play.expect_switch("audio", &main.uri(), "start");
    play.assert_no_switch();
}

#[test]
fn the_buffers_of_a_file_pass_at_their_running_time_on_a_context() {
    let main = file("live", 10 * SECOND, MAIN);
    let line = format!("uri={} enable-video=false", main.uri());
    leaves_at_its_running_time(&Play::new(&line), &main);
}

#[test]
fn the_buffers_of_a_file_pass_at_their_running_time_without_a_context() {
    let main = file("live-alone", 10 * SECOND, MAIN);
    let line = format!("uri={} enable-video=false", main.uri());
    leaves_at_its_running_time(&Play::without_context(&line), &main);
}

#[test]
fn a_file_that_is_ready_late_begins_when_it_is_ready() {
    let main = file("late-file", 10 * SECOND, MAIN);
    let gate = main.hold_starts();
    let play = Play::playing(&format!("uri={} enable-video=false", main.uri()));
    gate.wait_held();
    play.set_ms(3000);
    gate.open();
    play.until("the first", || play.audio().last().is_some());
    play.follow_until(3200);
    let first = &play.audio().all()[0];
    assert_eq!((first.begin_ms, first.at_ms), (3000, 3000));
    play.audio().assert_continuous();
}

#[test]
fn a_live_source_keeps_its_times() {
    let main = live("times", MAIN);
    let play = Play::playing(&format!("uri={} enable-video=false", main.uri()));
    main.wait("it has started", |log| log.starts == 1);
    play.set_ms(500);
    // This is the source's position by its clock.
    play.feed(&main, 460);
    play.until("it passes", || play.audio().end_ms() == 480);
    play.feed_until(&main, 700);
    let all = play.audio().all();
    assert_eq!((all[0].begin_ms, all[0].at_ms), (460, 500));
    let late = all.iter().skip(1).find(|one| one.at_ms != one.begin_ms);
    assert!(late.is_none(), "{late:?}");
}

// ---- ends

#[test]
fn the_end_of_the_main_source_ends_the_output() {
    let main = file("end", 200 * MS, MAIN);
    let play = Play::begun(&format!("uri={} enable-video=false", main.uri()));
    play.follow_until(180);
    play.until("the end", || play.audio().eos_ms() == Some(180));
    assert_eq!(play.audio().end_ms(), 200);
    play.audio().assert_continuous();
    play.until_status("stopped");
    // This is later than all time-outs.
    play.set_ms(100_000);
    play.go_on();
    assert!(play.has_error().is_none());
    assert_eq!(play.audio().markers(), [MAIN]);
    assert_eq!(main.log().starts, 1);
}

#[test]
fn audio_and_video_of_different_lengths_end_separately() {
    let main = file("ends", 600 * MS, MAIN);
    main.plan(VIDEO, 200 * MS, Step::Eos);
    let fallback = file("ends-fallback", 10 * SECOND, FALLBACK);
    let (uri, fallback_uri) = (main.av_uri(), fallback.av_uri());
    let play = Play::begun(&format!("uri={uri} fallback-uri={fallback_uri}"));
    play.until("the first picture", || play.video().last().is_some());
    play.follow_until(580);
    play.until("the end", || play.audio().eos_ms().is_some());
    let (audio, video) = (play.audio(), play.video());
    assert_eq!((audio.markers(), audio.end_ms()), (vec![MAIN], 600));
    assert_eq!((video.markers(), video.end_ms()), (vec![MAIN], 200));
    assert_eq!(fills(&play.element), 0);
    assert!(video.eos_ms().unwrap() < audio.eos_ms().unwrap());
}

#[test]
fn restarted_on_eos_a_file_loops_without_a_switch() {
    let main = file("loop", 2 * SECOND, MAIN);
    let fallback = file("loop-fallback", 60 * SECOND, FALLBACK);
    let play = Play::begun(&format!(
        "uri={} fallback-uri={} restart-on-eos=true enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    for loops in 1..4 {
        play.follow_until(2000 * loops - 20);
        let starts = usize::try_from(loops).unwrap() + 1;
        main.wait("it begins again", |log| log.starts == starts);
        play.until_status("running");
    }
    play.follow_until(7000);
    assert_eq!(play.audio().markers(), [MAIN]);
    play.audio().assert_continuous();
    play.expect_switch("audio", &main.uri(), "start");
    play.assert_no_switch();
    assert_eq!(play.statistics().get::<u64>("num-retry"), Ok(3));
    let reason: String = play.statistics().get("last-retry-reason").unwrap();
    assert_eq!(reason, "eos");
}

// ---- errors

#[test]
fn after_an_error_the_fallback_passes_within_a_buffer() {
    let main = live("error", MAIN);
    let fallback = file("error-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 980);
    play.stands_by("audio", 1);
    play.feed(&main, 980);
    play.until("it passes", || play.audio().end_ms() == 1000);
    play.set_ms(990);
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    // The clock is stopped.
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "error");
    play.set_ms(1000);
    play.follow_until(1200);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    play.audio().assert_continuous();
}

#[test]
fn buffers_in_flight_from_a_failed_source_are_dropped() {
    let main = live("stragglers", MAIN);
    let fallback = file("stragglers-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 200);
    let standby = play.stands_by("audio", 1);
    // This data is ahead of its time, and waits inside the element.
    for ms in (200..600).step_by(20) {
        main.step(AUDIO, Step::Buffer(AUDIO.buffer(MAIN, ms * MS)));
    }
    // The source is not stopped before the switch is reported.
    let gate = Gate::default();
    let passing = gate.clone();
    play.pipe.bus().set_sync_handler(move |_, message| {
        let switch = message
            .structure()
            .filter(|s| s.name() == "fallback-switch");
        if switch.is_some_and(|switch| switch.get("reason") == Ok("error")) {
            passing.pass();
        }
        gst::BusSyncReply::Pass
    });
    main.step(AUDIO, Step::Error("as told".into()));
    gate.wait_held();
    play.walk_until(800, &[&standby]);
    gate.open();
    play.told("fallback-retry");
    play.follow_until(1000);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "error");
    play.assert_no_switch();
    play.pipe.bus().unset_sync_handler();
}

#[test]
fn later_fallback_continues_until_a_better_source_passes() {
    let main = live("later", MAIN);
    let first = live("later-first", FALLBACK);
    let later = file("later-later", 60 * SECOND, LATER);
    first.refuse(1000);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} fallback-uris=<{}> \
         restart-timeout=1000000000 recover-after=3000000000 enable-dummy=false enable-video=false",
        main.uri(),
        first.uri(),
        later.uri()
    ));
    play.feed_until(&main, 100);
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.told("fallback-retry");
    let standby = play.stands_by("audio", 2);
    play.walk_until(1500, &[&standby]);
    assert_eq!(play.audio().last().unwrap().marker, LATER);
    main.wait("it is up again", |log| log.starts == 2);
    play.feed_until(&main, 8000);
    assert_eq!(play.audio().last().unwrap().marker, MAIN);
    later.wait("it is not needed any more", |log| log.stops == log.starts);
    // There is data from the source's first buffer on, without a hole that is longer than a buffer.
    let all = play.audio().all();
    let since = all.iter().position(|one| one.marker == LATER).unwrap();
    for pair in all[since..].windows(2) {
        assert!(pair[1].begin_ms <= pair[0].end_ms + 20, "{pair:?}");
    }
}

fn silence_follows(play: &Play, main: &Fault) {
    play.play();
    main.wait("it has started", |log| log.starts == 1);
    play.feed_until(main, 1000);
    assert_eq!(
        fills(&play.element),
        0,
        "no source is created before it is needed"
    );
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.until("silence", || play.audio().markers() == [MAIN, SILENCE]);
    assert_eq!(play.now_ms(), 1000);
    play.follow_until(1300);
    play.audio().assert_continuous();
    assert_eq!(play.audio().last().unwrap().caps, AUDIO.caps(), "as before");
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", "dummy", "error");
}

#[test]
fn after_an_error_without_fallback_silence_passes_within_a_buffer() {
    let main = live("silence", MAIN);
    let line = format!("uri={} enable-video=false", main.uri());
    silence_follows(&Play::new(&line), &main);
}

#[test]
fn without_a_context_silence_starts_within_one_buffer_time() {
    let main = live("silence-alone", MAIN);
    let line = format!("uri={} enable-video=false", main.uri());
    silence_follows(&Play::without_context(&line), &main);
}

#[test]
fn after_an_error_of_a_source_with_pictures_black_and_silence_pass() {
    let main = live("black", MAIN);
    let play = Play::playing(&format!("uri={}", main.av_uri()));
    main.wait("it has started", |log| log.starts == 1);
    for ms in (0..400).step_by(20) {
        play.set_ms(ms);
        if ms % 40 == 0 {
            let picture = VIDEO.buffer(MAIN, ms * MS);
            main.step(VIDEO, Step::Buffer(picture));
        }
        play.feed(&main, ms);
    }
    play.until("all has passed", || {
        play.video().end_ms() == 400 && play.audio().end_ms() == 400
    });
    play.set_ms(400);
    main.done(VIDEO, Step::Error("as told".into())).unwrap();
    play.until("black", || play.video().end_ms() == 440);
    play.until("silence", || play.audio().end_ms() == 420);
    let (audio, video) = (play.audio(), play.video());
    audio.assert_continuous();
    video.assert_continuous();
    assert_eq!(audio.markers(), [MAIN, SILENCE]);
    let black = video.last().unwrap();
    assert!(black.caps.is_subset(&VIDEO.caps()), "as before");
    let pixels = bytes(&black.buffer);
    assert!(pixels.iter().all(|pixel| *pixel <= 16), "{pixels:?}");
}

#[test]
fn caps_that_downstream_refuses_are_a_failure() {
    let main = live("caps", MAIN);
    let fallback = file("caps-fallback", 60 * SECOND, FALLBACK);
    let line = format!(
        "context={} uri={} fallback-uri={} enable-video=false",
        context(),
        main.uri(),
        fallback.uri()
    );
    let play = Play::accepting(&line, Some("audio/x-raw,rate=48000,channels=2"));
    play.play();
    play.feed_until(&main, 400);
    let other = "audio/x-raw,format=U8,rate=8000,channels=1,layout=interleaved";
    main.done(AUDIO, Step::Event(caps(other))).unwrap();
    let refused = main.step(AUDIO, Step::Buffer(AUDIO.buffer(MAIN, 400 * MS)));
    let retry = play.told("fallback-retry");
    assert_eq!(retry.get("reason"), Ok("error"));
    drop(refused);
    play.follow_until(600);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    play.audio().assert_no_overlap();
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "error");
    assert!(play.has_error().is_none());
}

// ---- stalls, jitter

#[test]
fn after_a_stall_the_fallback_passes_at_the_timeout_and_the_source_starts_again() {
    let main = live("stall", MAIN);
    let fallback = file("stall-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} timeout=1000000000 restart-timeout=2000000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 400);
    let standby = play.stands_by("audio", 1);
    // The last buffer ends at 400 ms.
    play.walk_until(1380, &[&standby]);
    play.set_ms(1399);
    assert_eq!(play.audio().end_ms(), 400);
    play.set_ms(1400);
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "timeout");
    play.follow_until(1420);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    let first = play
        .audio()
        .all()
        .into_iter()
        .find(|p| p.marker == FALLBACK);
    assert!(first.unwrap().begin_ms <= 1400);
    play.follow_until(2360);
    assert_eq!(main.log().stops, 0);
    play.follow_until(2380);
    let retry = play.told("fallback-retry");
    assert_eq!(retry.get("reason"), Ok("timeout"));
    assert_eq!(retry.get("uri"), Ok(main.uri()));
    assert_eq!((main.log().starts, main.log().stops), (1, 1));
    let delay_ms = retry.get::<u64>("delay").unwrap() / 1_000_000;
    play.follow_until(2380 + delay_ms + 20);
    main.wait("it has started again", |log| log.starts == 2);
    assert_eq!(play.status(), "retrying");
    play.feed_until(&main, play.now_ms() + 200);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK, MAIN]);
    play.expect_switch("audio", &main.uri(), "recovered");
    assert_eq!(play.status(), "running");
}

#[test]
fn late_data_of_a_live_source_counts_as_missing() {
    let main = live("late", MAIN);
    let fallback = file("late-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} timeout=500000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 200);
    let standby = play.stands_by("audio", 1);
    let mut late = play.now_ms();
    while play.now_ms() < 2000 {
        play.walk_until(play.now_ms() + 20, &[&standby]);
        if play.now_ms() >= 800 {
            play.feed(&main, late);
            late += 20;
        }
    }
    play.until("the fallback", || play.audio().end_ms() >= 2000);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "timeout");
    play.assert_no_switch();
    assert_eq!(main.log().starts, 1, "it lives");
    play.feed_until(&main, 2200);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK, MAIN]);
    play.expect_switch("audio", &main.uri(), "recovered");
}

#[test]
fn jitter_below_the_timeout_causes_no_switch() {
    let main = live("jitter", MAIN);
    let fallback = file("jitter-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} timeout=1000000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 100);
    // Delays of all sizes below the timeout, as from a linear congruential generator.
    let (mut random, mut next_ms) = (1u64, 100);
    while next_ms < 20_000 {
        random = (random * 1_103_515_245 + 12_345) % (1 << 31);
        let delay_ms = random % 980;
        play.set_ms(next_ms - 20 + delay_ms.max(20));
        while next_ms <= play.now_ms() {
            play.feed(&main, next_ms);
            next_ms += 20;
        }
        play.until("all has passed", || play.audio().end_ms() == next_ms);
    }
    assert_eq!(play.audio().markers(), [MAIN]);
    play.audio().assert_continuous();
    play.expect_switch("audio", &main.uri(), "start");
    play.assert_no_switch();
}

// ---- choice

#[test]
fn returning_source_must_stay_healthy_first() {
    let main = live("recover", MAIN);
    let fallback = file("recover-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} timeout=500000000 recover-after=1000000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 200);
    let standby = play.stands_by("audio", 1);
    play.walk_until(700, &[&standby]);
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &fallback.uri(), "timeout");
    play.feed(&main, 700);
    let back = play.stands_by("audio", 0);
    while play.now_ms() < 1800 {
        let ms = play.now_ms() + 20;
        play.feed(&main, ms);
        play.walk_until(ms, &[&standby, &back]);
    }
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK, MAIN]);
    play.expect_switch("audio", &main.uri(), "recovered");
    let mut all = play.audio().all().into_iter().rev();
    let last = all.find(|one| one.marker == FALLBACK).unwrap();
    // The source fails a second after its data at 700 ms. Of two candidates at the same time, either may pass.
    assert!([1700, 1720].contains(&last.end_ms), "{last:?}");
}

#[test]
fn later_fallbacks_start_when_earlier_ones_fail_and_the_best_passes() {
    let [main, first, second, third] = [
        live("order-0", 1),
        live("order-1", 2),
        live("order-2", 3),
        live("order-3", 4),
    ];
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} fallback-uris=<{},{}> enable-video=false",
        main.uri(),
        first.uri(),
        second.uri(),
        third.uri()
    ));
    let starts = |fault: &Fault| fault.log().starts;
    play.feed_until(&main, 100);
    first.wait("the first fallback stands by", |log| log.starts == 1);
    play.feed(&first, 100);
    assert_eq!([starts(&second), starts(&third)], [0, 0]);
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("audio", &first.uri(), "error");
    play.set_ms(120);
    play.feed_until(&first, 200);
    assert_eq!([starts(&second), starts(&third)], [0, 0]);
    first.done(AUDIO, Step::Error("as told".into())).unwrap();
    second.wait("the second fallback", |log| log.starts == 1);
    play.feed_until(&second, 300);
    assert_eq!(play.audio().last().unwrap().marker, 3);
    second.done(AUDIO, Step::Error("as told".into())).unwrap();
    third.wait("the third fallback", |log| log.starts == 1);
    play.feed_until(&third, 400);
    assert_eq!(play.audio().last().unwrap().marker, 4);
    // The pauses are over: the failed sources start again, and the best one passes.
    play.set_ms(1500);
    first.wait("the first fallback again", |log| log.starts == 2);
    play.feed_until(&first, 1600);
    assert_eq!(play.audio().last().unwrap().marker, 2);
    main.wait("the main source again", |log| log.starts == 2);
    play.feed_until(&main, 1700);
    assert_eq!(play.audio().last().unwrap().marker, 1);
    // After it has run for `restart-timeout`, the later sources are not needed any more.
    play.feed_until(&main, 7000);
    second.wait("the second fallback ends", |log| log.stops == log.starts);
    third.wait("the third fallback ends", |log| log.stops == log.starts);
    play.audio().assert_no_overlap();
}

#[test]
fn update_uri_is_emitted_at_each_start() {
    let [before, after] = [live("uri-before", 1), live("uri-after", 2)];
    let play = Play::new(&format!("uri={} enable-video=false", before.uri()));
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (note, answer) = (asked.clone(), after.uri());
    play.element.connect("update-uri", false, move |args| {
        let uri: String = args[1].get().unwrap();
        let mut asked = note.lock().unwrap();
        asked.push(uri.clone());
        let answer = if asked.len() > 1 { &answer } else { &uri };
        Some(answer.to_value())
    });
    play.play();
    play.feed_until(&before, 100);
    before.done(AUDIO, Step::Error("as told".into())).unwrap();
    let retry = play.told("fallback-retry");
    assert_eq!(retry.get("uri"), Ok(before.uri()));
    play.follow_until(1200);
    after.wait("the other one", |log| log.starts == 1);
    play.feed_until(&after, 1400);
    assert_eq!(play.audio().markers(), [1, SILENCE, 2]);
    after.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.told("fallback-retry");
    play.follow_until(4000);
    after.wait("again", |log| log.starts == 2);
    // Each request is about the last answer.
    let expected = [before.uri(), before.uri(), after.uri()];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert_eq!(before.log().starts, 1);
}

#[test]
fn with_manual_unblock_a_file_waits_for_the_signal() {
    let main = file("unblock", 10 * SECOND, MAIN);
    let fallback = live("unblock-fallback", FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} manual-unblock=true immediate-fallback=true enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    main.wait("it is ready", |log| log.buffers[0] == 0 && log.starts == 1);
    // A live source needs no signal.
    play.feed_until(&fallback, 1000);
    assert_eq!(play.audio().last().unwrap().marker, FALLBACK);
    assert_eq!(play.status(), "buffering");
    play.element.emit_by_name::<()>("unblock", &[]);
    play.until_status("running");
    play.follow_until_heard(MAIN);
    assert!(play.audio().markers().ends_with(&[FALLBACK, MAIN]));
    play.audio().assert_continuous();
}

// ---- audio and video

#[test]
fn audio_and_video_switch_together() {
    let main = live("together", MAIN);
    let fallback = file("together-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} timeout=500000000 restart-timeout=60000000000",
        main.av_uri(),
        fallback.av_uri()
    ));
    main.wait("it has started", |log| log.starts == 1);
    play.feed(&main, 0);
    main.step(
        VIDEO,
        Step::Buffer(VIDEO.buffer(MAIN, gst::ClockTime::ZERO)),
    );
    let streams = [("audio", 0), ("audio", 1), ("video", 0), ("video", 1)];
    let arrivals = streams.map(|(stream, place)| play.stands_by(stream, place));
    let feed = |end_ms: u64, has_video: bool| {
        while play.now_ms() < end_ms {
            let ms = play.now_ms() + 20;
            play.set_ms(ms);
            play.feed(&main, ms);
            if has_video && ms.is_multiple_of(40) {
                main.step(VIDEO, Step::Buffer(VIDEO.buffer(MAIN, ms * MS)));
            }
            let comes = |place: usize| arrivals[place].end_ms() > ms;
            play.until("all that is fed arrives", || {
                let pictures = !ms.is_multiple_of(40) || (comes(3) && (!has_video || comes(2)));
                comes(0) && comes(1) && pictures
            });
        }
    };
    feed(400, true);
    assert_eq!(play.audio().markers(), [MAIN]);
    assert_eq!(play.video().markers(), [MAIN]);
    // The pictures stall, the sound continues.
    feed(1000, false);
    play.until("fallback", || play.video().markers() == [MAIN, FALLBACK]);
    play.until("fallback", || play.audio().markers() == [MAIN, FALLBACK]);
    let left = |drain: &Drain| drain.all().into_iter().find(|p| p.marker == FALLBACK);
    let [audio, video] = [play.audio(), play.video()].map(|drain| left(&drain).unwrap().begin_ms);
    assert!(audio.abs_diff(video) <= 40, "{audio} {video}");
    feed(1400, true);
    play.until("back", || play.video().markers() == [MAIN, FALLBACK, MAIN]);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK, MAIN]);
    play.audio().assert_no_overlap();
    play.video().assert_no_overlap();
}

#[test]
fn source_without_video_gets_black_pictures() {
    let main = file("beside", 60 * SECOND, MAIN);
    let play = Play::playing(&format!("uri={}", main.uri()));
    play.follow_until(400);
    play.until("black", || play.video().end_ms() >= 400);
    assert_eq!(play.audio().markers(), [MAIN]);
    let black = play.video().last().unwrap();
    assert_eq!(black.caps.structure(0).unwrap().name(), "video/x-raw");
    play.expect_switch("audio", &main.uri(), "start");
    play.expect_switch("video", "dummy", "start");
    play.follow_until(800);
    play.assert_no_switch();
    assert_eq!(play.audio().markers(), [MAIN]);
}

// ---- messages, queries, events

#[test]
fn errors_of_a_source_are_not_posted_and_other_messages_are() {
    let main = live("messages", MAIN);
    let play = Play::playing(&format!("uri={} enable-video=false", main.uri()));
    play.feed_until(&main, 100);
    main.step(AUDIO, Step::Event(gst::event::Tag::new(tags())));
    play.feed_until(&main, 200);
    let source = play.pipe.0.iterate_recurse().into_iter().flatten();
    let source = source
        .into_iter()
        .find(|e| e.type_().name() == "TestFaultSrc")
        .unwrap();
    gst::element_warning!(source, gst::ResourceError::Read, ["a warning"]);
    play.until("the warning", || {
        play.take(|m| (m.type_() == gst::MessageType::Warning).then_some(()))
            .is_some()
    });
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.told("fallback-retry");
    play.follow_until(400);
    assert!(play.has_error().is_none());
    let ends = play.take(|m| (m.type_() == gst::MessageType::Eos).then_some(()));
    assert!(ends.is_none());
}

fn tags() -> gst::TagList {
    let mut tags = gst::TagList::new();
    let inner = tags.get_mut().unwrap();
    inner.add::<gst::tags::Title>(&"a title", gst::TagMergeMode::Append);
    tags
}

#[test]
fn element_is_live_unseekable_and_reports_latency() {
    let main = file("queries", 60 * SECOND, MAIN);
    let play = Play::playing(&format!(
        "uri={} enable-video=false min-latency=300000000",
        main.uri()
    ));
    play.follow_until(100);
    let pad = play.element.static_pad("audio_0").unwrap();
    let mut latency = gst::query::Latency::new();
    assert!(pad.query(&mut latency));
    let (is_live, least, _) = latency.result();
    assert_eq!((is_live, least), (true, 300 * MS));
    let mut seeking = gst::query::Seeking::new(gst::Format::Time);
    assert!(pad.query(&mut seeking));
    assert!(!seeking.result().0);
    assert!(
        play.element
            .seek_simple(gst::SeekFlags::FLUSH, SECOND)
            .is_err()
    );
    assert!(!play.audio().pad.push_event(gst::event::Seek::new(
        1.0,
        gst::SeekFlags::FLUSH,
        gst::SeekType::Set,
        SECOND,
        gst::SeekType::None,
        gst::ClockTime::NONE
    )));
    assert!(main.log().seeks.is_empty());
    play.follow_until(300);
    play.audio().assert_continuous();
}
