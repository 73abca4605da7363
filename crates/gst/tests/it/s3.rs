//! Objects in S3: `awss3sink`, `ts-s3sink`, `awss3src`, `ts-s3src`, and `threadbare-s3` below them. The server is moto. The
//! references are "Amazon S3 API Reference", the stock elements, and the elements' page (docs/elements/s3.md).

use crate::common::*;
use crate::fixtures::store::*;
use gst::prelude::*;

const MIB: usize = 1 << 20;

/// Returns bytes that differ for each seed.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

fn access(uri: &str) -> String {
    format!(
        "region=us-east-1 bucket={BUCKET} endpoint-uri={uri} force-path-style=true access-key=access secret-access-key={SECRET}"
    )
}

fn sink(factory: &str, uri: &str, key: &str, more: &str) -> String {
    format!("{factory} name=out key={key} {} {more}", access(uri))
}

fn rig(line: &str) -> Rig {
    Rig::new(&format!("{line} async=false"), gst::State::Playing)
}

fn push(rig: &Rig, bytes: &[u8], chunk: usize) {
    for piece in bytes.chunks(chunk) {
        rig.push(gst::Buffer::from_slice(piece.to_vec())).unwrap();
    }
}

/// Ends the stream. Fails on an error.
fn end(rig: &Rig) {
    let feed = rig.feed.clone();
    within("the end", move || feed.push_event(gst::event::Eos::new()));
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &kinds)
        .expect("no end");
    assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
}

#[test]
fn a_small_object_is_one_request() {
    for (factory, length) in [("awss3sink", 100_000), ("ts-s3sink", 1), ("awss3sink", 0)] {
        let proxy = Proxy::new(|_| Fate::Pass);
        let key = format!("small-{factory}-{length}");
        let rig = rig(&sink(
            factory,
            &proxy.uri(),
            &key,
            "content-type=audio/wav check=false",
        ));
        let bytes = noise(length, 1);
        push(&rig, &bytes, 4096);
        end(&rig);
        assert_eq!(object(&key).unwrap(), bytes);
        let methods: Vec<String> = proxy.passed().iter().map(|it| it.method.clone()).collect();
        assert_eq!(methods, ["PUT"], "{factory}");
        assert!(
            proxy.passed()[0]
                .head
                .to_ascii_lowercase()
                .contains("content-type: audio/wav")
        );
    }
}

#[test]
fn large_object_is_uploaded_in_parts() {
    for more in ["", "check=false part-size=6291456"] {
        let proxy = Proxy::new(|_| Fate::Pass);
        let key = format!("large/{}", more.len());
        let rig = rig(&sink("awss3sink", &proxy.uri(), &key, more));
        let bytes = noise(12 * MIB + 3, 2);
        push(&rig, &bytes, 100_000);
        end(&rig);
        assert!(object(&key).unwrap() == bytes, "the same bytes");
        assert_eq!(open_uploads("large/"), 0);
        let size = if more.is_empty() { 5 * MIB } else { 6 * MIB };
        let mut parts: Vec<usize> = proxy
            .passed()
            .iter()
            .filter(|it| it.is_part())
            .map(|it| it.bytes)
            .collect();
        parts.sort_unstable();
        assert_eq!(parts, [12 * MIB + 3 - 2 * size, size, size]);
        assert_eq!(
            etag(&key)
                .unwrap()
                .trim_matches('"')
                .split_once('-')
                .unwrap()
                .1,
            "3"
        );
    }
}

fn message(rig: &Rig, name: &str) -> gst::Structure {
    loop {
        let kinds = [gst::MessageType::Element, gst::MessageType::Error];
        let message = rig.bus.timed_pop_filtered(DEADLINE_GST, &kinds);
        let message = message.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(message.type_(), gst::MessageType::Element, "{message:?}");
        if let Some(structure) = message.structure().filter(|it| it.name() == name) {
            return structure.to_owned();
        }
    }
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

/// Asserts that the element fails before PAUSED; returns the error.
fn refused(line: &str) -> (gst::ResourceError, String) {
    init();
    let element = gst::parse::launch(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    let starting = element.clone();
    let started = within("starting", move || starting.set_state(gst::State::Paused));
    assert!(started.is_err(), "{line}: {started:?}");
    let error = bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Error])
        .expect("an error");
    element.set_state(gst::State::Null).unwrap();
    element.set_bus(None);
    (kind(&error), text(&error))
}

#[test]
fn errors_are_reported_before_the_first_data() {
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let uri = SERVER.uri();
    let with = |more: &str| format!("ts-s3sink {} key=a {more}", access(&uri));
    let long = "x".repeat(1025);
    for (line, expected) in [
        (
            "ts-s3sink".to_owned(),
            "bucket is not set; expected uri=s3://region/bucket/key",
        ),
        ("ts-s3sink bucket=bucket".to_owned(), "key is not set"),
        (
            "awss3sink uri=http://a/b/c".to_owned(),
            "uri=http://a/b/c: the scheme http is not allowed",
        ),
        (
            "awss3sink uri=s3://eu-west-1/bucket/k?version=1".to_owned(),
            "a version of an object cannot be written",
        ),
        (with("key=../a"), "key=../a: .. leads out"),
        (
            with("key=a/{what}"),
            "key=a/{what}: the placeholder {what} is not known",
        ),
        (with(&format!("key={long}")), "1025 bytes"),
        (
            with("max-size-bytes=1000"),
            "all objects would have the same key",
        ),
        (with("region=EU"), "region=EU: expected a region"),
        (with("bucket=b"), "bucket=b: expected the name of a bucket"),
        (
            with("endpoint-uri=ftp://h"),
            "endpoint-uri=ftp://h: the scheme ftp",
        ),
        (
            with("content-type=ü"),
            "expected one line of printable ASCII",
        ),
        (
            with("ssl-ca-file=/dev/null"),
            "ssl-ca-file=/dev/null: the file has no certificates",
        ),
        (with("spool=/dev/null/x"), "spool=/dev/null/x: "),
        (
            with("secret-access-key=\"\""),
            "secret-access-key is not set",
        ),
        (with("bucket=nobody-has-it"), "404 NoSuchBucket"),
        (with(&format!("endpoint-uri={nobody}")), "cannot connect"),
        (
            with("endpoint-uri=http://no-such-host.invalid"),
            "cannot connect",
        ),
    ] {
        let (_, said) = refused(&line);
        assert!(said.contains(expected), "{line}: {said}");
        assert!(!said.contains(SECRET));
    }
}

