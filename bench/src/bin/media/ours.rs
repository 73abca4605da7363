//! Whole sessions on the media plane, with jitter buffer, RTCP and conversion.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use threadbare_bench::media::Kind;
use threadbare_relay::{
    AudioSession, Call, CallHandle, Engine, LegPorts, PortRange, PortUse, RangeSettings, Settings,
    SharedSettings,
};
use threadbare_rtp::call::{DirectionConfig, Session, SessionSpec, Target};
use threadbare_rtp::codec::{Encoding, Format};
use threadbare_rtp::demux::Filter;
use threadbare_rtp::id::{NtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{AdmissionConfig, Destination, Learn, LegConfig, Payload, PayloadMap};
use threadbare_rtp::session::Profile;
use threadbare_runtime::clock_now_ns;

use crate::{Carrier, counting};

/// Returns the Opus format to which the hand-written loop encodes telephone audio.
pub(super) fn opus() -> Result<Format> {
    Ok(Format::new(Encoding::Opus, 8000, 1)?)
}

/// Uses everything that all streams share, so that its memory is not counted for the first stream.
pub(super) fn warm_up(kind: Kind) -> Result<()> {
    let codes = Codes::new()?;
    let (source, target) = (codes.leg(0, 0, None), codes.leg(0, 1, None));
    let target = Target::Other(Box::new(target));
    let config = SessionSpec::stream(source, target, DirectionConfig::default());
    Session::new(0, config)?;
    if kind == Kind::Elements {
        gst::init()?;
        // The look-up loads the plugin.
        let _ = gst::ElementFactory::find("ts-rtpsrc");
    }
    Ok(())
}

/// Payload types and CNAME, which all legs share.
struct Codes {
    pcmu: Arc<PayloadMap>,
    pcma: Arc<PayloadMap>,
    opus: Arc<PayloadMap>,
    cname: Arc<str>,
}

impl Codes {
    fn new() -> Result<Codes> {
        let map = |payload_type, format| -> Result<Arc<PayloadMap>> {
            Ok(Arc::new(PayloadMap::new(&[Payload::audio(
                payload_type,
                format,
            )])?))
        };
        Ok(Codes {
            pcmu: map(0, Format::new(Encoding::Pcmu, 8000, 1)?)?,
            pcma: map(8, Format::new(Encoding::Pcma, 8000, 1)?)?,
            opus: map(96, Format::new(Encoding::Opus, 48_000, 2)?)?,
            cname: "bench@threadbare".into(),
        })
    }

    /// Returns the configuration of a leg with PCMU (`law` 0), PCMA (1) or Opus (2). The leg sends to `to`. Without `to`, it sends to the
    /// address from which it receives packets.
    fn leg(&self, number: u32, law: u32, to: Option<SocketAddr>) -> LegConfig {
        LegConfig {
            ssrc: Ssrc(0x7000_0000 + 4 * number + law),
            first_seq: SeqNum(0),
            cname: self.cname.clone(),
            seed: u64::from(number) << 8 | u64::from(law),
            ntp_at_zero: NtpTime(0),
            payloads: match law {
                0 => &self.pcmu,
                1 => &self.pcma,
                _ => &self.opus,
            }
            .clone(),
            takes: None,
            jitter: jitter::Config::new(8000, LATENCY_NS),
            admission: AdmissionConfig {
                peer: None,
                learn: Learn::FOLLOW,
                ..AdmissionConfig::default()
            },
            destination: to.map_or(Destination::Peer, |rtp| Destination::Fixed {
                rtp,
                rtcp: Some(rtp),
            }),
            mux: true,
            bandwidth_bps: 80_000,
            profile: Profile::Avp,
        }
    }
}

fn engine<C: Call>(slice: Duration) -> Result<Engine<C>> {
    let mut settings = Settings::new("media");
    settings.threads.wait = slice;
    Ok(Engine::new(settings)?)
}

fn range() -> Result<PortRange> {
    Ok(PortRange::new(RangeSettings {
        port_use: PortUse::Mux,
        ..RangeSettings::new(Ipv4Addr::LOCALHOST.into(), 10_000, 32_000)
    })?)
}

/// Returns the number of heap allocations of the engine's thread so far.
fn allocations<C: Call>(engine: &Engine<C>) -> Option<u64> {
    let shard = engine.contexts().first()?.next_shard();
    shard.call(|_| counting::allocations()).ok()
}

/// One-way streams.
pub(super) struct Lines {
    ports: Vec<SocketAddr>,
    engine: Engine<AudioSession>,
    _lines: Vec<CallHandle<AudioSession>>,
}

impl Lines {
    pub(super) fn start(
        kind: Kind,
        streams: u32,
        slice: Duration,
        to: impl Fn(u32) -> SocketAddr,
    ) -> Result<Lines> {
        let engine = engine(slice)?;
        let (range, codes) = (range()?, Codes::new()?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let shared = match kind {
            Kind::Shared => Some(engine.share(&SharedSettings::new(address))?),
            _ => None,
        };
        let (mut ports, mut lines) = (Vec::new(), Vec::new());
        for stream in 0..streams {
            let leg: LegPorts = match &shared {
                Some(shared) => shared.lease(Filter {
                    // The sender gives this SSRC to the stream.
                    ssrc: Some(Ssrc(stream + 1)),
                    ..Filter::default()
                })?,
                None => range.lease()?,
            };
            ports.push(leg.rtp_address());
            let law = if kind == Kind::Opus { 2 } else { 1 };
            let target = codes.leg(stream, law, Some(to(stream)));
            let config = SessionSpec::stream(
                codes.leg(stream, 0, None),
                Target::Other(Box::new(target)),
                DirectionConfig::default(),
            );
            let session = Session::new(clock_now_ns(), config)?;
            let mut line = AudioSession::new(session, slice);
            if kind == Kind::Metered {
                line = line.metered();
            }
            lines.push(engine.create("line", vec![leg], line)?);
        }
        if let Some(last) = lines.last() {
            last.stats().wait()?;
        }
        Ok(Lines {
            ports,
            engine,
            _lines: lines,
        })
    }
}

impl Carrier for Lines {
    fn threads(&self) -> &'static str {
        "ts:media"
    }

    fn ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }

    fn allocations(&self) -> Option<u64> {
        allocations(&self.engine)
    }
}

