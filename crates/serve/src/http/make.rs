//! Calls that programs make. `POST /v1/calls` makes a call, and `PATCH` replaces the descriptions of its parties. Each request is carried
//! out as an offer and an answer of the ng protocol, without another request in between.

use std::net::SocketAddr;

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as JsonValue};
use threadbare_control::calls::{CallId, StreamRecord};
use threadbare_control::ng::{Command, Dictionary, Value, json};
use utoipa::ToSchema;

use super::app::{App, Json, within};
use super::calls::{path, unknown};
use super::describe::{PlainSide, Side, audio};
use super::id::{CallPath, Id};
use super::problem::Problem;
use super::record::CallRecord;
use super::recordings::wanted_change;
use super::requests::{carry_out, done, keys, request};
use crate::orders::NotDone;
use crate::service::Service;
use threadbare_recording::Change;

/// A call to be made: either `sides`, or `offer` and `answer`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"sides": [{"address": "192.0.2.1:4000", "codec": "PCMU/8000"}, {"address": "192.0.2.2:4000", "codec": "PCMA/8000"}]}))]
pub(super) struct NewCall {
    /// Call-ID; default: chosen by the relay.
    id: Option<String>,
    /// The two parties.
    #[schema(min_items = 2, max_items = 2)]
    sides: Option<Vec<PlainSide>>,
    /// The SDP of the party that offers.
    offer: Option<String>,
    /// The SDP of the party that answers.
    answer: Option<String>,
    /// Keys of the ng protocol for the offer, such as `{"transport-protocol": "RTP/SAVP"}`; together with `offer` and
    /// `answer`.
    #[schema(value_type = Option<Object>)]
    options: Option<Map<String, JsonValue>>,
    /// Recording settings for this call, in place of `record` in the configuration file. The file must set a folder for
    /// recordings.
    record: Option<CallRecord>,
}

/// A change of a call: new descriptions of its parties (`sides`, or `offer` and `answer`), a change of its recording, or both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"sides": [{"address": "192.0.2.1:4000", "codec": "PCMU/8000"}, {"address": "192.0.2.2:4000", "codec": "PCMA/8000"}]}))]
pub(super) struct CallChange {
    /// The two parties, in the same order as before.
    #[schema(min_items = 2, max_items = 2)]
    sides: Option<Vec<PlainSide>>,
    /// The SDP of the party that offered first.
    offer: Option<String>,
    /// The SDP of the party that answered.
    answer: Option<String>,
    /// Keys of the ng protocol for the offer; together with `offer` and `answer`.
    #[schema(value_type = Option<Object>)]
    options: Option<Map<String, JsonValue>>,
    /// `running`, `paused` (leaves out the following audio) or `stopped` (ends the file). May be set alone or with
    /// descriptions.
    recording: Option<String>,
}

/// A call that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MadeCall {
    id: String,
    /// Path of the call for further requests.
    path: String,
    /// The party that offers, then the one that answers.
    #[schema(min_items = 2, max_items = 2)]
    sides: Vec<MadeSide>,
}

/// The result for a party.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MadeSide {
    /// Tag that identifies this party in actions.
    tag: String,
    /// The SDP to be sent to this party.
    sdp: String,
    /// The address to which this party must send RTP. Absent: the first stream is not audio.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    local_address: Option<SocketAddr>,
    /// The payload type of this party's codec, in both directions. Absent: the party was described by an SDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_type: Option<u8>,
}

/// Make a call between two parties
///
/// The parties are described in plain words or by their SDPs. The relay opens ports for both, and returns the address to which
/// each party must send.
#[utoipa::path(post, path = "/v1/calls", tag = "calls", request_body = NewCall, responses(
    (status = 201, body = MadeCall, description = "The call is running", headers(("Location" = String))),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The call already exists"),
    (status = 422, body = Problem, content_type = "application/problem+json", description = "The descriptions do not match"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "New calls are refused now")))]
