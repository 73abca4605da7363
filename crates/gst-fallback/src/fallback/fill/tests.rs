//! Fills on a test clock, and their content as stock elements decode it.

use std::process::Command;
use std::sync::mpsc::channel;

use gst::glib;
use gst::prelude::*;
use gst_check::TestClock;
use gst_video::prelude::*;
use gst_video::{VideoFormat, VideoFrameRef, VideoInfo};

use super::Fill;
use super::test_rig::*;

const ANY_AUDIO: &str = "audio/x-raw";
const ANY_VIDEO: &str = "video/x-raw";

/// Returns the first buffer of a fill after a stock pipeline.
fn decoded(fill: Fill, line: &str) -> gst::Buffer {
    let pipeline = gst::Pipeline::new();
    let rest =
        format!("capsfilter name=filter ! {line} ! fakesink name=out sync=false async=false");
    let rest = gst::parse::bin_from_description(&rest, false).unwrap();
    let first = rest.by_name("filter").unwrap().static_pad("sink").unwrap();
    // Stock elements may skip buffers that are marked as silent.
    first.add_probe(gst::PadProbeType::BUFFER, |_, info| {
        if let Some(buffer) = info.buffer_mut() {
            buffer.make_mut().unset_flags(gst::BufferFlags::GAP);
        }
        gst::PadProbeReturn::Ok
    });
    rest.add_pad(
        &gst::GhostPad::builder_with_target(&first)
            .unwrap()
            .name("sink")
            .build(),
    )
    .unwrap();
    pipeline
        .add_many([fill.upcast_ref(), rest.upcast_ref::<gst::Element>()])
        .unwrap();
    fill.link(&rest).unwrap();
    let (send, seen) = channel();
    let last = rest.by_name("out").unwrap().static_pad("sink").unwrap();
    last.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let _ = send.send(info.buffer().unwrap().clone());
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing).unwrap();
    let buffer = seen.recv_timeout(DEADLINE);
    let error = pipeline
        .bus()
        .unwrap()
        .pop_filtered(&[gst::MessageType::Error]);
    pipeline.set_state(gst::State::Null).unwrap();
    buffer.unwrap_or_else(|_| panic!("{line}: no buffer, {error:?}"))
}

#[test]
fn silence_of_all_formats_and_layouts_is_decoded_to_zero() {
    init();
    for format in gst_audio::AUDIO_FORMATS_ALL.iter() {
        for layout in ["interleaved", "non-interleaved"] {
            let wanted = caps(&format!(
                "audio/x-raw,format={},rate=44100,channels=2,layout={layout},channel-mask=(bitmask)0x3",
                format.to_str()
            ));
            let buffer = decoded(
                silence(Some(wanted)),
                "audioconvert ! audio/x-raw,format=F64LE,layout=interleaved",
            );
            let samples = bytes(&buffer);
            assert_eq!(samples.len(), 882 * 2 * 8, "{format} {layout}");
            for sample in samples.chunks_exact(8) {
                let sample = f64::from_le_bytes(sample.try_into().unwrap());
                assert_eq!(sample, 0.0, "{format} {layout}");
            }
        }
    }
    // The value follows from the definition of the format (offset binary), not from the stock decoder.
    let rig = Rig::playing(silence(None), "audio/x-raw,format=U8");
    assert!(bytes(&rig.buffer()).iter().all(|byte| *byte == 0x80));
}

#[test]
fn black_of_all_formats_is_black() {
    init();
    for format in gst_video::VIDEO_FORMATS_ALL.iter() {
        for size in ["width=64,height=48", "width=37,height=21"] {
            let wanted = caps(&format!(
                "video/x-raw,format={},{size},framerate=30/1",
                format.to_str()
            ));
            let buffer = decoded(
                black(Some(wanted)),
                "videoconvert dither=none ! video/x-raw,format=ARGB",
            );
            for pixel in bytes(&buffer).chunks_exact(4) {
                // The decoder is up to two off. Two bits of alpha are decoded to 0xc0 at most.
                let is_black = pixel[0] >= 0xc0 && pixel[1..].iter().all(|part| *part <= 2);
                assert!(is_black, "{format} {size}: {pixel:?}");
            }
        }
    }
}

