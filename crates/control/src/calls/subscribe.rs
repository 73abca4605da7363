//! Subscriptions and publications. In a subscription, a third party gets a copy of the media of a call's parties. In a publication, a party
//! sends media for its subscribers.
//!
//! A subscription is a separate dialog. Side A stands for the copied media, and this module writes its offer. Side B is the subscriber. So
//! a subscription has codecs, keys, ports, re-offers and an end, like any other dialog.

use std::fmt::Write;

use threadbare_rtp_types::payload_map::{Carries, Payload};
use threadbare_rtp_types::side::Side;

use super::dialog::{Dialog, Offered, Plan, Slot};
use super::failure::Failure;
use super::live::{DIALOGS_MAX, Live};
use super::names::{Names, Tags, bounded, optional};
use super::offer::{self, Resources};
use super::options::Options;
use super::ports::PortSource;
use super::signals;
use super::spec::{Copied, StreamKind};
use super::transport::Transport;
use super::warnings::{Unusable, Warnings};
use super::{CallId, Calls, EndReason, Outcome, Random, answer};
use crate::codec::is_supported;
use crate::ng::{Dictionary, Refusal, Reply, Request, Value};
use crate::sdp::{Direction, Sdp};
use crate::text::shown;

/// One of the media to copy. It becomes an `m=` line of the subscription.
struct Source<'a, P> {
    tag: &'a [u8],
    /// Index of the medium's `m=` line in the descriptions of its own dialog, from 0.
    index: usize,
    slot: &'a Slot<P>,
    side: Side,
}

/// Handles a "request subscription (i.e. receiving a copy of the media) to an existing call participant".
pub(super) fn handle_subscribe_request<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
    ports: &mut dyn PortSource<P>,
    random: Random<'_>,
) -> Result<Outcome, Failure> {
    let name = bounded("call-id", request.required("call-id")?)?;
    let id = CallId::new(name);
    let call = calls.calls.get(&id);
    let call = call.ok_or_else(|| Failure::NoCall(shown(name)))?;
    let mut options = Options::of_request(request)?;
    let subscriber = subscriber(request, random)?;
    let before = call.subscription(&subscriber);
    if before.is_none() {
        room_for_dialog(call)?;
    }
    let sources = sources(call, request)?;
    let first = sources.first().ok_or(Failure::NoMedia)?;
    let [own, others] = options.interfaces;
    let place = &first.slot.local[first.side as usize].request;
    options.interfaces = [Some(place.interface.clone()), others.or(own)];
    options.rules = options.rules.of_copy();
    let mut sdp = Sdp::parse(description(&sources).as_bytes())?;
    let is_siprec = request.has_flag("SIPREC") || request.has_flag("siprec");
    let labels = is_siprec.then(|| label(&mut sdp, &sources));
    let mut tags: Vec<Vec<u8>> = sources.iter().map(|one| one.tag.to_vec()).collect();
    tags.dedup();
    let copied = sources.iter().map(|one| Copied {
        stream: one.slot.stream,
        side: one.side,
    });
    let copies: Vec<Copied> = copied.collect();
    let mut resources = Resources {
        ports,
        random,
        next_stream: &mut calls.next_stream,
    };
    let prepared = offer::prepare(&mut resources, None, Side::A, &options, sdp)?;
    // A repeated request ends the earlier subscription and starts a new one.
    if let Some(before) = before {
        calls.end_dialog(now_ns, &id, before, EndReason::Deleted);
    }
    let call = calls.calls.get_mut(&id);
    let call = call.ok_or_else(|| Failure::NoCall(shown(name)))?;
    let tags_of_both = Tags {
        from: &[],
        to: Some(&subscriber),
        branch: None,
    };
    let mut dialog = Dialog::begun(now_ns, &tags_of_both, prepared.places.clone());
    // Without the tag, requests about the copied party do not affect its copy.
    dialog.parties[0].tag = None;
    dialog.copies = copies;
    dialog.parties[1].label = request.text("set-label")?.map(str::to_owned);
    let (sdp, warnings) = prepared.commit(&mut dialog, Side::A, None, options);
    call.dialogs.push(dialog);
    call.signalled_ns = now_ns;
    calls.schedule(&id);
    Ok(offered(&sdp, tags, subscriber, labels, warnings))
}

