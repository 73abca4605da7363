//! Files: `ts-filesink`, `ts-filesrc`, `ts-splitfilesink`. The references are the stock elements with the same stream, ffprobe,
//! and the elements' page (docs/elements/files.md). A pipe without a reader stands for a disk that does not answer.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::common::*;
use gst::prelude::*;

/// Both backends of the disk service. The io_uring backend is included only if the system allows it, because some containers do
/// not.
fn modes() -> &'static [&'static str] {
    static HAS_RING: LazyLock<bool> =
        LazyLock::new(|| threadbare_files::Disk::start(threadbare_files::Mode::Ring).is_ok());
    if *HAS_RING {
        &["io-uring", "threads"]
    } else {
        &["threads"]
    }
}

/// A pipe's buffer in bytes.
const PIPE_BYTES: usize = 64 << 10;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn text_of(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn fifo(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("pipe");
    let status = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(status.success());
    path
}

/// ffprobe's output for a file's first stream; errors give an empty answer.
fn probe(path: &Path, entry: &str) -> String {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", entry])
        .args(["-of", "default=noprint_wrappers=1:nokey=1"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", path.display());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Seconds of sound that ffmpeg decodes.
fn decoded_s(path: &Path, bytes_per_s: f64) -> f64 {
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-i", &text_of(path)])
        .args(["-f", "s16le", "-ac", "1", "-ar", "8000", "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", path.display());
    output.stdout.len() as f64 / bytes_per_s
}

fn play_to_end(line: &str) {
    let pipe = Pipe::parse(line);
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    pipe.to(gst::State::Null);
}

fn sink(path: &Path, more: &str) -> String {
    format!("ts-filesink name=out location={} {more}", path.display())
}

fn sink_rig(path: &Path, more: &str) -> Rig {
    Rig::new(
        &sink(path, &format!("async=false {more}")),
        gst::State::Playing,
    )
}

fn buffer_of(bytes: usize, value: u8) -> gst::Buffer {
    gst::Buffer::from_slice(vec![value; bytes])
}

fn seek_to(rig: &Rig, position: u64) {
    let mut segment = gst::FormattedSegment::<gst::format::Bytes>::new();
    segment.set_start(gst::format::Bytes::from_u64(position));
    assert!(rig.feed.push_event(gst::event::Segment::new(&segment)));
}

fn end(rig: &Rig) {
    let feed = rig.feed.clone();
    within("the end", move || feed.push_event(gst::event::Eos::new()));
    let message = rig.bus.timed_pop_filtered(
        DEADLINE_GST,
        &[gst::MessageType::Eos, gst::MessageType::Error],
    );
    let message = message.expect("no end");
    assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
}

/// Ends a split stream; returns the element messages until then.
fn end_split(rig: &Rig) -> Vec<Told> {
    let feed = rig.feed.clone();
    within("the end", move || feed.push_event(gst::event::Eos::new()));
    let mut all = Vec::new();
    loop {
        let kinds = [
            gst::MessageType::Element,
            gst::MessageType::Eos,
            gst::MessageType::Error,
        ];
        let message = rig.bus.timed_pop_filtered(DEADLINE_GST, &kinds);
        let message = message.expect("no end");
        match message.type_() {
            gst::MessageType::Element => all.push(told(rig, &message)),
            kind => {
                assert_eq!(kind, gst::MessageType::Eos, "{message:?}");
                return all;
            }
        }
    }
}

/// Lengths of runs of the same byte.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for byte in bytes {
        match runs.last_mut() {
            Some((last, count)) if last == byte => *count += 1,
            _ => runs.push((*byte, 1)),
        }
    }
    runs
}

/// Returns the number of the process's threads, without kernel workers of the ring and GStreamer's threads that change the states
/// of bins. The numbers of both vary, but are bounded.
fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    let names = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let is_own = |name: &String| !name.starts_with("iou-") && !name.starts_with("pool-");
    names.filter(is_own).count()
}

/// These muxers go back and write their headers again.
#[test]
fn muxed_file_equals_the_stock_sinks() {
    let folder = folder();
    for (encoder, muxer, name) in [
        ("identity", "wavenc", "a.wav"),
        ("opusenc", "matroskamux", "a.mkv"),
        ("opusenc", "mp4mux", "a.mp4"),
    ] {
        for &mode in modes() {
            let stock = folder.path().join(format!("stock-{mode}-{name}"));
            let ours = folder.path().join(format!("ours-{mode}-{name}"));
            play_to_end(&format!(
                "audiotestsrc num-buffers=100 samplesperbuffer=480 ! audio/x-raw,rate=48000,channels=1 ! {encoder} ! {muxer} ! tee name=t
                 t. ! queue ! filesink location={} t. ! queue ! ts-filesink location={} io-mode={mode}",
                stock.display(),
                ours.display()
            ));
            let (stock, file) = (
                std::fs::read(&stock).unwrap(),
                std::fs::read(&ours).unwrap(),
            );
            assert!(file.len() > 1000 && file == stock, "{mode} {name}");
            let duration: f64 = probe(&ours, "format=duration").parse().unwrap();
            assert!((0.99..1.05).contains(&duration), "{name}: {duration}");
        }
    }
}

/// On a context's thread, the sink waits in the source's task.
#[test]
fn a_context_writes_a_muxed_file() {
    let folder = folder();
    for &mode in modes() {
        let path = folder.path().join(mode);
        play_to_end(&format!(
            "ts-audiotestsrc is-live=false num-buffers=100 samples-per-buffer=800 context={} ! audio/x-raw,rate=8000,channels=1 ! wavenc ! {}",
            context(),
            sink(&path, &format!("io-mode={mode} buffer-max-bytes=1"))
        ));
        assert_eq!(probe(&path, "format=duration"), "10.000000");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 44 + 2 * 80_000);
    }
}

#[test]
fn segments_in_bytes_move_the_position() {
    let folder = folder();
    let path = folder.path().join("a");
    for &mode in modes() {
        let rig = sink_rig(&path, &format!("io-mode={mode}"));
        rig.push(buffer_of(10, b'a')).unwrap();
        seek_to(&rig, 2);
        rig.push(buffer_of(3, b'b')).unwrap();
        seek_to(&rig, 12);
        rig.push(buffer_of(1, b'c')).unwrap();
        let mut position = gst::query::Position::new(gst::Format::Bytes);
        assert!(rig.element.query(&mut position));
        assert_eq!(position.result().value(), 13);
        end(&rig);
        assert_eq!(std::fs::read(&path).unwrap(), b"aabbbaaaaa\0\0c");
    }
}

/// The same answers as `gst_file_sink_query`: seekable in BYTES, not in TIME, for any requested format.
#[test]
fn queries_are_answered_as_by_the_stock_sink() {
    let folder = folder();
    let path = folder.path().join("a");
    for factory in ["filesink", "ts-filesink"] {
        let line = format!("{factory} async=false location={}", path.display());
        let rig = Rig::new(&line, gst::State::Playing);
        rig.push(buffer_of(5, 1)).unwrap();
        for (format, expected) in [
            (gst::Format::Bytes, true),
            (gst::Format::Default, true),
            (gst::Format::Time, false),
        ] {
            let mut seeking = gst::query::Seeking::new(format);
            assert!(rig.feed.peer_query(&mut seeking), "{factory} {format:?}");
            assert_eq!(seeking.result().0, expected, "{factory} {format:?}");
        }
        let mut formats = gst::query::Formats::new();
        assert!(rig.feed.peer_query(&mut formats), "{factory}");
        assert_eq!(
            formats.result().collect::<Vec<_>>(),
            [gst::Format::Default, gst::Format::Bytes],
            "{factory}"
        );
        let mut uri = gst::query::Uri::new();
        assert!(rig.feed.peer_query(&mut uri), "{factory}");
        let expected = format!("file://{}", path.display());
        assert_eq!(uri.uri().as_deref(), Some(&*expected), "{factory}");
    }
}

#[test]
fn flush_restarts_the_file_and_appending_keeps_it() {
    let folder = folder();
    let path = folder.path().join("a");
    std::fs::write(&path, "before").unwrap();
    for (append, expected) in [("append=true", "beforexx"), ("append=false", "xx")] {
        let rig = sink_rig(&path, append);
        rig.push(buffer_of(2000, b'a')).unwrap();
        rig.feed.push_event(gst::event::FlushStart::new());
        rig.feed.push_event(gst::event::FlushStop::new(true));
        rig.open_segment();
        rig.push(buffer_of(2, b'x')).unwrap();
        end(&rig);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }
}

#[test]
fn an_atomic_file_appears_with_its_end() {
    let folder = folder();
    let path = folder.path().join("a");
    let part = folder.path().join("a.part");
    let rig = sink_rig(&path, "atomic=true sync-policy=at-eos");
    rig.push(buffer_of(5000, b'a')).unwrap();
    assert!(part.exists() && !path.exists());
    end(&rig);
    assert!(!part.exists());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000);
    assert_eq!(stat(&rig.element, "syncs"), 1);
    // A file that is stopped before its end keeps the temporary name.
    let rig = sink_rig(&path, "atomic=true");
    rig.push(buffer_of(7, b'b')).unwrap();
    rig.to(gst::State::Null);
    assert_eq!(std::fs::read(&part).unwrap(), b"bbbbbbb");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000);
}

