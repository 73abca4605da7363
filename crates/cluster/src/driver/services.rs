//! The driver's part for services: manages their addresses and calls. See [`super::super::service`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use threadbare_member::{
    CallName, Declaration, Entry, Epoch, Key, Kind, Link, NodeName, StreamName, Value,
};
use threadbare_runtime::clock_now_ns;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{Driver, Replied};
use crate::addresses::Addresses;
use crate::passing::Passed;
use crate::seal::Seal;
use crate::service::{
    Copies, Handed, LatePacketBox, Opaque, ServiceSpec, Shadow, Taking, service_of,
};
use crate::shadows::Shadows;
use threadbare_config::ServiceAddress;

/// The driver's state for services.
pub(super) struct Services {
    pub(super) addresses: Addresses,
    seal: Seal,
    /// This process, to which the numbers of this node's streams belong.
    pub(super) process: u64,
    /// This node's own service and its declaration.
    own: Option<(StreamName, Declaration)>,
    pub(super) carried: BTreeMap<StreamName, Carrying>,
    /// Services that other nodes took over, while late packets may still arrive here.
    pub(super) departed: BTreeMap<StreamName, Departed>,
    /// Calls that another node has handed to this one, with their arrival time. They wait until the service's addresses are
    /// added.
    pub(super) handed: BTreeMap<StreamName, VecDeque<(u64, Handed)>>,
    pub(super) shadows: Shadows,
    pub(super) late_packets: LatePacketBox,
}

/// A service that this node carries.
pub(super) struct Carrying {
    pub(super) epoch: Epoch,
    pub(super) spec: ServiceSpec,
    pub(super) stage: Stage,
    /// Whether some calls were given to the call service.
    pub(super) has_begun: bool,
}

/// The progress in starting a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The addresses are being added, or the states of the calls are being read.
    Read,
    /// The addresses were added, and the calls come from the previous node.
    Handed,
    /// All calls were given to the call service.
    Taken,
    /// All calls that can continue have continued.
    Arrived,
}

/// A service that another node took over.
pub(super) struct Departed {
    /// Addresses to be removed.
    pub(super) addresses: Vec<ServiceAddress>,
    pub(super) link: Link,
    /// Dropping this ends the task that sends late packets.
    #[expect(dead_code, reason = "dropping it ends the task")]
    pub(super) running: oneshot::Sender<()>,
    /// The receiving half of `running`, until the task takes it.
    pub(super) ends: Option<oneshot::Receiver<()>>,
}

/// Length of the prefix of a state in etcd: the process to which the numbers of its streams belong.
const PROCESS_BYTES: usize = 8;
/// Maximum length of a call's state in etcd. A call between two parties has 3 to 6 KiB; forks and subscriptions add to it. The
/// claim of a call and its state fit in one transaction of etcd, which allows 1.5 MB.
const STATE_BYTES_MAX: usize = 32 << 10;

impl Services {
    pub(super) fn new(addresses: Addresses, seal: Seal, process: u64) -> Services {
        Services {
            addresses,
            seal,
            process,
            own: None,
            carried: BTreeMap::new(),
            departed: BTreeMap::new(),
            handed: BTreeMap::new(),
            shadows: Shadows::default(),
            late_packets: LatePacketBox::default(),
        }
    }

    pub(super) fn carries(&self, name: &StreamName) -> bool {
        self.carried.contains_key(name)
    }

    pub(super) fn has_any(&self) -> bool {
        !self.carried.is_empty()
    }

    /// Whether some calls of a service have not arrived here yet.
    pub(super) fn awaits(&self, name: &StreamName, epoch: Epoch) -> bool {
        let carrying = self.carried.get(name);
        carrying.is_some_and(|carrying| carrying.epoch == epoch && carrying.stage < Stage::Taken)
    }

    /// Whether this node is starting a service, so that calls may still arrive.
    fn is_arriving(&self, name: &StreamName) -> bool {
        let carrying = self.carried.get(name);
        carrying.is_some_and(|carrying| carrying.stage < Stage::Arrived)
    }

    /// Encrypts a state for etcd. `None`: it is too long.
    fn sealed(&self, service: &StreamName, call: &CallName, state: &Opaque) -> Option<Arc<[u8]>> {
        let state = [&self.process.to_le_bytes()[..], &state.0].concat();
        let sealed = self.seal.seal(service, call, &state);
        let bytes = sealed.len();
        if bytes > STATE_BYTES_MAX {
            let allowed = STATE_BYTES_MAX;
            tracing::warn!(%call, bytes, allowed, "the state of a call is too long to save: if this node dies, the call ends");
            return None;
        }
        Some(sealed.into())
    }

    pub(super) fn opened(&self, entry: &Entry) -> Option<(u64, Opaque)> {
        let (Key::State(service, call), Value::State(sealed)) = (&entry.key, &entry.value) else {
            return None;
        };
        let Some(state) = self.seal.open(service, call, sealed) else {
            tracing::error!(%call, "cannot read the saved state of a call: it was saved with another key-file, or is damaged");
            return None;
        };
        let (process, state) = state.split_at_checked(PROCESS_BYTES)?;
        let process = u64::from_le_bytes(process.try_into().ok()?);
        Some((process, Opaque(state.to_vec())))
    }
}

