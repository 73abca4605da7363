//! The services that this node carries: its own service, and those that it has taken over from other nodes.
//!
//! A service is a set of addresses and the calls that use them. It moves between nodes as a whole. Each call belongs to one
//! service, and opens its ports at the interfaces of that service.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use threadbare_control::calls::{CallId, Calls, SavedError, StreamId, StreamKind};
use threadbare_control::saved::Reader;
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

/// The services that a node of a cluster carries or has just given up.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// The node's own service, if it has one.
    own: Option<Own>,
    /// Services of other nodes that this node has taken over, with their interfaces.
    guests: BTreeMap<String, Interfaces>,
    /// The service of each call.
    of: HashMap<CallId, String>,
    /// Services that moved to other nodes. Their streams' ports stay open for a while.
    departed: HashMap<String, Departed>,
    /// Streams that came here with a service. The key consists of the previous process and the stream's number there.
    came: HashMap<(u64, u64), StreamId>,
    /// Late packets for these streams, which the previous node sends.
    late_packets: LatePacketBox,
    copier: Option<Copier>,
}

/// What is left of a service that this node has given up.
#[derive(Debug)]
struct Departed {
    handles: Vec<CallHandle<MediaSession>>,
    /// The sender for late packets that arrive at the open ports.
    late_packets: LatePacketSender,
}

#[derive(Debug)]
struct Own {
    name: String,
    addresses: Vec<ServiceAddress>,
    is_here: bool,
}

impl Homes {
    /// Returns the reason why no new calls can be made now. `None`: they can be made.
    pub(super) fn away(&self) -> Option<&'static str> {
        let own = self.own.as_ref()?;
        (!own.is_here).then_some(AWAY)
    }

    /// Returns the service of a call. A new call belongs to this node's own service.
    pub(super) fn of(&mut self, call: &CallId) -> Option<&str> {
        let own = self.own.as_ref().filter(|own| own.is_here);
        if let Some(own) = own
            && !self.of.contains_key(call)
        {
            self.of.insert(call.clone(), own.name.clone());
        }
        self.of.get(call).map(String::as_str)
    }

    /// Whether a call belongs to a service. The states of such calls are in etcd.
    pub(super) fn has(&self, call: &CallId) -> bool {
        self.of.contains_key(call)
    }

    pub(super) fn forget(&mut self, call: &CallId) {
        self.of.remove(call);
    }

    /// Returns the interfaces that a call uses, if it was taken over.
    pub(super) fn interfaces(&mut self, call: &CallId) -> Option<&mut Interfaces> {
        self.guests.get_mut(self.of.get(call)?)
    }

    /// Closes idle ports that no call has reused for a while.
    pub(super) fn close_unwanted(&self) {
        self.guests.values().for_each(Interfaces::close_unwanted);
    }

    /// Returns the interfaces of the services that were taken over.
    pub(super) fn specs(&self) -> impl Iterator<Item = &InterfaceSpec> {
        self.guests.values().flat_map(Interfaces::specs)
    }

    /// Whether a call that was taken over uses this address.
    pub(super) fn has_port_in_use(&self, at: std::net::SocketAddr) -> bool {
        let mut guests = self.guests.values();
        guests.any(|guest| guest.has_port_in_use(at))
    }

    /// Whether ports of services that were taken over are in use, or in quarantine.
    pub(super) fn are_used(&self) -> bool {
        self.guests.values().any(Interfaces::are_used)
    }

    /// Returns the interfaces for the calls of a service. `own` are the interfaces of this node's own service.
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
    /// Lets this node take over the calls of nodes that end, and hand its calls to other nodes. `addresses` are those of this node's own
    /// service. Call this after [`share`](Self::share).
    ///
    /// # Errors
    /// Fails if threads run out.
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

    /// Starts to send the states of streams to the nodes that would take over the streams. Does nothing if this node has a state file.
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

    /// Declares the interfaces of this node's own service to the cluster.
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
            tracing::error!(service, %error, "cannot open the ports of a service");
            return;
        }
        let Some(home) = self.homes.interfaces_of(&service, &mut self.interfaces) else {
            return;
        };
        for state in calls {
            // Errors are ignored here, because `take` reports them.
            let places = Calls::<LegPorts>::saved_ports(&state.0).unwrap_or_default();
            for (request, rtp, rtcp) in places {
                home.open_ahead(&request, rtp, rtcp);
            }
        }
    }

    /// Closes the ports that were opened in advance, because the service will not come after all.
    pub(crate) fn unprepare(&mut self, service: &str) {
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.close_ahead();
        }
        if !self.homes.of.values().any(|of| of == service) {
            self.homes.guests.remove(service);
        }
    }

    /// Takes over calls of a service.
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
            tracing::error!(service, %error, "cannot open the ports of a service, so its calls are lost");
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
                // The call is here already. The previous node handed it over directly, and etcd has it too.
                Ok(None) => {}
                Err(error) => {
                    lost += 1;
                    tracing::error!(service, error, "cannot continue a call of a service");
                }
            }
        }
        self.media.begin_now(&begun);
        // These are late packets for calls that came with an earlier `take`.
        self.deliver_late_packets();
        for (stream, media) in self.media.take_heard() {
            self.calls.handle_media(begun_ns, stream, media);
        }
        // Claim the calls only at the end, because their parties must not wait for etcd.
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
            tracing::info!(
                service,
                calls = gone_on,
                lost,
                ms,
                "took over all calls of a service"
            )
        } else {
            tracing::debug!(
                service,
                calls = gone_on,
                lost,
                ms,
                "took over some calls of a service"
            )
        }
    }

    /// Prepares the interfaces of a service before its first calls are taken over.
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
        // If the service was here before, its old ports may still be open.
        self.close(service);
        self.open_home(service, interfaces)?;
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.set_fence(fence);
        }
        self.homes.came.clear();
        Ok(())
    }

    /// Finishes taking over a service. If it is this node's own service, new calls use its addresses from now on.
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

    /// Whether a stream cannot continue without its state. This is the case if packets are encrypted with the numbers of their sender. If
    /// the last number were unknown, one might be used twice with the same key (RFC 3711, section 9.1). All other streams can continue with
    /// another SSRC.
    fn needs_copy(&self, stream: StreamId) -> bool {
        let spec = self.calls.stream(stream).map(|(_, spec)| spec);
        spec.is_some_and(|spec| {
            let is_encrypted = spec.sides.iter().any(|side| side.srtp.is_some());
            spec.kind == StreamKind::Packets && is_encrypted
        })
    }

    /// Gives up at most `most` calls of a service, and returns their states. The ports of the calls stay open.
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
            calls.extend(self.calls.export(id, Reader::Node).map(Opaque));
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

    /// Closes the ports that stayed open when a service's calls were given up.
    pub(crate) fn close(&mut self, service: &str) {
        let departed = self.homes.departed.remove(service);
        for handle in departed.into_iter().flat_map(|departed| departed.handles) {
            // Removing waits until the media session is gone, so that its ports can be opened again.
            handle.remove();
        }
    }

    /// Delivers the late packets that the previous node of the streams has sent.
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

const NO_COPY: &str =
    "the position of the call's SRTP streams is unknown, because two nodes have ended";
const AWAY: &str =
    "another node has the service addresses of this node ([cluster] service-addresses)";
