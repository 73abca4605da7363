//! `ebur128level`: measures the same as an independent meter, at the right frame, and changes nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use gst::prelude::*;

#[test]
fn properties_have_their_defaults_and_ranges() {
    let all = "Momentary loudness (400 ms)+Short-term loudness (3 s)+Integrated loudness and its relative gate+\
               Loudness range+Sample peaks+True peaks";
    let any = Some(("0", "18446744073709551615"));
    assert_properties(
        "ebur128level",
        &[
            ("mode", "ThreadbareEbuR128LevelMode", all, None, true),
            ("post-messages", "gboolean", "true", None, true),
            ("interval", "guint64", "1000000000", any, true),
        ],
    );
}

/// Bursts, a fade and noise, different in each channel, as a file of this many channels and this rate.
fn programme(directory: &Path, channels: usize, rate: u32) -> PathBuf {
    let path = directory.join(format!("{channels}-{rate}.wav"));
    let layout = ["mono", "stereo", "", "", "", "5.1"][channels - 1];
    let channel = |c: usize| {
        format!(
            "(0.02+0.2*t/8)*sin(2*PI*{}*t)*(0.3+0.7*gt(mod(t+{c}\\,3)\\,1.3))+0.001*(random({c})-0.5)",
            220 * (c + 1)
        )
    };
    let channels: Vec<String> = (0..channels).map(channel).collect();
    let source = format!("aevalsrc={}:c={layout}:d=8.04:s={rate}", channels.join("|"));
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-f", "lavfi", "-i", &source])
        .args(["-c:a", "pcm_f32le"])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    path
}

/// Returns the readings of ffmpeg's meter after each 100 ms, by key, and at the end.
fn by_ffmpeg(path: &Path) -> Vec<std::collections::BTreeMap<String, f64>> {
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-i"])
        .arg(path)
        .args([
            "-af",
            "ebur128=metadata=1:peak=true+sample,ametadata=print:file=-",
        ])
        .args(["-f", "null", "-"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut all = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if line.starts_with("frame:") {
            all.push(std::collections::BTreeMap::new());
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim_start_matches("lavfi.r128.").to_owned();
            all.last_mut().unwrap().insert(key, value.parse().unwrap());
        }
    }
    // Frames in which no 100 ms ended have no readings.
    all.retain(|readings| readings.contains_key("M"));
    all
}

fn readings(pipe: &Pipe) -> Vec<gst::Structure> {
    let mut all = Vec::new();
    loop {
        let kinds = [
            gst::MessageType::Element,
            gst::MessageType::Eos,
            gst::MessageType::Error,
        ];
        let message = pipe.message(&kinds);
        match message.view() {
            gst::MessageView::Element(element) => {
                let structure = element.structure().unwrap();
                if structure.name() == "ebur128-level" {
                    all.push(structure.to_owned());
                }
            }
            gst::MessageView::Eos(_) => return all,
            _ => panic!("{}", text(&message)),
        }
    }
}

fn number_of(readings: &gst::StructureRef, field: &str) -> f64 {
    readings
        .get(field)
        .unwrap_or_else(|error| panic!("{field}: {error}"))
}

fn peaks(readings: &gst::StructureRef, field: &str) -> Vec<f64> {
    let array = readings.get::<gst::Array>(field).unwrap();
    array.iter().map(|peak| peak.get().unwrap()).collect()
}

#[track_caller]
fn assert_near(what: &str, ours: f64, theirs: f64, tolerance: f64) {
    assert!(
        (ours - theirs).abs() <= tolerance,
        "{what}: {ours}, ffmpeg {theirs}"
    );
}

/// Compares each 100 ms. Windows must agree within three digits, other readings within 0.1 LU, the step of a histogram. The range
/// is not compared: ffmpeg counts the first 3 s, in which its window fills.
fn compare(
    what: &str,
    ours: &[gst::Structure],
    theirs: &[std::collections::BTreeMap<String, f64>],
) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let what = |key: &str| format!("{what}, step {step}, {key}");
        if step >= 4 {
            assert_near(
                &what("M"),
                number_of(ours, "momentary-loudness"),
                theirs["M"],
                0.002,
            );
            assert_near(
                &what("I"),
                number_of(ours, "global-loudness"),
                theirs["I"],
                0.1,
            );
        }
        if step >= 30 {
            assert_near(
                &what("S"),
                number_of(ours, "shortterm-loudness"),
                theirs["S"],
                0.002,
            );
        }
        for (field, key, tolerance) in [
            ("sample-peak", "sample_peaks_ch", 0.0),
            ("true-peak", "true_peaks_ch", 0.04),
        ] {
            for (channel, ours) in peaks(ours, field).into_iter().enumerate() {
                let Some(theirs) = theirs.get(&format!("{key}{channel}")) else {
                    panic!("{theirs:?}");
                };
                assert_near(&what(field), ours, *theirs, 0.0006 + tolerance * theirs);
            }
        }
    }
}

