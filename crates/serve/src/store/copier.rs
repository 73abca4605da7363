//! Sends the states of streams to other nodes instead of writing them to a file, so that calls outlive this node.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::write_queue::{Key, WriteQueue};
use threadbare_cluster::{ClusterView, Opaque};

/// A handle to the sending thread.
#[derive(Debug)]
pub(crate) struct Copier {
    write_queue: Arc<WriteQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if threads run out.
    pub(crate) fn start(cluster: ClusterView) -> io::Result<Copier> {
        let write_queue = Arc::new(WriteQueue::new([]));
        let taken = write_queue.clone();
        let thread = std::thread::Builder::new()
            .name("copier".to_owned())
            .spawn(move || send(&cluster, &taken))?;
        let thread = Some(thread);
        Ok(Copier {
            write_queue,
            thread,
        })
    }

    /// Returns the queue of states to be sent.
    pub(crate) fn write_queue(&self) -> &Arc<WriteQueue> {
        &self.write_queue
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.write_queue.end(false);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread 'copier' has panicked");
        }
    }
}

fn send(cluster: &ClusterView, write_queue: &WriteQueue) {
    while let Some(batch) = write_queue.take(GATHER) {
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

/// Time for which states are collected before they are sent. Each stream has a new state every second.
const GATHER: Duration = Duration::from_millis(50);
