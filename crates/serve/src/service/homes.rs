//! The services of this node: the addresses of this node's calls, and those of calls that it has taken over.
//!
//! A call belongs to one service, and opens its ports at that service's interfaces.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use threadbare_control::calls::{CallId, Calls, SavedError, StreamId, StreamKind};
use threadbare_relay::{CallHandle, Fence, LegPorts, MediaSession, PortError};
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::unbounded_channel;

use super::{Service, saved_state};
use crate::interfaces::Interfaces;
use crate::media::{HandedOver, LatePacketSender};
use crate::store::{Before, Copier};
use threadbare_cluster::{
    ClusterView, LatePacketBox, Leaving, Opaque, Preparing, ServiceSpec, Shadow, StreamCopy, Taking,
};
use threadbare_config::{InterfaceSpec, ServiceAddress};

/// The services of a node in a cluster.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// The node's own service, if it has one.
    own: Option<Own>,
    /// Services of other nodes that are here, with their interfaces.
    guests: BTreeMap<String, Interfaces>,
    /// The service of each call.
    of: HashMap<CallId, String>,
    /// Streams whose services moved to other nodes: their ports stay open.
    departed: HashMap<String, Departed>,
    /// Streams that came with a service, by their old process and number.
    came: HashMap<(u64, u64), StreamId>,
    /// Late packets for them from the old node.
    late_packets: LatePacketBox,
    copier: Option<Copier>,
}

/// The rest of a service that another node has, or is about to have.
#[derive(Debug)]
struct Departed {
    handles: Vec<CallHandle<MediaSession>>,
    /// Receives late packets.
    late_packets: LatePacketSender,
}

#[derive(Debug)]
struct Own {
    name: String,
    addresses: Vec<ServiceAddress>,
    is_here: bool,
}

impl Homes {
    /// Why no calls can be made.
    pub(super) fn away(&self) -> Option<&'static str> {
        let own = self.own.as_ref()?;
        (!own.is_here).then_some(AWAY)
    }

    /// The service of a call, including new calls.
    pub(super) fn of(&mut self, call: &CallId) -> Option<&str> {
        let own = self.own.as_ref().filter(|own| own.is_here);
        if let Some(own) = own
            && !self.of.contains_key(call)
        {
            self.of.insert(call.clone(), own.name.clone());
        }
        self.of.get(call).map(String::as_str)
    }

    /// Whether a call belongs to a service, so that its state is in etcd.
    pub(super) fn has(&self, call: &CallId) -> bool {
        self.of.contains_key(call)
    }

    pub(super) fn forget(&mut self, call: &CallId) {
        self.of.remove(call);
    }

    /// The interfaces of a call that was taken over.
    pub(super) fn interfaces(&mut self, call: &CallId) -> Option<&mut Interfaces> {
        self.guests.get_mut(self.of.get(call)?)
    }

    /// Closes idle ports that no call has reused for a while.
    pub(super) fn close_unwanted(&self) {
        self.guests.values().for_each(Interfaces::close_unwanted);
    }

    /// The interfaces of other nodes' services.
    pub(super) fn specs(&self) -> impl Iterator<Item = &InterfaceSpec> {
        self.guests.values().flat_map(Interfaces::specs)
    }

    /// Whether this is the address of a port of such a service's call.
    pub(super) fn has_port_in_use(&self, at: std::net::SocketAddr) -> bool {
        let mut guests = self.guests.values();
        guests.any(|guest| guest.has_port_in_use(at))
    }

    /// Whether ports of such services are in use, or resting.
    pub(super) fn are_used(&self) -> bool {
        self.guests.values().any(Interfaces::are_used)
    }

    /// The interfaces for the calls of a service, if it comes here.
    fn interfaces_of<'a>(
        &'a mut self,
        service: &str,
        own: &'a mut Interfaces,
    ) -> Option<&'a mut Interfaces> {
        if self.is_own(service) {
            Some(own)
        } else {
            self.guests.get_mut(service)
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.own.as_ref().is_some_and(|own| own.name == name)
    }
}

impl Service {
    /// Takes over calls of nodes that end, and hands calls to other nodes. `addresses`: those of this node's own calls. Call this
    /// when calls are shared.
    ///
    /// # Errors
    /// Threads run out.
    pub(crate) fn save_in_cluster(
        &mut self,
        cluster: &ClusterView,
        addresses: &[ServiceAddress],
        interfaces: &[InterfaceSpec],
    ) -> std::io::Result<()> {
        if !addresses.is_empty() {
            self.start_copier(cluster.clone())?;
            self.interfaces.precede_addresses();
            self.homes.own = Some(Own {
                name: cluster.own_service(),
                addresses: addresses.to_vec(),
                is_here: false,
            });
            self.declare_service(cluster, interfaces);
        }
        self.tell_room();
        Ok(())
    }