#[test]
fn measurements_equal_ffmpegs() {
    let directory = scratch("ebur128level");
    for (channels, rate, caps) in [
        (1, 8_000, "format=S16LE,layout=interleaved"),
        (2, 48_000, "format=F32LE,layout=interleaved"),
        (2, 44_100, "format=S32LE,layout=non-interleaved"),
        (6, 48_000, "format=F64LE,layout=non-interleaved"),
        (6, 96_000, "format=F32LE,layout=interleaved"),
    ] {
        let file = programme(&directory, channels, rate);
        let pipe = Pipe::parse(&format!(
            "filesrc location={} ! wavparse ! audioconvert dithering=none ! audio/x-raw,{caps} \
             ! ebur128level name=level interval=100000000 ! fakesink name=out sync=false",
            file.display()
        ));
        pipe.play();
        let ours = readings(&pipe);
        compare(
            &format!("{channels} at {rate}, {caps}"),
            &ours,
            &by_ffmpeg(&file),
        );
        let stats: gst::Structure = pipe.get("level").property("stats");
        assert_eq!(stats.get::<u64>("frames"), Ok(u64::from(rate) * 804 / 100));
        assert_near(
            "stats",
            number_of(&stats, "global-loudness"),
            number_of(&ours[79], "global-loudness"),
            0.1,
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Returns a rig with a stream of mono F32LE of this rate.
fn mono(line: &str, rate: i32) -> Rig {
    let rig = Rig::without_stream(line, gst::State::Playing);
    open(&rig, rate);
    rig
}

fn open(rig: &Rig, rate: i32) {
    let caps = gst::Caps::builder("audio/x-raw")
        .field("format", "F32LE")
        .field("rate", rate)
        .field("channels", 1i32)
        .field("layout", "interleaved")
        .build();
    assert!(
        rig.feed
            .push_event(gst::event::StreamStart::new("a-stream"))
    );
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
    rig.open_segment();
}

/// Returns a tone of -20 dBFS at a twentieth of the rate.
fn tone(frames: usize, pts: gst::ClockTime) -> gst::Buffer {
    let samples = (0..frames).map(|n| 0.1 * (n as f32 * std::f32::consts::TAU / 20.0).sin());
    let bytes: Vec<u8> = samples.flat_map(f32::to_le_bytes).collect();
    let mut buffer = gst::Buffer::from_slice(bytes);
    buffer.get_mut().unwrap().set_pts(pts);
    buffer
}

fn posted(rig: &Rig) -> Vec<gst::Structure> {
    let kinds = [gst::MessageType::Element];
    std::iter::from_fn(|| rig.bus.pop_filtered(&kinds))
        .map(|message| message.structure().unwrap().to_owned())
        .collect()
}

fn stats(rig: &Rig) -> gst::Structure {
    rig.element.property("stats")
}

#[test]
fn readings_are_due_at_their_frame_however_buffers_are_cut() {
    // 33.333333 ms are 1469.99 frames. If each interval were rounded to whole frames, it would be off by one frame after a
    // hundred.
    let rig = mono("ebur128level interval=33333333", 44_100);
    let mut frame = 0u64;
    for frames in [1, 7, 1_000, 44_100, 3, 100_000, 29_000].repeat(2) {
        let pts = frame * gst::ClockTime::SECOND / 44_100;
        rig.push(tone(frames, pts)).unwrap();
        frame += frames as u64;
    }
    let posted = posted(&rig);
    let expected = frame * 1_000_000_000 / 44_100 / 33_333_333;
    assert_eq!(posted.len() as u64, expected);
    for (i, readings) in posted.iter().enumerate() {
        let due = (i as u64 + 1) * 33_333_333 * 44_100 / 1_000_000_000;
        let time = readings.get::<gst::ClockTime>("timestamp").unwrap();
        let expected = due * gst::ClockTime::SECOND / 44_100;
        assert!(
            time.absdiff(expected) < gst::ClockTime::from_nseconds(3),
            "{i}: {time}, {expected}"
        );
        for field in ["running-time", "stream-time"] {
            assert_eq!(readings.get::<gst::ClockTime>(field), Ok(time));
        }
    }
}

#[test]
fn buffers_pass_without_a_copy() {
    let rig = mono("ebur128level", 48_000);
    let buffer = tone(480, gst::ClockTime::ZERO);
    let place = buffer.as_ptr();
    rig.push(buffer).unwrap();
    assert_eq!(rig.buffer().as_ptr(), place);
    let mut list = gst::BufferList::new();
    for i in 0..3 {
        list.make_mut()
            .add(tone(480, i * gst::ClockTime::from_mseconds(10)));
    }
    let places: Vec<_> = list.iter().map(|buffer| buffer.as_ptr()).collect();
    rig.feed.push_list(list).unwrap();
    for place in places {
        assert_eq!(rig.buffer().as_ptr(), place);
    }
    assert_eq!(stats(&rig).get::<u64>("frames"), Ok(4 * 480));
}

#[test]
fn gaps_count_as_silence_and_a_reset_starts_from_scratch() {
    let rig = mono("ebur128level interval=500000000", 48_000);
    rig.push(tone(48_000, gst::ClockTime::ZERO)).unwrap();
    let loud = number_of(&stats(&rig), "momentary-loudness");
    assert!((-24.0..-20.0).contains(&loud), "{loud}");
    // The buffer is at full scale, but marked as a gap. After it, there is no data at all.
    let mut gap = gst::Buffer::from_slice([0x3f; 4 * 24_000]);
    gap.get_mut().unwrap().set_flags(gst::BufferFlags::GAP);
    gap.get_mut().unwrap().set_pts(gst::ClockTime::SECOND);
    rig.push(gap).unwrap();
    let half = gst::ClockTime::from_mseconds(500);
    let event = gst::event::Gap::builder(3 * half).duration(half).build();
    assert!(rig.feed.push_event(event));
    let now = stats(&rig);
    assert_eq!(now.get::<u64>("frames"), Ok(96_000));
    assert!(number_of(&now, "momentary-loudness") < -100.0, "{now}");
    assert!(
        (number_of(&now, "global-loudness") - loud).abs() < 2.0,
        "{now}"
    );
    assert_eq!(peaks(&now, "sample-peak"), [f64::from(0.1f32)]);
    let times: Vec<_> = posted(&rig)
        .iter()
        .map(|readings| readings.get::<gst::ClockTime>("running-time").unwrap())
        .collect();
    assert_eq!(times, [half, 2 * half, 3 * half, 4 * half]);
    rig.element.emit_by_name::<()>("reset", &[]);
    let now = stats(&rig);
    assert_eq!(now.get::<u64>("frames"), Ok(0));
    assert_eq!(number_of(&now, "global-loudness"), f64::NEG_INFINITY);
    assert_eq!(peaks(&now, "true-peak"), [0.0]);
    // A gap of a century does not block.
    let century = gst::ClockTime::from_seconds(3_155_760_000);
    let event = gst::event::Gap::builder(4 * half).duration(century).build();
    within("a long gap", {
        let feed = rig.feed.clone();
        move || assert!(feed.push_event(event))
    });
    rig.event(gst::EventType::Gap);
}

#[test]
fn only_enabled_measurements_are_posted() {
    let rig = mono(
        "ebur128level mode=short-term post-messages=false interval=100000000",
        48_000,
    );
    rig.push(tone(48_000, gst::ClockTime::ZERO)).unwrap();
    assert!(posted(&rig).is_empty());
    let fields = |structure: &gst::StructureRef| -> Vec<String> {
        structure.fields().map(|name| name.to_string()).collect()
    };
    let now = fields(&stats(&rig));
    assert_eq!(now, ["frames", "momentary-loudness", "shortterm-loudness"]);
    rig.element
        .set_property_from_str("mode", "global+true-peak");
    rig.element.set_property("post-messages", true);
    rig.push(tone(4_800, gst::ClockTime::SECOND)).unwrap();
    let expected = [
        "timestamp",
        "running-time",
        "stream-time",
        "momentary-loudness",
        "global-loudness",
        "relative-threshold",
        "sample-peak",
        "true-peak",
    ];
    assert_eq!(fields(&posted(&rig)[0]), expected);
    // From now on a message is due every 10 ms. The 100 ms steps of the measurement do not matter.
    rig.push(tone(100, gst::ClockTime::SECOND)).unwrap();
    rig.element.set_property("interval", 10_000_000u64);
    rig.push(tone(4_800, gst::ClockTime::SECOND)).unwrap();
    assert_eq!(posted(&rig).len(), 10);
}

#[test]
fn partial_frames_and_missing_caps_are_errors() {
    let rig = mono("ebur128level", 48_000);
    let error = rig.push(gst::Buffer::from_slice([0; 7]));
    assert_eq!(error, Err(gst::FlowError::Error));
    assert!(
        text(&rig.error()).contains("7 bytes"),
        "{}",
        text(&rig.error())
    );
    let rig = Rig::without_stream("ebur128level", gst::State::Playing);
    assert!(
        rig.feed
            .push_event(gst::event::StreamStart::new("a-stream"))
    );
    rig.open_segment();
    assert_eq!(
        rig.push(gst::Buffer::new()),
        Err(gst::FlowError::NotNegotiated)
    );
}

#[test]
fn sixty_four_channels_without_places_count_the_same() {
    let pipe = Pipe::parse(
        "audiotestsrc num-buffers=50 ! audio/x-raw,format=F32LE,rate=48000,channels=64,channel-mask=(bitmask)0,layout=non-interleaved \
         ! ebur128level name=level interval=1000000000 ! fakesink sync=false",
    );
    pipe.play();
    let readings = readings(&pipe);
    assert_eq!(peaks(&readings[0], "true-peak").len(), 64);
    // 64 channels of 440 Hz with a peak of -1.94 dBFS have 64 times the energy of one.
    assert!(
        number_of(&readings[0], "momentary-loudness") > 10.0,
        "{}",
        readings[0]
    );
}

#[test]
fn only_different_caps_restart_the_measurement() {
    let rig = mono("ebur128level", 48_000);
    rig.push(tone(48_000, gst::ClockTime::ZERO)).unwrap();
    let caps = |format: &str, rate: i32| {
        gst::Caps::builder("audio/x-raw")
            .field("format", format)
            .field("rate", rate)
            .field("channels", 1i32)
            .field("layout", "interleaved")
            .build()
    };
    assert!(
        rig.feed
            .push_event(gst::event::Caps::new(&caps("S16LE", 48_000)))
    );
    rig.push(gst::Buffer::from_slice([0; 960])).unwrap();
    assert_eq!(stats(&rig).get::<u64>("frames"), Ok(48_480));
    assert!(
        rig.feed
            .push_event(gst::event::Caps::new(&caps("S16LE", 16_000)))
    );
    assert_eq!(stats(&rig).get::<u64>("frames"), Ok(0));
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream("ebur128level", gst::State::Null);
    goes_up_and_down(&rig, || {
        rig.feed.set_active(false).unwrap();
        rig.feed.set_active(true).unwrap();
        open(&rig, 48_000);
        rig.push(tone(480, gst::ClockTime::ZERO)).unwrap();
        rig.buffer();
    });
    assert_eq!(stats(&rig).n_fields(), 0, "finished intervals are not kept");
}
