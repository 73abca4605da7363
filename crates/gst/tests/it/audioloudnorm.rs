//! `audioloudnorm`: every frame leaves once, with its original time, at the target loudness.

use crate::common::*;
use gst::prelude::*;
use gst_audio::{AudioInfo, AudioMeta};
use threadbare_loudness::Meter;

const MS: u64 = 1_000_000;

#[test]
fn properties_have_their_defaults_and_ranges() {
    let any = Some(("0", "18446744073709551615"));
    let number = |name, default, range| (name, "gdouble", default, Some(range), true);
    assert_properties(
        "audioloudnorm",
        &[
            number("loudness-target", "-24", ("-70", "-5")),
            number("loudness-range-target", "7", ("1", "20")),
            number("max-true-peak", "-2", ("-9", "0")),
            number("offset", "0", ("-99", "99")),
            ("post-messages", "gboolean", "false", None, true),
            ("interval", "guint64", "1000000000", any, true),
        ],
    );
    let element = make("audioloudnorm");
    for name in [
        "loudness-target",
        "loudness-range-target",
        "max-true-peak",
        "offset",
    ] {
        let flags = element.find_property(name).unwrap().flags();
        assert!(flags.contains(gst::PARAM_FLAG_CONTROLLABLE | gst::PARAM_FLAG_MUTABLE_PLAYING));
    }
}

/// The element with a stream of mono F32 open.
struct Stream {
    rig: Rig,
    rate: u64,
    /// Frames that were pushed.
    frames: u64,
}

fn caps(rate: u64, channels: i32) -> gst::Caps {
    let mask = gst::Bitmask::new((1 << channels) - 1);
    gst::Caps::builder("audio/x-raw")
        .field("format", "F32LE")
        .field("layout", "interleaved")
        .field("rate", rate as i32)
        .field("channels", channels)
        .field_if("channel-mask", mask, channels > 1)
        .build()
}

/// Returns a frame of a tone. Within a second, all frames differ.
fn value(frame: u64) -> f32 {
    0.02 * (frame as f32 * 0.013).sin() + 0.02 * (frame as f32 * 0.1).sin()
}

impl Stream {
    fn new(properties: &str, rate: u64) -> Stream {
        let line = format!("audioloudnorm loudness-target=-23 {properties}");
        let rig = Rig::without_stream(&line, gst::State::Playing);
        rig.feed
            .push_event(gst::event::StreamStart::new("a-stream"));
        rig.feed.push_event(gst::event::Caps::new(&caps(rate, 1)));
        rig.open_segment();
        Stream {
            rig,
            rate,
            frames: 0,
        }
    }

    fn ns(&self, frames: u64) -> u64 {
        frames * 1_000_000_000 / self.rate
    }

    fn buffer(&self, frames: u64, pts_ns: Option<u64>) -> gst::Buffer {
        let samples = self.frames..self.frames + frames;
        let bytes: Vec<u8> = samples.flat_map(|n| value(n).to_le_bytes()).collect();
        let mut buffer = gst::Buffer::from_mut_slice(bytes);
        let room = buffer.get_mut().unwrap();
        room.set_pts(pts_ns.map(gst::ClockTime::from_nseconds));
        buffer
    }

    /// Pushes this many frames in one buffer.
    fn push_at(&mut self, frames: u64, pts_ns: u64) {
        let buffer = self.buffer(frames, Some(pts_ns));
        self.frames += frames;
        self.rig.push(buffer).unwrap();
    }

    /// Pushes this many ms from there on, in buffers of 20 ms.
    fn push_ms(&mut self, ms: u64, from_ns: u64) {
        let each = self.rate / 50;
        for n in 0..ms / 20 {
            self.push_at(each, from_ns + self.ns(n * each));
        }
    }

    fn end(&self) {
        assert!(self.rig.feed.push_event(gst::event::Eos::new()));
    }

    fn all(&self) -> Vec<Seen> {
        self.rig.seen.try_iter().collect()
    }

