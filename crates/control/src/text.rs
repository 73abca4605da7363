//! Input in messages to people.

/// Of an input that a message to people quotes: errors must not grow with the input.
pub(crate) const SHOWN_CHARS_MAX: usize = 40;

/// Quoted text for a message to people; control characters and what is no UTF-8 are escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    // A character has up to 4 bytes.
    let head = &bytes[..bytes.len().min(4 * (SHOWN_CHARS_MAX + 1))];
    let text = String::from_utf8_lossy(head);
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}
