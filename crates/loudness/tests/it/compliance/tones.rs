//! Loudness and range.

use threadbare_loudness::{Mode, RangeStep};

use super::{assert_near, each_format};

const SILENCE: f64 = f64::NEG_INFINITY;

/// Tech 3341, cases 1 and 2.
#[test]
fn a_steady_tone_measures_its_level() {
    for level in [-23.0, -33.0] {
        each_format(Mode::INTEGRATED | Mode::SHORT_TERM, |bench, what| {
            bench.feed_stereo(&[(level, 20.0)], |_, _| ());
            assert_near(bench.meter.momentary(), level, 0.1, what);
            assert_near(bench.meter.short_term().unwrap(), level, 0.1, what);
            assert_near(bench.meter.integrated().unwrap(), level, 0.1, what);
        });
    }
}

/// Tech 3341, cases 3, 4 and 5.
#[test]
fn the_gates_exclude_quiet_passages() {
    let cases: [&[(f64, f64)]; 3] = [
        &[(-36.0, 10.0), (-23.0, 60.0), (-36.0, 10.0)],
        &[
            (-72.0, 10.0),
            (-36.0, 10.0),
            (-23.0, 60.0),
            (-36.0, 10.0),
            (-72.0, 10.0),
        ],
        &[(-26.0, 20.0), (-20.0, 20.1), (-26.0, 20.0)],
    ];
    for case in cases {
        for mode in [Mode::INTEGRATED, Mode::INTEGRATED | Mode::HISTOGRAM] {
            each_format(mode, |bench, what| {
                bench.feed_stereo(case, |_, _| ());
                assert_near(bench.meter.integrated().unwrap(), -23.0, 0.1, what);
            });
        }
    }
}

/// Tech 3341, case 6: L, R, C, LFE, Ls, Rs, which is not possible in stereo.
#[test]
fn surround_channels_weigh_more() {
    each_format(Mode::INTEGRATED, |bench, what| {
        if bench.meter.channels() == 6 {
            let levels = [-28.0, -28.0, -24.0, SILENCE, -30.0, -30.0];
            bench.feed(&[(&levels, 20.0)], |_, _| ());
            assert_near(bench.meter.integrated().unwrap(), -23.0, 0.1, what);
        }
    });
}

/// Tech 3341, case 9.
#[test]
fn short_term_is_constant_over_its_own_period() {
    let levels = [(-20.0, 1.34), (-30.0, 1.66)].repeat(5);
    each_format(Mode::SHORT_TERM, |bench, what| {
        bench.feed_stereo(&levels, |meter, seconds| {
            if seconds >= 3.0 {
                assert_near(meter.short_term().unwrap(), -23.0, 0.1, what);
            }
        });
    });
}

/// Tech 3341, cases 10 (separate files, each from silence) and 11 (all in one).
#[test]
fn short_term_reaches_a_tone_of_3_s() {
    each_format(Mode::SHORT_TERM, |bench, what| {
        for file in 0..20 {
            bench.meter.reset();
            let levels = [
                (SILENCE, f64::from(file) * 0.15),
                (-23.0, 3.0),
                (SILENCE, 1.0),
            ];
            let mut largest = SILENCE;
            bench.feed_stereo(&levels, |meter, _| {
                largest = largest.max(meter.short_term().unwrap());
            });
            assert_near(largest, -23.0, 0.1, what);
        }
        bench.meter.reset();
        for tone in 0..20 {
            let (delay, level) = (f64::from(tone) * 0.15, -38.0 + f64::from(tone));
            let levels = [(SILENCE, delay), (level, 3.0), (SILENCE, 3.0 - delay)];
            let mut largest = SILENCE;
            bench.feed_stereo(&levels, |meter, _| {
                largest = largest.max(meter.short_term().unwrap());
            });
            assert_near(largest, level, 0.1, what);
        }
    });
}

/// Tech 3341, case 12.
#[test]
fn momentary_is_constant_over_its_own_period() {
    let levels = [(-20.0, 0.18), (-30.0, 0.22)].repeat(25);
    each_format(Mode::MOMENTARY, |bench, what| {
        bench.feed_stereo(&levels, |meter, seconds| {
            if seconds >= 1.0 {
                assert_near(meter.momentary(), -23.0, 0.1, what);
            }
        });
    });
}

/// Tech 3341, cases 13 and 14.
#[test]
fn momentary_reaches_a_tone_of_400_ms() {
    each_format(Mode::MOMENTARY, |bench, what| {
        for file in 0..20 {
            bench.meter.reset();
            let levels = [
                (SILENCE, f64::from(file) * 0.02),
                (-23.0, 0.4),
                (SILENCE, 1.0),
            ];
            let mut largest = SILENCE;
            bench.feed_stereo(&levels, |meter, _| largest = largest.max(meter.momentary()));
            assert_near(largest, -23.0, 0.1, what);
        }
        bench.meter.reset();
        for tone in 0..20 {
            let (delay, level) = (f64::from(tone) * 0.02, -38.0 + f64::from(tone));
            let levels = [(SILENCE, delay), (level, 0.4), (SILENCE, 0.4 - delay)];
            let mut largest = SILENCE;
            bench.feed_stereo(&levels, |meter, _| largest = largest.max(meter.momentary()));
            assert_near(largest, level, 0.1, what);
        }
    });
}

/// Tech 3342, cases 1 to 4, with both steps of the range and both kinds of history.
#[test]
fn the_range_is_that_between_the_tones() {
    let cases: [(&[f64], f64); 4] = [
        (&[-20.0, -30.0], 10.0),
        (&[-20.0, -15.0], 5.0),
        (&[-40.0, -20.0], 20.0),
        (&[-50.0, -35.0, -20.0, -35.0, -50.0], 15.0),
    ];
    for (levels, expected) in cases {
        let levels: Vec<(f64, f64)> = levels.iter().map(|level| (*level, 20.0)).collect();
        for (mode, step) in [
            (Mode::RANGE, RangeStep::Tenth),
            (Mode::RANGE, RangeStep::Second),
            (Mode::RANGE | Mode::HISTOGRAM, RangeStep::Tenth),
        ] {
            each_format(mode, |bench, what| {
                let (rate_hz, channels) = (bench.meter.rate_hz(), bench.meter.channels());
                let builder = threadbare_loudness::Meter::builder(rate_hz, channels);
                bench.meter = builder.mode(mode).range_step(step).build().unwrap();
                bench.feed_stereo(&levels, |_, _| ());
                let range = bench.meter.range().unwrap();
                assert_near(range.lu, expected, 1.0, what);
                assert_near(range.high_lufs - range.low_lufs, range.lu, 1e-12, what);
            });
        }
    }
}