/// The values of the definition, with the limited and the full range (ITU-T H.273).
#[test]
fn black_has_the_values_of_its_range() {
    for (colorimetry, luma) in [("bt601", 16), ("bt709", 16), ("1:4:0:0", 0)] {
        let takes =
            format!("video/x-raw,format=I420,width=64,height=48,colorimetry=(string){colorimetry}");
        let rig = Rig::playing(black(None), &takes);
        let frame = bytes(&rig.buffer());
        let (lumas, chromas) = frame.split_at(64 * 48);
        assert!(lumas.iter().all(|value| *value == luma), "{colorimetry}");
        assert!(chromas.iter().all(|value| *value == 128), "{colorimetry}");
    }
}

/// Red, green, blue and white, each in a quarter.
const QUARTERS: [[u8; 3]; 4] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]];

/// Returns a decoded frame with those quarters.
fn quarters(width: u32, height: u32, ratio: (i32, i32)) -> gst::Sample {
    init();
    let info = VideoInfo::builder(VideoFormat::Rgb, width, height)
        .par(gst::Fraction::new(ratio.0, ratio.1))
        .build()
        .unwrap();
    let mut buffer = gst::Buffer::with_size(info.size()).unwrap();
    {
        let mut frame = VideoFrameRef::from_buffer_ref_writable(buffer.make_mut(), &info).unwrap();
        let stride = frame.plane_stride()[0] as usize;
        for (y, line) in frame
            .plane_data_mut(0)
            .unwrap()
            .chunks_mut(stride)
            .enumerate()
        {
            for x in 0..width as usize {
                let quarter = usize::from(x >= width as usize / 2)
                    + 2 * usize::from(y >= height as usize / 2);
                line[3 * x..3 * x + 3].copy_from_slice(&QUARTERS[quarter]);
            }
        }
    }
    gst::Sample::builder()
        .buffer(&buffer)
        .caps(&info.to_caps().unwrap())
        .build()
}

/// Returns the frame in RGB, by the stock converter.
fn pixels(buffer: &gst::Buffer, of: &gst::Caps) -> impl Fn(u32, u32) -> [u8; 3] + use<> {
    let sample = gst::Sample::builder().buffer(buffer).caps(of).build();
    let rgb = caps("video/x-raw,format=RGB");
    let sample = gst_video::convert_sample(&sample, &rgb, Some(DEADLINE_GST)).unwrap();
    let info = VideoInfo::from_caps(sample.caps().unwrap()).unwrap();
    let data = bytes(sample.buffer().unwrap());
    move |x, y| {
        let at = y as usize * info.stride()[0] as usize + 3 * x as usize;
        data[at..at + 3].try_into().unwrap()
    }
}

fn assert_near(found: [u8; 3], expected: [u8; 3], place: &str) {
    let is_near = (found.iter().zip(expected)).all(|(a, b)| a.abs_diff(b) <= 6);
    assert!(is_near, "{place}: {found:?}, not {expected:?}");
}

#[test]
fn a_still_fills_the_frame_as_far_as_its_shape_allows() {
    let square = (1, 1);
    // The expected place of the picture in the frame, by its shape.
    for (format, (width, height), ratio, (x, y, shown_width, shown_height)) in [
        ("I420", (320, 180), square, (0, 0, 640, 360)),
        ("I420", (2560, 1440), square, (0, 0, 640, 360)),
        ("I420", (320, 240), square, (80, 0, 480, 360)),
        ("RGB", (100, 200), square, (230, 0, 180, 360)),
        ("NV12", (1000, 250), square, (0, 100, 640, 160)),
        ("Y41B", (200, 200), square, (140, 0, 360, 360)),
        ("v210", (200, 200), square, (140, 0, 360, 360)),
        // The picture is displayed as 4:3, because its pixels are twice as wide as high.
        ("I420", (180, 270), (2, 1), (80, 0, 480, 360)),
    ] {
        let place = format!("{format} of {width}x{height}");
        let wanted = caps(&format!(
            "video/x-raw,format={format},width=640,height=360,framerate=25/1"
        ));
        let picture = quarters(width, height, ratio);
        let rig = Rig::playing(still(picture, Some(wanted)), ANY_VIDEO);
        let pixel = pixels(&rig.buffer(), &rig.caps());
        for (i, expected) in QUARTERS.into_iter().enumerate() {
            let (right, low) = (i as u32 % 2, i as u32 / 2);
            // Near the corners and in the middle of each quarter.
            for eighths in [1, 2, 3] {
                let at_x = x + shown_width * (4 * right + eighths) / 8;
                let at_y = y + shown_height * (4 * low + eighths) / 8;
                assert_near(pixel(at_x, at_y), expected, &place);
            }
        }
        // The bars must be black up to their edges.
        for edge in [0, x.saturating_sub(5)].into_iter().filter(|_| x > 0) {
            assert_near(pixel(edge, 180), [0; 3], &place);
            assert_near(pixel(639 - edge, 180), [0; 3], &place);
        }
        for edge in [0, y.saturating_sub(5)].into_iter().filter(|_| y > 0) {
            assert_near(pixel(320, edge), [0; 3], &place);
            assert_near(pixel(320, 359 - edge), [0; 3], &place);
        }
    }
}

