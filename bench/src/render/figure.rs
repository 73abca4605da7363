//! A figure as text.

/// Three digits that mean something, and whole numbers as such.
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
    fn figures_are_as_precise_as_they_are_sure() {
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(2.34567), "2.35");
        assert_eq!(figure(23.4567), "23.5");
        assert_eq!(figure(2345.67), "2346");
        assert_eq!(figure(0.00023), "2.3e-4");
    }
}