#[test]
fn refused_credentials_are_reported_at_once() {
    let server = Server::start(&["--secured"]);
    let uri = server.uri();
    let line = |element: &str, key: &str, secret: &str| {
        format!(
            "{element} region=us-east-1 bucket={BUCKET} key=a endpoint-uri={uri} force-path-style=true access-key={key} secret-access-key={secret}"
        )
    };
    let (key, secret) = (server.key("key"), server.key("secret"));
    let (stranger, of_stranger) = (server.key("stranger_key"), server.key("stranger_secret"));
    for (key, secret, expected) in [
        ("AKIANOBODY", "no-secret", "InvalidAccessKeyId"),
        (&key, "wrong-secret", "SignatureDoesNotMatch"),
        (&stranger, &of_stranger, "AccessDenied"),
    ] {
        let (kind, said) = refused(&line("awss3sink", key, secret));
        assert!(said.contains(expected), "{said}");
        assert_eq!(kind, gst::ResourceError::NotAuthorized);
        assert!(!said.contains(secret) && !said.contains(key), "{said}");
        let source = Rig::without_stream(&line("awss3src", key, secret), gst::State::Playing);
        let said = text(&source.error());
        assert!(said.contains(expected), "{said}");
    }
    let rig = rig(&line("awss3sink name=out", &key, &secret));
    push(&rig, b"bytes", 5);
    end(&rig);
    let source = Rig::without_stream(&line("ts-s3src", &key, &secret), gst::State::Playing);
    assert_eq!(read_from(&source, 0), b"bytes");
}

#[test]
fn no_secret_is_in_a_log_or_a_dump() {
    init();
    let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let log = said.clone();
    gst::log::remove_default_log_function();
    let id = gst::log::add_log_function(move |_, _, _, _, _, _, message| {
        if let Some(message) = message.get() {
            let mut log = log.lock().unwrap();
            log.push_str(&message);
            log.push('\n');
        }
    });
    gst::log::set_default_threshold(gst::DebugLevel::Trace);
    let proxy = Proxy::new(|passing| {
        if passing.is_part() {
            Fate::Pass
        } else {
            SLOW_DOWN
        }
    });
    // GStreamer itself logs the line that its parser reads.
    let line = format!(
        "fakesrc num-buffers=3 sizetype=fixed sizemax=1000 ! ts-s3sink name=out key=logged region=us-east-1 bucket={BUCKET} endpoint-uri={} force-path-style=true check=false retry-attempts=2",
        proxy.uri()
    );
    let pipe = Pipe::parse(&line);
    let out = pipe.get("out");
    out.set_property("access-key", "ACCESSofTheTests");
    out.set_property("secret-access-key", SECRET);
    out.set_property("session-token", "TOKENofTheTests");
    pipe.play();
    pipe.message(&[gst::MessageType::Error]);
    let dump = pipe.0.debug_to_dot_data(gst::DebugGraphDetails::all());
    let read: Vec<Option<String>> = ["secret-access-key", "session-token", "access-key"]
        .map(|name| out.property(name))
        .into();
    assert!(read.iter().all(|value| value.as_deref() == Some("***")));
    drop(pipe);
    gst::log::set_default_threshold(gst::DebugLevel::None);
    gst::log::remove_log_function(id);
    let said = said.lock().unwrap();
    assert!(said.contains("ts-s3sink"), "the log has been heard");
    for secret in [SECRET, "TOKENofTheTests", "ACCESSofTheTests"] {
        let line = said.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
        assert!(!said.contains(secret) && !dump.contains(secret));
    }
    let sent = proxy.passed()[0].head.to_ascii_lowercase();
    assert!(
        sent.contains("x-amz-security-token: tokenofthetests"),
        "{sent}"
    );
}

#[test]
fn requests_that_fail_are_sent_again() {
    // The first requests of each kind fail, each in another way.
    let mut counts = std::collections::HashMap::new();
    let proxy = Proxy::new(move |passing| {
        let kind = (passing.method.clone(), passing.is_part());
        let count = counts.entry(kind.clone()).or_insert(0);
        *count += 1;
        match (kind.0.as_str(), kind.1, *count) {
            ("PUT", true, 1) => Fate::Drop,
            ("PUT", true, 2) => SLOW_DOWN,
            ("PUT", true, 3) => Fate::Lose,
            ("POST", _, 1) => SLOW_DOWN,
            // The upload is complete, but the answer is lost.
            ("POST", _, 3) => Fate::Lose,
            _ => Fate::Pass,
        }
    });
    let rig = rig(&sink("awss3sink", &proxy.uri(), "again", "check=false"));
    let bytes = noise(11 * MIB, 3);
    push(&rig, &bytes, 64 << 10);
    end(&rig);
    assert!(object("again").unwrap() == bytes);
    assert_eq!(open_uploads("again"), 0);
    let stats: gst::Structure = rig.element.property("stats");
    assert!(stats.get::<u64>("retries").unwrap() >= 5, "{stats}");
    assert_eq!(
        stats.get::<u64>("bytes-stored").unwrap(),
        bytes.len() as u64
    );
}

const DENIED: Fate = Fate::Answer(
    "403 Forbidden",
    "<Error><Code>AccessDenied</Code><Message>No.</Message></Error>",
);

#[test]
fn on_error_decides_the_end_after_a_failure() {
    for (policy, open, has_object) in [
        ("abort", 0, false),
        ("complete", 0, true),
        ("do-nothing", 1, false),
    ] {
        let proxy = Proxy::new(|passing| {
            if passing.path.contains("partNumber=3") {
                DENIED
            } else {
                Fate::Pass
            }
        });
        let key = format!("fails-{policy}");
        let rig = rig(&sink(
            "awss3sink",
            &proxy.uri(),
            &key,
            &format!("on-error={policy}"),
        ));
        let bytes = noise(16 * MIB, 4);
        let feed = rig.feed.clone();
        let sent = bytes.clone();
        let pushed = std::thread::spawn(move || {
            let pieces = sent.chunks(1 << 20);
            for piece in pieces {
                let _ = feed.push(gst::Buffer::from_slice(piece.to_vec()));
            }
            feed.push_event(gst::event::Eos::new());
        });
        let error = rig.error();
        assert!(text(&error).contains("403 AccessDenied: No."), "{error:?}");
        assert_eq!(kind(&error), gst::ResourceError::NotAuthorized);
        pushed.join().unwrap();
        rig.to(gst::State::Null);
        eventually("the upload has its end", || open_uploads(&key) == open);
        if has_object {
            assert!(object(&key).unwrap() == bytes[..10 * MIB], "what is whole")
        } else {
            assert_eq!(object(&key).unwrap_err().code(), Some("NoSuchKey"))
        }
    }
}

#[test]
fn on_error_decides_the_end_after_an_early_stop() {
    for (policy, open, has_object) in [
        ("abort", 0, false),
        ("complete", 0, true),
        ("do-nothing", 1, false),
    ] {
        let key = format!("stopped-{policy}");
        let rig = rig(&sink(
            "ts-s3sink",
            &SERVER.uri(),
            &key,
            &format!("on-error={policy}"),
        ));
        let bytes = noise(7 * MIB, 5);
        push(&rig, &bytes, 1 << 20);
        eventually("the upload has begun", || open_uploads(&key) == 1);
        rig.to(gst::State::Null);
        eventually("the upload has its end", || open_uploads(&key) == open);
        assert_eq!(object(&key).is_ok(), has_object, "{policy}");
        if has_object {
            assert!(object(&key).unwrap() == bytes, "all received data");
        }
        // The element can be started again.
        rig.to(gst::State::Playing);
        rig.open_stream();
        push(&rig, b"again", 5);
        end(&rig);
        assert_eq!(object(&key).unwrap(), b"again");
    }
}

