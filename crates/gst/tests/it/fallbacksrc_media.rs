//! `fallbacksrc` with files, pictures and an HTTP server that stalls and drops: the media at the far end.

use crate::common::*;
use crate::fixtures::fallback::*;
use crate::fixtures::faulty::{Fault, Step};
use crate::fixtures::http::{Answer, Server, made_by, wav};
use gst::prelude::*;

const RATE: u32 = 8000;

/// Returns samples whose value is the number of their frame, modulo 30000.
fn ramp(seconds: u32) -> Vec<i16> {
    (0..seconds * RATE).map(|i| (i % 30_000) as i16).collect()
}

fn samples(drain: &Drain) -> Vec<i16> {
    let all = drain.all();
    let bytes: Vec<u8> = all.iter().flat_map(|one| bytes(&one.buffer)).collect();
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

// ---- buffering

#[test]
fn a_source_resumes_when_its_stalled_server_continues() {
    let file = ramp(60);
    let server = Server::new(wav(RATE, 1, &file));
    // 5 s at 16 kB/s.
    server.script(&[Answer::StallAfter(80_000)]);
    let play = Play::playing(&format!(
        "uri={} buffer-duration=1000000000 timeout=60000000000 restart-timeout=60000000000 enable-video=false",
        server.uri("a.wav")
    ));
    play.until("the first", || play.audio().last().is_some());
    let audio = play.audio();
    while play.status() == "running" {
        play.set_ms(play.now_ms() + 20);
        play.until("it goes on or is held", || {
            audio.end_ms() > play.now_ms() || play.status() != "running"
        });
        assert!(play.now_ms() < 6000, "all but a buffer has passed");
    }
    assert_eq!(play.status(), "buffering");
    let percent: u32 = play.statistics().get("buffering-percent").unwrap();
    assert!(percent < 100, "{percent}");
    // Data that was released before passes, and no other data.
    play.set_ms(play.now_ms() + 100);
    assert_eq!(server.requests().len(), 1);
    server.release();
    play.until_status("running");
    assert_eq!(play.statistics().get("buffering-percent"), Ok(100u32));
    let end_ms = play.now_ms() + 2000;
    while play.now_ms() < end_ms {
        play.set_ms(play.now_ms() + 20);
        play.until("it goes on", || audio.end_ms() + 200 > play.now_ms());
    }
    audio.assert_no_overlap();
    let heard = samples(&audio);
    assert!(
        heard == file[..heard.len()],
        "no sample is lost or repeated"
    );
    assert_eq!(server.requests().len(), 1);
}

// ---- positions

/// Makes the source fail at the test's position, as if the connection were lost.
fn fail_source(play: &Play, factory: &str) {
    let elements = play.pipe.0.iterate_recurse().into_iter().flatten();
    let source = elements.into_iter().find(|element| {
        element
            .factory()
            .is_some_and(|found| found.name() == factory)
    });
    gst::element_error!(source.unwrap(), gst::ResourceError::Read, ["as told"]);
}

/// Plays the main source, silence and the main source again. Returns the main source's samples before and after.
fn after_a_failure(play: &Play, server: &Server) -> (Vec<i16>, Vec<i16>) {
    play.until("the first", || play.audio().last().is_some());
    play.follow_within(2000, 200);
    server.always(Answer::Status(503));
    fail_source(play, "souphttpsrc");
    play.told("fallback-retry");
    let before = samples(&play.audio());
    play.audio().forget();
    // The first retry fails, too.
    play.set_ms(2110);
    play.told("fallback-retry");
    server.always(Answer::All);
    while play.status() != "running" {
        play.set_ms(play.now_ms() + 20);
        // The server may answer at any time.
        play.until("it goes on", || play.audio().end_ms() > play.now_ms());
    }
    play.stands_by("audio", 0);
    play.follow_within(play.now_ms() + 2000, 200);
    play.audio().assert_no_overlap();
    let after = samples(&play.audio());
    let silent = after.iter().take_while(|sample| **sample == 0).count();
    (before, after[silent..].to_vec())
}

#[test]
fn dropped_file_resumes_at_its_position() {
    let file = ramp(3000);
    let server = Server::new(wav(RATE, 1, &file));
    let play = Play::playing(&format!(
        "uri={} resume=true retry-delay=100000000 enable-video=false",
        server.uri("a.wav")
    ));
    let (before, after) = after_a_failure(&play, &server);
    assert!(before == file[..before.len()]);
    let first = usize::from(after[0].unsigned_abs());
    // Silence, which the clock has skipped, covers a part of the source's first buffer of 2048 samples.
    let covered = first.checked_sub(before.len());
    assert!(
        covered.is_some_and(|covered| covered < 2048),
        "{first} {}",
        before.len()
    );
    assert!(after == file[first..first + after.len()]);
    let sought = server
        .requests()
        .into_iter()
        .rev()
        .find_map(|request| request.range);
    let (first_byte, _) = sought.expect("a range is asked for");
    assert!(first_byte > before.len(), "{first_byte}");
}

#[test]
fn file_restarts_from_the_beginning_without_resume() {
    let file = ramp(3000);
    let server = Server::new(wav(RATE, 1, &file));
    let play = Play::playing(&format!(
        "uri={} retry-delay=100000000 enable-video=false",
        server.uri("a.wav")
    ));
    let (_, after) = after_a_failure(&play, &server);
    // Silence covers a part of the source's first buffer.
    let first = usize::from(after[0].unsigned_abs());
    assert!(first < 3000, "{first}");
    assert!(after == file[first..first + after.len()]);
}

#[test]
fn source_resumes_after_the_last_passed_data() {
    let main = file("resume", 60 * SECOND, MAIN);
    let play = Play::begun(&format!(
        "uri={} resume=true retry-delay=100000000 enable-video=false",
        main.uri()
    ));
    play.follow_until(1000);
    assert_eq!(play.audio().end_ms(), 1020);
    fail_source(&play, "faultsrc");
    play.told("fallback-retry");
    play.follow_until(1300);
    main.wait("a seek", |log| log.seeks.len() == 1);
    assert_eq!(main.log().seeks, [1020 * MS]);
    play.until_status("running");
    play.follow_until_heard(MAIN);
    assert_eq!(play.audio().markers(), [MAIN, SILENCE, MAIN]);
    play.audio().assert_no_overlap();
}

#[test]
fn unseekable_source_restarts_from_the_beginning() {
    let main = Fault::stream("unseekable");
    main.mark(MAIN);
    let play = Play::playing(&format!(
        "uri={} resume=true retry-delay=100000000 enable-video=false",
        main.uri()
    ));
    let give = || {
        for ms in (0..400).step_by(20) {
            main.step(AUDIO, Step::Buffer(AUDIO.buffer(MAIN, ms * MS)));
        }
    };
    give();
    play.until("the first", || play.audio().last().is_some());
    play.follow_until(300);
    fail_source(&play, "faultsrc");
    play.told("fallback-retry");
    give();
    play.follow_until(500);
    main.wait("it is asked", |log| log.seeks.len() == 1);
    play.until_status("running");
    play.follow_until_heard(MAIN);
    assert_eq!(play.audio().markers(), [MAIN, SILENCE, MAIN]);
}

// ---- pictures

/// Encodes a picture of this grey level.
fn picture(encoder: &str, level: u8) -> Vec<u8> {
    let color = u32::from_be_bytes([0xff, level, level, level]);
    made_by(&format!(
        "videotestsrc num-buffers=1 pattern=solid-color foreground-color={color} ! \
         video/x-raw,width=32,height=18 ! videoconvert ! {encoder}"
    ))
}

fn picture_follows(name: &str, encoder: &str) {
    let main = live(name, MAIN);
    let server = Server::new(picture(encoder, 128));
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} enable-audio=false",
        main.av_uri(),
        server.uri("a-picture")
    ));
    for ms in (0..400).step_by(40) {
        play.set_ms(ms);
        main.step(VIDEO, Step::Buffer(VIDEO.buffer(MAIN, ms * MS)));
        play.until("it passes", || play.video().end_ms() == ms + 40);
    }
    play.stands_by("video", 1);
    // The picture is loaded, and its source is gone.
    play.until("the source is down", || {
        !inside(&play.element)
            .iter()
            .any(|name| name.contains("HTTPSrc"))
    });
    main.step(VIDEO, Step::Error("as told".into()));
    play.told("fallback-retry");
    play.follow_video_until(800);
    play.video().assert_no_overlap();
    let shown: Vec<_> = (play.video().all().into_iter())
        .filter(|frame| frame.marker != MAIN)
        .collect();
    assert!(shown.len() >= 9, "{}", shown.len());
    for frame in &shown {
        // The frames have the format that passed before: 25 frames per second, GRAY8.
        assert_eq!(frame.end_ms - frame.begin_ms, 40);
        assert!(frame.caps.is_subset(&VIDEO.caps()), "{}", frame.caps);
        let pixels = bytes(&frame.buffer);
        assert!(
            pixels.iter().all(|pixel| pixel.abs_diff(128) <= 4),
            "{pixels:?}"
        );
    }
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_png_is_shown_as_fallback() {
    picture_follows("png", "pngenc");
}