    /// Returns the output buffers.
    fn out(&self) -> Vec<gst::Buffer> {
        buffers(self.all())
    }
}

fn buffers(seen: Vec<Seen>) -> Vec<gst::Buffer> {
    let buffer = |seen| match seen {
        Seen::Buffer(buffer) => Some(buffer),
        Seen::Event(_) => None,
    };
    seen.into_iter().filter_map(buffer).collect()
}

fn frames(buffers: &[gst::Buffer]) -> u64 {
    buffers.iter().map(|buffer| buffer.size() as u64 / 4).sum()
}

fn samples(buffers: &[gst::Buffer]) -> Vec<f32> {
    let all: Vec<u8> = buffers.iter().flat_map(|buffer| bytes(buffer)).collect();
    let words = all.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

fn pts(buffer: &gst::BufferRef) -> u64 {
    buffer.pts().unwrap().nseconds()
}

/// Asserts that each buffer starts at the end of the previous one, the first at `start`.
#[track_caller]
fn assert_contiguous(buffers: &[gst::Buffer], start: u64, rate: u64) {
    let mut expected = start;
    for buffer in buffers {
        assert!(
            pts(buffer).abs_diff(expected) <= 2,
            "{} {expected}",
            pts(buffer)
        );
        let duration = buffer.duration().unwrap().nseconds();
        let frames = buffer.size() as u64 / 4;
        assert!(duration.abs_diff(frames * 1_000_000_000 / rate) <= 1);
        expected = pts(buffer) + duration;
    }
}

/// Asserts the order of the frames from `from` on, with any gain.
fn assert_order(samples: &[f32], from: u64) {
    for (n, pair) in samples.windows(2).enumerate().step_by(997) {
        let (one, two) = (value(from + n as u64), value(from + n as u64 + 1));
        let (found, expected) = (pair[0] * two, pair[1] * one);
        assert!((found - expected).abs() < 2e-4, "{n}: {pair:?} {one} {two}");
    }
}

#[test]
fn output_keeps_the_input_timestamps() {
    for rate in [8_000, 44_100, 48_000] {
        let mut stream = Stream::new("", rate);
        let start = 7_000 * MS;
        stream.push_ms(5_000, start);
        let early = stream.out();
        assert_eq!(frames(&early), stream.frames - 3 * rate);
        assert_contiguous(&early, start, rate);
        stream.end();
        let seen = stream.all();
        assert!(
            matches!(seen.last(), Some(Seen::Event(event)) if event.type_() == gst::EventType::Eos)
        );
        let late = buffers(seen);
        let all = [early, late].concat();
        assert_eq!(frames(&all), stream.frames);
        assert_contiguous(&all, start, rate);
        assert_order(&samples(&all), 0);
        assert!(all[0].flags().contains(gst::BufferFlags::DISCONT));
        assert!(
            all[1..]
                .iter()
                .all(|b| !b.flags().contains(gst::BufferFlags::DISCONT))
        );
    }
}

#[test]
fn all_frames_of_a_short_input_are_output() {
    for frames_in in [0, 1, 2, 100, 4_800, 143_999] {
        let mut stream = Stream::new("", 48_000);
        if frames_in > 0 {
            stream.push_at(frames_in, 0);
        }
        stream.end();
        let all = stream.out();
        assert_eq!(frames(&all), frames_in);
        assert_contiguous(&all, 0, 48_000);
    }
    // The output of a short input is at the target, too. This input has half a second at about -31 LUFS.
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(500, 0);
    stream.end();
    let mut meter = Meter::builder(48_000, 1).build().unwrap();
    meter.add_interleaved(&samples(&stream.out())).unwrap();
    let found = meter.integrated().unwrap();
    assert!((found + 23.0).abs() < 0.5, "{found}");
}

#[test]
fn latency_grows_by_three_seconds() {
    for (rate, expected_ns) in [
        (48_000, 3_000 * MS),
        (8_000, 3_000 * MS),
        (11_025, 33_090 * 1_000_000_000 / 11_025),
    ] {
        let line = format!(
            "audiotestsrc is-live=true samplesperbuffer=100 ! audio/x-raw,rate={rate},format=F32LE \
             ! audioloudnorm name=norm ! fakesink"
        );
        let pipe = Pipe::parse(&line);
        pipe.play();
        let source_ns = 100 * 1_000_000_000 / rate;
        eventually("the caps are there", || {
            let mut query = gst::query::Latency::new();
            if !pipe.pad("norm", "src").query(&mut query) {
                return false;
            }
            let (live, min, max) = query.result();
            assert!(live && max.is_none_or(|max| max >= min));
            min.nseconds().abs_diff(source_ns + expected_ns) <= 2
        });
    }
}

#[test]
fn latency_change_by_caps_is_reported() {
    let stream = Stream::new("", 48_000);
    let kinds = [gst::MessageType::Latency];
    assert!(stream.rig.bus.pop_filtered(&kinds).is_none());
    stream
        .rig
        .feed
        .push_event(gst::event::Caps::new(&caps(11_025, 1)));
    assert!(stream.rig.bus.pop_filtered(&kinds).is_some());
    stream
        .rig
        .feed
        .push_event(gst::event::Caps::new(&caps(11_025, 2)));
    assert!(stream.rig.bus.pop_filtered(&kinds).is_none());
}

#[test]
fn a_gap_is_silence_of_its_length() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(2_000, 0);
    let gap = gst::event::Gap::builder(gst::ClockTime::from_seconds(2))
        .duration(gst::ClockTime::from_mseconds(1_500));
    assert!(stream.rig.feed.push_event(gap.build()));
    stream.push_ms(1_000, 3_500 * MS);
    // A gap event does the same as a buffer.
    let mut buffer = stream.buffer(24_000, Some(4_500 * MS));
    buffer.get_mut().unwrap().set_flags(gst::BufferFlags::GAP);
    stream.rig.push(buffer).unwrap();
    stream.push_ms(1_000, 5_000 * MS);
    stream.end();
    let seen = stream.all();
    assert!(
        !seen
            .iter()
            .any(|seen| matches!(seen, Seen::Event(e) if e.type_() == gst::EventType::Gap))
    );
    let all = buffers(seen);
    assert_eq!(frames(&all), 6 * 48_000);
    assert_contiguous(&all, 0, 48_000);
    let samples = samples(&all);
    let silent = |ms: std::ops::Range<usize>| {
        samples[ms.start * 48..ms.end * 48]
            .iter()
            .all(|v| *v == 0.0)
    };
    assert!(silent(2_000..3_500) && silent(4_500..5_000));
    assert!(!silent(1_990..2_000) && !silent(3_500..3_510) && !silent(5_000..5_010));
    assert_order(&samples[..96_000], 0);
    assert_order(&samples[168_000..216_000], 96_000);
    assert_eq!(stat(&stream.rig.element, "frames-filled"), 96_000);
    assert_eq!(stat(&stream.rig.element, "jumps"), 0);
}

