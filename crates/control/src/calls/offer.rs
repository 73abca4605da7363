//! Offers: ports are opened, and the other side's description is written. Nothing that runs changes.

use std::net::SocketAddr;

use threadbare_rtp::call::Side;

use super::Random;
use super::dialog::{
    AudioOffer, Dialog, Exchange, Local, Offered, Party, Place, Plan, Remote, Slot,
};
use super::failure::Failure;
use super::id::StreamId;
use super::options::Options;
use super::ports::{Family, Interface, InterfaceName, PortRequest, PortSource, PortUse};
use super::read::remote;
use super::rewrite::{AudioLine, Line, rewrite};
use super::sdes;
use super::spec::{SrtpKeys, StreamKind, StreamSpec};
use super::transport::Transport;
use crate::codec;
use crate::ng::{Refusal, Value};
use crate::sdp::{MediaLine, Sdp};

/// An offer that can be carried out.
#[derive(Debug)]
pub(super) struct Prepared<P> {
    pub(super) media: Vec<Offered>,
    /// By `m=` line.
    pub(super) ports: Vec<Ports<P>>,
    /// Of side A and side B.
    pub(super) places: [Place; 2],
    /// Of the side that the description goes to.
    pub(super) origin: super::dialog::Origin,
    pub(super) sdp: Sdp,
}

/// Where the ports of an `m=` line come from.
#[derive(Debug)]
pub(super) enum Ports<P> {
    /// It needs none.
    None,
    /// Those of its slot.
    Running,
    /// Those that the offer before has opened.
    Opened,
    New(Box<Slot<P>>),
}

/// What an offer is prepared with.
pub(super) struct Desk<'a, P> {
    pub(super) ports: &'a mut dyn PortSource<P>,
    pub(super) random: Random<'a>,
    pub(super) next_stream: &'a mut u64,
}

/// Of a dialog: each takes up to four ports. Conferences have some.
const STREAMS_MAX: usize = 16;

/// Prepares an offer by `author`. `dialog`: as it is so far.
pub(super) fn prepare<P>(
    desk: &mut Desk<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    options: &Options,
    mut sdp: Sdp,
) -> Result<Prepared<P>, Failure> {
    let media = offered(desk, dialog, author, options, &sdp)?;
    let places = places(desk.ports.interfaces(), dialog, author, options, &media)?;
    let mut ports = Vec::new();
    let mut locals: Vec<Option<Local>> = Vec::new();
    for (index, one) in media.iter().enumerate() {
        let line = sdp.media[index].media_line()?;
        let (from, local) = open(desk, dialog, author, &places, index, one, &line)?;
        ports.push(from);
        locals.push(local);
    }
    let lines: Vec<Line<'_>> = media
        .iter()
        .zip(&locals)
        .map(|(one, local)| line(one, local.as_ref(), options))
        .collect();
    let none = super::dialog::Origin::default();
    let origin = dialog.map_or(&none, |dialog| &dialog.party(author.other()).origin);
    let origin = rewrite(&mut sdp, &lines, options, origin)?;
    drop(lines);
    Ok(Prepared {
        media,
        ports,
        places,
        origin,
        sdp,
    })
}

/// Reads each `m=` line, and decides what is done with it.
fn offered<P>(
    desk: &mut Desk<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    options: &Options,
    sdp: &Sdp,
) -> Result<Vec<Offered>, Failure> {
    let mut media = Vec::new();
    for (index, section) in sdp.media.iter().enumerate() {
        let line = section.media_line()?;
        let number = index + 1;
        let transport = Transport::of(line.protocol);
        let protocol = line.protocol.to_owned();
        if line.port == 0 {
            media.push(Offered::rejected(protocol));
            continue;
        }
        let (remote, refused) = remote(sdp, index, options.address)?;
        let plan = match transport {
            Some(transport) if line.is_rtp_audio() => {
                let before = srtp_in_use(dialog, index);
                let medium = Medium {
                    number,
                    transport,
                    remote: &remote,
                    refused,
                };
                let mut codecs = section.codecs()?;
                if options.reuse_codecs {
                    prefer_used(&mut codecs, running(dialog, index), author);
                }
                Plan::Audio(Box::new(audio(
                    desk, &medium, &codecs, author, before, options,
                )?))
            }
            transport => packets(&line, transport, options),
        };
        let offered = Offered {
            protocol,
            remote,
            plan,
        };
        media.push(offered);
    }
    let found = media.iter().filter(|one| one.is_carried()).count();
    if found > STREAMS_MAX {
        return Err(Failure::TooMany {
            what: "m= lines to carry",
            found,
            allowed: STREAMS_MAX,
        });
    }
    Ok(media)
}

