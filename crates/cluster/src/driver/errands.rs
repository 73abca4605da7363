//! The driver's part for calls: forwards requests to other nodes, and manages the keys of this node's calls in etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use threadbare_member::{CallName, Entry, Key, Life, Link, Location, NodeRecord, Transaction};
use threadbare_runtime::clock_now_ns;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::services::Services;
use super::{Driver, Replied};
use crate::passing::{Back, CallService, Claimed, Errand, Passed, Way};
use crate::peers::{Host, Peers};
use crate::service::Opaque;
use threadbare_process::system::random_number;

/// The driver's state for calls; `None` if calls are not shared.
pub(super) struct Calls {
    pub(super) host: Arc<Host>,
    pub(super) peers: Peers,
    /// Whether new calls are made even if etcd does not answer.
    goes_on_alone: bool,
    /// The nodes' lives at the last check, to notice changes.
    lives: Vec<Life>,
    /// Time of the next search for keys of dead nodes.
    sweep_at: Option<Instant>,
    /// Processes to which a connection was opened in advance, for a possible hand-over.
    pub(super) greeted: BTreeSet<u64>,
}

impl Calls {
    pub(super) fn new(host: Arc<Host>, peers: Peers, goes_on_alone: bool) -> Calls {
        Calls {
            host,
            peers,
            goes_on_alone,
            lives: Vec::new(),
            // The first search finds calls of nodes that died before this process started.
            sweep_at: Some(Instant::now() + SWEEP_AFTER),
            greeted: BTreeSet::new(),
        }
    }

    pub(super) fn has_call_service(&self) -> bool {
        self.host.call_service().is_some()
    }

    /// Schedules a search for keys of calls without an owner.
    pub(super) fn sweep_soon(&mut self) {
        self.sweep_at.get_or_insert(Instant::now() + SWEEP_AFTER);
    }
}

/// Looks up the owner of a request's call.
pub(super) fn begin(driver: &mut Driver, errand: Errand) {
    if driver.calls.is_none() {
        return errand.end(Way::Here);
    }
    let Some(call) = errand.call.clone() else {
        return place(driver, errand, None);
    };
    let (store, replies) = (driver.store.clone(), driver.replies.clone());
    tokio::spawn(async move {
        let found = store.look_up(&Key::Call(call)).await;
        // This fails if the thread is about to end.
        let _ = replies.send(Replied::Found(errand, found));
    });
}

/// Continues a request after the lookup of its call's key. `found`: the key; `None`: etcd does not answer.
pub(super) fn resume(driver: &mut Driver, errand: Errand, found: Option<Option<Entry>>) {
    let alone = driver
        .calls
        .as_ref()
        .is_some_and(|calls| calls.goes_on_alone);
    match found {
        Some(entry) => place(driver, errand, entry.as_ref()),
        None if alone => errand.end(Way::Here),
        None => errand.end(Way::Refused(NO_STORE.to_owned())),
    }
}

fn place(driver: &mut Driver, errand: Errand, entry: Option<&Entry>) {
    let location = match driver.member.locate(entry) {
        Location::Nowhere if errand.makes => driver.member.roomiest(random_number()),
        other => Some(other),
    };
    match location {
        Some(Location::Soon) => wait(driver, errand),
        Some(Location::Here) if driver.is_arriving(entry) => wait(driver, errand),
        // This node answers that the call does not exist, or that it accepts no more calls.
        None | Some(Location::Here | Location::Nowhere) => errand.end(Way::Here),
        Some(Location::At(life, None)) => {
            let reason = format!(
                "node {} owns the call, and cannot be asked, because it has no [cluster] listen",
                life.node
            );
            errand.end(Way::Refused(reason));
        }
        Some(Location::At(life, Some(link))) => {
            send(driver, errand, entry.is_some(), &life, &link);
        }
    }
}

/// Waits a while, because the call is in transit to a node.
fn wait(driver: &Driver, mut errand: Errand) {
    if errand.waits >= WAITS_MAX {
        return errand.end(Way::Refused(ON_ITS_WAY.to_owned()));
    }
    errand.waits += 1;
    let replies = driver.replies.clone();
    tokio::spawn(async move {
        sleep(ARRIVAL).await;
        let _ = replies.send(Replied::Again(errand));
    });
}

