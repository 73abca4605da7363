//! Finds the stream that a packet of a shared port belongs to.
//!
//! A route matches packets by SSRC, by the sender's address, by payload type, or by any combination of these. The most specific route wins.
//! The result for each flow is remembered, so a packet costs one hash lookup. Unknown senders may get their own routes after a few packets
//! (see [`Learning`]).
//!
//! All tables are bounded. At a bound, the least recently used entry is removed, in constant time.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::id::{PayloadType, Ssrc};
use crate::rng::SplitMix;

/// Maximum number of static routes. These are more streams than one machine carries, and a table of 16 MiB.
pub const ROUTES_MAX: usize = 65_536;
/// Maximum number of remembered flows. With fewer flows than this, the filters are searched only once for each flow.
pub const FLOWS_MAX: usize = 65_536;
/// Minimum time between two moves of an entry to the front of its list. A move touches the entry's neighbours, which are rarely in the
/// cache.
const USED_GRAIN_NS: u64 = 1_000_000_000;
/// Index that stands for no entry.
const NONE: u32 = u32::MAX;

const BY_SSRC: u8 = 1;
const BY_ADDRESS: u8 = 2;
const BY_PAYLOAD_TYPE: u8 = 4;
/// The combinations of fields that filters may use, in the order of the search. Combinations of more fields come first. An SSRC is more
/// specific than an address, and an address is more specific than a payload type.
const MASKS: [u8; 8] = [
    BY_SSRC | BY_ADDRESS | BY_PAYLOAD_TYPE,
    BY_SSRC | BY_ADDRESS,
    BY_SSRC | BY_PAYLOAD_TYPE,
    BY_ADDRESS | BY_PAYLOAD_TYPE,
    BY_SSRC,
    BY_ADDRESS,
    BY_PAYLOAD_TYPE,
    0,
];
const STRANGER_MASK: u8 = BY_SSRC | BY_ADDRESS;

/// Describes the packets of a route. A field that is `None` matches everything. A filter without any field matches the packets that no
/// other route matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    /// SSRC of the packets.
    pub ssrc: Option<Ssrc>,
    /// The sender's address.
    pub from: Option<SocketAddr>,
    /// Payload type of the packets.
    pub payload_type: Option<PayloadType>,
}

/// Whether and how unknown senders get routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learning {
    /// Number of packets after which a sender is reported. They must have one SSRC and one address, and each must come less than `idle_ns`
    /// after the previous one.
    pub packets: u32,
    /// Maximum number of unknown senders on probation. If there are more of them, only other unknown senders are evicted.
    pub strangers_max: usize,
    /// Maximum number of learned routes.
    pub routes_max: usize,
    /// Time without packets after which a learned route or an unknown sender is forgotten, ns.
    pub idle_ns: u64,
}

/// The reason why a route was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DemuxError {
    /// A static route has the same filter.
    #[error("another route already has this filter")]
    Duplicate,
    /// The number of static routes is at [`ROUTES_MAX`], or learned routes are disabled.
    #[error("the table has no room for another route")]
    Full,
}

/// Result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The packet belongs to this route.
    Route(R),
    /// The packet is from an unknown sender that has now sent enough packets. This is reported once. Give the sender a route with
    /// [`Demux::learn`], or ignore it.
    Stranger,
    /// The packet is from an unknown sender on probation, or from one that was reported and got no route.
    Probation,
    /// The packet belongs to no route.
    Unmatched,
}

/// Counters of a [`Demux`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DemuxStats {
    /// Number of packets that belonged to a route.
    pub matched: u64,
    /// Number of packets without a route.
    pub unmatched: u64,
    /// Number of packets from unknown senders on probation.
    pub probation: u64,
    /// Number of packets from unknown senders that were reported and got no route.
    pub unclaimed: u64,
    /// Number of unknown senders that were forgotten because there were too many.
    pub strangers_evicted: u64,
    /// Number of learned routes that were forgotten because there were too many.
    pub routes_evicted: u64,
    /// Number of learned routes that were forgotten because they were idle.
    pub routes_expired: u64,
    /// Number of expired routes that were not drained in time.
    pub expired_dropped: u64,
}

/// The fields of a packet that `mask` selects, as four words to hash and compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    ip: [u64; 2],
    /// SSRC and payload type.
    stream: u64,
    /// Port, scope of an IPv6 address, mask.
    place: u64,
}

