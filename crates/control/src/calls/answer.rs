//! Answers: the streams are specified, and the description for the author of the offer is written.

use std::sync::Arc;

use threadbare_rtp::call::Side;
use threadbare_rtp::leg::{Carries, Learn, PayloadMap};

use super::dialog::{Dialog, Exchange, Local, Offered, Origin, Plan, Remote, Slot};
use super::failure::Failure;
use super::maps::{Maps, maps};
use super::options::Options;
use super::read::{OPUS_BPS, remote};
use super::rewrite::{AudioLine, Line, rewrite};
use super::sdes;
use super::spec::{SideSpec, SrtpKeys, StreamKind, StreamSpec};
use super::transport::Transport;
use crate::codec::{self, Rules, Then};
use crate::sdp::{Codec, Sdp};

/// An answer that can be carried out.
#[derive(Debug)]
pub(super) struct Prepared {
    /// By `m=` line of the offer; `None`: rejected.
    pub(super) specs: Vec<Option<Box<StreamSpec>>>,
    /// Of the author of the offer.
    pub(super) origin: Origin,
    pub(super) sdp: Sdp,
}

/// Prepares the answer to the dialog's last offer.
pub(super) fn prepare<P>(
    dialog: &Dialog<P>,
    exchange: &Exchange<P>,
    options: &Options,
    mut sdp: Sdp,
) -> Result<Prepared, Failure> {
    let (found, allowed) = (sdp.media.len(), exchange.media.len());
    // Phones leave lines out that they refuse. All of them: no answer, and no reason to end what runs.
    if found > allowed || found == 0 && allowed > 0 {
        return Err(Failure::Lines { found, allowed });
    }
    let mut answered = Vec::new();
    for (index, offered) in exchange.media.iter().enumerate() {
        let slot = slot_of(dialog, exchange, index);
        answered.push(answer(options, &sdp, index, offered, slot)?);
    }
    let author = exchange.author;
    let lines: Vec<Line<'_>> = answered
        .iter()
        .zip(&exchange.media)
        .enumerate()
        .take(found)
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
    let origin = rewrite(&mut sdp, &lines, options, &dialog.party(author).origin)?;
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
    })
}

/// The ports that the stream has from this answer on.
fn slot_of<'a, P>(
    dialog: &'a Dialog<P>,
    exchange: &'a Exchange<P>,
    index: usize,
) -> Option<&'a Slot<P>> {
    let fresh = exchange.fresh.get(index).and_then(Option::as_ref);
    fresh.or_else(|| dialog.slots.get(index)?.as_ref())
}

/// What the answer says of an `m=` line.
enum Answered {
    Rejected,
    Packets { remotes: Box<[Remote; 2]> },
    Audio(Box<AnsweredAudio>),
}

/// The author of the offer first, the author of the answer behind.
struct AnsweredAudio {
    remotes: [Remote; 2],
    srtp: [Option<SrtpKeys>; 2],
    mux: [bool; 2],
    has_feedback: [bool; 2],
    maps: [Maps; 2],
    codecs: codec::Answer,
    transport: Option<Transport>,
}

fn answer<P>(
    options: &Options,
    sdp: &Sdp,
    index: usize,
    offered: &Offered,
    slot: Option<&Slot<P>>,
) -> Result<Answered, Failure> {
    let Some(section) = sdp.media.get(index) else {
        return Ok(Answered::Rejected);
    };
    let line = section.media_line()?;
    if line.port == 0 || slot.is_none() {
        return Ok(Answered::Rejected);
    }
    let number = index + 1;
    match &offered.plan {
        Plan::Rejected => Ok(Answered::Rejected),
        Plan::Packets => {
            let (theirs, _) = remote(sdp, index, options.address)?;
            let remotes = Box::new([offered.remote.clone(), theirs]);
            Ok(Answered::Packets { remotes })
        }
        Plan::Audio(audio) => {
            let (theirs, refused) = remote(sdp, index, options.address)?;
            let their_keys = match audio.transports[1].is_secure {
                false => None,
                true => Some(sdes::answered(&audio.own, &theirs.cryptos).ok_or_else(|| {
                    let reason = refused.unwrap_or_else(|| {
                        "the answer has no key for a suite that was offered".to_owned()
                    });
                    Failure::NoKey {
                        line: number,
                        reason,
                    }
                })?),
            };
            let stripped: Vec<Codec> = kept(section.codecs()?, &options.rules);
            let codecs =
                codec::answer(&audio.codecs, &stripped, options.single_codec).map_err(|error| {
                    Failure::Codec {
                        line: number,
                        error,
                    }
                })?;
            let maps = maps(&audio.codecs, &codecs).ok_or(Failure::NoAudio { line: number })?;
            Ok(Answered::Audio(Box::new(AnsweredAudio {
                mux: [
                    audio.mux[0],
                    audio.requires_mux || audio.mux[1] && theirs.has_mux,
                ],
                has_feedback: audio.transports.map(|one| one.has_feedback),
                srtp: [
                    audio.accepted.as_ref().map(|one| one.keys.clone()),
                    their_keys,
                ],
                transport: Transport::of(line.protocol),
                remotes: [offered.remote.clone(), theirs],
                maps,
                codecs,
            })))
        }
    }
}

