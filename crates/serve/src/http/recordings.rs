//! `/v1/recordings`: lists recordings, and reads and deletes their files. `PATCH /v1/streams/{name}`: pauses, stops or resumes
//! the recording of a stream.

mod range;

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::range::{Range, Wanted};
use super::app::{App, Json, within};
use super::problem::Problem;
use super::streams;
use threadbare_recording::{
    Asked, Change, Deleted, Entry, FileLoudness, OpenRecording, Pieces, ReadError, RecordingState,
    Subject,
};

/// A page of recordings, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RecordingPage {
    recordings: Vec<Recording>,
    /// Path and query of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A recording.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Recording {
    /// Unique number. Files that started later have greater numbers.
    id: String,
    /// The path to read and delete the file.
    path: String,
    /// The recorded stream. Absent: a call was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    /// Call-ID of the recorded call. Absent: a stream was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    /// Path of the file below the folder of recordings.
    file: String,
    /// `wav`, `wav-g711`, `mka`, `mka-g711` or `pcap`.
    format: &'static str,
    /// `running`: the file is still growing; `complete`; `cut`: a disk error ended the file; `recovered`: the process that
    /// wrote it was killed.
    state: &'static str,
    /// Start time, ms since 1970.
    started_unix_ms: u64,
    /// Duration of the audio; 0 while the file is growing.
    duration_ms: u64,
    /// Size of the file; 0 while it is growing.
    bytes: u64,
    /// Audio that is silent in the file because the disk was too slow.
    missed_ms: u64,
    /// Frames per second; absent for packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_hz: Option<u32>,
    /// Loudness of the file. Absent: not known yet, not measured, or too quiet.
    #[serde(skip_serializing_if = "Option::is_none")]
    loudness: Option<FileLoudness>,
    /// Why the file was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Location of the file in the object store. Absent: the file is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
}

/// A change of a stream's recording.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"recording": "paused"}))]
pub(super) struct StreamChange {
    /// `running`, `paused` (leaves out the following audio), or `stopped` (ends the file; `running` starts another one).
    recording: String,
}

impl Recording {
    pub(super) fn of(entry: &Entry) -> Recording {
        let (stream, call) = match &entry.of {
            Subject::Stream(name) => (Some(name.to_string()), None),
            Subject::Call(name) => (None, Some(name.to_string())),
        };
        Recording {
            id: entry.id.clone(),
            path: format!("{RECORDINGS}/{}", entry.id),
            stream,
            call,
            file: entry.path.display().to_string(),
            format: entry.format.name(),
            state: entry.state.name(),
            started_unix_ms: entry.started_unix_ms,
            duration_ms: entry.duration_ms,
            bytes: entry.bytes,
            missed_ms: entry.missed_ms,
            rate_hz: (entry.rate_hz > 0).then_some(entry.rate_hz),
            loudness: entry.loudness,
            error: entry.error.clone(),
            uri: entry.uri.clone(),
        }
    }
}

