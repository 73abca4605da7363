//! The energies of all blocks so far, exact or as a histogram, and their gating by EBU R128.

use std::collections::VecDeque;
use std::sync::OnceLock;

/// Mean squares of blocks that are above the absolute gate.
#[derive(Debug)]
pub(crate) enum History {
    /// All energies, the oldest first, and their maximum number.
    Exact { energies: VecDeque<f64>, max: usize },
    /// Number of blocks in each bin. A bin overflows only after 13 years of 100 ms steps.
    Histogram(Box<[u32; BINS]>),
}

/// Bins of 0.1 LU, from -70 to +30 LUFS.
const BINS: usize = 1_000;

/// Initial capacity, unless fewer blocks are kept: ten hours of 100 ms steps. An operating system provides this memory only when
/// it is used. Only longer measurements with an unlimited exact history allocate again, and double the capacity.
const RESERVED_BLOCKS: usize = 10 * 60 * 60 * 10;

/// Absolute gate: -70 LUFS (ITU-R BS.1770, annex 1).
pub(crate) const ABSOLUTE_GATE_LUFS: f64 = -70.0;
/// Relative gate of the integrated loudness: 10 LU below the mean of the blocks above the absolute gate (ITU-R BS.1770, annex 1).
const INTEGRATED_GATE: f64 = 0.1;
/// Relative gate of the loudness range: 20 LU below that mean (EBU Tech 3342, 2).
const RANGE_GATE: f64 = 0.01;
/// Lower percentile of the loudness range. Values below the 10th and above the 95th percentile do not count (EBU Tech 3342, 2).
const RANGE_LOW: f64 = 0.1;
const RANGE_HIGH: f64 = 0.95;

/// Returns the loudness, in LUFS, of a mean square that is weighted and summed over channels (ITU-R BS.1770, annex 1, formula 2).
/// For silence, it is minus infinity.
pub(crate) fn to_lufs(energy: f64) -> f64 {
    if energy <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // Use the natural logarithm, as libebur128 does, so that the same energy gives the same bits.
    10.0 * (energy.ln() / std::f64::consts::LN_10) + OFFSET_LU
}

/// Offset that compensates the gain of the shelf at 1 kHz: a sine at -23 dBFS must measure -23 LUFS.
const OFFSET_LU: f64 = -0.691;

pub(crate) fn to_energy(lufs: f64) -> f64 {
    10f64.powf((lufs - OFFSET_LU) / 10.0)
}

/// The energies at the lower edges and in the middles of the bins.
struct Bins {
    edges: [f64; BINS],
    centers: [f64; BINS],
}

fn bins() -> &'static Bins {
    static BINS_ONCE: OnceLock<Box<Bins>> = OnceLock::new();
    BINS_ONCE.get_or_init(|| {
        let at = |start: f64, bin: usize| to_energy(bin as f64 / 10.0 + start);
        Box::new(Bins {
            edges: std::array::from_fn(|bin| at(ABSOLUTE_GATE_LUFS, bin)),
            centers: std::array::from_fn(|bin| at(ABSOLUTE_GATE_LUFS + 0.05, bin)),
        })
    })
}

impl Bins {
    /// Returns the bin of an energy. Energies beyond the last bin belong to the last bin.
    fn of(&self, energy: f64) -> usize {
        self.edges
            .partition_point(|edge| *edge <= energy)
            .saturating_sub(1)
    }

    /// Returns the first bin whose centre is at or above this energy.
    fn from(&self, energy: f64) -> usize {
        if energy < self.edges[0] {
            return 0;
        }
        let bin = self.of(energy);
        bin + usize::from(energy > self.centers[bin])
    }
}

impl Clone for History {
    /// Clones the history with its spare capacity, which a clone of the queue would not have.
    fn clone(&self) -> History {
        let mut clone = match self {
            History::Exact { max, .. } => History::exact(*max),
            History::Histogram(_) => History::histogram(),
        };
        clone.append(self);
        clone
    }
}

impl History {
    /// Creates an exact history of the newest `max` blocks.
    pub(crate) fn exact(max: usize) -> History {
        // Create the tables now, because creating them allocates memory and takes longer than a block may take.
        bins();
        let energies = VecDeque::with_capacity(max.min(RESERVED_BLOCKS));
        History::Exact { energies, max }
    }

    pub(crate) fn histogram() -> History {
        bins();
        History::Histogram(Box::new([0; BINS]))
    }

    pub(crate) fn is_histogram(&self) -> bool {
        matches!(self, History::Histogram(_))
    }