#[test]
fn flush_restarts_the_object() {
    let rig = rig(&sink("awss3sink", &SERVER.uri(), "flushed", ""));
    push(&rig, &noise(6 * MIB, 6), 1 << 20);
    eventually("the upload has begun", || open_uploads("flushed") == 1);
    assert!(rig.feed.push_event(gst::event::FlushStart::new()));
    assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
    rig.open_segment();
    push(&rig, b"anew", 2);
    end(&rig);
    assert_eq!(object("flushed").unwrap(), b"anew");
    eventually("nothing is left of the first one", || {
        open_uploads("flushed") == 0
    });
}

#[test]
fn a_pause_or_another_source_does_not_change_the_object() {
    let rig = rig(&sink("ts-s3sink", &SERVER.uri(), "paused", ""));
    push(&rig, b"one ", 4);
    rig.element.set_state(gst::State::Paused).unwrap();
    let pushed = rig.push_aside(gst::Buffer::from_slice(b"two ".to_vec()));
    rig.to(gst::State::Playing);
    pushed.recv_timeout(DEADLINE).expect("it goes on").unwrap();
    // Another branch replaces this one while the source plays.
    let sink = rig.element.static_pad("sink").unwrap();
    rig.feed.unlink(&sink).unwrap();
    let other = gst::Pad::builder(gst::PadDirection::Src).build();
    other.set_active(true).unwrap();
    other.link(&sink).unwrap();
    assert!(other.push_event(gst::event::StreamStart::new("other")));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    assert!(other.push_event(gst::event::Segment::new(&segment)));
    other
        .push(gst::Buffer::from_slice(b"three".to_vec()))
        .unwrap();
    within("the end", move || other.push_event(gst::event::Eos::new()));
    let eos = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos]);
    assert!(eos.is_some());
    assert_eq!(object("paused").unwrap(), b"one two three");
}

#[test]
fn a_stream_is_cut_into_objects_at_keyframes() {
    let line = sink(
        "ts-s3sink",
        &SERVER.uri(),
        "cut/{name}/%03d",
        "max-size-bytes=2500 start-index=7 metadata=\"m,Made-By=tests\"",
    );
    let rig = rig(&line);
    let headers = gst::Array::new([gst::Buffer::from_slice(b"HEAD".to_vec())]);
    let caps = gst::Caps::builder("application/x-test")
        .field("streamheader", headers)
        .build();
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
    for number in 0..10u8 {
        let mut buffer = gst::Buffer::from_slice(vec![number; 500]);
        let fields = buffer.get_mut().unwrap();
        fields.set_pts(gst::ClockTime::from_seconds(number.into()));
        fields.set_duration(gst::ClockTime::SECOND);
        if number % 2 == 1 {
            fields.set_flags(gst::BufferFlags::DELTA_UNIT);
        }
        rig.push(buffer).unwrap();
    }
    let feed = rig.feed.clone();
    within("the end", move || feed.push_event(gst::event::Eos::new()));
    let mut all = Vec::new();
    for (index, (first, count)) in [(0, 4u8), (4, 4), (8, 2)].into_iter().enumerate() {
        let told = message(&rig, "s3-object-stored");
        let key = format!("cut/out/{:03}", index + 7);
        assert_eq!(told.get::<String>("key").unwrap(), key);
        assert_eq!(
            told.get::<String>("uri").unwrap(),
            format!("s3://us-east-1/{BUCKET}/{key}")
        );
        assert_eq!(
            told.get::<u64>("bytes").unwrap(),
            4 + 500 * u64::from(count)
        );
        assert_eq!(
            told.get::<gst::ClockTime>("running-time")
                .unwrap()
                .seconds(),
            first
        );
        let bytes = object(&key).unwrap();
        assert_eq!(&bytes[..4], b"HEAD");
        all.extend_from_slice(&bytes[4..]);
    }
    let expected: Vec<u8> = (0..10).flat_map(|number| vec![number; 500]).collect();
    assert_eq!(all, expected);
    let eos = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos]);
    assert!(eos.is_some(), "after all of them");
}

/// ffprobe checks each object of a split recording.
#[test]
fn each_object_of_a_recording_plays() {
    let line = sink(
        "ts-s3sink",
        &SERVER.uri(),
        "ogg/%d.ogg",
        "max-size-time=1000000000",
    );
    let pipe = Pipe::parse(&format!(
        "audiotestsrc num-buffers=120 samplesperbuffer=441 ! audio/x-raw,rate=44100 ! vorbisenc ! oggmux max-delay=100000000 max-page-delay=100000000 ! {line}"
    ));
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2 {
        let path = folder.path().join(format!("{number}.ogg"));
        std::fs::write(&path, object(&format!("ogg/{number}.ogg")).unwrap()).unwrap();
        let output = std::process::Command::new("ffprobe")
            .args([
                "-v",
                "error",
                "-show_entries",
                "stream=codec_name",
                "-of",
                "default=nw=1:nk=1",
            ])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            "vorbis",
            "{output:?}"
        );
    }
}

/// Returns the bytes up to the end; their offsets have no gap.
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
            }
            Seen::Event(event) if event.type_() == gst::EventType::Eos => return all,
            Seen::Event(_) => {}
        }
    }
}

fn put(key: &str, bytes: &[u8]) {
    let (object, bytes) = (threadbare_s3::Object::new(key), bytes.to_vec());
    run(async move {
        store()
            .put_bytes(&object, bytes, Default::default())
            .await
            .unwrap()
    });
}

fn source(factory: &str, uri: &str, key: &str, more: &str) -> Rig {
    let line = format!(
        "{factory} {} key={key} context={} {more}",
        access(uri),
        context()
    );
    Rig::without_stream(&line, gst::State::Playing)
}

#[test]
fn an_object_is_read_and_sought_in() {
    let body = noise(700_000, 7);
    put("read/a b", &body);
    for factory in ["awss3src", "ts-s3src"] {
        let rig = source(factory, &SERVER.uri(), "\"read/a b\"", "");
        assert!(read_from(&rig, 0) == body);
        let mut query = gst::query::Duration::new(gst::Format::Bytes);
        assert!(rig.element.query(&mut query));
        assert_eq!(query.result().value(), body.len() as i64);
        for (first, end) in [(100, None), (699_999, None), (5, Some(77))] {
            let seek = gst::event::Seek::new(
                1.0,
                gst::SeekFlags::FLUSH,
                gst::SeekType::Set,
                gst::format::Bytes::from_u64(first),
                gst::SeekType::Set,
                end.map(gst::format::Bytes::from_u64),
            );
            assert!(rig.element.send_event(seek));
            let until = end.map_or(body.len(), |end| usize::try_from(end).unwrap());
            let begin = usize::try_from(first).unwrap();
            assert!(
                read_from(&rig, first) == body[begin..until],
                "{first} {end:?}"
            );
        }
        let uri: String = rig.element.property("uri");
        assert_eq!(uri, format!("s3://us-east-1/{BUCKET}/read/a%20b"));
    }
}

