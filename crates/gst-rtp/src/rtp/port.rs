//! One socket pair for many sessions: one agent reads it in batches and looks up each packet's session.
//!
//! Sources on the same port with different SSRC or sender filters share it. The port's agent puts a packet into its source's
//! mailbox. The source's own context thread empties the mailbox, all packets of a slice at once.
//!
//! | field | threads |
//! |---|---|
//! | `routes` | the port's thread, for each batch; any thread that adds or removes a source; under its lock |
//! | `Mailbox` | the port's thread adds, the source's thread takes; under its lock |

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::Waker;

use gst_net::gio::prelude::{SocketConnectableExt, SocketExt};
use slab::Slab;
use threadbare_rtp::demux::{Demux, DemuxError, Filter, Lookup};
use threadbare_rtp::id::{PayloadType, Ssrc};
use threadbare_rtp::packet::{Packet, is_rtcp};
use threadbare_runtime::{Agent, AgentHandle, Cx, Ready, Shard};

use super::identity::{address_of, seed, sender_of};
use super::session::{Readers, RtpSession, SocketSettings, Sockets};
use crate::kit::context::Place;
use crate::kit::lock;
use crate::kit::receive::{Datagram, Read, Reader, Wants};

/// A port that several sources receive on.
pub(super) struct SharedPort {
    settings: SocketSettings,
    sockets: Arc<Sockets>,
    routes: Mutex<Routes>,
    agent: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    users: u32,
    agent: Option<(AgentHandle<PortAgent>, Place)>,
}

struct Routes {
    table: Demux<usize>,
    routes: Slab<Route>,
    unmatched: u64,
    malformed: u64,
}

struct Route {
    mailbox: Arc<Mailbox>,
    session: Arc<RtpSession>,
}

/// A source's received packets.
#[derive(Default)]
pub(super) struct Mailbox(Mutex<Mail>);

#[derive(Default)]
struct Mail {
    datagrams: Vec<Datagram>,
    /// Waker of the source's agent, while the source receives.
    waker: Option<Waker>,
    overflowed: u64,
}

/// A source's place on a shared port; dropping it removes the source.
pub(super) struct Tenancy {
    port: Arc<SharedPort>,
    filter: Filter,
    mailbox: Arc<Mailbox>,
}

/// Packets that did not reach a source.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortStats {
    /// Packets without a source on this port.
    pub(super) unmatched: u64,
    /// Packets that are not RTP.
    pub(super) malformed: u64,
    /// Packets dropped because the source's mailbox was full.
    pub(super) overflowed: u64,
}

/// Why a source cannot share a port.
#[derive(Debug, thiserror::Error)]
pub(super) enum PortError {
    #[error(transparent)]
    Socket(#[from] crate::kit::socket::SocketError),
    #[error(
        "another source shares port {port} with different settings: address, rtcp-port, rtcp-mux, reuse and buffer-size must be the same"
    )]
    Settings { port: u16 },
    #[error("cannot receive on the shared port with this `ssrc` and `from`: {0}")]
    Filter(#[from] DemuxError),
}

impl From<PortError> for gst::ErrorMessage {
    fn from(error: PortError) -> Self {
        gst::error_msg!(gst::ResourceError::OpenRead, ["{error}"])
    }
}

impl SharedPort {
    /// Adds a source that receives packets matching `filter`.
    pub(super) fn rent(
        settings: &SocketSettings,
        filter: Filter,
        session: &Arc<RtpSession>,
    ) -> Result<Tenancy, PortError> {
        let port = SharedPort::find_or_open(settings)?;
        let mailbox = Arc::<Mailbox>::default();
        {
            let mut routes = lock(&port.routes);
            let entry = routes.routes.vacant_key();
            routes.table.add(filter, entry)?;
            routes.routes.insert(Route {
                mailbox: mailbox.clone(),
                session: session.clone(),
            });
        }
        Ok(Tenancy {
            port,
            filter,
            mailbox,
        })
    }

