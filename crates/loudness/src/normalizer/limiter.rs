//! The limiter's envelopes: turns the allowed factor of each cell of half a millisecond into smooth gains.
//!
//! In the first pass, the gain falls to the lowest factor of the next 10 ms before that factor is needed, and recovers with a
//! time constant of 100 ms. A later peak may need a lower gain before the recovery ends, so the gain is a minimum over all cells
//! ahead. The mean of this gain over 10 ms, in a Hann window, is smooth and nowhere above the allowed gain.
//!
//! In the second pass, the result of the first pass is measured. If the gain changes within the reach of an interpolation filter,
//! it moves the peaks a little. The excess above the ceiling (hundredths of a decibel) is removed over 2 ms on either side.

use crate::taps::REACH_FRAMES;

/// Values by cell, in a ring.
type Ring = [f32; RING];
/// Size of the rings: more cells than the look-ahead has at any rate.
const RING: usize = 256;

/// Time over which the gain falls before a peak.
const ATTACK_MS: f64 = 10.0;
const RELEASE_MS: f64 = 100.0;
/// Number of frames over which the second pass spreads its reduction. It is much larger than the filter's reach, because
/// otherwise the gain of the second pass would move the peaks again.
const CHECK_FRAMES: u64 = 96;
/// Gain above which a release has ended.
const RELEASED: f32 = 0.999_99;

/// The limiter of one stream, with the same gain for all channels.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    /// Length of a cell in frames: half a millisecond, at least one frame.
    pub(super) cell_frames: u64,
    /// Reach of the interpolation filter on either side, in cells.
    pub(super) reach_cells: u64,
    attack_cells: u64,
    check_cells: u64,
    window: Vec<f32>,
    release: f32,
    /// The allowed factor of each cell.
    allowed: Ring,
    /// Factors after hold and release.
    held: Ring,
    smooth: Ring,
    next_smooth: u64,
    /// The cell up to which at least one factor is below 1.
    busy_end: u64,
    rest: Ring,
    rest_busy_end: u64,
}

impl Limiter {
    pub(super) fn new(rate_hz: u32) -> Limiter {
        let cell_frames = u64::from(rate_hz.div_ceil(2_000));
        let cell_ms = cell_frames as f64 * 1e3 / f64::from(rate_hz);
        let attack_cells = (ATTACK_MS / cell_ms).round().max(1.0) as u64;
        let angle = |n: u64| std::f64::consts::TAU * (n + 1) as f64 / (attack_cells + 1) as f64;
        let hann: Vec<f64> = (0..attack_cells).map(|n| 1.0 - angle(n).cos()).collect();
        let sum: f64 = hann.iter().sum();
        Limiter {
            cell_frames,
            reach_cells: (REACH_FRAMES as u64).div_ceil(cell_frames),
            attack_cells,
            check_cells: CHECK_FRAMES.div_ceil(cell_frames),
            window: hann.iter().map(|value| (value / sum) as f32).collect(),
            release: 1.0 - (-cell_ms / RELEASE_MS).exp() as f32,
            allowed: [1.0; RING],
            held: [1.0; RING],
            smooth: [1.0; RING],
            next_smooth: 0,
            busy_end: 0,
            rest: [1.0; RING],
            rest_busy_end: 0,
        }
    }

    /// Resets the limiter.
    pub(super) fn clear(&mut self) {
        for ring in [
            &mut self.allowed,
            &mut self.held,
            &mut self.smooth,
            &mut self.rest,
        ] {
            *ring = [1.0; RING];
        }
        (self.next_smooth, self.busy_end, self.rest_busy_end) = (0, 0, 0);
    }

    /// Returns the cell up to which [`Limiter::allow`] must be called before [`Limiter::gain_before`] is called for `cell`.
    pub(super) fn allowed_to(&self, cell: u64) -> u64 {
        cell + self.attack_cells + self.reach_cells
    }

    /// Returns the cell up to which [`Limiter::correct`] must be called before [`Limiter::correction_before`] is called for
    /// `cell`.
    pub(super) fn corrected_to(&self, cell: u64) -> u64 {
        cell + self.check_cells + self.reach_cells
    }

    /// Sets the allowed factor of `cell`, at most 1. Cells must be set in order.
    pub(super) fn allow(&mut self, cell: u64, factor: f32) {
        self.allowed[slot(cell)] = factor;
        if factor < 1.0 {
            self.busy_end = cell + 1 + self.reach_cells;
        }
    }

    /// Returns the gain at the start of `cell`, which is at most that of either adjacent cell.
    pub(super) fn gain_before(&mut self, cell: u64) -> f32 {
        while self.next_smooth <= cell {
            self.make_smooth(self.next_smooth);
            self.next_smooth += 1;
        }
        let before = self.smooth[slot(cell.wrapping_sub(1))];
        before.min(self.smooth[slot(cell)])
    }

    fn make_smooth(&mut self, cell: u64) {
        let before = self.held[slot(cell.wrapping_sub(1))];
        let is_idle = cell >= self.busy_end && before >= RELEASED;
        let mut held = 1.0;
        if !is_idle {
            let span = cell.saturating_sub(self.reach_cells)..=self.allowed_to(cell);
            let least = least(&self.allowed, span);
            let released = before + (1.0 - before) * self.release;
            held = least.min(if released > RELEASED { 1.0 } else { released });
        }
        self.held[slot(cell)] = held;
        // A recovery may still continue within the window.
        if is_idle && self.smooth[slot(cell.wrapping_sub(1))] >= 1.0 {
            self.smooth[slot(cell)] = 1.0;
            return;
        }
        let back = (0..self.attack_cells).map(|n| self.held[slot(cell.wrapping_sub(n))]);
        let mean: f32 = (back.zip(&self.window))
            .map(|(held, weight)| (1.0 - held) * weight)
            .sum();
        self.smooth[slot(cell)] = 1.0 - mean;
    }

    /// Sets the second pass's factor of `cell`, at most 1.
    pub(super) fn correct(&mut self, cell: u64, factor: f32) {
        self.rest[slot(cell)] = factor;
        if factor < 1.0 {
            self.rest_busy_end = cell + 1 + self.reach_cells + self.check_cells;
        }
    }

    /// Returns the gain of the second pass at the start of `cell`.
    pub(super) fn correction_before(&self, cell: u64) -> f32 {
        if cell > self.rest_busy_end {
            return 1.0;
        }
        self.correction(cell.saturating_sub(1))
            .min(self.correction(cell))
    }

    fn correction(&self, cell: u64) -> f32 {
        let least_from = |start: u64| {
            let span = start.saturating_sub(self.reach_cells)
                ..=start + self.check_cells + self.reach_cells;
            least(&self.rest, span)
        };
        let starts = cell.saturating_sub(self.check_cells)..=cell;
        let count = (cell - starts.start() + 1) as f32;
        // If no reduction is needed, rounding must not make the gain less than 1.
        1.0 - starts.map(|start| 1.0 - least_from(start)).sum::<f32>() / count
    }
}

fn least(ring: &Ring, span: std::ops::RangeInclusive<u64>) -> f32 {
    span.map(|cell| ring[slot(cell)]).fold(1.0, f32::min)
}

fn slot(cell: u64) -> usize {
    (cell % RING as u64) as usize
}
