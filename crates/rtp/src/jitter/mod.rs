//! The jitter buffer.
