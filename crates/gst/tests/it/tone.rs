//! `ts-tonesrc` and `ts-audiotestsrc`: their audio, its times, and the life of a source.

use std::f64::consts::TAU;

use crate::common::*;
use gst::prelude::*;
use gst_check::TestClock;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;
const BOTH: [&str; 2] = [
    "ts-tonesrc freq=440 off-time=0 repeat=true",
    "ts-audiotestsrc",
];

/// Returns an element on a test clock, playing from time 0.
fn on_clock(line: &str) -> (Rig, TestClock) {
    let rig = Rig::without_stream(&format!("{line} context={}", context()), gst::State::Null);
    let clock = TestClock::new();
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(gst::ClockTime::ZERO);
    rig.to(gst::State::Playing);
    // The element has already read the clock when it starts to wait.
    drop(clock.wait_for_next_pending_id());
    (rig, clock)
}

/// Advances the clock to `time`.
fn run_to(clock: &TestClock, time: gst::ClockTime) {
    drop(clock.wait_for_next_pending_id());
    clock.set_time(time);
    clock.process_next_clock_id();
}

/// Returns this many samples of S16, one channel. The clock must have run for long enough.
fn samples(rig: &Rig, count: usize) -> Vec<f64> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(s16(&rig.buffer()));
    }
    all.truncate(count);
    all
}

fn s16(buffer: &gst::BufferRef) -> Vec<f64> {
    let bytes = bytes(buffer);
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])))
        .collect()
}

/// Returns the amplitude of one frequency in a whole number of its periods (Goertzel, by its definition).
fn amplitude(samples: &[f64], freq_hz: f64, rate: f64) -> f64 {
    let (mut re, mut im) = (0.0, 0.0);
    for (n, sample) in samples.iter().enumerate() {
        let phase = TAU * freq_hz * n as f64 / rate;
        re += sample * phase.cos();
        im += sample * phase.sin();
    }
    2.0 * re.hypot(im) / samples.len() as f64
}

/// Relative to 0 dBm0: a sine of +3.14 dBm0 has full scale.
#[allow(clippy::approx_constant, reason = "decibels")]
fn dbm0(amplitude: f64) -> f64 {
    20.0 * (amplitude / 32_767.0).log10() + 3.14
}

#[test]
fn properties_stay_compatible_with_existing_pipelines() {
    let samples: Row = (
        "samples-per-buffer",
        "guint",
        "1024",
        Some(("1", "2147483647")),
        true,
    );
    let volume = Some(("-50", "0"));
    let freq = Some(("0", "20000"));
    let time = Some(("0", "2147483647"));
    let tone: &[Row] = &[
        samples,
        ("caps", "GstCaps", "NULL", None, true),
        ("freq", "gint", "0", freq, true),
        ("volume", "gint", "0", volume, true),
        ("freq2", "gint", "0", freq, true),
        ("volume2", "gint", "0", volume, true),
        ("on-time", "gint", "1000", Some(("1", "2147483647")), true),
        ("off-time", "gint", "1000", time, true),
        ("on-time2", "gint", "1000", time, true),
        ("off-time2", "gint", "1000", time, true),
        ("repeat", "gboolean", "false", None, true),
    ];
    assert_properties("ts-tonesrc", &[CONTEXT_ROWS, tone].concat());
    let test: &[Row] = &[
        samples,
        ("wave", "ThreadbareAudioTestSrcWave", "sine", None, true),
        ("freq", "guint", "440", Some(("1", "4294967295")), true),
        (
            "volume",
            "gdouble",
            "0.80000000000000004",
            Some(("0", "10")),
            true,
        ),
        ("mute", "gboolean", "false", None, true),
        ("is-live", "gboolean", "true", None, true),
        (
            "num-buffers",
            "gint",
            "-1",
            Some(("-1", "2147483647")),
            true,
        ),
        (
            "timestamp-offset",
            "gint64",
            "0",
            Some(("-9223372036854775808", "9223372036854775807")),
            true,
        ),
    ];
    assert_properties("ts-audiotestsrc", &[CONTEXT_ROWS, test].concat());
}