#[test]
fn a_still_with_the_caps_of_the_output_is_not_converted() {
    let picture = quarters(320, 240, (1, 1));
    let expected = bytes(picture.buffer().unwrap());
    let mut wanted = picture.caps_owned().unwrap();
    wanted
        .make_mut()
        .set("framerate", gst::Fraction::new(10, 1));
    let rig = Rig::playing(still(picture, Some(wanted.clone())), ANY_VIDEO);
    let shown = rig.buffer();
    assert_eq!(bytes(&shown), expected);
    assert!(rig.caps().is_subset(&wanted));
}

#[test]
fn cropped_still_shows_its_visible_part() {
    let picture = quarters(320, 240, (1, 1));
    let mut buffer = picture.buffer_owned().unwrap();
    // The lower right quarter: white.
    gst_video::VideoCropMeta::add(buffer.make_mut(), (160, 120, 160, 120));
    let picture = gst::Sample::builder()
        .buffer(&buffer)
        .caps(&picture.caps_owned().unwrap())
        .build();
    let wanted = caps("video/x-raw,format=RGB,width=64,height=48,framerate=25/1");
    let rig = Rig::playing(still(picture, Some(wanted)), ANY_VIDEO);
    let shown = rig.buffer();
    assert!(bytes(&shown).iter().all(|byte| *byte >= 250));
}

#[test]
fn invalid_still_is_black_with_a_warning() {
    init();
    let strange = caps("image/png,width=3,height=3");
    for picture in [
        gst::Sample::builder().build(),
        gst::Sample::builder()
            .buffer(&gst::Buffer::from_slice([1, 2, 3]))
            .caps(&strange)
            .build(),
        // This buffer is too short for its caps.
        gst::Sample::builder()
            .buffer(&gst::Buffer::from_slice([1, 2, 3]))
            .caps(&quarters(64, 48, (1, 1)).caps_owned().unwrap())
            .build(),
    ] {
        let wanted = caps("video/x-raw,format=RGB,width=64,height=48,framerate=25/1");
        let rig = Rig::playing(still(picture, Some(wanted)), ANY_VIDEO);
        assert!(bytes(&rig.buffer()).iter().all(|byte| *byte == 0));
        rig.message(gst::MessageType::Warning);
    }
}

#[test]
fn unconstrained_caps_have_the_documented_defaults() {
    for (fill, takes, expected) in [
        (
            silence as fn(_) -> _,
            ANY_AUDIO,
            "audio/x-raw,format=S16LE,rate=48000,channels=2,layout=interleaved",
        ),
        (
            black,
            ANY_VIDEO,
            "video/x-raw,format=I420,width=1280,height=720,framerate=25/1,pixel-aspect-ratio=1/1",
        ),
        (
            silence,
            "audio/x-raw,rate=[1,22050],channels=[4,8],format={F32LE,U8}",
            "audio/x-raw,format=F32LE,rate=22050,channels=4,channel-mask=(bitmask)0x33",
        ),
        (
            black,
            "video/x-raw,width=[1,640],height=[1,480],framerate=[30/1,60/1],pixel-aspect-ratio={16/11,10/11}",
            "video/x-raw,format=I420,width=640,height=480,framerate=30/1,pixel-aspect-ratio=10/11",
        ),
        // These caps include a kind of memory that the element cannot allocate, next to ordinary memory.
        (
            black,
            "video/x-raw(memory:GLMemory),format=RGBA;video/x-raw,format=NV12",
            "video/x-raw,format=NV12,width=1280,height=720,framerate=25/1",
        ),
    ] {
        let rig = Rig::playing(fill(None), takes);
        rig.buffer();
        let (found, expected) = (rig.caps(), caps(expected));
        assert!(found.is_subset(&expected), "{takes}: {found}");
    }
}