/// Handles the subscriber's answer, and starts the copy.
pub(super) fn handle_subscribe_answer<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
) -> Result<Outcome, Failure> {
    let (id, at) = subscription(calls, request)?;
    let options = Options::of_request(request)?;
    let sdp = Sdp::parse(request.required("sdp")?)?;
    let (_, warnings) =
        signals::finish_answer(calls, now_ns, &id, (at, Side::A), None, &options, sdp)?;
    let mut keys = Dictionary::new();
    warnings.tell(&mut keys);
    Ok(Outcome::Reply(Reply::Ok(keys)))
}

/// Handles the end of a subscription.
pub(super) fn handle_unsubscribe<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
) -> Result<Outcome, Failure> {
    let (id, at) = subscription(calls, request)?;
    calls.end_dialog(now_ns, &id, at, EndReason::Deleted);
    calls.schedule(&id);
    Ok(Outcome::Reply(Reply::Ok(Dictionary::new())))
}

/// Handles a publication. The media "described by the SDP is published to rtpengine directly, and other peer can then subscribe".
pub(super) fn handle_publish<P>(
    calls: &mut Calls<P>,
    now_ns: u64,
    request: &Request,
    ports: &mut dyn PortSource<P>,
    random: Random<'_>,
) -> Result<Outcome, Failure> {
    let names = Names::of(request)?;
    let mut options = Options::of_request(request)?;
    let sdp = Sdp::parse(request.required("sdp")?)?;
    let id = CallId::new(names.call);
    let is_publisher =
        |one: &Dialog<P>| one.is_publication && one.parties[0].has_tag(names.tags.from);
    let call = calls.calls.get(&id);
    let at = call.and_then(|call| call.dialogs.iter().position(is_publisher));
    match (call, at) {
        (None, _) => signals::admit(calls)?,
        (Some(call), None) => room_for_dialog(call)?,
        (Some(_), Some(_)) => {}
    }
    let dialog = at.and_then(|at| call?.dialogs.get(at));
    // There is no other party that could use another transport.
    options.transport = Transport::of("RTP/AVP");
    options.replace.origin = true;
    let mut resources = Resources {
        ports,
        random,
        next_stream: &mut calls.next_stream,
    };
    let prepared = offer::prepare(&mut resources, dialog, Side::A, &options, sdp)?;
    let reply = taken(&prepared.media, &options).ok_or_else(no_audio)?;
    let reply = Sdp::parse(reply.as_bytes())?;
    let places = prepared.places.clone();
    // A new dialog is tried first outside the registry, so that a request that cannot be answered leaves no traces.
    let mut tried = Dialog::begun(now_ns, &names.tags, places.clone());
    let is_new = call.is_none();
    let dialog = match at {
        Some(at) => calls
            .calls
            .get_mut(&id)
            .and_then(|call| call.dialogs.get_mut(at)),
        None => Some(&mut tried),
    };
    let Some(dialog) = dialog else {
        return Err(Failure::NoCall(shown(names.call)));
    };
    dialog.is_publication = true;
    let (_, mut warnings) = prepared.commit(dialog, Side::A, None, options.clone());
    if let Some(exchange) = &dialog.offer {
        answer::prepare(dialog, exchange, &options, reply.clone())?;
    }
    let at = match at {
        Some(at) => at,
        None => {
            calls.totals.calls += u64::from(is_new);
            let call = calls.calls.entry(id.clone());
            let call = call.or_insert_with(|| Live::new(id.clone(), now_ns));
            call.dialogs.push(tried);
            call.dialogs.len() - 1
        }
    };
    let (sdp, more) =
        signals::finish_answer(calls, now_ns, &id, (at, Side::A), None, &options, reply)?;
    warnings.join(more);
    let mut keys = Dictionary::new();
    keys.push("sdp", sdp.to_bytes());
    warnings.tell(&mut keys);
    Ok(Outcome::Reply(Reply::Ok(keys)))
}

