//! Checks `[cluster]`, and the keys of streams about the cluster. The options of `threadbare serve --cluster` follow the same rules.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use threadbare_member::{OnIsolation, WEIGHT_MAX, WEIGHT_MIN, is_weight};
use toml::Spanned;

use super::checker::Checker;
use super::raw::{RawCluster, RawStream};
use super::service::{NoServiceAddress, ServiceAddress};

/// Settings of a node in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// URLs of the members of etcd.
    pub endpoints: Vec<String>,
    /// Name of the node. It is unique in the cluster, and stays the same after a restart.
    pub node: String,
    /// Share of the streams that the node gets, relative to other nodes.
    pub weight: f64,
    /// Labels of the node, to which streams refer.
    pub labels: Vec<Arc<str>>,
    /// Address to which other nodes connect, so that they notice at once when this process ends. `None`: they notice it only when the
    /// node's lease ends.
    pub listen: Option<SocketAddr>,
    /// The user with which the node logs in to etcd, and the file with the password.
    pub login: Option<(String, PathBuf)>,
    /// File with the CA of etcd's certificates. `None`: the system's CAs are used.
    pub ca: Option<PathBuf>,
    /// Files with the node's certificate for etcd, and with its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Default of [`Placement::on_isolation`] for the streams.
    pub on_isolation: OnIsolation,
    /// File with the key that all nodes share. The key protects requests for calls. `None`: this node does not share its calls.
    pub key_file: Option<PathBuf>,
    /// The treatment of new calls while etcd does not answer.
    pub calls_on_isolation: CallsOnIsolation,
    /// Addresses of this node's calls. When the node ends, another node takes over the addresses and the calls. If the list is empty, calls
    /// end with the node.
    pub service_addresses: Vec<ServiceAddress>,
    /// Program that adds and removes addresses. It is called with `add` or `remove`, ADDRESS/PREFIX and DEVICE. `None`: this process adds
    /// and removes the addresses itself.
    pub service_program: Option<PathBuf>,
}

/// The treatment of new calls, and of requests for calls of other nodes, while etcd does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallsOnIsolation {
    /// It refuses them.
    #[default]
    Refuse,
    /// It accepts them, as a single node would.
    Take,
}

impl CallsOnIsolation {
    /// Returns the value's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CallsOnIsolation::Refuse => "refuse",
            CallsOnIsolation::Take => "take",
        }
    }
}

impl ClusterSpec {
    /// Creates a specification with only the required settings.
    #[must_use]
    pub fn new(endpoints: Vec<String>, node: String) -> ClusterSpec {
        ClusterSpec {
            endpoints,
            node,
            weight: 1.0,
            labels: Vec::new(),
            listen: None,
            login: None,
            ca: None,
            identity: None,
            on_isolation: OnIsolation::default(),
            key_file: None,
            calls_on_isolation: CallsOnIsolation::default(),
            service_addresses: Vec::new(),
            service_program: None,
        }
    }

    /// Lists the values that cannot be used.
    #[must_use]
    pub fn refused(&self) -> Vec<ClusterRefusal> {
        let mut refused = Vec::new();
        let mut refuse = |key, value: String, allowed: String| {
            refused.push(ClusterRefusal {
                key,
                value,
                allowed,
            });
        };
        if !IS_BUILT {
            let value = self.endpoints.join(",");
            refuse("endpoints", value, NOT_BUILT.to_owned());
        }
        let odd = self.endpoints.iter().find(|url| !is_endpoint(url));
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX || odd.is_some() {
            let value = odd.cloned().unwrap_or_else(|| self.endpoints.join(","));
            let allowed = format!(
                "1 to {ENDPOINTS_MAX} URLs such as http://10.0.0.1:2379 or https://etcd-1.example.net:2379"
            );
            refuse("endpoints", value, allowed);
        }
        if !is_word(&self.node) {
            refuse("node", self.node.clone(), WORD.to_owned());
        }
        if !is_weight(self.weight) {
            let allowed = format!("a number from {WEIGHT_MIN} to {WEIGHT_MAX}");
            refuse("weight", self.weight.to_string(), allowed);
        }
        let odd = self.labels.iter().find(|label| !is_word(label));
        if let Some(value) = odd {
            refuse("labels", value.to_string(), WORD.to_owned());
        }
        if let Some(listen) = self.listen.filter(|listen| listen.ip().is_unspecified()) {
            let allowed = "an address of this machine that the other nodes reach, with a port, such as 10.0.0.3:2400";
            refuse("listen", listen.to_string(), allowed.to_owned());
        }
        if let Some(file) = self.key_file.as_ref().filter(|_| self.listen.is_none()) {
            let allowed =
                "key-file needs listen, the address to which other nodes send requests for calls"
                    .to_owned();
            refuse("key-file", file.display().to_string(), allowed);
        }
        let first = self.service_addresses.first();
        if let Some(address) = first.filter(|_| self.key_file.is_none()) {
            let allowed = "service-addresses need key-file, with which the other nodes decrypt the states of calls";
            refuse("service-addresses", address.to_string(), allowed.to_owned());
        }
        if let Some(program) = self.service_program.as_ref().filter(|_| first.is_none()) {
            let allowed = "service-program needs service-addresses".to_owned();
            refuse("service-program", program.display().to_string(), allowed);
        }
        let is_plain = self.endpoints.iter().all(|url| url.starts_with("http://"));
        let certificates = self.identity.as_ref().map(|(certificate, _)| certificate);
        let files = [("ca", self.ca.as_ref()), ("cert", certificates)];
        for (key, file) in files {
            if let Some(file) = file.filter(|_| is_plain) {
                let allowed = "this key needs endpoints that start with https://".to_owned();
                refuse(key, file.display().to_string(), allowed);
            }
        }
        refused
    }
}

