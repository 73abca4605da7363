//! The failing sources and the failing server of the tests of fallback streams, tested alone and in `uridecodebin`.

use crate::common::*;
use crate::fixtures::faulty::{Fault, Step, Stream};
use crate::fixtures::http;
use crate::fixtures::http::{Answer, Server, made_by, wav};
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;
const SECOND: gst::ClockTime = gst::ClockTime::SECOND;
const AUDIO: Stream = Stream::Audio;
const VIDEO: Stream = Stream::Video;
const RATE: u32 = 8000;

fn ramp(count: usize) -> Vec<i16> {
    (0..count).map(|i| (i % 30_000) as i16).collect()
}

/// Plays a URI of raw audio, as fast as it arrives.
fn player(uri: &str) -> Pipe {
    Pipe::parse(&format!(
        "uridecodebin name=dec uri={uri} ! audio/x-raw ! fakesink name=out sync=false"
    ))
}

/// Returns the samples up to the end of the stream.
fn all_samples(pipe: &Pipe) -> Vec<i16> {
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    let buffers = seen.try_iter().filter_map(|seen| match seen {
        Seen::Buffer(buffer) => Some(bytes(&buffer)),
        Seen::Event(_) => None,
    });
    let bytes: Vec<u8> = buffers.flatten().collect();
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

#[test]
fn a_file_from_the_server_plays_with_all_samples() {
    let samples = ramp(50_000);
    let server = Server::new(wav(RATE, 1, &samples));
    assert!(all_samples(&player(&server.uri("a.wav"))) == samples);
    let first = &server.requests()[0];
    assert_eq!((first.path.as_str(), first.answer), ("/a.wav", Answer::All));
}

#[test]
fn a_seek_asks_for_a_range() {
    let server = Server::new(wav(RATE, 1, &ramp(3_000_000)));
    let pipe = player(&server.uri("a.wav"));
    pipe.to(gst::State::Paused);
    let seen = watch(&pipe.pad("out", "sink"));
    let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
    pipe.0.seek_simple(flags, 300 * SECOND).unwrap();
    let first = next_buffer(&seen);
    assert_eq!(bytes(&first)[..2], ramp(2_400_001)[2_400_000].to_le_bytes());
    let far = |request: &http::Request| request.range.is_some_and(|(first, _)| first >= 4_800_000);
    assert!(server.requests().iter().any(far), "{:?}", server.requests());
}

#[test]
fn dropped_connection_is_resumed_or_ends_the_stream() {
    let samples = ramp(400_000);
    let server = Server::new(wav(RATE, 1, &samples));
    server.script(&[Answer::DropAfter(100_000)]);
    // The stock source requests the missing part by itself.
    assert!(all_samples(&player(&server.uri("a.wav"))) == samples);
    assert!(server.wait_requests(2)[1].range.is_some());
    // If that request fails, the stream ends.
    server.script(&[Answer::DropAfter(100_000)]);
    server.always(Answer::Refuse);
    let pipe = player(&server.uri("a.wav"));
    pipe.play();
    pipe.message(&[gst::MessageType::Error, gst::MessageType::Eos]);
}

#[test]
fn stalled_connection_resumes_when_released() {
    let samples = ramp(400_000);
    let server = Server::new(wav(RATE, 1, &samples));
    server.script(&[Answer::StallAfter(500_000)]);
    let pipe = player(&server.uri("a.wav"));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    server.wait_stalled();
    next_buffer(&seen);
    assert!(pipe.bus().pop_filtered(&[gst::MessageType::Eos]).is_none());
    server.release();
    pipe.expect(gst::MessageType::Eos);
}

#[test]
fn a_server_may_refuse_connections_and_accept_them_again() {
    let samples = ramp(1000);
    let server = Server::new(wav(RATE, 1, &samples));
    for answer in [Answer::Status(404), Answer::Status(503), Answer::Refuse] {
        server.always(answer);
        let pipe = player(&server.uri("a.wav"));
        pipe.play();
        pipe.message(&[gst::MessageType::Error]);
        assert_eq!(server.requests().last().unwrap().answer, answer);
    }
    server.always(Answer::All);
    assert!(all_samples(&player(&server.uri("a.wav"))) == samples);
}

#[test]
fn a_compressed_file_with_sound_and_pictures_plays() {
    init();
    let file = made_by(
        "matroskamux name=mux audiotestsrc num-buffers=50 ! vorbisenc ! mux. \
         videotestsrc num-buffers=25 ! video/x-raw,width=64,height=48,framerate=25/1 ! theoraenc ! mux. mux.",
    );
    let server = Server::new(file);
    let pipe = audio_and_video(decoder(&server.uri("a.mkv")), false);
    let seen = watch(&pipe.pad("video", "sink"));
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    let buffers = seen
        .try_iter()
        .filter(|seen| matches!(seen, Seen::Buffer(_)));
    assert_eq!(buffers.count(), 25);
}

#[test]
fn the_servers_threads_end_with_it() {
    init();
    let server = Server::new(vec![7; 1000]);
    let name = server.thread_name();
    server.script(&[Answer::StallAfter(10), Answer::StallAfter(10)]);
    let mut peers: Vec<_> = (0..2)
        .map(|_| {
            let address = server.uri("").replace("http://", "").replace('/', "");
            let mut peer = std::net::TcpStream::connect(address).unwrap();
            std::io::Write::write_all(&mut peer, b"GET / HTTP/1.1\r\nRange: bytes=5-8\r\n\r\n")
                .unwrap();
            peer
        })
        .collect();
    server.wait_requests(2);
    assert_eq!(server.requests()[0].range, Some((5, Some(8))));
    let of_server = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|task| task.trim() == name).count()
    };
    assert_eq!(of_server(), 3);
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut peers[0], &mut answer).unwrap();
    let mut answer = String::from_utf8(answer.to_vec()).unwrap();
    within("the end of a server", move || drop(server));
    eventually("its threads have ended", || of_server() == 0);
    std::io::Read::read_to_string(&mut peers[0], &mut answer).unwrap();
    assert!(
        answer.contains("206 Partial Content") && answer.contains("bytes 5-8/1000"),
        "{answer}"
    );
}