#[test]
fn a_jpeg_is_shown_as_fallback() {
    picture_follows("jpeg", "jpegenc");
}

// ---- sources and formats

#[test]
fn a_wave_file_fallback_has_the_requested_format() {
    let main = live("convert", MAIN);
    let server = Server::new(wav(RATE, 1, &vec![8000; 10 * RATE as usize]));
    let play = Play::playing(&format!(
        "uri={} fallback-uri={} enable-video=false \
         audio-caps=audio/x-raw,format=S16LE,rate=16000,channels=1,layout=interleaved",
        main.uri(),
        server.uri("a.wav")
    ));
    for ms in (0..400).step_by(20) {
        play.feed(&main, ms);
        play.set_ms(ms + 20);
    }
    play.stands_by("audio", 1);
    main.done(AUDIO, Step::Error("as told".into())).unwrap();
    play.told("fallback-retry");
    play.follow_within(1600, 400);
    play.audio().assert_no_overlap();
    let all = play.audio().all();
    let asked: gst::Caps = "audio/x-raw,format=S16LE,rate=16000,channels=1"
        .parse()
        .unwrap();
    assert!(all.iter().all(|one| one.caps.is_subset(&asked)));
    let last = &all[all.len() - 1];
    let level = i16::from_le_bytes(bytes(&last.buffer)[..2].try_into().unwrap());
    assert!(level.abs_diff(8000) < 100, "{level}");
    // The format has 32 bytes per ms.
    let (end_ms, begin_ms) = (last.end_ms, last.begin_ms);
    assert!((last.buffer.size() as u64).abs_diff((end_ms - begin_ms) * 32) <= 32);
}