/// Finds the subscription that a request names.
fn subscription<P>(calls: &Calls<P>, request: &Request) -> Result<(CallId, usize), Failure> {
    let name = bounded("call-id", request.required("call-id")?)?;
    let id = CallId::new(name);
    let call = calls.calls.get(&id);
    let call = call.ok_or_else(|| Failure::NoCall(shown(name)))?;
    let tag = bounded("to-tag", request.required("to-tag")?)?;
    let at = call.subscription(tag).ok_or_else(|| Failure::NoParty {
        key: "to-tag",
        value: shown(tag),
    })?;
    Ok((id, at))
}

/// Updates copies after their originals have changed: they may have other payload types, be replaced by other streams, or have ended.
pub(super) fn follow<P>(calls: &mut Calls<P>, now_ns: u64, id: &CallId) {
    let Some(call) = calls.calls.get_mut(id) else {
        return;
    };
    calls.actions.extend(call.update_copies());
    // The order is reversed, so that the remaining indices stay valid.
    for at in (0..call.dialogs.len()).rev() {
        if calls.calls.get(id).is_some_and(|call| call.is_orphan(at)) {
            calls.end_dialog(now_ns, id, at, EndReason::Deleted);
        }
    }
}

/// Returns the subscriber's tag from a request, or a new one.
fn subscriber(request: &Request, random: Random<'_>) -> Result<Vec<u8>, Refusal> {
    Ok(match optional(request, "to-tag")? {
        Some(tag) => tag.to_vec(),
        None => {
            let mut bytes = [0; 8];
            random(&mut bytes);
            format!("{:016x}", u64::from_be_bytes(bytes)).into_bytes()
        }
    })
}

