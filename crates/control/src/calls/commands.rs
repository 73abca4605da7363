//! Requests about the media of running calls: block, silence, play, record.

use threadbare_rtp_types::side::Side;

use super::action::{MediaSource, StreamCommand};
use super::dialog::{Dialog, Mutes};
use super::early;
use super::failure::Failure;
use super::live::Live;
use super::names::{bounded, optional};
use super::options::{blocks_keys, recording};
use super::spec::StreamKind;
use super::{Action, CallId, Calls, Outcome};
use crate::ng::{Command, Dictionary, Refusal, Reply, Request, Value};
use crate::text::shown;

/// The parties that a request selects: the whole call, or sides of its dialogs.
enum Chosen {
    Call,
    Sides(Vec<(usize, Side)>),
}

/// Returns the parties that a request selects. "Participants can be selected by their SIP tag if the `from-tag` key is included in the
/// message, they can be selected by their SDP media address if the `address` key is included in the message, or they can be selected by the
/// user-provided `label`".
fn choose<P>(call: &Live<P>, request: &Request) -> Result<Chosen, Failure> {
    let sides = |is_meant: &dyn Fn(&Dialog<P>, Side) -> bool| {
        let all = call.dialogs.iter().enumerate();
        let all = all.flat_map(|(at, one)| Side::BOTH.map(|side| (at, one, side)));
        let meant = all.filter(|(_, one, side)| is_meant(one, *side));
        meant.map(|(at, _, side)| (at, side)).collect::<Vec<_>>()
    };
    let has_label =
        |one: &Dialog<P>, side: Side, label: &str| one.party(side).label.as_deref() == Some(label);
    let label = request.text("label")?.or(request.text("from-label")?);
    let (key, value, mut found) = if let Some(tag) = optional(request, "from-tag")? {
        let found = sides(&|one, side| one.party(side).has_tag(tag));
        ("from-tag", shown(tag), found)
    } else if let Some(text) = request.text("address")? {
        let value = Value::text(text);
        let wrong = || Refusal::value("address", &value, "an IPv4 or IPv6 address");
        let ip: std::net::IpAddr = text.parse().map_err(|_| wrong())?;
        let found = sides(&|one, side| one.remote_ips(side).any(|one| one == ip));
        ("address", value.shown(), found)
    } else if let Some(label) = label {
        let found = sides(&|one, side| has_label(one, side, label));
        ("label", shown(label.as_bytes()), found)
    } else {
        return Ok(Chosen::Call);
    };
    if found.is_empty() {
        return Err(Failure::NoParty { key, value });
    }
    // Some programs name the selected party a second time in `to-tag`, which selects no other party.
    if let Some(tag) = optional(request, "to-tag")? {
        found.retain(|(at, _)| {
            let dialog = &call.dialogs[*at];
            Side::BOTH
                .iter()
                .any(|side| dialog.party(*side).has_tag(tag))
        });
        if found.is_empty() {
            let (key, value) = ("to-tag", shown(tag));
            return Err(Failure::NoParty { key, value });
        }
    } else if let Some(label) = request.text("to-label")? {
        found.retain(|(at, _)| {
            Side::BOTH
                .iter()
                .any(|side| has_label(&call.dialogs[*at], *side, label))
        });
        if found.is_empty() {
            let (key, value) = ("to-label", shown(label.as_bytes()));
            return Err(Failure::NoParty { key, value });
        }
    }
    Ok(Chosen::Sides(found))
}

/// Whether the request is for all parties: "unless the string `all` (equivalent to setting `all=all`) is included".
fn is_all(request: &Request) -> Result<bool, Refusal> {
    let all = request.one_of(
        "all",
        &[
            ("none", false),
            ("all", true),
            ("offer-answer", true),
            // The documentation also names media flows that belong to no offer and answer. This relay has no such flows.
            ("except-offer-answer", false),
            ("flows", true),
        ],
    )?;
    Ok(all == Some(true))
}

