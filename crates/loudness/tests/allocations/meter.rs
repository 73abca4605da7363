//! Behaviour of a meter apart from its readings: odd input, resets, parts, batches, memory.

use std::cell::Cell;

use crate::counting::allocations;
use threadbare_loudness::{
    BuildError, Channel, InputError, Meter, Mode, ReadError, Resolution, Sample, integrated_of,
    merge, range_of,
};

fn everything() -> Mode {
    Mode::INTEGRATED | Mode::RANGE | Mode::TRUE_PEAK
}

/// Noise with a level that changes.
fn noise(samples: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let level = 0.3 + 0.25 * (n as f32 / 70_000.0).sin();
        level * (((state >> 8) as f32) / ((1 << 23) as f32) - 1.0)
    };
    (0..samples).map(&mut next).collect()
}

fn readings(meter: &Meter) -> Vec<f64> {
    let range = meter.range().unwrap();
    let mut all = vec![
        meter.momentary(),
        meter.short_term().unwrap(),
        meter.integrated().unwrap(),
        meter.relative_threshold().unwrap(),
        range.lu,
        range.low_lufs,
        range.high_lufs,
    ];
    for channel in 0..meter.channels() {
        all.extend([
            meter.sample_peak(channel).unwrap(),
            meter.true_peak(channel).unwrap(),
        ]);
    }
    all
}

fn assert_same(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (n, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a == b || (a - b).abs() <= tolerance, "reading {n}: {a} {b}");
    }
}

#[test]
fn the_result_does_not_depend_on_the_lengths_of_the_pieces() {
    let audio = noise(48_000 * 2 * 5, 1);
    let builder = Meter::builder(48_000, 2).mode(everything());
    let mut whole = builder.build().unwrap();
    whole.add_interleaved(&audio).unwrap();
    for frames in [1, 7, 480, 1_024, 100_000] {
        let mut pieces = builder.build().unwrap();
        for piece in audio.chunks(frames * 2) {
            pieces.add_interleaved(piece).unwrap();
        }
        assert_same(&readings(&whole), &readings(&pieces), 1e-10);
    }
}

#[test]
fn all_sample_types_and_layouts_give_the_same_result() {
    fn check<T: Sample>(builder: &threadbare_loudness::Builder, expected: &[f64], samples: &[T]) {
        let mut interleaved = builder.build().unwrap();
        interleaved.add_interleaved(samples).unwrap();
        assert_same(expected, &readings(&interleaved), 1e-12);
        let plane = |channel| samples.iter().skip(channel).step_by(3).copied().collect();
        let planes: [Vec<T>; 3] = [plane(0), plane(1), plane(2)];
        let mut planar = builder.build().unwrap();
        planar.add_planar(&planes).unwrap();
        assert_same(expected, &readings(&planar), 1e-12);
    }
    // Use 16 bits, so that each type can represent the samples.
    let short: Vec<i16> = noise(44_100 * 3 * 4, 2)
        .iter()
        .map(|x| (x * 32_768.0) as i16)
        .collect();
    let builder = Meter::builder(44_100, 3).mode(everything());
    let mut meter = builder.build().unwrap();
    meter.add_interleaved(&short).unwrap();
    let expected = readings(&meter);
    check(&builder, &expected, &short);
    check(
        &builder,
        &expected,
        &short
            .iter()
            .map(|x| i32::from(*x) << 16)
            .collect::<Vec<i32>>(),
    );
    check(
        &builder,
        &expected,
        &short
            .iter()
            .map(|x| f32::from(*x) / 32_768.0)
            .collect::<Vec<f32>>(),
    );
    check(
        &builder,
        &expected,
        &short
            .iter()
            .map(|x| f64::from(*x) / 32_768.0)
            .collect::<Vec<f64>>(),
    );
}

#[test]
fn baseline_equals_the_best_instructions() {
    for (rate_hz, channels) in [
        (48_000, 1),
        (44_100, 2),
        (96_000, 5),
        (192_000, 3),
        (8_000, 64),
    ] {
        let audio = noise(rate_hz as usize * channels * 4, 3);
        let builder = Meter::builder(rate_hz, channels).mode(everything());
        let measure = |builder: threadbare_loudness::Builder| {
            let mut meter = builder.build().unwrap();
            meter.add_interleaved(&audio).unwrap();
            readings(&meter)
        };
        assert_same(
            &measure(builder.clone()),
            &measure(builder.baseline()),
            1e-6,
        );
    }
}

