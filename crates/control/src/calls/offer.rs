//! Offers: opens ports, and writes the description that the other side gets. Running streams do not change.

use threadbare_rtp_types::side::Side;

use super::Random;
use super::dialog::{AudioOffer, Dialog, Exchange, Local, Offered, Place, Plan, Remote, Slot};
use super::failure::Failure;
use super::id::StreamId;
use super::options::Options;
use super::ports::{Family, Interface, InterfaceName, PortRequest, PortSource, PortUse};
use super::read::remote;
use super::rewrite::{AudioLine, Line, rewrite};
use super::sdes;
use super::spec::{SrtpKeys, StreamKind, StreamSpec};
use super::transport::Transport;
use super::warnings::{Unusable, Warnings};
use crate::codec;
use crate::ng::{Refusal, Value};
use crate::sdp::{MediaLine, MediaOutline, RTCP_NUMBERS, Sdp};

/// An offer that was accepted, ready to take effect.
#[derive(Debug)]
pub(super) struct Prepared<P> {
    pub(super) media: Vec<Offered>,
    /// The ports of each `m=` line.
    pub(super) ports: Vec<Ports<P>>,
    /// The interfaces and families of side A and side B.
    pub(super) places: [Place; 2],
    /// The origin of the description for the other side.
    pub(super) origin: super::dialog::Origin,
    pub(super) sdp: Sdp,
    pub(super) warnings: Warnings,
}

/// The ports for an `m=` line.
#[derive(Debug)]
pub(super) enum Ports<P> {
    /// The line needs no ports.
    None,
    /// The ports that the line's slot has already.
    Running,
    /// The ports that the previous offer opened.
    Opened,
    New(Box<Slot<P>>),
}

/// What the preparation of an offer needs from the registry.
pub(super) struct Resources<'a, P> {
    pub(super) ports: &'a mut dyn PortSource<P>,
    pub(super) random: Random<'a>,
    pub(super) next_stream: &'a mut u64,
}

/// Limit of a dialog's streams. Each takes up to four ports. Conferences have several streams.
const STREAMS_MAX: usize = 16;

