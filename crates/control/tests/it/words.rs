//! `docs/ng.md` and `docs/missing.md` describe what the code does.

use threadbare_control::calls::words::{Fate, Place, WORDS, documentation, missing_documentation};

#[test]
fn the_documentation_has_the_table_of_words() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ng.md");
    let page = std::fs::read_to_string(path).expect("docs/ng.md");
    let (_, table) = page
        .split_once("<!-- words -->\n")
        .expect("the mark <!-- words -->");
    assert_same("docs/ng.md", table, &documentation());
}

#[test]
fn the_page_of_missing_parts_has_each_missing_word() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/missing.md");
    let page = std::fs::read_to_string(path).expect("docs/missing.md");
    let (_, table) = page
        .split_once("<!-- words -->\n")
        .expect("the mark <!-- words -->");
    assert_same("docs/missing.md", table, &missing_documentation());
}

fn assert_same(page: &str, table: &str, expected: &str) {
    let (table, expected) = (table.trim(), expected.trim());
    let differing = table
        .lines()
        .zip(expected.lines())
        .find(|(is, to_be)| is != to_be);
    assert_eq!(
        differing, None,
        "{page} and calls/words/table.rs differ (left: the page)"
    );
    assert_eq!(table.lines().count(), expected.lines().count());
}

/// The page lists the missing words for its readers. The list must agree with the table that the code uses.
#[test]
fn missing_words_are_listed_on_the_page() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ng.md");
    let page = std::fs::read_to_string(path).expect("docs/ng.md");
    let (_, list) = page.split_once("## Not supported").expect("the list");
    let (list, _) = list.split_once("\n## ").expect("the next section");
    let (refused, warned) = list
        .split_once("| missing part | words that cause a warning |")
        .expect("both lists");
    for word in WORDS {
        let name = match word.place {
            Place::Value(key) => key,
            Place::Key | Place::Flag | Place::Codec => word.name,
        };
        let list = match word.fate {
            Fate::Done | Fate::Ignored => continue,
            Fate::Refused => refused,
            Fate::Warned => warned,
        };
        assert!(list.contains(&format!("`{name}`")), "{word:?}");
    }
}