#[test]
fn silence_equals_zeros() {
    let builder = Meter::builder(48_000, 3).mode(everything());
    let (mut meter, mut twin) = (builder.build().unwrap(), builder.build().unwrap());
    let audio = noise(48_000 * 3, 13);
    for frames in [0, 1, 700, 100_000] {
        meter.add_interleaved(&audio).unwrap();
        meter.add_silence(frames);
        twin.add_interleaved(&audio).unwrap();
        twin.add_interleaved(&vec![0i16; frames * 3]).unwrap();
        assert_same(&readings(&twin), &readings(&meter), 0.0);
    }
}

#[test]
fn adding_allocates_nothing() {
    for mode in [everything(), everything() | Mode::HISTOGRAM] {
        let mut meter = Meter::builder(48_000, 6)
            .mode(mode)
            .per_channel(true)
            .build()
            .unwrap();
        let mut batch = Meter::builder(48_000, 2).mode(mode).build_batch(3).unwrap();
        let audio = noise(48_000 * 6, 4);
        let inputs = [&audio[..96_000], &audio[96_000..192_000], &audio[192_000..]];
        let before = allocations();
        for _ in 0..10 {
            meter.add_interleaved(&audio).unwrap();
            batch.add_interleaved(&inputs).unwrap();
        }
        assert_eq!(allocations(), before);
        assert!(meter.integrated().unwrap() > -30.0);
    }
}

#[test]
fn a_reset_meter_measures_like_a_new_one() {
    let builder = Meter::builder(48_000, 2).mode(everything());
    let (mut used, mut fresh) = (builder.build().unwrap(), builder.build().unwrap());
    used.add_interleaved(&noise(48_000 * 9, 5)).unwrap();
    used.reset();
    assert_same(&readings(&fresh), &readings(&used), 0.0);
    for meter in [&mut used, &mut fresh] {
        meter.add_interleaved(&noise(48_000 * 9, 6)).unwrap();
    }
    assert_same(&readings(&fresh), &readings(&used), 0.0);
}

/// Earlier audio, and the position of its end within a step, affect only the windows.
#[test]
fn new_programme_equals_a_new_meter() {
    let mut programme: Vec<f32> = noise(2 * 48_000 * 40, 2);
    for (n, sample) in programme.iter_mut().enumerate() {
        // Every fifth second is 14 dB quieter.
        *sample *= if n / 96_000 % 5 == 0 { 0.05 } else { 0.25 };
    }
    // If the programme begins within a step, its blocks start up to 100 ms later, and readings differ more.
    for (mode, odd, tolerance) in [
        (everything(), 0, 0.001),
        (everything() | Mode::HISTOGRAM, 0, 0.2),
        (everything(), 1234, 0.2),
    ] {
        let before = noise(2 * (48_000 * 7 + odd), 1);
        let builder = Meter::builder(48_000, 2).mode(mode);
        let (mut going, mut new) = (builder.build().unwrap(), builder.build().unwrap());
        going.add_interleaved(&before).unwrap();
        going.begin_programme();
        assert_eq!(going.integrated().unwrap(), f64::NEG_INFINITY);
        assert_eq!(going.range().unwrap().lu, 0.0);
        assert_eq!(going.true_peak(0).unwrap(), 0.0);
        // The filters settle in this silence, because a new meter starts without their state.
        going.add_silence(4800);
        going.begin_programme();
        for meter in [&mut going, &mut new] {
            meter.add_interleaved(&programme).unwrap();
        }
        assert_same(&readings(&going), &readings(&new), tolerance);
    }
}

