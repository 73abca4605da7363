//! Messages of all kinds. What is written can be read back, and no input causes a panic.

use proptest::prelude::*;
use threadbare_control::fuzzing;
use threadbare_control::ng::{
    COOKIE_BYTES_MAX, Dictionary, Encoding, FrameError, Framer, MESSAGE_BYTES_MAX, Message,
    NoMessage, Value, write,
};

/// Returns values whose strings come from `string`.
fn value(string: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        string.clone().prop_map(Value::from),
        any::<i64>().prop_map(Value::Integer),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        let entry = (string.clone(), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Value::List),
            prop::collection::vec(entry, 0..6)
                .prop_map(|entries| Value::Dictionary(entries.into_iter().collect())),
        ]
    })
}

fn dictionary(string: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = Dictionary> {
    let entry = (string.clone(), value(string));
    prop::collection::vec(entry, 0..8).prop_map(|entries| entries.into_iter().collect())
}

fn bytes() -> BoxedStrategy<Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20).boxed()
}

fn text() -> BoxedStrategy<Vec<u8>> {
    ".{0,12}".prop_map(String::into_bytes).boxed()
}

/// Returns pieces of messages.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "d",
        "e",
        "l",
        "i1e",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "=",
        " ",
        "7:command",
        "5:offer",
        "6:result",
        "5:flags",
        "10:rtpp-flags",
        "\"command\":\"offer\"",
        "\"flags\":[",
        "codec-strip-a",
        "3:sdp",
        "4:SDES",
        "5:codec",
        "1:a",
        "0:",
    ]);
    prop_oneof![
        8 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..5),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn bencode_is_read_as_written(dictionary in dictionary(bytes())) {
        let written = write(b"c", Encoding::Bencode, &dictionary);
        prop_assert_eq!(Message::split(&written).unwrap().decode(), Ok(dictionary));
    }

    #[test]
    fn json_is_read_as_written(dictionary in dictionary(text())) {
        let written = write(b"c", Encoding::Json, &dictionary);
        prop_assert_eq!(Message::split(&written).unwrap().decode(), Ok(dictionary));
    }

    /// Another implementation, serde_json, reads the same values. For it, the last value of a repeated key counts, and the order of keys
    /// does not matter.
    #[test]
    fn json_is_readable_by_other_parsers(dictionary in dictionary(text())) {
        let written = write(b"c", Encoding::Json, &dictionary);
        let other: serde_json::Value = serde_json::from_slice(&written[2..]).unwrap();
        prop_assert_eq!(plain(&Value::Dictionary(dictionary)), other);
    }

    /// A connection returns the messages that were written, however the stream is divided.
    #[test]
    fn messages_are_found_in_a_stream(
        said in prop::collection::vec((dictionary(text()), any::<bool>(), "[ \r\n]{0,2}"), 1..5),
        cuts in prop::collection::vec(1usize..40, 1..20),
    ) {
        let mut stream = Vec::new();
        let mut written = Vec::new();
        for (dictionary, is_json, between) in said {
            let encoding = if is_json { Encoding::Json } else { Encoding::Bencode };
            let message = write(b"cookie", encoding, &dictionary);
            stream.extend_from_slice(&message);
            stream.extend_from_slice(between.as_bytes());
            written.push(message);
        }
        let mut framer = Framer::default();
        let mut found = Vec::new();
        let mut rest = stream.as_slice();
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            framer.handle_bytes(piece);
            while let Some(message) = framer.poll_message().unwrap() {
                found.push(message);
            }
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(!framer.is_within());
        prop_assert_eq!(found, written);
    }

    #[test]
    fn any_bytes_keep_the_fuzzing_invariants(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::ng(&data);
    }

    #[test]
    fn plausible_messages_are_handled(
        head in prop::sample::select(vec!["c d7:command5:offer", "c {\"command\":\"offer\",", "c d", "c {", ""]),
        pieces in prop::collection::vec(piece(), 0..30),
    ) {
        let mut data = head.as_bytes().to_vec();
        data.extend(pieces.concat());
        fuzzing::ng(&data);
    }

    #[test]
    fn any_flags_keep_the_fuzzing_invariants(flags in "[a=\\[\\] -]{0,20}") {
        fuzzing::ng(format!("c d7:command5:offer10:rtpp-flags{}:{flags}e", flags.len()).as_bytes());
    }
}

#[test]
fn stream_without_messages_fails_at_the_first_wrong_byte() {
    let refused = |bytes: &[u8]| {
        let mut framer = Framer::default();
        framer.handle_bytes(bytes);
        framer.poll_message().unwrap_err()
    };
    let cookie = vec![b'c'; COOKIE_BYTES_MAX + 1];
    assert_eq!(refused(&cookie), NoMessage::Cookie.into());
    assert_eq!(refused(b"GET / HTTP/1.1"), NoMessage::Dictionary.into());
    assert_eq!(refused(b"c dx"), FrameError::Bencode(b'x'));
    let long = format!("c d1:a{}:", MESSAGE_BYTES_MAX + 1);
    assert_eq!(refused(long.as_bytes()), FrameError::TooLong);
    let endless = [b"c {\"".as_slice(), &vec![b'a'; 2 * MESSAGE_BYTES_MAX]].concat();
    assert_eq!(refused(&endless), FrameError::TooLong);
}

fn plain(value: &Value) -> serde_json::Value {
    let string = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match value {
        Value::Bytes(bytes) => string(bytes).into(),
        Value::Integer(number) => (*number).into(),
        Value::List(values) => values.iter().map(plain).collect(),
        Value::Dictionary(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (string(key), plain(value)));
            serde_json::Value::Object(entries.collect())
        }
    }
}
