//! Limits of TCP connections from unknown hosts, in total and per host, so that no host can lock out another one. Each connection
//! needs a place.
//!
//! ```text
//!            a request has begun            the request shows the token (key)
//!  waiting ──────────────────────→ busy ──────────────────────────────────────→ trusted
//!     ↑ └───────────────────────────┘│
//!     └──── the request is answered ─┘
//! ```
//!
//! If no place is left, the host with the most waiting connections loses the connection that has waited longest. Busy
//! connections keep their places, and trusted ones do not count for their host. A few extra places are for short requests, such
//! as those of a monitor.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The total of all hosts.
    pub total: usize,
    /// Limit for one IPv4 address, or one IPv6 network of 64 bits, without trusted connections.
    pub per_host: usize,
    /// Extra places for short requests.
    pub extra: usize,
}

/// All places of a listening socket.
#[derive(Debug, Clone)]
pub struct Places(Arc<Mutex<Book>>);

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    id: u64,
    is_extra: bool,
}

#[derive(Debug)]
struct Book {
    limits: Limits,
    next: u64,
    /// The connections in order of arrival.
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    host: IpAddr,
    state: State,
    is_extra: bool,
    task: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Busy,
    Trusted,
}

impl Places {
    /// Creates the places, which are all free.
    pub fn new(limits: Limits) -> Places {
        Places(Arc::new(Mutex::new(Book {
            limits,
            next: 0,
            taken: BTreeMap::new(),
        })))
    }

    /// Returns a place for a connection from this address. `None`: all places are taken, and no connection is waiting.
    pub fn enter(&self, from: IpAddr) -> Option<Place> {
        let mut book = self.book();
        let (id, is_extra, leaves) = book.enter(host_of(from))?;
        drop(book);
        leaves.iter().for_each(AbortHandle::abort);
        Some(Place {
            places: self.clone(),
            id,
            is_extra,
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Sets the task of this connection, which is aborted when the connection must give up its place.
    pub fn is_of(&self, task: AbortHandle) {
        self.change(|taken| taken.task = Some(task));
    }

    /// Marks the start of a request. The connection keeps its place until the result is dropped.
    pub fn begin(self: &Arc<Place>) -> Busy {
        self.change(|taken| {
            if taken.state == State::Waiting {
                taken.state = State::Busy;
            }
        });
        Busy(self.clone())
    }

    /// Marks the connection as trusted: its client has shown its token or key.
    pub fn trust(&self) {
        self.change(|taken| taken.state = State::Trusted);
    }

    /// Whether the place is an extra one, for short requests.
    pub fn is_extra(&self) -> bool {
        self.is_extra
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        if let Some(taken) = self.places.book().taken.get_mut(&self.id) {
            change(taken);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.book().taken.remove(&self.id);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|taken| {
            if taken.state == State::Busy {
                taken.state = State::Waiting;
            }
        });
    }
}

impl Book {
    /// Finds a new place. Returns its number, whether it is an extra one, and the tasks that must be aborted for it.
    fn enter(&mut self, host: IpAddr) -> Option<(u64, bool, Vec<AbortHandle>)> {
        let of_host = |taken: &&Taken| taken.host == host && taken.state != State::Trusted;
        let mut leaves = Vec::new();
        if self.taken.values().filter(of_host).count() >= self.limits.per_host {
            leaves.extend(self.leave(|taken| taken.host == host)?);
        }
        let plain = self.taken.values().filter(|taken| !taken.is_extra).count();
        let mut is_extra = false;
        if plain >= self.limits.total {
            let most = self.most();
            match self.leave(|taken| !taken.is_extra && Some(taken.host) == most) {
                Some(task) => leaves.extend(task),
                None => is_extra = true,
            }
        }
        if is_extra && self.taken.len() >= plain + self.limits.extra {
            leaves.extend(self.leave(|taken| taken.is_extra)?);
        }
        let id = self.next;
        self.next += 1;
        self.taken.insert(
            id,
            Taken {
                host,
                state: State::Waiting,
                is_extra,
                task: None,
            },
        );
        Some((id, is_extra, leaves))
    }

    /// Returns the host with the most waiting connections. Connections in extra places do not count.
    fn most(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let waiting = self.taken.values();
        for taken in waiting.filter(|taken| taken.state == State::Waiting && !taken.is_extra) {
            *counts.entry(taken.host).or_default() += 1;
        }
        counts
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(host, _)| host)
    }

    /// Removes the connection that has waited longest among those for which `is_one` is true.
    fn leave(&mut self, is_one: impl Fn(&Taken) -> bool) -> Option<Option<AbortHandle>> {
        let (id, _) = self
            .taken
            .iter()
            .find(|(_, taken)| taken.state == State::Waiting && is_one(taken))?;
        let id = *id;
        self.taken.remove(&id).map(|taken| taken.task)
    }
}

/// Returns the host of an address. An IPv6 network of 64 bits counts as one host, because its owner has 2^64 addresses.
fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        total: 12,
        per_host: 4,
        extra: 2,
    };

