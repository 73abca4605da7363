//! `fallbackswitch` in whole pipelines, with the inputs on one context.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use crate::common::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;

/// While set, nothing passes the pad.
fn silence(pad: &gst::Pad) -> Arc<AtomicBool> {
    let is_silent = Arc::new(AtomicBool::new(false));
    let of_probe = is_silent.clone();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        if of_probe.load(Ordering::SeqCst) {
            gst::PadProbeReturn::Handled
        } else {
            gst::PadProbeReturn::Ok
        }
    });
    is_silent
}

/// Returns the next switch of the pipeline: from, to, and why.
fn switch(pipe: &Pipe) -> (Option<String>, String, String) {
    loop {
        let message = pipe.expect(gst::MessageType::Element);
        let details = message.structure().unwrap();
        if details.name() == "fallback-switch" {
            let text = |name: &str| details.get::<String>(name).unwrap();
            return (details.get("from").unwrap(), text("to"), text("reason"));
        }
    }
}

fn expect_switch(pipe: &Pipe, from: usize, to: usize, reason: &str) {
    let expected = (
        Some(format!("sink_{from}")),
        format!("sink_{to}"),
        reason.to_owned(),
    );
    assert_eq!(switch(pipe), expected);
}

/// Buffers of a stream, with the stream's number; each switch starts the next stream.
fn streams(seen: &Receiver<Seen>) -> Vec<Vec<gst::Buffer>> {
    let mut streams = Vec::new();
    for seen in seen.try_iter() {
        match seen {
            Seen::Event(event) if event.type_() == gst::EventType::StreamStart => {
                streams.push(Vec::new());
            }
            Seen::Buffer(buffer) => streams.last_mut().expect("a stream begins").push(buffer),
            Seen::Event(_) => {}
        }
    }
    streams
}

const RATE: f64 = 8000.0;

fn samples(buffer: &gst::BufferRef) -> Vec<f64> {
    let bytes = bytes(buffer);
    let quads = bytes.chunks_exact(4);
    quads
        .map(|quad| f32::from_le_bytes(quad.try_into().unwrap()).into())
        .collect()
}

/// Fails unless the buffers are one sine of this frequency along their timestamps.
fn assert_tone(buffers: &[gst::Buffer], freq_hz: f64) {
    let origin = buffers[0].pts().unwrap();
    // Phase and level at the origin, from projections over the second buffer, which is whole.
    let seconds =
        |buffer: &gst::BufferRef| (buffer.pts().unwrap() - origin).nseconds() as f64 / 1e9;
    let phase =
        |buffer: &gst::BufferRef, k: usize| TAU * freq_hz * (seconds(buffer) + k as f64 / RATE);
    let second = &buffers[1];
    let (mut re, mut im) = (0.0, 0.0);
    let all = samples(second);
    for (k, sample) in all.iter().enumerate() {
        re += sample * phase(second, k).sin() * 2.0 / all.len() as f64;
        im += sample * phase(second, k).cos() * 2.0 / all.len() as f64;
    }
    assert!(re.hypot(im) > 0.5, "a tone of {freq_hz} Hz");
    for buffer in buffers {
        for (k, sample) in samples(buffer).into_iter().enumerate() {
            let (sin, cos) = phase(buffer, k).sin_cos();
            let expected = re * sin + im * cos;
            let at = buffer.pts().unwrap();
            assert!(
                (sample - expected).abs() < 0.01,
                "{freq_hz} Hz, {at}, frame {k}: {sample} for {expected}"
            );
        }
    }
}

