//! Replays the inputs that the fuzzer has collected, with the stable compiler.

use std::path::{Path, PathBuf};

#[cfg(feature = "srtp")]
use proptest::prelude::*;
use threadbare_rtp::fuzzing;

/// A target in `fuzz/`: its name and its function.
type Target = (&'static str, fn(&[u8]));

const TARGETS: &[Target] = &[
    ("call", fuzzing::call),
    ("codec", fuzzing::codec),
    ("leg", fuzzing::leg),
    ("packet", fuzzing::packet),
    ("jitter", fuzzing::jitter),
    ("rtcp", fuzzing::rtcp),
    ("session", fuzzing::session),
    #[cfg(feature = "srtp")]
    ("protection", fuzzing::protection),
    #[cfg(feature = "srtp")]
    ("srtp", fuzzing::srtp),
];

/// Corpora that are not replayed here, because other crates do this, or because their targets are not built.
const ELSEWHERE: &[&str] = &[
    "audio_file",
    "calls",
    "forward",
    "frame",
    "loudness",
    "saved",
    "sdp",
    "ng",
    #[cfg(not(feature = "srtp"))]
    "protection",
    #[cfg(not(feature = "srtp"))]
    "srtp",
];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn no_file_of_a_corpus_breaks_an_invariant() {
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpus().join(name)).expect("each target has a corpus");
        let mut count = 0;
        for file in files {
            let path = file.expect("a readable folder").path();
            target(&std::fs::read(&path).expect("a readable file"));
            count += 1;
        }
        assert!(count >= 10, "{name}: only {count} files");
    }
}

#[test]
fn every_corpus_has_a_target() {
    for folder in std::fs::read_dir(corpus()).expect("fuzz/corpus") {
        let name = folder.expect("a readable folder").file_name();
        let mut targets = TARGETS.iter().map(|(target, _)| target).chain(ELSEWHERE);
        assert!(
            targets.any(|target| name == *target),
            "{} is replayed by no test",
            name.display()
        );
    }
}

#[cfg(feature = "srtp")]
proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Random bytes are rarely packets with consecutive numbers, so this test makes its input from such packets.
    #[test]
    fn random_calls_keep_the_fuzzing_invariants(
        suite: u8,
        steps in prop::collection::vec((any::<u8>(), 0..4_u8, 0..3_u32, 1..2000_u16, any::<bool>()), 0..60),
    ) {
        let mut data = vec![suite];
        let mut number = 65_000_u16;
        for (kind, argument, ssrc, step, is_rtcp) in steps {
            number = number.wrapping_add(step);
            let mut packet = if is_rtcp { vec![0x80, 201, 0, 1] } else { [&[0x80, 0][..], &number.to_be_bytes(), &[0; 4]].concat() };
            packet.extend(ssrc.to_be_bytes());
            packet.extend([7; 20]);
            data.extend([kind, argument, packet.len() as u8]);
            data.extend(packet);
        }
        fuzzing::protection(&data);
    }
}