#[test]
fn stream_continues_after_its_end_and_the_element_restarts() {
    let folder = folder();
    let path = folder.path().join("a");
    let rig = sink_rig(&path, "sync-policy=interval");
    rig.push(buffer_of(3, b'a')).unwrap();
    end(&rig);
    rig.open_stream();
    rig.push(buffer_of(3, b'b')).unwrap();
    end(&rig);
    assert_eq!(std::fs::read(&path).unwrap(), b"aaabbb");
    for state in [gst::State::Ready, gst::State::Playing] {
        rig.to(state);
    }
    rig.open_stream();
    rig.push(buffer_of(1, b'c')).unwrap();
    rig.to(gst::State::Null);
    assert_eq!(std::fs::read(&path).unwrap(), b"c");
    assert_eq!(stat(&rig.element, "bytes-written"), 7);
}

#[test]
fn unopenable_file_fails_before_any_data() {
    let folder = folder();
    let missing = text_of(&folder.path().join("no/file"));
    let inside = text_of(folder.path());
    for (settings, expected) in [
        (String::new(), "location is not set"),
        (
            format!("location={missing}"),
            "no/file: cannot open: ENOENT",
        ),
        (format!("location={inside}"), "cannot open: EISDIR"),
        (
            format!("location={inside}/a atomic=true append=true"),
            "atomic and append exclude each other",
        ),
    ] {
        for &mode in modes() {
            let element = make("ts-filesink");
            let bus = gst::Bus::new();
            element.set_bus(Some(&bus));
            for setting in settings.split_whitespace() {
                let (name, value) = setting.split_once('=').unwrap();
                element.set_property_from_str(name, value);
            }
            element.set_property_from_str("io-mode", mode);
            assert!(element.set_state(gst::State::Paused).is_err());
            let said = text(&bus.pop_filtered(&[gst::MessageType::Error]).unwrap());
            assert!(said.contains(expected), "{said}");
            element.set_bus(None);
            element.set_state(gst::State::Null).unwrap();
        }
    }
}

#[test]
fn a_full_disk_is_an_error_that_names_it() {
    for &mode in modes() {
        let rig = sink_rig(Path::new("/dev/full"), &format!("io-mode={mode}"));
        rig.push(buffer_of(PIPE_BYTES, 1)).unwrap();
        // The error comes whether more data follows or not.
        let said = text(&rig.error());
        assert!(said.contains("/dev/full: cannot write: ENOSPC"), "{said}");
        let feed = rig.feed.clone();
        let result = within("a push", move || feed.push(buffer_of(10, 1)));
        assert_eq!(result, Err(gst::FlowError::Error));
        assert_eq!(stat(&rig.element, "bytes-lost"), PIPE_BYTES as u64);
    }
}

/// Returns a sink on a pipe that is open but not read, and its data until it is full.
fn stalled(path: &Path, more: &str) -> (Rig, std::fs::File) {
    let reader = {
        let path = path.to_owned();
        std::thread::spawn(move || std::fs::File::open(path).unwrap())
    };
    let rig = sink_rig(path, more);
    (rig, reader.join().unwrap())
}

fn budget(more: &str) -> String {
    format!("context={} {more}", context())
}

#[test]
fn slow_disk_blocks_its_source() {
    for &mode in modes() {
        let folder = folder();
        let more = budget(&format!("buffer-max-bytes=1000000 io-mode={mode}"));
        let (rig, mut pipe) = stalled(&fifo(&folder), &more);
        let feed = rig.feed.clone();
        let pusher = until_it_waits(move || {
            for n in 0..30 {
                feed.push(buffer_of(100_000, n)).unwrap();
            }
            feed.push_event(gst::event::Eos::new())
        });
        assert!(!pusher.is_finished());
        assert_eq!(stat(&rig.element, "held-up"), 1);
        assert!(stat(&rig.element, "bytes-held") <= 1_000_000);
        // A reader appears: nothing is lost, and the end follows when all data is written.
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            pipe.read_to_end(&mut read).unwrap();
            read
        });
        within("the pushes", move || pusher.join().unwrap());
        rig.bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos])
            .expect("no end");
        rig.to(gst::State::Null);
        let read = reader.join().unwrap();
        let expected: Vec<(u8, usize)> = (0..30).map(|n| (n, 100_000)).collect();
        assert_eq!(runs(&read), expected);
    }
}

