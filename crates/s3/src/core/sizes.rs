//! Sizes of parts.

use crate::error::Error;

/// "Amazon S3 User Guide", "Amazon S3 multipart upload limits": the size of all parts but the last, bytes.
pub const PART_BYTES_MIN: u64 = 5 << 20;
/// The same: the largest part, bytes.
pub const PART_BYTES_MAX: u64 = 5 << 30;
/// The same: parts of an upload.
pub const PARTS_MAX: u16 = 10_000;
/// As the stock elements have it, bytes.
pub const PART_BYTES_DEFAULT: u64 = PART_BYTES_MIN;

/// After so many parts, the next ones are twice as large: parts of 5 MiB alone would end at 49 GiB, so they reach 5 TiB.
const PARTS_OF_A_SIZE: u16 = 1000;

/// How large each part of an upload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    first: u64,
    max: u64,
}

impl Sizes {
    /// Parts of `part_bytes`, later ones larger, but for `bytes_max`.
    ///
    /// # Errors
    /// [`Error::Setting`]: out of S3's limits.
    pub fn new(part_bytes: u64, bytes_max: u64) -> Result<Self, Error> {
        match (PART_BYTES_MIN..=PART_BYTES_MAX).contains(&part_bytes) {
            true => Ok(Sizes {
                first: part_bytes,
                max: bytes_max.clamp(part_bytes, PART_BYTES_MAX),
            }),
            false => Err(Error::Setting(format!(
                "part-size={part_bytes}: expected {PART_BYTES_MIN} to {PART_BYTES_MAX} bytes"
            ))),
        }
    }

    /// Of small parts, for the tests.
    #[cfg(test)]
    pub(crate) fn tiny(first: u64) -> Self {
        Sizes {
            first,
            max: u64::MAX,
        }
    }

    /// Bytes of the part of this number, from 1.
    pub fn of(&self, number: u16) -> u64 {
        let doublings = u32::from(number.saturating_sub(1) / PARTS_OF_A_SIZE);
        self.first
            .saturating_mul(1 << doublings.min(30))
            .min(self.max)
    }

    /// Bytes of the first parts.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of the largest part.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The parts of a whole of this many bytes; at least one, and `None` beyond S3's limits.
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
    fn the_limits_are_those_of_s3() {
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

    /// The largest object of S3 as it was for long, 5 TiB, but for 3 %.
    #[test]
    fn the_smallest_parts_reach_far() {
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
