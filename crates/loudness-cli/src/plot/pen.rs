//! Draws lines, areas and text of an SVG.

use std::fmt::Write as _;

pub(super) fn add_line(
    picture: &mut String,
    from: (f64, f64),
    to: (f64, f64),
    colour: &str,
    width: f64,
    dashes: &str,
) {
    let _ = writeln!(
        picture,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"{}/>",
        from.0,
        from.1,
        to.0,
        to.1,
        dashed(dashes)
    );
}

pub(super) fn add_area(picture: &mut String, from: (f64, f64), to: (f64, f64), attributes: &str) {
    let _ = writeln!(
        picture,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" {attributes}/>",
        from.0,
        from.1,
        to.0 - from.0,
        to.1 - from.1
    );
}

pub(super) fn dashed(dashes: &str) -> String {
    match dashes {
        "" => String::new(),
        dashes => format!(" stroke-dasharray=\"{dashes}\""),
    }
}

pub(super) fn add_text(picture: &mut String, at: (f64, f64), attributes: &str, text: &str) {
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(
        picture,
        "<text x=\"{:.1}\" y=\"{:.1}\"{space}{attributes}>{}</text>",
        at.0,
        at.1,
        escaped(text)
    );
}

/// Shortens a title to the width beside the legend.
pub(super) fn shortened(title: &str) -> String {
    let mut characters = title.chars();
    let mut start: String = characters.by_ref().take(TITLE_CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        start.push('\u{2026}');
    }
    start
}

const TITLE_CHARACTERS_MAX: usize = 60;

/// Escapes text for XML. Characters that XML forbids become a space.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => safe.push(' '),
            control if control.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}
