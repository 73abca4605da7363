//! Carries out offers and answers.

use threadbare_rtp_types::side::Side;

use super::dialog::{Dialog, Slot};
use super::failure::Failure;
use super::live::{DIALOGS_MAX, Found, Live};
use super::names::Names;
use super::offer::{self, Resources};
use super::options::Options;
use super::reach;
use super::warnings::Warnings;
use super::{
    Action, CallId, Calls, Outcome, PortSource, Random, Recording, StreamCommand, StreamSpec,
};
use super::{answer, remove};
use crate::ng::{Dictionary, Reply, Request};
use crate::sdp::Sdp;
use crate::text::shown;

/// Attribute that marks a description as ours, for `loop protect`.
const LOOP_ATTRIBUTE: &str = "x-threadbare";

pub(super) fn handle_offer<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
    ports: &mut dyn PortSource<P>,
    random: Random<'_>,
) -> Result<Outcome, Failure> {
    let names = Names::of(request)?;
    let options = Options::of_request(request)?;
    let sdp = Sdp::parse(request.required("sdp")?)?;
    if options.loop_protect && is_own(calls, &sdp) {
        return Ok(with_sdp(&sdp, Warnings::default()));
    }
    let id = CallId::new(names.call);
    let found = calls
        .calls
        .get(&id)
        .map(|call| call.find_offer(&names.tags));
    match found {
        None => admit(calls)?,
        Some(Found::None) => admit_dialog(calls, &id)?,
        Some(Found::Dialog(..)) => {}
    }
    let (at, author) = match found {
        Some(Found::Dialog(at, author)) => (Some(at), author),
        _ => (None, Side::A),
    };
    let dialog = at.and_then(|at| calls.calls.get(&id)?.dialogs.get(at));
    let mut resources = Resources {
        ports,
        random,
        next_stream: &mut calls.next_stream,
    };
    let prepared = offer::prepare(&mut resources, dialog, author, &options, sdp)?;
    let places = prepared.places.clone();
    calls.totals.calls += u64::from(found.is_none());
    let call = calls
        .calls
        .entry(id.clone())
        .or_insert_with(|| Live::new(id.clone(), now_ns));
    let at = at.unwrap_or_else(|| {
        call.dialogs
            .push(Dialog::begun(now_ns, &names.tags, places));
        call.dialogs.len() - 1
    });
    let loop_protect = options.loop_protect;
    calls.actions.extend(call.note(&options));
    call.dialogs[at].note(author, &options);
    calls.actions.extend(call.refresh());
    let dialog = &mut call.dialogs[at];
    let (mut sdp, mut warnings) = prepared.commit(dialog, author, names.tags.branch, options);
    if !dialog.is_answered {
        dialog.offered_ns = now_ns;
    }
    call.signalled_ns = now_ns;
    reach::warn_of_offer(calls, &id, at, &mut warnings);
    calls.schedule(&id);
    if loop_protect {
        sdp.session
            .set_attribute(LOOP_ATTRIBUTE, &calls.settings.instance);
    }
    Ok(with_sdp(&sdp, warnings))
}

/// Checks whether a call may get another dialog.
fn admit_dialog<P>(calls: &Calls<P>, id: &CallId) -> Result<(), Failure> {
    admit_offer(calls)?;
    let found = calls.calls.get(id).map_or(0, |call| call.dialogs.len());
    if found < DIALOGS_MAX {
        return Ok(());
    }
    Err(Failure::TooMany {
        what: "dialogs of the call",
        found,
        allowed: DIALOGS_MAX,
    })
}

pub(super) fn handle_answer<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
) -> Result<Outcome, Failure> {
    let names = Names::of(request)?;
    request.required("to-tag")?;
    let options = Options::of_request(request)?;
    let sdp = Sdp::parse(request.required("sdp")?)?;
    if options.loop_protect && is_own(calls, &sdp) {
        return Ok(with_sdp(&sdp, Warnings::default()));
    }
    let id = CallId::new(names.call);
    let call = calls.calls.get(&id);
    let call = call.ok_or_else(|| Failure::NoCall(shown(names.call)))?;
    let no_offer = || Failure::NoOffer(shown(names.tags.from));
    let Found::Dialog(at, author) = call.find_answer(&names.tags) else {
        return Err(no_offer());
    };
    let (mut sdp, warnings) = finish_answer(
        calls,
        now_ns,
        &id,
        (at, author),
        names.tags.to,
        &options,
        sdp,
    )?;
    if options.loop_protect {
        sdp.session
            .set_attribute(LOOP_ATTRIBUTE, &calls.settings.instance);
    }
    Ok(with_sdp(&sdp, warnings))
}