#[test]
fn longer_window_can_be_requested() {
    let mut meter = Meter::builder(48_000, 1)
        .mode(Mode::MOMENTARY)
        .build()
        .unwrap();
    let too_long = ReadError::Window {
        window_ms: 10_000,
        window_ms_max: 400,
    };
    assert_eq!(meter.window(10_000), Err(too_long));
    assert_eq!(meter.set_max_window_ms(10_000), Ok(true));
    assert_eq!(meter.set_max_window_ms(10_000), Ok(false));
    meter.add_interleaved(&noise(48_000 * 12, 7)).unwrap();
    let long = meter.window(10_000).unwrap();
    // The other meter measures the same energy in ten windows of a second each.
    let mut other = Meter::builder(48_000, 1)
        .mode(Mode::SHORT_TERM)
        .build()
        .unwrap();
    let mut energy = 0.0;
    for (second, audio) in noise(48_000 * 12, 7).chunks(48_000).enumerate() {
        other.add_interleaved(audio).unwrap();
        if second >= 2 {
            energy += 10f64.powf(other.window(1_000).unwrap() / 10.0) / 10.0;
        }
    }
    assert!((10.0 * energy.log10() - long).abs() < 1e-9);
    assert_eq!(
        meter.set_max_window_ms(u64::MAX),
        Err(BuildError::Window(u64::MAX))
    );
}

#[test]
fn parts_of_a_file_measure_like_the_whole() {
    let (rate_hz, seconds) = (22_050usize, 97);
    let audio = noise(rate_hz * seconds * 2 + 246, 8);
    let frames = audio.len() / 2;
    for mode in [everything(), everything() | Mode::HISTOGRAM] {
        let builder = Meter::builder(rate_hz as u32, 2)
            .mode(mode)
            .per_channel(true);
        let mut whole = builder.build().unwrap();
        whole.add_interleaved(&audio).unwrap();
        for parts in [1, 2, 3, 8, 1_000] {
            let parts = builder.split(frames as u64, parts);
            assert_eq!(
                parts
                    .iter()
                    .map(|part| part.frames().end - part.frames().start)
                    .sum::<u64>(),
                frames as u64
            );
            let measured = parts.iter().map(|part| {
                let mut meter = part.meter().unwrap();
                let feed = part.feed();
                meter
                    .add_interleaved(&audio[feed.start as usize * 2..feed.end as usize * 2])
                    .unwrap();
                meter
            });
            let meters: Vec<Meter> = measured.collect();
            let whole_range = whole.range().unwrap();
            assert!((integrated_of(&meters).unwrap() - whole.integrated().unwrap()).abs() < 1e-10);
            assert!((range_of(&meters).unwrap().lu - whole_range.lu).abs() < 1e-10);
            let merged = merge(meters).unwrap();
            assert_same(&readings(&whole), &readings(&merged), 1e-9);
            let alone = [&whole, &merged].map(|meter| meter.channel_integrated(1).unwrap());
            assert!((alone[0] - alone[1]).abs() < 1e-10);
        }
    }
}

/// The pieces are irregular, and a step may not be a whole number of sub-blocks.
#[test]
fn programme_is_exact_to_100_ms() {
    for (rate_hz, channels) in [(8_000, 1), (8_000, 2), (22_051, 1), (48_000, 6)] {
        for mode in [everything(), everything() | Mode::HISTOGRAM] {
            let builder = Meter::builder(rate_hz, channels).mode(mode);
            let mut meters = [Resolution::Frame, Resolution::Step]
                .map(|resolution| builder.clone().resolution(resolution).build().unwrap());
            for tick in 0..180 {
                let level = [1.0, 0.1, 0.01][tick as usize / 60];
                let mut audio = noise((rate_hz as usize / 16 + 7) * channels, tick);
                audio.iter_mut().for_each(|sample| *sample *= level);
                for meter in &mut meters {
                    meter.add_interleaved(&audio).unwrap();
                }
            }
            let [exact, coarse] = meters.map(|meter| {
                [
                    meter.integrated().unwrap(),
                    meter.range().unwrap().lu,
                    meter.true_peak(channels - 1).unwrap(),
                    meter.sample_peak(0).unwrap(),
                ]
            });
            assert!(exact[1] > 5.0, "{exact:?}");
            assert_same(&exact, &coarse, 1e-9);
        }
    }
}

