//! Cost of a packet of 20 ms at 8 kHz in the concealer, received or lost.

// criterion_group generates a public function without documentation.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use threadbare_codec::conceal::Concealer;

fn packets(criterion: &mut Criterion) {
    let tone: Vec<i16> = (0..160)
        .map(|n| (f64::from(n) * 0.3).sin() * 8_000.0)
        .map(|sample| sample as i16)
        .collect();
    let mut group = criterion.benchmark_group("conceal");
    group.bench_function("pass", |bencher| {
        let mut concealer = Concealer::new(8_000, 1).expect("valid format");
        let mut audio = tone.clone();
        bencher.iter(|| concealer.pass(black_box(&mut audio)));
    });
    group.bench_function("one lost, one passed", |bencher| {
        let mut concealer = Concealer::new(8_000, 1).expect("valid format");
        let (mut lost, mut audio) = (tone.clone(), tone.clone());
        bencher.iter(|| {
            concealer.fill(black_box(&mut lost));
            audio.copy_from_slice(&tone);
            concealer.pass(black_box(&mut audio));
        });
    });
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
