//! `docs/ng.md` says what the code does.

use threadbare_control::calls::words::documentation;

#[test]
fn the_documentation_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ng.md");
    let page = std::fs::read_to_string(path).expect("docs/ng.md");
    let (_, table) = page
        .split_once("<!-- words -->\n")
        .expect("the mark <!-- words -->");
    let table = table.trim();
    let expected = documentation();
    let expected = expected.trim();
    let differing = table
        .lines()
        .zip(expected.lines())
        .find(|(is, to_be)| is != to_be);
    assert_eq!(
        differing, None,
        "docs/ng.md and calls/words/table.rs differ (left: the page)"
    );
    assert_eq!(table.lines().count(), expected.lines().count());
}
