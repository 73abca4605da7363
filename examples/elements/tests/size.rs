//! Tests that the examples stay short, because they are meant to be read.
#![allow(missing_docs, reason = "a test")]

/// The number of lines is limited, without blank lines and comments.
#[test]
fn the_example_elements_are_short() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut lines = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        lines += text.lines().filter(is_code).count();
    }
    assert!((1..200).contains(&lines), "{lines} lines");
}
