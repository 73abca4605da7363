//! Session descriptions of all kinds are written as they were read.

use proptest::prelude::*;
use threadbare_control::fuzzing;
use threadbare_control::sdp::Sdp;

/// Returns valid lines, malformed lines, and lines of unknown kinds.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "m=audio 4000 RTP/AVP 0 8 101",
        "m=audio 0 RTP/AVP 0",
        "m=audio 4000/2  RTP/SAVP 96 97",
        "m=image 5000 udptl t38",
        "m=",
        "m=audio x",
        "o=- 1 1 IN IP4 192.0.2.1",
        "s=-",
        "c=IN IP4 0.0.0.0",
        "c=IN IP6 2001:db8::1",
        "c=IN",
        "t=0 0",
        "a=sendonly",
        "a=inactive",
        "a=rtpmap:96 opus/48000/2",
        "a=rtpmap:101 telephone-event/8000",
        "a=rtpmap:97",
        "a=fmtp:101 0-15",
        "a=fmtp:96",
        "a=rtcp-fb:96 nack",
        "a=rtcp-fb:* nack",
        "a=ptime:20",
        "a=rtcp:4001",
        "a=rtcp-mux",
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz|2^20|1:4",
        "a=ice-ufrag:x",
        "a=",
        "",
        "=",
    ]);
    let own = prop::collection::vec(
        any::<u8>().prop_filter("a break", |byte| *byte != b'\n'),
        0..12,
    );
    prop_oneof![
        4 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => own,
    ]
}

fn description() -> impl Strategy<Value = Vec<u8>> {
    let ending = || prop::sample::select(vec!["\r\n", "\n"]);
    let lines = prop::collection::vec((line(), ending()), 0..30);
    (ending(), lines, any::<bool>()).prop_map(|(first, lines, is_cut)| {
        let mut text = format!("v=0{first}").into_bytes();
        for (line, ending) in lines {
            text.extend(line);
            text.extend(ending.bytes());
        }
        if is_cut {
            text.truncate(text.trim_ascii_end().len().max(3));
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn parsed_text_round_trips(text in description()) {
        let sdp = Sdp::parse(&text).unwrap();
        prop_assert_eq!(sdp.to_bytes(), text);
    }

    #[test]
    fn edits_keep_the_fuzzing_invariants(text in description()) {
        fuzzing::sdp(&text);
    }

    #[test]
    fn any_bytes_keep_the_fuzzing_invariants(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::sdp(&data);
        fuzzing::sdp(&[b"v=0\r\nm=audio 1 RTP/AVP ", data.as_slice()].concat());
        fuzzing::sdp(&[b"v=0\nm=audio 1 RTP/AVP 0\na=crypto:1 X inline:", data.as_slice()].concat());
    }
}