#[test]
fn preferred_caps_are_used_if_accepted_or_the_nearest() {
    let audio = "audio/x-raw,format=S32LE,rate=16000,channels=6,layout=interleaved,channel-mask=(bitmask)0x60f";
    let video = "video/x-raw,format=NV12,width=720,height=576,framerate=50/1,pixel-aspect-ratio=16/15,interlace-mode=interleaved,colorimetry=bt601";
    for (fill, wanted, takes, expected) in [
        (silence as fn(_) -> _, audio, ANY_AUDIO, audio),
        (black, video, ANY_VIDEO, video),
        (
            silence,
            audio,
            "audio/x-raw,format={S16LE,S32LE},channels={1,6},channel-mask=(bitmask)0x60f,rate=48000",
            "audio/x-raw,format=S32LE,rate=48000,channels=6,channel-mask=(bitmask)0x60f",
        ),
        (
            black,
            video,
            "video/x-raw,width={320,640,1920},height=480,framerate=[1/1,30/1]",
            "video/x-raw,format=NV12,width=640,height=480,framerate=30/1,pixel-aspect-ratio=16/15",
        ),
    ] {
        let rig = Rig::playing(fill(Some(caps(wanted))), takes);
        rig.buffer();
        let (found, expected) = (rig.caps(), caps(expected));
        assert!(found.is_subset(&expected), "{takes}: {found}");
    }
}

#[test]
fn unsupported_caps_are_an_error() {
    for (fill, takes) in [
        (silence(None), "audio/x-opus"),
        (silence(None), ANY_VIDEO),
        (black(None), ANY_AUDIO),
        (black(None), "video/x-raw(memory:GLMemory)"),
        // This frame is larger than the limit.
        (
            black(None),
            "video/x-raw,format=RGBA,width=100000,height=4000",
        ),
    ] {
        let rig = Rig::playing(fill, takes);
        rig.message(gst::MessageType::Error);
    }
}

#[test]
fn pictures_have_the_times_of_the_stock_source() {
    init();
    let pace = "video/x-raw,format=GRAY8,width=16,height=16,framerate=30000/1001";
    let stock = gst::parse::launch(&format!(
        "videotestsrc num-buffers=100 ! {pace} ! fakesink name=out sync=false"
    ))
    .unwrap();
    let (send, seen) = channel();
    let out = stock
        .downcast_ref::<gst::Bin>()
        .unwrap()
        .by_name("out")
        .unwrap();
    out.static_pad("sink")
        .unwrap()
        .add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            let _ = send.send(info.buffer().unwrap().pts().unwrap());
            gst::PadProbeReturn::Ok
        });
    stock.set_state(gst::State::Playing).unwrap();
    let rig = Rig::playing(black(Some(caps(pace))), ANY_VIDEO);
    for n in 0..100 {
        if n > 0 {
            rig.step();
        }
        let (ours, theirs) = (rig.buffer(), seen.recv_timeout(DEADLINE).unwrap());
        assert_eq!(ours.pts(), Some(theirs), "{n}");
        assert_eq!(ours.flags().contains(gst::BufferFlags::DISCONT), n == 0);
        let end = ours.pts().unwrap() + ours.duration().unwrap();
        assert_eq!(end.nseconds(), (n + 1) * 1_001_000_000_000 / 30_000);
        rig.assert_idle();
    }
    stock.set_state(gst::State::Null).unwrap();
}

