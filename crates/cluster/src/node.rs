//! The handle to the `cluster` thread.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use miette::{Context, IntoDiagnostic};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;

use super::driver::{Around, Driver};
use super::etcd::Store;
use super::key::ClusterKey;
use super::links::LinkListener;
use super::peers::{Host, Peers};
use super::seal::Seal;
use super::status::{Asked, ClusterView, Input, Room, Totals};
use threadbare_config::{ClusterSpec, StreamSpec};
use threadbare_streams::event::Event;
use threadbare_streams::gateway::Gateway;

/// This node of a cluster. If it is dropped, the node counts as failed, and other nodes take over its streams.
#[derive(Debug)]
pub struct Cluster {
    view: ClusterView,
    /// The thread, until it is joined.
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts the thread. It declares the streams of the node's file, and starts this node's share of the cluster's streams.
    /// Does not wait for etcd.
    ///
    /// # Errors
    /// Fails if a file cannot be read, if the address to listen on is in use or is not an address of this machine, or if threads
    /// run out.
    pub fn start(
        spec: &ClusterSpec,
        streams: &[StreamSpec],
        gateway: &mut Gateway,
    ) -> miette::Result<Cluster> {
        let store = Store::new(spec)?;
        let totals = Arc::new(Totals::default());
        let bind = |at| {
            let opened = LinkListener::bind(at).into_diagnostic();
            opened.wrap_err_with(|| format!("[cluster] listen = {at}"))
        };
        let listener = spec.listen.map(bind).transpose()?;
        let (orders, ordered) = channel();
        let to_gateway = (orders, gateway.sender());
        let key = spec.key_file.as_deref().map(ClusterKey::read).transpose()?;
        let (inputs, asked) = unbounded_channel();
        let seal = key.as_ref().map(Seal::new);
        let host = key
            .clone()
            .map(|key| Arc::new(Host::new(key, inputs.clone())));
        let (room, has_calls) = (Arc::new(Room::default()), host.is_some());
        let driver = Driver::new(
            spec,
            Around {
                store,
                listener: listener.as_ref(),
                key: key.clone(),
                to_gateway,
                totals: totals.clone(),
                room: room.clone(),
                calls: host.clone().zip(key.map(Peers::new)),
                seal,
            },
        );
        let listens_at = listener.as_ref().map(|one| one.link().address);
        let (answers, answered) = unbounded_channel();
        gateway.obey(ordered, answers);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .into_diagnostic()?;
        let end = TellsEnd(gateway.sender());
        let thread = std::thread::Builder::new()
            .name("cluster".to_owned())
            .spawn(move || {
                let end = end;
                runtime.block_on(async {
                    let accepting = listener.map(|listener| tokio::spawn(listener.serve(host)));
                    driver.run(asked, answered).await;
                    if let Some(accepting) = accepting {
                        accepting.abort();
                    }
                });
                std::mem::forget(end);
            })
            .into_diagnostic()
            .wrap_err("cannot start the cluster's thread")?;
        let cluster = Cluster {
            view: ClusterView::new(
                spec.node.as_str().into(),
                inputs,
                totals,
                has_calls.then_some(room),
                listens_at,
            ),
            thread: Some(thread),
        };
        cluster.declare(streams);
        Ok(cluster)
    }

    /// Returns a handle for requests to the thread.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        self.view.clone()
    }

    /// Declares the streams of the node's file. No node carries the streams that were removed from the file.
    pub fn declare(&self, streams: &[StreamSpec]) {
        self.view.tell(Input::Declare(streams.to_vec()));
    }

    /// Hands over this node's streams. The reply comes when nothing is left that another node could take.
    #[must_use]
    pub fn leave(&self) -> Asked<()> {
        let (tell, told) = oneshot::channel();
        self.view.tell(Input::Leave(tell));
        told
    }

    /// Ends the node. Call this when nothing is sent any more, because other nodes then take over everything that is left.
    /// Returns whether the thread ended without a failure.
    #[must_use]
    pub fn end(mut self) -> bool {
        self.view.tell(Input::End);
        self.thread
            .take()
            .is_none_or(|thread| thread.join().is_ok())
    }
}

/// Reports a panic of the cluster's thread to the main thread. The streams will stop, because the lease is not renewed any more.
struct TellsEnd(Sender<Event>);

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let cause = "a panic of the cluster's thread";
        // This fails if the main thread has stopped this thread and no longer listens.
        let _ = self.0.send(Event::Stop { cause });
    }
}
