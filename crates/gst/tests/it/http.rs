//! `ts-httpsrc` and `reqwesthttpsrc` with a test server that fails on command, with a real one, and compared with the stock
//! element.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use crate::fixtures::http as files;
use crate::fixtures::web::{Asked, Reply, Web};
use gst::prelude::*;

/// Almost no pause before a retry.
const SOON: &str = "retry-delay=1000000 retry-delay-max=1000000";

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn rig(uri: &str, more: &str) -> Rig {
    rig_in(uri, more, gst::State::Playing)
}

fn rig_in(uri: &str, more: &str, state: gst::State) -> Rig {
    let line = format!(
        "ts-httpsrc location={uri} context={} {SOON} {more}",
        context()
    );
    Rig::without_stream(&line, state)
}

/// Returns the bytes up to the end; their offsets have no gap.
fn read_all(rig: &Rig) -> Vec<u8> {
    read_from(rig, 0)
}

fn read_from(rig: &Rig, first: u64) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match rig
            .seen
            .recv_timeout(DEADLINE)
            .expect("neither data nor an end")
        {
            Seen::Buffer(buffer) => {
                assert_eq!(buffer.offset(), first + all.len() as u64);
                all.extend(bytes(&buffer));
                assert_eq!(buffer.offset_end(), first + all.len() as u64);
            }
            Seen::Event(event) if event.type_() == gst::EventType::Eos => return all,
            Seen::Event(_) => {}
        }
    }
}

/// Reads this many bytes. Returns them, with all bytes of the last buffer.
fn read_some(rig: &Rig, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(bytes(&rig.buffer()));
    }
    all
}

fn kind(message: &gst::Message) -> gst::ResourceError {
    let gst::MessageView::Error(error) = message.view() else {
        panic!("{message:?}");
    };
    error
        .error()
        .kind::<gst::ResourceError>()
        .expect("an error of a resource")
}

fn element_message(bus: &gst::Bus, name: &str) -> gst::Structure {
    loop {
        let message = bus.timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Element]);
        let message = message.unwrap_or_else(|| panic!("no {name}"));
        if let Some(structure) = message.structure().filter(|it| it.name() == name) {
            return structure.to_owned();
        }
    }
}

/// Seeks in bytes. `end` is the position after the last byte. Returns whether the seek was accepted.
fn seek(rig: &Rig, flags: gst::SeekFlags, first: u64, end: Option<u64>) -> bool {
    let event = gst::event::Seek::new(
        1.0,
        flags,
        gst::SeekType::Set,
        gst::format::Bytes::from_u64(first),
        gst::SeekType::Set,
        end.map(gst::format::Bytes::from_u64),
    );
    rig.element.send_event(event)
}

/// Runs this test alone in a new process. Returns `None` in that process.
fn alone(test: &str, environment: &[(&str, &str)]) -> Option<()> {
    const MARK: &str = "THREADBARE_HTTP_ALONE";
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &test_name(module_path!(), test), "--nocapture"])
        .env(MARK, "1");
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}{}", said[0], said[1]);
    Some(())
}

#[test]
fn file_passes_unchanged() {
    let body = pattern(3_000_000);
    let web = Web::of_file(body.clone());
    let rig = rig(&web.uri("a?b=c"), "");
    for kind in [gst::EventType::StreamStart, gst::EventType::Segment] {
        let event = rig.event(kind);
        if let gst::EventView::Segment(segment) = event.view() {
            assert_eq!(segment.segment().format(), gst::Format::Bytes);
        }
    }
    let headers = rig.event(gst::EventType::CustomDownstreamSticky);
    assert_eq!(headers.structure().unwrap().name(), "http-headers");
    assert!(read_all(&rig) == body);
    let pad = rig.element.static_pad("src").unwrap();
    let size = gst::format::Bytes::from_u64(3_000_000);
    assert_eq!(pad.query_duration::<gst::format::Bytes>(), Some(size));
    assert_eq!(pad.query_position::<gst::format::Bytes>(), Some(size));
    let mut seeking = gst::query::Seeking::new(gst::Format::Bytes);
    assert!(pad.query(&mut seeking) && seeking.result().0);
    let mut scheduling = gst::query::Scheduling::new();
    assert!(pad.query(&mut scheduling));
    let flags = scheduling.result().0;
    assert!(
        flags.contains(gst::SchedulingFlags::BANDWIDTH_LIMITED | gst::SchedulingFlags::SEEKABLE)
    );
    assert!(!scheduling.has_scheduling_mode(gst::PadMode::Pull));
    let asked = web.wait_asked(0);
    assert_eq!(asked.path, "/a?b=c");
    assert_eq!(asked.header("user-agent"), Some("GStreamer Threadbare"));
    assert_eq!(asked.header("icy-metadata"), Some("1"));
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    assert_eq!(stat(&rig.element, "bytes-received"), 3_000_000);
    assert_eq!(stat(&rig.element, "requests"), 1);
    assert_eq!(stat(&rig.element, "bytes-queued"), 0);
}

#[test]
fn headers_are_reported_like_the_stock_element() {
    let respond = |_: &Asked, reply: &mut Reply<'_>| {
        let more = "Content-Type: audio/L16;rate=16000;channels=1\r\nX-Two: a\r\nX-Two: b\r\n";
        reply.send("200 OK", more, &[0; 400])
    };
    let web = Web::new(respond);
    let told: Vec<(gst::Caps, gst::Structure)> = ["souphttpsrc", "ts-httpsrc", "reqwesthttpsrc"]
        .map(|element| {
            let pipe = Pipe::parse(&format!(
                "{element} name=in location={} ! fakesink name=out",
                web.uri("x")
            ));
            pipe.play();
            let headers = element_message(&pipe.bus(), "http-headers");
            pipe.expect(gst::MessageType::Eos);
            let pad = pipe.pad("in", "src");
            let sticky = pad
                .sticky_event::<gst::event::CustomDownstreamSticky>(0)
                .unwrap();
            assert_eq!(sticky.structure(), Some(&*headers));
            (pad.current_caps().unwrap(), headers)
        })
        .into();
    let (caps, headers) = &told[0];
    let names = |structure: &gst::Structure| {
        let response: gst::Structure = structure.get("response-headers").unwrap();
        let mut names: Vec<String> = response
            .iter()
            .map(|(name, value)| format!("{}: {value:?}", name.to_lowercase()))
            .collect();
        names.sort();
        names
    };
    for (own_caps, own) in &told[1..] {
        assert_eq!(own_caps, caps);
        assert_eq!(names(own), names(headers));
        assert_eq!(
            own.get::<&str>("uri").unwrap(),
            headers.get::<&str>("uri").unwrap()
        );
        assert!(
            own.get::<gst::Structure>("request-headers")
                .unwrap()
                .has_field("user-agent")
        );
        assert_eq!(own.get::<u32>("http-status-code"), Ok(200));
    }
}