#[test]
fn a_fill_begins_at_the_running_time_of_its_start_and_each_buffer_at_its_own() {
    for (fill, takes, ns) in [
        (silence(None), ANY_AUDIO, 20_000_000),
        (black(None), ANY_VIDEO, 40_000_000),
    ] {
        let rig = Rig::new(fill, takes, 10 * SECOND);
        rig.fill.set_base_time(3 * SECOND + 7 * MS);
        rig.to(gst::State::Playing);
        let start = 7 * SECOND - 7 * MS;
        for n in 0..10 {
            let begin = start + gst::ClockTime::from_nseconds(n * ns);
            if n > 0 {
                assert_eq!(rig.step(), begin + 3 * SECOND + 7 * MS);
            }
            assert_eq!(rig.buffer().pts(), Some(begin));
            rig.assert_idle();
        }
    }
}

#[test]
fn all_buffers_share_one_memory_and_writers_get_copies() {
    for fill in [
        silence(None),
        black(None),
        still(quarters(64, 36, (1, 1)), None),
    ] {
        let takes = if fill
            .static_pad("src")
            .unwrap()
            .query_caps(None)
            .can_intersect(&caps(ANY_AUDIO))
        {
            ANY_AUDIO
        } else {
            ANY_VIDEO
        };
        let rig = Rig::playing(fill, takes);
        let first = rig.buffer();
        let content = bytes(&first);
        for _ in 0..5 {
            rig.step();
            let mut buffer = rig.buffer();
            assert_eq!(memory(&buffer), memory(&first));
            // A writer gets its own copy.
            buffer.make_mut().map_writable().unwrap().fill(7);
            assert_eq!(bytes(&first), content);
        }
        rig.step();
        assert_eq!(bytes(&rig.buffer()), content);
    }
}

#[test]
fn blocked_filler_resumes_at_the_present() {
    for (fill, takes, ns) in [
        (silence(None), ANY_AUDIO, 20_000_000),
        (black(None), ANY_VIDEO, 40_000_000),
    ] {
        let rig = Rig::playing(fill, takes);
        rig.buffer();
        rig.hold(true);
        rig.step();
        rig.await_held();
        let now = 60 * SECOND + 5 * MS;
        rig.clock.set_time(now);
        rig.hold(false);
        assert_eq!(rig.buffer().pts().unwrap().nseconds(), ns);
        let next = rig.buffer();
        assert_eq!(next.pts(), Some(60 * SECOND));
        assert!(next.flags().contains(gst::BufferFlags::DISCONT));
        rig.assert_idle();
        assert_eq!(rig.step(), 60 * SECOND + gst::ClockTime::from_nseconds(ns));
        assert!(!rig.buffer().flags().contains(gst::BufferFlags::DISCONT));
    }
}

#[test]
fn a_short_delay_omits_no_buffer() {
    let rig = Rig::playing(silence(None), ANY_AUDIO);
    rig.buffer();
    rig.run_to(130 * MS);
    for n in 1..=6 {
        let buffer = rig.buffer();
        assert_eq!(buffer.pts(), Some(20 * n * MS));
        assert!(!buffer.flags().contains(gst::BufferFlags::DISCONT));
    }
    rig.assert_idle();
}

#[test]
fn filler_resumes_after_a_pause_with_a_discontinuity() {
    let rig = Rig::playing(silence(None), ANY_AUDIO);
    rig.buffer();
    drop(rig.clock.wait_for_next_pending_id());
    rig.to(gst::State::Paused);
    rig.clock.set_time(100 * SECOND + 3 * MS);
    // As in a pipeline, running time does not count the pause.
    rig.fill.set_base_time(100 * SECOND - 7 * MS);
    rig.to(gst::State::Playing);
    assert_eq!(rig.step(), 100 * SECOND + 13 * MS);
    let after = rig.buffer();
    assert_eq!(after.pts(), Some(20 * MS));
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
    // After a longer pause, missed items are skipped.
    rig.to(gst::State::Paused);
    rig.clock.set_time(110 * SECOND + 4 * MS);
    rig.to(gst::State::Playing);
    let after = rig.buffer();
    assert_eq!(after.pts(), Some(10 * SECOND));
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
    rig.assert_idle();
}

#[test]
fn the_grid_follows_a_restarted_running_time() {
    let rig = Rig::new(silence(None), ANY_AUDIO, 50 * SECOND);
    rig.to(gst::State::Playing);
    assert_eq!(rig.buffer().pts(), Some(50 * SECOND));
    drop(rig.clock.wait_for_next_pending_id());
    // Another branch makes a flushing seek.
    rig.fill.set_base_time(50 * SECOND);
    rig.step();
    let after = rig.buffer();
    assert_eq!(after.pts(), Some(20 * MS));
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
}