/// List recordings, page by page
///
/// Lists the files of this gateway by start time, including those of earlier processes. At most 100,000 files are listed;
/// beyond that, the oldest are left out.
#[utoipa::path(get, path = "/v1/recordings", tag = "recordings", operation_id = "list_recordings", params(
    ("stream" = Option<String>, Query, description = "Only recordings of this stream"),
    ("call" = Option<String>, Query, description = "Only recordings of the call with this Call-ID"),
    ("state" = Option<String>, Query, description = "Only recordings in this state: `running`, `complete`, `cut` or `recovered`"),
    ("after" = Option<String>, Query, description = "Start after this id"),
    ("limit" = Option<u32>, Query, minimum = 1, maximum = 500, description = "Recordings in a page; default 50")),
    responses((status = 200, body = RecordingPage),
    (status = 400, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<RecordingPage>, Problem> {
    let query = query.unwrap_or_default();
    let asked = asked(&query)?;
    let (found, has_more) = app.recorder.list(&asked);
    let last = found.last().filter(|_| has_more);
    let next = last.map(|last| {
        let kept = query.split('&').filter(|pair| !pair.is_empty());
        let kept = kept.filter(|pair| !pair.starts_with("after="));
        let after = format!("after={}", last.id);
        let pairs: Vec<&str> = kept.chain([after.as_str()]).collect();
        format!("{RECORDINGS}?{}", pairs.join("&"))
    });
    let recordings = found.iter().map(Recording::of).collect();
    Ok(axum::Json(RecordingPage { recordings, next }))
}

fn asked(query: &str) -> Result<Asked, Problem> {
    let mut asked = Asked {
        limit: LIMIT_USUAL,
        ..Asked::default()
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = || Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
        match name {
            "stream" => asked.stream = text(),
            "call" => asked.call = text(),
            "after" => asked.after = text(),
            "state" if STATES.contains(&value) => asked.state = text(),
            "state" => return Err(Problem::value("state", value, STATES.join(", "))),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| LIMITS.contains(limit));
                let allowed = format!("a whole number from {} to {}", LIMITS.start(), LIMITS.end());
                asked.limit = limit.ok_or_else(|| Problem::value("limit", value, allowed))?;
            }
            other => {
                let allowed = "stream, call, state, after, limit";
                return Err(Problem::value("query", other, allowed));
            }
        }
    }
    Ok(asked)
}

/// Read a file, or a part of it
///
/// `Range: bytes=FIRST-LAST` selects a part (one range). A growing file is read up to its current end. A file in an object
/// store is read from there.
#[utoipa::path(get, path = "/v1/recordings/{id}", tag = "recordings", operation_id = "read_recording",
    params(("id" = String, Path, description = "Id in the list")), responses(
    (status = 200, body = [u8], content_type = "application/octet-stream", description = "The file: audio/wav, audio/x-matroska or application/vnd.tcpdump.pcap"),
    (status = 206, body = [u8], content_type = "application/octet-stream"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 416, body = Problem, content_type = "application/problem+json"),
    (status = 500, body = Problem, content_type = "application/problem+json"),
    (status = 502, body = Problem, content_type = "application/problem+json", description = "The store refuses to return the recording"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The disk or the store does not answer")))]
pub(super) async fn read(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (entry, name, opened) = within(open(&app, &id)).await??;
    let length = opened.bytes;
    let asked = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let (status, range) = match range::wanted(asked, length) {
        Wanted::All => (StatusCode::OK, Range::all(length)),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::None => {
            let problem = Problem::value(
                "Range",
                asked.unwrap_or_default(),
                format!("one range of {length} bytes"),
            );
            let mut response = problem
                .with_status(StatusCode::RANGE_NOT_SATISFIABLE)
                .into_response();
            if let Ok(value) = format!("bytes */{length}").parse() {
                response.headers_mut().insert(CONTENT_RANGE, value);
            }
            return Ok(response);
        }
    };
    let mut response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, entry.content_type())
        .header(ACCEPT_RANGES, "bytes")
        .header(CONTENT_LENGTH, range.length())
        .header(CONTENT_DISPOSITION, disposition(&name));
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {}-{}/{length}", range.first, range.end - 1);
        response = response.header(CONTENT_RANGE, text);
    }
    tracing::debug!(id = entry.id, "a client reads a recording");
    let body = body(opened.pieces(range.first, range.end));
    response.body(body).map_err(|error| {
        let detail = format!("{id}: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    })
}

/// Opens a recording. If the file of a running recording is missing, because it has just started or was just renamed, tries
/// again.
async fn open(app: &App, id: &str) -> Result<(Entry, String, OpenRecording), Problem> {
    loop {
        let (entry, place) = app.recorder.find(id).ok_or_else(|| unknown(id))?;
        match place.open().await {
            Ok(opened) => return Ok((entry, place.file_name(), opened)),
            Err(ReadError::Missing) if entry.state == RecordingState::Running => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(ReadError::Missing) => return Err(unknown(id)),
            Err(error) => return Err(unreadable(id, &error)),
        }
    }
}

/// Returns the status for an error of the store: 503 if the store may answer later, otherwise 502.
fn status_of(error: &threadbare_s3::Error) -> StatusCode {
    if error.is_transient() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::BAD_GATEWAY
    }
}

fn unreadable(id: &str, error: &ReadError) -> Problem {
    let status = match error {
        ReadError::Store(error) => status_of(error),
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Problem::new(status, format!("{id}: {error}"))
}

/// Returns the Content-Disposition (RFC 6266) of a file. Unsafe characters are replaced, because parts of file names come from
/// requests.
fn disposition(name: &str) -> String {
    let plain = |letter: char| match letter {
        '"' | '\\' => '_',
        ' '..='~' => letter,
        _ => '_',
    };
    let name: String = name.chars().map(plain).collect();
    format!("attachment; filename=\"{name}\"")
}

/// Returns a body that reads each piece when the client has taken the previous one. If reading fails, the body is shorter than
/// announced, so the client notices.
fn body(pieces: Pieces) -> Body {
    Body::from_stream(unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().await.transpose()?;
        Some((piece.map_err(std::io::Error::other), pieces))
    }))
}

/// Delete a complete file, on the disk or in the store
#[utoipa::path(delete, path = "/v1/recordings/{id}", tag = "recordings", operation_id = "delete_recording",
    params(("id" = String, Path, description = "Id in the list")), responses((status = 204),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The file is being written or sent to the store"),
    (status = 502, body = Problem, content_type = "application/problem+json", description = "The store refuses to delete the recording"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "The store does not answer")))]