#[test]
fn short_gap_passes_unchanged() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(1_000, 0);
    let gap = gst::event::Gap::builder(gst::ClockTime::from_seconds(1))
        .duration(gst::ClockTime::from_seconds(3_600));
    assert!(stream.rig.feed.push_event(gap.build()));
    let seen = stream.all();
    assert!(matches!(seen.last(), Some(Seen::Event(e)) if e.type_() == gst::EventType::Gap));
    assert_eq!(frames(&buffers(seen)), 48_000);
    stream.push_ms(1_000, 3_601_000 * MS);
    stream.end();
    let after = stream.out();
    assert_eq!((frames(&after), pts(&after[0])), (48_000, 3_601_000 * MS));
}

#[test]
fn missing_audio_becomes_silence() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(4_000, 0);
    // 200 ms are lost.
    stream.push_ms(4_000, 4_200 * MS);
    let so_far = stream.out();
    assert_eq!(frames(&so_far), (8_200 - 3_000) * 48);
    assert_contiguous(&so_far, 0, 48_000);
    // After a gap of an hour, all held audio leaves first.
    stream.push_ms(20, 3_600_000 * MS);
    let rest = stream.out();
    assert_eq!(frames(&rest), 3_000 * 48);
    assert_contiguous(&[so_far.clone(), rest].concat(), 0, 48_000);
    // Then the time jumps back from the hour.
    stream.push_ms(2_000, 3_600_020 * MS);
    stream.push_ms(2_000, 10_000 * MS);
    stream.end();
    let late = stream.out();
    let (hour, back) = late.split_at(late.iter().position(|b| pts(b) == 10_000 * MS).unwrap());
    assert_eq!((frames(hour), frames(back)), (2_020 * 48, 2_000 * 48));
    assert_contiguous(hour, 3_600_000 * MS, 48_000);
    assert_contiguous(back, 10_000 * MS, 48_000);
    for part in [hour, back] {
        assert!(part[0].flags().contains(gst::BufferFlags::DISCONT));
    }
    assert_eq!(stat(&stream.rig.element, "jumps"), 2);
    assert_eq!(stat(&stream.rig.element, "frames-filled"), 9_600);
    // The programme's loudness is unchanged, and so is the output's.
    let rms = |samples: &[f32]| samples.iter().map(|v| v * v).sum::<f32>() / samples.len() as f32;
    let ratio = rms(&samples(back)) / rms(&samples(&so_far[50..150]));
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

