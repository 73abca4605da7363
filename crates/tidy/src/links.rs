//! Checks the links of the documentation. Each link must lead to a file, and each `#anchor` to a heading in that file. The
//! book's table of contents (`docs/SUMMARY.md`) must list each page.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The links of a page, and the anchors to which links can lead.
#[derive(Debug, Default)]
pub struct Page {
    /// Targets of links and images, as they are written.
    pub targets: Vec<String>,
    /// Anchors of the page's headings, without `#`.
    pub anchors: BTreeSet<String>,
}

/// Parses a page. Links in code do not count.
pub fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.targets.push(dest_url.into_string());
            }
            Event::Html(html) | Event::InlineHtml(html) => page.targets.extend(sources(&html)),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let again = (1..).map(|number| format!("{anchor}-{number}"));
                let free = std::iter::once(anchor.clone())
                    .chain(again)
                    .find(|one| !page.anchors.contains(one));
                page.anchors.extend(free);
            }
            _ => {}
        }
    }
    page
}

/// Returns complaints about the links of one page. `pages` contains all pages by their paths from the root of the tree.
/// `exists` returns whether any other path exists.
pub fn check(
    path: &str,
    pages: &BTreeMap<String, Page>,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for target in &pages[path].targets {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let Some(file) = resolve(path, file) else {
            complaints.push(format!("{path}: {target} leaves the tree"));
            continue;
        };
        // mdbook changes the ending `.md` of a link to `.html` even if the book has no such page.
        let is_of_book = |path: &str| path.starts_with(BOOK);
        if is_of_book(path) && !is_of_book(&file) && file.ends_with(".md") {
            complaints.push(format!("{path}: {target} is not in the book"));
        }
        match pages.get(&file) {
            Some(page) if !anchor.is_empty() && !page.anchors.contains(anchor) => {
                complaints.push(format!("{path}: {target}: {file} has no such heading"));
            }
            None if !exists(&file) => complaints.push(format!("{path}: {target} does not exist")),
            _ => {}
        }
    }
    complaints
}

/// Returns complaints about pages that the book does not list, or lists twice.
pub fn check_summary(pages: &BTreeMap<String, Page>) -> Vec<String> {
    let mut listed: Vec<_> = pages.get(SUMMARY).map_or(Vec::new(), |summary| {
        let targets = summary.targets.iter();
        targets.filter_map(|one| resolve(SUMMARY, one)).collect()
    });
    listed.sort();
    let twice = listed.windows(2).filter(|pair| pair[0] == pair[1]);
    let mut complaints: Vec<_> = twice
        .map(|pair| format!("{SUMMARY} lists {} twice", pair[0]))
        .collect();
    let missing = pages
        .keys()
        .filter(|path| path.starts_with(BOOK) && *path != SUMMARY && !listed.contains(path));
    complaints.extend(missing.map(|path| format!("{SUMMARY} does not list {path}")));
    complaints
}

/// Returns the anchor that GitHub and mdbook give a heading. Letters, digits, `-` and `_` stay, and spaces become `-`.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns the values of `src` and `href` in HTML tags.
fn sources(html: &str) -> Vec<String> {
    let mut sources = Vec::new();
    for attribute in ["src=\"", "href=\""] {
        let after = html.split(attribute).skip(1);
        sources.extend(after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    sources
}

/// Returns the path from the root of the tree to the `target` of a link in the page `from`. Returns `None` if the target is
/// outside the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<String, Page> {
        let pages = texts.iter();
        pages
            .map(|(path, text)| ((*path).to_owned(), read(text)))
            .collect()
    }

    #[test]
    fn anchors_of_headings_are_those_of_github_and_mdbook() {
        let page =
            read("# Is it `ready`?\n\n## Against what you use: 2.0\n\n## again\n\n## Again\n");
        let expected = ["again", "again-1", "against-what-you-use-20", "is-it-ready"];
        assert_eq!(page.anchors.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn broken_links_are_found() {
        let pages = pages(&[
            (
                "docs/a.md",
                "[good](b/c.md#one), ![good](../x.svg), [good](#here)\n\n# Here\n",
            ),
            (
                "docs/b/c.md",
                "# One\n\n[no](../gone.md) [no](../a.md#there) [no](#here) [no](../../../x) [no](../../CHANGELOG.md)\n\n\
                 <img src=\"gone.svg\">\n\n```\n[code](gone.md)\n```\n\n`[code](gone.md)` [far](https://example.org/x#y)\n",
            ),
            ("CHANGELOG.md", "# Changelog\n"),
        ]);
        let exists = |path: &str| path == "x.svg";
        assert_eq!(check("docs/a.md", &pages, exists), Vec::<String>::new());
        let found = check("docs/b/c.md", &pages, exists);
        assert_eq!(
            found,
            [
                "docs/b/c.md: ../gone.md does not exist",
                "docs/b/c.md: ../a.md#there: docs/a.md has no such heading",
                "docs/b/c.md: #here: docs/b/c.md has no such heading",
                "docs/b/c.md: ../../../x leaves the tree",
                "docs/b/c.md: ../../CHANGELOG.md is not in the book",
                "docs/b/c.md: gone.svg does not exist",
            ]
        );
    }

    #[test]
    fn pages_that_the_book_omits_or_repeats_are_found() {
        let pages = pages(&[
            ("README.md", ""),
            ("docs/SUMMARY.md", "- [A](a.md)\n- [A](./a.md)\n"),
            ("docs/a.md", ""),
            ("docs/b/c.md", ""),
        ]);
        let expected = [
            "docs/SUMMARY.md lists docs/a.md twice",
            "docs/SUMMARY.md does not list docs/b/c.md",
        ];
        assert_eq!(check_summary(&pages), expected);
    }
}
