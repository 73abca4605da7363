//! Target `jitter`: the bytes are arrivals and jumps in time.

/// To be filled in with the jitter buffer.
pub fn jitter(_data: &[u8]) {}
