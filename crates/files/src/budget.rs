//! Limits the memory that waits for the disk, for all files of a group together.
//!
//! Each file may hold [`SHARE_BYTES_MIN`], or one write of any size, whatever the other files hold. Above that, a file may hold
//! at most as much as is still free. (These are dynamic thresholds, as in the shared buffers of switches: Choudhury and Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", 1998.) So one stalled file takes at most half of the
//! budget, and n stalled files take n/(n+1). The remaining part is for active files. The total is limited by the budget plus the
//! minimum shares.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::Waker;

use slab::Slab;

use crate::lock;

/// Minimum share of each file, in bytes.
pub const SHARE_BYTES_MIN: usize = 16 << 10;

/// The sums of a budget, without a lock.
#[derive(Debug)]
struct Shares<W> {
    max: usize,
    used: usize,
    files: Slab<FileUse<W>>,
}

#[derive(Debug)]
struct FileUse<W> {
    used: usize,
    /// Number of bytes for which the file waits, and its waker.
    waits: Option<(usize, W)>,
}

impl<W> Shares<W> {
    fn admits(&self, file: usize, bytes: usize) -> bool {
        let own = self.files[file].used;
        let with = own.saturating_add(bytes);
        own == 0 || with <= SHARE_BYTES_MIN || self.used.saturating_add(with) <= self.max
    }

    fn take(&mut self, file: usize, bytes: usize) -> bool {
        let is_admitted = self.admits(file, bytes);
        if is_admitted {
            self.used += bytes;
            let file_use = &mut self.files[file];
            file_use.used += bytes;
            file_use.waits = None;
        }
        is_admitted
    }

    /// Returns the wakers of the files whose waiting writes are admitted now.
    fn release(&mut self, file: usize, bytes: usize) -> Vec<W> {
        let file_use = &mut self.files[file];
        debug_assert!(file_use.used >= bytes, "released more than was taken");
        let bytes = bytes.min(file_use.used);
        file_use.used -= bytes;
        self.used -= bytes;
        self.admitted()
    }

    fn admitted(&mut self) -> Vec<W> {
        let waiting = self.files.iter().filter_map(|(file, file_use)| {
            let (bytes, _) = file_use.waits.as_ref()?;
            self.admits(file, *bytes).then_some(file)
        });
        let files: Vec<usize> = waiting.collect();
        let wakers = files
            .into_iter()
            .filter_map(|file| self.files[file].waits.take());
        wakers.map(|(_, waker)| waker).collect()
    }
}

/// The memory of a group of files. Clones refer to the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Mutex<Shares<Waker>>>);

type Known = HashMap<String, Weak<Mutex<Shares<Waker>>>>;

static NAMED: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

impl Budget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Budget(Arc::new(Mutex::new(Shares {
            max,
            used: 0,
            files: Slab::new(),
        })))
    }

    /// Returns the process's budget of this name; creates it with `max` bytes for the first user. An existing budget keeps its
    /// maximum: see [`Budget::max`].
    pub fn named(name: &str, max: usize) -> Self {
        let mut all = lock(&NAMED);
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return Budget(known);
        }
        all.retain(|_, budget| budget.strong_count() > 0);
        let budget = Budget::new(max);
        all.insert(name.to_owned(), Arc::downgrade(&budget.0));
        budget
    }

    /// Returns the maximum number of bytes that the files may hold together, apart from their minimum shares.
    pub fn max(&self) -> usize {
        lock(&self.0).max
    }

    /// Returns the number of bytes that the files hold.
    pub fn used(&self) -> usize {
        lock(&self.0).used
    }
}

/// A file's part of a budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    file: usize,
}

/// Result of [`Share::take`].
pub(crate) enum Taken {
    /// The bytes are granted. `is_pressed` means that memory is scarce, so that held writes should not wait to be combined.
    Yes {
        is_pressed: bool,
    },
    No,
}

impl Share {
    pub(crate) fn new(budget: Budget) -> Self {
        let file = lock(&budget.0).files.insert(FileUse {
            used: 0,
            waits: None,
        });
        Share { budget, file }
    }

    /// Takes `bytes`. If they are refused, `waker` is called when they would be granted.
    pub(crate) fn take(&self, bytes: usize, waker: Option<&Waker>) -> Taken {
        let mut shares = lock(&self.budget.0);
        if shares.take(self.file, bytes) {
            return Taken::Yes {
                is_pressed: shares.used > shares.max / 2,
            };
        }
        if let Some(waker) = waker {
            shares.files[self.file].waits = Some((bytes, waker.clone()));
        }
        Taken::No
    }