#[test]
fn a_slow_disk_drops_the_oldest_data_if_configured() {
    for &mode in modes() {
        let folder = folder();
        let more = format!("slow-policy=drop-oldest buffer-max-bytes=1000000 io-mode={mode}");
        let (rig, mut pipe) = stalled(&fifo(&folder), &budget(&more));
        let mut header = buffer_of(10, 200);
        (header.get_mut().unwrap()).set_flags(gst::BufferFlags::HEADER);
        rig.push(header).unwrap();
        let feed = rig.feed.clone();
        within("pushes that do not wait", move || {
            for n in 0..100 {
                feed.push(buffer_of(100_000, n)).unwrap();
            }
        });
        let dropped = stat(&rig.element, "dropped");
        assert!(dropped >= 90, "{dropped}");
        assert_eq!(stat(&rig.element, "bytes-dropped"), 100_000 * dropped);
        let element = rig.element.clone();
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            pipe.read_to_end(&mut read).unwrap();
            (read, element)
        });
        end(&rig);
        rig.to(gst::State::Null);
        let (read, _) = reader.join().unwrap();
        let runs = runs(&read);
        assert_eq!(runs[0], (200, 10), "the header stays");
        assert!(
            runs[1..].iter().all(|(_, bytes)| *bytes == 100_000),
            "{runs:?}"
        );
        assert_eq!(runs.last().unwrap().0, 99, "the newest stays");
        assert_eq!(runs.len() as u64 - 1, 100 - dropped);
    }
}

#[test]
fn a_slow_disk_is_an_error_if_configured() {
    for &mode in modes() {
        let folder = folder();
        let more = format!("slow-policy=fail buffer-max-bytes=1000000 io-mode={mode}");
        let (rig, _pipe) = stalled(&fifo(&folder), &budget(&more));
        let feed = rig.feed.clone();
        let failed = within("pushes until one fails", move || {
            (0..100).find_map(|n| feed.push(buffer_of(100_000, n)).err())
        });
        assert_eq!(failed, Some(gst::FlowError::Error));
        let said = text(&rig.error());
        assert!(said.contains("the disk is too slow"), "{said}");
        assert!(said.contains("buffer-max-bytes=1000000"), "{said}");
    }
}

#[test]
fn blocked_push_ends_with_a_flush_or_stop() {
    for stop in [false, true] {
        let folder = folder();
        let (rig, _pipe) = stalled(&fifo(&folder), &budget("buffer-max-bytes=100000"));
        let feed = rig.feed.clone();
        let pusher =
            until_it_waits(move || (0..).find_map(|_| feed.push(buffer_of(50_000, 1)).err()));
        if stop {
            rig.to(gst::State::Null)
        } else {
            assert!(rig.feed.push_event(gst::event::FlushStart::new()))
        }
        let ended = within("the push", move || pusher.join().unwrap());
        assert_eq!(ended, Some(gst::FlowError::Flushing));
    }
}

/// The element is stopped while the end of the stream waits for the disk.
#[test]
fn blocked_end_of_stream_ends_with_a_stop() {
    let folder = folder();
    let (rig, _pipe) = stalled(&fifo(&folder), &budget(""));
    rig.push(buffer_of(2 * PIPE_BYTES, 1)).unwrap();
    let feed = rig.feed.clone();
    let ender = until_it_waits(move || feed.push_event(gst::event::Eos::new()));
    assert!(rig.bus.pop_filtered(&[gst::MessageType::Eos]).is_none());
    rig.to(gst::State::Null);
    within("the end", move || ender.join().unwrap());
    assert!(
        rig.bus
            .pop_filtered(&[gst::MessageType::Eos, gst::MessageType::Error])
            .is_none()
    );
}

/// One stream's disk stalls, and another stream on the same context loses nothing, although both share a budget.
#[test]
fn a_stalled_stream_blocks_no_other_stream_of_its_context() {
    for &mode in modes() {
        for policy in ["hold-up", "drop-oldest", "fail"] {
            let folder = folder();
            let (pipe_path, path) = (fifo(&folder), folder.path().join("a"));
            let name = context();
            let source = format!(
                "context={name} context-wait=5 is-live=false samples-per-buffer=10000 ! audio/x-raw,rate=48000"
            );
            let settings = format!("async=false buffer-max-bytes=500000 io-mode={mode}");
            let reader = {
                let path = pipe_path.clone();
                std::thread::spawn(move || std::fs::File::open(path).unwrap())
            };
            let stalled = Pipe::parse(&format!(
                "ts-audiotestsrc {source} ! {}",
                sink(&pipe_path, &format!("{settings} slow-policy={policy}"))
            ));
            // The stream may fail before this change is done.
            let _ = stalled.0.set_state(gst::State::Playing);
            let _pipe = reader.join().unwrap();
            let is_stalled = || match policy {
                "hold-up" => stat(&stalled.get("out"), "held-up") > 0,
                "drop-oldest" => stat(&stalled.get("out"), "dropped") > 100,
                _ => stalled
                    .bus()
                    .peek()
                    .is_some_and(|message| message.type_() == gst::MessageType::Error),
            };
            eventually("it stalls", || {
                while stalled
                    .bus()
                    .peek()
                    .is_some_and(|it| it.type_() != gst::MessageType::Error)
                {
                    stalled.bus().pop();
                }
                is_stalled()
            });
            play_to_end(&format!(
                "ts-audiotestsrc num-buffers=200 {source} ! {}",
                sink(&path, &settings)
            ));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 200 * 2 * 10_000);
            if policy != "fail" {
                // The stalled stream holds half of the common budget and half of a buffer, so the other stream had the remaining
                // half.
                let held = stat(&stalled.get("out"), "bytes-held");
                assert!(held <= 260_000, "{mode} {policy}: {held}");
            }
            stalled.to(gst::State::Null);
        }
    }
}

