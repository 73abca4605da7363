//! Answers: specifies the streams, and writes the description that the author of the offer gets.

use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_rtp_types::learn::Learn;
use threadbare_rtp_types::payload_map::{Carries, PayloadMap};
use threadbare_rtp_types::side::Side;

use super::dialog::{AudioOffer, Dialog, Exchange, Local, Offered, Origin, Plan, Remote, Slot};
use super::failure::Failure;
use super::maps::{Maps, maps};
use super::options::Options;
use super::ports::Family;
use super::read::{OPUS_BPS, remote};
use super::rewrite::{AudioLine, Line, rewrite};
use super::sdes;
use super::spec::{SideSpec, SrtpKeys, StreamKind, StreamSpec};
use super::transport::Transport;
use super::warnings::{Unusable, Warnings};
use crate::codec::{self, Rules, Then};
use crate::sdp::{Codec, Sdp};

/// An answer that was accepted, ready to take effect.
#[derive(Debug)]
pub(super) struct Prepared {
    /// One entry per `m=` line of the offer. `None`: rejected.
    pub(super) specs: Vec<Option<Box<StreamSpec>>>,
    /// The origin of the description for the author of the offer.
    pub(super) origin: Origin,
    pub(super) sdp: Sdp,
    pub(super) warnings: Warnings,
}

/// Prepares the answer to the dialog's last offer.
pub(super) fn prepare<P>(
    dialog: &Dialog<P>,
    exchange: &Exchange<P>,
    options: &Options,
    mut sdp: Sdp,
) -> Result<Prepared, Failure> {
    let (found, allowed) = (sdp.media.len(), exchange.media.len());
    // Phones omit lines that they refuse. A description without any line does not count as an answer, so it ends no running stream.
    if found > allowed || found == 0 && allowed > 0 {
        return Err(Failure::Lines { found, allowed });
    }
    // "The answer to an offer MUST contain exactly the same number of m-lines" (RFC 3264, section 6).
    for missing in &exchange.media[found..] {
        sdp.add_rejected(&missing.outline);
    }
    let mut warnings = Warnings::default();
    let mut answered = Vec::new();
    for (index, offered) in exchange.media.iter().enumerate() {
        let reader = LineReader {
            exchange,
            options,
            slot: slot_of(dialog, exchange, index),
        };
        let read = reader.line(&sdp, index, offered, &mut warnings);
        answered.push(read.unwrap_or_else(|why| {
            warnings.reject(index, &why);
            Answered::Rejected
        }));
    }
    let is_carried = |one: &Answered| !matches!(one, Answered::Rejected);
    warnings.check(answered.iter().any(is_carried))?;
    let author = exchange.author;
    let lines: Vec<Line<'_>> = answered
        .iter()
        .zip(&exchange.media)
        .enumerate()
        .map(|(index, (one, offered))| {
            let slot = slot_of(dialog, exchange, index);
            line(
                one,
                offered,
                slot.map(|slot| &slot.local[author as usize]),
                exchange,
                options,
            )
        })
        .collect();
    // Line names (RFC 5888) that `generate-mid` gave to the other side are unknown to the offerer.
    for (media, offered) in sdp.media.iter_mut().zip(&exchange.media) {
        media.remove_attributes(|name, _| name == "mid" && !offered.has_mid);
    }
    let origin = rewrite(&mut sdp, &lines, options, &dialog.party(author).origin);
    drop(lines);
    let specs = answered.into_iter().enumerate().map(|(index, one)| {
        let slot = slot_of(dialog, exchange, index);
        let before = slot.and_then(|slot| slot.running.as_deref());
        specified(one, dialog, exchange, options, before)
    });
    Ok(Prepared {
        specs: specs.collect(),
        origin,
        sdp,
        warnings,
    })
}

/// Returns the ports of the stream after this answer.
fn slot_of<'a, P>(
    dialog: &'a Dialog<P>,
    exchange: &'a Exchange<P>,
    index: usize,
) -> Option<&'a Slot<P>> {
    let fresh = exchange.fresh.get(index).and_then(Option::as_ref);
    fresh.or_else(|| dialog.slots.get(index)?.as_ref())
}

/// The answer to one `m=` line.
enum Answered {
    Rejected,
    Direct,
    Packets { remotes: Box<[Remote; 2]> },
    Audio(Box<AnsweredAudio>),
}