/// Carries out the answer to the last offer of the dialog at index `at`. The party `author` made that offer; `tag` is the tag of the
/// party that answers. Returns the description for `author`.
pub(super) fn finish_answer<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    id: &CallId,
    (at, author): (usize, Side),
    tag: Option<&[u8]>,
    options: &Options,
    sdp: Sdp,
) -> Result<(Sdp, Warnings), Failure> {
    let no_offer = || Failure::NoOffer(shown(tag.unwrap_or_default()));
    let dialog = calls.calls.get(id).and_then(|call| call.dialogs.get(at));
    let dialog = dialog.ok_or_else(no_offer)?;
    let exchange = dialog.offer.as_ref().ok_or_else(no_offer)?;
    let mut prepared = answer::prepare(dialog, exchange, options, sdp)?;
    reach::finish_specs(calls, id, at, &mut prepared);
    let (sdp, warnings) = (prepared.sdp, prepared.warnings);
    let call = calls.calls.get_mut(id).ok_or_else(no_offer)?;
    let mutes = call.mutes_of_all();
    let dialog = call.dialogs.get_mut(at).ok_or_else(no_offer)?;
    dialog.parties[author as usize].origin = prepared.origin;
    let answerer = author.other();
    if let Some(tag) = tag {
        dialog.parties[answerer as usize].set_tag(tag);
    }
    dialog.note(answerer, options);
    dialog.is_answered = true;
    if let Some(exchange) = &mut dialog.offer {
        exchange.is_answered = true;
        let places = exchange.places.clone();
        dialog.move_to(&places);
    }
    let changed: Vec<Changed<P>> = prepared
        .specs
        .into_iter()
        .enumerate()
        .map(|(index, mut spec)| {
            if let Some(spec) = &mut spec {
                mutes.apply(&dialog.parties, dialog.echo, spec);
            }
            take_over(dialog, index, spec)
        })
        .collect();
    // Copies are not recorded, because a copy is not a party.
    let records = !call.is_paused && !call.dialogs[at].is_copy();
    let recording = call.recording.clone().filter(|_| records);
    for changed in changed {
        if let Changed::Created {
            before: Some(before),
            stream,
            ..
        } = &changed
        {
            call.replaced(before.stream, *stream);
        }
        carry_out(
            &mut calls.actions,
            &mut calls.streams,
            id,
            changed,
            recording.as_ref(),
        );
    }
    calls.actions.extend(call.note(options));
    call.answered_ns.get_or_insert(now_ns);
    call.signalled_ns = now_ns;
    calls.follow(now_ns, id);
    calls.schedule(id);
    Ok((sdp, warnings))
}

/// Checks whether another call may start.
pub(super) fn admit<P>(calls: &Calls<P>) -> Result<(), Failure> {
    let streams = calls.taken.streams;
    let allowed = calls.settings.sessions_max;
    if streams >= allowed {
        return Err(Failure::Limit(format!(
            "the current calls have {streams} streams: the limit is {allowed} (max-sessions)"
        )));
    }
    admit_offer(calls)?;
    if calls.is_draining {
        let reason = "no new calls are accepted: the relay is being drained";
        return Err(Failure::Limit(reason.to_owned()));
    }
    calls
        .load
        .clone()
        .map_or(Ok(()), |reason| Err(Failure::Limit(reason)))
}

/// Checks whether another offer may open ports. It may never get an answer.
fn admit_offer<P>(calls: &Calls<P>) -> Result<(), Failure> {
    let streams = calls.taken.unanswered;
    let allowed = calls.settings.unanswered_max;
    if streams < allowed {
        return Ok(());
    }
    Err(Failure::Limit(format!(
        "unanswered offers have ports for {streams} streams: the limit is {allowed}"
    )))
}

fn is_own<P>(calls: &Calls<P>, sdp: &Sdp) -> bool {
    sdp.session.attribute(LOOP_ATTRIBUTE) == Some(calls.settings.instance.as_str())
}

fn with_sdp(sdp: &Sdp, warnings: Warnings) -> Outcome {
    let mut keys = Dictionary::new();
    keys.push("sdp", sdp.to_bytes());
    warnings.tell(&mut keys);
    Outcome::Reply(Reply::Ok(keys))
}

/// A change that an answer makes to a stream.
pub(super) enum Changed<P> {
    Nothing,
    /// The stream of the slot ends.
    Removed(Slot<P>),
    /// A stream starts, and replaces another one.
    Created {
        before: Option<Slot<P>>,
        stream: super::StreamId,
        spec: Box<StreamSpec>,
        ports: [P; 2],
    },
    Updated {
        stream: super::StreamId,
        spec: Box<StreamSpec>,
    },
}

/// Applies the new specification of an `m=` line. `None`: the line is rejected.
pub(super) fn take_over<P>(
    dialog: &mut Dialog<P>,
    index: usize,
    spec: Option<Box<StreamSpec>>,
) -> Changed<P> {
    let fresh = dialog
        .offer
        .as_mut()
        .and_then(|offer| offer.fresh.get_mut(index));
    if dialog.slots.len() <= index {
        dialog.slots.resize_with(index + 1, || None);
    }
    let slot = &mut dialog.slots[index];
    let Some(spec) = spec else {
        return slot.take().map_or(Changed::Nothing, Changed::Removed);
    };
    let before = match fresh.and_then(Option::take) {
        Some(fresh) => slot.replace(fresh),
        None => None,
    };
    let Some(slot) = slot else {
        return before.map_or(Changed::Nothing, Changed::Removed);
    };
    let stream = slot.stream;
    if let Some(ports) = slot.ports.take() {
        slot.running = Some(spec.clone());
        return Changed::Created {
            before,
            stream,
            spec,
            ports,
        };
    }
    if slot.running.as_ref() == Some(&spec) {
        return Changed::Nothing;
    }
    slot.running = Some(spec.clone());
    Changed::Updated { stream, spec }
}

pub(super) fn carry_out<P>(
    actions: &mut std::collections::VecDeque<Action<P>>,
    streams: &mut std::collections::BTreeMap<super::StreamId, CallId>,
    id: &CallId,
    changed: Changed<P>,
    recording: Option<&Recording>,
) {
    match changed {
        Changed::Nothing => {}
        Changed::Removed(slot) => remove(actions, streams, &slot),
        Changed::Created {
            before,
            stream,
            spec,
            ports,
        } => {
            if let Some(before) = before {
                remove(actions, streams, &before);
            }
            streams.insert(stream, id.clone());
            actions.push_back(Action::Create {
                stream,
                call: id.clone(),
                spec,
                ports,
            });
            actions.extend(recording.map(|recording| Action::Command {
                stream,
                command: StreamCommand::StartRecording(recording.clone()),
            }));
        }
        Changed::Updated { stream, spec } => actions.push_back(Action::Update { stream, spec }),
    }
}
