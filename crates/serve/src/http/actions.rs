//! Actions on the media of a call: hold, mute, play, record, DTMF.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use threadbare_control::calls::CallId;
use threadbare_control::ng::{Command, Dictionary};
use utoipa::ToSchema;

use super::app::{App, Json};
use super::calls::unknown;
use super::id::{CallPath, Id};
use super::problem::Problem;
use super::requests::{carry_out, done, keys, request};
use crate::service::Service;

/// The party of an action.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({}))]
pub(super) struct Party {
    /// The SIP tag of a party; without it, all parties.
    tag: Option<String>,
}

/// A file to play.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Play {
    /// The tag of the party that hears the file; without it, all parties hear it.
    tag: Option<String>,
    /// A file on the relay's machine: WAV, FLAC, Ogg Opus or MP3.
    file: String,
    /// How many times the file is played; default 1.
    #[schema(minimum = 1)]
    times: Option<u32>,
    /// Maximum total duration.
    duration_ms: Option<u32>,
    /// First frame of the first repetition.
    start_frame: Option<u32>,
}

/// Settings of a recording.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"file": "call.wav"}))]
pub(super) struct Record {
    /// Name of a WAV file in the folder of recordings; default: chosen by the relay.
    file: Option<String>,
    /// Metadata kept with the recording.
    metadata: Option<String>,
}

/// Options for ending a recording.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopRecord {
    /// Whether to delete the file.
    #[serde(default)]
    discard: bool,
}

/// DTMF digits to send on behalf of a party.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Dtmf {
    /// The tag of the party; the other one hears the digits.
    tag: String,
    /// 0 to 9, *, #, A to D: up to 32.
    digits: String,
    /// Duration of each digit.
    #[schema(minimum = 100, maximum = 5000)]
    duration_ms: Option<u32>,
    /// Pause between digits.
    #[schema(minimum = 100, maximum = 5000)]
    pause_ms: Option<u32>,
}

/// Put parties on hold: no media pass between them
#[utoipa::path(post, path = "/v1/calls/{id}/hold", tag = "actions", request_body = Party, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn hold(State(app): State<App>, Id(id): Id, Json(party): Json<Party>) -> Done {
    mute(&app, &id, Command::BlockMedia, party).await
}

/// Take parties off hold
#[utoipa::path(post, path = "/v1/calls/{id}/resume", tag = "actions", request_body = Party, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resume(State(app): State<App>, Id(id): Id, Json(party): Json<Party>) -> Done {
    mute(&app, &id, Command::UnblockMedia, party).await
}

/// Mute parties: the others hear silence instead
#[utoipa::path(post, path = "/v1/calls/{id}/mute", tag = "actions", request_body = Party, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn silence(State(app): State<App>, Id(id): Id, Json(party): Json<Party>) -> Done {
    mute(&app, &id, Command::SilenceMedia, party).await
}

/// Unmute parties
#[utoipa::path(post, path = "/v1/calls/{id}/unmute", tag = "actions", request_body = Party, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn unsilence(
    State(app): State<App>,
    Id(id): Id,
    Json(party): Json<Party>,
) -> Done {
    mute(&app, &id, Command::UnsilenceMedia, party).await
}

/// Play a file to one party or to all parties, in place of the other party's audio
#[utoipa::path(post, path = "/v1/calls/{id}/play", tag = "actions", request_body = Play, params(CallPath),
    responses((status = 204, description = "The file is playable, and its playback starts"), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn play(State(app): State<App>, Id(id): Id, Json(play): Json<Play>) -> Done {
    let mut keys = keys(Command::PlayMedia, &id);
    choose(&mut keys, play.tag)?;
    keys.push("file", play.file);
    for (key, number) in [
        ("repeat-times", play.times),
        ("repeat-duration", play.duration_ms),
        ("start-pos", play.start_frame),
    ] {
        if let Some(number) = number {
            keys.push(key, i64::from(number));
        }
    }
    finish(&app, &id, keys).await
}

/// Stop playing a file
#[utoipa::path(post, path = "/v1/calls/{id}/play/stop", tag = "actions", request_body = Party, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stop_play(
    State(app): State<App>,
    Id(id): Id,
    Json(party): Json<Party>,
) -> Done {
    let mut keys = keys(Command::StopMedia, &id);
    choose(&mut keys, party.tag)?;
    finish(&app, &id, keys).await
}

