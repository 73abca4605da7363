//! Keys to places of sinks.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::Seeded;
use crate::order::Target;

/// The places of a key's sinks; more than one only where messages may be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Places {
    One(usize),
    Many(Vec<usize>),
}

impl Places {
    fn add(&mut self, place: usize) {
        match self {
            Places::One(first) => *self = Places::Many(vec![*first, place]),
            Places::Many(places) => places.push(place),
        }
    }

    /// `None`: none is left.
    fn without(self, place: usize) -> Option<Places> {
        let mut places = self.into_vec();
        places.retain(|other| *other != place);
        match places[..] {
            [] => None,
            [one] => Some(Places::One(one)),
            _ => Some(Places::Many(places)),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<usize> {
        match self {
            Places::One(place) => vec![place],
            Places::Many(places) => places,
        }
    }
}

pub(crate) struct Table<K> {
    keys: HashMap<K, Places, Seeded>,
    unmatched: Option<Places>,
    /// The key that was looked for last, if it has one sink: messages of a key often come together.
    last: Option<(K, usize)>,
}

impl<K: Clone + Eq + Hash> Table<K> {
    pub(crate) fn new(seed: u64) -> Self {
        Table {
            keys: HashMap::with_hasher(Seeded::new(seed)),
            unmatched: None,
            last: None,
        }
    }

    /// The sinks of a message with this key.
    #[inline]
    pub(crate) fn find(&mut self, key: Option<K>) -> Option<Found<'_>> {
        let Some(key) = key else {
            return self.unmatched.as_ref().map(Found::of);
        };
        if let Some((last, place)) = &self.last
            && *last == key
        {
            return Some(Found::One(*place));
        }
        match self.keys.get(&key) {
            Some(Places::One(place)) => {
                let place = *place;
                self.last = Some((key, place));
                Some(Found::One(place))
            }
            Some(Places::Many(places)) => Some(Found::Many(places)),
            None => self.unmatched.as_ref().map(Found::of),
        }
    }

    pub(crate) fn places(&self, target: &Target<K>) -> Option<&Places> {
        match target {
            Target::Key(key) => self.keys.get(key),
            Target::Unmatched => self.unmatched.as_ref(),
        }
    }

    pub(crate) fn add(&mut self, target: &Target<K>, place: usize) {
        self.last = None;
        let old = match target {
            Target::Key(key) => self.keys.get_mut(key),
            Target::Unmatched => self.unmatched.as_mut(),
        };
        if let Some(places) = old {
            places.add(place);
            return;
        }
        match target {
            Target::Key(key) => {
                self.keys.insert(key.clone(), Places::One(place));
            }
            Target::Unmatched => self.unmatched = Some(Places::One(place)),
        }
    }

    pub(crate) fn remove(&mut self, target: &Target<K>, place: usize) {
        self.last = None;
        match target {
            Target::Key(key) => {
                let rest = self.keys.remove(key).and_then(|p| p.without(place));
                if let Some(rest) = rest {
                    self.keys.insert(key.clone(), rest);
                }
            }
            Target::Unmatched => {
                self.unmatched = self.unmatched.take().and_then(|p| p.without(place));
            }
        }
    }
}

/// See [`Places`].
pub(crate) enum Found<'a> {
    One(usize),
    Many(&'a [usize]),
}

impl<'a> Found<'a> {
    fn of(places: &'a Places) -> Self {
        match places {
            Places::One(place) => Found::One(*place),
            Places::Many(places) => Found::Many(places),
        }
    }
}