#[test]
fn waves_have_the_nicks_of_the_stock_element() {
    let (ours, stock) = (make("ts-audiotestsrc"), make("audiotestsrc"));
    let class = |element: &gst::Element| {
        gst::glib::EnumClass::with_type(element.property_type("wave").unwrap()).unwrap()
    };
    let nicks = |class: &gst::glib::EnumClass| -> Vec<(i32, String)> {
        let values = class.values().iter();
        values.map(|v| (v.value(), v.nick().to_owned())).collect()
    };
    assert_eq!(nicks(&class(&ours)), nicks(&class(&stock)));
}

#[test]
fn a_tone_has_only_its_frequencies_at_the_set_levels() {
    for (volume, volume2) in [(0, -10), (-13, -13), (-3, -40), (-50, -50)] {
        let (rig, clock) = on_clock(&format!(
            "ts-tonesrc freq=350 freq2=440 volume={volume} volume2={volume2} on-time=60000 samples-per-buffer=160"
        ));
        run_to(&clock, 2000 * MS);
        let heard = samples(&rig, 8000);
        for (freq, asked) in [(350.0, volume), (440.0, volume2)] {
            let level = dbm0(amplitude(&heard, freq, 8000.0));
            assert!(
                (level - f64::from(asked)).abs() < 0.1,
                "{freq} Hz: {level}, not {asked}"
            );
        }
        for freq in [90.0, 790.0, 1000.0, 3950.0] {
            let level = dbm0(amplitude(&heard, freq, 8000.0));
            assert!(level < -75.0, "{freq} Hz: {level}");
        }
    }
}

#[test]
fn a_cadence_is_exact_to_the_sample_across_buffers() {
    // At a quarter of the rate, every second sample is silent, the others are not.
    let (rig, clock) = on_clock(
        "ts-tonesrc freq=2000 on-time=100 off-time=50 on-time2=20 off-time2=31 repeat=true samples-per-buffer=77",
    );
    run_to(&clock, 2000 * MS);
    let heard = samples(&rig, 8 * 201 * 4);
    for (i, pair) in heard.chunks(2).enumerate() {
        let ms = (2 * i / 8) % 201;
        let is_on = ms < 100 || (150..170).contains(&ms);
        assert_eq!(pair.iter().any(|s| s.abs() > 1000.0), is_on, "at {ms} ms");
    }
}

#[test]
fn a_tone_that_is_not_repeated_ends_in_silence_and_a_new_one_begins() {
    let (rig, clock) =
        on_clock("ts-tonesrc freq=2000 on-time=20 off-time=20 on-time2=0 samples-per-buffer=160");
    run_to(&clock, 200 * MS);
    let is_on: Vec<bool> = (0..10)
        .map(|_| s16(&rig.buffer()).iter().any(|s| *s != 0.0))
        .collect();
    assert_eq!(
        is_on,
        [
            true, false, false, false, false, false, false, false, false, false
        ]
    );
    rig.element.set_property("freq", 1000);
    run_to(&clock, 240 * MS);
    assert!(s16(&rig.buffer()).iter().any(|s| *s != 0.0));
}

#[test]
fn change_while_playing_continues_in_phase() {
    let (rig, clock) = on_clock("ts-tonesrc freq=100 on-time=60000 samples-per-buffer=100");
    run_to(&clock, 1000 * MS);
    let mut heard = samples(&rig, 8000);
    // Each change applies from the next buffer on. Buffers may come between two changes.
    for (property, value) in [("volume", -1), ("freq", 101)] {
        rig.element.set_property(property, value);
        run_to(&clock, clock.time() + 1000 * MS);
        heard.extend(samples(&rig, 8000));
    }
    let steps = heard.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    // This is the steepest slope that 101 Hz can have.
    let most = steps.fold(0.0, f64::max);
    assert!(most < 22_827.0 * TAU * 101.0 / 8000.0 * 1.1, "{most}");
    let end = &heard[16_000..];
    assert!((dbm0(amplitude(end, 101.0, 8000.0)) + 1.0).abs() < 0.1);
}

