//! Estimates the loudness of the programme, and from this the gain that it needs: one value every 100 ms.
//!
//! Time is divided into steps of 100 ms. Between two steps is a node, which gets a level and, later, a gain:
//!
//! ```text
//!            node n                            known part of the input when the gain at n is computed
//!   ----------|-------------------|-----------|
//!      -1.2 s            +1.0 s       +2.8 s
//!       the levels from n - 10 to n + 10, in a Gaussian window, are the level at n;
//!       each of them covers the programme from 1.2 s before its node to 1.8 s after it
//! ```

use crate::history::{ABSOLUTE_GATE_LUFS, to_energy, to_lufs};

use super::NormalizerSettings;

/// Number of steps after a node that its level uses.
const AHEAD_STEPS: u64 = 18;
/// Number of steps before a node that its level uses. Together with the steps after it, they last 3 s, like the short-term
/// loudness of EBU Tech 3341, 2.2.
const BEHIND_STEPS: u64 = 12;
/// Number of levels on either side that determine a gain.
const SMOOTHING_STEPS: u64 = 10;
/// Number of steps after a node that must be known for its gain.
pub(super) const GAIN_STEPS: u64 = AHEAD_STEPS + SMOOTHING_STEPS;
/// Width of the Gaussian window, in steps.
const SIGMA_STEPS: f64 = 3.5;

/// Length of a block: 400 ms (ITU-R BS.1770, annex 1).
const BLOCK_STEPS: u64 = 4;
/// Gate for pauses. Audio that is 10 LU below the other audio does not belong to the programme, but is the background in its
/// pauses (ITU-R BS.1770, annex 1).
const PAUSE_GATE: f64 = 0.1;
/// Length of a pause after which the programme may have become quieter. The pause begins when no programme is left in the window
/// of 3 s.
const PAUSE_STEPS: u32 = 20;
/// Factor by which the gate is lowered in every step of a longer pause: 2 LU a second.
const PAUSE_SEARCH: f64 = 0.954_992_586_021_436;

/// Minimum number of blocks of programme in the window. If there are fewer, the current level replaces the missing blocks, so
/// that one syllable does not determine the level.
const BLOCKS_MIN: u32 = 10;
/// Share of the distance to the short-term loudness by which the level moves in a step of programme. It gives a time constant of
/// 4 s. Faster changes remain audible, as far as the target range allows.
const APPROACH: f64 = 0.025;
/// Maximum fall of a level per step: 1 LU. So a quieter programme is raised slowly.
const FALL: f64 = 0.794_328_234_724_281_5;

/// Maximum gain. A signal that would need a higher gain is assumed to be the noise of a room.
const GAIN_DB_MAX: f64 = 30.0;
/// Maximum change of the target per step while playing.
const CHANGE_DB_STEP: f64 = 3.0;
/// Number of steps of the fade-in before the first programme of a stream.
const FADE_STEPS: u32 = 10;

/// Size of the rings: more steps than any look-back.
const RING: usize = 64;

/// Levels and gains of one stream.
#[derive(Clone, Debug)]
pub(super) struct Programme {
    steps: u64,
    /// Mean squares of steps, weighted and summed over channels; 0 for those below the absolute gate.
    energies: [f64; RING],
    /// Mean square of the 400 ms that end with a step, without audio below the absolute gate; 0 if the step itself is below it.
    blocks: [f64; RING],
    /// Short-term energy by node; 0 without programme.
    short_terms: [f64; RING],
    /// Level by node, LUFS.
    levels: [f64; RING],
    /// Energy of the programme, once known.
    level: Option<f64>,
    /// Energy to which the gate refers: audio above this energy times [`PAUSE_GATE`] counts as programme.
    gate: f64,
    pause_steps: u32,
    /// The first node with a level, and that level, which counts for all earlier nodes.
    first: Option<(u64, f64)>,
    faded: u32,
    kernel: [f64; 2 * SMOOTHING_STEPS as usize + 1],
    target_lufs: f64,
    offset_lu: f64,
    /// Gain by node in dB, without the offset.
    gains_db: [f64; RING],
}