/// The server is a real one without ranges; the reference is curl.
#[test]
fn a_real_server_sends_the_same_bytes_as_to_curl_and_the_stock_element() {
    let folder = std::env::temp_dir().join(format!("threadbare-http-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let body = pattern(1_234_567);
    std::fs::write(folder.join("file"), &body).unwrap();
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut server = Command::new("python3")
        .args([
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            &port.to_string(),
        ])
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let uri = format!("http://127.0.0.1:{port}/file");
    let curl = Command::new("curl")
        .args(["-s", "-f", &uri])
        .output()
        .unwrap();
    assert!(curl.stdout == body);
    for element in ["souphttpsrc", "ts-httpsrc", "reqwesthttpsrc"] {
        let path = folder.join(element);
        let line = format!(
            "{element} location={uri} ! filesink location={}",
            path.display()
        );
        let pipe = Pipe::parse(&line);
        pipe.play();
        pipe.expect(gst::MessageType::Eos);
        drop(pipe);
        assert!(std::fs::read(&path).unwrap() == body, "{element}");
    }
    // The server does not announce ranges, so seeks are refused.
    let rig = rig(&uri, "");
    read_some(&rig, 1);
    assert!(!seek(&rig, gst::SeekFlags::FLUSH, 10, None));
    drop(rig);
    server.kill().unwrap();
    server.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// An nginx with these lines for its server, on its own port.
struct Nginx {
    process: std::process::Child,
    folder: std::path::PathBuf,
    port: u16,
}

impl Nginx {
    fn start(name: &str, body: &[u8], listen: &str, lines: &str) -> Nginx {
        let folder = std::env::temp_dir().join(format!("threadbare-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("files")).unwrap();
        std::fs::write(folder.join("files/file"), body).unwrap();
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        };
        let here = folder.display();
        let mut paths = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            paths += &format!("{kind}_temp_path {here}/{kind};\n");
        }
        // One process with the test's rights: it has no rights to drop.
        let config = format!(
            "daemon off; master_process off; error_log {here}/errors; pid {here}/pid;\n\
             events {{}}\n\
             http {{\n{paths}access_log off;\n\
             server {{ listen 127.0.0.1:{port} {listen}; root {here}/files; {lines}\n\
             add_header X-Protocol $server_protocol; }} }}\n"
        );
        std::fs::write(folder.join("config"), config).unwrap();
        let process = Command::new("nginx")
            .env(
                "PATH",
                format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()),
            )
            .args(["-e", "stderr", "-p"])
            .arg(&folder)
            .arg("-c")
            .arg(folder.join("config"))
            .spawn()
            .expect("nginx");
        eventually("nginx listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Nginx {
            process,
            folder,
            port,
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn nginx_sends_the_same_files_and_ranges_as_to_curl() {
    let body = pattern(1_500_000);
    let nginx = Nginx::start("nginx", &body, "", "");
    let uri = format!("http://127.0.0.1:{}/file", nginx.port);
    let rig = rig(&uri, "");
    assert!(read_all(&rig) == body);
    for (first, last) in [(0, 9), (1000, 1_400_000), (1_499_999, 1_499_999)] {
        let range = format!("{first}-{last}");
        let curl = Command::new("curl")
            .args(["-s", "-f", "-r", &range, &uri])
            .output()
            .unwrap();
        assert!(seek(&rig, gst::SeekFlags::FLUSH, first, Some(last + 1)));
        let got = read_from(&rig, first);
        assert!(got == curl.stdout, "{range}");
    }
}

/// Streams of one host share a connection (RFC 9113). Streams without a reader must not block the others.
#[test]
fn a_paused_http_2_stream_blocks_no_other_stream() {
    let body = pattern(2_000_000);
    let (_, ca, key) = certificates("h2");
    let chain = ca.with_extension("chain");
    let more = format!(
        "ssl_certificate {}; ssl_certificate_key {};",
        chain.display(),
        key.display()
    );
    let nginx = Nginx::start("h2", &body, "ssl http2", &more);
    let uri = format!("https://127.0.0.1:{}/file", nginx.port);
    let source = format!(
        "ts-httpsrc location={uri} ssl-ca-file={} context={}",
        ca.display(),
        context()
    );
    let paused: Vec<Pipe> = (0..40)
        .map(|_| {
            let pipe = Pipe::parse(&format!("{source} ! ts-appsink sync=false max-buffers=1"));
            pipe.to(gst::State::Paused);
            pipe
        })
        .collect();
    let rig = Rig::without_stream(&source, gst::State::Playing);
    assert!(read_all(&rig) == body);
    let headers = element_message(&rig.bus, "http-headers");
    let headers: gst::Structure = headers.get("response-headers").unwrap();
    assert_eq!(headers.get::<&str>("x-protocol"), Ok("HTTP/2.0"));
    assert!(seek(
        &rig,
        gst::SeekFlags::FLUSH,
        1_000_000,
        Some(1_000_100)
    ));
    assert!(read_from(&rig, 1_000_000) == body[1_000_000..1_000_100]);
    drop(paused);
    for file in [ca, chain, key] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn seeks_request_ranges_with_a_start_and_an_end() {
    let body = pattern(500_000);
    let web = Web::of_file(body.clone());
    let rig = rig(&web.uri("x"), "");
    assert!(read_all(&rig) == body);
    // The stream has ended before the first of these seeks.
    let seeks = [
        (100, None),
        (499_999, None),
        (100, Some(200)),
        (0, Some(1)),
        (7, Some(7)),
        (0, None),
    ];
    for (first, end) in seeks {
        let before = web.asked().len();
        assert!(seek(&rig, gst::SeekFlags::FLUSH, first, end));
        rig.event(gst::EventType::FlushStart);
        let stop = rig.event(gst::EventType::FlushStop);
        let segment = rig.event(gst::EventType::Segment);
        assert_eq!(segment.seqnum(), stop.seqnum());
        let gst::EventView::Segment(view) = segment.view() else {
            unreachable!()
        };
        assert_eq!(view.segment().start().value(), first as i64);
        let until = end.map_or(body.len(), |end| end as usize);
        let got = read_from(&rig, first);
        assert!(
            got == body[first as usize..until],
            "{first} {end:?}: {}",
            got.len()
        );
        if end != Some(first) {
            let range = web.wait_asked(before).range();
            let expected = (first > 0 || end.is_some())
                .then_some((first as usize, end.map(|end| end as usize - 1)));
            assert_eq!(range, expected);
        }
    }
    // After the end, no data follow.
    assert!(seek(&rig, gst::SeekFlags::FLUSH, 600_000, None));
    assert_eq!(read_from(&rig, 600_000), b"");
    // Seeks backwards, in time, or to no position are refused.
    assert!(
        rig.element
            .seek_simple(gst::SeekFlags::FLUSH, gst::ClockTime::ZERO)
            .is_err()
    );
    let back = gst::event::Seek::new(
        -1.0,
        gst::SeekFlags::FLUSH,
        gst::SeekType::Set,
        gst::format::Bytes::from_u64(0),
        gst::SeekType::Set,
        gst::format::Bytes::from_u64(10),
    );
    assert!(!rig.element.send_event(back));
}

#[test]
fn seeks_in_any_order_with_and_without_flushes_end_with_the_last_one() {
    let body = pattern(2_000_000);
    let sent = body.clone();
    // Only the last seek reaches an end. After it, only a flush continues the stream.
    let web = Web::new(move |asked, reply| {
        if asked.range().is_some_and(|(first, _)| first == 1_999_000) {
            return reply.file(asked, "", &sent);
        }
        reply.file_up_to(asked, "", &sent, 50_000)?;
        reply.stall();
        Ok(())
    });
    for (round, flags) in [gst::SeekFlags::FLUSH, gst::SeekFlags::empty()]
        .into_iter()
        .enumerate()
    {
        let rig = rig(&web.uri("x"), "max-bytes=10000 blocksize=1000");
        for (step, first) in [5u64, 1_000_000, 3, 1_900_000, 400_000, 1_999_000]
            .into_iter()
            .enumerate()
        {
            read_some(&rig, 1 + 5000 * ((round + step) % 3));
            let flags = if step % 2 == round {
                flags
            } else {
                gst::SeekFlags::FLUSH
            };
            assert!(seek(&rig, flags, first, None));
            if step == 3 {
                rig.element.send_event(gst::event::FlushStart::new());
                while rig.seen.try_recv().is_ok() {}
                rig.element.send_event(gst::event::FlushStop::new(true));
                rig.event(gst::EventType::FlushStop);
            }
            if step == 4 {
                rig.to(gst::State::Paused);
                rig.to(gst::State::Playing);
            }
        }
        let mut last = Vec::new();
        loop {
            match rig.seen.recv_timeout(DEADLINE).unwrap() {
                Seen::Buffer(buffer) if buffer.offset() >= 1_999_000 => {
                    assert!(buffer.size() <= 1000);
                    if buffer.flags().contains(gst::BufferFlags::DISCONT) {
                        last.clear();
                    }
                    last.extend(bytes(&buffer));
                }
                Seen::Event(event) if event.type_() == gst::EventType::Eos => break,
                _ => {}
            }
        }
        assert!(last == body[1_999_000..]);
    }
}

/// As with the stock base class, the source continues at its position.
#[test]
fn end_is_repeated_after_a_flush_without_a_seek() {
    let web = Web::of_file(pattern(10_000));
    let rig = rig(&web.uri("x"), "");
    read_all(&rig);
    for _ in 0..2 {
        rig.element.send_event(gst::event::FlushStart::new());
        rig.element.send_event(gst::event::FlushStop::new(true));
        rig.event(gst::EventType::Segment);
        assert_eq!(read_all(&rig), b"");
    }
}

#[test]
fn a_segment_seek_ends_with_segment_done() {
    let web = Web::of_file(pattern(10_000));
    let rig = rig(&web.uri("x"), "");
    read_all(&rig);
    assert!(seek(
        &rig,
        gst::SeekFlags::FLUSH | gst::SeekFlags::SEGMENT,
        10,
        Some(20)
    ));
    rig.event(gst::EventType::SegmentDone);
    let done = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::SegmentDone]);
    let done = done.expect("the message");
    let gst::MessageView::SegmentDone(done) = done.view() else {
        unreachable!()
    };
    assert_eq!(done.get().value(), 20);
}

#[test]
fn interrupted_source_resumes_at_the_same_byte() {
    let body = pattern(300_000);
    let sent = body.clone();
    // Each connection delivers 50,000 bytes and breaks; the last but one is refused.
    let web = Web::new(move |asked, reply| match asked.number {
        3 => reply.send("503 Service Unavailable", "", b"later"),
        _ => reply.file_up_to(asked, "ETag: \"v1\"\r\n", &sent, 50_000),
    });
    let rig = rig(&web.uri("x"), "retries=2");
    let got = read_all(&rig);
    assert!(
        got == body,
        "{}: {:#?} {:?}",
        got.len(),
        web.asked(),
        rig.bus.pop_filtered(&[gst::MessageType::Error])
    );
    let asked = web.asked();
    assert_eq!(asked.len(), 7);
    assert_eq!(asked[0].range(), None);
    assert_eq!(asked[1].range(), Some((50_000, None)));
    assert_eq!(asked[1].header("if-range"), Some("\"v1\""));
    assert_eq!(asked[6].range(), Some((250_000, None)));
    assert_eq!(stat(&rig.element, "resumed"), 5);
    assert_eq!(stat(&rig.element, "retries"), 6);
    let retry = element_message(&rig.bus, "http-retry");
    assert_eq!(retry.get::<u64>("position"), Ok(50_000));
    assert!(
        retry
            .get::<&str>("reason")
            .unwrap()
            .contains("connection broke"),
        "{retry:?}"
    );
}

#[test]
fn a_server_that_ignores_ranges_is_read_from_the_beginning_and_skipped() {
    let body = pattern(100_000);
    let sent = body.clone();
    let web = Web::new(move |asked, reply| {
        // The server announces ranges, but sends the whole body.
        let size = sent.len();
        reply.closes = true;
        reply.raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nAccept-Ranges: bytes\r\nLast-Modified: Mon, 23 Nov 2026 10:00:00 GMT\r\n\r\n"
        ))?;
        reply.raw(&sent[..if asked.number == 0 { 40_000 } else { size }])
    });
    let rig = rig(&web.uri("x"), "");
    assert!(read_all(&rig) == body);
    assert_eq!(stat(&rig.element, "bytes-skipped"), 40_000);
    assert!(seek(&rig, gst::SeekFlags::FLUSH, 70_000, Some(70_010)));
    assert!(read_from(&rig, 70_000) == body[70_000..70_010]);
}

#[test]
fn bytes_of_a_changed_resource_are_not_appended() {
    let (old, new) = (pattern(100_000), vec![9; 100_000]);
    let sent = old.clone();
    let web = Web::new(move |asked, reply| match asked.number {
        0 => reply.file_up_to(asked, "ETag: \"v1\"\r\n", &sent, 40_000),
        _ => reply.send("200 OK", "ETag: \"v2\"\r\n", &new),
    });
    let rig = rig(&web.uri("x"), "");
    assert!(read_all(&rig) == old[..40_000]);
    let error = rig.error();
    assert_eq!(kind(&error), gst::ResourceError::Read);
    assert!(
        text(&error).contains("has changed since the connection broke at byte 40000"),
        "{}",
        text(&error)
    );
}

#[test]
fn wrong_length_is_treated_as_a_break() {
    // The announced length is longer than the actual body, each time.
    let web = Web::new(|_, reply| {
        reply.closes = true;
        reply.raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
    });
    let rig = rig(&web.uri("x"), "retries=2");
    assert_eq!(read_all(&rig), b"0123456789");
    assert_eq!(kind(&rig.error()), gst::ResourceError::Read);
    assert_eq!(web.asked().len(), 3);
}

const BODY_BYTES: usize = 200_000;
/// Position at which the first response of each case breaks.
const CUT: usize = 40_000;
const TAG: &str = "ETag: \"v1\"\r\n";

/// How a server answers request `asked.number` with parts of the body.
type Answering = fn(&Asked, &mut Reply<'_>, &[u8]) -> std::io::Result<()>;

/// Sends a head without Content-Length and these bytes, and closes the connection.
fn unframed(reply: &mut Reply<'_>, head: &str, bytes: &[u8]) -> std::io::Result<()> {
    reply.closes = true;
    reply.raw(format!("{head}\r\n\r\n"))?;
    reply.raw(bytes)
}

/// Answers to the request after a response of 200,000 bytes that broke at byte 40,000.
const RETRIES: &[(&str, Answering)] = &[
    ("no bytes", |asked, reply, body| {
        reply.file_up_to(asked, TAG, body, 0)
    }),
    ("no answer", |_, reply, _| {
        reply.closes = true;
        Ok(())
    }),
    ("416 with a shorter length", |_, reply, _| {
        reply.send(
            "416 Range Not Satisfiable",
            "Content-Range: bytes */40000\r\n",
            b"",
        )
    }),
    ("416 with the length", |_, reply, _| {
        reply.send(
            "416 Range Not Satisfiable",
            "Content-Range: bytes */200000\r\n",
            b"",
        )
    }),
    ("416 without a length", |_, reply, _| {
        reply.send("416 Range Not Satisfiable", "", b"")
    }),
    ("200 with another length", |_, reply, body| {
        reply.send("200 OK", TAG, &body[..CUT])
    }),
    ("200 with another tag", |_, reply, body| {
        reply.send("200 OK", "ETag: \"v2\"\r\n", body)
    }),
    ("200 without a length", |_, reply, body| {
        unframed(reply, "HTTP/1.1 200 OK\r\nETag: \"v1\"", &body[..60_000])
    }),
    ("200 with a last chunk", |_, reply, _| {
        reply.raw(format!(
            "HTTP/1.1 200 OK\r\n{TAG}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ))
    }),
    ("206 of a later range", |_, reply, body| {
        let range = format!("{TAG}Content-Range: bytes 50000-199999/200000\r\n");
        reply.send("206 Partial Content", &range, &body[50_000..])
    }),
    ("206 of an earlier range", |_, reply, body| {
        let range = format!("{TAG}Content-Range: bytes 0-39999/200000\r\n");
        reply.send("206 Partial Content", &range, &body[..CUT])
    }),
    ("206 of another length", |_, reply, body| {
        let range = format!("{TAG}Content-Range: bytes 40000-49999/50000\r\n");
        reply.send("206 Partial Content", &range, &body[CUT..50_000])
    }),
    ("206 of an unknown length", |_, reply, body| {
        let range = format!("{TAG}Content-Range: bytes 40000-49999/*\r\n");
        reply.send("206 Partial Content", &range, &body[CUT..50_000])
    }),
    ("206 without a range", |_, reply, body| {
        reply.send("206 Partial Content", TAG, &body[CUT..])
    }),
    ("206 without a body", |_, reply, _| {
        let range = format!("{TAG}Content-Range: bytes 40000-199999/200000\r\n");
        reply.send("206 Partial Content", &range, b"")
    }),
    ("206 that is cut", |_, reply, body| {
        let head = "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes 40000-199999/200000";
        unframed(reply, head, &body[CUT..60_000])
    }),
    ("204", |_, reply, _| {
        reply.raw("HTTP/1.1 204 No Content\r\n\r\n")
    }),
    ("204 with the tag", |_, reply, _| {
        reply.raw(format!("HTTP/1.1 204 No Content\r\n{TAG}\r\n"))
    }),
    ("304", |_, reply, _| {
        reply.raw(format!("HTTP/1.1 304 Not Modified\r\n{TAG}\r\n"))
    }),
    ("404", |_, reply, _| {
        reply.send("404 Not Found", "", b"gone")
    }),
    ("503", |_, reply, _| {
        reply.send("503 Service Unavailable", "", b"later")
    }),
    ("a station", |_, reply, body| {
        unframed(reply, "ICY 200 OK", &body[..60_000])
    }),
];

/// Bodies of 200,000 bytes that break at once or at byte 40,000, each time.
const BREAKS: &[(&str, Answering)] = &[
    (
        "at the first byte, then 204",
        |asked, reply, body| match asked.number {
            0 => reply.file_up_to(asked, TAG, body, 0),
            _ => reply.raw("HTTP/1.1 204 No Content\r\n\r\n"),
        },
    ),
    (
        "at the first byte, then 200 without a length",
        |asked, reply, body| match asked.number {
            0 => reply.file_up_to(asked, TAG, body, 0),
            _ => unframed(reply, "HTTP/1.1 200 OK", &body[..CUT]),
        },
    ),
    ("of an announced part", |_, reply, body| {
        let head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-199999/*";
        unframed(reply, head, &body[..CUT])
    }),
    ("of HTTP/1.0", |_, reply, body| {
        unframed(
            reply,
            "HTTP/1.0 200 OK\r\nContent-Length: 200000",
            &body[..CUT],
        )
    }),
    ("of a station", |_, reply, body| {
        unframed(reply, "ICY 200 OK\r\nContent-Length: 200000", &body[..CUT])
    }),
];

/// Bodies of no announced length that end after 40,000 bytes.
const ENDS: &[(&str, Answering)] = &[
    ("HTTP/1.0", |_, reply, body| {
        unframed(reply, "HTTP/1.0 200 OK", &body[..CUT])
    }),
    ("HTTP/1.1", |_, reply, body| {
        unframed(reply, "HTTP/1.1 200 OK\r\nConnection: close", &body[..CUT])
    }),
    ("ICY", |_, reply, body| {
        unframed(reply, "ICY 200 OK", &body[..CUT])
    }),
    ("a part of an unknown length", |_, reply, body| {
        let range = "Content-Range: bytes 0-39999/*\r\n";
        reply.send("206 Partial Content", range, &body[..CUT])
    }),
];

/// Returns the bytes of a fetch up to its end, and its error.
fn fetched(element: &str, answering: Answering) -> (Vec<u8>, Option<gst::Message>) {
    let body = pattern(BODY_BYTES);
    let web = Web::new(move |asked, reply| answering(asked, reply, &body));
    fetched_from(element, &web)
}

fn fetched_from(element: &str, web: &Web) -> (Vec<u8>, Option<gst::Message>) {
    let line = format!("{element} location={} {SOON} retries=2", web.uri("x"));
    let rig = Rig::without_stream(&line, gst::State::Playing);
    let got = read_all(&rig);
    // An element posts its error before it sends EOS.
    (got, rig.bus.pop_filtered(&[gst::MessageType::Error]))
}

/// Describes the failure, unless this is the error of a body without its announced end.
fn missed(got: &[u8], error: Option<gst::Message>) -> Option<String> {
    let Some(error) = error else {
        return Some(format!("EOS after {} bytes", got.len()));
    };
    if !pattern(BODY_BYTES).starts_with(got) || got.len() == BODY_BYTES {
        return Some(format!("{} bytes with other contents", got.len()));
    }
    let expected = match text(&error) {
        // The words are needed, because port numbers may contain these digits, too.
        said if said.contains("404 Not Found") => gst::ResourceError::NotFound,
        _ if got.is_empty() => gst::ResourceError::OpenRead,
        _ => gst::ResourceError::Read,
    };
    let place = format!("at byte {} of {BODY_BYTES}", got.len());
    let is_right = kind(&error) == expected && text(&error).contains(&place);
    (!is_right).then(|| format!("{:?}: {}", kind(&error), text(&error)))
}

/// A length that a server has announced is valid until the resource changes, whether or not later responses repeat it.
#[test]
fn a_body_that_ends_before_its_length_is_an_error() {
    init();
    let mut wrong = Vec::new();
    for element in ["ts-httpsrc context=ends", "reqwesthttpsrc"] {
        for &(name, answering) in RETRIES {
            let body = pattern(BODY_BYTES);
            let web = Web::new(move |asked, reply| match asked.number {
                0 => reply.file_up_to(asked, TAG, &body, CUT),
                _ => answering(asked, reply, &body),
            });
            let (got, error) = fetched_from(element, &web);
            let missed = missed(&got, error).or_else(|| (got.len() < CUT).then(|| "lost".into()));
            wrong.extend(missed.map(|why| format!("{element}, then {name}: {why}")));
        }
        for &(name, answering) in BREAKS {
            let (got, error) = fetched(element, answering);
            wrong.extend(missed(&got, error).map(|why| format!("{element}, {name}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Without its last chunk a body is not whole (RFC 9112, section 8), although no length was announced.
#[test]
fn chunks_without_the_last_one_are_an_error() {
    init();
    let retries: [(&str, Answering); 3] = [
        ("416 with a shorter length", |_, reply, _| {
            reply.send(
                "416 Range Not Satisfiable",
                "Content-Range: bytes */30000\r\n",
                b"",
            )
        }),
        ("416 without a length", |_, reply, _| {
            reply.send("416 Range Not Satisfiable", "", b"")
        }),
        ("no answer", |_, reply, _| {
            reply.closes = true;
            Ok(())
        }),
    ];
    for (name, answering) in retries {
        let body = pattern(BODY_BYTES);
        let web = Web::new(move |asked, reply| {
            if asked.number > 0 {
                return answering(asked, reply, &body);
            }
            let head = "HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\nTransfer-Encoding: chunked";
            let chunk = [b"9C40\r\n", &body[..CUT], b"\r\n"].concat();
            unframed(reply, head, &chunk)
        });
        let (got, error) = fetched_from("ts-httpsrc context=ends", &web);
        assert!(got == pattern(BODY_BYTES)[..CUT], "{name}: {}", got.len());
        let error = error.unwrap_or_else(|| panic!("then {name}: EOS"));
        assert_eq!(kind(&error), gst::ResourceError::Read, "{name}");
    }
}

/// Positions of a station count over all of its connections. If it announces a length later, that is the length of one
/// connection.
#[test]
fn a_station_whose_later_length_is_cut_is_an_error() {
    init();
    let body = pattern(BODY_BYTES);
    let web = Web::new(move |asked, reply| match asked.number {
        0 => unframed(
            reply,
            "HTTP/1.0 200 OK\r\nicy-name: A station",
            &body[..10_000],
        ),
        1 => unframed(
            reply,
            "HTTP/1.0 200 OK\r\nContent-Length: 5000",
            &body[10_000..12_000],
        ),
        _ => reply.send(
            "416 Range Not Satisfiable",
            "Content-Range: bytes */5000\r\n",
            b"",
        ),
    });
    let (got, error) = fetched_from("ts-httpsrc context=ends", &web);
    assert!(got == pattern(BODY_BYTES)[..12_000], "{}", got.len());
    assert_eq!(kind(&error.expect("an error")), gst::ResourceError::Read);
}

#[test]
fn a_body_whose_length_is_unknown_ends_with_its_connection() {
    init();
    for element in ["ts-httpsrc context=ends", "reqwesthttpsrc"] {
        for &(name, answering) in ENDS {
            let (got, error) = fetched(element, answering);
            assert!(got == pattern(BODY_BYTES)[..CUT], "{name}: {}", got.len());
            assert!(error.is_none(), "{name}: {error:?}");
        }
    }
}

/// RFC 9112, section 5.2: a folded line is accepted on receipt, as spaces. Section 5.1 forbids white space before the colon, but
/// servers send it, and curl and souphttpsrc read it.
#[test]
fn folded_headers_and_spaces_before_the_colon_are_read() {
    init();
    let body = pattern(10_000);
    for protocol in ["HTTP/1.1", "HTTP/1.0", "ICY"] {
        let sent = body.clone();
        let web = Web::new(move |_, reply| {
            let lines =
                "X-Folded: one\r\n two\r\n\tthree\r\nX-Spaced : four\r\nContent-Length\t: 10000";
            unframed(reply, &format!("{protocol} 200 OK\r\n{lines}"), &sent)
        });
        for element in ["ts-httpsrc context=folded", "reqwesthttpsrc"] {
            let line = format!("{element} location={} {SOON} retries=0", web.uri("x"));
            let rig = Rig::without_stream(&line, gst::State::Playing);
            let got = read_all(&rig);
            assert!(
                got == body,
                "{protocol}, {element}: {} {:?}",
                got.len(),
                rig.bus.pop_filtered(&[gst::MessageType::Error])
            );
            let headers = element_message(&rig.bus, "http-headers");
            let headers: gst::Structure = headers.get("response-headers").unwrap();
            let folded = headers.get::<&str>("x-folded").unwrap();
            assert!(!folded.contains(['\r', '\n']), "{folded:?}");
            let words: Vec<&str> = folded.split_whitespace().collect();
            assert_eq!(words, ["one", "two", "three"]);
            assert_eq!(headers.get::<&str>("x-spaced"), Ok("four"));
        }
    }
}

#[test]
fn silent_server_is_reconnected_for_the_rest() {
    let body = pattern(100_000);
    let sent = body.clone();
    let web = Web::new(move |asked, reply| match asked.number {
        // The server is silent before the head, and then in the middle of the body.
        0 => {
            reply.stall();
            Ok(())
        }
        1 => {
            reply.file_up_to(asked, "", &sent, 30_000)?;
            reply.stall();
            Ok(())
        }
        _ => reply.file(asked, "", &sent),
    });
    let rig = rig(&web.uri("x"), "timeout=1");
    assert!(read_all(&rig) == body);
    assert_eq!(stat(&rig.element, "timeouts"), 2);
    assert_eq!(web.wait_asked(2).range(), Some((30_000, None)));
}

#[test]
fn slow_server_is_reconnected_for_the_rest() {
    let body = pattern(100_000);
    let sent = body.clone();
    let web = Web::new(move |asked, reply| match asked.number {
        0 => {
            reply.file_up_to(asked, "", &sent, 30_000)?;
            // The bytes come one by one until the client disconnects, so the server is never silent.
            for byte in &sent[30_000..] {
                reply.raw([*byte])?;
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
        _ => reply.file(asked, "", &sent),
    });
    let rig = rig(
        &web.uri("x"),
        "minimum-rate=100000000 minimum-rate-time=200000000",
    );
    assert!(read_all(&rig) == body);
    assert_eq!(stat(&rig.element, "too-slow"), 1);
}

#[test]
fn redirections_are_followed_and_reported() {
    let body = pattern(1000);
    let sent = body.clone();
    let web = Web::new(move |asked, reply| match asked.path.as_str() {
        "/a" => reply.send("301 Moved Permanently", "Location: /b\r\n", b"moved"),
        "/b" => reply.send("308 Permanent Redirect", "Location: c?d\r\n", b""),
        "/once" => reply.send("302 Found", "Location: /c\r\n", b""),
        "/loop" => reply.send("302 Found", "Location: /loop\r\n", b""),
        "/file" => reply.send("302 Found", "Location: file:///etc/passwd\r\n", b""),
        "/nowhere" => reply.send("302 Found", "", b""),
        _ => reply.file(asked, "", &sent),
    });
    for (path, place, is_permanent) in [("a", "c?d", true), ("once", "c", false)] {
        let rig = rig(&web.uri(path), "");
        assert!(read_all(&rig) == body);
        let mut query = gst::query::Uri::new();
        assert!(rig.element.static_pad("src").unwrap().query(&mut query));
        assert_eq!(query.uri().unwrap(), web.uri(path));
        let (redirection, permanent) = query.redirection();
        assert_eq!(
            (redirection.unwrap().to_string(), permanent),
            (web.uri(place), is_permanent)
        );
        let headers = element_message(&rig.bus, "http-headers");
        assert_eq!(headers.get::<String>("redirection-uri"), Ok(web.uri(place)));
    }
    for (path, said) in [
        ("loop", "redirected more than 20 times"),
        (
            "file",
            "the scheme 'file' is not allowed; use http or https",
        ),
        ("nowhere", "302 Found"),
    ] {
        let rig = rig(&web.uri(path), "");
        let error = rig.error();
        assert!(text(&error).contains(said), "{}", text(&error));
        assert_eq!(kind(&error), gst::ResourceError::OpenRead);
    }
}

#[test]
fn refusals_are_reported_by_kind() {
    let web = Web::new(|asked, reply| {
        let status = format!("{} As Asked", &asked.path[1..]);
        reply.send(&status, "", b"a page that is no media")
    });
    for (status, expected) in [
        (401, gst::ResourceError::NotAuthorized),
        (403, gst::ResourceError::NotAuthorized),
        (404, gst::ResourceError::NotFound),
        (410, gst::ResourceError::NotFound),
        (406, gst::ResourceError::OpenRead),
        (500, gst::ResourceError::OpenRead),
    ] {
        let rig = rig(&web.uri(&status.to_string()), "retries=0");
        let error = rig.error();
        assert_eq!(kind(&error), expected, "{status}");
        assert!(
            text(&error).contains(&status.to_string()),
            "{}",
            text(&error)
        );
        // Downstream gets the end of the stream, but nothing of the error page.
        assert_eq!(read_all(&rig), b"");
    }
}

#[test]
fn unreachable_host_is_named() {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (uri, said) in [
        (format!("http://{address}/x"), "refused"),
        (
            "http://no-such-host.invalid/x".to_owned(),
            "no-such-host.invalid",
        ),
    ] {
        let rig = rig(&uri, "");
        let error = rig.error();
        assert!(
            text(&error).contains(said) && text(&error).contains(&uri),
            "{}",
            text(&error)
        );
        assert_eq!(kind(&error), gst::ResourceError::OpenRead);
    }
    // A reply that is not HTTP.
    let web = Web::new(|_, reply| {
        reply.closes = true;
        reply.raw("220 ftp.example.org ready\r\n")
    });
    assert_eq!(
        kind(&rig(&web.uri("x"), "retries=1").error()),
        gst::ResourceError::OpenRead
    );
}

#[test]
fn locations_that_cannot_be_fetched_are_refused() {
    for (location, said) in [
        (
            "ftp://me:hidden@h/x",
            "location='ftp://h/x': the scheme 'ftp' is not allowed; use http or https",
        ),
        ("http://me:hidden@h:port/", "is not a URL"),
        ("", "location is not set"),
    ] {
        let element = make("reqwesthttpsrc");
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        element.set_property("location", location);
        assert!(element.set_state(gst::State::Paused).is_err(), "{location}");
        let error = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
        assert!(text(&error).contains(said), "{}", text(&error));
        assert!(!text(&error).contains("hidden"), "{}", text(&error));
        element.set_state(gst::State::Null).unwrap();
        element.set_bus(None);
        if !location.is_empty() {
            let handler = element.dynamic_cast_ref::<gst::URIHandler>().unwrap();
            let error = handler.set_uri(location).unwrap_err();
            // The element never sees other schemes.
            let is_refused = error.matches(gst::URIError::BadUri)
                || error.matches(gst::URIError::UnsupportedProtocol);
            assert!(is_refused && !error.message().contains("hidden"), "{error}");
        }
    }
}

#[test]
fn invalid_header_is_refused_by_name() {
    for (property, value, said) in [
        ("extra-headers", "h,\"X Y\"=(string)z", "extra-headers"),
        (
            "extra-headers",
            "X=a\nEvil: hidden",
            "extra-headers: the value of 'X'",
        ),
        ("cookies", "<\"a=hidden\\012b\">", "cookies"),
        ("user-agent", "a\nb: c", "user-agent"),
        (
            "ssl-ca-file",
            "/no/such/file",
            "ssl-ca-file='/no/such/file'",
        ),
        (
            "proxy",
            "ftp://u:hidden@p",
            "proxy='ftp://p/': the scheme 'ftp' is not allowed",
        ),
    ] {
        let element = make("ts-httpsrc");
        element.set_property("location", "http://h/");
        match property {
            "extra-headers" => {
                let (name, value) = value.split_once('=').unwrap();
                let headers = gst::Structure::builder("h").field(name, value);
                element.set_property(property, headers.build());
            }
            "cookies" => element.set_property(property, vec!["a=hidden\nb".to_owned()]),
            _ => element.set_property(property, value),
        }
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        assert!(element.set_state(gst::State::Paused).is_err(), "{property}");
        let error = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
        element.set_state(gst::State::Null).unwrap();
        element.set_bus(None);
        assert!(text(&error).contains(said), "{}", text(&error));
        assert!(!text(&error).contains("hidden"), "{}", text(&error));
        assert_eq!(kind(&error), gst::ResourceError::Settings);
    }
}

#[test]
fn headers_of_the_user_are_sent() {
    let web = Web::of_file(pattern(10));
    let element = "extra-headers=\"h,X-One=(string)1,X-Many=(string)<a,b>,X-Number=7,User-Agent=(string)mine\" iradio-mode=false keep-alive=false compress=true";
    let rig = Rig::without_stream(
        &format!("reqwesthttpsrc location={} {element}", web.uri("x")),
        gst::State::Ready,
    );
    rig.element
        .set_property("cookies", vec!["a=1".to_owned(), "b=2".to_owned()]);
    rig.to(gst::State::Playing);
    read_all(&rig);
    let asked = web.wait_asked(0);
    for (name, value) in [
        ("x-one", Some("1")),
        ("x-number", Some("7")),
        ("user-agent", Some("mine")),
        ("cookie", Some("a=1; b=2")),
        ("connection", Some("close")),
        ("icy-metadata", None),
        ("accept-encoding", Some("gzip")),
    ] {
        assert_eq!(asked.header(name), value, "{}", asked.head);
    }
    let many = asked
        .head
        .lines()
        .filter(|line| line.to_lowercase().starts_with("x-many:"));
    assert_eq!(many.count(), 2, "{}", asked.head);
}

/// RFC 7617. Credentials are sent only to their origin, and are never shown.
#[test]
fn credentials_are_sent_only_to_their_origin_and_never_shown() {
    let other = Web::of_file(pattern(10));
    let place = other.uri("y");
    let web =
        Web::new(
            move |asked, reply| match (asked.path.as_str(), asked.header("authorization")) {
                (_, None) => reply.send(
                    "401 Unauthorized",
                    "WWW-Authenticate: Basic realm=\"x\"\r\n",
                    b"",
                ),
                ("/away", _) => {
                    let more = format!("Location: {place}\r\n");
                    reply.send("302 Found", &more, b"")
                }
                ("/here", _) => reply.send("302 Found", "Location: /x\r\n", b""),
                _ => reply.send("200 OK", "Set-Cookie: s=hidden\r\n", b"ok"),
            },
        );
    let address = web.address;
    let token = gst::glib::base64_encode(b"me:hidden");
    let in_location = |path: &str| format!("http://me:hidden@{address}/{path}");
    let secret_key = "extra-headers=\"h,X-Api-Key=(string)hidden\"";
    for (location, more, is_let_in) in [
        (web.uri("x"), "user-id=me user-pw=hidden", true),
        (in_location("here"), secret_key, true),
        (in_location("away"), secret_key, true),
        (web.uri("x"), "", false),
    ] {
        let before = (web.asked().len(), other.asked().len());
        let rig = rig(&location, more);
        let messages = rig.bus.clone();
        if is_let_in {
            read_all(&rig);
            let asked = web.wait_asked(before.0);
            assert_eq!(
                asked.header("authorization").unwrap(),
                format!("Basic {token}")
            );
        } else {
            assert_eq!(kind(&rig.error()), gst::ResourceError::NotAuthorized);
        }
        if location.ends_with("away") {
            let asked = other.wait_asked(before.1);
            assert!(
                !asked.head.contains("hidden") && !asked.head.contains(&*token),
                "{}",
                asked.head
            );
        }
        let mut shown = format!("{:?}", rig.element.property::<gst::Structure>("stats"));
        while let Some(message) = messages.pop() {
            shown += &format!("{message:?}");
        }
        if let Some(event) = rig
            .element
            .static_pad("src")
            .unwrap()
            .sticky_event::<gst::event::CustomDownstreamSticky>(0)
        {
            shown += &format!("{event:?}");
        }
        assert!(
            !shown.contains("hidden") && !shown.contains(&*token),
            "{shown}"
        );
    }
}

#[test]
fn log_has_no_credentials() {
    let test = "log_has_no_credentials";
    let file = std::env::temp_dir().join(format!("threadbare-http-log-{}", std::process::id()));
    let name = file.to_str().unwrap().to_owned();
    let log = [("GST_DEBUG", "*:6"), ("GST_DEBUG_FILE", name.as_str())];
    if alone(test, &log).is_some() {
        let log = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let log = String::from_utf8_lossy(&log);
        assert!(log.contains("the next attempt is in"), "a retry is logged");
        let line = log.lines().find(|line| line.contains("hidden"));
        assert_eq!(line, None);
        return;
    }
    let body = pattern(1000);
    let web = Web::new(move |asked, reply| match asked.number {
        0 => reply.file_up_to(asked, "ETag: \"v\"\r\n", &body, 10),
        1 => reply.send("403 Forbidden", "", b""),
        _ => Ok(()),
    });
    let rig = rig_in("http://h/", "", gst::State::Null);
    // The location is not in a launch line, because GStreamer logs such lines.
    let location = format!("http://me:hidden@{}/x", web.address);
    rig.element.set_property("location", location);
    rig.drain.set_active(true).unwrap();
    rig.to(gst::State::Playing);
    read_all(&rig);
}

/// Returns a stream with metadata at this interval, for icydemux. SHOUTcast's protocol has no standard.
fn icy_stream(audio: &[u8], interval: usize, title: &str) -> Vec<u8> {
    let text = format!("StreamTitle='{title}';");
    let blocks = text.len().div_ceil(16);
    let mut stream = Vec::new();
    for piece in audio.chunks(interval) {
        stream.extend(piece);
        if piece.len() == interval {
            stream.push(blocks as u8);
            stream.extend(text.as_bytes());
            stream.extend(vec![0; blocks * 16 - text.len()]);
        }
    }
    stream
}

const STATION: &str = "HTTP/1.1 200 OK\r\nContent-Type: audio/x-test\r\nicy-metaint: 1000\r\nicy-name: A station\r\nicy-genre: Jazz\r\nicy-url: http://station.example/\r\n\r\n";

/// Returns the response of a station with SHOUTcast's first protocol.
fn old_station() -> String {
    STATION.replace("HTTP/1.1 200 OK", "ICY 200 OK")
}

#[test]
fn station_metadata_equals_the_stock_elements() {
    told_as_by_the_stock_element(STATION.to_owned());
}

#[test]
fn icy_station_metadata_equals_the_stock_elements() {
    told_as_by_the_stock_element(old_station());
}

fn told_as_by_the_stock_element(station: String) {
    let told: Vec<(gst::Caps, gst::TagList)> = ["souphttpsrc", "ts-httpsrc", "reqwesthttpsrc"]
        .map(|element| {
            let station = station.clone();
            let web = Web::new(move |_, reply| {
                reply.raw(&station)?;
                reply.raw(icy_stream(&pattern(10_000), 1000, "A song"))?;
                reply.until_closed()
            });
            let pipe = Pipe::parse(&format!(
                "{element} name=in location={} ! fakesink",
                web.uri("x")
            ));
            pipe.play();
            let message = pipe.expect(gst::MessageType::Tag);
            let gst::MessageView::Tag(tag) = message.view() else {
                unreachable!()
            };
            (pipe.pad("in", "src").current_caps().unwrap(), tag.tags())
        })
        .into();
    assert_eq!(told[0].0.structure(0).unwrap().name(), "application/x-icy");
    for (caps, tags) in &told[1..] {
        assert_eq!(caps, &told[0].0);
        assert_eq!(format!("{tags:?}"), format!("{:?}", told[0].1));
    }
}

/// The first answer shows that the station uses the old protocol, so later requests do not use HTTP.
#[test]
fn icy_station_is_reconnected_after_a_break() {
    let audio = pattern(300_000);
    let sent = audio.clone();
    let web = Web::new(move |asked, reply| {
        reply.raw(old_station())?;
        if asked.number < 2 {
            reply.raw(&sent[..100_000])?;
            reply.closes = true;
            return Ok(());
        }
        reply.raw(&sent)?;
        reply.until_closed()
    });
    let pipe = Pipe::parse(&format!(
        "ts-httpsrc name=in location={} iradio-mode=false context={} {SOON} ! fakesink name=out sync=false",
        web.uri("x"),
        context()
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let expected = [&audio[..100_000], &audio].concat();
    let mut got = Vec::new();
    while got.len() < expected.len() {
        got.extend(bytes(&next_buffer(&seen)));
    }
    assert!(got == expected);
    let element = pipe.get("in");
    // The first request was one of HTTP.
    assert_eq!(
        (stat(&element, "reconnected"), stat(&element, "requests")),
        (1, 3)
    );
}

#[test]
fn metadata_is_removed_downstream_even_after_a_break_within_it() {
    // The audio starts like a native FLAC file, from which icydemux detects the type.
    let mut audio = pattern(20_000);
    audio[..16].copy_from_slice(b"fLaC\0\0\0\x22\x10\0\x10\0\0\0\0\0");
    let sent = audio.clone();
    let web = Web::new(move |asked, reply| {
        reply.raw(STATION)?;
        let title = format!("Song {}", asked.number);
        let stream = icy_stream(&sent, 1000, &title);
        match asked.number {
            // The first break is in the middle of the third interval; the second break is within metadata.
            0 => reply.raw(&stream[..stream.len() / 5 + 7])?,
            1 => reply.raw(&stream[..1005])?,
            _ => {
                reply.raw(&stream)?;
                return reply.until_closed();
            }
        }
        reply.closes = true;
        Ok(())
    });
    let pipe = Pipe::parse(&format!(
        "ts-httpsrc name=in location={} context={} {SOON} ! icydemux ! fakesink name=out sync=false",
        web.uri("x"),
        context()
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let titles: Vec<String> = std::iter::repeat_with(|| pipe.expect(gst::MessageType::Tag))
        .filter_map(|message| {
            let gst::MessageView::Tag(tag) = message.view() else {
                return None;
            };
            let tags = tag.tags();
            tags.get::<gst::tags::Title>()
                .map(|title| title.get().to_owned())
        })
        .take_while(|title| title != "Song 2")
        .collect();
    assert!(titles.contains(&"Song 0".to_owned()), "{titles:?}");
    // The first connection delivers a fifth of the stream, the second one an interval, and the third one all of it. The audio has
    // no byte of metadata, and lacks no byte of its own.
    let stream = icy_stream(&audio, 1000, "Song 0");
    let first = stream.len() / 5 + 7;
    let per_interval = 1000 + 1 + 32;
    let first = first / per_interval * 1000 + (first % per_interval).min(1000);
    let mut expected = audio[..first].to_vec();
    expected.extend(&audio[..1000]);
    expected.extend(&audio);
    let mut got = Vec::new();
    while got.len() < expected.len() {
        got.extend(bytes(&next_buffer(&seen)));
    }
    assert!(
        got == expected,
        "{} of {}",
        got.iter()
            .zip(&expected)
            .take_while(|(a, b)| a == b)
            .count(),
        expected.len()
    );
    assert_eq!(stat(&pipe.get("in"), "reconnected"), 2);
}

#[test]
fn bodies_without_a_length_end_with_their_last_chunk_or_their_connection() {
    let body = pattern(100_000);
    let sent = body.clone();
    let web = Web::new(move |asked, reply| {
        if asked.path == "/closed" {
            reply.closes = true;
            reply.raw("HTTP/1.0 200 OK\r\n\r\n")?;
            return reply.raw(&sent);
        }
        reply.raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        for piece in sent.chunks(7777) {
            reply.raw(format!("{:x}\r\n", piece.len()))?;
            reply.raw(piece)?;
            reply.raw("\r\n")?;
        }
        reply.raw("0\r\n\r\n")
    });
    for path in ["closed", "chunked"] {
        let rig = rig(&web.uri(path), "");
        assert!(read_all(&rig) == body, "{path}");
        let pad = rig.element.static_pad("src").unwrap();
        assert_eq!(pad.query_duration::<gst::format::Bytes>(), None);
        assert!(!seek(&rig, gst::SeekFlags::FLUSH, 0, None));
    }
}

#[test]
fn headers_without_a_bound_are_refused() {
    let web = Web::new(|asked, reply| {
        let more = match asked.path.as_str() {
            "/many" => (0..150).map(|n| format!("X-{n}: y\r\n")).collect(),
            "/long" => format!("X: {}\r\n", "y".repeat(70_000)),
            _ => format!("X: {}\r\n", "y".repeat(2_000_000)),
        };
        reply.send("200 OK", &more, b"data")
    });
    for path in ["many", "long", "endless"] {
        let rig = rig(&web.uri(path), "retries=0");
        assert_eq!(kind(&rig.error()), gst::ResourceError::OpenRead, "{path}");
        assert_eq!(read_all(&rig), b"");
    }
}

#[test]
fn a_compressed_body_is_unpacked() {
    let body = pattern(50_000);
    let file = std::env::temp_dir().join(format!("threadbare-gz-{}", std::process::id()));
    std::fs::write(&file, &body).unwrap();
    let packed = Command::new("gzip")
        .args(["-c".as_ref(), file.as_os_str()])
        .output()
        .unwrap()
        .stdout;
    std::fs::remove_file(&file).unwrap();
    let web = Web::new(move |asked, reply| {
        assert_eq!(asked.header("accept-encoding"), Some("gzip"));
        reply.send(
            "200 OK",
            "Content-Encoding: gzip\r\nAccept-Ranges: bytes\r\n",
            &packed,
        )
    });
    let rig = rig(&web.uri("x"), "compress=true");
    assert!(read_all(&rig) == body);
    assert!(
        !seek(&rig, gst::SeekFlags::FLUSH, 10, None),
        "positions are not those of the server's"
    );
}

/// Returns a certificate for 127.0.0.1 from a test CA: the server's configuration, and files of the CA and of the server's
/// certificate with its key.
fn certificates(
    name: &str,
) -> (
    Arc<rustls::ServerConfig>,
    std::path::PathBuf,
    std::path::PathBuf,
) {
    let mut of_ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    of_ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = of_ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(of_ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let file =
        std::env::temp_dir().join(format!("threadbare-ca-{name}-{}.pem", std::process::id()));
    std::fs::write(&file, ca.pem()).unwrap();
    std::fs::write(file.with_extension("chain"), certificate.pem()).unwrap();
    let of_key = file.with_extension("key");
    std::fs::write(&of_key, key.serialize_pem()).unwrap();
    (Arc::new(config), file, of_key)
}

#[test]
fn https_accepts_only_trusted_servers() {
    let (config, ca, key) = certificates("https");
    let body = pattern(200_000);
    let sent = body.clone();
    let web = Web::tls(config, move |asked, reply| match asked.number {
        0 => reply.file_up_to(asked, "ETag: \"v\"\r\n", &sent, 100_000),
        _ => reply.file(asked, "ETag: \"v\"\r\n", &sent),
    });
    // The element takes the file in the same way as the stock element.
    let rig_with = |more: &str| rig(&web.uri("x"), more);
    assert!(read_all(&rig_with(&format!("ssl-ca-file={}", ca.display()))) == body);
    assert!(read_all(&rig_with("ssl-strict=false")) == body);
    let error = rig_with("").error();
    assert!(text(&error).contains("not trusted"), "{}", text(&error));
    let not_certificates = ca.with_extension("txt");
    std::fs::write(&not_certificates, "no certificate").unwrap();
    let element = make("ts-httpsrc");
    element.set_property("location", web.uri("x"));
    element.set_property("ssl-ca-file", not_certificates.to_str().unwrap());
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    assert!(element.set_state(gst::State::Paused).is_err());
    let error = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
    assert!(text(&error).contains("no certificates"), "{}", text(&error));
    element.set_state(gst::State::Null).unwrap();
    element.set_bus(None);
    for file in [ca.with_extension("chain"), key, ca, not_certificates] {
        std::fs::remove_file(file).unwrap();
    }
}

/// Sends until the connection accepts no more, and returns the number of bytes.
fn fill(reply: &mut Reply<'_>, body: &[u8]) -> std::io::Result<usize> {
    reply.tcp.set_nonblocking(true)?;
    let (mut sent, mut full) = (0, 0);
    // The kernel's windows grow for a while; then they are closed.
    while full < 100 && sent < body.len() {
        let mut tcp = reply.tcp;
        match tcp.write(&body[sent..]) {
            Ok(count) => (sent, full) = (sent + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
    reply.tcp.set_nonblocking(false)?;
    Ok(sent)
}

#[test]
fn a_pause_stops_reading_from_the_server() {
    // More than the sockets' buffers hold (tcp(7): 6 MiB here).
    let body = Arc::new(pattern(64 << 20));
    for line in [
        "ts-httpsrc name=in is-live=true location={} context={c} ! fakesink name=out sync=false",
        // The source is not live, so the sink blocks it.
        "ts-httpsrc name=in location={} context={c} ! ts-appsink name=out sync=false max-buffers=1",
        "reqwesthttpsrc name=in location={} ! fakesink name=out sync=false",
    ] {
        let sent = body.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        let web = Web::new(move |_, reply| {
            reply.raw(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                sent.len()
            ))?;
            let taken = fill(reply, &sent)?;
            tell.lock().unwrap().send(taken).unwrap();
            reply.raw(&sent[taken..])
        });
        let pipe = Pipe::parse(&line.replace("{}", &web.uri("x")).replace("{c}", &context()));
        let is_live = line.contains("is-live");
        if is_live {
            // A live source connects only in PLAYING, so the pipeline must play.
            let blocked = gate(&pipe.pad("out", "sink"));
            pipe.play();
            blocked.wait_held();
            let pausing = pipe.0.clone();
            let paused = std::thread::spawn(move || pausing.set_state(gst::State::Paused));
            blocked.open();
            paused.join().unwrap().unwrap();
        } else {
            pipe.0.set_state(gst::State::Paused).unwrap();
        }
        let taken = told.recv_timeout(DEADLINE).expect("the connection is full");
        assert!(
            taken < body.len(),
            "{line}: the server could send all of it"
        );
        let queued = stat(&pipe.get("in"), "bytes-queued");
        assert!(queued < 1 << 20, "{line}: {queued} bytes in between");
        let before = stat(&pipe.get("in"), "bytes-received");
        assert!(before < body.len() as u64);
        if !line.contains("appsink") {
            pipe.play();
            pipe.expect(gst::MessageType::Eos);
            assert_eq!(stat(&pipe.get("in"), "bytes-received"), body.len() as u64);
        }
    }
}

#[test]
fn a_hundred_sources_have_the_threads_of_one() {
    if alone("a_hundred_sources_have_the_threads_of_one", &[]).is_some() {
        return;
    }
    init();
    let address = many_stations();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    for element in ["ts-httpsrc", "reqwesthttpsrc"] {
        let of = |count: usize| {
            let rigs: Vec<Rig> = (0..count)
                .map(|_| {
                    let line =
                        format!("{element} location=http://{address}/ context=all context-wait=20");
                    Rig::without_stream(&line, gst::State::Playing)
                })
                .collect();
            for rig in &rigs {
                read_some(rig, 1000);
            }
            let count = threads();
            drop(rigs);
            count
        };
        let of_one = of(1);
        assert_eq!(of(100), of_one, "{element}");
    }
}

/// Starts a server that handles any number of connections on one thread. Each connection gets a head and 10,000 bytes, and stays
/// open.
fn many_stations() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = [0; 2000];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(STATION.as_bytes());
            let _ = stream.write_all(&pattern(10_000));
            open.push(stream);
        }
    });
    address
}

#[test]
fn reqwesthttpsrc_has_its_own_thread_by_default() {
    // Stock sinks hold the thread that pushes while they are paused.
    let web = Web::of_file(pattern(10_000));
    let pipes: Vec<Pipe> = (0..3)
        .map(|_| {
            let pipe = Pipe::parse(&format!(
                "reqwesthttpsrc location={} ! fakesink",
                web.uri("x")
            ));
            pipe.to(gst::State::Paused);
            pipe
        })
        .collect();
    for pipe in &pipes {
        pipe.to(gst::State::Playing);
        pipe.expect(gst::MessageType::Eos);
    }
}

#[test]
fn states_change_at_any_time() {
    let body = pattern(1_000_000);
    let web = Web::new(move |asked, reply| match asked.path.as_str() {
        "/silent" => {
            reply.stall();
            Ok(())
        }
        "/stalled" => {
            reply.file_up_to(asked, "", &body, 5000)?;
            reply.stall();
            Ok(())
        }
        _ => reply.file(asked, "", &body),
    });
    // The listener never accepts: connections are made, but no request is read.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = format!("http://{}/x", deaf.local_addr().unwrap());
    for element in ["ts-httpsrc", "reqwesthttpsrc"] {
        for (uri, has_data) in [
            (web.uri("x"), true),
            (web.uri("stalled"), true),
            (web.uri("silent"), false),
            (deaf.clone(), false),
        ] {
            let line = format!("{element} location={uri} {SOON} max-bytes=1000 blocksize=500");
            let rig = Rig::without_stream(&line, gst::State::Null);
            goes_up_and_down(&rig, || {
                if has_data {
                    read_some(&rig, 1000);
                }
            });
            for state in [
                gst::State::Playing,
                gst::State::Ready,
                gst::State::Paused,
                gst::State::Null,
            ] {
                rig.drain.set_active(state > gst::State::Ready).unwrap();
                rig.to(state);
            }
        }
    }
    drop(web);
}

#[test]
fn connections_are_closed_with_the_element_and_shared_between_elements() {
    let body = pattern(1000);
    let web = Web::new(move |asked, reply| match asked.path.as_str() {
        "/stalled" => {
            reply.file_up_to(asked, "", &body, 10)?;
            reply.until_closed()
        }
        _ => reply.file(asked, "", &body),
    });
    let first = rig(&web.uri("stalled"), "");
    read_some(&first, 10);
    drop(first);
    web.wait_closed();
    // The requests are sequential, on the same connection.
    let second = rig(&web.uri("x"), "");
    read_all(&second);
    let third = rig(&web.uri("y"), "");
    read_all(&third);
    let asked = web.asked();
    assert_eq!(asked[1].connection, asked[2].connection);
    let fourth = rig(&web.uri("z"), "keep-alive=false");
    read_all(&fourth);
    assert_ne!(web.wait_asked(3).connection, asked[2].connection);
}

#[test]
fn elements_of_a_pipeline_share_a_client() {
    let web = Web::of_file(pattern(1000));
    let pipe = Pipe::parse(&format!(
        "ts-httpsrc location={0} ! fakesink async=false reqwesthttpsrc location={0} ! fakesink async=false",
        web.uri("x")
    ));
    pipe.play();
    let message = pipe.expect(gst::MessageType::HaveContext);
    let gst::MessageView::HaveContext(have) = message.view() else {
        unreachable!()
    };
    assert_eq!(have.context().context_type(), "gst.reqwest.client");
    assert!(have.context().is_persistent());
    pipe.expect(gst::MessageType::Eos);
    // The other element requested the client, and got it from the pipeline.
    assert!(
        pipe.bus()
            .pop_filtered(&[gst::MessageType::HaveContext])
            .is_none()
    );
    // If the application sets a context, the element does not ask for one.
    let rig = Rig::without_stream(
        &format!("ts-httpsrc location={}", web.uri("x")),
        gst::State::Null,
    );
    rig.element.set_context(&have.context());
    rig.drain.set_active(true).unwrap();
    rig.to(gst::State::Playing);
    read_all(&rig);
    assert!(
        rig.bus
            .pop_filtered(&[gst::MessageType::NeedContext])
            .is_none()
    );
}

#[test]
fn cookies_are_shared_by_the_elements_of_a_pipeline() {
    let web = Web::new(|asked, reply| {
        let cookie = "Set-Cookie: fruit=plum\r\n";
        let set = if asked.number == 0 { cookie } else { "" };
        reply.send("200 OK", set, b"hello")
    });
    let first = rig(&web.uri("x"), "");
    read_all(&first);
    assert_eq!(web.wait_asked(0).header("cookie"), None);
    let context = first.element.context("gst.reqwest.client").unwrap();
    let by_name = web.uri("y").replace("127.0.0.1", "localhost");
    for (number, uri, cookies, is_same, expected) in [
        (1, web.uri("y"), &[][..], true, Some("fruit=plum")),
        (
            2,
            web.uri("y"),
            &["mine=1"][..],
            true,
            Some("mine=1; fruit=plum"),
        ),
        (3, by_name, &[][..], true, None),
        // A request of an element in another pipeline.
        (4, web.uri("y"), &[][..], false, None),
    ] {
        let rig = rig_in(&uri, "", gst::State::Null);
        if is_same {
            rig.element.set_context(&context);
        }
        let cookies: Vec<String> = cookies.iter().copied().map(String::from).collect();
        rig.element.set_property("cookies", cookies);
        rig.drain.set_active(true).unwrap();
        rig.to(gst::State::Playing);
        read_all(&rig);
        assert_eq!(web.wait_asked(number).header("cookie"), expected);
    }
}

#[test]
fn a_seek_before_the_start_requests_only_its_range() {
    let body = pattern(10_000);
    let web = Web::of_file(body.clone());
    let rig = rig_in(&web.uri("x"), "", gst::State::Ready);
    assert!(seek(&rig, gst::SeekFlags::FLUSH, 123, Some(4000)));
    rig.to(gst::State::Playing);
    let segment = rig.event(gst::EventType::Segment);
    let gst::EventView::Segment(view) = segment.view() else {
        unreachable!()
    };
    assert_eq!(view.segment().start().value(), 123);
    assert!(read_from(&rig, 123) == body[123..4000]);
    let asked = web.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].range(), Some((123, Some(3999))));
    assert_eq!(asked[0].header("connection"), Some("keep-alive"));
    // The seek does not apply to the next start.
    rig.to(gst::State::Ready);
    rig.drain.set_active(false).unwrap();
    rig.drain.set_active(true).unwrap();
    rig.to(gst::State::Playing);
    assert_eq!(web.wait_asked(1).range(), None);
}

/// In addition to the wrong status, the last byte that the server announces is too large by one.
#[test]
fn a_partial_reply_with_status_200_is_not_handled_as_the_whole_resource() {
    let body = pattern(10_000);
    let whole = body.clone();
    let web = Web::new(move |asked, reply| match asked.range() {
        Some((first, _)) => {
            let range = format!("Content-Range: bytes {first}-10000/10000\r\n");
            reply.send("200 OK", &range, &whole[first..])
        }
        None => reply.send("200 OK", "Accept-Ranges: bytes\r\n", &whole),
    });
    let rig = rig(&web.uri("x"), "");
    assert!(read_all(&rig) == body);
    assert!(seek(&rig, gst::SeekFlags::FLUSH, 123, None));
    rig.event(gst::EventType::Segment);
    assert!(read_from(&rig, 123) == body[123..]);
}

#[test]
fn the_proxy_property_is_read_back_as_a_url() {
    init();
    for factory in ["ts-httpsrc", "reqwesthttpsrc"] {
        let element = make(factory);
        let read = || element.property::<Option<String>>("proxy");
        assert_eq!(read().as_deref(), Some(""));
        for (given, expected) in [
            (Some("somewhere:3128"), "http://somewhere:3128/"),
            (Some("https://somewhere"), "https://somewhere/"),
            (Some("http://somewhere/"), "http://somewhere/"),
            (Some(""), ""),
            (None, ""),
        ] {
            element.set_property("proxy", given);
            assert_eq!(read().as_deref(), Some(expected), "{given:?}");
        }
    }
}

/// A request to a proxy has the whole URL in its first line (RFC 9112, section 3.2.2).
#[test]
fn proxy_is_set_by_property() {
    let proxy = Web::of_file(pattern(1000));
    let address = proxy.address;
    for (given, number) in [
        (format!("proxy={address} proxy-id=me proxy-pw=hidden"), 0),
        (format!("proxy=http://me:hidden@{address}"), 1),
    ] {
        let rig = rig("http://nowhere.invalid/x", &given);
        assert!(read_all(&rig) == pattern(1000));
        let asked = proxy.wait_asked(number);
        assert_eq!(asked.path, "http://nowhere.invalid/x");
        let token = gst::glib::base64_encode(b"me:hidden");
        assert_eq!(
            asked.header("proxy-authorization").unwrap(),
            format!("Basic {token}")
        );
    }
}

#[test]
fn proxy_is_set_by_the_environment() {
    if std::env::var_os("http_proxy").is_none_or(|proxy| proxy.is_empty()) {
        let proxy = Web::of_file(pattern(1000));
        let address = format!("http://{}", proxy.address);
        alone(
            "proxy_is_set_by_the_environment",
            &[("http_proxy", &address)],
        );
        assert_eq!(proxy.wait_asked(0).path, "http://nowhere.invalid/x");
        return;
    }
    assert!(read_all(&rig("http://nowhere.invalid/x", "")) == pattern(1000));
}

#[test]
fn buffers_have_the_configured_sizes_and_times() {
    let body = pattern(100_000);
    let web = Web::of_file(body.clone());
    let limited = rig(
        &web.uri("x"),
        "blocksize=1000 num-buffers=7 do-timestamp=true is-live=true",
    );
    limited
        .element
        .set_clock(Some(&gst::SystemClock::obtain()))
        .unwrap();
    assert!(read_all(&limited) == body[..7000]);
    assert_eq!(stat(&limited.element, "buffers"), 7);
    let timed = rig(&web.uri("x"), "do-timestamp=true");
    assert!(timed.buffer().flags().contains(gst::BufferFlags::DISCONT));
    let pipe = Pipe::parse(&format!(
        "ts-httpsrc is-live=true do-timestamp=true location={} ! fakesink name=out sync=false",
        web.uri("x")
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    assert!(next_buffer(&seen).pts().is_some());
}

/// A file of 4 s plays, with seeks to these times.
fn assert_decodes(element: &str, file: Vec<u8>, targets: &[gst::ClockTime]) {
    let web = Web::of_file(file);
    let pipe = Pipe::parse(&format!(
        "{element} location={} ! decodebin ! audioconvert ! audio/x-raw,format=S16LE ! fakesink name=out sync=false",
        web.uri("x")
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.to(gst::State::Paused);
    assert!(pipe.0.query_duration::<gst::ClockTime>().is_some());
    for target in targets {
        let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
        while seen.try_recv().is_ok() {}
        pipe.0.seek_simple(flags, *target).unwrap();
        pipe.to(gst::State::Paused);
        // A demultiplexer may flush more than once; the sink has the data after the last flush.
        let mut at = None;
        for item in seen.try_iter() {
            match item {
                Seen::Event(event) if event.type_() == gst::EventType::FlushStop => at = None,
                Seen::Event(_) => {}
                Seen::Buffer(buffer) => at = at.or(buffer.pts()),
            }
        }
        let at = at.expect("a buffer");
        // The times are equal within the length of a buffer.
        assert!(
            at.absdiff(*target) < gst::ClockTime::from_mseconds(300),
            "{at} for {target}"
        );
        for state in [gst::State::Playing, gst::State::Paused] {
            pipe.to(state);
        }
    }
    pipe.to(gst::State::Playing);
    pipe.expect(gst::MessageType::Eos);
    let has_ranges = web.asked().iter().any(|asked| asked.range().is_some());
    assert!(has_ranges || targets.is_empty());
}

#[test]
fn files_play_and_are_sought_in() {
    init();
    let samples: Vec<i16> = (0..48_000 * 4)
        .map(|n: i32| (n % 97) as i16 * 100)
        .collect();
    let wav = files::wav(48_000, 1, &samples);
    let ogg = files::made_by(
        "audiotestsrc num-buffers=400 samplesperbuffer=480 ! audio/x-raw,rate=48000,channels=1 ! vorbisenc ! oggmux",
    );
    let targets = [3000, 1000, 0, 2000].map(gst::ClockTime::from_mseconds);
    // The stock element comes first, to check the test itself. oggdemux determines the length by a seek on its own thread.
    for element in ["souphttpsrc", "reqwesthttpsrc", "ts-httpsrc"] {
        assert_decodes(element, wav.clone(), &targets);
        assert_decodes(element, ogg.clone(), &[]);
    }
}

#[test]
fn http_uris_are_still_handled_by_the_stock_element() {
    init();
    let make = |uri| gst::Element::make_from_uri(gst::URIType::Src, uri, None).unwrap();
    let element = make("http://h/x");
    assert_eq!(element.factory().unwrap().name(), "souphttpsrc");
    let own = gst::ElementFactory::find("reqwesthttpsrc").unwrap();
    assert_eq!(own.rank(), gst::Rank::MARGINAL);
    assert_eq!(
        gst::ElementFactory::find("ts-httpsrc").unwrap().rank(),
        gst::Rank::NONE
    );
}

#[test]
fn stopped_elements_leave_nothing_behind() {
    if alone("stopped_elements_leave_nothing_behind", &[]).is_some() {
        return;
    }
    init();
    let factories = gst::TracerFactory::factories();
    let factory = factories
        .into_iter()
        .find(|factory| factory.name() == "leaks")
        .unwrap();
    let factory = factory
        .load()
        .unwrap()
        .downcast::<gst::TracerFactory>()
        .unwrap();
    let tracer = gst::glib::Object::with_type(factory.tracer_type());
    let tracer = tracer.downcast::<gst::Tracer>().unwrap();
    let body = pattern(100_000);
    let web = Web::new(move |asked, reply| match asked.path.as_str() {
        "/station" => {
            reply.raw(STATION)?;
            reply.until_closed()
        }
        _ if asked.range().is_none() => reply.file_up_to(asked, "ETag: \"v\"\r\n", &body, 60_000),
        _ => reply.file(asked, "ETag: \"v\"\r\n", &body),
    });
    for round in 0..12 {
        let element = ["ts-httpsrc", "reqwesthttpsrc"][round % 2];
        let rig = Rig::without_stream(
            &format!(
                "{element} location={} {SOON} max-bytes=5000",
                web.uri(if round % 4 < 2 { "x" } else { "station" })
            ),
            gst::State::Playing,
        );
        if round % 4 < 2 {
            read_some(&rig, 70_000);
            seek(&rig, gst::SeekFlags::FLUSH, 10, None);
        }
        rig.to(gst::State::Null);
    }
    let live = || {
        let live = tracer.emit_by_name::<gst::Structure>("get-live-objects", &[]);
        let list = live.get::<gst::List>("live-objects-list").unwrap();
        list.iter()
            .map(|object| format!("{object:?}"))
            .collect::<Vec<_>>()
    };
    // A client's thread drops the data that it holds.
    eventually("all is given back", || live().is_empty());
    assert!(threadbare_runtime::contexts().is_empty());
}

#[test]
fn properties_match_existing_pipelines() {
    let in_use: &[Row] = &[
        ("location", "gchararray", "NULL", None, true),
        ("is-live", "gboolean", "false", None, true),
        ("user-id", "gchararray", "NULL", None, true),
        ("user-pw", "gchararray", "NULL", None, true),
        ("timeout", "guint", "15", Some(("0", "3600")), true),
        ("compress", "gboolean", "false", None, true),
        ("iradio-mode", "gboolean", "true", None, true),
        ("keep-alive", "gboolean", "true", None, true),
        ("proxy-id", "gchararray", "NULL", None, true),
        ("proxy-pw", "gchararray", "NULL", None, true),
        ("ssl-strict", "gboolean", "true", None, true),
        ("ssl-ca-file", "gchararray", "NULL", None, true),
        ("retries", "gint", "3", Some(("-1", "2147483647")), true),
        (
            "num-buffers",
            "gint",
            "-1",
            Some(("-1", "2147483647")),
            true,
        ),
        ("do-timestamp", "gboolean", "false", None, true),
    ];
    assert_stock_has("souphttpsrc", in_use);
    let own: &[Row] = &[
        (
            "user-agent",
            "gchararray",
            "GStreamer Threadbare",
            None,
            true,
        ),
        ("proxy", "gchararray", "", None, true),
        ("blocksize", "guint", "0", Some(("0", "4294967295")), true),
        (
            "max-bytes",
            "guint",
            "131072",
            Some(("1", "4294967295")),
            true,
        ),
        (
            "minimum-rate",
            "guint",
            "0",
            Some(("0", "4294967295")),
            true,
        ),
        (
            "minimum-rate-time",
            "guint64",
            "10000000000",
            Some(("100000000", "3600000000000")),
            true,
        ),
        (
            "retry-delay",
            "guint64",
            "500000000",
            Some(("1000000", "3600000000000")),
            true,
        ),
        (
            "retry-delay-max",
            "guint64",
            "10000000000",
            Some(("1000000", "3600000000000")),
            true,
        ),
    ];
    for element in ["reqwesthttpsrc", "ts-httpsrc"] {
        for row in in_use.iter().chain(own).chain(CONTEXT_ROWS) {
            assert_row(element, row);
        }
        let element = make(element);
        for (name, type_) in [("extra-headers", "GstStructure"), ("cookies", "GStrv")] {
            assert_eq!(
                element.find_property(name).unwrap().value_type().name(),
                type_
            );
        }
    }
}
