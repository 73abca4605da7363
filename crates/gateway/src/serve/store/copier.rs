//! The states of streams on their way to the node that would go on with them: the shelf of a node whose calls outlive it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::shelf::{Key, Shelf};
use crate::cluster::{ClusterView, Opaque};

/// The thread, from outside.
#[derive(Debug)]
pub(in crate::serve) struct Copier {
    shelf: Arc<Shelf>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    /// Starts it.
    ///
    /// # Errors
    /// Threads run out.
    pub(in crate::serve) fn start(cluster: ClusterView) -> io::Result<Copier> {
        let shelf = Arc::new(Shelf::new([]));
        let taken = shelf.clone();
        let thread = std::thread::Builder::new()
            .name("copier".to_owned())
            .spawn(move || send(&cluster, &taken))?;
        let thread = Some(thread);
        Ok(Copier { shelf, thread })
    }

    /// Where to put what is to be sent.
    pub(in crate::serve) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.shelf.end(false);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the copies has panicked");
        }
    }
}

fn send(cluster: &ClusterView, shelf: &Shelf) {
    while let Some(batch) = shelf.take(GATHER) {
        let streams = batch
            .changes
            .into_iter()
            .filter_map(|(key, state)| match key {
                Key::Stream(stream) => Some((stream.0, state.map(Opaque))),
                Key::Call(_) => None,
            });
        cluster.copy(streams.collect());
    }
}

/// The states of all streams come within a second.
const GATHER: Duration = Duration::from_millis(50);