/// Prepares an offer by `author`. `dialog` is its state before the offer.
pub(super) fn prepare<P>(
    resources: &mut Resources<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    options: &Options,
    mut sdp: Sdp,
) -> Result<Prepared<P>, Failure> {
    let mut warnings = Warnings::default();
    let media = offered(resources, dialog, author, options, &sdp, &mut warnings);
    let is_rejected = |one: &Offered| matches!(one.plan, Plan::Rejected);
    warnings.check(!media.iter().all(is_rejected))?;
    let places = Placing {
        interfaces: resources.ports.interfaces(),
        dialog,
        author,
        options,
    };
    let of_each = media.iter().enumerate();
    let of_each = of_each.map(|(index, one)| places.of_line(index, Some(&one.remote)));
    let of_each: Vec<[Place; 2]> = of_each.collect::<Result<_, _>>()?;
    // The interfaces and families that the first relayed `m=` line gets apply to the dialog.
    let first = media.iter().position(Offered::is_carried);
    let place_of_all = match of_each.get(first.unwrap_or(0)) {
        Some(places) => places.clone(),
        None => places.of_line(0, None)?,
    };
    let mut ports = Vec::new();
    let mut locals: Vec<Option<Local>> = Vec::new();
    for (index, (one, places)) in media.iter().zip(&of_each).enumerate() {
        let (from, local) = open(resources, dialog, author, places, index, one)?;
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
    let origin = rewrite(&mut sdp, &lines, options, origin);
    drop(lines);
    Ok(Prepared {
        media,
        ports,
        places: place_of_all,
        origin,
        sdp,
        warnings,
    })
}

/// Reads each `m=` line, and decides how the relay handles it.
fn offered<P>(
    resources: &mut Resources<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    options: &Options,
    sdp: &Sdp,
    warnings: &mut Warnings,
) -> Vec<Offered> {
    let mut media: Vec<Offered> = Vec::new();
    let mut carried = 0;
    for (index, section) in sdp.media.iter().enumerate() {
        let outline = section.outline();
        if section.media_line().is_ok_and(|line| line.port == 0) {
            media.push(Offered::rejected(outline));
            continue;
        }
        let read = if carried < STREAMS_MAX {
            let mut reader = LineReader {
                resources: &mut *resources,
                dialog,
                author,
                options,
                warnings: &mut *warnings,
            };
            reader.line(sdp, index)
        } else {
            let allowed = STREAMS_MAX;
            Err(Unusable::TooMany { allowed })
        };
        media.push(match read {
            Ok((remote, plan)) => {
                carried += usize::from(!matches!(plan, Plan::Direct));
                Offered {
                    outline,
                    has_mid: section.attribute("mid").is_some(),
                    remote,
                    plan,
                }
            }
            Err(why) => {
                warnings.reject(index, &why);
                Offered::rejected(outline)
            }
        });
    }
    media
}

/// The context for reading an `m=` line of an offer.
struct LineReader<'a, 'd, P> {
    resources: &'a mut Resources<'d, P>,
    dialog: Option<&'a Dialog<P>>,
    author: Side,
    options: &'a Options,
    warnings: &'a mut Warnings,
}

impl<P> LineReader<'_, '_, P> {
    /// Decides how the relay handles a line that its author does not reject.
    fn line(&mut self, sdp: &Sdp, index: usize) -> Result<(Remote, Plan), Unusable> {
        let section = &sdp.media[index];
        let line = section.media_line()?;
        let options = self.options;
        if options.removes.iter().any(|kind| kind == line.kind) {
            return Err(Unusable::Removed);
        }
        if Transport::is_connection(line.protocol) && Transport::of(line.protocol).is_none() {
            return Ok((Remote::unknown(), Plan::Direct));
        }
        let (remote, refused) = remote(sdp, index, options.address)?;
        let plan = match Transport::of(line.protocol) {
            Some(transport) if line.is_rtp_audio() && !options.is_transparent => {
                let offered_audio = OfferedAudio {
                    index,
                    transport,
                    remote: &remote,
                    refused,
                };
                let mut codecs = section.codecs();
                if options.reuse_codecs {
                    prefer_used(&mut codecs, running(self.dialog, index), self.author);
                }
                Plan::Audio(Box::new(self.audio(&offered_audio, &codecs)?))
            }
            transport => packets(&line, transport, options)?,
        };
        let mux = match &plan {
            Plan::Audio(audio) => audio.mux[0],
            _ => remote.has_mux,
        };
        for fault in section.faults(mux) {
            self.warnings.add(index, fault);
        }
        Ok((remote, plan))
    }

    fn audio(
        &mut self,
        offered_audio: &OfferedAudio<'_>,
        codecs: &[crate::sdp::Codec],
    ) -> Result<AudioOffer, Unusable> {
        let OfferedAudio {
            index,
            transport,
            remote,
            refused,
        } = offered_audio;
        let options = self.options;
        let mux = options.mux;
        let passes_mux = remote.has_mux && !mux.demux && !mux.reject;
        let has_mux = remote.has_mux && !mux.reject;
        let is_usable = |codec: &crate::sdp::Codec| {
            let is_rtcp = has_mux && RTCP_NUMBERS.contains(&codec.payload_type.0);
            codec.is_audio() && !codec.name.is_empty() && !is_rtcp
        };
        if !codecs.iter().any(is_usable) {
            return Err(Unusable::NoAudio);
        }
        let offers_sdes = !remote.cryptos.is_empty() || refused.is_some();
        if transport.has_dtls && !offers_sdes {
            let protocol = "UDP/TLS/".to_owned() + transport.name();
            return Err(Unusable::Dtls { protocol });
        }
        let before = srtp_in_use(self.dialog, *index);
        // Keys in an offer of plain RTP are opportunistic (RFC 8643): the answer decides whether they are used.
        let accepted = if transport.is_secure || !remote.cryptos.is_empty() {
            let before = before[self.author as usize];
            Some(self.accepted(offered_audio, before)?)
        } else {
            None
        };
        let own = Transport {
            has_dtls: false,
            ..*transport
        };
        let outgoing = options.transport.unwrap_or(own);
        // As documented, opportunistic keys of one side are offered to the other side too.
        let passes_osrtp = accepted.is_some() && options.transport.is_none();
        let offers_keys = outgoing.is_secure || options.offers_osrtp || passes_osrtp;
        let own_keys = if offers_keys && !options.sdes.is_off {
            let before = before[self.author.other() as usize];
            sdes::offer(
                &remote.cryptos,
                &options.sdes,
                before,
                self.resources.random,
            )
        } else {
            Vec::new()
        };
        if outgoing.is_secure && own_keys.is_empty() {
            return Err(Unusable::NoSuite(outgoing.name()));
        }
        Ok(AudioOffer {
            codecs: self.codecs(*index, codecs, remote)?,
            transports: [*transport, outgoing],
            accepted,
            own: own_keys,
            mux: [has_mux, passes_mux || mux.offer || mux.require],
            requires_mux: mux.require,
            ptimes_ms: ptimes_ms(&options.rules, remote),
        })
    }

    /// Chooses one of the author's keys, and our key for it.
    fn accepted(
        &mut self,
        offered_audio: &OfferedAudio<'_>,
        before: Option<&SrtpKeys>,
    ) -> Result<sdes::Accepted, Unusable> {
        let offered = &offered_audio.remote.cryptos;
        let accepted = sdes::accept(offered, &self.options.sdes, before, self.resources.random);
        accepted.ok_or_else(|| {
            let refused = offered_audio.refused.clone();
            Unusable::NoKey(
                refused
                    .unwrap_or_else(|| "the m= line has SRTP without a key (a=crypto)".to_owned()),
            )
        })
    }

    /// Returns the codecs that are offered to the other side.
    fn codecs(
        &mut self,
        index: usize,
        codecs: &[crate::sdp::Codec],
        remote: &Remote,
    ) -> Result<codec::Offer, Unusable> {
        let [ptime_reverse_ms, ptime_ms] = ptimes_ms(&self.options.rules, remote);
        let rules = codec::Rules {
            ptime_ms,
            ptime_reverse_ms,
            ..self.options.rules.clone()
        };
        let offer = codec::offer(codecs, &rules);
        for spec in &offer.unsupported {
            let name = crate::text::shown(spec.name.as_bytes());
            let what =
                format!("codec-transcode {name}: this codec is not added: expected {TRANSCODED}");
            self.warnings.add(index, what);
        }
        let is_noise = |spec: &codec::Spec| spec.name.eq_ignore_ascii_case("CN");
        if rules.transcode.iter().any(is_noise) {
            let what = "codec-transcode CN: only the payload type is added; the relay makes comfort noise only for pauses in Opus";
            self.warnings.add(index, what);
        }
        let specs = rules.transcode.iter().chain(&rules.set);
        for options in specs.filter_map(|spec| spec.options.as_deref()) {
            let options = crate::text::shown(options.as_bytes());
            self.warnings.add(
                index,
                format!(
                    "codec options {options}: the options are ignored, because encoders have none"
                ),
            );
        }
        if offer.is_unchanged {
            if self.options.allows_no_codec {
                return Err(Unusable::NoCodecLeft);
            }
            let what = "codec-strip, codec-mask and codec-consume would leave no audio codec, and are ignored";
            self.warnings.add(index, what);
        }
        Ok(offer)
    }
}

/// Codecs that `transcode` can add.
const TRANSCODED: &str = "one of PCMU, PCMA, G722, L16, L24, opus, telephone-event, CN";

/// Returns the requested packet times, for packets to the author and to the other side, ms. If the request sets only the other side's
/// packet time, the author keeps its own.
fn ptimes_ms(rules: &codec::Rules, remote: &Remote) -> [Option<u32>; 2] {
    let declared = rules.ptime_ms.map(|_| remote.ptime_ms.unwrap_or(PTIME_MS));
    [rules.ptime_reverse_ms.or(declared), rules.ptime_ms]
}

/// Packet time of a description that has none, ms. "the default packetization interval SHOULD have a duration of 20 ms or one frame,
/// whichever is longer" (RFC 3551, section 4.2).
const PTIME_MS: u32 = 20;

/// Decides about datagrams. They are relayed unchanged, so a line that needs another protocol is rejected.
fn packets(
    line: &MediaLine<'_>,
    transport: Option<Transport>,
    options: &Options,
) -> Result<Plan, Unusable> {
    let Some(own) = transport else {
        return if Transport::is_datagrams(line.protocol) {
            Ok(Plan::Packets)
        } else {
            Err(Unusable::Protocol(crate::text::shown(
                line.protocol.as_bytes(),
            )))
        };
    };
    if options.is_transparent {
        return Ok(Plan::Packets);
    }
    let protocol = line.protocol.to_owned();
    if own.has_dtls {
        return Err(Unusable::Dtls { protocol });
    }
    match options.transport {
        Some(wanted) if wanted.is_secure != own.is_secure => Err(Unusable::Encryption { protocol }),
        _ => Ok(Plan::Packets),
    }
}

struct OfferedAudio<'a> {
    index: usize,
    transport: Transport,
    remote: &'a Remote,
    refused: Option<String>,
}