#[test]
fn interrupted_download_resumes_at_its_byte() {
    let body = noise(700_000, 8);
    put("broken", &body);
    let mut count = 0;
    let proxy = Proxy::new(move |_| {
        count += 1;
        match count {
            1 => Fate::CutAfter(300_000),
            2 => SLOW_DOWN,
            3 => Fate::Drop,
            _ => Fate::Pass,
        }
    });
    let rig = source("ts-s3src", &proxy.uri(), "broken", "");
    assert!(read_from(&rig, 0) == body);
    let heads: Vec<String> = proxy
        .passed()
        .iter()
        .map(|it| it.head.to_ascii_lowercase())
        .collect();
    assert_eq!(heads.len(), 4);
    let etag = etag("broken").unwrap();
    assert!(heads[3].contains("range: bytes=300000-"), "{}", heads[3]);
    assert!(
        heads[3].contains(&format!("if-range: {}", etag.to_ascii_lowercase())),
        "{}",
        heads[3]
    );
    assert!(heads[3].contains("authorization: aws4-hmac-sha256"));
}

#[test]
fn a_version_is_read() {
    for (number, body) in ["first", "second"].into_iter().enumerate() {
        let version = SERVER.keys["versions"][number].as_str().unwrap();
        let line = format!(
            "awss3src {} uri=s3://us-east-1/versions/a?version={version}",
            access(&SERVER.uri())
        );
        let rig = Rig::without_stream(&line, gst::State::Playing);
        assert_eq!(read_from(&rig, 0), body.as_bytes());
    }
}

#[test]
fn unreadable_object_is_reported() {
    for (more, expected) in [
        ("key=nobody-has-it", "404 NoSuchKey"),
        ("key=a bucket=nobody-has-it", "404 NoSuchBucket"),
    ] {
        let rig = source("awss3src", &SERVER.uri(), "x", more);
        let error = rig.error();
        assert!(text(&error).contains(expected), "{error:?}");
        assert_eq!(kind(&error), gst::ResourceError::NotFound);
    }
    for (line, expected) in [
        ("awss3src", "bucket is not set"),
        (
            "awss3src uri=s3://eu/bucket",
            "uri=s3://eu/bucket: the key is missing",
        ),
        (
            "ts-s3src uri=s3://eu/bucket/a/../b",
            "a part of the key must not be",
        ),
    ] {
        let (_, said) = refused(line);
        assert!(said.contains(expected), "{said}");
    }
    let element = make("awss3src");
    let handler = element.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    assert!(handler.set_uri("http://a/b").is_err());
}

fn certificates(
    folder: &std::path::Path,
) -> (std::sync::Arc<rustls::ServerConfig>, std::path::PathBuf) {
    let mut of_ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    of_ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = of_ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(of_ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let file = folder.join("ca.pem");
    std::fs::write(&file, ca.pem()).unwrap();
    (std::sync::Arc::new(config), file)
}

#[test]
fn a_store_is_trusted_by_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (config, ca) = certificates(folder.path());
    let proxy = Proxy::with(SERVER.address, Some(config), |_| Fate::Pass);
    let trusted = format!("ssl-ca-file={}", ca.display());
    let rig = rig(&sink("awss3sink", &proxy.uri(), "tls", &trusted));
    let bytes = noise(6 * MIB, 9);
    push(&rig, &bytes, 1 << 20);
    end(&rig);
    let read = source("awss3src", &proxy.uri(), "tls", &trusted);
    assert!(read_from(&read, 0) == bytes);
    let (_, said) = refused(&sink("awss3sink", &proxy.uri(), "tls", ""));
    assert!(said.contains("invalid peer certificate"), "{said}");
}

/// Returns the files below a folder, without the locks of its users.
fn files_in(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path
                    .file_name()
                    .is_some_and(|name| name == "lock" || name == ".s3.lock") => {}
                path => all.push(path),
            }
        }
    }
    all
}

fn spooled(folder: &std::path::Path, more: &str) -> String {
    format!("spool={} {more}", folder.display())
}

const AWAY: Fate = Fate::Answer("503 Service Unavailable", "");

#[test]
fn spool_keeps_data_while_the_store_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|_| AWAY);
    let rig = rig(&sink(
        "ts-s3sink",
        &proxy.uri(),
        "away",
        &spooled(folder.path(), ""),
    ));
    let bytes = noise(11 * MIB + 5, 10);
    push(&rig, &bytes, 100_000);
    let stats: gst::Structure = rig.element.property("stats");
    assert_eq!(stats.get::<u64>("bytes-stored").unwrap(), 0);
    assert_eq!(stats.get::<u64>("bytes-held").unwrap(), bytes.len() as u64);
    eventually("there is a journal", || {
        files_in(folder.path())
            .iter()
            .any(|path| path.extension().is_some_and(|end| end == "json"))
    });
    // A part gets another name when it is complete.
    let kept: Vec<Vec<u8>> = files_in(folder.path())
        .into_iter()
        .filter_map(|file| std::fs::read(file).ok())
        .collect();
    assert!(kept.iter().any(|text| text.starts_with(b"{")));
    for bytes in kept {
        assert!(
            !bytes
                .windows(SECRET.len())
                .any(|part| part == SECRET.as_bytes())
        );
    }
    let feed = rig.feed.clone();
    let ending = std::thread::spawn(move || feed.push_event(gst::event::Eos::new()));
    proxy.rule(|_| Fate::Pass);
    let eos = rig.bus.timed_pop_filtered(
        DEADLINE_GST,
        &[gst::MessageType::Eos, gst::MessageType::Error],
    );
    assert_eq!(eos.unwrap().type_(), gst::MessageType::Eos);
    ending.join().unwrap();
    assert!(object("away").unwrap() == bytes);
    assert_eq!(files_in(folder.path()), Vec::<std::path::PathBuf>::new());
    drop(rig);
    eventually("the run is removed", || {
        std::fs::read_dir(folder.path()).unwrap().count() == 0
    });
}

#[test]
fn after_a_stop_unsent_data_stays_in_the_spool() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|_| AWAY);
    let rig = rig(&sink(
        "ts-s3sink",
        &proxy.uri(),
        "left",
        &spooled(folder.path(), ""),
    ));
    let bytes = noise(6 * MIB, 11);
    push(&rig, &bytes, 100_000);
    rig.to(gst::State::Null);
    assert_eq!(object("left").unwrap_err().code(), Some("NoSuchKey"));
    drop(rig);
    proxy.rule(|_| Fate::Pass);
    eventually("the upload continues without the element", || {
        object("left").is_ok_and(|it| it == bytes)
    });
    eventually("nothing is left", || files_in(folder.path()).is_empty());
}

