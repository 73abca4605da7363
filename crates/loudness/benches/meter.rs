//! CPU time for 20 ms of audio: with a single meter, and with batches of live streams.

// criterion_group makes a public function without a docstring.
#![allow(missing_docs)]

use std::hint::black_box;

use std::time::Duration;

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use nix::time::{ClockId, clock_gettime};
use threadbare_loudness::{Meter, Mode, Resolution};

const TICK_FRAMES: usize = 960;

fn noise(samples: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let level = 0.3 + 0.25 * (n as f32 / 9_000.0).sin();
        level * (((state >> 8) as f32) / ((1 << 23) as f32) - 1.0)
    };
    (0..samples).map(&mut next).collect()
}

/// Measures CPU time, which depends less on other load.
fn time<R>(bencher: &mut Bencher<'_>, mut work: impl FnMut() -> R) {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock that Linux has");
    bencher.iter_custom(|count| {
        let start = now();
        for _ in 0..count {
            black_box(work());
        }
        Duration::from(now() - start)
    });
}

fn single(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a meter, 20 ms at 48 kHz");
    let all = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK;
    for channels in [1, 2, 6] {
        for (name, mode) in [("momentary", Mode::MOMENTARY), ("all", all)] {
            let mut meter = Meter::builder(48_000, channels)
                .mode(mode)
                .build()
                .expect("valid");
            let audio = noise(TICK_FRAMES * channels, 1);
            group.throughput(Throughput::Elements(audio.len() as u64));
            group.bench_function(format!("{name}, {channels} channels"), |bencher| {
                time(bencher, || meter.add_interleaved(black_box(&audio)));
            });
        }
    }
    let mut meter = Meter::builder(48_000, 2)
        .mode(all)
        .baseline()
        .build()
        .expect("valid");
    let audio = noise(TICK_FRAMES * 2, 1);
    group.throughput(Throughput::Elements(audio.len() as u64));
    group.bench_function("all, 2 channels, the architecture's baseline", |bencher| {
        time(bencher, || meter.add_interleaved(black_box(&audio)));
    });
    group.finish();
}

/// Live monitoring: in each tick, all streams get 20 ms of audio, and their readings are taken. The machine keeps up if a tick
/// takes less than 20 ms.
fn batch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a batch of 2000 stereo streams, 20 ms at 48 kHz");
    group.sample_size(20);
    let live = Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK | Mode::HISTOGRAM;
    for (name, mode) in [
        ("momentary", Mode::MOMENTARY),
        ("all, with true peak", live),
    ] {
        let builder = Meter::builder(48_000, 2).mode(mode);
        let mut batch = builder.build_batch(2_000).expect("valid");
        let audio: Vec<Vec<f32>> = (0..2_000)
            .map(|seed| noise(TICK_FRAMES * 2, seed))
            .collect();
        let inputs: Vec<&[f32]> = audio.iter().map(Vec::as_slice).collect();
        group.bench_function(name, |bencher| {
            time(bencher, || {
                batch
                    .add_interleaved(black_box(&inputs))
                    .expect("whole frames");
                (0..2_000)
                    .map(|stream| batch.momentary(stream).expect("there"))
                    .sum::<f64>()
            });
        });
    }
    group.finish();
}

/// Cost per packet in a telephone gateway. Each call has a meter, and the meters run in turn, so none of them is in the cache.
fn line(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a packet of G.711, 20 ms at 8 kHz");
    let all = Mode::INTEGRATED | Mode::RANGE | Mode::HISTOGRAM;
    let audio: Vec<i16> = noise(16_000, 7)
        .into_iter()
        .map(|sample| (sample * 16_000.0) as i16)
        .collect();
    for (name, mode) in [("without true peak", all), ("all", all | Mode::TRUE_PEAK)] {
        for meters in [1, 1_000] {
            let builder = Meter::builder(8_000, 1)
                .mode(mode)
                .resolution(Resolution::Block);
            let mut meters = vec![builder.build().expect("valid"); meters];
            let mut turn = 0;
            group.bench_function(format!("{name}, {} calls", meters.len()), |bencher| {
                time(bencher, || {
                    turn += 1;
                    let at = turn / meters.len() % 100 * 160;
                    let call = turn % meters.len();
                    meters[call].add_interleaved(black_box(&audio[at..at + 160]))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, single, batch, line);
criterion_main!(benches);
