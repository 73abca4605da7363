//! Finds marks of contorted English in documentation, comments and texts that users read.
//!
//! A mark is a phrase that makes readers stop. It is only a hint, so a file may contain a small share of marked sentences.

use proc_macro2::{TokenStream, TokenTree};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Maximum number of marked sentences in a file, in percent of its sentences. One marked sentence is always allowed.
pub const MARKED_PERCENT_MAX: usize = 2;

/// A sentence and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The line on which the sentence's paragraph starts, counted from 1.
    pub line: usize,
    /// The words, separated by single spaces.
    pub text: String,
}

/// Returns the name of the first mark in a sentence, if any.
pub fn mark_of(sentence: &str) -> Option<&'static str> {
    let lower = sentence.to_lowercase();
    let is_edge = |c: char| !(c.is_alphanumeric() || c == '_');
    let words: Vec<&str> = lower
        .split_whitespace()
        .map(|word| word.trim_matches(is_edge))
        .collect();
    let has = |first: &[&str], second: &[&str]| {
        words
            .windows(2)
            .any(|two| first.contains(&two[0]) && second.contains(&two[1]))
    };
    // A placeholder such as `{what}` is not a word.
    let is_word = sentence.starts_with(char::is_alphabetic);
    let first_is = |list: &[&str]| is_word && words.first().is_some_and(|word| list.contains(word));
    let is_question = sentence.trim_end().ends_with('?');
    let marks = [
        (
            "starts with a pronoun clause",
            !is_question
                && (first_is(&["what", "who", "whoever", "those"])
                    || words.starts_with(&["that", "which"])),
        ),
        (
            "of/by/with what or who",
            has(
                &["of", "by", "with", "to", "for", "from", "than", "as"],
                &["what", "who", "whoever"],
            ),
        ),
        (
            "nobody/somebody/anybody/whoever",
            words
                .iter()
                .any(|word| ["nobody", "somebody", "anybody", "whoever"].contains(word)),
        ),
        (
            "tells/is told",
            has(&["is", "are", "was", "were", "be", "been"], &["told"])
                || has(&["tell", "tells"], &["it", "them", "him"]),
        ),
        (
            "goes on",
            has(&["go", "goes", "going", "went", "gone"], &["on"]),
        ),
        ("anew", words.contains(&"anew")),
        ("of its own", is_of_its_own(&words)),
        ("allowed is", has(&["allowed"], &["is", "are"])),
        ("is no X", has_is_no(&words)),
    ];
    marks
        .into_iter()
        .find_map(|(name, is_there)| is_there.then_some(name))
}

/// Whether a sentence contains a phrase like "it is no URI", instead of "it is not a URI". "There is no URI" is plain.
fn has_is_no(words: &[&str]) -> bool {
    let is_verb = |at: usize| ["is", "are", "was", "were"].contains(&words[at]);
    (0..words.len().saturating_sub(2)).any(|at| {
        is_verb(at)
            && words[at + 1] == "no"
            && words[at + 2] != "longer"
            && words[at + 2].bytes().all(|byte| byte.is_ascii_lowercase())
            && (at == 0 || words[at - 1] != "there")
    })
}

fn is_of_its_own(words: &[&str]) -> bool {
    words.windows(3).any(|three| {
        three[0] == "of"
            && ["its", "their", "your", "our", "one's"].contains(&three[1])
            && three[2] == "own"
    })
}

/// Returns a complaint for each marked sentence of a file, or none if the share of marked sentences is small enough.
pub fn check(path: &str, sentences: &[Sentence]) -> Vec<String> {
    let complaints: Vec<String> = sentences
        .iter()
        .filter_map(|sentence| {
            let mark = mark_of(&sentence.text)?;
            Some(format!(
                "{path}:{}: [{mark}] {}",
                sentence.line, sentence.text
            ))
        })
        .collect();
    let allowed = (sentences.len() * MARKED_PERCENT_MAX / 100).max(1);
    if complaints.len() > allowed {
        complaints
    } else {
        Vec::new()
    }
}

