//! What one packet costs in the jitter buffer.

fn main() {}