#[test]
fn video_has_the_requested_format() {
    let main = file("scale", 10 * SECOND, 128);
    let play = Play::playing(&format!(
        "uri={} enable-audio=false \
         video-caps=video/x-raw,format=I420,width=32,height=18,framerate=25/1",
        main.av_uri()
    ));
    play.until("the first", || play.video().last().is_some());
    play.follow_video_until(400);
    for frame in play.video().all() {
        let info = gst_video::VideoInfo::from_caps(&frame.caps).unwrap();
        assert_eq!((info.width(), info.height()), (32, 18));
        assert_eq!(info.format(), gst_video::VideoFormat::I420);
        assert_eq!(frame.buffer.size(), info.size());
        assert_eq!(frame.end_ms - frame.begin_ms, 40);
    }
}

#[test]
fn coded_streams_of_element_sources_are_decoded() {
    init();
    let coded = |frequency: u32| {
        let line = format!(
            "audiotestsrc freq={frequency} num-buffers=2000 samplesperbuffer=160 ! \
             audio/x-raw,format=S16LE,rate=8000,channels=1 ! wavenc"
        );
        gst::parse::bin_from_description(&line, true).unwrap()
    };
    let play = Play::new("enable-video=false timeout=1000000000 retry-delay=20000000000");
    play.element.set_property("source", coded(440));
    play.element.set_property("fallback-source", coded(880));
    play.play();
    play.until("the first", || play.audio().last().is_some());
    play.follow_within(1000, 300);
    play.stands_by("audio", 1);
    assert!(tone(&samples(&play.audio()), 8000) == Some(440));
    fail_source(&play, "audiotestsrc");
    let retry = play.told("fallback-retry");
    let failed: u32 = retry.get("source").unwrap();
    play.follow_within(2500, 300);
    let heard = samples(&play.audio());
    let expected = if failed == 0 { 880 } else { 440 };
    assert_eq!(tone(&heard[heard.len() - 1600..], 8000), Some(expected));
}