/// Returns the sentences of a Markdown page, without code.
pub fn of_markdown(text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let (mut paragraph, mut line, mut code) = (String::new(), 1, false);
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => code = true,
            Event::End(TagEnd::CodeBlock) => code = false,
            Event::Start(Tag::Paragraph | Tag::Item | Tag::Heading { .. }) => {
                split_into(&mut found, line, &paragraph, WORDS_MIN);
                paragraph.clear();
                line = text[..range.start].matches('\n').count() + 1;
            }
            Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::Heading(_)) => {
                split_into(&mut found, line, &paragraph, WORDS_MIN);
                paragraph.clear();
            }
            Event::Text(part) if !code => paragraph.push_str(&part),
            Event::Code(part) => paragraph.push_str(&format!("`{part}`")),
            Event::SoftBreak | Event::HardBreak => paragraph.push(' '),
            _ => {}
        }
    }
    split_into(&mut found, line, &paragraph, WORDS_MIN);
    found
}

/// Returns the sentences of rustdoc, comments and string literals in Rust source.
///
/// # Errors
/// Fails if the source does not consist of valid Rust tokens.
pub fn of_rust(source: &str) -> Result<Vec<Sentence>, String> {
    let stream: TokenStream = source
        .parse()
        .map_err(|error| format!("not Rust: {error}"))?;
    let mut found = Vec::new();
    of_literals(stream, &mut found);
    of_comments(source, &["//!", "///", "//"], &mut found);
    Ok(found)
}

/// Returns the sentences of an HTML page or a script: text between tags, string literals and comments.
pub fn of_page(source: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    of_comments(source, &["//"], &mut found);
    for (number, line) in (1..).zip(source.lines()) {
        if line.trim_start().starts_with("//") {
            continue;
        }
        let between_tags = line.split('<').filter_map(|part| part.split_once('>'));
        for (_, text) in between_tags {
            split_into(&mut found, number, text, WORDS_MIN);
        }
        for quote in ['"', '\'', '`'] {
            for text in line.split(quote).skip(1).step_by(2) {
                split_into(&mut found, number, text, WORDS_MIN);
            }
        }
    }
    found
}

/// Minimum number of words in a sentence. Shorter texts are names and fragments.
const WORDS_MIN: usize = 4;

/// Collects the sentences of string literals. It skips `doc` attributes, into which the compiler turns doc comments, because
/// [`of_comments`] reads doc comments.
fn of_literals(stream: TokenStream, found: &mut Vec<Sentence>) {
    let mut tokens = stream.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => of_literals(group.stream(), found),
            TokenTree::Ident(ident) if ident == "doc" => {
                let is_assignment =
                    matches!(tokens.peek(), Some(TokenTree::Punct(sign)) if sign.as_char() == '=');
                if is_assignment {
                    tokens.nth(1);
                }
            }
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                let text = literal.to_string();
                let inside = text
                    .split_once('"')
                    .and_then(|(_, rest)| Some(rest.rsplit_once('"')?.0));
                let plain = inside
                    .unwrap_or("")
                    .replace("\\n", ". ")
                    .replace("\\\"", "\"");
                split_into(found, line, &plain.replace("\\\n", " "), WORDS_MIN);
            }
            _ => {}
        }
    }
}

/// Collects the sentences of comments that fill whole lines. Adjacent lines with the same comment sign are one paragraph. Code
/// blocks are skipped.
fn of_comments(source: &str, signs: &[&str], found: &mut Vec<Sentence>) {
    let sign_of = |line: &str| signs.iter().find(|sign| line.starts_with(**sign)).copied();
    let (mut paragraph, mut first, mut last, mut code) = (String::new(), 0, None, false);
    for (number, line) in (1..).zip(source.lines().chain([""])) {
        let line = line.trim_start();
        let sign = sign_of(line);
        let text = sign.map_or("", |sign| line[sign.len()..].trim());
        let ends = sign.is_none() || sign != last || text.is_empty() || text.starts_with("```");
        if ends {
            split_into(found, first, &paragraph, WORDS_MIN);
            paragraph.clear();
            first = number;
        }
        if sign.is_none() || sign != last {
            code = false;
        }
        last = sign;
        if text.starts_with("```") {
            code = !code;
        } else if !code && !text.starts_with(['|', '#']) {
            paragraph.push(' ');
            paragraph.push_str(text);
        }
    }
}