#[test]
fn full_spool_follows_the_slow_policy() {
    let bytes = noise(16 * MIB, 12);
    for policy in ["hold-up", "drop-oldest", "fail"] {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::new(|_| AWAY);
        let key = format!("slow-{policy}");
        let more = spooled(
            folder.path(),
            &format!("spool-max-bytes={} slow-policy={policy}", 12 * MIB),
        );
        let rig = rig(&sink("ts-s3sink", &proxy.uri(), &key, &more));
        let (feed, sent) = (rig.feed.clone(), bytes.clone());
        let pushing = move || {
            let mut pieces = sent.chunks(64 << 10);
            let pushed = pieces.try_for_each(|piece| {
                feed.push(gst::Buffer::from_slice(piece.to_vec()))
                    .map(|_| ())
            });
            feed.push_event(gst::event::Eos::new());
            pushed
        };
        let expected = match policy {
            "hold-up" => {
                let pushing = until_it_waits(pushing);
                assert!(stat(&rig.element, "bytes-held") <= 12 * MIB as u64);
                assert!(stat(&rig.element, "held-up") > 0);
                proxy.rule(|_| Fate::Pass);
                pushing.join().unwrap().unwrap();
                bytes.clone()
            }
            "drop-oldest" => {
                let pushing = std::thread::spawn(pushing);
                eventually("some is dropped", || {
                    stat(&rig.element, "bytes-dropped") > 0
                });
                eventually("everything has arrived", || {
                    stat(&rig.element, "bytes-held") + stat(&rig.element, "bytes-dropped")
                        == bytes.len() as u64
                });
                proxy.rule(|_| Fate::Pass);
                pushing.join().unwrap().unwrap();
                bytes[5 * MIB..].to_vec()
            }
            _ => {
                let error = rig_error(&rig, pushing);
                assert!(
                    error.contains("the store is too slow (slow-policy=fail)"),
                    "{error}"
                );
                assert!(
                    error.contains(&format!("spool-max-bytes={}", 12 * MIB)),
                    "{error}"
                );
                proxy.rule(|_| Fate::Pass);
                continue;
            }
        };
        let eos = rig.bus.timed_pop_filtered(
            DEADLINE_GST,
            &[gst::MessageType::Eos, gst::MessageType::Error],
        );
        assert_eq!(eos.unwrap().type_(), gst::MessageType::Eos);
        assert!(object(&key).unwrap() == expected, "{policy}");
        assert!(files_in(folder.path()).is_empty());
    }
}

fn rig_error<T: Send + 'static>(rig: &Rig, pushing: impl FnOnce() -> T + Send + 'static) -> String {
    let pushing = std::thread::spawn(pushing);
    let error = rig.error();
    pushing.join().unwrap();
    text(&error)
}

/// Runs the other half of a test in a separate process, which the test kills. Returns `None` in that process.
fn other_process(test: &str, environment: &[(&str, String)]) -> Option<std::process::Child> {
    const MARK: &str = "THREADBARE_S3_OTHER";
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &test_name(module_path!(), test), "--nocapture"])
        .env(MARK, "1");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Some(command.stdout(std::process::Stdio::null()).spawn().unwrap())
}

fn of_environment(name: &str) -> String {
    std::env::var(name).unwrap()
}

#[test]
fn next_process_continues_the_upload_of_a_killed_one() {
    let sizes = [11 * MIB + 1, 300, 5 * MIB];
    let folder = tempfile::tempdir().unwrap();
    // The first part of the large object gets through.
    let proxy = Proxy::new(|passing| {
        if passing.path.contains("partNumber=") && !passing.path.contains("partNumber=1&") {
            Fate::Stall
        } else {
            Fate::Pass
        }
    });
    let environment = [
        ("SPOOL", folder.path().display().to_string()),
        ("URI", proxy.uri()),
    ];
    let Some(mut child) = other_process(
        "next_process_continues_the_upload_of_a_killed_one",
        &environment,
    ) else {
        let (spool, uri) = (of_environment("SPOOL"), of_environment("URI"));
        let rigs: Vec<Rig> = (0..sizes.len())
            .map(|index| {
                rig(&sink(
                    "ts-s3sink",
                    &uri,
                    &format!("killed/{index}"),
                    &format!("spool={spool}"),
                ))
            })
            .collect();
        for (rig, (index, size)) in rigs.iter().zip(sizes.iter().enumerate()) {
            push(rig, &noise(*size, index as u64), 100_000);
        }
        loop {
            std::thread::park();
        }
    };
    let on_disk = |name: &str| -> u64 {
        let files = files_in(folder.path()).into_iter();
        let of = files.filter(|path| path.to_string_lossy().contains(name));
        of.map(|path| std::fs::metadata(path).map_or(0, |known| known.len()))
            .sum()
    };
    proxy.wait_stalled(1);
    eventually("all is on the disk but the part that the store has", || {
        let journals = on_disk(".json");
        on_disk("u0000000") - journals == (6 * MIB + 1 + 300) as u64
    });
    child.kill().unwrap();
    child.wait().unwrap();
    proxy.rule(|_| Fate::Pass);
    let before = proxy.passed().len();
    // The next user of the spool continues it.
    let next = rig(&sink(
        "ts-s3sink",
        &proxy.uri(),
        "killed/next",
        &spooled(folder.path(), ""),
    ));
    for (index, size) in sizes.into_iter().enumerate() {
        let (key, expected) = (format!("killed/{index}"), noise(size, index as u64));
        eventually("the object is whole", || {
            object(&key).is_ok_and(|it| it == expected)
        });
    }
    push(&next, b"next", 4);
    end(&next);
    assert_eq!(open_uploads("killed/"), 0);
    let again = proxy.passed()[before..]
        .iter()
        .filter(|it| it.path.contains("killed/0?partNumber=1&"))
        .count();
    assert_eq!(again, 0, "stored parts are not sent again");
    drop(next);
    eventually("nothing is left", || {
        std::fs::read_dir(folder.path()).unwrap().count() == 0
    });
    proxy.release();
}

fn upload_settings(pool: &threadbare_s3::Pool) -> threadbare_s3::UploadSettings {
    threadbare_s3::UploadSettings {
        pool: pool.clone(),
        ..Default::default()
    }
}

