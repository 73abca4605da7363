//! Plays a file into a running stream, in place of its sender's audio.

use std::path::Path as FilePath;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use threadbare_audio_file::clip::Clips;
use threadbare_relay::{AudioSession, Commander};
use threadbare_rtp::call::Clip;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::app::{App, Json};
use super::problem::Problem;
use super::streams::unknown;

/// A file to play into a stream.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamPlay {
    /// A file on the gateway's machine: WAV, FLAC, Ogg Opus or MP3.
    file: String,
    /// How many times the file is played; default 1.
    #[schema(minimum = 1)]
    times: Option<u32>,
}

/// Play a file into a stream, in place of its sender's audio
///
/// The receiver hears the file, and then the sender again. The numbers and timestamps of the output continue. Another file replaces
/// one that is being played.
#[utoipa::path(post, path = "/v1/streams/{name}/play", tag = "streams", request_body = StreamPlay,
    params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 204, description = "The file is playable, and its playback starts"),
    (status = 400, body = Problem, content_type = "application/problem+json", description = "The file cannot be played"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream does not run, or sends no audio that can be encoded"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "Too many files are being read")))]
pub(super) async fn play(
    State(app): State<App>,
    Path(name): Path<String>,
    Json(play): Json<StreamPlay>,
) -> Result<StatusCode, Problem> {
    let session = session(&app, &name)?;
    let times = play.times.unwrap_or(1);
    if times == 0 {
        return Err(Problem::value("times", "0", "a number from 1"));
    }
    let _reading = READING.try_acquire().map_err(|_| {
        let detail = "too many files are being read";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1)
    })?;
    let file = play.file.clone();
    let read = tokio::task::spawn_blocking(move || Clips::default().get(FilePath::new(&file)));
    let read = read.await.map_err(|error| error.to_string());
    let clip = read.and_then(|clip| clip.map_err(|error| error.to_string()));
    let clip = clip.map_err(|reason| {
        Problem::value("file", &play.file, format!("a playable file; {reason}"))
    })?;
    let clip = Clip { times, ..clip };
    let begun = session.with(move |audio, now_ns| match audio.session().target() {
        Some(_) => audio.play(now_ns, clip).map_err(|error| error.to_string()),
        None => Err(NO_OUTPUT.to_owned()),
    });
    let begun = begun.await.map_err(|_| stopped(&name))?;
    begun.map_err(|reason| {
        let detail = format!("cannot play into the stream {name}: {reason}");
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop playing a file into a stream
#[utoipa::path(post, path = "/v1/streams/{name}/play/stop", tag = "streams",
    params(("name" = String, Path, description = "Name in the configuration")),
    responses((status = 204),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "The stream does not run")))]
pub(super) async fn stop_play(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let session = session(&app, &name)?;
    let stop = session.with(|audio, _| audio.stop_play());
    stop.await.map_err(|_| stopped(&name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the sender of commands to a running stream.
fn session(app: &App, name: &str) -> Result<Commander<AudioSession>, Problem> {
    let session = app
        .view
        .read(|seen| Some(seen.find(name)?.watched.session.clone()));
    session
        .ok_or_else(|| unknown(name))?
        .ok_or_else(|| stopped(name))
}

/// Limits the files that are read at once: a decoded file may take hundreds of megabytes.
static READING: Semaphore = Semaphore::const_new(2);
const NO_OUTPUT: &str = "it has no `destination`, or forwards packets unchanged because it has no `codec-out` other than `codec`, no `ptime` and no `payload-type`";

fn stopped(name: &str) -> Problem {
    let detail = format!("the stream {name} does not run");
    Problem::new(StatusCode::CONFLICT, detail)
}