/// Both sides of the audio: the author of the offer, then the author of the answer.
struct AnsweredAudio {
    remotes: [Remote; 2],
    accepted: Option<sdes::Accepted>,
    their_keys: Option<SrtpKeys>,
    ptimes_ms: [Option<u32>; 2],
    mux: [bool; 2],
    has_feedback: [bool; 2],
    maps: [Maps; 2],
    codecs: codec::Answer,
    transport: Option<Transport>,
}

/// The context for reading an `m=` line of an answer.
struct LineReader<'a, P> {
    exchange: &'a Exchange<P>,
    options: &'a Options,
    /// The ports of the stream after this answer.
    slot: Option<&'a Slot<P>>,
}

impl<P> LineReader<'_, P> {
    /// Reads the `m=` line with this index.
    fn line(
        &self,
        sdp: &Sdp,
        index: usize,
        offered: &Offered,
        warnings: &mut Warnings,
    ) -> Result<Answered, Unusable> {
        let section = &sdp.media[index];
        let is_accepted = section.media_line().is_ok_and(|line| line.port != 0);
        if matches!(offered.plan, Plan::Direct) && is_accepted {
            return Ok(Answered::Direct);
        }
        // An answer cannot accept a line that was not offered.
        let Some(slot) = self.slot.filter(|_| offered.is_carried()) else {
            return Ok(Answered::Rejected);
        };
        let line = section.media_line()?;
        if line.port == 0 {
            return Ok(Answered::Rejected);
        }
        let (mut theirs, refused) = remote(sdp, index, self.options.address)?;
        let family = slot.local[self.exchange.author.other() as usize]
            .request
            .family;
        if theirs.rtp.is_some_and(|rtp| Family::of(rtp.ip()) != family) {
            let (is, of_ports) = (line_family(&theirs), family.name());
            let what = format!(
                "the address is {is}, but {of_ports} was offered: the relay learns the party's address from its packets"
            );
            warnings.add(index, what);
            (theirs.rtp, theirs.rtcp) = (None, None);
        }
        let answered = match &offered.plan {
            Plan::Rejected | Plan::Direct => Answered::Rejected,
            Plan::Packets => Answered::Packets {
                remotes: Box::new([offered.remote.clone(), theirs]),
            },
            Plan::Audio(audio) => {
                let answer = Answer {
                    theirs,
                    refused,
                    codecs: section.codecs(),
                    transport: Transport::of(line.protocol),
                };
                let audio = self.audio(&offered.remote, audio, answer, index, warnings)?;
                Answered::Audio(Box::new(audio))
            }
        };
        let mux = match &answered {
            Answered::Rejected | Answered::Direct => false,
            Answered::Packets { remotes } => has_mux(remotes),
            Answered::Audio(audio) => audio.mux[1],
        };
        for fault in section.faults(mux) {
            warnings.add(index, fault);
        }
        Ok(answered)
    }

    fn audio(
        &self,
        remote: &Remote,
        audio: &AudioOffer,
        answer: Answer,
        index: usize,
        warnings: &mut Warnings,
    ) -> Result<AnsweredAudio, Unusable> {
        let theirs = answer.theirs;
        let their_keys = sdes::answered(&audio.own, &theirs.cryptos);
        if audio.transports[1].is_secure && their_keys.is_none() {
            let reason = answer.refused.unwrap_or_else(|| {
                "the answer has no a=crypto line with an offered suite".to_owned()
            });
            return Err(Unusable::NoKey(reason));
        }
        if let Some(answered) = &their_keys
            && answered.has_own_tag
        {
            let suite = answered.keys.send.suite();
            let what = format!("a=crypto has the offered suite {suite} under another tag");
            warnings.add(index, what);
        }
        // Opportunistic keys (RFC 8643) are used if either description asks for them, or if the answerer uses keys of its own.
        let is_opportunistic = !audio.transports[0].is_secure;
        let accepts = their_keys.is_some()
            || self.exchange.options.accepts_osrtp
            || self.options.accepts_osrtp;
        let own_keys = audio
            .accepted
            .as_ref()
            .filter(|_| !is_opportunistic || accepts);
        let stripped: Vec<Codec> = kept(answer.codecs, &self.options.rules);
        let codecs = codec::answer(&audio.codecs, &stripped, self.options.single_codec)?;
        let mux = [
            audio.mux[0],
            audio.requires_mux || audio.mux[1] && theirs.has_mux,
        ];
        let maps = maps(&audio.codecs, &codecs, mux).ok_or(Unusable::NoAudio)?;
        Ok(AnsweredAudio {
            mux,
            has_feedback: audio.transports.map(|one| one.has_feedback),
            accepted: own_keys.cloned(),
            their_keys: their_keys.map(|answered| answered.keys),
            ptimes_ms: audio.ptimes_ms,
            transport: answer.transport,
            remotes: [remote.clone(), theirs],
            maps,
            codecs,
        })
    }
}

