//! Replays what fuzzing has found worth keeping, with the stable compiler, and goes on at random for a while.

use std::path::Path;

use proptest::prelude::*;
use threadbare::fuzzing;

#[test]
fn the_corpus_replays() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/audio_file");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("the target has a corpus") {
        let path = file.expect("a readable folder").path();
        fuzzing::audio_file(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn random_bytes_hold_what_fuzzing_does(data in prop::collection::vec(any::<u8>(), 0..800)) {
        fuzzing::audio_file(&data);
    }

    /// As a disk damages the files that are there.
    #[test]
    fn damaged_files_hold_what_fuzzing_does(
        file: prop::sample::Index, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/audio_file");
        let mut files: Vec<_> = std::fs::read_dir(corpus).expect("a corpus").map(|file| file.expect("readable").path()).collect();
        files.sort();
        let mut bytes = std::fs::read(file.get(&files)).expect("a readable file");
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        fuzzing::audio_file(&bytes);
    }
}