impl Key {
    #[inline]
    fn new(mask: u8, ssrc: Ssrc, from: SocketAddr, payload_type: PayloadType) -> Key {
        let mut key = Key {
            ip: [0; 2],
            stream: 0,
            place: u64::from(mask),
        };
        if mask & BY_ADDRESS != 0 {
            let (ip, scope) = match from {
                SocketAddr::V4(v4) => (u128::from(u32::from(*v4.ip())), 1 << 31),
                // The scope distinguishes link-local neighbours on two interfaces.
                SocketAddr::V6(v6) => {
                    (u128::from(*v6.ip()), u64::from(v6.scope_id() & 0x7fff_ffff))
                }
            };
            key.ip = [(ip >> 64) as u64, ip as u64];
            key.place |= u64::from(from.port()) << 8 | scope << 32;
        }
        if mask & BY_SSRC != 0 {
            key.stream = u64::from(ssrc.0);
        }
        if mask & BY_PAYLOAD_TYPE != 0 {
            key.stream |= u64::from(payload_type.0) << 32;
        }
        key
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.ip[0]) << 64 | u128::from(self.ip[1]));
        state.write_u128(u128::from(self.stream) << 64 | u128::from(self.place));
    }
}

/// A keyed hash of a few words. Each pair of words is folded in by a multiplication of 64x64 to 128 bits, with a secret mixed into both
/// factors.
#[derive(Debug, Clone)]
struct Keyed([u64; 2]);

struct KeyedHasher {
    state: u64,
    secret: u64,
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            state: self.0[0],
            secret: self.0[1],
        }
    }
}

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u128(u128::from(*byte));
        }
    }

    #[inline]
    fn write_u128(&mut self, pair: u128) {
        let factors = (self.state ^ pair as u64, self.secret ^ (pair >> 64) as u64);
        let product = u128::from(factors.0) * u128::from(factors.1);
        // The rotated state is mixed in, so that a factor of 0 does not erase the state.
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ self.state.rotate_left(29);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind<R> {
    /// A static route, added by the caller.
    Static(R),
    /// A route that the caller gave to an unknown sender.
    Learned(R),
    /// The route that the filters select for a flow, valid until the filters change, and the entry that owns the route.
    Flow {
        route: R,
        generation: u32,
        owner: u32,
    },
    /// An unknown sender on probation. It is reported after this many more packets.
    Stranger { packets_left: u32 },
    /// A free place of the table.
    Free,
}

#[derive(Debug, Clone)]
struct Entry<R> {
    kind: Kind<R>,
    used_ns: u64,
    key: Key,
    /// The neighbours in the list of entries of the same kind.
    newer: u32,
    older: u32,
}

/// Entries of one kind, ordered by last use.
#[derive(Debug, Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    length: usize,
}

const FLOWS: usize = 0;
const STRANGERS: usize = 1;
const LEARNED: usize = 2;

/// A table of routes. `R` is the caller's handle of a stream, such as an index.
///
/// **Contract.** Call [`lookup`](Demux::lookup) for each packet, and [`expire`](Demux::expire) every few seconds. After both, call
/// [`poll_expired`](Demux::poll_expired) until it returns `None`.
#[derive(Debug)]
pub struct Demux<R> {
    index: HashMap<Key, u32, Keyed>,
    entries: Vec<Entry<R>>,
    free: Vec<u32>,
    lists: [List; 3],
    /// Number of routes for each combination of fields, as in [`MASKS`].
    routes_with: [usize; 8],
    /// All fields that any filter uses. They identify a flow.
    flow_mask: u8,
    static_routes: usize,
    generation: u32,
    learning: Option<Learning>,
    expired: VecDeque<(Filter, R)>,
    stats: DemuxStats,
}

impl<R: Copy> Demux<R> {
    /// Creates an empty table. `seed` is the key of the hash. Use a different one for each table, which senders cannot know.
    #[must_use]
    pub fn new(learning: Option<Learning>, seed: u64) -> Demux<R> {
        let mut rng = SplitMix(seed);
        let secrets = [rng.next_u64(), rng.next_u64() | 1];
        let empty = List {
            newest: NONE,
            oldest: NONE,
            length: 0,
        };
        let mut demux = Demux {
            index: HashMap::with_hasher(Keyed(secrets)),
            entries: Vec::new(),
            free: Vec::new(),
            lists: [empty; 3],
            routes_with: [0; 8],
            flow_mask: 0,
            static_routes: 0,
            generation: 0,
            learning,
            expired: VecDeque::new(),
            stats: DemuxStats::default(),
        };
        demux.filters_changed();
        demux
    }