/// 30 uploads share the memory of four parts, while the store is slow.
#[test]
fn uploads_share_a_bounded_memory() {
    use threadbare_s3::{Object, Pool, Upload};
    let pool = Pool::new(20 << 20);
    let proxy = Proxy::new(|passing| {
        if passing.bytes % 7 == 3 {
            SLOW_DOWN
        } else {
            Fate::Pass
        }
    });
    let store = settings_store(&proxy.uri(), "access", SECRET);
    let watched = pool.clone();
    let most = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let uploads = (0..12u64).map(|number| {
        let (store, pool, most) = (store.clone(), pool.clone(), most.clone());
        async move {
            let bytes = noise(6 * MIB, number);
            let upload = Upload::begin(
                &store,
                Object::new(format!("shared/{number}")),
                &upload_settings(&pool),
            )
            .unwrap();
            for piece in bytes.chunks(300_000) {
                upload.write(piece).await.unwrap();
                most.fetch_max(pool.used(), std::sync::atomic::Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            upload.finish();
            assert_eq!(upload.stored().await.unwrap().bytes, bytes.len() as u64);
        }
    });
    let tasks: Vec<_> = uploads.collect();
    run(async move {
        let running: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
        for task in running {
            task.await.unwrap();
        }
    });
    for number in 0..12 {
        assert!(object(&format!("shared/{number}")).unwrap() == noise(6 * MIB, number));
    }
    let most = most.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most > 10 << 20 && most <= 20 << 20, "{most}");
    eventually("all of it is free", || watched.used() == 0);
}

#[test]
fn whole_files_are_sent_and_removed() {
    use threadbare_s3::{FileEvent, FileSender, Object, SenderSettings};
    let folder = tempfile::tempdir().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let settings = SenderSettings {
        on_event: Some(std::sync::Arc::new(move |event: &FileEvent| {
            let _ = tell.send(event.clone());
        })),
        ..SenderSettings::new(folder.path())
    };
    let sender = FileSender::start(&store(), settings.clone()).unwrap();
    let busy = FileSender::start(&store(), settings)
        .unwrap_err()
        .to_string();
    assert!(busy.contains("another process uses the folder"), "{busy}");
    for (size, parts) in [(12 * MIB, 3), (10, 0), (0, 0)] {
        let path = folder.path().join("file.wav");
        let bytes = noise(size, 20);
        std::fs::write(&path, &bytes).unwrap();
        let object_of = Object {
            content_type: Some("audio/wav".into()),
            metadata: vec![("loudness".into(), "-23".into())],
            ..Object::new(format!("sent/{size}"))
        };
        let stored = run(sender.send(&path, object_of).unwrap()).unwrap();
        assert_eq!(stored.bytes, size as u64);
        assert!(object(&format!("sent/{size}")).unwrap() == bytes);
        assert!(!path.exists());
        let mut progress = Vec::new();
        loop {
            match told.recv_timeout(DEADLINE).unwrap() {
                FileEvent::Progress { bytes, total, .. } => progress.push((bytes, total)),
                FileEvent::Stored { key, .. } => {
                    assert_eq!(key, format!("sent/{size}"));
                    break;
                }
                FileEvent::Failed { error, .. } => panic!("{error}"),
            }
        }
        assert!(progress.len() < parts.max(1), "{progress:?}");
    }
    assert!(
        sender
            .send(folder.path().join("none"), Object::new("a"))
            .is_err()
    );
    assert!(files_in(folder.path()).is_empty());
}

#[test]
fn files_are_sent_by_the_next_process() {
    use threadbare_s3::{FileSender, Object, SenderSettings};
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|passing| {
        if passing.path.contains("partNumber=2") {
            Fate::Stall
        } else {
            Fate::Pass
        }
    });
    let environment = [
        ("SPOOL", folder.path().display().to_string()),
        ("URI", proxy.uri()),
    ];
    let paths: Vec<std::path::PathBuf> = (0..3)
        .map(|number| folder.path().join(format!("{number}.wav")))
        .collect();
    let Some(mut child) = other_process("files_are_sent_by_the_next_process", &environment) else {
        let store = settings_store(&of_environment("URI"), "access", SECRET);
        let settings = SenderSettings {
            at_once: 1,
            ..SenderSettings::new(of_environment("SPOOL"))
        };
        let sender = FileSender::start(&store, settings).unwrap();
        let folder = std::path::PathBuf::from(of_environment("SPOOL"));
        let sent: Vec<_> = (0..3u64)
            .map(|number| {
                let path = folder.join(format!("{number}.wav"));
                std::fs::write(&path, noise(7 * MIB, 30 + number)).unwrap();
                sender
                    .send(&path, Object::new(format!("next/{number}")))
                    .unwrap()
            })
            .collect();
        drop(sent);
        loop {
            std::thread::park();
        }
    };
    proxy.wait_stalled(1);
    eventually("all are noted", || {
        files_in(folder.path())
            .iter()
            .filter(|path| path.to_string_lossy().ends_with(".s3.json"))
            .count()
            == 3
    });
    child.kill().unwrap();
    child.wait().unwrap();
    proxy.rule(|_| Fate::Pass);
    let sender = FileSender::start(
        &settings_store(&proxy.uri(), "access", SECRET),
        SenderSettings::new(folder.path()),
    )
    .unwrap();
    eventually("all files are sent", || files_in(folder.path()).is_empty());
    assert!(paths.iter().all(|path| !path.exists()));
    for number in 0..3 {
        assert!(object(&format!("next/{number}")).unwrap() == noise(7 * MIB, 30 + number));
    }
    assert_eq!(open_uploads("next/"), 0);
    drop(sender);
    proxy.release();
}

#[test]
fn properties_match_existing_pipelines() {
    const MS: Option<(&str, &str)> = Some(("-1", "9223372036854775807"));
    let access: &[Row] = &[
        ("uri", "gchararray", "NULL", None, true),
        ("access-key", "gchararray", "NULL", None, true),
        ("secret-access-key", "gchararray", "NULL", None, true),
        ("session-token", "gchararray", "NULL", None, true),
        ("endpoint-uri", "gchararray", "NULL", None, true),
        ("force-path-style", "gboolean", "false", None, true),
        ("request-timeout", "gint64", "15000", MS, true),
        ("retry-duration", "gint64", "75000", MS, true),
        ("retry-attempts", "guint", "5", Some(("1", "10")), true),
    ];
    let of_sink: &[Row] = &[
        ("bucket", "gchararray", "NULL", None, true),
        ("key", "gchararray", "NULL", None, true),
        ("region", "gchararray", "us-west-2", None, true),
        (
            "part-size",
            "guint64",
            "5242880",
            Some(("5242880", "5368709120")),
            true,
        ),
        ("metadata", "GstStructure", "NULL", None, true),
        ("on-error", "ThreadbareS3OnError", "do-nothing", None, true),
        ("upload-part-request-timeout", "gint64", "15000", MS, true),
        (
            "complete-upload-request-timeout",
            "gint64",
            "15000",
            MS,
            true,
        ),
        ("upload-part-retry-duration", "gint64", "75000", MS, true),
        (
            "complete-upload-retry-duration",
            "gint64",
            "75000",
            MS,
            true,
        ),
        ("content-type", "gchararray", "NULL", None, true),
        ("content-disposition", "gchararray", "NULL", None, true),
        ("content-encoding", "gchararray", "NULL", None, true),
        ("content-language", "gchararray", "NULL", None, true),
        ("cache-control", "gchararray", "NULL", None, true),
        ("acl", "gchararray", "NULL", None, true),
        ("sync", "gboolean", "false", None, true),
    ];
    for factory in ["awss3sink", "ts-s3sink", "awss3src", "ts-s3src"] {
        let rows = access
            .iter()
            .chain(of_sink.iter().filter(|_| factory.ends_with("sink")));
        rows.filter(|row| row.0 != "metadata")
            .for_each(|row| assert_row(factory, row));
    }
    let sink = make("ts-s3sink");
    sink.set_property(
        "metadata",
        gst::Structure::builder("m").field("a", "b").build(),
    );
    sink.set_property("uri", "s3://eu-west-1/rec-bucket/a%20b");
    for (name, value) in [
        ("region", "eu-west-1"),
        ("bucket", "rec-bucket"),
        ("key", "a b"),
    ] {
        assert_eq!(sink.property::<String>(name), value);
    }
}

