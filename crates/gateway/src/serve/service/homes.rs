//! The services of this node: the addresses of its own calls, and those of calls that it has taken over.
//!
//! A call belongs to one of them, and its ports are opened at that one's interfaces.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use threadbare_control::calls::{CallId, Calls, SavedError, StreamId, StreamKind};
use threadbare_relay::{CallHandle, Fence, LegPorts, Medium, PortError};
use threadbare_runtime::clock_now_ns;
use tokio::sync::mpsc::unbounded_channel;

use super::Service;
use crate::cluster::{
    ClusterView, Leaving, Opaque, Preparing, ServiceSpec, Shadow, StrayBox, StreamCopy, Taking,
};
use crate::config::{InterfaceSpec, ServiceAddress};
use crate::serve::interfaces::Interfaces;
use crate::serve::media::{HandedOver, StrayGiver};
use crate::serve::store::{Before, Copier};

/// Services of a node in a cluster. `None` of it: its addresses stay where they are.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// Its own, if it has one.
    own: Option<Own>,
    /// Those of other nodes that are here, and their interfaces.
    guests: BTreeMap<String, Interfaces>,
    /// The service of each call that has one.
    of: HashMap<CallId, String>,
    /// Streams of services that other nodes have had from here: their ports stay open.
    departed: HashMap<String, Departed>,
    /// The streams that came with a service, by the process and the number that they had there.
    came: HashMap<(u64, u64), StreamId>,
    /// What still comes for them elsewhere.
    strays: StrayBox,
    copier: Option<Copier>,
}

/// What is left of a service that another node has, or is about to have.
#[derive(Debug)]
struct Departed {
    handles: Vec<CallHandle<Medium>>,
    /// Takes what still comes.
    strays: StrayGiver,
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

    /// The service of a call, with those that are made here.
    pub(super) fn of(&mut self, call: &CallId) -> Option<&str> {
        let own = self.own.as_ref().filter(|own| own.is_here);
        if let Some(own) = own
            && !self.of.contains_key(call)
        {
            self.of.insert(call.clone(), own.name.clone());
        }
        self.of.get(call).map(String::as_str)
    }

    /// Whether it has one: then its state is in etcd.
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

    /// Closes ports that no call has wanted for a while.
    pub(super) fn close_unwanted(&self) {
        self.guests.values().for_each(Interfaces::close_unwanted);
    }

    /// The interfaces of guests.
    pub(super) fn specs(&self) -> impl Iterator<Item = &InterfaceSpec> {
        self.guests.values().flat_map(Interfaces::specs)
    }

    /// Whether this is the address of a port of a guest's call.
    pub(super) fn has_port_in_use(&self, at: std::net::SocketAddr) -> bool {
        let mut guests = self.guests.values();
        guests.any(|guest| guest.has_port_in_use(at))
    }

    /// Whether ports of guests are in use, or rest.
    pub(super) fn are_used(&self) -> bool {
        self.guests.values().any(Interfaces::are_used)
    }

    /// Where the calls of a service have their ports, should it be here.
    fn interfaces_of<'a>(
        &'a mut self,
        service: &str,
        own: &'a mut Interfaces,
    ) -> Option<&'a mut Interfaces> {
        match self.is_own(service) {
            true => Some(own),
            false => self.guests.get_mut(service),
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.own.as_ref().is_some_and(|own| own.name == name)
    }
}

impl Service {
    /// Calls are taken from nodes that end, and given to others. `addresses`: of this node's own calls. To be called when calls are shared.
    ///
    /// # Errors
    /// Threads run out.
    pub(in crate::serve) fn keep_in_cluster(
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

    /// From now on, states of streams are sent to the nodes that would go on with them. A node that keeps the calls of its own in a file has them there.
    fn start_copier(&mut self, cluster: ClusterView) -> std::io::Result<()> {
        if self.store.is_none() && self.homes.copier.is_none() {
            let copier = Copier::start(cluster)?;
            let saved = HashMap::new();
            self.media
                .keep_states(copier.shelf().clone(), Before::Died, saved);
            self.homes.copier = Some(copier);
        }
        Ok(())
    }

    /// The interfaces are these now.
    pub(super) fn declare_service(&self, cluster: &ClusterView, interfaces: &[InterfaceSpec]) {
        if let Some(own) = &self.homes.own {
            cluster.set_service(ServiceSpec::new(own.addresses.clone(), interfaces));
        }
    }

    /// Whether states of streams are sent to other nodes.
    pub(super) fn has_copier(&self) -> bool {
        self.homes.copier.is_some()
    }

    /// Opens the ports of a service's calls, which may come.
    pub(in crate::serve) fn prepare(&mut self, preparing: Preparing) {
        let Preparing {
            service,
            interfaces,
            calls,
        } = preparing;
        self.close(&service);
        if let Err(error) = self.open_home(&service, &interfaces) {
            tracing::error!(service, %error, "no ports can be opened");
            return;
        }
        let Some(home) = self.homes.interfaces_of(&service, &mut self.interfaces) else {
            return;
        };
        for state in calls {
            // What cannot be read or opened now is told when the call is to go on.
            let places = Calls::<LegPorts>::saved_ports(&state.0).unwrap_or_default();
            for (request, rtp, rtcp) in places {
                home.open_ahead(&request, rtp, rtcp);
            }
        }
    }

    /// They do not come.
    pub(in crate::serve) fn unprepare(&mut self, service: &str) {
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.close_ahead();
        }
        if !self.homes.of.values().any(|of| of == service) {
            self.homes.guests.remove(service);
        }
    }