/// A setting with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRefusal {
    /// The key in the file.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

/// A stream's settings in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Nodes with one of these labels are chosen first.
    pub prefer: Vec<Arc<str>>,
    /// Nodes with one of these labels are chosen last.
    pub avoid: Vec<Arc<str>>,
    /// The treatment of the stream while the node cannot reach etcd.
    pub on_isolation: OnIsolation,
}

pub(super) fn check(checker: &mut Checker<'_>, raw: &Spanned<RawCluster>) -> Option<ClusterSpec> {
    let place = raw.span();
    let raw = raw.get_ref();
    let (Some(endpoints), Some(node)) = (&raw.endpoints, &raw.node) else {
        if !raw.is_partial {
            checker.problems.add_missing(
                "[cluster] without `endpoints` or `node`",
                "add the addresses of etcd, and the name of this node: endpoints = [\"http://10.0.0.1:2379\"], node = \"relay-1\"",
                place,
            );
        }
        return None;
    };
    let login = pair(
        checker,
        (&raw.user, "user"),
        (&raw.password_file, "password-file"),
        "etcd knows a user by a password",
    );
    let identity = pair(
        checker,
        (&raw.cert, "cert"),
        (&raw.key, "key"),
        "a certificate needs its key",
    );
    let path = |file: &Spanned<String>| PathBuf::from(file.get_ref());
    let labels = raw.labels.as_ref().map(Spanned::get_ref);
    let spec = ClusterSpec {
        weight: weight(checker, raw),
        labels: labels
            .into_iter()
            .flatten()
            .map(|label| label.as_str().into())
            .collect(),
        listen: link_address(checker, raw),
        login: login.map(|(user, file)| (user, file.into())),
        ca: raw.ca.as_ref().map(path),
        identity: identity.map(|(certificate, key)| (certificate.into(), key.into())),
        on_isolation: on_isolation(checker, raw.on_isolation.as_ref()).unwrap_or_default(),
        key_file: raw.key_file.as_ref().map(path),
        calls_on_isolation: calls_on_isolation(checker, raw.calls_on_isolation.as_ref()),
        service_addresses: service_addresses(checker, raw.service_addresses.as_ref()),
        service_program: raw.service_program.as_ref().map(path),
        ..ClusterSpec::new(endpoints.get_ref().clone(), node.get_ref().clone())
    };
    for ClusterRefusal {
        key,
        value,
        allowed,
    } in spec.refused()
    {
        let place = match key {
            "endpoints" => endpoints.span(),
            "node" => node.span(),
            key => place_of(raw, key),
        };
        checker.problems.add(
            format!("`{key}` cannot be {value:?}"),
            &format!("allowed for `{key}`: {allowed}"),
            &[(place, "this value")],
        );
    }
    Some(spec)
}

fn link_address(checker: &mut Checker<'_>, raw: &RawCluster) -> Option<SocketAddr> {
    let listen = raw.listen.as_ref().map(|listen| listen.get_ref().parse());
    if let Some(Err(_)) = listen {
        let allowed = "an address with a port, such as 10.0.0.3:2400";
        checker.refuse(raw.listen.as_ref(), "listen", allowed);
    }
    listen.and_then(Result::ok)
}

fn weight(checker: &mut Checker<'_>, raw: &RawCluster) -> f64 {
    match raw.weight.as_ref().map(Spanned::get_ref) {
        None => 1.0,
        Some(toml::Value::Integer(weight)) => *weight as f64,
        Some(toml::Value::Float(weight)) => *weight,
        Some(_) => {
            let allowed = format!("a number from {WEIGHT_MIN} to {WEIGHT_MAX}");
            checker.refuse(raw.weight.as_ref(), "weight", &allowed);
            1.0
        }
    }
}

/// Checks two keys of which neither may be set without the other.
fn pair(
    checker: &mut Checker<'_>,
    (first, first_key): (&Option<Spanned<String>>, &str),
    (second, second_key): (&Option<Spanned<String>>, &str),
    why: &str,
) -> Option<(String, String)> {
    let (alone, has, needs) = match (first, second) {
        (Some(first), Some(second)) => {
            return Some((first.get_ref().clone(), second.get_ref().clone()));
        }
        (None, None) => return None,
        (Some(first), None) => (first, first_key, second_key),
        (None, Some(second)) => (second, second_key, first_key),
    };
    checker.problems.add(
        format!("`{has}` without `{needs}`"),
        &format!("add `{needs}`: {why}"),
        &[(alone.span(), "this value")],
    );
    None
}