pub(super) async fn make(
    State(app): State<App>,
    Json(new): Json<NewCall>,
) -> Result<Made, Problem> {
    let description = Description::read(new.sides, new.offer, new.answer, new.options)?;
    let record = new.record;
    let id = match new.id {
        Some(id) if id.is_empty() => {
            return Err(Problem::value("id", "", "a text that is not empty"));
        }
        Some(id) => CallId::new(id.as_bytes()),
        None => CallId::new(format!("{:032x}", random()).as_bytes()),
    };
    let name = id.clone();
    let made = app.ask(move |service: &mut Service| begin(service, &name, &description, record));
    let made = made.await??;
    let claim = app.ask(move |service: &mut Service| service.wait_for_claim(&id));
    if let Some(told) = claim.await? {
        // If another node owns the call, the claim is refused, and the call has ended here.
        let refused = |reason: String| Problem::new(StatusCode::CONFLICT, reason);
        let told = within(told).await?.map_err(|_| NotDone::Gone)?;
        told.map_err(refused)?;
    }
    Ok((
        StatusCode::CREATED,
        [(LOCATION, made.path.clone())],
        axum::Json(made),
    ))
}

/// Replace the descriptions of a call's parties
///
/// The request counts as an offer of the party that offered first, and its answer. Codecs and addresses change; ports stay. If
/// the offer or answer is refused, the call continues as before. With `recording` alone, only the recording changes.
#[utoipa::path(patch, path = "/v1/calls/{id}", tag = "calls", request_body = CallChange, params(CallPath), responses(
    (status = 200, body = MadeCall),
    (status = 204, description = "The reply if only `recording` changes"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The call does not have two parties"),
    (status = 422, body = Problem, content_type = "application/problem+json", description = "The descriptions do not match")))]
pub(super) async fn change(
    State(app): State<App>,
    Id(id): Id,
    Json(new): Json<CallChange>,
) -> Result<Response, Problem> {
    if let Some(text) = &new.recording {
        let command = match wanted_change(text)? {
            Change::Resume => Command::StartRecording,
            Change::Pause => Command::PauseRecording,
            Change::Stop => Command::StopRecording,
        };
        carry_out(&app, &id, keys(command, &id)).await?;
        if new.sides.is_none() && new.offer.is_none() && new.answer.is_none() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
    let description = Description::read(new.sides, new.offer, new.answer, new.options)?;
    let changed = app.ask(move |service: &mut Service| {
        let tags = tags(service, &id)?;
        exchange(service, &id, &tags, true, &description)
    });
    Ok(axum::Json(changed.await??).into_response())
}

type Made = (StatusCode, [(HeaderName, String); 1], axum::Json<MadeCall>);

/// The descriptions of both parties, as a request has them.
enum Description {
    Plain([Side; 2]),
    Sdp {
        offer: String,
        answer: String,
        options: Dictionary,
    },
}

impl Description {
    fn read(
        sides: Option<Vec<PlainSide>>,
        offer: Option<String>,
        answer: Option<String>,
        options: Option<Map<String, JsonValue>>,
    ) -> Result<Description, Problem> {
        match (sides, offer, answer) {
            (Some(sides), None, None) if options.is_none() => {
                let found = sides.len();
                let read = |(at, side): (usize, &PlainSide)| side.read(at);
                let sides = sides.iter().enumerate().map(read);
                let sides: Vec<Side> = sides.collect::<Result<_, _>>()?;
                let sides = <[Side; 2]>::try_from(sides);
                let odd = |_| Problem::value("sides", &format!("{found} of them"), "two");
                let sides = sides.map_err(odd)?;
                if sides[0].interface.is_some() != sides[1].interface.is_some() {
                    return Err(Problem::value(
                        "interface",
                        "it is set for only one side",
                        "set for both sides, or for neither",
                    ));
                }
                Ok(Description::Plain(sides))
            }
            (None, Some(offer), Some(answer)) => Ok(Description::Sdp {
                offer,
                answer,
                options: read_options(options.unwrap_or_default())?,
            }),
            _ => {
                let problem = Problem::new(
                    StatusCode::BAD_REQUEST,
                    "the request does not describe the parties",
                );
                Err(problem.about("sides", "sides; or offer and answer, with options"))
            }
        }
    }
}

/// Parses `options`, which are the keys of the ng protocol that a request may add.
fn read_options(options: Map<String, JsonValue>) -> Result<Dictionary, Problem> {
    if let Some(name) = options
        .keys()
        .find(|name| OWN.contains(&name.replace(' ', "-").as_str()))
    {
        let allowed = format!("keys other than {}", OWN.join(", "));
        return Err(Problem::value("options", name, allowed));
    }
    let text = JsonValue::Object(options).to_string();
    json::decode(text.as_bytes()).map_err(|error| {
        let problem = Problem::new(StatusCode::BAD_REQUEST, format!("options: {error}"));
        problem.about(
            "options",
            "keys of the ng protocol, with texts, whole numbers, lists and objects",
        )
    })
}

fn begin(
    service: &mut Service,
    id: &CallId,
    description: &Description,
    record: Option<CallRecord>,
) -> Result<MadeCall, Problem> {
    if service.calls.view(id).is_some() {
        let problem = Problem::new(
            StatusCode::CONFLICT,
            format!("the call {id} already exists"),
        );
        return Err(problem.about("id", "an id that no call has"));
    }
    if let Some(record) = record {
        let spec = record.read(service)?;
        service.media.wish(id.clone(), spec);
    }
    let tags = ["a", "b"].map(str::to_owned);
    let made = exchange(service, id, &tags, false, description);
    let made = made.and_then(|made| match tags_of(service, id) {
        Some(_) => Ok(made),
        None => {
            let problem = Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the answer accepts none of the offered media",
            );
            Err(problem.about(
                "answer",
                "an m= line for each of the offer's, one of them with a port (RFC 3264, section 6)",
            ))
        }
    });
    if made.is_err() {
        // Without this, the offer would wait for an answer that never comes.
        service.end(id);
        service.media.forget_wish(id);
    }
    made
}

