//! The etcd client: transactions, and a watch for changes.
//!
//! The client uses one etcd member at a time. If that member fails, or does not answer in time, the client switches to the next
//! one. It does not wait for a slow member, because it cannot distinguish a slow member from a frozen or isolated one, and this
//! node's lease could end. Repeating a transaction does no harm, because each transaction compares revisions.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use threadbare_base::lock;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, EventType, GetOptions, Identity,
    KeyValue, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use miette::{Context, IntoDiagnostic, miette};
use threadbare_member::{
    CALLS, CallClaim, Claim, Entry, Epoch, Incarnation, Key, Life, NodeRecord, Operation, Outcome,
    PREFIX, Revision, STATES, StreamName, Transaction, Value, WEIGHT_MIN,
};
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use threadbare_config::ClusterSpec;

/// Client of a cluster's etcd. Clones share it.
#[derive(Clone)]
pub(super) struct Store(Arc<Shared>);

struct Shared {
    members: Vec<Member>,
    /// Index of the member in use.
    current: AtomicUsize,
    options: ConnectOptions,
    answers: AtomicU64,
    failures: AtomicU64,
    /// The current error; `None`: etcd answers.
    wrong: Mutex<Option<String>>,
}

struct Member {
    url: String,
    client: Mutex<Option<Client>>,
}

/// A message from the watch.
#[derive(Debug)]
pub(super) enum Seen {
    /// All keys, at this revision.
    Snapshot(Revision, Vec<Entry>),
    /// Changes, each with its revision.
    Changes(Vec<(Key, Option<Entry>, Revision)>),
    /// The watch has failed, so changes may be missed until the next snapshot.
    Cut,
}