impl Driver {
    /// Sets this node's own service.
    pub(super) fn set_own_service(&mut self, spec: &ServiceSpec) {
        let node = self.member.life().node;
        let Some(services) = &mut self.services else {
            return;
        };
        // Serialising numbers and texts cannot fail.
        let spec = serde_json::to_string(spec).unwrap_or_default();
        let declaration = Declaration {
            kind: Kind::Service,
            at: Some(node.clone()),
            spec: spec.into(),
            ..Declaration::default()
        };
        services.own = Some((StreamName(service_of(&node.0).into()), declaration));
    }

    /// Declares the node's service, unless etcd has the declaration already.
    pub(super) fn declare_service(&mut self) {
        let own = self
            .services
            .as_ref()
            .and_then(|services| services.own.as_ref());
        if let Some((name, wanted)) = own {
            let known = self.member.declaration(name);
            let is_same = |known: &Declaration| known.spec == wanted.spec;
            if !known.is_some_and(is_same) {
                self.declared.add(name, wanted);
            }
        }
    }

    pub(super) fn is_service(&self, name: &StreamName) -> bool {
        let declared = self.member.declaration(name);
        let is_carried = |services: &Services| services.carries(name);
        declared.is_some_and(|declared| declared.kind == Kind::Service)
            || self.services.as_ref().is_some_and(is_carried)
    }

    pub(super) fn start_service(&mut self, name: StreamName, epoch: Epoch) {
        let Some(declaration) = self.member.declaration(&name) else {
            return;
        };
        let spec: ServiceSpec = match serde_json::from_str(&declaration.spec) {
            Ok(spec) => spec,
            Err(error) => {
                tracing::error!(service = %name, %error, "cannot read the declaration of a service: its calls are lost");
                return;
            }
        };
        let Some(services) = &mut self.services else {
            tracing::error!(service = %name, "no other node is left, and this node accepts no calls: the calls of the service are lost");
            return;
        };
        // The service has come back before its hand-over was finished. Its packets reach the calls of this node again.
        services.departed.remove(&name);
        tracing::info!(service = %name, "this node starts to carry a service");
        let carrying = Carrying {
            epoch,
            spec,
            stage: Stage::Read,
            has_begun: false,
        };
        let is_of_it = |(_, one): &(u64, Handed)| one.release.epoch == epoch;
        let handed = services.handed.get(&name).and_then(VecDeque::front);
        let is_handed = handed.is_some_and(is_of_it);
        services.carried.insert(name.clone(), carrying);
        if is_handed {
            self.receive_service(name, epoch)
        } else {
            self.read_states(name, epoch)
        }
    }

    /// Reads the states of a service's calls from etcd, if this node carries the service.
    pub(super) fn read_states(&self, name: StreamName, epoch: Epoch) {
        let Some(services) = &self.services else {
            return;
        };
        let Some(carrying) = services.carried.get(&name) else {
            return;
        };
        let added = services.addresses.add(&carrying.spec.addresses);
        let (store, replies) = (self.store.clone(), self.replies.clone());
        tokio::spawn(async move {
            let (_, states) = tokio::join!(added, store.states(&name));
            // This fails if the thread is about to end.
            let _ = replies.send(Replied::States(name, epoch, states));
        });
    }

    /// Handles the states of a service's calls from etcd. `None`: etcd did not answer.
    pub(super) fn handle_states(
        &mut self,
        name: StreamName,
        epoch: Epoch,
        states: Option<Vec<Entry>>,
    ) {
        let call_service = self.call_service();
        let Some(services) = &mut self.services else {
            return;
        };
        if !services.awaits(&name, epoch) {
            return;
        }
        let (Some(states), Some(_)) = (states, call_service) else {
            // Try again: etcd may answer next time, or the call service may be open then.
            let replies = self.replies.clone();
            tokio::spawn(async move {
                sleep(AGAIN).await;
                let _ = replies.send(Replied::ReadAgain(name, epoch));
            });
            return;
        };
        let calls: Vec<_> = states
            .iter()
            .filter_map(|entry| services.opened(entry))
            .collect();
        let mut shadows = HashMap::new();
        for (process, _) in &calls {
            if !shadows.contains_key(process) {
                shadows.insert(*process, services.shadows.take(*process));
            }
        }
        self.give_calls(&name, calls, shadows, true);
    }