#[test]
fn tones_are_continuous_across_switches() {
    let context = context();
    let source = |freq: u32, samples: u32| {
        format!(
            "ts-audiotestsrc freq={freq} samples-per-buffer={samples} context={context} \
             ! audio/x-raw,format=F32LE,rate=8000,channels=1 ! s."
        )
    };
    // The buffers have whole periods: 10 ms of 400 Hz, 7.5 ms of 800 Hz. The long latency keeps buffers of a delayed thread from
    // being due before they arrive. So the switch can wait until the new input joins the output without a gap.
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s timeout=100000000 latency=1000000000 seamless=true context={context} ! fakesink name=out sync=false async=false {} {}",
        source(400, 80),
        source(800, 60)
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    let main = pipe.pad("s", "sink_0").peer().unwrap();
    let is_silent = silence(&main);
    pipe.play();
    assert_eq!(switch(&pipe).2, "start");
    let healthy = |name: &str| pipe.pad("s", name).property::<bool>("is-healthy");
    eventually("both deliver", || {
        healthy("sink_0") && healthy("sink_1") && stat(&pipe.get("s"), "passed") > 5
    });
    is_silent.store(true, Ordering::SeqCst);
    let some_more = || {
        let passed = stat(&pipe.get("s"), "passed");
        eventually("some more", || stat(&pipe.get("s"), "passed") > passed + 5);
    };
    expect_switch(&pipe, 0, 1, "timeout");
    some_more();
    is_silent.store(false, Ordering::SeqCst);
    expect_switch(&pipe, 1, 0, "recovered");
    some_more();
    pipe.to(gst::State::Paused);
    let streams = streams(&seen);
    let [before, meanwhile, after] = &streams[..] else {
        panic!("{} streams", streams.len());
    };
    assert_tone(before, 400.0);
    assert_tone(meanwhile, 800.0);
    assert_tone(after, 400.0);
    // After the failed input, there is a gap of the timeout's length. After its return, there is none.
    let end = |buffer: &gst::BufferRef| buffer.pts().unwrap() + buffer.duration().unwrap();
    let joint = end(meanwhile.last().unwrap());
    let gap = after[0]
        .pts()
        .unwrap()
        .nseconds()
        .abs_diff(joint.nseconds());
    assert!(gap < 125_000, "less than a frame: {gap} ns");
    for pair in [before, meanwhile, after]
        .iter()
        .flat_map(|stream| stream.windows(2))
    {
        let gap = pair[1]
            .pts()
            .unwrap()
            .nseconds()
            .abs_diff(end(&pair[0]).nseconds());
        assert!(gap < 125_000, "within a stream: {gap} ns");
    }
}

#[test]
fn file_and_live_stream_stay_in_step_on_one_thread() {
    let context = context();
    let caps = "audio/x-raw,format=F32LE,rate=8000,channels=1";
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s context={context} ! fakesink name=out sync=false async=false \
         ts-audiotestsrc samples-per-buffer=160 context={context} ! {caps} ! s.sink_0 \
         ts-audiotestsrc samples-per-buffer=160 is-live=false context={context} ! {caps} ! s.sink_1"
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    for _ in 0..15 {
        next_buffer(&seen);
    }
    let main = pipe.pad("s", "sink_0");
    let dropped = stat(&pipe.get("s"), "dropped");
    // Each buffer has 20 ms, so about as many are dropped as have passed. Without the limit, thousands would be dropped.
    assert!((5..200).contains(&dropped), "{dropped}");
    let source = main.peer().unwrap();
    assert!(source.unlink(&main).is_ok());
    let mut buffers = Vec::new();
    while buffers.len() < 5 {
        match seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Event(event) if event.type_() == gst::EventType::StreamStart => buffers.clear(),
            Seen::Event(_) => {}
            Seen::Buffer(buffer) => buffers.push(buffer),
        }
    }
    for pair in buffers.windows(2) {
        assert_eq!(
            pair[1].pts(),
            Some(pair[0].pts().unwrap() + pair[0].duration().unwrap())
        );
    }
    pipe.bus().set_flushing(true);
}