fn running<P>(dialog: Option<&Dialog<P>>, index: usize) -> Option<&StreamSpec> {
    let slot = dialog.and_then(|dialog| dialog.slots.get(index)?.as_ref())?;
    slot.running.as_deref()
}

/// Puts the codecs that the author uses already first. "Codecs that were listed as preferred in the past will be kept as preferred even if
/// the re-offer lists other codecs as preferred".
fn prefer_used(codecs: &mut [crate::sdp::Codec], running: Option<&StreamSpec>, author: Side) {
    let takes = running.and_then(|spec| spec.sides[author as usize].takes.as_deref());
    let Some(takes) = takes else { return };
    let rank = |codec: &crate::sdp::Codec| {
        let same = |used: &threadbare_rtp_types::payload_map::Payload| {
            used.payload_type == codec.payload_type
        };
        takes.iter().position(same).unwrap_or(usize::MAX)
    };
    codecs.sort_by_key(rank);
}

fn srtp_in_use<P>(dialog: Option<&Dialog<P>>, index: usize) -> [Option<&SrtpKeys>; 2] {
    let spec = running(dialog, index);
    [0, 1].map(|side: usize| spec.and_then(|spec| spec.sides[side].srtp.as_ref()))
}

/// Chooses interfaces and families for an offer.
struct Placing<'a, P> {
    interfaces: &'a [Interface],
    dialog: Option<&'a Dialog<P>>,
    author: Side,
    options: &'a Options,
}