#[test]
fn a_drifting_clock_is_followed() {
    let mut stream = Stream::new("", 48_000);
    // For 6 s, each buffer of 20 ms is 1 ms too long. The buffers are marked as discontinuous, as some sources do.
    for n in 0..300 {
        let mut buffer = stream.buffer(960, Some(n * 21 * MS));
        buffer
            .get_mut()
            .unwrap()
            .set_flags(gst::BufferFlags::DISCONT);
        stream.frames += 960;
        stream.rig.push(buffer).unwrap();
    }
    stream.end();
    let all = stream.out();
    assert_eq!(frames(&all), stream.frames);
    let mut at = 0;
    for buffer in &all {
        let expected = at / 960 * 21 * MS + at % 960 * 1_000_000_000 / 48_000;
        assert!(
            pts(buffer).abs_diff(expected) <= MS,
            "{at}: {} {expected}",
            pts(buffer)
        );
        at += buffer.size() as u64 / 4;
    }
    assert_eq!(stat(&stream.rig.element, "jumps"), 0);
}

#[test]
fn buffers_without_times_pass() {
    let mut stream = Stream::new("", 48_000);
    for _ in 0..200 {
        let buffer = stream.buffer(960, None);
        stream.frames += 960;
        stream.rig.push(buffer).unwrap();
    }
    stream.end();
    let all = stream.out();
    assert_eq!(frames(&all), stream.frames);
    assert!(all.iter().all(|buffer| buffer.pts().is_none()));
}

#[test]
fn exclusive_input_buffer_is_reused_for_output() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(4_000, 0);
    stream.out();
    let buffer = stream.buffer(960, Some(4_000 * MS));
    let address = buffer.as_ptr();
    stream.rig.push(buffer).unwrap();
    assert_eq!(stream.rig.buffer().as_ptr(), address);
    // A buffer with another reference.
    let kept = stream.buffer(960, Some(4_020 * MS));
    let before = bytes(&kept);
    stream.rig.push(kept.clone()).unwrap();
    assert_ne!(stream.rig.buffer().as_ptr(), kept.as_ptr());
    assert_eq!(bytes(&kept), before);
}

fn tag(title: &str) -> gst::Event {
    let mut tags = gst::TagList::new();
    tags.make_mut()
        .add::<gst::tags::Title>(&title, gst::TagMergeMode::Append);
    gst::event::Tag::new(tags)
}

