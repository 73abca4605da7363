//! Replays what fuzzing has found worth keeping, with the stable compiler.

use std::path::{Path, PathBuf};

use threadbare_rtp::fuzzing;

/// A target's name in `fuzz/`, and what it does with its bytes.
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
    ("srtp", fuzzing::srtp),
];

/// Corpora of other crates, which replay them, and of what is not built.
const ELSEWHERE: &[&str] = &[
    "calls",
    "loudness",
    "saved",
    "sdp",
    "ng",
    #[cfg(not(feature = "srtp"))]
    "srtp",
];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_corpus_replays() {
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
            "{} is replayed by nobody",
            name.display()
        );
    }
}
