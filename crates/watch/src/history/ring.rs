//! The file of a stream. It is a ring of the seconds of a day. The time of a second determines its position.
//!
//! ```text
//!  magic (8 bytes)   name's length (u32)   name   zeros up to HEADER_BYTES
//!  row of second 0 of a day   row of second 1   ...   row of second 86399
//! ```
//!
//! A row, little-endian: time (u32, s since 1970); momentary, short-term and integrated loudness, range, true peak (i16, tenths
//! of a decibel, -32768: no value); packets, losses (u16); jitter (u16, tens of us); packets held (u16); flags (u8); sum of the
//! bytes before (u8).
//!
//! A row that was not written in the last day has the wrong time or sum. The file is sparse, and never grows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::super::second::{Level, Second};

/// The open file of a stream.
#[derive(Debug)]
pub(super) struct Ring {
    file: File,
}

impl Ring {
    /// Opens the file for writing. A file of another stream or format is overwritten.
    pub(super) fn open(path: &Path, name: &str) -> io::Result<Ring> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o640);
        let file = options.open(path)?;
        let header = header(name);
        let mut found = vec![0; HEADER_BYTES];
        let is_own = match file.read_exact_at(&mut found, 0) {
            Ok(()) => found == header,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        if !is_own {
            file.set_len(0)?;
            file.set_len((HEADER_BYTES + SECONDS * ROW_BYTES) as u64)?;
            file.write_all_at(&header, 0)?;
        }
        Ok(Ring { file })
    }

    /// Opens the file for reading. `None`: the stream has no file.
    pub(super) fn find(path: &Path, name: &str) -> io::Result<Option<Ring>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut found = vec![0; HEADER_BYTES];
        match file.read_exact_at(&mut found, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        Ok((found == header(name)).then_some(Ring { file }))
    }

    /// Writes seconds in place of those of the day before.
    pub(super) fn write(&self, seconds: &[Second]) -> io::Result<()> {
        // Write consecutive seconds with one system call.
        let follows = |before: &Second, after: &Second| {
            before.unix_s + 1 == after.unix_s && place(after.unix_s) != 0
        };
        for run in seconds.chunk_by(follows) {
            let Some(first) = run.first() else { continue };
            let bytes: Vec<u8> = run.iter().flat_map(row).collect();
            self.file.write_all_at(&bytes, offset(first.unix_s))?;
        }
        Ok(())
    }

    /// Returns the stored seconds of `from_s <= time < until_s`, in order; at most a day.
    pub(super) fn read(&self, from_s: u64, until_s: u64) -> io::Result<Vec<Second>> {
        let from_s = from_s.max(until_s.saturating_sub(SECONDS as u64));
        let mut found = Vec::new();
        let mut at_s = from_s;
        while at_s < until_s {
            let to_end = (SECONDS - place(at_s)) as u64;
            let count = to_end.min(until_s - at_s);
            let mut bytes = vec![0; count as usize * ROW_BYTES];
            self.file.read_exact_at(&mut bytes, offset(at_s))?;
            let rows = (at_s..).zip(bytes.chunks_exact(ROW_BYTES));
            found.extend(rows.filter_map(|(unix_s, row)| second(unix_s, row)));
            at_s += count;
        }
        Ok(found)
    }
}

fn header(name: &str) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend((name.len() as u32).to_le_bytes());
    header.extend(name.bytes());
    // If the name does not fit into the header, only its length and its start are compared. The file name has a hash of the whole
    // name.
    header.resize(HEADER_BYTES, 0);
    header
}

fn place(unix_s: u64) -> usize {
    (unix_s % SECONDS as u64) as usize
}

fn offset(unix_s: u64) -> u64 {
    (HEADER_BYTES + place(unix_s) * ROW_BYTES) as u64
}

fn row(second: &Second) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..4].copy_from_slice(&(second.unix_s as u32).to_le_bytes());
    let levels = [
        second.momentary_lufs,
        second.short_term_lufs,
        second.integrated_lufs,
        second.range_lu,
        second.true_peak_dbtp,
    ];
    let counts = [
        second.packets,
        second.lost,
        second.jitter_us / JITTER_UNIT_US,
        second.held_packets,
    ];
    let levels = levels.map(|level| level.tenths().to_le_bytes());
    let counts = counts.map(|count| u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    let words = levels.into_iter().chain(counts);
    for (place, word) in row[4..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word);
    }
    row[FLAGS] = u8::from(second.is_heard) | u8::from(second.is_measured) << 1;
    row[SUM] = sum(&row);
    row
}

/// Parses the row of a second. `None`: the row is of another day, was never written, or is incomplete.
fn second(unix_s: u64, row: &[u8]) -> Option<Second> {
    let word = |n: usize| [row[4 + 2 * n], row[5 + 2 * n]];
    let level = |n| Level::of_tenths(i16::from_le_bytes(word(n)));
    let count = |n| u32::from(u16::from_le_bytes(word(n)));
    let is_of_then = row[..4] == (unix_s as u32).to_le_bytes() && row[SUM] == sum(row);
    is_of_then.then(|| Second {
        unix_s,
        is_heard: row[FLAGS] & 1 != 0,
        is_measured: row[FLAGS] & 2 != 0,
        momentary_lufs: level(0),
        short_term_lufs: level(1),
        integrated_lufs: level(2),
        range_lu: level(3),
        true_peak_dbtp: level(4),
        packets: count(5),
        lost: count(6),
        jitter_us: count(7) * JITTER_UNIT_US,
        held_packets: count(8),
        ..Second::default()
    })
}