    /// Adds a route for the packets that `filter` describes.
    ///
    /// # Errors
    /// Fails if a route has the same filter, or if there are too many routes.
    pub fn add(&mut self, filter: Filter, route: R) -> Result<(), DemuxError> {
        let key = key_of(&filter);
        if let Some(&at) = self.index.get(&key) {
            if let Kind::Static(_) = self.entries[at as usize].kind {
                return Err(DemuxError::Duplicate);
            }
            // The new route replaces an entry of any other kind with the same key: a flow, an unknown sender, or a learned route.
            self.retire(at);
        }
        if self.static_routes >= ROUTES_MAX {
            return Err(DemuxError::Full);
        }
        self.static_routes += 1;
        self.insert(0, key, Kind::Static(route));
        self.routes_with[usize::from(mask_of(&filter))] += 1;
        self.filters_changed();
        Ok(())
    }

    /// Removes a route, static or learned. `None`: no route has exactly this filter.
    pub fn remove(&mut self, filter: &Filter) -> Option<R> {
        let at = *self.index.get(&key_of(filter))?;
        let route = match self.entries[at as usize].kind {
            Kind::Static(route) | Kind::Learned(route) => route,
            Kind::Flow { .. } | Kind::Stranger { .. } | Kind::Free => return None,
        };
        self.forget(at);
        Some(route)
    }

    /// Gives an unknown sender a route, which stays until it is idle or evicted.
    ///
    /// # Errors
    /// Fails if a static route matches the packet, or if the table does not learn.
    pub fn learn(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        ssrc: Ssrc,
        route: R,
    ) -> Result<(), DemuxError> {
        let learning = self.learning.ok_or(DemuxError::Full)?;
        let key = Key::new(STRANGER_MASK, ssrc, from, PayloadType(0));
        if let Some(&at) = self.index.get(&key) {
            if let Kind::Static(_) = self.entries[at as usize].kind {
                return Err(DemuxError::Duplicate);
            }
            self.retire(at);
        }
        if self.lists[LEARNED].length >= learning.routes_max.max(1) {
            self.stats.routes_evicted += 1;
            self.retire(self.lists[LEARNED].oldest);
        }
        self.insert(now_ns, key, Kind::Learned(route));
        self.routes_with[usize::from(STRANGER_MASK)] += 1;
        self.filters_changed();
        Ok(())
    }

    /// Returns the route of a packet that arrived at `now_ns`. For a known flow, this takes one hash lookup. It allocates only when the
    /// table grows.
    #[inline]
    pub fn lookup(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        ssrc: Ssrc,
        payload_type: PayloadType,
    ) -> Lookup<R> {
        let key = Key::new(self.flow_mask, ssrc, from, payload_type);
        if let Some(&at) = self.index.get(&key) {
            let entry = &self.entries[at as usize];
            let route = match entry.kind {
                Kind::Static(route) => Some(route),
                Kind::Learned(route) => Some(route),
                Kind::Flow {
                    route, generation, ..
                } if generation == self.generation => Some(route),
                Kind::Flow { .. } | Kind::Stranger { .. } | Kind::Free => None,
            };
            if let Some(route) = route {
                if now_ns.saturating_sub(entry.used_ns) >= USED_GRAIN_NS {
                    self.touch(now_ns, at);
                }
                self.stats.matched += 1;
                return Lookup::Route(route);
            }
        }
        self.resolve(now_ns, key, from, ssrc, payload_type)
    }

    /// Searches the filters, the most specific ones first.
    #[cold]
    fn resolve(
        &mut self,
        now_ns: u64,
        flow: Key,
        from: SocketAddr,
        ssrc: Ssrc,
        payload_type: PayloadType,
    ) -> Lookup<R> {
        for mask in MASKS {
            if self.routes_with[usize::from(mask)] == 0 {
                continue;
            }
            let key = Key::new(mask, ssrc, from, payload_type);
            let Some(&owner) = self.index.get(&key) else {
                continue;
            };
            let (Kind::Static(route) | Kind::Learned(route)) = self.entries[owner as usize].kind
            else {
                continue;
            };
            self.touch(now_ns, owner);
            self.remember(now_ns, flow, route, owner);
            self.stats.matched += 1;
            return Lookup::Route(route);
        }
        match self.learning {
            Some(learning) => self.judge_stranger(now_ns, from, ssrc, learning),
            None => {
                self.stats.unmatched += 1;
                Lookup::Unmatched
            }
        }
    }

