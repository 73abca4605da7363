//! The requests of the last seconds with their replies, so that no request is carried out twice. A retransmission gets the same bytes
//! again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// What the table knows about a cookie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<S> {
    /// The cookie is new. Carry out the request. From now on, its state is [`InHand`](Seen::InHand).
    New(Key<S>),
    /// The same request is being carried out. Its reply answers both.
    InHand,
    /// The request has this stored reply.
    Replied(Vec<u8>),
}

/// A sender with its cookie.
pub(crate) type Key<S> = Arc<(S, Box<[u8]>)>;

/// Limits of the table's size and of the entries' age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    pub(crate) age_ns: u64,
}

impl Limits {
    pub(crate) const USUAL: Limits = Limits {
        // This allows 3 requests for each of 1000 calls/s during `age_ns`.
        requests: 32_768,
        // This allows 2 KiB for each of these requests, which is the size of a reply with an SDP.
        bytes: 64 * 1024 * 1024,
        // Clients repeat a request five times, every second, and the network may delay the last one.
        age_ns: 10_000_000_000,
    };
}

/// Bytes that an entry takes in addition to its cookie and reply: for the key, and for the places in the table and in the queue.
const ENTRY_BYTES: usize = 200;

/// The table of requests and replies. `S` identifies senders. Beyond the limits, the oldest requests are forgotten.
#[derive(Debug)]
pub(crate) struct Replies<S> {
    limits: Limits,
    /// The reply to each request. `None`: the request is being carried out.
    known: HashMap<Key<S>, Option<Box<[u8]>>>,
    /// All keys of `known`, each once, in the order in which the requests came.
    order: VecDeque<(u64, Key<S>)>,
    bytes: usize,
}