/// The audio part of an answer.
struct Answer {
    theirs: Remote,
    /// The reason why the answer's first unusable key is refused.
    refused: Option<String>,
    codecs: Vec<Codec>,
    transport: Option<Transport>,
}

fn line_family(remote: &Remote) -> &'static str {
    remote.rtp.map_or("", |rtp| Family::of(rtp.ip()).name())
}

/// Returns the answered codecs that the rules keep, or all of them if no audio codec would be left. "Codecs stripped using this option are
/// treated as if they had never been in the SDP".
fn kept(codecs: Vec<Codec>, rules: &Rules) -> Vec<Codec> {
    let is_named = |codec: &Codec| {
        let excepted = rules
            .except
            .iter()
            .chain(&rules.offer)
            .any(|spec| spec.matches(codec));
        let is_offered = rules.offer.iter().any(|spec| spec.matches(codec));
        rules.strip.names(codec) && !is_offered || rules.strip.everything.is_some() && !excepted
    };
    let kept: Vec<Codec> = codecs
        .iter()
        .filter(|codec| !is_named(codec))
        .cloned()
        .collect();
    if kept.iter().any(Codec::is_audio) {
        kept
    } else {
        codecs
    }
}

/// Returns the `m=` line for the author of the offer.
fn line<'a, P>(
    answered: &'a Answered,
    offered: &'a Offered,
    local: Option<&'a Local>,
    exchange: &'a Exchange<P>,
    options: &Options,
) -> Line<'a> {
    // The documentation requires "the transport protocol that was originally offered".
    let protocol = offered.outline.protocol.as_str();
    match (answered, local, &offered.plan) {
        (Answered::Packets { remotes }, Some(local), _) => Line::Packets {
            local,
            remote: &remotes[1],
            keeps_keys: exchange.options.is_transparent,
        },
        (Answered::Audio(answered), Some(local), Plan::Audio(audio)) => {
            let accepted = answered.accepted.iter();
            let accepts = options.accepts_transport;
            let changed = answered.transport.filter(|theirs| {
                accepts && theirs.is_secure == audio.transports[0].is_secure && !theirs.has_dtls
            });
            Line::Audio(AudioLine {
                local,
                remote: &answered.remotes[1],
                protocol: match changed {
                    Some(changed) => changed.name(),
                    None => protocol,
                },
                codecs: answered.codecs.to_offerer.clone(),
                mux: answered.mux[0],
                shares_port: answered.mux[0],
                cryptos: accepted.map(|one| one.to_value(&options.sdes)).collect(),
                ptime_ms: audio.ptimes_ms[0],
            })
        }
        (Answered::Direct, ..) => Line::Direct,
        _ => Line::Rejected(&offered.outline),
    }
}

/// Creates the specification of the stream, for side A and side B.
fn specified<P>(
    answered: Answered,
    dialog: &Dialog<P>,
    exchange: &Exchange<P>,
    options: &Options,
    before: Option<&StreamSpec>,
) -> Option<Box<StreamSpec>> {
    let author = exchange.author;
    let learning = [exchange.options.learning, options.learning];
    // Either description may have settings for both sides.
    let learn = [
        learning[0].with(learning[1]).learn(true),
        learning[1].with(learning[0]).learn(true),
    ];
    let by_role = match answered {
        Answered::Rejected | Answered::Direct => return None,
        Answered::Packets { remotes } => {
            let mux = has_mux(&remotes);
            let side = |role: usize| SideSpec {
                mux,
                rtcp: rtcp(&remotes[role], mux),
                ..base(&remotes[role], learn[role])
            };
            (StreamKind::Packets, [side(0), side(1)])
        }
        Answered::Audio(answered) => {
            let rules = &exchange.options.rules;
            let side = |role: usize| audio_side(&answered, role, learn[role], rules);
            (StreamKind::Audio, [side(0), side(1)])
        }
    };
    let (kind, [mut own, mut theirs]) = by_role;
    own.waits_for_nat = exchange.options.nat_wait;
    theirs.waits_for_nat = exchange.options.nat_wait || options.nat_wait;
    let mut sides = match author {
        Side::A => [own, theirs],
        Side::B => [theirs, own],
    };
    for (side, before) in sides
        .iter_mut()
        .zip(before.iter().flat_map(|spec| &spec.sides))
    {
        // A hold address does not tell where the party is, so the earlier address stays.
        side.rtp = side.rtp.or(before.rtp);
        side.rtcp = side.rtcp.or(before.rtcp);
    }
    Some(Box::new(StreamSpec {
        kind,
        sides,
        tos: options.tos.after(dialog.tos),
        echoes: false,
        copies: None,
        fallback: (options.fallback.as_ref())
            .unwrap_or(&dialog.fallback)
            .clone(),
    }))
}

