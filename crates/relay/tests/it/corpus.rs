//! Replays the inputs that the fuzzer has collected with the stable compiler, and continues with random ones for a while.

use std::path::Path;

use proptest::prelude::*;
use threadbare_relay::fuzzing;

#[test]
fn no_file_of_the_corpus_breaks_an_invariant() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/forward");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("the target has a corpus") {
        let path = file.expect("a readable folder").path();
        fuzzing::forward(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn random_bytes_keep_the_fuzzing_invariants(data in prop::collection::vec(any::<u8>(), 0..800)) {
        fuzzing::forward(&data);
    }

    /// The input consists of whole steps, with datagrams from addresses that a side knows.
    #[test]
    fn random_steps_keep_the_fuzzing_invariants(
        settings: u8,
        steps in prop::collection::vec((any::<u8>(), 0..60_u8, prop::collection::vec(any::<u8>(), 0..20)), 0..80),
    ) {
        let step = |(kind, ms, bytes): (u8, u8, Vec<u8>)| [&[kind, ms, bytes.len() as u8], &bytes[..]].concat();
        let steps: Vec<u8> = steps.into_iter().flat_map(step).collect();
        fuzzing::forward(&[&[settings], &steps[..]].concat());
    }
}