/// Returns the tags of the parties of a call that has two.
fn tags(service: &Service, id: &CallId) -> Result<[String; 2], Problem> {
    if service.calls.view(id).is_none() {
        return Err(unknown(id));
    }
    tags_of(service, id).ok_or_else(|| {
        let detail = format!("the call {id} does not have two connected parties");
        Problem::new(StatusCode::CONFLICT, detail)
    })
}

/// Returns the tags of both parties. `None`: the call is not answered, or has several answers.
fn tags_of(service: &Service, id: &CallId) -> Option<[String; 2]> {
    let streams = service.calls.view(id)?.streams.into_iter();
    // Copies for subscribers have no parties.
    let runs = |one: &StreamRecord| {
        let stream = service.calls.stream(one.stream);
        stream.is_some_and(|(_, spec)| spec.copies.is_none())
    };
    let running = streams.filter(runs);
    let mut tags = running.map(|one| one.sides.map(|side| side.tag));
    let first = tags.next()?;
    tags.all(|one| one == first).then_some(first)
}

/// Carries out an offer and the answer to it.
fn exchange(
    service: &mut Service,
    id: &CallId,
    tags: &[String; 2],
    is_again: bool,
    description: &Description,
) -> Result<MadeCall, Problem> {
    let mut offer = match description {
        Description::Plain(sides) => plain_options(sides),
        Description::Sdp { options, .. } => options.clone(),
    };
    // The version must grow with each description (RFC 3264, section 8).
    let version = threadbare_runtime::clock_now_ns() / 1_000_000;
    let sdp_a = match description {
        Description::Plain([a, _]) => a.offer(version),
        Description::Sdp { offer, .. } => offer.clone(),
    };
    offer = offer.into_iter().chain(keys(Command::Offer, id)).collect();
    offer.push("from-tag", tags[0].clone());
    if is_again {
        offer.push("to-tag", tags[1].clone());
    }
    let to_b = ask(service, offer, &sdp_a)?;
    let offered = audio(&to_b);
    let sdp_b = match (description, &offered) {
        (Description::Plain([_, b]), Some((codecs, _))) => {
            let none = || {
                Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "no codec remains for the offer",
                )
            };
            b.answer(version, codecs)
                .ok_or_else(|| none().about("sides[1].codec", CONVERTED))?
        }
        (Description::Plain(_), None) => String::new(),
        (Description::Sdp { answer, .. }, _) => answer.clone(),
    };
    let mut answer = keys(Command::Answer, id);
    answer.push("from-tag", tags[0].clone());
    answer.push("to-tag", tags[1].clone());
    let to_a = ask(service, answer, &sdp_b).map_err(|problem| match description {
        Description::Plain([a, b]) if !b.has_codec_of(a) => {
            problem.about("sides[1].codec", CONVERTED)
        }
        _ => problem,
    })?;
    let answered = audio(&to_a);
    let side = |place: usize, sdp: Vec<u8>, audio: Option<(Vec<_>, SocketAddr)>| {
        let own = match description {
            Description::Plain(sides) => Some(&sides[place]),
            Description::Sdp { .. } => None,
        };
        let found = own
            .zip(audio.as_ref())
            .and_then(|(own, (codecs, _))| own.find(codecs));
        MadeSide {
            tag: tags[place].clone(),
            sdp: String::from_utf8_lossy(&sdp).into_owned(),
            payload_type: found.map(|codec| codec.payload_type.0),
            local_address: audio.map(|(_, address)| address),
        }
    };
    Ok(MadeCall {
        id: id.to_string(),
        path: path(id),
        sides: vec![side(0, to_a, answered), side(1, to_b, offered)],
    })
}