#[test]
fn flush_restarts_the_stream() {
    let rig = Rig::playing(silence(None), ANY_AUDIO);
    rig.buffer();
    rig.clock.set_time(5 * MS);
    assert!(rig.fill.send_event(gst::event::FlushStart::new()));
    assert!(rig.fill.send_event(gst::event::FlushStop::new(true)));
    rig.event(gst::EventType::FlushStop);
    rig.event(gst::EventType::Segment);
    let after = rig.buffer();
    assert_eq!(after.pts(), Some(5 * MS));
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
    // A flush from downstream stops at the element, and the stream continues after it.
    let upstream = rig.drain.peer().unwrap();
    drop(rig.clock.wait_for_next_pending_id());
    assert!(upstream.send_event(gst::event::FlushStart::new()));
    assert!(upstream.send_event(gst::event::FlushStop::new(true)));
    assert_eq!(rig.step(), 25 * MS);
    // That flush took the segment off the pad.
    rig.event(gst::EventType::Segment);
    assert_eq!(rig.buffer().pts(), Some(25 * MS));
}

#[test]
fn renegotiated_caps_keep_the_time_line() {
    for (fill, before, after, size) in [
        (
            silence(None),
            "audio/x-raw,format=S16LE,rate=48000,channels=1",
            "audio/x-raw,format=U8,rate=8000,channels=2",
            320,
        ),
        (
            still(quarters(64, 48, (1, 1)), None),
            "video/x-raw,format=GRAY8,width=64,height=48",
            "video/x-raw,format=RGBA,width=16,height=12",
            768,
        ),
    ] {
        let rig = Rig::playing(fill, before);
        let first = rig.buffer();
        *rig.takes.lock().unwrap() = caps(after);
        assert!(rig.drain.push_event(gst::event::Reconfigure::new()));
        rig.step();
        let caps_event = rig.event(gst::EventType::Caps);
        let gst::EventView::Caps(made) = caps_event.view() else {
            unreachable!()
        };
        assert!(made.caps().is_subset(&caps(after)));
        let next = rig.buffer();
        assert_eq!(next.pts(), Some(first.duration().unwrap()));
        assert!(!next.flags().contains(gst::BufferFlags::DISCONT));
        assert_eq!(next.size(), size);
    }
}

#[test]
fn variable_frame_rates_become_the_default_rate() {
    let wanted = caps("video/x-raw,format=I420,width=64,height=48,framerate=0/1");
    let rig = Rig::playing(black(Some(wanted)), ANY_VIDEO);
    assert_eq!(rig.buffer().duration(), Some(40 * MS));
    let rate = rig
        .caps()
        .structure(0)
        .unwrap()
        .get::<gst::Fraction>("framerate");
    assert_eq!(rate, Ok(gst::Fraction::new(0, 1)));
}

#[test]
fn states_may_change_in_any_order() {
    use gst::State::{Null, Paused, Playing, Ready};
    for (fill, takes) in [
        (silence(None), ANY_AUDIO),
        (still(quarters(64, 48, (1, 1)), None), ANY_VIDEO),
    ] {
        let rig = Rig::new(fill, takes, gst::ClockTime::ZERO);
        for state in [Ready, Null, Ready, Paused, Ready, Paused, Null, Paused] {
            rig.to(state);
        }
        for second in 1..4 {
            rig.clock.set_time(second * SECOND);
            rig.to(Playing);
            let first = rig.buffer();
            assert_eq!(first.pts(), Some(second * SECOND), "a new stream");
            assert!(first.flags().contains(gst::BufferFlags::DISCONT));
            // Test the same while a picture is being converted.
            for state in [Null, Playing, Ready, Playing, Paused, Null] {
                rig.to(state);
                rig.drain.set_active(false).unwrap();
                rig.drain.set_active(true).unwrap();
            }
            while rig.seen.try_recv().is_ok() {}
        }
        assert!(rig.bus.pop_filtered(&[gst::MessageType::Error]).is_none());
    }
}