/// Carries out a request about a call's media.
pub(super) fn handle_media_command<P>(
    calls: &mut Calls<P>,
    request: &Request,
) -> Result<Outcome, Failure> {
    let name = bounded("call-id", request.required("call-id")?)?;
    let id = CallId::new(name);
    if request.command() == Command::PlayMedia {
        prepare_to_play(calls, &id, request)?;
    }
    let call = calls.calls.get_mut(&id);
    let call = call.ok_or_else(|| Failure::NoCall(shown(name)))?;
    match request.command() {
        Command::BlockMedia => mute(call, request, |mutes| mutes.is_blocked = true)?,
        Command::UnblockMedia => mute(call, request, |mutes| mutes.is_blocked = false)?,
        Command::SilenceMedia => mute(call, request, |mutes| mutes.is_silenced = true)?,
        Command::UnsilenceMedia => mute(call, request, |mutes| mutes.is_silenced = false)?,
        Command::BlockDtmf => {
            let blocks = blocks_keys(request)?;
            mute(call, request, |mutes| mutes.blocks_keys = blocks)?;
        }
        Command::UnblockDtmf => mute(call, request, |mutes| mutes.blocks_keys = false)?,
        Command::PlayDtmf => {
            let key = Key::of(request)?;
            calls
                .actions
                .extend(told(call, request, |of| key.command(of))?);
        }
        Command::PlayMedia => {
            let play = Play::of(request)?;
            calls
                .actions
                .extend(told(call, request, |to| play.command(to))?);
        }
        Command::StopMedia => {
            let stop = |to: Side| StreamCommand::StopPlay { to };
            calls.actions.extend(told(call, request, stop)?);
        }
        Command::StartRecording | Command::PauseRecording | Command::StopRecording => {
            calls.actions.extend(record(call, request)?);
        }
        forwarding @ (Command::StartForwarding | Command::StopForwarding) => {
            return Err(Failure::NoForwarding(forwarding.name()));
        }
        other => return Err(Failure::NotDone(other.name())),
    }
    calls.actions.extend(call.refresh());
    calls.schedule(&id);
    Ok(Outcome::Reply(Reply::Ok(Dictionary::new())))
}

/// Starts the early streams, if the request plays media to the author of an unanswered offer.
fn prepare_to_play<P>(calls: &mut Calls<P>, id: &CallId, request: &Request) -> Result<(), Failure> {
    Play::of(request)?;
    let Some(call) = calls.calls.get(id) else {
        return Ok(());
    };
    if let Chosen::Sides(sides) = choose(call, request)?
        && told(call, request, |to| StreamCommand::StopPlay { to }).is_err()
        && let Some(at) = call.find_early(&sides)
    {
        early::begin(calls, id, at);
    }
    Ok(())
}

/// Blocks or silences media of the call or of some parties, or stops blocking or silencing them.
fn mute<P>(
    call: &mut Live<P>,
    request: &Request,
    change: impl Fn(&mut Mutes),
) -> Result<(), Failure> {
    let is_all = is_all(request)?;
    let label = request.text("set-label")?;
    match choose(call, request)? {
        Chosen::Call => {
            change(&mut call.mutes);
            if is_all {
                let parties = call.dialogs.iter_mut().flat_map(|one| &mut one.parties);
                parties.for_each(|party| change(&mut party.mutes));
            }
        }
        Chosen::Sides(sides) => {
            for (at, side) in sides {
                let party = &mut call.dialogs[at].parties[side as usize];
                change(&mut party.mutes);
                if let Some(label) = label {
                    party.label = Some(label.to_owned());
                }
            }
        }
    }
    Ok(())
}

/// Creates a command for each audio stream of the selected parties.
fn told<P>(
    call: &Live<P>,
    request: &Request,
    command: impl Fn(Side) -> StreamCommand,
) -> Result<Vec<Action<P>>, Failure> {
    let sides = match (choose(call, request)?, is_all(request)?) {
        (Chosen::Sides(sides), _) => sides,
        (Chosen::Call, true) => {
            let all = 0..call.dialogs.len();
            all.flat_map(|at| Side::BOTH.map(|side| (at, side)))
                .collect()
        }
        (Chosen::Call, false) => {
            let key = "from-tag";
            let allowed = "one of from-tag, address or label, or the flag all".to_owned();
            return Err(Refusal::Missing { key, allowed }.into());
        }
    };
    let mut actions = Vec::new();
    for (at, side) in sides {
        for slot in call.dialogs[at].streams() {
            if slot.kind == StreamKind::Audio {
                let stream = slot.stream;
                let command = command(side);
                actions.push(Action::Command { stream, command });
            }
        }
    }
    if actions.is_empty() {
        Err(Failure::NoMedia)
    } else {
        Ok(actions)
    }
}

/// A DTMF digit to send.
struct Key {
    key: u8,
    duration_ms: u32,
    volume_dbm0: i8,
    pause_ms: u32,
}