/// Carries out a request, and returns the SDP of its reply.
fn ask(service: &mut Service, mut keys: Dictionary, sdp: &str) -> Result<Vec<u8>, Problem> {
    keys.push("sdp", Value::text(sdp));
    let request = request(keys)?;
    let reply = done(service.answer_program(&request))?;
    match reply.get("sdp") {
        Some(Value::Bytes(sdp)) => Ok(sdp.to_vec()),
        _ => Ok(Vec::new()),
    }
}

/// Builds the options of an offer between two plain sides. If the second side has another codec than the first, this codec is offered too.
fn plain_options([a, b]: &[Side; 2]) -> Dictionary {
    let mut added = Vec::new();
    if !b.has_codec_of(a) {
        added.push(Value::text(&b.codec()));
    }
    if b.has_telephone_events() && !a.has_telephone_events() {
        added.push(Value::text("telephone-event"));
    }
    let mut codec = Dictionary::new();
    if !added.is_empty() {
        codec.push("transcode", Value::List(added));
    }
    if a.has_telephone_events() && !b.has_telephone_events() {
        // The relay accepts telephone events from the first side, and converts them to tones for the second.
        codec.push("accept", Value::List(vec![Value::text("telephone-event")]));
    }
    let mut options = Dictionary::new();
    if !codec.is_empty() {
        options.push("codec", codec);
    }
    if let (Some(a), Some(b)) = (&a.interface, &b.interface) {
        options.push(
            "direction",
            Value::List(vec![Value::text(a), Value::text(b)]),
        );
    }
    options
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    threadbare_process::system::random_bytes(&mut bytes);
    u128::from_ne_bytes(bytes)
}

/// The codecs that the second side may have, for error texts.
const CONVERTED: &str = "the codec of the first side; or any of PCMU, PCMA, G722, L16, L24 and opus if the first side also has one of \
these";
/// Keys that `options` may not contain, because this module sets them.
const OWN: [&str; 7] = [
    "command",
    "call-id",
    "from-tag",
    "to-tag",
    "via-branch",
    "sdp",
    "supports",
];