/// Sends a request to a node. `is_known`: according to etcd, the node owns the call.
fn send(driver: &mut Driver, mut errand: Errand, is_known: bool, life: &Life, link: &Link) {
    let Some(calls) = &mut driver.calls else {
        return errand.end(Way::Here);
    };
    if errand.tries >= TRIES_MAX {
        let reason = format!("node {}, which owns the call, does not answer", life.node);
        return errand.end(Way::Refused(reason));
    }
    errand.tries += 1;
    driver.passed += 1;
    // In the last try, the request does not say that the node owns the call. So a node that does not have the call answers as it
    // does for an unknown call, not that the call has moved.
    let call = errand.call.as_ref();
    let call = call.filter(|_| is_known && errand.tries < TRIES_MAX);
    let asked = calls.peers.ask_for(link, call, &errand.passed);
    let replies = driver.replies.clone();
    let node = life.node.clone();
    tokio::spawn(async move {
        let answer = timeout(ANSWER_TIME_MAX, asked).await;
        let back = answer.ok().and_then(Result::ok);
        let back = back.and_then(|bytes| postcard::from_bytes(&bytes).ok());
        match back {
            Some(Back::Unable(reason)) => {
                errand.end(Way::Refused(format!("node {node}: {reason}")));
            }
            // Try again. Either the call has moved, or the node is still processing an identical message, and its reply to that
            // message will also be the reply to this one.
            Some(back @ (Back::Moved | Back::InHand)) => {
                if back == Back::InHand && errand.tries == TRIES_MAX {
                    return errand.end(Way::Answered(back));
                }
                sleep(ARRIVAL).await;
                let _ = replies.send(Replied::Again(errand));
            }
            Some(back) => errand.end(Way::Answered(back)),
            // An HTTP request has no cookie, so the node could not recognise a repetition, and could carry it out twice.
            None if matches!(errand.passed, Passed::Http(_) | Passed::Piece { .. }) => {
                let reason = format!(
                    "node {node} did not answer; it may have carried out the request nevertheless"
                );
                errand.end(Way::Refused(reason));
            }
            None => {
                // The node may have just died, which the cluster will notice.
                sleep(AGAIN).await;
                let _ = replies.send(Replied::Again(errand));
            }
        }
    });
}

/// Sends a request to all other nodes.
pub(super) fn ask_others(
    driver: &mut Driver,
    passed: &Passed,
    tell: oneshot::Sender<Vec<(String, Option<Back>)>>,
) {
    let own = driver.member.life().node;
    let others = driver.member.nodes().filter(|(name, _)| **name != own);
    let others: Vec<(String, Option<Link>)> = others
        .map(|(name, record)| (name.to_string(), record.link))
        .collect();
    let asked: Vec<_> = others
        .into_iter()
        .map(|(name, link)| (name, asked(driver, link, passed)))
        .collect();
    tokio::spawn(async move {
        let mut answers = Vec::new();
        // Waiting for one reply after another is fast enough, because all requests were sent at the same time.
        for (name, asked) in asked {
            answers.push((name, answer_of(asked).await));
        }
        // This fails if the caller has gone.
        let _ = tell.send(answers);
    });
}

pub(super) fn ask_node(
    driver: &mut Driver,
    node: &str,
    passed: &Passed,
    tell: oneshot::Sender<Option<Back>>,
) {
    let mut nodes = driver.member.nodes();
    let link = nodes.find(|(name, _)| *name.0 == *node);
    let link = link.and_then(|(_, record)| record.link);
    drop(nodes);
    let asked = asked(driver, link, passed);
    tokio::spawn(async move {
        let _ = tell.send(answer_of(asked).await);
    });
}

fn asked(
    driver: &mut Driver,
    link: Option<Link>,
    passed: &Passed,
) -> Option<oneshot::Receiver<Vec<u8>>> {
    Some(driver.calls.as_mut()?.peers.ask(&link?, passed))
}

/// Sets the call service, which owns this node's calls.
pub(super) fn open_call_service(driver: &mut Driver, call_service: Arc<dyn CallService>) {
    if let Some(calls) = &driver.calls {
        calls.host.open(call_service);
    }
}

pub(super) fn claim(driver: &mut Driver, call: CallName, kept: Option<(String, Opaque)>) {
    let now_ns = clock_now_ns();
    let state = driver.seal(&call, kept);
    let until_ns = now_ns + CLAIM_NS_MAX;
    driver.member.claim_call(now_ns, call, state, until_ns);
}