    /// Returns `bytes` to the budget. The caller must call the returned wakers without a lock.
    #[must_use]
    pub(crate) fn release(&self, bytes: usize) -> Vec<Waker> {
        lock(&self.budget.0).release(self.file, bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = lock(&self.budget.0);
        let file_use = shares.files.remove(self.file);
        shares.used -= file_use.used;
        let admitted = match file_use.used {
            0 => Vec::new(),
            _ => shares.admitted(),
        };
        drop(shares);
        admitted.iter().for_each(Waker::wake_by_ref);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize, usize),
        /// The file's oldest write is done.
        Done(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..5usize, 1..90_000usize).prop_map(|(file, bytes)| Step::Take(file, bytes)),
            2 => (0..5usize).prop_map(Step::Done),
        ]
    }

    fn shares(files: usize, max: usize) -> Shares<usize> {
        let mut shares = Shares {
            max,
            used: 0,
            files: Slab::new(),
        };
        for _ in 0..files {
            shares.files.insert(FileUse {
                used: 0,
                waits: None,
            });
        }
        shares
    }

    const MAX: usize = 256 << 10;

    proptest! {
        /// The model has a list of writes for each file, and sums it up for each decision.
        #[test]
        fn the_budget_decides_like_a_simple_list(steps in prop::collection::vec(step(), 0..200)) {
            let mut shares = shares(5, MAX);
            let mut twin: Vec<Vec<usize>> = vec![Vec::new(); 5];
            let mut waits: Vec<Option<usize>> = vec![None; 5];
            let may = |twin: &[Vec<usize>], file: usize, bytes: usize| {
                let own: usize = twin[file].iter().sum();
                let all: usize = twin.iter().flatten().sum();
                own == 0 || own + bytes <= SHARE_BYTES_MIN || own + bytes <= MAX.saturating_sub(all)
            };
            for step in steps {
                match step {
                    Step::Take(file, bytes) => {
                        let expected = may(&twin, file, bytes);
                        prop_assert_eq!(shares.take(file, bytes), expected);
                        if expected {
                            twin[file].push(bytes);
                            waits[file] = None;
                        } else {
                            shares.files[file].waits = Some((bytes, file));
                            waits[file] = Some(bytes);
                        }
                    }
                    Step::Done(file) if !twin[file].is_empty() => {
                        let bytes = twin[file].remove(0);
                        let woken = shares.release(file, bytes);
                        let expected: Vec<usize> = (0..5)
                            .filter(|file| waits[*file].is_some_and(|bytes| may(&twin, *file, bytes)))
                            .collect();
                        for file in &expected {
                            waits[*file] = None;
                        }
                        prop_assert_eq!(woken, expected);
                    }
                    Step::Done(_) => {}
                }
                let used: usize = twin.iter().flatten().sum();
                prop_assert_eq!(shares.used, used);
                // This is the limit that the module documentation states. Each file has its minimum share, or one large write.
                prop_assert!(used <= MAX + 5 * SHARE_BYTES_MIN.max(90_000));
            }
        }

        /// Stalled files take all they can and return nothing. Another file is written, and must continue.
        #[test]
        fn stalled_files_leave_space_for_other_files(
            stalled in 1..20usize,
            writes in prop::collection::vec((0..20usize, 1..20_000usize), 0..400),
        ) {
            let mut shares = shares(stalled + 1, MAX);
            for (file, bytes) in writes {
                shares.take(file % stalled, bytes);
            }
            let free = MAX.saturating_sub(shares.used);
            // Stalled files together hold at most what was free at the time. So n x free + free >= max, apart from one write
            // each.
            let least = (MAX / (stalled + 1)).saturating_sub(20_000 + SHARE_BYTES_MIN);
            prop_assert!(free >= least.saturating_sub(stalled * SHARE_BYTES_MIN), "{free}");
            // Even without free memory, the other file always has its share.
            for _ in 0..10 {
                prop_assert!(shares.take(stalled, 1000));
                prop_assert!(shares.take(stalled, SHARE_BYTES_MIN - 1000));
                shares.release(stalled, SHARE_BYTES_MIN);
                prop_assert!(shares.take(stalled, 10 * MAX));
                shares.release(stalled, 10 * MAX);
            }
        }
    }

    #[test]
    fn one_stalled_file_uses_half_of_the_budget() {
        let mut shares = shares(2, MAX);
        while shares.take(0, 1024) {}
        assert_eq!(shares.used, MAX / 2);
        while shares.take(1, 1024) {}
        assert_eq!(shares.files[1].used, MAX / 4);
    }

    #[test]
    fn name_refers_to_one_budget_while_in_use() {
        let first = Budget::named("a test", 1000);
        assert_eq!(Budget::named("a test", 2000).max(), 1000);
        drop(first);
        assert_eq!(Budget::named("a test", 2000).max(), 2000);
    }
}