impl Key {
    fn of(request: &Request) -> Result<Key, Refusal> {
        let keys = request.keys();
        let code = keys.get("code").or(keys.get("digit"));
        let allowed = "0 to 15, or one of the characters 0 to 9, *, #, A to D";
        let missing = || Refusal::Missing {
            key: "code",
            allowed: allowed.to_owned(),
        };
        let code = code.ok_or_else(missing)?;
        let key = key_of(code).ok_or_else(|| Refusal::value("code", code, allowed))?;
        let all = i64::MIN..=i64::MAX;
        // "with a minimum of 100 and a maximum of 5000".
        let ms = |key: &'static str, usual: i64| {
            let ms = request.integer(key, all.clone())?.unwrap_or(usual);
            Ok::<u32, Refusal>(ms.clamp(100, 5000) as u32)
        };
        // "with 0 being the maximum volume and positive integers being interpreted as negative". The lowest volume is -63 (RFC 4733,
        // section 2.3.4).
        let volume = request.integer("volume", all.clone())?.unwrap_or(-8);
        let volume = -(volume.unsigned_abs().min(63) as i8);
        Ok(Key {
            key,
            duration_ms: ms("duration", 250)?,
            volume_dbm0: volume,
            pause_ms: ms("pause", 100)?,
        })
    }

    fn command(&self, of: Side) -> StreamCommand {
        StreamCommand::PlayKey {
            of,
            key: self.key,
            duration_ms: self.duration_ms,
            volume_dbm0: self.volume_dbm0,
            pause_ms: self.pause_ms,
        }
    }
}

/// Returns the digit of a request: "either an integer with values 0-15, or a string containing a single character". The integer may also be
/// written as text.
fn key_of(code: &Value) -> Option<u8> {
    let number = |number: i64| u8::try_from(number).ok().filter(|number| *number < 16);
    match code {
        Value::Integer(code) => number(*code),
        other => {
            let text = other.as_text()?;
            let place = KEYS
                .find(&text.to_ascii_uppercase())
                .filter(|_| text.len() == 1);
            let place = place.and_then(|place| u8::try_from(place).ok());
            place.or_else(|| number(text.parse().ok()?))
        }
    }
}

/// The digits in the order of their event codes (RFC 4733, section 3.2).
const KEYS: &str = "0123456789*#ABCD";

/// Media to play.
struct Play {
    source: MediaSource,
    times: u32,
    duration_ms: Option<u64>,
    start_frame: u64,
}

/// Limit of a file's repetitions in one request.
const TIMES_MAX: i64 = 1_000_000;

impl Play {
    fn of(request: &Request) -> Result<Play, Refusal> {
        let source = match (request.text("file")?, request.bytes("blob")?) {
            (Some(file), _) => MediaSource::File(file.to_owned()),
            (None, Some(bytes)) => MediaSource::Bytes(bytes.into()),
            (None, None) => {
                let allowed = "file or blob".to_owned();
                return Err(Refusal::Missing {
                    key: "file",
                    allowed,
                });
            }
        };
        let times = request.integer("repeat-times", 1..=TIMES_MAX)?.unwrap_or(1);
        let duration = request.integer("repeat-duration", 0..=i64::MAX)?;
        let start = request.integer("start-pos", 0..=i64::MAX)?.unwrap_or(0);
        Ok(Play {
            source,
            times: times as u32,
            // A duration is disabled "By default", and 0 means the same.
            duration_ms: duration.map(i64::unsigned_abs).filter(|ms| *ms > 0),
            start_frame: start.unsigned_abs(),
        })
    }

    fn command(&self, to: Side) -> StreamCommand {
        StreamCommand::Play {
            to,
            source: self.source.clone(),
            times: self.times,
            duration_ms: self.duration_ms,
            start_frame: self.start_frame,
        }
    }
}

/// Starts, pauses or ends the recording of the whole call.
fn record<P>(call: &mut Live<P>, request: &Request) -> Result<Vec<Action<P>>, Failure> {
    let pauses = request.has_flag("pause")
        || request.one_of("pause", &[("yes", true), ("no", false)])? == Some(true);
    let command = match request.command() {
        Command::StartRecording => {
            let mut recording = recording(request)?;
            recording.metadata = recording.metadata.or_else(|| call.metadata.clone());
            call.is_paused = false;
            call.recording = Some(recording.clone());
            StreamCommand::StartRecording(recording)
        }
        Command::StopRecording if !pauses => {
            call.is_paused = false;
            call.recording = None;
            let discard = request.has_flag("discard-recording");
            StreamCommand::StopRecording { discard }
        }
        _ => {
            call.is_paused = call.recording.is_some();
            StreamCommand::PauseRecording
        }
    };
    Ok(call.to_all(&command))
}