/// Creates the reply to a request for a subscription to these sources.
fn offered(
    sdp: &Sdp,
    tags: Vec<Vec<u8>>,
    subscriber: Vec<u8>,
    labels: Option<[(&'static str, Value); 2]>,
    warnings: Warnings,
) -> Outcome {
    let mut keys = Dictionary::new();
    keys.push("sdp", sdp.to_bytes());
    if let [one] = &tags[..] {
        keys.push("from-tag", one.clone());
    }
    let tags = tags.into_iter().map(Value::from).collect();
    keys.push("from-tags", Value::List(tags));
    keys.push("to-tag", subscriber);
    for (key, value) in labels.into_iter().flatten() {
        keys.push(key, value);
    }
    warnings.tell(&mut keys);
    Outcome::Reply(Reply::Ok(keys))
}

/// Labels each medium (RFC 4574), because "The SRC MUST include the "label" attribute" in its offers to a recording server (RFC 7866,
/// section 7.1.1). The proxy's metadata refer to the labels. The reply therefore lists which party and `m=` line each label belongs to.
fn label<P>(sdp: &mut Sdp, sources: &[Source<'_, P>]) -> [(&'static str, Value); 2] {
    let mut of_tags: Vec<(&[u8], Vec<Value>)> = Vec::new();
    let mut of_labels = Dictionary::new();
    for (place, (media, source)) in sdp.media.iter_mut().zip(sources).enumerate() {
        let label = (place + 1).to_string();
        media.set_attribute("label", &label);
        let mut one = Dictionary::new();
        one.push("index", Value::Integer(source.index as i64 + 1));
        one.push("type", source.slot.media.clone());
        one.push("mode", source.direction().name());
        let mut labelled = one.clone();
        labelled.push("tag", Value::bytes(source.tag));
        of_labels.push(label.clone().into_bytes(), Value::Dictionary(labelled));
        one.push("label", label);
        match of_tags.iter_mut().find(|(tag, _)| *tag == source.tag) {
            Some((_, medias)) => medias.push(Value::Dictionary(one)),
            None => of_tags.push((source.tag, vec![Value::Dictionary(one)])),
        }
    }
    let of_tag = |(tag, medias): (&[u8], Vec<Value>)| {
        let mut one = Dictionary::new();
        one.push("tag", Value::bytes(tag));
        one.push("medias", Value::List(medias));
        Value::Dictionary(one)
    };
    let of_tags = of_tags.into_iter().map(of_tag).collect();
    [
        ("tag-medias", Value::List(of_tags)),
        ("media-labels", Value::Dictionary(of_labels)),
    ]
}

impl<P> Source<'_, P> {
    /// Returns the direction that the party's own description has.
    fn direction(&self) -> Direction {
        let side = self
            .slot
            .running
            .as_deref()
            .map(|spec| &spec.sides[self.side as usize]);
        match side.map(|side| (side.may_send, side.may_receive)) {
            Some((true, true)) => Direction::SendRecv,
            Some((true, false)) => Direction::SendOnly,
            Some((false, true)) => Direction::RecvOnly,
            Some((false, false)) | None => Direction::Inactive,
        }
    }
}

/// Creates the failure of a publication that has no usable format.
fn no_audio() -> Failure {
    Failure::NoLine(Unusable::NoAudio.to_string())
}

/// Checks whether the call may have another dialog.
fn room_for_dialog<P>(call: &Live<P>) -> Result<(), Failure> {
    let found = call.dialogs.len();
    if found >= DIALOGS_MAX {
        Err(Failure::TooMany {
            what: "dialogs of the call",
            found,
            allowed: DIALOGS_MAX,
        })
    } else {
        Ok(())
    }
}

/// Returns the streams that a request wants copied: those of one party, of several, or of all.
fn sources<'a, P>(call: &'a Live<P>, request: &'a Request) -> Result<Vec<Source<'a, P>>, Failure> {
    let originals = || call.dialogs.iter().filter(|one| !one.is_copy());
    let streams = |dialog: &'a Dialog<P>, side: Side| {
        let tag = dialog.party(side).tag.as_deref().unwrap_or_default();
        let slots = dialog.slots.iter().enumerate();
        slots.filter_map(move |(index, slot)| {
            let slot = slot.as_ref().filter(|slot| slot.running.is_some())?;
            (slot.kind == StreamKind::Audio).then_some(Source {
                tag,
                index,
                slot,
                side,
            })
        })
    };
    let of = |is_meant: &dyn Fn(&Dialog<P>, Side) -> bool| {
        let sides = originals().flat_map(|one| Side::BOTH.map(|side| (one, side)));
        let meant = sides.filter(|(one, side)| is_meant(one, *side));
        // If the call was forked, the party is in several dialogs. Only those that were answered have streams.
        meant
            .map(|(one, side)| streams(one, side).collect::<Vec<_>>())
            .find(|found| !found.is_empty())
    };
    let no_party = |key: &'static str, value: String| Failure::NoParty { key, value };
    let all = request.one_of(
        "all",
        &[("none", false), ("all", true), ("offer-answer", true)],
    )?;
    if all == Some(true) || request.has_flag("all") {
        let sides = originals().flat_map(|one| Side::BOTH.map(|side| (one, side)));
        let is_publication = |one: &Dialog<P>, side: Side| one.is_publication && side == Side::B;
        let sides = sides.filter(|(one, side)| !is_publication(one, *side));
        return Ok(sides.flat_map(|(one, side)| streams(one, side)).collect());
    }
    let mut tags: Vec<&[u8]> = match request.keys().get("from-tags") {
        Some(Value::List(_)) => {
            let texts = request.texts("from-tags")?;
            texts.into_iter().map(str::as_bytes).collect()
        }
        _ => Vec::new(),
    };
    tags.truncate(DIALOGS_MAX);
    if tags.is_empty() {
        tags.extend(optional(request, "from-tag")?);
    }
    if !tags.is_empty() {
        let mut found = Vec::new();
        for tag in tags {
            let meant = of(&|one, side| one.party(side).has_tag(tag));
            found.extend(meant.ok_or_else(|| no_party("from-tag", shown(tag)))?);
        }
        return Ok(found);
    }
    let Some(label) = request.text("label")?.or(request.text("from-label")?) else {
        let key = "from-tag";
        let allowed = "one of from-tag, from-tags or label, or the flag all".to_owned();
        return Err(Refusal::Missing { key, allowed }.into());
    };
    let meant = of(&|one, side| one.party(side).label.as_deref() == Some(label));
    meant.ok_or_else(|| no_party("label", shown(label.as_bytes())))
}