#[test]
fn stopped_elements_leave_nothing_behind() {
    const MARK: &str = "THREADBARE_S3_ALONE";
    if std::env::var_os(MARK).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command
            .args([
                "--exact",
                &test_name(module_path!(), "stopped_elements_leave_nothing_behind"),
                "--nocapture",
            ])
            .env(MARK, "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
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
    let tracer = gst::glib::Object::with_type(factory.tracer_type())
        .downcast::<gst::Tracer>()
        .unwrap();
    put("leaks", b"bytes");
    let folder = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let spool = if round % 2 == 0 {
            String::new()
        } else {
            spooled(folder.path(), "")
        };
        let written = rig(&sink(
            ["awss3sink", "ts-s3sink"][round % 2],
            &SERVER.uri(),
            "leaks/written",
            &spool,
        ));
        push(&written, &noise(6 * MIB, 1), 1 << 20);
        if round < 4 {
            end(&written);
        }
        let read = source(
            ["awss3src", "ts-s3src"][round % 2],
            &SERVER.uri(),
            "leaks",
            "",
        );
        assert_eq!(read_from(&read, 0), b"bytes");
        read.to(gst::State::Null);
        written.to(gst::State::Null);
    }
    let live = || {
        let live = tracer.emit_by_name::<gst::Structure>("get-live-objects", &[]);
        let list = live.get::<gst::List>("live-objects-list").unwrap();
        list.iter()
            .map(|object| format!("{object:?}"))
            .collect::<Vec<_>>()
    };
    eventually("all is given back", || live().is_empty());
    eventually("no file is left", || files_in(folder.path()).is_empty());
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    let count = names.filter(|name| name.trim() == "ts-s3").count();
    // Two threads remain, and those that read files and look up names, which end later.
    assert!(
        (2..=10).contains(&count),
        "{count}, however many elements there were"
    );
    for upload in run(async { store().uploads("leaks/", Default::default()).await.unwrap() }) {
        let key = upload.key.clone();
        run(async move {
            store()
                .abort(&key, &upload.upload_id, Default::default())
                .await
                .unwrap()
        });
    }
}

/// wavenc seeks back to write the length into its header, which an object does not allow.
#[test]
fn rewrites_by_a_muxer_are_omitted() {
    let source = "audiotestsrc num-buffers=10 samplesperbuffer=800 ! audio/x-raw,format=S16LE,rate=8000,channels=1 ! wavenc";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.wav");
    let stock = Pipe::parse(&format!("{source} ! filesink location={}", file.display()));
    stock.play();
    stock.expect(gst::MessageType::Eos);
    let line = sink("awss3sink", &SERVER.uri(), "a.wav", "");
    let pipe = Pipe::parse(&format!("{source} ! {line}"));
    pipe.play();
    let warning = pipe.expect(gst::MessageType::Warning);
    assert!(
        text(&warning).contains("the muxer goes back"),
        "{warning:?}"
    );
    pipe.expect(gst::MessageType::Eos);
    let bytes = object("a.wav").unwrap();
    let expected = std::fs::read(file).unwrap();
    assert_eq!(bytes.len(), expected.len());
    // The lengths in the header are the initial ones.
    assert_eq!(
        (&bytes[..4], &bytes[44..]),
        (&expected[..4], &expected[44..])
    );
}

#[test]
fn elements_with_the_same_store_share_one_check_of_it() {
    let proxy = Proxy::new(|_| Fate::Pass);
    let rigs: Vec<Rig> = (0..20)
        .map(|number| {
            rig(&sink(
                "ts-s3sink",
                &proxy.uri(),
                &format!("asked/{number}"),
                "",
            ))
        })
        .collect();
    let asked = proxy.passed();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].method, "DELETE");
    drop(rigs);
}