#[test]
fn a_fill_joins_and_leaves_a_playing_pipeline() {
    init();
    let pipeline = gst::Pipeline::new();
    let clock = TestClock::with_start_time(3 * SECOND);
    pipeline.use_clock(Some(&clock));
    pipeline.set_state(gst::State::Playing).unwrap();
    clock.set_time(10 * SECOND);
    for _ in 0..3 {
        for fill in [silence(None), black(None)] {
            fill.set_property("context", "join");
            let sink = gst::ElementFactory::make("fakesink")
                .property("sync", false)
                .property("async", false)
                .build()
                .unwrap();
            let (send, seen) = channel();
            sink.static_pad("sink").unwrap().add_probe(
                gst::PadProbeType::BUFFER,
                move |_, info| {
                    let _ = send.send(info.buffer().unwrap().pts());
                    gst::PadProbeReturn::Ok
                },
            );
            pipeline.add_many([fill.upcast_ref(), &sink]).unwrap();
            fill.link(&sink).unwrap();
            sink.sync_state_with_parent().unwrap();
            fill.sync_state_with_parent().unwrap();
            // Running time began when the pipeline did.
            assert_eq!(seen.recv_timeout(DEADLINE).unwrap(), Some(7 * SECOND));
            pipeline.remove(&fill).unwrap();
            fill.set_state(gst::State::Null).unwrap();
            // Messages keep a reference to it.
            pipeline.bus().unwrap().set_flushing(true);
            pipeline.bus().unwrap().set_flushing(false);
            let weak = fill.downgrade();
            drop(fill);
            eventually("it is gone", || weak.upgrade().is_none());
            sink.set_state(gst::State::Null).unwrap();
            pipeline.remove(&sink).unwrap();
        }
    }
    pipeline.set_state(gst::State::Null).unwrap();
}

#[test]
fn filler_is_live_and_answers_queries() {
    let rig = Rig::new(silence(None), ANY_AUDIO, gst::ClockTime::ZERO);
    rig.fill.set_property("context-wait", 20u32);
    assert_eq!(
        rig.fill.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    let src = rig.fill.static_pad("src").unwrap();
    let mut latency = gst::query::Latency::new();
    assert!(src.query(&mut latency));
    assert_eq!(latency.result(), (true, 20 * MS, None));
    assert!(src.query_caps(None).can_intersect(&caps(ANY_AUDIO)));
    assert!(!src.query_caps(None).can_intersect(&caps(ANY_VIDEO)));
    let wanted = caps("video/x-raw,format=NV12,width=64,height=48,framerate=10/1");
    let black = black(Some(wanted.clone()));
    let mut made = black.static_pad("src").unwrap().query_caps(None);
    assert!(made.can_intersect(&caps("video/x-raw,format=RGB")));
    made.truncate();
    assert!(
        made.is_subset(&wanted),
        "the requested content comes first: {made}"
    );
}

/// The test is alone in its process, so that threads can be counted.
#[test]
fn fifty_fills_have_the_threads_of_one() {
    init();
    const ALONE: &str = "THREADBARE_COUNT_FILL_THREADS";
    if std::env::var_os(ALONE).is_none() {
        let name = "fallback::fill::tests::fifty_fills_have_the_threads_of_one";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let status = alone
            .args(["--exact", name])
            .env(ALONE, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    glib::ThreadPool::set_max_unused_threads(Some(0));
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let play = |count: usize| -> Vec<Rig> {
        let fills = (0..count).flat_map(|_| {
            [
                (silence(None), ANY_AUDIO),
                (black(None), "video/x-raw,width=64,height=36"),
            ]
        });
        let rigs: Vec<_> = fills
            .map(|(fill, takes)| {
                let rig = Rig::new(fill, takes, gst::ClockTime::ZERO);
                rig.fill.set_property("context", "shared");
                rig.to(gst::State::Playing);
                rig
            })
            .collect();
        for rig in &rigs {
            rig.buffer();
            rig.step();
            rig.buffer();
        }
        rigs
    };
    let one = play(1);
    // Two threads are the test's, one is the context's, and some are those of GLib's thread pool.
    let mut of_one = 0;
    eventually("the painters have left", || {
        of_one = threads();
        of_one <= 4
    });
    let many = play(25);
    eventually("as many threads as with one", || threads() <= of_one);
    drop((one, many));
}