#[test]
fn blocked_branch_can_be_unlinked() {
    let folder = folder();
    let (pipe_path, path) = (fifo(&folder), folder.path().join("a"));
    let name = context();
    let reader = {
        let path = pipe_path.clone();
        std::thread::spawn(move || std::fs::File::open(path).unwrap())
    };
    let pipe = Pipe::parse(&format!(
        "ts-audiotestsrc is-live=false num-buffers=100 samples-per-buffer=10000 context={name} ! audio/x-raw,rate=48000 ! tee name=t allow-not-linked=true
         t.src_0 ! ts-filesink name=slow async=false location={} context={} buffer-max-bytes=100000
         t.src_1 ! ts-filesink name=out async=false location={}",
        pipe_path.display(),
        context(),
        path.display()
    ));
    pipe.play();
    let _pipe = reader.join().unwrap();
    let slow = pipe.get("slow");
    eventually("it is held up", || stat(&slow, "held-up") > 0);
    let branch = pipe.pad("t", "src_0");
    branch.unlink(&pipe.pad("slow", "sink")).unwrap();
    pipe.0.remove(&slow).unwrap();
    set_state(&slow, gst::State::Null);
    pipe.expect(gst::MessageType::Eos);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100 * 2 * 10_000);
}

#[test]
fn a_hundred_files_need_no_thread_each() {
    for &mode in modes() {
        let folder = folder();
        let name = context();
        let pipes: Vec<Pipe> = (0..100)
            .map(|n| {
                Pipe::parse(&format!(
                    "ts-audiotestsrc num-buffers=20 samples-per-buffer=160 context={name} context-wait=20 ! audio/x-raw,rate=8000,channels=1 ! wavenc ! {}",
                    sink(&folder.path().join(n.to_string()), &format!("io-mode={mode}"))
                ))
            })
            .collect();
        pipes[0].play();
        pipes[1].play();
        eventually("two are at work", || {
            stat(&pipes[1].get("out"), "rendered") > 1
        });
        let before = threads();
        pipes[2..].iter().for_each(Pipe::play);
        // The threads of the test harness come and go, but not a hundred of them.
        let during = threads();
        assert!(during < before + 20, "{mode}: {before}, then {during}");
        for pipe in &pipes {
            pipe.expect(gst::MessageType::Eos);
        }
        drop(pipes);
        for n in 0..100 {
            let path = folder.path().join(n.to_string());
            assert_eq!(std::fs::metadata(path).unwrap().len(), 44 + 20 * 320);
        }
    }
}

/// Runs one of these tests again in a new mount namespace. Returns `true` in that namespace.
fn in_namespace(test: &str) -> bool {
    const INSIDE: &str = "THREADBARE_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--fork", "--kill-child"]);
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let status = unshare
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test_name(module_path!(), test), "--nocapture"])
        .env(INSIDE, "yes")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    false
}

/// A file system of 2 MiB.
#[test]
fn full_disk_ends_only_its_streams() {
    if !in_namespace("full_disk_ends_only_its_streams") {
        return;
    }
    let (small, large) = (folder(), folder());
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "none"])
        .arg(small.path())
        .status();
    assert!(mounted.unwrap().success());
    for &mode in modes() {
        let name = context();
        let source = format!(
            "ts-audiotestsrc context={name} is-live=false samples-per-buffer=10000 num-buffers=300 ! audio/x-raw,rate=48000"
        );
        let (full, other) = (small.path().join("full"), large.path().join("other"));
        let more = format!("async=false io-mode={mode}");
        let failing = Pipe::parse(&format!("{source} ! {}", sink(&full, &more)));
        let going = Pipe::parse(&format!("{source} ! {}", sink(&other, &more)));
        going.play();
        let _ = failing.0.set_state(gst::State::Playing);
        let said = text(&failing.message(&[gst::MessageType::Error]));
        assert!(
            said.contains(&format!("{}: cannot write: ENOSPC", full.display())),
            "{said}"
        );
        going.expect(gst::MessageType::Eos);
        assert_eq!(std::fs::metadata(&other).unwrap().len(), 300 * 2 * 10_000);
        failing.to(gst::State::Null);
        std::fs::remove_file(&full).unwrap();
    }
    Command::new("umount").arg(small.path()).status().unwrap();
}

/// The process is killed in the middle of the recording. The file plays up to its last second.
#[test]
fn a_file_plays_after_its_process_was_killed() {
    const FOLDER: &str = "THREADBARE_TEST_KILLED";
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        let sources = "ts-audiotestsrc context=killed context-wait=20 is-live=true samples-per-buffer=160 ! audio/x-raw,rate=8000,channels=1";
        let pipes = [
            format!("{sources} ! wavenc ! {}", sink(&folder.join("a.wav"), "")),
            format!(
                "{sources} ! matroskamux ! {}",
                sink(&folder.join("a.mka"), "")
            ),
        ];
        let pipes = pipes.map(|line| Pipe::parse(&line));
        pipes.iter().for_each(Pipe::play);
        loop {
            std::thread::park();
        }
    }
    let folder = folder();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &test_name(module_path!(), "a_file_plays_after_its_process_was_killed"),
        ])
        .env(FOLDER, folder.path())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).map_or(0, |it| it.len());
    eventually("two seconds are on the disk", || {
        length("a.wav") > 32_000 && length("a.mka") > 32_000
    });
    let recorded_s = begun.elapsed().as_secs_f64();
    child.kill().unwrap();
    child.wait().unwrap();
    for name in ["a.wav", "a.mka"] {
        let s = decoded_s(&folder.path().join(name), 16_000.0);
        // Recording starts some time after the process, and data reaches the disk half a second after it arrives.
        assert!(s > 1.9 && s <= recorded_s, "{name}: {s} of {recorded_s}");
    }
}

fn source(path: &Path, more: &str) -> String {
    format!("ts-filesrc name=in location={} {more}", path.display())
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Returns the bytes up to the end of the stream.
fn read_to_end(rig: &Rig) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match rig.seen.recv_timeout(DEADLINE).expect("nothing came") {
            Seen::Buffer(buffer) => all.extend(bytes(&buffer)),
            Seen::Event(event) if event.type_() == gst::EventType::Eos => return all,
            Seen::Event(_) => {}
        }
    }
}

#[test]
fn a_source_pushes_the_whole_file_in_blocks() {
    let folder = folder();
    let path = folder.path().join("a");
    for (size, blocks) in [(0, 0), (1, 1), (4096, 1), (100_000, 25)] {
        let expected = pattern(size);
        std::fs::write(&path, &expected).unwrap();
        for &mode in modes() {
            let line = source(&path, &format!("io-mode={mode} context={}", context()));
            let rig = Rig::without_stream(&line, gst::State::Paused);
            let segment = rig.event(gst::EventType::Segment);
            let gst::EventView::Segment(segment) = segment.view() else {
                unreachable!()
            };
            assert_eq!(segment.segment().format(), gst::Format::Bytes);
            assert!(read_to_end(&rig) == expected);
            assert_eq!(stat(&rig.element, "buffers"), blocks);
            let mut duration = gst::query::Duration::new(gst::Format::Bytes);
            assert!(rig.drain.peer_query(&mut duration));
            assert_eq!(duration.result().value(), size as i64);
            let mut seeking = gst::query::Seeking::new(gst::Format::Bytes);
            assert!(rig.drain.peer_query(&mut seeking));
            assert!(seeking.result().0);
        }
    }
}