#[test]
fn each_buffer_is_pushed_at_its_end_and_times_do_not_drift() {
    for line in BOTH {
        // At this rate, the times are never whole nanoseconds.
        let caps = if line.contains("tonesrc") {
            "caps=audio/x-raw,rate=44100"
        } else {
            ""
        };
        let (rig, clock) = on_clock(&format!("{line} samples-per-buffer=100 {caps}"));
        let ns = |n: u64| gst::ClockTime::from_nseconds(n * 100 * 1_000_000_000 / 44_100);
        // The element waits only for the end of each buffer.
        for n in 0..20 {
            let due = clock.wait_for_next_pending_id().time();
            if n > 0 || due == ns(1) {
                assert_eq!(due, ns(n + 1), "{line}");
                assert!(
                    rig.seen
                        .try_iter()
                        .all(|seen| !matches!(seen, Seen::Buffer(_)))
                );
            }
            run_to(&clock, due);
            let buffer = rig.buffer();
            assert_eq!(buffer.offset(), n * 100);
            if n > 0 {
                assert_eq!(buffer.pts(), Some(ns(n)), "{line}");
                assert_eq!(
                    buffer.pts().unwrap() + buffer.duration().unwrap(),
                    ns(n + 1)
                );
            }
            assert_eq!(buffer.dts(), None);
            assert_eq!(buffer.flags().contains(gst::BufferFlags::DISCONT), n == 0);
        }
        run_to(&clock, 3600 * gst::ClockTime::SECOND);
        for n in 20..100 {
            assert_eq!(rig.buffer().pts(), Some(ns(n)));
        }
    }
}

#[test]
fn timestamps_of_a_late_stream_begin_at_its_start_time() {
    for line in BOTH {
        let rig = Rig::without_stream(line, gst::State::Null);
        let clock = TestClock::with_start_time(700 * MS);
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(200 * MS);
        rig.to(gst::State::Playing);
        let due = clock.wait_for_next_pending_id().time();
        run_to(&clock, due);
        assert_eq!(rig.buffer().pts(), Some(500 * MS), "{line}");
    }
}

#[test]
fn output_follows_downstream_caps() {
    for line in BOTH {
        let pipe = Pipe::parse(&format!(
            "{line} context={} samples-per-buffer=160 ! capsfilter name=filter caps=audio/x-raw,rate=16000 ! fakesink name=out async=false sync=false",
            context()
        ));
        let seen = watch(&pipe.pad("out", "sink"));
        pipe.play();
        let rate = |event: gst::Event| -> i32 {
            let gst::EventView::Caps(caps) = event.view() else {
                unreachable!()
            };
            caps.caps().structure(0).unwrap().get("rate").unwrap()
        };
        assert_eq!(rate(next_event(&seen, gst::EventType::Caps)), 16_000);
        let before = next_buffer(&seen);
        assert_eq!(before.duration(), Some(10 * MS));
        let caps = gst::Caps::builder("audio/x-raw")
            .field("rate", 32_000)
            .field("channels", 2)
            .build();
        pipe.get("filter").set_property("caps", &caps);
        let mut end = before.pts().unwrap() + before.duration().unwrap();
        loop {
            match seen.recv_timeout(DEADLINE).unwrap() {
                Seen::Buffer(buffer) => {
                    assert_eq!(buffer.pts(), Some(end), "time goes on");
                    end += buffer.duration().unwrap();
                }
                Seen::Event(event) if event.type_() == gst::EventType::Caps => {
                    assert_eq!(rate(event), 32_000);
                    break;
                }
                Seen::Event(_) => {}
            }
        }
        let after = next_buffer(&seen);
        assert_eq!((after.pts(), after.size()), (Some(end), 640));
        assert_eq!(after.duration(), Some(5 * MS));
        pipe.assert_no_error();
    }
}

#[test]
fn impossible_caps_are_an_error() {
    for line in [
        "ts-tonesrc name=src ! fakesink",
        "ts-audiotestsrc samples-per-buffer=2000000000 is-live=false ! fakesink",
    ] {
        let pipe = Pipe::parse(line);
        if let Some(tone) = pipe.0.by_name("src") {
            tone.set_property("caps", gst::Caps::new_empty_simple("audio/x-other"));
        }
        pipe.play();
        pipe.message(&[gst::MessageType::Error]);
    }
}

