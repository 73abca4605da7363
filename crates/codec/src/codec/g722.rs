//! ITU-T G.722 at 64 kbit/s (mode 1): 16-bit samples at 16 kHz, two of them per byte.
//!
//! The signal is split into two bands. Each sample of a band is coded as the difference to a prediction, with 6 bits in the lower
//! band and 2 bits in the higher band. Names of blocks, signals and tables follow sections 5 and 6 of the Recommendation. These
//! sections define every bit of the arithmetic, and so every sample. Samples have 16 bits here; in the Recommendation, they have
//! 14, and two bits are unused.

/// Decodes bytes to samples.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    low: Band,
    high: Band,
    filter: Mirror,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder {
            low: Band::new(LOW_STEP_FIRST),
            high: Band::new(HIGH_STEP_FIRST),
            filter: Mirror::default(),
        }
    }

    /// Appends two samples for each byte.
    pub(super) fn decode(&mut self, payload: &[u8], out: &mut Vec<i16>) {
        for code in payload {
            out.extend(self.decode_byte(*code));
        }
    }

    fn decode_byte(&mut self, code: u8) -> [i16; 2] {
        let (low_code, high_code) = (usize::from(code & 0x3f), usize::from(code >> 6));
        let low = limit(self.low.predicted + scale(self.low.step, QM6[low_code]));
        self.low.adapt_low(low_code);
        let difference = scale(self.high.step, QM2[high_code]);
        let high = limit(self.high.predicted + difference);
        self.high.adapt_high(high_code);
        // "RECEIVE QMF": sums and differences of the bands go through the two halves of the filter.
        let [odd, even] = self.filter.sums(low + high, low - high);
        [saturate(even >> 11) as i16, saturate(odd >> 11) as i16]
    }
}

/// Encodes samples to bytes.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    low: Band,
    high: Band,
    filter: Mirror,
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder {
            low: Band::new(LOW_STEP_FIRST),
            high: Band::new(HIGH_STEP_FIRST),
            filter: Mirror::default(),
        }
    }

    /// Encodes two samples to one byte.
    pub(super) fn encode(&mut self, first: i16, second: i16) -> u8 {
        // "TRANSMIT QMF".
        let [odd, even] = self.filter.sums(i32::from(first), i32::from(second));
        let low = (even + odd) >> 14;
        let high = (even - odd) >> 14;
        let low_code = low_code(saturate(low - self.low.predicted), self.low.step);
        self.low.adapt_low(low_code);
        let high_code = high_code(saturate(high - self.high.predicted), self.high.step);
        self.high.adapt_high(high_code);
        (high_code << 6 | low_code) as u8
    }
}

/// Block QUANTL: returns the code of the interval that contains `difference`, at this step size.
fn low_code(difference: i32, step: i32) -> usize {
    let is_negative = difference < 0;
    let magnitude = if is_negative {
        -(difference + 1)
    } else {
        difference
    };
    // The interval is the first one whose upper end is above `magnitude`. Interval 30 has no upper end.
    let interval = 1 + Q6.partition_point(|level| magnitude >= (level * step) >> 12);
    // Tables ILN and ILP, computed instead of stored. Codes fall as the interval grows, and the two lowest intervals of the
    // negative side have the highest codes.
    match (is_negative, interval) {
        (true, 1..=2) => 64 - interval,
        (true, _) => 34 - interval,
        (false, _) => 62 - interval,
    }
}