#[test]
fn packets_of_two_sockets_switch_on_one_thread() {
    let context = context();
    let source = |name: &str| {
        format!(
            "ts-udpsrc name={name} address=127.0.0.1 port=0 caps=application/x-test context={context} ! s."
        )
    };
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s timeout=200000000 context={context} ! fakesink name=out sync=false async=false {} {}",
        source("main"),
        source("other")
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let sender = socket();
    let send = |to: &str, n: u32| {
        sender.send_to(&packet(n), target(&pipe.get(to))).unwrap();
    };
    let is_healthy = |name: &str| pipe.pad("s", name).property::<bool>("is-healthy");
    send("main", 0);
    assert_eq!(number(&next_buffer(&seen)), 0);
    send("other", 100);
    eventually("the other is heard", || {
        is_healthy("sink_1") || !is_healthy("sink_0")
    });
    // The main socket gets no more packets.
    let mut n = 100;
    let passed = std::cell::Cell::new(None);
    eventually("the other passes", || {
        n += 1;
        send("other", n);
        passed.set(seen.try_iter().find_map(|seen| match seen {
            Seen::Buffer(buffer) => Some(number(&buffer)),
            Seen::Event(_) => None,
        }));
        passed.get().is_some()
    });
    assert!(passed.get() > Some(100));
    send("main", 1);
    while number(&next_buffer(&seen)) != 1 {}
}

#[test]
fn compressed_video_is_whole_for_its_decoder_across_the_switches() {
    let source = |pattern: &str| {
        format!(
            "videotestsrc is-live=true pattern={pattern} ! video/x-raw,width=64,height=48,framerate=50/1 \
             ! vp8enc deadline=1 keyframe-max-dist=1000 ! s."
        )
    };
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s timeout=200000000 seamless=true context={} ! tee name=t ! queue ! vp8dec ! fakesink name=out sync=false async=false \
         {} {}",
        context(),
        source("smpte"),
        source("ball")
    ));
    let seen = watch(&pipe.pad("t", "sink"));
    let pictures = watch(&pipe.pad("out", "sink"));
    let is_silent = silence(&pipe.pad("s", "sink_0").peer().unwrap());
    pipe.play();
    assert_eq!(switch(&pipe).2, "start");
    let is_healthy = |name: &str| pipe.pad("s", name).property::<bool>("is-healthy");
    eventually("both deliver", || {
        is_healthy("sink_0") && is_healthy("sink_1")
    });
    is_silent.store(true, Ordering::SeqCst);
    expect_switch(&pipe, 0, 1, "timeout");
    // The first keyframe of this stream was dropped long ago, and the next one is a thousand pictures away. So a keyframe here
    // can only be the answer to the request.
    let is_key = |seen: &Seen| match seen {
        Seen::Buffer(buffer) => !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
        Seen::Event(_) => false,
    };
    let mut log = Vec::new();
    let mut wait_for_keyframe = |count: usize| {
        while log.iter().filter(|seen| is_key(seen)).count() < count {
            log.push(seen.recv_timeout(DEADLINE).expect("no keyframe came"));
        }
    };
    wait_for_keyframe(2);
    is_silent.store(false, Ordering::SeqCst);
    expect_switch(&pipe, 1, 0, "recovered");
    wait_for_keyframe(3);
    let mut is_new = true;
    for seen in log {
        match &seen {
            Seen::Event(event) => is_new |= event.type_() == gst::EventType::StreamStart,
            Seen::Buffer(_) => {
                assert!(is_key(&seen) || !is_new, "a stream begins in the middle");
                is_new = false;
            }
        }
    }
    next_buffer(&pictures);
    pipe.assert_no_error();
}

#[test]
fn latency_of_a_live_pipeline_is_that_of_the_switch() {
    let pipe = Pipe::parse(
        "fallbackswitch name=s latency=30000000 ! fakesink name=out sync=true \
         ts-audiotestsrc samples-per-buffer=160 ! audio/x-raw,rate=8000 ! s.",
    );
    pipe.play();
    // Before its first buffer, a sink does not know the latency.
    eventually("a latency of 30 ms or more", || {
        let mut query = gst::query::Latency::new();
        let is_answered = pipe.0.query(&mut query);
        let (is_live, min, _) = query.result();
        is_answered && is_live && min >= 30 * MS
    });
}

#[test]
fn silent_first_choice_that_is_not_live_blocks_nothing() {
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s timeout=100000000 context={} ! fakesink name=out sync=true \
         appsrc caps=audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved format=time ! s. \
         audiotestsrc ! audio/x-raw,rate=8000 ! s.",
        context()
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    assert_eq!(switch(&pipe), (None, "sink_1".into(), "start".into()));
    next_buffer(&seen);
}