#[test]
fn the_sine_equals_that_of_the_stock_element() {
    for (rate, freq) in [(44_100, 440), (8000, 1000), (48_000, 997)] {
        let end = format!(
            "freq={freq} volume=0.7 num-buffers=100 ! audio/x-raw,format=S16LE,channels=2,rate={rate} ! fakesink name=out sync=false"
        );
        let heard = [
            "audiotestsrc samplesperbuffer=500",
            "ts-audiotestsrc is-live=false samples-per-buffer=500",
        ]
        .map(|source| {
            let pipe = Pipe::parse(&format!("{source} {end}"));
            let seen = watch(&pipe.pad("out", "sink"));
            pipe.play();
            let buffers: Vec<gst::Buffer> = (0..100).map(|_| next_buffer(&seen)).collect();
            next_event(&seen, gst::EventType::Eos);
            buffers
        });
        let [stock, ours] = heard;
        for (theirs, ours) in stock.iter().zip(&ours) {
            assert_eq!(
                (ours.pts(), ours.duration()),
                (theirs.pts(), theirs.duration())
            );
            for (a, b) in s16(theirs).into_iter().zip(s16(ours)) {
                assert!((a - b).abs() <= 1.0, "{a} {b}");
            }
            assert_eq!(ours.size(), theirs.size());
        }
    }
}

#[test]
fn floats_and_wide_integers_equal_those_of_the_stock_element() {
    for format in ["F32LE", "F64LE", "S32LE"] {
        for wave in ["sine", "square", "saw", "triangle", "silence"] {
            let end = format!(
                "wave={wave} num-buffers=1 ! audio/x-raw,format={format},channels=1,rate=8000 ! fakesink name=out sync=false"
            );
            let [stock, ours] = ["audiotestsrc", "ts-audiotestsrc is-live=false"].map(|source| {
                let pipe = Pipe::parse(&format!("{source} {end}"));
                let seen = watch(&pipe.pad("out", "sink"));
                pipe.play();
                let data = bytes(&next_buffer(&seen));
                match format {
                    "F32LE" => data
                        .chunks_exact(4)
                        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                        .collect(),
                    "F64LE" => data
                        .chunks_exact(8)
                        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                        .collect(),
                    _ => data
                        .chunks_exact(4)
                        .map(|b| {
                            f64::from(i32::from_le_bytes(b.try_into().unwrap())) / 2f64.powi(31)
                        })
                        .collect::<Vec<f64>>(),
                }
            });
            assert_eq!(stock.len(), ours.len());
            // At the edge of a square wave, the last bit of the phase decides the sample.
            let differ = stock
                .iter()
                .zip(&ours)
                .filter(|(a, b)| (*a - *b).abs() > 1e-6);
            assert!(differ.count() <= 12, "{format} {wave}");
        }
    }
}

#[test]
fn buffers_are_counted_and_offset_and_muted() {
    let rig = Rig::without_stream(
        &format!(
            "ts-audiotestsrc is-live=false num-buffers=2 timestamp-offset=5000000000 mute=true context={}",
            context()
        ),
        gst::State::Paused,
    );
    let first = rig.buffer();
    assert_eq!(first.pts(), Some(5 * gst::ClockTime::SECOND));
    assert!(s16(&first).iter().all(|s| *s == 0.0));
    rig.buffer();
    rig.event(gst::EventType::Eos);
    let stats = rig.element.property::<gst::Structure>("stats");
    assert_eq!(stats.get::<u64>("buffers"), Ok(2));
    assert_eq!(stats.get::<u64>("samples"), Ok(2 * 1024));
}