    /// Starts to send states of streams to the next nodes. A node with its own state file keeps them there.
    fn start_copier(&mut self, cluster: ClusterView) -> std::io::Result<()> {
        if self.store.is_none() && self.homes.copier.is_none() {
            let copier = Copier::start(cluster)?;
            let saved = HashMap::new();
            self.media
                .save_states(copier.write_queue().clone(), Before::Died, saved);
            self.homes.copier = Some(copier);
        }
        Ok(())
    }

    /// Declares the new interfaces.
    pub(super) fn declare_service(&self, cluster: &ClusterView, interfaces: &[InterfaceSpec]) {
        if let Some(own) = &self.homes.own {
            cluster.set_service(ServiceSpec::new(own.addresses.clone(), interfaces));
        }
    }

    /// Whether states of streams are sent to other nodes.
    pub(super) fn has_copier(&self) -> bool {
        self.homes.copier.is_some()
    }

    /// Opens the ports of a service's calls in advance.
    pub(crate) fn prepare(&mut self, preparing: Preparing) {
        let Preparing {
            service,
            interfaces,
            calls,
        } = preparing;
        self.close(&service);
        if let Err(error) = self.open_home(&service, &interfaces) {
            tracing::error!(service, %error, "cannot open ports");
            return;
        }
        let Some(home) = self.homes.interfaces_of(&service, &mut self.interfaces) else {
            return;
        };
        for state in calls {
            // If a call cannot be read or opened now, that is reported when it is to continue.
            let places = Calls::<LegPorts>::saved_ports(&state.0).unwrap_or_default();
            for (request, rtp, rtcp) in places {
                home.open_ahead(&request, rtp, rtcp);
            }
        }
    }

