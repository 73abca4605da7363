//! Sound quality of a call: the E-model (ITU-T G.107) with the values that an RTP receiver knows, and a record of the quality over the
//! call.
//!
//! Values that are not measured have the defaults of G.107, table 2, with which R is 93.2 without loss and delay. The rest of the model is
//! the simplification of RFC 3611, section 4.7.5: `R = 93.2 - Id - Ie,eff`. Id contains only the delay, and Ie,eff the codec and the
//! losses.

mod bursts;
mod record;

pub use bursts::{BurstMetrics, Bursts, GMIN};
pub use record::{Extreme, Quality, Range, Sample};

/// The impairment that a codec causes: the equipment impairment factor, and the robustness against losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// Ie: the impairment without losses.
    pub ie: f64,
    /// Bpl: the percentage of random losses that halves the remaining quality.
    pub bpl: f64,
}

impl Impairment {
    /// G.711 with concealed losses (G.711, appendix I), from ITU-T G.113, appendix I, table I.3.
    pub const G711_CONCEALED: Impairment = Impairment { ie: 0.0, bpl: 25.1 };
    /// G.711 with silence in place of losses, from the same table.
    pub const G711: Impairment = Impairment { ie: 0.0, bpl: 4.3 };
    /// G.729 annex A with pauses, from the same table.
    pub const G729: Impairment = Impairment {
        ie: 11.0,
        bpl: 19.0,
    };
    /// G.723.1 at 6.3 kbit/s with pauses, from the same table.
    pub const G723: Impairment = Impairment {
        ie: 15.0,
        bpl: 16.1,
    };
    /// GSM EFR, which is AMR at 12.2 kbit/s, from the same table.
    pub const GSM_EFR: Impairment = Impairment { ie: 5.0, bpl: 10.0 };

    /// Returns the impairment of a codec by its name in SDP, in upper case. Codecs that are unknown, or for which G.113 has no narrowband
    /// value (wideband codecs, linear audio, Opus), count as G.711 with concealed losses. Their quality is then that of G.711, to which
    /// such audio is converted here.
    #[must_use]
    pub fn of(encoding_name: &str) -> Impairment {
        match encoding_name {
            "G729" => Impairment::G729,
            "G723" => Impairment::G723,
            "GSM-EFR" | "AMR" => Impairment::GSM_EFR,
            _ => Impairment::G711_CONCEALED,
        }
    }

    /// Returns Ie,eff (G.107, equation 7-29), if `loss_percent` of the packets are lost or too late, in runs that are `burst_ratio` times
    /// as long as with random losses.
    #[must_use]
    pub fn with_loss(self, loss_percent: f64, burst_ratio: f64) -> f64 {
        let loss = loss_percent.clamp(0.0, 100.0);
        if loss == 0.0 {
            return self.ie;
        }
        self.ie + (95.0 - self.ie) * loss / (loss / burst_ratio.max(1.0) + self.bpl)
    }
}

/// Returns Id for a delay from mouth to ear without echo, which is Idd (G.107, equations 7-27 and 7-28).
#[must_use]
pub fn delay_impairment(delay_ms: f64) -> f64 {
    if delay_ms <= 100.0 {
        return 0.0;
    }
    let x = (delay_ms / 100.0).log2();
    let sixth_root = |sum: f64| sum.powf(1.0 / 6.0);
    25.0 * (sixth_root(1.0 + x.powi(6)) - 3.0 * sixth_root(1.0 + (x / 3.0).powi(6)) + 2.0)
}

/// Returns the transmission rating factor R, from 0 to [`R_MAX`], for a delay from mouth to ear and for a codec with its losses
/// ([`Impairment::with_loss`]).
#[must_use]
pub fn rating(delay_ms: f64, equipment: f64) -> f64 {
    (R_MAX - delay_impairment(delay_ms) - equipment).clamp(0.0, R_MAX)
}

/// Returns the mean opinion score of a rating, 1 to 4.5 (G.107, annex B, equation B-4).
#[must_use]
pub fn mos(rating: f64) -> f64 {
    match rating {
        r if r <= 0.0 => 1.0,
        r if r >= 100.0 => 4.5,
        r => (1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6).max(1.0),
    }
}

/// R if all values are defaults (G.107, section 7.7).
pub const R_MAX: f64 = 93.2;

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of G.107, annex B, table B.1: limits of R, and the MOS at each of them.
    #[test]
    fn scores_equal_those_of_annex_b() {
        for (r, score) in [
            (90.0, 4.34),
            (80.0, 4.03),
            (70.0, 3.60),
            (60.0, 3.10),
            (50.0, 2.58),
        ] {
            // The table rounds 4.024 up.
            assert!((mos(r) - score).abs() < 0.01, "{r}: {}", mos(r));
        }
        assert_eq!((mos(-1.0), mos(0.0), mos(100.0)), (1.0, 1.0, 4.5));
        // This is the MOS of the default values.
        assert!((mos(R_MAX) - 4.41).abs() < 0.005);
        // Between 0 and 6.5, the polynomial would be below 1.
        assert_eq!(mos(3.0), 1.0);
    }

    /// The values were computed by hand. X is 1 at 200 ms, which gives 25 (2^(1/6) - 3 (1 + 3^-6)^(1/6) + 2), and X is 2 at 400 ms.
    #[test]
    fn delay_impairment_follows_the_equation() {
        assert_eq!(delay_impairment(0.0), 0.0);
        assert_eq!(delay_impairment(100.0), 0.0);
        assert!(
            (delay_impairment(200.0) - 3.044).abs() < 0.01,
            "{}",
            delay_impairment(200.0)
        );
        assert!(
            (delay_impairment(400.0) - 24.07).abs() < 0.02,
            "{}",
            delay_impairment(400.0)
        );
        let ms = |delay: u32| delay_impairment(f64::from(delay) * 10.0);
        assert!((0..200).all(|delay| ms(delay) <= ms(delay + 1)));
    }

    /// By definition, random losses of Bpl percent cost half of the remaining quality.
    #[test]
    fn losses_of_bpl_percent_cost_half_of_the_quality() {
        for codec in [
            Impairment::G711,
            Impairment::G711_CONCEALED,
            Impairment::G729,
            Impairment::G723,
            Impairment::GSM_EFR,
        ] {
            assert_eq!(codec.with_loss(0.0, 1.0), codec.ie);
            let ratio = (95.0 - codec.ie) * codec.bpl / (2.0 * codec.bpl);
            assert!((codec.with_loss(codec.bpl, 1.0) - codec.ie - ratio).abs() < 1e-9);
            assert!(codec.with_loss(5.0, 2.0) > codec.with_loss(5.0, 1.0));
            assert_eq!(rating(0.0, codec.with_loss(1e9, 1e9)), 0.0);
        }
        // With 5 % of losses in G.711, of which all are concealed, Ie,eff is 95 * 5 / 30.1.
        assert!((rating(0.0, Impairment::G711_CONCEALED.with_loss(5.0, 1.0)) - 77.42).abs() < 0.01);
        assert_eq!(rating(10_000.0, 95.0), 0.0);
    }
}