    fn host(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn enter(places: &Places, n: u8) -> Option<Arc<Place>> {
        places.enter(host(n)).map(Arc::new)
    }

    fn has(place: &Arc<Place>) -> bool {
        place.places.book().taken.contains_key(&place.id)
    }

    #[test]
    fn a_host_with_too_many_connections_loses_its_own_oldest() {
        let places = Places::new(LIMITS);
        let other = enter(&places, 9).unwrap();
        let many: Vec<_> = (0..6).map(|_| enter(&places, 1).unwrap()).collect();
        let kept: Vec<bool> = many.iter().map(has).collect();
        assert_eq!(kept, [false, false, true, true, true, true]);
        assert!(has(&other));
    }

    #[test]
    fn busy_connections_keep_their_places_and_new_ones_are_refused() {
        let places = Places::new(LIMITS);
        let busy: Vec<_> = (0..4).map(|_| enter(&places, 1).unwrap()).collect();
        let requests: Vec<Busy> = busy.iter().map(Place::begin).collect();
        assert!(enter(&places, 1).is_none());
        assert!(busy.iter().all(has));
        drop(requests);
        assert!(enter(&places, 1).is_some());
        assert!(!has(&busy[0]));
    }

    #[test]
    fn trusted_connections_count_towards_no_host_and_are_never_ended() {
        let places = Places::new(LIMITS);
        let trusted: Vec<_> = (0..12)
            .map(|_| {
                let place = enter(&places, 1).unwrap();
                place.trust();
                place
            })
            .collect();
        // Two more connections fit into the extra places. The third one replaces the first one there.
        let extra: Vec<_> = (0..3).map(|n| enter(&places, n).unwrap()).collect();
        assert!(extra.iter().all(|place| place.is_extra()));
        let kept: Vec<bool> = extra.iter().map(has).collect();
        assert_eq!(kept, [false, true, true]);
        assert!(trusted.iter().all(has));
        drop(trusted);
        assert!(!enter(&places, 1).unwrap().is_extra());
    }

    #[test]
    fn addresses_of_one_network_are_one_host() {
        let of = |text: &str| host_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    proptest! {
        /// Whatever unknown hosts do, the limits hold, and a host with less than its share gets a place.
        #[test]
        fn no_hosts_can_lock_out_another(steps in prop::collection::vec((0_u8..5, 0_u8..4), 1..300)) {
            let places = Places::new(LIMITS);
            let mut all: Vec<(Arc<Place>, Option<Busy>)> = Vec::new();
            for (who, what) in steps {
                match what {
                    0 | 1 => {
                        let place = enter(&places, who);
                        all.extend(place.map(|place| (place, None)));
                    }
                    2 => {
                        // A host has at most two open requests, which are answered soon.
                        let begun = all.iter().filter(|(place, busy)| {
                            busy.is_some() && has(place) && place.places.book().taken[&place.id].host == host(who)
                        });
                        if begun.count() < 2
                            && let Some((place, busy)) = all.iter_mut().find(|(place, busy)| {
                                busy.is_none() && has(place) && place.places.book().taken[&place.id].host == host(who)
                            })
                        {
                            *busy = Some(place.begin());
                        }
                    }
                    _ => all.retain(|(place, _)| has(place)),
                }
                let book = places.book();
                prop_assert!(book.taken.len() <= LIMITS.total + LIMITS.extra);
                for n in 0..5 {
                    let count = book.taken.values().filter(|taken| taken.host == host(n)).count();
                    prop_assert!(count <= LIMITS.per_host);
                }
                drop(book);
                let monitor = enter(&places, 200);
                prop_assert!(monitor.as_ref().is_some_and(has));
            }
        }
    }
}