/// Offsets and flags match the stock source's in push mode.
#[test]
fn buffers_have_the_same_offsets_as_those_of_the_stock_source() {
    let folder = folder();
    let path = folder.path().join("a");
    std::fs::write(&path, pattern(10_000)).unwrap();
    let seen = ["filesrc", "ts-filesrc"].map(|factory| {
        let line = format!("{factory} blocksize=4096 location={}", path.display());
        let rig = Rig::without_stream(&line, gst::State::Playing);
        (0..3)
            .map(|_| {
                let buffer = rig.buffer();
                (
                    buffer.offset(),
                    buffer.offset_end(),
                    buffer.pts(),
                    buffer.size(),
                )
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(seen[0], seen[1]);
}

fn seek_event(flags: gst::SeekFlags, start: u64, stop: Option<u64>) -> gst::Event {
    use gst::format::Bytes;
    let (kind, start) = (gst::SeekType::Set, Bytes::from_u64(start));
    gst::event::Seek::new(1.0, flags, kind, start, kind, stop.map(Bytes::from_u64))
}

#[test]
fn source_starts_at_an_earlier_seek_position() {
    let folder = folder();
    let path = folder.path().join("a");
    let all = pattern(10_000);
    std::fs::write(&path, &all).unwrap();
    let line = source(&path, &format!("context={}", context()));
    let rig = Rig::without_stream(&line, gst::State::Ready);
    let seek = seek_event(gst::SeekFlags::FLUSH, 123, Some(4000));
    assert!(rig.element.send_event(seek));
    rig.to(gst::State::Playing);
    assert!(read_to_end(&rig) == all[123..4000]);
    // These offsets are beyond the end of the file.
    let rig = Rig::without_stream(&line, gst::State::Ready);
    let seek = seek_event(gst::SeekFlags::FLUSH, 10_001, None);
    assert!(rig.element.send_event(seek));
    assert!(rig.element.set_state(gst::State::Paused).is_err());
}

#[test]
fn a_source_that_has_ended_can_still_seek_in_bytes() {
    let folder = folder();
    let path = folder.path().join("a");
    let all = pattern(100_000);
    std::fs::write(&path, &all).unwrap();
    for &mode in modes() {
        let line = source(
            &path,
            &format!("io-mode={mode} blocksize=1000 context={}", context()),
        );
        let rig = Rig::without_stream(&line, gst::State::Playing);
        assert!(read_to_end(&rig) == all);
        let flags = gst::SeekFlags::FLUSH;
        for (start, stop) in [(90_500, None), (5, Some(3005)), (100_000, None)] {
            let drain = rig.drain.clone();
            let is_done = within("a seek", move || {
                drain.push_event(seek_event(flags, start, stop))
            });
            assert!(is_done);
            rig.event(gst::EventType::FlushStop);
            assert_eq!(segment_start(&rig), start);
            let (start, stop) = (start as usize, stop.map_or(all.len(), |stop| stop as usize));
            assert!(read_to_end(&rig) == all[start..stop], "{start}");
        }
        for (start, stop) in [(100_001, None), (100, Some(99))] {
            assert!(!rig.drain.push_event(seek_event(flags, start, stop)));
        }
        let (kind, zero) = (gst::SeekType::Set, gst::ClockTime::ZERO);
        let time = gst::event::Seek::new(1.0, flags, kind, zero, gst::SeekType::None, zero);
        assert!(!rig.drain.push_event(time), "times are for demultiplexers");
    }
}

fn segment_start(rig: &Rig) -> u64 {
    let event = rig.event(gst::EventType::Segment);
    let gst::EventView::Segment(segment) = event.view() else {
        unreachable!()
    };
    u64::try_from(segment.segment().start().value()).unwrap()
}

#[test]
fn a_seek_without_a_flush_continues_at_the_new_position() {
    let folder = folder();
    let path = folder.path().join("a");
    let all = pattern(100_000);
    std::fs::write(&path, &all).unwrap();
    let line = source(&path, &format!("blocksize=1000 context={}", context()));
    let rig = Rig::without_stream(&line, gst::State::Ready);
    let gate = gate(&rig.drain);
    rig.to(gst::State::Playing);
    gate.wait_held();
    assert_eq!(segment_start(&rig), 0);
    let drain = rig.drain.clone();
    let flags = gst::SeekFlags::empty();
    assert!(within("a seek", move || drain
        .push_event(seek_event(flags, 50_000, None))));
    gate.open();
    assert_eq!(segment_start(&rig), 50_000);
    assert!(read_to_end(&rig) == all[50_000..]);
}

#[test]
fn seeks_in_mid_stream_return_all_requested_data() {
    let folder = folder();
    let path = folder.path().join("a");
    let all = pattern(1_000_000);
    std::fs::write(&path, &all).unwrap();
    let line = source(&path, &format!("blocksize=1000 context={}", context()));
    let rig = Rig::without_stream(&line, gst::State::Playing);
    for n in 0..50 {
        let start = (n * 7919) % 900_000;
        rig.buffer();
        let drain = rig.drain.clone();
        within("a seek", move || {
            drain.push_event(seek_event(gst::SeekFlags::FLUSH, start, None))
        });
        rig.event(gst::EventType::FlushStop);
        let buffer = rig.buffer();
        assert_eq!(buffer.offset(), start);
        let start = usize::try_from(start).unwrap();
        assert!(bytes(&buffer) == all[start..start + 1000]);
    }
}

/// Plays files through demultiplexers that work in push mode, one of which needs seeks: its index is at the end. (oggdemux is not
/// among them, because it seeks on its own thread and waits for a signal that it may have missed.)
#[test]
fn a_file_is_played_from_a_context() {
    let folder = folder();
    for (muxer, demuxer, name) in [
        ("matroskamux", "matroskademux", "a.mkv"),
        ("mp4mux", "qtdemux", "a.mp4"),
    ] {
        let path = folder.path().join(name);
        play_to_end(&format!(
            "audiotestsrc num-buffers=50 samplesperbuffer=960 ! audio/x-raw,rate=48000 ! opusenc ! {muxer} ! {}",
            sink(&path, "")
        ));
        let pipe = Pipe::parse(&format!(
            "{} ! {demuxer} ! fakesink name=out sync=false",
            source(&path, &format!("context={}", context()))
        ));
        pipe.play();
        pipe.expect(gst::MessageType::Eos);
        let rendered: u64 = stat(&pipe.get("out"), "rendered");
        assert!(rendered >= 49, "{name}: {rendered}");
    }
}

#[test]
fn a_source_without_its_file_fails() {
    let folder = folder();
    let (missing, inside) = (folder.path().join("none"), text_of(folder.path()));
    for (location, expected) in [
        ("", "location is not set"),
        (&*text_of(&missing), "none: cannot open: ENOENT"),
        (&*inside, "EISDIR"),
    ] {
        for &mode in modes() {
            let element = make("ts-filesrc");
            let bus = gst::Bus::new();
            element.set_bus(Some(&bus));
            element.set_property("location", location);
            element.set_property_from_str("io-mode", mode);
            let drain = drain(&element.static_pad("src").unwrap());
            let _ = element.set_state(gst::State::Playing);
            let error = bus.timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Error]);
            let said = text(&error.expect("no error"));
            assert!(said.contains(expected), "{said}");
            element.set_bus(None);
            element.set_state(gst::State::Null).unwrap();
            drop(drain);
        }
    }
}

/// As with the other elements that have a URI, applications that ask for a file's URI get the stock element.
#[test]
fn file_uris_are_still_handled_by_the_stock_element() {
    init();
    let made = |kind| gst::Element::make_from_uri(kind, "file:///tmp/a", None).unwrap();
    for (kind, stock, ours) in [
        (gst::URIType::Src, "filesrc", "ts-filesrc"),
        (gst::URIType::Sink, "filesink", "ts-filesink"),
    ] {
        assert_eq!(made(kind).factory().unwrap().name(), stock);
        let element = make(ours);
        let handler = element.dynamic_cast_ref::<gst::URIHandler>().unwrap();
        handler.set_uri("file:///tmp/a%20b").unwrap();
        assert_eq!(element.property::<String>("location"), "/tmp/a b");
        assert_eq!(handler.uri().as_deref(), Some("file:///tmp/a%20b"));
        let error = handler.set_uri("file://elsewhere/a").unwrap_err();
        assert!(error.message().contains("elsewhere"), "{error}");
    }
}

/// Reads are bounded while downstream accepts nothing. A stop in the middle ends them.
#[test]
fn read_ahead_is_bounded_by_its_setting() {
    let folder = folder();
    let path = folder.path().join("a");
    std::fs::write(&path, pattern(1_000_000)).unwrap();
    let pipe = Pipe::parse(&format!(
        "{} ! ts-queue max-size-buffers=2 max-size-bytes=0 max-size-time=0 context={} ! fakesink name=out sync=false",
        source(
            &path,
            &format!("blocksize=1000 read-ahead=3 context={}", context())
        ),
        context(),
    ));
    let gate = gate(&pipe.pad("out", "sink"));
    pipe.play();
    gate.wait_held();
    let element = pipe.get("in");
    // One buffer is blocked at the gate, two are in the queue, and one may be on its way.
    eventually("the queue is full", || stat(&element, "buffers") >= 3);
    assert!(stat(&element, "buffers") < 8);
    gate.open();
    pipe.expect(gst::MessageType::Eos);
    assert_eq!(stat(&element, "bytes-read"), 1_000_000);
}

/// Returns the files of a folder, in order, without the incomplete ones.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    all
}

fn split(location: &str, more: &str) -> String {
    format!("ts-splitfilesink name=cam1 async=false location={location} {more}")
}

fn split_rig(location: &str, more: &str) -> Rig {
    Rig::new(&split(location, more), gst::State::Playing)
}

/// Returns a buffer of 1 s; `k` is a keyframe.
fn second(number: u64, bytes: usize, is_key: bool) -> gst::Buffer {
    let mut buffer = buffer_of(bytes, u8::try_from(number).unwrap());
    let fields = buffer.get_mut().unwrap();
    fields.set_pts(number * gst::ClockTime::SECOND);
    fields.set_duration(gst::ClockTime::SECOND);
    if !is_key {
        fields.set_flags(gst::BufferFlags::DELTA_UNIT);
    }
    buffer
}

/// A message's kind, file name, running time in s, and bytes.
type Told = (String, String, u64, Option<u64>);

fn told(rig: &Rig, message: &gst::Message) -> Told {
    let structure = message.structure().unwrap();
    let location: String = structure.get("location").unwrap();
    let name = Path::new(&location).file_name().unwrap().to_str().unwrap();
    let time: gst::ClockTime = structure.get("running-time").unwrap();
    assert_eq!(structure.get::<gst::Element>("sink").unwrap(), rig.element);
    let kind = structure
        .name()
        .strip_prefix("splitmuxsink-fragment-")
        .unwrap();
    (
        kind.to_owned(),
        name.to_owned(),
        time.seconds(),
        structure.get("bytes").ok(),
    )
}

/// Returns the element messages so far.
fn fragments(rig: &Rig) -> Vec<Told> {
    let next = || rig.bus.pop_filtered(&[gst::MessageType::Element]);
    std::iter::from_fn(next)
        .map(|message| told(rig, &message))
        .collect()
}

#[test]
fn stream_is_cut_at_keyframes_and_each_file_is_reported() {
    for &mode in modes() {
        let folder = folder();
        let location = format!("{}/{{name}}-%03d.bin", folder.path().display());
        let rig = split_rig(
            &location,
            &format!("io-mode={mode} max-size-time=3000000000"),
        );
        for number in 0..10 {
            rig.push(second(number, 2000, number % 2 == 0)).unwrap();
        }
        let told = end_split(&rig);
        // Three seconds have passed in the middle of the second group of two buffers.
        let expected: Vec<Told> = [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
            .into_iter()
            .flat_map(|(n, from, to)| {
                let name = format!("cam1-{n:03}.bin");
                [
                    ("opened".to_owned(), name.clone(), from, None),
                    ("closed".to_owned(), name, to, Some((to - from) * 2000)),
                ]
            })
            .collect();
        assert_eq!(told, expected);
        let names: Vec<PathBuf> = files(folder.path());
        assert_eq!(names.len(), 3);
        let all: Vec<u8> = names
            .iter()
            .flat_map(|path| std::fs::read(path).unwrap())
            .collect();
        let whole: Vec<(u8, usize)> = (0..10).map(|n| (n, 2000)).collect();
        assert_eq!(runs(&all), whole);
        assert_eq!(stat(&rig.element, "files"), 3);
    }
}

#[test]
fn messages_have_the_names_and_fields_of_splitmuxsinks() {
    let folder = folder();
    let location = format!("{}/%d", folder.path().display());
    let rig = split_rig(&location, "max-size-bytes=250 start-index=7");
    for number in 0..5 {
        rig.push(second(number, 100, true)).unwrap();
    }
    let told = end_split(&rig);
    let expected = [
        ("opened", "7", 0, None),
        ("closed", "7", 2, Some(200)),
        ("opened", "8", 2, None),
        ("closed", "8", 4, Some(200)),
        ("opened", "9", 4, None),
        ("closed", "9", 5, Some(100)),
    ];
    let expected =
        expected.map(|(kind, name, s, bytes)| (kind.to_owned(), name.to_owned(), s, bytes));
    assert_eq!(told, expected);
}

/// A file that is incomplete has another name. A stop of the element also ends the file.
#[test]
fn a_file_gets_its_name_when_it_is_complete() {
    let folder = folder();
    let location = format!("{}/{{time:%Y}}/%d", folder.path().display());
    let rig = split_rig(&location, "max-size-bytes=1000");
    rig.push(second(0, 800, true)).unwrap();
    eventually("it is opened", || !fragments(&rig).is_empty());
    let year = files(folder.path()).remove(0);
    assert_eq!(files(&year), [year.join("0.part")]);
    rig.push(second(1, 800, true)).unwrap();
    eventually("it is closed", || {
        fragments(&rig).iter().any(|(kind, ..)| kind == "closed")
    });
    eventually("the next one is opened", || {
        files(&year) == [year.join("0"), year.join("1.part")]
    });
    rig.to(gst::State::Ready);
    assert_eq!(files(&year), [year.join("0"), year.join("1")]);
    assert!(
        fragments(&rig)
            .iter()
            .any(|(kind, name, ..)| kind == "closed" && name == "1")
    );
    // The element starts again with the first number.
    rig.to(gst::State::Playing);
    rig.open_stream();
    rig.push(second(0, 10, true)).unwrap();
    end(&rig);
    assert_eq!(std::fs::metadata(year.join("0")).unwrap().len(), 10);
}

/// A program may stop its pipeline in the handler of a file's message.
#[test]
fn a_handler_of_a_message_may_stop_the_stream() {
    let folder = folder();
    let location = format!("{}/%d", folder.path().display());
    let rig = split_rig(&location, "max-size-bytes=1000");
    let (send, stopped) = std::sync::mpsc::channel();
    let element = rig.element.clone();
    rig.bus.set_sync_handler(move |_, message| {
        let name = message
            .structure()
            .map(|structure| structure.name().to_string());
        if name.as_deref() == Some("splitmuxsink-fragment-closed") {
            let _ = send.send(element.set_state(gst::State::Null));
        }
        gst::BusSyncReply::Pass
    });
    for number in 0..2 {
        rig.push(second(number, 800, true)).unwrap();
    }
    let result = stopped.recv_timeout(DEADLINE).expect("it hangs");
    assert!(result.is_ok());
    rig.bus.unset_sync_handler();
    assert_eq!(
        files(folder.path()),
        [0, 1].map(|n| folder.path().join(n.to_string()))
    );
}

#[test]
fn the_oldest_files_are_removed() {
    let folder = folder();
    let location = format!("{}/%03d", folder.path().display());
    let rig = split_rig(&location, "max-size-bytes=1000 max-files=3");
    for number in 0..20 {
        rig.push(second(number, 800, true)).unwrap();
    }
    end(&rig);
    let expected = [17, 18, 19].map(|n| folder.path().join(format!("{n:03}")));
    eventually("three are left", || files(folder.path()) == expected);
}

/// Each file starts with the headers of the caps, once.
#[test]
fn each_file_begins_with_the_stream_headers() {
    let folder = folder();
    let location = format!("{}/%d", folder.path().display());
    let rig = Rig::without_stream(&split(&location, "max-size-bytes=30"), gst::State::Playing);
    let header = |value: u8| {
        let mut header = buffer_of(3, value);
        header
            .get_mut()
            .unwrap()
            .set_flags(gst::BufferFlags::HEADER);
        header
    };
    let caps = gst::Caps::builder("application/x-test")
        .field(
            "streamheader",
            gst::Array::new([header(b'h'), header(b'i')]),
        )
        .build();
    assert!(
        rig.feed
            .push_event(gst::event::StreamStart::new("a-stream"))
    );
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
    rig.open_segment();
    rig.push(header(b'h')).unwrap();
    rig.push(header(b'i')).unwrap();
    for number in 0..4 {
        rig.push(second(number, 10, true)).unwrap();
    }
    end(&rig);
    let expected = |a: u8, b: u8| [&b"hhhiii"[..], &[a; 10], &[b; 10]].concat();
    let read = |n: u8| std::fs::read(folder.path().join(n.to_string())).unwrap();
    assert_eq!((read(0), read(1)), (expected(0, 1), expected(2, 3)));
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn a_template_that_leads_outside_is_refused_before_anything_is_written() {
    init();
    for (name, location, expected) in [
        ("cam", "LOCATION/../%d", ".. leads out of the directory"),
        ("a/../../b", "LOCATION/{name}/%d", "{name} is 'a/../../b'"),
        ("/etc", "LOCATION/{name}/%d", "{name} is '/etc'"),
        ("cam", "LOCATION/%s", "%s is not known"),
        ("cam", "LOCATION/one", "all files would have the same name"),
        ("cam", "", "expected a path such as"),
    ] {
        let folder = folder();
        let element = gst::ElementFactory::make("ts-splitfilesink")
            .name(name)
            .build()
            .unwrap();
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        element.set_property(
            "location",
            location.replace("LOCATION", &text_of(folder.path())),
        );
        element.set_property("max-size-bytes", 1000u64);
        assert!(element.set_state(gst::State::Paused).is_err());
        let said = text(&bus.pop_filtered(&[gst::MessageType::Error]).unwrap());
        assert!(said.contains(expected), "{said}");
        assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
        element.set_bus(None);
        element.set_state(gst::State::Null).unwrap();
    }
}

fn packets(path: &Path) -> u32 {
    let output = Command::new("ffprobe")
        .args([
            "-v",
            "error",
            "-count_packets",
            "-show_entries",
            "stream=nb_read_packets",
        ])
        .args(["-of", "csv=p=0"])
        .arg(path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let count = said.trim().parse();
    count.unwrap_or_else(|_| panic!("{}: {said}", path.display()))
}

/// The streams are muxed already. Each file plays by itself, and together the files have everything.
#[test]
fn each_file_of_a_muxed_stream_plays() {
    for (line, extension) in [
        (
            "videotestsrc num-buffers=50 ! video/x-raw,width=64,height=48,framerate=10/1 ! jpegenc ! matroskamux streamable=true",
            "mkv",
        ),
        ("audiotestsrc num-buffers=240 ! opusenc ! oggmux", "ogg"),
    ] {
        let folder = folder();
        let whole = folder.path().join("whole");
        let location = format!("{}/%02d.{extension}", folder.path().display());
        play_to_end(&format!("{line} ! filesink location={}", whole.display()));
        play_to_end(&format!(
            "{line} ! {}",
            split(&location, "max-size-time=2000000000")
        ));
        let expected = packets(&whole);
        std::fs::remove_file(&whole).unwrap();
        let names = files(folder.path());
        assert!(names.len() >= 3, "{names:?}");
        let counts: Vec<u32> = names.iter().map(|path| packets(path)).collect();
        assert_eq!(
            counts.iter().sum::<u32>(),
            expected,
            "{extension}: {counts:?}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_written_ends_the_stream_with_its_name() {
    for &mode in modes() {
        let rig = split_rig("/proc/no/%d", &format!("io-mode={mode}"));
        // The error may be known before this push.
        let _ = rig.push(second(0, 100, true));
        let said = text(&rig.error());
        assert!(said.contains("/proc/no/0.part: cannot open"), "{said}");
        let feed = rig.feed.clone();
        let result = within("a push", move || feed.push(second(1, 100, true)));
        assert_eq!(result, Err(gst::FlowError::Error));
    }
}

/// If a header were written again, it would land in a file that is already complete.
#[test]
fn seeking_muxer_is_refused() {
    let folder = folder();
    let location = format!("{}/%d", folder.path().display());
    let pipe = Pipe::parse(&format!(
        "audiotestsrc num-buffers=10 ! wavenc ! {}",
        split(&location, "max-size-bytes=10000")
    ));
    let mut seeking = gst::query::Seeking::new(gst::Format::Bytes);
    // The stream may fail before this change is done.
    let _ = pipe.0.set_state(gst::State::Playing);
    let said = text(&pipe.message(&[gst::MessageType::Error, gst::MessageType::Eos]));
    assert!(
        said.contains("goes back to write its header again"),
        "{said}"
    );
    let sink = pipe.pad("cam1", "sink");
    assert!(sink.query(&mut seeking) && !seeking.result().0);
}

#[test]
fn a_flush_ends_a_file() {
    let folder = folder();
    let location = format!("{}/%d", folder.path().display());
    let rig = split_rig(&location, "");
    rig.push(second(0, 100, true)).unwrap();
    rig.feed.push_event(gst::event::FlushStart::new());
    rig.feed.push_event(gst::event::FlushStop::new(true));
    rig.open_segment();
    rig.push(second(0, 50, true)).unwrap();
    end(&rig);
    let lengths = files(folder.path())
        .into_iter()
        .map(|path| std::fs::metadata(path).unwrap().len());
    assert_eq!(lengths.collect::<Vec<_>>(), [100, 50]);
}

/// The streams run on a context, with an almost empty budget.
#[test]
fn a_context_splits_a_hundred_streams() {
    for &mode in modes() {
        let folder = folder();
        let name = context();
        let pipes: Vec<Pipe> = (0..100)
            .map(|n| {
                let location = format!("{}/{n}-%d", folder.path().display());
                Pipe::parse(&format!(
                    "ts-audiotestsrc is-live=false num-buffers=30 samples-per-buffer=800 context={name} ! audio/x-raw,rate=8000,channels=1 ! {}",
                    split(&location, &format!("io-mode={mode} max-size-time=1000000000 buffer-max-bytes=1"))
                ))
            })
            .collect();
        pipes.iter().for_each(Pipe::play);
        for pipe in &pipes {
            pipe.expect(gst::MessageType::Eos);
        }
        let names = files(folder.path());
        assert_eq!(names.len(), 300);
        let lengths = names
            .iter()
            .map(|path| std::fs::metadata(path).unwrap().len());
        assert!(lengths.into_iter().all(|bytes| bytes == 16_000));
    }
}

/// The recording pauses in the middle, on a context's thread.
#[test]
fn recording_continues_after_a_pause() {
    let folder = folder();
    let path = folder.path().join("a");
    let pipe = Pipe::parse(&format!(
        "ts-audiotestsrc is-live=false num-buffers=2000 samples-per-buffer=800 context={} ! audio/x-raw,rate=8000,channels=1 ! {}",
        context(),
        sink(&path, "async=false")
    ));
    pipe.to(gst::State::Paused);
    let element = pipe.get("out");
    let rendered = stat(&element, "rendered");
    assert_eq!(rendered, 0, "the first buffer waits for PLAYING");
    for _ in 0..3 {
        pipe.to(gst::State::Playing);
        pipe.to(gst::State::Paused);
    }
    pipe.to(gst::State::Playing);
    pipe.expect(gst::MessageType::Eos);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2000 * 1600);
}

/// After a flushing seek of the whole pipeline, the file has the data from the new position.
#[test]
fn pipeline_seek_restarts_the_file() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let all = pattern(1_000_000);
    std::fs::write(&from, &all).unwrap();
    let pipe = Pipe::parse(&format!(
        "{} ! {}",
        source(&from, &format!("blocksize=1000 context={}", context())),
        sink(&to, "")
    ));
    // The last block is held until the seek is done.
    pipe.to(gst::State::Paused);
    let flags = gst::SeekFlags::FLUSH;
    let is_done = pipe.0.send_event(seek_event(flags, 900_000, None));
    assert!(is_done);
    pipe.to(gst::State::Playing);
    pipe.expect(gst::MessageType::Eos);
    // The BYTES segment starts at this position, as with the stock elements.
    let written = std::fs::read(&to).unwrap();
    assert!(written[900_000..] == all[900_000..]);
    assert!(written[..900_000].iter().all(|byte| *byte == 0));
}

#[test]
fn blocked_split_stream_can_be_stopped() {
    for &mode in modes() {
        let folder = folder();
        let path = fifo(&folder);
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || std::fs::File::open(path).unwrap())
        };
        let more = budget(&format!(
            "atomic=false buffer-max-bytes=100000 io-mode={mode}"
        ));
        let rig = split_rig(&text_of(&path), &more);
        let feed = rig.feed.clone();
        let pusher =
            until_it_waits(move || (0..).find_map(|_| feed.push(buffer_of(50_000, 1)).err()));
        let _pipe = reader.join().unwrap();
        // The opening of the pipe may count, too.
        assert!(stat(&rig.element, "held-up") >= 1);
        rig.to(gst::State::Null);
        let ended = within("the push", move || pusher.join().unwrap());
        assert_eq!(ended, Some(gst::FlowError::Flushing));
    }
}