    fn find_or_open(settings: &SocketSettings) -> Result<Arc<SharedPort>, PortError> {
        let mut ports = lock(&PORTS);
        ports.retain(|port| port.strong_count() > 0);
        let same_port = ports.iter().filter_map(Weak::upgrade).find(|port| {
            port.settings.port == settings.port && port.settings.address == settings.address
        });
        match same_port {
            Some(port) if port.settings == *settings => return Ok(port),
            Some(port) if settings.port > 0 => {
                return Err(PortError::Settings {
                    port: port.settings.port,
                });
            }
            _ => {}
        }
        let sockets = Sockets::open(settings, Readers::Port)?;
        let port = Arc::new(SharedPort {
            // If the settings request any free port, these name the port that was found, so that other sources can name it, too.
            settings: SocketSettings {
                port: sockets.rtp.port(),
                ..settings.clone()
            },
            sockets: Arc::new(sockets),
            routes: Mutex::new(Routes {
                table: Demux::new(None, seed()),
                routes: Slab::new(),
                unmatched: 0,
                malformed: 0,
            }),
            agent: Mutex::default(),
        });
        ports.push(Arc::downgrade(&port));
        Ok(port)
    }
}

impl Tenancy {
    pub(super) fn sockets(&self) -> &Arc<Sockets> {
        &self.port.sockets
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Returns the number of packets dropped by the port and by this source's mailbox.
    pub(super) fn port_stats(&self) -> PortStats {
        let routes = lock(&self.port.routes);
        PortStats {
            unmatched: routes.unmatched,
            malformed: routes.malformed,
            overflowed: lock(&self.mailbox.0).overflowed,
        }
    }

    /// Reads the port on the thread of `place`, as long as one of its sources runs. If another thread already reads the port,
    /// nothing changes.
    pub(super) fn start(&self, place: &Place, mtu: u32) -> Result<(), gst::ErrorMessage> {
        let mut running = lock(&self.port.agent);
        if running.agent.is_none() {
            let agent = PortAgent::new(&place.shard, self.port.clone(), mtu);
            let handle = place
                .shard
                .call(move |local| local.add_agent(agent))
                .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
            handle.command(PortAgent::start);
            running.agent = Some((handle, place.clone()));
        }
        running.users += 1;
        Ok(())
    }

    pub(super) fn stop(&self) {
        let agent = {
            let mut running = lock(&self.port.agent);
            running.users = running.users.saturating_sub(1);
            match running.users {
                0 => running.agent.take(),
                _ => None,
            }
        };
        if let Some((agent, place)) = agent {
            agent.remove();
            drop(place);
        }
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let mut routes = lock(&self.port.routes);
        if let Some(entry) = routes.table.remove(&self.filter) {
            routes.routes.try_remove(entry);
        }
    }
}

impl Mailbox {
    /// Sets the waker for later arrivals.
    pub(super) fn open(&self, waker: Waker) {
        lock(&self.0).waker = Some(waker);
    }

    pub(super) fn close(&self) {
        let mut mail = lock(&self.0);
        mail.waker = None;
        mail.datagrams.clear();
    }

    /// Takes all packets into `room`, which must be empty. The mailbox uses the memory of `room` for the next packets.
    #[inline]
    pub(super) fn take(&self, room: &mut Vec<Datagram>) {
        std::mem::swap(&mut lock(&self.0).datagrams, room);
    }

    #[inline]
    fn put(&self, datagram: Datagram) {
        let mut mail = lock(&self.0);
        let Some(waker) = &mail.waker else {
            return datagram.buffer.release();
        };
        if mail.datagrams.is_empty() {
            waker.wake_by_ref();
        }
        if mail.datagrams.len() >= MAIL_MAX {
            mail.overflowed += 1;
            return datagram.buffer.release();
        }
        mail.datagrams.push(datagram);
    }
}

/// Reads the port on a context's thread.
struct PortAgent {
    port: Arc<SharedPort>,
    rtp: Reader,
    rtcp: Option<Reader>,
}

impl PortAgent {
    fn new(shard: &Shard, port: Arc<SharedPort>, mtu: u32) -> PortAgent {
        let sockets = &port.sockets;
        let wants = Wants {
            time: true,
            sender: true,
        };
        PortAgent {
            rtp: Reader::shared(shard, sockets.rtp.clone(), mtu, wants),
            rtcp: sockets
                .rtcp
                .as_ref()
                .map(|udp| Reader::shared(shard, udp.clone(), mtu, wants)),
            port,
        }
    }

    fn start(&mut self, cx: &mut Cx<'_>) {
        let readers = [(RTP, Some(&mut self.rtp)), (RTCP, self.rtcp.as_mut())];
        for (key, reader) in readers {
            if let Some(reader) = reader
                && let Err(error) = reader.watch(cx, key)
            {
                gst::warning!(crate::kit::CAT, "cannot watch a shared port: {error}");
            }
        }
    }