    /// Adds a block's energy, if it is above the absolute gate. An energy that is infinite or not a number is skipped, because
    /// otherwise a single bad sample would determine the measurement.
    pub(crate) fn push(&mut self, energy: f64) {
        let bins = bins();
        let is_counted = energy >= bins.edges[0] && energy.is_finite();
        if !is_counted {
            return;
        }
        match self {
            History::Exact { max: 0, .. } => {}
            History::Exact { energies, max } => {
                if energies.len() >= *max {
                    energies.pop_front();
                }
                energies.push_back(energy);
            }
            History::Histogram(counts) => {
                let count = &mut counts[bins.of(energy)];
                *count = count.saturating_add(1);
            }
        }
    }

    /// Limits the history to the newest `max` blocks. A histogram does not change, because it does not contain the order of
    /// blocks.
    pub(crate) fn truncate(&mut self, max: usize) {
        if let History::Exact {
            energies,
            max: kept,
        } = self
        {
            *kept = max;
            energies.drain(..energies.len().saturating_sub(max));
        }
    }

    /// Appends a later history of the same kind.
    pub(crate) fn append(&mut self, later: &History) {
        match (&mut *self, later) {
            (History::Histogram(mine), History::Histogram(its)) => {
                mine.iter_mut()
                    .zip(its.iter())
                    .for_each(|(mine, its)| *mine = mine.saturating_add(*its));
            }
            (_, History::Exact { energies, .. }) => {
                energies.iter().for_each(|energy| self.push(*energy));
            }
            (History::Exact { .. }, History::Histogram(_)) => {}
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            History::Exact { energies, .. } => energies.clear(),
            History::Histogram(counts) => counts.fill(0),
        }
    }

    /// Adds the number of energies that are not below `gate`, and their sum, to `total`.
    fn add_to(&self, total: Total, gate: f64) -> Total {
        match self {
            History::Exact { energies, .. } => {
                let above = energies.iter().filter(|energy| **energy >= gate);
                above.fold(total, |(count, sum), energy| (count + 1, sum + energy))
            }
            History::Histogram(counts) => add_counts(total, counts, bins().from(gate)),
        }
    }
}

/// Number of blocks, and the sum of their energies. As in libebur128, the sum continues from one history to the next, so that the
/// same values in the same order give the same bits.
type Total = (u64, f64);

fn add_counts<C: Copy + Into<u64>>(total: Total, counts: &[C; BINS], from: usize) -> Total {
    let bins = counts.iter().zip(&bins().centers).skip(from);
    bins.fold(total, |(total, sum), (count, center)| {
        let count: u64 = (*count).into();
        (total + count, sum + count as f64 * center)
    })
}

/// Returns the mean energy of all blocks at or above `gate`, if there are any.
fn mean<'a>(histories: impl Iterator<Item = &'a History>, gate: f64) -> Option<f64> {
    let (count, sum) = histories.fold((0, 0.0), |total, history| history.add_to(total, gate));
    (count > 0).then(|| sum / count as f64)
}

/// Returns the relative gate of several histories, as an energy, as if they were one history. `None`: the histories are empty.
pub(crate) fn relative_gate<'a>(histories: impl Iterator<Item = &'a History>) -> Option<f64> {
    mean(histories, 0.0).map(|mean| mean * INTEGRATED_GATE)
}

/// Returns the integrated loudness of several histories, as if they were one, in LUFS.
pub(crate) fn integrated<'a>(histories: impl Iterator<Item = &'a History> + Clone) -> f64 {
    let Some(gate) = relative_gate(histories.clone()) else {
        return f64::NEG_INFINITY;
    };
    mean(histories, gate).map_or(f64::NEG_INFINITY, to_lufs)
}

/// Returns the two percentiles that bound the loudness range of several histories, in LUFS. `None`: the histories are empty.
///
/// Either all histories are exact, or all are histograms.
pub(crate) fn range<'a>(
    histories: impl Iterator<Item = &'a History> + Clone,
) -> Option<(f64, f64)> {
    let (low, high) = if histories.clone().all(|history| history.is_histogram()) {
        range_of_counts(histories)?
    } else {
        range_of_energies(histories)?
    };
    Some((to_lufs(low), to_lufs(high)))
}

/// Returns the index of the value at this percentile among `count` sorted values.
fn index_at(percentile: f64, count: u64) -> u64 {
    (count.saturating_sub(1) as f64 * percentile + 0.5) as u64
}

