//! Formats figures as text.

/// Formats a figure with about three significant digits. Whole numbers are written in full.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 || size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_about_three_significant_digits() {
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(2.34567), "2.35");
        assert_eq!(figure(23.4567), "23.5");
        assert_eq!(figure(2345.67), "2346");
        assert_eq!(figure(0.00023), "2.3e-4");
    }
}