fn service_addresses(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<Vec<String>>>,
) -> Vec<ServiceAddress> {
    let texts = raw.map(Spanned::get_ref).into_iter().flatten();
    let read: Result<Vec<_>, NoServiceAddress> = texts.map(|text| text.parse()).collect();
    read.unwrap_or_else(|expected| {
        let allowed = format!("a list of addresses, each {expected}");
        checker.refuse(raw, "service-addresses", &allowed);
        Vec::new()
    })
}

fn calls_on_isolation(
    checker: &mut Checker<'_>,
    raw: Option<&Spanned<String>>,
) -> CallsOnIsolation {
    let known = [CallsOnIsolation::Refuse, CallsOnIsolation::Take];
    let text = raw.map(|text| text.get_ref().as_str());
    let found = known.into_iter().find(|one| Some(one.name()) == text);
    if found.is_none() && raw.is_some() {
        checker.refuse(raw, "calls-on-isolation", "\"refuse\" or \"take\"");
    }
    found.unwrap_or_default()
}

fn on_isolation(checker: &mut Checker<'_>, raw: Option<&Spanned<String>>) -> Option<OnIsolation> {
    match raw?.get_ref().as_str() {
        "stop" => Some(OnIsolation::Stop),
        "continue" => Some(OnIsolation::Continue),
        _ => {
            checker.refuse(raw, "on-isolation", "\"stop\" or \"continue\"");
            None
        }
    }
}

/// Checks the settings of a stream in a cluster. `cluster` is the default of the file. `None`: the file has no `[cluster]`.
pub(super) fn placement(
    checker: &mut Checker<'_>,
    raw: &RawStream,
    cluster: Option<OnIsolation>,
) -> Placement {
    let labels = [(&raw.prefer, "prefer"), (&raw.avoid, "avoid")].map(|(labels, key)| {
        let texts = labels.as_ref().map(Spanned::get_ref);
        let texts = texts.into_iter().flatten();
        if texts.clone().any(|label| !is_word(label)) {
            checker.refuse(labels.as_ref(), key, &format!("labels, each {WORD}"));
        }
        if cluster.is_none() {
            checker.conflict(labels.as_ref(), key, NO_CLUSTER, ADD_CLUSTER);
        }
        texts.map(|label| label.as_str().into()).collect()
    });
    let on_isolation = on_isolation(checker, raw.on_isolation.as_ref());
    if cluster.is_none() {
        let raw = raw.on_isolation.as_ref();
        checker.conflict(raw, "on-isolation", NO_CLUSTER, ADD_CLUSTER);
    }
    let [prefer, avoid] = labels;
    Placement {
        prefer,
        avoid,
        on_isolation: on_isolation.or(cluster).unwrap_or_default(),
    }
}

/// Returns the place of an optional key in the file. If the key is absent, returns the place of the table.
fn place_of(raw: &RawCluster, key: &str) -> std::ops::Range<usize> {
    let of = |value: &Option<Spanned<String>>| value.as_ref().map(Spanned::span);
    let place = match key {
        "weight" => raw.weight.as_ref().map(Spanned::span),
        "labels" => raw.labels.as_ref().map(Spanned::span),
        "listen" => of(&raw.listen),
        "ca" => of(&raw.ca),
        "key-file" => of(&raw.key_file),
        "service-addresses" => raw.service_addresses.as_ref().map(Spanned::span),
        "service-program" => of(&raw.service_program),
        _ => of(&raw.cert),
    };
    place.unwrap_or_default()
}

/// Whether a text is valid as a name or a label.
fn is_word(text: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=WORD_CHARS_MAX).contains(&text.len()) && text.chars().all(is_fine)
}

fn is_endpoint(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    let authority = url.parse::<http::Uri>().ok();
    let authority = authority.as_ref().and_then(|uri| uri.authority());
    let has_port = authority.is_some_and(|authority| authority.port_u16().is_some());
    matches!(scheme, "http" | "https") && has_port && !rest.contains(['/', '@', '?', '#', ','])
}

const IS_BUILT: bool = cfg!(feature = "cluster");
const NOT_BUILT: &str =
    "no value, because this program was built without the cargo feature `cluster`";
const NO_CLUSTER: &str = "a file without [cluster]";
const ADD_CLUSTER: &str = "add [cluster] with endpoints and node, or remove the key";
const WORD: &str = "1 to 63 letters, digits, `-`, `_` and `.`";
const WORD_CHARS_MAX: usize = 63;
/// Maximum number of URLs. A cluster of etcd usually has at most seven members.
const ENDPOINTS_MAX: usize = 16;