    fn remember(&mut self, now_ns: u64, flow: Key, route: R, owner: u32) {
        let kind = Kind::Flow {
            route,
            generation: self.generation,
            owner,
        };
        if let Some(&at) = self.index.get(&flow) {
            // If the filters have changed, the remembered result is updated. If the entry is that of an unknown sender, the new route
            // replaces it.
            if let Kind::Flow { .. } = self.entries[at as usize].kind {
                self.entries[at as usize].kind = kind;
                self.touch(now_ns, at);
                return;
            }
            if let Kind::Static(_) | Kind::Learned(_) = self.entries[at as usize].kind {
                return; // the filter uses all fields that identify a flow
            }
            self.forget(at);
        }
        if self.lists[FLOWS].length >= FLOWS_MAX {
            self.forget(self.lists[FLOWS].oldest);
        }
        self.insert(now_ns, flow, kind);
    }

    fn judge_stranger(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        ssrc: Ssrc,
        learning: Learning,
    ) -> Lookup<R> {
        let key = Key::new(STRANGER_MASK, ssrc, from, PayloadType(0));
        let packets_first = learning.packets.saturating_sub(1);
        let known = self.index.get(&key).copied();
        let known = known.filter(|at| {
            let entry = &self.entries[*at as usize];
            matches!(entry.kind, Kind::Stranger { .. })
        });
        let packets_left = match known {
            Some(at) => {
                let entry = &self.entries[at as usize];
                let is_idle = now_ns.saturating_sub(entry.used_ns) >= learning.idle_ns;
                match entry.kind {
                    Kind::Stranger { packets_left: 0 } if !is_idle => {
                        self.touch(now_ns, at);
                        self.stats.unclaimed += 1;
                        return Lookup::Probation;
                    }
                    Kind::Stranger { packets_left } if !is_idle => packets_left - 1,
                    _ => packets_first,
                }
            }
            None => packets_first,
        };
        match known {
            Some(at) => {
                self.entries[at as usize].kind = Kind::Stranger { packets_left };
                self.touch(now_ns, at);
            }
            None => {
                if let Some(&stale) = self.index.get(&key) {
                    self.forget(stale); // the filter that this flow belonged to was removed
                }
                if self.lists[STRANGERS].length >= learning.strangers_max.max(1) {
                    self.stats.strangers_evicted += 1;
                    self.forget(self.lists[STRANGERS].oldest);
                }
                self.insert(now_ns, key, Kind::Stranger { packets_left });
            }
        }
        if packets_left == 0 {
            return Lookup::Stranger;
        }
        self.stats.probation += 1;
        Lookup::Probation
    }

    /// Forgets unknown senders and learned routes that were idle for too long by `now_ns`. The work is proportional to the number of
    /// forgotten entries.
    pub fn expire(&mut self, now_ns: u64) {
        let Some(learning) = self.learning else {
            return;
        };
        // Each round removes an entry.
        for list in [STRANGERS, LEARNED] {
            loop {
                let oldest = self.lists[list].oldest;
                if oldest == NONE {
                    break;
                }
                let used_ns = self.entries[oldest as usize].used_ns;
                // A use is noted only once per [`USED_GRAIN_NS`], so an entry may have been used later than it seems.
                if now_ns.saturating_sub(used_ns) < learning.idle_ns.saturating_add(USED_GRAIN_NS) {
                    break;
                }
                self.stats.routes_expired += u64::from(list == LEARNED);
                self.retire(oldest);
            }
        }
    }

    /// Returns a learned route that was removed because it was idle, evicted, or replaced by another route. Its stream can be ended.
    pub fn poll_expired(&mut self) -> Option<(Filter, R)> {
        self.expired.pop_front()
    }