/// Block QUANTH: returns the code of `difference` in the higher band.
fn high_code(difference: i32, step: i32) -> usize {
    let is_negative = difference < 0;
    let magnitude = if is_negative {
        -(difference + 1)
    } else {
        difference
    };
    let is_large = magnitude >= (Q2 * step) >> 12;
    match (is_negative, is_large) {
        (true, true) => 0,
        (true, false) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// Predictor and step size of one band: blocks 3 and 4. Encoder and decoder both use them, so their states stay equal.
///
/// Arrays are newest first.
#[derive(Debug, Clone)]
struct Band {
    /// S: the prediction of the next sample.
    predicted: i32,
    /// SZ: the part of the prediction that comes from the six zeros.
    by_zeros: i32,
    /// RLT: reconstructed signal.
    reconstructed: [i32; 2],
    /// AL: coefficients of the two poles.
    poles: [i32; 2],
    /// PLT: partially reconstructed signal.
    partial: [i32; 2],
    /// DLT: quantized differences.
    differences: [i32; 6],
    /// BL: coefficients of the six zeros.
    zeros: [i32; 6],
    /// NB: logarithm of the step size.
    step_log: i32,
    /// DET: step size.
    step: i32,
}

impl Band {
    fn new(step: i32) -> Band {
        Band {
            predicted: 0,
            by_zeros: 0,
            reconstructed: [0; 2],
            poles: [0; 2],
            partial: [0; 2],
            differences: [0; 6],
            zeros: [0; 6],
            step_log: 0,
            step,
        }
    }

    /// Adapts the lower band with the upper four of its six bits, so that a network may use the other two bits for data.
    fn adapt_low(&mut self, code: usize) {
        let code = code >> 2;
        let difference = scale(self.step, QM4[code]);
        self.adapt_step(WL[RL42[code]], LOW_LOG_MAX, LOW_SHIFT);
        self.predict(difference);
    }

    fn adapt_high(&mut self, code: usize) {
        let difference = scale(self.step, QM2[code]);
        self.adapt_step(WH[RH2[code]], HIGH_LOG_MAX, HIGH_SHIFT);
        self.predict(difference);
    }

    /// Blocks LOGSCL and SCALEL, LOGSCH and SCALEH.
    fn adapt_step(&mut self, weight: i32, log_max: i32, shift: i32) {
        self.step_log = (((self.step_log * 127) >> 7) + weight).clamp(0, log_max);
        let mantissa = ILB[(self.step_log >> 6) as usize & 31];
        let exponent = self.step_log >> 11;
        self.step = match shift - exponent {
            down @ 0.. => mantissa >> down,
            up => mantissa << -up,
        } << 2;
    }

    /// Block 4: updates the predictor with the difference, and predicts the next sample.
    fn predict(&mut self, difference: i32) {
        let reconstructed = saturate(self.predicted + difference);
        let partial = saturate(self.by_zeros + difference);
        self.adapt_poles(partial);
        self.adapt_zeros(difference);
        self.differences.rotate_right(1);
        self.differences[0] = difference;
        self.reconstructed = [reconstructed, self.reconstructed[0]];
        self.partial = [partial, self.partial[0]];
        // FILTEP, FILTEZ, PREDIC.
        let by_pole = |at: usize| scale(self.poles[at], saturate(2 * self.reconstructed[at]));
        let by_poles = saturate(by_pole(0) + by_pole(1));
        let by_zero = |(zero, past): (&i32, &i32)| scale(*zero, saturate(2 * past));
        let by_zeros: i32 = self.zeros.iter().zip(&self.differences).map(by_zero).sum();
        self.by_zeros = saturate(by_zeros);
        self.predicted = saturate(by_poles + self.by_zeros);
    }

    /// Blocks UPPOL2 and UPPOL1.
    fn adapt_poles(&mut self, partial: i32) {
        let is_like = |past: i32| (partial < 0) == (past < 0);
        let pull = saturate(4 * self.poles[0]);
        let pull = if is_like(self.partial[0]) {
            saturate(-pull)
        } else {
            pull
        };
        let push = if is_like(self.partial[1]) { 128 } else { -128 };
        let second = push + (pull >> 7) + scale(self.poles[1], 32_512);
        let second = second.clamp(-12_288, 12_288);
        let push = if is_like(self.partial[0]) { 192 } else { -192 };
        let first = saturate(push + scale(self.poles[0], 32_640));
        let first_max = saturate(15_360 - second);
        self.poles = [first.clamp(-first_max, first_max), second];
    }

    /// Block UPZERO.
    fn adapt_zeros(&mut self, difference: i32) {
        let push = if difference == 0 { 0 } else { 128 };
        for (zero, past) in self.zeros.iter_mut().zip(self.differences) {
            let push = if (past < 0) == (difference < 0) {
                push
            } else {
                -push
            };
            *zero = saturate(push + scale(*zero, 32_640));
        }
    }
}

/// The last 24 samples of the quadrature mirror filter, as 12 pairs, newest last.
#[derive(Debug, Clone, Default)]
struct Mirror([[i32; 2]; 12]);

impl Mirror {
    /// Adds a pair of samples. Returns the sums of the two halves of the filter.
    fn sums(&mut self, first: i32, second: i32) -> [i32; 2] {
        self.0.rotate_left(1);
        self.0[11] = [first, second];
        let mut sums = [0; 2];
        for (at, pair) in self.0.iter().enumerate() {
            sums[0] += pair[0] * QMF[at];
            sums[1] += pair[1] * QMF[11 - at];
        }
        sums
    }
}

/// Returns the product of two fractions of 15 bits.
fn scale(a: i32, b: i32) -> i32 {
    (a * b) >> 15
}

/// Saturates to 16 bits.
fn saturate(value: i32) -> i32 {
    value.clamp(i32::from(i16::MIN), i32::from(i16::MAX))
}

/// Block LIMIT, which is applied before the bands are combined.
fn limit(value: i32) -> i32 {
    value.clamp(-16_384, 16_383)
}

/// DET at reset, of the lower and of the higher band.
const LOW_STEP_FIRST: i32 = 32;
const HIGH_STEP_FIRST: i32 = 8;

/// Upper limits of NB, and the shift that converts NB to a step size.
const LOW_LOG_MAX: i32 = 18_432;
const HIGH_LOG_MAX: i32 = 22_528;
const LOW_SHIFT: i32 = 8;
const HIGH_SHIFT: i32 = 10;

/// One half of the quadrature mirror filter; the other half is its reverse.
const QMF: [i32; 12] = [3, -11, 12, 32, -210, 951, 3_876, -805, 362, -156, 53, -11];

/// Decision levels of the 6-bit quantizer: the upper ends of all its intervals except the last.
const Q6: [i32; 29] = [
    35, 72, 110, 150, 190, 233, 276, 323, 370, 422, 473, 530, 587, 650, 714, 786, 858, 940, 1_023,
    1_121, 1_219, 1_339, 1_458, 1_612, 1_765, 1_980, 2_195, 2_557, 2_919,
];

/// Decision level of the 2-bit quantizer.
const Q2: i32 = 564;

/// Output values of the 6-bit quantizer, by code.
const QM6: [i32; 64] = [
    -136, -136, -136, -136, -24_808, -21_904, -19_008, -16_704, -14_984, -13_512, -12_280, -11_192,
    -10_232, -9_360, -8_576, -7_856, -7_192, -6_576, -6_000, -5_456, -4_944, -4_464, -4_008,
    -3_576, -3_168, -2_776, -2_400, -2_032, -1_688, -1_360, -1_040, -728, 24_808, 21_904, 19_008,
    16_704, 14_984, 13_512, 12_280, 11_192, 10_232, 9_360, 8_576, 7_856, 7_192, 6_576, 6_000,
    5_456, 4_944, 4_464, 4_008, 3_576, 3_168, 2_776, 2_400, 2_032, 1_688, 1_360, 1_040, 728, 432,
    136, -432, -136,
];

/// Output values of the 4-bit quantizer, by code.
const QM4: [i32; 16] = [
    0, -20_456, -12_896, -8_968, -6_288, -4_240, -2_584, -1_200, 20_456, 12_896, 8_968, 6_288,
    4_240, 2_584, 1_200, 0,
];

/// Output values of the 2-bit quantizer, by code.
const QM2: [i32; 4] = [-7_408, -1_616, 7_408, 1_616];

/// Changes of the lower band's step size, and the entry for each 4-bit code.
const WL: [i32; 8] = [-60, -30, 58, 172, 334, 538, 1_198, 3_042];
const RL42: [usize; 16] = [0, 7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 2, 1, 0];

/// Changes of the higher band's step size, and the entry for each 2-bit code.
const WH: [i32; 3] = [0, -214, 798];
const RH2: [usize; 4] = [2, 1, 2, 1];

/// Table from logarithms to step sizes: 2048 times 2 to the power of n/32, for n from 0 to 31.
const ILB: [i32; 32] = [
    2_048, 2_093, 2_139, 2_186, 2_233, 2_282, 2_332, 2_383, 2_435, 2_489, 2_543, 2_599, 2_656,
    2_714, 2_774, 2_834, 2_896, 2_960, 3_025, 3_091, 3_158, 3_228, 3_298, 3_371, 3_444, 3_520,
    3_597, 3_676, 3_756, 3_838, 3_922, 4_008,
];
