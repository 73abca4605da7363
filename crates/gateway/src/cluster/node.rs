//! The `cluster` thread, from outside.

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
use crate::config::{ClusterSpec, StreamSpec};
use crate::event::Event;
use crate::gateway::Gateway;

/// A node of a cluster. Dropped, it is a node that has failed: others take what it has.
#[derive(Debug)]
pub struct Cluster {
    view: ClusterView,
    /// Whether it was well to its end.
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts the thread, which has the gateway carry this node's share, and declares the streams of its file. Does not wait for etcd.
    ///
    /// # Errors
    /// A file cannot be read, the address to listen at is not this machine's or taken, or threads run out.
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
        let room = Arc::new(Room::default());
        let driver = Driver::new(
            spec,
            Around {
                store,
                listener: listener.as_ref(),
                to_gateway,
                totals: totals.clone(),
                room: room.clone(),
                calls: host.clone().zip(key.map(Peers::new)),
                seal,
            },
        );
        let has_calls = host.is_some();
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
            .wrap_err("the cluster's thread")?;
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

    /// To ask the thread.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        self.view.clone()
    }

    /// These are the streams of the node's file. Those that it has no more are not carried by any node.
    pub fn declare(&self, streams: &[StreamSpec]) {
        self.view.tell(Input::Declare(streams.to_vec()));
    }

    /// Gives away what this node carries. The answer: there is nothing left that another node could take.
    #[must_use]
    pub fn leave(&self) -> Asked<()> {
        let (tell, told) = oneshot::channel();
        self.view.tell(Input::Leave(tell));
        told
    }

    /// Others may take what is left, as nothing of it is sent any more. Whether the thread was well.
    #[must_use]
    pub fn end(mut self) -> bool {
        self.view.tell(Input::End);
        self.thread
            .take()
            .is_none_or(|thread| thread.join().is_ok())
    }
}

/// Tells the main thread of a panic: the streams will stop, as nobody renews their lease.
struct TellsEnd(Sender<Event>);

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let cause = "a panic of the cluster's thread";
        // Who has stopped it does not listen any more.
        let _ = self.0.send(Event::Stop { cause });
    }
}
