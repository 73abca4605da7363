//! Replays the fuzzer's corpus with the stable compiler, and then tries random changes.

use std::path::Path;

use proptest::prelude::*;
use threadbare_audio_file::fuzzing;

#[test]
fn no_file_of_the_corpus_breaks_an_invariant() {
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
    fn random_bytes_keep_the_fuzzing_invariants(data in prop::collection::vec(any::<u8>(), 0..800)) {
        fuzzing::audio_file(&data);
    }

    /// Damages the existing files as a faulty disk would.
    #[test]
    fn damaged_files_keep_the_fuzzing_invariants(
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
