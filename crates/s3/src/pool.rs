//! The memory of all uploads without a spool.
//!
//! A part can be sent only when it is full. If half-full parts used up the memory, no part could be sent, and no memory would
//! ever be freed. So the memory of one part is reserved for a *leader*: the upload with the fullest part among those that were
//! refused. The leader may use all of the memory until its part is full. The next leader follows after that part has been sent.
//!
//! (This is the banker's algorithm with one reserve: Dijkstra, EWD 108, "Een algorithme ter voorkoming van de dodelijke
//! omarming".)

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Waker;

use crate::client::wake;
use crate::lock;

/// Size of a process's pool, unless the first user requests another one. It is enough for 25 streams with two parts of 5 MiB
/// each.
pub const POOL_BYTES_DEFAULT: u64 = 256 << 20;

#[derive(Debug)]
struct Shares<W> {
    max: u64,
    used: u64,
    /// Size of the largest part of any user, which is the reserve.
    reserve: u64,
    leader: Option<u64>,
    next: u64,
    users: BTreeMap<u64, User<W>>,
}

#[derive(Debug)]
struct User<W> {
    used: u64,
    /// Number of bytes in the part being filled, and the waker; `None` if the user does not wait.
    waits: Option<(u64, W)>,
}

impl<W> Shares<W> {
    fn new(max: u64) -> Self {
        Shares {
            max,
            used: 0,
            reserve: 0,
            leader: None,
            next: 0,
            users: BTreeMap::new(),
        }
    }

    fn join(&mut self, part_bytes: u64) -> u64 {
        self.reserve = self.reserve.max(part_bytes);
        let user = self.next;
        self.next += 1;
        self.users.insert(
            user,
            User {
                used: 0,
                waits: None,
            },
        );
        user
    }

    /// Returns the maximum number of bytes. It is at least twice the size of the largest part, because a part that is larger than
    /// the memory would never be full.
    fn max(&self) -> u64 {
        self.max.max(self.reserve.saturating_mul(2))
    }

    fn fits(&self, bytes: u64, is_leader: bool) -> bool {
        let limit = if is_leader {
            self.max()
        } else {
            self.max() - self.reserve
        };
        self.used.saturating_add(bytes) <= limit
    }

    /// Grants `bytes` to `user` if they fit. `filled` is the number of bytes in the user's part.
    fn take(&mut self, user: u64, bytes: u64, filled: u64, waker: impl FnOnce() -> W) -> bool {
        let mut is_taken = self.fits(bytes, self.leader == Some(user));
        if !is_taken && self.leader.is_none() {
            let fullest = self
                .users
                .values()
                .filter_map(|user| Some(user.waits.as_ref()?.0))
                .max();
            if fullest.is_none_or(|most| filled >= most) {
                self.leader = Some(user);
                is_taken = self.fits(bytes, true);
            }
        }
        let Some(own) = self.users.get_mut(&user) else {
            return false;
        };
        if is_taken {
            own.waits = None;
            own.used += bytes;
            self.used += bytes;
        } else {
            own.waits = Some((filled, waker()))
        }
        is_taken
    }

    /// Notes that the user's part is full, or ends now. Returns the wakers to be called.
    fn sealed(&mut self, user: u64) -> Vec<W> {
        if self.leader == Some(user) {
            self.leader = None;
            self.waiting()
        } else {
            Vec::new()
        }
    }

    fn release(&mut self, user: u64, bytes: u64) -> Vec<W> {
        if let Some(own) = self.users.get_mut(&user) {
            debug_assert!(own.used >= bytes, "released more than was taken");
            let bytes = bytes.min(own.used);
            own.used -= bytes;
            self.used -= bytes;
        }
        self.waiting()
    }

    fn leave(&mut self, user: u64) -> Vec<W> {
        if let Some(own) = self.users.remove(&user) {
            self.used -= own.used;
        }
        if self.leader == Some(user) {
            self.leader = None;
        }
        if self.users.is_empty() {
            self.reserve = 0;
        }
        self.waiting()
    }

    /// Takes the wakers of waiting users. Their parts stay known, so that the user with the fullest part becomes the leader.
    fn waiting(&mut self) -> Vec<W>
    where
        W: Sized,
    {
        let mut waiting: Vec<(u64, W)> = self
            .users
            .values_mut()
            .filter_map(|user| user.waits.take())
            .collect();
        // The user with the fullest part is woken first.
        waiting.sort_by_key(|(filled, _)| std::cmp::Reverse(*filled));
        waiting.into_iter().map(|(_, waker)| waker).collect()
    }
}

/// The memory of a group of uploads. Clones refer to the same pool.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Mutex<Shares<Waker>>>);

impl Pool {
    /// Creates a pool of this many bytes, or of twice the size of the largest part if that is more.
    pub fn new(bytes_max: u64) -> Self {
        Pool(Arc::new(Mutex::new(Shares::new(bytes_max))))
    }

