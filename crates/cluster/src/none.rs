//! Replaces the cluster in a program that was built without the feature `etcd`.

use miette::miette;

use super::status::{Asked, ClusterView};
use threadbare_config::{ClusterSpec, StreamSpec};
use threadbare_streams::gateway::Gateway;

/// A type without values, because this program has no cluster.
#[derive(Debug)]
pub struct Cluster(std::convert::Infallible);

impl Cluster {
    /// Refuses to start.
    ///
    /// # Errors
    /// Always fails.
    pub fn start(
        _spec: &ClusterSpec,
        _streams: &[StreamSpec],
        _gateway: &mut Gateway,
    ) -> miette::Result<Cluster> {
        Err(miette!(
            "this program was built without the cargo feature `cluster`"
        ))
    }

    /// Never called.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        match self.0 {}
    }

    /// Never called.
    pub fn declare(&self, _streams: &[StreamSpec]) {
        match self.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn leave(&self) -> Asked<()> {
        match self.0 {}
    }

    /// Never called.
    #[must_use]
    pub fn end(self) -> bool {
        match self.0 {}
    }
}