/// Returns a rig with one `faultsrc`.
fn alone(fault: &Fault, name: &str, state: gst::State) -> Rig {
    let rig = Rig::without_stream(&format!("faultsrc fault={name}"), state);
    assert_eq!(fault.log().starts, 1);
    rig
}

#[test]
fn live_source_follows_its_script() {
    let fault = Fault::live("steps");
    fault.mark(9);
    let rig = alone(&fault, "steps", gst::State::Playing);
    for pts in [0, 20, 5, 4000] {
        fault.push(AUDIO, pts * MS).unwrap();
        let buffer = rig.buffer();
        assert_eq!(buffer.pts(), Some(pts * MS), "late items included");
        assert!(bytes(&buffer).iter().all(|byte| *byte == 9));
    }
    fault.done(AUDIO, Step::Error("as told".into())).unwrap();
    assert!(text(&rig.error()).contains("as told"));
    rig.error();
    rig.event(gst::EventType::Eos);
    // After an error, the source takes no step until the next start.
    let later = fault.step(AUDIO, Step::Buffer(AUDIO.buffer(1, SECOND)));
    rig.to(gst::State::Ready);
    assert!(later.try_recv().is_err());
    rig.drain.set_active(false).unwrap();
    rig.drain.set_active(true).unwrap();
    rig.to(gst::State::Playing);
    assert_eq!(rig.buffer().pts(), Some(SECOND));
    fault.done(AUDIO, Step::Eos).unwrap();
    rig.event(gst::EventType::Eos);
    let log = fault.log();
    assert_eq!((log.made, log.alive, log.starts, log.stops), (1, 1, 2, 1));
    drop(rig);
    fault.wait("it is gone", |log| log.alive == 0 && log.stops == 2);
}

