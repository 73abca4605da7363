//! Replays the inputs that fuzzing has collected, with the stable compiler. Then tests random inputs for a while.

use std::path::Path;

use proptest::prelude::*;
use threadbare_loudness::fuzzing;

#[test]
fn no_file_of_the_corpus_breaks_an_invariant() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/loudness");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("the target has a corpus") {
        let path = file.expect("a readable folder").path();
        fuzzing::loudness(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn random_bytes_keep_the_fuzzing_invariants(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzzing::loudness(&data);
    }

    /// The random inputs are audible signals. Random bytes rarely form such signals.
    #[test]
    fn random_signals_keep_the_fuzzing_invariants(
        head in prop::array::uniform8(any::<u8>()),
        samples in prop::collection::vec(-1.0f32..1.0, 1..200),
    ) {
        let samples = samples.into_iter().flat_map(f32::to_le_bytes);
        fuzzing::loudness(&head.into_iter().chain(samples).collect::<Vec<u8>>());
    }
}
