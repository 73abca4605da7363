//! The fuzz target's body. It stands here so that the corpus in `fuzz/corpus/audio_file` replays under `cargo test` (`tests/corpus.rs`).
//!
//! It panics where an invariant does not hold.

use std::io::Cursor;

use threadbare_rtp::codec::{CHANNELS_MAX, SAMPLE_RATES_HZ};

use crate::serve::audio_file::{SAMPLES_MAX, open};

/// Target `audio_file`: the bytes are a file to be played. What comes of it can be played: whole frames, of numbers, of a rate and with channels that are
/// supported, and no more than memory is meant for.
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
