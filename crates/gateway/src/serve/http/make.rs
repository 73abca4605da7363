//! Calls made by programs: `POST /v1/calls`, and the same parties described anew by `PATCH`. Both are an offer and an answer of the ng protocol,
//! carried out in one turn of the control thread.

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
use crate::recording::Change;
use crate::serve::orders::NotDone;
use crate::serve::service::Service;

/// A call: `sides`, or `offer` and `answer`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"sides": [{"address": "192.0.2.1:4000", "codec": "PCMU/8000"}, {"address": "192.0.2.2:4000", "codec": "PCMA/8000"}]}))]
pub(super) struct NewCall {
    /// Its Call-ID; one of the relay's choice without it.
    id: Option<String>,
    /// The two parties.
    #[schema(min_items = 2, max_items = 2)]
    sides: Option<Vec<PlainSide>>,
    /// The SDP of the party that offers.
    offer: Option<String>,
    /// The SDP of the party that answers.
    answer: Option<String>,
    /// Keys of the ng protocol for the offer, such as `{"transport-protocol": "RTP/SAVP"}`; beside `offer` and `answer`.
    #[schema(value_type = Option<Object>)]
    options: Option<Map<String, JsonValue>>,
    /// How it is recorded, in place of `record` in the file; needs a folder of recordings there.
    record: Option<CallRecord>,
}

/// Its parties described anew: `sides`, or `offer` and `answer`; or whether it is recorded.
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
    /// Keys of the ng protocol for the offer; beside `offer` and `answer`.
    #[schema(value_type = Option<Object>)]
    options: Option<Map<String, JsonValue>>,
    /// `running`, `paused` (what follows is left out of the file) or `stopped` (the file ends); alone, or beside a description.
    recording: Option<String>,
}

/// A call that is up.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MadeCall {
    id: String,
    /// Where it is found, changed and ended.
    path: String,
    /// The party that offers, and the one that answers.
    #[schema(min_items = 2, max_items = 2)]
    sides: Vec<MadeSide>,
}

/// What a party is to be told.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MadeSide {
    /// By which actions name it.
    tag: String,
    /// The SDP for it.
    sdp: String,
    /// Where it is to send its RTP; absent: there is no first audio.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    local_address: Option<SocketAddr>,
    /// The payload type of its codec, of what it sends and of what it is sent; of parties in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_type: Option<u8>,
}

/// Make a call between two parties
///
/// The parties are described in plain words or by their SDPs. The relay opens ports for both, and tells what each party is to send where.
#[utoipa::path(post, path = "/v1/calls", tag = "calls", request_body = NewCall, responses(
    (status = 201, body = MadeCall, description = "It is up", headers(("Location" = String))),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "There is such a call already"),
    (status = 422, body = Problem, content_type = "application/problem+json", description = "The descriptions do not fit"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "No new calls are taken now")))]
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
        // The call has ended if it is refused.
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

/// Describe the parties of a call anew
///
/// An offer of the party that offered first, and its answer: codecs and addresses change, ports stay. If it is refused, the call goes on as before.
/// With `recording` alone, the recording pauses, ends, begins or goes on, and nothing else changes.
#[utoipa::path(patch, path = "/v1/calls/{id}", tag = "calls", request_body = CallChange, params(CallPath), responses(
    (status = 200, body = MadeCall),
    (status = 204, description = "Of `recording` alone"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "It has not two parties"),
    (status = 422, body = Problem, content_type = "application/problem+json", description = "The descriptions do not fit")))]
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

/// What the parties say.
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
                        "of one side",
                        "of both sides, or of none",
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
                let problem =
                    Problem::new(StatusCode::BAD_REQUEST, "the parties are not described");
                Err(problem.about(
                    "sides",
                    "sides; or offer and answer, and options beside them",
                ))
            }
        }
    }
}

/// Keys that a request may add.
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
            format!("{id}: there is such a call already"),
        );
        return Err(problem.about("id", "that of no call"));
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
                "the answer takes none of the offered media",
            );
            Err(problem.about(
                "answer",
                "an m= line for each of the offer's, one of them with a port (RFC 3264, section 6)",
            ))
        }
    });
    if made.is_err() {
        // Nobody would answer it any more.
        service.end(id);
        service.media.forget_wish(id);
    }
    made
}

/// Of a call with two parties.
fn tags(service: &Service, id: &CallId) -> Result<[String; 2], Problem> {
    if service.calls.view(id).is_none() {
        return Err(unknown(id));
    }
    tags_of(service, id).ok_or_else(|| {
        let detail = format!("{id}: the call has not two parties that were joined");
        Problem::new(StatusCode::CONFLICT, detail)
    })
}

/// `None`: nobody has answered, or more than one.
fn tags_of(service: &Service, id: &CallId) -> Option<[String; 2]> {
    let streams = service.calls.view(id)?.streams.into_iter();
    // Copies for subscribers are no party's.
    let runs = |one: &StreamRecord| {
        let stream = service.calls.stream(one.stream);
        stream.is_some_and(|(_, spec)| spec.copies.is_none())
    };
    let running = streams.filter(runs);
    let mut tags = running.map(|one| one.sides.map(|side| side.tag));
    let first = tags.next()?;
    tags.all(|one| one == first).then_some(first)
}

/// An offer and its answer.
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
    // RFC 3264, section 8: it grows with each description.
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
                    "no codec is left to offer",
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

/// The SDP that a request is answered with.
fn ask(service: &mut Service, mut keys: Dictionary, sdp: &str) -> Result<Vec<u8>, Problem> {
    keys.push("sdp", Value::text(sdp));
    let request = request(keys)?;
    let reply = done(service.answer_program(&request))?;
    match reply.get("sdp") {
        Some(Value::Bytes(sdp)) => Ok(sdp.to_vec()),
        _ => Ok(Vec::new()),
    }
}

/// What the second side has and the first one has not is offered, too.
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
        // The second side hears tones.
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
    crate::system::random_bytes(&mut bytes);
    u128::from_ne_bytes(bytes)
}

/// Of the second side.
const CONVERTED: &str = "that of the first side, or one of PCMU, PCMA, G722, L16, L24, opus if the first side has one of these";
/// Keys that belong to the request itself.
const OWN: [&str; 7] = [
    "command",
    "call-id",
    "from-tag",
    "to-tag",
    "via-branch",
    "sdp",
    "supports",
];