#[test]
fn events_keep_their_place_among_the_frames() {
    let mut stream = Stream::new("", 48_000);
    stream.rig.feed.push_event(tag("before all"));
    let seen = stream.all();
    assert!(matches!(seen.last(), Some(Seen::Event(e)) if e.type_() == gst::EventType::Tag));
    stream.push_ms(1_000, 0);
    // In the middle of a future buffer.
    stream.push_at(500, 1_000 * MS);
    stream.rig.feed.push_event(tag("here"));
    let note = gst::Structure::new_empty("note");
    stream
        .rig
        .feed
        .push_event(gst::event::CustomDownstream::new(note));
    let from = 1_000 * MS + stream.ns(500);
    stream.push_ms(4_000, from);
    stream.end();
    let (mut before, mut found) = (0, Vec::new());
    for seen in stream.all() {
        match seen {
            Seen::Buffer(buffer) => before += buffer.size() / 4,
            Seen::Event(event) => found.push((event.type_(), before)),
        }
    }
    use gst::EventType::{CustomDownstream, Eos, Tag};
    assert_eq!(
        found,
        [
            (Tag, 48_500),
            (CustomDownstream, 48_500),
            (Eos, 48_500 + 192_000)
        ]
    );
}

#[test]
fn flush_drops_the_queued_audio() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(4_000, 0);
    stream.rig.feed.push_event(tag("held"));
    stream.rig.feed.push_event(gst::event::FlushStart::new());
    stream.rig.feed.push_event(gst::event::FlushStop::new(true));
    stream.rig.open_segment();
    stream.out();
    stream.push_ms(1_000, 60_000 * MS);
    stream.end();
    let all = stream.out();
    assert_eq!(frames(&all), 48_000);
    assert_contiguous(&all, 60_000 * MS, 48_000);
    let src = stream.rig.element.static_pad("src").unwrap();
    assert!(src.sticky_event::<gst::event::Tag>(0).is_some());
}

#[test]
fn new_segment_follows_all_held_data() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(1_000, 0);
    // Setting a property to its present value changes nothing.
    stream.rig.open_segment();
    stream.push_ms(1_000, 1_000 * MS);
    assert!(stream.out().is_empty());
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_base(gst::ClockTime::from_seconds(2));
    segment.set_start(gst::ClockTime::from_seconds(100));
    stream
        .rig
        .feed
        .push_event(gst::event::Segment::new(&segment));
    let seen = stream.all();
    assert!(matches!(seen.last(), Some(Seen::Event(e)) if e.type_() == gst::EventType::Segment));
    assert_eq!(frames(&buffers(seen)), 96_000);
    stream.push_ms(1_000, 100_000 * MS);
    stream.end();
    assert_contiguous(&stream.out(), 100_000 * MS, 48_000);
}

#[test]
fn new_caps_follow_all_held_data() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(1_000, 0);
    stream
        .rig
        .feed
        .push_event(gst::event::Caps::new(&caps(48_000, 1)));
    assert!(stream.out().is_empty());
    stream
        .rig
        .feed
        .push_event(gst::event::Caps::new(&caps(16_000, 2)));
    let seen = stream.all();
    assert!(matches!(seen.last(), Some(Seen::Event(e)) if e.type_() == gst::EventType::Caps));
    assert_eq!(frames(&buffers(seen)), 48_000);
    stream.rate = 32_000;
    stream.push_ms(4_000, 1_000 * MS);
    stream.end();
    let all = stream.out();
    assert_eq!((frames(&all), pts(&all[0])), (128_000, 1_000 * MS));
    assert_eq!(stat(&stream.rig.element, "frames-out"), 48_000 + 64_000);
    let planar = gst::Caps::builder("audio/x-raw")
        .field("format", "U8")
        .build();
    assert!(!stream.rig.feed.push_event(gst::event::Caps::new(&planar)));
}

#[test]
fn serialized_query_is_answered_after_earlier_data() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(1_000, 0);
    let mut query = gst::query::Drain::new();
    assert!(stream.rig.feed.peer_query(&mut query));
    assert_eq!(frames(&stream.out()), 48_000);
    assert_eq!(stream.rig.queries.try_recv(), Ok(gst::QueryType::Drain));
    let mut query = gst::query::Allocation::new(Some(&caps(48_000, 1)), false);
    assert!(!stream.rig.feed.peer_query(&mut query));
    assert!(stream.rig.queries.try_recv().is_err());
}

