//! Quotes input in error texts.

/// Maximum number of characters that are quoted, so that error texts do not grow with the input.
pub(crate) const SHOWN_CHARS_MAX: usize = 40;

/// Quotes input for an error text. Control characters and invalid UTF-8 are escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    // A character has at most 4 bytes.
    let head = &bytes[..bytes.len().min(4 * (SHOWN_CHARS_MAX + 1))];
    let text = String::from_utf8_lossy(head);
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}