    /// Gives calls of a service to the call service. `is_last`: no more calls follow.
    pub(super) fn give_calls(
        &mut self,
        name: &StreamName,
        calls: Vec<(u64, Opaque)>,
        shadows: HashMap<u64, Shadow>,
        is_last: bool,
    ) {
        let call_service = self.call_service();
        let Some(services) = &mut self.services else {
            return;
        };
        let (Some(carrying), Some(call_service)) = (services.carried.get_mut(name), call_service)
        else {
            return;
        };
        let taking = Taking {
            service: name.to_string(),
            interfaces: carrying.spec.interfaces(),
            fence: self.fence.clone(),
            calls,
            shadows,
            late_packets: services.late_packets.clone(),
            is_first: !std::mem::replace(&mut carrying.has_begun, true),
            is_last,
        };
        if is_last {
            carrying.stage = Stage::Taken;
        }
        let (replies, name, epoch) = (self.replies.clone(), name.clone(), carrying.epoch);
        let done = move || {
            if is_last {
                drop(replies.send(Replied::Arrived(name, epoch)));
            }
        };
        call_service.take(taking, Box::new(done));
    }

    pub(super) fn handle_arrived(&mut self, name: &StreamName, epoch: Epoch) {
        let Some(services) = &mut self.services else {
            return;
        };
        let carrying = services.carried.get_mut(name);
        if let Some(carrying) = carrying.filter(|carrying| carrying.epoch == epoch) {
            carrying.stage = Stage::Arrived;
            services.handed.remove(name);
            // Search for keys of calls that ended while the service moved.
            if let Some(calls) = &mut self.calls {
                calls.sweep_soon();
            }
        }
    }

    /// Sends states of this process's streams to the nodes that would take them over.
    pub(super) fn send_copies(&mut self, streams: Vec<(u64, Option<Opaque>)>) {
        let (Some(services), Some(calls)) = (&self.services, &mut self.calls) else {
            return;
        };
        let copies = Copies {
            process: services.process,
            is_last: false,
            streams,
        };
        let heirs = services.carried.keys();
        let mut heirs: Vec<NodeName> = heirs
            .filter_map(|name| Some(self.member.heir(name)?.node))
            .collect();
        heirs.sort();
        heirs.dedup();
        for heir in heirs {
            let record = self.member.nodes().find(|(node, _)| **node == heir);
            if let Some(link) = record.and_then(|(_, record)| record.link) {
                for part in parts(&copies) {
                    // The reply does not matter, because the next copies follow in a second.
                    drop(calls.peers.ask(&link, &part));
                }
            }
        }
    }

    /// Stores copies from another node.
    pub(super) fn keep_copies(&mut self, copies: Copies) {
        let now_ns = clock_now_ns();
        if let Some(services) = &mut self.services {
            services.shadows.put(now_ns, copies);
            services.shadows.forget_old(now_ns);
        }
    }

    /// Removes all addresses before this node ends, so that another node may have them.
    pub(super) async fn take_addresses_off(&mut self) {
        let Some(services) = &mut self.services else {
            return;
        };
        let carried = std::mem::take(&mut services.carried).into_values();
        let departed = std::mem::take(&mut services.departed).into_values();
        let carried = carried.map(|carrying| carrying.spec.addresses);
        for addresses in carried.chain(departed.map(|departed| departed.addresses)) {
            let _ = services.addresses.remove(&addresses).await;
        }
    }

    /// Encrypts the state of a call for etcd.
    pub(super) fn seal(
        &self,
        call: &CallName,
        kept: Option<(String, Opaque)>,
    ) -> Option<(StreamName, Arc<[u8]>)> {
        let (service, state) = kept?;
        let service = StreamName::from(service.as_str());
        let sealed = self.services.as_ref()?.sealed(&service, call, &state)?;
        Some((service, sealed))
    }

    /// Whether the call with this key belongs to a service that is being started here.
    pub(super) fn is_arriving(&self, entry: Option<&Entry>) -> bool {
        let service = match entry.map(|entry| &entry.value) {
            Some(Value::Call(claim)) => claim.service.as_ref(),
            _ => None,
        };
        let services = self.services.as_ref().zip(service);
        services.is_some_and(|(services, service)| services.is_arriving(service))
    }

    /// Whether calls are in transit to this node, while their keys still name other nodes.
    pub(super) fn awaits_calls(&self) -> bool {
        let services = self.services.iter();
        services
            .flat_map(|services| services.carried.values())
            .any(|carrying| carrying.stage < Stage::Arrived)
    }
}

/// Splits copies into messages of limited size.
pub(super) fn parts(copies: &Copies) -> impl Iterator<Item = Passed> + '_ {
    let mut left = &copies.streams[..];
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = left.iter().take_while(|(_, state)| {
            bytes += COPY_BYTES + state.as_ref().map_or(0, |state| state.0.len());
            bytes <= PART_BYTES
        });
        // A copy that is longer than a message may be is sent alone, and the channel refuses it.
        let count = fits.count().max(1).min(left.len());
        let (part, rest) = left.split_at(count);
        left = rest;
        (!part.is_empty()).then(|| {
            Passed::Copies(Copies {
                streams: part.to_vec(),
                ..*copies
            })
        })
    })
}

/// Size at which copies are split: a message must be smaller than 1 MiB.
pub(super) const PART_BYTES: usize = 256 << 10;
/// Overhead of a copy: the stream's number, and the length of the state.
pub(super) const COPY_BYTES: usize = 16;
const AGAIN: Duration = Duration::from_millis(50);