/// Splits a paragraph into sentences. A sentence ends with punctuation and a space, if a capital letter or an opening sign
/// follows.
fn split_into(found: &mut Vec<Sentence>, line: usize, paragraph: &str, words_min: usize) {
    let mut keep = |words: &[&str]| {
        if words.len() >= words_min {
            let text = words.join(" ");
            found.push(Sentence { line, text });
        }
    };
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let mut start = 0;
    for end in 1..words.len() {
        let begins = words[end].starts_with(|c: char| c.is_uppercase() || "`[*(".contains(c));
        if words[end - 1].ends_with(['.', '!', '?', ';']) && begins {
            keep(&words[start..end]);
            start = end;
        }
    }
    keep(&words[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_found() {
        for (sentence, mark) in [
            (
                "What is not taken stays there.",
                "starts with a pronoun clause",
            ),
            ("Those who listen hear it.", "starts with a pronoun clause"),
            ("It is a list of what is open.", "of/by/with what or who"),
            (
                "The port is free, and nobody has it.",
                "nobody/somebody/anybody/whoever",
            ),
            ("The owner is told of the end.", "tells/is told"),
            ("The stream goes on after that.", "goes on"),
            ("The table is built anew.", "anew"),
            ("Each has a thread of its own.", "of its own"),
            ("For the period, allowed is 1 to 60.", "allowed is"),
            ("The text is no URI at all.", "is no X"),
        ] {
            assert_eq!(mark_of(sentence), Some(mark), "{sentence}");
        }
    }

    #[test]
    fn plain_sentences_have_no_mark() {
        for sentence in [
            "What is missing?",
            "The call is no longer up.",
            "There is no such call, and there are no parties.",
            "{what}: enough for {} streams",
            "The listener owns its own ring.",
            "The next call reuses the sockets.",
            "It is the owner who decides.",
        ] {
            assert_eq!(mark_of(sentence), None, "{sentence}");
        }
    }

    #[test]
    fn markdown_is_read_without_code() {
        let page = "# A title of four words\n\nOne sentence is here. Another `x` is there.\n\n```\nwhat is in here\n```\n- An item of a list\n";
        let texts: Vec<(usize, String)> = of_markdown(page)
            .into_iter()
            .map(|one| (one.line, one.text))
            .collect();
        assert_eq!(
            texts,
            [
                (1, "A title of four words".to_owned()),
                (3, "One sentence is here.".to_owned()),
                (3, "Another `x` is there.".to_owned()),
                (8, "An item of a list".to_owned()),
            ]
        );
    }

    #[test]
    fn rust_source_is_read_with_doc_comments_comments_and_texts() {
        let source = "/// One sentence\n/// on two lines.\n/// ```\n/// what is in here\n/// ```\nfn f() {\n    // A comment of the body.\n    g(\"A text for the user: {x}\");\n}\n";
        let mut texts: Vec<(usize, String)> = of_rust(source)
            .expect("Rust")
            .into_iter()
            .map(|one| (one.line, one.text))
            .collect();
        texts.sort();
        assert_eq!(
            texts,
            [
                (1, "One sentence on two lines.".to_owned()),
                (7, "A comment of the body.".to_owned()),
                (8, "A text for the user: {x}".to_owned()),
            ]
        );
    }

    #[test]
    fn a_page_is_read_with_labels_and_texts() {
        let source = "<p>Nobody has the call</p>\n  set(\"the token is another one\");\n";
        let texts: Vec<String> = of_page(source).into_iter().map(|one| one.text).collect();
        assert_eq!(texts, ["Nobody has the call", "the token is another one"]);
    }

    #[test]
    fn a_file_may_have_one_marked_sentence() {
        let marked = Sentence {
            line: 1,
            text: "The table is built anew.".to_owned(),
        };
        assert_eq!(
            check("a.md", std::slice::from_ref(&marked)),
            Vec::<String>::new()
        );
        assert_eq!(check("a.md", &[marked.clone(), marked]).len(), 2);
    }
}
