//! Sets of CPUs in the kernel's text form: "0,2-3".

use std::fmt;
use std::str::FromStr;

/// A set of CPU numbers. Text form: numbers and ranges separated by commas, such as "0,2-3", as in `taskset --cpu-list`; empty
/// for an empty set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(transparent)]
pub struct CpuSet(pub(crate) [u64; WORDS]);

/// Why a text is not a set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a list of CPUs: expected numbers from 0 to {} and ranges of them, such as 0,2-3; empty for none",
    CPUS_MAX - 1
)]
pub struct NoCpuList {
    /// The whole text that is not a set of CPUs.
    pub text: String,
}

impl CpuSet {
    /// All CPUs that a set can name.
    pub(crate) const ALL: CpuSet = CpuSet([u64::MAX; WORDS]);

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set contains this CPU.
    pub fn contains(&self, cpu: usize) -> bool {
        cpu < CPUS_MAX && self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    /// Returns the CPUs of this set that are not in `other`.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }
}

impl FromStr for CpuSet {
    type Err = NoCpuList;

    fn from_str(text: &str) -> Result<Self, NoCpuList> {
        let refused = || NoCpuList {
            text: text.to_owned(),
        };
        // Digits only: the parser of numbers would also accept a sign.
        let number = |digits: &str| -> Option<usize> {
            let digits = digits.trim();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits
                .parse()
                .ok()
                .filter(|cpu| is_number && *cpu < CPUS_MAX)
        };
        let mut set = CpuSet::default();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(refused)?;
            if first > last {
                return Err(refused());
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut cpu = 0;
        while cpu < CPUS_MAX {
            if !self.contains(cpu) {
                cpu += 1;
                continue;
            }
            let first = cpu;
            while self.contains(cpu) {
                cpu += 1;
            }
            match cpu - 1 {
                last if last == first => write!(f, "{comma}{first}")?,
                last => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// Size of the C library's interface to the kernel (`cpu_set_t`).
const CPUS_MAX: usize = 1024;
const WORDS: usize = CPUS_MAX / 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's format: Documentation/admin-guide/cputopology, "list format".
    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, cpus, written) in [
            ("", &[][..], ""),
            ("  ", &[], ""),
            ("0", &[0], "0"),
            ("0,2-3", &[0, 2, 3], "0,2-3"),
            ("3,2,2-3", &[2, 3], "2-3"),
            (" 1 - 2 , 64 ", &[1, 2, 64], "1-2,64"),
            ("1023", &[1023], "1023"),
            ("5-5", &[5], "5"),
        ] {
            let set: CpuSet = text.parse().unwrap();
            let found: Vec<usize> = (0..2000).filter(|cpu| set.contains(*cpu)).collect();
            assert_eq!(found, cpus, "{text}");
            assert_eq!((set.to_string().as_str(), set.len()), (written, cpus.len()));
        }
    }

    #[test]
    fn invalid_cpu_list_is_refused_with_its_text() {
        for text in [
            ",",
            "0,",
            "1-",
            "-1",
            "3-2",
            "+1",
            "a",
            "0;1",
            "1024",
            "0-1024",
            "0--2",
            "1-2-3",
            "99999999999999999999999",
        ] {
            let refused = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(refused.contains(&format!("'{text}'")), "{refused}");
            assert!(refused.contains("0 to 1023"), "{refused}");
        }
    }
}