pub(super) async fn delete(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let conflict = |why: &str| Problem::new(StatusCode::CONFLICT, format!("{id}: {why}"));
    match within(app.recorder.delete(&id)).await? {
        Ok(Deleted::Gone) => Ok(StatusCode::NO_CONTENT),
        Ok(Deleted::Grows) => Err(conflict("the recording is being written")),
        Ok(Deleted::OnItsWay) => Err(conflict("the recording is being sent to the store")),
        Ok(Deleted::Refused(error)) => {
            let detail = format!("the store refuses to delete the recording {id}: {error}");
            Err(Problem::new(status_of(&error), detail))
        }
        // The recorder does not know the file, or is not running.
        Ok(Deleted::Unknown) | Err(_) => Err(unknown(&id)),
    }
}

/// Pause, stop or resume the recording of a stream
#[utoipa::path(patch, path = "/v1/streams/{name}", tag = "streams", operation_id = "change_stream", request_body = StreamChange,
    params(("name" = String, Path, description = "Name in the configuration")), responses((status = 204),
    (status = 400, body = Problem, content_type = "application/problem+json"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream is not recorded here")))]
pub(super) async fn change_stream(
    State(app): State<App>,
    Path(name): Path<String>,
    Json(new): Json<StreamChange>,
) -> Result<StatusCode, Problem> {
    let change = wanted_change(&new.recording)?;
    if app.view.read(|seen| seen.find(&name).is_none()) {
        return Err(streams::unknown(&name));
    }
    let told = within(app.recorder.change(&name, change)).await?;
    match told {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        _ => {
            let detail = format!("the stream {name} has no `record`, or does not run on this node");
            Err(Problem::new(StatusCode::CONFLICT, detail))
        }
    }
}

/// Parses the value of `recording`.
pub(super) fn wanted_change(text: &str) -> Result<Change, Problem> {
    match text {
        "running" => Ok(Change::Resume),
        "paused" => Ok(Change::Pause),
        "stopped" => Ok(Change::Stop),
        other => Err(Problem::value(
            "recording",
            other,
            "running, paused or stopped",
        )),
    }
}

fn unknown(id: &str) -> Problem {
    let problem = Problem::value("id", id, format!("those of GET {RECORDINGS}"));
    problem.with_status(StatusCode::NOT_FOUND)
}

const RECORDINGS: &str = "/v1/recordings";
const STATES: [&str; 4] = ["running", "complete", "cut", "recovered"];
const LIMIT_USUAL: usize = 50;
const LIMITS: RangeInclusive<usize> = 1..=500;
/// Pause before looking for a missing file again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