// ---- analysis of audio and video

/// Detects which tone it is, if any, by Goertzel's algorithm.
fn tone(samples: &[i16], rate: u32) -> Option<u32> {
    let power = |frequency: u32| {
        let turn = std::f64::consts::TAU * f64::from(frequency) / f64::from(rate);
        let (mut before, mut last) = (0.0, 0.0);
        for sample in samples {
            (before, last) = (last, f64::from(*sample) + 2.0 * turn.cos() * last - before);
        }
        last * last + before * before - 2.0 * turn.cos() * last * before
    };
    let all: f64 = samples.iter().map(|s| f64::from(*s).powi(2)).sum();
    // For a tone, half of the energy times the number of samples.
    let part = |frequency: u32| 2.0 * power(frequency) / (all * samples.len() as f64);
    [440, 880]
        .into_iter()
        .find(|frequency| part(*frequency) > 0.9)
}

fn level(samples: &[i16]) -> f64 {
    let sum: f64 = samples.iter().map(|s| f64::from(*s).powi(2)).sum();
    (sum / samples.len() as f64).sqrt()
}

/// Returns the output at the far end of a pipeline, with its running time.
fn far_end(
    pipe: &Pipe,
    pad: &gst::Pad,
) -> std::sync::Arc<std::sync::Mutex<Vec<(u64, gst::Sample)>>> {
    let all = std::sync::Arc::<std::sync::Mutex<Vec<(u64, gst::Sample)>>>::default();
    let seen = all.clone();
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let buffer = info.buffer().unwrap();
        let segment = pad.sticky_event::<gst::event::Segment>(0).unwrap();
        let segment = segment.segment().downcast_ref::<gst::ClockTime>().unwrap();
        let begin = segment.to_running_time(buffer.pts().unwrap()).unwrap();
        let caps = pad.current_caps().unwrap();
        let sample = gst::Sample::builder().buffer(buffer).caps(&caps).build();
        seen.lock().unwrap().push((begin.nseconds(), sample));
        gst::PadProbeReturn::Ok
    });
    let _ = pipe;
    all
}

fn fail_element(pipe: &Pipe, name: &str) {
    let elements = pipe.0.iterate_recurse().into_iter().flatten();
    let source = elements.into_iter().find(|element| element.name() == name);
    gst::element_error!(source.unwrap(), gst::ResourceError::Read, ["as told"]);
}