    fn receive_rtp(&mut self, cx: &mut Cx<'_>) {
        self.rtp.begin(cx, Ready::Io(RTP));
        let mut routes = lock(&self.port.routes);
        loop {
            match self.rtp.next(cx) {
                Read::Datagram(datagram) => routes.deliver(cx.now_ns(), datagram),
                Read::Again | Read::NetworkError => {}
                Read::Idle => return,
                Read::Failed(error) => {
                    gst::warning!(crate::kit::CAT, "cannot receive on a shared port: {error}");
                    return;
                }
            }
        }
    }

    fn receive_rtcp(&mut self, cx: &mut Cx<'_>) {
        let Some(reader) = &mut self.rtcp else { return };
        reader.begin(cx, Ready::Io(RTCP));
        loop {
            match reader.next(cx) {
                Read::Datagram(mut datagram) => {
                    let from = address_of(&datagram.from);
                    let len = datagram.received.len;
                    let bytes = &datagram.buffer.data()[..len];
                    let session = lock(&self.port.routes).session_of(cx.now_ns(), from, bytes);
                    if let Some(session) = session {
                        session.handle_rtcp_muxed(datagram.arrival_ns, from, bytes);
                    }
                    datagram.buffer.release();
                }
                Read::Again | Read::NetworkError => {}
                Read::Idle | Read::Failed(_) => return,
            }
        }
    }
}

impl Agent for PortAgent {
    fn label(&self) -> String {
        let address = self.port.sockets.rtp.socket().local_address();
        address.map_or_else(
            |_| "shared port".to_owned(),
            |address| format!("shared port {}", SocketConnectableExt::to_string(&address)),
        )
    }

    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        match ready {
            Ready::Io(RTP) => self.receive_rtp(cx),
            Ready::Io(_) => self.receive_rtcp(cx),
            Ready::Timer | Ready::Woken => {}
        }
    }
}

impl Routes {
    #[inline]
    fn deliver(&mut self, now_ns: u64, mut datagram: Datagram) {
        let from = address_of(&datagram.from);
        let bytes = &datagram.buffer.data()[..datagram.received.len];
        let route = if is_rtcp(bytes) {
            // With rtcp-mux, the source handles the RTCP.
            self.find_rtcp(now_ns, from, bytes)
        } else {
            match Packet::parse(bytes) {
                Ok(packet) => self.find(now_ns, from, packet.ssrc(), packet.payload_type()),
                Err(_) => {
                    self.malformed += 1;
                    return datagram.buffer.release();
                }
            }
        };
        match route.and_then(|route| self.routes.get(route)) {
            Some(route) => route.mailbox.put(datagram),
            None => {
                self.unmatched += 1;
                datagram.buffer.release();
            }
        }
    }

    #[inline]
    fn find(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        ssrc: Ssrc,
        payload_type: PayloadType,
    ) -> Option<usize> {
        match self.table.lookup(now_ns, from, ssrc, payload_type) {
            Lookup::Route(route) => Some(route),
            Lookup::Stranger | Lookup::Probation | Lookup::Unmatched => None,
        }
    }

    /// Finds the source for an RTCP packet. RTCP has its sender's SSRC, and comes from the RTP address or from the port after it
    /// (RFC 3550, section 11).
    fn find_rtcp(&mut self, now_ns: u64, from: SocketAddr, bytes: &[u8]) -> Option<usize> {
        let ssrc = sender_of(bytes)?;
        let any = PayloadType(0);
        self.find(now_ns, from, ssrc, any).or_else(|| {
            let mut rtp = from;
            rtp.set_port(from.port().checked_sub(1)?);
            self.find(now_ns, rtp, ssrc, any)
        })
    }

    fn session_of(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<Arc<RtpSession>> {
        let route = self.find_rtcp(now_ns, from, bytes)?;
        Some(self.routes.get(route)?.session.clone())
    }
}

static PORTS: LazyLock<Mutex<Vec<Weak<SharedPort>>>> = LazyLock::new(Mutex::default);

const RTP: u8 = 0;
const RTCP: u8 = 1;
/// Maximum number of packets queued for a source: more than a second of one stream. It is reached only if the source's thread is
/// blocked.
const MAIL_MAX: usize = 128;