/// Two-way calls between a party with PCMU and one with PCMA.
pub(super) struct Calls {
    ports: Vec<SocketAddr>,
    engine: Engine<AudioSession>,
    _calls: Vec<CallHandle<AudioSession>>,
}

impl Calls {
    pub(super) fn start(
        streams: u32,
        slice: Duration,
        to: impl Fn(u32) -> SocketAddr,
    ) -> Result<Calls> {
        let engine = engine(slice)?;
        let (range, codes) = (range()?, Codes::new()?);
        let (mut ports, mut calls) = (Vec::new(), Vec::new());
        for first in (0..streams).step_by(2) {
            let legs = vec![range.lease()?, range.lease()?];
            ports.extend(legs.iter().map(LegPorts::rtp_address));
            let config = SessionSpec::call(
                [
                    codes.leg(first, 0, Some(to(first))),
                    codes.leg(first, 1, Some(to(first + 1))),
                ],
                [DirectionConfig::default(); 2],
            );
            let call = Session::new(clock_now_ns(), config)?;
            let call = AudioSession::new(call, slice);
            calls.push(engine.create("call", legs, call)?);
        }
        if let Some(last) = calls.last() {
            last.stats().wait()?;
        }
        Ok(Calls {
            ports,
            engine,
            _calls: calls,
        })
    }
}

impl Carrier for Calls {
    fn threads(&self) -> &'static str {
        "ts:media"
    }

    fn ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }

    fn allocations(&self) -> Option<u64> {
        allocations(&self.engine)
    }
}

/// Latency of the jitter buffers. It is the default of the gateway.
const LATENCY_NS: u64 = 40_000_000;