impl Store {
    /// Reads the files, without connecting yet.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub(super) fn new(spec: &ClusterSpec) -> miette::Result<Store> {
        let read = |key: &str, path: &std::path::Path| {
            std::fs::read_to_string(path)
                .into_diagnostic()
                .wrap_err_with(|| format!("[cluster] {key} = {}", path.display()))
        };
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIME_MAX)
            .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if let Some((user, file)) = &spec.login {
            let password = read("password-file", file)?;
            let password = password.trim_end_matches(['\r', '\n']);
            if password.is_empty() {
                return Err(miette!(
                    "[cluster] password-file = {}: the file is empty",
                    file.display()
                ));
            }
            options = options
                .with_user(user.clone(), password)
                .with_auto_token_refresh(true);
        }
        if spec.endpoints.iter().any(|url| url.starts_with("https://")) {
            // A build may contain two providers and have no default, so choose one. This fails if one is installed already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let mut tls = TlsOptions::new().with_enabled_roots();
            if let Some(ca) = &spec.ca {
                tls = tls.ca_certificate(Certificate::from_pem(read("ca", ca)?));
            }
            if let Some((certificate, key)) = &spec.identity {
                let pems = (read("cert", certificate)?, read("key", key)?);
                tls = tls.identity(Identity::from_pem(pems.0, pems.1));
            }
            options = options.with_tls(tls);
        }
        let member = |url: &String| Member {
            url: url.clone(),
            client: Mutex::default(),
        };
        Ok(Store(Arc::new(Shared {
            members: spec.endpoints.iter().map(member).collect(),
            current: AtomicUsize::new(0),
            options,
            answers: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            wrong: Mutex::default(),
        })))
    }

    /// Returns the numbers of replies and failures, and the current error.
    pub(super) fn health(&self) -> (u64, u64, Option<String>) {
        let Shared {
            answers, failures, ..
        } = &*self.0;
        (
            answers.load(Relaxed),
            failures.load(Relaxed),
            lock(&self.0.wrong).clone(),
        )
    }

    /// Commits a transaction. `None`: its outcome is unknown.
    pub(super) async fn commit(&self, transaction: &Transaction) -> Option<Outcome> {
        for _ in 0..self.0.members.len() {
            let at = self.current();
            let attempt = timeout(ANSWER_TIME_MAX, self.commit_at(at, transaction)).await;
            match attempt {
                Ok(Ok(outcome)) => {
                    self.well();
                    return Some(outcome);
                }
                Ok(Err(error)) => self.leave(at, &error),
                Err(_) => {
                    self.leave(at, "the member of etcd does not answer in time");
                    return None;
                }
            }
        }
        None
    }

    async fn commit_at(&self, at: usize, transaction: &Transaction) -> Result<Outcome, String> {
        let txn = txn_of(transaction)?;
        let mut client = self.client(at).await?;
        let answer = client.txn(txn).await.map_err(|error| error.to_string())?;
        let revision = answer.header().map_or(0, |header| header.revision());
        let revision = Revision(revision.unsigned_abs());
        if answer.succeeded() {
            return Ok(Outcome::Committed(revision));
        }
        let keys = transaction.when.iter().map(threadbare_member::Compare::key);
        let found = answer.op_responses().into_iter().map(|found| match found {
            TxnOpResponse::Get(found) => found.kvs().first().and_then(entry_of),
            _ => None,
        });
        Ok(Outcome::Refused {
            now: keys.cloned().zip(found).collect(),
            at: revision,
        })
    }

    /// Reads the current value of a key. Outer `None`: reading failed; inner `None`: the key does not exist.
    pub(super) async fn look_up(&self, key: &Key) -> Option<Option<Entry>> {
        let path = key.path();
        for _ in 0..self.0.members.len() {
            let at = self.current();
            let attempt = async {
                let mut client = self.client(at).await?;
                let answer = client.get(path.as_str(), None).await;
                answer.map_err(|error| error.to_string())
            };
            match timeout(ANSWER_TIME_MAX, attempt).await {
                Ok(Ok(answer)) => {
                    self.well();
                    return Some(answer.kvs().first().and_then(entry_of));
                }
                Ok(Err(error)) => self.leave(at, &error),
                Err(_) => self.leave(at, "the member of etcd does not answer in time"),
            }
        }
        None
    }

    /// Reads the current keys of all calls, in pages. `None`: reading failed.
    pub(super) async fn calls(&self) -> Option<Vec<Entry>> {
        let mut client = self.client(self.current()).await.ok()?;
        let (_, entries) = read_all(&mut client, CALLS).await.ok()?;
        Some(entries)
    }

    /// Reads the states of all calls of a service. `None`: reading failed.
    pub(super) async fn states(&self, service: &StreamName) -> Option<Vec<Entry>> {
        let mut client = self.client(self.current()).await.ok()?;
        let prefix = format!("{STATES}{service}/");
        match read_all(&mut client, &prefix).await {
            Ok((_, entries)) => Some(entries),
            Err(error) => {
                self.leave(self.current(), &error);
                None
            }
        }
    }

    /// Sends all changes of the store to `seen`, until its receiver is dropped.
    pub(super) async fn watch(self, seen: Sender<Seen>) {
        let mut revision = None;
        loop {
            let at = self.current();
            let Err(Some(error)) = self.watch_at(at, &mut revision, &seen).await else {
                return;
            };
            self.leave(at, &error);
            sleep(WATCH_PAUSE).await;
        }
    }

    /// Watches one member until it fails, and returns the error. `None`: the receiver is gone.
    async fn watch_at(
        &self,
        at: usize,
        revision: &mut Option<Revision>,
        seen: &Sender<Seen>,
    ) -> Result<(), Option<String>> {
        let tell = async |what| seen.send(what).await.map_err(|_| None);
        let failed = |error: etcd_client::Error| Some(error.to_string());
        let late = |_| Some("the member of etcd does not answer in time".to_owned());
        let mut client = self.client(at).await.map_err(Some)?;
        let from = match *revision {
            Some(from) => from,
            None => {
                let (at, entries) = read_all(&mut client, PREFIX).await.map_err(Some)?;
                tell(Seen::Snapshot(at, entries)).await?;
                Revision(at.0 + 1)
            }
        };
        *revision = Some(from);
        let options = WatchOptions::new()
            .with_prefix()
            .with_fragment()
            .with_start_revision(from.0.cast_signed());
        let watch = client.watch(PREFIX, Some(options));
        let mut watch = timeout(WATCH_SILENT_MAX, watch)
            .await
            .map_err(late)?
            .map_err(failed)?;
        loop {
            // The watch also delivers this node's own renewals, so a silent watch has failed.
            let message = timeout(WATCH_SILENT_MAX, watch.message()).await;
            let message = message.map_err(late)?.map_err(failed)?;
            let message =
                message.ok_or_else(|| Some("the member of etcd ended the watch".to_owned()))?;
            if message.canceled() {
                let is_compacted = message.compact_revision() > 0;
                if is_compacted {
                    *revision = None;
                    tell(Seen::Cut).await?;
                }
                let reason = if is_compacted {
                    "the changes are compacted: reading all keys again"
                } else {
                    message.cancel_reason()
                };
                return Err(Some(reason.to_owned()));
            }
            self.well();
            let changes = changes_of(message.events());
            if let Some((.., last)) = changes.last() {
                // Resume from this revision, not after it, because a later message may have more of its changes. Repetitions
                // are ignored.
                *revision = Some(*last);
                tell(Seen::Changes(changes)).await?;
            }
        }
    }

    async fn client(&self, at: usize) -> Result<Client, String> {
        let member = &self.0.members[at];
        if let Some(client) = &*lock(&member.client) {
            return Ok(client.clone());
        }
        let options = Some(self.0.options.clone());
        let connected = Client::connect([member.url.as_str()], options);
        let client = timeout(CONNECT_TIME_MAX, connected).await;
        let client = client.map_err(|_| "the connection was not established in time".to_owned())?;
        let client = client.map_err(|error| error.to_string())?;
        *lock(&member.client) = Some(client.clone());
        Ok(client)
    }

    fn current(&self) -> usize {
        self.0.current.load(Relaxed)
    }

    fn well(&self) {
        self.0.answers.fetch_add(1, Relaxed);
        let mut wrong = lock(&self.0.wrong);
        if wrong.take().is_some() {
            let url = &self.0.members[self.current()].url;
            tracing::info!(url, "etcd answers");
        }
    }

    /// Switches to another member, unless that has already happened.
    fn leave(&self, at: usize, reason: &str) {
        self.0.failures.fetch_add(1, Relaxed);
        let next = (at + 1) % self.0.members.len();
        // If this node already uses another member, another request has switched. All requests run on one thread.
        if self.current() == at {
            self.0.current.store(next, Relaxed);
        }
        let url = &self.0.members[at].url;
        let mut wrong = lock(&self.0.wrong);
        if !wrong.is_some() {
            tracing::warn!(url, reason, "etcd: trying another member")
        } else {
            tracing::debug!(url, reason, "etcd: trying another member")
        }
        *wrong = Some(format!("{url}: {reason}"));
    }
}

