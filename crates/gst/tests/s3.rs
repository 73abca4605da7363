//! Objects in S3: `awss3sink`, `ts-s3sink`, `awss3src`, `ts-s3src`, and `threadbare-s3` below them. The server is moto; what is expected is what
//! "Amazon S3 API Reference" says of it, what the stock elements do, and what the elements' page says (docs/elements/s3.md).

mod common;
#[path = "common/store.rs"]
mod store;

use common::*;
use gst::prelude::*;
use store::*;

const MIB: usize = 1 << 20;

/// Bytes that no other number makes.
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

/// The end of the stream. Fails on an error.
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
fn a_large_object_goes_in_parts() {
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