/// Creates the description that the subscriber gets. "The reply message will contain a sendonly offer SDP in `sdp` which by default will
/// mirror the SDP of the call participant being subscribed to."
fn description<P>(sources: &[Source<'_, P>]) -> String {
    let mut sdp = String::new();
    for (index, source) in sources.iter().enumerate() {
        let at = source.slot.local[source.side as usize].rtp;
        let family = super::Family::of(at.ip()).name();
        if index == 0 {
            // Writing to a string does not fail.
            let _ = write!(
                sdp,
                "v=0\r\no=- {} 1 IN {family} {}\r\ns=-\r\nt=0 0\r\n",
                source.slot.stream.0,
                at.ip()
            );
        }
        let spec = source.slot.running.as_deref();
        let sends = spec.and_then(|spec| spec.sides[source.side as usize].sends.as_deref());
        let named: Vec<(&Payload, String)> = sends
            .into_iter()
            .flat_map(|map| map.iter())
            .filter_map(|payload| Some((payload, rtpmap(payload)?)))
            .collect();
        let _ = write!(sdp, "m=audio {} RTP/AVP", at.port());
        for (payload, _) in &named {
            let _ = write!(sdp, " {}", payload.payload_type.0);
        }
        let _ = write!(sdp, "\r\nc=IN {family} {}\r\n", at.ip());
        for (payload, rtpmap) in &named {
            let number = payload.payload_type.0;
            let _ = write!(sdp, "a=rtpmap:{number} {rtpmap}\r\n");
            if payload.carries == Carries::TelephoneEvent {
                let _ = write!(sdp, "a=fmtp:{number} 0-15\r\n");
            }
        }
        sdp.push_str("a=sendonly\r\n");
    }
    sdp
}

/// Returns the `rtpmap` of a payload type. `None`: its codec is only forwarded, so its name is unknown here.
fn rtpmap(payload: &Payload) -> Option<String> {
    match payload.carries {
        Carries::Audio(format) => Some(format.to_string()),
        Carries::TelephoneEvent => Some(format!("telephone-event/{}", payload.clock_rate_hz)),
        Carries::ComfortNoise => Some(format!("CN/{}", payload.clock_rate_hz)),
        Carries::Opaque(_) => None,
    }
}

/// Creates the answer to a publication. "Only one codec for each media section will be listed, and by default this will be the first
/// supported codec from the published media."
///
/// A publication has no other party, so the addresses are placeholders, which are replaced later. Returns `None` if no format can be used.
fn taken(media: &[Offered], options: &Options) -> Option<String> {
    let mut sdp =
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n".to_owned();
    let mut takes_any = false;
    for one in media {
        let codec = match &one.plan {
            Plan::Audio(audio) => {
                let wanted = &options.rules.accept.named;
                let codecs = || audio.codecs.codecs().filter(|codec| codec.is_audio());
                let preferred = wanted
                    .iter()
                    .find_map(|spec| codecs().find(|codec| spec.matches(codec)));
                preferred.or_else(|| codecs().find(|codec| is_supported(codec)))
            }
            _ => None,
        };
        takes_any |= codec.is_some();
        // Writing to a string does not fail.
        let _ = match codec {
            Some(codec) => write!(
                sdp,
                "m=audio 9 RTP/AVP {0}\r\na=rtpmap:{0} {1}\r\na=recvonly\r\n",
                codec.payload_type.0,
                codec.rtpmap()
            ),
            None => write!(sdp, "m=audio 0 RTP/AVP 0\r\n"),
        };
    }
    takes_any.then_some(sdp)
}