#[test]
fn flow_result_of_downstream_reaches_upstream() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(4_000, 0);
    *stream.rig.answer.lock().unwrap() = Err(gst::FlowError::NotLinked);
    let buffer = stream.buffer(960, Some(4_000 * MS));
    assert_eq!(stream.rig.push(buffer), Err(gst::FlowError::NotLinked));
}

#[test]
fn partial_frame_is_reported_as_an_error() {
    let stream = Stream::new("", 48_000);
    let odd = gst::Buffer::from_mut_slice([0; 7]);
    assert_eq!(stream.rig.push(odd), Err(gst::FlowError::Error));
    assert!(text(&stream.rig.error()).contains("7 bytes"));
}

#[test]
fn states_change_in_both_directions() {
    let rig = Rig::without_stream("audioloudnorm", gst::State::Playing);
    goes_up_and_down(&rig, || {
        rig.feed
            .push_event(gst::event::StreamStart::new("a-stream"));
        rig.feed.push_event(gst::event::Caps::new(&caps(48_000, 1)));
        rig.open_segment();
        for _ in 0..4 {
            rig.push(gst::Buffer::from_mut_slice(vec![0u8; 4 * 48_000]))
                .unwrap();
        }
        rig.buffer();
    });
}

#[test]
fn setting_changes_are_applied_gradually() {
    let mut stream = Stream::new("", 48_000);
    stream.push_ms(4_000, 0);
    stream.rig.element.set_property("offset", -20.0);
    stream.push_ms(4_000, 4_000 * MS);
    stream.end();
    let samples = samples(&stream.out());
    // The gain changes by some 0.3 dB in each 10 ms (measured at different samples). In the end, it has changed by 20 dB.
    let gain = |ms: usize| {
        let part = &samples[ms * 48..][..480];
        let at = (0..480)
            .max_by(|a, b| part[*a].abs().total_cmp(&part[*b].abs()))
            .unwrap();
        20.0 * (part[at] / value((ms * 48 + at) as u64)).abs().log10()
    };
    let gains: Vec<f32> = (0..799).map(|n| gain(n * 10)).collect();
    for pair in gains.windows(2) {
        assert!((pair[0] - pair[1]).abs() < 0.65, "{pair:?}");
    }
    assert!(
        (gains[780] - gains[50] + 20.0).abs() < 0.5,
        "{} {}",
        gains[50],
        gains[780]
    );
}

#[test]
fn messages_report_the_state() {
    let mut stream = Stream::new(
        "post-messages=true interval=500000000 max-true-peak=-9 loudness-target=-15",
        48_000,
    );
    stream.push_ms(6_000, 2_000 * MS);
    stream.end();
    let mut found = Vec::new();
    while let Some(message) = stream.rig.bus.pop_filtered(&[gst::MessageType::Element]) {
        found.push(message.structure().unwrap().to_owned());
    }
    assert_eq!(found.len(), 12);
    for (n, structure) in found.iter().enumerate() {
        assert_eq!(structure.name(), "audioloudnorm");
        let timestamp = structure.get::<gst::ClockTime>("timestamp").unwrap();
        assert_eq!(timestamp.mseconds(), 2_000 + 500 * (n as u64 + 1));
        assert_eq!(structure.get("running-time"), Ok(timestamp));
        assert_eq!(structure.get("stream-time"), Ok(timestamp));
    }
    let of = |name: &str| found[9].get::<f64>(name).unwrap();
    assert!(
        (of("shortterm-loudness-in") + of("gain") + 15.0).abs() < 0.5,
        "{}",
        found[9]
    );
    assert!(
        (of("shortterm-loudness-out") + 15.0).abs() < 4.0,
        "{}",
        found[9]
    );
    assert!(
        of("limiter-gain") < -0.5 && of("true-peak-out") <= -9.0,
        "{}",
        found[9]
    );
    assert!((of("global-loudness-out") + 15.0).abs() < 4.0);
    let stats = stream.rig.element.property::<gst::Structure>("stats");
    assert_eq!(stats.get("frames-in"), Ok(288_000u64));
    assert_eq!(stats.get("frames-out"), Ok(288_000u64));
    assert!(stats.get::<f64>("gain").is_ok());
}

