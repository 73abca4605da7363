//! `/v1/streams/{name}/listen`: what a stream carries.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use threadbare_relay::{Listening, Portion};
use tokio::time::{Instant, sleep, timeout};

use super::{NS_PER_MS, Sound, TURN, Wav, file, place};
use crate::recording::Coding;
use crate::serve::http::app::App;
use crate::serve::http::problem::Problem;
use crate::serve::http::streams::unknown;

/// What a stream carries, to be listened to
///
/// A WAV file of 16 bits without an end, from now on: rate and channels are those of the audio as it is decoded. The answer begins with the first audio.
/// While the stream is silent or does not run, silence comes, a second at a time. The file ends when the stream is gone from the configuration or has other settings, or
/// its audio another format. Who reads too slowly misses some. 16 listeners at a time, those of calls among them.
#[utoipa::path(get, path = "/v1/streams/{name}/listen", tag = "streams", operation_id = "listen_to_stream", params(("name" = String, Path, description = "As in the file")),
    responses((status = 200, body = Wav, content_type = "audio/wav"),
    (status = 404, body = Problem, content_type = "application/problem+json"),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not decoded, or nothing is heard"),
    (status = 503, body = Problem, content_type = "application/problem+json", description = "There are enough listeners")))]
pub(in crate::serve::http) async fn listen(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let begun = app.view.read(|seen| {
        let watched = &seen.find(&name)?.watched;
        let is_decoded = watched.way.is_decoded;
        // The board itself is not kept: the stream's end is the end of it.
        Some(is_decoded.then(|| watched.board.clone()))
    });
    let board = begun.ok_or_else(|| unknown(&name))?.ok_or_else(|| {
        let detail = format!(
            "{name} cannot be listened to: with `codec = \"auto\"` it is sent on as it comes, without decoding"
        );
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    let place = place(&app)?;
    let mut listening = board.listen();
    drop(board);
    let first = timeout(FIRST_TIME_MAX, first(&mut listening)).await;
    let Some(first) = first.unwrap_or(None) else {
        let seconds = FIRST_TIME_MAX.as_secs();
        let detail = format!("{name}: nothing was heard within {seconds} s");
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    tracing::debug!(stream = name, "somebody listens");
    let line = Line {
        name,
        listening,
        first,
        heard_at: Instant::now(),
    };
    Ok(file(line, place))
}

/// Whatever is heard first.
async fn first(listening: &mut Listening) -> Option<Portion> {
    loop {
        match listening.peek() {
            None if listening.is_over() => return None,
            None => sleep(TURN).await,
            heard => return heard,
        }
    }
}

/// A stream that is listened to.
struct Line {
    name: String,
    listening: Listening,
    /// What the format is known by.
    first: Portion,
    /// When something came last.
    heard_at: Instant,
}

impl Sound for Line {
    fn format(&self) -> (u32, u16) {
        let format = self.first.format;
        (format.sample_rate_hz, u16::from(format.channels))
    }

    fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        // Before the samples: what came until then is still sent.
        let mut goes_on = !self.listening.is_over();
        let first = self.first;
        self.listening.take_coded(|portion, heard| {
            goes_on &= portion.is_like(&first);
            if portion.is_like(&first) {
                Coding::Linear.write(portion.format, heard, bytes);
            }
        });
        if bytes.is_empty() && goes_on && self.heard_at.elapsed() >= SILENCE {
            let (rate_hz, channels) = self.format();
            let frames = u64::from(rate_hz) * SILENCE.as_millis() as u64 / 1000;
            bytes.resize(frames as usize * usize::from(channels) * SAMPLE_BYTES, 0);
        }
        if !bytes.is_empty() {
            self.heard_at = Instant::now();
        }
        goes_on
    }

    fn end(&self) {
        let missed_ms = self.listening.missed_ns() / NS_PER_MS;
        if missed_ms > 0 {
            tracing::info!(stream = self.name, missed_ms, "a listener was too slow");
        }
    }
}

/// For audio of a stream that runs: its jitter buffer and its loudness target hold it back 3 s at most, and its sender may just begin.
const FIRST_TIME_MAX: Duration = Duration::from_secs(5);
/// So long without audio is silence, and no delay.
const SILENCE: Duration = Duration::from_secs(1);
const SAMPLE_BYTES: usize = 2;
