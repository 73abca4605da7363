//! A record of the quality over a call, with the lowest, average and highest values and their times. Its size is bounded, however long the
//! call is.

/// One measurement of a party's audio, as it is heard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Mean opinion score, from [`mos`](super::mos).
    pub mos: f64,
    /// Interarrival jitter, ms.
    pub jitter_ms: f64,
    /// Round-trip time, ms. `None`: unknown.
    pub round_trip_ms: Option<f64>,
    /// Percentage of packets that were lost or too late since the previous sample.
    pub loss_percent: f64,
}

/// A value with the time of its measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extreme {
    /// The value.
    pub value: f64,
    /// The time of the measurement, ns.
    pub at_ns: u64,
}

/// The extremes and the mean of a value over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The lowest value. If there are several, the first one.
    pub lowest: Extreme,
    /// The highest value. If there are several, the first one.
    pub highest: Extreme,
    /// Mean of all values.
    pub average: f64,
    /// Number of samples.
    pub samples: u64,
}

impl Range {
    /// Returns the sum and the number of the samples.
    #[must_use]
    pub fn sum(&self) -> (f64, u64) {
        (self.average * self.samples as f64, self.samples)
    }
}

/// Summary of a call's samples. A field is `None` if it was never measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quality {
    /// Mean opinion score.
    pub mos: Option<Range>,
    /// Interarrival jitter, ms.
    pub jitter_ms: Option<Range>,
    /// Round-trip time, ms.
    pub round_trip_ms: Option<Range>,
    /// Percentage of packets that were lost or too late.
    pub loss_percent: Option<Range>,
}

impl Quality {
    /// Adds a sample.
    pub fn add(&mut self, at_ns: u64, sample: &Sample) {
        add(&mut self.mos, at_ns, sample.mos);
        add(&mut self.jitter_ms, at_ns, sample.jitter_ms);
        add(&mut self.loss_percent, at_ns, sample.loss_percent);
        if let Some(round_trip_ms) = sample.round_trip_ms {
            add(&mut self.round_trip_ms, at_ns, round_trip_ms);
        }
    }
}

fn add(range: &mut Option<Range>, at_ns: u64, value: f64) {
    let here = Extreme { value, at_ns };
    let range = range.get_or_insert(Range {
        lowest: here,
        highest: here,
        average: 0.0,
        samples: 0,
    });
    if value < range.lowest.value {
        range.lowest = here;
    }
    if value > range.highest.value {
        range.highest = here;
    }
    range.samples += 1;
    range.average += (value - range.average) / range.samples as f64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_has_extremes_with_their_times_and_the_mean() {
        let mut quality = Quality::default();
        for (at_ns, mos, round_trip_ms) in [
            (10, 4.0, None),
            (20, 3.0, Some(80.0)),
            (30, 4.4, Some(40.0)),
            (40, 3.0, None),
        ] {
            let sample = Sample {
                mos,
                jitter_ms: 1.0,
                round_trip_ms,
                loss_percent: 0.0,
            };
            quality.add(at_ns, &sample);
        }
        let mos = quality.mos.unwrap();
        assert_eq!((mos.lowest.value, mos.lowest.at_ns), (3.0, 20));
        assert_eq!((mos.highest.value, mos.highest.at_ns), (4.4, 30));
        assert!((mos.average - 3.6).abs() < 1e-12);
        let trip = quality.round_trip_ms.unwrap();
        assert_eq!((trip.samples, trip.average), (2, 60.0));
    }
}