impl<S: Eq + Hash> Replies<S> {
    pub(crate) fn new(limits: Limits) -> Replies<S> {
        Replies {
            limits,
            known: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Looks up a request with `cookie` from `sender` that came at `now_ns`, which never decreases.
    pub(crate) fn begin(&mut self, now_ns: u64, sender: S, cookie: &[u8]) -> Seen<S> {
        let age_ns_max = self.limits.age_ns;
        let too_old = |at_ns: u64| now_ns.saturating_sub(at_ns) >= age_ns_max;
        while self.order.front().is_some_and(|(at_ns, _)| too_old(*at_ns)) {
            self.forget_oldest();
        }
        let key: Key<S> = Arc::new((sender, cookie.into()));
        match self.known.entry(key.clone()) {
            Entry::Occupied(known) => {
                return match known.get() {
                    Some(reply) => Seen::Replied(reply.to_vec()),
                    None => Seen::InHand,
                };
            }
            Entry::Vacant(place) => {
                place.insert(None);
            }
        }
        self.bytes += entry_bytes(&key, None);
        self.order.push_back((now_ns, key.clone()));
        self.shrink();
        Seen::New(key)
    }

    /// Stores the reply to a request that is being carried out. If the table has forgotten the request meanwhile, nothing is stored.
    pub(crate) fn finish(&mut self, key: &Key<S>, reply: &[u8]) {
        if let Some(slot @ None) = self.known.get_mut(key) {
            *slot = Some(reply.into());
            self.bytes += reply.len();
            self.shrink();
        }
    }

    /// Forgets a request that will not be carried out after all. If it comes again, it counts as new.
    pub(crate) fn forget(&mut self, key: &Key<S>) {
        let is_in_hand = matches!(self.known.get(key), Some(None));
        // The request came recently, so search from the end.
        let place = self.order.iter().rposition(|(_, known)| known == key);
        if let Some(place) = place.filter(|_| is_in_hand) {
            self.order.remove(place);
            self.known.remove(key);
            self.bytes -= entry_bytes(key, None);
        }
    }

    fn shrink(&mut self) {
        while self.order.len() > self.limits.requests || self.bytes > self.limits.bytes {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.order.pop_front() {
            let reply = self.known.remove(&key).flatten();
            self.bytes -= entry_bytes(&key, reply.as_deref());
        } else {
            self.bytes = 0;
        }
    }
}

fn entry_bytes<S>(key: &Key<S>, reply: Option<&[u8]>) -> usize {
    ENTRY_BYTES + key.1.len() + reply.map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A simple model of the table: a list.
    #[derive(Default)]
    struct Twin(Vec<Known>);

    /// Time, sender, cookie and reply of a request.
    type Known = (u64, u8, Vec<u8>, Option<Vec<u8>>);

    impl Twin {
        fn begin(&mut self, limits: Limits, now_ns: u64, sender: u8, cookie: &[u8]) -> Seen<u8> {
            self.0.retain(|(at, ..)| now_ns - at < limits.age_ns);
            let found = self.0.iter().find(|one| one.1 == sender && one.2 == cookie);
            match found {
                Some((.., Some(reply))) => Seen::Replied(reply.clone()),
                Some(_) => Seen::InHand,
                None => {
                    self.0.push((now_ns, sender, cookie.to_vec(), None));
                    self.shrink(limits);
                    Seen::New(Arc::new((sender, cookie.into())))
                }
            }
        }

        fn finish(&mut self, limits: Limits, sender: u8, cookie: &[u8], reply: &[u8]) {
            let found = self
                .0
                .iter_mut()
                .find(|one| one.1 == sender && one.2 == cookie);
            if let Some((.., kept @ None)) = found {
                *kept = Some(reply.to_vec());
            }
            self.shrink(limits);
        }

        fn forget(&mut self, sender: u8, cookie: &[u8]) {
            let is_it = |one: &Known| one.1 == sender && one.2 == cookie && one.3.is_none();
            self.0.retain(|one| !is_it(one));
        }

        fn shrink(&mut self, limits: Limits) {
            let size = |one: &Known| ENTRY_BYTES + one.2.len() + one.3.as_ref().map_or(0, Vec::len);
            while self.0.len() > limits.requests
                || self.0.iter().map(size).sum::<usize>() > limits.bytes
            {
                self.0.remove(0);
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Finish(usize),
        Forget,
    }

    fn step() -> impl Strategy<Value = Step> {
        let finish = (0..300usize).prop_map(Step::Finish);
        prop_oneof![3 => Just(Step::Begin), 2 => finish, 1 => Just(Step::Forget)]
    }

    fn limits() -> impl Strategy<Value = Limits> {
        (1..6usize, 0..2000usize, 1..50u64).prop_map(|(requests, bytes, age_ns)| Limits {
            requests,
            bytes,
            age_ns,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn the_table_behaves_like_a_plain_list(
            limits in limits(),
            steps in prop::collection::vec((0..20u64, 0..2u8, 0..4u8, step()), 1..80),
        ) {
            let mut table = Replies::new(limits);
            let mut twin = Twin::default();
            let mut now_ns = 0;
            for (later_ns, sender, cookie, step) in steps {
                now_ns += later_ns;
                let cookie = vec![cookie; usize::from(cookie)];
                let key: Key<u8> = Arc::new((sender, cookie.clone().into()));
                match step {
                    Step::Finish(len) => {
                        let reply = vec![cookie.len() as u8; len];
                        table.finish(&key, &reply);
                        twin.finish(limits, sender, &cookie, &reply);
                    }
                    Step::Forget => {
                        table.forget(&key);
                        twin.forget(sender, &cookie);
                    }
                    Step::Begin => {
                        let said = table.begin(now_ns, sender, &cookie);
                        prop_assert_eq!(said, twin.begin(limits, now_ns, sender, &cookie));
                    }
                }
                prop_assert_eq!(table.order.len(), table.known.len());
                prop_assert_eq!(table.order.len(), twin.0.len());
            }
        }
    }
}
