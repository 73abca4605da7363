//! State shared between a subscription and its sink.

use crate::statistics::SinkStatistics;
use crate::sync::{Mutex, lock};

/// State of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// The order of the subscription has not been applied yet.
    #[default]
    Ordered,
    /// The sink gets messages.
    Active,
    /// The key already had a sink and the setting is [`crate::Duplicates::Refuse`], or the service is invalid.
    Refused,
    /// The sink gets no more messages: it was unsubscribed, replaced or disconnected, it failed, or the demultiplexer has ended.
    Ended,
}

/// A link: the demultiplexer writes it, guards read it.
#[derive(Default)]
pub(crate) struct Link(Mutex<Linked>);

#[derive(Default)]
struct Linked {
    status: Status,
    place: Option<Place>,
    statistics: SinkStatistics,
}

/// Place of a sink. When a place is reused, it gets the next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) number: u64,
}

impl Link {
    pub(crate) fn begin(&self, place: Place) {
        let mut linked = lock(&self.0);
        (linked.status, linked.place) = (Status::Active, Some(place));
    }

    pub(crate) fn refuse(&self) {
        lock(&self.0).status = Status::Refused;
    }

    pub(crate) fn end(&self, statistics: SinkStatistics) {
        let mut linked = lock(&self.0);
        (linked.status, linked.place) = (Status::Ended, None);
        linked.statistics = statistics;
    }

    pub(crate) fn publish(&self, statistics: SinkStatistics) {
        lock(&self.0).statistics = statistics;
    }

    pub(crate) fn place(&self) -> Option<Place> {
        lock(&self.0).place
    }

    pub(crate) fn status(&self) -> Status {
        lock(&self.0).status
    }

    pub(crate) fn statistics(&self) -> SinkStatistics {
        lock(&self.0).statistics
    }
}
