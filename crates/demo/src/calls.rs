//! The demo's two-way calls on the relay: party A of each call uses PCMU, and party B uses PCMA.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use miette::{IntoDiagnostic, miette};
use threadbare_relay::{AudioSession, CallHandle, Engine, LegPorts, Settings};
use threadbare_rtp::call::{DirectionConfig, Session, SessionSpec};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::id::{NtpTime, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{AdmissionConfig, Destination, Learn, LegConfig, Payload, PayloadMap};
use threadbare_rtp::session::Profile;
use threadbare_runtime::clock_now_ns;

use threadbare_process::system::{random_number, unix_at_zero_ns};

use super::caller::PCMU;
use super::parties::{PARTIES_PER_SOCKET, other_party, parties_of};
use super::{DemoArgs, FIRST_SSRC, PCMA, Ports};

/// All calls, with their contexts. Dropping this value ends each call with a BYE.
pub(super) struct Calls {
    handles: Vec<CallHandle<AudioSession>>,
    _engines: Vec<Engine<AudioSession>>,
}

impl Calls {
    /// Starts contexts and calls. `party_ports` are the ports of the parties' sockets.
    pub(super) fn start(
        args: &DemoArgs,
        ports: Ports,
        party_ports: &[u16],
    ) -> miette::Result<Calls> {
        let slice = Duration::from_millis(args.wait.into());
        let engines = (0..args.contexts).map(|index| {
            let mut settings = Settings::new(&format!("demo-{index}"));
            settings.threads.wait = slice;
            Engine::new(settings)
        });
        let engines = engines.collect::<Result<Vec<_>, _>>().into_diagnostic()?;
        let maker = Maker::new(args, ports, party_ports)?;
        let mut handles = Vec::new();
        for first in (0..parties_of(args.streams.into())).step_by(2) {
            let config = SessionSpec::call(
                [maker.leg(first)?, maker.leg(first + 1)?],
                [maker.direction(first), maker.direction(first + 1)],
            );
            let legs = vec![maker.ports(first)?, maker.ports(first + 1)?];
            let call = Session::new(clock_now_ns(), config).into_diagnostic()?;
            let mut call = AudioSession::new(call, slice);
            if !args.no_meter {
                call = call.metered();
            }
            let engine = &engines[first / 2 % engines.len()];
            let label = format!("call-{}", first / 2);
            handles.push(engine.create(label, legs, call).into_diagnostic()?);
        }
        // If the last call on a context has had its first slice, the other calls on this context have had theirs too.
        for handle in handles.iter().rev().take(engines.len()) {
            handle.stats().wait().into_diagnostic()?;
        }
        Ok(Calls {
            handles,
            _engines: engines,
        })
    }

    /// Returns the number of RTCP packets of the parties that the gateway could not parse.
    pub(super) fn rtcp_errors(&self) -> u64 {
        let of_call = |call: &CallHandle<AudioSession>| {
            let stats = call.with(|call, _| call.session().stats()).wait();
            stats.map_or(0, |stats| {
                let legs = stats.legs.iter();
                legs.map(|leg| leg.session.rtcp_errors.total()).sum()
            })
        };
        self.handles.iter().map(of_call).sum()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        for handle in &self.handles {
            // This fails if the call no longer exists. In that case it needs no BYE.
            let _ = handle.command(|call, now_ns| call.session_mut().leave(now_ns, ""));
        }
        for handle in self.handles.drain(..) {
            drop(handle.remove());
        }
    }
}

/// Creates the legs of the parties.
struct Maker<'a> {
    ports: Ports,
    party_ports: &'a [u16],
    latency_ns: u64,
    /// Payload maps of a party that uses PCMU, and of one that uses PCMA.
    payloads: [Arc<PayloadMap>; 2],
    cname: Arc<str>,
    ntp_at_zero: NtpTime,
    seed: u64,
}

impl Maker<'_> {
    fn new<'a>(args: &DemoArgs, ports: Ports, party_ports: &'a [u16]) -> miette::Result<Maker<'a>> {
        let [a, b] = [(PCMU, Encoding::Pcmu), (PCMA, Encoding::Pcma)].map(|(number, encoding)| {
            let format = Format::new(encoding, 8000, 1).into_diagnostic()?;
            let map = PayloadMap::new(&[Payload::audio(number, format)]);
            map.map(Arc::new).into_diagnostic()
        });
        let seed = random_number();
        Ok(Maker {
            ports,
            party_ports,
            latency_ns: u64::from(args.latency_ms()) * 1_000_000,
            payloads: [a?, b?],
            cname: format!("{seed:016x}").into(),
            ntp_at_zero: NtpTime::at_unix_ns(unix_at_zero_ns()),
            seed,
        })
    }

    /// Creates the leg that receives from party number `party` and sends to it.
    fn leg(&self, party: usize) -> miette::Result<LegConfig> {
        let port = self.party_ports.get(party / PARTIES_PER_SOCKET);
        let port = port.ok_or_else(|| miette!("cannot find the socket of party {party}"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        Ok(LegConfig {
            // The leg sends the stream of the other party.
            ssrc: Ssrc(FIRST_SSRC + other_party(party) as u32),
            first_seq: SeqNum(u16::MAX - (party % 64) as u16),
            cname: self.cname.clone(),
            seed: self.seed.wrapping_add(party as u64),
            ntp_at_zero: self.ntp_at_zero,
            payloads: self.payloads[party % 2].clone(),
            takes: None,
            jitter: jitter::Config::new(8000, self.latency_ns),
            admission: AdmissionConfig {
                peer: Some(address),
                learn: Learn::Never,
                ..AdmissionConfig::default()
            },
            // RTCP goes to the parties' RTP port, where it cannot overtake RTP.
            destination: Destination::Fixed {
                rtp: address,
                rtcp: Some(address),
            },
            mux: self.ports.rtcp_offset == Some(0),
            bandwidth_bps: BANDWIDTH_BPS,
            profile: Profile::Avp,
        })
    }

    fn direction(&self, party: usize) -> DirectionConfig {
        DirectionConfig {
            first_time: RtpTime(u32::MAX - party as u32),
            ..DirectionConfig::default()
        }
    }

    fn ports(&self, party: usize) -> miette::Result<LegPorts> {
        let Ports {
            first,
            step,
            rtcp_offset,
        } = self.ports;
        let at = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let port = first + party as u16 * step;
        let rtcp = rtcp_offset.filter(|offset| *offset > 0);
        LegPorts::open(at(port), rtcp.map(|offset| at(port + offset))).into_diagnostic()
    }
}

/// Bandwidth of a call's audio with headers. RTCP gets a twentieth of it (RFC 3550, section 6.2).
const BANDWIDTH_BPS: u64 = 80_000;