/// Datagrams are relayed as they are: what would need another protocol is rejected.
fn packets(line: &MediaLine<'_>, transport: Option<Transport>, options: &Options) -> Plan {
    let is_kept = match transport {
        Some(own) => {
            let wanted = options.transport.unwrap_or(own);
            !own.has_dtls && wanted.is_secure == own.is_secure
        }
        None => matches!(line.protocol, "udptl" | "UDPTL" | "udp" | "UDP"),
    };
    match is_kept {
        true => Plan::Packets,
        false => Plan::Rejected,
    }
}

struct Medium<'a> {
    number: usize,
    transport: Transport,
    remote: &'a Remote,
    refused: Option<String>,
}

fn running<P>(dialog: Option<&Dialog<P>>, index: usize) -> Option<&StreamSpec> {
    let slot = dialog.and_then(|dialog| dialog.slots.get(index)?.as_ref())?;
    slot.running.as_deref()
}

/// "Codecs that were listed as preferred in the past will be kept as preferred even if the re-offer lists other codecs as preferred".
fn prefer_used(codecs: &mut [crate::sdp::Codec], running: Option<&StreamSpec>, author: Side) {
    let takes = running.and_then(|spec| spec.sides[author as usize].takes.as_deref());
    let Some(takes) = takes else { return };
    let rank = |codec: &crate::sdp::Codec| {
        let same = |used: &threadbare_rtp::leg::Payload| used.payload_type == codec.payload_type;
        takes.iter().position(same).unwrap_or(usize::MAX)
    };
    codecs.sort_by_key(rank);
}

fn srtp_in_use<P>(dialog: Option<&Dialog<P>>, index: usize) -> [Option<&SrtpKeys>; 2] {
    let spec = running(dialog, index);
    [0, 1].map(|side: usize| spec.and_then(|spec| spec.sides[side].srtp.as_ref()))
}

/// The author's key, and ours for it.
fn accepted<P>(
    desk: &mut Desk<'_, P>,
    medium: &Medium<'_>,
    before: Option<&SrtpKeys>,
    options: &Options,
) -> Result<sdes::Accepted, Failure> {
    let offered = &medium.remote.cryptos;
    let accepted = sdes::accept(offered, &options.sdes, before, desk.random);
    accepted.ok_or_else(|| {
        let refused = medium.refused.clone();
        Failure::NoKey {
            line: medium.number,
            reason: refused.unwrap_or_else(|| "SRTP without a key".to_owned()),
        }
    })
}

fn audio<P>(
    desk: &mut Desk<'_, P>,
    medium: &Medium<'_>,
    codecs: &[crate::sdp::Codec],
    author: Side,
    before: [Option<&SrtpKeys>; 2],
    options: &Options,
) -> Result<AudioOffer, Failure> {
    let Medium {
        number: line,
        transport,
        remote,
        refused,
    } = medium;
    if !codecs
        .iter()
        .any(|codec| codec.is_audio() && !codec.name.is_empty())
    {
        return Err(Failure::NoAudio { line: *line });
    }
    let offers_sdes = !remote.cryptos.is_empty() || refused.is_some();
    if transport.has_dtls && !offers_sdes {
        let protocol = "UDP/TLS/".to_owned() + transport.name();
        return Err(Failure::Dtls {
            line: *line,
            protocol,
        });
    }
    let accepted = match transport.is_secure {
        false => None,
        true => Some(accepted(desk, medium, before[author as usize], options)?),
    };
    let own = Transport {
        has_dtls: false,
        ..*transport
    };
    let outgoing = options.transport.unwrap_or(own);
    let own_keys = match outgoing.is_secure {
        false => Vec::new(),
        true if options.sdes.is_off => return Err(Failure::NoSuite(outgoing.name())),
        true => {
            let before = before[author.other() as usize];
            sdes::offer(&remote.cryptos, &options.sdes, before, desk.random)
        }
    };
    if outgoing.is_secure && own_keys.is_empty() {
        return Err(Failure::NoSuite(outgoing.name()));
    }
    let mux = options.mux;
    let passes_mux = remote.has_mux && !mux.demux && !mux.reject;
    Ok(AudioOffer {
        codecs: codec::offer(codecs, &options.rules),
        transports: [*transport, outgoing],
        accepted,
        own: own_keys,
        mux: [
            remote.has_mux && !mux.reject,
            passes_mux || mux.offer || mux.require,
        ],
        requires_mux: mux.require,
    })
}