impl<P> Placing<'_, P> {
    /// Returns the interfaces and families of side A and side B for a line whose author is at `remote`.
    fn of_line(&self, index: usize, remote: Option<&Remote>) -> Result<[Place; 2], Failure> {
        let rtp = remote.and_then(|remote| remote.rtp);
        let of_author = rtp.map(|address| Family::of(address.ip()));
        // A hold address does not move a party. But if the first description of a party has one, it shows the party's family.
        let of_hold = remote.and_then(|remote| remote.family);
        let (author, options) = (self.author, self.options);
        // A party that changes its address family announces this in its description.
        let own = self.of_side(index, author, 0, [of_author, of_hold])?;
        let likely = Some(own.family);
        let other = self.of_side(index, author.other(), 1, [options.family, likely])?;
        if let Some(family) = options.family.filter(|family| *family != other.family) {
            let allowed = format!(
                "an address family that the interface \"{}\" has",
                other.interface
            );
            let value = Value::text(family.name());
            return Err(Refusal::value("address-family", &value, allowed).into());
        }
        Ok(match author {
            Side::A => [own, other],
            Side::B => [other, own],
        })
    }

    /// Returns the interface and family of a side. `signalled` overrides the family that the party has used so far. `likely` applies to a
    /// party that has used none.
    fn of_side(
        &self,
        index: usize,
        side: Side,
        role: usize,
        [signalled, likely]: [Option<Family>; 2],
    ) -> Result<Place, Failure> {
        let before = self.dialog.map(|dialog| &dialog.party(side).place);
        let slot = self
            .dialog
            .and_then(|dialog| dialog.slots.get(index)?.as_ref());
        let of_slot = slot.map(|slot| slot.local[side as usize].request.family);
        let used = of_slot.or(before.map(|place| place.family));
        let wanted = self.options.interfaces[role].as_ref();
        let name = wanted.or(before.map(|place| &place.interface));
        place(self.interfaces, name, [signalled, used, likely])
    }
}

