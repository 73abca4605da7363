//! The drawings of the README.

/// Each drawing's path, and the drawing.
pub(super) fn all() -> [(&'static str, String); 0] {
    []
}