pub(super) fn tell_claimed(driver: &Driver, call: &CallName, claimed: Claimed) {
    if let Some(call_service) = driver.call_service() {
        call_service.claimed(call, claimed);
    }
}

pub(super) fn tell_unclaimed(driver: &Driver, call: &CallName) {
    let alone = driver
        .calls
        .as_ref()
        .is_some_and(|calls| calls.goes_on_alone);
    let claimed = if alone {
        Claimed::Alone
    } else {
        Claimed::Refused
    };
    tell_claimed(driver, call, claimed);
}

/// Updates calls after nodes have come or gone.
pub(super) fn settle_calls(driver: &mut Driver) {
    driver.member.set_room(driver.room.get());
    let Some(calls) = &mut driver.calls else {
        return;
    };
    let now = Instant::now();
    let of_record = |(node, record): (_, &NodeRecord)| (node, record.incarnation);
    let known = calls
        .lives
        .iter()
        .map(|life| (&life.node, life.incarnation));
    // This check runs after each input, so it must be cheap.
    if !driver.member.nodes().map(of_record).eq(known) {
        let lives: Vec<Life> = driver.member.lives_of_nodes().collect();
        let has_died = calls.lives.iter().any(|life| !lives.contains(life));
        let me = driver.member.life().node;
        let is_first = lives.first().is_some_and(|life| life.node == me);
        let carries = driver.services.as_ref().is_some_and(Services::has_any);
        if has_died && (is_first || carries) {
            calls.sweep_at.get_or_insert(now + SWEEP_AFTER);
        }
        let links: Vec<u64> = driver
            .member
            .nodes()
            .filter_map(|(_, record)| Some(record.link?.process))
            .collect();
        calls.peers.keep(|process| links.contains(&process));
        calls.lives = lives;
    }
    if calls.sweep_at.is_some_and(|at| at <= now) && driver.member.is_synced() {
        calls.sweep_at = None;
        let (store, replies) = (driver.store.clone(), driver.replies.clone());
        tokio::spawn(async move {
            if let Some(entries) = store.calls().await {
                let _ = replies.send(Replied::Calls(entries));
            }
        });
    }
}

/// Deletes keys of calls whose nodes are dead.
pub(super) fn sweep(driver: &mut Driver, entries: &[Entry]) {
    if driver.awaits_calls() {
        return;
    }
    let dead = entries
        .iter()
        .filter_map(|entry| driver.member.sweep(entry));
    let dead: Vec<Transaction> = dead.collect();
    if dead.is_empty() {
        return;
    }
    tracing::info!(
        calls = dead.len(),
        "deleting the keys of calls whose nodes are dead"
    );
    let store = driver.store.clone();
    tokio::spawn(async move {
        for one in dead {
            // If this fails, another node has claimed the call again, or the next search finds the key.
            let _ = store.commit(&one).await;
        }
    });
}

async fn answer_of(asked: Option<oneshot::Receiver<Vec<u8>>>) -> Option<Back> {
    let bytes = timeout(ALL_TIME_MAX, asked?).await.ok()?.ok()?;
    postcard::from_bytes(&bytes).ok()
}

const ON_ITS_WAY: &str = "another node has been taking over the call for too long";
const NO_STORE: &str = "etcd does not answer: the owner of the call is unknown, and new calls are refused ([cluster] calls-on-isolation)";
/// Maximum number of times that a request is sent. A dead node is removed within a second; after that, its calls have no owner.
const TRIES_MAX: u32 = 8;
/// Maximum number of waits of [`ARRIVAL`] for a call in transit.
const WAITS_MAX: u32 = 40;
/// Pause before a request for a call in transit is tried again.
const ARRIVAL: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(200);
/// Time limit for the answer of another node, which may have to read a file first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit for requests to all nodes. A node that sends a reply in pieces sends each piece within a second.
const ALL_TIME_MAX: Duration = Duration::from_secs(3);
/// Time limit for writing the key of a new call. A proxy repeats its request after about a second.
const CLAIM_NS_MAX: u64 = 900_000_000;
/// Delay before the search for keys of dead nodes. Within this time, a restarted process can claim its calls again.
const SWEEP_AFTER: Duration = Duration::from_secs(10);