    /// Returns the number of routes, static and learned.
    #[must_use]
    pub fn len(&self) -> usize {
        self.static_routes + self.lists[LEARNED].length
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> DemuxStats {
        self.stats
    }

    /// Forgets an entry, and reports it if it was a learned route.
    fn retire(&mut self, at: u32) {
        let entry = &self.entries[at as usize];
        if let Kind::Learned(route) = entry.kind {
            let filter = stranger_filter(&entry.key);
            // The number of routes bounds this queue. If a caller never drains it, reports are lost, but no memory.
            let expired_max = self
                .learning
                .map_or(0, |learning| learning.routes_max)
                .max(1);
            if self.expired.len() < expired_max {
                self.expired.push_back((filter, route));
            } else {
                self.stats.expired_dropped += 1;
            }
        }
        self.forget(at);
    }

    /// Invalidates the remembered results, because the filters have changed.
    fn filters_changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        let in_use = MASKS
            .iter()
            .filter(|mask| self.routes_with[usize::from(**mask)] > 0);
        let learning_mask = self.learning.map_or(0, |_| STRANGER_MASK);
        self.flow_mask = in_use.fold(learning_mask, |all, mask| all | mask);
    }

    fn insert(&mut self, now_ns: u64, key: Key, kind: Kind<R>) -> u32 {
        let entry = Entry {
            kind,
            used_ns: now_ns,
            key,
            newer: NONE,
            older: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(key, at);
        if let Some(list) = list_of(&self.entries[at as usize].kind) {
            self.link(at, list);
        }
        at
    }

    fn forget(&mut self, at: u32) {
        let Entry { kind, key, .. } = self.entries[at as usize];
        if let Some(list) = list_of(&kind) {
            self.unlink(at, list);
        }
        self.index.remove(&key);
        self.entries[at as usize].kind = Kind::Free;
        self.free.push(at);
        if let Kind::Static(_) | Kind::Learned(_) = kind {
            self.static_routes -= usize::from(matches!(kind, Kind::Static(_)));
            self.routes_with[usize::from(key.place as u8)] -= 1;
            self.filters_changed();
        }
    }

    fn touch(&mut self, now_ns: u64, at: u32) {
        let entry = &mut self.entries[at as usize];
        entry.used_ns = now_ns;
        let kind = entry.kind;
        if let Some(list) = list_of(&kind) {
            self.unlink(at, list);
            self.link(at, list);
        }
        // A learned route counts as used when one of its flows is used. Its place stays the same as long as the filters do.
        if let Kind::Flow {
            owner, generation, ..
        } = kind
            && generation == self.generation
            && let Kind::Learned(_) = self.entries[owner as usize].kind
        {
            self.entries[owner as usize].used_ns = now_ns;
            self.unlink(owner, LEARNED);
            self.link(owner, LEARNED);
        }
    }

    fn link(&mut self, at: u32, list: usize) {
        let newest = self.lists[list].newest;
        self.entries[at as usize].older = newest;
        self.entries[at as usize].newer = NONE;
        match newest {
            NONE => self.lists[list].oldest = at,
            _ => self.entries[newest as usize].newer = at,
        }
        self.lists[list].newest = at;
        self.lists[list].length += 1;
    }

    fn unlink(&mut self, at: u32, list: usize) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NONE => self.lists[list].newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.lists[list].oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        self.lists[list].length -= 1;
    }
}

fn list_of<R>(kind: &Kind<R>) -> Option<usize> {
    match kind {
        Kind::Flow { .. } => Some(FLOWS),
        Kind::Stranger { .. } => Some(STRANGERS),
        Kind::Learned(_) => Some(LEARNED),
        Kind::Static(_) | Kind::Free => None,
    }
}

fn mask_of(filter: &Filter) -> u8 {
    (if filter.ssrc.is_some() { BY_SSRC } else { 0 })
        | (if filter.from.is_some() { BY_ADDRESS } else { 0 })
        | (if filter.payload_type.is_some() {
            BY_PAYLOAD_TYPE
        } else {
            0
        })
}

fn key_of(filter: &Filter) -> Key {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Key::new(
        mask_of(filter),
        filter.ssrc.unwrap_or(Ssrc(0)),
        filter.from.unwrap_or(nowhere),
        filter.payload_type.unwrap_or(PayloadType(0)),
    )
}

/// Returns the filter of a learned route, whose key contains the whole SSRC and address.
fn stranger_filter(key: &Key) -> Filter {
    let port = (key.place >> 8) as u16;
    let scope = key.place >> 32;
    let ip = u128::from(key.ip[0]) << 64 | u128::from(key.ip[1]);
    let from = if scope == 1 << 31 {
        SocketAddr::new(IpAddr::V4((ip as u32).into()), port)
    } else {
        std::net::SocketAddrV6::new(ip.into(), port, 0, scope as u32).into()
    };
    Filter {
        ssrc: Some(Ssrc(key.stream as u32)),
        from: Some(from),
        payload_type: None,
    }
}

#[cfg(test)]
mod tests;