impl Programme {
    pub(super) fn new(settings: &NormalizerSettings) -> Programme {
        let bell = |tap: usize| (-0.5 * ((tap as f64 - 10.0) / SIGMA_STEPS).powi(2)).exp();
        let kernel: [f64; 21] = std::array::from_fn(bell);
        let sum: f64 = kernel.iter().sum();
        Programme {
            steps: 0,
            energies: [0.0; RING],
            blocks: [0.0; RING],
            short_terms: [0.0; RING],
            levels: [0.0; RING],
            level: None,
            gate: 0.0,
            pause_steps: 0,
            first: None,
            faded: 0,
            kernel: kernel.map(|tap| tap / sum),
            target_lufs: settings.loudness_target_lufs,
            offset_lu: settings.offset_lu,
            gains_db: [0.0; RING],
        }
    }

    /// Returns a reset state that keeps the programme's level.
    pub(super) fn restarted(&self, settings: &NormalizerSettings) -> Programme {
        let fresh = Programme::new(settings);
        Programme {
            level: self.level,
            gate: self.gate,
            first: self.level.map(|level| (0, to_lufs(level))),
            faded: FADE_STEPS,
            target_lufs: self.target_lufs,
            offset_lu: self.offset_lu,
            ..fresh
        }
    }

    /// Adds a step of this mean square, after which the gain of an earlier node is known. Returns that gain as a factor. `None`:
    /// there is no such node yet.
    pub(super) fn push(&mut self, energy: f64, settings: &NormalizerSettings) -> Option<f64> {
        let is_heard = energy.is_finite() && energy >= to_energy(ABSOLUTE_GATE_LUFS);
        self.energies[slot(self.steps)] = if is_heard { energy } else { 0.0 };
        self.blocks[slot(self.steps)] = if is_heard { self.block() } else { 0.0 };
        self.steps += 1;
        if let Some(node) = self.steps.checked_sub(AHEAD_STEPS) {
            self.level_at(node, settings.loudness_range_target_lu);
        }
        let node = self.steps.checked_sub(GAIN_STEPS)?;
        Some(self.gain_at(node, settings))
    }

    /// Returns the loudness of the programme.
    pub(super) fn level_lufs(&self) -> Option<f64> {
        self.level.map(to_lufs)
    }

    /// Returns the short-term loudness around a node in LUFS, and the gain there in dB.
    pub(super) fn report(&self, node: u64) -> (f64, f64) {
        let gain_db = self.gains_db[slot(node)];
        (to_lufs(self.short_terms[slot(node)]), gain_db)
    }

    /// Returns the mean audible energy of the block that ends with the newest step.
    fn block(&self) -> f64 {
        let steps = self.steps.saturating_sub(BLOCK_STEPS - 1)..=self.steps;
        let heard = |step: u64| Some(self.energies[slot(step)]).filter(|energy| *energy > 0.0);
        let (sum, count) = mean_of(steps.filter_map(heard));
        sum / f64::from(count)
    }

    /// Returns the mean square of the programme around `node`, the number of its blocks, and whether the programme is audible at
    /// `node`.
    ///
    /// Applies the gates that ITU-R BS.1770, annex 1, defines for a whole programme: first excludes the blocks below the gate,
    /// then the blocks 10 LU below the mean of the remaining ones.
    fn short_term(&self, node: u64) -> Option<(f64, u32, bool)> {
        let blocks = || {
            let steps = node.saturating_sub(BEHIND_STEPS)..node + AHEAD_STEPS;
            steps.map(|step| self.blocks[slot(step)])
        };
        let floor = self.gate * PAUSE_GATE;
        let (sum, count) = mean_of(blocks().filter(|block| *block > floor));
        if count == 0 {
            return None;
        }
        let mean = sum / f64::from(count);
        let floor = floor.max(mean * PAUSE_GATE);
        let (sum, count) = mean_of(blocks().filter(|block| *block > floor));
        let is_now = self.blocks[slot(node)] > floor;
        Some((sum / f64::from(count), count, is_now))
    }