fn range_of_energies<'a>(
    histories: impl Iterator<Item = &'a History> + Clone,
) -> Option<(f64, f64)> {
    let gate = mean(histories.clone(), 0.0)? * RANGE_GATE;
    let exact = histories.filter_map(|history| match history {
        History::Exact { energies, .. } => Some(energies),
        History::Histogram(_) => None,
    });
    let mut above: Vec<f64> = exact
        .flatten()
        .copied()
        .filter(|energy| *energy >= gate)
        .collect();
    let count = above.len() as u64;
    if count == 0 {
        return None;
    }
    let mut at = |percentile| {
        let index = index_at(percentile, count) as usize;
        *above.select_nth_unstable_by(index, f64::total_cmp).1
    };
    Some((at(RANGE_LOW), at(RANGE_HIGH)))
}

fn range_of_counts<'a>(histories: impl Iterator<Item = &'a History>) -> Option<(f64, f64)> {
    let mut counts = [0_u64; BINS];
    for history in histories {
        if let History::Histogram(more) = history {
            counts
                .iter_mut()
                .zip(more.iter())
                .for_each(|(count, more)| *count += u64::from(*more));
        }
    }
    let (total, sum) = add_counts((0, 0.0), &counts, 0);
    if total == 0 {
        return None;
    }
    let from = bins().from(sum / total as f64 * RANGE_GATE);
    let total: u64 = counts[from..].iter().sum();
    let at = |percentile| {
        let index = index_at(percentile, total);
        let mut passed = 0;
        let bin = counts[from..].iter().position(|count| {
            passed += count;
            passed > index
        })?;
        Some(bins().centers[from + bin])
    };
    // The gate is 20 LU below the mean, so at least one value is above it.
    Some((at(RANGE_LOW)?, at(RANGE_HIGH)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(lufs: &[f64]) -> History {
        let mut history = History::exact(usize::MAX);
        lufs.iter().for_each(|lufs| history.push(to_energy(*lufs)));
        history
    }

    fn binned(lufs: &[f64]) -> History {
        let mut history = History::histogram();
        lufs.iter().for_each(|lufs| history.push(to_energy(*lufs)));
        history
    }

    /// By ITU-R BS.1770, annex 1, blocks that are 10 LU below the mean of the others do not count.
    #[test]
    fn quiet_blocks_do_not_count() {
        for make in [exact, binned] {
            let history = make(&[-20.02, -20.02, -20.02, -50.0, -80.0]);
            let found = integrated([&history].into_iter());
            assert!((found + 20.0).abs() < 0.06, "{found}");
        }
    }

    #[test]
    fn a_programme_without_blocks_above_the_gate_is_silent() {
        for history in [
            exact(&[-80.0]),
            binned(&[]),
            exact(&[f64::NAN, f64::INFINITY]),
        ] {
            assert_eq!(integrated([&history].into_iter()), f64::NEG_INFINITY);
            assert_eq!(relative_gate([&history].into_iter()), None);
            assert_eq!(range([&history].into_iter()), None);
        }
    }

    /// EBU Tech 3342, 2: the 10th and the 95th percentile.
    #[test]
    fn the_range_lies_between_two_percentiles() {
        let steps: Vec<f64> = (0..=100)
            .map(|step| -30.0 + f64::from(step) * 0.1 + 0.05)
            .collect();
        for make in [exact, binned] {
            let (low, high) = range([&make(&steps)].into_iter()).unwrap();
            assert!((low + 28.95).abs() < 1e-6, "{low}");
            assert!((high + 20.45).abs() < 1e-6, "{high}");
        }
    }

    #[test]
    fn several_histories_count_as_one() {
        let (all, first, second) = (
            &[-20.0, -25.0, -22.0, -45.0],
            &[-20.0, -25.0],
            &[-22.0, -45.0],
        );
        for make in [exact, binned] {
            let (all, first, second) = (make(all), make(first), make(second));
            let parts = [&first, &second].into_iter();
            let difference = integrated(parts.clone()) - integrated([&all].into_iter());
            assert!(difference.abs() < 1e-12);
            assert_eq!(range(parts), range([&all].into_iter()));
        }
    }

    #[test]
    fn a_bounded_history_forgets_the_oldest() {
        let mut history = History::exact(2);
        for lufs in [-10.0, -20.0, -20.0] {
            history.push(to_energy(lufs));
        }
        assert!((integrated([&history].into_iter()) + 20.0).abs() < 1e-9);
        history.truncate(0);
        history.push(1.0);
        assert_eq!(integrated([&history].into_iter()), f64::NEG_INFINITY);
    }

    #[test]
    fn energies_above_the_last_bin_count_in_the_last_bin() {
        for lufs in [30.0, 90.0] {
            let history = binned(&[lufs]);
            assert!(
                (integrated([&history].into_iter()) - 29.95).abs() < 1e-9,
                "{lufs}"
            );
        }
    }
}