/// Reads all keys with a prefix, at one revision. Reads them in pages, because a reply has a size limit.
async fn read_all(client: &mut Client, prefix: &str) -> Result<(Revision, Vec<Entry>), String> {
    let mut entries = Vec::new();
    let mut at = 0;
    let mut from = prefix.as_bytes().to_vec();
    let mut end = from.clone();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    loop {
        let options = GetOptions::new()
            .with_range(end.clone())
            .with_limit(PAGE_KEYS)
            .with_revision(at);
        let page = timeout(PAGE_TIME_MAX, client.get(from, Some(options))).await;
        let page = page.map_err(|_| "a page of keys did not arrive in time".to_owned())?;
        let page = page.map_err(|error| error.to_string())?;
        if at == 0 {
            at = page.header().map_or(0, |header| header.revision());
        }
        entries.extend(page.kvs().iter().filter_map(entry_of));
        match page.kvs().last() {
            Some(last) if page.more() => from = [last.key(), &[0]].concat(),
            _ => return Ok((Revision(at.unsigned_abs()), entries)),
        }
    }
}

fn changes_of(events: &[etcd_client::Event]) -> Vec<(Key, Option<Entry>, Revision)> {
    let change = |event: &etcd_client::Event| {
        let kv = event.kv()?;
        let key = Key::of_path(kv.key())?;
        let entry = match event.event_type() {
            EventType::Put => entry_of(kv),
            EventType::Delete => None,
        };
        Some((key, entry, Revision(kv.mod_revision().unsigned_abs())))
    };
    events.iter().filter_map(change).collect()
}