#[test]
fn the_output_has_the_audio_of_main_then_fallback_then_main() {
    init();
    const RATE: u32 = 48_000;
    let angle = |i: u32| std::f64::consts::TAU * 880.0 * f64::from(i) / f64::from(RATE);
    let fallback: Vec<i16> = (0..30 * RATE)
        .map(|i| (angle(i).sin() * 8000.0) as i16)
        .collect();
    let server = Server::new(wav(RATE, 1, &fallback));
    let pipe = Pipe::parse(&format!(
        "fallbacksrc name=f context={} fallback-uri={} retry-delay=1000000000 enable-video=false \
         audio-caps=audio/x-raw,format=S16LE,rate={RATE},channels=1 ! queue ! fakesink name=out sync=true",
        context(),
        server.uri("a.wav")
    ));
    let main = gst::parse::bin_from_description(
        "audiotestsrc name=main is-live=true freq=440 volume=0.5 samplesperbuffer=480",
        true,
    );
    pipe.get("f").set_property("source", main.unwrap());
    let heard = far_end(&pipe, &pipe.pad("out", "sink"));
    pipe.play();
    let blocks = || {
        let heard = heard.lock().unwrap();
        let bytes: Vec<u8> = (heard.iter())
            .flat_map(|(_, sample)| bytes(sample.buffer().unwrap()))
            .collect();
        let samples: Vec<i16> = (bytes.chunks_exact(2))
            .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        // Blocks of 50 ms.
        let blocks = samples.chunks_exact(RATE as usize / 20);
        blocks
            .map(|block| (tone(block, RATE), level(block)))
            .collect::<Vec<_>>()
    };
    let count = |frequency: u32| {
        blocks()
            .iter()
            .filter(|(tone, _)| *tone == Some(frequency))
            .count()
    };
    eventually("main", || count(440) >= 10);
    fail_element(&pipe, "main");
    eventually("fallback", || count(880) >= 6);
    let before = count(440);
    eventually("main again", || count(440) >= before + 10);
    pipe.assert_no_error();
    let all = blocks();
    pipe.to(gst::State::Null);
    let mut tones: Vec<u32> = all.iter().filter_map(|(tone, _)| *tone).collect();
    tones.dedup();
    assert_eq!(tones, [440, 880, 440]);
    // A block at each change contains both.
    let mixed = all.iter().filter(|(tone, _)| tone.is_none()).count();
    assert!(mixed <= 4, "{all:?}");
    for (tone, level) in &all {
        let amplitude = match tone {
            Some(440) => 0.5 * 32_767.0,
            Some(_) => 8000.0,
            None => continue,
        };
        let expected = amplitude / 2f64.sqrt();
        assert!(
            (level / expected - 1.0).abs() < 0.05,
            "{tone:?} {level} {expected}"
        );
    }
    // Each buffer starts where the previous one ends, or one buffer later.
    let heard = heard.lock().unwrap();
    for pair in heard.windows(2) {
        let duration = pair[0].1.buffer().unwrap().duration().unwrap().nseconds();
        let (end_ns, begin_ns) = (pair[0].0 + duration, pair[1].0);
        // A sample is 20.8 us.
        assert!(begin_ns + 21_000 >= end_ns, "{pair:?}");
        assert!(begin_ns <= end_ns + 45_000_000, "{pair:?}");
    }
}

/// Red, green and blue in the middle of one of seven bars, above the middle of a frame.
fn color(sample: &gst::Sample, bar: usize) -> [u8; 3] {
    let info = gst_video::VideoInfo::from_caps(sample.caps().unwrap()).unwrap();
    let (width, height) = (info.width() as usize, info.height() as usize);
    let stride = info.stride()[0] as usize;
    let at = height / 4 * stride + (2 * bar + 1) * width / 14 * 3;
    bytes(sample.buffer().unwrap())[at..at + 3]
        .try_into()
        .unwrap()
}

fn is_close(color: [u8; 3], to: [u8; 3]) -> bool {
    color.iter().zip(to).all(|(a, b)| a.abs_diff(b) <= 25)
}

/// Identifies the picture: bars at 100 %, of which the first one is white, the fourth one green and the last one blue; or the
/// fallback.
fn what(sample: &gst::Sample) -> &'static str {
    let colors = [0, 3, 6].map(|bar| color(sample, bar));
    let bars = [[255, 255, 255], [0, 255, 0], [0, 0, 255]];
    if colors
        .into_iter()
        .zip(bars)
        .all(|(color, bar)| is_close(color, bar))
    {
        return "main";
    }
    if colors
        .into_iter()
        .all(|color| is_close(color, [224, 128, 32]))
    {
        "fallback"
    } else {
        "other"
    }
}

const COLUMNS: usize = 6;

