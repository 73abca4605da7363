//! The manual page threadbare.toml(5). It is made from the annotated example configurations. A comment in an example becomes the text about
//! the key below it.

use clap_mangen::roff::{Roff, bold, roman};

use super::{list_pages, literal, write_title};

/// A part of an example configuration.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    /// The header of a table, and the comment above it.
    Table { header: &'a str, text: Vec<&'a str> },
    /// Keys with their values, and the comment above them.
    Keys {
        lines: Vec<&'a str>,
        text: Vec<&'a str>,
    },
}

/// Returns the page.
pub(super) fn page(date: &str) -> Roff {
    let mut roff = Roff::new();
    write_title(&mut roff, "threadbare.toml", "5", date);
    roff.control("SH", ["NAME"]);
    roff.text([roman(
        "threadbare.toml - streams and calls of the RTP gateway threadbare",
    )]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("/etc/threadbare/threadbare.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    for (at, paragraph) in DESCRIPTION.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*paragraph)]);
    }
    for (title, example) in EXAMPLES {
        roff.control("SH", [title]);
        let mut is_at_header = true;
        for part in parts(example) {
            write_part(&mut roff, &part, is_at_header);
            is_at_header = matches!(&part, Part::Table { text, .. } if text.is_empty());
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    let commands = ["threadbare", "threadbare-run", "threadbare-serve"];
    list_pages(&mut roff, commands.map(|name| (name, "1")).into_iter());
    roff
}

/// Writes a part to the page. `is_at_header` means that the part follows a header, which has already started a paragraph.
fn write_part(roff: &mut Roff, part: &Part<'_>, is_at_header: bool) {
    match part {
        Part::Table { header, text } => {
            roff.control("SS", [*header]);
            if !text.is_empty() {
                roff.text([roman(text.join(" "))]);
            }
        }
        Part::Keys { lines, text } if text.is_empty() => {
            if !is_at_header {
                roff.control("PP", []);
            }
            literal(roff, lines.iter().copied());
        }
        Part::Keys { lines, text } => {
            for (at, line) in lines.iter().enumerate() {
                roff.control(if at == 0 { "TP" } else { "TQ" }, []);
                roff.text([bold(*line)]);
            }
            roff.text([roman(text.join(" "))]);
        }
    }
}

/// Splits an example into its parts, without the comment at the top of the file.
fn parts(example: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut text = Vec::new();
    for line in example.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        if line.is_empty() {
            text.clear();
        } else if is_header(bare) {
            let text = std::mem::take(&mut text);
            parts.push(Part::Table { header: bare, text });
        } else if is_key(bare) {
            match parts.last_mut() {
                Some(Part::Keys { lines, .. }) if text.is_empty() => lines.push(bare),
                _ => parts.push(Part::Keys {
                    lines: vec![bare],
                    text: std::mem::take(&mut text),
                }),
            }
        } else {
            text.push(bare);
        }
    }
    parts
}

fn is_header(line: &str) -> bool {
    line.starts_with('[') && line.ends_with(']') && !line.contains(' ')
}

fn is_key(line: &str) -> bool {
    let name_end = line.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-');
    name_end.is_some_and(|at| at > 0 && line[at..].starts_with(" = "))
}

const DESCRIPTION: [&str; 2] = [
    "The file that threadbare run and threadbare serve read. The file is in TOML. It lists streams, or configures the calls of a SIP \
    proxy, or does both. Unknown keys are errors, \
     so that misspelt keys are noticed; threadbare run FILE --check lists all mistakes.",
    "For a stream, only name and listen are required. For calls, one table is enough. The values below are the defaults, unless the text says otherwise. \
     At SIGHUP, the gateway reads the file again and applies the changes; everything else continues.",
];

const EXAMPLES: [(&str, &str); 2] = [
    ("STREAMS", include_str!("gateway.toml")),
    ("CALLS", include_str!("calls.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use threadbare_config::TABLES;

    #[test]
    fn a_comment_describes_the_keys_below_it() {
        let example = "# About the file.\n\n# Of the table.\n[a]\n# Both\n# lines.\nx-y = 1\n# z = 2\n\n# [[b]]\nname = \"n\"\n";
        let keys = |lines, text| Part::Keys { lines, text };
        let table = |header, text| Part::Table { header, text };
        assert_eq!(
            parts(example),
            [
                table("[a]", vec!["Of the table."]),
                keys(vec!["x-y = 1", "z = 2"], vec!["Both", "lines."]),
                table("[[b]]", vec![]),
                keys(vec!["name = \"n\""], vec![]),
            ]
        );
    }

    /// A text that looks like a key or header is not mistaken for one.
    #[test]
    fn text_is_not_mistaken_for_keys_or_headers() {
        for line in ["a = 1", "rtcp-port = 5100", "address-v6 = \"x\""] {
            assert!(is_key(line), "{line}");
        }
        for line in ["Without it: a = 1", "", "= 1", "A = 1"] {
            assert!(!is_key(line), "{line}");
        }
        assert!(is_header("[[stream.fallback]]") && !is_header("[1, 2]"));
    }

    /// The page has every table and key that the configuration's parser knows.
    #[test]
    fn every_table_and_key_of_the_parser_is_in_the_page() {
        let all: Vec<Part<'_>> = EXAMPLES.iter().flat_map(|(_, text)| parts(text)).collect();
        for (title, keys) in TABLES {
            let mut inside = false;
            let mut found = Vec::new();
            let wanted = title.replace("NAME", "default").replace("KIND", "silence");
            for part in &all {
                match part {
                    Part::Table { header, .. } => inside = *header == wanted,
                    Part::Keys { lines, .. } if inside => {
                        found.extend(lines.iter().filter_map(|line| line.split(' ').next()));
                    }
                    Part::Keys { .. } => {}
                }
            }
            for key in keys {
                let key = key.replace('_', "-");
                // A key of [defaults] is also a key of [[stream]], and is explained there.
                let shown =
                    title == "[[stream]]" && TABLES[2].1.contains(&key.replace('-', "_").as_str());
                let is_list = key == "fallback";
                assert!(
                    shown || is_list || found.contains(&key.as_str()),
                    "{title}: {key}"
                );
            }
        }
    }
}