#[test]
fn credentials_come_from_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|_| Fate::Pass);
    let file = folder.path().join("credentials");
    let text = "[default]\naws_access_key_id = NOTTHIS\naws_secret_access_key = x\n[studio]\naws_access_key_id = KEYOFSTUDIO\naws_secret_access_key = y\n";
    std::fs::write(&file, text).unwrap();
    let environment = [
        ("URI", proxy.uri()),
        ("AWS_SHARED_CREDENTIALS_FILE", file.display().to_string()),
        (
            "AWS_CONFIG_FILE",
            folder.path().join("none").display().to_string(),
        ),
        ("AWS_PROFILE", "studio".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    let Some(mut child) = other_process("credentials_come_from_a_profile", &environment) else {
        let uri = of_environment("URI");
        let line = format!(
            "ts-s3sink name=out key=profile region=us-east-1 bucket={BUCKET} endpoint-uri={uri} force-path-style=true"
        );
        let rig = rig(&line);
        push(&rig, b"bytes", 5);
        end(&rig);
        return;
    };
    assert!(child.wait().unwrap().success());
    assert_eq!(object("profile").unwrap(), b"bytes");
    let heads = proxy.passed();
    assert!(
        heads
            .iter()
            .all(|it| it.head.contains("Credential=KEYOFSTUDIO/")),
        "{heads:?}"
    );
}

/// Without a spool, with a memory of two parts.
#[test]
fn full_memory_follows_the_slow_policy() {
    use threadbare_s3::{Object, Pool, SlowPolicy, Upload, UploadSettings};
    for slow in [SlowPolicy::HoldUp, SlowPolicy::DropOldest, SlowPolicy::Fail] {
        let pool = Pool::new(10 << 20);
        let proxy = Proxy::new(|passing| {
            if passing.is_part() {
                Fate::Stall
            } else {
                Fate::Pass
            }
        });
        let store = settings_store(&proxy.uri(), "access", SECRET);
        let settings = UploadSettings {
            slow,
            on_error: threadbare_s3::OnError::Abort,
            ..upload_settings(&pool)
        };
        let key = format!("memory-{slow:?}");
        let upload =
            std::sync::Arc::new(Upload::begin(&store, Object::new(&key), &settings).unwrap());
        let bytes = noise(12 * MIB, 40);
        let (writer, sent) = (upload.clone(), bytes.clone());
        run(async move { writer.write(&sent[..10 * MIB]).await }).unwrap();
        proxy.wait_stalled(2);
        let (writer, sent) = (upload.clone(), bytes.clone());
        let written = run_aside(async move { writer.write(&sent[10 * MIB..]).await });
        match slow {
            SlowPolicy::Fail => {
                let error = written.recv_timeout(DEADLINE).unwrap().unwrap_err();
                assert!(
                    error.to_string().contains("buffer-max-bytes=10485760"),
                    "{error}"
                );
                proxy.rule(|_| Fate::Pass);
                proxy.release();
                let stored = upload.clone();
                assert_eq!(
                    run(async move { stored.stored().await }).unwrap_err(),
                    error
                );
                assert_eq!(open_uploads(&key), 0);
                continue;
            }
            SlowPolicy::HoldUp => {
                assert_eq!(pool.used(), 10 << 20);
                assert!(written.try_recv().is_err(), "the writer waits");
            }
            SlowPolicy::DropOldest => {
                written.recv_timeout(DEADLINE).unwrap().unwrap();
                assert_eq!(
                    upload.counts().dropped,
                    2 * MIB as u64,
                    "both parts are under way"
                );
            }
        }
        proxy.rule(|_| Fate::Pass);
        proxy.release();
        if slow == SlowPolicy::HoldUp {
            written.recv_timeout(DEADLINE).unwrap().unwrap();
        }
        upload.finish();
        let stored = upload.clone();
        run(async move { stored.stored().await }).unwrap();
        let expected = if slow == SlowPolicy::HoldUp {
            &bytes[..]
        } else {
            &bytes[..10 * MIB]
        };
        assert!(object(&key).unwrap() == expected, "{slow:?}");
        eventually("all of it is free", || pool.used() == 0);
    }
}

/// The journal still lists an upload that another process has completed.
#[test]
fn a_completed_upload_is_recognised_as_complete() {
    let folder = tempfile::tempdir().unwrap();
    // The answer of the last request is lost, again and again, until the process ends.
    let proxy = Proxy::new(|passing| match passing.method.as_str() {
        "POST" if passing.path.contains("uploadId=") => Fate::Lose,
        "HEAD" => Fate::Drop,
        _ => Fate::Pass,
    });
    let environment = [
        ("SPOOL", folder.path().display().to_string()),
        ("URI", proxy.uri()),
    ];
    let Some(mut child) =
        other_process("a_completed_upload_is_recognised_as_complete", &environment)
    else {
        let more = format!("spool={}", of_environment("SPOOL"));
        let rig = rig(&sink(
            "ts-s3sink",
            &of_environment("URI"),
            "complete-already",
            &more,
        ));
        push(&rig, &noise(6 * MIB, 41), 1 << 20);
        rig.feed.push_event(gst::event::Eos::new());
        loop {
            std::thread::park();
        }
    };
    eventually("it is complete", || etag("complete-already").is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    proxy.rule(|_| Fate::Pass);
    let rig = rig(&sink(
        "ts-s3sink",
        &proxy.uri(),
        "another",
        &spooled(folder.path(), ""),
    ));
    eventually("the journal goes", || files_in(folder.path()).is_empty());
    assert!(object("complete-already").unwrap() == noise(6 * MIB, 41));
    drop(rig);
}

#[test]
fn waiting_sink_blocks_only_its_stream() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|_| AWAY);
    let context = context();
    let line = sink(
        "ts-s3sink",
        &proxy.uri(),
        "waits",
        &spooled(folder.path(), "spool-max-bytes=100000"),
    );
    let source = format!("ts-audiotestsrc context={context} context-wait=20");
    let waits = Pipe::parse(&format!("{source} ! {line}"));
    let flows = Pipe::parse(&format!(
        "{source} is-live=true samples-per-buffer=160 ! audio/x-raw,rate=8000 ! fakesink name=out sync=false async=false"
    ));
    waits.play();
    flows.play();
    let out = waits.get("out");
    eventually("the spool is full", || stat(&out, "held-up") > 0);
    let count = |pipe: &Pipe| {
        pipe.get("out")
            .property::<gst::Structure>("stats")
            .get::<u64>("rendered")
            .unwrap()
    };
    let (before, of_waiting) = (count(&flows), stat(&out, "rendered"));
    eventually("the other stream continues", || count(&flows) > before + 25);
    assert_eq!(stat(&out, "rendered"), of_waiting);
    proxy.rule(|_| Fate::Pass);
    waits.0.send_event(gst::event::Eos::new());
    waits.to(gst::State::Null);
}

#[test]
fn states_change_in_both_directions() {
    let rig = rig(&sink(
        "ts-s3sink",
        &SERVER.uri(),
        "cycles",
        "on-error=complete",
    ));
    let mut sent = 0u8;
    for _ in 0..3 {
        rig.to(gst::State::Null);
        rig.to(gst::State::Playing);
        rig.open_stream();
        sent += 1;
        push(&rig, &[sent], 1);
        rig.to(gst::State::Paused);
        rig.to(gst::State::Ready);
        assert_eq!(object("cycles").unwrap(), [sent]);
    }
    let body = noise(500_000, 50);
    put("cycles/read", &body);
    let read = source("ts-s3src", &SERVER.uri(), "cycles/read", "max-bytes=10000");
    assert!(!bytes(&read.buffer()).is_empty());
    read.to(gst::State::Paused);
    read.to(gst::State::Ready);
    while read.seen.try_recv().is_ok() {}
    read.to(gst::State::Playing);
    assert!(read_from(&read, 0) == body, "from the beginning again");
}

#[test]
fn refused_file_is_uploaded_on_request() {
    use threadbare_s3::{FileSender, Object, SenderSettings};
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::new(|_| DENIED);
    let store = settings_store(&proxy.uri(), "access", SECRET);
    let sender =
        FileSender::start(&store, SenderSettings::new(folder.path().join("notes"))).unwrap();
    let path = folder.path().join("a.wav");
    std::fs::write(&path, b"bytes").unwrap();
    let refused = run(sender.send(&path, Object::new("refused")).unwrap()).unwrap_err();
    assert_eq!(refused.code(), Some("AccessDenied"));
    assert!(path.exists());
    proxy.rule(|_| Fate::Pass);
    assert_eq!(sender.retry(), Ok(1));
    eventually("it is sent", || !path.exists());
    assert_eq!(object("refused").unwrap(), b"bytes");
    eventually("its note goes", || files_in(folder.path()).is_empty());
    assert_eq!(sender.retry(), Ok(0));
}

/// The test runs in a separate process, because all sinks of a process share the memory.
#[test]
fn stream_waiting_for_shared_memory_is_reported() {
    let Some(mut child) = other_process("stream_waiting_for_shared_memory_is_reported", &[]) else {
        let rigs: Vec<Rig> = (0..3)
            .map(|number| {
                rig(&sink(
                    "awss3sink",
                    &SERVER.uri(),
                    &format!("memory/{number}"),
                    "buffer-max-bytes=10485760",
                ))
            })
            .collect();
        let bytes = noise(4 * MIB, 60);
        push(&rigs[0], &bytes, 100_000);
        // This stream needs more memory than is free without the reserve, so it becomes the leader of the pool.
        push(&rigs[1], &bytes, 100_000);
        let (feed, sent) = (rigs[2].feed.clone(), bytes.clone());
        let pushed = std::thread::spawn(move || {
            sent.chunks(100_000).for_each(|piece| {
                feed.push(gst::Buffer::from_slice(piece.to_vec())).unwrap();
            });
        });
        let warning = rigs[2]
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Warning]);
        let said = text(&warning.expect("a warning"));
        assert!(said.contains("buffer-max-bytes=10485760"), "{said}");
        end(&rigs[1]);
        pushed.join().unwrap();
        end(&rigs[2]);
        end(&rigs[0]);
        for number in 0..3 {
            assert!(object(&format!("memory/{number}")).unwrap() == bytes);
        }
        return;
    };
    assert!(child.wait().unwrap().success());
}
