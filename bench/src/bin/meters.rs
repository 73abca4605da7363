//! Measures the meters of 2000 live stereo streams at 48 kHz, with integrated loudness, range and true peak. Every 20 ms, 20 ms
//! of audio are added to each meter, and each meter is read. Prints the share of one core's time that this takes, in per cent.

use std::hint::black_box;

use anyhow::Result;
use threadbare_bench::measure::thread_cpu;
use threadbare_loudness::{Meter, Mode};

const STREAMS: usize = 2000;
const TICK_MS: f64 = 20.0;
const TICK_SAMPLES: usize = 2 * 960;
/// Number of additions to each meter. They are four seconds of audio, so that the windows of 3 s are full in the end.
const TICKS: u32 = 200;

fn main() -> Result<()> {
    let live = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
    let mut batch = Meter::builder(48_000, 2).mode(live).build_batch(STREAMS)?;
    let audio: Vec<Vec<f32>> = (0..STREAMS as u32).map(noise).collect();
    let inputs: Vec<&[f32]> = audio.iter().map(Vec::as_slice).collect();
    let start = thread_cpu();
    for _ in 0..TICKS {
        batch.add_interleaved(black_box(&inputs))?;
        let loudness = (0..STREAMS).filter_map(|stream| batch.momentary(stream).ok());
        black_box(loudness.sum::<f64>());
    }
    let took_ms = (thread_cpu() - start).as_secs_f64() * 1e3;
    println!("{:.2}", 100.0 * took_ms / (f64::from(TICKS) * TICK_MS));
    Ok(())
}

/// Returns white noise. Each seed gives other noise.
fn noise(seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        0.3 * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..TICK_SAMPLES).map(|_| next()).collect()
}
