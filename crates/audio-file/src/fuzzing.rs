//! The fuzz target's body. It is here so that the corpus in `fuzz/corpus/audio_file` replays under `cargo test`
//! (`tests/corpus.rs`).
//!
//! It panics if an invariant does not hold.

use std::io::Cursor;

use threadbare_rtp::codec::{CHANNELS_MAX, SAMPLE_RATES_HZ};

use crate::audio_file::{SAMPLES_MAX, open};

/// Target `audio_file`: the bytes are a file to play. The result must be playable: whole frames of finite numbers, with a
/// supported rate and number of channels, within the memory limit.
pub fn audio_file(data: &[u8]) {
    let Ok(opened) = open(Box::new(Cursor::new(data.to_vec()))) else {
        return;
    };
    let Ok(clip) = opened.decode() else {
        return;
    };
    assert!(SAMPLE_RATES_HZ.contains(&clip.rate_hz));
    assert!((1..=CHANNELS_MAX).contains(&clip.channels));
    assert!(!clip.pcm.is_empty() && clip.pcm.len() <= SAMPLES_MAX);
    assert!(clip.pcm.len().is_multiple_of(usize::from(clip.channels)));
    assert!(clip.pcm.iter().all(|sample| sample.is_finite()));
    assert_eq!(clip.times, 1);
}