    /// Closes them again, because the calls do not come.
    pub(crate) fn unprepare(&mut self, service: &str) {
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.close_ahead();
        }
        if !self.homes.of.values().any(|of| of == service) {
            self.homes.guests.remove(service);
        }
    }

    /// Continues calls of a service.
    pub(crate) fn take(&mut self, taking: Taking) {
        let begun_ns = clock_now_ns();
        let Taking {
            service,
            interfaces,
            fence,
            calls,
            mut shadows,
            late_packets,
            is_first,
            is_last,
        } = taking;
        if is_first && let Err(error) = self.begin_service(&service, &interfaces, fence) {
            tracing::error!(service, %error, "cannot open ports: the service's calls are lost");
            return;
        }
        self.homes.late_packets = late_packets;
        let (mut gone_on, mut lost) = (Vec::with_capacity(calls.len()), 0_usize);
        let mut begun: Vec<StreamId> = Vec::new();
        for (process, state) in calls {
            let shadow = shadows.entry(process).or_default();
            match self.adopt(&service, process, &state, shadow) {
                Ok(Some((id, streams))) => {
                    gone_on.push(id);
                    begun.extend(streams);
                }
                // The call came before: from its previous node, and not from etcd.
                Ok(None) => {}
                Err(error) => {
                    lost += 1;
                    tracing::error!(service, error, "cannot continue a call");
                }
            }
        }
        self.media.begin_now(&begun);
        // Delivers packets of calls that arrived before.
        self.deliver_late_packets();
        for (stream, media) in self.media.take_heard() {
            self.calls.handle_media(begun_ns, stream, media);
        }
        // etcd can wait; parties cannot.
        gone_on.iter().for_each(|id| self.claim_adopted(id));
        if is_last {
            self.end_arrival(&service);
        }
        self.calls.handle_timeout(begun_ns);
        self.carry_out();
        saved_state::play_on(self);
        saved_state::save_changes(self);
        self.tell_room();
        let gone_on = gone_on.len();
        let ms = clock_now_ns().saturating_sub(begun_ns) / 1_000_000;
        if is_last {
            tracing::info!(service, calls = gone_on, lost, ms, "took over a service")
        } else {
            tracing::debug!(
                service,
                calls = gone_on,
                lost,
                ms,
                "took over calls of a service"
            )
        }
    }

    /// Prepares for the first calls of a service.
    fn begin_service(
        &mut self,
        service: &str,
        interfaces: &[InterfaceSpec],
        fence: Fence,
    ) -> Result<(), PortError> {
        let cluster = self.shared.as_ref().map(|shared| shared.cluster().clone());
        if let Some(Err(error)) = cluster.map(|cluster| self.start_copier(cluster)) {
            tracing::warn!(service, %error, "cannot send copies of the service's streams to other nodes");
        }
        // If it was here before, its ports are still open.
        self.close(service);
        self.open_home(service, interfaces)?;
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.set_fence(fence);
        }
        self.homes.came.clear();
        Ok(())
    }

    /// Finishes the arrival of a service; if it is this node's own, new calls use its addresses from now on.
    fn end_arrival(&mut self, service: &str) {
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.close_ahead();
        }
        if let Some(own) = self.homes.own.as_mut().filter(|own| own.name == service) {
            own.is_here = true;
        }
    }

    fn open_home(&mut self, service: &str, interfaces: &[InterfaceSpec]) -> Result<(), PortError> {
        if !self.homes.is_own(service) {
            let guest = match self.homes.guests.entry(service.to_owned()) {
                Entry::Occupied(guest) => {
                    let guest = guest.into_mut();
                    guest.change(interfaces)?;
                    guest
                }
                Entry::Vacant(place) => place.insert(Interfaces::new(interfaces)?),
            };
            guest.precede_addresses();
            self.refresh_policy();
        }
        Ok(())
    }

    fn adopt(
        &mut self,
        service: &str,
        process: u64,
        state: &Opaque,
        shadow: &mut Shadow,
    ) -> Result<Option<(CallId, Vec<StreamId>)>, String> {
        let interfaces = match self.homes.guests.get_mut(service) {
            Some(guest) => guest,
            None => &mut self.interfaces,
        };
        let adopted = self.calls.adopt(clock_now_ns(), &state.0, interfaces);
        let (id, numbers) = match adopted {
            Ok(adopted) => adopted,
            Err(SavedError::Known(id))
                if self.homes.of.get(&id).is_some_and(|of| of == service) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        let streams = numbers.iter().map(|(_, now)| *now).collect();
        for (before, now) in numbers {
            self.homes.came.insert((process, before.0), now);
            let copy: Option<StreamCopy> = shadow.remove(&before.0);
            match copy {
                Some(copy) => {
                    let late_packets = self.homes.late_packets.take(process, before.0);
                    self.media.expect(now, copy, late_packets);
                }
                None if self.needs_copy(now) => {
                    self.calls.leave(&id);
                    return Err(format!("{id}: {NO_COPY}"));
                }
                None => {}
            }
        }
        self.homes.of.insert(id.clone(), service.to_owned());
        self.carry_out();
        Ok(Some((id, streams)))
    }

    /// Whether a stream needs the copied state, because it is encrypted with its sender's numbers. From an unknown position, a
    /// number might be used twice under a key (RFC 3711, section 9.1). Other streams start with another SSRC.
    fn needs_copy(&self, stream: StreamId) -> bool {
        let spec = self.calls.stream(stream).map(|(_, spec)| spec);
        spec.is_some_and(|spec| {
            let is_encrypted = spec.sides.iter().any(|side| side.srtp.is_some());
            spec.kind == StreamKind::Packets && is_encrypted
        })
    }

    /// Gives up at most `most` calls of a service, in their current state. Their ports stay open.
    pub(crate) fn leave(&mut self, service: &str, most: usize) -> Leaving {
        if let Some(own) = self.homes.own.as_mut().filter(|own| own.name == service) {
            own.is_here = false;
        }
        let of_it = self.homes.of.iter().filter(|(_, of)| *of == service);
        let mut ids: Vec<CallId> = of_it.map(|(id, _)| id.clone()).collect();
        let is_last = ids.len() <= most;
        ids.truncate(most);
        if is_last {
            self.homes.guests.remove(service);
        }
        let mut calls = Vec::with_capacity(ids.len());
        let mut streams: Vec<StreamId> = Vec::new();
        for id in &ids {
            calls.extend(self.calls.export(id).map(Opaque));
            let left = self.calls.leave(id);
            left.iter().for_each(|stream| self.events.forget(*stream));
            streams.extend(left);
            self.events.leave(id);
            self.homes.of.remove(id);
            self.leave_claim(id);
        }
        let mut late_packets = None;
        let departed = self.homes.departed.entry(service.to_owned());
        let departed = departed.or_insert_with(|| {
            let (give, taken) = unbounded_channel();
            late_packets = Some(taken);
            Departed {
                handles: Vec::new(),
                late_packets: give,
            }
        });
        let HandedOver { states, handles } = self.media.hand_over(&streams, &departed.late_packets);
        departed.handles.extend(handles);
        self.tell_room();
        let states = states.into_iter();
        Leaving {
            calls,
            streams: states
                .map(|(stream, state)| (stream.0, Opaque(state)))
                .collect(),
            late_packets,
            is_last,
        }
    }

    /// Closes the ports of a service's calls that were given up.
    pub(crate) fn close(&mut self, service: &str) {
        let departed = self.homes.departed.remove(service);
        for handle in departed.into_iter().flat_map(|departed| departed.handles) {
            // The call is gone when this returns, so its ports can be opened again.
            handle.remove();
        }
    }

    /// Delivers late packets from the node that carried the streams before.
    pub(crate) fn deliver_late_packets(&self) {
        for (process, before) in self.homes.late_packets.streams() {
            let Some(stream) = self.homes.came.get(&(process, before)) else {
                continue;
            };
            let late_packets = self.homes.late_packets.take(process, before);
            self.media.deliver(*stream, late_packets);
        }
    }
}

const NO_COPY: &str = "the position of its SRTP streams is unknown, as two nodes have ended";
const AWAY: &str = "the addresses of this node's calls are not here ([cluster] service-addresses)";