/// Returns the interface of this name, with the first of `families` that the interface supports.
fn place(
    interfaces: &[Interface],
    name: Option<&InterfaceName>,
    families: [Option<Family>; 3],
) -> Result<Place, Failure> {
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
    let wanted = families.into_iter().flatten().find(has);
    let family = wanted.or(interface.families.first().copied());
    let family = family.unwrap_or(Family::V4);
    Ok(Place {
        interface: interface.name.clone(),
        family,
    })
}

/// Opens the ports for an `m=` line. The result contains their advertised addresses.
fn open<P>(
    resources: &mut Resources<'_, P>,
    dialog: Option<&Dialog<P>>,
    author: Side,
    places: &[Place; 2],
    index: usize,
    offered: &Offered,
) -> Result<(Ports<P>, Option<Local>), Failure> {
    let kind = match &offered.plan {
        Plan::Rejected | Plan::Direct => return Ok((Ports::None, None)),
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
    let (a, b) = (opened(resources, a)?, opened(resources, b)?);
    *resources.next_stream += 1;
    let slot = Slot {
        stream: StreamId(*resources.next_stream),
        kind,
        media: offered.outline.kind.clone(),
        local: [a.0, b.0],
        ports: Some([a.1, b.1]),
        running: None,
    };
    let local = slot.local[other].clone();
    Ok((Ports::New(Box::new(slot)), Some(local)))
}

fn opened<P>(
    resources: &mut Resources<'_, P>,
    request: PortRequest,
) -> Result<(Local, P), Failure> {
    let opened = resources.ports.open(&request)?;
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
        // The other side may refuse to let RTP and RTCP share a port.
        Plan::Audio(audio) => audio.requires_mux,
        // T.38 and similar protocols have no RTCP.
        _ => Transport::of(&offered.outline.protocol).is_none(),
    };
    if single {
        PortUse::Single
    } else {
        PortUse::Pair
    }
}

/// Returns the `m=` line for the other side.
fn line<'a>(offered: &'a Offered, local: Option<&'a Local>, options: &Options) -> Line<'a> {
    let (remote, protocol) = (&offered.remote, offered.outline.protocol.as_str());
    match (&offered.plan, local) {
        (Plan::Packets, Some(local)) => Line::Packets {
            local,
            remote,
            keeps_keys: options.is_transparent,
        },
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
                // An answer without `a=rtcp-mux` means a separate port for RTCP (RFC 5761, section 5.1.1).
                shares_port: audio.requires_mux,
                cryptos: cryptos.collect(),
                ptime_ms: audio.ptimes_ms[1],
            })
        }
        (Plan::Direct, _) => Line::Direct,
        _ => Line::Rejected(&offered.outline),
    }
}

impl Remote {
    /// Returns the settings of a party whose media the relay does not carry.
    fn unknown() -> Remote {
        Remote {
            rtp: None,
            rtcp: None,
            family: None,
            direction: crate::sdp::Direction::Inactive,
            is_zero: false,
            has_mux: false,
            ptime_ms: None,
            opus_bps_max: None,
            cryptos: Vec::new(),
        }
    }
}

impl Offered {
    fn rejected(outline: MediaOutline) -> Offered {
        Offered {
            outline,
            has_mid: true,
            remote: Remote::unknown(),
            plan: Plan::Rejected,
        }
    }

    pub(super) fn is_carried(&self) -> bool {
        !matches!(self.plan, Plan::Rejected | Plan::Direct)
    }
}

impl<P> Prepared<P> {
    /// Makes the offer the last one of the dialog.
    pub(super) fn commit(
        self,
        dialog: &mut Dialog<P>,
        author: Side,
        branch: Option<&[u8]>,
        options: Options,
    ) -> (Sdp, Warnings) {
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
        (self.sdp, self.warnings)
    }
}
