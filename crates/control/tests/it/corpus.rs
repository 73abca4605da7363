//! Replays the corpora of the fuzz targets with the stable compiler.

use std::path::Path;

use threadbare_control::fuzzing;

/// A target in `fuzz/`: its name and its function.
type Target = (&'static str, fn(&[u8]));

const TARGETS: &[Target] = &[
    ("calls", fuzzing::calls),
    ("ng", fuzzing::ng),
    ("saved", fuzzing::saved),
    ("sdp", fuzzing::sdp),
];

#[test]
fn no_file_of_a_corpus_breaks_an_invariant() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpus.join(name)).expect("each target has a corpus");
        let mut count = 0;
        for file in files {
            let path = file.expect("a readable folder").path();
            target(&std::fs::read(&path).expect("a readable file"));
            count += 1;
        }
        assert!(count >= 10, "{name}: only {count} files");
    }
}
