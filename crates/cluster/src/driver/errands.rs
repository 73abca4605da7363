//! Calls in the driver: requests for other nodes, and the keys of this node's calls.

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
    /// Whether new calls are made without etcd, too.
    goes_on_alone: bool,
    /// Lives that have been seen.
    lives: Vec<Life>,
    /// Time of the next search for keys of dead nodes.
    sweep_at: Option<Instant>,
    /// Processes with a connection that was opened in advance of a hand-over.
    pub(super) greeted: BTreeSet<u64>,
}

impl Calls {
    pub(super) fn new(host: Arc<Host>, peers: Peers, goes_on_alone: bool) -> Calls {
        Calls {
            host,
            peers,
            goes_on_alone,
            lives: Vec::new(),
            // Finds nodes that died before this process started.
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
        // The thread is about to end.
        let _ = replies.send(Replied::Found(errand, found));
    });
}

/// `found`: the call's key; `None`: etcd does not answer.
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
        // The answering node says that the call does not exist, or that it accepts no more.
        None | Some(Location::Here | Location::Nowhere) => errand.end(Way::Here),
        Some(Location::At(life, None)) => {
            let reason = format!(
                "the call is at node {}, which has no [cluster] listen",
                life.node
            );
            errand.end(Way::Refused(reason));
        }
        Some(Location::At(life, Some(link))) => {
            send(driver, errand, entry.is_some(), &life, &link);
        }
    }
}

/// The call is in transit to a node.
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

/// `is_known`: according to etcd, the call is at that node.
fn send(driver: &mut Driver, mut errand: Errand, is_known: bool, life: &Life, link: &Link) {
    let Some(calls) = &mut driver.calls else {
        return errand.end(Way::Here);
    };
    if errand.tries >= TRIES_MAX {
        let reason = format!("node {}, which has the call, does not answer", life.node);
        return errand.end(Way::Refused(reason));
    }
    errand.tries += 1;
    driver.passed += 1;
    // A key that was not deleted does not prove a call: in the end, the node refuses.
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
            // Moved, or about to be answered: the same message has also arrived there, and its reply is the reply
            // here.
            Some(back @ (Back::Moved | Back::InHand)) => {
                if back == Back::InHand && errand.tries == TRIES_MAX {
                    return errand.end(Way::Answered(back));
                }
                sleep(ARRIVAL).await;
                let _ = replies.send(Replied::Again(errand));
            }
            Some(back) => errand.end(Way::Answered(back)),
            // Without a cookie, a repetition would carry the request out twice.
            None if matches!(errand.passed, Passed::Http(_) | Passed::Piece { .. }) => {
                let reason =
                    format!("node {node} did not answer: the request may have taken effect");
                errand.end(Way::Refused(reason));
            }
            None => {
                // The node may have just died, and others will notice.
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
        // All requests were sent at once.
        for (name, asked) in asked {
            answers.push((name, answer_of(asked).await));
        }
        // The caller may have gone.
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

/// Sets the owner of this node's calls.
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
    // Checked at each message of etcd.
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
    tracing::info!(calls = dead.len(), "calls ended with their nodes");
    let store = driver.store.clone();
    tokio::spawn(async move {
        for one in dead {
            // If it fails, another node has the call again, or the next search finds it.
            let _ = store.commit(&one).await;
        }
    });
}

async fn answer_of(asked: Option<oneshot::Receiver<Vec<u8>>>) -> Option<Back> {
    let bytes = timeout(ALL_TIME_MAX, asked?).await.ok()?.ok()?;
    postcard::from_bytes(&bytes).ok()
}

const ON_ITS_WAY: &str = "the call has been on its way to another node for too long";
const NO_STORE: &str = "etcd does not answer: the owner of the call is unknown, and no calls are made ([cluster] calls-on-isolation)";
/// A dead node is removed within a second, and then its calls have no owner.
const TRIES_MAX: u32 = 8;
/// The same, with [`ARRIVAL`] each.
const WAITS_MAX: u32 = 40;
/// Poll interval: by then a service has started elsewhere, or one of its calls continues.
const ARRIVAL: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(200);
/// Time limit for another node, which may have to read a file first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit for requests to all nodes. A piece of a reply comes within a second.
const ALL_TIME_MAX: Duration = Duration::from_secs(3);
/// Time limit for the key of a new call: a proxy repeats its request after about a second.
const CLAIM_NS_MAX: u64 = 900_000_000;
/// A restarted process claims its calls first.
const SWEEP_AFTER: Duration = Duration::from_secs(10);