#[test]
fn batch_equals_single_meters() {
    for channels in [1, 2, 3, 6] {
        let builder = Meter::builder(48_000, channels).mode(everything());
        let mut batch = builder.build_batch(5).unwrap();
        let builder = builder.resolution(Resolution::Block);
        let mut meters: Vec<Meter> = (0..5).map(|_| builder.build().unwrap()).collect();
        for tick in 0..60 {
            let audio: Vec<Vec<f32>> = (0..5)
                .map(|n| noise(4_801 * channels, tick * 5 + n))
                .collect();
            let inputs: Vec<&[f32]> = audio.iter().map(Vec::as_slice).collect();
            batch.add_interleaved(&inputs).unwrap();
            meters
                .iter_mut()
                .zip(inputs)
                .for_each(|(meter, input)| meter.add_interleaved(input).unwrap());
        }
        for (stream, meter) in meters.iter().enumerate() {
            let found = [
                batch.momentary(stream).unwrap(),
                batch.short_term(stream).unwrap(),
                batch.integrated(stream).unwrap(),
                batch.range(stream).unwrap().lu,
                batch.true_peak(stream, channels - 1).unwrap(),
                batch.last_true_peak(stream, channels - 1).unwrap(),
                batch.sample_peak(stream, 0).unwrap(),
            ];
            let expected = [
                meter.momentary(),
                meter.short_term().unwrap(),
                meter.integrated().unwrap(),
                meter.range().unwrap().lu,
                meter.true_peak(channels - 1).unwrap(),
                meter.last_true_peak(channels - 1).unwrap(),
                meter.sample_peak(0).unwrap(),
            ];
            assert_same(&expected, &found, 1e-6);
        }
    }
}

#[test]
fn restarting_a_stream_of_a_batch_affects_no_other_stream() {
    let builder = Meter::builder(48_000, 2).mode(everything());
    let mut batch = builder.build_batch(3).unwrap();
    let loud = noise(96_000 * 4, 9);
    let quiet: Vec<f32> = loud.iter().map(|x| x * 0.1).collect();
    batch.add_interleaved(&[&loud, &loud, &loud]).unwrap();
    let before = batch.integrated(0).unwrap();
    batch.reset_stream(1).unwrap();
    assert_eq!(batch.momentary(1).unwrap(), f64::NEG_INFINITY);
    assert_eq!(batch.true_peak(1, 0).unwrap(), 0.0);
    batch.add_interleaved(&[&loud, &quiet, &loud]).unwrap();
    assert!((batch.integrated(0).unwrap() - before).abs() < 0.2);
    // The level is 20 dB lower, and the silence between does not count.
    assert!((batch.integrated(1).unwrap() - before + 20.0).abs() < 0.001);
    assert!(batch.true_peak(1, 0).unwrap() < 0.1);
    assert_eq!(
        batch.reset_stream(3),
        Err(ReadError::Stream {
            index: 3,
            streams: 3
        })
    );
}

#[test]
fn single_channels_are_measured_like_mono() {
    let mut meter = Meter::builder(48_000, 2)
        .mode(everything())
        .per_channel(true)
        .build()
        .unwrap();
    let mut alone = Meter::builder(48_000, 1)
        .mode(everything())
        .build()
        .unwrap();
    let audio = noise(48_000 * 5, 10);
    let frames: Vec<f32> = audio.iter().flat_map(|x| [0.0, *x]).collect();
    meter.add_interleaved(&frames).unwrap();
    alone.add_interleaved(&audio).unwrap();
    assert_eq!(meter.channel_integrated(0).unwrap(), f64::NEG_INFINITY);
    let found = [
        meter.channel_integrated(1).unwrap(),
        meter.channel_momentary(1).unwrap(),
        meter.channel_short_term(1).unwrap(),
    ];
    let expected = [
        alone.integrated().unwrap(),
        alone.momentary(),
        alone.short_term().unwrap(),
    ];
    assert_same(&expected, &found, 1e-10);
}

/// ITU-R BS.1770 does not cover bad samples, but a meter that runs for months must survive them.
#[test]
fn one_bad_sample_affects_only_the_windows_that_contain_it() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let builder = Meter::builder(48_000, 1).mode(everything());
        let (mut meter, mut stuck) = (
            builder.build().unwrap(),
            builder.recover(false).build().unwrap(),
        );
        let audio = noise(48_000 * 4, 11);
        for meter in [&mut meter, &mut stuck] {
            meter.add_interleaved(&audio).unwrap();
            meter.add_interleaved(&[bad]).unwrap();
            meter.add_interleaved(&audio).unwrap();
        }
        assert!(meter.momentary().is_finite() && meter.short_term().unwrap().is_finite());
        assert!(stuck.momentary().is_nan());
        assert!((meter.integrated().unwrap() - stuck.integrated().unwrap()).abs() < 0.5);
        stuck.reset();
        stuck.add_interleaved(&audio).unwrap();
        assert!(stuck.momentary().is_finite());
    }
}