    /// Goes on with calls of a service.
    pub(in crate::serve) fn take(&mut self, taking: Taking) {
        let begun_ns = clock_now_ns();
        let Taking {
            service,
            interfaces,
            fence,
            calls,
            mut shadows,
            strays,
            is_first,
            is_last,
        } = taking;
        if is_first && let Err(error) = self.begin_service(&service, &interfaces, fence) {
            tracing::error!(service, %error, "no ports can be opened: its calls do not go on");
            return;
        }
        self.homes.strays = strays;
        let (mut gone_on, mut lost) = (Vec::with_capacity(calls.len()), 0_usize);
        let mut begun: Vec<StreamId> = Vec::new();
        for (process, state) in calls {
            let shadow = shadows.entry(process).or_default();
            match self.adopt(&service, process, &state, shadow) {
                Ok(Some((id, streams))) => {
                    gone_on.push(id);
                    begun.extend(streams);
                }
                // It has come before: from the node that had it, and not from etcd.
                Ok(None) => {}
                Err(error) => {
                    lost += 1;
                    tracing::error!(service, error, "a call does not go on");
                }
            }
        }
        self.media.begin_now(&begun);
        // For those that went on before.
        self.deliver_strays();
        for (stream, media) in self.media.take_heard() {
            self.calls.handle_media(begun_ns, stream, media);
        }
        // etcd can wait, and parties cannot.
        gone_on.iter().for_each(|id| self.claim_adopted(id));
        if is_last {
            self.end_arrival(&service);
        }
        self.calls.handle_timeout(begun_ns);
        self.carry_out();
        self.play_on();
        self.keep_states();
        self.tell_room();
        let gone_on = gone_on.len();
        let ms = clock_now_ns().saturating_sub(begun_ns) / 1_000_000;
        match is_last {
            true => tracing::info!(service, calls = gone_on, lost, ms, "a service is here"),
            false => tracing::debug!(
                service,
                calls = gone_on,
                lost,
                ms,
                "calls of a service are here"
            ),
        }
    }

    /// Before the first calls of a service.
    fn begin_service(
        &mut self,
        service: &str,
        interfaces: &[InterfaceSpec],
        fence: Fence,
    ) -> Result<(), PortError> {
        let cluster = self.shared.as_ref().map(|shared| shared.cluster().clone());
        if let Some(Err(error)) = cluster.map(|cluster| self.start_copier(cluster)) {
            tracing::warn!(service, %error, "no copies of its streams are sent to other nodes");
        }
        // It may have been here before: then its ports are still open.
        self.close(service);
        self.open_home(service, interfaces)?;
        if let Some(home) = self.homes.interfaces_of(service, &mut self.interfaces) {
            home.set_fence(fence);
        }
        self.homes.came.clear();
        Ok(())
    }

    /// Behind the last calls of a service: others are made with its addresses, if it is this node's own.
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
                    let strays = self.homes.strays.take(process, before.0);
                    self.media.expect(now, copy, strays);
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

    /// Whether a stream is encrypted with the numbers of its sender: from an unknown place on, one would be used twice under a key (RFC 3711, section 9.1).
    /// Of others, our own numbers begin anew, with another SSRC.
    fn needs_copy(&self, stream: StreamId) -> bool {
        let spec = self.calls.stream(stream).map(|(_, spec)| spec);
        spec.is_some_and(|spec| {
            let is_encrypted = spec.sides.iter().any(|side| side.srtp.is_some());
            spec.kind == StreamKind::Packets && is_encrypted
        })
    }

    /// Leaves calls of a service as they are, at most so many. Their ports stay open.
    pub(in crate::serve) fn leave(&mut self, service: &str, most: usize) -> Leaving {
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
        let mut strays = None;
        let departed = self.homes.departed.entry(service.to_owned());
        let departed = departed.or_insert_with(|| {
            let (give, taken) = unbounded_channel();
            strays = Some(taken);
            Departed {
                handles: Vec::new(),
                strays: give,
            }
        });
        let HandedOver { states, handles } = self.media.hand_over(&streams, &departed.strays);
        departed.handles.extend(handles);
        self.tell_room();
        let states = states.into_iter();
        Leaving {
            calls,
            streams: states
                .map(|(stream, state)| (stream.0, Opaque(state)))
                .collect(),
            strays,
            is_last,
        }
    }

    /// Closes the ports of a service's calls that were left.
    pub(in crate::serve) fn close(&mut self, service: &str) {
        let departed = self.homes.departed.remove(service);
        for handle in departed.into_iter().flat_map(|departed| departed.handles) {
            // Gone when it returns: they may be opened anew.
            handle.remove();
        }
    }

    /// What has come for streams to the node that carried them before.
    pub(in crate::serve) fn deliver_strays(&self) {
        for (process, before) in self.homes.strays.streams() {
            let Some(stream) = self.homes.came.get(&(process, before)) else {
                continue;
            };
            let strays = self.homes.strays.take(process, before);
            self.media.deliver(*stream, strays);
        }
    }
}

const NO_COPY: &str =
    "nobody knows how far the numbers of its SRTP streams were, as two nodes have ended";
const AWAY: &str = "the addresses of this node's calls are not here ([cluster] service-addresses)";