    /// Computes the level at `node`.
    fn level_at(&mut self, node: u64, range_lu: f64) {
        let found = self.short_term(node);
        self.short_terms[slot(node)] = found.map_or(0.0, |(energy, ..)| energy);
        match (found, self.level) {
            (None, _) => {
                self.pause_steps += 1;
                if self.pause_steps > PAUSE_STEPS {
                    self.gate *= PAUSE_SEARCH;
                }
            }
            (Some((energy, _, is_now)), None) => {
                // The first level is set at a node where programme is audible, and not before, although the window also contains
                // later audio. So a stream gets the same result with and without silence before it.
                if is_now {
                    (self.level, self.gate) = (Some(energy), energy);
                    self.first = Some((node, to_lufs(energy)));
                }
            }
            (Some((energy, count, is_now)), Some(level)) => {
                self.pause_steps = 0;
                let missing = f64::from(BLOCKS_MIN.saturating_sub(count));
                let all = f64::from(BLOCKS_MIN.max(count));
                let energy = (energy * f64::from(count) + level * missing) / all;
                let next = follow(level, energy, is_now, range_lu);
                (self.level, self.gate) = (Some(next), next.min(energy));
            }
        }
        self.levels[slot(node)] = self.level.map_or(f64::NEG_INFINITY, to_lufs);
    }

    /// Computes the gain at `node`, as a factor.
    fn gain_at(&mut self, node: u64, settings: &NormalizerSettings) -> f64 {
        if node == 0 && self.first.is_some() {
            self.faded = FADE_STEPS;
        } else if node > 0 {
            approach(&mut self.target_lufs, settings.loudness_target_lufs);
            approach(&mut self.offset_lu, settings.offset_lu);
        }
        let mut gain_db = 0.0;
        if let Some((first, first_lufs)) = self.first {
            self.faded = (self.faded + 1).min(FADE_STEPS);
            let level = |tap: usize| match (node + tap as u64).checked_sub(SMOOTHING_STEPS) {
                Some(at) if at > first => self.levels[slot(at)],
                _ => first_lufs,
            };
            let taps = self.kernel.iter().enumerate();
            let smooth: f64 = taps.map(|(tap, weight)| weight * level(tap)).sum();
            let full = (self.target_lufs - smooth).min(GAIN_DB_MAX);
            gain_db = full * f64::from(self.faded) / f64::from(FADE_STEPS);
        }
        self.gains_db[slot(node)] = gain_db;
        10f64.powf((gain_db + self.offset_lu) / 20.0)
    }
}

/// Computes the next level. `energy`: the short-term energy around it. If programme is audible, the level moves towards the
/// energy, at least so far that the distance between the two is at most half the range.
fn follow(level: f64, energy: f64, is_now: bool, range_lu: f64) -> f64 {
    let half_range = 10f64.powf(range_lu / 20.0);
    let next = if is_now {
        level + APPROACH * (energy - level)
    } else {
        level
    };
    let lowest = energy / half_range;
    let highest = energy * half_range;
    next.max(lowest).min(highest).max(level * FALL)
}

fn approach(value: &mut f64, wanted: f64) {
    *value += (wanted - *value).clamp(-CHANGE_DB_STEP, CHANGE_DB_STEP);
}

fn mean_of(energies: impl Iterator<Item = f64>) -> (f64, u32) {
    energies.fold((0.0, 0), |(sum, count), energy| (sum + energy, count + 1))
}

fn slot(step: u64) -> usize {
    (step % RING as u64) as usize
}