/// The interfaces and families of side A and side B.
fn places<P>(
    interfaces: &[Interface],
    dialog: Option<&Dialog<P>>,
    author: Side,
    options: &Options,
    media: &[Offered],
) -> Result<[Place; 2], Failure> {
    let of_author = media.iter().find_map(|one| one.remote.rtp);
    let of_author = of_author.map(|address: SocketAddr| Family::of(address.ip()));
    let before = |side: Side| dialog.map(|dialog| dialog.party(side));
    let own = place(
        interfaces,
        options.interfaces[0].as_ref(),
        before(author),
        [None, of_author],
    )?;
    let other = place(
        interfaces,
        options.interfaces[1].as_ref(),
        before(author.other()),
        [options.family, Some(own.family)],
    )?;
    Ok(match author {
        Side::A => [own, other],
        Side::B => [other, own],
    })
}

/// `families`: one that is asked for, and one that is likely.
fn place(
    interfaces: &[Interface],
    wanted: Option<&InterfaceName>,
    before: Option<&Party>,
    families: [Option<Family>; 2],
) -> Result<Place, Failure> {
    let name = wanted.or(before.map(|party| &party.place.interface));
    let found = match name {
        None => interfaces.first(),
        Some(name) => interfaces.iter().find(|one| one.name == *name),
    };
    let refused = |key: &'static str, value: String| {
        let names: Vec<String> = interfaces
            .iter()
            .map(|one| format!("\"{}\"", one.name))
            .collect();
        let allowed = format!("one of the interfaces {}", names.join(", "));
        Failure::Request(Refusal::value(key, &Value::text(&value), allowed))
    };
    let interface = found.ok_or_else(|| {
        refused(
            "direction",
            name.map_or_else(String::new, ToString::to_string),
        )
    })?;
    let has = |family: &Family| interface.families.contains(family);
    let [asked, likely] = families;
    if let Some(family) = asked.filter(|family| !has(family)) {
        let allowed = format!("a family of the interface \"{}\"", interface.name);
        let value = Value::text(family.name());
        return Err(Refusal::value("address-family", &value, allowed).into());
    }
    // What the party has used so far counts as long as nothing else is said.
    let used = before.map(|party| party.place.family);
    let family = asked
        .or(used)
        .or(likely)
        .filter(has)
        .or(interface.families.first().copied())
        .unwrap_or(Family::V4);
    Ok(Place {
        interface: interface.name.clone(),
        family,
    })
}

/// The ports for an `m=` line, and what the other side is told of them.
fn open<P>(
    desk: &mut Desk<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    places: &[Place; 2],
    index: usize,
    offered: &Offered,
    line: &MediaLine<'_>,
) -> Result<(Ports<P>, Option<Local>), Failure> {
    let kind = match &offered.plan {
        Plan::Rejected => return Ok((Ports::None, None)),
        Plan::Packets => StreamKind::Packets,
        Plan::Audio(_) => StreamKind::Audio,
    };
    let wanted = [Side::A, Side::B].map(|side| {
        let place = &places[side as usize];
        PortRequest {
            interface: place.interface.clone(),
            family: place.family,
            port_use: port_use(offered, side == author),
        }
    });
    let other = author.other() as usize;
    let slot_at = |slots: &'_ [Option<Slot<P>>]| {
        let slot = slots.get(index)?.as_ref()?;
        slot.fits(kind, &wanted).then(|| slot.local[other].clone())
    };
    if let Some(dialog) = dialog {
        let opened = dialog.offer.as_ref().and_then(|one| slot_at(&one.fresh));
        if opened.is_some() {
            return Ok((Ports::Opened, opened));
        }
        let running = slot_at(&dialog.slots);
        if running.is_some() {
            return Ok((Ports::Running, running));
        }
    }
    let [a, b] = wanted;
    let (a, b) = (opened(desk, a)?, opened(desk, b)?);
    *desk.next_stream += 1;
    let slot = Slot {
        stream: StreamId(*desk.next_stream),
        kind,
        media: line.kind.to_owned(),
        local: [a.0, b.0],
        ports: Some([a.1, b.1]),
        running: None,
    };
    let local = slot.local[other].clone();
    Ok((Ports::New(Box::new(slot)), Some(local)))
}