#[test]
fn a_live_source_delivers_data_only_in_playing() {
    let fault = Fault::live("live");
    let rig = Rig::without_stream("faultsrc fault=live", gst::State::Null);
    assert_eq!(
        rig.element.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    let clock = gst_check::TestClock::with_start_time(10 * SECOND);
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(3 * SECOND);
    let pushed = fault.step(AUDIO, Step::Now(AUDIO.buffer(1, None)));
    rig.to(gst::State::Paused);
    assert!(pushed.try_recv().is_err());
    rig.to(gst::State::Playing);
    assert_eq!(rig.buffer().pts(), Some(7 * SECOND));
}

#[test]
fn caps_that_downstream_refuses_are_refused() {
    let fault = Fault::live("caps");
    let pipe = Pipe::parse(
        "faultsrc fault=caps ! capsfilter caps=audio/x-raw,rate=48000 ! fakesink name=out async=false",
    );
    pipe.play();
    fault.push(AUDIO, gst::ClockTime::ZERO).unwrap();
    let other: gst::Caps = "audio/x-raw,format=U8,rate=8000,channels=1"
        .parse()
        .unwrap();
    fault
        .done(AUDIO, Step::Event(gst::event::Caps::new(&other)))
        .unwrap();
    let refused = fault.push(AUDIO, 20 * MS);
    assert_eq!(refused, Err(gst::FlowError::NotNegotiated));
    pipe.message(&[gst::MessageType::Error]);
}

#[test]
fn a_source_may_start_slowly_refuse_or_stop_slowly() {
    let fault = Fault::live("slow");
    let rig = Rig::without_stream("faultsrc fault=slow", gst::State::Null);
    let gate = fault.hold_starts();
    let element = rig.element.clone();
    let starting = std::thread::spawn(move || element.set_state(gst::State::Playing).unwrap());
    gate.wait_held();
    assert_eq!(rig.element.current_state(), gst::State::Ready);
    gate.open();
    starting.join().unwrap();
    fault.push(AUDIO, gst::ClockTime::ZERO).unwrap();
    let gate = fault.hold_stops();
    let element = rig.element.clone();
    let stopping = std::thread::spawn(move || element.set_state(gst::State::Null).unwrap());
    gate.wait_held();
    assert_eq!(fault.log().stops, 0);
    gate.open();
    stopping.join().unwrap();
    fault.refuse(1);
    assert!(rig.element.set_state(gst::State::Playing).is_err());
    rig.error();
    rig.to(gst::State::Null);
    rig.to(gst::State::Playing);
    assert_eq!(fault.log().starts, 3);
}

#[test]
fn a_file_plays_to_its_end_and_can_be_sought() {
    let fault = Fault::file("file", 2 * SECOND);
    let pipe = player(&fault.uri());
    pipe.to(gst::State::Paused);
    assert_eq!(pipe.0.query_duration::<gst::ClockTime>(), Some(2 * SECOND));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.0.seek_simple(gst::SeekFlags::FLUSH, SECOND).unwrap();
    pipe.play();
    let event = next_event(&seen, gst::EventType::Segment);
    let gst::EventView::Segment(segment) = event.view() else {
        unreachable!()
    };
    let start = segment
        .segment()
        .downcast_ref::<gst::ClockTime>()
        .unwrap()
        .start();
    assert_eq!(start, Some(SECOND));
    assert_eq!(next_buffer(&seen).pts(), Some(SECOND));
    assert_eq!(fault.log().seeks, [SECOND]);
    pipe.expect(gst::MessageType::Eos);
}

#[test]
fn file_stalls_and_fails_at_the_given_positions() {
    let fault = Fault::file("planned", 10 * SECOND);
    fault.plan(AUDIO, 100 * MS, Step::Error("at 100 ms".into()));
    let pipe = player(&fault.uri());
    pipe.play();
    assert!(text(&pipe.message(&[gst::MessageType::Error])).contains("at 100 ms"));
    assert_eq!(fault.log().buffers, [5, 0]);
    drop(pipe);
    fault.plays(false);
    let pipe = player(&fault.uri());
    pipe.play();
    fault.wait("the second start", |log| log.made == 2);
    assert_eq!(fault.log().buffers, [5, 0]);
    fault.plays(true);
    pipe.expect(gst::MessageType::Eos);
    assert_eq!(fault.log().buffers, [505, 0]);
}

/// Returns a source whose pads appear later, each linked to a sink `audio` or `video`. Linked by hand, because the parser of
/// pipeline descriptions cannot handle pads that appear on two threads at once.
fn audio_and_video(source: gst::Element, is_live: bool) -> Pipe {
    let pipe = Pipe(gst::Pipeline::new());
    pipe.0.add(&source).unwrap();
    let sinks = ["audio", "video"].map(|name| {
        let sink = make("fakesink");
        sink.set_property("name", name);
        sink.set_property("async", !is_live);
        pipe.0.add(&sink).unwrap();
        sink.static_pad("sink").unwrap()
    });
    source.connect_pad_added(move |_, pad| {
        let caps = pad.query_caps(None);
        let is_video = caps.structure(0).unwrap().name() == "video/x-raw";
        pad.link(&sinks[usize::from(is_video)]).unwrap();
    });
    pipe
}

fn decoder(uri: &str) -> gst::Element {
    let decoder = make("uridecodebin");
    decoder.set_property("uri", uri);
    decoder
}

#[test]
fn audio_and_video_play_by_uri_and_as_an_element() {
    let fault = Fault::file("av", SECOND);
    let element = make("faultavsrc");
    element.set_property("fault", "av");
    for (i, source) in [decoder(&fault.av_uri()), element].into_iter().enumerate() {
        let pipe = audio_and_video(source, false);
        pipe.play();
        pipe.expect(gst::MessageType::Eos);
        assert_eq!(fault.log().buffers, [50 * (i + 1), 25 * (i + 1)]);
    }
    let live = Fault::live("avlive");
    let pipe = audio_and_video(decoder(&live.av_uri()), true);
    pipe.play();
    for pts in 0..5 {
        live.push(VIDEO, 40 * pts * MS).unwrap();
        live.push(AUDIO, 20 * pts * MS).unwrap();
    }
    drop(pipe);
    let log = live.wait("all is gone", |log| log.alive == 0);
    assert_eq!((log.starts, log.stops), (1, 1));
}