/// Parses a key with its value. An unreadable declaration is skipped. Other unreadable values become entries that the cluster
/// replaces: a node that is not active, or a claim of an owner that does not exist.
fn entry_of(kv: &KeyValue) -> Option<Entry> {
    let key = Key::of_path(kv.key())?;
    let value = key.read(kv.value()).or_else(|error| {
        tracing::warn!(%error, "cannot read a key in etcd");
        nothing_of(&key).ok_or(())
    });
    Some(Entry {
        value: value.ok()?,
        key,
        created: Revision(kv.create_revision().unsigned_abs()),
        modified: Revision(kv.mod_revision().unsigned_abs()),
    })
}

fn nothing_of(key: &Key) -> Option<Value> {
    match key {
        Key::Node(_) => Some(Value::Node(NodeRecord {
            incarnation: Incarnation(0),
            beat: 0,
            weight: WEIGHT_MIN,
            labels: Vec::new(),
            draining: true,
            link: None,
            room: None,
        })),
        Key::Claim(_) => Some(Value::Claim(Claim {
            owner: nobody(),
            epoch: Epoch::default(),
            deputy: None,
            next: None,
            resume: Vec::new(),
        })),
        Key::Call(_) => Some(Value::Call(CallClaim {
            owner: nobody(),
            service: None,
        })),
        Key::Stream(_) | Key::State(..) => None,
    }
}

fn nobody() -> Life {
    Life {
        node: "".into(),
        incarnation: Incarnation(0),
    }
}

fn txn_of(transaction: &Transaction) -> Result<Txn, String> {
    let compare = |compare: &threadbare_member::Compare| match compare {
        threadbare_member::Compare::Modified(key, at) => {
            Compare::mod_revision(key.path(), CompareOp::Equal, at.0.cast_signed())
        }
        threadbare_member::Compare::Created(key, at) => {
            Compare::create_revision(key.path(), CompareOp::Equal, at.0.cast_signed())
        }
    };
    let operation = |operation: &Operation| match operation {
        Operation::Put(key, value) => {
            let json = value.to_bytes().map_err(|error| error.to_string())?;
            Ok(TxnOp::put(key.path(), json, None))
        }
        Operation::Delete(key) => Ok(TxnOp::delete(key.path(), None)),
    };
    let then: Result<Vec<TxnOp>, String> = transaction.then.iter().map(operation).collect();
    let found = transaction.when.iter();
    let found = found.map(|compare| TxnOp::get(compare.key().path(), None));
    Ok(Txn::new()
        .when(transaction.when.iter().map(compare).collect::<Vec<_>>())
        .and_then(then?)
        .or_else(found.collect::<Vec<_>>()))
}

/// Time limit of a transaction. It ends before the next renewal, so that the next renewal goes to another member.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(250);
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
/// Interval of keep-alives, so that connections to a dead machine fail soon. Without them, the kernel would try for minutes.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Maximum silence of the watch: the time of four renewals of this node.
const WATCH_SILENT_MAX: Duration = Duration::from_secs(1);
const WATCH_PAUSE: Duration = Duration::from_millis(50);
const PAGE_TIME_MAX: Duration = Duration::from_secs(5);
/// Number of keys in a page. With declarations of 1 KB, a page is well below the 4 MB of a reply.
const PAGE_KEYS: i64 = 400;