fn opened<P>(desk: &mut Desk<'_, P>, request: PortRequest) -> Result<(Local, P), Failure> {
    let opened = desk.ports.open(&request)?;
    let local = Local {
        request,
        rtp: opened.rtp,
        rtcp: opened.rtcp,
    };
    Ok((local, opened.ports))
}

fn port_use(offered: &Offered, is_author: bool) -> PortUse {
    let single = match &offered.plan {
        Plan::Audio(audio) if is_author => audio.mux[0],
        // The other side may refuse to multiplex.
        Plan::Audio(audio) => audio.requires_mux,
        // T.38 and the like have no RTCP.
        _ => Transport::of(&offered.protocol).is_none(),
    };
    match single {
        true => PortUse::Single,
        false => PortUse::Pair,
    }
}

/// The line for the other side.
fn line<'a>(offered: &'a Offered, local: Option<&'a Local>, options: &Options) -> Line<'a> {
    let (remote, protocol) = (&offered.remote, offered.protocol.as_str());
    match (&offered.plan, local) {
        (Plan::Packets, Some(local)) => Line::Packets { local, remote },
        (Plan::Audio(audio), Some(local)) => {
            let cryptos = audio.own.iter().map(|own| own.to_value(&options.sdes));
            let [own, outgoing] = audio.transports;
            Line::Audio(AudioLine {
                local,
                remote,
                protocol: if own == outgoing {
                    protocol
                } else {
                    outgoing.name()
                },
                codecs: audio.codecs.codecs().cloned().collect(),
                mux: audio.mux[1],
                cryptos: cryptos.collect(),
                ptime_ms: options.rules.ptime_ms,
            })
        }
        _ => Line::Rejected { protocol },
    }
}

impl Offered {
    fn rejected(protocol: String) -> Offered {
        let remote = Remote {
            rtp: None,
            rtcp: None,
            direction: crate::sdp::Direction::Inactive,
            is_zero: false,
            has_mux: false,
            ptime_ms: None,
            opus_bps_max: None,
            cryptos: Vec::new(),
        };
        Offered {
            protocol,
            remote,
            plan: Plan::Rejected,
        }
    }

    fn is_carried(&self) -> bool {
        !matches!(self.plan, Plan::Rejected)
    }
}

impl<P> Prepared<P> {
    /// Makes the offer the dialog's last one.
    pub(super) fn commit(
        self,
        dialog: &mut Dialog<P>,
        author: Side,
        branch: Option<&[u8]>,
        options: Options,
    ) -> Sdp {
        let mut before = dialog.offer.take();
        let mut fresh = Vec::new();
        for (index, ports) in self.ports.into_iter().enumerate() {
            fresh.push(match ports {
                Ports::New(slot) => Some(*slot),
                Ports::Opened => before
                    .as_mut()
                    .and_then(|one| one.fresh.get_mut(index)?.take()),
                Ports::None | Ports::Running => None,
            });
        }
        if !dialog.is_answered {
            dialog.move_to(&self.places);
        }
        dialog.parties[author.other() as usize].origin = self.origin;
        dialog.offer = Some(Exchange {
            author,
            branch: branch.map(Into::into),
            options,
            media: self.media,
            fresh,
            places: self.places,
            is_answered: false,
        });
        self.sdp
    }
}