    /// Returns the process's pool, with [`POOL_BYTES_DEFAULT`].
    pub fn of_process() -> Self {
        static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(POOL_BYTES_DEFAULT));
        POOL.clone()
    }

    /// Returns the maximum number of bytes that the uploads may hold together.
    pub fn max(&self) -> u64 {
        lock(&self.0).max()
    }

    /// Changes the maximum for all users. Memory that already exceeds it stays in use.
    pub fn set_max(&self, bytes: u64) {
        let wakers = {
            let mut shares = lock(&self.0);
            shares.max = bytes;
            shares.waiting()
        };
        wake(wakers);
    }

    /// Returns the number of bytes that the uploads hold.
    pub fn used(&self) -> u64 {
        lock(&self.0).used
    }

    pub(crate) fn join(&self, part_bytes: u64) -> Lease {
        let user = lock(&self.0).join(part_bytes);
        Lease {
            pool: self.clone(),
            user,
        }
    }
}

/// An upload's part of the pool.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Pool,
    user: u64,
}

impl Lease {
    /// Takes memory. Returns `false` if it is refused; then the waker is called when the result may be different.
    pub(crate) fn take(&self, bytes: u64, filled: u64, waker: &Waker) -> bool {
        lock(&self.pool.0).take(self.user, bytes, filled, || waker.clone())
    }

    pub(crate) fn max(&self) -> u64 {
        self.pool.max()
    }

    /// Notes that the part is full. The caller must call the returned wakers without a lock. This also applies to the other
    /// functions.
    #[must_use]
    pub(crate) fn sealed(&self) -> Vec<Waker> {
        lock(&self.pool.0).sealed(self.user)
    }

    #[must_use]
    pub(crate) fn release(&self, bytes: u64) -> Vec<Waker> {
        lock(&self.pool.0).release(self.user, bytes)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let wakers = lock(&self.pool.0).leave(self.user);
        wake(wakers);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_full_parts_do_not_stop_each_other() {
        // Two parts of 100 bytes fit, and ten streams want one each.
        let mut shares = Shares::new(200);
        let users: Vec<u64> = (0..10).map(|_| shares.join(100)).collect();
        let mut filled = [0u64; 10];
        let mut sent = 0;
        for _ in 0..1000 {
            for (index, user) in users.iter().enumerate() {
                if filled[index] < 100 && shares.take(*user, 10, filled[index], || ()) {
                    filled[index] += 10;
                }
                if filled[index] == 100 {
                    shares.sealed(*user);
                    shares.release(*user, 100);
                    filled[index] = 1000;
                    sent += 1;
                }
            }
        }
        assert_eq!(sent, 10);
        assert_eq!(shares.used, 0);
    }

    #[test]
    fn a_part_larger_than_the_pool_has_room() {
        let mut shares = Shares::<()>::new(10);
        let user = shares.join(100);
        assert!(shares.take(user, 100, 0, || ()));
        assert!(
            shares.take(user, 100, 0, || ()),
            "the next one while the first is sent"
        );
        assert!(!shares.take(user, 1, 0, || ()));
    }

    proptest! {
        /// The model sums up the bytes of each user. Streams fill parts of 50 bytes, in pieces. Full parts are sent at any later
        /// time.
        #[test]
        fn memory_stays_bounded_and_all_parts_are_sent(
            max in 100..300u64,
            steps in prop::collection::vec((0..8usize, 1..=10u64, any::<bool>()), 1..400),
        ) {
            let mut shares = Shares::new(max);
            let users: Vec<u64> = (0..8).map(|_| shares.join(50)).collect();
            let (mut filled, mut flying) = ([0u64; 8], [0u64; 8]);
            let mut step = |index: usize, bytes: u64, sends: bool, filled: &mut [u64; 8], flying: &mut [u64; 8]| {
                let bytes = bytes.min(50 - filled[index]);
                let user = users[index];
                let is_taken = shares.take(user, bytes, filled[index], || ());
                if is_taken {
                    filled[index] += bytes;
                    if filled[index] == 50 {
                        shares.sealed(user);
                        (filled[index], flying[index]) = (0, flying[index] + 50);
                    }
                }
                if sends && flying[index] > 0 {
                    flying[index] -= 50;
                    shares.release(user, 50);
                }
                let held: u64 = filled.iter().chain(flying.iter()).sum();
                assert_eq!(shares.used, held);
                assert!(held <= max);
                is_taken
            };
            for (index, bytes, sends) in steps {
                step(index, bytes, sends, &mut filled, &mut flying);
            }
            // From any state, each user gets a full part if all users continue and full parts are sent.
            let mut wins = [0; 8];
            for _ in 0..200 {
                for (index, wins) in wins.iter_mut().enumerate() {
                    *wins += u32::from(step(index, 10, true, &mut filled, &mut flying));
                }
            }
            prop_assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
        }
    }
}