/// Whether RTP and RTCP share a port on a stream that is only relayed. The relay forwards the attribute, so both parties must have it (RFC
/// 5761, section 5.1.1).
fn has_mux(remotes: &[Remote; 2]) -> bool {
    remotes.iter().all(|remote| remote.has_mux)
}

fn base(remote: &Remote, learn: Learn) -> SideSpec {
    SideSpec {
        rtp: remote.rtp,
        rtcp: remote.rtcp,
        may_send: remote.may_send(),
        may_receive: remote.may_receive(),
        ..SideSpec::unknown(learn)
    }
}

/// Returns the address at which a party receives RTCP.
fn rtcp(remote: &Remote, mux: bool) -> Option<SocketAddr> {
    if mux { remote.rtp } else { remote.rtcp }
}

/// Creates the specification of one side of the audio. `role` 0 is the author of the offer.
fn audio_side(answered: &AnsweredAudio, role: usize, learn: Learn, rules: &Rules) -> SideSpec {
    let maps = &answered.maps[role];
    let remote = &answered.remotes[role];
    let asked = answered.ptimes_ms[role];
    // New packets have the length that their receiver wants; forwarded packets keep theirs.
    let from = [
        &answered.codecs.from_answerer,
        &answered.codecs.from_offerer,
    ][role];
    let is_made = from
        .iter()
        .any(|route| matches!(&route.then, Then::Transcode(codec) if codec.is_audio()));
    let declared = remote.ptime_ms.filter(|_| is_made);
    let to = [
        answered.codecs.to_offerer.first(),
        answered
            .codecs
            .from_answerer
            .first()
            .map(|route| &route.received),
    ][role];
    let specs = to.map(|codec| rules.specs_of(codec));
    let of_codec = specs.and_then(|mut specs| specs.find_map(|spec| spec.ptime_ms));
    let of_codec = of_codec.filter(|_| is_made);
    SideSpec {
        rtcp: rtcp(remote, answered.mux[role]),
        mux: answered.mux[role],
        has_feedback: answered.has_feedback[role],
        srtp: match role {
            0 => answered.accepted.as_ref().map(|one| one.keys.clone()),
            _ => answered.their_keys.clone(),
        },
        codec: to.map(|codec| codec.rtpmap().into()),
        sends: Some(maps.sends.clone()),
        packet_ms: [asked, of_codec, declared]
            .into_iter()
            .flatten()
            .find(|ms| is_possible(*ms, &maps.takes)),
        bitrate_bps: to.and_then(|codec| bitrate(codec, rules)),
        bitrate_bps_max: remote.opus_bps_max,
        takes: Some(maps.takes.clone()),
        detects_keys: answered.codecs.detects_keys[role],
        makes_anew: rules.force_transcoding,
        ..base(remote, learn)
    }
}

/// Whether all accepted codecs allow this packet time. "not all codecs support all packetization intervals".
fn is_possible(packet_ms: u32, takes: &Arc<PayloadMap>) -> bool {
    match takes.audio().carries {
        Carries::Audio(format) => {
            let frames = format.frames_per_packet(packet_ms.saturating_mul(1000));
            let most = format.max_frames_for(PAYLOAD_BYTES_MAX);
            frames.is_ok_and(|frames| most.is_none_or(|most| frames <= most))
        }
        _ => false,
    }
}

/// Maximum payload of a datagram on Ethernet, without the headers of IPv6, UDP and RTP and the SRTP tag.
const PAYLOAD_BYTES_MAX: usize = 1400;

fn bitrate(codec: &Codec, rules: &Rules) -> Option<u32> {
    let asked = rules.specs_of(codec).find_map(|spec| spec.bitrate_bps)?;
    let [least, most] = OPUS_BPS;
    Some(asked.clamp(least, most))
}
