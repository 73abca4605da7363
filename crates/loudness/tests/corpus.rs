//! Replays what fuzzing has found worth keeping, with the stable compiler.

use std::path::Path;

#[test]
fn the_corpus_replays() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/loudness");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("the target has a corpus") {
        let path = file.expect("a readable folder").path();
        threadbare_loudness::fuzzing::loudness(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}