fn sum(row: &[u8]) -> u8 {
    let bytes = row[..SUM].iter();
    bytes.fold(SUM_OF_NOTHING, |sum, byte| {
        sum.rotate_left(1).wrapping_add(*byte)
    })
}

/// Number of seconds of a day.
pub(super) const SECONDS: usize = 86_400;
const MAGIC: [u8; 8] = *b"tb-hist1";
/// Length of the header: a block of most disks.
const HEADER_BYTES: usize = 4096;
const ROW_BYTES: usize = 24;
const FLAGS: usize = 22;
const SUM: usize = 23;
/// Start value of the sum, which makes a row of zeros invalid.
const SUM_OF_NOTHING: u8 = 0x5a;
const JITTER_UNIT_US: u32 = 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn a_second() -> impl Strategy<Value = Second> {
        let levels = prop::array::uniform5(any::<i16>().prop_map(Level::of_tenths));
        let counts = prop::array::uniform4(0_u32..=u32::from(u16::MAX));
        (any::<[bool; 2]>(), levels, counts).prop_map(|(flags, levels, counts)| Second {
            is_heard: flags[0],
            is_measured: flags[1],
            momentary_lufs: levels[0],
            short_term_lufs: levels[1],
            integrated_lufs: levels[2],
            range_lu: levels[3],
            true_peak_dbtp: levels[4],
            packets: counts[0],
            lost: counts[1],
            jitter_us: counts[2] * JITTER_UNIT_US,
            held_packets: counts[3],
            ..Second::default()
        })
    }

    /// Generates gaps, each followed by consecutive seconds.
    fn runs() -> impl Strategy<Value = Vec<(u64, Vec<Second>)>> {
        let gap = prop_oneof![0_u64..10, 0_u64..200_000];
        let seconds = prop::collection::vec(a_second(), 1..100);
        prop::collection::vec((gap, seconds), 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The file must behave like a simple model, which stores all seconds and drops those older than a day.
        #[test]
        fn last_day_round_trips(
            begin in 1_700_000_000_u64..1_800_000_000,
            runs in runs(),
            from in 0_u64..100_000,
            span in 0_u64..100_000,
        ) {
            let dir = tempfile::tempdir()?;
            let path = dir.path().join("ring");
            let mut twin = BTreeMap::new();
            let mut unix_s = begin;
            for (gap, run) in &runs {
                unix_s += gap;
                let mut seconds = run.clone();
                for second in &mut seconds {
                    second.unix_s = unix_s;
                    twin.insert(unix_s, *second);
                    unix_s += 1;
                }
                Ring::open(&path, "news")?.write(&seconds)?;
            }
            let (from_s, until_s) = (unix_s.saturating_sub(from), unix_s.saturating_sub(from) + span);
            let due: Vec<Second> = twin
                .range(from_s.max(unix_s.saturating_sub(SECONDS as u64)).max(until_s.saturating_sub(SECONDS as u64))..)
                .map(|(_, second)| *second)
                .filter(|one| one.unix_s < until_s)
                .collect();
            if let Some(ring) = Ring::find(&path, "news")? {
                let overwritten = unix_s.saturating_sub(SECONDS as u64);
                let found = ring.read(from_s, until_s)?;
                // Ignore older seconds, which are still in the file if nothing was written since.
                let found: Vec<Second> = found.into_iter().filter(|one| one.unix_s >= overwritten).collect();
                prop_assert_eq!(found, due);
            } else {
                prop_assert!(runs.is_empty());
            }
        }
    }

    #[test]
    fn a_file_belongs_to_one_stream_and_has_a_fixed_size() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ring");
        let at = |unix_s| Second {
            unix_s,
            packets: 50,
            ..Second::default()
        };
        let of = |name| {
            let ring = Ring::find(&path, name).expect("readable")?;
            Some(ring.read(0, u64::from(u32::MAX)).expect("readable").len())
        };
        let write = |name, seconds: &[Second]| {
            let ring = Ring::open(&path, name).expect("writable");
            ring.write(seconds).expect("room");
        };
        assert_eq!(of("news"), None);
        write("news", &[at(u64::from(u32::MAX) - 7)]);
        let bytes = std::fs::metadata(&path).expect("it is there").len();
        assert_eq!((of("news"), of("sport")), (Some(1), None));
        let day: Vec<Second> = (1..=100_000)
            .rev()
            .map(|n| at(u64::from(u32::MAX) - n))
            .collect();
        write("news", &day);
        assert_eq!(of("news"), Some(SECONDS));
        write("sport", &day[..10]);
        assert_eq!((of("news"), of("sport")), (None, Some(0)));
        assert_eq!(std::fs::metadata(&path).expect("it is there").len(), bytes);
    }

    /// A power cut may leave zeros, or a part of a row.
    #[test]
    fn torn_records_are_omitted() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ring");
        let ring = Ring::open(&path, "news").expect("writable");
        let at = |unix_s| Second {
            unix_s,
            packets: 50,
            ..Second::default()
        };
        // One of these seconds has time 0, as a row of zeros would.
        ring.write(&[at(0), at(1), at(2)]).expect("room");
        ring.file
            .write_all_at(&[0; 8], offset(1) + 12)
            .expect("room");
        ring.file
            .write_all_at(&[0; ROW_BYTES], offset(0))
            .expect("room");
        let found = ring.read(0, 10).expect("readable");
        assert_eq!(found, [at(2)]);
    }
}