#[test]
fn every_format_and_layout_reaches_the_target() {
    for (n, format) in ["F32LE", "F64LE", "S16LE", "S32LE"].into_iter().enumerate() {
        for layout in ["interleaved", "non-interleaved"] {
            for channels in [1, 2, 6] {
                let rate = [48_000, 44_100, 96_000, 8_000][n];
                let pipe = Pipe::parse(&format!(
                    "audiotestsrc num-buffers=400 samplesperbuffer={} volume=0.03 freq=1000 ! audioconvert \
                     ! audio/x-raw,format={format},layout={layout},rate={rate},channels={channels} \
                     ! audioloudnorm name=norm loudness-target=-20 ! audioconvert \
                     ! audio/x-raw,format=F32LE,layout=interleaved ! fakesink name=out sync=false",
                    rate / 100
                ));
                let heard = watch(&pipe.pad("out", "sink"));
                pipe.play();
                let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
                let message = pipe.message(&kinds);
                assert_eq!(message.type_(), gst::MessageType::Eos, "{}", text(&message));
                let all = buffers(heard.try_iter().collect());
                let samples = samples(&all);
                assert_eq!(
                    samples.len(),
                    rate * 4 * channels,
                    "{format} {layout} {channels}"
                );
                let layout_of = match channels {
                    6 => threadbare_loudness::Channel::default_layout(6),
                    _ => vec![threadbare_loudness::Channel::Center; channels],
                };
                let mut meter = Meter::builder(rate as u32, channels)
                    .layout(&layout_of)
                    .build()
                    .unwrap();
                meter.add_interleaved(&samples).unwrap();
                let found = meter.integrated().unwrap();
                assert!(
                    (found + 20.0).abs() < 0.2,
                    "{format} {layout} {channels}: {found}"
                );
            }
        }
    }
}

/// Reads planes at any offset, and drops metas that do not fit the output.
#[test]
fn planes_are_read_at_the_offsets_of_the_meta() {
    let rig = Rig::without_stream("audioloudnorm", gst::State::Playing);
    rig.feed
        .push_event(gst::event::StreamStart::new("a-stream"));
    let mut caps = caps(48_000, 2);
    caps.make_mut().set("layout", "non-interleaved");
    rig.feed.push_event(gst::event::Caps::new(&caps));
    rig.open_segment();
    let info = AudioInfo::from_caps(&caps).unwrap();
    for n in 0..100u64 {
        let plane = |sign: f32| -> Vec<u8> {
            (n * 480..n * 480 + 480)
                .flat_map(|n| (sign * value(n)).to_le_bytes())
                .collect()
        };
        let mut buffer =
            gst::Buffer::from_mut_slice([plane(-1.0), vec![7; 100], plane(1.0)].concat());
        AudioMeta::add(buffer.make_mut(), &info, 480, &[480 * 4 + 100, 0]).unwrap();
        rig.push(buffer).unwrap();
    }
    rig.feed.push_event(gst::event::Eos::new());
    let mut at = 0;
    for buffer in buffers(rig.seen.try_iter().collect()) {
        let meta = buffer.meta::<AudioMeta>().unwrap();
        let (frames, offsets) = (meta.samples(), meta.offsets().to_vec());
        let all = samples(std::slice::from_ref(&buffer));
        for frame in (0..frames).step_by(37) {
            let (left, right) = (all[offsets[0] / 4 + frame], all[offsets[1] / 4 + frame]);
            assert_eq!(left, -right);
            let value = value(at + frame as u64);
            assert!(value.abs() < 1e-3 || left / value > 0.0);
        }
        at += frames as u64;
    }
    assert_eq!(at, 48_000);
}