#[test]
fn latency_is_a_buffer_and_a_slice() {
    for line in [
        "ts-tonesrc samples-per-buffer=160 context-wait=20",
        "ts-audiotestsrc samples-per-buffer=882 context-wait=20",
    ] {
        let rig = Rig::without_stream(
            &format!("{line} context={}", context()),
            gst::State::Playing,
        );
        let mut query = gst::query::Latency::new();
        assert!(rig.drain.peer_query(&mut query));
        assert_eq!(query.result(), (true, 40 * MS, None), "{line}");
        rig.element.set_property("samples-per-buffer", 1u32);
        let message = rig
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Latency]);
        assert!(message.is_some(), "the change is reported");
        let mut query = gst::query::Scheduling::new();
        assert!(rig.drain.peer_query(&mut query));
        assert!(query.has_scheduling_mode(gst::PadMode::Push));
        assert!(!query.has_scheduling_mode(gst::PadMode::Pull));
        let caps = rig.drain.peer_query_caps(None);
        assert!(
            caps.can_intersect(
                &gst::Caps::builder("audio/x-raw")
                    .field("rate", 1234)
                    .build()
            )
        );
    }
    let rig = Rig::without_stream("ts-audiotestsrc is-live=false", gst::State::Ready);
    let mut query = gst::query::Latency::new();
    assert!(rig.drain.peer_query(&mut query));
    assert_eq!(query.result(), (false, gst::ClockTime::ZERO, None));
}

#[test]
fn without_a_clock_it_uses_its_contexts_clock() {
    for line in BOTH {
        let pipe = Pipe::parse(&format!(
            "{line} samples-per-buffer=80 context={} ! fakesink name=out async=false",
            context()
        ));
        pipe.0.use_clock(gst::Clock::NONE);
        let seen = watch(&pipe.pad("out", "sink"));
        pipe.play();
        let first = next_buffer(&seen).pts().unwrap();
        assert!(next_buffer(&seen).pts().unwrap() > first);
        // The same holds across a pause.
        pipe.to(gst::State::Paused);
        pipe.play();
        next_buffer(&seen);
        pipe.assert_no_error();
    }
}

#[test]
fn flush_starts_a_segment_and_data_resumes() {
    for line in BOTH {
        let (rig, clock) = on_clock(line);
        run_to(&clock, 500 * MS);
        rig.buffer();
        rig.element.send_event(gst::event::FlushStart::new());
        rig.event(gst::EventType::FlushStart);
        rig.element.send_event(gst::event::FlushStop::new(true));
        rig.event(gst::EventType::FlushStop);
        rig.event(gst::EventType::Segment);
        let mut now = 500 * MS;
        let buffer = loop {
            // The restart of the source cannot be observed.
            now += 500 * MS;
            clock.set_time(now);
            clock.process_next_clock_id();
            if let Ok(Seen::Buffer(buffer)) = rig.seen.recv_timeout(DEADLINE / 1000) {
                break buffer;
            }
        };
        assert!(buffer.flags().contains(gst::BufferFlags::DISCONT));
        rig.element.send_event(gst::event::Eos::new());
        rig.event(gst::EventType::Eos);
    }
}

#[test]
fn the_element_works_after_each_restart() {
    for line in BOTH {
        let rig = Rig::without_stream(
            &format!("{line} samples-per-buffer=80 context={}", context()),
            gst::State::Null,
        );
        goes_up_and_down(&rig, || {
            rig.buffer();
        });
    }
}

#[test]
fn a_stuck_push_blocks_neither_a_stop_nor_a_pause() {
    for line in BOTH {
        let pipe = Pipe::parse(&format!(
            "{line} context={} ! identity name=last ! fakesink async=false",
            context()
        ));
        let (send, blocked) = std::sync::mpsc::channel();
        pipe.pad("last", "src").add_probe(
            gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER,
            move |_, _| {
                let _ = send.send(());
                gst::PadProbeReturn::Ok
            },
        );
        for _ in 0..2 {
            pipe.play();
            blocked.recv_timeout(DEADLINE).unwrap();
            pipe.to(gst::State::Paused);
            pipe.play();
            pipe.to(gst::State::Null);
        }
    }
}

#[test]
fn an_error_downstream_is_reported() {
    for line in BOTH {
        let (rig, clock) = on_clock(line);
        *rig.answer.lock().unwrap() = Err(gst::FlowError::NotSupported);
        run_to(&clock, 500 * MS);
        assert!(text(&rig.error()).contains("NotSupported"));
    }
}
