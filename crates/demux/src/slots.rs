//! All sinks, by place.

use std::sync::Arc;

use futures_sink::Sink;

use crate::link::{Link, Place};
use crate::order::{Service, Target};
use crate::signals::{Signals, SinkWaker};
use crate::slot::Slot;

pub(crate) struct Slots<K, M, S> {
    entries: Vec<Entry<K, M, S>>,
    free: Vec<usize>,
    /// Number of the next entry. It distinguishes entries that use the same place one after another.
    next_number: u64,
    used: usize,
}

struct Entry<K, M, S> {
    number: u64,
    slot: Option<Slot<K, M, S>>,
}

impl<K, M, S: Sink<M> + Unpin> Slots<K, M, S> {
    pub(crate) fn new() -> Self {
        Slots {
            entries: Vec::new(),
            free: Vec::new(),
            next_number: 0,
            used: 0,
        }
    }

    /// Returns the number of sinks.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn add(
        &mut self,
        signals: &Arc<Signals>,
        target: Target<K>,
        sink: S,
        service: Service,
        link: Arc<Link>,
    ) -> usize {
        let index = self.free.pop().unwrap_or(self.entries.len());
        let number = self.next_number;
        (self.next_number, self.used) = (number + 1, self.used + 1);
        link.begin(Place { index, number });
        let signal = Arc::new(SinkWaker::new(signals.clone(), index));
        let slot = Some(Slot::new(target, sink, service, link, signal));
        let entry = Entry { number, slot };
        match self.entries.get_mut(index) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        index
    }

    #[inline]
    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Slot<K, M, S>> {
        self.entries.get_mut(index)?.slot.as_mut()
    }

    /// Returns the place with this index, with its number.
    pub(crate) fn place(&self, index: usize) -> Option<Place> {
        let entry = self.entries.get(index)?;
        entry.slot.as_ref()?;
        let number = entry.number;
        Some(Place { index, number })
    }

    /// Whether the place still belongs to the sink for which it was created.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.place(place.index) == Some(place)
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Slot<K, M, S>> {
        let slot = self.entries.get_mut(index)?.slot.take()?;
        self.free.push(index);
        self.used -= 1;
        Some(slot)
    }

    /// Returns the places in use.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let used = self.entries.iter().enumerate();
        used.filter(|(_, entry)| entry.slot.is_some())
            .map(|(index, _)| index)
            .collect()
    }
}

impl<K, M, S> Slots<K, M, S> {
    /// Ends all links. This is for a demultiplexer that is dropped before it has returned a report.
    pub(crate) fn end_links(&self) {
        for slot in self.entries.iter().filter_map(|entry| entry.slot.as_ref()) {
            slot.link.end(slot.statistics());
        }
    }
}
