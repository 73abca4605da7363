//! The parsers with arbitrary bytes, and whole transfers in virtual time with a server that fails on command.

use proptest::prelude::*;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn answer(status: u16, lines: &[(&str, &str)]) -> Answer {
    Answer::read(status, &headers(lines), false, false).unwrap()
}

#[test]
fn locations_must_be_http_and_hide_their_credentials() {
    let location = Location::parse("https://me:p%40ss@example.org:8443/a?b=c#d").unwrap();
    assert_eq!(location.url().as_str(), "https://example.org:8443/a?b=c");
    let credentials = location.credentials().unwrap();
    assert_eq!(credentials, &("me".to_owned(), "p@ss".to_owned()));
    assert_eq!(location.shown(), "https://example.org:8443/a");
    assert_eq!(Location::parse("http://h/x").unwrap().credentials(), None);
    for (text, said) in [
        (
            "ftp://me:secret@h/x",
            "'ftp://h/x': the scheme 'ftp' is not allowed; use http or https",
        ),
        ("file:///etc/passwd", "the scheme 'file' is not allowed"),
        ("me:secret@h", "use http or https"),
        ("http://me:secret@", "is not a URL"),
        (
            "http://me:se/cr?et@h:port/",
            "'http://h:port/' is not a URL",
        ),
        ("", "is not a URL"),
    ] {
        let error = Location::parse(text)
            .err()
            .unwrap_or_else(|| panic!("{text}"));
        let error = error.to_string();
        assert!(error.contains(said), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let long = format!("http://me:secret@h/{}", "x".repeat(20_000));
    let error = Location::parse(&long).err().unwrap().to_string();
    assert!(
        error.contains("16384") && error.len() < 300 && !error.contains("secret"),
        "{error}"
    );
}

/// RFC 9110, section 15.4, and its "Location" (10.2.2).
#[test]
fn redirections_are_followed_up_to_the_limit() {
    let mut hops = Hops::new(Location::parse("http://me:pw@a/x/y").unwrap());
    assert_eq!(hops.handle(200, &headers(&[])), Ok(Hop::Here));
    assert!(hops.redirected().is_none());
    assert_eq!(
        hops.handle(301, &headers(&[("location", "../z?q")])),
        Ok(Hop::On)
    );
    let (place, is_permanent) = hops.redirected().unwrap();
    assert_eq!((place.url().as_str(), is_permanent), ("http://a/z?q", true));
    assert!(hops.keeps_secrets());
    assert_eq!(
        hops.handle(302, &headers(&[("location", "https://a/z")])),
        Ok(Hop::On)
    );
    assert!(!hops.keeps_secrets(), "another origin");
    assert!(!hops.redirected().unwrap().1, "one is not for ever");
    // These have no target, or a status that is not a redirection.
    for status in [300, 303, 304, 307] {
        assert_eq!(
            hops.handle(status, &headers(&[])),
            Ok(Hop::Here),
            "{status}"
        );
    }
    assert_eq!(
        hops.handle(304, &headers(&[("location", "/")])),
        Ok(Hop::Here)
    );
    let error = hops.handle(307, &headers(&[("location", "file:///etc/passwd")]));
    assert!(matches!(error, Err(Problem::Location(_))), "{error:?}");
    let around = headers(&[("location", "/around")]);
    let ever = std::iter::repeat_with(|| hops.handle(308, &around));
    let followed = ever.take_while(|hop| *hop == Ok(Hop::On)).count();
    assert_eq!(followed, 18, "with the two from before");
    assert_eq!(hops.handle(308, &around), Err(Problem::Redirects));
}

#[test]
fn server_responses_are_parsed() {
    let whole = answer(
        200,
        &[("content-length", "1000"), ("accept-ranges", "bytes")],
    );
    assert_eq!(whole.size, Some(1000));
    assert!(whole.is_seekable());
    let part = answer(
        206,
        &[
            ("content-range", "bytes 100-199/1000"),
            ("content-length", "100"),
        ],
    );
    assert_eq!(part.size, Some(1000));
    assert!(part.is_seekable());
    assert!(!answer(200, &[("content-length", "9"), ("accept-ranges", "none")]).is_seekable());
    assert!(
        !answer(200, &[("content-length", "9")]).is_seekable(),
        "it does not say so"
    );
    assert_eq!(answer(206, &[("content-range", "bytes 0-1/*")]).size, None);
    for range in [
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes x-y/z",
        "bytes */10",
        "bytes 1-2",
        "",
        "items 0-1/2",
        "bytes 0-99999999999999999999/*",
        "bytes -1-5/10",
    ] {
        let refused = Answer::read(206, &headers(&[("content-range", range)]), false, false);
        assert!(refused.is_err(), "{range}");
    }
    let unpacked = Answer::read(200, &headers(&[("accept-ranges", "bytes")]), false, true);
    assert!(!unpacked.unwrap().is_seekable());
    let refusal = refusal(503, &headers(&[("retry-after", "7")])).unwrap();
    assert_eq!(
        refusal.to_string(),
        "the server answered with 503 Service Unavailable"
    );
    assert!(matches!(
        refusal,
        Problem::Status {
            retry_after_s: Some(7),
            ..
        }
    ));
}

/// The kinds of errors that applications know.
#[test]
fn refusals_map_to_the_error_kinds_of_gstreamer() {
    for (status, kind) in [
        (401, gst::ResourceError::NotAuthorized),
        (403, gst::ResourceError::NotAuthorized),
        (404, gst::ResourceError::NotFound),
        (410, gst::ResourceError::NotFound),
        (418, gst::ResourceError::OpenRead),
        (500, gst::ResourceError::OpenRead),
    ] {
        let problem = refusal(status, &headers(&[])).unwrap();
        assert_eq!(problem.kind(false), kind, "{status}");
    }
    assert_eq!(
        refusal(500, &headers(&[])).unwrap().kind(true),
        gst::ResourceError::Read
    );
    assert_eq!(refusal(204, &headers(&[])), None);
}

#[test]
fn media_types_become_caps() {
    let media = |lines: &[(&str, &str)]| answer(200, lines).media;
    let icy = media(&[("icy-metaint", "16000"), ("content-type", "audio/mpeg")]);
    let content_type = Some("audio/mpeg".to_owned());
    assert_eq!(
        icy,
        Media::Icy {
            interval: 16_000,
            content_type
        }
    );
    for (interval, content_type) in [
        ("0", "a/b"),
        ("-5", "a/b"),
        ("99999999999", "a/b"),
        ("x", "a/b"),
    ] {
        let lines = [("icy-metaint", interval), ("content-type", content_type)];
        assert_eq!(media(&lines), Media::Unknown, "{interval}");
    }
    for (text, rate, channels) in [
        ("audio/L16;rate=48000;channels=1", 48_000, 1),
        ("AUDIO/l16 ; Rate = \"8000\"", 8_000, 2),
        ("audio/L16", 44_100, 2),
        ("audio/L16;rate=0;channels=-1", 44_100, 2),
        ("audio/L16;channels=65;rate", 44_100, 2),
    ] {
        assert_eq!(
            media(&[("content-type", text)]),
            Media::L16 { rate, channels },
            "{text}"
        );
    }
    assert_eq!(media(&[("content-type", "audio/L16x")]), Media::Unknown);
}

#[test]
fn headers_beyond_the_bounds_are_refused() {
    let mut many = HeaderMap::new();
    for _ in 0..100 {
        many.append("x", HeaderValue::from_static("y"));
    }
    assert_eq!(check_size(&many), Ok(()));
    many.append("x", HeaderValue::from_static("y"));
    assert!(
        check_size(&many)
            .unwrap_err()
            .to_string()
            .contains("101 headers")
    );
    let long = headers(&[("x", &"y".repeat(70_000))]);
    assert!(check_size(&long).unwrap_err().to_string().contains("65536"));
}

#[test]
fn secret_headers_are_recognised_by_name() {
    for name in [
        "authorization",
        "cookie",
        "set-cookie",
        "proxy-authorization",
        "x-api-key",
        "x-auth-token",
    ] {
        assert!(is_secret(&HeaderName::from_static(name)), "{name}");
    }
    for name in ["content-type", "www-authenticate", "server", "etag"] {
        assert!(!is_secret(&HeaderName::from_static(name)), "{name}");
    }
}

#[test]
fn silent_and_slow_servers_are_detected() {
    const S: u64 = 1_000_000_000;
    let limits = PaceLimits {
        stall_s: 15,
        rate: 1000,
        window_ns: 10 * S,
    };
    let mut pace = Pace::new(limits);
    assert_eq!(pace.patience_ns(), Some(10 * S));
    // 1000 bytes each second are enough, but 999 are not.
    for _ in 0..100 {
        assert_eq!(pace.handle(S, 1000), Ok(()));
    }
    let slow = (0..10).map(|n| pace.handle(S, 1000 - usize::from(n == 9)));
    let slow = slow.collect::<Result<(), _>>().unwrap_err();
    assert_eq!(
        slow,
        Problem::Slow {
            bytes: 9999,
            seconds: 10,
            limit: 1000
        }
    );
    // Waiting for downstream is not reported, so it does not count.
    let mut pace = Pace::new(PaceLimits {
        stall_s: 15,
        ..PaceLimits::default()
    });
    for _ in 0..1000 {
        assert_eq!(pace.handle(14 * S, 1), Ok(()));
    }
    assert_eq!(pace.handle(8 * S, 0), Ok(()));
    assert_eq!(pace.patience_ns(), Some(7 * S));
    assert_eq!(pace.handle(7 * S, 0), Err(Problem::TimedOut(15)));
    assert_eq!(Pace::new(PaceLimits::default()).patience_ns(), None);
}

const POLICY: Policy = Policy {
    retries: Some(3),
    delay_ns: 1000,
    delay_ns_max: 3000,
    is_live: false,
};

fn broken() -> Problem {
    Problem::Broken("as told".to_owned())
}

#[test]
fn pauses_double_up_to_the_maximum_and_end_with_the_retries() {
    for random in [0, u64::MAX] {
        let mut transfer = Transfer::new(POLICY, Span::default());
        transfer.handle_answer(answer(200, &[("content-length", "10")]));
        let pauses = [(1000, 501), (2000, 1001), (3000, 1501)];
        for (longest, shortest) in pauses {
            let pause = if random == 0 { longest } else { shortest };
            let verdict = transfer.handle_failure(broken(), random);
            assert_eq!(verdict, Verdict::Again(pause, Some(broken())));
        }
        assert_eq!(
            transfer.handle_failure(broken(), random),
            Verdict::Fail(broken())
        );
        // When a byte arrives, earlier failures are forgotten.
        transfer.handle_data(1);
        assert!(matches!(
            transfer.handle_failure(broken(), random),
            Verdict::Again(..)
        ));
    }
}

#[test]
fn first_connection_failure_is_not_retried() {
    let refused = || Problem::Connect("refused".to_owned());
    let mut transfer = Transfer::new(POLICY, Span::default());
    assert_eq!(
        transfer.handle_failure(refused(), 0),
        Verdict::Fail(refused())
    );
    let mut transfer = Transfer::new(POLICY, Span::default());
    transfer.handle_answer(answer(200, &[("content-length", "10")]));
    assert!(matches!(
        transfer.handle_failure(refused(), 0),
        Verdict::Again(..)
    ));
    let mut patient = Transfer::new(
        Policy {
            retries: None,
            ..POLICY
        },
        Span::default(),
    );
    for _ in 0..100 {
        assert!(matches!(
            patient.handle_failure(refused(), 0),
            Verdict::Again(1..=3000, _)
        ));
    }
}

#[test]
fn a_server_may_request_a_pause() {
    let busy = |after: &str| refusal(429, &headers(&[("retry-after", after)])).unwrap();
    let mut transfer = Transfer::new(POLICY, Span::default());
    for (after, expected) in [
        ("2", 2_000_000_000),
        ("100000", 300_000_000_000),
        ("x", 3000),
    ] {
        let verdict = transfer.handle_failure(busy(after), 0);
        assert_eq!(verdict, Verdict::Again(expected, Some(busy(after))));
    }
    let gone = refusal(404, &headers(&[])).unwrap();
    let mut transfer = Transfer::new(POLICY, Span::default());
    assert_eq!(
        transfer.handle_failure(gone.clone(), 0),
        Verdict::Fail(gone)
    );
}

/// RFC 9110, section 13.1.5.
#[test]
fn interrupted_download_resumes_at_the_same_byte() {
    let lines = |etag| {
        [
            ("content-length", "100"),
            ("etag", etag),
            ("accept-ranges", "bytes"),
        ]
    };
    let begun = || {
        let mut transfer = Transfer::new(POLICY, Span::default());
        assert_eq!(transfer.ask(), Ask::default());
        transfer.handle_answer(answer(200, &lines("\"a\"")));
        transfer.handle_data(40);
        transfer.handle_failure(broken(), 0);
        let ask = transfer.ask();
        assert_eq!(ask.range.as_deref(), Some("bytes=40-"));
        assert_eq!(ask.if_range.as_deref(), Some("\"a\""));
        transfer
    };
    let part = |etag| {
        answer(
            206,
            &[
                ("content-range", "bytes 40-99/100"),
                ("etag", etag),
                ("content-length", "60"),
            ],
        )
    };
    let mut same = begun();
    assert_eq!(same.handle_answer(part("\"a\"")), Verdict::Read);
    let wanted = same.handle_data(60);
    assert_eq!((wanted.skip, wanted.bytes, wanted.position), (0, 60, 40));
    assert_eq!(same.handle_end(0), Verdict::Done);
    assert_eq!(
        begun().handle_answer(part("\"b\"")),
        Verdict::Fail(Problem::Changed(40))
    );
    let mut ignores = begun();
    assert_eq!(
        ignores.handle_answer(answer(200, &lines("\"a\""))),
        Verdict::Read
    );
    let wanted = ignores.handle_data(70);
    assert_eq!((wanted.skip, wanted.bytes, wanted.position), (40, 30, 40));
    assert_eq!(
        begun().handle_answer(answer(200, &lines("\"b\""))),
        Verdict::Fail(Problem::Changed(40))
    );
    let behind = answer(
        206,
        &[("content-range", "bytes 50-99/100"), ("etag", "\"a\"")],
    );
    assert_eq!(
        begun().handle_answer(behind),
        Verdict::Fail(Problem::Range { asked: 40 })
    );
    let before = answer(
        206,
        &[("content-range", "bytes 30-99/100"), ("etag", "\"a\"")],
    );
    let mut early = begun();
    assert_eq!(early.handle_answer(before), Verdict::Read);
    assert_eq!(early.handle_data(20).skip, 10);
    // A weak tag does not prove that the bytes are the same.
    let mut weak = Transfer::new(POLICY, Span::default());
    weak.handle_answer(answer(200, &[("etag", "W/\"a\"")]));
    weak.handle_data(40);
    assert_eq!(weak.ask().if_range, None);
    assert_eq!(
        weak.handle_answer(answer(200, &[("etag", "W/\"a\"")])),
        Verdict::Fail(Problem::Changed(40))
    );
}

#[test]
fn a_range_beyond_the_end_of_the_resource_ends_the_stream() {
    let behind = |size: &str| refusal(416, &headers(&[("content-range", size)])).unwrap();
    let at = |first| Transfer::new(POLICY, Span { first, end: None });
    assert_eq!(
        at(100).handle_failure(behind("bytes */100"), 0),
        Verdict::Done
    );
    assert_eq!(
        at(500).handle_failure(behind("bytes */100"), 0),
        Verdict::Done
    );
    assert!(matches!(
        at(50).handle_failure(behind("bytes */100"), 0),
        Verdict::Fail(_)
    ));
    assert!(matches!(
        at(50).handle_failure(behind("nonsense"), 0),
        Verdict::Fail(_)
    ));
    assert!(
        Transfer::new(
            POLICY,
            Span {
                first: 7,
                end: Some(7)
            }
        )
        .is_empty()
    );
    let mut span = Transfer::new(
        POLICY,
        Span {
            first: 7,
            end: Some(9),
        },
    );
    assert_eq!(span.ask().range.as_deref(), Some("bytes=7-8"));
    // The server sends more than was requested.
    span.handle_answer(answer(206, &[("content-range", "bytes 7-99/100")]));
    let wanted = span.handle_data(50);
    assert!(wanted.is_last && wanted.bytes == 2, "{wanted:?}");
}

#[test]
fn live_stream_reconnects_and_continues() {
    let station = [("icy-metaint", "100"), ("icy-name", "x")];
    let mut radio = Transfer::new(POLICY, Span::default());
    radio.handle_answer(answer(200, &station));
    assert!(radio.is_continuous());
    radio.handle_data(40);
    // The server closes the connection. That cannot be distinguished from a break.
    assert!(matches!(radio.handle_end(0), Verdict::Again(..)));
    assert_eq!(radio.ask(), Ask::default());
    assert_eq!(radio.handle_answer(answer(200, &station)), Verdict::Read);
    let wanted = radio.handle_data(40);
    assert_eq!((wanted.skip, wanted.bytes, wanted.position), (0, 40, 40));
    // The stream has ended, and the server has no more data. That is the end, not a failure.
    assert!(matches!(radio.handle_end(0), Verdict::Again(..)));
    let gone = refusal(404, &headers(&[])).unwrap();
    assert_eq!(radio.handle_failure(gone.clone(), 0), Verdict::Done);
    // The connection of the stream breaks.
    let mut radio = Transfer::new(POLICY, Span::default());
    radio.handle_answer(answer(200, &station));
    radio.handle_data(40);
    assert!(matches!(
        radio.handle_failure(broken(), 0),
        Verdict::Again(..)
    ));
    assert_eq!(radio.handle_failure(gone.clone(), 0), Verdict::Fail(gone));
    // The end of a chunked body is an end (RFC 9112, section 7.1).
    let chunked = [("icy-name", "x"), ("transfer-encoding", "chunked")];
    let mut radio = Transfer::new(POLICY, Span::default());
    radio.handle_answer(answer(200, &chunked));
    radio.handle_data(40);
    assert_eq!(radio.handle_end(0), Verdict::Done);
    // This stream is not live and has no length. Its end cannot be distinguished from a break, and counts as one.
    let mut plain = Transfer::new(POLICY, Span::default());
    plain.handle_answer(answer(200, &[]));
    plain.handle_data(40);
    assert_eq!(plain.handle_end(0), Verdict::Done);
}

/// A server's behaviour for one request.
#[derive(Debug, Clone)]
struct Manner {
    ignores_range: bool,
    /// Starts this many bytes before the requested position.
    early: u64,
    /// Sends at most this many bytes. Then the response ends as if no more had been requested (a part), or breaks.
    most: u64,
    breaks: bool,
    /// Refuses the request with this status.
    status: Option<u16>,
    pieces: u64,
}

fn manner() -> impl Strategy<Value = Manner> {
    let status = prop_oneof![6 => Just(None), 1 => Just(Some(503u16)), 1 => Just(Some(429))];
    (
        any::<bool>(),
        0..20u64,
        0..120u64,
        any::<bool>(),
        status,
        1..50u64,
    )
        .prop_map(
            |(ignores_range, early, most, breaks, status, pieces)| Manner {
                ignores_range,
                early,
                most,
                breaks,
                status,
                pieces,
            },
        )
}

/// Returns the result of a transfer from a server that has `body`.
fn carried(body: &[u8], span: Span, manners: &[Manner], has_etag: bool) -> (Vec<u8>, Verdict) {
    let mut transfer = Transfer::new(POLICY, span);
    let mut got = Vec::new();
    let size = body.len() as u64;
    let mut manners = manners.iter().cloned();
    for _ in 0..1000 {
        if transfer.is_empty() {
            return (got, Verdict::Done);
        }
        // After these, the server behaves correctly.
        let manner = manners.next().unwrap_or(Manner {
            ignores_range: false,
            early: 0,
            most: u64::MAX,
            breaks: false,
            status: None,
            pieces: 7,
        });
        let verdict = once(&mut transfer, body, size, &manner, has_etag, &mut got);
        if !matches!(verdict, Verdict::Again(..)) {
            return (got, verdict);
        }
    }
    panic!("it does not end");
}

fn once(
    transfer: &mut Transfer,
    body: &[u8],
    size: u64,
    manner: &Manner,
    has_etag: bool,
    got: &mut Vec<u8>,
) -> Verdict {
    let ask = transfer.ask();
    if let Some(status) = manner.status {
        return transfer.handle_failure(refusal(status, &headers(&[])).unwrap(), 1);
    }
    let mut lines = vec![("accept-ranges", "bytes".to_owned())];
    if has_etag {
        lines.push(("etag", "\"v1\"".to_owned()));
    }
    let range = ask.range.filter(|_| !manner.ignores_range).map(|range| {
        let (first, last) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        let end = last
            .parse::<u64>()
            .map_or(size, |last| (last + 1).min(size));
        (first.parse::<u64>().unwrap(), end)
    });
    let (status, first, end) = match range {
        Some((first, _)) if first >= size => {
            let lines = [("content-range", &*format!("bytes */{size}"))];
            return transfer.handle_failure(refusal(416, &headers(&lines)).unwrap(), 1);
        }
        Some((first, end)) => {
            let first = first.saturating_sub(manner.early);
            // A server may send less of a part than was requested.
            let end = if manner.breaks {
                end
            } else {
                end.min(first.saturating_add(manner.most.max(1)))
            };
            lines.push(("content-range", format!("bytes {first}-{}/{size}", end - 1)));
            (206, first, end)
        }
        None => (200, 0, size),
    };
    lines.push(("content-length", (end - first).to_string()));
    let lines: Vec<(&str, &str)> = lines.iter().map(|(n, v)| (*n, v.as_str())).collect();
    match transfer.handle_answer(answer(status, &lines)) {
        Verdict::Read => {}
        verdict => return verdict,
    }
    let sent = if manner.breaks {
        end.min(first.saturating_add(manner.most))
    } else {
        end
    };
    let mut at = first;
    while at < sent {
        let piece = manner.pieces.min(sent - at);
        let wanted = transfer.handle_data(piece as usize);
        let from = at as usize + wanted.skip;
        assert!(wanted.bytes == 0 || wanted.position == from as u64);
        got.extend(&body[from..from + wanted.bytes]);
        at += piece;
        if wanted.is_last {
            return Verdict::Done;
        }
    }
    if sent < end {
        transfer.handle_failure(broken(), 1)
    } else {
        transfer.handle_end(1)
    }
}

proptest! {
    /// The model is the body itself. Whatever the server does, the result is the wanted part of the body, byte for byte. It is
    /// complete unless the retries have run out.
    #[test]
    fn received_bytes_equal_the_resource(
        length in 0..300usize,
        first in 0..320u64,
        end in prop::option::of(0..320u64),
        has_etag in any::<bool>(),
        manners in prop::collection::vec(manner(), 0..12),
    ) {
        let body: Vec<u8> = (0..length).map(|n| (n * 7 + n / 251) as u8).collect();
        let (got, verdict) = carried(&body, Span { first, end }, &manners, has_etag);
        let from = (first as usize).min(length);
        let to = end.map_or(length, |end| (end as usize).min(length)).max(from);
        let wanted = &body[from..to];
        prop_assert!(wanted.starts_with(&got), "{} of {}", got.len(), wanted.len());
        match verdict {
            Verdict::Done => prop_assert_eq!(got.len(), wanted.len()),
            Verdict::Fail(problem) => prop_assert!(problem != Problem::Changed(0), "{problem:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn response_heads_of_any_bytes_are_parsed(
        status in 0..700u16,
        lines in prop::collection::vec((0..10usize, prop::collection::vec(any::<u8>(), 0..60)), 0..12),
        first in any::<u64>(),
        bytes in any::<usize>(),
    ) {
        let names = [
            "content-range", "content-length", "accept-ranges", "etag", "last-modified", "retry-after",
            "icy-metaint", "content-type", "location", "transfer-encoding",
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(names[name], value);
            }
        }
        let mut hops = Hops::new(Location::parse("http://me:secret@h/").unwrap());
        let _ = hops.handle(status, &headers);
        let mut transfer = Transfer::new(POLICY, Span { first, end: None });
        transfer.ask();
        if let Some(problem) = refusal(status, &headers) {
            transfer.handle_failure(problem, first);
        } else if let Ok(answer) = Answer::read(status, &headers, false, false) {
            transfer.handle_answer(answer);
            transfer.handle_data(bytes);
            transfer.handle_end(first);
            transfer.ask();
        }
    }

    /// Ranges and types composed of usual words, in any order.
    #[test]
    fn response_heads_of_usual_words_are_parsed(
        range in "(bytes|items)?[ =]?[0-9*]{0,21}-?[0-9]{0,21}/?[0-9*]{0,21}",
        media in "audio/[lL]16( ?; ?(rate|channels)? ?=? ?\"?-?[0-9]{0,12}\"?){0,4}",
    ) {
        let headers = headers(&[("content-range", &range), ("content-type", &media)]);
        for status in [200, 206, 416] {
            let _ = refusal(status, &headers);
            if let Ok(answer) = Answer::read(status, &headers, true, false)
                && let Media::L16 { rate, channels } = answer.media
            {
                prop_assert!(rate > 0 && (1..=64).contains(&channels));
            }
        }
    }

    #[test]
    fn no_error_text_contains_the_password(
        scheme in "(http|https|ftp|x|)(://|:|)",
        user in "[a-z]{0,3}",
        rest in "[a-z:/?#@%0-9\\[\\]]{0,20}",
    ) {
        let text = format!("{scheme}{user}:SECRET@{rest}");
        match Location::parse(&text) {
            Ok(location) => {
                prop_assert!(!location.shown().contains("SECRET"));
            }
            Err(error) => prop_assert!(!error.to_string().contains("SECRET"), "{error}"),
        }
    }
}
