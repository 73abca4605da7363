//! `fallbacksrc`: starts, retries, states, properties and messages to the application, on a test clock, with sources that fail on
//! command.

use crate::common::*;
use crate::fixtures::fallback::*;
use crate::fixtures::faulty;
use crate::fixtures::faulty::Step;
use gst::prelude::*;

// ---- slow starts and stops

#[test]
fn a_slow_start_of_a_source_blocks_neither_states_nor_output() {
    let main = file("slow", 60 * SECOND, MAIN);
    let fallback = file("slow-fallback", 60 * SECOND, FALLBACK);
    let gate = main.hold_starts();
    let play = Play::new(&format!(
        "uri={} fallback-uri={} timeout=1000000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    // This returns although the source is blocked.
    play.play();
    gate.wait_held();
    play.pipe.to(gst::State::Paused);
    play.play();
    assert_eq!(play.status(), "buffering");
    play.stands_by("audio", 1);
    play.set_ms(1000);
    play.follow_until(1200);
    assert_eq!(play.audio().markers(), [FALLBACK]);
    gate.open();
    play.until_status("running");
    play.follow_until_heard(MAIN);
    assert_eq!(play.audio().markers(), [FALLBACK, MAIN]);
    play.audio().assert_continuous();
}

#[test]
fn a_slow_stop_of_a_source_blocks_neither_states_nor_output() {
    let main = live("slow-stop", MAIN);
    let fallback = file("slow-stop-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 200);
    play.stands_by("audio", 1);
    let gate = main.hold_stops();
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    gate.wait_held();
    play.set_ms(220);
    play.follow_until(2000);
    assert_eq!(play.audio().markers(), [MAIN, FALLBACK]);
    play.audio().assert_no_overlap();
    // The delay of the retry starts when the source is down.
    assert_eq!(main.log().starts, 1);
    play.pipe.to(gst::State::Paused);
    play.play();
    gate.open();
    play.told("fallback-retry");
    play.follow_until(3200);
    main.wait("it starts again", |log| log.starts == 2);
}

// ---- retries

#[test]
fn retries_back_off() {
    let main = file("retries", 60 * SECOND, MAIN);
    main.refuse(100);
    let play = Play::playing(&format!(
        "uri={} retry-delay=1000000000 retry-delay-max=5000000000 enable-video=false",
        main.uri()
    ));
    // By definition, the pause doubles with each retry up to the limit, and half of it is random.
    for (number, longest_ms) in [1000, 2000, 4000, 5000, 5000].into_iter().enumerate() {
        let retry = play.told("fallback-retry");
        assert_eq!(retry.get("source"), Ok(0u32));
        assert_eq!(retry.get("uri"), Ok(main.uri()));
        assert_eq!(retry.get("retry"), Ok(number as u32 + 1));
        let delay_ns: u64 = retry.get("delay").unwrap();
        let bounds_ns = longest_ms * 500_000..=longest_ms * 1_000_000;
        assert!(bounds_ns.contains(&delay_ns), "{retry}");
        let starts = main.log().starts;
        let now_ms = play.now_ms();
        play.set_ms(now_ms + delay_ns / 1_000_000);
        assert_eq!(main.log().starts, starts, "not before its time");
        assert_eq!(play.status(), "retrying");
        play.set_ms(now_ms + delay_ns / 1_000_000 + 1);
        main.wait("a retry", |log| log.starts == starts + 1);
    }
    assert!(play.has_error().is_none());
}

#[test]
fn source_is_abandoned_after_its_retries() {
    let main = file("give-up", 60 * SECOND, MAIN);
    main.refuse(100);
    let fallback = file("give-up-fallback", 60 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} max-retries=2 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    // The switch may drop the first buffer, and the next one waits for the clock.
    play.stands_by("audio", 1);
    play.follow_until(4000);
    let given_up = play.told("fallback-given-up");
    assert_eq!(given_up.get("source"), Ok(0u32));
    assert_eq!(given_up.get("uri"), Ok(main.uri()));
    assert_eq!(given_up.get("reason"), Ok("error"));
    assert_eq!(play.status(), "stopped");
    play.follow_until(5000);
    assert_eq!(main.log().starts, 3);
    assert_eq!(play.audio().markers(), [FALLBACK]);
    assert!(play.has_error().is_none());
}

#[test]
fn the_stream_fails_if_no_source_delivers_for_the_retry_timeout() {
    let [main, fallback] = [live("over", MAIN), live("over-fallback", FALLBACK)];
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} retry-timeout=8000000000 retry-delay=100000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    play.feed_until(&main, 1000);
    main.refuse(100);
    fallback.refuse(100);
    for fault in [&main, &fallback] {
        fault.done(AUDIO, Step::Error("as told".into())).unwrap();
    }
    play.told("fallback-retry");
    play.told("fallback-retry");
    play.follow_until(8980);
    assert!(play.has_error().is_none());
    play.set_ms(9001);
    let text = play.error();
    for uri in [main.uri(), fallback.uri()] {
        assert!(text.contains(&uri), "{text}");
    }
    play.until_status("stopped");
}

#[test]
fn the_stream_continues_while_a_fallback_delivers() {
    let main = live("not-over", MAIN);
    main.refuse(1000);
    let fallback = file("not-over-fallback", 600 * SECOND, FALLBACK);
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} retry-timeout=1000000000 enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    // The switch may drop the first buffer, and the next one waits for the clock.
    play.stands_by("audio", 1);
    play.follow_until(10_000);
    assert!(play.has_error().is_none());
    assert_eq!(play.audio().markers(), [FALLBACK]);
    assert!(main.log().starts > 2);
}

// ---- messages to the application

#[test]
fn statistics_count_retries_and_are_notified() {
    let main = live("counted", MAIN);
    let fallback = live("counted-fallback", FALLBACK);
    let play = Play::new(&format!(
        "uri={} fallback-uri={} enable-video=false",
        main.uri(),
        fallback.uri()
    ));
    let notified = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for name in ["status", "statistics"] {
        let notified = notified.clone();
        play.element.connect_notify(Some(name), move |_, _| {
            notified.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
    }
    assert_eq!(play.status(), "stopped");
    play.play();
    assert_eq!(play.status(), "buffering");
    play.feed_until(&main, 100);
    assert_eq!(play.status(), "running");
    let is = |retries: [u64; 2], reasons: [&str; 2]| {
        for name in ["statistics", "stats"] {
            let counted: gst::Structure = play.element.property(name);
            assert_eq!(counted.get("num-retry"), Ok(retries[0]), "{name}");
            assert_eq!(counted.get("num-fallback-retry"), Ok(retries[1]));
            assert_eq!(counted.get("last-retry-reason"), Ok(reasons[0]));
            let last: &str = counted.get("last-fallback-retry-reason").unwrap();
            assert_eq!(last, reasons[1]);
            for field in ["buffering-percent", "fallback-buffering-percent"] {
                assert_eq!(counted.get(field), Ok(100u32));
            }
        }
    };
    is([0, 0], ["none", "none"]);
    let before = notified.load(std::sync::atomic::Ordering::SeqCst);
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.told("fallback-retry");
    is([1, 0], ["error", "none"]);
    assert_eq!(play.status(), "retrying");
    play.until("two notifications", || {
        notified.load(std::sync::atomic::Ordering::SeqCst) >= before + 2
    });
    fallback.wait("it is up", |log| log.starts == 1);
    // A fallback that ends is restarted.
    play.feed(&fallback, 100);
    fallback.done(AUDIO, Step::Eos).unwrap();
    play.told("fallback-retry");
    is([1, 1], ["error", "eos"]);
    let stats: gst::Structure = play.element.property("stats");
    let sources: gst::Array = stats.get("sources").unwrap();
    let uris: Vec<String> = (sources.iter())
        .map(|source| source.get::<gst::Structure>().unwrap().get("uri").unwrap())
        .collect();
    assert_eq!(uris, [main.uri(), fallback.uri()]);
}

#[test]
fn impossible_settings_are_refused_by_name() {
    faulty::init();
    let refused = |line: &str, source: Option<&str>| {
        let play = Play::new(line);
        if let Some(name) = source {
            play.element.set_property(name, make("audiotestsrc"));
        }
        assert!(play.pipe.0.set_state(gst::State::Ready).is_err(), "{line}");
        play.error()
    };
    let text = refused("", None);
    assert!(text.contains("uri") && text.contains("source"), "{text}");
    let text = refused("uri=fault://a", Some("source"));
    assert!(
        text.contains("uri=fault://a") && text.contains("source"),
        "{text}"
    );
    let text = refused(
        "uri=fault://a fallback-uri=fault://b",
        Some("fallback-source"),
    );
    assert!(
        text.contains("fallback-uri=fault://b") && text.contains("fallback-source"),
        "{text}"
    );
    let text = refused("uri=fault://a enable-audio=false enable-video=false", None);
    assert!(
        text.contains("enable-audio") && text.contains("enable-video"),
        "{text}"
    );
}

#[test]
fn properties_and_pads_stay_compatible_with_existing_pipelines() {
    let times = Some(("0", "18446744073709551614"));
    let pauses = Some(("10000000", "18446744073709551614"));
    let own: &[Row] = &[
        ("uri", "gchararray", "NULL", None, true),
        ("source", "GstElement", "NULL", None, true),
        ("fallback-uri", "gchararray", "NULL", None, true),
        ("fallback-source", "GstElement", "NULL", None, true),
        ("timeout", "guint64", "5000000000", times, true),
        ("restart-timeout", "guint64", "5000000000", times, true),
        ("retry-timeout", "guint64", "60000000000", times, true),
        ("restart-on-eos", "gboolean", "false", None, true),
        ("immediate-fallback", "gboolean", "false", None, true),
        ("manual-unblock", "gboolean", "false", None, true),
        ("enable-dummy", "gboolean", "true", None, true),
        ("min-latency", "guint64", "0", times, true),
        (
            "buffer-duration",
            "gint64",
            "-1",
            Some(("-1", "9223372036854775807")),
            true,
        ),
        ("audio-caps", "GstCaps", "NULL", None, true),
        ("video-caps", "GstCaps", "NULL", None, true),
        ("dummy-audio-caps", "GstCaps", "NULL", None, true),
        ("dummy-video-caps", "GstCaps", "NULL", None, true),
        ("fallback-audio-caps", "GstCaps", "NULL", None, true),
        ("fallback-video-caps", "GstCaps", "NULL", None, true),
        ("enable-audio", "gboolean", "true", None, true),
        ("enable-video", "gboolean", "true", None, true),
        (
            "status",
            "ThreadbareFallbackSourceStatus",
            "stopped",
            None,
            false,
        ),
    ];
    let further: &[Row] = &[
        ("fallback-uris", "GstValueArray", "<  >", None, true),
        ("retry-delay", "guint64", "1000000000", pauses, true),
        ("retry-delay-max", "guint64", "30000000000", pauses, true),
        (
            "max-retries",
            "gint",
            "-1",
            Some(("-1", "2147483647")),
            true,
        ),
        ("min-hold", "guint64", "0", times, true),
        ("recover-after", "guint64", "0", times, true),
        ("resume", "gboolean", "false", None, true),
    ];
    let of_bins: &[Row] = &[
        ("async-handling", "gboolean", "false", None, true),
        ("message-forward", "gboolean", "false", None, true),
    ];
    let element = make("fallbacksrc");
    let known = [CONTEXT_ROWS, own, further, of_bins].concat();
    for spec in element.list_properties() {
        let name = spec.name();
        let is_known = matches!(name, "name" | "parent" | "stats" | "statistics");
        let is_listed = known.iter().any(|row| row.0 == name);
        assert!(is_known || is_listed, "{name}");
    }
    for (name, kind, default, range, is_writable) in known {
        assert_row("fallbacksrc", &(name, kind, default, range, is_writable));
    }
    let statistics = element.find_property("statistics").unwrap();
    assert_eq!(statistics.value_type(), gst::Structure::static_type());
    assert!(!statistics.flags().contains(gst::glib::ParamFlags::WRITABLE));
    for name in ["audio_%u", "video_%u"] {
        let template = element.pad_template(name).unwrap();
        assert_eq!(template.presence(), gst::PadPresence::Sometimes);
        assert_eq!(template.direction(), gst::PadDirection::Src);
    }
    assert_eq!(element.pad_template_list().len(), 2);
    // Two names of the same value.
    for kind in ["audio", "video"] {
        let [old, new] = ["fallback", "dummy"].map(|name| format!("{name}-{kind}-caps"));
        let caps = gst::Caps::new_empty_simple(format!("{kind}/x-raw"));
        element.set_property(&old, &caps);
        assert_eq!(element.property::<Option<gst::Caps>>(&new), Some(caps));
    }
}

// ---- states

#[test]
fn states_change_in_every_order_with_failing_and_slow_sources() {
    use gst::State::{Null, Paused, Playing, Ready};
    let main = live("cycles", MAIN);
    let fallback = file("cycles-fallback", 60 * SECOND, FALLBACK);
    let play = Play::new(&format!(
        "uri={} fallback-uri={} retry-delay=10000000",
        main.uri(),
        fallback.av_uri()
    ));
    // Every change of state, from every state.
    let orders = [
        Ready, Null, Paused, Null, Playing, Null, Ready, Paused, Ready, Playing, Ready, Playing,
        Paused, Playing, Null, Playing, Paused, Ready, Null,
    ];
    for round in 0..4 {
        let gates = match round {
            1 => {
                main.refuse(3);
                vec![]
            }
            2 => vec![main.hold_starts()],
            3 => vec![main.hold_starts(), main.hold_stops()],
            _ => vec![],
        };
        let opener = std::thread::spawn(move || {
            // This opens the gates during the change.
            for gate in gates {
                gate.open();
            }
        });
        for state in orders {
            play.pipe.to(state);
        }
        opener.join().unwrap();
    }
    play.play();
    main.wait("it is up", |log| log.starts > log.stops);
    play.feed(&main, play.now_ms());
    play.until("it passes", || {
        play.audio().last().is_some_and(|one| one.marker == MAIN)
    });
    play.pipe.to(Null);
    for fault in [&main, &fallback] {
        fault.wait("all are down", |log| {
            log.alive == 0 || log.stops == log.starts
        });
    }
}

#[test]
fn pipeline_pause_is_not_a_stall() {
    let main = file("pause", 600 * SECOND, MAIN);
    let play = Play::begun(&format!("uri={} enable-video=false", main.uri()));
    play.follow_until(1000);
    play.pipe.to(gst::State::Paused);
    // The clock advances an hour, while running time is stopped.
    play.clock.set_time(play.clock.time() + 3600 * SECOND);
    play.go_on();
    play.play();
    play.follow_until(1200);
    assert_eq!(play.audio().markers(), [MAIN]);
    play.audio().assert_continuous();
    assert_eq!((main.log().starts, main.log().stops), (1, 0));
    assert!(play.has_told("fallback-retry").is_none());
}

#[test]
fn a_given_source_element_can_be_used_again() {
    let main = live("again", MAIN);
    let element = make("faultsrc");
    element.set_property("fault", "again");
    {
        let play = Play::new("enable-video=false");
        play.element.set_property("source", &element);
        for round in 0..2 {
            play.play();
            main.wait("it is up", |log| log.starts == 2 * round + 1);
            play.feed_until(&main, play.now_ms() + 100);
            // A failure in between restarts the same element.
            main.done(AUDIO, Step::Error("as told".into())).unwrap();
            let retry = play.told("fallback-retry");
            assert_eq!(retry.get("uri"), Ok(element.name().to_string()));
            play.set_ms(play.now_ms() + 1100);
            main.wait("it is up again", |log| log.starts == 2 * round + 2);
            play.feed_until(&main, play.now_ms() + 100);
            play.until("it passes", || play.audio().last().unwrap().marker == MAIN);
            play.pipe.to(gst::State::Null);
            assert_eq!(main.log().starts, main.log().stops);
            assert!(element.parent().is_none(), "it is nobody's");
        }
    }
    assert_eq!(main.log().made, 1);
    // The element is now in another pipeline.
    let pipe = Pipe(gst::Pipeline::new());
    let sink = make("fakesink");
    pipe.0.add_many([&element, &sink]).unwrap();
    element.link(&sink).unwrap();
    pipe.play();
    main.push(AUDIO, gst::ClockTime::ZERO).unwrap();
}

#[test]
fn a_dropped_element_leaves_nothing_behind() {
    let main = live("leaks", MAIN);
    let fallback = file("leaks-fallback", 60 * SECOND, FALLBACK);
    let element = {
        let play = Play::playing(&format!(
            "uri={} fallback-uri={} retry-delay=10000000",
            main.uri(),
            fallback.av_uri()
        ));
        play.feed_until(&main, 100);
        main.done(AUDIO, Step::Error("as told".into())).unwrap();
        play.told("fallback-retry");
        play.set_ms(200);
        main.wait("it is up again", |log| log.starts == 2);
        play.feed(&main, 200);
        let weak = play.element.downgrade();
        play.pipe.bus().set_flushing(true);
        weak
    };
    eventually("the element has gone", || element.upgrade().is_none());
    for fault in [&main, &fallback] {
        fault.wait("its sources have gone", |log| log.alive == 0);
    }
}

/// A bin aborts its state change at a child that fails. The other children would continue to run.
#[test]
fn all_parts_of_a_source_stop_with_it() {
    faulty::init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "no media\n").unwrap();
    let uri = gst::glib::filename_to_uri(path, None).unwrap();
    for i in 0..100 {
        let line = format!("fallbacksrc uri={uri} retry-delay=10000000 enable-dummy=false");
        let pipe = Pipe::parse(&line);
        let (send, added) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        pipe.0.connect_deep_element_added(move |_, _, part| {
            let _ = send.lock().unwrap().send(part.clone());
        });
        pipe.play();
        // The source has started so far, and its decoder fails about now. So each state change finds the decoder in another
        // state.
        let mut parts = Vec::new();
        let is_last = |part: &gst::Element| part.name().starts_with("typefind");
        while !parts.last().is_some_and(is_last) {
            parts.push(added.recv_timeout(DEADLINE).unwrap());
        }
        for _ in 0..i * 50 {
            std::thread::yield_now();
        }
        for state in [gst::State::Ready, gst::State::Null] {
            pipe.to(state);
        }
        for part in parts.into_iter().chain(added.try_iter()) {
            let name = part.name();
            assert_eq!(part.current_state(), gst::State::Null, "{i}: {name}");
        }
    }
}

// ---- streams of a fallback

/// Returns which of two fallback streams passes. The fallback has two streams of audio, of `FALLBACK` and `LATER`, and the main
/// source has no data. `answer` maps the streams of the two ids.
fn mapped(
    name: &str,
    answer: impl Fn(gst::Structure, [String; 2]) -> Option<gst::Structure> + Send + Sync + 'static,
) -> u8 {
    let main = live(name, MAIN);
    let names = ["first", "second"].map(|of| format!("{name}-{of}"));
    let _faults = [
        file(&names[0], 60 * SECOND, FALLBACK),
        file(&names[1], 60 * SECOND, LATER),
    ];
    let bin = gst::Bin::new();
    for (number, name) in names.iter().enumerate() {
        let part = make("faultsrc");
        part.set_property("fault", name);
        bin.add(&part).unwrap();
        let pad = part.static_pad("src").unwrap();
        let ghost = gst::GhostPad::builder_with_target(&pad).unwrap();
        let ghost = ghost.name(format!("src_{number}")).build();
        bin.add_pad(&ghost).unwrap();
    }
    let play = Play::new(&format!(
        "uri={} enable-video=false immediate-fallback=true timeout=60000000000 restart-timeout=60000000000",
        main.uri()
    ));
    play.element.set_property("fallback-source", &bin);
    play.element.connect("map-streams", false, move |args| {
        let map = args[1].get::<gst::Structure>().unwrap();
        let fallback = args[3].get::<gst::StreamCollection>().unwrap();
        let ids = fallback.iter().map(|stream| {
            assert_eq!(stream.stream_type(), gst::StreamType::AUDIO);
            assert!(stream.caps().is_some());
            stream.stream_id().unwrap().to_string()
        });
        let ids: Vec<String> = ids.collect();
        Some(answer(map, ids.try_into().unwrap()).to_value())
    });
    play.play();
    play.until("the fallback", || {
        play.set_ms(play.now_ms() + 20);
        let last = play.audio().last();
        last.is_some_and(|last| last.marker != SILENCE)
    });
    play.follow_until(play.now_ms() + 200);
    let last = play.audio().last().unwrap().marker;
    play.pipe.to(gst::State::Null);
    last
}

/// Returns the map with another entry for the audio.
fn with_audio(mut map: gst::Structure, main: Option<&str>, fallback: &str) -> gst::Structure {
    let bound = gst::Structure::builder("bound-streams")
        .field("main", main)
        .field("fallback", fallback)
        .build();
    map.set("audio_0", bound);
    map
}

#[test]
fn the_application_chooses_a_stream_of_a_fallback() {
    let second = mapped("map", |map, [first, second]| {
        assert_eq!(map.name(), "fallbacksrc-stream-map");
        let bound: gst::Structure = map.get("audio_0").unwrap();
        assert_eq!(bound.get::<Option<String>>("fallback"), Ok(Some(first)));
        Some(with_audio(map, None, &second))
    });
    assert_eq!(second, LATER);
    let unchanged = mapped("map-same", |map, _| Some(map));
    assert_eq!(unchanged, FALLBACK);
    let nothing = mapped("map-none", |_, _| None);
    assert_eq!(nothing, FALLBACK);
    // Invalid answers.
    let unknown = mapped("map-unknown", |map, _| {
        Some(with_audio(map, None, "no such stream"))
    });
    assert_eq!(unknown, FALLBACK);
    let of_main = mapped("map-main", |map, [_, second]| {
        Some(with_audio(map, Some("another"), &second))
    });
    assert_eq!(of_main, FALLBACK);
}