#[test]
fn odd_input_is_refused_and_changes_nothing() {
    let mut meter = Meter::builder(48_000, 2)
        .mode(everything())
        .build()
        .unwrap();
    let partial = InputError::PartialFrame {
        samples: 3,
        channels: 2,
    };
    assert_eq!(meter.add_interleaved(&[0.5f32; 3]), Err(partial));
    let planes = InputError::Planes {
        planes: 1,
        channels: 2,
    };
    assert_eq!(meter.add_planar(&[vec![0.5f32; 3]]), Err(planes));
    let uneven = InputError::Uneven {
        index: 1,
        frames: 2,
        expected: 3,
    };
    assert_eq!(
        meter.add_planar(&[vec![0.5f32; 3], vec![0.5f32; 2]]),
        Err(uneven)
    );
    assert_eq!(meter.sample_peak(0), Ok(0.0));
    assert_eq!(meter.add_interleaved::<i32>(&[]), Ok(()));
    assert_eq!(
        meter.sample_peak(2),
        Err(ReadError::Channel {
            index: 2,
            channels: 2
        })
    );
    assert_eq!(
        meter.set_channel(0, Channel::DualMono),
        Err(ReadError::DualMono(2))
    );
}

#[test]
fn builders_name_the_invalid_value() {
    let build =
        |rate_hz, channels, mode| Meter::builder(rate_hz, channels).mode(mode).build().err();
    let momentary = Mode::MOMENTARY;
    assert_eq!(build(15, 2, momentary), Some(BuildError::Rate(15)));
    assert_eq!(
        build(2_822_401, 2, momentary),
        Some(BuildError::Rate(2_822_401))
    );
    assert_eq!(build(48_000, 0, momentary), Some(BuildError::Channels(0)));
    assert_eq!(build(48_000, 65, momentary), Some(BuildError::Channels(65)));
    assert_eq!(
        build(48_000, 2, Mode::HISTOGRAM),
        Some(BuildError::Mode(Mode::HISTOGRAM))
    );
    let dual = [Channel::DualMono, Channel::Left];
    let found = Meter::builder(48_000, 2).layout(&dual).build().err();
    assert_eq!(found, Some(BuildError::DualMono(2)));
    let batch = Meter::builder(48_000, 2).build_batch(0).err();
    assert_eq!(
        batch,
        Some(BuildError::Streams {
            streams: 0,
            channels: 2
        })
    );
}

#[test]
fn every_rate_and_number_of_channels_works() {
    for rate_hz in [
        16, 17, 25, 35, 99, 100, 101, 3_000, 11_025, 383_999, 2_822_400,
    ] {
        for channels in [1, 3, 64] {
            let mut meter = Meter::builder(rate_hz, channels)
                .mode(everything())
                .build()
                .unwrap();
            let frames = (rate_hz as usize * 4).min(400_000 / channels);
            meter
                .add_interleaved(&noise(frames * channels, 12))
                .unwrap();
            let _ = readings(&meter);
        }
    }
}

/// A function of the caller may panic while a meter works. The thread's arithmetic is restored nevertheless.
#[test]
fn denormals_are_numbers_again_after_a_panic() {
    struct Plane(Cell<u32>);

    impl AsRef<[f32]> for Plane {
        fn as_ref(&self) -> &[f32] {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() < 4, "on purpose");
            &[0.5; 2_000]
        }
    }

    #[inline(never)]
    fn half_of_the_least() -> f64 {
        std::hint::black_box(f64::MIN_POSITIVE) * std::hint::black_box(0.5)
    }

    let mut meter = Meter::builder(48_000, 1)
        .mode(everything())
        .build()
        .unwrap();
    meter.add_interleaved(&[0.5f32; 2_000]).unwrap();
    assert!(half_of_the_least() > 0.0);
    let planes = [Plane(Cell::new(0))];
    let add = std::panic::AssertUnwindSafe(|| meter.add_planar(&planes));
    assert!(std::panic::catch_unwind(add).is_err());
    assert!(half_of_the_least() > 0.0);
}