/// "Codecs stripped using this option are treated as if they had never been in the SDP", unless none would be left.
fn kept(codecs: Vec<Codec>, rules: &Rules) -> Vec<Codec> {
    let is_named = |codec: &Codec| {
        let excepted = rules
            .except
            .iter()
            .chain(&rules.offer)
            .any(|spec| spec.matches(codec));
        rules.strip.names(codec) || rules.strip.everything.is_some() && !excepted
    };
    let kept: Vec<Codec> = codecs
        .iter()
        .filter(|codec| !is_named(codec))
        .cloned()
        .collect();
    match kept.iter().any(Codec::is_audio) {
        true => kept,
        false => codecs,
    }
}

/// The line for the author of the offer.
fn line<'a, P>(
    answered: &'a Answered,
    offered: &'a Offered,
    local: Option<&'a Local>,
    exchange: &'a Exchange<P>,
    options: &Options,
) -> Line<'a> {
    // "the transport protocol that was originally offered".
    let protocol = offered.protocol.as_str();
    match (answered, local, &offered.plan) {
        (Answered::Packets { remotes }, Some(local), _) => Line::Packets {
            local,
            remote: &remotes[1],
        },
        (Answered::Audio(answered), Some(local), Plan::Audio(audio)) => {
            let accepted = audio.accepted.iter();
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
                cryptos: accepted.map(|one| one.to_value(&options.sdes)).collect(),
                ptime_ms: exchange.options.rules.ptime_reverse_ms,
            })
        }
        _ => Line::Rejected { protocol },
    }
}

/// The stream by side A and side B.
fn specified<P>(
    answered: Answered,
    dialog: &Dialog<P>,
    exchange: &Exchange<P>,
    options: &Options,
    before: Option<&StreamSpec>,
) -> Option<Box<StreamSpec>> {
    let author = exchange.author;
    let learning = [exchange.options.learning, options.learning];
    // What both messages say of a side counts.
    let learn = [
        learning[0].with(learning[1]).learn(true),
        learning[1].with(learning[0]).learn(true),
    ];
    let by_role = match answered {
        Answered::Rejected => return None,
        Answered::Packets { remotes } => {
            let side = |role: usize| base(&remotes[role], learn[role]);
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
        // An address of hold says nothing of where the party is.
        side.rtp = side.rtp.or(before.rtp);
        side.rtcp = side.rtcp.or(before.rtcp);
    }
    Some(Box::new(StreamSpec {
        kind,
        sides,
        tos: options.tos.after(dialog.tos),
        copies: None,
    }))
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

/// `role` 0: the author of the offer.
fn audio_side(answered: &AnsweredAudio, role: usize, learn: Learn, rules: &Rules) -> SideSpec {
    let maps = &answered.maps[role];
    let remote = &answered.remotes[role];
    let asked = [rules.ptime_reverse_ms, rules.ptime_ms][role];
    // Packets made anew are as long as their receiver wants them; others stay.
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
    SideSpec {
        rtcp: match answered.mux[role] {
            true => remote.rtp,
            false => remote.rtcp,
        },
        mux: answered.mux[role],
        has_feedback: answered.has_feedback[role],
        srtp: answered.srtp[role].clone(),
        codec: to.map(|codec| codec.rtpmap().into()),
        sends: Some(maps.sends.clone()),
        packet_ms: [asked, declared]
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

/// "not all codecs support all packetization intervals".
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

/// What a datagram of Ethernet leaves beside the headers of IPv6, UDP and RTP, and the tag of SRTP.
const PAYLOAD_BYTES_MAX: usize = 1400;

fn bitrate(codec: &Codec, rules: &Rules) -> Option<u32> {
    let set = rules.options_of(codec);
    let added = rules.transcode.iter().find(|spec| spec.matches(codec));
    let asked = set
        .and_then(|spec| spec.bitrate_bps)
        .or(added.and_then(|spec| spec.bitrate_bps))?;
    let [least, most] = OPUS_BPS;
    Some(asked.clamp(least, most))
}
