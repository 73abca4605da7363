//! Quotes input in messages for people.

/// Characters of a quoted input: messages must not grow with the input.
pub(crate) const SHOWN_CHARS_MAX: usize = 40;

/// Quotes input in a message. Control characters and invalid UTF-8 are escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    // A character has at most 4 bytes.
    let head = &bytes[..bytes.len().min(4 * (SHOWN_CHARS_MAX + 1))];
    let text = String::from_utf8_lossy(head);
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}
