//! Sizes of parts.

use crate::error::Error;

/// Minimum size of all parts except the last, bytes ("Amazon S3 User Guide", "Amazon S3 multipart upload limits").
pub const PART_BYTES_MIN: u64 = 5 << 20;
/// Maximum size of a part, bytes; from the same source.
pub const PART_BYTES_MAX: u64 = 5 << 30;
/// Maximum number of parts of an upload; from the same source.
pub const PARTS_MAX: u16 = 10_000;
/// Default size of the first parts, bytes, the same as in the stock elements.
pub const PART_BYTES_DEFAULT: u64 = PART_BYTES_MIN;

/// Number of parts of the same size. The parts after them are twice as large. With parts of 5 MiB only, an object would end at 49
/// GiB; with growing parts, it reaches 5 TiB.
const PARTS_OF_A_SIZE: u16 = 1000;

/// Sizes of the parts of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    first: u64,
    max: u64,
}

impl Sizes {
    /// Creates sizes that start with `part_bytes` and grow, up to a total of `bytes_max`.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`] if a size is outside of S3's limits.
    pub fn new(part_bytes: u64, bytes_max: u64) -> Result<Self, Error> {
        if (PART_BYTES_MIN..=PART_BYTES_MAX).contains(&part_bytes) {
            Ok(Sizes {
                first: part_bytes,
                max: bytes_max.clamp(part_bytes, PART_BYTES_MAX),
            })
        } else {
            Err(Error::Setting(format!(
                "part-size={part_bytes}: expected {PART_BYTES_MIN} to {PART_BYTES_MAX} bytes"
            )))
        }
    }

    /// Small parts, for the tests.
    #[cfg(test)]
    pub(crate) fn tiny(first: u64) -> Self {
        Sizes {
            first,
            max: u64::MAX,
        }
    }

    /// Returns the size of the part with this number, from 1.
    pub fn of(&self, number: u16) -> u64 {
        let doublings = u32::from(number.saturating_sub(1) / PARTS_OF_A_SIZE);
        self.first
            .saturating_mul(1 << doublings.min(30))
            .min(self.max)
    }

    /// Returns the size of the first parts.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the size of the largest part.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Divides this many bytes into at least one part. Returns `None` beyond S3's limits.
    pub fn cut(&self, bytes: u64) -> Option<Vec<(u16, u64)>> {
        let (mut parts, mut left) = (Vec::new(), bytes);
        for number in 1..=PARTS_MAX {
            let part = left.min(self.of(number));
            parts.push((number, part));
            left -= part;
            if left == 0 {
                return Some(parts);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_sizes_and_numbers_stay_within_the_limits_of_s3() {
        for (bytes, is_fine) in [
            (PART_BYTES_MIN - 1, false),
            (PART_BYTES_MIN, true),
            (PART_BYTES_MAX, true),
            (PART_BYTES_MAX + 1, false),
        ] {
            let sizes = Sizes::new(bytes, PART_BYTES_MAX);
            assert_eq!(sizes.is_ok(), is_fine);
            if let Err(error) = sizes {
                let text = format!("part-size={bytes}: expected 5242880 to 5368709120 bytes");
                assert_eq!(error.to_string(), text);
            }
        }
    }

    /// The total is within 3 % of 5 TiB, which was S3's maximum object size for a long time.
    #[test]
    fn the_smallest_parts_reach_almost_5_tib() {
        let sizes = Sizes::new(PART_BYTES_MIN, PART_BYTES_MAX).unwrap();
        let reach: u64 = (1..=PARTS_MAX).map(|number| sizes.of(number)).sum();
        assert!(reach > 5 * (1 << 40) * 97 / 100, "{reach}");
        assert!((1..=PARTS_MAX).all(|number| sizes.of(number) <= PART_BYTES_MAX));
        assert_eq!(
            sizes.cut(reach).map(|parts| parts.len()),
            Some(usize::from(PARTS_MAX))
        );
        assert_eq!(sizes.cut(reach + 1), None);
        assert_eq!(sizes.cut(0), Some(vec![(1, 0)]));
    }
}
