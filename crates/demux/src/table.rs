//! Table from keys to places of sinks.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::Seeded;
use crate::order::Target;

/// The place of a key's only sink, or the index of a list with the places of several sinks. It is small, so that thousands of
/// keys stay in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places(u32);

impl Places {
    const IS_LIST: u32 = 1 << 31;

    fn one(place: usize) -> Self {
        Places(u32::try_from(place).map_or(u32::MAX >> 1, |place| place & !Self::IS_LIST))
    }

    fn list(list: usize) -> Self {
        Places(Self::one(list).0 | Self::IS_LIST)
    }

    #[inline]
    fn get(self) -> Result<usize, usize> {
        let number = (self.0 & !Self::IS_LIST) as usize;
        match self.0 & Self::IS_LIST {
            0 => Ok(number),
            _ => Err(number),
        }
    }
}

pub(crate) struct Table<K> {
    keys: HashMap<K, Places, Seeded>,
    unmatched: Option<Places>,
    /// Lists for keys with several sinks; used only if messages may be copied.
    lists: Vec<Vec<usize>>,
    free: Vec<usize>,
    /// The last key that was looked up, if it has one sink. It is stored because messages with the same key often come together.
    last: Option<(K, usize)>,
}

impl<K: Clone + Eq + Hash> Table<K> {
    pub(crate) fn new(seed: u64) -> Self {
        Table {
            keys: HashMap::with_hasher(Seeded::new(seed)),
            unmatched: None,
            lists: Vec::new(),
            free: Vec::new(),
            last: None,
        }
    }

    /// Returns the sinks of a message with this key.
    #[inline]
    pub(crate) fn find(&mut self, key: Option<K>) -> Option<Found<'_>> {
        if let (Some(key), Some((last, place))) = (&key, &self.last)
            && last == key
        {
            return Some(Found::One(*place));
        }
        let of_key = key.as_ref().and_then(|key| self.keys.get(key).copied());
        match (of_key.or(self.unmatched)?.get(), key) {
            (Ok(place), Some(key)) if of_key.is_some() => {
                self.last = Some((key, place));
                Some(Found::One(place))
            }
            (Ok(place), _) => Some(Found::One(place)),
            (Err(list), _) => self.lists.get(list).map(|list| Found::Many(list)),
        }
    }

    /// Returns the places of the target's sinks.
    pub(crate) fn places(&self, target: &Target<K>) -> Vec<usize> {
        match self.entry(target).map(Places::get) {
            None => Vec::new(),
            Some(Ok(place)) => vec![place],
            Some(Err(list)) => self.lists.get(list).cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn has(&self, target: &Target<K>) -> bool {
        self.entry(target).is_some()
    }

    fn entry(&self, target: &Target<K>) -> Option<Places> {
        match target {
            Target::Key(key) => self.keys.get(key).copied(),
            Target::Unmatched => self.unmatched,
        }
    }

    fn set(&mut self, target: &Target<K>, places: Option<Places>) {
        self.last = None;
        match (target, places) {
            (Target::Key(key), Some(places)) => {
                self.keys.insert(key.clone(), places);
            }
            (Target::Key(key), None) => {
                self.keys.remove(key);
            }
            (Target::Unmatched, places) => self.unmatched = places,
        }
    }

    pub(crate) fn add(&mut self, target: &Target<K>, place: usize) {
        match self.entry(target).map(Places::get) {
            None => self.set(target, Some(Places::one(place))),
            Some(Ok(first)) => {
                let list = self.free.pop().unwrap_or(self.lists.len());
                match self.lists.get_mut(list) {
                    Some(free) => free.extend([first, place]),
                    None => self.lists.push(vec![first, place]),
                }
                self.set(target, Some(Places::list(list)));
            }
            Some(Err(list)) => self.lists[list].push(place),
        }
    }

    pub(crate) fn remove(&mut self, target: &Target<K>, place: usize) {
        match self.entry(target).map(Places::get) {
            Some(Ok(only)) if only == place => self.set(target, None),
            Some(Err(list)) => {
                let places = &mut self.lists[list];
                places.retain(|other| *other != place);
                if let [only] = places[..] {
                    places.clear();
                    self.free.push(list);
                    self.set(target, Some(Places::one(only)));
                }
            }
            _ => {}
        }
    }
}

/// Destination of a message.
pub(crate) enum Found<'a> {
    One(usize),
    Many(&'a [usize]),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the table with a list of pairs.
        #[test]
        fn the_table_equals_a_list_of_pairs(steps in prop::collection::vec((any::<bool>(), 0..4_u8, 0..6_usize), 0..80)) {
            let target = |key: u8| match key {
                0 => Target::Unmatched,
                key => Target::Key(key),
            };
            let (mut table, mut twin) = (Table::new(1), Vec::new());
            for (adds, key, place) in steps {
                let pair = (key, place);
                if adds && !twin.contains(&pair) {
                    table.add(&target(key), place);
                    twin.push(pair);
                } else if !adds {
                    table.remove(&target(key), place);
                    twin.retain(|other| *other != pair);
                }
                for key in 0..5 {
                    let of = |key| -> Vec<usize> {
                        let pairs = twin.iter().filter(|(other, _)| *other == key);
                        pairs.map(|(_, place)| *place).collect()
                    };
                    prop_assert_eq!(table.places(&target(key)), of(key));
                    prop_assert_eq!(table.has(&target(key)), !of(key).is_empty());
                    let mut expected = of(key);
                    if expected.is_empty() {
                        expected = of(0);
                    }
                    // The key is looked up twice, the second time in the cache of the last key.
                    for _ in 0..2 {
                        let found = match table.find(Some(key).filter(|key| *key > 0)) {
                            None => Vec::new(),
                            Some(Found::One(place)) => vec![place],
                            Some(Found::Many(places)) => places.to_vec(),
                        };
                        prop_assert_eq!(&found, &expected);
                    }
                }
            }
        }
    }
}