/// Returns a picture of three rows: some frames of each part of a run.
fn contact_sheet(rows: &[Vec<gst::Sample>]) -> gst::Sample {
    let info = gst_video::VideoInfo::from_caps(rows[0][0].caps().unwrap()).unwrap();
    let (width, height) = (info.width() as usize, info.height() as usize);
    let stride = info.stride()[0] as usize;
    const GAP: usize = 4;
    let (all_width, all_height) = (
        COLUMNS * (width + GAP) + GAP,
        rows.len() * (height + GAP) + GAP,
    );
    let mut pixels = vec![255u8; all_width * all_height * 4];
    for (row, frames) in rows.iter().enumerate() {
        for column in 0..COLUMNS {
            let frame = &frames[column * (frames.len() - 1) / (COLUMNS - 1)];
            let frame = bytes(frame.buffer().unwrap());
            for y in 0..height {
                for x in 0..width {
                    let top = GAP + row * (height + GAP) + y;
                    let left = GAP + column * (width + GAP) + x;
                    let to = (top * all_width + left) * 4;
                    let from = y * stride + x * 3;
                    pixels[to..to + 3].copy_from_slice(&frame[from..from + 3]);
                }
            }
        }
    }
    let info = gst_video::VideoInfo::builder(
        gst_video::VideoFormat::Rgba,
        all_width as u32,
        all_height as u32,
    );
    let caps = info.fps((1, 1)).build().unwrap().to_caps().unwrap();
    let buffer = gst::Buffer::from_slice(pixels);
    gst::Sample::builder().buffer(&buffer).caps(&caps).build()
}

/// Directory for pictures that a person looks at: CONTACT_SHEETS, or one of Cargo's.
fn save(sheet: &gst::Sample, name: &str) {
    let folder = std::env::var_os("CONTACT_SHEETS").map_or_else(
        || std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("contact-sheet"),
        Into::into,
    );
    std::fs::create_dir_all(&folder).unwrap();
    let png = gst::Caps::new_empty_simple("image/png");
    let png = gst_video::convert_sample(sheet, &png, Some(DEADLINE_GST)).unwrap();
    std::fs::write(folder.join(name), bytes(png.buffer().unwrap())).unwrap();
}

#[test]
fn the_output_has_the_video_of_main_then_a_picture_then_main() {
    init();
    const SIZE: &str = "video/x-raw,width=160,height=90,framerate=25/1";
    let main = Server::new(made_by(&format!(
        "videotestsrc num-buffers=500 pattern=smpte ! {SIZE} ! theoraenc quality=60 ! oggmux"
    )));
    let fallback = Server::new(made_by(&format!(
        "videotestsrc num-buffers=1 pattern=solid-color foreground-color={} ! {SIZE} ! videoconvert ! pngenc",
        0xff_e0_80_20u32
    )));
    let pipe = Pipe::parse(&format!(
        "fallbacksrc context={} uri={} fallback-uri={} retry-delay=1000000000 enable-audio=false ! queue ! \
         videoconvert ! video/x-raw,format=RGB ! fakesink name=out sync=true",
        context(),
        main.uri("main.ogg"),
        fallback.uri("fallback.png")
    ));
    let seen = far_end(&pipe, &pipe.pad("out", "sink"));
    pipe.play();
    let parts = || {
        let seen = seen.lock().unwrap();
        let mut parts: Vec<(&str, Vec<gst::Sample>)> = Vec::new();
        for (_, sample) in seen.iter() {
            let what = what(sample);
            match parts.last_mut().filter(|(last, _)| *last == what) {
                Some((_, frames)) => frames.push(sample.clone()),
                None => parts.push((what, vec![sample.clone()])),
            }
        }
        parts
    };
    let come = |number: usize, frames: usize| {
        let parts = parts();
        parts
            .get(number)
            .is_some_and(|(_, seen)| seen.len() >= frames)
    };
    eventually("main", || come(0, 20));
    let elements = pipe.0.iterate_recurse().into_iter().flatten();
    let source = elements.into_iter().find(|element| {
        element
            .factory()
            .is_some_and(|factory| factory.name() == "souphttpsrc")
    });
    gst::element_error!(source.unwrap(), gst::ResourceError::Read, ["as told"]);
    eventually("the fallback", || come(1, 10));
    eventually("main again", || come(2, 20));
    pipe.to(gst::State::Null);
    let parts = parts();
    let names: Vec<&str> = parts.iter().map(|(what, _)| *what).collect();
    assert_eq!(names, ["main", "fallback", "main"]);
    let rows: Vec<_> = parts.into_iter().map(|(_, frames)| frames).collect();
    save(&contact_sheet(&rows), "fallbacksrc.png");
}