/// Record the call, or resume a recording
#[utoipa::path(post, path = "/v1/calls/{id}/record", tag = "actions", request_body = Record, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn record(State(app): State<App>, Id(id): Id, Json(record): Json<Record>) -> Done {
    let mut keys = keys(Command::StartRecording, &id);
    for (key, text) in [
        ("recording-file", record.file),
        ("metadata", record.metadata),
    ] {
        if let Some(text) = text {
            keys.push(key, text);
        }
    }
    finish(&app, &id, keys).await
}

/// Pause a recording
#[utoipa::path(post, path = "/v1/calls/{id}/record/pause", tag = "actions", params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pause_record(State(app): State<App>, Id(id): Id) -> Done {
    finish(&app, &id, keys(Command::PauseRecording, &id)).await
}

/// End a recording
#[utoipa::path(post, path = "/v1/calls/{id}/record/stop", tag = "actions", request_body = StopRecord, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stop_record(
    State(app): State<App>,
    Id(id): Id,
    Json(stop): Json<StopRecord>,
) -> Done {
    let mut keys = keys(Command::StopRecording, &id);
    if stop.discard {
        keys.push(
            "flags",
            threadbare_control::ng::Value::List(vec!["discard-recording".into()]),
        );
    }
    finish(&app, &id, keys).await
}

/// Send DTMF digits on behalf of a party
#[utoipa::path(post, path = "/v1/calls/{id}/dtmf", tag = "actions", request_body = Dtmf, params(CallPath),
    responses((status = 204), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn dtmf(State(app): State<App>, Id(id): Id, Json(dtmf): Json<Dtmf>) -> Done {
    let is_key = |digit: char| "0123456789*#ABCDabcd".contains(digit);
    if !(1..=DIGITS_MAX).contains(&dtmf.digits.len()) || !dtmf.digits.chars().all(is_key) {
        let allowed = format!("1 to {DIGITS_MAX} of the characters 0 to 9, *, # and A to D");
        return Err(Problem::value("digits", &dtmf.digits, allowed));
    }
    for (field, ms) in [
        ("duration_ms", dtmf.duration_ms),
        ("pause_ms", dtmf.pause_ms),
    ] {
        if let Some(ms) = ms.filter(|ms| !(100..=5000).contains(ms)) {
            return Err(Problem::value(field, &ms.to_string(), "100 to 5000"));
        }
    }
    if dtmf.tag.is_empty() {
        return Err(Problem::value("tag", "", "the tag of a party"));
    }
    let press = |digit: char| {
        let mut keys = keys(Command::PlayDtmf, &id);
        keys.push("from-tag", dtmf.tag.clone());
        keys.push("code", digit.to_string());
        for (key, ms) in [("duration", dtmf.duration_ms), ("pause", dtmf.pause_ms)] {
            if let Some(ms) = ms {
                keys.push(key, i64::from(ms));
            }
        }
        request(keys)
    };
    let presses: Vec<_> = dtmf.digits.chars().map(press).collect::<Result<_, _>>()?;
    let name = id.clone();
    let pressed = app.ask(move |service: &mut Service| {
        service.calls.view(&name)?;
        let press = |one| done(service.answer_program(one)).map(|_| ());
        Some(presses.iter().try_for_each(press))
    });
    pressed.await?.ok_or_else(|| unknown(&id))??;
    Ok(StatusCode::NO_CONTENT)
}

type Done = Result<StatusCode, Problem>;

async fn mute(app: &App, id: &CallId, command: Command, party: Party) -> Done {
    let mut keys = keys(command, id);
    choose(&mut keys, party.tag)?;
    finish(app, id, keys).await
}

/// Selects one party, or all of them.
fn choose(keys: &mut Dictionary, tag: Option<String>) -> Result<(), Problem> {
    match tag.as_deref() {
        // Without this check, an empty tag would count as no tag.
        Some("") => {
            return Err(Problem::value(
                "tag",
                "",
                "the tag of a party; omit it for all parties",
            ));
        }
        Some(tag) => keys.push("from-tag", tag.to_owned()),
        None => keys.push("all", "all"),
    }
    Ok(())
}

async fn finish(app: &App, id: &CallId, keys: Dictionary) -> Done {
    carry_out(app, id, keys).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Maximum number of digits in a request. A stream queues twice as many (`DTMF_DIGITS_MAX`).
const DIGITS_MAX: usize = 32;
