//! Replays the inputs that fuzzing has collected, built with the stable compiler. Then tests some random inputs.

use std::path::Path;

use proptest::prelude::*;
use threadbare_xdp::fuzzing;

#[test]
fn no_file_of_the_corpus_breaks_an_invariant() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/frame");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("a corpus of the fuzz target") {
        let path = file.expect("a readable folder").path();
        fuzzing::frame(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Random bytes after nearly valid headers.
    #[test]
    fn random_frames_keep_the_fuzzing_invariants(
        is_v6: bool, tail in prop::collection::vec(any::<u8>(), 0..200), at: usize, value: u8,
    ) {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let length = (tail.len() as u16 + 8).to_be_bytes();
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], 17, 64]);
            frame.extend([0x20; 32]);
        } else {
            let total = (tail.len() as u16 + 28).to_be_bytes();
            let mut header = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let sum: u32 = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([0x08, 0x00]);
            frame.extend(header);
        }
        frame.extend([0x13, 0x88, 0x13, 0x8c, length[0], length[1], 0, 0]);
        frame.extend(tail);
        fuzzing::frame(&frame);
        let at = at % frame.len();
        frame[at] = value;
        fuzzing::frame(&frame);
    }
}
